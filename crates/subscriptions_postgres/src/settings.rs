//! The settings of the subscriptions in PostgreSQL.

use database::Address;

/// The settings of the subscriptions in PostgreSQL.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address of the database.
    pub address: Address,
    /// The schema: a plain identifier.
    pub schema: String,
}

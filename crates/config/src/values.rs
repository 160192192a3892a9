//! The values that were read, before they have types.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Origin, Value};

/// The values by key, and the source of each.
pub(crate) type Values = BTreeMap<&'static str, (Value, Origin)>;

/// A table of `[[topics]]`, `[[forward]]` or `[[keys]]`: its values by key, defaults included. A key that is unset or invalid
/// has no value.
#[derive(Clone, Default)]
pub(crate) struct Rule {
    pub values: Values,
    /// Keys with an invalid value, so that their real value is unknown.
    pub invalid: BTreeSet<&'static str>,
}

//! The other end of a connection.

use std::net::IpAddr;

use model::Name;

/// Where a connection comes from, as far as it matters to who reads its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The address of the proxy that made the connection, if it is one that is trusted.
    pub proxy: Option<IpAddr>,
    /// Whom that proxy says it speaks for in this request: left here by the protocol that reads its head.
    pub client: Option<IpAddr>,
    /// The user whose certificate the connection has, where certificates name users.
    pub certificate_user: Option<Name>,
}

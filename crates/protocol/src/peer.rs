//! The other end of a connection.

use std::net::IpAddr;

use model::Name;

/// The origin of a connection, for the protocols that read its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The address of the proxy that made the connection, if it is a trusted one.
    pub proxy: Option<IpAddr>,
    /// The client's address in this request, by that proxy. The protocol that reads the head sets it.
    pub client: Option<IpAddr>,
    /// The user of the connection's certificate, if certificates name users.
    pub certificate_user: Option<Name>,
}

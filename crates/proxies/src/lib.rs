//! The clients behind proxies: which networks are trusted to name a client ([`Networks`]), and how they name it, by
//! a header of each request ([`forwarded`]) or by the PROXY protocol ([`parse_header`]).
//!
//! All of it is pure: bytes and addresses in, addresses out. Addresses that any other peer names are never used;
//! callers check [`Networks::contains`] first.

#![forbid(unsafe_code)]

mod forwarded;
mod networks;
mod proxy_protocol;

pub use forwarded::{forwarded, x_forwarded_for};
pub use networks::{Network, NetworkError, Networks};
pub use proxy_protocol::{HEADER_BYTES_MAX, Header, ProxyError, parse_header};

/// How a trusted proxy names its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyHeader {
    /// By the header `X-Forwarded-For` of each request.
    #[default]
    XForwardedFor,
    /// By the header `Forwarded` of each request (RFC 7239).
    Forwarded,
    /// By the PROXY protocol, at the beginning of each connection.
    ProxyProtocol,
}

/// The trusted proxies, and how they name their clients.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    /// The networks of the proxies.
    pub networks: Networks,
    /// How they name their clients.
    pub header: ProxyHeader,
}

//! Who stands behind a proxy: which networks are trusted to say it ([`Networks`]), and how they say
//! it, by a header of each request ([`forwarded`]) or by the PROXY protocol ([`parse_header`]).
//!
//! All of it is pure: bytes and addresses in, addresses out. What anyone else says about where it comes
//! from is never believed; callers ask [`Networks::contains`] first.

#![forbid(unsafe_code)]

mod forwarded;
mod networks;
mod proxy_protocol;

pub use forwarded::{forwarded, x_forwarded_for};
pub use networks::{Network, NetworkError, Networks};
pub use proxy_protocol::{HEADER_BYTES_MAX, Header, ProxyError, parse_header};

/// How a trusted proxy says whom it speaks for.
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

/// The proxies that are believed, and how they speak.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    /// Where they are.
    pub networks: Networks,
    /// How they say whom they speak for.
    pub header: ProxyHeader,
}

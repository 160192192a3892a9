//! Where a request comes from, as far as trusted proxies say.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderValue};
use proxies::Networks;

/// The header in which a proxy says where a request comes from.
const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The connected peer.
    Peer(SocketAddr),
    /// This address, as a trusted proxy says.
    Behind(IpAddr),
}

impl Origin {
    /// Returns the origin of a peer's request: the peer itself, or the address that it names if it is a trusted
    /// proxy.
    pub fn of(peer: SocketAddr, headers: &HeaderMap, trusted: &Networks) -> Self {
        if !trusted.contains(peer.ip()) {
            return Origin::Peer(peer);
        }
        let values = headers.get_all(X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
        match proxies::x_forwarded_for(values, trusted, peer.ip()) {
            address if address == peer.ip() => Origin::Peer(peer),
            address => Origin::Behind(address),
        }
    }

    /// The address.
    pub fn ip(self) -> IpAddr {
        match self {
            Origin::Peer(peer) => peer.ip(),
            Origin::Behind(address) => address,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Peer(peer) => peer.fmt(f),
            Origin::Behind(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_proxies_speak_for_others() {
        let trusted = Networks::parse(&["10.0.0.0/8"]).unwrap();
        let of = |peer: &str, values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(X_FORWARDED_FOR, (*value).try_into().unwrap());
            }
            Origin::of(peer.parse().unwrap(), &headers, &trusted).to_string()
        };
        assert_eq!(of("10.0.0.1:80", &[b"192.0.2.1, 10.0.0.2"]), "192.0.2.1");
        assert_eq!(of("10.0.0.1:80", &[b"203.0.113.9", b"192.0.2.1"]), "192.0.2.1");
        assert_eq!(of("10.0.0.1:80", &[]), "10.0.0.1:80");
        assert_eq!(of("10.0.0.1:80", &[b"192.0.2.1", b"\xff"]), "10.0.0.1:80");
        assert_eq!(of("10.0.0.1:80", &[b"\xff, 192.0.2.1"]), "192.0.2.1");
        assert_eq!(of("192.0.2.7:80", &[b"192.0.2.1"]), "192.0.2.7:80");
    }
}

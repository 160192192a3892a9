//! Addresses and prefixes.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// The reason why a text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The part before `/` is no address.
    #[error(
        "{0:?} is not an address: write an address like 10.0.0.1 or 2001:db8::1, or a prefix like \
         10.0.0.0/8"
    )]
    Address(String),
    /// The part behind `/` is no length.
    #[error("{0:?}: the length of the prefix must be a whole number up to {1}")]
    Length(String, u8),
    /// Bits behind the prefix are set.
    #[error("{0} has bits set after its prefix: write {1}")]
    HostBits(String, Network),
}

/// An address with the length of a prefix in bits: all addresses that begin with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

impl Network {
    /// Returns the network of this many bits that contains an address. An IPv4 address inside of IPv6 counts as
    /// IPv4; more bits than the address has count as all of them.
    pub fn of(address: IpAddr, bits: u8) -> Self {
        let address = address.to_canonical();
        Network(IpNet::new(address, bits).unwrap_or_else(|_| address.into()).trunc())
    }

    /// Returns the first address.
    pub fn address(self) -> IpAddr {
        self.0.addr()
    }

    /// Returns true if an address is in the network.
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    /// Reads an address, or a prefix: `10.0.0.1`, `10.0.0.0/8`, `2001:db8::/32`.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr =
            address.parse().map_err(|_| NetworkError::Address(address.to_string()))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let digits = |bits: &&str| bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = match bits {
            None => most,
            Some(bits) => Some(bits)
                .filter(digits)
                .and_then(|bits| bits.parse().ok())
                .filter(|bits| *bits <= most)
                .ok_or_else(|| NetworkError::Length(text.to_string(), most))?,
        };
        let canonical = address.to_canonical();
        // ::ffff:10.0.0.0/104 is 10.0.0.0/8.
        let bits = match (address, canonical) {
            (IpAddr::V6(_), IpAddr::V4(_)) if bits >= 96 => bits - 96,
            (IpAddr::V6(_), IpAddr::V4(_)) => {
                return Err(NetworkError::Length(text.to_string(), most));
            }
            _ => bits,
        };
        let network = Network::of(canonical, bits);
        if network.address() != canonical {
            return Err(NetworkError::HostBits(text.to_string(), network));
        }
        Ok(network)
    }
}

/// A list of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<Network>);

impl Networks {
    /// Parses a list of texts.
    ///
    /// # Errors
    /// For the first text that is no network.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Self, NetworkError> {
        texts.iter().map(|text| text.as_ref().parse()).collect::<Result<_, _>>().map(Networks)
    }

    /// True when the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if an address is in one of the networks.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_keep_their_addresses_and_no_others() {
        let list = ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::1"];
        let networks = Networks::parse(&list).unwrap();
        for inside in ["10.255.0.1", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8:ffff::1", "::1"] {
            assert!(networks.contains(ip(inside)), "{inside}");
        }
        for outside in ["11.0.0.1", "192.0.2.8", "2001:db9::1", "::2", "0.0.0.1", "127.0.0.1"] {
            assert!(!networks.contains(ip(outside)), "{outside}");
        }
        assert!(!Networks::default().contains(ip("127.0.0.1")));
        let all = Networks::parse(&["0.0.0.0/0"]).unwrap();
        assert!(all.contains(ip("255.1.2.3")) && !all.contains(ip("2001:db8::1")));
        assert!(Networks::parse(&["::ffff:10.0.0.0/104"]).unwrap().contains(ip("10.9.9.9")));
    }

    #[test]
    fn what_is_no_network_is_said() {
        for (text, want) in [
            ("", "not an address"),
            ("10.0.0", "not an address"),
            ("proxy.example", "not an address"),
            ("10.0.0.0/33", "up to 32"),
            ("10.0.0.0/+8", "up to 32"),
            ("10.0.0.0/", "up to 32"),
            ("2001:db8::/129", "up to 128"),
            ("10.0.0.1/8", "write 10.0.0.0/8"),
            ("::ffff:10.0.0.0/8", "up to 128"),
        ] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    #[test]
    fn a_prefix_makes_one_of_many_addresses() {
        let of = |text, bits| Network::of(ip(text), bits).address();
        assert_eq!(of("2001:db8:1:2:3:4:5:6", 64), ip("2001:db8:1:2::"));
        assert_eq!(of("2001:db8:1:2:3:4:5:6", 128), ip("2001:db8:1:2:3:4:5:6"));
        assert_eq!(of("2001:db8::1", 0), ip("::"));
        assert_eq!(of("10.1.2.3", 64), ip("10.1.2.3"));
    }
}

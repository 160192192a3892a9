//! The PROXY protocol, versions 1 and 2, as HAProxy defines it
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>): a header that a proxy sends at the beginning of
//! each connection, before the first byte of its client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest header that is read, in bytes: that of version 2 may have fields behind the addresses, which are
/// ignored.
pub const HEADER_BYTES_MAX: usize = 2048;

/// The first bytes of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes of version 2 before the addresses.
const FIXED: usize = 16;

/// The longest line of version 1, its end included.
const LINE_BYTES_MAX: usize = 107;

/// The result of parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// More bytes must come.
    Partial,
    /// A whole header.
    Whole {
        /// Bytes of the header.
        consumed: usize,
        /// The client's address; `None` when the proxy connects for itself (a health check), or for a client without
        /// an address.
        source: Option<SocketAddr>,
    },
}

/// The reason why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The bytes begin with something else.
    #[error("the connection doesn't begin with a PROXY protocol header")]
    NoHeader,
    /// A line of version 1 that the protocol does not define.
    #[error("the line of the PROXY protocol is invalid")]
    Line,
    /// A header of version 2 that the protocol does not define.
    #[error("the header of the PROXY protocol (version 2) is invalid")]
    Binary,
    /// A header of version 2 that is too long.
    #[error("the header of the PROXY protocol has more than {HEADER_BYTES_MAX} bytes")]
    TooLong,
}

/// Parses the header at the beginning of `bytes`. The same bytes give the same result however the network splits
/// them.
///
/// # Errors
/// When no further bytes could make it a header.
pub fn parse_header(bytes: &[u8]) -> Result<Header, ProxyError> {
    let start = |want: &[u8]| {
        let length = bytes.len().min(want.len());
        bytes[..length] == want[..length]
    };
    if start(SIGNATURE) {
        version_2(bytes)
    } else if start(b"PROXY ") {
        version_1(bytes)
    } else {
        Err(ProxyError::NoHeader)
    }
}

/// `PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n`
fn version_1(bytes: &[u8]) -> Result<Header, ProxyError> {
    let window = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = window.iter().position(|byte| *byte == b'\n') else {
        return match bytes.len() < LINE_BYTES_MAX {
            true => Ok(Header::Partial),
            false => Err(ProxyError::Line),
        };
    };
    let line = std::str::from_utf8(&window[..end]).ok().and_then(|line| line.strip_suffix('\r'));
    let rest = line.and_then(|line| line.strip_prefix("PROXY ")).ok_or(ProxyError::Line)?;
    let consumed = end + 1;
    // The protocol says to ignore the rest of the line.
    if rest == "UNKNOWN" || rest.starts_with("UNKNOWN ") {
        return Ok(Header::Whole { consumed, source: None });
    }
    let fields: Vec<&str> = rest.split(' ').collect();
    let [family, source, destination, source_port, destination_port] = fields[..] else {
        return Err(ProxyError::Line);
    };
    let address = |text: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => text.parse().map(IpAddr::V4).ok(),
            "TCP6" => text.parse().map(IpAddr::V6).ok(),
            _ => None,
        }
    };
    let port = |text: &str| -> Option<u16> {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        // A number has no leading zeros.
        let plain = plain && (text.len() == 1 || !text.starts_with('0'));
        text.parse().ok().filter(|_| plain)
    };
    match (address(source), address(destination), port(source_port), port(destination_port)) {
        (Some(source), Some(_), Some(port), Some(_)) => {
            let source = SocketAddr::new(source.to_canonical(), port);
            Ok(Header::Whole { consumed, source: Some(source) })
        }
        _ => Err(ProxyError::Line),
    }
}

fn version_2(bytes: &[u8]) -> Result<Header, ProxyError> {
    // An error is reported as soon as its byte is here, however the bytes are split.
    let command = match bytes.get(12) {
        None => return Ok(Header::Partial),
        Some(0x20) => Command::Local,
        Some(0x21) => Command::Proxy,
        Some(_) => return Err(ProxyError::Binary),
    };
    let (Some(family), Some(length)) = (bytes.get(13), bytes.get(14..FIXED)) else {
        return Ok(Header::Partial);
    };
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let consumed = FIXED + length;
    if consumed > HEADER_BYTES_MAX {
        return Err(ProxyError::TooLong);
    }
    // Addresses of TCP, and how long they are; anything else is a client without an address.
    let address_bytes = match (command, family) {
        (Command::Proxy, 0x11) => 12,
        (Command::Proxy, 0x21) => 36,
        (Command::Proxy, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) | (Command::Local, _) => 0,
        (Command::Proxy, _) => return Err(ProxyError::Binary),
    };
    if length < address_bytes {
        return Err(ProxyError::Binary);
    }
    let Some(block) = bytes.get(FIXED..consumed) else {
        return Ok(Header::Partial);
    };
    let port = |at: usize| u16::from_be_bytes([block[at], block[at + 1]]);
    let source = match address_bytes {
        12 => {
            let octets: [u8; 4] = std::array::from_fn(|at| block[at]);
            Some(SocketAddr::new(Ipv4Addr::from(octets).into(), port(8)))
        }
        36 => {
            let octets: [u8; 16] = std::array::from_fn(|at| block[at]);
            let address = IpAddr::V6(Ipv6Addr::from(octets)).to_canonical();
            Some(SocketAddr::new(address, port(32)))
        }
        _ => None,
    };
    Ok(Header::Whole { consumed, source })
}

/// The subject of a header of version 2.
#[derive(Clone, Copy)]
enum Command {
    /// The proxy itself.
    Local,
    /// Its client.
    Proxy,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(bytes: &[u8]) -> (usize, Option<String>) {
        match parse_header(bytes) {
            Ok(Header::Whole { consumed, source }) => {
                (consumed, source.map(|address| address.to_string()))
            }
            other => panic!("{other:?}"),
        }
    }

    fn binary(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let mut out = SIGNATURE.to_vec();
        out.extend([command, family]);
        out.extend(u16::try_from(block.len()).unwrap().to_be_bytes());
        out.extend(block);
        out
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 1, 0x12, 0x67, 1, 0xbb];

    #[test]
    fn lines_of_version_1_are_read() {
        for (line, source) in [
            ("PROXY TCP4 192.0.2.1 198.51.100.1 4711 443\r\n", Some("192.0.2.1:4711")),
            ("PROXY TCP6 2001:db8::1 2001:db8::2 0 65535\r\n", Some("[2001:db8::1]:0")),
            ("PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", Some("192.0.2.1:1")),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN ff::1 ff::2 1 x\r\n", None),
        ] {
            let bytes = format!("{line}GET / HTTP/1.1\r\n");
            assert_eq!(whole(bytes.as_bytes()), (line.len(), source.map(String::from)), "{line}");
        }
        for line in [
            "PROXY TCP4 192.0.2.1 198.51.100.1 4711\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 4711 65536\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 04711 443\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 +1 443\r\n",
            "PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
            "PROXY TCP5 192.0.2.1 198.51.100.1 1 2\r\n",
            "PROXY TCP4  192.0.2.1 198.51.100.1 1 2\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 1 2\n",
            "PROXY UNKNOWNS\r\n",
            "PROXY \r\n",
        ] {
            assert_eq!(parse_header(line.as_bytes()), Err(ProxyError::Line), "{line}");
        }
        let long = format!("PROXY {}", "x".repeat(200));
        assert_eq!(parse_header(long.as_bytes()), Err(ProxyError::Line));
        for other in ["GET / HTTP/1.1\r\n", "proxy TCP4", "\r\n\r\nGET", "PROXYTCP4"] {
            assert_eq!(parse_header(other.as_bytes()), Err(ProxyError::NoHeader), "{other}");
        }
    }

    #[test]
    fn headers_of_version_2_are_read() {
        let header = binary(0x21, 0x11, &V4);
        assert_eq!(whole(&header), (28, Some("192.0.2.1:4711".into())));
        let with_fields = binary(0x21, 0x11, &[&V4[..], &[4, 0, 1, 7]].concat());
        assert_eq!(whole(&with_fields), (32, Some("192.0.2.1:4711".into())));
        let mut v6 = [0; 36];
        v6[..2].copy_from_slice(&[0x20, 1]);
        v6[32..34].copy_from_slice(&80u16.to_be_bytes());
        assert_eq!(whole(&binary(0x21, 0x21, &v6)), (52, Some("[2001::]:80".into())));
        for (command, family) in [(0x20, 0x11), (0x20, 0), (0x21, 0), (0x21, 0x31), (0x21, 0x12)] {
            assert_eq!(whole(&binary(command, family, &[])), (16, None));
        }
        for bad in [
            binary(0x11, 0x11, &V4),
            binary(0x22, 0x11, &V4),
            binary(0x21, 0x13, &V4),
            binary(0x21, 0x11, &V4[..11]),
            binary(0x21, 0x21, &V4),
        ] {
            assert_eq!(parse_header(&bad), Err(ProxyError::Binary), "{bad:?}");
        }
        let long = binary(0x21, 0x11, &[0; HEADER_BYTES_MAX]);
        assert_eq!(parse_header(&long), Err(ProxyError::TooLong));
    }

    fn any_header() -> impl Strategy<Value = Vec<u8>> {
        let line =
            "PROXY (TCP4|TCP6|UNKNOWN|X)( [0-9a-f.:]{1,20}){0,5}\r?\n".prop_map(String::into_bytes);
        let v2 = (0x1eu8..0x24, any::<u8>(), prop::collection::vec(any::<u8>(), 0..60))
            .prop_map(|(command, family, block)| binary(command, family, &block));
        let other = prop::collection::vec(any::<u8>(), 0..120);
        prop_oneof![line, v2, other]
    }

    proptest! {
        #[test]
        fn a_header_is_the_same_however_it_is_split(bytes in any_header(), behind in any::<[u8; 4]>()) {
            let all = [&bytes[..], &behind].concat();
            let found = parse_header(&all);
            if let Ok(Header::Whole { consumed, .. }) = found {
                prop_assert!(consumed <= all.len());
            }
            for end in 0..all.len() {
                match parse_header(&all[..end]) {
                    Ok(Header::Partial) => {}
                    other => prop_assert_eq!(other, found, "{}", end),
                }
            }
        }

        #[test]
        fn an_address_is_read_back(address in any::<u32>(), port in any::<u16>(), v6 in any::<u128>()) {
            let v4 = Ipv4Addr::from_bits(address);
            let line = format!("PROXY TCP4 {v4} 127.0.0.1 {port} 1\r\n");
            prop_assert_eq!(whole(line.as_bytes()).1, Some(format!("{v4}:{port}")));
            let mut block = [0; 36];
            block[..16].copy_from_slice(&v6.to_be_bytes());
            block[32..34].copy_from_slice(&port.to_be_bytes());
            let want = SocketAddr::new(IpAddr::V6(Ipv6Addr::from_bits(v6)).to_canonical(), port);
            prop_assert_eq!(whole(&binary(0x21, 0x21, &block)).1, Some(want.to_string()));
        }
    }
}

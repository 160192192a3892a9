//! Addresses to listen on.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Resolves the addresses of a `name:port`.
pub type Resolve = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// Parses `127.0.0.1:8000`, `[::1]:8000`, or `localhost:8000`. A server listens on one address: the first of IPv4 for
/// a name, or else the first of IPv6.
///
/// # Errors
/// What to write, if there is a specific advice.
pub(crate) fn parse(text: &str, resolve: Option<Resolve>) -> Result<SocketAddr, Option<String>> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Some(advice) = advice(text) {
        return Err(Some(advice));
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_named = text.split_once(':').is_some_and(|(name, _)| name.chars().all(is_name));
    let resolve = resolve.filter(|_| is_named).ok_or(None)?;
    let found =
        resolve(text).map_err(|error| Some(format!("this name can't be resolved: {error}")))?;
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| Some("this name has no address".into()))
}

/// Returns advice on a text that is almost an address.
pub(crate) fn advice(text: &str) -> Option<String> {
    let port = text.strip_prefix("*:").or(text.strip_prefix(':')).unwrap_or(text);
    if is_port(port) {
        return Some(format!(
            "write 127.0.0.1:{port} to accept connections from this machine only, or \
             0.0.0.0:{port} from other machines, too"
        ));
    }
    if text.contains("://") {
        return Some("write only the host and the port, without scheme and path".into());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(format!("a port is missing, as in {}", SocketAddr::new(address, 8000)));
    }
    if let Some((address, port)) = text.rsplit_once(':')
        && address.parse::<Ipv6Addr>().is_ok()
        && is_port(port)
    {
        return Some(format!("write [{address}]:{port}"));
    }
    match text.rsplit_once(':') {
        None if !text.is_empty() => Some(format!("a port is missing, as in {text}:8000")),
        Some((_, port)) if !is_port(port) => Some("a port is a number from 0 to 65535".into()),
        _ => None,
    }
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn resolve(text: &str) -> io::Result<Vec<SocketAddr>> {
        let (name, port) = text.split_once(':').unwrap();
        let port: u16 = port.parse().unwrap();
        let addresses: &[&str] = match name {
            "localhost" => &["::1", "127.0.0.1", "127.0.0.2"],
            "six" => &["::1", "::2"],
            "none" => &[],
            _ => return Err(io::Error::other("Name or service not known")),
        };
        Ok(addresses.iter().map(|it| SocketAddr::new(it.parse().unwrap(), port)).collect())
    }

    #[test]
    fn names_are_resolved_to_one_address_of_ipv4_if_there_is_one() {
        for (text, want) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("localhost:18000", "127.0.0.1:18000"),
            ("six:1", "[::1]:1"),
        ] {
            assert_eq!(parse(text, Some(resolve)).unwrap().to_string(), want);
        }
        let error = |text| parse(text, Some(resolve)).unwrap_err().unwrap();
        assert_eq!(error("none:1"), "this name has no address");
        assert_eq!(error("other:1"), "this name can't be resolved: Name or service not known");
        assert_eq!(parse("localhost:1", None), Err(None));
    }

    #[test]
    fn a_near_address_gets_an_error_that_says_how_to_write_it() {
        for (text, want) in [
            (
                "18000",
                "write 127.0.0.1:18000 to accept connections from this machine only, or \
                 0.0.0.0:18000 from other machines, too",
            ),
            (":18000", "write 127.0.0.1:18000 to"),
            ("*:18000", "write 127.0.0.1:18000 to"),
            ("localhost", "a port is missing, as in localhost:8000"),
            ("127.0.0.1", "a port is missing, as in 127.0.0.1:8000"),
            ("::1", "a port is missing, as in [::1]:8000"),
            ("::ffff:1.2.3.4:80", "write [::ffff:1.2.3.4]:80"),
            ("localhost:http", "a port is a number from 0 to 65535"),
            ("localhost:65536", "a port is a number"),
            ("localhost:", "a port is a number"),
            ("http://localhost:8000/", "write only the host and the port"),
        ] {
            let error = parse(text, Some(resolve)).unwrap_err().unwrap();
            assert!(error.starts_with(want), "{text}: {error}");
        }
        // A text that is not a name never reaches the resolver.
        for text in ["", "a b:1", "é:1", "a/b:1"] {
            let ask = |_: &str| -> io::Result<Vec<SocketAddr>> { panic!("asked") };
            assert_eq!(parse(text, Some(ask)), Err(None), "{text}");
        }
    }
}

//! Names in `Host`.

use std::net::IpAddr;

/// Returns a `Host` without its port, and an IPv6 address without its brackets.
pub(crate) fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        // A port or nothing follows the bracket of an address.
        Some(v6) => match v6.split_once(']') {
            Some((name, rest)) if rest.is_empty() || rest.starts_with(':') => name,
            _ => "",
        },
        None => host.split(':').next().unwrap_or(""),
    }
}

/// Returns the port of a `Host`, if it names one.
pub(super) fn port(host: &str) -> Option<u16> {
    let (_, port) =
        host.rsplit_once(':').filter(|(name, _)| !name.contains(':') || name.ends_with(']'))?;
    port.parse().ok()
}

/// Reports whether a browser resolves the host without DNS: `localhost`, or an IP address.
pub(super) fn is_local(host: &str) -> bool {
    let name = host_name(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[test]
fn ports_are_read() {
    for (host, want) in [
        ("a:8001", Some(8001)),
        ("[::1]:80", Some(80)),
        ("a", None),
        ("[::1]", None),
        ("::1", None),
        ("a:", None),
        ("a:99999", None),
    ] {
        assert_eq!(port(host), want, "{host}");
    }
}

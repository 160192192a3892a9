//! `X-Forwarded-For`, and `Forwarded` (RFC 7239).
//!
//! Each proxy appends the address from which it got the request. So the list is read from its end: trusted proxies
//! wrote the last entries, and the first untrusted address is the client's. Entries before that may be forged, also
//! by bytes that are no text: these are no address, and hide none of the entries behind them.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use crate::Networks;

/// Returns the client of a request that a trusted proxy has sent, by the values of `X-Forwarded-For`, in their
/// order. Without a readable one the client is the proxy itself.
pub fn x_forwarded_for<'a>(
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
    trusted: &Networks,
    proxy: IpAddr,
) -> IpAddr {
    let entries = values.rev().flat_map(|value| value.rsplit(|byte| *byte == b','));
    client(entries.map(|entry| node(std::str::from_utf8(entry).ok()?)), trusted, proxy)
}

/// Like [`x_forwarded_for`], by the values of `Forwarded`.
pub fn forwarded<'a>(
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
    trusted: &Networks,
    proxy: IpAddr,
) -> IpAddr {
    // A quoted string may contain a comma, so each value is read from its front. If a quotation mark is not closed,
    // a client has left it open to hide what the proxy has appended: then each comma separates.
    let entries = values.rev().map(String::from_utf8_lossy).flat_map(|value: Cow<'_, str>| {
        let elements = split(&value, b',').unwrap_or_else(|| value.split(',').collect());
        let nodes: Vec<Option<IpAddr>> = elements.into_iter().rev().map(forwarded_for).collect();
        nodes
    });
    client(entries, trusted, proxy)
}

/// Returns the first address that isn't trusted. An entry without an address (`unknown`, `_hidden`) ends the list:
/// nothing is known beyond it.
fn client(
    entries: impl Iterator<Item = Option<IpAddr>>,
    trusted: &Networks,
    proxy: IpAddr,
) -> IpAddr {
    let mut known = proxy;
    for entry in entries {
        let Some(address) = entry else {
            break;
        };
        known = address;
        if !trusted.contains(address) {
            break;
        }
    }
    known
}

/// Returns the node of the parameter `for` of an element: `for=192.0.2.60;proto=http`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    split(element, b';')?.into_iter().find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let value = value.trim_ascii();
        // No address contains characters that need an escape.
        let unquoted = value.strip_prefix('"').map(|rest| rest.strip_suffix('"'));
        let is_for = key.trim_ascii().eq_ignore_ascii_case("for");
        is_for.then(|| unquoted.unwrap_or(Some(value)).and_then(node))
    })?
}

/// Splits a text at separators outside of quoted strings; `None` if such a string is not closed.
fn split(text: &str, separator: u8) -> Option<Vec<&str>> {
    let (mut parts, mut from) = (Vec::new(), 0);
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if byte == separator && !quoted => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    (!quoted).then_some(parts)
}

/// Parses an address, with or without a port, and with or without brackets around IPv6.
fn node(text: &str) -> Option<IpAddr> {
    let text = text.trim_ascii();
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse().map(IpAddr::V6).ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    // A port may be hidden as well: `192.0.2.43:_x`.
    let hidden = || {
        let (address, port) = text.rsplit_once(':')?;
        port.strip_prefix('_').map(|_| ())?;
        address.trim_start_matches('[').trim_end_matches(']').parse().ok()
    };
    let found: Option<IpAddr> = text.parse().ok().or_else(bare).or_else(with_port).or_else(hidden);
    found.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn trusted() -> Networks {
        Networks::parse(&["10.0.0.0/8", "fd00::/8"]).unwrap()
    }

    const PROXY: &str = "10.0.0.1";

    #[test]
    fn the_last_that_is_not_trusted_is_the_client() {
        for (values, want) in [
            (&[][..], PROXY),
            (&["192.0.2.1"], "192.0.2.1"),
            // The client's own entries come first.
            (&["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
            (&["6.6.6.6", "192.0.2.1, 10.0.0.9"], "192.0.2.1"),
            (&["192.0.2.1:4711"], "192.0.2.1"),
            (&["2001:db8::1 ,10.0.0.9,fd00::5"], "2001:db8::1"),
            (&["[2001:db8::1]:80"], "2001:db8::1"),
            (&["[2001:db8::1]"], "2001:db8::1"),
            (&["::ffff:192.0.2.1"], "192.0.2.1"),
            // All are trusted: the first is the client.
            (&["10.0.0.7, 10.0.0.8"], "10.0.0.7"),
            // An unreadable entry ends the list.
            (&["192.0.2.1, unknown"], PROXY),
            (&["192.0.2.1, unknown, 10.0.0.9"], "10.0.0.9"),
            (&["192.0.2.1,"], PROXY),
            (&[""], PROXY),
        ] {
            let values = values.iter().map(|value| value.as_bytes());
            let client = x_forwarded_for(values.clone(), &trusted(), ip(PROXY));
            assert_eq!(client, ip(want), "{:?}", values.collect::<Vec<_>>());
        }
    }

    #[test]
    fn bytes_that_are_no_text_hide_nothing() {
        for (values, want) in [
            (&[&b"\xff, 192.0.2.1"[..]][..], "192.0.2.1"),
            (&[b"6.6.6.6", b"\xff, 192.0.2.1"], "192.0.2.1"),
            (&[b"6.6.6.6", b"\xff"], PROXY),
            (&[b"6.6.6.6, \xff, 10.0.0.9"], "10.0.0.9"),
        ] {
            let client = x_forwarded_for(values.iter().copied(), &trusted(), ip(PROXY));
            assert_eq!(client, ip(want), "{values:?}");
        }
        for (values, want) in [
            (&[&b"for=\xff, for=192.0.2.1"[..]][..], "192.0.2.1"),
            (&[b"for=6.6.6.6", b"for=6.6.6.6;host=\"\xff, for=192.0.2.1"], "192.0.2.1"),
            (&[b"for=6.6.6.6", b"for=\xff"], PROXY),
        ] {
            let client = forwarded(values.iter().copied(), &trusted(), ip(PROXY));
            assert_eq!(client, ip(want), "{values:?}");
        }
    }

    #[test]
    fn forwarded_says_it_in_its_parameter_for() {
        for (values, want) in [
            (&[][..], PROXY),
            (&["for=192.0.2.60;proto=http;by=203.0.113.43"], "192.0.2.60"),
            (&["For=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::17"),
            (&["for=6.6.6.6, for=192.0.2.1"], "192.0.2.1"),
            (&["for=6.6.6.6", "proto=https; for=192.0.2.1,for=10.1.1.1"], "192.0.2.1"),
            (&["for=192.0.2.1;host=\"a,b;for=6.6.6.6\\\",\""], "192.0.2.1"),
            (&["for=\"192.0.2.1:_hidden\""], "192.0.2.1"),
            (&["for=_gazonk"], PROXY),
            (&["for=unknown, for=10.0.0.9"], "10.0.0.9"),
            (&["proto=http"], PROXY),
            (&["for=\"192.0.2.1"], PROXY),
            (&["for=\"6.6.6.6, for=192.0.2.1"], "192.0.2.1"),
            (&["for=\"\\, for=\"[2001:db8::1]\""], "2001:db8::1"),
            (&["fortune=192.0.2.1"], PROXY),
        ] {
            let values = values.iter().map(|value| value.as_bytes());
            let client = forwarded(values.clone(), &trusted(), ip(PROXY));
            assert_eq!(client, ip(want), "{:?}", values.collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn what_stands_before_the_client_changes_nothing(
            junk in proptest::collection::vec(any::<u8>(), 0..80)
        ) {
            let x = [&junk, &b", 192.0.2.1, 10.2.2.2"[..]].concat();
            let client = x_forwarded_for([&*x].into_iter(), &trusted(), ip(PROXY));
            prop_assert_eq!(client, ip("192.0.2.1"));
            let f = [&junk, &b", for=192.0.2.1, for=10.2.2.2"[..]].concat();
            let client = forwarded([&*f].into_iter(), &trusted(), ip(PROXY));
            prop_assert_eq!(client, ip("192.0.2.1"));
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            x_forwarded_for([&*bytes].into_iter(), &trusted(), ip(PROXY));
            forwarded([&*bytes].into_iter(), &trusted(), ip(PROXY));
        }
    }
}

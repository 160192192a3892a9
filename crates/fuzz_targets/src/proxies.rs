//! A proxy's information about its client.

use ::proxies::{HEADER_BYTES_MAX, Header, Networks, forwarded, parse_header, x_forwarded_for};

/// Parses a header of the PROXY protocol, whole and cut short, and the values of `X-Forwarded-For` and
/// `Forwarded`: no entry of a list outranks a later one of an address that is not trusted.
pub fn proxies(data: &[u8]) {
    let whole = parse_header(data);
    if let Ok(Header::Whole { consumed, .. }) = whole {
        assert!(consumed <= data.len() && consumed <= HEADER_BYTES_MAX);
    }
    let cut = data.first().map_or(0, |first| usize::from(*first) % data.len());
    let part = parse_header(&data[..cut]);
    assert!(part == Ok(Header::Partial) || part == whole, "{part:?}, {whole:?}");

    let (proxy, client) = ("10.0.0.1".parse().unwrap(), "192.0.2.1");
    let trusted = Networks::parse(&["10.0.0.0/8"]).unwrap();
    x_forwarded_for([data].into_iter(), &trusted, proxy);
    forwarded([data].into_iter(), &trusted, proxy);
    let appended = [data, b", ", client.as_bytes()].concat();
    assert_eq!(x_forwarded_for([&*appended].into_iter(), &trusted, proxy).to_string(), client);
    let appended = [data, b", for=", client.as_bytes()].concat();
    assert_eq!(forwarded([&*appended].into_iter(), &trusted, proxy).to_string(), client);
}

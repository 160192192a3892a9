//! What proxies say of their clients: any bytes are read without a panic, and the same however they are
//! split; and nobody comes before the last entry of a list who isn't trusted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxies::{HEADER_BYTES_MAX, Header, Networks, forwarded, parse_header, x_forwarded_for};

fuzz_target!(|bytes: &[u8]| {
    let found = parse_header(bytes);
    if let Ok(Header::Whole { taken, .. }) = found {
        assert!(taken <= bytes.len() && taken <= HEADER_BYTES_MAX);
    }
    let cut = bytes.first().map_or(0, |first| usize::from(*first) % bytes.len());
    let part = parse_header(&bytes[..cut]);
    assert!(part == Ok(Header::Partial) || part == found, "{part:?}, {found:?}");

    let (proxy, client) = ("10.0.0.1".parse().unwrap(), "192.0.2.1");
    let trusted = Networks::parse(&["10.0.0.0/8"]).unwrap();
    x_forwarded_for([bytes].into_iter(), &trusted, proxy);
    forwarded([bytes].into_iter(), &trusted, proxy);
    let appended = [bytes, b", ", client.as_bytes()].concat();
    assert_eq!(x_forwarded_for([&*appended].into_iter(), &trusted, proxy).to_string(), client);
    let appended = [bytes, b", for=", client.as_bytes()].concat();
    assert_eq!(forwarded([&*appended].into_iter(), &trusted, proxy).to_string(), client);
});

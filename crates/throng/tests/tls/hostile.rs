//! Clients that break TLS after the handshake, by tlslite-ng, which can write records that other libraries can't.
//! `scripts/install` installs it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::tls::{Authority, read_until};
use crate::support::*;

/// The ways in which clients break TLS, each with the server's alert, and with the alert of version 1.2 if it
/// differs. The alerts are those of RFC 8446, 5 and 6, and RFC 5246, 7.2.
const ALERTS: [(&str, &str, Option<&str>); 23] = [
    ("an unknown type of record", "unexpected_message", None),
    ("a changed tag", "bad_record_mac", None),
    ("a changed first byte", "bad_record_mac", None),
    ("a record of half a tag", "bad_record_mac", None),
    ("an empty record", "bad_record_mac", None),
    ("a record with a length above the limit", "record_overflow", None),
    ("a record with too much in it", "record_overflow", None),
    ("plain data", "bad_record_mac", None),
    // All encrypted records of version 1.3 have the type of data, so the server needs no key to reject these.
    ("a plain handshake", "unexpected_message", Some("bad_record_mac")),
    ("a plain alert", "unexpected_message", Some("bad_record_mac")),
    ("records without data", "unexpected_message", None),
    ("another handshake", "unexpected_message", Some("no_renegotiation")),
    ("an empty handshake record", "unexpected_message", None),
    ("a message that was finished before", "unexpected_message", None),
    ("half an alert", "decode_error", None),
    // The server sends nothing to a client that has ended the connection.
    ("a fatal alert", "closed", None),
    ("padding and nothing else", "unexpected_message", None),
    ("a change of ciphers", "unexpected_message", None),
    ("key updates", "unexpected_message", None),
    ("a key update of an unknown kind", "illegal_parameter", None),
    ("a key update of two bytes", "decode_error", None),
    ("a key update with a message behind it", "unexpected_message", None),
    ("a handshake message between data", "unexpected_message", None),
];

/// The index of the first way that only exists in version 1.3.
const ONLY_1_3: usize = 16;

fn expected() -> BTreeMap<String, &'static str> {
    let of_1_3 = ALERTS.iter().map(|(way, alert, _)| (format!("1.3 {way}"), *alert));
    let of_1_2 = ALERTS[..ONLY_1_3].iter();
    let of_1_2 = of_1_2.map(|(way, alert, other)| (format!("1.2 {way}"), other.unwrap_or(alert)));
    of_1_3.chain(of_1_2).collect()
}

#[test]
fn each_way_to_break_tls_ends_its_connection_by_the_right_alert() {
    let authority = Authority::new();
    let server = authority.server(&["--shards", "1"], &[]);
    let mut witness = authority.connect(server.client_tls.unwrap());
    witness.write_all(b"GET /sse?topic=t HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    server.until_members("t", 1);
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", installed("tlslite-ng"));
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls/hostile.py"));
    python.arg(server.client_tls.unwrap().to_string());
    python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = printed_within(python.spawn().expect("python3"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (printed, errors) = (text(output.stdout), text(output.stderr));
    let came = printed.lines().map(|line| line.rsplit_once(": ").expect("a way and an alert"));
    let came: BTreeMap<String, &str> = came.map(|(way, alert)| (way.to_owned(), alert)).collect();
    assert_eq!(came, expected(), "{errors}");
    assert!(output.status.success(), "{errors}");
    // Another connection of the shard goes on, and the broken ones leave nothing behind.
    server.publish("t", "still here".into());
    read_until(&mut witness, "still here");
    server.until("they are gone", |server| server.metric("throng_tls_connections") == 1.0);
    server.until("their memory is free", |server| {
        server.metric("throng_tls_input_memory_bytes") == 0.0
    });
}

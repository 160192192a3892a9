//! Packets of MQTT: no panic, however they are split, and what is read can be written and is then the same.
//! The first byte says which side sent it in which version.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::mqtt::{Packet, Side, Version, packet_bytes, read, rewrite};

const BYTES_MAX: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let version = if how & 1 == 0 { Version::V3 } else { Version::V5 };
    let from = if how & 2 == 0 { Side::Client } else { Side::Server };
    let known = (how & 4 == 0).then_some(version);
    let whole = read(bytes, known, from, BYTES_MAX);
    let part = read(&bytes[..bytes.len() / 2], known, from, BYTES_MAX);
    assert!(part.is_ok() || whole.is_err());
    let Ok(Some((packet, taken))) = whole else { return };
    assert_eq!(packet_bytes(bytes), Ok(Some(taken)));
    let version = match packet {
        Packet::Connect(connect) => connect.version,
        _ => version,
    };
    let mut again = Vec::new();
    rewrite(&packet, version, &mut again).unwrap();
    assert_eq!(read(&again, known, from, taken), Ok(Some((packet, again.len()))));
});

//! MQTT packets.

use protocol::mqtt::{Packet, Side, Version, packet_bytes, read, rewrite};

const PACKET_BYTES_MAX: usize = 1 << 16;

/// Reads the first packet, whole and cut short: a packet that is read can be written, and the written bytes read as
/// the same packet. Of the first byte, bit 0 is the version, bit 1 the side that sent it, and bit 2 means that the
/// version is not known yet.
pub fn mqtt(data: &[u8]) {
    let Some((mode, bytes)) = data.split_first() else { return };
    let version = if mode & 1 == 0 { Version::V3 } else { Version::V5 };
    let from = if mode & 2 == 0 { Side::Client } else { Side::Server };
    let known = (mode & 4 == 0).then_some(version);
    let whole = read(bytes, known, from, PACKET_BYTES_MAX);
    let part = read(&bytes[..bytes.len() / 2], known, from, PACKET_BYTES_MAX);
    assert!(part.is_ok() || whole.is_err(), "an error that more bytes mend");
    let Ok(Some((packet, consumed))) = whole else { return };
    assert_eq!(packet_bytes(bytes), Ok(Some(consumed)));
    let version = match packet {
        Packet::Connect(connect) => connect.version,
        _ => version,
    };
    let mut written = Vec::new();
    rewrite(&packet, version, &mut written).unwrap();
    assert_eq!(read(&written, known, from, consumed), Ok(Some((packet, written.len()))));
}

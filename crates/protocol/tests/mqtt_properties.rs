//! Properties of MQTT's codec, for any packets and any split of their bytes.

mod mqtt_packets;

use mqtt_packets::{BYTES_MAX, Sent, mutated, packet};
use proptest::collection::vec;
use proptest::prelude::*;
use protocol::mqtt::{Packet, Side, Version, packet_bytes, read, rewrite};

/// Reads each beginning of the bytes, and then all of them. Checks that both agree, and that the packet that was read
/// can be written.
fn in_pieces(sent: &Sent) -> Result<(), TestCaseError> {
    let whole = read(&sent.bytes, sent.known(), sent.from, BYTES_MAX);
    for end in 0..sent.bytes.len() {
        let part = read(&sent.bytes[..end], sent.known(), sent.from, BYTES_MAX);
        match (part, &whole) {
            (Ok(None), _) => {}
            // A beginning may have an earlier error than the whole.
            (Err(_), Err(_)) => {}
            (Ok(Some(part)), Ok(Some(whole))) => prop_assert_eq!(&part, whole),
            (part, whole) => prop_assert!(false, "{part:?} of {whole:?}"),
        }
        let bytes = packet_bytes(&sent.bytes[..end]);
        if let (Ok(Some(bytes)), Ok(Some((_, consumed)))) = (bytes, &whole) {
            prop_assert_eq!(bytes, *consumed);
        }
    }
    // A packet that was read is the same after it is written and read again.
    if let Ok(Some((packet, consumed))) = whole {
        prop_assert!(consumed <= sent.bytes.len());
        let version = match packet {
            Packet::Connect(connect) => connect.version,
            _ => sent.version,
        };
        let mut again = Vec::new();
        rewrite(&packet, version, &mut again).unwrap();
        prop_assert!(again.len() <= consumed);
        prop_assert_eq!(
            read(&again, sent.known(), sent.from, consumed),
            Ok(Some((packet, again.len())))
        );
        prop_assert!(
            consumed < 2 || read(&again, sent.known(), sent.from, again.len() - 1).is_err()
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A written packet is read to its last byte, and is written in the same bytes again.
    #[test]
    fn what_is_written_is_read(sent in packet()) {
        let found = read(&sent.bytes, sent.known(), sent.from, BYTES_MAX);
        let Ok(Some((packet, consumed))) = found else { panic!("{found:?}") };
        prop_assert_eq!(consumed, sent.bytes.len());
        let mut again = Vec::new();
        rewrite(&packet, sent.version, &mut again).unwrap();
        prop_assert_eq!(&again, &sent.bytes);
        // The bytes behind the packet are not consumed.
        let more = [&sent.bytes[..], b"\xff\xff"].concat();
        prop_assert_eq!(read(&more, sent.known(), sent.from, BYTES_MAX), Ok(Some((packet, consumed))));
        in_pieces(&sent)?;
    }

    #[test]
    fn what_is_damaged_is_refused_or_read(sent in mutated()) {
        in_pieces(&sent)?;
    }

    #[test]
    fn anything_may_come(
        first in any::<u8>(),
        length in 0..40_u8,
        body in vec(prop_oneof![any::<u8>(), 0..6_u8], 0..40),
        is_v5 in any::<bool>(),
        is_client in any::<bool>(),
    ) {
        let bytes = [&[first, length], &body[..]].concat();
        let version = if is_v5 { Version::V5 } else { Version::V3 };
        let from = if is_client { Side::Client } else { Side::Server };
        in_pieces(&Sent { version, from, bytes })?;
    }
}

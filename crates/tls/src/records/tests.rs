//! Input that only a malicious client sends: it has the keys, and breaks the protocol.

use proptest::prelude::*;

use crate::keys::KEY_RECORDS_MAX;
use crate::testing::{KINDS, forge, pair, request_key_update, update_write_key};
use crate::{
    Alert, ImportError, KEY_BLOCKS_MAX, Opened, RECORD_BYTES_MAX, RECORD_DATA_BYTES_MAX,
    RECORDS_WITHOUT_DATA_MAX, RecordError, Records, Version,
};

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// A `KeyUpdate`, and one that requests another.
const UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];

/// Opens bytes in one call. Returns the result, the data, and the bytes to send.
fn open(records: &mut Records, bytes: &[u8]) -> (Result<Opened, RecordError>, Vec<u8>, Vec<u8>) {
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let opened = records.open(&mut Vec::new(), &mut bytes.to_vec(), &mut plain, &mut out);
    (opened, plain, out)
}

fn sealed(records: &mut Records, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    records.seal(data, &mut out).unwrap();
    out
}

fn forged(records: &mut Records, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    forge(records, kind, content, &mut out);
    out
}

/// Checks that bytes break a connection: the server sends an alert, sends no data, and ignores all input.
#[track_caller]
fn assert_breaks(
    kind: (Version, usize),
    bytes: impl Fn(&mut Records) -> Vec<u8>,
    expected: RecordError,
) {
    let (mut server, mut client) = pair(kind, 1);
    let mut sent = sealed(&mut client, b"before");
    sent.extend(bytes(&mut client));
    let (result, plain, out) = open(&mut server, &sent);
    assert_eq!(result, Err(expected), "{kind:?}");
    assert_eq!(plain, b"before");
    let alerted = open(&mut client, &out).0;
    match expected.alert() {
        Some(alert) => assert_eq!(alerted, Err(RecordError::Alert(alert)), "{kind:?}"),
        None => assert!(out.is_empty()),
    }
    assert!(server.seal(b"more", &mut Vec::new()).is_err());
    assert_eq!(
        open(&mut server, &sealed(&mut pair(kind, 1).1, b"more")).0,
        Ok(Opened { is_closed: true })
    );
}

fn kinds(version: Version) -> impl Iterator<Item = (Version, usize)> {
    KINDS.into_iter().filter(move |kind| kind.0 == version)
}

#[test]
fn sealed_len_is_the_length_of_what_seal_appends() {
    for kind in KINDS {
        for size in [0, 1, 15, 16, 17, 16_384, 16_385, 40_000] {
            let (mut server, mut client) = pair(kind, 1);
            let expected = server.sealed_len(size);
            let bytes = sealed(&mut server, &vec![7; size]);
            assert_eq!(bytes.len(), expected, "{kind:?}, {size}");
            assert_eq!(open(&mut client, &bytes).1, vec![7; size]);
        }
    }
}

#[test]
fn content_and_message_types_that_are_not_allowed_break_the_connection() {
    for kind in KINDS {
        for content_type in [CHANGE_CIPHER_SPEC, 24, 25, 255] {
            assert_breaks(
                kind,
                |client| forged(client, content_type, &[1]),
                RecordError::UnexpectedMessage,
            );
        }
        // Messages of a handshake, which is over.
        for message in [0, 2, 4, 8, 11, 13, 20] {
            let message = [message, 0, 0, 0];
            assert_breaks(
                kind,
                |client| forged(client, HANDSHAKE, &message),
                RecordError::UnexpectedMessage,
            );
        }
        assert_breaks(
            kind,
            |client| forged(client, HANDSHAKE, &[]),
            RecordError::UnexpectedMessage,
        );
    }
}

#[test]
fn plain_records_break_the_connection() {
    for kind in KINDS {
        for plain in
            [&[20, 3, 3, 0, 1, 1][..], &[21, 3, 3, 0, 2, 2, 40], &[22, 3, 3, 0, 4, 0, 0, 0, 0]]
        {
            let expected = match kind.0 {
                Version::Tls12 if plain[0] != CHANGE_CIPHER_SPEC => RecordError::BadRecordMac,
                _ => RecordError::UnexpectedMessage,
            };
            assert_breaks(kind, |_| plain.to_vec(), expected);
        }
        assert_breaks(kind, |_| b"GET / HTTP/1.1\r\n\r\n".to_vec(), RecordError::UnexpectedMessage);
        assert_breaks(kind, |_| vec![DATA, 3, 3, 0, 0], RecordError::BadRecordMac);
        assert_breaks(
            kind,
            |_| [&[DATA, 3, 3, 0, 30][..], &[0; 30]].concat(),
            RecordError::BadRecordMac,
        );
    }
}

#[test]
fn a_record_that_is_too_long_breaks_the_connection_by_its_header() {
    for kind in KINDS {
        let long = RECORD_BYTES_MAX - 5 + 1;
        let header = vec![DATA, 3, 3, (long >> 8) as u8, long as u8];
        assert_breaks(kind, |_| header.clone(), RecordError::RecordOverflow);
        // A record of an allowed length with too much data.
        let data = vec![1; RECORD_DATA_BYTES_MAX + 1];
        assert_breaks(kind, |client| forged(client, DATA, &data), RecordError::RecordOverflow);
    }
}

#[test]
fn padding_is_ignored_but_a_record_of_padding_alone_breaks_the_connection() {
    for kind in kinds(Version::Tls13) {
        let (mut server, mut client) = pair(kind, 1);
        // The content type follows the content, then zeros: a forged type of 0 is one more zero.
        let mut content = b"data".to_vec();
        content.push(DATA);
        content.resize(200, 0);
        let bytes = forged(&mut client, 0, &content);
        assert_eq!(open(&mut server, &bytes).1, b"data");
        content.resize(RECORD_DATA_BYTES_MAX, 0);
        let bytes = forged(&mut client, 0, &content);
        assert_eq!(open(&mut server, &bytes).1, b"data");
        assert_breaks(kind, |client| forged(client, 0, &[0; 100]), RecordError::UnexpectedMessage);
        assert_breaks(kind, |client| forged(client, 0, &[]), RecordError::UnexpectedMessage);
    }
}

#[test]
fn alerts_end_a_connection_by_the_rules_of_their_version() {
    for kind in KINDS {
        assert_breaks(
            kind,
            |client| forged(client, ALERT, &[2, 40]),
            RecordError::Alert(Alert::HANDSHAKE_FAILURE),
        );
        assert_breaks(
            kind,
            |client| forged(client, ALERT, &[2, 200]),
            RecordError::Alert(Alert(200)),
        );
        assert_breaks(kind, |client| forged(client, ALERT, &[]), RecordError::UnexpectedMessage);
        assert_breaks(kind, |client| forged(client, ALERT, &[2]), RecordError::DecodeError);
        assert_breaks(kind, |client| forged(client, ALERT, &[1, 0, 1]), RecordError::DecodeError);
        // TLS 1.3 has only one warning.
        let warning = |alert: u8| {
            let (mut server, mut client) = pair(kind, 1);
            open(&mut server, &forged(&mut client, ALERT, &[1, alert])).0
        };
        assert_eq!(warning(0), Ok(Opened { is_closed: true }));
        assert_eq!(warning(90), Ok(Opened { is_closed: false }));
        match kind.0 {
            Version::Tls12 => {
                assert_eq!(warning(112), Ok(Opened { is_closed: false }));
                assert_breaks(
                    kind,
                    |client| forged(client, ALERT, &[3, 112]),
                    RecordError::IllegalParameter,
                );
            }
            Version::Tls13 => {
                assert_eq!(warning(112), Err(RecordError::Alert(Alert::UNRECOGNIZED_NAME)));
            }
        }
    }
}

#[test]
fn input_after_a_close_is_ignored() {
    for kind in KINDS {
        let (mut server, mut client) = pair(kind, 1);
        let mut bytes = sealed(&mut client, b"data");
        client.close(&mut bytes);
        bytes.extend_from_slice(b"anything");
        let (mut pending, mut plain, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let opened = server.open(&mut pending, &mut bytes, &mut plain, &mut out);
        assert_eq!(opened, Ok(Opened { is_closed: true }));
        assert!(plain == b"data" && pending.is_empty() && out.is_empty());
        assert!(open(&mut server, b"and more").0.unwrap().is_closed);
        // The server's side is still open.
        assert_eq!(open(&mut client, &sealed(&mut server, b"bye")).1, b"bye");
    }
}

#[test]
fn floods_of_records_without_data_break_the_connection() {
    for kind in KINDS {
        let mut floods = vec![(DATA, &[][..]), (ALERT, &[1, 90])];
        match kind.0 {
            Version::Tls12 => floods.push((ALERT, &[1, 112])),
            Version::Tls13 => {
                floods.extend([(HANDSHAKE, &UPDATE[..]), (HANDSHAKE, &UPDATE_REQUESTED)])
            }
        }
        for (content, message) in floods {
            let (mut server, mut client) = pair(kind, 1);
            let mut next = |server: &mut Records| {
                let bytes = forged(&mut client, content, message);
                if content == HANDSHAKE && kind.0 == Version::Tls13 {
                    client.write.update(client.aead);
                }
                open(server, &bytes).0
            };
            for _ in 0..RECORDS_WITHOUT_DATA_MAX {
                assert!(next(&mut server).is_ok());
            }
            assert_eq!(
                next(&mut server),
                Err(RecordError::TooManyWithoutData),
                "{kind:?}, {message:?}"
            );
        }
    }
}

#[test]
fn data_of_either_side_allows_more_records_without_data() {
    for kind in kinds(Version::Tls13) {
        for by_client in [true, false] {
            let (mut server, mut client) = pair(kind, 1);
            for _ in 0..3 * u16::from(RECORDS_WITHOUT_DATA_MAX) {
                let mut bytes = Vec::new();
                update_write_key(&mut client, &mut bytes);
                if by_client {
                    bytes.extend(sealed(&mut client, b"x"));
                } else {
                    let bytes = sealed(&mut server, b"x");
                    assert_eq!(open(&mut client, &bytes).1, b"x");
                }
                open(&mut server, &bytes).0.unwrap();
            }
        }
    }
}

#[test]
fn a_key_update_in_pieces_is_served_when_it_is_complete() {
    for kind in kinds(Version::Tls13) {
        let (mut server, mut client) = pair(kind, 1);
        let mut bytes = Vec::new();
        for part in [&UPDATE_REQUESTED[..1], &UPDATE_REQUESTED[1..4], &UPDATE_REQUESTED[4..]] {
            forge(&mut client, HANDSHAKE, part, &mut bytes);
        }
        client.write.update(client.aead);
        bytes.extend(sealed(&mut client, b"with new keys"));
        let (opened, plain, mut out) = open(&mut server, &bytes);
        assert_eq!((opened, &plain[..]), (Ok(Opened { is_closed: false }), &b"with new keys"[..]));
        assert!(!out.is_empty());
        server.seal(b"with new ones, too", &mut out).unwrap();
        assert_eq!(open(&mut client, &out).1, b"with new ones, too");
        // A side that has closed does not reply.
        server.close(&mut out);
        let bytes = forged(&mut client, HANDSHAKE, &UPDATE_REQUESTED);
        assert!(open(&mut server, &bytes).2.is_empty());
    }
}

#[test]
fn a_requested_key_update_is_served_with_one() {
    for kind in kinds(Version::Tls13) {
        let (mut server, mut client) = pair(kind, 1);
        let (before, mut bytes) = (server.write.key, Vec::new());
        request_key_update(&mut client, &mut bytes);
        bytes.extend(sealed(&mut client, b"with the new key"));
        let (_, plain, mut out) = open(&mut server, &bytes);
        assert_eq!(plain, b"with the new key");
        assert_ne!(server.write.key, before);
        server.seal(b"with the new key, too", &mut out).unwrap();
        assert_eq!(open(&mut client, &out).1, b"with the new key, too");
        // Without a request the server keeps its key.
        let (before, mut bytes) = (server.write.key, Vec::new());
        update_write_key(&mut client, &mut bytes);
        let (opened, _, out) = open(&mut server, &bytes);
        assert!(opened.is_ok() && out.is_empty());
        assert_eq!(server.write.key, before);
    }
}

#[test]
fn an_invalid_key_update_breaks_the_connection() {
    for kind in kinds(Version::Tls13) {
        for (message, expected) in [
            (&[24, 0, 0, 1, 2][..], RecordError::IllegalParameter),
            (&[24, 0, 0, 2, 0, 0], RecordError::DecodeError),
            (&[24, 0, 0, 0], RecordError::DecodeError),
            (&[24, 0, 0, 1, 0, 24], RecordError::UnexpectedMessage),
            (&[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], RecordError::UnexpectedMessage),
            (&[4, 0, 0, 1, 0], RecordError::UnexpectedMessage),
        ] {
            assert_breaks(kind, |client| forged(client, HANDSHAKE, message), expected);
        }
        // Another record between its parts.
        for (between, content) in [(DATA, &b"data"[..]), (ALERT, &[1, 0]), (HANDSHAKE, &[])] {
            let bytes = |client: &mut Records| {
                let mut bytes = forged(client, HANDSHAKE, &UPDATE[..2]);
                forge(client, between, content, &mut bytes);
                bytes
            };
            assert_breaks(kind, bytes, RecordError::UnexpectedMessage);
        }
    }
}

#[test]
fn a_renegotiation_is_declined_once_in_tls_1_2() {
    const HELLO: [u8; 6] = [1, 0, 0, 2, 3, 3];
    for kind in kinds(Version::Tls12) {
        let (mut server, mut client) = pair(kind, 1);
        let (opened, _, out) = open(&mut server, &forged(&mut client, HANDSHAKE, &HELLO));
        assert_eq!(opened, Ok(Opened { is_closed: false }));
        assert_eq!(open(&mut client, &out).0, Ok(Opened { is_closed: false }));
        assert_eq!(client.without_data, 1);
        assert_eq!(open(&mut server, &sealed(&mut client, b"on")).1, b"on");
        // The exported state includes the declined request.
        let mut state = Vec::new();
        server.export(&mut state);
        let again = forged(&mut client, HANDSHAKE, &HELLO);
        for mut server in [server, Records::import(&state).unwrap()] {
            assert_eq!(open(&mut server, &again).0, Err(RecordError::UnexpectedMessage));
        }
        assert_breaks(
            kind,
            |client| forged(client, HANDSHAKE, &[1, 0, 0, 3, 3, 3]),
            RecordError::UnexpectedMessage,
        );
    }
}

#[test]
fn a_key_of_aes_gcm_is_updated_before_its_limit_of_blocks() {
    for kind in kinds(Version::Tls13) {
        let (mut server, mut client) = pair(kind, 1);
        server.blocks = KEY_BLOCKS_MAX - 1;
        let mut bytes = sealed(&mut server, b"with the old");
        let (old, is_gcm) = (server.write.key, server.aead.is_gcm());
        let expected = server.sealed_len(12);
        let next = sealed(&mut server, b"with the new");
        assert_eq!(next.len(), expected);
        assert_eq!(server.write.key != old, is_gcm);
        bytes.extend(next);
        assert_eq!(open(&mut client, &bytes).1, b"with the oldwith the new");
        assert_eq!(server.blocks, if is_gcm { 2 } else { KEY_BLOCKS_MAX - 1 });
    }
}

#[test]
fn a_key_of_tls_1_2_at_its_limit_of_blocks_closes_the_connection() {
    for kind in kinds(Version::Tls12).filter(|kind| kind.1 < 2) {
        let (mut server, mut client) = pair(kind, 1);
        server.blocks = KEY_BLOCKS_MAX;
        let (expected, mut out) = (server.sealed_len(100), Vec::new());
        assert!(server.seal(&[1; 100], &mut out).is_err());
        assert_eq!(out.len(), expected);
        assert_eq!(open(&mut client, &out).0, Ok(Opened { is_closed: true }));
        assert!(server.seal(&[1; 100], &mut out).is_err());
        assert_eq!(out.len(), expected);
    }
}

#[test]
fn no_sequence_number_wraps() {
    for kind in KINDS {
        let (mut server, mut client) = pair(kind, 1);
        server.write.sequence = KEY_RECORDS_MAX;
        let (expected, mut out) = (server.sealed_len(4), Vec::new());
        let result = server.seal(b"data", &mut out);
        assert_eq!(out.len(), expected);
        match kind.0 {
            Version::Tls12 => assert!(result.is_err()),
            Version::Tls13 => assert_eq!(server.write.sequence, 1),
        }
        // A peer that does not update its key is cut off.
        (server.read.sequence, client.write.sequence) = (KEY_RECORDS_MAX, KEY_RECORDS_MAX);
        let bytes = forged(&mut client, DATA, b"data");
        assert_eq!(open(&mut server, &bytes).0, Err(RecordError::BadRecordMac));
        let mut state = Vec::new();
        client.write.sequence = 2 * KEY_RECORDS_MAX + 1;
        client.export(&mut state);
        assert_eq!(Records::import(&state).unwrap_err(), ImportError::Damaged);
    }
}

#[test]
fn an_import_with_the_highest_count_of_blocks_closes() {
    for kind in KINDS {
        let mut state = Vec::new();
        pair(kind, 1).0.export(&mut state);
        state[6..14].fill(0xff);
        let mut server = Records::import(&state).unwrap();
        server.close(&mut Vec::new());
        assert!(server.seal(b"data", &mut Vec::new()).is_err());
    }
}

#[test]
fn pending_is_allocated_as_bytes_come_and_never_exceeds_a_record() {
    for kind in KINDS {
        let (mut server, mut client) = pair(kind, 1);
        let mut bytes = sealed(&mut client, &[1; RECORD_DATA_BYTES_MAX]);
        let (mut pending, mut plain, mut out) = (Vec::new(), Vec::new(), Vec::new());
        // A header alone does not allocate the record.
        server.open(&mut pending, &mut bytes[..6], &mut plain, &mut out).unwrap();
        assert!(pending.capacity() < 100);
        let mut rest = &mut bytes[6..];
        while !rest.is_empty() {
            let piece = rest.len().min(100);
            server.open(&mut pending, &mut rest[..piece], &mut plain, &mut out).unwrap();
            rest = &mut rest[piece..];
            assert!(pending.capacity() <= RECORD_BYTES_MAX);
        }
        assert!(pending.is_empty() && plain.len() == RECORD_DATA_BYTES_MAX);
    }
}

#[test]
fn an_import_has_the_state_that_was_exported() {
    for kind in KINDS {
        let (mut server, mut client) = pair(kind, 1);
        let mut bytes = forged(&mut client, DATA, &[]);
        if kind.0 == Version::Tls13 {
            forge(&mut client, HANDSHAKE, &UPDATE_REQUESTED[..3], &mut bytes);
        }
        open(&mut server, &bytes).0.unwrap();
        sealed(&mut server, b"one");
        let (mut first, mut again) = (Vec::new(), Vec::new());
        server.export(&mut first);
        let imported = Records::import(&first).unwrap();
        imported.export(&mut again);
        assert_eq!(first, again);
        assert_eq!(imported.without_data, server.without_data);
        assert_eq!(imported.key_update_bytes, server.key_update_bytes);
        for end in 0..first.len() {
            let error = Records::import(&first[..end]).unwrap_err();
            assert_eq!(error, ImportError::Damaged);
        }
        again.push(0);
        assert_eq!(Records::import(&again).unwrap_err(), ImportError::Damaged);
        for (position, byte, error) in [
            (0, 2, ImportError::Format(2)),
            (1, 4, ImportError::Damaged),
            (2, 0, ImportError::Damaged),
            (3, 8, ImportError::Damaged),
            (4, 33, ImportError::Damaged),
            (5, 5, ImportError::Damaged),
        ] {
            let mut damaged = first.clone();
            damaged[position] = byte;
            assert_eq!(Records::import(&damaged).unwrap_err(), error);
        }
    }
}

#[test]
fn debug_prints_no_key() {
    for kind in KINDS {
        let text = format!("{:?}", pair(kind, 0xab).0);
        assert!(
            text.contains("write_sequence") && !text.contains("key") && !text.contains("secret"),
            "{text}"
        );
    }
}

proptest! {
    #[test]
    fn a_changed_bit_is_detected(
        kind in 0..KINDS.len(), size in 0..100_usize, position in any::<prop::sample::Index>(), bit in 0..8,
    ) {
        let (mut server, mut client) = pair(KINDS[kind], 1);
        let mut bytes = forged(&mut client, DATA, &vec![1; size]);
        let position = position.index(bytes.len());
        bytes[position] ^= 1_u8 << bit;
        let (opened, plain, _) = open(&mut server, &bytes);
        // A record with a changed length may still be pending.
        let is_pending = opened == Ok(Opened { is_closed: false }) && (position == 3 || position == 4);
        prop_assert!(opened.is_err() || is_pending);
        prop_assert!(plain.is_empty());
    }

    #[test]
    fn records_are_accepted_in_their_order_and_once(kind in 0..KINDS.len(), first in 0..3_usize) {
        let (mut server, mut client) = pair(KINDS[kind], 1);
        let records: Vec<_> = (0..3).map(|number| sealed(&mut client, &[number])).collect();
        let opened = open(&mut server, &records[first]).0;
        prop_assert_eq!(opened.is_ok(), first == 0);
        if first == 0 {
            prop_assert_eq!(open(&mut server, &records[0]).0, Err(RecordError::BadRecordMac));
        }
    }

    #[test]
    fn random_bytes_yield_no_data(kind in 0..KINDS.len(), bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (mut server, _) = pair(KINDS[kind], 1);
        let (opened, plain, _) = open(&mut server, &bytes);
        prop_assert!(plain.is_empty());
        if bytes.len() >= RECORD_BYTES_MAX {
            prop_assert!(opened.is_err());
        }
    }

    #[test]
    fn an_import_of_random_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Records::import(&bytes);
    }
}

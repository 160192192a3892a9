//! The bytes of a TLS client: of a handshake, and records of an open connection.

use std::sync::LazyLock;

use ::tls::testing::{KINDS, acceptor, forge, pair, request_key_update, update_write_key};
use ::tls::{
    Acceptor, HandshakeErrorKind, Opened, Progress, RECORD_BYTES_MAX, RecordError, Records,
};

static ACCEPTOR: LazyLock<Acceptor> = LazyLock::new(|| acceptor(0));

/// Sends the same bytes in one piece and in many, with the same result.
///
/// The first bit of the first byte chooses: a handshake, or an open connection. In an open connection the client has
/// the keys, and the other bytes are a script for it. The other bits are the size of the pieces.
pub fn tls(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else { return };
    let number = usize::from(mode & 0x7f);
    if mode & 0x80 == 0 {
        let whole = handshake([data].into_iter());
        assert_eq!(whole, handshake(data.chunks(number + 1)));
    } else {
        let (server, client) = pair(KINDS[number % KINDS.len()], 1);
        let sent = run_script(client, data);
        let again = exported_and_imported(&server);
        assert_eq!(open(server, &sent, usize::MAX), open(again, &sent, number + 1));
    }
}

/// Returns the error of a handshake. `None` if the client must send more.
fn handshake<'d>(pieces: impl Iterator<Item = &'d [u8]>) -> Option<HandshakeErrorKind> {
    let (mut handshake, mut out) = (ACCEPTOR.handshake(&[b"http/1.1"], 0), Vec::new());
    for piece in pieces {
        match handshake.on_received(piece, &mut out) {
            Ok(Progress::Pending) => {}
            Ok(Progress::Done(_)) => panic!("bytes without a key have completed a handshake"),
            Err(error) => return Some(error.kind),
        }
    }
    None
}

/// Returns the bytes of a client that has the keys, and uses them by a script.
fn run_script(mut client: Records, mut script: &[u8]) -> Vec<u8> {
    let mut sent = Vec::new();
    while let [operation, size, rest @ ..] = script {
        let (content, rest) = rest.split_at(usize::from(*size).min(rest.len()));
        script = rest;
        match operation % 8 {
            0 | 1 => drop(client.seal(content, &mut sent)),
            2 if *size == 0 => update_write_key(&mut client, &mut sent),
            2 => request_key_update(&mut client, &mut sent),
            3 => client.close(&mut sent),
            4 => sent.extend_from_slice(content),
            // A long record.
            5 => forge(&mut client, 23, &vec![*size; usize::from(*size) * 80], &mut sent),
            _ => forge(&mut client, operation >> 3, content, &mut sent),
        }
    }
    sent
}

fn exported(records: &Records) -> Vec<u8> {
    let mut state = Vec::new();
    records.export(&mut state);
    state
}

fn exported_and_imported(records: &Records) -> Records {
    Records::import(&exported(records)).expect("export wrote this state")
}

/// Everything that results from bytes: the data, what the server sends, the last result, and the state of the records.
type Outcome = (Vec<u8>, Vec<u8>, Option<Result<Opened, RecordError>>, Vec<u8>);

fn open(mut server: Records, sent: &[u8], piece_bytes: usize) -> Outcome {
    let (mut pending, mut plain, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for piece in sent.chunks(piece_bytes) {
        let result = server.open(&mut pending, &mut piece.to_vec(), &mut plain, &mut out);
        assert!(pending.len() <= RECORD_BYTES_MAX && plain.len() <= sent.len());
        last = Some(result);
        if result.is_err() {
            break;
        }
        // Another process takes the connection over after each piece.
        server = exported_and_imported(&server);
    }
    (plain, out, last, exported(&server))
}

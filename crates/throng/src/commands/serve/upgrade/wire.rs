//! The frames that the two processes exchange, besides those of their shards. Kinds of frames and the numbers of
//! fields stay the same for good; a reader skips what it doesn't know.

use std::{fmt, io};

use handover::{Part, Sent};
use minicbor::{Decode, Encode};
use shard::{Channel, Frame};

/// The version of the frames. Processes of different versions don't understand each other.
pub(super) const FORMAT: u16 = 1;

/// From the old process: [`Facts`], with the listener of the admin port.
pub(super) const FACTS: u16 = 32;
/// From the new process: [`Accepted`].
pub(super) const ACCEPTED: u16 = 33;
/// From the new process: its shards are ready for connections.
pub(super) const READY: u16 = 34;
/// From the old process: records of parts.
pub(super) const PARTS: u16 = 35;
/// From the old process: it requests [`SYNCED`] when the new one has taken everything so far.
pub(super) const SYNC: u16 = 36;
pub(super) const SYNCED: u16 = 37;
/// From the old process: it has sent everything.
pub(super) const END: u16 = 38;
/// From the new process: it has everything.
pub(super) const HAVE: u16 = 39;
/// From the old process: its store is closed, and the new one may open it.
pub(super) const OPEN_STORE: u16 = 40;
pub(super) const STORE_OPEN: u16 = 41;
/// From the old process: from now on the new one serves.
pub(super) const GO: u16 = 42;
/// From the new process: it serves; the body is the path where it takes forwarded requests.
pub(super) const SERVING: u16 = 43;
/// From the old process, as the last frame: the length of the pause, in microseconds.
pub(super) const PAUSED: u16 = 45;
/// From the old process, before [`GO`]: the listener of the admin port with TLS.
pub(super) const ADMIN_TLS: u16 = 46;
/// From either process: why the upgrade fails, as text.
pub(super) const ERROR: u16 = 44;

/// A frame of records is sent once it has this many bytes.
const PARTS_BYTES: usize = 256 << 10;

/// The old process's description of itself.
#[derive(Clone, Debug, Encode, Decode)]
#[cbor(map)]
pub(super) struct Facts {
    #[n(0)]
    pub format: u16,
    #[n(1)]
    pub version: String,
    #[n(2)]
    pub node: u32,
    /// When the node's clock was zero, in nanoseconds of CLOCK_MONOTONIC, which processes of a host share.
    #[n(3)]
    pub clock_zero_ns: u64,
    /// The key for the tokens of Phoenix long-poll sessions.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub longpoll_key: Vec<u8>,
    #[n(5)]
    pub shards: u32,
    /// The most connections of one shard.
    #[n(6)]
    pub most_connections: u64,
    #[n(7)]
    pub connections: u64,
    #[n(8)]
    pub parts: Vec<String>,
    /// The version of the engine's records.
    #[n(9)]
    pub record_version: u16,
    /// The format of its store's file.
    #[n(10)]
    pub store_format: Option<u64>,
    /// The path of its store.
    #[n(11)]
    pub store: Option<String>,
    /// The process id.
    #[n(12)]
    pub pid: Option<u32>,
    /// Names of the limits and other settings that can be compared, and their values.
    #[cbor(n(13), default)]
    pub limits: Vec<(String, u64)>,
    /// The address of its admin port.
    #[n(15)]
    pub admin: Option<String>,
    /// The address of its admin port with TLS; `None` if it has none.
    #[n(16)]
    pub admin_tls: Option<String>,
    /// The name of its cluster; `None` for a node that is alone.
    #[n(17)]
    pub cluster: Option<String>,
    /// The epoch of its log in PostgreSQL; `None` if no database has its history.
    #[n(18)]
    pub history_epoch: Option<u32>,
    /// True if the new process only checks that it could take over.
    #[cbor(n(14), default)]
    pub check: bool,
}

/// The new process's response if it can take over.
#[derive(Clone, Debug, Encode, Decode)]
#[cbor(map)]
pub(super) struct Accepted {
    #[n(0)]
    pub version: String,
    #[n(1)]
    pub pid: u32,
    /// The parts that it knows.
    #[n(2)]
    pub parts: Vec<String>,
    /// Differences in it, and state that would not be passed on, as text for people.
    #[n(3)]
    pub notes: Vec<String>,
}

pub(super) fn decode<T: for<'b> Decode<'b, ()>>(bytes: &[u8]) -> io::Result<T> {
    handover::decode(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The error that the other process sent.
#[derive(Debug)]
pub(super) struct PeerError(String);

impl From<&Frame> for PeerError {
    fn from(frame: &Frame) -> Self {
        PeerError(String::from_utf8_lossy(&frame.body).into_owned())
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PeerError {}

/// Returns true if an error came from the other process.
pub(super) fn is_peer_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<PeerError>())
}

/// Returns the error that the other process sent before it closed the channel, from an `ERROR` that was not read.
pub(super) fn unread_error(channel: &Channel) -> Option<String> {
    channel.find(ERROR).map(|frame| PeerError::from(&frame).to_string())
}

/// Waits for a frame of this kind, and skips other kinds.
pub(super) fn expect(channel: &Channel, kind: u16) -> io::Result<Frame> {
    loop {
        let frame = channel.receive()?.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the other process has closed the connection",
            )
        })?;
        match frame.kind {
            ERROR => return Err(io::Error::other(PeerError::from(&frame))),
            received if received == kind => return Ok(frame),
            _ => {}
        }
    }
}

/// Sends the records of a part that differ from those sent before.
pub(in super::super) fn send_part(
    channel: &Channel,
    part: &dyn Part,
    sent: &mut Sent,
) -> io::Result<()> {
    let mut body = Vec::new();
    let mut result = Ok(());
    let flush = |body: &mut Vec<u8>, result: &mut io::Result<()>| {
        if result.is_ok() && !body.is_empty() {
            *result = channel.send(PARTS, body, &[]);
        }
        body.clear();
    };
    sent.round(part, &mut |key, value| {
        push(&mut body, part.name(), key, value);
        if body.len() >= PARTS_BYTES {
            flush(&mut body, &mut result);
        }
    });
    flush(&mut body, &mut result);
    result
}

/// Appends a record to a frame of records.
pub(in super::super) fn push(body: &mut Vec<u8>, part: &str, key: &[u8], value: Option<&[u8]>) {
    let mut piece = |bytes: &[u8]| {
        body.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
        body.extend_from_slice(bytes);
    };
    piece(part.as_bytes());
    piece(key);
    match value {
        Some(value) => {
            piece(b"+");
            piece(value);
        }
        None => piece(b"-"),
    }
}

/// Passes each record to its part.
pub(in super::super) fn take_parts(
    parts: &[std::sync::Arc<dyn Part>],
    body: &[u8],
) -> io::Result<()> {
    let mut rest = body;
    while !rest.is_empty() {
        let (name, key) = (piece(&mut rest)?, piece(&mut rest)?);
        let value = match piece(&mut rest)? {
            b"+" => Some(piece(&mut rest)?),
            _ => None,
        };
        // The processes have compared their parts before: an unknown part is skipped.
        if let Some(part) = parts.iter().find(|part| part.name().as_bytes() == name) {
            part.import(key, value).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

/// Takes a piece, which follows its length.
fn piece<'a>(rest: &mut &'a [u8]) -> io::Result<&'a [u8]> {
    let cut =
        || io::Error::new(io::ErrorKind::InvalidData, "a record of the hand-over is incomplete");
    let (length, body) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    let (piece, left) =
        body.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(cut)?;
    *rest = left;
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use handover::{PartError, encode};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn why_the_other_process_went_is_found_behind_other_frames_and_in_no_other_error() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let (a, b) = (Channel::new(a).unwrap(), Channel::new(b).unwrap());
        assert_eq!(unread_error(&b), None);
        a.send(READY, &[], &[]).unwrap();
        a.send(ERROR, b"first", &[]).unwrap();
        a.send(SYNCED, &[], &[]).unwrap();
        a.send(ERROR, b"second", &[]).unwrap();
        drop(a);
        let error = expect(&b, HAVE).err().unwrap();
        assert!(is_peer_error(&error) && error.to_string() == "first", "{error}");
        assert_eq!(unread_error(&b), Some("second".into()));
        assert_eq!(unread_error(&b), None);
        assert!(!is_peer_error(&expect(&b, HAVE).err().unwrap()));
    }

    fn facts() -> Facts {
        Facts {
            format: 1,
            version: "0.3.0".into(),
            node: 7,
            clock_zero_ns: 8,
            longpoll_key: vec![1, 2],
            shards: 4,
            most_connections: 5,
            connections: 6,
            parts: vec!["recent".into()],
            record_version: 1,
            store_format: Some(3),
            store: Some("/s".into()),
            pid: Some(9),
            limits: vec![("a".into(), 1)],
            admin: Some("b".into()),
            admin_tls: None,
            history_epoch: None,
            cluster: None,
            check: true,
        }
    }

    /// The facts that 0.3.0 sends, byte by byte.
    const FACTS_0_3_0: &[u8] = b"\xb0\x00\x01\x01\x650.3.0\x02\x07\x03\x08\x04\x42\x01\x02\x05\x04\x06\x05\
        \x07\x06\x08\x81\x66recent\x09\x01\x0a\x03\x0b\x62/s\x0c\x09\x0d\x81\x82\x61a\x01\x0e\xf5\x0f\x61b";

    #[test]
    fn kinds_and_the_format_stay() {
        let kinds = [FACTS, ACCEPTED, READY, PARTS, SYNC, SYNCED, END, HAVE, OPEN_STORE];
        assert_eq!(kinds, [32, 33, 34, 35, 36, 37, 38, 39, 40]);
        assert_eq!([STORE_OPEN, GO, SERVING, ERROR, PAUSED], [41, 42, 43, 44, 45]);
        assert_eq!(FORMAT, 1);
    }

    #[test]
    fn what_0_3_0_says_of_itself_is_read() {
        let read: Facts = decode(FACTS_0_3_0).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", facts()));
        let accepted: Accepted =
            decode(b"\xa4\x00\x650.3.0\x01\x07\x02\x81\x61a\x03\x81\x61b").unwrap();
        assert_eq!((&*accepted.version, accepted.pid), ("0.3.0", 7));
        assert_eq!(
            (&accepted.parts[..], &accepted.notes[..]),
            (&["a".into()][..], &["b".into()][..])
        );
        assert_eq!(decode::<Accepted>(&encode(&accepted)).unwrap().parts, accepted.parts);
    }

    #[test]
    fn unknown_fields_are_passed_over_and_optional_ones_may_be_missing() {
        // Field 99 is an array.
        let mut later = encode(facts());
        later[0] += 1;
        assert_eq!(later[0], 0xb1);
        later.extend(b"\x18\x63\x82\x01\x61x");
        assert_eq!(format!("{:?}", decode::<Facts>(&later).unwrap()), format!("{:?}", facts()));
        let least = b"\xaa\x00\x01\x01\x61x\x02\x07\x03\x08\x04\x40\x05\x04\x06\x05\x07\x06\x08\x80\x09\x01";
        let least: Facts = decode(least).unwrap();
        assert_eq!((least.store, least.pid, least.check), (None, None, false));
        assert!(least.limits.is_empty() && least.admin.is_none() && least.store_format.is_none());
    }

    /// A key and its value.
    type Note = (Vec<u8>, Option<Vec<u8>>);

    /// Notes the records that it imports.
    #[derive(Default)]
    struct Notes(Mutex<Vec<Note>>);

    impl Part for Notes {
        fn name(&self) -> &'static str {
            "notes"
        }

        fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
            each(b"k", b"v");
        }

        fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
            self.0.lock().unwrap().push((key.to_vec(), value.map(<[u8]>::to_vec)));
            Ok(())
        }
    }

    #[test]
    fn records_of_parts_are_laid_out_like_this() {
        let mut body = Vec::new();
        push(&mut body, "notes", b"k", Some(b"v"));
        push(&mut body, "later", b"", Some(b""));
        push(&mut body, "notes", b"k", None);
        let want = b"\x05\0\0\0notes\x01\0\0\0k\x01\0\0\0+\x01\0\0\0v\
            \x05\0\0\0later\0\0\0\0\x01\0\0\0+\0\0\0\0\
            \x05\0\0\0notes\x01\0\0\0k\x01\0\0\0-";
        assert_eq!(body, want);
        let notes = Arc::new(Notes::default());
        let parts: [Arc<dyn Part>; 1] = [notes.clone()];
        take_parts(&parts, &body).unwrap();
        let got = std::mem::take(&mut *notes.0.lock().unwrap());
        assert_eq!(got, [(b"k".to_vec(), Some(b"v".to_vec())), (b"k".to_vec(), None)]);
        // A body that is cut between two records is valid; a cut anywhere else is an error.
        let ends = [0, 24, 24 + 22];
        for at in 0..body.len() {
            let result = take_parts(&parts, &body[..at]);
            assert_eq!(result.is_ok(), ends.contains(&at), "{at}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_taken(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode::<Facts>(&bytes);
            let _ = decode::<Accepted>(&bytes);
            let _ = take_parts(&[Arc::new(Notes::default())], &bytes);
        }

        #[test]
        fn a_flipped_bit_is_refused_or_taken(at in any::<prop::sample::Index>(), bit in 0_u8..8) {
            let mut bytes = FACTS_0_3_0.to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            let _ = decode::<Facts>(&bytes);
        }
    }
}

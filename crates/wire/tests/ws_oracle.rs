//! The WebSocket codec against another's (tungstenite), and against itself with its input split
//! in every way.

use std::io::{Cursor, Read, Write};

use proptest::prelude::*;
use tungstenite::protocol::{Role as TheirRole, WebSocketConfig};
use tungstenite::{Message, WebSocket};
use wire::ws::deflate::{Deflater, Inflater};
use wire::ws::frame::{Head, Opcode, apply_mask, encode};
use wire::ws::{Context, Decoder, Error, Event, Limits, Role};

const LIMITS: Limits = Limits { frame_bytes_max: 1 << 16, message_bytes_max: 1 << 16 };

/// What was said, owned.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<(u16, String)>),
}

/// Feeds the pieces one after the other, as a server does: what is left comes again.
fn decode<'a>(
    role: Role,
    deflate: bool,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<Said>, Option<Error>) {
    let (mut said, mut rest, mut decoder) = (Vec::new(), Vec::new(), Decoder::default());
    let mut inflater = Inflater::new();
    for piece in pieces {
        rest.extend_from_slice(piece);
        let mut cx = Context { role, limits: LIMITS, inflater: deflate.then_some(&mut inflater) };
        let fed = decoder.feed(&mut cx, &mut rest, &mut |event| {
            said.push(match event {
                Event::Text(text) => Said::Text(text.into()),
                Event::Binary(bytes) => Said::Binary(bytes.into()),
                Event::Ping(bytes) => Said::Ping(bytes.into()),
                Event::Pong(bytes) => Said::Pong(bytes.into()),
                Event::Close(close) => Said::Close(close.map(|(code, why)| (code, why.into()))),
            });
        });
        match fed {
            Ok(taken) => drop(rest.drain(..taken)),
            Err(error) => return (said, Some(error)),
        }
        if decoder.is_idle() {
            // A server keeps none between messages.
            decoder = Decoder::default();
        }
        assert!(rest.len() < 14, "only the beginning of a head may wait");
    }
    (said, None)
}

/// A socket that gives what is in it and keeps what it gets.
struct Pipe(Cursor<Vec<u8>>, Vec<u8>);

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.1.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn theirs(role: TheirRole, bytes: Vec<u8>) -> WebSocket<Pipe> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(LIMITS.message_bytes_max))
        .max_frame_size(Some(LIMITS.frame_bytes_max as usize));
    WebSocket::from_raw_socket(Pipe(Cursor::new(bytes), Vec::new()), role, Some(config))
}

/// What tungstenite understands, and whether it found a fault. The end of the bytes is no fault.
fn their_view(bytes: &[u8]) -> (Vec<Said>, bool) {
    use tungstenite::error::ProtocolError::ResetWithoutClosingHandshake;
    let mut socket = theirs(TheirRole::Server, bytes.to_vec());
    let mut said = Vec::new();
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => said.push(Said::Text(text.to_string())),
            Ok(Message::Binary(bytes)) => said.push(Said::Binary(bytes.to_vec())),
            Ok(Message::Ping(bytes)) => said.push(Said::Ping(bytes.to_vec())),
            Ok(Message::Pong(bytes)) => said.push(Said::Pong(bytes.to_vec())),
            Ok(Message::Close(close)) => {
                said.push(Said::Close(close.map(|c| (c.code.into(), c.reason.to_string()))));
                return (said, false);
            }
            Ok(Message::Frame(_)) => {}
            Err(tungstenite::Error::Protocol(ResetWithoutClosingHandshake)) => {
                return (said, false);
            }
            Err(tungstenite::Error::Io(_) | tungstenite::Error::ConnectionClosed) => {
                return (said, false);
            }
            Err(_) => return (said, true),
        }
    }
}

fn message() -> impl Strategy<Value = Said> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..300);
    let short = || proptest::collection::vec(any::<u8>(), 0..125);
    prop_oneof![
        any::<String>().prop_map(Said::Text),
        bytes().prop_map(Said::Binary),
        short().prop_map(Said::Ping),
        short().prop_map(Said::Pong),
    ]
}

/// A message as masked frames, cut where it is told.
fn frames(said: &Said, mask: [u8; 4], cuts: &[usize], deflate: bool) -> Vec<u8> {
    let (opcode, payload) = match said {
        Said::Text(text) => (Opcode::Text, text.clone().into_bytes()),
        Said::Binary(bytes) => (Opcode::Binary, bytes.clone()),
        Said::Ping(bytes) => (Opcode::Ping, bytes.clone()),
        Said::Pong(bytes) => (Opcode::Pong, bytes.clone()),
        Said::Close(_) => (Opcode::Close, Vec::new()),
    };
    let control = opcode.is_control();
    let packed = deflate && !control;
    let payload = if packed { Deflater::new(6).compress(&payload, 15).to_vec() } else { payload };
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut % (payload.len() + 1)).collect();
    cuts.extend([0, payload.len()]);
    cuts.sort_unstable();
    if control {
        cuts = vec![0, payload.len()];
    }
    let mut out = Vec::new();
    for (at, cut) in cuts.windows(2).enumerate() {
        let piece = &payload[cut[0]..cut[1]];
        let first = at == 0;
        Head {
            fin: at + 2 == cuts.len(),
            rsv1: packed && first,
            opcode: if first { opcode } else { Opcode::Continuation },
            mask: Some(mask),
            length: piece.len() as u64,
        }
        .write(&mut out);
        let from = out.len();
        out.extend_from_slice(piece);
        apply_mask(&mut out[from..], mask, 0);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_split_of_any_messages_gives_the_same(
        said in proptest::collection::vec(message(), 1..6),
        mask: [u8; 4],
        cuts in proptest::collection::vec(any::<usize>(), 0..4),
        splits in proptest::collection::vec(1usize..40, 1..20),
        deflate: bool,
    ) {
        let bytes: Vec<u8> = said.iter().flat_map(|one| frames(one, mask, &cuts, deflate)).collect();
        let whole = decode(Role::Server, deflate, std::iter::once(&bytes[..]));
        prop_assert_eq!(&whole, &(said, None));
        let mut rest = &bytes[..];
        let pieces = splits.iter().cycle().map_while(|take| {
            let (piece, after) = rest.split_at_checked(*take).unwrap_or((rest, &[]));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        });
        prop_assert_eq!(&decode(Role::Server, deflate, pieces), &whole);
        prop_assert_eq!(&decode(Role::Server, deflate, bytes.chunks(1)), &whole);
    }

    #[test]
    fn noise_is_judged_alike_however_it_is_split(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..60),
        begin in prop_oneof![Just(0x81u8), Just(0x01), Just(0x80), Just(0xc1), any::<u8>()],
        deflate: bool,
    ) {
        if let Some(first) = bytes.first_mut() {
            *first = begin;
        }
        for role in [Role::Server, Role::Client] {
            let whole = decode(role, deflate, std::iter::once(&bytes[..]));
            let split = decode(role, deflate, bytes.chunks(1));
            prop_assert_eq!(&whole.0, &split.0);
            // Byte by byte a fault may be found before the frame is whole, never later.
            prop_assert!(whole.1.is_none() || split.1.is_some());
        }
    }

    #[test]
    fn what_their_client_writes_we_read(said in proptest::collection::vec(message(), 1..6)) {
        let mut socket = theirs(TheirRole::Client, Vec::new());
        for one in &said {
            socket.send(match one.clone() {
                Said::Text(text) => Message::text(text),
                Said::Binary(bytes) => Message::binary(bytes),
                Said::Ping(bytes) => Message::Ping(bytes.into()),
                Said::Pong(bytes) => Message::Pong(bytes.into()),
                Said::Close(_) => Message::Close(None),
            }).unwrap();
        }
        let bytes = std::mem::take(&mut socket.get_mut().1);
        prop_assert_eq!(decode(Role::Server, false, std::iter::once(&bytes[..])), (said, None));
    }

    #[test]
    fn what_we_write_their_client_reads(texts in proptest::collection::vec(any::<String>(), 1..6)) {
        let mut bytes = Vec::new();
        texts.iter().for_each(|text| encode(Opcode::Text, false, text.as_bytes(), &mut bytes));
        let mut socket = theirs(TheirRole::Client, bytes);
        for text in texts {
            prop_assert_eq!(socket.read().unwrap(), Message::text(text));
        }
    }

    /// Frames with a few bytes changed: both codecs accept the same, and refuse the same.
    #[test]
    fn both_accept_or_both_refuse(
        said in proptest::collection::vec(message(), 1..4),
        cuts in proptest::collection::vec(any::<usize>(), 0..3),
        noise in proptest::collection::vec((0usize..40, any::<u8>()), 0..3),
    ) {
        let mut bytes: Vec<u8> =
            said.iter().flat_map(|one| frames(one, [1, 2, 3, 4], &cuts, false)).collect();
        for (at, byte) in noise {
            if let Some(slot) = bytes.get_mut(at) {
                *slot = byte;
            }
        }
        let (ours, fault) = decode(Role::Server, false, std::iter::once(&bytes[..]));
        // They differ on purpose where no good peer goes: we refuse lengths that are not in
        // their shortest form, more close codes, and what is wrong in a frame that is not whole
        // yet; and limits are counted in another way.
        let closes = ours.iter().any(|one| matches!(one, Said::Close(_)));
        let ours_alone = matches!(
            fault,
            Some(
                Error::BadLength | Error::BadCloseCode | Error::BadClosePayload
                    | Error::FrameTooBig | Error::MessageTooBig
            )
        );
        if !closes && !ours_alone {
            let (theirs, their_fault) = their_view(&bytes);
            if fault.is_some() == their_fault {
                prop_assert_eq!(ours, theirs);
            } else {
                prop_assert!(is_unfinished(&bytes), "{:?} {:?}, {:?} {}", ours, fault, theirs, their_fault);
            }
        }
    }
}

/// True when the last frame is not all there: they wait for it before they judge.
fn is_unfinished(mut bytes: &[u8]) -> bool {
    while let Ok(Some((head, length))) = Head::parse(bytes) {
        let payload = usize::try_from(head.length).unwrap_or(usize::MAX);
        match length.checked_add(payload).and_then(|end| bytes.get(end..)) {
            Some(rest) => bytes = rest,
            None => return true,
        }
    }
    !bytes.is_empty()
}

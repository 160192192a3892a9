//! The WebSocket codec beside tungstenite: what one writes the other reads, and what one refuses
//! the other refuses. Compression is not part of it: tungstenite has none.
//!
//! Deliberate differences, where the codec is right by RFC 6455 or by the registry of close codes:
//!
//! - Tungstenite takes lengths that are not in their shortest form (section 5.2), on control frames
//!   too; we reject them.
//! - Tungstenite reports a close frame with a forbidden code as if the peer had said 1002; we
//!   reject the frame. It takes 1014 (bad gateway) for a forbidden one; we don't.
//! - Tungstenite checks whole frames; we reject a frame at its first invalid byte.

use std::io::{self, Read, Write};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use protocol::websocket::frame::{Opcode, encode, encode_masked};
use protocol::websocket::{Context, Decoder, Event, Limits, Role, WsError};
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame};
use tungstenite::protocol::{Role as Side, WebSocket, WebSocketConfig};
use tungstenite::{Bytes, Message};

/// Small, so that they are met.
const LIMITS: Limits = Limits { frame_bytes_max: 600, message_bytes_max: 1000 };

/// Reads from one buffer, writes to another, and would block where a socket would.
#[derive(Default)]
struct Pipe {
    input: io::Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.input.read(buffer)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How a stream of bytes ended for its reader.
#[derive(Clone, Debug, PartialEq)]
enum End {
    /// More must come.
    Open,
    Closed,
    Error(Option<WsError>),
}

fn message(event: Event<'_>) -> Message {
    match event {
        Event::Text(text) => Message::text(text),
        Event::Binary(bytes) => Message::binary(bytes.to_vec()),
        Event::Ping(bytes) => Message::Ping(bytes.to_vec().into()),
        Event::Pong(bytes) => Message::Pong(bytes.to_vec().into()),
        Event::Close(close) => Message::Close(
            close.map(|(code, why)| CloseFrame { code: code.into(), reason: why.into() }),
        ),
    }
}

fn ours(role: Role, bytes: &[u8]) -> (Vec<Message>, End) {
    ours_within(LIMITS, role, bytes)
}

fn ours_within(limits: Limits, role: Role, bytes: &[u8]) -> (Vec<Message>, End) {
    let mut messages = Vec::new();
    let mut cx = Context { role, limits, inflater: None };
    let mut bytes = bytes.to_vec();
    let consumed =
        Decoder::default().feed(&mut cx, &mut bytes, &mut |event| messages.push(message(event)));
    let end = match (consumed, messages.last()) {
        (Err(error), _) => End::Error(Some(error)),
        (Ok(_), Some(Message::Close(_))) => End::Closed,
        (Ok(_), _) => End::Open,
    };
    (messages, end)
}

fn socket(role: Role, bytes: &[u8]) -> WebSocket<Pipe> {
    let mut config = WebSocketConfig::default();
    config.max_frame_size = Some(LIMITS.frame_bytes_max as usize);
    config.max_message_size = Some(LIMITS.message_bytes_max);
    let pipe = Pipe { input: io::Cursor::new(bytes.to_vec()), output: Vec::new() };
    let side = if role == Role::Server { Side::Server } else { Side::Client };
    WebSocket::from_raw_socket(pipe, side, Some(config))
}

fn theirs(role: Role, bytes: &[u8]) -> (Vec<Message>, End) {
    let mut socket = socket(role, bytes);
    let mut messages = Vec::new();
    loop {
        match socket.read() {
            Ok(message) => {
                let closed = message.is_close();
                messages.push(message);
                if closed {
                    return (messages, End::Closed);
                }
            }
            Err(tungstenite::Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                return (messages, End::Open);
            }
            Err(_) => return (messages, End::Error(None)),
        }
    }
}

/// Both read `bytes`, and must give the same messages and the same end.
fn compare(role: Role, bytes: &[u8]) -> Result<(), TestCaseError> {
    let (mut our_messages, our_end) = ours(role, bytes);
    let End::Error(Some(error)) = our_end else {
        if let Some(Message::Close(Some(close))) = our_messages.last_mut()
            && u16::from(close.code) == 1014
        {
            // What tungstenite reports for a code that it takes for a forbidden one.
            *close = CloseFrame { code: CloseCode::Protocol, reason: "Protocol violation".into() };
        }
        prop_assert_eq!((our_messages, our_end), theirs(role, bytes));
        return Ok(());
    };
    // What the invalid frame lacks is filled up, so that tungstenite looks at it.
    let filled = [bytes, &[0; LIMITS.frame_bytes_max as usize + 14]].concat();
    prop_assert_eq!(&ours(role, &filled), &(our_messages.clone(), our_end));
    let (mut their_messages, their_end) = theirs(role, &filled);
    let next = their_messages.get(our_messages.len());
    let consumed = match (error, next) {
        (WsError::InvalidLength, _) => true,
        // A control frame that they give has at most 125 bytes: it was the long form of a short
        // length.
        (
            WsError::ControlTooLong,
            Some(Message::Ping(_) | Message::Pong(_) | Message::Close(_)),
        ) => true,
        (WsError::InvalidCloseCode, Some(Message::Close(Some(close)))) => {
            close.code == CloseCode::Protocol
        }
        _ => false,
    };
    if consumed {
        their_messages.truncate(our_messages.len());
    } else {
        prop_assert_eq!(their_end, End::Error(None), "{}", error);
    }
    prop_assert_eq!(their_messages, our_messages);
    Ok(())
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Server), Just(Role::Client)]
}

fn data() -> impl Strategy<Value = Vec<Message>> {
    let message = prop_oneof![
        any::<String>().prop_filter("too long", |t| t.len() <= 600).prop_map(Message::text),
        vec(any::<u8>(), 0..600).prop_map(Message::binary),
        vec(any::<u8>(), 0..=125).prop_map(|bytes| Message::Ping(bytes.into())),
        vec(any::<u8>(), 0..=125).prop_map(|bytes| Message::Pong(bytes.into())),
        ("[a-zé]{0,40}", 1usize..4).prop_map(|(text, pieces)| {
            let bytes = text.into_bytes();
            let first = bytes.len() / pieces;
            let frame = Frame::message(bytes[..first].to_vec(), OpCode::Data(Data::Text), false);
            Message::Frame(frame)
        }),
    ];
    vec(message, 0..6)
}

fn close() -> impl Strategy<Value = Option<CloseFrame>> {
    let code = prop_oneof![1000u16..1004, 1007u16..1014, 3000u16..5000];
    prop::option::of(
        (code, "[a-zé]{0,40}")
            .prop_map(|(code, reason)| CloseFrame { code: code.into(), reason: reason.into() }),
    )
}

/// The messages on the wire, as tungstenite writes them, with these masks on a client's.
fn written(
    reader: Role,
    messages: &[Message],
    masks: [u8; 4],
    close: Option<Option<CloseFrame>>,
) -> Vec<u8> {
    let writer = if reader == Role::Server { Role::Client } else { Role::Server };
    let mut socket = socket(writer, &[]);
    for message in messages {
        let Message::Frame(first) = message else {
            socket.send(message.clone()).unwrap();
            continue;
        };
        // A fragmented text with a ping inside.
        socket.send(Message::Frame(first.clone())).unwrap();
        socket.send(Message::Ping(Bytes::new())).unwrap();
        let middle = Frame::message(Bytes::new(), OpCode::Data(Data::Continue), false);
        socket.send(Message::Frame(middle)).unwrap();
        let last = Frame::message(&b"z"[..], OpCode::Data(Data::Continue), true);
        socket.send(Message::Frame(last)).unwrap();
    }
    if let Some(close) = close {
        socket.close(close).unwrap();
    }
    let mut bytes = std::mem::take(&mut socket.get_mut().output);
    if reader == Role::Server {
        remask(&mut bytes, masks);
    }
    bytes
}

/// Replaces the masks of frames. Tungstenite's are random, so that a failure with them could not be repeated.
fn remask(mut frames: &mut [u8], masks: [u8; 4]) {
    while let [_, length, rest @ ..] = frames {
        let (length_bytes, length) = match *length & 0x7f {
            126 => (2, usize::from(u16::from_be_bytes([rest[0], rest[1]]))),
            127 => panic!("no message is so long"),
            length => (0, usize::from(length)),
        };
        let (frame, others) = rest[length_bytes..].split_at_mut(4 + length);
        let (before, payload) = frame.split_at_mut(4);
        for (at, byte) in payload.iter_mut().enumerate() {
            *byte ^= before[at % 4] ^ masks[at % 4];
        }
        before.copy_from_slice(&masks);
        frames = others;
    }
}

/// An input that fails is kept beside this file, to be committed.
fn config(cases: u32) -> ProptestConfig {
    let file = FileFailurePersistence::Direct("tests/ws_oracle.regressions");
    ProptestConfig {
        failure_persistence: Some(Box::new(file)),
        ..ProptestConfig::with_cases(cases)
    }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn we_read_what_tungstenite_writes(
        role in role(), messages in data(), masks: [u8; 4], close in prop::option::of(close()),
    ) {
        let bytes = written(role, &messages, masks, close.clone());
        let whole = messages.iter().all(|message| !matches!(message, Message::Frame(_)));
        if whole {
            let want: Vec<Message> =
                messages.into_iter().chain(close.clone().map(Message::Close)).collect();
            let end = if close.is_some() { End::Closed } else { End::Open };
            prop_assert_eq!(ours(role, &bytes), (want, end));
        }
        compare(role, &bytes)?;
    }

    #[test]
    fn tungstenite_reads_what_we_write(
        role in role(), messages in data(), masks: [u8; 4], close in prop::option::of(close()),
    ) {
        let mut want: Vec<Message> =
            messages.into_iter().filter(|m| !matches!(m, Message::Frame(_))).collect();
        let end = if close.is_some() { End::Closed } else { End::Open };
        want.extend(close.map(Message::Close));
        let mut bytes = Vec::new();
        for message in &want {
            let (opcode, payload) = match message {
                Message::Text(text) => (Opcode::Text, text.as_bytes().to_vec()),
                Message::Binary(bytes) => (Opcode::Binary, bytes.to_vec()),
                Message::Ping(bytes) => (Opcode::Ping, bytes.to_vec()),
                Message::Pong(bytes) => (Opcode::Pong, bytes.to_vec()),
                Message::Close(Some(close)) => {
                    let code = u16::from(close.code).to_be_bytes();
                    (Opcode::Close, [&code[..], close.reason.as_bytes()].concat())
                }
                _ => (Opcode::Close, Vec::new()),
            };
            match role {
                Role::Server => encode_masked(opcode, false, &payload, masks, &mut bytes),
                Role::Client => encode(opcode, false, &payload, &mut bytes),
            }
        }
        prop_assert_eq!(theirs(role, &bytes), (want, end));
    }

    #[test]
    fn both_give_the_same_result_for_damaged_frames(
        role in role(),
        messages in data(),
        masks: [u8; 4],
        close in prop::option::of(close()),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        flips in vec((any::<prop::sample::Index>(), 0u8..8), 0..3),
    ) {
        let mut bytes = written(role, &messages, masks, close);
        if !bytes.is_empty() {
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            for (at, bit) in flips {
                // Near the front, where a head is likelier.
                let at = at.index(bytes.len().min(24));
                bytes[at] ^= 1 << bit;
            }
        }
        compare(role, &bytes)?;
    }

    #[test]
    fn noise_both_judge_alike(
        role in role(),
        first in prop_oneof![any::<u8>(), prop::sample::select(vec![0x01u8, 0x02, 0x81, 0x88])],
        second: u8,
        rest in vec(any::<u8>(), 0..300),
    ) {
        compare(role, &[&[first, second], &rest[..]].concat())?;
    }

    #[test]
    fn every_close_code_both_judge_alike(code in prop_oneof![990u16..1020, any::<u16>()]) {
        let mut bytes = Vec::new();
        encode(Opcode::Close, false, &code.to_be_bytes(), &mut bytes);
        compare(Role::Client, &bytes)?;
    }
}

#[test]
fn every_head_both_judge_alike() {
    for role in [Role::Server, Role::Client] {
        for first in 0..=255 {
            for second in [0, 1, 2, 125, 126, 127, 0x80, 0x81, 0x82, 0xfd, 0xfe, 0xff] {
                for rest in [&[0; 300][..], &[0xff; 300], &[1, 0, 0, 0, 3, 0xe8]] {
                    let bytes = [&[first, second], rest].concat();
                    compare(role, &bytes).unwrap_or_else(|e| panic!("{first:x} {second:x}: {e}"));
                }
            }
        }
    }
}

/// Lengths in 16 and in 64 bits, both ways.
#[test]
fn large_messages_go_both_ways() {
    let limits = Limits { frame_bytes_max: 1 << 20, message_bytes_max: 1 << 20 };
    for length in [125, 126, 0xffff, 0x1_0000, 200_000] {
        let payload: Vec<u8> = (0..length as u32).map(|n| n.wrapping_mul(n) as u8).collect();
        let want = Message::binary(payload.clone());

        let pipe = Pipe::default();
        let mut client = WebSocket::from_raw_socket(pipe, Side::Client, None);
        client.send(want.clone()).unwrap();
        let written = std::mem::take(&mut client.get_mut().output);
        assert_eq!(ours_within(limits, Role::Server, &written), (vec![want.clone()], End::Open));

        let mut written = Vec::new();
        encode_masked(Opcode::Binary, false, &payload, [1, 2, 3, 4], &mut written);
        let pipe = Pipe { input: io::Cursor::new(written), output: Vec::new() };
        let mut server = WebSocket::from_raw_socket(pipe, Side::Server, None);
        assert_eq!(server.read().unwrap(), want);
    }
}

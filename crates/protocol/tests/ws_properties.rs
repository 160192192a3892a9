//! What holds for the WebSocket codec whatever is sent and however it is split.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use protocol::websocket::deflate::{Deflater, Inflater};
use protocol::websocket::frame::{HEAD_BYTES_MAX, Head, Opcode, apply_mask};
use protocol::websocket::{Context, Decoder, Event, Limits, Role, WsError};
use random::Random;

const LIMITS: Limits = Limits { frame_bytes_max: 3000, message_bytes_max: 5000 };

/// An [`Event`] that owns its data.
#[derive(Clone, Debug, PartialEq)]
enum OwnedEvent {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<(u16, String)>),
}

impl From<Event<'_>> for OwnedEvent {
    fn from(event: Event<'_>) -> OwnedEvent {
        match event {
            Event::Text(text) => OwnedEvent::Text(text.into()),
            Event::Binary(bytes) => OwnedEvent::Binary(bytes.into()),
            Event::Ping(bytes) => OwnedEvent::Ping(bytes.into()),
            Event::Pong(bytes) => OwnedEvent::Pong(bytes.into()),
            Event::Close(close) => OwnedEvent::Close(close.map(|(code, why)| (code, why.into()))),
        }
    }
}

/// All events, and either how many bytes were taken or why no more were.
type Outcome = (Vec<OwnedEvent>, Result<usize, WsError>);

/// Feeds `bytes` cut at `cuts`, as a server does: a decoder that is idle is thrown away, and what
/// was not taken comes again before what follows.
fn feed(role: Role, deflate: bool, bytes: &[u8], cuts: &[usize]) -> Outcome {
    let mut inflater = deflate.then(Inflater::new);
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.push(bytes.len());
    cuts.sort_unstable();
    let (mut events, mut decoder) = (Vec::new(), Decoder::default());
    let (mut from, mut consumed, mut left) = (0, 0, Vec::new());
    for to in cuts {
        left.extend_from_slice(&bytes[from..to]);
        from = to;
        let mut cx = Context { role, limits: LIMITS, inflater: inflater.as_mut() };
        match decoder.feed(&mut cx, &mut left, &mut |event| events.push(event.into())) {
            Ok(count) => {
                consumed += count;
                left.drain(..count);
            }
            Err(error) => {
                let mut more = [0x81, 0x80, 0, 0, 0, 0];
                let silence = decoder.feed(&mut cx, &mut more, &mut |event| panic!("{event:?}"));
                assert_eq!(silence, Ok(more.len()));
                return (events, Err(error));
            }
        }
        assert!(left.len() < HEAD_BYTES_MAX);
        if decoder.is_idle() {
            decoder = Decoder::default();
        }
    }
    (events, Ok(consumed))
}

/// What one side sends: a message in any number of fragments with control frames between them.
#[derive(Clone, Debug)]
struct Sent {
    what: OwnedEvent,
    deflate: bool,
    cuts: Vec<usize>,
    between: Vec<(bool, Vec<u8>)>,
}

fn sent() -> impl Strategy<Value = Sent> {
    let what = prop_oneof![
        4 => any::<String>().prop_map(OwnedEvent::Text),
        1 => ("[a-zé€😀]{0,4}", 0usize..200).prop_map(|(text, n)| OwnedEvent::Text(text.repeat(n))),
        3 => vec(any::<u8>(), 0..400).prop_map(OwnedEvent::Binary),
        1 => vec(0u8..3, 0..2500).prop_map(OwnedEvent::Binary),
        1 => vec(any::<u8>(), 0..=125).prop_map(OwnedEvent::Ping),
        1 => vec(any::<u8>(), 0..=125).prop_map(OwnedEvent::Pong),
    ];
    let between = vec((any::<bool>(), vec(any::<u8>(), 0..8)), 0..3);
    (what, any::<bool>(), vec(any::<usize>(), 0..4), between)
        .prop_map(|(what, deflate, cuts, between)| Sent { what, deflate, cuts, between })
}

/// Writes frames with the masks of one side.
struct Writer {
    role: Role,
    masks: Random,
    out: Vec<u8>,
}

impl Writer {
    fn frame(&mut self, fin: bool, rsv1: bool, opcode: Opcode, payload: &[u8]) {
        let mask = (self.role == Role::Server).then(|| (self.masks.bits() as u32).to_be_bytes());
        Head { fin, rsv1, opcode, mask, length: payload.len() as u64 }.write(&mut self.out);
        let from = self.out.len();
        self.out.extend_from_slice(payload);
        if let Some(mask) = mask {
            apply_mask(&mut self.out[from..], mask, 0);
        }
    }

    /// Writes it, and gives the events that its reader must give.
    fn sent(&mut self, sent: &Sent, deflater: Option<&mut Deflater>, events: &mut Vec<OwnedEvent>) {
        let (opcode, payload) = match &sent.what {
            OwnedEvent::Text(text) => (Opcode::Text, text.as_bytes()),
            OwnedEvent::Binary(bytes) => (Opcode::Binary, &bytes[..]),
            OwnedEvent::Ping(bytes) => (Opcode::Ping, &bytes[..]),
            OwnedEvent::Pong(bytes) => (Opcode::Pong, &bytes[..]),
            OwnedEvent::Close(_) => return,
        };
        if opcode.is_control() {
            self.frame(true, false, opcode, payload);
            return events.push(sent.what.clone());
        }
        let packed = deflater.filter(|_| sent.deflate).map(|d| d.compress(payload, 15));
        let (rsv1, payload) = (packed.is_some(), packed.unwrap_or(payload));
        let mut cuts: Vec<usize> = sent.cuts.iter().map(|cut| cut % (payload.len() + 1)).collect();
        cuts.push(payload.len());
        cuts.sort_unstable();
        let mut from = 0;
        for (at, to) in cuts.iter().enumerate() {
            let opcode = if at == 0 { opcode } else { Opcode::Continuation };
            let last = at + 1 == cuts.len();
            self.frame(last, rsv1 && at == 0, opcode, &payload[from..*to]);
            from = *to;
            if let Some((ping, payload)) = sent.between.get(at).filter(|_| !last) {
                self.frame(true, false, if *ping { Opcode::Ping } else { Opcode::Pong }, payload);
                let payload = payload.clone();
                events.push(if *ping {
                    OwnedEvent::Ping(payload)
                } else {
                    OwnedEvent::Pong(payload)
                });
            }
        }
        events.push(sent.what.clone());
    }
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Server), Just(Role::Client)]
}

/// Heads that are nearly right, with payloads that are nearly as long as they say.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![
        6 => prop::sample::select(vec![0x81u8, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8a, 0x88, 0xc1]),
        1 => any::<u8>(),
    ];
    let second = prop_oneof![6 => 0x80u8..0x90, 2 => 0u8..20, 1 => any::<u8>()];
    let text = prop_oneof!["[a-zé€😀]{0,4}".prop_map(String::into_bytes), vec(any::<u8>(), 0..24)];
    let frame = (first, second, text).prop_map(|(first, second, rest)| {
        let mut out = vec![first, second];
        if second & 0x80 != 0 {
            out.extend_from_slice(&[0; 4]);
        }
        out.extend_from_slice(&rest[..rest.len().min((second & 0x7f) as usize)]);
        out
    });
    vec(frame, 0..8).prop_map(|frames| frames.concat())
}

/// An input that fails is kept beside this file, to be committed.
fn config(cases: u32) -> ProptestConfig {
    let file = FileFailurePersistence::Direct("tests/ws_properties.regressions");
    ProptestConfig {
        failure_persistence: Some(Box::new(file)),
        ..ProptestConfig::with_cases(cases)
    }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn sent_messages_are_read_however_they_are_split(
        role in role(),
        messages in vec(sent(), 0..5),
        close in prop::option::of((prop::sample::select(vec![1000u16, 1001, 1011, 3000, 4999]), "[a-zé]{0,40}")),
        deflate: bool,
        cuts in vec(any::<usize>(), 0..12),
    ) {
        let mut deflater = deflate.then(|| Deflater::new(6));
        let mut writer = Writer { role, masks: Random::new(1), out: Vec::new() };
        let mut want = Vec::new();
        for message in &messages {
            writer.sent(message, deflater.as_mut(), &mut want);
        }
        if let Some((code, reason)) = close {
            writer.frame(true, false, Opcode::Close, &[&code.to_be_bytes(), reason.as_bytes()].concat());
            writer.frame(true, false, Opcode::Text, b"after the end");
            want.push(OwnedEvent::Close(Some((code, reason))));
        }
        let want = (want, Ok(writer.out.len()));
        prop_assert_eq!(&feed(role, deflate, &writer.out, &[]), &want);
        prop_assert_eq!(&feed(role, deflate, &writer.out, &cuts), &want);
    }

    #[test]
    fn noise_means_the_same_at_any_split(
        role in role(),
        deflate: bool,
        bytes in prop_oneof![noise(), vec(any::<u8>(), 0..200)],
        cuts in vec(any::<usize>(), 0..12),
    ) {
        let whole = feed(role, deflate, &bytes, &[]);
        prop_assert_eq!(&feed(role, deflate, &bytes, &cuts), &whole);
        let each: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&feed(role, deflate, &bytes, &each), &whole);
    }

    #[test]
    fn text_is_an_error_at_its_first_invalid_byte(
        good: String, invalid in vec(any::<u8>(), 1..8), rest in vec(any::<u8>(), 0..50), fin: bool,
    ) {
        let text = [good.as_bytes(), &invalid[..], &rest[..]].concat();
        let Err(error) = std::str::from_utf8(&text) else { return Ok(()) };
        let mut writer = Writer { role: Role::Server, masks: Random::new(1), out: Vec::new() };
        writer.frame(fin, false, Opcode::Text, &text);
        let head = writer.out.len() - text.len();
        // Where only the end is missing, nothing is invalid before the message ends.
        let Some(length) = error.error_len() else { return Ok(()) };
        let invalid_end = head + error.valid_up_to() + length;
        // The byte that shows it is the last of the invalid ones, or the one after.
        let at = |end: usize| feed(Role::Server, false, &writer.out[..end.min(writer.out.len())], &[]);
        prop_assert_eq!(at(invalid_end - 1).1.is_ok(), true);
        prop_assert_eq!(at(invalid_end + 1).1, Err(WsError::NotUtf8));
    }

}

proptest! {
    // Looking at every bit is slow.
    #![proptest_config(config(48))]

    #[test]
    fn a_small_window_reaches_back_no_farther(
        piece in vec(any::<u8>(), 1..700), times in 1usize..8, level in 1u32..=9, bits in 9u8..15,
    ) {
        let bytes = piece.repeat(times);
        let packed = Deflater::new(level).compress(&bytes, bits).to_vec();
        prop_assert!(distance::farthest(&packed) <= 512);
    }
}

#[test]
fn distances_are_measured() {
    let bytes: Vec<u8> = (0..700u32).flat_map(|n| (n * n * 7919).to_be_bytes()).collect();
    let packed = Deflater::new(6).compress(&bytes.repeat(2), 15).to_vec();
    assert_eq!(distance::farthest(&packed), bytes.len());
}

/// How far back a deflate stream reaches (RFC 1951), which no inflater tells.
mod distance {
    struct Bits<'a> {
        bytes: &'a [u8],
        at: usize,
    }

    impl Bits<'_> {
        fn ended(&self) -> bool {
            self.at.div_ceil(8) >= self.bytes.len()
        }

        fn take(&mut self, count: usize) -> usize {
            (0..count).fold(0, |sum, n| {
                let bit = self.bytes[self.at / 8] >> (self.at % 8) & 1;
                self.at += 1;
                sum | usize::from(bit) << n
            })
        }

        /// The next symbol of a canonical code, given each symbol's length in bits.
        fn symbol(&mut self, lengths: &[usize]) -> usize {
            let (mut code, mut first) = (0, 0);
            for length in 1..=15 {
                code = code << 1 | self.take(1);
                first <<= 1;
                let with = lengths.iter().filter(|l| **l == length).count();
                if code < first + with {
                    let same = lengths.iter().enumerate().filter(|(_, l)| **l == length);
                    return same.map(|(symbol, _)| symbol).nth(code - first).unwrap();
                }
                first += with;
            }
            panic!("no such code");
        }
    }

    fn trees(bits: &mut Bits<'_>) -> (Vec<usize>, Vec<usize>) {
        const ORDER: [usize; 19] =
            [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
        let (literals, distances) = (257 + bits.take(5), 1 + bits.take(5));
        let codes = 4 + bits.take(4);
        let mut lengths = [0; 19];
        for index in &ORDER[..codes] {
            lengths[*index] = bits.take(3);
        }
        let mut all: Vec<usize> = Vec::new();
        while all.len() < literals + distances {
            let (length, times) = match bits.symbol(&lengths) {
                16 => (*all.last().unwrap(), 3 + bits.take(2)),
                17 => (0, 3 + bits.take(3)),
                18 => (0, 11 + bits.take(7)),
                length => (length, 1),
            };
            all.extend(std::iter::repeat_n(length, times));
        }
        let distances = all.split_off(literals);
        (all, distances)
    }

    pub fn farthest(packed: &[u8]) -> usize {
        let bytes = [packed, &[0, 0, 0xff, 0xff]].concat();
        let mut bits = Bits { bytes: &bytes, at: 0 };
        let mut farthest = 0;
        while !bits.ended() {
            let _last = bits.take(1);
            let (literals, distances) = match bits.take(2) {
                0 => {
                    bits.at = bits.at.div_ceil(8) * 8;
                    let length = bits.take(16);
                    bits.at += 16 + length * 8;
                    continue;
                }
                1 => {
                    let literals = (0..288).map(|n| match n {
                        0..144 => 8,
                        144..256 => 9,
                        256..280 => 7,
                        _ => 8,
                    });
                    (literals.collect(), vec![5; 30])
                }
                _ => trees(&mut bits),
            };
            loop {
                match bits.symbol(&literals) {
                    0..256 => continue,
                    256 => break,
                    symbol @ (257..265 | 285) => _ = symbol,
                    symbol => _ = bits.take((symbol - 261) / 4),
                }
                let symbol = bits.symbol(&distances);
                let extra = (symbol / 2).saturating_sub(1);
                let base = if symbol < 2 { symbol } else { (2 + symbol % 2) << extra };
                farthest = farthest.max(1 + base + bits.take(extra));
            }
        }
        farthest
    }
}

//! Decodes frames to messages, however the bytes are split.

use super::WsError;
use super::deflate::Inflater;
use super::frame::{CONTROL_BYTES_MAX, Head, Opcode, apply_mask};
use super::utf8::Utf8;

/// The side of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads frames of clients, with masks.
    Server,
    /// Reads frames of servers, without masks.
    Client,
}

/// The limits of what a peer may send.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a frame's payload.
    pub frame_bytes_max: u64,
    /// Bytes of a message with all its fragments: as received and, if it is compressed, also inflated.
    pub message_bytes_max: usize,
}

/// What the decoder needs, but doesn't own.
pub struct Context<'a> {
    /// The side of the decoder.
    pub role: Role,
    /// The limits of what the peer may send.
    pub limits: Limits,
    /// The inflater, if permessage-deflate was agreed.
    pub inflater: Option<&'a mut Inflater>,
}

/// An event from the peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A text message.
    Text(&'a str),
    /// A binary message.
    Binary(&'a [u8]),
    /// A ping: the reply is a pong with the same payload.
    Ping(&'a [u8]),
    /// A pong.
    Pong(&'a [u8]),
    /// The peer closes, with a code and a reason if it gave any. The decoder reads nothing after it.
    Close(Option<(u16, &'a str)>),
}

/// The state of a connection inside a frame or a message; the default is the state between messages. The payload of
/// an incomplete message grows to [`Limits::message_bytes_max`] at most, with the received bytes and never by the
/// length in a frame's head.
#[derive(Debug, Default, minicbor::Encode, minicbor::Decode)]
#[cbor(map)]
pub struct Decoder {
    /// The current data message: true for text, and true if it is compressed.
    #[n(0)]
    message: Option<(bool, bool)>,
    /// The received part of its payload.
    #[cbor(n(1), with = "minicbor::bytes")]
    payload: Vec<u8>,
    /// The state of a plain text's check; the default again after a complete text.
    #[n(2)]
    utf8: Utf8,
    /// The current frame, with the number of bytes received of it.
    #[n(3)]
    frame: Option<(Head, u64)>,
    #[cbor(n(4), with = "minicbor::bytes")]
    control: Vec<u8>,
    #[n(5)]
    closed: bool,
    /// The gathered payloads of messages, for a protocol with its own packets.
    #[n(6)]
    gathered: Option<Gathered>,
}

/// The payloads of messages, for a protocol whose packets are larger or smaller than messages.
#[derive(Debug, Default, minicbor::Encode, minicbor::Decode)]
#[cbor(map)]
pub struct Gathered {
    #[cbor(n(0), with = "minicbor::bytes")]
    bytes: Vec<u8>,
    /// Bytes that the protocol has read.
    #[n(1)]
    read: usize,
}

impl Gathered {
    /// The unread bytes.
    pub fn unread(&self) -> &[u8] {
        self.bytes.get(self.read..).unwrap_or_default()
    }

    /// Marks `consumed` more bytes as read. The rest moves only if it is less than half: each byte moves once on
    /// average.
    fn advance(&mut self, consumed: usize) {
        self.read = (self.read + consumed).min(self.bytes.len());
        if self.read > self.bytes.len() / 2 {
            self.bytes.drain(..self.read);
            self.read = 0;
        }
    }
}

impl Decoder {
    /// Returns true between messages and frames: then a new decoder can take the place of this one.
    pub fn is_idle(&self) -> bool {
        self.message.is_none() && self.frame.is_none() && !self.closed && self.gathered.is_none()
    }

    /// The state with which another process can continue.
    pub fn export(&self) -> Vec<u8> {
        // Writing to a vector can't fail.
        minicbor::to_vec(self).unwrap_or_default()
    }

    /// Restores a decoder from [`Decoder::export`]; `None` if the bytes are invalid.
    pub fn import(bytes: &[u8]) -> Option<Self> {
        let decoder: Decoder = minicbor::decode(bytes).ok()?;
        let control = decoder.control.len() as u64;
        let gathered = decoder.gathered.as_ref().is_none_or(|it| it.read < it.bytes.len());
        let frame = match decoder.frame {
            None => control == 0,
            Some((head, had)) if head.opcode.is_control() => {
                let fits = head.fin && head.length <= CONTROL_BYTES_MAX as u64;
                fits && had <= head.length && control == had
            }
            Some((head, had)) => {
                let begun = decoder.message.is_some() && decoder.payload.len() as u64 >= had;
                begun && had <= head.length && control == 0
            }
        };
        let message = decoder.message.is_some() || decoder.payload.is_empty();
        (frame && message && gathered && decoder.utf8.is_possible()).then_some(decoder)
    }

    /// Bytes of memory that an incomplete message takes up.
    pub fn buffered_bytes(&self) -> usize {
        let gathered = self.gathered.as_ref().map_or(0, |gathered| gathered.bytes.capacity());
        self.payload.capacity() + self.control.capacity() + gathered
    }

    /// Stores the payload of a message, for a protocol with its own packets.
    pub fn gather(&mut self, payload: &[u8]) {
        self.gathered.get_or_insert_default().bytes.extend_from_slice(payload);
    }

    /// Takes the gathered bytes, which [`Decoder::put_gathered`] puts back.
    pub fn take_gathered(&mut self) -> Gathered {
        self.gathered.take().unwrap_or_default()
    }

    /// Puts the gathered bytes back, after the protocol has read `consumed` more of them.
    pub fn put_gathered(&mut self, mut gathered: Gathered, consumed: usize) {
        gathered.advance(consumed);
        self.gathered = (!gathered.unread().is_empty()).then_some(gathered);
    }

    /// The gathered bytes that are unread.
    pub fn gathered(&self) -> &[u8] {
        self.gathered.as_ref().map_or(&[], Gathered::unread)
    }

    /// Returns true if unread bytes are gathered.
    pub fn has_gathered(&self) -> bool {
        self.gathered.is_some()
    }

    /// Reads `input`, passes each complete message to `on`, and returns the number of consumed bytes. The rest is the
    /// beginning of a frame's head, fewer than 14 bytes: the caller passes it again with more bytes. Control frames
    /// are passed on where they occur, also between the fragments of a message.
    ///
    /// The events and the error don't depend on how the bytes are split. The first invalid byte causes the error,
    /// except in compressed text. After an error or [`Event::Close`] the decoder consumes all input without events.
    pub fn feed(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut [u8],
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, WsError> {
        let mut at = 0;
        loop {
            let consumed = self.feed_frame(cx, &mut input[at..], on)?;
            at += consumed;
            if consumed == 0 || at == input.len() {
                return Ok(at);
            }
        }
    }

    /// Reads one frame of `input`, or its received part, and returns the number of consumed bytes. A message or control
    /// frame that is complete is passed to `on`. For a caller that may stop between two frames.
    pub fn feed_frame(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut [u8],
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, WsError> {
        let consumed = self.read(cx, input, on);
        if consumed.is_err() {
            *self = Decoder { closed: true, ..Decoder::default() };
        }
        consumed
    }

    fn read(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut [u8],
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, WsError> {
        let mut at = 0;
        if self.closed {
            return Ok(input.len());
        }
        let (head, had) = match self.frame {
            Some(begun) => begun,
            None => {
                let Some((head, length)) = Head::parse(input)? else {
                    return Ok(0);
                };
                self.begin(cx, &head)?;
                at += length;
                let rest = &mut input[at..];
                if let Ok(length) = usize::try_from(head.length)
                    && let Some(payload) = rest.get_mut(..length)
                {
                    at += payload.len();
                    self.whole(cx, &head, payload, on)?;
                    return Ok(at);
                }
                self.frame = Some((head, 0));
                (head, 0)
            }
        };
        let here = input.len() - at;
        let piece = usize::try_from(head.length - had).map_or(here, |left| left.min(here));
        let bytes = &mut input[at..at + piece];
        at += piece;
        self.piece(&head, had, bytes)?;
        let had = had + piece as u64;
        if had < head.length {
            self.frame = Some((head, had));
            return Ok(at);
        }
        self.frame = None;
        self.end(cx, &head, on)?;
        Ok(at)
    }

    /// Checks a frame's head against the previous frames.
    fn begin(&mut self, cx: &Context<'_>, head: &Head) -> Result<(), WsError> {
        match (cx.role, head.mask) {
            (Role::Server, None) => return Err(WsError::NotMasked),
            (Role::Client, Some(_)) => return Err(WsError::Masked),
            _ => {}
        }
        if head.length > cx.limits.frame_bytes_max {
            return Err(WsError::FrameTooBig);
        }
        match head.opcode {
            Opcode::Text | Opcode::Binary => {
                if self.message.is_some() {
                    return Err(WsError::MessageInMessage);
                }
                if head.rsv1 && cx.inflater.is_none() {
                    return Err(WsError::ReservedBits);
                }
                self.message = Some((head.opcode == Opcode::Text, head.rsv1));
            }
            Opcode::Continuation => {
                if head.rsv1 {
                    return Err(WsError::ReservedBits);
                }
                if self.message.is_none() {
                    return Err(WsError::NothingToContinue);
                }
            }
            Opcode::Close | Opcode::Ping | Opcode::Pong => {}
        }
        let data = !head.opcode.is_control();
        if data && self.payload.len() as u64 + head.length > cx.limits.message_bytes_max as u64 {
            return Err(WsError::MessageTooBig);
        }
        Ok(())
    }

    /// Processes a complete frame. A message in one frame is passed on without a copy.
    fn whole(
        &mut self,
        cx: &mut Context<'_>,
        head: &Head,
        payload: &mut [u8],
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), WsError> {
        if head.opcode.is_control() {
            unmask(head, 0, payload);
            return self.control(head.opcode, payload, on);
        }
        let single = head.fin && head.opcode != Opcode::Continuation;
        if !single {
            self.piece(head, 0, payload)?;
            return self.end(cx, head, on);
        }
        unmask(head, 0, payload);
        let Some((text, compressed)) = self.message.take() else {
            return Ok(());
        };
        match cx.inflater.as_mut().filter(|_| compressed) {
            Some(inflater) => {
                deliver(text, inflater.inflate(payload, cx.limits.message_bytes_max)?, on)
            }
            None => deliver(text, payload, on),
        }
    }

    /// Processes a piece of a frame's payload. Plain text is checked at once, before the message is complete.
    fn piece(&mut self, head: &Head, at: u64, bytes: &mut [u8]) -> Result<(), WsError> {
        unmask(head, at, bytes);
        if head.opcode.is_control() {
            self.control.extend_from_slice(bytes);
            return Ok(());
        }
        self.payload.extend_from_slice(bytes);
        match self.message {
            Some((true, false)) if !self.utf8.push(bytes) => Err(WsError::NotUtf8),
            _ => Ok(()),
        }
    }

    /// Ends a frame that came in pieces.
    fn end(
        &mut self,
        cx: &mut Context<'_>,
        head: &Head,
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), WsError> {
        if head.opcode.is_control() {
            let payload = std::mem::take(&mut self.control);
            return self.control(head.opcode, &payload, on);
        }
        if !head.fin {
            return Ok(());
        }
        let Some((text, compressed)) = self.message.take() else {
            return Ok(());
        };
        let payload = std::mem::take(&mut self.payload);
        match cx.inflater.as_mut().filter(|_| compressed) {
            Some(inflater) => {
                deliver(text, inflater.inflate(&payload, cx.limits.message_bytes_max)?, on)
            }
            None => deliver(text, &payload, on),
        }
    }

    fn control(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), WsError> {
        debug_assert!(payload.len() <= CONTROL_BYTES_MAX);
        match opcode {
            Opcode::Ping => on(Event::Ping(payload)),
            Opcode::Pong => on(Event::Pong(payload)),
            // The other opcodes are not those of control frames.
            Opcode::Close | Opcode::Continuation | Opcode::Text | Opcode::Binary => {
                on(Event::Close(close(payload)?));
                self.closed = true;
            }
        }
        Ok(())
    }
}

fn unmask(head: &Head, at: u64, bytes: &mut [u8]) {
    if let Some(mask) = head.mask {
        apply_mask(bytes, mask, at);
    }
}

fn deliver(text: bool, payload: &[u8], on: &mut dyn FnMut(Event<'_>)) -> Result<(), WsError> {
    if text {
        on(Event::Text(simdutf8::basic::from_utf8(payload).map_err(|_| WsError::NotUtf8)?));
    } else {
        on(Event::Binary(payload));
    }
    Ok(())
}

/// Parses the code and the reason of a close frame (sections 5.5.1 and 7.4).
fn close(payload: &[u8]) -> Result<Option<(u16, &str)>, WsError> {
    match payload {
        [] => Ok(None),
        [_] => Err(WsError::InvalidClosePayload),
        [high, low, reason @ ..] => {
            let code = u16::from_be_bytes([*high, *low]);
            if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                return Err(WsError::InvalidCloseCode);
            }
            let reason = std::str::from_utf8(reason).map_err(|_| WsError::NotUtf8)?;
            Ok(Some((code, reason)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket::deflate::Deflater;
    use crate::websocket::frame::{encode, encode_masked};

    const LIMITS: Limits = Limits { frame_bytes_max: 1000, message_bytes_max: 2000 };

    fn feed(role: Role, bytes: &[u8]) -> Result<Vec<String>, WsError> {
        let mut events = Vec::new();
        let mut cx = Context { role, limits: LIMITS, inflater: None };
        let mut bytes = bytes.to_vec();
        Decoder::default()
            .feed(&mut cx, &mut bytes, &mut |event| events.push(format!("{event:?}")))
            .map(|_| events)
    }

    /// A masked frame of a client.
    fn frame(fin: bool, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
        let mask = [9, 8, 7, 6];
        let mut out = Vec::new();
        let length = payload.len() as u64;
        Head { fin, rsv1: false, opcode, mask: Some(mask), length }.write(&mut out);
        let at = out.len();
        out.extend_from_slice(payload);
        apply_mask(&mut out[at..], mask, 0);
        out
    }

    #[test]
    fn control_frames_come_between_fragments() {
        let bytes = [
            frame(false, Opcode::Text, b"a\xc3"),
            frame(true, Opcode::Ping, b"p"),
            frame(false, Opcode::Continuation, b"\xa9"),
            frame(true, Opcode::Continuation, b"z"),
            frame(true, Opcode::Close, b"\x03\xe8bye"),
            frame(true, Opcode::Text, b"after"),
        ]
        .concat();
        let want = ["Ping([112])", "Text(\"aéz\")", "Close(Some((1000, \"bye\")))"];
        assert_eq!(feed(Role::Server, &bytes).unwrap(), want);
    }

    #[test]
    fn what_is_read_of_a_frame_in_small_pieces_is_not_moved_for_each() {
        let (mut decoder, bytes) = (Decoder::default(), [0xc0, 0].repeat(50_000));
        decoder.gather(&bytes);
        let (mut moved, mut left) = (0, bytes.len());
        while decoder.has_gathered() {
            let gathered = decoder.take_gathered();
            let before = gathered.unread().as_ptr();
            assert_eq!(gathered.unread().len(), left);
            decoder.put_gathered(gathered, 2);
            left -= 2;
            let gathered = decoder.gathered.as_ref().map(Gathered::unread);
            let is_there = |it: &&[u8]| it.as_ptr() == before.wrapping_add(2);
            moved += gathered.filter(|it| !is_there(it)).map_or(0, <[u8]>::len);
        }
        assert_eq!(left, 0);
        assert!(moved <= bytes.len(), "{moved} bytes of {} moved", bytes.len());
        // Another process continues behind the read bytes.
        decoder.gather(b"abcd");
        let gathered = decoder.take_gathered();
        decoder.put_gathered(gathered, 1);
        let mut other = Decoder::import(&decoder.export()).unwrap();
        other.gather(b"e");
        assert_eq!(other.take_gathered().unread(), b"bcde");
    }

    #[test]
    fn each_invalid_frame_has_its_error() {
        use Opcode::*;
        for (bytes, want) in [
            (frame(true, Continuation, b""), WsError::NothingToContinue),
            (
                [frame(false, Text, b"a"), frame(true, Text, b"b")].concat(),
                WsError::MessageInMessage,
            ),
            (frame(true, Text, b"\xff"), WsError::NotUtf8),
            (frame(true, Text, b"a\xc3"), WsError::NotUtf8),
            (
                [frame(false, Text, b"\xc3"), frame(true, Continuation, b"")].concat(),
                WsError::NotUtf8,
            ),
            (frame(true, Close, b"\x03"), WsError::InvalidClosePayload),
            (frame(true, Close, b"\x03\xed"), WsError::InvalidCloseCode),
            (frame(true, Close, b"\x00\x00"), WsError::InvalidCloseCode),
            (frame(true, Close, b"\x03\xf8"), WsError::InvalidCloseCode),
            (frame(true, Close, b"\x13\x88"), WsError::InvalidCloseCode),
            (frame(true, Close, b"\x03\xe8\xff"), WsError::NotUtf8),
            (frame(true, Binary, &[0; 1001]), WsError::FrameTooBig),
            (vec![0xc1, 0x80, 0, 0, 0, 0], WsError::ReservedBits),
            (
                [frame(false, Text, b"a"), vec![0xc0, 0x80, 0, 0, 0, 0]].concat(),
                WsError::ReservedBits,
            ),
            (vec![0x81, 0x00], WsError::NotMasked),
            (vec![0x89, 0x00], WsError::NotMasked),
        ] {
            assert_eq!(feed(Role::Server, &bytes), Err(want));
        }
        let parts = [false, false, true]
            .map(|fin| frame(fin, if fin { Continuation } else { Binary }, &[0; 900]));
        let long = [&parts[0][..], &frame(false, Continuation, &[0; 900]), &parts[2]].concat();
        assert_eq!(feed(Role::Server, &long), Err(WsError::MessageTooBig));
        let mut masked = Vec::new();
        encode_masked(Text, false, b"x", [1; 4], &mut masked);
        assert_eq!(feed(Role::Client, &masked), Err(WsError::Masked));
        let mut plain = Vec::new();
        encode(Text, false, b"x", &mut plain);
        assert_eq!(feed(Role::Client, &plain).unwrap(), ["Text(\"x\")"]);
    }

    #[test]
    fn each_close_code_may_be_sent_or_not() {
        let good = |code: u16| {
            let bytes = frame(true, Opcode::Close, &code.to_be_bytes());
            match feed(Role::Server, &bytes) {
                Ok(_) => true,
                Err(error) => {
                    assert_eq!(error, WsError::InvalidCloseCode);
                    false
                }
            }
        };
        let sendable: Vec<u16> = (0..=u16::MAX).filter(|code| good(*code)).collect();
        let want = (1000..=1003).chain(1007..=1014).chain(3000..=4999).collect::<Vec<u16>>();
        assert_eq!(sendable, want);
    }

    #[test]
    fn compressed_messages_are_bounded_and_may_be_fragmented() {
        let mut deflater = Deflater::new(6);
        let feed = |bytes: &[u8], message_bytes_max| {
            let mut inflater = Inflater::new();
            let limits = Limits { frame_bytes_max: 1000, message_bytes_max };
            let mut cx = Context { role: Role::Client, limits, inflater: Some(&mut inflater) };
            let mut events = Vec::new();
            Decoder::default()
                .feed(&mut cx, &mut bytes.to_vec(), &mut |event| events.push(format!("{event:?}")))
                .map(|_| events)
        };
        let long = "é".repeat(1000);
        let packed = deflater.compress(long.as_bytes(), 15).to_vec();
        let (left, right) = packed.split_at(packed.len() / 2);
        let mut bytes = Vec::new();
        for (fin, rsv1, opcode, part) in
            [(false, true, Opcode::Text, left), (true, false, Opcode::Continuation, right)]
        {
            Head { fin, rsv1, opcode, mask: None, length: part.len() as u64 }.write(&mut bytes);
            bytes.extend_from_slice(part);
        }
        assert_eq!(feed(&bytes, 2000), Ok(vec![format!("Text({long:?})")]));
        assert_eq!(feed(&bytes, 1999), Err(WsError::MessageTooBig));
        let mut bytes = Vec::new();
        encode(Opcode::Text, true, deflater.compress(b"\xff", 15), &mut bytes);
        assert_eq!(feed(&bytes, 2000), Err(WsError::NotUtf8));
        let mut bytes = Vec::new();
        encode(Opcode::Binary, true, &[0xff; 9], &mut bytes);
        assert_eq!(feed(&bytes, 2000), Err(WsError::InvalidDeflate));
        // After an agreement on compression a message may still be uncompressed.
        let mut bytes = Vec::new();
        encode(Opcode::Text, false, b"plain", &mut bytes);
        assert_eq!(feed(&bytes, 2000), Ok(vec!["Text(\"plain\")".into()]));
    }

    #[test]
    fn a_decoder_is_small() {
        assert!(size_of::<Decoder>() <= 128);
    }

    #[test]
    fn nothing_is_allocated_on_the_word_of_a_head() {
        let limits = Limits { frame_bytes_max: u64::MAX, message_bytes_max: usize::MAX };
        let mut cx = Context { role: Role::Client, limits, inflater: None };
        let mut decoder = Decoder::default();
        let mut bytes = [0x82, 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3];
        assert_eq!(decoder.feed(&mut cx, &mut bytes, &mut |_| {}), Ok(13));
        assert!(decoder.payload.capacity() < 100);
    }

    #[test]
    fn invalid_text_is_an_error_before_its_frame_is_complete() {
        let mut bytes = frame(true, Opcode::Text, b"ab\xffcdefgh");
        bytes.truncate(bytes.len() - 5);
        assert_eq!(feed(Role::Server, &bytes), Err(WsError::NotUtf8));
    }

    #[test]
    fn a_decoder_is_idle_only_between_messages() {
        let mut cx = Context { role: Role::Server, limits: LIMITS, inflater: None };
        let mut decoder = Decoder::default();
        let mut feed = |decoder: &mut Decoder, mut bytes: Vec<u8>| {
            decoder.feed(&mut cx, &mut bytes, &mut |_| {}).unwrap()
        };
        feed(&mut decoder, frame(true, Opcode::Text, b"x"));
        assert!(decoder.is_idle());
        feed(&mut decoder, frame(false, Opcode::Text, b"x"));
        assert!(!decoder.is_idle());
        feed(&mut decoder, frame(true, Opcode::Continuation, b"x"));
        assert!(decoder.is_idle());
        let whole = frame(true, Opcode::Text, b"xyz");
        let length = whole.len();
        assert_eq!(feed(&mut decoder, whole[..length - 1].to_vec()), length - 1);
        assert!(!decoder.is_idle());
    }
}

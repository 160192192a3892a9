//! permessage-deflate (RFC 7692): raw deflate, separately for each message.
//!
//! Without context takeover one compressor and one decompressor serve all connections of a
//! thread.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::WsError;

/// The end of a sync flush, which a message omits (section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// The largest window, in bits.
pub const WINDOW_BITS_MAX: u8 = 15;

/// The smallest window that deflate can use, in bits.
pub const WINDOW_BITS_MIN: u8 = 9;

/// The end of a sync flush, and an empty last block: if a stream does not end exactly there, the message was cut
/// short.
const TAIL_AND_END: [u8; 9] = [0, 0, 0xff, 0xff, 1, 0, 0, 0xff, 0xff];

/// Bytes of output after which a codec frees its buffer before the next message.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Compresses whole messages. Occupies about 300 KB for each window size in use, and the last output.
pub struct Deflater {
    level: u32,
    large: Option<Compress>,
    small: Option<Compress>,
    out: Vec<u8>,
}

impl Deflater {
    /// Level 1 (fast) to 9 (small).
    pub fn new(level: u32) -> Self {
        Deflater { level: level.min(9), large: None, small: None, out: Vec::new() }
    }

    /// Returns the payload of a compressed message, for a peer with a window of `window_bits`, 9 to 15. Below 15 the
    /// deflater uses a window of 9.
    pub fn compress(&mut self, payload: &[u8], window_bits: u8) -> &[u8] {
        let (slot, bits) = match window_bits >= WINDOW_BITS_MAX {
            true => (&mut self.large, WINDOW_BITS_MAX),
            false => (&mut self.small, WINDOW_BITS_MIN),
        };
        let level = Compression::new(self.level);
        let compress =
            slot.get_or_insert_with(|| Compress::new_with_window_bits(level, false, bits));
        compress.reset();
        clear(&mut self.out);
        self.out.reserve(payload.len() / 2 + 64);
        loop {
            let rest = &payload[in_usize(compress.total_in())..];
            compress
                .compress_vec(rest, &mut self.out, FlushCompress::Sync)
                .expect("a deflate stream that was just reset takes any input");
            let has_space = self.out.len() < self.out.capacity();
            if has_space && in_usize(compress.total_in()) == payload.len() {
                break;
            }
            self.out.reserve(self.out.len().max(64));
        }
        if self.out.ends_with(&TAIL) {
            self.out.truncate(self.out.len() - TAIL.len());
        }
        if self.out.is_empty() {
            // An empty message is one empty stored block (section 7.2.3.6).
            self.out.push(0);
        }
        &self.out
    }
}

/// Inflates whole messages with a window of 15 bits. Occupies about 48 KB, and the last output.
pub struct Inflater {
    inflate: Decompress,
    out: Vec<u8>,
}

impl Default for Inflater {
    fn default() -> Self {
        Inflater::new()
    }
}

impl Inflater {
    /// Creates an inflater.
    pub fn new() -> Self {
        Inflater { inflate: Decompress::new(false), out: Vec::new() }
    }

    /// Returns the message of a compressed payload. A small payload may inflate to a thousand times its size, so the
    /// limit `bytes_max` applies while the output grows.
    ///
    /// Returns [`WsError::InvalidDeflate`] for a stream that is damaged or cut short, and [`WsError::MessageTooBig`].
    pub fn inflate(&mut self, payload: &[u8], bytes_max: usize) -> Result<&[u8], WsError> {
        self.inflate.reset(false);
        clear(&mut self.out);
        self.out.reserve(payload.len().saturating_mul(3).clamp(64, bytes_max.max(64)));
        let mut rest = payload;
        while self.run(&mut rest, bytes_max)? {
            // A block may be marked as the last (section 7.2.3.4); a new stream follows it. Peers that end so add an
            // empty block, but the message is complete without it.
            if rest.is_empty() {
                return Ok(&self.out);
            }
            self.inflate.reset(false);
        }
        let mut rest = &TAIL_AND_END[..];
        match self.run(&mut rest, bytes_max)? && rest.is_empty() {
            true => Ok(&self.out),
            false => Err(WsError::InvalidDeflate),
        }
    }

    /// Inflates from `rest`, and returns false if it is empty, or true if the stream has ended.
    fn run(&mut self, rest: &mut &[u8], bytes_max: usize) -> Result<bool, WsError> {
        loop {
            let before = (self.inflate.total_in(), self.out.len());
            let status = self
                .inflate
                .decompress_vec(rest, &mut self.out, FlushDecompress::Sync)
                .map_err(|_| WsError::InvalidDeflate)?;
            *rest = &rest[in_usize(self.inflate.total_in() - before.0)..];
            if self.out.len() > bytes_max {
                return Err(WsError::MessageTooBig);
            }
            let has_space = self.out.len() < self.out.capacity();
            match status {
                Status::StreamEnd => return Ok(true),
                _ if rest.is_empty() && has_space => return Ok(false),
                _ if !has_space => self.out.reserve(self.out.len().clamp(64, 1 << 20)),
                _ if before == (self.inflate.total_in(), self.out.len()) => {
                    return Err(WsError::InvalidDeflate);
                }
                Status::Ok | Status::BufError => {}
            }
        }
    }
}

/// Converts a count of bytes in a slice.
#[expect(clippy::cast_possible_truncation, reason = "no slice is longer than a usize counts")]
fn in_usize(bytes: u64) -> usize {
    bytes as usize
}

fn clear(out: &mut Vec<u8>) {
    out.clear();
    out.shrink_to(BUFFER_BYTES_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7692, section 7.2.3.1.
    const HELLO: [u8; 7] = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];

    /// The text "Hello", compressed in a block with the last-block bit, without the empty block that follows it.
    const HELLO_LAST: [u8; 7] = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];

    #[test]
    fn the_standards_examples_inflate() {
        let mut inflater = Inflater::new();
        assert_eq!(inflater.inflate(&HELLO, 100).unwrap(), b"Hello");
        // RFC 7692, sections 7.2.3.3 to 7.2.3.6.
        let stored = [0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
        assert_eq!(inflater.inflate(&stored, 100).unwrap(), b"Hello");
        let last = [&HELLO_LAST[..], &[0]].concat();
        assert_eq!(inflater.inflate(&last, 100).unwrap(), b"Hello");
        let blocks = [0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
        assert_eq!(inflater.inflate(&blocks, 100).unwrap(), b"Hello");
        assert_eq!(inflater.inflate(&[0], 100).unwrap(), b"");
    }

    #[test]
    fn nothing_after_a_last_block_is_lost() {
        let mut inflater = Inflater::new();
        assert_eq!(inflater.inflate(&HELLO_LAST, 100).unwrap(), b"Hello");
        let two = [HELLO_LAST, HELLO].concat();
        assert_eq!(inflater.inflate(&two, 100).unwrap(), b"HelloHello");
        let bad = [&HELLO_LAST[..], &[0xff]].concat();
        assert_eq!(inflater.inflate(&bad, 100), Err(WsError::InvalidDeflate));
    }

    #[test]
    fn a_truncated_stream_is_an_error() {
        let text: Vec<u8> = (0..2000u32).flat_map(|n| (n * n).to_string().into_bytes()).collect();
        let packed = Deflater::new(6).compress(&text, 15).to_vec();
        let mut inflater = Inflater::new();
        assert_eq!(inflater.inflate(&packed, 1 << 20).unwrap(), text);
        // Without its last byte the payload is complete: that byte only begins the empty block.
        for end in 1..packed.len() - 1 {
            assert!(inflater.inflate(&packed[..end], 1 << 20).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_bomb_is_stopped_at_the_limit() {
        let mut deflater = Deflater::new(9);
        let bomb = deflater.compress(&vec![0; 10 << 20], 15).to_vec();
        assert!(bomb.len() < 20_000);
        let mut inflater = Inflater::new();
        assert_eq!(inflater.inflate(&bomb, 1 << 20), Err(WsError::MessageTooBig));
        assert!(inflater.out.capacity() <= 4 << 20);
        assert_eq!(inflater.inflate(&[0xff; 9], 1 << 20), Err(WsError::InvalidDeflate));
        assert_eq!(inflater.inflate(&bomb, (10 << 20) - 1), Err(WsError::MessageTooBig));
        assert_eq!(inflater.inflate(&bomb, 10 << 20).unwrap().len(), 10 << 20);
        assert_eq!(inflater.inflate(&HELLO, 5).unwrap(), b"Hello");
        assert!(inflater.out.capacity() <= BUFFER_BYTES_MAX);
        assert_eq!(inflater.inflate(&HELLO, 4), Err(WsError::MessageTooBig));
    }

    #[test]
    fn the_empty_message_is_one_zero_byte() {
        for bits in [9, 15] {
            assert_eq!(Deflater::new(6).compress(b"", bits), [0]);
        }
    }

    #[test]
    fn the_deflater_stays_within_a_small_window() {
        // Everything repeats, but at a distance beyond a small window.
        let far: Vec<u8> = (0..700u32).flat_map(|n| (n * n * 7919).to_be_bytes()).collect();
        let far = far.repeat(3);
        for level in 1..=9 {
            let mut deflater = Deflater::new(level);
            assert!(deflater.compress(&far, 15).len() < far.len() / 2);
            for bits in 9..15 {
                assert!(deflater.compress(&far, bits).len() > far.len() * 9 / 10);
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn compressed_data_inflates(
            mut bytes: Vec<u8>, times in 1usize..40, small: bool, level in 1u32..=9
        ) {
            bytes = bytes.repeat(times);
            let packed = Deflater::new(level).compress(&bytes, if small { 9 } else { 15 }).to_vec();
            let mut inflater = Inflater::new();
            proptest::prop_assert_eq!(inflater.inflate(&packed, bytes.len()), Ok(&bytes[..]));
        }

        #[test]
        fn noise_never_panics(bytes: Vec<u8>) {
            let mut inflater = Inflater::new();
            if let Ok(message) = inflater.inflate(&bytes, 1000) {
                proptest::prop_assert!(message.len() <= 1000);
            }
        }
    }
}

//! permessage-deflate (RFC 7692): raw deflate, each message by itself.
//!
//! Without context takeover one compressor and one decompressor serve all connections of a
//! thread.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::Error;

/// What a sync flush ends with, and a message leaves out (section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// The largest window, in bits.
pub const WINDOW_BITS_MAX: u8 = 15;

/// The smallest window that deflate can keep to, in bits.
pub const WINDOW_BITS_MIN: u8 = 9;

/// Compresses whole messages. Holds about 300 KB for each window size in use.
pub struct Deflater {
    level: u32,
    large: Option<Compress>,
    small: Option<Compress>,
    out: Vec<u8>,
}

impl Deflater {
    /// Level 1 (fast) to 9 (small).
    pub fn new(level: u32) -> Self {
        Deflater { level, large: None, small: None, out: Vec::new() }
    }

    /// The payload of a compressed message, for a peer that inflates with a window of so many
    /// bits: below 15, one of 9 is kept to.
    pub fn compress(&mut self, payload: &[u8], window_bits: u8) -> &[u8] {
        let (slot, bits) = match window_bits >= WINDOW_BITS_MAX {
            true => (&mut self.large, WINDOW_BITS_MAX),
            false => (&mut self.small, WINDOW_BITS_MIN),
        };
        let level = Compression::new(self.level);
        let compress =
            slot.get_or_insert_with(|| Compress::new_with_window_bits(level, false, bits));
        compress.reset();
        self.out.clear();
        self.out.reserve(payload.len() / 2 + 64);
        loop {
            let from = compress.total_in() as usize;
            // Deflate itself fails on wrong use only; a Vec always has more room to give.
            let done = compress.compress_vec(&payload[from..], &mut self.out, FlushCompress::Sync);
            let full = self.out.len() == self.out.capacity();
            if done.is_err() || (compress.total_in() as usize == payload.len() && !full) {
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

/// Inflates whole messages with a window of 15 bits. Holds about 48 KB.
pub struct Inflater {
    inflate: Decompress,
}

impl Default for Inflater {
    fn default() -> Self {
        Inflater::new()
    }
}

impl Inflater {
    /// A fresh one.
    pub fn new() -> Self {
        Inflater { inflate: Decompress::new(false) }
    }

    /// The message of a compressed payload, at most `bytes_max` of it: a small payload may stand
    /// for a thousand times its size, so it is counted while it grows.
    pub fn inflate(&mut self, payload: &[u8], bytes_max: usize) -> Result<Vec<u8>, Error> {
        self.inflate.reset(false);
        let mut out = Vec::with_capacity((payload.len() * 3).clamp(64, bytes_max.max(64)));
        for input in [payload, &TAIL] {
            let start = self.inflate.total_in();
            loop {
                let from = (self.inflate.total_in() - start) as usize;
                let before = (self.inflate.total_in(), out.len());
                let status = self
                    .inflate
                    .decompress_vec(&input[from..], &mut out, FlushDecompress::Sync)
                    .map_err(|_| Error::BadDeflate)?;
                if out.len() > bytes_max {
                    return Err(Error::MessageTooBig);
                }
                if status == Status::StreamEnd {
                    // A block may say that it is the last (section 7.2.3.5): the message is over,
                    // and what follows it would be of a stream that we don't keep.
                    return Ok(out);
                }
                let read_all = (self.inflate.total_in() - start) as usize == input.len();
                if read_all && out.len() < out.capacity() {
                    break;
                }
                if out.len() == out.capacity() {
                    out.reserve(out.len().clamp(64, 1 << 20));
                } else if before == (self.inflate.total_in(), out.len()) {
                    return Err(Error::BadDeflate);
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_examples_inflate() {
        let mut inflater = Inflater::new();
        // RFC 7692, sections 7.2.3.1 and 7.2.3.3 to 7.2.3.6.
        let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        assert_eq!(inflater.inflate(&hello, 100).unwrap(), b"Hello");
        let stored = [0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
        assert_eq!(inflater.inflate(&stored, 100).unwrap(), b"Hello");
        let last = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
        assert_eq!(inflater.inflate(&last, 100).unwrap(), b"Hello");
        let blocks = [0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
        assert_eq!(inflater.inflate(&blocks, 100).unwrap(), b"Hello");
        assert_eq!(inflater.inflate(&[0], 100).unwrap(), b"");
    }

    #[test]
    fn a_bomb_is_stopped_at_the_limit() {
        let mut deflater = Deflater::new(9);
        let bomb = deflater.compress(&vec![0; 10 << 20], 15).to_vec();
        assert!(bomb.len() < 20_000);
        let mut inflater = Inflater::new();
        assert_eq!(inflater.inflate(&bomb, 1 << 20), Err(Error::MessageTooBig));
        assert_eq!(inflater.inflate(&[0xff; 9], 1 << 20), Err(Error::BadDeflate));
        assert_eq!(inflater.inflate(&bomb, 10 << 20).unwrap().len(), 10 << 20);
    }

    #[test]
    fn the_empty_message_is_one_zero_byte() {
        assert_eq!(Deflater::new(6).compress(b"", 15), [0]);
    }

    proptest::proptest! {
        #[test]
        fn what_is_compressed_inflates(
            mut bytes: Vec<u8>, times in 1usize..40, small: bool, level in 1u32..=9
        ) {
            bytes = bytes.repeat(times);
            let packed = Deflater::new(level).compress(&bytes, if small { 9 } else { 15 }).to_vec();
            proptest::prop_assert_eq!(Inflater::new().inflate(&packed, bytes.len()), Ok(bytes));
        }

        #[test]
        fn noise_never_panics(bytes: Vec<u8>) {
            let _ = Inflater::new().inflate(&bytes, 1000);
        }
    }
}

//! The codecs with large tables, which connections share.

use crate::websocket::deflate::{Deflater, Inflater};

/// The codecs with large tables. One thread has one set for all its connections, and creates each codec on first use.
pub struct Codecs {
    deflate_level: u32,
    deflate_bytes_min: usize,
    deflater: Option<Box<Deflater>>,
    inflater: Option<Box<Inflater>>,
}

impl Codecs {
    /// Sets the compression level, 1 to 9, and the size in bytes below which messages stay uncompressed.
    pub fn new(deflate_level: u32, deflate_bytes_min: usize) -> Self {
        Codecs { deflate_level, deflate_bytes_min, deflater: None, inflater: None }
    }

    /// The compressor, if a message has enough bytes.
    pub fn deflater(&mut self, bytes: usize) -> Option<&mut Deflater> {
        if bytes < self.deflate_bytes_min {
            return None;
        }
        let level = self.deflate_level;
        Some(self.deflater.get_or_insert_with(|| Box::new(Deflater::new(level))))
    }

    /// The decompressor.
    pub fn inflater(&mut self) -> &mut Inflater {
        self.inflater.get_or_insert_with(|| Box::new(Inflater::new()))
    }
}

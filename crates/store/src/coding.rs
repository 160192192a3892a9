//! Encodes and decodes numbers and texts of records.

use crate::error::RowError;

/// Appends a varint: 7 bits per byte, the lowest first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The bytes that are left to decode.
pub(crate) struct Decoder<'a>(pub &'a [u8]);

impl<'a> Decoder<'a> {
    pub fn byte(&mut self) -> Result<u8, RowError> {
        let (&first, rest) = self.0.split_first().ok_or(RowError)?;
        self.0 = rest;
        Ok(first)
    }

    pub fn number(&mut self) -> Result<u64, RowError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(RowError);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(RowError)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], RowError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(RowError)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Reads a count of items, each of which takes at least one byte.
    pub fn count(&mut self) -> Result<usize, RowError> {
        let count = usize::try_from(self.number()?).map_err(|_| RowError)?;
        if count <= self.0.len() { Ok(count) } else { Err(RowError) }
    }

    pub fn text(&mut self) -> Result<&'a str, RowError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| RowError)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], RowError> {
        let length = self.count()?;
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(bytes)
    }
}

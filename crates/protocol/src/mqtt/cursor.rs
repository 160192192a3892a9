//! The fields of a packet, one after the other (MQTT 5.0, section 1.5).

use super::{MqttError, WriteError};

/// The unread rest of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn byte(&mut self) -> Result<u8, MqttError> {
        let (first, rest) = self.0.split_first().ok_or(MqttError::Truncated)?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn two(&mut self) -> Result<u16, MqttError> {
        let (two, rest) = self.0.split_first_chunk().ok_or(MqttError::Truncated)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*two))
    }

    pub fn four(&mut self) -> Result<u32, MqttError> {
        let (four, rest) = self.0.split_first_chunk().ok_or(MqttError::Truncated)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*four))
    }

    /// Reads a number of one to four bytes.
    pub fn variable(&mut self) -> Result<u32, MqttError> {
        match variable(self.0)? {
            Some((number, bytes)) if is_shortest(number, bytes) => {
                self.0 = &self.0[bytes..];
                Ok(number)
            }
            Some(_) => Err(MqttError::NotShortest),
            None => Err(MqttError::Truncated),
        }
    }

    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], MqttError> {
        let (consumed, rest) = self.0.split_at_checked(bytes).ok_or(MqttError::Truncated)?;
        self.0 = rest;
        Ok(consumed)
    }

    /// Reads bytes behind their length.
    pub fn binary(&mut self) -> Result<&'a [u8], MqttError> {
        let bytes = self.two()?.into();
        self.take(bytes)
    }

    /// Reads a text behind its length: well-formed UTF-8 without U+0000.
    pub fn text(&mut self) -> Result<&'a str, MqttError> {
        let text = simdutf8::basic::from_utf8(self.binary()?).map_err(|_| MqttError::Text)?;
        if memchr::memchr(0, text.as_bytes()).is_some() { Err(MqttError::Text) } else { Ok(text) }
    }

    /// Reads a packet identifier.
    pub fn packet_id(&mut self) -> Result<u16, MqttError> {
        match self.two()? {
            0 => Err(MqttError::PacketId),
            id => Ok(id),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that no bytes are left.
    pub fn end(&self) -> Result<(), MqttError> {
        if self.is_empty() { Ok(()) } else { Err(MqttError::TooLong) }
    }
}

/// Reads the number of one to four bytes at the beginning of `bytes`, and returns it with its size; `None` until it
/// is complete (MQTT 5.0, section 1.5.5; MQTT 3.1.1, section 2.2.3). [`is_shortest`] checks that the size is minimal.
pub(super) fn variable(bytes: &[u8]) -> Result<Option<(u32, usize)>, MqttError> {
    let mut number = 0;
    for at in 0..4 {
        let Some(byte) = bytes.get(at) else { return Ok(None) };
        number |= u32::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((number, at + 1)));
        }
    }
    Err(MqttError::Length)
}

/// Checks that a number takes no more bytes than it needs, as 5.0 requires.
pub(super) fn is_shortest(number: u32, bytes: usize) -> bool {
    variable_bytes(number as usize) == bytes
}

/// Appends a number of one to four bytes; it must be below 2^28.
pub(super) fn put_variable(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push((number & 0x7f) as u8);
}

/// The size of such a number, in bytes.
pub(super) fn variable_bytes(number: usize) -> usize {
    match number {
        ..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        _ => 4,
    }
}

/// Appends bytes behind their length.
pub(super) fn put_binary(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), WriteError> {
    let length = u16::try_from(bytes.len()).map_err(|_| WriteError::Field(bytes.len()))?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

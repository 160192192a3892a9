//! The frames between the two shards. All numbers are little endian.

use std::io;

/// Kinds of frames. Their numbers never change.
pub const HELLO: u16 = 1;
pub const ENGINE: u16 = 2;
pub const CONNECTIONS: u16 = 3;
pub const GONE: u16 = 4;
pub const OUTBOX: u16 = 5;
pub const OWED: u16 = 6;
pub const END: u16 = 7;
/// From the new shard: it has taken a frame.
pub const RECEIPT: u16 = 16;
/// From the new shard: it has everything.
pub const HAVE: u16 = 17;
/// From the new shard: the reason why it can't go on.
pub const ERROR: u16 = 18;

/// The number of a listener in [`HELLO`], which never changes.
pub const CLIENT: u8 = 0;
pub const MQTT: u8 = 1;
/// The number of a listener with TLS in [`HELLO`], which never changes.
pub const CLIENT_TLS: u8 = 2;
pub const MQTT_TLS: u8 = 3;

/// Flags of a connection in [`CONNECTIONS`]. The connection's descriptor goes with the frame.
pub const HAS_SOCKET: u8 = 1;
/// The connection has TLS: a piece with its state follows the record, empty if the client has sent nothing yet.
pub const HAS_TLS: u8 = 2;

/// Reads numbers and pieces one after the other.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, length: usize) -> io::Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(cut)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn u8(&mut self) -> io::Result<u8> {
        Ok(self.bytes(1)?[0])
    }

    pub fn u32(&mut self) -> io::Result<u32> {
        let bytes = self.bytes(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Reads a piece behind its length.
    pub fn piece(&mut self) -> io::Result<&'a [u8]> {
        let length = self.u32()? as usize;
        self.bytes(length)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends a piece behind its length.
pub fn push_piece(out: &mut Vec<u8>, piece: &[u8]) {
    out.extend_from_slice(&(piece.len() as u32).to_le_bytes());
    out.extend_from_slice(piece);
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a frame of the hand-over ends too early")
}

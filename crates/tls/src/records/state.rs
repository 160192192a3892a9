//! The state of a connection as bytes, for another process.

use crate::keys::{KEY_RECORDS_MAX, Keys};
use crate::records::{RECORDS_WITHOUT_DATA_MAX, Records};
use crate::suite::{Aead, KEY_BYTES_MAX, NONCE_BYTES, SECRET_BYTES_MAX, Version};

/// The version of the format. Only this one is written and read.
const FORMAT: u8 = 1;

/// Bytes of the longest export.
pub const EXPORT_BYTES_MAX: usize =
    6 + 8 + 2 * (8 + NONCE_BYTES + KEY_BYTES_MAX + SECRET_BYTES_MAX);

/// Bits of the flags.
const READ_CLOSED: u8 = 1;
const WRITE_CLOSED: u8 = 2;
const DECLINED_RENEGOTIATION: u8 = 4;
const FLAGS: u8 = READ_CLOSED | WRITE_CLOSED | DECLINED_RENEGOTIATION;

/// Why bytes are no state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// They have a format that this version does not know.
    #[error(
        "the other process has TLS connections in format {0}, and this version reads format 1 only"
    )]
    Format(u8),
    /// They are not what `export` writes.
    #[error("the state of a TLS connection from the other process is damaged")]
    Damaged,
}

impl Records {
    /// Appends the whole state for another process, at most [`EXPORT_BYTES_MAX`] bytes. The caller passes `pending`
    /// on itself.
    ///
    /// The keys are in plain text: the caller reserves the capacity first, so that growing leaves no copies in
    /// memory, and wipes the buffer. Once another process uses the keys, these records must send nothing more: two
    /// records with the same nonce reveal their text.
    pub fn export(&self, out: &mut Vec<u8>) {
        let version = match self.version {
            Version::Tls12 => 2,
            Version::Tls13 => 3,
        };
        let aead = match self.aead {
            Aead::Aes128Gcm => 1,
            Aead::Aes256Gcm => 2,
            Aead::ChaCha20Poly1305 => 3,
        };
        let mut flags = 0;
        for (bit, is_set) in [
            (READ_CLOSED, self.is_read_closed),
            (WRITE_CLOSED, self.is_write_closed),
            (DECLINED_RENEGOTIATION, self.has_declined_renegotiation),
        ] {
            if is_set {
                flags |= bit;
            }
        }
        let head = [FORMAT, version, aead, flags, self.without_data, self.key_update_bytes];
        out.extend_from_slice(&head);
        out.extend_from_slice(&self.blocks.to_be_bytes());
        for keys in [&self.read, &self.write] {
            out.extend_from_slice(&keys.sequence.to_be_bytes());
            out.extend_from_slice(&keys.iv);
            out.extend_from_slice(&keys.key[..self.aead.key_bytes()]);
            out.extend_from_slice(&keys.secret[..secret_bytes(self.version, self.aead)]);
        }
    }

    /// Reads bytes that `export` wrote.
    ///
    /// # Errors
    /// When the bytes are damaged, or of another format.
    pub fn import(bytes: &[u8]) -> Result<Self, ImportError> {
        let mut reader = Reader(bytes);
        let [format] = reader.array()?;
        if format != FORMAT {
            return Err(ImportError::Format(format));
        }
        let [version, aead, flags, without_data, key_update_bytes] = reader.array()?;
        let version = match version {
            2 => Version::Tls12,
            3 => Version::Tls13,
            _ => return Err(ImportError::Damaged),
        };
        let aead = match aead {
            1 => Aead::Aes128Gcm,
            2 => Aead::Aes256Gcm,
            3 => Aead::ChaCha20Poly1305,
            _ => return Err(ImportError::Damaged),
        };
        if flags & !FLAGS != 0 || without_data > RECORDS_WITHOUT_DATA_MAX || key_update_bytes > 4 {
            return Err(ImportError::Damaged);
        }
        let blocks = u64::from_be_bytes(reader.array()?);
        let (read, write) = (reader.keys(version, aead)?, reader.keys(version, aead)?);
        if !reader.0.is_empty() {
            return Err(ImportError::Damaged);
        }
        Ok(Records {
            read,
            write,
            blocks,
            version,
            aead,
            is_read_closed: flags & READ_CLOSED != 0,
            is_write_closed: flags & WRITE_CLOSED != 0,
            has_declined_renegotiation: flags & DECLINED_RENEGOTIATION != 0,
            without_data,
            key_update_bytes,
        })
    }
}

fn secret_bytes(version: Version, aead: Aead) -> usize {
    match version {
        Version::Tls12 => 0,
        Version::Tls13 => aead.secret_bytes(),
    }
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, bytes: usize) -> Result<&'b [u8], ImportError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(ImportError::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ImportError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(ImportError::Damaged)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn keys(&mut self, version: Version, aead: Aead) -> Result<Keys, ImportError> {
        let sequence = u64::from_be_bytes(self.array()?);
        // A key may seal some records beyond the limit: the key update, an alert.
        if sequence > 2 * KEY_RECORDS_MAX {
            return Err(ImportError::Damaged);
        }
        let iv: [u8; NONCE_BYTES] = self.array()?;
        let mut keys = Keys::new(self.take(aead.key_bytes())?, iv, sequence);
        let secret = self.take(secret_bytes(version, aead))?;
        keys.secret[..secret.len()].copy_from_slice(secret);
        Ok(keys)
    }
}

//! The records of an open connection.

mod error;
mod open;
mod seal;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::keys::Keys;
use crate::suite::{Aead, Version};

pub use error::RecordError;
pub use open::Opened;
pub use seal::WriteClosed;
pub use state::{EXPORT_BYTES_MAX, ImportError};

/// The limit on the bytes of data in a record (RFC 8446, 5.1).
pub const RECORD_DATA_BYTES_MAX: usize = 16_384;

/// Bytes of the longest record that is accepted, with its header (RFC 8446, 5.2). TLS 1.2 allows longer ones
/// (RFC 5246, 6.2.3), which no suite that the server offers needs.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + RECORD_DATA_BYTES_MAX + 256;

/// The limit on a client's records in a row without data: key updates, warnings, empty records. Data in either
/// direction resets the count.
pub const RECORDS_WITHOUT_DATA_MAX: u8 = 32;

/// The limit on the blocks of 16 bytes that one key of AES-GCM encrypts. RFC 8446, 5.5, allows 2^24.5 records of full
/// size; each has 1,025 blocks, the tag's included.
pub const KEY_BLOCKS_MAX: u64 = 1 << 34;

const HEADER_BYTES: usize = 5;

/// Content types (RFC 8446, B.1).
mod content {
    pub(super) const ALERT: u8 = 21;
    pub(super) const HANDSHAKE: u8 = 22;
    pub(super) const DATA: u8 = 23;
}

/// A `KeyUpdate` (RFC 8446, 4.6.3) without its last byte, which says whether the receiver must update its key, too.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];

/// The records of one connection in both directions, after its handshake.
///
/// They are two sets of keys (104 bytes each: sequence number, base of nonces, key, and in TLS 1.3 the traffic
/// secret) and 16 bytes for everything else. Nothing is on the heap. Keys are wiped on drop.
///
/// The caller sends the bytes that calls append to `out` in the order of the calls: the peer decrypts each record by
/// its position.
pub struct Records {
    read: Keys,
    write: Keys,
    /// Blocks that the key of `write` has encrypted, with AES-GCM.
    blocks: u64,
    version: Version,
    aead: Aead,
    /// Input is ignored: the peer has closed, or reading has failed.
    is_read_closed: bool,
    /// Nothing more is sent: this side has closed, or reading has failed.
    is_write_closed: bool,
    /// In TLS 1.2, the peer has requested a renegotiation, which was declined.
    has_declined_renegotiation: bool,
    /// Records in a row without data.
    without_data: u8,
    /// In TLS 1.3, the received bytes of a `KeyUpdate` whose rest is in the next record.
    key_update_bytes: u8,
}

const _: () = assert!(size_of::<Records>() <= 224);

impl Records {
    pub(crate) fn new(version: Version, aead: Aead, read: Keys, write: Keys) -> Self {
        Records {
            read,
            write,
            blocks: 0,
            version,
            aead,
            is_read_closed: false,
            is_write_closed: false,
            has_declined_renegotiation: false,
            without_data: 0,
            key_update_bytes: 0,
        }
    }

    /// The version of TLS.
    pub fn version(&self) -> Version {
        self.version
    }
}

impl fmt::Debug for Records {
    /// Prints no keys and no secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records")
            .field("version", &self.version)
            .field("aead", &self.aead)
            .field("read_sequence", &self.read.sequence)
            .field("write_sequence", &self.write.sequence)
            .field("is_read_closed", &self.is_read_closed)
            .field("is_write_closed", &self.is_write_closed)
            .finish_non_exhaustive()
    }
}

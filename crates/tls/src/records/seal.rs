//! Output: data, alerts, and key updates.

use crate::alert::Alert;
use crate::keys::KEY_RECORDS_MAX;
use crate::records::{
    HEADER_BYTES, KEY_BLOCKS_MAX, KEY_UPDATE, RECORD_DATA_BYTES_MAX, Records, content,
};
use crate::suite::{TAG_BYTES, Version};

/// The bytes of an AES-GCM nonce that each record of TLS 1.2 carries (RFC 5288, 3).
pub(super) const EXPLICIT_NONCE_BYTES: usize = 8;

/// The version in the header of records, also in TLS 1.3 (RFC 8446, 5.1).
const WIRE_VERSION: [u8; 2] = [3, 3];

/// Nothing more can be sent: `close` or `alert` was called, reading has failed, or a key of TLS 1.2, which can't be
/// updated, has reached its limit (256 GiB). `out` has the alert for the peer: the caller sends it, and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this side of the TLS connection is closed: nothing more can be sent on it")]
pub struct WriteClosed;

impl Records {
    /// Appends records with `plain` to `out`, as few as possible: none for no data.
    ///
    /// A key that has reached its limit is updated first, with one more record (RFC 8446, 5.5).
    ///
    /// # Errors
    /// When this side is closed. `out` may have a `close_notify`, but no byte of `plain`.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), WriteClosed> {
        if self.is_write_closed {
            return Err(WriteClosed);
        }
        if plain.is_empty() {
            return Ok(());
        }
        if self.is_key_exhausted() {
            match self.version {
                Version::Tls12 => {
                    self.close(out);
                    return Err(WriteClosed);
                }
                Version::Tls13 => self.update_write_key(out),
            }
        }
        for piece in plain.chunks(RECORD_DATA_BYTES_MAX) {
            self.seal_record(content::DATA, piece, out);
        }
        self.without_data = 0;
        Ok(())
    }

    /// Returns how many bytes `seal` would append now for this many bytes of data.
    pub fn sealed_len(&self, plain_bytes: usize) -> usize {
        if self.is_write_closed || plain_bytes == 0 {
            return 0;
        }
        let data =
            plain_bytes + plain_bytes.div_ceil(RECORD_DATA_BYTES_MAX) * self.overhead_bytes();
        match (self.is_key_exhausted(), self.version) {
            (false, _) => data,
            (true, Version::Tls12) => self.overhead_bytes() + 2,
            (true, Version::Tls13) => data + self.overhead_bytes() + KEY_UPDATE.len() + 1,
        }
    }

    /// Appends a `close_notify` to `out` and closes this side; the peer's records can still be opened. Later calls do
    /// nothing.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        self.alert(Alert::CLOSE_NOTIFY, out);
    }

    /// Appends an alert to `out` and closes this side. Does nothing if it is closed.
    pub fn alert(&mut self, alert: Alert, out: &mut Vec<u8>) {
        if self.is_write_closed {
            return;
        }
        let is_fatal = alert != Alert::CLOSE_NOTIFY;
        self.seal_record(content::ALERT, &[1 + u8::from(is_fatal), alert.0], out);
        self.is_write_closed = true;
    }

    /// Notifies the peer that the next record has a new key, and updates the key.
    pub(crate) fn update_write_key(&mut self, out: &mut Vec<u8>) {
        let [message_type, a, b, c] = KEY_UPDATE;
        self.seal_record(content::HANDSHAKE, &[message_type, a, b, c, 0], out);
        self.write.update(self.aead);
        self.blocks = 0;
    }

    /// Warns without closing, which only TLS 1.2 allows.
    pub(super) fn warn(&mut self, alert: Alert, out: &mut Vec<u8>) {
        if !self.is_write_closed {
            self.seal_record(content::ALERT, &[1, alert.0], out);
        }
    }

    fn is_key_exhausted(&self) -> bool {
        self.blocks >= KEY_BLOCKS_MAX || self.write.sequence >= KEY_RECORDS_MAX
    }

    /// Bytes of a record besides its content.
    fn overhead_bytes(&self) -> usize {
        let more = match self.version {
            Version::Tls12 if self.aead.is_gcm() => EXPLICIT_NONCE_BYTES,
            Version::Tls12 => 0,
            // The content type.
            Version::Tls13 => 1,
        };
        HEADER_BYTES + more + TAG_BYTES
    }

    /// Appends one record. `plain` has at most [`RECORD_DATA_BYTES_MAX`] bytes, but in tests.
    pub(crate) fn seal_record(&mut self, content_type: u8, plain: &[u8], out: &mut Vec<u8>) {
        let bytes = self.overhead_bytes() + plain.len();
        out.reserve(bytes);
        let [high, low] = wire_length(bytes - HEADER_BYTES);
        let nonce = self.write.nonce();
        if self.aead.is_gcm() {
            // One block for the incomplete last block, and one for the tag.
            self.blocks = self.blocks.saturating_add((plain.len() / 16) as u64 + 2);
        }
        let tag = match self.version {
            Version::Tls13 => {
                let header = [content::DATA, WIRE_VERSION[0], WIRE_VERSION[1], high, low];
                out.extend_from_slice(&header);
                let text = out.len();
                out.extend_from_slice(plain);
                out.push(content_type);
                self.write.seal(self.aead, nonce, &header, &mut out[text..])
            }
            Version::Tls12 => {
                out.extend_from_slice(&[content_type, WIRE_VERSION[0], WIRE_VERSION[1], high, low]);
                if self.aead.is_gcm() {
                    out.extend_from_slice(&nonce[4..]);
                }
                let text = out.len();
                out.extend_from_slice(plain);
                let additional_data = additional_data_tls12(
                    self.write.sequence,
                    content_type,
                    WIRE_VERSION,
                    plain.len(),
                );
                self.write.seal(self.aead, nonce, &additional_data, &mut out[text..])
            }
        };
        out.extend_from_slice(tag.as_ref());
    }
}

/// Returns the data besides the text that the tag protects in TLS 1.2 (RFC 5246, 6.2.3.3).
pub(super) fn additional_data_tls12(
    sequence: u64,
    content_type: u8,
    version: [u8; 2],
    text_bytes: usize,
) -> [u8; 13] {
    let mut data = [0; 13];
    data[..8].copy_from_slice(&sequence.to_be_bytes());
    data[8] = content_type;
    data[9..11].copy_from_slice(&version);
    data[11..].copy_from_slice(&wire_length(text_bytes));
    data
}

/// Returns the length field of a record. Two bytes are enough for every record.
fn wire_length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes()
}

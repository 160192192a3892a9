//! Input: records in pieces, and the messages in them.

use crate::alert::Alert;
use crate::records::seal::{EXPLICIT_NONCE_BYTES, additional_data_tls12};
use crate::records::{
    HEADER_BYTES, KEY_UPDATE, RECORD_BYTES_MAX, RECORD_DATA_BYTES_MAX, RECORDS_WITHOUT_DATA_MAX,
    RecordError, Records, content,
};
use crate::suite::{NONCE_BYTES, TAG_BYTES, Version};

/// The state of the input after a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The peer sends nothing more (`close_notify`). Bytes that follow are ignored (RFC 8446, 6.1).
    pub is_closed: bool,
}

impl Records {
    /// Decrypts the records that `bytes` continue, and appends their data to `plain`.
    ///
    /// `bytes` may end anywhere; they are overwritten. The beginning of a record stays in `pending`, at most
    /// [`RECORD_BYTES_MAX`] bytes: the caller passes it to the next call, and may drop it while it is empty. What
    /// the server must send is appended to `out`: the reply to a key update, or an alert.
    ///
    /// A call appends to `plain` at most as many bytes as `pending` and `bytes` have together.
    ///
    /// # Errors
    /// When the connection is over. `plain` has the data of the records before, and `out` the alert for the peer.
    /// Later calls ignore their input.
    pub fn open(
        &mut self,
        pending: &mut Vec<u8>,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Opened, RecordError> {
        let result = self.open_all(pending, bytes, plain, out);
        if let Err(error) = result {
            match error.alert() {
                Some(alert) => self.alert(alert, out),
                None => self.is_write_closed = true,
            }
            self.is_read_closed = true;
        }
        if self.is_read_closed {
            pending.clear();
        }
        result.map(|()| Opened { is_closed: self.is_read_closed })
    }

    fn open_all(
        &mut self,
        pending: &mut Vec<u8>,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let mut position = 0;
        while !pending.is_empty() && !self.is_read_closed {
            let record_bytes = self.record_bytes(pending)?;
            if let Some(bytes) = record_bytes.filter(|bytes| *bytes <= pending.len()) {
                self.open_record(&mut pending[..bytes], plain, out)?;
                pending.drain(..bytes);
            } else if position == bytes.len() {
                return Ok(());
            } else {
                // The rest of the header comes first: it has the record's length.
                let needed = record_bytes.unwrap_or(HEADER_BYTES);
                let taken = (needed - pending.len()).min(bytes.len() - position);
                append_pending(pending, &bytes[position..position + taken], needed);
                position += taken;
            }
        }
        while !self.is_read_closed {
            let rest = &mut bytes[position..];
            match self.record_bytes(rest)? {
                Some(record_bytes) if record_bytes <= rest.len() => {
                    self.open_record(&mut rest[..record_bytes], plain, out)?;
                    position += record_bytes;
                }
                needed => {
                    append_pending(pending, rest, needed.unwrap_or(HEADER_BYTES));
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the length of the record that begins here; `None` before its header is complete.
    fn record_bytes(&self, bytes: &[u8]) -> Result<Option<usize>, RecordError> {
        let &[content_type, _, _, high, low, ..] = bytes else { return Ok(None) };
        let is_expected = match self.version {
            // Encrypted records look like data, and all are encrypted after the handshake, so a plain
            // `change_cipher_spec` comes too late (RFC 8446, 5).
            Version::Tls13 => content_type == content::DATA,
            Version::Tls12 => {
                matches!(content_type, content::ALERT | content::HANDSHAKE | content::DATA)
            }
        };
        if !is_expected {
            return Err(RecordError::UnexpectedMessage);
        }
        match HEADER_BYTES + usize::from(u16::from_be_bytes([high, low])) {
            bytes if bytes > RECORD_BYTES_MAX => Err(RecordError::RecordOverflow),
            bytes => Ok(Some(bytes)),
        }
    }

    fn open_record(
        &mut self,
        record: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let (content_type, text) = match self.version {
            Version::Tls12 => self.decrypt_tls12(record)?,
            Version::Tls13 => self.decrypt_tls13(record)?,
        };
        if content_type == content::DATA && !text.is_empty() {
            self.without_data = 0;
        } else if self.without_data == RECORDS_WITHOUT_DATA_MAX {
            return Err(RecordError::TooManyWithoutData);
        } else {
            self.without_data += 1;
        }
        // No other record may come between the parts of a message (RFC 8446, 5.1).
        if self.key_update_bytes > 0 && content_type != content::HANDSHAKE {
            return Err(RecordError::UnexpectedMessage);
        }
        match (content_type, self.version) {
            (content::DATA, _) => {
                plain.extend_from_slice(text);
                Ok(())
            }
            (content::ALERT, _) => self.on_alert(text),
            (content::HANDSHAKE, Version::Tls12) => self.on_renegotiation(text, out),
            (content::HANDSHAKE, Version::Tls13) => self.on_key_update(text, out),
            _ => Err(RecordError::UnexpectedMessage),
        }
    }

    fn decrypt_tls13<'r>(&mut self, record: &'r mut [u8]) -> Result<(u8, &'r [u8]), RecordError> {
        let (header, text) = record.split_at_mut(HEADER_BYTES);
        let nonce = self.read.nonce();
        let opened = self.read.open(self.aead, nonce, header, text);
        let text = opened.map_err(|_| RecordError::BadRecordMac)?;
        if text.len() > RECORD_DATA_BYTES_MAX + 1 {
            return Err(RecordError::RecordOverflow);
        }
        // The content type is the last byte that is not 0; zeros behind it are padding (RFC 8446, 5.4).
        let end = text.iter().rposition(|byte| *byte != 0).ok_or(RecordError::UnexpectedMessage)?;
        Ok((text[end], &text[..end]))
    }

    fn decrypt_tls12<'r>(&mut self, record: &'r mut [u8]) -> Result<(u8, &'r [u8]), RecordError> {
        let (content_type, version) = (record[0], [record[1], record[2]]);
        let mut text = &mut record[HEADER_BYTES..];
        let mut nonce = self.read.nonce();
        if self.aead.is_gcm() {
            let (explicit, rest) =
                text.split_at_mut_checked(EXPLICIT_NONCE_BYTES).ok_or(RecordError::BadRecordMac)?;
            nonce[..NONCE_BYTES - EXPLICIT_NONCE_BYTES]
                .copy_from_slice(&self.read.iv[..NONCE_BYTES - EXPLICIT_NONCE_BYTES]);
            nonce[NONCE_BYTES - EXPLICIT_NONCE_BYTES..].copy_from_slice(explicit);
            text = rest;
        }
        let text_bytes = text.len().checked_sub(TAG_BYTES).ok_or(RecordError::BadRecordMac)?;
        if text_bytes > RECORD_DATA_BYTES_MAX {
            return Err(RecordError::RecordOverflow);
        }
        let additional_data =
            additional_data_tls12(self.read.sequence, content_type, version, text_bytes);
        let opened = self.read.open(self.aead, nonce, &additional_data, text);
        Ok((content_type, opened.map_err(|_| RecordError::BadRecordMac)?))
    }

    /// TLS 1.3 ignores the level, and all alerts but one end the connection (RFC 8446, 6). TLS 1.2 has warnings
    /// (RFC 5246, 7.2).
    fn on_alert(&mut self, text: &[u8]) -> Result<(), RecordError> {
        let &[level, description] = text else {
            // RFC 8446, 5.4, has a separate error for an empty alert.
            return Err(match text.is_empty() {
                true => RecordError::UnexpectedMessage,
                false => RecordError::DecodeError,
            });
        };
        match (Alert(description), self.version, level) {
            (Alert::CLOSE_NOTIFY, ..) => self.is_read_closed = true,
            (Alert::USER_CANCELED, Version::Tls13, _) | (_, Version::Tls12, 1) => {}
            (alert, Version::Tls13, _) | (alert, Version::Tls12, 2) => {
                return Err(RecordError::Alert(alert));
            }
            (_, Version::Tls12, _) => return Err(RecordError::IllegalParameter),
        }
        Ok(())
    }

    /// Updates the key of the input, and that of the output if the peer requests it (RFC 8446, 4.6.3). A client may
    /// send no other handshake message now. The message may span records, but nothing may follow it in its record
    /// (5.1).
    fn on_key_update(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        let before = usize::from(self.key_update_bytes);
        let Some(last) = text.last() else { return Err(RecordError::UnexpectedMessage) };
        for (index, (byte, expected)) in text.iter().zip(&KEY_UPDATE[before..]).enumerate() {
            if byte != expected {
                let is_message_type = before + index == 0;
                return Err(match is_message_type {
                    true => RecordError::UnexpectedMessage,
                    false => RecordError::DecodeError,
                });
            }
        }
        match before + text.len() {
            bytes @ 0..5 => {
                self.key_update_bytes = bytes as u8;
                return Ok(());
            }
            5 => {}
            _ => return Err(RecordError::UnexpectedMessage),
        }
        self.key_update_bytes = 0;
        let is_requested = match last {
            0 => false,
            1 => true,
            _ => return Err(RecordError::IllegalParameter),
        };
        self.read.update(self.aead);
        if is_requested && !self.is_write_closed {
            self.update_write_key(out);
        }
        Ok(())
    }

    /// Declines a renegotiation (RFC 9325, 3.5) with a warning, and the connection goes on. A second request ends the
    /// connection: each request makes the server encrypt a reply.
    fn on_renegotiation(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        match text {
            [1, a, b, c, hello @ ..]
                if u32::from_be_bytes([0, *a, *b, *c]) as usize == hello.len()
                    && !self.has_declined_renegotiation =>
            {
                self.has_declined_renegotiation = true;
                self.warn(Alert::NO_RENEGOTIATION, out);
                Ok(())
            }
            _ => Err(RecordError::UnexpectedMessage),
        }
    }
}

/// Appends part of a record of `record_bytes`. A header alone is no reason to allocate the whole record, so the
/// capacity doubles as bytes arrive, and never exceeds the record.
fn append_pending(pending: &mut Vec<u8>, bytes: &[u8], record_bytes: usize) {
    let needed = pending.len() + bytes.len();
    if needed > pending.capacity() {
        let capacity = needed.max(pending.capacity() * 2).min(record_bytes.max(needed));
        pending.reserve_exact(capacity - pending.len());
    }
    pending.extend_from_slice(bytes);
}

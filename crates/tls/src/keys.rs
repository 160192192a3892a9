//! The keys that protect the records of one direction, and how TLS 1.3 derives them from secrets.

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{KeyType, Prk};
use zeroize::Zeroize;

use crate::suite::{Aead, KEY_BYTES_MAX, NONCE_BYTES, SECRET_BYTES_MAX};

/// The limit on the records that one key protects. Sequence numbers reach further, so none wraps and no nonce is used
/// twice (RFC 8446, 5.3).
pub(crate) const KEY_RECORDS_MAX: u64 = 1 << 60;

/// The keys of one direction: 104 bytes, nothing on the heap, wiped on drop. (A move may leave a copy on the stack,
/// which nothing wipes.)
///
/// Every use of the keys for a record expands the key again, which takes about 0.14 µs. A stored expanded key would
/// take 630 bytes of memory for as long as the connection is open, and most connections are idle.
pub(crate) struct Keys {
    /// The sequence number of the next record.
    pub(crate) sequence: u64,
    pub(crate) iv: [u8; NONCE_BYTES],
    pub(crate) key: [u8; KEY_BYTES_MAX],
    /// In TLS 1.3, the traffic secret. The next keys are derived from it.
    pub(crate) secret: [u8; SECRET_BYTES_MAX],
}

impl Keys {
    /// Keys without a secret (TLS 1.2).
    pub(crate) fn new(key: &[u8], iv: [u8; NONCE_BYTES], sequence: u64) -> Self {
        let mut keys =
            Keys { sequence, iv, key: [0; KEY_BYTES_MAX], secret: [0; SECRET_BYTES_MAX] };
        keys.key[..key.len()].copy_from_slice(key);
        keys
    }

    /// Keys of a traffic secret (RFC 8446, 7.3).
    pub(crate) fn with_secret(aead: Aead, secret: &[u8], sequence: u64) -> Self {
        let mut keys = Keys::new(&[], [0; NONCE_BYTES], sequence);
        keys.secret[..secret.len()].copy_from_slice(secret);
        keys.derive(aead);
        keys
    }

    /// Replaces the keys by the next ones (RFC 8446, 7.2). The old keys can't be computed from the new ones.
    pub(crate) fn update(&mut self, aead: Aead) {
        let mut next = [0; SECRET_BYTES_MAX];
        let bytes = aead.secret_bytes();
        expand_label(aead, &self.secret[..bytes], "traffic upd", &mut next[..bytes]);
        self.secret = next;
        next.zeroize();
        self.derive(aead);
        self.sequence = 0;
    }

    fn derive(&mut self, aead: Aead) {
        let secret = &self.secret[..aead.secret_bytes()];
        expand_label(aead, secret, "key", &mut self.key[..aead.key_bytes()]);
        expand_label(aead, secret, "iv", &mut self.iv);
    }

    /// Returns the nonce of the next record (RFC 8446, 5.3; RFC 7905, 2). Each nonce differs, because each sequence
    /// number does.
    pub(crate) fn nonce(&self) -> [u8; NONCE_BYTES] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    /// Encrypts `text` in place, and returns the tag that belongs behind it. Callers replace a key before it has sealed
    /// [`KEY_RECORDS_MAX`] records.
    pub(crate) fn seal(
        &mut self,
        aead: Aead,
        nonce: [u8; NONCE_BYTES],
        additional_data: &[u8],
        text: &mut [u8],
    ) -> Tag {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let additional_data = Aad::from(additional_data);
        let tag = self
            .expanded(aead)
            .and_then(|key| key.seal_in_place_separate_tag(nonce, additional_data, text))
            .expect(
                "the key has the length of its algorithm, and a record is shorter than its limit",
            );
        self.sequence += 1;
        tag
    }

    /// Verifies and decrypts `text`, which ends with a tag, in place.
    pub(crate) fn open<'t>(
        &mut self,
        aead: Aead,
        nonce: [u8; NONCE_BYTES],
        additional_data: &[u8],
        text: &'t mut [u8],
    ) -> Result<&'t mut [u8], Unspecified> {
        if self.sequence >= KEY_RECORDS_MAX {
            return Err(Unspecified);
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.expanded(aead)?.open_in_place(nonce, Aad::from(additional_data), text)?;
        self.sequence += 1;
        Ok(opened)
    }

    fn expanded(&self, aead: Aead) -> Result<LessSafeKey, Unspecified> {
        UnboundKey::new(aead.algorithm(), &self.key[..aead.key_bytes()]).map(LessSafeKey::new)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.iv.zeroize();
        self.key.zeroize();
        self.secret.zeroize();
    }
}

struct OutputBytes(usize);

impl KeyType for OutputBytes {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446, 7.1).
fn expand_label(aead: Aead, secret: &[u8], label: &str, out: &mut [u8]) {
    const PREFIX: &str = "tls13 ";
    let length = u16::try_from(out.len()).unwrap_or(u16::MAX).to_be_bytes();
    let label_length = [u8::try_from(PREFIX.len() + label.len()).unwrap_or(u8::MAX)];
    let info = [&length, &label_length[..], PREFIX.as_bytes(), label.as_bytes(), &[0]];
    Prk::new_less_safe(aead.hkdf(), secret)
        .expand(&info, OutputBytes(out.len()))
        .and_then(|output| output.fill(out))
        .expect("no key is longer than 255 hashes");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8448, 3: the server derives its "write traffic keys for application data".
    #[test]
    fn keys_are_derived_from_a_secret_as_in_rfc_8448() {
        let secret = [
            0xa1, 0x1a, 0xf9, 0xf0, 0x55, 0x31, 0xf8, 0x56, 0xad, 0x47, 0x11, 0x6b, 0x45, 0xa9,
            0x50, 0x32, 0x82, 0x04, 0xb4, 0xf4, 0x4b, 0xfb, 0x6b, 0x3a, 0x4b, 0x4f, 0x1f, 0x3f,
            0xcb, 0x63, 0x16, 0x43,
        ];
        let keys = Keys::with_secret(Aead::Aes128Gcm, &secret, 0);
        let key = [
            0x9f, 0x02, 0x28, 0x3b, 0x6c, 0x9c, 0x07, 0xef, 0xc2, 0x6b, 0xb9, 0xf2, 0xac, 0x92,
            0xe3, 0x56,
        ];
        assert_eq!(keys.key[..16], key);
        let iv = [0xcf, 0x78, 0x2b, 0x88, 0xdd, 0x83, 0x54, 0x9a, 0xad, 0xf1, 0xe9, 0x84];
        assert_eq!(keys.iv, iv);
    }

    #[test]
    fn the_sequence_number_makes_the_nonce() {
        let keys = Keys::new(&[1; 16], [0xff; NONCE_BYTES], 0x0102_0304_0506_0708);
        let expected = [0xff, 0xff, 0xff, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0xfa, 0xf9, 0xf8, 0xf7];
        assert_eq!(keys.nonce(), expected);
    }
}

//! The token of a long-poll session: it identifies the session and is signed, so that a client can't guess another's.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use model::{ConnectionId, NodeId};

/// The key that signs tokens. It is the node's own and never printed. Tokens of another node or an earlier run are
/// invalid: their sessions are gone.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

const NAME_BYTES: usize = 14;
/// Half of the hash is enough against guessing (RFC 2104, section 5).
const SIGNATURE_BYTES: usize = 16;

impl Key {
    fn mac(&self, name: &[u8]) -> Hmac<Sha256> {
        // HMAC takes keys of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        mac.update(b"throng long-poll session");
        mac.update(name);
        mac
    }

    /// The token of a session.
    pub fn sign(&self, session: ConnectionId) -> String {
        let mut bytes = [0; NAME_BYTES + SIGNATURE_BYTES];
        bytes[..2].copy_from_slice(&session.shard.to_be_bytes());
        bytes[2..6].copy_from_slice(&session.slot.to_be_bytes());
        bytes[6..10].copy_from_slice(&session.serial.to_be_bytes());
        bytes[10..NAME_BYTES].copy_from_slice(&session.node.0.to_be_bytes());
        let signature = self.mac(&bytes[..NAME_BYTES]).finalize().into_bytes();
        bytes[NAME_BYTES..].copy_from_slice(&signature[..SIGNATURE_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Returns the session of a token; `None` if this key did not sign it.
    pub fn verify(&self, token: &str) -> Option<ConnectionId> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let bytes: &[u8; NAME_BYTES + SIGNATURE_BYTES] = bytes.as_slice().try_into().ok()?;
        let (name, signature) = bytes.split_at(NAME_BYTES);
        // This comparison takes constant time.
        self.mac(name).verify_truncated_left(signature).ok()?;
        Some(ConnectionId {
            shard: u16::from_be_bytes([name[0], name[1]]),
            slot: u32::from_be_bytes([name[2], name[3], name[4], name[5]]),
            serial: u32::from_be_bytes([name[6], name[7], name[8], name[9]]),
            node: NodeId(u32::from_be_bytes([name[10], name[11], name[12], name[13]])),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_that_signed_a_token_reads_it() {
        let key = Key([7; 32]);
        let session =
            ConnectionId { node: model::NodeId(9), shard: 3, slot: 70_000, serial: u32::MAX };
        let token = key.sign(session);
        assert_eq!(key.verify(&token), Some(session));
        assert_eq!(Key([8; 32]).verify(&token), None);
        for at in 0..token.len() {
            let mut other = token.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            assert_eq!(key.verify(&other), None, "{other}");
        }
        for bad in ["", "x", "=", &token[1..], &format!("{token}AA")] {
            assert_eq!(key.verify(bad), None);
        }
        assert_eq!(format!("{key:?}"), "Key");
    }
}

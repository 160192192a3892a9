//! Keys that verify signatures.

use std::fmt;
use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{AlgorithmFamily, DecodingKey};

use crate::Algorithm;

/// Bytes of a shared key, at least: a shorter one could be guessed.
pub const HMAC_KEY_BYTES_MIN: usize = 32;

/// Keys of one set that are used. Those behind them are ignored.
const SET_KEYS_MAX: usize = 64;

/// A key, with the algorithms that it may be used for.
#[derive(Clone)]
pub struct Key {
    /// Its name, which a token's header may give (`kid`).
    id: Option<Box<str>>,
    /// The key counts for tokens of this issuer only.
    pub(crate) issuer: Option<Arc<str>>,
    algorithms: Vec<Algorithm>,
    pub(crate) decoding: DecodingKey,
}

impl fmt::Debug for Key {
    /// Prints no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .field("issuer", &self.issuer)
            .field("algorithms", &self.algorithms)
            .finish_non_exhaustive()
    }
}

/// Why something is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is a shared key that could be guessed.
    #[error(
        "a shared key must have at least {HMAC_KEY_BYTES_MIN} bytes: `openssl rand -hex 32` makes \
         one"
    )]
    Short,
    /// It is a public key where a secret belongs.
    #[error(
        "this is a key in PEM, which may be public: name its file in auth.public_key_files instead"
    )]
    PublicAsSecret,
    /// It is a private key where a public one belongs.
    #[error(
        "this is a private key, which signs tokens: this server needs only the public key \
         (`openssl pkey -in private.pem -pubout -out public.pem`)"
    )]
    Private,
    /// Tokens can't be signed with it.
    #[error(
        "this is not a PEM public key that can verify tokens: use RSA, EC (P-256, P-384) or Ed25519"
    )]
    Unknown,
    /// A set of keys can't be read.
    #[error("this is not a JSON Web Key Set: {0}")]
    Set(String),
    /// No key of a set can be used.
    #[error("this set has no key that can verify tokens")]
    Empty,
}

impl Key {
    /// A key that the application and this server share, for the algorithms `HS…`.
    ///
    /// # Errors
    /// When it is short, or a key in PEM, which others may know.
    pub fn shared(secret: &str) -> Result<Self, KeyError> {
        if secret.trim_start().starts_with("-----BEGIN") {
            return Err(KeyError::PublicAsSecret);
        }
        if secret.len() < HMAC_KEY_BYTES_MIN {
            return Err(KeyError::Short);
        }
        Ok(Key::of(DecodingKey::from_secret(secret.as_bytes())))
    }

    /// A public key in PEM.
    ///
    /// # Errors
    /// When it is none.
    pub fn public(pem: &str) -> Result<Self, KeyError> {
        if pem.contains("PRIVATE KEY-----") {
            return Err(KeyError::Private);
        }
        let pem = pem.as_bytes();
        let decoding = DecodingKey::from_rsa_pem(pem)
            .or_else(|_| DecodingKey::from_ec_pem(pem))
            .or_else(|_| DecodingKey::from_ed_pem(pem));
        decoding.map(Key::of).map_err(|_| KeyError::Unknown)
    }

    /// Reads a key of a set; `None` for one that is not for signatures, that is shared, or of a kind that is not
    /// supported.
    fn of_set(jwk: &Jwk) -> Option<Self> {
        let common = &jwk.common;
        if common.public_key_use.as_ref().is_some_and(|it| *it != PublicKeyUse::Signature) {
            return None;
        }
        let curves = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => None,
            AlgorithmParameters::EllipticCurve(it) => Some(&it.curve),
            AlgorithmParameters::OctetKeyPair(it) => Some(&it.curve),
            // A shared key that is published is no secret.
            AlgorithmParameters::OctetKey(_) | AlgorithmParameters::Other(_) | _ => return None,
        };
        let mut key = Key::of(DecodingKey::from_jwk(jwk).ok()?);
        key.algorithms.retain(|algorithm| match curves {
            Some(EllipticCurve::P256) => algorithm.name() == "ES256",
            Some(EllipticCurve::P384) => algorithm.name() == "ES384",
            Some(EllipticCurve::Ed25519) => algorithm.name() == "EdDSA",
            Some(_) => false,
            None => true,
        });
        if let Some(named) = common.key_algorithm {
            let named = format!("{named:?}");
            key.algorithms.retain(|algorithm| algorithm.name() == named);
        }
        key.id = common.key_id.as_deref().map(Box::from);
        (!key.algorithms.is_empty()).then_some(key)
    }

    fn of(decoding: DecodingKey) -> Self {
        let family = decoding.family();
        let algorithms = Algorithm::ALL.into_iter().filter(|it| it.family() == family).collect();
        Key { id: None, issuer: None, algorithms, decoding }
    }

    /// True if a token with this header may be signed with it: the algorithms agree, and the names, if both have
    /// one.
    pub(crate) fn fits(&self, algorithm: Algorithm, id: Option<&str>) -> bool {
        let named = match (&self.id, id) {
            (Some(own), Some(id)) => **own == *id,
            (None, _) | (Some(_), None) => true,
        };
        named && self.algorithms.contains(&algorithm)
    }

    /// True if it has this name.
    pub(crate) fn is_named(&self, id: &str) -> bool {
        self.id.as_deref() == Some(id)
    }

    /// The algorithms that it is used for.
    pub fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }

    /// True for a key that the application and this server share.
    pub fn is_shared(&self) -> bool {
        self.decoding.family() == AlgorithmFamily::Hmac
    }
}

/// The keys of an issuer.
#[derive(Clone, Debug, Default)]
pub struct KeySet(pub(crate) Vec<Key>);

impl KeySet {
    /// Reads a JSON Web Key Set (RFC 7517, section 5). Keys that can't be used are ignored.
    ///
    /// # Errors
    /// When it is none, or has no key that can be used.
    pub fn read(json: &[u8]) -> Result<Self, KeyError> {
        #[derive(serde::Deserialize)]
        struct Set {
            keys: Vec<serde_json::Value>,
        }
        let set: Set =
            serde_json::from_slice(json).map_err(|error| KeyError::Set(error.to_string()))?;
        let read = |value| serde_json::from_value::<Jwk>(value).ok();
        let keys = set.keys.into_iter().filter_map(read).filter_map(|jwk| Key::of_set(&jwk));
        let keys: Vec<Key> = keys.take(SET_KEYS_MAX).collect();
        if keys.is_empty() { Err(KeyError::Empty) } else { Ok(KeySet(keys)) }
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if it has no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

//! Makes tokens, for an operator who tries something, and for tests. Applications make their own.

use jsonwebtoken::{EncodingKey, Header};
use serde_json::Value;

use crate::Algorithm;

/// Signs tokens.
pub struct Signer {
    key: EncodingKey,
    algorithm: Algorithm,
    /// The key's name, which goes into the header.
    key_id: Option<String>,
}

/// Why a token is not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The key is not for this algorithm.
    #[error("this is not a private key in PEM for {0}")]
    Key(Algorithm),
    /// The library reported an error.
    #[error("the token could not be signed: {0}")]
    Sign(String),
}

impl Signer {
    /// Makes a signer with a shared key, for the algorithms `HS…`, or a private one in PEM for the others.
    ///
    /// # Errors
    /// When the key is not for the algorithm.
    pub fn new(key: &str, algorithm: Algorithm, key_id: Option<String>) -> Result<Self, SignError> {
        use jsonwebtoken::AlgorithmFamily as Family;
        let pem = key.as_bytes();
        let read = match algorithm.family() {
            Family::Hmac => Ok(EncodingKey::from_secret(pem)),
            Family::Rsa => EncodingKey::from_rsa_pem(pem),
            Family::Ec => EncodingKey::from_ec_pem(pem),
            Family::Ed => EncodingKey::from_ed_pem(pem),
        };
        let key = read.map_err(|_| SignError::Key(algorithm))?;
        Ok(Signer { key, algorithm, key_id })
    }

    /// Returns the algorithm that a private key in PEM is for, the first of its kind.
    pub fn algorithm_of(pem: &str) -> Option<Algorithm> {
        let names = ["RS256", "ES256", "ES384", "EdDSA"];
        let known = names.iter().filter_map(|name| name.parse::<Algorithm>().ok());
        known
            .filter_map(|algorithm| Signer::new(pem, algorithm, None).ok())
            .find(|signer| signer.sign(&Value::Null).is_ok())
            .map(|signer| signer.algorithm)
    }

    /// Signs a token with these claims.
    ///
    /// # Errors
    /// When the key can't sign in this way.
    pub fn sign(&self, claims: &Value) -> Result<String, SignError> {
        let mut header = Header::new(self.algorithm.inner());
        header.kid.clone_from(&self.key_id);
        jsonwebtoken::encode(&header, claims, &self.key)
            .map_err(|error| SignError::Sign(error.to_string()))
    }
}

/// Reads the header and the claims of any token, without a check.
pub fn read_unverified(token: &str) -> Option<(Value, Value)> {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let mut parts = token.trim().split('.').map(|part| URL_SAFE_NO_PAD.decode(part));
    let mut part = || parts.next()?.ok().and_then(|json| serde_json::from_slice(&json).ok());
    Some((part()?, part()?))
}

//! Tokens, their claims, and key sets.

use std::sync::{Arc, LazyLock};

use ::token::{Authority, INFO_BYTES_MAX, Key, KeySet, PATTERNS_MAX, Settings, Signer};
use auth::{Authenticator, Grants};
use model::name::{NAME_BYTES_MAX, check_name};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

const NOW_S: u64 = 1_800_000_000;

static SIGNER: LazyLock<Signer> = LazyLock::new(|| {
    let algorithm = "HS256".parse().expect("a known algorithm");
    Signer::new(SECRET, algorithm, None).expect("any text is a key")
});

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    let keys = vec![Key::shared(SECRET).expect("a key of enough bytes")];
    let settings = Settings { keys, ..Settings::default() };
    Authority::new(settings, Arc::default(), Arc::default(), Arc::default())
});

/// Reads a token, a key set, a public key, and claims, which it signs: no token is valid without the key's signature,
/// and the grants of claims are within the limits.
pub fn token(data: &[u8]) {
    let text = &*String::from_utf8_lossy(data);
    assert!(AUTHORITY.verify(text, NOW_S).is_err());
    assert!(AUTHORITY.verify_topic(text, NOW_S).is_err());
    let _ = (KeySet::read(text.as_bytes()), Key::public(text));
    let Ok(claims) = serde_json::from_str(text) else { return };
    let Ok(signed) = SIGNER.sign(&claims) else { return };
    let _ = AUTHORITY.verify_topic(&signed, NOW_S);
    let Ok(verified) = AUTHORITY.verify(&signed, NOW_S) else { return };
    assert!(verified.users.iter().all(|user| check_name(user).is_ok()));
    assert!(verified.expires.is_none_or(|expires| expires > NOW_S));
    assert!(verified.info.is_none_or(|info| info.starts_with('{') && info.len() <= INFO_BYTES_MAX));
    if let Grants::Patterns(patterns) = &*verified.grants {
        for list in [&patterns.subscribe, &patterns.publish, &patterns.presence, &patterns.history]
        {
            assert!(list.len() <= PATTERNS_MAX);
            assert!(list.iter().all(|pattern| pattern.len() <= NAME_BYTES_MAX));
        }
    }
}

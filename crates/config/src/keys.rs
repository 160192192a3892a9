//! The keys of a table of `[[keys]]`, a key of the API.

use std::fmt;

use crate::Value;
use crate::setting::{Kind, MANY, TIB};
use crate::tables::Absent::{Required, Unset};
use crate::tables::table_keys;
use crate::typed::Typed;

use Kind::{Bytes, Hash, List, Number, TextBytes, Time};

/// Bytes of a key's name, at most.
pub(crate) const NAME_BYTES_MAX: usize = 64;

// A line is: key, type, values, and the effect of a missing key; for a limit also as in the table of settings.
table_keys! {
    /// All keys of a table of `[[keys]]`.
    KEY_KEYS;
    /// A key of the API: what it may be used for, and how it is recognised.
    KeyRule;
    /// Name of the key in logs and metrics: letters, digits, '-', '_' and '.'.
    name: String = TextBytes(1, NAME_BYTES_MAX as u64), Required(r#""billing""#);
    /// SHA-256 of the key, as "throng key new" prints it. A key has 256 random bits, which no attacker finds by trying, so a hash that is slow to compute would protect nothing more.
    hash: KeyHash = Hash, Required(r#""sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08""#);
    /// What the key permits: admin is everything; read is all that changes nothing; publish:PATTERN publishes to topics (publish:room:*), to users (publish:@alice, publish:@*), and publish:* to everyone, too.
    scopes: Vec<String> = List, Required(r#"["publish:room:*", "read"]"#);
    /// When the key becomes invalid: a date, which begins at midnight UTC, or a time with its offset.
    expires: Option<u64> = Time, Unset(r#""2031-01-01""#);
    /// Calls with this key in a second, each command of a batch included; the server rejects more (429, rate_limited). 0: no limit. Left out: limits.commands_per_second_per_key_max.
    commands_per_second_max: Option<u64> = Number(0, MANY), Unset("1000"),
        beyond "429, `rate_limited`", shows "L as that of all keys";
    /// Bytes of the bodies of this key's calls in a second. Left out: limits.bytes_per_second_per_key_max.
    bytes_per_second_max: Option<u64> = Bytes(0, TIB), Unset(r#""8MiB""#),
        beyond "429, `rate_limited`", shows "L as that of all keys";
    /// Messages that are published with this key in a second. Left out: limits.publishes_per_second_per_key_max.
    publishes_per_second_max: Option<u64> = Number(0, MANY), Unset("500"),
        beyond "429, `rate_limited`", shows "L as that of all keys";
}

/// The SHA-256 of a key. It is not printed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyHash(pub [u8; 32]);

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl KeyHash {
    /// The prefix of the digits.
    pub const PREFIX: &str = "sha256:";

    /// Parses `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<KeyHash> {
        let digits = text.strip_prefix(Self::PREFIX)?.as_bytes();
        let mut hash = [0; 32];
        if digits.len() != 2 * hash.len() {
            return None;
        }
        for (byte, digits) in hash.iter_mut().zip(digits.chunks(2)) {
            let [high, low] = [0, 1].map(|at| char::from(digits[at]).to_digit(16));
            *byte = u8::try_from(high? << 4 | low?).ok()?;
        }
        Some(KeyHash(hash))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Typed for KeyHash {
    fn typed(value: Option<&Value>) -> Self {
        KeyHash::parse(&String::typed(value)).unwrap_or_default()
    }
}

//! A `ref` or a `join_ref` in memory. The client determines it: phoenix.js counts in strings, other clients send
//! numbers, and Phoenix replies with the same JSON.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json;

/// The prefix of a stored ref that is not a JSON string; the client's JSON follows. A string that begins with this
/// character is stored as JSON too, so that different refs are stored differently.
const RAW: char = '\u{1}';

/// Text that is borrowed if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Converts a message's ref to its stored form: the text of a string, the JSON of any other value.
pub(super) fn read(json: &RawValue) -> Cow<'_, str> {
    let raw = json.get();
    match serde_json::from_str::<Text<'_>>(raw) {
        Ok(Text(text)) if !text.starts_with(RAW) => text,
        Ok(_) | Err(_) => Cow::Owned(format!("{RAW}{raw}")),
    }
}

/// Appends a stored ref to a text message, as the client wrote it.
pub(super) fn write(stored: &str, out: &mut Vec<u8>) {
    match stored.strip_prefix(RAW) {
        Some(json) => out.extend_from_slice(json.as_bytes()),
        None => json::string(stored, out),
    }
}

/// Converts a stored ref to text, for binary messages.
pub(super) fn text(stored: &str) -> &str {
    stored.strip_prefix(RAW).unwrap_or(stored)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn stored(json: &str) -> String {
        read(&RawValue::from_string(json.into()).unwrap()).into_owned()
    }

    fn written(stored: &str) -> String {
        let mut out = Vec::new();
        write(stored, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_ref_comes_back_as_it_came() {
        for json in [
            "1",
            "-1.50",
            "1e9",
            "true",
            "{\"a\": 1}",
            "[\"b\",2]",
            "\"1\"",
            "\"\"",
            "\"\\u0001x\"",
            "\"\\ud83d\"",
        ] {
            assert_eq!(written(&stored(json)), json);
        }
        assert_eq!((&*stored("\"\\u0031\""), text(&stored("9"))), ("1", "9"));
        assert_ne!(stored("1"), stored("\"1\""));
    }

    proptest! {
        #[test]
        fn no_two_texts_are_stored_alike(one in "[\u{1}0-9\"a]{0,4}", other in "[\u{1}0-9\"a]{0,4}") {
            let stored = |text: &str| stored(&Value::from(text).to_string());
            prop_assert_eq!(stored(&one) == stored(&other), one == other);
            let back: String = serde_json::from_str(&written(&stored(&one))).unwrap();
            prop_assert_eq!(back, one);
        }
    }
}

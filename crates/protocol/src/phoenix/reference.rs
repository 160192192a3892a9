//! A `ref` or a `join_ref` in memory. The client chooses it: phoenix.js counts strings up, other clients send numbers,
//! and Phoenix answers with whatever JSON came.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json;

/// A ref that is no JSON string begins with this, and its JSON follows as the client wrote it. A string that begins
/// with this character is stored like that, too, so that no two refs are stored alike.
const RAW: char = '\u{1}';

/// Text that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The ref of a message as it is stored: the text of a string, the JSON of anything else.
pub(super) fn read(json: &RawValue) -> Cow<'_, str> {
    let raw = json.get();
    match serde_json::from_str::<Text<'_>>(raw) {
        Ok(Text(text)) if !text.starts_with(RAW) => text,
        Ok(_) | Err(_) => Cow::Owned(format!("{RAW}{raw}")),
    }
}

/// Appends a stored ref to a text message, as it came.
pub(super) fn write(stored: &str, out: &mut Vec<u8>) {
    match stored.strip_prefix(RAW) {
        Some(json) => out.extend_from_slice(json.as_bytes()),
        None => json::string(stored, out),
    }
}

/// A stored ref as binary messages have it, which know text only.
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

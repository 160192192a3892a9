//! Reads JSON objects into structs.

use serde::Deserialize;
use serde::de::Error as _;

/// Reads a JSON object. Serde would also read a struct from an array of its fields in order: an undocumented form,
/// whose meaning changes with each new field. None of our interfaces has it.
///
/// The error is serde's own: of the category `data` if the JSON is not an object.
pub fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> serde_json::Result<T> {
    // Serde's own error has more details.
    let value = serde_json::from_slice(json)?;
    match json.trim_ascii_start().first() {
        Some(b'{') => Ok(value),
        _ => Err(serde_json::Error::custom("send a JSON object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Two {
        a: u8,
        b: Option<u8>,
    }

    #[test]
    fn an_array_of_the_fields_is_no_object() {
        assert_eq!(read::<Two>(b" \n{\"a\":1}").unwrap(), Two { a: 1, b: None });
        for no_object in ["[1,2]", "[1,null]", " [1,2]", "[]", "1", "null", "\"{\""] {
            assert_eq!(serde_json::from_str::<Two>(no_object).is_ok(), no_object.contains(','));
            assert!(read::<Two>(no_object.as_bytes()).unwrap_err().is_data(), "{no_object}");
        }
        for no_json in ["", "[1,2", "{", "x", "\u{c}{\"a\":1}"] {
            assert!(!read::<Two>(no_json.as_bytes()).unwrap_err().is_data(), "{no_json:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn only_objects_are_read(text in r#"[ \[\]{}",:a0-9]{0,12}"#) {
            let is_object = text.trim_start().starts_with('{');
            if let Ok(two) = read::<Two>(text.as_bytes()) {
                proptest::prop_assert!(is_object, "{text}: {two:?}");
            }
        }
    }
}

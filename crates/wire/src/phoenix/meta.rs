//! What a member says about itself, for the others to see in its presence.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Data;

/// The `meta` of a join's payload, the text of a JSON object; `None` without one. The error says
/// what is wrong.
pub fn join_meta(payload: &Data, bytes_max: usize) -> Result<Option<&str>, String> {
    #[derive(Deserialize)]
    struct Join<'a> {
        #[serde(borrow)]
        meta: Option<&'a RawValue>,
    }
    let Data::Json(text) = payload else {
        return Ok(None);
    };
    // Payloads of any other shape are the application's own; serde takes an array for a struct.
    if !text.starts_with('{') {
        return Ok(None);
    }
    match serde_json::from_str::<Join<'_>>(text) {
        Ok(Join { meta: Some(meta) }) => object(meta.get(), bytes_max).map(Some),
        _ => Ok(None),
    }
}

/// A payload that is a meta as a whole.
pub fn meta(payload: &Data, bytes_max: usize) -> Result<&str, String> {
    match payload {
        Data::Json(text) => object(text, bytes_max),
        Data::Text(_) | Data::Binary(_) => Err(NO_OBJECT.into()),
    }
}

const NO_OBJECT: &str = "meta must be a JSON object";

fn object(text: &str, bytes_max: usize) -> Result<&str, String> {
    if !text.starts_with('{') {
        return Err(NO_OBJECT.into());
    }
    if text.len() > bytes_max {
        return Err(format!("meta is at most {bytes_max} bytes, and has {}", text.len()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meta_is_an_object_within_its_limit() {
        let json = |text: &str| Data::Json(text.into());
        assert_eq!(join_meta(&json(r#"{"meta":{"a":1},"b":2}"#), 7), Ok(Some(r#"{"a":1}"#)));
        assert_eq!(join_meta(&json(r#"{"b":2}"#), 7), Ok(None));
        assert_eq!(join_meta(&json(r#"{"meta":null}"#), 7), Ok(None));
        assert_eq!(join_meta(&json("[]"), 7), Ok(None));
        assert_eq!(join_meta(&json("[{}]"), 7), Ok(None));
        assert_eq!(join_meta(&json("[1]"), 7), Ok(None));
        assert_eq!(join_meta(&Data::Binary([1].into()), 7), Ok(None));
        assert!(join_meta(&json(r#"{"meta":{"a":10}}"#), 7).is_err());
        assert!(join_meta(&json(r#"{"meta":[]}"#), 7).is_err());
        assert_eq!(meta(&json("{}"), 2), Ok("{}"));
        assert!(meta(&json("1"), 2).is_err());
        assert!(meta(&Data::Text("{}".into()), 2).is_err());
    }
}

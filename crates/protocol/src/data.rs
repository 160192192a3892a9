//! Converts JSON to payloads.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Data;
use serde_json::value::RawValue;

/// Converts data as the APIs take them: any JSON value. A string is text, unless `encoding` is `base64` (bytes) or
/// `json` (the string stays JSON, in quotes). The error has the reason.
pub fn from_json(raw: &RawValue, encoding: Option<&str>) -> Result<Data, String> {
    let text = raw.get();
    let string = || {
        serde_json::from_str::<String>(text).map_err(|_| match text.starts_with('"') {
            // A JSON string has no other error.
            true => {
                "data has half of a surrogate pair, which a text can't contain: publish it with \
                 the encoding json"
                    .to_string()
            }
            false => "with this encoding, data must be a JSON string".to_string(),
        })
    };
    match encoding {
        None if text.starts_with('"') => Ok(Data::Text(string()?.into())),
        None | Some("json") => Ok(Data::Json(compact(text))),
        Some("text") => Ok(Data::Text(string()?.into())),
        Some("base64") => match STANDARD.decode(string()?) {
            Ok(bytes) => Ok(Data::Binary(bytes.into())),
            Err(error) => Err(format!("data is not base64: {error}")),
        },
        Some(other) => {
            Err(format!("there is no encoding {other:?}: the encodings are json, text and base64"))
        }
    }
}

/// Converts data as Phoenix clients send them: any JSON value; a string is text. A string that is no valid text (half
/// of a surrogate pair) stays JSON.
pub fn of_json(raw: &RawValue) -> Data {
    from_json(raw, None).unwrap_or_else(|_| Data::Json(compact(raw.get())))
}

/// Checks the meta of a connection in a topic's presence: the text of a JSON object of at most `bytes_max` bytes. The
/// error has the reason.
pub fn meta(json: &str, bytes_max: usize) -> Result<&str, String> {
    if !json.starts_with('{') {
        return Err(NO_META.into());
    }
    if json.len() > bytes_max {
        return Err(format!(
            "meta may have at most {bytes_max} bytes (presence.meta_bytes_max), but has {}",
            json.len()
        ));
    }
    Ok(json)
}

/// The error for a meta that is not an object.
pub(crate) const NO_META: &str = "meta must be a JSON object";

/// Removes the white space between the tokens of valid JSON: a newline would break the transports with one object a
/// line. Numbers retain every digit.
fn compact(json: &str) -> Box<str> {
    if !json.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return json.into();
    }
    let (mut in_string, mut escaped) = (false, false);
    let dense = json.chars().filter(|&c| {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            return true;
        }
        in_string = c == '"';
        !c.is_ascii_whitespace()
    });
    dense.collect::<String>().into()
}

/// The error for a message that is larger than `bytes_max`.
pub fn too_large(bytes_max: usize) -> String {
    format!("a message may have at most {bytes_max} bytes (limits.message_bytes_max)")
}

/// The error for a connection with more than `topics_max` topics.
pub fn too_many_topics(topics_max: usize) -> String {
    format!(
        "a connection may be in at most {topics_max} topics, users included \
         (limits.topics_per_connection_max)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_made_compact_and_strings_are_text() {
        let data = |text: &str, encoding| {
            from_json(&RawValue::from_string(text.into()).unwrap(), encoding)
        };
        let spaced = "{ \"a b\" :\n [1.50, \"x \\\" \\\\\" , 2 ] }";
        let want = "{\"a b\":[1.50,\"x \\\" \\\\\",2]}";
        assert_eq!(data(spaced, None), Ok(Data::Json(want.into())));
        assert_eq!(data("\"hi\"", None), Ok(Data::Text("hi".into())));
        assert_eq!(data("\"hi\"", Some("json")), Ok(Data::Json("\"hi\"".into())));
        assert_eq!(data("\"AP8=\"", Some("base64")), Ok(Data::Binary([0, 255].into())));
        for (text, encoding) in [("1", "text"), ("1", "base64"), ("\"?\"", "base64"), ("1", "x")] {
            assert!(data(text, Some(encoding)).is_err());
        }
        let half = r#""\ud83d""#;
        assert!(data(half, None).unwrap_err().contains("the encoding json"));
        assert_eq!(data(half, Some("json")), Ok(Data::Json(half.into())));
    }
}

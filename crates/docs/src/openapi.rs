//! Formats the OpenAPI document with a line for each path and each schema, so that a diff shows what has changed.

use std::fmt::Write;

use serde_json::{Map, Value};

/// Returns the document as JSON with a line for each entry of `paths` and of `components.schemas`.
///
/// # Errors
/// If the document has no paths or no schemas.
pub fn text(mut document: Value) -> Result<String, String> {
    let mut take = |pointer: &str, key: &str| {
        let object = document.pointer_mut(pointer).and_then(Value::as_object_mut);
        object.and_then(|it| it.remove(key)).ok_or(format!("the document has no {key}"))
    };
    let version = take("", "openapi")?;
    let info = take("", "info")?;
    let paths = lines(&take("", "paths")?);
    let schemas = lines(&take("/components", "schemas")?);
    let mut components = take("", "components")?;
    let rest = entries(document.as_object_mut());
    let components = entries(components.as_object_mut());
    Ok(format!(
        "{{\n\"openapi\":{version},\n\"info\":{info},\n{rest}\"components\":{{\n{components}\"schemas\":{{\n{schemas}\
         \n}}}},\n\"paths\":{{\n{paths}\n}}}}\n"
    ))
}

/// Returns the entries of an object, each with a comma and a line end.
fn entries(object: Option<&mut Map<String, Value>>) -> String {
    object.into_iter().flatten().fold(String::new(), |mut out, (key, value)| {
        let _ = writeln!(out, "{}:{value},", Value::from(key.as_str()));
        out
    })
}

/// Returns the entries of an object, a line each.
fn lines(object: &Value) -> String {
    let entries = object.as_object().into_iter().flatten();
    let lines: Vec<String> =
        entries.map(|(key, value)| format!("{}:{value}", Value::from(key.as_str()))).collect();
    lines.join(",\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_for_each_path_and_schema_is_the_same_document() {
        let document = control::openapi();
        let text = text(document.clone()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
        let count = |key: &str| document.pointer(key).unwrap().as_object().unwrap().len();
        assert!(text.lines().count() >= count("/paths") + count("/components/schemas"));
        assert!(super::text(json!({"openapi": "3.1.0"})).is_err());
    }
}

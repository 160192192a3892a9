//! The page of the API, from its OpenAPI document, with the examples of `api.md`.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};

/// The subjects, by the document's tags, in the page's order.
const SUBJECTS: [(&str, &str); 8] = [
    ("publish", "Publish"),
    ("members", "Connections and users"),
    ("history", "History and acknowledgement"),
    ("subscriptions", "Subscriptions"),
    ("inspect", "Look"),
    ("operate", "Operate"),
    ("mqtt", "MQTT clients"),
    ("tokens", "Tokens of clients"),
];

/// Responses that at least this many calls share appear once.
const SHARED_MIN: usize = 5;

/// A response: status and text.
type Reply = (String, String);

/// A call: method, path, operation.
type Call<'a> = (String, &'a str, &'a Value);

/// Returns the page. `text` is the hand-written part: an introduction, and under a heading for each call its example,
/// in the page's order.
///
/// # Errors
/// If an example has no call, a call has two examples or none, or a call has no subject.
pub fn page(document: &Value, text: &str) -> Result<String, String> {
    let (introduction, examples) = sections(text);
    let calls: Vec<Call<'_>> = calls(document);
    let shared = shared(&calls);
    let mut out = format!("{}\n\n## Responses of all calls\n\n", introduction.trim());
    out.push_str("| status | |\n| --- | --- |\n");
    for (status, text) in &shared {
        let _ = writeln!(out, "| {status} | {} |", sentence(text));
    }
    if let Some((_, path, _)) =
        calls.iter().find(|call| !examples.iter().any(|it| it.0 == name(call)))
    {
        return Err(format!("crates/docs/src/api.md has no heading for a call of {path}"));
    }
    let is_twice = |of: &str| examples.iter().filter(|it| it.0 == of).count() > 1;
    if let Some((of, _)) = examples.iter().find(|it| is_twice(&it.0)) {
        return Err(format!("crates/docs/src/api.md has two headings for {of}"));
    }
    out.push_str("\n## All calls\n\n| call | |\n| --- | --- |\n");
    for (of, _) in &examples {
        let found = calls.iter().find(|it| name(it) == *of);
        let summary =
            found.map_or(String::new(), |(_, _, operation)| one_line(&operation["summary"]));
        let summary = summary.split(". ").next().unwrap_or_default();
        let _ = writeln!(out, "| [`{of}`](#{}) | {} |", anchor(of), sentence(summary));
    }
    let mut left = examples.len();
    for (tag, title) in SUBJECTS {
        let _ = write!(out, "\n## {title}\n");
        for (of, example) in &examples {
            let found = calls.iter().find(|it| name(it) == *of);
            let (_, _, operation) = found.ok_or(format!("api.md: there is no call {of}"))?;
            if operation["tags"][0] == tag {
                left -= 1;
                call(&mut out, document, of, operation, example, &shared);
            }
        }
    }
    match left {
        0 => Ok(out),
        _ => Err("a call has a tag that SUBJECTS in api.rs doesn't have".into()),
    }
}

/// Returns a call's anchor on the page.
fn anchor(name: &str) -> String {
    let letters = name.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    letters.collect::<String>().replace(' ', "-").to_lowercase()
}

fn name((method, path, _): &Call<'_>) -> String {
    format!("{} {path}", method.to_uppercase())
}

/// Returns the introduction, and the text under each second-level heading.
fn sections(text: &str) -> (String, Vec<(String, String)>) {
    let mut parts = text.split("\n## ");
    let introduction = parts.next().unwrap_or_default().to_owned();
    let split = |part: &str| {
        let (name, text) = part.split_once('\n').unwrap_or((part, ""));
        (name.trim().to_owned(), text.trim().to_owned())
    };
    (introduction, parts.map(split).collect())
}

fn calls(document: &Value) -> Vec<Call<'_>> {
    let paths = document["paths"].as_object().into_iter().flatten();
    let operations = paths.flat_map(|(path, item)| {
        let of = item.as_object().into_iter().flatten();
        of.map(move |(method, operation)| (method.clone(), path.as_str(), operation))
    });
    operations.collect()
}

fn replies(operation: &Value) -> impl Iterator<Item = (&String, &Value)> {
    operation["responses"].as_object().into_iter().flatten()
}

fn shared(calls: &[Call<'_>]) -> Vec<Reply> {
    let mut counts: BTreeMap<Reply, usize> = BTreeMap::new();
    for (_, _, operation) in calls {
        for (status, reply) in replies(operation).filter(|(status, _)| *status != "200") {
            *counts.entry((status.clone(), one_line(&reply["description"]))).or_default() += 1;
        }
    }
    let often = counts.into_iter().filter(|(_, count)| *count >= SHARED_MIN);
    often.map(|(reply, _)| reply).collect()
}

fn call(
    out: &mut String,
    document: &Value,
    name: &str,
    operation: &Value,
    example: &str,
    shared: &[Reply],
) {
    let _ = write!(out, "\n### `{name}`\n\n{}\n", sentence(&one_line(&operation["summary"])));
    if let Some(more) = operation["description"].as_str() {
        let _ = write!(out, "\n{more}\n");
    }
    if !example.is_empty() {
        let _ = write!(out, "\n{example}\n");
    }
    let parameters: Vec<&Value> =
        operation["parameters"].as_array().into_iter().flatten().collect();
    if !parameters.is_empty() {
        out.push_str("\n| parameter | in | type | |\n| --- | --- | --- | --- |\n");
        for parameter in parameters {
            let (name, location) = (one_line(&parameter["name"]), one_line(&parameter["in"]));
            let (kind, about) = (kind(&parameter["schema"]), cell(&parameter["description"]));
            let _ = writeln!(out, "| `{name}` | {location} | {kind} | {about} |");
        }
    }
    for (media, content) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
        let (schema, about) = resolved(document, &content["schema"]);
        match fields(document, schema) {
            fields if fields.is_empty() => {
                let _ = write!(out, "\nBody ({media}): {}\n", sentence(&about));
            }
            fields => {
                out.push_str("\n| body | type | |\n| --- | --- | --- |\n");
                out.push_str(&fields);
            }
        }
    }
    let ok = &operation["responses"]["200"];
    for (media, content) in ok["content"].as_object().into_iter().flatten() {
        let (schema, _) = resolved(document, &content["schema"]);
        match fields(document, schema) {
            fields if fields.is_empty() => {
                let about = one_line(&ok["description"]);
                let about = if about.is_empty() {
                    String::new()
                } else {
                    format!(": {}", sentence(&about))
                };
                let _ = write!(out, "\nThe response is `{media}`{about}\n");
            }
            fields => {
                out.push_str("\n| response | type | |\n| --- | --- | --- |\n");
                out.push_str(&fields);
            }
        }
    }
    let own: Vec<Reply> = replies(operation)
        .map(|(status, reply)| (status.clone(), one_line(&reply["description"])))
        .filter(|reply| reply.0 != "200" && !shared.contains(reply))
        .collect();
    if !own.is_empty() {
        out.push_str("\n| error | |\n| --- | --- |\n");
        for (status, about) in own {
            let _ = writeln!(out, "| {status} | {} |", sentence(&about));
        }
    }
}

/// Resolves a schema's references, and returns it with its description.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> (&'a Value, String) {
    let own = one_line(&schema["description"]);
    let target = match schema["$ref"].as_str().and_then(|it| it.rsplit('/').next()) {
        Some(name) => &document["components"]["schemas"][name],
        None => schema,
    };
    let mut about = if own.is_empty() { one_line(&target["description"]) } else { own };
    // If the field is a type or null, the type has the description.
    for option in target["oneOf"].as_array().into_iter().flatten() {
        if about.is_empty() {
            about = resolved(document, option).1;
        }
    }
    (target, about)
}

/// Returns the rows of an object's fields.
fn fields(document: &Value, schema: &Value) -> String {
    let mut rows = String::new();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        rows.push_str(&fields(document, resolved(document, part).0));
    }
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let none = Map::new();
    let is_optional = |name: &String| !required.contains(&name.as_str());
    let mut all: Vec<_> = schema["properties"].as_object().unwrap_or(&none).iter().collect();
    all.sort_by_key(|(name, _)| is_optional(name));
    for (name, field) in all {
        let (target, about) = resolved(document, field);
        let needed = if is_optional(name) { ", optional" } else { "" };
        let about = sentence(&about).replace('|', "\\|");
        let _ =
            writeln!(rows, "| `{name}` | {}{needed} | {about} |", kind_of(document, field, target));
    }
    rows
}

/// Returns the type of a field. Null is left out: an absent field means the same.
fn kind_of(document: &Value, field: &Value, target: &Value) -> String {
    if let Some(items) = target["items"].as_object() {
        let items = Value::Object(items.clone());
        let of = kind_of(document, &items, resolved(document, &items).0);
        return format!("array of {of}");
    }
    let options = [&field["oneOf"], &target["oneOf"], &target["anyOf"]];
    if let Some(options) = options.iter().find_map(|options| options.as_array()) {
        let of = options.iter().filter(|option| option["type"] != "null");
        let of = of.map(|option| kind_of(document, option, resolved(document, option).0));
        return of.collect::<Vec<_>>().join(" or ");
    }
    match target["properties"].is_object() {
        true => format!("{{{}}}", names(target)),
        false => kind(target),
    }
}

fn names(schema: &Value) -> String {
    let names = schema["properties"].as_object().into_iter().flat_map(Map::keys);
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns a type without fields.
fn kind(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let values =
            values.iter().map(|value| format!("`{}`", value.to_string().trim_matches('"')));
        return values.collect::<Vec<_>>().join(", ");
    }
    if schema["additionalProperties"].is_object() {
        return "object by name".into();
    }
    match &schema["type"] {
        Value::String(text) => text.clone(),
        Value::Array(all) => {
            let all = all.iter().filter_map(Value::as_str).filter(|it| *it != "null");
            all.collect::<Vec<_>>().join(" or ")
        }
        _ => "any JSON".into(),
    }
}

fn one_line(value: &Value) -> String {
    value.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cell(value: &Value) -> String {
    sentence(&one_line(value)).replace('|', "\\|")
}

fn sentence(text: &str) -> String {
    match text.is_empty() || text.ends_with(['.', '!', '?']) {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

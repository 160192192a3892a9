//! A connection's meta, and the JSON text of lists of them.

use std::fmt::{self, Write};
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Entry;

/// The reference of a meta: its `phx_ref`, in hexadecimal when displayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ref(pub(super) u64);

impl fmt::Display for Ref {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// What a connection tells about itself.
pub(super) struct Meta {
    /// The announced meta that it replaces.
    pub prev: Option<Ref>,
    /// The properties: the text of the object without its braces, spaces and references.
    properties: Box<str>,
}

impl Meta {
    pub fn new(json: &str, prev: Option<Ref>) -> Meta {
        Meta { prev, properties: properties(json) }
    }

    pub fn set(&mut self, json: &str) {
        self.properties = properties(json);
    }

    fn write(&self, of: Ref, out: &mut String) {
        // Writing to a string cannot fail.
        let _ = write!(out, r#"{{"phx_ref":"{of}""#);
        if let Some(prev) = self.prev {
            let _ = write!(out, r#","phx_ref_prev":"{prev}""#);
        }
        if !self.properties.is_empty() {
            out.push(',');
            out.push_str(&self.properties);
        }
        out.push('}');
    }
}

/// The text of a list: `{"alice":{"metas":[{"phx_ref":"1"}]}}`. Entries of a key must come together.
pub(super) fn list<'a>(entries: impl Iterator<Item = (&'a Entry, &'a Meta)>) -> String {
    let mut out = String::from("{");
    let mut last: Option<&Arc<str>> = None;
    for ((key, of), meta) in entries {
        if last == Some(key) {
            out.push(',');
        } else {
            if last.is_some() {
                out.push_str("]},");
            }
            out.push_str(&serde_json::Value::from(&**key).to_string());
            out.push_str(r#":{"metas":["#);
            last = Some(key);
        }
        meta.write(*of, &mut out);
    }
    out.push_str(if last.is_some() { "]}}" } else { "}" });
    out
}

/// The properties of an object in their order, as text: numbers keep every digit.
fn properties(json: &str) -> Box<str> {
    let Ok(Properties(properties)) = serde_json::from_str(json) else {
        return "".into();
    };
    let mut out = String::with_capacity(json.len());
    for (key, value) in properties {
        // Compared as decoded, since a key may be written with escapes.
        let name = serde_json::from_str::<String>(key.get()).unwrap_or_default();
        if name == "phx_ref" || name == "phx_ref_prev" {
            continue;
        }
        if !out.is_empty() {
            out.push(',');
        }
        out.push_str(key.get());
        out.push(':');
        push_compact(value.get(), &mut out);
    }
    out.into()
}

/// Adds JSON text without the spaces and line ends between its tokens.
fn push_compact(json: &str, out: &mut String) {
    let (mut quoted, mut escaped) = (false, false);
    for c in json.chars() {
        if !quoted && c.is_ascii_whitespace() {
            continue;
        }
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        out.push(c);
    }
}

struct Properties<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for Properties<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Properties<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut properties = Vec::new();
                while let Some(property) = map.next_entry()? {
                    properties.push(property);
                }
                Ok(Properties(properties))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

//! A connection's meta, and the JSON text of lists of them.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::{PassedEntry, Ref};

/// A connection of a user: sorted by user, then by ref.
pub(crate) type Entry = (Arc<str>, Ref);

/// What a connection shows of itself.
pub(crate) struct Meta {
    /// The announced meta that it replaces.
    pub prev: Option<Ref>,
    /// The properties: the text of the object without its braces, spaces and refs.
    properties: Box<str>,
}

impl Meta {
    pub fn new(json: &str, prev: Option<Ref>) -> Meta {
        Meta { prev, properties: properties(json) }
    }

    pub fn set(&mut self, json: &str) {
        self.properties = properties(json);
    }

    /// Returns it as another process takes it.
    pub fn passed(&self) -> PassedEntry {
        PassedEntry { meta: format!("{{{}}}", self.properties).into(), prev: self.prev }
    }

    /// Returns its bytes in a list, at most, with the comma before it.
    pub fn bytes(&self, of: Ref) -> usize {
        let prev = self.prev.map_or(0, |prev| r#","phx_ref_prev":"""#.len() + prev.text_bytes());
        gone_bytes(of) + prev + 1 + self.properties.len()
    }

    pub fn write(&self, of: Ref, out: &mut String) {
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

/// Returns the bytes of [`write_gone`] in a list, with the comma before it.
pub(crate) fn gone_bytes(of: Ref) -> usize {
    r#",{"phx_ref":""}"#.len() + of.text_bytes()
}

/// Writes a meta that leaves: a client removes it by its ref alone.
pub(crate) fn write_gone(of: Ref, out: &mut String) {
    let _ = write!(out, r#"{{"phx_ref":"{of}"}}"#);
}

/// Returns the bytes of a user in a list, at most, without the metas.
pub(crate) fn user_bytes(key: &str) -> usize {
    let longer = |byte: u8| match byte {
        b'"' | b'\\' => 1,
        0..0x20 => 5,
        _ => 0,
    };
    let escapes: usize = key.bytes().map(longer).sum();
    key.len() + escapes + r#","":{"metas":[]}"#.len()
}

/// Writes the text of a list: `{"alice":{"metas":[{"phx_ref":"1"}]}}`.
pub(crate) struct Writer {
    out: String,
    /// The user whose metas are being written.
    user: Option<Arc<str>>,
    ends: Vec<(Arc<str>, usize)>,
}

impl Writer {
    pub fn new() -> Writer {
        Writer { out: "{".into(), user: None, ends: Vec::new() }
    }

    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// Adds a meta of a user. The caller passes the metas of one user one after another.
    pub fn push(&mut self, key: &Arc<str>, meta: impl FnOnce(&mut String)) {
        if self.user.as_ref() == Some(key) {
            self.out.push(',');
        } else {
            self.end_user();
            if !self.ends.is_empty() {
                self.out.push(',');
            }
            push_user(key, &mut self.out);
            self.user = Some(key.clone());
        }
        meta(&mut self.out);
    }

    fn end_user(&mut self) {
        if let Some(key) = self.user.take() {
            self.ends.push((key, self.out.len()));
            self.out.push_str(USER_END);
        }
    }

    /// Returns the text so far and begins a new one.
    pub fn finish(&mut self) -> String {
        self.end_user();
        self.ends.clear();
        self.out.push('}');
        std::mem::replace(&mut self.out, "{".into())
    }
}

const USER_END: &str = "]}";

fn push_user(key: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(key).to_string());
    out.push_str(r#":{"metas":["#);
}

/// The text of a whole list, and where each user's metas end in it.
pub(crate) struct ListText {
    pub text: Arc<str>,
    /// Sorted by user.
    ends: Box<[(Arc<str>, usize)]>,
}

impl ListText {
    pub fn new<'a>(entries: impl Iterator<Item = (&'a Entry, &'a Meta)>) -> ListText {
        let mut writer = Writer::new();
        for ((key, of), meta) in entries {
            writer.push(key, |out| meta.write(*of, out));
        }
        writer.end_user();
        let ends = std::mem::take(&mut writer.ends).into();
        ListText { text: writer.finish().into(), ends }
    }

    /// Returns the list with one more meta.
    pub fn with(&self, (key, of): &Entry, meta: &Meta) -> Snapshot {
        let mut own = String::new();
        let at = match self.ends.binary_search_by(|(user, _)| user.cmp(key)) {
            Ok(found) => {
                own.push(',');
                meta.write(*of, &mut own);
                self.ends[found].1
            }
            Err(after) => {
                if after > 0 {
                    own.push(',');
                }
                push_user(key, &mut own);
                meta.write(*of, &mut own);
                own.push_str(USER_END);
                if after == 0 && !self.ends.is_empty() {
                    own.push(',');
                }
                after.checked_sub(1).map_or(1, |before| self.ends[before].1 + USER_END.len())
            }
        };
        Snapshot { list: self.text.clone(), own: Some((at, own)) }
    }
}

/// The users of a topic, with the requesting connection's own meta if no notice has announced it. Cheap to make;
/// [`Snapshot::into_json`] joins the two.
pub struct Snapshot {
    list: Arc<str>,
    /// The text to insert, and the index of the byte before which it goes.
    own: Option<(usize, String)>,
}

impl From<Arc<str>> for Snapshot {
    /// Takes the JSON text of a list as it is.
    fn from(list: Arc<str>) -> Snapshot {
        Snapshot { list, own: None }
    }
}

impl Snapshot {
    /// Returns a list without users.
    pub(crate) fn empty() -> Snapshot {
        Snapshot::from(Arc::from("{}"))
    }

    /// Returns the JSON text of a [`crate::STATE`].
    pub fn into_json(self) -> String {
        let Some((at, own)) = self.own else {
            return (*self.list).into();
        };
        let mut json = String::with_capacity(self.list.len() + own.len());
        let (before, after) = self.list.split_at(at);
        [before, &own, after].into_iter().for_each(|text| json.push_str(text));
        json
    }
}

/// Returns the properties of an object in their order, as text: numbers lose no digit.
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

/// Appends JSON text without the spaces and line ends between its tokens.
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

//! A message, its place in the order, and its encodings: one for each wire variant, made once.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use compact_str::CompactString;
use serde_json::value::RawValue;

use crate::ConnectionId;
use crate::transport::{Tools, Variant};

/// A topic's, user's or event's name. Up to 24 bytes are held without an allocation.
pub type Name = CompactString;

/// [`NAME_BYTES_MAX`], for texts that are put together when this is compiled.
macro_rules! name_bytes_max {
    () => {
        254
    };
}

/// The longest name of a topic, a user, an event or a key, in bytes.
pub const NAME_BYTES_MAX: usize = name_bytes_max!();

/// The longest personal topic in bytes: a user's name behind [`PERSONAL`].
pub const PERSONAL_BYTES_MAX: usize = NAME_BYTES_MAX + PERSONAL.len_utf8();

/// What is wrong with a user's name that [`check_name`] refuses, where it must be said whose it is.
pub const BAD_USER: &str = concat!(
    "the user's name must have 1 to ",
    name_bytes_max!(),
    " bytes and no control characters"
);

/// The topic that every connection is in.
pub const BROADCAST: &str = "*";

/// The first character of a personal topic: user `alice` is the topic `@alice`.
pub const PERSONAL: char = '@';

/// The personal topic of a user.
pub fn personal(user: &str) -> Name {
    let mut name = Name::with_capacity(user.len() + 1);
    name.push(PERSONAL);
    name.push_str(user);
    name
}

/// Checks a topic's name: 1 to [`NAME_BYTES_MAX`] bytes, no control characters, and neither `*` nor
/// a leading `@`, which are Throng's own. The error says what is wrong with it.
pub fn check_topic(name: &str) -> Result<(), &'static str> {
    check_name(name)?;
    if name.starts_with(PERSONAL) {
        return Err("a topic may not begin with '@', which marks users' personal topics");
    }
    if name == BROADCAST {
        return Err("the topic '*' is every connection: use broadcast");
    }
    Ok(())
}

/// Checks a user's name or a key: 1 to [`NAME_BYTES_MAX`] bytes and no control characters. (An
/// event's has more to it: [`crate::events::check_event`].)
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("a name may not be empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(concat!("a name may have at most ", name_bytes_max!(), " bytes"));
    }
    if has_control(name) {
        return Err("a name may not hold control characters");
    }
    Ok(())
}

/// Whether a text holds control characters, which no name, tag or key may: they end lines and
/// commands of terminals, logs and protocols.
pub fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// The life of a numbering: offsets compare only within one epoch. Written in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(pub u32);

/// A message's place: `epoch:offset`, as every transport writes it (for example `5f3a91c2:1042`).
///
/// Offsets grow with every message of a topic and never repeat within an epoch. They may leave
/// gaps: topics without history share one numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id {
    /// The life of the numbering.
    pub epoch: Epoch,
    /// The place in it, from 1.
    pub offset: u64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.offset)
    }
}

/// The text is not `epoch:offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadId;

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id has the form epoch:offset, 8 hexadecimal digits, a colon and a number")
    }
}

impl std::error::Error for BadId {}

impl FromStr for Id {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let (epoch, offset) = text.split_once(':').ok_or(BadId)?;
        let digits = |text: &str, hex: bool| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || (hex && matches!(byte, b'a'..=b'f')))
        };
        if epoch.len() != 8 || !digits(epoch, true) || !digits(offset, false) {
            return Err(BadId);
        }
        Ok(Id {
            epoch: Epoch(u32::from_str_radix(epoch, 16).map_err(|_| BadId)?),
            offset: offset.parse().map_err(|_| BadId)?,
        })
    }
}

/// What a message carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A JSON value that is not a string, as compact JSON text (no newline in it).
    Json(Box<str>),
    /// Text: sent as it is where the transport carries raw data, as a JSON string in JSON.
    Text(Box<str>),
    /// Bytes: base64 wherever the transport carries text only.
    Binary(Box<[u8]>),
}

impl Data {
    /// Data as the APIs take them: any JSON value. A string is text, unless `encoding` says
    /// `base64` (bytes) or `json` (the string stays JSON, in quotes). The error says what is wrong.
    pub fn from_json(raw: &RawValue, encoding: Option<&str>) -> Result<Data, String> {
        let text = raw.get();
        let string = || {
            serde_json::from_str::<String>(text)
                .map_err(|_| "with this encoding, data must be a JSON string".to_string())
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
                Err(format!("there is no encoding {other:?}: json, text and base64 are known"))
            }
        }
    }

    /// Data as Phoenix clients send them: any JSON value; a string is text. One that no text can
    /// hold (half of a surrogate pair) stays JSON.
    pub fn of_json(raw: &RawValue) -> Data {
        Data::from_json(raw, None).unwrap_or_else(|_| Data::Json(compact(raw.get())))
    }

    /// The size of the payload in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Data::Json(text) | Data::Text(text) => text.len(),
            Data::Binary(bytes) => bytes.len(),
        }
    }
}

/// Valid JSON without the white space between its tokens: a newline would break the transports
/// that write one object a line. Numbers keep every digit.
fn compact(json: &str) -> Box<str> {
    if !json.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return json.into();
    }
    let (mut in_string, mut escaped) = (false, false);
    let kept = json.chars().filter(|&c| {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            return true;
        }
        in_string = c == '"';
        !c.is_ascii_whitespace()
    });
    kept.collect::<String>().into()
}

/// A message that has no place in the order yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The topic; [`BROADCAST`] for every connection, [`personal`] for a user.
    pub topic: Name,
    /// The event's name; `None` is `message`, the default of the SSE standard.
    pub event: Option<Name>,
    /// The payload.
    pub data: Data,
    /// A member that does not get it: its sender, when it goes to the others.
    pub except: Option<ConnectionId>,
    /// What few messages have beside.
    pub marks: Option<Box<Marks>>,
}

impl Draft {
    /// A payload for a topic, and nothing beside.
    pub fn new(topic: impl Into<Name>, data: Data) -> Self {
        Draft { topic: topic.into(), event: None, data, except: None, marks: None }
    }

    /// The tags; most messages have none.
    pub fn tags(&self) -> &[Name] {
        self.marks.as_ref().map_or(&[], |marks| &marks.tags)
    }

    /// What the message is the newest state of, in a topic that keeps the last message of each key.
    pub fn key(&self) -> Option<&Name> {
        self.marks.as_ref()?.key.as_ref()
    }
}

/// What few messages have beside their payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// What members choose by: at most [`TAGS_MAX`], each of at most [`TAG_BYTES_MAX`] bytes.
    pub tags: Vec<Name>,
    /// What the message is the newest state of.
    pub key: Option<Name>,
    /// When it is worth nothing any more, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
}

/// Tags of a message, or that a member chooses by.
pub const TAGS_MAX: usize = 16;

/// A tag's length in bytes.
pub const TAG_BYTES_MAX: usize = 64;

/// Whether and how history keeps a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// It doesn't: who is not there misses it.
    #[default]
    No,
    /// For whoever comes back.
    History,
    /// Until its users have acknowledged it.
    Acknowledged,
}

/// A published message, shared by all shards. Its encodings are made when first asked for.
#[derive(Debug)]
pub struct Message {
    /// Its place in the order.
    pub id: Id,
    /// The hash of the topic's name, the same in every index of the node.
    pub topic_hash: u64,
    /// When it was published, in microseconds of the node's own clock.
    pub published_us: u64,
    /// When it was published, in milliseconds since 1970; 0 for a message that is not kept.
    pub at_ms: u64,
    /// Whether history keeps it.
    pub kept: Kept,
    /// What was published, and where.
    pub draft: Draft,
    /// Most messages that history keeps for somebody who is away are never encoded.
    encoded: OnceLock<Box<Encodings>>,
}

type Encodings = [OnceLock<Arc<[u8]>>; Variant::COUNT];

impl Message {
    /// Gives a draft its place.
    pub fn new(draft: Draft, id: Id, topic_hash: u64, published_us: u64) -> Self {
        Message {
            id,
            topic_hash,
            published_us,
            at_ms: 0,
            kept: Kept::No,
            draft,
            encoded: OnceLock::new(),
        }
    }

    /// The same message as history has it: published at this time, in milliseconds since 1970.
    pub fn kept(self, kept: Kept, at_ms: u64) -> Self {
        Message { kept, at_ms, ..self }
    }

    /// True when it was worth something for a time that is over.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        let marks = self.draft.marks.as_ref();
        marks.and_then(|marks| marks.expires_ms).is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    /// The event's name.
    pub fn event(&self) -> &str {
        self.draft.event.as_deref().unwrap_or("message")
    }

    /// True when the message goes to every connection.
    pub fn is_broadcast(&self) -> bool {
        self.draft.topic == BROADCAST
    }

    /// The bytes for one wire variant: encoded by whoever asks first, shared by everyone after.
    ///
    /// Nobody waits: two shards that ask at the same moment both encode and one result is kept.
    pub fn encoded(&self, variant: Variant, tools: &mut Tools) -> Arc<[u8]> {
        let cells =
            self.encoded.get_or_init(|| Box::new([const { OnceLock::new() }; Variant::COUNT]));
        // The same bytes.
        let variant = match variant {
            Variant::SseKept => Variant::Sse,
            Variant::SseJsonKept => Variant::SseJson,
            variant => variant,
        };
        let cell = &cells[variant as usize];
        if let Some(bytes) = cell.get() {
            return bytes.clone();
        }
        let mut out = Vec::with_capacity(self.draft.data.bytes() + 128);
        variant.transport().encode(self, tools, &mut out);
        let bytes: Arc<[u8]> = out.into();
        match cell.set(bytes.clone()) {
            Ok(()) => bytes,
            Err(_) => cell.get().cloned().unwrap_or(bytes),
        }
    }

    /// What the message holds in memory, encoded for one variant, in bytes, roughly.
    pub fn bytes(&self) -> usize {
        let marks = self.draft.marks.as_ref();
        let marks =
            marks.map_or(0, |marks| size_of::<Marks>() + marks.tags.len() * size_of::<Name>());
        size_of::<Message>() + size_of::<Encodings>() + 2 * self.draft.data.bytes() + marks + 128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = Id { epoch: Epoch(0x5f3a_91c2), offset: 1042 };
        assert_eq!(id.to_string(), "5f3a91c2:1042");
        assert_eq!("5f3a91c2:1042".parse(), Ok(id));
        for bad in [
            "",
            ":",
            "5f3a91c2",
            "5f3a91c2:",
            "5f3a91c2:-1",
            "5f3a91c2:+1",
            "+f3a91c2:1",
            "x:1",
            "5F3A91C2:1",
            "5f3a91c2:1:2",
            "5f3a91c2:99999999999999999999",
        ] {
            assert_eq!(bad.parse::<Id>(), Err(BadId), "{bad}");
        }
    }

    #[test]
    fn json_is_made_compact_and_strings_are_text() {
        let data = |text: &str, encoding| {
            Data::from_json(&RawValue::from_string(text.into()).unwrap(), encoding)
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
    }

    #[test]
    fn names_that_are_the_servers_own_are_refused() {
        assert!(check_topic("room:1").is_ok());
        for bad in ["", "@alice", "*", "a\nb"] {
            assert!(check_topic(bad).is_err(), "{bad}");
        }
        assert!(check_name("@odd but a user").is_ok());
        assert_eq!(personal("alice"), "@alice");
    }

    /// A topic, a user and an event have one longest name, and whatever says how long that is says
    /// the same.
    #[test]
    fn the_longest_name_is_one_number_everywhere() {
        let (fits, over) = ("x".repeat(NAME_BYTES_MAX), "x".repeat(NAME_BYTES_MAX + 1));
        for check in [check_topic, check_name] {
            assert_eq!(check(&fits), Ok(()));
            assert!(check(&over).unwrap_err().contains(&NAME_BYTES_MAX.to_string()));
        }
        assert_eq!(personal(&fits).len(), PERSONAL_BYTES_MAX);
        assert!(BAD_USER.contains(&format!("1 to {NAME_BYTES_MAX} bytes")));
        let told = include_str!("../../../ARCHITECTURE.md");
        let row = told.lines().find(|line| line.starts_with("| name of a topic"));
        assert!(row.is_some_and(|row| row.contains(&format!("| {NAME_BYTES_MAX} bytes |"))));
        let told = include_str!("../../../README.md");
        assert!(told.contains(&format!("at most {NAME_BYTES_MAX} bytes")), "README.md");
    }
}

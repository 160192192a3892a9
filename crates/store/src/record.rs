//! A message as it lies on disk. What the bytes mean is part of the store's format version.
//!
//! ```text
//! flags      1 byte: kind of data (2 bits), then one bit each: event, tags, key, expiry
//! at_ms      varint
//! event      varint length, UTF-8         if its bit is set
//! tags       varint count, each as event  if its bit is set
//! key        as event                     if its bit is set
//! expiry     varint, milliseconds         if its bit is set
//! payload    the rest
//! ```
//!
//! It lies behind the [`Row`]'s checksum, and how far before it the topic's message before it is.

use wire::{Data, Draft, Marks, Name};
use xxhash_rust::xxh3::xxh3_64;

use crate::sum;

const KIND: u8 = 0b11;
const JSON: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const EVENT: u8 = 1 << 2;
const TAGS: u8 = 1 << 3;
const KEY: u8 = 1 << 4;
const EXPIRES: u8 = 1 << 5;

/// A message that was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place.
    pub offset: u64,
    /// When it was published, in milliseconds since 1970.
    pub at_ms: u64,
    /// What was published. Marks without anything in them come back as `None`, and
    /// [`Draft::except`] is not kept: it names a connection, and those end.
    pub draft: Draft,
}

/// The bytes are no record of this format version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a row of the store does not have the form that this version writes")]
pub struct BadRow;

/// A record that is looked at where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    kind: u8,
    pub at_ms: u64,
    event: Option<&'a str>,
    /// Their number and their bytes, each with its length, checked.
    tags: (usize, &'a [u8]),
    pub key: Option<&'a str>,
    pub expires_ms: Option<u64>,
    pub payload: &'a [u8],
}

/// A record in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row<'a> {
    /// The offset of the topic's message before this one; the topic's base for the first.
    pub before: u64,
    /// The record.
    pub record: &'a [u8],
}

/// The bytes that stand before a record: its checksum and how far back the one before is.
pub(crate) struct Front {
    bytes: [u8; sum::BYTES + 10],
    length: usize,
}

impl Front {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<'a> Row<'a> {
    /// What stands before the record at the topic's number and the offset.
    pub fn front(&self, number: u64, offset: u64) -> Front {
        let mut front = Front { bytes: [0; sum::BYTES + 10], length: sum::BYTES };
        let mut distance = offset.saturating_sub(self.before);
        while distance >= 0x80 {
            front.bytes[front.length] = distance as u8 | 0x80;
            front.length += 1;
            distance >>= 7;
        }
        front.bytes[front.length] = distance as u8;
        front.length += 1;
        let sum = self.sum(number, offset);
        front.bytes[..sum::BYTES].copy_from_slice(&sum.to_le_bytes());
        front
    }

    /// Over all that makes the row what it is. The long part is hashed where it lies.
    fn sum(&self, number: u64, offset: u64) -> u64 {
        let mut all = [0; 32];
        let parts = [number, offset, self.before, xxh3_64(self.record)];
        for (to, part) in all.chunks_exact_mut(8).zip(parts) {
            to.copy_from_slice(&part.to_le_bytes());
        }
        xxh3_64(&all)
    }

    /// Reads what lies at the topic's number and the offset.
    pub fn read(number: u64, offset: u64, bytes: &'a [u8]) -> Result<Self, BadRow> {
        let (sum, rest) = bytes.split_first_chunk::<{ sum::BYTES }>().ok_or(BadRow)?;
        let mut input = Input(rest);
        let distance = input.number()?;
        let row = Row { before: offset.checked_sub(distance).ok_or(BadRow)?, record: input.0 };
        // A number has one form only: other bytes are other bytes.
        let used = rest.len() - input.0.len();
        let is_same = u64::from_le_bytes(*sum) == row.sum(number, offset)
            && (used == 1 || rest[used - 1] != 0);
        if is_same { Ok(row) } else { Err(BadRow) }
    }

    /// The record's head.
    pub fn head(&self) -> Result<Head<'a>, BadRow> {
        Head::read(self.record)
    }
}

/// Writes a record.
pub(crate) fn encode(draft: &Draft, at_ms: u64) -> Box<[u8]> {
    let (kind, payload) = match &draft.data {
        Data::Json(text) => (JSON, text.as_bytes()),
        Data::Text(text) => (TEXT, text.as_bytes()),
        Data::Binary(bytes) => (BINARY, &**bytes),
    };
    let none = Marks::default();
    let marks = draft.marks.as_deref().unwrap_or(&none);
    let bit = |is_there: bool, bit: u8| if is_there { bit } else { 0 };
    let mut out = Vec::with_capacity(payload.len() + 64);
    out.push(
        kind | bit(draft.event.is_some(), EVENT)
            | bit(!marks.tags.is_empty(), TAGS)
            | bit(marks.key.is_some(), KEY)
            | bit(marks.expires_ms.is_some(), EXPIRES),
    );
    put_number(&mut out, at_ms);
    if let Some(event) = &draft.event {
        put_bytes(&mut out, event.as_bytes());
    }
    if !marks.tags.is_empty() {
        put_number(&mut out, marks.tags.len() as u64);
        marks.tags.iter().for_each(|tag| put_bytes(&mut out, tag.as_bytes()));
    }
    if let Some(key) = &marks.key {
        put_bytes(&mut out, key.as_bytes());
    }
    if let Some(expires_ms) = marks.expires_ms {
        put_number(&mut out, expires_ms);
    }
    out.extend_from_slice(payload);
    out.into()
}

impl<'a> Head<'a> {
    /// Reads a record without copying. What is text was checked to be text.
    pub fn read(bytes: &'a [u8]) -> Result<Self, BadRow> {
        let mut input = Input(bytes);
        let flags = input.byte()?;
        let kind = flags & KIND;
        if flags >> 6 != 0 || kind > BINARY {
            return Err(BadRow);
        }
        let has = |bit: u8| flags & bit != 0;
        let at_ms = input.number()?;
        let event = has(EVENT).then(|| input.text()).transpose()?;
        let mut tags = (0, &input.0[..0]);
        if has(TAGS) {
            let count = input.count()?;
            let from = input.0;
            (0..count).try_for_each(|_| input.text().map(|_| ()))?;
            tags = (count, &from[..from.len() - input.0.len()]);
        }
        let key = has(KEY).then(|| input.text()).transpose()?;
        let expires_ms = has(EXPIRES).then(|| input.number()).transpose()?;
        if kind != BINARY {
            std::str::from_utf8(input.0).map_err(|_| BadRow)?;
        }
        Ok(Head { kind, at_ms, event, tags, key, expires_ms, payload: input.0 })
    }

    /// True for a message that says its key is no more: JSON `null` under a key.
    pub fn is_tombstone(&self) -> bool {
        self.key.is_some() && self.kind == JSON && self.payload == b"null"
    }

    /// True when it was worth something for a time that is over.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    /// The message.
    pub fn record(&self, topic: &Name, offset: u64) -> Result<Record, BadRow> {
        let text = || std::str::from_utf8(self.payload).map(Box::from).map_err(|_| BadRow);
        let data = match self.kind {
            JSON => Data::Json(text()?),
            TEXT => Data::Text(text()?),
            _ => Data::Binary(self.payload.into()),
        };
        let mut input = Input(self.tags.1);
        let tags = (0..self.tags.0).map(|_| input.text().map(Name::from));
        let marks = Marks {
            tags: tags.collect::<Result<_, _>>()?,
            key: self.key.map(Name::from),
            expires_ms: self.expires_ms,
        };
        let marks = (marks != Marks::default()).then(|| Box::new(marks));
        let event = self.event.map(Name::from);
        let draft = Draft { topic: topic.clone(), event, data, except: None, marks };
        Ok(Record { offset, at_ms: self.at_ms, draft })
    }
}

/// Appends a number, 7 bits a byte, the lowest first.
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// What is left to read.
pub(crate) struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> Result<u8, BadRow> {
        let (&first, rest) = self.0.split_first().ok_or(BadRow)?;
        self.0 = rest;
        Ok(first)
    }

    pub fn number(&mut self) -> Result<u64, BadRow> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(BadRow);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(BadRow)
    }

    /// A number of things of which each takes a byte or more.
    fn count(&mut self) -> Result<usize, BadRow> {
        let count = usize::try_from(self.number()?).map_err(|_| BadRow)?;
        if count <= self.0.len() { Ok(count) } else { Err(BadRow) }
    }

    fn text(&mut self) -> Result<&'a str, BadRow> {
        let length = self.count()?;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| BadRow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drafts() -> impl Strategy<Value = Draft> {
        let name = || "\\PC{0,40}".prop_map(Name::from);
        let data = prop_oneof![
            "\\PC{0,60}".prop_map(|text| Data::Json(text.into())),
            ".{0,60}".prop_map(|text| Data::Text(text.into())),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| Data::Binary(bytes.into())),
        ];
        let marks = (
            prop::collection::vec(name(), 0..4),
            prop::option::of(name()),
            prop::option::of(any::<u64>()),
        );
        let marks = marks.prop_map(|(tags, key, expires_ms)| Marks { tags, key, expires_ms });
        (name(), prop::option::of(name()), data, prop::option::of(marks)).prop_map(
            |(topic, event, data, marks)| Draft {
                topic,
                event,
                data,
                except: None,
                marks: marks.filter(|marks| *marks != Marks::default()).map(Box::new),
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(draft in drafts(), at_ms: u64, offset: u64) {
            let bytes = encode(&draft, at_ms);
            let head = Head::read(&bytes).unwrap();
            prop_assert_eq!(head.expires_ms, draft.marks.as_ref().and_then(|m| m.expires_ms));
            prop_assert_eq!(head.payload.len(), draft.data.bytes());
            let want = Record { offset, at_ms, draft: draft.clone() };
            prop_assert_eq!(head.record(&draft.topic, offset), Ok(want));
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(head) = Head::read(&bytes) {
                prop_assert!(head.record(&"t".into(), 1).is_ok());
            }
        }

        #[test]
        fn a_changed_record_does_not_panic(draft in drafts(), at: usize, byte: u8, cut: usize) {
            let mut bytes = encode(&draft, 1).to_vec();
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(cut % (length + 1));
            if let Ok(head) = Head::read(&bytes) {
                prop_assert!(head.record(&"t".into(), 1).is_ok());
            }
        }

        #[test]
        fn a_row_knows_its_place(draft in drafts(), number: u64, offset: u64, before: u64) {
            let record = encode(&draft, 1);
            let row = Row { before: before.min(offset), record: &record };
            let mut bytes = [row.front(number, offset).bytes(), &record].concat();
            prop_assert_eq!(Row::read(number, offset, &bytes), Ok(row));
            prop_assert_eq!(Row::read(number ^ 1, offset, &bytes), Err(BadRow));
            prop_assert_eq!(Row::read(number, offset ^ 1, &bytes), Err(BadRow));
            for at in 0..bytes.len() {
                bytes[at] ^= 1 << (at % 8);
                prop_assert_eq!(Row::read(number, offset, &bytes), Err(BadRow));
                bytes[at] ^= 1 << (at % 8);
            }
        }

        #[test]
        fn numbers_are_read(number: u64) {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            prop_assert_eq!(Input(&bytes).number(), Ok(number));
        }
    }

    #[test]
    fn a_number_too_large_is_refused() {
        let mut bytes = [0xff; 10];
        bytes[9] = 2;
        assert_eq!(Input(&bytes).number(), Err(BadRow));
        assert_eq!(Input(&[0x80; 11]).number(), Err(BadRow));
        assert_eq!(Head::read(&[0b11, 0]), Err(BadRow));
        assert_eq!(Head::read(&[0x40, 0]), Err(BadRow));
    }

    #[test]
    fn a_plain_record_costs_sixteen_bytes_over_its_payload() {
        let draft = Draft::new("t", Data::Text("x".repeat(100).into()));
        let record = encode(&draft, 1_790_000_000_000);
        assert_eq!(record.len(), 100 + 7);
        let row = Row { before: 41, record: &record };
        assert_eq!(row.front(1, 42).bytes().len(), 9);
        let null = |key: Option<&str>| {
            let mut draft = Draft::new("t", Data::Json("null".into()));
            draft.marks =
                key.map(|key| Box::new(Marks { key: Some(key.into()), ..Marks::default() }));
            Head::read(&encode(&draft, 1)).unwrap().is_tombstone()
        };
        assert!(null(Some("k")) && !null(None));
    }
}

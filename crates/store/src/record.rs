//! The format of a stored message. It is part of the store's format version.
//!
//! ```text
//! flags      1 byte: kind of data (2 bits), then one bit each: event, tags, key, expiry,
//!            sender, more
//! at_ms      varint
//! event      varint length, UTF-8         if its bit is set
//! tags       varint count, each as event  if its bit is set
//! key        as event                     if its bit is set
//! expiry     varint, milliseconds         if its bit is set
//! sender     as event                     if its bit is set
//! more       varint: QoS (2 bits), then one bit each: retain, properties, properties say text,
//!            content type, response topic, correlation data, session      if its bit is set
//! session    8 bytes: the mark of the MQTT session that does not get it   if its bit is set
//! content type, response topic, correlation data
//!            as event, the last one bytes  if its bit is set
//! user       varint count, name and value of each as event       if properties are there
//! payload    the rest
//! ```
//!
//! A [`MessageRow`] puts a checksum and the distance to the topic's previous message before it.

use model::{Attributes, Data, Name, Publication};
use xxhash_rust::xxh3::xxh3_64;

use crate::checksum;
use crate::coding::{Decoder, put_bytes, put_varint};
use crate::error::RowError;
use crate::record_more::{MoreRef, PropertiesRef, has_more, put_more};

const KIND: u8 = 0b11;
const JSON: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const EVENT: u8 = 1 << 2;
const TAGS: u8 = 1 << 3;
const KEY: u8 = 1 << 4;
const EXPIRES: u8 = 1 << 5;
const SENDER: u8 = 1 << 6;
const MORE: u8 = 1 << 7;

/// A message that was read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The message's offset.
    pub offset: u64,
    /// When it was published, in milliseconds since 1970.
    pub at_ms: u64,
    /// The publication. Empty attributes come back as `None`. The store does not save [`Publication::except`],
    /// because it names a connection, and connections don't outlive the process.
    pub publication: Publication,
}

impl Record {
    /// Encodes a message, for storage elsewhere. The topic and the offset are not included.
    pub fn encode(publication: &Publication, at_ms: u64) -> Box<[u8]> {
        encode(publication, at_ms)
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// If the bytes are damaged, or of a newer version.
    pub fn decode(topic: &Name, offset: u64, bytes: &[u8]) -> Result<Record, RowError> {
        RecordRef::decode(bytes)?.record(topic, offset)
    }
}

/// A decoded record that borrows its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRef<'a> {
    kind: u8,
    pub at_ms: u64,
    event: Option<&'a str>,
    /// The number of tags and their encoded bytes, which are valid.
    tags: (usize, &'a [u8]),
    pub key: Option<&'a str>,
    pub expires_ms: Option<u64>,
    sender: Option<&'a str>,
    more: MoreRef<'a>,
    pub payload: &'a [u8],
}

/// A record with its link to the topic's previous message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageRow<'a> {
    /// The offset of the topic's previous message; for the first one, the topic's base.
    pub previous: u64,
    /// The record.
    pub record: &'a [u8],
}

/// The bytes before a record: the checksum and the distance to the previous message.
pub(crate) struct RowPrefix {
    bytes: [u8; checksum::BYTES + 10],
    length: usize,
}

impl RowPrefix {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<'a> MessageRow<'a> {
    /// Returns the prefix of the record at this topic number and offset.
    pub fn prefix(&self, number: u64, offset: u64) -> RowPrefix {
        let mut prefix = RowPrefix { bytes: [0; checksum::BYTES + 10], length: checksum::BYTES };
        let mut distance = offset.saturating_sub(self.previous);
        while distance >= 0x80 {
            prefix.bytes[prefix.length] = distance as u8 | 0x80;
            prefix.length += 1;
            distance >>= 7;
        }
        prefix.bytes[prefix.length] = distance as u8;
        prefix.length += 1;
        let sum = self.sum(number, offset);
        prefix.bytes[..checksum::BYTES].copy_from_slice(&sum.to_le_bytes());
        prefix
    }

    /// Returns the checksum, which covers the row's key and content. The long part is hashed in place.
    fn sum(&self, number: u64, offset: u64) -> u64 {
        let mut all = [0; 32];
        let parts = [number, offset, self.previous, xxh3_64(self.record)];
        for (to, part) in all.chunks_exact_mut(8).zip(parts) {
            to.copy_from_slice(&part.to_le_bytes());
        }
        xxh3_64(&all)
    }

    /// Decodes the row at this topic number and offset.
    pub fn decode(number: u64, offset: u64, bytes: &'a [u8]) -> Result<Self, RowError> {
        let (sum, rest) = bytes.split_first_chunk::<{ checksum::BYTES }>().ok_or(RowError)?;
        let mut input = Decoder(rest);
        let distance = input.number()?;
        let row =
            MessageRow { previous: offset.checked_sub(distance).ok_or(RowError)?, record: input.0 };
        // A varint has only one valid form here, so that every changed byte is an error.
        let used = rest.len() - input.0.len();
        let is_same = u64::from_le_bytes(*sum) == row.sum(number, offset)
            && (used == 1 || rest[used - 1] != 0);
        if is_same { Ok(row) } else { Err(RowError) }
    }

    /// Returns the decoded record.
    pub fn head(&self) -> Result<RecordRef<'a>, RowError> {
        RecordRef::decode(self.record)
    }
}

/// Encodes a record.
pub(crate) fn encode(publication: &Publication, at_ms: u64) -> Box<[u8]> {
    let (kind, payload) = match &publication.data {
        Data::Json(text) => (JSON, text.as_bytes()),
        Data::Text(text) => (TEXT, text.as_bytes()),
        Data::Binary(bytes) => (BINARY, &**bytes),
    };
    let none = Attributes::default();
    let attributes = publication.attributes.as_deref().unwrap_or(&none);
    let bit = |is_there: bool, bit: u8| if is_there { bit } else { 0 };
    let mut out = Vec::with_capacity(payload.len() + 64);
    out.push(
        kind | bit(publication.event.is_some(), EVENT)
            | bit(!attributes.tags.is_empty(), TAGS)
            | bit(attributes.key.is_some(), KEY)
            | bit(attributes.expires_ms.is_some(), EXPIRES)
            | bit(attributes.sender.is_some(), SENDER)
            | bit(has_more(publication), MORE),
    );
    put_varint(&mut out, at_ms);
    if let Some(event) = &publication.event {
        put_bytes(&mut out, event.as_bytes());
    }
    if !attributes.tags.is_empty() {
        put_varint(&mut out, attributes.tags.len() as u64);
        attributes.tags.iter().for_each(|tag| put_bytes(&mut out, tag.as_bytes()));
    }
    if let Some(key) = &attributes.key {
        put_bytes(&mut out, key.as_bytes());
    }
    if let Some(expires_ms) = attributes.expires_ms {
        put_varint(&mut out, expires_ms);
    }
    if let Some(sender) = &attributes.sender {
        put_bytes(&mut out, sender.as_bytes());
    }
    if has_more(publication) {
        put_more(publication, &mut out);
    }
    out.extend_from_slice(payload);
    out.into()
}

/// Returns a record with another time. The rest is not decoded.
pub(crate) fn with_time(record: &[u8], at_ms: u64) -> Result<Vec<u8>, RowError> {
    let mut input = Decoder(record);
    let flags = input.byte()?;
    input.number()?;
    let mut out = Vec::with_capacity(input.0.len() + 11);
    out.push(flags);
    put_varint(&mut out, at_ms);
    out.extend_from_slice(input.0);
    Ok(out)
}

impl<'a> RecordRef<'a> {
    /// Decodes a record without copying it. All texts are checked to be UTF-8.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, RowError> {
        let mut input = Decoder(bytes);
        let flags = input.byte()?;
        let kind = flags & KIND;
        if kind > BINARY {
            return Err(RowError);
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
        let sender = has(SENDER).then(|| input.text()).transpose()?;
        let more = match has(MORE) {
            true => MoreRef::decode(&mut input)?,
            false => MoreRef::NONE,
        };
        if kind != BINARY {
            std::str::from_utf8(input.0).map_err(|_| RowError)?;
        }
        let payload = input.0;
        Ok(RecordRef { kind, at_ms, event, tags, key, expires_ms, sender, more, payload })
    }

    /// Returns the bytes that a topic's limit counts: the payload, and the properties of an MQTT publisher.
    pub fn counted_bytes(&self) -> u64 {
        let properties = self.more.properties.as_ref().map_or(0, PropertiesRef::bytes);
        (self.payload.len() + properties) as u64
    }

    /// Returns true for the removal of a key: JSON `null` with a key.
    pub fn is_removal(&self) -> bool {
        self.key.is_some() && self.kind == JSON && self.payload == b"null"
    }

    /// Returns true if the message's own expiry has passed.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    /// Copies the message.
    pub fn record(&self, topic: &Name, offset: u64) -> Result<Record, RowError> {
        let text = || std::str::from_utf8(self.payload).map(Box::from).map_err(|_| RowError);
        let data = match self.kind {
            JSON => Data::Json(text()?),
            TEXT => Data::Text(text()?),
            _ => Data::Binary(self.payload.into()),
        };
        let mut input = Decoder(self.tags.1);
        let tags = (0..self.tags.0).map(|_| input.text().map(Name::from));
        let attributes = Attributes {
            tags: tags.collect::<Result<_, _>>()?,
            key: self.key.map(Name::from),
            expires_ms: self.expires_ms,
            sender: self.sender.map(Name::from),
            properties: self.more.properties.map(|it| it.copy().map(Box::new)).transpose()?,
            except_session: self.more.except_session,
            // A retained message has its own record.
            by_session: None,
            // A node's messages about itself are not stored.
            is_own: false,
        };
        let attributes = (attributes != Attributes::default()).then(|| Box::new(attributes));
        let event = self.event.map(Name::from);
        let MoreRef { qos, retain, properties: _, except_session: _ } = self.more;
        let topic = topic.clone();
        let publication = Publication { topic, event, data, except: None, attributes, qos, retain };
        Ok(Record { offset, at_ms: self.at_ms, publication })
    }
}

#[cfg(test)]
mod tests {
    use model::{Properties, Qos};
    use proptest::prelude::*;

    use super::*;

    /// A flag of properties in a record without any.
    const IS_TEXT_ALONE: u8 = 1 << 4;

    fn publications() -> impl Strategy<Value = Publication> {
        let name = || "\\PC{0,40}".prop_map(Name::from);
        let data = prop_oneof![
            "\\PC{0,60}".prop_map(|text| Data::Json(text.into())),
            ".{0,60}".prop_map(|text| Data::Text(text.into())),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| Data::Binary(bytes.into())),
        ];
        let attributes = (
            prop::collection::vec(name(), 0..4),
            prop::option::of(name()),
            prop::option::of(name()),
            prop::option::of(any::<u64>()),
            prop::option::of(properties()),
            prop::option::of(any::<u64>()),
        );
        let attributes =
            attributes.prop_map(|(tags, key, sender, expires_ms, properties, except_session)| {
                Attributes {
                    tags,
                    key,
                    sender,
                    expires_ms,
                    properties: properties.map(Box::new),
                    except_session,
                    by_session: None,
                    is_own: false,
                }
            });
        let attributes = prop::option::of(attributes);
        let attributes = attributes.prop_map(|it| it.filter(|it| *it != Attributes::default()));
        let mqtt = (0..3u8, any::<bool>());
        (name(), prop::option::of(name()), data, attributes, mqtt).prop_map(
            |(topic, event, data, attributes, (qos, retain))| Publication {
                event,
                attributes: attributes.map(Box::new),
                qos: Qos::from_number(qos).unwrap(),
                retain,
                ..Publication::new(topic, data)
            },
        )
    }

    fn properties() -> impl Strategy<Value = Properties> {
        let text = || "\\PC{0,10}".prop_map(Box::<str>::from);
        let topic = prop::option::of("\\PC{1,10}".prop_map(Name::from));
        let data = prop::option::of(prop::collection::vec(any::<u8>(), 0..10).prop_map(Into::into));
        let user = prop::collection::vec((text(), text()), 0..4);
        (any::<bool>(), prop::option::of(text()), topic, data, user).prop_map(
            |(is_text, content_type, response_topic, correlation_data, user)| Properties {
                is_text,
                content_type,
                response_topic,
                correlation_data,
                user,
            },
        )
    }

    proptest! {
        #[test]
        fn encode_and_decode_round_trip(publication in publications(), at_ms: u64, offset: u64) {
            let bytes = encode(&publication, at_ms);
            let head = RecordRef::decode(&bytes).unwrap();
            prop_assert_eq!(head.expires_ms, publication.attributes.as_ref().and_then(|m| m.expires_ms));
            prop_assert_eq!(head.payload.len(), publication.data.bytes());
            prop_assert_eq!(head.counted_bytes(), publication.bytes() as u64);
            let want = Record { offset, at_ms, publication: publication.clone() };
            prop_assert_eq!(head.record(&publication.topic, offset), Ok(want));
            let other = with_time(&bytes, offset).unwrap();
            prop_assert_eq!(&*other, &*encode(&publication, offset));
        }

        #[test]
        fn decode_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(head) = RecordRef::decode(&bytes) {
                prop_assert!(head.record(&"t".into(), 1).is_ok());
            }
        }

        #[test]
        fn decode_of_a_changed_record_never_panics(publication in publications(), at: usize, byte: u8, cut: usize) {
            let mut bytes = encode(&publication, 1).to_vec();
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(cut % (length + 1));
            if let Ok(head) = RecordRef::decode(&bytes) {
                prop_assert!(head.record(&"t".into(), 1).is_ok());
            }
        }

        #[test]
        fn a_row_decodes_only_under_its_own_key(publication in publications(), number: u64, offset: u64, before: u64) {
            let record = encode(&publication, 1);
            let row = MessageRow { previous: before.min(offset), record: &record };
            let mut bytes = [row.prefix(number, offset).bytes(), &record].concat();
            prop_assert_eq!(MessageRow::decode(number, offset, &bytes), Ok(row));
            prop_assert_eq!(MessageRow::decode(number ^ 1, offset, &bytes), Err(RowError));
            prop_assert_eq!(MessageRow::decode(number, offset ^ 1, &bytes), Err(RowError));
            for at in 0..bytes.len() {
                bytes[at] ^= 1 << (at % 8);
                prop_assert_eq!(MessageRow::decode(number, offset, &bytes), Err(RowError));
                bytes[at] ^= 1 << (at % 8);
            }
        }

        #[test]
        fn varints_round_trip(number: u64) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            prop_assert_eq!(Decoder(&bytes).number(), Ok(number));
        }
    }

    #[test]
    fn decode_rejects_invalid_numbers_and_flags() {
        let mut bytes = [0xff; 10];
        bytes[9] = 2;
        assert_eq!(Decoder(&bytes).number(), Err(RowError));
        assert_eq!(Decoder(&[0x80; 11]).number(), Err(RowError));
        assert_eq!(RecordRef::decode(&[0b11, 0]), Err(RowError));
        for more in [0b11, IS_TEXT_ALONE] {
            assert_eq!(RecordRef::decode(&[TEXT | MORE, 0, more]), Err(RowError));
        }
    }

    #[test]
    fn a_plain_record_costs_sixteen_bytes_beyond_its_payload() {
        let publication = Publication::new("t", Data::Text("x".repeat(100).into()));
        let record = encode(&publication, 1_790_000_000_000);
        assert_eq!(record.len(), 100 + 7);
        let row = MessageRow { previous: 41, record: &record };
        assert_eq!(row.prefix(1, 42).bytes().len(), 9);
        let null = |key: Option<&str>| {
            let mut publication = Publication::new("t", Data::Json("null".into()));
            publication.attributes = key
                .map(|key| Box::new(Attributes { key: Some(key.into()), ..Attributes::default() }));
            RecordRef::decode(&encode(&publication, 1)).unwrap().is_removal()
        };
        assert!(null(Some("k")) && !null(None));
    }
}

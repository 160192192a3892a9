//! Messages as bytes, with everything that the node knows about them.
//!
//! A message is a CBOR map with numbered fields, whose numbers never change. Its topic's hash is not in it, since
//! hashes are keyed: the reader hashes the name again. Nor are its encodings, which the reader makes again.

use std::sync::Arc;

use minicbor::{Decode, Encode};
use model::{
    Attributes, ConnectionId, Encodings, Envelope, Epoch, FilterKey, GroupChoice, Message, Name,
    NodeId, Position, Properties, Publication, Qos, Retention,
};

use crate::{DataRecord, RecordError, encode_into};

/// Writes a message with the names of the filters that matched its topic, if it has any.
pub fn encode(envelope: &Envelope) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(96 + envelope.publication.data.bytes());
    encode_into(EnvelopeRecord::from(envelope), &mut bytes);
    bytes
}

/// Reads what [`encode`] wrote. `hash` is the hash of a topic's or a filter's name in this process.
///
/// # Errors
/// When the bytes are damaged.
pub fn decode(bytes: &[u8], hash: &dyn Fn(&str) -> u64) -> Result<Envelope, RecordError> {
    crate::decode::<EnvelopeRecord<'_>>(bytes)?.envelope(hash)
}

/// Writes a publication, which has no position yet.
pub fn encode_publication(publication: &Publication) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + publication.data.bytes());
    encode_publication_into(publication, &mut bytes);
    bytes
}

/// Appends a publication to `bytes`.
pub fn encode_publication_into(publication: &Publication, bytes: &mut Vec<u8>) {
    encode_into(PublicationRecord::from(publication), bytes);
}

/// Like [`encode_publication_into`], with the nodes that deliver the message to members of groups.
/// [`decode_publication`] ignores them.
pub fn encode_shared_into(publication: &Publication, choices: &[GroupChoice], bytes: &mut Vec<u8>) {
    let list: Vec<_> = choices.iter().map(|it| (it.node.0, it.group.as_str())).collect();
    let choices = (!list.is_empty()).then_some(list);
    encode_into(PublicationRecord { choices, ..PublicationRecord::from(publication) }, bytes);
}

/// Reads what [`encode_publication`] wrote.
///
/// # Errors
/// When the bytes are damaged.
pub fn decode_publication(bytes: &[u8]) -> Result<Publication, RecordError> {
    crate::decode::<PublicationRecord<'_>>(bytes)?.publication()
}

/// Reads what [`encode_shared_into`] wrote.
///
/// # Errors
/// When the bytes are damaged.
pub fn decode_shared(bytes: &[u8]) -> Result<(Publication, Vec<GroupChoice>), RecordError> {
    let mut record = crate::decode::<PublicationRecord<'_>>(bytes)?;
    let choices = record.choices.take().unwrap_or_default().into_iter();
    let choices =
        choices.map(|(node, group)| GroupChoice { node: NodeId(node), group: group.into() });
    let choices = choices.collect();
    Ok((record.publication()?, choices))
}

/// A message.
#[derive(Encode, Decode)]
#[cbor(map)]
struct EnvelopeRecord<'b> {
    #[n(0)]
    epoch: u32,
    #[n(1)]
    offset: u64,
    /// Microseconds of the node's clock.
    #[n(2)]
    published_us: u64,
    #[cbor(n(3), default)]
    at_ms: u64,
    #[cbor(n(4), default)]
    retention: u8,
    #[b(5)]
    publication: PublicationRecord<'b>,
    /// Names of the filters that matched its topic.
    #[b(6)]
    filters: Option<Vec<&'b str>>,
}

impl<'b> From<&'b Envelope> for EnvelopeRecord<'b> {
    fn from(envelope: &'b Envelope) -> Self {
        let Envelope { message, encodings: _, filters } = envelope;
        let Message { id, topic_hash: _, published_us, at_ms, retention, publication } = message;
        let Position { epoch: Epoch(epoch), offset } = *id;
        let name = |key: &'b Arc<FilterKey>| {
            let FilterKey { hash: _, name } = &**key;
            name.as_str()
        };
        EnvelopeRecord {
            epoch,
            offset,
            published_us: *published_us,
            at_ms: *at_ms,
            retention: match retention {
                Retention::None => 0,
                Retention::Passing => 1,
                Retention::History => 2,
                Retention::Acknowledged => 3,
            },
            publication: publication.into(),
            filters: filters.as_ref().map(|keys| keys.iter().map(name).collect()),
        }
    }
}

impl EnvelopeRecord<'_> {
    fn envelope(self, hash: &dyn Fn(&str) -> u64) -> Result<Envelope, RecordError> {
        let publication = self.publication.publication()?;
        let message = Message {
            id: Position { epoch: Epoch(self.epoch), offset: self.offset },
            topic_hash: hash(&publication.topic),
            published_us: self.published_us,
            at_ms: self.at_ms,
            retention: match self.retention {
                0 => Retention::None,
                1 => Retention::Passing,
                2 => Retention::History,
                3 => Retention::Acknowledged,
                _ => return Err(RecordError::new("unknown retention")),
            },
            publication,
        };
        let key = |name: &str| Arc::new(FilterKey { hash: hash(name), name: name.into() });
        let filters = self.filters.map(|names| names.into_iter().map(key).collect());
        Ok(Envelope { message, encodings: Encodings::default(), filters: None }.matched_by(filters))
    }
}

/// A publication.
#[derive(Encode, Decode)]
#[cbor(map)]
struct PublicationRecord<'b> {
    #[b(0)]
    topic: &'b str,
    #[b(1)]
    event: Option<&'b str>,
    #[b(2)]
    data: DataRecord<'b>,
    /// Node, shard, slot and serial.
    #[n(3)]
    except: Option<(u32, u16, u32, u32)>,
    #[b(4)]
    attributes: Option<AttributesRecord<'b>>,
    #[n(5)]
    qos: u8,
    #[cbor(n(6), default)]
    retain: bool,
    /// Nodes that deliver it to members of groups, on its way to other nodes.
    #[b(7)]
    choices: Option<Vec<(u32, &'b str)>>,
}

/// The attributes that few messages have.
#[derive(Encode, Decode)]
#[cbor(map)]
struct AttributesRecord<'b> {
    #[b(0)]
    tags: Vec<&'b str>,
    #[b(1)]
    key: Option<&'b str>,
    #[b(2)]
    sender: Option<&'b str>,
    #[n(3)]
    expires_ms: Option<u64>,
    #[b(4)]
    properties: Option<PropertiesRecord<'b>>,
    #[n(5)]
    except_session: Option<u64>,
    #[n(6)]
    by_session: Option<u64>,
    #[cbor(n(7), default)]
    is_own: bool,
}

/// The properties from an MQTT publisher.
#[derive(Encode, Decode)]
#[cbor(map)]
struct PropertiesRecord<'b> {
    #[cbor(n(0), default)]
    is_text: bool,
    #[b(1)]
    content_type: Option<&'b str>,
    #[b(2)]
    response_topic: Option<&'b str>,
    #[cbor(b(3), with = "minicbor::bytes")]
    correlation_data: Option<&'b [u8]>,
    #[b(4)]
    user: Vec<(&'b str, &'b str)>,
}

impl<'b> From<&'b Publication> for PublicationRecord<'b> {
    fn from(publication: &'b Publication) -> Self {
        let Publication { topic, event, data, except, attributes, qos, retain } = publication;
        let id = |ConnectionId { node: NodeId(node), shard, slot, serial }: ConnectionId| {
            (node, shard, slot, serial)
        };
        PublicationRecord {
            topic,
            event: event.as_deref(),
            data: data.into(),
            except: except.map(id),
            attributes: attributes.as_deref().map(AttributesRecord::from),
            qos: qos.number(),
            retain: *retain,
            choices: None,
        }
    }
}

impl PublicationRecord<'_> {
    fn publication(self) -> Result<Publication, RecordError> {
        let PublicationRecord { topic, event, data, except, attributes, qos, retain, choices: _ } =
            self;
        let id =
            |(node, shard, slot, serial)| ConnectionId { node: NodeId(node), shard, slot, serial };
        Ok(Publication {
            topic: topic.into(),
            event: event.map(Name::from),
            data: data.into(),
            except: except.map(id),
            attributes: attributes.map(|attributes| Box::new(attributes.into())),
            qos: Qos::from_number(qos)
                .ok_or_else(|| RecordError::new("unknown quality of service"))?,
            retain,
        })
    }
}

impl<'b> From<&'b Attributes> for AttributesRecord<'b> {
    fn from(attributes: &'b Attributes) -> Self {
        let Attributes {
            tags,
            key,
            sender,
            expires_ms,
            properties,
            except_session,
            by_session,
            is_own,
        } = attributes;
        AttributesRecord {
            tags: tags.iter().map(Name::as_str).collect(),
            key: key.as_deref(),
            sender: sender.as_deref(),
            expires_ms: *expires_ms,
            properties: properties.as_deref().map(PropertiesRecord::from),
            except_session: *except_session,
            by_session: *by_session,
            is_own: *is_own,
        }
    }
}

impl From<AttributesRecord<'_>> for Attributes {
    fn from(record: AttributesRecord<'_>) -> Self {
        Attributes {
            tags: record.tags.into_iter().map(Name::from).collect(),
            key: record.key.map(Name::from),
            sender: record.sender.map(Name::from),
            expires_ms: record.expires_ms,
            properties: record.properties.map(|properties| Box::new(properties.into())),
            except_session: record.except_session,
            by_session: record.by_session,
            is_own: record.is_own,
        }
    }
}

impl<'b> From<&'b Properties> for PropertiesRecord<'b> {
    fn from(properties: &'b Properties) -> Self {
        let Properties { is_text, content_type, response_topic, correlation_data, user } =
            properties;
        PropertiesRecord {
            is_text: *is_text,
            content_type: content_type.as_deref(),
            response_topic: response_topic.as_deref(),
            correlation_data: correlation_data.as_deref(),
            user: user.iter().map(|(name, value)| (&**name, &**value)).collect(),
        }
    }
}

impl From<PropertiesRecord<'_>> for Properties {
    fn from(record: PropertiesRecord<'_>) -> Self {
        let pair = |(name, value): (&str, &str)| (name.into(), value.into());
        Properties {
            is_text: record.is_text,
            content_type: record.content_type.map(Box::from),
            response_topic: record.response_topic.map(Name::from),
            correlation_data: record.correlation_data.map(Box::from),
            user: record.user.into_iter().map(pair).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Data;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn name() -> impl Strategy<Value = Name> {
        "[a-zä/@*\u{0}]{0,40}".prop_map(Name::from)
    }

    fn data() -> impl Strategy<Value = Data> {
        prop_oneof![
            any::<String>().prop_map(|text| Data::Json(text.into())),
            any::<String>().prop_map(|text| Data::Text(text.into())),
            any::<Vec<u8>>().prop_map(|bytes| Data::Binary(bytes.into())),
        ]
    }

    fn properties() -> impl Strategy<Value = Properties> {
        let user = vec((any::<String>(), any::<String>()), 0..4);
        let content_type = option::of(any::<String>());
        (any::<bool>(), content_type, option::of(name()), option::of(any::<Vec<u8>>()), user)
            .prop_map(|(is_text, content_type, response_topic, correlation_data, user)| {
                Properties {
                    is_text,
                    content_type: content_type.map(Box::from),
                    response_topic,
                    correlation_data: correlation_data.map(Box::from),
                    user: user
                        .into_iter()
                        .map(|(name, value)| (name.into(), value.into()))
                        .collect(),
                }
            })
    }

    fn attributes() -> impl Strategy<Value = Attributes> {
        let number = || option::of(any::<u64>());
        let names = (vec(name(), 0..4), option::of(name()), option::of(name()));
        (names, number(), option::of(properties()), number(), number(), any::<bool>()).prop_map(
            |((tags, key, sender), expires_ms, properties, except_session, by_session, is_own)| {
                let properties = properties.map(Box::new);
                Attributes {
                    tags,
                    key,
                    sender,
                    expires_ms,
                    properties,
                    except_session,
                    by_session,
                    is_own,
                }
            },
        )
    }

    fn publication() -> impl Strategy<Value = Publication> {
        let id = any::<(u32, u16, u32, u32)>().prop_map(|(node, shard, slot, serial)| {
            ConnectionId { node: NodeId(node), shard, slot, serial }
        });
        let attributes = option::of(attributes().prop_map(Box::new));
        let quality = (0..3u8).prop_map(|number| Qos::from_number(number).unwrap_or_default());
        let rest = (attributes, quality, any::<bool>());
        (name(), option::of(name()), data(), option::of(id), rest).prop_map(
            |(topic, event, data, except, (attributes, qos, retain))| Publication {
                topic,
                event,
                data,
                except,
                attributes,
                qos,
                retain,
            },
        )
    }

    fn hash(name: &str) -> u64 {
        name.bytes().fold(7, |hash, byte| hash * 31 % 1_000_003 + u64::from(byte))
    }

    fn envelope() -> impl Strategy<Value = Envelope> {
        let retention = prop_oneof![
            Just(Retention::None),
            Just(Retention::Passing),
            Just(Retention::History),
            Just(Retention::Acknowledged),
        ];
        let numbers = any::<(u32, u64, u64, u64)>();
        (publication(), numbers, retention, option::of(vec(name(), 0..4))).prop_map(
            |(publication, (epoch, offset, published_us, at_ms), retention, filters)| {
                let topic_hash = hash(&publication.topic);
                let id = Position { epoch: Epoch(epoch), offset };
                let message =
                    Message { id, topic_hash, published_us, at_ms, retention, publication };
                let key = |name: Name| Arc::new(FilterKey { hash: hash(&name), name });
                let filters = filters.map(|names| names.into_iter().map(key).collect());
                Envelope::from(message).matched_by(filters)
            },
        )
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written(envelope in envelope()) {
            let read = decode(&encode(&envelope), &hash).unwrap();
            let Message { id, topic_hash, published_us, at_ms, retention, publication } =
                &read.message;
            prop_assert_eq!(publication, &envelope.publication);
            prop_assert_eq!((*id, *topic_hash), (envelope.id, envelope.topic_hash));
            prop_assert_eq!((*published_us, *at_ms), (envelope.published_us, envelope.at_ms));
            prop_assert_eq!(*retention, envelope.retention);
            prop_assert_eq!(&read.filters, &envelope.filters);
        }

        #[test]
        fn what_is_published_is_read_as_it_was_written(publication in publication()) {
            let read = decode_publication(&encode_publication(&publication)).unwrap();
            prop_assert_eq!(read, publication);
        }

        #[test]
        fn choices_of_groups_go_along_and_others_pass_over_them(
            publication in publication(),
            choices in vec((any::<u32>(), name()), 0..4),
        ) {
            let choice = |(node, group)| GroupChoice { node: NodeId(node), group };
            let choices: Vec<GroupChoice> = choices.into_iter().map(choice).collect();
            let mut bytes = Vec::new();
            encode_shared_into(&publication, &choices, &mut bytes);
            prop_assert_eq!(decode_publication(&bytes).unwrap(), publication.clone());
            prop_assert_eq!(decode_shared(&bytes).unwrap(), (publication, choices));
        }

        #[test]
        fn a_cut_message_is_none(envelope in envelope(), cut in any::<prop::sample::Index>()) {
            let bytes = encode(&envelope);
            prop_assert!(decode(&bytes[..cut.index(bytes.len())], &hash).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in any::<Vec<u8>>()) {
            let _ = (decode(&bytes, &hash), decode_publication(&bytes), decode_shared(&bytes));
        }
    }
}

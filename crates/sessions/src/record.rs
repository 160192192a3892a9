//! Publications in their stored form, which is also passed to other engines: CBOR, in which fields may be added.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use model::{Attributes, Data, Name, Properties, Publication, Qos};

/// Names as texts.
pub mod name {
    use minicbor::decode::{self, Decoder};
    use minicbor::encode::{self, Encoder, Write};
    use model::Name;

    /// Writes a name.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn encode<C, W: Write>(
        name: &Name,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        e.str(name)?.ok()
    }

    /// Reads a name.
    ///
    /// # Errors
    /// If it is not a text.
    pub fn decode<C>(d: &mut Decoder<'_>, _: &mut C) -> Result<Name, decode::Error> {
        d.str().map(Name::from)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
enum Payload {
    #[n(0)]
    Json(#[n(0)] String),
    #[n(1)]
    Text(#[n(0)] String),
    #[n(2)]
    Binary(#[n(0)] ByteVec),
}

/// A publication.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct PublicationRecord {
    #[n(0)]
    topic: String,
    #[n(1)]
    event: Option<String>,
    #[n(2)]
    payload: Payload,
    #[n(3)]
    qos: u8,
    #[n(4)]
    retain: bool,
    #[n(5)]
    attributes: Option<AttributesRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
struct AttributesRecord {
    #[n(0)]
    tags: Vec<String>,
    #[n(1)]
    key: Option<String>,
    #[n(2)]
    sender: Option<String>,
    #[n(3)]
    expires_ms: Option<u64>,
    #[n(4)]
    properties: Option<PropertiesRecord>,
    #[n(5)]
    except_session: Option<u64>,
    #[n(6)]
    by_session: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
struct PropertiesRecord {
    #[n(0)]
    is_text: bool,
    #[n(1)]
    content_type: Option<String>,
    #[n(2)]
    response_topic: Option<String>,
    #[n(3)]
    correlation_data: Option<ByteVec>,
    #[n(4)]
    user: Vec<(String, String)>,
}

impl From<&Publication> for PublicationRecord {
    /// Omits the excluded connection.
    fn from(publication: &Publication) -> Self {
        let Publication { topic, event, data, except: _, attributes, qos, retain } = publication;
        let payload = match data {
            Data::Json(text) => Payload::Json(text.as_ref().into()),
            Data::Text(text) => Payload::Text(text.as_ref().into()),
            Data::Binary(bytes) => Payload::Binary(bytes.to_vec().into()),
        };
        PublicationRecord {
            topic: topic.to_string(),
            event: event.as_ref().map(Name::to_string),
            payload,
            qos: qos.number(),
            retain: *retain,
            attributes: attributes.as_deref().map(AttributesRecord::from),
        }
    }
}

impl From<&Attributes> for AttributesRecord {
    fn from(attributes: &Attributes) -> Self {
        let Attributes {
            tags,
            key,
            sender,
            expires_ms,
            properties,
            except_session,
            by_session,
            is_own: _,
        } = attributes;
        AttributesRecord {
            tags: tags.iter().map(Name::to_string).collect(),
            key: key.as_ref().map(Name::to_string),
            sender: sender.as_ref().map(Name::to_string),
            expires_ms: *expires_ms,
            properties: properties.as_deref().map(PropertiesRecord::from),
            except_session: *except_session,
            by_session: *by_session,
        }
    }
}

impl From<&Properties> for PropertiesRecord {
    fn from(properties: &Properties) -> Self {
        let Properties { is_text, content_type, response_topic, correlation_data, user } =
            properties;
        PropertiesRecord {
            is_text: *is_text,
            content_type: content_type.as_deref().map(Into::into),
            response_topic: response_topic.as_ref().map(Name::to_string),
            correlation_data: correlation_data.as_ref().map(|data| data.to_vec().into()),
            user: user.iter().map(|(name, value)| (name[..].into(), value[..].into())).collect(),
        }
    }
}

impl From<PublicationRecord> for Publication {
    fn from(record: PublicationRecord) -> Self {
        let PublicationRecord { topic, event, payload, qos, retain, attributes } = record;
        let data = match payload {
            Payload::Json(text) => Data::Json(text.into()),
            Payload::Text(text) => Data::Text(text.into()),
            Payload::Binary(bytes) => Data::Binary(Vec::from(bytes).into()),
        };
        Publication {
            event: event.map(Name::from),
            attributes: attributes.map(|it| Box::new(it.into())),
            // A newer version may have other values.
            qos: Qos::from_number(qos).unwrap_or_default(),
            retain,
            ..Publication::new(topic, data)
        }
    }
}

impl From<AttributesRecord> for Attributes {
    fn from(record: AttributesRecord) -> Self {
        let AttributesRecord {
            tags,
            key,
            sender,
            expires_ms,
            properties,
            except_session,
            by_session,
        } = record;
        Attributes {
            tags: tags.into_iter().map(Name::from).collect(),
            key: key.map(Name::from),
            sender: sender.map(Name::from),
            expires_ms,
            properties: properties.map(|it| Box::new(it.into())),
            except_session,
            by_session,
            // The node's messages about itself are not stored.
            is_own: false,
        }
    }
}

impl From<PropertiesRecord> for Properties {
    fn from(record: PropertiesRecord) -> Self {
        let PropertiesRecord { is_text, content_type, response_topic, correlation_data, user } =
            record;
        Properties {
            is_text,
            content_type: content_type.map(Into::into),
            response_topic: response_topic.map(Name::from),
            correlation_data: correlation_data.map(|data| Vec::from(data).into()),
            user: user.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_is_read_as_it_was_written() {
        let properties = Properties {
            is_text: true,
            content_type: Some("text/plain".into()),
            response_topic: Some("answers".into()),
            correlation_data: Some([0, 255].into()),
            user: vec![("a".into(), "1".into()), ("a".into(), "2".into())],
        };
        let attributes = Attributes {
            tags: vec!["red".into()],
            key: Some("k".into()),
            sender: Some("alice".into()),
            expires_ms: Some(9),
            properties: Some(Box::new(properties)),
            except_session: Some(7),
            by_session: Some(8),
            is_own: false,
        };
        for data in [Data::Json("{}".into()), Data::Text("x".into()), Data::Binary([1].into())] {
            let publication = Publication {
                event: Some("e".into()),
                attributes: Some(Box::new(attributes.clone())),
                qos: Qos::AtLeastOnce,
                retain: true,
                ..Publication::new("t", data)
            };
            let bytes = minicbor::to_vec(PublicationRecord::from(&publication)).unwrap();
            let record: PublicationRecord = minicbor::decode(&bytes).unwrap();
            assert_eq!(Publication::from(record), publication);
        }
        let plain = Publication::new("t", Data::Text("x".into()));
        assert_eq!(Publication::from(PublicationRecord::from(&plain)), plain);
    }
}

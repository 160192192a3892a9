//! The fields behind the bit `more` of a record, which only MQTT publishers set.

use model::{Name, Properties, Publication, Qos};

use crate::coding::{Decoder, put_bytes, put_varint};
use crate::error::RowError;

const QOS: u64 = 0b11;
const RETAIN: u64 = 1 << 2;
const PROPERTIES: u64 = 1 << 3;
const IS_TEXT: u64 = 1 << 4;
const CONTENT_TYPE: u64 = 1 << 5;
const RESPONSE_TOPIC: u64 = 1 << 6;
const CORRELATION: u64 = 1 << 7;
const EXCEPT_SESSION: u64 = 1 << 8;

/// The fields that only MQTT publishers set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MoreRef<'a> {
    pub qos: Qos,
    pub retain: bool,
    pub properties: Option<PropertiesRef<'a>>,
    pub except_session: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PropertiesRef<'a> {
    is_text: bool,
    content_type: Option<&'a str>,
    response_topic: Option<&'a str>,
    correlation_data: Option<&'a [u8]>,
    /// The number of names with values and their encoded bytes, which are valid.
    user: (usize, &'a [u8]),
}

/// Returns true if the record needs these fields. Most messages don't.
pub(crate) fn has_more(publication: &Publication) -> bool {
    publication.qos != Qos::default()
        || publication.retain
        || publication.properties().is_some()
        || publication.except_session().is_some()
}

pub(crate) fn put_more(publication: &Publication, out: &mut Vec<u8>) {
    let bit = |is_there: bool, bit: u64| if is_there { bit } else { 0 };
    let except_session = publication.except_session();
    let mut flags = u64::from(publication.qos.number())
        | bit(publication.retain, RETAIN)
        | bit(except_session.is_some(), EXCEPT_SESSION);
    if let Some(it) = publication.properties() {
        flags |= PROPERTIES
            | bit(it.is_text, IS_TEXT)
            | bit(it.content_type.is_some(), CONTENT_TYPE)
            | bit(it.response_topic.is_some(), RESPONSE_TOPIC)
            | bit(it.correlation_data.is_some(), CORRELATION);
    }
    put_varint(out, flags);
    except_session.iter().for_each(|mark| out.extend_from_slice(&mark.to_le_bytes()));
    let Some(properties) = publication.properties() else { return };
    let Properties { is_text: _, content_type, response_topic, correlation_data, user } =
        properties;
    content_type.iter().for_each(|text| put_bytes(out, text.as_bytes()));
    response_topic.iter().for_each(|topic| put_bytes(out, topic.as_bytes()));
    correlation_data.iter().for_each(|data| put_bytes(out, data));
    put_varint(out, user.len() as u64);
    for (name, value) in user {
        put_bytes(out, name.as_bytes());
        put_bytes(out, value.as_bytes());
    }
}

impl<'a> MoreRef<'a> {
    /// The fields of a record without them.
    pub const NONE: MoreRef<'static> =
        MoreRef { qos: Qos::ExactlyOnce, retain: false, properties: None, except_session: None };

    /// Reads the fields.
    pub fn decode(input: &mut Decoder<'a>) -> Result<Self, RowError> {
        let flags = input.number()?;
        let has = |bit: u64| flags & bit != 0;
        let qos = Qos::from_number((flags & QOS) as u8).ok_or(RowError)?;
        let parts = IS_TEXT | CONTENT_TYPE | RESPONSE_TOPIC | CORRELATION;
        if !has(PROPERTIES) && has(parts) || flags >> 9 != 0 {
            return Err(RowError);
        }
        let except_session = has(EXCEPT_SESSION).then(|| input.array().map(u64::from_le_bytes));
        let except_session = except_session.transpose()?;
        let properties = has(PROPERTIES).then(|| {
            let content_type = has(CONTENT_TYPE).then(|| input.text()).transpose()?;
            let response_topic = has(RESPONSE_TOPIC).then(|| input.text()).transpose()?;
            let correlation_data = has(CORRELATION).then(|| input.bytes()).transpose()?;
            let count = input.count()?;
            let from = input.0;
            (0..count).try_for_each(|_| input.text().and_then(|_| input.text()).map(|_| ()))?;
            let user = (count, &from[..from.len() - input.0.len()]);
            let is_text = has(IS_TEXT);
            Ok(PropertiesRef { is_text, content_type, response_topic, correlation_data, user })
        });
        let properties = properties.transpose()?;
        Ok(MoreRef { qos, retain: has(RETAIN), properties, except_session })
    }
}

impl PropertiesRef<'_> {
    /// Returns the bytes of memory of a copy.
    pub fn bytes(&self) -> usize {
        let mut input = Decoder(self.user.1);
        let user = (0..2 * self.user.0).map(|_| input.text().map_or(0, str::len));
        let texts = self.content_type.map_or(0, str::len)
            + self.response_topic.map_or(0, str::len)
            + self.correlation_data.map_or(0, <[u8]>::len)
            + user.sum::<usize>();
        Properties::bytes_of(texts, self.user.0)
    }

    /// Copies the properties.
    pub fn copy(&self) -> Result<Properties, RowError> {
        let mut input = Decoder(self.user.1);
        let mut text = || input.text().map(Box::from);
        let user = (0..self.user.0).map(|_| Ok((text()?, text()?)));
        Ok(Properties {
            is_text: self.is_text,
            content_type: self.content_type.map(Box::from),
            response_topic: self.response_topic.map(Name::from),
            correlation_data: self.correlation_data.map(Box::from),
            user: user.collect::<Result<_, _>>()?,
        })
    }
}

//! A message on its way, with its encodings beside it.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::{Attributes, Message, Name};

/// An encoding of messages for connections: connections with the same one get the same bytes.
///
/// A small number, below [`Encoding::MAX`]. This crate does not know what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Encoding(pub u8);

impl Encoding {
    /// How many encodings a process may know. Each costs a message that is sent 24 bytes.
    pub const MAX: usize = 22;

    /// All numbers below [`Encoding::MAX`], also those that no protocol has.
    pub const ALL: [Encoding; Encoding::MAX] = {
        let mut all = [Encoding(0); Encoding::MAX];
        let mut number = 1;
        while number < Encoding::MAX {
            all[number].0 = all[number - 1].0 + 1;
            number += 1;
        }
        all
    };
}

/// One cell for each encoding.
type Cells = [OnceLock<Arc<[u8]>>; Encoding::MAX];

/// A message's encodings, each made on first use. All shards share them.
#[derive(Debug, Default)]
pub struct Encodings(
    /// No shard encodes most messages of a history, which wait for absent members.
    OnceLock<Box<Cells>>,
);

impl Encodings {
    /// Returns the bytes of an encoding; the first caller makes them with `encode`.
    ///
    /// No thread waits: two threads that call at the same moment both encode, and one result stays.
    pub fn get_or_encode(&self, encoding: Encoding, encode: impl FnOnce() -> Vec<u8>) -> Arc<[u8]> {
        let cells = self.0.get_or_init(|| Box::new([const { OnceLock::new() }; Encoding::MAX]));
        let Some(cell) = cells.get(usize::from(encoding.0)) else {
            return encode().into();
        };
        if let Some(bytes) = cell.get() {
            return bytes.clone();
        }
        let bytes: Arc<[u8]> = encode().into();
        match cell.set(bytes.clone()) {
            Ok(()) => bytes,
            Err(_) => cell.get().cloned().unwrap_or(bytes),
        }
    }
}

/// A filter that matches a message's topic, as the shards know it.
#[derive(Debug, PartialEq, Eq)]
pub struct FilterKey {
    /// The hash of its name.
    pub hash: u64,
    /// Its name beside those of topics: see [`crate::name::filter`].
    pub name: Name,
}

/// A message and, beside it, its encodings: what the broker passes to the shards.
#[derive(Debug)]
pub struct Envelope {
    /// The message.
    pub message: Message,
    /// Its encodings.
    pub encodings: Encodings,
    /// The filters that matched its topic when it was published, if connections had any, by their names.
    pub filters: Option<Box<[Arc<FilterKey>]>>,
}

impl Envelope {
    /// The memory that it takes with one encoding, in bytes, roughly.
    pub fn bytes(&self) -> usize {
        let publication = &self.message.publication;
        let attributes = publication.attributes.as_ref().map_or(0, |attributes| {
            let properties = attributes.properties.as_ref();
            // An encoding contains them, too.
            let properties = properties.map_or(0, |it| 2 * it.bytes());
            size_of::<Attributes>() + attributes.tags.len() * size_of::<Name>() + properties
        });
        let encodings = size_of::<Cells>();
        let filters = self.filters.as_ref().map_or(0, |filters| 8 * filters.len());
        size_of::<Envelope>()
            + encodings
            + 2 * publication.data.bytes()
            + attributes
            + filters
            + 128
    }

    /// Returns the same message with the filters that match it.
    #[must_use]
    pub fn matched_by(self, mut filters: Option<Box<[Arc<FilterKey>]>>) -> Self {
        filters.iter_mut().for_each(|keys| keys.sort_unstable_by(|a, b| a.name.cmp(&b.name)));
        Envelope { filters, ..self }
    }

    /// True if the filter of this name matched its topic.
    pub fn is_matched_by(&self, name: &Name) -> bool {
        let keys = self.filters.as_deref().unwrap_or_default();
        keys.binary_search_by(|key| key.name.cmp(name)).is_ok()
    }
}

impl From<Message> for Envelope {
    fn from(message: Message) -> Self {
        Envelope { message, encodings: Encodings::default(), filters: None }
    }
}

impl Deref for Envelope {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Data, Epoch, Position, Properties, Publication};

    #[test]
    fn what_mqtt_says_of_a_message_counts() {
        let user = vec![("".into(), "".into()); 10_000];
        let properties = Properties { user, ..Properties::default() };
        let plain = Publication::new("a", Data::Text("x".into()));
        let mut said = plain.clone();
        let attributes = said.attributes.get_or_insert_default();
        attributes.properties = Some(Box::new(properties));
        let bytes = |publication: &Publication| {
            let id = Position { epoch: Epoch(1), offset: 1 };
            Envelope::from(Message::new(publication.clone(), id, 0, 0)).bytes()
        };
        assert!(bytes(&said) > bytes(&plain) + 640_000, "{}", bytes(&said));
        assert!(plain.bytes() == 1 && said.bytes() > 640_000);
    }

    #[test]
    fn an_encoding_is_made_once() {
        let encodings = Encodings::default();
        let first = encodings.get_or_encode(Encoding(3), || b"abc".to_vec());
        let second = encodings.get_or_encode(Encoding(3), || panic!("made twice"));
        assert!(Arc::ptr_eq(&first, &second));
        let beyond = Encoding(Encoding::MAX as u8);
        assert_eq!(*encodings.get_or_encode(beyond, || b"x".to_vec()), *b"x");
    }
}

//! Messages by their topics and positions, as records name them.

use minicbor::{Decode, Encode};
use model::{Message, Name, Position};

use crate::handover::value::Text;

/// Identifies a message, without its content.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct MessageKey {
    #[n(0)]
    topic: Text<Name>,
    #[n(1)]
    id: Text<Position>,
}

impl MessageKey {
    /// Returns the key of a message.
    pub fn of(message: &Message) -> Self {
        MessageKey { topic: Text(message.publication.topic.clone()), id: Text(message.id) }
    }

    /// True when it is the key of this message.
    pub fn is_of(&self, message: &Message) -> bool {
        self.id.0 == message.id && self.topic.0 == message.publication.topic
    }
}

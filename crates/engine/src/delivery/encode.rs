//! Encodes messages, and sends bytes to one connection.

use std::sync::Arc;

use model::Envelope;
use protocol::{Codecs, Delivery, ProtocolRef, encoded};

use crate::connection::{Connection, Flag};
use crate::core::Core;
use crate::delivery::outbox::{Chunk, Piece};

impl Core {
    /// Sends bytes to one connection, behind its earlier ones.
    pub(crate) fn send(&mut self, slot: u32, bytes: &[u8], messages: u32) {
        match self.table.get(slot).map(|connection| self.delivery(connection)) {
            Some(Delivery::Gathered) => {
                let piece = Piece::new(bytes.into(), &self.metrics);
                if self.session_take(slot, Chunk::new(piece, messages)) {
                    self.session_wake(slot, false);
                }
            }
            Some(Delivery::Nothing | Delivery::Pushed | Delivery::Subscribed | Delivery::Woken) => {
                self.outputs.send(slot, bytes, messages, false);
            }
            None => {}
        }
    }

    /// As `Core::send`, but waits: nothing more of its kind is sent before this has left.
    pub(crate) fn send_and_wait(&mut self, slot: u32, bytes: &[u8]) {
        if self.is_gathered(slot) || self.table.get(slot).is_none() {
            return self.send(slot, bytes, 0);
        }
        self.set(slot, Flag::Awaiting, true);
        self.outputs.send(slot, bytes, 0, true);
    }

    /// True while a connection has not taken all bytes that were sent to it.
    pub(crate) fn is_backlogged(&self, slot: u32) -> bool {
        let session = self.table.cold(slot).and_then(|cold| cold.session.as_ref());
        match session {
            Some(session) => !session.outbox.is_empty(),
            None => self.table.get(slot).is_some_and(Connection::is_backlogged),
        }
    }
}

/// Encodes the messages as one run of bytes for a protocol. One message is encoded once for all shards.
pub(crate) fn encode<'a>(
    mut messages: impl ExactSizeIterator<Item = &'a Arc<Envelope>>,
    protocol: ProtocolRef,
    codecs: &mut Codecs,
) -> Arc<[u8]> {
    match (messages.len(), messages.next()) {
        (1, Some(message)) => encoded(message, protocol, codecs),
        (_, first) => {
            let mut all = Vec::new();
            for message in first.into_iter().chain(messages) {
                all.extend_from_slice(&encoded(message, protocol, codecs));
            }
            all.into()
        }
    }
}

/// As `encode`, for the members of a list: the protocol's clients get the messages under the list's name.
pub(crate) fn encode_by<'a>(
    messages: impl Iterator<Item = &'a Arc<Envelope>>,
    list: &str,
    protocol: ProtocolRef,
    codecs: &mut Codecs,
) -> Arc<[u8]> {
    let mut all = Vec::new();
    messages.for_each(|message| protocol.encode_by(message, list, codecs, &mut all));
    all.into()
}

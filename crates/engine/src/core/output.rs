//! The outputs of an engine, in order. The driver drains them after every input.

use std::ops::Range;
use std::sync::Arc;

use broker::{DeliveryObserver, ShardDelivery};

use crate::core::command::ConnectionInfo;
use crate::core::reply::Reply;
use crate::trace::event::Traced;

/// One action for the driver.
pub enum Output {
    /// Send bytes to one connection, behind its queued bytes.
    Send {
        /// The connection.
        slot: u32,
        /// The range of the bytes in [`Outputs::bytes`].
        bytes: Range<usize>,
        /// The number of messages in the bytes.
        messages: u32,
        /// The engine waits for [`crate::Engine::on_drained`] before it sends more.
        confirm: bool,
    },
    /// Send the same bytes to many connections: a slice of a fan-out, or a heartbeat.
    Shared {
        /// The bytes.
        bytes: Arc<[u8]>,
        /// The range of the slots in [`Outputs::slots`].
        slots: Range<usize>,
        /// The number of messages in the bytes.
        messages: u32,
        /// The hash of the messages' topic, whose publishers wait for slow members.
        topic: Option<u64>,
    },
    /// Record the latency of the messages that were sent just before.
    Delivered {
        /// The time of their publication, in microseconds of the node's clock.
        published_us: u64,
        /// The number of connections that got them.
        connections: u64,
    },
    /// Read again from a socket that was paused.
    Resume {
        /// The connection.
        slot: u32,
    },
    /// Close the connection when all of its bytes have left.
    Close {
        /// The connection.
        slot: u32,
        /// Close only our side, until the peer has closed its own.
        linger: bool,
    },
    /// Close the connection at once: the engine has forgotten it.
    Drop {
        /// The connection.
        slot: u32,
    },
    /// Report the peer's address: see [`crate::Engine::on_address`].
    Address {
        /// The connection.
        slot: u32,
    },
    /// Add what the sockets know about connections, and reply.
    Describe(Box<Describe>),
    /// Describe the connections with the most unsent bytes, and reply: see [`crate::Engine::describe`].
    Slowest(Box<Slowest>),
    /// Call the observer of a message when all earlier bytes have been written to sockets.
    Observed(Box<ObservedDelivery>),
    /// Add the number of the connection's unsent bytes, and pass the event to its sink.
    Traced(Box<Traced>),
}

/// Connections that a command wants described.
pub struct Describe {
    /// The number of all that match.
    pub members: u32,
    /// Some of them, without what their sockets know.
    pub connections: Vec<ConnectionInfo>,
    /// Where the reply goes.
    pub reply: Reply<(u32, Vec<ConnectionInfo>)>,
}

/// A command for the connections with the largest outboxes.
pub struct Slowest {
    /// The limit on descriptions.
    pub limit: usize,
    /// Where the reply goes.
    pub reply: Reply<(u32, Vec<ConnectionInfo>)>,
}

/// An observed message: the bytes for its last member are among the outputs. The driver calls the observer when it has
/// sent them.
pub struct ObservedDelivery {
    /// The observer.
    pub observer: Arc<dyn DeliveryObserver>,
    /// The delivery. The driver knows the time at which it was sent.
    pub delivery: ShardDelivery,
}

/// Outputs that wait for the driver, with their bytes and slots.
#[derive(Default)]
pub struct Outputs {
    /// The outputs, in order.
    pub list: Vec<Output>,
    /// The bytes of [`Output::Send`].
    pub bytes: Vec<u8>,
    /// The slots of [`Output::Shared`].
    pub slots: Vec<u32>,
}

/// The capacity that [`Outputs::bytes`] retains between inputs, in bytes. The other buffers don't shrink.
const RETAINED_BYTES: usize = 64 << 10;

impl Outputs {
    /// True if no output waits.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn push(&mut self, output: Output) {
        self.list.push(output);
    }

    pub(crate) fn send(&mut self, slot: u32, bytes: &[u8], messages: u32, confirm: bool) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let bytes = from..self.bytes.len();
        self.list.push(Output::Send { slot, bytes, messages, confirm });
    }

    pub(crate) fn share(
        &mut self,
        bytes: Arc<[u8]>,
        slots: &[u32],
        messages: u32,
        topic: Option<u64>,
    ) {
        let from = self.slots.len();
        self.slots.extend_from_slice(slots);
        let slots = from..self.slots.len();
        self.list.push(Output::Shared { bytes, slots, messages, topic });
    }

    /// Empties the outputs for the next input.
    pub fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
        self.slots.clear();
        self.bytes.shrink_to(RETAINED_BYTES);
    }
}

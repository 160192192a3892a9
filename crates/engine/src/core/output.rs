//! What an engine wants done, in order: its driver drains it after every input.

use std::ops::Range;
use std::sync::Arc;

use broker::{DeliveryObserver, ShardDelivery};

use crate::core::command::ConnectionInfo;
use crate::core::reply::Reply;
use crate::trace::event::Traced;

/// One thing for the driver to do.
pub enum Output {
    /// Send bytes to one connection, behind what waits for it.
    Send {
        /// The connection.
        slot: u32,
        /// Where the bytes are in [`Outputs::bytes`].
        bytes: Range<usize>,
        /// How many messages they hold.
        messages: u32,
        /// The engine waits for [`crate::Engine::on_drained`] before it sends more.
        confirm: bool,
    },
    /// Send the same bytes to many connections: a slice of a fan-out, or a heartbeat.
    Shared {
        /// The bytes.
        bytes: Arc<[u8]>,
        /// Where the slots are in [`Outputs::slots`].
        slots: Range<usize>,
        /// How many messages the bytes hold.
        messages: u32,
        /// The hash of the messages' topic, whose publishers wait for slow members.
        topic: Option<u64>,
    },
    /// Messages went out just before.
    Delivered {
        /// When they were published, in microseconds of the node's clock.
        published_us: u64,
        /// To how many connections they went.
        connections: u64,
    },
    /// Read from the socket again, which was left unread.
    Resume {
        /// The connection.
        slot: u32,
    },
    /// Close the connection when everything has left.
    Close {
        /// The connection.
        slot: u32,
        /// Close only our side, until the peer has closed its own.
        linger: bool,
    },
    /// Close the connection now: the engine has forgotten it.
    Drop {
        /// The connection.
        slot: u32,
    },
    /// Say where the peer is: see [`crate::Engine::on_address`].
    Address {
        /// The connection.
        slot: u32,
    },
    /// Add what sockets know of connections, and answer.
    Describe(Box<Describe>),
    /// Describe the connections for which most bytes wait, and answer: see [`crate::Engine::describe`].
    Slowest(Box<Slowest>),
    /// Call the observer of a message once all that was sent before has been written to sockets.
    Observed(Box<ObservedDelivery>),
    /// Add the bytes that wait for a connection, and give the event to its sink.
    Traced(Box<Traced>),
}

/// Connections that somebody asked about.
pub struct Describe {
    /// How many there are.
    pub members: u32,
    /// Some of them, without what their sockets know.
    pub connections: Vec<ConnectionInfo>,
    /// Where the answer goes.
    pub reply: Reply<(u32, Vec<ConnectionInfo>)>,
}

/// The connections with the largest outboxes are asked for.
pub struct Slowest {
    /// Describe so many at most.
    pub limit: usize,
    /// Where the answer goes.
    pub reply: Reply<(u32, Vec<ConnectionInfo>)>,
}

/// A message for whose last member all bytes are output. The driver calls the observer when it has sent them.
pub struct ObservedDelivery {
    /// What to call.
    pub observer: Arc<dyn DeliveryObserver>,
    /// The delivery. The driver knows the time at which it was sent.
    pub delivery: ShardDelivery,
}

/// Outputs that wait for the driver, and the bytes and slots that they name.
#[derive(Default)]
pub struct Outputs {
    /// In order.
    pub list: Vec<Output>,
    /// What [`Output::Send`] sends.
    pub bytes: Vec<u8>,
    /// Where [`Output::Shared`] goes.
    pub slots: Vec<u32>,
}

/// What the buffers may hold on to from one input to the next.
const RETAINED_BYTES: usize = 64 << 10;

impl Outputs {
    /// True when nothing waits.
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

    /// Makes it ready for the next outputs.
    pub fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
        self.slots.clear();
        self.bytes.shrink_to(RETAINED_BYTES);
    }
}

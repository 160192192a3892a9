//! Messages with acknowledgements: those in flight between a client and the server, by packet identifier (MQTT 5.0,
//! sections 4.3 and 4.4; 3.1.1 the same).

use std::collections::VecDeque;

use minicbor::{Decode, Encode};
use model::{Name, Qos};

/// The messages in flight in both directions. A message is not sent again on its own connection: only the next
/// connection repeats it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The last packet identifier; 0 at the beginning.
    last_id: u16,
    /// Messages to the client, in the order in which they were sent.
    out: VecDeque<Outgoing>,
    /// Packet identifiers of messages with QoS 2 from the client, which it has not released yet. In order.
    incoming: Vec<u16>,
}

/// A message to the client in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its packet identifier; never 0.
    pub id: u16,
    /// Its state.
    pub state: State,
    /// The source from which the next connection reads it again; `None` in a session without a next one.
    pub source: Option<Box<Source>>,
}

/// The state of a message to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum State {
    /// It was sent with QoS 1, and awaits PUBACK.
    #[n(1)]
    AtLeastOnce,
    /// It was sent with QoS 2, and awaits PUBREC.
    #[n(2)]
    ExactlyOnce,
    /// The client has it, and PUBREL was sent. It awaits PUBCOMP, and its payload is not needed any more.
    #[n(3)]
    Released,
}

/// The position of a message in the history.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Source {
    /// Its topic.
    #[cbor(n(0), with = "crate::record::name")]
    pub topic: Name,
    /// Its offset in the log of the topics with history.
    #[n(1)]
    pub offset: u64,
    /// True if it was the topic's retained message.
    #[n(2)]
    pub retained: bool,
    /// The group that has chosen the session for it, by its name in the hub. `None` if it matches a subscription of
    /// the session's own.
    #[n(3)]
    pub group: Option<Box<str>>,
}

/// The effect of a client's PUBACK, PUBREC or PUBCOMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// The message is done.
    Done(Outgoing),
    /// The server must send PUBREL.
    Release,
    /// The server has sent PUBREL before.
    Again,
    /// No message with this packet identifier is in flight.
    Unknown,
    /// The message awaits another packet.
    Mismatched,
}

impl Confirmed {
    /// Returns true if the packet was the first reply to the message.
    pub fn is_expected(&self) -> bool {
        matches!(self, Confirmed::Done(_) | Confirmed::Release)
    }
}

/// The state of a message with QoS 2 from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// It is new, and must be published.
    New,
    /// It was published before, and is only acknowledged again.
    Again,
    /// Too many are in flight.
    TooMany,
}

impl Flow {
    /// Returns true if no message is in flight.
    pub fn is_idle(&self) -> bool {
        self.out.is_empty() && self.incoming.is_empty()
    }

    /// Returns the number of messages in flight to the client.
    pub fn in_flight(&self) -> usize {
        self.out.len()
    }

    /// Returns the number of messages with QoS 2 in flight from the client.
    pub fn incoming(&self) -> usize {
        self.incoming.len()
    }

    /// Returns the messages in flight to the client, in the order in which they were sent.
    pub fn out(&self) -> impl Iterator<Item = &Outgoing> {
        self.out.iter()
    }

    /// Adds a message that is about to be sent, and returns its packet identifier. `None` if `window` messages are in
    /// flight, at most 65,535, or if it needs none.
    pub fn send(&mut self, qos: Qos, source: Option<Source>, window: usize) -> Option<u16> {
        let state = match qos {
            Qos::AtMostOnce => return None,
            Qos::AtLeastOnce => State::AtLeastOnce,
            Qos::ExactlyOnce => State::ExactlyOnce,
        };
        if self.out.len() >= window.min(usize::from(u16::MAX)) {
            return None;
        }
        let id = loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if self.out.iter().all(|outgoing| outgoing.id != self.last_id) {
                break self.last_id;
            }
        };
        self.out.push_back(Outgoing { id, state, source: source.map(Box::new) });
        Some(id)
    }

    /// Removes these messages with QoS 2, which were never sent. Returns their sources, in order.
    pub fn take_unsent(&mut self, ids: &[u16]) -> Vec<Source> {
        let is_unsent = |it: &Outgoing| it.state == State::ExactlyOnce && ids.contains(&it.id);
        let (unsent, out): (Vec<_>, _) = self.out.drain(..).partition(is_unsent);
        self.out = out.into();
        unsent.into_iter().filter_map(|it| it.source.map(|source| *source)).collect()
    }

    /// Returns the source of a message that the client has not acknowledged.
    pub fn source(&self, id: u16) -> Option<&Source> {
        self.out.iter().find(|outgoing| outgoing.id == id)?.source.as_deref()
    }

    /// Returns how far the client has a topic when it has acknowledged the message at this offset: up to the offset
    /// before the first message that it has not acknowledged.
    pub fn has_through(&self, topic: &str, offset: u64) -> u64 {
        let sources = self.out.iter().filter_map(|outgoing| outgoing.source.as_deref());
        let before = sources.filter(|source| source.topic == topic && !source.retained);
        let before = before.map(|source| source.offset.saturating_sub(1)).min();
        before.map_or(offset, |before| before.min(offset))
    }

    /// Handles PUBACK.
    pub fn acknowledged(&mut self, id: u16) -> Confirmed {
        self.take_if(id, |state| state == State::AtLeastOnce)
    }

    /// Handles PUBREC, by which the client accepts or rejects the message.
    pub fn received(&mut self, id: u16, refused: bool) -> Confirmed {
        if refused {
            return self.take_if(id, |state| state == State::ExactlyOnce);
        }
        let Some(outgoing) = self.out.iter_mut().find(|outgoing| outgoing.id == id) else {
            return Confirmed::Unknown;
        };
        match outgoing.state {
            State::AtLeastOnce => Confirmed::Mismatched,
            State::ExactlyOnce => {
                (outgoing.state, outgoing.source) = (State::Released, None);
                Confirmed::Release
            }
            State::Released => Confirmed::Again,
        }
    }

    /// Handles PUBCOMP.
    pub fn completed(&mut self, id: u16) -> Confirmed {
        self.take_if(id, |state| state == State::Released)
    }

    /// Handles a message with QoS 2 from the client, which may have `max` in flight.
    pub fn receive(&mut self, id: u16, max: usize) -> Incoming {
        match self.incoming.binary_search(&id) {
            Ok(_) => Incoming::Again,
            Err(_) if self.incoming.len() >= max => Incoming::TooMany,
            Err(at) => {
                self.incoming.insert(at, id);
                Incoming::New
            }
        }
    }

    /// Returns true if a message with QoS 2 came under this packet identifier and is not released yet.
    pub fn has_incoming(&self, id: u16) -> bool {
        self.incoming.binary_search(&id).is_ok()
    }

    /// Handles PUBREL, or a message that could not be published. Returns false if no such message is in flight.
    pub fn release(&mut self, id: u16) -> bool {
        let position = self.incoming.binary_search(&id);
        if let Ok(at) = position {
            self.incoming.remove(at);
        }
        position.is_ok()
    }

    /// Gives up a message of an earlier connection that can't be read again, or must not be sent again. Returns true
    /// if PUBREL must be sent: a client that has the message reserves its identifier until then, and would mistake
    /// the next message with that identifier for it.
    #[must_use]
    pub fn give_up(&mut self, id: u16) -> bool {
        let is = self.received(id, false);
        if is == Confirmed::Mismatched {
            self.out.retain(|outgoing| outgoing.id != id);
        }
        is == Confirmed::Release
    }

    /// Gives up all messages to the client, because none can be read again.
    pub(crate) fn give_up_all(&mut self) {
        let ids: Vec<u16> = self.out.iter().map(|outgoing| outgoing.id).collect();
        for id in ids {
            // The next connection sends PUBREL of the messages that stay.
            let _ = self.give_up(id);
        }
    }

    fn take_if(&mut self, id: u16, is: impl Fn(State) -> bool) -> Confirmed {
        match self.out.iter().position(|outgoing| outgoing.id == id) {
            None => Confirmed::Unknown,
            Some(at) if !is(self.out[at].state) => Confirmed::Mismatched,
            Some(at) => match self.out.remove(at) {
                Some(outgoing) => Confirmed::Done(outgoing),
                None => Confirmed::Unknown,
            },
        }
    }
}

/// A stored flow, which is also passed to other engines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct FlowRecord {
    #[n(0)]
    last_id: u16,
    #[n(1)]
    out: Vec<OutgoingRecord>,
    #[n(2)]
    incoming: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
struct OutgoingRecord {
    #[n(0)]
    id: u16,
    #[n(1)]
    state: State,
    #[n(2)]
    source: Option<Source>,
}

impl Flow {
    /// Makes the record of the flow.
    pub fn export(&self) -> FlowRecord {
        let Flow { last_id, out, incoming } = self;
        let out = out.iter().map(|Outgoing { id, state, source }| OutgoingRecord {
            id: *id,
            state: *state,
            source: source.as_deref().cloned(),
        });
        FlowRecord { last_id: *last_id, out: out.collect(), incoming: incoming.clone() }
    }
}

impl FlowRecord {
    /// Makes a flow. Drops messages whose packet identifier is 0 or a duplicate.
    pub fn import(self) -> Flow {
        let mut flow = Flow { last_id: self.last_id, ..Flow::default() };
        for OutgoingRecord { id, state, source } in self.out {
            if id != 0 && flow.out.iter().all(|outgoing| outgoing.id != id) {
                flow.out.push_back(Outgoing { id, state, source: source.map(Box::new) });
            }
        }
        flow.incoming = self.incoming;
        flow.incoming.retain(|id| *id != 0);
        flow.incoming.sort_unstable();
        flow.incoming.dedup();
        flow
    }
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;

    fn source(offset: u64) -> Option<Source> {
        Some(Source { topic: "t".into(), offset, retained: false, group: None })
    }

    #[test]
    fn a_message_takes_its_way_by_its_quality() {
        let mut flow = Flow::default();
        assert_eq!(flow.send(Qos::AtMostOnce, None, 9), None);
        let one = flow.send(Qos::AtLeastOnce, source(1), 2).unwrap();
        let two = flow.send(Qos::ExactlyOnce, source(2), 2).unwrap();
        assert_eq!((one, two, flow.send(Qos::AtLeastOnce, None, 2)), (1, 2, None));
        // Packets of the other QoS have no effect.
        assert_eq!(flow.acknowledged(two), Confirmed::Mismatched);
        assert_eq!(flow.received(one, false), Confirmed::Mismatched);
        assert_eq!(flow.completed(two), Confirmed::Mismatched);
        assert_eq!(flow.acknowledged(9), Confirmed::Unknown);
        let done = |id, state, source: Option<Source>| {
            Confirmed::Done(Outgoing { id, state, source: source.map(Box::new) })
        };
        assert_eq!(flow.acknowledged(one), done(one, State::AtLeastOnce, source(1)));
        assert_eq!(flow.acknowledged(one), Confirmed::Unknown);
        assert_eq!(flow.received(two, false), Confirmed::Release);
        assert_eq!(flow.received(two, false), Confirmed::Again);
        assert_eq!(flow.completed(two), done(two, State::Released, None));
        assert!(flow.is_idle());
        let refused = flow.send(Qos::ExactlyOnce, source(3), 9).unwrap();
        let was = done(refused, State::ExactlyOnce, source(3));
        assert_eq!((refused, flow.received(refused, true)), (3, was));
    }

    #[test]
    fn what_is_given_up_is_released_where_the_client_may_have_it() {
        let mut flow = Flow::default();
        let one = flow.send(Qos::AtLeastOnce, source(1), 9).unwrap();
        let two = flow.send(Qos::ExactlyOnce, source(2), 9).unwrap();
        assert_eq!([one, two, 9].map(|id| flow.give_up(id)), [false, true, false]);
        let released = Outgoing { id: two, state: State::Released, source: None };
        assert_eq!(flow.out().collect::<Vec<_>>(), [&released]);
        assert!(flow.completed(two).is_expected() && flow.is_idle());
    }

    #[test]
    fn what_was_never_sent_is_not_under_way() {
        let mut flow = Flow::default();
        let qos = [Qos::ExactlyOnce, Qos::AtLeastOnce, Qos::ExactlyOnce, Qos::ExactlyOnce];
        for (qos, offset) in qos.into_iter().zip(1..) {
            flow.send(qos, source(offset), 9).unwrap();
        }
        assert_eq!(flow.received(4, false), Confirmed::Release);
        // A message with QoS 1 is sent at once, and a message that the client has received was sent.
        assert_eq!(flow.take_unsent(&[3, 2, 4, 9]), Vec::from_iter(source(3)));
        assert_eq!(flow.out().map(|it| it.id).collect::<Vec<_>>(), [1, 2, 4]);
    }

    #[test]
    fn packet_identifiers_go_round_and_are_not_shared() {
        let mut flow = Flow { last_id: u16::MAX - 1, ..Flow::default() };
        let mut send = || flow.send(Qos::AtLeastOnce, None, 9).unwrap();
        assert_eq!([send(), send(), send()], [u16::MAX, 1, 2]);
        flow.last_id = u16::MAX - 1;
        flow.acknowledged(1);
        let mut send = || flow.send(Qos::AtLeastOnce, None, 9).unwrap();
        assert_eq!([send(), send()], [1, 3]);
        let mut full = Flow::default();
        for _ in 0..u16::MAX {
            assert!(full.out.len() < 70_000);
            let id = full.last_id.checked_add(1).unwrap_or(1);
            full.last_id = id;
            full.out.push_back(Outgoing { id, state: State::AtLeastOnce, source: None });
        }
        assert_eq!(full.send(Qos::AtLeastOnce, None, usize::MAX), None);
    }

    #[test]
    fn a_message_with_qos_2_is_new_once_until_it_is_released() {
        let mut flow = Flow::default();
        assert_eq!(flow.receive(7, 2), Incoming::New);
        assert_eq!(flow.receive(7, 2), Incoming::Again);
        assert_eq!(flow.receive(3, 2), Incoming::New);
        assert_eq!(flow.receive(4, 2), Incoming::TooMany);
        assert_eq!((flow.release(7), flow.release(7)), (true, false));
        assert_eq!(flow.receive(7, 2), Incoming::New);
        assert_eq!(flow.incoming(), 2);
    }

    #[test]
    fn a_flow_is_read_as_it_was_written() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let mut flow = Flow::default();
            for step in 0..random.below(30) {
                let id = u16::try_from(random.below(9)).unwrap() + 1;
                match random.below(6) {
                    0 => _ = flow.send(Qos::AtLeastOnce, source(step), 9),
                    1 => _ = flow.send(Qos::ExactlyOnce, source(step), 9),
                    2 => _ = flow.acknowledged(id),
                    3 => _ = flow.received(id, random.below(4) == 0),
                    4 => _ = flow.receive(id, 5),
                    _ => _ = flow.release(id),
                }
            }
            let bytes = minicbor::to_vec(flow.export()).unwrap();
            let record: FlowRecord = minicbor::decode(&bytes).unwrap();
            assert_eq!(record.import(), flow);
        }
    }
}

//! State of an engine's connected MQTT clients.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;

use history::{Piece, Requester, TopicCursor};
use minicbor::{Decode, Encode};
use model::name::{of_filter, shown};
use model::{Envelope, FilterKey, Name, Qos, TopicKind};
use protocol::mqtt::{ClientLimits, Connect};
use sessions::{Session, SessionKey, Subscription, SubscriptionOptions, Will};
use tables::{PageTable, Slab};

use super::detached::Leaving;
use super::take_over::Repeat;

/// The clients of an engine, by slot.
#[derive(Default)]
pub(crate) struct Clients {
    rows: PageTable<Row>,
    /// The numbers of their connects in a cluster. Other nodes don't know of a client without one.
    connect_numbers: PageTable<NonZeroU64>,
    /// Progress of announcing all clients to other nodes again.
    pub repeat: Repeat,
    details: Slab<Box<Details>>,
    /// The index of the next member of each group that shares a filter, by the hash of the group's name.
    pub turns: HashMap<u64, u32>,
    /// Clients whose progress has changed since it was stored.
    pub unsaved: Vec<u32>,
    /// All clients due up to this second since 1970 had their turn to be stored.
    pub saved_s: u64,
    /// Clients whose work can continue.
    pub due: Vec<u32>,
    /// Clients that wait for their sessions.
    pub waiters: HashMap<u32, Waiter>,
    /// Sessions to release when their clients' messages are on disk.
    pub leaving: Leaving,
}

/// A client that waits for its session, which another connection still has.
pub(crate) struct Waiter {
    pub key: Name,
    pub connect: Box<Connect>,
    /// The number of its connect in a cluster; 0 without.
    pub number: u64,
}

/// A client. The hub has its topics; its [`Details`] have what few clients need.
pub(crate) struct Row {
    /// The key of its session.
    pub key: Name,
    /// Keep-alive interval, in seconds; 0 is none.
    pub keep_alive_s: u16,
    /// The options of the only subscription, or [`NONE`].
    only: u8,
    /// The target of that subscription.
    target: Target,
    /// The number of its details, or [`NO_DETAILS`].
    details: u32,
}

const _: () = assert!(size_of::<Option<Row>>() <= 32);

/// The target of a row's only subscription: the client is in no other topic of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub(crate) enum Target {
    /// An ordinary topic.
    #[n(0)]
    Topic,
    /// A topic of a user.
    #[n(1)]
    Personal,
    /// A filter with wildcards.
    #[n(2)]
    Filter,
}

impl Target {
    /// Returns the kind of a topic, or of a filter in the hub; `None` for everyone's topic and for a shared filter.
    fn of(name: &str) -> Option<Self> {
        match TopicKind::of(name) {
            TopicKind::Ordinary => Some(Target::Topic),
            TopicKind::Personal(_) => Some(Target::Personal),
            TopicKind::Filter(_) => match of_filter(name) {
                Some((None, _)) => Some(Target::Filter),
                Some((Some(_), _)) | None => None,
            },
            TopicKind::Broadcast => None,
        }
    }
}

const NO_DETAILS: u32 = u32::MAX;

/// The options of a member that the application has added to a topic: the client has sent no SUBSCRIBE for it.
pub(super) const OPTIONS_OF_ADDED: SubscriptionOptions = SubscriptionOptions {
    qos: Qos::AtMostOnce,
    no_local: false,
    retain_as_published: false,
    below_only: false,
};

/// The client has no subscription.
const NONE: u8 = u8::MAX;

/// State that few clients need.
#[derive(Default)]
pub(crate) struct Details {
    /// The session, with all subscriptions of the client.
    pub session: Session,
    /// The message to publish when the client is gone.
    pub will: Option<Will>,
    /// The client's limits.
    pub limits: ClientLimits,
    /// The method by which the client authenticates again.
    pub method: Option<Box<str>>,
    /// Topics by the aliases that the client gave them.
    pub aliases: HashMap<u16, Name>,
    /// The aliases that the server gave to topics.
    pub outgoing_aliases: HashMap<Name, u16>,
    /// Messages that wait until the client has confirmed others. They are older than live ones.
    pub waiting: VecDeque<OutgoingMessage>,
    /// Unconfirmed messages for which groups chose the client, by packet identifier: another member gets them if the
    /// session ends.
    pub shared: Vec<(u16, OutgoingMessage)>,
    /// What the session reads from the history.
    pub work: Work,
    /// Messages that an ended subscription has delivered, and that other lists still have for the client.
    pub already_delivered: Vec<Arc<Envelope>>,
    /// The number of the client's QoS 1 messages that are not confirmed yet.
    pub publishing: u16,
    /// Packet identifiers of the client's QoS 2 messages that a back end has to take. The session does not know of
    /// them: the client sends them again on another connection.
    pub forwarding: Vec<u16>,
    /// Packet identifiers of the client's QoS 2 messages on their way to the disk. The session knows of them, and
    /// must forget a message that does not get there.
    pub writing: Vec<u16>,
    /// Subscriptions that wait for decisions of the application.
    pub pending_subscribes: Vec<PendingSubscribe>,
    /// Packets that leave when the progress is stored.
    pub deferred: Vec<u8>,
    /// Packet identifiers of messages not sent yet: first those that leave with the progress under way, then those in
    /// `deferred`.
    pub unsent: Vec<u16>,
    /// How many of these leave with the progress under way.
    pub unsent_saving: usize,
    /// The store is writing the progress, and packets wait for that.
    pub is_saving: bool,
    /// The store does not have the progress yet.
    pub is_unsaved: bool,
    /// The subscriptions differ from the stored ones.
    pub has_unsaved_subscriptions: bool,
    /// The client is in topics that it has not subscribed to, or has several users: a row can't say which topic its
    /// subscription is to.
    pub is_pinned: bool,
}

/// A message to a client. It waits for its turn, or the client has not confirmed it yet.
pub(crate) struct OutgoingMessage {
    pub message: Arc<Envelope>,
    pub qos: Qos,
    /// A retained message, sent because of a new subscription.
    pub retained: bool,
    /// The RETAIN flag that the client gets.
    pub retain: bool,
    /// The identifiers of the subscriptions that deliver it.
    pub ids: Box<[u32]>,
    /// The group that has chosen the client for it.
    pub group: Option<Arc<FilterKey>>,
}

impl OutgoingMessage {
    /// Checks whether this message was published to the other one's topic before it.
    pub fn is_older(&self, message: &Envelope) -> bool {
        self.message.publication.topic == message.publication.topic
            && self.message.published_us <= message.published_us
            && !std::ptr::eq(&*self.message, message)
    }
}

/// What a session reads from the history, in this order.
#[derive(Default)]
pub(crate) struct Work {
    /// Packet identifiers of messages that were in flight on the previous connection, to be sent again.
    pub again: VecDeque<u16>,
    /// The session has to read all its messages after an offset; `None` while they come live.
    pub behind: Option<Behind>,
    /// The session has read everything up to this offset, and skips it when it comes live.
    pub through: u64,
    /// The pending query to the history.
    pub reading: Option<Reading>,
}

impl Behind {
    /// A session that has to read everything after this offset.
    pub fn new(offset: u64) -> Self {
        Behind { from: offset, after: offset, deferred_offset: 0, topics: None, top: 0 }
    }
}

/// Progress of a session that does not keep up.
pub(crate) struct Behind {
    /// Where the session fell behind: older messages still come live, after what the work has read
    /// [through](Work::through).
    pub from: u64,
    /// The session has read everything from there up to here.
    pub after: u64,
    /// The offset of the last live message that was skipped.
    pub deferred_offset: u64,
    /// Topics to read, once known, with the offset of the last message of each.
    pub topics: Option<Vec<(TopicCursor, u64)>>,
    /// `topics` has all topics with messages up to this offset.
    pub top: u64,
}

/// A query whose reply is pending.
pub(crate) struct Reading {
    pub number: u32,
    /// The drop of this cancels the completion.
    pub requester: Requester,
    /// What the query reads.
    pub reads: Reads,
}

/// What a query reads from the history.
pub(crate) enum Reads {
    /// One message.
    Source,
    /// The topics that match filters, to be read with these.
    Topics(Vec<(TopicCursor, u64)>),
    /// Messages of these topics.
    Piece,
    /// Messages of the session's first backlog.
    Backlog,
}

/// The reply of the history for a client.
pub enum Found {
    /// Messages.
    Piece(Piece),
    /// The topics that the client's filters match: all that have messages up to this offset.
    Topics(Vec<(TopicCursor, u64)>, u64),
    /// The requested message can't be read, now or later.
    Gone,
}

/// A SUBSCRIBE that waits for the application.
pub(crate) struct PendingSubscribe {
    pub number: u32,
    pub subscribe: protocol::mqtt::Subscribe,
    /// The results so far, one for each filter.
    pub results: Vec<Option<Result<Qos, protocol::mqtt::ReasonCode>>>,
}

/// How a client gets a message.
pub(crate) struct Delivery {
    pub qos: Qos,
    /// The RETAIN flag.
    pub retain: bool,
    /// The identifiers of the subscriptions that match.
    pub ids: Vec<u32>,
}

impl Row {
    pub fn new(key: Name, keep_alive_s: u16) -> Self {
        Row { key, keep_alive_s, only: NONE, target: Target::Topic, details: NO_DETAILS }
    }
}

impl Row {
    /// Returns the options and the target of the only subscription, if there is one.
    pub fn only_bits(&self) -> Option<(u8, Target)> {
        (self.only != NONE).then_some((self.only, self.target))
    }

    /// Returns the client identifier.
    pub fn client(&self) -> Name {
        SessionKey::parse(&self.key).client.into()
    }

    /// Sets what [`Row::only_bits`] returned.
    pub fn set_only_bits(&mut self, only: Option<(u8, Target)>) {
        (self.only, self.target) = only.unwrap_or((NONE, Target::Topic));
    }
}

impl Clients {
    /// Adds a client. Its details, if any, have all of its subscriptions.
    pub fn insert(&mut self, slot: u32, mut row: Row, details: Option<Details>) {
        if let Some(details) = details {
            row.details = self.details.insert(Box::new(details));
        }
        self.rows.insert(slot, row);
    }

    pub fn row(&self, slot: u32) -> Option<&Row> {
        self.rows.get(slot)
    }

    pub fn has(&self, slot: u32) -> bool {
        self.rows.get(slot).is_some()
    }

    /// Returns the number of a client's connect in a cluster; 0 if other nodes don't know of it.
    pub fn connect_number(&self, slot: u32) -> u64 {
        self.connect_numbers.get(slot).map_or(0, |number| number.get())
    }

    /// Notes the number of a client's connect.
    pub fn set_connect_number(&mut self, slot: u32, number: u64) {
        if let Some(number) = NonZeroU64::new(number) {
            self.connect_numbers.insert(slot, number);
        }
    }

    /// Returns the clients that other nodes know, from a slot on: slot, key of the session, and number of the
    /// connect.
    pub fn connects(&self, first: u32) -> impl Iterator<Item = (u32, &Name, u64)> {
        (first..self.connect_numbers.end()).filter_map(|slot| {
            let number = self.connect_numbers.get(slot)?;
            Some((slot, &self.rows.get(slot)?.key, number.get()))
        })
    }

    /// Returns all clients, by slot.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Row)> {
        (0..self.rows.end()).filter_map(|slot| Some((slot, self.rows.get(slot)?)))
    }

    pub fn details(&self, slot: u32) -> Option<&Details> {
        let at = self.rows.get(slot)?.details;
        self.details.get(at).map(|details| &**details)
    }

    pub fn details_mut(&mut self, slot: u32) -> Option<&mut Details> {
        let at = self.rows.get(slot)?.details;
        self.details.get_mut(at).map(|details| &mut **details)
    }

    /// Returns the details, new ones if needed. `topics` are the client's topics.
    pub(super) fn details_or_new<'a>(
        &mut self,
        slot: u32,
        topics: impl Iterator<Item = &'a Name>,
    ) -> Option<&mut Details> {
        let row = self.rows.get_mut(slot)?;
        if row.details == NO_DETAILS {
            let mut details = Details::default();
            // Most clients have one, and a vector that grows begins with capacity for four.
            details.session.subscriptions = only(row, topics).into_iter().collect();
            row.only = NONE;
            row.details = self.details.insert(Box::new(details));
        }
        self.details.get_mut(row.details).map(|details| &mut **details)
    }

    /// Ends a client's subscription to a topic that the application took it out of. Returns true if it had one.
    pub fn leave(&mut self, slot: u32, topic: &str) -> bool {
        if let Some(details) = self.details_mut(slot) {
            let subscriptions = &mut details.session.subscriptions;
            let before = subscriptions.len();
            subscriptions.retain(|it| it.group.is_some() || *it.filter != *topic);
            return subscriptions.len() < before;
        }
        let is_only = self.only_options(slot, topic).is_some();
        if let Some(row) = self.rows.get_mut(slot).filter(|_| is_only) {
            row.only = NONE;
        }
        is_only
    }

    /// Drops the details if a row can hold all that is in them.
    pub fn trim(&mut self, slot: u32) {
        let Some(row) = self.rows.get_mut(slot) else { return };
        let Some(details) = self.details.get(row.details) else { return };
        let Some(rest) = details.rest() else { return };
        row.set_only_bits(rest);
        self.details.remove(std::mem::replace(&mut row.details, NO_DETAILS));
    }

    /// Returns the subscriptions of a client that is in these topics.
    pub fn subscriptions<'a>(
        &self,
        slot: u32,
        topics: impl Iterator<Item = &'a Name>,
    ) -> Vec<Subscription> {
        match (self.rows.get(slot), self.details(slot)) {
            (_, Some(details)) => details.session.subscriptions.clone(),
            (Some(row), None) => only(row, topics).into_iter().collect(),
            (None, None) => Vec::new(),
        }
    }

    /// Returns the options of a client without details for the messages of a list, a topic's or a filter's; `None` if
    /// its only subscription is not to it.
    pub fn only_options(&self, slot: u32, list: &str) -> Option<SubscriptionOptions> {
        let (bits, target) = self.rows.get(slot)?.only_bits()?;
        (Target::of(list) == Some(target)).then(|| SubscriptionOptions::from_bits(bits))
    }

    /// Returns true if a client gets these messages as all others of its encoding: without confirmation, and with no
    /// bytes of its own. `list` is the topic or the filter of the members; `None` for everyone.
    pub fn shares<'a>(
        &self,
        slot: u32,
        list: Option<&str>,
        mut messages: impl Iterator<Item = &'a Arc<Envelope>>,
    ) -> bool {
        let target = list.and_then(Target::of).filter(|it| *it != Target::Personal);
        let (Some(list), Some(target)) = (list, target) else { return false };
        if !self.is_plain(slot) {
            return false;
        }
        let options = match (self.only_options(slot, list), target) {
            (Some(options), _) => options,
            // The application has put the client there.
            (None, Target::Topic) => OPTIONS_OF_ADDED,
            (None, Target::Filter | Target::Personal) => return false,
        };
        messages.all(|message| {
            let publication = &message.publication;
            publication.qos.min(options.qos) == Qos::AtMostOnce
                && !(publication.retain && options.retain_as_published)
                && publication.except.is_none()
                && publication.expires_ms().is_none()
        })
    }

    /// Returns true if a client has a row and no details.
    pub fn is_plain(&self, slot: u32) -> bool {
        self.rows.get(slot).is_some_and(|row| row.details == NO_DETAILS)
    }

    /// Removes a client.
    pub fn remove(&mut self, slot: u32) -> Option<(Row, Option<Box<Details>>)> {
        let row = self.rows.remove(slot)?;
        self.connect_numbers.remove(slot);
        let details = (row.details != NO_DETAILS).then(|| self.details.remove(row.details));
        Some((row, details))
    }

    /// Notes that a client's work can continue.
    pub fn wake(&mut self, slot: u32) {
        self.due.push(slot);
    }

    /// Notes that a session's progress has changed, if the session outlives its connection.
    pub fn changed(&mut self, slot: u32) {
        if let Some(details) = self.details_mut(slot)
            && details.session.outlives()
            && !std::mem::replace(&mut details.is_unsaved, true)
        {
            self.unsaved.push(slot);
        }
    }

    /// Returns true if no client waits for its session, and no session waits for its release.
    pub fn is_settled(&self) -> bool {
        self.waiters.is_empty() && self.leaving.is_empty()
    }

    /// Returns true if all clients are settled and no client's work can continue.
    pub fn is_quiet(&self) -> bool {
        self.is_settled() && self.due.is_empty()
    }

    /// Shrinks the tables.
    pub fn shrink(&mut self) {
        self.rows.shrink();
        self.connect_numbers.shrink();
        self.details.shrink();
    }
}

/// Returns the only subscription of a row.
fn only<'a>(row: &Row, mut topics: impl Iterator<Item = &'a Name>) -> Option<Subscription> {
    let (bits, target) = row.only_bits()?;
    // A client joins its users' topics by itself. Without details it has subscribed to all others that it is in.
    let name = topics.find(|name| Target::of(name) == Some(target))?;
    let filter = Name::from(shown(name));
    Some(Subscription::new(filter, None, SubscriptionOptions::from_bits(bits), 0, 0))
}

impl Details {
    /// Returns what a row can hold in place of the details: the only subscription, if any, as [`Row::only_bits`]
    /// returns it. `None` if the details hold more.
    fn rest(&self) -> Option<Option<(u8, Target)>> {
        let Details {
            session,
            will,
            limits,
            method,
            aliases,
            outgoing_aliases,
            waiting,
            shared,
            work,
            already_delivered,
            publishing,
            forwarding,
            writing,
            pending_subscribes,
            deferred,
            unsent,
            unsent_saving: _,
            is_saving,
            is_unsaved,
            // A session that ends with its connection stores no subscriptions.
            has_unsaved_subscriptions: _,
            is_pinned,
        } = self;
        let Session {
            epoch: _,
            connect_number: _,
            seconds,
            subscriptions,
            flow,
            position: _,
            refs,
            replays,
            backlogs,
        } = session;
        let is_idle = *seconds == 0
            && flow.is_idle()
            && refs.is_empty()
            && replays.is_empty()
            && backlogs.is_empty()
            && will.is_none()
            && *limits == ClientLimits::default()
            && method.is_none()
            && aliases.is_empty()
            && outgoing_aliases.is_empty()
            && waiting.is_empty()
            && shared.is_empty()
            && work.is_idle()
            && already_delivered.is_empty()
            && *publishing == 0
            && forwarding.is_empty()
            && writing.is_empty()
            && pending_subscribes.is_empty()
            && deferred.is_empty()
            && unsent.is_empty()
            && !is_saving
            && !is_unsaved
            && !is_pinned;
        match &subscriptions[..] {
            [] if is_idle => Some(None),
            [only] if is_idle => {
                let target = Target::of(only.hub_name())?;
                let SubscriptionOptions { qos: _, no_local, retain_as_published: _, below_only } =
                    only.options;
                // A wildcard may match the client's own messages, and its name may be another filter's.
                let fits = only.id == 0 && (only.is_exact() || !(no_local || below_only));
                fits.then(|| Some((only.options.bits(), target)))
            }
            _ => None,
        }
    }

    /// Notes that a back end has taken a QoS 2 message, if it had to. The session now knows the packet identifier.
    pub fn arrived(&mut self, id: u16) {
        if let Some(at) = self.forwarding.iter().position(|it| *it == id) {
            self.forwarding.swap_remove(at);
            // The limit has counted the message since it arrived.
            self.session.flow.receive(id, usize::MAX);
        }
    }

    /// Notes that a QoS 2 message is on disk, or can't be, if it was on its way there. Returns true if the stored
    /// progress may wrongly have it.
    pub fn written(&mut self, id: u16, is_written: bool) -> bool {
        let position = self.writing.iter().position(|it| *it == id);
        if let Some(at) = position {
            self.writing.swap_remove(at);
        }
        if !is_written {
            self.session.flow.release(id);
        }
        position.is_some() && !is_written
    }

    /// Begins to store the progress. Returns the deferred packets, which leave when it is stored.
    pub fn begin_saving(&mut self) -> Vec<u8> {
        (self.is_saving, self.unsent_saving) = (true, self.unsent.len());
        std::mem::take(&mut self.deferred)
    }

    /// Notes that the progress is stored, and that the packets that waited for it have left.
    pub fn on_saved(&mut self) {
        self.is_saving = false;
        self.unsent.drain(..std::mem::take(&mut self.unsent_saving));
    }

    /// Gives messages that were never sent back to the session, at the end of the connection.
    pub fn requeue_unsent(&mut self) {
        self.unsent_saving = 0;
        let sources = self.session.flow.take_unsent(&std::mem::take(&mut self.unsent));
        self.session.refs.splice(0..0, sources);
    }

    /// Checks whether a back end or the disk still has a QoS 2 message. Its result brings the reply.
    pub fn is_publishing(&self, id: u16) -> bool {
        self.forwarding.contains(&id) || self.writing.contains(&id)
    }

    /// Checks whether the session has more to read from the history.
    pub fn is_reading_on(&self) -> bool {
        let Session { refs, backlogs, .. } = &self.session;
        self.work.behind.is_some() || !refs.is_empty() || !backlogs.is_empty()
    }

    /// Returns how many messages may be in flight to the client.
    pub fn window(&self, inflight_max: u16) -> usize {
        usize::from(self.limits.receive_max.min(inflight_max))
    }
}

impl Work {
    /// Finds the topics to read anew, because the client has a new subscription.
    pub fn rescan(&mut self) {
        if let Some(behind) = &mut self.behind {
            behind.topics = None;
        }
        self.reading.take_if(|it| matches!(it.reads, Reads::Topics(_) | Reads::Piece));
    }

    /// Returns true while everything comes live.
    pub fn is_idle(&self) -> bool {
        self.again.is_empty() && self.behind.is_none() && self.reading.is_none()
    }
}

#[cfg(test)]
mod tests;

//! What the engine holds of MQTT clients that are connected.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use history::{Asker, Piece, TopicCursor};
use model::{Envelope, Name, Qos, TopicKind};
use protocol::mqtt::{ClientLimits, Connect};
use sessions::{Place, Session, Subscription, SubscriptionOptions, Will};
use tables::{PageTable, Slab};

/// The clients of an engine, by slot.
#[derive(Default)]
pub(crate) struct Clients {
    rows: PageTable<Row>,
    details: Slab<Box<Details>>,
    /// Whose turn it is in the groups that share filters, by the hash of the group's name.
    pub turns: HashMap<u64, u32>,
    /// Clients whose progress has changed since it was stored.
    pub unsaved: Vec<u32>,
    /// Clients for which something can go on.
    pub due: Vec<u32>,
    /// Clients that wait for their sessions.
    pub waiters: HashMap<u32, Waiter>,
}

/// A client that waits for its session, which another connection has still.
pub(crate) struct Waiter {
    pub key: Name,
    pub connect: Box<Connect>,
}

/// A client. Its topics are in the hub; what few clients need is in its [`Details`].
pub(crate) struct Row {
    /// The key of its session.
    pub key: Name,
    /// How often it speaks at the least, in seconds; 0 is never.
    pub keep_alive_s: u16,
    /// How it wants the messages of its only subscription, which is to one topic. With [`NONE`] there is
    /// none.
    only: u8,
    /// That subscription is to its user's own topic.
    is_own: bool,
    /// The number of its details, or [`NO_DETAILS`].
    details: u32,
}

const _: () = assert!(size_of::<Option<Row>>() <= 32);

const NO_DETAILS: u32 = u32::MAX;

/// How a member wants messages that has not asked for them: the application has put it there.
pub(super) const UNASKED: SubscriptionOptions = SubscriptionOptions {
    qos: Qos::AtMostOnce,
    no_local: false,
    retain_as_published: false,
    below_only: false,
};

/// It has no subscription.
const NONE: u8 = u8::MAX;

/// What few clients need.
#[derive(Default)]
pub(crate) struct Details {
    /// Its session. Its subscriptions are all there are.
    pub session: Session,
    /// What is published when it is gone.
    pub will: Option<Will>,
    /// What it takes.
    pub limits: ClientLimits,
    /// How it authenticates again.
    pub method: Option<Box<str>>,
    /// Topics by the aliases that it gave them.
    pub aliases: HashMap<u16, Name>,
    /// The aliases that it was given.
    pub given: HashMap<Name, u16>,
    /// Messages that wait until it has confirmed others. They were published before those that come.
    pub waiting: VecDeque<Waiting>,
    /// What is read of the history for it.
    pub work: Work,
    /// Messages that a subscription has brought which is no more, and that others have still for it.
    pub brought: Vec<Arc<Envelope>>,
    /// Messages with QoS 1 of its own that are not confirmed yet.
    pub publishing: u16,
    /// Packet identifiers of messages with QoS 2 of its own that a back end has to take. The session does
    /// not know of them: they come again on another connection.
    pub forwarding: Vec<u16>,
    /// Subscriptions that wait for the application.
    pub asking: Vec<PendingSubscribe>,
    /// Packets that leave when its progress is stored.
    pub held: Vec<u8>,
    /// Its progress is to be stored.
    pub is_unsaved: bool,
    /// It is in topics that it has not subscribed to, or has several users: a row can't say which of them
    /// its subscription is to.
    pub is_pinned: bool,
}

/// A message that waits for its turn.
pub(crate) struct Waiting {
    pub message: Arc<Envelope>,
    pub qos: Qos,
    /// It is a retained message, sent because of a new subscription.
    pub retained: bool,
    /// The identifiers of the subscriptions that it comes for.
    pub ids: Box<[u32]>,
}

/// What a session reads of the history, in this order.
#[derive(Default)]
pub(crate) struct Work {
    /// Messages that were under way on the connection before, by packet identifier: they are sent again.
    pub again: VecDeque<u16>,
    /// All of its messages after this offset are to be read; nothing while they come live.
    pub behind: Option<Behind>,
    /// Everything up to this offset was read: what comes live of it is passed over.
    pub through: u64,
    /// The history reads for it.
    pub reading: Option<Reading>,
}

impl Behind {
    /// Everything after this offset is to be read.
    pub fn new(offset: u64) -> Self {
        Behind { from: offset, after: offset, held_back: 0, topics: None, top: 0 }
    }
}

/// How far a session is that does not keep up.
pub(crate) struct Behind {
    /// Where it fell behind: what was published before comes live still, after what the work has read
    /// [through](Work::through).
    pub from: u64,
    /// Everything behind that was read up to here.
    pub after: u64,
    /// The last message that came live and was passed over.
    pub held_back: u64,
    /// What there is to read, once that is known.
    pub topics: Option<Vec<TopicCursor>>,
    /// These are all topics that have messages up to this offset.
    pub top: u64,
}

/// A query that the history answers later.
pub(crate) struct Reading {
    pub number: u32,
    /// Goes with what waits for the answer.
    pub asker: Asker,
    /// What it is about.
    pub reads: Reads,
}

/// What the history is asked for.
pub(crate) enum Reads {
    /// One message.
    Source,
    /// The topics to read, beside these.
    Topics(Vec<TopicCursor>),
    /// Their messages.
    Piece,
}

/// What was read of the history for a client.
pub enum Found {
    /// Messages.
    Piece(Piece),
    /// The topics that its filters match: all that have messages up to this offset.
    Topics(Vec<TopicCursor>, u64),
}

/// SUBSCRIBE whose answer waits for the application.
pub(crate) struct PendingSubscribe {
    pub number: u32,
    pub subscribe: protocol::mqtt::Subscribe,
    /// The answers so far, one for each filter.
    pub results: Vec<Option<Result<Qos, protocol::mqtt::ReasonCode>>>,
}

/// How a message comes to a client.
pub(crate) struct Way {
    pub qos: Qos,
    /// It says that it was published to be retained.
    pub retain: bool,
    /// The identifiers of the subscriptions that match.
    pub ids: Vec<u32>,
}

/// How a message of a client is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqttAck {
    /// The packet identifier; 0 with QoS 0.
    pub id: u16,
    /// How surely it was sent.
    pub qos: Qos,
    /// What is known of it is stored with the message.
    pub with: bool,
    /// It is to be its topic's retained message.
    pub retain: bool,
}

impl Row {
    pub fn new(key: Name, keep_alive_s: u16) -> Self {
        Row { key, keep_alive_s, only: NONE, is_own: false, details: NO_DETAILS }
    }
}

impl Row {
    /// How it wants its only subscription, and whether that is to its own topic; nothing without one.
    pub fn only_bits(&self) -> Option<(u8, bool)> {
        (self.only != NONE).then_some((self.only, self.is_own))
    }

    /// The client identifier.
    pub fn client(&self) -> Name {
        Place::of_key(&self.key).client.into()
    }

    /// Sets what [`Row::only_bits`] gave.
    pub fn set_only_bits(&mut self, only: Option<(u8, bool)>) {
        (self.only, self.is_own) = only.unwrap_or((NONE, false));
    }
}

impl Clients {
    /// A client has come. With details, those hold all of its subscriptions.
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

    /// All clients, by slot.
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

    /// The same, made where there are none: `topics` are those in which the client is.
    pub fn details_or_new<'a>(
        &mut self,
        slot: u32,
        topics: impl Iterator<Item = &'a Name>,
    ) -> Option<&mut Details> {
        let row = self.rows.get_mut(slot)?;
        if row.details == NO_DETAILS {
            let mut details = Details::default();
            details.session.subscriptions.extend(only(row, topics));
            row.only = NONE;
            row.details = self.details.insert(Box::new(details));
        }
        self.details.get_mut(row.details).map(|details| &mut **details)
    }

    /// The application puts a client into topics that it has not subscribed to: `topics` are those in which
    /// it was before.
    pub fn pin<'a>(&mut self, slot: u32, topics: impl Iterator<Item = &'a Name>) {
        if let Some(details) = self.details_or_new(slot, topics) {
            details.is_pinned = true;
        }
    }

    /// The application has taken a client out of a topic: it is not subscribed to it any more. True where it
    /// was.
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

    /// Gives the details back where nothing is in them that a row can't hold.
    pub fn trim(&mut self, slot: u32) {
        let Some(row) = self.rows.get_mut(slot) else { return };
        let Some(details) = self.details.get(row.details) else { return };
        let Some(rest) = details.rest() else { return };
        (row.only, row.is_own) = match rest {
            None => (NONE, false),
            Some(only) => {
                let is_own = !TopicKind::of(&only.filter).is_ordinary();
                (only.options.bits(), is_own)
            }
        };
        self.details.remove(std::mem::replace(&mut row.details, NO_DETAILS));
    }

    /// The subscriptions of a client that is in these topics.
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

    /// How the only subscription of a client that has no details wants this topic; nothing where it has
    /// none to it.
    pub fn only_options(&self, slot: u32, topic: &str) -> Option<SubscriptionOptions> {
        let row = self.rows.get(slot)?;
        let is_it = row.only != NONE && row.is_own != TopicKind::of(topic).is_ordinary();
        is_it.then(|| SubscriptionOptions::from_bits(row.only))
    }

    /// True for a client that gets these messages as all others of its encoding do: without confirmation,
    /// and with nothing of its own in them. `list` is the topic whose members they go to; nothing where they
    /// go to everyone.
    pub fn shares<'a>(
        &self,
        slot: u32,
        list: Option<&str>,
        mut messages: impl Iterator<Item = &'a Arc<Envelope>>,
    ) -> bool {
        let Some(topic) = list.filter(|name| TopicKind::of(name).is_ordinary()) else {
            return false;
        };
        if !self.is_plain(slot) {
            return false;
        }
        let options = self.only_options(slot, topic).unwrap_or(UNASKED);
        messages.all(|message| {
            let publication = &message.publication;
            publication.qos.min(options.qos) == Qos::AtMostOnce
                && !(publication.retain && options.retain_as_published)
                && publication.except.is_none()
                && publication.expires_ms().is_none()
        })
    }

    /// True where all that is known of a client is in its row.
    pub fn is_plain(&self, slot: u32) -> bool {
        self.rows.get(slot).is_some_and(|row| row.details == NO_DETAILS)
    }

    /// Takes a client away.
    pub fn remove(&mut self, slot: u32) -> Option<(Row, Option<Box<Details>>)> {
        let row = self.rows.remove(slot)?;
        let details = (row.details != NO_DETAILS).then(|| self.details.remove(row.details));
        Some((row, details))
    }

    /// Something can go on for a client.
    pub fn wake(&mut self, slot: u32) {
        self.due.push(slot);
    }

    /// The progress of a session that outlives its connection has changed.
    pub fn changed(&mut self, slot: u32) {
        if let Some(details) = self.details_mut(slot)
            && details.session.outlives()
            && !std::mem::replace(&mut details.is_unsaved, true)
        {
            self.unsaved.push(slot);
        }
    }

    /// True while no client waits for its session.
    pub fn is_quiet(&self) -> bool {
        self.waiters.is_empty() && self.due.is_empty()
    }

    /// Gives room back.
    pub fn tidy(&mut self) {
        self.rows.tidy();
        self.details.tidy();
    }
}

/// The only subscription of a row.
fn only<'a>(row: &Row, mut topics: impl Iterator<Item = &'a Name>) -> Option<Subscription> {
    if row.only == NONE {
        return None;
    }
    // It is in the topics of its users by itself. Of others it is in none, or has details.
    let topic = topics.find(|topic| TopicKind::of(topic).is_ordinary() != row.is_own)?;
    let options = SubscriptionOptions::from_bits(row.only);
    Some(Subscription { filter: topic.clone(), group: None, options, id: 0, since: 0 })
}

impl Details {
    /// What a row can hold in place of the details: the only subscription, if any. Nothing where there is
    /// more.
    fn rest(&self) -> Option<Option<&Subscription>> {
        let Details {
            session,
            will,
            limits,
            method,
            aliases,
            given,
            waiting,
            work,
            brought,
            publishing,
            forwarding,
            asking,
            held,
            is_unsaved,
            is_pinned,
        } = self;
        let Session { seconds, subscriptions, flow, position: _, refs, replays } = session;
        let is_idle = *seconds == 0
            && flow.is_idle()
            && refs.is_empty()
            && replays.is_empty()
            && will.is_none()
            && *limits == ClientLimits::default()
            && method.is_none()
            && aliases.is_empty()
            && given.is_empty()
            && waiting.is_empty()
            && work.is_idle()
            && brought.is_empty()
            && *publishing == 0
            && forwarding.is_empty()
            && asking.is_empty()
            && held.is_empty()
            && !is_unsaved
            && !is_pinned;
        match &subscriptions[..] {
            [] if is_idle => Some(None),
            [only] if is_idle => {
                let kind = TopicKind::of(&only.filter);
                let fits = only.group.is_none()
                    && only.id == 0
                    && kind != TopicKind::Broadcast
                    && model::filter::check_name(&only.filter).is_ok();
                fits.then_some(Some(only))
            }
            _ => None,
        }
    }

    /// A message with QoS 2 is here that a back end had to take, if it is one: from now on it is known by
    /// its packet identifier.
    pub fn arrived(&mut self, id: u16) {
        if let Some(at) = self.forwarding.iter().position(|it| *it == id) {
            self.forwarding.swap_remove(at);
            // It has counted for the limit since it came.
            self.session.flow.receive(id, usize::MAX);
        }
    }

    /// How many messages may be under way to the client.
    pub fn window(&self, inflight_max: u16) -> usize {
        usize::from(self.limits.receive_max.min(inflight_max))
    }
}

impl Work {
    /// There is more to read than was known: the client has a new subscription.
    pub fn look_again(&mut self) {
        if let Some(behind) = &mut self.behind {
            behind.topics = None;
        }
        self.reading.take_if(|reading| !matches!(reading.reads, Reads::Source));
    }

    /// True while everything comes live.
    pub fn is_idle(&self) -> bool {
        self.again.is_empty() && self.behind.is_none() && self.reading.is_none()
    }
}

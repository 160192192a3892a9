//! What the engine holds of MQTT clients that are connected.

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
    /// The numbers of their connects, in a cluster. Other nodes don't know of those without.
    connect_numbers: PageTable<NonZeroU64>,
    /// How far the engine is in telling other nodes of all clients again.
    pub repeat: Repeat,
    details: Slab<Box<Details>>,
    /// Whose turn it is in the groups that share filters, by the hash of the group's name.
    pub turns: HashMap<u64, u32>,
    /// Clients whose progress has changed since it was stored.
    pub unsaved: Vec<u32>,
    /// Up to this second since 1970 all had their turn to be stored that had one.
    pub saved_s: u64,
    /// Clients for which something can go on.
    pub due: Vec<u32>,
    /// Clients that wait for their sessions.
    pub waiters: HashMap<u32, Waiter>,
    /// Sessions that are let go when messages of theirs are on disk.
    pub leaving: Leaving,
}

/// A client that waits for its session, which another connection has still.
pub(crate) struct Waiter {
    pub key: Name,
    pub connect: Box<Connect>,
    /// The number of its connect in a cluster; 0 without.
    pub number: u64,
}

/// A client. Its topics are in the hub; what few clients need is in its [`Details`].
pub(crate) struct Row {
    /// The key of its session.
    pub key: Name,
    /// How often it speaks at the least, in seconds; 0 is never.
    pub keep_alive_s: u16,
    /// How it wants the messages of its only subscription. With [`NONE`] there is none.
    only: u8,
    /// What that is to.
    target: Target,
    /// The number of its details, or [`NO_DETAILS`].
    details: u32,
}

const _: () = assert!(size_of::<Option<Row>>() <= 32);

/// What the only subscription of a row is to: its client is in no other topic of this kind.
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
    /// The kind of a topic's name, or of a filter's in the hub; nothing for everyone's topic, and for what a
    /// group shares.
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
    /// What groups have chosen it for and it has not confirmed yet, by packet identifier: somebody else gets
    /// it if its session ends before.
    pub shared: Vec<(u16, Waiting)>,
    /// What is read of the history for it.
    pub work: Work,
    /// Messages that an ended subscription has delivered, and that others still have for the client.
    pub already_delivered: Vec<Arc<Envelope>>,
    /// Messages with QoS 1 of its own that are not confirmed yet.
    pub publishing: u16,
    /// Packet identifiers of messages with QoS 2 of its own that a back end has to take. The session does
    /// not know of them: they come again on another connection.
    pub forwarding: Vec<u16>,
    /// Packet identifiers of messages with QoS 2 of its own that are on their way to the disk. The session knows
    /// of them: if one does not come there, it must forget it.
    pub writing: Vec<u16>,
    /// Subscriptions that wait for decisions of the application.
    pub pending_subscribes: Vec<PendingSubscribe>,
    /// Packets that leave when its progress is stored.
    pub deferred: Vec<u8>,
    /// Packet identifiers of the messages among these packets, after those of messages that leave when the progress
    /// under way is stored.
    pub unsent: Vec<u16>,
    /// How many of them are of that progress.
    pub unsent_saving: usize,
    /// Its progress is on its way to the store, and packets leave then.
    pub is_saving: bool,
    /// Its progress is to be stored.
    pub is_unsaved: bool,
    /// Its subscriptions are others than those that are stored.
    pub has_unsaved_subscriptions: bool,
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
    /// It says that it was published to be retained.
    pub retain: bool,
    /// The identifiers of the subscriptions that it comes for.
    pub ids: Box<[u32]>,
    /// The group that has chosen the client for it.
    pub group: Option<Arc<FilterKey>>,
}

impl Waiting {
    /// Whether it was published to the topic of a message before that.
    pub fn is_older(&self, message: &Envelope) -> bool {
        self.message.publication.topic == message.publication.topic
            && self.message.published_us <= message.published_us
            && !std::ptr::eq(&*self.message, message)
    }
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
        Behind { from: offset, after: offset, deferred_offset: 0, topics: None, top: 0 }
    }
}

/// How far a session is that does not keep up.
pub(crate) struct Behind {
    /// Where it fell behind: what was published before comes live still, after what the work has read
    /// [through](Work::through).
    pub from: u64,
    /// Everything behind that was read up to here.
    pub after: u64,
    /// The offset of the last live message that was not sent.
    pub deferred_offset: u64,
    /// What there is to read, once that is known: topics with the offset of the last message of each.
    pub topics: Option<Vec<(TopicCursor, u64)>>,
    /// These are all topics that have messages up to this offset.
    pub top: u64,
}

/// A query that the history answers later.
pub(crate) struct Reading {
    pub number: u32,
    /// Goes with what waits for the answer.
    pub requester: Requester,
    /// What it is about.
    pub reads: Reads,
}

/// What the history is asked for.
pub(crate) enum Reads {
    /// One message.
    Source,
    /// The topics to read, beside these.
    Topics(Vec<(TopicCursor, u64)>),
    /// Their messages.
    Piece,
    /// What is first of the session's backlogs.
    Backlog,
}

/// What was read of the history for a client.
pub enum Found {
    /// Messages.
    Piece(Piece),
    /// The topics that its filters match: all that have messages up to this offset.
    Topics(Vec<(TopicCursor, u64)>, u64),
    /// The message that it was to be sent can't be read, now or later.
    Gone,
}

/// SUBSCRIBE whose answer waits for the application.
pub(crate) struct PendingSubscribe {
    pub number: u32,
    pub subscribe: protocol::mqtt::Subscribe,
    /// The answers so far, one for each filter.
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
    /// How it wants its only subscription, and what that is to; nothing without one.
    pub fn only_bits(&self) -> Option<(u8, Target)> {
        (self.only != NONE).then_some((self.only, self.target))
    }

    /// The client identifier.
    pub fn client(&self) -> Name {
        SessionKey::parse(&self.key).client.into()
    }

    /// Sets what [`Row::only_bits`] gave.
    pub fn set_only_bits(&mut self, only: Option<(u8, Target)>) {
        (self.only, self.target) = only.unwrap_or((NONE, Target::Topic));
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

    /// The number of a client's connect in a cluster; 0 where other nodes don't know of it.
    pub fn connect_number(&self, slot: u32) -> u64 {
        self.connect_numbers.get(slot).map_or(0, |number| number.get())
    }

    /// Notes the number of a client's connect.
    pub fn set_connect_number(&mut self, slot: u32, number: u64) {
        if let Some(number) = NonZeroU64::new(number) {
            self.connect_numbers.insert(slot, number);
        }
    }

    /// The clients of which other nodes know, from a slot on: the slot, the key of the session, and the number of the connect.
    pub fn connects(&self, first: u32) -> impl Iterator<Item = (u32, &Name, u64)> {
        (first..self.connect_numbers.end()).filter_map(|slot| {
            let number = self.connect_numbers.get(slot)?;
            Some((slot, &self.rows.get(slot)?.key, number.get()))
        })
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
    pub(super) fn details_or_new<'a>(
        &mut self,
        slot: u32,
        topics: impl Iterator<Item = &'a Name>,
    ) -> Option<&mut Details> {
        let row = self.rows.get_mut(slot)?;
        if row.details == NO_DETAILS {
            let mut details = Details::default();
            // Most have one, and a vector that grows begins with room for four.
            details.session.subscriptions = only(row, topics).into_iter().collect();
            row.only = NONE;
            row.details = self.details.insert(Box::new(details));
        }
        self.details.get_mut(row.details).map(|details| &mut **details)
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
        row.set_only_bits(rest);
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

    /// How the only subscription of a client that has no details wants what comes by this list, a topic's or
    /// a filter's; nothing where it has none to it.
    pub fn only_options(&self, slot: u32, list: &str) -> Option<SubscriptionOptions> {
        let (bits, target) = self.rows.get(slot)?.only_bits()?;
        (Target::of(list) == Some(target)).then(|| SubscriptionOptions::from_bits(bits))
    }

    /// True for a client that gets these messages as all others of its encoding do: without confirmation,
    /// and with nothing of its own in them. `list` is the topic or the filter whose members they go to; nothing
    /// where they go to everyone.
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
            // The application has put it there.
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

    /// True where all that is known of a client is in its row.
    pub fn is_plain(&self, slot: u32) -> bool {
        self.rows.get(slot).is_some_and(|row| row.details == NO_DETAILS)
    }

    /// Takes a client away.
    pub fn remove(&mut self, slot: u32) -> Option<(Row, Option<Box<Details>>)> {
        let row = self.rows.remove(slot)?;
        self.connect_numbers.remove(slot);
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

    /// True while no client waits for its session, and none is let go later.
    pub fn is_settled(&self) -> bool {
        self.waiters.is_empty() && self.leaving.is_empty()
    }

    /// The same, while nothing can go on for any.
    pub fn is_quiet(&self) -> bool {
        self.is_settled() && self.due.is_empty()
    }

    /// Gives room back.
    pub fn shrink(&mut self) {
        self.rows.shrink();
        self.connect_numbers.shrink();
        self.details.shrink();
    }
}

/// The only subscription of a row.
fn only<'a>(row: &Row, mut topics: impl Iterator<Item = &'a Name>) -> Option<Subscription> {
    let (bits, target) = row.only_bits()?;
    // It is in the topics of its users by itself. Of others it is in none, or has details.
    let name = topics.find(|name| Target::of(name) == Some(target))?;
    let filter = Name::from(shown(name));
    Some(Subscription::new(filter, None, SubscriptionOptions::from_bits(bits), 0, 0))
}

impl Details {
    /// What a row can hold in place of the details: the only subscription, if any, as
    /// [`Row::only_bits`] gives it. Nothing where there is more.
    fn rest(&self) -> Option<Option<(u8, Target)>> {
        let Details {
            session,
            will,
            limits,
            method,
            aliases,
            given,
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
            // Of a session that ends with its connection nothing is.
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
            && given.is_empty()
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
                // A wildcard may match what its client publishes, and its name may be another filter's.
                let fits = only.id == 0 && (only.is_exact() || !(no_local || below_only));
                fits.then(|| Some((only.options.bits(), target)))
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

    /// A message with QoS 2 is on disk, or can't be, if it was on its way there. True where it may be stored that
    /// it was here, and it was not.
    pub fn written(&mut self, id: u16, is_written: bool) -> bool {
        let place = self.writing.iter().position(|it| *it == id);
        if let Some(at) = place {
            self.writing.swap_remove(at);
        }
        if !is_written {
            self.session.flow.release(id);
        }
        place.is_some() && !is_written
    }

    /// Held packets leave when the progress is stored that is given to the store now.
    pub fn begin_saving(&mut self) -> Vec<u8> {
        (self.is_saving, self.unsent_saving) = (true, self.unsent.len());
        std::mem::take(&mut self.deferred)
    }

    /// The progress is stored, and the packets that waited for it have left.
    pub fn on_saved(&mut self) {
        self.is_saving = false;
        self.unsent.drain(..std::mem::take(&mut self.unsent_saving));
    }

    /// The connection ends: the session has messages still to send that were never sent.
    pub fn requeue_unsent(&mut self) {
        self.unsent_saving = 0;
        let sources = self.session.flow.take_unsent(&std::mem::take(&mut self.unsent));
        self.session.refs.splice(0..0, sources);
    }

    /// Somebody has a message with QoS 2 still, and what becomes of it is answered then.
    pub fn is_publishing(&self, id: u16) -> bool {
        self.forwarding.contains(&id) || self.writing.contains(&id)
    }

    /// Something of its session is still to be read of the history.
    pub fn is_reading_on(&self) -> bool {
        let Session { refs, backlogs, .. } = &self.session;
        self.work.behind.is_some() || !refs.is_empty() || !backlogs.is_empty()
    }

    /// How many messages may be under way to the client.
    pub fn window(&self, inflight_max: u16) -> usize {
        usize::from(self.limits.receive_max.min(inflight_max))
    }
}

impl Work {
    /// There is more to read than was known: the client has a new subscription.
    pub fn rescan(&mut self) {
        if let Some(behind) = &mut self.behind {
            behind.topics = None;
        }
        self.reading.take_if(|it| matches!(it.reads, Reads::Topics(_) | Reads::Piece));
    }

    /// True while everything comes live.
    pub fn is_idle(&self) -> bool {
        self.again.is_empty() && self.behind.is_none() && self.reading.is_none()
    }
}

#[cfg(test)]
mod tests;

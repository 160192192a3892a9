//! The broker of one process: a counter, the recent window and the shards' inboxes.

mod nodes;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model::event::is_reserved;
use model::filter::has_wildcard;
use model::name::of_filter;
use model::{
    Envelope, Epoch, FilterKey, GroupChoice, HistoryRule, Message, MessageSource, Name, NodeId,
    Position, Publication,
};

use crate::recent::keyed_hash;
use crate::{
    Activity, Append, Broker, Done, Gap, GroupMessage, HistoryLog, Latest, Limits, Options, Passed,
    Publish, PublishError, Published, Receipt, Recent, Relay, Router, Routes, Window,
};

/// Messages that a scan reads under the lock at a time: about 20 microseconds, for which publishers wait.
pub(crate) const SCANNED: usize = 256;

/// Messages that a scan for operators reads, at most.
const SCANNED_MAX: usize = 100_000;

/// Random bytes that a broker needs, new for every start.
pub const SECRET_BYTES: usize = 20;

/// Returns the epoch of a broker with this secret.
pub fn epoch(secret: &[u8; SECRET_BYTES]) -> Epoch {
    Epoch(u32::from_le_bytes([secret[16], secret[17], secret[18], secret[19]]))
}

/// Connects the shards of one process.
///
/// One lock orders everything: under it, an offset is drawn, and the message enters the window and the inboxes, so
/// that every inbox gets the same order and [`Broker::recent`] meets the live stream at one exact offset. It is
/// locked for about a microsecond, and taken only by publishers and by long polls.
pub struct Local {
    router: Arc<Router>,
    pub(crate) hash_key: (u64, u64),
    /// The epoch changes only before the first publish, when this process takes over from another one.
    pub(crate) epoch: AtomicU32,
    started: Instant,
    order: Mutex<Order>,
    history: Arc<dyn HistoryLog>,
    /// The number of this node and the relay to the others, if there are any.
    relay: Option<(NodeId, Arc<dyn Relay>)>,
}

/// The origin of a message.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// At this node, by a client or an application.
    Here,
    /// Another node, which has made choices for groups. All nodes know the message's number.
    OtherNode(&'a [GroupChoice], u64),
}

/// What the history does with a message.
enum HistoryRoute {
    /// The topic has no history.
    None,
    /// The message bypasses the history.
    Bypass,
    /// The history appends the message by this rule.
    Append(Arc<HistoryRule>),
}

pub(crate) struct Order {
    pub last: u64,
    pub window: Window,
}

impl Local {
    /// Makes a broker with this router. `secret` keys the hash of topic names and names the epoch: it must be random
    /// and new for every start. Message times count from `started`. Messages of topics with history go to the log
    /// `history`, which passes them to the same inboxes.
    pub fn new(
        router: Arc<Router>,
        secret: [u8; SECRET_BYTES],
        started: Instant,
        limits: Limits,
        history: Arc<dyn HistoryLog>,
    ) -> Self {
        let word = |from: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&secret[from..from + 8]);
            u64::from_le_bytes(bytes)
        };
        Local {
            history,
            relay: None,
            router,
            hash_key: (word(0), word(8)),
            epoch: AtomicU32::new(epoch(&secret).0),
            started,
            order: Mutex::new(Order { last: 0, window: Window::new(limits) }),
        }
    }

    /// Sets this node's number, and a relay that passes messages to other nodes.
    #[must_use]
    pub fn with_relay(mut self, node: NodeId, relay: Arc<dyn Relay>) -> Self {
        self.router.set_node(node);
        self.relay = Some((node, relay));
        self
    }

    /// Draws an offset that no message gets, to mark lost messages. A client whose position is before this offset may
    /// lack these messages.
    pub fn skip_offset(&self) -> u64 {
        let mut order = self.order();
        order.last += 1;
        order.last
    }

    /// Handles the loss of messages of other nodes: of topics for which `is_lost` returns true, and of broadcasts if
    /// `is_everyone`. Members here get a notice, if their protocol has one.
    pub fn notify_gap(
        &self,
        is_everyone: bool,
        is_lost: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) {
        let position = Position { epoch: self.epoch(), offset: self.skip_offset() };
        // A topic in a log that all nodes share loses nothing between them.
        let history = self.history.clone();
        let is_in_log = move |topic: &str| history.is_shared() && history.has_each_message(topic);
        let is_lost = move |topic: &str| is_lost(topic) && !is_in_log(topic);
        self.router.notify_gap(&Arc::new(Gap::new(position, is_everyone, is_lost)));
    }

    /// Returns the relay that passes a message of this origin to other nodes. A node's messages about itself and the
    /// server's own events stay here.
    ///
    /// # Errors
    /// If the relay has no capacity for the message.
    fn find_relay(
        &self,
        publication: &Publication,
        origin: Origin<'_>,
    ) -> Result<Option<&Arc<dyn Relay>>, PublishError> {
        let is_own =
            || publication.is_own() || publication.event.as_deref().is_some_and(is_reserved);
        let relay = self.relay.as_ref().map(|(_, relay)| relay);
        match relay.filter(|_| matches!(origin, Origin::Here) && !is_own()) {
            Some(relay) if !relay.has_capacity() => Err(PublishError::Overloaded),
            relay => Ok(relay),
        }
    }

    /// Appends a message to the history, which then goes to other nodes.
    fn append(&self, mut append: Append, done: Done) {
        if self.history.is_shared() {
            return self.history.append(append, done);
        }
        let relay = match self.find_relay(&append.publication, Origin::Here) {
            Ok(Some(relay)) => relay.clone(),
            Ok(None) => return self.history.append(append, done),
            Err(error) => return done(Err(error)),
        };
        let (hash, publication) = (append.hash, append.publication.clone());
        let choices = append.routes.take_choices();
        let relayed: Done = Box::new(move |result| {
            if let Ok(Published { id, repeated: false, .. }) = result {
                relay.publish(Arc::new(Message::new(publication, id, hash, 0).into()), choices);
            }
            done(result);
        });
        self.history.append(append, relayed);
    }

    /// Gives a message without retention its position, and passes it to every interested inbox.
    fn pass_on(
        &self,
        hash: u64,
        publication: Publication,
        receipt: Option<Receipt>,
        (passes, origin): (bool, Origin<'_>),
    ) -> Result<Position, PublishError> {
        let relay = self.find_relay(&publication, origin)?;
        let mut routes = match relay {
            Some(_) => self.router.routes(&publication.topic),
            None => self.routes_here(&publication.topic, origin),
        };
        let (groups, choices) = (routes.take_groups(), routes.take_choices());
        let left = routes.take_left();
        // Other publishers wait for the lock, so the message is made before. It gets its id and its time under the lock.
        let unset = Position { epoch: self.epoch(), offset: 0 };
        let message = Message::new(publication, unset, hash, 0);
        let message = if passes { message.passing() } else { message };
        let mut message = Arc::new(Envelope::from(message).matched_by(routes.filters));
        let mut order = self.order();
        if !self.router.has_capacity_for(&message, &groups) {
            return Err(PublishError::Overloaded);
        }
        let id = self.assign_position(&mut order, &mut message);
        let source = match origin {
            Origin::Here => MessageSource::Here,
            Origin::OtherNode(..) => MessageSource::OtherNode,
        };
        self.router.deliver(&message, &groups, receipt.as_ref(), source);
        if let Some(relay) = relay {
            relay.publish(message, choices);
        } else {
            self.pass_left(&message, &left);
        }
        Ok(id)
    }

    /// Decides what the history does with a message. The server's own messages bypass it: they notify members of a
    /// change, later members get the state itself, and they must not push out what applications have published. A
    /// message without a key has no state, so a compacted topic rejects it.
    fn history_route(
        &self,
        publication: &Publication,
        no_history: bool,
    ) -> Result<HistoryRoute, PublishError> {
        let is_own = || publication.event.as_deref().is_some_and(is_reserved);
        match self.history.rule_for(publication) {
            None => Ok(HistoryRoute::None),
            Some(_) if no_history || is_own() => Ok(HistoryRoute::Bypass),
            Some(rule) if rule.compact && publication.key().is_none() => {
                Err(PublishError::KeyRequired)
            }
            Some(rule) => Ok(HistoryRoute::Append(rule)),
        }
    }

    /// Gives a message that nothing else has yet its position and its time, and adds it to the window.
    fn assign_position(&self, order: &mut Order, message: &mut Arc<Envelope>) -> Position {
        order.last += 1;
        let id = Position { epoch: self.epoch(), offset: order.last };
        if let Some(Envelope { message, .. }) = Arc::get_mut(message) {
            (message.id, message.published_us) = (id, self.now_us());
        }
        // A node's message about itself must not push published messages out of the window.
        if !message.publication.is_own() {
            order.window.push(message.clone());
        }
        id
    }

    /// Delivers a message of a log that nodes share, in a topic for which this node has no rule. The message gets a
    /// position of this node, as others without history do, and polls find it. The caller makes it the retained message of
    /// its topic, if it is one.
    pub fn deliver_without_history(
        &self,
        hash: u64,
        publication: Publication,
        receipt: Option<&Receipt>,
        mut routes: Routes,
    ) {
        let groups = routes.take_groups();
        let unset = Position { epoch: self.epoch(), offset: 0 };
        let message = Message::new(publication, unset, hash, 0);
        let mut message = Arc::new(Envelope::from(message).matched_by(routes.filters.take()));
        let mut order = self.order();
        self.assign_position(&mut order, &mut message);
        self.router.deliver_to_inboxes(&message, &groups, receipt);
    }

    pub(crate) fn order(&self) -> MutexGuard<'_, Order> {
        // Ignores poisoning. A panic under the lock can leave a drawn offset without a message at worst, which is a
        // gap, and gaps are allowed.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Visits the window's messages, newest first, until `visit` returns false. Releases the lock in between, and
    /// does not visit messages published meanwhile. Returns false if it reached its limit before the window's end.
    fn scan(&self, mut visit: impl FnMut(&Arc<Envelope>) -> bool) -> bool {
        let mut before = u64::MAX;
        for _ in 0..SCANNED_MAX.div_ceil(SCANNED) {
            let order = self.order();
            let mut is_end = true;
            for message in order.window.before(before, SCANNED) {
                if !visit(message) {
                    return true;
                }
                before = message.id.offset;
                is_end = false;
            }
            if is_end {
                return true;
            }
        }
        self.order().window.before(before, 1).next().is_none()
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }
}

impl Broker for Local {
    fn publish(
        &self,
        publication: Publication,
        receipt: Option<Receipt>,
    ) -> Result<Position, PublishError> {
        let hash = self.hash(&publication.topic);
        match self.history_route(&publication, false)? {
            HistoryRoute::None => self.pass_on(hash, publication, receipt, (false, Origin::Here)),
            HistoryRoute::Bypass => self.pass_on(hash, publication, receipt, (true, Origin::Here)),
            // A session has subscribed since the caller found no rule. The log needs no message from before that.
            HistoryRoute::Append(_)
                if self.history.is_shared()
                    && !self.history.has_each_message(&publication.topic) =>
            {
                self.pass_on(hash, publication, receipt, (false, Origin::Here))
            }
            HistoryRoute::Append(rule) => {
                let relay = self.find_relay(&publication, Origin::Here)?;
                let mut routes = self.router.routes(&publication.topic);
                let choices = routes.take_choices();
                let relayed = relay.map(|relay| (relay, publication.clone(), choices));
                let options = Options::default();
                let append = Append { hash, publication, rule, options, receipt, routes };
                let id = self.history.append_now(append)?;
                if let Some((relay, publication, choices)) = relayed {
                    let message = Message::new(publication, id, hash, 0).into();
                    relay.publish(Arc::new(message), choices);
                }
                Ok(id)
            }
        }
    }

    fn submit(&self, publish: Publish, receipt: Option<Receipt>, done: Done) {
        let Publish { publication, options } = publish;
        let hash = self.hash(&publication.topic);
        let bypasses = match self.history_route(&publication, options.no_history) {
            Err(error) => return done(Err(error)),
            Ok(HistoryRoute::Append(rule)) => {
                let routes = self.router.routes(&publication.topic);
                let append = Append { hash, publication, rule, options, receipt, routes };
                return self.append(append, done);
            }
            Ok(HistoryRoute::None) => false,
            Ok(HistoryRoute::Bypass) => true,
        };
        if options.if_offset.is_some() {
            return done(Err(PublishError::NoHistory));
        }
        let passed = self.pass_on(hash, publication, receipt, (bypasses, Origin::Here));
        done(passed.map(|id| Published { id, repeated: false, queued: false }));
    }

    /// Begins with the oldest message: while it scans, the window may drop messages that are found already; if it
    /// drops others, the result is not complete. The inboxes deliver what is published after the lock was first
    /// taken, because the caller is in the topics already.
    fn recent(&self, topics: &[(u64, &str)], after: Option<Position>) -> Recent {
        let mut topics = topics.to_vec();
        topics.sort_unstable();
        let mut order = self.order();
        let top = Position { epoch: self.epoch(), offset: order.last };
        let Some(after) = after else {
            return Recent { messages: Vec::new(), top, complete: true };
        };
        if after.epoch != self.epoch() {
            return Recent { messages: Vec::new(), top, complete: false };
        }
        let (mut messages, mut seen) = (Vec::new(), after.offset);
        let mut complete = seen <= top.offset;
        if let Some((_, relay)) = &self.relay {
            complete &= topics.iter().all(|(_, topic)| relay.complete_after(topic) <= seen);
        }
        while seen < top.offset {
            complete &=
                !topics.iter().any(|(hash, name)| order.window.has_dropped(*hash, name, seen));
            let (part, to) = order.window.of_topics(&topics, seen, top.offset, SCANNED);
            messages.extend(part);
            seen = to;
            if seen < top.offset {
                drop(order);
                order = self.order();
            }
        }
        Recent { messages, top, complete }
    }

    fn latest(&self, topic: Option<(u64, &str)>, limit: usize) -> Latest {
        let mut messages = Vec::new();
        if limit == 0 {
            return Latest { messages, complete: true };
        }
        if let Some((hash, name)) = topic
            && self.history.rule(name).is_some()
        {
            return self.history.latest_of(hash, name, limit);
        }
        let complete = self.scan(|message| {
            let is_requested = topic.is_none_or(|(hash, name)| {
                hash == message.topic_hash && name == message.publication.topic
            });
            if is_requested {
                messages.push(message.clone());
            }
            messages.len() < limit
        });
        if topic.is_none() {
            // Merges two logs by time.
            messages.extend(self.history.latest(limit));
            messages.sort_by_key(|message| std::cmp::Reverse(message.published_us));
            messages.truncate(limit);
        }
        Latest { messages, complete }
    }

    fn activity(&self, seconds_max: u64) -> Activity {
        let now_us = self.now_us();
        let from_us = now_us.saturating_sub(seconds_max.saturating_mul(1_000_000));
        let mut activity = Activity::default();
        let (mut seen, mut oldest_us) = (0, now_us);
        self.scan(|message| {
            let is_in = message.published_us >= from_us && seen < SCANNED_MAX;
            if is_in {
                seen += 1;
                oldest_us = message.published_us;
                activity.count(message);
            }
            is_in
        });
        let history_us = self.history.count_newest(from_us, SCANNED_MAX, &mut activity);
        // The time covers silence too, but not messages that were dropped or not scanned.
        let complete_us = match seen {
            SCANNED_MAX.. => oldest_us,
            _ => self.order().window.complete_after_us(),
        };
        let complete_us = complete_us.max(history_us);
        activity.span_us = now_us.saturating_sub(from_us.max(complete_us));
        activity
    }

    fn hash(&self, topic: &str) -> u64 {
        keyed_hash(self.hash_key, topic)
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Relaxed))
    }

    fn has_nodes(&self) -> bool {
        self.relay.is_some()
    }

    fn enter_topic(&self, topic: &str) {
        if let Some((_, relay)) = &self.relay {
            relay.enter(topic, &|| self.skip_offset());
        }
    }

    fn leave_topic(&self, topic: &str) {
        if let Some((_, relay)) = &self.relay {
            relay.leave(topic);
        }
    }

    fn enter_filter(&self, shard: u16, hash: u64, name: &str) {
        self.router.enter_filter(shard, hash, name);
        let Some((_, relay)) = &self.relay else { return };
        match one_topic(name) {
            Some(topic) => relay.enter(topic, &|| self.skip_offset()),
            None => relay.enter_all(&|| self.skip_offset()),
        }
    }

    fn leave_filter(&self, shard: u16, name: &str) {
        self.router.leave_filter(shard, name);
        let Some((_, relay)) = &self.relay else { return };
        match one_topic(name) {
            Some(topic) => relay.leave(topic),
            None => relay.leave_all(),
        }
    }

    fn leave_filters(&self, shard: u16) {
        self.router.leave_filters(shard);
    }

    fn pass_to_group(&self, message: &Arc<Envelope>, key: &Arc<FilterKey>, passed: Passed) -> bool {
        self.router.pass_on(message, key, passed)
    }

    fn connect_number(&self, unix_us: u64) -> Option<u64> {
        self.relay.as_ref().map(|(_, relay)| relay.connect_number(unix_us))
    }

    fn client_connected(&self, key: &Name, number: u64, is_clean: bool) {
        if let Some((_, relay)) = &self.relay {
            relay.client_connected(key, number, is_clean);
        }
    }

    fn pass_to_node(&self, message: &Arc<Envelope>, group: &Name, passed: &[NodeId]) -> bool {
        let Some((own, relay)) = &self.relay else { return false };
        if self.router.is_alone() {
            return false;
        }
        let Some(to) = self.router.choose_node(group, passed) else { return false };
        let mut nodes = passed.to_vec();
        if !nodes.contains(own) {
            nodes.push(*own);
        }
        let (message, group) = (message.clone(), group.clone());
        relay.pass_to_node(GroupMessage { message, group, to, passed: nodes });
        true
    }
}

/// Returns the topic that a filter of this name matches, if it is a single one.
fn one_topic(name: &str) -> Option<&str> {
    let filter = of_filter(name).map_or(name, |(_, filter)| filter);
    (!has_wildcard(filter)).then_some(filter)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use model::Data;

    use super::*;
    use crate::{Delivery, Inbox, NoHistory};

    /// An inbox that wants every topic but `nobody`.
    struct Box1 {
        unsubscribed: AtomicU64,
        full: AtomicBool,
        taken: Mutex<Vec<u64>>,
    }

    impl Inbox for Box1 {
        fn wants(&self, topic_hash: u64) -> bool {
            topic_hash != self.unsubscribed.load(Ordering::Relaxed)
        }
        fn has_capacity(&self) -> bool {
            !self.full.load(Ordering::Relaxed)
        }
        fn deliver(&self, delivery: Delivery) {
            if let Some(receipt) = &delivery.receipt {
                receipt.add(2);
            }
            self.taken.lock().unwrap().push(delivery.message.id.offset);
        }
        fn notify_gap(&self, gap: Arc<Gap>) {
            self.taken.lock().unwrap().push(gap.position.offset);
        }
    }

    fn broker(messages_max: usize) -> (Arc<Box1>, Local) {
        let inbox = Arc::new(Box1 {
            unsubscribed: AtomicU64::new(0),
            full: AtomicBool::new(false),
            taken: Mutex::new(Vec::new()),
        });
        let limits = Limits {
            recent_messages_max: messages_max,
            recent_bytes_max: 2 << 20,
            recent_seconds_max: 60,
        };
        let local = Local::new(
            Arc::new(Router::new(vec![inbox.clone(), inbox.clone()])),
            [7; 20],
            Instant::now(),
            limits,
            Arc::new(NoHistory),
        );
        inbox.unsubscribed.store(local.hash("nobody"), Ordering::Relaxed);
        (inbox, local)
    }

    #[test]
    fn a_gap_has_an_offset_between_those_of_messages_and_goes_to_all_shards() {
        let (inbox, local) = broker(9);
        local.publish(publication("a"), None).unwrap();
        local.notify_gap(false, |topic| topic == "a");
        local.publish(publication("a"), None).unwrap();
        assert_eq!(*inbox.taken.lock().unwrap(), [1, 1, 2, 2, 3, 3]);
    }

    fn nowhere() -> Arc<Router> {
        Arc::new(Router::new(Vec::new()))
    }

    fn publication(topic: &str) -> Publication {
        Publication::new(topic, Data::Text("x".into()))
    }

    #[test]
    fn messages_reach_interested_inboxes_in_order_and_the_receipt_adds_up() {
        let (inbox, local) = broker(10);
        let members = Arc::new(AtomicU64::new(u64::MAX));
        let seen = members.clone();
        let receipt = Receipt::new(move |count| seen.store(count, Ordering::Relaxed));
        assert_eq!(local.publish(publication("a"), Some(receipt)).unwrap().offset, 1);
        assert_eq!(members.load(Ordering::Relaxed), 4);
        assert_eq!(local.publish(publication("nobody"), None).unwrap().offset, 2);
        local.publish(publication("b"), None).unwrap();
        assert_eq!(*inbox.taken.lock().unwrap(), [1, 1, 3, 3]);
    }

    #[test]
    fn with_a_full_inbox_no_member_gets_the_message_and_no_offset_is_drawn() {
        let (inbox, local) = broker(10);
        inbox.full.store(true, Ordering::Relaxed);
        assert_eq!(local.publish(publication("a"), None), Err(PublishError::Overloaded));
        assert_eq!(local.publish(publication("nobody"), None).unwrap().offset, 1);
    }

    #[test]
    fn the_window_gives_what_came_after_and_says_when_it_does_not_reach() {
        let (_, local) = broker(3);
        for topic in ["a", "b", "a", "a", "b"] {
            local.publish(publication(topic), None).unwrap();
        }
        let id = |offset| Some(Position { epoch: local.epoch(), offset });
        let a = (local.hash("a"), "a");
        let offsets = |recent: &Recent| {
            recent.messages.iter().map(|message| message.id.offset).collect::<Vec<_>>()
        };
        let recent = local.recent(&[a], id(2));
        assert_eq!((offsets(&recent), recent.complete, recent.top.offset), (vec![3, 4], true, 5));
        let recent = local.recent(&[a], id(3));
        assert_eq!((offsets(&recent), recent.complete), (vec![4], true));
        // The window has dropped the first message, and the second, which was another topic's.
        let recent = local.recent(&[a], id(1));
        assert_eq!((offsets(&recent), recent.complete), (vec![3, 4], true));
        assert!(!local.recent(&[a], id(0)).complete);
        assert!(!local.recent(&[(local.hash("b"), "b")], id(1)).complete);
        assert!(local.recent(&[a], id(5)).complete);
        assert!(!local.recent(&[a], id(6)).complete, "a position that was never given out");
        assert!(!local.recent(&[a], id(u64::MAX)).complete);
        assert!(local.recent(&[a], None).messages.is_empty());
        let both = local.recent(&[(local.hash("b"), "b"), (local.hash("c"), "c"), a], id(2));
        assert_eq!((offsets(&both), both.complete), (vec![3, 4, 5], true));
        let forged = (local.hash("a"), "b");
        assert!(local.recent(&[forged], id(2)).messages.is_empty(), "names count, not hashes");
        let other = Some(Position { epoch: Epoch(1), offset: 3 });
        assert!(!local.recent(&[a], other).complete);
    }

    #[test]
    fn the_latest_come_newest_first_over_several_holds_of_the_lock() {
        let (_, local) = broker(1_000);
        for n in 0..SCANNED + 10 {
            local.publish(publication(if n == 3 { "rare" } else { "often" }), None).unwrap();
        }
        let offsets = |topic: Option<&str>, limit| {
            let latest = local.latest(topic.map(|name| (local.hash(name), name)), limit);
            assert!(latest.complete);
            latest.messages.iter().map(|message| message.id.offset).collect::<Vec<_>>()
        };
        let top = (SCANNED + 10) as u64;
        assert_eq!(offsets(None, 3), [top, top - 1, top - 2]);
        assert_eq!(offsets(Some("rare"), 3), [4]);
        assert_eq!(offsets(Some("often"), 2), [top, top - 1]);
        assert_eq!(offsets(Some("often"), 10_000).len(), SCANNED + 9);
        assert!(offsets(Some("none"), 3).is_empty() && offsets(None, 0).is_empty());
    }

    #[test]
    fn recent_scans_several_holds_of_the_lock_up_to_where_it_began() {
        let (_, local) = broker(10_000);
        let messages = 3 * SCANNED as u64 + 7;
        for n in 1..=messages {
            local.publish(publication(if n % 2 == 0 { "even" } else { "odd" }), None).unwrap();
        }
        let even = [(local.hash("even"), "even")];
        std::thread::scope(|scope| {
            // The scan doesn't find messages published meanwhile.
            scope.spawn(|| (0..500).for_each(|_| _ = local.publish(publication("even"), None)));
            for _ in 0..50 {
                let recent =
                    local.recent(&even, Some(Position { epoch: local.epoch(), offset: 9 }));
                let found: Vec<u64> = recent.messages.iter().map(|found| found.id.offset).collect();
                let odd_until = messages - messages % 2;
                let all = (10..=recent.top.offset).filter(|n| *n > odd_until || n % 2 == 0);
                let all: Vec<u64> = all.filter(|n| *n != messages).collect();
                assert!(recent.complete && found == all);
            }
        });
    }

    #[test]
    fn a_scan_that_ends_early_says_so() {
        let limits = Limits {
            recent_messages_max: usize::MAX,
            recent_bytes_max: usize::MAX,
            recent_seconds_max: 600,
        };
        let local = Local::new(nowhere(), [7; 20], Instant::now(), limits, Arc::new(NoHistory));
        local.publish(publication("rare"), None).unwrap();
        let scanned = SCANNED_MAX.div_ceil(SCANNED) * SCANNED;
        (1..scanned).for_each(|_| _ = local.publish(publication("often"), None));
        let latest = |topic: &str, limit| {
            let latest = local.latest(Some((local.hash(topic), topic)), limit);
            (latest.messages.len(), latest.complete)
        };
        assert_eq!((latest("rare", 2), latest("none", 2)), ((1, true), (0, true)));
        local.publish(publication("often"), None).unwrap();
        assert_eq!((latest("rare", 2), latest("often", 2)), ((0, false), (2, true)));
    }

    #[test]
    fn activity_counts_topics_over_the_time_that_the_window_covers() {
        let started = Instant::now().checked_sub(std::time::Duration::from_secs(100)).unwrap();
        let limits =
            Limits { recent_messages_max: 4, recent_bytes_max: 1 << 20, recent_seconds_max: 60 };
        let local = Local::new(nowhere(), [7; 20], started, limits, Arc::new(NoHistory));
        assert_eq!(local.activity(60).span_us, 60_000_000, "silence is known, too");
        for topic in ["a", "b", "a", "a"] {
            local.publish(publication(topic), None).unwrap();
        }
        let activity = local.activity(60);
        let messages = |topic: &str| activity.messages(local.hash(topic));
        assert_eq!((messages("a"), messages("b"), messages("c")), (3, 1, 0));
        assert_eq!(activity.topics[&local.hash("b")].topic, "b");
        assert_eq!(activity.span_us, 60_000_000);
        local.publish(publication("c"), None).unwrap();
        let activity = local.activity(60);
        assert_eq!(activity.topics.values().map(|topic| topic.messages).sum::<u64>(), 4);
        assert!(activity.span_us < 30_000_000, "what was dropped is not covered: {activity:?}");
        let none = local.activity(0);
        assert!(none.span_us == 0 && none.topics.is_empty(), "{none:?}");
    }
}

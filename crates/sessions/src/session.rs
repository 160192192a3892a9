//! The parts of a session, and their stored form.

use std::borrow::Cow;

use minicbor::{Decode, Encode};
use model::filter::{self, check_name};
use model::{Name, Publication, Qos, name};
use xxhash_rust::xxh3::xxh3_64;

use crate::flow::{Flow, FlowRecord, Outgoing, Source, State};
use crate::record::PublicationRecord;

/// A session with this number of seconds never expires after its connection ends.
pub const WITHOUT_END: u32 = u32::MAX;

/// Returns the mark of this key's session, for messages that exclude it. It is the same in each process.
pub fn session_mark(key: &str) -> u64 {
    xxh3_64(key.as_bytes())
}

/// A client's subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The filter, without the prefix of a shared one.
    pub filter: Name,
    /// The group with which it is shared.
    pub group: Option<Name>,
    /// The options that the client requested.
    pub options: SubscriptionOptions,
    /// The identifier that the client gave it, 1 to 268,435,455; 0 is none.
    pub id: u32,
    /// Messages of the history up to this offset were published before it.
    pub since: u64,
    /// True if it names one topic.
    is_exact: bool,
    /// See [`Subscription::hub_name`].
    hub_name: Name,
}

impl Subscription {
    /// Makes a subscription with these fields.
    pub fn new(
        filter: Name,
        group: Option<Name>,
        options: SubscriptionOptions,
        id: u32,
        since: u64,
    ) -> Self {
        let is_exact = check_name(&filter).is_ok();
        let hub_name = match group.is_none() && is_exact {
            true => filter.clone(),
            false => name::filter(group.as_deref(), &reach(&filter, options)),
        };
        Subscription { filter, group, options, id, since, is_exact, hub_name }
    }

    /// Returns the filter whose messages the client gets.
    pub fn reach(&self) -> Cow<'_, str> {
        reach(&self.filter, self.options)
    }

    /// Returns true if it names one topic.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Returns its name in the hub: that of its topic, or of its filter.
    pub fn hub_name(&self) -> &Name {
        &self.hub_name
    }

    /// Returns true if it gets all messages of a topic: it matches, and no group shares it.
    pub fn matches(&self, topic: &str) -> bool {
        self.group.is_none()
            && match self.is_exact {
                true => *self.filter == *topic,
                false => filter::matches(&self.reach(), topic),
            }
    }

    /// Returns true if it gets a topic's message at this offset of the history.
    pub fn matches_at(&self, topic: &str, offset: u64) -> bool {
        offset > self.since && self.matches(topic)
    }
}

fn reach(filter: &Name, options: SubscriptionOptions) -> Cow<'_, str> {
    match filter.strip_suffix('#') {
        Some(above) if options.below_only => format!("{above}+/#").into(),
        _ => Cow::Borrowed(filter),
    }
}

/// The options of a subscription (MQTT 5.0, section 3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// The largest QoS of its messages.
    pub qos: Qos,
    /// Excludes messages that this client has published.
    pub no_local: bool,
    /// Messages have the RETAIN flag with which they were published.
    pub retain_as_published: bool,
    /// The filter ends with `/#`, and the client may read the topics below, but not the parent topic itself.
    pub below_only: bool,
}

impl SubscriptionOptions {
    /// Encodes the options as a byte.
    pub fn bits(self) -> u8 {
        self.qos.number()
            | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | u8::from(self.below_only) << 4
    }

    /// Decodes [`SubscriptionOptions::bits`].
    pub fn from_bits(bits: u8) -> Self {
        SubscriptionOptions {
            qos: Qos::from_number(bits & 3).unwrap_or_default(),
            no_local: bits & 4 != 0,
            retain_as_published: bits & 8 != 0,
            below_only: bits & 16 != 0,
        }
    }
}

/// The message to publish when a client's connection ends without DISCONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// The message, without its time to live.
    pub publication: Publication,
    /// How long the will waits for the client to come back, in seconds; not longer than its session.
    pub delay_s: u32,
    /// The message's time to live from its publish on, in seconds (MQTT 5.0, section 3.1.3.2.4).
    pub expiry_s: Option<u32>,
    /// The author of the will.
    pub author: Author,
}

/// The author of a will: it is not published once they are revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Author {
    /// The users.
    pub users: Vec<Name>,
    /// The token that authenticates the users; `None` without one.
    pub token: Option<Token>,
}

/// The data of a token that a revocation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Token {
    /// When it was issued, in seconds since 1970; 0 if it doesn't say.
    #[n(0)]
    pub issued_s: u32,
    /// A hash of its `jti`; 0 if it has none.
    #[n(1)]
    pub id_hash: u32,
}

impl Will {
    /// Returns its approximate memory, in bytes.
    pub fn bytes(&self) -> usize {
        let users = self.author.users.iter().map(|user| size_of::<Name>() + user.len());
        let topic = self.publication.topic.len();
        size_of::<Will>() + self.publication.bytes() + topic + users.sum::<usize>()
    }

    /// Returns the message to publish at this time, in milliseconds since 1970.
    pub fn publication(self, now_ms: u64) -> Publication {
        let Will { mut publication, delay_s: _, expiry_s, author: _ } = self;
        if let Some(seconds) = expiry_s {
            let expires_ms = now_ms.saturating_add(u64::from(seconds) * 1_000);
            publication.attributes.get_or_insert_default().expires_ms = Some(expires_ms);
        }
        publication
    }
}

/// A client's session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Distinguishes it from the sessions of this key before and after it
    /// ([`Sessions::new_epoch`](crate::Sessions::new_epoch)); 0 if it is unknown.
    pub epoch: u64,
    /// The number of its newest connect in a cluster ([`model::LogicalTime`]); 0 without.
    pub connect_number: u64,
    /// Seconds that it outlives its connection; [`WITHOUT_END`] if it never expires.
    pub seconds: u32,
    /// Its subscriptions, in the order in which they were made.
    pub subscriptions: Vec<Subscription>,
    /// The messages in flight.
    pub flow: Flow,
    /// Each message that its subscriptions match, up to this offset of the log of topics with history, was sent or is
    /// in `refs`.
    pub position: u64,
    /// Messages that wait to be sent, in order.
    pub refs: Vec<Source>,
    /// Retained messages that wait to be sent, because of new subscriptions.
    pub replays: Vec<Replay>,
    /// Messages that its user has not acknowledged and that wait to be sent, because of new subscriptions.
    pub backlogs: Vec<Backlog>,
}

/// The log of the history as a stored session finds it when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentLog {
    /// Its last offset.
    pub top: u64,
    /// False if the session had its positions in another log.
    pub is_same: bool,
}

/// A topic's messages from before a subscription, from one offset to another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Backlog {
    /// The topic.
    #[cbor(n(0), with = "crate::record::name")]
    pub topic: Name,
    /// The session has the messages up to this offset.
    #[n(1)]
    pub after: u64,
    /// Later messages come by the live stream.
    #[n(2)]
    pub until: u64,
}

/// The retained messages that a subscription matches, after a position.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Replay {
    /// The filter whose messages the client gets.
    #[cbor(n(0), with = "crate::record::name")]
    pub reach: Name,
    /// The options of the subscription: [`SubscriptionOptions::bits`].
    #[n(1)]
    pub options: u8,
    /// The identifier of the subscription; 0 is none.
    #[n(2)]
    pub id: u32,
    /// The session has the messages of all topics up to this one.
    #[n(3)]
    pub after: Option<String>,
}

impl Session {
    /// Returns true if it outlives its connection.
    pub fn outlives(&self) -> bool {
        self.seconds > 0
    }

    /// Continues in this log. If it is another one, or has lost messages that the session had, offsets name other messages
    /// now: the session gets only what is published from now on.
    pub(crate) fn continue_in(&mut self, log: CurrentLog) {
        if log.is_same && self.position <= log.top {
            return;
        }
        self.position = log.top;
        self.flow.give_up_all();
        self.refs.clear();
        self.backlogs.clear();
        for subscription in &mut self.subscriptions {
            subscription.since = subscription.since.min(log.top);
        }
    }

    /// Returns its approximate memory, in bytes.
    pub fn bytes(&self) -> usize {
        let Session {
            epoch: _,
            connect_number: _,
            seconds: _,
            subscriptions,
            flow,
            position: _,
            refs,
            replays,
            backlogs,
        } = self;
        let subscription = |it: &Subscription| {
            // Includes its interests.
            let names = it.filter.len() + it.hub_name.len() + it.reach().len();
            size_of::<Subscription>() + names + it.group.as_ref().map_or(0, |group| group.len())
        };
        let source = |it: &Source| {
            size_of::<Source>() + it.topic.len() + it.group.as_ref().map_or(0, |group| group.len())
        };
        let replay = |it: &Replay| {
            size_of::<Replay>() + it.reach.len() + it.after.as_ref().map_or(0, String::len)
        };
        let backlog = |it: &Backlog| size_of::<Backlog>() + it.topic.len();
        let under_way = flow.out().filter_map(|outgoing| outgoing.source.as_deref());
        size_of::<Session>()
            + subscriptions.iter().map(subscription).sum::<usize>()
            + flow.in_flight() * size_of::<Outgoing>()
            + flow.incoming() * size_of::<u16>()
            + under_way.chain(refs).map(source).sum::<usize>()
            + replays.iter().map(replay).sum::<usize>()
            + backlogs.iter().map(backlog).sum::<usize>()
    }

    /// Returns the messages for which groups have chosen it and that other members may get, in order: those that were
    /// never sent, and those with QoS 1 that are not acknowledged (MQTT 5.0, section 4.8.2).
    pub fn redispatched(&self) -> impl Iterator<Item = &Source> {
        let at_least_once = |it: &&Outgoing| it.state == State::AtLeastOnce;
        let sent = self.flow.out().filter(at_least_once).filter_map(|it| it.source.as_deref());
        sent.chain(&self.refs).filter(|it| it.group.is_some())
    }

    /// Returns the filters whose messages are retained for it: those with acknowledgements.
    pub fn interests(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let confirmed = |it: &&Subscription| it.options.qos.is_confirmed();
        self.subscriptions.iter().filter(confirmed).map(|it| it.reach())
    }
}

/// The stored part of a session that changes seldom.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct SessionRecord {
    #[n(0)]
    seconds: u32,
    #[n(1)]
    subscriptions: Vec<SubscriptionRecord>,
    /// The will to publish if the client does not come back.
    #[n(2)]
    will: Option<WillRecord>,
    /// When its connection ended, in seconds since 1970; `None` while it has one.
    #[n(3)]
    away_since_s: Option<u64>,
    /// Earlier versions wrote none.
    #[cbor(n(4), default)]
    epoch: u64,
    /// Earlier versions wrote none.
    #[cbor(n(5), default)]
    connect_number: u64,
}

/// The stored part of a session that changes with each message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ProgressRecord {
    #[n(0)]
    flow: FlowRecord,
    #[n(1)]
    position: u64,
    #[n(2)]
    refs: Vec<Source>,
    #[n(3)]
    replays: Vec<Replay>,
    #[n(4)]
    backlogs: Vec<Backlog>,
    /// The epoch of its session.
    #[cbor(n(5), default)]
    epoch: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
struct SubscriptionRecord {
    #[cbor(n(0), with = "crate::record::name")]
    filter: Name,
    #[n(1)]
    group: Option<String>,
    #[n(2)]
    options: u8,
    #[n(3)]
    id: u32,
    #[n(4)]
    since: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
struct WillRecord {
    #[n(0)]
    publication: PublicationRecord,
    #[n(1)]
    delay_s: u32,
    #[n(2)]
    expiry_s: Option<u32>,
    #[n(3)]
    users: Option<Vec<String>>,
    #[n(4)]
    token: Option<Token>,
}

impl From<&Will> for WillRecord {
    fn from(will: &Will) -> Self {
        let Will { publication, delay_s, expiry_s, author: Author { users, token } } = will;
        WillRecord {
            publication: publication.into(),
            delay_s: *delay_s,
            expiry_s: *expiry_s,
            users: Some(users.iter().map(Name::to_string).collect()),
            token: *token,
        }
    }
}

impl From<WillRecord> for Will {
    fn from(record: WillRecord) -> Self {
        let WillRecord { publication, delay_s, expiry_s, users, token } = record;
        let users = users.into_iter().flatten().map(Name::from).collect();
        let author = Author { users, token };
        Will { publication: publication.into(), delay_s, expiry_s, author }
    }
}

impl From<&Subscription> for SubscriptionRecord {
    fn from(subscription: &Subscription) -> Self {
        let Subscription { filter, group, options, id, since, is_exact: _, hub_name: _ } =
            subscription;
        SubscriptionRecord {
            filter: filter.clone(),
            group: group.as_ref().map(Name::to_string),
            options: options.bits(),
            id: *id,
            since: *since,
        }
    }
}

impl From<SubscriptionRecord> for Subscription {
    fn from(record: SubscriptionRecord) -> Self {
        let SubscriptionRecord { filter, group, options, id, since } = record;
        let (group, options) = (group.map(Name::from), SubscriptionOptions::from_bits(options));
        Subscription::new(filter, group, options, id, since)
    }
}

impl SessionRecord {
    /// Makes the record of a session, its will, and when its connection ended.
    pub fn new(session: &Session, will: Option<&Will>, away_since_s: Option<u64>) -> Self {
        let Session { epoch, connect_number, seconds, subscriptions, .. } = session;
        SessionRecord {
            epoch: *epoch,
            connect_number: *connect_number,
            seconds: *seconds,
            subscriptions: subscriptions.iter().map(Into::into).collect(),
            will: will.map(Into::into),
            away_since_s,
        }
    }

    /// Returns the session without its progress, its will, and when its connection ended.
    pub fn import(self) -> (Session, Option<Will>, Option<u64>) {
        let SessionRecord { seconds, subscriptions, will, away_since_s, epoch, connect_number } =
            self;
        let subscriptions = subscriptions.into_iter().map(Into::into).collect();
        let session =
            Session { epoch, connect_number, seconds, subscriptions, ..Session::default() };
        (session, will.map(Into::into), away_since_s)
    }
}

impl ProgressRecord {
    /// Makes the record of a session's progress.
    pub fn new(session: &Session) -> Self {
        let Session {
            epoch,
            connect_number: _,
            seconds: _,
            subscriptions: _,
            flow,
            position,
            refs,
            replays,
            backlogs,
        } = session;
        let (refs, replays) = (refs.clone(), replays.clone());
        let (flow, position, backlogs) = (flow.export(), *position, backlogs.clone());
        ProgressRecord { flow, position, refs, replays, backlogs, epoch: *epoch }
    }

    /// Applies the record to its session. Returns false, and changes nothing, if it is of an earlier session of that
    /// key: the store had not removed it yet.
    pub fn import(self, session: &mut Session) -> bool {
        let ProgressRecord { flow, position, refs, replays, backlogs, epoch } = self;
        // An earlier version stored sessions without an epoch.
        if session.epoch != 0 && session.epoch != epoch {
            return false;
        }
        (session.flow, session.position) = (flow.import(), position);
        (session.refs, session.replays, session.backlogs) = (refs, replays, backlogs);
        true
    }
}

#[cfg(test)]
mod tests {
    use model::Data;

    use super::*;

    #[test]
    fn a_session_is_read_as_it_was_written() {
        let subscription = |filter: &str, group: Option<&str>, bits, id| {
            let options = SubscriptionOptions::from_bits(bits);
            Subscription::new(filter.into(), group.map(Name::from), options, id, 12)
        };
        let mut session = Session {
            epoch: 77,
            connect_number: 1_700,
            seconds: 60,
            subscriptions: vec![
                subscription("a/+", None, 0, 0),
                subscription("b", Some("g"), 0b1110, 7),
            ],
            position: 41,
            refs: vec![Source {
                topic: "b".into(),
                offset: 42,
                retained: true,
                group: Some("$share/g/b".into()),
            }],
            replays: vec![Replay {
                reach: "c/#".into(),
                options: 1,
                id: 0,
                after: Some("c/d".into()),
            }],
            backlogs: vec![Backlog { topic: "@al".into(), after: 3, until: 40 }],
            ..Session::default()
        };
        session.flow.send(Qos::ExactlyOnce, Some(session.refs[0].clone()), 9);
        assert_eq!(session.interests().collect::<Vec<_>>(), ["b"]);
        let publication =
            Publication { retain: true, ..Publication::new("gone", Data::Text("x".into())) };
        let token = Some(Token { issued_s: 7, id_hash: 8 });
        let author = Author { users: vec!["al".into(), "bo".into()], token };
        let will = Will { publication, delay_s: 5, expiry_s: Some(9), author };
        let record = SessionRecord::new(&session, Some(&will), Some(1_000));
        let record: SessionRecord = minicbor::decode(&minicbor::to_vec(record).unwrap()).unwrap();
        let progress = ProgressRecord::new(&session);
        let progress: ProgressRecord =
            minicbor::decode(&minicbor::to_vec(progress).unwrap()).unwrap();
        let (mut read, read_will, away_since_s) = record.import();
        assert!(progress.import(&mut read));
        assert_eq!((read, read_will, away_since_s), (session, Some(will), Some(1_000)));
        for bits in 0..31 {
            if bits & 3 != 3 {
                assert_eq!(SubscriptionOptions::from_bits(bits).bits(), bits);
            }
        }
    }
}

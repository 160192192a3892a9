//! What a session is made of, and how it is written.

use std::borrow::Cow;

use minicbor::{Decode, Encode};
use model::filter::{self, check_name};
use model::{Name, Publication, Qos, name};

use crate::flow::{Flow, FlowRecord, Source};
use crate::record::PublicationRecord;

/// A session whose connection ends is kept for so many seconds without an end.
pub const WITHOUT_END: u32 = u32::MAX;

/// A client's subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The filter, without what makes it a shared one.
    pub filter: Name,
    /// The group with which it is shared.
    pub group: Option<Name>,
    /// How the client wants the messages.
    pub options: SubscriptionOptions,
    /// The identifier that the client gave it, 1 to 268,435,455; 0 is none.
    pub id: u32,
    /// Messages of the history up to this offset were published before it.
    pub since: u64,
}

impl Subscription {
    /// The filter whose messages the client gets.
    pub fn reach(&self) -> Cow<'_, str> {
        match self.filter.strip_suffix('#') {
            Some(above) if self.options.below_only => format!("{above}+/#").into(),
            _ => Cow::Borrowed(&self.filter),
        }
    }

    /// Whether it names one topic.
    pub fn is_exact(&self) -> bool {
        check_name(&self.filter).is_ok()
    }

    /// The name under which it stands in the hub: that of its topic, or of its filter.
    pub fn hub_name(&self) -> Name {
        match self.group.is_none() && self.is_exact() {
            true => self.filter.clone(),
            false => name::filter(self.group.as_deref(), &self.reach()),
        }
    }

    /// Whether it gets a topic's messages with all others of its kind: no group shares it.
    pub fn matches(&self, topic: &str) -> bool {
        self.group.is_none() && filter::matches(&self.reach(), topic)
    }

    /// Whether it gets a message that stands in the history of a topic at this offset.
    pub fn matches_at(&self, topic: &str, offset: u64) -> bool {
        offset > self.since && self.matches(topic)
    }
}

/// How a client wants the messages of a subscription (MQTT 5.0, section 3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// At the most so surely.
    pub qos: Qos,
    /// Not those that this client has published.
    pub no_local: bool,
    /// Messages say whether they were published to be retained.
    pub retain_as_published: bool,
    /// The filter ends with `/#`, and the client may have what is below, but not the topic above itself.
    pub below_only: bool,
}

impl SubscriptionOptions {
    /// As a byte.
    pub fn bits(self) -> u8 {
        self.qos.number()
            | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | u8::from(self.below_only) << 4
    }

    /// From [`SubscriptionOptions::bits`].
    pub fn from_bits(bits: u8) -> Self {
        SubscriptionOptions {
            qos: Qos::from_number(bits & 3).unwrap_or_default(),
            no_local: bits & 4 != 0,
            retain_as_published: bits & 8 != 0,
            below_only: bits & 16 != 0,
        }
    }
}

/// What is published when a client's connection ends without its word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// What is published.
    pub publication: Publication,
    /// How long that waits for the client to come back, in seconds; not longer than its session.
    pub delay_s: u32,
}

/// A client's session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// For how many seconds it outlives its connection; [`WITHOUT_END`].
    pub seconds: u32,
    /// In the order in which they were made.
    pub subscriptions: Vec<Subscription>,
    /// What is under way.
    pub flow: Flow,
    /// Of what its subscriptions match, everything up to this offset of the log of topics with history
    /// has had its turn, but for what is in `refs`.
    pub position: u64,
    /// Messages that are still to be sent, in order.
    pub refs: Vec<Source>,
    /// Retained messages that are still to be sent, because of new subscriptions.
    pub replays: Vec<Replay>,
}

/// The retained messages that a subscription matches, from one on.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Replay {
    /// The filter whose messages the client gets.
    #[cbor(n(0), with = "crate::record::name")]
    pub reach: Name,
    /// How it wants them: [`SubscriptionOptions::bits`].
    #[n(1)]
    pub options: u8,
    /// The identifier of the subscription; 0 is none.
    #[n(2)]
    pub id: u32,
    /// It has those of all topics up to this one.
    #[n(3)]
    pub after: Option<String>,
}

impl Session {
    /// Whether it has anything that a later connection could take up.
    pub fn outlives(&self) -> bool {
        self.seconds > 0
    }

    /// The filters whose messages are retained for it: those that are confirmed. What a group shares
    /// comes another way.
    pub fn interests(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let confirmed = |it: &&Subscription| it.options.qos.is_confirmed();
        self.subscriptions.iter().filter(confirmed).map(|it| it.reach())
    }
}

/// The part of a session that changes seldom, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct SessionRecord {
    #[n(0)]
    seconds: u32,
    #[n(1)]
    subscriptions: Vec<SubscriptionRecord>,
    /// What is published if nobody comes back.
    #[n(2)]
    will: Option<WillRecord>,
    /// When its connection ended, in seconds since 1970; nothing while there is one.
    #[n(3)]
    away_since_s: Option<u64>,
}

/// The part that changes with each message.
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
}

impl From<&Subscription> for SubscriptionRecord {
    fn from(subscription: &Subscription) -> Self {
        let Subscription { filter, group, options, id, since } = subscription;
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
        Subscription { filter, group, options, id, since }
    }
}

impl SessionRecord {
    /// What is stored of a session, its will, and when its connection ended.
    pub fn new(session: &Session, will: Option<&Will>, away_since_s: Option<u64>) -> Self {
        let Session { seconds, subscriptions, flow: _, position: _, refs: _, replays: _ } = session;
        SessionRecord {
            seconds: *seconds,
            subscriptions: subscriptions.iter().map(Into::into).collect(),
            will: will.map(|Will { publication, delay_s }| WillRecord {
                publication: publication.into(),
                delay_s: *delay_s,
            }),
            away_since_s,
        }
    }

    /// The session, but for its progress, its will, and when its connection ended.
    pub fn import(self) -> (Session, Option<Will>, Option<u64>) {
        let SessionRecord { seconds, subscriptions, will, away_since_s } = self;
        let subscriptions = subscriptions.into_iter().map(Into::into).collect();
        let will = will.map(|WillRecord { publication, delay_s }| Will {
            publication: publication.into(),
            delay_s,
        });
        (Session { seconds, subscriptions, ..Session::default() }, will, away_since_s)
    }
}

impl ProgressRecord {
    /// How far a session is.
    pub fn new(session: &Session) -> Self {
        let Session { seconds: _, subscriptions: _, flow, position, refs, replays } = session;
        let (refs, replays) = (refs.clone(), replays.clone());
        ProgressRecord { flow: flow.export(), position: *position, refs, replays }
    }

    /// Puts it into a session.
    pub fn import(self, session: &mut Session) {
        let ProgressRecord { flow, position, refs, replays } = self;
        (session.flow, session.position) = (flow.import(), position);
        (session.refs, session.replays) = (refs, replays);
    }
}

#[cfg(test)]
mod tests {
    use model::Data;

    use super::*;

    #[test]
    fn a_session_is_read_as_it_was_written() {
        let subscription = |filter: &str, group: Option<&str>, bits, id| Subscription {
            filter: filter.into(),
            group: group.map(Name::from),
            options: SubscriptionOptions::from_bits(bits),
            id,
            since: 12,
        };
        let mut session = Session {
            seconds: 60,
            subscriptions: vec![
                subscription("a/+", None, 0, 0),
                subscription("b", Some("g"), 0b1110, 7),
            ],
            position: 41,
            refs: vec![Source { topic: "b".into(), offset: 42, retained: true }],
            replays: vec![Replay {
                reach: "c/#".into(),
                options: 1,
                id: 0,
                after: Some("c/d".into()),
            }],
            ..Session::default()
        };
        session.flow.send(Qos::ExactlyOnce, Some(session.refs[0].clone()), 9);
        assert_eq!(session.interests().collect::<Vec<_>>(), ["b"]);
        let publication =
            Publication { retain: true, ..Publication::new("gone", Data::Text("x".into())) };
        let will = Will { publication, delay_s: 5 };
        let record = SessionRecord::new(&session, Some(&will), Some(1_000));
        let record: SessionRecord = minicbor::decode(&minicbor::to_vec(record).unwrap()).unwrap();
        let progress = ProgressRecord::new(&session);
        let progress: ProgressRecord =
            minicbor::decode(&minicbor::to_vec(progress).unwrap()).unwrap();
        let (mut read, read_will, away_since_s) = record.import();
        progress.import(&mut read);
        assert_eq!((read, read_will, away_since_s), (session, Some(will), Some(1_000)));
        for bits in 0..31 {
            if bits & 3 != 3 {
                assert_eq!(SubscriptionOptions::from_bits(bits).bits(), bits);
            }
        }
    }
}

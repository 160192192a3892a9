//! Records of MQTT clients on their way to another engine.

use std::sync::Arc;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use model::{Envelope, FilterKey, Message, Name, Qos, Retention};
use protocol::mqtt::{ClientLimits, ReasonCode, RetainHandling, Subscribe, Want};
use sessions::record::PublicationRecord;
use sessions::{ProgressRecord, Session, SessionRecord, SubscriptionOptions};

use super::state::{
    Behind, Clients, Details, OutgoingMessage, PendingSubscribe, Row, Target, Work,
};
use crate::handover::message_key::MessageKey;
use crate::handover::value::Text;

/// An MQTT client.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct MqttRecord {
    /// The key of its session.
    #[n(0)]
    key: String,
    #[n(1)]
    keep_alive_s: u16,
    /// The options and the target of the only subscription; `None` with details.
    #[n(2)]
    only: Option<(u8, Target)>,
    #[n(3)]
    details: Option<DetailsRecord>,
    /// The number of its connect in a cluster; 0 without.
    #[cbor(n(4), default)]
    connect_number: u64,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct DetailsRecord {
    #[n(0)]
    session: SessionRecord,
    #[n(1)]
    progress: ProgressRecord,
    /// The limits of messages in flight, packet bytes and aliases, and whether the client gets reasons of rejections.
    #[n(2)]
    limits: (u16, u32, u16, bool),
    #[n(3)]
    method: Option<String>,
    #[n(4)]
    aliases: Vec<(u16, Text<Name>)>,
    #[n(5)]
    outgoing_aliases: Vec<(Text<Name>, u16)>,
    #[n(6)]
    waiting: Vec<OutgoingRecord>,
    #[n(7)]
    again: Vec<u16>,
    /// Where the session fell behind, the offset from which it reads, and the last one that it skipped.
    #[n(8)]
    behind: Option<(u64, u64, u64)>,
    #[n(9)]
    through: u64,
    #[n(10)]
    publishing: u16,
    #[n(11)]
    pending_subscribes: Vec<PendingSubscribeRecord>,
    #[n(12)]
    deferred: ByteVec,
    #[n(13)]
    pinned: bool,
    /// A query to the history was pending: the new engine repeats it.
    #[n(14)]
    reads: bool,
    /// Packet identifiers of messages that a back end has to take.
    #[n(15)]
    forwarding: Option<Vec<u16>>,
    /// Messages for which groups chose the client, by packet identifier.
    #[n(16)]
    shared: Option<Vec<(u16, OutgoingRecord)>>,
    /// Packet identifiers of messages that are on their way to the disk.
    #[n(17)]
    writing: Option<Vec<u16>>,
    /// Messages that an ended subscription has delivered, and that other lists still have for the client.
    #[n(18)]
    already_delivered: Option<Vec<MessageKey>>,
    /// Packet identifiers of the messages in `deferred`.
    #[n(19)]
    unsent: Option<Vec<u16>>,
}

/// A message that waits for its turn.
#[derive(Encode, Decode)]
#[cbor(map)]
struct OutgoingRecord {
    #[n(0)]
    publication: PublicationRecord,
    #[n(1)]
    id: Text<model::Position>,
    #[n(2)]
    published_us: u64,
    #[n(3)]
    at_ms: u64,
    /// The history has it.
    #[n(4)]
    in_history: bool,
    #[n(5)]
    qos: u8,
    #[n(6)]
    retained: bool,
    #[n(7)]
    ids: Vec<u32>,
    /// The name of the group that chose the client for it.
    #[n(8)]
    group: Option<Text<Name>>,
    #[n(9)]
    retain: bool,
}

/// A SUBSCRIBE that waits for the application.
#[derive(Encode, Decode)]
#[cbor(map)]
struct PendingSubscribeRecord {
    #[n(0)]
    number: u32,
    #[n(1)]
    id: u16,
    #[n(2)]
    subscription: u32,
    #[n(3)]
    wants: Vec<WantRecord>,
    /// For each filter the granted QoS or the reason code; `None` while it is not known.
    #[n(4)]
    results: Vec<Option<u8>>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct WantRecord {
    #[n(0)]
    filter: Text<Name>,
    #[n(1)]
    group: Option<Text<Name>>,
    #[n(2)]
    options: u8,
    #[n(3)]
    retain_handling: u8,
}

impl MqttRecord {
    /// Returns the key of the session.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Takes the messages that ended subscriptions have delivered: the importer looks them up later.
    pub fn take_already_delivered(&mut self) -> Vec<MessageKey> {
        let already_delivered =
            self.details.as_mut().and_then(|details| details.already_delivered.take());
        already_delivered.unwrap_or_default()
    }
}

impl Clients {
    /// Exports a client; `None` if the slot has none.
    pub fn export(&self, slot: u32) -> Option<MqttRecord> {
        let row = self.row(slot)?;
        let Row { key, keep_alive_s, .. } = row;
        let details = self.details(slot).map(Details::export);
        let only = row.only_bits().filter(|_| details.is_none());
        let (key, keep_alive_s) = (key.to_string(), *keep_alive_s);
        let connect_number = self.connect_number(slot);
        Some(MqttRecord { key, keep_alive_s, only, details, connect_number })
    }

    /// Imports a client.
    pub fn import(&mut self, slot: u32, record: MqttRecord, hash: impl Fn(&str) -> u64) {
        let MqttRecord { key, keep_alive_s, only, details, connect_number } = record;
        let mut row = Row::new(key.into(), keep_alive_s);
        row.set_only_bits(only);
        self.insert(slot, row, details.map(|details| details.import(hash)));
        if connect_number > 0 {
            self.set_connect_number(slot, connect_number);
            // The previous process may not have ended connections that other nodes had taken over.
            self.repeat.begin();
        }
        self.changed(slot);
    }

    /// Continues the work of a client, once all clients are imported.
    pub fn restart(&mut self, slot: u32) {
        if self.details(slot).is_some_and(Details::has_work) {
            self.wake(slot);
        }
    }
}

impl Details {
    /// Checks whether the client has work to continue.
    fn has_work(&self) -> bool {
        let Session { refs, replays, backlogs, .. } = &self.session;
        let is_idle = refs.is_empty()
            && replays.is_empty()
            && backlogs.is_empty()
            && self.work.is_idle()
            && self.waiting.is_empty()
            && self.deferred.is_empty();
        !is_idle
    }

    fn export(&self) -> DetailsRecord {
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
            // The new engine stores them again.
            unsent_saving: _,
            is_saving: _,
            is_unsaved: _,
            has_unsaved_subscriptions: _,
            is_pinned,
        } = self;
        let ClientLimits { receive_max, packet_bytes_max, topic_alias_max, problem_information } =
            *limits;
        let Work { again, behind, through, reading } = work;
        let mut aliases: Vec<_> =
            aliases.iter().map(|(it, name)| (*it, Text(name.clone()))).collect();
        aliases.sort_unstable_by_key(|(alias, _)| *alias);
        let mut outgoing_aliases: Vec<_> =
            outgoing_aliases.iter().map(|(name, it)| (Text(name.clone()), *it)).collect();
        outgoing_aliases.sort_unstable_by_key(|(_, alias)| *alias);
        DetailsRecord {
            session: SessionRecord::new(session, will.as_ref(), None),
            progress: ProgressRecord::new(session),
            limits: (receive_max, packet_bytes_max, topic_alias_max, problem_information),
            method: method.as_deref().map(String::from),
            aliases,
            outgoing_aliases,
            waiting: waiting.iter().map(OutgoingRecord::new).collect(),
            again: again.iter().copied().collect(),
            behind: behind.as_ref().map(|it| (it.from, it.after, it.deferred_offset)),
            through: *through,
            publishing: *publishing,
            pending_subscribes: pending_subscribes
                .iter()
                .map(PendingSubscribeRecord::new)
                .collect(),
            deferred: deferred.clone().into(),
            pinned: *is_pinned,
            reads: reading.is_some(),
            forwarding: Some(forwarding.clone()).filter(|ids| !ids.is_empty()),
            writing: Some(writing.clone()).filter(|ids| !ids.is_empty()),
            unsent: Some(unsent.clone()).filter(|ids| !ids.is_empty()),
            already_delivered: (!already_delivered.is_empty())
                .then(|| already_delivered.iter().map(|message| MessageKey::of(message)).collect()),
            shared: Some(shared).filter(|all| !all.is_empty()).map(|all| {
                all.iter().map(|(id, waiting)| (*id, OutgoingRecord::new(waiting))).collect()
            }),
        }
    }
}

impl DetailsRecord {
    fn import(self, hash: impl Fn(&str) -> u64) -> Details {
        let (mut session, will, _): (Session, _, _) = self.session.import();
        // Both records come from one export.
        let _ = self.progress.import(&mut session);
        let (receive_max, packet_bytes_max, topic_alias_max, problem_information) = self.limits;
        let behind =
            |(from, after, deferred_offset)| Behind { after, deferred_offset, ..Behind::new(from) };
        let shared = self.shared.unwrap_or_default().into_iter();
        let shared = shared.map(|(id, waiting)| (id, waiting.import(&hash))).collect();
        Details {
            session,
            will,
            limits: ClientLimits {
                receive_max,
                packet_bytes_max,
                topic_alias_max,
                problem_information,
            },
            method: self.method.map(Into::into),
            aliases: self.aliases.into_iter().map(|(alias, topic)| (alias, topic.0)).collect(),
            outgoing_aliases: self
                .outgoing_aliases
                .into_iter()
                .map(|(topic, alias)| (topic.0, alias))
                .collect(),
            waiting: self.waiting.into_iter().map(|waiting| waiting.import(&hash)).collect(),
            shared,
            work: Work {
                again: self.again.into(),
                behind: self.behind.map(behind),
                through: self.through,
                reading: None,
            },
            publishing: self.publishing,
            forwarding: self.forwarding.unwrap_or_default(),
            writing: self.writing.unwrap_or_default(),
            pending_subscribes: self
                .pending_subscribes
                .into_iter()
                .map(PendingSubscribeRecord::import)
                .collect(),
            deferred: self.deferred.into(),
            unsent: self.unsent.unwrap_or_default(),
            unsent_saving: 0,
            is_saving: false,
            is_unsaved: false,
            has_unsaved_subscriptions: true,
            is_pinned: self.pinned,
            // The importer looks them up once it has the lists' pending messages.
            already_delivered: Vec::new(),
        }
    }
}

impl OutgoingRecord {
    fn new(waiting: &OutgoingMessage) -> Self {
        let OutgoingMessage { message, qos, retained, retain, ids, group } = waiting;
        let Message { id, topic_hash: _, published_us, at_ms, retention: _, publication } =
            &message.message;
        OutgoingRecord {
            publication: publication.into(),
            id: Text(*id),
            published_us: *published_us,
            at_ms: *at_ms,
            in_history: message.message.is_retained(),
            qos: qos.number(),
            retained: *retained,
            retain: *retain,
            ids: ids.to_vec(),
            group: group.as_ref().map(|key| Text(key.name.clone())),
        }
    }

    fn import(self, hash: impl Fn(&str) -> u64) -> OutgoingMessage {
        let OutgoingRecord { publication, id, published_us, at_ms, in_history, .. } = self;
        let publication = model::Publication::from(publication);
        let topic_hash = hash(&publication.topic);
        let message = Message::new(publication, id.0, topic_hash, published_us);
        let message = match in_history {
            true => message.retained(Retention::History, at_ms),
            false => message,
        };
        let message = Arc::new(Envelope::from(message));
        let group = self.group.map(|name| {
            let (hash, name) = (hash(&name.0), name.0);
            Arc::new(FilterKey { hash, name })
        });
        let qos = Qos::from_number(self.qos).unwrap_or_default();
        let (retained, retain) = (self.retained, self.retain);
        OutgoingMessage { message, qos, retained, retain, ids: self.ids.into(), group }
    }
}

impl PendingSubscribeRecord {
    fn new(pending: &PendingSubscribe) -> Self {
        let PendingSubscribe { number, subscribe, results } = pending;
        let Subscribe { id, subscription, wants } = subscribe;
        let result = |result: &Result<Qos, ReasonCode>| match result {
            Ok(qos) => qos.number(),
            Err(reason) => reason.number(),
        };
        PendingSubscribeRecord {
            number: *number,
            id: *id,
            subscription: *subscription,
            wants: wants.iter().map(WantRecord::new).collect(),
            results: results.iter().map(|it| it.as_ref().map(result)).collect(),
        }
    }

    fn import(self) -> PendingSubscribe {
        let PendingSubscribeRecord { number, id, subscription, wants, results } = self;
        let wants = wants.into_iter().map(WantRecord::import).collect();
        let result = |code: u8| match Qos::from_number(code) {
            Some(qos) => Ok(qos),
            None => Err(ReasonCode::from_number(code).unwrap_or(ReasonCode::UnspecifiedError)),
        };
        let results = results.into_iter().map(|code| code.map(result)).collect();
        PendingSubscribe { number, subscribe: Subscribe { id, subscription, wants }, results }
    }
}

impl WantRecord {
    fn new(want: &Want) -> Self {
        let Want { filter, group, qos, no_local, retain_as_published, retain_handling } = want;
        let options = SubscriptionOptions {
            qos: *qos,
            no_local: *no_local,
            retain_as_published: *retain_as_published,
            below_only: false,
        };
        WantRecord {
            filter: Text(filter.clone()),
            group: group.clone().map(Text),
            options: options.bits(),
            retain_handling: match retain_handling {
                RetainHandling::Always => 0,
                RetainHandling::New => 1,
                RetainHandling::Never => 2,
            },
        }
    }

    fn import(self) -> Want {
        let options = SubscriptionOptions::from_bits(self.options);
        let SubscriptionOptions { qos, no_local, retain_as_published, below_only: _ } = options;
        Want {
            filter: self.filter.0,
            group: self.group.map(|group| group.0),
            qos,
            no_local,
            retain_as_published,
            retain_handling: match self.retain_handling {
                0 => RetainHandling::Always,
                1 => RetainHandling::New,
                _ => RetainHandling::Never,
            },
        }
    }
}

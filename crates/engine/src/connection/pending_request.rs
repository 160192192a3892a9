//! Requests that wait for a decision of the application, and their export to another engine.

use std::sync::Arc;

use minicbor::{Decode, Encode};
use model::{Name, ReplyCode};
use protocol::http::Rejection;
use protocol::request::{Admission, ConnectDecision, Decisions, TopicDecision};

use crate::handover::value::{Granted, Text};

/// A request that waits for decisions of the application. Its bytes are read again when all decisions have come.
pub(crate) struct PendingRequest {
    /// The number of the request to the application.
    pub number: u32,
    /// The application has not named the users of the request yet.
    pub connect: bool,
    /// The topics for which a decision is missing.
    pub waiting: Vec<Name>,
    /// The decisions so far.
    pub decisions: Decisions,
    /// The connection is open already.
    pub open: bool,
}

impl PendingRequest {
    /// Returns whether a decision is missing.
    pub fn waits(&self) -> bool {
        self.connect || !self.waiting.is_empty()
    }

    /// Stores the decision about a topic. After a rejection no other is needed.
    pub fn topic(&mut self, decision: TopicDecision) {
        self.waiting.retain(|topic| *topic != decision.topic);
        if decision.result.is_err() {
            self.waiting.clear();
        }
        self.decisions.topics.push(decision);
    }

    /// Stores the decision about the users of the request.
    pub fn connected(&mut self, decision: ConnectDecision) {
        self.connect = false;
        self.decisions.connect = Some(decision);
    }
}

/// A subscription by a command with an id, which waits for a decision of the application.
pub(crate) struct Subscribing {
    /// The number of the request to the application.
    pub number: u32,
    pub topic: Name,
    /// The id of the command.
    pub id: Box<str>,
}

/// The export of a pending request to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct PendingRequestRecord {
    #[n(0)]
    number: u32,
    #[n(1)]
    waiting: Vec<Text<Name>>,
    #[n(2)]
    decisions: Vec<TopicDecisionRecord>,
    /// Whether its users are not known yet.
    #[n(3)]
    connect: Option<bool>,
    #[n(4)]
    connected: Option<ConnectRecord>,
    /// Whether the connection is open already.
    #[n(5)]
    open: Option<bool>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct ConnectRecord {
    #[n(0)]
    at_s: u64,
    #[n(1)]
    admission: Option<AdmissionRecord>,
    /// Status, code and message.
    #[n(2)]
    refusal: Option<(u16, String, String)>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct AdmissionRecord {
    #[n(0)]
    users: Option<Vec<Text<Name>>>,
    #[n(1)]
    grants: Option<Granted>,
    #[n(2)]
    topics: Vec<Text<Name>>,
    #[n(3)]
    info: Option<String>,
    #[n(4)]
    seconds: Option<u32>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct TopicDecisionRecord {
    #[n(0)]
    topic: Text<Name>,
    #[n(1)]
    meta: Option<String>,
    /// Status, code and message.
    #[n(2)]
    refusal: Option<(u16, String, String)>,
}

/// The export of a subscription to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct SubscribingRecord {
    #[n(0)]
    number: u32,
    #[n(1)]
    topic: Text<Name>,
    #[n(2)]
    id: String,
}

impl PendingRequest {
    /// Exports the request.
    pub fn export(&self) -> PendingRequestRecord {
        let PendingRequest { number, connect, waiting, decisions, open } = self;
        let Decisions { connect: connected, topics } = decisions;
        let decision = |TopicDecision { topic, result }: &TopicDecision| TopicDecisionRecord {
            topic: Text(topic.clone()),
            meta: result.as_ref().ok().and_then(|meta| Some(meta.as_ref()?.to_string())),
            refusal: result.as_ref().err().map(refusal),
        };
        PendingRequestRecord {
            number: *number,
            waiting: Text::all(waiting),
            decisions: topics.iter().map(decision).collect(),
            connect: connect.then_some(true),
            connected: connected.as_ref().map(ConnectRecord::from),
            open: open.then_some(true),
        }
    }
}

impl PendingRequestRecord {
    /// Imports the request.
    pub fn import(self) -> PendingRequest {
        let PendingRequestRecord { number, waiting, decisions, connect, connected, open } = self;
        let decision = |TopicDecisionRecord { topic: Text(topic), meta, refusal }| TopicDecision {
            topic,
            result: match refusal {
                None => Ok(meta.map(Into::into)),
                Some(refusal) => Err(rejection(refusal)),
            },
        };
        let topics = decisions.into_iter().map(decision).collect();
        PendingRequest {
            number,
            connect: connect == Some(true),
            waiting: Text::values(waiting),
            decisions: Decisions { connect: connected.map(ConnectDecision::from), topics },
            open: open == Some(true),
        }
    }
}

fn refusal(Rejection { status, code, message }: &Rejection) -> (u16, String, String) {
    (*status, code.to_string(), message.to_string())
}

fn rejection((status, code, message): (u16, String, String)) -> Rejection {
    Rejection { status, code: ReplyCode::parse(&code), message: message.into() }
}

impl From<&ConnectDecision> for ConnectRecord {
    fn from(ConnectDecision { result, at_s }: &ConnectDecision) -> Self {
        let admission = result.as_ref().ok().and_then(|it| it.as_deref());
        let admission =
            admission.map(|Admission { users, grants, topics, info, seconds }| AdmissionRecord {
                users: users.as_ref().map(Text::all),
                grants: grants.as_deref().map(Granted::from),
                topics: Text::all(topics),
                info: info.as_deref().map(String::from),
                seconds: *seconds,
            });
        let refusal = result.as_ref().err().map(refusal);
        ConnectRecord { at_s: *at_s, admission, refusal }
    }
}

impl From<ConnectRecord> for ConnectDecision {
    fn from(ConnectRecord { at_s, admission, refusal }: ConnectRecord) -> Self {
        let admission =
            admission.map(|AdmissionRecord { users, grants, topics, info, seconds }| {
                Box::new(Admission {
                    users: users.map(Text::values),
                    grants: grants.map(|grants| Arc::new(grants.into())),
                    topics: Text::values(topics),
                    info: info.map(Arc::from),
                    seconds,
                })
            });
        let result = refusal.map_or(Ok(admission), |refusal| Err(rejection(refusal)));
        ConnectDecision { result, at_s }
    }
}

impl Subscribing {
    /// Exports the subscription.
    pub fn export(&self) -> SubscribingRecord {
        let Subscribing { number, topic, id } = self;
        SubscribingRecord { number: *number, topic: Text(topic.clone()), id: id.to_string() }
    }
}

impl SubscribingRecord {
    /// Imports the subscription.
    pub fn import(self) -> Subscribing {
        let SubscribingRecord { number, topic: Text(topic), id } = self;
        Subscribing { number, topic, id: id.into() }
    }
}

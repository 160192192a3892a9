//! What a shard asks the application through whoever carries it there.

pub(crate) mod events;
pub(crate) mod forward;
pub(crate) mod forward_rule;
pub(crate) mod notify;
pub(crate) mod pending;
pub(crate) mod pending_hook;
pub(crate) mod record;
pub(crate) mod request;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{ConnectionId, Data, ErrorCode, Name, ReplyCode};
use protocol::request::{Admission, ConnectRequest};

use crate::core::reply::Reply;
use crate::core::settings::Settings;
use crate::webhook::events::HookEvent;
use crate::webhook::forward_rule::ForwardRequest;
use crate::webhook::pending_hook::PendingHook;
use protocol::ReplyError;

/// Carries requests to the application. Called on a shard's thread: must not block.
pub trait Webhook: Send + Sync {
    /// Takes requests, which stay together and in their order, and whose `reply` is then called once
    /// each, from any thread; or refuses all of them while too many wait, and then no reply is called.
    fn send(&self, requests: Vec<WebhookRequest>) -> Result<(), QueueFull>;

    /// Takes a message for the back end of a rule, whose `reply` is then called once, from any thread; or
    /// refuses it while too much waits, and then it is not called.
    fn forward(&self, _request: ForwardRequest) -> Result<(), QueueFull> {
        Err(QueueFull)
    }

    /// Takes what has happened on a shard, in its order.
    fn notify(&self, _shard: u16, _events: Vec<HookEvent>) {}
}

/// The queue of requests has no capacity for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// What the application is asked.
pub struct WebhookRequest {
    /// Where to ask, if the topic's rule says it; else at the place for all.
    pub url: Option<Arc<str>>,
    /// The kind of request.
    pub details: RequestDetails,
    /// The connection. Requests of one connection are answered in their order.
    pub connection: ConnectionId,
    /// What waits for the answer.
    pub hook: HookPlace,
    /// Told the answer.
    pub reply: Reply<WebhookResponse>,
}

/// What waits for an answer, until somebody takes it: the answer, or who has to do without one. Who writes
/// the question down for another process looks at it.
#[derive(Clone, Default)]
pub struct HookPlace(Arc<Mutex<Option<PendingHook>>>);

impl HookPlace {
    /// Something waits.
    pub fn new(hook: PendingHook) -> Self {
        HookPlace(Arc::new(Mutex::new(Some(hook))))
    }

    /// What waits, which then does so no longer.
    pub fn take(&self) -> Option<PendingHook> {
        self.lock().take()
    }

    /// Reads what waits, without taking it; nothing where nothing does.
    pub fn peek<T>(&self, peek: impl FnOnce(&PendingHook) -> T) -> Option<T> {
        self.lock().as_ref().map(peek)
    }

    fn lock(&self) -> MutexGuard<'_, Option<PendingHook>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request to the application is about.
pub struct RequestDetails {
    /// The kind of request.
    pub kind: WebhookKind,
    /// The topic it is about, if it is about one.
    pub topic: Option<Name>,
    /// The name of a message's event, if it has one.
    pub event: Option<Name>,
    /// What the client sent with it; nothing where it could not.
    pub payload: Option<Data>,
    /// The tags of a message.
    pub tags: Vec<Name>,
    /// The key of a message.
    pub key: Option<Name>,
    /// The users of the connection; may be none.
    pub users: Vec<Name>,
    /// The name of the transport.
    pub transport: &'static str,
    /// The request of a client that has no token.
    pub connect: Option<Box<Connecting>>,
}

/// Somebody who comes without a token.
pub struct Connecting {
    /// Where from, as far as that is known.
    pub address: Option<IpAddr>,
    /// With what request.
    pub request: ConnectRequest,
    /// The answer may name so many users and topics together.
    pub topics_max: usize,
}

impl RequestDetails {
    /// A question about a connection, or about its place in a topic.
    pub fn new(
        kind: WebhookKind,
        topic: Option<Name>,
        users: Vec<Name>,
        transport: &'static str,
    ) -> Self {
        let (event, payload, key, connect) = (None, None, None, None);
        RequestDetails {
            kind,
            topic,
            event,
            payload,
            tags: Vec::new(),
            key,
            users,
            transport,
            connect,
        }
    }
}

impl fmt::Debug for WebhookRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookRequest")
            .field("kind", &self.details.kind)
            .field("topic", &self.details.topic)
            .field("event", &self.details.event)
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookKind {
    /// Whether the client may enter the topic.
    Subscribe,
    /// What to answer to a message.
    Message,
    /// Whether a message is published.
    Publish,
    /// Who somebody is that has no token, and whether they may come.
    Connect,
    /// Whether a connection that it let in may stay.
    Refresh,
}

impl WebhookKind {
    /// Its name for applications.
    pub fn name(self) -> &'static str {
        match self {
            WebhookKind::Subscribe => "subscribe",
            WebhookKind::Message => "message",
            WebhookKind::Publish => "publish",
            WebhookKind::Connect => "connect",
            WebhookKind::Refresh => "refresh",
        }
    }
}

/// What a client is told that enters a topic, and the meta that the application gives it.
pub(crate) type Entered = (Box<str>, Option<Box<str>>);

/// The application's answer, or why it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookResponse {
    /// Yes.
    Ok {
        /// What the client is told: the text of a JSON value.
        response: Box<str>,
        /// What is to be done otherwise than the client asked.
        changes: Box<Changes>,
    },
    /// No.
    Error(Box<Refusal>),
    /// The application has not answered, for this reason.
    Silent(&'static str),
}

/// What the application changes about what it allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Of a subscription: what the client shows in the topic's presence, the text of a JSON object.
    pub meta: Option<Box<str>>,
    /// Of a message: what is published in place of its payload.
    pub payload: Option<Data>,
    /// Of a message: its tags.
    pub tags: Option<Vec<Name>>,
    /// Of a message: its key.
    pub key: Option<Name>,
    /// Of a connection: who it is and what it may do, for how long.
    pub admission: Option<Box<Admission>>,
}

/// Why something is not done that the application would have to allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status where it is answered by HTTP.
    pub status: u16,
    /// Its code for programs.
    pub code: ReplyCode,
    /// For people.
    pub message: Box<str>,
    /// What a Phoenix client is told: the text of a JSON value.
    pub response: Box<str>,
}

impl Refusal {
    /// The application did not say it: something is in the way.
    pub fn silent(code: ErrorCode, reason: &str) -> Self {
        let mut response = b"{\"reason\":".to_vec();
        protocol::json::string(reason, &mut response);
        response.push(b'}');
        Refusal {
            status: code.status(),
            code: code.into(),
            message: reason.into(),
            response: String::from_utf8_lossy(&response).into(),
        }
    }

    /// What a client gets that has an id for its request.
    pub(crate) fn error(&self) -> ReplyError<'_> {
        ReplyError { code: self.code.text(), message: &self.message }
    }
}

impl WebhookResponse {
    /// Yes, and nothing more.
    pub fn yes() -> Self {
        WebhookResponse::Ok { response: "{}".into(), changes: Box::default() }
    }

    /// What it means where yes and no are the question.
    ///
    /// # Errors
    /// Why it may not be done.
    pub(crate) fn decided(
        self,
        silence_allows: bool,
    ) -> Result<(Box<str>, Box<Changes>), Box<Refusal>> {
        match self {
            WebhookResponse::Ok { response, changes } => Ok((response, changes)),
            WebhookResponse::Error(refusal) => Err(refusal),
            WebhookResponse::Silent(_) if silence_allows => Ok(("{}".into(), Box::default())),
            WebhookResponse::Silent(reason) => {
                Err(Refusal::silent(ErrorCode::NoApplicationReply, reason).into())
            }
        }
    }

    /// What it means where somebody wants to enter a topic: what the client is told, and the meta that it
    /// shows there if the application gives one.
    ///
    /// # Errors
    /// Why it may not be done.
    pub(crate) fn entered(self, settings: &Settings) -> Result<Entered, Box<Refusal>> {
        let (response, Changes { meta, .. }) = self
            .decided(settings.silence_allows)
            .map(|(response, changes)| (response, *changes))?;
        if meta.as_ref().is_some_and(|meta| meta.len() > settings.presence_meta_bytes_max) {
            let why = "the application's answer has a larger meta than may be";
            return Err(Refusal::silent(ErrorCode::NoApplicationReply, why).into());
        }
        Ok((response, meta))
    }
}

//! Requests to the application, which a [`Webhook`] sends.

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

/// Sends requests to the application. Called on a shard's thread, so it must not block.
pub trait Webhook: Send + Sync {
    /// Queues requests, which stay together and in order. Each `reply` is called once, from any thread. If the queue
    /// has no capacity, returns an error and calls no `reply`.
    fn send(&self, requests: Vec<WebhookRequest>) -> Result<(), QueueFull>;

    /// Queues a message for the back end of a rule. Its `reply` is called once, from any thread. If the queue has no
    /// capacity, returns an error and does not call `reply`.
    fn forward(&self, _request: ForwardRequest) -> Result<(), QueueFull> {
        Err(QueueFull)
    }

    /// Queues events of a shard, in order.
    fn notify(&self, _shard: u16, _events: Vec<HookEvent>) {}
}

/// The queue of requests has no capacity for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// A request to the application.
pub struct WebhookRequest {
    /// The URL of the topic's rule. Without one, the request goes to the URL for all topics.
    pub url: Option<Arc<str>>,
    /// The kind of request.
    pub details: RequestDetails,
    /// The connection. The responses to requests of one connection come in the order of the requests.
    pub connection: ConnectionId,
    /// What waits for the response.
    pub hook: SharedHook,
    /// Takes the response.
    pub reply: Reply<WebhookResponse>,
}

/// A pending hook, which the response takes, or the engine when the request can't be sent. An export for another
/// process reads it. Clones share the hook.
#[derive(Clone, Default)]
pub struct SharedHook(Arc<Mutex<Option<PendingHook>>>);

impl SharedHook {
    /// A hook that is pending.
    pub fn new(hook: PendingHook) -> Self {
        SharedHook(Arc::new(Mutex::new(Some(hook))))
    }

    /// Takes the hook, if it is still pending.
    pub fn take(&self) -> Option<PendingHook> {
        self.lock().take()
    }

    /// Reads the hook, if it is still pending.
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
    /// The payload that the client sent. `None` if the request can't have one.
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

/// A client that connects without a token.
pub struct Connecting {
    /// Its address, if it is known.
    pub address: Option<IpAddr>,
    /// Its request.
    pub request: ConnectRequest,
    /// The limit on the users and topics of the response together.
    pub topics_max: usize,
}

impl RequestDetails {
    /// A request about a connection, or about its membership in a topic.
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

/// The decision that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookKind {
    /// Whether the client may subscribe to the topic.
    Subscribe,
    /// The reply to a message.
    Message,
    /// Whether a message is published.
    Publish,
    /// Which user a client without a token is, and whether it may connect.
    Connect,
    /// Whether a connection that the application has allowed may stay.
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

/// The reply to a client that joins a topic, and the meta that the application gives it.
pub(crate) type Entered = (Box<str>, Option<Box<str>>);

/// The application's response, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookResponse {
    /// The application allows it.
    Ok {
        /// The reply to the client: the text of a JSON value.
        response: Box<str>,
        /// The differences from what the client requested.
        changes: Box<Changes>,
    },
    /// The application denies it.
    Error(Box<Refusal>),
    /// The application did not respond, for this reason.
    Silent(&'static str),
}

/// The application's changes to a request that it allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Of a subscription: the payload that the client shows in the topic's presence, the text of a JSON object.
    pub meta: Option<Box<str>>,
    /// Of a message: the payload to publish in place of the client's.
    pub payload: Option<Data>,
    /// Of a message: its tags.
    pub tags: Option<Vec<Name>>,
    /// Of a message: its key.
    pub key: Option<Name>,
    /// Of a connection: its users, its grants, and how long it may stay.
    pub admission: Option<Box<Admission>>,
}

/// Why a request that needs the application's consent is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of a reply by HTTP.
    pub status: u16,
    /// Its code for programs.
    pub code: ReplyCode,
    /// For people.
    pub message: Box<str>,
    /// The reply to a Phoenix client: the text of a JSON value.
    pub response: Box<str>,
}

impl Refusal {
    /// Creates a refusal that does not come from the application.
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

    /// Returns the error in a reply to a request with an id.
    pub(crate) fn error(&self) -> ReplyError<'_> {
        ReplyError { code: self.code.text(), message: &self.message }
    }
}

impl WebhookResponse {
    /// Creates a response that allows the request and changes nothing.
    pub fn yes() -> Self {
        WebhookResponse::Ok { response: "{}".into(), changes: Box::default() }
    }

    /// Returns the decision about a request.
    ///
    /// # Errors
    /// If the request is rejected.
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

    /// Returns the decision about a client that joins a topic: the reply, and the presence payload that the application
    /// gives the client.
    ///
    /// # Errors
    /// If the client may not join.
    pub(crate) fn entered(self, settings: &Settings) -> Result<Entered, Box<Refusal>> {
        let (response, Changes { meta, .. }) = self
            .decided(settings.silence_allows)
            .map(|(response, changes)| (response, *changes))?;
        if meta.as_ref().is_some_and(|meta| meta.len() > settings.presence_meta_bytes_max) {
            let why = "the meta in the application's response is too large";
            return Err(Refusal::silent(ErrorCode::NoApplicationReply, why).into());
        }
        Ok((response, meta))
    }
}

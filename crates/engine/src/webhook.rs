//! What a shard asks the application through whoever carries it there.

use std::fmt;
use std::sync::Arc;

use model::{ConnectionId, Data, Name};

use crate::reply::Reply;

/// Carries requests to the application. Called on a shard's thread: must not block.
pub trait Webhook: Send + Sync {
    /// Takes a request, whose `reply` is then called once, from any thread; or refuses it while
    /// too many wait, and then the reply is not called.
    fn send(&self, request: WebhookRequest) -> Result<(), Full>;
}

/// Too many requests wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// What the application is asked.
pub struct WebhookRequest {
    /// Where to ask, if the topic's rule says it; else at the place for all.
    pub url: Option<Arc<str>>,
    /// What is asked.
    pub kind: WebhookKind,
    /// The topic it is about.
    pub topic: Name,
    /// The event's name: `phx_join` for a join.
    pub event: Name,
    /// What the client sent with it.
    pub payload: Data,
    /// Who the connection belongs to; may be nobody.
    pub users: Vec<Name>,
    /// The connection. Requests of one connection are answered in their order.
    pub connection: ConnectionId,
    /// Told the answer.
    pub reply: Reply<WebhookResponse>,
}

impl fmt::Debug for WebhookRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookRequest")
            .field("kind", &self.kind)
            .field("topic", &self.topic)
            .field("event", &self.event)
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookKind {
    /// Whether the connection may join the topic.
    Join,
    /// What to answer to an event.
    Event,
}

/// The application's answer, or what is said in its place when it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookResponse {
    /// The reply's status: ok or error.
    pub ok: bool,
    /// The reply's response: the text of a JSON value.
    pub response: Box<str>,
}

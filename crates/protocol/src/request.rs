//! Requests of a connection's peer: the vocabulary that all protocols share.

use std::borrow::Cow;
use std::sync::Arc;

use auth::{Consent, Grants, Permit, Principal};
use model::name::{check_name, check_topic};
use model::{
    CloseReason, CodedError, ConnectionId, Encoding, ErrorCode, Name, Position, Publication,
    ResumeRequest, ResumeToken, Since, TopicKind,
};

use crate::http::Rejection;
use crate::mqtt;
use crate::phoenix::ClientMessage;
pub use crate::secret::Secret;

/// A request of a connection's peer. If the variant says so, the reply or its beginning is already in `out`;
/// otherwise the engine replies, by [`Protocol::reply`](crate::Protocol::reply) or with [`Respond`].
#[derive(Debug)]
pub enum Request {
    /// A request whose reply is in `out`. `keep_alive` decides whether the connection stays open.
    Replied {
        /// The connection stays open for the next request.
        keep_alive: bool,
    },
    /// The connection ends, with the rejection that is in `out`.
    Rejected,
    /// A request that is incomplete and valid so far: the server reads on.
    Continue {
        /// Bytes of the whole request.
        bytes: usize,
        /// Bytes to send before the rest comes, once for each request; empty if the client waits for none.
        interim: &'static [u8],
    },
    /// The connection switches to a lasting protocol and enters its topics, before the server sends `out`.
    Open(Open),
    /// A long poll; `out` is empty.
    Poll(Box<Poll>),
    /// Enter a topic.
    Subscribe(Box<str>, Subscribe, Consent),
    /// Leave a topic.
    Unsubscribe(Box<str>, Name),
    /// Publish.
    Publish {
        /// The publication. On an open connection the engine sets the first user as sender; an HTTP request has set
        /// it.
        publication: Publication,
        /// The decision of its topic's rule.
        consent: Consent,
        /// The form of the reply.
        to: ReplyTo,
    },
    /// A user acknowledges messages up to a position.
    Acknowledge {
        /// The acknowledged messages.
        acknowledgement: Acknowledgement,
        /// The form of the reply.
        to: ReplyTo,
        /// The principal, if it is not the connection's own.
        principal: Option<Principal>,
    },
    /// Add this user to the connection.
    Login(Box<str>, Name),
    /// Remove this user from the connection.
    Logout(Box<str>, Name),
    /// Get the presence of a topic.
    Presence {
        /// The topic.
        topic: Name,
        /// Only members may read it, because the application has admitted them; it gets no further request.
        members_only: bool,
        /// The form of the reply.
        to: ReplyTo,
    },
    /// Replace the client's meta in a topic's presence: the text of a JSON value, which must be an object.
    UpdatePresence(Box<str>, Name, Box<str>),
    /// Get a page of a topic's history, which the client may read.
    History {
        /// The page.
        page: PageRequest,
        /// As in `Presence`.
        members_only: bool,
        /// The form of the reply.
        to: ReplyTo,
    },
    /// Get the figures of `/status`.
    Status {
        /// The form of the reply.
        respond: Respond,
    },
    /// A message of a Phoenix client.
    Phoenix(ClientMessage),
    /// A request of a Phoenix long poll.
    Longpoll(Longpoll),
    /// A request of an MQTT client.
    Mqtt(Box<mqtt::Incoming>),
    /// Authenticate with a token, or refresh it.
    Authenticate(Authenticate),
    /// A pending request: the engine passes the same bytes again after this. `out` is empty.
    Pending(Pending),
    /// Close the connection after `out` is sent.
    Close(CloseReason),
}

/// A token on an open connection.
#[derive(Clone, Debug)]
pub struct Authenticate {
    /// The unverified token.
    pub token: Secret,
    /// Its purpose.
    pub purpose: TokenPurpose,
    /// The client's own id, for the reply.
    pub id: Box<str>,
}

/// The purpose of a token on an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenPurpose {
    /// It authenticates a connection that has not done so yet.
    Connect,
    /// It replaces one that expires.
    Refresh,
}

/// The reason why a request is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The server fetches the keys of its token's issuer.
    Keys,
    /// The application must decide who makes the request, and whether it may; [`Decisions::connect`] then has the
    /// decision.
    Connect(Box<ConnectRequest>),
    /// The application must decide whether these users may enter these topics; [`Decisions::topics`] then has the
    /// decisions.
    Subscribe {
        /// The topics, without those already decided.
        topics: Vec<Name>,
        /// The users of the request.
        users: Vec<Name>,
        /// The name of the transport that the request is for.
        transport: &'static str,
    },
}

/// The reason why a request isn't carried out now.
#[derive(Debug)]
pub enum Interrupt {
    /// The request is rejected.
    Rejection(Rejection),
    /// The request is pending, and is read again after this.
    Pending(Pending),
}

impl From<Rejection> for Interrupt {
    fn from(rejection: Rejection) -> Self {
        Interrupt::Rejection(rejection)
    }
}

/// A request without a token, as the application gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The name of its transport.
    pub transport: &'static str,
    /// The users in the request, without proof.
    pub users: Vec<Name>,
    /// The path.
    pub path: Box<str>,
    /// The query's parameters in their order, decoded, without tokens for this server.
    pub query: Vec<(Box<str>, Box<str>)>,
    /// The configured headers, each once, by their names in lower case.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// The credentials of an MQTT client.
    pub credentials: Option<Credentials>,
}

/// The credentials in an MQTT client's CONNECT.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Its identifier; may be empty.
    pub client: Box<str>,
    /// The user name.
    pub user: Option<Box<str>>,
    /// The password; true if it is not UTF-8, and this is its base64.
    pub password: Option<(Box<str>, bool)>,
}

impl std::fmt::Debug for Credentials {
    /// Omits the password, which logs must not contain.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Credentials { client, user, password: _ } = self;
        f.debug_struct("Credentials").field("client", client).field("user", user).finish()
    }
}

/// The decisions of the application about a pending request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// The decision about its principal.
    pub connect: Option<ConnectDecision>,
    /// The decisions about topics.
    pub topics: Vec<TopicDecision>,
}

impl Decisions {
    /// No decisions, because no request was sent.
    pub const NONE: &'static Decisions = &Decisions { connect: None, topics: Vec::new() };
}

/// The decision of the application about the principal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectDecision {
    /// The principal and its grants; `None` if the application leaves the decision to the server. Or the rejection.
    pub result: Result<Option<Box<Admission>>, Rejection>,
    /// The time of the decision, in seconds since 1970.
    pub at_s: u64,
}

/// The application's consent to a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Its users; without them those in the request.
    pub users: Option<Vec<Name>>,
    /// Its grants; without them those of anonymous clients.
    pub grants: Option<Arc<Grants>>,
    /// Topics that the application gives it.
    pub topics: Vec<Name>,
    /// Its info in the presence of topics: the text of a JSON object.
    pub info: Option<Arc<str>>,
    /// Seconds for which the admission is valid; unlimited if `None`.
    pub seconds: Option<u32>,
}

impl Admission {
    /// The end of an admission that was given in this second, in seconds since 1970. It is up to a second late, never
    /// early: the current second doesn't count.
    pub fn expires_s(&self, admitted_s: u64) -> Option<u64> {
        self.seconds.map(|seconds| admitted_s + 1 + u64::from(seconds))
    }
}

/// The decision of the application about a topic in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDecision {
    /// The topic.
    pub topic: Name,
    /// The client's meta in the topic's presence, if the application gave one: the text of a JSON object. Or the
    /// rejection.
    pub result: Result<Option<Box<str>>, Rejection>,
}

/// The form of a reply.
#[derive(Debug)]
pub enum ReplyTo {
    /// An HTTP reply.
    Http(Respond),
    /// A reply with the client's own id.
    Id(Box<str>),
}

/// The framing of an HTTP reply that comes later.
#[derive(Clone, Debug)]
pub struct Respond {
    /// The CORS lines, each with its CRLF.
    pub cors: Cow<'static, str>,
    /// Whether the connection stays open.
    pub keep_alive: bool,
    /// Leaves the body out (HEAD), but sends its length.
    pub head_only: bool,
}

/// A connection that stays open.
#[derive(Debug)]
pub struct Open {
    /// The encoding of its messages.
    pub encoding: Encoding,
    /// Its principal.
    pub principal: Principal,
    /// Its topics, without the users' personal ones.
    pub topics: Vec<Entry>,
    /// The positions from which the client requests them.
    pub resume: ResumeRequest,
    /// The client gets only messages with one of these tags, or all messages if the list is empty. Tags don't filter
    /// the users' own topics.
    pub tags: Vec<Name>,
    /// The client has to authenticate, by [`Request::Authenticate`]: before that, it is in no topic and gets nothing.
    pub stranger: bool,
}

/// A topic that a client may enter.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The topic.
    pub topic: Name,
    /// The permit by its rule.
    pub permit: Permit,
    /// The meta that the application gives the client in the topic's presence: the text of a JSON object.
    pub meta: Option<Box<str>>,
}

/// A request to enter a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscribe {
    /// The topic.
    pub topic: Name,
    /// The position from which the client requests the topic; without it from now on.
    pub since: Option<Since>,
    /// The client gets only messages with one of these tags, or all messages if the list is empty.
    pub tags: Vec<Name>,
    /// The client's meta in the topic's presence: the text of a JSON value, which must be an object.
    pub meta: Option<Box<str>>,
}

/// A long poll.
#[derive(Debug)]
pub struct Poll {
    /// Its principal.
    pub principal: Principal,
    /// Its topics, without the users' personal ones.
    pub topics: Vec<Entry>,
    /// The positions from which the client requests them; without any the poll begins now.
    pub resume: ResumeRequest,
    /// As in [`Open`].
    pub tags: Vec<Name>,
    /// Seconds to wait, at most.
    pub seconds: u32,
    /// The form of the reply.
    pub respond: Respond,
}

/// A request of a Phoenix long poll.
#[derive(Debug)]
pub struct Longpoll {
    /// The operation.
    pub op: Op,
    /// The form of the reply.
    pub respond: Respond,
}

/// The operation of a long-poll request.
#[derive(Debug)]
pub enum Op {
    /// Open a session: the client has none, or it is gone.
    Open {
        /// The encoding of the session's messages.
        encoding: Encoding,
        /// Its principal.
        principal: Principal,
        /// The topics that it enters at once.
        topics: Vec<Name>,
    },
    /// Get the messages of a session.
    Poll {
        /// The session.
        session: ConnectionId,
        /// Encoding and principal of a new session, if this one is gone; no principal if the client's token is
        /// invalid. `None` if the client has to open a session again.
        anew: Option<(Encoding, Option<Principal>)>,
    },
    /// Process messages of the client.
    Post {
        /// The session.
        session: ConnectionId,
        /// The messages, in order.
        messages: Vec<ClientMessage>,
    },
    /// Messages for a session that never existed, or of an earlier run.
    Gone,
    /// The client's version of the protocol is unknown.
    Forbidden,
}

/// An acknowledgement: a user has the messages of a topic up to a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The user; `None` is the connection's own.
    pub user: Option<Name>,
    /// The topic; `None` is the user's own.
    pub topic: Option<Name>,
    /// The last message that the user has: this one and all before it are acknowledged.
    pub id: Position,
}

impl Acknowledgement {
    /// Checks a client's acknowledgement. The topic may be a user's own by its name (`@alice`), which then names the
    /// user as well. An id that contains more than a message's position (an SSE client's does) counts for its
    /// message.
    ///
    /// # Errors
    /// The code, and a message with the reason.
    pub fn read(
        user: Option<&str>,
        topic: Option<&str>,
        id: Option<&str>,
    ) -> Result<Self, CodedError> {
        if let Some(error) = user.and_then(|user| check_name(user).err()) {
            return Err(CodedError::new(ErrorCode::BadUser, error));
        }
        let own = topic.and_then(|topic| TopicKind::of(topic).user());
        let checked = match (own, topic) {
            (Some(own), _) if user.is_some_and(|user| user != own) => {
                return Err(CodedError::new(
                    ErrorCode::BadTopic,
                    "this is another user's own topic: only that user can acknowledge it",
                ));
            }
            (Some(own), _) => check_name(own),
            (None, Some(topic)) => check_topic(topic),
            (None, None) => Ok(()),
        };
        checked.map_err(|error| CodedError::new(ErrorCode::BadTopic, error))?;
        let message = "the id of the last message is missing or invalid: send it exactly as it was \
                       received, like 5f3a91c2:1042";
        let token = id.and_then(|id| id.parse::<ResumeToken>().ok());
        let token = token.ok_or_else(|| CodedError::new(ErrorCode::BadId, message))?;
        Ok(Acknowledgement {
            user: user.or(own).map(Name::from),
            topic: topic.filter(|_| own.is_none()).map(Name::from),
            id: token.id,
        })
    }
}

/// A client's request for a page of a topic's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The topic; a user's own by its name, `@alice`.
    pub topic: Name,
    /// The position where the page begins: after a message (`reverse`: before it), or with the newest of a number of
    /// messages. Without it with the oldest message, or with `reverse` with the newest.
    pub since: Option<Since>,
    /// The newest messages come first, and older ones follow.
    pub reverse: bool,
    /// The number of messages, 1 to [`crate::history::PAGE_MESSAGES_MAX`].
    pub limit: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admission_does_not_end_early() {
        let admission = |seconds| Admission { seconds, ..Admission::default() };
        assert_eq!(admission(Some(1)).expires_s(7), Some(9), "it may be given just before 8");
        assert_eq!(admission(None).expires_s(7), None);
    }

    #[test]
    fn tokens_stand_in_no_log() {
        let token = || Secret("a.secret.b".into());
        let (purpose, id) = (TokenPurpose::Refresh, "7".into());
        let request = Request::Authenticate(Authenticate { token: token(), purpose, id });
        let again = mqtt::Incoming::Authenticate { method: "token".into(), token: token() };
        let texts = [format!("{request:?}"), format!("{again:?}")];
        assert!(texts.iter().all(|text| !text.contains("secret")), "{texts:?}");
    }
}

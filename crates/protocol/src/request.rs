//! What a connection's peer asks for: the vocabulary that all protocols share.

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

/// What a connection's peer asks for. The answer, or its beginning, is in `out` already where that is
/// said; else the engine answers, by [`Protocol::reply`](crate::Protocol::reply) or as [`Respond`] says.
#[derive(Debug)]
pub enum Request {
    /// Nothing more: a request is answered. `keep_alive` says whether the connection stays.
    Replied {
        /// Ready for the next request.
        keep_alive: bool,
    },
    /// Nothing: the connection ends, with the rejection that is in `out`.
    Rejected,
    /// More of a request must come, and is worth waiting for.
    Continue {
        /// Bytes of the whole request.
        bytes: usize,
        /// What to send before it comes, once for each request; nothing where nobody waits for it.
        interim: &'static [u8],
    },
    /// The connection takes up a lasting protocol and enters its topics, before `out` is sent.
    Open(Open),
    /// A long poll: nothing is in `out` yet.
    Poll(Box<Poll>),
    /// Enter a topic.
    Subscribe(Box<str>, Subscribe, Consent),
    /// Leave a topic.
    Unsubscribe(Box<str>, Name),
    /// Publish.
    Publish {
        /// What to publish. By a connection that is open it is the first user's, which the engine
        /// notes; an HTTP request has said whose it is.
        publication: Publication,
        /// What its topic's rule says.
        consent: Consent,
        /// How to answer.
        to: ReplyTo,
    },
    /// A user has messages up to a position.
    Acknowledge {
        /// What the user has.
        acknowledgement: Acknowledgement,
        /// How to answer.
        to: ReplyTo,
        /// Who says so, where it is not the connection's own principal.
        principal: Option<Principal>,
    },
    /// Become this user as well.
    Login(Box<str>, Name),
    /// Be this user no longer.
    Logout(Box<str>, Name),
    /// Who is in a topic, which has presence.
    Presence {
        /// The topic.
        topic: Name,
        /// The application decides who may, and is not asked here: a member has been let in.
        members_only: bool,
        /// How to answer.
        to: ReplyTo,
    },
    /// Say something else of oneself in a topic's presence: the text of a JSON value that is to be an
    /// object.
    UpdatePresence(Box<str>, Name, Box<str>),
    /// A page of a topic's history, which the client may read.
    History {
        /// Which page.
        page: PageRequest,
        /// As for presence.
        members_only: bool,
        /// How to answer.
        to: ReplyTo,
    },
    /// The figures of `/status`.
    Status {
        /// How to answer.
        respond: Respond,
    },
    /// A message of a Phoenix client.
    Phoenix(ClientMessage),
    /// A request of a Phoenix long poll.
    Longpoll(Longpoll),
    /// What an MQTT client asks for.
    Mqtt(Box<mqtt::Incoming>),
    /// Say by a token who one is, or that one still is.
    Authenticate(Authenticate),
    /// Nothing yet: the same bytes are to be read again when this is known. Nothing is in `out`.
    Pending(Pending),
    /// Close, after the last bytes that are in `out`.
    Close(CloseReason),
}

/// A token on a connection that is open.
#[derive(Clone, Debug)]
pub struct Authenticate {
    /// The token, unread.
    pub token: Secret,
    /// What it is for.
    pub purpose: TokenPurpose,
    /// The client's own id, for the reply.
    pub id: Box<str>,
}

/// What a token on an open connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenPurpose {
    /// It says who the connection is, which has not said it yet.
    Connect,
    /// It takes the place of one that expires.
    Refresh,
}

/// What a request waits for before it can be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The keys of its token's issuer are being fetched.
    Keys,
    /// The application has still to say who this is, and whether it may come; it is then known by
    /// [`Decisions::connect`].
    Connect(Box<ConnectRequest>),
    /// The application has still to say whether these users may enter these topics; it is then known by
    /// [`Decisions::topics`].
    Subscribe {
        /// The topics, without those that the application has spoken of already.
        topics: Vec<Name>,
        /// Who wants to enter them.
        users: Vec<Name>,
        /// The name of the transport that the request is for.
        transport: &'static str,
    },
}

/// Why a request isn't carried out now.
#[derive(Debug)]
pub enum Interrupt {
    /// It is rejected.
    Rejection(Rejection),
    /// It is to be read again when this is known.
    Pending(Pending),
}

impl From<Rejection> for Interrupt {
    fn from(rejection: Rejection) -> Self {
        Interrupt::Rejection(rejection)
    }
}

/// A request whose maker has no token, as the application is asked about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The name of the transport that it is for.
    pub transport: &'static str,
    /// The users that it names, which nobody has proved.
    pub users: Vec<Name>,
    /// The path.
    pub path: Box<str>,
    /// The query's parameters in their order, decoded, without tokens that are for this server.
    pub query: Vec<(Box<str>, Box<str>)>,
    /// The headers that the application is to see, each once, by their names in lower case.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// What an MQTT client says of itself.
    pub credentials: Option<Credentials>,
}

/// What an MQTT client says of itself when it wants to come in.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Its identifier; may be empty.
    pub client: Box<str>,
    /// The user name.
    pub user: Option<Box<str>>,
    /// The password; true where it is no text, and this is its base64.
    pub password: Option<(Box<str>, bool)>,
}

impl std::fmt::Debug for Credentials {
    /// Without the password, which stands in no log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Credentials { client, user, password: _ } = self;
        f.debug_struct("Credentials").field("client", client).field("user", user).finish()
    }
}

/// What the application has decided about a pending request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Of who makes it.
    pub connect: Option<ConnectDecision>,
    /// Of topics.
    pub topics: Vec<TopicDecision>,
}

impl Decisions {
    /// No request was sent.
    pub const NONE: &'static Decisions = &Decisions { connect: None, topics: Vec::new() };
}

/// The decision of the application about who makes a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectDecision {
    /// Who it is and what it may do; nothing where it is as if nobody had been asked. Or why it may not
    /// come.
    pub result: Result<Option<Box<Admission>>, Rejection>,
    /// When it was said, in seconds since 1970.
    pub at_s: u64,
}

/// What the application says of a connection that it lets in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Whose it is; whom the request names where it doesn't say.
    pub users: Option<Vec<Name>>,
    /// What it may do at the most; what anybody may where it doesn't say.
    pub grants: Option<Arc<Grants>>,
    /// Topics that it enters by the application's word.
    pub topics: Vec<Name>,
    /// What others are told of it: the text of a JSON object.
    pub info: Option<Arc<str>>,
    /// For how long that holds, in seconds; without an end where it doesn't say.
    pub seconds: Option<u32>,
}

impl Admission {
    /// When an admission that was given in this second ends, in seconds since 1970. It ends up to a second late, never
    /// early: the second that has begun is not counted.
    pub fn expires_s(&self, given_s: u64) -> Option<u64> {
        self.seconds.map(|seconds| given_s + 1 + u64::from(seconds))
    }
}

/// The decision of the application about a topic that a request wants to enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDecision {
    /// The topic.
    pub topic: Name,
    /// The meta that the client shows in the topic's presence, if the application gave one: the text of a
    /// JSON object. Or why it may not enter.
    pub result: Result<Option<Box<str>>, Rejection>,
}

/// How a request is answered.
#[derive(Debug)]
pub enum ReplyTo {
    /// By an HTTP answer.
    Http(Respond),
    /// By a reply with the client's own id.
    Id(Box<str>),
}

/// How an HTTP answer that takes time is to be framed.
#[derive(Clone, Debug)]
pub struct Respond {
    /// The CORS lines, each with its CRLF.
    pub cors: Cow<'static, str>,
    /// Whether the connection stays.
    pub keep_alive: bool,
    /// Leave the body out (HEAD), but tell its length.
    pub head_only: bool,
}

/// A connection that stays.
#[derive(Debug)]
pub struct Open {
    /// How it is written to.
    pub encoding: Encoding,
    /// Who it is.
    pub principal: Principal,
    /// Its topics, without the users' personal ones.
    pub topics: Vec<Entry>,
    /// From where the client wants them.
    pub resume: ResumeRequest,
    /// Of the topics, users' own left out, it wants only messages that have one of these tags; all
    /// without any.
    pub tags: Vec<Name>,
    /// It has still to say who it is, by [`Request::Authenticate`]: before, it is in no topic and gets
    /// nothing.
    pub stranger: bool,
}

/// A topic that a client may enter.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The topic.
    pub topic: Name,
    /// What its rule says.
    pub permit: Permit,
    /// What the application has it show of itself in the topic's presence: the text of a JSON object.
    pub meta: Option<Box<str>>,
}

/// A request to enter a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscribe {
    /// The topic.
    pub topic: Name,
    /// From where the client wants it; without it from now on.
    pub since: Option<Since>,
    /// The client wants only messages with one of these tags; all messages if there is none.
    pub tags: Vec<Name>,
    /// What it says of itself in the topic's presence: the text of a JSON value that is to be an
    /// object.
    pub meta: Option<Box<str>>,
}

/// A long poll.
#[derive(Debug)]
pub struct Poll {
    /// Who asks.
    pub principal: Principal,
    /// Its topics, without the users' personal ones.
    pub topics: Vec<Entry>,
    /// From where the client wants them; the poll begins now where it doesn't say.
    pub resume: ResumeRequest,
    /// As in [`Open`].
    pub tags: Vec<Name>,
    /// How long to wait, in seconds.
    pub seconds: u32,
    /// How to answer.
    pub respond: Respond,
}

/// A request of a Phoenix long poll.
#[derive(Debug)]
pub struct Longpoll {
    /// What it wants.
    pub op: Op,
    /// How to answer.
    pub respond: Respond,
}

/// What a request of a long poll wants.
#[derive(Debug)]
pub enum Op {
    /// A session: there is none yet, or it is gone.
    Open {
        /// How the session's messages are written.
        encoding: Encoding,
        /// Who it is.
        principal: Principal,
        /// The topics that it is in from the beginning.
        topics: Vec<Name>,
    },
    /// What has come for the session.
    Poll {
        /// Which one.
        session: ConnectionId,
        /// How a new one's messages are written when this one is gone, and who it is: nobody where its
        /// token counts for nothing. Nothing where the client has to begin anew.
        anew: Option<(Encoding, Option<Principal>)>,
    },
    /// Messages of the client.
    Post {
        /// Of which session.
        session: ConnectionId,
        /// In order.
        messages: Vec<ClientMessage>,
    },
    /// Messages for a session that never was, or of another run.
    Gone,
    /// The client speaks a version that nobody here does.
    Forbidden,
}

/// What a client says when it acknowledges: a user has the messages of a topic up to a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Who; `None` is the user of the connection that says so.
    pub user: Option<Name>,
    /// The topic; `None` is the user's own.
    pub topic: Option<Name>,
    /// The last message that it has: this one and all before it are done.
    pub id: Position,
}

impl Acknowledgement {
    /// Checks what a client says. The topic may be a user's own by its name (`@alice`), which then
    /// names the user as well; an id that says more than a message's position (an SSE client has
    /// such) counts for its message.
    ///
    /// # Errors
    /// The code, and a message that says what is invalid.
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
                    "this is another user's own topic",
                ));
            }
            (Some(own), _) => check_name(own),
            (None, Some(topic)) => check_topic(topic),
            (None, None) => Ok(()),
        };
        checked.map_err(|error| CodedError::new(ErrorCode::BadTopic, error))?;
        let message = "say which message was the last one: its id as it came, like 5f3a91c2:1042";
        let token = id.and_then(|id| id.parse::<ResumeToken>().ok());
        let token = token.ok_or_else(|| CodedError::new(ErrorCode::BadId, message))?;
        Ok(Acknowledgement {
            user: user.or(own).map(Name::from),
            topic: topic.filter(|_| own.is_none()).map(Name::from),
            id: token.id,
        })
    }
}

/// A page of a topic's history that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The topic; a user's own by its name, `@alice`.
    pub topic: Name,
    /// Where the page begins: behind a message (`reverse`: before it), or with the newest of a number of
    /// messages. Without it with the oldest message, or with `reverse` with the newest.
    pub since: Option<Since>,
    /// The newest first, and backwards from there.
    pub reverse: bool,
    /// Messages, 1 to [`crate::history::PAGE_MESSAGES_MAX`].
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

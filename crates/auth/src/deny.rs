//! Why an action is denied.

use model::{CodedError, ErrorCode};

/// Why an action is denied. The text says what happened, whose fault it is and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deny {
    /// The topic's rule lets no client in.
    #[error(
        "clients may not enter this topic: the server's configuration (join of a [[topics]] \
         table) refuses it"
    )]
    JoinRefused,
    /// The application would have to allow it, and no request can go to it here.
    #[error(
        "the application decides who may enter this topic, and this request can't ask it: enter \
         the topic on a connection, or let the application call /api/subscribe"
    )]
    JoinUndecided,
    /// The topic is another user's own.
    #[error("this is another user's own topic: only connections of the user u are in the topic @u")]
    AnotherUser,
    /// The topic's rule lets no client publish.
    #[error(
        "clients may not publish to this topic: the server's configuration (publish of a \
         [[topics]] table, client.publish_prefixes) doesn't allow it"
    )]
    PublishRefused,
    /// The application gets what clients send, and no request can go to it here.
    #[error("messages of clients to this topic go to the application, and can't be sent this way")]
    PublishUndecided,
    /// Only the application publishes to users' own topics and to everyone.
    #[error("clients may not send to this topic")]
    PublishOwn,
    /// Only the server publishes reports about itself.
    #[error("only the server publishes to topics below $SYS")]
    PublishSystem,
    /// Members of the topic don't see each other.
    #[error(
        "presence is off for this topic: the server's configuration has no [[topics]] table for it \
         with presence = true"
    )]
    NoPresence,
    /// The client acknowledges for other users, or has none.
    #[error(
        "messages are acknowledged only for a user of the connection: connect with user=…, and \
         name one of the connection's users"
    )]
    NotItsUser,
    /// Clients may not become other users while they are connected.
    #[error(
        "clients may not log users in or out here: the server's configuration (client.login) does \
         not allow it; let the application call /api/login or /api/logout"
    )]
    LoginRefused,
    /// The token doesn't grant it, or there is none. The text does not reveal whether there is such a topic.
    #[error("this is not granted: it requires a token that grants it, from your token issuer")]
    NotGranted,
    /// The application's key has no scope for it.
    #[error(
        "this API key does not have the required scope: use another key, or add the scope to this \
         one"
    )]
    OutOfScope,
}

impl Deny {
    /// All of them.
    pub const ALL: [Deny; 12] = [
        Deny::JoinRefused,
        Deny::JoinUndecided,
        Deny::AnotherUser,
        Deny::PublishRefused,
        Deny::PublishUndecided,
        Deny::PublishOwn,
        Deny::PublishSystem,
        Deny::NoPresence,
        Deny::NotItsUser,
        Deny::LoginRefused,
        Deny::NotGranted,
        Deny::OutOfScope,
    ];

    /// Returns the error code.
    pub fn code(self) -> ErrorCode {
        match self {
            Deny::AnotherUser => ErrorCode::BadTopic,
            Deny::NoPresence => ErrorCode::NoPresence,
            Deny::NotItsUser => ErrorCode::NoUser,
            Deny::JoinRefused
            | Deny::JoinUndecided
            | Deny::PublishRefused
            | Deny::PublishUndecided
            | Deny::PublishOwn
            | Deny::PublishSystem
            | Deny::LoginRefused => ErrorCode::Forbidden,
            Deny::NotGranted => ErrorCode::NotGranted,
            Deny::OutOfScope => ErrorCode::InsufficientScope,
        }
    }

    /// Returns the reason for a Phoenix client: its applications compare some of these texts.
    pub fn phoenix_reason(self) -> String {
        match self {
            Deny::JoinRefused | Deny::JoinUndecided | Deny::NotGranted => {
                ErrorCode::Unauthorized.to_string()
            }
            Deny::PublishRefused | Deny::PublishUndecided => Deny::PublishOwn.to_string(),
            Deny::AnotherUser
            | Deny::PublishOwn
            | Deny::PublishSystem
            | Deny::NoPresence
            | Deny::NotItsUser
            | Deny::LoginRefused
            | Deny::OutOfScope => self.to_string(),
        }
    }
}

impl From<Deny> for CodedError {
    fn from(error: Deny) -> Self {
        CodedError::new(error.code(), error.to_string())
    }
}

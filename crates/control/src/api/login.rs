//! Logs users in and out on open connections, for the application.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::name::check_name;
use model::{ConnectionId, ErrorCode};
use serde::{Deserialize, Serialize};
use shard::{Command, LoggedIn, LoginError, Reply};
use utoipa::ToSchema;

use crate::http::{Body, ErrorBody, Rejection};
use crate::node::Node;

/// A user of one connection.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    /// The connection, by the name that its greeting and /api/users give.
    #[schema(example = "5f3a91c2-0-12-345")]
    connection: String,
    /// The user to log in or out.
    #[schema(example = "alice")]
    user: String,
}

/// The connection after a login.
#[derive(Serialize, ToSchema)]
pub(crate) struct LoginAnswer {
    /// The user who is logged in.
    #[schema(example = "alice")]
    user: String,
    /// How many users the connection has.
    #[schema(example = 2)]
    users: u32,
    /// The user was logged in before: nothing changed.
    #[schema(example = false)]
    already: bool,
}

/// The connection after a logout.
#[derive(Serialize, ToSchema)]
pub(crate) struct LogoutAnswer {
    /// The user who is logged out.
    #[schema(example = "alice")]
    user: String,
    /// How many users the connection has.
    #[schema(example = 1)]
    users: u32,
}

/// Takes a shard's reply.
type LoginReply = Reply<Result<LoggedIn, LoginError>>;

impl Identity {
    async fn request(
        &self,
        node: &Node,
        command: impl Fn(ConnectionId, &str, LoginReply) -> Command,
    ) -> Result<LoggedIn, Rejection> {
        check_name(&self.user).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
        let connection: ConnectionId = self.connection.parse().map_err(|_| {
            let message = "the name of a connection has the form 5f3a91c2-0-12-345";
            Rejection::new(ErrorCode::BadConnection, message)
        })?;
        let shard = usize::from(connection.shard);
        if shard >= node.shards.count() {
            return Err(LoginError::NoConnection.into());
        }
        let replies =
            node.request(shard, |reply| command(connection, &self.user, reply)).all().await?;
        let response = replies.into_iter().next().unwrap_or(Err(LoginError::NoConnection));
        Ok(response?)
    }
}

impl From<LoginError> for Rejection {
    fn from(error: LoginError) -> Self {
        let (code, message) = (error.code(), error.to_string());
        match error {
            LoginError::TooManyTopics => {
                Rejection::with_status(StatusCode::CONFLICT, code, message)
            }
            LoginError::NoConnection | LoginError::NotLoggedIn => Rejection::new(code, message),
        }
    }
}

/// Log a user in on an open connection, beside its other users, on any transport but the long poll. The connection
/// enters the user's own topic with the messages that wait there, the topics of the user's subscriptions, and
/// presence.
#[utoipa::path(post, path = "/api/login", tag = "members", request_body = Identity, responses(
    (status = 200, body = LoginAnswer),
    (status = 404, description = "No such connection is open", body = ErrorBody),
    (status = 409, description = "The connection is at its limit on topics", body = ErrorBody)))]
pub(crate) async fn login(
    State(node): State<Arc<Node>>,
    Body(identity): Body<Identity>,
) -> Result<Json<LoginAnswer>, Rejection> {
    let login =
        |connection, user: &str, reply| Command::Login { connection, user: user.into(), reply };
    let LoggedIn { users, already } = identity.request(&node, login).await?;
    Ok(Json(LoginAnswer { user: identity.user, users, already }))
}

/// Log a user out on an open connection. It stays in topics that another of its users is subscribed to, and in those
/// that the client entered itself.
#[utoipa::path(post, path = "/api/logout", tag = "members", request_body = Identity, responses(
    (status = 200, body = LogoutAnswer),
    (status = 404, description = "No such connection is open", body = ErrorBody),
    (status = 409, description = "The connection is not logged in as this user", body = ErrorBody)))]
pub(crate) async fn logout(
    State(node): State<Arc<Node>>,
    Body(identity): Body<Identity>,
) -> Result<Json<LogoutAnswer>, Rejection> {
    let logout =
        |connection, user: &str, reply| Command::Logout { connection, user: user.into(), reply };
    let LoggedIn { users, .. } = identity.request(&node, logout).await?;
    Ok(Json(LogoutAnswer { user: identity.user, users }))
}

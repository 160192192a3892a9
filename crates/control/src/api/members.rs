//! The members of a topic, and the connections of a user.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use model::name::{check_name, personal};
use model::{ErrorCode, Name};
use serde::{Deserialize, Serialize};
use sessions::SessionKey;
use shard::{Command, ConnectionInfo};
use utoipa::{IntoParams, ToSchema};

use crate::http::{QueryParams, Rejection, checked_limit, path_name};
use crate::monitor::process;
use crate::node::Node;

/// Members in a response, by default.
const MEMBERS: usize = 100;

/// Members in a response, at most.
const MEMBERS_MAX: usize = 1_000;

/// How many connections to describe.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct MembersQuery {
    /// How many at most: up to 1,000, by default 100.
    limit: Option<usize>,
}

/// A topic and some of its members.
#[derive(Serialize, ToSchema)]
pub(crate) struct TopicMembers {
    topic: String,
    /// All connections in it.
    members: u64,
    /// Some of them, in no order.
    connections: Vec<Connection>,
}

/// A topic's members; none if the topic does not exist.
#[utoipa::path(get, path = "/api/topics/{topic}/members", tag = "inspect",
    params(("topic" = String, Path, description = "The topic, percent-encoded"), MembersQuery),
    responses((status = 200, body = TopicMembers)))]
pub(crate) async fn members(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
    QueryParams(query): QueryParams<MembersQuery>,
) -> Result<Json<TopicMembers>, Rejection> {
    let topic = path_name(name)?;
    let (members, connections) = some_members(&node, Name::from(&topic), &query).await?;
    Ok(Json(TopicMembers { topic, members, connections }))
}

/// A user and some of their connections.
#[derive(Serialize, ToSchema)]
pub(crate) struct User {
    user: String,
    /// All connections of the user.
    count: u64,
    /// Some of them, in no order.
    connections: Vec<Connection>,
}

/// A connection.
#[derive(Serialize, ToSchema)]
pub(crate) struct Connection {
    /// Its name, for /api/disconnect.
    #[schema(example = "5f3a91c2-0-12-345")]
    id: String,
    /// The name of its transport, as in the metrics: sse, ws, phoenix.
    transport: &'static str,
    /// When it was opened, in seconds since 1970.
    opened_at: u64,
    /// Its age, in seconds.
    age_seconds: u32,
    /// The peer's address and port; behind a trusted proxy those of the client, without a port if a header of
    /// the request names the client.
    address: Option<String>,
    /// All users that it carries.
    users: Vec<String>,
    /// Its topics, without the users' own.
    topics: Vec<String>,
    /// Bytes that the peer has acknowledged.
    bytes_sent: u64,
    /// Bytes that came from it.
    bytes_received: u64,
    /// Bytes in its outbox.
    outbox_bytes: usize,
    /// How long its outbox has not been empty, in milliseconds.
    outbox_age_ms: u64,
    /// Details of an MQTT client; left out for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    mqtt: Option<MqttClient>,
}

/// An MQTT client.
#[derive(Serialize, ToSchema)]
pub(crate) struct MqttClient {
    /// Its identifier, for /api/mqtt/sessions/{client}.
    #[schema(example = "sensor-7")]
    client: String,
    /// The user to whom that belongs; null if users are not authenticated.
    owner: Option<String>,
    /// The version of MQTT: `5.0`, or `3.1.1`, which stands for 3.1, too.
    version: &'static str,
}

/// Returns the peer's address, without the port if a proxy named none.
pub(super) fn address(info: &ConnectionInfo) -> Option<String> {
    info.address.map(|address| match address.port() {
        0 => address.ip().to_string(),
        _ => address.to_string(),
    })
}

impl From<ConnectionInfo> for Connection {
    fn from(info: ConnectionInfo) -> Self {
        let texts = |names: Vec<Name>| names.into_iter().map(String::from).collect();
        Connection {
            id: info.id.to_string(),
            transport: info.transport,
            opened_at: process::unix_seconds().saturating_sub(u64::from(info.age_seconds)),
            age_seconds: info.age_seconds,
            address: address(&info),
            users: texts(info.users),
            topics: texts(info.topics),
            bytes_sent: info.bytes_sent,
            bytes_received: info.bytes_received,
            outbox_bytes: info.outbox_bytes,
            outbox_age_ms: info.outbox_age_ms,
            mqtt: info.mqtt.map(|mqtt| {
                let SessionKey { client, owner } = SessionKey::parse(&mqtt.key);
                let (client, owner) = (client.into(), owner.map(Into::into));
                MqttClient { client, owner, version: mqtt.version }
            }),
        }
    }
}

/// A user's connections; none if the user is not connected.
#[utoipa::path(get, path = "/api/users/{user}", tag = "inspect",
    params(("user" = String, Path, description = "The user, percent-encoded"), MembersQuery),
    responses((status = 200, body = User)))]
pub(crate) async fn user(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
    QueryParams(query): QueryParams<MembersQuery>,
) -> Result<Json<User>, Rejection> {
    let user = path_name(name)?;
    check_name(&user).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
    let (count, connections) = some_members(&node, personal(&user), &query).await?;
    Ok(Json(User { user, count, connections }))
}

/// Returns the number of connections in a topic, and some of them.
pub(crate) async fn some_members(
    node: &Node,
    topic: Name,
    query: &MembersQuery,
) -> Result<(u64, Vec<Connection>), Rejection> {
    let limit = checked_limit(query.limit, MEMBERS, MEMBERS_MAX)?;
    let replies = node
        .request_all(|reply| Command::Members { topic: topic.clone(), limit, reply })
        .all()
        .await?;
    let members = replies.iter().map(|(members, _)| u64::from(*members)).sum();
    let connections = replies.into_iter().flat_map(|(_, connections)| connections).take(limit);
    Ok((members, connections.map(Connection::from).collect()))
}

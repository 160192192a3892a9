//! Sessions of MQTT clients. Shards have those of open connections, the registry has those of clients that are away.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::sessions::{Found, Listing, SessionInfo, SessionKey, Subscription, WITHOUT_END, Will};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use broker::{Options, Publish, PublishError};
use model::{ConnectionId, ErrorCode, Name, Position};
use serde::{Deserialize, Serialize};
use shard::{Command, ConnectionInfo, MqttInfo};
use utoipa::{IntoParams, ToSchema};

use crate::api::members::address;
use crate::http::{ErrorBody, QueryParams, Rejection, checked_limit, path_name};
use crate::monitor::process;
use crate::node::Node;

/// Sessions in one page, by default.
const SESSIONS: usize = 100;

/// Sessions in one page at most.
const SESSIONS_MAX: usize = 1_000;

/// The most lookups of a session whose client connects or disconnects meanwhile.
const ATTEMPTS_MAX: usize = 3;

/// Selects sessions.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionsQuery {
    /// Only clients whose identifiers begin with this.
    #[serde(default)]
    #[param(example = "sensor-")]
    prefix: String,
    /// `true`: only those of connected clients; `false`: only those of clients that are away.
    connected: Option<bool>,
    /// Only those after this one: the `next` of the page before.
    after: Option<String>,
    /// How many at most: up to 1,000, by default 100.
    limit: Option<usize>,
}

/// Names the owner of a session.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnerQuery {
    /// The user to whom the client identifier belongs, if sessions have an `owner`.
    #[param(example = "alice")]
    owner: Option<String>,
}

/// A page of sessions, sorted by client.
#[derive(Serialize, ToSchema)]
pub(crate) struct MqttSessions {
    sessions: Vec<MqttSession>,
    /// The `after` of the next page; null on the last page.
    next: Option<String>,
}

/// An MQTT session.
#[derive(Serialize, ToSchema)]
pub(crate) struct MqttSession {
    /// The client identifier.
    #[schema(example = "sensor-7")]
    client: String,
    /// The user to whom the client identifier belongs; null if users are not authenticated.
    owner: Option<String>,
    /// Whether its client is connected.
    connected: bool,
    /// When its client connected or went away, in seconds since 1970.
    #[schema(example = 1_760_000_000)]
    since: u64,
    /// When it expires unless its client comes back, in seconds since 1970; null while the client is connected, and
    /// if it never expires.
    #[schema(example = 1_760_086_400)]
    expires_at: Option<u64>,
    /// How many seconds it outlives its connection: 0 if it ends with it, null if it never expires.
    #[schema(example = 86_400)]
    expiry_seconds: Option<u32>,
    /// How many subscriptions it has.
    #[schema(example = 2)]
    subscriptions: usize,
    /// Messages that were sent and that the client has not confirmed.
    in_flight: usize,
    /// Messages that wait until the client has confirmed others. Messages for a client that is away wait in the
    /// history, after `position`, and are not counted.
    waiting: usize,
    /// The position in the history up to which it has all messages but those in flight or waiting; null while its
    /// client is connected.
    #[schema(example = "5f3a91c2:1042")]
    position: Option<String>,
    /// Its connection; null while its client is away.
    connection: Option<MqttConnection>,
}

/// The connection of an MQTT client.
#[derive(Serialize, ToSchema)]
pub(crate) struct MqttConnection {
    /// Its name, for /api/disconnect.
    #[schema(example = "5f3a91c2-0-12-345")]
    id: String,
    /// The version of MQTT: `5.0`, or `3.1.1`, which stands for 3.1, too.
    version: &'static str,
    /// The peer's address and port.
    address: Option<String>,
    /// All users that it carries.
    users: Vec<String>,
    /// The client's keep-alive interval in seconds; 0 if it has none.
    keep_alive_seconds: u16,
    /// Bytes in its outbox.
    outbox_bytes: usize,
}

/// An MQTT session with its subscriptions.
#[derive(Serialize, ToSchema)]
pub(crate) struct MqttSessionDetails {
    #[serde(flatten)]
    session: MqttSession,
    /// Its subscriptions, the oldest first.
    filters: Vec<MqttSubscription>,
}

/// A subscription of an MQTT session.
#[derive(Serialize, ToSchema)]
pub(crate) struct MqttSubscription {
    /// A topic, or with wildcards several.
    #[schema(example = "sensors/+/temp")]
    filter: String,
    /// The group that shares it (`$share/group/…`); null if it is not shared.
    group: Option<String>,
    /// The QoS that was granted.
    #[schema(example = 1)]
    qos: u8,
    /// The client does not get its own messages.
    no_local: bool,
    /// Messages keep the retain flag with which they were published.
    retain_as_published: bool,
    /// The subscription identifier that the client chose; null if there is none.
    id: Option<u32>,
}

/// A session has ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct MqttEnded {
    #[schema(example = "sensor-7")]
    client: String,
    owner: Option<String>,
    /// Always true.
    ended: bool,
    /// Whether its client was connected, and is disconnected now.
    disconnected: bool,
}

/// Sessions of MQTT clients, connected or away. They include those that end with their connections (`expiry_seconds`
/// is 0).
#[utoipa::path(get, path = "/api/mqtt/sessions", tag = "mqtt", params(SessionsQuery), responses(
    (status = 200, body = MqttSessions)))]
pub(crate) async fn list(
    State(node): State<Arc<Node>>,
    QueryParams(query): QueryParams<SessionsQuery>,
) -> Result<Json<MqttSessions>, Rejection> {
    let limit = checked_limit(query.limit, SESSIONS, SESSIONS_MAX)?;
    // One more than the page shows whether there is a next page.
    let listing = Listing { prefix: query.prefix, after: query.after, limit: limit + 1 };
    let mut all: BTreeMap<String, MqttSession> = BTreeMap::new();
    if query.connected != Some(true) {
        all.extend(away(&node, listing.clone()).await?);
    }
    if query.connected != Some(false) {
        let command = |reply| Command::MqttClients { listing: listing.clone(), reply };
        for (_, connections) in node.request_all(command).all().await? {
            // This replaces a session whose client has come back meanwhile.
            all.extend(connections.into_iter().filter_map(connected));
        }
    }
    if query.connected.is_none() {
        // A session whose client has gone meanwhile was in neither list.
        all.extend(away(&node, listing).await?);
    }
    let more = all.len() > limit;
    let (mut sessions, mut next) = (Vec::with_capacity(all.len().min(limit)), None);
    for (key, session) in all.into_iter().take(limit) {
        sessions.push(session);
        next = Some(key);
    }
    Ok(Json(MqttSessions { sessions, next: next.filter(|_| more) }))
}

/// Returns sessions of clients that are away, by their keys.
async fn away(
    node: &Arc<Node>,
    listing: Listing,
) -> Result<impl Iterator<Item = (String, MqttSession)>, Rejection> {
    // The registry scans all sessions, so the control thread does not wait for it.
    let sessions = node.shared.mqtt_sessions.clone();
    let away = tokio::task::spawn_blocking(move || sessions.away(&listing)).await;
    let away = away.map_err(|_| Rejection::going_down())?;
    let node = node.clone();
    Ok(away.into_iter().map(move |info| {
        (SessionKey::parse(&info.key).to_string(), MqttSession::away(&node, &info))
    }))
}

/// A session with its subscriptions.
#[utoipa::path(get, path = "/api/mqtt/sessions/{client}", tag = "mqtt",
    params(("client" = String, Path, description = "The client identifier, percent-encoded"), OwnerQuery),
    responses((status = 200, body = MqttSessionDetails),
    (status = 404, body = ErrorBody, description = "There is no such session (no_mqtt_session)")))]
pub(crate) async fn one(
    State(node): State<Arc<Node>>,
    client: Result<Path<String>, PathRejection>,
    QueryParams(OwnerQuery { owner }): QueryParams<OwnerQuery>,
) -> Result<Json<MqttSessionDetails>, Rejection> {
    let client = path_name(client)?;
    let key = SessionKey { client: &client, owner: owner.as_deref() }.encode();
    for _ in 0..ATTEMPTS_MAX {
        match node.shared.mqtt_sessions.find(&key) {
            None => break,
            Some(Found::Away(info, subscriptions)) => {
                let session = MqttSession::away(&node, &info);
                let filters = subscriptions.into_iter().map(Into::into).collect();
                return Ok(Json(MqttSessionDetails { session, filters }));
            }
            Some(Found::Connected(id)) => {
                if let Some(found) = describe(&node, id, &key).await? {
                    return Ok(Json(found));
                }
            }
        }
    }
    Err(no_session())
}

/// End a session. The server disconnects a connected client, version 5 with 0x98 (Administrative action), and
/// publishes its will. Subscriptions and waiting messages of the session are deleted. The client may connect again at
/// once.
#[utoipa::path(delete, path = "/api/mqtt/sessions/{client}", tag = "mqtt",
    params(("client" = String, Path, description = "The client identifier, percent-encoded"), OwnerQuery),
    responses((status = 200, body = MqttEnded),
    (status = 404, body = ErrorBody, description = "There is no such session (no_mqtt_session)")))]
pub(crate) async fn end(
    State(node): State<Arc<Node>>,
    client: Result<Path<String>, PathRejection>,
    QueryParams(OwnerQuery { owner }): QueryParams<OwnerQuery>,
) -> Result<Json<MqttEnded>, Rejection> {
    let client = path_name(client)?;
    let key = SessionKey { client: &client, owner: owner.as_deref() }.encode();
    for _ in 0..ATTEMPTS_MAX {
        let disconnected = match node.shared.mqtt_sessions.find(&key) {
            None => break,
            Some(Found::Away(..)) => {
                let Some(will) = node.shared.mqtt_sessions.end(&key) else { continue };
                if let Some(will) = will {
                    publish_will(&node, will);
                }
                false
            }
            Some(Found::Connected(id)) => {
                if !disconnect(&node, id, &key).await? {
                    continue;
                }
                true
            }
        };
        return Ok(Json(MqttEnded { client, owner, ended: true, disconnected }));
    }
    Err(no_session())
}

fn publish_will(node: &Node, will: Will) {
    let publication = will.publication(process::unix_ms());
    let publish = Publish { publication, options: Options::default() };
    let done = |result: Result<broker::Published, PublishError>| {
        if let Err(error) = result {
            tracing::warn!(%error, "the will of an MQTT session that was ended was not published");
        }
    };
    node.broker.submit(publish, None, Box::new(done));
}

/// Returns the session of the connection in this slot, if it has this key.
async fn describe(
    node: &Node,
    id: ConnectionId,
    key: &Name,
) -> Result<Option<MqttSessionDetails>, Rejection> {
    let shard = usize::from(id.shard);
    if shard >= node.shards.count() {
        return Ok(None);
    }
    let command = |reply| Command::MqttClient { slot: id.slot, key: key.clone(), reply };
    let replies = node.request(shard, command).all().await?;
    let mut info = replies.into_iter().flat_map(|(_, connections)| connections).next();
    let mqtt = info.as_mut().and_then(|info| info.mqtt.as_mut());
    let filters = mqtt.map(|mqtt| std::mem::take(&mut mqtt.filters)).unwrap_or_default();
    let filters = filters.into_iter().map(Into::into).collect();
    let found = info.and_then(connected);
    Ok(found.map(|(_, session)| MqttSessionDetails { session, filters }))
}

/// Ends the session in this slot together with its connection. Returns false if the slot has another session.
async fn disconnect(node: &Node, id: ConnectionId, key: &Name) -> Result<bool, Rejection> {
    let shard = usize::from(id.shard);
    if shard >= node.shards.count() {
        return Ok(false);
    }
    let command = |reply| Command::MqttEnd { slot: id.slot, key: key.clone(), reply };
    let replies = node.request(shard, command).all().await?;
    Ok(replies.into_iter().any(|had| had))
}

fn no_session() -> Rejection {
    let message = "this client has no MQTT session: /api/mqtt/sessions lists all sessions; for a \
                   session with an owner, add owner=";
    Rejection::new(ErrorCode::NoMqttSession, message)
}

/// Returns the session of a connected MQTT client, and its key in a list.
fn connected(info: ConnectionInfo) -> Option<(String, MqttSession)> {
    let address = address(&info);
    let since = process::unix_seconds().saturating_sub(u64::from(info.age_seconds));
    let ConnectionInfo { id, users, outbox_bytes, mqtt, .. } = info;
    let MqttInfo {
        key,
        version,
        seconds,
        keep_alive_s,
        subscriptions,
        filters: _,
        in_flight,
        waiting,
    } = *mqtt?;
    let session_key = SessionKey::parse(&key);
    let session = MqttSession {
        client: session_key.client.into(),
        owner: session_key.owner.map(Into::into),
        connected: true,
        since,
        expires_at: None,
        expiry_seconds: expiry(seconds),
        subscriptions,
        in_flight,
        waiting,
        position: None,
        connection: Some(MqttConnection {
            id: id.to_string(),
            version,
            address,
            users: users.into_iter().map(String::from).collect(),
            keep_alive_seconds: keep_alive_s,
            outbox_bytes,
        }),
    };
    Some((session_key.to_string(), session))
}

fn expiry(seconds: u32) -> Option<u32> {
    (seconds != WITHOUT_END).then_some(seconds)
}

impl MqttSession {
    fn away(node: &Node, info: &SessionInfo) -> Self {
        let SessionKey { client, owner } = SessionKey::parse(&info.key);
        let position = Position { epoch: node.history().epoch(), offset: info.position };
        MqttSession {
            client: client.into(),
            owner: owner.map(Into::into),
            connected: false,
            since: info.since_s,
            expires_at: info.expires_s,
            expiry_seconds: expiry(info.seconds),
            subscriptions: info.subscriptions,
            in_flight: info.in_flight,
            waiting: info.waiting,
            position: Some(position.to_string()),
            connection: None,
        }
    }
}

impl From<Subscription> for MqttSubscription {
    fn from(subscription: Subscription) -> Self {
        let Subscription { filter, group, options, id, .. } = subscription;
        MqttSubscription {
            filter: filter.into(),
            group: group.map(String::from),
            qos: options.qos.number(),
            no_local: options.no_local,
            retain_as_published: options.retain_as_published,
            id: (id > 0).then_some(id),
        }
    }
}

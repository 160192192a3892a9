//! Revocations of tokens that have not expired.

use std::sync::Arc;

use ::store::StoreError;
use axum::Json;
use axum::extract::State;
use model::ErrorCode;
use model::name::check_name;
use serde::{Deserialize, Serialize};
use token::{AddOutcome, Revocation, Revoked, id_hash};
use tokio::sync::oneshot;
use utoipa::{IntoParams, ToSchema};

use crate::http::{Body, QueryParams, Rejection, checked_limit};
use crate::monitor::process::unix_seconds;
use crate::node::Node;

/// Revocations in one page at most, and by default.
const LIST_MAX: usize = 1_000;

/// The store's records of revocations: the tokens, and when the revocation ends, in seconds since 1970.
pub const REVOCATIONS: &str = "revocations";

/// The longest `jti`, in bytes.
const JTI_BYTES_MAX: usize = 256;

/// The longest time to remember a revocation, in seconds.
const SECONDS_MAX: u64 = 10 * 366 * 86_400;

/// The tokens to revoke: one by its `jti`, a user's, or those of all users.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Revoke {
    /// The token with this `jti`.
    #[schema(example = "3fa2c1")]
    jti: Option<String>,
    /// This user's tokens, even if they name other users, too.
    #[schema(example = "alice")]
    user: Option<String>,
    /// Tokens that were issued at this time or before (`iat`), in seconds since 1970, and tokens without `iat`; with
    /// `user` the default is now.
    #[schema(example = 1_700_000_000)]
    issued_before: Option<u64>,
    /// How long to remember it, in seconds: until the tokens expire. The default is `auth.revocation_seconds`.
    #[schema(example = 86_400)]
    seconds: Option<u64>,
}

/// The result of a revocation.
#[derive(Serialize, ToSchema)]
pub(crate) struct Revoking {
    /// Connections that were closed.
    #[schema(example = 2)]
    closed: u64,
    /// When the server forgets it, in seconds since 1970.
    #[schema(example = 1_702_592_000)]
    until: u64,
}

/// Selects revocations.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RevocationsQuery {
    /// Only revocations after this one: the `next` of the page before.
    after: Option<String>,
    /// How many at most: up to 1,000, which is the default.
    limit: Option<usize>,
}

/// A page of the revocations in force.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct RevocationList {
    /// How many there are in all.
    #[schema(example = 1)]
    count: usize,
    /// The revocations of this page.
    pub(super) revocations: Vec<RevocationItem>,
    /// The `after` of the next page; null on the last page.
    // A node of an earlier version has no pages.
    #[serde(default)]
    pub(super) next: Option<String>,
}

/// A revocation.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct RevocationItem {
    /// The token with this `jti`.
    #[serde(skip_serializing_if = "Option::is_none")]
    jti: Option<String>,
    /// This user's tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// Tokens that were issued at this time or before, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    issued_before: Option<u64>,
    /// When the server forgets it, in seconds since 1970.
    until: u64,
}

impl RevocationItem {
    /// Returns the revocation, if the fields of an item from another node are one.
    pub(super) fn revocation(self) -> Option<Revocation> {
        let revoked = match (self.jti, self.user, self.issued_before) {
            (Some(jti), None, None) => Revoked::Jti(jti),
            (None, Some(user), Some(issued_before)) => Revoked::User { user, issued_before },
            (None, None, Some(before)) => Revoked::IssuedBefore(before),
            _ => return None,
        };
        Some(Revocation { revoked, until: self.until })
    }
}

impl Revoke {
    /// Returns the tokens that it revokes.
    fn revoked(&self, now_s: u64) -> Result<Revoked, Rejection> {
        let bad = |message: &'static str| Rejection::new(ErrorCode::BadRequest, message);
        match (&self.jti, &self.user, self.issued_before) {
            (Some(jti), None, None) if (1..=JTI_BYTES_MAX).contains(&jti.len()) => {
                Ok(Revoked::Jti(jti.clone()))
            }
            (Some(_), None, None) => Err(bad("a jti must have 1 to 256 bytes")),
            (None, Some(user), before) => {
                check_name(user).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
                let issued_before = before.unwrap_or(now_s);
                Ok(Revoked::User { user: user.clone(), issued_before })
            }
            (None, None, Some(before)) => Ok(Revoked::IssuedBefore(before)),
            (None, None, None) | (Some(_), _, _) => Err(bad(
                "name the tokens: jti, or user (with or without issued_before), or issued_before",
            )),
        }
    }
}

/// Revoke tokens, and close their connections with `token_revoked` (4403 on a WebSocket): in a cluster at all nodes. With
/// a store, the response comes when the revocation is stored.
#[utoipa::path(post, path = "/api/revoke", tag = "tokens", request_body = Revoke, responses(
    (status = 200, body = Revoking),
    (status = 409, description = "This server does not use tokens, or is at its limit on revocations")))]
pub(crate) async fn revoke(
    State(node): State<Arc<Node>>,
    Body(revoke): Body<Revoke>,
) -> Result<Json<Revoking>, Rejection> {
    let (has_tokens, max, default_s) = {
        let live = node.live();
        (live.has_tokens, live.revocations_max, live.revocation_seconds)
    };
    if !has_tokens {
        let message = "this server does not use tokens: configure them in [auth]";
        return Err(Rejection::new(ErrorCode::NoTokens, message));
    }
    let now_s = unix_seconds();
    let revoked = revoke.revoked(now_s)?;
    let seconds = revoke.seconds.unwrap_or(default_s);
    if !(1..=SECONDS_MAX).contains(&seconds) {
        let message = "seconds must be from 1 to 316224000";
        return Err(Rejection::new(ErrorCode::BadRequest, message));
    }
    let revocation = Revocation { revoked, until: now_s + seconds };
    if node.revocations.add(&revocation, max) == AddOutcome::Full {
        let message = "the limit on revocations is reached (auth.revocations_max): raise it, or \
                       revoke all tokens that were issued before a time";
        return Err(Rejection::new(ErrorCode::TooManyRevocations, message));
    }
    let mut of_shards = of_shards(&revocation.revoked);
    // The token of a connection that is open was issued before now, whatever its issuer's clock says.
    of_shards.before_s = of_shards.before_s.filter(|_| revoke.issued_before.is_some());
    let closed = enforce(&node, &revocation, of_shards).await?;
    Ok(Json(Revoking { closed, until: revocation.until }))
}

/// Closes the connections of the revoked tokens, and stores the revocation. Returns how many connections it has closed.
pub(super) async fn enforce(
    node: &Node,
    revocation: &Revocation,
    of_shards: shard::Revocation,
) -> Result<u64, Rejection> {
    let stored = store(node, revocation);
    let closing =
        node.request_all(|reply| shard::Command::Revoke { revocation: of_shards.clone(), reply });
    let closed = closing.all().await?.into_iter().map(u64::from).sum();
    // The closed connections leave no wills. Sessions whose connections ended before may still have one.
    node.shared.mqtt_sessions.drop_wills(&|author| of_shards.means(author));
    if let Some(stored) = stored? {
        stored.await.map_err(|_| Rejection::going_down())?.map_err(|error| not_stored(&error))?;
    }
    Ok(closed)
}

type Stored = oneshot::Receiver<Result<(), StoreError>>;

/// Begins to store a revocation, if the node has a store.
fn store(node: &Node, revocation: &Revocation) -> Result<Option<Stored>, Rejection> {
    let Some(store) = &node.store else {
        return Ok(None);
    };
    let (done, stored) = oneshot::channel();
    let value: Box<[u8]> = revocation.until.to_le_bytes().into();
    let puts = vec![(revocation.revoked.key().into(), Some(value))];
    let done = Box::new(move |result| drop(done.send(result)));
    store.put_records(REVOCATIONS, puts, done).map_err(|error| not_stored(&error))?;
    Ok(Some(stored))
}

fn not_stored(error: &dyn std::error::Error) -> Rejection {
    let message = format!(
        "the tokens are revoked, but the revocation could not be stored and will be lost at a \
         restart: {error}"
    );
    Rejection::new(ErrorCode::NotStored, message)
}

/// Deletes expired revocations from the store.
pub(crate) fn forget(node: &Node, gone: Vec<Revoked>) {
    let Some(store) = node.store.as_ref().filter(|_| !gone.is_empty()) else {
        return;
    };
    let puts = gone.iter().map(|revoked| (revoked.key().into(), None)).collect();
    // The next start deletes those that stay.
    if let Err(error) = store.put_records(REVOCATIONS, puts, Box::new(|_| ())) {
        tracing::debug!(%error, "old revocations could not be deleted from the store");
    }
}

/// The revocations that a node remembers, a page at a time.
#[utoipa::path(get, path = "/api/revocations", tag = "tokens", params(RevocationsQuery), responses(
    (status = 200, body = RevocationList)))]
pub(crate) async fn revocations(
    State(node): State<Arc<Node>>,
    QueryParams(query): QueryParams<RevocationsQuery>,
) -> Result<Json<RevocationList>, Rejection> {
    let limit = checked_limit(query.limit, LIST_MAX, LIST_MAX)?;
    // One more shows whether there is a next page.
    let mut page = node.revocations.page(&query.after.unwrap_or_default(), limit + 1);
    let has_next = page.len() > limit;
    page.truncate(limit);
    let next = page.last().filter(|_| has_next).map(|last| last.revoked.key());
    let item = |Revocation { revoked, until }| {
        let (jti, user, issued_before) = match revoked {
            Revoked::Jti(jti) => (Some(jti), None, None),
            Revoked::User { user, issued_before } => (None, Some(user), Some(issued_before)),
            Revoked::IssuedBefore(before) => (None, None, Some(before)),
        };
        RevocationItem { jti, user, issued_before, until }
    };
    let revocations = page.into_iter().map(item).collect();
    Ok(Json(RevocationList { count: node.revocations.count(), revocations, next }))
}

/// Returns the revocation as shards get it.
pub fn of_shards(revoked: &Revoked) -> shard::Revocation {
    let seconds = |at: u64| Some(u32::try_from(at).unwrap_or(u32::MAX));
    match revoked {
        Revoked::Jti(jti) => {
            shard::Revocation { id_hash: Some(id_hash(jti)), ..Default::default() }
        }
        Revoked::User { user, issued_before } => shard::Revocation {
            user: Some(user.as_str().into()),
            before_s: seconds(*issued_before),
            id_hash: None,
        },
        Revoked::IssuedBefore(before) => {
            shard::Revocation { before_s: seconds(*before), ..Default::default() }
        }
    }
}

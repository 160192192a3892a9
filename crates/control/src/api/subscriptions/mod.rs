//! Durable subscriptions: the topics that a user enters on connect, changed one by one, in bulk, or
//! from a file.
//!
//! A change is stored before it is applied, so that a restart finds the topics that connections have entered. A
//! change that can't be stored has no effect. Meanwhile other changes of the same user wait for their turn, for the
//! store writes each row whole. A change runs in a task of its own: a caller that goes away leaves nothing half done.
//!
//! If PostgreSQL has the subscriptions, it computes the changes (`database`), because other nodes change them as well.

mod commit;
pub(super) mod database;
pub(super) mod subscribers;

use std::sync::Arc;

use ::subscriptions::{Change, EditError, Edited, Plan, csv};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, Path, Request, State};
use model::name::check_name;
use model::{ErrorCode, Name};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::http::{Body, ErrorBody, Rejection, check_media, parse, path_name, whole_body};
use crate::node::{Node, UserLock};
use commit::commit;

/// Changes in one call.
const CHANGES_MAX: usize = 1_000;

/// Rows, or changes, that are planned before other tasks of this thread run.
const ROWS_AT_ONCE: usize = 4_096;
const CHANGES_AT_ONCE: usize = 64;

/// A change of one user's topics (`user`, `add`, `remove`), or of many users' (`changes`).
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subscribe {
    /// The user need not be connected.
    #[schema(example = "alice")]
    user: Option<String>,
    /// Topics to enter on every connect from now on, and at once if the user is connected.
    #[schema(example = json!(["feed:bob"]))]
    add: Option<Vec<String>>,
    /// Topics to leave, before those of `add` are entered.
    #[schema(example = json!(["feed:eve"]))]
    remove: Option<Vec<String>>,
    /// At most 1,000, instead of the other fields: all valid ones are done, in order.
    #[schema(value_type = Option<Vec<UserChange>>)]
    changes: Option<Vec<Box<RawValue>>>,
}

/// A change of one user's topics.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserChange {
    #[schema(example = "alice")]
    user: String,
    /// Topics to enter.
    #[serde(default)]
    #[schema(example = json!(["feed:bob"]))]
    add: Vec<String>,
    /// Topics to leave, before those of `add` are entered.
    #[serde(default)]
    remove: Vec<String>,
}

/// The result of a change of a user's topics.
#[derive(Serialize, ToSchema)]
pub(crate) struct Changed {
    #[schema(example = "alice")]
    user: String,
    /// Topics that the user didn't have.
    #[schema(example = 1)]
    added: usize,
    /// Topics that the user had.
    #[schema(example = 1)]
    removed: usize,
    /// Topics that the user has now.
    #[schema(example = 17)]
    count: usize,
    /// Open connections of the user at this node that enter and leave, 0 if nothing changed; null if a shard did not
    /// reply in 5 seconds: it may still do it.
    #[schema(example = 2)]
    connections: Option<u64>,
}

/// The result of one change, or of many, in their order.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Answer {
    /// Of one user.
    One(Changed),
    /// Of many.
    Many {
        /// One for each change.
        results: Vec<ChangeResult>,
    },
}

/// The result of one of many changes.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ChangeResult {
    /// It was done.
    Done {
        /// The user's topics.
        ok: Changed,
    },
    /// It was not done; others were.
    Rejected(ErrorBody),
}

/// A user's topics.
#[derive(Serialize, ToSchema)]
pub(crate) struct UserTopics {
    #[schema(example = "alice")]
    user: String,
    /// Sorted by name.
    #[schema(example = json!(["feed:bob"]))]
    topics: Vec<String>,
}

/// The result of an import.
#[derive(Serialize, ToSchema)]
pub(crate) struct Imported {
    /// Rows in the body.
    #[schema(example = 50_000)]
    rows: usize,
    /// Rows that were not subscriptions before.
    #[schema(example = 49_871)]
    added: usize,
}

/// Change which topics users enter on connect. Their open connections enter and leave at once. With a store, the
/// response comes when the change is stored.
#[utoipa::path(post, path = "/api/subscriptions", tag = "subscriptions", request_body = Subscribe,
    responses((status = 200, body = Answer),
    (status = 409, body = ErrorBody,
        description = "The user would have too many (history.subscriptions_per_user_max), or all users together \
                       (history.subscriptions_max)")))]
pub(crate) async fn change(
    State(node): State<Arc<Node>>,
    Body(body): Body<Subscribe>,
) -> Result<Json<Answer>, Rejection> {
    match body {
        Subscribe { user: Some(user), add, remove, changes: None } => {
            let (add, remove) = (add.unwrap_or_default(), remove.unwrap_or_default());
            change_one(node, UserChange { user, add, remove }).await
        }
        Subscribe { user: None, add: None, remove: None, changes: Some(changes) } => {
            change_many(node, changes).await
        }
        _ => Err(Rejection::new(
            ErrorCode::BadRequest,
            "send either user, add and remove, or changes",
        )),
    }
    .map(Json)
}

/// A user's topics; none for an unknown user.
#[utoipa::path(get, path = "/api/subscriptions/{user}", tag = "subscriptions",
    params(("user" = String, Path, description = "The user, percent-encoded")), responses(
    (status = 200, body = UserTopics)))]
pub(crate) async fn list(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<UserTopics>, Rejection> {
    let user = path_name(name)?;
    check_name(&user).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
    let mut topics: Vec<String> =
        node.subscriptions.of(&user).into_iter().map(String::from).collect();
    topics.sort_unstable();
    Ok(Json(UserTopics { user, topics }))
}

/// Remove all topics from a user. Open connections leave them at once.
#[utoipa::path(delete, path = "/api/subscriptions/{user}", tag = "subscriptions",
    params(("user" = String, Path, description = "The user, percent-encoded")), responses(
    (status = 200, body = Changed)))]
pub(crate) async fn clear(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Changed>, Rejection> {
    let user = path_name(name)?;
    if let Some(database) = &node.subscription_database {
        return database::clear(&node, database, user).await.map(Json);
    }
    let lock = node.subscription_locks.of([user.as_str()].into_iter()).await;
    let mut plan = node.subscriptions.plan(0);
    let edited = plan.set(&user, &[])?;
    let change = plan.change();
    Ok(Json(commit_one(node, user, change, edited, lock).await?))
}

/// Subscribe many users at once: lines of `user,topic`. A body with a bad line changes nothing.
#[utoipa::path(post, path = "/api/subscriptions/import", tag = "subscriptions",
    request_body(content = String, content_type = "text/csv",
        description = "One `user,topic` per line, with that as an optional header; quoting as in RFC 4180"),
    responses((status = 200, body = Imported),
    (status = 400, body = ErrorBody, description = "A line is invalid; the message begins with its number"),
    (status = 409, body = ErrorBody,
        description = "A user would have too many (history.subscriptions_per_user_max), or all users together \
                       (history.subscriptions_max)"),
    (status = 415, body = ErrorBody,
        description = "The Content-Type is not CSV: send Content-Type: text/csv")))]
pub(crate) async fn import(
    State(node): State<Arc<Node>>,
    Csv(text): Csv,
) -> Result<Json<Imported>, Rejection> {
    if let Some(database) = &node.subscription_database {
        return database::import(&node, database, &text).await.map(Json);
    }
    let lock = node.subscription_locks.of_all().await;
    let mut plan = node.subscriptions.plan(max(&node));
    let (rows, edits) = plan_rows(&mut plan, &text).await?;
    let change = plan.change();
    let added = edits.iter().map(|(_, edited)| edited.added.len()).sum();
    commit(node, change, edits, lock).await?;
    Ok(Json(Imported { rows, added }))
}

/// The name of a user that is also the path of a call.
pub(crate) const IMPORT: &str = "import";

/// A CSV body.
pub(crate) struct Csv(Bytes);

impl FromRequest<Arc<Node>> for Csv {
    type Rejection = Rejection;

    async fn from_request(request: Request, node: &Arc<Node>) -> Result<Self, Rejection> {
        check_media(request.headers(), "text/csv")?;
        whole_body(request, &**node).await.map(Csv)
    }
}

impl From<EditError> for Rejection {
    fn from(error: EditError) -> Self {
        let message = error.to_string();
        match error {
            EditError::TooMany { .. } => {
                let message = format!("{message} (history.subscriptions_per_user_max)");
                Rejection::new(ErrorCode::TooManySubscriptions, message)
            }
            EditError::User(_) => Rejection::new(ErrorCode::BadUser, message),
            EditError::Topic(..) => Rejection::new(ErrorCode::BadTopic, message),
            EditError::Full(_) => Rejection::new(ErrorCode::NamesFull, message),
        }
    }
}

fn max(node: &Node) -> usize {
    node.live().subscriptions_per_user_max
}

fn texts(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

impl UserChange {
    fn plan(&self, plan: &mut Plan) -> Result<Edited, Rejection> {
        Ok(plan.edit(&self.user, &texts(&self.add), &texts(&self.remove))?)
    }
}

impl Changed {
    fn new(user: String, edited: &Edited, connections: Option<u64>) -> Self {
        let (added, removed) = (edited.added.len(), edited.removed.len());
        Changed { user, added, removed, count: edited.count, connections }
    }
}

async fn change_one(node: Arc<Node>, change: UserChange) -> Result<Answer, Rejection> {
    if let Some(database) = &node.subscription_database {
        return database::change_one(&node, database, &change).await.map(Answer::One);
    }
    let lock = node.subscription_locks.of([change.user.as_str()].into_iter()).await;
    let mut plan = node.subscriptions.plan(max(&node));
    let edited = change.plan(&mut plan)?;
    let planned = plan.change();
    commit_one(node, change.user, planned, edited, lock).await.map(Answer::One)
}

async fn commit_one(
    node: Arc<Node>,
    user: String,
    change: Change,
    edited: Edited,
    lock: UserLock,
) -> Result<Changed, Rejection> {
    let edits = vec![(Name::from(user.as_str()), edited)];
    let committed = commit(node, change, edits, lock).await?.pop();
    let ((_, edited), connections) = committed.ok_or_else(Rejection::going_down)?;
    Ok(Changed::new(user, &edited, connections))
}

async fn change_many(node: Arc<Node>, changes: Vec<Box<RawValue>>) -> Result<Answer, Rejection> {
    if changes.len() > CHANGES_MAX {
        let message = format!("a call may have at most {CHANGES_MAX} changes");
        return Err(Rejection::new(ErrorCode::BatchTooLong, message));
    }
    let parsed: Vec<Result<UserChange, Rejection>> =
        changes.iter().map(|change| parse(change.get().as_bytes())).collect();
    if let Some(database) = &node.subscription_database {
        let results = database::change_many(&node, database, parsed).await?;
        return Ok(Answer::Many { results });
    }
    let users = parsed.iter().flatten().map(|change| change.user.as_str());
    let lock = node.subscription_locks.of(users).await;
    let mut plan = node.subscriptions.plan(max(&node));
    let (mut edits, mut rejected) = (Vec::new(), Vec::new());
    for (at, change) in parsed.into_iter().enumerate() {
        match change.and_then(|change| Ok((change.plan(&mut plan)?, change.user))) {
            Ok((edited, user)) => edits.push((Name::from(user), edited)),
            Err(rejection) => rejected.push((at, ChangeResult::Rejected(rejection.body()))),
        }
        if at % CHANGES_AT_ONCE == CHANGES_AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
    }
    let change = plan.change();
    let committed = commit(node, change, edits, lock).await?;
    let mut results: Vec<ChangeResult> = committed
        .into_iter()
        .map(|((user, edited), connections)| ChangeResult::Done {
            ok: Changed::new(user.into(), &edited, connections),
        })
        .collect();
    // The indexes ascend, so each is right at its insertion.
    for (at, result) in rejected {
        results.insert(at, result);
    }
    Ok(Answer::Many { results })
}

/// Plans all rows of a text. Returns their number, and the edits of users.
async fn plan_rows(
    plan: &mut Plan<'_>,
    text: &[u8],
) -> Result<(usize, Vec<(Name, Edited)>), Rejection> {
    let mut rows = csv::rows(text).peekable();
    let (mut count, mut since_yield, mut edits) = (0, 0, Vec::new());
    while let Some(first) = rows.next() {
        let first = first.map_err(|error| Rejection::new(ErrorCode::BadLine, error.to_string()))?;
        let mut topics = vec![first.topic];
        while topics.len() < ROWS_AT_ONCE
            && let Some(Ok(row)) =
                rows.next_if(|row| row.as_ref().is_ok_and(|row| row.user == first.user))
        {
            topics.push(row.topic);
        }
        count += topics.len();
        since_yield += topics.len();
        let topics: Vec<&str> = topics.iter().map(|topic| &**topic).collect();
        let edited = plan.edit(&first.user, &topics, &[]).map_err(|error| {
            let rejection = Rejection::from(error);
            let message = format!("line {}: {}", first.line, rejection.message);
            Rejection { message, ..rejection }
        })?;
        if !edited.added.is_empty() {
            edits.push((Name::from(&*first.user), edited));
        }
        if since_yield >= ROWS_AT_ONCE {
            since_yield = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok((count, edits))
}

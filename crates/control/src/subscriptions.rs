//! Durable subscriptions: the topics that a user enters on connect, changed one by one, in bulk, or
//! from a file.
//!
//! A change is kept first and made after, so that what a connection enters is what a restart would
//! find; one that can't be kept changes nothing. While it is on its way, others of the same user
//! wait ([`Turns`]), for each row is kept whole. All of it runs in a task of its own: a caller who
//! goes away leaves nothing half done.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError};

use ::subscriptions::{Change, EditError, Edited, Plan, csv};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use shard::Command;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};
use utoipa::ToSchema;
use wire::Name;
use wire::message::{check_name, personal};

use crate::Node;
use crate::api::{Body, check_media, parse, whole};
use crate::error::{ErrorBody, Refused, bad, refused};
use crate::inspect::path;
use crate::shards::Answers;

/// Changes in one call.
const CHANGES_MAX: usize = 1_000;

/// Rows that are planned, or changes, before others of this thread have their turn.
const ROWS_AT_ONCE: usize = 4_096;
const CHANGES_AT_ONCE: usize = 64;

/// Users whom the shards are asked about at a time.
const USERS_AT_ONCE: usize = 256;

/// Lets the changes of a user go one after the other, and those of others meanwhile: a lock for
/// each of 64 groups of users.
pub struct Turns {
    keys: RandomState,
    locks: [Arc<Mutex<()>>; 64],
}

/// As long as it lives, nobody else changes the subscriptions of these users.
type Turn = Vec<OwnedMutexGuard<()>>;

impl Default for Turns {
    fn default() -> Self {
        Turns { keys: RandomState::new(), locks: std::array::from_fn(|_| Arc::default()) }
    }
}

impl Turns {
    async fn of(&self, users: impl Iterator<Item = &str>) -> Turn {
        let place = |user| self.keys.hash_one(user) as usize % self.locks.len();
        self.take(users.map(place).collect()).await
    }

    async fn of_all(&self) -> Turn {
        self.take((0..self.locks.len()).collect()).await
    }

    /// Everybody takes the locks in the same order, so that nobody waits for ever.
    async fn take(&self, places: BTreeSet<usize>) -> Turn {
        let mut turn = Vec::with_capacity(places.len());
        for place in places {
            turn.push(self.locks[place].clone().lock_owned().await);
        }
        turn
    }
}

/// A change of one user's topics (`user`, `add`, `remove`), or of many users' (`changes`).
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subscribe {
    /// The user need not be here.
    #[schema(example = "alice")]
    user: Option<String>,
    /// Topics to enter on every connect from now on, and at once where the user is here.
    #[schema(example = json!(["feed:bob"]))]
    add: Option<Vec<String>>,
    /// Topics to leave, before those of `add` are entered.
    #[schema(example = json!(["feed:eve"]))]
    remove: Option<Vec<String>>,
    /// At most 1,000, instead of the other fields: all that are good are done, in order.
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

/// What became of a user's topics.
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
    /// Open connections of the user that were told to enter and to leave, 0 where nothing changed;
    /// null when a shard did not answer in 5 seconds, and may still do it.
    #[schema(example = 2)]
    connections: Option<u64>,
}

/// The answer to one change, or to many, in their order.
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

/// The answer to one of many changes.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ChangeResult {
    /// It was done.
    Done {
        /// What became of the user's topics.
        ok: Changed,
    },
    /// It was not done; others were.
    Refused(ErrorBody),
}

/// A user's topics.
#[derive(Serialize, ToSchema)]
pub(crate) struct UserTopics {
    #[schema(example = "alice")]
    user: String,
    /// By name.
    #[schema(example = json!(["feed:bob"]))]
    topics: Vec<String>,
}

/// What an import did.
#[derive(Serialize, ToSchema)]
pub(crate) struct Imported {
    /// Rows in the body.
    #[schema(example = 50_000)]
    rows: usize,
    /// Those that were not there yet.
    #[schema(example = 49_871)]
    added: usize,
}

/// Change which topics users enter on connect. Their open connections enter and leave at once.
/// Answered when the change is kept, where a store is configured.
#[utoipa::path(post, path = "/api/subscriptions", tag = "subscriptions", request_body = Subscribe,
    responses((status = 200, body = Answer),
    (status = 409, body = ErrorBody,
        description = "The user would have too many (history.subscriptions_per_user_max)")))]
pub(crate) async fn change(
    State(node): State<Arc<Node>>,
    Body(asked): Body<Subscribe>,
) -> Result<Json<Answer>, Refused> {
    match asked {
        Subscribe { user: Some(user), add, remove, changes: None } => {
            let (add, remove) = (add.unwrap_or_default(), remove.unwrap_or_default());
            change_one(node, UserChange { user, add, remove }).await
        }
        Subscribe { user: None, add: None, remove: None, changes: Some(changes) } => {
            change_many(node, changes).await
        }
        _ => Err(bad("bad_request", "say either user, add and remove, or changes")),
    }
    .map(Json)
}

/// A user's topics; none for somebody who is not known.
#[utoipa::path(get, path = "/api/subscriptions/{user}", tag = "subscriptions",
    params(("user" = String, Path, description = "The user, percent-encoded")), responses(
    (status = 200, body = UserTopics)))]
pub(crate) async fn list(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<UserTopics>, Refused> {
    let user = path(name)?;
    check_name(&user).map_err(|wrong| bad("bad_user", wrong))?;
    let mut topics: Vec<String> =
        node.subscriptions.of(&user).into_iter().map(String::from).collect();
    topics.sort_unstable();
    Ok(Json(UserTopics { user, topics }))
}

/// Take all topics from a user. Open connections leave them at once.
#[utoipa::path(delete, path = "/api/subscriptions/{user}", tag = "subscriptions",
    params(("user" = String, Path, description = "The user, percent-encoded")), responses(
    (status = 200, body = Changed)))]
pub(crate) async fn clear(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Changed>, Refused> {
    let user = path(name)?;
    let turn = node.subscription_turns.of([user.as_str()].into_iter()).await;
    let mut plan = node.subscriptions.plan(0);
    let edited = plan.set(&user, &[])?;
    let change = plan.change();
    Ok(Json(settle_one(node, user, change, edited, turn).await?))
}

/// Subscribe many users at once: lines of `user,topic`. A body with a bad line changes nothing.
#[utoipa::path(post, path = "/api/subscriptions/import", tag = "subscriptions",
    request_body(content = String, content_type = "text/csv",
        description = "`user,topic` a line, with that as a header or without; RFC 4180 quoting"),
    responses((status = 200, body = Imported),
    (status = 400, body = ErrorBody, description = "A line is bad; the message begins with its number"),
    (status = 409, body = ErrorBody,
        description = "A user would have too many (history.subscriptions_per_user_max)"),
    (status = 415, body = ErrorBody, description = "The body is not sent as text/csv")))]
pub(crate) async fn import(
    State(node): State<Arc<Node>>,
    Csv(text): Csv,
) -> Result<Json<Imported>, Refused> {
    let turn = node.subscription_turns.of_all().await;
    let mut plan = node.subscriptions.plan(max(&node));
    let (rows, edits) = plan_rows(&mut plan, &text).await?;
    let change = plan.change();
    let added = edits.iter().map(|(_, edited)| edited.added.len()).sum();
    settle(node, change, edits, turn).await?;
    Ok(Json(Imported { rows, added }))
}

/// A user whose name is a path of its own.
pub(crate) const IMPORT: &str = "import";

/// A CSV body.
pub(crate) struct Csv(Bytes);

impl FromRequest<Arc<Node>> for Csv {
    type Rejection = Refused;

    async fn from_request(request: Request, node: &Arc<Node>) -> Result<Self, Refused> {
        check_media(request.headers(), "text/csv")?;
        whole(request, node).await.map(Csv)
    }
}

impl From<EditError> for Refused {
    fn from(error: EditError) -> Self {
        let message = error.to_string();
        match error {
            EditError::TooMany { .. } => {
                let message = format!("{message} (history.subscriptions_per_user_max)");
                refused(StatusCode::CONFLICT, "too_many_subscriptions", message)
            }
            EditError::BadUser(_) => bad("bad_user", message),
            EditError::BadTopic(..) => bad("bad_topic", message),
            EditError::Full(_) => refused(StatusCode::INSUFFICIENT_STORAGE, "names_full", message),
        }
    }
}

fn max(node: &Node) -> usize {
    node.live.read().unwrap_or_else(PoisonError::into_inner).subscriptions_per_user_max
}

fn texts(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

impl UserChange {
    fn plan(&self, plan: &mut Plan) -> Result<Edited, Refused> {
        Ok(plan.edit(&self.user, &texts(&self.add), &texts(&self.remove))?)
    }
}

impl Changed {
    fn new(user: String, edited: &Edited, connections: Option<u64>) -> Self {
        let (added, removed) = (edited.added.len(), edited.removed.len());
        Changed { user, added, removed, count: edited.count, connections }
    }
}

async fn change_one(node: Arc<Node>, asked: UserChange) -> Result<Answer, Refused> {
    let turn = node.subscription_turns.of([asked.user.as_str()].into_iter()).await;
    let mut plan = node.subscriptions.plan(max(&node));
    let edited = asked.plan(&mut plan)?;
    let change = plan.change();
    settle_one(node, asked.user, change, edited, turn).await.map(Answer::One)
}

async fn settle_one(
    node: Arc<Node>,
    user: String,
    change: Change,
    edited: Edited,
    turn: Turn,
) -> Result<Changed, Refused> {
    let edits = vec![(Name::from(user.as_str()), edited)];
    let settled = settle(node, change, edits, turn).await?.pop();
    let ((_, edited), connections) = settled.ok_or_else(Refused::gone)?;
    Ok(Changed::new(user, &edited, connections))
}

async fn change_many(node: Arc<Node>, changes: Vec<Box<RawValue>>) -> Result<Answer, Refused> {
    if changes.len() > CHANGES_MAX {
        let message = format!("a call has at most {CHANGES_MAX} changes");
        return Err(bad("batch_too_long", message));
    }
    let parsed: Vec<Result<UserChange, Refused>> =
        changes.iter().map(|change| parse(change.get().as_bytes())).collect();
    let users = parsed.iter().flatten().map(|change| change.user.as_str());
    let turn = node.subscription_turns.of(users).await;
    let mut plan = node.subscriptions.plan(max(&node));
    let (mut edits, mut wrong) = (Vec::new(), Vec::new());
    for (at, change) in parsed.into_iter().enumerate() {
        match change.and_then(|change| Ok((change.plan(&mut plan)?, change.user))) {
            Ok((edited, user)) => edits.push((Name::from(user), edited)),
            Err(refused) => wrong.push((at, ChangeResult::Refused(refused.body()))),
        }
        if at % CHANGES_AT_ONCE == CHANGES_AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
    }
    let change = plan.change();
    let settled = settle(node, change, edits, turn).await?;
    let mut results: Vec<ChangeResult> = settled
        .into_iter()
        .map(|((user, edited), connections)| ChangeResult::Done {
            ok: Changed::new(user.into(), &edited, connections),
        })
        .collect();
    // In ascending order, so each place is right when its turn comes.
    for (at, refused) in wrong {
        results.insert(at, refused);
    }
    Ok(Answer::Many { results })
}

/// Plans all rows of a text: how many there are, and what becomes of whom.
async fn plan_rows(
    plan: &mut Plan<'_>,
    text: &[u8],
) -> Result<(usize, Vec<(Name, Edited)>), Refused> {
    let mut rows = csv::rows(text).peekable();
    let (mut count, mut since, mut edits) = (0, 0, Vec::new());
    while let Some(first) = rows.next() {
        let first = first.map_err(|wrong| bad("bad_line", wrong.to_string()))?;
        let mut topics = vec![first.topic];
        while topics.len() < ROWS_AT_ONCE
            && let Some(Ok(row)) =
                rows.next_if(|row| row.as_ref().is_ok_and(|row| row.user == first.user))
        {
            topics.push(row.topic);
        }
        count += topics.len();
        since += topics.len();
        let topics: Vec<&str> = topics.iter().map(|topic| &**topic).collect();
        let edited = plan.edit(&first.user, &topics, &[]).map_err(|error| {
            let refused = Refused::from(error);
            Refused { message: format!("line {}: {}", first.line, refused.message), ..refused }
        })?;
        if !edited.added.is_empty() {
            edits.push((Name::from(&*first.user), edited));
        }
        if since >= ROWS_AT_ONCE {
            since = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok((count, edits))
}

/// A user's edit, and how many open connections it reached, where that is known.
type Settled = ((Name, Edited), Option<u64>);

/// Keeps what was planned, makes it so, and tells the connections.
async fn settle(
    node: Arc<Node>,
    change: Change,
    edits: Vec<(Name, Edited)>,
    turn: Turn,
) -> Result<Vec<Settled>, Refused> {
    let task = tokio::spawn(async move {
        keep(&node, &change).await?;
        node.subscriptions.apply(&change);
        let told = tell(&node, &edits).await;
        // What the shards are told of the next change comes after this one, in their mailboxes.
        drop(turn);
        let mut settled = Vec::with_capacity(edits.len());
        for (edit, told) in edits.into_iter().zip(told) {
            settled.push((edit, told.connections().await));
        }
        Ok(settled)
    });
    task.await.unwrap_or_else(|_| Err(Refused::gone()))
}

async fn keep(node: &Node, change: &Change) -> Result<(), Refused> {
    let Some(keep) = node.keep_subscriptions.as_ref().filter(|_| !change.is_empty()) else {
        return Ok(());
    };
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    let (done, kept) = oneshot::channel();
    let done = Box::new(move |result| {
        // The task that waits is gone only when the process ends.
        let _ = done.send(result);
    });
    keep.keep(change.clone(), done).map_err(|why| {
        refused(unavailable, "store_busy", format!("the subscriptions are as before: {why}"))
    })?;
    kept.await.map_err(|_| Refused::gone())?.map_err(|why| {
        refused(unavailable, "store_failed", format!("the subscriptions are as before: {why}"))
    })
}

/// What one user's connections were told.
#[derive(Default)]
struct Told {
    connections: u64,
    /// A shard did not say how many it has.
    is_unknown: bool,
    answers: Vec<Answers<u32>>,
}

impl Told {
    async fn connections(self) -> Option<u64> {
        let mut is_known = !self.is_unknown;
        for answer in self.answers {
            is_known &= answer.all().await.is_ok();
        }
        is_known.then_some(self.connections)
    }
}

/// Has the open connections of users enter and leave topics, on the shards where they have any.
/// Who connects later finds the table changed. A shard that doesn't say whom it has is told all.
async fn tell(node: &Node, edits: &[(Name, Edited)]) -> Vec<Told> {
    let mut all_told = Vec::with_capacity(edits.len());
    let mut silent = vec![false; node.shards.count()];
    for edits in edits.chunks(USERS_AT_ONCE) {
        let asked: Vec<Vec<Option<Answers<u32>>>> =
            edits.iter().map(|edit| ask(node, edit, &silent)).collect();
        for ((user, edited), asked) in edits.iter().zip(asked) {
            let mut told = Told::default();
            for (shard, asked) in asked.into_iter().enumerate() {
                let answers = match asked {
                    Some(asked) => asked.all().await.ok(),
                    None => None,
                };
                match answers {
                    Some(counts) if counts.iter().all(|count| *count == 0) => continue,
                    Some(counts) => {
                        told.connections += counts.into_iter().map(u64::from).sum::<u64>();
                    }
                    None => {
                        silent[shard] = true;
                        told.is_unknown = true;
                    }
                }
                send(node, shard, user, edited, &mut told.answers);
            }
            all_told.push(told);
        }
    }
    all_told
}

/// Asks each shard that is not known to be silent how many connections the user has there; no
/// shard about somebody for whom nothing changed.
fn ask(node: &Node, (user, edited): &(Name, Edited), silent: &[bool]) -> Vec<Option<Answers<u32>>> {
    if edited.added.is_empty() && edited.removed.is_empty() {
        return Vec::new();
    }
    let topic = personal(user);
    let ask = |shard| node.ask(shard, |reply| Command::Topic { topic: topic.clone(), reply });
    silent.iter().enumerate().map(|(shard, silent)| (!silent).then(|| ask(shard))).collect()
}

fn send(node: &Node, shard: usize, user: &Name, edited: &Edited, answers: &mut Vec<Answers<u32>>) {
    for topic in &edited.removed {
        answers.push(node.ask(shard, |reply| Command::Unsubscribe {
            user: user.clone(),
            topic: topic.clone(),
            reply,
        }));
    }
    for topic in &edited.added {
        answers.push(node.ask(shard, |reply| Command::Subscribe {
            user: user.clone(),
            topic: topic.clone(),
            reply,
        }));
    }
}

//! Changes of subscriptions that are in PostgreSQL, which several nodes share.

use std::collections::HashMap;
use std::sync::Arc;

use ::subscriptions::{EditError, Edited, check_names, csv};
use model::name::personal;
use model::{ErrorCode, Name};
use shard::Command;
use subscriptions_postgres::{
    Applying, Connections, DatabaseEditError, EditOutcome, EditReply, Edits, Postgres, UserEdit,
};

use super::commit::{enter_and_leave, full};
use super::{CHANGES_AT_ONCE, ChangeResult, Changed, Imported, ROWS_AT_ONCE, UserChange, max};
use crate::http::Rejection;
use crate::node::{Node, ShardReplies};

/// Applies changes of all nodes to the connections of this one.
pub(crate) struct NodeConnections(pub Arc<Node>);

impl Connections for NodeConnections {
    fn work(&self) -> Option<Box<dyn Send>> {
        self.0.upgrades.gate.work().map(|working| Box::new(working) as Box<dyn Send>)
    }

    fn apply(&self, edits: Vec<(Name, Edited)>) -> Applying<'_> {
        Box::pin(async move { enter_and_leave(&self.0, &edits).await })
    }
}

/// Changes one user's topics.
pub(super) async fn change_one(
    node: &Arc<Node>,
    database: &Postgres,
    change: &UserChange,
) -> Result<Changed, Rejection> {
    edit_one(node, database, edit_of(change)?).await
}

/// Removes all topics from a user.
pub(super) async fn clear(
    node: &Arc<Node>,
    database: &Postgres,
    user: String,
) -> Result<Changed, Rejection> {
    check_names(&user, [].into_iter())?;
    let (user, removes, adds) = (Name::from(user), Vec::new(), Vec::new());
    edit_one(node, database, UserEdit { user, removes_all: true, removes, adds }).await
}

async fn edit_one(
    node: &Arc<Node>,
    database: &Postgres,
    edit: UserEdit,
) -> Result<Changed, Rejection> {
    let user = edit.user.clone();
    let reply = edit_each(node, database, vec![edit]).await?;
    let is_applied = reply.is_applied;
    let outcome = reply.outcomes.into_iter().next().ok_or_else(Rejection::going_down)?;
    changed(node, &user, outcome, count_connections(node, &user, is_applied, outcome)).await
}

/// Makes all valid changes, in order.
pub(super) async fn change_many(
    node: &Arc<Node>,
    database: &Postgres,
    changes: Vec<Result<UserChange, Rejection>>,
) -> Result<Vec<ChangeResult>, Rejection> {
    let edits: Vec<Result<UserEdit, Rejection>> =
        changes.into_iter().map(|change| edit_of(&change?)).collect();
    let valid: Vec<UserEdit> = edits.iter().flatten().cloned().collect();
    let reply = match valid.is_empty() {
        true => EditReply { outcomes: Vec::new(), is_applied: true },
        false => edit_each(node, database, valid).await?,
    };
    let mut outcomes = reply.outcomes.into_iter();
    let mut results = Vec::with_capacity(edits.len());
    for edits in edits.chunks(CHANGES_AT_ONCE) {
        // The shards count for all of these at the same time.
        let mut counted = Vec::with_capacity(edits.len());
        for edit in edits {
            counted.push(match edit {
                Ok(edit) => {
                    let outcome = outcomes.next().ok_or_else(Rejection::going_down)?;
                    Ok((
                        edit,
                        outcome,
                        count_connections(node, &edit.user, reply.is_applied, outcome),
                    ))
                }
                Err(rejection) => Err(rejection.clone()),
            });
        }
        for counted in counted {
            let changed = match counted {
                Ok((edit, outcome, count)) => changed(node, &edit.user, outcome, count).await,
                Err(rejection) => Err(rejection),
            };
            results.push(match changed {
                Ok(ok) => ChangeResult::Done { ok },
                Err(rejection) => ChangeResult::Rejected(rejection.body()),
            });
        }
    }
    Ok(results)
}

/// Subscribes the users of all lines, or none.
pub(super) async fn import(
    node: &Arc<Node>,
    database: &Postgres,
    text: &[u8],
) -> Result<Imported, Rejection> {
    let (mut edits, mut lines, mut indexes) = (Vec::new(), Vec::new(), HashMap::new());
    let mut rows = 0;
    for row in csv::rows(text) {
        let row = row.map_err(|error| Rejection::new(ErrorCode::BadLine, error.to_string()))?;
        let topics = [&*row.topic];
        check_names(&row.user, topics.into_iter()).map_err(|error| at_line(row.line, error))?;
        let index = *indexes.entry(Name::from(&*row.user)).or_insert_with_key(|user| {
            let (user, removes, adds) = (user.clone(), Vec::new(), Vec::new());
            edits.push(UserEdit { user, removes_all: false, removes, adds });
            lines.push(row.line);
            edits.len() - 1
        });
        edits[index].adds.push(Name::from(&*row.topic));
        rows += 1;
        if rows % ROWS_AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
    }
    if edits.is_empty() {
        return Ok(Imported { rows, added: 0 });
    }
    let users: Vec<Name> = edits.iter().map(|edit| edit.user.clone()).collect();
    let edited = edit(node, database, with_limits(node, edits, true)).await;
    let reply = edited.map_err(|error| match error {
        DatabaseEditError::TooMany { index, count } => {
            let (user, line) = (users[index].clone(), lines[index]);
            at_line(line, EditError::TooMany { user, count, max: max(node) })
        }
        error => rejection(node, error),
    })?;
    let added = |outcome: &EditOutcome| match outcome {
        EditOutcome::Edited { added, .. } => *added,
        EditOutcome::TooMany { .. } => 0,
    };
    Ok(Imported { rows, added: reply.outcomes.iter().map(added).sum() })
}

/// The rejection of an import, by the first line of a user.
fn at_line(line: usize, error: EditError) -> Rejection {
    let rejection = Rejection::from(error);
    let message = format!("line {line}: {}", rejection.message);
    Rejection { message, ..rejection }
}

fn edit_of(change: &UserChange) -> Result<UserEdit, Rejection> {
    let UserChange { user, add, remove } = change;
    check_names(user, add.iter().chain(remove).map(String::as_str))?;
    let names = |names: &[String]| names.iter().map(Name::from).collect();
    let (removes, adds) = (names(remove), names(add));
    Ok(UserEdit { user: user.into(), removes_all: false, removes, adds })
}

fn with_limits(node: &Node, edits: Vec<UserEdit>, all_or_nothing: bool) -> Edits {
    let total_max = node.live().subscriptions_max;
    Edits { edits, all_or_nothing, topics_max: max(node), total_max }
}

/// Makes edits. They continue if the caller goes away, and until then the node's state does not pass to another
/// process.
async fn edit(
    node: &Node,
    database: &Postgres,
    edits: Edits,
) -> Result<EditReply, DatabaseEditError> {
    database.edit(edits, Box::new(node.upgrades.gate.extend())).await
}

/// Makes all edits that are not rejected.
async fn edit_each(
    node: &Node,
    database: &Postgres,
    edits: Vec<UserEdit>,
) -> Result<EditReply, Rejection> {
    let edited = edit(node, database, with_limits(node, edits, false)).await;
    edited.map_err(|error| rejection(node, error))
}

fn rejection(node: &Node, error: DatabaseEditError) -> Rejection {
    let text = error.to_string();
    match error {
        DatabaseEditError::TooMany { .. } => Rejection::new(ErrorCode::TooManySubscriptions, text),
        DatabaseEditError::Full { more } => full(node.live().subscriptions_max, more),
        DatabaseEditError::Busy => Rejection::new(ErrorCode::StoreBusy, text),
        DatabaseEditError::Failed(_) => {
            let message = format!("the subscriptions are unchanged: {text}");
            Rejection::new(ErrorCode::StoreFailed, message)
        }
        DatabaseEditError::Unconfirmed(_) => Rejection::new(ErrorCode::StoreFailed, text),
    }
}

/// How many connections of a user have entered and left topics.
enum ConnectionCount {
    /// Nothing changed for the user.
    None,
    /// The shards count those that the user has: they have got the commands before.
    Counting(ShardReplies<u32>),
    /// The node has not applied the change yet.
    Unknown,
}

fn count_connections(
    node: &Node,
    user: &Name,
    is_applied: bool,
    outcome: EditOutcome,
) -> ConnectionCount {
    match outcome {
        EditOutcome::TooMany { .. } | EditOutcome::Edited { added: 0, removed: 0, .. } => {
            ConnectionCount::None
        }
        EditOutcome::Edited { .. } if !is_applied => ConnectionCount::Unknown,
        EditOutcome::Edited { .. } => {
            let topic = personal(user);
            let request = |reply| Command::Topic { topic: topic.clone(), reply };
            ConnectionCount::Counting(node.request_all(request))
        }
    }
}

async fn changed(
    node: &Node,
    user: &Name,
    outcome: EditOutcome,
    count: ConnectionCount,
) -> Result<Changed, Rejection> {
    let connections = match count {
        ConnectionCount::None => Some(0),
        ConnectionCount::Counting(replies) => {
            replies.all().await.ok().map(|counts| counts.into_iter().map(u64::from).sum())
        }
        ConnectionCount::Unknown => None,
    };
    match outcome {
        EditOutcome::Edited { added, removed, count } => {
            Ok(Changed { user: user.to_string(), added, removed, count, connections })
        }
        EditOutcome::TooMany { count } => {
            let user = user.clone();
            Err(EditError::TooMany { user, count, max: max(node) }.into())
        }
    }
}

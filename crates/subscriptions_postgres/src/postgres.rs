//! The subscriptions in PostgreSQL for other threads: their settings, their status, and the queue of edits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use database::{DatabaseError, Runtime};
use model::Name;
use subscriptions::{Edited, Subscriptions};
use tokio::sync::{mpsc, oneshot};

use crate::edit::{DatabaseEditError, EditReply, Edits};
use crate::session::{Database, Position, UserTopics};
use crate::settings::Settings;

/// The most calls that may wait to be edited.
const CALLS_MAX: usize = 1_024;

/// The status of the subscriptions in PostgreSQL.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SubscriptionsStatus {
    /// True while edits are made and followed.
    pub is_connected: bool,
    /// Why there is no connection.
    pub error: Option<String>,
    /// When the connection was made or lost.
    pub since: Option<Instant>,
    /// How often the connection was lost.
    pub connections_lost: u64,
    /// How many changes of users this node has applied.
    pub applied: u64,
    /// How often this node has read all rows since its start.
    pub reloads: u64,
}

/// Why the server could not open the subscriptions at its start.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(#[from] DatabaseError);

/// The connections of this node.
pub trait Connections: Send + Sync {
    /// Begins work, which ends when the result is dropped. Returns `None` while the node's state must not change,
    /// because it passes to another process.
    fn work(&self) -> Option<Box<dyn Send>>;

    /// Makes the open connections of users enter and leave topics. Later connections find the table changed.
    fn apply(&self, edits: Vec<(Name, Edited)>) -> Applying<'_>;
}

/// The work of [`Connections::apply`].
pub type Applying<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A call that waits for its edits.
pub(crate) struct Call {
    pub edits: Edits,
    pub reply: oneshot::Sender<Result<EditReply, DatabaseEditError>>,
    /// While it exists, the node's state does not pass to another process.
    pub working: Box<dyn Send>,
}

/// The stored subscriptions in PostgreSQL. Clones are cheap and share them.
#[derive(Clone)]
pub struct Postgres(Arc<Inner>);

struct Inner {
    settings: Settings,
    password: Mutex<String>,
    subscriptions: Arc<Subscriptions>,
    position: Mutex<Position>,
    calls: mpsc::Sender<Call>,
    /// Taken by the thread.
    receiver: Mutex<Option<mpsc::Receiver<Call>>>,
    status: Mutex<SubscriptionsStatus>,
}

impl Postgres {
    /// Connects once, and creates missing tables and functions. With `loads`, it also reads the whole table into
    /// `subscriptions`; otherwise these come from another process.
    ///
    /// # Errors
    /// If the database can't be reached or used, so that an operator sees that at the start.
    pub fn open(
        runtime: &Runtime,
        settings: Settings,
        password: String,
        subscriptions: Arc<Subscriptions>,
        loads: bool,
    ) -> Result<Self, OpenError> {
        let position = runtime.block_on(async {
            let database = Database::open(&settings, &password, None).await?;
            let position = match loads {
                true => load(&database, &subscriptions).await,
                false => Ok(Position::default()),
            };
            database.close().await;
            position
        })?;
        let (calls, receiver) = mpsc::channel(CALLS_MAX);
        Ok(Postgres(Arc::new(Inner {
            settings,
            password: Mutex::new(password),
            subscriptions,
            position: Mutex::new(position),
            calls,
            receiver: Mutex::new(Some(receiver)),
            status: Mutex::default(),
        })))
    }

    /// Makes edits, and waits until they are committed and this node has applied them. They go on if the caller does
    /// not wait any longer. While `working` exists, the node's state must not pass to another process.
    ///
    /// # Errors
    /// If they are rejected, or the database can't be reached.
    pub async fn edit(
        &self,
        edits: Edits,
        working: Box<dyn Send>,
    ) -> Result<EditReply, DatabaseEditError> {
        let (reply, result) = oneshot::channel();
        match self.0.calls.try_send(Call { edits, reply, working }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return Err(DatabaseEditError::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => {
                return Err(DatabaseEditError::Failed(self.why()));
            }
        }
        // The thread replies to each call, unless it ends by a panic.
        result.await.unwrap_or_else(|_| Err(DatabaseEditError::Unconfirmed(self.why())))
    }

    /// Returns the schema in the database.
    pub fn schema(&self) -> &str {
        &self.0.settings.schema
    }

    /// Sets the password for later connects.
    pub fn set_password(&self, password: String) {
        *lock(&self.0.password) = password;
    }

    /// Returns the status.
    pub fn status(&self) -> SubscriptionsStatus {
        lock(&self.0.status).clone()
    }

    /// Returns why nothing can be edited.
    pub(crate) fn why(&self) -> String {
        lock(&self.0.status).error.clone().unwrap_or_else(|| "PostgreSQL is not connected".into())
    }

    pub(crate) fn set_status(&self, change: impl FnOnce(&mut SubscriptionsStatus)) {
        change(&mut lock(&self.0.status));
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn password(&self) -> String {
        lock(&self.0.password).clone()
    }

    pub(crate) fn subscriptions(&self) -> &Subscriptions {
        &self.0.subscriptions
    }

    pub(crate) fn position(&self) -> Position {
        *lock(&self.0.position)
    }

    pub(crate) fn set_position(&self, position: Position) {
        *lock(&self.0.position) = position;
    }

    pub(crate) fn take_calls(&self) -> Option<mpsc::Receiver<Call>> {
        lock(&self.0.receiver).take()
    }
}

/// Reads the whole table into an empty one in memory.
async fn load(
    database: &Database,
    subscriptions: &Subscriptions,
) -> Result<Position, DatabaseError> {
    let position = database.begin_snapshot().await?;
    let mut after = Name::default();
    loop {
        let page = database.page(&after).await?;
        let Some(last) = page.last() else { break };
        after = last.user.clone();
        apply(subscriptions, &page);
    }
    database.end_snapshot().await?;
    subscriptions.loaded();
    Ok(position)
}

/// Gives users their topics in memory. Returns what has changed for whom.
pub(crate) fn apply(subscriptions: &Subscriptions, users: &[UserTopics]) -> Vec<(Name, Edited)> {
    let mut plan = subscriptions.plan(usize::MAX);
    let mut edits = Vec::new();
    for UserTopics { user, topics } in users {
        let topics: Vec<&str> = topics.iter().map(|topic| &**topic).collect();
        match plan.set(user, &topics) {
            Ok(edited) if edited.added.is_empty() && edited.removed.is_empty() => {}
            Ok(edited) => edits.push((user.clone(), edited)),
            // Another program has written the row, or memory has no capacity for more names.
            Err(error) => {
                tracing::error!(%user, %error, "a user's subscriptions in PostgreSQL can't be applied");
            }
        }
    }
    subscriptions.apply(&plan.change());
    edits
}

/// Ignores a panic of another thread with the lock: the value is still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_applied_twice_changes_nothing_the_second_time_and_a_bad_one_only_itself() {
        let subscriptions = Subscriptions::default();
        let row = |user: &str, topics: &[&str]| UserTopics {
            user: user.into(),
            topics: topics.iter().map(|topic| Name::from(*topic)).collect(),
        };
        let rows = [row("al", &["a", "b"]), row("bo", &["@no"]), row("cy", &["a"])];
        let edits = apply(&subscriptions, &rows);
        assert_eq!(edits.iter().map(|(user, _)| &**user).collect::<Vec<_>>(), ["al", "cy"]);
        assert!(apply(&subscriptions, &rows).is_empty());
        let edits = apply(&subscriptions, &[row("al", &["b", "c"]), row("cy", &[])]);
        assert_eq!(
            (&*edits[0].1.added, &*edits[0].1.removed),
            (&["c".into()][..], &["a".into()][..])
        );
        assert_eq!((subscriptions.users(), subscriptions.edges()), (1, 2));
    }
}

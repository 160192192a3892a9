//! The thread `history`: it connects to PostgreSQL, appends, delivers and reads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use database::{Running, Runtime};
use model::Name;

use crate::cursors::CursorMove;
use crate::driver::{ChangeTargets, Driver};
use crate::postgres::Postgres;
use crate::retained::RetainedMemory;

/// Starts the thread of a history, once. `on_moved` gets a user, a topic, and where the user's cursor moved at another node. `retained` are the messages that
/// all nodes share ([`Postgres::share_retained`]). `broker` delivers messages of topics without a rule. When the thread ends, it appends the queued messages, and writes the
/// cursors, the retained messages and the MQTT sessions.
///
/// # Errors
/// If the thread can't be started.
pub fn spawn(
    runtime: Runtime,
    postgres: Postgres,
    on_moved: impl Fn(&Name, &Name, CursorMove) + Send + Sync + 'static,
    retained: RetainedMemory,
    broker: Arc<broker::Local>,
) -> io::Result<Running> {
    if postgres.0.has_thread.swap(true, Ordering::SeqCst) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    database::spawn("history", runtime, move |ended| async move {
        let _closes = CloseOnDrop(postgres.clone());
        let targets = ChangeTargets { on_moved: Box::new(on_moved), retained, broker };
        Driver::new(postgres, targets, ended).run().await;
    })
}

/// Closes both queues when the thread ends, also by a panic.
struct CloseOnDrop(Postgres);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.set_status(|status| {
            status.is_connected = false;
            status.error = Some("the thread of the history has ended".into());
        });
        let away = self.0.away();
        self.0.0.queue.close().into_iter().for_each(|item| (item.done)(Err(away.clone())));
        self.0.0.sessions.queue.close();
        // Each job replies with an error when it is dropped.
        drop(self.0.0.jobs.close());
    }
}

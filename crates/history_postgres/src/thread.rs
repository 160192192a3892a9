//! The thread `history`: it connects to PostgreSQL, appends, delivers and reads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::driver::Driver;
use crate::postgres::Postgres;
use crate::runtime::Runtime;

/// The handle of the running thread. The thread ends when it is dropped.
pub struct Running {
    ending: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the thread of a history, once. `hash` is the hash of topics' names that all indexes of the node share.
///
/// # Errors
/// When the thread can't be started.
pub fn spawn(
    Runtime(runtime): Runtime,
    postgres: Postgres,
    hash: impl Fn(&str) -> u64 + Send + Sync + 'static,
) -> io::Result<Running> {
    let (ending, ended) = watch::channel(false);
    if postgres.0.has_thread.swap(true, Ordering::SeqCst) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let thread = std::thread::Builder::new().name("history".into()).spawn(move || {
        let _closes = CloseOnDrop(postgres.clone());
        runtime.block_on(Driver::new(postgres, Arc::new(hash), ended).run());
        // A name lookup that is under way does not delay the end of the process.
        runtime.shutdown_background();
    })?;
    Ok(Running { ending, thread: Some(thread) })
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
        // Each job replies with an error when it is dropped.
        drop(self.0.0.jobs.close());
    }
}

impl Running {
    /// Appends the queued messages and ends the thread, within seconds even if PostgreSQL does not reply.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.ending.send(true);
        if let Some(thread) = self.thread.take() {
            // An error means that the thread has panicked, which it has printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

//! The thread `outbox`: it connects to PostgreSQL, and drains the outbox.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::driver::Driver;
use crate::outbox::Outbox;
use crate::row::Publisher;

/// The runtime of the thread.
///
/// Other threads wake it through one of its descriptors when a row is published, so make it before the shards take
/// descriptor tables of their own: in those, the number of a later descriptor would mean another one.
pub struct Runtime(tokio::runtime::Runtime);

impl Runtime {
    /// Makes a runtime.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Runtime(tokio::runtime::Builder::new_current_thread().enable_all().build()?))
    }
}

/// A running thread.
pub struct Running {
    ending: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the thread that drains an outbox.
///
/// # Errors
/// If the thread can't be started.
pub fn spawn(
    Runtime(runtime): Runtime,
    outbox: Arc<Outbox>,
    publisher: Arc<dyn Publisher>,
) -> io::Result<Running> {
    let (ending, ended) = watch::channel(false);
    let thread = std::thread::Builder::new().name("outbox".into()).spawn(move || {
        let _closes = CloseOnDrop(outbox.clone());
        runtime.block_on(Driver::new(outbox, publisher, ended).run());
        // A pending name resolution must not delay the end of the process.
        runtime.shutdown_background();
    })?;
    Ok(Running { ending, thread: Some(thread) })
}

/// Reports that the outbox is drained no longer when the thread ends, also by a panic.
struct CloseOnDrop(Arc<Outbox>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.set_status(|status| {
            (status.is_connected, status.is_draining) = (false, false);
            status.error = Some("the thread of the outbox has ended".into());
        });
    }
}

impl Running {
    /// Publishes nothing more, deletes published rows, gives the lock back, and ends the thread: within seconds, even
    /// if PostgreSQL does not reply.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.ending.send(true);
        if let Some(thread) = self.thread.take() {
            // After a panic the thread has logged it already.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

//! The thread `subscriptions`: it connects to PostgreSQL, edits, and follows the edits of other nodes.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::driver::Driver;
use crate::postgres::{Connections, Postgres};
use crate::runtime::Runtime;

/// The handle of the running thread. The thread ends when it is dropped.
pub struct Running {
    ending: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the thread, once. `connections` are those of this node.
///
/// # Errors
/// If the thread can't be started.
pub fn spawn(
    Runtime(runtime): Runtime,
    postgres: Postgres,
    connections: Arc<dyn Connections>,
) -> io::Result<Running> {
    let (ending, ended) = watch::channel(false);
    let calls = postgres.take_calls().ok_or(io::ErrorKind::AlreadyExists)?;
    let thread = std::thread::Builder::new().name("subscriptions".into()).spawn(move || {
        let _closes = CloseOnDrop(postgres.clone());
        runtime.block_on(Driver::new(postgres, connections, calls, ended).run());
        // A pending name resolution must not delay the end of the process.
        runtime.shutdown_background();
    })?;
    Ok(Running { ending, thread: Some(thread) })
}

/// Reports that nothing is edited any longer when the thread ends, also by a panic.
struct CloseOnDrop(Postgres);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.set_status(|status| {
            status.is_connected = false;
            status.error = Some("the thread of the subscriptions has ended".into());
        });
    }
}

impl Running {
    /// Ends the thread: within seconds, even if PostgreSQL does not reply.
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

//! The thread `subscriptions`: it connects to PostgreSQL, edits, and follows the edits of other nodes.

use std::io;
use std::sync::Arc;

use database::{Running, Runtime};

use crate::driver::Driver;
use crate::postgres::{Connections, Postgres};

/// Starts the thread, once. `connections` are those of this node.
///
/// # Errors
/// If the thread can't be started.
pub fn spawn(
    runtime: Runtime,
    postgres: Postgres,
    connections: Arc<dyn Connections>,
) -> io::Result<Running> {
    let calls = postgres.take_calls().ok_or(io::ErrorKind::AlreadyExists)?;
    database::spawn("subscriptions", runtime, move |ended| async move {
        let _closes = CloseOnDrop(postgres.clone());
        Driver::new(postgres, connections, calls, ended).run().await;
    })
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

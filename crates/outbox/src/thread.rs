//! The thread `outbox`: it connects to PostgreSQL, and drains the outbox.

use std::io;
use std::sync::Arc;

use database::{Running, Runtime};

use crate::driver::Driver;
use crate::outbox::Outbox;
use crate::row::Publisher;

/// Starts the thread that drains an outbox. When it ends, it publishes nothing more, deletes published rows, and gives
/// the lock back.
///
/// # Errors
/// If the thread can't be started.
pub fn spawn(
    runtime: Runtime,
    outbox: Arc<Outbox>,
    publisher: Arc<dyn Publisher>,
) -> io::Result<Running> {
    database::spawn("outbox", runtime, move |ended| async move {
        let _closes = CloseOnDrop(outbox.clone());
        Driver::new(outbox, publisher, ended).run().await;
    })
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

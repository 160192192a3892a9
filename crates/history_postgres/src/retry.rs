//! Repeats a task that opens a session of its own.

use std::convert::Infallible;
use std::time::Duration;

use database::DatabaseError;
use throttle::Backoff;
use tokio::time::sleep;

/// Attempts a task again and again: it returns its error, and true if a step before that has succeeded. `warn` gets each
/// error that differs from the one before. The delay before another attempt, in milliseconds, grows from the first to the
/// second of `delay_ms`, and is short again after a success.
pub(crate) async fn retry(
    delay_ms: (u64, u64),
    warn: impl Fn(&DatabaseError),
    mut attempt: impl AsyncFnMut() -> (DatabaseError, bool),
) -> Infallible {
    let mut backoff = Backoff::new(delay_ms.0, delay_ms.1);
    let mut warned = None;
    loop {
        let (error, has_worked) = attempt().await;
        if has_worked {
            backoff.reset();
            warned = None;
        }
        if warned.as_ref() != Some(&error) {
            warn(&error);
        }
        warned = Some(error);
        sleep(Duration::from_millis(backoff.delay_ms())).await;
    }
}

//! Turns redb's panics into errors. redb panics over some kinds of damage. The calling thread must
//! survive that, and the log must not show a backtrace, because it is not a bug.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Once;

use crate::error::InternalError;

thread_local! {
    /// True while this module catches panics of this thread.
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Silences the panics that this module catches. All others reach the previous hook.
fn set_hook() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let in_redb = info.location().is_some_and(|at| at.file().contains("redb"));
            match IS_CATCHING.get() && in_redb {
                true => tracing::debug!(error = %info, "redb found damage"),
                false => others(info),
            }
        }));
    });
}

/// Runs a call into redb. A panic becomes an error.
pub(crate) fn catch_redb_panics<T>(
    run: impl FnOnce() -> Result<T, InternalError>,
) -> Result<T, InternalError> {
    fn caught<T>(run: impl FnOnce() -> T + UnwindSafe) -> Option<T> {
        catch_unwind(run).ok()
    }
    set_hook();
    let before = IS_CATCHING.replace(true);
    let result = caught(AssertUnwindSafe(run));
    IS_CATCHING.set(before);
    result.unwrap_or(Err(InternalError::Panic))
}

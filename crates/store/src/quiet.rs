//! redb panics over some damage. That is caught and told like any other error: no thread ends, and
//! nobody is shown a backtrace for what is no bug.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Once;

use crate::fault::Trouble;

thread_local! {
    /// A panic on this thread is caught here.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Says nothing of panics that are caught here; all others are told as before.
fn set_hook() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let in_redb = info.location().is_some_and(|at| at.file().contains("redb"));
            match IS_CAUGHT.get() && in_redb {
                true => tracing::debug!("redb met damage: {info}"),
                false => others(info),
            }
        }));
    });
}

/// Runs what has to do with redb; a panic is an error.
pub(crate) fn quietly<T>(run: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    fn caught<T>(run: impl FnOnce() -> T + UnwindSafe) -> Option<T> {
        catch_unwind(run).ok()
    }
    set_hook();
    let before = IS_CAUGHT.replace(true);
    let result = caught(AssertUnwindSafe(run));
    IS_CAUGHT.set(before);
    result.unwrap_or(Err(Trouble::Panic))
}

//! A node's figures in a terminal, over its admin API: also those of a node elsewhere.
//!
//! What is known ([`state`]) and how it is drawn ([`draw`]) know no socket, no clock and no terminal;
//! [`watch`] asks the node from threads of its own, and [`screen`] is the loop between them.

pub mod admin;
pub mod draw;
mod format;
mod live;
pub mod sample;
pub mod screen;
pub mod state;
mod text;
pub mod watch;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use admin::{Target, Trouble};

use admin::Admin;
use live::Live;

/// Between two tries to reach a node that is away.
const RETRY: Duration = Duration::from_secs(1);

/// Prints the newest sample as text, and the topics on top.
///
/// # Errors
/// If the node can't be asked.
pub fn print_once(target: &Target, out: &mut dyn Write) -> Result<(), Trouble> {
    let mut admin = Admin::new(target);
    let past = admin.past()?;
    let told = Live::open(target)?.next()?;
    let tops = watch::tops(&mut admin)?;
    let text = text::text(target.name(), &past.node, &told.sample, &tops);
    // A reader that has gone away is no error.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(())
}

/// Prints samples as the node tells them, a JSON object a line: one, or one each second until told
/// to stop or nobody reads them. A node that goes away in between is waited for.
///
/// # Errors
/// If the node can't be asked in the beginning, or refuses later on.
pub fn print_json(
    target: &Target,
    once: bool,
    stop: &AtomicBool,
    out: &mut dyn Write,
) -> Result<(), Trouble> {
    // What is wrong with the key or the port is said by this.
    Admin::new(target).past()?;
    let mut live = Live::open(target);
    let (mut printed, mut is_away) = (0_u64, false);
    while !stop.load(Ordering::Relaxed) {
        match live.as_mut().map_err(|trouble| trouble.clone()).and_then(Live::next) {
            Ok(told) => {
                let line = told.json + "\n";
                if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() || once {
                    return Ok(());
                }
                (printed, is_away) = (printed + 1, false);
            }
            Err(trouble) if printed == 0 || matches!(trouble, Trouble::Forbidden(_)) => {
                return Err(trouble);
            }
            Err(trouble) => {
                if !is_away {
                    eprintln!("away: {trouble}; trying again");
                }
                is_away = true;
                std::thread::sleep(RETRY);
                live = Live::open(target);
            }
        }
    }
    Ok(())
}

//! Shows a node's figures in a terminal. They come over the admin API, so the node may be elsewhere.
//!
//! [`state`] has the known figures and [`draw`] draws them; both use no socket, clock or terminal. [`watch`] polls
//! the node from threads of its own, and [`screen`] is the loop between them. [`cluster`] shows all nodes of a
//! cluster in one table.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod draw;
mod format;
mod live;
pub mod sample;
pub mod screen;
pub mod shards;
pub mod state;
mod text;
pub mod watch;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use admin::{Admin, AdminError, Target};
use live::Live;
use sample::History;

/// The `User-Agent` of requests.
pub(crate) const AGENT: &str = "throng-top";
/// The time between two attempts to reach a node that is away.
const RETRY: Duration = Duration::from_secs(1);

/// Returns the time, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX))
}

/// Prints the newest sample as text, and the top topics.
///
/// # Errors
/// If a request to the node fails.
pub fn print_once(target: &Target, out: &mut dyn Write) -> Result<(), AdminError> {
    let mut admin = Admin::new(target, AGENT);
    let history: History = admin.get("/api/samples")?;
    let live = Live::open(target)?.next()?;
    let tops = watch::tops(&mut admin)?;
    let text = text::text(target.name(), &history.node, &live.sample, &tops);
    // A closed pipe is no error here.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(())
}

/// Prints samples as the node sends them, one JSON object per line: one if `once`, otherwise one each second until
/// `stop` is set or the output is closed. It waits for a node that goes away in between.
///
/// # Errors
/// If the first request fails, or the node rejects the key later.
pub fn print_json(
    target: &Target,
    once: bool,
    stop: &AtomicBool,
    out: &mut dyn Write,
) -> Result<(), AdminError> {
    // This request shows an error with the key or the port.
    Admin::new(target, AGENT).get::<History>("/api/samples")?;
    let mut live = Live::open(target);
    let (mut printed, mut is_away) = (0_u64, false);
    while !stop.load(Ordering::Relaxed) {
        match live.as_mut().map_err(|error| error.clone()).and_then(Live::next) {
            Ok(live) => {
                let line = live.json + "\n";
                if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() || once {
                    return Ok(());
                }
                (printed, is_away) = (printed + 1, false);
            }
            Err(error) if printed == 0 || matches!(error, AdminError::Forbidden(_)) => {
                return Err(error);
            }
            Err(error) => {
                if !is_away {
                    eprintln!("away: {error}; trying again");
                }
                is_away = true;
                std::thread::sleep(RETRY);
                live = Live::open(target);
            }
        }
    }
    Ok(())
}

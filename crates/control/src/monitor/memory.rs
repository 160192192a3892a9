//! The memory limit: this module checks it once a second, and sets a flag for the shards.
//!
//! Memory in use counts. Freed memory that the allocator retains is resident, too, so the allocator returns it before
//! the node rejects connections, and again while it does: otherwise a burst that is long over would lock out all
//! clients.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::process;
use crate::node::Node;

/// Memory must fall this far below the limit before the node accepts connections again.
const HYSTERESIS_PERCENT: u64 = 2;

/// Sets the flag `memory_full` by the limit, for as long as the node runs.
pub(crate) async fn watch(node: Arc<Node>) {
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    loop {
        clock.tick().await;
        let configured = node.live().memory_bytes_max;
        let limit = match configured {
            0 => process::cgroup_limit().map(|limit| limit / 100 * 90),
            bytes => Some(bytes),
        };
        let was = node.shared.memory_full.load(Ordering::Relaxed);
        let mut resident = process::memory().resident;
        if let Some(give_back) = node.give_back.filter(|_| is_exceeded(resident, limit, was)) {
            // The system takes a while to take back much, so this runs on a thread of its own.
            let _ = tokio::task::spawn_blocking(give_back).await;
            resident = process::memory().resident;
        }
        let full = is_exceeded(resident, limit, was);
        if full != was {
            node.shared.memory_full.store(full, Ordering::Relaxed);
            let limit = limit.unwrap_or(0);
            if full {
                tracing::warn!(
                    bytes = resident,
                    limit_bytes = limit,
                    "resident memory is at its limit (limits.memory_bytes_max): new connections \
                     are refused with status 503"
                );
            } else {
                tracing::info!(
                    bytes = resident,
                    limit_bytes = limit,
                    "resident memory is below its limit again: new connections are accepted"
                );
            }
        }
    }
}

fn is_exceeded(resident: u64, limit: Option<u64>, was: bool) -> bool {
    let bound =
        limit.map(|limit| if was { limit / 100 * (100 - HYSTERESIS_PERCENT) } else { limit });
    bound.is_some_and(|bound| resident > bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_a_margin_to_be_welcome_again() {
        assert!(!is_exceeded(1000, Some(1000), false));
        assert!(is_exceeded(1001, Some(1000), false));
        assert!(is_exceeded(990, Some(1000), true));
        assert!(!is_exceeded(980, Some(1000), true));
        assert!(!is_exceeded(u64::MAX, None, true));
    }
}

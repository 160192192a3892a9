//! The memory limit: watched once a second, told to the shards by a flag.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::{Node, process};

/// Memory must fall so far below the limit before new connections are welcome again.
const HYSTERESIS_PERCENT: u64 = 2;

pub(crate) async fn watch(node: Arc<Node>) {
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    loop {
        clock.tick().await;
        let configured = node.live.read().unwrap_or_else(PoisonError::into_inner).memory_bytes_max;
        let limit = match configured {
            0 => process::cgroup_limit().map(|limit| limit / 100 * 90),
            bytes => Some(bytes),
        };
        let resident = process::memory().resident;
        let was = node.shared.memory_full.load(Ordering::Relaxed);
        let full = limit.is_some_and(|limit| is_full(resident, limit, was));
        if full != was {
            node.shared.memory_full.store(full, Ordering::Relaxed);
            let limit = limit.unwrap_or(0);
            if full {
                tracing::warn!(
                    "resident memory is {resident} bytes, the limit {limit}: new connections are \
                     answered 503 (limits.memory_bytes_max)"
                );
            } else {
                tracing::info!(
                    "resident memory is {resident} bytes again: connections are welcome"
                );
            }
        }
    }
}

fn is_full(resident: u64, limit: u64, was: bool) -> bool {
    let bound = if was { limit / 100 * (100 - HYSTERESIS_PERCENT) } else { limit };
    resident > bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_a_margin_to_be_welcome_again() {
        assert!(!is_full(1000, 1000, false));
        assert!(is_full(1001, 1000, false));
        assert!(is_full(990, 1000, true));
        assert!(!is_full(980, 1000, true));
    }
}

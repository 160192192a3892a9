//! How often each limit was reached.

use std::collections::BTreeMap;

use model::CloseReason;
use shard::{Limited, Metrics, Refusal};

use crate::node::Node;

/// Returns how often each limit rejected, delayed or closed something, by its key in the configuration.
pub(crate) fn limited(node: &Node) -> BTreeMap<&'static str, u64> {
    let sum = |read: &dyn Fn(&Metrics) -> u64| node.sum(read);
    let mut all: BTreeMap<&'static str, u64> = Limited::ALL
        .iter()
        .map(|limited| (limited.name(), sum(&|metrics| metrics.limited[*limited as usize].get())))
        .collect();
    for refusal in Refusal::ALL {
        let key = match refusal {
            Refusal::Connections => "limits.connections_max",
            Refusal::Address => "limits.connections_per_address_max",
            Refusal::Rate => "limits.accept_per_second_max",
            Refusal::Memory => "limits.memory_bytes_max",
            Refusal::Sessions => "limits.longpoll_sessions_max",
            // This is no limit.
            Refusal::Drained => continue,
        };
        *all.entry(key).or_default() += sum(&|metrics| metrics.refused[refusal as usize].get());
    }
    let closed = |reason: CloseReason| sum(&|metrics| metrics.closed[reason as usize].get());
    // Slow consumers are closed for the limit of all outboxes, too.
    let outboxes = all.get(Limited::Outboxes.name()).copied().unwrap_or_default();
    all.insert(
        "limits.outbox_bytes_max",
        closed(CloseReason::SlowConsumer).saturating_sub(outboxes),
    );
    all.extend(node.access.rejections.counts());
    all.insert("limits.frame_bytes_max", closed(CloseReason::TooBig));
    all.insert("timeouts.head_seconds", closed(CloseReason::RequestTimeout));
    all
}

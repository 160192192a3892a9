//! What an engine does once a second: it gives memory back after a spike, and stores the progress of MQTT sessions.

use crate::core::shrink::Shrink;
use crate::engine::Engine;

const EVERY_US: u64 = 1_000_000;

pub(super) fn each_second(engine: &mut Engine) {
    if engine.core.now_us < engine.second_due_us {
        return;
    }
    engine.second_due_us = engine.core.now_us + EVERY_US;
    engine.mqtt_second();
    engine.core.trace_seconds();
    shrink(engine);
}

/// Shrinks all tables that connections have left. That is never much: the large tables consist of pages, which are
/// freed at once.
fn shrink(engine: &mut Engine) {
    engine.core.table.shrink();
    engine.core.hub.shrink();
    engine.core.joins.shrink();
    engine.recovery.shrink();
    engine.core.entries.shrink();
    engine.core.credentials.shrink();
    engine.core.mqtt.shrink();
    engine.core.snapshots_due.shrink();
    engine.core.peers.shrink();
    engine.core.conflation.shrink();
    engine.core.dedup.shrink();
    let now_us = engine.core.now_us;
    engine.core.costs.expire(now_us);
    engine.core.observed.expire(now_us);
    engine.rates.quota.shrink(now_us);
    engine.explicit.shrink();
    engine.pages.shrink();
    engine.core.commands.shrink();
    engine.core.woken.shrink();
}

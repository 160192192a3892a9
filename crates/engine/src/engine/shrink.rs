//! What a crowd leaves behind when it is gone, and goes back once a second.

use crate::core::shrink::Shrink;
use crate::engine::Engine;

const EVERY_US: u64 = 1_000_000;

/// Gives back, once a second, what was held for connections that are gone. What is left to do
/// is never much: the large tables are in pages that go back by themselves.
pub(super) fn shrink(engine: &mut Engine) {
    if engine.core.now_us < engine.shrink_due_us {
        return;
    }
    engine.shrink_due_us = engine.core.now_us + EVERY_US;
    engine.core.table.shrink();
    engine.core.hub.shrink();
    engine.core.joins.shrink();
    engine.recovery.shrink();
    engine.core.entries.shrink();
    engine.core.credentials.shrink();
    engine.core.mqtt.shrink();
    engine.mqtt_second();
    engine.core.snapshots_due.shrink();
    engine.core.peers.shrink();
    engine.core.conflation.shrink();
    engine.core.dedup.shrink();
    let now_us = engine.core.now_us;
    engine.rates.quota.shrink(now_us);
    engine.explicit.shrink();
    engine.pages.shrink();
    engine.core.commands.shrink();
    engine.core.woken.shrink();
}

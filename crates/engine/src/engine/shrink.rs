//! What a crowd leaves behind when it is gone, and goes back once a second.

use super::Engine;
use crate::core::shrink::Roomy;

const EVERY_US: u64 = 1_000_000;

/// Gives back, once a second, what was held for connections that are gone. What is left to do
/// is never much: the large tables are in pages that go back by themselves.
pub(super) fn tidy(engine: &mut Engine) {
    if engine.connections.core.now_us < engine.tidy_due_us {
        return;
    }
    engine.tidy_due_us = engine.connections.core.now_us + EVERY_US;
    engine.connections.core.table.tidy();
    engine.connections.core.hub.tidy();
    engine.connections.core.joins.tidy();
    engine.connections.recovery.tidy();
    engine.connections.core.entries.tidy();
    engine.connections.core.credentials.tidy();
    engine.connections.core.mqtt.tidy();
    engine.connections.mqtt_second();
    engine.connections.core.lists_due.tidy();
    engine.connections.core.peers.tidy();
    engine.connections.core.conflation.tidy();
    engine.connections.core.overlaps.tidy();
    let now_us = engine.connections.core.now_us;
    engine.connections.rates.quota.tidy(now_us);
    engine.connections.chosen.tidy();
    engine.connections.pages.tidy();
    engine.connections.core.commands.tidy();
    engine.connections.core.woken.tidy();
}

//! What a crowd leaves behind when it is gone, and goes back once a second.

use super::Engine;
use crate::roomy::Roomy;

const EVERY_US: u64 = 1_000_000;

impl Engine {
    /// Gives back, once a second, what was held for connections that are gone. What is left to do
    /// is never much: the large tables are in pages that go back by themselves.
    pub fn tidy(&mut self) {
        if self.connections.core.now_us < self.tidy_due_us {
            return;
        }
        self.tidy_due_us = self.connections.core.now_us + EVERY_US;
        self.connections.core.table.tidy();
        self.connections.core.hub.tidy();
        self.connections.core.joins.tidy();
        self.connections.recovery.tidy();
        self.connections.core.entries.tidy();
        self.connections.core.lists_due.tidy();
        self.connections.chosen.tidy();
        self.connections.core.commands.tidy();
        self.connections.core.woken.tidy();
    }
}

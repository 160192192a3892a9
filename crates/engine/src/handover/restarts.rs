//! What connections that came from another engine have to go on with.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use model::Envelope;

use crate::handover::message_key::MessageKey;

/// No engine has so many slots. A record that says otherwise is damaged.
pub(crate) const SLOTS_MAX: u32 = 1 << 28;

/// An engine may have so many slots more than when it was written out.
const MORE_SLOTS: u32 = 1 << 20;

/// Connections that came from another engine, and have not gone on yet.
#[derive(Default)]
pub(crate) struct Restarts {
    /// By slot, those that have something to go on with.
    pub waiting: BTreeMap<u32, Restart>,
    /// All of their slots were below this.
    pub slots_end: u32,
    /// The engine's record has come.
    pub has_engine: bool,
    /// What changes all the time, by slot: `Engine::export_vitals` writes it.
    pub vitals: Vec<u8>,
    /// The messages that are owed by several lists, so that each is there once.
    pub owed: HashMap<OwedKey, Arc<Envelope>>,
}

/// What tells a message from all others: the topic's hash, its position, and when it was published.
pub(crate) type OwedKey = (u64, u32, u64, u64);

/// What a connection that came from another engine has to go on with.
#[derive(Default)]
pub(crate) struct Restart {
    /// Its poll had asked the history for a piece.
    pub reads_poll: bool,
    /// It had asked the history for the next piece of a catch-up.
    pub reads: bool,
    /// Messages that one list has delivered, and others still have for it.
    pub came: Option<Vec<MessageKey>>,
    /// Messages that an MQTT client's ended subscriptions have delivered, and others still have for it.
    pub already_delivered: Vec<MessageKey>,
}

impl Restarts {
    pub fn insert(&mut self, slot: u32, restart: Restart) {
        let Restart { reads_poll, reads, came, already_delivered } = &restart;
        if *reads_poll || *reads || came.is_some() || !already_delivered.is_empty() {
            self.waiting.insert(slot, restart);
        }
    }

    /// All slots must be below this.
    pub fn slots_max(&self) -> u32 {
        match self.has_engine {
            true => self.slots_end.saturating_add(MORE_SLOTS).min(SLOTS_MAX),
            false => 0,
        }
    }
}

//! Work that connections from another engine have to resume.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use model::Envelope;

use crate::handover::message_key::MessageKey;

/// No engine has so many slots. A record with more is damaged.
pub(crate) const SLOTS_MAX: u32 = 1 << 28;

/// An engine may have so many slots more than at its export.
const MORE_SLOTS: u32 = 1 << 20;

/// Connections from another engine that have not gone on yet.
#[derive(Default)]
pub(crate) struct Restarts {
    /// By slot, the connections with work to resume.
    pub waiting: BTreeMap<u32, Restart>,
    /// A bound of all their slots.
    pub slots_end: u32,
    /// True when the engine's record has come.
    pub has_engine: bool,
    /// By slot, as `Engine::export_vitals` writes it.
    pub vitals: Vec<u8>,
    /// Owed messages of all lists, so that a message of several lists is in memory once.
    pub owed: HashMap<OwedKey, Arc<Envelope>>,
}

/// Identifies a message: the topic's hash, its position, and the time of publication.
pub(crate) type OwedKey = (u64, u32, u64, u64);

/// The work that a connection from another engine has to resume.
#[derive(Default)]
pub(crate) struct Restart {
    /// Its poll was waiting for a piece of the history.
    pub reads_poll: bool,
    /// Its catch-up was waiting for the next piece of the history.
    pub reads: bool,
    /// Messages that one list has delivered and others still owe it.
    pub partly_delivered: Option<Vec<MessageKey>>,
    /// Messages that an MQTT client's ended subscriptions have delivered and other lists still owe it.
    pub already_delivered: Vec<MessageKey>,
}

impl Restarts {
    pub fn insert(&mut self, slot: u32, restart: Restart) {
        let Restart { reads_poll, reads, partly_delivered, already_delivered } = &restart;
        if *reads_poll || *reads || partly_delivered.is_some() || !already_delivered.is_empty() {
            self.waiting.insert(slot, restart);
        }
    }

    /// Returns the bound of all slots.
    pub fn slots_max(&self) -> u32 {
        match self.has_engine {
            true => self.slots_end.saturating_add(MORE_SLOTS).min(SLOTS_MAX),
            false => 0,
        }
    }
}

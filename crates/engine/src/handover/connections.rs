//! Connections on their way from one engine to another: the state that all parts have of each.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::{Encoding, Envelope, Name, TopicKind};
use protocol::Delivery;

use crate::connection::lifecycle::Extent;
use crate::connection::{ColdState, Connection, Flag, wrapping_s};
use crate::engine::Engine;
use crate::handover::message_key::MessageKey;
use crate::handover::record::Record;
use crate::handover::restarts::Restart;
use crate::handover::value::{ImportError, Text, Who};
use crate::mqtt::MqttRecord;

/// The bytes that [`Engine::export_vitals`] writes for a slot.
const VITALS_BYTES: usize = 3;

impl Engine {
    /// Exports the state that all parts have of a connection; `None` if the slot has none.
    pub(crate) fn export_connection(&self, slot: u32) -> Option<Record> {
        let core = &self.core;
        // Hashes are keyed, so a record has names instead. A Phoenix client may join everyone's topic, which is not
        // among the topics it has entered.
        let broadcast = Name::const_new(model::name::BROADCAST);
        let names = LazyCell::new(|| -> Vec<(u64, &Name)> {
            let names = core.hub.topics_of(slot).chain(std::iter::once(&broadcast));
            let mut names: Vec<_> = names.map(|name| (core.broker.hash(name), name)).collect();
            names.sort_unstable_by_key(|(hash, _)| *hash);
            names
        });
        self.record(slot, &|hash| {
            let at = names.binary_search_by_key(&hash, |(hash, _)| *hash).ok()?;
            Some(names[at].1.clone())
        })
    }

    /// Returns a connection's record; `name` returns the name of a topic with this hash.
    fn record(&self, slot: u32, name: &dyn Fn(u64) -> Option<Name>) -> Option<Record> {
        let Engine {
            core,
            recovery,
            rates,
            explicit,
            pages,
            serial: _,
            reserved: _,
            restarts: _,
            heartbeats: _,
            out: _,
            groups: _,
            sweep: _,
            drain: _,
            second_due_us: _,
        } = self;
        let connection = core.table.get(slot)?;
        let protocol = core.shared.protocols.of(connection.encoding);
        let ((serial, encoding), (opened_s, _), (phase, flags)) = connection.export();
        // The time of the last input and this flag change all the time. The engine's record has them.
        let (last_received_s, flags) = (wrapping_s(opened_s), flags & !(Flag::WroteRecently as u8));
        Some(Record {
            protocol: Text(protocol.name().into()),
            encoding: encoding.0,
            slot,
            serial,
            opened_s,
            last_received_s,
            phase,
            flags,
            cold: core.table.cold(slot).map(|cold| cold.export(protocol)),
            topics: core.hub.is_here(slot).then(|| Text::all(core.hub.topics_of(slot))),
            joins: core.joins.export(slot, name),
            presence: core.entries.export(slot),
            snapshots_due: core.snapshots_due.get(&slot).map(Text::all).unwrap_or_default(),
            explicit: explicit.export(slot, name),
            recovery: recovery.export(slot, name),
            rates: rates.export(slot),
            partly_delivered: core.dedup.export(slot),
            proxied: core.peers.export(slot),
            certificate_user: core.peers.certificate_user(slot).cloned().map(Text),
            conflated: core.conflation.export(slot),
            pages: pages.export(slot),
            credential: core.credentials.has(slot).then(|| Who::from(&core.principal(slot))),
            warned: core.credentials.is_warned(slot).then_some(true),
            mqtt: core.mqtt.export(slot),
        })
    }

    /// Restores a connection in all parts, as another engine had it. No client and no other service is notified.
    pub(crate) fn import_connection(&mut self, mut record: Record) -> Result<(), ImportError> {
        let Engine { core, recovery, reserved, restarts, .. } = self;
        let (slot, encoding) = (record.slot, Encoding(record.encoding));
        let protocol = core.shared.protocols.of(encoding);
        if protocol.name() != record.protocol.0 || protocol.encoding() != encoding {
            let (protocol, encoding) = (record.protocol.0.into(), record.encoding);
            return Err(ImportError::UnknownProtocol { protocol, encoding });
        }
        if slot >= restarts.slots_max() {
            return Err(ImportError::damaged(
                "its engine has no such slot, or its engine's record is missing",
            ));
        }
        if core.table.get(slot).is_some() {
            return Err(ImportError::SlotTaken(slot));
        }
        let broker = core.broker.clone();
        let hash = |name: &str| broker.hash(name);
        // The steps that can fail come first.
        let connection = Connection::restored(
            (record.serial, encoding),
            (record.opened_s, record.last_received_s),
            (record.phase, record.flags),
        );
        let connection = connection.ok_or_else(|| ImportError::damaged("unknown phase"))?;
        let reads_poll = record.cold.as_ref().is_some_and(|cold| cold.reads());
        let reads = record.recovery.as_ref().is_some_and(|recovery| recovery.reads());
        let cold = record.cold.take().map(|cold| {
            let protocols = core.shared.protocols;
            ColdState::import(cold, protocols, encoding, &hash, &core.metrics)
        });
        let cold = cold.transpose()?;
        let is_session = cold.as_ref().is_some_and(|cold| cold.session.is_some());
        if is_session != (protocol.delivery() == Delivery::Gathered) {
            let why = "it has a session and its protocol has none, or the reverse";
            return Err(ImportError::damaged(why));
        }
        if let Some(recovered) = record.recovery.take() {
            recovery.import(slot, recovered, &hash)?;
        }
        let already_delivered =
            record.mqtt.as_mut().map(MqttRecord::take_already_delivered).unwrap_or_default();
        let partly_delivered = record.partly_delivered.take();
        restarts.insert(slot, Restart { reads_poll, reads, partly_delivered, already_delivered });
        *reserved += u32::from(cold.as_ref().is_some_and(|cold| cold.reserved));
        core.metrics.closing_connections.add(u64::from(connection.is_closing()));
        core.table.insert_at(slot, connection, cold);
        core.metrics.connections[usize::from(encoding.0)].add(1);
        core.metrics.open_connections.add(1);
        core.shared.connections.fetch_add(1, Ordering::Relaxed);
        core.count_input(slot);
        core.session_entered(slot);
        self.import_parts(record);
        Ok(())
    }

    /// Imports the rest, which cannot fail: the table has the connection.
    fn import_parts(&mut self, record: Record) {
        let Record {
            slot,
            serial,
            topics,
            joins,
            presence,
            snapshots_due,
            explicit,
            rates,
            pages,
            credential,
            certificate_user,
            proxied,
            conflated,
            warned,
            mqtt,
            // The import has used these before.
            protocol: _,
            encoding: _,
            opened_s: _,
            last_received_s: _,
            phase: _,
            flags: _,
            cold: _,
            recovery: _,
            partly_delivered: _,
        } = record;
        let Engine { core, .. } = self;
        let broker = core.broker.clone();
        let hash = |name: &str| broker.hash(name);
        if topics.is_some() {
            core.hub.insert(slot);
        }
        for Text(topic) in topics.into_iter().flatten() {
            if matches!(TopicKind::of(&topic), TopicKind::Filter(_)) {
                core.enter_filter(slot, &topic);
            } else {
                core.enter_topic(slot, hash(&topic), &topic);
            }
        }
        if let Some(who) = credential {
            core.credentials.insert(slot, &who.into());
            if warned == Some(true) {
                core.credentials.set_warned(slot);
            }
        }
        if let Some(client) = mqtt {
            core.shared.mqtt_sessions.restore(client.key(), core.id(slot, serial));
            core.mqtt.import(slot, client, hash);
        }
        core.joins.import(slot, joins, &hash);
        core.entries.import(slot, presence, &hash);
        if !snapshots_due.is_empty() {
            core.snapshots_due.insert(slot, Text::values(snapshots_due));
        }
        explicit.iter().for_each(|Text(topic)| self.explicit.insert(slot, hash(topic)));
        let waits = core.table.cold(slot).is_some_and(|cold| cold.waits);
        self.rates.import(slot, rates, waits, core.now_us);
        core.peers.import(slot, proxied, &core.shared);
        if let Some(Text(user)) = certificate_user {
            core.peers.set_certificate_user(slot, user);
        }
        core.conflation.import(slot, conflated, hash, &core.metrics);
        self.pages.import(slot, pages);
        self.rates.quota.settle(core, slot);
    }

    /// True when no part has any state of a connection.
    pub(crate) fn is_forgotten(&self, slot: u32) -> bool {
        // The hub may have forgotten a name before the parts forget its hash.
        let record = self.record(slot, &|_| Some(Name::default()));
        // Records don't have these: an import finds filters among the topics, and counts anew.
        record.is_none_or(|record| record.is_forgotten())
            && !self.core.dedup.holds(slot)
            && !self.rates.quota.counts(slot)
            && !self.core.traces.has(slot)
    }

    /// Undoes an [import](Engine::import_connection), as if it had never been. No client and no other service is
    /// notified. False if the slot is empty.
    pub(crate) fn forget_imported_connection(&mut self, slot: u32) -> bool {
        let Some(connection) = self.core.table.get(slot) else {
            return false;
        };
        let id = self.core.id(slot, connection.serial);
        let filters = self.core.hub.topics_of(slot);
        let filters = filters.filter(|name| matches!(TopicKind::of(name), TopicKind::Filter(_)));
        for name in filters.cloned().collect::<Vec<_>>() {
            self.core.leave_filter(slot, &name);
        }
        if let Some((row, _)) = self.core.mqtt.remove(slot) {
            self.core.shared.mqtt_sessions.unrestore(&row.key, id);
        }
        self.core.entries.unrestore(slot);
        self.forget_quietly(slot, Extent::All);
        self.restarts.waiting.remove(&slot);
        debug_assert!(self.is_forgotten(slot), "some state of slot {slot} is left");
        let Some((connection, cold)) = self.core.table.remove(slot) else {
            return false;
        };
        if let Some(cold) = cold {
            self.core.metrics.input_bytes.sub(u64::from(cold.counted));
            self.reserved -= u32::from(cold.reserved);
            if let Some(session) = cold.session {
                self.core.session_uncounted(&session);
            }
        }
        self.core.metrics.connections[usize::from(connection.encoding.0)].sub(1);
        self.core.metrics.open_connections.sub(1);
        self.core.metrics.closing_connections.sub(u64::from(connection.is_closing()));
        self.core.shared.connections.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Exports what changes of connections at any time, for all slots: the time of the last input, and whether the
    /// connection was sent anything since the sweep passed. So the records of idle connections stay the same.
    pub(crate) fn export_vitals(&self) -> Vec<u8> {
        let table = &self.core.table;
        let mut vitals = vec![0; VITALS_BYTES * table.end() as usize];
        for (slot, bytes) in (0..table.end()).zip(vitals.chunks_exact_mut(VITALS_BYTES)) {
            if let Some(connection) = table.get(slot) {
                bytes[..2].copy_from_slice(&connection.last_received_s.to_le_bytes());
                bytes[2] = u8::from(connection.is(Flag::WroteRecently));
            }
        }
        vitals
    }

    /// All connections have come: each resumes its unfinished work.
    pub(crate) fn restart_connection(&mut self) {
        let vitals = std::mem::take(&mut self.restarts.vitals);
        let mut waiting = std::mem::take(&mut self.restarts.waiting);
        self.restarts.owed = HashMap::new();
        for slot in 0..self.core.table.end() {
            let Some(connection) = self.core.table.get_mut(slot) else { continue };
            let at = VITALS_BYTES * slot as usize;
            if let Some([low, high, wrote]) = vitals.get(at..at + VITALS_BYTES) {
                connection.last_received_s = u16::from_le_bytes([*low, *high]);
                connection.set(Flag::WroteRecently, *wrote != 0);
            }
            if connection.is(Flag::Woken) {
                self.core.woken.push(slot);
            }
            let restart = match waiting.is_empty() {
                true => Restart::default(),
                false => waiting.remove(&slot).unwrap_or_default(),
            };
            let Restart { reads_poll, reads, partly_delivered, already_delivered } = restart;
            for (keys, is_mqtt) in
                [(partly_delivered.unwrap_or_default(), false), (already_delivered, true)]
            {
                let messages = self.find_owed(slot, &keys);
                match (self.core.mqtt.details_mut(slot), is_mqtt) {
                    (Some(details), true) => details.already_delivered = messages,
                    (None, true) => {}
                    (_, false) => self.core.dedup.restore(slot, messages),
                }
            }
            self.restart_poll(slot, reads_poll);
            self.recover(|recovery, core| recovery.restart(core, slot, reads));
            self.core.mqtt.restart(slot);
            self.read_next_page(slot);
            self.close_again(slot);
        }
        self.core.notify_imported();
    }

    /// Returns the messages with these keys among those that lists owe to a connection.
    fn find_owed(&self, slot: u32, keys: &[MessageKey]) -> Vec<Arc<Envelope>> {
        if keys.is_empty() {
            return Vec::new();
        }
        let mut found: Vec<Arc<Envelope>> = Vec::new();
        for message in self.core.hub.owed(slot, None) {
            let is_meant = keys.iter().any(|key| key.is_of(message));
            if is_meant && !found.iter().any(|known| Arc::ptr_eq(known, message)) {
                found.push(message.clone());
            }
        }
        found
    }
}

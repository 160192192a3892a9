//! Connections on their way to another engine: the old one exports each as a record, and a new one imports it, so
//! that no client notices.
//!
//! # The format
//! A record is the version of the format (two bytes), the length of the rest (four bytes, both little endian), and a
//! CBOR map. The numbers of its fields never change, nor do those of phases, flags and reasons to close. A reader
//! skips fields that it doesn't know. A field that is an `Option`, or has a default, may be missing; a record without
//! any other field is damaged. So a field that may be left out needs no new version. The map names the protocol and
//! its encoding. The protocol itself reads its own unfinished work: [`Protocol::import`](protocol::Protocol::import).
//! A record has no number that is valid only in this process: it names topics, since their hashes are keyed.
//!
//! # The order
//! 1. The new engines have the numbers and the node of the old ones. While the old ones serve, the driver imports
//!    into each new one the record of its old one ([`Engine::export_engine`]), and then connections as they are at
//!    that time, each in its old slot: slots are part of connections' ids. An export changes nothing, and an import
//!    only takes state: it sends nothing, notifies no service, and no limit rejects it.
//! 2. The old engines [stand still](Engine::stand_still), and the driver reads no socket any more. When all of them
//!    [are still](Engine::is_still), it [takes the owed messages](Engine::take_owed): the unfinished part of the
//!    fan-outs. If anything fails from here on, it gives these back, and the old engines [go on](Engine::go_on).
//! 3. It exports all connections again. If a record has changed, or the connection has ended, the new engine [forgets
//!    the import](Engine::forget_imported) and imports the new record, if there is one. The engine's own record is
//!    imported again as well.
//! 4. The driver puts each socket in the connection's slot, with its outbox, and counts the peer's address if
//!    addresses are limited.
//! 5. When all new engines have all of their connections, the driver [gives each the owed
//!    messages](Engine::give_owed) of these, and then calls [`Engine::restart`], whose documentation says what
//!    follows.
//!
//! # What changes all the time
//! The time of a connection's last input, and whether it was sent anything lately, are in the engine's record for all
//! slots, three bytes each, and not in the connections' records: so the records of idle connections stay the same.
//!
//! # State outside the engine
//! The registry of presence and that of MQTT sessions begin empty in another process. An import enters there the
//! state of the connection that members see and other connections find; the rest comes by the registries' own parts
//! of the crate `handover`. Imports also count again what all engines count of users, addresses and sessions.
//!
//! # What continues without a record
//! Pending replies come by the mailbox, with the connection's slot and serial. The webhook sender passes on those of
//! webhooks. The engine waits for those of the disk, and of a registry of presence on other nodes. It repeats its
//! queries to the history, and ignores the reply to an old query. The node's clock goes on, since times refer to it.
//! A connection that waits for slow members of a topic goes on at once.

pub(crate) mod connections;
pub(crate) mod fanouts;
pub(crate) mod message_key;
pub(crate) mod record;
pub(crate) mod restarts;
pub(crate) mod standstill;
#[cfg(test)]
mod tests;
pub(crate) mod value;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use crate::core::count::count;
use crate::engine::Engine;
use crate::engine::sweep::STRIPES;
use crate::handover::record::Record;
use crate::handover::restarts::SLOTS_MAX;
use crate::handover::value::{ImportError, VERSION};

/// The bytes of the version and the length.
const HEAD_BYTES: usize = 6;

/// The state of the engine itself.
#[derive(Encode, Decode)]
#[cbor(map)]
struct EngineRecord {
    #[n(0)]
    node: u32,
    #[n(1)]
    number: u16,
    /// The number of connections so far.
    #[n(2)]
    serial: u32,
    /// The last number of a query or a catch-up.
    #[n(3)]
    query: u32,
    /// The last number of a request to the application about a join.
    #[n(4)]
    join_request: u32,
    /// All messages with history up to this offset have been taken.
    #[n(5)]
    taken: u64,
    /// The position of the sweep.
    #[n(6)]
    stripes_passed: u64,
    /// The second in which each stripe was last passed over.
    #[n(7)]
    stripes_last: Vec<u64>,
    /// The second that is being swept, the table's end in it, and how many stripes go together.
    #[n(8)]
    swept: Option<(u64, u64, u64)>,
    /// All slots are below this.
    #[n(9)]
    slots_end: u32,
    /// For each slot, the time of its last input, in seconds of the node's clock that wrap around (two bytes, little
    /// endian), and whether the connection was sent anything since the sweep passed. It overrides the connections'
    /// records.
    #[n(10)]
    vitals: Option<ByteVec>,
}

/// Writes the version, the length and a record to `bytes`, in place of their content.
fn frame<T: Encode<()>>(record: &T, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend_from_slice(&[0; HEAD_BYTES]);
    ::handover::encode_into(record, bytes);
    let length = count(bytes.len() - HEAD_BYTES);
    bytes[..2].copy_from_slice(&VERSION.to_le_bytes());
    bytes[2..HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
}

fn unframe<T: for<'b> Decode<'b, ()>>(bytes: &[u8]) -> Result<T, ImportError> {
    let cut = || ImportError::damaged("it is shorter than its header");
    let (version, rest) = bytes.split_first_chunk::<2>().ok_or_else(cut)?;
    let (length, body) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    match u16::from_le_bytes(*version) {
        VERSION => {}
        other => return Err(ImportError::Version(other)),
    }
    if body.len() != u32::from_le_bytes(*length) as usize {
        return Err(ImportError::damaged("it does not have the length that its header says"));
    }
    ::handover::decode(body).map_err(ImportError::damaged)
}

impl Engine {
    /// True when the engine has nothing to do: no command or message waits, no work is due now, and all outputs are
    /// performed. Never true while it drains.
    pub fn is_quiet(&self) -> bool {
        let core = &self.core;
        !self.has_outputs()
            && !self.is_busy(true)
            && !self.is_draining()
            && self.recovery.is_quiet()
            && core.mqtt.is_quiet()
            && core.handle.inbox.queue.is_empty()
            && core.commands.is_empty()
            && core.effects.is_empty()
            && core.resumed.is_empty()
    }

    /// Exports the engine's own state, at any time between two inputs. Changes nothing.
    pub fn export_engine(&self) -> Vec<u8> {
        let Engine { core, recovery, serial, .. } = &self;
        let (query, taken) = recovery.catchups.export_numbers();
        let (stripes_passed, last, swept) = self.sweep.export();
        let mut bytes = Vec::new();
        let record = EngineRecord {
            node: core.shared.node.0,
            number: core.number,
            serial: *serial,
            query,
            join_request: core.joins.requests(),
            taken,
            stripes_passed,
            stripes_last: last.into(),
            swept: Some(swept),
            slots_end: core.table.end(),
            vitals: Some(self.export_vitals().into()),
        };
        frame(&record, &mut bytes);
        bytes
    }

    /// Imports the state that [`Engine::export_engine`] wrote: once before any connection, and again for each newer
    /// record; the newest counts.
    ///
    /// # Errors
    /// When the record is damaged, of another version, or of another engine or node.
    pub fn import_engine(&mut self, record: &[u8]) -> Result<(), ImportError> {
        let record: EngineRecord = unframe(record)?;
        let Engine { core, recovery, serial, restarts, .. } = self;
        let node = model::NodeId(record.node);
        if (node, record.number) != (core.shared.node, core.number) {
            return Err(ImportError::OtherEngine { node, number: record.number });
        }
        if record.slots_end > SLOTS_MAX {
            return Err(ImportError::damaged("it has too many slots"));
        }
        let last: [u64; STRIPES as usize] =
            record.stripes_last.try_into().map_err(|_| ImportError::damaged("its stripes"))?;
        *serial = record.serial;
        restarts.slots_end = record.slots_end;
        restarts.vitals = record.vitals.map(Vec::from).unwrap_or_default();
        recovery.catchups.import_numbers(record.query, record.taken);
        core.mqtt_taken = record.taken;
        if !std::mem::replace(&mut restarts.has_engine, true) {
            // The filters come with their connections.
            core.broker.leave_filters(core.number);
        }
        core.joins.set_requests(record.join_request);
        self.sweep.import(record.stripes_passed, last, record.swept, core.now_us);
        Ok(())
    }

    /// Exports a connection, at any time between two inputs; `None` if the slot has none. Changes nothing, and writes
    /// the same bytes again as long as the connection does not change.
    pub fn export(&self, slot: u32) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.export_into(slot, &mut bytes).then_some(bytes)
    }

    /// As [`Engine::export`], in place of the content of `bytes`. False, with nothing written, if the slot has no
    /// connection.
    pub fn export_into(&self, slot: u32, bytes: &mut Vec<u8>) -> bool {
        let Some(record) = self.export_connection(slot) else {
            return false;
        };
        frame(&record, bytes);
        true
    }

    /// All slots are below this.
    pub fn slots_end(&self) -> u32 {
        self.core.table.end()
    }

    /// Returns the slots of all connections, for [`Engine::export`].
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        let table = &self.core.table;
        (0..table.end()).filter(|slot| table.get(*slot).is_some())
    }

    /// Imports a connection that [`Engine::export`] wrote, and returns its slot: the same as before. Before
    /// [`Engine::restart`], the engine sends, requests and notifies nothing.
    ///
    /// # Errors
    /// When the record is damaged or of another version, no protocol here has its name and encoding, or the slot is
    /// taken. The engine is as before then.
    pub fn import(&mut self, record: &[u8]) -> Result<u32, ImportError> {
        let record: Record = unframe(record)?;
        let slot = record.slot;
        self.import_connection(record)?;
        Ok(slot)
    }

    /// True while the engine waits for `Engine::on_drained` of a connection. In a connection that was taken over,
    /// all bytes may have left without that call.
    pub fn awaits_drained(&self, slot: u32) -> bool {
        self.core.table.get(slot).is_some_and(|found| found.is_backlogged())
    }

    /// Undoes [`Engine::import`], as if the connection had never been here: it has ended meanwhile, or its record has
    /// changed. No service is notified, and nothing counts it. False if the slot is empty. Only before
    /// [`Engine::restart`].
    pub fn forget_imported(&mut self, slot: u32) -> bool {
        self.forget_imported_connection(slot)
    }

    /// All engines have all of their connections, and the lists of owed messages: repeats the pending queries to the
    /// history, and closes connections that were about to close. The application gets the events of topics with
    /// members here, as from any engine.
    ///
    /// Afterwards the driver performs the outputs; calls [`on_drained`](Engine::on_drained) for each connection that
    /// [awaits it](Engine::awaits_drained) and whose bytes have all left; watches all sockets, reading those that are
    /// not [paused](Engine::is_paused) as if bytes had come; and goes on with its turns.
    pub fn restart(&mut self) {
        self.restart_connection();
        self.resume_inputs();
        let core = &self.core;
        tracing::debug!(
            shard = core.number,
            connections = core.table.count(),
            "connections were taken over"
        );
    }
}

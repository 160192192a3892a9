//! Connections on their way to another engine: each is written out as a record, and a new engine reads
//! it back, so that nobody outside can tell.
//!
//! # The format
//! A record is the version of the format (two bytes), the length of the rest (four bytes, both little
//! endian), and a CBOR map. The numbers of its fields stay the same for good, and so do those of phases,
//! flags and reasons to close. A reader passes over fields that it doesn't know. A field that is an
//! `Option`, or has a default, may be missing; a record without another one is damaged. So a field that
//! may be left out needs no new version. The map names the protocol and its encoding, and what a protocol
//! itself is in the middle of is the protocol's to read: [`Protocol::import`](protocol::Protocol::import).
//! Nothing in a record is a number of this process alone: topics go by their names, since their hashes
//! are keyed.
//!
//! # The order
//! 1. The new engines have the numbers and the node of the old ones. While the old ones serve, the driver
//!    gives each new one the record of its old one ([`Engine::export_engine`]), and then connections as they
//!    are just then, each in its old slot: slots are part of connections' ids. An export changes nothing, and
//!    an import only takes state: nobody is sent or told anything, and no limit keeps anybody out.
//! 2. The old engines [stand still](Engine::stand_still), and the driver reads no socket any more. When all of
//!    them [are still](Engine::is_still), it [takes what is owed](Engine::take_owed): what fan-outs have not
//!    done. If anything fails from here on, it gives that back, and the old engines [go on](Engine::go_on).
//! 3. It exports all connections again. Where one's record is another one than before, or the connection is
//!    gone, the new engine [forgets the import](Engine::forget_imported) and takes the new one, if there is one.
//!    The engine's own record comes again as well.
//! 4. The driver puts each socket in the connection's slot, with the outbox that it had, and counts the
//!    peer's address where those are limited.
//! 5. When all new engines have all of their connections, each [is given what is owed](Engine::give_owed) to these,
//!    and then the driver calls [`Engine::restart`], which says what is to be done after it.
//!
//! # What changes all the time
//! When a connection was last heard, and whether something was sent to it lately, stands in the engine's
//! record for all slots, three bytes each, and not in the connections': so the records of those that rest
//! stay the same.
//!
//! # What others hold
//! The registry of presence and that of MQTT sessions begin empty in another process. An import enters
//! there what the connection has, of which members know, and which others find; the rest of them comes by
//! their parts of the crate `handover`. What all engines count of users, addresses and sessions is counted by
//! the imports.
//!
//! # What goes on without a record
//! Answers that are under way come by the mailbox, with the connection's slot and serial. Those of webhooks
//! are passed on by who asks them. Those of the disk, and of a registry of presence on other nodes, are
//! waited for. What was asked of the history is asked again, and an answer to the old query is passed over.
//! The node's clock goes on, for times are its times. A connection that waits for slow members of a topic
//! goes on at once.

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

/// The version and the length.
const HEAD_BYTES: usize = 6;

/// What an engine itself goes on with.
#[derive(Encode, Decode)]
#[cbor(map)]
struct EngineRecord {
    #[n(0)]
    node: u32,
    #[n(1)]
    number: u16,
    /// How many connections were opened.
    #[n(2)]
    serial: u32,
    /// The last number of a query or a catch-up.
    #[n(3)]
    query: u32,
    /// The last number of a request to the application about a join.
    #[n(4)]
    join_request: u32,
    /// Every message with history up to this offset has been taken.
    #[n(5)]
    taken: u64,
    /// Where the sweep is.
    #[n(6)]
    stripes_passed: u64,
    /// In which second each stripe was last passed over.
    #[n(7)]
    stripes_last: Vec<u64>,
    /// The second that is being swept, the table's end in it, and how many stripes go together.
    #[n(8)]
    swept: Option<(u64, u64, u64)>,
    /// All slots are below this.
    #[n(9)]
    slots_end: u32,
    /// What changes all the time, of each slot: when it was last heard, in seconds of the node's clock that
    /// wrap around (two bytes, little endian), and whether something was sent since the sweep passed. It
    /// counts in place of what is in the connections' records.
    #[n(10)]
    vitals: Option<ByteVec>,
}

/// Puts the version and the length before a record, in place of what is in `bytes`.
fn frame<T: Encode<()>>(record: &T, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend_from_slice(&[0; HEAD_BYTES]);
    ::handover::encode_into(record, bytes);
    let length = count(bytes.len() - HEAD_BYTES);
    bytes[..2].copy_from_slice(&VERSION.to_le_bytes());
    bytes[2..HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
}

fn unframe<T: for<'b> Decode<'b, ()>>(bytes: &[u8]) -> Result<T, ImportError> {
    let cut = || ImportError::damaged("it is shorter than its head");
    let (version, rest) = bytes.split_first_chunk::<2>().ok_or_else(cut)?;
    let (length, body) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    match u16::from_le_bytes(*version) {
        VERSION => {}
        other => return Err(ImportError::Version(other)),
    }
    if body.len() != u32::from_le_bytes(*length) as usize {
        return Err(ImportError::damaged("it has not the length that it says"));
    }
    ::handover::decode(body).map_err(ImportError::damaged)
}

impl Engine {
    /// True when nothing is under way in the engine: no command or message waits, nobody is due
    /// anything now, and all outputs are performed. Never true while it drains.
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

    /// Writes out what the engine itself goes on with, at any time between two inputs. Changes nothing.
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

    /// Takes up what [`Engine::export_engine`] wrote: once before any connection, and again as often as it
    /// comes; the newest counts.
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
            // They come with their connections.
            core.broker.leave_filters(core.number);
        }
        core.joins.set_requests(record.join_request);
        self.sweep.import(record.stripes_passed, last, record.swept, core.now_us);
        Ok(())
    }

    /// Writes out a connection, at any time between two inputs; nothing where there is none. Changes nothing,
    /// and what has not changed is written with the same bytes again.
    pub fn export(&self, slot: u32) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.export_into(slot, &mut bytes).then_some(bytes)
    }

    /// The same in place of what is in `bytes`. False where there is no connection, and nothing is written.
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

    /// The slots of all connections, for [`Engine::export`].
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        let table = &self.core.table;
        (0..table.end()).filter(|slot| table.get(*slot).is_some())
    }

    /// Takes in a connection that [`Engine::export`] wrote, and gives its slot: the same as before.
    /// Nothing is sent, asked or told before [`Engine::restart`].
    ///
    /// # Errors
    /// When the record is damaged or of another version, nobody here speaks the protocol, or the slot is
    /// taken. The engine is as before then.
    pub fn import(&mut self, record: &[u8]) -> Result<u32, ImportError> {
        let record: Record = unframe(record)?;
        let slot = record.slot;
        self.import_connection(record)?;
        Ok(slot)
    }

    /// Whether the engine waits for the word that a connection's bytes have all left. Of a connection that was
    /// taken over they may have, with nobody to say so.
    pub fn awaits_drained(&self, slot: u32) -> bool {
        self.core.table.get(slot).is_some_and(|found| found.is_backlogged())
    }

    /// Takes a connection out again that [`Engine::import`] took in, as if it had never been here: it has
    /// gone meanwhile, or its record is another one by now. Nobody is told, and nothing counts it. False where
    /// the slot is empty. Only before [`Engine::restart`].
    pub fn forget_imported(&mut self, slot: u32) -> bool {
        self.forget_imported_connection(slot)
    }

    /// All engines have all of their connections, and what was owed to these: what they asked of the history is
    /// asked again, and who was about to close is closed. The application's side hears which topics have
    /// members here, as from any engine.
    ///
    /// Afterwards the driver performs the outputs; tells the engine [`drained`](Engine::on_drained) of each
    /// connection that [awaits that](Engine::awaits_drained) and whose bytes have all left; watches all
    /// sockets, reading those that are not [paused](Engine::is_paused) as if something had come; and goes
    /// on with its turns.
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

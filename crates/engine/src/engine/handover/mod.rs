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
//! 1. The driver lets its engines work until each of them [is quiet](Engine::is_quiet), and reads no
//!    socket any more. An engine that drains is never quiet: it ends instead.
//! 2. It exports the engine's own record, and then one for each connection. An export changes nothing.
//! 3. The new engines have the numbers and the node of the old ones. Each takes the engine's record first,
//!    and then the connections, each in its old slot: slots are part of connections' ids. An import only
//!    takes state: nobody is sent anything.
//! 4. The driver puts each socket in the connection's slot, with the outbox that it had, and counts the
//!    peer's address where those are limited.
//! 5. When all engines have all of their connections, the driver calls [`Engine::restart`], performs the
//!    outputs, and tells the engine [`drained`](Engine::drained) of each connection whose bytes have all
//!    left. Connections that were about to close are closed again by an output.
//!
//! # What goes on without a record
//! Answers that are under way come by the mailbox, with the connection's slot and serial: those of
//! webhooks, of a publish that waits for the disk, of a registry of presence on other nodes. Who hands
//! over to another process waits for them, or passes them on. What was asked of the history is asked
//! again, and an answer to the old query is passed over. The node's clock goes on, for times are its
//! times. A connection that waits for slow members of a topic goes on at once.

#[cfg(test)]
mod tests;

use minicbor::{Decode, Encode};

use super::Engine;
use super::sweep::STRIPES;
use crate::cbor::{ImportError, VERSION};
use crate::connections::{Connections, Restart};
use crate::count::count;
use crate::page_reads::PageReads;
use crate::poll::Polls;
use crate::record::Record;

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
}

/// No engine has so many slots. A record that says otherwise is damaged.
const SLOTS_MAX: u32 = 1 << 28;

/// Puts the version and the length before a record.
fn frame<T: Encode<()>>(record: &T) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES];
    // Writing to a vector does not fail.
    let _ = minicbor::encode(record, &mut bytes);
    let length = count(bytes.len() - HEAD_BYTES);
    bytes[..2].copy_from_slice(&VERSION.to_le_bytes());
    bytes[2..HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
    bytes
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
    let mut decoder = minicbor::Decoder::new(body);
    let record = decoder.decode().map_err(ImportError::damaged)?;
    match decoder.position() == body.len() {
        true => Ok(record),
        false => Err(ImportError::damaged("there is something behind its end")),
    }
}

impl Engine {
    /// True when nothing is under way in the engine: no command or message waits, nobody is due
    /// anything now, and all outputs are performed. Never true while it drains.
    pub fn is_quiet(&self) -> bool {
        let core = &self.connections.core;
        !self.has_outputs()
            && !self.is_busy(true)
            && !self.is_draining()
            && self.connections.recovery.is_quiet()
            && core.mqtt.is_quiet()
            && core.handle.inbox.queue.is_empty()
            && core.commands.is_empty()
            && core.effects.is_empty()
            && core.resumed.is_empty()
    }

    /// Writes out what the engine itself goes on with. Only for an engine that is quiet.
    pub fn export_engine(&self) -> Vec<u8> {
        debug_assert!(self.is_quiet());
        let Connections { core, recovery, serial, .. } = &self.connections;
        let (query, taken) = recovery.catchups.export_numbers();
        let (stripes_passed, last, swept) = self.sweep.export();
        frame(&EngineRecord {
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
        })
    }

    /// Takes up what [`Engine::export_engine`] wrote, before any connection.
    ///
    /// # Errors
    /// When the record is damaged, of another version, or of another engine or node.
    pub fn import_engine(&mut self, record: &[u8]) -> Result<(), ImportError> {
        let record: EngineRecord = unframe(record)?;
        let Connections { core, recovery, serial, restarts, .. } = &mut self.connections;
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
        recovery.catchups.import_numbers(record.query, record.taken);
        core.mqtt_taken = record.taken;
        // They come with their connections.
        core.broker.leave_filters(core.number);
        core.joins.set_requests(record.join_request);
        self.sweep.import(record.stripes_passed, last, record.swept, core.now_us);
        Ok(())
    }

    /// Writes out a connection; nothing where there is none. Changes nothing. Only for an engine that is
    /// quiet.
    pub fn export(&self, slot: u32) -> Option<Vec<u8>> {
        debug_assert!(self.is_quiet());
        self.connections.export(slot).map(|record| frame(&record))
    }

    /// The slots of all connections, for [`Engine::export`].
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        let table = &self.connections.core.table;
        (0..table.end()).filter(|slot| table.get(*slot).is_some())
    }

    /// Takes in a connection that [`Engine::export`] wrote, and gives its slot: the same as before.
    /// Nothing is sent or asked before [`Engine::restart`].
    ///
    /// # Errors
    /// When the record is damaged or of another version, nobody here speaks the protocol, or the slot is
    /// taken. The engine is as before then.
    pub fn import(&mut self, record: &[u8]) -> Result<u32, ImportError> {
        let record: Record = unframe(record)?;
        let slot = record.slot;
        self.connections.import(record)?;
        Ok(slot)
    }

    /// All engines have all of their connections: what these asked of the history is asked again, and who
    /// was about to close is closed.
    pub fn restart(&mut self) {
        for Restart { slot, reads_poll, reads } in self.connections.restarts.take() {
            Polls { connections: &mut self.connections }.restart(slot, reads_poll);
            self.connections.recover(|recovery, core| recovery.restart(core, slot, reads));
            PageReads { connections: &mut self.connections }.next(slot);
            self.connections.close_again(slot);
        }
        self.resume_inputs();
        let core = &self.connections.core;
        tracing::info!(
            shard = core.number,
            connections = core.table.count(),
            "connections were taken over"
        );
    }
}

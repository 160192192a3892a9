//! The unfinished part of fan-outs, on its way to another engine.

use std::sync::Arc;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use model::{Envelope, Name};

use crate::core::count::count;
use crate::engine::Engine;
use crate::handover::value::{ImportError, Text};

/// The most members of one list. More members make several lists.
const MEMBERS_MAX: usize = if cfg!(test) { 3 } else { 1 << 17 };

/// The most bytes of payload of one list, unless its only message is larger. More bytes make several lists.
const BYTES_MAX: usize = if cfg!(test) { 1 << 10 } else { 4 << 20 };

/// Members of one list, and messages that have not been sent to them yet.
#[derive(Clone, Debug)]
pub struct Owed {
    /// The topic or the filter of the members; `None` for a broadcast.
    pub list: Option<Name>,
    /// The messages, oldest first.
    pub messages: Vec<Arc<Envelope>>,
    /// The members.
    pub members: Vec<OwedMember>,
}

/// A connection that is owed messages of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwedMember {
    /// Its slot.
    pub slot: u32,
    /// Its serial: which of the connections that have had the slot.
    pub serial: u32,
    /// The index of the first message that is for it: all later ones are, too.
    pub first: u32,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct OwedRecord {
    #[n(0)]
    list: Option<Text<Name>>,
    /// Encoded by the crate `handover`.
    #[n(1)]
    messages: Vec<ByteVec>,
    /// Slot, serial and first message of each, four bytes each, little endian.
    #[n(2)]
    members: ByteVec,
}

/// The bytes of an encoded member.
const MEMBER_BYTES: usize = 12;

impl Owed {
    /// Encodes the list for another process.
    pub fn encode(&self) -> Vec<u8> {
        let Owed { list, messages, members } = self;
        let member = |OwedMember { slot, serial, first }: &OwedMember| {
            [*slot, *serial, *first].map(u32::to_le_bytes).concat()
        };
        let record = OwedRecord {
            list: list.clone().map(Text),
            messages: messages.iter().map(|it| handover::message::encode(it).into()).collect(),
            members: members.iter().flat_map(member).collect::<Vec<u8>>().into(),
        };
        handover::encode(record)
    }

    /// Decodes a list that [`Owed::encode`] wrote. `hash` returns the hash of a topic's or a filter's name in this
    /// process.
    ///
    /// # Errors
    /// When the bytes are damaged.
    pub fn decode(bytes: &[u8], hash: &dyn Fn(&str) -> u64) -> Result<Self, ImportError> {
        let OwedRecord { list, messages, members } =
            handover::decode(bytes).map_err(ImportError::damaged)?;
        let message = |bytes: &ByteVec| {
            let message = handover::message::decode(bytes, hash);
            message.map(Arc::new).map_err(ImportError::damaged)
        };
        let (members, []) = members.as_chunks::<MEMBER_BYTES>() else {
            return Err(ImportError::damaged("the list of members is incomplete"));
        };
        let member = |bytes: &[u8; MEMBER_BYTES]| {
            let number = |at: usize| {
                u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            };
            OwedMember { slot: number(0), serial: number(4), first: number(8) }
        };
        Ok(Owed {
            list: list.map(|list| list.0),
            messages: messages.iter().map(message).collect::<Result<_, _>>()?,
            members: members.iter().map(member).collect(),
        })
    }

    /// Splits the list into lists that are small enough to be passed on at once.
    fn pieces(self) -> Vec<Owed> {
        let Owed { list, messages, members } = self;
        let (mut pieces, mut begin) = (Vec::new(), 0);
        while begin < messages.len() {
            let (mut end, mut bytes) = (begin, 0);
            while let Some(message) = messages.get(end) {
                bytes += message.publication.bytes();
                if bytes > BYTES_MAX && end > begin {
                    break;
                }
                end += 1;
            }
            let (from, to) = (count(begin), count(end));
            let mine = members.iter().filter(|it| it.first < to);
            let mine: Vec<OwedMember> =
                mine.map(|it| OwedMember { first: it.first.max(from) - from, ..*it }).collect();
            for members in mine.chunks(MEMBERS_MAX) {
                pieces.push(Owed {
                    list: list.clone(),
                    messages: messages[begin..end].to_vec(),
                    members: members.to_vec(),
                });
            }
            begin = end;
        }
        pieces
    }
}

impl Engine {
    /// Takes out the unfinished part of all fan-outs and ends them, in the order in which each connection gets the
    /// messages. Called when the engine [is still](Engine::is_still). The lists go to the engine that replaces it, or
    /// back to this one, by [`Engine::give_owed`]. Each is small enough to be passed on at once, unless a single
    /// message is larger.
    pub fn take_owed(&mut self) -> Vec<Owed> {
        let Engine { core, .. } = self;
        let mut pieces = Vec::new();
        for hub::Owed { topic: list, messages, members } in core.hub.take_owed() {
            // The messages don't count as on their way in this engine any more.
            messages.iter().for_each(|message| core.handle.inbox.backlog.leave(message));
            let member = |(slot, first): (u32, u32)| {
                let serial = core.table.get(slot)?.serial;
                Some(OwedMember { slot, serial, first })
            };
            let members = members.into_iter().filter_map(member).collect();
            pieces.extend(Owed { list, messages, members }.pieces());
        }
        pieces
    }

    /// Takes over lists of owed messages, in the order in which they were taken: all their members that are here get
    /// the messages before anything published from now on. Called when all connections are here, and before
    /// [`Engine::restart`] or [`Engine::go_on`].
    pub fn give_owed(&mut self, owed: Vec<Owed>) {
        let Engine { core, restarts, .. } = self;
        for Owed { list, messages, members } in owed {
            // A message in several lists is one message in memory.
            let messages: Vec<Arc<Envelope>> = messages
                .into_iter()
                .map(|message| {
                    let key = (
                        message.topic_hash,
                        message.id.epoch.0,
                        message.id.offset,
                        message.published_us,
                    );
                    restarts.owed.entry(key).or_insert(message).clone()
                })
                .collect();
            messages.iter().for_each(|message| core.handle.inbox.backlog.enter(message));
            let is_here = |it: &OwedMember| {
                core.table.get(it.slot).is_some_and(|found| found.serial == it.serial)
            };
            let members =
                members.into_iter().filter(is_here).map(|it| (it.slot, it.first)).collect();
            let hash = list.as_deref().map_or(0, |list| core.broker.hash(list));
            core.hub.give_owed(hub::Owed { topic: list, messages, members }, hash);
        }
    }

    /// As [`Engine::give_owed`], with the bytes that [`Owed::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are damaged. The engine takes none of them then.
    pub fn give_owed_record(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        let broker = self.core.broker.clone();
        let owed = Owed::decode(bytes, &|name: &str| broker.hash(name))?;
        self.give_owed(vec![owed]);
        Ok(())
    }
}

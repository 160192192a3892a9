//! The tables of the file.

use redb::TableDefinition;

/// The format version that this program reads and writes.
pub(crate) const FORMAT: u64 = 1;

/// Facts about the whole store, by the names below.
pub(crate) const NODE: TableDefinition<'static, &str, u64> = TableDefinition::new("node");

/// The format version.
pub(crate) const NODE_FORMAT: &str = "format";
/// The epoch of the numbering.
pub(crate) const NODE_EPOCH: &str = "epoch";
/// The last offset that was stored or, after a close, handed in.
pub(crate) const NODE_LAST: &str = "last";
/// 1 when the last process closed the store.
pub(crate) const NODE_CLEAN: &str = "clean";
/// The highest offset that a topic had whose row is gone.
pub(crate) const NODE_GONE: &str = "gone";
/// The number for the next new topic.
pub(crate) const NODE_NEXT: &str = "next";
/// Topics that have a row and no messages.
pub(crate) const NODE_EMPTY: &str = "empty";

/// A topic's name to its row ([`crate::topic::Topic`]).
pub(crate) const TOPICS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("topics");

/// A topic's number and an offset to a message ([`crate::record`]).
pub(crate) const MESSAGES: TableDefinition<'static, (u64, u64), &[u8]> =
    TableDefinition::new("messages");

/// In compact topics: the topic's number and a key to the offset of the key's last message.
pub(crate) const KEYS: TableDefinition<'static, (u64, &str), u64> = TableDefinition::new("keys");

/// When a message goes (milliseconds since 1970), its topic's number and its offset, to the
/// topic's name.
pub(crate) const EXPIRIES: TableDefinition<'static, (u64, u64, u64), &str> =
    TableDefinition::new("expiries");

/// When a message was published and its offset to the topic and the key under which a repeat is
/// known.
pub(crate) const IDEMPOTENCY: TableDefinition<'static, (u64, u64), (&str, &str)> =
    TableDefinition::new("idempotency");

/// A user and a topic to the offset up to which everything is done.
pub(crate) const CURSORS: TableDefinition<'static, (&str, &str), u64> =
    TableDefinition::new("cursors");

/// A user to its packed subscriptions.
pub(crate) const SUBSCRIPTIONS: TableDefinition<'static, &str, &[u8]> =
    TableDefinition::new("subscriptions");

/// The number by which packed subscriptions mean a topic to the topic's name.
pub(crate) const NAMES: TableDefinition<'static, u32, &str> = TableDefinition::new("names");

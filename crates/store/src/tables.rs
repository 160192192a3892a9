//! The tables of the file. Their rows carry checksums ([`crate::sum`]).

use redb::TableDefinition;

/// The format version that this program reads and writes.
pub const FORMAT: u64 = 2;

/// The format version that this program brings up to its own when it opens it.
pub(crate) const FORMAT_BEFORE: u64 = 1;

/// What every version knows of a file; in later versions nothing but the format version.
pub(crate) const NODE: TableDefinition<'static, &str, u64> = TableDefinition::new("node");

/// The format version.
pub(crate) const NODE_FORMAT: &str = "format";

/// The one row of facts about the whole store ([`crate::facts`]).
pub(crate) const FACTS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("facts");

/// The row's key.
pub(crate) const FACTS_ROW: &str = "store";

/// A topic's name to its row ([`crate::topic::Topic`]).
pub(crate) const TOPICS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("topics");

/// A topic's number and an offset to a message ([`crate::record::Row`]).
pub(crate) const MESSAGES: TableDefinition<'static, (u64, u64), &[u8]> =
    TableDefinition::new("messages");

/// In compact topics: the topic's number and a key to the offset of the key's last message. What
/// it says is believed only where that message has the key.
pub(crate) const KEYS: TableDefinition<'static, (u64, &str), u64> = TableDefinition::new("keys");

/// When a message goes (milliseconds since 1970), its topic's number and its offset, to the
/// topic's name. What it says is believed only where that message has this time.
pub(crate) const EXPIRIES: TableDefinition<'static, (u64, u64, u64), &str> =
    TableDefinition::new("expiries");

/// When a message was published and its offset to the topic, the key under which a repeat is
/// known, and the row's checksum.
pub(crate) const IDEMPOTENCY: TableDefinition<'static, (u64, u64), (&str, &str, u64)> =
    TableDefinition::new("idempotency");

/// A user and a topic to the offset up to which everything is done, and the row's checksum.
pub(crate) const CURSORS: TableDefinition<'static, (&str, &str), (u64, u64)> =
    TableDefinition::new("cursors");

/// A user to its packed subscriptions behind their checksum.
pub(crate) const SUBSCRIPTIONS: TableDefinition<'static, &str, &[u8]> =
    TableDefinition::new("subscriptions");

/// The number by which packed subscriptions mean a topic to the topic's name, and the row's
/// checksum.
pub(crate) const NAMES: TableDefinition<'static, u32, (&str, u64)> = TableDefinition::new("names");

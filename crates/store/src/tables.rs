//! The tables of the file. Their rows carry checksums ([`crate::checksum`]).

use redb::TableDefinition;

/// The format version that this program reads and writes.
///
/// Changes of each version:
/// - 2: rows have checksums, and messages and topics are linked.
/// - 3: a message may have a sender. Otherwise it equals 2, so that a file of version 2 is used as it is, and its
///   version changes when it is opened.
/// - 4: there are records of other parts. A file of version 2 or 3 has none, and is used as it is.
/// - 5: a message may have the fields of MQTT publishers. A file of version 2 to 4 is used as it is.
pub const FORMAT: u64 = 5;

/// The format version whose files are written anew when they are opened.
pub(crate) const FIRST_FORMAT: u64 = 1;

/// Returns true for the format versions that this program can read.
pub(crate) fn is_known(format: u64) -> bool {
    (FIRST_FORMAT..=FORMAT).contains(&format)
}

/// The table that every version can read. In versions after the first it contains only the format version.
pub(crate) const FORMAT_TABLE: TableDefinition<'static, &str, u64> = TableDefinition::new("node");

/// The key of the format version.
pub(crate) const FORMAT_KEY: &str = "format";

/// The one row of metadata ([`crate::metadata`]).
pub(crate) const METADATA: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("facts");

/// The key of that row.
pub(crate) const METADATA_KEY: &str = "store";

/// Maps a topic's name to its row ([`crate::topic::TopicRow`]).
pub(crate) const TOPICS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("topics");

/// Maps a topic's number and an offset to a message ([`crate::record::MessageRow`]).
pub(crate) const MESSAGES: TableDefinition<'static, (u64, u64), &[u8]> =
    TableDefinition::new("messages");

/// In compacted topics: maps the topic's number and a key to the offset of the key's last message. An
/// entry counts only if that message has the key.
pub(crate) const KEYS: TableDefinition<'static, (u64, &str), u64> = TableDefinition::new("keys");

/// Maps a message's expiry (milliseconds since 1970), its topic's number and its offset to the
/// topic's name. An entry counts only if that message expires at this time.
pub(crate) const EXPIRIES: TableDefinition<'static, (u64, u64, u64), &str> =
    TableDefinition::new("expiries");

/// Maps a message's time and offset to its topic, its idempotency key, and the row's checksum.
pub(crate) const IDEMPOTENCY: TableDefinition<'static, (u64, u64), (&str, &str, u64)> =
    TableDefinition::new("idempotency");

/// Maps a user and a topic to the offset up to which everything is acknowledged, and the row's
/// checksum.
pub(crate) const CURSORS: TableDefinition<'static, (&str, &str), (u64, u64)> =
    TableDefinition::new("cursors");

/// Maps a user to the packed subscriptions behind their checksum.
pub(crate) const SUBSCRIPTIONS: TableDefinition<'static, &str, &[u8]> =
    TableDefinition::new("subscriptions");

/// Maps a record's part and key to the record behind its checksum.
pub(crate) const RECORDS: TableDefinition<'static, (&str, &str), &[u8]> =
    TableDefinition::new("records");

/// Maps the number by which packed subscriptions refer to a topic to the topic's name and the row's
/// checksum.
pub(crate) const NAMES: TableDefinition<'static, u32, (&str, u64)> = TableDefinition::new("names");

/// Maps the number of an event that the application has not received yet to its bytes behind their checksum. Only a
/// write of events creates the table, so that a file without it has none; programs that don't know it ignore it.
pub(crate) const EVENTS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("events");

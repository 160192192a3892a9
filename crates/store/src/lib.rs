//! Durable storage: messages of topics with history, users' cursors, durable subscriptions, idempotency keys, events
//! that the application has yet to receive, and records of other parts. A store is one redb file in a directory.
//!
//! **Writing.** Operations go into a bounded queue. One thread takes everything that waits, writes
//! it in one transaction, commits that to the disk (`fsync`), and calls each operation's `done` in
//! order. So many publishers share one `fsync`, and a single publisher waits for one.
//!
//! **Reading.** Any number of readers see the last commit, and they block no other thread.
//!
//! **Files and threads.** The file belongs to the descriptor table of the thread that called
//! [`Store::open`]. Threads with a descriptor table of their own must not read directly: they pass
//! a job to [`Store::read_later`]. Calls that only put an operation into the queue work on any
//! thread.
//!
//! **Damage.** On open, the store verifies a file of up to [`Options::verify_bytes_max`]
//! completely. In addition each row has a checksum, each message names the message before it, and
//! each topic the topic before it. So a read returns everything that was stored, or an error that
//! names the topic and the offsets ([`Damage`]), and never less. [`check`] lists all damage, and
//! [`salvage`] writes a new store of everything that is intact. The writer rejects operations on a
//! damaged topic and continues with all others. Deleting the topic's history removes its damage.
//!
//! **Copies.** [`Store::begin_backup`] copies the store as of one commit while it is in use, and [`back_up`]
//! copies one that no process has open. [`restore`] puts a copy into the place of a store, and [`compact`] rewrites
//! a file without its free pages. [`StoreExport`] reads the history of one for another place, and [`import`] writes a
//! store of a history from there.
//!
//! **Retention.** The rule that came with a topic's last message applies to the whole topic. Reads never return a
//! message that is too old or has expired. By number and by bytes a topic may exceed its rule by a tenth, so that the
//! writer can delete in bulk: reads skip this excess, up to 4,096 messages of it. The newest message stays whatever
//! its size. The store remembers a topic that has lost all its messages for another [`EMPTY_SECONDS_MAX`].
//!
//! **Compact topics** retain the last message of each key. The commit of a new message removes the
//! earlier one of its key, and the floor stays as it is: a client that has seen everything up to an
//! offset, and receives what came after it, knows the last state of each key. A message with a key
//! whose data is JSON `null` removes the key. It is a message like any other and
//! goes after [`REMOVAL_SECONDS`], and that does raise the floor. So does the expiry of a message
//! with a key. Messages without a key are retained as in any other topic.

mod backup;
mod backups;
mod batch;
mod check;
mod checksum;
mod clock;
mod coding;
mod compact;
mod copy_rows;
mod database;
mod destination;
mod disk;
mod error;
mod events;
mod export;
mod files;
mod handover;
mod import;
mod last_commit;
mod log_rows;
mod metadata;
mod open;
mod order;
mod panics;
mod passed;
mod queue;
mod read;
mod reader;
mod record;
mod record_more;
mod redb_header;
mod restore;
mod rewrite;
mod salvage;
mod shared;
mod small_tables;
mod source;
mod staged_file;
mod stats;
mod store;
mod tables;
mod topic;
mod topic_rows;
mod unsynced;
mod writer;

#[cfg(test)]
mod tests;

pub use backup::back_up;
pub use backups::Backup;
pub use batch::{PartRecord, REMOVAL_SECONDS, RecordPut};
pub use check::{Report, check};
pub use clock::{Age, AgeClock};
pub use compact::{Compacted, compact};
pub use error::{BackupError, Damage, OpenError, QueueError, RowError, StoreError};
pub use export::{ExportTopic, OtherRows, StoreExport};
pub use files::FILE;
pub use handover::can_read;
pub use import::{Imported, PutFailed, StoreImport, import};
pub use log_rows::{CursorRow, LogHead, LogKey, LogMessage, LogRow, LogTopic, TransferError};
pub use metadata::OFFSETS_SKIPPED;
pub use passed::Passed;
pub use read::{CountedMessages, ReadLimits, StoredMessages};
pub use reader::{ReadJob, Reader};
pub use record::Record;
pub use restore::restore;
pub use salvage::salvage;
pub use shared::Done;
pub use stats::{COMMIT_US, Dropped, Stats};
pub use store::{Append, OpenInfo, Options, Store};
pub use tables::FORMAT;
pub use writer::{EMPTY_SECONDS_MAX, EMPTY_TOPICS_MAX};

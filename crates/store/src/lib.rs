//! What outlives the process: messages of topics with history, users' cursors, durable
//! subscriptions, and the keys under which a repeated publish is known. One redb file in a
//! directory.
//!
//! **Writing.** What is to be written goes into a bounded queue. One thread takes all that waits,
//! writes it in one transaction, commits it to the disk (`fsync`), and calls each operation's
//! `done` in order. So many publishers share one `fsync`, and one alone waits for one.
//!
//! **Reading.** Any number of reads see the last commit and hold nothing up.
//!
//! **Files and threads.** The file is open in the descriptor table of the thread that called
//! [`Store::open`]. Where other threads have tables of their own, only threads that share that
//! one may call what reads: the store's own threads do, which is what [`Store::read_later`] is
//! for. What only puts something into the queue may be called anywhere.
//!
//! **Damage.** A file of up to [`Options::verify_bytes_max`] is looked at whole when it is opened.
//! Beside that each row has a checksum, each message knows the one before it and each topic the
//! topic before it, so that a read gives all that was stored or an error that names the topic and
//! the offsets ([`Damage`]), and never less. [`check`] names all damage; [`salvage`] writes a new
//! store of what is whole. The writer refuses what is for a damaged topic, and goes on with all
//! others; deleting the topic's history ends its damage.
//!
//! **Retention.** A topic's messages are held to its rule as of its last message. Reads never
//! give a message that is too old or has expired. By number and bytes the store keeps, and gives,
//! up to a tenth more than the rule says, so that much goes at once; the newest message stays
//! whatever its size. A topic that has lost all its messages is known for
//! [`EMPTY_SECONDS_MAX`] more.
//!
//! **Compact topics** keep the last message of each key; the one before goes with the commit of
//! the new one, and the floor does not tell: who has seen everything up to an offset and is given
//! what came after it knows the last state of each key. A message under a key whose data is JSON
//! `null` says that the key is no more. It is a message like any other, and goes after
//! [`TOMBSTONE_SECONDS`]; that does raise the floor, as it does when a message under a key expires
//! by its own time. Messages without a key are kept like in any other topic.

mod base;
mod batch;
mod check;
mod disk;
mod facts;
mod fault;
mod find;
mod header;
mod mark;
mod open;
mod queue;
mod quiet;
mod read;
mod record;
mod rewrite;
mod rows;
mod source;
mod stats;
mod store;
mod sum;
mod tables;
mod topic;
mod writer;

#[cfg(test)]
mod tests;

pub use batch::TOMBSTONE_SECONDS;
pub use check::{Report, check};
pub use fault::{Damage, Fault, OpenError, Refused};
pub use open::{FILE, OFFSETS_SKIPPED};
pub use read::{Amount, Stored};
pub use record::{BadRow, Record};
pub use rewrite::salvage;
pub use stats::{COMMIT_US, Stats};
pub use store::{Append, Done, Found, Options, ReadJob, Reader, Store};
pub use tables::FORMAT;
pub use writer::{EMPTY_SECONDS_MAX, EMPTY_TOPICS_MAX};

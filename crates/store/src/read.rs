//! What is read back.

use redb::{Database, ReadableDatabase};
use wire::Name;

use crate::fault::Trouble;
use crate::record::{Head, Record};
use crate::tables::{MESSAGES, NODE, NODE_GONE, TOPICS};
use crate::topic::Topic;

/// Rows that one read passes over beside those that it gives.
const PASSED_MAX: usize = 4_096;

/// How much to read; the first limit that is reached counts, but one message is always given.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Messages.
    pub messages_max: usize,
    /// The bytes of their payloads.
    pub bytes_max: usize,
}

/// Messages of a topic, as they are on disk at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The messages.
    pub records: Vec<Record>,
    /// A message at or below this offset that is not there may have been dropped; above it, what
    /// is not there never was, has expired, or was replaced under its key.
    pub floor: u64,
    /// The topic's last offset that was ever stored; 0 if nothing is known of the topic.
    pub last: u64,
    /// How far was looked: to go on, look after (or before) this offset.
    pub through: u64,
    /// There is something beyond.
    pub more: bool,
}

/// The topic's row, or the floor of topics that have none.
fn topic(txn: &redb::ReadTransaction, name: &str) -> Result<Result<Topic, u64>, Trouble> {
    if let Some(row) = txn.open_table(TOPICS)?.get(name)? {
        return Ok(Ok(Topic::read(row.value())?));
    }
    let gone = txn.open_table(NODE)?.get(NODE_GONE)?;
    Ok(Err(gone.map_or(0, |row| row.value())))
}

/// The topic's floor and its last offset.
pub(crate) fn ends(db: &Database, name: &str) -> Result<(u64, u64), Trouble> {
    let topic = topic(&db.begin_read()?, name)?;
    Ok(topic.map_or_else(|floor| (floor, 0), |topic| (topic.floor, topic.last)))
}

/// The topic's messages after an offset, oldest first.
pub(crate) fn after(
    db: &Database,
    name: &str,
    after: u64,
    amount: Amount,
    now_ms: u64,
) -> Result<Stored, Trouble> {
    read(db, name, amount, now_ms, After(after))
}

/// The topic's messages before an offset, newest first.
pub(crate) fn before(
    db: &Database,
    name: &str,
    before: u64,
    amount: Amount,
    now_ms: u64,
) -> Result<Stored, Trouble> {
    read(db, name, amount, now_ms, Before(before))
}

use Way::{After, Before};

#[derive(Clone, Copy)]
enum Way {
    After(u64),
    Before(u64),
}

fn read(
    db: &Database,
    name: &str,
    amount: Amount,
    now_ms: u64,
    way: Way,
) -> Result<Stored, Trouble> {
    let txn = db.begin_read()?;
    let (After(from) | Before(from)) = way;
    let mut stored = Stored { records: Vec::new(), floor: 0, last: 0, through: from, more: false };
    let topic = match topic(&txn, name)? {
        Ok(topic) => topic,
        Err(floor) => return Ok(Stored { floor, ..stored }),
    };
    (stored.floor, stored.last) = (topic.floor, topic.last);
    let messages = txn.open_table(MESSAGES)?;
    let (first, last) = match way {
        After(u64::MAX) | Before(0) => return Ok(stored),
        After(offset) => (offset + 1, u64::MAX),
        Before(offset) => (0, offset - 1),
    };
    let mut rows = messages.range((topic.number, first)..=(topic.number, last))?;
    let name = Name::from(name);
    let (mut bytes, mut passed) = (0, 0);
    while let Some(row) = if matches!(way, After(_)) { rows.next() } else { rows.next_back() } {
        let (key, value) = row?;
        let (offset, head) = (key.value().1, Head::read(value.value())?);
        if topic.keep.is_aged(head.at_ms, now_ms) {
            // It goes with the next sweep. Whatever is before it is older still.
            stored.floor = stored.floor.max(offset);
            if matches!(way, Before(_)) {
                return Ok(stored);
            }
        }
        if head.is_expired(now_ms) && topic.is_missed(&head) {
            // As its removal will tell.
            stored.floor = stored.floor.max(offset);
        }
        let is_given = !topic.keep.is_aged(head.at_ms, now_ms) && !head.is_expired(now_ms);
        let is_full = match is_given {
            true => {
                stored.records.len() >= amount.messages_max.max(1)
                    || (bytes + head.payload.len() > amount.bytes_max && !stored.records.is_empty())
            }
            false => passed >= PASSED_MAX,
        };
        if is_full {
            stored.more = true;
            return Ok(stored);
        }
        stored.through = offset;
        match is_given {
            true => {
                bytes += head.payload.len();
                stored.records.push(head.record(&name, offset)?);
            }
            false => passed += 1,
        }
    }
    if let After(_) = way {
        stored.through = stored.last.max(from);
    }
    Ok(stored)
}

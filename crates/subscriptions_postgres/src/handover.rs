//! Passes the position in the changes to another process, which has the table in memory from another part.

use handover::{Part, PartError, decode, encode};
use minicbor::{Decode, Encode};

use crate::postgres::Postgres;
use crate::session::Position;

/// The part's name, which stays for good.
pub const PART: &str = "subscriptions-postgres";

/// The key of the part's only record.
const POSITION: &[u8] = b"position";

/// The last change that a process has applied. The numbers of fields stay for good.
#[derive(Debug, Encode, Decode)]
#[cbor(map)]
struct PositionRecord {
    #[n(0)]
    epoch: u32,
    #[n(1)]
    change: u64,
}

/// The part that passes the position on. It is empty if the subscriptions are not in a database. A process that does
/// not get it reads all rows.
pub struct PostgresPart(Option<Postgres>);

impl PostgresPart {
    /// Makes the part of these subscriptions.
    pub fn new(postgres: Option<Postgres>) -> Self {
        PostgresPart(postgres)
    }
}

impl Part for PostgresPart {
    fn name(&self) -> &'static str {
        PART
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        if let Some(postgres) = &self.0 {
            let Position { epoch, change } = postgres.position();
            each(POSITION, &encode(PositionRecord { epoch, change }));
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        // A newer version's records may be here as well.
        let (Some(postgres), Some(value), true) = (&self.0, value, key == POSITION) else {
            return Ok(());
        };
        let record =
            decode::<PositionRecord>(value).map_err(|error| PartError::new(PART, error))?;
        postgres.set_position(Position { epoch: record.epoch, change: record.change });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_stands_like_this() {
        let bytes = encode(PositionRecord { epoch: 7, change: 300 });
        assert_eq!(bytes, b"\xa2\x00\x07\x01\x19\x01\x2c");
        // A newer version's fields are skipped.
        let newer = decode::<PositionRecord>(b"\xa3\x00\x07\x01\x05\x09\x01").unwrap();
        assert_eq!((newer.epoch, newer.change), (7, 5));
    }
}

//! A message's position in its log.

use std::fmt;
use std::str::FromStr;

/// A log's epoch: offsets compare only within one. Written in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(pub u32);

/// A message's position: `epoch:offset`, as every transport writes it (for example `5f3a91c2:1042`).
///
/// Offsets grow with every message of a topic and never repeat within an epoch. They may leave
/// gaps: topics without history share one log.
///
/// ```
/// use model::{Epoch, Position};
///
/// let id: Position = "5f3a91c2:1042".parse()?;
/// assert_eq!(id, Position { epoch: Epoch(0x5f3a91c2), offset: 1042 });
/// assert_eq!(id.to_string(), "5f3a91c2:1042");
/// // The server has begun anew: nothing can be said of what lies between.
/// let other: Position = "77aa0001:3".parse()?;
/// assert_ne!(other.epoch, id.epoch);
/// # Ok::<(), model::PositionError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// The epoch of the log.
    pub epoch: Epoch,
    /// The offset in it, from 1.
    pub offset: u64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.offset)
    }
}

/// The text is not `epoch:offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id has the form epoch:offset, 8 hexadecimal digits, a colon and a number")]
pub struct PositionError;

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        let (epoch, offset) = text.split_once(':').ok_or(PositionError)?;
        let digits = |text: &str, hex: bool| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || (hex && matches!(byte, b'a'..=b'f')))
        };
        if epoch.len() != 8 || !digits(epoch, true) || !digits(offset, false) {
            return Err(PositionError);
        }
        Ok(Position {
            epoch: Epoch(u32::from_str_radix(epoch, 16).map_err(|_| PositionError)?),
            offset: offset.parse().map_err(|_| PositionError)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = Position { epoch: Epoch(0x5f3a_91c2), offset: 1042 };
        assert_eq!(id.to_string(), "5f3a91c2:1042");
        assert_eq!("5f3a91c2:1042".parse(), Ok(id));
        for bad in [
            "",
            ":",
            "5f3a91c2",
            "5f3a91c2:",
            "5f3a91c2:-1",
            "5f3a91c2:+1",
            "+f3a91c2:1",
            "x:1",
            "5F3A91C2:1",
            "5f3a91c2:1:2",
            "5f3a91c2:99999999999999999999",
        ] {
            assert_eq!(bad.parse::<Position>(), Err(PositionError), "{bad}");
        }
    }
}

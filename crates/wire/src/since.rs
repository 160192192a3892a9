//! What a client says it has seen: the id of its last message, and where one id can't say it, how
//! far it has everything.
//!
//! ```text
//! 5f3a91c2:1042                   this message, and all before it
//! 5f3a91c2:1042/1050-9c0f33aa.1043  this message; of all topics everything through 1050, but of one
//!                                 topic only through 1043
//! 77aa0001:9/5f3a91c2:1050        this message, of another numbering; everything through 1050
//! ```

use std::fmt;
use std::str::FromStr;

use crate::{Epoch, Id};

/// The topics that a [`Position`] may name when it is read.
pub const BEHIND_MAX: usize = 256;

/// How far a connection has everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Everything up to here, but for what some topics are behind.
    pub through: Id,
    /// Topics of which it has less, in no order.
    pub behind: Vec<Behind>,
}

/// A topic of which a connection has less than of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Which topic, by its [`mark`].
    pub topic: u32,
    /// Everything of it up to this offset.
    pub through: u64,
}

/// What a topic's name is shortened to in a position: FNV-1a of 32 bits, the same on every node.
/// Two topics of one connection that share it are both given from the lesser place: something may
/// come twice then, and nothing is lost.
pub fn mark(topic: &str) -> u32 {
    topic.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl Position {
    /// Everything up to here.
    pub fn at(through: Id) -> Self {
        Position { through, behind: Vec::new() }
    }
}

/// What a client says it has seen last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// The last message.
    pub id: Id,
    /// How far it has everything, where that does not follow from the last message.
    pub position: Option<Position>,
}

impl Since {
    /// How far it has everything in the numbering of this epoch; `None` if it names another.
    pub fn position(&self, epoch: Epoch) -> Option<Position> {
        let own = || Position::at(self.id);
        let position = self.position.clone().unwrap_or_else(own);
        Some(position).filter(|position| position.through.epoch == epoch)
    }

    /// The offset up to which it has everything, in the numbering of this epoch, for whoever follows
    /// one topic; `None` if it names another epoch.
    pub fn offset(&self, epoch: Epoch) -> Option<u64> {
        let ids = [Some(self.id), self.position.as_ref().map(|position| position.through)];
        ids.into_iter().flatten().find(|id| id.epoch == epoch).map(|id| id.offset)
    }
}

/// Why what a client missed can't be given to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It names a place of another numbering: the server, or its store, began anew since then.
    Epoch,
    /// Messages after its place are no longer kept.
    TooOld,
    /// Nothing is kept of the topic's messages.
    NoHistory,
}

impl Lost {
    /// The reason as clients are told it: `epoch_changed`, `too_old` or `no_history`.
    pub fn name(self) -> &'static str {
        match self {
            Lost::Epoch => "epoch_changed",
            Lost::TooOld => "too_old",
            Lost::NoHistory => "no_history",
        }
    }
}

impl From<Id> for Since {
    fn from(id: Id) -> Self {
        Since { id, position: None }
    }
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        let Some(Position { through, behind }) = &self.position else {
            return Ok(());
        };
        match through.epoch == self.id.epoch {
            true => write!(f, "/{}", through.offset)?,
            false => write!(f, "/{through}")?,
        }
        behind.iter().try_for_each(|it| write!(f, "-{:08x}.{}", it.topic, it.through))
    }
}

/// The text is no id that this server gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSince;

impl fmt::Display for BadSince {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "since is the id of a message as it came, like 5f3a91c2:1042: 8 hexadecimal digits, a \
             colon and a number, and what may follow after a slash",
        )
    }
}

impl std::error::Error for BadSince {}

impl FromStr for Since {
    type Err = BadSince;

    fn from_str(text: &str) -> Result<Self, BadSince> {
        let (id, rest) = match text.split_once('/') {
            Some((id, rest)) => (id, Some(rest)),
            None => (text, None),
        };
        let id: Id = id.parse().map_err(|_| BadSince)?;
        let position = rest.map(|rest| position(id.epoch, rest)).transpose()?;
        Ok(Since { id, position })
    }
}

fn position(epoch: Epoch, text: &str) -> Result<Position, BadSince> {
    let mut parts = text.split('-');
    let first = parts.next().ok_or(BadSince)?;
    let through = match first.contains(':') {
        true => first.parse().map_err(|_| BadSince)?,
        false => Id { epoch, offset: number(first)? },
    };
    let behind: Vec<Behind> = parts.map(self::behind).collect::<Result<_, _>>()?;
    if behind.len() > BEHIND_MAX {
        return Err(BadSince);
    }
    Ok(Position { through, behind })
}

fn behind(text: &str) -> Result<Behind, BadSince> {
    let (topic, through) = text.split_once('.').ok_or(BadSince)?;
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if topic.len() != 8 || !topic.bytes().all(hex) {
        return Err(BadSince);
    }
    let topic = u32::from_str_radix(topic, 16).map_err(|_| BadSince)?;
    Ok(Behind { topic, through: number(through)? })
}

fn number(text: &str) -> Result<u64, BadSince> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().map_err(|_| BadSince),
        false => Err(BadSince),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Epoch = Epoch(0x5f3a_91c2);

    #[test]
    fn it_is_read_as_documented() {
        let since: Since = "5f3a91c2:1042/1050-9c0f33aa.1043-00000001.7".parse().unwrap();
        assert_eq!(since.id, Id { epoch: EPOCH, offset: 1042 });
        let position = since.position(EPOCH).unwrap();
        let behind = |topic, through| Behind { topic, through };
        let want = vec![behind(0x9c0f_33aa, 1043), behind(1, 7)];
        assert_eq!((position.through.offset, position.behind), (1050, want));
        assert_eq!(mark("room:1"), mark("room:1"));
        assert_ne!(mark("room:1"), mark("room:2"));
        let plain: Since = "5f3a91c2:7".parse().unwrap();
        assert_eq!(plain.position(EPOCH), Some(Position::at(plain.id)));
        assert_eq!(plain.position(Epoch(1)), None);
        let other: Since = "77aa0001:9/5f3a91c2:1050".parse().unwrap();
        assert_eq!(other.position(EPOCH).unwrap().through.offset, 1050);
        assert_eq!((other.offset(EPOCH), other.offset(Epoch(0x77aa_0001))), (Some(1050), Some(9)));
        for bad in [
            "",
            "5f3a91c2:1/",
            "5f3a91c2:1/x",
            "5f3a91c2:1/2-",
            "5f3a91c2:1/2-3",
            "5f3a91c2:1/2-0000000g.1",
            "/2",
        ] {
            assert_eq!(bad.parse::<Since>(), Err(BadSince), "{bad}");
        }
        let long = format!("5f3a91c2:1/2{}", "-00000000.1".repeat(BEHIND_MAX + 1));
        assert_eq!(long.parse::<Since>(), Err(BadSince));
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read(
            own in proptest::prelude::any::<(u32, u64)>(),
            through in proptest::option::of((0..3u32, proptest::prelude::any::<u64>())),
            behind in proptest::collection::vec(proptest::prelude::any::<(u32, u64)>(), 0..5),
        ) {
            let id = |(epoch, offset)| Id { epoch: Epoch(epoch), offset };
            let behind: Vec<Behind> =
                behind.into_iter().map(|(topic, through)| Behind { topic, through }).collect();
            let position = through.map(|through| Position { through: id(through), behind });
            let since = Since { id: id(own), position };
            proptest::prop_assert_eq!(since.to_string().parse(), Ok(since));
        }

        #[test]
        fn nothing_panics(text in ".{0,40}") {
            let _ = text.parse::<Since>();
        }
    }
}

//! Resume tokens: the id of the last message that a client saw, and if one id is not enough, how far the client has
//! everything.
//!
//! ```text
//! 5f3a91c2:1042                   this message, and all before it
//! 5f3a91c2:1042/1050-9c0f33aa.1043  this message; of all topics everything through 1050, but of one
//!                                 topic only through 1043
//! 77aa0001:9/5f3a91c2:1050        this message, of another log; everything through 1050
//! ```
//!
//! **Partitions.** A log is one sequence today. The format allows a log in several partitions, each with offsets of
//! its own: a position may name its partition, a decimal number, between the epoch and the offset, and the text
//! behind each further slash says how far the client has everything of another partition. A topic is in one
//! partition, so its mark names none.
//!
//! ```text
//! 5f3a91c2.7:1042                 this message of partition 7, and all before it there
//! 5f3a91c2.7:1042/5f3a91c2.7:1050-9c0f33aa.1043/5f3a91c2.8:77
//!                                 this message of partition 7; of partition 7 everything through 1050,
//!                                 but of one topic only through 1043; of partition 8 through 77
//! ```
//!
//! No server writes such a text yet. A server that reads one knows none of these partitions, and replies as for any
//! log that no longer exists, with `epoch_changed`: see [`ELSEWHERE`].

use std::fmt;
use std::str::FromStr;

use crate::{Epoch, ErrorCode, Position};

/// The most topics that a [`Frontier`] may name in a token.
pub const BEHIND_MAX: usize = 256;

/// The position to which a token with a partition is parsed, and which stands for an id of another server. No log
/// assigns it: its offset is above all others, so that even a log of this epoch does not know it.
pub const ELSEWHERE: Position = Position { epoch: Epoch(0), offset: u64::MAX };

/// How far a connection has everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontier {
    /// The connection has everything up to here, except of the topics in `behind`.
    pub through: Position,
    /// Topics of which the connection has less, in no order.
    pub behind: Vec<Behind>,
}

/// A topic of which a connection has less than of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// The topic, by its [`mark`].
    pub topic: u32,
    /// The connection has everything of the topic up to this offset.
    pub through: u64,
}

/// Returns the short form of a topic's name in a token: FNV-1a of 32 bits, the same on every node. If two topics of
/// one connection share it, the server delivers both from the lesser offset: a message may then come twice, and
/// none is lost.
pub fn mark(topic: &str) -> u32 {
    topic.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns the mark that a client has only a part of the state of a compacted topic. In a frontier it stands beside the
/// topic's [`mark`], with the last offset of the log when the client began to read the state. Servers that do not know
/// it ignore it.
pub fn state_mark(topic: &str) -> u32 {
    !mark(topic)
}

impl Frontier {
    /// Returns a frontier with everything up to here.
    pub fn at(through: Position) -> Self {
        Frontier { through, behind: Vec::new() }
    }
}

/// A client's token: the last message that it saw, as `since` and `Last-Event-ID` give it.
///
/// ```
/// use model::{Epoch, ResumeToken};
///
/// // A client of several topics saw message 1042. It has everything through 1050, but of one topic only
/// // through 1043.
/// let token: ResumeToken = "5f3a91c2:1042/1050-9c0f33aa.1043".parse()?;
/// let frontier = token.frontier(Epoch(0x5f3a91c2)).unwrap();
/// assert_eq!((token.id.offset, frontier.through.offset), (1042, 1050));
/// assert_eq!(frontier.behind[0].through, 1043);
/// // Of another epoch it has nothing.
/// assert_eq!(token.frontier(Epoch(1)), None);
/// # Ok::<(), model::ResumeTokenError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    /// The last message.
    pub id: Position,
    /// How far it has everything, if that does not follow from the last message.
    pub frontier: Option<Frontier>,
}

impl ResumeToken {
    /// Returns how far the client has everything of the log of this epoch; `None` if the token names another.
    pub fn frontier(&self, epoch: Epoch) -> Option<Frontier> {
        let own = || Frontier::at(self.id);
        let frontier = self.frontier.clone().unwrap_or_else(own);
        Some(frontier).filter(|frontier| frontier.through.epoch == epoch)
    }

    /// Returns the offset up to which a client of one topic has everything of the log of this epoch; `None` if the
    /// token names another.
    pub fn offset(&self, epoch: Epoch) -> Option<u64> {
        let ids = [Some(self.id), self.frontier.as_ref().map(|frontier| frontier.through)];
        ids.into_iter().flatten().find(|id| id.epoch == epoch).map(|id| id.offset)
    }
}

/// Why the server can't deliver what a client missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryGap {
    /// The token names another epoch: the server, or its store, began anew since then.
    Epoch,
    /// History no longer has the messages after the token's position.
    TooOld,
    /// The topic has no history.
    NoHistory,
}

impl RecoveryGap {
    /// The reason's name for clients: `epoch_changed`, `too_old` or `no_history`.
    pub fn name(self) -> &'static str {
        match self {
            RecoveryGap::Epoch => ErrorCode::EpochChanged.text(),
            RecoveryGap::TooOld => "too_old",
            RecoveryGap::NoHistory => ErrorCode::NoHistory.text(),
        }
    }
}

impl From<Position> for ResumeToken {
    fn from(id: Position) -> Self {
        ResumeToken { id, frontier: None }
    }
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        let Some(Frontier { through, behind }) = &self.frontier else {
            return Ok(());
        };
        match through.epoch == self.id.epoch {
            true => write!(f, "/{}", through.offset)?,
            false => write!(f, "/{through}")?,
        }
        behind.iter().try_for_each(|it| write!(f, "-{:08x}.{}", it.topic, it.through))
    }
}

/// The text is no id that a server assigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "since must be the id of a message exactly as it was received, like 5f3a91c2:1042: 8 \
     hexadecimal digits, a colon and a number, and the part after the slash if it has one"
)]
pub struct ResumeTokenError;

impl FromStr for ResumeToken {
    type Err = ResumeTokenError;

    fn from_str(text: &str) -> Result<Self, ResumeTokenError> {
        let mut parts = text.split('/');
        let (id, mut is_elsewhere) = position(parts.next().ok_or(ResumeTokenError)?)?;
        let mut first = None;
        for (at, part) in parts.enumerate() {
            let (frontier, is_partitioned) = frontier(id.epoch, part)?;
            if at > 0 && !is_partitioned {
                return Err(ResumeTokenError);
            }
            is_elsewhere |= is_partitioned;
            first.get_or_insert(frontier);
        }
        Ok(match is_elsewhere {
            true => ELSEWHERE.into(),
            false => ResumeToken { id, frontier: first },
        })
    }
}

/// Parses a position, and returns whether it names a partition.
fn position(text: &str) -> Result<(Position, bool), ResumeTokenError> {
    let Some((epoch, rest)) = text.split_once('.') else {
        return Ok((text.parse().map_err(|_| ResumeTokenError)?, false));
    };
    let (partition, offset) = rest.split_once(':').ok_or(ResumeTokenError)?;
    u32::try_from(number(partition)?).map_err(|_| ResumeTokenError)?;
    let position = format!("{epoch}:{offset}").parse().map_err(|_| ResumeTokenError)?;
    Ok((position, true))
}

/// Parses how far a client has everything of a log or a partition. Returns whether that names a partition.
fn frontier(epoch: Epoch, text: &str) -> Result<(Frontier, bool), ResumeTokenError> {
    let mut parts = text.split('-');
    let first = parts.next().ok_or(ResumeTokenError)?;
    let (through, is_partitioned) = match first.contains(':') {
        true => position(first)?,
        false => (Position { epoch, offset: number(first)? }, false),
    };
    let behind: Vec<Behind> = parts.map(self::behind).collect::<Result<_, _>>()?;
    if behind.len() > BEHIND_MAX {
        return Err(ResumeTokenError);
    }
    Ok((Frontier { through, behind }, is_partitioned))
}

fn behind(text: &str) -> Result<Behind, ResumeTokenError> {
    let (topic, through) = text.split_once('.').ok_or(ResumeTokenError)?;
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if topic.len() != 8 || !topic.bytes().all(hex) {
        return Err(ResumeTokenError);
    }
    let topic = u32::from_str_radix(topic, 16).map_err(|_| ResumeTokenError)?;
    Ok(Behind { topic, through: number(through)? })
}

fn number(text: &str) -> Result<u64, ResumeTokenError> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().map_err(|_| ResumeTokenError),
        false => Err(ResumeTokenError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Epoch = Epoch(0x5f3a_91c2);

    #[test]
    fn a_token_is_read_as_documented() {
        let token: ResumeToken = "5f3a91c2:1042/1050-9c0f33aa.1043-00000001.7".parse().unwrap();
        assert_eq!(token.id, Position { epoch: EPOCH, offset: 1042 });
        let frontier = token.frontier(EPOCH).unwrap();
        let behind = |topic, through| Behind { topic, through };
        let want = vec![behind(0x9c0f_33aa, 1043), behind(1, 7)];
        assert_eq!((frontier.through.offset, frontier.behind), (1050, want));
        assert_eq!(mark("room:1"), mark("room:1"));
        assert_ne!(mark("room:1"), mark("room:2"));
        let plain: ResumeToken = "5f3a91c2:7".parse().unwrap();
        assert_eq!(plain.frontier(EPOCH), Some(Frontier::at(plain.id)));
        assert_eq!(plain.frontier(Epoch(1)), None);
        let other: ResumeToken = "77aa0001:9/5f3a91c2:1050".parse().unwrap();
        assert_eq!(other.frontier(EPOCH).unwrap().through.offset, 1050);
        assert_eq!((other.offset(EPOCH), other.offset(Epoch(0x77aa_0001))), (Some(1050), Some(9)));
        for bad in [
            "",
            "5f3a91c2:1/",
            "5f3a91c2:1/x",
            "5f3a91c2:1/2-",
            "5f3a91c2:1/2-3",
            "5f3a91c2:1/2-0000000g.1",
            "5f3a91c2:1/2/3",
            "/2",
        ] {
            assert_eq!(bad.parse::<ResumeToken>(), Err(ResumeTokenError), "{bad}");
        }
        let long = format!("5f3a91c2:1/2{}", "-00000000.1".repeat(BEHIND_MAX + 1));
        assert_eq!(long.parse::<ResumeToken>(), Err(ResumeTokenError));
    }

    #[test]
    fn an_unknown_partition_is_a_log_that_is_no_more() {
        for text in [
            "5f3a91c2.7:1042",
            "5f3a91c2.0:1042",
            "5f3a91c2.7:1042/1050-9c0f33aa.1043",
            "5f3a91c2:1042/5f3a91c2.7:1050-9c0f33aa.1043",
            "5f3a91c2.7:1042/5f3a91c2.7:1050-9c0f33aa.1043/5f3a91c2.8:77",
            "77aa0001:9/5f3a91c2:1050/5f3a91c2.1:3-00000001.7",
        ] {
            let token: ResumeToken = text.parse().unwrap();
            assert_eq!(token, ELSEWHERE.into(), "{text}");
            assert_eq!((token.frontier(EPOCH), token.offset(EPOCH)), (None, None), "{text}");
        }
        for bad in [
            "5f3a91c2.:1042",
            "5f3a91c2.x:1042",
            "5f3a91c2.-1:1042",
            "5f3a91c2.4294967296:1",
            "5f3a91c2.7",
            "5f3a91c.7:1",
            "5f3a91c2.7:",
            "5f3a91c2.7.8:1",
            "5f3a91c2.7:1/",
            "5f3a91c2.7:1/5f3a91c2.7:2/3",
            "5f3a91c2:1/2-9c0f33aa.7:1043",
        ] {
            assert_eq!(bad.parse::<ResumeToken>(), Err(ResumeTokenError), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_written_token_is_read_back(
            own in proptest::prelude::any::<(u32, u64)>(),
            through in proptest::option::of((0..3u32, proptest::prelude::any::<u64>())),
            behind in proptest::collection::vec(proptest::prelude::any::<(u32, u64)>(), 0..5),
        ) {
            let id = |(epoch, offset)| Position { epoch: Epoch(epoch), offset };
            let behind: Vec<Behind> =
                behind.into_iter().map(|(topic, through)| Behind { topic, through }).collect();
            let frontier = through.map(|through| Frontier { through: id(through), behind });
            let token = ResumeToken { id: id(own), frontier };
            proptest::prop_assert_eq!(token.to_string().parse(), Ok(token));
        }

        #[test]
        fn nothing_panics(text in ".{0,40}", like in "[0-9a-f:./-]{0,60}") {
            let _ = text.parse::<ResumeToken>();
            let _ = like.parse::<ResumeToken>();
        }
    }
}

//! A connection's id.

use std::fmt;
use std::str::FromStr;

use crate::NodeId;

/// A connection's id in the API: `node-shard-slot-serial`, for example `5f3a91c2-0-12-345`. The serial makes it
/// unique for the lifetime of the process, which uses slots again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    /// The node.
    pub node: NodeId,
    /// The shard on the node.
    pub shard: u16,
    /// The slot on the shard.
    pub slot: u32,
    /// How many connections the shard had before it.
    pub serial: u32,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{}", self.node, self.shard, self.slot, self.serial)
    }
}

/// The text is no connection's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a connection has the form node-shard-slot-serial")]
pub struct ConnectionIdError;

impl FromStr for ConnectionId {
    type Err = ConnectionIdError;

    fn from_str(text: &str) -> Result<Self, ConnectionIdError> {
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(ConnectionIdError);
        let (node, shard, slot, serial) = (next()?, next()?, next()?, next()?);
        let invalid = |_| ConnectionIdError;
        if node.len() != 8 {
            return Err(ConnectionIdError);
        }
        let id = ConnectionId {
            node: NodeId(u32::from_str_radix(node, 16).map_err(invalid)?),
            shard: shard.parse().map_err(invalid)?,
            slot: slot.parse().map_err(invalid)?,
            serial: serial.parse().map_err(invalid)?,
        };
        if parts.next().is_some() { Err(ConnectionIdError) } else { Ok(id) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = ConnectionId { node: NodeId(0x5f3a_91c2), shard: 7, slot: 12, serial: 345 };
        assert_eq!(id.to_string(), "5f3a91c2-7-12-345");
        assert_eq!("5f3a91c2-7-12-345".parse(), Ok(id));
        for text in ["", "7-12-345", "5f3a91c2-7-12", "5f3a91c2-7-12-345-6", "5f3a-7-12-345", "x"] {
            assert_eq!(text.parse::<ConnectionId>(), Err(ConnectionIdError), "{text}");
        }
    }
}

//! A topic and its list of members.

use tables::List;

/// A topic's name; up to 24 bytes are stored inline.
pub type Name = compact_str::CompactString;

/// Marks the position of a member that has left while a fan-out ran.
pub(crate) const HOLE: u32 = u32::MAX;

/// A topic with members, or with a fan-out that is not over.
pub(crate) struct Topic {
    pub name: Name,
    /// The low half of the name's hash.
    pub hash: u32,
    pub members: Members,
    /// The number of the running fan-out.
    pub fanout: u32,
}

/// A topic with one member, as every personal topic is, stores it inline.
#[derive(Clone, Copy)]
pub(crate) enum Members {
    None,
    One(u32),
    /// The number of a list.
    Many(u32),
}

/// Converts a number of members or positions. Slots are numbers of 32 bits, so it is never larger.
pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A list of members. While a fan-out runs over it, new members come at the end and leaving members leave a hole:
/// positions don't change, so the fan-out skips no member and meets none twice.
#[derive(Default)]
pub(crate) struct Many {
    pub slots: List<u32>,
    pub holes: Vec<u32>,
}

impl Many {
    pub fn of(slots: &[u32]) -> Self {
        let mut many = Many::default();
        slots.iter().for_each(|slot| many.slots.push(*slot));
        many
    }

    pub fn members(&self) -> u32 {
        count(self.slots.len() - self.holes.len())
    }
}

//! A part of what a process holds.

/// Takes the key and the value of a record; without a value it may be known already, and the answer says
/// whether it is.
pub type Again<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> bool + 'a;

/// Takes the key and the value of a record that is new or has changed; without a value it is gone.
pub type Changed<'a> = dyn FnMut(&[u8], Option<&[u8]>) + 'a;

/// A part of what a process holds besides its connections, on its way to another process.
pub trait Part: Send + Sync {
    /// Its name, which stays for good.
    fn name(&self) -> &'static str;

    /// Gives each record: its key, and what stands under it. A key comes once.
    ///
    /// Called while the process serves, and once more when nothing changes any more. The part must not hold
    /// a lock for longer than some milliseconds while it serves, and calls `each` without a lock that others
    /// wait for. What changes meanwhile may be in it or not.
    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8]));

    /// The same for a round after others: records that never change are given without their values, so that one
    /// who has them already costs next to nothing. `each` gives whether it knew the record; where it didn't,
    /// the record is given once more, with its value. What it answers to a record with a value means nothing.
    fn export_again(&self, each: &mut Again<'_>) {
        self.export(&mut |key, value| _ = each(key, Some(value)));
    }

    /// Records beside those of [`export`](Part::export) and [`export_again`](Part::export_again), whose keys are
    /// numbers (8 bytes, the highest first): they never change, new ones have higher numbers than all before, and
    /// the lowest go first. Gives those from the number `from` on, in their order, and returns the lowest number
    /// that is still there; what is higher and was given once costs nothing in later rounds.
    fn export_numbered(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> u64 {
        let _ = (from, each);
        0
    }

    /// Takes a record, in place of the one that has this key; without a value nothing stands under the key
    /// any more. The process doesn't serve yet.
    ///
    /// # Errors
    /// When the record is damaged.
    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError>;

    /// All records have come.
    ///
    /// # Errors
    /// When they don't fit together.
    fn complete(&self) -> Result<(), PartError> {
        Ok(())
    }
}

/// Exports a part whose [`Part::export_again`] gives records without their values, or that has numbered ones: knows
/// none of them, so that all values come.
pub fn export_all(part: &dyn Part, each: &mut dyn FnMut(&[u8], &[u8])) {
    part.export_numbered(0, &mut |number, value| each(&number.to_be_bytes(), value));
    part.export_again(&mut |key, value| {
        value.into_iter().for_each(|value| each(key, value));
        false
    });
}

/// Why a record can't be taken.
#[derive(Debug, thiserror::Error)]
#[error("{part}: a record of another process is damaged: {what}")]
pub struct PartError {
    /// The part.
    pub part: &'static str,
    /// What is wrong with it.
    pub what: String,
}

impl PartError {
    /// A damaged record of this part.
    pub fn new(part: &'static str, what: impl ToString) -> Self {
        PartError { part, what: what.to_string() }
    }
}

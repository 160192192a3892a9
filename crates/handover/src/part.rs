//! A part of a process's state.

/// Takes the key and the value of a record. Without a value the record may be known already, and the result says
/// whether it is.
pub type Again<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> bool + 'a;

/// Takes the key and the value of a record that is new or has changed; without a value the record is gone.
pub type Changed<'a> = dyn FnMut(&[u8], Option<&[u8]>) + 'a;

/// A part of a process's state besides its connections, on its way to another process.
pub trait Part: Send + Sync {
    /// Returns the name, which never changes.
    fn name(&self) -> &'static str;

    /// Passes each record to `each`: its key and its value. A key comes once.
    ///
    /// Called while the process serves, and once more when nothing changes any more. The part must not hold a lock
    /// for longer than some milliseconds while it serves, and calls `each` without a lock that others wait for.
    /// Concurrent changes may be included or not.
    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8]));

    /// Like [`export`](Part::export), for a later round: passes records that never change without their values, so
    /// that known ones cost next to nothing. `each` returns whether it knew the record. If not, it gets the record
    /// once more, with its value. Its result for a record with a value means nothing.
    fn export_again(&self, each: &mut Again<'_>) {
        self.export(&mut |key, value| _ = each(key, Some(value)));
    }

    /// Passes records beside those of [`export`](Part::export) and [`export_again`](Part::export_again), whose keys
    /// are numbers (8 bytes, big endian): they never change, new ones have higher numbers than all before, and the
    /// lowest go first. Passes those from the number `from` on, in order, and returns the lowest number that still
    /// exists. Higher ones that were passed once cost nothing in later rounds.
    fn export_numbered(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> u64 {
        let _ = (from, each);
        0
    }

    /// Takes a record in place of the one with this key; without a value removes that one. Called before the
    /// process serves.
    ///
    /// # Errors
    /// When the record is damaged.
    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError>;

    /// Called after the last record.
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

/// The reason why a record can't be taken.
#[derive(Debug, thiserror::Error)]
#[error("{part}: a record of another process is damaged: {what}")]
pub struct PartError {
    /// The part.
    pub part: &'static str,
    /// The damage, in words.
    pub what: String,
}

impl PartError {
    /// Makes the error for a damaged record of this part.
    pub fn new(part: &'static str, what: impl ToString) -> Self {
        PartError { part, what: what.to_string() }
    }
}

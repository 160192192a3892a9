//! Finds subjects that do more than a little in a second: counters by a hash, which several may share. A subject
//! that shares one counts as busy too early, never too late.

use std::sync::atomic::{AtomicU16, Ordering};

/// The bits of a counter: whether a subject with this hash has an account, the second that was counted last (modulo
/// 256), and the count in it. A count that is 256 s old passes for a new one, which is too early again.
const HAS_ACCOUNT: u16 = 1 << 15;
const SECOND_SHIFT: u32 = 7;
const COUNT: u16 = (1 << SECOND_SHIFT) - 1;

/// See the file's documentation. It takes 128 KiB.
pub(crate) struct Sketch {
    cells: Box<[AtomicU16]>,
}

impl Default for Sketch {
    fn default() -> Self {
        Sketch { cells: std::iter::repeat_with(AtomicU16::default).take(Self::CELLS).collect() }
    }
}

impl Sketch {
    /// How many counters there are: a multiple of the parts of the table of accounts.
    pub const CELLS: usize = 1 << 16;

    /// Returns true if a subject with this hash has an account.
    pub fn has_account(&self, cell: usize) -> bool {
        self.cells[cell].load(Ordering::Relaxed) & HAS_ACCOUNT != 0
    }

    /// Adds to a counter. Returns its count in this second.
    pub fn add(&self, cell: usize, weight: u64, now_us: u64) -> u64 {
        let second = u16::from((now_us / 1_000_000).to_le_bytes()[0]) << SECOND_SHIFT;
        let most = u64::from(COUNT);
        let next = |seen: u16| {
            let is_new = seen & !(HAS_ACCOUNT | COUNT) != second;
            let before = if is_new { 0 } else { u64::from(seen & COUNT) };
            let count = before.saturating_add(weight).min(most);
            (seen & HAS_ACCOUNT) | second | u16::try_from(count).unwrap_or(COUNT)
        };
        let set = |seen| Some(next(seen));
        let cell = &self.cells[cell];
        // The update can't fail: it always has a new value.
        let (Ok(seen) | Err(seen)) = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
        u64::from(next(seen) & COUNT)
    }

    /// Notes that a subject with this hash has an account.
    pub fn add_account(&self, cell: usize) {
        self.cells[cell].fetch_or(HAS_ACCOUNT, Ordering::Relaxed);
    }

    /// Clears the mark of an account in the counters from `first` on that have none any more.
    pub fn keep(&self, first: usize, with_account: &[bool]) {
        for (cell, with_account) in self.cells[first..].iter().zip(with_account) {
            if !with_account {
                cell.fetch_and(!HAS_ACCOUNT, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_counter_counts_within_a_second_and_no_further_than_it_can() {
        let sketch = Sketch::default();
        assert_eq!(sketch.add(7, 3, 5 * SECOND), 3);
        assert_eq!(sketch.add(7, 2, 6 * SECOND - 1), 5);
        assert_eq!(sketch.add(8, 1, 6 * SECOND - 1), 1, "another");
        assert_eq!(sketch.add(7, 2, 6 * SECOND), 2);
        assert_eq!(sketch.add(7, u64::MAX, 6 * SECOND), 127);
        assert_eq!(sketch.add(7, 1, 6 * SECOND), 127);
        assert_eq!(sketch.add(7, 1, 300 * SECOND), 1);
    }

    #[test]
    fn who_has_an_account_is_known_whatever_is_counted() {
        let sketch = Sketch::default();
        (100..110).for_each(|cell| sketch.add_account(cell));
        sketch.add(105, u64::MAX, u64::MAX);
        sketch.keep(100, &[true, false, true]);
        let with_account: Vec<_> = (0..200).filter(|cell| sketch.has_account(*cell)).collect();
        assert_eq!(with_account, [100, 102, 103, 104, 105, 106, 107, 108, 109]);
        assert_eq!(sketch.add(101, 1, SECOND), 1);
    }
}

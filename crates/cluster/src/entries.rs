//! Another node's entries in presence: which of its changes are here, and which pages this node reads.
//!
//! A node numbers its diffs: 1, 2, 3. They come in order ([`crate::Stream::PRESENCE`]). A node that lacks some of
//! them reads the other's entries anew, page by page, in the order of their numbers, while it continues to apply
//! diffs. A page says up to which diff it has all changes; it may have later ones as well. So
//!
//! - a diff that is not later than a page changes nothing in the page's range ([`Newer`]);
//! - a page that is older than diffs which have come gets their changes before it is applied ([`Reading::diffs`]).
//!
//! Each entry comes once and goes once, with a number that its node uses once, so that a change that a page already
//! has does no harm.

use std::collections::{BTreeMap, VecDeque};

use presence::{Change, Page, SharedEntry};

use crate::{PresenceDiff, PresencePage};

/// How long the node waits for a page before it requests it once more, in microseconds: at first, and at most.
const REPLY_US: u64 = 1_000_000;
const REPLY_US_MAX: u64 = 8_000_000;

/// Bytes of diffs that may come while the node waits for one page. Beyond it, the node reads all entries anew.
const DIFFS_BYTES_MAX: usize = 8 << 20;

/// How long the node waits, in microseconds, before it reads entries anew because some did not fit: at first, and at
/// most. It doubles the time if some do not fit again within the longest time.
const FULL_US: u64 = 30_000_000;
const FULL_US_MAX: u64 = 16 * FULL_US;

/// The memory for entries of other nodes, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PresenceMemory {
    /// The bytes that these entries take.
    pub bytes: usize,
    /// The bytes that they may take.
    pub bytes_max: usize,
}

impl PresenceMemory {
    /// Returns true if entries that did not fit may fit now. Their size is an estimate: some of them may have gone.
    fn fits(&self, missing_bytes: usize) -> bool {
        let free_bytes = self.bytes_max.saturating_sub(self.bytes);
        missing_bytes <= free_bytes || free_bytes >= self.bytes_max.div_ceil(4)
    }
}

/// The known entries of another node.
#[derive(Default)]
pub(crate) struct PeerEntries {
    phase: Phase,
    /// The newest diff whose changes are all here, except for those in ranges that are still to be read.
    applied: Option<u64>,
    newer: Vec<Newer>,
    /// The number of reads of all entries: the id of the requests.
    reads: u64,
    /// Entries that are missing, because they did not fit.
    missing: Option<Missing>,
    /// When the last read for missing entries began, and how long it had waited.
    retried: Option<(u64, u64)>,
}

/// Entries that did not fit.
struct Missing {
    /// The earliest time at which the entries are read anew.
    retry_us: u64,
    /// How long the node waits until then.
    wait_us: u64,
    /// The bytes that they would take, including those that have gone since.
    bytes: usize,
}

#[derive(Default)]
enum Phase {
    /// The other node is gone, or shares no entries: this node has none of them.
    #[default]
    Absent,
    /// Its entries are being read.
    Reading(Reading),
    /// All entries are here.
    Whole,
}

/// A page that includes changes of diffs that have not come.
struct Newer {
    from: u64,
    to: Option<u64>,
    number: u64,
}

/// A read of entries in progress.
struct Reading {
    /// The first number of the next page.
    from: u64,
    /// True if the page must be requested.
    is_request_due: bool,
    /// When it must be requested once more.
    due_us: u64,
    attempts: u32,
    /// Diffs that came, and that the next page may lack.
    diffs: VecDeque<(u64, Vec<Change>)>,
    diffs_bytes: usize,
}

impl PeerEntries {
    /// Restores the number of reads of another process. If that process may have had entries, this one reads them
    /// once more, because changes that it had not applied yet may be lost.
    pub fn restored(reads: u64, may_have_some: bool, now_us: u64) -> Self {
        let mut entries = PeerEntries { reads, ..PeerEntries::default() };
        if may_have_some {
            entries.read_anew(now_us);
        }
        entries
    }

    /// Returns true if some of its entries may be here.
    pub fn may_have_some(&self) -> bool {
        !matches!(self.phase, Phase::Absent)
    }

    /// Handles that the other node is up, and shares its entries.
    pub fn on_up(&mut self, now_us: u64) {
        if matches!(self.phase, Phase::Absent) {
            self.applied = None;
            self.read_anew(now_us);
        }
    }

    /// Handles that the other node is gone. Returns true if some of its entries may be here.
    pub fn on_down(&mut self) -> bool {
        let was_there = self.may_have_some();
        (self.phase, self.missing) = (Phase::Absent, None);
        self.newer.clear();
        was_there
    }

    /// Handles that some of its entries, of `bytes` bytes, did not fit.
    pub fn on_full(&mut self, bytes: usize, now_us: u64) {
        let wait_us = match self.retried {
            Some((at_us, wait_us)) if now_us < at_us + FULL_US_MAX => {
                (2 * wait_us).min(FULL_US_MAX)
            }
            _ => FULL_US,
        };
        let new = || Missing { retry_us: now_us + wait_us, wait_us, bytes: 0 };
        let missing = self.missing.get_or_insert_with(new);
        missing.bytes = missing.bytes.saturating_add(bytes);
    }

    /// Returns true if all its entries are here.
    pub fn is_whole(&self) -> bool {
        matches!(self.phase, Phase::Whole) && self.missing.is_none()
    }

    /// Returns the number of reads of all entries.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Handles the loss of diffs.
    pub fn on_gap(&mut self, now_us: u64) {
        if !matches!(self.phase, Phase::Absent) {
            // The next diff need not follow the last one, and needs no further read.
            self.applied = None;
            self.read_anew(now_us);
        }
    }

    fn read_anew(&mut self, now_us: u64) {
        self.reads += 1;
        self.missing = None;
        self.phase = Phase::Reading(Reading::new(0, now_us));
    }

    /// Handles a diff. Returns the changes to apply.
    pub fn on_diff(&mut self, diff: PresenceDiff, now_us: u64) -> Vec<Change> {
        let PresenceDiff { number, mut changes, is_reset } = diff;
        if matches!(self.phase, Phase::Absent) || self.applied.is_some_and(|it| number <= it) {
            return Vec::new();
        }
        let is_next = self.applied.is_none_or(|applied| number == applied + 1);
        self.applied = Some(number);
        if !is_next || is_reset {
            self.read_anew(now_us);
        }
        let is_in_page = |entry: u64| self.newer.iter().any(|it| it.has(entry, number));
        for change in &mut changes {
            change.gone.take_if(|gone| is_in_page(*gone));
            change.entry.take_if(|entry| is_in_page(entry.number));
        }
        changes.retain(|change| change.gone.is_some() || change.entry.is_some());
        self.newer.retain(|newer| newer.number > number);
        if let Phase::Reading(reading) = &mut self.phase {
            reading.diffs_bytes += changes.iter().map(Change::bytes).sum::<usize>();
            reading.diffs.push_back((number, changes.clone()));
            if reading.diffs_bytes > DIFFS_BYTES_MAX {
                self.read_anew(now_us);
            }
        }
        changes
    }

    /// Handles a page. Returns it with the changes that it lacks; `None` if it was not requested.
    pub fn on_page(&mut self, page: PresencePage, now_us: u64) -> Option<Page> {
        let Phase::Reading(reading) = &mut self.phase else { return None };
        if page.id != self.reads || page.from != reading.from {
            return None;
        }
        if page.from == 0 {
            // All later pages have these diffs, too: earlier diffs are not needed.
            self.applied = self.applied.max(Some(page.number));
        }
        let number = page.number;
        if self.applied < Some(number) {
            self.newer.push(Newer { from: page.from, to: page.to, number });
        }
        reading.drop_diffs(number);
        let page = reading.complete(page.into_page());
        match page.to {
            Some(to) => {
                let diffs = std::mem::take(&mut reading.diffs);
                let diffs_bytes = reading.diffs_bytes;
                *reading = Reading { diffs, diffs_bytes, ..Reading::new(to, now_us) };
            }
            None => self.phase = Phase::Whole,
        }
        Some(page)
    }

    /// Lets time pass.
    pub fn on_time(&mut self, memory: PresenceMemory, now_us: u64) {
        let retried = self.missing.as_ref().and_then(|it| {
            (now_us >= it.retry_us && memory.fits(it.bytes)).then_some((now_us, it.wait_us))
        });
        match &mut self.phase {
            Phase::Absent => {}
            Phase::Reading(reading) if now_us >= reading.due_us => {
                reading.request_again(reading.attempts + 1, now_us);
            }
            Phase::Reading(_) => {}
            Phase::Whole if retried.is_some() => {
                self.retried = retried;
                self.read_anew(now_us);
            }
            Phase::Whole => {}
        }
    }

    /// Handles that the connection to NATS is back.
    pub fn on_connected(&mut self, now_us: u64) {
        if let Phase::Reading(reading) = &mut self.phase {
            reading.request_again(0, now_us);
        }
    }

    /// Handles that the node reads packets again, after `paused_us` microseconds.
    pub fn on_resumed(&mut self, paused_us: u64) {
        if let Phase::Reading(reading) = &mut self.phase {
            reading.due_us += paused_us;
        }
    }

    /// Returns a request to send: its id, and the first number.
    pub fn poll_request(&mut self) -> Option<(u64, u64)> {
        let Phase::Reading(reading) = &mut self.phase else { return None };
        std::mem::take(&mut reading.is_request_due).then_some((self.reads, reading.from))
    }

    /// Returns when a reply is late.
    pub fn due_us(&self) -> Option<u64> {
        match &self.phase {
            Phase::Reading(reading) => Some(reading.due_us),
            Phase::Absent | Phase::Whole => None,
        }
    }
}

impl Newer {
    /// Returns true if the page includes a diff's change of an entry.
    fn has(&self, entry: u64, diff: u64) -> bool {
        diff <= self.number && entry >= self.from && self.to.is_none_or(|to| entry < to)
    }
}

impl Reading {
    fn new(from: u64, now_us: u64) -> Self {
        Reading {
            from,
            is_request_due: true,
            due_us: now_us + REPLY_US,
            attempts: 0,
            diffs: VecDeque::new(),
            diffs_bytes: 0,
        }
    }

    fn request_again(&mut self, attempts: u32, now_us: u64) {
        self.attempts = attempts;
        self.is_request_due = true;
        self.due_us = now_us + (REPLY_US << attempts.min(8)).min(REPLY_US_MAX);
    }

    /// Drops diffs that a page includes.
    fn drop_diffs(&mut self, number: u64) {
        while let Some((diff, changes)) = self.diffs.front()
            && *diff <= number
        {
            self.diffs_bytes -= changes.iter().map(Change::bytes).sum::<usize>();
            self.diffs.pop_front();
        }
    }

    /// Returns the page with the changes of later diffs.
    fn complete(&self, page: Page) -> Page {
        if self.diffs.is_empty() {
            return page;
        }
        let by_number = |entry: SharedEntry| (entry.number, entry);
        let Page { from, to, entries } = page;
        let mut range = Page { from, to, entries: Vec::new() };
        let mut entries: BTreeMap<u64, SharedEntry> = entries.into_iter().map(by_number).collect();
        for Change { gone, entry } in self.diffs.iter().flat_map(|(_, changes)| changes) {
            if let Some(gone) = gone {
                entries.remove(gone);
            }
            if let Some(entry) = entry.as_ref().filter(|entry| range.has(entry.number)) {
                entries.insert(entry.number, entry.clone());
            }
        }
        range.entries = entries.into_values().collect();
        range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_costs_one_read() {
        let mut entries = PeerEntries::default();
        let diff = |number| PresenceDiff { number, changes: vec![enter(number)], is_reset: false };
        entries.on_up(0);
        entries.on_diff(diff(1), 0);
        assert_eq!(entries.reads(), 1);
        entries.on_gap(1);
        entries.on_diff(diff(5), 1);
        entries.on_diff(diff(6), 1);
        assert_eq!(entries.reads(), 2);
    }

    fn entry(number: u64) -> SharedEntry {
        SharedEntry { number, ..SharedEntry::default() }
    }

    fn enter(number: u64) -> Change {
        Change { gone: None, entry: Some(entry(number)) }
    }

    fn leave(number: u64) -> Change {
        Change { gone: Some(number), entry: None }
    }

    fn diff(number: u64, changes: &[Change]) -> PresenceDiff {
        PresenceDiff { number, changes: changes.to_vec(), is_reset: false }
    }

    fn page(number: u64, id: u64, from: u64, to: Option<u64>, entries: &[u64]) -> PresencePage {
        let entries = entries.iter().map(|number| entry(*number)).collect();
        PresencePage { node: 1, id, number, from, to, entries }
    }

    fn numbers(page: Option<Page>) -> Vec<u64> {
        page.unwrap().entries.iter().map(|entry| entry.number).collect()
    }

    #[test]
    fn a_page_gets_the_changes_of_later_diffs_and_no_diff_undoes_it() {
        let mut entries = PeerEntries::default();
        assert_eq!(entries.on_diff(diff(4, &[enter(1)]), 0), [], "it is not there yet");
        entries.on_up(0);
        entries.on_up(0);
        assert_eq!(entries.poll_request(), Some((1, 0)));
        assert_eq!(entries.poll_request(), None);
        // A diff is applied at once, in any range.
        assert_eq!(entries.on_diff(diff(5, &[enter(9)]), 0).len(), 1);
        assert_eq!(entries.on_diff(diff(6, &[leave(2), enter(3)]), 0).len(), 2);
        assert_eq!(entries.on_page(page(5, 0, 0, None, &[]), 0), None, "of an earlier read");
        assert_eq!(numbers(entries.on_page(page(5, 1, 0, Some(8), &[1, 2]), 0)), [1, 3]);
        assert!(!entries.is_whole());
        assert_eq!(entries.poll_request(), Some((1, 8)));
        assert_eq!(entries.on_page(page(5, 1, 0, Some(8), &[1, 2]), 0), None, "it came twice");
        // The next page includes diffs that come after it.
        assert_eq!(numbers(entries.on_page(page(8, 1, 8, None, &[9, 10]), 0)), [9, 10]);
        assert!(entries.is_whole() && entries.poll_request().is_none());
        let late = Change { gone: Some(4), entry: Some(entry(10)) };
        assert_eq!(entries.on_diff(diff(7, &[leave(8), late]), 0), [leave(4)]);
        assert_eq!(entries.on_diff(diff(7, &[leave(1)]), 0), [], "it came twice");
        assert_eq!(entries.on_diff(diff(8, &[enter(1), enter(10)]), 0), [enter(1)]);
        assert_eq!(entries.on_diff(diff(9, &[leave(10)]), 0), [leave(10)]);
    }

    #[test]
    fn diffs_before_the_first_page_are_of_no_use() {
        let mut entries = PeerEntries::default();
        entries.on_up(0);
        assert_eq!(numbers(entries.on_page(page(7, 1, 0, None, &[1]), 0)), [1]);
        assert_eq!(entries.on_diff(diff(6, &[enter(2)]), 0), []);
        assert_eq!(entries.on_diff(diff(7, &[enter(1)]), 0), []);
        assert_eq!(entries.on_diff(diff(8, &[enter(2)]), 0), [enter(2)]);
        assert!(entries.is_whole());
        // A diff is missing: the node reads all entries anew, and applies diffs meanwhile.
        assert_eq!(entries.on_diff(diff(10, &[enter(4)]), 0), [enter(4)]);
        assert!(!entries.is_whole());
        assert_eq!(entries.poll_request(), Some((2, 0)));
        assert_eq!(numbers(entries.on_page(page(10, 2, 0, None, &[1, 2, 3, 4]), 0)), [1, 2, 3, 4]);
        assert!(entries.is_whole());
        let reset = PresenceDiff { is_reset: true, ..diff(11, &[]) };
        assert_eq!(entries.on_diff(reset, 0), []);
        assert_eq!(entries.poll_request(), Some((3, 0)));
        entries.on_gap(0);
        assert_eq!(entries.poll_request(), Some((4, 0)));
        assert!(entries.on_down() && !entries.on_down());
        entries.on_gap(0);
        assert_eq!(entries.poll_request(), None);
    }

    #[test]
    fn a_page_that_does_not_come_is_requested_again_ever_more_rarely() {
        let mut entries = PeerEntries::default();
        entries.on_up(0);
        let mut requests = Vec::new();
        for now_us in (0..40_000_000).step_by(500_000) {
            entries.on_time(FREE, now_us);
            assert!(entries.due_us() > Some(now_us));
            requests.extend(entries.poll_request().map(|_| now_us / 1_000_000));
        }
        assert_eq!(requests, [0, 1, 3, 7, 15, 23, 31, 39]);
        entries.on_connected(40_000_000);
        assert_eq!((entries.poll_request(), entries.due_us()), (Some((1, 0)), Some(41_000_000)));
    }

    const FREE: PresenceMemory = PresenceMemory { bytes: 0, bytes_max: 1_000 };

    fn memory(bytes: usize) -> PresenceMemory {
        PresenceMemory { bytes, bytes_max: 1_000 }
    }

    #[test]
    fn what_did_not_fit_is_read_anew_once_it_fits() {
        for (bytes, missing_bytes, fits) in [
            (901, 100, false),
            (900, 100, true),
            // A quarter is free: many entries that did not fit may have gone.
            (751, 5_000, false),
            (750, 5_000, true),
        ] {
            let mut entries = PeerEntries::default();
            entries.on_up(0);
            entries.poll_request();
            entries.on_page(page(0, 1, 0, None, &[1]), 0);
            entries.on_full(missing_bytes - 10, 1);
            entries.on_full(10, FULL_US);
            assert!(!entries.is_whole());
            entries.on_time(memory(bytes), FULL_US);
            assert_eq!(entries.poll_request(), None);
            entries.on_time(memory(bytes), FULL_US + 1);
            assert_eq!(entries.poll_request(), fits.then_some((2, 0)), "{bytes} {missing_bytes}");
            entries.on_page(page(0, 2, 0, None, &[1]), 0);
            assert_eq!(entries.is_whole(), fits);
        }
    }

    /// The cost of a read grows with the number of entries.
    #[test]
    fn what_never_fits_for_long_is_read_ever_more_rarely() {
        let mut entries = PeerEntries::default();
        entries.on_up(0);
        let mut reads = Vec::new();
        for second in 0..2_000 {
            let now_us = second * 1_000_000;
            entries.on_time(FREE, now_us);
            if let Some((id, from)) = entries.poll_request() {
                reads.push(second);
                entries.on_page(page(0, id, from, None, &[1]), now_us);
            }
            // All fit when they are read, and then one comes that does not.
            entries.on_full(1, now_us);
        }
        assert_eq!(reads, [0, 30, 90, 210, 450, 930, 1_410, 1_890]);
        // All entries have fitted for long.
        let mut now_us = 1_890_000_000 + FULL_US_MAX;
        entries.on_time(FREE, now_us);
        let (id, from) = entries.poll_request().unwrap();
        entries.on_page(page(0, id, from, None, &[1]), now_us);
        now_us += FULL_US_MAX;
        entries.on_full(1, now_us);
        entries.on_time(FREE, now_us + FULL_US);
        assert!(entries.poll_request().is_some());
    }

    #[test]
    fn too_many_diffs_while_a_page_is_read_begin_anew() {
        let mut entries = PeerEntries::default();
        entries.on_up(0);
        entries.poll_request();
        let mut large = entry(1);
        large.meta = "x".repeat(DIFFS_BYTES_MAX / 2).into();
        for number in 1..=2 {
            let change = Change { gone: None, entry: Some(large.clone()) };
            assert_eq!(entries.on_diff(diff(number, &[change]), 0).len(), 1);
        }
        assert_eq!(entries.poll_request(), Some((2, 0)));
    }
}

//! The stats of the last 15 minutes, so that a drop is reported for a while after it happened.

use std::collections::{BTreeMap, VecDeque};

use crate::findings::{Finding, FindingKind, findings};
use crate::stats::KernelStats;

/// How long stats are stored, in milliseconds.
const WINDOW_MS: u64 = 900_000;
/// The time between two stored stats, in milliseconds.
const STEP_MS: u64 = 10_000;

/// The stats of the last 15 minutes, one entry for every ten seconds, and the newest. It takes about 30 KB.
#[derive(Clone, Debug, Default)]
pub struct StatsWindow {
    /// The oldest first, each with its time in milliseconds.
    stored: VecDeque<(u64, KernelStats)>,
    newest: Option<(u64, KernelStats)>,
    /// When the counter of a kind last grew, in milliseconds.
    grown: BTreeMap<FindingKind, u64>,
}

impl StatsWindow {
    /// Adds the stats of this moment. `now_ms` is the time of a monotonic clock, in milliseconds.
    pub fn push(&mut self, now_ms: u64, stats: KernelStats) {
        if let Some((_, before)) = &self.newest {
            let grown = FindingKind::COUNTERS.into_iter().filter(|kind| {
                kind.counter()
                    .is_some_and(|read| read(before).is_some() && read(&stats) > read(before))
            });
            self.grown.extend(grown.map(|kind| (kind, now_ms)));
        }
        self.newest = Some((now_ms, stats));
        let age = |(at, _): &(u64, KernelStats)| now_ms.saturating_sub(*at);
        if self.stored.back().is_none_or(|last| age(last) >= STEP_MS) {
            self.stored.push_back((now_ms, stats));
        }
        while self.stored.front().is_some_and(|oldest| age(oldest) > WINDOW_MS) {
            self.stored.pop_front();
        }
    }

    /// The newest stats; all `None` before the first.
    pub fn newest(&self) -> KernelStats {
        self.newest.map_or_else(KernelStats::default, |(_, stats)| stats)
    }

    /// How many seconds the findings cover: at most 900.
    pub fn seconds(&self) -> u64 {
        let oldest = self.stored.front().map_or(0, |(oldest, _)| *oldest);
        self.newest.map_or(0, |(newest, _)| newest.saturating_sub(oldest) / 1_000)
    }

    /// Returns what went wrong since the oldest stats, each with the time since it last happened.
    pub fn findings(&self) -> Vec<Finding> {
        let (Some((_, oldest)), Some((_, newest))) = (self.stored.front(), &self.newest) else {
            return Vec::new();
        };
        let mut found = findings(oldest, newest);
        for finding in &mut found {
            finding.seconds_ago = self.seconds_ago(finding.kind);
        }
        found
    }

    /// Returns how long ago the counter of this kind last grew; `None` for a kind without a counter.
    fn seconds_ago(&self, kind: FindingKind) -> Option<u64> {
        let (now, _) = self.newest?;
        Some(now.saturating_sub(*self.grown.get(&kind)?) / 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(count: u64) -> KernelStats {
        KernelStats { softnet_dropped: Some(count), ..KernelStats::default() }
    }

    #[test]
    fn a_drop_is_reported_for_a_quarter_of_an_hour() {
        let mut window = StatsWindow::default();
        assert_eq!(
            (window.findings(), window.seconds(), window.newest()),
            (vec![], 0, KernelStats::default())
        );
        let mut reported = Vec::new();
        for second in 0..2_000 {
            window.push(second * 1_000, dropped(if second < 103 { 5 } else { 9 }));
            assert!(window.stored.len() <= 91);
            let found = window.findings();
            assert!(found.len() <= 1, "{found:?}");
            if let Some(finding) = found.first() {
                assert!(finding.what.contains("dropped 4 packets"), "{finding:?}");
                reported.push((second, finding.seconds_ago.unwrap()));
            }
        }
        assert_eq!(reported.first(), Some(&(103, 0)));
        assert_eq!(reported[60], (163, 60));
        let (last, ago) = *reported.last().unwrap();
        assert!((993..=1_003).contains(&last) && ago == last - 103, "{:?}", reported.last());
        assert_eq!((window.seconds(), window.newest()), (899, dropped(9)));
    }

    #[test]
    fn a_condition_of_this_moment_has_no_age() {
        let mut window = StatsWindow::default();
        let files = Some(crate::Usage { used: 99, max: 100 });
        window.push(0, KernelStats { files, ..KernelStats::default() });
        let found = window.findings();
        assert_eq!((found.len(), found[0].seconds_ago), (1, None));
        window.push(1_000, KernelStats::default());
        assert_eq!(window.findings(), []);
    }
}

//! The samples of a run; a long run stores fewer of them.

use crate::record::Sample;

/// The limit on stored samples: a longer run stores every second one, then every fourth, and so on.
const SAMPLES_MAX: usize = 7_200;

/// The samples of a run.
#[derive(Debug)]
pub struct Series {
    samples: Vec<Sample>,
    /// One in this many samples is stored.
    thinned: usize,
    taken: usize,
}

impl Series {
    /// Begins with the sample from before the first connection.
    pub fn begin(before: Sample) -> Self {
        Self { samples: vec![before], thinned: 1, taken: 0 }
    }

    /// Stores a sample, and thins the stored ones when they are too many.
    pub fn store(&mut self, sample: Sample) {
        self.taken += 1;
        if !self.taken.is_multiple_of(self.thinned) {
            return;
        }
        self.samples.push(sample);
        if self.samples.len() >= SAMPLES_MAX {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.thinned *= 2;
        }
    }

    /// Returns the stored samples, and the last one of all.
    pub fn end(mut self, last: Sample) -> Vec<Sample> {
        if self.samples.last() != Some(&last) {
            self.samples.push(last);
        }
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_are_thinned_and_keep_their_ends() {
        let at = |at| Sample { at_seconds: f64::from(at), ..Sample::default() };
        let mut series = Series::begin(at(0));
        (1..=20_000).for_each(|second| series.store(at(second)));
        let samples = series.end(at(20_001));
        assert!((2_000..SAMPLES_MAX).contains(&samples.len()), "{}", samples.len());
        assert!(samples.is_sorted_by(|a, b| a.at_seconds < b.at_seconds));
        assert_eq!((samples[0], samples.last().copied()), (at(0), Some(at(20_001))));
    }
}

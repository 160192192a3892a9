//! Random numbers of a seed: the same seed gives the same numbers, on every machine and in every
//! version. So a run of a simulation, of the load generator or of a test repeats.
//!
//! It is the generator of `oorandom` (PCG, O'Neill 2014), whose numbers change with a major version only. A reader
//! of some numbers can compute the next: numbers that must not be guessed come from the kernel instead
//! (`getrandom`).

#![forbid(unsafe_code)]

use oorandom::Rand64;

/// The numbers of a seed.
#[derive(Clone, Debug)]
pub struct Random(Rand64);

impl Random {
    /// Returns the numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Random(Rand64::new(u128::from(seed)))
    }

    /// Returns the numbers of one of many that share a seed: a connection, a thread, a user.
    pub fn of(seed: u64, number: u64) -> Self {
        let seed = u128::from(seed) << 64 | u128::from(number);
        // Numbers in a row begin alike in any generator that is only seeded with them.
        Random::new(Rand64::new(seed).rand_u64())
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.rand_u64()
    }

    /// Returns a number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        self.0.rand_float()
    }

    /// Returns a number below `bound`, each as likely as another; 0 for a bound of 0.
    pub fn below<N: Bound>(&mut self, bound: N) -> N {
        let bound = bound.widened();
        N::narrowed(if bound == 0 { 0 } else { self.0.rand_range(0..bound) })
    }

    /// Returns true once in `times` calls on average.
    pub fn one_in<N: Bound>(&mut self, times: N) -> bool {
        self.below(times).widened() == 0
    }

    /// Rounds `mean` up or down at random, so that the mean of many results is `mean`.
    pub fn round(&mut self, mean: f64) -> usize {
        let whole = mean.floor();
        whole as usize + usize::from(self.unit() < mean - whole)
    }

    /// Returns `count` random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.bits().to_le_bytes());
        words.take(count.div_ceil(8)).flatten().take(count).collect()
    }
}

/// A type of numbers that can be a bound.
pub trait Bound: Copy {
    /// The bound; 0 for one below 0.
    fn widened(self) -> u64;
    /// A number below a bound of this type.
    fn narrowed(below: u64) -> Self;
}

macro_rules! bounds {
    ($($kind:ty)*) => {
        $(impl Bound for $kind {
            fn widened(self) -> u64 {
                u64::try_from(self).unwrap_or(0)
            }

            fn narrowed(below: u64) -> Self {
                below as $kind
            }
        })*
    };
}

// With `i32`, the type of a literal without a suffix.
bounds!(i32 u8 u32 u64 usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_within_their_bounds_and_evenly_spread() {
        let mut random = Random::new(1);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[random.below(10_usize)] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!((random.below(0_u32), random.below(-1), random.below(1_u64)), (0, 0, 0));
        assert!((0..100).all(|_| random.below(u64::MAX) < u64::MAX));
        let sum: usize = (0..10_000).map(|_| random.round(0.25)).sum();
        assert!((2_200..2_800).contains(&sum), "{sum}");
        let often = (0..10_000).filter(|_| random.one_in(4)).count();
        assert!((2_200..2_800).contains(&often), "{often}");
        assert_eq!((random.bytes(0).len(), random.bytes(13).len()), (0, 13));
    }

    /// A recorded seed must repeat its run, so the generator must not change.
    #[test]
    fn a_seed_has_the_same_numbers_for_ever() {
        let mut random = Random::new(7);
        let numbers = [random.bits(), random.bits(), random.below(1_000)];
        assert_eq!(numbers, [7_746_625_317_276_234_570, 4_402_369_236_377_751_865, 420]);
        assert_eq!(Random::of(7, 1).bits(), 1_700_702_319_578_478_037);
    }

    #[test]
    fn neighbours_begin_differently() {
        let mut seen = [0; 16];
        for number in 0..16_000 {
            seen[Random::of(1, number).below(16_usize)] += 1;
        }
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
        let alike = (0..10_000).filter(|number| {
            Random::of(1, *number).bits() >> 60 == Random::of(1, number + 1).bits() >> 60
        });
        assert!((500..750).contains(&alike.count()));
        assert_ne!(Random::of(1, 2).bits(), Random::of(2, 1).bits());
    }
}

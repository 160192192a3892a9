//! Seeded random numbers: the same seed gives the same run, as far as the network allows.

/// SplitMix64 (Steele, Lea and Flood, 2014): small, fast, and good enough for simulated users.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u32
    }

    /// Rounds `mean` up or down at random, so that the mean of many results is `mean`.
    pub fn round(&mut self, mean: f64) -> usize {
        let whole = mean.floor();
        whole as usize + usize::from(self.unit() < mean - whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_within_their_bounds_and_evenly_spread() {
        let mut random = Random::new(1);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
        let sum: usize = (0..10_000).map(|_| random.round(0.25)).sum();
        assert!((2_200..2_800).contains(&sum), "{sum}");
        assert_eq!(Random::new(7).bits(), Random::new(7).bits());
    }
}

//! A hasher for keys that are hashes already.

use std::hash::Hasher;

/// A hasher for keys that are hashes already, so that a key stands for itself. Use it only for hashes that are keyed:
/// otherwise a peer could choose keys that fall into one bucket.
#[derive(Default)]
pub struct Prehashed(u64);

impl Hasher for Prehashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "only numbers are hashed");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

//! Hash maps whose iteration order is the same in every run.

use std::hash::{BuildHasherDefault, Hasher};

/// A fixed-key multiplicative hasher for small integer keys and names. The
/// server bounds what a client can insert, so flooding it is no concern.
#[derive(Default, Clone, Copy)]
pub struct FixedHasher(u64);

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl FixedHasher {
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(MULTIPLIER);
        self.0 = (product as u64) ^ ((product >> 64) as u64) ^ word.rotate_left(29);
    }
}

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.0.wrapping_mul(MULTIPLIER).rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        self.mix(bytes.len() as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

/// A hash map with a fixed hasher.
#[allow(clippy::disallowed_types)]
pub type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FixedHasher>>;
/// A hash set with a fixed hasher.
#[allow(clippy::disallowed_types)]
pub type HashSet<K> = std::collections::HashSet<K, BuildHasherDefault<FixedHasher>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_keys_spread_over_the_buckets() {
        let mut low_bits = [0u32; 256];
        for key in 0..65_536u64 {
            let mut hasher = FixedHasher::default();
            hasher.write_u64(key);
            low_bits[(hasher.finish() & 255) as usize] += 1;
        }
        assert!(low_bits.iter().all(|&n| (128..512).contains(&n)), "{low_bits:?}");
    }
}

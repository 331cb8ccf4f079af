//! Which blocks of the device a check has found in use, compared with the bitmap.
//!
//! Invariant: a block that is claimed twice has two owners, and one that is claimed and not marked
//! as allocated, or the other way round, is a finding. What owns a block is the checker's business.

use types::MetaBlock;

use crate::format::superblock::Superblock;

/// One bit per metadata block.
pub struct Claims {
    bits: Vec<u64>,
    /// Blocks of the device.
    pub blocks: u64,
}

/// Why blocks cannot be claimed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimFault {
    /// They are not all on the device; none is claimed.
    Outside,
    /// These are claimed already; all of them are claimed now.
    Shared(Vec<MetaBlock>),
}

/// Neighbours whose bits in the bitmap are all wrong in the same way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// Allocated, and nothing owns them: the first block, and the one after the last.
    Lost(u64, u64),
    /// In use and marked as free: the first block, and the one after the last.
    MarkedFree(u64, u64),
}

impl Claims {
    /// New claims, with superblocks, roots, log and bitmap.
    pub fn new(superblock: &Superblock) -> Claims {
        let blocks = superblock.blocks;
        let mut out = Claims { bits: vec![0; blocks.div_ceil(64) as usize], blocks };
        (0..superblock.reserved().min(blocks)).for_each(|block| out.set(block));
        out.set(Superblock::place(1, blocks).0);
        out
    }

    /// Claims one block of the device.
    pub fn set(&mut self, block: u64) {
        self.bits[(block / 64) as usize] |= 1 << (block % 64);
    }

    /// Is this block of the device claimed?
    pub fn get(&self, block: u64) -> bool {
        self.bits[(block / 64) as usize] & (1 << (block % 64)) != 0
    }

    /// Number of claimed blocks.
    pub fn count(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Claims `len` blocks from `first` on.
    ///
    /// # Errors
    /// They are outside the device, or some of them are claimed already.
    pub fn claim(&mut self, first: MetaBlock, len: u64) -> Result<(), ClaimFault> {
        let end = first.0.saturating_add(len);
        if first.0 == 0 || end > self.blocks {
            return Err(ClaimFault::Outside);
        }
        let taken: Vec<_> = (first.0..end).filter(|&at| self.get(at)).map(MetaBlock).collect();
        (first.0..end).for_each(|block| self.set(block));
        if taken.is_empty() { Ok(()) } else { Err(ClaimFault::Shared(taken)) }
    }

    /// Compares the claims from block `from` on with `allocated`, what the bitmap says of them.
    pub fn mismatches(&self, from: u64, allocated: &[bool]) -> Vec<Mismatch> {
        let state = |block: u64| (allocated[(block - from) as usize], self.get(block));
        let (mut at, to, mut out) = (from, from + allocated.len() as u64, Vec::new());
        while at < to {
            let end = (at..to).find(|&block| state(block) != state(at)).unwrap_or(to);
            match state(at) {
                (true, false) => out.push(Mismatch::Lost(at, end)),
                (false, true) => out.push(Mismatch::MarkedFree(at, end)),
                _ => {}
            }
            at = end;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use types::Uuid;

    use super::*;

    #[test]
    fn claims_find_shared_blocks_and_what_the_bitmap_has_wrong() {
        let superblock = Superblock::new(Uuid([1; 16]), "claims", 1000, 16);
        let reserved = superblock.reserved();
        let mut claims = Claims::new(&superblock);
        assert_eq!(claims.count(), reserved + 1);
        assert_eq!(claims.claim(MetaBlock(reserved), 4), Ok(()));
        let shared = ClaimFault::Shared(vec![MetaBlock(reserved + 3)]);
        assert_eq!(claims.claim(MetaBlock(reserved + 3), 2), Err(shared));
        assert_eq!(claims.claim(MetaBlock(998), 3), Err(ClaimFault::Outside));
        assert_eq!(claims.claim(MetaBlock(0), 1), Err(ClaimFault::Outside));
        let said = [true, true, false, false, true, true, true, false];
        let wrong = [
            Mismatch::MarkedFree(reserved + 2, reserved + 4),
            Mismatch::Lost(reserved + 5, reserved + 7),
        ];
        assert_eq!(claims.mismatches(reserved, &said), wrong);
    }
}

//! Read-ahead in a directory with a name map.
//!
//! Invariant: a single lookup costs one bucket and one content block. Lookups in the order of the
//! slots, and many lookups, read pieces that double as long as they go on.

use types::{Ino, MetaBlock};

use super::find::Spot;
use crate::engine::error::Stop;
use crate::engine::txn::Txn;
use crate::mfs::format::slot::SLOTS_PER_BLOCK;

/// Most content blocks of one piece.
const CONTENT_MAX: u32 = 128;
/// Most buckets of one piece.
const BUCKETS_MAX: u32 = 32;
/// Buckets that are read one by one before they are read in pieces.
const BUCKETS_ALONE: u32 = 16;

/// What was read of a directory most recently.
#[derive(Clone, Copy, Default, Debug)]
pub struct DirReadahead {
    /// Chunk, and the content block after the piece that was read last.
    next: (usize, u32),
    /// Its length.
    len: u32,
    /// Buckets that were not cached.
    pub buckets: u32,
}

impl DirReadahead {
    /// How many content blocks to read at `block` of the `chunk`-th chunk.
    fn content(&mut self, chunk: usize, block: u32) -> u32 {
        let (last, next) = self.next;
        let follows = last == chunk && (next..=next + self.len).contains(&block);
        self.len = if follows { (2 * self.len).clamp(1, CONTENT_MAX) } else { 1 };
        self.next = (chunk, block + self.len);
        self.len
    }

    /// How many buckets to read together.
    fn bucket(&mut self) -> u32 {
        self.buckets = self.buckets.saturating_add(1);
        match self.buckets.checked_sub(BUCKETS_ALONE) {
            Some(more) => (more + 1).next_power_of_two().min(BUCKETS_MAX),
            None => 1,
        }
    }
}

impl Txn<'_> {
    /// Ensures that the content block of a slot is cached, together with the blocks after it if
    /// lookups follow the order of the slots.
    pub(crate) fn fetch_content(&mut self, dir: Ino, spot: &Spot) -> Result<(), Stop> {
        if !matches!(self.read(spot.block), Err(Stop::Miss(..))) {
            return Ok(());
        }
        let block = spot.at.slot() / SLOTS_PER_BLOCK;
        let mut wanted = 1;
        let chunk = spot.at.chunk();
        self.volatile_mut().names.update_scan(dir, |l| wanted = l.ahead.content(chunk, block));
        let map = self.chunk(spot.place.chunk)?;
        let used = map.descriptor.used.min(block + wanted);
        let piece = map.run_of(block).and_then(|run| run.part(block, used));
        self.fetch_around(spot.block, spot.block, piece.map_or(1, |piece| piece.len))
    }

    /// Fetches `home` in one read, with its neighbours in `first..first + len` up to the next
    /// cached block.
    fn fetch_around(&self, home: MetaBlock, first: MetaBlock, len: u32) -> Result<(), Stop> {
        let missing = |block: &u64| matches!(self.read(MetaBlock(*block)), Err(Stop::Miss(..)));
        let before = (first.0..home.0).rev().take_while(missing).count() as u64;
        let behind = (home.0 + 1..first.0 + u64::from(len)).take_while(missing).count();
        Err(Stop::Miss(MetaBlock(home.0 - before), before as u32 + 1 + behind as u32))
    }

    /// Ensures that a block of a name map is cached, with its neighbours in `first..first + len` if
    /// many were read before.
    pub(crate) fn fetch_piece(
        &mut self,
        dir: Ino,
        home: MetaBlock,
        piece: impl FnOnce(u32) -> (MetaBlock, u32),
    ) -> Result<(), Stop> {
        if !matches!(self.read(home), Err(Stop::Miss(..))) {
            return Ok(());
        }
        let mut wanted = 1;
        self.volatile_mut().names.update_scan(dir, |l| wanted = l.ahead.bucket());
        let (first, len) = piece(wanted);
        self.fetch_around(home, first, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readahead_doubles_in_slot_order_and_is_off_at_random() {
        let mut ahead = DirReadahead::default();
        let mut block = 7;
        let lens: Vec<u32> = (0..9)
            .map(|_| {
                let len = ahead.content(3, block);
                block += len;
                len
            })
            .collect();
        assert_eq!(lens, [1, 2, 4, 8, 16, 32, 64, 128, 128]);
        assert_eq!([5000, 90, 6000].map(|block| ahead.content(3, block)), [1; 3]);
        assert_eq!(ahead.content(4, 6001), 1, "another chunk");
        let pieces: Vec<u32> = (0..20).map(|_| ahead.bucket()).collect();
        assert_eq!(pieces[14..], [1, 1, 2, 4, 4, 8]);
        assert_eq!((0..40).map(|_| ahead.bucket()).max(), Some(BUCKETS_MAX));
    }
}

//! Read-ahead in a directory with a name map.
//!
//! Invariant: a single lookup costs one bucket and one content block. Lookups in the order of the
//! slots, and many lookups, read pieces that double as long as they go on.

use types::{Ino, MetaBlock};

use super::find::Spot;
use super::view::Names;
use crate::format::slot::SLOTS_PER_BLOCK;
use engine::error::Stop;

impl Names<'_, '_> {
    /// Ensures that the content block of a slot is cached, together with the blocks after it if
    /// lookups follow the order of the slots.
    pub(super) fn fetch_content(&mut self, dir: Ino, spot: &Spot) -> Result<(), Stop> {
        if !matches!(self.txn.read(spot.block), Err(Stop::Miss(..))) {
            return Ok(());
        }
        let block = spot.at.slot() / SLOTS_PER_BLOCK;
        let mut wanted = 1;
        let chunk = spot.at.chunk();
        self.txn.volatile_mut().names.update_scan(dir, |l| wanted = l.ahead.content(chunk, block));
        let map = self.chunk(spot.place.chunk)?;
        let used = map.descriptor.used.min(block + wanted);
        let piece = map.run_of(block).and_then(|run| run.part(block, used));
        self.fetch_around(spot.block, spot.block, piece.map_or(1, |piece| piece.len))
    }

    /// Fetches `home` in one read, with its neighbours in `first..first + len` up to the next
    /// cached block.
    fn fetch_around(&self, home: MetaBlock, first: MetaBlock, len: u32) -> Result<(), Stop> {
        let missing = |block: &u64| matches!(self.txn.read(MetaBlock(*block)), Err(Stop::Miss(..)));
        let before = (first.0..home.0).rev().take_while(missing).count() as u64;
        let behind = (home.0 + 1..first.0 + u64::from(len)).take_while(missing).count();
        Err(Stop::Miss(MetaBlock(home.0 - before), before as u32 + 1 + behind as u32))
    }

    /// Ensures that a block of a name map is cached, with its neighbours in `first..first + len` if
    /// many were read before.
    pub(super) fn fetch_piece(
        &mut self,
        dir: Ino,
        home: MetaBlock,
        piece: impl FnOnce(u32) -> (MetaBlock, u32),
    ) -> Result<(), Stop> {
        if !matches!(self.txn.read(home), Err(Stop::Miss(..))) {
            return Ok(());
        }
        let mut wanted = 1;
        self.txn.volatile_mut().names.update_scan(dir, |l| wanted = l.ahead.bucket());
        let (first, len) = piece(wanted);
        self.fetch_around(home, first, len)
    }
}

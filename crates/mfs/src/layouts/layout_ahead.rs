//! How fragmented directories are, and layout blocks that files get when they are created (002
//! §3.1).
//!
//! Invariants:
//! - a directory's slot has its *fragmentation count* (7.2); transactions that change the segments
//!   or the directory of a file update it. A file counts one sixteenth of its segments, rounded
//!   down. So a file whose segments fit into a slot costs nothing, and others change a few bytes
//!   once in sixteen changes;
//! - the *degree* of a directory is its fragmentation count, times sixteen, divided by the number
//!   of its names. Above a threshold, a new file at once gets a layout block after the block of its
//!   inode. The block is only allocated, not initialised and not written;
//! - such a block is freed with its file; when 1,024 younger ones are unused; and when metadata
//!   space is short, if it is known. It is known since its file was created; after the store was
//!   opened, since reading indexed its directory (directories with a name map are not indexed so).
//!   No file gets one while metadata space is short, nor while clients replay.

use types::{Fault, FileKind, Ino, MetaBlock};

use super::view::Layouts;
use crate::format::number::is_orphan_dir;
use crate::format::slot::{FRAGMENT, Slot};
use crate::handle::Mfs;
use crate::names::Spot;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::features::Feature;

/// Most known files with an unused layout block; above that the oldest give theirs back.
const UNUSED_MAX: usize = 1024;
/// Files that give back their blocks in one transaction.
const STEP: usize = 32;

impl Layouts<'_, '_> {
    /// Updates the fragmentation count of directory `dir` for a file that counted `before` and now
    /// counts `after`.
    pub(super) fn count_fragments(
        &mut self,
        dir: Ino,
        before: u32,
        after: u32,
    ) -> Result<(), Stop> {
        let hidden = is_orphan_dir(dir) || dir == Ino::NONE;
        if before == after || hidden || !self.txn.has_feature(Feature::LAYOUT_BLOCKS) {
            return Ok(());
        }
        // Only on a damaged file system is there no such directory.
        let Some(spot) = self.txn.names().locate(dir)? else { return Ok(()) };
        let mut slot = self.txn.names().load(&spot)?;
        if slot.kind() == FileKind::Directory {
            slot.set_fragments(slot.fragments().saturating_sub(before).saturating_add(after));
            self.txn.names().store(&spot, &slot)?;
        }
        Ok(())
    }

    /// Moves the fragmentation count of the file in `slot` from one directory to another.
    pub(crate) fn move_fragments(&mut self, from: Ino, to: Ino, slot: &Slot) -> Result<(), Stop> {
        let own = slot.own_fragments();
        self.count_fragments(from, own, 0)?;
        self.count_fragments(to, 0, own)
    }

    /// The fragmentation count of a directory in segments, and its number of names. Its index must
    /// be complete.
    pub(crate) fn fragmentation(&mut self, dir: Ino) -> Result<(u64, u64), Stop> {
        let (_, slot) = self.txn.names().locate_live(dir)?;
        let slots = slot.blocks() * u64::from(self.txn.slots().per_block());
        let idle = self.txn.names().idle_slots(dir)?;
        Ok((u64::from(slot.fragments()) * FRAGMENT, slots.saturating_sub(idle)))
    }

    /// Is the degree of a directory, whose index is complete, above the threshold?
    fn is_fragmented(&mut self, dir: Ino) -> Result<bool, Stop> {
        let Some(threshold) = self.txn.volatile().layouts.ahead.threshold(self.txn.slots()) else {
            return Ok(false);
        };
        let spot = self.txn.names().locate(dir)?.ok_or(Stop::Fault(Fault::Stale))?;
        if Slot::fragments_at(self.txn.read_slots(spot.block)?, spot.place.index()) == 0 {
            return Ok(false);
        }
        let (segments, names) = self.fragmentation(dir)?;
        Ok(segments > u64::from(threshold).saturating_mul(names))
    }

    /// Gives a new file, in the slot at `spot`, a layout block if its directory is fragmented.
    pub(crate) fn give_layout_block(&mut self, slot: &mut Slot, spot: &Spot) -> Result<(), Stop> {
        let hidden = is_orphan_dir(spot.dir) || self.txn.volatile().replays.running;
        let file = slot.kind() == FileKind::Regular && !hidden;
        if !file
            || !self.txn.has_feature(Feature::LAYOUT_BLOCKS)
            || !self.is_fragmented(spot.dir)?
        {
            return Ok(());
        }
        for ino in self.txn.volatile().space.unused.oldest(2, UNUSED_MAX) {
            self.free_unused(ino)?;
        }
        if let Some(block) = self.new_layout_block(MetaBlock(spot.block.0 + 1))? {
            slot.set_layout_blocks(&[block]);
            let ino = slot.ino();
            self.txn.on_commit(move |volatile, _| volatile.space.unused.note(ino));
        }
        Ok(())
    }

    /// Notes that the file uses its layout block now, or lost it.
    pub(crate) fn layout_block_is_used(&mut self, ino: Ino) {
        self.txn.on_commit(move |volatile, _| volatile.space.unused.forget(ino));
    }

    /// Frees the layout block of a file that does not use it, if there is one. Returns the number
    /// of blocks. A file that cannot be read keeps its block: its damage is not the caller's
    /// concern.
    fn free_unused(&mut self, ino: Ino) -> Result<u64, Stop> {
        self.layout_block_is_used(ino);
        let (spot, mut slot) = match self.slot_of(ino) {
            Ok(Some(found)) => found,
            Ok(None) | Err(Stop::Corrupt(..)) => return Ok(0),
            Err(stop) => return Err(stop),
        };
        let (true, Some(&block)) = (slot.body() == 0, slot.layout_blocks().first()) else {
            return Ok(0);
        };
        self.txn.free_meta(block, 1)?;
        slot.set_layout_blocks(&[]);
        self.txn.names().store(&spot, &slot)?;
        Ok(1)
    }

    fn slot_of(&mut self, ino: Ino) -> Result<Option<(Spot, Slot)>, Stop> {
        let Some(spot) = self.txn.names().locate(ino)? else { return Ok(None) };
        let slot = self.txn.names().load(&spot)?;
        Ok(Some((spot, slot)))
    }
}

/// Takes back the layout blocks of files that are known not to use them. Returns the number of
/// blocks.
pub(crate) async fn trim(mfs: &Mfs) -> Result<u64, StoreError> {
    let mut blocks = 0;
    loop {
        let files = mfs.volatile_state().space.unused.oldest(STEP, 0);
        if files.is_empty() {
            return Ok(blocks);
        }
        let step = Box::pin(mfs.run(Cost::STEP, |txn| {
            files.iter().try_fold(0, |sum, &ino| Ok(sum + txn.layouts().free_unused(ino)?))
        }));
        blocks += step.await?.0;
    }
}

#[cfg(test)]
mod tests;

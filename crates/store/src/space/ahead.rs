//! How fragmented directories are, and layout blocks that files get when they are made (002 §3.1).
//!
//! Invariants:
//! - the *fragments* of a directory are counted in its slot (7.2), by the transactions that change
//!   the segments or the place of a file. A file is counted by sixteens, so that one that fits a
//!   slot costs nothing, and others a few bytes in one of sixteen changes;
//! - the *degree* of a directory is its fragments, times sixteen, through its names. Where it is
//!   above a threshold, a new file gets a layout block behind the block of its inode at once: an
//!   allocated block, no more. It is not initialised and not written;
//! - such a block is given back with its file; when 1,024 younger ones are unused; and when
//!   metadata space is short, where it is known. It is known since its file was made, and after an
//!   opening since the directory was indexed by reading it (directories with a name map are not).
//!   It gets no file while metadata space is short, nor while clients replay.

use std::collections::BTreeMap;

use types::{Fault, FileKind, HashMap, Ino, MetaBlock};

use crate::error::{Stop, StoreError};
use crate::features::Feature;
use crate::format::layout;
use crate::format::number::ATTIC;
use crate::format::slot::{FRAGMENT, Slot, SlotSize};
use crate::mfs::{Cost, Mfs};
use crate::names::find::Spot;
use crate::txn::Txn;

/// Files with unused layout blocks, of those that are known; beyond them the oldest give theirs
/// back.
const UNUSED_MAX: usize = 1024;
/// Files that are known at most.
const KNOWN_MAX: usize = 1 << 16;
/// Files that give back their blocks in one transaction.
const STEP: usize = 32;

/// From which degree of their directory on new files get a layout block at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum LayoutAhead {
    /// Above as many segments as a slot holds: 15 to 163, by the size of slots.
    #[default]
    Usual,
    /// Above so many segments for each name.
    Above(u32),
    /// None does.
    Never,
}

impl LayoutAhead {
    /// The threshold, in segments for each name.
    pub fn threshold(self, slots: SlotSize) -> Option<u32> {
        match self {
            LayoutAhead::Usual => Some(slots.segments_max() as u32),
            LayoutAhead::Above(segments) => Some(segments),
            LayoutAhead::Never => None,
        }
    }
}

/// How layout blocks are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutLimits {
    /// Segments that are put into a block at most.
    pub capacity: usize,
    /// From which degree of their directory on new files get one at once.
    pub ahead: LayoutAhead,
}

impl LayoutLimits {
    /// As servers have them.
    pub const USUAL: LayoutLimits =
        LayoutLimits { capacity: layout::CAPACITY, ahead: LayoutAhead::Usual };
    /// So that small files have all that large ones have; for tests.
    pub const TINY: LayoutLimits = LayoutLimits { capacity: 3, ahead: LayoutAhead::Above(1) };
}

/// Files that have a layout block which they do not use, in the order in which that was noted;
/// hints.
#[derive(Default, Debug)]
pub(crate) struct Unused {
    order: BTreeMap<u64, Ino>,
    files: HashMap<Ino, u64>,
    next: u64,
}

impl Unused {
    /// The file has one.
    pub(crate) fn note(&mut self, ino: Ino) {
        if self.files.len() < KNOWN_MAX && !self.files.contains_key(&ino) {
            self.order.insert(self.next, ino);
            self.files.insert(ino, self.next);
            self.next += 1;
        }
    }

    /// It has none, or uses it.
    fn forget(&mut self, ino: Ino) {
        if let Some(at) = self.files.remove(&ino) {
            self.order.remove(&at);
        }
    }

    /// How many are known.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// At most `max` of the oldest, as long as more than `keep` are left.
    fn oldest(&self, max: usize, keep: usize) -> Vec<Ino> {
        let many = self.len().saturating_sub(keep).min(max);
        self.order.values().take(many).copied().collect()
    }
}

impl Txn<'_> {
    /// Counts the segments of a file, which were `before` fragments of directory `dir` and are
    /// `after`.
    pub(crate) fn count_fragments(
        &mut self,
        dir: Ino,
        before: u32,
        after: u32,
    ) -> Result<(), Stop> {
        let hidden = dir == ATTIC || dir == Ino::NONE;
        if before == after || hidden || !self.has_feature(Feature::LAYOUT_BLOCKS) {
            return Ok(());
        }
        // A directory that is not there is not counted: on a damaged file system only.
        let Some(spot) = self.locate(dir)? else { return Ok(()) };
        let mut slot = self.load(&spot)?;
        if slot.kind() == FileKind::Directory {
            slot.set_fragments(slot.fragments().saturating_sub(before).saturating_add(after));
            self.store(&spot, &slot)?;
        }
        Ok(())
    }

    /// The file in `slot` leaves a directory for another one.
    pub(crate) fn move_fragments(&mut self, from: Ino, to: Ino, slot: &Slot) -> Result<(), Stop> {
        let own = slot.own_fragments();
        self.count_fragments(from, own, 0)?;
        self.count_fragments(to, 0, own)
    }

    /// Segments that a directory counts, by sixteens, and its names. Its index must be complete.
    pub(crate) fn fragmentation(&mut self, dir: Ino) -> Result<(u64, u64), Stop> {
        let (_, slot) = self.locate_live(dir)?;
        let slots = slot.blocks() * u64::from(self.slots().per_block());
        let idle = self.idle_slots(dir)?;
        Ok((u64::from(slot.fragments()) * FRAGMENT, slots.saturating_sub(idle)))
    }

    /// Is the degree of a directory, whose index is complete, above the threshold?
    fn is_fragmented(&mut self, dir: Ino) -> Result<bool, Stop> {
        let Some(threshold) = self.state.layouts.ahead.threshold(self.slots()) else {
            return Ok(false);
        };
        let spot = self.locate(dir)?.ok_or(Stop::Fault(Fault::Stale))?;
        if Slot::fragments_at(self.read_slots(spot.block)?, spot.place.index()) == 0 {
            return Ok(false);
        }
        let (segments, names) = self.fragmentation(dir)?;
        Ok(segments > u64::from(threshold).saturating_mul(names))
    }

    /// Gives a new file, in the slot at `spot`, a layout block if its directory is fragmented.
    pub(crate) fn give_layout_block(&mut self, slot: &mut Slot, spot: &Spot) -> Result<(), Stop> {
        let hidden = spot.dir == ATTIC || self.volatile().names.apart.is_some();
        let file = slot.kind() == FileKind::Regular && !hidden;
        if !file || !self.has_feature(Feature::LAYOUT_BLOCKS) || !self.is_fragmented(spot.dir)? {
            return Ok(());
        }
        for ino in self.volatile().space.unused.oldest(2, UNUSED_MAX) {
            self.take_unused(ino)?;
        }
        if let Some(block) = self.new_layout_block(MetaBlock(spot.block.0 + 1))? {
            slot.set_layout_blocks(&[block]);
            let ino = slot.ino();
            self.on_commit(move |volatile, _| volatile.space.unused.note(ino));
        }
        Ok(())
    }

    /// The file has taken its layout block into use, or lost it.
    pub(crate) fn layout_block_is_used(&mut self, ino: Ino) {
        self.on_commit(move |volatile, _| volatile.space.unused.forget(ino));
    }

    /// Frees the layout block that a file does not use, if it is so. How many blocks. A file that
    /// cannot be read keeps its own: that is no matter of who asks.
    fn take_unused(&mut self, ino: Ino) -> Result<u64, Stop> {
        self.layout_block_is_used(ino);
        let (spot, mut slot) = match self.slot_of(ino) {
            Ok(Some(found)) => found,
            Ok(None) | Err(Stop::Corrupt(..)) => return Ok(0),
            Err(stop) => return Err(stop),
        };
        let (true, Some(&block)) = (slot.body() == 0, slot.layout_blocks().first()) else {
            return Ok(0);
        };
        self.free_meta(block, 1)?;
        slot.set_layout_blocks(&[]);
        self.store(&spot, &slot)?;
        Ok(1)
    }

    fn slot_of(&mut self, ino: Ino) -> Result<Option<(Spot, Slot)>, Stop> {
        let Some(spot) = self.locate(ino)? else { return Ok(None) };
        let slot = self.load(&spot)?;
        Ok(Some((spot, slot)))
    }
}

/// Takes back the layout blocks that files are known not to use. How many.
pub(crate) async fn trim(mfs: &Mfs) -> Result<u64, StoreError> {
    let mut blocks = 0;
    loop {
        let files = mfs.inner.state.borrow().volatile.space.unused.oldest(STEP, 0);
        if files.is_empty() {
            return Ok(blocks);
        }
        let step = Box::pin(mfs.run(Cost::STEP, |txn| {
            files.iter().try_fold(0, |sum, &ino| Ok(sum + txn.take_unused(ino)?))
        }));
        blocks += step.await?.0;
    }
}

#[cfg(test)]
mod tests;

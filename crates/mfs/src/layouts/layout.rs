//! Layouts: the sorted segments of a file, the lowest near its inode ([`super::near`]), the others
//! in the tree of segments.
//!
//! Invariants:
//! - every segment near the inode lies before every segment of the tree;
//! - the slot counts the segments outside it;
//! - `attr.blocks` is the sum of all segments.

use types::{ClientId, Fault, FileBlock, FileKind, Ino, MetaBlock, Segment};

use super::near::NearSegments;
use super::splice::{SEGMENT_LEN_MAX, splice, written};
use super::view::Layouts;
use crate::format::segment::{decode_item, segment_key, segment_value};
use crate::format::slot::Slot;
use crate::names::Spot;
use crate::trees::SEGMENTS;
use engine::error::Stop;

/// Most segments outside the slot that one change may touch.
pub const EDIT_MAX: usize = 128;
/// Most segments that one step of [`Layouts::unmap`] removes.
pub const UNMAP_STEP: usize = 64;

/// A file opened for a change of its layout.
pub(super) struct OpenLayout {
    pub(super) spot: Spot,
    pub(super) slot: Slot,
}

impl Layouts<'_, '_> {
    /// At most `max` segments that end after file block `from`, sorted; the first may begin before
    /// it.
    ///
    /// # Errors
    /// `Stale` if there is no such inode, `Invalid` if it is no regular file.
    pub fn layout(&mut self, ino: Ino, from: FileBlock, max: usize) -> Result<Vec<Segment>, Stop> {
        let OpenLayout { spot, slot } = self.open_layout(ino)?;
        let wanted = |segment: &Segment| segment.end() > from.0;
        let mut out = slot.segments();
        out.retain(wanted);
        let mut elsewhere = slot.body();
        let blocks = if elsewhere > 0 { slot.layout_blocks() } else { Vec::new() };
        for block in blocks {
            if out.len() >= max {
                break;
            }
            let list = self.layout_block_of(spot.block, block, ino)?;
            elsewhere = subtract(elsewhere, list.len() as u64, &spot)?;
            out.extend(list.into_iter().filter(wanted));
        }
        out.truncate(max);
        if elsewhere > 0 && out.len() < max {
            // One more: the first may end exactly at `from`.
            let room = max - out.len();
            let others = self.tree_segments(ino, from.0, u64::MAX, room.saturating_add(1))?;
            out.extend(others.into_iter().filter(wanted).take(room));
        }
        Ok(out)
    }

    /// Maps `segment`, whose blocks are in the pool of `client`, into a file. Frees what its range
    /// mapped before.
    ///
    /// # Errors
    /// `Invalid` if the blocks are not in the pool or the range is impossible; `Overloaded` if it
    /// replaces more than [`EDIT_MAX`] segments (unmap first); `Stale`.
    pub fn map(&mut self, ino: Ino, client: ClientId, segment: Segment) -> Result<(), Stop> {
        let end = segment.file.0.checked_add(segment.len);
        if segment.len == 0 || segment.len > SEGMENT_LEN_MAX || end.is_none_or(|end| end >> 52 != 0)
        {
            return Err(Stop::Fault(Fault::Invalid));
        }
        self.drop_content(ino, segment.file.0)?;
        // First of all what may be refused as too much: the caller goes on in this transaction.
        let freed = self.edit(ino, segment.file.0, segment.end(), |_| vec![segment])?;
        self.txn.space().pool_take(client, segment.pag, segment.addr.0, segment.len)?;
        self.txn.space().free_later(ino, &freed)
    }

    /// Maps blocks, which the caller has taken from free space, into a hole of a file.
    pub(crate) fn map_taken(&mut self, ino: Ino, segment: Segment) -> Result<(), Stop> {
        let end = segment.file.0.checked_add(segment.len);
        let sound = segment.len <= SEGMENT_LEN_MAX && end.is_some_and(|end| end >> 52 == 0);
        let bare = segment.file.0 > 0 || self.content(ino)?.is_empty();
        if !sound
            || !bare
            || !self.edit(ino, segment.file.0, segment.end(), |_| vec![segment])?.is_empty()
        {
            return Err(Stop::Fault(Fault::Invalid));
        }
        Ok(())
    }

    /// Unmaps everything, and returns it. The blocks stay taken: the caller sees to them.
    ///
    /// # Errors
    /// `Overloaded` if there are more than [`EDIT_MAX`] segments; `Stale`, `Invalid`.
    pub(crate) fn take_segments(&mut self, ino: Ino) -> Result<Vec<Segment>, Stop> {
        self.edit(ino, 0, u64::MAX, |_| Vec::new())
    }

    /// Marks what is mapped in `len` blocks from `from` on as written. Holes stay holes.
    ///
    /// # Errors
    /// `Overloaded` if that touches more than [`EDIT_MAX`] segments; `Stale`, `Invalid`.
    pub fn mark_written(&mut self, ino: Ino, from: FileBlock, len: u64) -> Result<(), Stop> {
        let to = from.0.checked_add(len).filter(|_| len > 0).ok_or(Stop::Fault(Fault::Invalid))?;
        self.edit(ino, from.0, to, |list| written(list, from.0, to))?;
        Ok(())
    }

    /// A step of making a hole of blocks `[from, to)`. `true` when nothing is mapped there any
    /// more.
    ///
    /// # Errors
    /// `Stale` if there is no such inode, `Invalid` if it is no regular file.
    pub fn unmap(&mut self, ino: Ino, from: FileBlock, to: FileBlock) -> Result<bool, Stop> {
        self.unmap_step(ino, from.0, to.0, UNMAP_STEP)
    }

    pub(crate) fn unmap_step(
        &mut self,
        ino: Ino,
        from: u64,
        to: u64,
        max: usize,
    ) -> Result<bool, Stop> {
        if to > 0 {
            self.drop_content(ino, from)?;
        }
        let max = max.clamp(1, EDIT_MAX / 2);
        let mut found = self.layout(ino, FileBlock(from), max + 1)?;
        found.retain(|segment| segment.file.0 < to);
        if found.is_empty() {
            return Ok(true);
        }
        let done = found.len() <= max;
        let end = if done { to } else { found[max - 1].end() };
        let freed = self.edit(ino, from, end, |_| Vec::new())?;
        self.txn.space().free_later(ino, &freed)?;
        Ok(done)
    }

    pub(super) fn open_layout(&mut self, ino: Ino) -> Result<OpenLayout, Stop> {
        let (spot, slot) = self.txn.names().locate_live(ino)?;
        if slot.kind() != FileKind::Regular {
            return Err(Stop::Fault(Fault::Invalid));
        }
        Ok(OpenLayout { spot, slot })
    }

    /// Segments of the tree that touch or adjoin `[from, to)`; at most `max`.
    pub(super) fn tree_segments(
        &self,
        ino: Ino,
        from: u64,
        to: u64,
        max: usize,
    ) -> Result<Vec<Segment>, Stop> {
        // The one in front of it may end there.
        let start = match SEGMENTS.prev(self.txn, &segment_key(ino, from.saturating_sub(1)))? {
            Some((key, _)) if key[..8] == ino.0.to_be_bytes() => key,
            _ => segment_key(ino, from),
        };
        let mut out: Vec<Segment> = Vec::new();
        let mut sound = true;
        SEGMENTS.for_each(self.txn, &start, |key, value| {
            let item = decode_item(key, value);
            if let Some((of, segment)) = item {
                let ordered = out.last().is_none_or(|last| last.end() <= segment.file.0);
                if of == ino && ordered {
                    let wanted = segment.file.0 <= to;
                    if wanted && (segment.end() >= from) {
                        out.push(segment);
                    }
                    return wanted && out.len() < max;
                }
                sound = of != ino;
                return false;
            }
            sound = false;
            false
        })?;
        if sound { Ok(out) } else { Err(SEGMENTS.corrupt(self.txn, "a segment is invalid")) }
    }

    /// Replaces the segments in `[from, to)` by those that `change` makes of the segments around
    /// it. Returns the replaced ones.
    fn edit(
        &mut self,
        ino: Ino,
        from: u64,
        to: u64,
        change: impl FnOnce(&[Segment]) -> Vec<Segment>,
    ) -> Result<Vec<Segment>, Stop> {
        let OpenLayout { spot, mut slot } = self.open_layout(ino)?;
        if slot.has_object() {
            return Err(Stop::Fault(Fault::Invalid));
        }
        let near = self.near(spot.block, &slot)?;
        let mut list = near.all();
        let bound = list.last().map_or(0, Segment::end);
        let in_near = list.len();
        let in_tree = subtract(slot.body(), near.in_blocks(), &spot)?;
        if in_tree > 0 {
            list.extend(self.tree_segments(ino, from, to, EDIT_MAX + 1)?);
        }
        let in_range = |segment: &&Segment| segment.end() > from && segment.file.0 < to;
        let in_blocks = list[near.in_slot()..in_near].iter().filter(in_range).count();
        if in_blocks + list.len() - in_near > EDIT_MAX {
            return Err(Stop::Fault(Fault::Overloaded));
        }
        let untouched = subtract(in_tree, (list.len() - in_near) as u64, &spot)?;
        let new = change(&list);
        let (after, freed) = splice(&list, from, to, &new);
        let candidates = match untouched {
            0 => after.len(),
            _ => after.partition_point(|segment| segment.file.0 < bound),
        };
        let before = slot.own_fragments();
        let room = slot.segment_room(slot.name().len());
        let laid = self.place_segments(spot.block, &mut slot, &near, &after[..candidates], room)?;
        let (in_blocks, mut in_tree) = laid;
        in_tree.extend_from_slice(&after[candidates..]);
        self.change_tree(ino, &list[in_near..], &in_tree)?;
        slot.set_body(untouched + in_blocks + in_tree.len() as u64);
        slot.set_blocks((slot.blocks() + sum(&after)).saturating_sub(sum(&list)));
        self.txn.names().store(&spot, &slot)?;
        self.count_fragments(spot.dir, before, slot.own_fragments())?;
        Ok(freed)
    }

    /// Replaces the segments `old` of the tree by `new`, both sorted.
    fn change_tree(&mut self, ino: Ino, old: &[Segment], new: &[Segment]) -> Result<(), Stop> {
        for segment in old {
            if new.binary_search_by_key(&segment.file, |e| e.file).is_err() {
                SEGMENTS.remove(self.txn, &segment_key(ino, segment.file.0))?;
            }
        }
        for segment in new {
            let same = old.binary_search_by_key(&segment.file, |e| e.file);
            if same.map(|at| old[at]) != Ok(*segment) {
                SEGMENTS.insert(
                    self.txn,
                    &segment_key(ino, segment.file.0),
                    &segment_value(segment),
                )?;
            }
        }
        Ok(())
    }

    /// Moves the highest segments out of a slot, which lies in the block `content`, so that `keep`
    /// are left.
    pub(crate) fn spill_segments(
        &mut self,
        content: MetaBlock,
        slot: &mut Slot,
        keep: usize,
    ) -> Result<(), Stop> {
        let near = self.near(content, slot)?;
        if near.in_slot() <= keep {
            return Ok(());
        }
        let elsewhere = slot.body() + near.in_slot() as u64;
        let (_, over) = self.place_segments(content, slot, &near, &near.all(), keep)?;
        self.change_tree(slot.ino(), &[], &over)?;
        slot.set_body(elsewhere - slot.segments().len() as u64);
        Ok(())
    }

    /// Makes `list`, which is sorted, the segments of the file in `slot`; `tree` are those in the
    /// tree of segments now.
    pub(crate) fn replace_segments(
        &mut self,
        spot: &Spot,
        slot: &mut Slot,
        (near, tree): (&NearSegments, &[Segment]),
        list: &[Segment],
    ) -> Result<(), Stop> {
        let room = slot.segment_room(slot.name().len());
        let (_, overflow) = self.place_segments(spot.block, slot, near, list, room)?;
        self.change_tree(slot.ino(), tree, &overflow)?;
        slot.set_body((list.len() - slot.segments().len()) as u64);
        slot.set_blocks(sum(list));
        self.txn.names().store(spot, slot)
    }
}

/// Blocks that segments map.
fn sum(list: &[Segment]) -> u64 {
    list.iter().map(|segment| segment.len).sum()
}

/// Subtracts `found` segments from the `counted` ones of the slot at `spot`.
fn subtract(counted: u64, found: u64, spot: &Spot) -> Result<u64, Stop> {
    counted
        .checked_sub(found)
        .ok_or(Stop::Corrupt(spot.block, "a file has more segments than its slot counts"))
}

//! Segments near an inode: in its slot, and in its layout blocks.
//!
//! Invariants:
//! - [`crate::format::layout`] says which segments belong where. In the order slot, first block,
//!   second block: a block is allocated when the part before it overflows, and freed with its last
//!   segment. It is joined to the part before it when both together fill at most three quarters of
//!   that part;
//! - a part that overflows gives its highest segments to the next one, and the last part gives them
//!   to the tree of segments. So each change touches few bytes of each part, and a lookup at most
//!   one slot, two blocks and a tree;
//! - no block is allocated while metadata space is short: for a few segments the tree needs a tenth
//!   of the space.

use types::{Fault, Ino, MetaBlock, Segment};

use super::view::Layouts;
use crate::format::layout::{self, BLOCKS_MAX};
use crate::format::slot::{LAYOUT_END, SLOTS_PER_BLOCK, Slot};
use engine::error::{Readahead, Stop};
use engine::format::block::{Block, BlockType};
use engine::format::features::Feature;

/// The segments near an inode.
pub(crate) struct NearSegments {
    slot: Vec<Segment>,
    blocks: Vec<LayoutBlock>,
}

/// A layout block in use.
struct LayoutBlock {
    block: MetaBlock,
    /// Its segments in the order of the block.
    stored: Vec<Segment>,
    /// The same, sorted.
    sorted: Vec<Segment>,
}

impl NearSegments {
    /// All of them, sorted.
    pub(crate) fn all(&self) -> Vec<Segment> {
        let blocks = self.blocks.iter().flat_map(|part| &part.sorted);
        self.slot.iter().chain(blocks).copied().collect()
    }

    /// How many the slot has.
    pub(crate) fn in_slot(&self) -> usize {
        self.slot.len()
    }

    /// How many the blocks have.
    pub(crate) fn in_blocks(&self) -> u64 {
        self.blocks.iter().map(|part| part.sorted.len() as u64).sum()
    }

    /// Distributes `wanted`, sorted, over the parts, by where these begin now.
    fn shared_out(&self, wanted: &[Segment]) -> Vec<Vec<Segment>> {
        let starts: Vec<u64> = self.blocks.iter().map(|part| part.sorted[0].file.0).collect();
        let mut lists = vec![Vec::new(); 1 + starts.len()];
        for segment in wanted {
            let part = starts.partition_point(|&start| start <= segment.file.0);
            lists[part].push(*segment);
        }
        lists
    }
}

/// Joins parts with few segments to those before them; the first holds `room`, the others
/// `capacity`.
fn join_parts(lists: &mut [Vec<Segment>], room: usize, capacity: usize) {
    for at in (1..lists.len()).rev() {
        let capacity = if at == 1 { room } else { capacity };
        if lists[at - 1].len() + lists[at].len() <= capacity / 4 * 3 {
            let list = std::mem::take(&mut lists[at]);
            lists[at - 1].extend(list);
        }
    }
}

impl Layouts<'_, '_> {
    /// The segments near the inode of `slot`, which lies in the block `content`.
    pub(crate) fn near(&self, content: MetaBlock, slot: &Slot) -> Result<NearSegments, Stop> {
        let mut near = NearSegments { slot: slot.segments(), blocks: Vec::new() };
        if slot.body() == 0 {
            return Ok(near);
        }
        let mut end = near.slot.last().map_or(0, Segment::end);
        for block in slot.layout_blocks() {
            let part = self.layout_block(content, block, slot.ino())?;
            if part.sorted[0].file.0 < end {
                return Err(Stop::Corrupt(
                    block,
                    "layout block: its segments overlap those before it",
                ));
            }
            end = part.sorted[part.sorted.len() - 1].end();
            near.blocks.push(part);
        }
        Ok(near)
    }

    /// The segments of one layout block of `ino`, sorted.
    pub(crate) fn layout_block_of(
        &self,
        content: MetaBlock,
        block: MetaBlock,
        ino: Ino,
    ) -> Result<Vec<Segment>, Stop> {
        Ok(self.layout_block(content, block, ino)?.sorted)
    }

    fn layout_block(
        &self,
        content: MetaBlock,
        block: MetaBlock,
        ino: Ino,
    ) -> Result<LayoutBlock, Stop> {
        let data = self.read_layout(content, block)?;
        let corrupt = |what| Stop::Corrupt(block, what);
        let stored = layout::segments(data, ino).map_err(corrupt)?;
        let mut sorted = stored.clone();
        sorted.sort_unstable_by_key(|segment| segment.file);
        if sorted.windows(2).any(|pair| pair[0].end() > pair[1].file.0) {
            return Err(corrupt("layout block: segments overlap"));
        }
        Ok(LayoutBlock { block, stored, sorted })
    }

    /// Reads a layout block, together with the layout blocks after it of inodes in the block
    /// `content`.
    fn read_layout(&self, content: MetaBlock, block: MetaBlock) -> Result<&Block, Stop> {
        match self.txn.read_as(block, BlockType::Layout) {
            Err(Stop::Miss(..)) => {
                let siblings = self.siblings_after(content, block)?;
                Err(Stop::MissWithReadahead(block, 1, Readahead::behind(siblings)))
            }
            read => read,
        }
    }

    /// How many blocks directly after `block` are layout blocks of inodes in the block `content`.
    fn siblings_after(&self, content: MetaBlock, block: MetaBlock) -> Result<u32, Stop> {
        let data = self.txn.read_slots(content)?;
        let all = (0..SLOTS_PER_BLOCK).flat_map(|at| Slot::layout_blocks_at(data, at)).flatten();
        let mut all: Vec<MetaBlock> = all.collect();
        all.sort_unstable();
        let behind = (1..).take_while(|n| all.binary_search(&MetaBlock(block.0 + n)).is_ok());
        Ok(behind.count() as u32)
    }

    /// Makes `wanted`, which is sorted, the segments near the inode of `slot`; `near` are those
    /// before, and the slot has room for `room`. Returns how many lie in layout blocks, and the
    /// highest segments, for which there is no room.
    pub(super) fn place_segments(
        &mut self,
        content: MetaBlock,
        slot: &mut Slot,
        near: &NearSegments,
        wanted: &[Segment],
        room: usize,
    ) -> Result<(u64, Vec<Segment>), Stop> {
        let mut lists = near.shared_out(wanted);
        let mut blocks: Vec<MetaBlock> = near.blocks.iter().map(|part| part.block).collect();
        let mut overflow = Vec::new();
        let mut at = 0;
        while at < lists.len() {
            let capacity = if at == 0 { room } else { self.txn.volatile().layouts.capacity };
            let keep = lists[at].len().min(capacity);
            let over = lists[at].split_off(keep);
            at += 1;
            if over.is_empty() {
                continue;
            }
            if at < lists.len() {
                lists[at].splice(0..0, over);
            } else if let Some(block) = self.another_block(content, slot, &blocks)? {
                blocks.push(block);
                lists.push(over);
            } else {
                overflow = over;
            }
        }
        join_parts(&mut lists, room, self.txn.volatile().layouts.capacity);
        slot.set_segments(&lists[0]);
        let used = self.write_layout_blocks(slot.ino(), near, &blocks, &lists[1..])?;
        if !blocks.is_empty() {
            slot.set_layout_blocks(&used);
            self.layout_block_is_used(slot.ino());
        }
        Ok((lists[1..].iter().map(|list| list.len() as u64).sum(), overflow))
    }

    /// Writes the segments of the layout blocks, and frees blocks without any. Returns the others.
    fn write_layout_blocks(
        &mut self,
        ino: Ino,
        near: &NearSegments,
        blocks: &[MetaBlock],
        lists: &[Vec<Segment>],
    ) -> Result<Vec<MetaBlock>, Stop> {
        let mut used = Vec::with_capacity(blocks.len());
        for (&block, list) in blocks.iter().zip(lists) {
            if list.is_empty() {
                self.txn.free_meta(block, 1)?;
                continue;
            }
            used.push(block);
            match near.blocks.iter().find(|part| part.block == block) {
                Some(part) if part.sorted == *list => {}
                Some(part) => {
                    layout::put(
                        self.txn.write_as(block, BlockType::Layout)?,
                        ino,
                        &part.stored,
                        list,
                    );
                }
                None => layout::put(self.txn.init(block, BlockType::Layout)?, ino, &[], list),
            }
        }
        Ok(used)
    }

    /// One more layout block for a file that uses `blocks`: the one allocated ahead, else a new
    /// one. `None` if it gets no more.
    fn another_block(
        &mut self,
        content: MetaBlock,
        slot: &Slot,
        blocks: &[MetaBlock],
    ) -> Result<Option<MetaBlock>, Stop> {
        let ahead = slot.layout_blocks();
        match (blocks.last(), ahead.first()) {
            _ if blocks.len() == BLOCKS_MAX => Ok(None),
            (None, Some(&ahead)) if slot.body() == 0 => Ok(Some(ahead)),
            (last, _) => self.new_layout_block(last.map_or(content, |last| MetaBlock(last.0 + 1))),
        }
    }

    /// A new layout block near `goal`, not initialised; `None` if there is none to be had.
    pub(super) fn new_layout_block(&mut self, goal: MetaBlock) -> Result<Option<MetaBlock>, Stop> {
        if !self.txn.has_feature(Feature::LAYOUT_BLOCKS) || self.txn.meta_is_short() {
            return Ok(None);
        }
        match self.alloc_layout_block(goal) {
            Err(Stop::Fault(Fault::NoSpace)) => Ok(None),
            block => block.map(Some),
        }
    }

    /// Allocates a block near `goal` that can be a layout block.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn alloc_layout_block(&mut self, goal: MetaBlock) -> Result<MetaBlock, Stop> {
        let found = self.txn.find_meta(1, goal)?.filter(|block| block.0 < LAYOUT_END);
        let block = found.ok_or(Stop::Fault(Fault::NoSpace))?;
        self.txn.alloc_meta(1, Some(block))
    }
}

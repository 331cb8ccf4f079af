//! Chooses where the content of directories lies, and how much is allocated ahead of need.
//!
//! Invariants:
//! - the choice only affects speed: every block is found through its chunk;
//! - a directory of the root begins in a region of its own, as long as there are unused ones. So
//!   does the first directory of each owner in a directory that belongs to another user. So the
//!   trees of several users do not mix (002 §3.2: directories that one stream makes lie together);
//! - every other directory begins after the sibling next to it in the namespace index. It is one of
//!   the same stream, else of the same user, else any (002 §3.2: subdirectories of one parent lie
//!   together, and then those that one stream made). Mkdir chooses the place, before there is
//!   content, and the index keeps it;
//! - where the index has no start for a directory, the place is chosen with its first content. It
//!   was made under another [`DirPlacement`], its entry is missing, or its name is on another
//!   shard. Memory keeps where the last such sibling of an owner lies, and nothing stores it. After
//!   the store is opened again, or when the full memory was cleared, the next one of an owner
//!   counts as the first again;
//! - [`DirPlacement`] chooses otherwise for comparison only, and the device does not record it;
//! - content grows by as much as it has, at least [`FIRST`] blocks, while a quarter of the device
//!   is free, and block by block after that;
//! - blocks that are allocated ahead keep no transaction from getting space: the transaction takes
//!   them back ([`trim`]).

use crate::volatile::placement::{DirPlacement, Placement};
use types::{DirNo, FileKind, Ino, MetaBlock};

use super::dir_content::{LARGE_PARTS, RUN_LARGE, RUN_MAX};
use super::find::Spot;
use super::view::Names;
use crate::format::chunk::{ContentRun, DESCRIPTOR, Descriptor, chunk_key, decode_key};
use crate::format::namespace::NamespaceEntry;
use crate::format::number::{is_root_dir, is_system};
use crate::format::slot::Slot;
use crate::handle::Mfs;
use crate::trees::CHUNKS;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};

/// Blocks that a directory gets with its first entry: 32 entries, read by one request.
const FIRST: u32 = 4;
/// Blocks of a region: a share of the device, between these.
const REGION_SHARE: u64 = 128;
const REGION: std::ops::RangeInclusive<u64> = 16..=1024;
/// Items of the table that one step of trimming reads, and chunks that it shortens.
const LOOK: usize = 256;
const TRIMMED: usize = 32;
/// Trimming stops when it has found this many blocks.
const ENOUGH: u64 = 256;

/// Blocks of a group for directories that are spread out: those that one bitmap block counts, as in
/// ext3.
const GROUP: u64 = engine::alloc::metaspace::BITS;

impl Names<'_, '_> {
    /// Length of the next run of a directory that has `blocks` content blocks.
    pub(super) fn run_wanted(&self, blocks: u64) -> u32 {
        if self.txn.meta_is_short() {
            return 1;
        }
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        blocks.clamp(FIRST, RUN_MAX).max((blocks / LARGE_PARTS).min(RUN_LARGE))
    }

    /// Where the content of the directory in `slot`, at `home`, should begin.
    pub(super) fn first_goal(&mut self, home: &Spot, slot: &Slot) -> Result<MetaBlock, Stop> {
        let siblings = (home.dir, slot.attr().uid);
        let Placement { policy, newest, .. } = &self.txn.volatile().placement;
        let (policy, newest) = (*policy, *newest);
        if policy == DirPlacement::Together
            && let Some(start) = self.indexed_start(home.dir, slot)?
        {
            return Ok(start);
        }
        let behind = self.txn.volatile().placement.behind.get(&siblings).copied();
        let region = match policy {
            DirPlacement::Together if self.begins_a_region(home.dir, slot, behind)? => {
                self.free_region()?
            }
            _ => None,
        };
        let goal = match policy {
            DirPlacement::Together => region.or(behind).unwrap_or(home.block),
            DirPlacement::InOrder => newest.unwrap_or(home.block),
            DirPlacement::Spread => self.next_group(newest.unwrap_or(home.block)),
        };
        let end = region.map(|start| start.0 + self.region_blocks());
        let next = MetaBlock(goal.0 + u64::from(FIRST));
        self.txn.on_commit(move |side, _| side.placement.note(siblings, next, end));
        Ok(goal)
    }

    /// Where the content of the directory in `slot` begins, if it has some.
    pub(super) fn content_start(&mut self, slot: &Slot) -> Result<Option<MetaBlock>, Stop> {
        let first = DirNo(slot.body());
        if slot.kind() != FileKind::Directory || first.0 == 0 || !self.ensure_chunk(first)? {
            return Ok(None);
        }
        let run = self.chunk(first)?.runs.first();
        Ok(run.filter(|run| run.is_present()).map(|run| run.start))
    }

    /// Where the new directory in `slot`, with the index entry `entry`, begins; its slot lies in
    /// `parent`, in the block `home`.
    pub(super) fn choose_start(
        &mut self,
        parent: Ino,
        entry: NamespaceEntry,
        slot: &Slot,
        home: MetaBlock,
    ) -> Result<Option<MetaBlock>, Stop> {
        if self.txn.volatile().placement.policy != DirPlacement::Together {
            return Ok(None);
        }
        let siblings = self.siblings(entry)?;
        if self.begins_a_region(parent, slot, siblings.of_user)?
            && let Some(region) = self.free_region()?
        {
            let end = region.0 + self.region_blocks();
            self.txn.on_commit(move |volatile, _| volatile.placement.region = end);
            return Ok(Some(region));
        }
        let sibling = siblings.of_user.or(siblings.any);
        let behind = sibling.map(|sibling| sibling.0.saturating_add(u64::from(FIRST)));
        let there = behind.filter(|&behind| behind < self.txn.meta_space().0);
        Ok(Some(there.map_or(home, MetaBlock)))
    }

    /// Does a new directory of `parent` begin a region, if its siblings of the same owner end at
    /// `behind`?
    fn begins_a_region(
        &mut self,
        parent: Ino,
        slot: &Slot,
        behind: Option<MetaBlock>,
    ) -> Result<bool, Stop> {
        if is_root_dir(parent) || parent == Ino::NONE {
            // The root itself and the orphan directory lie in the system's chunk, which is no
            // user's tree.
            return Ok(is_root_dir(parent));
        }
        if behind.is_some() {
            return Ok(false);
        }
        match self.locate(parent)? {
            Some(spot) => Ok(self.load(&spot)?.attr().uid != slot.attr().uid),
            None => Ok(false),
        }
    }

    /// The start of the group after that of `block`; after the last comes the first.
    fn next_group(&self, block: MetaBlock) -> MetaBlock {
        let next = (block.0 / GROUP + 1) * GROUP;
        MetaBlock(if next < self.txn.meta_space().0 { next } else { 0 })
    }

    fn region_blocks(&self) -> u64 {
        (self.txn.meta_space().0 / REGION_SHARE).clamp(*REGION.start(), *REGION.end())
    }

    /// An unused region after the newest one, or before it.
    fn free_region(&self) -> Result<Option<MetaBlock>, Stop> {
        if self.txn.meta_is_short() {
            return Ok(None);
        }
        let (region, len) = (MetaBlock(self.txn.volatile().placement.region), self.region_blocks());
        // Prefers one that begins at a multiple of its length: another one could be the unused end
        // of a region, whose directories grow there.
        if let Some(found) = self.txn.find_meta(2 * len as u32 - 1, region)? {
            return Ok(Some(MetaBlock(found.0.next_multiple_of(len))));
        }
        self.txn.find_meta(len as u32, region)
    }

    /// Frees what some chunks from `from` on have allocated ahead. Returns the number of blocks,
    /// and where to go on.
    fn trim_step(&mut self, from: DirNo) -> Result<(u64, Option<DirNo>), Stop> {
        let items = CHUNKS.range(self.txn, &chunk_key(from, 0), LOOK)?;
        let more = items.len() == LOOK;
        let (mut blocks, mut chunks, mut next, mut last) = (0, 0, None, from);
        for (key, value) in items {
            let Some((number, index)) = decode_key(&key) else { continue };
            last = number;
            if index != DESCRIPTOR {
                continue;
            }
            next = Some(DirNo(number.0 + 1));
            let sound = Descriptor::decode(&value).is_some();
            if is_system(number) || !sound || !self.ensure_chunk(number)? {
                continue;
            }
            let freed = self.trim_chunk(number)?;
            blocks += freed;
            chunks += usize::from(freed > 0);
            if chunks == TRIMMED {
                return Ok((blocks, next));
            }
        }
        // A chunk with more runs than one step reads is left out: little of it is allocated ahead.
        Ok((blocks, more.then(|| next.unwrap_or(DirNo(last.0 + 1)))))
    }

    /// Frees what a chunk has allocated ahead. Returns the number of blocks.
    pub(crate) fn trim_chunk(&mut self, number: DirNo) -> Result<u64, Stop> {
        let mut chunk = self.chunk(number)?.clone();
        let (used, allocated) = (chunk.descriptor.used, chunk.allocated());
        if allocated <= used {
            return Ok(0);
        }
        let old = chunk.runs.clone();
        let mut freed = 0;
        for run in
            old.iter().filter_map(|run| run.part(used, u32::MAX)).filter(ContentRun::is_present)
        {
            self.txn.free_meta(run.start, run.len)?;
            freed += u64::from(run.len);
        }
        chunk.cut(used);
        self.set_runs(number, &old, chunk)?;
        Ok(freed)
    }
}

/// Takes back blocks that directories have allocated ahead, until there are enough or all chunks
/// were read. Returns the number of blocks.
pub(crate) async fn trim(mfs: &Mfs) -> Result<u64, StoreError> {
    let start = match &mfs.volatile_state().placement {
        placement if placement.nothing_preallocated => return Ok(0),
        placement => placement.trim_from,
    };
    let (mut from, mut wrapped, mut blocks) = (start, false, 0);
    while blocks < ENOUGH {
        let step = Box::pin(mfs.run(Cost::STEP, |txn| txn.names().trim_step(from)));
        let ((freed, next), _) = step.await?;
        blocks += freed;
        match next {
            Some(next) if !wrapped || next < start => from = next,
            None if !wrapped => (from, wrapped) = (DirNo(0), true),
            _ => break,
        }
    }
    let placement = &mut mfs.volatile_state_mut().placement;
    placement.trim_from = from;
    placement.nothing_preallocated = blocks == 0;
    Ok(blocks)
}

#[cfg(test)]
mod tests;

//! The name map of a large directory (002 §3.1): the hash of a name leads to its slot, without a
//! scan of the content.
//!
//! Invariants:
//! - a directory gets its map when its content reaches [`super::MapLimits::blocks`], in the
//!   transaction that lets it grow to this size. From then on a name and its entry change in the
//!   same transaction;
//! - the map grows and shrinks by linear hashing, one bucket at a time. It has a bucket for each
//!   [`super::MapLimits::load`] names. While not all buckets are split, they are filled unevenly,
//!   and this load leaves room for that. So practically no bucket has a chained block, and a lookup
//!   reads one bucket and one content block;
//! - the directory's slot counts the names of its map; in memory a directory with a map has its
//!   chunks and some free slots, never its names.

use types::{DirNo, Fault, Ino, MetaBlock};

use super::dir_content::RUN_MAX;
use super::index::{Chunk, Position};
use super::view::Names;
use crate::format::chunk::{Descriptor, MAP_CHUNK};
use crate::format::lmap::{self, NameMapEntry, bucket_of, hash_of, parent_of};
use crate::format::number::{CHUNK_BLOCKS, is_orphan_dir};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotState};
use engine::error::Stop;
use engine::format::block::BlockType;

/// The last bucket is removed when buckets have this many times fewer names than
/// [`super::MapLimits::load`].
const SHRINK: u64 = 4;
/// Most bytes of the log for an entry and for a bucket when a map is built.
const ENTRY_LOGGED: u64 = 12;
const BUCKET_LOGGED: u64 = 256;
/// Most blocks of one bucket; more are damage.
const CHAIN_MAX: usize = 1 << 16;

/// The chunks of a map, and its number of buckets.
struct NameMap {
    chunks: Vec<DirNo>,
    buckets: u32,
}

impl Names<'_, '_> {
    /// The first chunk of the map of `dir`, if it has one. The index must be complete.
    pub(crate) fn map_of(&self, dir: Ino) -> Option<DirNo> {
        self.txn.volatile().names.map_of(&self.txn.pending.names, dir)
    }

    /// The slots of `dir` that its map has for a name.
    pub(super) fn mapped(
        &mut self,
        dir: Ino,
        first: DirNo,
        name: &[u8],
    ) -> Result<Vec<Position>, Stop> {
        let hash = hash_of(name);
        let (map, head) = self.bucket_for(dir, first, hash)?;
        self.fetch_bucket(dir, &map, bucket_of(hash, map.buckets), head)?;
        let mut out = Vec::new();
        for block in self.chain(head)? {
            let found = lmap::entries(self.bucket(block)?).filter(|entry| entry.hash == hash);
            out.extend(found.map(|entry| Position(entry.at)));
        }
        Ok(out)
    }

    /// Adds a name in a slot of `dir`.
    pub(super) fn add_name(&mut self, dir: Ino, name: &[u8], at: Position) -> Result<(), Stop> {
        let Some(first) = self.map_of(dir) else {
            self.txn.pending.names.add_name(dir, name, at);
            return Ok(());
        };
        let entry = NameMapEntry { hash: hash_of(name), at: at.0 };
        let (map, head) = self.bucket_for(dir, first, entry.hash)?;
        self.add_entry(head, entry)?;
        let names = self.count_names(dir, 1)?;
        let load = u64::from(self.txn.volatile().limits.load);
        if names > load * u64::from(map.buckets) { self.split(dir, &map) } else { Ok(()) }
    }

    /// Removes the name of a slot of `dir`.
    pub(super) fn remove_name_at(
        &mut self,
        dir: Ino,
        name: &[u8],
        at: Position,
    ) -> Result<(), Stop> {
        let Some(first) = self.map_of(dir) else {
            self.txn.pending.names.remove_name(dir, name, at);
            return Ok(());
        };
        let entry = NameMapEntry { hash: hash_of(name), at: at.0 };
        let (map, head) = self.bucket_for(dir, first, entry.hash)?;
        self.remove_entry(head, entry)?;
        let names = self.count_names(dir, -1)?;
        let load = u64::from(self.txn.volatile().limits.load);
        if map.buckets > 1 && names * SHRINK < load * u64::from(map.buckets) {
            self.join(dir, &map)?;
        }
        Ok(())
    }

    /// Number of names in the map of `dir`.
    pub(super) fn names_mapped(&mut self, dir: Ino) -> Result<u64, Stop> {
        Ok(u64::from(self.locate_live(dir)?.1.names()))
    }

    fn count_names(&mut self, dir: Ino, change: i32) -> Result<u64, Stop> {
        let (spot, mut slot) = self.locate_live(dir)?;
        let names = slot.names().saturating_add_signed(change);
        slot.set_names(names);
        self.store(&spot, &slot)?;
        Ok(u64::from(names))
    }

    fn name_map(&mut self, dir: Ino, first: DirNo) -> Result<NameMap, Stop> {
        let mut map = NameMap { chunks: Vec::new(), buckets: 0 };
        let mut next = first;
        while next.0 != 0 {
            if !self.ensure_chunk(next)? {
                return Err(self.damaged_map(dir));
            }
            let descriptor = self.chunk(next)?.descriptor;
            let full = map.buckets.is_multiple_of(CHUNK_BLOCKS);
            let index = MAP_CHUNK | map.chunks.len() as u32;
            let fits = descriptor.owner == dir && descriptor.index == index;
            if !full || !fits || descriptor.used == 0 {
                return Err(self.damaged_map(dir));
            }
            map.chunks.push(next);
            map.buckets += descriptor.used;
            next = descriptor.next;
        }
        Ok(map)
    }

    fn damaged_map(&mut self, dir: Ino) -> Stop {
        match self.locate_live(dir) {
            Ok((spot, _)) => {
                Stop::Corrupt(spot.block, "the chunks of a name map do not form a chain")
            }
            Err(stop) => stop,
        }
    }

    fn bucket_for(
        &mut self,
        dir: Ino,
        first: DirNo,
        hash: u64,
    ) -> Result<(NameMap, MetaBlock), Stop> {
        let map = self.name_map(dir, first)?;
        let head = self.home_of_bucket(&map, bucket_of(hash, map.buckets))?;
        Ok((map, head))
    }

    #[cfg(test)]
    pub(crate) fn bucket_of_name(
        &mut self,
        dir: Ino,
        first: DirNo,
        name: &[u8],
    ) -> Result<MetaBlock, Stop> {
        Ok(self.bucket_for(dir, first, hash_of(name))?.1)
    }

    fn home_of_bucket(&self, map: &NameMap, bucket: u32) -> Result<MetaBlock, Stop> {
        let number = map.chunks.get((bucket / CHUNK_BLOCKS) as usize);
        let chunk = self.chunk(*number.ok_or(Stop::Fault(Fault::Corrupt))?)?;
        let block = bucket % CHUNK_BLOCKS;
        let run = chunk.run_of(block).filter(|run| run.is_present());
        run.map(|run| run.home(block)).ok_or(Stop::Fault(Fault::Corrupt))
    }

    /// Ensures that a bucket is cached.
    fn fetch_bucket(
        &mut self,
        dir: Ino,
        map: &NameMap,
        bucket: u32,
        head: MetaBlock,
    ) -> Result<(), Stop> {
        let Some(&number) = map.chunks.get((bucket / CHUNK_BLOCKS) as usize) else {
            return Ok(());
        };
        let block = bucket % CHUNK_BLOCKS;
        let chunk = self.chunk(number)?;
        let run = chunk.run_of(block).and_then(|run| run.part(0, chunk.descriptor.used));
        self.fetch_piece(dir, head, |wanted| {
            let from = block - block % wanted;
            let piece = run.and_then(|run| run.part(from, from + wanted));
            piece.map_or((head, 1), |piece| (piece.start, piece.len))
        })
    }

    fn bucket(&self, block: MetaBlock) -> Result<&engine::format::block::Block, Stop> {
        let data = self.txn.read_as(block, BlockType::NameMap)?;
        match lmap::count(data) {
            Some(_) => Ok(data),
            None => Err(Stop::Corrupt(block, "a bucket of a name map is invalid")),
        }
    }

    /// The blocks of a bucket, from its first one.
    fn chain(&self, head: MetaBlock) -> Result<Vec<MetaBlock>, Stop> {
        let mut out = vec![head];
        while let Some(next) = lmap::next(self.bucket(out[out.len() - 1])?) {
            if out.len() >= CHAIN_MAX {
                return Err(Stop::Corrupt(next, "the chain of a bucket is too long"));
            }
            out.push(next);
        }
        Ok(out)
    }

    fn add_entry(&mut self, head: MetaBlock, entry: NameMapEntry) -> Result<(), Stop> {
        let most = self.txn.volatile().limits.entries;
        let chain = self.chain(head)?;
        for &block in &chain {
            if lmap::entries(self.bucket(block)?).len() < most {
                lmap::push(self.txn.write(block)?, entry);
                return Ok(());
            }
        }
        let more = self.txn.alloc_meta(1, Some(head))?;
        lmap::push(self.txn.init(more, BlockType::NameMap)?, entry);
        let last = chain[chain.len() - 1];
        lmap::set_next(self.txn.write(last)?, Some(more));
        Ok(())
    }

    fn remove_entry(&mut self, head: MetaBlock, entry: NameMapEntry) -> Result<(), Stop> {
        let mut before = None;
        for block in self.chain(head)? {
            let Some(at) = lmap::entries(self.bucket(block)?).position(|found| found == entry)
            else {
                before = Some(block);
                continue;
            };
            let data = self.txn.write(block)?;
            lmap::swap_remove(data, at);
            let (empty, next) = (lmap::entries(data).len() == 0, lmap::next(data));
            if let Some(before) = before.filter(|_| empty) {
                lmap::set_next(self.txn.write(before)?, next);
                self.txn.free_meta(block, 1)?;
            }
            return Ok(());
        }
        Err(Stop::Corrupt(head, "a name is missing in the map of its directory"))
    }

    /// Removes all entries from a bucket, and frees the blocks chained to it.
    fn take_entries(&mut self, head: MetaBlock) -> Result<Vec<NameMapEntry>, Stop> {
        let mut out = Vec::new();
        for block in self.chain(head)? {
            out.extend(lmap::entries(self.bucket(block)?));
            if block != head {
                self.txn.free_meta(block, 1)?;
            }
        }
        lmap::clear(self.txn.write(head)?);
        Ok(out)
    }

    /// Adds a bucket, which takes its names from an existing one.
    fn split(&mut self, dir: Ino, map: &NameMap) -> Result<(), Stop> {
        let new = map.buckets;
        let old = self.home_of_bucket(map, parent_of(new))?;
        let added = self.grow_map(dir, map.chunks.last().copied())?;
        for entry in self.take_entries(old)? {
            let home = if bucket_of(entry.hash, new + 1) == new { added } else { old };
            self.add_entry(home, entry)?;
        }
        Ok(())
    }

    /// Removes the last bucket: its names return to the bucket that it was split from.
    fn join(&mut self, dir: Ino, map: &NameMap) -> Result<(), Stop> {
        let last = map.buckets - 1;
        let (from, to) =
            (self.home_of_bucket(map, last)?, self.home_of_bucket(map, parent_of(last))?);
        for entry in self.take_entries(from)? {
            self.add_entry(to, entry)?;
        }
        self.shrink_map(dir, map)
    }

    /// Starts the next bucket of a map, whose last chunk is `last`. Returns its block.
    fn grow_map(&mut self, dir: Ino, last: Option<DirNo>) -> Result<MetaBlock, Stop> {
        let full = match last {
            Some(last) => self.chunk(last)?.descriptor.used >= CHUNK_BLOCKS,
            None => true,
        };
        let number = match last.filter(|_| !full) {
            Some(last) => last,
            None => self.add_map_chunk(dir, last)?,
        };
        let mut chunk = self.chunk(number)?.clone();
        let block = chunk.descriptor.used;
        let fresh = block == chunk.allocated();
        if fresh {
            let near = self.locate_live(dir)?.0.block;
            let wanted = chunk.allocated().clamp(1, RUN_MAX);
            self.add_run(number, &mut chunk, near, wanted)?;
        }
        let run = chunk.run_of(block).copied().ok_or(Stop::Fault(Fault::Corrupt))?;
        // As with content, a run is initialised as a whole, so that it is written home without a
        // gap.
        for at in block..if fresh { run.end() } else { block + 1 } {
            self.txn.init(run.home(at), BlockType::NameMap)?;
        }
        chunk.descriptor.used += 1;
        self.set_chunk(number, chunk)?;
        Ok(run.home(block))
    }

    /// Adds a chunk of a map after `last`. The caller enters the first one into the directory's
    /// slot.
    fn add_map_chunk(&mut self, dir: Ino, last: Option<DirNo>) -> Result<DirNo, Stop> {
        // No slot, and so no home of an inode, is in it.
        let number = self.new_chunk_number(true)?;
        let mut index = MAP_CHUNK;
        if let Some(last) = last {
            let mut chunk = self.chunk(last)?.clone();
            index = chunk.descriptor.index + 1;
            chunk.descriptor.next = number;
            self.set_chunk(last, chunk)?;
        }
        let descriptor = Descriptor { owner: dir, next: DirNo(0), index, used: 0 };
        self.set_chunk(number, Chunk { descriptor, runs: Vec::new() })?;
        Ok(number)
    }

    /// Removes the last bucket of a map, which is empty, and the run that only it used.
    fn shrink_map(&mut self, dir: Ino, map: &NameMap) -> Result<(), Stop> {
        let number = *map.chunks.last().ok_or(Stop::Fault(Fault::Corrupt))?;
        let mut chunk = self.chunk(number)?.clone();
        chunk.descriptor.used -= 1;
        let used = chunk.descriptor.used;
        let old = chunk.runs.clone();
        if used == 0 {
            let before = map.chunks.len().checked_sub(2).map(|at| map.chunks[at]);
            return self.drop_map_chunk(dir, number, before);
        }
        // Unused blocks may be as many as used ones: more are freed, and a map that grows again
        // soon does not allocate.
        let keep = used.next_power_of_two();
        if keep < chunk.allocated() {
            for run in old.iter().filter_map(|run| run.part(keep, CHUNK_BLOCKS)) {
                self.txn.free_meta(run.start, run.len)?;
            }
            chunk.cut(keep);
            self.set_runs(number, &old, chunk.clone())?;
        }
        self.set_chunk(number, chunk)
    }

    fn drop_map_chunk(
        &mut self,
        dir: Ino,
        number: DirNo,
        before: Option<DirNo>,
    ) -> Result<(), Stop> {
        let Some(before) = before else {
            return Err(self.damaged_map(dir));
        };
        let mut chunk = self.chunk(before)?.clone();
        chunk.descriptor.next = DirNo(0);
        self.set_chunk(before, chunk)?;
        let runs = self.chunk(number)?.runs.clone();
        for run in &runs {
            self.txn.free_meta(run.start, run.len)?;
        }
        self.remove_chunk(number, &runs)
    }

    /// Gives `dir`, whose index is complete, a map if its content has become large enough.
    pub(super) fn add_map_if_large(&mut self, dir: Ino) -> Result<(), Stop> {
        // Building the map reads all of the content and keeps it cached.
        let least = self.txn.volatile().limits.blocks.min(self.txn.cache_capacity() as u64 / 4);
        let blocks = self.locate_live(dir)?.1.blocks();
        let may = (least..=2 * least).contains(&blocks) && !is_orphan_dir(dir);
        if !may || self.map_of(dir).is_some() || !self.has_room_for_map(blocks) {
            return Ok(());
        }
        let entries = self.all_names(dir)?;
        let load = self.txn.volatile().limits.load as usize;
        let buckets = entries.len().div_ceil(load).max(1) as u32;
        let first = self.add_map_chunk(dir, None)?;
        self.link_map(dir, first)?;
        let mut homes = Vec::new();
        for _ in 0..buckets {
            homes.push(self.grow_map(dir, Some(first))?);
        }
        for entry in &entries {
            self.add_entry(homes[bucket_of(entry.hash, buckets) as usize], *entry)?;
        }
        self.count_names(dir, entries.len() as i32)?;
        self.txn.pending.names.set_map(dir, first);
        Ok(())
    }

    fn link_map(&mut self, dir: Ino, first: DirNo) -> Result<(), Stop> {
        let (spot, mut slot) = self.locate_live(dir)?;
        slot.set_map(first.0);
        self.store(&spot, &slot)
    }

    /// Is `dir`, which has no map, large enough for one?
    pub(crate) fn wants_map(&mut self, dir: Ino) -> Result<bool, Stop> {
        let (_, slot) = self.locate_live(dir)?;
        Ok(slot.map() == 0 && slot.blocks() >= self.txn.volatile().limits.blocks)
    }

    /// A step of building a map that [`Names::finish_map`] enters into its directory at the end.
    /// Adds a bucket with each of these lists of entries after chunk `last` (`None`: the map has
    /// none yet). Returns the first and the last chunk.
    pub(crate) fn add_buckets(
        &mut self,
        dir: Ino,
        chunks: Option<(DirNo, DirNo)>,
        buckets: &[Vec<NameMapEntry>],
    ) -> Result<(DirNo, DirNo), Stop> {
        let (first, mut last) = match chunks {
            Some(chunks) => chunks,
            None => {
                let first = self.add_map_chunk(dir, None)?;
                (first, first)
            }
        };
        for bucket in buckets {
            self.ensure_chunk(last)?;
            let home = self.grow_map(dir, Some(last))?;
            let next = self.chunk(last)?.descriptor.next;
            last = if next.0 == 0 { last } else { next };
            bucket.iter().try_for_each(|entry| self.add_entry(home, *entry))?;
        }
        Ok((first, last))
    }

    /// Enters the finished map into the directory's slot.
    pub(crate) fn finish_map(&mut self, dir: Ino, first: DirNo, names: u32) -> Result<(), Stop> {
        let (spot, mut slot) = self.locate_live(dir)?;
        slot.set_map(first.0);
        slot.set_names(names);
        self.store(&spot, &slot)
    }

    /// Is there room on the device, in log and cache for the map of a directory of so many blocks?
    /// A map is built once in a directory's life, and transactions do not reserve room for it. So
    /// without room it waits for the next growth.
    fn has_room_for_map(&self, blocks: u64) -> bool {
        let names = blocks * u64::from(SLOTS_PER_BLOCK);
        let buckets = names.div_ceil(u64::from(self.txn.volatile().limits.load)) + 1;
        let journal = names * ENTRY_LOGGED + buckets * BUCKET_LOGGED;
        // The last run may be as long as all before it; the tables of chunks and runs grow by a few
        // blocks.
        let space = self.txn.set_aside() + 2 * buckets + u64::from(RUN_MAX);
        self.txn.meta_space().1 >= space && self.txn.has_room_for(journal, 2 * buckets)
    }

    /// Every name of `dir`, from its content, as this transaction sees it.
    fn all_names(&mut self, dir: Ino) -> Result<Vec<NameMapEntry>, Stop> {
        let mut out = Vec::new();
        for (index, number) in self
            .txn
            .volatile()
            .names
            .chunks_of(&self.txn.pending.names, dir)
            .into_iter()
            .enumerate()
        {
            self.ensure_chunk(number)?;
            let chunk = self.chunk(number)?;
            let used = chunk.descriptor.used;
            let runs = chunk.runs.iter().filter_map(|run| run.part(0, used));
            for run in runs.filter(|run| run.is_present()) {
                self.txn.require_cached(run.start, run.len)?;
                for block in run.first..run.end() {
                    let data = self.txn.read_slots(run.home(block))?;
                    for n in 0..SLOTS_PER_BLOCK {
                        let slot = Slot::load(data, n);
                        if slot.state() != SlotState::Empty {
                            let at = Position::new(index as u32, block * SLOTS_PER_BLOCK + n);
                            out.push(NameMapEntry { hash: hash_of(slot.name()), at: at.0 });
                        }
                    }
                }
            }
        }
        Ok(out)
    }
}

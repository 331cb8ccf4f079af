//! The content of directories: chunks and runs of blocks, and slots taken and released in them.
//!
//! Invariants:
//! - content grows in contiguous runs. A run is as long as the content that is there, up to
//!   [`RUN_MAX`] blocks, or [`RUN_LARGE`] in a large directory. Each run follows the one before if
//!   there is room. A block comes into use when its first slot is needed, but up to [`RUN_MAX`]
//!   blocks are initialised together. So a growing directory is written home in one request without
//!   a gap;
//! - the lowest free slot is used first. An inode has its home in no annex, and while clients
//!   replay names go to annexes only ([`super::chunk_numbers`]). A released slot is used again when
//!   its release is durable; if there is no space to grow, the operation waits for that;
//! - a slot that has issued 256 numbers is retired;
//! - a unit of [`UNIT_BLOCKS`] blocks gives its blocks back when no slot of it is in use; it keeps
//!   one block while the directory has no other free slots. Given-back blocks are allocated again
//!   before content grows at its end. Their slots then continue with the highest next reuse number
//!   of the unit.

use types::{Bug, DirNo, Fault, Ino, MetaBlock, planted};

use super::find::Spot;
use super::index::{Among, Chunk, Hole, Position, UNIT_BLOCKS, Unit, mask_of};
use super::view::Names;
use crate::format::chunk::{ContentRun, DESCRIPTOR, Descriptor, chunk_key};
use crate::format::number::{
    CHUNK_BLOCKS, SlotPlace, home_of, ino_of, is_annex, is_system, reuse_of,
};
use crate::format::slot::{RETIRED, SLOTS_PER_BLOCK, Slot, SlotState};
use crate::trees::CHUNKS;
use engine::error::Stop;
use types::limits::BLOCK_U64;

/// Longest run of content blocks, except in large directories; as many blocks are initialised
/// together.
pub const RUN_MAX: u32 = 64;
/// Longest run of a large directory: one request of a listing.
pub const RUN_LARGE: u32 = 256;
/// A directory is large if its content is at least this many runs long.
pub(crate) const LARGE_PARTS: u32 = 8;
/// Most chunks of one directory: a position has 16 bits for the chunk.
pub const CHUNKS_MAX: usize = 1 << 16;

impl Names<'_, '_> {
    /// Takes a slot of `dir` for a name, or for an inode whose home is elsewhere: the lowest free
    /// one, or a new one. It is `Empty`. While clients replay, no replay names it.
    pub(crate) fn take_slot(&mut self, dir: Ino) -> Result<Spot, Stop> {
        let replaying = self.txn.volatile().replays.running;
        self.take_slot_among(dir, if replaying { Among::Annexes } else { Among::Chunks })
    }

    fn take_slot_among(&mut self, dir: Ino, among: Among) -> Result<Spot, Stop> {
        self.ensure_index(dir)?;
        let durable = self.txn.durable();
        self.txn.volatile_mut().names.end_cool_down(dir, durable);
        for more in [Self::learn_free, Self::grow] {
            if self.lowest_free(dir, among).is_none() {
                more(self, dir, among).map_err(|stop| self.or_wait_for_slot(dir, stop))?;
            }
        }
        let at = self.lowest_free(dir, among).ok_or(Stop::Fault(Fault::NoSpace))?;
        self.claim(dir, at)
    }

    fn lowest_free(&self, dir: Ino, among: Among) -> Option<Position> {
        self.txn.volatile().names.lowest_free(&self.txn.pending.names, dir, among)
    }

    /// If a directory cannot grow because there is no space, it waits for slots that it released.
    fn or_wait_for_slot(&self, dir: Ino, stop: Stop) -> Stop {
        match self.txn.volatile().names.cooling_until(dir) {
            Some(number) if stop == Stop::Fault(Fault::NoSpace) => Stop::WaitDurable(number),
            _ => stop,
        }
    }

    fn claim(&mut self, dir: Ino, at: Position) -> Result<Spot, Stop> {
        let spot = self.spot_at(dir, at)?.ok_or(Stop::Fault(Fault::Stale))?;
        if self.load(&spot)?.state() != SlotState::Empty {
            return Err(Stop::Corrupt(spot.block, "a free slot is in use"));
        }
        self.txn.pending.names.take(dir, at);
        Ok(spot)
    }

    /// Takes a slot of `dir` for a new inode and issues its number. `given` is the number that the
    /// inode had before a restart of the server; it leads to the same slot.
    pub(super) fn take_home(&mut self, dir: Ino, given: Option<Ino>) -> Result<(Spot, Ino), Stop> {
        let (spot, reuse) = match given {
            None => {
                let spot = self.take_slot_among(dir, Among::Homes)?;
                (spot, self.load(&spot)?.next_reuse())
            }
            Some(ino) => (self.take_replayed(dir, home_of(ino))?, u16::from(reuse_of(ino))),
        };
        let mut slot = self.load(&spot)?;
        if reuse >= RETIRED || slot.next_reuse() > reuse {
            return Err(Stop::Fault(Fault::Stale));
        }
        slot.set_next_reuse(reuse + u16::from(!planted(Bug::InodeNumberReused)));
        self.store(&spot, &slot)?;
        Ok((spot, ino_of(spot.place, reuse as u8)))
    }

    /// Takes exactly the slot `place`, and grows `dir` up to it.
    fn take_replayed(&mut self, dir: Ino, place: SlotPlace) -> Result<Spot, Stop> {
        self.ensure_index(dir)?;
        if is_annex(place.chunk) {
            return Err(Stop::Fault(Fault::Stale));
        }
        let chunks = self.txn.volatile().names.chunks_of(&self.txn.pending.names, dir);
        let known = chunks.iter().position(|&chunk| chunk == place.chunk);
        let index = match known {
            Some(index) => index,
            None => {
                if is_system(place.chunk) || self.ensure_chunk(place.chunk)? {
                    return Err(Stop::Fault(Fault::Stale));
                }
                self.present_chunk(place.chunk)?;
                self.add_chunk(dir, &chunks, place.chunk)?;
                chunks.len()
            }
        };
        while self.chunk(place.chunk)?.descriptor.used <= place.block() {
            self.grow_chunk(dir, place.chunk)?;
        }
        self.refill_hole(dir, place.chunk, place.block(), 1)?;
        let at = Position::new(index as u32, place.slot);
        let spot = self.spot_at(dir, at)?.ok_or(Stop::Fault(Fault::Stale))?;
        if !self.slot_is_free(dir, at, spot.block)? {
            return Err(Stop::Fault(Fault::Stale));
        }
        self.claim(dir, at)
    }

    /// Takes exactly this slot of `dir`, which grows up to it. `annexes`: which of its chunks are
    /// to be annexes. While clients replay all new ones are: no replay names a slot there.
    pub(super) fn take_position(
        &mut self,
        dir: Ino,
        at: Position,
        annexes: &[bool],
    ) -> Result<Spot, Stop> {
        self.ensure_index(dir)?;
        let number = loop {
            let chunks = self.txn.volatile().names.chunks_of(&self.txn.pending.names, dir);
            if let Some(&number) = chunks.get(at.chunk()) {
                break number;
            }
            let annex = annexes.get(chunks.len()).copied().unwrap_or(false);
            let number = self.new_chunk_number(annex || self.txn.volatile().replays.running)?;
            self.add_chunk(dir, &chunks, number)?;
        };
        while {
            self.ensure_chunk(number)?;
            self.chunk(number)?.descriptor.used <= at.slot() / SLOTS_PER_BLOCK
        } {
            self.grow_chunk(dir, number)?;
        }
        let spot = self.spot_at(dir, at)?.ok_or(Stop::Fault(Fault::Stale))?;
        match self.slot_is_free(dir, at, spot.block)? {
            true => self.claim(dir, at),
            false => Err(Fault::Invalid.into()),
        }
    }

    /// Adds content blocks to `dir`, to a chunk of these.
    fn grow(&mut self, dir: Ino, among: Among) -> Result<(), Stop> {
        let durable = self.txn.durable();
        let (names, pending) = (&self.txn.volatile().names, &self.txn.pending.names);
        let hole = names.hole(pending, (dir, among), durable);
        if let Some((unit, mask)) = hole
            && let Some(number) = self.chunk_at(dir, unit)?
        {
            let (_, slot) = self.locate_live(dir)?;
            let block = unit.first_block() + mask.trailing_zeros();
            return self.refill_hole(dir, number, block, slot.blocks());
        }
        let chunks = self.txn.volatile().names.chunks_of(&self.txn.pending.names, dir);
        let annex = among == Among::Annexes;
        let last = match chunks.iter().rfind(|&&chunk| is_annex(chunk) == annex) {
            Some(&last) => self.ensure_chunk(last)?.then_some(last),
            None => None,
        };
        let last = match last {
            Some(last) if self.chunk(last)?.descriptor.used < CHUNK_BLOCKS => last,
            _ => {
                let number = self.new_chunk_number(annex)?;
                self.add_chunk(dir, &chunks, number)?;
                number
            }
        };
        self.grow_chunk(dir, last)
    }

    /// The chunk of a unit.
    fn chunk_at(&mut self, dir: Ino, unit: Unit) -> Result<Option<DirNo>, Stop> {
        let index = unit.start().chunk();
        match self.txn.volatile().names.chunk_number(&self.txn.pending.names, dir, index) {
            Some(number) if self.ensure_chunk(number)? => Ok(Some(number)),
            _ => Ok(None),
        }
    }

    fn add_chunk(&mut self, dir: Ino, chunks: &[DirNo], number: DirNo) -> Result<(), Stop> {
        if chunks.len() >= CHUNKS_MAX {
            return Err(Stop::Fault(Fault::NoSpace));
        }
        match chunks.last() {
            Some(&last) => {
                self.ensure_chunk(last)?;
                let mut chunk = self.chunk(last)?.clone();
                chunk.descriptor.next = number;
                self.set_chunk(last, chunk)?;
            }
            None => {
                let (spot, mut slot) = self.locate_live(dir)?;
                slot.set_body(number.0);
                self.store(&spot, &slot)?;
            }
        }
        let descriptor =
            Descriptor { owner: dir, next: DirNo(0), index: chunks.len() as u32, used: 0 };
        self.set_chunk(number, Chunk { descriptor, runs: Vec::new() })?;
        self.txn.pending.names.add_chunk(dir, number);
        Ok(())
    }

    /// Writes the descriptor of a chunk, and keeps the chunk in memory.
    pub(super) fn set_chunk(&mut self, number: DirNo, chunk: Chunk) -> Result<(), Stop> {
        CHUNKS.insert(self.txn, &chunk_key(number, DESCRIPTOR), &chunk.descriptor.encode())?;
        self.txn.pending.names.set_chunk(number, Some(chunk));
        Ok(())
    }

    /// Begins a new chunk of `dir`, for tests: the next inodes lie there, as if the others were
    /// full.
    #[cfg(test)]
    pub(crate) fn begin_chunk(&mut self, dir: Ino) -> Result<(), Stop> {
        self.ensure_index(dir)?;
        let chunks = self.txn.volatile().names.chunks_of(&self.txn.pending.names, dir);
        let number = self.new_chunk_number(false)?;
        self.add_chunk(dir, &chunks, number)?;
        self.txn.on_commit(move |volatile, _| volatile.names.hide_free(dir));
        Ok(())
    }

    fn grow_chunk(&mut self, dir: Ino, number: DirNo) -> Result<(), Stop> {
        let mut chunk = self.chunk(number)?.clone();
        let block = chunk.descriptor.used;
        if block >= CHUNK_BLOCKS {
            return Err(Stop::Fault(Fault::Stale));
        }
        let (home, mut slot) = self.locate_live(dir)?;
        let mut ahead = block + 1;
        if block == chunk.allocated() {
            let near = match chunk.descriptor.index {
                0 if block == 0 => self.first_goal(&home, &slot)?,
                _ => home.block,
            };
            let wanted = self.run_wanted(slot.blocks());
            self.add_run(number, &mut chunk, near, wanted)?;
            ahead = (block + 1).next_multiple_of(RUN_MAX);
        } else if block.is_multiple_of(RUN_MAX) {
            ahead = block + RUN_MAX;
        }
        let run = chunk.run_of(block).copied().ok_or(Stop::Fault(Fault::Corrupt))?;
        for at in block..ahead.min(run.end()) {
            self.txn.init_slots(run.home(at))?;
        }
        chunk.descriptor.used += 1;
        let index = chunk.descriptor.index;
        self.set_chunk(number, chunk)?;
        for n in 0..self.txn.slots().per_block() {
            let at = Position::new(index, block * SLOTS_PER_BLOCK + n);
            self.txn.pending.names.free(dir, at);
        }
        slot.set_blocks(slot.blocks() + 1);
        slot.set_size(slot.blocks() * BLOCK_U64);
        self.store(&home, &slot)?;
        self.add_map_if_large(dir)
    }

    /// Allocates the next run, and joins it with the last one if they are contiguous.
    pub(super) fn add_run(
        &mut self,
        number: DirNo,
        chunk: &mut Chunk,
        near: MetaBlock,
        wanted: u32,
    ) -> Result<(), Stop> {
        let allocated = chunk.allocated();
        let last = chunk.runs.last().filter(|run| run.is_present());
        let goal = last.map_or(near, |run| run.home(run.end()));
        let (start, len) = self.alloc_run(wanted.min(CHUNK_BLOCKS - allocated), goal)?;
        if len > 1 {
            self.txn.volatile_mut().placement.note_preallocated();
        }
        let old = chunk.runs.clone();
        chunk.put(ContentRun::present(allocated, start, len));
        self.set_runs(number, &old, chunk.clone())
    }

    /// Allocates `len` contiguous blocks, or half of that, or a quarter ….
    fn alloc_run(&mut self, mut len: u32, goal: MetaBlock) -> Result<(MetaBlock, u32), Stop> {
        loop {
            match self.txn.alloc_meta(len, Some(goal)) {
                Err(Stop::Fault(Fault::NoSpace)) if len > 1 => len /= 2,
                other => return Ok((other?, len)),
            }
        }
    }

    /// Writes those items of a chunk's runs that changed, and keeps the chunk in memory.
    pub(crate) fn set_runs(
        &mut self,
        number: DirNo,
        old: &[ContentRun],
        chunk: Chunk,
    ) -> Result<(), Stop> {
        let same = |list: &[ContentRun], run: &ContentRun| {
            let at = list.binary_search_by_key(&run.first, |run| run.first);
            at.ok().map(|at| list[at] == *run)
        };
        for run in old.iter().filter(|run| same(&chunk.runs, run).is_none()) {
            CHUNKS.remove(self.txn, &chunk_key(number, run.first))?;
        }
        for run in chunk.runs.iter().filter(|run| same(old, run) != Some(true)) {
            CHUNKS.insert(self.txn, &chunk_key(number, run.first), &run.encode())?;
        }
        self.txn.pending.names.set_chunk(number, Some(chunk));
        Ok(())
    }

    /// Allocates blocks for a part of a unit that gave its blocks back: at most `most` from `block`
    /// on.
    fn refill_hole(&mut self, dir: Ino, number: DirNo, block: u32, most: u64) -> Result<(), Stop> {
        let mut chunk = self.chunk(number)?.clone();
        let Some(hole) = chunk.run_of(block).copied().filter(|run| !run.is_present()) else {
            return Ok(());
        };
        if hole.reuse >= RETIRED {
            return Err(Stop::Fault(Fault::Stale));
        }
        let (home, mut slot) = self.locate_live(dir)?;
        let unit = Position::new(chunk.descriptor.index, block * SLOTS_PER_BLOCK).unit();
        let end = hole.end().min(unit.first_block() + UNIT_BLOCKS);
        let wanted = most.clamp(1, u64::from(end - block)) as u32;
        let before = block.checked_sub(1).and_then(|block| Some((block, chunk.run_of(block)?)));
        let before = before.filter(|(_, run)| run.is_present());
        let goal = before.map_or(home.block, |(block, run)| MetaBlock(run.home(block).0 + 1));
        let (start, len) = self.alloc_run(wanted, goal)?;
        for n in 0..len {
            let data = self.txn.init_slots(MetaBlock(start.0 + u64::from(n)))?;
            let mut empty = Slot::default();
            empty.set_next_reuse(hole.reuse);
            (0..SLOTS_PER_BLOCK).for_each(|at| empty.store(data, at));
        }
        let old = chunk.runs.clone();
        chunk.put(ContentRun::present(block, start, len));
        let index = chunk.descriptor.index;
        self.set_runs(number, &old, chunk)?;
        let mask = mask_of(unit.first_block(), block, block + len);
        self.txn.pending.names.regain(dir, unit, mask);
        let slots = self.txn.slots().per_block();
        for at in block * SLOTS_PER_BLOCK..(block + len) * SLOTS_PER_BLOCK {
            if at % SLOTS_PER_BLOCK < slots {
                self.txn.pending.names.free(dir, Position::new(index, at));
            }
        }
        slot.set_blocks(slot.blocks() + u64::from(len));
        slot.set_size(slot.blocks() * BLOCK_U64);
        self.store(&home, &slot)
    }

    /// Empties a slot. It can be used again when that is durable, unless it is retired.
    pub(super) fn release_slot(&mut self, spot: &Spot) -> Result<(), Stop> {
        self.ensure_index(spot.dir)?;
        let mut slot = self.load(spot)?;
        slot.clear();
        self.store(spot, &slot)?;
        if slot.next_reuse() < RETIRED {
            self.txn.pending.names.cool_down(spot.dir, spot.at);
        } else {
            self.txn.pending.names.retire(spot.dir, spot.at);
        }
        self.give_back_unit(spot)
    }

    /// Frees the blocks of the slot's unit if no slot of the unit is in use. Not while clients
    /// replay: a replay may name any slot that was empty when it first ran, with the number that
    /// was next there.
    fn give_back_unit(&mut self, spot: &Spot) -> Result<(), Stop> {
        let (dir, unit, number) = (spot.dir, spot.at.unit(), spot.place.chunk);
        if self.txn.volatile().replays.running || self.unit_in_use(dir, number, unit)? {
            return Ok(());
        }
        let idle = self.idle_slots(dir)?;
        let empty = self.empty_blocks(number, unit, idle)?;
        let Some(reuse) = empty.iter().map(|block| block.reuse).max() else { return Ok(()) };
        let mut chunk = self.chunk(number)?.clone();
        let old = chunk.runs.clone();
        let mut hole = Hole { mask: 0, idle: 0, reusable: reuse < RETIRED };
        for block in &empty {
            self.txn.free_meta(block.home, 1)?;
            chunk.put(ContentRun::hole(block.at, 1, reuse));
            hole.mask |= mask_of(unit.first_block(), block.at, block.at + 1);
            hole.idle += if is_annex(number) { 0 } else { block.usable };
        }
        let used = chunk.descriptor.used;
        if used <= unit.first_block() + UNIT_BLOCKS {
            let unused = old.iter().filter_map(|run| run.part(used, CHUNK_BLOCKS));
            for run in unused.filter(ContentRun::is_present) {
                self.txn.free_meta(run.start, run.len)?;
            }
            chunk.cut(used);
        }
        self.set_runs(number, &old, chunk)?;
        self.txn.pending.names.give_back(dir, unit, hole);
        let (home, mut slot) = self.locate_live(dir)?;
        slot.set_blocks(slot.blocks().saturating_sub(empty.len() as u64));
        slot.set_size(slot.blocks() * BLOCK_U64);
        self.store(&home, &slot)
    }

    /// The blocks of an empty unit that can be given back. One stays, unless it is an annex's, if
    /// the directory would otherwise have no slots left of its `idle` ones: else a file that is
    /// created and removed repeatedly would cost a block each time.
    fn empty_blocks(&self, number: DirNo, unit: Unit, idle: u64) -> Result<Vec<EmptyBlock>, Stop> {
        let chunk = self.chunk(number)?;
        let first = unit.first_block();
        let end = chunk.descriptor.used.min(first + UNIT_BLOCKS);
        let parts = chunk.runs.iter().filter_map(|run| run.part(first, end));
        let mut out = Vec::new();
        for run in parts.filter(ContentRun::is_present) {
            self.txn.require_cached(run.start, run.len)?;
            for at in run.first..run.end() {
                out.push(self.empty_block(at, run.home(at))?);
            }
        }
        let here: u64 = out.iter().map(|block| u64::from(block.usable)).sum();
        if !is_annex(number)
            && idle.saturating_sub(here) < u64::from(self.txn.slots().per_block())
            && let Some(kept) = out.iter().position(|block| block.usable > 0)
        {
            out.remove(kept);
        }
        Ok(out)
    }

    fn empty_block(&self, at: u32, home: MetaBlock) -> Result<EmptyBlock, Stop> {
        let data = self.txn.read_slots(home)?;
        let mut block = EmptyBlock { at, home, reuse: 0, usable: 0 };
        for n in 0..self.txn.slots().per_block() {
            let slot = Slot::load(data, n);
            if slot.state() != SlotState::Empty {
                return Err(Stop::Corrupt(home, "a slot that counts as free is in use"));
            }
            block.reuse = block.reuse.max(slot.next_reuse());
            block.usable += u32::from(slot.next_reuse() < RETIRED);
        }
        Ok(block)
    }
}

/// A content block without a slot in use.
struct EmptyBlock {
    /// Its index in its chunk.
    at: u32,
    /// Its metadata block.
    home: MetaBlock,
    /// The highest next reuse number of its slots.
    reuse: u16,
    /// Slots that are not retired.
    usable: u32,
}

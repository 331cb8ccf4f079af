//! The content of directories: chunks, runs of blocks, slots taken and released.
//!
//! Invariants:
//! - content grows in contiguous runs that double up to [`RUN_MAX`] blocks, each next to
//!   the one before where there is room; its blocks are initialised one by one, when
//!   their first slot is needed;
//! - the lowest free slot is used first, and a released slot may be used at once;
//! - a slot that has issued 256 numbers is retired; a run of only such slots gives
//!   its blocks back, so that churn does not grow a directory without end.

use types::{DirNo, Fault, Ino, MetaBlock};

use super::find::Spot;
use super::index::{Chunk, Position};
use crate::block::BlockType;
use crate::error::Stop;
use crate::format::chunk::{DESCRIPTOR, Descriptor, Run, chunk_key};
use crate::format::number::{CHUNK_BLOCKS, DIRNO_MAX, Place, home_of, ino_of, reuse_of};
use crate::format::slot::{RETIRED, SLOTS_PER_BLOCK, Slot, SlotState};
use crate::trees::{CHUNKS, NEXT_CHUNK};
use crate::txn::Txn;
use types::limits::BLOCK_U64;

/// Longest run of content blocks.
pub const RUN_MAX: u32 = 64;
/// Chunks whose making can be lost in a crash, at most: more than fit in the log's undurable part.
const LOST_CHUNKS_MAX: u64 = 1 << 17;
/// Chunks of one directory at most: a position has 16 bits for the chunk.
pub const CHUNKS_MAX: usize = 1 << 16;

impl Txn<'_> {
    /// Takes a slot of `dir` for a name or an inode: the lowest free one, or a
    /// new one. Its content is `Empty`.
    pub(crate) fn take_slot(&mut self, dir: Ino) -> Result<Spot, Stop> {
        self.ensure_index(dir)?;
        let durable = self.durable();
        self.side_mut().names.wake(dir, durable);
        if let Some(first) = self.side().names.apart {
            return self.take_apart(dir, first);
        }
        if self.side().names.lowest_free(&self.pending.names, dir, None).is_none() {
            self.grow(dir)?;
        }
        let at = self.side().names.lowest_free(&self.pending.names, dir, None);
        let at = at.ok_or(Stop::Fault(Fault::NoSpace))?;
        self.claim(dir, at)
    }

    /// Takes a slot that no replay can ask for: in a chunk numbered from `first` on.
    fn take_apart(&mut self, dir: Ino, first: DirNo) -> Result<Spot, Stop> {
        let chunks = self.side().names.chunks_of(&self.pending.names, dir);
        for (index, &number) in chunks.iter().enumerate().filter(|(_, number)| **number >= first) {
            let at = self.side().names.lowest_free(&self.pending.names, dir, Some(index));
            if let Some(at) = at {
                return self.claim(dir, at);
            }
            self.ensure_chunk(number)?;
            if self.chunk(number)?.descriptor.used < CHUNK_BLOCKS {
                self.grow_chunk(dir, number)?;
                return self.take_apart(dir, first);
            }
        }
        let number = DirNo(self.root(NEXT_CHUNK)?.max(first.0));
        self.add_chunk(dir, &chunks, number)?;
        self.take_apart(dir, first)
    }

    /// Clients are going to replay what was lost, each in its own order: until [`Txn::end_replays`], what
    /// takes a slot without naming it stays away from the places that replays will name.
    ///
    /// # Errors
    /// `NoSpace` if the numbers of chunks have run out.
    pub fn begin_replays(&mut self) -> Result<(), Stop> {
        let next = self.root(NEXT_CHUNK)?;
        let first = next + LOST_CHUNKS_MAX;
        if first > DIRNO_MAX {
            return Err(Stop::Fault(Fault::NoSpace));
        }
        self.set_root(NEXT_CHUNK, first)?;
        self.on_commit(move |side, _| side.names.apart = Some(DirNo(first)));
        Ok(())
    }

    /// All replays are done.
    pub fn end_replays(&mut self) {
        self.on_commit(|side, _| side.names.apart = None);
    }

    fn claim(&mut self, dir: Ino, at: Position) -> Result<Spot, Stop> {
        let spot = self.spot_at(dir, at)?.ok_or(Stop::Fault(Fault::Stale))?;
        if self.load(&spot)?.state() != SlotState::Empty {
            return Err(Stop::Corrupt(spot.block, "a free slot is in use"));
        }
        self.pending.names.take(dir, at);
        Ok(spot)
    }

    /// Takes a slot of `dir` for a new inode and issues its number; `given` is the
    /// number it had before a restart of the server, which leads to the same slot.
    pub(crate) fn take_home(&mut self, dir: Ino, given: Option<Ino>) -> Result<(Spot, Ino), Stop> {
        let (spot, reuse) = match given {
            None => {
                let spot = self.take_slot(dir)?;
                (spot, self.load(&spot)?.next_reuse())
            }
            Some(ino) => (self.take_given(dir, home_of(ino))?, u16::from(reuse_of(ino))),
        };
        let mut slot = self.load(&spot)?;
        if reuse >= RETIRED || slot.next_reuse() > reuse {
            return Err(Stop::Fault(Fault::Stale));
        }
        slot.set_next_reuse(reuse + 1);
        self.store(&spot, &slot)?;
        Ok((spot, ino_of(spot.place, reuse as u8)))
    }

    /// Takes exactly the slot `place`, growing `dir` up to it.
    fn take_given(&mut self, dir: Ino, place: Place) -> Result<Spot, Stop> {
        self.ensure_index(dir)?;
        let chunks = self.side().names.chunks_of(&self.pending.names, dir);
        let known = chunks.iter().position(|&chunk| chunk == place.chunk);
        let index = match known {
            Some(index) => index,
            None => {
                if place.chunk.0 == 0 || self.ensure_chunk(place.chunk)? {
                    return Err(Stop::Fault(Fault::Stale));
                }
                self.add_chunk(dir, &chunks, place.chunk)?;
                chunks.len()
            }
        };
        while self.chunk(place.chunk)?.descriptor.used <= place.block() {
            self.grow_chunk(dir, place.chunk)?;
        }
        let at = Position::new(index as u32, place.slot);
        if !self.side().names.slot_is_free(&self.pending.names, dir, at) {
            return Err(Stop::Fault(Fault::Stale));
        }
        self.claim(dir, at)
    }

    /// One more content block for `dir`.
    fn grow(&mut self, dir: Ino) -> Result<(), Stop> {
        let chunks = self.side().names.chunks_of(&self.pending.names, dir);
        let last = match chunks.last() {
            Some(&last) => self.ensure_chunk(last)?.then_some(last),
            None => None,
        };
        let last = match last {
            Some(last) if self.chunk(last)?.descriptor.used < CHUNK_BLOCKS => last,
            _ => {
                let number = DirNo(self.root(NEXT_CHUNK)?);
                self.add_chunk(dir, &chunks, number)?;
                number
            }
        };
        self.grow_chunk(dir, last)
    }

    fn add_chunk(&mut self, dir: Ino, chunks: &[DirNo], number: DirNo) -> Result<(), Stop> {
        if chunks.len() >= CHUNKS_MAX || number.0 > DIRNO_MAX {
            return Err(Stop::Fault(Fault::NoSpace));
        }
        if self.root(NEXT_CHUNK)? <= number.0 {
            self.set_root(NEXT_CHUNK, number.0 + 1)?;
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
        self.pending.names.add_chunk(dir, number);
        Ok(())
    }

    /// Writes the descriptor and remembers the map.
    pub(crate) fn set_chunk(&mut self, number: DirNo, chunk: Chunk) -> Result<(), Stop> {
        CHUNKS.insert(self, &chunk_key(number, DESCRIPTOR), &chunk.descriptor.encode())?;
        self.pending.names.set_chunk(number, Some(chunk));
        Ok(())
    }

    fn grow_chunk(&mut self, dir: Ino, number: DirNo) -> Result<(), Stop> {
        let mut chunk = self.chunk(number)?.clone();
        let block = chunk.descriptor.used;
        if block >= CHUNK_BLOCKS {
            return Err(Stop::Fault(Fault::Stale));
        }
        let (home, mut slot) = self.locate_live(dir)?;
        if block == chunk.allocated() {
            self.add_run(number, &mut chunk, home.block)?;
        }
        let run = chunk.run_of(block).copied().ok_or(Stop::Fault(Fault::Corrupt))?;
        let at = MetaBlock(run.start.0 + u64::from(block - run.first));
        self.init(at, BlockType::Directory)?;
        chunk.descriptor.used += 1;
        let index = chunk.descriptor.index;
        self.set_chunk(number, chunk)?;
        for n in 0..SLOTS_PER_BLOCK {
            let at = Position::new(index, block * SLOTS_PER_BLOCK + n);
            self.pending.names.free(dir, at);
        }
        slot.set_blocks(slot.blocks() + 1);
        slot.set_size(slot.blocks() * BLOCK_U64);
        self.store(&home, &slot)
    }

    /// Allocates the next run, as long as all before it, joined to the last one if it follows it.
    fn add_run(&mut self, number: DirNo, chunk: &mut Chunk, near: MetaBlock) -> Result<(), Stop> {
        let allocated = chunk.allocated();
        let wanted = if chunk.descriptor.index > 0 { RUN_MAX } else { allocated.clamp(1, RUN_MAX) };
        let mut len = wanted.min(CHUNK_BLOCKS - allocated);
        let last = chunk.runs.last().copied();
        let goal = match last {
            Some(run) if run.start.0 != 0 => MetaBlock(run.start.0 + u64::from(run.len)),
            _ => near,
        };
        let start = loop {
            match self.alloc_meta(len, Some(goal)) {
                Err(Stop::Fault(Fault::NoSpace)) if len > 1 => len /= 2,
                other => break other?,
            }
        };
        let run = match last {
            Some(last) if start == goal && last.start.0 != 0 => {
                chunk.runs.pop();
                Run { len: last.len + len, ..last }
            }
            _ => Run { first: allocated, start, len },
        };
        chunk.runs.push(run);
        CHUNKS.insert(self, &chunk_key(number, run.first), &run.encode())?;
        Ok(())
    }

    /// Empties a slot. It can be used again when that is durable, unless it is retired.
    pub(crate) fn release_slot(&mut self, spot: &Spot) -> Result<(), Stop> {
        self.ensure_index(spot.dir)?;
        let mut slot = self.load(spot)?;
        slot.clear();
        self.store(spot, &slot)?;
        if slot.next_reuse() < RETIRED {
            self.pending.names.rest(spot.dir, spot.at);
            return Ok(());
        }
        self.give_back_run(spot)
    }

    /// If every slot of the run is retired and empty, its blocks are freed.
    fn give_back_run(&mut self, spot: &Spot) -> Result<(), Stop> {
        let number = spot.place.chunk;
        let chunk = self.chunk(number)?;
        let Some(run) = chunk.run_of(spot.place.block()).copied() else { return Ok(()) };
        if run.first + run.len > chunk.descriptor.used || !self.block_is_dead(spot.block)? {
            return Ok(());
        }
        self.want(run.start, run.len)?;
        for n in 0..u64::from(run.len) {
            if !self.block_is_dead(MetaBlock(run.start.0 + n))? {
                return Ok(());
            }
        }
        self.free_meta(run.start, run.len)?;
        let gone = Run { start: MetaBlock(0), ..run };
        CHUNKS.insert(self, &chunk_key(number, run.first), &gone.encode())?;
        let mut chunk = self.chunk(number)?.clone();
        if let Some(run) = chunk.runs.iter_mut().find(|run| run.first == gone.first) {
            *run = gone;
        }
        self.pending.names.set_chunk(number, Some(chunk));
        let (home, mut slot) = self.locate_live(spot.dir)?;
        slot.set_blocks(slot.blocks().saturating_sub(u64::from(run.len)));
        slot.set_size(slot.blocks() * BLOCK_U64);
        self.store(&home, &slot)
    }

    fn block_is_dead(&self, block: MetaBlock) -> Result<bool, Stop> {
        let data = self.read_as(block, BlockType::Directory)?;
        Ok((0..SLOTS_PER_BLOCK).all(|n| {
            let slot = Slot::load(data, n);
            slot.state() == SlotState::Empty && slot.next_reuse() >= RETIRED
        }))
    }
}

//! Finds inodes, names and content blocks.
//!
//! Invariants: an inode is looked up in its home slot, then where the `moved` tree says, and
//! nowhere else. A name is looked up through the index or, in a large directory, the name map, and
//! the slot's own bytes decide.

use types::{DirNo, Fault, FileKind, Ino, MetaBlock};

use super::index::{Chunk, DirIndex, Position, hash_name};
use super::view::Names;
use crate::format::chunk::{ContentRun, DESCRIPTOR, Descriptor, chunk_key, decode_key};
use crate::format::number::{CHUNK_BLOCKS, SlotPlace, home_of};
use crate::format::slot::{RETIRED, SLOTS_PER_BLOCK, Slot, SlotState};
use crate::trees::{CHUNKS, MOVED};
use engine::error::Stop;
use engine::format::features::Feature;

/// Content blocks that are read at once when an index is built.
const READ_MAX: u32 = 256;

/// A slot, and where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// Chunk and slot.
    pub place: SlotPlace,
    /// The content block.
    pub block: MetaBlock,
    /// The directory (`Ino::NONE` for the system's chunk).
    pub dir: Ino,
    /// Its position in the directory.
    pub at: Position,
}

impl Names<'_, '_> {
    /// Reads a chunk's descriptor and runs into memory; `false` if there is no such chunk.
    pub(crate) fn ensure_chunk(&mut self, number: DirNo) -> Result<bool, Stop> {
        if let Some(found) = self.txn.volatile().names.chunk(&self.txn.pending.names, number) {
            return Ok(found.is_some());
        }
        let Some(chunk) = self.read_chunk(number)? else { return Ok(false) };
        self.txn.volatile_mut().names.put_chunk(number, chunk);
        Ok(true)
    }

    /// A chunk's descriptor and runs, from the directory table.
    pub(crate) fn read_chunk(&self, number: DirNo) -> Result<Option<Chunk>, Stop> {
        let Some(value) = CHUNKS.get(self.txn, &chunk_key(number, DESCRIPTOR))? else {
            return Ok(None);
        };
        let descriptor = Descriptor::decode(&value)
            .ok_or_else(|| CHUNKS.corrupt(self.txn, "a chunk's descriptor is invalid"))?;
        let mut runs: Vec<ContentRun> = Vec::new();
        let mut next = 0;
        while let Some((key, value)) = CHUNKS.next(self.txn, &chunk_key(number, next))? {
            match decode_key(&key) {
                Some((chunk, first)) if chunk == number && first != DESCRIPTOR => {
                    let run = ContentRun::decode(first, &value).filter(|_| first == next);
                    let run =
                        run.ok_or_else(|| CHUNKS.corrupt(self.txn, "a run of a chunk is invalid"))?;
                    next = first + run.len;
                    runs.push(run);
                }
                _ => break,
            }
            if next >= CHUNK_BLOCKS {
                break;
            }
        }
        if descriptor.used > next {
            return Err(CHUNKS.corrupt(self.txn, "a chunk uses more blocks than it has"));
        }
        Ok(Some(Chunk { descriptor, runs }))
    }

    /// A chunk that [`Names::ensure_chunk`] found.
    pub(crate) fn chunk(&self, number: DirNo) -> Result<&Chunk, Stop> {
        let found = self.txn.volatile().names.chunk(&self.txn.pending.names, number);
        found.flatten().ok_or(Stop::Fault(Fault::Stale))
    }

    /// The slot at `place`, if its chunk exists and its block is initialised.
    pub(crate) fn spot(&mut self, place: SlotPlace) -> Result<Option<Spot>, Stop> {
        if !self.ensure_chunk(place.chunk)? {
            return Ok(None);
        }
        let chunk = self.chunk(place.chunk)?;
        let block = place.block();
        if block >= chunk.descriptor.used || chunk.descriptor.is_map() {
            return Ok(None);
        }
        Ok(chunk.run_of(block).filter(|run| run.start.0 != 0).map(|run| Spot {
            place,
            block: MetaBlock(run.start.0 + u64::from(block - run.first)),
            dir: chunk.descriptor.owner,
            at: Position::new(chunk.descriptor.index, place.slot),
        }))
    }

    /// The slot at a position of a directory whose index is complete.
    pub(super) fn spot_at(&mut self, dir: Ino, at: Position) -> Result<Option<Spot>, Stop> {
        let number =
            self.txn.volatile().names.chunk_number(&self.txn.pending.names, dir, at.chunk());
        match number {
            Some(chunk) => self.spot(SlotPlace { chunk, slot: at.slot() }),
            None => Ok(None),
        }
    }

    /// The slot that holds the inode `ino`.
    pub(crate) fn locate(&mut self, ino: Ino) -> Result<Option<Spot>, Stop> {
        let home = home_of(ino);
        if let Some(spot) = self.spot(home)? {
            let block = self.txn.read_slots(spot.block)?;
            if Slot::holds_at(block, home.index(), ino) {
                return Ok(Some(spot));
            }
        }
        let Some(value) = MOVED.get(self.txn, &ino.0.to_be_bytes())? else { return Ok(None) };
        let place = SlotPlace::unpack(u64::from_le_bytes(value));
        if let Some(spot) = self.spot(place)? {
            let block = self.txn.read_slots(spot.block)?;
            if Slot::holds_at(block, place.index(), ino) {
                return Ok(Some(spot));
            }
            return Err(Stop::Corrupt(
                spot.block,
                "a moved inode is not in the slot that the tree of moved inodes names",
            ));
        }
        Err(MOVED.corrupt(self.txn, "the tree of moved inodes names a slot that does not exist"))
    }

    /// As [`Names::locate`], for an inode that must exist.
    pub(crate) fn locate_live(&mut self, ino: Ino) -> Result<(Spot, Slot), Stop> {
        let spot = self.locate(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
        let slot = self.load(&spot)?;
        Ok((spot, slot))
    }

    /// The slot, checked.
    pub(crate) fn load(&self, spot: &Spot) -> Result<Slot, Stop> {
        let block = self.txn.read_slots(spot.block)?;
        let slot = Slot::load(block, spot.place.index());
        slot.check().map_err(|what| Stop::Corrupt(spot.block, what))?;
        if slot.has_content() && !self.txn.has_feature(Feature::INLINE_DATA) {
            return Err(Stop::Corrupt(
                spot.block,
                "slot: content without the feature `inline-data`",
            ));
        }
        if !slot.layout_blocks().is_empty() && !self.txn.has_feature(Feature::LAYOUT_BLOCKS) {
            return Err(Stop::Corrupt(
                spot.block,
                "slot: layout blocks without the feature `layout-blocks`",
            ));
        }
        if slot.has_object() && !self.txn.has_feature(Feature::OBJECT_FILES) {
            return Err(Stop::Corrupt(
                spot.block,
                "slot: an object record without the feature `object-files`",
            ));
        }
        Ok(slot)
    }

    /// Writes the slot.
    pub(crate) fn store(&mut self, spot: &Spot, slot: &Slot) -> Result<(), Stop> {
        let block = self.txn.write_slots(spot.block)?;
        slot.store(block, spot.place.index());
        Ok(())
    }

    /// The slot of `dir` with this name.
    pub(crate) fn find(&mut self, dir: Ino, name: &[u8]) -> Result<Option<Spot>, Stop> {
        self.ensure_index(dir)?;
        let map = self.map_of(dir);
        let candidates = match map {
            Some(first) => self.mapped(dir, first, name)?,
            None => {
                self.txn.volatile().names.candidates(&self.txn.pending.names, dir, hash_name(name))
            }
        };
        for at in candidates {
            let Some(spot) = self.spot_at(dir, at)? else { continue };
            if map.is_some() {
                self.fetch_content(dir, &spot)?;
            }
            let block = self.txn.read_slots(spot.block)?;
            if Slot::named_at(block, spot.place.index(), name) {
                return Ok(Some(spot));
            }
        }
        Ok(None)
    }

    /// Ensures that the index of `dir` is complete: reads the content that is not indexed yet, in
    /// large pieces.
    pub(super) fn ensure_index(&mut self, dir: Ino) -> Result<(), Stop> {
        let volatile = &mut *self.txn.volatile;
        if volatile.names.is_complete(&self.txn.pending.names, dir) {
            return Ok(());
        }
        let mut index = match self.txn.volatile_mut().names.take_unfinished(dir) {
            Some(index) => index,
            None => self.new_index(dir)?,
        };
        let result = self.read_content(&mut index);
        if matches!(result, Ok(()) | Err(Stop::Miss(..) | Stop::Scan(..))) {
            self.txn.volatile_mut().names.put(dir, index);
        }
        result.map_err(|stop| self.read_around(stop))
    }

    /// An index of `dir` without any content read; with a name map none needs to be read.
    fn new_index(&mut self, dir: Ino) -> Result<DirIndex, Stop> {
        let chunks = self.read_chunks(dir)?;
        let map = self.locate_live(dir)?.1.map();
        if map == 0 {
            return Ok(DirIndex::unread(chunks));
        }
        let mut index = DirIndex::mapped(chunks, DirNo(map));
        for at in 0..index.chunks.len() {
            let number = index.chunks[at];
            self.ensure_chunk(number)?;
            self.chunk(number)?.runs.iter().for_each(|run| index.add_hole(at as u32, run));
        }
        Ok(index)
    }

    /// The chunks of a directory, along their chain.
    pub(crate) fn read_chunks(&mut self, dir: Ino) -> Result<Vec<DirNo>, Stop> {
        let spot = self.locate(dir)?.ok_or(Stop::Fault(Fault::NotFound))?;
        let slot = self.load(&spot)?;
        if slot.kind() != FileKind::Directory {
            return Err(Stop::Fault(Fault::NotDirectory));
        }
        if slot.nlink() == 0 {
            return Err(Stop::Fault(Fault::NotFound));
        }
        let mut out = Vec::new();
        let mut next = DirNo(slot.body());
        while next.0 != 0 {
            let sound = self.ensure_chunk(next)? && {
                let descriptor = &self.chunk(next)?.descriptor;
                descriptor.owner == dir && descriptor.index as usize == out.len()
            };
            if !sound {
                return Err(Stop::Corrupt(spot.block, "a directory's chunks do not form a chain"));
            }
            out.push(next);
            next = self.chunk(next)?.descriptor.next;
        }
        Ok(out)
    }

    fn read_content(&mut self, index: &mut DirIndex) -> Result<(), Stop> {
        while let Some((chunk, block)) = index.unread {
            let Some(&number) = index.chunks.get(chunk) else {
                index.unread = None;
                break;
            };
            self.ensure_chunk(number)?;
            let map = self.chunk(number)?;
            let used = map.descriptor.used;
            let Some(run) = map.run_of(block).filter(|_| block < used).copied() else {
                index.unread = Some((chunk + 1, 0));
                continue;
            };
            let end = used.min(run.first + run.len).min(block + READ_MAX);
            if run.start.0 != 0 {
                let start = MetaBlock(run.start.0 + u64::from(block - run.first));
                if let Err(Stop::Miss(first, count)) = self.txn.require_cached(start, end - block) {
                    return Err(Stop::Scan(first, count));
                }
                for n in 0..end - block {
                    let home = MetaBlock(start.0 + u64::from(n));
                    self.index_block(index, home, chunk as u32, block + n)?;
                    self.note_unused(home)?;
                }
            } else if let Some(hole) = run.part(block, end) {
                index.add_hole(chunk as u32, &hole);
            }
            index.unread = Some((chunk, end));
        }
        Ok(())
    }

    /// Notes which files of a content block have layout blocks and do not use them.
    fn note_unused(&mut self, home: MetaBlock) -> Result<(), Stop> {
        let data = self.txn.read_slots(home)?;
        let has = |at: &u32| Slot::layout_blocks_at(data, *at)[0].is_some();
        let slots = (0..SLOTS_PER_BLOCK).filter(has).map(|at| Slot::load(data, at));
        let unused: Vec<Ino> =
            slots.filter(|slot| slot.body() == 0).map(|slot| slot.ino()).collect();
        unused.into_iter().for_each(|ino| self.txn.volatile_mut().space.unused.note(ino));
        Ok(())
    }

    fn index_block(
        &self,
        index: &mut DirIndex,
        home: MetaBlock,
        chunk: u32,
        block: u32,
    ) -> Result<(), Stop> {
        let data = self.txn.read_slots(home)?;
        for n in 0..SLOTS_PER_BLOCK {
            let slot = Slot::load(data, n);
            slot.check().map_err(|what| Stop::Corrupt(home, what))?;
            let at = Position::new(chunk, block * SLOTS_PER_BLOCK + n);
            if slot.state() != SlotState::Empty {
                index.add_live(at);
            }
            match slot.state() {
                SlotState::Empty if slot.next_reuse() < RETIRED => index.add_free(at),
                SlotState::Empty => {}
                _ if slot.name().is_empty() => {}
                _ => index.add_name(hash_name(slot.name()), at),
            }
        }
        Ok(())
    }
}

//! Frees inodes: orphans in bounded steps, which may be repeated after a crash, and small inodes
//! together with their last name.
//!
//! Invariants:
//! - a step frees from the end, and the inode's slot last; so a half-freed inode is still an orphan
//!   and is found again;
//! - the transaction that frees an object file's slot dooms its object at its targets;
//! - an inode that is freed with its name ([`Names::free_with_name`]) is never an orphan, on the
//!   disk or in memory.

use types::{DirNo, Fault, FileKind, Ino, Name};

use super::entry::refuse_orphan_dir;
use super::find::Spot;
use super::view::Names;
use crate::format::chunk::{ContentRun, DESCRIPTOR, chunk_key};
use crate::format::number::home_of;
use crate::format::slot::{Slot, SlotState};
use crate::trees::{CHUNKS, MOVED, ORPHANS};
use engine::error::Stop;

/// Most segments of a file that is freed with its name: each one changes records of data space.
const SMALL_SEGMENTS: usize = 4;

impl Names<'_, '_> {
    /// Removes a name and frees the inode in its slot, if that has no other name and is small: no
    /// directory, few segments, all in its slot, and no blobs. Otherwise returns `None` and changes
    /// nothing. Nobody may still use the inode.
    ///
    /// # Errors
    /// `NotFound`; as [`Names::lookup`].
    pub fn free_with_name(&mut self, dir: Ino, name: &Name) -> Result<Option<Ino>, Stop> {
        refuse_orphan_dir(dir)?;
        let spot = self.find(dir, name.as_bytes())?.ok_or(Stop::Fault(Fault::NotFound))?;
        let slot = self.load(&spot)?;
        if slot.state() != SlotState::Inode || !can_free_with_name(&slot) {
            return Ok(None);
        }
        let ino = slot.ino();
        if slot.kind() == FileKind::Regular
            && !self.txn.layouts().unmap_step(ino, 0, u64::MAX, SMALL_SEGMENTS)?
        {
            return Err(Stop::Corrupt(spot.block, "a file has more segments than its slot counts"));
        }
        self.free_slot(&spot)?;
        Ok(Some(ino))
    }

    /// Frees a part of an inode without links: at most `max_segments` segments or runs of content,
    /// then its blobs and slot. `true` when nothing of it is left.
    ///
    /// # Errors
    /// `Invalid` if it has links.
    pub fn free_inode_step(&mut self, ino: Ino, max_segments: usize) -> Result<bool, Stop> {
        let Some(spot) = self.locate(ino)? else { return Ok(true) };
        let slot = self.load(&spot)?;
        if slot.nlink() > 0 {
            return Err(Stop::Fault(Fault::Invalid));
        }
        match slot.kind() {
            FileKind::Regular
                if !self.txn.layouts().unmap_step(ino, 0, u64::MAX, max_segments)? =>
            {
                return Ok(false);
            }
            FileKind::Directory if !self.free_content(ino, &spot, slot, max_segments)? => {
                return Ok(false);
            }
            _ => {}
        }
        self.free_slot(&spot)?;
        ORPHANS.remove(self.txn, &ino.0.to_be_bytes())?;
        Ok(true)
    }

    /// Frees an inode that maps nothing: its blobs, layout blocks and slot, and its name if it has
    /// one.
    fn free_slot(&mut self, spot: &Spot) -> Result<(), Stop> {
        let slot = self.load(spot)?;
        let ino = slot.ino();
        for (first, owner) in slot.blobs() {
            self.txn.free_blob(first, owner)?;
        }
        for block in slot.layout_blocks() {
            self.txn.free_meta(block, 1)?;
            self.txn.layouts().layout_block_is_used(ino);
        }
        if let Some(record) = slot.object() {
            self.txn.space().doom(&record)?;
        }
        let name = slot.name().to_vec();
        if !name.is_empty() {
            self.ensure_index(spot.dir)?;
            self.index_remove(spot.dir, &slot)?;
            self.remove_name_at(spot.dir, &name, spot.at)?;
        }
        self.drop_outside(ino)?;
        self.release_slot(spot)?;
        self.count_inode(-1)?;
        if home_of(ino) != spot.place {
            MOVED.remove(self.txn, &ino.0.to_be_bytes())?;
        }
        Ok(())
    }

    /// Frees content and name map of a directory. A map without names has no chained blocks.
    fn free_content(
        &mut self,
        dir: Ino,
        spot: &Spot,
        mut slot: Slot,
        max_runs: usize,
    ) -> Result<bool, Stop> {
        self.txn.pending.names.forget(dir);
        let mut left = max_runs.max(1);
        let mut done = true;
        while done && slot.body() != 0 {
            let number = DirNo(slot.body());
            match self.free_chunk(spot, number, &mut slot, &mut left)? {
                Some(next) => slot.set_body(next.0),
                None => done = false,
            }
        }
        while done && slot.map() != 0 {
            slot.set_names(0);
            let number = DirNo(slot.map());
            match self.free_chunk(spot, number, &mut slot, &mut left)? {
                Some(next) => slot.set_map(next.0),
                None => done = false,
            }
        }
        if done {
            slot.set_size(0);
        }
        self.store(spot, &slot)?;
        Ok(done)
    }

    /// Frees at most `left` runs of a chunk. If no run is left, frees the chunk too and returns the
    /// next one.
    fn free_chunk(
        &mut self,
        spot: &Spot,
        number: DirNo,
        slot: &mut Slot,
        left: &mut usize,
    ) -> Result<Option<DirNo>, Stop> {
        if !self.ensure_chunk(number)? {
            return Err(Stop::Corrupt(spot.block, "a directory's chunk is missing"));
        }
        let mut chunk = self.chunk(number)?.clone();
        while let Some(run) = chunk.runs.pop() {
            if *left == 0 {
                chunk.runs.push(run);
                self.set_chunk(number, chunk)?;
                return Ok(None);
            }
            *left -= 1;
            if run.is_present() {
                self.txn.free_meta(run.start, run.len)?;
            }
            if run.is_present() && !chunk.descriptor.is_map() {
                let used = run.len.min(chunk.descriptor.used.saturating_sub(run.first));
                slot.set_blocks(slot.blocks().saturating_sub(u64::from(used)));
            }
            chunk.descriptor.used = chunk.descriptor.used.min(run.first);
            CHUNKS.remove(self.txn, &chunk_key(number, run.first))?;
        }
        self.remove_chunk(number, &[])?;
        Ok(Some(chunk.descriptor.next))
    }

    /// Removes the items of a chunk whose runs `runs` were freed; it must have no others.
    pub(super) fn remove_chunk(&mut self, number: DirNo, runs: &[ContentRun]) -> Result<(), Stop> {
        for run in runs {
            CHUNKS.remove(self.txn, &chunk_key(number, run.first))?;
        }
        CHUNKS.remove(self.txn, &chunk_key(number, DESCRIPTOR))?;
        self.txn.pending.names.set_chunk(number, None);
        Ok(())
    }
}

/// Is the inode small, and does it have no other name?
fn can_free_with_name(slot: &Slot) -> bool {
    let segments = match slot.kind() {
        FileKind::Directory => return false,
        FileKind::Regular if slot.body() > 0 => return false,
        FileKind::Regular => slot.segments().len(),
        _ => 0,
    };
    slot.nlink() == 1 && segments <= SMALL_SEGMENTS && slot.blobs().is_empty()
}

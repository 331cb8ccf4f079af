//! Freeing inodes without links, in bounded steps that may be repeated after a crash.
//!
//! Invariant: a step takes away what is last first; the inode's slot goes last, so
//! that an inode half freed is still an orphan and is found again.

use types::{DirNo, Fault, FileKind, Ino, MetaBlock};

use super::find::Spot;
use crate::error::Stop;
use crate::format::chunk::{DESCRIPTOR, chunk_key};
use crate::format::slot::Slot;
use crate::trees::{CHUNKS, MOVED, ORPHANS};
use crate::txn::Txn;

impl Txn<'_> {
    /// Frees part of an inode without links: at most `max_extents` segments or runs of
    /// content, at last its blobs and slot. `true` when nothing is left of it.
    ///
    /// # Errors
    /// `Invalid` if it has links.
    pub fn free_inode_step(&mut self, ino: Ino, max_extents: usize) -> Result<bool, Stop> {
        let Some(spot) = self.locate(ino)? else { return Ok(true) };
        let slot = self.load(&spot)?;
        if slot.nlink() > 0 {
            return Err(Stop::Fault(Fault::Invalid));
        }
        match slot.kind() {
            FileKind::Regular if !self.unmap_step(ino, 0, u64::MAX, max_extents)? => {
                return Ok(false);
            }
            FileKind::Directory if !self.free_content(ino, &spot, slot, max_extents)? => {
                return Ok(false);
            }
            _ => {}
        }
        let slot = self.load(&spot)?;
        for blob in [slot.xattr_blob(), slot.target_blob()].into_iter().flatten() {
            self.free_blob(MetaBlock(blob))?;
        }
        let name = slot.name().to_vec();
        if !name.is_empty() {
            self.ensure_index(spot.dir)?;
            self.pending.names.remove_name(spot.dir, &name, spot.at);
        }
        self.release_slot(&spot)?;
        self.count_inode(-1)?;
        MOVED.remove(self, &ino.0.to_be_bytes())?;
        ORPHANS.remove(self, &ino.0.to_be_bytes())?;
        Ok(true)
    }

    fn free_content(
        &mut self,
        dir: Ino,
        spot: &Spot,
        mut slot: Slot,
        max_runs: usize,
    ) -> Result<bool, Stop> {
        self.pending.names.forget(dir);
        let mut left = max_runs.max(1);
        while slot.body() != 0 {
            let number = DirNo(slot.body());
            if !self.ensure_chunk(number)? {
                return Err(Stop::Corrupt(spot.block, "a directory's chunk is missing"));
            }
            let mut chunk = self.chunk(number)?.clone();
            while let Some(run) = chunk.runs.pop() {
                if left == 0 {
                    chunk.runs.push(run);
                    self.set_chunk(number, chunk)?;
                    self.store(spot, &slot)?;
                    return Ok(false);
                }
                left -= 1;
                if run.start.0 != 0 {
                    self.free_meta(run.start, run.len)?;
                    let used = run.len.min(chunk.descriptor.used.saturating_sub(run.first));
                    slot.set_blocks(slot.blocks().saturating_sub(u64::from(used)));
                }
                chunk.descriptor.used = chunk.descriptor.used.min(run.first);
                CHUNKS.remove(self, &chunk_key(number, run.first))?;
            }
            CHUNKS.remove(self, &chunk_key(number, DESCRIPTOR))?;
            slot.set_body(chunk.descriptor.next.0);
            self.pending.names.set_chunk(number, None);
        }
        slot.set_size(0);
        self.store(spot, &slot)?;
        Ok(true)
    }
}

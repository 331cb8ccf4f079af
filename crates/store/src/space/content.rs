//! Content that lies with its inode: block 0 of a small file, in its slot or in a blob.
//!
//! Invariants:
//! - block 0 of a file is content, or mapped by a segment, or a hole; what makes it one of them
//!   ends the others. On a damaged file system that has both, content is what counts;
//! - content is not empty, not longer than [`CONTENT_MAX`] and not than the file; what block 0 has
//!   behind it is zero;
//! - new content comes to lie in the slot if it fits beside name and attributes and no segment is
//!   there, else in a blob. It leaves the slot when a name or an attribute needs the room. Making
//!   it shorter never moves it, and so needs no room; segments in the slot and content in the slot
//!   exclude each other, and neither drives the other out;
//! - there is none on a file system without the feature `inline-data`.

use types::limits::CONTENT_MAX;
use types::{Fault, FileBlock, Ino, MetaBlock};

use super::layout::Layout;
use crate::error::Stop;
use crate::features::Feature;
use crate::format::blob::{BLOB_MAX, What};
use crate::format::slot::Slot;
use crate::txn::Txn;

impl Txn<'_> {
    /// How many bytes of content would lie in the slot of the file if nothing but block 0 of it
    /// were mapped; 0 if the file system knows no such content.
    ///
    /// # Errors
    /// `Stale` if there is no such inode, `Invalid` if it is no regular file.
    pub fn content_room(&mut self, ino: Ino) -> Result<usize, Stop> {
        if !self.has_content_feature() {
            return Ok(0);
        }
        let Layout { slot, .. } = self.open_layout(ino)?;
        Ok(slot.rest_room(slot.name().len()).min(CONTENT_MAX))
    }

    /// The content that lies with the inode; empty if there is none.
    ///
    /// # Errors
    /// `Stale` if there is no such inode, `Invalid` if it is no regular file.
    pub fn content(&mut self, ino: Ino) -> Result<Vec<u8>, Stop> {
        let Layout { slot, .. } = self.open_layout(ino)?;
        match slot.content_blob() {
            Some(block) => self.read_blob(MetaBlock(block), CONTENT_MAX, slot.whose(What::Content)),
            None => Ok(slot.content().unwrap_or_default().to_vec()),
        }
    }

    /// Block 0 of the file is to hold these bytes, and zeros behind them; what was there goes. The
    /// size is at least their number then.
    ///
    /// # Errors `Invalid` if there are more than [`CONTENT_MAX`], or the file system knows no such
    /// content; `NoSpace`; `Stale`.
    pub fn set_content(&mut self, ino: Ino, bytes: &[u8]) -> Result<(), Stop> {
        if bytes.len() > CONTENT_MAX || !self.has_content_feature() {
            return Err(Stop::Fault(Fault::Invalid));
        }
        if bytes.is_empty() {
            self.drop_content(ino, 0)?;
        }
        self.unmap_block_0(ino)?;
        let Layout { spot, mut slot } = self.open_layout(ino)?;
        if !bytes.is_empty() {
            self.put_content(&mut slot, bytes, spot.block)?;
        }
        slot.set_size(slot.attr().size.max(bytes.len() as u64));
        self.store(&spot, &slot)
    }

    pub(crate) fn has_content_feature(&self) -> bool {
        self.state.superblock.features.has(Feature::INLINE_DATA)
    }

    fn unmap_block_0(&mut self, ino: Ino) -> Result<(), Stop> {
        let first = self.layout(ino, FileBlock(0), 1)?;
        if first.first().is_some_and(|extent| extent.file.0 == 0) {
            self.unmap(ino, FileBlock(0), FileBlock(1))?;
        }
        Ok(())
    }

    fn put_content(&mut self, slot: &mut Slot, bytes: &[u8], near: MetaBlock) -> Result<(), Stop> {
        let (old, whose) = (slot.content_blob().map(MetaBlock), slot.whose(What::Content));
        let fits = bytes.len() <= slot.rest_room(slot.name().len());
        if fits && slot.segments().is_empty() {
            if let Some(block) = old {
                self.free_blob(block, whose)?;
            }
            slot.set_content(bytes);
        } else {
            let block = self.without_reserve(|txn| txn.write_blob(old, bytes, whose, near))?;
            slot.set_content_blob(block.0);
        }
        Ok(())
    }

    /// Content beyond the size of `slot`, or longer than it may be, goes; the rest stays where it
    /// is.
    pub(crate) fn cut_content(&mut self, slot: &mut Slot) -> Result<(), Stop> {
        let most = slot.attr().size.min(CONTENT_MAX as u64) as usize;
        if most == 0 {
            return self.take_content(slot);
        }
        if let Some(bytes) = slot.content().filter(|bytes| bytes.len() > most) {
            let bytes = bytes[..most].to_vec();
            slot.set_content(&bytes);
        } else if let Some(block) = slot.content_blob().map(MetaBlock) {
            let whose = slot.whose(What::Content);
            let bytes = self.read_blob(block, BLOB_MAX, whose)?;
            if bytes.len() > most {
                self.write_blob(Some(block), &bytes[..most], whose, block)?;
            }
        }
        Ok(())
    }

    /// Block 0 gets another content: what lies with the inode goes if that is the block `from`.
    pub(crate) fn drop_content(&mut self, ino: Ino, from: u64) -> Result<(), Stop> {
        if from > 0 || !self.has_content_feature() {
            return Ok(());
        }
        let Layout { spot, mut slot } = self.open_layout(ino)?;
        if !slot.has_content() {
            return Ok(());
        }
        self.take_content(&mut slot)?;
        self.store(&spot, &slot)
    }

    fn take_content(&mut self, slot: &mut Slot) -> Result<(), Stop> {
        if let Some(block) = slot.content_blob() {
            self.free_blob(MetaBlock(block), slot.whose(What::Content))?;
        }
        slot.clear_content();
        Ok(())
    }
}

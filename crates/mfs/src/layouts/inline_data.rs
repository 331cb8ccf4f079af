//! Inline data: the content of block 0 of a small file, kept in its slot or in a blob.
//!
//! Invariants:
//! - block 0 of a file is content, or mapped by a segment, or a hole; whatever makes it one of
//!   these removes the others. If a damaged file system has both, the content counts;
//! - content is not empty, not longer than [`CONTENT_MAX`] and not longer than the file; block 0 is
//!   zero after it;
//! - new content goes into the slot if it fits beside name and attributes and the slot has no
//!   segment, else into a blob. It leaves the slot when a name or an attribute needs the room.
//!   Shortening it never moves it, and so needs no room. A slot has either segments or content, and
//!   neither displaces the other;
//! - there is none on a file system without the feature `inline-data`.

use types::limits::CONTENT_MAX;
use types::{Fault, FileBlock, Ino, MetaBlock};

use super::layout::OpenLayout;
use super::view::Layouts;
use crate::format::slot::Slot;
use crate::format::xattr::BLOB_MAX;
use engine::error::Stop;
use engine::format::blob::BlobKind;
use engine::format::features::Feature;

impl Layouts<'_, '_> {
    /// How many bytes of content would fit into the slot of the file if only block 0 were mapped; 0
    /// without the feature `inline-data`.
    ///
    /// # Errors
    /// `Stale` if there is no such inode, `Invalid` if it is no regular file.
    pub fn content_room(&mut self, ino: Ino) -> Result<usize, Stop> {
        if !self.has_content_feature() {
            return Ok(0);
        }
        let OpenLayout { slot, .. } = self.open_layout(ino)?;
        if slot.has_object() {
            return Ok(0);
        }
        Ok(slot.payload_room(slot.name().len()).min(CONTENT_MAX))
    }

    /// The content of block 0 from the slot or its blob; empty if there is none.
    ///
    /// # Errors
    /// `Stale` if there is no such inode, `Invalid` if it is no regular file.
    pub fn content(&mut self, ino: Ino) -> Result<Vec<u8>, Stop> {
        let OpenLayout { slot, .. } = self.open_layout(ino)?;
        match slot.content_blob() {
            Some(block) => self.txn.read_blob(
                MetaBlock(block),
                CONTENT_MAX,
                slot.blob_owner(BlobKind::Content),
            ),
            None => Ok(slot.content().unwrap_or_default().to_vec()),
        }
    }

    /// Replaces block 0 of the file by these bytes, with zeros after them. The size becomes at
    /// least their number.
    ///
    /// # Errors
    /// `Invalid` if there are more than [`CONTENT_MAX`], or without the feature `inline-data`;
    /// `NoSpace`; `Stale`.
    pub fn set_content(&mut self, ino: Ino, bytes: &[u8]) -> Result<(), Stop> {
        if bytes.len() > CONTENT_MAX || !self.has_content_feature() {
            return Err(Stop::Fault(Fault::Invalid));
        }
        if self.object(ino)?.is_some() {
            return Err(Stop::Fault(Fault::Invalid));
        }
        if bytes.is_empty() {
            self.drop_content(ino, 0)?;
        }
        self.unmap_block_0(ino)?;
        let OpenLayout { spot, mut slot } = self.open_layout(ino)?;
        if !bytes.is_empty() {
            self.put_content(&mut slot, bytes, spot.block)?;
        }
        slot.set_size(slot.attr().size.max(bytes.len() as u64));
        self.txn.names().store(&spot, &slot)
    }

    fn has_content_feature(&self) -> bool {
        self.txn.has_feature(Feature::INLINE_DATA)
    }

    fn unmap_block_0(&mut self, ino: Ino) -> Result<(), Stop> {
        let first = self.layout(ino, FileBlock(0), 1)?;
        if first.first().is_some_and(|segment| segment.file.0 == 0) {
            self.unmap(ino, FileBlock(0), FileBlock(1))?;
        }
        Ok(())
    }

    pub(super) fn put_content(
        &mut self,
        slot: &mut Slot,
        bytes: &[u8],
        near: MetaBlock,
    ) -> Result<(), Stop> {
        let (old, owner) = (slot.content_blob().map(MetaBlock), slot.blob_owner(BlobKind::Content));
        let fits = bytes.len() <= slot.payload_room(slot.name().len());
        if fits && slot.segments().is_empty() {
            if let Some(block) = old {
                self.txn.free_blob(block, owner)?;
            }
            slot.set_content(bytes);
        } else {
            let block = self.txn.without_reserve(|txn| txn.write_blob(old, bytes, owner, near))?;
            slot.set_content_blob(block.0);
        }
        Ok(())
    }

    /// Cuts content to the size of `slot` and to the longest that is allowed. What is left stays
    /// where it is.
    pub(crate) fn cut_content(&mut self, slot: &mut Slot) -> Result<(), Stop> {
        let most = slot.attr().size.min(CONTENT_MAX as u64) as usize;
        if most == 0 {
            return self.take_content(slot);
        }
        if let Some(bytes) = slot.content().filter(|bytes| bytes.len() > most) {
            let bytes = bytes[..most].to_vec();
            slot.set_content(&bytes);
        } else if let Some(block) = slot.content_blob().map(MetaBlock) {
            let owner = slot.blob_owner(BlobKind::Content);
            let bytes = self.txn.read_blob(block, BLOB_MAX, owner)?;
            if bytes.len() > most {
                self.txn.write_blob(Some(block), &bytes[..most], owner, block)?;
            }
        }
        Ok(())
    }

    /// Block 0 gets other content: removes the content from slot or blob, if `from` is block 0.
    pub(super) fn drop_content(&mut self, ino: Ino, from: u64) -> Result<(), Stop> {
        if from > 0 || !self.has_content_feature() {
            return Ok(());
        }
        let OpenLayout { spot, mut slot } = self.open_layout(ino)?;
        if !slot.has_content() {
            return Ok(());
        }
        self.take_content(&mut slot)?;
        self.txn.names().store(&spot, &slot)
    }

    pub(super) fn take_content(&mut self, slot: &mut Slot) -> Result<(), Stop> {
        if let Some(block) = slot.content_blob() {
            self.txn.free_blob(MetaBlock(block), slot.blob_owner(BlobKind::Content))?;
        }
        slot.clear_content();
        Ok(())
    }
}

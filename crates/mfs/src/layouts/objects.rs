//! Object files: files whose content lies in objects at targets, and of which the store keeps an
//! object record instead of segments.
//!
//! Invariants:
//! - a file gets its record while it maps nothing, and has no segment, no content and no layout
//!   block as long as it has the record. Only an exchange of layouts ([`super::swap`]), and a move
//!   of the file to another shard, take it;
//! - a file that came from another shard has its object from there, and that keeps its number. The
//!   shard that has the file has the object;
//! - the transaction that frees such an inode dooms its object at each of its targets.

use types::{Fault, Ino};

use super::layout::OpenLayout;
use super::view::Layouts;
use crate::format::object::ObjectRecord;
use crate::format::space::ZoneKind;
use engine::error::Stop;
use engine::format::blob::BlobKind;
use engine::format::features::Feature;

impl Layouts<'_, '_> {
    /// Where the content of an object file lies; `None`: it is a block file.
    ///
    /// # Errors
    /// `Stale` if there is no such inode, `Invalid` if it is no regular file.
    pub fn object(&mut self, ino: Ino) -> Result<Option<ObjectRecord>, Stop> {
        Ok(self.open_layout(ino)?.slot.object())
    }

    /// Makes a file that has no content yet an object file.
    ///
    /// # Errors
    /// `Invalid` if it has content or a record already, without the feature `object-files`, or if
    /// the record is impossible or names a zone that is no target; `NoSpace`; `Stale`.
    pub fn set_object(&mut self, ino: Ino, record: &ObjectRecord) -> Result<(), Stop> {
        if !self.txn.has_feature(Feature::OBJECT_FILES) || !record.is_possible() {
            return Err(Fault::Invalid.into());
        }
        for &target in &record.targets {
            let zone = self.txn.space().pag(target)?;
            if zone.is_none_or(|zone| zone.kind != ZoneKind::Target) {
                return Err(Fault::Invalid.into());
            }
        }
        let OpenLayout { spot, mut slot } = self.open_layout(ino)?;
        let empty = slot.payload().is_empty() && slot.body() == 0 && !slot.has_content();
        if !empty || slot.has_object() {
            return Err(Fault::Invalid.into());
        }
        for block in slot.layout_blocks() {
            self.txn.free_meta(block, 1)?;
            self.layout_block_is_used(ino);
        }
        slot.set_layout_blocks(&[]);
        if record.encode().len() > slot.payload_room(slot.name().len()) {
            let (xattrs, owner) = (slot.xattrs().to_vec(), slot.blob_owner(BlobKind::Xattrs));
            slot.set_xattrs(b"");
            let blob = self.txn.write_blob(None, &xattrs, owner, spot.block)?;
            slot.set_xattr_blob(Some(blob.0));
        }
        slot.set_object(record);
        self.txn.names().store(&spot, &slot)
    }

    /// Takes the record away from a file that leaves the shard. The object stays as it is.
    pub(crate) fn take_object(&mut self, ino: Ino) -> Result<(), Stop> {
        let OpenLayout { spot, mut slot } = self.open_layout(ino)?;
        slot.clear_object();
        self.txn.names().store(&spot, &slot)
    }
}

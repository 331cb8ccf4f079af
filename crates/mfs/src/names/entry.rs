//! Names: looking up, creating, linking, removing.

use types::{Attr, Fault, FileKind, Ino, MetaBlock, Name};

use super::find::Spot;
use super::inode::NewInode;
use super::view::Names;
use crate::format::namespace::Stream;
use crate::format::number::{home_of, is_orphan_dir};
use crate::format::slot::{Slot, SlotState};
use crate::trees::{MOVED, ORPHANS};
use engine::error::Stop;
use engine::format::blob::BlobKind;

impl Names<'_, '_> {
    /// The inode that `name` leads to, which may be of another shard.
    ///
    /// # Errors
    /// `NotDirectory`, `NotFound` if `dir` is gone.
    pub fn lookup(&mut self, dir: Ino, name: &Name) -> Result<Option<Ino>, Stop> {
        refuse_orphan_dir(dir)?;
        match self.find(dir, name.as_bytes())? {
            Some(spot) => Ok(Some(self.load(&spot)?.ino())),
            None => Ok(None),
        }
    }

    /// As [`Names::lookup`], with the type that the name says: it is known of an inode of another
    /// shard too.
    ///
    /// # Errors
    /// The same.
    pub fn entry(&mut self, dir: Ino, name: &Name) -> Result<Option<(Ino, FileKind)>, Stop> {
        refuse_orphan_dir(dir)?;
        match self.find(dir, name.as_bytes())? {
            Some(spot) => {
                let slot = self.load(&spot)?;
                Ok(Some((slot.ino(), slot.kind())))
            }
            None => Ok(None),
        }
    }

    /// Is `dir` empty?
    ///
    /// # Errors
    /// `NotDirectory`, `NotFound` if `dir` is gone.
    pub fn is_empty(&mut self, dir: Ino) -> Result<bool, Stop> {
        Ok(self.count(dir)? == 0)
    }

    /// The number of names in `dir`.
    ///
    /// # Errors
    /// As [`Names::is_empty`].
    pub fn count(&mut self, dir: Ino) -> Result<u64, Stop> {
        refuse_orphan_dir(dir)?;
        self.ensure_index(dir)?;
        match self.map_of(dir) {
            Some(_) => self.names_mapped(dir),
            None => Ok(self.txn.volatile().names.count(&self.txn.pending.names, dir) as u64),
        }
    }

    /// Creates an inode under a new name, with one link (a directory: two), version 1. A replay
    /// passes the number that the inode had, which leads to its slot.
    ///
    /// # Errors
    /// `Exists`; `Stale` if the given number is not free; `NoSpace`; as [`Names::lookup`].
    pub fn create(
        &mut self,
        dir: Ino,
        name: &Name,
        new: &NewInode<'_>,
        given: Option<Ino>,
    ) -> Result<Ino, Stop> {
        self.name_is_free(dir, name)?;
        let nlink = if new.kind == FileKind::Directory { 2 } else { 1 };
        let (spot, ino) = self.make_inode(dir, name.as_bytes(), new, nlink, given)?;
        self.add_name(dir, name.as_bytes(), spot.at)?;
        Ok(ino)
    }

    /// Creates an inode without a name: an orphan until it is linked.
    ///
    /// # Errors
    /// `Stale` if the given number is not free; `NoSpace`.
    pub fn create_orphan(&mut self, new: &NewInode<'_>, given: Option<Ino>) -> Result<Ino, Stop> {
        let (_, ino) = self.make_inode(self.txn.orphan_dir(), b"", new, 0, given)?;
        ORPHANS.insert(self.txn, &ino.0.to_be_bytes(), &[0; 8])?;
        Ok(ino)
    }

    pub(super) fn make_inode(
        &mut self,
        dir: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        nlink: u32,
        given: Option<Ino>,
    ) -> Result<(Spot, Ino), Stop> {
        let (spot, ino) = self.take_home(dir, given)?;
        let mut slot = self.load(&spot)?;
        slot.set_inode(name, &new.attr(ino, nlink));
        if let Some(target) = new.symlink {
            self.put_target(&mut slot, target, spot.block)?;
        }
        if new.kind == FileKind::Directory {
            slot.set_stream(Stream::of(new.uid, new.client));
            self.txn.pending.names.new_dir(ino);
            self.index_new_dir(dir, &slot, spot.block)?;
        }
        self.txn.layouts().give_layout_block(&mut slot, &spot)?;
        self.store(&spot, &slot)?;
        self.count_inode(1)?;
        Ok((spot, ino))
    }

    /// Adds a name of `ino`. An inode in the orphan directory moves to the new name. The caller
    /// sets the number of links.
    ///
    /// # Errors
    /// `Exists`; `Stale` if the inode is gone; `NotPermitted` for a directory; `NoSpace`.
    pub fn link(&mut self, dir: Ino, name: &Name, ino: Ino) -> Result<(), Stop> {
        self.name_is_free(dir, name)?;
        let (spot, slot) = self.locate_live(ino)?;
        if slot.kind() == FileKind::Directory {
            return Err(Stop::Fault(Fault::NotPermitted));
        }
        if slot.name().is_empty() {
            return self.move_inode(&spot, dir, name.as_bytes());
        }
        self.put_link(dir, name.as_bytes(), ino, slot.kind())
    }

    pub(crate) fn put_link(
        &mut self,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
    ) -> Result<(), Stop> {
        let spot = self.take_slot(dir)?;
        let mut slot = self.load(&spot)?;
        slot.set_link(name, ino, kind);
        self.store(&spot, &slot)?;
        self.add_name(dir, name, spot.at)?;
        Ok(())
    }

    /// Removes a name and returns its inode, which may be of another shard. If the inode lies in
    /// the slot of this name, it moves to the orphan directory. The caller sets the number of
    /// links.
    ///
    /// # Errors
    /// `NotFound`; as [`Names::lookup`].
    pub fn remove_name(&mut self, dir: Ino, name: &Name) -> Result<Ino, Stop> {
        let (spot, slot) = self.find_live(dir, name)?;
        if slot.state() == SlotState::Inode {
            self.move_inode(&spot, self.txn.orphan_dir(), b"")?;
        } else {
            self.remove_name_at(dir, name.as_bytes(), spot.at)?;
            self.release_slot(&spot)?;
        }
        Ok(slot.ino())
    }

    /// Moves an inode, with all that its slot has, to another slot under another name.
    pub(crate) fn move_inode(&mut self, from: &Spot, dir: Ino, name: &[u8]) -> Result<(), Stop> {
        self.ensure_index(from.dir)?;
        let mut body = self.load(from)?;
        let old_name = body.name().to_vec();
        self.fit_name(&mut body, name.len(), from.block)?;
        body.set_name(name);
        let to = self.take_slot(dir)?;
        let mut slot = self.load(&to)?;
        slot.adopt(&body);
        self.store(&to, &slot)?;
        if from.dir != dir {
            let start = match is_orphan_dir(from.dir) {
                true => self.content_start(&slot)?,
                false => self.index_remove(from.dir, &slot)?,
            };
            self.index_insert(dir, &slot, start)?;
            self.txn.layouts().move_fragments(from.dir, dir, &slot)?;
        }
        if !old_name.is_empty() {
            self.remove_name_at(from.dir, &old_name, from.at)?;
        }
        if !name.is_empty() {
            self.add_name(dir, name, to.at)?;
        }
        self.release_slot(from)?;
        self.update_moved(&to, body.ino())
    }

    /// Updates the `moved` tree for an inode that now lies at `spot`.
    pub(crate) fn update_moved(&mut self, spot: &Spot, ino: Ino) -> Result<(), Stop> {
        let key = ino.0.to_be_bytes();
        if home_of(ino) == spot.place {
            MOVED.remove(self.txn, &key)?;
        } else {
            MOVED.insert(self.txn, &key, &spot.place.pack().to_le_bytes())?;
        }
        Ok(())
    }

    pub(super) fn find_live(&mut self, dir: Ino, name: &Name) -> Result<(Spot, Slot), Stop> {
        refuse_orphan_dir(dir)?;
        let spot = self.find(dir, name.as_bytes())?.ok_or(Stop::Fault(Fault::NotFound))?;
        let slot = self.load(&spot)?;
        Ok((spot, slot))
    }

    pub(super) fn name_is_free(&mut self, dir: Ino, name: &Name) -> Result<(), Stop> {
        refuse_orphan_dir(dir)?;
        match self.find(dir, name.as_bytes())? {
            Some(_) => Err(Stop::Fault(Fault::Exists)),
            None => Ok(()),
        }
    }

    /// Makes room in the tail of `slot`, which lies in the block `near`, for a name of `len` bytes.
    /// First segments move to layout blocks or the tree of segments, then content, target and
    /// xattrs to blobs.
    pub(crate) fn fit_name(
        &mut self,
        slot: &mut Slot,
        len: usize,
        near: MetaBlock,
    ) -> Result<(), Stop> {
        if slot.state() != SlotState::Inode || slot.payload().len() <= slot.payload_room(len) {
            return Ok(());
        }
        match slot.kind() {
            FileKind::Regular if slot.content().is_some() => {
                let content = slot.payload().to_vec();
                let owner = slot.blob_owner(BlobKind::Content);
                let blob =
                    self.txn.without_reserve(|txn| txn.write_blob(None, &content, owner, near))?;
                slot.set_content_blob(blob.0);
            }
            FileKind::Regular => {
                self.txn.layouts().spill_segments(near, slot, slot.segment_room(len))?
            }
            FileKind::Symlink => {
                let target = slot.payload().to_vec();
                slot.set_payload(b"");
                let blob =
                    self.txn.write_blob(None, &target, slot.blob_owner(BlobKind::Target), near)?;
                slot.set_target_blob(Some(blob.0));
            }
            _ => {}
        }
        if slot.payload().len() > slot.payload_room(len) {
            let xattrs = slot.xattrs().to_vec();
            slot.set_xattrs(b"");
            let blob =
                self.txn.write_blob(None, &xattrs, slot.blob_owner(BlobKind::Xattrs), near)?;
            slot.set_xattr_blob(Some(blob.0));
        }
        Ok(())
    }
}

/// Outside the store the orphan directory does not exist.
pub(crate) fn refuse_orphan_dir(dir: Ino) -> Result<(), Stop> {
    if is_orphan_dir(dir) { Err(Stop::Fault(Fault::NotFound)) } else { Ok(()) }
}

impl NewInode<'_> {
    fn attr(&self, ino: Ino, nlink: u32) -> Attr {
        let directory = self.kind == FileKind::Directory;
        let size = match self.symlink {
            Some(target) => target.len() as u64,
            None if directory => 0,
            None => self.size,
        };
        Attr {
            ino,
            kind: self.kind,
            mode: self.mode,
            nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            blocks: 0,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            spread: false,
            version: 1,
        }
    }
}

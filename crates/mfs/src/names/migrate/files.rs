//! Files that follow their directory to another shard, with their content and their number.
//!
//! Invariants:
//! - only a file with exactly one name, on the other shard, follows: it gets its inode into the
//!   slot of that name;
//! - no data block is copied. Those that the file maps go with it ([`crate::space`]), and so does
//!   its object, whose number stays;
//! - when a file goes, its targets refuse every client that the former shard has evicted;
//! - what is left on the former shard is an orphan of the same number, without content.

use types::{Attr, Fault, FileBlock, FileKind, Ino, Name, Segment, ShardId};

use crate::format::number::{is_orphan_dir, is_root_dir};
use crate::format::object::ObjectRecord;
use crate::format::outside::Outside;
use crate::format::slot::Slot;
use crate::format::space::PagFormat;
use crate::layouts::EDIT_MAX;
use crate::names::view::Names;
use engine::error::Stop;

/// A file as it leaves a shard, and arrives at another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileArrival {
    /// Its attributes, with its number.
    pub attr: Attr,
    /// Names and values of its xattrs.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The target of a symlink; of a file, the content of block 0 that no segment maps.
    pub content: Vec<u8>,
    /// Its segments, in order.
    pub segments: Vec<Segment>,
    /// The object that it lies in instead.
    pub object: Option<ObjectRecord>,
}

impl Names<'_, '_> {
    /// Describes a file that is to follow its name to the shard `to`, with the zones of its blocks.
    ///
    /// # Errors
    /// `Stale`: there is no such file. `IsDirectory`. `TooManyLinks`: it has not exactly one name,
    /// or that is on this shard. `CrossDevice`: it has blocks of a loan, of a third shard, or of a
    /// zone that is not in service. `TooBig`: it maps too many segments. `WouldBlock`: an evicted
    /// client may still write it, or one of its targets has not refused one yet.
    pub fn file_departure(
        &mut self,
        ino: Ino,
        to: ShardId,
    ) -> Result<(FileArrival, Vec<PagFormat>), Stop> {
        let (it, zones) = self.describe(ino, to)?;
        for zone in &zones {
            if !self.txn.space().may_leave(zone.id)? {
                return Err(Fault::CrossDevice.into());
            }
        }
        for &target in it.object.iter().flat_map(|record| &record.targets) {
            if !self.txn.space().owed_fences(target, 1)?.is_empty() {
                return Err(Fault::WouldBlock.into());
            }
        }
        Ok((it, zones))
    }

    /// As [`Names::file_departure`], whatever the state of the zones and targets is.
    fn describe(&mut self, ino: Ino, to: ShardId) -> Result<(FileArrival, Vec<PagFormat>), Stop> {
        let attr = self.attr(ino)?.filter(|attr| attr.nlink > 0).ok_or(Fault::Stale)?;
        if attr.kind == FileKind::Directory {
            return Err(Fault::IsDirectory.into());
        }
        if attr.nlink != 1 || self.outside(ino)? != Some(Outside::Names(1)) {
            return Err(Fault::TooManyLinks.into());
        }
        let (mut content, mut segments, mut zones) = (Vec::new(), Vec::new(), Vec::new());
        let mut object = None;
        if attr.kind == FileKind::Regular {
            if self.txn.space().is_frozen(ino)? {
                return Err(Fault::WouldBlock.into());
            }
            object = self.txn.layouts().object(ino)?;
            content = self.txn.layouts().content(ino)?;
            segments = self.txn.layouts().layout(ino, FileBlock(0), EDIT_MAX + 1)?;
            if segments.len() > EDIT_MAX {
                return Err(Fault::TooBig.into());
            }
            for segment in &segments {
                let zone = self.txn.space().may_give(to, segment)?.ok_or(Fault::CrossDevice)?;
                if !zones.contains(&zone) {
                    zones.push(zone);
                }
            }
        } else if attr.kind == FileKind::Symlink {
            content = self.symlink(ino)?;
        }
        let (_, _, xattrs) = self.load_xattrs(ino)?;
        Ok((FileArrival { attr, xattrs, content, segments, object }, zones))
    }

    /// A file, which [`Names::file_departure`] has described so, goes to the shard `to`. What is
    /// left is an orphan.
    ///
    /// # Errors
    /// `Busy`: it is not as it was described. As that.
    pub fn leave_file(&mut self, it: &FileArrival, to: ShardId) -> Result<(), Stop> {
        let ino = it.attr.ino;
        let (spot, _) = self.locate_live(ino)?;
        if to == self.txn.shard() || !is_orphan_dir(spot.dir) {
            return Err(Fault::Invalid.into());
        }
        // The state of a zone may have changed since: the other shard has the file already.
        let (found, _) = self.describe(ino, to)?;
        if found != *it {
            return Err(Fault::Busy.into());
        }
        self.set_home(ino, to)?;
        if it.object.is_some() {
            self.txn.layouts().take_object(ino)?;
        } else if it.attr.kind == FileKind::Regular {
            for segment in self.txn.layouts().take_segments(ino)? {
                self.txn.space().give(to, &segment)?;
            }
        }
        // The content goes with the size.
        let size = if it.attr.kind == FileKind::Regular { 0 } else { it.attr.size };
        self.set_attr(&Attr { nlink: 0, size, ..it.attr })
    }

    /// A file comes from the shard `from`, with its number: the name `name` of `dir` leads to it.
    ///
    /// # Errors
    /// `Busy`: what was left here of it is not freed yet. `Stale`: the name leads elsewhere.
    /// `Invalid`: it cannot be, or its object lies at what is no target here. `NotFound`,
    /// `NoSpace`.
    pub fn arrive_file(
        &mut self,
        (dir, name): (Ino, &Name),
        from: ShardId,
        it: &FileArrival,
    ) -> Result<(), Stop> {
        let (ino, kind) = (it.attr.ino, it.attr.kind);
        let is_file = kind == FileKind::Regular;
        let mut bare = it.segments.is_empty() && it.object.is_none();
        bare &= it.content.is_empty() || kind == FileKind::Symlink;
        if kind == FileKind::Directory || it.attr.nlink != 1 || is_root_dir(ino) {
            return Err(Fault::Invalid.into());
        }
        if from == self.txn.shard() || !(is_file || bare) {
            return Err(Fault::Invalid.into());
        }
        if self.locate(ino)?.is_some() {
            return Err(Fault::Busy.into());
        }
        self.set_home(ino, self.txn.shard())?;
        let spot = self.take_slot(self.txn.orphan_dir())?;
        let mut slot: Slot = self.load(&spot)?;
        slot.set_inode(b"", &Attr { blocks: 0, ..it.attr });
        if kind == FileKind::Symlink {
            self.put_target(&mut slot, &it.content, spot.block)?;
        }
        self.store(&spot, &slot)?;
        self.update_moved(&spot, ino)?;
        self.count_inode(1)?;
        for segment in &it.segments {
            self.txn.space().receive(from, segment)?;
            self.txn.layouts().map_taken(ino, *segment)?;
        }
        if let Some(record) = &it.object {
            self.txn.layouts().set_object(ino, record)?;
        }
        if is_file && !it.content.is_empty() {
            self.txn.layouts().set_content(ino, &it.content)?;
        }
        for (name, value) in &it.xattrs {
            self.set_xattr(ino, name, value)?;
        }
        self.unhide(dir, name, ino)
    }
}

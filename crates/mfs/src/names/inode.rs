//! Inodes: attributes, parents, orphans, symlink targets.

use types::limits::SYMLINK_MAX;
use types::{Attr, ClientId, Fault, FileKind, Ino, MetaBlock, Name, Timestamp};

use super::entry::refuse_orphan_dir;
use super::view::Names;
use crate::format::number::is_orphan_dir;
use crate::format::outside::Outside;
use crate::format::slot::Slot;
use crate::trees::{INODES, ORPHANS};
use engine::error::Stop;
use engine::format::blob::BlobKind;
use engine::format::features::Feature;

/// The attributes of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// Type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Size of a regular file.
    pub size: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// The client that asks for it, 0 if none does; with the owner it is the stream of a new
    /// directory.
    pub client: ClientId,
    /// Target of a symlink, at most `SYMLINK_MAX` bytes.
    pub symlink: Option<&'a [u8]>,
}

/// How many inodes there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeCounts {
    /// Inodes, orphans included.
    pub used: u64,
    /// How many more the metadata device can hold at most.
    pub free: u64,
}

impl Names<'_, '_> {
    /// How many inodes there are.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn inode_counts(&mut self) -> Result<InodeCounts, Stop> {
        let used = self.txn.root(INODES)?.saturating_sub(1);
        let free = self.txn.meta_space().1.saturating_sub(self.txn.set_aside());
        Ok(InodeCounts { used, free: free * u64::from(self.txn.slots().per_block()) })
    }

    pub(super) fn count_inode(&mut self, change: i64) -> Result<(), Stop> {
        let count = self.txn.root(INODES)?.saturating_add_signed(change);
        self.txn.set_root(INODES, count)
    }

    /// The attributes of an inode; `None` if there is none of that number, or no longer, and for
    /// one of another shard.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn attr(&mut self, ino: Ino) -> Result<Option<Attr>, Stop> {
        if is_orphan_dir(ino) {
            return Ok(None);
        }
        match self.locate(ino)? {
            Some(spot) => Ok(Some(self.load(&spot)?.stat_attr())),
            None => Ok(None),
        }
    }

    /// Sets the attributes of the inode `attr.ino`. The store keeps its own kind and blocks, and
    /// the size of a directory, and spreads none without the feature `shards`. Content in the slot
    /// or a blob is cut to the new size. An inode without links becomes an orphan, and counts no
    /// names on other shards any more.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn set_attr(&mut self, attr: &Attr) -> Result<(), Stop> {
        refuse_orphan_dir(attr.ino)?;
        let (spot, mut slot) = self.locate_live(attr.ino)?;
        let old = slot.attr();
        let size = if old.kind == FileKind::Directory { old.size } else { attr.size };
        let spread = attr.spread && self.txn.has_feature(Feature::SHARDS);
        slot.set_attr(&Attr { kind: old.kind, blocks: old.blocks, size, spread, ..*attr });
        if size < old.size {
            self.txn.layouts().cut_content(&mut slot)?;
        }
        self.store(&spot, &slot)?;
        let key = attr.ino.0.to_be_bytes();
        if old.nlink > 0 && attr.nlink == 0 {
            ORPHANS.insert(self.txn, &key, &[0; 8])?;
            self.drop_outside(attr.ino)?;
            if old.kind == FileKind::Directory {
                self.txn.pending.names.forget(attr.ino);
            }
        } else if old.nlink == 0 && attr.nlink > 0 {
            ORPHANS.remove(self.txn, &key)?;
        }
        Ok(())
    }

    /// The parent of a directory, which is of another shard if its name is there; `None` for the
    /// root and for an orphan.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn parent(&mut self, dir: Ino) -> Result<Option<Ino>, Stop> {
        let spot = self.locate(dir)?.ok_or(Stop::Fault(Fault::Stale))?;
        if is_orphan_dir(spot.dir) {
            return Ok(match self.outside(dir)? {
                Some(Outside::Parent(parent)) => Some(parent),
                _ => None,
            });
        }
        Ok(Some(spot.dir).filter(|&parent| parent != Ino::NONE))
    }

    /// A directory and name under which an inode lies. `None` for the root, and for an inode in the
    /// orphan directory, which may still have further links.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub(crate) fn entry_of(&mut self, ino: Ino) -> Result<Option<(Ino, Name)>, Stop> {
        let Some(spot) = self.locate(ino)? else { return Ok(None) };
        let slot = self.load(&spot)?;
        Ok(Name::new(slot.name()).ok().map(|name| (spot.dir, name)))
    }

    /// At most `max` inodes without links, in order, after `after`.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn orphans(&mut self, after: Ino, max: usize) -> Result<Vec<Ino>, Stop> {
        let Some(from) = after.0.checked_add(1) else { return Ok(Vec::new()) };
        let found = ORPHANS.range(self.txn, &from.to_be_bytes(), max)?;
        Ok(found.into_iter().map(|(key, _)| Ino(u64::from_be_bytes(key))).collect())
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// `Stale` if there is no such inode, `Invalid` if it is no symlink.
    pub fn symlink(&mut self, ino: Ino) -> Result<Vec<u8>, Stop> {
        let (_, slot) = self.locate_live(ino)?;
        if slot.kind() != FileKind::Symlink {
            return Err(Stop::Fault(Fault::Invalid));
        }
        match slot.target_blob() {
            Some(block) => {
                self.txn.read_blob(MetaBlock(block), SYMLINK_MAX, slot.blob_owner(BlobKind::Target))
            }
            None => Ok(slot.payload().to_vec()),
        }
    }

    /// Puts the target of a new symlink into its slot, or into a blob.
    pub(super) fn put_target(
        &mut self,
        slot: &mut Slot,
        target: &[u8],
        near: MetaBlock,
    ) -> Result<(), Stop> {
        if slot.kind() != FileKind::Symlink || target.is_empty() {
            return Err(Stop::Fault(Fault::Invalid));
        }
        if target.len() > SYMLINK_MAX {
            return Err(Stop::Fault(Fault::NameTooLong));
        }
        if target.len() <= slot.payload_room(slot.name().len()) {
            slot.set_payload(target);
        } else {
            let block =
                self.txn.write_blob(None, target, slot.blob_owner(BlobKind::Target), near)?;
            slot.set_target_blob(Some(block.0));
        }
        Ok(())
    }
}

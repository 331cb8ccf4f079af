//! Names that lead to other shards, and inodes of this shard with names there.
//!
//! Invariants:
//! - [`crate::format::outside`] describes what is on the device;
//! - whether the two sides agree is for those to see to who change both: this shard knows one side.

use types::{Fault, FileKind, Ino, Name};

use super::inode::NewInode;
use super::view::Names;
use crate::format::number::{is_orphan_dir, is_root_dir};
use crate::format::outside::Outside;
use crate::trees::OUTSIDE;
use engine::error::Stop;
use engine::format::features::Feature;

impl Names<'_, '_> {
    /// Adds a name of an inode of another shard. The caller sees to the links of `dir`, and the
    /// other shard to those of the inode.
    ///
    /// # Errors
    /// `Exists`; `Invalid` without the feature `shards`, for an inode of this shard, and for a root
    /// directory or an orphan directory; `NoSpace`; as [`Names::lookup`].
    pub fn link_outside(
        &mut self,
        dir: Ino,
        name: &Name,
        ino: Ino,
        kind: FileKind,
    ) -> Result<(), Stop> {
        self.name_is_free(dir, name)?;
        if !self.may_name(ino)? || is_root_dir(ino) {
            return Err(Fault::Invalid.into());
        }
        self.put_link(dir, name.as_bytes(), ino, kind)
    }

    /// Creates an inode whose name is on another shard, with the links that
    /// [`Names::create`] gives it. For a directory, `parent` is where the name is. Another inode
    /// has one name there, and `parent` means nothing. A replay passes the number that the inode
    /// had.
    ///
    /// # Errors
    /// `Invalid` without the feature `shards`, and for a parent of this shard or an orphan
    /// directory; `Stale` if the given number is not free; `NoSpace`.
    pub fn create_guest(
        &mut self,
        parent: Ino,
        new: &NewInode<'_>,
        given: Option<Ino>,
    ) -> Result<Ino, Stop> {
        let (nlink, outside) = match new.kind {
            FileKind::Directory => (2, Outside::Parent(parent)),
            _ => (1, Outside::Names(1)),
        };
        self.check_outside(outside)?;
        let (_, ino) = self.make_inode(self.txn.orphan_dir(), b"", new, nlink, given)?;
        OUTSIDE.insert(self.txn, &ino.0.to_be_bytes(), &outside.encode())?;
        Ok(ino)
    }

    /// The names that an inode of this shard has on others; `None`: it has none there, or is none.
    ///
    /// # Errors
    /// `Corrupt` if the entry makes no sense.
    pub fn outside(&mut self, ino: Ino) -> Result<Option<Outside>, Stop> {
        if ino == Ino::NONE || !self.txn.has_feature(Feature::SHARDS) {
            return Ok(None);
        }
        match OUTSIDE.get(self.txn, &ino.0.to_be_bytes())? {
            Some(value) => Outside::decode(&value).map(Some).ok_or_else(|| {
                OUTSIDE.corrupt(self.txn, "what is kept of names on other shards makes no sense")
            }),
            None => Ok(None),
        }
    }

    /// Sets the names that an inode of this shard has on others; `None` and no names: it has none.
    /// The caller sets the number of links.
    ///
    /// # Errors
    /// `Stale` if there is no such inode. `Invalid` without the feature `shards`, and for a
    /// directory that has a name on this shard. Also `Invalid` for a number of names of a
    /// directory, for a parent of another inode, and for a parent of this shard.
    pub fn set_outside(&mut self, ino: Ino, outside: Option<Outside>) -> Result<(), Stop> {
        let (spot, slot) = self.locate_live(ino)?;
        let Some(outside) = outside.filter(|&outside| outside != Outside::Names(0)) else {
            return self.drop_outside(ino);
        };
        self.check_outside(outside)?;
        let fits = match outside {
            Outside::Parent(_) => slot.kind() == FileKind::Directory && is_orphan_dir(spot.dir),
            Outside::Names(_) => slot.kind() != FileKind::Directory,
        };
        if !fits {
            return Err(Fault::Invalid.into());
        }
        OUTSIDE.insert(self.txn, &ino.0.to_be_bytes(), &outside.encode())?;
        Ok(())
    }

    /// Gives an inode without a name on this shard one: it moves there from the orphan directory.
    /// The caller sets the number of links, and what it has on other shards
    /// ([`Names::set_outside`]).
    ///
    /// # Errors
    /// `Exists`; `Stale` if the inode is gone, and for a directory without links; `Invalid` if it
    /// has a name on this shard; `NoSpace`; as [`Names::lookup`].
    pub fn bring_home(&mut self, dir: Ino, name: &Name, ino: Ino) -> Result<(), Stop> {
        self.name_is_free(dir, name)?;
        let (spot, slot) = self.locate_live(ino)?;
        if slot.kind() == FileKind::Directory && slot.nlink() == 0 {
            return Err(Fault::Stale.into());
        }
        if !is_orphan_dir(spot.dir) {
            return Err(Fault::Invalid.into());
        }
        self.move_inode(&spot, dir, name.as_bytes())
    }

    /// At most `max` inodes of this shard with names on others, in order, after `after`.
    ///
    /// # Errors
    /// `Corrupt` if an entry makes no sense.
    pub fn guests(&mut self, after: Ino, max: usize) -> Result<Vec<(Ino, Outside)>, Stop> {
        let Some(from) = after.0.checked_add(1) else { return Ok(Vec::new()) };
        if !self.txn.has_feature(Feature::SHARDS) {
            return Ok(Vec::new());
        }
        let found = OUTSIDE.range(self.txn, &from.to_be_bytes(), max)?;
        let decode = |(key, value)| Some((Ino(u64::from_be_bytes(key)), Outside::decode(&value)?));
        found.into_iter().map(decode).collect::<Option<_>>().ok_or_else(|| {
            OUTSIDE.corrupt(self.txn, "what is kept of names on other shards makes no sense")
        })
    }

    /// Removes what is kept of the names of `ino` on other shards, if there is something.
    pub(super) fn drop_outside(&mut self, ino: Ino) -> Result<(), Stop> {
        if self.txn.has_feature(Feature::SHARDS) {
            OUTSIDE.remove(self.txn, &ino.0.to_be_bytes())?;
        }
        Ok(())
    }

    fn check_outside(&mut self, outside: Outside) -> Result<(), Stop> {
        let sound = match outside {
            Outside::Parent(parent) => self.may_name(parent)?,
            Outside::Names(_) => self.txn.has_feature(Feature::SHARDS),
        };
        if sound { Ok(()) } else { Err(Fault::Invalid.into()) }
    }

    /// May names and parents be of this number, as that of an inode of another shard?
    fn may_name(&mut self, ino: Ino) -> Result<bool, Stop> {
        let foreign = ino != Ino::NONE && !self.is_here(ino)?;
        Ok(foreign && !is_orphan_dir(ino) && self.txn.has_feature(Feature::SHARDS))
    }
}

#[cfg(test)]
mod tests;

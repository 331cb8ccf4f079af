//! Names that lead to other shards, and inodes of this shard with names there.
//!
//! Invariants:
//! - a name of an inode of another shard is not touched: what it leads to only that shard knows
//!   ([`mod@super::across`] compares both). With the feature `shards` it is no finding;
//! - an entry that makes no sense counts for nothing: a directory whose name it was is found again
//!   as an inode that no name leads to.

use types::{FileKind, Ino};

use super::across::{ForeignName, Guest};
use super::plan::Fix;
use super::{Check, ProblemKind, Subject};
use crate::format::number::{is_orphan_dir, is_root_dir};
use crate::format::outside::Outside;
use crate::format::slot::Slot;
use crate::trees::OUTSIDE;
use engine::error::StoreError;
use engine::format::features::Feature;

impl Check {
    /// Reads which inodes have names on other shards; `None` stands for an entry that means
    /// nothing.
    pub(super) async fn load_outside(&mut self) -> Result<(), StoreError> {
        self.walk((OUTSIDE, "names on other shards"), |check, key, value| {
            check.require_shards();
            let ino = Ino(u64::from_be_bytes(*key));
            if ino != Ino::NONE {
                // So the walk looks at the inode itself, and not at a digest.
                check.tree.note_moved(ino);
                check.tree.outside.insert(ino, Outside::decode(value));
            }
        })
        .await
    }

    /// The feature `shards` is in use.
    pub(super) fn require_shards(&mut self) {
        if !self.features.has(Feature::SHARDS) {
            self.features = self.features.with(Feature::SHARDS);
            self.found(ProblemKind::MissingFeature, Subject::Whole, "shards");
            self.plan.add(Fix::AddFeature(Feature::SHARDS));
        }
    }

    /// A name in `dir` of an inode of another shard, in a file system that has others.
    pub(super) fn foreign_name(&mut self, dir: Ino, slot: &Slot) {
        let (ino, kind, name) = (slot.ino(), slot.kind(), slot.name().to_vec());
        if let Some(parent) = self.tree.inodes.get_mut(&dir) {
            parent.subdirectories += u32::from(kind == FileKind::Directory);
        }
        self.report.shard.names.push(ForeignName { dir, name, ino, kind });
    }

    /// Adds the names on other shards to those that the walk has met. It comes before the further
    /// names: an inode that has names now has one in its slot.
    pub(super) fn count_outside(&mut self) {
        self.report.shard.shard = self.shard;
        for (ino, outside) in std::mem::take(&mut self.tree.outside) {
            match self.sound_outside(ino, outside) {
                Ok(guest) => {
                    if let Some(seen) = self.tree.inodes.get_mut(&ino) {
                        seen.names = seen.names.saturating_add(guest.outside.names());
                    }
                    self.report.shard.guests.push(guest);
                }
                Err(what) => {
                    self.found(ProblemKind::WrongOutside, Subject::Inode(ino), what);
                    self.plan.add(Fix::DropOutside(ino));
                }
            }
        }
    }

    /// The inode of an entry, or why the entry cannot be.
    fn sound_outside(&self, ino: Ino, outside: Option<Outside>) -> Result<Guest, &'static str> {
        let seen = self.tree.inodes.get(&ino).ok_or("there is no such inode")?;
        let outside = outside.ok_or("it has neither a parent nor a number of names")?;
        let directory = seen.kind == FileKind::Directory;
        match outside {
            _ if is_root_dir(ino) || is_orphan_dir(ino) => Err("it has no name anywhere"),
            Outside::Parent(_) if !directory => Err("a parent, and it is no directory"),
            Outside::Names(_) if directory => Err("a number of names, and it is a directory"),
            Outside::Parent(_) if seen.names > 0 => Err("it has a name on this shard"),
            Outside::Parent(parent) if self.home(parent) == self.shard || is_orphan_dir(parent) => {
                Err("its parent is no directory of another shard")
            }
            _ => Ok(Guest { ino, kind: seen.kind, outside }),
        }
    }
}

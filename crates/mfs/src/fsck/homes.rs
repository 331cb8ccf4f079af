//! Where inodes are that have moved from one shard to another.
//!
//! Invariants:
//! - a number of another shard is no finding where the tree of homes has it;
//! - an entry stays when its inode is gone, so one without an inode here is no finding. Only the
//!   other shards know whether an inode that left is there.

use types::{Ino, ShardId};

use super::plan::Fix;
use super::{Check, ProblemKind, Subject};
use crate::format::home::{HOME_VALUE, decode};
use crate::format::number::{is_orphan_dir, is_root_dir};
use crate::trees::HOMES;
use engine::error::StoreError;
use engine::format::features::Feature;

impl Check {
    /// Reads which inodes have another home than their numbers say.
    pub(super) async fn load_homes(&mut self) -> Result<(), StoreError> {
        self.walk((HOMES, "homes of moved inodes"), |check, key, value| {
            let ino = Ino(u64::from_be_bytes(*key));
            if ino == Ino::NONE && *value == [0; HOME_VALUE] {
                return;
            }
            check.require_moved_directories();
            // So the walk looks at the inode itself, and not at a digest.
            check.tree.note_moved(ino);
            let home = decode(value).filter(|&home| home != ino.shard());
            match home.filter(|_| !is_root_dir(ino) && !is_orphan_dir(ino)) {
                Some(home) => drop(check.report.shard.homes.insert(ino, home)),
                None => check.bad_home(ino, "it cannot be there"),
            }
        })
        .await
    }

    /// The shard that has the inode, as far as this one knows.
    pub(super) fn home(&self, ino: Ino) -> ShardId {
        self.report.shard.homes.get(&ino).copied().unwrap_or(ino.shard())
    }

    /// May the inode lie here? What is left of one that went does so, as an orphan, until it is
    /// freed. No home is kept here of one that went back to the shard of its number.
    pub(super) fn may_be_here(&self, ino: Ino) -> bool {
        let is_left =
            self.features.has(Feature::MOVED_DIRECTORIES) && self.tree.orphans.contains(&ino);
        ino.shard() == self.shard || self.report.shard.homes.contains_key(&ino) || is_left
    }

    /// Compares an inode of this shard with the tree of homes.
    pub(super) fn compare_home(&mut self, ino: Ino, nlink: u32) {
        if nlink > 0 && self.may_be_here(ino) && self.home(ino) != self.shard {
            self.bad_home(ino, "it is here");
        }
    }

    fn bad_home(&mut self, ino: Ino, what: &str) {
        self.found(ProblemKind::BadHome, Subject::Inode(ino), what);
        self.plan.add(Fix::DropHome(ino));
    }

    /// The feature `moved-directories` is in use.
    fn require_moved_directories(&mut self) {
        if !self.features.has(Feature::MOVED_DIRECTORIES) {
            self.features = self.features.with(Feature::MOVED_DIRECTORIES);
            self.found(ProblemKind::MissingFeature, Subject::Whole, "moved-directories");
            self.plan.add(Fix::AddFeature(Feature::MOVED_DIRECTORIES));
        }
    }
}

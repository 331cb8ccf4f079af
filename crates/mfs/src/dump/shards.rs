//! What a dump says of several shards: where inodes lie, and what names did not lead to.
//!
//! Invariant: a dump of one shard calls no other source.

use std::collections::BTreeSet;

use types::{Ino, ShardId};

use super::{Dump, DumpError, PAGE};
use crate::format::outside::Outside;

impl Dump<'_> {
    /// The number of a source in the dump.
    pub(super) fn server(&self, at: usize) -> ShardId {
        match self.sources.len() {
            1 => ShardId(0),
            _ => self.sources[at].mfs.superblock().shard,
        }
    }

    /// The source that has an inode, as a name of the source `at` leads there; `None`: none has it.
    pub(super) async fn home(&mut self, at: usize, ino: Ino) -> Result<Option<usize>, DumpError> {
        let mut asked = at;
        for _ in 0..=self.sources.len() {
            let mfs = self.sources[asked].mfs;
            let home = match self.read(asked, |txn| txn.names().home(ino)).await? {
                Ok(home) => home,
                Err(damage) => {
                    self.report_damage(format!("which server has inode {ino}: {damage}"));
                    return Ok(None);
                }
            };
            if home == mfs.superblock().shard {
                return Ok(Some(asked));
            }
            let next = self.sources.iter().position(|it| it.mfs.superblock().shard == home);
            let Some(next) = next else { return Ok(None) };
            asked = next;
        }
        Ok(None)
    }

    /// Reports inodes of a source with names on other shards that the dump does not have.
    pub(super) async fn unseen_guests(&mut self, at: usize) -> Result<(), DumpError> {
        let mut after = Ino::NONE;
        loop {
            let guests = match self.read(at, |txn| txn.names().guests(after, PAGE)).await? {
                Ok(guests) => guests,
                Err(damage) => {
                    self.report_damage(format!("which inodes other shards name: {damage}"));
                    return Ok(());
                }
            };
            let Some(&(last, _)) = guests.last() else { return Ok(()) };
            after = last;
            for (ino, outside) in guests {
                if self.guests.contains(&ino) {
                    continue;
                }
                self.report_elsewhere(match outside {
                    Outside::Parent(parent) => {
                        format!("directory {ino}, with all below it, of directory {parent}")
                    }
                    Outside::Names(names) => format!("{names} names of inode {ino}"),
                });
            }
        }
    }

    /// Counts operations that are not complete on all sources, if these are several.
    pub(super) async fn count_open_operations(&mut self) -> Result<(), DumpError> {
        if self.sources.len() == 1 {
            return Ok(());
        }
        let mut open = BTreeSet::new();
        for at in 0..self.sources.len() {
            match self.read(at, |txn| txn.intents().all()).await? {
                Ok(all) => open.extend(all.into_keys()),
                Err(_) => self.report_damage("which operations of several servers are open".into()),
            }
        }
        self.counts.open_operations = open.len() as u64;
        Ok(())
    }
}

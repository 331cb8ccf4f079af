//! Where inodes live that have left the shard that their numbers name.
//!
//! Invariants:
//! - what is noted is a belief: a server says so if it is wrong, and then the belief changes before
//!   anything else is asked for the inode;
//! - what the client holds of an inode, the server of its believed home has granted. A reply of
//!   another server grants nothing on it, and a change of the belief gives all of it up;
//! - the number of beliefs is bounded: the inodes that are forgotten count as at home where they
//!   were born.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use types::{Ino, ServerId, ShardId};

/// Most inodes that are noted.
const HOMES_MAX: usize = 1 << 16;

/// The shards of inodes, as far as they are not those of their numbers. See the module.
#[derive(Default)]
pub(crate) struct Homes(RefCell<BTreeMap<Ino, ShardId>>, RefCell<BTreeSet<Ino>>);

/// Who keeps what the servers have granted.
pub(crate) trait Rehomed {
    /// The inode is believed to live elsewhere from now on. Until now that was `server`.
    fn rehomed(&self, ino: Ino, server: ServerId);
}

impl Homes {
    /// The shard where the inode is believed to live.
    pub fn of(&self, ino: Ino) -> ShardId {
        self.0.borrow().get(&ino).copied().unwrap_or_else(|| ino.shard())
    }

    /// Has the inode moved, as far as the client has heard? A reply may be of its former server.
    pub fn has_moved(&self, ino: Ino) -> bool {
        self.1.borrow().contains(&ino)
    }

    /// The inode lives at `shard`. Returns the inodes whose home is another one from now on, with
    /// the former one.
    pub fn note(&self, ino: Ino, shard: ShardId) -> Vec<(Ino, ShardId)> {
        let before = self.of(ino);
        if before == shard {
            return Vec::new();
        }
        let mut moved = self.1.borrow_mut();
        if moved.len() >= HOMES_MAX {
            moved.clear();
        }
        moved.insert(ino);
        let mut changed = vec![(ino, before)];
        let mut known = self.0.borrow_mut();
        known.remove(&ino);
        if shard != ino.shard() {
            if known.len() >= HOMES_MAX {
                changed.extend(std::mem::take(&mut *known));
            }
            known.insert(ino, shard);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIRTH: ShardId = ShardId(0);
    const OTHER: ShardId = ShardId(1);

    #[test]
    fn inode_lives_where_it_was_born_until_something_else_is_noted() {
        let (homes, ino) = (Homes::default(), Ino(7));
        assert_eq!(homes.of(ino), BIRTH);
        assert_eq!(homes.note(ino, BIRTH), []);
        assert_eq!(homes.note(ino, OTHER), [(ino, BIRTH)]);
        assert_eq!((homes.of(ino), homes.of(Ino(8))), (OTHER, BIRTH));
        assert_eq!(homes.note(ino, OTHER), [], "nothing has changed");
        assert_eq!(homes.note(ino, BIRTH), [(ino, OTHER)]);
        assert_eq!((homes.of(ino), homes.0.borrow().len()), (BIRTH, 0));
    }

    #[test]
    fn inodes_that_are_forgotten_for_lack_of_room_are_named_as_changed() {
        let homes = Homes::default();
        let inos = || (1..=HOMES_MAX as u64).map(Ino);
        assert!(inos().all(|ino| homes.note(ino, OTHER).len() == 1));
        let last = Ino(HOMES_MAX as u64 + 1);
        let changed = homes.note(last, OTHER);
        let forgotten = inos().map(|ino| (ino, OTHER));
        assert!(changed.into_iter().eq([(last, BIRTH)].into_iter().chain(forgotten)));
        assert_eq!((homes.of(Ino(1)), homes.of(last)), (BIRTH, OTHER));
    }
}

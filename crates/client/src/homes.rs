//! Where inodes live that have left the shard that their numbers name.
//!
//! Invariants:
//! - what is noted is a belief: a server says so if it is wrong, and then the belief changes before
//!   anything else is asked for the inode;
//! - what the client holds of an inode, the server of its believed home has granted. A reply of
//!   another server grants nothing on it, and a change of the belief gives all of it up;
//! - the number of beliefs is bounded, but for inodes that the client has in its table: those that
//!   are forgotten count as at home where they were born.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use types::{Ino, ServerId, ShardId};

/// Inodes that are noted before the first are forgotten. A power of two.
const HOMES_MAX: usize = 1 << 16;

/// The shards of inodes, as far as they are not those of their numbers. See the module.
#[derive(Default)]
pub(crate) struct Homes(RefCell<BTreeMap<Ino, ShardId>>, RefCell<BTreeSet<Ino>>);

/// Who keeps what the servers have granted.
pub(crate) trait Rehomed {
    /// The inode is believed to live elsewhere from now on. Until now that was `server`.
    fn rehomed(&self, ino: Ino, server: ServerId);
    /// May something be held of the inode, or asked for it? Then its home is not forgotten.
    fn is_in_use(&self, ino: Ino) -> bool;
}

/// Is it time to forget some of so many? If all are in use, the next time is at twice as many: to
/// look at all of them for each new one would take too long.
fn is_full(count: usize) -> bool {
    count >= HOMES_MAX && count.is_power_of_two()
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

    /// The inode lives at `shard`. Returns its former home, if that was another one. Of the others
    /// those are forgotten for lack of room that are not in use.
    pub fn note(
        &self,
        ino: Ino,
        shard: ShardId,
        is_in_use: impl Fn(Ino) -> bool,
    ) -> Option<ShardId> {
        let before = self.of(ino);
        if before == shard {
            return None;
        }
        let mut moved = self.1.borrow_mut();
        if is_full(moved.len()) {
            moved.retain(|&one| is_in_use(one));
        }
        moved.insert(ino);
        let mut known = self.0.borrow_mut();
        known.remove(&ino);
        if shard != ino.shard() {
            if is_full(known.len()) {
                known.retain(|&one, _| is_in_use(one));
            }
            known.insert(ino, shard);
        }
        Some(before)
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
        let note = |ino, shard| homes.note(ino, shard, |_| false);
        assert_eq!(note(ino, BIRTH), None);
        assert_eq!(note(ino, OTHER), Some(BIRTH));
        assert_eq!((homes.of(ino), homes.of(Ino(8))), (OTHER, BIRTH));
        assert_eq!(note(ino, OTHER), None, "nothing has changed");
        assert_eq!(note(ino, BIRTH), Some(OTHER));
        assert_eq!((homes.of(ino), homes.0.borrow().len()), (BIRTH, 0));
    }

    #[test]
    fn only_inodes_that_are_not_in_use_are_forgotten_for_lack_of_room() {
        let homes = Homes::default();
        let is_in_use = |ino: Ino| ino.0.is_multiple_of(1000);
        let inos = || (1..=HOMES_MAX as u64).map(Ino);
        assert!(inos().all(|ino| homes.note(ino, OTHER, is_in_use) == Some(BIRTH)));
        let last = Ino(HOMES_MAX as u64 + 1);
        assert_eq!(homes.note(last, OTHER, is_in_use), Some(BIRTH));
        for ino in inos() {
            let wanted = if is_in_use(ino) { OTHER } else { BIRTH };
            assert_eq!((homes.of(ino), homes.has_moved(ino)), (wanted, is_in_use(ino)));
        }
        assert_eq!(homes.of(last), OTHER);
    }
}

//! Locks that this client's processes hold at the server.
//!
//! Invariants:
//! - a lock is entered here when the server's grant is known, and taken out when its
//!   release is sent: what is reclaimed after a restart was granted before it;
//! - one owner's ranges of one inode do not overlap.

use std::cell::RefCell;
use std::collections::BTreeMap;

use env::sync::Notify;
use proto::mds::Lock;
use types::{Ino, LockOwner};

type Key = (Ino, bool, LockOwner);

/// All locks, and who waits for one.
#[derive(Default)]
pub(crate) struct Locks {
    held: RefCell<BTreeMap<Key, Vec<Lock>>>,
    waiting: RefCell<BTreeMap<(Ino, LockOwner), Notify>>,
}

fn key(ino: Ino, lock: &Lock) -> Key {
    (ino, lock.flock, lock.owner)
}

fn without(ranges: &mut Vec<Lock>, start: u64, end: u64) {
    let old = std::mem::take(ranges);
    for lock in old {
        if lock.end < start || lock.start > end {
            ranges.push(lock);
            continue;
        }
        if lock.start < start {
            ranges.push(Lock { end: start - 1, ..lock.clone() });
        }
        if lock.end > end {
            ranges.push(Lock { start: end + 1, ..lock });
        }
    }
}

impl Locks {
    /// The server granted `lock`.
    pub fn granted(&self, ino: Ino, lock: &Lock) {
        let mut held = self.held.borrow_mut();
        let ranges = held.entry(key(ino, lock)).or_default();
        without(ranges, lock.start, lock.end);
        ranges.push(lock.clone());
    }

    /// The owner's range is released. True if it held anything there.
    pub fn released(&self, ino: Ino, lock: &Lock) -> bool {
        let mut held = self.held.borrow_mut();
        let Some(ranges) = held.get_mut(&key(ino, lock)) else { return false };
        let before = ranges.clone();
        without(ranges, lock.start, lock.end);
        let changed = *ranges != before;
        if ranges.is_empty() {
            held.remove(&key(ino, lock));
        }
        changed
    }

    /// Everything held, to be reclaimed.
    pub fn held(&self) -> Vec<(Ino, Lock)> {
        let held = self.held.borrow();
        held.iter()
            .flat_map(|((ino, ..), locks)| locks.iter().map(|lock| (*ino, lock.clone())))
            .collect()
    }

    /// Does the owner hold anything on the inode?
    pub fn holds(&self, ino: Ino, flock: bool, owner: LockOwner) -> bool {
        self.held.borrow().contains_key(&(ino, flock, owner))
    }

    /// The session is lost, and the locks with it; who waits asks again.
    pub fn lost(&self) {
        self.held.borrow_mut().clear();
        for notify in self.waiting.borrow().values() {
            notify.notify_all();
        }
    }

    /// A place to wait for `freed`.
    pub fn waiter(&self, ino: Ino, owner: LockOwner) -> Notify {
        self.waiting.borrow_mut().entry((ino, owner)).or_default().clone()
    }

    /// Nobody waits there any more.
    pub fn waited(&self, ino: Ino, owner: LockOwner) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.get(&(ino, owner)).is_some_and(|notify| notify.waiting() == 0) {
            waiting.remove(&(ino, owner));
        }
    }

    /// The server says that asking again is worth while.
    pub fn freed(&self, ino: Ino, owner: LockOwner) {
        if let Some(notify) = self.waiting.borrow().get(&(ino, owner)) {
            notify.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(start: u64, end: u64, exclusive: bool) -> Lock {
        Lock { flock: false, owner: LockOwner(7), pid: 1, exclusive, start, end }
    }

    #[test]
    fn ranges_split_merge_nothing_and_vanish() {
        let locks = Locks::default();
        let ino = Ino(3);
        locks.granted(ino, &lock(0, u64::MAX, true));
        locks.granted(ino, &lock(10, 19, false));
        let mut ranges: Vec<_> =
            locks.held().iter().map(|(_, l)| (l.start, l.end, l.exclusive)).collect();
        ranges.sort_unstable();
        assert_eq!(ranges, [(0, 9, true), (10, 19, false), (20, u64::MAX, true)]);
        assert!(locks.released(ino, &lock(5, 30, false)));
        assert!(!locks.released(ino, &lock(5, 30, false)), "nothing is left there");
        assert!(locks.holds(ino, false, LockOwner(7)));
        assert!(locks.released(ino, &lock(0, u64::MAX, false)));
        assert!(!locks.holds(ino, false, LockOwner(7)));
        assert!(locks.held().is_empty());
    }
}

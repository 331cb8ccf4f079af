//! Locks that this client's processes hold at the server.
//!
//! Invariants:
//! - a lock is entered here when the client knows the server's grant. It is removed when the server
//!   has freed it, or when no caller wants it any more. So what is reclaimed after a restart was
//!   granted before it, and is wanted;
//! - closing the file that a lock was taken through waits until the server has freed the lock. This
//!   includes an abandoned lock whose grant is known;
//! - one owner's ranges of one inode do not overlap;
//! - at most one request about the locks of an owner on an inode is in flight
//!   ([`Locks::lock_owner`]): what is held when it is sent is what it changes;
//! - a lock that was lost with a session stays known as lost until its owner frees it, or closes
//!   the file that it was taken through. Meanwhile no operation proceeds in the belief that it is
//!   held ([`Locks::check_not_lost`]). This does not apply to locks of an inode whose creation was
//!   lost: the server may have reused the number.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use env::sync::{AsyncMutex, Notify, Permit};
use proto::mds::Lock;
use types::{Fault, Ino, LockOwner};

use crate::handles::OpenFile;

type Key = (Ino, bool, LockOwner);

/// All locks, and the waiters for locks.
#[derive(Default)]
pub(crate) struct Locks {
    held: RefCell<BTreeMap<Key, Vec<Lock>>>,
    /// Locks that were lost with a session.
    lost: RefCell<BTreeMap<Key, Vec<Lock>>>,
    /// How many sessions were lost.
    losses: Cell<u64>,
    /// Owners for which the server holds locks that no caller wants.
    abandoned: RefCell<BTreeSet<Key>>,
    waiting: RefCell<BTreeMap<(Ino, LockOwner), Notify>>,
    /// Owners whose locks a request concerns now, with the number of requests that wait or run.
    owners: Rc<RefCell<BTreeMap<Key, (usize, AsyncMutex)>>>,
}

/// Held by the only request that may concern the locks of an owner.
pub(crate) struct OwnerLock {
    _permit: Permit,
    _owner: OwnerRef,
}

/// Counts a request that waits for the owner lock, or has it.
struct OwnerRef {
    owners: Rc<RefCell<BTreeMap<Key, (usize, AsyncMutex)>>>,
    key: Key,
}

impl Drop for OwnerRef {
    fn drop(&mut self) {
        let mut owners = self.owners.borrow_mut();
        if let Some((count, _)) = owners.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                owners.remove(&self.key);
            }
        }
    }
}

/// How to undo a granted lock.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct LockUndo {
    lock: Lock,
    /// Ranges to free: nothing was held there.
    pub free: Vec<Lock>,
    /// Locks to take again: a lock of the other kind was held there.
    pub restore: Vec<Lock>,
    /// Ranges where no lock was lost either.
    not_lost_before: Vec<Lock>,
    losses: u64,
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

/// Removes the range from the owner's locks. True if the owner had anything there.
fn take(all: &mut BTreeMap<Key, Vec<Lock>>, ino: Ino, lock: &Lock) -> bool {
    let Some(ranges) = all.get_mut(&key(ino, lock)) else { return false };
    let before = ranges.clone();
    without(ranges, lock.start, lock.end);
    let changed = *ranges != before;
    if ranges.is_empty() {
        all.remove(&key(ino, lock));
    }
    changed
}

impl Locks {
    /// The server granted `lock`.
    pub fn granted(&self, ino: Ino, lock: &Lock) {
        let mut held = self.held.borrow_mut();
        let ranges = held.entry(key(ino, lock)).or_default();
        without(ranges, lock.start, lock.end);
        ranges.push(lock.clone());
    }

    /// The server has freed the range. True if the owner held anything there.
    pub fn unlocked(&self, ino: Ino, lock: &Lock) -> bool {
        take(&mut self.held.borrow_mut(), ino, lock)
    }

    /// The owner has freed the range, and relies on nothing there.
    pub fn released(&self, ino: Ino, lock: &Lock) {
        take(&mut self.lost.borrow_mut(), ino, lock);
        take(&mut self.held.borrow_mut(), ino, lock);
    }

    /// Waits until no other request about the locks of this owner on `ino` is in flight.
    pub async fn lock_owner(&self, ino: Ino, flock: bool, owner: LockOwner) -> OwnerLock {
        let key = (ino, flock, owner);
        let mutex = {
            let mut owners = self.owners.borrow_mut();
            let (count, mutex) = owners.entry(key).or_default();
            *count += 1;
            mutex.clone()
        };
        let owner_ref = OwnerRef { owners: self.owners.clone(), key };
        OwnerLock { _permit: mutex.lock().await, _owner: owner_ref }
    }

    /// How to undo `lock` if it is granted, given what the owner holds now.
    pub fn plan_undo(&self, ino: Ino, lock: &Lock) -> LockUndo {
        let held = self.held.borrow();
        let before = held.get(&key(ino, lock)).map_or(&[][..], |ranges| ranges);
        let mut free = vec![lock.clone()];
        let mut restore = Vec::new();
        for old in before {
            let (start, end) = (old.start.max(lock.start), old.end.min(lock.end));
            if start > end {
                continue;
            }
            without(&mut free, start, end);
            if old.exclusive != lock.exclusive {
                restore.push(Lock { start, end, ..old.clone() });
            }
        }
        let mut not_lost_before = free.clone();
        for old in self.lost.borrow().get(&key(ino, lock)).into_iter().flatten() {
            without(&mut not_lost_before, old.start, old.end);
        }
        LockUndo { lock: lock.clone(), free, restore, not_lost_before, losses: self.losses.get() }
    }

    /// No caller wants a lock that was granted: restores what is held and lost, before the server
    /// is asked for that. Returns what to ask the server for; ends with [`Locks::undo_done`].
    pub fn undo(&self, ino: Ino, mut undo: LockUndo) -> LockUndo {
        for lock in &undo.not_lost_before {
            take(&mut self.lost.borrow_mut(), ino, lock);
        }
        if undo.losses != self.losses.get() {
            // The locks held before were lost with their session.
            undo.free = vec![undo.lock.clone()];
            undo.restore.clear();
        }
        for lock in &undo.free {
            self.unlocked(ino, lock);
        }
        for lock in &undo.restore {
            self.granted(ino, lock);
        }
        self.abandoned.borrow_mut().insert(key(ino, &undo.lock));
        undo
    }

    /// The server was asked to undo what this owner of `ino` did not want.
    pub fn undo_done(&self, ino: Ino, flock: bool, owner: LockOwner) {
        self.abandoned.borrow_mut().remove(&(ino, flock, owner));
    }

    /// Everything held, for a reclaim.
    pub fn held(&self) -> Vec<(Ino, Lock)> {
        let held = self.held.borrow();
        held.iter()
            .flat_map(|((ino, ..), locks)| locks.iter().map(|lock| (*ino, lock.clone())))
            .collect()
    }

    /// Does the server hold anything for the owner on the inode, wanted or not?
    pub fn holds(&self, ino: Ino, flock: bool, owner: LockOwner) -> bool {
        let key = (ino, flock, owner);
        self.held.borrow().contains_key(&key) || self.abandoned.borrow().contains(&key)
    }

    /// A session is lost, and the locks on its inodes with it; waiters ask again. Returns what was
    /// held.
    pub fn lose(&self, of_session: impl Fn(Ino) -> bool) -> BTreeMap<Ino, Vec<Lock>> {
        self.losses.update(|losses| losses + 1);
        let mut lost_locks: BTreeMap<Ino, Vec<Lock>> = BTreeMap::new();
        let mut lost = self.lost.borrow_mut();
        let mut held = self.held.borrow_mut();
        for (key, locks) in held.extract_if(.., |(ino, ..), _| of_session(*ino)) {
            lost_locks.entry(key.0).or_default().extend(locks.iter().cloned());
            lost.entry(key).or_default().extend(locks);
        }
        for notify in self.waiting.borrow().values() {
            notify.notify_all();
        }
        lost_locks
    }

    /// The creation of these inodes was lost: their locks are gone, and the server may reuse their
    /// numbers.
    pub fn forget(&self, inos: &[Ino]) {
        self.lost.borrow_mut().retain(|(ino, ..), _| !inos.contains(ino));
    }

    /// Does `file` still have all locks that were taken through it?
    ///
    /// # Errors
    /// `Io` if one of them is lost, and its owner has not freed it since.
    pub fn check_not_lost(&self, file: &OpenFile) -> Result<(), Fault> {
        let lost = self.lost.borrow();
        if lost.is_empty() {
            return Ok(());
        }
        let ino = file.inode.ino;
        let lockers = file.lockers.borrow();
        let lost_one =
            lockers.iter().any(|(flock, owner)| lost.contains_key(&(ino, *flock, *owner)));
        if lost_one { Err(Fault::Io) } else { Ok(()) }
    }

    /// The owner closed `file`: it no longer relies on locks that it took through it.
    pub fn closed(&self, file: &OpenFile, flock: bool, owner: LockOwner) {
        file.lockers.borrow_mut().retain(|locker| *locker != (flock, owner));
        self.forget_of(file, flock, owner);
    }

    /// Every process has closed `file`.
    pub fn closed_by_all(&self, file: &OpenFile) {
        for (flock, owner) in file.lockers.take() {
            self.forget_of(file, flock, owner);
        }
    }

    fn forget_of(&self, file: &OpenFile, flock: bool, owner: LockOwner) {
        // What is stored under the number of a lost inode belongs to another one.
        if !file.inode.is_lost() {
            self.lost.borrow_mut().remove(&(file.inode.ino, flock, owner));
        }
    }

    /// Where to wait for `notify_freed`.
    pub fn waiter(&self, ino: Ino, owner: LockOwner) -> Notify {
        self.waiting.borrow_mut().entry((ino, owner)).or_default().clone()
    }

    /// Drops the waiter if no task waits there any more.
    pub fn stop_waiting(&self, ino: Ino, owner: LockOwner) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.get(&(ino, owner)).is_some_and(|notify| notify.waiting() == 0) {
            waiting.remove(&(ino, owner));
        }
    }

    /// The server says that asking again is worthwhile.
    pub fn notify_freed(&self, ino: Ino, owner: LockOwner) {
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
    fn undo_restores_the_locks_held_before() {
        let locks = Locks::default();
        let ino = Ino(3);
        let all = lock(0, 99, true);
        let undo = locks.plan_undo(ino, &all);
        assert_eq!((undo.free, undo.restore), (vec![all.clone()], vec![]));
        locks.granted(ino, &lock(0, 9, true));
        locks.granted(ino, &lock(20, 29, false));
        locks.granted(ino, &lock(90, 200, false));
        let free = vec![lock(10, 19, true), lock(30, 89, true)];
        let restore = vec![lock(20, 29, false), lock(90, 99, false)];
        let undo = locks.plan_undo(ino, &all);
        assert_eq!((undo.free, undo.restore), (free, restore));
    }

    fn held(locks: &Locks) -> Vec<Lock> {
        locks.held().into_iter().map(|(_, lock)| lock).collect()
    }

    fn lost(locks: &Locks) -> Vec<Lock> {
        locks.lost.borrow().values().flatten().cloned().collect()
    }

    /// Grants `all` over what was held `before`.
    fn granted_over(before: &[Lock], all: &Lock) -> (Locks, LockUndo) {
        let locks = Locks::default();
        before.iter().for_each(|lock| locks.granted(Ino(3), lock));
        let undo = locks.plan_undo(Ino(3), all);
        locks.granted(Ino(3), all);
        (locks, undo)
    }

    #[test]
    fn undone_lock_is_not_lost_with_the_session_but_earlier_locks_are() {
        let (ino, all, shared) = (Ino(3), lock(0, 99, true), lock(20, 29, false));
        for before in [&[][..], &[shared]] {
            let (locks, undo) = granted_over(before, &all);
            let ops = locks.undo(ino, undo);
            assert_eq!((held(&locks), ops.restore), (before.to_vec(), before.to_vec()));
            locks.lose(|_| true);
            assert_eq!(lost(&locks), before);
        }
    }

    #[test]
    fn abandoned_lock_is_not_lost_even_if_undone_after_the_session_loss() {
        let (ino, all, shared) = (Ino(3), lock(0, 99, true), lock(20, 29, false));
        for before in [&[][..], &[shared]] {
            let (locks, undo) = granted_over(before, &all);
            assert_eq!(locks.lose(|_| true)[&ino], vec![all.clone()], "it was wanted");
            let ops = locks.undo(ino, undo);
            assert_eq!((ops.free, ops.restore), (vec![all.clone()], vec![]));
            assert_eq!((held(&locks), lost(&locks).is_empty()), (vec![], before.is_empty()));
        }
        // The session was lost before the grant, which belongs to the next session.
        let locks = Locks::default();
        locks.granted(ino, &lock(20, 29, false));
        let undo = locks.plan_undo(ino, &all);
        locks.lose(|_| true);
        locks.granted(ino, &all);
        let ops = locks.undo(ino, undo);
        assert_eq!((ops.free, ops.restore), (vec![all], vec![]));
        assert_eq!((held(&locks), lost(&locks)), (vec![], vec![lock(20, 29, false)]));
    }

    #[test]
    fn lost_lock_stays_lost_when_an_abandoned_lock_is_undone() {
        let (locks, ino, all) = (Locks::default(), Ino(3), lock(0, 99, true));
        locks.granted(ino, &lock(10, 19, true));
        locks.lose(|_| true);
        let undo = locks.plan_undo(ino, &all);
        locks.granted(ino, &all);
        let ops = locks.undo(ino, undo);
        assert_eq!(ops.free, vec![all.clone()]);
        assert!(!locks.unlocked(ino, &all) && locks.holds(ino, false, LockOwner(7)));
        locks.undo_done(ino, false, LockOwner(7));
        assert!(!locks.holds(ino, false, LockOwner(7)));
        assert_eq!(lost(&locks), vec![lock(10, 19, true)]);
        locks.released(ino, &lock(0, 99, false));
        assert_eq!(lost(&locks), vec![]);
    }

    #[test]
    fn lock_ranges_split_and_vanish() {
        let locks = Locks::default();
        let ino = Ino(3);
        locks.granted(ino, &lock(0, u64::MAX, true));
        locks.granted(ino, &lock(10, 19, false));
        let mut ranges: Vec<_> =
            locks.held().iter().map(|(_, l)| (l.start, l.end, l.exclusive)).collect();
        ranges.sort_unstable();
        assert_eq!(ranges, [(0, 9, true), (10, 19, false), (20, u64::MAX, true)]);
        assert!(locks.unlocked(ino, &lock(5, 30, false)));
        assert!(!locks.unlocked(ino, &lock(5, 30, false)), "nothing is left there");
        assert!(locks.holds(ino, false, LockOwner(7)));
        assert!(locks.unlocked(ino, &lock(0, u64::MAX, false)));
        assert!(!locks.holds(ino, false, LockOwner(7)));
        assert!(locks.held().is_empty());
    }
}

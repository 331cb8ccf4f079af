//! POSIX and flock locks of all clients.
//! Invariants:
//! - two owners never hold locks of one space (flock, POSIX) that overlap unless both are shared;
//! - an owner's ranges of one inode and space do not overlap; adjacent ranges of one mode are
//!   merged;
//! - the table notifies a waiter at most once that its lock may be free, until the waiter asks
//!   again; when a notified waiter does not ask (cancelled, gone), the table notifies the next.
//!
//! An owner is ⟨client, owner⟩: kernels number their owners independently.

use std::collections::{BTreeMap, BTreeSet};

use types::{Bug, ClientId, Fault, Ino, LockOwner, planted};

use crate::mds::Lock;

/// Locks and waiters of one inode.
pub const LOCKS_PER_INODE_MAX: usize = 65_536;
/// Locks and waiters of one server.
pub const LOCKS_MAX: usize = 1 << 20;

/// Who holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner {
    /// Client.
    pub client: ClientId,
    /// Owner inside it.
    pub owner: LockOwner,
}

/// A notification for a waiter: asking again may succeed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockFree {
    /// The waiter.
    pub to: Owner,
    /// The inode.
    pub ino: Ino,
}

#[derive(Clone, Debug)]
struct HeldLock {
    owner: Owner,
    lock: Lock,
}

#[derive(Clone, Debug)]
struct Waiter {
    owner: Owner,
    lock: Lock,
    notified: bool,
}

#[derive(Default, Debug)]
struct InodeLocks {
    held: Vec<HeldLock>,
    waiting: Vec<Waiter>,
}

/// All locks of one server.
#[derive(Default, Debug)]
pub struct LockTable {
    files: BTreeMap<Ino, InodeLocks>,
    total: usize,
}

fn overlap(a: &Lock, b: &Lock) -> bool {
    a.flock == b.flock && a.start <= b.end && b.start <= a.end
}

fn conflict(a: (&Owner, &Lock), b: (&Owner, &Lock)) -> bool {
    a.0 != b.0
        && overlap(a.1, b.1)
        && (a.1.exclusive || b.1.exclusive)
        && !planted(Bug::LocksIgnored)
}

/// A flock lock covers the whole file, whatever range it was given.
fn normalized(lock: &Lock) -> Result<Lock, Fault> {
    let mut lock = lock.clone();
    if lock.flock {
        (lock.start, lock.end) = (0, u64::MAX);
    }
    if lock.start > lock.end { Err(Fault::Invalid) } else { Ok(lock) }
}

impl LockTable {
    /// No locks.
    pub fn new() -> LockTable {
        LockTable::default()
    }

    /// Locks and waiters.
    pub fn len(&self) -> usize {
        self.total
    }

    /// Neither locks nor waiters?
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Takes a lock, replacing what the owner holds in the range. With `wait`, the owner waits on a
    /// conflict: a [`LockFree`] notifies it when to ask again.
    ///
    /// # Errors `WouldBlock`; `Deadlock` if the wait would never end; `NoLocks` at the limits;
    /// `Invalid` range.
    pub fn lock(
        &mut self,
        ino: Ino,
        owner: Owner,
        lock: &Lock,
        wait: bool,
    ) -> Result<Vec<LockFree>, Fault> {
        let lock = normalized(lock)?;
        let blocked = self.conflicting(ino, owner, &lock).next().is_some();
        if !blocked {
            self.check_room(ino)?;
            self.forget_waiter(ino, owner, &lock);
            self.replace(ino, owner, &lock, true);
            return Ok(self.notify_waiters(ino));
        }
        if !wait {
            self.forget_waiter(ino, owner, &lock);
            return Err(Fault::WouldBlock);
        }
        if !lock.flock && self.closes_cycle(ino, owner, &lock) {
            self.forget_waiter(ino, owner, &lock);
            return Err(Fault::Deadlock);
        }
        self.check_room(ino)?;
        let file = self.files.entry(ino).or_default();
        match file.waiting.iter_mut().find(|w| w.owner == owner && w.lock == lock) {
            Some(waiter) => waiter.notified = false,
            None => {
                file.waiting.push(Waiter { owner, lock, notified: false });
                self.total += 1;
            }
        }
        Err(Fault::WouldBlock)
    }

    /// Releases a range of an owner.
    ///
    /// # Errors
    /// `Invalid` range; `NoLocks` if a split would exceed the limits.
    pub fn unlock(&mut self, ino: Ino, owner: Owner, lock: &Lock) -> Result<Vec<LockFree>, Fault> {
        let lock = normalized(lock)?;
        let Some(file) = self.files.get(&ino) else { return Ok(Vec::new()) };
        let splits = file.held.iter().any(|e| {
            e.owner == owner
                && overlap(&e.lock, &lock)
                && e.lock.start < lock.start
                && e.lock.end > lock.end
        });
        if splits {
            self.check_room(ino)?;
        }
        self.replace(ino, owner, &lock, false);
        Ok(self.notify_waiters(ino))
    }

    /// The first lock that conflicts with `lock`, if any, with its owner.
    ///
    /// # Errors
    /// `Invalid` range.
    pub fn test(
        &self,
        ino: Ino,
        owner: Owner,
        lock: &Lock,
    ) -> Result<Option<(Owner, Lock)>, Fault> {
        let lock = normalized(lock)?;
        let first = self.conflicting(ino, owner, &lock).min_by_key(|entry| entry.lock.start);
        Ok(first.map(|entry| (entry.owner, entry.lock.clone())))
    }

    /// The other clients whose locks conflict with `lock`.
    pub fn holders(&self, ino: Ino, owner: Owner, lock: &Lock) -> Vec<ClientId> {
        let Ok(lock) = normalized(lock) else { return Vec::new() };
        let holders = self.conflicting(ino, owner, &lock).map(|entry| entry.owner.client);
        let others: BTreeSet<ClientId> = holders.filter(|client| *client != owner.client).collect();
        others.into_iter().collect()
    }

    /// The locks that conflict with `lock`, with their owners.
    pub fn conflicts(&self, ino: Ino, owner: Owner, lock: &Lock) -> Vec<(Owner, Lock)> {
        let Ok(lock) = normalized(lock) else { return Vec::new() };
        let conflicting = self.conflicting(ino, owner, &lock);
        conflicting.map(|entry| (entry.owner, entry.lock.clone())).collect()
    }

    /// The locks on an inode, with their owners.
    pub fn held(&self, ino: Ino) -> Vec<(Owner, Lock)> {
        let held = self.files.get(&ino).map_or(&[][..], |file| &file.held);
        held.iter().map(|entry| (entry.owner, entry.lock.clone())).collect()
    }

    /// The clients whose locks other clients wait for.
    pub fn awaited(&self) -> Vec<ClientId> {
        let mut clients = BTreeSet::new();
        for (ino, file) in &self.files {
            for waiter in &file.waiting {
                clients.extend(self.holders(*ino, waiter.owner, &waiter.lock));
            }
        }
        clients.into_iter().collect()
    }

    /// The owner no longer waits for `lock`.
    pub fn cancel(&mut self, ino: Ino, owner: Owner, lock: &Lock) -> Vec<LockFree> {
        let Ok(lock) = normalized(lock) else { return Vec::new() };
        self.forget_waiter(ino, owner, &lock);
        self.notify_waiters(ino)
    }

    /// The client is gone: drops its locks and waits.
    pub fn drop_client(&mut self, client: ClientId) -> Vec<LockFree> {
        let mut out = Vec::new();
        let inos: Vec<Ino> = self.files.keys().copied().collect();
        for ino in inos {
            let Some(file) = self.files.get_mut(&ino) else { continue };
            let before = file.held.len() + file.waiting.len();
            file.held.retain(|entry| entry.owner.client != client);
            file.waiting.retain(|waiter| waiter.owner.client != client);
            let gone = before - file.held.len() - file.waiting.len();
            self.total -= gone;
            if gone > 0 {
                out.extend(self.notify_waiters(ino));
            }
        }
        out
    }

    /// Does `owner` hold a lock of the inode?
    pub fn holds(&self, ino: Ino, owner: Owner) -> bool {
        let file = self.files.get(&ino);
        file.is_some_and(|file| file.held.iter().any(|entry| entry.owner == owner))
    }

    /// Locks held by `client`.
    pub fn count(&self, client: ClientId) -> usize {
        let held = self.files.values().flat_map(|file| &file.held);
        held.filter(|entry| entry.owner.client == client).count()
    }

    /// Panics if an invariant does not hold.
    pub fn validate(&self) {
        let mut total = 0;
        for file in self.files.values() {
            total += file.held.len() + file.waiting.len();
            assert!(
                !file.held.is_empty() || !file.waiting.is_empty(),
                "the table keeps an inode without locks and waiters"
            );
            for (index, a) in file.held.iter().enumerate() {
                assert!(a.lock.start <= a.lock.end);
                for b in &file.held[index + 1..] {
                    assert!(!conflict((&a.owner, &a.lock), (&b.owner, &b.lock)), "{a:?} {b:?}");
                    assert!(a.owner != b.owner || !overlap(&a.lock, &b.lock), "{a:?} {b:?}");
                }
            }
        }
        assert_eq!(total, self.total);
    }

    fn check_room(&self, ino: Ino) -> Result<(), Fault> {
        let here = self.files.get(&ino).map_or(0, |file| file.held.len() + file.waiting.len());
        let full = here + 2 > LOCKS_PER_INODE_MAX || self.total + 2 > LOCKS_MAX;
        if full { Err(Fault::NoLocks) } else { Ok(()) }
    }

    fn conflicting<'a>(
        &'a self,
        ino: Ino,
        owner: Owner,
        lock: &'a Lock,
    ) -> impl Iterator<Item = &'a HeldLock> {
        let held = self.files.get(&ino).map_or(&[][..], |file| &file.held);
        held.iter().filter(move |entry| conflict((&owner, lock), (&entry.owner, &entry.lock)))
    }

    fn forget_waiter(&mut self, ino: Ino, owner: Owner, lock: &Lock) {
        if let Some(file) = self.files.get_mut(&ino) {
            let before = file.waiting.len();
            file.waiting.retain(|waiter| waiter.owner != owner || waiter.lock != *lock);
            self.total -= before - file.waiting.len();
        }
    }

    /// Removes `lock`'s range from the owner's locks, and inserts `lock` there if `keep`.
    fn replace(&mut self, ino: Ino, owner: Owner, lock: &Lock, keep: bool) {
        let file = self.files.entry(ino).or_default();
        let before = file.held.len();
        let mut fresh = Vec::new();
        let mut joined = lock.clone();
        file.held.retain(|entry| {
            let mine = entry.owner == owner && entry.lock.flock == lock.flock;
            let old = &entry.lock;
            let touches = keep
                && old.exclusive == lock.exclusive
                && old.start <= lock.end.saturating_add(1)
                && lock.start <= old.end.saturating_add(1);
            if mine && touches {
                joined.start = joined.start.min(old.start);
                joined.end = joined.end.max(old.end);
                return false;
            }
            if !mine || !overlap(old, lock) {
                return true;
            }
            if old.start < lock.start {
                fresh.push(HeldLock { owner, lock: Lock { end: lock.start - 1, ..old.clone() } });
            }
            if old.end > lock.end {
                fresh.push(HeldLock { owner, lock: Lock { start: lock.end + 1, ..old.clone() } });
            }
            false
        });
        file.held.extend(fresh);
        if keep {
            file.held.push(HeldLock { owner, lock: joined });
        }
        self.total = self.total + file.held.len() - before;
    }

    /// Notifies waiters whose lock may be free now, in arrival order, and drops an empty entry.
    fn notify_waiters(&mut self, ino: Ino) -> Vec<LockFree> {
        let Some(file) = self.files.get_mut(&ino) else { return Vec::new() };
        if file.held.is_empty() && file.waiting.is_empty() {
            self.files.remove(&ino);
            return Vec::new();
        }
        let mut out = Vec::new();
        for index in 0..file.waiting.len() {
            let waiter = &file.waiting[index];
            let me = (&waiter.owner, &waiter.lock);
            let blocked = file.held.iter().any(|entry| conflict(me, (&entry.owner, &entry.lock)));
            let behind = file.waiting[..index]
                .iter()
                .any(|w| w.notified && conflict(me, (&w.owner, &w.lock)));
            if !waiter.notified && !blocked && !behind {
                file.waiting[index].notified = true;
                out.push(LockFree { to: file.waiting[index].owner, ino });
            }
        }
        out
    }

    /// Would `owner`, waiting for `lock`, wait for itself?
    fn closes_cycle(&self, ino: Ino, owner: Owner, lock: &Lock) -> bool {
        let mut seen: Vec<Owner> = Vec::new();
        let mut next: Vec<Owner> = self.conflicting(ino, owner, lock).map(|e| e.owner).collect();
        while let Some(one) = next.pop() {
            if one == owner {
                return true;
            }
            if seen.contains(&one) {
                continue;
            }
            seen.push(one);
            for (&ino, file) in &self.files {
                for waiter in file.waiting.iter().filter(|w| w.owner == one && !w.lock.flock) {
                    next.extend(self.conflicting(ino, one, &waiter.lock).map(|entry| entry.owner));
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;

//! Records which owners hold range locks through which open file.
//!
//! The kernel does not report when a lock of an open file description ends with the
//! last close: FLUSH names processes, and RELEASE names an owner for flock only.
//! A process that locked through a handle has sent FLUSH before the handle's RELEASE, so
//! an owner that remains then is the open file itself.

use std::cell::RefCell;

use types::{HashMap, Ino, LockOwner};

use crate::fs::Handle;

/// Owners that took range locks and have not given up all of them by FLUSH.
#[derive(Default)]
pub(crate) struct RangeOwners {
    by_inode: RefCell<HashMap<Ino, Vec<(Handle, LockOwner)>>>,
}

impl RangeOwners {
    /// `owner` took a lock on `ino` by `handle`.
    pub(crate) fn took(&self, ino: Ino, handle: Handle, owner: LockOwner) {
        let mut by_inode = self.by_inode.borrow_mut();
        let owners = by_inode.entry(ino).or_default();
        if !owners.contains(&(handle, owner)) {
            owners.push((handle, owner));
        }
    }

    /// A FLUSH ended all locks of `owner` on `ino`.
    pub(crate) fn flushed(&self, ino: Ino, owner: LockOwner) {
        self.remove(ino, |&(_, held)| held == owner);
    }

    /// `handle` is gone: removes and returns the owners whose locks end with it.
    pub(crate) fn released(&self, ino: Ino, handle: Handle) -> Vec<LockOwner> {
        let removed = self.remove(ino, |&(by, _)| by == handle);
        removed.into_iter().map(|(_, owner)| owner).collect()
    }

    fn remove(
        &self,
        ino: Ino,
        which: impl Fn(&(Handle, LockOwner)) -> bool,
    ) -> Vec<(Handle, LockOwner)> {
        let mut by_inode = self.by_inode.borrow_mut();
        let Some(owners) = by_inode.get_mut(&ino) else {
            return Vec::new();
        };
        let removed = owners.extract_if(.., |owner| which(owner)).collect();
        if owners.is_empty() {
            by_inode.remove(&ino);
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_owners_that_never_flushed_end_with_the_handle() {
        let owners = RangeOwners::default();
        let (ino, first, second) = (Ino(5), Handle(1), Handle(2));
        let (process, file) = (LockOwner(10), LockOwner(11));
        owners.took(ino, first, process);
        owners.took(ino, first, file);
        owners.took(ino, second, process);
        owners.flushed(ino, process);
        assert_eq!(owners.released(ino, first), [file]);
        owners.took(ino, second, process);
        assert_eq!(owners.released(ino, first), []);
        assert_eq!(owners.released(ino, second), [process]);
        assert!(owners.by_inode.borrow().is_empty());
    }
}

//! The windows that are cut from the free blocks of a pool for growing files.
//!
//! Invariant: a block is in one free run, or in one window, or neither knows it. Who chooses where
//! a file goes on is a [`Preallocator`].

use proto::mds::PagRun;
use proto::prealloc::{Policy, Preallocator, Request, Space};
use types::{FileBlock, Ino, PagBlock, PagId};

use super::pool::PoolRun;

impl From<&PagRun> for PoolRun {
    fn from(run: &PagRun) -> PoolRun {
        PoolRun { pag: run.pag, addr: run.addr.0, len: run.len }
    }
}

impl From<PoolRun> for PagRun {
    fn from(run: PoolRun) -> PagRun {
        PagRun { pag: run.pag, addr: PagBlock(run.addr), len: run.len }
    }
}

/// The windows of a client's files.
pub(super) struct Windows {
    policy: Policy,
    preallocator: Box<dyn Preallocator>,
}

impl Windows {
    /// No windows yet; `policy` chooses them.
    pub fn new(policy: Policy) -> Windows {
        Windows { policy, preallocator: policy.preallocator() }
    }

    /// As after [`Windows::new`]: what they hold is not the client's any more.
    pub fn forgotten(&self) -> Windows {
        Windows::new(self.policy)
    }

    /// Blocks in them.
    pub fn held(&self) -> u64 {
        self.preallocator.held()
    }

    /// Places for the blocks of `request`, in the order of the file.
    pub fn place(&mut self, free: &mut dyn Space, request: &Request) -> Vec<PoolRun> {
        self.preallocator.place(free, request).iter().map(PoolRun::from).collect()
    }

    /// The server chose these blocks for the file's blocks from `from` on.
    pub fn assign(&mut self, free: &mut dyn Space, ino: Ino, from: FileBlock, run: PagRun) {
        self.preallocator.assign(free, ino, from, run);
    }

    /// The file's blocks `[from, to)` need no place any more.
    pub fn unassign(&mut self, free: &mut dyn Space, ino: Ino, from: FileBlock, to: FileBlock) {
        self.preallocator.unassign(free, ino, from, to);
    }

    /// The file is not written any more, or not through this handle: frees its windows.
    pub fn close(&mut self, free: &mut dyn Space, ino: Ino, handle: Option<u64>) {
        match handle {
            None => self.preallocator.close(free, ino),
            Some(handle) => {
                self.preallocator.close_streams(free, ino, &|stream| stream.handle == handle);
            }
        }
    }

    /// Frees all windows.
    pub fn close_all(&mut self, free: &mut dyn Space) {
        self.preallocator.reclaim(free, u64::MAX);
    }

    /// Free blocks have left the pool: the windows keep no more than their share.
    pub fn trim(&mut self, free: &mut dyn Space) {
        self.preallocator.trim(free);
    }

    /// Removes what they hold in a zone.
    pub fn take_zone(&mut self, pag: PagId) -> Vec<PoolRun> {
        self.preallocator.take_zone(pag).iter().map(PoolRun::from).collect()
    }
}

//! The orphan reaper: keeps inodes without a name while a client has them open, then frees them in
//! steps. (Small files that nobody uses never come here: they are freed together with their last
//! name, [`crate::ops`].)
//!
//! Invariants:
//! - an inode is freed only when nobody holds any right on it; from the moment that is decided, all
//!   operations treat it as gone;
//! - the server recalls `OPEN` of an orphan from every holder: from the holders before the unlink;
//!   from a client that got `OPEN` while the unlink waited, when the name is gone; and from one
//!   that gets it later, right after the grant. The reply that reports a grant may reach nobody, if
//!   it answers a request that was sent again and had been answered;
//! - a client that removes a directory is asked, too: it may have found the directory before, and
//!   gives nothing up unasked;
//! - after a restart nothing is freed before the grace has ended.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use env::sync::Notify;
use mfs::Cost;
use types::{Bug, ClientId, HashSet, Ino, Rights, planted};

use crate::context::Need;
use crate::ops::READ;
use crate::server::Server;

/// Segments that one transaction frees.
const SEGMENTS: usize = 64;
/// No client: the server itself.
pub const NO_CLIENT: ClientId = ClientId(0);
/// Orphans that one transaction looks up after a restart.
const BATCH: usize = 256;

/// See the module.
#[derive(Default)]
pub struct OrphanReaper {
    orphans: RefCell<HashSet<Ino>>,
    freeing: RefCell<HashSet<Ino>>,
    queue: RefCell<VecDeque<Ino>>,
    wake: Notify,
    idle: Notify,
    allowed: Cell<bool>,
}

impl OrphanReaper {
    /// Is the inode being freed?
    pub fn is_freeing(&self, ino: Ino) -> bool {
        let freeing = self.freeing.borrow();
        !freeing.is_empty() && freeing.contains(&ino)
    }

    /// Does `which` hold for any orphan that is open?
    pub fn any_open_orphan(&self, which: impl FnMut(Ino) -> bool) -> bool {
        self.orphans.borrow().iter().copied().any(which)
    }

    /// May inodes be freed? True once the grace has ended.
    pub fn is_allowed(&self) -> bool {
        self.allowed.get()
    }

    /// Number of orphans that are open somewhere, and of those being freed.
    pub fn counts(&self) -> (usize, usize) {
        (self.orphans.borrow().len(), self.freeing.borrow().len())
    }

    /// The inode has become an orphan. `client` knows that and gives up `OPEN` unasked; all other
    /// holders are asked.
    pub fn orphaned(&self, server: &Server, client: ClientId, ino: Ino) {
        self.orphans.borrow_mut().insert(ino);
        self.free_if_closed(server, ino);
        if self.allowed.get() && !self.is_freeing(ino) {
            let recalls = server.leases.borrow_mut().recall_open(client, ino);
            recalls.into_iter().for_each(|recall| server.push_recall(recall));
        }
    }

    /// The client has just been granted `OPEN` on the inode. If it is an orphan, recalls that.
    pub fn open_granted(&self, server: &Server, client: ClientId, ino: Ino) {
        if !self.allowed.get() || !self.orphans.borrow().contains(&ino) {
            return;
        }
        let recall = server.leases.borrow_mut().recall_of(client, ino, Rights::OPEN);
        recall.into_iter().for_each(|recall| server.push_recall(recall));
    }

    /// The inode has a name again.
    pub fn relinked(&self, ino: Ino) {
        self.orphans.borrow_mut().remove(&ino);
    }

    /// Frees the inode if it is an orphan and nobody holds `OPEN` on it any more.
    pub fn free_if_closed(&self, server: &Server, ino: Ino) {
        if !self.allowed.get() || !self.orphans.borrow().contains(&ino) {
            return;
        }
        let open = server.leases.borrow().any_holder(ino, Rights::OPEN);
        if open && !planted(Bug::OrphanFreedOpen) {
            return;
        }
        self.orphans.borrow_mut().remove(&ino);
        self.freeing.borrow_mut().insert(ino);
        self.queue.borrow_mut().push_back(ino);
        self.wake.notify_all();
    }

    /// The server stops.
    pub fn stop(&self) {
        self.wake.notify_all();
    }

    /// Waits until no inode is being freed.
    pub async fn drained(&self) {
        loop {
            let notified = self.idle.notified();
            if self.freeing.borrow().is_empty() {
                return;
            }
            notified.await;
        }
    }
}

/// Starts to free orphans, and finds those that are left from before the restart.
pub async fn begin(server: &Rc<Server>) {
    server.reaper.allowed.set(true);
    let orphans: Vec<Ino> = server.reaper.orphans.borrow().iter().copied().collect();
    for ino in orphans {
        server.reaper.free_if_closed(server, ino);
    }
    let mut after = Ino::NONE;
    loop {
        let found = server.mfs.run(READ, |txn| txn.orphans(after, BATCH)).await;
        let Some((found, _)) = server.checked(found, "looking for orphans") else { return };
        let Some(&last) = found.last() else { return };
        for ino in found {
            if !server.reaper.is_freeing(ino) {
                server.reaper.orphaned(server, NO_CLIENT, ino);
            }
        }
        after = last;
    }
}

/// The reaper's task: frees queued inodes until the server stops.
pub async fn run(server: Rc<Server>) {
    loop {
        let notified = server.reaper.wake.notified();
        let next = server.reaper.queue.borrow_mut().pop_front();
        if server.is_stopping() {
            return;
        }
        let Some(ino) = next else {
            server.reaper.idle.notify_all();
            notified.await;
            continue;
        };
        free(&server, ino).await;
        server.reaper.freeing.borrow_mut().remove(&ino);
    }
}

async fn free(server: &Rc<Server>, ino: Ino) {
    if !server.leases.borrow().others(NO_CLIENT, ino).is_empty() {
        let needs = [Need { ino, take: Rights::all(), range: None }];
        let gates = crate::recall::recall(server, NO_CLIENT, &needs, None).await;
        server.leases.borrow_mut().drop_inode(ino);
        server.lease_events.notify_all();
        drop(gates);
    }
    loop {
        let step = server.mfs.run(Cost::STEP, |txn| txn.free_inode_step(ino, SEGMENTS)).await;
        match server.checked(step, "freeing an inode") {
            Some((false, _)) => {}
            Some((true, _)) | None => return,
        }
    }
}

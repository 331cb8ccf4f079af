//! Inodes without a name: kept while someone has them open, then freed in steps. (Small ones that
//! nobody uses never come here: they go with their names, [`crate::ops`].)
//!
//! Invariants:
//! - an inode is freed only when nobody holds any right on it; it is hidden from
//!   all operations from the moment that is decided;
//! - who has such an inode open knows that this is wanted back: whoever got the right after the
//!   others were asked about it, before the name was taken away, is asked then, and who gets it
//!   later, right after: the answer that tells of the right may come to nobody, as that to a
//!   request that was sent again and had been answered. So is who has removed a directory, and
//!   found it before: it gives nothing back unasked;
//! - after a restart nothing is freed before the grace has ended.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use env::sync::Notify;
use store::Cost;
use types::{Bug, ClientId, HashSet, Ino, Rights, planted};

use crate::cx::Need;
use crate::ops::READ;
use crate::server::Server;

/// Segments freed by one transaction.
const SEGMENTS: usize = 64;
/// No client.
pub const NOBODY: ClientId = ClientId(0);
/// Orphans looked up at once after a restart.
const BATCH: usize = 256;

/// See the module.
#[derive(Default)]
pub struct Freer {
    open: RefCell<HashSet<Ino>>,
    doomed: RefCell<HashSet<Ino>>,
    queue: RefCell<VecDeque<Ino>>,
    wake: Notify,
    idle: Notify,
    allowed: Cell<bool>,
}

impl Freer {
    /// Is the inode on its way out?
    pub fn is_freeing(&self, ino: Ino) -> bool {
        let doomed = self.doomed.borrow();
        !doomed.is_empty() && doomed.contains(&ino)
    }

    /// Is any inode without a name that somebody has open one of these?
    pub fn is_any_nameless(&self, which: impl FnMut(Ino) -> bool) -> bool {
        self.open.borrow().iter().copied().any(which)
    }

    /// May inodes be freed: has everybody who had one open before a restart come back?
    pub fn is_allowed(&self) -> bool {
        self.allowed.get()
    }

    /// Inodes without a name that are open somewhere, and those being freed.
    pub fn counts(&self) -> (usize, usize) {
        (self.open.borrow().len(), self.doomed.borrow().len())
    }

    /// The inode has lost its last name, which this client knows; it gives the inode back unasked.
    pub fn nameless(&self, server: &Server, client: ClientId, ino: Ino) {
        self.open.borrow_mut().insert(ino);
        self.consider(server, ino);
        if self.allowed.get() && !self.is_freeing(ino) {
            let recalls = server.leases.borrow_mut().recall_open(client, ino);
            recalls.into_iter().for_each(|recall| server.push_recall(recall));
        }
    }

    /// The client has just been given `OPEN` on the inode. If it has no name, that is wanted back.
    pub fn opened(&self, server: &Server, client: ClientId, ino: Ino) {
        if !self.allowed.get() || !self.open.borrow().contains(&ino) {
            return;
        }
        let recall = server.leases.borrow_mut().recall_of(client, ino, Rights::OPEN);
        recall.into_iter().for_each(|recall| server.push_recall(recall));
    }

    /// The inode has a name again.
    pub fn named(&self, ino: Ino) {
        self.open.borrow_mut().remove(&ino);
    }

    /// Someone gave up `OPEN` on the inode.
    pub fn consider(&self, server: &Server, ino: Ino) {
        if !self.allowed.get() || !self.open.borrow().contains(&ino) {
            return;
        }
        let open = server.leases.borrow().any_holder(ino, Rights::OPEN);
        if open && !planted(Bug::OrphanFreedOpen) {
            return;
        }
        self.open.borrow_mut().remove(&ino);
        self.doomed.borrow_mut().insert(ino);
        self.queue.borrow_mut().push_back(ino);
        self.wake.notify_all();
    }

    /// The server stops.
    pub fn stop(&self) {
        self.wake.notify_all();
    }

    /// Waits until what is being freed now is freed.
    pub async fn drained(&self) {
        loop {
            let notified = self.idle.notified();
            if self.doomed.borrow().is_empty() {
                return;
            }
            notified.await;
        }
    }
}

/// Finds the orphans that are left from before the restart; from now on orphans are freed.
pub async fn begin(server: &Rc<Server>) {
    server.freer.allowed.set(true);
    let open: Vec<Ino> = server.freer.open.borrow().iter().copied().collect();
    for ino in open {
        server.freer.consider(server, ino);
    }
    let mut after = Ino::NONE;
    loop {
        let found = server.mfs.run(READ, |txn| txn.orphans(after, BATCH)).await;
        let Some((found, _)) = server.checked(found, "looking for orphans") else { return };
        let Some(&last) = found.last() else { return };
        for ino in found {
            if !server.freer.is_freeing(ino) {
                server.freer.nameless(server, NOBODY, ino);
            }
        }
        after = last;
    }
}

/// Frees what is doomed, until the server stops.
pub async fn run(server: Rc<Server>) {
    loop {
        let notified = server.freer.wake.notified();
        let next = server.freer.queue.borrow_mut().pop_front();
        if server.is_stopping() {
            return;
        }
        let Some(ino) = next else {
            server.freer.idle.notify_all();
            notified.await;
            continue;
        };
        free(&server, ino).await;
        server.freer.doomed.borrow_mut().remove(&ino);
    }
}

async fn free(server: &Rc<Server>, ino: Ino) {
    if !server.leases.borrow().others(NOBODY, ino).is_empty() {
        let needs = [Need { ino, take: Rights::all(), part: None }];
        let gates = crate::recall::recall(server, NOBODY, &needs, None).await;
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

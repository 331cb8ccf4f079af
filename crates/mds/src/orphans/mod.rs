//! Orphans: the server keeps inodes without a name while a client has them open, then the reaper
//! frees them in steps. (Small files that nobody uses never come here: the operation that removes
//! their last name frees them, too.)
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

mod reaper;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use env::sync::Notify;
use types::{Bug, ClientId, HashSet, Ino, Rights, planted};

pub use self::reaper::run;
use crate::leases::{Leases, NO_CLIENT};
use crate::runtime::Runtime;

/// See the module.
pub struct Orphans {
    runtime: Rc<Runtime>,
    leases: Rc<Leases>,
    /// Orphans that a client has open; before the end of grace, all that are known.
    orphans: RefCell<HashSet<Ino>>,
    freeing: RefCell<HashSet<Ino>>,
    /// Those of `freeing` that the reaper has not begun with.
    queue: RefCell<VecDeque<Ino>>,
    /// Those that a joint operation has made, and that it will give a name.
    held: RefCell<HashSet<Ino>>,
    wake: Notify,
    idle: Notify,
    allowed: Cell<bool>,
}

impl Orphans {
    /// No orphans are known yet, and none may be freed.
    pub fn new(runtime: Rc<Runtime>, leases: Rc<Leases>) -> Orphans {
        Orphans {
            runtime,
            leases,
            orphans: RefCell::default(),
            freeing: RefCell::default(),
            queue: RefCell::default(),
            held: RefCell::default(),
            wake: Notify::new(),
            idle: Notify::new(),
            allowed: Cell::new(false),
        }
    }

    /// Is the inode being freed?
    pub fn is_freeing(&self, ino: Ino) -> bool {
        let freeing = self.freeing.borrow();
        !freeing.is_empty() && freeing.contains(&ino)
    }

    /// Has the client an orphan open?
    pub fn any_open_by(&self, client: ClientId) -> bool {
        let leases = self.leases.table();
        let open = |ino: &Ino| leases.rights(client, *ino).contains(Rights::OPEN);
        self.orphans.borrow().iter().any(open)
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
    pub fn orphaned(&self, client: ClientId, ino: Ino) {
        self.orphans.borrow_mut().insert(ino);
        self.free_if_closed(ino);
        if self.allowed.get() && !self.is_freeing(ino) {
            self.leases.recall_open(client, ino);
        }
    }

    /// The client has just been granted `OPEN` on the inode. If it is an orphan, recalls that.
    pub fn open_granted(&self, client: ClientId, ino: Ino) {
        if !self.allowed.get() || !self.orphans.borrow().contains(&ino) {
            return;
        }
        self.leases.recall_open_of(client, ino);
    }

    /// A joint operation has made the inode, and will give it a name: it is not freed.
    pub fn hold(&self, ino: Ino) {
        self.held.borrow_mut().insert(ino);
    }

    /// The inode that was held has its name.
    pub fn unhold(&self, ino: Ino) {
        self.held.borrow_mut().remove(&ino);
    }

    /// The inode that was held gets no name: it is an orphan as others are.
    pub fn release(&self, ino: Ino) {
        self.unhold(ino);
        self.orphaned(NO_CLIENT, ino);
    }

    /// The inode has a name again.
    pub fn relinked(&self, ino: Ino) {
        self.orphans.borrow_mut().remove(&ino);
    }

    /// Frees the inode if it is an orphan and nobody holds `OPEN` on it any more.
    pub fn free_if_closed(&self, ino: Ino) {
        if !self.allowed.get() || !self.orphans.borrow().contains(&ino) {
            return;
        }
        let open = self.leases.table().any_holder(ino, Rights::OPEN);
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

    /// Checks the invariants.
    pub fn validate(&self) {
        let (orphans, freeing) = (self.orphans.borrow(), self.freeing.borrow());
        for ino in &*self.queue.borrow() {
            assert!(freeing.contains(ino), "the reaper's queue holds inode {ino}, which is kept");
        }
        assert!(self.allowed.get() || freeing.is_empty(), "an orphan is freed during grace");
        let leases = self.leases.table();
        for &ino in &*orphans {
            assert!(!freeing.contains(&ino), "orphan {ino} is kept and freed");
            let open = leases.any_holder(ino, Rights::OPEN);
            assert!(open || !self.allowed.get(), "nobody has orphan {ino} open, and it is kept");
        }
    }
}

//! Orphans that stay open for the kernel, which may still open them.
//!
//! The kernel opens an inode by its number: after it has found it by name, or through a descriptor
//! that no OPEN reports (`O_PATH`). Both may come after the last name is gone. Only FORGET says
//! that neither will come.
//!
//! Invariants:
//! - while the kernel knows an inode that is no directory, the client does not return `OPEN`; it
//!   owes it until the kernel has forgotten the inode. A kernel that cannot be asked to drop unused
//!   names keeps inodes for long. With such a kernel the client keeps `OPEN` for a second after the
//!   inode was found by name;
//! - a lookup counts from its beginning until its reply is applied: what it may find is kept;
//! - for an inode whose `OPEN` is owed there is a task that returns it, unless the inode is open:
//!   then the last close returns it;
//! - this client does not give an inode up with its last name while a thread other than the one
//!   that removes it may still open it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::Notify;
use types::{Duration, FileKind, Ino, Name, Rights};

use crate::api::Place;
use crate::core::Core;
use crate::inode::{Inode, InodePin};

/// How long a recall waits for the kernel to forget an inode. The client that removes the file
/// waits with it.
const RECALL_WAIT: Duration = Duration::from_millis(5);
/// How long a kernel takes to forget what it has just closed or removed, if it does so unasked.
const FORGET_DELAY: Duration = Duration::from_millis(1);
/// How long a client without space waits for the return of files that the kernel may be about to
/// forget.
const RECLAIM_WAIT: Duration = Duration::from_millis(20);
/// How long the kernel may keep what it was asked to drop before it is asked again: at first, and
/// at most. A process may keep a descriptor for days.
const PRUNE_RETRY: Duration = Duration::from_millis(20);
const PRUNE_RETRY_MAX: Duration = Duration::from_secs(1);

/// Inodes whose owed `OPEN` a task returns.
#[derive(Default)]
pub(crate) struct Lingering {
    inodes: RefCell<BTreeMap<Ino, Rc<Inode>>>,
    returned: Notify,
    /// Wakes tasks that wait until the kernel has forgotten an inode.
    forgets: RefCell<BTreeMap<Ino, Notify>>,
}

/// Lookups whose replies are not applied yet.
#[derive(Default)]
pub(crate) struct Lookups {
    /// The names that are looked up, by number of the lookup.
    pending: RefCell<BTreeMap<u64, (Ino, Name)>>,
    last: Cell<u64>,
    ended: Notify,
}

/// A lookup; it ends when this is dropped.
pub(crate) struct PendingLookup {
    lookups: Rc<Lookups>,
    number: u64,
}

impl Drop for PendingLookup {
    fn drop(&mut self) {
        self.lookups.pending.borrow_mut().remove(&self.number);
        self.lookups.ended.notify_all();
    }
}

impl Lookups {
    /// A lookup of `name` begins.
    pub fn begin(self: &Rc<Self>, dir: Ino, name: &Name) -> PendingLookup {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.pending.borrow_mut().insert(number, (dir, name.clone()));
        PendingLookup { lookups: self.clone(), number }
    }

    /// Is this name being looked up?
    fn includes(&self, place: Place<'_>) -> bool {
        self.pending.borrow().values().any(|(dir, name)| *dir == place.dir && name == place.name)
    }

    /// Is any lookup up to this number pending?
    fn is_pending(&self, upto: u64) -> bool {
        self.pending.borrow().first_key_value().is_some_and(|(first, _)| *first <= upto)
    }

    /// Waits until all lookups up to this number have finished.
    async fn finished(&self, upto: u64) {
        loop {
            let ended = self.ended.notified();
            if !self.is_pending(upto) {
                return;
            }
            ended.await;
        }
    }
}

impl Core {
    /// Does the kernel report, by FORGET, that nothing uses the inode any more?
    fn kernel_reports_forget(&self, inode: &Inode) -> bool {
        self.kernel.prunes() && inode.kind() != FileKind::Directory
    }

    /// Is the inode open, or may the kernel use it without having reported the opposite?
    pub(crate) fn is_used(&self, inode: &Inode) -> bool {
        let known = inode.is_known_to_kernel() && !inode.is_lost();
        inode.opens() > 0 || known && self.kernel_reports_forget(inode)
    }

    /// Is it used, or may the kernel still open it?
    fn may_be_opened(&self, inode: &Inode) -> bool {
        let known = inode.is_known_to_kernel() && !inode.is_lost();
        self.is_used(inode) || known && self.env.now() < inode.may_be_opened_until()
    }

    /// Asks the kernel to drop unused names of the inode.
    async fn prune(&self, inode: &Inode) {
        if inode.opens() == 0 && self.kernel_reports_forget(inode) {
            self.kernel.prune(inode.ino).await;
        }
    }

    /// `OPEN` on the inode is recalled. May something here still open it?
    pub(crate) async fn stays_open(self: &Rc<Self>, inode: &Rc<Inode>) -> bool {
        let upto = self.lookups.last.get();
        let reports = self.kernel_reports_forget(inode);
        if reports
            && inode.opens() == 0
            && (self.lookups.is_pending(upto) || self.may_be_opened(inode))
        {
            let (core, of) = (self.clone(), inode.clone());
            self.env.spawn(async move { core.prune(&of).await });
            let released = async {
                self.lookups.finished(upto).await;
                self.wait_forgotten(inode).await;
            };
            self.env.timeout(RECALL_WAIT, released).await;
        }
        let held = inode.holds(Rights::OPEN) && self.may_be_opened(inode);
        held || inode.opens() > 0 || self.lookups.is_pending(upto)
    }

    /// Waits until the kernel has forgotten the inode.
    async fn wait_forgotten(&self, inode: &Inode) {
        while inode.is_known_to_kernel() {
            let waiting = self.lingering.forgets.borrow_mut().entry(inode.ino).or_default().clone();
            let forgotten = waiting.notified();
            forgotten.await;
        }
    }

    /// The kernel has forgotten the inode: wakes the tasks that wait for that.
    pub(crate) fn kernel_forgot(&self, ino: Ino) {
        let waiting = self.lingering.forgets.borrow_mut().remove(&ino);
        if let Some(waiting) = waiting {
            waiting.notify_all();
        }
    }

    /// Returns an owed `OPEN` as soon as nothing here may open the inode any more.
    pub(crate) fn schedule_open_return(&self, inode: &Rc<Inode>) {
        let Some(core) = self.me.upgrade() else { return };
        if inode.opens() > 0 || !inode.owes_open() || self.has_return_task(inode.ino) {
            return;
        }
        self.lingering.inodes.borrow_mut().insert(inode.ino, inode.clone());
        let inode = inode.clone();
        let upto = self.lookups.last.get();
        let pin = InodePin::new(&inode);
        self.env.spawn(async move {
            core.lookups.finished(upto).await;
            core.return_open_when_unused(&inode).await;
            core.lingering.inodes.borrow_mut().remove(&inode.ino);
            core.lingering.returned.notify_all();
            core.inodes.unpin(pin);
        });
    }

    fn has_return_task(&self, ino: Ino) -> bool {
        self.lingering.inodes.borrow().contains_key(&ino)
    }

    /// The last descriptor of the inode was closed. If `OPEN` is owed and nothing may open the
    /// inode any more, it is returned when this ends.
    pub(crate) async fn last_handle_closed(&self, inode: &Rc<Inode>) {
        if inode.server_attr().nlink == 0 {
            inode.owe_open();
        }
        let may_be_found = self.lookups.is_pending(self.lookups.last.get());
        let at_once = !self.is_used(inode) && !may_be_found && !self.has_return_task(inode.ino);
        if at_once && inode.take_owed_open() && self.last_close(inode).await.is_err() {
            // The server could not be asked: `OPEN` is owed until the next last close.
            return;
        }
        self.schedule_open_return(inode);
    }

    /// Space is short: asks the kernel to drop inodes that it does not use, and waits briefly until
    /// these are returned. `false`: there are none.
    pub(crate) async fn reclaim_lingering(&self) -> bool {
        let owed: Vec<Rc<Inode>> = self.lingering.inodes.borrow().values().cloned().collect();
        let given_back = async {
            for inode in &owed {
                self.prune(inode).await;
            }
            loop {
                let returned = self.lingering.returned.notified();
                if !owed.iter().any(|inode| inode.opens() == 0 && self.has_return_task(inode.ino)) {
                    return;
                }
                returned.await;
            }
        };
        if !owed.is_empty() {
            self.env.timeout(RECLAIM_WAIT, given_back).await;
        }
        !owed.is_empty()
    }

    async fn return_open_when_unused(&self, inode: &Rc<Inode>) {
        let mut pause = FORGET_DELAY;
        while inode.opens() == 0 && inode.owes_open() && !self.rpc.is_closed() {
            if !self.may_be_opened(inode) {
                inode.take_owed_open();
                if self.last_close(inode).await.is_err() {
                    // It is still owed: the next last close tries again.
                    return;
                }
                continue;
            }
            if self.kernel_reports_forget(inode) {
                self.env.timeout(pause, self.wait_forgotten(inode)).await;
                if self.may_be_opened(inode) {
                    self.prune(inode).await;
                }
                pause = (pause * 2).clamp(PRUNE_RETRY, PRUNE_RETRY_MAX);
            } else {
                self.env.sleep_until(inode.may_be_opened_until()).await;
            }
        }
    }

    /// May a thread other than `pid` still open the inode, whose only name is `place`?
    pub(crate) fn may_be_opened_by_others(
        &self,
        inode: &Inode,
        place: Place<'_>,
        pid: u32,
    ) -> bool {
        self.lookups.includes(place)
            || inode.is_known_to_kernel()
                && (inode.was_opened() || self.env.now() < inode.may_be_opened_by_others_until(pid))
    }
}

//! Inodes that are kept beyond their last name because the kernel may still open them.
//!
//! The kernel asks for an inode by its number: after it has found it by name, or through a
//! descriptor that no OPEN tells of (`O_PATH`). Both may come after the last name has gone. What
//! says that nothing of the kind will come is FORGET.
//!
//! Invariants:
//! - while the kernel knows an inode that is no directory, `OPEN` is not given back; it is owed
//!   until the kernel has forgotten the inode. A kernel that cannot be asked to drop unused names
//!   keeps what it knows for long: there `OPEN` is kept for a second after the inode was found by
//!   name;
//! - a lookup counts from its beginning until its answer is told: what it may find is kept;
//! - an inode whose `OPEN` is owed has a task that sees to its return, unless it is open: then the
//!   last close sees to it;
//! - this client does not give an inode up with its last name while another thread than the one
//!   that removes it may be on its way there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::Notify;
use types::{Duration, FileKind, Ino, Name, Rights};

use crate::api::Place;
use crate::core::Core;
use crate::inode::{Inode, InodePin};

/// How long a recall waits for the kernel to forget an inode. Who removes the file waits with it.
const RECALL_WAIT: Duration = Duration::from_millis(5);
/// How long a kernel takes to forget what it has just closed or removed, if it forgets it unasked.
const FORGET_DELAY: Duration = Duration::from_millis(1);
/// How long who lacks space waits for files to be given back that the kernel may be about to
/// forget.
const RECLAIM_WAIT: Duration = Duration::from_millis(20);
/// How long the kernel may still hold what it was asked to drop before it is asked again: at first,
/// and at most. A process may keep a descriptor for days.
const PRUNE_RETRY: Duration = Duration::from_millis(20);
const PRUNE_RETRY_MAX: Duration = Duration::from_secs(1);

/// Inodes of which an owed `OPEN` is seen to.
#[derive(Default)]
pub(crate) struct Lingering {
    inodes: RefCell<BTreeMap<Ino, Rc<Inode>>>,
    returned: Notify,
    /// Wakes who waits until the kernel has forgotten an inode.
    forgets: RefCell<BTreeMap<Ino, Notify>>,
}

/// Lookups whose answers are not told yet.
#[derive(Default)]
pub(crate) struct Lookups {
    /// By number: the names that are looked for.
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

    /// Is any lookup up to this number not told yet?
    fn is_pending(&self, upto: u64) -> bool {
        self.pending.borrow().first_key_value().is_some_and(|(first, _)| *first <= upto)
    }

    /// Ends when all lookups up to this number have been told.
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
    /// Does the kernel tell, by FORGET, that nothing uses the inode any more?
    fn kernel_reports_forget(&self, inode: &Inode) -> bool {
        self.kernel.prunes() && inode.kind() != FileKind::Directory
    }

    /// Is the inode open, or has the kernel not told that nothing uses it?
    pub(crate) fn is_used(&self, inode: &Inode) -> bool {
        let known = inode.is_known_to_kernel() && !inode.is_lost();
        inode.opens() > 0 || known && self.kernel_reports_forget(inode)
    }

    /// Is it used, or may the kernel be on its way to open it?
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

    /// `OPEN` on the inode is asked back. May something here still open it?
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

    /// Ends when the kernel has forgotten the inode.
    async fn wait_forgotten(&self, inode: &Inode) {
        while inode.is_known_to_kernel() {
            let waiting = self.lingering.forgets.borrow_mut().entry(inode.ino).or_default().clone();
            let forgotten = waiting.notified();
            forgotten.await;
        }
    }

    /// The kernel has forgotten the inode.
    pub(crate) fn kernel_forgot(&self, ino: Ino) {
        let waiting = self.lingering.forgets.borrow_mut().remove(&ino);
        if let Some(waiting) = waiting {
            waiting.notify_all();
        }
    }

    /// `OPEN` is owed: gives it back as soon as nothing here may open the inode any more.
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

    /// The last descriptor of the inode was closed. What is owed, and nothing may open any more, is
    /// given back when this ends.
    pub(crate) async fn last_handle_closed(&self, inode: &Rc<Inode>) {
        if inode.server_attr().nlink == 0 {
            inode.owe_open();
        }
        let may_be_found = self.lookups.is_pending(self.lookups.last.get());
        let at_once = !self.is_used(inode) && !may_be_found && !self.has_return_task(inode.ino);
        if at_once && inode.take_owed_open() && self.last_close(inode).await.is_err() {
            // What the server could not be asked for is owed until it is closed once more.
            return;
        }
        self.schedule_open_return(inode);
    }

    /// Space is short: has the kernel drop what it does not use, and waits, not for long, until
    /// that is given back. `false`: there is nothing of the kind.
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
        while inode.opens() == 0 && inode.owes_open() && !self.session.is_closed() {
            if !self.may_be_opened(inode) {
                inode.take_owed_open();
                if self.last_close(inode).await.is_err() {
                    // It is owed still: the next last close tries again.
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

    /// May another thread than `pid` be on its way to the inode, which has the one name `place`?
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

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
use crate::inode::{Inode, Stays};

/// How long a recall waits for the kernel to forget an inode. Who removes the file waits with it.
const RECALL_WAITS: Duration = Duration::from_millis(5);
/// How long a kernel takes to forget what it has just closed or removed, if it forgets it unasked.
const UNASKED: Duration = Duration::from_millis(1);
/// How long who lacks space waits for files to be given back that the kernel may be about to
/// forget.
const HURRY: Duration = Duration::from_millis(20);
/// How long the kernel may still hold what it was asked to drop before it is asked again: at first,
/// and at most. A process may keep a descriptor for days.
const ASKED_AGAIN: Duration = Duration::from_millis(20);
const ASKED_AGAIN_MAX: Duration = Duration::from_secs(1);

/// Inodes of which an owed `OPEN` is seen to.
#[derive(Default)]
pub(crate) struct Lingering {
    inodes: RefCell<BTreeMap<Ino, Rc<Inode>>>,
    settled: Notify,
    /// Wakes who waits until the kernel has forgotten an inode.
    forgets: RefCell<BTreeMap<Ino, Notify>>,
}

/// Lookups whose answers are not told yet.
#[derive(Default)]
pub(crate) struct Finds {
    /// By number: the names that are looked for.
    sought: RefCell<BTreeMap<u64, (Ino, Name)>>,
    last: Cell<u64>,
    ended: Notify,
}

/// A lookup; it ends when this is dropped.
pub(crate) struct Find {
    finds: Rc<Finds>,
    number: u64,
}

impl Drop for Find {
    fn drop(&mut self) {
        self.finds.sought.borrow_mut().remove(&self.number);
        self.finds.ended.notify_all();
    }
}

impl Finds {
    /// A lookup of `name` begins.
    pub fn begin(self: &Rc<Self>, dir: Ino, name: &Name) -> Find {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.sought.borrow_mut().insert(number, (dir, name.clone()));
        Find { finds: self.clone(), number }
    }

    /// Is this name being looked up?
    fn seeks(&self, place: Place<'_>) -> bool {
        self.sought.borrow().values().any(|(dir, name)| *dir == place.dir && name == place.name)
    }

    /// Is any lookup up to this number not told yet?
    fn is_pending(&self, upto: u64) -> bool {
        self.sought.borrow().first_key_value().is_some_and(|(first, _)| *first <= upto)
    }

    /// Ends when all lookups up to this number have been told.
    async fn told(&self, upto: u64) {
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
    fn is_told_of(&self, inode: &Inode) -> bool {
        self.kernel.prunes() && inode.kind() != FileKind::Directory
    }

    /// Is the inode open, or has the kernel not told that nothing uses it?
    pub(crate) fn is_used(&self, inode: &Inode) -> bool {
        let known = inode.is_known_to_kernel() && !inode.is_lost();
        inode.opens() > 0 || known && self.is_told_of(inode)
    }

    /// Is it used, or may the kernel be on its way to open it?
    fn is_held(&self, inode: &Inode) -> bool {
        let known = inode.is_known_to_kernel() && !inode.is_lost();
        self.is_used(inode) || known && self.env.now() < inode.awaited_until()
    }

    /// Asks the kernel to drop unused names of the inode.
    async fn prune(&self, inode: &Inode) {
        if inode.opens() == 0 && self.is_told_of(inode) {
            self.kernel.prune(inode.ino).await;
        }
    }

    /// `OPEN` on the inode is asked back. May something here still open it?
    pub(crate) async fn stays_open(self: &Rc<Self>, inode: &Rc<Inode>) -> bool {
        let upto = self.finds.last.get();
        let tells = self.is_told_of(inode);
        if tells && inode.opens() == 0 && (self.finds.is_pending(upto) || self.is_held(inode)) {
            let (core, of) = (self.clone(), inode.clone());
            self.env.spawn(async move { core.prune(&of).await });
            let let_go = async {
                self.finds.told(upto).await;
                self.forgotten(inode).await;
            };
            self.env.timeout(RECALL_WAITS, let_go).await;
        }
        let held = inode.holds(Rights::OPEN) && self.is_held(inode);
        held || inode.opens() > 0 || self.finds.is_pending(upto)
    }

    /// Ends when the kernel has forgotten the inode.
    async fn forgotten(&self, inode: &Inode) {
        while inode.is_known_to_kernel() {
            let waiting = self.lingering.forgets.borrow_mut().entry(inode.ino).or_default().clone();
            let forgotten = waiting.notified();
            forgotten.await;
        }
    }

    /// The kernel has forgotten the inode.
    pub(crate) fn is_forgotten(&self, ino: Ino) {
        let waiting = self.lingering.forgets.borrow_mut().remove(&ino);
        if let Some(waiting) = waiting {
            waiting.notify_all();
        }
    }

    /// `OPEN` is owed: gives it back as soon as nothing here may open the inode any more.
    pub(crate) fn see_to_open(&self, inode: &Rc<Inode>) {
        let Some(core) = self.me.upgrade() else { return };
        if inode.opens() > 0 || !inode.owes_open() || self.is_seen_to(inode.ino) {
            return;
        }
        self.lingering.inodes.borrow_mut().insert(inode.ino, inode.clone());
        let inode = inode.clone();
        let upto = self.finds.last.get();
        let stays = Stays::known(&inode);
        self.env.spawn(async move {
            core.finds.told(upto).await;
            core.let_go(&inode).await;
            core.lingering.inodes.borrow_mut().remove(&inode.ino);
            core.lingering.settled.notify_all();
            core.inodes.stayed(stays);
        });
    }

    fn is_seen_to(&self, ino: Ino) -> bool {
        self.lingering.inodes.borrow().contains_key(&ino)
    }

    /// The last descriptor of the inode was closed. What is owed, and nothing may open any more, is
    /// given back when this ends.
    pub(crate) async fn closed_last(&self, inode: &Rc<Inode>) {
        if inode.server_attr().nlink == 0 {
            inode.owe_open();
        }
        let may_be_found = self.finds.is_pending(self.finds.last.get());
        let at_once = !self.is_used(inode) && !may_be_found && !self.is_seen_to(inode.ino);
        if at_once && inode.take_owed_open() && self.last_close(inode).await.is_err() {
            // What the server could not be asked for is owed until it is closed once more.
            return;
        }
        self.see_to_open(inode);
    }

    /// Space is short: has the kernel drop what it does not use, and waits, not for long, until
    /// that is given back. `false`: there is nothing of the kind.
    pub(crate) async fn hurry(&self) -> bool {
        let owed: Vec<Rc<Inode>> = self.lingering.inodes.borrow().values().cloned().collect();
        let given_back = async {
            for inode in &owed {
                self.prune(inode).await;
            }
            loop {
                let settled = self.lingering.settled.notified();
                if !owed.iter().any(|inode| inode.opens() == 0 && self.is_seen_to(inode.ino)) {
                    return;
                }
                settled.await;
            }
        };
        if !owed.is_empty() {
            self.env.timeout(HURRY, given_back).await;
        }
        !owed.is_empty()
    }

    async fn let_go(&self, inode: &Rc<Inode>) {
        let mut pause = UNASKED;
        while inode.opens() == 0 && inode.owes_open() && !self.session.is_closed() {
            if !self.is_held(inode) {
                inode.take_owed_open();
                if self.last_close(inode).await.is_err() {
                    // It is owed still: the next last close tries again.
                    return;
                }
                continue;
            }
            if self.is_told_of(inode) {
                self.env.timeout(pause, self.forgotten(inode)).await;
                if self.is_held(inode) {
                    self.prune(inode).await;
                }
                pause = (pause * 2).clamp(ASKED_AGAIN, ASKED_AGAIN_MAX);
            } else {
                self.env.sleep_until(inode.awaited_until()).await;
            }
        }
    }

    /// May another thread than `pid` be on its way to the inode, which has the one name `place`?
    pub(crate) fn is_sought_by_others(&self, inode: &Inode, place: Place<'_>, pid: u32) -> bool {
        self.finds.seeks(place)
            || inode.is_known_to_kernel()
                && (inode.was_opened() || self.env.now() < inode.awaited_by_others_until(pid))
    }
}

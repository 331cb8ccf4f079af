//! Recalls, and answers to removals, that overtake the answer that first tells of their inode.
//!
//! The answer to who makes a file may wait for the server's log, while another client takes the
//! name away and the server asks for the rights that went with it. A name may have been found when
//! another process of this client takes it away, and that answer comes first.
//!
//! Invariants:
//! - such a recall is answered at once; what it took does not come with the answer that it
//!   overtook;
//! - what is removed is known until everything that was under way is answered, so that older
//!   attributes are not believed, nor rights that went with the removal;
//! - `OPEN` is kept until everything that was under way is answered: the file may be open then.

use std::cell::RefCell;
use std::rc::Rc;

use types::{Attr, BlockRange, HashMap, Ino, Rights};

use crate::core::Core;
use crate::inode::{Inode, InodePin};

/// What was taken of an inode that is not known.
#[derive(Clone, Copy, Default)]
struct RecalledRights {
    seq: u64,
    rights: Rights,
    /// Number of the next request then.
    order: u64,
    owes_open: bool,
}

/// All of them, while requests are under way that may tell of their inodes.
#[derive(Default)]
pub(crate) struct EarlyRecalls(RefCell<HashMap<Ino, RecalledRights>>);

impl EarlyRecalls {
    /// The sequences of leases begin anew, or the session is over.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    fn note(&self, ino: Ino, recalled: RecalledRights) {
        let mut all = self.0.borrow_mut();
        let known = all.entry(ino).or_default();
        known.seq = known.seq.max(recalled.seq);
        known.rights |= recalled.rights;
        known.order = recalled.order;
        known.owes_open |= recalled.owes_open;
    }

    fn take(&self, ino: Ino) -> Option<RecalledRights> {
        self.0.borrow_mut().remove(&ino)
    }

    /// What was taken, if this is its newest recall.
    fn take_of(&self, ino: Ino, seq: u64) -> Option<RecalledRights> {
        let mut all = self.0.borrow_mut();
        all.get(&ino)
            .is_some_and(|recalled| recalled.seq == seq)
            .then(|| all.remove(&ino))
            .flatten()
    }

    fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

impl Core {
    /// A recall of an inode that is not known here.
    pub(crate) fn recall_unknown_inode(
        self: &Rc<Self>,
        (ino, seq): (Ino, u64),
        take: Rights,
        part: Option<BlockRange>,
    ) {
        let core = self.clone();
        if self.session.is_idle() {
            self.env.spawn(async move { core.give_back((ino, seq), take, false, part).await });
            return;
        }
        let owes_open = take.contains(Rights::OPEN);
        let rights = take - Rights::OPEN;
        self.early_recalls
            .note(ino, RecalledRights { seq, rights, order: self.session.order(), owes_open });
        self.env.spawn(async move {
            core.give_back((ino, seq), rights, owes_open, part).await;
            core.session.barrier().await;
            match core.inodes.get(ino) {
                Some(inode) => core.schedule_open_return(&inode),
                // An answer may have told of it, and it was forgotten since, with what it owed. The
                // newest recall ends it: the server takes nothing back under an older sequence.
                None if owes_open => {
                    // What was asked for since may be told of it under this sequence.
                    core.early_recalls.take_of(ino, seq);
                    let (rights, order) = (Rights::OPEN, core.session.order());
                    core.early_recalls
                        .note(ino, RecalledRights { seq, rights, order, owes_open: false });
                    core.give_back((ino, seq), rights, false, None).await;
                    core.session.barrier().await;
                    core.early_recalls.take_of(ino, seq);
                }
                None => {}
            }
        });
    }

    /// The inode that a reply tells of, known at least until everything is answered that is under
    /// way.
    pub(crate) fn upsert_inode_until_barrier(&self, attr: &Attr) -> Rc<Inode> {
        let inode = self.upsert_inode(attr);
        if let Some(core) = self.me.upgrade() {
            let pin = InodePin::new(&inode);
            self.env.spawn(async move {
                core.session.barrier().await;
                core.inodes.unpin(pin);
            });
        }
        inode
    }

    /// The inode that a reply tells of, known from now on, without what was taken before it was
    /// known.
    pub(crate) fn upsert_inode(&self, attr: &Attr) -> Rc<Inode> {
        let inode = self.inodes.get_or_insert(attr);
        if !self.early_recalls.is_empty()
            && let Some(recalled) = self.early_recalls.take(attr.ino)
        {
            inode.lease(|lease| lease.recalled(recalled.seq, recalled.rights));
            inode.give_up(recalled.rights, recalled.order);
            if recalled.owes_open {
                inode.owe_open();
            }
        }
        inode
    }
}

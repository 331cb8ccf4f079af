//! Recalls, and replies to removals, that overtake the first reply about their inode.
//!
//! The reply to the client that creates a file may wait for the server's log. Meanwhile another
//! client may remove the name, and the server recalls the rights that went with it. Likewise, a
//! lookup may have found a name when another process of this client removes it, and the reply to
//! the removal comes first.
//!
//! Invariants:
//! - the client answers such a recall at once; the overtaken reply does not grant what the recall
//!   took. Only replies of the inode's own server count: no other grants anything on it;
//! - a removed inode stays in the table until all requests in flight are answered. So older
//!   attributes are not believed, nor rights that went with the removal;
//! - `OPEN` is kept until all requests in flight are answered: the file may be open then.

use std::cell::RefCell;
use std::rc::Rc;

use types::{Attr, BlockRange, HashMap, Ino, Rights, ServerId};

use crate::core::Core;
use crate::inode::{Inode, InodePin};

/// What was recalled of an inode that the client does not know.
#[derive(Clone, Copy, Default)]
struct RecalledRights {
    seq: u64,
    rights: Rights,
    /// Number of the next request at the time of the recall.
    order: u64,
    owes_open: bool,
}

/// The early recalls, while requests are in flight whose replies may describe their inodes.
#[derive(Default)]
pub(crate) struct EarlyRecalls(RefCell<HashMap<Ino, RecalledRights>>);

impl EarlyRecalls {
    /// Forgets those of a session: the sequences of leases start again, or it is over.
    pub fn forget(&self, of_session: impl Fn(Ino) -> bool) {
        self.0.borrow_mut().retain(|ino, _| !of_session(*ino));
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

    /// What was recalled, if `seq` is the newest recall of the inode.
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
    /// Handles a recall of an inode that the client does not know.
    pub(crate) fn recall_unknown_inode(
        self: &Rc<Self>,
        server: ServerId,
        (ino, seq): (Ino, u64),
        take: Rights,
        part: Option<BlockRange>,
    ) {
        let core = self.clone();
        if self.rpc.server_of(ino) != server || self.rpc.of(ino).is_idle() {
            self.env
                .spawn(async move { core.give_back(server, (ino, seq), take, false, part).await });
            return;
        }
        let owes_open = take.contains(Rights::OPEN);
        let rights = take - Rights::OPEN;
        self.early_recalls
            .note(ino, RecalledRights { seq, rights, order: self.rpc.order(), owes_open });
        self.env.spawn(async move {
            core.give_back(server, (ino, seq), rights, owes_open, part).await;
            core.rpc.of(ino).barrier().await;
            match core.inodes.get(ino) {
                Some(inode) => core.schedule_open_return(&inode),
                // A reply may have brought the inode, and the client may have forgotten it since,
                // with the `OPEN` that it owed. The newest recall ends the debt: the server takes
                // nothing back under an older sequence.
                None if owes_open => {
                    // A reply to a request made since may grant it under this sequence.
                    core.early_recalls.take_of(ino, seq);
                    let (rights, order) = (Rights::OPEN, core.rpc.order());
                    core.early_recalls
                        .note(ino, RecalledRights { seq, rights, order, owes_open: false });
                    core.give_back(server, (ino, seq), rights, false, None).await;
                    core.rpc.of(ino).barrier().await;
                    core.early_recalls.take_of(ino, seq);
                }
                None => {}
            }
        });
    }

    /// Inserts the inode of a reply; it stays in the table at least until all requests in flight
    /// are answered.
    pub(crate) fn upsert_inode_until_barrier(&self, attr: &Attr) -> Rc<Inode> {
        let inode = self.upsert_inode(attr);
        if let Some(core) = self.me.upgrade() {
            let (pin, session) = (InodePin::new(&inode), self.rpc.of(attr.ino));
            self.env.spawn(async move {
                session.barrier().await;
                core.inodes.unpin(pin);
            });
        }
        inode
    }

    /// Inserts the inode of a reply, without the rights that were recalled before it was known.
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

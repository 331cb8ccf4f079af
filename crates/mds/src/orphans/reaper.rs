//! The reaper: finds the orphans that are left from before a restart, and frees those that nobody
//! has open.

use std::rc::Rc;

use mfs::Cost;
use types::{Ino, Rights};

use super::Orphans;
use crate::leases::{Evictor, NO_CLIENT, Need, recall};

/// Segments that one transaction frees.
const SEGMENTS: usize = 64;
/// Orphans that one transaction looks up after a restart.
const BATCH: usize = 256;

impl Orphans {
    /// Starts to free orphans, and finds those that are left from before the restart.
    pub async fn begin(&self) {
        self.allowed.set(true);
        let orphans: Vec<Ino> = self.orphans.borrow().iter().copied().collect();
        for ino in orphans {
            self.free_if_closed(ino);
        }
        let mut after = Ino::NONE;
        loop {
            let found =
                self.runtime.mfs.run(Cost::READ, |txn| txn.names().orphans(after, BATCH)).await;
            let found = self.runtime.checked(found, "looking for orphans");
            let Some((found, _)) = found else { return };
            let Some(&last) = found.last() else { return };
            for ino in found {
                if !self.is_freeing(ino) && !self.held.borrow().contains(&ino) {
                    self.orphaned(NO_CLIENT, ino);
                }
            }
            after = last;
        }
    }
}

/// The reaper's task: frees queued inodes until the server stops. It evicts clients that do not
/// give up their rights on them.
pub async fn run(orphans: Rc<Orphans>, evictor: Rc<impl Evictor>) {
    loop {
        let notified = orphans.wake.notified();
        let next = orphans.queue.borrow_mut().pop_front();
        if orphans.runtime.is_stopping() {
            return;
        }
        let Some(ino) = next else {
            orphans.idle.notify_all();
            notified.await;
            continue;
        };
        free(&orphans, &*evictor, ino).await;
        orphans.freeing.borrow_mut().remove(&ino);
        orphans.runtime.event_ended();
    }
}

async fn free(orphans: &Orphans, evictor: &impl Evictor, ino: Ino) {
    let (runtime, leases) = (&orphans.runtime, &orphans.leases);
    let held = !leases.table().others(NO_CLIENT, ino).is_empty();
    if held {
        let needs = [Need { ino, take: Rights::all(), range: None }];
        let gates = recall(leases, evictor, NO_CLIENT, &needs, None).await;
        leases.drop_inode(ino);
        drop(gates);
    }
    loop {
        let step =
            runtime.mfs.run(Cost::STEP, |txn| txn.names().free_inode_step(ino, SEGMENTS)).await;
        match runtime.checked(step, "freeing an inode") {
            Some((false, _)) => {}
            Some((true, _)) | None => return,
        }
    }
}

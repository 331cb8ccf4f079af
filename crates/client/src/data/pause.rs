//! A file whose last name is about to be removed stands still: it may need no commit any more, nor
//! its dirty data a place.
//!
//! Invariants:
//! - nothing is launched for a paused file, and no commit of it begins;
//! - it leaves a commit that is not sent yet. Its edits are still its own then, and what makes the
//!   other files of the batch stable goes on without it. A commit that is sent is waited for;
//! - reads in flight are waited for, and so are holes and writes of objects, and writes if the
//!   server knows a block of the file: after the removal it gives that to others. Blocks that it
//!   does not know are this client's. They are tainted until the file's writes have ended, and then
//!   they are free in the pool;
//! - a file leaves one commit at most between two that succeed. So removals that fail do not put
//!   its commit off for ever.

use std::collections::BTreeSet;
use std::rc::Rc;

use proto::mds::Edit;

use super::file::{File, FileState};
use super::pool::PoolRun;

/// A larger file's blocks are not looked at: its removal waits for its writes.
const LOOKED_AT: u64 = 1024;

impl FileState {
    /// Does the server know no block that a write in flight may reach? Then an edit that is not
    /// sent names each block of the file.
    fn is_unknown(&self) -> bool {
        // A write to an object is waited for: the metadata server has the object destroyed.
        if self.committing || self.layout.object().is_some() || self.layout.blocks() > LOOKED_AT {
            return false;
        }
        let mut named = BTreeSet::new();
        for pending in &self.edits {
            match &pending.edit {
                Edit::Map { segment } if segment.len <= LOOKED_AT => {
                    named.extend(
                        (segment.addr.0..segment.addr.0 + segment.len)
                            .map(|addr| (segment.pag, addr)),
                    );
                }
                Edit::Written { .. } => {}
                Edit::Map { .. } | Edit::Unmap { .. } | Edit::Content { .. } => return false,
            }
        }
        self.layout.segments_from(0).all(|(_, mapped)| {
            (mapped.addr..mapped.addr + mapped.len).all(|addr| named.contains(&(mapped.pag, addr)))
        })
    }
}

impl File {
    /// The file's writes have ended: what only they could still reach is free.
    pub(super) fn untaint(&self, tainted: Vec<PoolRun>) {
        for run in tainted {
            self.pool().untaint(run);
        }
    }

    /// See [`crate::boundary::FileContent::pause`].
    pub(super) async fn pause(self: &Rc<Self>) {
        self.state.borrow_mut().paused = true;
        self.notify();
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.borrow();
                let may_write = state.writing.is_empty() || state.is_unknown();
                if may_write
                    && state.punching.is_empty()
                    && state.reading.is_empty()
                    && !state.committing
                {
                    return;
                }
            }
            if !self.leave_commit() {
                self.hurry_commit();
                changed.await;
            }
        }
    }

    /// See [`crate::boundary::FileContent::resume`].
    pub(super) fn resume(self: &Rc<Self>) {
        let has_left = {
            let mut state = self.state.borrow_mut();
            state.paused = false;
            self.launch_wanted(&mut state, 0, u64::MAX);
            self.launch_punches(&mut state);
            state.has_left
        };
        self.notify();
        match has_left {
            _ if self.is_settled() => {}
            true => self.commit_soon(),
            false => self.enqueue(),
        }
    }

    /// Takes the file out of a commit that waits for a batch, whose data is being made stable, or
    /// that waits for a task. Returns whether it was in one.
    fn leave_commit(self: &Rc<Self>) -> bool {
        let mut state = self.state.borrow_mut();
        if state.has_left {
            return false;
        }
        let mut pipeline = self.ctx.pipeline(self.server()).borrow_mut();
        let is_out = state.batch.take().is_some()
            || pipeline.withdraw_ready(self)
            || pipeline.withdraw(self).is_some();
        drop(pipeline);
        if is_out {
            (state.committing, state.has_left) = (false, true);
            drop(state);
            self.notify();
        }
        is_out
    }
}

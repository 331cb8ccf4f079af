//! A file whose last name is about to be removed stands still: it may need no commit any more, nor
//! its dirty data a place.
//!
//! Invariants:
//! - nothing is launched for a paused file, and no commit of it begins;
//! - it leaves a commit that is not sent yet. Its edits are still its own then, and what makes the
//!   other files of the batch stable goes on without it. A commit that is sent is waited for, and so
//!   are writes and reads in flight: the server gives the blocks to others after the removal;
//! - a file leaves one commit at most between two that succeed. So removals that fail do not put its
//!   commit off for ever.

use std::rc::Rc;

use super::file::File;

impl File {
    /// See [`crate::boundary::FileContent::pause`].
    pub(super) async fn pause(self: &Rc<Self>) {
        self.state.borrow_mut().paused = true;
        self.notify();
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.borrow();
                if state.writing.is_empty() && state.reading.is_empty() && !state.committing {
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
            state.has_left
        };
        self.notify();
        if has_left && !self.is_settled() {
            self.commit_soon();
        } else {
            self.enqueue();
        }
    }

    /// Takes the file out of a commit that waits for a batch, whose data is being made stable, or
    /// that waits for a task. Returns whether it was in one.
    fn leave_commit(self: &Rc<Self>) -> bool {
        let mut state = self.state.borrow_mut();
        if state.has_left {
            return false;
        }
        let mut pipeline = self.ctx.pipeline.borrow_mut();
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

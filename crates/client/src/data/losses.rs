//! What of a file's content is lost, and who has heard of it.
//!
//! Invariants:
//! - each loss is one rise of the file's error sequence, which every handle reports once, and one
//!   line of the client's log;
//! - a loss stays unreported until a handle reports it, a rename fails for it, or the file is cut
//!   to nothing.

use types::limits::BLOCK_U64;

use super::file::File;

impl Drop for File {
    fn drop(&mut self) {
        self.acknowledge_loss();
    }
}

impl File {
    /// Something that was accepted before is lost.
    pub(super) fn fail(&self) {
        self.errors.set(self.errors.get() + 1);
        if !self.unreported.replace(true) {
            self.ctx.unreported_losses.set(self.ctx.unreported_losses.get() + 1);
        }
    }

    /// See [`crate::boundary::FileContent::has_unreported_loss`].
    pub(super) fn has_unreported_loss(&self) -> bool {
        self.unreported.get()
    }

    /// See [`crate::boundary::FileContent::acknowledge_loss`].
    pub(super) fn acknowledge_loss(&self) -> bool {
        let lost = self.unreported.take();
        if lost {
            self.ctx.unreported_losses.set(self.ctx.unreported_losses.get() - 1);
        }
        lost
    }

    /// See [`crate::boundary::FileContent::report_lost_commit`].
    pub(super) fn report_lost_commit(&self) {
        let reported = self.state.borrow().loss_reported;
        self.fail();
        if !reported {
            self.ctx.rpc.log(&format!(
                "{}: the session was lost; the last commits are lost with the server's restart",
                self.ctx.rpc.describe(self.ino)
            ));
        }
    }

    /// See [`crate::boundary::FileContent::report_lost_pages`].
    pub(super) fn report_lost_pages(&self) {
        self.fail();
        self.ctx.rpc.log(&format!(
            "{}: the session was lost; pages stored into a mapping and not yet written back are lost",
            self.ctx.rpc.describe(self.ino)
        ));
    }

    /// Data of blocks `[from, to)` is lost: reports it to all handles and to the client's log, and
    /// drops the kernel's pages.
    pub(super) fn report_loss(&self, from: u64, to: u64, why: &str) {
        self.fail();
        let who = self.ctx.rpc.describe(self.ino);
        self.ctx.rpc.log(&format!("{who}: written data is lost: {why}"));
        let byte = |block: u64| block.saturating_mul(BLOCK_U64);
        self.ctx.rpc.inval_pages(self.ino, byte(from), byte(to));
    }
}

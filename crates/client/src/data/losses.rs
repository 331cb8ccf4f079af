//! What of a file's content is lost, and who has heard of it.
//!
//! Invariants:
//! - each loss is one rise of the file's error sequence, which every handle reports once, and one
//!   line of the client's log;
//! - a loss stays unreported until a handle reports it, a rename fails for it, or the file is cut
//!   to nothing.

use proto::mds::Edit;
use proto::ranges::HeldRanges;
use types::limits::BLOCK_U64;
use types::{FileBlock, Segment, SegmentState};

use super::file::{File, FileState, PendingEdit};
use super::pool::PoolRun;
use super::striped::range;

impl Drop for File {
    fn drop(&mut self) {
        self.acknowledge_loss();
    }
}

/// Ranges that a report of a loss names at most.
const RANGES_NAMED: usize = 8;

impl FileState {
    /// For people: the bytes that are written and not committed, as far as no target of an object
    /// has them, and the size that the file falls back to. Empty if only times or attributes are.
    pub(super) fn uncommitted_bytes(&self) -> String {
        let mut blocks = HeldRanges::default();
        let mut add = |from: u64, to: u64| _ = blocks.insert(range(from, to));
        self.dirty.iter().for_each(|(start, run)| add(*start, start + run.blocks()));
        self.writing.iter().for_each(|(start, end)| add(*start, *end));
        for pending in &self.edits {
            match &pending.edit {
                Edit::Map { segment } if segment.state == SegmentState::Written => {
                    add(segment.file.0, segment.end());
                }
                Edit::Written { from, len } => add(from.0, from.0 + len),
                _ => {}
            }
        }
        let byte = |block: u64| block.saturating_mul(BLOCK_U64);
        let all: Vec<String> = blocks
            .iter()
            .map(|held| format!("bytes {} to {}", byte(held.range.from.0), byte(held.range.to.0)))
            .collect();
        let mut text = match (all.len(), all.len().saturating_sub(RANGES_NAMED)) {
            (0, _) => String::new(),
            (_, 0) => format!(": {}", all.join(", ")),
            (_, more) => format!(": {} and {more} more ranges", all[..RANGES_NAMED].join(", ")),
        };
        if self.size != self.server_size {
            text += &format!("; its size is {} again, not {}", self.server_size, self.size);
        }
        text
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
        let byte = |block: u64| block.saturating_mul(BLOCK_U64);
        let range = format!("bytes {} to {}", byte(from), byte(to));
        self.ctx.rpc.log(&format!("{who}: written data is lost: {why} ({range})"));
        self.ctx.rpc.inval_pages(self.ino, byte(from), byte(to));
    }

    /// Writes to `[from, to)` are lost: removes the edits that refer to their data.
    pub(super) fn fail_range(&self, state: &mut FileState, from: u64, to: u64, why: &str) {
        self.report_loss(from, to, why);
        let edits = std::mem::take(&mut state.edits);
        for PendingEdit { seq, edit } in edits {
            match edit {
                Edit::Map { segment } if segment.state == SegmentState::Written => {
                    for (a, b) in [(segment.file.0, from), (to, segment.end())] {
                        if let Some(kept) = segment.slice(a, b) {
                            state
                                .edits
                                .push_back(PendingEdit { seq, edit: Edit::Map { segment: kept } });
                        }
                    }
                    if let Some(gone) = segment.slice(from, to) {
                        self.unmap_failed(state, &gone);
                    }
                }
                Edit::Written { from: start, len } => {
                    let end = start.0 + len;
                    for (a, b) in [(start.0, end.min(from)), (start.0.max(to), end)] {
                        if a < b {
                            let edit = Edit::Written { from: FileBlock(a), len: b - a };
                            state.edits.push_back(PendingEdit { seq, edit });
                        }
                    }
                    let (a, b) = (start.0.max(from), end.min(to));
                    if a < b {
                        state.layout.set_written(a, b, false);
                    }
                }
                other => state.edits.push_back(PendingEdit { seq, edit: other }),
            }
        }
        self.reserve_again(state, from, to);
        self.resend_unconfirmed(state);
        state.mark_stale(from, to);
        state.tail = None;
        // The device may still hold old bytes behind the size.
        if (from..to).contains(&(state.size / BLOCK_U64)) {
            state.tail_zero = false;
        }
    }

    fn unmap_failed(&self, state: &mut FileState, gone: &Segment) {
        self.pool().add_tainted(PoolRun { pag: gone.pag, addr: gone.addr.0, len: gone.len });
        for piece in state.layout.pieces(gone.file.0, gone.end()) {
            let addr = gone.addr.0 + (piece.from - gone.file.0);
            if piece.mapped.is_some_and(|now| now.pag == gone.pag && now.addr == addr) {
                let removed = state.layout.remove(piece.from, piece.to);
                let blocks: u64 = removed.iter().map(|(_, mapped)| mapped.len).sum();
                state.blocks = state.blocks.saturating_sub(blocks);
                // The frozen blocks that it had replaced belong to the file again.
                for (at, old) in state.replaced.remove(piece.from, piece.to) {
                    state.layout.insert(at, old);
                    state.blocks += old.len;
                }
                if piece.from == 0 {
                    state.restore_inline();
                }
            }
        }
    }
}

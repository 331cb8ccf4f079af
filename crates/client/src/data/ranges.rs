//! A file of which this client holds ranges (`DATA_P`) instead of the whole.
//!
//! Invariants:
//! - whatever is dirty, in flight or pending as an edit lies in ranges that are held exclusively: a
//!   recall of a range waits until nothing of it is left here;
//! - the size known here is never larger than the file's, and covers all that other clients wrote
//!   into the held ranges: they committed it before they returned the range;
//! - the size only grows while any client holds ranges, and the device has zeros in the last block
//!   behind it, whichever client moved it there;
//! - the layout of a held range is known, or loaded before it is used.

use std::rc::Rc;

use proto::mds::LayoutSlice;
use types::limits::BLOCK_U64;
use types::{Attr, BlockRange, Fault, HeldRange, Rights};

use super::context::{RETRY, is_transient};
use super::file::{File, FileState};
use super::segments::from_wire_segment;

impl FileState {
    /// Does the client hold ranges?
    pub(super) fn holds_ranges(&self) -> bool {
        self.rights.contains(Rights::DATA_P)
    }

    /// The server has this size, or a larger one.
    fn raise_size(&mut self, size: u64) {
        self.size = self.size.max(size);
        self.disk_size = self.disk_size.max(size);
        self.server_size = self.server_size.max(size);
    }

    /// Adds those mappings of `part` that lie in `range` and are not loaded yet.
    fn load_range(&mut self, part: &LayoutSlice, range: BlockRange) {
        let covered = BlockRange::new(part.from.0, part.to).common(range);
        for new in self.loaded.missing(covered) {
            for segment in &part.segments {
                if let Some(segment) = segment.slice(new.from.0, new.to.0) {
                    self.layout.insert(segment.file.0, from_wire_segment(&segment, part.frozen));
                }
            }
            if new.from.0 == 0 {
                self.load_inline(&part.content);
            }
            self.loaded.insert(HeldRange { range: new, exclusive: true });
        }
    }

    /// Records a write to blocks `[from, to)`.
    pub(super) fn mark_unsettled(&mut self, from: u64, to: u64) {
        if self.holds_ranges() {
            self.unsettled.insert(HeldRange { range: BlockRange::new(from, to), exclusive: true });
        }
    }

    /// Is nothing of `range` dirty, in flight, uncommitted, or written in place and not yet stable?
    /// For [`BlockRange::ALL`] this includes size and times.
    fn is_settled_in(&self, range: BlockRange) -> bool {
        let parts = range != BlockRange::ALL && self.unsettled.within(range).next().is_none();
        self.is_settled() || parts
    }
}

impl File {
    /// See [`crate::boundary::FileContent::range_acquired`].
    pub(super) fn range_acquired(
        &self,
        attr: &Attr,
        range: BlockRange,
        layout: Option<&LayoutSlice>,
    ) {
        let mut state = self.state.borrow_mut();
        if !state.holds_ranges() {
            state.rights = Rights::DATA_P;
            state.layout.clear();
            state.inline.clear();
            state.loaded_to = 0;
            state.loaded.clear();
            state.apply_attr(attr);
        }
        state.raise_size(attr.size);
        state.tail_zero = true;
        if let Some(layout) = layout {
            self.set_layout(&mut state, layout);
            state.load_range(layout, range);
        }
    }

    /// See [`crate::boundary::FileContent::range_lost`].
    pub(super) fn range_lost(&self, range: BlockRange) {
        let mut state = self.state.borrow_mut();
        state.mark_stale(range.from.0, range.to.0);
        state.layout.remove(range.from.0, range.to.0);
        if range.from.0 == 0 {
            state.inline.clear();
        }
        state.loaded.remove(range);
        state.unsettled.remove(range);
    }

    /// See [`crate::boundary::FileContent::holds_ranges`].
    pub(super) fn holds_ranges(&self) -> bool {
        self.state.borrow().holds_ranges()
    }

    /// Loads the layout of blocks `[from, to)`, or of all blocks below `to` if the client holds the
    /// whole file.
    pub(super) async fn ensure_known(&self, from: u64, to: u64) -> Result<(), Fault> {
        if !self.holds_ranges() {
            return self.ensure_loaded(to).await;
        }
        let range = BlockRange::new(from, to);
        let missing = || self.state.borrow().loaded.missing(range).first().copied();
        if missing().is_none() {
            return Ok(());
        }
        let _one = self.loading.lock().await;
        while let Some(next) = missing() {
            let generation = self.state.borrow().generation;
            let part = self.ctx.rpc.layout(self.ino, next.from).await?;
            let mut state = self.state.borrow_mut();
            if state.generation != generation || !state.holds_ranges() {
                return Err(Fault::Evicted);
            }
            if part.to <= next.from.0 {
                return Err(Fault::Protocol);
            }
            state.load_range(&part, next);
        }
        Ok(())
    }

    /// See [`crate::boundary::FileContent::is_settled_in`].
    pub(super) fn is_settled_in(&self, range: BlockRange) -> bool {
        self.state.borrow().is_settled_in(range)
    }

    /// See [`crate::boundary::FileContent::flush_range`].
    pub(super) async fn flush_range(self: &Rc<Self>, range: BlockRange) -> Result<(), Fault> {
        let mut result = Ok(());
        for tries in 0.. {
            if self.is_settled_in(range) {
                break;
            }
            let outcome = self.commit_alone().await;
            result = result.and(outcome);
            match outcome {
                Ok(()) => self.state.borrow_mut().unsettled.remove(range),
                Err(fault) if is_transient(fault) => {
                    if tries >= self.flush_tries(fault) {
                        self.discard_unsent(fault);
                        break;
                    }
                    self.ctx.env.sleep(RETRY).await;
                }
                Err(_) => {}
            }
        }
        result
    }

    /// See [`crate::boundary::FileContent::discard_for_recall`].
    pub(super) fn discard_for_recall(self: &Rc<Self>) {
        self.discard_uncommitted("a recall of the range could not wait for the commit");
    }

    /// See [`crate::boundary::FileContent::zero_tail`].
    pub(super) async fn zero_tail(self: &Rc<Self>) -> Result<(), Fault> {
        loop {
            let size = {
                let state = self.state.borrow();
                if state.tail_zero || state.size.is_multiple_of(BLOCK_U64) {
                    return Ok(());
                }
                state.size
            };
            self.zero_behind(size).await?;
            let mut state = self.state.borrow_mut();
            if state.size == size {
                state.tail_zero = true;
            }
        }
    }
}

//! A file of which this client holds parts (`DATA_P`) instead of the whole.
//!
//! Invariants:
//! - whatever is dirty, in flight or in the log lies in parts that are held exclusively: who asks
//!   for a part waits until nothing of it is left here;
//! - the size known here is never larger than the file's, and large enough for all that others
//!   wrote into the parts held: they committed it before they gave the part up;
//! - the size only grows while anyone holds parts, and what the last block holds behind it is zero
//!   on the device, whoever moved it there;
//! - of a part that is held the layout is known, or asked for before it is used.

use std::rc::Rc;

use proto::mds::LayoutSlice;
use types::limits::BLOCK_U64;
use types::{Attr, BlockRange, Fault, HeldRange, Rights};

use super::commit::{RETRY, passing};
use super::extents::from_extent;
use super::file::{File, State};

impl State {
    /// Are parts held?
    pub(super) fn in_parts(&self) -> bool {
        self.rights.contains(Rights::DATA_P)
    }

    /// The server has this size, or a larger one.
    fn learn_size(&mut self, size: u64) {
        self.size = self.size.max(size);
        self.disk_size = self.disk_size.max(size);
        self.server_size = self.server_size.max(size);
    }

    /// Takes in what of a stretch of the layout lies in `range` and is not known.
    fn load_part(&mut self, part: &LayoutSlice, range: BlockRange) {
        let told = BlockRange::new(part.from.0, part.to).common(range);
        for new in self.known.missing(told) {
            for extent in &part.extents {
                if let Some(extent) = extent.slice(new.from.0, new.to.0) {
                    self.layout.insert(extent.file.0, from_extent(&extent, part.frozen));
                }
            }
            if new.from.0 == 0 {
                self.set_inline_part(&part.content);
            }
            self.known.insert(HeldRange { range: new, exclusive: true });
        }
    }

    /// Blocks of `[from, to)` are written now.
    pub(super) fn touch_blocks(&mut self, from: u64, to: u64) {
        if self.in_parts() {
            self.touched.insert(HeldRange { range: BlockRange::new(from, to), exclusive: true });
        }
    }

    /// Is nothing of `range` dirty, in flight, uncommitted, or in place and not yet stable? Of all
    /// blocks that means the size and times, too.
    fn is_settled_in(&self, range: BlockRange) -> bool {
        let parts = range != BlockRange::ALL && self.touched.within(range).next().is_none();
        self.is_settled() || parts
    }
}

impl File {
    /// A part came, with the attributes and the layout of that moment.
    pub fn acquired_part(&self, attr: &Attr, range: BlockRange, layout: Option<&LayoutSlice>) {
        let mut state = self.state.borrow_mut();
        if !state.in_parts() {
            state.rights = Rights::DATA_P;
            state.layout.clear();
            state.inline.clear();
            state.loaded_to = 0;
            state.known.clear();
            state.take_attr(attr);
        }
        state.learn_size(attr.size);
        state.tail_zero = true;
        if let Some(layout) = layout {
            state.load_part(layout, range);
        }
    }

    /// The part `range` went. Nothing of it is dirty by then.
    pub fn lost_part(&self, range: BlockRange) {
        let mut state = self.state.borrow_mut();
        state.mark_stale(range.from.0, range.to.0);
        state.layout.remove(range.from.0, range.to.0);
        if range.from.0 == 0 {
            state.inline.clear();
        }
        state.known.remove(range);
        state.touched.remove(range);
    }

    /// Are parts held, and the size known here part of the truth?
    pub fn in_parts(&self) -> bool {
        self.state.borrow().in_parts()
    }

    /// Loads the layout of blocks `[from, to)`, or, of a file that is held whole, of all below
    /// `to`.
    pub(super) async fn ensure_known(&self, from: u64, to: u64) -> Result<(), Fault> {
        if !self.in_parts() {
            return self.ensure_loaded(to).await;
        }
        let range = BlockRange::new(from, to);
        let missing = || self.state.borrow().known.missing(range).first().copied();
        if missing().is_none() {
            return Ok(());
        }
        let _one = self.loading.lock().await;
        while let Some(next) = missing() {
            let generation = self.state.borrow().generation;
            let part = self.ctx.rpc.layout(self.ino, next.from).await?;
            let mut state = self.state.borrow_mut();
            if state.generation != generation || !state.in_parts() {
                return Err(Fault::Evicted);
            }
            if part.to <= next.from.0 {
                return Err(Fault::Protocol);
            }
            state.load_part(&part, next);
        }
        Ok(())
    }

    /// See [`State::is_settled_in`].
    pub fn is_settled_in(&self, range: BlockRange) -> bool {
        self.state.borrow().is_settled_in(range)
    }

    /// The data of `range` is stable, and the server knows of everything there. Nothing new may be
    /// written to it.
    pub async fn flush_part(self: &Rc<Self>, range: BlockRange) -> Result<(), Fault> {
        let mut result = Ok(());
        for tries in 0.. {
            if self.is_settled_in(range) {
                break;
            }
            let outcome = self.commit_alone().await;
            result = result.and(outcome);
            match outcome {
                Ok(()) => self.state.borrow_mut().touched.remove(range),
                Err(fault) if passing(fault) => {
                    if tries >= self.tries_of_flush(fault) {
                        self.give_up_unsent();
                        break;
                    }
                    self.ctx.env.sleep(RETRY).await;
                }
                Err(_) => {}
            }
        }
        result
    }

    /// What was accepted and not committed is lost; the parts stay.
    pub fn forsake(self: &Rc<Self>) {
        self.give_up("the part had to be given up");
    }

    /// Under `DATA_X`: what the last block holds behind the size is zero on the device with the
    /// next commit.
    pub async fn zero_tail(self: &Rc<Self>) -> Result<(), Fault> {
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

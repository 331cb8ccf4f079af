//! Content that lies with the inode instead of in a data block: block 0 of a small file.
//!
//! Invariants:
//! - block 0 is content, or mapped in the layout, or a hole; bytes accepted since lie over it in a dirty run;
//! - a run becomes content when it is launched: the file is held whole, its whole layout is known and empty, and its size
//!   is within what the server said fits the slot, or within what lies with the inode already. There is no write to a
//!   device then, and no flush;
//! - how much fits is a hint: names and attributes may take the room at any time. So content keeps the data block that was
//!   reserved for its bytes until the server has it. If the server has no room, block 0 is dirty again, and goes there;
//! - content that the server does not have holds its share of the dirty budget, too;
//! - content at rest, which is not dirty, is changed where it is as long as it gets no longer: it needs no block, for
//!   the server never moves what gets no longer;
//! - content leaves by the first launch of block 0 that does not fit: the edit is the mapping, by which the server
//!   drops it. If that write fails, what was there before holds again;
//! - of content in the log only the newest matters: what stands before it, or before a hole of block 0, is taken out unless
//!   it belongs to a commit under way. A commit has one at most.

use std::collections::VecDeque;
use std::rc::Rc;

use env::{Env, IoBuf};
use proto::mds::{Edit, LayoutPart};
use proto::wire::Bytes;
use types::Fault;
use types::limits::{BLOCK, BLOCK_U64};

use super::budget::Claim;
use super::file::{File, Logged, Run, State};
use super::pool::Reserved;
use super::write::{Lack, Means};

/// What lies with the inode of one file.
#[derive(Default)]
pub(super) struct Inline {
    /// Block 0 as launched last; zeros follow it.
    content: Option<Vec<u8>>,
    /// Content that a place in the layout which the server does not know has replaced.
    replaced: Option<Vec<u8>>,
    /// So many bytes fit the slot; 0: none, or block 0 is to have a place.
    max: u64,
    /// The server had no room for `content` or `replaced`, and does not have it.
    refused: bool,
    /// Of content that the server does not have.
    held: Option<Held>,
}

/// What content holds until the server has it.
pub(super) struct Held {
    /// Share of the dirty budget.
    pub claim: Claim,
    /// The block that it goes to if the server has no room for it; none if it lay there before, as long.
    pub place: Reserved,
}

impl Inline {
    /// Takes in what came with the layout of block 0.
    pub fn load(&mut self, part: &LayoutPart) {
        self.content = (!part.content.0.is_empty()).then(|| part.content.0.clone());
        self.max = u64::from(part.inline_max);
    }

    /// Nothing is known.
    pub fn clear(&mut self) {
        *self = Inline::default();
    }

    /// The server knows every place.
    pub fn settle(&mut self) {
        self.replaced = None;
        self.refused = false;
    }
}

/// Takes content out of the log that later edits leave nothing of, but for what belongs to a commit under way.
pub(super) fn thin_contents(log: &mut VecDeque<Logged>, sealed: u64) {
    thin(log, sealed, |_| false);
}

/// As [`thin_contents`], of the edits of one commit: the data of what they map is stable, and nothing takes it back.
pub(super) fn thin_sealed(edits: &mut VecDeque<Logged>) {
    thin(edits, 0, |edit| matches!(edit, Edit::Map { extent } if extent.file.0 == 0));
}

fn thin(log: &mut VecDeque<Logged>, sealed: u64, covers: impl Fn(&Edit) -> bool) {
    let mut covered = false;
    let mut at = log.len();
    while at > 0 {
        at -= 1;
        match &log[at].edit {
            Edit::Content { .. } if covered && log[at].seq >= sealed => {
                log.remove(at);
            }
            Edit::Content { .. } => covered = true,
            Edit::Unmap { from, to } if from.0 == 0 && *to > 0 => covered = true,
            other => covered |= covers(other),
        }
    }
}

impl State {
    /// Bytes that lie with the inode, if any do.
    pub fn content_len(&self) -> Option<usize> {
        self.inline.content.as_ref().map(Vec::len)
    }

    /// Does `block` lie with the inode, but for what is dirty?
    pub fn is_inline(&self, block: u64) -> bool {
        block == 0 && self.inline.content.is_some()
    }

    /// Is what lies with the inode, if that is `block`, zero from byte `from` of it on?
    pub fn ends_inline(&self, block: u64, from: u64) -> bool {
        block == 0
            && self.dirty_at(0).is_none()
            && self.content_len().is_some_and(|len| len as u64 <= from)
    }

    /// Block 0, which lies with the inode.
    pub fn inline_block(&self, env: &Env) -> IoBuf {
        let mut out = env.buffer(BLOCK);
        if let Some(content) = &self.inline.content {
            out[..content.len()].copy_from_slice(content);
        }
        out
    }

    /// 1 if a block lies with the inode: it counts as one of the file's.
    pub fn inline_blocks(&self) -> u64 {
        u64::from(self.inline.content.is_some())
    }

    /// Block 0 is no longer what lies with the inode, and never will be again.
    pub fn drop_inline(&mut self) -> bool {
        self.inline.settle();
        let had = self.inline.content.take().is_some();
        self.blocks = self.blocks.saturating_sub(u64::from(had));
        had
    }

    /// Block 0 gets a place, or had one that its device did not take the data for.
    pub fn replace_inline(&mut self) {
        let content = self.inline.content.take();
        self.blocks = self.blocks.saturating_sub(u64::from(content.is_some()));
        self.inline.replaced = content;
    }

    /// The place that block 0 got is not one: what was there before holds, up to the size that the file has now.
    pub fn restore_inline(&mut self) {
        if let Some(mut content) = self.inline.replaced.take() {
            content.truncate(usize::try_from(self.size).unwrap_or(usize::MAX));
            if !content.is_empty() {
                self.inline.content = Some(content);
                self.blocks += 1;
            }
        }
    }

    /// The part of block 0 that came or went.
    pub fn set_inline_part(&mut self, content: &Bytes) {
        self.inline.clear();
        self.inline.content = (!content.0.is_empty()).then(|| content.0.clone());
    }

    /// Is content in the log?
    pub fn has_logged_content(&self) -> bool {
        self.inline.held.is_some()
            && self.log.iter().any(|logged| matches!(logged.edit, Edit::Content { .. }))
    }

    /// The server took a commit: content that it has holds nothing.
    pub fn content_committed(&mut self) {
        if !self.has_logged_content() {
            self.inline.held = None;
        }
    }

    /// Would block 0 become content if it were launched when the file has `size` bytes?
    pub fn fits_inline(&self, size: u64) -> bool {
        let most = self.inline.max.max(self.content_len().unwrap_or(0) as u64);
        self.inline.max > 0
            && (1..=most).contains(&size)
            && self.loaded_to == u64::MAX
            && self.layout.blocks() == 0
            && !self.in_parts()
    }

    /// Is `block` clean content, which can be changed where it is as long as it gets no longer?
    pub fn is_at_rest_inline(&self, block: u64) -> bool {
        self.is_inline(block) && self.dirty_at(block).is_none() && !self.in_parts()
    }

    /// Are the bytes before `end` content at rest, so that they can be replaced where they are?
    pub fn is_within_content(&self, end: u64) -> bool {
        self.is_at_rest_inline(0) && self.content_len().is_some_and(|len| end <= len as u64)
    }

    /// Blocks of dirty runs that count as the file's beside those that it has.
    pub fn dirty_blocks(&self) -> u64 {
        self.dirty.values().map(|run| run.reserved.blocks()).sum()
    }

    /// Block 0 is to hold these bytes, and nothing else; the server is told with the next commit.
    fn log_content(&mut self, bytes: Vec<u8>, held: Held) {
        self.blocks += 1 - self.inline_blocks();
        self.inline.content = Some(bytes.clone());
        self.inline.settle();
        match &mut self.inline.held {
            Some(before) if before.place.blocks() > 0 => {}
            Some(before) => before.place.merge(held.place),
            None => self.inline.held = Some(held),
        }
        self.push_edit(Edit::Content { bytes: Bytes(bytes) });
    }

    /// Bytes of content at rest are replaced from `at` on.
    pub fn put_at_rest(&mut self, at: usize, data: &[u8], held: Held) {
        let mut bytes = self.inline.content.clone().expect("it is at rest");
        bytes[at..at + data.len()].copy_from_slice(data);
        self.log_content(bytes, held);
    }

    /// Bytes `[from, to)` of content at rest are zero, and none is behind the size.
    pub fn zero_inline(&mut self, from: usize, to: usize, held: Held) {
        let mut bytes = self.inline.content.clone().expect("it is at rest");
        let end = to.min(bytes.len());
        bytes[from.min(end)..end].fill(0);
        bytes.truncate(usize::try_from(self.size).unwrap_or(usize::MAX));
        self.log_content(bytes, held);
    }
}

impl File {
    /// One block of the budget, and none of the pool: content at rest has its place.
    pub(super) fn held_at_rest(&self, claim: Claim) -> Held {
        Held { claim, place: self.ctx.pool.nothing() }
    }

    /// Launches the run `[start, end)` as content, if that is what it is to be.
    pub(super) fn launch_inline(&self, state: &mut State, start: u64, end: u64) -> bool {
        if (start, end) != (0, 1) || !state.fits_inline(state.size) {
            return false;
        }
        let Run { buf, claim, reserved, .. } = state.dirty.remove(&start).expect("given");
        let bytes = buf[..state.size as usize].to_vec();
        state.log_content(bytes, Held { claim, place: reserved });
        state.disk_size = state.disk_size.max(state.size);
        state.tail_zero = true;
        state.tail = None;
        true
    }

    /// The server had no room for content: block 0 is to go to the block that is kept for it. `false`: none is, for
    /// the server lacked room for something else.
    pub(super) fn give_place(&self, state: &mut State) -> bool {
        let held = state.inline.held.take_if(|held| held.place.blocks() > 0);
        let Some(Held { claim, place }) = held else { return false };
        state.log.retain(|logged| !matches!(logged.edit, Edit::Content { .. }));
        state.inline.max = 0;
        state.inline.refused = true;
        // What is launched behind block 0, or is to be in place of the content, is on its device.
        if state.disk_size <= BLOCK_U64 && state.layout.at(0).is_none() {
            state.disk_size = state.disk_size.min(state.server_size);
        }
        if state.is_at_rest_inline(0) {
            self.put_out(state, Means { claim, reserved: place, fetched: Vec::new() });
        }
        true
    }

    /// What was to replace content is lost: that holds again, also if the server does not have it.
    pub(super) fn log_refused(&self, state: &mut State) {
        let refused = state.inline.refused && state.is_at_rest_inline(0);
        if let Some(bytes) = state.inline.content.clone().filter(|_| refused) {
            state.log_content(bytes, self.held_at_rest(self.ctx.budget.force(BLOCK_U64)));
        }
    }

    /// Block 0 is to have a place on a device from now on, as allocated blocks have.
    pub(super) async fn move_out(self: &Rc<Self>) -> Result<(), Fault> {
        let mut means = self.no_means();
        loop {
            self.ensure_loaded(1).await?;
            {
                let mut state = self.state.borrow_mut();
                if !means.reserved.is_valid() {
                    return Err(Fault::Evicted);
                }
                if !state.is_at_rest_inline(0) {
                    state.inline.max = 0;
                    return Ok(());
                }
                if means.reserved.blocks() > 0 {
                    state.inline.max = 0;
                    self.put_out(&mut state, means);
                    break;
                }
            }
            self.fill(&mut means, Lack::Space(1)).await?;
        }
        self.enqueue();
        Ok(())
    }

    /// Content at rest is dirty, with a block reserved.
    fn put_out(&self, state: &mut State, mut means: Means) {
        let buf = state.inline_block(&self.ctx.env);
        self.insert_run(state, &mut means, 0, buf);
        state.mark_stale(0, 1);
    }

    /// Bytes of the file that lie with its inode.
    ///
    /// # Errors
    /// As [`File::layout`].
    pub async fn inline_len(self: &Rc<Self>) -> Result<usize, Fault> {
        self.ensure_loaded(1).await?;
        Ok(self.state.borrow().content_len().unwrap_or(0))
    }
}

//! Content that lies with the inode instead of in a data block: block 0 of a small file.
//!
//! Invariants:
//! - block 0 is content, or mapped in the layout, or a hole; bytes accepted since lie over it in a dirty run;
//! - a run becomes content when it is launched: the file is held whole, its whole layout is known and empty, and its size
//!   is within what the server says fits the slot, or within what lies with the inode already. There is no write to a
//!   device then, no flush, and what was reserved for it goes back to the pool;
//! - as long as that is so, a dirty block 0 needs no reservation (it is *bare*): what takes it away first launches the block,
//!   or reserves its place;
//! - content that is not dirty gets shorter, or zero, where it is;
//! - content that the server does not have is in the log, and holds its share of the dirty budget until the commit is answered;
//! - content leaves by the first launch of block 0 that does not fit: the edit is the mapping, by which the server
//!   drops it. If that write fails, what was there before holds again;
//! - of content in the log only the newest matters: what stands before it, or before a hole of block 0, is taken out unless
//!   it belongs to a commit under way.

use std::collections::VecDeque;
use std::rc::Rc;

use env::{Env, IoBuf};
use proto::mds::{Edit, LayoutPart};
use proto::wire::Bytes;
use types::Fault;
use types::limits::{BLOCK, SLOT_XATTRS_MAX};

use super::budget::Claim;
use super::commit::Purpose;
use super::file::{File, Logged, Run, State};
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
    /// What attributes that were set since may have taken of that.
    for_xattrs: u64,
    /// Of content that the server does not have.
    claim: Option<Claim>,
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
    }
}

/// Takes content out of the log that later edits leave nothing of, but for what belongs to a commit under way.
pub(super) fn thin_contents(log: &mut VecDeque<Logged>, sealed: u64) {
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
            _ => {}
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
        self.inline.replaced = None;
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

    /// Is there content that the server does not have, or that is to become such?
    pub fn has_unsent_content(&self) -> bool {
        self.inline.claim.is_some() || self.is_bare()
    }

    /// Is content in the log?
    pub fn has_logged_content(&self) -> bool {
        self.inline.claim.is_some()
            && self.log.iter().any(|logged| matches!(logged.edit, Edit::Content { .. }))
    }

    /// The server took a commit: content that it has holds no budget.
    pub fn content_committed(&mut self) {
        if self.inline.claim.is_some() && !self.has_logged_content() {
            self.inline.claim = None;
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

    /// Is block 0 dirty with neither a place nor a reservation? Then it fits.
    pub fn is_bare(&self) -> bool {
        let unreserved = |run: &Run| run.reserved.blocks() == 0;
        self.dirty.get(&0).is_some_and(unreserved) && self.layout.unplaced(0, 1) > 0
    }

    /// Is `block` clean content, which can be changed where it is as long as it gets no longer?
    pub fn is_at_rest_inline(&self, block: u64) -> bool {
        self.is_inline(block) && self.dirty_at(block).is_none() && !self.in_parts()
    }

    /// Blocks of dirty runs that count as the file's beside those that it has.
    pub fn dirty_blocks(&self) -> u64 {
        let reserved: u64 = self.dirty.values().map(|run| run.reserved.blocks()).sum();
        reserved + u64::from(self.is_bare())
    }

    /// Block 0 is to hold these bytes, and nothing else; the server is told with the next commit.
    fn log_content(&mut self, bytes: Vec<u8>, claim: Claim) {
        self.blocks += 1 - self.inline_blocks();
        self.inline.content = Some(bytes.clone());
        self.inline.replaced = None;
        self.inline.claim.get_or_insert(claim);
        self.push_edit(Edit::Content { bytes: Bytes(bytes) });
    }

    /// The slot has `bytes` less room from now on. Lacks the server content that is too long for the rest?
    fn take_room(&mut self, file: &File, bytes: u64) -> bool {
        let left = self.inline.max.saturating_sub(bytes).max(self.inline.max.min(1));
        if self.is_bare() && self.size > left {
            file.launch_bare(self);
        }
        self.inline.max = left;
        let too_long = self.content_len().is_some_and(|len| len as u64 > left);
        self.inline.claim.is_some() && too_long
    }

    /// Bytes `[from, to)` of content at rest are zero, and none is behind the size.
    pub fn zero_inline(&mut self, from: usize, to: usize, claim: Claim) {
        let mut bytes = self.inline.content.clone().expect("it is at rest");
        let end = to.min(bytes.len());
        bytes[from.min(end)..end].fill(0);
        bytes.truncate(usize::try_from(self.size).unwrap_or(usize::MAX));
        self.log_content(bytes, claim);
    }
}

impl File {
    /// Launches the run `[start, end)` as content, if that is what it is to be.
    pub(super) fn launch_inline(&self, state: &mut State, start: u64, end: u64) -> bool {
        if (start, end) != (0, 1) || !state.fits_inline(state.size) {
            return false;
        }
        let Run { buf, claim, .. } = state.dirty.remove(&start).expect("given");
        let bytes = buf[..state.size as usize].to_vec();
        state.log_content(bytes, claim);
        state.disk_size = state.disk_size.max(state.size);
        state.tail_zero = true;
        state.tail = None;
        true
    }

    /// The file is about to have something that no slot holds beside block 0, or a size that none has room for: if that
    /// block is bare, it becomes content as long as it can. It needs no device, so nothing stands in its way.
    pub(super) fn launch_bare(&self, state: &mut State) {
        if state.is_bare() {
            let launched = self.launch_inline(state, 0, 1);
            assert!(launched, "a bare block fits the slot");
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
                if !state.is_bare() && (!state.is_inline(0) || state.dirty_at(0).is_some()) {
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

    /// Block 0, bare or content, is dirty with a reservation.
    fn put_out(&self, state: &mut State, mut means: Means) {
        if let Some(run) = state.dirty.get_mut(&0) {
            run.reserved.merge(means.reserved);
        } else {
            let buf = state.inline_block(&self.ctx.env);
            self.insert_run(state, &mut means, 0, buf);
            state.mark_stale(0, 1);
        }
    }

    /// A name takes `bytes` of the room in the slot, or more. What would not fit any more the server has when this ends, so
    /// that the name is refused if there is no other place.
    ///
    /// # Errors
    /// The server did not take it: `NoSpace`, `Evicted`, `Unreachable`.
    pub async fn leave_room(self: &Rc<Self>, bytes: u64) -> Result<(), Fault> {
        if !self.state.borrow_mut().take_room(self, bytes) {
            return Ok(());
        }
        self.claim_commit().await;
        let outcomes = self.ctx.commit_files(std::slice::from_ref(self), Purpose::Flush).await;
        outcomes.into_iter().next().unwrap_or(Ok(()))
    }

    /// A name has taken `bytes` of the room in the slot, and nothing was on its way there.
    pub fn room_taken(self: &Rc<Self>, bytes: u64) {
        self.state.borrow_mut().take_room(self, bytes);
    }

    /// As [`File::leave_room`], for an attribute that takes `len` bytes, if it lies in the slot.
    ///
    /// # Errors
    /// As there.
    pub async fn leave_xattr_room(self: &Rc<Self>, len: usize) -> Result<(), Fault> {
        let bytes = {
            let mut state = self.state.borrow_mut();
            let left = SLOT_XATTRS_MAX as u64 - state.inline.for_xattrs;
            let bytes = if len <= SLOT_XATTRS_MAX { left.min(len as u64) } else { 0 };
            state.inline.for_xattrs += bytes;
            bytes
        };
        self.leave_room(bytes).await
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

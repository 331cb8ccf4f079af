//! Content that lies with the inode instead of in a data block: block 0 of a small file.
//!
//! Invariants:
//! - block 0 is content, or mapped in the layout, or a hole; bytes accepted since lie over it in a dirty run;
//! - a run becomes content when it is launched: the file is held whole, its whole layout is known and empty, and its size
//!   is within what the server says fits the slot. There is no write to a device then, no flush, and what was reserved
//!   for it goes back to the pool;
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
use types::limits::{BLOCK, BLOCK_U64};

use super::budget::Claim;
use super::file::{File, Logged, Run, State};
use super::write::Lack;

/// What lies with the inode of one file.
#[derive(Default)]
pub(super) struct Inline {
    /// Block 0 as launched last; zeros follow it.
    content: Option<Vec<u8>>,
    /// Content that a place in the layout which the server does not know has replaced.
    replaced: Option<Vec<u8>>,
    /// So many bytes fit the slot; 0: none, or block 0 is to have a place.
    max: u64,
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

    /// Would the dirty blocks `[start, end)` fit the slot, and is there nothing else of the file?
    fn fits_inline(&self, start: u64, end: u64) -> bool {
        (start, end) == (0, 1)
            && (1..=self.inline.max).contains(&self.size)
            && self.loaded_to == u64::MAX
            && self.layout.blocks() == 0
            && !self.in_parts()
    }
}

impl File {
    /// Launches the run `[start, end)` as content, if that is what it is to be.
    pub(super) fn launch_inline(&self, state: &mut State, start: u64, end: u64) -> bool {
        if !state.fits_inline(start, end) {
            return false;
        }
        let Run { buf, claim, .. } = state.dirty.remove(&start).expect("given");
        let bytes = buf[..state.size as usize].to_vec();
        state.blocks += 1 - state.inline_blocks();
        state.inline.content = Some(bytes.clone());
        state.inline.replaced = None;
        state.inline.claim.get_or_insert(claim);
        state.disk_size = state.disk_size.max(state.size);
        state.tail_zero = true;
        state.tail = None;
        state.push_edit(Edit::Content { bytes: Bytes(bytes) });
        true
    }

    /// Block 0 is to have a place on a device from now on, as allocated blocks have.
    pub(super) async fn move_out(self: &Rc<Self>) -> Result<(), Fault> {
        let mut means = self.no_means();
        loop {
            self.ensure_loaded(1).await?;
            let lack = {
                let mut state = self.state.borrow_mut();
                state.inline.max = 0;
                if !state.is_inline(0) || state.dirty_at(0).is_some() {
                    return Ok(());
                }
                if !means.reserved.is_valid() {
                    return Err(Fault::Evicted);
                }
                let lack = state.lacks_block(&means, 0);
                if matches!(lack, Lack::Nothing) {
                    self.put_zeros(&mut state, means, 0, BLOCK_U64, BLOCK_U64);
                    break;
                }
                lack
            };
            self.fill(&mut means, lack).await?;
        }
        self.enqueue();
        Ok(())
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

//! Content that lies with the inode instead of in a data block: block 0 of a small file.
//!
//! Invariants:
//! - block 0 is content, or mapped in the layout, or a hole; bytes accepted since lie over it in a
//!   dirty run;
//! - a run becomes content when it is launched: the file is held whole, its whole layout is known
//!   and empty, and its size is within what the server said fits the slot, or within what lies with
//!   the inode already. There is no write to a device then, and no flush;
//! - how much fits is a hint: names and attributes may take the room at any time. So content keeps
//!   the data block that was reserved for its bytes until the server has it. If the server has no
//!   room, block 0 is dirty again, and goes there. A run of block 0 that is dirty over such content
//!   takes that block over: none is reserved twice;
//! - as much content as the server has, by its own answers, has room there for certain, also after
//!   a truncation that it has not heard of: new content takes the place of that. What is within it
//!   needs no block;
//! - where no block is to be had, what is written may become content all the same: the server has
//!   it before the write is answered;
//! - content that the server does not have holds its share of the dirty budget, too;
//! - content at rest, which is not dirty, is changed where it is as long as it has room for
//!   certain;
//! - content leaves by the first launch of block 0 that does not fit: the edit is the mapping, by
//!   which the server drops it. If that write fails, what was there before holds again;
//! - of content in the log only the newest matters: what stands before it, or before a hole of
//!   block 0, is taken out unless it belongs to a commit under way. A commit has one at most.

use std::collections::VecDeque;
use std::rc::Rc;

use env::{Env, IoBuf};
use proto::mds::{Edit, LayoutSlice};
use proto::wire::Bytes;
use types::limits::{BLOCK, BLOCK_U64, CONTENT_MAX};
use types::{Bug, Fault, FileBlock, Rights, planted};

use super::budget::Claim;
use super::commit::Purpose;
use super::file::{File, Logged, Run, State};
use super::pool::Reserved;
use super::write::{Lack, Means};
use crate::boundary::Commit;

/// How often what a file has to tell is committed before content is sent on its own.
const SEND_TRIES: u32 = 4;

/// What lies with the inode of one file.
#[derive(Default)]
pub(super) struct Inline {
    /// Block 0 as launched last; zeros follow it.
    content: Option<Vec<u8>>,
    /// Content that a place in the layout which the server does not know has replaced.
    replaced: Option<Vec<u8>>,
    /// So many bytes fit the slot; 0: none, or block 0 is to have a place.
    max: u64,
    /// Bytes of content that the server has, as it said last.
    at_server: usize,
    /// The least that it may have when a commit under way has been answered.
    under_way: Option<usize>,
    /// The server has just `content`, or `replaced` if that is there.
    confirmed: bool,
    /// The file system knows content.
    able: bool,
    /// Of content that the server does not have.
    held: Option<Held>,
}

/// What content holds until the server has it.
pub(super) struct Held {
    /// Share of the dirty budget.
    pub claim: Claim,
    /// The block that it goes to if the server has no room for it; none if it lay there before, as
    /// long.
    pub place: Reserved,
}

impl Inline {
    /// Takes in what came with the layout of block 0.
    pub fn load(&mut self, part: &LayoutSlice) {
        self.set(&part.content);
        self.max = u64::from(part.inline_max);
        self.able |= self.max > 0;
    }

    /// The server has these bytes, and nothing else is known.
    fn set(&mut self, content: &Bytes) {
        self.content = (!content.0.is_empty()).then(|| content.0.clone());
        self.at_server = content.0.len();
        self.confirmed = true;
        self.able = self.content.is_some();
    }

    /// Nothing is known.
    pub fn clear(&mut self) {
        *self = Inline::default();
    }

    /// The server knows every place.
    pub fn settle(&mut self) {
        self.replaced = None;
    }

    /// What a commit leaves of the content that the server has, of which it does the first `done`
    /// edits, or all that it says: so much in the end, so little in between.
    fn left_by(&self, commit: &Commit, done: Option<usize>) -> (usize, usize) {
        let (mut left, mut least) = (self.at_server, self.at_server);
        for edit in &commit.edits[..done.unwrap_or(commit.edits.len())] {
            match edit {
                Edit::Content { bytes } => left = bytes.0.len(),
                edit if drops_content(edit) => left = 0,
                _ => {}
            }
            least = least.min(left);
        }
        if let Some(size) = commit.size.filter(|_| done.is_none() && !commit.merge) {
            left = left.min(usize::try_from(size).unwrap_or(usize::MAX));
        }
        (left, least.min(left))
    }
}

/// Does the server drop content at this edit, which is another one?
fn drops_content(edit: &Edit) -> bool {
    match edit {
        Edit::Map { extent } => extent.file.0 == 0,
        Edit::Unmap { from, to } => from.0 == 0 && *to > 0,
        Edit::Written { .. } | Edit::Content { .. } => false,
    }
}

/// Takes content out of the log that later edits leave nothing of, and what empties block 0 before
/// content that replaces it, but for what belongs to a commit under way.
pub(super) fn thin_contents(log: &mut VecDeque<Logged>, sealed: u64) {
    thin(log, sealed, |_| false);
}

/// As [`thin_contents`], of the edits of one commit: the data of what they map is stable, and
/// nothing takes it back.
pub(super) fn thin_sealed(edits: &mut VecDeque<Logged>) {
    thin(edits, 0, |edit| matches!(edit, Edit::Map { extent } if extent.file.0 == 0));
}

fn thin(log: &mut VecDeque<Logged>, sealed: u64, covers: impl Fn(&Edit) -> bool) {
    let (mut covered, mut replaced) = (false, false);
    let mut at = log.len();
    while at > 0 {
        at -= 1;
        let open = log[at].seq >= sealed;
        match &mut log[at].edit {
            Edit::Content { .. } if covered && open => {
                log.remove(at);
            }
            Edit::Content { .. } => (covered, replaced) = (true, true),
            Edit::Unmap { from, to } if from.0 == 0 && *to > 0 => {
                covered = true;
                // The server would give the room away for a moment.
                if replaced && open && *to == 1 {
                    log.remove(at);
                } else if replaced && open {
                    from.0 = 1;
                }
            }
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

    /// Block 0 is no longer what lies with the inode, and never will be again; the edit that says
    /// so follows.
    pub fn drop_inline(&mut self) -> bool {
        self.inline.settle();
        self.inline.confirmed = false;
        self.inline.held = None;
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

    /// The place that block 0 got is not one: what was there before holds, up to the size that the
    /// file has now.
    pub fn restore_inline(&mut self) {
        if let Some(mut content) = self.inline.replaced.take() {
            let size = usize::try_from(self.size).unwrap_or(usize::MAX);
            self.inline.confirmed &= content.len() <= size;
            content.truncate(size);
            if !content.is_empty() {
                self.inline.content = Some(content);
                self.blocks += 1;
            }
        }
    }

    /// The part of block 0 that came or went.
    pub fn set_inline_part(&mut self, content: &Bytes) {
        self.inline.clear();
        self.inline.set(content);
    }

    /// Is content in the log?
    pub fn has_logged_content(&self) -> bool {
        self.inline.held.is_some()
            && self.log.iter().any(|logged| matches!(logged.edit, Edit::Content { .. }))
    }

    /// These commits are about to be sent.
    pub fn content_sent(&mut self, commits: &[Commit]) {
        let least = commits.iter().map(|commit| self.inline.left_by(commit, None).1).min();
        self.inline.under_way = least;
    }

    /// The server did what a commit says, or the first `done` edits of it.
    pub fn content_told(&mut self, commit: &Commit, done: Option<usize>) {
        self.inline.at_server = self.inline.left_by(commit, done).0;
        let did = &commit.edits[..done.unwrap_or(commit.edits.len())];
        let of_block_0 = |edit: &&Edit| matches!(edit, Edit::Content { .. }) || drops_content(edit);
        if let Some(last) = did.iter().rev().find(of_block_0) {
            self.inline.confirmed =
                matches!(last, Edit::Content { .. }) && !self.has_logged_content();
        }
    }

    /// No commit is under way.
    pub fn content_answered(&mut self) {
        self.inline.under_way = None;
    }

    /// So many bytes of content have room at the server, whatever others take, when all has taken
    /// effect that was logged.
    fn sure_room(&self) -> usize {
        let mut room = self.inline.at_server.min(self.inline.under_way.unwrap_or(usize::MAX));
        if room == 0 {
            return 0;
        }
        for Logged { seq, edit } in &self.log {
            let sealed = *seq < self.sealed;
            match edit {
                Edit::Content { bytes } if sealed => room = room.min(bytes.0.len()),
                // New content takes the place of what is logged of these, and is not committed yet.
                Edit::Content { .. } => {}
                Edit::Unmap { .. } if !sealed => {}
                other if drops_content(other) => return 0,
                _ => {}
            }
        }
        room
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

    /// Have the bytes before `end` room with the inode for certain, as content at rest or instead
    /// of a hole?
    pub fn has_room_inline(&self, end: u64) -> bool {
        if end > CONTENT_MAX as u64 || !self.can_be_inline() {
            return false;
        }
        let there = self.content_len().unwrap_or(0);
        let placed = self.held_place() > 0 && end <= there as u64;
        placed || there.max(end as usize) <= self.sure_room()
    }

    /// Is block 0 content at rest, or a hole?
    fn can_be_inline(&self) -> bool {
        !self.in_parts()
            && self.loaded_to > 0
            && self.dirty_at(0).is_none()
            && self.layout.at(0).is_none()
    }

    /// Could the server be asked to take block 0 as content up to `end`, with the whole file held?
    fn could_be_sent(&self, end: u64) -> bool {
        end <= CONTENT_MAX as u64
            && self.inline.able
            && self.rights.contains(Rights::DATA_X)
            && self.loaded_to == u64::MAX
            && self.layout.blocks() == 0
            && self.can_be_inline()
    }

    /// Blocks that are kept for content which the server may have no room for.
    pub fn held_place(&self) -> u64 {
        let held = self.inline.held.as_ref().filter(|held| held.place.is_valid());
        held.map_or(0, |held| held.place.blocks())
    }

    /// The block that is kept for content goes to a run that is dirty over it.
    pub fn take_held_place(&mut self) -> Option<Reserved> {
        let blocks = if self.layout.at(0).is_none() { self.held_place() } else { 0 };
        self.inline.held.as_mut().filter(|_| blocks > 0).map(|held| held.place.split(blocks))
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
        self.inline.confirmed = false;
        match &mut self.inline.held {
            Some(before) if before.place.blocks() > 0 => {}
            Some(before) => before.place.merge(held.place),
            None => self.inline.held = Some(held),
        }
        self.push_edit(Edit::Content { bytes: Bytes(bytes) });
    }

    /// Bytes from `at` on are content at rest, or get a part of it; zeros lie before them where
    /// there was none.
    pub fn put_at_rest(&mut self, at: usize, data: &[u8], held: Held) {
        self.log_content(self.content_with(at, data), held);
    }

    /// The content with bytes from `at` on replaced.
    fn content_with(&self, at: usize, data: &[u8]) -> Vec<u8> {
        let mut bytes = self.inline.content.clone().unwrap_or_default();
        bytes.resize(bytes.len().max(at + data.len()), 0);
        bytes[at..at + data.len()].copy_from_slice(data);
        bytes
    }

    /// Bytes `[from, to)` of content at rest are zero, and none is behind the size.
    pub fn zero_inline(&mut self, from: usize, to: usize, held: Held) {
        let mut bytes = self.inline.content.clone().expect("it is at rest");
        if planted(Bug::ContentNotCut) {
            return;
        }
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

    /// The server had no room for content: block 0 is to go to the block that is kept for it,
    /// unless it has another place by now. `false`: there is none, or the server lacked room for
    /// something else: content was `refused` or not.
    pub(super) fn give_place(&self, state: &mut State, refused: bool) -> bool {
        if !state.has_logged_content() {
            // Later edits leave nothing of it.
            return refused;
        }
        let at_rest = state.is_at_rest_inline(0);
        let mut held = state.inline.held.take().expect("content is logged");
        if at_rest && held.place.blocks() == 0 {
            let long = state.content_len().is_some_and(|len| len > state.inline.at_server);
            match long.then(|| self.ctx.pool.reserve(1)).flatten() {
                Some(place) => held.place.merge(place),
                None => {
                    state.inline.held = Some(held);
                    return false;
                }
            }
        }
        state.log.retain(|logged| !matches!(logged.edit, Edit::Content { .. }));
        state.inline.max = 0;
        // What is launched behind block 0, or is to be in place of the content, is on its device.
        if state.disk_size <= BLOCK_U64 && state.layout.at(0).is_none() {
            state.disk_size = state.disk_size.min(state.server_size);
        }
        if at_rest {
            let Held { claim, place } = held;
            self.put_out(state, Means { claim, reserved: place, fetched: Vec::new() });
        }
        true
    }

    /// What was to replace content is lost: that holds again, also if the server does not have it.
    pub(super) fn log_unconfirmed(&self, state: &mut State) {
        let sent = state.inline.confirmed || state.has_logged_content();
        if sent || !state.is_at_rest_inline(0) {
            return;
        }
        let bytes = state.inline.content.clone().expect("it is at rest");
        let mut held = self.held_at_rest(self.ctx.budget.force(BLOCK_U64));
        if bytes.len() > state.sure_room()
            && state.held_place() == 0
            && let Some(place) = self.ctx.pool.reserve(1)
        {
            held.place.merge(place);
        }
        state.log_content(bytes, held);
    }

    /// Where no block is to be had: the server gets block 0 as content, with the first `len` bytes
    /// of `data` at `offset`. `true`: it has them, so that there is room for a write of them for
    /// certain. They are not in the file here yet.
    pub(super) async fn send_content(
        self: &Rc<Self>,
        generation: u64,
        offset: u64,
        data: &[u8],
    ) -> bool {
        let end = offset + data.len() as u64;
        for _ in 0..SEND_TRIES {
            if !self.state.borrow().could_be_sent(end) {
                return false;
            }
            self.claim_commit().await;
            let commit = {
                let state = self.state.borrow();
                let goes = state.generation == generation && state.could_be_sent(end);
                // What was accepted before is told before.
                let told = state.log.is_empty() && state.dirty.is_empty();
                (goes && told && state.size == state.server_size).then(|| {
                    let size = state.size.max(end);
                    self.commit_of_content(state.content_with(offset as usize, data), size)
                })
            };
            let Some(commit) = commit else {
                self.ctx.commit_files(std::slice::from_ref(self), Purpose::Flush).await;
                continue;
            };
            let taken = self.ctx.rpc.commit(vec![commit.clone()], false).await.pop();
            let taken = matches!(taken, Some(Ok(_)));
            {
                let mut state = self.state.borrow_mut();
                state.committing = false;
                if taken && state.generation == generation {
                    state.content_told(&commit, None);
                    // What is here is older.
                    state.inline.confirmed = false;
                    state.server_size = commit.size.unwrap_or(state.server_size);
                }
            }
            self.changed.notify_all();
            self.enqueue();
            return taken;
        }
        false
    }

    /// What was sent so is not to be there after all: the server is to have what is here.
    pub(super) fn unsend_content(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        if state.is_at_rest_inline(0) {
            self.log_unconfirmed(&mut state);
        } else if state.can_be_inline() {
            state.push_edit(Edit::Unmap { from: FileBlock(0), to: 1 });
        }
        drop(state);
        self.enqueue();
    }

    fn commit_of_content(&self, bytes: Vec<u8>, size: u64) -> Commit {
        let now = self.stamp();
        Commit {
            ino: self.ino,
            edits: vec![Edit::Content { bytes: Bytes(bytes) }],
            size: Some(size),
            mtime: Some(now),
            ctime: Some(now),
            merge: false,
            tail_zero: true,
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
                if means.reserved.blocks() == 0
                    && let Some(place) = state.take_held_place()
                {
                    means.reserved.merge(place);
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

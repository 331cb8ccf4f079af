//! Inline data: block 0 of a small file, kept with the inode instead of in a data block.
//!
//! Invariants:
//! - block 0 is inline data, or mapped in the layout, or a hole; a dirty run may hold newer bytes
//!   of it;
//! - launching a run turns it into inline data on three conditions. The client holds the whole
//!   file. It knows that the layout is empty. The size is within the room that the server reported,
//!   or within the present inline data. This needs no write to a device, and no flush;
//! - the reported room is a hint: names and attributes may take it at any time. So inline data
//!   keeps the data block that was reserved for its bytes until the server has it. If the server
//!   has no room, block 0 becomes dirty again and goes to that block. A dirty run over such inline
//!   data takes over the block: none is reserved twice;
//! - inline data as long as what the server has acknowledged certainly has room there, even after a
//!   truncation that the server does not know: new inline data replaces the old one. Up to that
//!   length it needs no block;
//! - where no block is available, a write may still become inline data: the server has it before
//!   the write is answered;
//! - inline data that the server does not have holds its share of the dirty budget, too;
//! - clean inline data, over which nothing is dirty, is changed in memory as long as it certainly
//!   has room;
//! - inline data ends at the first launch of block 0 that does not fit: the server drops it when it
//!   applies the mapping. If that write fails, the old inline data is valid again;
//! - only the newest inline data among pending edits matters: older ones are removed, as are those
//!   before a hole of block 0, unless they belong to the current commit. A commit has one at most.

use std::rc::Rc;

use env::{Env, IoBuf};
use proto::mds::Edit;
use proto::wire::Bytes;
use types::limits::{BLOCK, BLOCK_U64, CONTENT_MAX};
use types::{Bug, Fault, FileBlock, Rights, planted};

use super::budget::Claim;
use super::context::Purpose;
use super::file::{DirtyRun, File, FileState, PendingEdit};
use super::inline_state::{Backing, drops_inline};
use super::pool::Reservation;
use super::target_room::Needs;
use super::write::{Missing, PreparedWrite, Unreserved};
use crate::boundary::Commit;

/// How often the file's other changes are committed before inline data is sent on its own.
const SEND_TRIES: u32 = 4;

impl FileState {
    /// Length of the inline data, if there is any.
    pub fn inline_bytes(&self) -> Option<usize> {
        self.inline.data.as_ref().map(Vec::len)
    }

    /// Is `block` inline data, apart from dirty bytes?
    pub fn is_inline(&self, block: u64) -> bool {
        block == 0 && self.inline.data.is_some()
    }

    /// If `block` is inline data: does it have only zeros from byte `from` on?
    pub fn ends_inline(&self, block: u64, from: u64) -> bool {
        block == 0
            && self.dirty_at(0).is_none()
            && self.inline_bytes().is_some_and(|len| len as u64 <= from)
    }

    /// Block 0, from the inline data.
    pub fn inline_block(&self, env: &Env) -> IoBuf {
        let mut out = env.buffer(BLOCK);
        if let Some(content) = &self.inline.data {
            out[..content.len()].copy_from_slice(content);
        }
        out
    }

    /// 1 if there is inline data: it counts as one block of the file.
    pub fn inline_blocks(&self) -> u64 {
        u64::from(self.inline.data.is_some())
    }

    /// Drops the inline data for good; the caller appends the edit for it.
    pub fn drop_inline(&mut self) -> bool {
        self.inline.settle();
        self.inline.confirmed = false;
        self.inline.backing = None;
        let had = self.inline.data.take().is_some();
        self.blocks = self.blocks.saturating_sub(u64::from(had));
        had
    }

    /// Block 0 got a place. The old inline data is kept in case the write there fails.
    pub fn replace_inline(&mut self) {
        let content = self.inline.data.take();
        self.blocks = self.blocks.saturating_sub(u64::from(content.is_some()));
        self.inline.replaced = content;
    }

    /// The write of block 0 to its new place failed: the old inline data is valid again, cut at the
    /// current size.
    pub fn restore_inline(&mut self) {
        if let Some(mut content) = self.inline.replaced.take() {
            let size = usize::try_from(self.size).unwrap_or(usize::MAX);
            self.inline.confirmed &= content.len() <= size;
            content.truncate(size);
            if !content.is_empty() {
                self.inline.data = Some(content);
                self.blocks += 1;
            }
        }
    }

    /// The client acquired or lost the range with block 0.
    pub fn load_inline(&mut self, content: &Bytes) {
        self.inline.clear();
        self.inline.set(content);
    }

    /// Is inline data among the pending edits?
    pub fn has_pending_inline(&self) -> bool {
        self.inline.backing.is_some()
            && self.edits.iter().any(|pending| matches!(pending.edit, Edit::Content { .. }))
    }

    /// These commits are about to be sent.
    pub fn inline_sent(&mut self, commits: &[Commit]) {
        let least = commits.iter().map(|commit| self.inline.left_by(commit, None).1).min();
        self.inline.in_flight_len = least;
    }

    /// The server applied a commit, or its first `done` edits.
    pub fn inline_applied(&mut self, commit: &Commit, done: Option<usize>) {
        self.inline.server_len = self.inline.left_by(commit, done).0;
        let did = &commit.edits[..done.unwrap_or(commit.edits.len())];
        let changes_block_0 =
            |edit: &&Edit| matches!(edit, Edit::Content { .. }) || drops_inline(edit);
        if let Some(last) = did.iter().rev().find(changes_block_0) {
            self.inline.confirmed =
                matches!(last, Edit::Content { .. }) && !self.has_pending_inline();
        }
    }

    /// No commit is in progress.
    pub fn inline_answered(&mut self) {
        self.inline.in_flight_len = None;
    }

    /// How many bytes of inline data certainly have room at the server once it has applied all
    /// pending edits, whatever room names and attributes take.
    fn guaranteed_room(&self) -> usize {
        let mut room = self.inline.server_len.min(self.inline.in_flight_len.unwrap_or(usize::MAX));
        if room == 0 {
            return 0;
        }
        for PendingEdit { seq, edit } in &self.edits {
            let sealed = *seq < self.sealed_below;
            match edit {
                Edit::Content { bytes } if sealed => room = room.min(bytes.0.len()),
                // New inline data replaces pending ones that no commit contains yet.
                Edit::Content { .. } => {}
                Edit::Unmap { .. } if !sealed => {}
                other if drops_inline(other) => return 0,
                _ => {}
            }
        }
        room
    }

    /// The server took a commit: inline data that it has needs no backing.
    pub fn inline_committed(&mut self) {
        if !self.has_pending_inline() {
            self.inline.backing = None;
        }
    }

    /// Would block 0 become inline data if it were launched at this file size?
    pub fn fits_inline(&self, size: u64) -> bool {
        let most = self.inline.max.max(self.inline_bytes().unwrap_or(0) as u64);
        self.inline.max > 0
            && (1..=most).contains(&size)
            && self.loaded_to == u64::MAX
            && self.layout.blocks() == 0
            && !self.holds_ranges()
    }

    /// Is `block` clean inline data, which can be changed in memory as long as it does not grow?
    pub fn is_clean_inline(&self, block: u64) -> bool {
        self.is_inline(block) && self.dirty_at(block).is_none() && !self.holds_ranges()
    }

    /// Does inline data up to `end` certainly have room, instead of clean inline data or of a hole?
    pub fn has_inline_room(&self, end: u64) -> bool {
        if end > CONTENT_MAX as u64 || !self.can_be_inline() {
            return false;
        }
        let there = self.inline_bytes().unwrap_or(0);
        let placed = self.backing_blocks() > 0 && end <= there as u64;
        placed || there.max(end as usize) <= self.guaranteed_room()
    }

    /// Is block 0 clean inline data, or a hole?
    fn can_be_inline(&self) -> bool {
        !self.holds_ranges()
            && self.loaded_to > 0
            && self.dirty_at(0).is_none()
            && self.layout.at(0).is_none()
    }

    /// May the client ask the server to take block 0 as inline data up to `end`?
    fn could_be_sent(&self, end: u64) -> bool {
        end <= CONTENT_MAX as u64
            && self.inline.capable
            && self.rights.contains(Rights::DATA_X)
            && self.loaded_to == u64::MAX
            && self.layout.blocks() == 0
            && self.can_be_inline()
    }

    /// Blocks reserved in case the server has no room for inline data.
    pub fn backing_blocks(&self) -> u64 {
        let backing = self.inline.backing.as_ref().filter(|backing| backing.block.is_valid());
        backing.map_or(0, |backing| backing.block.blocks())
    }

    /// Takes the block that backs the inline data, for a run that is dirty over it.
    pub fn take_backing_block(&mut self) -> Option<Reservation> {
        let blocks = if self.layout.at(0).is_none() { self.backing_blocks() } else { 0 };
        self.inline
            .backing
            .as_mut()
            .filter(|_| blocks > 0)
            .map(|backing| backing.block.split(blocks))
    }

    /// Reserved blocks of dirty runs, which count as the file's in addition to its mapped ones.
    pub fn dirty_blocks(&self) -> u64 {
        self.dirty.values().map(|run| run.reserved.blocks()).sum()
    }

    /// Sets the inline data; the next commit sends it.
    fn set_inline(&mut self, bytes: Vec<u8>, backing: Backing) {
        self.blocks += 1 - self.inline_blocks();
        self.inline.data = Some(bytes.clone());
        self.inline.settle();
        self.inline.confirmed = false;
        match &mut self.inline.backing {
            Some(before) if before.block.blocks() > 0 => {}
            Some(before) => before.block.merge(backing.block),
            None => self.inline.backing = Some(backing),
        }
        self.push_edit(Edit::Content { bytes: Bytes(bytes) });
    }

    /// Writes bytes at `at` into clean inline data or a hole; a gap before them is filled with
    /// zeros.
    pub fn put_inline(&mut self, at: usize, data: &[u8], backing: Backing) {
        self.set_inline(self.inline_with(at, data), backing);
    }

    /// The inline data with bytes from `at` on replaced.
    fn inline_with(&self, at: usize, data: &[u8]) -> Vec<u8> {
        let mut bytes = self.inline.data.clone().unwrap_or_default();
        bytes.resize(bytes.len().max(at + data.len()), 0);
        bytes[at..at + data.len()].copy_from_slice(data);
        bytes
    }

    /// Zeroes bytes `[from, to)` of clean inline data, and cuts it at the size.
    pub fn zero_inline(&mut self, from: usize, to: usize, backing: Backing) {
        let mut bytes = self.inline.data.clone().expect("the inline data is clean");
        if planted(Bug::ContentNotCut) {
            return;
        }
        let end = to.min(bytes.len());
        bytes[from.min(end)..end].fill(0);
        bytes.truncate(usize::try_from(self.size).unwrap_or(usize::MAX));
        self.set_inline(bytes, backing);
    }
}

impl File {
    /// A block's share of the budget and no block of the pool: the server certainly has room.
    pub(super) fn backing_without_block(&self, claim: Claim) -> Backing {
        Backing { claim, block: self.pool().no_blocks() }
    }

    /// Turns the run `[start, end)` into inline data, if it may be.
    pub(super) fn launch_inline(&self, state: &mut FileState, start: u64, end: u64) -> bool {
        if (start, end) != (0, 1) || !state.fits_inline(state.size) {
            return false;
        }
        let DirtyRun { buf, claim, reserved, .. } = state.dirty.remove(&start).expect("given");
        let bytes = buf[..state.size as usize].to_vec();
        state.set_inline(bytes, Backing { claim, block: reserved });
        state.disk_size = state.disk_size.max(state.size);
        state.tail_zero = true;
        state.tail = None;
        true
    }

    /// The server had no room: moves inline data to its reserved block, unless block 0 is mapped by
    /// now. `refused`: the refused commit contained inline data. Returns `false` if there is no
    /// block, or if the server had no room for something else.
    pub(super) fn move_refused_inline(&self, state: &mut FileState, refused: bool) -> bool {
        if !state.has_pending_inline() {
            // A later edit has replaced it.
            return refused;
        }
        let clean = state.is_clean_inline(0);
        let mut backing = state.inline.backing.take().expect("inline data is pending");
        if clean && backing.block.blocks() == 0 {
            let long = state.inline_bytes().is_some_and(|len| len > state.inline.server_len);
            match long.then(|| self.pool().reserve(1)).flatten() {
                Some(block) => backing.block.merge(block),
                None => {
                    state.inline.backing = Some(backing);
                    return false;
                }
            }
        }
        state.edits.retain(|pending| !matches!(pending.edit, Edit::Content { .. }));
        state.inline.max = 0;
        // Runs launched behind block 0, or instead of the inline data, count for the size.
        if state.disk_size <= BLOCK_U64 && state.layout.at(0).is_none() {
            state.disk_size = state.disk_size.min(state.server_size);
        }
        if clean {
            let Backing { claim, block } = backing;
            self.make_inline_dirty(
                state,
                PreparedWrite { claim, reserved: block, fetched: Vec::new(), stream: None },
            );
        }
        true
    }

    /// A write that was to replace inline data failed: the old one is sent again if the server may
    /// not have it.
    pub(super) fn resend_unconfirmed(&self, state: &mut FileState) {
        let sent = state.inline.confirmed || state.has_pending_inline();
        if sent || !state.is_clean_inline(0) {
            return;
        }
        let bytes = state.inline.data.clone().expect("the inline data is clean");
        let mut backing = self.backing_without_block(self.ctx.budget.force(BLOCK_U64));
        if bytes.len() > state.guaranteed_room()
            && state.backing_blocks() == 0
            && let Some(block) = self.pool().reserve(1)
        {
            backing.block.merge(block);
        }
        state.set_inline(bytes, backing);
    }

    /// Used where no block is available. Sends block 0 as inline data to the server, with `data` at
    /// `offset`. `true`: the server has it, so a write of these bytes certainly has room. The file
    /// in memory does not have them yet.
    pub(super) async fn send_inline(
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
                let may_send = state.generation == generation && state.could_be_sent(end);
                // Commit what was accepted earlier first.
                let nothing_pending = state.edits.is_empty() && state.dirty.is_empty();
                (may_send && nothing_pending && state.size == state.server_size).then(|| {
                    let size = state.size.max(end);
                    self.inline_commit(state.inline_with(offset as usize, data), size)
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
                    state.inline_applied(&commit, None);
                    // The data in memory is older than the server's.
                    state.inline.confirmed = false;
                    state.server_size = commit.size.unwrap_or(state.server_size);
                }
            }
            self.notify();
            self.enqueue();
            return taken;
        }
        false
    }

    /// The write failed after [`File::send_inline`]: the server is to have the data in memory
    /// again.
    pub(super) fn revert_sent_inline(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        if state.is_clean_inline(0) {
            self.resend_unconfirmed(&mut state);
        } else if state.can_be_inline() {
            state.push_edit(Edit::Unmap { from: FileBlock(0), to: 1 });
        }
        drop(state);
        self.enqueue();
    }

    fn inline_commit(&self, bytes: Vec<u8>, size: u64) -> Commit {
        let now = self.change_time();
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

    /// From now on block 0 is to be mapped to a data block, like preallocated blocks.
    pub(super) async fn move_inline_to_block(self: &Rc<Self>) -> Result<(), Fault> {
        let mut prepared = self.prepare_one_block();
        loop {
            self.ensure_loaded(1).await?;
            {
                let mut state = self.state.borrow_mut();
                if !prepared.reserved.is_valid() {
                    return Err(Fault::Evicted);
                }
                if !state.is_clean_inline(0) {
                    state.inline.max = 0;
                    return Ok(());
                }
                if prepared.reserved.blocks() == 0
                    && let Some(block) = state.take_backing_block()
                {
                    prepared.reserved.merge(block);
                }
                if prepared.reserved.blocks() > 0 {
                    state.inline.max = 0;
                    self.make_inline_dirty(&mut state, prepared);
                    break;
                }
            }
            let needed =
                Unreserved { missing: 1, room: Needs::default(), range: (0, 1), tail: None };
            self.acquire_missing(&mut prepared, Missing::Space(needed)).await?;
        }
        self.enqueue();
        Ok(())
    }

    /// Makes clean inline data dirty, with a block reserved.
    fn make_inline_dirty(&self, state: &mut FileState, mut prepared: PreparedWrite) {
        let buf = state.inline_block(&self.ctx.env);
        self.insert_run(state, &mut prepared, 0, buf);
        state.mark_stale(0, 1);
    }

    /// See [`crate::boundary::FileContent::inline_len`].
    pub(super) async fn inline_len(self: &Rc<Self>) -> Result<usize, Fault> {
        self.ensure_loaded(1).await?;
        Ok(self.state.borrow().inline_bytes().unwrap_or(0))
    }
}

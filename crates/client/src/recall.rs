//! Recalls: the kernel's caches are emptied, dirty data committed, the rights given back.
//!
//! Invariants:
//! - attributes and names stop being answered from memory at the recall, before the
//!   kernel is told; data stop at the end of the drain;
//! - nothing here waits for an ordinary slot, a FUSE request or another recall, except
//!   for the one that drains the same file;
//! - every recall is answered, also of what is not held (any more);
//! - an inode is known until the server has what was given back of it: answers from before may tell
//!   of that;
//! - `OPEN` is kept as long as the kernel may still open the inode ([`crate::linger`]).
//!
//! A right on content that has just come is used for a moment before it drains (`LEAST_USE`). The
//! rounds by which data drain:
//!
//! | round | READ and WRITE through pages | other READ, WRITE, fallocate | write-back, truncation | kernel |
//! |---|---|---|---|---|
//! | first | served, noted | served | served | invalidate all pages but those of waiting READs |
//! | next, while something is noted | parked | parked | served | invalidate what was noted, but pages of waiting READs |
//! | … if that takes over 2 ms | on its range served, noted | parked | served | (a waiting request has a page locked) |
//! | last: nothing noted | parked | parked | served | wait for zero uses, commit, give back |
//!
//! Noted is what may be up to date behind the invalidation: pages that a READ fills or a WRITE
//! covers. A WRITE of a part leaves a page as it is, up to date or not. Each round invalidates only
//! what was noted in the one before, and in that only requests were served that had locked pages of
//! its range: so the rounds end.
//!
//! Parts drain without the kernel, which has no pages of them: what has a block of the part is
//! parked, and the part goes when nothing of it is in service or dirty. The rest of the file is
//! served on.
use std::rc::Rc;

use proto::mds::{Op, Push};
use types::{BlockRange, Bug, Duration, Fault, FileKind, Ino, Rights, planted};

use crate::core::Core;
use crate::inode::{Inode, Stays};
use crate::pages::Recalling;
use crate::rpc::Call;
use crate::uses::Content;

/// How long an invalidation may wait for pages that waiting requests may have locked.
const PATIENCE: Duration = Duration::from_millis(2);

/// What of `soft` is given up: all of it, unless a bug is planted.
fn kept_by_mistake(soft: Rights) -> Rights {
    if planted(Bug::NamesKeptAfterRecall) {
        return soft - Rights::NAMES;
    }
    if planted(Bug::AttrKeptAfterRecall) { soft - Rights::ATTR } else { soft }
}

impl Core {
    /// The server said something.
    pub fn pushed(self: &Rc<Self>, push: Push) {
        match push {
            Push::Recall { ino, seq, take, range: part } => {
                self.recalls.set(self.recalls.get() + 1);
                self.begin_recall(ino, seq, take, part);
            }
            Push::LockFree { ino, owner } => self.locks.freed(ino, owner),
            Push::SpaceWanted {} => {
                let core = self.clone();
                self.env.spawn(async move { core.give_unused().await });
            }
            Push::Glimpse { .. } | Push::Evicted { .. } | Push::Committed { .. } => {}
        }
    }

    fn begin_recall(self: &Rc<Self>, ino: Ino, seq: u64, take: Rights, part: Option<BlockRange>) {
        let core = self.clone();
        let Some(inode) = self.inodes.get(ino) else {
            return self.recalled_early((ino, seq), take, part);
        };
        inode.lease(|lease| lease.recalled(seq, take));
        let soft = take & (Rights::ATTR | Rights::NAMES);
        inode.give(kept_by_mistake(soft), self.session.order());
        let stays = Stays::known(&inode);
        self.env.spawn(async move {
            core.recall(&inode, seq, (take, part)).await;
            core.inodes.stayed(stays);
        });
    }

    async fn recall(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        seq: u64,
        (take, part): (Rights, Option<BlockRange>),
    ) {
        let ino = inode.ino;
        let soft = Rights::ATTR | Rights::NAMES;
        // What the kernel was never told, or has forgotten, it need not be told to forget.
        let known = ino == Ino::ROOT || !inode.is_idle();
        if known && take.contains(Rights::NAMES) {
            self.kernel.inc_epoch().await;
        }
        let content = inode.content();
        let mut telling = content.map(|content| content.pages.recall(self.env.now()));
        if known && take.contains(Rights::ATTR) {
            self.kernel.inval_attr(ino).await;
        }
        let data = take & Rights::WHOLE;
        if !data.is_empty() && inode.kind() == FileKind::Regular {
            self.let_use(inode, data).await;
            self.drain(inode, data, &mut telling).await;
        }
        drop(telling);
        if take.contains(Rights::DATA_P) {
            self.drain_part(inode, part.unwrap_or(BlockRange::ALL)).await;
            if part.is_none() {
                inode.give(Rights::DATA_P, self.session.order());
            }
        }
        let still_open = take.contains(Rights::OPEN) && self.stays_open(inode).await;
        let give = if still_open { take - Rights::OPEN } else { take };
        if still_open {
            inode.owe_open();
            self.see_to_open(inode);
        }
        inode.give(give & Rights::OPEN, self.session.order());
        // The server may have restarted since, and given some of that anew. What is not held is
        // given up under the sequence that the return names, too: an answer under way may still
        // tell of it.
        let (last, held) = inode.lease(|lease| (lease.seq(), lease.rights()));
        let anew = if last > seq { held & soft } else { Rights::empty() };
        if !planted(Bug::ReturnKept) {
            let gone = kept_by_mistake((give - anew) & soft);
            inode.lease(|lease| lease.give(gone));
        }
        self.give_back((ino, last.max(seq)), give - anew, still_open, part).await;
    }

    pub(crate) async fn give_back(
        &self,
        (ino, seq): (Ino, u64),
        give: Rights,
        still_open: bool,
        part: Option<BlockRange>,
    ) {
        let op = Op::Return { ino, seq, give, still_open, range: part };
        // After an eviction there is nothing left to give back.
        let _ = self.session.call(Call::reserved(vec![op])).await;
    }

    /// Gives up the rights on the whole content of its own accord. The server hears of it, but
    /// nothing is awaited after they were given up here.
    pub async fn leave_whole(&self, inode: &Rc<Inode>) {
        self.drain(inode, Rights::WHOLE, &mut None).await;
        let Some(core) = self.me.upgrade() else { return };
        let (ino, seq) = (inode.ino, inode.lease(|lease| lease.seq()));
        let stays = Stays::known(inode);
        self.env.spawn(async move {
            core.give_back((ino, seq), Rights::WHOLE, false, None).await;
            core.inodes.stayed(stays);
        });
    }

    /// Lets processes use `data` rights for a while that have just come: each client gets on,
    /// however fast they are asked back.
    async fn let_use(&self, inode: &Inode, data: Rights) {
        while let Some(content) = inode.content()
            && inode.lease(|lease| lease.rights().closed()).intersects(data)
            && let Some(until) = content.used_until(self.env.now())
        {
            self.env.sleep_until(until).await;
        }
    }

    /// Takes `data` rights from the requests that use them, and gives them up locally. `telling` ends
    /// when the kernel has dropped the pages, before what is dirty is flushed.
    async fn drain(&self, inode: &Rc<Inode>, data: Rights, telling: &mut Option<Recalling>) {
        if inode.content().is_none() && !inode.has_pages() {
            inode.give(data, self.session.order());
            return;
        }
        let content = self.content(inode);
        let _draining = content.draining.lock().await;
        let held = inode.lease(|lease| lease.rights().closed()) & data;
        if held.is_empty() {
            inode.give(data, self.session.order());
            return;
        }
        content.begin_drain(BlockRange::ALL);
        content.shared.set(true);
        if inode.has_pages() {
            self.drop_pages(inode, &content, data, content.all_unlocked()).await;
        }
        self.rounds(inode, &content, data, telling).await;
        inode.set_pages(false);
        inode.give(data, self.session.order());
        if planted(Bug::DataKeptAfterRecall) {
            content.end_drain();
            return;
        }
        let left = inode.lease(|lease| lease.rights().closed());
        if !left.contains(Rights::DATA_X) {
            content.may_not_write();
        }
        if !left.contains(Rights::DATA_S) {
            content.set_loaded(false);
        }
        content.file.rights_lost(left & Rights::WHOLE);
        content.end_drain();
    }

    /// Takes `range` from the requests that use parts of it, and gives it up locally.
    async fn drain_part(&self, inode: &Inode, range: BlockRange) {
        if let Some(content) = inode.content() {
            self.empty_part(inode, &content, range).await;
        }
    }

    /// Gives up all parts locally, because the whole will take their place.
    pub async fn leave_parts(&self, inode: &Inode, content: &Content) {
        if content.holds_parts() {
            self.empty_part(inode, content, BlockRange::ALL).await;
        }
    }

    async fn empty_part(&self, inode: &Inode, content: &Content, range: BlockRange) {
        let _draining = content.draining.lock().await;
        let held = content.parts.borrow().within(range).next().is_some();
        if !held {
            return;
        }
        content.begin_drain(range);
        content.park();
        loop {
            let changed = content.changed.notified();
            if content.is_used_in(range) {
                changed.await;
                continue;
            }
            // With the last part everything goes that is known of the file.
            let last = content.parts.borrow().iter().all(|part| range.contains(part.range));
            let range = if last { BlockRange::ALL } else { range };
            if content.file.is_settled_in(range) || planted(Bug::RecallWithoutFlush) {
                break;
            }
            content.file.resume();
            if let Err(fault) = content.file.flush_range(range).await
                && !content.file.is_settled_in(range)
            {
                self.log_loss(inode, fault);
                content.file.discard_for_recall();
            }
        }
        if planted(Bug::DataKeptAfterRecall) {
            content.end_drain();
            return;
        }
        content.parts.borrow_mut().remove(range);
        if content.holds_parts() {
            content.file.range_lost(range);
        } else {
            content.may_not_write();
            content.file.rights_lost(Rights::empty());
        }
        content.end_drain();
    }

    fn log_loss(&self, inode: &Inode, fault: Fault) {
        self.session.log(&format!(
            "{}: data were lost when another client asked for the file: {fault}",
            self.origins.describe(inode.ino)
        ));
    }

    /// Has the kernel drop pages, while requests that keep one locked are served. If the session is
    /// lost they are not, before the drain has ended: then this ends, too, and the kernel drops
    /// them all for the loss.
    async fn drop_pages(
        &self,
        inode: &Inode,
        content: &Content,
        data: Rights,
        ranges: Vec<(u64, u64)>,
    ) {
        let (kernel, ino) = (self.kernel.clone(), inode.ino);
        let (dropping, passing) = (content.pages.dropping(ranges.clone()), ranges.clone());
        let mut dropped = self.env.spawn_join(async move {
            for (start, end) in ranges {
                let len = if end == u64::MAX { 0 } else { end - start };
                kernel.inval_pages(ino, start, len).await;
            }
            drop(dropping);
        });

        while self.env.timeout(PATIENCE, &mut dropped).await.is_none() {
            content.let_pass(&passing);
            if inode.lease(|lease| lease.rights().closed() & data).is_empty() {
                return;
            }
        }
        content.let_pass(&[]);
    }

    /// Ends when nothing is noted, in service or dirty; nothing is awaited after that was seen.
    async fn rounds(
        &self,
        inode: &Rc<Inode>,
        content: &Rc<Content>,
        data: Rights,
        telling: &mut Option<Recalling>,
    ) {
        loop {
            content.park();
            if let Some(ranges) = content.take_noted() {
                self.drop_pages(inode, content, data, ranges).await;
                continue;
            }
            let changed = content.changed.notified();
            if content.uses() > 0 {
                changed.await;
                continue;
            }
            if content.file.is_settled() || planted(Bug::RecallWithoutFlush) {
                return;
            }
            telling.take();
            // A removal that holds the file back waits for the gate that this recall keeps shut.
            content.file.resume();
            if let Err(fault) = content.file.flush().await
                && !content.file.is_clean()
            {
                self.log_loss(inode, fault);
                content.file.drop_all(true);
            }
        }
    }
}

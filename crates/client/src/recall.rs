//! Recalls: the client empties the kernel's caches, commits dirty data, and returns the rights.
//!
//! Invariants:
//! - the client stops answering attributes and names from memory at the recall, before it notifies
//!   the kernel; it stops serving data at the end of the drain;
//! - nothing here waits for an ordinary slot, a FUSE request or another recall, except for a recall
//!   that drains the same file;
//! - every recall is answered, even if the right is not held (any more);
//! - an inode stays in the table until the server has what was returned of it: replies from before
//!   may describe it;
//! - `OPEN` is kept as long as the kernel may still open the inode ([`crate::linger`]).
//!
//! A newly granted right on content is used for a moment before it drains (`MIN_HOLD`), and at
//! least for one request. Data drain in these rounds:
//!
//! | round | READ and WRITE through pages | other READ, WRITE, fallocate | write-back, truncation | kernel |
//! |---|---|---|---|---|
//! | first | served, noted | served | served | invalidate all pages except those of blocked READs |
//! | next, while something is noted | blocked | blocked | served | invalidate what was noted, except pages of blocked READs |
//! | … if that takes longer | on its range: served, noted; after 1 ms if it fills a page | blocked | served | (a blocked request has a page locked) |
//! | last: nothing noted | blocked | blocked | served | wait for zero guards, commit, return |
//!
//! Noted are the pages that may be up to date after the invalidation: those that a READ fills or a
//! WRITE covers. A WRITE of a part leaves a page as it is, up to date or not. Each round
//! invalidates only what was noted in the one before. In that round only requests were served that
//! had locked pages of its range, those that fill a page for a while. So the rounds end, also where
//! a process asks for each page again as soon as it was dropped, and each such READ takes longer
//! than the round would. A WRITE of a part does not wait: nothing of it is to be invalidated, and a
//! process that writes without a pause would lock the page again before the invalidation does.
//!
//! Ranges drain without the kernel, which has no pages of them. Requests on a block of the range
//! are blocked, and the range is given up when nothing of it is in service or dirty. The rest of
//! the file is served meanwhile.
use std::rc::Rc;

use proto::mds::{Op, Push};
use types::{BlockRange, Bug, Duration, Fault, FileKind, Ino, Rights, ServerId, planted};

use crate::boundary::FileContent;
use crate::core::Core;
use crate::data_lease::{DataLease, IDLE_GAP};
use crate::inode::{Inode, InodePin};
use crate::pages::Recalling;
use crate::rpc::Call;

/// How long an invalidation may wait for pages that blocked requests may have locked. A request
/// that comes meanwhile is blocked for so long at least, and for twice as long at most.
const PAGE_LOCK_WAIT: Duration = Duration::from_millis(1);

/// The part of `soft` that is given up: all of it, unless a bug is planted.
fn kept_by_mistake(soft: Rights) -> Rights {
    if planted(Bug::NamesKeptAfterRecall) {
        return soft - Rights::NAMES;
    }
    if planted(Bug::AttrKeptAfterRecall) { soft - Rights::ATTR } else { soft }
}

impl Core {
    /// Handles a push of `server`.
    pub fn push_received(self: &Rc<Self>, server: ServerId, push: Push) {
        match push {
            Push::Recall { ino, seq, take, range: part } => {
                self.recalls.set(self.recalls.get() + 1);
                self.begin_recall(server, (ino, seq), take, part);
            }
            Push::LockFree { ino, owner } => self.locks.notify_freed(ino, owner),
            Push::SpaceWanted {} => {
                let core = self.clone();
                self.env.spawn(async move { core.return_unused_space(server).await });
            }
            Push::Zones { list } => self.zones_reported(server, list),
            Push::Glimpse { .. } | Push::Evicted { .. } | Push::Committed { .. } => {}
        }
    }

    fn begin_recall(
        self: &Rc<Self>,
        server: ServerId,
        (ino, seq): (Ino, u64),
        take: Rights,
        part: Option<BlockRange>,
    ) {
        let core = self.clone();
        let Some(inode) = self.inodes.get(ino) else {
            return self.recall_unknown_inode(server, (ino, seq), take, part);
        };
        if self.rpc.server_of(ino) == server {
            inode.lease(|lease| lease.recalled(seq, take));
        }
        let soft = take & (Rights::ATTR | Rights::NAMES);
        inode.give_up(kept_by_mistake(soft), self.rpc.order());
        let pin = InodePin::new(&inode);
        self.env.spawn(async move {
            core.recall(&inode, (server, seq), (take, part)).await;
            core.inodes.unpin(pin);
        });
    }

    async fn recall(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        (server, seq): (ServerId, u64),
        (take, part): (Rights, Option<BlockRange>),
    ) {
        let ino = inode.ino;
        let soft = Rights::ATTR | Rights::NAMES;
        // The kernel need not be notified of what it never got, or has forgotten.
        let known = ino == Ino::ROOT || !inode.is_idle();
        if known && take.contains(Rights::NAMES) {
            self.kernel.inc_epoch().await;
        }
        let data_lease = inode.data_lease();
        let mut telling = data_lease.map(|data| data.pages.recall(self.env.now()));
        if known && take.contains(Rights::ATTR) {
            self.kernel.inval_attr(ino).await;
        }
        if self.rpc.server_of(ino) != server {
            // The directory lives elsewhere, and nothing counts of what this server has granted.
            return self.give_back(server, (ino, seq), take, false, part).await;
        }
        let data = take & Rights::WHOLE;
        if !data.is_empty() && inode.kind() == FileKind::Regular {
            self.allow_minimum_use(inode, data).await;
            self.drain(inode, data, &mut telling).await;
        }
        drop(telling);
        if take.contains(Rights::DATA_P) {
            self.drain_range(inode, part.unwrap_or(BlockRange::ALL)).await;
            if part.is_none() {
                inode.give_up(Rights::DATA_P, self.rpc.order());
            }
        }
        let still_open = take.contains(Rights::OPEN) && self.stays_open(inode).await;
        let give = if still_open { take - Rights::OPEN } else { take };
        if still_open {
            inode.owe_open();
            self.schedule_open_return(inode);
        }
        inode.give_up(give & Rights::OPEN, self.rpc.order());
        // The server may have restarted since, and granted some of that again. Rights that are not
        // held are given up too, under the sequence that the return names: a reply in flight may
        // still grant them.
        let (last, held) = inode.lease(|lease| (lease.seq(), lease.rights()));
        let regranted = if last > seq { held & soft } else { Rights::empty() };
        if !planted(Bug::ReturnKept) {
            let gone = kept_by_mistake((give - regranted) & soft);
            inode.lease(|lease| lease.give(gone));
        }
        self.give_back(server, (ino, last.max(seq)), give - regranted, still_open, part).await;
    }

    /// Returns rights to the server that has granted them under `seq`.
    pub(crate) async fn give_back(
        &self,
        server: ServerId,
        (ino, seq): (Ino, u64),
        give: Rights,
        still_open: bool,
        part: Option<BlockRange>,
    ) {
        let op = Op::Return { ino, seq, give, still_open, range: part };
        // After an eviction there is nothing left to return.
        let _ = self.rpc.call_at(server, Call::reserved(vec![op])).await;
    }

    /// Gives up the rights on the whole content voluntarily. The server is notified, but nothing is
    /// awaited after the rights were given up here.
    pub async fn give_up_whole(&self, inode: &Rc<Inode>) {
        self.drain(inode, Rights::WHOLE, &mut None).await;
        let Some(core) = self.me.upgrade() else { return };
        let (ino, seq) = (inode.ino, inode.lease(|lease| lease.seq()));
        let (pin, server) = (InodePin::new(inode), self.rpc.server_of(ino));
        self.env.spawn(async move {
            core.give_back(server, (ino, seq), Rights::WHOLE, false, None).await;
            core.inodes.unpin(pin);
        });
    }

    /// Lets processes use newly granted `data` rights for a while: each client makes progress,
    /// however fast they are recalled.
    async fn allow_minimum_use(&self, inode: &Inode, data: Rights) {
        while let Some(data_lease) = inode.data_lease()
            && inode.lease(|lease| lease.rights().closed()).intersects(data)
            && let Some(until) = data_lease.keep_until(self.env.now())
        {
            self.env.sleep_until(until).await;
        }
        self.allow_first_use(inode, data).await;
    }

    /// Waits until the first request under newly granted rights has its answer, for which the drain
    /// would wait as well; then its process may use the page that it got.
    async fn allow_first_use(&self, inode: &Inode, data: Rights) {
        let mut has_waited = false;
        while let Some(data_lease) = inode.data_lease()
            && inode.lease(|lease| lease.rights().closed()).intersects(data)
        {
            let changed = data_lease.changed.notified();
            if !data_lease.waits_for_first_use() {
                break;
            }
            changed.await;
            has_waited = true;
        }
        if has_waited {
            self.env.sleep(IDLE_GAP).await;
        }
    }

    /// Waits for the requests that use `data` rights, and gives the rights up locally. `telling`
    /// ends when the kernel has dropped the pages, before what is dirty is flushed.
    async fn drain(&self, inode: &Rc<Inode>, data: Rights, telling: &mut Option<Recalling>) {
        if inode.data_lease().is_none() && !inode.has_pages() {
            inode.give_up(data, self.rpc.order());
            return;
        }
        let data_lease = self.data_lease(inode);
        self.wait_for_given_up(inode, &data_lease).await;
        let _draining = data_lease.draining.lock().await;
        let held = inode.lease(|lease| lease.rights().closed()) & data;
        if held.is_empty() {
            inode.give_up(data, self.rpc.order());
            return;
        }
        data_lease.begin_drain();
        if inode.has_pages() {
            self.drop_pages(inode, &data_lease, data, data_lease.all_unlocked()).await;
        }
        self.drain_rounds(inode, &data_lease, data, telling).await;
        inode.set_pages(false);
        inode.give_up(data, self.rpc.order());
        if planted(Bug::DataKeptAfterRecall) {
            data_lease.end_drain();
            return;
        }
        let left = inode.lease(|lease| lease.rights().closed());
        data_lease.whole_given_up(left);
        data_lease.end_drain();
    }

    /// Waits until no target can make a change any more that nobody here waits for. Until then it
    /// could fall on what another client writes.
    async fn wait_for_given_up(&self, inode: &Inode, data_lease: &DataLease) {
        if data_lease.file.has_given_up() {
            self.rpc.log(&format!(
                "{}: other clients wait until its target answers: it may have a write in flight \
                 that was given up when the zone was called lost",
                self.path_hints.describe(inode.ino)
            ));
            data_lease.file.given_up_ended().await;
        }
    }

    /// Waits for the requests that use ranges within `range`, and gives these up locally.
    async fn drain_range(&self, inode: &Inode, range: BlockRange) {
        if let Some(data_lease) = inode.data_lease() {
            self.drain_ranges_in(inode, &data_lease, range).await;
        }
    }

    /// Gives up all ranges locally, because the whole right will replace them.
    pub async fn give_up_ranges(&self, inode: &Inode, data_lease: &DataLease) {
        if data_lease.holds_ranges() {
            self.drain_ranges_in(inode, data_lease, BlockRange::ALL).await;
        }
    }

    async fn drain_ranges_in(&self, inode: &Inode, data_lease: &DataLease, range: BlockRange) {
        self.wait_for_given_up(inode, data_lease).await;
        let _draining = data_lease.draining.lock().await;
        if !data_lease.holds_range_in(range) {
            return;
        }
        data_lease.begin_range_drain(range);
        loop {
            let changed = data_lease.changed.notified();
            if data_lease.has_io_in(range) {
                changed.await;
                continue;
            }
            // With the last range, everything that is known of the file goes.
            let last = data_lease.holds_ranges_only_in(range);
            let range = if last { BlockRange::ALL } else { range };
            if data_lease.file.has_given_up() {
                data_lease.file.given_up_ended().await;
                continue;
            }
            if data_lease.file.is_settled_in(range) || planted(Bug::RecallWithoutFlush) {
                break;
            }
            data_lease.file.resume();
            if let Err(fault) = data_lease.file.flush_range(range).await
                && !data_lease.file.is_settled_in(range)
            {
                self.log_loss(inode, fault);
                data_lease.file.discard_for_recall();
            }
        }
        if planted(Bug::DataKeptAfterRecall) {
            data_lease.end_drain();
            return;
        }
        data_lease.ranges_given_up(range);
        data_lease.end_drain();
    }

    fn log_loss(&self, inode: &Inode, fault: Fault) {
        self.rpc.log(&format!(
            "{}: data were lost when another client requested the file: {fault}",
            self.path_hints.describe(inode.ino)
        ));
    }

    /// Asks the kernel to drop pages, while requests that keep one locked are served. If the
    /// session is lost they are not served before the drain has ended: then this ends, too, and the
    /// kernel drops all pages because of the loss.
    async fn drop_pages(
        &self,
        inode: &Inode,
        data_lease: &DataLease,
        data: Rights,
        ranges: Vec<(u64, u64)>,
    ) {
        let (kernel, ino) = (self.kernel.clone(), inode.ino);
        let (dropping, passing) = (data_lease.pages.dropping(ranges.clone()), ranges.clone());
        let mut dropped = self.env.spawn_join(async move {
            for (start, end) in ranges {
                let len = if end == u64::MAX { 0 } else { end - start };
                kernel.inval_pages(ino, start, len).await;
            }
            drop(dropping);
        });

        // A request that fills a page passes if it was blocked when the wait before this one ended.
        let mut blocked = data_lease.next_number();
        while self.env.timeout(PAGE_LOCK_WAIT, &mut dropped).await.is_none() {
            blocked = data_lease.set_passing(&passing, blocked);
            if inode.lease(|lease| lease.rights().closed() & data).is_empty() {
                return;
            }
        }
        data_lease.set_passing(&[], 0);
    }

    /// Ends when nothing is noted, in service or dirty; awaits nothing after it has seen that.
    async fn drain_rounds(
        &self,
        inode: &Rc<Inode>,
        data_lease: &Rc<DataLease>,
        data: Rights,
        telling: &mut Option<Recalling>,
    ) {
        loop {
            data_lease.block_new_requests();
            if let Some(ranges) = data_lease.take_noted() {
                self.drop_pages(inode, data_lease, data, ranges).await;
                continue;
            }
            let changed = data_lease.changed.notified();
            if data_lease.has_io() {
                changed.await;
                continue;
            }
            if data_lease.file.has_given_up() {
                telling.take();
                data_lease.file.given_up_ended().await;
                continue;
            }
            if data_lease.file.is_settled() || planted(Bug::RecallWithoutFlush) {
                return;
            }
            telling.take();
            // A removal that holds the file back waits for the gate that this recall keeps closed.
            data_lease.file.resume();
            if let Err(fault) = data_lease.file.flush().await
                && !data_lease.file.is_clean()
            {
                self.log_loss(inode, fault);
                data_lease.file.drop_all(true);
            }
        }
    }
}

//! Blocks that the server gave to this client and that belong to no file yet.
//!
//! Invariants:
//! - every block of the pool is free (in the active or the standby pool), in one window, or set
//!   aside;
//! - the blocks of *avoided* zones are set aside: they are neither reserved nor allocated;
//! - `reserved` never exceeds the blocks of the pool that are not set aside: accepted bytes have a
//!   place. Only when blocks are set aside the pool is *short* of blocks, until more are granted;
//! - *tainted* blocks may still be written by a request of this client, and go to no other file.
//!   They return to the server once no write is in flight; those of a removed file are free once
//!   its own writes have ended.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proto::mds::PagRun;
use proto::prealloc::{Policy, Request, Space as _};
use types::{FileBlock, Ino, PagId};

use super::double_pool::{DoublePool, Refill, Wanted};
use super::target_room::Room;
use super::windows::Windows;

/// A contiguous run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PoolRun {
    /// Data zone.
    pub pag: PagId,
    /// First block.
    pub addr: u64,
    /// Blocks.
    pub len: u64,
}

struct PoolState {
    free: DoublePool,
    windows: Windows,
    /// Blocks in free runs and windows.
    blocks: u64,
    avoided: BTreeSet<PagId>,
    /// Runs of avoided zones.
    aside: BTreeMap<(PagId, u64), u64>,
    reserved: u64,
    tainted: Vec<PoolRun>,
    /// Raised by an eviction: invalidates earlier reservations.
    generation: u64,
}

/// The pool of one client.
pub(super) struct Pool {
    inner: RefCell<PoolState>,
}

/// A number of blocks that the pool keeps for the holder, and room at targets; returned when
/// dropped.
pub(super) struct Reservation {
    pool: Rc<Pool>,
    blocks: u64,
    generation: u64,
    /// Room at targets.
    pub room: Room,
}

impl Reservation {
    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Does it belong to the current session?
    pub fn is_valid(&self) -> bool {
        self.blocks == 0 || self.generation == self.pool.inner.borrow().generation
    }

    /// Splits off up to `blocks`.
    pub fn split(&mut self, blocks: u64) -> Reservation {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        Reservation {
            pool: self.pool.clone(),
            blocks,
            generation: self.generation,
            room: Room::default(),
        }
    }

    /// Adds `other`.
    pub fn merge(&mut self, mut other: Reservation) {
        self.room.merge(std::mem::take(&mut other.room));
        if self.blocks == 0 {
            self.generation = other.generation;
        }
        if other.generation == self.generation {
            self.blocks += std::mem::take(&mut other.blocks);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut inner = self.pool.inner.borrow_mut();
        if inner.generation == self.generation {
            inner.reserved -= self.blocks;
        }
    }
}

impl Pool {
    /// An empty pool; `policy` chooses where files go on.
    pub fn new(policy: Policy) -> Rc<Pool> {
        Rc::new(Pool { inner: RefCell::new(PoolState::new(Windows::new(policy))) })
    }

    /// Blocks in the windows of files.
    pub fn in_windows(&self) -> u64 {
        self.inner.borrow().windows.held()
    }

    /// Blocks of the pool that are not reserved.
    pub fn available(&self) -> u64 {
        let inner = self.inner.borrow();
        inner.blocks.saturating_sub(inner.reserved)
    }

    /// Blocks of the pool, also those set aside.
    pub fn blocks(&self) -> u64 {
        self.inner.borrow().blocks + self.aside()
    }

    /// Blocks set aside.
    pub fn aside(&self) -> u64 {
        self.inner.borrow().aside.values().sum()
    }

    /// How many blocks have to be granted before `more` can be reserved.
    pub fn missing_for(&self, more: u64) -> u64 {
        let inner = self.inner.borrow();
        (inner.reserved + more).saturating_sub(inner.blocks)
    }

    /// Is a place for `need` reserved blocks certainly there?
    pub fn can_place(&self, need: u64) -> bool {
        self.inner.borrow().blocks >= need
    }

    /// Avoids a zone from now on, or no longer. Returns whether that is new.
    pub fn set_avoided(&self, pag: PagId, avoid: bool) -> bool {
        let mut inner = self.inner.borrow_mut();
        if avoid == inner.avoided.contains(&pag) {
            return false;
        }
        if avoid {
            let mut runs = inner.windows.take_zone(pag);
            runs.extend(inner.free.take_zone(pag).iter().map(PoolRun::from));
            inner.blocks -= runs.iter().map(|run| run.len).sum::<u64>();
            inner.avoided.insert(pag);
            runs.into_iter().for_each(|run| inner.add(run));
        } else {
            inner.avoided.remove(&pag);
            for run in inner.take_aside(|of| of == pag) {
                inner.add(run);
            }
        }
        true
    }

    /// Is this zone avoided?
    pub fn avoids(&self, pag: PagId) -> bool {
        self.inner.borrow().avoided.contains(&pag)
    }

    /// Has the pool `need` blocks of this zone, in free runs?
    pub fn has(&self, pag: PagId, need: u64) -> bool {
        self.inner.borrow().free.has(pag, need)
    }

    /// How blocks are asked for that the pool lacks in total, of which it should have `wanted`.
    /// Short runs do not count, but for those beyond as much again: a zone may have no others.
    pub fn refill(&self, wanted: Wanted) -> Refill {
        let short = self.inner.borrow().free.short(None).min(wanted.full);
        wanted.refill(self.available().saturating_sub(short))
    }

    /// How blocks of this zone are asked for, of which the active and the standby pool have `share`
    /// each when they are full.
    pub fn refill_zone(&self, pag: PagId, share: u64) -> Refill {
        let inner = self.inner.borrow();
        let wanted = Wanted { full: share, small: 0, streams: 0 };
        let short = inner.free.short(Some(pag)).min(share);
        match wanted.refill(inner.free.stock(pag) - short) {
            Refill::Enough if inner.free.needs(pag, share) => Refill::Rides,
            refill => refill,
        }
    }

    /// The free blocks of the standby pool.
    pub fn standby(&self) -> u64 {
        self.inner.borrow().free.standby()
    }

    /// The free blocks of this zone.
    pub fn stock(&self, pag: PagId) -> u64 {
        self.inner.borrow().free.stock(pag)
    }

    /// The zones that are avoided.
    pub fn avoided(&self) -> Vec<PagId> {
        self.inner.borrow().avoided.iter().copied().collect()
    }

    /// Removes the blocks set aside that are of these zones, to be returned to the server.
    pub fn drain_aside(&self, of: impl Fn(PagId) -> bool) -> Vec<PoolRun> {
        self.inner.borrow_mut().take_aside(of)
    }

    /// Tainted blocks.
    pub fn tainted(&self) -> u64 {
        self.inner.borrow().tainted.iter().map(|run| run.len).sum()
    }

    /// A reservation of no blocks.
    pub fn no_blocks(self: &Rc<Self>) -> Reservation {
        Reservation {
            pool: self.clone(),
            blocks: 0,
            generation: self.inner.borrow().generation,
            room: Room::default(),
        }
    }

    /// Reserves `blocks` if the pool has so many.
    pub fn reserve(self: &Rc<Self>, blocks: u64) -> Option<Reservation> {
        let mut inner = self.inner.borrow_mut();
        if inner.blocks < inner.reserved + blocks {
            return None;
        }
        inner.reserved += blocks;
        let generation = inner.generation;
        Some(Reservation { pool: self.clone(), blocks, generation, room: Room::default() })
    }

    /// Adds blocks that the server granted.
    pub fn grant(&self, runs: &[PagRun]) {
        let mut inner = self.inner.borrow_mut();
        for run in runs.iter().filter(|run| run.len > 0) {
            if inner.avoided.contains(&run.pag) {
                inner.add(run.into());
            } else {
                inner.blocks += run.len;
                inner.free.grant(run.clone());
            }
        }
        drop(inner);
        self.validate();
    }

    /// In builds with assertions: panics if the pool contradicts itself.
    pub fn validate(&self) {
        if cfg!(debug_assertions) {
            let inner = self.inner.borrow();
            inner.free.validate();
            let held = inner.free.free() + inner.windows.held();
            assert_eq!(inner.blocks, held, "blocks that are in no free run and no window");
        }
    }

    /// Adds blocks that the server chose for the file's blocks from `from` on.
    pub fn assign(&self, ino: Ino, from: FileBlock, run: PagRun) {
        let mut inner = self.inner.borrow_mut();
        if inner.avoided.contains(&run.pag) {
            return inner.add((&run).into());
        }
        let PoolState { free, windows, blocks, .. } = &mut *inner;
        *blocks += run.len;
        windows.assign(free, ino, from, run);
    }

    /// The file's blocks `[from, to)` need no place any more: what waits for them is free.
    pub fn unassign(&self, ino: Ino, from: FileBlock, to: FileBlock) {
        let PoolState { free, windows, .. } = &mut *self.inner.borrow_mut();
        windows.unassign(free, ino, from, to);
    }

    /// Takes back allocated blocks that became part of no file and that no write in flight can
    /// reach.
    pub fn give_back(&self, run: PoolRun) {
        self.inner.borrow_mut().add(run);
    }

    /// Keeps blocks until they are returned to the server.
    pub fn add_tainted(&self, run: PoolRun) {
        self.inner.borrow_mut().tainted.push(run);
    }

    /// No write reaches these tainted blocks any more: they are free, unless they were returned.
    pub fn untaint(&self, run: PoolRun) {
        let mut inner = self.inner.borrow_mut();
        let at = inner.tainted.iter().position(|tainted| *tainted == run);
        if let Some(at) = at {
            inner.tainted.swap_remove(at);
            inner.add(run);
        }
    }

    /// Allocates the blocks of `request` out of `reserved`, in the zone `prefer` if it has any.
    pub fn allocate(
        &self,
        request: &Request,
        prefer: Option<PagId>,
        reserved: &mut Reservation,
    ) -> Vec<PoolRun> {
        let need = request.len;
        assert!(need <= reserved.blocks, "allocating {need} of {} reserved", reserved.blocks);
        let mut inner = self.inner.borrow_mut();
        assert_eq!(inner.generation, reserved.generation, "a reservation of a lost session");
        reserved.blocks -= need;
        inner.reserved -= need;
        inner.blocks -= need;
        let PoolState { free, windows, .. } = &mut *inner;
        free.prefer = prefer;
        let out = windows.place(free, request);
        let placed: u64 = out.iter().map(|run| run.len).sum();
        assert_eq!(placed, need, "reserved blocks are in free runs or windows");
        out
    }

    /// The file is not written any more, or not through `handle`: frees its windows for others.
    pub fn release_windows(&self, ino: Ino, handle: Option<u64>) {
        let PoolState { free, windows, .. } = &mut *self.inner.borrow_mut();
        windows.close(free, ino, handle);
    }

    /// Removes unreserved blocks, beyond `keep` of them, to be returned to the server; with `keep`
    /// 0 also windows and tainted blocks.
    pub fn drain(&self, keep: u64) -> Vec<PoolRun> {
        let mut inner = self.inner.borrow_mut();
        let mut out = Vec::new();
        if keep == 0 {
            inner.close_windows();
            out = std::mem::take(&mut inner.tainted);
            out.extend(inner.take_aside(|_| true));
        }
        inner.surplus(keep, &mut out);
        out
    }

    /// Removes blocks of these zones, as far as reservations do not need them, to be returned to
    /// the server.
    pub fn drain_zones(&self, zones: &[PagId]) -> Vec<PoolRun> {
        let PoolState { free, windows, blocks, reserved, .. } = &mut *self.inner.borrow_mut();
        let mut out = Vec::new();
        for &zone in zones {
            windows.take_zone(zone).into_iter().for_each(|run| free.put(run.into()));
            let spare = blocks.saturating_sub(*reserved);
            let runs = free.cut_zone(zone, spare);
            *blocks -= runs.iter().map(|run| run.len).sum::<u64>();
            out.extend(runs.iter().map(PoolRun::from));
        }
        windows.trim(free);
        out
    }

    /// Removes the free blocks that no reservation needs, to be returned to the server. Those that
    /// wait for files stay.
    pub fn drain_free(&self) -> Vec<PoolRun> {
        let mut out = Vec::new();
        self.inner.borrow_mut().surplus(0, &mut out);
        out
    }

    /// Removes the tainted blocks, to be returned. No write may be in flight.
    pub fn drain_tainted(&self) -> Vec<PoolRun> {
        std::mem::take(&mut self.inner.borrow_mut().tainted)
    }

    /// Removes unreserved blocks, including windows, while requests go on: tainted blocks stay.
    pub fn drain_unused(&self) -> Vec<PoolRun> {
        let mut inner = self.inner.borrow_mut();
        if inner.blocks > inner.reserved {
            inner.close_windows();
        }
        let mut out = inner.take_aside(|_| true);
        inner.surplus(0, &mut out);
        out
    }

    /// The session is lost, and its blocks with it.
    pub fn forget(&self) {
        let mut inner = self.inner.borrow_mut();
        let generation = inner.generation + 1;
        let avoided = std::mem::take(&mut inner.avoided);
        let windows = inner.windows.forgotten();
        *inner = PoolState { generation, avoided, ..PoolState::new(windows) };
    }
}

/// Converts to the wire's form.
pub(super) fn to_wire(runs: &[PoolRun]) -> Vec<PagRun> {
    runs.iter().map(|&run| run.into()).collect()
}

impl PoolState {
    fn new(windows: Windows) -> PoolState {
        PoolState {
            free: DoublePool::default(),
            windows,
            blocks: 0,
            avoided: BTreeSet::new(),
            aside: BTreeMap::new(),
            reserved: 0,
            tainted: Vec::new(),
            generation: 0,
        }
    }

    /// Turns all windows into free runs.
    fn close_windows(&mut self) {
        self.windows.close_all(&mut self.free);
    }

    /// Removes unreserved free runs beyond `keep` blocks.
    fn surplus(&mut self, keep: u64, out: &mut Vec<PoolRun>) {
        let mut surplus = self.blocks.saturating_sub(self.reserved).saturating_sub(keep);
        let short = self.free.take_short(surplus);
        surplus -= short.iter().map(|run| run.len).sum::<u64>();
        self.blocks -= short.iter().map(|run| run.len).sum::<u64>();
        out.extend(short.iter().map(PoolRun::from));
        while surplus > 0
            && let Some(run) = self.free.cut_last(surplus)
        {
            self.blocks -= run.len;
            surplus -= run.len;
            out.push(PoolRun::from(&run));
        }
        self.windows.trim(&mut self.free);
    }

    /// Adds a run that is new to the pool. An empty one, of a window that is used up, is nothing:
    /// the server would refuse to take it back, and all that is returned with it.
    fn add(&mut self, run: PoolRun) {
        if run.len == 0 {
            return;
        }
        if self.avoided.contains(&run.pag) {
            *self.aside.entry((run.pag, run.addr)).or_default() += run.len;
        } else {
            self.blocks += run.len;
            self.free.put(run.into());
        }
    }

    /// Removes the runs set aside that are of these zones.
    fn take_aside(&mut self, of: impl Fn(PagId) -> bool) -> Vec<PoolRun> {
        let runs = self.aside.extract_if(.., |(pag, _), _| of(*pag));
        runs.map(|((pag, addr), len)| PoolRun { pag, addr, len }).collect()
    }
}

#[cfg(test)]
mod tests {
    use proto::prealloc::{Behind, Stream};
    use types::{ClientId, PagBlock};

    use super::*;

    /// Blocks of a file from `block` on, which continue at `after`, if it has any yet.
    fn request(ino: u64, block: u64, len: u64, after: Option<(PagId, u64)>) -> Request {
        let block = FileBlock(block);
        let before = after.map(|(pag, addr)| Behind { block, pag, addr: PagBlock(addr) });
        let stream = Some(Stream { client: ClientId(1), handle: ino, process: 1 });
        Request { ino: Ino(ino), stream, block, len, before, part: None }
    }

    fn granted(len: u64) -> Rc<Pool> {
        let pool = Pool::new(Policy::default());
        pool.grant(&[PagRun { pag: PagId(1), addr: PagBlock(100), len }]);
        pool
    }

    #[test]
    fn reserved_blocks_can_be_allocated_from_other_files_windows() {
        let pool = granted(64);
        let mut a = pool.reserve(2).unwrap();
        let first = pool.allocate(&request(1, 0, 1, None), None, &mut a);
        let end = first[0].addr + 1;
        pool.allocate(&request(1, 1, 1, Some((PagId(1), end))), None, &mut a);
        let mut b = pool.reserve(62).unwrap();
        assert!(pool.reserve(1).is_none());
        let runs = pool.allocate(&request(2, 0, 62, None), None, &mut b);
        assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), 62);
        assert_eq!(pool.blocks(), 0);
    }

    #[test]
    fn short_runs_are_asked_for_at_most_twice() {
        let pool = Pool::new(Policy::default());
        let wanted = Wanted { full: 100, small: 10, streams: 0 };
        let grant = |first: u64, runs: u64| {
            let run = |n| PagRun { pag: PagId(0), addr: PagBlock(20 * n), len: 10 };
            pool.grant(&(first..first + runs).map(run).collect::<Vec<_>>());
        };
        grant(0, 10);
        assert_eq!(pool.refill(wanted), Refill::Own, "100 blocks that no stream can use");
        grant(10, 10);
        assert_eq!(pool.refill(wanted), Refill::Enough);
        assert_eq!(pool.refill_zone(PagId(0), 200), Refill::Own);
        assert_eq!(pool.refill_zone(PagId(0), 100), Refill::Enough);
        pool.validate();
    }

    #[test]
    fn interleaved_streams_stay_contiguous() {
        let pool = granted(4096);
        let mut ends = [None, None];
        for round in 0..6 {
            for (index, end) in ends.iter_mut().enumerate() {
                let mut reserved = pool.reserve(8).unwrap();
                let runs = pool.allocate(
                    &request(index as u64 + 1, round * 8, 8, *end),
                    None,
                    &mut reserved,
                );
                *end = runs.last().map(|run| (run.pag, run.addr + run.len));
            }
        }
        // The last allocations of one stream came out of one window.
        let mut reserved = pool.reserve(8).unwrap();
        let runs = pool.allocate(&request(1, 48, 8, ends[0]), None, &mut reserved);
        assert_eq!((runs[0].pag, runs[0].addr), ends[0].unwrap());
    }

    #[test]
    fn pool_is_empty_after_dropped_reservations_are_drained() {
        let pool = granted(100);
        let reserved = pool.reserve(40).unwrap();
        assert_eq!(pool.available(), 60);
        assert_eq!(pool.drain(0).iter().map(|run| run.len).sum::<u64>(), 60);
        drop(reserved);
        assert_eq!(pool.drain(0).iter().map(|run| run.len).sum::<u64>(), 40);
        assert_eq!(pool.blocks(), 0);
    }

    #[test]
    fn blocks_of_an_avoided_zone_are_neither_reserved_nor_allocated() {
        let pool = granted(10);
        pool.grant(&[PagRun { pag: PagId(2), addr: PagBlock(50), len: 6 }]);
        let mut reserved = pool.reserve(12).unwrap();
        // A window, too.
        let run = pool.allocate(&request(1, 1, 2, Some((PagId(1), 9))), None, &mut reserved)[0];
        assert_eq!(run.pag, PagId(1));
        assert!(pool.set_avoided(PagId(1), true) && !pool.set_avoided(PagId(1), true));
        assert_eq!((pool.available(), pool.blocks(), pool.missing_for(0)), (0, 14, 4));
        assert!(pool.can_place(6) && !pool.can_place(7) && pool.reserve(1).is_none());
        let runs = pool.allocate(&request(1, 3, 6, Some((PagId(1), 9))), None, &mut reserved);
        assert_eq!(runs, [PoolRun { pag: PagId(2), addr: 50, len: 6 }]);
        pool.give_back(PoolRun { pag: PagId(1), addr: 300, len: 1 });
        assert_eq!((pool.avoided(), pool.blocks()), (vec![PagId(1)], 9));
        assert!(!pool.can_place(1));
        assert!(pool.set_avoided(PagId(1), false));
        assert_eq!((pool.available(), pool.missing_for(6)), (5, 1));
        assert!(pool.set_avoided(PagId(1), true));
        drop(reserved);
        let returned = pool.drain_aside(|pag| pag == PagId(1));
        assert_eq!(returned.iter().map(|run| run.len).sum::<u64>(), 9);
        assert_eq!(pool.blocks(), 0);
    }

    #[test]
    fn blocks_of_a_draining_zone_leave_as_far_as_nothing_accepted_needs_them() {
        let pool = granted(10);
        pool.grant(&[PagRun { pag: PagId(2), addr: PagBlock(50), len: 6 }]);
        let mut reserved = pool.reserve(9).unwrap();
        // One block of the zone goes to a file, which has a window there then.
        pool.allocate(&request(1, 1, 1, Some((PagId(1), 9))), Some(PagId(1)), &mut reserved);
        let sum = |runs: &[PoolRun]| runs.iter().map(|run| run.len).sum::<u64>();
        let left = pool.drain_zones(&[PagId(1)]);
        assert_eq!((sum(&left), pool.stock(PagId(1))), (7, 2), "8 blocks are reserved");
        assert_eq!((pool.blocks(), pool.available(), pool.missing_for(0)), (8, 0, 0));
        assert!(left.iter().all(|run| run.pag == PagId(1)));
        drop(reserved);
        assert_eq!(sum(&pool.drain_zones(&[PagId(1)])), 2);
        assert_eq!((pool.blocks(), pool.stock(PagId(2))), (6, 6));
        assert_eq!(pool.drain_zones(&[PagId(1)]), []);
    }

    #[test]
    fn window_that_is_used_up_leaves_nothing_to_return() {
        let pool = granted(4);
        let mut reserved = pool.reserve(4).unwrap();
        let run = pool.allocate(&request(1, 1, 4, Some((PagId(1), 99))), None, &mut reserved)[0];
        assert_eq!(run.len, 4, "the file's window is empty");
        assert!(pool.set_avoided(PagId(1), true));
        assert_eq!(pool.drain_unused(), []);
        assert!(pool.set_avoided(PagId(1), false));
        assert_eq!(pool.drain(0), []);
    }

    #[test]
    fn reservations_of_a_lost_session_do_not_count() {
        let pool = granted(10);
        let reserved = pool.reserve(5).unwrap();
        pool.forget();
        drop(reserved);
        pool.grant(&[PagRun { pag: PagId(1), addr: PagBlock(500), len: 3 }]);
        assert_eq!(pool.available(), 3);
    }
}

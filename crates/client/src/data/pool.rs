//! Blocks that the server gave to this client and that belong to no file yet.
//!
//! Invariants:
//! - every block of the pool is in one free run or in one file's window;
//! - `reserved` never exceeds the blocks of the pool: accepted bytes have a place;
//! - *tainted* blocks may still be written by a request of this client: they return to the server
//!   once no write is in flight, and never go to another file.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use proto::mds::PagRun;
use types::limits::GRANT_BLOCKS;
use types::{Ino, PagBlock, PagId};

/// Largest window of a file.
const WINDOW_MAX: u64 = GRANT_BLOCKS;
/// Free runs that are examined for a good fit.
const SCAN_MAX: usize = 64;

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

/// Blocks where the next blocks of one file go.
struct Window {
    run: PoolRun,
    /// Length at its creation; the next window is twice as long.
    size: u64,
}

#[derive(Default)]
struct PoolState {
    free: BTreeMap<(PagId, u64), u64>,
    windows: BTreeMap<Ino, Window>,
    /// Blocks in free runs and windows.
    blocks: u64,
    reserved: u64,
    tainted: Vec<PoolRun>,
    /// Raised by an eviction: invalidates earlier reservations.
    generation: u64,
}

/// The pool of one client.
#[derive(Default)]
pub(super) struct Pool {
    inner: RefCell<PoolState>,
}

/// A number of blocks that the pool keeps for the holder; returned when dropped.
pub(super) struct Reservation {
    pool: Rc<Pool>,
    blocks: u64,
    generation: u64,
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
        Reservation { pool: self.pool.clone(), blocks, generation: self.generation }
    }

    /// Adds `other`.
    pub fn merge(&mut self, mut other: Reservation) {
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
    /// Blocks of the pool that are not reserved.
    pub fn available(&self) -> u64 {
        let inner = self.inner.borrow();
        inner.blocks - inner.reserved
    }

    /// Blocks of the pool.
    pub fn blocks(&self) -> u64 {
        self.inner.borrow().blocks
    }

    /// Tainted blocks.
    pub fn tainted(&self) -> u64 {
        self.inner.borrow().tainted.iter().map(|run| run.len).sum()
    }

    /// A reservation of no blocks.
    pub fn no_blocks(self: &Rc<Self>) -> Reservation {
        Reservation { pool: self.clone(), blocks: 0, generation: self.inner.borrow().generation }
    }

    /// Reserves `blocks` if the pool has so many.
    pub fn reserve(self: &Rc<Self>, blocks: u64) -> Option<Reservation> {
        let mut inner = self.inner.borrow_mut();
        if inner.blocks - inner.reserved < blocks {
            return None;
        }
        inner.reserved += blocks;
        Some(Reservation { pool: self.clone(), blocks, generation: inner.generation })
    }

    /// Adds blocks that the server granted.
    pub fn grant(&self, runs: &[PagRun]) {
        let mut inner = self.inner.borrow_mut();
        for run in runs {
            inner.blocks += run.len;
            inner.put(PoolRun { pag: run.pag, addr: run.addr.0, len: run.len });
        }
    }

    /// Takes back allocated blocks that became part of no file and that no write in flight can
    /// reach.
    pub fn give_back(&self, run: PoolRun) {
        let mut inner = self.inner.borrow_mut();
        inner.blocks += run.len;
        inner.put(run);
    }

    /// Sets blocks aside until they are returned to the server.
    pub fn add_tainted(&self, run: PoolRun) {
        self.inner.borrow_mut().tainted.push(run);
    }

    /// Allocates `need` blocks out of `reserved`, for a file that would best continue at `after`.
    pub fn allocate(
        &self,
        ino: Ino,
        need: u64,
        after: Option<(PagId, u64)>,
        reserved: &mut Reservation,
    ) -> Vec<PoolRun> {
        assert!(need <= reserved.blocks, "allocating {need} of {} reserved", reserved.blocks);
        let mut inner = self.inner.borrow_mut();
        assert_eq!(inner.generation, reserved.generation, "a reservation of a lost session");
        reserved.blocks -= need;
        inner.reserved -= need;
        inner.blocks -= need;
        let mut out: Vec<PoolRun> = Vec::new();
        let mut left = need;
        while left > 0 {
            let run = inner.take(ino, left, after);
            left -= run.len;
            match out.last_mut() {
                Some(last) if last.pag == run.pag && last.addr + last.len == run.addr => {
                    last.len += run.len;
                }
                _ => out.push(run),
            }
        }
        out
    }

    /// The file is not written any more: frees its window for other files.
    pub fn release_window(&self, ino: Ino) {
        let mut inner = self.inner.borrow_mut();
        if let Some(window) = inner.windows.remove(&ino) {
            inner.put(window.run);
        }
    }

    /// Removes unreserved blocks, beyond `keep` of them, to be returned to the server; with `keep`
    /// 0 also windows and tainted blocks.
    pub fn drain(&self, keep: u64) -> Vec<PoolRun> {
        let mut inner = self.inner.borrow_mut();
        let mut out = Vec::new();
        if keep == 0 {
            inner.close_windows();
            out = std::mem::take(&mut inner.tainted);
        }
        inner.surplus(keep, &mut out);
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
        let mut out = Vec::new();
        inner.surplus(0, &mut out);
        out
    }

    /// The session is lost, and its blocks with it.
    pub fn forget(&self) {
        let mut inner = self.inner.borrow_mut();
        let generation = inner.generation + 1;
        *inner = PoolState { generation, ..PoolState::default() };
    }
}

/// Converts to the wire's form.
pub(super) fn to_wire(runs: &[PoolRun]) -> Vec<PagRun> {
    runs.iter().map(|r| PagRun { pag: r.pag, addr: PagBlock(r.addr), len: r.len }).collect()
}

impl PoolState {
    /// Turns all windows into free runs.
    fn close_windows(&mut self) {
        for window in std::mem::take(&mut self.windows).into_values() {
            self.put(window.run);
        }
    }

    /// Removes unreserved free runs beyond `keep` blocks.
    fn surplus(&mut self, keep: u64, out: &mut Vec<PoolRun>) {
        let mut surplus = (self.blocks - self.reserved).saturating_sub(keep);
        while surplus > 0 {
            let Some((&(pag, addr), &len)) = self.free.last_key_value() else { break };
            let len_out = len.min(surplus);
            self.free.remove(&(pag, addr));
            if len > len_out {
                self.free.insert((pag, addr), len - len_out);
            }
            self.blocks -= len_out;
            surplus -= len_out;
            out.push(PoolRun { pag, addr: addr + (len - len_out), len: len_out });
        }
    }

    /// Adds a free run, joined with its neighbours. The caller adds to `blocks`.
    fn put(&mut self, run: PoolRun) {
        if run.len == 0 {
            return;
        }
        let (mut addr, mut len) = (run.addr, run.len);
        let left = self.free.range(..(run.pag, addr)).next_back().map(|(&key, &len)| (key, len));
        if let Some(((pag, start), before)) = left
            && pag == run.pag
            && start + before == addr
        {
            self.free.remove(&(pag, start));
            addr = start;
            len += before;
        }
        if let Some(after) = self.free.remove(&(run.pag, run.addr + run.len)) {
            len += after;
        }
        self.free.insert((run.pag, addr), len);
    }

    /// Cuts up to `len` blocks off the front of the free run at `key`.
    fn cut(&mut self, key: (PagId, u64), len: u64) -> PoolRun {
        let have = self.free.remove(&key).expect("a free run");
        let len = len.min(have);
        if have > len {
            self.free.insert((key.0, key.1 + len), have - len);
        }
        PoolRun { pag: key.0, addr: key.1, len }
    }

    /// The best free run for `len` blocks: the first that is long enough, or else the longest.
    fn fit(&self, len: u64) -> Option<(PagId, u64)> {
        let mut best: Option<((PagId, u64), u64)> = None;
        for (&key, &have) in self.free.iter().take(SCAN_MAX) {
            if have >= len {
                return Some(key);
            }
            if best.is_none_or(|(_, longest)| have > longest) {
                best = Some((key, have));
            }
        }
        best.map(|(key, _)| key)
    }

    /// Takes up to `need` blocks for a file, at least one. The caller subtracts from `blocks`.
    fn take(&mut self, ino: Ino, need: u64, after: Option<(PagId, u64)>) -> PoolRun {
        if let Some(window) = self.windows.get_mut(&ino)
            && window.run.len > 0
        {
            let len = need.min(window.run.len);
            let run = PoolRun { len, ..window.run };
            window.run.addr += len;
            window.run.len -= len;
            return run;
        }
        // A file that continues gets a window of its own, so that streams do not mix; the first
        // blocks of a file lie next to those of the previous file.
        if let Some(after) = after {
            let last = self.windows.get(&ino).map_or(need, |window| window.size);
            let size = (last * 2).clamp(need.min(WINDOW_MAX), WINDOW_MAX).max(need);
            let key = if self.free.contains_key(&after) { Some(after) } else { self.fit(size) };
            if let Some(key) = key {
                let run = self.cut(key, size);
                let len = need.min(run.len);
                let remainder = PoolRun { addr: run.addr + len, len: run.len - len, ..run };
                self.windows.insert(ino, Window { run: remainder, size: size.min(WINDOW_MAX) });
                return PoolRun { len, ..run };
            }
        } else if let Some(key) = self.fit(need) {
            return self.cut(key, need);
        }
        // No run is free: take from the largest window of another file.
        let (&owner, _) = self
            .windows
            .iter()
            .max_by_key(|(_, window)| window.run.len)
            .expect("reserved blocks are in free runs or windows");
        let mut window = self.windows.remove(&owner).expect("found above");
        let len = need.min(window.run.len);
        assert!(len > 0, "reserved blocks are in free runs or windows");
        let run = PoolRun { len, ..window.run };
        window.run.addr += len;
        window.run.len -= len;
        self.put(window.run);
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(len: u64) -> Rc<Pool> {
        let pool = Rc::new(Pool::default());
        pool.grant(&[PagRun { pag: PagId(1), addr: PagBlock(100), len }]);
        pool
    }

    #[test]
    fn reserved_blocks_can_be_allocated_from_other_files_windows() {
        let pool = granted(64);
        let mut a = pool.reserve(2).unwrap();
        let first = pool.allocate(Ino(1), 1, None, &mut a);
        let end = first[0].addr + 1;
        pool.allocate(Ino(1), 1, Some((PagId(1), end)), &mut a);
        let mut b = pool.reserve(62).unwrap();
        assert!(pool.reserve(1).is_none());
        let runs = pool.allocate(Ino(2), 62, None, &mut b);
        assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), 62);
        assert_eq!(pool.blocks(), 0);
    }

    #[test]
    fn interleaved_streams_stay_contiguous() {
        let pool = granted(4096);
        let mut ends = [None, None];
        for _ in 0..6 {
            for (index, end) in ends.iter_mut().enumerate() {
                let mut reserved = pool.reserve(8).unwrap();
                let runs = pool.allocate(Ino(index as u64 + 1), 8, *end, &mut reserved);
                *end = runs.last().map(|run| (run.pag, run.addr + run.len));
            }
        }
        // The last allocations of one stream came out of one window.
        let mut reserved = pool.reserve(8).unwrap();
        let runs = pool.allocate(Ino(1), 8, ends[0], &mut reserved);
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
    fn reservations_of_a_lost_session_do_not_count() {
        let pool = granted(10);
        let reserved = pool.reserve(5).unwrap();
        pool.forget();
        drop(reserved);
        pool.grant(&[PagRun { pag: PagId(1), addr: PagBlock(500), len: 3 }]);
        assert_eq!(pool.available(), 3);
    }
}

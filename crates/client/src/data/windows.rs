//! The free blocks of a pool, and the windows that are cut from them for growing files.
//!
//! Invariant: a block is in one free run, or in one window, or neither knows it. Who chooses where
//! a file goes on is a [`Preallocator`]; this is the space that it cuts from.

use std::collections::BTreeMap;

use proto::mds::PagRun;
use proto::prealloc::{Policy, Preallocator, Request, Space};
use types::{Ino, PagBlock, PagId};

use super::pool::PoolRun;

/// Free runs that are examined for a good fit.
const SCAN_MAX: usize = 64;

/// Free runs, joined with their neighbours.
#[derive(Default)]
pub(super) struct FreeRuns {
    /// By zone and first block: blocks.
    map: BTreeMap<(PagId, u64), u64>,
    total: u64,
    /// The zone that places are cut from, while it has any free block.
    pub prefer: Option<PagId>,
}

impl FreeRuns {
    /// Adds a free run. An empty one is nothing.
    pub fn put(&mut self, run: PoolRun) {
        if run.len == 0 {
            return;
        }
        self.total += run.len;
        let (mut addr, mut len) = (run.addr, run.len);
        let left = self.map.range(..(run.pag, addr)).next_back().map(|(&key, &len)| (key, len));
        if let Some(((pag, start), before)) = left
            && pag == run.pag
            && start + before == addr
        {
            self.map.remove(&(pag, start));
            addr = start;
            len += before;
        }
        if let Some(after) = self.map.remove(&(run.pag, run.addr + run.len)) {
            len += after;
        }
        self.map.insert((run.pag, addr), len);
    }

    /// Cuts up to `len` blocks off the end of the last run.
    pub fn cut_last(&mut self, len: u64) -> Option<PoolRun> {
        let (&(pag, addr), have) = self.map.iter_mut().next_back()?;
        let len = len.min(*have);
        *have -= len;
        let left = *have;
        if left == 0 {
            self.map.remove(&(pag, addr));
        }
        self.total -= len;
        Some(PoolRun { pag, addr: addr + left, len })
    }

    /// Removes the runs of a zone.
    pub fn take_zone(&mut self, pag: PagId) -> Vec<PoolRun> {
        let of_zone = self.map.extract_if((pag, 0)..=(pag, u64::MAX), |_, _| true);
        let runs: Vec<_> = of_zone.map(|((pag, addr), len)| PoolRun { pag, addr, len }).collect();
        self.total -= runs.iter().map(|run| run.len).sum::<u64>();
        runs
    }

    /// Cuts up to `most` blocks of a zone.
    pub fn cut_zone(&mut self, pag: PagId, most: u64) -> Vec<PoolRun> {
        let (mut out, mut left) = (Vec::new(), most);
        while left > 0 {
            let first = self.of_zone(pag).next().map(|(key, _)| key);
            let Some(run) = first.and_then(|key| self.cut_front(key, left)) else { break };
            left -= run.len;
            out.push(from_wire(&run));
        }
        out
    }

    /// Has the zone `need` free blocks?
    pub fn has(&self, pag: PagId, need: u64) -> bool {
        let mut have = 0;
        let mut runs = self.of_zone(pag);
        need == 0
            || runs.any(|(_, len)| {
                have += len;
                have >= need
            })
    }

    /// The free blocks of the zone.
    pub fn stock(&self, pag: PagId) -> u64 {
        self.of_zone(pag).map(|(_, len)| len).sum()
    }

    fn of_zone(&self, pag: PagId) -> impl Iterator<Item = ((PagId, u64), u64)> {
        self.map.range((pag, 0)..=(pag, u64::MAX)).map(|(&key, &len)| (key, len))
    }

    /// The runs to cut from: those of the preferred zone, if it has any.
    fn eligible(&self) -> Vec<((PagId, u64), u64)> {
        let preferred: Vec<_> =
            self.prefer.into_iter().flat_map(|zone| self.of_zone(zone)).take(SCAN_MAX).collect();
        if !preferred.is_empty() {
            return preferred;
        }
        self.map.iter().map(|(&key, &len)| (key, len)).take(SCAN_MAX).collect()
    }

    /// Cuts up to `len` blocks off the front of the run at `key`.
    fn cut_front(&mut self, key: (PagId, u64), len: u64) -> Option<PagRun> {
        let have = self.map.remove(&key)?;
        let len = len.min(have);
        if have > len {
            self.map.insert((key.0, key.1 + len), have - len);
        }
        self.total -= len;
        Some(PagRun { pag: key.0, addr: PagBlock(key.1), len })
    }
}

impl Space for FreeRuns {
    fn free(&self) -> u64 {
        self.total
    }

    fn continue_at(&mut self, pag: PagId, addr: PagBlock, len: u64) -> Option<PagRun> {
        if self.prefer.is_some_and(|zone| zone != pag) {
            return None;
        }
        self.cut_front((pag, addr.0), len)
    }

    /// Takes the first run that is long enough, or else the longest.
    fn cut(&mut self, len: u64) -> Option<PagRun> {
        let mut best: Option<((PagId, u64), u64)> = None;
        for (key, have) in self.eligible() {
            if best.is_none_or(|(_, longest)| have > longest) {
                best = Some((key, have));
            }
            if have >= len {
                break;
            }
        }
        self.cut_front(best?.0, len)
    }

    /// Cuts out of the middle of the longest run, if enough is left on both sides.
    fn cut_apart(&mut self, len: u64) -> Option<PagRun> {
        let (key, have) = self.eligible().into_iter().max_by_key(|(_, have)| *have)?;
        if have < 4 * len {
            return self.cut(len);
        }
        // The part in front stays where it is.
        let front = have / 2;
        self.map.insert(key, front);
        self.map.insert((key.0, key.1 + front), have - front);
        self.cut_front((key.0, key.1 + front), len)
    }

    fn give_back(&mut self, run: PagRun) {
        self.put(from_wire(&run));
    }
}

fn from_wire(run: &PagRun) -> PoolRun {
    PoolRun { pag: run.pag, addr: run.addr.0, len: run.len }
}

/// The windows of a client's files.
pub(super) struct Windows {
    policy: Policy,
    preallocator: Box<dyn Preallocator>,
}

impl Windows {
    /// No windows yet; `policy` chooses them.
    pub fn new(policy: Policy) -> Windows {
        Windows { policy, preallocator: policy.preallocator() }
    }

    /// As after [`Windows::new`]: what they hold is not the client's any more.
    pub fn forgotten(&self) -> Windows {
        Windows::new(self.policy)
    }

    /// Blocks in them.
    pub fn held(&self) -> u64 {
        self.preallocator.held()
    }

    /// Places for the blocks of `request`, in the order of the file.
    pub fn place(&mut self, free: &mut FreeRuns, request: &Request) -> Vec<PoolRun> {
        self.preallocator.place(free, request).iter().map(from_wire).collect()
    }

    /// The file is not written any more, or not through this handle: frees its windows.
    pub fn close(&mut self, free: &mut FreeRuns, ino: Ino, handle: Option<u64>) {
        match handle {
            None => self.preallocator.close(free, ino),
            Some(handle) => self.preallocator.close_handle(free, ino, handle),
        }
    }

    /// Frees all windows.
    pub fn close_all(&mut self, free: &mut FreeRuns) {
        self.preallocator.reclaim(free, u64::MAX);
    }

    /// Free blocks have left the pool: the windows keep no more than their share.
    pub fn trim(&mut self, free: &mut FreeRuns) {
        self.preallocator.trim(free);
    }

    /// Removes what they hold in a zone.
    pub fn take_zone(&mut self, pag: PagId) -> Vec<PoolRun> {
        self.preallocator.take_zone(pag).iter().map(from_wire).collect()
    }
}

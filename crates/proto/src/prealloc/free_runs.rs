//! Free runs that are in memory: a client's pool, or a part of a zone at the server.

use std::collections::BTreeMap;

use types::{PagBlock, PagId};

use super::Space;
use crate::mds::PagRun;

/// Free runs that are examined for a good fit.
const SCAN_MAX: usize = 64;

/// A run with fewer blocks is short: 256 KiB. Small files in it are not written together.
pub const SHORT: u64 = 64;

/// Free runs, joined with their neighbours.
#[derive(Default)]
pub struct FreeRuns {
    /// By zone and first block: blocks.
    map: BTreeMap<(PagId, u64), u64>,
    total: u64,
    /// Blocks of short runs, by zone.
    short: BTreeMap<PagId, u64>,
    /// The zone that places are cut from, while it has any free block.
    pub prefer: Option<PagId>,
}

impl FreeRuns {
    /// Adds a free run. An empty one is nothing.
    pub fn put(&mut self, run: PagRun) {
        if run.len == 0 {
            return;
        }
        self.total += run.len;
        let (mut addr, mut len) = (run.addr.0, run.len);
        let left = self.map.range(..(run.pag, addr)).next_back().map(|(&key, &len)| (key, len));
        if let Some(((pag, start), before)) = left
            && pag == run.pag
            && start + before == addr
        {
            self.forget(pag, start);
            addr = start;
            len += before;
        }
        if let Some(after) = self.forget(run.pag, run.addr.0 + run.len) {
            len += after;
        }
        self.note(run.pag, addr, len);
    }

    /// Enters a run that has no neighbours.
    fn note(&mut self, pag: PagId, addr: u64, len: u64) {
        self.map.insert((pag, addr), len);
        if len < SHORT {
            *self.short.entry(pag).or_default() += len;
        }
    }

    /// Takes the run that begins there out of the list.
    fn forget(&mut self, pag: PagId, addr: u64) -> Option<u64> {
        let len = self.map.remove(&(pag, addr))?;
        if len < SHORT {
            *self.short.entry(pag).or_default() -= len;
        }
        Some(len)
    }

    /// Blocks of short runs of the zone; `None`: of all zones.
    pub fn short(&self, pag: Option<PagId>) -> u64 {
        match pag {
            Some(pag) => self.short.get(&pag).copied().unwrap_or(0),
            None => self.short.values().sum(),
        }
    }

    /// Removes short runs with up to `most` blocks.
    pub fn take_short(&mut self, most: u64) -> Vec<PagRun> {
        let (mut out, mut left) = (Vec::new(), most);
        if self.short(None) > 0 {
            let mut is_taken = |len: u64| {
                let is_taken = len < SHORT && len <= left;
                left -= if is_taken { len } else { 0 };
                is_taken
            };
            out.extend(self.map.extract_if(.., |_, len| is_taken(*len)).map(run_of));
        }
        for run in &out {
            self.total -= run.len;
            *self.short.entry(run.pag).or_default() -= run.len;
        }
        out
    }

    /// Cuts up to `len` blocks off the end of the last run.
    pub fn cut_last(&mut self, len: u64) -> Option<PagRun> {
        let (&(pag, addr), _) = self.map.iter().next_back()?;
        let have = self.forget(pag, addr)?;
        let len = len.min(have);
        let left = have - len;
        if left > 0 {
            self.note(pag, addr, left);
        }
        self.total -= len;
        Some(PagRun { pag, addr: PagBlock(addr + left), len })
    }

    /// Removes the runs of a zone.
    pub fn take_zone(&mut self, pag: PagId) -> Vec<PagRun> {
        let of_zone = self.map.extract_if((pag, 0)..=(pag, u64::MAX), |_, _| true);
        let runs: Vec<_> = of_zone.map(run_of).collect();
        self.total -= runs.iter().map(|run| run.len).sum::<u64>();
        self.short.remove(&pag);
        runs
    }

    /// Cuts up to `most` blocks of a zone.
    pub fn cut_zone(&mut self, pag: PagId, most: u64) -> Vec<PagRun> {
        let (mut out, mut left) = (Vec::new(), most);
        while left > 0 {
            let first = self.of_zone(pag).next().map(|(key, _)| key);
            let Some(run) = first.and_then(|key| self.cut_front(key, left)) else { break };
            left -= run.len;
            out.push(run);
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

    /// The free runs of the zone.
    pub fn runs(&self, pag: PagId) -> impl Iterator<Item = PagRun> {
        self.of_zone(pag).map(run_of)
    }

    /// Is this block free?
    pub fn holds(&self, pag: PagId, addr: u64) -> bool {
        let last = self.map.range((pag, 0)..=(pag, addr)).next_back();
        last.is_some_and(|(&(_, start), len)| addr < start + len)
    }

    /// Length of the longest of the runs that places are cut from.
    pub fn longest(&self) -> u64 {
        self.eligible().into_iter().map(|(_, len)| len).max().unwrap_or(0)
    }

    /// Removes the run, if all of its blocks are free.
    pub fn remove(&mut self, run: &PagRun) -> bool {
        let (from, to) = (run.addr.0, run.addr.0 + run.len);
        let within = self.map.range(..=(run.pag, from)).next_back().map(|(&key, &len)| (key, len));
        let Some(((pag, start), len)) = within else { return false };
        if pag != run.pag || start + len < to {
            return false;
        }
        self.forget(pag, start);
        self.total -= len;
        for (from, to) in [(start, from), (to, start + len)] {
            self.put(PagRun { pag, addr: PagBlock(from), len: to - from });
        }
        true
    }

    /// Cuts up to `len` blocks off the longest run; of many runs, only those at both ends count.
    pub fn cut_longest(&mut self, len: u64) -> Option<PagRun> {
        let zone = self.prefer.filter(|&zone| self.has(zone, 1));
        let runs = match zone {
            Some(zone) => self.map.range((zone, 0)..=(zone, u64::MAX)),
            None => self.map.range(..),
        };
        let ends = runs.clone().rev().take(SCAN_MAX).chain(runs.take(SCAN_MAX));
        let (&key, _) = ends.max_by_key(|(_, have)| **have)?;
        self.cut_front(key, len)
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
        let have = self.forget(key.0, key.1)?;
        let len = len.min(have);
        if have > len {
            self.note(key.0, key.1 + len, have - len);
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
        self.forget(key.0, key.1);
        self.note(key.0, key.1, front);
        self.note(key.0, key.1 + front, have - front);
        self.cut_front((key.0, key.1 + front), len)
    }

    fn give_back(&mut self, run: PagRun) {
        self.put(run);
    }
}

fn run_of(((pag, addr), len): ((PagId, u64), u64)) -> PagRun {
    PagRun { pag, addr: PagBlock(addr), len }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(addr: u64, len: u64) -> PagRun {
        PagRun { pag: PagId(1), addr: PagBlock(addr), len }
    }

    #[test]
    fn removed_run_leaves_what_is_beside_it() {
        let mut free = FreeRuns::default();
        free.put(run(10, 10));
        assert!(!free.remove(&run(5, 6)) && !free.remove(&run(15, 6)) && !free.remove(&run(30, 1)));
        assert!(!free.remove(&PagRun { pag: PagId(0), ..run(12, 1) }));
        assert!(free.remove(&run(12, 3)) && !free.remove(&run(14, 2)));
        assert!(free.holds(PagId(1), 11) && !free.holds(PagId(1), 12) && free.holds(PagId(1), 19));
        assert!(!free.holds(PagId(1), 9) && !free.holds(PagId(1), 20) && !free.holds(PagId(2), 15));
        assert_eq!((free.longest(), FreeRuns::default().longest()), (5, 0));
        assert_eq!((free.free(), free.take_zone(PagId(1))), (7, vec![run(10, 2), run(15, 5)]));
    }
}

//! The double pool of a class (000 §IV.A): free blocks in an *active* and a *standby* pool.
//!
//! Places are cut from the active pool. When it has no run that is long enough and the standby one
//! has a longer run, the two change places, zone by zone; what was active needs blocks from then
//! on. Grants fill the standby pool. The refill rides on a request with commits, which goes anyway,
//! as long as both together hold enough for the next writes; else it is asked for on its own.
//!
//! Invariants:
//! - a block is in one of the two pools at most;
//! - the standby pool has blocks of a zone only while the active one has some;
//! - files that are written one after the other lie one behind the other, so their writes go
//!   together. Short runs between them, of files that were removed before their commit, are used
//!   when nothing longer is left, and are the first to leave;
//! - a file goes on behind its last block, in whichever pool that place is, and a stream's window
//!   lies where the longest run is: streams lie in one piece over the change of pools;
//! - blocks that leave for the server are those of the standby pool, as long as it has any.

use std::collections::BTreeSet;

use proto::mds::PagRun;
use proto::prealloc::{FreeRuns, SHORT, Space};
use types::{PagBlock, PagId};

/// How blocks are asked for that a pool lacks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Refill {
    /// None are.
    Enough,
    /// With the next request that has commits.
    Rides,
    /// By a request of its own, at once.
    Own,
}

/// What a class wants its pools to hold, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    /// Blocks below which more are asked for.
    pub full: u64,
    /// What one small allocation may need: both pools together never hold less without a request
    /// on its way, as long as the server has blocks.
    pub small: u64,
    /// What the windows of streams hold and need in order to grow: that waits for no commit.
    pub streams: u64,
}

impl Wanted {
    fn least(self) -> u64 {
        self.small.max(self.streams).max(self.full / 4)
    }

    /// How blocks are asked for if `have` are left.
    pub fn refill(self, have: u64) -> Refill {
        match have {
            _ if have < self.least().min(self.full) => Refill::Own,
            _ if have < self.full => Refill::Rides,
            _ => Refill::Enough,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct DoublePool {
    active: FreeRuns,
    standby: FreeRuns,
    /// Zones of which blocks were here.
    zones: BTreeSet<PagId>,
    /// Zones in which the pools have changed places since the last grant.
    needs: BTreeSet<PagId>,
    /// Behind the last place that was cut for a file of its own.
    next: Option<(PagId, u64)>,
    /// The zone that places are cut from, while it has any free block.
    pub prefer: Option<PagId>,
}

impl DoublePool {
    /// Adds blocks that the server granted.
    pub fn grant(&mut self, run: PagRun) {
        self.needs.remove(&run.pag);
        self.zones.insert(run.pag);
        match self.active.has(run.pag, 1) {
            true => self.standby.put(run),
            false => self.active.put(run),
        }
    }

    /// Adds blocks that were in use, or in a window: to the free ones beside them.
    pub fn put(&mut self, run: PagRun) {
        self.zones.insert(run.pag);
        let (before, after) = (run.addr.0.saturating_sub(1), run.addr.0 + run.len);
        let beside = |runs: &FreeRuns| runs.holds(run.pag, before) || runs.holds(run.pag, after);
        match beside(&self.standby) && !beside(&self.active) {
            true => self.standby.put(run),
            false => self.active.put(run),
        }
    }

    /// Blocks of short runs of the zone; `None`: of all zones.
    pub fn short(&self, pag: Option<PagId>) -> u64 {
        self.active.short(pag) + self.standby.short(pag)
    }

    /// Removes short runs with up to `most` blocks, to be returned to the server.
    pub fn take_short(&mut self, most: u64) -> Vec<PagRun> {
        let mut runs = self.standby.take_short(most);
        let taken: u64 = runs.iter().map(|run| run.len).sum();
        let of_active = self.active.take_short(most - taken);
        let zones: BTreeSet<PagId> = of_active.iter().map(|run| run.pag).collect();
        zones.into_iter().for_each(|zone| self.settle(zone));
        runs.extend(of_active);
        runs
    }

    /// Cuts up to `len` blocks off, to be returned to the server.
    pub fn cut_last(&mut self, len: u64) -> Option<PagRun> {
        self.standby.cut_last(len).or_else(|| self.active.cut_last(len))
    }

    /// Removes the runs of a zone.
    pub fn take_zone(&mut self, pag: PagId) -> Vec<PagRun> {
        self.needs.remove(&pag);
        [self.standby.take_zone(pag), self.active.take_zone(pag)].concat()
    }

    /// Cuts up to `most` blocks of a zone, to be returned to the server.
    pub fn cut_zone(&mut self, pag: PagId, most: u64) -> Vec<PagRun> {
        let mut runs = self.standby.cut_zone(pag, most);
        let cut: u64 = runs.iter().map(|run| run.len).sum();
        runs.extend(self.active.cut_zone(pag, most - cut));
        runs
    }

    /// Have both pools together `need` blocks of the zone?
    pub fn has(&self, pag: PagId, need: u64) -> bool {
        self.active.has(pag, need) || self.stock(pag) >= need
    }

    /// The free blocks of the zone.
    pub fn stock(&self, pag: PagId) -> u64 {
        self.active.stock(pag) + self.standby.stock(pag)
    }

    /// The free blocks of the standby pool.
    pub fn standby(&self) -> u64 {
        self.standby.free()
    }

    /// Does the standby pool need blocks of the zone, of which each pool has `share` when it is
    /// full?
    pub fn needs(&self, pag: PagId, share: u64) -> bool {
        self.needs.contains(&pag) && !self.standby.has(pag, share.div_ceil(2))
    }

    /// The standby pool becomes the active one in this zone, and the active one the standby.
    fn swap(&mut self, pag: PagId) {
        let (active, standby) = (self.active.take_zone(pag), self.standby.take_zone(pag));
        standby.into_iter().for_each(|run| self.active.put(run));
        active.into_iter().for_each(|run| self.standby.put(run));
        self.needs.insert(pag);
    }

    /// Blocks of the zone were cut: an active pool that is used up is none.
    fn settle(&mut self, pag: PagId) {
        if !self.active.has(pag, 1) && self.standby.has(pag, 1) {
            self.swap(pag);
        }
    }

    /// Which pools have blocks of the preferred zone, or any if none has. Places are cut there.
    fn eligible(&mut self) -> (bool, bool) {
        let zone = self.prefer.filter(|&zone| self.has(zone, 1));
        (self.active.prefer, self.standby.prefer) = (zone, zone);
        let has = |runs: &FreeRuns| zone.map_or(runs.free() > 0, |zone| runs.has(zone, 1));
        (has(&self.active), has(&self.standby))
    }

    /// Panics if the two pools contradict each other.
    pub fn validate(&self) {
        let (mut active, mut standby) = (0, 0);
        for &zone in &self.zones {
            let of_zone = (self.active.stock(zone), self.standby.stock(zone));
            assert!(of_zone.0 > 0 || of_zone.1 == 0, "zone {zone}: only the standby pool has any");
            (active, standby) = (active + of_zone.0, standby + of_zone.1);
            for runs in [&self.active, &self.standby] {
                let lens = runs.runs(zone).map(|run| run.len);
                let short: u64 = lens.filter(|&len| len < SHORT).sum();
                assert_eq!(runs.short(Some(zone)), short, "short runs of zone {zone}");
            }
            // Of two runs that overlap one begins in the other.
            let in_both = |of: &FreeRuns, other: &FreeRuns| {
                of.runs(zone).find(|run| other.holds(zone, run.addr.0))
            };
            let both = in_both(&self.active, &self.standby);
            let both = both.or_else(|| in_both(&self.standby, &self.active));
            assert_eq!(both, None, "a run of zone {zone} is in both pools");
        }
        assert_eq!((active, standby), (self.active.free(), self.standby.free()));
    }
}

impl Space for DoublePool {
    fn free(&self) -> u64 {
        self.active.free() + self.standby.free()
    }

    /// Goes on in the other pool where one ends: grants often lie behind each other.
    fn continue_at(&mut self, pag: PagId, addr: PagBlock, len: u64) -> Option<PagRun> {
        (self.active.prefer, self.standby.prefer) = (self.prefer, self.prefer);
        let mut run = PagRun { pag, addr, len: 0 };
        while run.len < len {
            let (at, left) = (PagBlock(addr.0 + run.len), len - run.len);
            let next = self.active.continue_at(pag, at, left);
            let Some(next) = next.or_else(|| self.standby.continue_at(pag, at, left)) else {
                break;
            };
            run.len += next.len;
        }
        self.settle(pag);
        (run.len > 0).then_some(run)
    }

    fn cut(&mut self, len: u64) -> Option<PagRun> {
        let (has_active, has_standby) = self.eligible();
        if let Some((pag, addr)) = self.next
            && self.prefer.is_none_or(|zone| zone == pag)
            && let Some(run) = self.active.continue_at(pag, PagBlock(addr), len)
        {
            if run.len == len {
                self.next = Some((pag, addr + len));
                self.settle(pag);
                return Some(run);
            }
            self.active.put(run);
        }
        let is_longer = || self.standby.longest() > self.active.longest();
        if has_standby && (!has_active || self.active.longest() < len && is_longer()) {
            let best = self.standby.cut_longest(len)?;
            let zone = best.pag;
            self.standby.put(best);
            self.swap(zone);
        }
        let run = self.active.cut_longest(len)?;
        self.next = Some((run.pag, run.addr.0 + run.len));
        self.settle(run.pag);
        Some(run)
    }

    /// A stream that goes on needs room: its window lies in the longest run of both pools.
    fn cut_apart(&mut self, len: u64) -> Option<PagRun> {
        let (has_active, has_standby) = self.eligible();
        let is_longer = || self.standby.longest() > self.active.longest();
        let run = match has_standby && (!has_active || is_longer()) {
            true => self.standby.cut_apart(len),
            false => self.active.cut_apart(len),
        }?;
        self.settle(run.pag);
        Some(run)
    }

    fn give_back(&mut self, run: PagRun) {
        self.put(run);
    }
}

#[cfg(test)]
mod tests {
    use env::sim::SimRng;

    use super::*;

    const ZONES: u64 = 3;

    /// Blocks that nobody has: which ones the pools have, and which ones the server.
    struct Model {
        pool: BTreeSet<(PagId, u64)>,
        taken: Vec<PagRun>,
        /// Of each zone, the next block that the server grants.
        next: [u64; ZONES as usize],
    }

    impl Model {
        fn out(&mut self, run: &PagRun, keep: bool) {
            for addr in run.addr.0..run.addr.0 + run.len {
                assert!(self.pool.remove(&(run.pag, addr)), "block {addr} was not there");
            }
            if keep {
                self.taken.push(run.clone());
            }
        }

        fn back(&mut self, run: &PagRun) {
            for addr in run.addr.0..run.addr.0 + run.len {
                assert!(self.pool.insert((run.pag, addr)), "block {addr} twice");
            }
        }
    }

    fn step(pools: &mut DoublePool, model: &mut Model, rng: &mut SimRng) {
        let zone = PagId(rng.below(ZONES) as u16);
        let len = 1 + rng.below(40);
        pools.prefer = rng.one_in(2).then_some(zone);
        match rng.below(10) {
            0..2 => {
                let next = &mut model.next[usize::from(zone.0)];
                let addr = PagBlock(*next + rng.below(2));
                *next = addr.0 + len;
                let run = PagRun { pag: zone, addr, len };
                model.back(&run);
                pools.grant(run);
            }
            kind @ 2..6 => {
                let has = pools.has(zone, 1) && pools.prefer.is_some();
                let run = if kind < 5 { pools.cut(len) } else { pools.cut_apart(len) };
                assert_eq!(run.is_none(), model.pool.is_empty(), "one has blocks, one has not");
                let Some(run) = run else { return };
                assert!((1..=len).contains(&run.len) && (!has || run.pag == zone), "{run:?}");
                model.out(&run, true);
            }
            6 if !model.taken.is_empty() => {
                let before = &model.taken[rng.below(model.taken.len() as u64) as usize];
                let (pag, addr) = (before.pag, PagBlock(before.addr.0 + before.len));
                pools.prefer = None;
                // It goes on as far as there are blocks, over the change of pools.
                let free = |&at: &u64| model.pool.contains(&(pag, at));
                let expected = (addr.0..addr.0 + len).take_while(free).count() as u64;
                let run = pools.continue_at(pag, addr, len);
                assert_eq!(run.as_ref().map_or(0, |run| run.len), expected);
                run.iter().for_each(|run| model.out(run, true));
            }
            7 if !model.taken.is_empty() => {
                let run = model.taken.swap_remove(rng.below(model.taken.len() as u64) as usize);
                model.back(&run);
                pools.put(run);
            }
            8 => match rng.below(3) {
                0 => pools.cut_zone(zone, len).iter().for_each(|run| model.out(run, false)),
                1 => pools.cut_last(len).iter().for_each(|run| model.out(run, false)),
                _ if rng.one_in(2) => {
                    let runs = pools.take_short(len);
                    assert!(runs.iter().map(|run| run.len).sum::<u64>() <= len);
                    assert!(runs.iter().all(|run| run.len < SHORT));
                    runs.iter().for_each(|run| model.out(run, false));
                }
                _ if rng.one_in(4) => {
                    pools.take_zone(zone).iter().for_each(|run| model.out(run, false));
                    assert_eq!(pools.stock(zone), 0);
                }
                _ => {}
            },
            _ => {}
        }
    }

    #[test]
    fn double_pool_hands_out_each_block_once_and_keeps_its_invariants() {
        for seed in 0..200 {
            let mut rng = SimRng::new(seed);
            let (mut pools, mut model) = (
                DoublePool::default(),
                Model { pool: BTreeSet::new(), taken: Vec::new(), next: [1; ZONES as usize] },
            );
            for _ in 0..300 {
                step(&mut pools, &mut model, &mut rng);
                pools.validate();
                assert_eq!(pools.free(), model.pool.len() as u64);
            }
        }
    }

    fn run(addr: u64, len: u64) -> PagRun {
        PagRun { pag: PagId(1), addr: PagBlock(addr), len }
    }

    #[test]
    fn active_pool_serves_until_a_request_does_not_fit_and_needs_blocks_then() {
        let mut pools = DoublePool::default();
        pools.grant(run(100, 10));
        pools.grant(run(500, 10));
        assert_eq!((pools.standby(), pools.cut(6)), (10, Some(run(100, 6))));
        assert!(!pools.needs(PagId(1), 10), "the standby pool is full");
        assert_eq!(pools.cut(6), Some(run(500, 6)), "4 blocks are too few");
        assert!(pools.needs(PagId(1), 10));
        assert_eq!((pools.standby(), pools.stock(PagId(1))), (4, 8));
        assert_eq!(pools.cut(3), Some(run(506, 3)), "it is the active one now");
        pools.grant(run(900, 10));
        assert!(!pools.needs(PagId(1), 10));
        assert_eq!((pools.standby(), pools.cut(14)), (14, Some(run(900, 10))));
    }

    #[test]
    fn blocks_of_removed_files_do_not_scatter_the_files_that_follow() {
        let mut pools = DoublePool::default();
        pools.grant(run(100, 100));
        let files: Vec<PagRun> = (0..10).filter_map(|_| pools.cut(4)).collect();
        files.iter().step_by(2).for_each(|file| pools.put(file.clone()));
        assert_eq!((pools.cut(4), pools.cut(4)), (Some(run(140, 4)), Some(run(144, 4))));
        assert_eq!((pools.free(), pools.short(None)), (72, 72), "52 and five of 4 blocks");
        pools.grant(run(500, 200));
        assert_eq!(pools.short(None), 72);
        assert_eq!(
            pools.take_short(30),
            [run(100, 4), run(108, 4), run(116, 4), run(124, 4), run(132, 4)]
        );
        assert_eq!(pools.cut(4), Some(run(148, 4)));
        pools.validate();
    }

    #[test]
    fn file_goes_on_from_one_pool_into_the_other() {
        let mut pools = DoublePool::default();
        pools.grant(run(100, 10));
        pools.grant(run(110, 10));
        assert_eq!(pools.cut(4), Some(run(100, 4)));
        assert_eq!(pools.continue_at(PagId(1), PagBlock(104), 9), Some(run(104, 9)));
        pools.validate();
        assert_eq!((pools.standby(), pools.cut(9)), (0, Some(run(113, 7))));
    }
}

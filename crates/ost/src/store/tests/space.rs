//! The choice of free blocks, against a search of all of them.

use engine::cost::Cost;
use engine::store::Store;
use engine::testing::{now, random};
use types::{Lsn, Transno};

use super::super::format::{FREE, Run};
use super::super::space::{Space, give, joined, take};

const BLOCKS: u64 = 110_000;

/// What is free, and what of it is held.
struct Model {
    free: Vec<bool>,
    held: Vec<bool>,
}

impl Model {
    fn available(&self, block: u64) -> bool {
        self.free[block as usize] && !self.held[block as usize]
    }

    fn all(&self) -> u64 {
        (1..BLOCKS).filter(|&block| self.available(block)).count() as u64
    }

    fn set(&mut self, runs: &[Run], free: bool) {
        for block in runs.iter().flat_map(|run| run.at..run.end()) {
            assert_ne!(self.free[block as usize], free, "block {block}");
            self.free[block as usize] = free;
            self.held[block as usize] = free;
        }
    }

    /// No run exceeds the bound of its region.
    fn check_bounds(&self, space: &Space) {
        let (region, bounds) = space.bounds();
        for (at, bound) in (0..).zip(bounds) {
            let (mut longest, mut run) = (0, 0);
            for block in (at * region).max(1)..((at + 1) * region).min(BLOCKS) {
                run = if self.available(block) { run + 1 } else { 0 };
                longest = longest.max(run);
            }
            assert!(longest <= u64::from(bound), "region {at}: {longest} blocks, bound {bound}");
        }
    }
}

#[test]
fn choice_finds_all_that_may_be_taken_and_nothing_else() {
    let (store, space) = (Store::volatile(20_000), Space::new(BLOCKS));
    let first = Run { at: 1, len: BLOCKS - 1 };
    now(store.run(Cost::STEP, |txn| give(txn, first))).unwrap();
    space.learn(first);
    let mut free = vec![true; BLOCKS as usize];
    free[0] = false;
    let mut model = Model { free, held: vec![false; BLOCKS as usize] };
    let (mut seed, mut lsn, mut objects) = (5, 0, Vec::<Run>::new());
    let (mut refused, mut pieces) = (0, 0);
    for round in 0..3000 {
        lsn += 1;
        let number = Transno { lsn: Lsn(lsn), ..Transno::ZERO };
        // Fill it, then change it.
        if round < 1100 || random(&mut seed, 2) == 0 {
            let n = 1 + random(&mut seed, 256);
            let goal = (random(&mut seed, 3) > 0).then(|| random(&mut seed, BLOCKS + 10));
            let chosen = now(store.run(Cost::STEP, |txn| {
                let chosen = space.choose(txn, n, goal)?;
                for &run in chosen.iter().flatten() {
                    take(txn, run)?;
                }
                Ok(chosen)
            }));
            match chosen.unwrap().0 {
                Some(runs) => {
                    assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), n);
                    let taken = || runs.iter().flat_map(|run| run.at..run.end());
                    assert!(taken().all(|block| model.available(block)), "round {round}");
                    model.set(&runs, false);
                    space.changed(number, &runs, &[]);
                    pieces = pieces.max(runs.len());
                    objects.extend(runs);
                }
                None => {
                    assert!(model.all() < n, "round {round}: {n} of {} blocks", model.all());
                    refused += 1;
                }
            }
        } else {
            // Parts of what is taken.
            let mut freed = Vec::new();
            for _ in 0..=random(&mut seed, 4) {
                if objects.is_empty() {
                    break;
                }
                let run = objects.swap_remove(random(&mut seed, objects.len() as u64) as usize);
                let len = 1 + random(&mut seed, run.len);
                freed.push(Run { at: run.at, len });
                if len < run.len {
                    objects.push(Run { at: run.at + len, len: run.len - len });
                }
            }
            let freed = joined(freed);
            let given =
                |txn: &mut engine::txn::Txn<'_>| freed.iter().try_for_each(|&run| give(txn, run));
            now(store.run(Cost::STEP, given)).unwrap();
            model.set(&freed, true);
            space.changed(number, &[], &freed);
        }
        if random(&mut seed, 12) == 0 {
            space.release(Lsn(lsn));
            model.held.fill(false);
        }
        let is_free = model.free.iter().filter(|free| **free).count() as u64;
        assert_eq!(space.free(), is_free);
        if round % 300 == 0 {
            model.check_bounds(&space);
        }
    }
    model.check_bounds(&space);
    assert!(refused > 10 && pieces > 5, "{refused} refused, {pieces} pieces");
    let runs = now(store.run(Cost::READ, |txn| FREE.range(txn, &[0; 8], usize::MAX))).unwrap().0;
    assert!(runs.len() > 5, "{} free runs", runs.len());
}

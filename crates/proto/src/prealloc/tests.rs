use std::collections::{BTreeMap, BTreeSet};

use types::{ClientId, FileBlock, Ino, PagBlock, PagId};

use super::*;

/// A data zone, which knows the owner of every block.
pub(super) struct Zone {
    pag: PagId,
    free: BTreeSet<u64>,
    total: u64,
}

impl Zone {
    pub fn new(blocks: u64) -> Zone {
        Zone { pag: PagId(1), free: (0..blocks).collect(), total: blocks }
    }

    fn run_at(&self, addr: u64, len: u64) -> u64 {
        (addr..addr + len).take_while(|block| self.free.contains(block)).count() as u64
    }

    fn take(&mut self, addr: u64, len: u64) -> PagRun {
        for block in addr..addr + len {
            assert!(self.free.remove(&block), "block {block} was handed out twice");
        }
        PagRun { pag: self.pag, addr: PagBlock(addr), len }
    }
}

impl Space for Zone {
    fn free(&self) -> u64 {
        self.free.len() as u64
    }

    fn continue_at(&mut self, pag: PagId, addr: PagBlock, len: u64) -> Option<PagRun> {
        let len = (pag == self.pag).then(|| self.run_at(addr.0, len)).filter(|len| *len > 0)?;
        Some(self.take(addr.0, len))
    }

    fn cut(&mut self, len: u64) -> Option<PagRun> {
        let (mut best, mut at) = ((0, 0), 0);
        while let Some(&addr) = self.free.range(at..).next() {
            let run = self.run_at(addr, len);
            if run > best.1 {
                best = (addr, run);
            }
            if run == len {
                break;
            }
            at = addr + run;
        }
        (best.1 > 0).then(|| self.take(best.0, best.1))
    }

    fn give_back(&mut self, run: PagRun) {
        assert_eq!(run.pag, self.pag);
        assert!(run.len > 0, "an empty run");
        for block in run.addr.0..run.addr.0 + run.len {
            assert!(block < self.total && self.free.insert(block), "block {block} was free");
        }
    }
}

pub(super) fn stream(process: u32) -> Option<Stream> {
    Some(Stream { client: ClientId(1), handle: 1, process })
}

/// Writers of files in a zone.
pub(super) struct Writers<P: ?Sized> {
    pub zone: Zone,
    /// The place of every block.
    pub files: BTreeMap<Ino, BTreeMap<u64, u64>>,
    pub preallocator: Box<P>,
    /// Blocks of a part, if the files are striped.
    pub part_len: Option<u64>,
}

impl<P: Preallocator + ?Sized> Writers<P> {
    pub fn new(preallocator: Box<P>, blocks: u64) -> Writers<P> {
        Writers { zone: Zone::new(blocks), files: BTreeMap::new(), preallocator, part_len: None }
    }

    /// A process writes; returns whether all blocks got a place.
    pub fn write_to(&mut self, ino: u64, process: u32, block: u64, len: u64) -> bool {
        let ino = Ino(ino);
        let file = self.files.entry(ino).or_default();
        let before = file.range(..block).next_back().map(|(&last, &addr)| Behind {
            block: FileBlock(last + 1),
            pag: PagId(1),
            addr: PagBlock(addr + 1),
        });
        let block = FileBlock(block);
        let part = self
            .part_len
            .map(|len| Part { zone: PagId(1), end: FileBlock((block.0 / len + 1) * len) });
        let request = Request { ino, stream: stream(process), block, len, before, part };
        let mut at = block.0;
        for run in self.preallocator.place(&mut self.zone, &request) {
            for addr in run.addr.0..run.addr.0 + run.len {
                assert!(!self.zone.free.contains(&addr), "a free block was handed out");
                assert_eq!(file.insert(at, addr), None, "block {at} has a place");
                at += 1;
            }
        }
        assert!(at <= block.0 + len, "more than was asked for");
        at == block.0 + len
    }

    pub fn write(&mut self, process: u32, block: u64, len: u64) {
        assert!(self.write_to(1, process, block, len), "no space");
    }

    /// Contiguous pieces of the file.
    pub fn segments(&self) -> usize {
        let file = &self.files[&Ino(1)];
        let places: Vec<(u64, u64)> = file.iter().map(|(&block, &addr)| (block, addr)).collect();
        let joined =
            |pair: &&[(u64, u64)]| pair[0].0 + 1 == pair[1].0 && pair[0].1 + 1 == pair[1].1;
        places.len() - places.windows(2).filter(joined).count()
    }

    /// Every block is free, in a window, or has one owner.
    pub fn check(&self) {
        let mut owned = BTreeSet::new();
        for addr in self.files.values().flat_map(BTreeMap::values) {
            assert!(owned.insert(*addr), "block {addr} has two owners");
            assert!(!self.zone.free.contains(addr), "block {addr} is free, too");
        }
        let known = owned.len() as u64 + self.zone.free() + self.preallocator.held();
        assert_eq!(known, self.zone.total, "blocks have leaked");
    }
}

fn of(policy: Policy, blocks: u64) -> Writers<dyn Preallocator> {
    Writers::new(policy.preallocator(), blocks)
}

/// `processes` extend parts of one file in turns, `len` blocks at a time.
fn interleaved(policy: Policy, processes: u32, rounds: u64, len: u64) -> Writers<dyn Preallocator> {
    let mut writers = of(policy, 1 << 18);
    for round in 0..rounds {
        for process in 0..processes {
            writers.write(process, u64::from(process + 1) * 10_000 + round * len, len);
        }
    }
    writers.check();
    writers
}

#[test]
fn figure_3a_reservation_and_vanilla_place_blocks_in_the_order_of_arrival() {
    for policy in [Policy::Reservation, Policy::Vanilla] {
        let writers = interleaved(policy, 64, 3, 1);
        let file = &writers.files[&Ino(1)];
        let first: Vec<u64> = (1..=64).map(|process| file[&(process * 10_000)]).collect();
        assert!(first.is_sorted_by(|a, b| a + 1 == *b), "{policy:?}: {first:?}");
        assert_eq!(writers.segments(), 64 * 3, "{policy:?}: no block lies behind its neighbour");
    }
}

#[test]
fn on_demand_keeps_each_stream_together() {
    let [on_demand, reservation, vanilla] =
        [Policy::default(), Policy::Reservation, Policy::Vanilla]
            .map(|policy| interleaved(policy, 16, 256, 4).segments());
    assert!(on_demand * 20 < reservation, "{on_demand} {reservation}");
    assert!(reservation <= vanilla, "{reservation} {vanilla}");
    assert!(on_demand <= 16 * 5, "a segment for each of the windows: {on_demand}");
}

#[test]
fn announced_ranges_are_contiguous_in_any_order_of_writes() {
    let mut writers = of(Policy::Static, 4096);
    let found = writers.preallocator.announce(&mut writers.zone, Ino(1), FileBlock(0), 1024);
    assert_eq!((found, writers.preallocator.held()), (1024, 1024));
    for at in (0..128).rev().map(|step| step * 8) {
        writers.write(at as u32 % 5, at, 8);
    }
    assert_eq!((writers.segments(), writers.preallocator.held()), (1, 0));
    writers.write(1, 1024, 10);
    writers.check();
    // What is announced and not written comes back.
    writers.preallocator.announce(&mut writers.zone, Ino(1), FileBlock(2000), 100);
    writers.write(1, 1990, 20);
    assert_eq!(writers.preallocator.held(), 90);
    writers.preallocator.close(&mut writers.zone, Ino(1));
    assert_eq!((writers.preallocator.held(), writers.zone.free()), (0, 4096 - 1024 - 30));
    writers.check();
}

#[test]
fn windows_of_a_closed_file_are_free_for_others() {
    for policy in [Policy::default(), Policy::Reservation] {
        let mut writers = interleaved(policy, 8, 2, 16);
        let held = writers.preallocator.held();
        assert!(held > 0, "{policy:?}");
        writers.preallocator.close(&mut writers.zone, Ino(2));
        assert_eq!(writers.preallocator.held(), held, "{policy:?}: another file");
        writers.preallocator.close(&mut writers.zone, Ino(1));
        assert_eq!(writers.preallocator.held(), 0, "{policy:?}");
        writers.check();
    }
}

#[test]
fn blocks_in_windows_do_not_make_the_space_full() {
    for policy in [Policy::default(), Policy::Reservation, Policy::Vanilla] {
        let mut writers = of(policy, 1000);
        for process in 0..6 {
            writers.write(process, 5000 * u64::from(process + 1), 20);
        }
        assert!(writers.preallocator.held() <= 500, "{policy:?}");
        assert!(writers.write_to(2, 9, 0, 880), "{policy:?}: all that no file has");
        assert!(!writers.write_to(2, 9, 880, 1), "{policy:?}");
        assert_eq!((writers.preallocator.held(), writers.zone.free()), (0, 0), "{policy:?}");
        writers.check();
    }
}

#[test]
fn blocks_of_a_zone_leave_the_windows() {
    for policy in [Policy::default(), Policy::Reservation] {
        let mut writers = interleaved(policy, 8, 2, 16);
        let held = writers.preallocator.held();
        assert_eq!(writers.preallocator.take_zone(PagId(2)), [], "{policy:?}");
        let runs = writers.preallocator.take_zone(PagId(1));
        assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), held, "{policy:?}");
        assert_eq!(writers.preallocator.held(), 0, "{policy:?}");
        runs.into_iter().for_each(|run| writers.zone.give_back(run));
        writers.write(1, 500_000, 16);
        writers.check();
    }
}

/// A random number below `bound`.
fn below(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// Writes, holes, truncations, closes and shortages in any order.
fn random_run(policy: Policy, seed: u64) {
    let mut random = seed;
    let mut writers = of(policy, 200 + below(&mut random, 4000));
    for step in 0..400 {
        let ino = 1 + below(&mut random, 3);
        let process = below(&mut random, 4) as u32;
        match below(&mut random, 20) {
            0 => writers.preallocator.close(&mut writers.zone, Ino(ino)),
            1 => {
                writers.preallocator.close_streams(&mut writers.zone, Ino(ino), &|s| s.handle == 1)
            }
            2 => {
                let blocks = below(&mut random, 100);
                writers.preallocator.reclaim(&mut writers.zone, blocks);
            }
            3 => {
                let runs = writers.preallocator.take_zone(PagId(1));
                runs.into_iter().for_each(|run| writers.zone.give_back(run));
            }
            4 | 5 => {
                // A truncation gives the blocks back to the zone.
                let from = below(&mut random, 2000);
                let cut = writers.files.entry(Ino(ino)).or_default().split_off(&from);
                for addr in cut.into_values() {
                    let run = PagRun { pag: PagId(1), addr: PagBlock(addr), len: 1 };
                    writers.zone.give_back(run);
                }
            }
            6 => {
                let from = FileBlock(below(&mut random, 2000));
                let len = below(&mut random, 200);
                writers.preallocator.announce(&mut writers.zone, Ino(ino), from, len);
            }
            7 => {
                let from = FileBlock(below(&mut random, 2000));
                if let Some(run) = writers.zone.cut(1 + below(&mut random, 40)) {
                    writers.preallocator.assign(&mut writers.zone, Ino(ino), from, run);
                }
            }
            8 => {
                let from = below(&mut random, 2000);
                let to = FileBlock(from + below(&mut random, 200));
                writers.preallocator.unassign(&mut writers.zone, Ino(ino), FileBlock(from), to);
            }
            _ => {
                let file = writers.files.entry(Ino(ino)).or_default();
                let jump = below(&mut random, 3) == 0;
                let part = u64::from(process) * 500;
                let end = file.range(part..part + 500).next_back().map_or(part, |last| last.0 + 1);
                let at = if jump { below(&mut random, 2000) } else { end };
                let most = file.range(at..).next().map_or(64, |(&next, _)| (next - at).min(64));
                if most > 0 {
                    let len = 1 + below(&mut random, most);
                    let placed = writers.write_to(ino, process, at, len);
                    let empty = writers.zone.free() + writers.preallocator.held() == 0;
                    assert!(placed || empty, "seed {seed}: NoSpace while there is space");
                }
            }
        }
        if step % 16 == 0 {
            writers.check();
        }
    }
    for ino in 1..=3 {
        writers.preallocator.close(&mut writers.zone, Ino(ino));
    }
    assert_eq!(writers.preallocator.held(), 0, "seed {seed}");
    writers.check();
}

#[test]
fn no_block_is_handed_out_twice_and_none_leaks() {
    let behind = OdOptions {
        first: FirstWindow::BehindWrite,
        while_off: WhileOff::Fixed(16),
        misses_max: 2,
        for_empty_files: true,
        ..OdOptions::default()
    };
    let policies = [
        Policy::default(),
        Policy::OnDemand(behind),
        Policy::OnDemand(OdOptions { scale: 2, misses_max: 1, ..OdOptions::default() }),
        Policy::Reservation,
        Policy::Vanilla,
        Policy::Static,
    ];
    for policy in policies {
        for seed in 0..30 {
            random_run(policy, seed);
        }
    }
}

#[test]
fn assigned_blocks_are_the_places_of_their_file_blocks_until_these_need_none() {
    let mut zone = Zone::new(100);
    let mut preallocator = Policy::Static.preallocator();
    let run = |addr, len| PagRun { pag: PagId(1), addr: PagBlock(addr), len };
    for (from, addr, len) in [(20, 50, 8), (40, 70, 4)] {
        let given = zone.take(addr, len);
        preallocator.assign(&mut zone, Ino(1), FileBlock(from), given);
    }
    let mut place = |zone: &mut Zone, block, len| {
        let request = Request {
            ino: Ino(1),
            stream: None,
            block: FileBlock(block),
            len,
            before: None,
            part: None,
        };
        preallocator.place(zone, &request)
    };
    assert_eq!(place(&mut zone, 22, 2), [run(52, 2)]);
    assert_eq!(place(&mut zone, 41, 1), [run(71, 1)]);
    assert_eq!(place(&mut zone, 22, 1), [run(0, 1)], "its place was handed out");
    assert_eq!(preallocator.held(), 9);
    preallocator.trim(&mut zone);
    preallocator.unassign(&mut zone, Ino(1), FileBlock(21), FileBlock(26));
    assert_eq!((preallocator.held(), zone.run_at(54, 9)), (6, 2), "20, 26, 27; 40, 42, 43 stay");
    preallocator.close(&mut zone, Ino(1));
    assert_eq!((preallocator.held(), zone.free()), (0, 96));
}

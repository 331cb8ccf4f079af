//! Free content blocks as they are known in memory: how many, where large runs may be, and which of
//! them must not be taken yet.
//!
//! Invariants:
//! - a freed block is *held* until the transaction that freed it is durable: a crash gives the old
//!   bytes back. It is also held until every read that began before has ended: no reader sees what
//!   another object writes there. Nobody takes held blocks. After a restart nothing is held;
//! - the content slice is divided into at most [`REGIONS_MAX`] regions. No run of free blocks in a
//!   region exceeds the region's bound, held blocks left out. So memory does not grow with the
//!   device, and a search visits few regions in vain;
//! - blocks come from right behind the object's last block if they are free there. Else they come
//!   from a run of [`LARGE`] blocks or more, from there on; else from the largest runs that there
//!   are;
//! - a write that takes more blocks than it gives back leaves [`Space::reserve`] blocks free. So a
//!   write over others finds fresh blocks, at the latest when the held ones are let go.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use engine::alloc::max_tree::MaxTree;
use engine::error::Stop;
use engine::txn::Txn;
use env::sync::Notify;
use types::{Lsn, Transno};

use super::format::{FREE, Run, free_of};

/// Regions at most.
const REGIONS_MAX: u64 = 1 << 16;
/// Blocks of a region at least: 128 MiB.
const REGION_MIN: u64 = 1 << 15;
/// Blocks of a run that is preferred for an object that has to go elsewhere: 8 MiB.
const LARGE: u64 = 2048;
/// Runs that are held at most before punches wait.
const HELD_MAX: usize = 1 << 16;
/// Blocks that are left for writes over others: 16 MiB, or a sixteenth of a small target.
const RESERVE: u64 = 4096;

/// See the module.
pub(super) struct Space {
    /// Blocks of the content slice.
    blocks: u64,
    region: u64,
    longest: MaxTree,
    free: Cell<u64>,
    /// Where the last search ended: objects that are new begin there.
    cursor: Cell<u64>,
    held: RefCell<Held>,
    /// Notified when a read has ended.
    read: Notify,
    /// A planted fault: blocks that are held are taken.
    #[cfg(test)]
    pub(super) ignore_held: Cell<bool>,
}

/// What must not be taken yet.
#[derive(Default)]
struct Held {
    /// By their first block; they do not overlap.
    runs: BTreeMap<u64, u64>,
    /// The same in the order in which they were freed.
    queue: VecDeque<Freed>,
    blocks: u64,
    /// Reads that have not ended, by their number.
    reads: BTreeSet<u64>,
    next_read: u64,
}

struct Freed {
    run: Run,
    /// The transaction that freed it ends here.
    lsn: Lsn,
    /// Reads with a lower number may still need it.
    reads: u64,
}

/// A read that has not ended: nothing that is freed meanwhile is taken.
pub(super) struct Reading {
    space: Rc<Space>,
    number: u64,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.space.held.borrow_mut().reads.remove(&self.number);
        self.space.read.notify_all();
    }
}

/// What to wait for before blocks that are held can be taken.
pub(super) enum HeldBy {
    /// Nothing is held.
    Nothing,
    /// The log must be durable up to here.
    Log(Lsn),
    /// Reads must end.
    Reads,
}

impl Space {
    /// The space of a content slice of `blocks` blocks, none of which is known to be free.
    pub(super) fn new(blocks: u64) -> Space {
        let region = blocks.div_ceil(REGIONS_MAX).next_power_of_two().max(REGION_MIN);
        Space {
            blocks,
            region,
            longest: MaxTree::new(blocks.div_ceil(region) as usize),
            free: Cell::new(0),
            cursor: Cell::new(1),
            held: RefCell::default(),
            read: Notify::new(),
            #[cfg(test)]
            ignore_held: Cell::new(false),
        }
    }

    /// Free blocks, with those that are held and those that only writes over others may take.
    pub(super) fn free(&self) -> u64 {
        self.free.get()
    }

    /// Free blocks that only writes over others may take.
    pub(super) fn reserve(&self) -> u64 {
        RESERVE.min(self.blocks / 16)
    }

    /// Can an object have these blocks?
    pub(super) fn holds(&self, run: Run) -> bool {
        run.at > 0
            && run.len > 0
            && run.at.checked_add(run.len).is_some_and(|end| end <= self.blocks)
    }

    /// Blocks and runs that are held.
    pub(super) fn held(&self) -> (u64, u64) {
        let held = self.held.borrow();
        (held.blocks, held.queue.len() as u64)
    }

    /// Are so many runs held that a punch should wait before it frees more?
    pub(super) fn holds_many(&self) -> bool {
        self.held.borrow().queue.len() >= HELD_MAX
    }

    /// Blocks of a region, and the bound of each.
    #[cfg(test)]
    pub(super) fn bounds(&self) -> (u64, Vec<u32>) {
        let regions = self.blocks.div_ceil(self.region) as usize;
        (self.region, (0..regions).map(|at| self.longest.get(at)).collect())
    }

    /// Begins a read.
    pub(super) fn begin_read(self: &Rc<Space>) -> Reading {
        let held = &mut *self.held.borrow_mut();
        let number = held.next_read;
        held.next_read += 1;
        held.reads.insert(number);
        Reading { space: self.clone(), number }
    }

    /// Counts a free run, of which the tree of free runs says at the opening.
    pub(super) fn learn(&self, run: Run) {
        self.free.set(self.free.get() + run.len);
        self.raise(run, |_| 0);
    }

    /// Raises the bounds of the regions of a run that is free from now on; `before` says how many
    /// blocks of the region may adjoin it.
    fn raise(&self, run: Run, before: impl Fn(u32) -> u64) {
        let mut at = run.at;
        while at < run.end() {
            let region = at / self.region;
            let end = run.end().min((region + 1) * self.region);
            let bound = self.longest.get(region as usize);
            let new = (before(bound) + (end - at)).min(self.region) as u32;
            self.longest.set(region as usize, bound.max(new));
            at = end;
        }
    }

    /// A transaction has taken blocks, and freed others.
    pub(super) fn changed(&self, number: Transno, taken: &[Run], freed: &[Run]) {
        let sum = |runs: &[Run]| runs.iter().map(|run| run.len).sum::<u64>();
        self.free.set(self.free.get() + sum(freed) - sum(taken));
        if let Some(last) = taken.last() {
            self.cursor.set(last.end());
        }
        #[cfg(test)]
        if self.ignore_held.get() {
            return freed.iter().for_each(|&run| self.raise(run, |bound| 2 * u64::from(bound)));
        }
        let held = &mut *self.held.borrow_mut();
        for &run in freed {
            held.runs.insert(run.at, run.len);
            held.blocks += run.len;
            held.queue.push_back(Freed { run, lsn: number.lsn, reads: held.next_read });
        }
    }

    /// Lets go what need not be held any more, now that the log is durable up to `durable`.
    pub(super) fn release(&self, durable: Lsn) {
        let mut free = Vec::new();
        {
            let held = &mut *self.held.borrow_mut();
            let oldest = held.reads.first().copied().unwrap_or(u64::MAX);
            while let Some(first) = held.queue.front()
                && first.lsn <= durable
                && first.reads <= oldest
            {
                let run = first.run;
                held.queue.pop_front();
                held.runs.remove(&run.at);
                held.blocks -= run.len;
                free.push(run);
            }
        }
        // Runs before and behind it, each within the bound, may adjoin it.
        free.into_iter().for_each(|run| self.raise(run, |bound| 2 * u64::from(bound)));
    }

    /// What keeps all that is held.
    pub(super) fn held_by(&self, durable: Lsn) -> HeldBy {
        match self.held.borrow().queue.back() {
            None => HeldBy::Nothing,
            Some(last) if last.lsn > durable => HeldBy::Log(last.lsn),
            Some(_) => HeldBy::Reads,
        }
    }

    /// Waits until a read has ended.
    pub(super) async fn read_ended(&self) {
        self.read.notified().await;
    }

    /// The parts of a free run that are not held, in `from..to`.
    fn available(&self, run: Run, from: u64, to: u64, mut each: impl FnMut(Run) -> bool) {
        let held = self.held.borrow();
        let (mut at, end) = (run.at.max(from), run.end().min(to));
        if let Some((&start, &len)) = held.runs.range(..=at).next_back() {
            at = at.max(start + len);
        }
        while at < end {
            let next = held.runs.range(at..end).next();
            let until = next.map_or(end, |(&start, _)| start);
            if at < until && !each(Run { at, len: until - at }) {
                return;
            }
            at = next.map_or(end, |(&start, &len)| start + len);
        }
    }

    /// What may be taken from block `at` on, without a gap.
    fn available_at(&self, txn: &Txn<'_>, at: u64) -> Result<u64, Stop> {
        let Some((key, value)) = FREE.prev(txn, &at.to_be_bytes())? else { return Ok(0) };
        let run = free_of(&key, &value);
        let mut len = 0;
        if run.end() > at {
            self.available(run, at, u64::MAX, |part| {
                len = if part.at == at { part.len } else { 0 };
                false
            });
        }
        Ok(len)
    }

    /// The runs that may be taken in a region, from `from` on.
    fn scan(&self, txn: &Txn<'_>, region: u64, from: u64) -> Result<Vec<Run>, Stop> {
        let (begin, end) = (region * self.region, (region + 1) * self.region);
        let from = from.max(begin);
        let mut out = Vec::new();
        let mut add = |run: Run| {
            self.available(run, from, end, |part| {
                out.push(part);
                true
            });
        };
        if let Some((key, value)) = FREE.prev(txn, &from.to_be_bytes())? {
            add(free_of(&key, &value));
        }
        FREE.for_each(txn, &(from + 1).to_be_bytes(), |key, value| {
            let run = free_of(key, value);
            let inside = run.at < end;
            if inside {
                add(run);
            }
            inside
        })?;
        if from == begin {
            let longest = out.iter().map(|run| run.len).max().unwrap_or(0);
            self.longest.set(region as usize, longest as u32);
        }
        Ok(out)
    }

    /// Chooses `n` blocks for an object, `goal` being right behind its last one; `None` if there
    /// are too few that are not held.
    pub(super) fn choose(
        &self,
        txn: &Txn<'_>,
        n: u64,
        goal: Option<u64>,
    ) -> Result<Option<Vec<Run>>, Stop> {
        let goal = goal.unwrap_or(self.cursor.get()).clamp(1, self.blocks - 1);
        let (mut chosen, mut left) = (Vec::new(), n);
        let there = self.available_at(txn, goal)?.min(left);
        if there > 0 {
            chosen.push(Run { at: goal, len: there });
            left -= there;
        }
        let mut want = LARGE.max(left);
        while left > 0 {
            self.choose_from(txn, want, goal, &mut left, &mut chosen)?;
            want = match want {
                1 => break,
                large if large > left => left.max(1),
                small => small.div_ceil(2),
            };
        }
        Ok((left == 0).then_some(chosen))
    }

    /// Takes what is still missing from runs of at least `want` blocks, from `goal` on and then
    /// from the front.
    fn choose_from(
        &self,
        txn: &Txn<'_>,
        want: u64,
        goal: u64,
        left: &mut u64,
        chosen: &mut Vec<Run>,
    ) -> Result<(), Stop> {
        let regions = self.blocks.div_ceil(self.region);
        let first = goal / self.region;
        for (begin, end, from) in
            [(first, first + 1, goal), (first + 1, regions, 0), (0, first + 1, 0)]
        {
            let mut region = begin;
            let next = |region: u64| {
                let least = u32::try_from(want.min(self.region)).unwrap_or(u32::MAX);
                self.longest.next_at_least(region as usize, least).map(|found| found as u64)
            };
            while let Some(found) = next(region).filter(|&found| found < end) {
                for run in self.scan(txn, found, from)? {
                    if run.len < want {
                        continue;
                    }
                    for part in without(run, chosen) {
                        let len = part.len.min(*left);
                        if part.len >= want.min(*left) && len > 0 {
                            chosen.push(Run { at: part.at, len });
                            *left -= len;
                        }
                    }
                    if *left == 0 {
                        return Ok(());
                    }
                }
                region = found + 1;
            }
        }
        Ok(())
    }
}

/// The parts of a run that are not chosen yet.
fn without(run: Run, chosen: &[Run]) -> Vec<Run> {
    let mut taken: Vec<Run> =
        chosen.iter().copied().filter(|it| it.at < run.end() && it.end() > run.at).collect();
    taken.sort_unstable();
    let (mut at, mut out) = (run.at, Vec::new());
    for it in taken {
        if it.at > at {
            out.push(Run { at, len: it.at - at });
        }
        at = at.max(it.end());
    }
    if at < run.end() {
        out.push(Run { at, len: run.end() - at });
    }
    out
}

/// Removes blocks from the tree of free runs, which has them.
pub(super) fn take(txn: &mut Txn<'_>, run: Run) -> Result<(), Stop> {
    let found = FREE.prev(txn, &run.at.to_be_bytes())?.map(|(key, value)| free_of(&key, &value));
    let Some(free) = found.filter(|free| free.end() >= run.end()) else {
        return Err(FREE.corrupt(txn, "blocks are taken that are not free"));
    };
    match free.at < run.at {
        true => {
            FREE.insert(txn, &free.at.to_be_bytes(), &(run.at - free.at).to_le_bytes())?;
        }
        false => {
            FREE.remove(txn, &free.at.to_be_bytes())?;
        }
    }
    if run.end() < free.end() {
        let rest = free.end() - run.end();
        FREE.insert(txn, &run.end().to_be_bytes(), &rest.to_le_bytes())?;
    }
    Ok(())
}

/// Adds blocks to the tree of free runs, and joins them with their neighbours.
pub(super) fn give(txn: &mut Txn<'_>, run: Run) -> Result<(), Stop> {
    let (mut at, mut end) = (run.at, run.end());
    let before = FREE.prev(txn, &run.at.to_be_bytes())?.map(|(key, value)| free_of(&key, &value));
    if let Some(before) = before {
        if before.end() > run.at {
            return Err(FREE.corrupt(txn, "a content block was freed twice"));
        }
        if before.end() == run.at {
            at = before.at;
        }
    }
    let behind = FREE.next(txn, &(run.at + 1).to_be_bytes())?;
    if let Some(behind) = behind.map(|(key, value)| free_of(&key, &value)) {
        if behind.at < run.end() {
            return Err(FREE.corrupt(txn, "a content block was freed twice"));
        }
        if behind.at == run.end() {
            end = behind.end();
            FREE.remove(txn, &behind.at.to_be_bytes())?;
        }
    }
    FREE.insert(txn, &at.to_be_bytes(), &(end - at).to_le_bytes())?;
    Ok(())
}

/// Sorts runs, and joins those that touch each other.
pub(super) fn joined(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable();
    let mut out: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match out.last_mut() {
            Some(last) if last.end() == run.at => last.len += run.len,
            _ => out.push(run),
        }
    }
    out
}

//! The name index of a directory, in memory: from a name's hash to the slots
//! that may hold it, and which slots are free.
//!
//! Invariants:
//! - an index is a pure function of the directory's committed content; it is
//!   built by reading the content once, may be dropped at any time, and changes
//!   only when a transaction has succeeded ([`Pending`] holds what the running
//!   transaction changed);
//! - occupancy of a directory changes only while its index is complete, so a
//!   half-built index cannot become wrong;
//! - a slot that was given up is taken again only when that is durable: a number or a place that
//!   a client was told must be free when the client's request is replayed after a restart, whatever
//!   others do meanwhile (an index that is built anew forgets which slots these are). The same
//!   holds for blocks that were given back;
//! - all indexes together hold at most [`ENTRIES_MAX`] entries; beyond that whole
//!   directories are dropped, least recently used first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hasher;

use types::map::FixedHasher;
use types::{DirNo, HashMap, Ino, Transno};

use super::idle::Learnt;
use crate::format::chunk::{Descriptor, Run};
use crate::format::slot::{RETIRED, SLOTS_PER_BLOCK};

/// Entries that all indexes together hold, about 16 bytes each.
pub const ENTRIES_MAX: usize = 8 << 20;
/// Units with blocks that were given back that are looked at for one that can come again.
const GONE_LOOKS: usize = 64;
/// Free slots that are known of a directory with a name map; others are learnt again.
const FREE_MAX: usize = 64 << 10;
/// Chunk maps that are kept.
const CHUNKS_MAX: usize = 64 << 10;
/// Blocks of a *unit*, which are given back together; a mask has a bit for each.
pub const UNIT_BLOCKS: u32 = 8;
/// Slots of a unit.
const UNIT_SLOTS: u32 = UNIT_BLOCKS * SLOTS_PER_BLOCK;
const _: () = assert!(UNIT_BLOCKS == u8::BITS && (1 << 16) % UNIT_SLOTS == 0);

/// A slot of a directory: index of its chunk in the high 16 bits, slot in the low.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position(pub u32);

impl Position {
    /// The slot `slot` of the `chunk`-th chunk.
    pub fn new(chunk: u32, slot: u32) -> Position {
        Position(chunk << 16 | slot)
    }

    /// Index of the chunk in its directory.
    pub fn chunk(self) -> usize {
        (self.0 >> 16) as usize
    }

    /// Slot in the chunk.
    pub fn slot(self) -> u32 {
        self.0 & 0xffff
    }

    /// The unit that it belongs to.
    pub fn unit(self) -> Unit {
        Unit(self.0 / UNIT_SLOTS)
    }

    /// The bit of its block in the mask of its unit.
    fn bit(self) -> u8 {
        1 << (self.0 / SLOTS_PER_BLOCK % UNIT_BLOCKS)
    }
}

/// [`UNIT_BLOCKS`] content blocks of a directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Unit(u32);

impl Unit {
    /// Its first slot.
    pub fn start(self) -> Position {
        Position(self.0 * UNIT_SLOTS)
    }

    /// Its first block in its chunk.
    pub fn first_block(self) -> u32 {
        self.start().slot() / SLOTS_PER_BLOCK
    }

    /// Its slots in the blocks of `mask`.
    fn slots(self, mask: u8) -> impl Iterator<Item = Position> {
        let all = (0..UNIT_SLOTS).map(move |n| Position(self.0 * UNIT_SLOTS + n));
        all.filter(move |at| at.bit() & mask != 0)
    }
}

/// The blocks `first..end` of a chunk that lie in the unit that begins with block `of`, as a mask.
pub fn mask_of(of: u32, first: u32, end: u32) -> u8 {
    let bits = (0..UNIT_BLOCKS).filter(|bit| (first..end).contains(&(of + bit)));
    bits.fold(0, |mask, bit| mask | 1 << bit)
}

/// The hash under which a name is indexed.
pub fn hash_name(name: &[u8]) -> u32 {
    let mut hasher = FixedHasher::default();
    hasher.write(name);
    (hasher.finish() >> 32) as u32
}

fn entry(hash: u32, at: Position) -> u64 {
    u64::from(hash) << 32 | u64::from(at.0)
}

/// What one chunk of a directory looks like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its descriptor.
    pub descriptor: Descriptor,
    /// Its runs, by first block, without gaps from block 0.
    pub runs: Vec<Run>,
}

impl Chunk {
    /// The run that holds content block `block`.
    pub fn run_of(&self, block: u32) -> Option<&Run> {
        let after = self.runs.partition_point(|run| run.first <= block);
        let run = self.runs.get(after.checked_sub(1)?)?;
        (block < run.first + run.len).then_some(run)
    }

    /// Blocks allocated, initialised or not.
    pub fn allocated(&self) -> u32 {
        self.runs.last().map_or(0, Run::end)
    }

    /// Puts `piece` in the place of what is there.
    pub fn put(&mut self, piece: Run) {
        let mut runs = Vec::with_capacity(self.runs.len() + 2);
        let before = self.runs.iter().filter_map(|run| run.part(0, piece.first));
        let after = self.runs.iter().filter_map(|run| run.part(piece.end(), u32::MAX));
        for run in before.chain(std::iter::once(piece)).chain(after) {
            match runs.last().and_then(|last: &Run| last.joined(&run)) {
                Some(joined) => *runs.last_mut().expect("a last run") = joined,
                None => runs.push(run),
            }
        }
        self.runs = runs;
    }

    /// Forgets the blocks from `end` on.
    pub fn cut(&mut self, end: u32) {
        self.runs = self.runs.iter().filter_map(|run| run.part(0, end)).collect();
    }
}

/// The index of one directory.
#[derive(Default, Clone, Debug)]
pub struct DirIndex {
    names: BTreeSet<u64>,
    free: BTreeSet<Position>,
    /// Slots given up by transactions that were not known to be durable, oldest first.
    resting: VecDeque<(Transno, Position)>,
    /// Slots in use, of each unit that has any.
    live: BTreeMap<Unit, u32>,
    /// Empty slots that can be used, at once or when they have rested.
    idle: u64,
    /// Which blocks of a unit were given back and can come again, and by which transaction.
    gone: BTreeMap<Unit, (u8, Transno)>,
    /// First chunk of the directory's name map. With one the names and the counts of units stay
    /// empty, and of the free slots those are here that were learnt.
    pub map: Option<DirNo>,
    /// What is known of the free slots of a directory with a map.
    pub learnt: Learnt,
    /// The directory's chunks, in order.
    pub chunks: Vec<DirNo>,
    /// The next block to read while it is built; `None` when complete.
    pub unread: Option<(usize, u32)>,
    used: u64,
}

impl DirIndex {
    /// An index of a directory with these chunks, of which nothing was read yet.
    pub fn unread(chunks: Vec<DirNo>) -> DirIndex {
        let unread = (!chunks.is_empty()).then_some((0, 0));
        DirIndex { chunks, unread, ..DirIndex::default() }
    }

    /// An index of a directory with these chunks and a name map that begins with chunk `map`.
    pub fn mapped(chunks: Vec<DirNo>, map: DirNo) -> DirIndex {
        DirIndex { chunks, map: Some(map), ..DirIndex::default() }
    }

    /// Free slots that are known, at once or when they have rested.
    pub fn known_slots(&self) -> u64 {
        (self.free.len() + self.resting.len()) as u64
    }

    /// Notes a name in a slot.
    pub fn add_name(&mut self, hash: u32, at: Position) {
        self.names.insert(entry(hash, at));
    }

    /// Notes a free slot.
    pub fn add_free(&mut self, at: Position) {
        self.free.insert(at);
        self.idle += 1;
    }

    /// Notes a slot in use.
    pub fn add_live(&mut self, at: Position) {
        *self.live.entry(at.unit()).or_insert(0) += 1;
    }

    /// Notes blocks of the `chunk`-th chunk that were given back.
    pub fn add_gone(&mut self, chunk: u32, run: &Run) {
        if run.is_present() || run.reuse >= RETIRED {
            return;
        }
        let mut block = run.first;
        while block < run.end() {
            let unit = Position::new(chunk, block * SLOTS_PER_BLOCK).unit();
            let of = unit.first_block();
            let mask = mask_of(of, run.first, run.end());
            self.gone.entry(unit).or_insert((0, Transno::ZERO)).0 |= mask;
            block = of + UNIT_BLOCKS;
        }
    }

    fn entries(&self) -> usize {
        let (slots, units) =
            (self.free.len() + self.resting.len(), self.live.len() + self.gone.len());
        self.names.len() + slots + units + 8
    }
}

impl DirIndex {
    fn sub_live(&mut self, at: Position) {
        if let Some(count) = self.live.get_mut(&at.unit()) {
            *count -= 1;
            if *count == 0 {
                self.live.remove(&at.unit());
            }
        }
    }

    fn give_back(&mut self, unit: Unit, gone: Gone, transno: Transno) {
        for at in unit.slots(gone.mask) {
            self.free.remove(&at);
        }
        self.idle = self.idle.saturating_sub(u64::from(gone.idle));
        if gone.reusable {
            let (mask, since) = self.gone.entry(unit).or_default();
            *mask |= gone.mask;
            *since = transno;
        } else {
            self.resting.retain(|(_, at)| at.unit() != unit || at.bit() & gone.mask == 0);
        }
    }

    fn come_back(&mut self, unit: Unit, mask: u8) {
        if let Some((left, _)) = self.gone.get_mut(&unit) {
            *left &= !mask;
            if *left == 0 {
                self.gone.remove(&unit);
            }
        }
    }
}

/// Blocks of one unit that a transaction gave back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone {
    /// Which.
    pub mask: u8,
    /// How many of their slots could have been used.
    pub idle: u32,
    /// Can they come again?
    pub reusable: bool,
}

/// One change of a directory's index by the running transaction.
#[derive(Clone, Copy, Debug)]
enum Change {
    AddName(u64),
    RemoveName(u64),
    Take(Position),
    Free(Position),
    Rest(Position),
    Retire(Position),
    Gone(Unit, Gone),
    Back(Unit, u8),
    Chunk(DirNo),
    Map(DirNo),
    New,
    Forget,
}

/// What the running transaction changed; dropped when its body starts over.
#[derive(Default, Debug)]
pub struct Pending {
    changes: Vec<(Ino, Change)>,
    chunks: BTreeMap<DirNo, Option<Chunk>>,
}

/// Every index, and the maps of the chunks.
#[derive(Default, Debug)]
pub struct Names {
    dirs: HashMap<Ino, DirIndex>,
    chunks: HashMap<DirNo, Chunk>,
    entries: usize,
    clock: u64,
    /// While clients replay what was lost: slots that no replay asks for by their place lie in
    /// chunks of this number and above, where none was before.
    pub apart: Option<DirNo>,
}

impl Names {
    /// The index of `dir`, if it is here, complete or not.
    pub fn dir(&self, dir: Ino) -> Option<&DirIndex> {
        self.dirs.get(&dir)
    }

    /// Is the index of `dir` here and complete, or `dir` new in this transaction?
    pub fn is_complete(&mut self, pending: &Pending, dir: Ino) -> bool {
        self.clock += 1;
        let clock = self.clock;
        for change in pending.of(dir).rev() {
            match change {
                Change::New => return true,
                Change::Forget => return false,
                _ => {}
            }
        }
        match self.dirs.get_mut(&dir) {
            Some(index) if index.unread.is_none() => {
                index.used = clock;
                true
            }
            _ => false,
        }
    }

    /// The first chunk of the name map of `dir`, if it has one. The index must be complete.
    pub fn map_of(&self, pending: &Pending, dir: Ino) -> Option<DirNo> {
        for change in pending.of(dir).rev() {
            match change {
                Change::Map(first) => return Some(first),
                Change::New | Change::Forget => return None,
                _ => {}
            }
        }
        self.dirs.get(&dir)?.map
    }

    /// Changes what is known of the free slots of `dir`.
    pub fn learnt(&mut self, dir: Ino, change: impl FnOnce(&mut Learnt)) {
        if let Some(index) = self.dirs.get_mut(&dir) {
            change(&mut index.learnt);
        }
    }

    /// Slots of `dir` that were found empty are free, but for those that rest.
    pub fn learn(&mut self, dir: Ino, mut found: BTreeSet<Position>) {
        let Some(index) = self.dirs.get_mut(&dir) else { return };
        self.entries -= index.entries();
        for (_, at) in &index.resting {
            found.remove(at);
        }
        index.free.append(&mut found);
        self.entries += index.entries();
    }

    /// The map of a chunk as it is committed, if it is in memory.
    pub fn committed(&self, number: DirNo) -> Option<&Chunk> {
        self.chunks.get(&number)
    }

    /// Takes the half-built index of `dir` out, to go on with it.
    pub fn take_unfinished(&mut self, dir: Ino) -> Option<DirIndex> {
        let index = self.dirs.remove(&dir)?;
        self.entries -= index.entries();
        Some(index)
    }

    /// Puts an index in, complete or not; others are dropped if it grows too much.
    pub fn put(&mut self, dir: Ino, mut index: DirIndex) {
        self.clock += 1;
        index.used = self.clock;
        self.entries += index.entries();
        self.dirs.insert(dir, index);
        if self.entries > ENTRIES_MAX {
            self.shrink(dir);
        }
    }

    /// Drops the least recently used quarter, so that the cost per directory stays small.
    fn shrink(&mut self, keep: Ino) {
        let mut ages: Vec<(u64, Ino)> =
            self.dirs.iter().map(|(&ino, index)| (index.used, ino)).collect();
        ages.sort_unstable();
        for (_, ino) in ages {
            if self.entries <= ENTRIES_MAX / 4 * 3 {
                return;
            }
            if ino != keep {
                self.forget(ino);
            }
        }
    }

    fn forget(&mut self, dir: Ino) {
        if let Some(index) = self.dirs.remove(&dir) {
            self.entries -= index.entries();
        }
    }

    /// Keeps the map of a chunk as it is committed.
    pub fn put_chunk(&mut self, number: DirNo, chunk: Chunk) {
        if self.chunks.len() >= CHUNKS_MAX {
            self.chunks.clear();
        }
        self.chunks.insert(number, chunk);
    }

    /// The chunk as the running transaction sees it: `Some(None)` if it removed it.
    pub fn chunk<'a>(&'a self, pending: &'a Pending, number: DirNo) -> Option<Option<&'a Chunk>> {
        match pending.chunks.get(&number) {
            Some(chunk) => Some(chunk.as_ref()),
            None => self.chunks.get(&number).map(Some),
        }
    }

    /// The chunks of `dir` as the running transaction sees them. The index must be complete.
    pub fn chunks_of(&self, pending: &Pending, dir: Ino) -> Vec<DirNo> {
        (0..).map_while(|at| self.chunk_number(pending, dir, at)).collect()
    }

    /// The `at`-th chunk of `dir`. The index must be complete.
    pub fn chunk_number(&self, pending: &Pending, dir: Ino, at: usize) -> Option<DirNo> {
        let base = self.dirs.get(&dir).map_or(&[][..], |index| &index.chunks);
        if let Some(&number) = base.get(at) {
            return Some(number);
        }
        let added = pending.of(dir).filter_map(|change| match change {
            Change::Chunk(number) => Some(number),
            _ => None,
        });
        added.into_iter().nth(at - base.len())
    }

    /// Slots of `dir` whose name may be the one with this hash. The index must be complete.
    pub fn candidates(&self, pending: &Pending, dir: Ino, hash: u32) -> Vec<Position> {
        let range = entry(hash, Position(0))..=entry(hash, Position(u32::MAX));
        let base =
            self.dirs.get(&dir).into_iter().flat_map(|index| index.names.range(range.clone()));
        let mut out: Vec<u64> = base.copied().collect();
        for change in pending.of(dir) {
            match change {
                Change::AddName(entry) if (entry >> 32) as u32 == hash => out.push(entry),
                Change::RemoveName(entry) => out.retain(|&e| e != entry),
                Change::Forget => out.clear(),
                _ => {}
            }
        }
        out.into_iter().map(|entry| Position(entry as u32)).collect()
    }

    /// Has `dir` any name? The index must be complete.
    pub fn is_empty(&self, pending: &Pending, dir: Ino) -> bool {
        let mut count = self.dirs.get(&dir).map_or(0, |index| index.names.len());
        for change in pending.of(dir) {
            match change {
                Change::AddName(_) => count += 1,
                Change::RemoveName(_) => count -= 1,
                Change::Forget => count = 0,
                _ => {}
            }
        }
        count == 0
    }

    /// The lowest free slot of `dir`, if `chunk` is given of its chunk of this index. The index
    /// must be complete.
    pub fn lowest_free(
        &self,
        pending: &Pending,
        dir: Ino,
        chunk: Option<usize>,
    ) -> Option<Position> {
        let wanted = |at: Position| chunk.is_none_or(|chunk| at.chunk() == chunk);
        let base = self.dirs.get(&dir).into_iter().flat_map(|index| index.free.iter().copied());
        let mut base = base.filter(|&at| wanted(at));
        let base = base.find(|&at| pending.slot_is_free(dir, at).unwrap_or(true));
        let freed = pending.of(dir).filter_map(|change| match change {
            Change::Free(at) if wanted(at) && pending.slot_is_free(dir, at) == Some(true) => {
                Some(at)
            }
            _ => None,
        });
        base.into_iter().chain(freed).min()
    }

    /// Slots in use of a unit of `dir`. The index must be complete.
    pub fn live(&self, pending: &Pending, dir: Ino, unit: Unit) -> u32 {
        let mut count = self.dirs.get(&dir).and_then(|index| index.live.get(&unit)).copied();
        for change in pending.of(dir) {
            let count = count.get_or_insert(0);
            match change {
                Change::Take(at) if at.unit() == unit => *count += 1,
                Change::Rest(at) | Change::Retire(at) if at.unit() == unit => *count -= 1,
                Change::Forget => *count = 0,
                _ => {}
            }
        }
        count.unwrap_or(0)
    }

    /// Empty slots of `dir` that can be used now or soon. The index must be complete.
    pub fn idle(&self, pending: &Pending, dir: Ino) -> u64 {
        let mut count = self.dirs.get(&dir).map_or(0, |index| index.idle);
        for change in pending.of(dir) {
            match change {
                Change::Take(_) => count -= 1,
                Change::Free(_) | Change::Rest(_) => count += 1,
                Change::Gone(_, gone) => count -= u64::from(gone.idle),
                Change::Forget => count = 0,
                _ => {}
            }
        }
        count
    }

    /// The first unit of `dir` with blocks that were given back, durably, and can come again,
    /// and which they are. The index must be complete.
    pub fn gone_unit(&self, pending: &Pending, dir: Ino, durable: Transno) -> Option<(Unit, u8)> {
        let gone = &self.dirs.get(&dir)?.gone;
        let known = gone.iter().take(GONE_LOOKS).filter(|(_, (_, transno))| *transno <= durable);
        known
            .map(|(&unit, &(mask, _))| (unit, pending.gone_mask(dir, unit, mask)))
            .find(|g| g.1 != 0)
    }

    /// Is this slot free? The index must be complete.
    pub fn slot_is_free(&self, pending: &Pending, dir: Ino, at: Position) -> bool {
        let base = || {
            self.dirs.get(&dir).is_some_and(|index| {
                index.free.contains(&at) || index.resting.iter().any(|&(_, slot)| slot == at)
            })
        };
        pending.slot_is_free(dir, at).unwrap_or_else(base)
    }

    /// The transaction that has to be durable before the next slot of `dir` that was given up can
    /// be used.
    pub fn rests(&self, dir: Ino) -> Option<Transno> {
        self.dirs.get(&dir)?.resting.front().map(|&(transno, _)| transno)
    }

    /// Everything at or below `durable` is durable: slots of `dir` given up by then are free.
    pub fn wake(&mut self, dir: Ino, durable: Transno) {
        let Some(index) = self.dirs.get_mut(&dir) else { return };
        while index.resting.front().is_some_and(|&(transno, _)| transno <= durable) {
            if let Some((_, at)) = index.resting.pop_front()
                && index.gone.get(&at.unit()).is_none_or(|(mask, _)| mask & at.bit() == 0)
                && (index.map.is_none() || index.free.len() < FREE_MAX)
            {
                index.free.insert(at);
            }
        }
    }

    /// The transaction succeeded: its changes become the committed state.
    pub fn apply(&mut self, pending: Pending, transno: Transno) {
        for (number, chunk) in pending.chunks {
            match chunk {
                Some(chunk) => self.put_chunk(number, chunk),
                None => {
                    self.chunks.remove(&number);
                }
            }
        }
        for (dir, change) in pending.changes {
            self.apply_one(dir, change, transno);
        }
    }

    fn apply_one(&mut self, dir: Ino, change: Change, transno: Transno) {
        match change {
            Change::Forget => return self.forget(dir),
            Change::New => return self.put(dir, DirIndex::default()),
            _ => {}
        }
        let Some(index) = self.dirs.get_mut(&dir) else { return };
        self.entries -= index.entries();
        match change {
            Change::AddName(entry) => {
                index.names.insert(entry);
            }
            Change::RemoveName(entry) => {
                index.names.remove(&entry);
            }
            Change::Take(at) => {
                if !index.free.remove(&at) {
                    index.resting.retain(|&(_, slot)| slot != at);
                }
                if index.map.is_none() {
                    index.add_live(at);
                }
                index.idle = index.idle.saturating_sub(1);
            }
            Change::Free(at) => index.add_free(at),
            Change::Rest(at) => {
                index.resting.push_back((transno, at));
                index.sub_live(at);
                index.idle += 1;
            }
            Change::Retire(at) => index.sub_live(at),
            Change::Gone(unit, gone) => index.give_back(unit, gone, transno),
            Change::Back(unit, mask) => index.come_back(unit, mask),
            Change::Chunk(number) => index.chunks.push(number),
            Change::Map(first) => {
                index.names.clear();
                index.live.clear();
                index.map = Some(first);
                index.learnt.tail = true;
            }
            Change::New | Change::Forget => {}
        }
        self.entries += index.entries();
    }
}

impl Pending {
    fn of(&self, dir: Ino) -> impl DoubleEndedIterator<Item = Change> {
        self.changes.iter().filter(move |(of, _)| *of == dir).map(|&(_, change)| change)
    }

    /// Is this slot free? `None`: the transaction did nothing to it.
    pub fn slot_is_free(&self, dir: Ino, at: Position) -> Option<bool> {
        self.of(dir).rev().find_map(|change| match change {
            Change::Take(taken) if taken == at => Some(false),
            Change::Free(freed) if freed == at => Some(true),
            Change::Rest(freed) if freed == at => Some(false),
            Change::Gone(unit, gone) if unit == at.unit() && gone.mask & at.bit() != 0 => {
                Some(false)
            }
            Change::Forget => Some(false),
            _ => None,
        })
    }

    /// Which of the blocks `mask` of a unit, gone before this transaction, still are.
    fn gone_mask(&self, dir: Ino, unit: Unit, mask: u8) -> u8 {
        self.of(dir).fold(mask, |mask, change| match change {
            Change::Back(of, back) if of == unit => mask & !back,
            _ => mask,
        })
    }

    /// A name is now in a slot.
    pub fn add_name(&mut self, dir: Ino, name: &[u8], at: Position) {
        self.changes.push((dir, Change::AddName(entry(hash_name(name), at))));
    }

    /// A name is gone from a slot.
    pub fn remove_name(&mut self, dir: Ino, name: &[u8], at: Position) {
        self.changes.push((dir, Change::RemoveName(entry(hash_name(name), at))));
    }

    /// A slot is used.
    pub fn take(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::Take(at)));
    }

    /// A slot is free.
    pub fn free(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::Free(at)));
    }

    /// A slot was given up: it is free when that is durable.
    pub fn rest(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::Rest(at)));
    }

    /// A slot was given up and is never used again.
    pub fn retire(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::Retire(at)));
    }

    /// Blocks of a unit were given back.
    pub fn give_back(&mut self, dir: Ino, unit: Unit, gone: Gone) {
        self.changes.push((dir, Change::Gone(unit, gone)));
    }

    /// The blocks `mask` of a unit, given back earlier, are there again.
    pub fn come_back(&mut self, dir: Ino, unit: Unit, mask: u8) {
        self.changes.push((dir, Change::Back(unit, mask)));
    }

    /// The directory has one more chunk.
    pub fn add_chunk(&mut self, dir: Ino, number: DirNo) {
        self.changes.push((dir, Change::Chunk(number)));
    }

    /// The directory has a name map from now on.
    pub fn set_map(&mut self, dir: Ino, first: DirNo) {
        self.changes.push((dir, Change::Map(first)));
    }

    /// The directory is new and empty.
    pub fn new_dir(&mut self, dir: Ino) {
        self.changes.push((dir, Change::New));
    }

    /// The directory is gone.
    pub fn forget(&mut self, dir: Ino) {
        self.changes.push((dir, Change::Forget));
    }

    /// The map of a chunk changed, or the chunk is gone.
    pub fn set_chunk(&mut self, number: DirNo, chunk: Option<Chunk>) {
        self.chunks.insert(number, chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(9);

    fn names() -> Names {
        let mut names = Names::default();
        let mut index = DirIndex::unread(vec![DirNo(4)]);
        index.add_name(hash_name(b"a"), Position(0));
        index.add_free(Position(1));
        index.add_free(Position(2));
        index.unread = None;
        names.put(DIR, index);
        names
    }

    #[test]
    fn a_transaction_sees_its_own_changes_and_others_only_after_commit() {
        let mut names = names();
        let mut pending = Pending::default();
        assert_eq!(names.lowest_free(&pending, DIR, None), Some(Position(1)));
        pending.take(DIR, Position(1));
        pending.add_name(DIR, b"b", Position(1));
        pending.remove_name(DIR, b"a", Position(0));
        pending.free(DIR, Position(0));
        assert_eq!(names.candidates(&pending, DIR, hash_name(b"b")), [Position(1)]);
        assert_eq!(names.candidates(&pending, DIR, hash_name(b"a")), []);
        assert_eq!(names.lowest_free(&pending, DIR, None), Some(Position(0)));
        let none = Pending::default();
        assert_eq!(names.candidates(&none, DIR, hash_name(b"a")), [Position(0)]);
        names.apply(pending, Transno::ZERO);
        assert_eq!(names.candidates(&none, DIR, hash_name(b"b")), [Position(1)]);
        assert_eq!(names.candidates(&none, DIR, hash_name(b"a")), []);
        assert!(names.slot_is_free(&none, DIR, Position(0)));
        assert!(!names.slot_is_free(&none, DIR, Position(1)));
    }

    #[test]
    fn a_slot_taken_and_freed_in_one_transaction_is_free() {
        let names = names();
        let mut pending = Pending::default();
        pending.take(DIR, Position(1));
        pending.free(DIR, Position(1));
        assert_eq!(names.lowest_free(&pending, DIR, None), Some(Position(1)));
        pending.forget(DIR);
        assert!(names.is_empty(&pending, DIR));
        assert_eq!(names.lowest_free(&pending, DIR, None), None);
    }

    #[test]
    fn the_number_of_entries_is_counted_through_every_change() {
        let mut names = names();
        let mut pending = Pending::default();
        pending.add_name(DIR, b"b", Position(5));
        pending.take(DIR, Position(2));
        pending.take(DIR, Position(2));
        names.apply(pending, Transno::ZERO);
        assert_eq!(names.entries, 2 + 1 + 1 + 8);
        names.forget(DIR);
        assert_eq!(names.entries, 0);
    }

    #[test]
    fn a_chunk_finds_the_run_of_a_block() {
        let run = |first, len| Run::present(first, types::MetaBlock(100 + u64::from(first)), len);
        let descriptor = Descriptor { owner: DIR, next: DirNo(0), index: 0, used: 2 };
        let chunk = Chunk { descriptor, runs: vec![run(0, 1), run(1, 1), run(2, 2)] };
        assert_eq!(chunk.run_of(0).map(|r| r.first), Some(0));
        assert_eq!(chunk.run_of(3).map(|r| r.first), Some(2));
        assert_eq!(chunk.run_of(4), None);
        assert_eq!(chunk.allocated(), 4);
    }

    #[test]
    fn pieces_of_a_chunk_are_replaced_and_joined() {
        let descriptor = Descriptor { owner: DIR, next: DirNo(0), index: 0, used: 20 };
        let start = types::MetaBlock(100);
        let mut chunk = Chunk { descriptor, runs: vec![Run::present(0, start, 20)] };
        chunk.put(Run::gone(8, 8, 3));
        let (head, tail) = (start, types::MetaBlock(116));
        let runs = |gone: Run| vec![Run::present(0, head, 8), gone, Run::present(16, tail, 4)];
        assert_eq!(chunk.runs, runs(Run::gone(8, 8, 3)));
        chunk.put(Run::gone(0, 8, 3));
        assert_eq!(chunk.runs, [Run::gone(0, 16, 3), Run::present(16, tail, 4)]);
        chunk.put(Run::present(0, head, 16));
        assert_eq!(chunk.runs, [Run::present(0, head, 20)], "all of one piece again");
        chunk.cut(18);
        chunk.put(Run::present(18, types::MetaBlock(118), 2));
        assert_eq!(chunk.runs, [Run::present(0, head, 20)]);
    }

    #[test]
    fn blocks_given_back_come_again_only_when_that_is_durable() {
        let transno = |lsn| Transno { epoch: types::Epoch(1), lsn: types::Lsn(lsn) };
        let mut names = names();
        let mut pending = Pending::default();
        let unit = Position(0).unit();
        assert_eq!((names.live(&pending, DIR, unit), names.idle(&pending, DIR)), (0, 2));
        pending.take(DIR, Position(1));
        assert_eq!((names.live(&pending, DIR, unit), names.idle(&pending, DIR)), (1, 1));
        pending.rest(DIR, Position(1));
        pending.give_back(DIR, unit, Gone { mask: 1, idle: 2, reusable: true });
        assert_eq!((names.live(&pending, DIR, unit), names.idle(&pending, DIR)), (0, 0));
        assert_eq!(names.lowest_free(&pending, DIR, None), None);
        assert_eq!(names.gone_unit(&pending, DIR, transno(9)), None, "not in the same transaction");
        names.apply(pending, transno(5));
        let none = Pending::default();
        assert_eq!(names.idle(&none, DIR), 0);
        assert_eq!(names.gone_unit(&none, DIR, transno(4)), None);
        names.wake(DIR, transno(5));
        assert_eq!(names.lowest_free(&none, DIR, None), None, "a slot without a block");
        assert_eq!(names.gone_unit(&none, DIR, transno(5)), Some((unit, 1)));
        let mut pending = Pending::default();
        pending.come_back(DIR, unit, 1);
        pending.free(DIR, Position(0));
        assert_eq!(names.gone_unit(&pending, DIR, transno(5)), None);
        names.apply(pending, transno(6));
        assert_eq!(names.lowest_free(&none, DIR, None), Some(Position(0)));
        assert_eq!(names.gone_unit(&none, DIR, transno(6)), None);
    }
}

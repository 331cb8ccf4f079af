//! The name index of a directory, in memory: from the hash of a name to the slots that may hold it,
//! and which slots are free.
//!
//! Invariants:
//! - an index is a pure function of the directory's committed content. The first use builds it by
//!   reading the content once, and it may be dropped at any time. It changes only when a
//!   transaction succeeds ([`PendingNames`] holds the changes of the running transaction);
//! - slots of a directory come into use or become free only while its index is complete, so a
//!   half-built index cannot become wrong;
//! - a released slot is reused only when its release is durable. A number or place that a client
//!   was given must be free when it replays its request after a restart, whatever others did
//!   meanwhile. (An index that is rebuilt forgets which slots these are.) The same holds for blocks
//!   that were given back;
//! - all indexes together hold at most [`ENTRIES_MAX`] entries; above that whole directories are
//!   dropped, least recently used first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hasher;

use types::map::FixedHasher;
use types::{DirNo, HashMap, Ino, Transno};

use super::slot_scan::FreeSlotScan;
use crate::format::chunk::{ContentRun, Descriptor};
use crate::format::slot::{RETIRED, SLOTS_PER_BLOCK};

/// Most entries of all indexes together, about 16 bytes each.
pub const ENTRIES_MAX: usize = 8 << 20;
/// Units with given-back blocks that one search for a reusable one looks at.
const HOLE_LOOKS: usize = 64;
/// Most known free slots of a directory with a name map; others are found again later.
const FREE_MAX: usize = 64 << 10;
/// Most chunks kept in memory.
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

    /// The unit of the slot.
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

/// The mask of the blocks `first..end` of a chunk in the unit that begins with block `of`.
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

/// Descriptor and runs of one chunk of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its descriptor.
    pub descriptor: Descriptor,
    /// Its runs, by first block, without gaps from block 0.
    pub runs: Vec<ContentRun>,
}

impl Chunk {
    /// The run that holds content block `block`.
    pub fn run_of(&self, block: u32) -> Option<&ContentRun> {
        let after = self.runs.partition_point(|run| run.first <= block);
        let run = self.runs.get(after.checked_sub(1)?)?;
        (block < run.first + run.len).then_some(run)
    }

    /// Blocks allocated, initialised or not.
    pub fn allocated(&self) -> u32 {
        self.runs.last().map_or(0, ContentRun::end)
    }

    /// Replaces the blocks of `piece`.
    pub fn put(&mut self, piece: ContentRun) {
        let mut runs = Vec::with_capacity(self.runs.len() + 2);
        let before = self.runs.iter().filter_map(|run| run.part(0, piece.first));
        let after = self.runs.iter().filter_map(|run| run.part(piece.end(), u32::MAX));
        for run in before.chain(std::iter::once(piece)).chain(after) {
            match runs.last().and_then(|last: &ContentRun| last.joined(&run)) {
                Some(joined) => *runs.last_mut().expect("a last run") = joined,
                None => runs.push(run),
            }
        }
        self.runs = runs;
    }

    /// Removes the blocks from `end` on.
    pub fn cut(&mut self, end: u32) {
        self.runs = self.runs.iter().filter_map(|run| run.part(0, end)).collect();
    }
}

/// The index of one directory.
#[derive(Default, Clone, Debug)]
pub struct DirIndex {
    names: BTreeSet<u64>,
    free: BTreeSet<Position>,
    /// Released slots whose release was not known to be durable, oldest first.
    cooling: VecDeque<(Transno, Position)>,
    /// Number of slots in use, of each unit that has any.
    live: BTreeMap<Unit, u32>,
    /// Empty slots that can be used, at once or after their cool-down.
    idle: u64,
    /// Of each unit: which blocks can be allocated again, and which transaction gave them back.
    holes: BTreeMap<Unit, (u8, Transno)>,
    /// First chunk of the name map. With one, `names` and `live` stay empty and `free` is partial.
    pub map: Option<DirNo>,
    /// The search for free slots of a directory with a map.
    pub free_scan: FreeSlotScan,
    /// The directory's chunks, in order.
    pub chunks: Vec<DirNo>,
    /// The next block to read while it is built; `None` when complete.
    pub unread: Option<(usize, u32)>,
    used: u64,
}

impl DirIndex {
    /// An index of a directory with these chunks, before any of it was read.
    pub fn unread(chunks: Vec<DirNo>) -> DirIndex {
        let unread = (!chunks.is_empty()).then_some((0, 0));
        DirIndex { chunks, unread, ..DirIndex::default() }
    }

    /// An index of a directory with these chunks and a name map that begins with chunk `map`.
    pub fn mapped(chunks: Vec<DirNo>, map: DirNo) -> DirIndex {
        DirIndex { chunks, map: Some(map), ..DirIndex::default() }
    }

    /// Free slots that are known, usable at once or after their cool-down.
    pub fn known_slots(&self) -> u64 {
        (self.free.len() + self.cooling.len()) as u64
    }

    /// Adds a name in a slot.
    pub fn add_name(&mut self, hash: u32, at: Position) {
        self.names.insert(entry(hash, at));
    }

    /// Adds a free slot.
    pub fn add_free(&mut self, at: Position) {
        self.free.insert(at);
        self.idle += 1;
    }

    /// Adds a slot in use.
    pub fn add_live(&mut self, at: Position) {
        *self.live.entry(at.unit()).or_insert(0) += 1;
    }

    /// Adds blocks of the `chunk`-th chunk that were given back.
    pub fn add_hole(&mut self, chunk: u32, run: &ContentRun) {
        if run.is_present() || run.reuse >= RETIRED {
            return;
        }
        let mut block = run.first;
        while block < run.end() {
            let unit = Position::new(chunk, block * SLOTS_PER_BLOCK).unit();
            let of = unit.first_block();
            let mask = mask_of(of, run.first, run.end());
            self.holes.entry(unit).or_insert((0, Transno::ZERO)).0 |= mask;
            block = of + UNIT_BLOCKS;
        }
    }

    fn entries(&self) -> usize {
        let (slots, units) =
            (self.free.len() + self.cooling.len(), self.live.len() + self.holes.len());
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

    fn give_back(&mut self, unit: Unit, hole: Hole, transno: Transno) {
        for at in unit.slots(hole.mask) {
            self.free.remove(&at);
        }
        self.idle = self.idle.saturating_sub(u64::from(hole.idle));
        if hole.reusable {
            let (mask, since) = self.holes.entry(unit).or_default();
            *mask |= hole.mask;
            *since = transno;
        } else {
            self.cooling.retain(|(_, at)| at.unit() != unit || at.bit() & hole.mask == 0);
        }
    }

    fn regain(&mut self, unit: Unit, mask: u8) {
        if let Some((left, _)) = self.holes.get_mut(&unit) {
            *left &= !mask;
            if *left == 0 {
                self.holes.remove(&unit);
            }
        }
    }
}

/// Blocks of one unit that a transaction gave back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hole {
    /// Which blocks.
    pub mask: u8,
    /// How many of their slots were idle.
    pub idle: u32,
    /// Can they be allocated again?
    pub reusable: bool,
}

/// One change of a directory's index by the running transaction.
#[derive(Clone, Copy, Debug)]
enum Change {
    AddName(u64),
    RemoveName(u64),
    Take(Position),
    Free(Position),
    CoolDown(Position),
    Retire(Position),
    GiveBack(Unit, Hole),
    Regain(Unit, u8),
    Chunk(DirNo),
    Map(DirNo),
    New,
    Forget,
}

/// What the running transaction changed; dropped when its body starts over.
#[derive(Default, Debug)]
pub struct PendingNames {
    changes: Vec<(Ino, Change)>,
    chunks: BTreeMap<DirNo, Option<Chunk>>,
}

/// Every index, and the chunks in memory.
#[derive(Default, Debug)]
pub struct NameIndexes {
    dirs: HashMap<Ino, DirIndex>,
    chunks: HashMap<DirNo, Chunk>,
    entries: usize,
    clock: u64,
    /// While clients replay what the server lost: chunks of this number and above are new, so no
    /// replay names a place in them.
    pub replay_safe_from: Option<DirNo>,
}

impl NameIndexes {
    /// The index of `dir`, complete or not, if it is in memory.
    pub fn dir(&self, dir: Ino) -> Option<&DirIndex> {
        self.dirs.get(&dir)
    }

    /// Is the index of `dir` in memory and complete, or is `dir` new in this transaction?
    pub fn is_complete(&mut self, pending: &PendingNames, dir: Ino) -> bool {
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
    pub fn map_of(&self, pending: &PendingNames, dir: Ino) -> Option<DirNo> {
        for change in pending.of(dir).rev() {
            match change {
                Change::Map(first) => return Some(first),
                Change::New | Change::Forget => return None,
                _ => {}
            }
        }
        self.dirs.get(&dir)?.map
    }

    /// Changes the state of the search for free slots of `dir`.
    pub fn update_scan(&mut self, dir: Ino, change: impl FnOnce(&mut FreeSlotScan)) {
        if let Some(index) = self.dirs.get_mut(&dir) {
            change(&mut index.free_scan);
        }
    }

    /// Adds empty slots that a scan of `dir` found, except those in their cool-down.
    pub fn learn(&mut self, dir: Ino, mut found: BTreeSet<Position>) {
        let Some(index) = self.dirs.get_mut(&dir) else { return };
        self.entries -= index.entries();
        for (_, at) in &index.cooling {
            found.remove(at);
        }
        index.free.append(&mut found);
        self.entries += index.entries();
    }

    /// A chunk as it is committed, if it is in memory.
    pub fn committed(&self, number: DirNo) -> Option<&Chunk> {
        self.chunks.get(&number)
    }

    /// Removes the half-built index of `dir`, so that the caller can go on with it.
    pub fn take_unfinished(&mut self, dir: Ino) -> Option<DirIndex> {
        let index = self.dirs.remove(&dir)?;
        self.entries -= index.entries();
        Some(index)
    }

    /// Inserts an index, complete or not; drops others if all together become too large.
    pub fn put(&mut self, dir: Ino, mut index: DirIndex) {
        self.clock += 1;
        index.used = self.clock;
        self.entries += index.entries();
        self.dirs.insert(dir, index);
        if self.entries > ENTRIES_MAX {
            self.shrink(dir);
        }
    }

    /// Drops least recently used directories until a quarter is free: the cost of each is small.
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

    /// Keeps a chunk as it is committed.
    pub fn put_chunk(&mut self, number: DirNo, chunk: Chunk) {
        if self.chunks.len() >= CHUNKS_MAX {
            self.chunks.clear();
        }
        self.chunks.insert(number, chunk);
    }

    /// The chunk as the running transaction sees it: `Some(None)` if it removed it.
    pub fn chunk<'a>(&'a self, pending: &'a PendingNames, no: DirNo) -> Option<Option<&'a Chunk>> {
        match pending.chunks.get(&no) {
            Some(chunk) => Some(chunk.as_ref()),
            None => self.chunks.get(&no).map(Some),
        }
    }

    /// The chunks of `dir` as the running transaction sees them. The index must be complete.
    pub fn chunks_of(&self, pending: &PendingNames, dir: Ino) -> Vec<DirNo> {
        (0..).map_while(|at| self.chunk_number(pending, dir, at)).collect()
    }

    /// The `at`-th chunk of `dir`. The index must be complete.
    pub fn chunk_number(&self, pending: &PendingNames, dir: Ino, at: usize) -> Option<DirNo> {
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
    pub fn candidates(&self, pending: &PendingNames, dir: Ino, hash: u32) -> Vec<Position> {
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

    /// Does `dir` have no name? The index must be complete.
    pub fn is_empty(&self, pending: &PendingNames, dir: Ino) -> bool {
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

    /// The lowest free slot of `dir`, or of its chunk with index `chunk`. Needs a complete index.
    pub fn lowest_free(
        &self,
        pending: &PendingNames,
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

    /// Slots in use in a unit of `dir`. The index must be complete.
    pub fn live(&self, pending: &PendingNames, dir: Ino, unit: Unit) -> u32 {
        let mut count = self.dirs.get(&dir).and_then(|index| index.live.get(&unit)).copied();
        for change in pending.of(dir) {
            let count = count.get_or_insert(0);
            match change {
                Change::Take(at) if at.unit() == unit => *count += 1,
                Change::CoolDown(at) | Change::Retire(at) if at.unit() == unit => *count -= 1,
                Change::Forget => *count = 0,
                _ => {}
            }
        }
        count.unwrap_or(0)
    }

    /// Empty slots of `dir`, usable now or after their cool-down. The index must be complete.
    pub fn idle(&self, pending: &PendingNames, dir: Ino) -> u64 {
        let mut count = self.dirs.get(&dir).map_or(0, |index| index.idle);
        for change in pending.of(dir) {
            match change {
                Change::Take(_) => count -= 1,
                Change::Free(_) | Change::CoolDown(_) => count += 1,
                Change::GiveBack(_, hole) => count -= u64::from(hole.idle),
                Change::Forget => count = 0,
                _ => {}
            }
        }
        count
    }

    /// The first unit of `dir` whose blocks were given back durably, and their mask. The index must
    /// be complete.
    pub fn hole(&self, pending: &PendingNames, dir: Ino, durable: Transno) -> Option<(Unit, u8)> {
        let holes = &self.dirs.get(&dir)?.holes;
        let known = holes.iter().take(HOLE_LOOKS).filter(|(_, (_, transno))| *transno <= durable);
        known
            .map(|(&unit, &(mask, _))| (unit, pending.remaining_hole(dir, unit, mask)))
            .find(|g| g.1 != 0)
    }

    /// Is this slot free? The index must be complete.
    pub fn slot_is_free(&self, pending: &PendingNames, dir: Ino, at: Position) -> bool {
        let base = || {
            self.dirs.get(&dir).is_some_and(|index| {
                index.free.contains(&at) || index.cooling.iter().any(|&(_, slot)| slot == at)
            })
        };
        pending.slot_is_free(dir, at).unwrap_or_else(base)
    }

    /// The transaction that must be durable before the next released slot of `dir` can be used.
    pub fn cooling_until(&self, dir: Ino) -> Option<Transno> {
        self.dirs.get(&dir)?.cooling.front().map(|&(transno, _)| transno)
    }

    /// Ends the cool-down of slots of `dir` that were released at or before `durable`.
    pub fn end_cool_down(&mut self, dir: Ino, durable: Transno) {
        let Some(index) = self.dirs.get_mut(&dir) else { return };
        while index.cooling.front().is_some_and(|&(transno, _)| transno <= durable) {
            if let Some((_, at)) = index.cooling.pop_front()
                && index.holes.get(&at.unit()).is_none_or(|(mask, _)| mask & at.bit() == 0)
                && (index.map.is_none() || index.free.len() < FREE_MAX)
            {
                index.free.insert(at);
            }
        }
    }

    /// Makes the changes of a successful transaction the committed state.
    pub fn apply(&mut self, pending: PendingNames, transno: Transno) {
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
                    index.cooling.retain(|&(_, slot)| slot != at);
                }
                if index.map.is_none() {
                    index.add_live(at);
                }
                index.idle = index.idle.saturating_sub(1);
            }
            Change::Free(at) => index.add_free(at),
            Change::CoolDown(at) => {
                index.cooling.push_back((transno, at));
                index.sub_live(at);
                index.idle += 1;
            }
            Change::Retire(at) => index.sub_live(at),
            Change::GiveBack(unit, hole) => index.give_back(unit, hole, transno),
            Change::Regain(unit, mask) => index.regain(unit, mask),
            Change::Chunk(number) => index.chunks.push(number),
            Change::Map(first) => {
                index.names.clear();
                index.live.clear();
                index.map = Some(first);
                index.free_scan.tail_known = true;
            }
            Change::New | Change::Forget => {}
        }
        self.entries += index.entries();
    }
}

impl PendingNames {
    fn of(&self, dir: Ino) -> impl DoubleEndedIterator<Item = Change> {
        self.changes.iter().filter(move |(of, _)| *of == dir).map(|&(_, change)| change)
    }

    /// Is this slot free? `None` if the transaction did not change it.
    pub fn slot_is_free(&self, dir: Ino, at: Position) -> Option<bool> {
        self.of(dir).rev().find_map(|change| match change {
            Change::Take(taken) if taken == at => Some(false),
            Change::Free(freed) if freed == at => Some(true),
            Change::CoolDown(freed) if freed == at => Some(false),
            Change::GiveBack(unit, hole) if unit == at.unit() && hole.mask & at.bit() != 0 => {
                Some(false)
            }
            Change::Forget => Some(false),
            _ => None,
        })
    }

    /// Which blocks of `mask`, given back before this transaction, are still given back.
    fn remaining_hole(&self, dir: Ino, unit: Unit, mask: u8) -> u8 {
        self.of(dir).fold(mask, |mask, change| match change {
            Change::Regain(of, back) if of == unit => mask & !back,
            _ => mask,
        })
    }

    /// Notes a new name in a slot.
    pub fn add_name(&mut self, dir: Ino, name: &[u8], at: Position) {
        self.changes.push((dir, Change::AddName(entry(hash_name(name), at))));
    }

    /// Notes that a slot lost its name.
    pub fn remove_name(&mut self, dir: Ino, name: &[u8], at: Position) {
        self.changes.push((dir, Change::RemoveName(entry(hash_name(name), at))));
    }

    /// Notes that a slot is in use.
    pub fn take(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::Take(at)));
    }

    /// Notes that a slot is free.
    pub fn free(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::Free(at)));
    }

    /// Notes that a slot was released: it becomes free when that is durable.
    pub fn cool_down(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::CoolDown(at)));
    }

    /// Notes that a slot was released and is never used again.
    pub fn retire(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::Retire(at)));
    }

    /// Notes that blocks of a unit were given back.
    pub fn give_back(&mut self, dir: Ino, unit: Unit, hole: Hole) {
        self.changes.push((dir, Change::GiveBack(unit, hole)));
    }

    /// Notes that the blocks `mask` of a unit, given back earlier, were allocated again.
    pub fn regain(&mut self, dir: Ino, unit: Unit, mask: u8) {
        self.changes.push((dir, Change::Regain(unit, mask)));
    }

    /// Notes one more chunk of the directory.
    pub fn add_chunk(&mut self, dir: Ino, number: DirNo) {
        self.changes.push((dir, Change::Chunk(number)));
    }

    /// Notes that the directory now has a name map.
    pub fn set_map(&mut self, dir: Ino, first: DirNo) {
        self.changes.push((dir, Change::Map(first)));
    }

    /// Notes that the directory is new and empty.
    pub fn new_dir(&mut self, dir: Ino) {
        self.changes.push((dir, Change::New));
    }

    /// Notes that the directory is gone.
    pub fn forget(&mut self, dir: Ino) {
        self.changes.push((dir, Change::Forget));
    }

    /// Notes a changed chunk, or with `None` a removed one.
    pub fn set_chunk(&mut self, number: DirNo, chunk: Option<Chunk>) {
        self.chunks.insert(number, chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(9);

    fn names() -> NameIndexes {
        let mut names = NameIndexes::default();
        let mut index = DirIndex::unread(vec![DirNo(4)]);
        index.add_name(hash_name(b"a"), Position(0));
        index.add_free(Position(1));
        index.add_free(Position(2));
        index.unread = None;
        names.put(DIR, index);
        names
    }

    #[test]
    fn index_changes_are_visible_to_others_only_after_success() {
        let mut names = names();
        let mut pending = PendingNames::default();
        assert_eq!(names.lowest_free(&pending, DIR, None), Some(Position(1)));
        pending.take(DIR, Position(1));
        pending.add_name(DIR, b"b", Position(1));
        pending.remove_name(DIR, b"a", Position(0));
        pending.free(DIR, Position(0));
        assert_eq!(names.candidates(&pending, DIR, hash_name(b"b")), [Position(1)]);
        assert_eq!(names.candidates(&pending, DIR, hash_name(b"a")), []);
        assert_eq!(names.lowest_free(&pending, DIR, None), Some(Position(0)));
        let none = PendingNames::default();
        assert_eq!(names.candidates(&none, DIR, hash_name(b"a")), [Position(0)]);
        names.apply(pending, Transno::ZERO);
        assert_eq!(names.candidates(&none, DIR, hash_name(b"b")), [Position(1)]);
        assert_eq!(names.candidates(&none, DIR, hash_name(b"a")), []);
        assert!(names.slot_is_free(&none, DIR, Position(0)));
        assert!(!names.slot_is_free(&none, DIR, Position(1)));
    }

    #[test]
    fn slot_taken_and_freed_in_one_transaction_is_free() {
        let names = names();
        let mut pending = PendingNames::default();
        pending.take(DIR, Position(1));
        pending.free(DIR, Position(1));
        assert_eq!(names.lowest_free(&pending, DIR, None), Some(Position(1)));
        pending.forget(DIR);
        assert!(names.is_empty(&pending, DIR));
        assert_eq!(names.lowest_free(&pending, DIR, None), None);
    }

    #[test]
    fn index_counts_its_entries_through_every_change() {
        let mut names = names();
        let mut pending = PendingNames::default();
        pending.add_name(DIR, b"b", Position(5));
        pending.take(DIR, Position(2));
        pending.take(DIR, Position(2));
        names.apply(pending, Transno::ZERO);
        assert_eq!(names.entries, 2 + 1 + 1 + 8);
        names.forget(DIR);
        assert_eq!(names.entries, 0);
    }

    #[test]
    fn chunk_finds_the_run_of_a_block() {
        let run =
            |first, len| ContentRun::present(first, types::MetaBlock(100 + u64::from(first)), len);
        let descriptor = Descriptor { owner: DIR, next: DirNo(0), index: 0, used: 2 };
        let chunk = Chunk { descriptor, runs: vec![run(0, 1), run(1, 1), run(2, 2)] };
        assert_eq!(chunk.run_of(0).map(|r| r.first), Some(0));
        assert_eq!(chunk.run_of(3).map(|r| r.first), Some(2));
        assert_eq!(chunk.run_of(4), None);
        assert_eq!(chunk.allocated(), 4);
    }

    #[test]
    fn chunk_replaces_and_joins_its_runs() {
        let descriptor = Descriptor { owner: DIR, next: DirNo(0), index: 0, used: 20 };
        let start = types::MetaBlock(100);
        let mut chunk = Chunk { descriptor, runs: vec![ContentRun::present(0, start, 20)] };
        chunk.put(ContentRun::hole(8, 8, 3));
        let (head, tail) = (start, types::MetaBlock(116));
        let runs = |hole: ContentRun| {
            vec![ContentRun::present(0, head, 8), hole, ContentRun::present(16, tail, 4)]
        };
        assert_eq!(chunk.runs, runs(ContentRun::hole(8, 8, 3)));
        chunk.put(ContentRun::hole(0, 8, 3));
        assert_eq!(chunk.runs, [ContentRun::hole(0, 16, 3), ContentRun::present(16, tail, 4)]);
        chunk.put(ContentRun::present(0, head, 16));
        assert_eq!(chunk.runs, [ContentRun::present(0, head, 20)], "one run again");
        chunk.cut(18);
        chunk.put(ContentRun::present(18, types::MetaBlock(118), 2));
        assert_eq!(chunk.runs, [ContentRun::present(0, head, 20)]);
    }

    #[test]
    fn given_back_blocks_are_reused_only_when_that_is_durable() {
        let transno = |lsn| Transno { epoch: types::Epoch(1), lsn: types::Lsn(lsn) };
        let mut names = names();
        let mut pending = PendingNames::default();
        let unit = Position(0).unit();
        assert_eq!((names.live(&pending, DIR, unit), names.idle(&pending, DIR)), (0, 2));
        pending.take(DIR, Position(1));
        assert_eq!((names.live(&pending, DIR, unit), names.idle(&pending, DIR)), (1, 1));
        pending.cool_down(DIR, Position(1));
        pending.give_back(DIR, unit, Hole { mask: 1, idle: 2, reusable: true });
        assert_eq!((names.live(&pending, DIR, unit), names.idle(&pending, DIR)), (0, 0));
        assert_eq!(names.lowest_free(&pending, DIR, None), None);
        assert_eq!(names.hole(&pending, DIR, transno(9)), None, "not in the same transaction");
        names.apply(pending, transno(5));
        let none = PendingNames::default();
        assert_eq!(names.idle(&none, DIR), 0);
        assert_eq!(names.hole(&none, DIR, transno(4)), None);
        names.end_cool_down(DIR, transno(5));
        assert_eq!(names.lowest_free(&none, DIR, None), None, "its block was given back");
        assert_eq!(names.hole(&none, DIR, transno(5)), Some((unit, 1)));
        let mut pending = PendingNames::default();
        pending.regain(DIR, unit, 1);
        pending.free(DIR, Position(0));
        assert_eq!(names.hole(&pending, DIR, transno(5)), None);
        names.apply(pending, transno(6));
        assert_eq!(names.lowest_free(&none, DIR, None), Some(Position(0)));
        assert_eq!(names.hole(&none, DIR, transno(6)), None);
    }
}

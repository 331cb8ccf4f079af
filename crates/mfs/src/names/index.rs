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

mod pending;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hasher;

use types::map::FixedHasher;
use types::{DirNo, HashMap, Ino, Transno};

pub use self::pending::PendingNames;
use super::slot_scan::FreeSlotScan;
use crate::format::chunk::{ContentRun, Descriptor};
use crate::format::number::is_annex;
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

    /// The first slot of the next chunk.
    fn next_chunk(self) -> Option<Position> {
        Some(Position((self.0 | 0xffff).checked_add(1)?))
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

/// Which chunks of a directory a slot may lie in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Among {
    /// All.
    Chunks,
    /// Those in which inodes have their homes.
    Homes,
    /// Annexes.
    Annexes,
}

impl Among {
    /// May the slot lie in this chunk?
    pub fn has(self, chunk: DirNo) -> bool {
        match self {
            Among::Chunks => true,
            Among::Homes => !is_annex(chunk),
            Among::Annexes => is_annex(chunk),
        }
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
    /// Empty slots outside of annexes that can be used, at once or after their cool-down.
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
        self.idle += u64::from(self.is_home(at));
    }

    /// Can the slot be the home of an inode?
    fn is_home(&self, at: Position) -> bool {
        self.chunks.get(at.chunk()).is_none_or(|&chunk| !is_annex(chunk))
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

/// Every index, and the chunks in memory.
#[derive(Default, Debug)]
pub struct NameIndexes {
    dirs: HashMap<Ino, DirIndex>,
    chunks: HashMap<DirNo, Chunk>,
    entries: usize,
    clock: u64,
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

    /// The names of `dir`. The index must be complete.
    pub fn count(&self, pending: &PendingNames, dir: Ino) -> usize {
        let mut count = self.dirs.get(&dir).map_or(0, |index| index.names.len());
        for change in pending.of(dir) {
            match change {
                Change::AddName(_) => count += 1,
                Change::RemoveName(_) => count -= 1,
                Change::Forget => count = 0,
                _ => {}
            }
        }
        count
    }

    /// The lowest free slot of `dir` in these chunks. The index must be complete.
    pub fn lowest_free(&self, pending: &PendingNames, dir: Ino, among: Among) -> Option<Position> {
        let wanted = |at: Position| {
            let chunk = self.chunk_number(pending, dir, at.chunk());
            chunk.is_none_or(|chunk| among.has(chunk))
        };
        let mut base = None;
        if let Some(index) = self.dirs.get(&dir) {
            let mut from = Position(0);
            loop {
                base = pending.first_left(dir, index.free.range(from..).copied());
                let Some(at) = base.filter(|&at| !wanted(at)) else { break };
                base = None;
                let Some(next) = at.next_chunk() else { break };
                from = next;
            }
        }
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

    /// Empty slots of `dir` outside of annexes, usable now or after their cool-down. The index must
    /// be complete.
    pub fn idle(&self, pending: &PendingNames, dir: Ino) -> u64 {
        let mut count = self.dirs.get(&dir).map_or(0, |index| index.idle);
        let is_home = |at: Position| {
            let chunk = self.chunk_number(pending, dir, at.chunk());
            chunk.is_none_or(|chunk| !is_annex(chunk))
        };
        for change in pending.of(dir) {
            match change {
                Change::Take(at) if is_home(at) => count -= 1,
                Change::Free(at) | Change::CoolDown(at) if is_home(at) => count += 1,
                Change::GiveBack(_, hole) => count -= u64::from(hole.idle),
                Change::Forget => count = 0,
                _ => {}
            }
        }
        count
    }

    /// The first unit of `dir` in these chunks whose blocks were given back durably, and their
    /// mask. The index must be complete.
    pub fn hole(
        &self,
        pending: &PendingNames,
        (dir, among): (Ino, Among),
        durable: Transno,
    ) -> Option<(Unit, u8)> {
        let index = self.dirs.get(&dir)?;
        let of = |unit: Unit| index.chunks.get(unit.start().chunk());
        let wanted = |unit: Unit| of(unit).is_none_or(|&chunk| among.has(chunk));
        let holes = index.holes.iter().filter(|(unit, _)| wanted(**unit));
        let known = holes.take(HOLE_LOOKS).filter(|(_, (_, transno))| *transno <= durable);
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

    /// Forgets the free slots of `dir`, until its index is built again.
    #[cfg(test)]
    pub fn hide_free(&mut self, dir: Ino) {
        let Some(index) = self.dirs.get_mut(&dir) else { return };
        self.entries -= index.entries();
        index.free.clear();
        self.entries += index.entries();
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
                index.idle = index.idle.saturating_sub(u64::from(index.is_home(at)));
            }
            Change::Free(at) => index.add_free(at),
            Change::CoolDown(at) => {
                index.cooling.push_back((transno, at));
                index.sub_live(at);
                index.idle += u64::from(index.is_home(at));
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

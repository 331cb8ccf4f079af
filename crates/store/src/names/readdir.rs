//! Listing a directory, in the order of its slots.
//!
//! Invariant: a cookie is the position after which to go on, so an entry that
//! stays is listed exactly once whatever else changes meanwhile.

use std::collections::BTreeSet;

use types::{Attr, FileKind, Ino, MetaBlock, Name};

use super::entry::hide_attic;
use super::index::Position;
use crate::error::{Readahead, Stop};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotState};
use crate::txn::Txn;

/// Blocks that are read together at most; twice what was asked for, as the listing will go on.
const PIECE_MAX: usize = 256;

/// Blocks that are read on behind a small directory, at first and at most, and how far behind the
/// last listing the next may begin that goes on from it.
const ON_FIRST: u32 = 8;
const ON_MAX: u32 = 64;
const ON_GAP: u64 = 8;

/// What was read last for a listing.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Listed {
    /// The block behind it.
    end: u64,
    /// How far was read on.
    len: u32,
}

impl Listed {
    /// How many blocks to read on behind `first..end`.
    fn wanted(&mut self, first: u64, end: u64) -> u32 {
        let follows = (self.end..=self.end + ON_GAP).contains(&first);
        let small = end - first < u64::from(ON_MAX);
        self.len = if follows && small { (2 * self.len).clamp(ON_FIRST, ON_MAX) } else { 0 };
        self.len
    }
}

/// What a listing leaves out.
pub(crate) enum LeftOut<'a> {
    /// A name that is not legal, and its inode.
    Name(&'a [u8], Ino),
    /// A slot of a block.
    Slot(MetaBlock, u32),
    /// A block.
    Block(MetaBlock),
}

/// One name of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// Where to go on after it.
    pub cookie: u64,
    /// The name.
    pub name: Name,
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// Its attributes; `None` for a further name of an inode whose slot is not in memory.
    pub attr: Option<Attr>,
}

impl Txn<'_> {
    /// At most `max` entries after the cookie `after` (0: from the beginning); fewer at the end.
    ///
    /// # Errors
    /// `NotDirectory`, `NotFound` if `dir` is gone.
    pub fn readdir(&mut self, dir: Ino, after: u64, max: usize) -> Result<Vec<DirEntry>, Stop> {
        self.readdir_telling(dir, after, max, &BTreeSet::new(), |_| ())
    }

    /// As [`Txn::readdir`], without what cannot be read in some damaged blocks. That, and names
    /// that are not legal, are no entries: `told` is told of them.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn readdir_telling(
        &mut self,
        dir: Ino,
        after: u64,
        max: usize,
        without: &BTreeSet<MetaBlock>,
        mut told: impl FnMut(LeftOut<'_>),
    ) -> Result<Vec<DirEntry>, Stop> {
        hide_attic(dir)?;
        let chunks = self.read_chunks(dir)?;
        let mut out = Vec::new();
        let Ok(after) = u32::try_from(after) else { return Ok(out) };
        let mut from = Position(after);
        while out.len() < max {
            let Some(&number) = chunks.get(from.chunk()) else { break };
            self.ensure_chunk(number)?;
            let map = self.chunk(number)?;
            let block = from.slot() / SLOTS_PER_BLOCK;
            let used = map.descriptor.used;
            let Some(run) = map.run_of(block).filter(|_| block < used).copied() else {
                let Some(next) = (from.chunk() as u32 + 1).checked_mul(1 << 16) else { break };
                from = Position(next);
                continue;
            };
            let end = used.min(run.first + run.len);
            if run.start.0 != 0 {
                let start = MetaBlock(run.start.0 + u64::from(block - run.first));
                // One that can be read has slots that make no sense, and others.
                if without.contains(&start) && self.read(start).is_err() {
                    told(LeftOut::Block(start));
                    from = next_position(from, (block + 1) * SLOTS_PER_BLOCK);
                    if from == Position(0) {
                        break;
                    }
                    continue;
                }
                if let Err(Stop::Miss(..)) = self.read(start) {
                    // In pieces: a window that slides would fetch its last block alone each time.
                    let piece = (max - out.len()).div_ceil(4).min(PIECE_MAX) as u32;
                    let piece = (end - block).min(piece);
                    let damaged =
                        without.range(start..MetaBlock(start.0 + u64::from(piece))).next();
                    let piece = damaged.map_or(piece, |damaged| (damaged.0 - start.0) as u32);
                    let piece = self.require_cached(start, piece);
                    piece.map_err(|stop| self.read_on(stop))?;
                }
                let sparing = without.contains(&start);
                self.list_block(start, &mut from, (max, sparing), (&mut out, &mut told))?;
            } else {
                from = next_position(from, end * SLOTS_PER_BLOCK);
            }
            if from == Position(0) {
                break;
            }
        }
        Ok(out)
    }

    /// Lists the rest of one content block and moves `from` behind it.
    fn list_block(
        &mut self,
        home: MetaBlock,
        from: &mut Position,
        (max, sparing): (usize, bool),
        (out, told): (&mut Vec<DirEntry>, &mut impl FnMut(LeftOut<'_>)),
    ) -> Result<(), Stop> {
        let first = from.slot();
        let end = (first / SLOTS_PER_BLOCK + 1) * SLOTS_PER_BLOCK;
        for n in first..end {
            if out.len() == max {
                return Ok(());
            }
            let here = Position::new(from.chunk() as u32, n);
            let slot = Slot::load(self.read_slots(home)?, n % SLOTS_PER_BLOCK);
            if let Err(what) = slot.check() {
                if !sparing {
                    return Err(Stop::Corrupt(home, what));
                }
                told(LeftOut::Slot(home, n));
                *from = next_position(here, n + 1);
                continue;
            }
            *from = next_position(here, n + 1);
            if slot.state() == SlotState::Empty {
                continue;
            }
            let Ok(name) = Name::new(slot.name()) else {
                told(LeftOut::Name(slot.name(), slot.ino()));
                continue;
            };
            let attr = match slot.state() {
                SlotState::Inode => Some(slot.told_attr()),
                _ => self.attr_in_memory(slot.ino())?,
            };
            let cookie = u64::from(here.0) + 1;
            out.push(DirEntry { cookie, name, ino: slot.ino(), kind: slot.kind(), attr });
        }
        Ok(())
    }

    /// Reads on behind the blocks that `stop` misses, if they follow what was listed last: whoever
    /// walks a tree goes on to the sisters of a directory, which lie behind it.
    fn read_on(&mut self, stop: Stop) -> Stop {
        let Stop::Miss(first, count) = stop else { return stop };
        let end = first.0 + u64::from(count);
        let most = self.volatile_mut().listed.wanted(first.0, end);
        let allocated = |block: &u64| matches!(self.meta_allocated(MetaBlock(*block)), Ok(true));
        let ahead = (end..end + u64::from(most)).take_while(allocated).count() as u32;
        self.volatile_mut().listed.end = end + u64::from(ahead);
        match most {
            0 => self.read_around(stop),
            _ => Stop::MissWithReadahead(first, count, Readahead::behind(ahead)),
        }
    }

    fn attr_in_memory(&mut self, ino: Ino) -> Result<Option<Attr>, Stop> {
        match self.attr(ino) {
            Err(Stop::Miss(..) | Stop::Corrupt(..)) => Ok(None),
            other => other,
        }
    }
}

/// Slot `slot` (at most one past the chunk) of the chunk of `from`.
fn next_position(from: Position, slot: u32) -> Position {
    let base = (from.chunk() as u32) << 16;
    Position(base.checked_add(slot).unwrap_or(0))
}

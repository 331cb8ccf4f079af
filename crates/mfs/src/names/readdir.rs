//! Lists a directory in the order of its slots.
//!
//! Invariant: a cookie is the position after which to go on, so an entry that stays is listed
//! exactly once, whatever else changes meanwhile.

use std::collections::BTreeSet;

use types::{Attr, FileKind, Ino, MetaBlock, Name};

use super::entry::refuse_orphan_dir;
use super::index::Position;
use super::view::Names;
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotState};
use engine::error::{Readahead, Stop};

/// Most blocks of one read; twice what was asked for, since the listing will go on.
const PIECE_MAX: usize = 256;

/// What a listing skips.
pub(crate) enum SkippedEntry<'a> {
    /// An invalid name, and its inode.
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
    /// Its attributes; `None` for a further name of an inode whose slot is not in memory, or is
    /// another shard's.
    pub attr: Option<Attr>,
}

impl Names<'_, '_> {
    /// At most `max` entries after the cookie `after` (0: from the beginning); fewer at the end.
    ///
    /// # Errors
    /// `NotDirectory`, `NotFound` if `dir` is gone.
    pub fn readdir(&mut self, dir: Ino, after: u64, max: usize) -> Result<Vec<DirEntry>, Stop> {
        self.readdir_reporting(dir, after, max, &BTreeSet::new(), |_| ())
    }

    /// As [`Names::readdir`], but skips unreadable parts of the blocks `damaged`. Calls `report`
    /// with these, and with invalid names, which are no entries either.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn readdir_reporting(
        &mut self,
        dir: Ino,
        after: u64,
        max: usize,
        damaged: &BTreeSet<MetaBlock>,
        mut report: impl FnMut(SkippedEntry<'_>),
    ) -> Result<Vec<DirEntry>, Stop> {
        refuse_orphan_dir(dir)?;
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
                // If the block can be read, some of its slots are invalid and others are not.
                if damaged.contains(&start) && self.txn.read(start).is_err() {
                    report(SkippedEntry::Block(start));
                    from = next_position(from, (block + 1) * SLOTS_PER_BLOCK);
                    if from == Position(0) {
                        break;
                    }
                    continue;
                }
                if let Err(Stop::Miss(..)) = self.txn.read(start) {
                    // In pieces: a sliding window would fetch its last block alone each time.
                    let piece = (max - out.len()).div_ceil(4).min(PIECE_MAX) as u32;
                    let piece = (end - block).min(piece);
                    let damaged =
                        damaged.range(start..MetaBlock(start.0 + u64::from(piece))).next();
                    let piece = damaged.map_or(piece, |damaged| (damaged.0 - start.0) as u32);
                    let piece = self.txn.require_cached(start, piece);
                    piece.map_err(|stop| self.read_ahead(stop))?;
                }
                let skip_damaged = damaged.contains(&start);
                self.list_block(start, &mut from, (max, skip_damaged), (&mut out, &mut report))?;
            } else {
                from = next_position(from, end * SLOTS_PER_BLOCK);
            }
            if from == Position(0) {
                break;
            }
        }
        Ok(out)
    }

    /// Lists the remaining slots of one content block and moves `from` after it.
    fn list_block(
        &mut self,
        home: MetaBlock,
        from: &mut Position,
        (max, skip_damaged): (usize, bool),
        (out, report): (&mut Vec<DirEntry>, &mut impl FnMut(SkippedEntry<'_>)),
    ) -> Result<(), Stop> {
        let first = from.slot();
        let end = (first / SLOTS_PER_BLOCK + 1) * SLOTS_PER_BLOCK;
        for n in first..end {
            if out.len() == max {
                return Ok(());
            }
            let here = Position::new(from.chunk() as u32, n);
            let slot = Slot::load(self.txn.read_slots(home)?, n % SLOTS_PER_BLOCK);
            if let Err(what) = slot.check() {
                if !skip_damaged {
                    return Err(Stop::Corrupt(home, what));
                }
                report(SkippedEntry::Slot(home, n));
                *from = next_position(here, n + 1);
                continue;
            }
            *from = next_position(here, n + 1);
            if slot.state() == SlotState::Empty {
                continue;
            }
            let Ok(name) = Name::new(slot.name()) else {
                report(SkippedEntry::Name(slot.name(), slot.ino()));
                continue;
            };
            let attr = match slot.state() {
                SlotState::Inode => Some(slot.stat_attr()),
                _ => self.attr_in_memory(slot.ino())?,
            };
            let cookie = u64::from(here.0) + 1;
            out.push(DirEntry { cookie, name, ino: slot.ino(), kind: slot.kind(), attr });
        }
        Ok(())
    }

    /// Reads ahead after the blocks that `stop` misses, if they follow the last listing. A walk of
    /// a tree goes on to the siblings of a directory, which lie after it.
    fn read_ahead(&mut self, stop: Stop) -> Stop {
        let Stop::Miss(first, count) = stop else { return stop };
        let end = first.0 + u64::from(count);
        let most = self.txn.volatile_mut().listed.wanted(first.0, end);
        let allocated =
            |block: &u64| matches!(self.txn.meta_allocated(MetaBlock(*block)), Ok(true));
        let ahead = (end..end + u64::from(most)).take_while(allocated).count() as u32;
        self.txn.volatile_mut().listed.end = end + u64::from(ahead);
        match most {
            0 => self.read_around(stop),
            _ => Stop::MissWithReadahead(first, count, Readahead::behind(ahead)),
        }
    }

    fn attr_in_memory(&mut self, ino: Ino) -> Result<Option<Attr>, Stop> {
        if !self.is_here(ino)? {
            return Ok(None);
        }
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

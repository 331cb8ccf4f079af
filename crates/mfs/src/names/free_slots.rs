//! Finds free slots of a directory with a name map, mostly without reading its content.
//!
//! Invariants:
//! - the counts in the directory's slot give the number of idle slots. Which slots they are comes
//!   from the last block in use and from slots released since. If at least a quarter of all slots
//!   would be wasted otherwise, creates also read the content piece by piece;
//! - the known free slots are committed, and none of them is in its cool-down;
//! - a unit gives its blocks back if all of them are in the cache and empty: an operation that
//!   removes many names has read them.

use std::collections::BTreeSet;

use types::{DirNo, Ino, MetaBlock};

use super::dir_content::RUN_MAX;
use super::index::{Among, Position, UNIT_BLOCKS, Unit};
use super::view::Names;
use crate::format::number::is_annex;
use crate::format::slot::{RETIRED, SLOTS_PER_BLOCK, Slot, SlotState};
use engine::error::Stop;

/// Most pieces of content that one operation reads.
const PIECES: u32 = 4;
/// Fewer unknown slots are not worth a scan.
const WORTH: u64 = 512;

impl Names<'_, '_> {
    /// Empty slots of `dir`, usable now or after their cool-down. The index must be complete.
    pub(crate) fn idle_slots(&mut self, dir: Ino) -> Result<u64, Stop> {
        if self.map_of(dir).is_none() {
            return Ok(self.txn.volatile().names.idle(&self.txn.pending.names, dir));
        }
        let slot = self.locate_live(dir)?.1;
        let slots = slot.blocks() * u64::from(self.txn.slots().per_block());
        Ok(slots.saturating_sub(u64::from(slot.names())))
    }

    /// Is a slot of the unit in use? With a map, as far as the cached blocks show.
    pub(super) fn unit_in_use(&self, dir: Ino, number: DirNo, unit: Unit) -> Result<bool, Stop> {
        if self.map_of(dir).is_none() {
            return Ok(self.txn.volatile().names.live(&self.txn.pending.names, dir, unit) > 0);
        }
        let chunk = self.chunk(number)?;
        let first = unit.first_block();
        let end = chunk.descriptor.used.min(first + UNIT_BLOCKS);
        for run in chunk.runs.iter().filter_map(|run| run.part(first, end)) {
            for block in (run.first..run.end()).filter(|_| run.is_present()) {
                let Ok(data) = self.txn.read(run.home(block)) else { return Ok(true) };
                let used = |n| Slot::load(data, n).state() != SlotState::Empty;
                if (0..SLOTS_PER_BLOCK).any(used) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Is this slot free? The index must be complete.
    pub(super) fn slot_is_free(
        &mut self,
        dir: Ino,
        at: Position,
        home: MetaBlock,
    ) -> Result<bool, Stop> {
        if self.map_of(dir).is_none() {
            return Ok(self.txn.volatile().names.slot_is_free(&self.txn.pending.names, dir, at));
        }
        if let Some(known) = self.txn.pending.names.slot_is_free(dir, at) {
            return Ok(known);
        }
        let data = self.txn.read_slots(home)?;
        Ok(Slot::load(data, at.slot() % SLOTS_PER_BLOCK).state() == SlotState::Empty)
    }

    /// Looks for free slots of a directory with a map, when none is known in these chunks.
    pub(super) fn learn_free(&mut self, dir: Ino, among: Among) -> Result<(), Stop> {
        let Some(index) = self.txn.volatile().names.dir(dir).filter(|index| index.map.is_some())
        else {
            return Ok(());
        };
        let free_scan = index.free_scan;
        if !free_scan.tail_known {
            self.learn_tail(dir)?;
        }
        let mut scan = match free_scan.next {
            Some(at) => Some(at),
            None => self.scan_pays(dir)?.then_some(Position(0)),
        };
        for _ in 0..PIECES {
            let found = self.txn.volatile().names.lowest_free(&self.txn.pending.names, dir, among);
            let Some(at) = scan.filter(|_| found.is_none()) else { break };
            scan = self.learn_piece(dir, at)?;
            if scan.is_none() {
                let missed = self.unknown(dir)?;
                self.txn
                    .volatile_mut()
                    .names
                    .update_scan(dir, |free_scan| free_scan.missed = missed);
            }
            self.txn.volatile_mut().names.update_scan(dir, |free_scan| free_scan.next = scan);
        }
        Ok(())
    }

    /// Idle slots that are not known.
    fn unknown(&mut self, dir: Ino) -> Result<u64, Stop> {
        let idle = self.idle_slots(dir)?;
        let known = self.txn.volatile().names.dir(dir).map_or(0, |index| index.known_slots());
        Ok(idle.saturating_sub(known))
    }

    fn scan_pays(&mut self, dir: Ino) -> Result<bool, Stop> {
        let slots = self.locate_live(dir)?.1.blocks() * u64::from(self.txn.slots().per_block());
        let unknown = self.unknown(dir)?;
        let missed = self.txn.volatile().names.dir(dir).map_or(0, |index| index.free_scan.missed);
        let worth = WORTH.min(8 * self.txn.volatile().limits.blocks);
        Ok(unknown >= worth && unknown >= slots / 4 && unknown >= 2 * missed)
    }

    fn learn_tail(&mut self, dir: Ino) -> Result<(), Stop> {
        for annex in [false, true] {
            let names = &self.txn.volatile().names;
            let chunks = names.dir(dir).map_or(&[][..], |index| &index.chunks);
            if let Some(index) = chunks.iter().rposition(|&chunk| is_annex(chunk) == annex)
                && let Some(chunk) = names.committed(chunks[index])
                && let Some(block) = chunk.descriptor.used.checked_sub(1)
                && let Some(run) = chunk.run_of(block).filter(|run| run.is_present())
            {
                let home = run.home(block);
                if !self.txn.is_cached(home) {
                    return Err(Stop::Miss(home, 1));
                }
                self.learn_block(dir, Position::new(index as u32, block * SLOTS_PER_BLOCK), home)?;
            }
        }
        self.txn.volatile_mut().names.update_scan(dir, |free_scan| free_scan.tail_known = true);
        Ok(())
    }

    /// Learns the free slots of the next piece of content from `at` on. Returns where to go on;
    /// `None` at the end.
    fn learn_piece(&mut self, dir: Ino, at: Position) -> Result<Option<Position>, Stop> {
        let names = &self.txn.volatile().names;
        let number = names.dir(dir).and_then(|index| index.chunks.get(at.chunk())).copied();
        let Some(number) = number else { return Ok(None) };
        let block = at.slot() / SLOTS_PER_BLOCK;
        let next = at.chunk() as u32 + 1;
        let run = names.committed(number).and_then(|chunk| {
            let used = chunk.descriptor.used;
            chunk.run_of(block).and_then(|run| run.part(block, used.min(block + RUN_MAX)))
        });
        let Some(run) = run else {
            return Ok((next < 1 << 16).then(|| Position::new(next, 0)));
        };
        if run.is_present() {
            if let Err(Stop::Miss(first, count)) = self.txn.require_cached(run.start, run.len) {
                return Err(Stop::Scan(first, count));
            }
            for block in run.first..run.end() {
                let at = Position::new(at.chunk() as u32, block * SLOTS_PER_BLOCK);
                self.learn_block(dir, at, run.home(block))?;
            }
        }
        Ok(match run.end() * SLOTS_PER_BLOCK {
            slot if slot > u32::from(u16::MAX) => (next < 1 << 16).then(|| Position::new(next, 0)),
            slot => Some(Position::new(at.chunk() as u32, slot)),
        })
    }

    fn learn_block(&mut self, dir: Ino, first: Position, home: MetaBlock) -> Result<(), Stop> {
        let Some(data) = self.txn.cached(home) else { return Ok(()) };
        let mut free = BTreeSet::new();
        for n in 0..SLOTS_PER_BLOCK {
            let slot = Slot::load(data, n);
            slot.check().map_err(|what| Stop::Corrupt(home, what))?;
            if slot.state() == SlotState::Empty && slot.next_reuse() < RETIRED {
                free.insert(Position(first.0 + n));
            }
        }
        self.txn.volatile_mut().names.learn(dir, free);
        Ok(())
    }
}

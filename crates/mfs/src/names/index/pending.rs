//! What a running transaction changes of the indexes.

use std::collections::{BTreeMap, BTreeSet};

use types::{DirNo, Ino};

use super::{Change, Chunk, Hole, Position, Unit, entry, hash_name};

/// What the running transaction changed; dropped when its body starts over.
#[derive(Default, Debug)]
pub struct PendingNames {
    pub(super) changes: Vec<(Ino, Change)>,
    /// Slots that became free or not, one by one; the last change of each counts.
    slots: BTreeMap<(Ino, Position), bool>,
    /// Directories of which slots changed in other ways, too.
    coarse: BTreeSet<Ino>,
    pub(super) chunks: BTreeMap<DirNo, Option<Chunk>>,
}

impl PendingNames {
    pub(super) fn of(&self, dir: Ino) -> impl DoubleEndedIterator<Item = Change> {
        self.changes.iter().filter(move |(of, _)| *of == dir).map(|&(_, change)| change)
    }

    /// Is this slot free? `None` if the transaction did not change it.
    pub fn slot_is_free(&self, dir: Ino, at: Position) -> Option<bool> {
        if !self.coarse.contains(&dir) {
            // Many names of one directory may change in one transaction.
            return self.slots.get(&(dir, at)).copied();
        }
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

    /// The first of these free slots, in their order, that the transaction has left free.
    pub(super) fn first_left(
        &self,
        dir: Ino,
        mut free: impl Iterator<Item = Position>,
    ) -> Option<Position> {
        if self.coarse.contains(&dir) {
            return free.find(|&at| self.slot_is_free(dir, at).unwrap_or(true));
        }
        // It has taken those in front, so both are walked side by side.
        let first = free.next()?;
        let mut changed = self.slots.range((dir, first)..).peekable();
        std::iter::once(first).chain(free).find(|&at| {
            while changed.next_if(|((of, slot), _)| *of == dir && *slot < at).is_some() {}
            changed.peek().is_none_or(|(place, free)| **place != (dir, at) || **free)
        })
    }

    /// Which blocks of `mask`, given back before this transaction, are still given back.
    pub(super) fn remaining_hole(&self, dir: Ino, unit: Unit, mask: u8) -> u8 {
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
        self.slots.insert((dir, at), false);
    }

    /// Notes that a slot is free.
    pub fn free(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::Free(at)));
        self.slots.insert((dir, at), true);
    }

    /// Notes that a slot was released: it becomes free when that is durable.
    pub fn cool_down(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::CoolDown(at)));
        self.slots.insert((dir, at), false);
    }

    /// Notes that a slot was released and is never used again.
    pub fn retire(&mut self, dir: Ino, at: Position) {
        self.changes.push((dir, Change::Retire(at)));
    }

    /// Notes that blocks of a unit were given back.
    pub fn give_back(&mut self, dir: Ino, unit: Unit, hole: Hole) {
        self.changes.push((dir, Change::GiveBack(unit, hole)));
        self.coarse.insert(dir);
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
        self.coarse.insert(dir);
    }

    /// Notes a changed chunk, or with `None` a removed one.
    pub fn set_chunk(&mut self, number: DirNo, chunk: Option<Chunk>) {
        self.chunks.insert(number, chunk);
    }
}

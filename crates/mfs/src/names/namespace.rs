//! The namespace index: finds directories by their parent and their creator (002 §3.2).
//!
//! Invariants:
//! - [`crate::format::namespace`] describes what is on the device;
//! - entries change in the transaction that creates, removes or moves the directory;
//! - a search starts from the node in which the last one ended ([`Finger`]), of this transaction or
//!   of an earlier one. A change that splits, joins or frees nodes drops the finger. Code that
//!   changes blocks without this module must drop it too ([`crate::handle::Mfs::forget_indexes`]);
//! - a missing entry is no error here: `fsck` finds it, and nothing else needs it.

use types::{DirNo, FileKind, Ino, MetaBlock};

use super::view::Names;
use crate::format::namespace::{
    NAMESPACE_KEY, NAMESPACE_VALUE, NamespaceEntry, Stream, decode_start, encode_start,
};
use crate::format::number::is_orphan_dir;
use crate::format::slot::{Slot, SlotState};
use crate::trees::NAMESPACE;
use engine::btree::Finger;
use engine::error::Stop;

/// An entry as the tree stores it.
type RawEntry = ([u8; NAMESPACE_KEY], [u8; NAMESPACE_VALUE]);

/// A subdirectory, as the index lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subdirectory {
    /// Its number.
    pub ino: Ino,
    /// Where its content begins, or was to begin.
    pub start: Option<MetaBlock>,
    /// Where the listing goes on after it.
    pub cursor: SubdirCursor,
}

/// Where a listing of subdirectories goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubdirCursor(Stream, Ino);

impl Names<'_, '_> {
    /// At most `max` subdirectories of `dir` after `after`, those of one stream together. This does
    /// not read the content of `dir`.
    ///
    /// # Errors
    /// `Stale` if there is no such directory.
    pub fn subdirectories(
        &mut self,
        dir: Ino,
        after: Option<SubdirCursor>,
        max: usize,
    ) -> Result<Vec<Subdirectory>, Stop> {
        let parent = DirNo(self.locate_live(dir)?.1.body());
        let SubdirCursor(stream, ino) = after.unwrap_or(SubdirCursor(Stream::default(), Ino::NONE));
        let mut out = Vec::new();
        if parent.0 == 0 {
            return Ok(out);
        }
        // The number after the last one. No directory has the greatest number: its reuse number
        // would be that of a retired slot.
        let mut from = NamespaceEntry { parent, stream, dir: Ino(ino.0.saturating_add(1)) }.key();
        while out.len() < max {
            self.approach(&from)?;
            for (key, value) in
                NAMESPACE.leaf_range(self.txn, self.finger(), &from, max - out.len())?
            {
                let NamespaceEntry { parent: of, stream, dir: ino } = NamespaceEntry::of(&key);
                if of != parent {
                    return Ok(out);
                }
                let cursor = SubdirCursor(stream, ino);
                out.push(Subdirectory { ino, start: decode_start(&value), cursor });
            }
            match self.finger().upper_bound() {
                Some(next) => from = from.max(next),
                None => break,
            }
        }
        Ok(out)
    }

    fn finger(&self) -> &Finger<NAMESPACE_KEY> {
        match &self.txn.pending.namespace.finger {
            Some(finger) => finger,
            None => &self.txn.volatile().namespace.finger,
        }
    }

    /// Moves the finger to the leaf of `key`.
    fn approach(&mut self, key: &[u8; NAMESPACE_KEY]) -> Result<(), Stop> {
        let mut finger = self.finger().clone();
        let read = NAMESPACE.seek(self.txn, &mut finger, key);
        self.txn.pending.namespace.finger = Some(finger);
        let counts = &mut self.txn.pending.namespace.counts;
        counts.searches += 1;
        counts.nodes += read?;
        Ok(())
    }

    /// Where the directory of an entry begins.
    fn start_of(&mut self, entry: NamespaceEntry) -> Result<Option<MetaBlock>, Stop> {
        let key = entry.key();
        self.approach(&key)?;
        let found = NAMESPACE.leaf_range(self.txn, self.finger(), &key, 1)?;
        let found = found.first().filter(|(found, _)| *found == key);
        Ok(found.and_then(|(_, value)| decode_start(value)))
    }

    /// The entries before and after the place of `key`.
    fn neighbours(
        &mut self,
        key: &[u8; NAMESPACE_KEY],
    ) -> Result<(Option<RawEntry>, Option<RawEntry>), Stop> {
        self.approach(key)?;
        let mut before = NAMESPACE.leaf_prev(self.txn, self.finger(), key)?;
        let behind = NAMESPACE.leaf_range(self.txn, self.finger(), key, 1)?.first().copied();
        // The entry before may be the last of the previous leaf. The entry after is only looked up
        // in this leaf: it is a hint.
        if let Some(least) = self.finger().lower_bound().filter(|_| before.is_none()) {
            let last = u128::from_be_bytes(least).saturating_sub(1).to_be_bytes();
            self.approach(&last)?;
            before = NAMESPACE.leaf_prev(self.txn, self.finger(), key)?;
        }
        Ok((before, behind))
    }

    fn enter(&mut self, entry: NamespaceEntry, start: Option<MetaBlock>) -> Result<(), Stop> {
        let (key, value) = (entry.key(), encode_start(start));
        self.approach(&key)?;
        let finger = self.finger().clone();
        if !NAMESPACE.leaf_insert(self.txn, &finger, &key, &value)? {
            self.txn.pending.namespace.finger = Some(Finger::default());
            NAMESPACE.insert(self.txn, &key, &value)?;
        }
        Ok(())
    }

    /// Removes an entry, if it is there; returns where its directory begins.
    fn withdraw(&mut self, entry: NamespaceEntry) -> Result<Option<MetaBlock>, Stop> {
        let start = self.start_of(entry)?;
        let key = entry.key();
        let finger = self.finger().clone();
        if !NAMESPACE.leaf_remove(self.txn, &finger, &key)? {
            self.txn.pending.namespace.finger = Some(Finger::default());
            NAMESPACE.remove(self.txn, &key)?;
        }
        Ok(start)
    }

    /// The entry of the directory in `slot`, which lies in `parent`; `None` if it has none.
    fn entry_in(&mut self, parent: Ino, slot: &Slot) -> Result<Option<NamespaceEntry>, Stop> {
        let indexed = slot.state() == SlotState::Inode
            && slot.kind() == FileKind::Directory
            && !is_orphan_dir(parent)
            && parent != Ino::NONE;
        if !indexed {
            return Ok(None);
        }
        let chunk = match self.txn.volatile().names.chunk_number(&self.txn.pending.names, parent, 0)
        {
            Some(chunk) => chunk,
            None => DirNo(self.locate_live(parent)?.1.body()),
        };
        Ok(Some(NamespaceEntry { parent: chunk, stream: slot.stream(), dir: slot.ino() }))
    }

    /// Inserts the new directory in `slot`, which lies in `parent`.
    pub(super) fn index_new_dir(
        &mut self,
        parent: Ino,
        slot: &Slot,
        home: MetaBlock,
    ) -> Result<(), Stop> {
        let Some(entry) = self.entry_in(parent, slot)? else { return Ok(()) };
        let start = self.choose_start(parent, entry, slot, home)?;
        self.enter(entry, start)
    }

    /// Removes the directory in `slot` from the entries of `parent`. Returns where it begins.
    pub(super) fn index_remove(
        &mut self,
        parent: Ino,
        slot: &Slot,
    ) -> Result<Option<MetaBlock>, Stop> {
        match self.entry_in(parent, slot)? {
            Some(entry) => self.withdraw(entry),
            None => Ok(None),
        }
    }

    /// Inserts the directory in `slot`, which begins at `start` and was moved into `parent`.
    pub(super) fn index_insert(
        &mut self,
        parent: Ino,
        slot: &Slot,
        start: Option<MetaBlock>,
    ) -> Result<(), Stop> {
        match self.entry_in(parent, slot)? {
            Some(entry) => self.enter(entry, start),
            None => Ok(()),
        }
    }

    /// Where the directory in `slot`, which lies in `parent`, was to begin when it was created.
    pub(super) fn indexed_start(
        &mut self,
        parent: Ino,
        slot: &Slot,
    ) -> Result<Option<MetaBlock>, Stop> {
        match self.entry_in(parent, slot)? {
            Some(entry) => self.start_of(entry),
            None => Ok(None),
        }
    }

    /// Where the siblings next to `entry` begin.
    pub(super) fn siblings(&mut self, entry: NamespaceEntry) -> Result<Siblings, Stop> {
        let (before, behind) = self.neighbours(&entry.key())?;
        let mut out = Siblings::default();
        for (key, value) in [before, behind].into_iter().flatten() {
            let other = NamespaceEntry::of(&key);
            if other.parent != entry.parent {
                continue;
            }
            let start = decode_start(&value);
            out.any = out.any.or(start);
            if other.stream.same_user(entry.stream) {
                out.of_user = out.of_user.or(start);
            }
        }
        Ok(out)
    }
}

/// Where siblings of a new directory begin.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Siblings {
    /// The nearest of the same user.
    pub(crate) of_user: Option<MetaBlock>,
    /// The nearest of any user.
    pub(crate) any: Option<MetaBlock>,
}

#[cfg(test)]
mod tests;

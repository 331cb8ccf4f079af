//! The namespace index at work: directories by their parent and who made them (002 §3.2).
//!
//! Invariants:
//! - what is on the device is in [`crate::format::namespace`]; without the feature nothing of this
//!   module does anything;
//! - entries change in the transaction that makes, removes or moves the directory;
//! - a search starts from the node in which the last one ended ([`Finger`]), of this transaction or
//!   of those before it. A change that splits, joins or frees nodes drops the finger, and so does
//!   whoever changes blocks without this module ([`crate::mfs::Mfs::forget_indexes`]);
//! - an entry that should be there and is not is passed over: `fsck` finds it, and nothing else
//!   needs it.

use types::{DirNo, FileKind, Ino, MetaBlock};

use crate::btree::Finger;
use crate::error::Stop;
use crate::features::Feature;
use crate::format::namespace::{
    Entry, NAMESPACE_KEY, NAMESPACE_VALUE, Stream, decode_start, encode_start,
};
use crate::format::number::ATTIC;
use crate::format::slot::{Slot, SlotState};
use crate::trees::NAMESPACE;
use crate::txn::Txn;

/// An entry as it lies in the tree.
type Raw = ([u8; NAMESPACE_KEY], [u8; NAMESPACE_VALUE]);

/// What is remembered of searches.
#[derive(Default, Debug)]
pub(crate) struct Searches {
    finger: Finger<NAMESPACE_KEY>,
    /// How much was searched since the opening.
    pub(crate) counts: SearchCounts,
}

/// What the running transaction searched; dropped when its body starts over.
#[derive(Default, Debug)]
pub(crate) struct Pending {
    finger: Option<Finger<NAMESPACE_KEY>>,
    counts: SearchCounts,
}

/// Searches in the namespace index, since the opening; of transactions that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SearchCounts {
    /// Searches.
    pub searches: u64,
    /// Nodes that they read.
    pub nodes: u64,
}

impl Searches {
    /// A transaction succeeded.
    pub(crate) fn apply(&mut self, pending: Pending) {
        if let Some(finger) = pending.finger {
            self.finger = finger;
        }
        self.counts.searches += pending.counts.searches;
        self.counts.nodes += pending.counts.nodes;
    }

    /// The tree was changed by others.
    pub(crate) fn forget(&mut self) {
        self.finger = Finger::default();
    }
}

/// A subdirectory, as the index tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subdirectory {
    /// Its number.
    pub ino: Ino,
    /// Where its content begins, or was to begin.
    pub start: Option<MetaBlock>,
    /// Where to go on behind it.
    pub cursor: Cursor,
}

/// Where an enumeration of subdirectories goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor(Stream, Ino);

impl Txn<'_> {
    /// Has the file system this feature?
    pub(crate) fn has_feature(&self, feature: Feature) -> bool {
        self.state.superblock.features.has(feature)
    }

    /// At most `max` subdirectories of `dir`, those of one stream together, behind `after`; `None`
    /// without the feature `namespace-index`. The content of `dir` is not read.
    ///
    /// # Errors
    /// `Stale` if there is no such directory.
    pub fn subdirectories(
        &mut self,
        dir: Ino,
        after: Option<Cursor>,
        max: usize,
    ) -> Result<Option<Vec<Subdirectory>>, Stop> {
        if !self.has_feature(Feature::NAMESPACE_INDEX) {
            return Ok(None);
        }
        let parent = DirNo(self.locate_live(dir)?.1.body());
        let Cursor(stream, ino) = after.unwrap_or(Cursor(Stream::default(), Ino::NONE));
        let mut out = Vec::new();
        if parent.0 == 0 {
            return Ok(Some(out));
        }
        // The number behind the last one; no directory has the greatest (its reuse number would be
        // that of a retired slot).
        let mut from = Entry { parent, stream, dir: Ino(ino.0.saturating_add(1)) }.key();
        while out.len() < max {
            self.approach(&from)?;
            for (key, value) in NAMESPACE.leaf_range(self, self.finger(), &from, max - out.len())? {
                let Entry { parent: of, stream, dir: ino } = Entry::of(&key);
                if of != parent {
                    return Ok(Some(out));
                }
                let cursor = Cursor(stream, ino);
                out.push(Subdirectory { ino, start: decode_start(&value), cursor });
            }
            match self.finger().upper_bound() {
                Some(next) => from = from.max(next),
                None => break,
            }
        }
        Ok(Some(out))
    }

    fn finger(&self) -> &Finger<NAMESPACE_KEY> {
        match &self.pending.namespace.finger {
            Some(finger) => finger,
            None => &self.volatile().namespace.finger,
        }
    }

    /// Leads the finger to the leaf of `key`.
    fn approach(&mut self, key: &[u8; NAMESPACE_KEY]) -> Result<(), Stop> {
        let mut finger = self.finger().clone();
        let read = NAMESPACE.seek(self, &mut finger, key);
        self.pending.namespace.finger = Some(finger);
        let counts = &mut self.pending.namespace.counts;
        counts.searches += 1;
        counts.nodes += read?;
        Ok(())
    }

    /// Where the directory of an entry begins.
    fn start_of(&mut self, entry: Entry) -> Result<Option<MetaBlock>, Stop> {
        let key = entry.key();
        self.approach(&key)?;
        let found = NAMESPACE.leaf_range(self, self.finger(), &key, 1)?;
        let found = found.first().filter(|(found, _)| *found == key);
        Ok(found.and_then(|(_, value)| decode_start(value)))
    }

    /// The entries beside where `key` belongs.
    fn neighbours(
        &mut self,
        key: &[u8; NAMESPACE_KEY],
    ) -> Result<(Option<Raw>, Option<Raw>), Stop> {
        self.approach(key)?;
        let mut before = NAMESPACE.leaf_prev(self, self.finger(), key)?;
        let behind = NAMESPACE.leaf_range(self, self.finger(), key, 1)?.first().copied();
        // The one before may be the last of the leaf before. The one behind is sought in this leaf
        // only: it is a hint.
        if let Some(least) = self.finger().lower_bound().filter(|_| before.is_none()) {
            let last = u128::from_be_bytes(least).saturating_sub(1).to_be_bytes();
            self.approach(&last)?;
            before = NAMESPACE.leaf_prev(self, self.finger(), key)?;
        }
        Ok((before, behind))
    }

    fn enter(&mut self, entry: Entry, start: Option<MetaBlock>) -> Result<(), Stop> {
        let (key, value) = (entry.key(), encode_start(start));
        self.approach(&key)?;
        let finger = self.finger().clone();
        if !NAMESPACE.leaf_insert(self, &finger, &key, &value)? {
            self.pending.namespace.finger = Some(Finger::default());
            NAMESPACE.insert(self, &key, &value)?;
        }
        Ok(())
    }

    /// Takes an entry out, if it is there; where its directory begins.
    fn withdraw(&mut self, entry: Entry) -> Result<Option<MetaBlock>, Stop> {
        let start = self.start_of(entry)?;
        let key = entry.key();
        let finger = self.finger().clone();
        if !NAMESPACE.leaf_remove(self, &finger, &key)? {
            self.pending.namespace.finger = Some(Finger::default());
            NAMESPACE.remove(self, &key)?;
        }
        Ok(start)
    }

    /// The entry of the directory in `slot`, which lies in `parent`; `None` if it has none.
    fn entry_in(&mut self, parent: Ino, slot: &Slot) -> Result<Option<Entry>, Stop> {
        let indexed = self.has_feature(Feature::NAMESPACE_INDEX)
            && slot.state() == SlotState::Inode
            && slot.kind() == FileKind::Directory
            && parent != ATTIC
            && parent != Ino::NONE;
        if !indexed {
            return Ok(None);
        }
        let chunk = match self.volatile().names.chunk_number(&self.pending.names, parent, 0) {
            Some(chunk) => chunk,
            None => DirNo(self.locate_live(parent)?.1.body()),
        };
        Ok(Some(Entry { parent: chunk, stream: slot.stream(), dir: slot.ino() }))
    }

    /// A new directory, in `slot`, lies in `parent`.
    pub(crate) fn index_new(
        &mut self,
        parent: Ino,
        slot: &Slot,
        home: MetaBlock,
    ) -> Result<(), Stop> {
        let Some(entry) = self.entry_in(parent, slot)? else { return Ok(()) };
        let start = self.choose_start(parent, entry, slot, home)?;
        self.enter(entry, start)
    }

    /// The directory in `slot` does not lie in `parent` any more. Where it begins.
    pub(crate) fn index_out(
        &mut self,
        parent: Ino,
        slot: &Slot,
    ) -> Result<Option<MetaBlock>, Stop> {
        match self.entry_in(parent, slot)? {
            Some(entry) => self.withdraw(entry),
            None => Ok(None),
        }
    }

    /// The directory in `slot`, which begins at `start`, came to lie in `parent`.
    pub(crate) fn index_in(
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

    /// Where the directory in `slot`, which lies in `parent`, was to begin when it was made.
    pub(crate) fn indexed_start(
        &mut self,
        parent: Ino,
        slot: &Slot,
    ) -> Result<Option<MetaBlock>, Stop> {
        match self.entry_in(parent, slot)? {
            Some(entry) => self.start_of(entry),
            None => Ok(None),
        }
    }

    /// Where the sisters beside which `entry` belongs begin.
    pub(crate) fn sisters(&mut self, entry: Entry) -> Result<Sisters, Stop> {
        let (before, behind) = self.neighbours(&entry.key())?;
        let mut out = Sisters::default();
        for (key, value) in [before, behind].into_iter().flatten() {
            let other = Entry::of(&key);
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

/// Where sisters of a new directory begin.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Sisters {
    /// The nearest of the same user.
    pub(crate) of_user: Option<MetaBlock>,
    /// The nearest of anybody.
    pub(crate) any: Option<MetaBlock>,
}

#[cfg(test)]
mod tests;

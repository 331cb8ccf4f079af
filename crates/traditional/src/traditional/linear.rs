//! Directories without an index: names are sought block by block.
//!
//! Invariants:
//! - [`Index`] is a pure function of the directory's committed blocks, or of the first of them
//!   while it is built; occupancy changes only while it is complete, and then by hooks of
//!   successful transactions;
//! - it saves time of the processor only: blocks are read as ext4's linear search reads them, in
//!   order, each by a request of its own, and what is found is decided by the blocks.

use std::collections::BTreeSet;
use std::hash::Hasher;

use mfs::{BlockType, DirEntry, Stop, Txn};
use types::limits::BLOCK_U64;
use types::map::FixedHasher;
use types::{Fault, Ino, MetaBlock, Name};

use super::Traditional;
use super::dirent::{self, Entries};
use super::inode::Record;
use crate::layout::Listing;

/// Blocks of a request of a search. (The kernel has eight requests under way, but does not join
/// them.)
const SEARCH_AHEAD: u64 = 1;

/// What is known of a linear directory.
#[derive(Default)]
pub struct Index {
    /// Hash of a name in the high, its block in the low 32 bits.
    names: BTreeSet<u64>,
    /// Largest gap of each block.
    room: Vec<usize>,
    complete: bool,
}

/// A name that was found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// In which block of the directory.
    pub index: u64,
    /// Where that lies.
    pub block: MetaBlock,
    pub ino: Ino,
}

/// The hash of a name: 32 bits to search by, 16 to tell equal ones apart.
pub fn hash_name(name: &[u8]) -> (u32, u16) {
    let mut hasher = FixedHasher::default();
    hasher.write(name);
    let hash = hasher.finish();
    ((hash >> 32) as u32, (hash >> 8) as u16)
}

fn key(hash: u32, block: u64) -> u64 {
    u64::from(hash) << 32 | block
}

/// "." or "..".
pub fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

impl Traditional {
    /// Reads what the index of a directory does not know yet.
    fn ensure_index(&self, txn: &mut Txn<'_>, dir: Ino, record: &Record) -> Result<(), Stop> {
        if self.indexes.borrow().get(&dir).is_some_and(|index| index.complete) {
            return Ok(());
        }
        let mut index = self.indexes.borrow_mut().remove(&dir).unwrap_or_default();
        let result = self.read_rest(txn, record, &mut index);
        self.indexes.borrow_mut().insert(dir, index);
        result
    }

    fn read_rest(&self, txn: &Txn<'_>, record: &Record, index: &mut Index) -> Result<(), Stop> {
        while (index.room.len() as u64) < record.count() {
            let at = index.room.len() as u64;
            let block = self.want_blocks(txn, record, at, SEARCH_AHEAD)?;
            let data = txn.read_as(block, BlockType::Table)?;
            let wrong = |what| Stop::Corrupt(block, what);
            for entry in Entries::of(data) {
                let entry = entry.map_err(wrong)?;
                if entry.ino != Ino::NONE && !is_dots(entry.name) {
                    index.names.insert(key(hash_name(entry.name).0, at));
                }
            }
            index.room.push(dirent::room(data).map_err(wrong)?);
        }
        index.complete = true;
        Ok(())
    }

    pub(super) fn find_linear(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &Record,
        name: &[u8],
    ) -> Result<Option<Found>, Stop> {
        self.ensure_index(txn, dir, record)?;
        let hash = hash_name(name).0;
        let candidates: Vec<u64> = {
            let indexes = self.indexes.borrow();
            let index = indexes.get(&dir).ok_or(Stop::Fault(Fault::Stale))?;
            let range = key(hash, 0)..=key(hash, u64::from(u32::MAX));
            index.names.range(range).map(|key| key & u64::from(u32::MAX)).collect()
        };
        for at in candidates {
            let block = self.want_blocks(txn, record, at, SEARCH_AHEAD)?;
            let data = txn.read_as(block, BlockType::Table)?;
            if let Some(entry) =
                dirent::find(data, name).map_err(|what| Stop::Corrupt(block, what))?
            {
                return Ok(Some(Found { index: at, block, ino: entry.ino }));
            }
        }
        Ok(None)
    }

    /// Puts an entry into the first block with room, or a new one. The name is not there.
    pub(super) fn insert_linear(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &mut Record,
        name: &[u8],
        entry: (Ino, u8),
    ) -> Result<(), Stop> {
        self.ensure_index(txn, dir, record)?;
        let needed = dirent::needed(name.len());
        let with_room: Vec<u64> = {
            let indexes = self.indexes.borrow();
            let index = indexes.get(&dir).ok_or(Stop::Fault(Fault::Stale))?;
            let rooms = (0..).zip(&index.room);
            rooms.filter(|&(_, &room)| room >= needed).map(|(at, _)| at).take(2).collect()
        };
        for at in with_room {
            let block = self.want_blocks(txn, record, at, SEARCH_AHEAD)?;
            if self.try_insert(txn, dir, (at, block), name, entry)? {
                return Ok(());
            }
        }
        let (at, block) = self.append_block(txn, dir, record)?;
        dirent::clear(txn.write(block)?, mfs::block::HEADER);
        match self.try_insert(txn, dir, (at, block), name, entry)? {
            true => Ok(()),
            false => Err(Stop::Corrupt(block, "a name does not fit into an empty block")),
        }
    }

    fn try_insert(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        (at, block): (u64, MetaBlock),
        name: &[u8],
        (ino, kind): (Ino, u8),
    ) -> Result<bool, Stop> {
        let wrong = |what| Stop::Corrupt(block, what);
        let data = txn.write_as(block, BlockType::Table)?;
        if !dirent::insert(data, name, ino, kind).map_err(wrong)? {
            return Ok(false);
        }
        let room = dirent::room(data).map_err(wrong)?;
        let hash = hash_name(name).0;
        self.note(txn, dir, at, room, move |index| {
            index.names.insert(key(hash, at));
        });
        Ok(true)
    }

    pub(super) fn remove_linear(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        found: &Found,
        name: &[u8],
    ) -> Result<(), Stop> {
        let wrong = |what| Stop::Corrupt(found.block, what);
        let data = txn.write_as(found.block, BlockType::Table)?;
        if !dirent::remove(data, name).map_err(wrong)? {
            return Err(wrong("an entry is missing"));
        }
        let room = dirent::room(data).map_err(wrong)?;
        let hash = hash_name(name).0;
        let mut others = false;
        for entry in Entries::of(data) {
            let entry = entry.map_err(wrong)?;
            others |= entry.ino != Ino::NONE && hash_name(entry.name).0 == hash;
        }
        let at = found.index;
        self.note(txn, dir, at, room, move |index| {
            if !others {
                index.names.remove(&key(hash, at));
            }
        });
        Ok(())
    }

    /// When the transaction has succeeded, block `at` has this much room, and `change` is done.
    fn note(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        at: u64,
        room: usize,
        change: impl FnOnce(&mut Index) + 'static,
    ) {
        let indexes = self.indexes.clone();
        txn.on_commit(move |_, _| {
            if let Some(index) = indexes.borrow_mut().get_mut(&dir) {
                let at = at as usize;
                if index.room.len() <= at {
                    index.room.resize(at + 1, 0);
                }
                index.room[at] = room;
                change(index);
            }
        });
    }

    /// When the transaction has succeeded, nothing is known of the directory.
    pub(super) fn forget(&self, txn: &mut Txn<'_>, dir: Ino) {
        let indexes = self.indexes.clone();
        txn.on_commit(move |_, _| {
            indexes.borrow_mut().remove(&dir);
        });
    }

    /// Has the directory no names?
    pub(super) fn is_empty(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &Record,
    ) -> Result<bool, Stop> {
        let listing = Listing { after: 0, max: 1, attrs: false };
        Ok(self.list(txn, dir, record, listing)?.is_empty())
    }

    /// Entries in the order of blocks; a cookie is the entry's place, plus one.
    pub(super) fn list_linear(
        &self,
        txn: &mut Txn<'_>,
        record: &Record,
        listing: Listing,
    ) -> Result<Vec<DirEntry>, Stop> {
        let mut out = Vec::new();
        let mut index = listing.after / BLOCK_U64;
        while index < record.count() && out.len() < listing.max {
            let block = self.want_blocks(txn, record, index, read_ahead(index))?;
            for entry in Entries::of(txn.read_as(block, BlockType::Table)?) {
                let entry = entry.map_err(|what| Stop::Corrupt(block, what))?;
                let cookie = index * BLOCK_U64 + entry.at as u64 + 1;
                if cookie <= listing.after || entry.ino == Ino::NONE || is_dots(entry.name) {
                    continue;
                }
                if out.len() == listing.max {
                    break;
                }
                out.push(listed(&entry, cookie, block)?);
            }
            index += 1;
        }
        Ok(out)
    }
}

/// Blocks of one request of the kernel's readahead at this place of a directory that is read in
/// order: one, then four, later 128 KiB.
fn read_ahead(index: u64) -> u64 {
    match index {
        0 => 1,
        1..29 => 4,
        _ => 32,
    }
}

/// An entry as a listing has it, without attributes.
pub fn listed(entry: &dirent::Dirent<'_>, cookie: u64, block: MetaBlock) -> Result<DirEntry, Stop> {
    let name = Name::new(entry.name).ok();
    let (name, kind) =
        name.zip(entry.kind()).ok_or(Stop::Corrupt(block, "an entry has a wrong name or kind"))?;
    Ok(DirEntry { cookie, name, ino: entry.ino, kind, attr: None })
}

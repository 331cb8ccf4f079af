//! The volatile state: what the namespace and the space allocator keep in memory besides the
//! blocks, such as name indexes, chunk maps and hints.
//!
//! Invariants:
//! - the store can rebuild all of it from the blocks, except the holds on freed space,
//!   which belong to leases and end with this process;
//! - changes that depend on a transaction are in [`Pending`] until the transaction has
//!   succeeded; pure caches of committed state may be filled at any time.

use types::{Attr, FileKind, Ino, Timestamp, Transno};

use crate::engine::error::Stop;
use crate::engine::format::block::BlockType;
use crate::engine::txn::Txn;
use crate::mfs::format::chunk::{ContentRun, DESCRIPTOR, Descriptor, chunk_key};
use crate::mfs::format::number::{ORPHAN_DIR, SYSTEM_CHUNK, home_of};
use crate::mfs::format::slot::Slot;
use crate::mfs::mkfs::FormatOptions;
use crate::mfs::names::index::{self, NameIndexes};
use crate::mfs::names::namespace::{self, Searches};
use crate::mfs::names::placement::Placement;
use crate::mfs::names::read_around::RegionReads;
use crate::mfs::names::readdir::ListingReadahead;
use crate::mfs::space::SpaceHints;
use crate::mfs::trees::{CHUNKS, INODES, NEXT_CHUNK, NEXT_CLIENT, insert_zero_entries};

/// The volatile state of a store.
#[derive(Default)]
pub struct VolatileState {
    pub(crate) names: NameIndexes,
    pub(crate) space: SpaceHints,
    pub(crate) placement: Placement,
    pub(crate) namespace: Searches,
    pub(crate) listed: ListingReadahead,
    pub(crate) nearby: RegionReads,
}

/// Changes of the running transaction to the volatile state.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) names: index::PendingNames,
    pub(crate) namespace: namespace::PendingSearches,
}

impl VolatileState {
    /// Applies the changes of a transaction that succeeded.
    pub(crate) fn apply(&mut self, pending: Pending, number: Transno) {
        self.names.apply(pending.names, number);
        self.namespace.apply(pending.namespace);
    }
}

/// Writes the initial content of a new file system, in one transaction.
///
/// # Errors
/// `Stop` as any body of a transaction; `Invalid` for impossible PAGs.
pub fn write_initial_content(txn: &mut Txn<'_>, options: &FormatOptions) -> Result<(), Stop> {
    let start = txn.alloc_meta(1, None)?;
    let block = txn.init(start, BlockType::Directory)?;
    for ino in [Ino::ROOT, ORPHAN_DIR] {
        let place = home_of(ino);
        let mut slot = Slot::default();
        slot.set_next_reuse(1);
        slot.set_inode(b"", &first_attr(ino));
        slot.store(block, place.index());
    }
    let descriptor = Descriptor { owner: Ino::NONE, next: SYSTEM_CHUNK, index: 0, used: 1 };
    let run = ContentRun::present(0, start, 1);
    CHUNKS.insert(txn, &chunk_key(SYSTEM_CHUNK, 0), &run.encode())?;
    CHUNKS.insert(txn, &chunk_key(SYSTEM_CHUNK, DESCRIPTOR), &descriptor.encode())?;
    insert_zero_entries(txn)?;
    txn.set_root(NEXT_CHUNK, 1)?;
    txn.set_root(NEXT_CLIENT, 1)?;
    txn.set_root(INODES, 2)?;
    txn.format_pags(&options.pags)
}

pub(crate) fn first_attr(ino: Ino) -> Attr {
    let time = Timestamp::default();
    Attr {
        ino,
        kind: FileKind::Directory,
        mode: if ino == Ino::ROOT { 0o755 } else { 0 },
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: 1,
    }
}

impl crate::engine::store::Mfs {
    /// Drops every name index and chunk map, because the blocks changed without them or memory is
    /// short.
    pub(crate) fn forget_indexes(&self) {
        let volatile = &mut self.inner.state.borrow_mut().volatile;
        volatile.names = NameIndexes::default();
        volatile.namespace.forget();
    }
}

/// Derives the volatile state of a store that was just opened, in a transaction without changes.
///
/// # Errors
/// `Stop` as any body of a transaction.
pub fn load(txn: &mut Txn<'_>) -> Result<(), Stop> {
    *txn.volatile_mut() = VolatileState::default();
    Ok(())
}

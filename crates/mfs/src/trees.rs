//! The trees and counters of the store, each with its root.
//!
//! Invariants:
//! - a root's number and the widths of its keys and values never change;
//! - trees that become empty in normal operation have a meaningless entry of zeros from mkfs on.
//!   Without it the store would allocate and free their last node again and again, with an image in
//!   the log each time.
//!
//! | root | key | value | tree |
//! |---|---|---|---|
//! | 1 | 8 | 24 | directory table (7.1) |
//! | 2 | 8 | 8 | moved inodes, with an entry of zeros: number → place (6) |
//! | 3 | 8 | 8 | orphans, inodes without links, with an entry of zeros: number → zeros |
//! | 4 | 16 | 16 | segments (8), with an entry of zeros |
//! | 5 | 2 | 48 | data zones (10) |
//! | 6 | 10 | 8 | free data space (10) |
//! | 7 | 18 | 8 | pools (10), with an entry of zeros |
//! | 8 | 10 | 24 | freed data space (10), with an entry of zeros |
//! | 9 | 8 | 8 | quarantines (10) |
//! | 10 | 17 | 8 | frozen files (10) |
//! | 11 | 8 | 8 | clients (11) |
//! | 12 | 12 | 8 | replies (11) |
//! | 13 | 4 | 64 | settings (11) |
//! | 17 | 16 | 8 | namespace index (7.4), with an entry of zeros |
//! | 19 | 10 | 2 | doomed objects (10), with an entry of zeros from the first target on |
//! | 20 | 10 | 4 | owed fences (10), with an entry of zeros from the first target on |
//! | 22 | 15 | 112 | intents (11.1), with the feature `shards`, with an entry of zeros |
//! | 23 | 8 | 16 | names on other shards (7.5), with the feature `shards`, with an entry of zeros |
//! | 24 | 10 | 13 | lent data space (10), with the feature `lent-space`, with an entry of zeros |
//! | 25 | 8 | 8 | homes of inodes that have moved (7.6), with the feature `moved-directories`, with an entry of zeros |
//! | 63 | | | a tree that repair builds, until it replaces another; readers ignore it |
//!
//! Roots 14 to 16 are numbers: the next chunk, the next client, both within the shard, and the
//! number of inodes, including the root and the orphan directory. Root 18 says how many annexes
//! were numbered (6). Root 21 is the number, within the shard, of the next object that no start of
//! the server has taken. Root 59 is what an interrupted repair leaves to the next one. Its bit 0: a
//! part of the bitmap was lost; bit 1: there are nodes of an unfinished tree. The other roots are
//! 0.

use crate::format::{chunk, home, intent, namespace, outside, segment, space};
use crate::txn::Txn;
use engine::btree::Tree;
pub use engine::clients::{CLIENTS, NEXT_CLIENT, REPLIES, SETTINGS};
use engine::error::Stop;
use engine::format::features::Feature;
use engine::format::roots::RootId;
pub use engine::format::roots::{BITMAP_LOST, PARTIAL_TREE, SCRATCH, UNFINISHED};

/// Location of every chunk of every directory.
pub const CHUNKS: Tree<{ chunk::CHUNK_KEY }, { chunk::CHUNK_VALUE }> = Tree::at(RootId(1));
/// Inodes away from home: number → packed place.
pub const MOVED: Tree<8, 8> = Tree::at(RootId(2));
/// Inodes without links.
pub const ORPHANS: Tree<8, 8> = Tree::at(RootId(3));
/// Segments that do not fit in the slot of their file.
pub const SEGMENTS: Tree<{ segment::SEGMENT_KEY }, { segment::SEGMENT_VALUE }> =
    Tree::at(RootId(4));
/// The data zones.
pub const PAGS: Tree<2, { space::PAG_VALUE }> = Tree::at(RootId(5));
/// Free data space.
pub const FREE: Tree<{ space::RUN_KEY }, 8> = Tree::at(RootId(6));
/// Data space in the pools of clients.
pub const POOLS: Tree<{ space::POOL_KEY }, 8> = Tree::at(RootId(7));
/// Data space that files gave up.
pub const FREED: Tree<{ space::RUN_KEY }, { space::FREED_VALUE }> = Tree::at(RootId(8));
/// Clients whose pools are quarantined.
pub const QUARANTINES: Tree<8, 8> = Tree::at(RootId(9));
/// Files that an evicted client may still write.
pub const FROZEN: Tree<{ space::FROZEN_KEY }, 8> = Tree::at(RootId(10));
/// Number, within the shard, of the next chunk that is no annex.
pub const NEXT_CHUNK: RootId = RootId(14);
/// How many annexes were numbered.
pub const ANNEXES: RootId = RootId(18);
/// Objects that their targets have to destroy.
pub const DOOMED: Tree<{ space::TARGET_KEY }, { space::DOOMED_VALUE }> = Tree::at(RootId(19));
/// Fences of evicted clients that targets have not answered.
pub const OWED_FENCES: Tree<{ space::TARGET_KEY }, { space::FENCE_VALUE }> = Tree::at(RootId(20));
/// Operations that several shards agree on.
pub const INTENTS: Tree<{ intent::INTENT_KEY }, { intent::INTENT_VALUE }> = Tree::at(RootId(22));
/// Names of this shard's inodes on other shards.
pub const OUTSIDE: Tree<{ outside::OUTSIDE_KEY }, { outside::OUTSIDE_VALUE }> =
    Tree::at(RootId(23));
/// Data space that this shard has lent to others, or they to it.
pub const LENT: Tree<{ space::RUN_KEY }, { space::LENT_VALUE }> = Tree::at(RootId(24));
/// Where directories are that have moved from one shard to another.
pub const HOMES: Tree<{ home::HOME_KEY }, { home::HOME_VALUE }> = Tree::at(RootId(25));
/// Number, within the shard, of the next object that no start of the server has taken.
pub const NEXT_OBJECT: RootId = RootId(21);
/// Number of inodes, including the root and the orphan directory.
pub const INODES: RootId = RootId(16);

/// All directories, siblings next to each other.
pub const NAMESPACE: Tree<{ namespace::NAMESPACE_KEY }, { namespace::NAMESPACE_VALUE }> =
    Tree::at(RootId(17));

/// Inserts the entries of zeros into the trees of a new file system.
pub(crate) fn insert_zero_entries(txn: &mut Txn<'_>) -> Result<(), Stop> {
    MOVED.insert(txn, &[0; 8], &[0; 8])?;
    ORPHANS.insert(txn, &[0; 8], &[0; 8])?;
    SEGMENTS.insert(txn, &[0; segment::SEGMENT_KEY], &[0; segment::SEGMENT_VALUE])?;
    POOLS.insert(txn, &[0; space::POOL_KEY], &[0; 8])?;
    FREED.insert(txn, &[0; space::RUN_KEY], &[0; space::FREED_VALUE])?;
    NAMESPACE.insert(txn, &[0; namespace::NAMESPACE_KEY], &[0; namespace::NAMESPACE_VALUE])?;
    if txn.has_feature(Feature::SHARDS) {
        insert_zero_entries_of_shards(txn)?;
    }
    if txn.has_feature(Feature::LENT_SPACE) {
        insert_zero_entry_of_loans(txn)?;
    }
    if txn.has_feature(Feature::MOVED_DIRECTORIES) {
        insert_zero_entry_of_homes(txn)?;
    }
    Ok(())
}

/// Inserts the entries of zeros into the trees of the feature `shards`.
pub(crate) fn insert_zero_entries_of_shards(txn: &mut Txn<'_>) -> Result<(), Stop> {
    INTENTS.insert(txn, &[0; intent::INTENT_KEY], &[0; intent::INTENT_VALUE])?;
    OUTSIDE.insert(txn, &[0; outside::OUTSIDE_KEY], &[0; outside::OUTSIDE_VALUE])?;
    Ok(())
}

/// Inserts the entry of zeros into the tree of the feature `lent-space`.
pub(crate) fn insert_zero_entry_of_loans(txn: &mut Txn<'_>) -> Result<(), Stop> {
    LENT.insert(txn, &[0; space::RUN_KEY], &[0; space::LENT_VALUE]).map(drop)
}

/// Inserts the entry of zeros into the tree of the feature `moved-directories`.
pub(crate) fn insert_zero_entry_of_homes(txn: &mut Txn<'_>) -> Result<(), Stop> {
    HOMES.insert(txn, &[0; home::HOME_KEY], &[0; home::HOME_VALUE]).map(drop)
}

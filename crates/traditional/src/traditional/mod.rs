//! The traditional layout: entries, inodes and bitmaps apart, in groups, as ext3 has them.
//!
//! Invariants:
//! - an inode lies where its number says, for ever; a number is used again as soon as it is free;
//! - an inode is allocated if its bit is set, and then it has a name or is in the list of orphans;
//! - a directory's inode lies in a group chosen when it is made (Orlov: those of the root spread,
//!   others near their parent), its files' inodes and its blocks in the same group while there is
//!   room;
//! - entries are found by reading blocks in order (linear), or through an index by the hash of the
//!   name in the directory's first block and one level below it (hashed); inside a block both are
//!   the same;
//! - what is kept in memory for linear directories is a pure function of their blocks, built by
//!   reading them as a linear search does.
//!
//! Three things of ext3 are missing: block bitmaps of its own, directory debt in Orlov's rule, and
//! data. The store's bitmap has one block for about as many blocks as a group. These lie beside
//! each other, which costs fewer accesses. An inode has 254 bytes instead of 256, so that 16 fill a
//! block with its header.

mod check;
mod dirent;
mod extents;
mod group;
mod hashed;
mod inode;
mod linear;
mod map;
mod ops;

use std::cell::RefCell;
use std::rc::Rc;

use mfs::superblock::Superblock;
use mfs::{RootId, Stop, Txn};
use types::{Fault, FileKind, HashMap, Ino, MetaBlock, Timestamp};

use inode::{FLAG_HASHED, Record};
use linear::Index;

/// First block of group descriptors.
const DESCRIPTORS: RootId = RootId(48);
/// Number of groups.
const GROUPS: RootId = RootId(49);
/// Head of the list of orphans.
const ORPHANS: RootId = RootId(50);
/// Blocks of a group.
const GROUP_BLOCKS: RootId = RootId(51);
/// Inodes of a group.
const GROUP_INODES: RootId = RootId(52);
/// Blocks of the device that were in use before.
const USED_BEFORE: RootId = RootId(53);
/// Where the first group begins.
const FIRST: RootId = RootId(54);
/// 1: directories have an index.
const HASHED: RootId = RootId(55);

/// How a file system is divided into groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// First block of the first group.
    pub first: MetaBlock,
    /// Number of groups.
    pub groups: u64,
    /// Blocks of a group.
    pub group_blocks: u64,
    /// Inodes of a group, a multiple of 16.
    pub group_inodes: u64,
}

impl Geometry {
    /// As mke2fs chooses by default: groups of 128 MiB with an inode for each 16 KiB.
    pub fn usual(superblock: &Superblock) -> Geometry {
        let (group_blocks, group_inodes) = (engine::format::bitmap::BITS, 8192);
        let first = superblock.reserved();
        let groups = ((superblock.blocks - first) / group_blocks).max(1);
        Geometry { first: MetaBlock(first), groups, group_blocks, group_inodes }
    }
}

/// The layout on an open store.
#[derive(Clone)]
pub struct Traditional {
    geometry: Geometry,
    descriptors: MetaBlock,
    hashed: bool,
    /// Of linear directories: which block may have which name.
    indexes: Rc<RefCell<HashMap<Ino, Index>>>,
    /// Blocks of tables that were read and behind which so many shall be read, too.
    ahead: Rc<RefCell<HashMap<MetaBlock, u32>>>,
}

impl Traditional {
    /// Writes an empty root directory and all groups, in one transaction on a store that has been
    /// formatted and not used; its own directories stay as they are. `hashed`: directories have an
    /// index.
    ///
    /// # Errors
    /// `NoSpace`; `Invalid` for a geometry that makes no sense.
    pub fn format(txn: &mut Txn<'_>, geometry: Geometry, hashed: bool) -> Result<(), Stop> {
        let Geometry { first, groups, group_blocks, group_inodes } = geometry;
        if groups == 0 || group_inodes == 0 || !group_inodes.is_multiple_of(inode::EACH) {
            return Err(Fault::Invalid.into());
        }
        let (blocks, free) = txn.meta_space();
        txn.set_root(USED_BEFORE, blocks - free)?;
        txn.set_root(GROUPS, groups)?;
        txn.set_root(GROUP_BLOCKS, group_blocks)?;
        txn.set_root(GROUP_INODES, group_inodes)?;
        txn.set_root(FIRST, first.0)?;
        txn.set_root(HASHED, u64::from(hashed))?;
        let descriptors = group::format(txn, geometry)?;
        txn.set_root(DESCRIPTORS, descriptors.0)?;
        let layout = Traditional::of(geometry, descriptors, hashed);
        let root = layout.take_inode(txn, group::Wish::Beside(Ino::ROOT), true)?;
        debug_assert_eq!(root, Ino::ROOT, "the first inode is the root's");
        layout.new_directory(txn, root, root, &Record::directory(Timestamp::default()))
    }

    /// The layout of a store that [`Traditional::format`] was done to.
    ///
    /// # Errors
    /// `Invalid` if the store has no such layout.
    pub fn open(txn: &mut Txn<'_>) -> Result<Traditional, Stop> {
        let geometry = Geometry {
            first: MetaBlock(txn.root(FIRST)?),
            groups: txn.root(GROUPS)?,
            group_blocks: txn.root(GROUP_BLOCKS)?,
            group_inodes: txn.root(GROUP_INODES)?,
        };
        if geometry.groups == 0 {
            return Err(Fault::Invalid.into());
        }
        let hashed = txn.root(HASHED)? != 0;
        Ok(Traditional::of(geometry, MetaBlock(txn.root(DESCRIPTORS)?), hashed))
    }

    fn of(geometry: Geometry, descriptors: MetaBlock, hashed: bool) -> Traditional {
        let (indexes, ahead) = Default::default();
        Traditional { geometry, descriptors, hashed, indexes, ahead }
    }

    /// The inodes that have lost their last name and are not freed.
    ///
    /// # Errors
    /// `Corrupt` if the list has a cycle.
    pub fn orphans(&self, txn: &mut Txn<'_>) -> Result<Vec<Ino>, Stop> {
        let mut out = Vec::new();
        let mut next = Ino(txn.root(ORPHANS)?);
        while next != Ino::NONE {
            if out.contains(&next) {
                return Err(Fault::Corrupt.into());
            }
            out.push(next);
            next = self.live(txn, next)?.next_orphan;
        }
        Ok(out)
    }

    /// Writes the inode and the first block of an empty directory.
    fn new_directory(
        &self,
        txn: &mut Txn<'_>,
        ino: Ino,
        parent: Ino,
        record: &Record,
    ) -> Result<(), Stop> {
        let mut record = Record { kind: Some(FileKind::Directory), nlink: 2, ..*record };
        if self.hashed {
            record.flags |= FLAG_HASHED;
        }
        let (_, first) = self.append_block(txn, ino, &mut record)?;
        let data = txn.write(first)?;
        dirent::clear(data, mfs::block::HEADER);
        for (name, of) in [(&b"."[..], ino), (b"..", parent)] {
            dirent::insert(data, name, of, FileKind::Directory as u8)
                .map_err(|what| Stop::Corrupt(first, what))?;
        }
        self.store(txn, ino, &record)
    }
}

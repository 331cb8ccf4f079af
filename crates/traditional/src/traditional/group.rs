//! Groups: where inodes are taken from.
//!
//! Invariants:
//! - a group's bitmap and table lie beside each other, in the group if there was room;
//! - blocks `[0, initialised)` of a table have been written, the rest was never read; the bitmap
//!   exists if any block has;
//! - the counts of a descriptor equal the bitmap and the inodes.
//!
//! A descriptor has 32 bytes: address of the bitmap u64, free inodes u32, directories u32,
//! initialised blocks of the table u32, reserved.

use mfs::block::{HEADER, get_u32, get_u64, put_u32, put_u64};
use mfs::{BlockType, Stop, Txn};
use types::limits::BLOCK;
use types::{Fault, Ino, MetaBlock};

use super::inode::EACH;
use super::{Geometry, Traditional};

const BYTES: usize = 32;
/// Descriptors of a block.
const DESCRIPTORS: u64 = ((BLOCK - HEADER) / BYTES) as u64;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    pub bitmap: MetaBlock,
    pub free: u32,
    pub directories: u32,
    pub initialised: u32,
}

impl Descriptor {
    /// First block of the table.
    pub fn table(&self) -> MetaBlock {
        MetaBlock(self.bitmap.0 + 1)
    }
}

/// Where a new inode should lie.
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    /// In the group of this directory.
    Beside(Ino),
    /// Away from other directories; the number is that of the name's hash.
    Spread(u32),
    /// Near this directory, if its group is not crowded.
    Near(Ino),
}

/// Allocates and writes all groups; gives the first block of descriptors.
pub fn format(txn: &mut Txn<'_>, geometry: Geometry) -> Result<MetaBlock, Stop> {
    let Geometry { first, groups, group_blocks, group_inodes } = geometry;
    let count = groups.div_ceil(DESCRIPTORS);
    let descriptors = txn.alloc_meta(count as u32, Some(first))?;
    for n in 0..count {
        txn.init(MetaBlock(descriptors.0 + n), BlockType::Table)?;
    }
    let table = group_inodes / EACH;
    for group in 0..groups {
        let goal = MetaBlock(first.0 + group * group_blocks);
        let bitmap = txn.alloc_meta(1 + table as u32, Some(goal))?;
        let new = Descriptor { bitmap, free: group_inodes as u32, directories: 0, initialised: 0 };
        put(txn, descriptors, group, &new)?;
    }
    Ok(descriptors)
}

fn put(
    txn: &mut Txn<'_>,
    descriptors: MetaBlock,
    group: u64,
    new: &Descriptor,
) -> Result<(), Stop> {
    let block = MetaBlock(descriptors.0 + group / DESCRIPTORS);
    let data = txn.write_as(block, BlockType::Table)?;
    let at = HEADER + (group % DESCRIPTORS) as usize * BYTES;
    put_u64(data, at, new.bitmap.0);
    put_u32(data, at + 8, new.free);
    put_u32(data, at + 12, new.directories);
    put_u32(data, at + 16, new.initialised);
    Ok(())
}

impl Traditional {
    /// Group of an inode, and which of the group's inodes it is.
    pub(super) fn place(&self, ino: Ino) -> Option<(u64, u64)> {
        let index = ino.0.checked_sub(1)?;
        let group = index / self.geometry.group_inodes;
        (group < self.geometry.groups).then_some((group, index % self.geometry.group_inodes))
    }

    /// Blocks of all descriptors.
    pub(super) fn descriptor_blocks(&self) -> (MetaBlock, u32) {
        (self.descriptors, self.geometry.groups.div_ceil(DESCRIPTORS) as u32)
    }

    /// The descriptor of a group.
    pub(super) fn descriptor(&self, txn: &Txn<'_>, group: u64) -> Result<Descriptor, Stop> {
        let block = MetaBlock(self.descriptors.0 + group / DESCRIPTORS);
        if let Err(Stop::Miss(..)) = txn.read(block) {
            // ext3 reads all of them when it mounts.
            let (first, count) = self.descriptor_blocks();
            txn.require_cached(first, count)?;
        }
        let data = txn.read_as(block, BlockType::Table)?;
        let at = HEADER + (group % DESCRIPTORS) as usize * BYTES;
        Ok(Descriptor {
            bitmap: MetaBlock(get_u64(data, at)),
            free: get_u32(data, at + 8),
            directories: get_u32(data, at + 12),
            initialised: get_u32(data, at + 16),
        })
    }

    /// Allocates an inode and makes sure that its block can be written.
    pub(super) fn take_inode(
        &self,
        txn: &mut Txn<'_>,
        wish: Wish,
        directory: bool,
    ) -> Result<Ino, Stop> {
        let group = self.choose(txn, wish)?.ok_or(Stop::Fault(Fault::NoSpace))?;
        let mut descriptor = self.descriptor(txn, group)?;
        let bitmap = descriptor.bitmap;
        if descriptor.initialised == 0 {
            txn.init(bitmap, BlockType::Table)?;
        }
        let data = txn.write_as(bitmap, BlockType::Table)?;
        let bits = &mut data[HEADER..];
        let index = (0..self.geometry.group_inodes)
            .step_by(8)
            .find(|at| bits[(at / 8) as usize] != 0xff)
            .map(|at| at + u64::from(bits[(at / 8) as usize].trailing_ones()))
            .filter(|&index| index < self.geometry.group_inodes)
            .ok_or(Stop::Corrupt(bitmap, "a group has fewer free inodes than counted"))?;
        bits[(index / 8) as usize] |= 1 << (index % 8);
        let block = index / EACH;
        while u64::from(descriptor.initialised) <= block {
            let at = MetaBlock(descriptor.table().0 + u64::from(descriptor.initialised));
            txn.init(at, BlockType::Table)?;
            descriptor.initialised += 1;
        }
        descriptor.free -= 1;
        descriptor.directories += u32::from(directory);
        put(txn, self.descriptors, group, &descriptor)?;
        Ok(Ino(group * self.geometry.group_inodes + index + 1))
    }

    /// Gives an inode back; its record has been emptied.
    pub(super) fn give_inode(
        &self,
        txn: &mut Txn<'_>,
        ino: Ino,
        directory: bool,
    ) -> Result<(), Stop> {
        let (group, index) = self.place(ino).ok_or(Stop::Fault(Fault::Stale))?;
        let mut descriptor = self.descriptor(txn, group)?;
        let data = txn.write_as(descriptor.bitmap, BlockType::Table)?;
        let (byte, bit) = (HEADER + (index / 8) as usize, 1 << (index % 8));
        if data[byte] & bit == 0 {
            return Err(Stop::Corrupt(descriptor.bitmap, "an inode was freed twice"));
        }
        data[byte] &= !bit;
        descriptor.free += 1;
        descriptor.directories -= u32::from(directory);
        put(txn, self.descriptors, group, &descriptor)
    }

    /// Is the inode's bit set?
    pub(super) fn is_taken(&self, txn: &Txn<'_>, ino: Ino) -> Result<bool, Stop> {
        let Some((group, index)) = self.place(ino) else { return Ok(false) };
        let descriptor = self.descriptor(txn, group)?;
        if descriptor.initialised == 0 {
            return Ok(false);
        }
        let data = txn.read_as(descriptor.bitmap, BlockType::Table)?;
        Ok(data[HEADER + (index / 8) as usize] & 1 << (index % 8) != 0)
    }

    fn choose(&self, txn: &Txn<'_>, wish: Wish) -> Result<Option<u64>, Stop> {
        let group_of = |ino| self.place(ino).map_or(0, |(group, _)| group);
        match wish {
            Wish::Beside(dir) => self.beside(txn, dir, group_of(dir)),
            Wish::Spread(hash) => self.spread(txn, u64::from(hash) % self.geometry.groups),
            Wish::Near(dir) => self.near(txn, group_of(dir)),
        }
    }

    /// ext3's `find_group_other`: the parent's group, then by a quadratic hash, then any.
    fn beside(&self, txn: &Txn<'_>, dir: Ino, home: u64) -> Result<Option<u64>, Stop> {
        let groups = self.geometry.groups;
        if self.descriptor(txn, home)?.free > 0 {
            return Ok(Some(home));
        }
        let mut group = (home + dir.0) % groups;
        let mut step = 1;
        while step < groups {
            group = (group + step) % groups;
            if self.descriptor(txn, group)?.free > 0 {
                return Ok(Some(group));
            }
            step <<= 1;
        }
        self.first_of(txn, home, |descriptor| descriptor.free > 0)
    }

    /// Orlov's rule for directories of the root: the group with the fewest directories among those
    /// with more free inodes than the average, searched from `start`.
    fn spread(&self, txn: &Txn<'_>, start: u64) -> Result<Option<u64>, Stop> {
        let average = self.average_free(txn)?;
        let mut best: Option<(u32, u64)> = None;
        for step in 0..self.geometry.groups {
            let group = (start + step) % self.geometry.groups;
            let descriptor = self.descriptor(txn, group)?;
            let good = descriptor.free > 0 && u64::from(descriptor.free) >= average;
            if good && best.is_none_or(|(directories, _)| descriptor.directories < directories) {
                best = Some((descriptor.directories, group));
            }
        }
        match best {
            Some((_, group)) => Ok(Some(group)),
            None => self.first_of(txn, start, |descriptor| descriptor.free > 0),
        }
    }

    /// Orlov's rule for other directories: the first group from the parent's on that is not
    /// crowded.
    fn near(&self, txn: &Txn<'_>, home: u64) -> Result<Option<u64>, Stop> {
        let (groups, inodes) = (self.geometry.groups, self.geometry.group_inodes);
        let mut directories = 0;
        for group in 0..groups {
            directories += u64::from(self.descriptor(txn, group)?.directories);
        }
        let average = self.average_free(txn)?;
        let most = directories / groups + inodes / 16;
        let least = average.saturating_sub(inodes / 4).max(1);
        let good = |descriptor: &Descriptor| {
            u64::from(descriptor.directories) < most && u64::from(descriptor.free) >= least
        };
        match self.first_of(txn, home, good)? {
            Some(group) => Ok(Some(group)),
            None => self.first_of(txn, home, |descriptor| descriptor.free > 0),
        }
    }

    fn average_free(&self, txn: &Txn<'_>) -> Result<u64, Stop> {
        let mut free = 0;
        for group in 0..self.geometry.groups {
            free += u64::from(self.descriptor(txn, group)?.free);
        }
        Ok(free / self.geometry.groups)
    }

    fn first_of(
        &self,
        txn: &Txn<'_>,
        from: u64,
        good: impl Fn(&Descriptor) -> bool,
    ) -> Result<Option<u64>, Stop> {
        for step in 0..self.geometry.groups {
            let group = (from + step) % self.geometry.groups;
            if good(&self.descriptor(txn, group)?) {
                return Ok(Some(group));
            }
        }
        Ok(None)
    }
}

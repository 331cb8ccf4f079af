//! The blocks of a directory: 12 pointers in the inode, a block of pointers, a block of such.
//!
//! Invariants: a directory has no holes; its size is the number of its blocks times the block size;
//! `blocks` counts blocks of pointers, too.

use mfs::block::{HEADER, get_u64, put_u64};
use mfs::{BlockType, Stop, Txn};
use types::limits::{BLOCK, BLOCK_U64};
use types::{Fault, Ino, MetaBlock};

use super::Traditional;
use super::inode::{EACH, Record};

/// Pointers in the inode to blocks of the directory.
const DIRECT: u64 = 12;
/// Pointers of a block.
const EACH_BLOCK: u64 = ((BLOCK - HEADER) / 8) as u64;

/// Where the pointer to block `index` is.
enum Way {
    /// In the inode.
    Direct(usize),
    /// In the indirect block.
    Once(usize),
    /// In a block of the doubly indirect one.
    Twice(usize, usize),
}

fn way(index: u64) -> Result<Way, Stop> {
    if index < DIRECT {
        return Ok(Way::Direct(index as usize));
    }
    let rest = index - DIRECT;
    if rest < EACH_BLOCK {
        return Ok(Way::Once(rest as usize));
    }
    let rest = rest - EACH_BLOCK;
    match rest < EACH_BLOCK * EACH_BLOCK {
        true => Ok(Way::Twice((rest / EACH_BLOCK) as usize, (rest % EACH_BLOCK) as usize)),
        false => Err(Fault::NoSpace.into()),
    }
}

fn pointer(txn: &Txn<'_>, block: MetaBlock, at: usize) -> Result<MetaBlock, Stop> {
    Ok(MetaBlock(get_u64(txn.read_as(block, BlockType::Table)?, HEADER + 8 * at)))
}

fn point(txn: &mut Txn<'_>, block: MetaBlock, at: usize, to: MetaBlock) -> Result<(), Stop> {
    put_u64(txn.write_as(block, BlockType::Table)?, HEADER + 8 * at, to.0);
    Ok(())
}

impl Record {
    /// Blocks of the directory.
    pub fn count(&self) -> u64 {
        self.size / BLOCK_U64
    }
}

impl Traditional {
    /// Block `index` of a directory.
    pub(super) fn block_at(
        &self,
        txn: &Txn<'_>,
        record: &Record,
        index: u64,
    ) -> Result<MetaBlock, Stop> {
        if index >= record.count() {
            return Err(Fault::Corrupt.into());
        }
        let [once, twice] = [MetaBlock(record.pointers[12]), MetaBlock(record.pointers[13])];
        match way(index)? {
            Way::Direct(at) => Ok(MetaBlock(record.pointers[at])),
            Way::Once(at) => pointer(txn, once, at),
            Way::Twice(outer, inner) => {
                let block = pointer(txn, twice, outer)?;
                pointer(txn, block, inner)
            }
        }
    }

    /// Makes sure that block `index` is cached, reading it with those of the next `ahead` − 1 that
    /// lie behind it.
    pub(super) fn want_blocks(
        &self,
        txn: &Txn<'_>,
        record: &Record,
        index: u64,
        ahead: u64,
    ) -> Result<MetaBlock, Stop> {
        let first = self.block_at(txn, record, index)?;
        if let Err(Stop::Miss(..)) = txn.read(first) {
            let end = (index + ahead).min(record.count());
            let mut count = 1;
            while index + count < end
                && self.block_at(txn, record, index + count)?.0 == first.0 + count
            {
                count += 1;
            }
            txn.require_cached(first, count as u32)?;
        }
        Ok(first)
    }

    /// A new block at the directory's end, without content; the record is the caller's to write.
    pub(super) fn append_block(
        &self,
        txn: &mut Txn<'_>,
        ino: Ino,
        record: &mut Record,
    ) -> Result<(u64, MetaBlock), Stop> {
        let index = record.count();
        let mut goal = match index.checked_sub(1) {
            Some(last) => MetaBlock(self.block_at(txn, record, last)?.0 + 1),
            None => self.first_goal(txn, ino)?,
        };
        match way(index)? {
            Way::Direct(at) => {
                let block = self.new_block(txn, record, &mut goal)?;
                record.pointers[at] = block.0;
            }
            Way::Once(at) => {
                if record.pointers[12] == 0 {
                    record.pointers[12] = self.new_block(txn, record, &mut goal)?.0;
                }
                let block = self.new_block(txn, record, &mut goal)?;
                point(txn, MetaBlock(record.pointers[12]), at, block)?;
            }
            Way::Twice(outer, inner) => {
                if record.pointers[13] == 0 {
                    record.pointers[13] = self.new_block(txn, record, &mut goal)?.0;
                }
                let twice = MetaBlock(record.pointers[13]);
                if pointer(txn, twice, outer)?.0 == 0 {
                    let once = self.new_block(txn, record, &mut goal)?;
                    point(txn, twice, outer, once)?;
                }
                let once = pointer(txn, twice, outer)?;
                let block = self.new_block(txn, record, &mut goal)?;
                point(txn, once, inner, block)?;
            }
        }
        record.size += BLOCK_U64;
        Ok((index, self.block_at(txn, record, index)?))
    }

    fn new_block(
        &self,
        txn: &mut Txn<'_>,
        record: &mut Record,
        goal: &mut MetaBlock,
    ) -> Result<MetaBlock, Stop> {
        let block = txn.alloc_meta(1, Some(*goal))?;
        txn.init(block, BlockType::Table)?;
        *goal = MetaBlock(block.0 + 1);
        record.blocks += 1;
        Ok(block)
    }

    /// Behind the inodes of the directory's group.
    fn first_goal(&self, txn: &Txn<'_>, ino: Ino) -> Result<MetaBlock, Stop> {
        let group = self.place(ino).map_or(0, |(group, _)| group);
        let table = self.descriptor(txn, group)?.table();
        Ok(MetaBlock(table.0 + self.geometry.group_inodes / EACH))
    }

    /// Frees at most `most` blocks at the directory's end; the record is the caller's to write.
    pub(super) fn cut_blocks(
        &self,
        txn: &mut Txn<'_>,
        record: &mut Record,
        most: u64,
    ) -> Result<(), Stop> {
        for _ in 0..most.min(record.count()) {
            let last = record.count() - 1;
            let block = self.block_at(txn, record, last)?;
            self.free_block(txn, record, block)?;
            match way(last)? {
                Way::Direct(at) => record.pointers[at] = 0,
                Way::Once(0) => {
                    let once = std::mem::take(&mut record.pointers[12]);
                    self.free_block(txn, record, MetaBlock(once))?;
                }
                Way::Twice(outer, 0) => {
                    let once = pointer(txn, MetaBlock(record.pointers[13]), outer)?;
                    self.free_block(txn, record, once)?;
                    point(txn, MetaBlock(record.pointers[13]), outer, MetaBlock(0))?;
                    if outer == 0 {
                        let twice = std::mem::take(&mut record.pointers[13]);
                        self.free_block(txn, record, MetaBlock(twice))?;
                    }
                }
                Way::Once(_) | Way::Twice(..) => {}
            }
            record.size -= BLOCK_U64;
        }
        Ok(())
    }

    fn free_block(
        &self,
        txn: &mut Txn<'_>,
        record: &mut Record,
        block: MetaBlock,
    ) -> Result<(), Stop> {
        record.blocks -= 1;
        txn.free_meta(block, 1)
    }

    /// Blocks of pointers of a directory.
    pub(super) fn pointer_blocks(
        &self,
        txn: &Txn<'_>,
        record: &Record,
    ) -> Result<Vec<MetaBlock>, Stop> {
        let mut out: Vec<MetaBlock> =
            record.pointers[12..].iter().filter(|&&p| p != 0).map(|&p| MetaBlock(p)).collect();
        if record.pointers[13] != 0 {
            for at in 0..EACH_BLOCK as usize {
                let once = pointer(txn, MetaBlock(record.pointers[13]), at)?;
                out.extend((once.0 != 0).then_some(once));
            }
        }
        Ok(out)
    }
}

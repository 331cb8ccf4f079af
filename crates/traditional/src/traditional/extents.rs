//! What a file maps: up to four extents in the inode, as in ext4, more in one block beside it.
//!
//! Invariants:
//! - extents are sorted, do not overlap, and neighbours that continue each other are joined;
//! - the inode's pointers hold either all of them, or none but the block's address (the 13th) and
//!   how many the block has (the 14th).
//!
//! An extent has 24 bytes: first block of the file, length, and ⟨PAG 16, address 48⟩, 8 bytes each.
//! Blocks past 168 extents are not made: nothing that is measured has so many.

use mfs::block::{HEADER, get_u64, put_u64};
use mfs::{BlockType, Stop, Txn};
use types::limits::BLOCK;
use types::{ClientId, Fault, FileBlock, Ino, MetaBlock, PagBlock, PagId, Segment, SegmentState};

use super::Traditional;
use super::inode::Record;

/// Extents of an inode.
const INLINE: usize = 4;
/// Words of an extent.
const WORDS: usize = 3;
/// Pointers that lead to the block of extents and count them.
const BLOCK_AT: usize = INLINE * WORDS;
const COUNT_AT: usize = BLOCK_AT + 1;
/// Extents of a block.
const EACH: usize = (BLOCK - HEADER) / (8 * WORDS);
/// Bits of an address.
const ADDR_BITS: u32 = 48;

fn words(extent: &Segment) -> [u64; WORDS] {
    [extent.file.0, extent.len, u64::from(extent.pag.0) << ADDR_BITS | extent.addr.0]
}

/// `None` where there is no extent.
fn extent([file, len, place]: [u64; WORDS]) -> Option<Segment> {
    let (pag, addr) = ((place >> ADDR_BITS) as u16, place & ((1 << ADDR_BITS) - 1));
    let (file, pag, addr) = (FileBlock(file), PagId(pag), PagBlock(addr));
    (len > 0).then_some(Segment { file, len, pag, addr, state: SegmentState::Written })
}

impl Record {
    fn extent_block(&self) -> Option<MetaBlock> {
        (self.pointers[BLOCK_AT] != 0).then_some(MetaBlock(self.pointers[BLOCK_AT]))
    }

    fn put_inline(&mut self, extents: &[Segment]) {
        self.pointers[..BLOCK_AT].fill(0);
        for (n, extent) in extents.iter().enumerate() {
            self.pointers[n * WORDS..][..WORDS].copy_from_slice(&words(extent));
        }
    }
}

impl Traditional {
    /// What a file maps.
    pub(super) fn file_extents(
        &self,
        txn: &Txn<'_>,
        record: &Record,
    ) -> Result<Vec<Segment>, Stop> {
        let Some(block) = record.extent_block() else {
            let all = record.pointers[..BLOCK_AT].chunks_exact(WORDS);
            return Ok(all.map_while(|at| extent([at[0], at[1], at[2]])).collect());
        };
        let data = txn.read_as(block, BlockType::Table)?;
        let word = |n: usize| get_u64(data, HEADER + 8 * n);
        let count = (record.pointers[COUNT_AT] as usize).min(EACH);
        let all = (0..count).map(|n| n * WORDS);
        Ok(all.map_while(|at| extent([word(at), word(at + 1), word(at + 2)])).collect())
    }

    /// Maps an extent of a client's pool behind what the file maps.
    pub(super) fn append_extent(
        &self,
        txn: &mut Txn<'_>,
        ino: Ino,
        record: &mut Record,
        client: ClientId,
        new: Segment,
    ) -> Result<(), Stop> {
        let mut extents = self.file_extents(txn, record)?;
        if new.len == 0 || extents.last().is_some_and(|last| last.end() > new.file.0) {
            return Err(Fault::Invalid.into());
        }
        txn.space().pool_take(client, new.pag, new.addr.0, new.len)?;
        match extents.last_mut().filter(|last| last.joins(&new)) {
            Some(last) => last.len += new.len,
            None => extents.push(new),
        }
        record.blocks += new.len;
        if extents.len() <= INLINE && record.extent_block().is_none() {
            record.put_inline(&extents);
            return Ok(());
        }
        self.put_outside(txn, ino, record, &extents)
    }

    fn put_outside(
        &self,
        txn: &mut Txn<'_>,
        ino: Ino,
        record: &mut Record,
        extents: &[Segment],
    ) -> Result<(), Stop> {
        if extents.len() > EACH {
            return Err(Fault::NoSpace.into());
        }
        let block = match record.extent_block() {
            Some(block) => block,
            None => {
                let (group, _) = self.place(ino).ok_or(Stop::Fault(Fault::Stale))?;
                let goal = MetaBlock(self.geometry.first.0 + group * self.geometry.group_blocks);
                let block = txn.alloc_meta(1, Some(goal))?;
                txn.init(block, BlockType::Table)?;
                record.put_inline(&[]);
                record.pointers[BLOCK_AT] = block.0;
                block
            }
        };
        record.pointers[COUNT_AT] = extents.len() as u64;
        let data = txn.write_as(block, BlockType::Table)?;
        for (n, word) in extents.iter().flat_map(words).enumerate() {
            put_u64(data, HEADER + 8 * n, word);
        }
        Ok(())
    }

    /// Gives back what a file maps, and its block of extents. The record is not written.
    pub(super) fn free_extents(
        &self,
        txn: &mut Txn<'_>,
        ino: Ino,
        record: &Record,
    ) -> Result<(), Stop> {
        let extents = self.file_extents(txn, record)?;
        txn.space().free_later(ino, &extents)?;
        match record.extent_block() {
            Some(block) => txn.free_meta(block, 1),
            None => Ok(()),
        }
    }

    /// The block of extents of a file, if it has one.
    pub(super) fn own_extent_block(record: &Record) -> Option<MetaBlock> {
        record.extent_block()
    }
}

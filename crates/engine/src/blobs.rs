//! Reads, writes and frees chains of blob blocks.
//!
//! Invariant: a block that names another owner or kind than the one that led to it is not read,
//! written or freed.

use types::{Fault, MetaBlock};

use crate::error::{OwnerMismatch, Stop};
use crate::format::blob::{
    BlobOwner, CAPACITY, DATA, LEN, NEXT, TOTAL, block_owner, put_block_owner,
};
use crate::format::block::{Block, BlockType, get_u32, get_u64, put_u32, put_u64};
use crate::txn::Txn;

/// The part of a blob in one block.
pub struct BlobPiece {
    /// Bytes.
    pub bytes: Vec<u8>,
    /// The next block, 0 if there is none.
    pub next: MetaBlock,
}

impl Txn<'_> {
    /// The bytes of a blob of at most `max` bytes.
    pub fn read_blob(
        &self,
        first: MetaBlock,
        max: usize,
        owner: BlobOwner,
    ) -> Result<Vec<u8>, Stop> {
        let damaged = Stop::Corrupt(first, "a blob is invalid");
        let total = get_u32(self.blob_block(first, owner, 0)?, TOTAL) as usize;
        if total > max {
            return Err(damaged);
        }
        let mut out = Vec::with_capacity(total);
        let (mut at, mut index) = (first, 0);
        while at.0 != 0 {
            let BlobPiece { bytes, next } = self.blob_piece(at, owner, index)?;
            if out.len() + bytes.len() > total {
                return Err(damaged);
            }
            out.extend_from_slice(&bytes);
            (at, index) = (next, index + 1);
        }
        if out.len() == total { Ok(out) } else { Err(damaged) }
    }

    /// The part of a blob in the block `at`, which must be block `index` of it.
    pub fn blob_piece(
        &self,
        at: MetaBlock,
        owner: BlobOwner,
        index: u32,
    ) -> Result<BlobPiece, Stop> {
        let block = self.blob_block(at, owner, index)?;
        let len = get_u32(block, LEN) as usize;
        if len > CAPACITY || len == 0 {
            return Err(Stop::Corrupt(at, "a blob is invalid"));
        }
        let bytes = block[DATA..DATA + len].to_vec();
        Ok(BlobPiece { bytes, next: MetaBlock(get_u64(block, NEXT)) })
    }

    /// The block `at`, which must be block `index` of a blob.
    fn blob_block(&self, at: MetaBlock, owner: BlobOwner, index: u32) -> Result<&Block, Stop> {
        let block = self.read_as(at, BlockType::Blob)?;
        let (found, place) = block_owner(block).map_err(|what| Stop::Corrupt(at, what))?;
        if found != owner {
            return Err(Stop::OwnerMismatch(at, OwnerMismatch { expected: owner, found }));
        }
        if place != index {
            return Err(Stop::Corrupt(at, "a block of a blob has the index of another one"));
        }
        Ok(block)
    }

    /// Blocks of a blob, in order.
    pub fn blob_blocks(&self, first: MetaBlock, owner: BlobOwner) -> Result<Vec<MetaBlock>, Stop> {
        let block = self.blob_block(first, owner, 0)?;
        let total = get_u32(block, TOTAL) as usize;
        let mut out = vec![first];
        let mut at = MetaBlock(get_u64(block, NEXT));
        while at.0 != 0 {
            if out.len() >= total.div_ceil(CAPACITY) {
                return Err(Stop::Corrupt(at, "a blob's chain is too long"));
            }
            let block = self.blob_block(at, owner, out.len() as u32)?;
            out.push(at);
            at = MetaBlock(get_u64(block, NEXT));
        }
        Ok(out)
    }

    /// Writes `bytes` (not empty) as a blob, over the blocks of the blob `old` if there is one.
    /// Returns its first block, which for an old blob stays the same.
    pub fn write_blob(
        &mut self,
        old: Option<MetaBlock>,
        bytes: &[u8],
        owner: BlobOwner,
        near: MetaBlock,
    ) -> Result<MetaBlock, Stop> {
        let wanted = bytes.len().div_ceil(CAPACITY);
        if wanted == 0 {
            return Err(Stop::Fault(Fault::Invalid));
        }
        let mut blocks = match old {
            Some(first) => self.blob_blocks(first, owner)?,
            None => Vec::new(),
        };
        for extra in blocks.drain(wanted.min(blocks.len())..).collect::<Vec<_>>() {
            self.free_meta(extra, 1)?;
        }
        while blocks.len() < wanted {
            let goal = blocks.last().map_or(near, |last| MetaBlock(last.0 + 1));
            let block = self.alloc_meta(1, Some(goal))?;
            self.init(block, BlockType::Blob)?;
            blocks.push(block);
        }
        for (n, piece) in bytes.chunks(CAPACITY).enumerate() {
            let next = blocks.get(n + 1).map_or(0, |block| block.0);
            let block = self.write_as(blocks[n], BlockType::Blob)?;
            put_u64(block, NEXT, next);
            put_u32(block, TOTAL, if n == 0 { bytes.len() as u32 } else { 0 });
            put_u32(block, LEN, piece.len() as u32);
            put_block_owner(block, owner, n as u32);
            block[DATA..DATA + piece.len()].copy_from_slice(piece);
        }
        Ok(blocks[0])
    }

    /// Frees a blob.
    pub fn free_blob(&mut self, first: MetaBlock, owner: BlobOwner) -> Result<(), Stop> {
        for block in self.blob_blocks(first, owner)? {
            self.free_meta(block, 1)?;
        }
        Ok(())
    }
}

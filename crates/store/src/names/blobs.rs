//! Reading, writing and freeing chains of blob blocks.

use types::{Fault, MetaBlock};

use crate::block::{BlockType, get_u32, get_u64, put_u32, put_u64};
use crate::error::Stop;
use crate::format::blob::{CAPACITY, DATA, LEN, NEXT, TOTAL};
use crate::txn::Txn;

impl Txn<'_> {
    /// The bytes of a blob, which are at most `max`.
    pub(crate) fn read_blob(&self, first: MetaBlock, max: usize) -> Result<Vec<u8>, Stop> {
        let damaged = Stop::Corrupt(first, "a blob makes no sense");
        let total = get_u32(self.read_as(first, BlockType::Blob)?, TOTAL) as usize;
        if total > max {
            return Err(damaged);
        }
        let mut out = Vec::with_capacity(total);
        let mut at = first;
        while at.0 != 0 {
            let (bytes, next) = self.blob_block(at)?;
            if out.len() + bytes.len() > total {
                return Err(damaged);
            }
            out.extend_from_slice(&bytes);
            at = next;
        }
        if out.len() == total { Ok(out) } else { Err(damaged) }
    }

    /// The bytes in one block of a blob, and the next one of it, 0 if there is none.
    pub(crate) fn blob_block(&self, at: MetaBlock) -> Result<(Vec<u8>, MetaBlock), Stop> {
        let block = self.read_as(at, BlockType::Blob)?;
        let len = get_u32(block, LEN) as usize;
        if len > CAPACITY || len == 0 {
            return Err(Stop::Corrupt(at, "a blob makes no sense"));
        }
        Ok((block[DATA..DATA + len].to_vec(), MetaBlock(get_u64(block, NEXT))))
    }

    /// Blocks of a blob, in order.
    pub(crate) fn blob_blocks(&self, first: MetaBlock) -> Result<Vec<MetaBlock>, Stop> {
        let total = get_u32(self.read_as(first, BlockType::Blob)?, TOTAL) as usize;
        let mut out = vec![first];
        let mut at = MetaBlock(get_u64(self.read_as(first, BlockType::Blob)?, NEXT));
        while at.0 != 0 {
            if out.len() >= total.div_ceil(CAPACITY) {
                return Err(Stop::Corrupt(at, "a blob's chain is too long"));
            }
            out.push(at);
            at = MetaBlock(get_u64(self.read_as(at, BlockType::Blob)?, NEXT));
        }
        Ok(out)
    }

    /// Writes `bytes` (not empty) as a blob, over the blocks of the blob `old` if
    /// there is one; gives its first block, which for an old blob stays.
    pub(crate) fn write_blob(
        &mut self,
        old: Option<MetaBlock>,
        bytes: &[u8],
        near: MetaBlock,
    ) -> Result<MetaBlock, Stop> {
        let wanted = bytes.len().div_ceil(CAPACITY);
        if wanted == 0 {
            return Err(Stop::Fault(Fault::Invalid));
        }
        let mut blocks = match old {
            Some(first) => self.blob_blocks(first)?,
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
            block[DATA..DATA + piece.len()].copy_from_slice(piece);
        }
        Ok(blocks[0])
    }

    /// Frees a blob.
    pub(crate) fn free_blob(&mut self, first: MetaBlock) -> Result<(), Stop> {
        for block in self.blob_blocks(first)? {
            self.free_meta(block, 1)?;
        }
        Ok(())
    }
}

//! Reading, writing and freeing chains of blob blocks.
//!
//! Invariants: on a file system whose blobs say whose they are, a block that says another owner, or
//! that it is something else of its owner, is not read, written or freed for whoever was led to it.

use types::{Fault, MetaBlock};

use crate::block::{Block, BlockType, get_u32, get_u64, put_u32, put_u64};
use crate::error::{OwnerMismatch, Stop};
use crate::format::blob::{Form, LEN, NEXT, TOTAL, Whose, owner, put_owner};
use crate::txn::{Txn, wrong_type};

/// What one block of a blob has.
pub(crate) struct Piece {
    /// Bytes.
    pub(crate) bytes: Vec<u8>,
    /// The next block, 0 if there is none.
    pub(crate) next: MetaBlock,
}

impl Txn<'_> {
    /// The bytes of a blob, which are at most `max`.
    pub(crate) fn read_blob(
        &self,
        first: MetaBlock,
        max: usize,
        whose: Whose,
    ) -> Result<Vec<u8>, Stop> {
        let damaged = Stop::Corrupt(first, "a blob makes no sense");
        let total = get_u32(self.blob_block(first, whose, 0)?.0, TOTAL) as usize;
        if total > max {
            return Err(damaged);
        }
        let mut out = Vec::with_capacity(total);
        let (mut at, mut index) = (first, 0);
        while at.0 != 0 {
            let Piece { bytes, next } = self.blob_piece(at, whose, index)?;
            if out.len() + bytes.len() > total {
                return Err(damaged);
            }
            out.extend_from_slice(&bytes);
            (at, index) = (next, index + 1);
        }
        if out.len() == total { Ok(out) } else { Err(damaged) }
    }

    /// What the block `at`, which is to be that of this index, has of a blob.
    pub(crate) fn blob_piece(
        &self,
        at: MetaBlock,
        whose: Whose,
        index: u32,
    ) -> Result<Piece, Stop> {
        let (block, form) = self.blob_block(at, whose, index)?;
        let len = get_u32(block, LEN) as usize;
        if len > form.capacity() || len == 0 {
            return Err(Stop::Corrupt(at, "a blob makes no sense"));
        }
        let bytes = block[form.data()..form.data() + len].to_vec();
        Ok(Piece { bytes, next: MetaBlock(get_u64(block, NEXT)) })
    }

    /// The block `at`, which is to be that of this index of a blob.
    fn blob_block(&self, at: MetaBlock, whose: Whose, index: u32) -> Result<(&Block, Form), Stop> {
        let block = self.read(at)?;
        let form = Form::of(block).ok_or(Stop::Corrupt(at, wrong_type(BlockType::Blob)))?;
        match form {
            Form::Silent if self.blobs() == Form::Owned => {
                return Err(Stop::Corrupt(at, "a blob that does not say whose it is"));
            }
            Form::Silent => {}
            Form::Owned => {
                let (found, place) = owner(block).map_err(|what| Stop::Corrupt(at, what))?;
                if found != whose {
                    return Err(Stop::OwnerMismatch(at, OwnerMismatch { expected: whose, found }));
                }
                if place != index {
                    return Err(Stop::Corrupt(at, "a block of a blob is not in its place"));
                }
            }
        }
        Ok((block, form))
    }

    /// Blocks of a blob, in order.
    pub(crate) fn blob_blocks(
        &self,
        first: MetaBlock,
        whose: Whose,
    ) -> Result<Vec<MetaBlock>, Stop> {
        let (block, form) = self.blob_block(first, whose, 0)?;
        let total = get_u32(block, TOTAL) as usize;
        let mut out = vec![first];
        let mut at = MetaBlock(get_u64(block, NEXT));
        while at.0 != 0 {
            if out.len() >= total.div_ceil(form.capacity()) {
                return Err(Stop::Corrupt(at, "a blob's chain is too long"));
            }
            let (block, _) = self.blob_block(at, whose, out.len() as u32)?;
            out.push(at);
            at = MetaBlock(get_u64(block, NEXT));
        }
        Ok(out)
    }

    /// Writes `bytes` (not empty) as a blob, over the blocks of the blob `old` if
    /// there is one; gives its first block, which for an old blob stays.
    pub(crate) fn write_blob(
        &mut self,
        old: Option<MetaBlock>,
        bytes: &[u8],
        whose: Whose,
        near: MetaBlock,
    ) -> Result<MetaBlock, Stop> {
        let form = self.blobs();
        let wanted = bytes.len().div_ceil(form.capacity());
        if wanted == 0 {
            return Err(Stop::Fault(Fault::Invalid));
        }
        let mut blocks = match old {
            Some(first) => self.blob_blocks(first, whose)?,
            None => Vec::new(),
        };
        for extra in blocks.drain(wanted.min(blocks.len())..).collect::<Vec<_>>() {
            self.free_meta(extra, 1)?;
        }
        while blocks.len() < wanted {
            let goal = blocks.last().map_or(near, |last| MetaBlock(last.0 + 1));
            let block = self.alloc_meta(1, Some(goal))?;
            self.init(block, form.kind())?;
            blocks.push(block);
        }
        for (n, piece) in bytes.chunks(form.capacity()).enumerate() {
            let next = blocks.get(n + 1).map_or(0, |block| block.0);
            let block = self.write_as(blocks[n], form.kind())?;
            put_u64(block, NEXT, next);
            put_u32(block, TOTAL, if n == 0 { bytes.len() as u32 } else { 0 });
            put_u32(block, LEN, piece.len() as u32);
            if form == Form::Owned {
                put_owner(block, whose, n as u32);
            }
            block[form.data()..form.data() + piece.len()].copy_from_slice(piece);
        }
        Ok(blocks[0])
    }

    /// Frees a blob.
    pub(crate) fn free_blob(&mut self, first: MetaBlock, whose: Whose) -> Result<(), Stop> {
        for block in self.blob_blocks(first, whose)? {
            self.free_meta(block, 1)?;
        }
        Ok(())
    }
}

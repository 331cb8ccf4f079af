//! Blobs: their owners, and the search for one that an inode or a client is missing.
//!
//! Invariants:
//! - a blob belongs to the owner that it records only, whatever leads to it;
//! - an owner whose blob is missing gets one that records it as owner, if that is whole, allocated,
//!   and nothing leads to it: of several, the one changed last. A blob that no owner is missing is
//!   not reattached: its owner may have released it;
//! - the check searches for none while a part of the bitmap is lost: a blob released long ago looks
//!   the same then.

use std::collections::BTreeMap;

use types::{ClientId, Ino, Lsn, MetaBlock};

use super::plan::{Fix, PlanPosition, SlotAt};
use super::{Check, ProblemKind, Subject};
use crate::format::xattr::BLOB_MAX;
use crate::trees::{BITMAP_LOST, UNFINISHED};
use crate::txn::Txn;
use engine::alloc::metaspace::BITS;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::blob::{BlobKind, BlobOwner, block_owner};
use engine::format::block::{BlockType, lsn_of, type_of};

/// What the check finds at a reference to a blob.
pub(super) enum Blob {
    /// These bytes, in blocks that only the blob has.
    Whole(Vec<u8>),
    /// These bytes, in blocks that something else has, too.
    Shared(Vec<u8>),
    /// Nothing that can be read.
    Damaged,
    /// A blob that records another owner.
    Foreign,
}

/// A missing blob: where it belongs, and the fix if it is not found.
#[derive(Clone, Copy)]
pub(super) struct MissingBlob {
    /// The slot of the inode; `None` for a client.
    at: Option<SlotAt>,
    instead: PlanPosition,
}

impl Check {
    /// Reads the blob that begins at `first`, and claims its blocks if they belong to `whose`.
    pub(super) async fn blob(&mut self, first: u64, whose: BlobOwner) -> Result<Blob, StoreError> {
        let first = MetaBlock(first);
        let what = whose.kind().text();
        if first.0 == 0 || first.0 >= self.blocks.blocks {
            self.found(ProblemKind::OutsideMetaBlock, Subject::Block(first), what);
            return Ok(Blob::Damaged);
        }
        let read = |txn: &mut Txn<'_>| match whole(txn, first, whose) {
            Err(Stop::OwnerMismatch(block, mismatch)) => Ok(Err((block, mismatch))),
            read => read.map(Ok),
        };
        let (blocks, bytes) = match self.read(read).await? {
            None => return Ok(Blob::Damaged),
            Some(Err((block, mismatch))) => {
                let detail = format!("metadata block {block}: {mismatch}");
                self.found(ProblemKind::WrongBlob, subject(whose), detail);
                self.plan.add(Fix::FromLog(block));
                return Ok(Blob::Foreign);
            }
            Some(Ok(read)) => read,
        };
        let mut alone = true;
        for block in blocks {
            alone &= self.claim(block, 1, what);
        }
        Ok(if alone { Blob::Whole(bytes) } else { Blob::Shared(bytes) })
    }

    /// Reads a blob of the inode in a slot. If it cannot be read, that is a finding of this kind,
    /// unless the blob records another owner; and `lost` is planned.
    pub(super) async fn inode_blob(
        &mut self,
        (at, first): (SlotAt, u64),
        whose: BlobOwner,
        (kind, detail): (ProblemKind, &str),
        lost: Fix,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match self.blob(first, whose).await? {
            Blob::Whole(bytes) => return Ok(Some(bytes)),
            Blob::Shared(bytes) => {
                self.plan.add(Fix::CopyBlob(at, whose.kind()));
                return Ok(Some(bytes));
            }
            Blob::Damaged => self.found(kind, subject(whose), detail),
            Blob::Foreign => {}
        }
        self.note_missing_blob(whose, Some(at), lost);
        Ok(None)
    }

    /// Plans a fix for a blob that could not be read; finding the blob elsewhere replaces it.
    pub(super) fn note_missing_blob(&mut self, whose: BlobOwner, at: Option<SlotAt>, instead: Fix) {
        if let Some(instead) = self.plan.put(instead) {
            self.missing_blobs.insert(whose, MissingBlob { at, instead });
        }
    }

    /// Finds missing blobs among the blocks that are allocated and that nothing leads to.
    pub(super) async fn find_blobs(&mut self) -> Result<(), StoreError> {
        if self.missing_blobs.is_empty() || self.is_bitmap_lost().await? {
            return Ok(());
        }
        let mut found = BTreeMap::new();
        let blocks = self.blocks.blocks;
        for from in (0..blocks).step_by(BITS as usize) {
            let Some(bits) = self.allocated(from, blocks.min(from + BITS)).await? else {
                return Ok(());
            };
            for (at, _) in (from..).zip(bits).filter(|&(_, allocated)| allocated) {
                if !self.is_claimed(at)
                    && let Some((whose, offer)) = self.offer(MetaBlock(at)).await?
                {
                    let best = found.entry(whose).or_insert_with(|| offer.clone());
                    if offer.0 > best.0 {
                        *best = offer;
                    }
                }
            }
        }
        for (whose, (_, blocks)) in found {
            blocks.iter().for_each(|block| self.blocks.set(block.0));
            let MissingBlob { at, instead } = self.missing_blobs[&whose];
            self.plan.replace(instead, Fix::TakeBlob(at, whose, blocks[0]));
        }
        Ok(())
    }

    /// Was a part of the bitmap lost and rebuilt by a repair that did not finish?
    async fn is_bitmap_lost(&mut self) -> Result<bool, StoreError> {
        let word = self.read(|txn| txn.root(UNFINISHED)).await?;
        Ok(word.is_none_or(|word| word & BITMAP_LOST != 0))
    }

    /// The blob that begins at `first`, if it is whole and a missing one: its blocks, and when it
    /// was changed last.
    async fn offer(
        &self,
        first: MetaBlock,
    ) -> Result<Option<(BlobOwner, (Lsn, Vec<MetaBlock>))>, StoreError> {
        let body = |txn: &mut Txn<'_>| {
            let data = txn.read(first)?;
            if type_of(data) != Some(BlockType::Blob) {
                return Ok(None);
            }
            let lsn = lsn_of(data);
            match block_owner(data) {
                Ok((whose, 0)) if self.missing_blobs.contains_key(&whose) => {
                    let (blocks, _) = whole(txn, first, whose)?;
                    Ok(Some((whose, (lsn, blocks))))
                }
                _ => Ok(None),
            }
        };
        match self.mfs.run(Cost::READ, body).await {
            Ok((offer, _)) => Ok(offer),
            Err(StoreError::Corrupt { .. } | StoreError::Fault(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Blocks and bytes of a blob.
fn whole(
    txn: &Txn<'_>,
    first: MetaBlock,
    whose: BlobOwner,
) -> Result<(Vec<MetaBlock>, Vec<u8>), Stop> {
    Ok((txn.blob_blocks(first, whose)?, txn.read_blob(first, BLOB_MAX, whose)?))
}

/// The subject of findings about a blob of this owner.
fn subject(whose: BlobOwner) -> Subject {
    match whose.kind() {
        BlobKind::Client => Subject::Client(ClientId(whose.number())),
        _ => Subject::Inode(Ino(whose.number())),
    }
}

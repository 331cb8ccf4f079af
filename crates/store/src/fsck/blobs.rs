//! Blobs: whose they are, and where one is that an inode or a client lacks.
//!
//! Invariants:
//! - a blob that says whose it is belongs to nobody else, whoever leads to it;
//! - who lacks a blob gets the one that says it is that, if it is whole, allocated, and nothing
//!   leads to it: of several the one that was changed last. What nobody lacks is not given back:
//!   the owner may have given it up;
//! - none is sought while a part of the bitmap is lost: what was given up long ago looks the same
//!   then.

use std::collections::BTreeMap;

use types::{ClientId, Ino, Lsn, MetaBlock};

use super::plan::{Fix, PlanPosition, SlotAt};
use super::{Check, ProblemKind, Subject};
use crate::block::lsn_of;
use crate::error::{Stop, StoreError};
use crate::features::Feature;
use crate::format::blob::{BLOB_MAX, BlobForm, BlobKind, BlobOwner, block_owner};
use crate::metaspace::BITS;
use crate::mfs::Cost;
use crate::trees::{BITMAP_LOST, UNFINISHED};
use crate::txn::Txn;

/// What a check finds where something leads to a blob.
pub(super) enum Blob {
    /// These bytes, in blocks that are its alone.
    Whole(Vec<u8>),
    /// These, in blocks that something else has, too.
    Shared(Vec<u8>),
    /// Nothing that can be read.
    Damaged,
    /// A blob that says it is another.
    Foreign,
}

/// Where a blob is missing_blobs, and what is done if it is not found.
#[derive(Clone, Copy)]
pub(super) struct MissingBlob {
    /// The slot of the inode; none of a client.
    at: Option<SlotAt>,
    instead: PlanPosition,
}

impl Check {
    /// The blob that begins at `first`, whose blocks are claimed if they are those of `whose`.
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
        let (blocks, bytes, form) = match self.read(read).await? {
            None => return Ok(Blob::Damaged),
            Some(Err((block, mismatch))) => {
                let detail = format!("metadata block {block}: {mismatch}");
                self.found(ProblemKind::WrongBlob, subject(whose), detail);
                self.plan.add(Fix::FromLog(block));
                return Ok(Blob::Foreign);
            }
            Some(Ok(read)) => read,
        };
        if form == BlobForm::Owned && !self.features.has(Feature::BLOB_OWNERS) {
            self.features = self.features.with(Feature::BLOB_OWNERS);
            self.found(ProblemKind::MissingFeature, Subject::Whole, "blob-owners");
            self.plan.add(Fix::AddFeature(Feature::BLOB_OWNERS));
        }
        let mut alone = true;
        for block in blocks {
            alone &= self.claim(block, 1, what);
        }
        Ok(if alone { Blob::Whole(bytes) } else { Blob::Shared(bytes) })
    }

    /// The bytes of what the inode in a slot has in the blob that begins at a block. If they are
    /// not to be had, that is told, unless the blob says that it is another, as this kind of
    /// finding; and `lost` is planned.
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

    /// Plans what is done about a blob that could not be read, unless it is found elsewhere.
    pub(super) fn note_missing_blob(&mut self, whose: BlobOwner, at: Option<SlotAt>, instead: Fix) {
        if let Some(instead) = self.plan.put(instead) {
            self.missing_blobs.insert(whose, MissingBlob { at, instead });
        }
    }

    /// Finds the blobs that are lacking among the blocks that are allocated and that nothing leads
    /// to.
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

    /// Was a part of the bitmap lost, of which a repair has made what counts as allocated?
    async fn is_bitmap_lost(&mut self) -> Result<bool, StoreError> {
        let word = self.read(|txn| txn.root(UNFINISHED)).await?;
        Ok(word.is_none_or(|word| word & BITMAP_LOST != 0))
    }

    /// The blob that begins at `first`, if it is whole and one of those that are missing_blobs: its
    /// blocks, and when it was changed last.
    async fn offer(
        &self,
        first: MetaBlock,
    ) -> Result<Option<(BlobOwner, (Lsn, Vec<MetaBlock>))>, StoreError> {
        let body = |txn: &mut Txn<'_>| {
            let data = txn.read(first)?;
            if BlobForm::of(data) != Some(BlobForm::Owned) {
                return Ok(None);
            }
            let lsn = lsn_of(data);
            match block_owner(data) {
                Ok((whose, 0)) if self.missing_blobs.contains_key(&whose) => {
                    let (blocks, ..) = whole(txn, first, whose)?;
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

/// Blocks and bytes of a blob, and its form.
fn whole(
    txn: &Txn<'_>,
    first: MetaBlock,
    whose: BlobOwner,
) -> Result<(Vec<MetaBlock>, Vec<u8>, BlobForm), Stop> {
    let (blocks, bytes) = (txn.blob_blocks(first, whose)?, txn.read_blob(first, BLOB_MAX, whose)?);
    Ok((blocks, bytes, BlobForm::of(txn.read(first)?).unwrap_or(BlobForm::Unowned)))
}

/// Who should have it.
fn subject(whose: BlobOwner) -> Subject {
    match whose.kind() {
        BlobKind::Client => Subject::Client(ClientId(whose.number())),
        _ => Subject::Inode(Ino(whose.number())),
    }
}

//! Blobs: their owners, and the search for one that an owner is missing.
//!
//! Invariants:
//! - a blob belongs to the owner that it records only, whatever leads to it;
//! - an owner whose blob is missing gets one that records it as owner, if that is whole, allocated,
//!   and nothing leads to it: of several, the one changed last. A blob that no owner is missing is
//!   not reattached: its owner may have released it;
//! - the check searches for none while a part of the bitmap is lost: a blob released long ago looks
//!   the same then.

use std::collections::{BTreeMap, BTreeSet};

use types::{Lsn, MetaBlock};

use super::{Checker, Finding, allocated, claim, read};
use crate::alloc::metaspace::BITS;
use crate::cost::Cost;
use crate::error::{Stop, StoreError};
use crate::format::blob::{BlobOwner, block_owner};
use crate::format::block::{BlockType, lsn_of, type_of};
use crate::format::roots::{BITMAP_LOST, UNFINISHED};
use crate::store::Store;
use crate::txn::Txn;

/// What the check finds at a reference to a blob.
pub enum Blob {
    /// These bytes, in blocks that only the blob has.
    Whole(Vec<u8>),
    /// These bytes, in blocks that something else has, too.
    Shared(Vec<u8>),
    /// Nothing that can be read.
    Damaged,
    /// A blob that records another owner.
    Foreign,
}

/// Reads the blob of at most `max` bytes that begins at `first`, and claims its blocks if they
/// belong to `whose`.
///
/// # Errors
/// `Io`, `Poisoned`; damage is a finding.
pub async fn blob(
    check: &mut impl Checker,
    first: MetaBlock,
    whose: BlobOwner,
    max: usize,
) -> Result<Blob, StoreError> {
    let what = whose.kind().text();
    if first.0 == 0 || first.0 >= check.claims().blocks {
        check.note(Finding::Outside(first, what.to_owned()));
        return Ok(Blob::Damaged);
    }
    let body = |txn: &mut Txn<'_>| match whole(txn, first, whose, max) {
        Err(Stop::OwnerMismatch(block, mismatch)) => Ok(Err((block, mismatch))),
        read => read.map(Ok),
    };
    let (blocks, bytes) = match read(check, body).await? {
        None => return Ok(Blob::Damaged),
        Some(Err((block, mismatch))) => {
            check.note(Finding::WrongBlob(whose, block, mismatch));
            return Ok(Blob::Foreign);
        }
        Some(Ok(read)) => read,
    };
    let mut alone = true;
    for block in blocks {
        alone &= claim(check, block, 1, what);
    }
    Ok(if alone { Blob::Whole(bytes) } else { Blob::Shared(bytes) })
}

/// Finds `missing` blobs of at most `max` bytes among the blocks that are allocated and that
/// nothing leads to. Returns their first blocks, and claims all.
///
/// # Errors
/// `Io`, `Poisoned`; damage is a finding.
pub async fn find_blobs(
    check: &mut impl Checker,
    missing: &BTreeSet<BlobOwner>,
    max: usize,
) -> Result<BTreeMap<BlobOwner, MetaBlock>, StoreError> {
    if missing.is_empty() || is_bitmap_lost(check).await? {
        return Ok(BTreeMap::new());
    }
    let store = check.store().clone();
    let mut found: BTreeMap<BlobOwner, (Lsn, Vec<MetaBlock>)> = BTreeMap::new();
    let blocks = check.claims().blocks;
    for from in (0..blocks).step_by(BITS as usize) {
        let Some(bits) = allocated(check, from, blocks.min(from + BITS)).await? else {
            return Ok(BTreeMap::new());
        };
        for (at, _) in (from..).zip(bits).filter(|&(_, allocated)| allocated) {
            if !check.claims().get(at)
                && let Some((whose, offer)) = offer(&store, MetaBlock(at), missing, max).await?
            {
                let best = found.entry(whose).or_insert_with(|| offer.clone());
                if offer.0 > best.0 {
                    *best = offer;
                }
            }
        }
    }
    for (_, blocks) in found.values() {
        blocks.iter().for_each(|block| check.claims().set(block.0));
    }
    Ok(found.into_iter().map(|(whose, (_, blocks))| (whose, blocks[0])).collect())
}

/// Was a part of the bitmap lost and rebuilt by a repair that did not finish?
async fn is_bitmap_lost(check: &mut impl Checker) -> Result<bool, StoreError> {
    let word = read(check, |txn| txn.root(UNFINISHED)).await?;
    Ok(word.is_none_or(|word| word & BITMAP_LOST != 0))
}

/// The blob that begins at `first`, if it is whole and a missing one: its blocks, and when it was
/// changed last.
async fn offer(
    store: &Store,
    first: MetaBlock,
    missing: &BTreeSet<BlobOwner>,
    max: usize,
) -> Result<Option<(BlobOwner, (Lsn, Vec<MetaBlock>))>, StoreError> {
    let body = |txn: &mut Txn<'_>| {
        let data = txn.read(first)?;
        if type_of(data) != Some(BlockType::Blob) {
            return Ok(None);
        }
        let lsn = lsn_of(data);
        match block_owner(data) {
            Ok((whose, 0)) if missing.contains(&whose) => {
                let (blocks, _) = whole(txn, first, whose, max)?;
                Ok(Some((whose, (lsn, blocks))))
            }
            _ => Ok(None),
        }
    };
    match store.run(Cost::READ, body).await {
        Ok((offer, _)) => Ok(offer),
        Err(StoreError::Corrupt { .. } | StoreError::Fault(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Blocks and bytes of a blob.
fn whole(
    txn: &Txn<'_>,
    first: MetaBlock,
    whose: BlobOwner,
    max: usize,
) -> Result<(Vec<MetaBlock>, Vec<u8>), Stop> {
    Ok((txn.blob_blocks(first, whose)?, txn.read_blob(first, max, whose)?))
}

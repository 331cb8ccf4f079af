//! Blobs of inodes, and missing blobs, which the engine's half of the check looks for.

use std::collections::BTreeSet;

use types::MetaBlock;

use super::finding::subject;
use super::plan::{Fix, PlanPosition, SlotAt};
use super::{Check, ProblemKind};
use crate::format::xattr::BLOB_MAX;
use engine::check::{self, Blob};
use engine::error::StoreError;
use engine::format::blob::BlobOwner;

/// A missing blob: where it belongs, and the fix if it is not found.
#[derive(Clone, Copy)]
pub(super) struct MissingBlob {
    /// The slot of the inode; `None` for a client.
    at: Option<SlotAt>,
    instead: PlanPosition,
}

impl Check {
    /// Reads a blob of the inode in a slot. If it cannot be read, that is a finding of this kind,
    /// unless the blob records another owner; and `lost` is planned.
    pub(super) async fn inode_blob(
        &mut self,
        (at, first): (SlotAt, u64),
        whose: BlobOwner,
        (kind, detail): (ProblemKind, &str),
        lost: Fix,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match check::blob(self, MetaBlock(first), whose, BLOB_MAX).await? {
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
        let missing: BTreeSet<_> = self.missing_blobs.keys().copied().collect();
        for (whose, first) in check::find_blobs(self, &missing, BLOB_MAX).await? {
            let MissingBlob { at, instead } = self.missing_blobs[&whose];
            self.plan.replace(instead, Fix::TakeBlob(at, whose, first));
        }
        Ok(())
    }
}

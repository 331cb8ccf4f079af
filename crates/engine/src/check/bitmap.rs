//! Compares the bitmap with what is in use.

use types::MetaBlock;

use super::{Checker, Finding, Mismatch, read};
use crate::alloc::metaspace::BITS;
use crate::error::StoreError;

/// Which of the blocks `from..to`, all of one bitmap block, are allocated; `None` if that cannot be
/// read.
///
/// # Errors
/// `Io`, `Poisoned`; damage is a finding.
pub async fn allocated(
    check: &mut impl Checker,
    from: u64,
    to: u64,
) -> Result<Option<Vec<bool>>, StoreError> {
    read(check, |txn| (from..to).map(|block| txn.meta_allocated(MetaBlock(block))).collect()).await
}

/// Where bitmap block `index` and the claims differ; nothing if it cannot be read.
///
/// # Errors
/// `Io`, `Poisoned`; damage is a finding.
pub async fn mismatches(check: &mut impl Checker, index: u64) -> Result<Vec<Mismatch>, StoreError> {
    let from = index * BITS;
    let to = check.claims().blocks.min(from + BITS);
    match allocated(check, from, to).await? {
        Some(bits) => Ok(check.claims().mismatches(from, &bits)),
        None => {
            check.note(Finding::LostBitmap(index));
            Ok(Vec::new())
        }
    }
}

//! The engine's half of a check (`fsck`): label and journal, blocks, trees, blobs, the bitmap, and
//! the table of clients with their kept replies.
//!
//! Invariants:
//! - a check changes nothing, and nothing else changes the store meanwhile;
//! - each finding goes to the [`Checker`] when it is made, so a report has the order of the walk;
//! - what owns a block, and what repair does about a finding, is the checker's business.

mod bitmap;
mod blobs;
mod claims;
mod clients;
mod devices;
mod finding;
#[cfg(test)]
mod tests;
mod trees;

use types::{Fault, MetaBlock, Transno};

pub use bitmap::{allocated, mismatches};
pub use blobs::{Blob, blob, find_blobs};
pub use claims::{ClaimFault, Claims, Mismatch};
pub use clients::clients;
pub use devices::{journal_damage, label_damage};
pub use finding::Finding;
pub use trees::walk;

use crate::cost::Cost;
use crate::error::{Stop, StoreError};
use crate::store::Store;
use crate::txn::Txn;

/// The layer above, which checks its own structures in the same walk.
pub trait Checker {
    /// The store.
    fn store(&self) -> &Store;

    /// The blocks that the check has found in use so far.
    fn claims(&mut self) -> &mut Claims;

    /// Takes a finding.
    fn note(&mut self, finding: Finding);
}

/// Runs a body that only reads; damage becomes a finding and `None`.
///
/// # Errors
/// `Io`, `Poisoned`.
pub async fn read<T>(
    check: &mut impl Checker,
    body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
) -> Result<Option<T>, StoreError> {
    let store = check.store().clone();
    readable(check, store.run(Cost::READ, body).await)
}

/// The result of a transaction that only read; damage becomes a finding and `None`.
///
/// # Errors
/// Other errors, as they are.
pub fn readable<T>(
    check: &mut impl Checker,
    result: Result<(T, Transno), StoreError>,
) -> Result<Option<T>, StoreError> {
    match result {
        Ok((value, _)) => Ok(Some(value)),
        Err(StoreError::Corrupt { block, what }) => {
            check.note(Finding::Damaged(block, what));
            Ok(None)
        }
        Err(StoreError::Fault(Fault::Corrupt)) => {
            check.note(Finding::Unreadable);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reads blocks together; damage of one is found when it is used.
///
/// # Errors
/// `Io`, `Poisoned`.
pub async fn prefetch(store: &Store, first: MetaBlock, count: u32) -> Result<(), StoreError> {
    match store.run(Cost::READ, |txn| txn.require_cached(first, count)).await {
        Err(StoreError::Corrupt { .. }) => Ok(()),
        other => other.map(|_| ()),
    }
}

/// Claims `len` blocks from `first` on for `what`; `false` if they are outside the device or
/// claimed already, which is a finding.
pub fn claim(check: &mut impl Checker, first: MetaBlock, len: u64, what: &str) -> bool {
    let finding = match check.claims().claim(first, len) {
        Ok(()) => return true,
        Err(ClaimFault::Outside) => Finding::Outside(first, what.to_owned()),
        Err(ClaimFault::Shared(taken)) => Finding::Shared(taken, what.to_owned()),
    };
    check.note(finding);
    false
}

//! The data space, as a running transaction sees and changes it.

use crate::txn::Txn;

/// The data space of a running transaction: data zones, pools, grants and freed blocks.
pub struct Space<'t, 'a> {
    pub(super) txn: &'t mut Txn<'a>,
}

impl<'a> Txn<'a> {
    /// The data space: data zones, pools, grants and freed blocks.
    #[inline]
    pub fn space<'t>(&'t mut self) -> Space<'t, 'a> {
        Space { txn: self }
    }
}

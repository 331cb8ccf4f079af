//! The namespace, as a running transaction sees and changes it.

use crate::txn::Txn;

/// The namespace of a running transaction: directories, names and inodes.
pub struct Names<'t, 'a> {
    pub(super) txn: &'t mut Txn<'a>,
}

impl<'a> Txn<'a> {
    /// The namespace: directories, names and inodes.
    #[inline]
    pub fn names<'t>(&'t mut self) -> Names<'t, 'a> {
        Names { txn: self }
    }
}

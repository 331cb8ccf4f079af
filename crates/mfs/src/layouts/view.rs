//! The layouts of files, as a running transaction sees and changes them.

use crate::txn::Txn;

/// The layouts of a running transaction: segments, layout blocks and inline data.
pub struct Layouts<'t, 'a> {
    pub(super) txn: &'t mut Txn<'a>,
}

impl<'a> Txn<'a> {
    /// The layouts: segments, layout blocks and inline data.
    #[inline]
    pub fn layouts<'t>(&'t mut self) -> Layouts<'t, 'a> {
        Layouts { txn: self }
    }
}

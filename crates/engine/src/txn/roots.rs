//! The roots, as a transaction reads and changes them.

use crate::error::Stop;
use crate::format::block::{BlockType, get_u64, put_u64};
use crate::format::roots::{ROOTS_BLOCK, RootId};
use crate::txn::Txn;

impl Txn<'_> {
    /// The value of a root; 0 if no transaction has set it.
    ///
    /// # Errors
    /// `Stop::Miss` or `Stop::Corrupt` of the roots block.
    pub fn root(&self, id: RootId) -> Result<u64, Stop> {
        Ok(get_u64(self.read_as(ROOTS_BLOCK, BlockType::Roots)?, usize::from(id.offset())))
    }

    /// Changes a root.
    ///
    /// # Errors
    /// `Stop::Miss` or `Stop::Corrupt` of the roots block.
    pub fn set_root(&mut self, id: RootId, value: u64) -> Result<(), Stop> {
        let block = self.write_as(ROOTS_BLOCK, BlockType::Roots)?;
        put_u64(block, usize::from(id.offset()), value);
        Ok(())
    }
}

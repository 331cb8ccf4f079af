//! Extended attributes: in the slot if they fit, else in a blob.

use types::limits::{SLOT_XATTRS_MAX, XATTR_NAME_MAX, XATTR_TOTAL_MAX, XATTR_VALUE_MAX};
use types::{Fault, Ino, MetaBlock};

use super::find::Spot;
use super::view::Names;
use crate::format::slot::Slot;
use crate::format::xattr::{BLOB_MAX, Xattr, decode_xattrs, encode_xattrs};
use engine::error::Stop;
use engine::format::blob::BlobKind;

impl Names<'_, '_> {
    /// The value of an xattr.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        let (_, _, list) = self.load_xattrs(ino)?;
        Ok(list.into_iter().find(|(n, _)| n == name).map(|(_, value)| value))
    }

    /// The names of all xattrs, and the lengths of their values.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn xattrs(&mut self, ino: Ino) -> Result<Vec<(Vec<u8>, u32)>, Stop> {
        let (_, _, list) = self.load_xattrs(ino)?;
        Ok(list.into_iter().map(|(name, value)| (name, value.len() as u32)).collect())
    }

    /// Sets an xattr.
    ///
    /// # Errors
    /// `Stale`; `Invalid` for a bad name; `TooBig` if the value or the sum is too large; `NoSpace`.
    pub fn set_xattr(&mut self, ino: Ino, name: &[u8], value: &[u8]) -> Result<(), Stop> {
        if name.is_empty() || name.len() > XATTR_NAME_MAX {
            return Err(Stop::Fault(Fault::Invalid));
        }
        if value.len() > XATTR_VALUE_MAX {
            return Err(Stop::Fault(Fault::TooBig));
        }
        let (spot, slot, mut list) = self.load_xattrs(ino)?;
        match list.binary_search_by(|(n, _)| n.as_slice().cmp(name)) {
            Ok(at) => list[at].1 = value.to_vec(),
            Err(at) => list.insert(at, (name.to_vec(), value.to_vec())),
        }
        if list.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>() > XATTR_TOTAL_MAX {
            return Err(Stop::Fault(Fault::TooBig));
        }
        self.store_xattrs(&spot, slot, &list)
    }

    /// Removes an xattr; `false` if there was none.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn remove_xattr(&mut self, ino: Ino, name: &[u8]) -> Result<bool, Stop> {
        let (spot, slot, mut list) = self.load_xattrs(ino)?;
        let Ok(at) = list.binary_search_by(|(n, _)| n.as_slice().cmp(name)) else {
            return Ok(false);
        };
        list.remove(at);
        self.store_xattrs(&spot, slot, &list)?;
        Ok(true)
    }

    pub(crate) fn load_xattrs(&mut self, ino: Ino) -> Result<(Spot, Slot, Vec<Xattr>), Stop> {
        let (spot, slot) = self.locate_live(ino)?;
        let damaged = Stop::Corrupt(spot.block, "xattrs are invalid");
        let list = match slot.xattr_blob() {
            Some(block) => {
                let owner = slot.blob_owner(BlobKind::Xattrs);
                decode_xattrs(&self.txn.read_blob(MetaBlock(block), BLOB_MAX, owner)?)
            }
            None => decode_xattrs(slot.xattrs()),
        };
        Ok((spot, slot, list.ok_or(damaged)?))
    }

    fn store_xattrs(&mut self, spot: &Spot, mut slot: Slot, list: &[Xattr]) -> Result<(), Stop> {
        let old = slot.xattr_blob().map(MetaBlock);
        self.put_xattrs(&mut slot, old, list, spot.block)?;
        self.store(spot, &slot)
    }

    /// Puts `list` into the slot, or into a blob near its block, which replaces the blob `old` if
    /// there is one.
    pub(crate) fn put_xattrs(
        &mut self,
        slot: &mut Slot,
        old: Option<MetaBlock>,
        list: &[Xattr],
        near: MetaBlock,
    ) -> Result<(), Stop> {
        let (bytes, owner) = (encode_xattrs(list), slot.blob_owner(BlobKind::Xattrs));
        if bytes.len() <= slot.xattr_room().min(SLOT_XATTRS_MAX) {
            if let Some(block) = old {
                self.txn.free_blob(block, owner)?;
            }
            slot.set_xattr_blob(None);
            slot.set_xattrs(&bytes);
        } else {
            let block = self.txn.write_blob(old, &bytes, owner, near)?;
            slot.set_xattrs(b"");
            slot.set_xattr_blob(Some(block.0));
        }
        Ok(())
    }
}

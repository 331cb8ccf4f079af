//! The object record of a slot.

use types::FileKind;

use super::{FLAG_OBJECT, Slot};
use crate::format::object::ObjectRecord;

impl Slot {
    /// Is the object record valid, and alone?
    pub(super) fn check_object(&self) -> Result<(), &'static str> {
        if self.0[0] != 1 || self.kind() != FileKind::Regular {
            return Err("slot: an object record on an inode that is no regular file");
        }
        if self.has_content() {
            return Err("slot: content beside an object record");
        }
        if self.body() != 0 {
            return Err("slot: segments beside an object record");
        }
        ObjectRecord::decode(self.payload()).map(drop).ok_or("slot: a bad object record")
    }

    /// The object that the file lies in, if it has one.
    pub fn object(&self) -> Option<ObjectRecord> {
        self.has_object().then(|| ObjectRecord::decode(self.payload())).flatten()
    }

    /// Does the file lie in an object?
    pub fn has_object(&self) -> bool {
        self.0[5] & FLAG_OBJECT != 0
    }

    /// Puts an object record into the tail, where it must fit and nothing else may be.
    pub fn set_object(&mut self, record: &ObjectRecord) {
        assert!(self.payload().is_empty() && !self.has_content() && self.body() == 0);
        self.flag(FLAG_OBJECT, true);
        self.set_payload(&record.encode());
    }

    /// Removes the object record.
    pub fn clear_object(&mut self) {
        if self.has_object() {
            self.set_payload(b"");
            self.flag(FLAG_OBJECT, false);
        }
    }
}

//! What a lease on an inode allows its client.

use bitflags::bitflags;

bitflags! {
    /// Rights of one client on one inode. A server never grants two clients conflicting rights.
    /// `DATA_X` excludes every other client's `DATA_S`, `DATA_X`, `DATA_P` and `ATTR`; `DATA_P`
    /// excludes the same except `DATA_P`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
    pub struct Rights: u8 {
        /// May cache the inode's attributes, xattrs and symlink target.
        const ATTR = 1;
        /// May cache the names of a directory, found and missing ones alike.
        const NAMES = 2;
        /// May keep the file open: the file outlives its last name until the client returns this.
        const OPEN = 4;
        /// May cache the file's data and layout, for reading.
        const DATA_S = 8;
        /// May change data, size and layout, and owns size, mtime and ctime. Implies `DATA_S`.
        const DATA_X = 16;
        /// Holds ranges of the file, each shared or exclusive ([`crate::HeldRange`]). A client
        /// holds this or `DATA_S`, never both.
        const DATA_P = 32;
    }
}

impl Rights {
    /// Rights on the whole content.
    pub const WHOLE: Rights = Rights::DATA_S.union(Rights::DATA_X);
    /// All rights on content.
    pub const DATA: Rights = Rights::WHOLE.union(Rights::DATA_P);
    /// Rights whose holder may know size and times better than the server.
    pub const WRITES: Rights = Rights::DATA_X.union(Rights::DATA_P);

    /// The rights with those that they imply: `DATA_X` implies `DATA_S`.
    pub fn closed(self) -> Rights {
        if self.contains(Rights::DATA_X) { self | Rights::DATA_S } else { self }
    }

    /// What another client must give up so that `self` can be granted.
    pub fn conflicts(self) -> Rights {
        let mut out = Rights::empty();
        if self.contains(Rights::DATA_X) {
            out |= Rights::DATA | Rights::ATTR;
        } else if self.intersects(Rights::DATA_S | Rights::ATTR) {
            out |= Rights::WRITES;
        }
        if self.contains(Rights::DATA_P) {
            out |= Rights::WHOLE | Rights::ATTR;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_symmetric_for_every_pair_of_rights() {
        for a in 0..64u8 {
            for b in 0..64u8 {
                let (a, b) = (Rights::from_bits_truncate(a), Rights::from_bits_truncate(b));
                assert_eq!(a.conflicts().intersects(b), b.conflicts().intersects(a), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn data_p_conflicts_with_all_data_rights_and_attr_but_itself() {
        let ranges = Rights::DATA_P;
        assert_eq!(ranges.conflicts(), Rights::DATA_S | Rights::DATA_X | Rights::ATTR);
        assert!(!ranges.conflicts().intersects(ranges));
    }

    #[test]
    fn names_and_open_conflict_with_nothing() {
        let shared = Rights::NAMES | Rights::OPEN;
        assert!(shared.conflicts().is_empty());
    }
}

//! Inodes that have names on other shards: what their own shard keeps of these names.
//!
//! Invariants:
//! - the name of an inode of another shard is a slot of state 2 (7.2) with that shard's number, of
//!   any kind, directories too. Only with the feature `shards` is there one;
//! - a directory of which the name is on another shard is a *guest*. It lies in the orphan
//!   directory (6) and has an entry here, which says its parent. The namespace index (7.4) has no
//!   entry of it;
//! - a directory counts its links as if all were on one shard: 2, and one more for each directory
//!   of which it has the name;
//! - another inode with names on other shards has an entry here, which says how many. It lies in
//!   the slot of a name on its own shard or, if it has none there, in the orphan directory. Its
//!   link count is that of all its names;
//! - an inode without links, an orphan, has no entry. The inodes of a system's chunk have none.
//!
//! Key: the inode number, 8 bytes, big-endian. Value, little-endian:
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | parent | of a directory: its parent, of another shard; else 0 |
//! | 8 | 4 | names | of another inode: its names on other shards, at least 1; else 0 |
//! | 12 | 4 | reserved | zero |
//!
//! An entry whose key is all zeros means nothing.

use engine::format::block::{get_u32, get_u64, put_u32, put_u64};
use types::Ino;

/// Bytes of a key.
pub const OUTSIDE_KEY: usize = 8;
/// Bytes of a value.
pub const OUTSIDE_VALUE: usize = 16;

/// Names that an inode has on other shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outside {
    /// Of a directory: its parent.
    Parent(Ino),
    /// Of another inode: how many.
    Names(u32),
}

impl Outside {
    /// How many names these are.
    pub fn names(self) -> u32 {
        match self {
            Outside::Parent(_) => 1,
            Outside::Names(names) => names,
        }
    }

    /// The value of an entry.
    pub fn encode(self) -> [u8; OUTSIDE_VALUE] {
        let mut value = [0; OUTSIDE_VALUE];
        match self {
            Outside::Parent(parent) => put_u64(&mut value, 0, parent.0),
            Outside::Names(names) => put_u32(&mut value, 8, names),
        }
        value
    }

    /// What a value says; `None`: no such value can be.
    pub fn decode(value: &[u8; OUTSIDE_VALUE]) -> Option<Outside> {
        let (parent, names) = (Ino(get_u64(value, 0)), get_u32(value, 8));
        match (parent, names) {
            _ if get_u32(value, 12) != 0 => None,
            (Ino::NONE, 1..) => Some(Outside::Names(names)),
            (Ino(1..), 0) => Some(Outside::Parent(parent)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_read_as_it_was_written() {
        let parent = Outside::Parent(Ino(0x0102_0304_0506_0708));
        assert_eq!(parent.encode()[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        for outside in [parent, Outside::Parent(Ino(1)), Outside::Names(1), Outside::Names(!0)] {
            assert_eq!(Outside::decode(&outside.encode()), Some(outside));
        }
    }

    #[test]
    fn senseless_values_are_none() {
        let both = |parent: u8, names: u8, reserved: u8| {
            let mut value = [0; OUTSIDE_VALUE];
            (value[0], value[8], value[15]) = (parent, names, reserved);
            Outside::decode(&value)
        };
        assert_eq!((both(0, 0, 0), both(1, 1, 0)), (None, None));
        assert_eq!((both(1, 0, 1), both(0, 1, 1)), (None, None));
        assert_eq!(both(0, 3, 0), Some(Outside::Names(3)));
    }
}

//! The shards of inodes that have moved: directories, and files that followed them.
//!
//! Invariants:
//! - only with the feature `moved-directories` is there an entry;
//! - an inode that has moved to another shard keeps its number. The shard that it left has an entry
//!   with the shard that it went to, and so has that one, with itself. So an entry tells where the
//!   shard that has it believes the inode to be;
//! - a shard without an entry believes that the shard of the number has it;
//! - from entry to entry one comes to the shard that has the inode: each says where it went last
//!   from there;
//! - an entry stays when its inode is removed elsewhere: the number is never issued again.
//!
//! Key: the inode number, 8 bytes, big-endian. Value, little-endian:
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 1 | shard | that has the inode; not that of the number |
//! | 1 | 7 | reserved | zero |
//!
//! An entry whose key is all zeros means nothing.

use types::ShardId;

/// Bytes of a key.
pub const HOME_KEY: usize = 8;
/// Bytes of a value.
pub const HOME_VALUE: usize = 8;

/// The value of an entry.
pub fn encode(shard: ShardId) -> [u8; HOME_VALUE] {
    let mut value = [0; HOME_VALUE];
    value[0] = shard.0;
    value
}

/// What a value says; `None`: no such value can be.
pub fn decode(value: &[u8; HOME_VALUE]) -> Option<ShardId> {
    match value {
        [shard, 0, 0, 0, 0, 0, 0, 0] => Some(ShardId(*shard)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written_and_others_not_at_all() {
        for shard in [0, 1, 255].map(ShardId) {
            assert_eq!(decode(&encode(shard)), Some(shard));
        }
        assert_eq!(decode(&[1, 0, 0, 0, 0, 0, 0, 1]), None);
    }
}

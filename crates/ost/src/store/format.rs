//! What an object target keeps of its objects.
//!
//! Invariants:
//! - every block of the content slice but its block 0, which nobody uses, lies in exactly one
//!   segment of one object or in exactly one free run;
//! - the segments of an object do not overlap; free runs neither overlap nor touch each other;
//! - the blocks of an object are those of its segments, and its end is one past its last block; it
//!   exists from its first write until it is destroyed, even without a block;
//! - a checksum that is not there is 0, and that of a block without a segment is not there.
//!
//! A target has two slices of one device: the front one, of the kind *target*, is a store as that
//! of metadata, of shard 0, with the number of its slice in place of that of the metadata. The
//! other one, of the kind *content*, has the blocks of the objects. A checksum is the CRC32C of a
//! block of content. Groups have 32 blocks.
//!
//! | root | tree | key (big-endian) | value (little-endian) |
//! |---:|---|---|---|
//! | 20 | objects | object 8 | blocks 8 · end 8 |
//! | 21 | segments | object 8 · block 8 | blocks 4 · first block in the content slice 8 |
//! | 22 | sums | object 8 · group 8 | 32 checksums of 4 |
//! | 23 | free | first block in the content slice 8 | blocks 8 |
//! | 24 | fenced | client of the metadata server 8 | nothing |
//!
//! The number of an object names its shard in the top 8 bits, that of a client in those from bit 40
//! on. Setting 1 has 9 bytes: blocks of the content slice 8, and 1 if checksums are kept, else 0.
//! Setting 0x6f737401 + a shard has the newest epoch, 4 bytes, that the metadata server of that
//! shard has shown. Of a target that another file system has adopted, setting 0x6f736661 has the
//! UUID of that, 16 bytes, and the first 46 bytes of its name; setting 0x6f736662 has the rest of
//! the name. The reply that is kept for a request has no bytes: every request that changes
//! something is answered without a result.

use engine::btree::Tree;
use engine::format::roots::RootId;
use types::{ObjectId, ShardId};

/// Blocks of a group of checksums.
pub const GROUP: u64 = 32;
/// Bytes of the checksums of a group.
pub const GROUP_BYTES: usize = 4 * GROUP as usize;
/// Blocks of a segment at most.
pub const SEGMENT_MAX: u64 = 1 << 30;

/// An object has no block from this one on: in bytes, its end is a number of 64 bits.
pub const BLOCKS_MAX: u64 = 1 << 52;

/// Objects.
pub const OBJECTS: Tree<8, 16> = Tree::at(RootId(20));
/// What lies where.
pub const SEGMENTS: Tree<16, 12> = Tree::at(RootId(21));
/// Checksums of content.
pub const SUMS: Tree<16, GROUP_BYTES> = Tree::at(RootId(22));
/// Runs of content blocks that no object has.
pub const FREE: Tree<8, 8> = Tree::at(RootId(23));
/// Clients whose capabilities are refused.
pub const FENCED: Tree<8, 0> = Tree::at(RootId(24));

/// The setting with the size of the content slice, and whether checksums are kept.
pub const SHAPE: u32 = 1;

/// The setting with the newest epoch, 4 bytes, that the metadata server of a shard has shown.
pub fn epoch_setting(shard: ShardId) -> u32 {
    0x6f73_7401 + u32::from(shard.0)
}

/// Blocks of the content slice, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    /// The first.
    pub at: u64,
    /// How many.
    pub len: u64,
}

impl Run {
    /// One past the last.
    pub fn end(&self) -> u64 {
        self.at.saturating_add(self.len)
    }
}

/// Blocks of an object, one behind the other, that lie together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The first, in the object.
    pub block: u64,
    /// How many.
    pub len: u64,
    /// Where the first lies in the content slice.
    pub at: u64,
}

impl Segment {
    /// One past its last block, in the object.
    pub fn end(&self) -> u64 {
        self.block.saturating_add(self.len)
    }

    /// Where its blocks lie.
    pub fn run(&self) -> Run {
        Run { at: self.at, len: self.len }
    }

    /// The part of it in `from..to`, which overlaps it.
    pub fn part(&self, from: u64, to: u64) -> Segment {
        let block = self.block.max(from);
        Segment { block, len: self.end().min(to) - block, at: self.at + (block - self.block) }
    }

    /// The value of its entry.
    pub fn value(&self) -> [u8; 12] {
        let mut out = [0; 12];
        out[..4].copy_from_slice(&(self.len as u32).to_le_bytes());
        out[4..].copy_from_slice(&self.at.to_le_bytes());
        out
    }
}

/// Number `n` of the eight-byte numbers of a key.
fn word(key: &[u8], n: usize) -> [u8; 8] {
    let mut out = [0; 8];
    out.copy_from_slice(&key[8 * n..8 * n + 8]);
    out
}

/// The key of an object.
pub fn object_key(object: ObjectId) -> [u8; 8] {
    object.0.to_be_bytes()
}

/// The key of a block, or of a group of checksums, of an object.
pub fn place_key(object: ObjectId, number: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&object.0.to_be_bytes());
    out[8..].copy_from_slice(&number.to_be_bytes());
    out
}

/// The object and the number in such a key.
pub fn place_of(key: &[u8; 16]) -> (ObjectId, u64) {
    (ObjectId(u64::from_be_bytes(word(key, 0))), u64::from_be_bytes(word(key, 1)))
}

/// The segment of an entry. Its numbers may be anything.
pub fn segment_of(key: &[u8; 16], value: &[u8; 12]) -> Segment {
    let [a, b, c, d, at @ ..] = *value;
    let len = u64::from(u32::from_le_bytes([a, b, c, d]));
    Segment { block: place_of(key).1, len, at: u64::from_le_bytes(at) }
}

/// What the tree of objects says of one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Extent {
    /// Its blocks.
    pub blocks: u64,
    /// One past its last block.
    pub end: u64,
}

impl Extent {
    /// Of an entry's value.
    pub fn decode(value: &[u8; 16]) -> Extent {
        let number = |n| u64::from_le_bytes(word(value, n));
        Extent { blocks: number(0), end: number(1) }
    }

    /// The value of its entry.
    pub fn encode(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.blocks.to_le_bytes());
        out[8..].copy_from_slice(&self.end.to_le_bytes());
        out
    }
}

/// The free run of an entry.
pub fn free_of(key: &[u8; 8], value: &[u8; 8]) -> Run {
    Run { at: u64::from_be_bytes(*key), len: u64::from_le_bytes(*value) }
}

/// The checksums of a group.
pub fn sums_of(value: &[u8; GROUP_BYTES]) -> [u32; GROUP as usize] {
    let mut out = [0; GROUP as usize];
    for (sum, bytes) in out.iter_mut().zip(value.chunks_exact(4)) {
        *sum = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    out
}

/// The value of the checksums of a group.
pub fn sums_value(sums: &[u32; GROUP as usize]) -> [u8; GROUP_BYTES] {
    let mut out = [0; GROUP_BYTES];
    for (sum, bytes) in sums.iter().zip(out.chunks_exact_mut(4)) {
        bytes.copy_from_slice(&sum.to_le_bytes());
    }
    out
}

/// The shape of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Blocks of the content slice.
    pub blocks: u64,
    /// Checksums are kept.
    pub checksums: bool,
}

impl Shape {
    /// As the setting has it.
    pub fn encode(&self) -> [u8; 9] {
        let mut out = [0; 9];
        out[..8].copy_from_slice(&self.blocks.to_le_bytes());
        out[8] = u8::from(self.checksums);
        out
    }

    /// Of the setting's bytes, if they make sense.
    pub fn decode(bytes: &[u8]) -> Option<Shape> {
        let (checksums, blocks) = bytes.split_last()?;
        let blocks = u64::from_le_bytes(blocks.try_into().ok()?);
        let checksums = match checksums {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Shape { blocks, checksums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_encoding() {
        let segment = Segment { block: 1 << 40, len: SEGMENT_MAX, at: 1 << 33 };
        let key = place_key(ObjectId(7 << 56), segment.block);
        assert_eq!(place_of(&key), (ObjectId(7 << 56), segment.block));
        assert_eq!(segment_of(&key, &segment.value()), segment);
        let extent = Extent { blocks: 3, end: 1 << 50 };
        assert_eq!(Extent::decode(&extent.encode()), extent);
        let sums = std::array::from_fn(|at| at as u32 * 77);
        assert_eq!(sums_of(&sums_value(&sums)), sums);
        for checksums in [false, true] {
            let shape = Shape { blocks: 1 << 40, checksums };
            assert_eq!(Shape::decode(&shape.encode()), Some(shape));
        }
        for bytes in [&[][..], &[1; 8], &[2; 9], &[0; 10]] {
            assert_eq!(Shape::decode(bytes), None);
        }
    }

    #[test]
    fn part_of_a_segment_lies_where_its_blocks_do() {
        let segment = Segment { block: 10, len: 10, at: 100 };
        assert_eq!(segment.part(0, u64::MAX), segment);
        assert_eq!(segment.part(12, 15), Segment { block: 12, len: 3, at: 102 });
    }
}

//! The 32-byte header of every metadata block.
//!
//! Invariants:
//! - a block at home carries its own address, its type, the tag of its file
//!   system and a CRC32C over everything after the checksum;
//! - the store computes the checksum when it writes the block home, never in the cache;
//! - LSN and epoch are those of the last transaction that changed the block.
//!
//! | offset | size | field    | meaning                                        |
//! |-------:|-----:|----------|------------------------------------------------|
//! |      0 |    4 | crc      | CRC32C of bytes 4..4096                        |
//! |      4 |    1 | type     | [`BlockType`]                                  |
//! |      5 |    1 | version  | format version of this type, now 1             |
//! |      6 |    2 | reserved | zero                                           |
//! |      8 |    8 | address  | number of this block on the metadata device    |
//! |     16 |    8 | lsn      | end of the last record that changed it; 0 mkfs |
//! |     24 |    4 | epoch    | epoch of that record                           |
//! |     28 |    4 | tag      | CRC32C of the file system's UUID               |
//!
//! Types: 1 superblock, 2 roots, 3 bitmap, 4 tree node, 5 directory content, 6 blob, 7 replies, 8 a
//! table (of tests), 9 name map; 10, 11, 12 directory content with slots of 1024, 2048, 4096 bytes;
//! 13 layout.

use types::limits::BLOCK;
use types::{Bug, Epoch, Lsn, MetaBlock, Uuid, crc32c, planted};

/// The bytes of one block.
pub type Block = [u8; BLOCK];

/// Bytes of the header.
pub const HEADER: usize = 32;
/// Version of every block type of this release.
pub const BLOCK_VERSION: u8 = 1;

const _: () = assert!((BLOCK - HEADER).is_multiple_of(8));
const _: () = assert!(HEADER + 8 * 508 == BLOCK, "eight slots fill a directory block");

macro_rules! block_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// What a block holds.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum BlockType {
            $($(#[$doc])* $name = $value,)*
        }

        impl BlockType {
            /// Every type.
            #[cfg(any(test, feature = "testing"))]
            pub const ALL: &'static [BlockType] = &[$(BlockType::$name,)*];

            /// The type with this number on disk.
            pub fn from_u8(value: u8) -> Option<BlockType> {
                match value { $($value => Some(BlockType::$name),)* _ => None }
            }

            /// A word for messages.
            pub fn text(self) -> &'static str {
                match self { $(BlockType::$name => $text,)* }
            }
        }
    };
}

block_types! {
    /// A copy of the superblock.
    Super = 1, "superblock";
    /// The array of roots.
    Roots = 2, "roots";
    /// A block of the allocation bitmap.
    Bitmap = 3, "bitmap";
    /// A node of a B+tree.
    Tree = 4, "tree node";
    /// Eight directory slots.
    Directory = 5, "directory";
    /// A piece of a long symlink, extended attribute or content; it names its owner.
    Blob = 6, "blob";
    /// Replies kept for clients.
    Reply = 7, "replies";
    /// Small tables of fixed records.
    Table = 8, "table";
    /// A bucket of the name map of a directory.
    NameMap = 9, "name map";
    /// Four directory slots.
    Directory1024 = 10, "directory";
    /// Two directory slots.
    Directory2048 = 11, "directory";
    /// One directory slot.
    Directory4096 = 12, "directory";
    /// Segments of one file.
    Layout = 13, "layout";
}

impl BlockType {
    /// Does it hold directory slots?
    pub fn is_content(self) -> bool {
        use BlockType::{Directory, Directory1024, Directory2048, Directory4096};
        matches!(self, Directory | Directory1024 | Directory2048 | Directory4096)
    }
}

/// Reads a little-endian `u16` at `offset`.
pub fn get_u16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

/// Reads a little-endian `u32` at `offset`.
pub fn get_u32(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

/// Reads a little-endian `u64` at `offset`.
pub fn get_u64(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

/// Writes `value` little-endian at `offset`.
pub fn put_u16(bytes: &mut [u8], offset: usize, value: u16) {
    bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
}

/// Writes `value` little-endian at `offset`.
pub fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

/// Writes `value` little-endian at `offset`.
pub fn put_u64(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

/// The tag that blocks of the file system `uuid` carry.
pub fn tag_of(uuid: Uuid) -> u32 {
    crc32c(&uuid.0)
}

/// The type of a block, if it is a known one.
pub fn type_of(block: &Block) -> Option<BlockType> {
    BlockType::from_u8(block[4])
}

/// The LSN of a block's last change.
pub fn lsn_of(block: &Block) -> Lsn {
    Lsn(get_u64(block, 16))
}

/// Makes `block` an empty block of type `kind` at `address`.
pub fn initialise(block: &mut Block, address: MetaBlock, kind: BlockType, tag: u32) {
    block.fill(0);
    block[4] = kind as u8;
    block[5] = BLOCK_VERSION;
    put_u64(block, 8, address.0);
    put_u32(block, 28, tag);
}

/// Records the transaction that changed the block last.
pub fn stamp(block: &mut Block, lsn: Lsn, epoch: Epoch) {
    put_u64(block, 16, lsn.0);
    put_u32(block, 24, epoch.0);
}

/// Computes the checksum; after that the block may be written home.
pub fn seal(block: &mut [u8]) {
    let crc = crc32c(&block[4..BLOCK]);
    put_u32(block, 0, crc);
}

/// Checks a block that was read from the device.
///
/// # Errors
/// What is wrong with the block.
pub fn verify(block: &Block, address: MetaBlock, tag: u32) -> Result<BlockType, &'static str> {
    if crc32c(&block[4..]) != get_u32(block, 0) && !planted(Bug::ChecksumIgnored) {
        return Err("wrong checksum");
    }
    if get_u64(block, 8) != address.0 && !planted(Bug::AddressIgnored) {
        return Err("the block belongs to another address");
    }
    if get_u32(block, 28) != tag {
        return Err("the block belongs to another file system");
    }
    if block[5] != BLOCK_VERSION || get_u16(block, 6) != 0 {
        return Err("unknown block version");
    }
    type_of(block).ok_or("unknown block type")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed() -> Box<Block> {
        let mut block = Box::new([0; BLOCK]);
        initialise(&mut block, MetaBlock(7), BlockType::Tree, 99);
        block[100] = 5;
        stamp(&mut block, Lsn(12), Epoch(3));
        seal(&mut block[..]);
        block
    }

    #[test]
    fn sealed_block_verifies_at_its_own_address_only() {
        let block = sealed();
        assert_eq!(verify(&block, MetaBlock(7), 99), Ok(BlockType::Tree));
        assert!(verify(&block, MetaBlock(8), 99).is_err());
        assert!(verify(&block, MetaBlock(7), 98).is_err());
        assert_eq!(lsn_of(&block), Lsn(12));
    }

    #[test]
    fn block_with_any_flipped_byte_fails_verification() {
        for at in 0..BLOCK {
            let mut block = sealed();
            block[at] ^= 0x10;
            assert!(verify(&block, MetaBlock(7), 99).is_err(), "byte {at}");
        }
    }

    #[test]
    fn block_of_zeros_fails_verification() {
        assert!(verify(&[0; BLOCK], MetaBlock(0), 0).is_err());
    }
}

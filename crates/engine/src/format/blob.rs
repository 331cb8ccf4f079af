//! Blobs: long symlink targets, xattrs and content that outgrew their slot, and the descriptions
//! that clients give when they connect. Each is a chain of blocks.
//!
//! Invariants:
//! - a chain has no cycle, and its blocks are full except the last;
//! - each block names the owner of its blob and its index in the chain. Only a reader that expects
//!   exactly these accepts it.
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 32 | header | block header, type blob |
//! | 32 | 8 | next | next block of the chain, 0 none |
//! | 40 | 4 | total | bytes of the whole blob (first block), 0 in the others |
//! | 44 | 4 | len | bytes in this block |
//! | 48 | 8 | owner | number of the inode, or of the client |
//! | 56 | 1 | what | what it is of the owner: 1 xattrs, 2 target, 3 content, of a client 4 description |
//! | 57 | 3 | reserved | zero |
//! | 60 | 4 | index | which block of the chain, the first is 0 |
//! | 64 | 4032 | data | |

use std::fmt;

use types::limits::BLOCK;
use types::{ClientId, Ino};

use crate::format::block::{Block, get_u32, get_u64, put_u32, put_u64};

/// Offset of the link to the next block.
pub const NEXT: usize = 32;
/// Offset of the total length.
pub const TOTAL: usize = 40;
/// Offset of the length in this block.
pub const LEN: usize = 44;
/// Offset of the data.
pub const DATA: usize = 64;
/// Bytes of data of one block.
pub const CAPACITY: usize = BLOCK - DATA;

/// Offset of the owner's number.
const OWNER: usize = 48;
const WHAT: usize = 56;
const RESERVED: usize = 57;
const INDEX: usize = 60;

/// What a blob holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum BlobKind {
    /// The extended attributes of an inode.
    Xattrs = 1,
    /// The target of a symlink.
    Target = 2,
    /// The content of block 0 of a file.
    Content = 3,
    /// The description that a client gave of itself.
    Client = 4,
}

impl BlobKind {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            BlobKind::Xattrs => "extended attributes",
            BlobKind::Target => "target",
            BlobKind::Content => "content",
            BlobKind::Client => "description",
        }
    }

    /// Every one.
    pub const ALL: [BlobKind; 4] =
        [BlobKind::Xattrs, BlobKind::Target, BlobKind::Content, BlobKind::Client];
}

/// The owner of a blob: an inode or a client, and what the blob is to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BlobOwner {
    number: u64,
    kind: BlobKind,
}

impl BlobOwner {
    /// A blob of an inode.
    pub fn inode(ino: Ino, kind: BlobKind) -> BlobOwner {
        assert_ne!(kind, BlobKind::Client, "a blob of an inode is no description of a client");
        BlobOwner { number: ino.0, kind }
    }

    /// The description of a client.
    pub fn client(client: ClientId) -> BlobOwner {
        BlobOwner { number: client.0, kind: BlobKind::Client }
    }

    /// Number of the inode or client.
    pub fn number(self) -> u64 {
        self.number
    }

    /// What the blob holds.
    pub fn kind(self) -> BlobKind {
        self.kind
    }
}

impl fmt::Display for BlobOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlobOwner { number, kind } = self;
        let of = if *kind == BlobKind::Client { "client" } else { "inode" };
        write!(f, "{} of {of} {number}", kind.text())
    }
}

/// The owner in a block, and the block's index in the chain.
///
/// # Errors
/// Says which field is invalid.
pub fn block_owner(block: &Block) -> Result<(BlobOwner, u32), &'static str> {
    let kind = BlobKind::ALL.into_iter().find(|kind| *kind as u8 == block[WHAT]);
    let kind = kind.ok_or("a blob of unknown kind")?;
    if block[RESERVED..INDEX].iter().any(|&byte| byte != 0) {
        return Err("a blob's reserved bytes are not zero");
    }
    Ok((BlobOwner { number: get_u64(block, OWNER), kind }, get_u32(block, INDEX)))
}

/// Writes owner and index into a block.
pub fn put_block_owner(block: &mut Block, owner: BlobOwner, index: u32) {
    put_u64(block, OWNER, owner.number);
    block[WHAT] = owner.kind as u8;
    put_u32(block, INDEX, index);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blob_block_names_its_owner_and_invalid_fields_are_refused() {
        let mut block = [0; BLOCK];
        assert!(block_owner(&block).is_err(), "no owner");
        for kind in [BlobKind::Xattrs, BlobKind::Target, BlobKind::Content] {
            let owner = BlobOwner::inode(Ino(u64::MAX - 7), kind);
            put_block_owner(&mut block, owner, 97);
            assert_eq!(block_owner(&block), Ok((owner, 97)));
        }
        let client = BlobOwner::client(ClientId(3));
        put_block_owner(&mut block, client, 0);
        assert_eq!(block_owner(&block), Ok((client, 0)));
        assert_eq!(block[DATA..], [0; BLOCK - DATA], "the owner does not reach into the data");
        for (at, value) in [(WHAT, 0), (WHAT, 5), (RESERVED, 1), (INDEX - 1, 1)] {
            let mut bad = block;
            bad[at] = value;
            assert!(block_owner(&bad).is_err(), "byte {at} is {value}");
        }
    }
}

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
//!
//! The xattrs of an inode, in a blob or in its slot: per attribute
//! ⟨name length 1, value length 4, name, value⟩, sorted by name, up to their end.

use std::fmt;

use types::limits::{BLOCK, CONTENT_MAX, XATTR_LENGTHS, XATTR_TOTAL_MAX, XATTR_VALUE_MAX};
use types::{ClientId, Ino};

use crate::block::{Block, get_u32, get_u64, put_u32, put_u64};

/// Offset of the link to the next block.
pub const NEXT: usize = 32;
/// Offset of the total length.
pub const TOTAL: usize = 40;
/// Offset of the length in this block.
pub const LEN: usize = 44;
/// Bytes of the longest blob: every name and value, with their lengths.
pub const BLOB_MAX: usize = XATTR_TOTAL_MAX * 6;
/// Offset of the data.
pub const DATA: usize = 64;
/// Bytes of data of one block.
pub const CAPACITY: usize = BLOCK - DATA;

/// Offset of the owner's number.
const OWNER: usize = 48;
const WHAT: usize = 56;
const RESERVED: usize = 57;
const INDEX: usize = 60;

const _: () = assert!(CONTENT_MAX <= CAPACITY, "content is one block");

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

/// Name and value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// The bytes of `xattrs`, which are sorted by name.
pub fn encode_xattrs(xattrs: &[Xattr]) -> Vec<u8> {
    let mut out =
        Vec::with_capacity(xattrs.iter().map(|(n, v)| XATTR_LENGTHS + n.len() + v.len()).sum());
    for (name, value) in xattrs {
        out.push(name.len() as u8);
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(name);
        out.extend_from_slice(value);
    }
    out
}

/// The inverse of [`encode_xattrs`]; `None` if the bytes are invalid.
pub fn decode_xattrs(bytes: &[u8]) -> Option<Vec<Xattr>> {
    decode_xattr_prefix(bytes).filter(|prefix| prefix.cut.is_none()).map(|all| all.whole)
}

/// Xattrs decoded from the first bytes of their encoding.
#[derive(Default)]
pub struct XattrPrefix {
    /// The complete ones.
    pub whole: Vec<Xattr>,
    /// The name of one that is incomplete; empty if its name is incomplete.
    pub cut: Option<Vec<u8>>,
}

/// As [`decode_xattrs`], when only the first bytes are left.
pub fn decode_xattr_prefix(mut bytes: &[u8]) -> Option<XattrPrefix> {
    let mut out = XattrPrefix::default();
    while !bytes.is_empty() {
        let Some((head, after)) = bytes.split_at_checked(XATTR_LENGTHS) else {
            out.cut = Some(Vec::new());
            break;
        };
        let (name_len, value_len) = (usize::from(head[0]), get_u32(head, 1) as usize);
        if name_len == 0 || value_len > XATTR_VALUE_MAX {
            return None;
        }
        let Some((name, after)) = after.split_at_checked(name_len) else {
            out.cut = Some(Vec::new());
            break;
        };
        if out.whole.last().is_some_and(|(last, _)| last.as_slice() >= name) {
            return None;
        }
        let Some((value, after)) = after.split_at_checked(value_len) else {
            out.cut = Some(name.to_vec());
            break;
        };
        out.whole.push((name.to_vec(), value.to_vec()));
        bytes = after;
    }
    Some(out)
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

    #[test]
    fn xattr_prefix_has_the_complete_xattrs_and_the_cut_one() {
        let xattrs = vec![(b"a".to_vec(), vec![1; 9]), (b"bc".to_vec(), vec![2; 9])];
        let bytes = encode_xattrs(&xattrs);
        for end in 0..=bytes.len() {
            let XattrPrefix { whole, cut } = decode_xattr_prefix(&bytes[..end]).unwrap();
            let count = usize::from(end >= 15) + usize::from(end == bytes.len());
            assert_eq!(whole, xattrs[..count], "{end}");
            let name: Option<&[u8]> = match end {
                0 | 15 | 31 => None,
                6..15 => Some(b"a"),
                22.. => Some(b"bc"),
                _ => Some(b""),
            };
            assert_eq!(cut.as_deref(), name, "{end}");
        }
        assert!(decode_xattr_prefix(&[0; 9]).is_none());
    }

    #[test]
    fn xattrs_round_trip_and_invalid_bytes_are_refused() {
        let xattrs = vec![(b"a".to_vec(), vec![]), (vec![b'b'; 255], vec![9; 65_536])];
        let bytes = encode_xattrs(&xattrs);
        assert_eq!(decode_xattrs(&bytes), Some(xattrs.clone()));
        assert_eq!(decode_xattrs(&bytes[..bytes.len() - 1]), None);
        let swapped = encode_xattrs(&[xattrs[1].clone(), xattrs[0].clone()]);
        assert_eq!(decode_xattrs(&swapped), None, "out of order");
        assert_eq!(decode_xattrs(&[1, 0xff, 0xff, 0xff, 0xff, b'x']), None);
        assert_eq!(decode_xattrs(&[]), Some(vec![]));
    }
}

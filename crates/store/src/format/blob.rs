//! Blobs: long symlink targets, xattrs and content that outgrew their slot, what clients
//! told at their hello. A chain of blocks.
//!
//! Invariants:
//! - a chain has no cycle, and its blocks are full except the last;
//! - on a file system with the feature `blob-owners` each block says whose blob it is of and where
//!   in it, and is believed by nobody else; without the feature none says so.
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 32 | header | block header, type 6; with the feature `blob-owners` 14 |
//! | 32 | 8 | next | next block of the chain, 0 none |
//! | 40 | 4 | total | bytes of the whole blob (first block), 0 in the others |
//! | 44 | 4 | len | bytes in this block |
//! | 48 | 4048 | data | type 6 |
//! | 48 | 8 | owner | type 14: number of the inode, or of the client |
//! | 56 | 1 | what | type 14: what it is of the owner: 1 xattrs, 2 target, 3 content, of a client 4 description |
//! | 57 | 3 | reserved | type 14: zero |
//! | 60 | 4 | index | type 14: which block of the chain, the first is 0 |
//! | 64 | 4032 | data | type 14 |
//!
//! The xattrs of an inode, in a blob or in its slot: per attribute
//! ⟨name length 1, value length 4, name, value⟩, sorted by name, up to their end.

use std::fmt;

use types::limits::{BLOCK, CONTENT_MAX, XATTR_LENGTHS, XATTR_TOTAL_MAX, XATTR_VALUE_MAX};
use types::{ClientId, Ino};

use crate::block::{Block, BlockType, get_u32, get_u64, put_u32, put_u64, type_of};

/// Offset of the link to the next block.
pub const NEXT: usize = 32;
/// Offset of the total length.
pub const TOTAL: usize = 40;
/// Offset of the length in this block.
pub const LEN: usize = 44;
/// Bytes of the longest blob: every name and value, with their lengths.
pub const BLOB_MAX: usize = XATTR_TOTAL_MAX * 6;

/// Offset of the data where a block does not say whose it is; else of the owner's number.
const OWNER: usize = 48;
const WHAT: usize = 56;
const RESERVED: usize = 57;
const INDEX: usize = 60;
const DATA: usize = 64;

const _: () = assert!(CONTENT_MAX <= Form::Owned.capacity(), "content is one block");

/// What the blocks of a blob are like.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Form {
    /// They do not say whose they are.
    Silent,
    /// They do.
    Owned,
}

impl Form {
    /// That of a block; `None` if it is of no blob.
    pub fn of(block: &Block) -> Option<Form> {
        match type_of(block)? {
            BlockType::Blob => Some(Form::Silent),
            BlockType::OwnedBlob => Some(Form::Owned),
            _ => None,
        }
    }

    /// The type of its blocks.
    pub const fn kind(self) -> BlockType {
        match self {
            Form::Silent => BlockType::Blob,
            Form::Owned => BlockType::OwnedBlob,
        }
    }

    /// Offset of the data.
    pub const fn data(self) -> usize {
        match self {
            Form::Silent => OWNER,
            Form::Owned => DATA,
        }
    }

    /// Bytes of data of one block.
    pub const fn capacity(self) -> usize {
        BLOCK - self.data()
    }
}

/// What a blob is of its owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum What {
    /// The extended attributes of an inode.
    Xattrs = 1,
    /// The target of a symlink.
    Target = 2,
    /// The content of block 0 of a file.
    Content = 3,
    /// What a client told of itself.
    Client = 4,
}

impl What {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            What::Xattrs => "extended attributes",
            What::Target => "target",
            What::Content => "content",
            What::Client => "description",
        }
    }

    /// Every one.
    pub const ALL: [What; 4] = [What::Xattrs, What::Target, What::Content, What::Client];
}

/// Whose a blob is, and what of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Whose {
    owner: u64,
    what: What,
}

impl Whose {
    /// Something of an inode.
    pub fn inode(ino: Ino, what: What) -> Whose {
        assert_ne!(what, What::Client, "an inode is no client");
        Whose { owner: ino.0, what }
    }

    /// The description of a client.
    pub fn client(client: ClientId) -> Whose {
        Whose { owner: client.0, what: What::Client }
    }

    /// Number of the inode or client.
    pub fn owner(self) -> u64 {
        self.owner
    }

    /// What it is.
    pub fn what(self) -> What {
        self.what
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Whose { owner, what } = self;
        let of = if *what == What::Client { "client" } else { "inode" };
        write!(f, "{} of {of} {owner}", what.text())
    }
}

/// Whose blob a block of the form `Owned` is of, and which block of it.
///
/// # Errors
/// Says what makes no sense.
pub fn owner(block: &Block) -> Result<(Whose, u32), &'static str> {
    let what = What::ALL.into_iter().find(|what| *what as u8 == block[WHAT]);
    let what = what.ok_or("a blob of nothing that has one")?;
    if block[RESERVED..INDEX].iter().any(|&byte| byte != 0) {
        return Err("a blob's reserved bytes are not zero");
    }
    Ok((Whose { owner: get_u64(block, OWNER), what }, get_u32(block, INDEX)))
}

/// Notes in a block of the form `Owned` whose blob it is of, and which block of it.
pub fn put_owner(block: &mut Block, whose: Whose, index: u32) {
    put_u64(block, OWNER, whose.owner);
    block[WHAT] = whose.what as u8;
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

/// What [`encode_xattrs`] made; `None` if the bytes mean nothing.
pub fn decode_xattrs(bytes: &[u8]) -> Option<Vec<Xattr>> {
    decode_beginning(bytes).filter(|beginning| beginning.cut.is_none()).map(|all| all.whole)
}

/// What is known of xattrs by their first bytes.
#[derive(Default)]
pub struct Beginning {
    /// Those that are there whole.
    pub whole: Vec<Xattr>,
    /// The name of one of which a part is missing; empty if its name is.
    pub cut: Option<Vec<u8>>,
}

/// As [`decode_xattrs`], if only the first bytes are left.
pub fn decode_beginning(mut bytes: &[u8]) -> Option<Beginning> {
    let mut out = Beginning::default();
    while !bytes.is_empty() {
        let Some((head, rest)) = bytes.split_at_checked(XATTR_LENGTHS) else {
            out.cut = Some(Vec::new());
            break;
        };
        let (name_len, value_len) = (usize::from(head[0]), get_u32(head, 1) as usize);
        if name_len == 0 || value_len > XATTR_VALUE_MAX {
            return None;
        }
        let Some((name, rest)) = rest.split_at_checked(name_len) else {
            out.cut = Some(Vec::new());
            break;
        };
        if out.whole.last().is_some_and(|(last, _)| last.as_slice() >= name) {
            return None;
        }
        let Some((value, rest)) = rest.split_at_checked(value_len) else {
            out.cut = Some(name.to_vec());
            break;
        };
        out.whole.push((name.to_vec(), value.to_vec()));
        bytes = rest;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_whose_it_is_and_senseless_words_are_refused() {
        let mut block = [0; BLOCK];
        assert!(owner(&block).is_err(), "of nobody");
        for what in [What::Xattrs, What::Target, What::Content] {
            let whose = Whose::inode(Ino(u64::MAX - 7), what);
            put_owner(&mut block, whose, 97);
            assert_eq!(owner(&block), Ok((whose, 97)));
        }
        let client = Whose::client(ClientId(3));
        put_owner(&mut block, client, 0);
        assert_eq!(owner(&block), Ok((client, 0)));
        assert_eq!(block[DATA..], [0; BLOCK - DATA], "nothing of it lies where data begin");
        for (at, value) in [(WHAT, 0), (WHAT, 5), (RESERVED, 1), (INDEX - 1, 1)] {
            let mut bad = block;
            bad[at] = value;
            assert!(owner(&bad).is_err(), "byte {at} is {value}");
        }
    }

    #[test]
    fn both_forms_hold_as_much_as_their_block_has_room_for() {
        for (form, capacity) in [(Form::Silent, 4048), (Form::Owned, 4032)] {
            assert_eq!((form.capacity(), form.data() + form.capacity()), (capacity, BLOCK));
            let mut block = [0; BLOCK];
            block[4] = form.kind() as u8;
            assert_eq!(Form::of(&block), Some(form));
        }
        assert_eq!(Form::of(&[0; BLOCK]), None);
    }

    #[test]
    fn the_first_bytes_tell_which_xattrs_are_whole_and_which_one_is_cut() {
        let xattrs = vec![(b"a".to_vec(), vec![1; 9]), (b"bc".to_vec(), vec![2; 9])];
        let bytes = encode_xattrs(&xattrs);
        for end in 0..=bytes.len() {
            let Beginning { whole, cut } = decode_beginning(&bytes[..end]).unwrap();
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
        assert!(decode_beginning(&[0; 9]).is_none());
    }

    #[test]
    fn xattrs_survive_and_senseless_bytes_are_refused() {
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

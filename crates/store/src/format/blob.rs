//! Blobs: long symlink targets, xattrs and content that outgrew their slot, what clients
//! told at their hello. A chain of blocks.
//!
//! Invariants: a chain has no cycle, and its blocks are full except the last.
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 32 | header | block header, type Blob |
//! | 32 | 8 | next | next block of the chain, 0 none |
//! | 40 | 4 | total | bytes of the whole blob (first block), 0 in the others |
//! | 44 | 4 | len | bytes in this block |
//! | 48 | 4048 | data | |
//!
//! The xattrs of an inode, in a blob or in its slot: per attribute
//! ⟨name length 1, value length 4, name, value⟩, sorted by name, up to their end.

use types::limits::{BLOCK, XATTR_LENGTHS, XATTR_TOTAL_MAX, XATTR_VALUE_MAX};

use crate::block::get_u32;

/// Offset of the link to the next block.
pub const NEXT: usize = 32;
/// Offset of the total length.
pub const TOTAL: usize = 40;
/// Offset of the length in this block.
pub const LEN: usize = 44;
/// Offset of the data.
pub const DATA: usize = 48;
/// Bytes of data of one block.
pub const CAPACITY: usize = BLOCK - DATA;
/// Bytes of the longest blob: every name and value, with their lengths.
pub const BLOB_MAX: usize = XATTR_TOTAL_MAX * 6;

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

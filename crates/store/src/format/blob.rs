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
pub fn decode_xattrs(mut bytes: &[u8]) -> Option<Vec<Xattr>> {
    let mut out: Vec<Xattr> = Vec::new();
    while !bytes.is_empty() {
        if bytes.len() < 5 {
            return None;
        }
        let (name_len, value_len) = (usize::from(bytes[0]), get_u32(bytes, 1) as usize);
        if name_len == 0 || value_len > XATTR_VALUE_MAX {
            return None;
        }
        let name = bytes.get(5..5 + name_len)?;
        let value = bytes.get(5 + name_len..5 + name_len + value_len)?;
        if out.last().is_some_and(|(last, _)| last.as_slice() >= name) {
            return None;
        }
        out.push((name.to_vec(), value.to_vec()));
        bytes = &bytes[5 + name_len + value_len..];
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Xattrs, as bytes in the slot of their inode or in a blob.
//!
//! The xattrs of an inode, in a blob or in its slot: per attribute
//! ⟨name length 1, value length 4, name, value⟩, sorted by name, up to their end.

use types::limits::{CONTENT_MAX, XATTR_LENGTHS, XATTR_TOTAL_MAX, XATTR_VALUE_MAX};

use engine::format::blob::CAPACITY;
use engine::format::block::get_u32;

/// Bytes of the longest blob: every name and value, with their lengths.
pub const BLOB_MAX: usize = XATTR_TOTAL_MAX * 6;

const _: () = assert!(CONTENT_MAX <= CAPACITY, "content is one block");

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

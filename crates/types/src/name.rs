//! Names of directory entries.

use std::fmt;

use crate::limits::NAME_MAX;

/// A validated entry name: 1..=255 bytes of anything but '/' and NUL, and
/// neither "." nor "..".
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

/// Why bytes are not a [`Name`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameError {
    /// No bytes, or "." or "..".
    Reserved,
    /// More than 255 bytes.
    TooLong,
    /// Contains '/' or NUL.
    BadByte,
}

impl Name {
    /// Checks `bytes`.
    pub fn new(bytes: &[u8]) -> Result<Name, NameError> {
        if bytes.len() > NAME_MAX {
            return Err(NameError::TooLong);
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." {
            return Err(NameError::Reserved);
        }
        if bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(NameError::BadByte);
        }
        Ok(Name(bytes.into()))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The hash of a name, for ever: FNV-1a of its bytes with 64 bits, then mixed so that each bit
/// depends on the whole name.
pub fn name_hash(name: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in name {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0).escape_debug())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_names_are_settled_and_even() {
        assert_eq!(name_hash(b"file.0000001"), 0x0b7e_5fcf_d1eb_6b8b);
        let mut counts = [0; 3];
        (0..3000).for_each(|n| counts[(name_hash(format!("f.{n}").as_bytes()) % 3) as usize] += 1);
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    }

    #[test]
    fn only_legal_names_pass() {
        assert!(Name::new(b"a b\xff\n").is_ok());
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert_eq!(Name::new(&[b'x'; 256]), Err(NameError::TooLong));
        for reserved in [&b""[..], b".", b".."] {
            assert_eq!(Name::new(reserved), Err(NameError::Reserved));
        }
        for bad in [&b"a/b"[..], b"a\0"] {
            assert_eq!(Name::new(bad), Err(NameError::BadByte));
        }
    }
}

//! The namespace index: one tree of all directories, sisters beside each other (002 §3.2).
//!
//! Invariants, on a file system with the feature `namespace-index`:
//! - every directory whose slot lies in a directory other than the attic has exactly one entry; the
//!   root has none, nor has a directory in the attic, and there are no others;
//! - the key names the directory in which the slot lies by its first chunk, which stays as long as
//!   it lives, and the *stream* that made the directory, which its slot repeats (7.2);
//! - files change nothing here, nor does the growth of a directory: an entry comes with mkdir, goes
//!   with rmdir, and changes its place when a directory is moved to another one.
//!
//! A key, 128 bits, big-endian:
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 40 | parent | first chunk of the directory in which it lies |
//! | 24 | stream | user in the high 12 bits, client in the low: who made it |
//! | 64 | directory | its inode number |
//!
//! A value, 8 bytes: the metadata block at which the content begins, or was to begin where there
//! was no room; 0: any. It is where the next sister looks for room behind, and nothing is found
//! through it.
//!
//! An entry whose key is all zeros means nothing and is there from mkfs on.
//!
//! The user is that of the owner at mkdir: `uid ^ uid >> 12 ^ uid >> 24`, the client the number of
//! the client that asked, 0 where none did (`redbud load`, repair), each in its low 12 bits. Who
//! shares a stream by chance lies together, no more. (The paper has 54, 20 and 54 bits, and takes
//! the address of the first content block for a directory. Here an empty directory has no content,
//! and content may move; the inode number stays, leads to the inode, and never comes again. Nor
//! does the process count: a directory tree is a user's work through many short processes.)

use types::{ClientId, DirNo, Ino, MetaBlock};

/// Bytes of a key.
pub const NAMESPACE_KEY: usize = 16;
/// Bytes of a value.
pub const NAMESPACE_VALUE: usize = 8;
/// Bits of a stream, and of the client in it.
const STREAM_BITS: u32 = 24;
const CLIENT_BITS: u32 = 12;
const CLIENT_MASK: u64 = (1 << CLIENT_BITS) - 1;

/// Who made a directory: a user through a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Stream(u32);

impl Stream {
    /// That of a user and a client.
    pub fn of(uid: u32, client: ClientId) -> Stream {
        let user = (uid ^ uid >> 12 ^ uid >> 24) & CLIENT_MASK as u32;
        Stream(user << CLIENT_BITS | (client.0 & CLIENT_MASK) as u32)
    }

    /// As a number below 2^24.
    pub fn number(self) -> u32 {
        self.0
    }

    /// What [`Stream::number`] gave; higher bits are dropped.
    pub fn from_number(number: u32) -> Stream {
        Stream(number & ((1 << STREAM_BITS) - 1))
    }

    /// Are both of one user, as far as that can be told?
    pub fn same_user(self, other: Stream) -> bool {
        self.0 >> CLIENT_BITS == other.0 >> CLIENT_BITS
    }
}

/// What a key says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry {
    /// First chunk of the directory in which it lies.
    pub parent: DirNo,
    /// Who made it.
    pub stream: Stream,
    /// The directory.
    pub dir: Ino,
}

impl Entry {
    /// Its key.
    pub fn key(self) -> [u8; NAMESPACE_KEY] {
        let mut out = [0; NAMESPACE_KEY];
        let high = self.parent.0 << STREAM_BITS | u64::from(self.stream.0);
        out[..8].copy_from_slice(&high.to_be_bytes());
        out[8..].copy_from_slice(&self.dir.0.to_be_bytes());
        out
    }

    /// What a key means; every key means something.
    pub fn of(key: &[u8; NAMESPACE_KEY]) -> Entry {
        let word = u128::from_be_bytes(*key);
        let high = (word >> 64) as u64;
        Entry {
            parent: DirNo(high >> STREAM_BITS),
            stream: Stream::from_number(high as u32),
            dir: Ino(word as u64),
        }
    }
}

/// The value for content that begins at `start`.
pub fn encode_start(start: Option<MetaBlock>) -> [u8; NAMESPACE_VALUE] {
    start.map_or(0, |block| block.0).to_le_bytes()
}

/// Where a value says that content begins.
pub fn decode_start(value: &[u8; NAMESPACE_VALUE]) -> Option<MetaBlock> {
    let block = u64::from_le_bytes(*value);
    (block != 0).then_some(MetaBlock(block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::number::DIRNO_MAX;

    #[test]
    fn a_key_says_what_was_put_in_and_sorts_by_parent_stream_and_directory() {
        let entry = |parent, uid, client, dir| {
            let stream = Stream::of(uid, ClientId(client));
            Entry { parent: DirNo(parent), stream, dir: Ino(dir) }
        };
        let sorted = [
            entry(1, 0, 0, 5),
            entry(1, 0, 0, u64::MAX),
            entry(1, 0, 4095, 1),
            entry(1, 1, 0, 0),
            entry(1, 4095, 4095, 0),
            entry(2, 0, 0, 0),
            entry(DIRNO_MAX, 4095, 4095, u64::MAX),
        ];
        assert!(sorted.windows(2).all(|pair| pair[0].key() < pair[1].key()));
        for entry in sorted {
            assert_eq!(Entry::of(&entry.key()), entry);
            assert_eq!(Stream::from_number(entry.stream.number()), entry.stream);
        }
    }

    #[test]
    fn a_stream_is_a_user_and_a_client() {
        let stream = |uid, client| Stream::of(uid, ClientId(client));
        assert!(stream(1000, 7).same_user(stream(1000, 8)));
        assert!(!stream(1000, 7).same_user(stream(1001, 7)));
        assert_ne!(stream(1000, 7), stream(1000, 8));
        // Users whose numbers differ only in high bits are told apart.
        assert!(!stream(1 << 16, 7).same_user(stream(2 << 16, 7)));
        assert_eq!(stream(u32::MAX, u64::MAX).number() >> STREAM_BITS, 0);
    }
}

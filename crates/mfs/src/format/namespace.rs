//! The namespace index: one tree of all directories, siblings beside each other (002 §3.2).
//!
//! Invariants:
//! - every directory whose slot lies in a directory other than the orphan directory has exactly one
//!   entry. The root has none, nor has a directory in the orphan directory, and there are no
//!   others;
//! - the key names the parent directory by its first chunk, which does not change while the parent
//!   exists. It also names the *stream* that created the directory, which the directory's slot
//!   repeats (7.2);
//! - neither files nor the growth of a directory change the index: mkdir inserts an entry, rmdir
//!   removes it, and a move to another directory moves it.
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
//! was no room; 0: any. The next sibling looks for room after it; nothing is found through it.
//!
//! An entry whose key is all zeros means nothing; mkfs inserts it.
//!
//! The user is that of the owner at mkdir: `uid ^ uid >> 12 ^ uid >> 24`. The client is the number
//! of the client that asked, 0 where none did (`redbud load`, repair). Each has its low 12 bits. If
//! two users or clients share a stream by chance, their directories lie together; nothing else
//! follows.
//!
//! (The paper has 54, 20 and 54 bits, and takes the address of the first content block for a
//! directory. Here an empty directory has no content, and content may move; the inode number stays,
//! leads to the inode, and is never issued again. The process does not count either: many short
//! processes build one user's directory tree.)

use types::{ClientId, DirNo, Ino, MetaBlock};

/// Bytes of a key.
pub const NAMESPACE_KEY: usize = 16;
/// Bytes of a value.
pub const NAMESPACE_VALUE: usize = 8;
/// Bits of a stream, and of the client in it.
const STREAM_BITS: u32 = 24;
const CLIENT_BITS: u32 = 12;
const CLIENT_MASK: u64 = (1 << CLIENT_BITS) - 1;

/// The creator of a directory: a user through a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Stream(u32);

impl Stream {
    /// The stream of a user and a client.
    pub fn of(uid: u32, client: ClientId) -> Stream {
        let user = (uid ^ uid >> 12 ^ uid >> 24) & CLIENT_MASK as u32;
        Stream(user << CLIENT_BITS | (client.0 & CLIENT_MASK) as u32)
    }

    /// As a number below 2^24.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The inverse of [`Stream::number`]; higher bits are dropped.
    pub fn from_number(number: u32) -> Stream {
        Stream(number & ((1 << STREAM_BITS) - 1))
    }

    /// Do both have the same user, as far as 12 bits show?
    pub fn same_user(self, other: Stream) -> bool {
        self.0 >> CLIENT_BITS == other.0 >> CLIENT_BITS
    }
}

/// An entry of the index: the fields of its key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NamespaceEntry {
    /// First chunk of the parent directory.
    pub parent: DirNo,
    /// The stream that created it.
    pub stream: Stream,
    /// The directory.
    pub dir: Ino,
}

impl NamespaceEntry {
    /// Its encoded key.
    pub fn key(self) -> [u8; NAMESPACE_KEY] {
        let mut out = [0; NAMESPACE_KEY];
        let high = self.parent.0 << STREAM_BITS | u64::from(self.stream.0);
        out[..8].copy_from_slice(&high.to_be_bytes());
        out[8..].copy_from_slice(&self.dir.0.to_be_bytes());
        out
    }

    /// Decodes a key; every key is valid.
    pub fn of(key: &[u8; NAMESPACE_KEY]) -> NamespaceEntry {
        let word = u128::from_be_bytes(*key);
        let high = (word >> 64) as u64;
        NamespaceEntry {
            parent: DirNo(high >> STREAM_BITS),
            stream: Stream::from_number(high as u32),
            dir: Ino(word as u64),
        }
    }
}

/// Encodes the value for content that begins at `start`.
pub fn encode_start(start: Option<MetaBlock>) -> [u8; NAMESPACE_VALUE] {
    start.map_or(0, |block| block.0).to_le_bytes()
}

/// Decodes a value: where content begins.
pub fn decode_start(value: &[u8; NAMESPACE_VALUE]) -> Option<MetaBlock> {
    let block = u64::from_le_bytes(*value);
    (block != 0).then_some(MetaBlock(block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::number::DIRNO_MAX;

    #[test]
    fn key_round_trips_and_sorts_by_parent_stream_and_directory() {
        let entry = |parent, uid, client, dir| {
            let stream = Stream::of(uid, ClientId(client));
            NamespaceEntry { parent: DirNo(parent), stream, dir: Ino(dir) }
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
            assert_eq!(NamespaceEntry::of(&entry.key()), entry);
            assert_eq!(Stream::from_number(entry.stream.number()), entry.stream);
        }
    }

    #[test]
    fn stream_is_a_user_and_a_client() {
        let stream = |uid, client| Stream::of(uid, ClientId(client));
        assert!(stream(1000, 7).same_user(stream(1000, 8)));
        assert!(!stream(1000, 7).same_user(stream(1001, 7)));
        assert_ne!(stream(1000, 7), stream(1000, 8));
        // Users whose numbers differ only in high bits get different streams.
        assert!(!stream(1 << 16, 7).same_user(stream(2 << 16, 7)));
        assert_eq!(stream(u32::MAX, u64::MAX).number() >> STREAM_BITS, 0);
    }
}

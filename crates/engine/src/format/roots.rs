//! The roots: 64 words in a fixed block, from which the store finds everything else.
//!
//! Invariants:
//! - the meaning of a word, given by its [`RootId`], never changes; 0 is "none yet";
//! - both copies of the superblock repeat the words (see there): one damaged block never loses the
//!   file system.
//!
//! | offset | size | field | meaning               |
//! |-------:|-----:|-------|-----------------------|
//! |      0 |   32 | header| block header          |
//! |     32 |  512 | roots | 64 words of 8 bytes, word n at 32 + 8n (5.1) |
//! |    544 | 3552 |       | reserved, zero        |

use types::MetaBlock;

use crate::format::block::{HEADER, get_u64, put_u64};

/// Index of a root, below 64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub struct RootId(pub u8);

/// The block of the roots.
pub const ROOTS_BLOCK: MetaBlock = MetaBlock(2);
/// Number of roots.
pub const ROOTS: u8 = 64;

/// The words.
pub type RootWords = [u64; ROOTS as usize];

/// The words at the front of `bytes`.
pub(crate) fn get_words(bytes: &[u8]) -> RootWords {
    std::array::from_fn(|at| get_u64(bytes, 8 * at))
}

/// Puts the words at the front of `bytes`.
pub(crate) fn put_words(words: &RootWords, bytes: &mut [u8]) {
    words.iter().enumerate().for_each(|(at, &word)| put_u64(bytes, 8 * at, word));
}

impl RootId {
    /// Byte offset in the roots block.
    pub fn offset(self) -> u16 {
        assert!(self.0 < ROOTS, "there are {ROOTS} roots");
        (HEADER + 8 * usize::from(self.0)) as u16
    }
}

/// Root of a tree that repair builds, until it replaces a damaged one.
pub const SCRATCH: RootId = RootId(63);

/// What an interrupted repair leaves to the next one: a set of [`BITMAP_LOST`] and
/// [`PARTIAL_TREE`].
pub const UNFINISHED: RootId = RootId(59);
/// A part of the bitmap was lost: blocks that were free may look allocated.
pub const BITMAP_LOST: u64 = 1;
/// There are nodes of an unfinished tree.
pub const PARTIAL_TREE: u64 = 2;

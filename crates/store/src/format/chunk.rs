//! The global directory table: where the content of every chunk lies.
//!
//! Invariants:
//! - a chunk has one descriptor (key ⟨chunk, 0xffff⟩) and one item per run of
//!   contiguous content blocks (key ⟨chunk, index of the run's first block⟩);
//! - runs cover `[0, allocated)` without gaps; blocks `[0, used)` are
//!   initialised, the rest was never read or written;
//! - a run whose slots are all retired may have given its blocks back (start 0).
//!
//! Key: 8 bytes big-endian, chunk in bits 16..56, index in the low 16.
//!
//! | offset | size | descriptor | run |
//! |---|---|---|---|
//! | 0 | 8 | owner (`Ino`; 0: the system) | start: first metadata block, 0: given back |
//! | 8 | 8 | next chunk of the owner, 0: the last | reserved |
//! | 16 | 4 | index of the chunk in its directory | length in blocks |
//! | 20 | 4 | used: initialised blocks | reserved |

use types::{DirNo, Ino, MetaBlock};

use super::number::{CHUNK_BLOCKS, DIRNO_MAX};
use crate::block::{get_u32, get_u64, put_u32, put_u64};

/// Bytes of a key.
pub const CHUNK_KEY: usize = 8;
/// Bytes of a value.
pub const CHUNK_VALUE: usize = 24;
/// Index of a descriptor.
pub const DESCRIPTOR: u32 = 0xffff;

const _: () = assert!(CHUNK_BLOCKS < DESCRIPTOR);

/// One run of content blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Index in the chunk of its first block.
    pub first: u32,
    /// Where it lies; block 0 if it was given back.
    pub start: MetaBlock,
    /// Length in blocks.
    pub len: u32,
}

/// What the descriptor says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The directory whose content it is.
    pub owner: Ino,
    /// The owner's next chunk; 0 none.
    pub next: DirNo,
    /// Position among the owner's chunks.
    pub index: u32,
    /// Blocks initialised.
    pub used: u32,
}

/// Key of item `index` of `chunk`.
pub fn chunk_key(chunk: DirNo, index: u32) -> [u8; CHUNK_KEY] {
    (chunk.0 << 16 | u64::from(index)).to_be_bytes()
}

/// Chunk and index that a key means.
pub fn decode_key(key: &[u8; CHUNK_KEY]) -> Option<(DirNo, u32)> {
    let word = u64::from_be_bytes(*key);
    (word >> 16 <= DIRNO_MAX).then_some((DirNo(word >> 16), (word & 0xffff) as u32))
}

impl Run {
    /// Its value.
    pub fn encode(&self) -> [u8; CHUNK_VALUE] {
        let mut out = [0; CHUNK_VALUE];
        put_u64(&mut out, 0, self.start.0);
        put_u32(&mut out, 16, self.len);
        out
    }

    /// The run that a value under index `first` means.
    pub fn decode(first: u32, value: &[u8; CHUNK_VALUE]) -> Option<Run> {
        let run = Run { first, start: MetaBlock(get_u64(value, 0)), len: get_u32(value, 16) };
        let sound = run.len > 0
            && run.len <= CHUNK_BLOCKS
            && first + run.len <= CHUNK_BLOCKS
            && run.start.0.checked_add(u64::from(run.len)).is_some();
        sound.then_some(run)
    }
}

impl Descriptor {
    /// Its value.
    pub fn encode(&self) -> [u8; CHUNK_VALUE] {
        let mut out = [0; CHUNK_VALUE];
        put_u64(&mut out, 0, self.owner.0);
        put_u64(&mut out, 8, self.next.0);
        put_u32(&mut out, 16, self.index);
        put_u32(&mut out, 20, self.used);
        out
    }

    /// The descriptor that a value means.
    pub fn decode(value: &[u8; CHUNK_VALUE]) -> Option<Descriptor> {
        let out = Descriptor {
            owner: Ino(get_u64(value, 0)),
            next: DirNo(get_u64(value, 8)),
            index: get_u32(value, 16),
            used: get_u32(value, 20),
        };
        (out.next.0 <= DIRNO_MAX && out.used <= CHUNK_BLOCKS).then_some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_descriptors_survive() {
        let run = Run { first: 8, start: MetaBlock(1 << 50), len: 8 };
        assert_eq!(Run::decode(8, &run.encode()), Some(run));
        assert_eq!(Run::decode(CHUNK_BLOCKS - 1, &run.encode()), None, "past the chunk");
        let descriptor = Descriptor { owner: Ino(9), next: DirNo(DIRNO_MAX), index: 3, used: 17 };
        assert_eq!(Descriptor::decode(&descriptor.encode()), Some(descriptor));
        assert_eq!(decode_key(&chunk_key(DirNo(5), DESCRIPTOR)), Some((DirNo(5), DESCRIPTOR)));
        assert_eq!(decode_key(&[0xff; 8]), None);
    }
}

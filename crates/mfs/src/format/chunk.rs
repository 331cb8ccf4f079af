//! The global directory table: where the content of every chunk lies.
//!
//! Invariants:
//! - a chunk holds directory content (blocks of slots) or buckets of a directory's name map, at
//!   most 8,192 blocks. Slot s of a chunk is the (s % 8)th of its block s / 8 (7.2);
//! - a directory's slot has the first chunk of its content and the first of its name map; each
//!   descriptor has the next one;
//! - a chunk has one descriptor (key ⟨chunk, 0xffff⟩) and one item per run of contiguous content
//!   blocks (key ⟨chunk, index of the run's first block⟩);
//! - runs cover `[0, allocated)` without gaps; blocks `[0, used)` are initialised, the others are
//!   never read;
//! - a run below `used` whose slots were all empty may have given its blocks back (start 0). It
//!   keeps the next reuse number for its slots, for when it gets blocks again, so that no inode
//!   number is issued twice. If no reuse number is left (0), it never gets blocks again.
//!
//! Key: 8 bytes big-endian, chunk in bits 16..56, index in the low 16.
//!
//! | offset | size | descriptor | run |
//! |---|---|---|---|
//! | 0 | 8 | owner (`Ino`; 0: the system) | start: first metadata block, 0: given back |
//! | 8 | 8 | next chunk of the owner, 0: the last | reserved |
//! | 16 | 4 | index of the chunk in its directory; of the name map 2^31 and its index there | length in blocks |
//! | 20 | 4 | used: initialised blocks | given back: next reuse number of its slots, 0: all are retired; else 0 |

use types::{DirNo, Ino, MetaBlock};

use super::number::{CHUNK_BLOCKS, DIRNO_MAX};
use super::slot::RETIRED;
use engine::format::block::{get_u32, get_u64, put_u32, put_u64};

/// Bytes of a key.
pub const CHUNK_KEY: usize = 8;
/// Bytes of a value.
pub const CHUNK_VALUE: usize = 24;
/// Flag in the index of a chunk that belongs to a name map.
pub const MAP_CHUNK: u32 = 1 << 31;
/// The index that stands for the descriptor in a key.
pub const DESCRIPTOR: u32 = 0xffff;

const _: () = assert!(CHUNK_BLOCKS < DESCRIPTOR);

/// One run of content blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContentRun {
    /// Index in the chunk of its first block.
    pub first: u32,
    /// Its first metadata block; 0 if its blocks were given back.
    pub start: MetaBlock,
    /// Length in blocks.
    pub len: u32,
    /// If its blocks were given back: the next reuse number of its slots, at most [`RETIRED`]; else
    /// 0.
    pub reuse: u16,
}

/// The descriptor of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The directory that the chunk belongs to.
    pub owner: Ino,
    /// The owner's next chunk; 0 none.
    pub next: DirNo,
    /// Position among the owner's chunks of content, or with [`MAP_CHUNK`] among those of its name
    /// map.
    pub index: u32,
    /// Number of initialised blocks.
    pub used: u32,
}

/// Key of item `index` of `chunk`.
pub fn chunk_key(chunk: DirNo, index: u32) -> [u8; CHUNK_KEY] {
    (chunk.0 << 16 | u64::from(index)).to_be_bytes()
}

/// Chunk and index in a key.
pub fn decode_key(key: &[u8; CHUNK_KEY]) -> Option<(DirNo, u32)> {
    let word = u64::from_be_bytes(*key);
    (word >> 16 <= DIRNO_MAX).then_some((DirNo(word >> 16), (word & 0xffff) as u32))
}

impl ContentRun {
    /// Blocks `first..first + len` of a chunk, at metadata blocks from `start` on.
    pub fn present(first: u32, start: MetaBlock, len: u32) -> ContentRun {
        ContentRun { first, start, len, reuse: 0 }
    }

    /// Blocks that were given back; `reuse` is the next reuse number of their slots.
    pub fn hole(first: u32, len: u32, reuse: u16) -> ContentRun {
        ContentRun { first, start: MetaBlock(0), len, reuse: reuse.clamp(1, RETIRED) }
    }

    /// Does it have blocks?
    pub fn is_present(&self) -> bool {
        self.start.0 != 0
    }

    /// Do its blocks, if it has any, lie on a device of `blocks` blocks?
    pub fn is_within(&self, blocks: u64) -> bool {
        let end = self.start.0.checked_add(u64::from(self.len));
        !self.is_present() || end.is_some_and(|end| end <= blocks)
    }

    /// One past its last block.
    pub fn end(&self) -> u32 {
        self.first + self.len
    }

    /// The metadata block of content block `block`, which must be in this run, if the run has
    /// blocks.
    pub fn home(&self, block: u32) -> MetaBlock {
        MetaBlock(self.start.0 + u64::from(block - self.first))
    }

    /// The part of it in `first..end`; `None` if that is empty.
    pub fn part(&self, first: u32, end: u32) -> Option<ContentRun> {
        let (first, end) = (first.max(self.first), end.min(self.end()));
        if first >= end {
            return None;
        }
        let start = if self.is_present() { self.home(first) } else { self.start };
        Some(ContentRun { first, start, len: end - first, ..*self })
    }

    /// This run joined with the next one, if they are contiguous and of one kind.
    pub fn joined(&self, next: &ContentRun) -> Option<ContentRun> {
        let fits = match (self.is_present(), next.is_present()) {
            (true, true) => self.start.0 + u64::from(self.len) == next.start.0,
            (false, false) => self.reuse == next.reuse,
            _ => false,
        };
        (fits && self.end() == next.first)
            .then_some(ContentRun { len: self.len + next.len, ..*self })
    }

    /// Its encoded value.
    pub fn encode(&self) -> [u8; CHUNK_VALUE] {
        let mut out = [0; CHUNK_VALUE];
        put_u64(&mut out, 0, self.start.0);
        put_u32(&mut out, 16, self.len);
        if !self.is_present() && self.reuse < RETIRED {
            put_u32(&mut out, 20, u32::from(self.reuse));
        }
        out
    }

    /// Decodes the value stored under index `first`.
    pub fn decode(first: u32, value: &[u8; CHUNK_VALUE]) -> Option<ContentRun> {
        let start = MetaBlock(get_u64(value, 0));
        let reuse = match (start.0, get_u32(value, 20)) {
            (0, 0) => RETIRED,
            (0, reuse) => u16::try_from(reuse).ok().filter(|&reuse| reuse < RETIRED)?,
            (_, 0) => 0,
            _ => return None,
        };
        let run = ContentRun { first, start, len: get_u32(value, 16), reuse };
        let sound = run.len > 0
            && run.len <= CHUNK_BLOCKS
            && first + run.len <= CHUNK_BLOCKS
            && run.start.0.checked_add(u64::from(run.len)).is_some();
        sound.then_some(run)
    }
}

impl Descriptor {
    /// Does the chunk belong to a name map?
    pub fn is_map(&self) -> bool {
        self.index & MAP_CHUNK != 0
    }

    /// Its encoded value.
    pub fn encode(&self) -> [u8; CHUNK_VALUE] {
        let mut out = [0; CHUNK_VALUE];
        put_u64(&mut out, 0, self.owner.0);
        put_u64(&mut out, 8, self.next.0);
        put_u32(&mut out, 16, self.index);
        put_u32(&mut out, 20, self.used);
        out
    }

    /// Decodes a value.
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
    fn runs_and_descriptors_round_trip() {
        let run = ContentRun::present(8, MetaBlock(1 << 50), 8);
        assert_eq!(ContentRun::decode(8, &run.encode()), Some(run));
        assert_eq!(ContentRun::decode(CHUNK_BLOCKS - 1, &run.encode()), None, "past the chunk");
        for reuse in [1, 255, RETIRED] {
            let run = ContentRun::hole(8, 8, reuse);
            assert_eq!(ContentRun::decode(8, &run.encode()), Some(run));
        }
        let mut value = run.encode();
        put_u32(&mut value, 20, 1);
        assert_eq!(ContentRun::decode(8, &value), None, "a reuse number of a run with blocks");
        let mut value = ContentRun::hole(8, 8, 1).encode();
        put_u32(&mut value, 20, u32::from(RETIRED));
        assert_eq!(ContentRun::decode(8, &value), None, "an invalid reuse number");
        let descriptor = Descriptor { owner: Ino(9), next: DirNo(DIRNO_MAX), index: 3, used: 17 };
        assert_eq!(Descriptor::decode(&descriptor.encode()), Some(descriptor));
        assert_eq!(decode_key(&chunk_key(DirNo(5), DESCRIPTOR)), Some((DirNo(5), DESCRIPTOR)));
        assert_eq!(decode_key(&[0xff; 8]), None);
    }

    #[test]
    fn runs_are_cut_and_contiguous_ones_joined() {
        let run = ContentRun::present(8, MetaBlock(100), 8);
        assert_eq!(run.part(10, 99), Some(ContentRun::present(10, MetaBlock(102), 6)));
        assert_eq!(run.part(0, 9), Some(ContentRun::present(8, MetaBlock(100), 1)));
        assert_eq!(run.part(0, 8), None);
        assert_eq!(ContentRun::hole(8, 8, 3).part(9, 10), Some(ContentRun::hole(9, 1, 3)));
        let next = ContentRun::present(16, MetaBlock(108), 1);
        assert_eq!(run.joined(&next), Some(ContentRun::present(8, MetaBlock(100), 9)));
        assert_eq!(run.joined(&ContentRun::present(16, MetaBlock(109), 1)), None);
        assert_eq!(run.joined(&ContentRun::hole(16, 1, 3)), None);
        assert_eq!(
            ContentRun::hole(8, 8, 3).joined(&ContentRun::hole(16, 1, 3)),
            Some(ContentRun::hole(8, 9, 3))
        );
        assert_eq!(ContentRun::hole(8, 8, 3).joined(&ContentRun::hole(16, 1, 4)), None);
    }
}

//! The name map (Lmap) of a large directory: from the hash of a name to the slots that may hold it.
//!
//! Invariants:
//! - a map is a chain of chunks of its own, whose blocks are its buckets in order. Bucket `b` is
//!   block `b % CHUNK_BLOCKS` of chunk `b / CHUNK_BLOCKS`; there are as many buckets as initialised
//!   blocks;
//! - every name of the directory has exactly one entry, in the bucket of its hash ([`bucket_of`])
//!   or in the blocks chained to that bucket;
//! - the entries of a block have no order and no gaps; a chained block has at least one.
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 32 | header | block header, type name map |
//! | 32 | 2 | count | entries in this block, at most 337 |
//! | 34 | 6 | reserved | zero |
//! | 40 | 8 | next | block chained to this one, 0: none |
//! | 48 | 337 × 12 | entries | hash 8, position 4: index of the chunk in the high 16 bits, slot in the low |
//! | 4092 | 4 | reserved | zero |
//!
//! The hash of a name is FNV-1a of its bytes with 64 bits (offset basis `cbf29ce484222325`, prime
//! `100000001b3`), then mixed: `h ^= h >> 33`, `h *= ff51afd7ed558ccd`, `h ^= h >> 33`, `h *=
//! c4ceb9fe1a85ec53`, `h ^= h >> 33`. With `n` buckets, let 2^k be the least power of two not below
//! n. The bucket is the low k bits of the hash if that is below n, else the low k − 1 bits.
//!
//! (The paper takes MD5. The map needs even low bits, and few equal hashes in one directory: for
//! each equal pair a lookup reads one content block too many. A cryptographic hash costs more and
//! gives nothing, since the names are compared.)

use types::MetaBlock;
use types::limits::BLOCK;

use engine::format::block::{Block, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

/// Offsets of the fields.
const COUNT: usize = 32;
const NEXT: usize = 40;
const ENTRIES: usize = 48;
const ENTRY: usize = 12;
/// Entries that a block holds.
pub const BUCKET_ENTRIES: usize = (BLOCK - ENTRIES) / ENTRY;

const _: () = assert!(BUCKET_ENTRIES == 337);

/// An entry: the hash of a name, and the slot with that name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NameMapEntry {
    /// Hash of the name.
    pub hash: u64,
    /// Position of the slot in the directory.
    pub at: u32,
}

/// The hash of a name in a name map.
pub fn hash_of(name: &[u8]) -> u64 {
    types::name_hash(name)
}

/// The bucket of a hash in a map of `buckets` buckets, which is at least one.
pub fn bucket_of(hash: u64, buckets: u32) -> u32 {
    let whole = u64::from(buckets).next_power_of_two();
    let low = hash & (whole - 1);
    let low = if low < u64::from(buckets) { low } else { low & (whole / 2 - 1) };
    low as u32
}

/// The bucket that shares its entries with bucket `new` when that is added, and takes them back
/// when it is removed.
pub fn parent_of(new: u32) -> u32 {
    new & !(1 << (31 - new.leading_zeros()))
}

/// Number of entries in a block; `None` if it is impossible.
pub fn count(block: &Block) -> Option<usize> {
    let count = usize::from(get_u16(block, COUNT));
    (count <= BUCKET_ENTRIES).then_some(count)
}

/// The block chained to this one.
pub fn next(block: &Block) -> Option<MetaBlock> {
    let next = get_u64(block, NEXT);
    (next != 0).then_some(MetaBlock(next))
}

/// Sets or clears [`next`].
pub fn set_next(block: &mut Block, next: Option<MetaBlock>) {
    put_u64(block, NEXT, next.map_or(0, |next| next.0));
}

/// The entries of a block; none if their number is impossible.
pub fn entries(block: &Block) -> impl DoubleEndedIterator<Item = NameMapEntry> + ExactSizeIterator {
    let count = count(block).unwrap_or(0);
    let bytes = block[ENTRIES..ENTRIES + count * ENTRY].chunks_exact(ENTRY);
    bytes.map(|bytes| NameMapEntry { hash: get_u64(bytes, 0), at: get_u32(bytes, 8) })
}

/// Adds an entry to a block that has room.
pub fn push(block: &mut Block, entry: NameMapEntry) {
    let count = usize::from(get_u16(block, COUNT));
    assert!(count < BUCKET_ENTRIES, "a block of a name map overflows");
    put_entry(block, count, entry);
    put_u16(block, COUNT, count as u16 + 1);
}

/// Removes entry `index`; the last entry takes its place.
pub fn swap_remove(block: &mut Block, index: usize) {
    let last = usize::from(get_u16(block, COUNT)) - 1;
    let at = |index: usize| ENTRIES + index * ENTRY;
    block.copy_within(at(last)..at(last + 1), at(index));
    block[at(last)..at(last + 1)].fill(0);
    put_u16(block, COUNT, last as u16);
}

/// Removes all entries and the link to the next block.
pub fn clear(block: &mut Block) {
    block[COUNT..].fill(0);
}

fn put_entry(block: &mut Block, index: usize, entry: NameMapEntry) {
    let at = ENTRIES + index * ENTRY;
    put_u64(block, at, entry.hash);
    put_u32(block, at + 8, entry.at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_keeps_its_entries() {
        let mut block = [0; BLOCK];
        let entry = |n: u64| NameMapEntry { hash: n << 40 | 7, at: n as u32 };
        (0..BUCKET_ENTRIES as u64).for_each(|n| push(&mut block, entry(n)));
        swap_remove(&mut block, 0);
        swap_remove(&mut block, BUCKET_ENTRIES - 2);
        let found: Vec<NameMapEntry> = entries(&block).collect();
        assert_eq!(found.len(), BUCKET_ENTRIES - 2);
        assert_eq!(found[0], entry(BUCKET_ENTRIES as u64 - 1));
        assert_eq!(found[1], entry(1));
        set_next(&mut block, Some(MetaBlock(9)));
        assert_eq!(next(&block), Some(MetaBlock(9)));
        block[COUNT..COUNT + 2].fill(0xff);
        assert_eq!((count(&block), entries(&block).len()), (None, 0));
    }

    #[test]
    fn new_bucket_takes_entries_only_from_its_parent() {
        for buckets in 1..200 {
            for n in 0..2000 {
                let hash = hash_of(format!("name{n}").as_bytes());
                let (before, after) = (bucket_of(hash, buckets), bucket_of(hash, buckets + 1));
                assert!(before < buckets);
                assert!(after == before || after == buckets && before == parent_of(buckets));
            }
        }
    }

    #[test]
    fn hash_spreads_similar_names_evenly() {
        assert_eq!(
            hash_of(b"file.0000001"),
            0x0b7e5fcfd1eb6b8b,
            "the hash that the format defines"
        );
        let mut counts = [0_u32; 1024];
        for n in 0..128 * 1024 {
            let hash = hash_of(format!("file.{n:07}").as_bytes());
            counts[bucket_of(hash, 1024) as usize] += 1;
        }
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(*least > 80 && *most < 180, "{least} {most}");
    }
}

//! Space of the metadata device: a bitmap, one bit for each block.
//!
//! Invariants:
//! - a set bit is an allocated block; superblocks, roots, log and bitmap are
//!   allocated from mkfs on, and so are the bits beyond the device;
//! - the counts in memory equal the bitmaps in the cache. The bound for the longest free run of a
//!   bitmap block is never less than the run, nor more than the number of free blocks. It only
//!   saves the search of bitmap blocks;
//! - a run never crosses from one bitmap block to the next.
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 32 | header | block header, type bitmap |
//! | 32 | 4064 | bits | of 32,512 blocks: block n has bit n % 32,512 of bitmap block n / 32,512; bit 0 is the lowest of the first byte |
//!
//! A freed block may be allocated again at once, even by the next transaction of the same group.
//! Its new content begins with an image record. Redo applies records in the order of the log and
//! starts each block at its last image. The store writes a block home only when the log is durable
//! up to its last change. So neither redo nor a home write of the old content can follow the new
//! content. If the freeing transaction is lost, everything after it is lost too.
//!
//! (Freed data blocks wait in the tree of freed space (10) until the freeing transaction is durable
//! and no client has a lease on the file. Clients read and write data blocks in place, without the
//! log. If a data block got a new owner at once, the loss of the transaction would bring back a
//! file with another file's bytes. A client that does not know of the freeing would read or
//! overwrite these bytes.)
//!
//! (Free space of a data zone is a tree (10); here it is a bitmap on purpose. The nodes of a tree
//! would lie in the space that the tree describes. An allocation could then split a node and need a
//! block itself, so the worst case of a change would not be known in advance. A bit needs no space,
//! and freeing cannot fail for lack of space. If a part of the bitmap is lost, repair rebuilds it
//! from the blocks in use. A bitmap block describes 127 MiB. A tree would find long runs faster;
//! counts in memory make up for that. For each bitmap block they have the number of free blocks and
//! a bound for the longest run. So a search reads only blocks that may have a run. The bounds
//! are the leaves of a max segment tree (`max_tree.rs`): however many bitmap blocks are full, a
//! search finds the next candidate in as many steps as that tree is deep, 18 on 16 TiB.)

#[cfg(any(test, feature = "testing"))]
use std::cell::Cell;

use types::MetaBlock;
use types::limits::BLOCK;

use crate::alloc::max_tree::MaxTree;
use crate::alloc::reservation::{ClientReservation, expected_clients, nodes};
pub use crate::format::bitmap::{BITS, bitmap_blocks};
use crate::format::block::{Block, BlockType, HEADER};

/// Counts and hints in memory about the bitmap.
#[derive(Clone, Debug)]
pub struct MetaSpace {
    /// First bitmap block.
    pub first: MetaBlock,
    /// Blocks of the device.
    pub blocks: u64,
    /// Free blocks that only transactions with a reserve may take, besides those for replies.
    pub reserve: u64,
    /// Free blocks that are reserved for replies.
    pub client_reservation: ClientReservation,
    pub(crate) free: Vec<u32>,
    /// An upper bound for the longest free run of each bitmap block.
    pub(crate) longest: MaxTree,
    pub(crate) total_free: u64,
    pub(crate) cursor: u64,
    /// The number of the search from which on all searches find nothing, also in later
    /// transactions; 0: never.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fails_in: Cell<u64>,
}

/// What a transaction changes in [`MetaSpace`] if it succeeds.
#[derive(Default, Debug)]
pub struct SpaceChange {
    pub(crate) free: Vec<(usize, i64)>,
    /// Bitmap blocks in which blocks became free.
    pub(crate) freed: Vec<usize>,
    pub(crate) total: i64,
    pub(crate) cursor: Option<u64>,
    /// Change of the number of clients.
    pub(crate) clients: i64,
}

impl SpaceChange {
    pub(crate) fn add(&mut self, index: usize, delta: i64) {
        self.total += delta;
        if delta > 0 && !self.freed.contains(&index) {
            self.freed.push(index);
        }
        match self.free.iter_mut().find(|(at, _)| *at == index) {
            Some((_, sum)) => *sum += delta,
            None => self.free.push((index, delta)),
        }
    }

    pub(crate) fn of(&self, index: usize) -> i64 {
        self.free.iter().find(|(at, _)| *at == index).map_or(0, |&(_, sum)| sum)
    }

    /// Clears the change and keeps its memory.
    pub fn clear(&mut self) {
        self.free.clear();
        self.freed.clear();
        self.total = 0;
        self.cursor = None;
        self.clients = 0;
    }
}

impl MetaSpace {
    /// Space of a device of `blocks` blocks whose bitmap begins at `first`; [`MetaSpace::learn`]
    /// sets its counts.
    pub fn new(first: MetaBlock, blocks: u64) -> MetaSpace {
        let count = bitmap_blocks(blocks) as usize;
        let reserve = (blocks / 64).clamp(8, 1024) + nodes(expected_clients(blocks));
        MetaSpace {
            first,
            blocks,
            reserve,
            client_reservation: ClientReservation::default(),
            free: vec![0; count],
            longest: MaxTree::new(count),
            total_free: 0,
            cursor: 0,
            #[cfg(any(test, feature = "testing"))]
            fails_in: Cell::new(0),
        }
    }

    /// Number of bitmap blocks.
    pub fn bitmap_blocks(&self) -> u64 {
        self.free.len() as u64
    }

    /// Free blocks of the device.
    pub fn total_free(&self) -> u64 {
        self.total_free
    }

    /// Free blocks that ordinary transactions must not take.
    pub fn set_aside(&self) -> u64 {
        self.reserve + self.client_reservation.blocks()
    }

    /// Counts the free blocks of bitmap block `index`, whose content is `bitmap`.
    pub fn learn(&mut self, index: usize, bitmap: &Block) {
        let set: u64 = words(bitmap).map(|word| u64::from(word.count_ones())).sum();
        self.total_free -= u64::from(self.free[index]);
        self.free[index] = (BITS - set) as u32;
        self.longest.set(index, self.free[index]);
        self.total_free += BITS - set;
    }

    /// Applies the change of a transaction.
    pub fn apply(&mut self, change: &SpaceChange) {
        for &(index, delta) in &change.free {
            let free = (i64::from(self.free[index]) + delta) as u32;
            self.free[index] = free;
            let longest =
                if change.freed.contains(&index) { free } else { self.longest.get(index) };
            self.longest.set(index, longest.min(free));
        }
        self.total_free = (self.total_free as i64 + change.total) as u64;
        if let Some(cursor) = change.cursor {
            self.cursor = cursor;
        }
        self.client_reservation = self.client_reservation.with(change.clients);
        self.client_reservation.reduce_shortfall(self.total_free, self.reserve);
    }
}

/// Bitmap block `index` of a new file system whose first `used` blocks are allocated.
pub(crate) fn first_bitmap(space: &MetaSpace, index: u64, used: u64, tag: u32) -> Box<Block> {
    let mut data = Box::new([0; BLOCK]);
    let address = MetaBlock(space.first.0 + index);
    crate::format::block::initialise(&mut data, address, BlockType::Bitmap, tag);
    let start = index * BITS;
    if used > start {
        change_bits(&mut data, 0, (used - start).min(BITS), true);
    }
    let last = space.blocks - 1;
    if last < start + BITS {
        let from = last.saturating_sub(start);
        change_bits(&mut data, from, BITS - from, true);
    }
    data
}

fn words(bitmap: &Block) -> impl Iterator<Item = u64> + '_ {
    bitmap[HEADER..].chunks_exact(8).map(|chunk| crate::format::block::get_u64(chunk, 0))
}

fn word(bitmap: &Block, index: usize) -> u64 {
    crate::format::block::get_u64(bitmap, HEADER + index * 8)
}

fn next_bit(bitmap: &Block, from: u64, to: u64, set: bool) -> Option<u64> {
    let mut at = from;
    while at < to {
        let word = word(bitmap, (at / 64) as usize);
        let wanted = (if set { word } else { !word }) >> (at % 64);
        if wanted != 0 {
            let found = at + u64::from(wanted.trailing_zeros());
            return (found < to).then_some(found);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

pub(crate) fn find_run(bitmap: &Block, n: u64, from: u64, to: u64) -> Option<u64> {
    let mut at = from;
    while let Some(start) = next_bit(bitmap, at, to, false) {
        let limit = (start + n).min(to);
        let end = next_bit(bitmap, start, limit, true).unwrap_or(limit);
        if end - start == n {
            return Some(start);
        }
        at = end.max(start + 1);
    }
    None
}

/// Sets or clears bits `[from, from + n)`; returns whether all of them changed.
pub fn change_bits(bitmap: &mut Block, from: u64, n: u64, set: bool) -> bool {
    let mut all = true;
    for bit in from..from + n {
        let byte = &mut bitmap[HEADER + (bit / 8) as usize];
        let mask = 1 << (bit % 8);
        all &= (*byte & mask != 0) != set;
        *byte = if set { *byte | mask } else { *byte & !mask };
    }
    all
}

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

#[cfg(test)]
use std::cell::Cell;

use types::limits::BLOCK;
use types::{Fault, MetaBlock};

use crate::engine::alloc::max_tree::MaxTree;
use crate::engine::alloc::reservation::ReplyReservation;
use crate::engine::error::Stop;
use crate::engine::format::block::{Block, BlockType, HEADER};
use crate::engine::store::Reserve;
use crate::engine::txn::Txn;

/// Bits of one bitmap block.
pub const BITS: u64 = ((BLOCK - HEADER) * 8) as u64;

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
    pub reply_reservation: ReplyReservation,
    free: Vec<u32>,
    /// An upper bound for the longest free run of each bitmap block.
    longest: MaxTree,
    total_free: u64,
    cursor: u64,
    /// The number of the search from which on all searches find nothing, also in later
    /// transactions; 0: never.
    #[cfg(test)]
    pub(crate) fails_in: Cell<u64>,
}

/// What a transaction changes in [`MetaSpace`] if it succeeds.
#[derive(Default, Debug)]
pub struct SpaceChange {
    free: Vec<(usize, i64)>,
    /// Bitmap blocks in which blocks became free.
    freed: Vec<usize>,
    total: i64,
    cursor: Option<u64>,
    /// Changes of the numbers of clients and reply blocks.
    clients: i64,
    replies: i64,
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

    /// Changes the numbers of clients and reply blocks by these.
    pub(crate) fn add_clients(&mut self, clients: i64, replies: i64) {
        self.clients += clients;
        self.replies += replies;
    }

    fn of(&self, index: usize) -> i64 {
        self.free.iter().find(|(at, _)| *at == index).map_or(0, |&(_, sum)| sum)
    }

    /// Clears the change and keeps its memory.
    pub fn clear(&mut self) {
        self.free.clear();
        self.freed.clear();
        self.total = 0;
        self.cursor = None;
        self.add_clients(-self.clients, -self.replies);
    }
}

impl MetaSpace {
    /// Space of a device of `blocks` blocks whose bitmap begins at `first`; [`MetaSpace::learn`]
    /// sets its counts.
    pub fn new(first: MetaBlock, blocks: u64) -> MetaSpace {
        let count = bitmap_blocks(blocks) as usize;
        let reserve = (blocks / 64).clamp(8, 1024);
        MetaSpace {
            first,
            blocks,
            reserve,
            reply_reservation: ReplyReservation::default(),
            free: vec![0; count],
            longest: MaxTree::new(count),
            total_free: 0,
            cursor: 0,
            #[cfg(test)]
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
        self.reserve + self.reply_reservation.blocks()
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
        self.reply_reservation = self.reply_reservation.with(change.clients, change.replies);
        self.reply_reservation.reduce_shortfall(self.total_free, self.reserve);
    }
}

/// Bitmap blocks of a device of `blocks` blocks.
pub fn bitmap_blocks(blocks: u64) -> u64 {
    blocks.div_ceil(BITS)
}

/// Bitmap block `index` of a new file system whose first `used` blocks are allocated.
pub(crate) fn first_bitmap(space: &MetaSpace, index: u64, used: u64, tag: u32) -> Box<Block> {
    let mut data = Box::new([0; BLOCK]);
    let address = MetaBlock(space.first.0 + index);
    crate::engine::format::block::initialise(&mut data, address, BlockType::Bitmap, tag);
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
    bitmap[HEADER..].chunks_exact(8).map(|chunk| crate::engine::format::block::get_u64(chunk, 0))
}

fn word(bitmap: &Block, index: usize) -> u64 {
    crate::engine::format::block::get_u64(bitmap, HEADER + index * 8)
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

fn find_run(bitmap: &Block, n: u64, from: u64, to: u64) -> Option<u64> {
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

impl Txn<'_> {
    /// Allocates `n` contiguous metadata blocks near `goal` (by default near the last allocation).
    /// This transaction must initialise them before it reads them.
    ///
    /// # Errors
    /// `Fault::NoSpace` if there is no such run, or if the run would need the reserve.
    pub fn alloc_meta(&mut self, n: u32, goal: Option<MetaBlock>) -> Result<MetaBlock, Stop> {
        let space = &self.state.space;
        let start = goal.map_or_else(|| self.space_change.cursor.unwrap_or(space.cursor), |b| b.0);
        let found = self.find_meta(n, MetaBlock(start))?.ok_or(Stop::Fault(Fault::NoSpace))?;
        let index = (found.0 / BITS) as usize;
        let block = MetaBlock(self.state.space.first.0 + index as u64);
        change_bits(self.write(block)?, found.0 % BITS, n.into(), true);
        self.space_change.add(index, -i64::from(n));
        self.space_change.cursor = Some(found.0 + u64::from(n));
        Ok(found)
    }

    /// Runs `body` without the reserve, since freeing space does not depend on it. A replay may use
    /// the reserve nevertheless, as the original operation had room.
    pub(crate) fn without_reserve<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let cost = self.cost;
        if cost.reserve == Reserve::ToFree {
            self.cost.reserve = Reserve::None;
        }
        let done = body(self);
        self.cost = cost;
        done
    }

    /// Finds `n` contiguous free metadata blocks near `goal`, first after it.
    ///
    /// # Errors
    /// `Invalid` for no or too many blocks.
    pub(crate) fn find_meta(&self, n: u32, goal: MetaBlock) -> Result<Option<MetaBlock>, Stop> {
        let n = u64::from(n);
        if n == 0 || n > BITS {
            return Err(Fault::Invalid.into());
        }
        let space = &self.state.space;
        #[cfg(test)]
        match space.fails_in.get() {
            0 => {}
            1 => return Ok(None),
            left => space.fails_in.set(left - 1),
        }
        if self.meta_space().1 < n + self.untouchable() {
            return Ok(None);
        }
        let start = if goal.0 < space.blocks { goal.0 } else { 0 };
        let (first, bit) = ((start / BITS) as usize, start % BITS);
        // The blocks before the goal in its bitmap block come last.
        for (from, to, bit) in
            [(first, first + 1, bit), (first + 1, space.free.len(), 0), (0, first + 1, 0)]
        {
            let mut at = from;
            while let Some(index) = self.next_bitmap(at, n).filter(|&index| index < to) {
                if let Some(found) = self.find_in(index, n, bit)? {
                    return Ok(Some(found));
                }
                at = index + 1;
            }
        }
        Ok(None)
    }

    /// The first bitmap block from `from` on that may have `n` contiguous free blocks.
    fn next_bitmap(&self, from: usize, n: u64) -> Option<usize> {
        let SpaceChange { freed, .. } = &self.space_change;
        let freed = freed.iter().copied().filter(|&index| index >= from).min();
        let known = self.state.space.longest.next_at_least(from, n as u32);
        freed.into_iter().chain(known).min()
    }

    /// Finds `n` contiguous free blocks in bitmap block `index`, from the bit `from` on.
    fn find_in(&self, index: usize, n: u64, from: u64) -> Result<Option<MetaBlock>, Stop> {
        let space = &self.state.space;
        if i64::from(space.free[index]) + self.space_change.of(index) < n as i64 {
            return Ok(None);
        }
        let block = MetaBlock(space.first.0 + index as u64);
        if let Some(bit) = find_run(self.read_as(block, BlockType::Bitmap)?, n, from, BITS) {
            return Ok(Some(MetaBlock(index as u64 * BITS + bit)));
        }
        // Do not tighten the bound for blocks that this transaction took: it may be aborted.
        let untouched = self.space_change.free.iter().all(|(at, _)| *at != index);
        if untouched && from == 0 {
            space.longest.set(index, n as u32 - 1);
        }
        Ok(None)
    }

    /// Free blocks that this transaction must not take.
    fn untouchable(&self) -> u64 {
        match self.cost.reserve {
            Reserve::None => self.state.space.reserve + self.reply_reservation().blocks(),
            Reserve::ToFree => self.reply_reservation().blocks(),
            Reserve::Replay => 0,
        }
    }

    /// The reservation for replies, including the changes of this transaction.
    pub(crate) fn reply_reservation(&self) -> ReplyReservation {
        let SpaceChange { clients, replies, .. } = self.space_change;
        self.state.space.reply_reservation.with(clients, replies)
    }

    /// Runs `body`, which takes only blocks that are reserved for replies.
    pub(crate) fn with_reply_reservation<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let cost = self.cost;
        self.cost.reserve = Reserve::Replay;
        let done = body(self);
        self.cost = cost;
        done
    }

    /// Are so few metadata blocks free that the store should not preallocate?
    pub(crate) fn meta_is_short(&self) -> bool {
        let (total, free) = self.meta_space();
        free < total / 4
    }

    /// Frees `n` blocks from `first` on. The module comment says when they can be reused.
    ///
    /// # Errors
    /// `Stop::Corrupt` if one of them is not allocated.
    pub fn free_meta(&mut self, first: MetaBlock, n: u32) -> Result<(), Stop> {
        let (mut at, end) = (first.0, first.0.saturating_add(u64::from(n)));
        if end > self.state.space.blocks {
            return Err(Stop::Corrupt(first, "a freed block lies outside the device"));
        }
        while at < end {
            let index = at / BITS;
            let run = end.min((index + 1) * BITS) - at;
            let block = MetaBlock(self.state.space.first.0 + index);
            if !change_bits(self.write_as(block, BlockType::Bitmap)?, at % BITS, run, false) {
                return Err(Stop::Corrupt(block, "a metadata block was freed twice"));
            }
            self.space_change.add(index as usize, run as i64);
            at += run;
        }
        Ok(())
    }

    /// Is metadata block `block` allocated?
    ///
    /// # Errors
    /// `Stop::Corrupt` for a block outside the device.
    pub fn meta_allocated(&self, block: MetaBlock) -> Result<bool, Stop> {
        if block.0 >= self.state.space.blocks {
            return Err(Stop::Corrupt(block, "the address lies outside the device"));
        }
        let bitmap = MetaBlock(self.state.space.first.0 + block.0 / BITS);
        let bytes = self.read_as(bitmap, BlockType::Bitmap)?;
        let bit = block.0 % BITS;
        Ok(bytes[HEADER + (bit / 8) as usize] & (1 << (bit % 8)) != 0)
    }

    /// Number of blocks of the metadata device, and of its free blocks.
    pub fn meta_space(&self) -> (u64, u64) {
        let space = &self.state.space;
        (space.blocks, (space.total_free as i64 + self.space_change.total) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::store::{Cost, Mfs};
    use crate::mfs::testing::now;

    #[test]
    fn bitmap_search_finds_runs_between_set_bits_and_at_the_end() {
        let mut bitmap = [0; BLOCK];
        assert!(change_bits(&mut bitmap, 0, 100, true));
        assert!(change_bits(&mut bitmap, 110, 20, true));
        assert!(!change_bits(&mut bitmap, 109, 2, true));
        assert_eq!(find_run(&bitmap, 9, 0, BITS), Some(100));
        assert_eq!(find_run(&bitmap, 10, 0, BITS), Some(130));
        assert_eq!(find_run(&bitmap, BITS - 130, 0, BITS), Some(130));
        assert_eq!(find_run(&bitmap, BITS - 129, 0, BITS), None);
        assert_eq!(find_run(&bitmap, 1, BITS - 1, BITS), Some(BITS - 1));
    }

    #[test]
    fn all_metadata_blocks_can_be_allocated_and_freed() {
        let mfs = Mfs::volatile(2000);
        let all = now(mfs.run(Cost::DELETE, |txn| {
            let mut all = Vec::new();
            loop {
                match txn.alloc_meta(3, None) {
                    Ok(block) => all.push(block),
                    Err(Stop::Fault(Fault::NoSpace)) => break Ok(all),
                    Err(other) => break Err(other),
                }
            }
        }))
        .unwrap()
        .0;
        assert!(all.len() > 600);
        let mut sorted = all.clone();
        sorted.sort();
        assert!(sorted.windows(2).all(|pair| pair[0].0 + 3 <= pair[1].0));
        now(mfs.run(Cost::DELETE, |txn| {
            all.iter().try_for_each(|&block| txn.free_meta(block, 3))?;
            assert!(!txn.meta_allocated(all[0])?);
            Ok(())
        }))
        .unwrap();
        let twice = now(mfs.run(Cost::DELETE, |txn| txn.free_meta(all[0], 1)));
        assert!(twice.is_err());
    }

    #[test]
    fn ordinary_transactions_leave_the_reserve() {
        let mfs = Mfs::volatile(2000);
        let take = |cost| {
            now(mfs.run(cost, |txn| {
                while txn.alloc_meta(1, None).is_ok() {}
                Ok(txn.meta_space().1)
            }))
            .unwrap()
            .0
        };
        assert!(take(Cost::SMALL) > 0);
        assert_eq!(
            take(Cost::DELETE),
            crate::engine::alloc::reservation::expected_clients(2000)
                * crate::engine::alloc::reservation::BLOCKS_PER_CLIENT
        );
    }

    #[test]
    fn failed_run_search_is_not_repeated_until_a_block_is_freed() {
        let mfs = Mfs::volatile(4 * BITS);
        let first = now(mfs.run(Cost::DELETE, |txn| {
            // Every eighth block is taken, so that there is no run of eight.
            let first = txn.find_meta(1, MetaBlock(0))?.unwrap().0.next_multiple_of(8);
            for block in (first..4 * BITS).step_by(8) {
                let index = block / BITS;
                let bitmap = MetaBlock(txn.state.space.first.0 + index);
                if change_bits(txn.write(bitmap)?, block % BITS, 1, true) {
                    txn.space_change.add(index as usize, -1);
                }
            }
            Ok(first)
        }))
        .unwrap()
        .0;
        let find = || now(mfs.run(Cost::READ, |txn| txn.find_meta(8, MetaBlock(first)))).unwrap().0;
        assert_eq!(find(), None);
        let visited = (0..4).all(|at| mfs.inner.state.borrow().space.longest.get(at) == 7);
        assert!(visited, "the search visited the whole bitmap");
        // The search must not read the bitmap blocks: they are not even valid.
        for index in 0..4 {
            let block = MetaBlock(mfs.inner.state.borrow().space.first.0 + index);
            let data = *mfs.inner.state.borrow().cache.get(block).unwrap();
            let mut state = mfs.inner.state.borrow_mut();
            let frame = state.cache.frame_mut(block).unwrap();
            frame.data[4] = BlockType::Blob as u8;
            drop(state);
            assert_eq!(find(), None);
            *mfs.inner.state.borrow_mut().cache.frame_mut(block).unwrap().data = data;
        }
        let freed = MetaBlock(first + 8 * (BITS / 8));
        now(mfs.run(Cost::DELETE, |txn| {
            txn.free_meta(freed, 1)?;
            assert!(txn.find_meta(8, MetaBlock(first))?.is_some(), "in the same transaction");
            Ok(())
        }))
        .unwrap();
        assert_eq!(find(), Some(MetaBlock(freed.0 - 7)));
    }

    /// The first run after `goal`, else the first of all, found by a linear search.
    fn naive(txn: &Txn<'_>, n: u32, goal: u64) -> Option<MetaBlock> {
        let is_free = |at: u64| !txn.meta_allocated(MetaBlock(at)).unwrap();
        let blocks = txn.state.space.blocks;
        let last =
            |at: u64| at + u64::from(n) <= blocks && (at + u64::from(n) - 1) / BITS == at / BITS;
        let fits = |&at: &u64| last(at) && (at..at + u64::from(n)).all(is_free);
        let first = goal / BITS * BITS;
        (goal..blocks).chain(0..(first + BITS).min(blocks)).find(fits).map(MetaBlock)
    }

    #[test]
    fn run_search_agrees_with_a_linear_search() {
        use crate::mfs::testing::random;
        let blocks = 3 * BITS + 1000;
        let mfs = Mfs::volatile(blocks);
        let mut seed = 7;
        // Allocate most blocks, in runs that leave holes of a few blocks.
        now(mfs.run(Cost::DELETE, |txn| {
            let mut at = txn.find_meta(1, MetaBlock(0))?.unwrap().0;
            while at + 200 < blocks {
                let to = (at + 20 + random(&mut seed, 150)).min((at / BITS + 1) * BITS);
                let bitmap = MetaBlock(txn.state.space.first.0 + at / BITS);
                assert!(change_bits(txn.write(bitmap)?, at % BITS, to - at, true));
                txn.space_change.add((at / BITS) as usize, -((to - at) as i64));
                at = to + random(&mut seed, 6);
            }
            Ok(())
        }))
        .unwrap();
        let mut held: Vec<(MetaBlock, u32)> = Vec::new();
        for round in 0..60 {
            let done = now(mfs.run(Cost::DELETE, |txn| {
                for _ in 0..random(&mut seed, 8) + 1 {
                    let (n, goal) = (1 + random(&mut seed, 9) as u32, random(&mut seed, blocks));
                    let found = txn.find_meta(n, MetaBlock(goal))?;
                    assert_eq!(found, naive(txn, n, goal), "round {round}: {n} near {goal}");
                    match found {
                        Some(_) if random(&mut seed, 3) > 0 => {
                            held.push((txn.alloc_meta(n, Some(MetaBlock(goal)))?, n));
                        }
                        _ if !held.is_empty() => {
                            let at = random(&mut seed, held.len() as u64) as usize;
                            let (first, n) = held.swap_remove(at);
                            txn.free_meta(first, n)?;
                        }
                        _ => {}
                    }
                }
                if round % 7 == 6 { Err(Stop::Fault(Fault::Exists)) } else { Ok(held.clone()) }
            }));
            // A failed transaction has changed nothing.
            match done {
                Ok((now_held, _)) => held = now_held,
                Err(_) => held.clear(),
            }
        }
    }

    #[test]
    fn allocation_uses_its_goal_if_that_is_free() {
        let mfs = Mfs::volatile(2000);
        let blocks = now(mfs.run(Cost::SMALL, |txn| {
            let a = txn.alloc_meta(1, Some(MetaBlock(1000)))?;
            let b = txn.alloc_meta(1, Some(MetaBlock(1000)))?;
            Ok([a, b])
        }));
        assert_eq!(blocks.unwrap().0, [MetaBlock(1000), MetaBlock(1001)]);
    }
}

//! Allocates and frees metadata blocks in a transaction.

use types::{Fault, MetaBlock};

use crate::alloc::metaspace::{BITS, SpaceChange, change_bits, find_run};
use crate::alloc::reservation::ClientReservation;
use crate::cost::Reserve;
use crate::error::Stop;
use crate::format::block::{BlockType, HEADER};
use crate::txn::Txn;

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
    pub fn without_reserve<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
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
    pub fn find_meta(&self, n: u32, goal: MetaBlock) -> Result<Option<MetaBlock>, Stop> {
        let n = u64::from(n);
        if n == 0 || n > BITS {
            return Err(Fault::Invalid.into());
        }
        let space = &self.state.space;
        #[cfg(any(test, feature = "testing"))]
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
            Reserve::None => self.state.space.reserve + self.client_reservation().blocks(),
            Reserve::ToFree => self.client_reservation().blocks(),
            Reserve::Replay => 0,
        }
    }

    /// The reservation for clients, including the changes of this transaction.
    pub fn client_reservation(&self) -> ClientReservation {
        self.state.space.client_reservation.with(self.space_change.clients)
    }

    /// Runs `body`, which takes only blocks that are reserved for clients, and the reserve.
    pub(crate) fn with_client_reservation<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let cost = self.cost;
        self.cost.reserve = Reserve::Replay;
        let done = body(self);
        self.cost = cost;
        done
    }

    /// Are so few metadata blocks free that the store should not preallocate?
    pub fn meta_is_short(&self) -> bool {
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

    /// Marks blocks as allocated, whether they were or not.
    ///
    /// # Errors
    /// `Stop` of the bitmap blocks.
    pub fn mark_used(&mut self, first: MetaBlock, len: u64) -> Result<(), Stop> {
        let (mut at, end) = (first.0, first.0.saturating_add(len).min(self.state.space.blocks));
        while at < end {
            let index = at / BITS;
            let block = MetaBlock(self.state.space.first.0 + index);
            let to = end.min((index + 1) * BITS);
            let data = self.write_as(block, BlockType::Bitmap)?;
            let changed = (at..to).filter(|bit| change_bits(data, bit % BITS, 1, true)).count();
            self.space_change.add(index as usize, -(changed as i64));
            at = to;
        }
        Ok(())
    }

    /// Free blocks that ordinary transactions must not take.
    pub fn set_aside(&self) -> u64 {
        self.state.space.set_aside()
    }

    /// The first bitmap block.
    pub fn bitmap_first(&self) -> MetaBlock {
        self.state.space.first
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
    use types::limits::BLOCK;

    use super::*;
    use crate::cost::Cost;
    use crate::store::Store;
    use crate::testing::now;

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
        let mfs = Store::volatile(2000);
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
        let mfs = Store::volatile(2000);
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
            crate::alloc::reservation::expected_clients(2000)
                * crate::alloc::reservation::BLOCKS_PER_CLIENT
        );
    }

    #[test]
    fn failed_run_search_is_not_repeated_until_a_block_is_freed() {
        let mfs = Store::volatile(4 * BITS);
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
        use crate::testing::random;
        let blocks = 3 * BITS + 1000;
        let mfs = Store::volatile(blocks);
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
        let mfs = Store::volatile(2000);
        let blocks = now(mfs.run(Cost::SMALL, |txn| {
            let a = txn.alloc_meta(1, Some(MetaBlock(1000)))?;
            let b = txn.alloc_meta(1, Some(MetaBlock(1000)))?;
            Ok([a, b])
        }));
        assert_eq!(blocks.unwrap().0, [MetaBlock(1000), MetaBlock(1001)]);
    }
}

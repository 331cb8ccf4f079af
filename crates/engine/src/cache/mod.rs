//! The buffer cache: a bounded set of frames, evicted by CLOCK.
//!
//! Invariants:
//! - a frame holds the newest committed content of its block;
//! - the cache evicts only frames that are clean, unpinned and not being written home,
//!   so reading a block again always gives its newest content;
//! - the cache records the dirty blocks by address, each with the group that dirtied it. The queue
//!   has them in the order of those groups. It may also have stale entries of blocks that are home
//!   since, at most as many as there are dirty blocks and [`STALE_MAX`] more;
//! - the frames that one operation pins and the dirty frames, which admission bounds, may exceed
//!   the capacity.

pub(crate) mod sweep;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use types::limits::BLOCK;
use types::{HashMap, Lsn, MetaBlock};

use crate::format::block::Block;

/// A cached block and its state.
pub struct Frame {
    /// Which block.
    pub block: MetaBlock,
    /// Its content.
    pub data: Box<Block>,
    /// Differs from the block at home (or from the copy being written there).
    pub dirty: bool,
    /// A copy is being written home.
    pub in_flight: bool,
    pins: u32,
    referenced: Cell<bool>,
}

/// A dirty block and the start of the group that dirtied it.
#[derive(Clone, Copy, Debug)]
pub struct Dirty {
    /// Which block.
    pub block: MetaBlock,
    /// Redo of the block starts in the group at this position.
    pub since: Lsn,
}

/// The frames of one store.
pub struct Cache {
    capacity: usize,
    frames: Vec<Frame>,
    index: HashMap<u64, u32>,
    hand: usize,
    /// The dirty blocks, each with the group that dirtied it.
    dirty: BTreeMap<u64, Lsn>,
    /// Number of runs of dirty blocks with adjacent addresses.
    dirty_runs: usize,
    queue: VecDeque<Dirty>,
    in_flight: usize,
    buffers: Vec<Box<Block>>,
}

const BUFFERS_MAX: usize = 256;
/// Most stale entries of the queue, in addition to the number of dirty blocks.
const STALE_MAX: usize = 1024;

impl Cache {
    /// A cache of `capacity` blocks.
    pub fn new(capacity: usize) -> Cache {
        Cache {
            capacity,
            frames: Vec::new(),
            index: HashMap::default(),
            hand: 0,
            dirty: BTreeMap::new(),
            dirty_runs: 0,
            queue: VecDeque::new(),
            in_flight: 0,
            buffers: Vec::new(),
        }
    }

    /// Blocks that the cache should hold at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Blocks that the cache holds.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Is the cache empty?
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Blocks that are dirty or being written home.
    pub fn dirty_or_in_flight(&self) -> usize {
        self.dirty.len() + self.in_flight
    }

    /// Dirty blocks.
    pub fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Runs of dirty blocks with adjacent addresses: each can go home in one request.
    pub fn dirty_runs(&self) -> usize {
        self.dirty_runs
    }

    /// The content of `block`, if cached.
    pub fn get(&self, block: MetaBlock) -> Option<&Block> {
        let frame = &self.frames[*self.index.get(&block.0)? as usize];
        frame.referenced.set(true);
        Some(&frame.data)
    }

    /// The content of `block`, if it is cached and the same as at home. This does not count as a
    /// use of the frame.
    pub fn get_clean(&self, block: MetaBlock) -> Option<&Block> {
        let frame = &self.frames[*self.index.get(&block.0)? as usize];
        (!frame.dirty && !frame.in_flight).then_some(&*frame.data)
    }

    /// The frame of `block`, if cached.
    pub fn frame_mut(&mut self, block: MetaBlock) -> Option<&mut Frame> {
        Some(&mut self.frames[*self.index.get(&block.0)? as usize])
    }

    /// Is `block` cached?
    pub fn contains(&self, block: MetaBlock) -> bool {
        self.index.contains_key(&block.0)
    }

    /// A buffer with unspecified content.
    pub fn buffer(&mut self) -> Box<Block> {
        self.buffers.pop().unwrap_or_else(|| Box::new([0; BLOCK]))
    }

    /// Takes a buffer back for reuse.
    pub fn recycle(&mut self, data: Box<Block>) {
        if self.buffers.len() < BUFFERS_MAX {
            self.buffers.push(data);
        }
    }

    /// Adds a clean frame for a block that is not cached.
    pub fn insert(&mut self, block: MetaBlock, data: Box<Block>) {
        self.make_room();
        let at = self.frames.len() as u32;
        let previous = self.index.insert(block.0, at);
        assert!(previous.is_none(), "{block:?} is already cached");
        self.frames.push(Frame {
            block,
            data,
            dirty: false,
            in_flight: false,
            pins: 0,
            referenced: Cell::new(true),
        });
    }

    /// Marks `block`, which is cached and clean, as dirtied by the group at `since`.
    pub fn mark_dirty(&mut self, block: MetaBlock, since: Lsn) {
        debug_assert!(self.queue.back().is_none_or(|last| last.since <= since));
        let frame = self.frame_mut(block).expect("dirty blocks are cached");
        assert!(!frame.dirty, "{block:?} is already dirty");
        frame.dirty = true;
        self.dirty_runs = self.dirty_runs + 1 - self.dirty_neighbours(block);
        self.dirty.insert(block.0, since);
        if self.queue.len() > 2 * self.dirty.len() + STALE_MAX {
            let dirty = &self.dirty;
            self.queue.retain(|entry| dirty.get(&entry.block.0) == Some(&entry.since));
        }
        self.queue.push_back(Dirty { block, since });
    }

    /// Number of dirty blocks directly before and after `block`.
    fn dirty_neighbours(&self, block: MetaBlock) -> usize {
        let before = block.0.checked_sub(1).is_some_and(|before| self.dirty.contains_key(&before));
        usize::from(before) + usize::from(self.dirty.contains_key(&(block.0 + 1)))
    }

    /// The block that has been dirty for longest.
    pub fn oldest_dirty(&mut self) -> Option<Dirty> {
        while let Some(oldest) = self.queue.front().copied() {
            if self.dirty.get(&oldest.block.0) == Some(&oldest.since) {
                return Some(oldest);
            }
            self.queue.pop_front();
        }
        None
    }

    /// Approximately the group by which the `n` oldest dirty blocks were all dirty.
    pub fn dirty_since(&self, n: usize) -> Option<Lsn> {
        let at = n.min(self.queue.len()).checked_sub(1)?;
        self.queue.get(at).map(|entry| entry.since)
    }

    /// The dirty blocks from address `from` on, each with its group, in the order of addresses.
    pub fn dirty_from(&self, from: MetaBlock) -> impl Iterator<Item = Dirty> {
        let blocks = self.dirty.range(from.0..);
        blocks.map(|(&block, &since)| Dirty { block: MetaBlock(block), since })
    }

    /// Marks the dirty block `block` clean and in flight until [`Cache::end_home_write`]. Returns
    /// its content.
    pub fn begin_home_write(&mut self, block: MetaBlock) -> &Block {
        let was = self.dirty.remove(&block.0);
        assert!(was.is_some(), "{block:?} is not dirty");
        self.dirty_runs = self.dirty_runs + self.dirty_neighbours(block) - 1;
        let at = self.index[&block.0] as usize;
        let frame = &mut self.frames[at];
        assert!(!frame.in_flight, "{block:?} is already being written home");
        frame.dirty = false;
        frame.in_flight = true;
        self.in_flight += 1;
        &frame.data
    }

    /// The copy of `block` that was in flight is stable at home.
    pub fn end_home_write(&mut self, block: MetaBlock) {
        let frame = self.frame_mut(block).expect("blocks in flight are cached");
        assert!(frame.in_flight, "{block:?} is not being written home");
        frame.in_flight = false;
        self.in_flight -= 1;
    }

    /// Keeps `block` cached until [`Cache::unpin`].
    pub fn pin(&mut self, block: MetaBlock) {
        if let Some(frame) = self.frame_mut(block) {
            frame.pins += 1;
        }
    }

    /// Reverts one [`Cache::pin`].
    pub fn unpin(&mut self, block: MetaBlock) {
        if let Some(frame) = self.frame_mut(block) {
            frame.pins -= 1;
        }
    }

    fn make_room(&mut self) {
        let mut steps = 2 * self.frames.len();
        while self.frames.len() >= self.capacity && steps > 0 {
            steps -= 1;
            if self.hand >= self.frames.len() {
                self.hand = 0;
            }
            let frame = &self.frames[self.hand];
            if frame.dirty || frame.in_flight || frame.pins > 0 || frame.referenced.replace(false) {
                self.hand += 1;
            } else {
                self.evict(self.hand);
            }
        }
    }

    fn evict(&mut self, at: usize) {
        let frame = self.frames.swap_remove(at);
        self.index.remove(&frame.block.0);
        if let Some(moved) = self.frames.get(at) {
            self.index.insert(moved.block.0, at as u32);
        }
        self.recycle(frame.data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(capacity: usize, blocks: u64) -> Cache {
        let mut cache = Cache::new(capacity);
        for block in 0..blocks {
            let mut data = cache.buffer();
            data[0] = block as u8;
            cache.insert(MetaBlock(block), data);
        }
        cache
    }

    #[test]
    fn cache_evicts_clean_frames_for_new_blocks() {
        let cache = filled(8, 100);
        assert_eq!(cache.len(), 8);
        for block in 0..100 {
            if let Some(data) = cache.get(MetaBlock(block)) {
                assert_eq!(data[0], block as u8);
            }
        }
        assert!(cache.contains(MetaBlock(99)));
    }

    #[test]
    fn cache_keeps_dirty_pinned_and_in_flight_frames() {
        let mut cache = filled(8, 3);
        cache.pin(MetaBlock(0));
        cache.mark_dirty(MetaBlock(1), Lsn(1));
        cache.mark_dirty(MetaBlock(2), Lsn(2));
        cache.begin_home_write(MetaBlock(1));
        for block in 10..100 {
            let data = cache.buffer();
            cache.insert(MetaBlock(block), data);
        }
        for block in 0..3 {
            assert!(cache.contains(MetaBlock(block)));
        }
        cache.unpin(MetaBlock(0));
        cache.end_home_write(MetaBlock(1));
        for block in 200..300 {
            let data = cache.buffer();
            cache.insert(MetaBlock(block), data);
        }
        assert!(!cache.contains(MetaBlock(0)) && !cache.contains(MetaBlock(1)));
        assert_eq!(cache.dirty_or_in_flight(), 1);
    }

    #[test]
    fn block_dirtied_while_in_flight_is_dirty_since_then() {
        let mut cache = filled(8, 2);
        cache.mark_dirty(MetaBlock(0), Lsn(1));
        cache.mark_dirty(MetaBlock(1), Lsn(1));
        cache.begin_home_write(MetaBlock(0));
        cache.mark_dirty(MetaBlock(0), Lsn(2));
        assert_eq!(cache.oldest_dirty().map(|dirty| dirty.block), Some(MetaBlock(1)));
        cache.end_home_write(MetaBlock(0));
        cache.begin_home_write(MetaBlock(1));
        cache.end_home_write(MetaBlock(1));
        assert_eq!(cache.oldest_dirty().map(|dirty| dirty.since), Some(Lsn(2)));
        assert_eq!(cache.dirty_or_in_flight(), 1);
    }

    #[test]
    fn dirty_runs_are_counted_and_the_queue_stays_short() {
        let mut cache = filled(100, 100);
        let runs = |cache: &Cache| {
            let blocks: Vec<u64> = cache.dirty_from(MetaBlock(0)).map(|d| d.block.0).collect();
            let gaps = blocks.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
            if blocks.is_empty() { 0 } else { gaps + 1 }
        };
        let mut seed = 1;
        for round in 0..20_000 {
            let block = MetaBlock(crate::testing::random(&mut seed, 100));
            if cache.dirty.contains_key(&block.0) {
                cache.begin_home_write(block);
                cache.end_home_write(block);
            } else {
                cache.mark_dirty(block, Lsn(round));
            }
            assert_eq!(cache.dirty_runs(), runs(&cache));
            assert!(cache.queue.len() <= 2 * cache.dirty_count() + STALE_MAX + 1);
            let oldest = cache.dirty.values().min().copied();
            assert_eq!(cache.oldest_dirty().map(|dirty| dirty.since), oldest);
        }
    }
}

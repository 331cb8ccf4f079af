//! The buffer cache: a bounded set of frames, evicted by CLOCK.
//!
//! Invariants:
//! - a frame holds the newest committed content of its block;
//! - only frames that are clean, unpinned and not on their way home are evicted,
//!   so reading a block again always gives its newest content;
//! - the dirty blocks are known by address, and each with the group that dirtied it; the queue
//!   has them in the order of those groups, and entries of blocks that went home since, never more
//!   of these than there are dirty blocks and [`STALE_MAX`] more;
//! - the bound may be passed by what one operation pins and by dirty frames, which admission
//!   bounds.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use types::limits::BLOCK;
use types::{HashMap, Lsn, MetaBlock};

use crate::block::Block;

/// What the cache knows about one block.
pub struct Frame {
    /// Which block.
    pub block: MetaBlock,
    /// Its content.
    pub data: Box<Block>,
    /// Differs from what is at home (or on its way there).
    pub dirty: bool,
    /// A copy is being written home.
    pub leaving: bool,
    pins: u32,
    recent: Cell<bool>,
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
    /// The dirty blocks, and since when.
    dirty: BTreeMap<u64, Lsn>,
    /// Stretches of dirty blocks without a gap.
    stretches: usize,
    queue: VecDeque<Dirty>,
    leaving: usize,
    spare: Vec<Box<Block>>,
}

const SPARE_MAX: usize = 256;
/// Entries of the queue that may be stale, besides as many as there are dirty blocks.
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
            stretches: 0,
            queue: VecDeque::new(),
            leaving: 0,
            spare: Vec::new(),
        }
    }

    /// How many blocks it should hold at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many it holds.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Does it hold none?
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Blocks that are dirty or on their way home.
    pub fn unsettled(&self) -> usize {
        self.dirty.len() + self.leaving
    }

    /// Dirty blocks.
    pub fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Stretches of dirty blocks without a gap: so many requests would bring all of them home.
    pub fn stretches(&self) -> usize {
        self.stretches
    }

    /// The content of `block`, if cached.
    pub fn get(&self, block: MetaBlock) -> Option<&Block> {
        let frame = &self.frames[*self.index.get(&block.0)? as usize];
        frame.recent.set(true);
        Some(&frame.data)
    }

    /// The content of `block`, if it is cached and the same as at home. Looking at it so is no use
    /// of it.
    pub fn at_home(&self, block: MetaBlock) -> Option<&Block> {
        let frame = &self.frames[*self.index.get(&block.0)? as usize];
        (!frame.dirty && !frame.leaving).then_some(&*frame.data)
    }

    /// The frame of `block`, if cached.
    pub fn frame_mut(&mut self, block: MetaBlock) -> Option<&mut Frame> {
        Some(&mut self.frames[*self.index.get(&block.0)? as usize])
    }

    /// Is it cached?
    pub fn contains(&self, block: MetaBlock) -> bool {
        self.index.contains_key(&block.0)
    }

    /// A buffer with unspecified content.
    pub fn buffer(&mut self) -> Box<Block> {
        self.spare.pop().unwrap_or_else(|| Box::new([0; BLOCK]))
    }

    /// Takes a buffer back for reuse.
    pub fn recycle(&mut self, data: Box<Block>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(data);
        }
    }

    /// Adds a clean frame for a block that is not cached.
    pub fn insert(&mut self, block: MetaBlock, data: Box<Block>) {
        self.make_room();
        let at = self.frames.len() as u32;
        let previous = self.index.insert(block.0, at);
        assert!(previous.is_none(), "{block:?} is cached already");
        self.frames.push(Frame {
            block,
            data,
            dirty: false,
            leaving: false,
            pins: 0,
            recent: Cell::new(true),
        });
    }

    /// Notes that `block`, which is cached and clean, turned dirty in the group at `since`.
    pub fn mark_dirty(&mut self, block: MetaBlock, since: Lsn) {
        debug_assert!(self.queue.back().is_none_or(|last| last.since <= since));
        let frame = self.frame_mut(block).expect("dirty blocks are cached");
        assert!(!frame.dirty, "{block:?} is dirty already");
        frame.dirty = true;
        self.stretches = self.stretches + 1 - self.neighbours(block);
        self.dirty.insert(block.0, since);
        if self.queue.len() > 2 * self.dirty.len() + STALE_MAX {
            let dirty = &self.dirty;
            self.queue.retain(|entry| dirty.get(&entry.block.0) == Some(&entry.since));
        }
        self.queue.push_back(Dirty { block, since });
    }

    /// Blocks directly before and behind `block` that are dirty.
    fn neighbours(&self, block: MetaBlock) -> usize {
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

    /// About since when the `n` blocks that have been dirty for longest are dirty, at most.
    pub fn dirty_since(&self, n: usize) -> Option<Lsn> {
        let at = n.min(self.queue.len()).checked_sub(1)?;
        self.queue.get(at).map(|entry| entry.since)
    }

    /// The dirty blocks from address `from` on, and since when each is, in the order of addresses.
    pub fn dirty_from(&self, from: MetaBlock) -> impl Iterator<Item = Dirty> {
        let blocks = self.dirty.range(from.0..);
        blocks.map(|(&block, &since)| Dirty { block: MetaBlock(block), since })
    }

    /// Lets the dirty block `block` leave: it is clean, and leaving until [`Cache::arrived`].
    /// Returns its content.
    pub fn depart(&mut self, block: MetaBlock) -> &Block {
        let was = self.dirty.remove(&block.0);
        assert!(was.is_some(), "{block:?} is not dirty");
        self.stretches = self.stretches + self.neighbours(block) - 1;
        let at = self.index[&block.0] as usize;
        let frame = &mut self.frames[at];
        assert!(!frame.leaving, "{block:?} is leaving already");
        frame.dirty = false;
        frame.leaving = true;
        self.leaving += 1;
        &frame.data
    }

    /// The copy of `block` that left is stable at home.
    pub fn arrived(&mut self, block: MetaBlock) {
        let frame = self.frame_mut(block).expect("leaving blocks are cached");
        assert!(frame.leaving, "{block:?} did not leave");
        frame.leaving = false;
        self.leaving -= 1;
    }

    /// Keeps `block` cached until [`Cache::unpin`].
    pub fn pin(&mut self, block: MetaBlock) {
        if let Some(frame) = self.frame_mut(block) {
            frame.pins += 1;
        }
    }

    /// Undoes one [`Cache::pin`].
    pub fn unpin(&mut self, block: MetaBlock) {
        if let Some(frame) = self.frame_mut(block) {
            frame.pins -= 1;
        }
    }

    fn make_room(&mut self) {
        let mut chances = 2 * self.frames.len();
        while self.frames.len() >= self.capacity && chances > 0 {
            chances -= 1;
            if self.hand >= self.frames.len() {
                self.hand = 0;
            }
            let frame = &self.frames[self.hand];
            if frame.dirty || frame.leaving || frame.pins > 0 || frame.recent.replace(false) {
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
    fn clean_frames_make_room_for_new_ones() {
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
    fn dirty_leaving_and_pinned_frames_stay() {
        let mut cache = filled(8, 3);
        cache.pin(MetaBlock(0));
        cache.mark_dirty(MetaBlock(1), Lsn(1));
        cache.mark_dirty(MetaBlock(2), Lsn(2));
        cache.depart(MetaBlock(1));
        for block in 10..100 {
            let data = cache.buffer();
            cache.insert(MetaBlock(block), data);
        }
        for block in 0..3 {
            assert!(cache.contains(MetaBlock(block)));
        }
        cache.unpin(MetaBlock(0));
        cache.arrived(MetaBlock(1));
        for block in 200..300 {
            let data = cache.buffer();
            cache.insert(MetaBlock(block), data);
        }
        assert!(!cache.contains(MetaBlock(0)) && !cache.contains(MetaBlock(1)));
        assert_eq!(cache.unsettled(), 1);
    }

    #[test]
    fn a_block_dirtied_on_its_way_home_is_dirty_since_then() {
        let mut cache = filled(8, 2);
        cache.mark_dirty(MetaBlock(0), Lsn(1));
        cache.mark_dirty(MetaBlock(1), Lsn(1));
        cache.depart(MetaBlock(0));
        cache.mark_dirty(MetaBlock(0), Lsn(2));
        assert_eq!(cache.oldest_dirty().map(|dirty| dirty.block), Some(MetaBlock(1)));
        cache.arrived(MetaBlock(0));
        cache.depart(MetaBlock(1));
        cache.arrived(MetaBlock(1));
        assert_eq!(cache.oldest_dirty().map(|dirty| dirty.since), Some(Lsn(2)));
        assert_eq!(cache.unsettled(), 1);
    }

    #[test]
    fn stretches_are_counted_and_the_queue_stays_short() {
        let mut cache = filled(100, 100);
        let stretches = |cache: &Cache| {
            let blocks: Vec<u64> = cache.dirty_from(MetaBlock(0)).map(|d| d.block.0).collect();
            let gaps = blocks.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
            if blocks.is_empty() { 0 } else { gaps + 1 }
        };
        let mut seed = 1;
        for round in 0..20_000 {
            let block = MetaBlock(crate::testing::random(&mut seed, 100));
            if cache.dirty.contains_key(&block.0) {
                cache.depart(block);
                cache.arrived(block);
            } else {
                cache.mark_dirty(block, Lsn(round));
            }
            assert_eq!(cache.stretches(), stretches(&cache));
            assert!(cache.queue.len() <= 2 * cache.dirty_count() + STALE_MAX + 1);
            let oldest = cache.dirty.values().min().copied();
            assert_eq!(cache.oldest_dirty().map(|dirty| dirty.since), oldest);
        }
    }
}

//! The buffer cache: a bounded set of frames, evicted by CLOCK.
//!
//! Invariants:
//! - a frame holds the newest committed content of its block;
//! - only frames that are clean, unpinned and not on their way home are evicted,
//!   so reading a block again always gives its newest content;
//! - a dirty frame has exactly one entry in the queue of dirty blocks, which is
//!   in the order of the groups that dirtied them;
//! - the bound may be passed by what one operation pins and by dirty frames, which admission bounds.

use std::cell::Cell;
use std::collections::VecDeque;

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
    queue: VecDeque<Dirty>,
    leaving: usize,
    spare: Vec<Box<Block>>,
}

const SPARE_MAX: usize = 256;

impl Cache {
    /// A cache of `capacity` blocks.
    pub fn new(capacity: usize) -> Cache {
        Cache {
            capacity,
            frames: Vec::new(),
            index: HashMap::default(),
            hand: 0,
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
        self.queue.len() + self.leaving
    }

    /// The content of `block`, if cached.
    pub fn get(&self, block: MetaBlock) -> Option<&Block> {
        let frame = &self.frames[*self.index.get(&block.0)? as usize];
        frame.recent.set(true);
        Some(&frame.data)
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
        self.queue.push_back(Dirty { block, since });
        let frame = self.frame_mut(block).expect("dirty blocks are cached");
        assert!(!frame.dirty, "{block:?} is dirty already");
        frame.dirty = true;
    }

    /// The block that has been dirty for longest.
    pub fn oldest_dirty(&self) -> Option<Dirty> {
        self.queue.front().copied()
    }

    /// Takes the block that has been dirty for longest out of the queue: it is clean,
    /// and leaving until [`Cache::arrived`]. Returns its content.
    pub fn depart(&mut self) -> Option<(Dirty, &Block)> {
        let index = self.queue.front()?.block;
        let at = self.index[&index.0] as usize;
        if self.frames[at].leaving {
            return None;
        }
        let dirty = self.queue.pop_front()?;
        let frame = &mut self.frames[at];
        frame.dirty = false;
        frame.leaving = true;
        self.leaving += 1;
        Some((dirty, &frame.data))
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
        assert_eq!(cache.depart().map(|(dirty, _)| dirty.block), Some(MetaBlock(1)));
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
    fn a_block_dirtied_on_its_way_home_waits_for_its_copy() {
        let mut cache = filled(8, 1);
        cache.mark_dirty(MetaBlock(0), Lsn(1));
        assert!(cache.depart().is_some());
        cache.mark_dirty(MetaBlock(0), Lsn(2));
        assert!(cache.depart().is_none());
        cache.arrived(MetaBlock(0));
        assert!(cache.depart().is_some());
    }
}

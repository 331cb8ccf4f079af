//! Overlay transactions.
//!
//! Invariants:
//! - the body of a transaction sees committed state and its own changes;
//! - a transaction changes copies of blocks (the overlay) until it succeeds, so an abort needs no
//!   undo;
//! - what else depends on its success waits in hooks, which run when it has taken effect;
//! - a body never waits; a block that is not cached ends it with `Stop::Miss`, and it runs again.

mod alloc;
pub(crate) mod apply;
pub(crate) mod overlay;
mod roots;

use std::cell::RefMut;

use types::{Epoch, HashMap, Lsn, MetaBlock, ShardId, Transno};

use crate::alloc::metaspace::SpaceChange;
use crate::cost::Cost;
use crate::error::Stop;
use crate::format::block::{self, Block, BlockType};
use crate::format::features::{Feature, Features};
use crate::state::State;
use crate::txn::overlay::{Hook, Layer, Scratch};

/// What a transaction runs, whatever value comes of it.
pub(crate) type Body<'b> = dyn FnMut(&mut Txn<'_>) -> Result<(), Stop> + 'b;

/// A running transaction.
pub struct Txn<'a> {
    pub(crate) state: RefMut<'a, State>,
    pub(crate) cost: Cost,
    pub(crate) layers: Vec<Layer>,
    pub(crate) index: HashMap<u64, u32>,
    pub(crate) space_change: SpaceChange,
    pub(crate) hooks: Vec<Hook>,
}

impl<'a> Txn<'a> {
    pub(crate) fn new(mut state: RefMut<'a, State>, cost: Cost) -> Txn<'a> {
        let Scratch { layers, index, space_change, hooks } = std::mem::take(&mut state.scratch);
        Txn { state, cost, layers, index, space_change, hooks }
    }

    /// The content of `block` as this transaction sees it.
    ///
    /// # Errors
    /// `Stop::Miss` if it is not cached.
    pub fn read(&self, block: MetaBlock) -> Result<&Block, Stop> {
        if !self.layers.is_empty()
            && let Some(&at) = self.index.get(&block.0)
        {
            return Ok(&self.layers[at as usize].data);
        }
        self.state.cache.get(block).ok_or(Stop::Miss(block, 1))
    }

    /// As [`Txn::read`], of a block that must be of type `kind`.
    ///
    /// # Errors
    /// `Stop::Corrupt` if it is of another type.
    pub fn read_as(&self, block: MetaBlock, kind: BlockType) -> Result<&Block, Stop> {
        let data = self.read(block)?;
        if data[4] != kind as u8 {
            return Err(Stop::Corrupt(block, wrong_type(kind)));
        }
        Ok(data)
    }

    /// The content of `block` for changing it. The caller must not change the 32 header bytes.
    ///
    /// # Errors
    /// `Stop::Miss` if it is not cached.
    pub fn write(&mut self, block: MetaBlock) -> Result<&mut Block, Stop> {
        let at = match self.index.get(&block.0) {
            Some(&at) => at as usize,
            None => {
                let mut data = self.state.cache.buffer();
                match self.state.cache.get(block) {
                    Some(content) => data.copy_from_slice(content),
                    None => {
                        self.state.cache.recycle(data);
                        return Err(Stop::Miss(block, 1));
                    }
                }
                self.add_layer(block, data, false)
            }
        };
        Ok(&mut self.layers[at].data)
    }

    /// As [`Txn::write`], of a block that must be of type `kind`.
    ///
    /// # Errors
    /// `Stop::Corrupt` if it is of another type.
    pub fn write_as(&mut self, block: MetaBlock, kind: BlockType) -> Result<&mut Block, Stop> {
        self.read_as(block, kind)?;
        self.write(block)
    }

    /// Makes `block` an empty block of type `kind`, whatever it was, without reading it.
    ///
    /// # Errors
    /// `Stop::Corrupt` if it lies outside the device.
    pub fn init(&mut self, block: MetaBlock, kind: BlockType) -> Result<&mut Block, Stop> {
        if block.0 >= self.state.space.blocks {
            return Err(Stop::Corrupt(block, "the address lies outside the device"));
        }
        let at = match self.index.get(&block.0) {
            Some(&at) => at as usize,
            None => {
                let data = self.state.cache.buffer();
                self.add_layer(block, data, true)
            }
        };
        let tag = self.state.tag;
        let layer = &mut self.layers[at];
        layer.fresh = true;
        block::initialise(&mut layer.data, block, kind, tag);
        Ok(&mut layer.data)
    }

    /// Registers `hook`, which runs when this transaction has succeeded, with its number
    /// (`Transno::ZERO` if it changed no block). It must not call the store.
    pub fn on_commit(&mut self, hook: impl FnOnce(Transno) + 'static) {
        self.hooks.push(Box::new(hook));
    }

    /// Checks that blocks `[first, first + count)` are cached.
    ///
    /// # Errors
    /// `Stop::Miss` of the range that holds all missing ones, so that one fetch reads them.
    pub fn require_cached(&self, first: MetaBlock, count: u32) -> Result<(), Stop> {
        let end = first.0.saturating_add(u64::from(count));
        let missing = |block: &u64| {
            !self.index.contains_key(block) && !self.state.cache.contains(MetaBlock(*block))
        };
        let Some(from) = (first.0..end).find(missing) else { return Ok(()) };
        let to = (from..end).rev().find(missing).unwrap_or(from) + 1;
        Err(Stop::Miss(MetaBlock(from), (to - from) as u32))
    }

    /// The newest transaction known to be durable.
    pub fn durable(&self) -> Transno {
        self.state.last_committed()
    }

    /// The epoch in which this transaction runs.
    pub fn epoch(&self) -> Epoch {
        self.state.log.epoch
    }

    /// The shard that issues numbers here.
    pub fn shard(&self) -> ShardId {
        self.state.superblock.shard
    }

    /// The features of this file system.
    pub fn features(&self) -> Features {
        self.state.superblock.features
    }

    /// Does the file system have this feature?
    pub fn has_feature(&self, feature: Feature) -> bool {
        self.features().has(feature)
    }

    /// Is this block cached? The changes of the transaction do not count.
    pub fn is_cached(&self, block: MetaBlock) -> bool {
        self.state.cache.contains(block)
    }

    /// The committed content of this block, if it is cached.
    pub fn cached(&self, block: MetaBlock) -> Option<&Block> {
        self.state.cache.get(block)
    }

    /// Blocks that the cache should hold at most.
    pub fn cache_capacity(&self) -> usize {
        self.state.cache.capacity()
    }

    /// End of the log: if this transaction changes anything, its record comes next.
    pub fn log_end(&self) -> Lsn {
        self.state.log.end()
    }

    /// Have log and cache room for so many more bytes of records and dirty blocks, besides what
    /// they hold for other transactions?
    pub fn has_room_for(&self, log_bytes: u64, dirty: u64) -> bool {
        let (log, cache) = (&self.state.log, &self.state.cache);
        log.in_memory
            || log.used() + log_bytes <= log.bytes / 8 * 7
                && log.group.len() as u64 + log_bytes <= log.bytes / 8 * 3
                && cache.dirty_or_in_flight() as u64 + dirty <= cache.capacity() as u64 / 2
    }

    /// The tag that every block of this file system carries.
    pub fn tag(&self) -> u32 {
        self.state.tag
    }

    /// Adds the home version of a block that is not cached, for this transaction only.
    pub fn overlay_from_home(&mut self, block: MetaBlock, data: Box<Block>) {
        self.add_layer(block, data, false);
    }

    fn add_layer(&mut self, block: MetaBlock, data: Box<Block>, fresh: bool) -> usize {
        let at = self.layers.len();
        self.index.insert(block.0, at as u32);
        self.layers.push(Layer { block, data, fresh, changed: false });
        at
    }
}

/// What to say about a block that is not of the type `wanted`.
pub fn wrong_type(wanted: BlockType) -> &'static str {
    match wanted {
        BlockType::Super => "not a superblock",
        BlockType::Roots => "not the block of roots",
        BlockType::Bitmap => "not a bitmap block",
        BlockType::Tree => "not a tree node",
        BlockType::Directory
        | BlockType::Directory1024
        | BlockType::Directory2048
        | BlockType::Directory4096 => "not a directory block",
        BlockType::Blob => "not a blob block",
        BlockType::Reply => "not a block of replies",
        BlockType::Table => "not a table block",
        BlockType::NameMap => "not a block of a name map",
        BlockType::Layout => "not a layout block",
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use types::{Fault, Transno};

    use crate::cost::Cost;
    use crate::error::Stop;
    use crate::format::block::BlockType;
    use crate::store::Store;
    use crate::testing::now;

    #[test]
    fn transaction_that_fails_changes_nothing() {
        let mfs = Store::volatile(1000);
        let (block, _) = now(mfs.run(Cost::SMALL, |txn| {
            let block = txn.alloc_meta(1, None)?;
            txn.init(block, BlockType::Table)?[100] = 1;
            Ok(block)
        }))
        .unwrap();
        let failed = now(mfs.run(Cost::SMALL, |txn| {
            txn.write(block)?[100] = 2;
            assert_eq!(txn.read(block)?[100], 2);
            txn.alloc_meta(4, None)?;
            Err::<(), _>(Stop::Fault(Fault::Exists))
        }));
        assert_eq!(failed.map(|_| ()).unwrap_err().fault(), Fault::Exists);
        let free = now(mfs.run(Cost::SMALL, |txn| {
            assert_eq!(txn.read(block)?[100], 1);
            Ok(txn.meta_space().1)
        }));
        assert_eq!(free.unwrap().1, types::Transno::ZERO);
    }

    #[test]
    fn hooks_run_only_when_their_transaction_succeeds() {
        let store = Store::volatile(1000);
        let ran = Rc::new(Cell::new(0));
        let hook = |adds: i32, expected: fn(Transno) -> bool| {
            let ran = ran.clone();
            move |number| {
                assert!(expected(number), "{number:?}");
                ran.set(ran.get() + adds);
            }
        };
        let failed = now(store.run(Cost::SMALL, |txn| {
            txn.on_commit(hook(1, |_| true));
            let block = txn.alloc_meta(1, None)?;
            txn.init(block, BlockType::Table)?;
            Err::<(), _>(Stop::Fault(Fault::Exists))
        }));
        assert_eq!(failed.map(|_| ()).unwrap_err().fault(), Fault::Exists);
        let unchanged = now(store.run(Cost::SMALL, |txn| {
            txn.on_commit(hook(10, |number| number == Transno::ZERO));
            Ok(())
        }));
        assert_eq!((ran.get(), unchanged.unwrap().1), (10, Transno::ZERO));
        let changed = now(store.run(Cost::SMALL, |txn| {
            txn.on_commit(hook(100, |number| number > Transno::ZERO));
            txn.on_commit(hook(1000, |number| number > Transno::ZERO));
            let block = txn.alloc_meta(1, None)?;
            txn.init(block, BlockType::Table).map(drop)
        }));
        assert!(changed.unwrap().1 > Transno::ZERO);
        assert_eq!(ran.get(), 1110);
    }

    #[test]
    fn transaction_numbers_grow_with_every_change() {
        let mfs = Store::volatile(1000);
        let mut last = types::Transno::ZERO;
        for _ in 0..10 {
            let changed = now(mfs.run(Cost::SMALL, |txn| {
                let block = txn.alloc_meta(1, None)?;
                txn.init(block, BlockType::Table)?;
                Ok(())
            }));
            let number = changed.unwrap().1;
            assert!(number > last);
            last = number;
        }
    }

    #[test]
    fn block_of_the_wrong_type_is_reported_as_corrupt() {
        let mfs = Store::volatile(1000);
        let failed = now(mfs.run(Cost::SMALL, |txn| {
            txn.read_as(crate::format::roots::ROOTS_BLOCK, BlockType::Tree).map(|_| ())
        }));
        assert_eq!(failed.unwrap_err().fault(), Fault::Corrupt);
    }
}

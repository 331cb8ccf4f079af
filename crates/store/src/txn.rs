//! Overlay transactions.
//!
//! Invariants:
//! - the body of a transaction sees committed state and its own changes;
//! - a transaction changes copies of blocks (the overlay) until it succeeds, so an abort needs no
//!   undo;
//! - a body never waits; a block that is not cached ends it with `Stop::Miss`, and it runs again.

use types::{DirNo, Epoch, HashMap, MetaBlock, Transno};

use crate::block::{self, Block, BlockType};
use crate::error::Stop;
use crate::format::number::SYSTEM_CHUNK;
use crate::format::slot::SlotSize;
use crate::metaspace::SpaceChange;
use crate::mfs::Cost;
use crate::state::State;
use crate::volatile_state::{Pending, VolatileState};

/// A changed block of a running transaction.
pub(crate) struct Layer {
    pub(crate) block: MetaBlock,
    pub(crate) data: Box<Block>,
    /// The transaction initialised it: its former content does not matter.
    pub(crate) fresh: bool,
    /// It differs from the cache; set at commit.
    pub(crate) changed: bool,
}

/// Runs when a transaction has succeeded.
pub(crate) type Hook = Box<dyn FnOnce(&mut VolatileState, Transno)>;

/// Memory that one transaction leaves to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) layers: Vec<Layer>,
    pub(crate) index: HashMap<u64, u32>,
    pub(crate) hooks: Vec<Hook>,
    pub(crate) space_change: SpaceChange,
}

/// A running transaction.
pub struct Txn<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) cost: Cost,
    pub(crate) layers: Vec<Layer>,
    pub(crate) index: HashMap<u64, u32>,
    pub(crate) hooks: Vec<Hook>,
    pub(crate) space_change: SpaceChange,
    pub(crate) pending: Pending,
}

impl<'a> Txn<'a> {
    pub(crate) fn new(state: &'a mut State, cost: Cost) -> Txn<'a> {
        let Scratch { layers, index, hooks, space_change } = std::mem::take(&mut state.scratch);
        Txn { state, cost, layers, index, hooks, space_change, pending: Pending::default() }
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

    /// As [`Txn::read`], of a block of directory slots.
    ///
    /// # Errors
    /// `Stop::Corrupt` if it is of another type.
    pub(crate) fn read_slots(&self, block: MetaBlock) -> Result<&Block, Stop> {
        let data = self.read(block)?;
        match block::type_of(data).is_some_and(BlockType::is_content) {
            true => Ok(data),
            false => Err(Stop::Corrupt(block, wrong_type(BlockType::Directory))),
        }
    }

    /// As [`Txn::write`], of a block of directory slots.
    ///
    /// # Errors
    /// `Stop::Corrupt` if it is of another type.
    pub(crate) fn write_slots(&mut self, block: MetaBlock) -> Result<&mut Block, Stop> {
        self.read_slots(block)?;
        self.write(block)
    }

    /// Makes `block` an empty block of directory slots.
    ///
    /// # Errors
    /// As [`Txn::init`].
    pub(crate) fn init_slots(&mut self, block: MetaBlock) -> Result<&mut Block, Stop> {
        self.init(block, self.slots().kind())
    }

    /// Size of the directory slots of this file system.
    pub(crate) fn slots(&self) -> SlotSize {
        self.state.superblock.features.slots()
    }

    /// The type of the content blocks of a chunk.
    pub(crate) fn content_of(&self, chunk: DirNo) -> BlockType {
        if chunk == SYSTEM_CHUNK { BlockType::Directory } else { self.slots().kind() }
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

    /// Registers `hook`, which runs on the volatile state when this transaction has succeeded,
    /// with the transaction's number (`Transno::ZERO` if it changed no block).
    pub fn on_commit(&mut self, hook: impl FnOnce(&mut VolatileState, Transno) + 'static) {
        self.hooks.push(Box::new(hook));
    }

    /// The volatile state, as of the committed transactions.
    pub fn volatile(&self) -> &VolatileState {
        &self.state.volatile
    }

    /// The volatile state, for filling pure caches of committed state: such a change
    /// remains if the transaction fails.
    pub fn volatile_mut(&mut self) -> &mut VolatileState {
        &mut self.state.volatile
    }

    /// The newest transaction known to be durable.
    pub fn durable(&self) -> Transno {
        self.state.last_committed()
    }

    /// The epoch in which this transaction runs.
    pub fn epoch(&self) -> Epoch {
        self.state.log.epoch
    }

    /// Adds the home version of a block that is not cached, for this transaction only.
    pub(crate) fn overlay_from_home(&mut self, block: MetaBlock, data: Box<Block>) {
        self.add_layer(block, data, false);
    }

    fn add_layer(&mut self, block: MetaBlock, data: Box<Block>, fresh: bool) -> usize {
        let at = self.layers.len();
        self.index.insert(block.0, at as u32);
        self.layers.push(Layer { block, data, fresh, changed: false });
        at
    }
}

pub(crate) fn wrong_type(wanted: BlockType) -> &'static str {
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

    use types::Fault;

    use crate::block::BlockType;
    use crate::error::Stop;
    use crate::mfs::{Cost, Mfs};
    use crate::testing::now;

    #[test]
    fn transaction_that_fails_changes_nothing() {
        let mfs = Mfs::volatile(1000);
        let (block, _) = now(mfs.run(Cost::SMALL, |txn| {
            let block = txn.alloc_meta(1, None)?;
            txn.init(block, BlockType::Table)?[100] = 1;
            Ok(block)
        }))
        .unwrap();
        let ran = Rc::new(Cell::new(0));
        let failed = now(mfs.run(Cost::SMALL, |txn| {
            let ran = ran.clone();
            txn.on_commit(move |_, _| ran.set(ran.get() + 1));
            txn.write(block)?[100] = 2;
            assert_eq!(txn.read(block)?[100], 2);
            txn.alloc_meta(4, None)?;
            Err::<(), _>(Stop::Fault(Fault::Exists))
        }));
        assert_eq!(failed.map(|_| ()).unwrap_err().fault(), Fault::Exists);
        let free = now(mfs.run(Cost::SMALL, |txn| {
            assert_eq!(txn.read(block)?[100], 1);
            let ran = ran.clone();
            txn.on_commit(move |_, _| ran.set(ran.get() + 10));
            Ok(txn.meta_space().1)
        }));
        assert_eq!(ran.get(), 10);
        assert_eq!(free.unwrap().1, types::Transno::ZERO);
    }

    #[test]
    fn transaction_numbers_grow_with_every_change() {
        let mfs = Mfs::volatile(1000);
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
        let mfs = Mfs::volatile(1000);
        let failed = now(mfs.run(Cost::SMALL, |txn| {
            txn.read_as(crate::roots::ROOTS_BLOCK, BlockType::Tree).map(|_| ())
        }));
        assert_eq!(failed.unwrap_err().fault(), Fault::Corrupt);
    }
}

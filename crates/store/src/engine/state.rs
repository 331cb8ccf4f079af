//! The state of an open store in memory, and how a transaction takes effect on it.
//!
//! Invariants:
//! - a transaction takes effect as a whole: its record in the running group, its blocks in the
//!   cache, its counts and its volatile state, without an await in between;
//! - the store logs an image of a clean block that turns dirty. Of a dirty block it logs the change
//!   since its last record, which lies in a group not older than its entry in the dirty queue.

use std::rc::Rc;

use types::{HashMap, Lsn, Transno, Uuid};

use crate::engine::alloc::metaspace::MetaSpace;
use crate::engine::cache::Cache;
use crate::engine::cache::sweep::Sweep;
use crate::engine::error::StoreError;
use crate::engine::format::block::{self, Block, HEADER};
use crate::engine::format::superblock::Superblock;
use crate::engine::log::Log;
use crate::engine::txn::{Layer, Scratch, Txn};
use crate::mfs::names::MapLimits;
use crate::mfs::space::LayoutLimits;
use crate::mfs::volatile::VolatileState;

/// All state of an open store.
pub(crate) struct State {
    pub(crate) cache: Cache,
    pub(crate) log: Log,
    pub(crate) space: MetaSpace,
    pub(crate) volatile: VolatileState,
    pub(crate) scratch: Scratch,
    pub(crate) uuid: Uuid,
    pub(crate) tag: u32,
    pub(crate) read_only: bool,
    pub(crate) poisoned: Option<Rc<str>>,
    /// Blocks being read; `false`: a transaction has initialised or changed the block since.
    pub(crate) fetching: HashMap<u64, bool>,
    /// The newest copy of the superblock, as it is or will be written.
    pub(crate) superblock: Superblock,
    /// Number of callers that wait until blocks are home.
    pub(crate) home_waiters: usize,
    /// The store is closing: the checkpoint writes everything home.
    pub(crate) draining: bool,
    /// The checkpoint writes home everything that changed before this position.
    pub(crate) checkpoint_to: Lsn,
    /// Blocks in one batch of the checkpoint.
    pub(crate) home_batch: usize,
    /// Does the checkpoint also write clean blocks where that saves a request?
    pub(crate) bridge: bool,
    /// The sizes from which on directories have name maps.
    pub(crate) limits: MapLimits,
    /// How layout blocks are used.
    pub(crate) layouts: LayoutLimits,
    /// The running sweep of the checkpoint.
    pub(crate) sweep: Option<Sweep>,
    /// Damage found by an opening for repair, which restores a block if the log has it.
    pub(crate) damage: Vec<crate::engine::log::recovery::DamagedBlock>,
}

impl State {
    /// A state with nothing but an empty cache.
    pub(crate) fn new(superblock: Superblock, log: Log, cache: Cache) -> State {
        let space = MetaSpace::new(superblock.bitmap_first, superblock.blocks);
        State {
            cache,
            log,
            space,
            volatile: VolatileState::default(),
            scratch: Scratch::default(),
            uuid: superblock.uuid,
            tag: block::tag_of(superblock.uuid),
            read_only: false,
            poisoned: None,
            fetching: HashMap::default(),
            superblock,
            home_waiters: 0,
            draining: false,
            checkpoint_to: Lsn(0),
            home_batch: crate::engine::store::checkpoint::BATCH,
            bridge: false,
            limits: MapLimits::USUAL,
            layouts: LayoutLimits::USUAL,
            sweep: None,
            damage: Vec::new(),
        }
    }

    /// # Errors
    /// `Poisoned` after a failed write.
    pub(crate) fn usable(&self) -> Result<(), StoreError> {
        match &self.poisoned {
            Some(why) => Err(StoreError::Poisoned(why.clone())),
            None => Ok(()),
        }
    }

    /// The newest transaction known to be durable.
    pub(crate) fn last_committed(&self) -> Transno {
        Transno { epoch: self.log.epoch, lsn: self.log.durable }
    }

    /// Puts the new content of a changed block into the cache.
    fn install(&mut self, layer: Layer, since: Lsn) {
        let Layer { block, mut data, .. } = layer;
        let dirty = match self.cache.frame_mut(block) {
            Some(frame) => {
                std::mem::swap(&mut frame.data, &mut data);
                let dirty = frame.dirty;
                self.cache.recycle(data);
                dirty
            }
            None => {
                if let Some(valid) = self.fetching.get_mut(&block.0) {
                    *valid = false;
                }
                self.cache.insert(block, data);
                false
            }
        };
        if !dirty && !self.log.in_memory {
            self.cache.mark_dirty(block, since);
        }
    }
}

impl Txn<'_> {
    /// Ends the transaction without any effect.
    pub(crate) fn abort(mut self) {
        self.give_back();
    }

    /// Applies the transaction. Returns `Transno::ZERO` if it changed nothing.
    ///
    /// # Errors
    /// `ReadOnly`; then nothing has changed.
    pub(crate) fn commit(mut self) -> Result<Transno, StoreError> {
        if self.state.read_only && self.layers.iter().any(|layer| self.differs(layer)) {
            self.give_back();
            return Err(StoreError::ReadOnly);
        }
        let mut number = Transno::ZERO;
        if let Some(lsn) = self.log_changes() {
            number = Transno { epoch: self.state.log.epoch, lsn };
            self.state.space.apply(&self.space_change);
            self.install(number);
        }
        self.state.volatile.apply(std::mem::take(&mut self.pending), number);
        let mut hooks = std::mem::take(&mut self.hooks);
        for hook in hooks.drain(..) {
            hook(&mut self.state.volatile, number);
        }
        self.hooks = hooks;
        self.give_back();
        Ok(number)
    }

    /// Adds the record to the running group and marks the layers that changed; `None` if none did.
    fn log_changes(&mut self) -> Option<Lsn> {
        if self.state.log.in_memory {
            return self.count_changes();
        }
        let State { cache, log, .. } = &mut *self.state;
        log.group.begin();
        for layer in &mut self.layers {
            layer.changed = match cache.frame_mut(layer.block) {
                Some(frame) if !layer.fresh && frame.dirty => {
                    log.group.add(layer.block, Some(&frame.data), &layer.data)
                }
                Some(frame) if !layer.fresh && same_body(&frame.data, &layer.data) => false,
                _ => log.group.add(layer.block, None, &layer.data),
            };
        }
        log.group.finish().map(|end| Lsn(log.start.0 + end as u64))
    }

    fn count_changes(&mut self) -> Option<Lsn> {
        let mut layers = std::mem::take(&mut self.layers);
        for layer in &mut layers {
            layer.changed = self.differs(layer);
        }
        let any = layers.iter().any(|layer| layer.changed);
        self.layers = layers;
        let log = &mut self.state.log;
        any.then(|| {
            log.start.0 += RECORD_STEP;
            log.durable = log.start;
            log.start
        })
    }

    fn differs(&self, layer: &Layer) -> bool {
        layer.fresh
            || !self.state.cache.get(layer.block).is_some_and(|old| same_body(old, &layer.data))
    }

    /// Puts the changed layers into the cache.
    fn install(&mut self, number: Transno) {
        let since = self.state.log.start;
        let mut layers = std::mem::take(&mut self.layers);
        for mut layer in layers.drain(..) {
            debug_assert_eq!(
                block::get_u64(&layer.data[..], 8),
                layer.block.0,
                "header overwritten"
            );
            if layer.changed {
                block::stamp(&mut layer.data, number.lsn, number.epoch);
                self.state.install(layer, since);
            } else {
                self.state.cache.recycle(layer.data);
            }
        }
        self.layers = layers;
    }

    /// Keeps the allocated memory for the next transaction.
    fn give_back(&mut self) {
        let mut layers = std::mem::take(&mut self.layers);
        for layer in layers.drain(..) {
            self.state.cache.recycle(layer.data);
        }
        let mut index = std::mem::take(&mut self.index);
        index.clear();
        let mut hooks = std::mem::take(&mut self.hooks);
        hooks.clear();
        let mut space_change = std::mem::take(&mut self.space_change);
        space_change.clear();
        self.state.scratch = Scratch { layers, index, hooks, space_change };
    }
}

/// Bytes by which a transaction advances the position in a store without a log.
const RECORD_STEP: u64 = 64;

fn same_body(a: &Block, b: &Block) -> bool {
    a[HEADER..] == b[HEADER..]
}

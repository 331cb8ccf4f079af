//! The state of an open store in memory; [`crate::txn`] says how a transaction takes
//! effect on it.

use std::rc::Rc;

use types::{HashMap, Lsn, Transno, Uuid};

use crate::alloc::metaspace::MetaSpace;
use crate::cache::Cache;
use crate::cache::sweep::Sweep;
use crate::error::StoreError;
use crate::format::block;
use crate::format::superblock::Superblock;
use crate::log::Log;
use crate::txn::overlay::{Layer, Scratch};

/// Blocks of one batch of the checkpoint, unless the opening says otherwise.
pub(crate) const BATCH: usize = 1024;

/// All state of an open store.
pub(crate) struct State {
    pub(crate) cache: Cache,
    pub(crate) log: Log,
    pub(crate) space: MetaSpace,
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
    /// The running sweep of the checkpoint.
    pub(crate) sweep: Option<Sweep>,
    /// Damage found by an opening for repair, which restores a block if the log has it.
    pub(crate) damage: Vec<crate::log::recovery::DamagedBlock>,
}

impl State {
    /// A state with nothing but an empty cache.
    pub(crate) fn new(superblock: Superblock, log: Log, cache: Cache) -> State {
        let space = MetaSpace::new(superblock.bitmap_first, superblock.blocks);
        State {
            cache,
            log,
            space,
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
            home_batch: BATCH,
            bridge: false,
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
    pub(crate) fn install(&mut self, layer: Layer, since: Lsn) {
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

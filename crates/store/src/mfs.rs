//! [`Mfs`], the handle of an open store; it is cheap to clone.
//!
//! Invariants:
//! - the store runs the body of a transaction and applies it without an await in between;
//! - a transaction begins only when log and cache have room for its worst case;
//! - background tasks hold the store only while they work: it ends when the last handle is dropped.

use std::cell::RefCell;
use std::rc::Rc;

use env::sync::Notify;
use types::limits::BLOCK;
use types::{Epoch, Fault, Lsn, MetaBlock, Transno, Uuid};

use crate::block::{self, BlockType};
use crate::cache::Cache;
use crate::device::Device;
use crate::error::{Readahead, Stop, StoreError};
use crate::features::Features;
use crate::fetch::Pins;
use crate::log::Log;
use crate::metaspace;
use crate::names::{SearchCounts, placement};
use crate::reservation::ReplyReservation;
use crate::roots::ROOTS_BLOCK;
use crate::space::layout_ahead;
use crate::state::State;
use crate::superblock::{FIRST_LSN, Superblock};
use crate::txn::Txn;

/// Which allocations of a transaction may use the reserve of metadata space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserve {
    /// None.
    None,
    /// Those that freeing space may need. Not those for content that outgrew its slot, nor blocks
    /// that are reserved for the replies of clients.
    ToFree,
    /// All: the operation is a replay, and had room when it ran first.
    Replay,
}

/// The worst case of a transaction, which waits until log and cache have room for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Bytes of its log record.
    pub log_bytes: u32,
    /// Blocks that it dirties.
    pub dirty: u32,
    /// Its use of the reserve of metadata space (for deletions, and for what they depend on).
    pub reserve: Reserve,
}

impl Cost {
    /// An operation that changes nothing: it never waits for room.
    pub const READ: Cost = Cost { log_bytes: 0, dirty: 0, reserve: Reserve::None };
    /// An ordinary operation.
    pub const SMALL: Cost = Cost { log_bytes: 128 << 10, dirty: 96, reserve: Reserve::None };
    /// A step of unbounded work.
    pub const STEP: Cost = Cost { log_bytes: 1 << 20, dirty: 256, reserve: Reserve::ToFree };
    /// An operation that frees more than it allocates, or allocates nothing permanently.
    pub const DELETE: Cost = Cost { reserve: Reserve::ToFree, ..Cost::SMALL };
}

/// An open store.
#[derive(Clone)]
pub struct Mfs {
    pub(crate) inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) state: RefCell<State>,
    /// `None`: the store is in memory only.
    pub(crate) background: Option<Background>,
}

/// The device and the notifications of the background tasks.
pub(crate) struct Background {
    pub(crate) device: Device,
    /// Geometry; its tail and epoch are those of the opening.
    pub(crate) layout: Superblock,
    /// The label as the opening found it.
    pub(crate) label: crate::open::LabelCondition,
    /// Wakes the task that writes groups.
    pub(crate) flusher: Notify,
    /// Wakes the task that writes blocks home.
    pub(crate) checkpointer: Notify,
    /// Notified when something became durable, was written home, was read, or failed.
    pub(crate) progress: Notify,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(background) = &self.background {
            background.flusher.notify_all();
            background.checkpointer.notify_all();
        }
    }
}

/// Identity of an open store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// UUID of the file system.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Epoch of this opening.
    pub epoch: Epoch,
}

/// Counters for administrators and tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Blocks in the cache.
    pub cached: usize,
    /// Blocks that the cache should hold at most.
    pub cache_max: usize,
    /// Blocks that are dirty or being written home.
    pub dirty: usize,
    /// Bytes of the log that recovery would read, or that cannot be overwritten yet.
    pub log_used: u64,
    /// Capacity of the log in bytes.
    pub log_bytes: u64,
    /// Blocks of the metadata device.
    pub blocks: u64,
    /// Free blocks of the metadata device.
    pub blocks_free: u64,
    /// Free blocks that only deletions, replays and the replies of clients may take.
    pub blocks_set_aside: u64,
    /// Searches in the namespace index since the opening.
    pub index: SearchCounts,
}

impl Mfs {
    /// An empty store of `blocks` blocks in memory, without a device: no call waits, everything
    /// counts as durable, nothing outlives the store. For tests of higher layers.
    pub fn volatile(blocks: u64) -> Mfs {
        Mfs::in_memory(blocks, 0)
    }

    /// As [`Mfs::volatile`], with space for an unused log, so that a test can copy the store to a
    /// device.
    pub(crate) fn in_memory(blocks: u64, log_blocks: u64) -> Mfs {
        let mut superblock = Superblock::new(Uuid([0x5b; 16]), "volatile", blocks, log_blocks);
        superblock.features = Features::NONE;
        superblock.begin_epoch(Epoch(1), FIRST_LSN);
        let mut log = Log::new(Epoch(1), FIRST_LSN, Lsn(0), 0);
        log.in_memory = true;
        let used = superblock.reserved();
        let mut state = State::new(superblock, log, Cache::new(usize::MAX));
        let mut data = Box::new([0; BLOCK]);
        block::initialise(&mut data, ROOTS_BLOCK, BlockType::Roots, state.tag);
        state.cache.insert(ROOTS_BLOCK, data);
        for index in 0..state.space.bitmap_blocks() {
            let data = metaspace::first_bitmap(&state.space, index, used, state.tag);
            state.space.learn(index as usize, &data);
            state.cache.insert(MetaBlock(state.space.first.0 + index), data);
        }
        state.space.reply_reservation = ReplyReservation::new(blocks, 0, 0);
        state.space.reply_reservation.set_shortfall(state.space.total_free(), state.space.reserve);
        Mfs { inner: Rc::new(Inner { state: RefCell::new(state), background: None }) }
    }

    /// Runs `body` as one transaction and returns its value and number (`Transno::ZERO` if it
    /// changed nothing). `body` may be called several times; only its last call counts. It must not
    /// call this store.
    ///
    /// # Errors
    /// The body's fault, damage or failure of the device, `Poisoned`, `ReadOnly`. Then nothing has
    /// changed.
    pub async fn run<T>(
        &self,
        cost: Cost,
        mut body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<(T, Transno), StoreError> {
        let mut pins = Pins::new(&self.inner);
        let mut scanned = Pins::new(&self.inner);
        loop {
            if !self.inner.has_room(cost) {
                self.inner.admit(cost).await?;
            }
            match self.attempt(cost, &mut body)? {
                Ok(done) => return Ok(done),
                Err(Stop::WaitDurable(number)) => {
                    if !self.is_metadata_short(cost) || self.reclaim_preallocated().await? == 0 {
                        self.wait_durable(number).await?;
                    }
                }
                Err(Stop::Fault(Fault::NoSpace)) if self.is_metadata_short(cost) => {
                    let freed = self.reclaim_preallocated().await?;
                    // Another transaction may have reclaimed the preallocated blocks meanwhile and
                    // not used all of them.
                    if freed == 0 && self.is_metadata_short(cost) {
                        return Err(StoreError::Fault(Fault::NoSpace));
                    }
                }
                Err(Stop::Fault(fault)) => return Err(StoreError::Fault(fault)),
                Err(Stop::Corrupt(block, what)) => return Err(StoreError::corrupt(block, what)),
                Err(Stop::OwnerMismatch(block, mismatch)) => {
                    return Err(StoreError::corrupt(block, mismatch.to_string()));
                }
                Err(Stop::Miss(first, count)) => {
                    self.inner.fetch(first, count, Readahead::NONE, &mut pins).await?;
                }
                Err(Stop::MissWithReadahead(first, count, readahead)) => {
                    self.inner.fetch(first, count, readahead, &mut pins).await?;
                }
                Err(Stop::Scan(first, count)) => {
                    scanned.clear();
                    self.inner.fetch(first, count, Readahead::NONE, &mut scanned).await?;
                }
            }
        }
    }

    /// Frees preallocated blocks; returns how many.
    async fn reclaim_preallocated(&self) -> Result<u64, StoreError> {
        Ok(layout_ahead::trim(self).await? + placement::trim(self).await?)
    }

    /// May there be too few free metadata blocks for a transaction of this cost?
    fn is_metadata_short(&self, cost: Cost) -> bool {
        let space = &self.inner.state.borrow().space;
        space.total_free() < space.set_aside() + u64::from(cost.dirty)
    }

    /// Runs `body` once, until it needs a block that is not cached.
    pub(crate) fn attempt<T>(
        &self,
        cost: Cost,
        body: &mut impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<Result<(T, Transno), Stop>, StoreError> {
        let mut state = self.inner.state.borrow_mut();
        state.usable()?;
        let idle = state.log.group.is_empty();
        let mut txn = Txn::new(&mut state, cost);
        let value = match body(&mut txn) {
            Ok(value) => value,
            Err(stop) => {
                txn.abort();
                return Ok(Err(stop));
            }
        };
        let number = txn.commit()?;
        if number != Transno::ZERO {
            self.inner.transaction_logged(state, idle);
        }
        Ok(Ok((value, number)))
    }

    /// The newest transaction known to be durable.
    pub fn last_committed(&self) -> Transno {
        self.inner.state.borrow().last_committed()
    }

    /// How far the log of `epoch` survived: transactions of that epoch up to this position have
    /// survived, later ones are lost. `None` if the store no longer knows.
    pub fn survived(&self, epoch: Epoch) -> Option<Lsn> {
        let state = self.inner.state.borrow();
        if epoch == state.log.epoch {
            return Some(state.log.durable);
        }
        let epochs = &state.superblock.epochs;
        let at = epochs.iter().position(|&(e, _)| e == epoch)?;
        epochs.get(at + 1).map(|&(_, begin)| begin)
    }

    /// Which file system this is.
    pub fn identity(&self) -> Identity {
        let state = self.inner.state.borrow();
        let (uuid, name) = (state.uuid, state.superblock.name.clone());
        Identity { uuid, name, epoch: state.log.epoch }
    }

    /// How full log, cache and device are.
    pub fn usage(&self) -> Usage {
        let state = self.inner.state.borrow();
        Usage {
            cached: state.cache.len(),
            cache_max: state.cache.capacity(),
            dirty: state.cache.dirty_or_in_flight(),
            log_used: state.log.used(),
            log_bytes: state.log.bytes,
            blocks: state.space.blocks,
            blocks_free: state.space.total_free(),
            blocks_set_aside: state.space.set_aside(),
            index: state.volatile.namespace.counts,
        }
    }

    /// The geometry and identity in the superblock.
    pub fn superblock(&self) -> Superblock {
        self.inner.state.borrow().superblock.clone()
    }
}

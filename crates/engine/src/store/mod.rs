//! [`Store`], the handle of an open store; it is cheap to clone.
//!
//! Invariants:
//! - the store runs the body of a transaction and applies it without an await in between;
//! - a transaction begins only when log and cache have room for its worst case;
//! - background tasks hold the store only while they work: it ends when the last handle is dropped.

pub mod barrier;
pub mod checkpoint;
pub(crate) mod commit;
pub(crate) mod fetch;
pub mod home;
pub mod mkfs;
pub mod open;
pub mod relocate;
pub mod reservation;
pub mod transact;

use std::cell::RefCell;
use std::rc::Rc;

use env::sync::Notify;
use types::limits::BLOCK;
use types::{Epoch, Lsn, MetaBlock, Transno, Uuid};

use crate::alloc::metaspace;
use crate::alloc::reservation::ClientReservation;
use crate::cache::Cache;
use crate::cost::Cost;
use crate::device::Device;
use crate::device::log::LogDevice;
use crate::error::{Readahead, Stop, StoreError};
use crate::format::block::{self, Block, BlockType};
use crate::format::features::Features;
use crate::format::roots::ROOTS_BLOCK;
use crate::format::superblock::{FIRST_LSN, Superblock};
use crate::log::Log;
use crate::state::State;
use crate::store::barrier::{Barrier, CommitStats};
use crate::store::fetch::Pins;
use crate::txn::apply::Applied;
use crate::txn::{Body, Txn};

/// An open store.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) state: RefCell<State>,
    /// `None`: the store is in memory only.
    pub(crate) background: Option<Background>,
    /// What must be stable before a group is written.
    pub(crate) barrier: RefCell<Option<Rc<dyn Barrier>>>,
    pub(crate) stats: RefCell<CommitStats>,
}

/// The device and the notifications of the background tasks.
pub(crate) struct Background {
    pub(crate) device: Device,
    /// The window that the log is in.
    pub(crate) log: LogDevice,
    /// The label as the opening found it.
    pub(crate) label: crate::device::label::LabelCondition,
    /// Wakes the task that writes groups.
    pub(crate) flusher: Notify,
    /// Wakes the task that writes blocks home.
    pub(crate) checkpointer: Notify,
    /// Notified when something became durable, was written home, was read, or failed.
    pub(crate) progress: Notify,
}

impl Inner {
    pub(crate) fn new(state: State, background: Option<Background>) -> Inner {
        Inner {
            state: RefCell::new(state),
            background,
            barrier: RefCell::default(),
            stats: RefCell::default(),
        }
    }
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
    /// Free blocks that only deletions, replays and enrolments of clients may take.
    pub blocks_set_aside: u64,
}

impl Store {
    /// An empty store of `blocks` blocks in memory, without a device: no call waits, everything
    /// counts as durable, nothing outlives the store. For tests of higher layers.
    pub fn volatile(blocks: u64) -> Store {
        Store::in_memory(blocks, 0)
    }

    /// As [`Store::volatile`], with space for an unused log, so that a test can copy the store to a
    /// device.
    pub fn in_memory(blocks: u64, log_blocks: u64) -> Store {
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
        state.space.client_reservation = ClientReservation::new(blocks, 0);
        state.space.client_reservation.set_shortfall(state.space.total_free(), state.space.reserve);
        Store { inner: Rc::new(Inner::new(state, None)) }
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
        let mut value = None;
        let mut keep = |txn: &mut Txn<'_>| {
            value = Some(body(txn)?);
            Ok(())
        };
        let number = self.run_body(cost, &mut keep).await?;
        Ok((value.expect("the body's last call succeeded"), number))
    }

    /// As [`Store::run`]. It is compiled once, not once for each body.
    async fn run_body(&self, cost: Cost, body: &mut Body<'_>) -> Result<Transno, StoreError> {
        let mut attempts = self.attempts(cost);
        loop {
            attempts.admit().await?;
            match self.attempt_body(cost, body)? {
                Ok(done) => return Ok(done),
                Err(stop) => attempts.resolve(stop).await?,
            }
        }
    }

    /// Runs `body` once, until it needs a block that is not cached.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub fn attempt<T>(
        &self,
        cost: Cost,
        body: &mut impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<Result<(T, Transno), Stop>, StoreError> {
        let mut value = None;
        let mut keep = |txn: &mut Txn<'_>| {
            value = Some(body(txn)?);
            Ok(())
        };
        let outcome = self.attempt_body(cost, &mut keep)?;
        Ok(outcome.map(|number| (value.expect("the body succeeded"), number)))
    }

    /// As [`Store::attempt`]; returns the transaction's number.
    fn attempt_body(
        &self,
        cost: Cost,
        body: &mut Body<'_>,
    ) -> Result<Result<Transno, Stop>, StoreError> {
        let mut txn = self.begin(cost)?;
        match body(&mut txn) {
            Ok(()) => Ok(Ok(self.commit(txn)?)),
            Err(stop) => {
                txn.abort();
                Ok(Err(stop))
            }
        }
    }

    /// The attempts of an operation of this cost: what [`Store::run`] is made of, for a layer that
    /// has transactions of its own over those of the store.
    pub fn attempts(&self, cost: Cost) -> Attempts<'_> {
        let (pins, scanned) = (Pins::new(&self.inner), Pins::new(&self.inner));
        Attempts { store: self, cost, pins, scanned }
    }

    /// Begins a transaction, which must end in [`Store::commit`] or [`Txn::abort`] before the next
    /// one begins.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn begin(&self, cost: Cost) -> Result<Txn<'_>, StoreError> {
        let state = self.inner.state.borrow_mut();
        state.usable()?;
        Ok(Txn::new(state, cost))
    }

    /// As [`Store::begin`]; `None` if a transaction runs or the store has failed.
    pub fn try_begin(&self, cost: Cost) -> Option<Txn<'_>> {
        let state = self.inner.state.try_borrow_mut().ok()?;
        state.usable().ok()?;
        Some(Txn::new(state, cost))
    }

    /// Applies a transaction and runs its hooks; returns its number, `Transno::ZERO` if it changed
    /// nothing.
    ///
    /// # Errors
    /// `ReadOnly`; then nothing has changed.
    pub fn commit(&self, txn: Txn<'_>) -> Result<Transno, StoreError> {
        self.commit_with(txn, |_| {})
    }

    /// As [`Store::commit`]; calls `first` before the hooks run.
    ///
    /// # Errors
    /// `ReadOnly`; then nothing has changed, and `first` is not called.
    pub fn commit_with(
        &self,
        txn: Txn<'_>,
        first: impl FnOnce(Transno),
    ) -> Result<Transno, StoreError> {
        let Applied { number, idle, state, mut hooks } = txn.apply()?;
        match number {
            Transno::ZERO => drop(state),
            _ => self.inner.transaction_logged(state, idle),
        }
        first(number);
        if !hooks.is_empty() {
            hooks.drain(..).for_each(|hook| hook(number));
            self.inner.state.borrow_mut().scratch.hooks = hooks;
        }
        Ok(number)
    }

    /// May there be too few free metadata blocks for a transaction of this cost?
    pub fn is_metadata_short(&self, cost: Cost) -> bool {
        let space = &self.inner.state.borrow().space;
        space.total_free() < space.set_aside() + u64::from(cost.dirty)
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
        }
    }

    /// The geometry and identity in the superblock.
    pub fn superblock(&self) -> Superblock {
        self.inner.state.borrow().superblock.clone()
    }

    /// Replaces the features in the superblock, which is written with the next tail or at the end
    /// of a repair.
    pub fn set_features(&self, features: Features) {
        self.inner.state.borrow_mut().superblock.features = features;
    }

    /// The position after the last record of the log.
    pub fn log_end(&self) -> Lsn {
        self.inner.state.borrow().log.end()
    }

    /// The reservation of blocks for replies.
    pub fn client_reservation(&self) -> ClientReservation {
        self.inner.state.borrow().space.client_reservation
    }

    /// Replaces it, as if an older release had used the device.
    #[cfg(any(test, feature = "testing"))]
    pub fn set_client_reservation(&self, reservation: ClientReservation) {
        self.inner.state.borrow_mut().space.client_reservation = reservation;
    }

    /// Makes searches for free blocks fail from the `nth` on; 0: none.
    #[cfg(any(test, feature = "testing"))]
    pub fn fail_searches(&self, nth: u64) {
        self.inner.state.borrow().space.fails_in.set(nth);
    }

    /// The number of the search that fails next, as set by [`Store::fail_searches`].
    #[cfg(any(test, feature = "testing"))]
    pub fn failing_search(&self) -> u64 {
        self.inner.state.borrow().space.fails_in.get()
    }

    /// The tag that every block of this file system carries.
    pub fn tag(&self) -> u32 {
        self.inner.state.borrow().tag
    }

    /// Calls `look` with the content of a block, if it is cached.
    pub fn with_cached<T>(&self, block: MetaBlock, look: impl FnOnce(Option<&Block>) -> T) -> T {
        look(self.inner.state.borrow().cache.get(block))
    }
}

/// The attempts of one operation: what it waits for, and the blocks that it keeps cached.
pub struct Attempts<'a> {
    store: &'a Store,
    cost: Cost,
    pins: Pins<'a>,
    scanned: Pins<'a>,
}

impl Attempts<'_> {
    /// Waits until log and cache have room for the next attempt.
    ///
    /// # Errors
    /// `Poisoned`.
    pub async fn admit(&self) -> Result<(), StoreError> {
        let inner = &self.store.inner;
        if inner.has_room(self.cost) { Ok(()) } else { inner.admit(self.cost).await }
    }

    /// Waits until what stopped an attempt is there.
    ///
    /// # Errors
    /// What stopped it, if waiting does not help; `Io`, `Corrupt`, `Poisoned`.
    pub async fn resolve(&mut self, stop: Stop) -> Result<(), StoreError> {
        let inner = &self.store.inner;
        match stop {
            Stop::WaitDurable(number) => self.store.wait_durable(number).await,
            Stop::Fault(fault) => Err(StoreError::Fault(fault)),
            Stop::Corrupt(block, what) => Err(StoreError::corrupt(block, what)),
            Stop::OwnerMismatch(block, mismatch) => {
                Err(StoreError::corrupt(block, mismatch.to_string()))
            }
            Stop::Miss(first, count) => {
                inner.fetch(first, count, Readahead::NONE, &mut self.pins).await
            }
            Stop::MissWithReadahead(first, count, readahead) => {
                inner.fetch(first, count, readahead, &mut self.pins).await
            }
            Stop::Scan(first, count) => {
                self.scanned.clear();
                inner.fetch(first, count, Readahead::NONE, &mut self.scanned).await
            }
        }
    }
}

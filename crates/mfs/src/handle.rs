//! [`Mfs`], the handle of an open metadata file system; it is cheap to clone.

use std::cell::{Cell, Ref, RefMut};
use std::ops::Deref;
use std::rc::Rc;

use types::Transno;

use crate::names::NameIndexes;
use crate::txn::{Body, Txn};
use crate::volatile::searches::SearchCounts;
use crate::volatile::{SharedHomes, SharedState, VolatileState};
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::features::Feature;
use engine::store::Store;

/// An open metadata file system: a store, and what the namespace and the space allocator keep in
/// memory.
#[derive(Clone)]
pub struct Mfs {
    inner: Rc<Inner>,
}

struct Inner {
    store: Store,
    volatile: SharedState,
    homes: SharedHomes,
    /// The superblocks have the feature `followed-objects`.
    objects_follow: Cell<bool>,
}

impl Deref for Mfs {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.inner.store
    }
}

/// Counters for administrators and tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Those of the store.
    pub store: engine::store::Usage,
    /// Searches in the namespace index since the opening.
    pub index: SearchCounts,
}

impl Deref for Usage {
    type Target = engine::store::Usage;

    fn deref(&self) -> &engine::store::Usage {
        &self.store
    }
}

impl Mfs {
    /// The file system in an open store.
    pub(crate) fn over(store: Store) -> Mfs {
        let volatile = SharedState::default();
        let homes = volatile.borrow().homes.clone();
        Mfs { inner: Rc::new(Inner { store, volatile, homes, objects_follow: Cell::new(false) }) }
    }

    /// An empty store of `blocks` blocks in memory, without a device: no call waits, everything
    /// counts as durable, nothing outlives the store. For tests of higher layers.
    pub fn volatile(blocks: u64) -> Mfs {
        Mfs::over(Store::volatile(blocks))
    }

    /// Gives the file system the feature `object-files`, if it does not have it. The superblocks
    /// say so when the next transaction has been written home ([`Store::settle`]). Returns whether
    /// that is to be awaited.
    pub fn add_object_files(&self) -> bool {
        let features = self.superblock().features;
        let is_new = !features.has(Feature::OBJECT_FILES);
        if is_new {
            self.set_features(features.with(Feature::OBJECT_FILES));
        }
        is_new
    }

    /// Gives the file system the feature `followed-objects`, after `moved-directories`. The
    /// superblocks say so before any file comes with its object.
    ///
    /// # Errors
    /// As [`Mfs::run`].
    pub async fn add_followed_objects(&self) -> Result<(), StoreError> {
        if self.inner.objects_follow.get() {
            return Ok(());
        }
        self.set_features(self.superblock().features.with(Feature::FOLLOWED_OBJECTS));
        self.touch_homes().await?;
        self.settle().await?;
        self.inner.objects_follow.set(true);
        Ok(())
    }

    /// Homes of inodes, as of the committed transactions; also while one runs.
    pub(crate) fn known_homes(&self) -> &SharedHomes {
        &self.inner.homes
    }

    /// What is kept in memory besides the blocks.
    pub(crate) fn volatile_state(&self) -> Ref<'_, VolatileState> {
        self.inner.volatile.borrow()
    }

    /// The same, for changes that depend on no transaction.
    pub(crate) fn volatile_state_mut(&self) -> RefMut<'_, VolatileState> {
        self.inner.volatile.borrow_mut()
    }

    /// Runs `body` once, until it needs a block that is not cached.
    pub(crate) fn attempt<T>(
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

    /// As [`Mfs::attempt`]; returns the transaction's number.
    pub(crate) fn attempt_body(
        &self,
        cost: Cost,
        body: &mut Body<'_>,
    ) -> Result<Result<Transno, Stop>, StoreError> {
        let mut txn = self.transaction(self.begin(cost)?, self.volatile_state_mut());
        match body(&mut txn) {
            Ok(()) => Ok(Ok(txn.commit(self)?)),
            Err(stop) => {
                txn.abort();
                Ok(Err(stop))
            }
        }
    }

    /// Begins a transaction that looks at the committed state; `None` if another one runs or the
    /// store has failed.
    pub(crate) fn try_look(&self) -> Option<Txn<'_>> {
        let volatile = self.inner.volatile.try_borrow_mut().ok()?;
        Some(self.transaction(self.try_begin(Cost::READ)?, volatile))
    }

    fn transaction<'a>(
        &'a self,
        engine: engine::txn::Txn<'a>,
        volatile: RefMut<'a, VolatileState>,
    ) -> Txn<'a> {
        Txn::new(engine, volatile, &self.inner.volatile)
    }

    /// How full log, cache and device are.
    pub fn usage(&self) -> Usage {
        Usage { store: self.inner.store.usage(), index: self.volatile_state().namespace.counts }
    }

    /// Drops every name index and chunk map, because the blocks changed without them or memory is
    /// short.
    pub(crate) fn forget_indexes(&self) {
        let mut volatile = self.volatile_state_mut();
        volatile.names = NameIndexes::default();
        volatile.namespace.forget();
    }
}

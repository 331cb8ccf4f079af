//! Transactions of the metadata file system: those of the engine, with the volatile state.
//!
//! Invariants:
//! - changes that depend on the transaction wait in [`Pending`] and in the engine's hooks until it
//!   has succeeded. Then they take effect with it in this order, without an await in between;
//! - pure caches of committed state may be filled at any time.

use std::cell::RefMut;
use std::ops::{Deref, DerefMut};

use types::{DirNo, Ino, MetaBlock, Transno};

use crate::format::number::{is_system, orphan_dir, root_dir};
use crate::format::slot::SlotSize;
use crate::format::slot_size::SlotFeatures;
use crate::volatile::{Pending, SharedState, VolatileState};
use engine::error::{Stop, StoreError};
use engine::format::block::{self, Block, BlockType};
use engine::store::Store;
use engine::txn::wrong_type;

/// What a transaction runs, whatever value comes of it.
pub(crate) type Body<'b> = dyn FnMut(&mut Txn<'_>) -> Result<(), Stop> + 'b;

/// A running transaction.
pub struct Txn<'a> {
    engine: engine::txn::Txn<'a>,
    pub(crate) volatile: RefMut<'a, VolatileState>,
    /// The same, for hooks, which run when this transaction has released it.
    shared: &'a SharedState,
    pub(crate) pending: Pending,
}

impl<'a> Deref for Txn<'a> {
    type Target = engine::txn::Txn<'a>;

    fn deref(&self) -> &engine::txn::Txn<'a> {
        &self.engine
    }
}

impl<'a> DerefMut for Txn<'a> {
    fn deref_mut(&mut self) -> &mut engine::txn::Txn<'a> {
        &mut self.engine
    }
}

impl<'a> AsMut<engine::txn::Txn<'a>> for Txn<'a> {
    fn as_mut(&mut self) -> &mut engine::txn::Txn<'a> {
        &mut self.engine
    }
}

impl<'a> Txn<'a> {
    pub(crate) fn new(
        engine: engine::txn::Txn<'a>,
        volatile: RefMut<'a, VolatileState>,
        shared: &'a SharedState,
    ) -> Txn<'a> {
        Txn { engine, volatile, shared, pending: Pending::default() }
    }

    /// Ends the transaction without any effect.
    pub(crate) fn abort(self) {
        self.engine.abort();
    }

    /// Applies the transaction to `store`, then to the volatile state. Returns `Transno::ZERO` if
    /// it changed no block.
    ///
    /// # Errors
    /// `ReadOnly`; then nothing has changed.
    pub(crate) fn commit(self, store: &Store) -> Result<Transno, StoreError> {
        let Txn { engine, mut volatile, pending, .. } = self;
        store.commit_with(engine, move |number| volatile.apply(pending, number))
    }

    /// Registers `hook`, which runs on the volatile state when this transaction has succeeded,
    /// with the transaction's number (`Transno::ZERO` if it changed no block).
    pub fn on_commit(&mut self, hook: impl FnOnce(&mut VolatileState, Transno) + 'static) {
        let shared = self.shared.clone();
        self.engine.on_commit(move |number| hook(&mut shared.borrow_mut(), number));
    }

    /// The volatile state, as of the committed transactions.
    pub fn volatile(&self) -> &VolatileState {
        &self.volatile
    }

    /// The volatile state, for filling pure caches of committed state: such a change
    /// remains if the transaction fails.
    pub fn volatile_mut(&mut self) -> &mut VolatileState {
        &mut self.volatile
    }

    /// The root directory of this shard.
    pub fn root_dir(&self) -> Ino {
        root_dir(self.shard())
    }

    /// The hidden directory of inodes without a name, of this shard.
    pub fn orphan_dir(&self) -> Ino {
        orphan_dir(self.shard())
    }

    /// As [`engine::txn::Txn::read`], of a block of directory slots.
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

    /// As [`engine::txn::Txn::write`], of a block of directory slots.
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
    /// As [`engine::txn::Txn::init`].
    pub(crate) fn init_slots(&mut self, block: MetaBlock) -> Result<&mut Block, Stop> {
        let kind = self.slots().kind();
        self.init(block, kind)
    }

    /// Size of the directory slots of this file system.
    pub(crate) fn slots(&self) -> SlotSize {
        self.features().slots()
    }

    /// The type of the content blocks of a chunk.
    pub(crate) fn content_of(&self, chunk: DirNo) -> BlockType {
        if is_system(chunk) { BlockType::Directory } else { self.slots().kind() }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use engine::cost::Cost;
    use engine::error::Stop;
    use engine::format::block::BlockType;
    use types::{Fault, Transno};

    use crate::handle::Mfs;
    use crate::testing::now;

    #[test]
    fn hooks_run_only_when_their_transaction_succeeds() {
        let mfs = Mfs::volatile(1000);
        let ran = Rc::new(Cell::new(0));
        let failed = now(mfs.run(Cost::SMALL, |txn| {
            let ran = ran.clone();
            txn.on_commit(move |_, _| ran.set(ran.get() + 1));
            let block = txn.alloc_meta(1, None)?;
            txn.init(block, BlockType::Table)?;
            Err::<(), _>(Stop::Fault(Fault::Exists))
        }));
        assert_eq!(failed.map(|_| ()).unwrap_err().fault(), Fault::Exists);
        let unchanged = now(mfs.run(Cost::SMALL, |txn| {
            let ran = ran.clone();
            txn.on_commit(move |_, number| {
                assert_eq!(number, Transno::ZERO);
                ran.set(ran.get() + 10);
            });
            Ok(())
        }));
        assert_eq!((ran.get(), unchanged.unwrap().1), (10, Transno::ZERO));
    }
}

//! Whose transactions the parts of the engine run that also serve a layer above.

use std::future::Future;

use types::Transno;

use crate::cost::Cost;
use crate::error::{Stop, StoreError};
use crate::store::Store;
use crate::txn::Txn;

/// A store, or a layer above with transactions of its own over those of the store.
pub trait Transact: 'static {
    /// A transaction.
    type Txn<'a>: AsMut<Txn<'a>>;

    /// The store.
    fn store(&self) -> &Store;

    /// As [`Store::run`].
    fn run<T>(
        &self,
        cost: Cost,
        body: impl FnMut(&mut Self::Txn<'_>) -> Result<T, Stop>,
    ) -> impl Future<Output = Result<(T, Transno), StoreError>>;

    /// As [`Store::attempt`].
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    fn attempt<T>(
        &self,
        cost: Cost,
        body: &mut impl FnMut(&mut Self::Txn<'_>) -> Result<T, Stop>,
    ) -> Result<Result<(T, Transno), Stop>, StoreError>;
}

impl<'a> AsMut<Txn<'a>> for Txn<'a> {
    fn as_mut(&mut self) -> &mut Txn<'a> {
        self
    }
}

impl Transact for Store {
    type Txn<'a> = Txn<'a>;

    fn store(&self) -> &Store {
        self
    }

    async fn run<T>(
        &self,
        cost: Cost,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<(T, Transno), StoreError> {
        Store::run(self, cost, body).await
    }

    fn attempt<T>(
        &self,
        cost: Cost,
        body: &mut impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<Result<(T, Transno), Stop>, StoreError> {
        Store::attempt(self, cost, body)
    }
}

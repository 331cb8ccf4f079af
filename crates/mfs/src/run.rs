//! Runs transactions; one that lacks metadata space takes back what was allocated ahead.

use types::{Fault, Transno};

use crate::handle::Mfs;
use crate::txn::{Body, Txn};
use crate::{layouts, names};
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::store::Store;
use engine::store::transact::Transact;

impl Transact for Mfs {
    type Txn<'a> = Txn<'a>;

    fn store(&self) -> &Store {
        self
    }

    async fn run<T>(
        &self,
        cost: Cost,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<(T, Transno), StoreError> {
        Mfs::run(self, cost, body).await
    }

    fn attempt<T>(
        &self,
        cost: Cost,
        body: &mut impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<Result<(T, Transno), Stop>, StoreError> {
        Mfs::attempt(self, cost, body)
    }
}

impl Mfs {
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

    /// As [`Mfs::run`]. It is compiled once, not once for each of more than a thousand bodies.
    async fn run_body(&self, cost: Cost, body: &mut Body<'_>) -> Result<Transno, StoreError> {
        let mut attempts = self.attempts(cost);
        loop {
            attempts.admit().await?;
            let stop = match self.attempt_body(cost, body)? {
                Ok(done) => return Ok(done),
                Err(stop) => stop,
            };
            match stop {
                Stop::WaitDurable(_) if self.is_metadata_short(cost) => {
                    if self.reclaim_preallocated().await? == 0 {
                        attempts.resolve(stop).await?;
                    }
                }
                Stop::Fault(Fault::NoSpace) if self.is_metadata_short(cost) => {
                    let freed = self.reclaim_preallocated().await?;
                    // Another transaction may have reclaimed the preallocated blocks meanwhile and
                    // not used all of them.
                    if freed == 0 && self.is_metadata_short(cost) {
                        return Err(StoreError::Fault(Fault::NoSpace));
                    }
                }
                stop => attempts.resolve(stop).await?,
            }
        }
    }

    /// Frees preallocated blocks; returns how many.
    async fn reclaim_preallocated(&self) -> Result<u64, StoreError> {
        Ok(layouts::trim(self).await? + names::trim(self).await?)
    }
}

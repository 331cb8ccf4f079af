//! Counts the clients when a store is opened.

use crate::alloc::reservation::ClientReservation;
use crate::btree::Tree;
use crate::clients::CLIENTS;
use crate::cost::Cost;
use crate::error::StoreError;
use crate::store::Store;

/// Entries that an opening counts in one transaction.
pub const STEP: usize = 1024;

impl Store {
    /// Counts clients, and reserves blocks for those that are yet to come.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub(crate) async fn load_client_reservation(&self) -> Result<(), StoreError> {
        let clients = self.count(CLIENTS).await?;
        let space = &mut self.inner.state.borrow_mut().space;
        space.client_reservation = ClientReservation::new(space.blocks, clients);
        space.client_reservation.set_shortfall(space.total_free(), space.reserve);
        Ok(())
    }

    /// Counts the entries of a tree, up to the first damage. If clients are not counted, the
    /// reservation is larger than necessary.
    pub async fn count<const K: usize, const V: usize>(
        &self,
        tree: Tree<K, V>,
    ) -> Result<u64, StoreError> {
        let (mut count, mut from) = (0, Some([0; K]));
        while let Some(key) = from {
            let found = match self.run(Cost::READ, |txn| tree.range(txn, &key, STEP)).await {
                Err(StoreError::Corrupt { .. }) => return Ok(count),
                found => found?.0,
            };
            count += found.len() as u64;
            from = found.last().and_then(|(last, _)| behind(*last));
        }
        Ok(count)
    }
}

/// The least key above `key`.
fn behind<const K: usize>(mut key: [u8; K]) -> Option<[u8; K]> {
    let at = key.iter().rposition(|&byte| byte < 0xff)?;
    key[at] += 1;
    key[at + 1..].fill(0);
    Some(key)
}

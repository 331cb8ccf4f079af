//! The removal of clients: the engine keeps their table, this module what they hold of files.

use types::{ClientId, Fault, PagId};

use super::view::Space;
use crate::format::space::pool_key;
use crate::trees::{POOLS, QUARANTINES};
use engine::clients::CLIENTS;
use engine::error::Stop;

impl Space<'_, '_> {
    /// Removes a client, whose pool must be empty, and the replies stored for it. Removes its
    /// quarantine in the same transaction as the client. `false`: replies remain, call again.
    ///
    /// # Errors
    /// `NotFound` if there is no such client; `Busy` if its pool is not empty.
    pub fn remove_client(&mut self, client: ClientId) -> Result<bool, Stop> {
        let key = client.0.to_be_bytes();
        if CLIENTS.get(self.txn, &key)?.is_none() {
            return Err(Stop::Fault(Fault::NotFound));
        }
        let pool = POOLS.next(self.txn, &pool_key(client, PagId(0), 0))?;
        if pool.is_some_and(|(pool_key, _)| pool_key[..8] == key) {
            return Err(Stop::Fault(Fault::Busy));
        }
        let removed = self.txn.drop_client(client)?;
        if removed {
            QUARANTINES.remove(self.txn, &key)?;
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests;

//! What an evicted client could still write: its pool, and blocks of files.
//!
//! Invariants:
//! - a quarantined client's pool does not shrink except by [`Space::release_pool`];
//! - a quarantine ends when its client is removed: a known client without quarantine may come back;
//! - freed blocks of a frozen file do not become free while it is frozen.

use types::{ClientId, Fault, Ino};

use super::pool::STEP;
use super::view::Space;
use crate::format::space::{decode_frozen_key, frozen_key, frozen_keys};
use crate::trees::{FROZEN, POOLS, QUARANTINES};
use engine::error::Stop;

/// Stands for all files in the list of a client's frozen files, when it is unknown which it could
/// write.
pub const ALL_FILES: Ino = Ino(u64::MAX);

impl Space<'_, '_> {
    /// As [`Space::quarantine`], when it is unknown which files the client could write: all count
    /// as frozen.
    ///
    /// # Errors
    /// As [`Space::freeze`].
    pub(crate) fn quarantine_unknown(&mut self, client: ClientId) -> Result<(), Stop> {
        self.freeze(client, ALL_FILES)?;
        self.quarantine(client)
    }

    /// Quarantines a client: its pool's blocks go to nobody until [`Space::release_pool`].
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn quarantine(&mut self, client: ClientId) -> Result<(), Stop> {
        QUARANTINES.insert(self.txn, &client.0.to_be_bytes(), &[0; 8])?;
        Ok(())
    }

    /// Is the pool of this client quarantined?
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn is_quarantined(&mut self, client: ClientId) -> Result<bool, Stop> {
        Ok(QUARANTINES.get(self.txn, &client.0.to_be_bytes())?.is_some())
    }

    /// Every quarantined client.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn quarantines(&mut self) -> Result<Vec<ClientId>, Stop> {
        let all = QUARANTINES.range(self.txn, &[0; 8], usize::MAX)?;
        Ok(all.into_iter().map(|(key, _)| ClientId(u64::from_be_bytes(key))).collect())
    }

    /// A step of making a client's pool free, quarantined or not; `true` when nothing of it is
    /// left.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn release_pool(&mut self, client: ClientId) -> Result<bool, Stop> {
        let runs = self.pool_part(client, STEP)?;
        for &(pag, start, len) in &runs {
            let key = crate::format::space::pool_key(client, pag, start.0);
            POOLS.remove(self.txn, &key)?;
            self.add_free(pag, start.0, len)?;
        }
        Ok(runs.len() < STEP)
    }

    /// Records that `client` may still write blocks of `ino`.
    ///
    /// # Errors
    /// `Invalid` for number 0.
    pub fn freeze(&mut self, client: ClientId, ino: Ino) -> Result<(), Stop> {
        if client.0 == 0 || ino == Ino::NONE {
            return Err(Stop::Fault(Fault::Invalid));
        }
        for key in frozen_keys(client, ino) {
            FROZEN.insert(self.txn, &key, &[0; 8])?;
        }
        Ok(())
    }

    /// Reverts [`Space::freeze`].
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn unfreeze(&mut self, client: ClientId, ino: Ino) -> Result<(), Stop> {
        for key in frozen_keys(client, ino) {
            FROZEN.remove(self.txn, &key)?;
        }
        Ok(())
    }

    /// Files that `client` may still write.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn frozen(&mut self, client: ClientId) -> Result<Vec<Ino>, Stop> {
        let mut out = Vec::new();
        FROZEN.for_each(self.txn, &frozen_key(1, client.0, 0), |key, _| {
            let (order, of, ino) = decode_frozen_key(key);
            let same = order == 1 && of == client.0;
            if same {
                out.push(Ino(ino));
            }
            same
        })?;
        Ok(out)
    }

    /// May any evicted client still write blocks of `ino`?
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn is_frozen(&self, ino: Ino) -> Result<bool, Stop> {
        let found = FROZEN.next(self.txn, &frozen_key(0, ino.0, 0))?;
        Ok(found.is_some_and(|(key, _)| {
            let (order, first, _) = decode_frozen_key(&key);
            order == 0 && first == ino.0
        }))
    }
}

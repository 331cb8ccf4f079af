//! Pools: data blocks that a client may write, and map into layouts.

use types::{ClientId, Fault, PagBlock, PagId};

use super::runs::FreeRun;
use super::view::Space;
use crate::format::space::{decode_pool_key, pool_key};
use crate::trees::POOLS;
use engine::error::Stop;

/// Most runs that one step gives back.
pub(crate) const STEP: usize = 128;

impl Space<'_, '_> {
    /// Every run of a client's pool, by address.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn pool(&mut self, client: ClientId) -> Result<Vec<(PagId, PagBlock, u64)>, Stop> {
        self.pool_part(client, usize::MAX)
    }

    pub(super) fn pool_part(
        &self,
        client: ClientId,
        max: usize,
    ) -> Result<Vec<(PagId, PagBlock, u64)>, Stop> {
        let mut out = Vec::new();
        POOLS.for_each(self.txn, &pool_key(client, PagId(0), 0), |key, value| {
            let (of, pag, start) = decode_pool_key(key);
            if of == client && out.len() < max {
                out.push((pag, start, u64::from_le_bytes(*value)));
                return true;
            }
            false
        })?;
        Ok(out)
    }

    /// Makes blocks of a client's pool free, which the client gives back unused.
    ///
    /// # Errors
    /// `Invalid` if they are not in its pool.
    pub fn pool_return(
        &mut self,
        client: ClientId,
        pag: PagId,
        addr: PagBlock,
        len: u64,
    ) -> Result<(), Stop> {
        self.pool_take(client, pag, addr.0, len)?;
        self.add_free(pag, addr.0, len)
    }

    /// Adds blocks to a pool.
    pub(super) fn pool_add(
        &mut self,
        client: ClientId,
        pag: PagId,
        start: u64,
        len: u64,
    ) -> Result<(), Stop> {
        let (mut from, mut end) = (start, start + len);
        if let Some((before, n)) = self.pool_run_to(client, pag, start)? {
            if before + n > start {
                return Err(POOLS.corrupt(self.txn, "a data block is granted twice"));
            }
            if before + n == start {
                from = before;
            }
        }
        let next = POOLS.next(self.txn, &pool_key(client, pag, start))?;
        if let Some((key, value)) = next
            && key == pool_key(client, pag, end)
        {
            POOLS.remove(self.txn, &key)?;
            end += u64::from_le_bytes(value);
        }
        POOLS.insert(self.txn, &pool_key(client, pag, from), &(end - from).to_le_bytes())?;
        Ok(())
    }

    /// Removes blocks from a pool, so that the caller can map them into a layout.
    ///
    /// # Errors
    /// `Invalid` if they are not all in it.
    pub fn pool_take(
        &mut self,
        client: ClientId,
        pag: PagId,
        start: u64,
        len: u64,
    ) -> Result<(), Stop> {
        let end = start.checked_add(len).filter(|_| len > 0);
        let end = end.ok_or(Stop::Fault(Fault::Invalid))?;
        let Some((from, n)) = self.pool_run_to(client, pag, start)? else {
            return Err(Stop::Fault(Fault::Invalid));
        };
        if from + n < end {
            return Err(Stop::Fault(Fault::Invalid));
        }
        if from < start {
            POOLS.insert(self.txn, &pool_key(client, pag, from), &(start - from).to_le_bytes())?;
        } else {
            POOLS.remove(self.txn, &pool_key(client, pag, from))?;
        }
        if end < from + n {
            POOLS.insert(self.txn, &pool_key(client, pag, end), &(from + n - end).to_le_bytes())?;
        }
        Ok(())
    }

    pub(super) fn pool_run_to(
        &self,
        client: ClientId,
        pag: PagId,
        to: u64,
    ) -> Result<Option<FreeRun>, Stop> {
        let found = POOLS.prev(self.txn, &pool_key(client, pag, to))?;
        Ok(found.and_then(|(key, value)| {
            let (of, on, start) = decode_pool_key(&key);
            (of == client && on == pag).then_some((start.0, u64::from_le_bytes(value)))
        }))
    }
}

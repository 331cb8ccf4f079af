//! The free tree: runs by address, joined with adjacent ones.

use types::{Bug, Fault, PagId, planted};

use super::view::Space;
use crate::format::space::{decode_run_key, run_key};
use crate::trees::FREE;
use engine::error::Stop;

/// A run of blocks of a PAG: first block, length.
pub(crate) type FreeRun = (u64, u64);

impl Space<'_, '_> {
    /// The run of the free tree that begins at `from` or later.
    pub(crate) fn free_run_from(&self, pag: PagId, from: u64) -> Result<Option<FreeRun>, Stop> {
        let found = FREE.next(self.txn, &run_key(pag, from))?;
        Ok(found.and_then(|(key, value)| {
            let (of, start) = decode_run_key(&key);
            (of == pag).then_some((start.0, u64::from_le_bytes(value)))
        }))
    }

    /// The run of the free tree that begins at `to` or before.
    pub(crate) fn free_run_to(&self, pag: PagId, to: u64) -> Result<Option<FreeRun>, Stop> {
        let found = FREE.prev(self.txn, &run_key(pag, to))?;
        Ok(found.and_then(|(key, value)| {
            let (of, start) = decode_run_key(&key);
            (of == pag).then_some((start.0, u64::from_le_bytes(value)))
        }))
    }

    /// Adds blocks to the free tree.
    pub(super) fn add_free(&mut self, pag: PagId, start: u64, len: u64) -> Result<(), Stop> {
        let total = self.pag(pag)?.map_or(0, |record| record.blocks);
        if start == 0 || len == 0 || start.checked_add(len).is_none_or(|end| end > total) {
            return Err(FREE.corrupt(self.txn, "freed blocks lie outside their data zone"));
        }
        let (mut from, mut end) = (start, start + len);
        if let Some((before, n)) = self.free_run_to(pag, start)? {
            if before + n > start {
                return Err(FREE.corrupt(self.txn, "a data block is freed twice"));
            }
            if before + n == start {
                from = before;
            }
        }
        if let Some((next, n)) = self.free_run_from(pag, start)? {
            if next < end {
                return Err(FREE.corrupt(self.txn, "a data block is freed twice"));
            }
            if next == end {
                FREE.remove(self.txn, &run_key(pag, next))?;
                end = next + n;
            }
        }
        FREE.insert(self.txn, &run_key(pag, from), &(end - from).to_le_bytes())?;
        self.count(pag, len as i64, 0)
    }

    /// Takes `len` blocks from `start` on out of the free tree.
    ///
    /// # Errors
    /// `Invalid`: they are not all free.
    pub(crate) fn take_run(&mut self, pag: PagId, start: u64, len: u64) -> Result<(), Stop> {
        let end = start.checked_add(len).ok_or(Stop::Fault(Fault::Invalid))?;
        let run = self.free_run_to(pag, start)?.filter(|&(from, n)| from + n >= end);
        self.take_free(pag, run.ok_or(Stop::Fault(Fault::Invalid))?, start, len)
    }

    /// Takes `len` blocks from `start` on out of the free run ⟨`first`, `run`⟩, which has them.
    pub(super) fn take_free(
        &mut self,
        pag: PagId,
        (first, run): FreeRun,
        start: u64,
        len: u64,
    ) -> Result<(), Stop> {
        if planted(Bug::DoubleAllocation) {
            return Ok(());
        }
        FREE.remove(self.txn, &run_key(pag, first))?;
        for (from, to) in [(first, start), (start + len, first + run)] {
            if from < to {
                FREE.insert(self.txn, &run_key(pag, from), &(to - from).to_le_bytes())?;
            }
        }
        self.count(pag, -(len as i64), 0)
    }
}

//! Lent blocks that go back to the shard whose zone has them.
//!
//! Invariants:
//! - only blocks that are free on the borrower go back, in one operation of both shards: the
//!   borrower gives them up first, and the lender takes them when that is durable;
//! - what goes back counts as lent on the lender until then. So nothing else can have become of it
//!   there, and taking it back never fails;
//! - a loan of which the borrower has not heard goes back, too. The borrower promises to enter none
//!   up to its number, as it asks for the number after;
//! - it does not matter whether blocks were lent or went with a file, and what is left of their run
//!   keeps its sequence.

use types::{Fault, PagBlock, PagId, ShardId};

use super::given::GIVEN;
use super::view::Space;
use crate::format::space::{LentRun, ZoneKind, decode_run_key, run_key};
use crate::trees::LENT;
use engine::error::Stop;

/// Runs that go back at once, at most.
pub const RETURNED_MAX: usize = 16;

impl Space<'_, '_> {
    /// Free blocks of another shard's zone that can go back to it, at most [`RETURNED_MAX`] runs.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn free_lent(&self, of: ShardId, pag: PagId) -> Result<Vec<(PagBlock, u64)>, Stop> {
        let (mut out, mut from) = (Vec::new(), 1);
        while let Some((key, value)) = LENT.next(self.txn, &run_key(pag, from))? {
            let ((at, start), run) = (decode_run_key(&key), LentRun::decode(&value));
            if at != pag {
                break;
            }
            from = start.0 + run.len.max(1);
            if run.shard == of && self.add_free_of((pag, start.0, from), &mut out)? {
                break;
            }
        }
        Ok(out)
    }

    /// Adds what is free of a lent run; `true`: these are enough.
    fn add_free_of(
        &self,
        (pag, start, end): (PagId, u64, u64),
        out: &mut Vec<(PagBlock, u64)>,
    ) -> Result<bool, Stop> {
        // A free run may begin before the lent one, if that before is lent, too.
        let mut free = self.free_run_to(pag, start)?.filter(|(from, len)| from + len > start);
        if free.is_none() {
            free = self.free_run_from(pag, start)?;
        }
        while let Some((from, len)) = free.filter(|(from, _)| *from < end) {
            let (first, last) = (from.max(start), (from + len).min(end));
            out.push((PagBlock(first), last - first));
            if out.len() == RETURNED_MAX {
                return Ok(true);
            }
            free = self.free_run_from(pag, from + len)?;
        }
        Ok(false)
    }

    /// Blocks of this shard's zone that it has lent by a loan after `known`, the last one that the
    /// other shard has heard of; and the number of the last loan.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn unacknowledged(
        &mut self,
        to: ShardId,
        pag: PagId,
        known: u32,
    ) -> Result<(Vec<(PagBlock, u64)>, u32), Stop> {
        let is_it = |of: PagId, run: &LentRun| {
            of == pag && run.shard == to && run.sequence > known && run.sequence != GIVEN
        };
        let lent = self.lent()?.into_iter().filter(|(of, _, run)| is_it(*of, run));
        Ok((lent.map(|(_, start, run)| (start, run.len)).collect(), self.last_made(to)?))
    }

    /// Gives free blocks back to the shard whose zone has them. It believes that this one has heard
    /// of its loans up to `known`; those after that, up to `last`, are never entered.
    ///
    /// # Errors
    /// `Busy`: they are not all free any more, or this shard has heard of another loan. `Invalid`:
    /// that shard has not lent them.
    pub fn give_back(
        &mut self,
        to: ShardId,
        (pag, runs): (PagId, &[(PagBlock, u64)]),
        (known, last): (u32, u32),
    ) -> Result<(), Stop> {
        let had = self.last_had(to)?;
        if had != known || last < known {
            return Err(Fault::Busy.into());
        }
        self.keep_last_loan(to, ZoneKind::Borrowed, last)?;
        for &(addr, len) in runs {
            self.take_run(pag, addr.0, len).map_err(|stop| match stop {
                Stop::Fault(Fault::Invalid) => Fault::Busy.into(),
                stop => stop,
            })?;
            self.forget_lent(to, pag, (addr.0, len))?;
        }
        Ok(())
    }

    /// Takes back blocks that a shard has given up.
    ///
    /// # Errors
    /// `Invalid`: they are not lent to that shard.
    pub fn take_back(
        &mut self,
        from: ShardId,
        pag: PagId,
        runs: &[(PagBlock, u64)],
    ) -> Result<(), Stop> {
        let last = self.last_made(from)?;
        self.keep_last_loan(from, ZoneKind::Blocks, last)?;
        for &(addr, len) in runs {
            self.forget_lent(from, pag, (addr.0, len))?;
            self.add_free(pag, addr.0, len)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "returned_tests.rs"]
mod tests;

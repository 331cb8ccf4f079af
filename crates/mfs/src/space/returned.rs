//! Lent blocks that go back to the shard whose zone has them.
//!
//! Invariants:
//! - only blocks that are free on the borrower go back, in one operation of both shards: the
//!   borrower gives them up first, and the lender takes them when that is durable;
//! - what goes back counts as lent on the lender until then. So nothing else can have become of it
//!   there, and taking it back never fails;
//! - it does not matter whether blocks were lent or went with a file, and what is left of their run
//!   keeps its sequence.

use types::{Fault, PagBlock, PagId, ShardId};

use super::view::Space;
use crate::format::space::{LentRun, decode_run_key, run_key};
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
        let (mut out, mut lent) = (Vec::new(), Vec::new());
        LENT.for_each(self.txn, &run_key(pag, 1), |key, value| {
            let ((at, start), run) = (decode_run_key(key), LentRun::decode(value));
            if at == pag && run.shard == of {
                lent.push((start.0, start.0 + run.len));
            }
            at == pag
        })?;
        for (start, end) in lent {
            // A free run may begin before the lent one, if that before is lent, too.
            let mut free = self.free_run_to(pag, start)?.filter(|(from, len)| from + len > start);
            if free.is_none() {
                free = self.free_run_from(pag, start)?;
            }
            while let Some((from, len)) = free.filter(|(from, _)| *from < end) {
                let (first, last) = (from.max(start), (from + len).min(end));
                out.push((PagBlock(first), last - first));
                if out.len() == RETURNED_MAX {
                    return Ok(out);
                }
                free = self.free_run_from(pag, from + len)?;
            }
        }
        Ok(out)
    }

    /// Gives free blocks back to the shard whose zone has them.
    ///
    /// # Errors
    /// `Busy`: they are not all free any more. `Invalid`: that shard has not lent them.
    pub fn give_back(
        &mut self,
        to: ShardId,
        pag: PagId,
        runs: &[(PagBlock, u64)],
    ) -> Result<(), Stop> {
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

//! Freed blocks, on their way from a layout to free.
//!
//! Invariants:
//! - a freed run carries the end of the log before the record that freed it. That record is the
//!   next one, so it is durable when the log is durable beyond this position;
//! - holds end with the process: after a restart clients reclaim their leases, and the server frees
//!   only after its grace.

use types::{Ino, PagBlock, PagId, Segment};

use super::view::Space;
use crate::format::space::{FreedRun, decode_run_key, run_key};
use crate::handle::Mfs;
use crate::trees::FREED;
use engine::error::Stop;

/// Freed runs that are examined for each one made free.
const LOOK: usize = 16;

impl Space<'_, '_> {
    /// Adds blocks that left the layout of `ino` to the freed tree: they become free when that is
    /// durable.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn free_later(&mut self, ino: Ino, segments: &[Segment]) -> Result<(), Stop> {
        let stamp = self.txn.log_end();
        for segment in segments {
            let freed = FreedRun { len: segment.len, ino, stamp };
            let key = run_key(segment.pag, segment.addr.0);
            if FREED.insert(self.txn, &key, &freed.encode())?.is_some() {
                return Err(FREED.corrupt(self.txn, "a data block is freed twice"));
            }
            self.count(segment.pag, 0, segment.len as i64)?;
        }
        Ok(())
    }

    /// Makes at most `max` freed runs free: runs whose freeing is durable and that no hold and no
    /// frozen file keeps back. Each call goes on where the last one ended. Returns the number of
    /// blocks made free.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn release_freed(&mut self, max: usize) -> Result<u64, Stop> {
        if self.is_held(Ino::NONE) {
            return Ok(0);
        }
        let durable = self.txn.durable().lsn;
        let at = self.txn.volatile().space.freed_at;
        let (pag, start) = at.unwrap_or((PagId(0), 0));
        let look = max.saturating_mul(LOOK);
        let found = FREED.range(self.txn, &run_key(pag, start), look)?;
        let (mut blocks, mut runs, mut next) = (0, 0, None);
        for (n, (key, value)) in found.into_iter().enumerate() {
            let ((pag, PagBlock(start)), freed) = (decode_run_key(&key), FreedRun::decode(&value));
            if n + 1 == look {
                next = Some((pag, start + 1));
            }
            let early = durable <= freed.stamp;
            if freed.len == 0 || early || self.is_held(freed.ino) || self.is_frozen(freed.ino)? {
                continue;
            }
            FREED.remove(self.txn, &key)?;
            self.count(pag, 0, -(freed.len as i64))?;
            self.add_free(pag, start, freed.len)?;
            blocks += freed.len;
            runs += 1;
            if runs == max {
                next = Some((pag, start + 1));
                break;
            }
        }
        if next != at {
            self.txn.on_commit(move |volatile, _| volatile.space.freed_at = next);
        }
        Ok(blocks)
    }

    fn is_held(&self, ino: Ino) -> bool {
        let holds = &self.txn.volatile().space.holds;
        holds.contains_key(&ino) || holds.contains_key(&Ino::NONE)
    }
}

impl Mfs {
    /// Freed blocks of `ino` (`Ino::NONE`: of all files) stay freed until [`Mfs::unhold_freed`] was
    /// called as often.
    pub fn hold_freed(&self, ino: Ino) {
        *self.volatile_state_mut().space.holds.entry(ino).or_default() += 1;
    }

    /// Ends one hold.
    pub fn unhold_freed(&self, ino: Ino) {
        let mut volatile = self.volatile_state_mut();
        let holds = &mut volatile.space.holds;
        match holds.get_mut(&ino) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                holds.remove(&ino);
            }
        }
    }
}

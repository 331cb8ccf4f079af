//! Who owns a block of a data zone.

use types::{ClientId, Ino, PagBlock, PagId};

use super::view::Space;
use crate::format::space::{FreedRun, decode_run_key, run_key};
use crate::trees::{CLIENTS, FREED};
use engine::error::Stop;

/// The owner of a block of a data zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockOwner {
    /// The block is free.
    Free,
    /// It is in this client's pool.
    Pool(ClientId),
    /// This file gave it up, and it is not yet free.
    Freed(Ino),
    /// None of these: a file maps it, unless the block is lost.
    Mapped,
}

impl Space<'_, '_> {
    /// The owner of a block of a data zone, except the label.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn owner(&mut self, pag: PagId, at: PagBlock) -> Result<BlockOwner, Stop> {
        let holds = |(start, len): (u64, u64)| start + len > at.0;
        if self.free_run_to(pag, at.0)?.is_some_and(holds) {
            return Ok(BlockOwner::Free);
        }
        if let Some((key, value)) = FREED.prev(self.txn, &run_key(pag, at.0))? {
            let ((of, start), freed) = (decode_run_key(&key), FreedRun::decode(&value));
            if of == pag && holds((start.0, freed.len)) {
                return Ok(BlockOwner::Freed(freed.ino));
            }
        }
        for (key, _) in CLIENTS.range(self.txn, &[0; 8], usize::MAX)? {
            let client = ClientId(u64::from_be_bytes(key));
            if self.pool_run_to(client, pag, at.0)?.is_some_and(holds) {
                return Ok(BlockOwner::Pool(client));
            }
        }
        Ok(BlockOwner::Mapped)
    }
}

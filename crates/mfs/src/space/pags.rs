//! The table of data zones.

use types::limits::PAGS_MAX;
use types::{Bug, Fault, PagId, Uuid, planted};

use super::view::Space;
use crate::format::space::{PagFormat, PagRecord, pag_key, run_key};
use crate::trees::{FREE, PAGS};
use engine::error::Stop;

/// One data zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagState {
    /// Its number.
    pub id: PagId,
    /// The UUID of its slice.
    pub uuid: Uuid,
    /// The UUID of its device.
    pub device: Uuid,
    /// First block of the slice on the device.
    pub start: u64,
    /// Its blocks above block 0.
    pub total: u64,
    /// Blocks that can be granted now.
    pub free: u64,
    /// Blocks that files gave up and that will become free.
    pub freed: u64,
}

impl PagState {
    /// The zone as in the label of its device.
    pub fn zone(&self) -> PagFormat {
        let PagState { id, uuid, device, start, .. } = *self;
        PagFormat { id, uuid, device, start, blocks: self.total + 1 }
    }
}

impl Space<'_, '_> {
    /// Every data zone, by number.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn pags(&mut self) -> Result<Vec<PagState>, Stop> {
        let mut out = Vec::new();
        PAGS.for_each(self.txn, &[0; 2], |key, value| {
            let record = PagRecord::decode(value);
            out.push(PagState {
                id: PagId(u16::from_be_bytes(*key)),
                uuid: record.uuid,
                device: record.device,
                start: record.start,
                total: record.blocks.saturating_sub(1),
                free: record.free,
                freed: record.freed,
            });
            true
        })?;
        Ok(out)
    }

    /// Adds the data zones of a new file system; everything above block 0 is free.
    pub(crate) fn format_pags(&mut self, pags: &[PagFormat]) -> Result<(), Stop> {
        if pags.len() > PAGS_MAX || pags.iter().any(|pag| !pag.is_possible()) {
            return Err(Stop::Fault(Fault::Invalid));
        }
        for pag in pags {
            let free = pag.blocks - 1;
            let record = PagRecord::new(pag, free, 0);
            if PAGS.insert(self.txn, &pag_key(pag.id), &record.encode())?.is_some() {
                return Err(Stop::Fault(Fault::Invalid));
            }
            FREE.insert(self.txn, &run_key(pag.id, 1), &free.to_le_bytes())?;
        }
        Ok(())
    }

    pub(crate) fn pag(&self, pag: PagId) -> Result<Option<PagRecord>, Stop> {
        Ok(PAGS.get(self.txn, &pag_key(pag))?.map(|value| PagRecord::decode(&value)))
    }

    /// Changes the counts of a PAG.
    pub(crate) fn count(&mut self, pag: PagId, free: i64, freed: i64) -> Result<(), Stop> {
        let pag = if freed > 0 && planted(Bug::WrongZoneCounted) { PagId(0) } else { pag };
        let Some(mut record) = self.pag(pag)? else {
            return Err(PAGS.corrupt(self.txn, "blocks of a data zone that is not in the table"));
        };
        let sums = (record.free.checked_add_signed(free), record.freed.checked_add_signed(freed));
        let (Some(free), Some(freed)) = sums else {
            return Err(PAGS.corrupt(self.txn, "the counts of a data zone are wrong"));
        };
        (record.free, record.freed) = (free, freed);
        PAGS.insert(self.txn, &pag_key(pag), &record.encode())?;
        Ok(())
    }
}

//! The table of data zones.

use types::limits::PAGS_MAX;
use types::{Bug, Fault, PagId, Uuid, planted};

use super::view::Space;
use crate::format::space::{
    PagFormat, PagRecord, PagUse, RUN_KEY, ZoneKind, decode_run_key, pag_key, run_key,
};
use crate::trees::{FREE, FREED, PAGS};
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
    /// What may be done with them.
    pub state: PagUse,
    /// What the zone is.
    pub kind: ZoneKind,
    /// Free blocks; they can be granted if the state permits it.
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

    /// Blocks that can be granted now.
    pub fn grantable(&self) -> u64 {
        if self.state.grants() { self.free } else { 0 }
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
                state: record.state,
                kind: record.kind,
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
        pags.iter().try_for_each(|pag| self.enter_pag(pag))
    }

    /// Enters a zone whose blocks above block 0 are free.
    fn enter_pag(&mut self, pag: &PagFormat) -> Result<(), Stop> {
        let free = pag.blocks - 1;
        let record = PagRecord::new(pag, free, 0);
        if PAGS.insert(self.txn, &pag_key(pag.id), &record.encode())?.is_some() {
            return Err(Stop::Fault(Fault::Invalid));
        }
        FREE.insert(self.txn, &run_key(pag.id, 1), &free.to_le_bytes())?;
        Ok(())
    }

    /// Adds a data zone to the table; everything above its block 0 becomes free.
    ///
    /// # Errors
    /// `Exists`: the table has a zone of that number or with that UUID, or space of such a number
    /// without a zone, which only damage leaves. `TooBig`: the table is full. `Invalid`: no zone
    /// can have that size.
    pub fn add_pag(&mut self, zone: &PagFormat) -> Result<(), Stop> {
        let known = self.pags()?;
        if !zone.is_possible() {
            return Err(Stop::Fault(Fault::Invalid));
        }
        if known.len() >= PAGS_MAX {
            return Err(Stop::Fault(Fault::TooBig));
        }
        let is_known = known.iter().any(|pag| pag.id == zone.id || pag.uuid == zone.uuid);
        if is_known || self.has_space(zone.id)? {
            return Err(Stop::Fault(Fault::Exists));
        }
        self.enter_pag(zone)
    }

    /// Are there free or freed blocks of a zone of this number?
    pub(super) fn has_space(&self, pag: PagId) -> Result<bool, Stop> {
        let freed = FREED.next(self.txn, &run_key(pag, 0))?;
        let is_of = |key: &[u8; RUN_KEY]| decode_run_key(key).0 == pag;
        let is_real = |start: u64| start > 0;
        let freed = freed.is_some_and(|(key, _)| is_of(&key) && is_real(decode_run_key(&key).1.0));
        Ok(freed || self.free_run_from(pag, 0)?.is_some())
    }

    /// What may be done with the blocks of a zone.
    ///
    /// # Errors
    /// `NotFound`: there is no such zone.
    pub fn pag_use(&mut self, pag: PagId) -> Result<PagUse, Stop> {
        self.pag(pag)?.map(|record| record.state).ok_or(Stop::Fault(Fault::NotFound))
    }

    /// Says what may be done with the blocks of a zone. Returns what it was until now.
    ///
    /// # Errors
    /// `NotFound`: there is no such zone.
    pub fn set_pag_use(&mut self, pag: PagId, state: PagUse) -> Result<PagUse, Stop> {
        let record = self.pag(pag)?.ok_or(Stop::Fault(Fault::NotFound))?;
        if record.state != state {
            let changed = PagRecord { state, ..record };
            PAGS.insert(self.txn, &pag_key(pag), &changed.encode())?;
        }
        Ok(record.state)
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

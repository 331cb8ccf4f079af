//! Blocks that go to another shard with their file, and may come back with it.
//!
//! Invariants:
//! - a block that has gone with a file counts as lent with the sequence 0, in the trees `lent` of
//!   both shards: it stays where it went, whatever becomes of the file, until a file takes it back;
//! - neither tree has two such runs of one shard that adjoin. So both sides have the same entries,
//!   in whatever order files came and went;
//! - blocks of a loan, and those of a third shard, go with no file.

use types::{Fault, PagId, Segment, ShardId};

use super::view::Space;
use crate::format::space::{LentRun, PagFormat, ZoneKind, run_key};
use crate::trees::LENT;
use engine::error::Stop;

/// The sequence of what has gone with a file: no loan has it.
pub const GIVEN: u32 = 0;

impl Space<'_, '_> {
    /// Its zone, if these blocks may go to the shard `to`: they are of this shard's own zone, or
    /// have come from there with a file.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub(crate) fn may_give(
        &mut self,
        to: ShardId,
        segment: &Segment,
    ) -> Result<Option<PagFormat>, Stop> {
        let Some(record) = self.pag(segment.pag)? else { return Ok(None) };
        let may = match record.kind {
            ZoneKind::Blocks => true,
            ZoneKind::Borrowed => self.given_around(to, segment)?.is_some(),
            ZoneKind::Target => false,
        };
        Ok(may.then(|| record.zone(segment.pag)))
    }

    /// May blocks of this zone go to another shard, which does not learn the state of the zone?
    /// Those that go back to their own shard may always.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub(crate) fn may_leave(&mut self, pag: PagId) -> Result<bool, Stop> {
        let record = self.pag(pag)?;
        Ok(record.is_some_and(|it| it.kind == ZoneKind::Borrowed || it.state.grants()))
    }

    /// The blocks of a segment, which no file maps any more, go to the shard `to`.
    ///
    /// # Errors
    /// `Invalid`: see [`Space::may_give`].
    pub(crate) fn give(&mut self, to: ShardId, segment: &Segment) -> Result<(), Stop> {
        match self.pag(segment.pag)?.map(|record| record.kind) {
            Some(ZoneKind::Blocks) => self.note_given(to, segment),
            Some(ZoneKind::Borrowed) => self.forget_given(to, segment),
            Some(ZoneKind::Target) | None => Err(Fault::Invalid.into()),
        }
    }

    /// The blocks of a segment have come from the shard `from`: the caller maps them.
    ///
    /// # Errors
    /// `Invalid`: they cannot have come from there, or their zone is not in the table.
    pub(crate) fn receive(&mut self, from: ShardId, segment: &Segment) -> Result<(), Stop> {
        match self.pag(segment.pag)? {
            Some(record) if segment.addr.0 + segment.len > record.blocks => {
                Err(Fault::Invalid.into())
            }
            Some(record) if record.kind == ZoneKind::Blocks => self.forget_given(from, segment),
            Some(record) if record.kind == ZoneKind::Borrowed => self.note_given(from, segment),
            _ => Err(Fault::Invalid.into()),
        }
    }

    /// Enters a zone of another shard, of which blocks will come.
    ///
    /// # Errors
    /// `Invalid`: it cannot be; the number is another zone's; or the file system does not have the
    /// feature `lent-space`. `TooBig`: the table of zones is full.
    pub fn enter_lender(&mut self, zone: &PagFormat) -> Result<(), Stop> {
        let pags = self.pags()?;
        // What has come back is of an own zone.
        let is_own = |pag: &super::PagState| pag.zone() == *zone && pag.kind == ZoneKind::Blocks;
        if pags.iter().any(is_own) { Ok(()) } else { self.enter_zone(&pags, zone) }
    }

    /// The run that was given and has all these blocks.
    fn given_around(
        &self,
        with: ShardId,
        segment: &Segment,
    ) -> Result<Option<(u64, LentRun)>, Stop> {
        let (pag, start) = (segment.pag, segment.addr.0);
        let found = self.lent_around(with, pag, (start, start + segment.len))?;
        Ok(found.filter(|(_, run)| run.sequence == GIVEN))
    }

    fn note_given(&mut self, with: ShardId, segment: &Segment) -> Result<(), Stop> {
        let (pag, mut start, mut end) = (segment.pag, segment.addr.0, segment.addr.0 + segment.len);
        if start == 0 || segment.len == 0 || self.is_lent(pag, start, end)? {
            return Err(LENT.corrupt(self.txn, "blocks of a file are lent already"));
        }
        let before = Segment { addr: types::PagBlock(start - 1), len: 1, ..*segment };
        if let Some((from, _)) = self.given_around(with, &before)? {
            start = from;
        }
        let after = Segment { addr: types::PagBlock(end), len: 1, ..*segment };
        if let Some((from, run)) = self.given_around(with, &after)? {
            LENT.remove(self.txn, &run_key(pag, from))?;
            end = from + run.len;
        }
        self.set_lent(pag, (start, end), LentRun { len: 0, shard: with, sequence: GIVEN })
    }

    fn forget_given(&mut self, with: ShardId, segment: &Segment) -> Result<(), Stop> {
        let found = self.given_around(with, segment)?;
        found.ok_or(Stop::Fault(Fault::Invalid))?;
        self.forget_lent(with, segment.pag, (segment.addr.0, segment.len))
    }
}

#[cfg(test)]
#[path = "given_tests.rs"]
mod tests;

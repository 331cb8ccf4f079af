//! Grants of data space to clients.
//!
//! Each PAG is searched from the end of its last grant, so a client's grants follow each other.
//! Clients begin at different PAGs, so their streams lie apart. A run with room for the whole grant
//! is preferred; if none of the examined runs has it, the largest are taken.

use std::collections::BTreeSet;

use types::{ClientId, Fault, PagBlock, PagId};

use super::lent::LOAN_RUNS;
use super::pags::PagState;
use super::runs::FreeRun;
use super::view::Space;
use crate::format::space::ZoneKind;
use engine::error::Stop;

/// Free runs that are examined for one grant.
const LOOK: usize = 64;
/// Free runs that are examined for one loan, which is rare.
const LOOK_FOR_LOAN: usize = 8192;
/// Most pieces of one grant.
pub const GRANT_PIECES: usize = 16;

impl Space<'_, '_> {
    /// Moves about `blocks` free blocks, at least one, into the pool of `client`; from the PAG
    /// `hint` if it has any.
    ///
    /// # Errors
    /// `NoSpace` if nothing is free anywhere (freed blocks may become free:
    /// [`Space::release_freed`]); `Invalid` for 0 blocks.
    pub fn grant(
        &mut self,
        client: ClientId,
        hint: Option<PagId>,
        blocks: u64,
    ) -> Result<Vec<(PagId, PagBlock, u64)>, Stop> {
        self.grant_pieces(client, hint, blocks, &[], GRANT_PIECES)
    }

    /// As [`Space::grant`], but from none of the PAGs `without`, and in at most `most` pieces.
    ///
    /// # Errors
    /// As [`Space::grant`].
    pub fn grant_pieces(
        &mut self,
        client: ClientId,
        hint: Option<PagId>,
        blocks: u64,
        without: &[PagId],
        most: usize,
    ) -> Result<Vec<(PagId, PagBlock, u64)>, Stop> {
        if blocks == 0 {
            return Err(Stop::Fault(Fault::Invalid));
        }
        let pags = self.pags()?;
        let pag =
            choose(&pags, client, hint, blocks, without).ok_or(Stop::Fault(Fault::NoSpace))?;
        let cursor = self.cursor(pag);
        let pieces = pick(self.look(pag, cursor)?, blocks, most);
        let mut out = Vec::with_capacity(pieces.len());
        let mut end = cursor;
        for Piece { run, start, len } in pieces {
            self.take_free(pag, run, start, len)?;
            self.pool_add(client, pag, start, len)?;
            end = start + len;
            out.push((pag, PagBlock(start), len));
        }
        self.set_cursor(pag, end);
        if out.is_empty() { Err(Stop::Fault(Fault::NoSpace)) } else { Ok(out) }
    }

    /// Moves exactly these free blocks into the pool of `client`. `false`, and nothing changes: not
    /// all of them are free, or a zone grants none.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn grant_exactly(
        &mut self,
        client: ClientId,
        runs: &[(PagId, PagBlock, u64)],
    ) -> Result<bool, Stop> {
        for &(pag, start, len) in runs {
            let grants = self.pag(pag)?.is_some_and(|record| record.state.grants());
            let run = if grants { self.free_run_to(pag, start.0)? } else { None };
            let within = |(from, free): (u64, u64)| from + free >= start.0 + len;
            if len == 0 || !run.is_some_and(within) {
                return Ok(false);
            }
        }
        for &(pag, start, len) in runs {
            let run = self.free_run_to(pag, start.0)?.expect("it was free above");
            self.take_free(pag, run, start.0, len)?;
            self.pool_add(client, pag, start.0, len)?;
        }
        Ok(true)
    }

    /// The zone of a grant of `blocks` to `client`, as [`Space::grant_pieces`] chooses it.
    ///
    /// # Errors
    /// `NoSpace`: none has a free block.
    pub fn zone_for(
        &mut self,
        client: ClientId,
        hint: Option<PagId>,
        blocks: u64,
        without: &[PagId],
    ) -> Result<PagId, Stop> {
        let pags = self.pags()?;
        choose(&pags, client, hint, blocks, without).ok_or(Stop::Fault(Fault::NoSpace))
    }

    /// At most `most` runs of the free blocks `[from, to)` of a zone, the first of them.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn free_runs(
        &self,
        pag: PagId,
        (from, to): (u64, u64),
        most: usize,
    ) -> Result<Vec<(PagId, PagBlock, u64)>, Stop> {
        let mut out = Vec::new();
        let mut next = self.free_run_to(pag, from)?.filter(|(start, len)| start + len > from);
        if next.is_none() {
            next = self.free_run_from(pag, from)?;
        }
        while let Some((start, len)) = next.filter(|(start, _)| *start < to)
            && out.len() < most
        {
            let (first, end) = (start.max(from), (start + len).min(to));
            out.push((pag, PagBlock(first), end - first));
            next = self.free_run_from(pag, start + len)?;
        }
        Ok(out)
    }

    /// Where the next grant of a zone begins to look for free blocks.
    pub fn cursor(&self, pag: PagId) -> u64 {
        self.txn.volatile().space.cursors.get(&pag).copied().unwrap_or(0)
    }

    /// The next grant of a zone begins to look there, once this transaction has succeeded.
    pub fn set_cursor(&mut self, pag: PagId, at: u64) {
        self.txn.on_commit(move |volatile, _| {
            volatile.space.cursors.insert(pag, at);
        });
    }

    /// At most [`LOAN_RUNS`] of the largest free runs that a look from the beginning finds.
    pub(super) fn largest_runs(&self, pag: PagId) -> Result<Vec<FreeRun>, Stop> {
        let (mut runs, mut at) = (Vec::<FreeRun>::new(), 0);
        while runs.len() < LOOK_FOR_LOAN
            && let Some(run) = self.free_run_from(pag, at)?
        {
            at = run.0 + run.1;
            runs.push(run);
        }
        runs.sort_unstable_by_key(|&(start, len)| (u64::MAX - len, start));
        runs.truncate(LOAN_RUNS);
        Ok(runs)
    }

    /// Free runs at and after `cursor`, the first of them perhaps from its middle on; then from the
    /// beginning.
    fn look(&self, pag: PagId, cursor: u64) -> Result<Vec<Piece>, Stop> {
        let around = self.free_run_to(pag, cursor)?.filter(|(start, len)| start + len > cursor);
        let mut out: Vec<Piece> = around.map(|run| Piece::of(run, cursor)).into_iter().collect();
        for (from, to) in [(cursor + 1, u64::MAX), (0, cursor)] {
            let mut at = from;
            while out.len() < LOOK
                && let Some(run) = self.free_run_from(pag, at)?.filter(|run| run.0 < to)
            {
                out.push(Piece::of(run, run.0));
                at = run.0 + run.1;
            }
        }
        Ok(out)
    }
}

/// The PAG for a grant: the hint; else the first, from the client's own on, with room for all of
/// it; else the first with any free blocks. One of which another shard has lent blocks comes after
/// the others. Never one of `without`, or one that grants nothing.
fn choose(
    pags: &[PagState],
    client: ClientId,
    hint: Option<PagId>,
    blocks: u64,
    without: &[PagId],
) -> Option<PagId> {
    let first = (client.0 % pags.len().max(1) as u64) as usize;
    let usable = |pag: &&PagState| pag.state.grants() && !without.contains(&pag.id);
    let round = || pags[first..].iter().chain(&pags[..first]).filter(usable);
    let own = || round().filter(|pag| pag.kind != ZoneKind::Borrowed);
    let hinted = round().find(|pag| Some(pag.id) == hint && pag.free > 0);
    let roomy = || own().chain(round()).find(|pag| pag.free >= blocks);
    let any = || own().chain(round()).find(|pag| pag.free > 0);
    hinted.or_else(roomy).or_else(any).map(|pag| pag.id)
}

/// A part of a free run that a grant may take, from its beginning on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    run: FreeRun,
    start: u64,
    len: u64,
}

impl Piece {
    /// The run from `start` on.
    fn of(run: FreeRun, start: u64) -> Piece {
        Piece { run, start, len: run.0 + run.1 - start }
    }
}

/// The pieces of a grant of `blocks`, `most` of them at most.
fn pick(mut pieces: Vec<Piece>, blocks: u64, most: usize) -> Vec<Piece> {
    if let Some(piece) = pieces.iter().find(|piece| piece.len >= blocks) {
        return vec![Piece { len: blocks, ..*piece }];
    }
    pieces.sort_by_key(|piece| (u64::MAX - piece.len, piece.start));
    let (mut left, mut out) = (blocks, Vec::new());
    let mut runs = BTreeSet::new();
    for piece in pieces {
        // The run around the cursor may be there twice: its end first, and then all of it.
        if left == 0 || out.len() == most || !runs.insert(piece.run.0) {
            continue;
        }
        let len = piece.len.min(left);
        out.push(Piece { len, ..piece });
        left -= len;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::space::PagUse;
    use types::Uuid;

    #[test]
    fn grant_prefers_one_run_and_large_runs() {
        let pick = |runs: &[FreeRun], blocks, most| {
            let pieces = runs.iter().map(|&run| Piece::of(run, run.0)).collect();
            let picked = super::pick(pieces, blocks, most);
            picked.iter().map(|piece| (piece.start, piece.len)).collect::<Vec<_>>()
        };
        assert_eq!(pick(&[(1, 3), (10, 8), (30, 9)], 8, 2), [(10, 8)]);
        assert_eq!(pick(&[(1, 3), (10, 7), (30, 5)], 9, 2), [(10, 7), (30, 2)]);
        assert_eq!(pick(&[(1, 3), (10, 7), (30, 5)], 9, 1), [(10, 7)]);
        assert_eq!(pick(&[], 9, 2), []);
    }

    #[test]
    fn run_around_the_cursor_is_taken_once() {
        let (end, all) = (Piece::of((10, 20), 25), Piece::of((10, 20), 10));
        let other = Piece::of((40, 3), 40);
        assert_eq!(pick(vec![end, all], 5, 2), [Piece { len: 5, ..end }]);
        assert_eq!(pick(vec![end, all], 8, 2), [Piece { len: 8, ..all }]);
        assert_eq!(pick(vec![end, other, all], 30, 3), [all, other], "its end goes with it");
    }

    #[test]
    fn grant_begins_at_the_hint_or_the_clients_own_pag() {
        let pag = |id, free| PagState {
            kind: crate::format::space::ZoneKind::Blocks,
            id: PagId(id),
            uuid: Uuid::default(),
            device: Uuid::default(),
            start: 0,
            total: 9,
            state: PagUse::InService,
            free,
            freed: 0,
        };
        let pags = [pag(0, 5), pag(1, 9), pag(2, 0)];
        assert_eq!(choose(&pags, ClientId(3), None, 5, &[]), Some(PagId(0)));
        assert_eq!(choose(&pags, ClientId(4), None, 5, &[]), Some(PagId(1)));
        assert_eq!(choose(&pags, ClientId(5), None, 5, &[]), Some(PagId(0)), "2 is full");
        assert_eq!(choose(&pags, ClientId(3), None, 6, &[]), Some(PagId(1)));
        assert_eq!(
            choose(&pags, ClientId(3), None, 10, &[]),
            Some(PagId(0)),
            "none has room for all"
        );
        assert_eq!(choose(&pags, ClientId(3), Some(PagId(1)), 1, &[]), Some(PagId(1)));
        assert_eq!(choose(&pags, ClientId(3), Some(PagId(2)), 1, &[]), Some(PagId(0)));
        let lost = [PagId(0)];
        assert_eq!(choose(&pags, ClientId(3), None, 5, &lost), Some(PagId(1)));
        assert_eq!(choose(&pags, ClientId(3), Some(PagId(0)), 5, &lost), Some(PagId(1)));
        assert_eq!(choose(&pags, ClientId(3), None, 5, &[PagId(0), PagId(1)]), None, "2 is full");
        assert_eq!(choose(&[], ClientId(3), None, 1, &[]), None);
        for state in [PagUse::Draining, PagUse::Lost, PagUse::Paused, PagUse::Unknown(9)] {
            let pags = [PagState { state, ..pag(0, 5) }, pag(1, 9)];
            assert_eq!(choose(&pags, ClientId(4), Some(PagId(0)), 5, &[]), Some(PagId(1)));
            assert_eq!(choose(&pags[..1], ClientId(4), None, 1, &[]), None, "{state:?}");
        }
    }
}

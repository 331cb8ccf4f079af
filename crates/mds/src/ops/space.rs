//! Data space: free blocks, grants, returns.

use std::collections::BTreeMap;

use mfs::{PagState, PagUse, Stop, Txn, ZoneKind};
use proto::mds::{OpReply, PagRun, Statfs};
use types::limits::{GRANT_BLOCKS, PAGS_MAX, RETURN_RUNS_MAX};
use types::{Fault, PagId};

use crate::context::OpContext;
use crate::recovery::kept_results::Outcome;

/// Counts blocks as free from the moment that nothing maps them, if they can be granted then. What
/// is lost is not counted. Of targets as much is free as they have last said (`targets`).
pub fn statfs(txn: &mut Txn<'_>, targets: &BTreeMap<PagId, u64>) -> Result<Statfs, Stop> {
    let pags = txn.space().pags()?;
    let inodes = txn.names().inode_counts()?;
    let free = |pag: &PagState| match pag.kind {
        _ if !pag.state.grants() => 0,
        ZoneKind::Blocks | ZoneKind::Borrowed => pag.free + pag.freed,
        ZoneKind::Target => targets.get(&pag.id).map_or(0, |&free| free.min(pag.total)),
    };
    let blocks = |pag: &PagState| match pag.kind {
        // The server of the zone counts them.
        ZoneKind::Borrowed => 0,
        _ if pag.state == PagUse::Lost => 0,
        ZoneKind::Blocks | ZoneKind::Target => pag.total,
    };
    // Who adds up several servers takes zones of one number for the same target.
    let is_own = |pag: &&PagState| pag.kind != ZoneKind::Borrowed;
    Ok(Statfs {
        blocks: pags.iter().map(blocks).sum(),
        blocks_free: pags.iter().map(free).sum(),
        inodes: inodes.used,
        inodes_free: inodes.free,
        pags: pags.iter().filter(is_own).map(|pag| (pag.id, (blocks(pag), free(pag)))).collect(),
    })
}

/// What a client wants for its pool.
pub struct Wanted<'a> {
    /// The zone that it prefers.
    pub hint: Option<PagId>,
    /// Blocks.
    pub blocks: u64,
    /// Zones of which it wants none.
    pub unreachable: &'a [PagId],
}

/// Free blocks of the zones that the client can reach.
fn reachable(txn: &mut Txn<'_>, unreachable: &[PagId]) -> Result<u64, Stop> {
    let pags = txn.space().pags()?;
    Ok(pags.iter().filter(|pag| !unreachable.contains(&pag.id)).map(PagState::grantable).sum())
}

/// Is no block free in the zones that the client can reach?
pub fn is_full(txn: &mut Txn<'_>, unreachable: &[PagId]) -> Result<bool, Stop> {
    Ok(reachable(txn, unreachable)? == 0)
}

/// Grants blocks in at most `most` runs: at most an eighth of the free ones that the client can
/// reach, so that the asking clients share the last blocks.
pub fn grant(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    wanted: &Wanted<'_>,
    most: usize,
) -> Result<OpReply, Stop> {
    let Wanted { hint, blocks, unreachable } = *wanted;
    if unreachable.len() > PAGS_MAX {
        return Err(Fault::TooBig.into());
    }
    let free = reachable(txn, unreachable)?;
    let blocks = blocks.min(GRANT_BLOCKS * 4).min((free / 8).max(1));
    let runs = txn.space().grant_pieces(cx.client, hint, blocks, unreachable, most)?;
    let runs: Vec<PagRun> =
        runs.into_iter().map(|(pag, addr, len)| PagRun { pag, addr, len }).collect();
    cx.effects.outcome = Some(Outcome::Space(runs.clone()));
    granted(txn, runs)
}

/// Grants exactly these blocks, which the server chose; from `end` on, grants to others look for
/// free blocks next. `None`: they are not all free any more, and nothing changes.
pub fn grant_exactly(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    runs: &[PagRun],
    end: u64,
) -> Result<Option<OpReply>, Stop> {
    let exact: Vec<_> = runs.iter().map(|run| (run.pag, run.addr, run.len)).collect();
    if !txn.space().grant_exactly(cx.client, &exact)? {
        return Ok(None);
    }
    if let Some(run) = runs.first() {
        txn.space().set_cursor(run.pag, end);
    }
    cx.effects.outcome = Some(Outcome::Space(runs.to_vec()));
    granted(txn, runs.to_vec()).map(Some)
}

/// The reply to a request for blocks, of which the client got `runs`.
pub fn granted(txn: &mut Txn<'_>, runs: Vec<PagRun>) -> Result<OpReply, Stop> {
    let zone = runs.first().map(|run| run.pag);
    let pags = txn.space().pags()?;
    let left = pags.iter().find(|pag| Some(pag.id) == zone).map_or(0, |pag| pag.free);
    Ok(OpReply::Space { runs, left })
}

/// Returns blocks of the client's pool.
pub fn give_back(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    runs: &[PagRun],
) -> Result<OpReply, Stop> {
    if runs.len() > RETURN_RUNS_MAX {
        return Err(Fault::TooBig.into());
    }
    for run in runs {
        txn.space().pool_return(cx.client, run.pag, run.addr, run.len)?;
    }
    cx.effects.outcome = Some(Outcome::Done);
    Ok(OpReply::Done {})
}

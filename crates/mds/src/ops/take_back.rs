//! A metadata server takes back data blocks that another one has got of its zone.
//!
//! Invariants:
//! - the other server gives up what is free there before this one takes it, in one joint operation:
//!   no block is free at both, and after a crash none is lost;
//! - the zone drains at the other server, so it grants nothing of it. It stays so while an
//!   operation is open that has promised blocks;
//! - nothing else takes a block from this server's list of what the other one has got: neither
//!   server makes or enters a loan meanwhile. So this server's share cannot fail when it is
//!   applied.

use mfs::{Stop, Txn};
use proto::mds::{OpReply, PagRun};
use types::{Fault, PagBlock, PagId, Rights, ShardId};

use crate::context::OpContext;
use crate::joint::{Ask, GivenBack, Known, Part};
use crate::recovery::kept_results::Outcome;

fn pairs(pag: PagId, runs: &[PagRun]) -> Result<Vec<(PagBlock, u64)>, Stop> {
    match runs.iter().all(|run| run.pag == pag) && runs.len() <= mfs::RETURNED_MAX {
        true => Ok(runs.iter().map(|run| (run.addr, run.len)).collect()),
        false => Err(Fault::Protocol.into()),
    }
}

/// This server's share.
fn apply(txn: &mut Txn<'_>, from: ShardId, pag: PagId, it: &GivenBack) -> Result<(), Stop> {
    for runs in [&it.runs, &it.unacknowledged] {
        txn.space().take_back(from, pag, &pairs(pag, runs)?)?;
    }
    Ok(())
}

/// Runs [`proto::mds::Op::TakeBack`].
///
/// # Errors
/// See there.
pub fn take_back(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    pag: PagId,
    shard: ShardId,
) -> Result<OpReply, Stop> {
    if let Some(answers) = &cx.joint {
        let Some(Part::GiveBack { it, .. }) = answers.part() else {
            return Err(Fault::Protocol.into());
        };
        apply(txn, shard, pag, it)?;
        cx.effects.outcome = Some(Outcome::Done);
        return Ok(OpReply::Done {});
    }
    let own = cx.server.runtime.shard;
    if shard == own {
        return Err(Fault::Invalid.into());
    }
    // One at a time.
    cx.need(txn.orphan_dir(), Rights::empty());
    let asked = cx.learn(Ask::FreeLent { shard: shard.0, pag, to: own.0 })?;
    let Known::Free(runs, known) = asked else { return Err(Fault::Protocol.into()) };
    cx.ready()?;
    let (unacknowledged, last) = txn.space().unacknowledged(shard, pag, known)?;
    let run = |(addr, len)| PagRun { pag, addr, len };
    let unacknowledged: Vec<PagRun> = unacknowledged.into_iter().map(run).collect();
    if runs.is_empty() && unacknowledged.is_empty() {
        cx.effects.outcome = Some(Outcome::Done);
        return Ok(OpReply::Done {});
    }
    let last = if unacknowledged.is_empty() { known } else { last };
    let it = GivenBack { to: own.0, runs, unacknowledged, known, last };
    // It is tried before the other server gives anything up. Nothing of a plan is kept.
    apply(txn, shard, pag, &it)?;
    cx.plan(vec![(shard, Part::GiveBack { pag, it })])
}

/// The other server's part: gives up what is free.
///
/// # Errors
/// `Busy`: some of it is in use by now, or another loan was entered. `NotPermitted`: the zone does
/// not drain here.
pub fn give(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    pag: PagId,
    it: &GivenBack,
) -> Result<(), Stop> {
    cx.ready()?;
    // Else a grant could take what has been promised.
    if !it.runs.is_empty() && !txn.space().pag_use(pag)?.is_leaving() {
        return Err(Fault::NotPermitted.into());
    }
    let runs = pairs(pag, &it.runs)?;
    txn.space().give_back(ShardId(it.to), (pag, &runs), (it.known, it.last))
}

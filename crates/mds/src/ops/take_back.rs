//! A metadata server takes back data blocks that another one has got of its zone.
//!
//! Invariants: - the other server gives up what is free there before this one takes it, in one
//! joint operation: no block is free at both, and after a crash none is lost; - the zone drains at
//! the other server, so it grants nothing of it. It stays so while an operation is open that has
//! promised blocks; - nothing else takes a block from the other server's list of what this one has
//! got: so this server's share cannot fail when it is applied.

use mfs::{Stop, Txn};
use proto::mds::{OpReply, PagRun};
use types::{Fault, PagBlock, PagId, Rights, ShardId};

use crate::context::OpContext;
use crate::joint::{Ask, Known, Part};
use crate::recovery::kept_results::Outcome;

fn pairs(pag: PagId, runs: &[PagRun]) -> Result<Vec<(PagBlock, u64)>, Stop> {
    match runs.iter().all(|run| run.pag == pag) && runs.len() <= mfs::RETURNED_MAX {
        true => Ok(runs.iter().map(|run| (run.addr, run.len)).collect()),
        false => Err(Fault::Protocol.into()),
    }
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
        let Some(Part::GiveBack { runs, .. }) = answers.part() else {
            return Err(Fault::Protocol.into());
        };
        let runs = pairs(pag, runs)?;
        txn.space().take_back(shard, pag, &runs)?;
        cx.effects.outcome = Some(Outcome::Done);
        return Ok(OpReply::Done {});
    }
    let own = cx.server.runtime.shard;
    if shard == own {
        return Err(Fault::Invalid.into());
    }
    // One at a time.
    cx.need(txn.orphan_dir(), Rights::empty());
    let Known::Free(runs) = cx.learn(Ask::FreeLent { shard: shard.0, pag, to: own.0 })? else {
        return Err(Fault::Protocol.into());
    };
    cx.ready()?;
    if runs.is_empty() {
        cx.effects.outcome = Some(Outcome::Done);
        return Ok(OpReply::Done {});
    }
    // It is tried before the other server gives anything up. Nothing of a plan is kept.
    txn.space().take_back(shard, pag, &pairs(pag, &runs)?)?;
    cx.plan(vec![(shard, Part::GiveBack { to: own.0, pag, runs })])
}

/// The other server's part: gives up what is free.
///
/// # Errors
/// `Busy`: some of it is in use by now. `NotPermitted`: the zone does not drain here.
pub fn give(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    to: ShardId,
    (pag, runs): (PagId, &[PagRun]),
) -> Result<(), Stop> {
    cx.ready()?;
    // Else a grant could take what has been promised.
    if !txn.space().pag_use(pag)?.is_leaving() {
        return Err(Fault::NotPermitted.into());
    }
    txn.space().give_back(to, pag, &pairs(pag, runs)?)
}

//! The reply to an operation that was executed before a restart of the server, rebuilt from its
//! kept outcome and the current state.

use mfs::{Stop, Txn};
use proto::mds::{Op, OpReply};
use proto::operation::Class;
use proto::wire::Appended;
use types::{Attr, Fault, FileKind, Ino, Rights};

use crate::context::{OpContext, elsewhere};
use crate::recovery::kept_results::Outcome;

/// The reply to `op`, whose outcome was `outcome`.
///
/// # Errors
/// `Protocol` if the outcome is not one of this operation's.
pub fn reply(
    op: &Op,
    outcome: &Outcome,
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
) -> Result<OpReply, Stop> {
    let protocol = Stop::Fault(Fault::Protocol);
    if !matches!(op.spec().class, Class::Change(change) if outcome.is(change.kept)) {
        return Err(protocol);
    }
    Ok(match op {
        Op::Create { dir, want, node, .. } | Op::CreateTmpfile { dir, want, node, .. } => {
            created(cx, txn, inode(outcome)?, *dir, (*want, node.kind))?
        }
        Op::Link { dir, .. } => {
            let (attr, dir) = (find(txn, inode(outcome)?)?, *dir);
            OpReply::Linked { leased: cx.leased(attr), dir: cx.leased(find(txn, dir)?) }
        }
        Op::Unlink { dir, .. } | Op::Rmdir { dir, .. } => {
            let (ino, dir) = (inode(outcome)?, *dir);
            let (attr, dir) = (find(txn, ino)?, cx.leased(find(txn, dir)?));
            OpReply::Removed { ino, attr, dir, kept: true }
        }
        Op::Rename { from, to, .. } => renamed(cx, txn, outcome, (*from, *to))?,
        Op::SetAttr { ino, .. }
        | Op::SetXattr { ino, .. }
        | Op::RemoveXattr { ino, .. }
        | Op::Commit { ino, .. }
        | Op::SwapLayouts { ino, .. } => OpReply::Attr { leased: cx.leased(find(txn, *ino)?) },
        Op::Space { .. } | Op::Place { .. } => {
            let Outcome::Space(runs) = outcome else { return Err(protocol) };
            super::space::granted(txn, runs.clone())?
        }
        Op::ReturnSpace { .. } | Op::TakeBack { .. } => OpReply::Done {},
        Op::MoveDirectory { .. } | Op::MoveFile { .. } => OpReply::Moved { there: false },
        // Nothing is kept of these.
        Op::Lookup { .. }
        | Op::GetAttr { .. }
        | Op::ReadDir { .. }
        | Op::GetXattr { .. }
        | Op::ListXattr { .. }
        | Op::ReadLink { .. }
        | Op::Acquire { .. }
        | Op::Layout { .. }
        | Op::Sync {}
        | Op::EndPlacing { .. }
        | Op::Statfs {}
        | Op::Lock { .. }
        | Op::Unlock { .. }
        | Op::TestLock { .. }
        | Op::CancelLock { .. }
        | Op::Return { .. }
        | Op::Reclaim { .. }
        | Op::ReclaimDone {}
        | Op::Renew {}
        | Op::Goodbye {}
        | Op::Status {}
        | Op::Evict { .. }
        | Op::Scrub { .. }
        | Op::Why { .. }
        | Op::Zones {}
        | Op::Servers {}
        | Op::Tell { .. }
        | Op::Lend { .. }
        | Op::Where { .. }
        | Op::AddZone { .. }
        | Op::SetZoneState { .. }
        | Op::ZoneFiles { .. } => return Err(protocol),
    })
}

fn created(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    dir: Ino,
    (want, kind): (Rights, FileKind),
) -> Result<OpReply, Stop> {
    let dir = find(txn, dir)?;
    if cx.is_elsewhere(ino) {
        return super::create::reply(cx, txn, elsewhere(ino, kind), dir);
    }
    let attr = find(txn, ino)?;
    super::create::want(cx, &attr, want);
    super::create::reply(cx, txn, attr, dir)
}

fn inode(outcome: &Outcome) -> Result<Ino, Stop> {
    match outcome {
        Outcome::Inode(ino) => Ok(*ino),
        _ => Err(Fault::Protocol.into()),
    }
}

fn renamed(
    cx: &OpContext<'_>,
    txn: &mut Txn<'_>,
    outcome: &Outcome,
    (from, to): (Ino, Ino),
) -> Result<OpReply, Stop> {
    let (moved, over, whiteout) = match outcome {
        Outcome::Moved(moved, over) => (moved, over, None),
        Outcome::MovedLeaving(moved, over, whiteout) => (moved, over, Some(*whiteout)),
        _ => return Err(Fault::Protocol.into()),
    };
    let whiteout = match whiteout {
        Some(ino) => Some(cx.leased(find(txn, ino)?)),
        None => None,
    };
    let replaced = if *over == Ino::NONE { None } else { Some(find(txn, *over)?) };
    Ok(OpReply::Renamed {
        moved: cx.leased(find(txn, *moved)?),
        replaced,
        from: cx.leased(find(txn, from)?),
        to: cx.leased(find(txn, to)?),
        kept: true,
        whiteout: Appended(whiteout),
    })
}

/// The inode's attributes; if it is gone, those of an orphan.
fn find(txn: &mut Txn<'_>, ino: Ino) -> Result<Attr, Stop> {
    if txn.names().home(ino)? != txn.shard() {
        // It was here, and has moved.
        return Ok(elsewhere(ino, FileKind::Directory));
    }
    let gone = Attr { version: u64::MAX, ..elsewhere(ino, FileKind::Regular) };
    Ok(txn.names().attr(ino)?.unwrap_or(gone))
}

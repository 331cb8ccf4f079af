//! The reply to an operation that was executed before a restart of the server, rebuilt from its
//! kept outcome and the current state.

use mfs::{Stop, Txn};
use proto::mds::{Op, OpReply};
use proto::wire::Appended;
use types::{Attr, Fault, FileKind, Ino, Timestamp};

use crate::context::OpContext;
use crate::record::Outcome;

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
    let inode = |outcome: &Outcome| match outcome {
        Outcome::Inode(ino) => Ok(*ino),
        _ => Err(protocol),
    };
    Ok(match op {
        Op::Create { dir, want, .. } | Op::CreateTmpfile { dir, want, .. } => {
            let (attr, dir) = (find(txn, inode(outcome)?)?, cx.resolve(dir)?);
            super::create::want(cx, &attr, *want);
            let inline_max = super::create::inline_max(txn, &attr)?;
            OpReply::Created {
                leased: cx.leased(attr),
                dir: cx.leased(find(txn, dir)?),
                inline_max,
            }
        }
        Op::Link { dir, .. } => {
            let (attr, dir) = (find(txn, inode(outcome)?)?, cx.resolve(dir)?);
            OpReply::Linked { leased: cx.leased(attr), dir: cx.leased(find(txn, dir)?) }
        }
        Op::Unlink { dir, .. } | Op::Rmdir { dir, .. } => {
            let (ino, dir) = (inode(outcome)?, cx.resolve(dir)?);
            let (attr, dir) = (find(txn, ino)?, cx.leased(find(txn, dir)?));
            OpReply::Removed { ino, attr, dir, kept: true }
        }
        Op::Rename { from, to, .. } => {
            let (moved, over, whiteout) = match outcome {
                Outcome::Moved(moved, over) => (moved, over, None),
                Outcome::MovedLeaving(moved, over, whiteout) => (moved, over, Some(*whiteout)),
                _ => return Err(protocol),
            };
            let whiteout = match whiteout {
                Some(ino) => Some(cx.leased(find(txn, ino)?)),
                None => None,
            };
            let (from, to) = (cx.resolve(from)?, cx.resolve(to)?);
            let replaced = if *over == Ino::NONE { None } else { Some(find(txn, *over)?) };
            OpReply::Renamed {
                moved: cx.leased(find(txn, *moved)?),
                replaced,
                from: cx.leased(find(txn, from)?),
                to: cx.leased(find(txn, to)?),
                kept: true,
                whiteout: Appended(whiteout),
            }
        }
        Op::SetAttr { ino, .. } | Op::SetXattr { ino, .. } | Op::RemoveXattr { ino, .. } => {
            let ino = cx.resolve(ino)?;
            OpReply::Attr { leased: cx.leased(find(txn, ino)?) }
        }
        Op::Commit { ino, .. } => OpReply::Attr { leased: cx.leased(find(txn, *ino)?) },
        Op::Space { .. } => {
            let Outcome::Space(runs) = outcome else { return Err(protocol) };
            OpReply::Space { runs: runs.clone() }
        }
        Op::ReturnSpace { .. } => OpReply::Done {},
        _ => return Err(protocol),
    })
}

/// The inode's attributes; if it is gone, those of an orphan.
fn find(txn: &mut Txn<'_>, ino: Ino) -> Result<Attr, Stop> {
    let zero = Timestamp::default();
    let gone = Attr {
        ino,
        kind: FileKind::Regular,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: zero,
        version: u64::MAX,
    };
    Ok(txn.attr(ino)?.unwrap_or(gone))
}

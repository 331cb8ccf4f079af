//! The observed order: the order in which the server and the clients report that changes took
//! effect. The server reports names, attributes and locks. A client reports content, which it
//! changes under its lease. These instants agree with the order of the lease sequences, and are
//! finer.
//!
//! Invariants:
//! - a change is reported at the instant at which it takes effect, so its position lies between the
//!   beginning and the end of the step that asked for it;
//! - for the judge a report is only a hint: a report matched to a wrong step, or a missing one,
//!   costs time and never a verdict. The checker of `DURABLE` relies on it. That is right as long
//!   as no two processes of a client ask for the same change at once.

use client::Edited;
use proto::mds::{Lock, Op as Asked};
use types::limits::BLOCK_U64;
use types::{Ino, Name};

use crate::call::{At, Op, name_text};
use crate::model::OWNERS;
use crate::mount::XATTR;

/// Did `op` not take effect if no report came? Content may change in part, and be reported in part.
pub fn is_reported(op: &Op) -> bool {
    op.changes_names() || matches!(op, Op::Lock { .. })
}

/// May the pending call `op` have sent this request? Those of the last arm change nothing that a
/// step of an application is reported for.
pub fn asked_for(op: &Op, asked: &Asked) -> bool {
    let is = |at: &At, dir: &Ino, name: &Name| {
        *dir == at.dir && name.as_bytes() == name_text(at.name).as_bytes()
    };
    match asked {
        Asked::Create { dir, name, .. } => matches!(
            op,
            Op::Make(at, _) | Op::Symlink(at, _) | Op::Create { at, .. } if is(at, dir, name)
        ),
        Asked::CreateTmpfile { dir, .. } => matches!(op, Op::TmpFile(its, _) if its == dir),
        Asked::Unlink { dir, name, .. } => matches!(op, Op::Unlink(at) if is(at, dir, name)),
        Asked::Rmdir { dir, name } => matches!(op, Op::Rmdir(at) if is(at, dir, name)),
        Asked::Link { ino, dir, name, .. } => {
            matches!(op, Op::Link(its, at) if its == ino && is(at, dir, name))
        }
        Asked::Rename { from: dir, name, to: new_dir, new_name, .. } => matches!(
            op,
            Op::Rename { from, to, .. } if is(from, dir, name) && is(to, new_dir, new_name)
        ),
        Asked::SetAttr { ino, set } => match op {
            Op::SetMode(its, mode) => its == ino && set.mode == Some(*mode),
            Op::SetOwner { ino: its, uid, gid } => its == ino && (set.uid, set.gid) == (*uid, *gid),
            _ => false,
        },
        Asked::SetXattr { ino, name, .. } => {
            matches!(op, Op::SetXattr(its, Some(_)) if its == ino && name.0 == XATTR)
        }
        Asked::RemoveXattr { ino, .. } => matches!(op, Op::SetXattr(its, None) if its == ino),
        Asked::Lock { ino, lock, .. } => is_lock(op, *ino, lock, Some(lock.exclusive)),
        Asked::Unlock { ino, lock } => is_lock(op, *ino, lock, None),
        Asked::Lookup { .. }
        | Asked::GetAttr { .. }
        | Asked::ReadDir { .. }
        | Asked::GetXattr { .. }
        | Asked::ListXattr { .. }
        | Asked::ReadLink { .. }
        | Asked::Acquire { .. }
        | Asked::Layout { .. }
        | Asked::Commit { .. }
        | Asked::Space { .. }
        | Asked::Place { .. }
        | Asked::EndPlacing { .. }
        | Asked::SwapLayouts { .. }
        | Asked::ReturnSpace { .. }
        | Asked::Sync {}
        | Asked::Statfs {}
        | Asked::TestLock { .. }
        | Asked::CancelLock { .. }
        | Asked::Return { .. }
        | Asked::Reclaim { .. }
        | Asked::ReclaimDone {}
        | Asked::Renew {}
        | Asked::Goodbye {}
        | Asked::Status {}
        | Asked::Evict { .. }
        | Asked::Scrub { .. }
        | Asked::Why { .. }
        | Asked::Zones {}
        | Asked::Servers {}
        | Asked::Tell { .. }
        | Asked::Lend { .. }
        | Asked::Where { .. }
        | Asked::MoveDirectory { .. }
        | Asked::MoveFile { .. }
        | Asked::TakeBack { .. }
        | Asked::AddZone { .. }
        | Asked::SetZoneState { .. }
        | Asked::ZoneFiles { .. } => false,
    }
}

/// Is `op` the step that takes (`exclusive`) or frees this lock?
fn is_lock(op: &Op, of: Ino, lock: &Lock, exclusive: Option<bool>) -> bool {
    let Op::Lock { ino, owner, exclusive: its, range } = op else { return false };
    *ino == of
        && *its == exclusive
        && lock.flock == range.is_none()
        && lock.owner.0 == owner % OWNERS
}

/// May the pending call `op` have made this edit of the file's content?
pub fn edits(op: &Op, of: Ino, edited: Edited) -> bool {
    match (op, edited) {
        (Op::Write { ino, offset: Some(at), len, .. }, Edited::Bytes { from, to }) => {
            *ino == of && *at <= from && to <= at + u64::from(*len)
        }
        (Op::Write { ino, offset: None, len, .. }, Edited::Bytes { from, to }) => {
            *ino == of && to - from <= u64::from(*len)
        }
        (Op::Allocate { ino, offset, len, .. }, Edited::Bytes { from, to }) => {
            *ino == of && *offset <= from && to <= (offset + len).next_multiple_of(BLOCK_U64)
        }
        (Op::Allocate { ino, offset, len, .. }, Edited::Size(size)) => {
            *ino == of && offset + len == size
        }
        (Op::Truncate(ino, to), Edited::Size(size)) => *ino == of && *to == size,
        _ => false,
    }
}

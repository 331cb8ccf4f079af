//! What server and clients tell of the order in which changes took effect: the server of names,
//! attributes and locks, a client of content, which it changes under its lease. These instants are
//! in the order of the leases' sequences, and finer.
//!
//! Invariants:
//! - it is told at the instant at which a change took effect, so its position lies between the
//!   beginning and the end of the step that asked for it;
//! - to the judge it is no more than a hint: a step that was taken for another one, or of which
//!   nothing is known, costs it time and never a verdict. The checker of invariant 4 takes it as it
//!   is, which is right as long as clients ask for changes by the numbers of directories, and no
//!   two processes of a client for the same change at once.

use client::Edited;
use proto::mds::{InoRef, Op as Asked};
use types::limits::BLOCK_U64;
use types::{Ino, Name};

use crate::call::{At, Op, name_text};
use crate::model::OWNERS;

/// Did `op` not take effect if nothing was told of it? Content may be changed in part, and a part
/// be told.
pub fn is_always_reported(op: &Op) -> bool {
    op.changes_names() || matches!(op, Op::Lock { .. })
}

/// May `op`, for which an application waits, have asked for this?
pub fn asked_for(op: &Op, asked: &Asked) -> bool {
    let is = |at: &At, dir: &InoRef, name: &Name| {
        leads_to(dir, at.dir) && name.as_bytes() == name_text(at.name).as_bytes()
    };
    match (op, asked) {
        (
            Op::Make(at, _) | Op::Symlink(at, _) | Op::Create { at, .. },
            Asked::Create { dir, name, .. },
        )
        | (Op::Unlink(at), Asked::Unlink { dir, name, .. })
        | (Op::Rmdir(at), Asked::Rmdir { dir, name }) => is(at, dir, name),
        (Op::TmpFile(its, _), Asked::CreateUnnamed { dir, .. }) => leads_to(dir, *its),
        (Op::Link(its, at), Asked::Link { ino, dir, name, .. }) => {
            leads_to(ino, *its) && is(at, dir, name)
        }
        (
            Op::Rename { from, to, .. },
            Asked::Rename { from: dir, name, to: new_dir, new_name, .. },
        ) => is(from, dir, name) && is(to, new_dir, new_name),
        (Op::SetMode(its, mode), Asked::SetAttr { ino, set }) => {
            leads_to(ino, *its) && set.mode == Some(*mode)
        }
        (Op::SetOwner { ino: its, uid, gid }, Asked::SetAttr { ino, set }) => {
            leads_to(ino, *its) && (set.uid, set.gid) == (*uid, *gid)
        }
        (Op::SetXattr(its, Some(_)), Asked::SetXattr { ino, .. })
        | (Op::SetXattr(its, None), Asked::RemoveXattr { ino, .. }) => leads_to(ino, *its),
        (Op::Lock { ino: its, owner, exclusive, range }, Asked::Lock { ino, lock, .. }) => {
            ino == its
                && *exclusive == Some(lock.exclusive)
                && lock.flock == range.is_none()
                && lock.owner.0 == owner % OWNERS
        }
        (Op::Lock { ino: its, owner, exclusive: None, range }, Asked::Unlock { ino, lock }) => {
            ino == its && lock.flock == range.is_none() && lock.owner.0 == owner % OWNERS
        }
        _ => false,
    }
}

/// May `op`, for which an application waits, have led to this change of a file's content?
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

/// One that an earlier operation of the request found may be any.
fn leads_to(asked: &InoRef, ino: Ino) -> bool {
    match asked {
        InoRef::Is { ino: is } => *is == ino,
        InoRef::Of { .. } => true,
    }
}

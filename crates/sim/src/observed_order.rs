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
//!   as clients name directories by number, and no two processes of a client ask for the same
//!   change at once.

use client::Edited;
use proto::mds::{InoRef, Op as Asked};
use types::limits::BLOCK_U64;
use types::{Ino, Name};

use crate::call::{At, Op, name_text};
use crate::model::OWNERS;

/// Did `op` not take effect if no report came? Content may change in part, and be reported in part.
pub fn is_reported(op: &Op) -> bool {
    op.changes_names() || matches!(op, Op::Lock { .. })
}

/// May the pending call `op` have sent this request?
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
        (Op::TmpFile(its, _), Asked::CreateTmpfile { dir, .. }) => leads_to(dir, *its),
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

/// An inode that an earlier operation of the request found may be any inode.
fn leads_to(asked: &InoRef, ino: Ino) -> bool {
    match asked {
        InoRef::Is { ino: is } => *is == ino,
        InoRef::Of { .. } => true,
    }
}

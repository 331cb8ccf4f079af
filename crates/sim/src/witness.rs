//! What the server tells of the order in which it applied changes.
//!
//! Invariants:
//! - it is told at the instant at which a change took effect, so its position lies between the
//!   beginning and the end of the step that asked for it;
//! - it is no more than a hint: a step that was taken for another one, or of which nothing is
//!   known, costs the judge time and never a verdict.

use proto::mds::{InoRef, Op as Asked};
use types::{Ino, Name};

use crate::call::{At, Op, name_text};
use crate::model::OWNERS;

/// Is `op` tried in the order that the server tells? Content changes where its client is, and nobody tells when.
pub fn is_told(op: &Op) -> bool {
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

/// One that an earlier operation of the request found may be any.
fn leads_to(asked: &InoRef, ino: Ino) -> bool {
    match asked {
        InoRef::Is { ino: is } => *is == ino,
        InoRef::Of { .. } => true,
    }
}

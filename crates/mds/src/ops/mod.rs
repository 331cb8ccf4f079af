//! The operations that are one transaction each, a file per operation or family.
//!
//! Invariants:
//! - an operation is a pure function of what the transaction reads and of its [`OpContext`]; it may
//!   run several times, and only the last run counts;
//! - an operation reads, states its needs, passes [`OpContext::ready`] and then changes, in this
//!   order.

pub mod acl;
mod attr;
pub mod commit;
mod create;
mod data;
mod find;
mod link;
pub mod move_directory;
pub mod move_file;
pub mod permission;
pub mod remove;
pub mod rename;
pub mod repeat;
pub mod space;
pub mod spread;
mod swap;
pub mod take_back;
mod xattr;

use mfs::{Cost, Stop, Txn};
use proto::mds::{Op, OpReply, Principal};
use proto::operation::{Class, CostClass};
use types::{Fault, ShardId};

use crate::context::OpContext;

/// On whose behalf the server itself works.
pub static SERVER_PRINCIPAL: Principal = Principal { uid: 0, gid: 0, groups: Vec::new() };

/// The cost of an operation that changes nothing.
pub const READ: Cost = Cost::READ;

/// The worst-case cost of the transaction that `op` is; `None` if it is none, or divides its work
/// itself.
pub fn cost(op: &Op) -> Option<Cost> {
    let class = match op.spec().class {
        Class::Read => return Some(READ),
        Class::Session => return None,
        Class::Change(change) => change.cost,
    };
    match class {
        CostClass::Small => Some(Cost::SMALL),
        CostClass::TwoSmall => Some(Cost {
            log_bytes: 2 * Cost::SMALL.log_bytes,
            dirty: 2 * Cost::SMALL.dirty,
            ..Cost::SMALL
        }),
        CostClass::Frees => Some(Cost::DELETE),
        CostClass::Step => Some(Cost::STEP),
        CostClass::Own => None,
    }
}

/// Runs `op` inside a transaction.
///
/// # Errors
/// The operation's fault, or what the store needs before it can go on.
pub fn execute(op: &Op, cx: &mut OpContext<'_>, txn: &mut Txn<'_>) -> Result<OpReply, Stop> {
    match op {
        Op::Lookup { dir, name, want, want_dir } => {
            find::lookup(cx, txn, *dir, name, *want, *want_dir)
        }
        Op::GetAttr { ino, want } => find::get_attr(cx, txn, *ino, *want),
        Op::ReadDir { dir, cookie, max, plus, want, want_dir } => {
            let page = find::DirPage { cookie: *cookie, max: *max, plus: *plus };
            find::read_dir(cx, txn, *dir, page, *want, *want_dir)
        }
        Op::ReadLink { ino } => find::read_link(cx, txn, *ino),
        Op::Create { dir, name, node, want } => create::create(cx, txn, *dir, name, node, *want),
        Op::CreateTmpfile { dir, node, want, placement } => {
            let placement = placement.0.as_ref().map(|bytes| &bytes.0[..]);
            create::create_orphan(cx, txn, *dir, (node, placement), *want)
        }
        Op::Link { ino, dir, name, tmpfile } => link::link(cx, txn, *ino, (*dir, name), *tmpfile),
        Op::Unlink { dir, name, unused } => remove::unlink(cx, txn, *dir, name, *unused),
        Op::Rmdir { dir, name } => remove::rmdir(cx, txn, *dir, name),
        Op::Rename { from, name, to, new_name, flags, unused } => {
            rename::any(cx, txn, (*from, name), (*to, new_name), *flags, *unused)
        }
        Op::SetAttr { ino, set } => attr::set_attr(cx, txn, *ino, set),
        Op::GetXattr { ino, name, want } => xattr::get(cx, txn, *ino, &name.0, *want),
        Op::ListXattr { ino, want } => xattr::list(cx, txn, *ino, *want),
        Op::SetXattr { ino, name, value, flags, kill_setgid } => {
            let change =
                xattr::XattrChange { value: &value.0, flags: *flags, kill_setgid: *kill_setgid };
            xattr::set(cx, txn, *ino, &name.0, change)
        }
        Op::RemoveXattr { ino, name } => xattr::remove(cx, txn, *ino, &name.0),
        Op::Acquire { ino, rights, from, range: part, ahead } => {
            data::acquire(cx, txn, *ino, (*rights, *from), part.map(|part| (part, *ahead)))
        }
        Op::Layout { ino, from } => data::layout(cx, txn, *ino, *from),
        Op::ReturnSpace { runs } => space::give_back(cx, txn, runs),
        Op::SwapLayouts { ino, spare } => swap::swap(cx, txn, *ino, *spare),
        Op::MoveDirectory { dir, shard } => move_directory::move_to(cx, txn, *dir, ShardId(*shard)),
        Op::MoveFile { .. } => move_file::move_to(cx, txn, op),
        Op::TakeBack { pag, shard, .. } => take_back::take_back(cx, txn, *pag, ShardId(*shard)),
        // `request.rs` runs these: in transactions of their own, or in none.
        Op::Commit { .. }
        | Op::Space { .. }
        | Op::Place { .. }
        | Op::EndPlacing { .. }
        | Op::Sync {}
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
        | Op::ZoneFiles { .. } => Err(Fault::Unsupported.into()),
    }
}

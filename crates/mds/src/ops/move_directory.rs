//! A directory moves to another metadata server.
//!
//! It takes its names along, and keeps its number. What has a name there stays where it is.
//!
//! Invariants:
//! - all clients have given up what they hold of the directory, the one that asks too: none of them
//!   relies on what its former server has said of it;
//! - the gates of what has a name there are held on both shards. So nobody counts its names before
//!   both sides have done so;
//! - an operation that meets the directory while it moves waits until that is decided.

use mfs::{Arrival, Cost, PlacedName, Reserve, Stop, Txn, Usage};
use proto::mds::OpReply;
use proto::wire::{Bytes, Wire};
use types::{Fault, Ino, Rights, ShardId};

use crate::context::OpContext;
use crate::joint::{Arriving, ArrivingName, Ask, Part};
use crate::leases::NO_CLIENT;
use crate::recovery::kept_results::Outcome;
use crate::uncommitted::MetaItem;

/// Names of a directory that can move, at most.
pub const NAMES_MAX: usize = 1000;
/// Bytes of its names and attributes, as the part of the other server, at most. The entry of that
/// server has the gates, too.
pub const BYTES_MAX: usize = 40 << 10;
/// Bytes of the log's record for each name, on the side where it is more: two slots, with entries
/// of the trees of moved inodes, of names on other shards and of the directory's map.
const LOG_BYTES: u32 = 2048;
/// Bytes of it for all else: entries, attributes, and images of blocks that are new.
const LOG_BYTES_BASE: u32 = 512 << 10;

/// The worst case of the transaction that moves so many names.
pub fn cost(names: usize) -> Cost {
    let names = names.min(NAMES_MAX) as u32;
    Cost {
        log_bytes: LOG_BYTES_BASE + names * LOG_BYTES,
        dirty: Cost::STEP.dirty + names,
        reserve: Reserve::Replay,
    }
}

/// Moves `dir` with its names to the server of `to`. See [`proto::mds::Op::MoveDirectory`].
///
/// # Errors
/// `NotDirectory`; `Invalid`: it is a root directory, or there is no such server. `TooBig`: it has
/// too many names, or attributes. `WouldBlock`: a program has locked it. `NotSupported`: the other
/// server is of an older release.
pub fn move_to(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    dir: Ino,
    to: ShardId,
) -> Result<OpReply, Stop> {
    if let Some(answers) = &cx.joint {
        let Some(Part::TakeDirectory { it }) = answers.part() else {
            return Err(Fault::Protocol.into());
        };
        let names: Vec<PlacedName> = it.names.iter().map(ArrivingName::placed).collect();
        txn.names().leave(dir, to, &names)?;
        cx.server.learned.forget(dir);
        cx.effects.gone.push(dir);
        cx.effects.orphaned.push((dir, NO_CLIENT));
        cx.effects.changes.extend([MetaItem::Attr(dir), MetaItem::Names(dir)]);
        cx.effects.outcome = Some(Outcome::Done);
        return Ok(OpReply::Moved { there: false });
    }
    if to == cx.server.runtime.shard {
        cx.dir(txn, dir)?;
        cx.effects.outcome = Some(Outcome::Done);
        return Ok(OpReply::Moved { there: true });
    }
    cx.live_dir(txn, dir)?;
    if !cx.server.locks.held(dir).is_empty() {
        return Err(Fault::WouldBlock.into());
    }
    let it = txn.names().departure(dir, NAMES_MAX)?;
    // The new server may let others change it before the client that asks hears of the move.
    cx.need_of_all(dir, Rights::NAMES | Rights::ATTR);
    need_others(cx, it.parent, it.names.iter().map(|name| name.ino));
    cx.learn(Ask::Receive { shard: to.0, names: it.names.len() as u32 })?;
    cx.ready()?;
    // It is tried before the other server relies on it. Nothing of a plan is kept.
    txn.names().leave(dir, to, &it.names)?;
    let part = Part::TakeDirectory { it: Arriving::of(it) };
    if part.to_bytes().len() > BYTES_MAX {
        return Err(Fault::TooBig.into());
    }
    cx.plan(vec![(to, part)])
}

/// Have log, cache and metadata zone room for so many names?
pub fn fits(usage: &Usage, names: usize) -> bool {
    let cost = cost(names);
    u64::from(cost.log_bytes) <= usage.log_bytes / 4
        && cost.dirty as usize <= usage.cache_max / 2
        && usage.blocks_free >= usage.blocks_set_aside + u64::from(cost.dirty)
}

/// States that no other operation changes names of these inodes, as far as they are here.
fn need_others(cx: &mut OpContext<'_>, parent: Ino, named: impl Iterator<Item = Ino>) {
    for ino in std::iter::once(parent).chain(named) {
        if !cx.is_elsewhere(ino) {
            cx.need(ino, Rights::empty());
        }
    }
}

/// The other server's part: takes the directory.
///
/// # Errors
/// `Busy`: what it has left here the last time is not freed yet. `TooBig`, `NoSpace`.
pub fn take(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, it: &Arriving) -> Result<(), Stop> {
    let dir = it.attr.ino;
    if it.names.len() > NAMES_MAX {
        return Err(Fault::TooBig.into());
    }
    cx.need(dir, Rights::empty());
    need_others(cx, it.parent, it.names.iter().map(|name| name.ino));
    cx.ready()?;
    txn.names().arrive(&it.arrival())?;
    cx.server.learned.forget(dir);
    cx.effects.came.push(dir);
    cx.effects.changes.extend([MetaItem::Attr(dir), MetaItem::Names(dir)]);
    Ok(())
}

impl ArrivingName {
    fn placed(&self) -> PlacedName {
        let ArrivingName { at, name, ino, kind } = self.clone();
        PlacedName { at, name, ino, kind }
    }
}

impl Arriving {
    fn of(it: Arrival) -> Arriving {
        let bytes = |(name, value)| (Bytes(name), Bytes(value));
        let name = |PlacedName { at, name, ino, kind }| ArrivingName { at, name, ino, kind };
        Arriving {
            attr: it.attr,
            parent: it.parent,
            stream: it.stream,
            xattrs: it.xattrs.into_iter().map(bytes).collect(),
            annexes: it.annexes,
            names: it.names.into_iter().map(name).collect(),
        }
    }

    fn arrival(&self) -> Arrival {
        let bytes = |(name, value): &(Bytes, Bytes)| (name.0.clone(), value.0.clone());
        Arrival {
            attr: self.attr,
            parent: self.parent,
            stream: self.stream,
            xattrs: self.xattrs.iter().map(bytes).collect(),
            annexes: self.annexes.clone(),
            names: self.names.iter().map(ArrivingName::placed).collect(),
        }
    }
}

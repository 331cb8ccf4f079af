//! Rename: plain, over a name, as an exchange, and with a whiteout.
//!
//! Invariants:
//! - the tree has no cycle: a directory moves to another directory only under the rename gate, and
//!   not into its own subtree;
//! - no other client writes a file that takes another inode's name: its content is committed;
//! - the checks come in the order of the kernel and ext4.

pub mod elsewhere;
pub mod relocate;

use mfs::{Stop, Txn, Within};
use proto::mds::{LEAVE_WHITEOUT, OpReply};
use proto::wire::Appended;
use types::{Attr, Bug, Fault, FileKind, Ino, Name, Rights, planted};

use super::remove::{need_target, remove_entry};
use crate::context::OpContext;
use crate::leases::RENAME_GATE;
use crate::recovery::kept_results::Outcome;
use crate::uncommitted::MetaItem;

const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// Renames `from` to `to`, of whichever shards they are.
pub fn any(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    from: (Ino, &Name),
    to: (Ino, &Name),
    flags: u32,
    unused: Option<Ino>,
) -> Result<OpReply, Stop> {
    match elsewhere::concerns_others(cx, txn, from, to)? {
        true => elsewhere::rename(cx, txn, from, to, flags),
        false => rename(cx, txn, from, to, flags, unused),
    }
}

/// Renames `from` to `to`, both of this shard.
fn rename(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    from: (Ino, &Name),
    to: (Ino, &Name),
    flags: u32,
    unused: Option<Ino>,
) -> Result<OpReply, Stop> {
    let (no_replace, exchange) = (flags & NO_REPLACE != 0, flags & EXCHANGE != 0);
    let whiteout = flags & LEAVE_WHITEOUT != 0;
    let known = NO_REPLACE | EXCHANGE | LEAVE_WHITEOUT;
    if flags & !known != 0 || (exchange && (no_replace || whiteout)) {
        return Err(Fault::Invalid.into());
    }
    let from_attr = cx.dir(txn, from.0)?;
    let to_attr = cx.live_dir(txn, to.0)?;
    let items = [MetaItem::Name(from.0, from.1.clone()), MetaItem::Name(to.0, to.1.clone())];
    cx.effects.reads.extend(items.iter().cloned());
    let source = txn.names().lookup(from.0, from.1)?.ok_or(Stop::Fault(Fault::NotFound))?;
    let source = cx.attr(txn, source)?;
    let target = match txn.names().lookup(to.0, to.1)? {
        Some(ino) => Some(cx.attr(txn, ino)?),
        None => None,
    };
    if no_replace && target.is_some() {
        return Err(Fault::Exists.into());
    }
    if exchange && target.is_none() {
        return Err(Fault::NotFound.into());
    }
    let directories = [Some(source), target].into_iter().flatten();
    let moves_directory =
        from.0 != to.0 && directories.into_iter().any(|a| a.kind == FileKind::Directory);
    if moves_directory {
        cx.need(RENAME_GATE, Rights::empty());
        if !planted(Bug::CircleUnchecked) {
            check_cycle(cx, txn, (from.0, to.0), &source, target.as_ref(), exchange)?;
        }
    }
    if let Some(target) = &target {
        if target.ino == source.ino {
            // Two names of one inode: POSIX requires that nothing happens.
            let (from, to) = (cx.leased(from_attr), cx.leased(to_attr));
            let source = cx.seen(source);
            cx.ready()?;
            let (moved, replaced) = (cx.leased(source), Some(source));
            let whiteout = Appended(None);
            return Ok(OpReply::Renamed { moved, replaced, from, to, kept: true, whiteout });
        }
        if !exchange {
            check_replace(cx, txn, &source, target)?;
        }
    }
    for dir in [from.0, to.0] {
        cx.need(dir, Rights::NAMES | Rights::ATTR);
    }
    // A client that writes a file hands it over before the file takes another inode's name. If that
    // client dies, the name leads to the old content or to the new.
    let writes = |attr: &Attr| match attr.kind {
        FileKind::Regular if target.is_some() => Rights::WRITES,
        _ => Rights::empty(),
    };
    cx.need(source.ino, Rights::ATTR | writes(&source));
    match &target {
        Some(target) if exchange => cx.need(target.ino, Rights::ATTR | writes(target)),
        Some(target) => need_target(cx, target),
        None => {}
    }
    let seen = cx.seen(source);
    cx.ready()?;
    let plan = RenamePlan { from, to, source, target, exchange };
    let (moved, replaced) = plan.apply(cx, txn, unused)?;
    let left = match whiteout {
        true => Some(super::create::whiteout(cx, txn, from, replayed_whiteout(cx).as_ref())?),
        false => None,
    };
    let (from_attr, to_attr) = plan.touch_dirs(cx, txn)?;
    cx.effects.reads.extend([MetaItem::Attr(source.ino), MetaItem::Attr(to.0)]);
    cx.effects.changes.extend(items);
    cx.effects.changes.extend([MetaItem::Names(from.0), MetaItem::Names(to.0)]);
    cx.effects.changes.push(MetaItem::Attr(source.ino));
    if [Some(&source), target.as_ref()].into_iter().flatten().any(is_dir) {
        // The directories' link counts change.
        cx.effects.changes.extend([MetaItem::Attr(from.0), MetaItem::Attr(to.0)]);
    }
    if let Some(target) = &target {
        cx.effects.reads.push(MetaItem::Attr(target.ino));
        cx.effects.changes.push(MetaItem::Attr(target.ino));
    }
    let over = replaced.map_or(Ino::NONE, |attr| attr.ino);
    cx.effects.outcome = Some(match &left {
        Some(left) => Outcome::MovedLeaving(source.ino, over, left.ino),
        None => Outcome::Moved(source.ino, over),
    });
    let whiteout = Appended(left.map(|left| cx.leased(left)));
    let moved = Attr { size: seen.size, blocks: seen.blocks, mtime: seen.mtime, ..moved };
    let (moved, from, to) = (cx.leased(moved), cx.leased(from_attr), cx.leased(to_attr));
    let kept = cx.open_elsewhere(over);
    Ok(OpReply::Renamed { moved, replaced, from, to, kept, whiteout })
}

/// Of a replay: the whiteout as it was answered.
fn replayed_whiteout(cx: &OpContext<'_>) -> Option<Attr> {
    match cx.replayed {
        Some(OpReply::Renamed { whiteout, .. }) => whiteout.0.as_ref().map(|leased| leased.attr),
        _ => None,
    }
}

/// A directory must not move into its own subtree, nor be replaced by something inside it.
fn check_cycle(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    (from, to): (Ino, Ino),
    source: &Attr,
    target: Option<&Attr>,
    exchange: bool,
) -> Result<(), Stop> {
    if source.kind == FileKind::Directory && is_within(cx, txn, to, source.ino)? {
        return Err(Fault::Invalid.into());
    }
    if let Some(target) = target.filter(|target| target.kind == FileKind::Directory)
        && is_within(cx, txn, from, target.ino)?
    {
        return Err(if exchange { Fault::Invalid } else { Fault::NotEmpty }.into());
    }
    Ok(())
}

/// Is `ancestor` the directory `dir` or above it?
fn is_within(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    dir: Ino,
    ancestor: Ino,
) -> Result<bool, Stop> {
    match txn.names().is_within(dir, ancestor)? {
        Within::Yes => Ok(true),
        Within::No => Ok(false),
        // It was not when it was executed, and nothing of that order has changed since.
        Within::Leaves(_) if cx.replay => Ok(false),
        // Only the other shards know what is above their directories.
        Within::Leaves(at) => relocate::is_above(cx, ancestor, at),
    }
}

fn check_replace(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    source: &Attr,
    target: &Attr,
) -> Result<(), Stop> {
    let directory = |attr: &Attr| attr.kind == FileKind::Directory;
    match (directory(source), directory(target)) {
        (true, false) => Err(Fault::NotDirectory.into()),
        (false, true) => Err(Fault::IsDirectory.into()),
        (true, true) => {
            cx.effects.reads.push(MetaItem::Names(target.ino));
            if txn.names().is_empty(target.ino)? { Ok(()) } else { Err(Fault::NotEmpty.into()) }
        }
        (false, false) => Ok(()),
    }
}

struct RenamePlan<'a> {
    from: (Ino, &'a Name),
    to: (Ino, &'a Name),
    source: Attr,
    target: Option<Attr>,
    exchange: bool,
}

fn is_dir(attr: &Attr) -> bool {
    attr.kind == FileKind::Directory
}

impl RenamePlan<'_> {
    /// Moves the names; returns the moved inode and the replaced one as they are then.
    fn apply(
        &self,
        cx: &mut OpContext<'_>,
        txn: &mut Txn<'_>,
        unused: Option<Ino>,
    ) -> Result<(Attr, Option<Attr>), Stop> {
        let mut replaced = None;
        if self.exchange {
            txn.names().exchange(self.from, self.to)?;
            if let Some(target) = self.target {
                replaced = Some(self.stamp(cx, txn, target)?);
            }
        } else {
            if let Some(target) = self.target {
                replaced = Some(remove_entry(cx, txn, self.to, target, unused)?);
            }
            txn.names().rename(self.from.0, self.from.1, self.to.0, self.to.1)?;
        }
        Ok((self.stamp(cx, txn, self.source)?, replaced))
    }

    fn stamp(&self, cx: &OpContext<'_>, txn: &mut Txn<'_>, mut attr: Attr) -> Result<Attr, Stop> {
        attr.ctime = attr.ctime.max(cx.now);
        attr.version += 1;
        txn.names().set_attr(&attr)?;
        Ok(attr)
    }

    /// Updates times and link counts of both directories. It reads them again: one of them may be
    /// what was moved.
    fn touch_dirs(&self, cx: &mut OpContext<'_>, txn: &mut Txn<'_>) -> Result<(Attr, Attr), Stop> {
        let source = i64::from(is_dir(&self.source));
        let kept = planted(Bug::ReplacedLinkKept);
        let target = i64::from(self.target.as_ref().is_some_and(is_dir) && !kept);
        let (left, came) = if self.exchange {
            (target - source, source - target)
        } else {
            (-source, source - target)
        };
        let mut from = cx.dir(txn, self.from.0)?;
        let changed = if self.from.0 == self.to.0 { left + came } else { left };
        from.nlink = (i64::from(from.nlink) + changed).max(2) as u32;
        cx.touch_dir(txn, &mut from)?;
        if self.from.0 == self.to.0 {
            return Ok((from, from));
        }
        let mut to = cx.dir(txn, self.to.0)?;
        to.nlink = (i64::from(to.nlink) + came).max(2) as u32;
        cx.touch_dir(txn, &mut to)?;
        Ok((from, to))
    }
}

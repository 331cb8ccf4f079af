//! What one shard does of a rename that concerns several.
//!
//! Each shard has the names in its directories and the inodes that live there. The shard of the
//! root has the order of all directories, too: the rename gate of the namespace.
//!
//! Invariants:
//! - the names are as the coordinator has seen them, or the share is refused as busy;
//! - a directory is closed before the shard of the root opens the gate, and until it has its new
//!   parent: the next rename sees that one, or waits for it;
//! - a directory without a name on its shard names its parent, another inode counts its names on
//!   other shards.

use mfs::{Outside, Stop, Txn};
use types::{Attr, Fault, FileKind, Ino, Name, Rights};

use super::OpContext;
use crate::joint::{Ask, Known, Move, Moved};
use crate::leases::{NO_CLIENT, RENAME_GATE};
use crate::ops::remove::need_target;
use crate::uncommitted::MetaItem;

/// Does this shard's share of a rename. Yields what it has of it, as it is then.
///
/// # Errors
/// `Busy`: the names are others by now. `Invalid`, `NotEmpty`: the rename is impossible. Else what
/// the store needs, or the end of the attempt.
pub fn share(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, it: &Move) -> Result<Moved, Stop> {
    cx.now = it.time;
    if it.reorders() && !cx.is_elsewhere(Ino::ROOT) {
        check_order(cx, it)?;
    }
    let before = read(cx, txn, it)?;
    need(cx, txn, it, &before)?;
    let seen = before.moved.map(|attr| cx.seen(attr));
    cx.ready()?;
    change_names(cx, txn, it)?;
    let mut after = Moved { from: None, to: None, moved: None, over: None };
    if let (Some(attr), Some(seen)) = (before.moved, seen) {
        let Attr { size, blocks, mtime, .. } = seen;
        let moved = settle(cx, txn, attr, it.from, Some(it.to))?;
        after.moved = Some(Attr { size, blocks, mtime, ..moved });
    }
    if let Some(attr) = before.over {
        after.over = Some(settle(cx, txn, attr, it.to, it.exchange.then_some(it.from))?);
    }
    let moved = i64::from(it.kind == FileKind::Directory);
    let over = i64::from(it.over.is_some_and(|(_, kind)| kind == FileKind::Directory));
    let left = if it.exchange { over - moved } else { -moved };
    let came = moved - over;
    if it.from == it.to {
        after.from = touch(cx, txn, before.from, left + came)?;
        after.to = after.from;
    } else {
        after.from = touch(cx, txn, before.from, left)?;
        after.to = touch(cx, txn, before.to, came)?;
    }
    let names = [(it.from, &it.name), (it.to, &it.new_name)];
    for (dir, name) in names {
        if !cx.is_elsewhere(dir) {
            let item = MetaItem::Name(dir, name.clone());
            cx.effects.changes.extend([item, MetaItem::Names(dir), MetaItem::Attr(dir)]);
        }
    }
    let inodes = [before.moved, before.over].into_iter().flatten();
    cx.effects.changes.extend(inodes.map(|attr| MetaItem::Attr(attr.ino)));
    Ok(after)
}

/// One rename of the namespace at a time gives directories other parents. No directory gets into
/// its own subtree.
fn check_order(cx: &mut OpContext<'_>, it: &Move) -> Result<(), Stop> {
    cx.need(RENAME_GATE, Rights::empty());
    if cx.replay {
        return Ok(());
    }
    if it.kind == FileKind::Directory && is_above(cx, it.ino, it.to)? {
        return Err(Fault::Invalid.into());
    }
    if let Some((over, FileKind::Directory)) = it.over.filter(|_| it.exchange)
        && is_above(cx, over, it.from)?
    {
        return Err(Fault::Invalid.into());
    }
    Ok(())
}

/// Is `ancestor` the directory `dir` or above it, on whatever shards? The rename gate is stated.
///
/// # Errors
/// The end of the attempt, if it must be asked first.
pub fn is_above(cx: &mut OpContext<'_>, ancestor: Ino, dir: Ino) -> Result<bool, Stop> {
    match cx.learn(Ask::Above { dir, ancestor })? {
        Known::Above(above) => Ok(above),
        _ => Err(Fault::Protocol.into()),
    }
}

/// The attributes of what this shard has of the rename, before it.
fn read(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, it: &Move) -> Result<Moved, Stop> {
    let mut found = Moved { from: None, to: None, moved: None, over: None };
    if !cx.is_elsewhere(it.from) {
        found.from = Some(cx.dir(txn, it.from)?);
        expect(txn, it.from, &it.name, Some((it.ino, it.kind)))?;
    }
    if !cx.is_elsewhere(it.to) {
        found.to = Some(cx.live_dir(txn, it.to)?);
        expect(txn, it.to, &it.new_name, it.over)?;
    }
    if !cx.is_elsewhere(it.ino) {
        found.moved = Some(cx.attr(txn, it.ino)?);
    }
    if let Some((over, _)) = it.over.filter(|(over, _)| !cx.is_elsewhere(*over)) {
        found.over = Some(cx.attr(txn, over)?);
    }
    Ok(found)
}

fn expect(
    txn: &mut Txn<'_>,
    dir: Ino,
    name: &Name,
    leads_to: Option<(Ino, FileKind)>,
) -> Result<(), Stop> {
    match txn.names().entry(dir, name)? == leads_to {
        true => Ok(()),
        false => Err(Fault::Busy.into()),
    }
}

fn need(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, it: &Move, before: &Moved) -> Result<(), Stop> {
    // A directory that is elsewhere does not come here before the share is done.
    let over = it.over.map(|(over, _)| over);
    for ino in [it.from, it.to, it.ino].into_iter().chain(over) {
        if cx.is_elsewhere(ino) && cx.joint_is_asked() {
            cx.need(ino, Rights::empty());
        }
    }
    for dir in [before.from, before.to].into_iter().flatten() {
        cx.need(dir.ino, Rights::NAMES | Rights::ATTR);
    }
    // A client that writes a file hands it over before the file takes another inode's name.
    let writes = |attr: &Attr| match attr.kind {
        FileKind::Regular if it.over.is_some() => Rights::WRITES,
        _ => Rights::empty(),
    };
    if let Some(moved) = &before.moved {
        cx.need(moved.ino, Rights::ATTR | writes(moved));
    }
    match &before.over {
        Some(over) if it.exchange => cx.need(over.ino, Rights::ATTR | writes(over)),
        Some(over) => {
            if over.kind == FileKind::Directory {
                cx.effects.reads.push(MetaItem::Names(over.ino));
                if !txn.names().is_empty(over.ino)? {
                    return Err(Fault::NotEmpty.into());
                }
            }
            need_target(cx, over);
        }
        None => {}
    }
    Ok(())
}

/// Changes the names that lie in directories of this shard.
fn change_names(cx: &OpContext<'_>, txn: &mut Txn<'_>, it: &Move) -> Result<(), Stop> {
    let (from, to) = ((it.from, &it.name), (it.to, &it.new_name));
    let (from_here, to_here) = (!cx.is_elsewhere(it.from), !cx.is_elsewhere(it.to));
    if from_here && to_here && it.exchange {
        return txn.names().exchange(from, to);
    }
    if to_here && it.over.is_some() {
        txn.names().remove_name(it.to, &it.new_name)?;
    }
    if from_here && to_here {
        return txn.names().rename(it.from, &it.name, it.to, &it.new_name);
    }
    if from_here {
        txn.names().remove_name(it.from, &it.name)?;
        if let Some(over) = it.over.filter(|_| it.exchange) {
            add_name(cx, txn, from, over)?;
        }
    }
    if to_here {
        add_name(cx, txn, to, (it.ino, it.kind))?;
    }
    Ok(())
}

fn add_name(
    cx: &OpContext<'_>,
    txn: &mut Txn<'_>,
    (dir, name): (Ino, &Name),
    (ino, kind): (Ino, FileKind),
) -> Result<(), Stop> {
    match kind {
        _ if cx.is_elsewhere(ino) => txn.names().link_outside(dir, name, ino, kind),
        FileKind::Directory => txn.names().bring_home(dir, name, ino),
        _ => txn.names().link(dir, name, ino),
    }
}

/// An inode of this shard had a name in `was`, and has it in `is` instead; `None`: no more.
fn settle(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    mut attr: Attr,
    was: Ino,
    is: Option<Ino>,
) -> Result<Attr, Stop> {
    let (ino, directory) = (attr.ino, attr.kind == FileKind::Directory);
    let (lost, gained) = (cx.is_elsewhere(was), is.filter(|&dir| cx.is_elsewhere(dir)));
    if directory {
        match gained {
            Some(parent) => txn.names().set_outside(ino, Some(Outside::Parent(parent)))?,
            None if lost => txn.names().set_outside(ino, None)?,
            None => {}
        }
    } else if lost != gained.is_some() {
        let count = match txn.names().outside(ino)? {
            Some(Outside::Names(count)) => count,
            Some(Outside::Parent(_)) => return Err(Fault::Corrupt.into()),
            None => 0,
        };
        let count = if lost { count.checked_sub(1) } else { count.checked_add(1) };
        let count = count.ok_or(Stop::Fault(Fault::Corrupt))?;
        txn.names().set_outside(ino, (count > 0).then_some(Outside::Names(count)))?;
    }
    if is.is_none() {
        attr.nlink = if directory { 0 } else { attr.nlink.saturating_sub(1) };
    }
    attr.ctime = attr.ctime.max(cx.now);
    attr.version += 1;
    txn.names().set_attr(&attr)?;
    if attr.nlink == 0 {
        // No client knows of it yet, not even the one that asks for it.
        cx.effects.orphaned.push((ino, NO_CLIENT));
    }
    Ok(attr)
}

/// A directory of this shard has other names, and so many links more.
fn touch(
    cx: &OpContext<'_>,
    txn: &mut Txn<'_>,
    dir: Option<Attr>,
    links: i64,
) -> Result<Option<Attr>, Stop> {
    let Some(dir) = dir else { return Ok(None) };
    // Read again: a directory may be what was moved.
    let mut dir = txn.names().attr(dir.ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    dir.nlink = (i64::from(dir.nlink) + links).max(2) as u32;
    cx.touch_dir(txn, &mut dir)?;
    Ok(Some(dir))
}

//! Taking names away: unlink, rmdir, and what both share with a rename over a name.

use proto::mds::{InoRef, OpReply};
use store::{Stop, Txn};
use types::{Attr, Bug, Fault, FileKind, Ino, Name, Rights, planted};

use crate::cx::Cx;
use crate::freer::NOBODY;
use crate::recent::Unit;
use crate::record::Outcome;

pub fn unlink(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    dir: &InoRef,
    name: &Name,
    unused: Option<Ino>,
) -> Result<OpReply, Stop> {
    let dir = cx.resolve(dir)?;
    let mut dir_attr = cx.dir(txn, dir)?;
    cx.effects.reads.push(Unit::Name(dir, name.clone()));
    let ino = txn.lookup(dir, name)?.ok_or(Stop::Fault(Fault::NotFound))?;
    let attr = cx.attr(txn, ino)?;
    if attr.kind == FileKind::Directory {
        return Err(Fault::IsDirectory.into());
    }
    cx.need(dir, Rights::NAMES | Rights::ATTR);
    need_target(cx, &attr);
    cx.ready()?;
    let attr = take_name(cx, txn, (dir, name), attr, unused)?;
    cx.touch_dir(txn, &mut dir_attr)?;
    finish(cx, dir, name, ino);
    Ok(OpReply::Removed { ino, attr, dir: cx.leased(dir_attr), kept: cx.open_elsewhere(ino) })
}

pub fn rmdir(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    dir: &InoRef,
    name: &Name,
) -> Result<OpReply, Stop> {
    let dir = cx.resolve(dir)?;
    let mut dir_attr = cx.dir(txn, dir)?;
    cx.effects.reads.push(Unit::Name(dir, name.clone()));
    let ino = txn.lookup(dir, name)?.ok_or(Stop::Fault(Fault::NotFound))?;
    let attr = cx.dir(txn, ino)?;
    cx.effects.reads.push(Unit::Names(ino));
    if !txn.is_empty(ino)? && !planted(Bug::EmptyUnchecked) {
        return Err(Fault::NotEmpty.into());
    }
    cx.need(dir, Rights::NAMES | Rights::ATTR);
    need_target(cx, &attr);
    cx.ready()?;
    let attr = take_name(cx, txn, (dir, name), attr, None)?;
    if !planted(Bug::ParentLinkKept) {
        dir_attr.nlink = dir_attr.nlink.saturating_sub(1);
    }
    cx.touch_dir(txn, &mut dir_attr)?;
    cx.effects.changes.push(Unit::Attr(dir));
    finish(cx, dir, name, ino);
    Ok(OpReply::Removed { ino, attr, dir: cx.leased(dir_attr), kept: cx.open_elsewhere(ino) })
}

fn finish(cx: &mut Cx<'_>, dir: Ino, name: &Name, ino: Ino) {
    cx.effects.reads.push(Unit::Attr(ino));
    let unit = Unit::Name(dir, name.clone());
    cx.effects.changes.extend([unit, Unit::Names(dir), Unit::Attr(ino)]);
    cx.effects.outcome = Some(Outcome::Inode(ino));
}

/// What is needed of an inode that is to lose a name.
pub fn need_target(cx: &mut Cx<'_>, attr: &Attr) {
    let directory = attr.kind == FileKind::Directory;
    cx.need(attr.ino, if directory { Rights::NAMES | Rights::ATTR } else { Rights::ATTR });
    if directory || attr.nlink <= 1 {
        cx.need_open_answers(attr.ino);
    }
}

/// Takes `name` away from the inode of `attr`, from a directory its only one. With its last name
/// gone an inode is an orphan; a small one that nobody uses goes with its name.
pub fn take_name(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    (dir, name): (Ino, &Name),
    mut attr: Attr,
    unused: Option<Ino>,
) -> Result<Attr, Stop> {
    let directory = attr.kind == FileKind::Directory;
    let goes = attr.nlink == 1 && !directory && is_unused(cx, attr.ino, unused);
    attr.nlink = if directory { 0 } else { attr.nlink.saturating_sub(1) };
    attr.ctime = attr.ctime.max(cx.now);
    attr.version += 1;
    if goes && txn.free_with_name(dir, name)?.is_some() {
        cx.effects.drops.push((cx.client, attr.ino));
        return Ok(attr);
    }
    txn.remove_name(dir, name)?;
    txn.set_attr(&attr)?;
    if attr.nlink == 0 {
        // Who removes a directory returns nothing of it by itself.
        let returns = if directory { NOBODY } else { cx.client };
        cx.effects.nameless.push((attr.ino, returns));
        if unused == Some(attr.ino) && !cx.open_elsewhere(attr.ino) {
            cx.effects.drops.push((cx.client, attr.ino));
        }
    }
    Ok(attr)
}

/// Does nobody hold anything of the inode, but for what the client that asks gives up with this
/// request? What a replay finds says nothing of that: not everybody has reclaimed yet.
fn is_unused(cx: &Cx<'_>, ino: Ino, unused: Option<Ino>) -> bool {
    let leases = cx.server.leases.borrow();
    let given_up = unused == Some(ino) || leases.rights(cx.client, ino).is_empty();
    let promised = cx.effects.wants.iter().chain(&cx.effects.grants).any(|(of, _)| *of == ino)
        || cx.effects.found.contains(&ino);
    !cx.replay
        && cx.server.freer.is_allowed()
        && given_up
        && !promised
        && leases.others(cx.client, ino).is_empty()
}

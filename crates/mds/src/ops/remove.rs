//! Taking names away: unlink, rmdir, and what both share with a rename over a name.

use proto::mds::{InoRef, OpReply};
use store::{Stop, Txn};
use types::{Attr, Bug, Fault, FileKind, Ino, Name, Rights, planted};

use crate::cx::Cx;
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
    txn.remove_name(dir, name)?;
    let attr = unname(cx, txn, attr, unused)?;
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
    txn.remove_name(dir, name)?;
    let attr = unname(cx, txn, attr, None)?;
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

/// The inode has lost a name, a directory its only one. With its last name gone it is an orphan.
pub fn unname(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    mut attr: Attr,
    unused: Option<Ino>,
) -> Result<Attr, Stop> {
    let directory = attr.kind == FileKind::Directory;
    attr.nlink = if directory { 0 } else { attr.nlink.saturating_sub(1) };
    attr.ctime = attr.ctime.max(cx.now);
    attr.version += 1;
    txn.set_attr(&attr)?;
    if attr.nlink == 0 {
        cx.effects.nameless.push(attr.ino);
        if unused == Some(attr.ino) && !cx.open_elsewhere(attr.ino) {
            cx.effects.drops.push((cx.client, attr.ino));
        }
    }
    Ok(attr)
}

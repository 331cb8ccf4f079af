//! Removes names: unlink, rmdir, and what both share with a rename over a name.

use mfs::{Stop, Txn};
use proto::mds::OpReply;
use types::{Attr, Bug, Fault, FileKind, Ino, Name, Rights, planted};

use super::spread;
use crate::context::{OpContext, elsewhere};
use crate::joint::{Answer, Part};
use crate::leases::NO_CLIENT;
use crate::recovery::kept_results::Outcome;
use crate::uncommitted::MetaItem;

/// Removes a name of an inode that is not a directory.
pub fn unlink(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    dir: Ino,
    name: &Name,
    unused: Option<Ino>,
) -> Result<OpReply, Stop> {
    let mut dir_attr = cx.dir(txn, dir)?;
    cx.effects.reads.push(MetaItem::Name(dir, name.clone()));
    let (ino, kind) = txn.names().entry(dir, name)?.ok_or(Stop::Fault(Fault::NotFound))?;
    if kind == FileKind::Directory {
        return Err(Fault::IsDirectory.into());
    }
    if cx.is_elsewhere(ino) {
        return remove_elsewhere(cx, txn, (dir_attr, name), (ino, kind));
    }
    let attr = cx.attr(txn, ino)?;
    cx.need(dir, Rights::NAMES | Rights::ATTR);
    need_target(cx, &attr);
    cx.ready()?;
    let attr = remove_entry(cx, txn, (dir, name), attr, unused)?;
    spread::names_went(cx, txn, &mut dir_attr)?;
    cx.touch_dir(txn, &mut dir_attr)?;
    record_removal(cx, dir, name, ino);
    Ok(OpReply::Removed { ino, attr, dir: cx.leased(dir_attr), kept: cx.open_elsewhere(ino) })
}

/// Removes an empty directory.
pub fn rmdir(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    dir: Ino,
    name: &Name,
) -> Result<OpReply, Stop> {
    let mut dir_attr = cx.dir(txn, dir)?;
    cx.effects.reads.push(MetaItem::Name(dir, name.clone()));
    let (ino, kind) = txn.names().entry(dir, name)?.ok_or(Stop::Fault(Fault::NotFound))?;
    if cx.is_elsewhere(ino) {
        if kind != FileKind::Directory {
            return Err(Fault::NotDirectory.into());
        }
        return remove_elsewhere(cx, txn, (dir_attr, name), (ino, kind));
    }
    let attr = cx.dir(txn, ino)?;
    cx.effects.reads.push(MetaItem::Names(ino));
    if !txn.names().is_empty(ino)? && !planted(Bug::EmptyUnchecked) {
        return Err(Fault::NotEmpty.into());
    }
    cx.need(dir, Rights::NAMES | Rights::ATTR);
    need_target(cx, &attr);
    cx.ready()?;
    let attr = remove_entry(cx, txn, (dir, name), attr, None)?;
    if !planted(Bug::ParentLinkKept) {
        dir_attr.nlink = dir_attr.nlink.saturating_sub(1);
    }
    cx.touch_dir(txn, &mut dir_attr)?;
    cx.effects.changes.push(MetaItem::Attr(dir));
    record_removal(cx, dir, name, ino);
    Ok(OpReply::Removed { ino, attr, dir: cx.leased(dir_attr), kept: cx.open_elsewhere(ino) })
}

/// Removes a name of an inode that lives on another shard, which removes the inode or counts the
/// name.
fn remove_elsewhere(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    (mut dir, name): (Attr, &Name),
    (ino, kind): (Ino, FileKind),
) -> Result<OpReply, Stop> {
    cx.need(dir.ino, Rights::NAMES | Rights::ATTR);
    cx.ready()?;
    let is_directory = kind == FileKind::Directory;
    let Some(answers) = &cx.joint else {
        let time = cx.now;
        let part = match is_directory {
            true => Part::RemoveDirectory { ino, time },
            false => Part::LoseName { ino, time },
        };
        return cx.plan(vec![(cx.home(ino), part)]);
    };
    let attr = match answers.first() {
        Some(Answer::Changed { attr }) => *attr,
        _ => elsewhere(ino, kind),
    };
    txn.names().remove_name(dir.ino, name)?;
    if is_directory {
        dir.nlink = dir.nlink.saturating_sub(1);
        cx.effects.changes.push(MetaItem::Attr(dir.ino));
    }
    spread::names_went(cx, txn, &mut dir)?;
    cx.touch_dir(txn, &mut dir)?;
    record_removal(cx, dir.ino, name, ino);
    Ok(OpReply::Removed { ino, attr, dir: cx.leased(dir), kept: true })
}

fn record_removal(cx: &mut OpContext<'_>, dir: Ino, name: &Name, ino: Ino) {
    cx.effects.reads.push(MetaItem::Attr(ino));
    let item = MetaItem::Name(dir, name.clone());
    cx.effects.changes.extend([item, MetaItem::Names(dir), MetaItem::Attr(ino)]);
    cx.effects.outcome = Some(Outcome::Inode(ino));
}

/// States what is needed of an inode that is to lose a name.
pub fn need_target(cx: &mut OpContext<'_>, attr: &Attr) {
    let directory = attr.kind == FileKind::Directory;
    cx.need(attr.ino, if directory { Rights::NAMES | Rights::ATTR } else { Rights::ATTR });
    if directory || attr.nlink <= 1 {
        cx.need_open_answers(attr.ino);
    }
}

/// Removes `name` of the inode of `attr` (of a directory its only one). An inode without names is
/// an orphan; a small file that nobody uses is freed together with its last name.
pub fn remove_entry(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    (dir, name): (Ino, &Name),
    mut attr: Attr,
    unused: Option<Ino>,
) -> Result<Attr, Stop> {
    let directory = attr.kind == FileKind::Directory;
    let freed_with_name = attr.nlink == 1 && !directory && is_unused(cx, attr.ino, unused);
    attr.nlink = if directory { 0 } else { attr.nlink.saturating_sub(1) };
    attr.ctime = attr.ctime.max(cx.now);
    attr.version += 1;
    if freed_with_name && txn.names().free_with_name(dir, name)?.is_some() {
        cx.effects.drops.push((cx.client, attr.ino));
        return Ok(attr);
    }
    txn.names().remove_name(dir, name)?;
    txn.names().set_attr(&attr)?;
    if attr.nlink == 0 {
        // A client that removes a directory gives up nothing on it by itself.
        let returns = if directory { NO_CLIENT } else { cx.client };
        cx.effects.orphaned.push((attr.ino, returns));
        if unused == Some(attr.ino) && !cx.open_elsewhere(attr.ino) {
            cx.effects.drops.push((cx.client, attr.ino));
        }
    }
    Ok(attr)
}

/// Does nobody hold anything of the inode, except for what the asking client gives up with this
/// request? During a replay the table does not say: not every client has reclaimed yet.
fn is_unused(cx: &OpContext<'_>, ino: Ino, unused: Option<Ino>) -> bool {
    let leases = cx.server.leases.table();
    let given_up = unused == Some(ino) || leases.rights(cx.client, ino).is_empty();
    let wanted = cx.effects.wants.iter().chain(&cx.effects.grants).any(|(of, _)| *of == ino)
        || cx.effects.found.contains(&ino);
    !cx.replay
        && cx.server.orphans.is_allowed()
        && given_up
        && !wanted
        && leases.others(cx.client, ino).is_empty()
}

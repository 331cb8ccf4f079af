//! Renames that concern another shard, as their coordinator plans and applies them.
//!
//! | what | shards that have a share ([`relocate`]) |
//! |---|---|
//! | any | those of both directories |
//! | what moves | its own, if it counts more or fewer names elsewhere, has another parent, or replaces something |
//! | what has the new name | its own |
//! | a directory gets another parent | that of the root, which orders such renames |
//!
//! The coordinator is the server of the directory of the old name. What the new name leads to it
//! asks, if the other directory is elsewhere; the share there holds only if that is still so.

use mfs::{Stop, Txn};
use proto::mds::{LEAVE_WHITEOUT, OpReply};
use proto::wire::Appended;
use types::{Attr, Fault, FileKind, Ino, Name, Rights};

use super::{EXCHANGE, NO_REPLACE, OpContext, Outcome, relocate};
use crate::context::elsewhere;
use crate::joint::{Answer, Ask, Known, Move, Moved, Part};
use crate::uncommitted::MetaItem;

/// Does the rename concern another shard?
///
/// # Errors
/// As a lookup of both names.
pub fn concerns_others(
    cx: &OpContext<'_>,
    txn: &mut Txn<'_>,
    from: (Ino, &Name),
    to: (Ino, &Name),
) -> Result<bool, Stop> {
    if !cx.server.joint.has_peers() {
        return Ok(false);
    }
    if cx.is_elsewhere(from.0) || cx.is_elsewhere(to.0) {
        return Ok(true);
    }
    for (dir, name) in [from, to] {
        if let Some((ino, kind)) = txn.names().entry(dir, name)? {
            // The shard of the root orders renames of directories.
            let ordered = from.0 != to.0 && kind == FileKind::Directory;
            if cx.is_elsewhere(ino) || ordered && cx.is_elsewhere(Ino::ROOT) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// See the module.
///
/// # Errors
/// The fault of the operation, or the end of its plan.
pub fn rename(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    from: (Ino, &Name),
    to: (Ino, &Name),
    flags: u32,
) -> Result<OpReply, Stop> {
    if let Some(answers) = &cx.joint {
        let it = answers.part().and_then(Part::as_move);
        let it = it.ok_or(Stop::Fault(Fault::Protocol))?.clone();
        let others: Vec<Moved> = answers.all().filter_map(moved).collect();
        return apply(cx, txn, &it, flags, others);
    }
    let (no_replace, exchange) = (flags & NO_REPLACE != 0, flags & EXCHANGE != 0);
    let known = NO_REPLACE | EXCHANGE | LEAVE_WHITEOUT;
    if flags & !known != 0 || exchange && flags & !EXCHANGE != 0 {
        return Err(Fault::Invalid.into());
    }
    if cx.is_elsewhere(from.0) {
        return Err(Fault::Moved.into());
    }
    let from_attr = cx.dir(txn, from.0)?;
    let items = [MetaItem::Name(from.0, from.1.clone()), MetaItem::Name(to.0, to.1.clone())];
    cx.effects.reads.extend(items);
    let source = txn.names().entry(from.0, from.1)?.ok_or(Stop::Fault(Fault::NotFound))?;
    let over = target(cx, txn, from.0, to)?;
    if no_replace && over.is_some() {
        return Err(Fault::Exists.into());
    }
    if exchange && over.is_none() {
        return Err(Fault::NotFound.into());
    }
    if over.is_some_and(|(over, _)| over == source.0) {
        return same_inode(cx, txn, (from_attr, to.0), source);
    }
    let it = Move {
        from: from.0,
        name: from.1.clone(),
        to: to.0,
        new_name: to.1.clone(),
        ino: source.0,
        kind: source.1,
        over,
        exchange,
        time: cx.now,
    };
    check_kinds(&it)?;
    apply(cx, txn, &it, flags, Vec::new())
}

/// What the new name leads to.
fn target(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    from: Ino,
    (dir, name): (Ino, &Name),
) -> Result<Option<(Ino, FileKind)>, Stop> {
    if !cx.is_elsewhere(dir) {
        cx.live_dir(txn, dir)?;
        return txn.names().entry(dir, name);
    }
    // The old name stays what it is while the other shard is asked.
    cx.need(from, Rights::NAMES | Rights::ATTR);
    match cx.learn(Ask::Entry { dir, name: name.clone() })? {
        Known::Entry(found) => Ok(found),
        _ => Err(Fault::Protocol.into()),
    }
}

fn check_kinds(it: &Move) -> Result<(), Stop> {
    let directory = |kind| kind == FileKind::Directory;
    if it.ino == it.to {
        return Err(Fault::Invalid.into());
    }
    match it.over {
        Some((over, _)) if over == it.from && it.exchange => Err(Fault::Invalid.into()),
        Some((over, _)) if over == it.from => Err(Fault::NotEmpty.into()),
        Some((_, kind)) if !it.exchange => match (directory(it.kind), directory(kind)) {
            (true, false) => Err(Fault::NotDirectory.into()),
            (false, true) => Err(Fault::IsDirectory.into()),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Two names of one inode: POSIX requires that nothing happens.
fn same_inode(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    (from, to): (Attr, Ino),
    (ino, kind): (Ino, FileKind),
) -> Result<OpReply, Stop> {
    let mut read = |cx: &mut OpContext<'_>, ino, kind| match cx.is_elsewhere(ino) {
        true => Ok(elsewhere(ino, kind)),
        false => cx.attr(txn, ino),
    };
    let (moved, to) = (read(cx, ino, kind)?, read(cx, to, FileKind::Directory)?);
    cx.ready()?;
    Ok(OpReply::Renamed {
        moved: cx.leased(moved),
        replaced: Some(moved),
        from: cx.leased(from),
        to: cx.leased(to),
        kept: true,
        whiteout: Appended(None),
    })
}

fn moved(answer: &Answer) -> Option<Moved> {
    match answer {
        Answer::Moved { it } => Some(it.clone()),
        Answer::Done {} | Answer::Made { .. } | Answer::Changed { .. } | Answer::Added { .. } => {
            None
        }
    }
}

/// Does the coordinator's share, or plans the operation with it. `others`: what the other shards
/// have answered, if they have done theirs.
fn apply(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    it: &Move,
    flags: u32,
    others: Vec<Moved>,
) -> Result<OpReply, Stop> {
    let mut all = relocate::share(cx, txn, it)?;
    let left = match flags & LEAVE_WHITEOUT != 0 {
        true => Some(crate::ops::create::whiteout(cx, txn, (it.from, &it.name), None)?),
        false => None,
    };
    let home_of = |ino| cx.home(ino);
    let mut shards = it.shards(home_of);
    shards.remove(&cx.server.runtime.shard);
    if cx.joint.is_none() && !shards.is_empty() {
        let part = it.part(home_of);
        let part = |shard| (shard, part.clone());
        return cx.plan(shards.into_iter().map(part).collect());
    }
    all = others.into_iter().fold(all, Moved::join);
    let (Some(from), Some(to)) = (all.from, all.to) else { return Err(Fault::Protocol.into()) };
    let over = it.over.map_or(Ino::NONE, |(over, _)| over);
    cx.effects.outcome = Some(match &left {
        Some(left) => Outcome::MovedLeaving(it.ino, over, left.ino),
        None => Outcome::Moved(it.ino, over),
    });
    let replaced = it.over.map(|(ino, kind)| all.over.unwrap_or_else(|| elsewhere(ino, kind)));
    Ok(OpReply::Renamed {
        moved: cx.leased(all.moved.unwrap_or_else(|| elsewhere(it.ino, it.kind))),
        replaced,
        from: cx.leased(from),
        to: cx.leased(to),
        kept: true,
        whiteout: Appended(left.map(|left| cx.leased(left))),
    })
}

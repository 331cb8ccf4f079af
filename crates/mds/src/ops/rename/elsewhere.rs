//! Renames that concern another shard.
//!
//! | what | how |
//! |---|---|
//! | a file, a link or a device moves to a directory of another shard | that shard takes the name, and replaces what it has of its own there |
//! | a name that leads to another shard changes within its directory | here alone |
//! | the same moves to another directory here, and is no directory | here alone: the inode's names are counted, not where they lie |
//! | a directory moves to another directory, an exchange, a whiteout | `CrossDevice`: programs copy |
//!
//! A directory names its parent, and moves only where no cycle can come of it: that is a question
//! to all shards above it, which nobody asks yet.

use mfs::{Outside, Stop, Txn};
use proto::mds::OpReply;
use proto::wire::Appended;
use types::{Attr, Fault, FileKind, Ino, Name, Rights};

use super::{NO_REPLACE, OpContext, Outcome};
use crate::context::elsewhere;
use crate::joint::{Answer, Part};
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
        if let Some((ino, _)) = txn.names().entry(dir, name)?
            && cx.is_elsewhere(ino)
        {
            return Ok(true);
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
    if flags & !NO_REPLACE != 0 || cx.is_elsewhere(from.0) {
        return Err(Fault::CrossDevice.into());
    }
    let mut from_attr = cx.dir(txn, from.0)?;
    let (ino, kind) = txn.names().entry(from.0, from.1)?.ok_or(Stop::Fault(Fault::NotFound))?;
    if kind == FileKind::Directory && from.0 != to.0 {
        return Err(Fault::CrossDevice.into());
    }
    let items = [MetaItem::Name(from.0, from.1.clone()), MetaItem::Name(to.0, to.1.clone())];
    cx.effects.reads.extend(items.iter().cloned());
    if !cx.is_elsewhere(to.0) {
        return within_shard(cx, txn, (from, from_attr), to, (ino, kind), items);
    }
    cx.need(from.0, Rights::NAMES | Rights::ATTR);
    let moved = match cx.is_elsewhere(ino) {
        true => elsewhere(ino, kind),
        false => {
            let attr = cx.attr(txn, ino)?;
            // It may take another inode's name there: its content is committed before.
            let writes = if kind == FileKind::Regular { Rights::WRITES } else { Rights::empty() };
            cx.need(ino, Rights::ATTR | writes);
            cx.seen(attr)
        }
    };
    cx.ready()?;
    let Some(answers) = &cx.joint else {
        let (dir, name, replaces) = (to.0, to.1.clone(), flags & NO_REPLACE == 0);
        let part = Part::TakeName { dir, name, ino, kind, replaces, time: cx.now };
        return cx.plan(vec![(to.0.shard(), part)]);
    };
    let Some(&Answer::Came { dir: to_attr, replaced }) = answers.first() else {
        return Err(Fault::Protocol.into());
    };
    txn.names().remove_name(from.0, from.1)?;
    let moved = if cx.is_elsewhere(ino) { moved } else { goes_out(cx, txn, moved)? };
    cx.touch_dir(txn, &mut from_attr)?;
    cx.effects.changes.extend(items);
    cx.effects.changes.extend([MetaItem::Names(from.0), MetaItem::Attr(ino)]);
    let over = replaced.map_or(Ino::NONE, |attr| attr.ino);
    cx.effects.outcome = Some(Outcome::Moved(ino, over));
    Ok(OpReply::Renamed {
        moved: cx.leased(moved),
        replaced,
        from: cx.leased(from_attr),
        to: cx.leased(to_attr),
        kept: true,
        whiteout: Appended(None),
    })
}

/// A name of this inode has gone to another shard.
fn goes_out(cx: &OpContext<'_>, txn: &mut Txn<'_>, seen: Attr) -> Result<Attr, Stop> {
    let count = match txn.names().outside(seen.ino)? {
        Some(Outside::Names(count)) => count,
        Some(Outside::Parent(_)) => return Err(Fault::Corrupt.into()),
        None => 0,
    };
    txn.names().set_outside(seen.ino, Some(Outside::Names(count + 1)))?;
    let mut attr = txn.names().attr(seen.ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    attr.ctime = attr.ctime.max(cx.now);
    attr.version += 1;
    txn.names().set_attr(&attr)?;
    Ok(Attr { size: seen.size, blocks: seen.blocks, mtime: seen.mtime, ..attr })
}

/// A name that leads to another shard, or goes over such a name, changes here.
fn within_shard(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    (from, mut from_attr): ((Ino, &Name), Attr),
    to: (Ino, &Name),
    (ino, kind): (Ino, FileKind),
    items: [MetaItem; 2],
) -> Result<OpReply, Stop> {
    let mut to_attr = cx.live_dir(txn, to.0)?;
    if txn.names().entry(to.0, to.1)?.is_some() {
        // What is replaced loses a name: programs remove it first.
        return Err(Fault::CrossDevice.into());
    }
    for dir in [from.0, to.0] {
        cx.need(dir, Rights::NAMES | Rights::ATTR);
    }
    cx.ready()?;
    txn.names().rename(from.0, from.1, to.0, to.1)?;
    cx.touch_dir(txn, &mut from_attr)?;
    if from.0 == to.0 {
        to_attr = from_attr;
    } else {
        cx.touch_dir(txn, &mut to_attr)?;
    }
    cx.effects.changes.extend(items);
    cx.effects.changes.extend([MetaItem::Names(from.0), MetaItem::Names(to.0)]);
    cx.effects.outcome = Some(Outcome::Moved(ino, Ino::NONE));
    Ok(OpReply::Renamed {
        moved: cx.leased(elsewhere(ino, kind)),
        replaced: None,
        from: cx.leased(from_attr),
        to: cx.leased(to_attr),
        kept: true,
        whiteout: Appended(None),
    })
}

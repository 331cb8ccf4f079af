//! Further names of an inode.

use mfs::{Stop, Txn};
use proto::mds::OpReply;
use types::limits::LINK_MAX;
use types::{Fault, FileKind, Ino, Name, Rights};

use crate::context::OpContext;
use crate::joint::{Answer, Part};
use crate::recovery::kept_results::Outcome;
use crate::uncommitted::MetaItem;

/// Adds a name to an inode.
pub fn link(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    (dir, name): (Ino, &Name),
    tmpfile: bool,
) -> Result<OpReply, Stop> {
    if cx.is_elsewhere(ino) {
        if tmpfile {
            // An orphan there gets no name here.
            return Err(Fault::CrossDevice.into());
        }
        return link_elsewhere(cx, txn, ino, (dir, name));
    }
    let mut attr = cx.attr(txn, ino)?;
    let mut dir_attr = cx.live_dir(txn, dir)?;
    if attr.kind == FileKind::Directory {
        return Err(Fault::NotPermitted.into());
    }
    if txn.names().lookup(dir, name)?.is_some() {
        cx.effects.reads.push(MetaItem::Name(dir, name.clone()));
        return Err(Fault::Exists.into());
    }
    if attr.nlink >= LINK_MAX {
        return Err(Fault::TooManyLinks.into());
    }
    if attr.nlink == 0 && !tmpfile {
        // The client does not know yet that the last name went, perhaps with unwritten content.
        cx.effects.reads.push(MetaItem::Attr(ino));
        return Err(Fault::NotFound.into());
    }
    cx.need(dir, Rights::NAMES | Rights::ATTR);
    cx.need(ino, Rights::ATTR);
    let seen = cx.seen(attr);
    cx.ready()?;
    txn.names().link(dir, name, ino)?;
    if attr.nlink == 0 {
        cx.effects.relinked.push(ino);
    }
    attr.nlink += 1;
    attr.ctime = attr.ctime.max(cx.now);
    attr.version += 1;
    txn.names().set_attr(&attr)?;
    cx.touch_dir(txn, &mut dir_attr)?;
    let item = MetaItem::Name(dir, name.clone());
    cx.effects.reads.extend([item.clone(), MetaItem::Attr(dir), MetaItem::Attr(ino)]);
    cx.effects.changes.extend([item, MetaItem::Names(dir), MetaItem::Attr(ino)]);
    cx.effects.outcome = Some(Outcome::Inode(ino));
    let current = types::Attr { size: seen.size, blocks: seen.blocks, mtime: seen.mtime, ..attr };
    Ok(OpReply::Linked { leased: cx.leased(current), dir: cx.leased(dir_attr) })
}

/// Adds a name to an inode that lives on another shard.
fn link_elsewhere(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    (dir, name): (Ino, &Name),
) -> Result<OpReply, Stop> {
    let mut dir_attr = cx.live_dir(txn, dir)?;
    let item = MetaItem::Name(dir, name.clone());
    if txn.names().lookup(dir, name)?.is_some() {
        cx.effects.reads.push(item);
        return Err(Fault::Exists.into());
    }
    cx.need(dir, Rights::NAMES | Rights::ATTR);
    cx.ready()?;
    let Some(answers) = &cx.joint else {
        let time = cx.now;
        return cx.plan(vec![(cx.home(ino), Part::GainName { ino, time })]);
    };
    let Some(&Answer::Changed { attr }) = answers.first() else {
        return Err(Fault::Protocol.into());
    };
    txn.names().link_outside(dir, name, ino, attr.kind)?;
    cx.touch_dir(txn, &mut dir_attr)?;
    cx.effects.changes.extend([item, MetaItem::Names(dir)]);
    cx.effects.outcome = Some(Outcome::Inode(ino));
    Ok(OpReply::Linked { leased: cx.leased(attr), dir: cx.leased(dir_attr) })
}

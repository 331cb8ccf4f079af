//! Rights on content, and layouts.

use proto::mds::{InoRef, LayoutPart, OpReply};
use store::{Stop, Txn};
use types::limits::REPLY_EXTENTS_MAX;
use types::{Fault, FileBlock, FileKind, Ino, Rights};

use crate::cx::{Cx, possible};
use crate::recent::Unit;

const DATA: Rights = Rights::DATA_S.union(Rights::DATA_X);

pub fn acquire(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    ino: &InoRef,
    rights: Rights,
    from: FileBlock,
) -> Result<OpReply, Stop> {
    let ino = cx.resolve(ino)?;
    let attr = cx.attr(txn, ino)?;
    let rights = rights.closed();
    if rights.intersects(DATA) && attr.kind != FileKind::Regular {
        let directory = attr.kind == FileKind::Directory;
        return Err(if directory { Fault::IsDirectory } else { Fault::Invalid }.into());
    }
    if rights.contains(Rights::NAMES) && attr.kind != FileKind::Directory {
        return Err(Fault::NotDirectory.into());
    }
    cx.need(ino, rights.conflicts());
    // Without a claim on attributes, a writer elsewhere stays and is only asked.
    let told = if rights.conflicts().contains(Rights::DATA_X) { attr } else { cx.seen(attr) };
    cx.ready()?;
    cx.effects.grants.push((ino, rights & possible(attr.kind)));
    cx.effects.reads.push(Unit::Attr(ino));
    let layout = if rights.intersects(DATA) { Some(part(cx, txn, ino, from)?) } else { None };
    Ok(OpReply::Acquired { leased: cx.leased(told), layout })
}

pub fn layout(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    ino: &InoRef,
    from: FileBlock,
) -> Result<OpReply, Stop> {
    let ino = cx.resolve(ino)?;
    let attr = cx.attr(txn, ino)?;
    if attr.kind != FileKind::Regular {
        return Err(Fault::Invalid.into());
    }
    if !cx.server.leases.borrow().rights(cx.client, ino).intersects(DATA) {
        return Err(Fault::Stale.into());
    }
    Ok(OpReply::Layout { part: part(cx, txn, ino, from)? })
}

fn part(cx: &mut Cx<'_>, txn: &mut Txn<'_>, ino: Ino, from: FileBlock) -> Result<LayoutPart, Stop> {
    cx.effects.reads.push(Unit::Data(ino));
    let extents = txn.layout(ino, from, REPLY_EXTENTS_MAX)?;
    let to = match extents.last() {
        Some(last) if extents.len() >= REPLY_EXTENTS_MAX => last.end(),
        _ => u64::MAX,
    };
    let frozen = cx.server.quarantine.is_all_frozen() || txn.is_frozen(ino)?;
    Ok(LayoutPart { from, to, extents, frozen })
}

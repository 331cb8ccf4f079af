//! Explicit changes of attributes.

use mfs::{Stop, Txn};
use proto::mds::{OpReply, SetAttr, SetTime};
use types::{Attr, Bug, Fault, FileKind, Ino, Rights, Timestamp, planted};

use super::acl::{self, Acl};
use super::permission;
use crate::context::OpContext;
use crate::recovery::kept_results::Outcome;
use crate::uncommitted::MetaItem;

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o010;

/// Changes mode, owner and times of an inode.
pub fn set_attr(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    set: &SetAttr,
) -> Result<OpReply, Stop> {
    let mut attr = cx.attr(txn, ino)?;
    need_attributes(cx, &attr);
    cx.ready()?;
    check_owner(cx, &attr, set)?;
    if let Some(mode) = set.mode {
        attr.mode = mode & 0o7777;
        chmod_acl(txn, ino, attr.mode)?;
    }
    if set.kill_setid {
        attr.mode = without_setid(&attr);
    }
    attr.uid = set.uid.unwrap_or(attr.uid);
    let gid = set.gid.filter(|_| set.uid.is_none() || !planted(Bug::GroupKept));
    attr.gid = gid.unwrap_or(attr.gid);
    if set.mode.is_some() {
        attr.mode = permission::mode_of(cx, attr.mode, attr.gid);
    }
    let time = |set: &Option<SetTime>, old: Timestamp| match set {
        None => old,
        Some(SetTime::Now {}) => cx.now,
        Some(SetTime::At { time }) => *time,
    };
    attr.atime = time(&set.atime, attr.atime);
    attr.mtime = time(&set.mtime, attr.mtime);
    store_attr(cx, txn, attr)
}

/// The kernel checked the caller against the owner that it knew. If another client has changed the
/// owner since, only the present owner and root may change attributes.
fn check_owner(cx: &OpContext<'_>, attr: &Attr, set: &SetAttr) -> Result<(), Stop> {
    let times = set.atime.is_some() || set.mtime.is_some();
    let explicit = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || times;
    let caller = cx.principal.uid;
    if !explicit || cx.replay || set.judged_by == attr.uid || caller == 0 || caller == attr.uid {
        return Ok(());
    }
    Err(Fault::NotPermitted.into())
}

/// States that no other client may cache the attributes; a writer first hands over size and times.
pub fn need_attributes(cx: &mut OpContext<'_>, attr: &Attr) {
    let data = if attr.kind == FileKind::Regular { Rights::WRITES } else { Rights::empty() };
    cx.need(attr.ino, Rights::ATTR | data);
}

/// Stores changed attributes and replies with them.
pub fn store_attr(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    mut attr: Attr,
) -> Result<OpReply, Stop> {
    attr.ctime = attr.ctime.max(cx.now);
    attr.version += 1;
    txn.names().set_attr(&attr)?;
    let attr = cx.attr(txn, attr.ino)?;
    cx.effects.reads.push(MetaItem::Attr(attr.ino));
    cx.effects.changes.push(MetaItem::Attr(attr.ino));
    cx.effects.outcome = Some(Outcome::Done);
    Ok(OpReply::Attr { leased: cx.leased(attr) })
}

/// The mode without the set-id bits that a change of owner or content clears.
pub fn without_setid(attr: &Attr) -> u16 {
    if attr.kind == FileKind::Directory {
        return attr.mode;
    }
    let group = if attr.mode & S_IXGRP != 0 { S_ISGID } else { 0 };
    attr.mode & !(S_ISUID | group)
}

fn chmod_acl(txn: &mut Txn<'_>, ino: Ino, mode: u16) -> Result<(), Stop> {
    if let Some(bytes) = txn.names().xattr(ino, acl::ACCESS)? {
        let mut acl = Acl::parse(&bytes).map_err(Stop::Fault)?;
        acl.chmod(mode);
        txn.names().set_xattr(ino, acl::ACCESS, &acl.encode())?;
    }
    Ok(())
}

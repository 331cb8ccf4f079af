//! Extended attributes, POSIX ACLs among them.

use mfs::{Stop, Txn, ZoneKind};
use proto::mds::OpReply;
use proto::placement::{ATTRIBUTE, Home, Layout, Policy};
use proto::wire::Bytes;
use types::limits::{XATTR_NAME_MAX, XATTR_TOTAL_MAX, XATTR_VALUE_MAX};
use types::{Attr, Fault, FileKind, Ino, Rights};

use super::acl::{self, Acl};
use super::attr::{need_attributes, store_attr};
use super::{permission, spread};
use crate::context::OpContext;
use crate::uncommitted::MetaItem;

const CREATE: u32 = 1;
const REPLACE: u32 = 2;
/// A change of content removes this attribute.
const CAPABILITY: &[u8] = b"security.capability";
const S_ISGID: u16 = 0o2000;

/// A change of an attribute.
#[derive(Clone, Copy)]
pub struct XattrChange<'a> {
    pub value: &'a [u8],
    pub flags: u32,
    pub kill_setgid: bool,
}

/// Reads the value of an extended attribute.
pub fn get(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    name: &[u8],
    want: Rights,
) -> Result<OpReply, Stop> {
    check_name(name)?;
    let attr = cx.attr(txn, ino)?;
    cx.effects.reads.push(MetaItem::Attr(ino));
    let value = txn.names().xattr(ino, name)?.ok_or(Stop::Fault(Fault::NoAttribute))?;
    Ok(bytes_reply(cx, attr, value, want))
}

/// Lists the names of all extended attributes of an inode.
pub fn list(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    want: Rights,
) -> Result<OpReply, Stop> {
    let attr = cx.attr(txn, ino)?;
    cx.effects.reads.push(MetaItem::Attr(ino));
    let mut names = Vec::new();
    for (name, _) in txn.names().xattrs(ino)? {
        names.extend_from_slice(&name);
        names.push(0);
    }
    Ok(bytes_reply(cx, attr, names, want))
}

/// Replies with bytes, and with attributes and lease unless another client knows newer attributes.
fn bytes_reply(cx: &mut OpContext<'_>, attr: Attr, bytes: Vec<u8>, want: Rights) -> OpReply {
    let written = cx.server.leases.table().written_elsewhere(cx.client, attr.ino);
    let leased = (!written).then(|| {
        cx.want(&attr, want);
        cx.leased(attr)
    });
    OpReply::Bytes { bytes: Bytes(bytes), leased }
}

/// Sets an extended attribute.
pub fn set(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    name: &[u8],
    change: XattrChange<'_>,
) -> Result<OpReply, Stop> {
    check_name(name)?;
    if change.value.len() > XATTR_VALUE_MAX {
        return Err(Fault::TooBig.into());
    }
    let mut attr = cx.attr(txn, ino)?;
    cx.effects.reads.push(MetaItem::Attr(ino));
    check_kind(name, attr.kind)?;
    if name == ATTRIBUTE {
        check_layout(cx, txn, change.value)?;
    }
    let old = txn.names().xattr(ino, name)?;
    if change.flags & CREATE != 0 && old.is_some() {
        return Err(Fault::Exists.into());
    }
    if change.flags & REPLACE != 0 && old.is_none() {
        return Err(Fault::NoAttribute.into());
    }
    need_attributes(cx, &attr);
    cx.ready()?;
    let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
    let keep = if is_acl { set_acl(&mut attr, name, change)? } else { true };
    if name == acl::ACCESS {
        attr.mode = permission::mode_of(cx, attr.mode, attr.gid);
    }
    if keep {
        check_total(txn, &attr, name, change.value.len())?;
        txn.names().set_xattr(ino, name, change.value)?;
        if name == ATTRIBUTE && attr.kind == FileKind::Directory {
            attr.spread = spread::is_wanted(cx, txn, &attr, Some(change.value))?;
        }
    } else if old.is_some() {
        txn.names().remove_xattr(ino, name)?;
    }
    store_attr(cx, txn, attr)
}

/// Checks an ACL and adjusts the mode. False: there is nothing to store.
fn set_acl(attr: &mut Attr, name: &[u8], change: XattrChange<'_>) -> Result<bool, Stop> {
    if Acl::is_none(change.value) {
        return Ok(false);
    }
    let list = Acl::parse(change.value).map_err(Stop::Fault)?;
    if name == acl::DEFAULT {
        return Ok(true);
    }
    attr.mode = (attr.mode & !0o777) | list.mode();
    if change.kill_setgid {
        attr.mode &= !S_ISGID;
    }
    Ok(!list.is_minimal())
}

/// Removes an extended attribute.
pub fn remove(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    name: &[u8],
) -> Result<OpReply, Stop> {
    check_name(name)?;
    let mut attr = cx.attr(txn, ino)?;
    cx.effects.reads.push(MetaItem::Attr(ino));
    if txn.names().xattr(ino, name)?.is_none() {
        return Err(Fault::NoAttribute.into());
    }
    // Nobody but the writer of a file holds a right on its attributes. A recall may be waiting for
    // this writer, so its removal must not wait for anybody.
    let writes = cx.server.leases.table().rights(cx.client, ino).intersects(Rights::WRITES);
    if name != CAPABILITY || !writes {
        need_attributes(cx, &attr);
    }
    cx.ready()?;
    txn.names().remove_xattr(ino, name)?;
    if name == ATTRIBUTE && attr.kind == FileKind::Directory {
        attr.spread = spread::is_wanted(cx, txn, &attr, None)?;
    }
    store_attr(cx, txn, attr)
}

fn check_name(name: &[u8]) -> Result<(), Stop> {
    if name.len() > XATTR_NAME_MAX {
        return Err(Fault::Range.into());
    }
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name.contains(&0) || prefixes.contains(&name) {
        return Err(Fault::Invalid.into());
    }
    let spaced = prefixes.iter().any(|prefix| name.starts_with(prefix));
    if spaced || name == acl::ACCESS || name == acl::DEFAULT {
        Ok(())
    } else {
        Err(Fault::NotSupported.into())
    }
}

fn check_kind(name: &[u8], kind: FileKind) -> Result<(), Stop> {
    let fault = if name.starts_with(b"user.") {
        let holds = matches!(kind, FileKind::Regular | FileKind::Directory);
        (!holds).then_some(Fault::NotPermitted)
    } else if name == acl::DEFAULT {
        (kind != FileKind::Directory).then_some(Fault::AccessDenied)
    } else if name == ATTRIBUTE {
        let holds = matches!(kind, FileKind::Regular | FileKind::Directory);
        (!holds).then_some(Fault::Invalid)
    } else if name == acl::ACCESS {
        (kind == FileKind::Symlink).then_some(Fault::NotSupported)
    } else {
        None
    };
    fault.map_or(Ok(()), |fault| Err(fault.into()))
}

/// A layout must be one, and name only zones that exist and are of the kind that it is for.
pub fn check_layout(cx: &OpContext<'_>, txn: &mut Txn<'_>, value: &[u8]) -> Result<(), Stop> {
    let layout = Layout::from_attribute(value).map_err(|_| Stop::Fault(Fault::Invalid))?;
    if let Home::Shard(shard) = layout.home
        && shard != cx.server.runtime.shard
        && !cx.server.joint.is_peer(shard)
    {
        return Err(Fault::Invalid.into());
    }
    let pags = txn.space().pags()?;
    let kind = match layout.policy {
        Policy::Objects { .. } => ZoneKind::Target,
        Policy::FileRound | Policy::Striping { .. } => ZoneKind::Blocks,
    };
    let known = |zone| pags.iter().any(|pag| pag.id == zone && pag.kind == kind);
    if layout.zones.into_iter().all(known) { Ok(()) } else { Err(Fault::Invalid.into()) }
}

fn check_total(txn: &mut Txn<'_>, attr: &Attr, name: &[u8], len: usize) -> Result<(), Stop> {
    let mut total = name.len() + len;
    for (other, len) in txn.names().xattrs(attr.ino)? {
        if other != name {
            total += other.len() + len as usize;
        }
    }
    if total > XATTR_TOTAL_MAX { Err(Fault::NoSpace.into()) } else { Ok(()) }
}

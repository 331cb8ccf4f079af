//! Making inodes, with a name or without.

use proto::mds::{InoRef, NewNode, OpReply};
use proto::wire::Bytes;
use store::{NewInode, Stop, Txn};
use types::{Attr, Fault, FileKind, Ino, Name, Rights};

use super::acl::{self, Acl};
use crate::cx::Cx;
use crate::recent::Unit;
use crate::record::Outcome;

const S_ISGID: u16 = 0o2000;

pub fn create(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    dir: &InoRef,
    name: &Name,
    node: &NewNode,
    want: Rights,
) -> Result<OpReply, Stop> {
    let dir = cx.resolve(dir)?;
    let mut dir_attr = cx.live_dir(txn, dir)?;
    let unit = Unit::Name(dir, name.clone());
    cx.effects.reads.push(unit.clone());
    cx.need(dir, Rights::NAMES | Rights::ATTR);
    cx.ready()?;
    let plan = Plan::new(cx, txn, &dir_attr, node)?.or_as_answered(cx);
    let ino = txn.create(dir, name, &plan.inode(cx, node), given(cx))?;
    plan.store_acls(txn, ino)?;
    if node.kind == FileKind::Directory {
        dir_attr.nlink += 1;
        cx.effects.changes.push(Unit::Attr(dir));
    }
    cx.touch_dir(txn, &mut dir_attr)?;
    cx.effects.reads.push(Unit::Attr(dir));
    cx.effects.changes.extend([unit, Unit::Names(dir)]);
    finish(cx, txn, ino, want, dir_attr)
}

pub fn unnamed(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    dir: &InoRef,
    node: &NewNode,
    want: Rights,
) -> Result<OpReply, Stop> {
    let dir = cx.resolve(dir)?;
    let dir_attr = cx.live_dir(txn, dir)?;
    if node.kind != FileKind::Regular {
        return Err(Fault::Invalid.into());
    }
    let plan = Plan::new(cx, txn, &dir_attr, node)?.or_as_answered(cx);
    let ino = txn.create_orphan(&plan.inode(cx, node), given(cx))?;
    plan.store_acls(txn, ino)?;
    cx.effects.reads.push(Unit::Attr(dir));
    cx.effects.nameless.push((ino, cx.client));
    finish(cx, txn, ino, want | Rights::OPEN, dir_attr)
}

/// Leaves a whiteout under a name that has just been free, with `given` what a replay was answered.
/// As ext4 makes it: the caller's, and as the directory hands down. The caller sees to the
/// directory's times.
pub fn whiteout(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    (dir, name): (Ino, &Name),
    given: Option<&Attr>,
) -> Result<Attr, Stop> {
    let node = NewNode {
        kind: FileKind::CharDevice,
        mode: 0,
        umask: 0,
        rdev: 0,
        symlink: Bytes::default(),
    };
    let dir_attr = cx.dir(txn, dir)?;
    let mut plan = Plan::new(cx, txn, &dir_attr, &node)?;
    if let Some(given) = given {
        plan = Plan { mode: given.mode, gid: given.gid, ..plan };
    }
    let ino = txn.create(dir, name, &plan.inode(cx, &node), given.map(|attr| attr.ino))?;
    plan.store_acls(txn, ino)?;
    let attr = cx.attr(txn, ino)?;
    cx.want(&attr, Rights::ATTR | Rights::OPEN);
    cx.effects.changes.push(Unit::Attr(ino));
    Ok(attr)
}

/// Of a replay: the number that the inode had.
fn given(cx: &Cx<'_>) -> Option<Ino> {
    match cx.given {
        Some(OpReply::Created { leased, .. }) => Some(leased.attr.ino),
        _ => None,
    }
}

fn finish(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    want: Rights,
    dir: Attr,
) -> Result<OpReply, Stop> {
    let attr = cx.attr(txn, ino)?;
    self::want(cx, &attr, want);
    cx.effects.changes.push(Unit::Attr(ino));
    cx.effects.outcome = Some(Outcome::Inode(ino));
    let inline_max = inline_max(txn, &attr)?;
    Ok(OpReply::Created { leased: cx.leased(attr), dir: cx.leased(dir), inline_max })
}

/// The maker's rights: what it wants, if that can be granted; and what it counts as open from the
/// answer on is held open, however many leases there are.
pub fn want(cx: &mut Cx<'_>, attr: &Attr, want: Rights) {
    cx.want(attr, want);
    if want.contains(Rights::OPEN | Rights::DATA_X) {
        cx.effects.grants.push((attr.ino, Rights::OPEN));
    }
}

/// So many bytes of content the maker may put beside the new inode.
pub fn inline_max(txn: &mut Txn<'_>, attr: &Attr) -> Result<u32, Stop> {
    if attr.kind == FileKind::Regular { Ok(txn.content_room(attr.ino)? as u32) } else { Ok(0) }
}

/// What the directory hands down.
struct Plan {
    mode: u16,
    gid: u32,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl Plan {
    fn new(cx: &Cx<'_>, txn: &mut Txn<'_>, dir: &Attr, node: &NewNode) -> Result<Plan, Stop> {
        let mut plan =
            Plan { mode: node.mode & 0o7777, gid: cx.principal.gid, access: None, default: None };
        if dir.mode & S_ISGID != 0 {
            plan.gid = dir.gid;
            if node.kind == FileKind::Directory {
                plan.mode |= S_ISGID;
            }
        }
        if node.kind == FileKind::Symlink {
            plan.mode = 0o777;
            return Ok(plan);
        }
        let Some(bytes) = txn.xattr(dir.ino, acl::DEFAULT)? else {
            plan.mode &= !(node.umask & 0o777);
            return Ok(plan);
        };
        let handed_down = Acl::parse(&bytes).map_err(Stop::Fault)?;
        let (mode, access) = handed_down.inherit(plan.mode);
        plan.mode = mode;
        plan.access = access;
        plan.default = (node.kind == FileKind::Directory).then_some(handed_down);
        Ok(plan)
    }

    /// Of a replay: the directory may have been changed since, and that not been lost. What was
    /// answered holds.
    fn or_as_answered(self, cx: &Cx<'_>) -> Plan {
        match cx.given {
            Some(OpReply::Created { leased, .. }) => {
                Plan { mode: leased.attr.mode, gid: leased.attr.gid, ..self }
            }
            _ => self,
        }
    }

    fn inode<'a>(&self, cx: &Cx<'_>, node: &'a NewNode) -> NewInode<'a> {
        let device = matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice);
        NewInode {
            kind: node.kind,
            mode: self.mode,
            uid: cx.principal.uid,
            gid: self.gid,
            rdev: if device { node.rdev } else { 0 },
            size: 0,
            atime: cx.now,
            mtime: cx.now,
            ctime: cx.now,
            btime: cx.now,
            client: cx.client,
            symlink: (node.kind == FileKind::Symlink).then_some(&node.symlink.0[..]),
        }
    }

    fn store_acls(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<(), Stop> {
        if let Some(acl) = &self.access {
            txn.set_xattr(ino, acl::ACCESS, &acl.encode())?;
        }
        if let Some(acl) = &self.default {
            txn.set_xattr(ino, acl::DEFAULT, &acl.encode())?;
        }
        Ok(())
    }
}

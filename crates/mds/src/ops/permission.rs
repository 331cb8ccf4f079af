//! Permissions of callers from nodes whose rights are squashed.
//!
//! The kernels of other nodes have checked their callers, and the server believes them. A squashed
//! node's kernel has checked another user than the one that counts here. So the server checks
//! changes of names and attributes itself, as POSIX says, with ACLs and supplementary groups.
//! It does not check reading, nor content: what a client caches serves all its users, and content
//! lies on devices that the host writes itself.
//!
//! Invariants:
//! - the checks change nothing, and come before anything that an operation does;
//! - what a client does by itself (commits, returns) has no caller and is not checked;
//! - a replay is checked as any request: only the client says that it was executed before.

use mfs::{Stop, Txn};
use proto::mds::{NewNode, Op, OpReply, SetAttr, SetTime};
use types::{Attr, Fault, FileKind, Ino, Name};

use super::acl::{self, Acl};
use crate::context::OpContext;

/// Permission bits, as in a mode's last digit.
const WRITE: u16 = 2;
const ENTER: u16 = 1;
/// Only the owners of a file and of its directory remove or rename it (the sticky bit).
const S_ISVTX: u16 = 0o1000;
const S_ISGID: u16 = 0o2000;

/// May the caller do `op`?
///
/// # Errors
/// `AccessDenied`, `NotPermitted`; `Stale` and others as the operation itself.
pub fn check(op: &Op, cx: &mut OpContext<'_>, txn: &mut Txn<'_>) -> Result<(), Stop> {
    match op {
        // Only its own server knows its owner.
        Op::Create { dir, .. } if cx.is_elsewhere(*dir) => Err(Fault::CrossDevice.into()),
        Op::Create { dir, node, .. } | Op::CreateTmpfile { dir, node, .. } => {
            create(cx, txn, *dir, node)
        }
        Op::Link { ino, .. } if cx.is_elsewhere(*ino) => Err(Fault::CrossDevice.into()),
        Op::Rename { to, .. } if cx.is_elsewhere(*to) => Err(Fault::CrossDevice.into()),
        Op::Link { ino, dir, .. } => {
            // As with fs.protected_hardlinks: others' files get no name that they do not want.
            let attr = cx.attr(txn, *ino)?;
            owner(cx, &attr)?;
            change(cx, txn, *dir).map(drop)
        }
        Op::Unlink { dir, name, .. } | Op::Rmdir { dir, name } => remove(cx, txn, *dir, name),
        Op::Rename { from, name, to, new_name, .. } => {
            remove(cx, txn, *from, name)?;
            remove(cx, txn, *to, new_name)
        }
        Op::SetAttr { ino, set } => set_attr(cx, txn, *ino, set),
        Op::SetXattr { ino, name, .. } => set_xattr(cx, txn, *ino, &name.0),
        Op::RemoveXattr { ino, name } if name.0 != b"security.capability" => {
            set_xattr(cx, txn, *ino, &name.0)
        }
        // A mover is believed that it has copied the content.
        Op::SwapLayouts { .. } => Err(Fault::NotPermitted.into()),
        // Administrators distribute the directories and the space.
        Op::MoveDirectory { .. } | Op::MoveFile { .. } | Op::TakeBack { .. } => {
            Err(Fault::NotPermitted.into())
        }
        _ => Ok(()),
    }
}

/// May the caller change the names of a directory?
fn change(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, dir: Ino) -> Result<Attr, Stop> {
    let attr = cx.dir(txn, dir)?;
    permits(cx, txn, &attr, WRITE | ENTER)?;
    Ok(attr)
}

/// May the caller create an inode in a directory? A replay says what group the inode had.
fn create(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, dir: Ino, node: &NewNode) -> Result<(), Stop> {
    let dir = change(cx, txn, dir)?;
    let is_device = match node.kind {
        FileKind::BlockDevice => true,
        // Any user makes whiteouts.
        FileKind::CharDevice => node.rdev != 0,
        _ => false,
    };
    if is_device {
        return Err(Fault::NotPermitted.into());
    }
    match cx.replayed {
        Some(OpReply::Created { leased, .. })
            if leased.attr.gid != dir.gid && !is_in(cx, leased.attr.gid) =>
        {
            Err(Fault::NotPermitted.into())
        }
        _ => Ok(()),
    }
}

/// May the caller take a name away, if it is there?
fn remove(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, dir: Ino, name: &Name) -> Result<(), Stop> {
    let dir_attr = change(cx, txn, dir)?;
    if dir_attr.mode & S_ISVTX == 0 || dir_attr.uid == cx.principal.uid {
        return Ok(());
    }
    let Some(ino) = txn.names().lookup(dir, name)? else { return Ok(()) };
    if cx.is_elsewhere(ino) {
        // Only its own server knows its owner.
        return Err(Fault::NotPermitted.into());
    }
    let attr = cx.attr(txn, ino)?;
    owner(cx, &attr)
}

fn set_attr(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    set: &SetAttr,
) -> Result<(), Stop> {
    let attr = cx.attr(txn, ino)?;
    let gives_away = set.uid.is_some_and(|uid| uid != attr.uid);
    let leaves = set.gid.is_some_and(|gid| gid != attr.gid && !is_in(cx, gid));
    if gives_away || leaves {
        return Err(Fault::NotPermitted.into());
    }
    let explicit = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    let times = set.atime.is_some() || set.mtime.is_some();
    let both = [&set.atime, &set.mtime];
    let chosen = both.iter().any(|time| matches!(time, Some(SetTime::At { .. })));
    match explicit || times {
        true if attr.uid == cx.principal.uid => Ok(()),
        // Who may write may set the times to now.
        true if !explicit && !chosen => permits(cx, txn, &attr, WRITE),
        true => Err(Fault::NotPermitted.into()),
        false => Ok(()),
    }
}

fn set_xattr(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, ino: Ino, name: &[u8]) -> Result<(), Stop> {
    let attr = cx.attr(txn, ino)?;
    if name.starts_with(b"user.") {
        return permits(cx, txn, &attr, WRITE);
    }
    match name == acl::ACCESS || name == acl::DEFAULT {
        true => owner(cx, &attr),
        false => Err(Fault::NotPermitted.into()),
    }
}

fn owner(cx: &OpContext<'_>, attr: &Attr) -> Result<(), Stop> {
    match attr.uid == cx.principal.uid {
        true => Ok(()),
        false => Err(Fault::NotPermitted.into()),
    }
}

fn is_in(cx: &OpContext<'_>, group: u32) -> bool {
    cx.principal.gid == group || cx.principal.groups.contains(&group)
}

/// The mode that an inode of `group` gets where the caller asks for `mode`: without set-gid, if the
/// caller is of a squashed node and not in the group.
pub fn mode_of(cx: &OpContext<'_>, mode: u16, group: u32) -> u16 {
    match cx.squashed && !is_in(cx, group) {
        true => mode & !S_ISGID,
        false => mode,
    }
}

/// Do mode and ACL of an inode give the caller these bits?
fn permits(cx: &OpContext<'_>, txn: &mut Txn<'_>, attr: &Attr, bits: u16) -> Result<(), Stop> {
    let given = if attr.uid == cx.principal.uid {
        attr.mode >> 6
    } else {
        let access = txn.names().xattr(attr.ino, acl::ACCESS)?;
        let access = access.map(|bytes| Acl::parse(&bytes)).transpose().map_err(Stop::Fault)?;
        match access {
            Some(acl) => acl.given((cx.principal.uid, attr.gid), bits, |group| is_in(cx, group)),
            None if is_in(cx, attr.gid) => attr.mode >> 3,
            None => attr.mode,
        }
    };
    match given & bits == bits {
        true => Ok(()),
        false => Err(Fault::AccessDenied.into()),
    }
}

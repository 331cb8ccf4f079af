//! Spread directories: new files of a directory lie on the shards that their names choose (004
//! §IV.C).
//!
//! Invariants:
//! - the directory's own shard, the *primary*, has all names: a file of another shard has a link
//!   slot there. So listings, lookups and renames know no difference, and an absent name costs one
//!   request;
//! - a client sends the creation to the shard that is to get the inode. That one coordinates, and
//!   the primary adds the name ([`Part::AddFile`]);
//! - where a file lies is a preference: a client that does not know that a directory is spread
//!   creates at the primary, which then has the inode, too;
//! - only regular files are spread, and none that lie in objects.

use mfs::{Outside, Stop, Txn};
use proto::mds::{NewNode, OpReply};
use proto::placement::{ATTRIBUTE, Layout, Spread};
use types::{Attr, Fault, FileKind, Ino, Name, Rights};

use super::create::{self, Inherited};
use crate::context::OpContext;
use crate::joint::{Answer, NewFile, Part};
use crate::uncommitted::MetaItem;

/// A directory that is spread by itself stays so until it has less than one in so many names of
/// those at which it came to be.
const MERGE: u64 = 4;
/// Bytes of names and values that a file of another shard may inherit: the primary's answer has
/// them, and its entry keeps the answer.
const INHERITED_MAX: usize = 16 << 10;

/// Is the directory to be spread, with this layout and its names as they are now?
///
/// # Errors
/// Those of the blocks read.
pub fn is_wanted(
    cx: &OpContext<'_>,
    txn: &mut Txn<'_>,
    dir: &Attr,
    layout: Option<&[u8]>,
) -> Result<bool, Stop> {
    if !cx.server.joint.has_peers() {
        return Ok(false);
    }
    let layout = layout.map(Layout::from_attribute).and_then(Result::ok).unwrap_or_default();
    if layout.is_objects() || cx.server.space.has_only_targets() {
        return Ok(false);
    }
    match layout.spread {
        Spread::On => Ok(true),
        Spread::Off => Ok(false),
        Spread::Auto => {
            let (most, names) = (cx.server.runtime.config.spread_at, txn.names().count(dir.ino)?);
            Ok(names >= if dir.spread { most / MERGE } else { most })
        }
    }
}

/// After names went from a directory: it may be spread no more. The caller stores its attributes.
///
/// # Errors
/// As [`is_wanted`].
pub fn names_went(cx: &OpContext<'_>, txn: &mut Txn<'_>, dir: &mut Attr) -> Result<(), Stop> {
    if dir.spread {
        let layout = txn.names().xattr(dir.ino, ATTRIBUTE)?;
        dir.spread = is_wanted(cx, txn, dir, layout.as_deref())?;
    }
    Ok(())
}

/// Creates a file whose name lies in a directory of another shard.
///
/// # Errors
/// `CrossDevice`: it is to be created at the directory's own server.
pub fn create_guest(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    (dir, name): (Ino, &Name),
    node: &NewNode,
    want: Rights,
) -> Result<OpReply, Stop> {
    let Some(answers) = &cx.joint else {
        // Only the primary can check the callers of a squashed node.
        let stays = cx.squashed || cx.server.space.has_only_targets();
        if stays || node.kind != FileKind::Regular {
            return Err(Fault::CrossDevice.into());
        }
        let node = NewFile {
            mode: node.mode,
            umask: node.umask,
            uid: cx.principal.uid,
            gid: cx.principal.gid,
            time: cx.now,
            client: cx.client,
        };
        // Others that come meanwhile wait here, and go together. The directory is not of this
        // shard: nobody else takes its gate here.
        if cx.server.joint.gathers() {
            cx.need(dir, Rights::empty());
        }
        // STARTED makes the inode.
        let part = Part::AddFile { dir, name: name.clone(), ino: Ino::NONE, node };
        return cx.plan(vec![(cx.home(dir), part)]);
    };
    let (Some(Part::AddFile { ino, .. }), Some(Answer::Added { dir, mode, gid, xattrs, .. })) =
        (answers.part(), answers.first())
    else {
        return Err(Fault::Protocol.into());
    };
    let (ino, dir) = (*ino, *dir);
    let mut attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    (attr.nlink, attr.mode, attr.gid) = (1, *mode, *gid);
    txn.names().set_attr(&attr)?;
    txn.names().set_outside(ino, Some(Outside::Names(1)))?;
    for (name, value) in xattrs {
        txn.names().set_xattr(ino, &name.0, &value.0)?;
    }
    create::created(cx, txn, ino, want, dir)
}

/// The primary's part: adds the name, and says what the file inherits.
///
/// # Errors
/// `Exists`; `NotFound` if the directory was removed; `CrossDevice` if its files are not spread.
pub fn add_file(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    (dir, name): (Ino, &Name),
    ino: Ino,
    node: &NewFile,
) -> Result<Answer, Stop> {
    cx.now = node.time;
    let mut dir_attr = cx.live_dir(txn, dir)?;
    let item = MetaItem::Name(dir, name.clone());
    cx.effects.reads.extend([item.clone(), MetaItem::Attr(dir)]);
    if txn.names().lookup(dir, name)?.is_some() {
        return Err(Fault::Exists.into());
    }
    cx.need(dir, Rights::NAMES | Rights::ATTR);
    cx.ready()?;
    let plain = NewNode::plain(FileKind::Regular, node.mode, node.umask);
    let inherited = Inherited::new(txn, &dir_attr, &plain, node.gid)?;
    let is_object = |text| Layout::from_attribute(text).is_ok_and(|it| it.is_objects());
    let (mode, gid, xattrs) = (inherited.mode(), inherited.gid(), inherited.xattrs(true));
    let inherits: usize = xattrs.iter().map(|(name, value)| name.0.len() + value.0.len()).sum();
    if inherited.layout().is_some_and(is_object) || inherits > INHERITED_MAX {
        return Err(Fault::CrossDevice.into());
    }
    txn.names().link_outside(dir, name, ino, FileKind::Regular)?;
    dir_attr.spread = is_wanted(cx, txn, &dir_attr, inherited.layout())?;
    cx.touch_dir(txn, &mut dir_attr)?;
    cx.effects.changes.extend([item, MetaItem::Names(dir)]);
    Ok(Answer::Added { ino, dir: dir_attr, mode, gid, xattrs })
}

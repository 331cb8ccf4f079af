//! Creates inodes, with a name or as orphans.

use mfs::{NewInode, ObjectRecord, Stop, Txn};
use proto::mds::{NewNode, OpReply};
use proto::placement::{ATTRIBUTE, Home, Layout, Policy, UNIT};
use proto::wire::Bytes;
use types::{Attr, Fault, FileKind, Ino, Name, Rights, ShardId};

use super::acl::{self, Acl};
use super::{permission, spread};
use crate::context::{OpContext, elsewhere};
use crate::joint::{Answer, NewDirectory, Part};
use crate::recovery::kept_results::Outcome;
use crate::uncommitted::MetaItem;

const S_ISGID: u16 = 0o2000;

/// Creates an inode under a name.
pub fn create(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    dir: Ino,
    name: &Name,
    node: &NewNode,
    want: Rights,
) -> Result<OpReply, Stop> {
    if cx.is_elsewhere(dir) {
        return spread::create_guest(cx, txn, (dir, name), node, want);
    }
    let mut dir_attr = cx.live_dir(txn, dir)?;
    let item = MetaItem::Name(dir, name.clone());
    cx.effects.reads.push(item.clone());
    cx.need(dir, Rights::NAMES | Rights::ATTR);
    cx.ready()?;
    let inherited = Inherited::new(txn, &dir_attr, node, cx.principal.gid)?.or_as_answered(cx);
    if node.kind == FileKind::Directory
        && let Some(ino) = make_elsewhere(cx, txn, (dir, name), &inherited)?
    {
        dir_attr.nlink += 1;
        cx.touch_dir(txn, &mut dir_attr)?;
        cx.effects.reads.push(MetaItem::Attr(dir));
        cx.effects.changes.extend([item, MetaItem::Names(dir), MetaItem::Attr(dir)]);
        cx.effects.outcome = Some(Outcome::Inode(ino));
        return reply(cx, txn, elsewhere(ino, FileKind::Directory), dir_attr);
    }
    let object = object_of(cx, &inherited, node.kind)?;
    let ino = txn.names().create(dir, name, &inherited.inode(cx, node), replayed_ino(cx))?;
    inherited.store_xattrs(txn, ino)?;
    if let Some(object) = &object {
        txn.layouts().set_object(ino, object)?;
    }
    if node.kind == FileKind::Directory {
        dir_attr.nlink += 1;
        cx.effects.changes.push(MetaItem::Attr(dir));
    }
    dir_attr.spread = spread::is_wanted(cx, txn, &dir_attr, inherited.layout())?;
    cx.touch_dir(txn, &mut dir_attr)?;
    cx.effects.reads.push(MetaItem::Attr(dir));
    cx.effects.changes.extend([item, MetaItem::Names(dir)]);
    created(cx, txn, ino, want, dir_attr)
}

/// Makes a directory on the shard that the layout names, if that is another one. `None`: it is to
/// be made here.
///
/// # Errors
/// The plan's end, before that shard has made it; `Exists`.
fn make_elsewhere(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    (dir, name): (Ino, &Name),
    inherited: &Inherited,
) -> Result<Option<Ino>, Stop> {
    if let Some(answers) = &cx.joint {
        let Some(Answer::Made { ino }) = answers.first() else {
            return Err(Fault::Protocol.into());
        };
        txn.names().link_outside(dir, name, *ino, FileKind::Directory)?;
        return Ok(Some(*ino));
    }
    if cx.replayed.is_some() || !cx.server.joint.has_peers() {
        return Ok(None);
    }
    let Some(shard) = inherited.home(cx) else { return Ok(None) };
    if txn.names().lookup(dir, name)?.is_some() {
        return Err(Fault::Exists.into());
    }
    let node = NewDirectory {
        mode: inherited.mode,
        uid: cx.principal.uid,
        gid: inherited.gid,
        time: cx.now,
        client: cx.client,
        xattrs: inherited.xattrs(true),
    };
    cx.plan(vec![(shard, Part::MakeDirectory { parent: dir, node })])
}

/// Creates a regular file without a name (`O_TMPFILE`); `placement`: instead of the directory's.
pub fn create_orphan(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    dir: Ino,
    (node, placement): (&NewNode, Option<&[u8]>),
    want: Rights,
) -> Result<OpReply, Stop> {
    let dir_attr = cx.live_dir(txn, dir)?;
    if node.kind != FileKind::Regular {
        return Err(Fault::Invalid.into());
    }
    let mut inherited = Inherited::new(txn, &dir_attr, node, cx.principal.gid)?;
    if let Some(placement) = placement {
        super::xattr::check_layout(cx, txn, placement)?;
        inherited.layout = Some(placement.to_vec()).filter(|text| !text.is_empty());
    }
    let inherited = inherited.or_as_answered(cx);
    let object = object_of(cx, &inherited, node.kind)?;
    let ino = txn.names().create_orphan(&inherited.inode(cx, node), replayed_ino(cx))?;
    inherited.store_xattrs(txn, ino)?;
    if let Some(object) = &object {
        txn.layouts().set_object(ino, object)?;
    }
    cx.effects.reads.push(MetaItem::Attr(dir));
    cx.effects.orphaned.push((ino, cx.client));
    created(cx, txn, ino, want | Rights::OPEN, dir_attr)
}

/// Creates a whiteout under a name that has just become free; `given`: as a replay was answered. It
/// is created as ext4 does: owned by the caller, with the ACLs that the directory passes on. The
/// caller updates the directory's times.
pub fn whiteout(
    cx: &mut OpContext<'_>,
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
    let mut inherited = Inherited::new(txn, &dir_attr, &node, cx.principal.gid)?;
    if let Some(given) = given {
        inherited = Inherited { mode: given.mode, gid: given.gid, ..inherited };
    }
    let ino =
        txn.names().create(dir, name, &inherited.inode(cx, &node), given.map(|attr| attr.ino))?;
    inherited.store_xattrs(txn, ino)?;
    let attr = cx.attr(txn, ino)?;
    cx.want(&attr, Rights::ATTR | Rights::OPEN);
    cx.effects.changes.push(MetaItem::Attr(ino));
    Ok(attr)
}

/// The object that a new inode lies in: by the layout that it inherits, and of a replay as it was
/// answered.
///
/// # Errors
/// `NoSpace`: no target can take it; the log says why.
fn object_of(
    cx: &OpContext<'_>,
    inherited: &Inherited,
    kind: FileKind,
) -> Result<Option<ObjectRecord>, Stop> {
    if kind != FileKind::Regular {
        return Ok(None);
    }
    if let Some(OpReply::Created { object, .. }) = cx.replayed {
        return Ok(object.clone().map(|layout| ObjectRecord {
            object: layout.object,
            part: layout.part,
            targets: layout.targets,
        }));
    }
    let space = &cx.server.space;
    let layout = match &inherited.layout {
        // A layout that cannot be read is none: it could not be set.
        Some(text) => Layout::from_attribute(text).unwrap_or_default(),
        None if space.has_only_targets() => {
            Layout { policy: Policy::Objects { part: UNIT, width: 1 }, ..Layout::default() }
        }
        None => return Ok(None),
    };
    let Policy::Objects { part, width } = layout.policy else { return Ok(None) };
    let may = |id| space.takes_files(id, &layout.zones);
    let chosen = cx.server.targets.choose(may, part, width);
    if chosen.is_none() {
        let text = inherited.layout.as_deref().unwrap_or(b"policy=objects");
        cx.server.targets.complain(&String::from_utf8_lossy(text));
        return Err(Fault::NoSpace.into());
    }
    Ok(chosen)
}

/// Of a replay: the number that the inode had.
fn replayed_ino(cx: &OpContext<'_>) -> Option<Ino> {
    match cx.replayed {
        Some(OpReply::Created { leased, .. }) => Some(leased.attr.ino),
        _ => None,
    }
}

/// The reply to the creation of `ino`, of this shard, in `dir`. The client gets what it wants.
///
/// # Errors
/// As [`OpContext::attr`].
pub fn created(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    want: Rights,
    dir: Attr,
) -> Result<OpReply, Stop> {
    let attr = cx.attr(txn, ino)?;
    self::want(cx, &attr, want);
    cx.effects.changes.push(MetaItem::Attr(ino));
    cx.effects.outcome = Some(Outcome::Inode(ino));
    reply(cx, txn, attr, dir)
}

/// The reply to a creation in `dir`.
pub fn reply(
    cx: &OpContext<'_>,
    txn: &mut Txn<'_>,
    attr: Attr,
    dir: Attr,
) -> Result<OpReply, Stop> {
    let (mut inline_max, mut placement, mut object) = (0, Bytes::default(), None);
    let is_here = !cx.is_elsewhere(attr.ino);
    if attr.kind == FileKind::Regular {
        inline_max = txn.layouts().content_room(attr.ino)? as u32;
        object = super::data::object(cx, txn, attr.ino)?;
    }
    if is_here && matches!(attr.kind, FileKind::Regular | FileKind::Directory) {
        placement = super::data::placement(txn, attr.ino)?;
    }
    Ok(OpReply::Created {
        leased: cx.leased(attr),
        dir: cx.leased(dir),
        inline_max,
        placement,
        object,
    })
}

/// Grants the creator's rights: what it wants, if that can be granted. If it counts the file as
/// open from the answer on, it gets `OPEN` however many leases there are.
pub fn want(cx: &mut OpContext<'_>, attr: &Attr, want: Rights) {
    cx.want(attr, want);
    if want.contains(Rights::OPEN | Rights::DATA_X) {
        cx.effects.grants.push((attr.ino, Rights::OPEN));
    }
}

/// Mode, group, ACLs and layout that a new inode inherits from its directory.
pub struct Inherited {
    mode: u16,
    gid: u32,
    access: Option<Acl>,
    default: Option<Acl>,
    /// Of regular files and directories: see [`ATTRIBUTE`].
    layout: Option<Vec<u8>>,
}

impl Inherited {
    /// What `node` inherits from `dir`; `gid`: the caller's group.
    ///
    /// # Errors
    /// Those of a default ACL that makes no sense.
    pub fn new(txn: &mut Txn<'_>, dir: &Attr, node: &NewNode, gid: u32) -> Result<Inherited, Stop> {
        let mut inherited =
            Inherited { mode: node.mode & 0o7777, gid, access: None, default: None, layout: None };
        if dir.mode & S_ISGID != 0 {
            inherited.gid = dir.gid;
            if node.kind == FileKind::Directory {
                inherited.mode |= S_ISGID;
            }
        }
        if node.kind == FileKind::Symlink {
            inherited.mode = 0o777;
            return Ok(inherited);
        }
        if matches!(node.kind, FileKind::Regular | FileKind::Directory) {
            inherited.layout = txn.names().xattr(dir.ino, ATTRIBUTE)?;
        }
        let Some(bytes) = txn.names().xattr(dir.ino, acl::DEFAULT)? else {
            inherited.mode &= !(node.umask & 0o777);
            return Ok(inherited);
        };
        let handed_down = Acl::parse(&bytes).map_err(Stop::Fault)?;
        let (mode, access) = handed_down.inherit(inherited.mode);
        inherited.mode = mode;
        inherited.access = access;
        inherited.default = (node.kind == FileKind::Directory).then_some(handed_down);
        Ok(inherited)
    }

    /// Permission bits.
    pub fn mode(&self) -> u16 {
        self.mode
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The directory's layout.
    pub fn layout(&self) -> Option<&[u8]> {
        self.layout.as_deref()
    }

    /// Of a replay: as it was answered. The directory may have been changed since, and that change
    /// may have survived.
    fn or_as_answered(self, cx: &OpContext<'_>) -> Inherited {
        match cx.replayed {
            Some(OpReply::Created { leased, placement, .. }) => {
                let layout = (!placement.0.is_empty()).then(|| placement.0.clone());
                Inherited { mode: leased.attr.mode, gid: leased.attr.gid, layout, ..self }
            }
            _ => self,
        }
    }

    fn inode<'a>(&self, cx: &OpContext<'_>, node: &'a NewNode) -> NewInode<'a> {
        // A new directory has it from its parent, of any maker.
        let mode = match node.kind {
            FileKind::Directory => self.mode,
            _ => permission::mode_of(cx, self.mode, self.gid),
        };
        let device = matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice);
        NewInode {
            kind: node.kind,
            mode,
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

    /// The shard that a new directory goes to, if it is another one.
    fn home(&self, cx: &OpContext<'_>) -> Option<ShardId> {
        let layout = Layout::from_attribute(self.layout.as_ref()?).ok()?;
        match layout.home {
            Home::Parent => None,
            Home::Shard(shard) => Some(shard).filter(|&shard| cx.server.joint.is_peer(shard)),
            Home::Spread => {
                // One turn for each directory, however often its plan is made.
                let turn = cx.waited.home.get().unwrap_or_else(|| cx.server.joint.next_in_turn());
                cx.waited.home.set(Some(turn));
                turn
            }
        }
    }

    /// Extended attributes of the new inode. `is_elsewhere`: it lies on another shard.
    pub fn xattrs(&self, is_elsewhere: bool) -> Vec<(Bytes, Bytes)> {
        let mut all = Vec::new();
        let mut add = |name: &[u8], value: Vec<u8>| all.push((Bytes(name.into()), Bytes(value)));
        if let Some(layout) = &self.layout {
            let known = Layout::from_attribute(layout).ok();
            let kept = known.clone().map(|layout| layout.of_child(is_elsewhere));
            match kept {
                // On the directory's own server it is passed on as it was written.
                kept if kept == known && !is_elsewhere => add(ATTRIBUTE, layout.clone()),
                Some(layout) if layout == Layout::default() => {}
                Some(layout) => add(ATTRIBUTE, layout.to_string().into_bytes()),
                None => add(ATTRIBUTE, layout.clone()),
            }
        }
        if let Some(acl) = &self.access {
            add(acl::ACCESS, acl.encode());
        }
        if let Some(acl) = &self.default {
            add(acl::DEFAULT, acl.encode());
        }
        all
    }

    fn store_xattrs(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<(), Stop> {
        for (name, value) in self.xattrs(false) {
            txn.names().set_xattr(ino, &name.0, &value.0)?;
        }
        Ok(())
    }
}

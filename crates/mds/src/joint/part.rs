//! What a shard does of an operation of several, and what it answers.
//!
//! Invariants:
//! - a part runs as any operation does: it states its needs and passes [`OpContext::ready`] before
//!   its first change, so a worker waits and recalls as for a client's own request;
//! - a part that would fail, fails before its shard has promised anything.

use std::collections::BTreeSet;

use mfs::{Cost, NewInode, Outside, Stop, Txn};
use proto::mds::PagRun;
use proto::wire::Bytes;
use proto::{wire_enum, wire_struct};
use types::limits::LINK_MAX;
use types::{
    Attr, ClientId, Fault, FileKind, Ino, Name, ObjectId, PagId, Rights, Segment, ShardId,
    Timestamp,
};

use crate::context::OpContext;
use crate::leases::NO_CLIENT;
use crate::ops::remove::need_target;
use crate::ops::rename::relocate;
use crate::ops::spread;
use crate::ops::{move_directory, move_file, take_back};
use crate::uncommitted::MetaItem;

wire_struct! {
    /// The inode of a new directory.
    pub struct NewDirectory {
        /// Permission bits.
        pub mode: u16,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// When it is made.
        pub time: Timestamp,
        /// The client that makes it.
        pub client: ClientId,
        /// What it inherits: names and values.
        pub xattrs: Vec<(Bytes, Bytes)>,
    }

    /// A new file whose inode the coordinator makes.
    pub struct NewFile {
        /// Permission bits, before the umask.
        pub mode: u16,
        /// The caller's umask.
        pub umask: u16,
        /// Owner.
        pub uid: u32,
        /// The caller's group.
        pub gid: u32,
        /// When it is made.
        pub time: Timestamp,
        /// The client that makes it.
        pub client: ClientId,
    }
}

wire_struct! {
    /// A rename of which several shards have a share. Each of them gets all of it.
    pub struct Move {
        /// The directory of the old name.
        pub from: Ino,
        /// The old name.
        pub name: Name,
        /// The directory of the new name.
        pub to: Ino,
        /// The new name.
        pub new_name: Name,
        /// What moves.
        pub ino: Ino,
        /// Its kind.
        pub kind: FileKind,
        /// What has the new name before.
        pub over: Option<(Ino, FileKind)>,
        /// That gets the old name; else it goes.
        pub exchange: bool,
        /// The time of the operation.
        pub time: Timestamp,
    }

    /// What a shard has of a rename: attributes after the change. Those of other shards' inodes are
    /// missing.
    pub struct Moved {
        /// The directory of the old name.
        pub from: Option<Attr>,
        /// The directory of the new name.
        pub to: Option<Attr>,
        /// What has moved.
        pub moved: Option<Attr>,
        /// What had the new name.
        pub over: Option<Attr>,
    }
}

wire_struct! {
    /// A name of a directory that moves to another shard.
    pub struct ArrivingName {
        /// Its position.
        pub at: u32,
        /// The name.
        pub name: Name,
        /// What it leads to.
        pub ino: Ino,
        /// The kind of that.
        pub kind: FileKind,
    }

    /// A directory that moves to another shard: see [`mfs::Arrival`].
    pub struct Arriving {
        /// Its attributes.
        pub attr: Attr,
        /// Where its name is.
        pub parent: Ino,
        /// The stream that made it.
        pub stream: u32,
        /// Names and values of its extended attributes.
        pub xattrs: Vec<(Bytes, Bytes)>,
        /// Its chunks: is it an annex?
        pub annexes: Vec<bool>,
        /// Its names.
        pub names: Vec<ArrivingName>,
    }
}

wire_struct! {
    /// A file that follows its directory to another shard: see [`mfs::FileArrival`].
    pub struct ArrivingFile {
        /// The shard from which it comes.
        pub from: u8,
        /// The directory of its name.
        pub dir: Ino,
        /// Its name.
        pub name: Name,
        /// Its attributes.
        pub attr: Attr,
        /// Names and values of its extended attributes.
        pub xattrs: Vec<(Bytes, Bytes)>,
        /// The target of a symlink, or inline content.
        pub content: Bytes,
        /// Its segments, in order.
        pub segments: Vec<Segment>,
    }

    /// Where a file lies instead of in blocks: see [`mfs::ObjectRecord`].
    pub struct ArrivingObject {
        /// Its object, the number of which may be another shard's.
        pub object: ObjectId,
        /// Blocks of a stripe unit.
        pub part: u64,
        /// Its targets, in the order of the units.
        pub targets: Vec<PagId>,
    }
}

wire_struct! {
    /// Blocks of a zone that go back to the shard whose it is.
    pub struct GivenBack {
        /// The lender, whose zone it is.
        pub to: u8,
        /// Free blocks that the borrower gives up.
        pub runs: Vec<PagRun>,
        /// Blocks of loans of which the borrower has not heard.
        pub unacknowledged: Vec<PagRun>,
        /// The last loan of which it has heard, as it has said.
        pub known: u32,
        /// The last loan that was made: it enters none up to this number any more.
        pub last: u32,
    }
}

wire_enum! {
    /// A part.
    pub enum Part {
        /// Makes a directory whose name lies in `parent`, on another shard. Answer `Made`.
        MakeDirectory = 1 { parent: Ino, node: NewDirectory, },
        /// Removes an empty directory whose name goes on another shard. Answer `Done`.
        RemoveDirectory = 2 { ino: Ino, time: Timestamp, },
        /// A name of an inode goes on another shard. Answer `Changed`.
        LoseName = 3 { ino: Ino, time: Timestamp, },
        /// An inode gets a name on another shard. Answer `Changed`.
        GainName = 4 { ino: Ino, time: Timestamp, },
        /// The share of a rename. Answer `Moved`.
        Move = 6 { it: Move, },
        /// As `Move`, where the coordinator believes that some of the inodes are on other shards
        /// than their numbers say: the shards of ⟨from, to, ino⟩, and of what is replaced.
        MoveAt = 8 { it: Move, homes: Vec<u8>, },
        /// A directory comes from the coordinator, with all its names. Answer `Done`.
        TakeDirectory = 9 { it: Arriving, },
        /// A file comes from the coordinator. Its name is here. Answer `Done`.
        TakeFile = 10 { it: ArrivingFile, },
        /// Gives free blocks of a zone back to the coordinator, which has lent them: see
        /// [`GivenBack`]. Answer `Done`.
        GiveBack = 11 { pag: PagId, it: GivenBack, },
        /// As `TakeFile`, of a file that lies in an object.
        TakeObjectFile = 12 { it: ArrivingFile, object: ArrivingObject, },
        /// A new file of the coordinator gets its name here. Answer `Added`.
        AddFile = 7 { dir: Ino, name: Name, ino: Ino, node: NewFile, },
    }
}

wire_enum! {
    /// The answer to a part.
    pub enum Answer {
        /// It is done.
        Done = 1 {},
        /// It made this inode.
        Made = 2 { ino: Ino, },
        /// The inode's attributes after the change.
        Changed = 3 { attr: Attr, },
        /// What the shard has of a rename, after it.
        Moved = 5 { it: Moved, },
        /// The new file `ino` has its name. The directory's attributes after that, and what the
        /// file inherits from it: names and values.
        Added = 6 { ino: Ino, dir: Attr, mode: u16, gid: u32, xattrs: Vec<(Bytes, Bytes)>, },
    }
}

impl Move {
    /// Does a directory get another parent? Such renames go one after the other, over all shards.
    pub fn reorders(&self) -> bool {
        self.from != self.to && self.moving().any(|(_, kind)| kind == FileKind::Directory)
    }

    /// Does it give the directory `ino` another parent?
    pub fn reparents(&self, ino: Ino) -> bool {
        self.reorders() && self.moving().any(|it| it == (ino, FileKind::Directory))
    }

    fn moving(&self) -> impl Iterator<Item = (Ino, FileKind)> {
        std::iter::once((self.ino, self.kind)).chain(self.over.filter(|_| self.exchange))
    }

    /// The inodes whose shards have a share of it.
    fn inodes(&self) -> Vec<Ino> {
        [self.from, self.to, self.ino].into_iter().chain(self.over.map(|(over, _)| over)).collect()
    }

    /// The part of each shard that has a share of it.
    pub fn part(&self, home_of: impl Fn(Ino) -> ShardId) -> Part {
        let inodes = self.inodes();
        match inodes.iter().all(|&ino| home_of(ino) == ino.shard()) {
            true => Part::Move { it: self.clone() },
            false => {
                let homes = inodes.into_iter().map(|ino| home_of(ino).0).collect();
                Part::MoveAt { it: self.clone(), homes }
            }
        }
    }

    /// Are its inodes where the coordinator believes them? `homes` are its shards, if they are not
    /// those of the numbers.
    fn is_seen_rightly(&self, cx: &OpContext<'_>, homes: Option<&[u8]>) -> bool {
        let (inodes, own) = (self.inodes(), cx.server.runtime.shard);
        let believed = |nth: usize, ino: Ino| match homes {
            Some(homes) => homes.get(nth).is_some_and(|&home| ShardId(home) == own),
            None => ino.shard() == own,
        };
        inodes.iter().enumerate().all(|(nth, &ino)| believed(nth, ino) != cx.is_elsewhere(ino))
    }

    /// The shards that have a share of it.
    pub fn shards(&self, home_of: impl Fn(Ino) -> ShardId) -> BTreeSet<ShardId> {
        let home = home_of(self.ino);
        let (from, to) = (home_of(self.from), home_of(self.to));
        let mut all = BTreeSet::from([from, to]);
        // What counts names elsewhere does not count where these are.
        let counted = (from == home) != (to == home);
        // The writers of what replaces something hand it over before.
        if counted || self.over.is_some() || self.reparents(self.ino) {
            all.insert(home);
        }
        all.extend(self.over.map(|(over, _)| home_of(over)));
        if self.reorders() {
            all.insert(home_of(Ino::ROOT));
        }
        all
    }
}

impl Moved {
    /// What two shards have of it.
    pub fn join(self, other: Moved) -> Moved {
        Moved {
            from: self.from.or(other.from),
            to: self.to.or(other.to),
            moved: self.moved.or(other.moved),
            over: self.over.or(other.over),
        }
    }
}

impl Part {
    /// The inodes whose names it changes, if they are there already.
    pub fn inodes(&self) -> Vec<Ino> {
        match self {
            Part::MakeDirectory { .. } | Part::GiveBack { .. } => Vec::new(),
            Part::RemoveDirectory { ino, .. }
            | Part::LoseName { ino, .. }
            | Part::GainName { ino, .. }
            | Part::AddFile { ino, .. } => vec![*ino],
            Part::Move { it } | Part::MoveAt { it, .. } => {
                it.over.iter().map(|(over, _)| *over).chain(std::iter::once(it.ino)).collect()
            }
            Part::TakeDirectory { it } => {
                let names = it.names.iter().map(|name| name.ino);
                names.chain(std::iter::once(it.attr.ino)).collect()
            }
            Part::TakeFile { it } | Part::TakeObjectFile { it, .. } => vec![it.attr.ino],
        }
    }

    /// The directories whose names it changes.
    pub fn directories(&self) -> Vec<Ino> {
        match self {
            Part::MakeDirectory { parent, .. } => vec![*parent],
            Part::Move { it } | Part::MoveAt { it, .. } => vec![it.from, it.to],
            Part::AddFile { dir, .. } => vec![*dir],
            Part::TakeDirectory { it } => vec![it.parent],
            Part::TakeFile { it } | Part::TakeObjectFile { it, .. } => vec![it.dir],
            Part::RemoveDirectory { .. }
            | Part::LoseName { .. }
            | Part::GainName { .. }
            | Part::GiveBack { .. } => Vec::new(),
        }
    }

    /// The worst case of the transaction that applies it, if that is more than a step.
    pub fn cost(&self) -> Option<Cost> {
        match self {
            Part::TakeDirectory { it } => Some(move_directory::cost(it.names.len())),
            Part::TakeFile { it } | Part::TakeObjectFile { it, .. } => {
                Some(move_directory::cost(move_file::as_names(it.segments.len())))
            }
            _ => None,
        }
    }

    /// The rename of which it is a share.
    pub fn as_move(&self) -> Option<&Move> {
        match self {
            Part::Move { it } | Part::MoveAt { it, .. } => Some(it),
            _ => None,
        }
    }
}

impl Answer {
    /// The inodes whose names were changed, as far as it says so.
    pub fn inodes(&self) -> Vec<Ino> {
        match self {
            Answer::Done {} => Vec::new(),
            Answer::Made { ino } | Answer::Added { ino, .. } => vec![*ino],
            Answer::Changed { attr } => vec![attr.ino],
            Answer::Moved { it } => it.moved.iter().chain(&it.over).map(|attr| attr.ino).collect(),
        }
    }
}

/// Runs a part inside a transaction. `made`: the orphans that [`prepare`] has made.
///
/// # Errors
/// The part's fault, or what the store needs before it can go on.
pub fn execute(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    part: &Part,
    made: &mut impl Iterator<Item = Ino>,
) -> Result<Answer, Stop> {
    match part {
        Part::MakeDirectory { parent, node } => {
            make_directory(cx, txn, *parent, (node, made.next()))
        }
        Part::RemoveDirectory { ino, time } => remove_directory(cx, txn, *ino, *time),
        Part::Move { it } => share(cx, txn, it, None),
        Part::MoveAt { it, homes } => share(cx, txn, it, Some(homes)),
        Part::TakeDirectory { it } => {
            move_directory::take(cx, txn, it)?;
            Ok(Answer::Done {})
        }
        Part::TakeFile { it } => {
            move_file::take(cx, txn, it, None)?;
            Ok(Answer::Done {})
        }
        Part::TakeObjectFile { it, object } => {
            move_file::take(cx, txn, it, Some(object))?;
            Ok(Answer::Done {})
        }
        Part::GiveBack { pag, it } => {
            take_back::give(cx, txn, *pag, it)?;
            Ok(Answer::Done {})
        }
        Part::LoseName { ino, time } => change_names(cx, txn, *ino, *time, false),
        Part::GainName { ino, time } => change_names(cx, txn, *ino, *time, true),
        Part::AddFile { dir, name, ino, node } => {
            spread::add_file(cx, txn, (*dir, name), *ino, node)
        }
    }
}

/// Does the share of a rename, if the coordinator knows where its inodes are.
fn share(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    it: &Move,
    homes: Option<&[u8]>,
) -> Result<Answer, Stop> {
    match it.is_seen_rightly(cx, homes) {
        true => Ok(Answer::Moved { it: relocate::share(cx, txn, it)? }),
        false => Err(Fault::Moved.into()),
    }
}

/// Runs all parts of an operation: see [`execute`].
///
/// # Errors
/// As [`execute`], of the first that fails.
pub fn execute_all(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    parts: &[Part],
    made: &mut impl Iterator<Item = Ino>,
) -> Result<Vec<Answer>, Stop> {
    parts.iter().map(|part| execute(cx, txn, part, made)).collect()
}

fn make_directory(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    parent: Ino,
    (node, made): (&NewDirectory, Option<Ino>),
) -> Result<Answer, Stop> {
    cx.ready()?;
    let ino = match made {
        Some(ino) => {
            let mut attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
            attr.nlink = 2;
            txn.names().set_attr(&attr)?;
            txn.names().set_outside(ino, Some(Outside::Parent(parent)))?;
            ino
        }
        None => txn.names().create_guest(parent, &node.inode(), None)?,
    };
    for (name, value) in &node.xattrs {
        txn.names().set_xattr(ino, &name.0, &value.0)?;
    }
    cx.effects.changes.push(MetaItem::Attr(ino));
    Ok(Answer::Made { ino })
}

/// Makes what a part needs that other shards have to know before it is applied: the number of a
/// new directory, which is an orphan until then.
///
/// # Errors
/// `NoSpace`.
pub fn prepare(txn: &mut Txn<'_>, part: &Part) -> Result<Option<Ino>, Stop> {
    match part {
        Part::MakeDirectory { node, .. } => {
            Ok(Some(txn.names().create_orphan(&node.inode(), None)?))
        }
        Part::RemoveDirectory { .. }
        | Part::LoseName { .. }
        | Part::GainName { .. }
        | Part::AddFile { .. }
        | Part::TakeDirectory { .. }
        | Part::TakeFile { .. }
        | Part::GiveBack { .. }
        | Part::TakeObjectFile { .. }
        | Part::Move { .. }
        | Part::MoveAt { .. } => Ok(None),
    }
}

impl NewDirectory {
    fn inode(&self) -> NewInode<'static> {
        let node = self;
        NewInode {
            kind: FileKind::Directory,
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            rdev: 0,
            size: 0,
            atime: node.time,
            mtime: node.time,
            ctime: node.time,
            btime: node.time,
            client: node.client,
            symlink: None,
        }
    }
}

fn remove_directory(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    time: Timestamp,
) -> Result<Answer, Stop> {
    let mut attr = cx.live_dir(txn, ino)?;
    cx.effects.reads.push(MetaItem::Names(ino));
    if !txn.names().is_empty(ino)? {
        return Err(Fault::NotEmpty.into());
    }
    need_target(cx, &attr);
    cx.ready()?;
    txn.names().set_outside(ino, None)?;
    attr.nlink = 0;
    stamp(txn, &mut attr, time)?;
    // The client that asks for it gives up nothing here by itself.
    cx.effects.orphaned.push((ino, NO_CLIENT));
    cx.effects.changes.extend([MetaItem::Attr(ino), MetaItem::Names(ino)]);
    Ok(Answer::Done {})
}

/// An inode that is no directory loses or gains a name on another shard.
fn change_names(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    time: Timestamp,
    gains: bool,
) -> Result<Answer, Stop> {
    let mut attr = cx.attr(txn, ino)?;
    if attr.kind == FileKind::Directory {
        return Err(if gains { Fault::NotPermitted } else { Fault::IsDirectory }.into());
    }
    let outside = match txn.names().outside(ino)? {
        Some(Outside::Names(count)) => count,
        Some(Outside::Parent(_)) => return Err(Fault::Corrupt.into()),
        None => 0,
    };
    if gains {
        if attr.nlink == 0 {
            return Err(Fault::NotFound.into());
        }
        if attr.nlink >= LINK_MAX {
            return Err(Fault::TooManyLinks.into());
        }
        cx.need(ino, Rights::ATTR);
    } else {
        if outside == 0 || attr.nlink == 0 {
            return Err(Fault::Corrupt.into());
        }
        need_target(cx, &attr);
    }
    let seen = cx.seen(attr);
    cx.ready()?;
    let left = if gains { outside + 1 } else { outside - 1 };
    txn.names().set_outside(ino, (left > 0).then_some(Outside::Names(left)))?;
    attr.nlink = if gains { attr.nlink + 1 } else { attr.nlink - 1 };
    stamp(txn, &mut attr, time)?;
    if attr.nlink == 0 {
        cx.effects.orphaned.push((ino, NO_CLIENT));
    }
    cx.effects.changes.push(MetaItem::Attr(ino));
    let (size, blocks, mtime) = (seen.size, seen.blocks, seen.mtime);
    Ok(Answer::Changed { attr: Attr { size, blocks, mtime, ..attr } })
}

fn stamp(txn: &mut Txn<'_>, attr: &mut Attr, time: Timestamp) -> Result<(), Stop> {
    attr.ctime = attr.ctime.max(time);
    attr.version += 1;
    txn.names().set_attr(attr)
}

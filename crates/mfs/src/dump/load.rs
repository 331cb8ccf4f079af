//! Building a tree from a dump.
//!
//! Invariants:
//! - each record is checked against the earlier ones; a stream that contradicts itself is refused
//!   with the number of the record. What was loaded until then stays on the new file system. The
//!   superblocks of all shards mark it as incomplete from before the first record until after the
//!   last ([`load_onto`]): nothing opens it, and it has to be formatted again;
//! - names, inodes and blocks of several shards are entered as their servers do it, both sides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;

use env::{Env, LocalFuture};
use types::limits::CONTENT_MAX;
use types::{Attr, ClientId, Fault, FileBlock, FileKind, Ino, Name, PagId, Segment, ShardId};

use super::stream::{Inode, Reader, Record, StreamError, TargetZone, Zone};
use crate::format::number::root_dir;
use crate::format::object::ObjectRecord;
use crate::format::outside::Outside;
use crate::format::space::ZoneKind;
use crate::handle::Mfs;
use crate::mkfs::PagFormat;
use crate::names::NewInode;
use crate::open::OpenOptions;
use crate::trees::INODES;
use crate::txn::Txn;
use engine::cost::Cost;
use engine::device::log::Disks;
use engine::error::{Stop, StoreError};
use engine::format::features::Feature;
use engine::store::open::set_feature;

/// Why a load ended.
#[derive(Clone, Debug)]
pub enum LoadError {
    /// The stream cannot be read.
    Stream(StreamError),
    /// A record contradicts those before it, or the zone: its number, and how.
    Contradiction(u64, String),
    /// The target is not a new file system that can take the dump.
    Target(String),
    /// The store failed in a record.
    Store(u64, StoreError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Stream(error) => write!(f, "{error}"),
            LoadError::Contradiction(number, text) => {
                write!(f, "record {number} of the dump cannot be: {text}")
            }
            LoadError::Target(text) => f.write_str(text),
            LoadError::Store(number, error) => write!(f, "loading record {number}: {error}"),
        }
    }
}

impl std::error::Error for LoadError {}

impl From<StreamError> for LoadError {
    fn from(error: StreamError) -> LoadError {
        LoadError::Stream(error)
    }
}

/// How much was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loaded {
    /// Inodes, the root included.
    pub inodes: u64,
    /// Further names.
    pub links: u64,
    /// Segments.
    pub segments: u64,
}

/// Loads a dump into the new, empty file system on `disks`, which nothing else has open: those of
/// its first shards, in the order of their numbers. The file system cannot be opened from before
/// the first record until all of it is at home.
///
/// # Errors
/// The stream, the stores, or the target: format that again. A head that does not fit is refused
/// before anything is written.
pub fn load_onto<'a>(
    env: &'a Env,
    disks: &'a [Disks],
    options: OpenOptions,
    input: &'a mut dyn Read,
) -> LocalFuture<'a, Result<Loaded, LoadError>> {
    Box::pin(async move {
        let store = |error| LoadError::Store(0, error);
        let mut reader = Reader::new(input);
        let head = head(&mut reader)?;
        let all = open_all(env, disks, options).await?;
        let fits = Load::new(&all).check_target(&head).await;
        close_all(all).await?;
        fits?;
        for disks in disks {
            set_feature(env, &disks.home, Feature::UNFINISHED_LOAD, true).await.map_err(store)?;
        }
        let all = open_all(env, disks, OpenOptions { loading: true, ..options }).await?;
        let loaded = async {
            let load = Load::new(&all);
            load.targets(&head).await?;
            load.records(&mut reader).await
        };
        let loaded = loaded.await;
        let closed = close_all(all).await;
        let loaded = loaded?;
        closed?;
        for disks in disks {
            set_feature(env, &disks.home, Feature::UNFINISHED_LOAD, false).await.map_err(store)?;
        }
        Ok(loaded)
    })
}

async fn open_all(env: &Env, disks: &[Disks], options: OpenOptions) -> Result<Vec<Mfs>, LoadError> {
    let mut all = Vec::new();
    for disks in disks {
        let opened = Mfs::open(env, disks, options).await;
        all.push(opened.map_err(|error| LoadError::Store(0, error))?);
    }
    Ok(all)
}

/// Closes all, also behind a failure, the first of which is the result.
async fn close_all(all: Vec<Mfs>) -> Result<(), LoadError> {
    let mut closed = Ok(());
    for mfs in all {
        let this = mfs.close().await.map_err(|error| LoadError::Store(0, error));
        closed = closed.and(this);
    }
    closed
}

/// Loads a dump into a new, empty file system that is open, with all its shards. It is not durable
/// before the stores are closed.
///
/// # Errors
/// The stream, the stores, or the target; nothing is undone then: format the target again.
#[cfg(test)]
pub fn load<'a>(
    all: &'a [Mfs],
    input: &'a mut dyn Read,
) -> LocalFuture<'a, Result<Loaded, LoadError>> {
    Box::pin(async move {
        let mut reader = Reader::new(input);
        let head = head(&mut reader)?;
        let load = Load::new(all);
        load.check_target(&head).await?;
        load.targets(&head).await?;
        load.records(&mut reader).await
    })
}

/// Requirements of the target: data zones, and whether files may have inline data.
struct Head {
    servers: u8,
    zones: Vec<Zone>,
    targets: Vec<TargetZone>,
    content: bool,
}

fn head(reader: &mut Reader<'_>) -> Result<Head, LoadError> {
    match reader.take()? {
        Record::Head { servers, zones, targets, content, .. } => {
            Ok(Head { servers, zones, targets, content })
        }
        _ => Err(StreamError::Foreign.into()),
    }
}

/// A running load.
struct Load<'a> {
    /// By the numbers of the servers in the dump.
    all: &'a [Mfs],
    /// Number of the record.
    at: u64,
    /// By the dump's numbers.
    inodes: Vec<Placed>,
    /// Where the data zones are, once a segment has come.
    zones: BTreeMap<PagId, (usize, PagFormat)>,
    /// Zones of other servers that a server knows.
    entered: BTreeSet<(usize, PagId)>,
    done: Loaded,
}

/// An inode that was loaded.
#[derive(Clone, Copy)]
struct Placed {
    /// The server that has it.
    server: usize,
    /// Its new number.
    ino: Ino,
    kind: FileKind,
}

impl<'a> Load<'a> {
    fn new(all: &'a [Mfs]) -> Load<'a> {
        Load {
            all,
            at: 1,
            inodes: Vec::new(),
            zones: BTreeMap::new(),
            entered: BTreeSet::new(),
            done: Loaded::default(),
        }
    }

    /// Loads all records behind the head.
    async fn records(mut self, reader: &mut Reader<'_>) -> Result<Loaded, LoadError> {
        loop {
            self.at = reader.number();
            match reader.take()? {
                Record::Head { .. } => return Err(self.contradiction("a second head")),
                Record::Inode(inode) => self.inode(&inode).await?,
                Record::Link { parent, name, number } => self.link(parent, &name, number).await?,
                Record::Content { number, bytes } => self.content(number, &bytes).await?,
                Record::Object { number, record } => self.object(number, &record).await?,
                Record::Segments { number, list } => self.segments(number, &list).await?,
                Record::End { inodes, links, segments } => {
                    let wanted = Loaded { inodes, links, segments };
                    if self.done != wanted || self.inodes.is_empty() {
                        return Err(self.contradiction("it counts other numbers than there were"));
                    }
                    reader.end()?;
                    return Ok(self.done);
                }
            }
        }
    }

    fn contradiction(&self, text: &str) -> LoadError {
        LoadError::Contradiction(self.at, text.to_owned())
    }

    async fn run<T>(
        &self,
        server: usize,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<T, LoadError> {
        match self.all[server].run(Cost::STEP, body).await {
            Ok((value, _)) => Ok(value),
            Err(StoreError::Fault(Fault::Exists)) => Err(self.contradiction("the name is there")),
            Err(StoreError::Fault(Fault::Invalid)) => {
                Err(self.contradiction("it makes no sense in this place"))
            }
            Err(error) => Err(LoadError::Store(self.at, error)),
        }
    }

    async fn check_target(&self, head: &Head) -> Result<(), LoadError> {
        let (wanted, count) = (usize::from(head.servers), self.all.len());
        if wanted > count {
            let text = format!(
                "the dump is of {wanted} metadata servers, and the file system has {count}: load it into one \
                 of as many, without --server"
            );
            return Err(LoadError::Target(text));
        }
        for server in 0..count {
            self.check_server(server, head).await?;
        }
        Ok(())
    }

    async fn check_server(&self, server: usize, head: &Head) -> Result<(), LoadError> {
        let is_own = |of: ShardId| usize::from(of.0) == server;
        if head.content && !self.all[server].superblock().features.has(Feature::INLINE_DATA) {
            let text = "the dump is of a file system with the feature `inline-data`, and this file system lacks the \
                        feature: load it into one that was made with it; nothing was written";
            return Err(LoadError::Target(text.into()));
        }
        let (inodes, clients, empty, pags) = self
            .run(server, |txn| {
                let root = txn.root_dir();
                let root = txn.names().is_empty(root)?;
                Ok((txn.root(INODES)?, txn.clients()?.len(), root, txn.space().pags()?))
            })
            .await?;
        if inodes != 2 || clients != 0 || !empty {
            let text = "the file system was used already: load needs one fresh from `redbud mkfs`";
            return Err(LoadError::Target(text.into()));
        }
        let mut targets = head.targets.iter().filter(|it| is_own(it.server));
        if let Some(taken) = targets.find(|it| pags.iter().any(|pag| pag.id == it.id)) {
            let text = format!(
                "the dump has an object target {}, and the file system a data zone of that number",
                taken.id
            );
            return Err(LoadError::Target(text));
        }
        for zone in head.zones.iter().filter(|it| is_own(it.server)) {
            let found = pags.iter().find(|pag| pag.id == zone.id).map(|pag| pag.zone());
            if found.is_none_or(|here| here.start != zone.start || here.blocks < zone.blocks) {
                return Err(LoadError::Target(other_zone(zone, found)));
            }
        }
        Ok(())
    }

    /// Enters the object targets of the dump.
    async fn targets(&self, head: &Head) -> Result<(), LoadError> {
        if head.targets.is_empty() {
            return Ok(());
        }
        for target in &head.targets {
            let server = usize::from(target.server.0);
            self.all[server].add_object_files();
            let address = String::from_utf8_lossy(&target.address).into_owned();
            self.run(server, |txn| {
                txn.space().set_target_address(target.id, &address)?;
                txn.space().add_target(target.id, target.uuid, target.blocks)
            })
            .await?;
        }
        Ok(())
    }

    async fn object(&self, number: u64, record: &ObjectRecord) -> Result<(), LoadError> {
        let Placed { server, ino, kind } = self.known(number)?;
        if kind != FileKind::Regular {
            return Err(self.contradiction("an object of what is no regular file"));
        }
        // The object of a file that has moved has a number of another server.
        let is_issuer = |mfs: &Mfs| mfs.superblock().shard == record.object.shard();
        let issuer = self.all.iter().position(is_issuer).unwrap_or(server);
        self.run(issuer, |txn| txn.space().object_is_known(record.object)).await?;
        let superblock = self.all[server].superblock();
        if superblock.shard != record.object.shard() {
            let features = superblock.features.with(Feature::FOLLOWED_OBJECTS);
            self.all[server].set_features(features);
        }
        self.run(server, |txn| txn.layouts().set_object(ino, record)).await
    }

    /// The inode with this number in the dump.
    fn known(&self, number: u64) -> Result<Placed, LoadError> {
        let at = number.checked_sub(1).and_then(|at| usize::try_from(at).ok());
        let found = at.and_then(|at| self.inodes.get(at)).copied();
        found.ok_or_else(|| self.contradiction("it names an inode that was not there"))
    }

    fn directory(&self, number: u64) -> Result<(usize, Ino), LoadError> {
        match self.known(number)? {
            Placed { server, ino, kind: FileKind::Directory } => Ok((server, ino)),
            _ => Err(self.contradiction("its parent is no directory")),
        }
    }

    fn name(&self, bytes: &[u8]) -> Result<Name, LoadError> {
        Name::new(bytes).map_err(|_| self.contradiction("its name is not legal"))
    }

    async fn inode(&mut self, inode: &Inode) -> Result<(), LoadError> {
        let attr = &inode.attr;
        if attr.ino.0 != self.inodes.len() as u64 + 1 {
            return Err(self.contradiction("its number is not the next"));
        }
        let server = usize::from(inode.server.0);
        let ino = if self.inodes.is_empty() {
            let is_root = inode.parent == 0 && inode.name.is_empty() && server == 0;
            if !is_root || attr.kind != FileKind::Directory {
                return Err(self.contradiction("the first inode is not the root"));
            }
            let root = root_dir(self.all[0].superblock().shard);
            self.run(0, |txn| finish(txn, root, inode)).await?;
            root
        } else {
            let (dir, name) = (self.directory(inode.parent)?, self.name(&inode.name)?);
            if (attr.kind == FileKind::Symlink) == inode.target.is_empty() {
                return Err(self.contradiction("only a symlink has a target, and needs one"));
            }
            self.create(dir, &name, server, inode).await?
        };
        self.inodes.push(Placed { server, ino, kind: attr.kind });
        self.done.inodes += 1;
        Ok(())
    }

    /// Makes an inode at a server, and its name where the directory is.
    async fn create(
        &self,
        (there, dir): (usize, Ino),
        name: &Name,
        server: usize,
        inode: &Inode,
    ) -> Result<Ino, LoadError> {
        let kind = inode.attr.kind;
        let count = |txn: &mut Txn<'_>| match kind {
            FileKind::Directory => add_link(txn, dir),
            _ => Ok(()),
        };
        if there == server {
            let made = self.run(server, |txn| {
                let ino = txn.names().create(dir, name, &new(inode), None)?;
                count(txn)?;
                finish(txn, ino, inode)?;
                Ok(ino)
            });
            return made.await;
        }
        let made = self.run(server, |txn| {
            let ino = txn.names().create_guest(dir, &new(inode), None)?;
            finish(txn, ino, inode)?;
            Ok(ino)
        });
        let ino = made.await?;
        self.run(there, |txn| {
            txn.names().link_outside(dir, name, ino, kind)?;
            count(txn)
        })
        .await?;
        Ok(ino)
    }

    async fn link(&mut self, parent: u64, name: &[u8], number: u64) -> Result<(), LoadError> {
        let ((there, dir), name) = (self.directory(parent)?, self.name(name)?);
        let Placed { server, ino, kind } = self.known(number)?;
        if kind == FileKind::Directory {
            return Err(self.contradiction("a further name of a directory"));
        }
        if there != server {
            self.run(there, |txn| txn.names().link_outside(dir, &name, ino, kind)).await?;
        }
        self.run(server, |txn| {
            let outside = txn.names().outside(ino)?.map_or(0, Outside::names);
            let links = txn.names().attr(ino)?.map_or(0, |attr| attr.nlink);
            if there != server {
                txn.names().set_outside(ino, Some(Outside::Names(outside + 1)))?;
            } else if outside == links {
                // All names so far are on other servers.
                txn.names().bring_home(dir, &name, ino)?;
            } else {
                txn.names().link(dir, &name, ino)?;
            }
            add_link(txn, ino)
        })
        .await?;
        self.done.links += 1;
        Ok(())
    }

    async fn content(&mut self, number: u64, bytes: &[u8]) -> Result<(), LoadError> {
        let Placed { server, ino, kind } = self.known(number)?;
        if kind != FileKind::Regular || bytes.is_empty() || bytes.len() > CONTENT_MAX {
            return Err(self.contradiction("content that no file can have"));
        }
        let fits = self.run(server, |txn| {
            let size = txn.names().attr(ino)?.map_or(0, |attr| attr.size);
            let mapped =
                txn.layouts().layout(ino, FileBlock(0), 1)?.first().is_some_and(|e| e.file.0 == 0);
            let fits =
                bytes.len() as u64 <= size && !mapped && txn.layouts().content(ino)?.is_empty();
            if fits {
                txn.layouts().set_content(ino, bytes)?;
            }
            Ok(fits)
        });
        match fits.await? {
            true => Ok(()),
            false => Err(self.contradiction(
                "content beyond the end of its file, or of a block that was there already",
            )),
        }
    }

    async fn segments(&mut self, number: u64, list: &[Segment]) -> Result<(), LoadError> {
        let Placed { server, ino, kind } = self.known(number)?;
        if kind != FileKind::Regular {
            return Err(self.contradiction("segments of what is no regular file"));
        }
        if self.zones.is_empty() {
            self.zones = self.own_zones().await?;
        }
        let pieces = list.chunk_by(|a, b| a.pag == b.pag).flat_map(|piece| piece.chunks(PART));
        for part in pieces {
            match self.zones.get(&part[0].pag).copied() {
                Some((owner, zone)) if owner != server => {
                    self.take_lent((owner, &zone), (server, ino), part).await?;
                }
                _ => {
                    let taken = |txn: &mut Txn<'_>| {
                        part.iter().try_for_each(|segment| {
                            txn.space().take_run(segment.pag, segment.addr.0, segment.len)?;
                            txn.layouts().map_taken(ino, *segment)
                        })
                    };
                    self.run(server, taken).await?;
                }
            }
        }
        self.done.segments += list.len() as u64;
        Ok(())
    }

    /// The data zones of all servers, with the servers whose they are.
    async fn own_zones(&self) -> Result<BTreeMap<PagId, (usize, PagFormat)>, LoadError> {
        let mut zones = BTreeMap::new();
        for server in 0..self.all.len() {
            let pags = self.run(server, |txn| txn.space().pags()).await?;
            let own = pags.iter().filter(|pag| pag.kind == ZoneKind::Blocks);
            zones.extend(own.map(|pag| (pag.id, (server, pag.zone()))));
        }
        Ok(zones)
    }

    /// Maps free blocks of another server, from which they go with the file.
    async fn take_lent(
        &mut self,
        (owner, zone): (usize, &PagFormat),
        (server, ino): (usize, Ino),
        part: &[Segment],
    ) -> Result<(), LoadError> {
        let (from, to) = (self.all[owner].superblock().shard, self.all[server].superblock().shard);
        if self.entered.insert((server, zone.id)) {
            for mfs in [&self.all[owner], &self.all[server]] {
                let added = mfs.add_lent_space().await;
                added.map_err(|error| LoadError::Store(self.at, error))?;
            }
            self.run(server, |txn| txn.space().enter_lender(zone)).await?;
        }
        self.run(owner, |txn| {
            part.iter().try_for_each(|segment| {
                txn.space().take_run(segment.pag, segment.addr.0, segment.len)?;
                txn.space().give(to, segment)
            })
        })
        .await?;
        self.run(server, |txn| {
            part.iter().try_for_each(|segment| {
                txn.space().receive(from, segment)?;
                txn.layouts().map_taken(ino, *segment)
            })
        })
        .await
    }
}

/// A server has another zone of a number than the dump, or none.
fn other_zone(zone: &Zone, found: Option<PagFormat>) -> String {
    let here = |here: PagFormat| format!("one of {} from block {} on", here.blocks, here.start);
    format!(
        "the dump has a data zone {} of {} blocks from block {} of its device on, the file system {}",
        zone.id,
        zone.blocks,
        zone.start,
        found.map_or("none of that number".into(), here)
    )
}

/// Segments loaded by one transaction.
const PART: usize = 16;

fn new(inode: &Inode) -> NewInode<'_> {
    let attr = &inode.attr;
    NewInode {
        kind: attr.kind,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: attr.btime,
        client: ClientId::NONE,
        symlink: (attr.kind == FileKind::Symlink).then_some(&inode.target),
    }
}

/// Gives a new inode what it gets only now.
fn finish(txn: &mut Txn<'_>, ino: Ino, inode: &Inode) -> Result<(), Stop> {
    for (name, value) in &inode.xattrs {
        txn.names().set_xattr(ino, name, value)?;
    }
    let now = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    txn.names().set_attr(&Attr { ino, nlink: now.nlink, ..inode.attr })
}

fn add_link(txn: &mut Txn<'_>, ino: Ino) -> Result<(), Stop> {
    let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    txn.names().set_attr(&Attr { nlink: attr.nlink + 1, ..attr })
}

//! Building a tree from a dump.
//!
//! Invariant: each record is checked against the earlier ones; a stream that contradicts itself is
//! refused with the number of the record. What was loaded until then stays on the new file system.
//! Its superblock marks it as incomplete from before the first record until after the last
//! ([`load_onto`]): nothing opens it, and it has to be formatted again.

use std::fmt;
use std::io::Read;

use env::{Env, LocalFuture};
use types::limits::CONTENT_MAX;
use types::{Attr, ClientId, Fault, FileBlock, FileKind, Ino, Name, Segment};

use super::stream::{Inode, Reader, Record, StreamError, TargetZone, Zone};
use crate::format::number::root_dir;
use crate::format::object::ObjectRecord;
use crate::format::space::run_key;
use crate::handle::Mfs;
use crate::mkfs::PagFormat;
use crate::names::NewInode;
use crate::open::OpenOptions;
use crate::trees::{FREE, INODES};
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

/// Loads a dump into the new, empty file system on `disks`, which nothing else has open. The file
/// system cannot be opened from before the first record until all of it is at home.
///
/// # Errors
/// As [`load`]; a head that does not fit is refused before anything is written.
pub async fn load_onto(
    env: &Env,
    disks: impl Into<Disks>,
    options: OpenOptions,
    input: &mut dyn Read,
) -> Result<Loaded, LoadError> {
    load_onto_disks(env, disks.into(), options, input).await
}

fn load_onto_disks<'a>(
    env: &'a Env,
    disks: Disks,
    options: OpenOptions,
    input: &'a mut dyn Read,
) -> LocalFuture<'a, Result<Loaded, LoadError>> {
    Box::pin(async move {
        let store = |error| LoadError::Store(0, error);
        let mut reader = Reader::new(input);
        let head = head(&mut reader)?;
        let mfs = Mfs::open(env, &disks, options).await.map_err(store)?;
        let fits = Load::new(&mfs).check_target(&head).await;
        mfs.close().await.map_err(store)?;
        fits?;
        set_feature(env, &disks.home, Feature::UNFINISHED_LOAD, true).await.map_err(store)?;
        let options = OpenOptions { loading: true, ..options };
        let mfs = Mfs::open(env, &disks, options).await.map_err(store)?;
        let loaded = async {
            let load = Load::new(&mfs);
            load.targets(&head).await?;
            load.records(&mut reader).await
        };
        let loaded = loaded.await;
        let closed = mfs.close().await;
        let loaded = loaded?;
        closed.map_err(store)?;
        set_feature(env, &disks.home, Feature::UNFINISHED_LOAD, false).await.map_err(store)?;
        Ok(loaded)
    })
}

/// Loads a dump into a new, empty file system that is open. It is not durable before the store is
/// closed.
///
/// # Errors
/// The stream, the store, or the target; nothing is undone then: format the target again.
pub fn load<'a>(
    mfs: &'a Mfs,
    input: &'a mut dyn Read,
) -> LocalFuture<'a, Result<Loaded, LoadError>> {
    Box::pin(async move {
        let mut reader = Reader::new(input);
        let head = head(&mut reader)?;
        let load = Load::new(mfs);
        load.check_target(&head).await?;
        load.targets(&head).await?;
        load.records(&mut reader).await
    })
}

/// Requirements of the target: data zones, and whether files may have inline data.
struct Head {
    zones: Vec<Zone>,
    targets: Vec<TargetZone>,
    content: bool,
}

fn head(reader: &mut Reader<'_>) -> Result<Head, LoadError> {
    match reader.take()? {
        Record::Head { zones, targets, content, .. } => Ok(Head { zones, targets, content }),
        _ => Err(StreamError::Foreign.into()),
    }
}

/// A running load.
struct Load<'a> {
    mfs: &'a Mfs,
    /// Number of the record.
    at: u64,
    /// New numbers and kinds, by the dump's numbers.
    inodes: Vec<(Ino, FileKind)>,
    done: Loaded,
}

impl<'a> Load<'a> {
    fn new(mfs: &'a Mfs) -> Load<'a> {
        Load { mfs, at: 1, inodes: Vec::new(), done: Loaded::default() }
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
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<T, LoadError> {
        match self.mfs.run(Cost::STEP, body).await {
            Ok((value, _)) => Ok(value),
            Err(StoreError::Fault(Fault::Exists)) => Err(self.contradiction("the name is there")),
            Err(StoreError::Fault(Fault::Invalid)) => {
                Err(self.contradiction("it makes no sense in this place"))
            }
            Err(error) => Err(LoadError::Store(self.at, error)),
        }
    }

    async fn check_target(&self, head: &Head) -> Result<(), LoadError> {
        if head.content && !self.mfs.superblock().features.has(Feature::INLINE_DATA) {
            let text = "the dump is of a file system with the feature `inline-data`, and this file system lacks the \
                        feature: load it into one that was made with it; nothing was written";
            return Err(LoadError::Target(text.into()));
        }
        let (inodes, clients, empty, pags) = self
            .run(|txn| {
                let root = txn.root_dir();
                let root = txn.names().is_empty(root)?;
                Ok((txn.root(INODES)?, txn.clients()?.len(), root, txn.space().pags()?))
            })
            .await?;
        if inodes != 2 || clients != 0 || !empty {
            let text = "the file system was used already: load needs one fresh from `redbud mkfs`";
            return Err(LoadError::Target(text.into()));
        }
        if let Some(taken) = head.targets.iter().find(|it| pags.iter().any(|pag| pag.id == it.id)) {
            let text = format!(
                "the dump has an object target {}, and the file system a data zone of that number",
                taken.id
            );
            return Err(LoadError::Target(text));
        }
        for zone in &head.zones {
            let found = pags.iter().find(|pag| pag.id == zone.id).map(|pag| pag.zone());
            if found.is_none_or(|here| here.start != zone.start || here.blocks < zone.blocks) {
                let here = |here: PagFormat| {
                    format!("one of {} from block {} on", here.blocks, here.start)
                };
                let text = format!(
                    "the dump has a data zone {} of {} blocks from block {} of its device on, the file \
                     system {}",
                    zone.id,
                    zone.blocks,
                    zone.start,
                    found.map_or("none of that number".into(), here)
                );
                return Err(LoadError::Target(text));
            }
        }
        Ok(())
    }

    /// Enters the object targets of the dump.
    async fn targets(&self, head: &Head) -> Result<(), LoadError> {
        if head.targets.is_empty() {
            return Ok(());
        }
        self.mfs.add_object_files();
        for target in &head.targets {
            let address = String::from_utf8_lossy(&target.address).into_owned();
            self.run(|txn| {
                txn.space().set_target_address(target.id, &address)?;
                txn.space().add_target(target.id, target.uuid, target.blocks)
            })
            .await?;
        }
        Ok(())
    }

    async fn object(&self, number: u64, record: &ObjectRecord) -> Result<(), LoadError> {
        let (ino, kind) = self.known(number)?;
        if kind != FileKind::Regular {
            return Err(self.contradiction("an object of what is no regular file"));
        }
        self.run(|txn| {
            txn.space().object_is_known(record.object)?;
            txn.layouts().set_object(ino, record)
        })
        .await
    }

    /// The inode with this number in the dump.
    fn known(&self, number: u64) -> Result<(Ino, FileKind), LoadError> {
        let at = number.checked_sub(1).and_then(|at| usize::try_from(at).ok());
        let found = at.and_then(|at| self.inodes.get(at)).copied();
        found.ok_or_else(|| self.contradiction("it names an inode that was not there"))
    }

    fn directory(&self, number: u64) -> Result<Ino, LoadError> {
        match self.known(number)? {
            (ino, FileKind::Directory) => Ok(ino),
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
        let ino = if self.inodes.is_empty() {
            if inode.parent != 0 || !inode.name.is_empty() || attr.kind != FileKind::Directory {
                return Err(self.contradiction("the first inode is not the root"));
            }
            let root = root_dir(self.mfs.superblock().shard);
            self.run(|txn| finish(txn, root, inode)).await?;
            root
        } else {
            let (dir, name) = (self.directory(inode.parent)?, self.name(&inode.name)?);
            if (attr.kind == FileKind::Symlink) == inode.target.is_empty() {
                return Err(self.contradiction("only a symlink has a target, and needs one"));
            }
            self.run(|txn| {
                let ino = txn.names().create(dir, &name, &new(inode), None)?;
                if attr.kind == FileKind::Directory {
                    add_link(txn, dir)?;
                }
                finish(txn, ino, inode)?;
                Ok(ino)
            })
            .await?
        };
        self.inodes.push((ino, attr.kind));
        self.done.inodes += 1;
        Ok(())
    }

    async fn link(&mut self, parent: u64, name: &[u8], number: u64) -> Result<(), LoadError> {
        let (dir, name) = (self.directory(parent)?, self.name(name)?);
        let (ino, kind) = self.known(number)?;
        if kind == FileKind::Directory {
            return Err(self.contradiction("a further name of a directory"));
        }
        self.run(|txn| {
            txn.names().link(dir, &name, ino)?;
            add_link(txn, ino)
        })
        .await?;
        self.done.links += 1;
        Ok(())
    }

    async fn content(&mut self, number: u64, bytes: &[u8]) -> Result<(), LoadError> {
        let (ino, kind) = self.known(number)?;
        if kind != FileKind::Regular || bytes.is_empty() || bytes.len() > CONTENT_MAX {
            return Err(self.contradiction("content that no file can have"));
        }
        let fits = self.run(|txn| {
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
        let (ino, kind) = self.known(number)?;
        if kind != FileKind::Regular {
            return Err(self.contradiction("segments of what is no regular file"));
        }
        for part in list.chunks(PART) {
            self.run(|txn| part.iter().try_for_each(|segment| take_segment(txn, ino, segment)))
                .await?;
        }
        self.done.segments += list.len() as u64;
        Ok(())
    }
}

/// Segments loaded by one transaction.
const PART: usize = 32;

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

/// Takes blocks that are free and maps them into a file that has nothing there.
fn take_segment(txn: &mut Txn<'_>, ino: Ino, segment: &Segment) -> Result<(), Stop> {
    let (pag, start, len) = (segment.pag, segment.addr.0, segment.len);
    let end = start.checked_add(len).ok_or(Stop::Fault(Fault::Invalid))?;
    let run = txn.space().free_run_to(pag, start)?.filter(|&(from, n)| from + n >= end);
    let (from, n) = run.ok_or(Stop::Fault(Fault::Invalid))?;
    FREE.remove(txn, &run_key(pag, from))?;
    for (a, b) in [(from, start), (end, from + n)] {
        if a < b {
            FREE.insert(txn, &run_key(pag, a), &(b - a).to_le_bytes())?;
        }
    }
    txn.space().count(pag, -(len as i64), 0)?;
    txn.layouts().map_taken(ino, *segment)
}

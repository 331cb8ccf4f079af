//! Dump and load: the namespace and the layouts as a portable stream ([`stream`]).
//!
//! Invariants:
//! - a dump holds every inode that a name leads to, with its names, attributes, extended attributes, target,
//!   content that lies with it, and segments; inodes without a name, clients, their pools and replies, and settings are of
//!   the moment and not in it;
//! - a dump is a function of the tree, not of numbers or places: that of a loaded tree is the
//!   same, byte for byte, but for the head, which tells of the file system;
//! - a name that is not legal (damage, which `fsck` finds) cannot be in it: it is left out, with what is below it, and told;
//! - it ends on any store: a directory that names lead to twice is damage, and an error;
//! - a dump of a file system with the feature `inline-data` has version 2, with the content that lies with inodes, and
//!   needs a file system with the feature; every other has version 1;
//! - inode numbers are new after a load. They lead to places, and the places of the old zone (chunks with gaps of
//!   what was removed and moved) are what a load gets rid of. Nothing outlives an unmount that knows them;
//! - a load needs a new file system whose data zones are those of the dump, by number, and not smaller:
//!   segments keep their places, so the data is where it was.

mod load;
pub mod stream;
#[cfg(test)]
mod tests;

use std::io::Write;

use types::{FileBlock, FileKind, HashMap, HashSet, Ino};

pub use load::{LoadError, Loaded, load, load_onto};
use stream::{Inode, Record, SEGMENTS_MAX, StreamError, Writer, Zone};

use crate::error::StoreError;
use crate::features::Feature;
use crate::format::blob::Xattr;
use crate::mfs::{Cost, Mfs};
use crate::names::DirEntry;
use crate::space::PagState;
use crate::txn::Txn;
use crate::zones::{Labels, ZonePlace};

/// Names left out that are told one by one.
pub const LEFT_OUT_MAX: usize = 1000;
/// Entries of a directory listed together.
const PAGE: usize = 256;

/// Why a dump ended.
#[derive(Clone, Debug)]
pub enum DumpError {
    /// The store failed.
    Store(StoreError),
    /// The stream failed.
    Stream(StreamError),
    /// The tree is damaged: how, and what to do.
    Damaged(String),
}

impl From<StoreError> for DumpError {
    fn from(error: StoreError) -> DumpError {
        DumpError::Store(error)
    }
}

impl From<StreamError> for DumpError {
    fn from(error: StreamError) -> DumpError {
        DumpError::Stream(error)
    }
}

impl std::fmt::Display for DumpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DumpError::Store(error) => write!(f, "{error}"),
            DumpError::Stream(error) => write!(f, "{error}"),
            DumpError::Damaged(text) => {
                write!(f, "{text}: repair with `redbud fsck --repair`, then dump again")
            }
        }
    }
}

impl std::error::Error for DumpError {}

/// How much a dump holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Dumped {
    /// Inodes.
    pub inodes: u64,
    /// Further names.
    pub links: u64,
    /// Segments.
    pub segments: u64,
    /// Names that are not legal, which are left out with all below them: a line for each, at most [`LEFT_OUT_MAX`].
    pub left_out: Vec<String>,
    /// How many these are.
    pub left_out_count: u64,
    /// The table of data zones is damaged, and why the labels of these zones do not say in its place what it said: the head
    /// lacks them, so a load does not see before it begins whether its target has them.
    pub zones_unknown: Vec<String>,
}

/// Writes everything that names lead to. Nothing may change the store meanwhile. Where the table of data zones is damaged, the
/// labels of `zones` say what it said.
///
/// # Errors
/// The store or `out` failed, or names lead to a directory twice.
pub async fn dump(
    mfs: &Mfs,
    zones: &[ZonePlace<'_>],
    out: &mut dyn Write,
) -> Result<Dumped, DumpError> {
    let mut dump = Dump {
        mfs,
        content: mfs.superblock().features.has(Feature::INLINE_DATA),
        out: Writer::new(out),
        linked: HashMap::default(),
        directories: HashSet::default(),
        queue: std::collections::VecDeque::new(),
        counts: Dumped::default(),
    };
    dump.head(zones).await?;
    dump.inode(0, Vec::new(), Ino::ROOT).await?;
    while let Some((dir, number)) = dump.queue.pop_front() {
        dump.directory(dir, number).await?;
    }
    let Dumped { inodes, links, segments, .. } = dump.counts;
    dump.out.put(&Record::End { inodes, links, segments })?;
    Ok(dump.counts)
}

/// A running dump.
struct Dump<'a> {
    mfs: &'a Mfs,
    /// Files may have content.
    content: bool,
    out: Writer<'a>,
    /// Inodes with several links that were written, and their numbers in the dump.
    linked: HashMap<Ino, u64>,
    /// Directories that were met.
    directories: HashSet<Ino>,
    /// Directories whose content is to be written.
    queue: std::collections::VecDeque<(Ino, u64)>,
    counts: Dumped,
}

impl Dump<'_> {
    async fn head(&mut self, places: &[ZonePlace<'_>]) -> Result<(), DumpError> {
        let zones = match self.mfs.run(Cost::READ, |txn| txn.pags()).await {
            Ok((pags, _)) => {
                let zone =
                    |pag: &PagState| Zone { id: pag.id, uuid: pag.uuid, blocks: pag.total + 1 };
                pags.iter().map(zone).collect()
            }
            Err(StoreError::Corrupt { .. }) => self.labelled(places).await,
            Err(error) => return Err(error.into()),
        };
        let (content, name) = (self.content, self.mfs.identity().name.into_bytes());
        Ok(self.out.put(&Record::Head { content, name, zones })?)
    }

    /// The data zones as their labels tell them.
    async fn labelled(&mut self, places: &[ZonePlace<'_>]) -> Vec<Zone> {
        let Some(device) = self.mfs.device().filter(|_| !places.is_empty()) else {
            self.counts.zones_unknown.push("no data zone was named".into());
            return Vec::new();
        };
        let labels = Labels::read(&device.env, self.mfs.identity().uuid, places).await;
        self.counts.zones_unknown.extend(labels.lacking().cloned());
        labels
            .found()
            .map(|zone| Zone { id: zone.id, uuid: zone.uuid, blocks: zone.blocks })
            .collect()
    }

    async fn directory(&mut self, dir: Ino, number: u64) -> Result<(), DumpError> {
        let mut after = 0;
        loop {
            let mut illegal = Vec::new();
            let read = self.mfs.run(Cost::READ, |txn| {
                illegal.clear();
                txn.readdir_telling(dir, after, PAGE, |name, ino| {
                    illegal.push((name.to_vec(), ino))
                })
            });
            let (entries, _): (Vec<DirEntry>, _) = read.await?;
            self.leave_out(dir, &illegal);
            let Some(last) = entries.last() else { return Ok(()) };
            after = last.cookie;
            let end = entries.len() < PAGE;
            for entry in entries {
                let name = entry.name.as_bytes().to_vec();
                match self.linked.get(&entry.ino).copied() {
                    Some(of) => {
                        self.counts.links += 1;
                        self.out.put(&Record::Link { parent: number, name, number: of })?;
                    }
                    None => self.inode(number, name, entry.ino).await?,
                }
            }
            // Illegal names behind the last legal one were told: they are not to be read again.
            if end {
                return Ok(());
            }
        }
    }

    fn leave_out(&mut self, dir: Ino, illegal: &[(Vec<u8>, Ino)]) {
        for (name, ino) in illegal {
            self.counts.left_out_count += 1;
            if self.counts.left_out.len() < LEFT_OUT_MAX {
                let name = String::from_utf8_lossy(name);
                let line = format!("{name:?} of inode {ino} in directory {dir} is no legal name");
                self.counts.left_out.push(line);
            }
        }
    }

    async fn inode(&mut self, parent: u64, name: Vec<u8>, ino: Ino) -> Result<(), DumpError> {
        self.counts.inodes += 1;
        let number = self.counts.inodes;
        let (mut inode, _) = self.mfs.run(Cost::READ, |txn| txn.describe(ino)).await?;
        let (kind, nlink) = (inode.attr.kind, inode.attr.nlink);
        if kind == FileKind::Directory && !self.directories.insert(ino) {
            let name = String::from_utf8_lossy(&name).into_owned();
            let text = format!("a second name, {name:?}, leads to directory {ino}");
            return Err(DumpError::Damaged(text));
        }
        inode.parent = parent;
        inode.name = name;
        inode.attr.ino = Ino(number);
        inode.attr.nlink = 0;
        inode.attr.blocks = 0;
        if kind == FileKind::Directory {
            inode.attr.size = 0;
            self.queue.push_back((ino, number));
        } else if nlink > 1 {
            self.linked.insert(ino, number);
        }
        self.out.put(&Record::Inode(Box::new(inode)))?;
        if kind == FileKind::Regular {
            if self.content {
                let (bytes, _) = self.mfs.run(Cost::READ, |txn| txn.content(ino)).await?;
                if !bytes.is_empty() {
                    self.out.put(&Record::Content { number, bytes })?;
                }
            }
            self.segments(ino, number).await?;
        }
        Ok(())
    }

    async fn segments(&mut self, ino: Ino, number: u64) -> Result<(), DumpError> {
        let mut from = FileBlock(0);
        loop {
            let read = self.mfs.run(Cost::READ, |txn| txn.layout(ino, from, SEGMENTS_MAX));
            let (list, _) = read.await?;
            let Some(last) = list.last() else { return Ok(()) };
            from = FileBlock(last.end());
            self.counts.segments += list.len() as u64;
            self.out.put(&Record::Segments { number, list })?;
        }
    }
}

impl Txn<'_> {
    /// Everything about an inode but its name and segments.
    fn describe(&mut self, ino: Ino) -> Result<Inode, crate::error::Stop> {
        let attr = self.attr(ino)?.ok_or(crate::error::Stop::Fault(types::Fault::Stale))?;
        let target = match attr.kind {
            FileKind::Symlink => self.symlink(ino)?,
            _ => Vec::new(),
        };
        let mut xattrs: Vec<Xattr> = Vec::new();
        for (name, _) in self.xattrs(ino)? {
            let value = self.xattr(ino, &name)?.unwrap_or_default();
            xattrs.push((name, value));
        }
        Ok(Inode { parent: 0, name: Vec::new(), attr, target, xattrs })
    }
}

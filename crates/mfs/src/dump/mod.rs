//! Dump and load: namespace and layouts as a portable stream ([`stream`]).
//!
//! Invariants:
//! - a dump holds every inode that a name leads to, with its names, attributes, extended
//!   attributes, target, inline data, and segments. It does not hold transient state: orphans,
//!   clients, their pools and replies, and settings;
//! - a dump is a function of the tree, not of numbers or places: the dump of a loaded tree is the
//!   same, byte for byte, except the head, which describes the file system;
//! - an illegal name (damage, which `fsck` finds) cannot be in it: the dump omits it, with
//!   everything below it, and reports it;
//! - the dump omits what cannot be read and reports what it belongs to. It also reports a file of
//!   which it has fewer or more data blocks than the file counts. Everything else is in it, and the
//!   stream is sound;
//! - a dump of any store ends: a directory with two names is damage, and an error;
//! - a dump is of all shards or of one. One of all says of each inode with which shard it lies,
//!   and a load brings it to that one. So the number of shards stays the same, or grows;
//! - a dump of one shard of several omits names that lead to others, and directories whose names
//!   are there, with everything below them, and reports both. Other names of an inode count for
//!   nothing;
//! - blocks of another shard that a file has are lent to its shard after a load, and only those.
//!   Nothing else of loans and moves is in a dump;
//! - what operations of several shards have done so far is in a dump of all, and the number of
//!   those that are open is reported;
//! - a dump of a file system with object targets has them in its head, and of a file that lies in
//!   an object its record. The load enters the targets, so it finds the same objects there: who
//!   loads into a file system of another UUID has to give that to the targets, too;
//! - a dump of a file system with the feature `inline-data` has inline data, and loads only into a
//!   file system with the feature;
//! - inode numbers are new after a load. They lead to places, and a load is there to drop the old
//!   places (chunks with gaps of removed and moved inodes). Nothing that knows the numbers outlives
//!   an unmount;
//! - a load needs a new file system with the data zones of the dump, by number, at the same places
//!   on their devices, and not smaller: segments keep their addresses, so the data stays where it
//!   is.

pub(crate) mod load;
mod shards;
#[cfg(test)]
mod shards_tests;
pub mod stream;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::Write;

use env::LocalFuture;
use types::{
    Attr, Fault, FileBlock, FileKind, HashMap, HashSet, Ino, MetaBlock, ObjectId, Segment, ShardId,
};

pub use load::{LoadError, Loaded, load_onto};
use stream::{Inode, Record, SEGMENTS_MAX, StreamError, TargetZone, Writer, Zone};

use crate::format::number::root_dir;
use crate::format::segment::{decode_item, segment_key};
use crate::format::slot_size::SlotFeatures;
use crate::format::space::ZoneKind;
use crate::handle::Mfs;
use crate::mkfs::PagFormat;
use crate::names::DirEntry;
use crate::names::SkippedEntry;
use crate::space::PagState;
use crate::trees::SEGMENTS;
use crate::txn::Txn;
use crate::zones::{ZoneDevice, ZoneLabels};
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::features::Feature;
use engine::log::recovery::Remedy;

/// Omitted names, and unreadable things, that are reported one by one.
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
    /// Illegal names, omitted with everything below them: a line for each, at most
    /// [`LEFT_OUT_MAX`].
    pub left_out: Vec<String>,
    /// How many these are.
    pub left_out_count: u64,
    /// Names that lead to shards without such an inode in the dump, and inodes with names on other
    /// shards that the dump does not have: a line for each, at most [`LEFT_OUT_MAX`].
    pub elsewhere: Vec<String>,
    /// How many these are.
    pub elsewhere_count: u64,
    /// Operations of several shards that are not complete on all of those in the dump.
    pub open_operations: u64,
    /// What could not be read, or does not have as many data blocks as it counts: a line for each,
    /// at most [`LEFT_OUT_MAX`].
    pub damaged: Vec<String>,
    /// How many these are.
    pub damaged_count: u64,
    /// Only if the table of data zones is damaged: why labels of zones could not replace it. The
    /// head lacks these zones, so a load cannot check in advance whether its target has them.
    pub zones_unknown: Vec<String>,
}

/// The metadata of a shard, and where its data zones lie.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The metadata.
    pub mfs: &'a Mfs,
    /// Its data zones: their labels replace the table of zones if it is damaged.
    pub zones: &'a [ZoneDevice<'a>],
}

impl<'a> Source<'a> {
    /// Metadata whose data zones are not named.
    pub fn of(mfs: &'a Mfs) -> Source<'a> {
        Source { mfs, zones: &[] }
    }
}

/// Writes everything that names lead to, from the root directory of the first of `sources` on:
/// these are all shards of a file system, in the order of their numbers, or one. A dump of one
/// shard says nothing of blocks that shards have lent to each other: one with such ones must not be
/// loaded. Nothing may change the stores meanwhile.
///
/// # Errors
/// A store or `out` failed, or a directory has two names.
pub fn dump<'a>(
    sources: &'a [Source<'a>],
    out: &'a mut dyn Write,
) -> LocalFuture<'a, Result<Dumped, DumpError>> {
    Box::pin(async move {
        let mut dump = Dump {
            sources,
            content: sources
                .iter()
                .any(|it| it.mfs.superblock().features.has(Feature::INLINE_DATA)),
            objects: false,
            out: Writer::new(out),
            linked: HashMap::default(),
            directories: HashSet::default(),
            guests: HashSet::default(),
            queue: std::collections::VecDeque::new(),
            counts: Dumped::default(),
        };
        for mfs in sources.iter().map(|it| it.mfs) {
            for damaged in mfs.damaged().iter().filter(|damaged| damaged.remedy == Remedy::None) {
                let text = "what changed last, or more";
                dump.report_damage(format!(
                    "{text}, of metadata block {}: {}",
                    damaged.block, damaged.what
                ));
            }
        }
        dump.head().await?;
        let root = root_dir(sources[0].mfs.superblock().shard);
        dump.inode(0, Vec::new(), (0, root)).await?;
        while let Some(((at, dir), number)) = dump.queue.pop_front() {
            dump.directory((at, dir), number).await?;
        }
        for at in 0..sources.len() {
            dump.unseen_guests(at).await?;
        }
        dump.count_open_operations().await?;
        let Dumped { inodes, links, segments, .. } = dump.counts;
        dump.out.put(&Record::End { inodes, links, segments })?;
        Ok(dump.counts)
    })
}

/// An inode, and the source that has it.
type Place = (usize, Ino);

/// A running dump.
struct Dump<'a> {
    sources: &'a [Source<'a>],
    /// Files may have content.
    content: bool,
    /// Files may lie in objects.
    objects: bool,
    out: Writer<'a>,
    /// Inodes with several links that were written, and their numbers in the dump.
    linked: HashMap<Ino, u64>,
    /// Directories met so far.
    directories: HashSet<Ino>,
    /// Inodes met so far by names on other shards than theirs.
    guests: HashSet<Ino>,
    /// Directories whose content is still to be written.
    queue: std::collections::VecDeque<(Place, u64)>,
    counts: Dumped,
}

fn dumped(server: ShardId, zone: &PagFormat) -> Zone {
    let PagFormat { id, uuid, start, blocks, .. } = *zone;
    Zone { server, id, uuid, start, blocks }
}

impl Dump<'_> {
    async fn head(&mut self) -> Result<(), DumpError> {
        let (mut zones, mut targets) = (Vec::new(), Vec::new());
        for at in 0..self.sources.len() {
            let server = self.server(at);
            let pags = match self.sources[at].mfs.run(Cost::READ, |txn| txn.space().pags()).await {
                Ok((pags, _)) => pags,
                Err(StoreError::Corrupt { .. }) => {
                    zones.extend(self.zones_from_labels(at).await);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            // A dump of one shard has no other place for borrowed ones.
            let is_here = |pag: &&PagState| match pag.kind {
                ZoneKind::Blocks => true,
                ZoneKind::Borrowed => self.sources.len() == 1,
                ZoneKind::Target => false,
            };
            zones.extend(pags.iter().filter(is_here).map(|pag| dumped(server, &pag.zone())));
            for pag in pags.iter().filter(|pag| pag.kind == ZoneKind::Target) {
                let (id, uuid, blocks) = (pag.id, pag.uuid, pag.total);
                let address = self.read(at, |txn| txn.space().target_address(id)).await?;
                let address = address.unwrap_or_default().into_bytes();
                targets.push(TargetZone { server, id, uuid, blocks, address });
            }
        }
        let (content, servers) = (self.content, self.sources.len() as u8);
        let name = self.sources[0].mfs.identity().name.into_bytes();
        self.objects = !targets.is_empty();
        Ok(self.out.put(&Record::Head { content, name, servers, zones, targets })?)
    }

    /// The data zones, from their labels.
    async fn zones_from_labels(&mut self, at: usize) -> Vec<Zone> {
        let (server, Source { mfs, zones }) = (self.server(at), self.sources[at]);
        let Some(device) = mfs.device().filter(|_| !zones.is_empty()) else {
            self.counts.zones_unknown.push("no data zone was named".into());
            return Vec::new();
        };
        let labels = ZoneLabels::read(&device.env, mfs.identity().uuid, zones).await;
        self.counts.zones_unknown.extend(labels.missing().cloned());
        labels.found().map(|zone| dumped(server, &zone)).collect()
    }

    async fn directory(&mut self, (at, dir): Place, number: u64) -> Result<(), DumpError> {
        let (mut after, mut without) = (0, BTreeSet::new());
        loop {
            let (mut illegal, mut unread) = (Vec::new(), BTreeSet::new());
            let read = self.sources[at].mfs.run(Cost::READ, |txn| {
                illegal.clear();
                unread.clear();
                txn.names().readdir_reporting(dir, after, PAGE, &without, |left| match left {
                    SkippedEntry::Name(name, ino) => illegal.push((name.to_vec(), ino)),
                    SkippedEntry::Slot(block, slot) => drop(unread.insert((block, Some(slot)))),
                    SkippedEntry::Block(block) => drop(unread.insert((block, None))),
                })
            });
            let (entries, _): (Vec<DirEntry>, _) = match read.await {
                Err(StoreError::Corrupt { block, .. }) if without.insert(block) => continue,
                Err(error) => {
                    let damage = Damage::new(error)?;
                    let what = self.subject((at, dir)).await?;
                    self.report_damage(format!("from some name on, what is in {what}: {damage}"));
                    return Ok(());
                }
                Ok(read) => read,
            };
            self.leave_out(dir, &illegal);
            self.report_unread((at, dir), &unread).await?;
            let Some(last) = entries.last() else { return Ok(()) };
            after = last.cookie;
            let end = entries.len() < PAGE;
            for entry in entries {
                let name = entry.name.as_bytes().to_vec();
                let is_link = entry.attr.is_none();
                let home = if is_link { self.home(at, entry.ino).await? } else { Some(at) };
                let Some(home) = home else {
                    self.leave_elsewhere(entry.ino, dir, &name);
                    continue;
                };
                if home != at {
                    self.guests.insert(entry.ino);
                }
                if let Some(object) = self.foreign_object(at, &entry).await? {
                    let (name, ino) = (String::from_utf8_lossy(&name), entry.ino);
                    self.report_elsewhere(format!(
                        "{name:?} in directory {dir}, inode {ino}, which lies in object {object}"
                    ));
                    continue;
                }
                match self.linked.get(&entry.ino).copied() {
                    Some(of) => {
                        self.counts.links += 1;
                        self.out.put(&Record::Link { parent: number, name, number: of })?;
                    }
                    None => self.inode(number, name, (home, entry.ino)).await?,
                }
            }
            // What is omitted behind the last entry has been reported: do not read it again.
            if end {
                return Ok(());
            }
        }
    }

    /// The object of a file, if the dump is of one shard and another one has issued its number: the
    /// dump does not say up to where. What cannot be read is reported later.
    async fn foreign_object(
        &self,
        at: usize,
        entry: &DirEntry,
    ) -> Result<Option<ObjectId>, DumpError> {
        let superblock = self.sources[at].mfs.superblock();
        let may = superblock.features.has(Feature::FOLLOWED_OBJECTS);
        if !may || self.sources.len() > 1 || entry.kind != FileKind::Regular {
            return Ok(None);
        }
        let record = self.read(at, |txn| txn.layouts().object(entry.ino)).await?.ok().flatten();
        let object = record.map(|record| record.object);
        Ok(object.filter(|object| object.shard() != superblock.shard))
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

    fn leave_elsewhere(&mut self, ino: Ino, dir: Ino, name: &[u8]) {
        let name = String::from_utf8_lossy(name);
        self.report_elsewhere(format!("{name:?} in directory {dir}, which leads to inode {ino}"));
    }

    fn report_elsewhere(&mut self, line: String) {
        self.counts.elsewhere_count += 1;
        if self.counts.elsewhere.len() < LEFT_OUT_MAX {
            self.counts.elsewhere.push(line);
        }
    }

    /// Reports slots, and whole blocks, of a directory that cannot be read.
    async fn report_unread(
        &mut self,
        dir: Place,
        unread: &BTreeSet<(MetaBlock, Option<u32>)>,
    ) -> Result<(), DumpError> {
        if unread.is_empty() {
            return Ok(());
        }
        let what = self.subject(dir).await?;
        let names = self.sources[dir.0].mfs.superblock().features.slots().per_block();
        for (block, slot) in unread {
            self.report_damage(match slot {
                Some(slot) => format!("a name of {what}: slot {slot}, in metadata block {block}"),
                None => format!("up to {names} names of {what}: metadata block {block}"),
            });
        }
        Ok(())
    }

    /// Notes what is not in the dump.
    fn report_damage(&mut self, line: String) {
        self.counts.damaged_count += 1;
        if self.counts.damaged.len() < LEFT_OUT_MAX {
            self.counts.damaged.push(line);
        }
    }

    /// An inode in words: by its path, if that can be read.
    async fn subject(&self, (at, ino): Place) -> Result<String, DumpError> {
        let path = self.read(at, |txn| txn.names().path(ino)).await?.ok().flatten();
        Ok(match path {
            Some(path) => format!("{:?} (inode {ino})", String::from_utf8_lossy(&path)),
            None => format!("inode {ino}"),
        })
    }

    /// The result of `body`, or the damage that it met.
    async fn read<T>(
        &self,
        at: usize,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<Result<T, Damage>, DumpError> {
        match self.sources[at].mfs.run(Cost::READ, body).await {
            Ok((value, _)) => Ok(Ok(value)),
            Err(error) => Damage::new(error).map(Err),
        }
    }

    /// As [`Dump::read`]; what cannot be read is reported as `part` of the inode, and empty.
    async fn read_part<T: Default>(
        &mut self,
        place: Place,
        part: &str,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<T, DumpError> {
        match self.read(place.0, body).await? {
            Ok(value) => Ok(value),
            Err(damage) => {
                let what = self.subject(place).await?;
                self.report_damage(format!("the {part} of {what}: {damage}"));
                Ok(T::default())
            }
        }
    }

    async fn inode(
        &mut self,
        parent: u64,
        name: Vec<u8>,
        (at, ino): Place,
    ) -> Result<(), DumpError> {
        let body = |txn: &mut Txn<'_>| {
            let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
            // Attributes count inline data as a block, which it is not.
            Ok((attr, txn.names().locate_live(ino)?.1.blocks()))
        };
        let (attr, blocks) = match self.read(at, body).await? {
            Ok(said) => said,
            // Without the root there is nothing to dump.
            Err(damage) if parent == 0 => {
                return Err(DumpError::Damaged(format!("the root directory: {damage}")));
            }
            Err(damage) => {
                let name = String::from_utf8_lossy(&name).into_owned();
                self.report_damage(format!(
                    "{name:?}, a name of inode {ino}, with all below it: {damage}"
                ));
                return Ok(());
            }
        };
        let (kind, nlink) = (attr.kind, attr.nlink);
        if kind == FileKind::Directory && !self.directories.insert(ino) {
            let name = String::from_utf8_lossy(&name).into_owned();
            let text = format!("a second name, {name:?}, leads to directory {ino}");
            return Err(DumpError::Damaged(text));
        }
        let mut target = Vec::new();
        if kind == FileKind::Symlink {
            let part = "target (so the symbolic link)";
            target = self.read_part((at, ino), part, |txn| txn.names().symlink(ino)).await?;
            if target.is_empty() {
                return Ok(());
            }
        }
        let part = "extended attributes";
        let xattrs =
            self.read_part((at, ino), part, |txn| Ok(txn.names().load_xattrs(ino)?.2)).await?;
        self.counts.inodes += 1;
        let number = self.counts.inodes;
        let mut attr = Attr { ino: Ino(number), nlink: 0, blocks: 0, ..attr };
        if kind == FileKind::Directory {
            attr.size = 0;
            self.queue.push_back(((at, ino), number));
        } else if nlink > 1 {
            self.linked.insert(ino, number);
        }
        let inode = Inode { server: self.server(at), parent, name, attr, target, xattrs };
        self.out.put(&Record::Inode(Box::new(inode)))?;
        if kind == FileKind::Regular {
            self.file((at, ino), number, blocks).await?;
        }
        Ok(())
    }

    /// Writes where the content of a file lies, which counts `blocks` data blocks.
    async fn file(&mut self, place: Place, number: u64, blocks: u64) -> Result<(), DumpError> {
        let (_, ino) = place;
        if self.content {
            let part = "content that lies with it";
            let bytes = self.read_part(place, part, |txn| txn.layouts().content(ino)).await?;
            if !bytes.is_empty() {
                self.out.put(&Record::Content { number, bytes })?;
            }
        }
        if self.objects {
            let part = "object record";
            let record = self.read_part(place, part, |txn| txn.layouts().object(ino)).await?;
            if let Some(record) = record {
                self.out.put(&Record::Object { number, record })?;
            }
        }
        self.segments(place, number, blocks).await
    }

    /// Writes the segments of a file, which counts `counted` data blocks.
    async fn segments(
        &mut self,
        (at, ino): Place,
        number: u64,
        counted: u64,
    ) -> Result<(), DumpError> {
        let (mut from, mut mapped, mut without) = (FileBlock(0), 0u64, BTreeSet::new());
        let damage = loop {
            let read = self.sources[at].mfs.run(Cost::READ, |txn| match without.is_empty() {
                true => txn.layouts().layout(ino, from, SEGMENTS_MAX),
                false => layout_without(txn, ino, from, SEGMENTS_MAX, &without),
            });
            let list = match read.await {
                Ok((list, _)) => list,
                Err(StoreError::Corrupt { block, .. }) if without.insert(block) => continue,
                Err(error) => break Some(Damage::new(error)?),
            };
            let Some(last) = list.last() else { break None };
            from = FileBlock(last.end());
            self.counts.segments += list.len() as u64;
            mapped = list.iter().fold(mapped, |sum, segment| sum.saturating_add(segment.len));
            self.out.put(&Record::Segments { number, list })?;
        };
        if mapped != counted || damage.is_some() || !without.is_empty() {
            let what = self.subject((at, ino)).await?;
            let blocks: Vec<_> =
                without.iter().map(|block| format!("; metadata block {block}")).collect();
            self.report_damage(format!(
                "segments of {what}: it counts {counted} blocks of data, those in the dump have {mapped}{}",
                blocks.concat()
            ));
        }
        Ok(())
    }
}

/// Why something cannot be read.
struct Damage(String);

impl Damage {
    /// The damage that an error shows; an error of the device ends the dump.
    fn new(error: StoreError) -> Result<Damage, DumpError> {
        match error {
            StoreError::Corrupt { block, what } => {
                Ok(Damage(format!("metadata block {block}: {what}")))
            }
            StoreError::Fault(_) => Ok(Damage("there is no such inode".into())),
            error => Err(error.into()),
        }
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Segments of a file from block `from` on, at most `max`, without those in some damaged
/// blocks.
fn layout_without(
    txn: &mut Txn<'_>,
    ino: Ino,
    from: FileBlock,
    max: usize,
    without: &BTreeSet<MetaBlock>,
) -> Result<Vec<Segment>, Stop> {
    let (spot, slot) = txn.names().locate_live(ino)?;
    let wanted = |segment: &Segment| segment.end() > from.0;
    let mut out = slot.segments();
    let blocks = if slot.body() > 0 { slot.layout_blocks() } else { Vec::new() };
    for block in blocks.into_iter().filter(|block| !without.contains(block)) {
        out.extend(txn.layouts().layout_block_of(spot.block, block, ino)?);
    }
    out.retain(wanted);
    let (first, end) = (segment_key(ino, from.0), segment_key(ino, u64::MAX));
    if out.len() < max {
        SEGMENTS.range_without(txn, (&first, &end), without, |key, value| {
            out.extend(decode_item(key, value).map(|(_, segment)| segment));
            out.len() < max
        })?;
    }
    out.truncate(max);
    Ok(out)
}

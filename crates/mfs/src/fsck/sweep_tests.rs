//! Whatever block is lost, the report says of everything that it costs.
//!
//! In the gate some blocks of each kind are tried; `REDBUD_SWEEP=all cargo test -p redbud-mfs
//! fsck::sweep` tries all of them.
//!
//! Invariants, for a device with something of every kind, of which one block is zeros and the log
//! has none:
//! - what differs between the tree before the damage and that after a repair is told under LOST:
//!   names by name or directory, layouts by ranges that hold the blocks that are gone, and by how
//!   many these are, attributes by name or the first of their names;
//! - what is told to the byte is gone, and nothing that is there is told as gone;
//! - a second check finds nothing.

use std::collections::{BTreeMap, BTreeSet};

use env::sim::SimDisk;
use types::limits::{BLOCK, BLOCK_U64, CONTENT_MAX};
use types::{Attr, FileBlock, FileKind, Ino, MetaBlock, PagBlock, Segment, SegmentState};

use super::device_tests::{
    Shape, WRITE, ZONES, blocks_in_use, directory, in_world, name, new, open, populated_as, run,
    walked, wipe_log,
};
use super::lost::{KnownName, Loss};
use super::plan::TreeName;
use super::{FsckOptions, Lost, Repaired, Report, fsck, repair};
use crate::format::slot::SlotSize;
use crate::format::xattr::Xattr;
use crate::golden::lasting;
use crate::handle::Mfs;
use crate::names::{MapLimits, NewInode};
use crate::testing::links;
use crate::trees::{CHUNKS, PAGS};
use crate::txn::Txn;
use engine::btree::NodeContent;
use engine::error::Stop;
use engine::format::block::BlockType;

const OPTIONS: FsckOptions<'_> =
    FsckOptions { cache_bytes: 0, zones: &ZONES, ..FsckOptions::USUAL };
/// Segments of each of the files that fill leaves of the tree of segments.
const SEGMENTS: u64 = 700;

/// Losses without which the report would not say of all: each is the only one to do so somewhere.
const NEEDED: [&str; 11] = [
    "slots",
    "name",
    "links",
    "all names",
    "directory",
    "target",
    "xattrs",
    "xattrs from one on",
    "inline",
    "bytes",
    "holes",
];

/// What users have of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Told {
    attr: Attr,
    target: Vec<u8>,
    xattrs: Vec<Xattr>,
    content: Vec<u8>,
    layout: Vec<Segment>,
}

type Tree = BTreeMap<String, Told>;

fn told(txn: &mut Txn<'_>, ino: Ino) -> Result<Told, Stop> {
    let attr = txn.names().attr(ino)?.expect("it has a name");
    let mut xattrs = Vec::new();
    for (name, _) in txn.names().xattrs(ino)? {
        let value = txn.names().xattr(ino, &name)?.expect("it was listed");
        xattrs.push((name, value));
    }
    let file = attr.kind == FileKind::Regular;
    let (target, content) = match attr.kind {
        FileKind::Symlink => (txn.names().symlink(ino)?, Vec::new()),
        _ if file => (Vec::new(), txn.layouts().content(ino)?),
        _ => Default::default(),
    };
    let layout = if file { txn.layouts().layout(ino, FileBlock(0), 10_000)? } else { Vec::new() };
    Ok(Told { attr, target, xattrs, content, layout })
}

fn tree(disk: &SimDisk) -> Tree {
    walked(disk, told)
}

/// The mapped blocks of a file, and where they lie.
fn mapped(layout: &[Segment]) -> BTreeMap<u64, (u16, u64)> {
    let blocks = layout.iter().flat_map(|e| (0..e.len).map(move |n| (e.file.0 + n, e, n)));
    blocks.map(|(block, e, n)| (block, (e.pag.0, e.addr.0 + n))).collect()
}

async fn make(mfs: &Mfs, dir: Ino, text: &str, kind: FileKind, symlink: Option<&[u8]>) -> Ino {
    let new = NewInode { symlink, ..new(kind) };
    run(mfs, |txn| txn.names().create(dir, &name(text.to_owned()), &new, None)).await
}

/// What populated devices have too little of: content that holds names alone, long blobs, leaves
/// full of segments, layout blocks, depth, and directories of several chunks.
async fn furnish(mfs: &Mfs) {
    let dir = async |text: &str| run(mfs, |txn| directory(txn, Ino::ROOT, text.into())).await;
    let (files, names, blobs) = (dir("files").await, dir("names").await, dir("blobs").await);
    for n in 0..40 {
        let file = make(mfs, files, &format!("f{n}"), FileKind::Regular, None).await;
        run(mfs, |txn| {
            txn.names().link(names, &name(format!("n{n}")), file)?;
            links(txn, file, 1)?;
            if n % 5 > 0 {
                return Ok(());
            }
            // Some files have further names only, two beside each other.
            txn.names().link(names, &name(format!("m{n}")), file)?;
            txn.names().remove_name(files, &name(format!("f{n}"))).map(drop)
        })
        .await;
    }
    for n in 0..6 {
        let target = vec![b'a' + n; 2000 + 419 * usize::from(n)];
        make(mfs, blobs, &format!("s{n}"), FileKind::Symlink, Some(&target)).await;
        let file = make(mfs, blobs, &format!("x{n}"), FileKind::Regular, None).await;
        run(mfs, |txn| {
            let lengths = [100, 30, 5000, 200, 9000, 40];
            lengths[..=usize::from(n)].iter().enumerate().try_for_each(|(at, &len)| {
                txn.names().set_xattr(file, format!("user.{at}").as_bytes(), &vec![n; len])
            })
        })
        .await;
    }
    layouts(mfs, files).await;
    let mut deep = dir("deep").await;
    for n in 0..12 {
        deep = run(mfs, |txn| directory(txn, deep, format!("d{n}"))).await;
        make(mfs, deep, "file", FileKind::Regular, None).await;
        run(mfs, |txn| txn.names().set_xattr(deep, b"user.depth", &[n; 9])).await;
    }
    let long = dir("long").await;
    for n in 0..60 {
        if n % 20 == 0 {
            run(mfs, |txn| txn.names().begin_chunk(long)).await;
        }
        make(mfs, long, &format!("l{n}"), FileKind::Fifo, None).await;
    }
    small_files(mfs, files).await;
}

async fn layouts(mfs: &Mfs, files: Ino) {
    let client = run(mfs, |txn| txn.new_client(b"another")).await;
    let granted = run(mfs, |txn| txn.space().grant(client, None, 6 * SEGMENTS)).await;
    let mut pool =
        granted.iter().flat_map(|&(pag, addr, len)| (0..len).map(move |n| (pag, addr.0 + n)));
    // Some have a size that ends with their last block, some have holes, some are full.
    for (file, (step, count)) in
        [(2, SEGMENTS), (1, 30), (3, 60), (1, 200), (1, SEGMENTS)].iter().enumerate()
    {
        let ino = make(mfs, files, &format!("layout{file}"), FileKind::Regular, None).await;
        for n in 0..*count {
            // No two lie together.
            let (pag, addr) = pool.nth(1).expect("enough was granted");
            let at = FileBlock(if n % 50 == 49 { step * n } else { step * n + n % step });
            let segment = Segment {
                file: at,
                len: 1,
                pag,
                addr: PagBlock(addr),
                state: SegmentState::Written,
            };
            run(mfs, |txn| txn.layouts().map(ino, client, segment)).await;
        }
        let size = step * count * BLOCK_U64 - 7;
        run(mfs, |txn| {
            let attr = txn.names().attr(ino)?.unwrap();
            txn.names().set_attr(&Attr { size, ..attr })
        })
        .await;
    }
}

async fn small_files(mfs: &Mfs, files: Ino) {
    for n in 0..8 {
        let len = [50, 300, 900, CONTENT_MAX][n % 4];
        let new = NewInode { size: len as u64, ..new(FileKind::Regular) };
        run(mfs, |txn| {
            let ino = txn.names().create(files, &name(format!("small{n}")), &new, None)?;
            txn.layouts().set_content(ino, &vec![n as u8 + 1; len])
        })
        .await;
    }
}

/// A device without a log, and its tree.
struct Device {
    disk: SimDisk,
    before: Tree,
    /// The root of the table of data zones, which cannot be mended.
    zones: u64,
}

impl Device {
    fn new(size: SlotSize) -> Device {
        let shape = Shape { features: lasting(size), maps: MapLimits::TINY, dirs: 12 };
        let disk = populated_as(shape);
        let zones = in_world(&disk, |env| async move {
            let mfs = open(&env).await;
            furnish(&mfs).await;
            let zones = run(&mfs, |txn| Ok(PAGS.root_node(txn)?.unwrap().block.0)).await;
            mfs.close().await.unwrap();
            zones
        });
        wipe_log(&disk);
        let before = tree(&disk);
        Device { disk, before, zones }
    }

    /// Repairs the device without some of its blocks; what does not hold then, and what was lost.
    fn without(&self, blocks: &[u64], missed: &mut Kinds) -> (Vec<String>, Vec<Lost>) {
        let disk = self.disk.fork();
        blocks.iter().for_each(|at| disk.poke(at * BLOCK as u64, &[0; BLOCK]));
        let (repaired, again) = repaired(&disk);
        let after = tree(&disk);
        let mut faults = Vec::new();
        if !(repaired.left.is_clean() && again.is_clean()) {
            faults.push(format!("left {:?}, then {:?}", repaired.left.problems, again.problems));
        }
        faults.extend(Judge::new(&self.before, &after, repaired.lost.iter()).faults());
        if faults.is_empty() {
            self.withhold(&after, &repaired.lost, missed);
        }
        if !faults.is_empty() {
            faults.truncate(8);
            let lines = repaired.lost.iter().map(|lost| format!("LOST: {lost}"));
            faults.extend(lines.take(20));
            faults.extend(repaired.done.iter().take(40).cloned());
        }
        (faults, repaired.lost)
    }
}

impl Device {
    /// Notes the kinds of losses that would be missed in the report.
    fn withhold(&self, after: &Tree, lost: &[Lost], missed: &mut Kinds) {
        for without in lost {
            if missed.contains(kind(&without.loss)) {
                continue;
            }
            let rest = lost.iter().filter(|lost| *lost != without);
            if !Judge::new(&self.before, after, rest).faults().is_empty() {
                missed.insert(kind(&without.loss));
            }
        }
    }
}

fn repaired(disk: &SimDisk) -> (Repaired, Report) {
    in_world(disk, |env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        let repaired = repair(&env, &disk, OPTIONS).await.unwrap();
        (repaired, fsck(&env, &disk, OPTIONS).await.unwrap())
    })
}

/// Compares two trees, and both with what was told of what is lost.
struct Judge<'a> {
    before: &'a Tree,
    after: &'a Tree,
    lost: Vec<(&'a Loss, Option<String>)>,
    /// Directories as they are now; the root's path is empty.
    dirs: BTreeMap<Ino, String>,
    /// Something that is there, by number.
    inodes: BTreeMap<Ino, String>,
}

impl<'a> Judge<'a> {
    fn new(before: &'a Tree, after: &'a Tree, lost: impl Iterator<Item = &'a Lost>) -> Judge<'a> {
        let path = |lost: &Lost| lost.path().map(|path| String::from_utf8_lossy(path).into_owned());
        let lost = lost.map(|lost| (&lost.loss, path(lost))).collect();
        let inodes: BTreeMap<Ino, String> =
            after.iter().map(|(path, told)| (told.attr.ino, path.clone())).collect();
        let is_dir = |path: &str| after[path].attr.kind == FileKind::Directory;
        let dirs = inodes.iter().filter(|(_, path)| is_dir(path));
        let dirs = dirs.map(|(ino, path)| (*ino, path.clone())).collect();
        Judge { before, after, lost, dirs, inodes }
    }

    fn says(&self, of: impl Fn(&Loss, Option<&str>) -> bool) -> bool {
        self.lost.iter().any(|(loss, path)| of(loss, path.as_deref()))
    }

    fn faults(&self) -> Vec<String> {
        let mut out = Vec::new();
        for (path, was) in self.before {
            let ino = was.attr.ino;
            let now = self.place_of(path);
            if !now.as_ref().is_some_and(|now| self.holds(now, ino)) && !self.says_gone(path, ino) {
                out.push(format!("{path} ({ino}) is not at {now:?}, and nothing says so"));
            }
            if let Some(path) = self.inodes.get(&ino) {
                self.compare(path, was, &self.after[path], &mut out);
            }
        }
        let known: BTreeSet<Ino> = self.before.values().map(|told| told.attr.ino).collect();
        let new = self.after.iter().filter(|(path, told)| {
            !known.contains(&told.attr.ino) && !path.starts_with("/lost+found")
        });
        out.extend(new.map(|(path, _)| format!("{path} is new")));
        self.false_alarms(&mut out);
        out
    }

    /// Where what was at `path` should be now.
    fn place_of(&self, path: &str) -> Option<String> {
        let Some((parent, name)) = path.rsplit_once('/') else { return Some(String::new()) };
        Some(format!("{}/{name}", self.dirs.get(&self.before[parent].attr.ino)?))
    }

    fn holds(&self, path: &str, ino: Ino) -> bool {
        self.after.get(path).is_some_and(|told| told.attr.ino == ino)
    }

    /// Has an inode a name in this directory?
    fn is_in(&self, ino: Ino, dir: Ino) -> bool {
        self.after.iter().any(|(path, told)| {
            let parent = path.rsplit_once('/').map(|(parent, _)| parent);
            told.attr.ino == ino && parent == self.dirs.get(&dir).map(String::as_str)
        })
    }

    /// Does a loss say that a name is gone?
    fn says_gone(&self, path: &str, ino: Ino) -> bool {
        let parent = path.rsplit_once('/').map(|(parent, _)| self.before[parent].attr.ino);
        self.says(|loss, at| match loss {
            Loss::Slots { dir, .. } | Loss::Content { dir, .. } => Some(*dir) == parent,
            Loss::Root { content: true, .. } => parent == Some(Ino::ROOT),
            Loss::Name { .. } | Loss::Target { .. } => at == Some(path),
            Loss::Unknown(dir) => self.is_in(ino, *dir),
            Loss::AllNames { ino: of, .. } => *of == ino,
            Loss::Links { ino: of, .. } => *of == ino,
            _ => false,
        })
    }

    /// Compares an inode with what it was.
    fn compare(&self, path: &str, was: &Told, now: &Told, out: &mut Vec<String>) {
        let ino = was.attr.ino;
        let anew = self.says(|loss, _| match loss {
            Loss::Directory(of) => *of == ino,
            Loss::Root { .. } => ino == Ino::ROOT,
            _ => false,
        });
        if anew {
            return;
        }
        let mut differs = |what: &str| out.push(format!("{path} ({ino}): {what}"));
        let attr = |attr: &Attr| {
            let size = if attr.kind == FileKind::Directory { 0 } else { attr.size };
            (attr.kind, attr.mode, attr.uid, attr.gid, attr.mtime, size)
        };
        if attr(&was.attr) != attr(&now.attr) || was.target != now.target {
            differs(&format!("{:?} and {:?}", was.attr, now.attr));
        }
        let (counted, left) = (was.attr.nlink, now.attr.nlink);
        if counted != left && was.attr.kind != FileKind::Directory {
            let said = |loss: &Loss, _: Option<&str>| {
                [Loss::Links { ino, counted, left }, Loss::AllNames { ino, counted }].contains(loss)
            };
            // An orphan whose directory is lost gets a further name.
            let more = left > counted && self.inodes[&ino].starts_with("/lost+found/");
            if !more && !self.says(said) {
                differs(&format!("{left} links, {counted} before"));
            }
        }
        let gone = |(name, _): &&Xattr| !now.xattrs.iter().any(|(there, _)| there == name);
        let from = was.xattrs.iter().find(gone).map(|(name, _)| name);
        if from.is_some_and(|name| !self.says_xattr(ino, name))
            || now.xattrs.iter().any(|xattr| !was.xattrs.contains(xattr))
        {
            let names = |told: &Told| told.xattrs.iter().map(|it| it.0.clone()).collect::<Vec<_>>();
            differs(&format!("attributes {:?}, and {:?} before", names(now), names(was)));
        }
        let inline = Loss::Inline { ino, from: 0, to: was.attr.size.min(CONTENT_MAX as u64) };
        if was.content != now.content && !self.says(|loss, _| *loss == inline) {
            differs("its content");
        }
        self.compare_layout(ino, was, now, &mut differs);
    }

    fn says_xattr(&self, ino: Ino, name: &Vec<u8>) -> bool {
        self.says(|loss, _| match loss {
            Loss::Xattrs { ino: of, from: None } => *of == ino,
            Loss::Xattrs { ino: of, from: Some((first, KnownName::First)) } => {
                (*of, first) == (ino, name)
            }
            Loss::Xattrs { ino: of, from: Some((last, KnownName::Before)) } => {
                *of == ino && last < name
            }
            _ => false,
        })
    }

    fn compare_layout(&self, ino: Ino, was: &Told, now: &Told, differs: &mut impl FnMut(&str)) {
        let (before, after) = (mapped(&was.layout), mapped(&now.layout));
        if after.iter().any(|(block, addr)| before.get(block) != Some(addr)) {
            differs("it has segments that it had not");
        }
        let gone: BTreeSet<u64> =
            before.keys().copied().filter(|block| !after.contains_key(block)).collect();
        let (mut exact, mut holes, mut some) = (BTreeSet::new(), BTreeSet::new(), 0);
        for (loss, _) in &self.lost {
            match **loss {
                Loss::Bytes { ino: of, from, to } if of == ino => {
                    exact.extend(from / BLOCK_U64..to.div_ceil(BLOCK_U64));
                }
                Loss::Holes { ino: of, bytes, from, to } if of == ino => {
                    some += bytes / BLOCK_U64;
                    let end = to.map_or(u64::MAX, |to| to.div_ceil(BLOCK_U64));
                    holes.extend(gone.iter().filter(|at| (from / BLOCK_U64..end).contains(at)));
                }
                _ => {}
            }
        }
        if !exact.is_subset(&gone) {
            differs(&format!("{exact:?} are told as gone, and {gone:?} are"));
        }
        let rest: BTreeSet<u64> = gone.difference(&exact).copied().collect();
        if rest.len() as u64 != some || !rest.is_subset(&holes) {
            differs(&format!("{some} of {holes:?} are told as gone, and {rest:?} are"));
        }
    }

    /// What is told as gone and is there.
    fn false_alarms(&self, out: &mut Vec<String>) {
        let by_number =
            |tree: &Tree, ino: Ino| tree.values().find(|told| told.attr.ino == ino).cloned();
        for (loss, path) in &self.lost {
            let (ino, is_there) = match loss {
                Loss::Name { ino, .. } | Loss::Target { ino, .. } => {
                    let path = path.as_deref().unwrap_or_default();
                    (*ino, self.after.contains_key(path))
                }
                Loss::Links { ino, .. } | Loss::AllNames { ino, .. } => {
                    let nlink = |tree| by_number(tree, *ino).map(|told| told.attr.nlink);
                    let paths = |tree: &Tree| {
                        tree.iter()
                            .filter(|(_, it)| it.attr.ino == *ino)
                            .map(|(p, _)| p.clone())
                            .collect()
                    };
                    let (was, now): (Vec<String>, Vec<String>) =
                        (paths(self.before), paths(self.after));
                    (*ino, nlink(self.before) == nlink(self.after) && was == now)
                }
                Loss::Xattrs { ino, .. } => {
                    let all = |tree| by_number(tree, *ino).map(|told| told.xattrs);
                    (*ino, all(self.before) == all(self.after))
                }
                Loss::Inline { ino, .. } => {
                    let all = |tree| by_number(tree, *ino).map(|told| told.content);
                    (*ino, all(self.before) == all(self.after))
                }
                Loss::Stray(ino) => (*ino, self.inodes.contains_key(ino)),
                _ => continue,
            };
            if is_there {
                out.push(format!("{ino} has what was told as gone: {loss:?}"));
            }
        }
        let counts = |tree: &Tree| {
            tree.values().map(|told| told.attr.ino).collect::<BTreeSet<Ino>>().len() as u64
        };
        let fewer = counts(self.before).saturating_sub(counts(self.after));
        let said = self.lost.iter().find_map(|(loss, _)| match loss {
            Loss::Inodes { counted, left } => Some(counted - left),
            _ => None,
        });
        // What was removed and open has no path.
        let has_found = self.after.contains_key("/lost+found");
        if fewer > said.unwrap_or(0) + u64::from(has_found) {
            out.push(format!("{fewer} inodes are gone, {said:?} are told"));
        }
    }
}

/// Kinds of what was told.
type Kinds = BTreeSet<&'static str>;

fn kind(loss: &Loss) -> &'static str {
    match loss {
        Loss::Slots { .. } => "slots",
        Loss::Content { .. } => "content",
        Loss::Slot { .. } => "slot",
        Loss::Name { .. } => "name",
        Loss::Links { .. } => "links",
        Loss::AllNames { .. } => "all names",
        Loss::Directory(_) => "directory",
        Loss::Unknown(_) => "unknown",
        Loss::Root { content: false, .. } => "root",
        Loss::Root { content: true, .. } => "root and its content",
        Loss::Target { .. } => "target",
        Loss::Xattrs { from: None, .. } => "xattrs",
        Loss::Xattrs { from: Some((_, KnownName::First)), .. } => "xattrs from one on",
        Loss::Xattrs { from: Some((_, KnownName::Before)), .. } => "xattrs behind one",
        Loss::Inline { .. } => "inline",
        Loss::Bytes { .. } => "bytes",
        Loss::Holes { .. } => "holes",
        Loss::Object(_) => "object",
        Loss::Outside(_) => "names on other shards",
        Loss::Operation(_) => "operation",
        Loss::Stray(_) => "stray",
        Loss::Inodes { .. } => "inodes",
        Loss::Replies => "replies",
        Loss::Client(_) => "client",
        Loss::Setting(_) => "setting",
        Loss::Table(TreeName::Quarantines) => "quarantines",
        Loss::Table(_) => "table",
        Loss::Past => "past",
        Loss::Data { .. } => "data",
    }
}

/// What a sweep must meet, and what nothing else would tell.
fn are_met(told: &Kinds, wanted: &[&str], missed: &Kinds, needed: &[&str]) {
    assert!(wanted.iter().all(|kind| told.contains(kind)), "told {told:?}, wanted {wanted:?}");
    assert!(
        needed.iter().all(|kind| missed.contains(kind)),
        "missed {missed:?}, needed {needed:?}"
    );
}

fn is_all() -> bool {
    std::env::var("REDBUD_SWEEP").is_ok_and(|what| what == "all")
}

#[test]
fn repair_reports_every_loss_whatever_block_is_lost() {
    let (mut told, mut missed) = (Kinds::new(), Kinds::new());
    for size in SlotSize::ALL {
        let device = Device::new(size);
        let mut met: BTreeMap<BlockType, usize> = BTreeMap::new();
        for (at, kind) in blocks_in_use(&device.disk) {
            if kind == BlockType::Super || at == device.zones {
                continue;
            }
            let n = met.entry(kind).or_default();
            *n += 1;
            // Of each kind every so many, others with each size of slots.
            let step = if kind.is_content() { 12 } else { 4 };
            if !is_all() && !(*n + size as usize).is_multiple_of(step) {
                continue;
            }
            let (faults, lost) = device.without(&[at], &mut missed);
            assert!(faults.is_empty(), "{size:?}, {kind:?} {at}: {}", faults.join("\n  "));
            told.extend(lost.iter().map(|lost| self::kind(&lost.loss)));
        }
    }
    let others = ["inodes", "replies", "client", "quarantines", "table", "data"];
    are_met(&told, &others, &missed, &NEEDED);
}

#[test]
fn damage_that_only_a_lost_leaf_led_to_is_reported_too() {
    let (mut told, mut missed) = (Kinds::new(), Kinds::new());
    for size in [SlotSize::Bytes512, SlotSize::Bytes2048] {
        let device = Device::new(size);
        let leaves = in_world(&device.disk.fork(), |env| async move {
            let mfs = open(&env).await;
            run(&mfs, |txn| {
                let root = CHUNKS.root_node(txn)?.unwrap();
                match CHUNKS.inspect(txn, &root)? {
                    NodeContent::Inner(_, leaves) => {
                        Ok(leaves.iter().map(|leaf| leaf.block).collect())
                    }
                    NodeContent::Leaf(_) => Ok(vec![root.block]),
                }
            })
            .await
        });
        let content = blocks_in_use(&device.disk).into_iter().filter(|(_, kind)| kind.is_content());
        let content: Vec<u64> = content.map(|(at, _)| at).collect();
        for MetaBlock(leaf) in leaves {
            for (n, &at) in content.iter().enumerate() {
                if !is_all() && !n.is_multiple_of(17) {
                    continue;
                }
                let (faults, lost) = device.without(&[leaf, at], &mut missed);
                assert!(faults.is_empty(), "{size:?}, {leaf} and {at}: {}", faults.join("\n  "));
                told.extend(lost.iter().map(|lost| kind(&lost.loss)));
            }
        }
    }
    are_met(&told, &["root and its content"], &missed, &["content", "unknown"]);
}

//! Both layouts against each other, operation for operation; the traditional one through crashes.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use env::sim::{CrashOptions, SimDisk, SimRng, SimWorld, crash_images};
use env::{DiskOptions, Env};
use mfs::{
    Cost, FormatOptions, Mfs, NewInode, OpenOptions, PagFormat, Reserve, RootId, Stop, StoreError,
    Txn,
};
use types::{
    Attr, ClientId, Fault, FileBlock, FileKind, Ino, Name, PagBlock, PagId, Segment, SegmentState,
    Timestamp, Uuid,
};

use crate::{Embedded, Geometry, Layout, Listing, Traditional};

/// The value of a future that never waits, such as anything on a volatile store.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future waits"),
    }
}

fn run<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> Result<T, Fault> {
    match now(mfs.run(Cost::STEP, body)) {
        Ok((value, _)) => Ok(value),
        Err(StoreError::Fault(fault)) => Err(fault),
        Err(other) => panic!("{other}"),
    }
}

fn options(log_bytes: u64) -> FormatOptions {
    let (name, uuid) = ("test".to_owned(), Uuid([7; 16]));
    FormatOptions {
        name,
        uuid,
        log_bytes,
        pags: Vec::new(),
        features: mfs::Features::NONE,
        force: false,
    }
}

fn small_groups(mfs: &Mfs) -> Geometry {
    let first = types::MetaBlock(mfs.superblock().reserved());
    Geometry { first, groups: 5, group_blocks: 200, group_inodes: 64 }
}

fn volatile() -> Mfs {
    let mfs = Mfs::volatile(20_000);
    run(&mfs, |txn| mfs::mkfs::write_initial_content(txn, &options(0))).unwrap();
    mfs
}

fn traditional(hashed: bool, group_inodes: u64) -> (Mfs, Traditional) {
    let mfs = volatile();
    let geometry = Geometry { group_inodes, ..small_groups(&mfs) };
    run(&mfs, |txn| Traditional::format(txn, geometry, hashed)).unwrap();
    let layout = run(&mfs, Traditional::open).unwrap();
    (mfs, layout)
}

fn name(text: impl AsRef<[u8]>) -> Name {
    Name::new(text.as_ref()).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp { seconds: second, nanos: 5 }
}

fn new(kind: FileKind, second: i64) -> NewInode<'static> {
    let time = at(second);
    NewInode {
        kind,
        mode: 0o640,
        uid: 1,
        gid: 2,
        rdev: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        client: ClientId::NONE,
        symlink: None,
    }
}

/// An operation, by paths, so that it means the same in every layout.
#[derive(Clone, Debug)]
enum Op {
    Create(usize, Name, FileKind),
    Mkdir(usize, Name),
    Lookup(usize, Name),
    Chmod(usize, Name, u16),
    Unlink(usize, Name),
    Rmdir(usize, Name),
    Rename(usize, Name, usize, Name),
}

/// Draws the next operation; directories are numbered in the order in which a walk finds them.
fn draw(rng: &mut SimRng, names: u64) -> Op {
    let mut text = || {
        let number = rng.below(names);
        let len = [2, 9, 40, 250][(number % 4) as usize];
        name(format!("{number:0len$}"))
    };
    let (a, b) = (text(), text());
    let (dir, other) = (rng.below(7) as usize, rng.below(7) as usize);
    match rng.below(20) {
        0..8 => Op::Create(dir, a, FileKind::Regular),
        8 => Op::Create(dir, a, FileKind::Fifo),
        9 => Op::Mkdir(dir, a),
        10 => Op::Lookup(dir, a),
        11 | 12 => Op::Chmod(dir, a, rng.below(0o1000) as u16),
        13..16 => Op::Unlink(dir, a),
        16 => Op::Rmdir(dir, a),
        _ => Op::Rename(dir, a, other, b),
    }
}

/// All entries of a directory, read in small pieces.
fn list(
    layout: &dyn Layout,
    txn: &mut Txn<'_>,
    dir: Ino,
    max: usize,
) -> Result<Vec<(Name, Attr)>, Stop> {
    let mut out = Vec::new();
    let mut listing = Listing { after: 0, max, attrs: true };
    loop {
        let entries = layout.readdir(txn, dir, listing)?;
        let Some(last) = entries.last() else { return Ok(out) };
        listing.after = last.cookie;
        for entry in entries {
            let attr = entry.attr.expect("attributes were asked for");
            assert_eq!((entry.ino, entry.kind), (attr.ino, attr.kind));
            out.push((entry.name, attr));
        }
    }
}

/// The directories, root first, in the order of their paths.
fn directories(layout: &dyn Layout, txn: &mut Txn<'_>) -> Result<Vec<Ino>, Stop> {
    let mut out = vec![Ino::ROOT];
    let mut at = 0;
    while at < out.len() {
        let mut entries = list(layout, txn, out[at], 100)?;
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let dirs = entries.iter().filter(|(_, attr)| attr.kind == FileKind::Directory);
        out.extend(dirs.map(|(_, attr)| attr.ino));
        at += 1;
    }
    Ok(out)
}

/// Everything that can be seen, but for what layouts may differ in.
fn dump(layout: &dyn Layout, txn: &mut Txn<'_>) -> Result<BTreeMap<String, Vec<String>>, Stop> {
    let mut out = BTreeMap::new();
    for (number, dir) in directories(layout, txn)?.into_iter().enumerate() {
        let mut lines = Vec::new();
        let mut entries = list(layout, txn, dir, 3)?;
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, attr) in entries {
            assert_eq!(layout.lookup(txn, dir, &name)?, Some(attr.ino));
            assert_eq!(layout.attr(txn, attr.ino)?, Some(attr));
            lines.push(format!("{name} {}", shown(&attr)));
        }
        let attr = layout.attr(txn, dir)?.expect("a directory that was found");
        out.insert(format!("{number} {}", shown(&attr)), lines);
    }
    Ok(out)
}

fn shown(attr: &Attr) -> String {
    let size = if attr.kind == FileKind::Directory { 0 } else { attr.size };
    let root_times = attr.ino == Ino::ROOT && attr.version == 1;
    let times = if root_times { [at(0); 3] } else { [attr.atime, attr.mtime, attr.ctime] };
    let Attr { kind, mode, nlink, uid, gid, version, .. } = *attr;
    format!("{kind:?} {mode:o} {nlink} {uid} {gid} {size} {version} {times:?}")
}

/// Does the operation; what it answered, and the inode that lost a name.
fn apply(
    layout: &dyn Layout,
    txn: &mut Txn<'_>,
    op: &Op,
    second: i64,
) -> Result<(bool, Option<Ino>), Stop> {
    let dirs = directories(layout, txn)?;
    let dir = |number: usize| dirs[number % dirs.len()];
    match op {
        Op::Create(d, name, kind) => {
            layout.create(txn, dir(*d), name, &new(*kind, second))?;
        }
        Op::Mkdir(d, name) => {
            layout.mkdir(txn, dir(*d), name, &new(FileKind::Directory, second))?;
        }
        Op::Lookup(d, name) => return Ok((layout.lookup(txn, dir(*d), name)?.is_some(), None)),
        Op::Chmod(d, name, mode) => {
            let ino = layout.lookup(txn, dir(*d), name)?.ok_or(Fault::NotFound)?;
            let attr = layout.attr(txn, ino)?.ok_or(Fault::Stale)?;
            layout.set_attr(txn, &Attr { mode: *mode, version: attr.version + 1, ..attr })?;
        }
        Op::Unlink(d, name) => {
            return Ok((true, Some(layout.unlink(txn, dir(*d), name, at(second))?)));
        }
        Op::Rmdir(d, name) => {
            return Ok((true, Some(layout.rmdir(txn, dir(*d), name, at(second))?)));
        }
        Op::Rename(d, name, e, to) => {
            layout.rename(txn, (dir(*d), name), (dir(*e), to), at(second))?;
        }
    }
    Ok((true, None))
}

#[test]
fn layouts_return_the_same_results() {
    let mut faults = BTreeMap::new();
    for (seed, names) in [(1, 30), (2, 200), (3, 400), (4, 12)] {
        let mut rng = SimRng::new(seed);
        let stores = [traditional(false, 640), traditional(true, 640)];
        let embedded = volatile();
        for second in 0..1200 {
            let op = draw(&mut rng, names);
            let mut answers = Vec::new();
            let mut dumps = Vec::new();
            let all: [(&Mfs, &dyn Layout); 3] = [
                (&embedded, &Embedded),
                (&stores[0].0, &stores[0].1),
                (&stores[1].0, &stores[1].1),
            ];
            for (mfs, layout) in all {
                let answer = run(mfs, |txn| apply(layout, txn, &op, second));
                if let Ok((_, Some(ino))) = answer {
                    while !run(mfs, |txn| layout.reclaim(txn, ino)).unwrap() {}
                }
                answers.push(answer.map(|(done, _)| done));
                if second % 50 == 49 {
                    dumps.push(run(mfs, |txn| dump(layout, txn)).unwrap());
                }
            }
            assert_eq!(answers[0], answers[1], "linear, seed {seed}: {op:?}");
            assert_eq!(answers[0], answers[2], "hashed, seed {seed}: {op:?}");
            assert!(dumps.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}, {second}");
            *faults.entry(format!("{:?}", answers[0])).or_insert(0) += 1;
        }
        for (mfs, layout) in &stores {
            let problems = run(mfs, |txn| layout.check(txn)).unwrap();
            assert_eq!(problems, Vec::<String>::new(), "seed {seed}");
        }
    }
    for wanted in ["Exists", "NotFound", "IsDirectory", "NotDirectory", "NotEmpty", "Invalid"] {
        assert!(faults.contains_key(&format!("Err({wanted})")), "{wanted}: {faults:?}");
    }
}

#[test]
fn directory_beyond_every_index_level_keeps_names_and_frees_blocks() {
    const FILES: u64 = 14_000;
    for hashed in [false, true] {
        let mfs = Mfs::volatile(60_000);
        run(&mfs, |txn| mfs::mkfs::write_initial_content(txn, &options(0))).unwrap();
        let first = types::MetaBlock(mfs.superblock().reserved());
        let geometry = Geometry { first, groups: 4, group_blocks: 4000, group_inodes: 4096 };
        run(&mfs, |txn| Traditional::format(txn, geometry, hashed)).unwrap();
        let layout = run(&mfs, Traditional::open).unwrap();
        let make = new(FileKind::Directory, 1);
        let dir = run(&mfs, |txn| layout.mkdir(txn, Ino::ROOT, &name("dir"), &make)).unwrap();
        let long = |number: u64| name(format!("{number:0240}"));
        for number in 0..FILES {
            let make = new(FileKind::Regular, 2);
            run(&mfs, |txn| layout.create(txn, dir, &long(number), &make)).unwrap();
        }
        let blocks = run(&mfs, |txn| layout.attr(txn, dir)).unwrap().unwrap().blocks;
        assert!(blocks > 12 + 508 + 100, "{blocks} blocks do not reach the double indirection");
        let listed = run(&mfs, |txn| list(&layout, txn, dir, 1000)).unwrap();
        assert_eq!(listed.len() as u64, FILES);
        let problems = run(&mfs, |txn| layout.check(txn)).unwrap();
        assert_eq!(problems, Vec::<String>::new(), "hashed: {hashed}");
        for number in 0..FILES {
            let ino = run(&mfs, |txn| layout.unlink(txn, dir, &long(number), at(3))).unwrap();
            assert!(run(&mfs, |txn| layout.reclaim(txn, ino)).unwrap());
        }
        let gone = run(&mfs, |txn| layout.rmdir(txn, Ino::ROOT, &name("dir"), at(4))).unwrap();
        let mut steps = 1;
        while !run(&mfs, |txn| layout.reclaim(txn, gone)).unwrap() {
            steps += 1;
        }
        assert!(steps > 5, "a large directory is freed in steps");
        let problems = run(&mfs, |txn| layout.check(txn)).unwrap();
        assert_eq!(problems, Vec::<String>::new(), "hashed: {hashed}");
    }
}

#[test]
fn inodes_are_near_their_directory_and_root_directories_apart() {
    let (mfs, layout) = traditional(false, 64);
    let group = |ino: Ino| (ino.0 - 1) / 64;
    let mut groups = std::collections::BTreeSet::new();
    for text in ["a", "b", "c", "d"] {
        let make = new(FileKind::Directory, 1);
        let dir = run(&mfs, |txn| layout.mkdir(txn, Ino::ROOT, &name(text), &make)).unwrap();
        groups.insert(group(dir));
        for number in 0..20 {
            let make = new(FileKind::Regular, 1);
            let file = name(format!("{number}"));
            let ino = run(&mfs, |txn| layout.create(txn, dir, &file, &make)).unwrap();
            assert_eq!(group(ino), group(dir));
        }
    }
    assert_eq!(groups.len(), 4, "{groups:?}");
    let make = new(FileKind::Regular, 1);
    let full = (0..400).find_map(|number| {
        let file = name(format!("more{number}"));
        run(&mfs, |txn| layout.create(txn, Ino::ROOT, &file, &make)).err()
    });
    assert_eq!(full, Some(Fault::NoSpace), "five groups of 64 inodes are full");
    assert_eq!(run(&mfs, |txn| layout.check(txn)).unwrap(), Vec::<String>::new());
}

#[test]
fn check_finds_planted_damage() {
    let (mfs, layout) = traditional(true, 64);
    for number in 0..200 {
        let make = new(FileKind::Regular, 1);
        let file = name(format!("some-file-{number}"));
        run(&mfs, |txn| layout.create(txn, Ino::ROOT, &file, &make)).unwrap();
    }
    let ino = run(&mfs, |txn| layout.lookup(txn, Ino::ROOT, &name("some-file-7"))).unwrap();
    let attr = run(&mfs, |txn| layout.attr(txn, ino.unwrap())).unwrap().unwrap();
    run(&mfs, |txn| layout.set_attr(txn, &Attr { nlink: 2, ..attr })).unwrap();
    let problems = run(&mfs, |txn| layout.check(txn)).unwrap();
    assert!(problems.iter().any(|text| text.contains("2 links")), "{problems:?}");
    run(&mfs, |txn| layout.set_attr(txn, &attr)).unwrap();
    run(&mfs, |txn| txn.alloc_meta(1, None).map(drop)).unwrap_or(());
    let lost = run(&mfs, |txn| {
        let block = txn.alloc_meta(1, None)?;
        txn.init(block, mfs::BlockType::Table).map(drop)
    });
    lost.unwrap();
    let problems = run(&mfs, |txn| layout.check(txn)).unwrap();
    assert!(problems.iter().any(|text| text.contains("are allocated")), "{problems:?}");
}

const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
/// Counts the operations that have been done.
const COUNT: RootId = RootId(60);
const COST: Cost = Cost { log_bytes: 100 << 10, dirty: 32, reserve: Reserve::ToFree };

async fn open(env: &Env) -> Mfs {
    let disk = env.open_disk("meta", WRITE).await.unwrap();
    let options = OpenOptions { cache_bytes: 0, ..OpenOptions::default() };
    Mfs::open(env, &disk, options).await.unwrap()
}

async fn look<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    mfs.run(Cost::READ, body).await.unwrap().0
}

type Dump = BTreeMap<String, Vec<String>>;

/// Runs operations on a recorded disk; gives what could be seen after each, and the recording.
fn record(seed: u64, hashed: bool) -> (Vec<Dump>, env::sim::Recording) {
    let world = SimWorld::new(seed);
    let disk = world.disk("meta", 12 << 20);
    let recorded: SimDisk = disk.clone();
    let dumps = world.run(|env| async move {
        let device = env.open_disk("meta", WRITE).await.unwrap();
        Mfs::format(&env, &device, &options(4 << 20)).await.unwrap();
        let mfs = open(&env).await;
        let geometry = small_groups(&mfs);
        mfs.run(Cost::STEP, |txn| Traditional::format(txn, geometry, hashed)).await.unwrap();
        let layout = look(&mfs, Traditional::open).await;
        mfs.sync().await.unwrap();
        recorded.record();
        let mut rng = SimRng::new(seed);
        let mut dumps = vec![look(&mfs, |txn| dump(&layout, txn)).await];
        let mut reclaim = Vec::new();
        for second in 0..400 {
            // Directories that are made and removed leave orphans, as files do not.
            let op = match second % 25 {
                11 => Op::Mkdir(0, name("passing")),
                12 => Op::Rmdir(0, name("passing")),
                _ => draw(&mut rng, 60),
            };
            let count = dumps.len() as u64;
            let done = mfs.run(COST, |txn| {
                let (_, ino) = apply(&layout, txn, &op, second)?;
                txn.set_root(COUNT, count)?;
                // A file has gone with its name.
                match ino {
                    Some(ino) => Ok(layout.attr(txn, ino)?.map(|attr| attr.ino)),
                    None => Ok(None),
                }
            });
            match done.await {
                Ok((ino, _)) => {
                    reclaim.extend(ino);
                    dumps.push(look(&mfs, |txn| dump(&layout, txn)).await);
                }
                Err(StoreError::Fault(_)) => {}
                Err(other) => panic!("{other}"),
            }
            if reclaim.len() > 3 {
                let ino = reclaim.remove(rng.below(4) as usize);
                while !mfs.run(COST, |txn| layout.reclaim(txn, ino)).await.unwrap().0 {}
            }
            if rng.one_in(9) {
                mfs.sync().await.unwrap();
            }
        }
        mfs.sync().await.unwrap();
        dumps
    });
    (dumps, disk.recording().unwrap())
}

#[test]
fn every_crash_leaves_a_consistent_namespace() {
    for (seed, hashed) in [(1, false), (2, true)] {
        let (dumps, recording) = record(seed, hashed);
        assert!(dumps.len() > 150, "{}", dumps.len());
        let (mut images, mut orphans) = (0, 0);
        let options = CrashOptions { seed, subsets: 1 };
        for point in crash_images(vec![recording], options).step_by(2) {
            images += 1;
            let world = SimWorld::new(seed);
            world.attach("meta", point.disk());
            let (dumps, what) = (&dumps, &point.description);
            orphans += world.run(|env| async move {
                let mfs = open(&env).await;
                let layout = look(&mfs, Traditional::open).await;
                let count = look(&mfs, |txn| txn.root(COUNT)).await as usize;
                let seen = look(&mfs, |txn| dump(&layout, txn)).await;
                assert_eq!(seen, dumps[count], "{what}: operation {count}");
                let problems = look(&mfs, |txn| layout.check(txn)).await;
                assert_eq!(problems, Vec::<String>::new(), "{what}");
                let orphans = look(&mfs, |txn| layout.orphans(txn)).await;
                for &ino in &orphans {
                    while !mfs.run(COST, |txn| layout.reclaim(txn, ino)).await.unwrap().0 {}
                }
                let problems = look(&mfs, |txn| layout.check(txn)).await;
                assert_eq!(problems, Vec::<String>::new(), "{what}, orphans freed");
                orphans.len()
            });
        }
        assert!(images > 50 && orphans > 10, "{images} images, {orphans} orphans");
    }
}

const CLIENT: ClientId = ClientId(1);

/// Thirty files, file n with n appended pieces, of which each second one continues the one before
/// it. Gives what they map and how many blocks they count, and takes all of it away again.
fn map_and_free(mfs: &Mfs, layout: &dyn Layout) -> (Vec<Vec<Segment>>, u64) {
    let pieces = run(mfs, |txn| txn.space().grant(CLIENT, None, 2000)).unwrap();
    let (pag, PagBlock(start), _) = pieces[0];
    let (mut files, mut maps, mut blocks) = (Vec::new(), Vec::new(), 0);
    for number in 0..30u64 {
        let (file, make) = (name(format!("f{number}")), new(FileKind::Regular, 1));
        let ino = run(mfs, |txn| layout.create(txn, Ino::ROOT, &file, &make)).unwrap();
        for piece in 0..number {
            let (pair, second) = (piece / 2, piece % 2);
            let addr = PagBlock(start + 64 * number + 4 * pair + second);
            let (file, len) = (FileBlock(3 * pair + second), 1 + second);
            let segment = Segment { file, len, pag, addr, state: SegmentState::Written };
            run(mfs, |txn| layout.map(txn, ino, CLIENT, segment)).unwrap();
        }
        let map = run(mfs, |txn| layout.segments(txn, ino)).unwrap();
        assert_eq!(map.len() as u64, number.div_ceil(2), "pieces that continue each other are one");
        maps.push(map.iter().map(|segment| from(segment, start)).collect());
        blocks += run(mfs, |txn| layout.attr(txn, ino)).unwrap().unwrap().blocks;
        files.push(file);
    }
    for file in &files {
        let ino = run(mfs, |txn| layout.unlink(txn, Ino::ROOT, file, at(2))).unwrap();
        while !run(mfs, |txn| layout.reclaim(txn, ino)).unwrap() {}
    }
    for (pag, addr, len) in run(mfs, |txn| txn.space().pool(CLIENT)).unwrap() {
        run(mfs, |txn| txn.space().pool_return(CLIENT, pag, addr, len)).unwrap();
    }
    while run(mfs, |txn| txn.space().release_freed(64)).unwrap() > 0 {}
    (maps, blocks)
}

/// The segment with its address counted from `start`.
fn from(segment: &Segment, start: u64) -> Segment {
    Segment { addr: PagBlock(segment.addr.0 - start), ..*segment }
}

#[test]
fn layouts_map_and_free_the_same_segments() {
    let pag = PagFormat::whole(PagId(0), Uuid([9; 16]), 10_000);
    let mut shown = Vec::new();
    for hashed in [None, Some(false), Some(true)] {
        let mfs = Mfs::volatile(20_000);
        let options = FormatOptions { pags: vec![pag], ..options(0) };
        run(&mfs, |txn| mfs::mkfs::write_initial_content(txn, &options)).unwrap();
        let layout: Box<dyn Layout> = match hashed {
            None => Box::new(Embedded),
            Some(hashed) => {
                let geometry = Geometry { group_inodes: 640, ..small_groups(&mfs) };
                run(&mfs, |txn| Traditional::format(txn, geometry, hashed)).unwrap();
                Box::new(run(&mfs, Traditional::open).unwrap())
            }
        };
        let first = map_and_free(&mfs, &*layout);
        let free = run(&mfs, |txn| Ok(txn.meta_space())).unwrap();
        assert_eq!(map_and_free(&mfs, &*layout), first, "{}", layout.text());
        assert_eq!(run(&mfs, |txn| Ok(txn.meta_space())).unwrap(), free, "{}", layout.text());
        let pags = run(&mfs, |txn| txn.space().pags()).unwrap();
        assert_eq!((pags[0].freed, pags[0].free), (0, pags[0].total), "{}", layout.text());
        shown.push(first);
    }
    assert_eq!(shown[0], shown[1]);
    assert_eq!(shown[0], shown[2]);
}

#[test]
fn only_files_map_granted_blocks_beyond_their_end() {
    let mfs = Mfs::volatile(20_000);
    let pag = PagFormat::whole(PagId(0), Uuid([9; 16]), 10_000);
    let options = FormatOptions { pags: vec![pag], ..options(0) };
    run(&mfs, |txn| mfs::mkfs::write_initial_content(txn, &options)).unwrap();
    let geometry = Geometry { group_inodes: 640, ..small_groups(&mfs) };
    run(&mfs, |txn| Traditional::format(txn, geometry, false)).unwrap();
    let layout = run(&mfs, Traditional::open).unwrap();
    let (pag, addr, _) = run(&mfs, |txn| txn.space().grant(CLIENT, None, 10)).unwrap()[0];
    let make = new(FileKind::Regular, 1);
    let ino = run(&mfs, |txn| layout.create(txn, Ino::ROOT, &name("file"), &make)).unwrap();
    let state = SegmentState::Written;
    let first = Segment { file: FileBlock(5), len: 2, pag, addr, state };
    let map = |ino, segment| run(&mfs, |txn| layout.map(txn, ino, CLIENT, segment));
    assert_eq!(map(Ino::ROOT, first), Err(Fault::Invalid));
    assert_eq!(map(ino, Segment { len: 0, ..first }), Err(Fault::Invalid));
    assert_eq!(map(ino, Segment { len: 100, ..first }), Err(Fault::Invalid), "not granted");
    assert_eq!(map(ino, first), Ok(()));
    let addr = PagBlock(addr.0 + 2);
    assert_eq!(map(ino, Segment { addr, ..first }), Err(Fault::Invalid), "not behind the end");
    assert_eq!(run(&mfs, |txn| layout.segments(txn, ino)), Ok(vec![first]));
}

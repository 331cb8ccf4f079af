//! Damage to what is stable, in every kind of block: found, never served, repaired; and repair
//! that is broken off.

use std::cell::RefCell;
use std::collections::BTreeMap;

use env::sim::{CrashOptions, SimDisk, SimRng, SimWorld};
use env::{DiskOptions, Env};
use label::{Label, SliceKind};
use types::limits::{BLOCK, CONTENT_MAX};
use types::{
    ClientId, FileBlock, FileKind, Ino, MetaBlock, Name, PagBlock, PagId, Segment, SegmentState,
    Timestamp, Uuid,
};

use super::jobs_tests::same_report;
use super::tests::{Outcome, settled};
use super::{FsckOptions, Lost, Problem, ProblemKind, Repaired, Report, Subject, fsck, repair};
use crate::dump::stream::{Reader, Record};
use crate::dump::{Dumped, Source, dump};
use crate::format::segment::{segment_key, segment_value};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot};
use crate::format::space::{PagRecord, pag_key};
use crate::handle::Mfs;
use crate::mkfs::{FormatOptions, PagFormat};
use crate::names::{MapLimits, NewInode};
use crate::open::OpenOptions;
use crate::space::{ALL_FILES, PagState};
use crate::testing::links;
use crate::trees::{PAGS, QUARANTINES, SEGMENTS};
use crate::txn::Txn;
use crate::zones::ZoneDevice;
use engine::cost::Cost;
use engine::error::Stop;
use engine::format::block::{self, BlockType};
use engine::format::features::{Feature, Features};
use engine::format::superblock::Superblock;

mod dumps;

pub(crate) const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
pub(crate) const SIZE: u64 = 8 << 20;
const LOG: u64 = 1 << 20;
pub(super) const SMALL: FsckOptions<'_> =
    FsckOptions { cache_bytes: 0, jobs: 2, zones: &ZONES, ..FsckOptions::USUAL };
/// The data zones, whose devices are there in every world.
pub(crate) const ZONES: [ZoneDevice<'_>; 2] =
    [ZoneDevice { id: PagId(3), path: "zone3" }, ZoneDevice { id: PagId(4), path: "zone4" }];
pub(super) const ZONE_BLOCKS: u64 = 5000;

/// What the label of a data zone says.
pub(super) fn zone_label(id: PagId) -> Label {
    zone_label_of(id, ZONE_BLOCKS)
}

fn zone_label_of(id: PagId, blocks: u64) -> Label {
    let (uuid, kind) = (Uuid([id.0 as u8; 16]), SliceKind::Data { pag: id });
    Label::single(Uuid([9; 16]), "home", uuid, blocks + 1, kind)
}

/// The device of a data zone, with a label.
fn labelled(world: &SimWorld, path: &str, label: &Label) {
    label::put(&world.disk(path, label.blocks * BLOCK as u64), label);
}

pub(crate) fn in_world<T, F: Future<Output = T>>(disk: &SimDisk, main: impl FnOnce(Env) -> F) -> T {
    let world = SimWorld::new(1);
    world.attach("meta", disk);
    for zone in ZONES {
        labelled(&world, zone.path, &zone_label(zone.id));
    }
    world.run(main)
}

/// A check, which must be the same with any number of threads; with all data zones named.
pub(crate) fn run_fsck(disk: &SimDisk) -> Report {
    same_report(disk);
    in_world(disk, |env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        fsck(&env, &disk, SMALL).await.unwrap()
    })
}

pub(crate) fn run_repair(disk: &SimDisk) -> Repaired {
    run_repair_with(disk, 2)
}

fn run_repair_with(disk: &SimDisk, jobs: usize) -> Repaired {
    in_world(disk, |env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        repair(&env, &disk, FsckOptions { jobs, ..SMALL }).await.unwrap()
    })
}

pub(crate) async fn open(env: &Env) -> Mfs {
    let disk = env.open_disk("meta", WRITE).await.unwrap();
    Mfs::open(env, &disk, OpenOptions { cache_bytes: 0, ..OpenOptions::default() }).await.unwrap()
}

pub(crate) fn name(text: String) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub(crate) fn new(kind: FileKind) -> NewInode<'static> {
    let time = Timestamp { seconds: 1, nanos: 2 };
    NewInode {
        kind,
        mode: 0o640,
        uid: 1,
        gid: 1,
        rdev: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        client: ClientId::NONE,
        symlink: (kind == FileKind::Symlink).then_some(&[b't'; 3000]),
    }
}

pub(crate) async fn run<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    mfs.run(Cost::DELETE, body).await.unwrap().0
}

pub(crate) fn directory(txn: &mut Txn<'_>, parent: Ino, text: String) -> Result<Ino, Stop> {
    let dir = txn.names().create(parent, &name(text), &new(FileKind::Directory), None)?;
    links(txn, parent, 1)?;
    Ok(dir)
}

/// What a device is made with.
pub(crate) struct Shape {
    pub(crate) features: Features,
    pub(crate) maps: MapLimits,
    /// Directories, beside the root; a multiple of three.
    pub(crate) dirs: usize,
}

/// A closed device with something in every tree, most of them of several nodes.
pub(crate) fn populated() -> SimDisk {
    let features = Features::NONE.with(Feature::LAYOUT_BLOCKS);
    populated_as(Shape { features, maps: MapLimits::USUAL, dirs: 90 })
}

/// A closed device with something in every tree, and of each feature.
pub(crate) fn populated_as(shape: Shape) -> SimDisk {
    let world = SimWorld::new(1);
    let disk = world.disk("meta", SIZE);
    world.run(|env| async move {
        let device = env.open_disk("meta", WRITE).await.unwrap();
        let pag = |id: u16| PagFormat::whole(PagId(id), Uuid([id as u8; 16]), ZONE_BLOCKS);
        let options = FormatOptions {
            name: "home".to_owned(),
            uuid: Uuid([9; 16]),
            log_bytes: LOG,
            pags: vec![pag(3), pag(4)],
            features: shape.features,
            force: false,
        };
        Mfs::format(&env, &device, &options).await.unwrap();
        let options = OpenOptions { cache_bytes: 0, maps: shape.maps, ..OpenOptions::default() };
        let mfs = Mfs::open(&env, &device, options).await.unwrap();
        populate(&mfs, shape.dirs).await;
        if shape.features.has(Feature::INLINE_DATA) {
            contents_beside_inodes(&mfs).await;
        }
        mfs.close().await.unwrap();
    });
    disk
}

async fn populate(mfs: &Mfs, count: usize) {
    let client = run(mfs, |txn| txn.new_client(&[7; 300])).await;
    let pool = run(mfs, |txn| txn.space().grant(client, None, 2000)).await[0];
    let mut next = pool.1.0;
    let mut dirs = vec![Ino::ROOT];
    for n in 0..count {
        let parent = dirs[if n < 20 { n } else { n / 4 }];
        let dir = run(mfs, |txn| directory(txn, parent, format!("d{n}"))).await;
        dirs.push(dir);
        for m in 0..6 {
            let file = run(mfs, |txn| {
                txn.names().create(dir, &name(format!("f{m}")), &new(FileKind::Regular), None)
            })
            .await;
            let addr = PagBlock(next);
            next += 1;
            let state = SegmentState::Written;
            let segment = Segment { file: FileBlock(0), len: 1, pag: pool.0, addr, state };
            run(mfs, |txn| txn.layouts().map(file, client, segment)).await;
        }
    }
    let most = count / 3 * 2;
    for n in 0..3 * count + 10 {
        let (from, to) = (dirs[1 + n % most], dirs[1 + most + n % (count - most)]);
        run(mfs, |txn| {
            let text = format!("m{n}");
            txn.names().create(from, &name(text.clone()), &new(FileKind::Fifo), None)?;
            txn.names().rename(from, &name(text.clone()), to, &name(text))
        })
        .await;
    }
    let (big, orphan) = run(mfs, |txn| {
        let file = new(FileKind::Regular);
        let big = txn.names().create(dirs[1], &name("big".into()), &file, None)?;
        txn.names().create(dirs[2], &name("symlink".into()), &new(FileKind::Symlink), None)?;
        txn.names().link(dirs[3], &name("hard".into()), big)?;
        links(txn, big, 1)?;
        txn.names().set_xattr(big, b"user.long", &[1; 9000])?;
        Ok((big, txn.names().create_orphan(&file, None)?))
    })
    .await;
    for n in 0..400 {
        let addr = PagBlock(next + 2 * n);
        let state = SegmentState::Written;
        let segment = Segment { file: FileBlock(3 * n), len: 1, pag: pool.0, addr, state };
        run(mfs, |txn| txn.layouts().map(big, client, segment)).await;
    }
    run(mfs, |txn| {
        txn.layouts().unmap(big, FileBlock(3), FileBlock(4))?;
        txn.set_reply(client, 7, 8, b"reply")?;
        txn.set_setting(3, b"setting")?;
        txn.space().freeze(client, orphan)?;
        txn.space().quarantine(client)
    })
    .await;
}

/// A file with content in its slot, and one with content that is in a blob, whatever the size of
/// slots is.
async fn contents_beside_inodes(mfs: &Mfs) {
    for (text, len) in [("in the slot".to_owned(), 200), ("b".repeat(255), CONTENT_MAX)] {
        run(mfs, |txn| {
            let new = NewInode { size: len as u64, ..new(FileKind::Regular) };
            let ino = txn.names().create(Ino::ROOT, &name(text.clone()), &new, None)?;
            txn.layouts().set_content(ino, &vec![b'c'; len])
        })
        .await;
    }
}

/// Everything that can be read, by path.
pub(crate) fn contents(disk: &SimDisk) -> BTreeMap<String, String> {
    let mut all = walked(disk, describe);
    all.remove("");
    all
}

/// What is told of each inode, by its paths; that of the root is empty.
pub(crate) fn walked<T>(
    disk: &SimDisk,
    told: impl Fn(&mut Txn<'_>, Ino) -> Result<T, Stop>,
) -> BTreeMap<String, T> {
    in_world(&disk.fork(), |env| async move {
        let mfs = open(&env).await;
        let mut out = BTreeMap::new();
        let mut queue = vec![(String::new(), Ino::ROOT)];
        out.insert(String::new(), run(&mfs, |txn| told(txn, Ino::ROOT)).await);
        while let Some((path, dir)) = queue.pop() {
            for entry in run(&mfs, |txn| txn.names().readdir(dir, 0, 10_000)).await {
                let path = format!("{path}/{}", String::from_utf8_lossy(entry.name.as_bytes()));
                out.insert(path.clone(), run(&mfs, |txn| told(txn, entry.ino)).await);
                if entry.kind == FileKind::Directory {
                    queue.push((path, entry.ino));
                }
            }
        }
        out
    })
}

pub(crate) fn describe(txn: &mut Txn<'_>, ino: Ino) -> Result<String, Stop> {
    let attr = txn.names().attr(ino)?.unwrap();
    let mut text = format!("{ino} {:?} {:o} {:?}", attr.kind, attr.mode, attr.mtime);
    match attr.kind {
        FileKind::Regular => {
            let layout = txn.layouts().layout(ino, FileBlock(0), 1000)?;
            let crc = types::crc32c(&txn.layouts().content(ino)?);
            text += &format!(" {} {layout:?} {:?} {crc:x}", attr.nlink, txn.names().xattrs(ino)?);
        }
        FileKind::Symlink => text += &format!(" {}", txn.names().symlink(ino)?.len()),
        FileKind::Directory => text = format!("{ino} {:?}", attr.kind),
        _ => {}
    }
    Ok(text)
}

/// Blocks in use that are not the log's, with their types.
pub(crate) fn blocks_in_use(disk: &SimDisk) -> Vec<(u64, BlockType)> {
    let tag = block::tag_of(Uuid([9; 16]));
    let whole = |at: u64| {
        let data = disk.peek(at * BLOCK as u64, BLOCK);
        block::verify(data[..].try_into().unwrap(), MetaBlock(at), tag).ok().map(|kind| (at, kind))
    };
    (1..SIZE / BLOCK as u64).filter_map(whole).collect()
}

/// Is a block read by a check? Blocks that were given back are not, nor is one copy of two.
pub(crate) fn is_read(disk: &SimDisk, at: u64) -> bool {
    let broken = disk.fork();
    broken.poke(at * BLOCK as u64, &[0xa5; BLOCK]);
    !run_fsck(&broken).is_clean()
}

pub(crate) fn flip(disk: &SimDisk, at: u64, rng: &mut SimRng) -> String {
    let bits = 1 + rng.below(8);
    flip_bits(disk, at, bits, rng)
}

pub(crate) fn flip_bits(disk: &SimDisk, at: u64, bits: u64, rng: &mut SimRng) -> String {
    let mut chosen = std::collections::BTreeSet::new();
    while (chosen.len() as u64) < bits {
        chosen.insert(rng.below(8 * BLOCK as u64));
    }
    for &bit in &chosen {
        disk.flip_bit(at * BLOCK as u64 + bit / 8, (bit % 8) as u8);
    }
    format!("block {at}, bits {chosen:?}")
}

pub(crate) fn wipe_log(disk: &SimDisk) {
    let first = engine::format::roots::ROOTS_BLOCK.0 + 1;
    disk.poke(first * BLOCK as u64, &vec![0; LOG as usize]);
}

#[test]
fn flipped_bits_in_any_kind_of_block_are_found_and_never_served() {
    let disk = populated();
    let before = contents(&disk);
    let mut rng = SimRng::new(5);
    let mut kinds = BTreeMap::new();
    for (at, kind) in blocks_in_use(&disk) {
        let broken = disk.fork();
        let what = flip(&broken, at, &mut rng);
        let data = broken.peek(at * BLOCK as u64, BLOCK);
        let tag = block::tag_of(Uuid([9; 16]));
        assert!(block::verify(data[..].try_into().unwrap(), MetaBlock(at), tag).is_err(), "{what}");
        if kind == BlockType::Super {
            // The other copy is used, and says the same.
            let index = usize::from(at != 1);
            let blocks = SIZE / BLOCK as u64 - 1;
            assert!(Superblock::decode(&data, index, blocks).is_err(), "{what}");
            assert_eq!(contents(&broken), before, "{what}");
            *kinds.entry(kind).or_insert(0) += 1;
            continue;
        }
        let report = run_fsck(&broken);
        if report.is_clean() {
            assert!(!is_read(&disk, at), "{kind:?} {what} was not found");
            continue;
        }
        let found = |subject| {
            report.problems.iter().any(|problem| {
                problem.kind == ProblemKind::DamagedBlock && problem.subject == subject
            })
        };
        assert!(found(Subject::Block(MetaBlock(at))), "{kind:?} {what}: {:?}", report.problems);
        *kinds.entry(kind).or_insert(0) += 1;
    }
    // The label, which is no metadata block.
    let broken = disk.fork();
    flip(&broken, 0, &mut rng);
    assert_eq!(run_fsck(&broken).problems[0].kind, ProblemKind::DamagedLabel);
    let all = [
        BlockType::Super,
        BlockType::Roots,
        BlockType::Bitmap,
        BlockType::Tree,
        BlockType::Directory,
        BlockType::Blob,
        BlockType::Reply,
        BlockType::Layout,
    ];
    assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), all, "{kinds:?}");
    assert!(kinds[&BlockType::Tree] > 20 && kinds[&BlockType::Directory] > 100, "{kinds:?}");
}

#[test]
fn damaged_block_is_restored_from_the_log() {
    let disk = populated();
    let before = contents(&disk);
    let mut rng = SimRng::new(6);
    let mut came_back = 0;
    for (at, _) in blocks_in_use(&disk).into_iter().filter(|(_, kind)| *kind != BlockType::Super) {
        let broken = disk.fork();
        let what = flip(&broken, at, &mut rng);
        if run_fsck(&broken).is_clean() {
            continue;
        }
        let alone = broken.fork();
        let repaired = run_repair(&broken);
        assert_eq!(run_repair_with(&alone, 1), repaired, "{what}");
        if repaired.done.len() != 1 || !repaired.done[0].contains("from the log") {
            continue;
        }
        came_back += 1;
        assert_eq!(repaired.left.problems, [], "{what}");
        assert!(repaired.lost.is_empty(), "{what}");
        assert_eq!(run_fsck(&broken).problems, [], "{what}");
        assert_eq!(contents(&broken), before, "{what}");
    }
    assert!(came_back > 40, "{came_back}");
}

/// Inodes whose slots, or whose segments, are in a block.
fn inside(disk: &SimDisk, at: u64, kind: BlockType) -> Vec<Ino> {
    let data = disk.peek(at * BLOCK as u64, BLOCK);
    let data: &block::Block = data[..].try_into().unwrap();
    match kind {
        BlockType::Directory => (0..SLOTS_PER_BLOCK).map(|n| Slot::load(data, n).ino()).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn damage_without_the_log_costs_only_what_the_block_held() {
    let disk = populated();
    wipe_log(&disk);
    let before = contents(&disk);
    let mut rng = SimRng::new(7);
    let mut mended = BTreeMap::new();
    for (at, kind) in blocks_in_use(&disk) {
        if kind == BlockType::Super {
            continue;
        }
        let broken = disk.fork();
        let what = format!("{kind:?} {}", flip(&broken, at, &mut rng));
        if run_fsck(&broken).is_clean() {
            continue;
        }
        let repaired = run_repair(&broken);
        assert_eq!(repaired.left.problems, [], "{what}: {:#?}", repaired.done);
        assert_eq!(run_fsck(&broken).problems, [], "{what}");
        let held = inside(&disk, at, kind);
        let after = contents(&broken);
        let lost = |text: &String| held.iter().any(|ino| text.starts_with(&format!("{ino} ")));
        let by_number: BTreeMap<&str, &String> =
            after.values().map(|text| (text.split(' ').next().unwrap(), text)).collect();
        for (path, text) in before.iter().filter(|(_, text)| !lost(text)) {
            let number = text.split(' ').next().unwrap();
            let now = by_number.get(number).copied();
            // A leaf of the tree of segments, or a layout block, held segments of the one file that
            // has many; its second name or attributes may have been in the block, too. The target
            // of a symlink was in its blob, and nowhere else.
            let target = kind == BlockType::Blob && path.ends_with("/symlink");
            let big = now.is_some() && (path.ends_with("/big") || path.ends_with("/hard"));
            assert!(
                now == Some(text) || big || target,
                "{what}: {path}: {text} is {now:?}, {:#?}",
                repaired.done
            );
        }
        *mended.entry(kind).or_insert(0) += 1;
    }
    assert!(mended[&BlockType::Tree] > 20 && mended[&BlockType::Directory] > 100, "{mended:?}");
    use BlockType::{Bitmap, Blob, Layout, Reply, Roots};
    for kind in [Roots, Bitmap, Reply, Blob, Layout] {
        assert!(mended.contains_key(&kind), "{mended:?}");
    }
}

#[test]
fn interrupted_repair_is_finished_by_the_next() {
    let disk = populated();
    wipe_log(&disk);
    let mut rng = SimRng::new(8);
    let all = blocks_in_use(&disk);
    let mut images = 0;
    use BlockType::{Bitmap, Blob, Directory, Layout, Tree};
    for kind in [Bitmap, Tree, Directory, Blob, Layout] {
        let of: Vec<u64> = all.iter().filter(|(_, of)| *of == kind).map(|(at, _)| *at).collect();
        let mut picks = vec![of[of.len() / 3], of[of.len() / 2], of[of.len() - 1]];
        picks.extend((kind == Tree).then(|| table_of_zones(&disk)));
        let broken = disk.fork();
        picks.iter().for_each(|&at| drop(flip(&broken, at, &mut rng)));
        let start = broken.fork();
        start.record();
        let whole = run_repair(&start);
        let wanted = (contents(&start), evicted(&start));
        let options = CrashOptions { seed: 3, subsets: 1 };
        let mut images_here = 0;
        for point in start.recording().unwrap().crash_images(options) {
            images_here += 1;
            if images_here % 4 != 0 {
                continue;
            }
            images += 1;
            let what = format!("{kind:?} {picks:?}: {}", point.description);
            let again = run_repair(point.disk());
            assert_eq!(again.left.problems, whole.left.problems, "{what}: {:#?}", again.done);
            if whole.left.is_clean() {
                let now = (contents(point.disk()), evicted(point.disk()));
                assert_eq!(now, wanted, "{what}");
            }
        }
    }
    assert!(images > 20, "{images}");
}

#[test]
pub(crate) fn the_label_is_written_anew_and_a_damaged_log_is_left() {
    let disk = populated();
    disk.flip_bit(700, 3);
    let repaired = run_repair(&disk);
    assert_eq!((repaired.found.len(), repaired.done.len()), (1, 1));
    assert_eq!(repaired.found[0].subject, Subject::Block(MetaBlock(0)));
    assert_eq!(run_fsck(&disk).problems, []);
    settled(ProblemKind::DamagedLabel, Outcome::Repaired);
    // A log with a hole: an unclosed device of which a group in the middle is damaged.
    in_world(&disk, |env| async move {
        let mfs = open(&env).await;
        for n in 0..20 {
            let made = mfs.run(Cost::DELETE, |txn| {
                txn.names().create(Ino::ROOT, &name(format!("g{n}")), &new(FileKind::Fifo), None)
            });
            mfs.wait_durable(made.await.unwrap().1).await.unwrap();
        }
    });
    let refused = (3..3 + LOG / BLOCK as u64).any(|at| {
        let broken = disk.fork();
        broken.poke(at * BLOCK as u64 + 70, &[0x5a; 8]);
        let repaired = run_repair(&broken);
        let told = &repaired.left.problems;
        let log = |p: &Problem| (p.kind, matches!(p.subject, Subject::Log(_)));
        told.first().is_some_and(|first| log(first) == (ProblemKind::DamagedLog, true))
            && run_fsck(&broken).problems == *told
    });
    assert!(refused);
    settled(ProblemKind::DamagedLog, Outcome::Left);
}

#[test]
fn zeroed_label_is_rewritten_if_the_superblocks_identify_the_device() {
    let disk = populated();
    let (label, last) = (disk.peek(0, BLOCK), SIZE - BLOCK as u64);
    let before = contents(&disk);
    disk.poke(0, &[0; BLOCK]);
    disk.poke(last, &[0; BLOCK]);
    let options = FsckOptions { name: Some("home"), ..SMALL };
    let both = |disk: &SimDisk, options: FsckOptions<'static>, other: Option<Uuid>| {
        let world = SimWorld::new(1);
        world.attach("meta", disk);
        let zones = [(PagId(3), "zone3"), (PagId(4), "zone4")];
        for (id, path) in zones {
            let label = zone_label(id);
            let fs_uuid = other.unwrap_or(label.fs_uuid);
            labelled(&world, path, &Label { fs_uuid, ..label });
        }
        world.run(|env| async move {
            let disk = env.open_disk("meta", WRITE).await.unwrap();
            let found = fsck(&env, &disk, options).await.map(|report| report.problems);
            (found, repair(&env, &disk, options).await)
        })
    };
    let absent: &[ZoneDevice<'_>] = &[WRONG[1]];
    let half = disk.fork();
    half.poke(last - BLOCK as u64, &[0; BLOCK]);
    let elsewhere = disk.fork();
    elsewhere.poke(0, b"somebody else's");
    let refused = [
        (&disk, FsckOptions { name: Some("other"), ..options }, None, "name the right device"),
        (&disk, options, Some(Uuid([8; 16])), "zone3 is a data zone of"),
        (&disk, FsckOptions { zones: absent, ..options }, None, "no data zone can be read"),
        (&half, options, None, "restore these blocks"),
        (&elsewhere, options, None, "restore these blocks"),
    ];
    for (disk, options, other, text) in refused {
        let disk = disk.fork();
        let all = disk.peek(0, SIZE as usize);
        let (found, repaired) = both(&disk, options, other);
        let errors = [found.map(drop).unwrap_err(), repaired.map(drop).unwrap_err()];
        assert!(errors.iter().all(|error| error.to_string().contains(text)), "{errors:?}");
        assert!(disk.peek(0, SIZE as usize) == all, "{text}: something was written");
    }
    let (found, repaired) = both(&disk, options, None);
    let it = |problem: &Problem| (problem.kind, problem.subject);
    let told = (ProblemKind::DamagedLabel, Subject::Block(MetaBlock(0)));
    assert_eq!(found.unwrap().iter().map(it).collect::<Vec<_>>(), [told]);
    let repaired = repaired.unwrap();
    assert_eq!(repaired.found.iter().map(it).collect::<Vec<_>>(), [told]);
    assert_eq!((repaired.left.problems, repaired.lost), (vec![], vec![]));
    assert_eq!((disk.peek(0, BLOCK), disk.peek(last, BLOCK)), (label.clone(), label));
    assert_eq!((contents(&disk), run_fsck(&disk).problems), (before, vec![]));
}

std::thread_local! {
    /// The device that is repaired.
    static REPAIRED: RefCell<SimDisk> = RefCell::new(SimDisk::new(0));
    /// What was told to be lost, each with the device as it was then.
    static TOLD: RefCell<Vec<(String, SimDisk)>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn losses_are_reported_before_they_are_durable() {
    let disk = populated();
    wipe_log(&disk);
    let kinds = [BlockType::Directory, BlockType::Blob, BlockType::Layout, BlockType::Tree];
    let mut told_in_all = 0;
    for kind in kinds {
        let of: Vec<_> = blocks_in_use(&disk).into_iter().filter(|(_, of)| *of == kind).collect();
        for at in [0, of.len() / 2, of.len() - 1].map(|n| of[n].0) {
            let broken = disk.fork();
            broken.poke(at * BLOCK as u64, &[0xa5; BLOCK]);
            REPAIRED.set(broken.clone());
            let on_loss = |lost: &Lost| {
                let then = REPAIRED.with_borrow(SimDisk::fork);
                TOLD.with_borrow_mut(|told| told.push((format!("{:?}", lost.loss), then)));
            };
            let repaired = in_world(&broken, |env| async move {
                let disk = env.open_disk("meta", WRITE).await.unwrap();
                let options = FsckOptions { on_loss: Some(on_loss), ..SMALL };
                repair(&env, &disk, options).await.unwrap()
            });
            let told = TOLD.take();
            let mut lines: Vec<_> = told.iter().map(|(line, _)| line.clone()).collect();
            let all = repaired.lost.iter().filter(|lost| lost.kind() != "Data");
            let mut wanted: Vec<_> = all.map(|lost| format!("{:?}", lost.loss)).collect();
            lines.sort();
            wanted.sort();
            assert_eq!(lines, wanted, "{kind:?} {at}");
            for (line, then) in told {
                told_in_all += 1;
                // Who goes on from there loses it, too, and tells.
                let again = run_repair(&then).lost;
                let found = again.iter().any(|lost| format!("{:?}", lost.loss) == line);
                assert!(found, "{kind:?} {at}: {line}: {again:?}");
            }
        }
    }
    assert!(told_in_all > 5, "{told_in_all}");
}

/// Clients in quarantine, and of how many of them all files are frozen.
fn evicted(disk: &SimDisk) -> (Vec<ClientId>, usize) {
    in_world(&disk.fork(), |env| async move {
        let mfs = open(&env).await;
        let clients = run(&mfs, |txn| txn.space().quarantines()).await;
        let mut frozen = 0;
        for &client in &clients {
            let files = run(&mfs, |txn| txn.space().frozen(client)).await;
            frozen += usize::from(files.contains(&ALL_FILES));
        }
        (clients, frozen)
    })
}

#[test]
fn interrupted_repair_of_the_quarantine_list_forgets_no_eviction() {
    const CLIENTS: u64 = 300;
    let disk = populated();
    let block = in_world(&disk, |env| async move {
        let mfs = open(&env).await;
        let first = run(&mfs, |txn| txn.new_client(b"first")).await;
        // More than the device has room for the replies of.
        run(&mfs, |txn| {
            for client in first.0 + 1..=CLIENTS {
                crate::trees::CLIENTS.insert(txn, &client.to_be_bytes(), &[0; 8])?;
            }
            txn.set_root(crate::trees::NEXT_CLIENT, CLIENTS + 1)?;
            txn.space().quarantine(ClientId(CLIENTS))
        })
        .await;
        let block = run(&mfs, |txn| Ok(QUARANTINES.root_node(txn)?.unwrap().block)).await;
        mfs.close().await.unwrap();
        block
    });
    wipe_log(&disk);
    disk.flip_bit(block.0 * BLOCK as u64 + 50, 3);
    let start = disk.fork();
    start.record();
    let whole = run_repair(&start);
    assert_eq!(whole.left.problems, []);
    let wanted = ((1..=CLIENTS).map(ClientId).collect::<Vec<_>>(), CLIENTS as usize);
    assert_eq!(evicted(&start), wanted);
    let mut images = 0;
    let options = CrashOptions { seed: 3, subsets: 1 };
    for point in start.recording().unwrap().crash_images(options) {
        images += 1;
        let again = run_repair(point.disk());
        assert_eq!(again.left.problems, [], "{}", point.description);
        assert_eq!(evicted(point.disk()), wanted, "{}: {:#?}", point.description, again.done);
    }
    assert!(images > 10, "{images}");
}

/// The one block of the table of data zones.
fn table_of_zones(disk: &SimDisk) -> u64 {
    in_world(&disk.fork(), |env| async move {
        let mfs = open(&env).await;
        run(&mfs, |txn| Ok(PAGS.root_node(txn)?.unwrap().block.0)).await
    })
}

/// The table of data zones.
pub(crate) fn zones(disk: &SimDisk) -> Vec<PagState> {
    let table = |env| async move { run(&open(&env).await, |txn| txn.space().pags()).await };
    in_world(&disk.fork(), table)
}

/// Repairs with these data zones named, of which the devices hold what `change` makes of them.
fn repair_naming(
    disk: &SimDisk,
    zones: &[ZoneDevice<'_>],
    change: impl FnOnce(&mut Vec<u8>),
) -> Repaired {
    let world = SimWorld::new(1);
    world.attach("meta", disk);
    labelled(&world, "zone3", &zone_label(PagId(3)));
    let mut other = zone_label(PagId(4)).encode().to_vec();
    change(&mut other);
    let blocks = Label::decode(&other).map_or(ZONE_BLOCKS + 1, |label| label.blocks);
    let zone = world.disk("zone4", blocks * BLOCK as u64);
    for block in [0, blocks - 1] {
        zone.poke(block * BLOCK as u64, &other);
    }
    world.run(|env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        repair(&env, &disk, FsckOptions { zones, ..SMALL }).await.unwrap()
    })
}

#[test]
fn lost_table_of_data_zones_is_rebuilt_only_from_all_labels() {
    let disk = populated();
    wipe_log(&disk);
    let (before, table) = ((contents(&disk), zones(&disk)), table_of_zones(&disk));
    assert!(table_is(&before.1, 2));
    let broken = disk.fork();
    broken.poke(table * BLOCK as u64, &[0; BLOCK]);
    let relabel = |change: fn(&mut Label)| {
        move |block: &mut Vec<u8>| {
            let mut label = zone_label(PagId(4));
            change(&mut label);
            *block = label.encode().to_vec();
        }
    };
    const THREE: SliceKind = SliceKind::Data { pag: PagId(3) };
    const LOG: SliceKind = SliceKind::Journal { shard: 0, metadata: Uuid([1; 16]) };
    let mixture = |label: &mut Label| {
        label.slices[0].blocks = 100;
        let slice = label::Slice { kind: LOG, start: 100, blocks: 9, uuid: Uuid([7; 16]) };
        label.slices.push(slice);
    };
    type Change = Box<dyn Fn(&mut Vec<u8>)>;
    let absent = ZoneDevice { path: "nowhere", ..ZONES[1] };
    let cases: [(&[ZoneDevice<'_>], Change, &[&str]); 9] = [
        (&[], Box::new(|_| {}), &["zone 3: its device is not named", "zone 4: its device"]),
        (&ZONES[..1], Box::new(|_| {}), &["data zone 4: its device is not named"]),
        (&[ZONES[0], absent], Box::new(|_| {}), &["data zone 4: nowhere: "]),
        (&ZONES, Box::new(|block| block[100] ^= 1), &["4: zone4: its Redbud label is damaged"]),
        (&ZONES, Box::new(|block| block.fill(0)), &["4: zone4: it carries no Redbud label"]),
        (&ZONES, Box::new(relabel(|l| l.slices[0].kind = THREE)), &["its label says that it is"]),
        (&ZONES, Box::new(relabel(|l| l.fs_uuid.0[0] = 1)), &["zone4: it belongs to the file"]),
        (&ZONES, Box::new(relabel(|l| l.slices[0].kind = LOG)), &["that it holds a metadata log"]),
        (&ZONES, Box::new(relabel(mixture)), &["that it holds data beside metadata"]),
    ];
    for (named, change, wanted) in cases {
        let same = broken.fork();
        let repaired = repair_naming(&same, named, change);
        let told = repaired.wanted.iter().zip(wanted).all(|(line, text)| line.contains(text));
        assert!(told && repaired.wanted.len() == wanted.len(), "{wanted:?}: {:?}", repaired.wanted);
        let left = &repaired.left.problems;
        assert!(left.iter().any(|it| it.subject == Subject::Block(MetaBlock(table))), "{left:?}");
        assert_eq!(contents(&same), before.0, "{wanted:?}");
        // What it lacked is all that it lacked.
        assert_eq!(run_repair(&same).left.problems, [], "{wanted:?}");
        assert_eq!((contents(&same), zones(&same)), before, "{wanted:?}");
        assert_eq!(run_fsck(&same).problems, [], "{wanted:?}");
    }
}

/// Does the table have so many zones, each with something free?
fn table_is(table: &[PagState], count: usize) -> bool {
    table.len() == count && table.iter().all(|zone| zone.free > 0)
}

#[test]
fn lost_line_of_the_zone_table_needs_only_the_label_of_its_zone() {
    let disk = populated();
    let before = (contents(&disk), zones(&disk));
    in_world(&disk, |env| async move {
        let mfs = open(&env).await;
        run(&mfs, |txn| PAGS.remove(txn, &pag_key(PagId(4)))).await;
        mfs.close().await.unwrap();
    });
    assert!(table_is(&zones(&disk), 1));
    let repaired = repair_naming(&disk, &ZONES[..1], |_| {});
    assert_eq!(repaired.wanted, ["data zone 4: its device is not named"]);
    assert!(!repaired.left.is_clean());
    let repaired = repair_naming(&disk, &ZONES[1..], |_| {});
    assert_eq!((repaired.left.problems, repaired.wanted), (vec![], vec![]), "{:?}", repaired.done);
    assert_eq!((contents(&disk), zones(&disk)), before);
}

#[test]
fn dump_needs_no_table_of_data_zones() {
    let disk = populated();
    wipe_log(&disk);
    let dumped = |disk: &SimDisk, zones: &'static [ZoneDevice<'static>]| -> (Vec<u8>, Dumped) {
        in_world(&disk.fork(), |env| async move {
            let (mfs, mut out) = (open(&env).await, Vec::new());
            let dumped = dump(&[Source { mfs: &mfs, zones }], &mut out).await.unwrap();
            (out, dumped)
        })
    };
    let (whole, counts) = dumped(&disk, &[]);
    assert_eq!(counts.zones_unknown, Vec::<String>::new());
    disk.poke(table_of_zones(&disk) * BLOCK as u64, &[0xa5; BLOCK]);
    assert_eq!(dumped(&disk, &ZONES), (whole.clone(), counts.clone()));
    for (named, line) in [(&ZONES[..0], "no data zone was named"), (&WRONG[..], "4: nowhere: ")] {
        let (out, told) = dumped(&disk, named);
        assert!(told.zones_unknown[0].contains(line), "{:?}", told.zones_unknown);
        assert_eq!(Dumped { zones_unknown: vec![], ..told }, counts);
        // But for the head everything is there.
        let tail = whole.len() - 400;
        assert!(out.len() < whole.len() && out.len() > tail, "{}", out.len());
        let mut input = &out[..];
        let mut reader = Reader::new(&mut input);
        while !matches!(reader.take().unwrap(), Record::End { .. }) {}
    }
}

/// Has the table say of a zone what `change` makes of it.
fn set_line(disk: &SimDisk, id: PagId, change: impl Fn(&mut PagRecord)) {
    in_world(disk, |env| async move {
        let mfs = open(&env).await;
        run(&mfs, |txn| {
            let mut record = txn.space().pag(id)?.unwrap();
            change(&mut record);
            PAGS.insert(txn, &pag_key(id), &record.encode())
        })
        .await;
        mfs.close().await.unwrap();
    });
}

#[test]
pub(crate) fn a_table_that_says_another_size_than_the_label_costs_nothing() {
    let disk = populated();
    let before = (contents(&disk), zones(&disk));
    // In which zone most of the files lie, it does not matter: both are tried. One size is in the
    // midst of what is mapped.
    let sizes = [2, 100, 1500, ZONE_BLOCKS - 1, ZONE_BLOCKS + 1, 1 << 40];
    for (zone, blocks) in ZONES.iter().flat_map(|zone| sizes.map(|blocks| (zone.id, blocks))) {
        let what = format!("zone {zone}, {blocks} blocks");
        let broken = disk.fork();
        set_line(&broken, zone, |record| record.blocks = blocks);
        let found = run_fsck(&broken).problems;
        let it = (ProblemKind::WrongZone, Subject::Data(zone, PagBlock(0)));
        assert!(found.iter().any(|problem| (problem.kind, problem.subject) == it), "{found:?}");
        // Without its label nothing is cut, and nothing becomes free.
        let others: Vec<_> = ZONES.into_iter().filter(|it| it.id != zone).collect();
        let repaired = repair_naming(&broken, &others, |_| {});
        assert_eq!((&repaired.done, repaired.wanted.len()), (&vec![], 1), "{what}");
        assert!(!repaired.left.is_clean(), "{what}");
        // A label that is none is not made of what the table says of this zone, unless whoever runs
        // this says so.
        let damaged = |id: PagId| move |block: &mut Vec<u8>| block[100] ^= u8::from(id == PagId(4));
        let repaired = repair_naming(&broken, &ZONES, damaged(zone));
        if zone == PagId(4) {
            let told = |problem: &Problem| problem.detail.contains("`--relabel 4` says so");
            assert!(repaired.left.problems.iter().any(told), "{what}: {repaired:?}");
            assert_eq!(contents(&broken), before.0, "{what}");
        }
        let repaired = run_repair(&broken);
        assert_eq!((repaired.left.problems, repaired.lost.len()), (vec![], 0), "{what}");
        assert_eq!((contents(&broken), zones(&broken)), before, "{what}: {:#?}", repaired.done);
        assert_eq!(run_fsck(&broken).problems, [], "{what}");
    }
    // Another UUID, for which no server starts.
    let broken = disk.fork();
    set_line(&broken, PagId(3), |record| record.uuid = Uuid([1; 16]));
    assert_eq!(run_repair(&broken).left.problems, []);
    assert_eq!((contents(&broken), zones(&broken)), before);
    settled(ProblemKind::WrongZone, Outcome::Repaired);
}

#[test]
fn label_that_contradicts_table_and_runs_is_not_trusted() {
    let disk = populated();
    let before = (contents(&disk), zones(&disk));
    for blocks in [100, 1500, ZONE_BLOCKS + 1, 1 << 40] {
        let same = disk.fork();
        let repaired = repair_naming(&same, &ZONES, |block| {
            *block = zone_label_of(PagId(4), blocks).encode().to_vec();
        });
        let kinds: Vec<_> = repaired.left.problems.iter().map(|problem| problem.kind).collect();
        assert_eq!((kinds, repaired.wanted.len()), (vec![ProblemKind::WrongZone], 1), "{blocks}");
        assert_eq!((contents(&same), zones(&same)), before, "{blocks}");
    }
}

#[test]
fn segment_in_a_zone_that_never_existed_is_removed_and_reported() {
    let disk = populated();
    let (path, text) = (&"/d0/f0".to_owned(), contents(&disk));
    let plant = |segments: bool| {
        let broken = disk.fork();
        in_world(&broken, |env| async move {
            let mfs = open(&env).await;
            run(&mfs, |txn| {
                let dir = txn.names().lookup(Ino::ROOT, &name("d0".into()))?.unwrap();
                let file =
                    txn.names().lookup(dir, &name(if segments { "big" } else { "f0" }.into()))?;
                let last = txn.layouts().layout(file.unwrap(), FileBlock(0), 1000)?.pop().unwrap();
                if segments {
                    let segment = Segment { pag: PagId(9), ..last };
                    let key = segment_key(file.unwrap(), last.file.0);
                    return SEGMENTS.insert(txn, &key, &segment_value(&segment)).map(drop);
                }
                let (spot, mut slot) = txn.names().locate_live(file.unwrap())?;
                slot.set_segments(&[Segment { pag: PagId(9), ..last }]);
                txn.names().store(&spot, &slot)
            })
            .await;
            mfs.close().await.unwrap();
        });
        broken
    };
    for segments in [false, true] {
        let broken = plant(segments);
        let repaired = run_repair(&broken);
        assert_eq!((repaired.left.problems, &repaired.wanted), (vec![], &vec![]));
        let lost: Vec<_> = repaired.lost.iter().filter(|lost| lost.kind() == "Content").collect();
        assert_eq!(lost.len(), 1, "{:?}", repaired.lost);
        assert_eq!(run_fsck(&broken).problems, []);
        let again = run_repair(&broken);
        assert_eq!((again.found, again.done), (vec![], vec![]));
        let others = |all: BTreeMap<String, String>| {
            let victims = ["/d0/f0", "/d0/big", "/d0/d1/d2/hard"];
            let other = |(path, _): &(String, String)| !victims.iter().any(|it| path.ends_with(it));
            all.into_iter().filter(other).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(others(contents(&broken)), others(text.clone()), "{:#?}", repaired.done);
        assert!(segments || contents(&broken)[path] != text[path]);
    }
    // Not where nobody names the zones that there are, nor where one is named that the table does
    // not have.
    let nine = ZoneDevice { id: PagId(9), path: "nowhere" };
    for named in [vec![], vec![ZONES[0]], vec![ZONES[0], ZONES[1], nine]] {
        let broken = plant(false);
        let repaired = repair_naming(&broken, &named, |_| {});
        assert_eq!((repaired.done, repaired.wanted.len()), (vec![], 1), "{named:?}");
    }
}

/// The numbers of all inodes by path.
fn numbers_of(disk: &SimDisk) -> BTreeMap<String, Ino> {
    walked(disk, |_, ino| Ok(ino))
}

/// A data zone whose device is not there.
const WRONG: [ZoneDevice<'_>; 2] = [ZONES[0], ZoneDevice { id: PagId(4), path: "nowhere" }];

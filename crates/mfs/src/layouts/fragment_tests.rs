//! What it costs to read the mapping of fragmented files from a disk, with layout blocks and
//! without; and what it costs to create them.
//!
//! `cargo test --release -p redbud-mfs -- --ignored --nocapture mapping_of_fragmented_files`
//! prints the tables of docs/BENCHMARKS.md; the other tests check the same with fewer files.

use env::sim::{DiskModel, HardDisk, SimDisk, SimRng, SimWorld};
use env::{DiskOptions, Env};
use types::{
    Duration, FileBlock, FileKind, Ino, Name, PagBlock, PagId, Segment, SegmentState, Uuid,
};

use crate::handle::Mfs;
use crate::layouts::{LayoutAhead, LayoutLimits};
use crate::mkfs::{FormatOptions, PagFormat};
use crate::open::OpenOptions;
use crate::testing::new_inode;
use engine::cost::Cost;
use engine::format::features::{Feature, Features};

const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
const SIZE: u64 = 1 << 30;
const ZONE: u64 = 1 << 24;
/// Segments that a file gets at a time.
const PART: u64 = 8;

/// Where segments go that do not fit into the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// To the tree of segments.
    Tree,
    /// To layout blocks, allocated when they are needed.
    Needed,
    /// To layout blocks that files get when they are created.
    Ahead,
}

impl Way {
    const ALL: [Way; 3] = [Way::Tree, Way::Needed, Way::Ahead];

    fn features(self) -> Features {
        match self {
            Way::Tree => Features::NONE,
            _ => Features::NONE.with(Feature::LAYOUT_BLOCKS),
        }
    }

    fn ahead(self) -> LayoutAhead {
        if self == Way::Ahead { LayoutAhead::Above(0) } else { LayoutAhead::Never }
    }
}

/// The cost of reading.
#[derive(Clone, Copy, Debug)]
struct Reads {
    requests: u64,
    bytes: u64,
    busy: Duration,
}

fn in_world<T: 'static, F: Future<Output = T>>(disk: &SimDisk, body: impl FnOnce(Env) -> F) -> T {
    let world = SimWorld::new(1);
    world.attach("meta", disk);
    world.run(body)
}

async fn open(env: &Env, way: Way) -> Mfs {
    let disk = env.open_disk("meta", WRITE).await.unwrap();
    let layouts = LayoutLimits { ahead: way.ahead(), ..LayoutLimits::USUAL };
    let options = OpenOptions { cache_bytes: 64 << 20, layouts, ..OpenOptions::default() };
    Mfs::open(env, &disk, options).await.unwrap()
}

fn name(n: u64) -> Name {
    Name::new(format!("file{n}").as_bytes()).unwrap()
}

async fn create(mfs: &Mfs, n: u64) -> Ino {
    let new = new_inode(FileKind::Regular);
    mfs.run(Cost::SMALL, |txn| txn.names().create(Ino::ROOT, &name(n), &new, None)).await.unwrap().0
}

/// Maps the next segments of a file, of one block each, to adjacent blocks of the zone.
async fn grow(mfs: &Mfs, client: types::ClientId, ino: Ino, from: u64, next: &mut u64, to: u64) {
    let first = *next;
    *next += to - from;
    let map = mfs.run(Cost::STEP, |txn| {
        for n in from..to {
            let (addr, state) = (PagBlock(first + n - from), SegmentState::Written);
            let segment = Segment { file: FileBlock(2 * n), len: 1, pag: PagId(0), addr, state };
            txn.layouts().map(ino, client, segment)?;
        }
        Ok(())
    });
    map.await.unwrap();
}

/// A closed device with `files` files of `segments` segments in one directory, which grew in turns
/// in random order; and the number of metadata blocks that they take.
fn filled(way: Way, files: u64, segments: u64) -> (SimDisk, Vec<Ino>, u64) {
    let world = SimWorld::new(1);
    let disk = world.disk("meta", SIZE);
    let (inos, blocks) = world.run(|env| async move {
        let device = env.open_disk("meta", WRITE).await.unwrap();
        let options = FormatOptions {
            name: "home".to_owned(),
            uuid: Uuid([9; 16]),
            log_bytes: 16 << 20,
            pags: vec![PagFormat::whole(PagId(0), Uuid([1; 16]), ZONE)],
            features: way.features(),
            force: false,
        };
        Mfs::format(&env, &device, &options).await.unwrap();
        let mfs = open(&env, way).await;
        let free = mfs.usage().blocks_free;
        let client = mfs.run(Cost::SMALL, |txn| txn.new_client(b"client")).await.unwrap().0;
        let all = files * segments + 32;
        let granted =
            mfs.run(Cost::STEP, |txn| txn.space().grant(client, None, all)).await.unwrap().0;
        let mut next = granted[0].1.0;
        // One fragmented file makes the directory fragmented.
        let first = create(&mfs, u64::MAX).await;
        grow(&mfs, client, first, 0, &mut next, 32).await;
        let mut inos = Vec::new();
        for n in 0..files {
            inos.push(create(&mfs, n).await);
        }
        let (mut order, mut rng) = (inos.clone(), SimRng::new(7));
        for from in (0..segments).step_by(PART as usize) {
            shuffle(&mut order, &mut rng);
            for &ino in &order {
                grow(&mfs, client, ino, from, &mut next, segments.min(from + PART)).await;
            }
        }
        let used = free - mfs.usage().blocks_free;
        mfs.close().await.unwrap();
        (inos, used)
    });
    (disk, inos, blocks)
}

fn shuffle(list: &mut [Ino], rng: &mut SimRng) {
    for at in (1..list.len()).rev() {
        list.swap(at, rng.below(at as u64 + 1) as usize);
    }
}

/// Reads inode and whole mapping of each file, with a store that was just opened on a virtual hard
/// disk.
fn read(disk: &SimDisk, way: Way, inos: &[Ino], segments: u64) -> Reads {
    let disk = disk.fork();
    disk.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
    let watched = disk.clone();
    let inos = inos.to_vec();
    in_world(&disk, |env| async move {
        let mfs = open(&env, way).await;
        let before = watched.report().unwrap_or_default();
        for ino in inos {
            let body = |txn: &mut crate::Txn<'_>| {
                txn.names().attr(ino)?;
                txn.layouts().layout(ino, FileBlock(0), usize::MAX)
            };
            let layout = mfs.run(Cost::READ, body).await.unwrap().0;
            assert_eq!(layout.len() as u64, segments);
        }
        let after = watched.report().unwrap_or_default();
        mfs.close().await.unwrap();
        Reads {
            requests: after.reads - before.reads,
            bytes: after.read - before.read,
            busy: after.busy.saturating_sub(before.busy),
        }
    })
}

/// Reads in the order of the directory, and in random order.
fn both_orders(way: Way, files: u64, segments: u64) -> ([Reads; 2], u64) {
    let (disk, inos, blocks) = filled(way, files, segments);
    let mut shuffled = inos.clone();
    shuffle(&mut shuffled, &mut SimRng::new(3));
    let orders = [inos, shuffled];
    (orders.map(|order| read(&disk, way, &order, segments)), blocks)
}

/// Bytes of the log for each create in a fragmented directory.
fn logged(way: Way, files: u64) -> u64 {
    let (disk, ..) = filled(way, 1, 32);
    in_world(&disk, |env| async move {
        let mfs = open(&env, way).await;
        let log = async || {
            mfs.sync().await.unwrap();
            mfs.last_committed().lsn.0
        };
        let before = log().await;
        for n in 0..files {
            create(&mfs, 10 + n).await;
        }
        let after = log().await;
        mfs.close().await.unwrap();
        (after - before) / files
    })
}

#[test]
#[ignore = "a measurement: prints a table"]
fn mapping_of_fragmented_files() {
    println!(
        "| files | segments | segments beyond the slot | metadata | in order: requests | KiB | disk | in no order: requests | KiB | disk |"
    );
    for (files, segments) in [(1000, 16), (1000, 50), (1000, 200), (200, 2000)] {
        for way in Way::ALL {
            let ([order, none], blocks) = both_orders(way, files, segments);
            let text = |reads: Reads| {
                format!(
                    "{} | {} | {:.2} s",
                    reads.requests,
                    reads.bytes / 1024,
                    reads.busy.as_secs_f64()
                )
            };
            println!(
                "| {files} | {segments} | {way:?} | {} KiB | {} | {} |",
                blocks * 4,
                text(order),
                text(none)
            );
        }
    }
    for way in Way::ALL {
        println!("log bytes of a create in a fragmented directory, {way:?}: {}", logged(way, 2000));
    }
}

#[test]
fn layout_block_ahead_adds_few_bytes_to_the_log_of_a_create() {
    let (without, with) = (logged(Way::Tree, 500), logged(Way::Ahead, 500));
    assert!(with <= without + 40, "{with} against {without}");
    assert_eq!(logged(Way::Needed, 500), without);
}

#[test]
fn layout_blocks_cost_fewer_read_requests_than_the_tree() {
    let [tree, ahead] = [Way::Tree, Way::Ahead].map(|way| both_orders(way, 150, 120).0);
    // Each file has one block of its own; those of eight files lie together.
    assert!(ahead[0].requests <= 150 / 8 * 2 + 20, "{ahead:?}");
    for (tree, ahead) in tree.iter().zip(&ahead) {
        assert!(ahead.requests < tree.requests && ahead.busy < tree.busy, "{ahead:?}, {tree:?}");
    }
}

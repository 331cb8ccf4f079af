use env::sim::{SimDisk, SimWorld};
use env::{DiskOptions, Env};
use types::limits::BLOCK;
use types::{Lsn, MetaBlock, Uuid};

use crate::fsck::{FsckOptions, ProblemKind, Subject, fsck, repair};
use crate::handle::Mfs;
use crate::mkfs::FormatOptions;
use crate::open::OpenOptions;
use engine::cost::Cost;
use engine::error::StoreError;
use engine::format::block::{self, BlockType};
use engine::format::roots::ROOTS_BLOCK;
use engine::format::roots::RootId;
use engine::format::superblock::Superblock;
use engine::log::recovery::{DamagedBlock, Remedy};
use engine::store::open::{LOST_WRITE, TOO_NEW};

const SIZE: u64 = 64 << 20;
const LOG: u64 = 4 << 20;
/// A root that the tests may use.
const ROOT: RootId = RootId(59);

async fn open(env: &Env, options: OpenOptions) -> Result<Mfs, StoreError> {
    let disk = env.open_disk("meta", DiskOptions { write: true, exclusive: false }).await.unwrap();
    Mfs::open(env, &disk, options).await
}

fn with<T, F: Future<Output = T>>(disk: &SimDisk, body: impl FnOnce(Env) -> F) -> T {
    let world = SimWorld::new(4);
    world.attach("meta", disk);
    world.run(body)
}

fn peek(disk: &SimDisk, block: MetaBlock) -> Vec<u8> {
    disk.peek(block.0 * BLOCK as u64, BLOCK)
}

fn poke(disk: &SimDisk, block: MetaBlock, bytes: &[u8]) {
    disk.poke(block.0 * BLOCK as u64, bytes);
}

/// Sets the root and a word of block `leaf`.
async fn set(mfs: &Mfs, leaf: MetaBlock, value: u64) -> Lsn {
    let change = mfs.run(Cost::SMALL, |txn| {
        txn.set_root(ROOT, value)?;
        block::put_u64(txn.write(leaf)?, 100, value);
        Ok(())
    });
    change.await.unwrap().1.lsn
}

async fn values(mfs: &Mfs, leaf: MetaBlock) -> (u64, u64) {
    let read =
        mfs.run(Cost::READ, |txn| Ok((txn.root(ROOT)?, block::get_u64(txn.read(leaf)?, 100))));
    read.await.unwrap().0
}

async fn table_block(mfs: &Mfs) -> MetaBlock {
    let made = mfs.run(Cost::SMALL, |txn| {
        let block = txn.alloc_meta(1, None)?;
        let data = txn.init(block, BlockType::Table)?;
        for word in 0..500 {
            block::put_u64(data, 64 + 8 * word, (block.0 << 16) + word as u64);
        }
        Ok(block)
    });
    made.await.unwrap().0
}

/// A device that was not closed, whose root and leaf were changed twice. After the tail, the log
/// has the second change of both and no image. Also their older versions, and the leaf.
struct StaleDevice {
    disk: SimDisk,
    stale: [Vec<u8>; 2],
    leaf: MetaBlock,
}

fn changed_after_the_tail() -> StaleDevice {
    let world = SimWorld::new(3);
    let outside = world.disk("meta", SIZE);
    world.run(|env| async move {
        format(&env).await;
        let options =
            OpenOptions { home_batch: 1, cache_bytes: 128 << 20, ..OpenOptions::default() };
        let mfs = open(&env, options).await.unwrap();
        let leaf = table_block(&mfs).await;
        set(&mfs, leaf, 7).await;
        mfs.close().await.unwrap();
        let stale = [ROOTS_BLOCK, leaf].map(|block| peek(&outside, block));
        let mfs = open(&env, options).await.unwrap();
        let first = set(&mfs, leaf, 1).await;
        mfs.sync().await.unwrap();
        let mut second = None;
        for n in 0..3000 {
            if n == 350 {
                second = Some(set(&mfs, leaf, 2).await);
            }
            table_block(&mfs).await;
            if n % 2 == 1 {
                mfs.sync().await.unwrap();
            }
            let tail = newest_superblock(&outside).tail;
            if second.is_some_and(|second| tail > first && tail < second) {
                mfs.sync().await.unwrap();
                return StaleDevice { disk: outside.fork(), stale, leaf };
            }
        }
        panic!("the tail was never between the changes");
    })
}

fn newest_superblock(disk: &SimDisk) -> Superblock {
    let blocks = SIZE / BLOCK as u64 - 1;
    let copy = |index| {
        let place = Superblock::place(index, blocks);
        Superblock::decode(&peek(disk, place), index, blocks).unwrap()
    };
    std::cmp::max_by_key(copy(0), copy(1), |copy| copy.generation)
}

async fn format(env: &Env) {
    let disk = env.open_disk("meta", DiskOptions { write: true, exclusive: false }).await.unwrap();
    let (name, uuid) = ("home".to_owned(), Uuid([9; 16]));
    let options = FormatOptions {
        name,
        uuid,
        log_bytes: LOG,
        pags: Vec::new(),
        features: engine::format::features::Features::NONE,
        force: false,
    };
    Mfs::format(env, &disk, &options).await.unwrap();
}

/// Opens `disk` in every way: the roots are whole, damage is reported if `what` says so, and an
/// opening that writes repairs it.
fn roots_are_whole(
    disk: &SimDisk,
    leaf: MetaBlock,
    what: &[(MetaBlock, &'static str)],
    value: u64,
) {
    for (read_only, repair) in [(true, false), (true, true), (false, true), (false, false)] {
        let disk = disk.fork();
        let options = OpenOptions { read_only, repair, ..OpenOptions::default() };
        let text = format!("read-only {read_only}, repair {repair}");
        with(&disk, |env| async move {
            let mfs = open(&env, options).await.unwrap();
            assert_eq!(mfs.damage(), what, "{text}");
            assert_eq!(values(&mfs, leaf).await, (value, value), "{text}");
            mfs.close().await.unwrap();
        });
        if !read_only {
            with(&disk, |env| async move {
                let mfs = open(&env, OpenOptions::default()).await.unwrap();
                assert_eq!((mfs.damaged(), values(&mfs, leaf).await), (vec![], (value, value)));
            });
        }
    }
}

#[test]
fn lost_write_of_the_roots_is_detected_by_the_log_and_repaired() {
    let StaleDevice { disk, stale, leaf } = changed_after_the_tail();
    roots_are_whole(&disk, leaf, &[], 2);
    assert_ne!(peek(&disk, ROOTS_BLOCK), stale[0]);
    poke(&disk, ROOTS_BLOCK, &stale[0]);
    roots_are_whole(&disk, leaf, &[(ROOTS_BLOCK, LOST_WRITE)], 2);
}

/// A closed device, whose log has nothing after the tail; also the roots before the last change.
fn closed() -> (SimDisk, Vec<u8>, MetaBlock) {
    let world = SimWorld::new(3);
    let outside = world.disk("meta", SIZE);
    world.run(|env| async move {
        format(&env).await;
        let mut stale = Vec::new();
        let mut leaf = None;
        for value in 1..3 {
            let mfs = open(&env, OpenOptions::default()).await.unwrap();
            stale = peek(&outside, ROOTS_BLOCK);
            let leaf = match leaf {
                Some(leaf) => leaf,
                None => *leaf.insert(table_block(&mfs).await),
            };
            set(&mfs, leaf, value).await;
            mfs.close().await.unwrap();
        }
        (outside.fork(), stale, leaf.unwrap())
    })
}

#[test]
fn lost_write_of_the_roots_is_detected_by_the_superblock_after_a_close() {
    let (disk, stale, leaf) = closed();
    roots_are_whole(&disk, leaf, &[], 2);
    poke(&disk, ROOTS_BLOCK, &stale);
    roots_are_whole(&disk, leaf, &[(ROOTS_BLOCK, LOST_WRITE)], 2);
}

#[test]
fn unreadable_roots_are_treated_as_damaged() {
    let (disk, _, leaf) = closed();
    let at = ROOTS_BLOCK.0 * BLOCK as u64;
    disk.make_unreadable(at..at + BLOCK as u64);
    with(&disk, |env| async move {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let mfs = open(&env, options).await.unwrap();
        assert_eq!(mfs.damage(), [(ROOTS_BLOCK, "cannot be read")]);
        assert_eq!(values(&mfs, leaf).await, (2, 2));
    });
}

#[test]
fn roots_newer_than_the_log_are_used_and_reported() {
    let (disk, _, leaf) = closed();
    let mut newer = peek(&disk, ROOTS_BLOCK);
    let data: &mut block::Block = (&mut newer[..]).try_into().unwrap();
    let at = usize::from(ROOT.offset());
    block::put_u64(data, at, 9);
    block::stamp(data, Lsn(1 << 40), types::Epoch(3));
    block::seal(data);
    poke(&disk, ROOTS_BLOCK, &newer);
    with(&disk, |env| async move {
        let mfs = open(&env, OpenOptions::default()).await.unwrap();
        let expected = DamagedBlock { block: ROOTS_BLOCK, what: TOO_NEW, remedy: Remedy::None };
        assert_eq!((mfs.damage(), mfs.damaged()), (vec![], vec![expected]));
        assert_eq!(values(&mfs, leaf).await, (9, 2));
    });
}

#[test]
fn lost_writes_that_the_log_cannot_restore_are_not_reported_as_repaired() {
    let StaleDevice { disk, stale, leaf } = changed_after_the_tail();
    poke(&disk, leaf, &stale[1]);
    let run = |disk: &SimDisk| {
        with(disk, |env| async move {
            let write = DiskOptions { write: true, exclusive: false };
            let meta = env.open_disk("meta", write).await.unwrap();
            let found = fsck(&env, &meta, FsckOptions::default()).await.unwrap();
            (found, repair(&env, &meta, FsckOptions::default()).await.unwrap())
        })
    };
    let is_lost = |problem: &crate::fsck::Problem| {
        (problem.kind, problem.subject) == (ProblemKind::DamagedBlock, Subject::Block(leaf))
    };
    let reported = |lines: &[String]| {
        let name = format!("metadata block {leaf} ");
        lines.iter().filter(|line| line.starts_with(&name)).cloned().collect::<Vec<_>>()
    };
    let whole = disk.fork();
    let (found, repaired) = run(&whole);
    assert!(found.problems.iter().any(is_lost), "{found:?}");
    assert_eq!(reported(&repaired.done).len(), 1, "{:?}", repaired.done);
    assert!(reported(&repaired.done)[0].contains("from the log"), "{:?}", repaired.done);
    assert!(!repaired.left.problems.iter().any(is_lost), "{:?}", repaired.left);

    // Make a gap in the log before its tail: the images of the leaf no longer count.
    let newest = newest_superblock(&disk);
    disk.poke(newest.log_offset(Lsn(newest.tail.0 - BLOCK as u64)), &[0; BLOCK]);
    let (found, repaired) = run(&disk);
    assert!(found.problems.iter().any(is_lost), "{found:?}");
    assert_eq!(reported(&repaired.done), [""; 0]);
    assert!(repaired.left.problems.iter().any(is_lost), "{:?}", repaired.left);
}

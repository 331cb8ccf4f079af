//! How long changes wait, and how the store uses the disk, under overload.

use std::cell::Cell;
use std::rc::Rc;

use env::sim::{DiskModel, HardDisk, SimDisk, SimRng, SimWorld};
use env::{DiskOptions, Env};
use types::limits::BLOCK;
use types::{Duration, FileKind, Ino, MetaBlock, Name, Uuid};

use crate::handle::Mfs;
use crate::mkfs::FormatOptions;
use crate::open::OpenOptions;
use crate::testing::new_inode;
use engine::cost::Cost;
use engine::format::block::{BlockType, put_u64};
use engine::store::checkpoint::BRIDGE_MAX;

const LOG: u64 = 16 << 20;
const TASKS: u64 = 16;

/// Measurements of a run on the modelled hard disk.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// The longest time of a change.
    longest: Duration,
    /// The time of all changes.
    whole: Duration,
    /// Writes outside the log, as the disk received them.
    home: u64,
    /// Most bytes of the log in use.
    log_used: u64,
}

impl Outcome {
    /// Checks that the load fills at most three quarters of the log, and the padding of a group.
    fn check_log(&self) {
        assert!(self.log_used <= LOG / 4 * 3 + BLOCK as u64, "{self:?}");
    }
}

async fn opened(env: &Env) -> Mfs {
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
    let options = OpenOptions { cache_bytes: 64 << 20, ..OpenOptions::default() };
    Mfs::open(env, &disk, options).await.unwrap()
}

fn home_writes(disk: &SimDisk) -> u64 {
    let report = disk.report().unwrap();
    report.writes - report.counted.writes
}

/// Sixteen processes make `changes` changes each, as fast as the store admits them.
fn overload<S: Clone + 'static>(
    changes: u64,
    prepare: impl AsyncFnOnce(&Mfs) -> S,
    change: impl AsyncFn(&Mfs, &S, u64, u64) + Copy + 'static,
) -> Outcome {
    let world = SimWorld::new(1);
    let disk = world.disk("meta", 1 << 30);
    let outside = disk.clone();
    world.run(|env| async move {
        let mfs = opened(&env).await;
        let subject = prepare(&mfs).await;
        let superblock = mfs.superblock();
        let log = superblock.log_first.0 * BLOCK as u64..superblock.bitmap_first.0 * BLOCK as u64;
        outside.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
        outside.count_range(log);
        let (longest, used) = (Rc::new(Cell::new(Duration::ZERO)), Rc::new(Cell::new(0)));
        let begin = env.now();
        let mut tasks = Vec::new();
        for task in 0..TASKS {
            let (env, mfs, subject) = (env.clone(), mfs.clone(), subject.clone());
            let (longest, used) = (longest.clone(), used.clone());
            tasks.push(env.clone().spawn_join(async move {
                for n in 0..changes {
                    env.sleep(Duration::from_micros(20)).await;
                    let begin = env.now();
                    change(&mfs, &subject, task, n).await;
                    longest.set(longest.get().max(env.now().since(begin)));
                    used.set(used.get().max(mfs.usage().log_used));
                }
            }));
        }
        for task in tasks {
            task.await;
        }
        let whole = env.now().since(begin);
        let outcome = Outcome {
            longest: longest.get(),
            whole,
            home: home_writes(&outside),
            log_used: used.get(),
        };
        mfs.close().await.unwrap();
        outcome
    })
}

#[test]
fn checkpoint_of_growing_directories_needs_few_writes_and_short_waits() {
    let outcome = overload(
        6000,
        async |mfs| {
            let mut dirs = Vec::new();
            for n in 0..TASKS {
                let name = Name::new(format!("d{n}").as_bytes()).unwrap();
                let made = mfs.run(Cost::SMALL, |txn| {
                    txn.names().create(Ino::ROOT, &name, &new_inode(FileKind::Directory), None)
                });
                dirs.push(made.await.unwrap().0);
            }
            Rc::new(dirs)
        },
        async |mfs, dirs, task, n| {
            let name = Name::new(format!("file{n}").as_bytes()).unwrap();
            let made = mfs.run(Cost::SMALL, |txn| {
                txn.names().create(dirs[task as usize], &name, &new_inode(FileKind::Regular), None)
            });
            made.await.unwrap();
        },
    );
    println!("{outcome:?}");
    outcome.check_log();
    // Batches of the oldest dirty blocks took 69 writes when the directories were interleaved. Now
    // the allocator places them apart, also from the trees and the root's content. That makes
    // listings sequential and costs a sweep one seek for each directory.
    assert!(outcome.home <= 3 * TASKS + 4, "{outcome:?}");
    assert!(outcome.longest < Duration::from_millis(160), "{outcome:?}");
}

#[test]
fn changes_across_the_disk_wait_no_longer_than_a_sweep() {
    const BLOCKS: u64 = 12_000;
    let outcome = overload(
        4000,
        async |mfs| {
            let mut blocks = Vec::new();
            for _ in 0..BLOCKS / 100 {
                let made = mfs.run(Cost { dirty: 150, ..Cost::STEP }, |txn| {
                    let mut made = Vec::new();
                    for _ in 0..100 {
                        let block = txn.alloc_meta(17, None)?;
                        txn.init(block, BlockType::Table)?;
                        made.push(block);
                    }
                    Ok(made)
                });
                blocks.extend(made.await.unwrap().0);
            }
            Rc::new(blocks)
        },
        async |mfs, blocks: &Rc<Vec<MetaBlock>>, task, n| {
            let mut rng = SimRng::new(task << 32 | n);
            let block = blocks[rng.below(BLOCKS) as usize];
            let changed = mfs.run(Cost::SMALL, |txn| {
                let data = txn.write(block)?;
                (0..20).for_each(|word| put_u64(data, 64 + 8 * word, n + 1));
                Ok(())
            });
            changed.await.unwrap();
        },
    );
    println!("{outcome:?}");
    outcome.check_log();
    // Batches of the oldest blocks: 2.09 s, and 39.3 s in all.
    assert!(outcome.longest < Duration::from_millis(2000), "{outcome:?}");
    assert!(outcome.whole < Duration::from_secs(35), "{outcome:?}");
}

#[test]
fn checkpoint_bridges_small_gaps_of_clean_blocks_on_a_rotating_disk() {
    const CHANGED: u64 = 40;
    let home = |rotational: bool, apart: u64| {
        let world = SimWorld::new(1);
        let disk = world.disk("meta", 1 << 30);
        disk.set_rotational(rotational);
        let outside = disk.clone();
        world.run(|env| async move {
            let mfs = opened(&env).await;
            let all = CHANGED * apart;
            let (first, _) = mfs
                .run(Cost::STEP, |txn| {
                    let first = txn.alloc_meta(all as u32, None)?;
                    for n in 0..all {
                        put_u64(txn.init(MetaBlock(first.0 + n), BlockType::Table)?, 100, n);
                    }
                    Ok(first)
                })
                .await
                .unwrap();
            while (mfs.usage().dirty, mfs.usage().log_used) != (0, 0) {
                env.sleep(Duration::from_secs(1)).await;
            }
            let before = (outside.counts().writes, outside.peek(first.0 * BLOCK as u64, BLOCK * 2));
            mfs.run(Cost::STEP, |txn| {
                (0..CHANGED).try_for_each(|n| {
                    let block = txn.write(MetaBlock(first.0 + n * apart))?;
                    put_u64(block, 100, 1000 + n);
                    Ok(())
                })
            })
            .await
            .unwrap();
            while (mfs.usage().dirty, mfs.usage().log_used) != (0, 0) {
                env.sleep(Duration::from_secs(1)).await;
            }
            for n in 0..all {
                let at = (first.0 + n) * BLOCK as u64 + 100;
                let value = engine::format::block::get_u64(&outside.peek(at, 8), 0);
                assert_eq!(value, if n % apart == 0 { 1000 + n / apart } else { n });
            }
            let clean = outside.peek((first.0 + 1) * BLOCK as u64, BLOCK);
            assert_eq!(clean, before.1[BLOCK..], "a bridged clean block must not change");
            let report = crate::fsck::check(&mfs).await.unwrap();
            assert!(report.problems.iter().all(|problem| problem.to_string().contains("nobody")));
            outside.counts().writes - before.0
        })
    };
    // The store also writes the log's group and the superblocks.
    assert!(home(false, 4) > CHANGED);
    assert!(home(true, 4) < CHANGED / 4, "{}", home(true, 4));
    assert!(home(true, BRIDGE_APART) > CHANGED, "too far apart");
}

/// One more than a bridge spans.
const BRIDGE_APART: u64 = BRIDGE_MAX + 2;

use env::sim::{SimDisk, SimWorld};
use env::{Disk, DiskOptions, Env};
use label::SliceKind;
use types::limits::{BLOCK, BLOCK_U64};
use types::{Duration, Epoch, MetaBlock, PagId, Transno, Uuid};

use crate::handle::Mfs;
use crate::mkfs::FormatOptions;
use crate::open::OpenOptions;
use engine::btree::Tree;
use engine::cost::Cost;
use engine::error::StoreError;
use engine::format::block::{self, BlockType};
use engine::format::roots::RootId;
use engine::format::superblock::Superblock;

const TREE: Tree<8, 8> = Tree::at(RootId(60));

fn format_options() -> FormatOptions {
    let (name, uuid) = ("home".to_owned(), Uuid([9; 16]));
    FormatOptions {
        name,
        uuid,
        log_bytes: 4 << 20,
        pags: Vec::new(),
        features: engine::format::features::Features::NONE,
        force: false,
    }
}

fn small() -> OpenOptions {
    OpenOptions { cache_bytes: 0, ..OpenOptions::default() }
}

/// Runs `body` with an empty device of `bytes` bytes.
fn on_device<F: Future<Output = ()>>(bytes: u64, body: impl FnOnce(Env, Disk) -> F) {
    on_sim_disk(bytes, |env, disk, _| body(env, disk));
}

/// As [`on_device`], with a view of the device from outside.
fn on_sim_disk<F: Future<Output = ()>>(bytes: u64, body: impl FnOnce(Env, Disk, SimDisk) -> F) {
    let world = SimWorld::new(3);
    let outside = world.disk("meta", bytes);
    world.run(|env| async move {
        let options = DiskOptions { write: true, exclusive: false };
        let disk = env.open_disk("meta", options).await.unwrap();
        body(env, disk, outside).await;
    });
}

async fn put(mfs: &Mfs, key: u64, value: u64) -> Transno {
    let change =
        mfs.run(Cost::SMALL, |txn| TREE.insert(txn, &key.to_be_bytes(), &value.to_le_bytes()));
    change.await.unwrap().1
}

async fn all(mfs: &Mfs) -> Vec<(u64, u64)> {
    let read = mfs.run(Cost::SMALL, |txn| {
        TREE.nodes(txn, |_, _| ())?;
        TREE.range(txn, &[0; 8], usize::MAX)
    });
    let entries = read.await.unwrap().0;
    entries.into_iter().map(|(k, v)| (u64::from_be_bytes(k), u64::from_le_bytes(v))).collect()
}

#[test]
fn closed_store_has_all_changes_when_reopened() {
    on_device(64 << 20, |env, disk| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let mut expected = Vec::new();
        for round in 0..3 {
            let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
            assert_eq!(mfs.identity().epoch, Epoch(round + 2));
            assert_eq!(all(&mfs).await, expected);
            for key in 0..2000 {
                put(&mfs, u64::from(round) * 10_000 + key, key).await;
                expected.push((u64::from(round) * 10_000 + key, key));
            }
            mfs.close().await.unwrap();
            assert!(matches!(mfs.sync().await, Ok(()) | Err(StoreError::Poisoned(_))));
            let late = mfs.run(Cost::SMALL, |_| Ok(())).await;
            assert!(matches!(late, Err(StoreError::Poisoned(_))));
        }
    });
}

#[test]
fn durable_changes_survive_the_loss_of_the_store() {
    on_device(64 << 20, |env, disk| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let mut expected = Vec::new();
        let mut numbers = Vec::new();
        for round in 0..3 {
            let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
            assert_eq!(all(&mfs).await, expected);
            for number in &numbers {
                let Transno { epoch, lsn } = *number;
                assert!(mfs.survived(epoch).unwrap() >= lsn);
            }
            for key in 0..1000u64 {
                let number = put(&mfs, key * 3 + round, key).await;
                if key % 100 == 99 {
                    mfs.wait_durable(number).await.unwrap();
                    assert!(mfs.last_committed() >= number);
                    numbers.push(number);
                }
                expected.push((key * 3 + round, key));
            }
            expected.sort_unstable();
        }
        let options = OpenOptions { read_only: true, ..small() };
        for _ in 0..2 {
            let mfs = Mfs::open(&env, &disk, options).await.unwrap();
            assert_eq!(all(&mfs).await, expected);
            let change = mfs.run(Cost::SMALL, |txn| TREE.insert(txn, &[9; 8], &[0; 8])).await;
            assert!(matches!(change, Err(StoreError::ReadOnly)));
            mfs.close().await.unwrap();
        }
    });
}

#[test]
fn group_of_a_replaced_server_is_never_redone() {
    on_device(64 << 20, |env, disk| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let old = Mfs::open(&env, &disk, small()).await.unwrap();
        put(&old, 1, 1).await;
        old.sync().await.unwrap();
        // Another server takes over, with the epoch that it has claimed. The old one still writes.
        let above = Epoch(old.identity().epoch.0 + 6);
        let claimed = OpenOptions { epoch_above: above, ..small() };
        let new = Mfs::open(&env, &disk, claimed).await.unwrap();
        assert_eq!(new.identity().epoch, Epoch(above.0 + 1));
        put(&old, 2, 2).await;
        old.sync().await.unwrap();
        drop((old, new));
        let third = Mfs::open(&env, &disk, small()).await.unwrap();
        assert_eq!(all(&third).await, [(1, 1)]);
        // It writes over a group that was acknowledged: that is found, and nothing is redone.
        let fourth = Mfs::open(&env, &disk, small()).await.unwrap();
        for key in 3..5 {
            put(&fourth, key, key).await;
            fourth.sync().await.unwrap();
        }
        put(&third, 2, 2).await;
        third.sync().await.unwrap();
        drop((third, fourth));
        let refused = Mfs::open(&env, &disk, small()).await.err().unwrap().to_string();
        assert!(refused.contains("a server that had been replaced has overwritten"), "{refused}");
    });
}

#[test]
fn small_log_and_cache_lose_nothing_over_many_laps() {
    on_device(256 << 20, |env, disk| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        for step in 0..60_000u64 {
            put(&mfs, step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40, step).await;
        }
        let usage = mfs.usage();
        assert!(usage.dirty <= usage.cache_max / 2, "{usage:?}");
        assert!(usage.cached <= usage.cache_max, "{usage:?}");
        mfs.sync().await.unwrap();
        let before = all(&mfs).await;
        assert!(mfs.last_committed().lsn.0 > 3 * (4 << 20));
        drop(mfs);
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        assert!(all(&mfs).await == before);
        mfs.close().await.unwrap();
    });
}

#[test]
fn group_is_written_after_the_commit_interval() {
    on_device(64 << 20, |env, disk| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let commit_interval = Duration::from_millis(5);
        let options = OpenOptions { commit_interval, ..small() };
        let mfs = Mfs::open(&env, &disk, options).await.unwrap();
        let number = put(&mfs, 1, 1).await;
        while mfs.last_committed() < number {
            env.sleep(Duration::from_millis(1)).await;
        }
        let number = put(&mfs, 2, 1).await;
        assert!(mfs.last_committed() < number);
    });
}

fn text(result: Result<Mfs, StoreError>) -> String {
    match result {
        Ok(_) => panic!("opened"),
        Err(error @ StoreError::Refused(_)) => error.to_string(),
        Err(other) => panic!("{other}"),
    }
}

async fn damage(env: &Env, disk: &Disk, block: MetaBlock, bytes: Option<&[u8]>) {
    let mut buf = env.buffer(BLOCK);
    match bytes {
        Some(bytes) => buf[..bytes.len()].copy_from_slice(bytes),
        None => buf.fill(0x5a),
    }
    disk.write(block.0 * BLOCK_U64, buf).await.0.unwrap();
}

#[test]
fn device_without_metadata_is_refused_with_path_and_advice() {
    on_device(64 << 20, |env, disk| async move {
        let blocks = disk.size() / BLOCK_U64 - 1;
        let empty = text(Mfs::open(&env, &disk, small()).await);
        assert!(empty.contains(disk.path()) && empty.contains("redbud mkfs"), "{empty}");
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let again = Mfs::format(&env, &disk, &format_options()).await.unwrap_err().to_string();
        assert!(again.contains("home") && again.contains("--force"), "{again}");
        let forced = FormatOptions { force: true, ..format_options() };
        Mfs::format(&env, &disk, &forced).await.unwrap();
        let found = label::read(&disk).await.unwrap();
        let (start, data) = (100, SliceKind::Data { pag: PagId(1) });
        let mut mixed = found.label.clone();
        mixed.slices[0].blocks = start;
        mixed.slices.push(label::Slice { kind: data, start, blocks: 50, uuid: Uuid([3; 16]) });
        label::write_new(&disk, &mixed).await.unwrap();
        let said = text(Mfs::open(&env, &disk, small()).await);
        assert!(said.contains("data beside metadata"), "{said}");
        mixed.slices.remove(0);
        label::write_new(&disk, &mixed).await.unwrap();
        assert!(text(Mfs::open(&env, &disk, small()).await).contains("data device"));
        label::write_new(&disk, &found.label).await.unwrap();
        for index in 0..2 {
            let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
            mfs.close().await.unwrap();
            damage(&env, &disk, Superblock::place(index, blocks), None).await;
        }
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        mfs.close().await.unwrap();
        let mut newer = disk.read(BLOCK_U64, env.buffer(BLOCK)).await.1;
        newer[40] = 7;
        block::seal(&mut newer);
        damage(&env, &disk, MetaBlock(1), Some(&newer)).await;
        assert!(text(Mfs::open(&env, &disk, small()).await).contains("version 7"));
        newer[32..40].copy_from_slice(b"REDBUDMD");
        block::seal(&mut newer);
        damage(&env, &disk, MetaBlock(1), Some(&newer)).await;
        let old = text(Mfs::open(&env, &disk, small()).await);
        assert!(old.contains("before format version 1") && old.contains("mkfs --force"), "{old}");
        damage(&env, &disk, MetaBlock(1), Some(b"anything")).await;
        damage(&env, &disk, MetaBlock(blocks - 1), Some(b"else")).await;
        let gone = text(Mfs::open(&env, &disk, small()).await);
        assert!(gone.contains("do not format it") && !gone.contains("mkfs"), "{gone}");
    });
}

#[test]
fn damaged_label_loses_nothing_and_no_message_suggests_formatting() {
    on_device(64 << 20, |env, disk| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let original = disk.read(0, env.buffer(BLOCK)).await.1;
        for byte in [0, 7, 8, 20, 60, 4000] {
            let mut label = original.to_vec();
            label[byte] ^= 0x10;
            damage(&env, &disk, MetaBlock(0), Some(&label)).await;
            let report = crate::fsck::fsck(&env, &disk, Default::default()).await.unwrap();
            let kinds: Vec<_> = report.problems.iter().map(|problem| problem.kind).collect();
            assert_eq!(kinds, [crate::fsck::ProblemKind::DamagedLabel], "byte {byte}");
            let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
            assert!(mfs.label_damage().is_some());
            mfs.close().await.unwrap();
        }
        damage(&env, &disk, MetaBlock(0), Some(b"somebody else's")).await;
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        assert!(mfs.label_damage().unwrap().contains("no Redbud label"));
        mfs.close().await.unwrap();
        let end = MetaBlock(disk.size() / BLOCK_U64 - 1);
        damage(&env, &disk, end, Some(b"somebody else's")).await;
        let said = text(Mfs::open(&env, &disk, small()).await);
        assert!(said.contains("`home`") && said.contains("restore these blocks"), "{said}");
        for block in [MetaBlock(0), end] {
            damage(&env, &disk, block, Some(&original)).await;
        }
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        assert_eq!(mfs.label_damage(), None);
        mfs.close().await.unwrap();

        // The check finds everything through the roots, so their damage is one finding.
        let roots = engine::format::roots::ROOTS_BLOCK;
        let mut block = disk.read(roots.0 * BLOCK_U64, env.buffer(BLOCK)).await.1.to_vec();
        block[0] ^= 1;
        damage(&env, &disk, roots, Some(&block)).await;
        let report = crate::fsck::fsck(&env, &disk, Default::default()).await.unwrap();
        let found = report.problems.iter().filter(|problem| problem.detail.contains("checksum"));
        assert_eq!(found.count(), 1, "{:?}", report.problems);
    });
}

#[test]
fn mkfs_refuses_impossible_options() {
    on_device(4 << 20, |env, disk| async move {
        let cases = [
            FormatOptions { name: "a/b".into(), ..format_options() },
            FormatOptions { log_bytes: 4096, ..format_options() },
            FormatOptions { log_bytes: u64::MAX, ..format_options() },
            format_options(),
        ];
        for options in cases {
            let error = Mfs::format(&env, &disk, &options).await.unwrap_err();
            assert!(matches!(error, StoreError::Refused(_)), "{error}");
        }
    });
}

#[test]
fn damaged_block_is_reported_with_its_address() {
    on_device(64 << 20, |env, disk| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        let (block, _) = mfs
            .run(Cost::SMALL, |txn| {
                let block = txn.alloc_meta(1, None)?;
                txn.init(block, BlockType::Table)?;
                Ok(block)
            })
            .await
            .unwrap();
        mfs.close().await.unwrap();
        damage(&env, &disk, block, None).await;
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        let error = mfs.run(Cost::SMALL, |txn| txn.read(block).map(|_| ())).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { block: at, .. } if at == block), "{error}");
    });
}

#[test]
fn concurrent_transactions_can_fetch_and_change_the_same_blocks() {
    on_device(64 << 20, |env, disk| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        for key in 0..4000 {
            put(&mfs, key, 0).await;
        }
        mfs.close().await.unwrap();
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        let tasks: Vec<_> = (0..16u64)
            .map(|task| {
                let mfs = mfs.clone();
                env.spawn_join(async move {
                    for key in 0..200 {
                        let key = key * 20 + task;
                        let add = mfs.run(Cost::SMALL, |txn| {
                            let former = TREE.get(txn, &key.to_be_bytes())?.unwrap_or_default();
                            let value = u64::from_le_bytes(former) + 1;
                            TREE.insert(txn, &(key % 4000).to_be_bytes(), &value.to_le_bytes())
                        });
                        let number = add.await.unwrap().1;
                        if key % 7 == 0 {
                            mfs.wait_durable(number).await.unwrap();
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        let sum: u64 = all(&mfs).await.into_iter().map(|(_, value)| value).sum();
        assert_eq!(sum, 16 * 200);
        mfs.close().await.unwrap();
    });
}

#[test]
fn read_only_store_writes_nothing() {
    on_sim_disk(64 << 20, |env, disk, outside| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        for key in 0..500 {
            put(&mfs, key, 1).await;
        }
        mfs.sync().await.unwrap();
        drop(mfs);
        let before = outside.counts().writes;
        let options = OpenOptions { read_only: true, ..small() };
        let mfs = Mfs::open(&env, &disk, options).await.unwrap();
        assert_eq!(all(&mfs).await.len(), 500);
        mfs.sync().await.unwrap();
        mfs.close().await.unwrap();
        assert_eq!(outside.counts().writes, before);
    });
}

#[test]
fn callers_that_wait_together_share_a_flush() {
    on_sim_disk(64 << 20, |env, disk, outside| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        let before = outside.counts().flushes;
        let tasks: Vec<_> = (0..50)
            .map(|key| {
                let mfs = mfs.clone();
                env.spawn_join(async move {
                    let number = put(&mfs, key, 1).await;
                    mfs.wait_durable(number).await.unwrap();
                    assert!(mfs.last_committed() >= number);
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        assert!(outside.counts().flushes - before <= 3);
        mfs.close().await.unwrap();
    });
}

#[test]
fn record_larger_than_the_log_poisons_the_store_before_a_write() {
    on_device(64 << 20, |env, disk| async move {
        let options = FormatOptions { log_bytes: 64 << 10, ..format_options() };
        Mfs::format(&env, &disk, &options).await.unwrap();
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        let durable = put(&mfs, 1, 1).await;
        mfs.wait_durable(durable).await.unwrap();
        let huge = mfs.run(Cost::SMALL, |txn| {
            let first = txn.alloc_meta(100, None)?;
            for block in first.0..first.0 + 100 {
                txn.init(MetaBlock(block), BlockType::Table)?[32..].fill(1);
            }
            Ok(())
        });
        let number = huge.await.unwrap().1;
        assert!(matches!(mfs.wait_durable(number).await, Err(StoreError::Poisoned(_))));
        drop(mfs);
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        assert_eq!(all(&mfs).await, [(1, 1)]);
    });
}

#[test]
fn background_tasks_end_when_the_last_handle_is_dropped() {
    on_device(64 << 20, |env, disk| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let before = env.live_tasks();
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        put(&mfs, 1, 1).await;
        drop(mfs);
        env.sleep(Duration::from_secs(3)).await;
        assert_eq!(env.live_tasks(), before);
    });
}

#[test]
fn idle_store_is_checkpointed_once_and_reopened_without_redo() {
    on_sim_disk(64 << 20, |env, disk, outside| async move {
        Mfs::format(&env, &disk, &format_options()).await.unwrap();
        let mfs = Mfs::open(&env, &disk, small()).await.unwrap();
        for key in 0..500 {
            put(&mfs, key, key).await;
        }
        // Under load, however light, the checkpoint does not begin.
        for key in 0..20 {
            env.sleep(Duration::from_secs(1)).await;
            put(&mfs, key, 1).await;
        }
        assert!(mfs.usage().dirty > 0 && mfs.usage().log_used > 0, "{:?}", mfs.usage());
        env.sleep(Duration::from_secs(12)).await;
        assert_eq!((mfs.usage().dirty, mfs.usage().log_used), (0, 0));
        let before = outside.counts();
        env.sleep(Duration::from_secs(60)).await;
        let after = outside.counts();
        assert_eq!((before.writes, before.flushes), (after.writes, after.flushes), "once");
        // Reopen as after a crash: the blocks at home are enough.
        drop(mfs);
        let again = Mfs::open(&env, &disk, small()).await.unwrap();
        assert_eq!(all(&again).await.len(), 500);
        assert_eq!(again.usage().dirty, 0, "there was nothing to redo");
    });
}

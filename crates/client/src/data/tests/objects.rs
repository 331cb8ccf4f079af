//! Files whose content lies in objects at targets.

use super::model::{Player, play, play_with};
use super::*;

fn striped(seed: u64) -> Setup {
    let (targets, stripe) = [(3, (2, 3)), (3, (1, 2)), (2, (8, 1)), (1, (4, 1))][seed as usize % 4];
    Setup { disks: 0, targets, stripe, ..Setup::default() }
}

#[test]
fn random_operations_on_objects_agree_with_an_array_of_bytes() {
    for seed in 900..930 {
        play(seed, striped(seed), 250);
    }
}

#[test]
fn random_operations_on_objects_agree_over_restarts_of_targets() {
    for seed in 930..960 {
        play_with(seed, striped(seed), 250, |player| {
            if player.rng.one_in(12) {
                let nth = player.rng.below(player.rig.server.targets.len() as u64) as usize;
                player.rig.server.targets[nth].restart();
            }
        });
    }
}

/// After a loss of the client and of what targets have not made durable, the file has bytes that it
/// had at some time since the last fsync.
#[test]
fn fsynced_content_of_objects_survives_a_power_cut_and_nothing_foreign_appears() {
    for seed in 960..990 {
        run(seed, striped(seed), |rig| async move {
            let mut player = Player::new(rig, seed, 2);
            for _ in 0..120 {
                player.step().await;
                let server = player.rig.server.clone();
                for (file, model) in &player.files {
                    let durable = |target: &Target| target.disk.borrow().blocks.clone();
                    let now = |target: &Target| target.now.borrow().0.clone();
                    for state in [&server.durable, &server.now] {
                        let state = state.borrow();
                        let size = state.files.get(&file.ino).map_or(0, |file| file.size);
                        model.check_crashed(&server.in_objects(size, file.ino, durable));
                        model.check_crashed(&server.in_objects(size, file.ino, now));
                    }
                }
            }
        });
    }
}

fn one(targets: u16, width: u16) -> Setup {
    Setup { disks: 0, targets, stripe: (2, width), ..Setup::default() }
}

#[test]
fn units_take_turns_among_the_targets_and_a_commit_has_no_edits() {
    run(990, one(3, 3), |rig| async move {
        let file = rig.file(3);
        let bytes: Vec<u8> = (0..9u8).flat_map(|byte| [byte + 1; BLOCK]).collect();
        rig.write(&file, 0, &bytes).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        let on: Vec<_> = rig.server.targets.iter().map(|target| target.blocks_of(3)).collect();
        assert_eq!(on, [vec![0, 1, 2, 3], vec![0, 1, 2], vec![0, 1]]);
        assert!(rig.server.seen(Ino(3)) == bytes);
        let segments = file.layout().await.unwrap();
        let places: Vec<_> =
            segments.iter().map(|s| (s.file.0, s.len, s.pag.0, s.addr.0)).collect();
        assert_eq!(places, [(0, 2, 1, 0), (2, 2, 2, 0), (4, 2, 3, 0), (6, 2, 1, 2), (8, 1, 2, 2)]);
        rig.finish(2048).await;
        // A write of several requests: the units here are larger than one may be.
        assert!(rig.server.targets[0].counts.borrow().syncs > 0);
    });
    run(991, Setup { stripe: (1024, 1), ..one(1, 1) }, |rig| async move {
        let file = rig.file(3);
        let bytes: Vec<u8> = (0..700u32).flat_map(|n| [(n % 61) as u8 + 1; BLOCK]).collect();
        rig.write(&file, 5 * BLOCK_U64, &bytes).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        assert_eq!(rig.server.targets[0].blocks_of(3).len(), 700);
        file.flush().await.unwrap();
        file.rights_lost(Rights::empty());
        rig.acquire(&file);
        let read = file.read(5 * BLOCK_U64, bytes.len()).await.unwrap().to_vec();
        assert!(read == bytes);
        assert!(rig.server.targets[0].counts.borrow().reads >= 3);
    });
}

#[test]
fn truncated_blocks_stay_at_the_targets_until_the_server_does_not_count_them() {
    run(992, one(2, 2), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[7; 8 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        let target = rig.server.targets[1].clone();
        let all = target.blocks_of(1);
        assert_eq!(all, [0, 1, 2, 3]);
        rig.server.held.set(u64::MAX);
        file.set_size(BLOCK_U64).await.unwrap();
        rig.env.sleep(Duration::from_secs(3)).await;
        assert_eq!(target.blocks_of(1), all, "the commit is not answered");
        rig.server.held.set(0);
        assert_eq!(file.flush().await, Ok(()));
        let left: Vec<_> = rig.server.targets.iter().map(|target| target.blocks_of(1)).collect();
        assert_eq!(left, [vec![], vec![0]]);
        // Cut off and passed again before any of it is committed: zeros, here and elsewhere.
        rig.write(&file, 0, &[8; 8 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        file.set_size(100).await.unwrap();
        file.set_size(6 * BLOCK_U64).await.unwrap();
        rig.write(&file, 4 * BLOCK_U64, &[9; 10]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        let mut want = vec![0; 6 * BLOCK];
        want[..100].fill(8);
        want[4 * BLOCK..4 * BLOCK + 10].fill(9);
        assert!(file.read(0, 6 * BLOCK).await.unwrap().to_vec() == want);
        assert!(rig.server.seen(Ino(1)) == want);
    });
}

/// A client that died had written behind the size that the server knows.
#[test]
fn what_a_dead_client_left_behind_the_size_never_shows() {
    for step in 0..3 {
        run(993 + step, one(2, 2), |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[1; 100]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
            for target in &rig.server.targets {
                for block in 0..8 {
                    let mut now = target.now.borrow_mut();
                    now.0.entry((ObjectId(1), block)).or_insert_with(|| vec![0xee; BLOCK]);
                }
            }
            file.rights_lost(Rights::empty());
            rig.acquire(&file);
            match step {
                0 => file.set_size(7 * BLOCK_U64).await.unwrap(),
                1 => _ = rig.write(&file, 7 * BLOCK_U64 - 9, &[3; 9]).await.unwrap(),
                _ => file.fallocate(0, 0, 7 * BLOCK_U64).await.unwrap(),
            }
            let mut want = vec![0; 7 * BLOCK];
            want[..100].fill(1);
            if step == 1 {
                want[7 * BLOCK - 9..].fill(3);
            }
            assert!(file.read(0, 7 * BLOCK).await.unwrap().to_vec() == want, "{step}");
            assert_eq!(file.fsync(false).await, Ok(true));
            assert!(rig.server.seen(Ino(1)) == want, "{step}");
            file.flush().await.unwrap();
            file.rights_lost(Rights::empty());
            rig.acquire(&file);
            assert!(file.read(0, 7 * BLOCK).await.unwrap().to_vec() == want, "{step}");
        });
    }
}

#[test]
fn seek_finds_exactly_the_blocks_that_hold_something() {
    use crate::api::Whence::{Data, Hole};
    for width in 1..=3 {
        run(996, one(3, width), |rig| async move {
            let file = rig.file(1);
            let runs: [(u64, u64); 5] = [(3, 5), (5, 6), (17, 30), (1000, 1001), (90_000, 90_003)];
            for (from, to) in runs {
                let bytes = vec![4; (to - from) as usize * BLOCK];
                rig.write(&file, from * BLOCK_U64, &bytes).await.unwrap();
            }
            file.set_size(100_000 * BLOCK_U64).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
            let in_memory = file.clone();
            for known in [true, false] {
                if !known {
                    file.flush().await.unwrap();
                    file.rights_lost(Rights::empty());
                    rig.acquire(&file);
                }
                let before = rig.server.targets[0].counts.borrow().reads;
                let (mut at, mut found) = (0, Vec::new());
                while let Ok(data) = in_memory.seek(at * BLOCK_U64, Data).await {
                    let hole = file.seek(data, Hole).await.unwrap();
                    found.push((data / BLOCK_U64, hole / BLOCK_U64));
                    at = hole / BLOCK_U64;
                }
                let joined = [(3, 6), (17, 30), (1000, 1001), (90_000, 90_003)];
                assert_eq!(found, joined, "{width} {known}");
                assert_eq!(rig.server.targets[0].counts.borrow().reads, before);
                let end = file.seek(90_003 * BLOCK_U64, Hole).await;
                assert_eq!(end, Ok(90_003 * BLOCK_U64));
                assert_eq!(file.seek(100_000 * BLOCK_U64, Hole).await, Err(Fault::NoData));
            }
        });
    }
}

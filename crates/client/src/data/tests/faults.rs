//! Devices that fail, servers that refuse, space that runs out, sessions that end.

use env::sim::{DiskAction, DiskFault};

use super::*;
use crate::boundary::Refusal;
use crate::data::segments::Mapped;

fn one_disk(blocks: u64) -> Setup {
    Setup { disks: 1, blocks, ..Setup::default() }
}

/// SEMANTICS 2.6.
#[test]
fn failed_write_is_reported_and_shows_no_garbage() {
    run(400, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 8192]).await.unwrap();
        file.fsync(false).await.unwrap();
        rig.server.disks[0].fail(DiskAction::Write, 1, DiskFault::Io);
        rig.write(&file, 8192, &[2; 8192]).await.unwrap();
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        assert_eq!(file.error_seq(), 1);
        let got = file.read(0, 20_000).await.unwrap().to_vec();
        assert!(got[..8192].iter().all(|&byte| byte == 1));
        assert!(got[8192..].iter().all(|&byte| byte == 0));
        rig.write(&file, 8192, &[3; 8192]).await.unwrap();
        file.fsync(false).await.unwrap();
        assert_eq!(file.error_seq(), 1);
        rig.finish(512).await;
        let now = rig.server.now.borrow();
        let seen = Server::content(&now, &rig.server.disks, Ino(1));
        assert!(seen[8192..].iter().all(|&byte| byte == 3));
    });
}

#[test]
fn failed_write_over_frozen_blocks_leaves_their_content() {
    run(408, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 8192]).await.unwrap();
        file.fsync(false).await.unwrap();
        file.rights_lost(Rights::empty());
        rig.server.frozen.set(true);
        rig.acquire(&file);
        for action in [DiskAction::Write, DiskAction::Flush] {
            rig.server.disks[0].fail(action, 1, DiskFault::Io);
            rig.write(&file, 100, &[2; 4096]).await.unwrap();
            assert_eq!(file.fsync(false).await, Err(Fault::Io));
            let got = file.read(0, 8192).await.unwrap().to_vec();
            assert!(got == [1; 8192], "{action:?}");
        }
        rig.write(&file, 100, &[3; 8]).await.unwrap();
        assert_eq!(file.launch_all(), file.state.borrow().next_seq);
        assert_eq!(file.state.borrow().replaced.blocks(), 1);
        file.fsync(false).await.unwrap();
        assert_eq!(file.state.borrow().replaced.blocks(), 0, "the server has its new place");
        rig.finish(512).await;
        let now = rig.server.now.borrow();
        let seen = Server::content(&now, &rig.server.disks, Ino(1));
        assert!(seen[..100] == [1; 100] && seen[100..108] == [3; 8]);
        assert!(seen[108..] == [1; 8192 - 108]);
        let all = (Ino(1), 0, u64::MAX);
        assert_eq!(
            *rig.server.voided.borrow(),
            [(Ino(1), 0, 8192), all],
            "one range of blocks, then the whole file"
        );
    });
}

#[test]
fn piece_written_in_place_beside_a_failed_piece_is_made_stable() {
    let survived = Rc::new(Cell::new(0));
    for nth in [1, 2] {
        let count = survived.clone();
        run(409, one_disk(512), |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 4096, &[1; 4096]).await.unwrap();
            file.fsync(false).await.unwrap();
            file.rights_lost(Rights::empty());
            // The adjacent blocks belong to another file.
            let other = rig.file(2);
            rig.write(&other, 0, &[9; 64 << 10]).await.unwrap();
            other.fsync(false).await.unwrap();
            rig.acquire(&file);
            // One write of two pieces, one in a new block and one in place; the device fails one of
            // them.
            rig.server.disks[0].fail(DiskAction::Write, nth, DiskFault::Io);
            rig.write(&file, 0, &[2; 8192]).await.unwrap();
            assert_eq!(file.fsync(false).await, Err(Fault::Io));
            let seen = file.read(4096, 4096).await.unwrap().to_vec();
            // Readers may rely on what they saw from here on.
            file.flush().await.unwrap();
            assert!(file.is_settled());
            let layout = file.layout().await.unwrap();
            let at = layout.iter().find(|segment| segment.file == FileBlock(1)).unwrap().addr;
            let stable = rig.server.disks[0].stable_only().peek(at.0 * BLOCK_U64, 4096);
            assert!(seen == stable, "{nth}: {} was seen, {} is stable", seen[0], stable[0]);
            count.set(count.get() + u32::from(seen == [2; 4096]));
        });
    }
    assert!(survived.get() > 0, "no piece was written in place beside one that failed");
}

#[test]
fn bytes_behind_the_size_stay_zero_after_the_write_that_zeroes_them_fails() {
    run(407, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 8192]).await.unwrap();
        file.fsync(false).await.unwrap();
        file.set_size(6000).await.unwrap();
        rig.write(&file, 6000, &[2; 100]).await.unwrap();
        rig.server.disks[0].fail(DiskAction::Write, 1, DiskFault::Io);
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        rig.write(&file, 20_000, &[3; 100]).await.unwrap();
        let got = file.read(6100, 10_000).await.unwrap().to_vec();
        assert!(got.iter().all(|&byte| byte == 0));
        rig.finish(512).await;
        let now = rig.server.now.borrow();
        let seen = Server::content(&now, &rig.server.disks, Ino(1));
        assert!(seen[6100..20_000].iter().all(|&byte| byte == 0));
    });
}

#[test]
fn reader_sees_nothing_of_a_truncation_that_waits_for_a_write() {
    run(409, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 8192]).await.unwrap();
        file.fsync(false).await.unwrap();
        rig.server.disks[0].stall(true);
        rig.write(&file, 4096, &[2; 4096]).await.unwrap();
        file.launch_all();
        rig.write(&file, 0, &[3; 4096]).await.unwrap();
        let cut = {
            let file = file.clone();
            rig.env.spawn_join(async move { file.set_size(1830).await })
        };
        rig.env.sleep(Duration::from_millis(10)).await;
        assert_eq!(file.size(), 8192, "it waits");
        assert!(file.read(0, 4096).await.unwrap().to_vec().iter().all(|&byte| byte == 3));
        rig.server.disks[0].stall(false);
        cut.await.unwrap();
        rig.write(&file, 4000, &[4; 96]).await.unwrap();
        let got = file.read(0, 8192).await.unwrap().to_vec();
        assert!(got[..1830].iter().all(|&byte| byte == 3));
        assert!(got[1830..4000].iter().all(|&byte| byte == 0));
        assert_eq!(got[4000..], [4; 96]);
        rig.finish(512).await;
    });
}

#[test]
fn failed_flush_keeps_its_blocks_out_of_the_committed_layout() {
    run(401, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.server.disks[0].fail(DiskAction::Flush, 1, DiskFault::Io);
        rig.write(&file, 0, &[1; 8192]).await.unwrap();
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        assert_eq!(rig.server.now.borrow().files[&Ino(1)].layout.blocks(), 0);
        rig.write(&file, 0, &[2; 8192]).await.unwrap();
        file.fsync(false).await.unwrap();
        rig.finish(512).await;
        let now = rig.server.now.borrow();
        assert!(Server::content(&now, &rig.server.disks, Ino(1)) == vec![2; 8192]);
    });
}

#[test]
fn failed_background_write_is_counted_and_logged() {
    run(402, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.server.disks[0].fail(DiskAction::Write, 1, DiskFault::Io);
        rig.write(&file, 0, &[1; 4096]).await.unwrap();
        rig.env.sleep(Duration::from_secs(3)).await;
        assert_eq!(file.error_seq(), 1);
        assert!(rig.server.log.borrow().iter().any(|line| line.contains("inode 1")));
        rig.finish(512).await;
    });
}

/// SEMANTICS 2.7.
#[test]
fn full_device_refuses_writes_and_loses_no_accepted_bytes() {
    run(403, one_disk(256), |rig| async move {
        let file = rig.file(1);
        let mut accepted = 0u64;
        let fault = loop {
            match rig.write(&file, accepted, &vec![5; 24_000]).await {
                Ok(len) => accepted += u64::from(len),
                Err(fault) => break fault,
            }
        };
        assert_eq!(fault, Fault::NoSpace);
        assert!(accepted > 230 * 4096, "{accepted}");
        file.fsync(false).await.unwrap();
        let got = file.read(0, 1 << 20).await.unwrap().to_vec();
        assert!(got.len() as u64 == accepted && got.iter().all(|&byte| byte == 5));
        // A truncation frees space without a sync in between.
        file.set_size(4096).await.unwrap();
        let other = rig.file(2);
        rig.write(&other, 0, &vec![6; 200 * 4096]).await.expect("the space is free again");
        rig.finish(256).await;
    });
}

#[test]
fn commit_refused_as_overloaded_is_retried() {
    run(404, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.server.refusals.borrow_mut().extend([Refusal::from(Fault::Overloaded); 5]);
        rig.write(&file, 0, &[1; 10_000]).await.unwrap();
        file.flush().await.unwrap();
        assert!(file.is_clean());
        assert_eq!(file.error_seq(), 0);
        rig.finish(512).await;
        let now = rig.server.now.borrow();
        assert!(Server::content(&now, &rig.server.disks, Ino(1)) == vec![1; 10_000]);
    });
}

#[test]
fn partly_applied_commit_sends_only_its_other_edits_again() {
    run(414, one_disk(512), |rig| async move {
        let file = rig.file(1);
        let refusal = Refusal { fault: Fault::NoSpace, done: 2 };
        rig.server.refusals.borrow_mut().extend([refusal, refusal]);
        // With holes between the blocks, each is an edit of its own.
        for block in 0..6u64 {
            rig.write(&file, block * 8192, &[1 + block as u8; 4096]).await.unwrap();
        }
        rig.env.sleep(Duration::from_secs(5)).await;
        assert!(file.is_clean() && rig.server.refusals.borrow().is_empty());
        assert_eq!(file.error_seq(), 0);
        rig.finish(512).await;
        let now = rig.server.now.borrow();
        let content = Server::content(&now, &rig.server.disks, Ino(1));
        assert_eq!(content.len(), 11 * 4096);
        for block in 0..6 {
            let bytes = &content[block * 8192..block * 8192 + 4096];
            assert!(bytes.iter().all(|&byte| usize::from(byte) == 1 + block), "block {block}");
        }
    });
}

#[test]
fn fsync_that_failed_in_a_batch_is_retried_alone() {
    // A seed by which the first commit reaches the server before the others.
    run(445, one_disk(512), |rig| async move {
        let rig = Rc::new(rig);
        let files: Vec<_> = (1..6).map(|ino| rig.file(ino)).collect();
        for file in &files {
            rig.write(file, 0, &[1; 10_000]).await.unwrap();
        }
        let mut syncs = Vec::new();
        for file in &files {
            let file = file.clone();
            syncs.push(rig.env.spawn_join(async move { file.fsync(false).await }));
            // The first is in progress when the others come and form a batch.
            rig.env.sleep(Duration::from_nanos(1)).await;
        }
        while rig.server.commits.get() == 0 {
            rig.env.sleep(Duration::from_micros(10)).await;
        }
        rig.server.refusals.borrow_mut().push_back(Fault::Invalid.into());
        for sync in syncs {
            sync.await.unwrap();
        }
        assert!(rig.server.refusals.borrow().is_empty());
        assert_eq!(rig.server.commits.get(), 3, "the first, the others, one of them alone");
        assert!(files.iter().all(|file| file.error_seq() == 0 && file.is_clean()));
        assert_eq!(rig.server.durable.borrow().files.len(), 5);
    });
}

#[test]
fn commit_refused_for_good_is_an_error_of_its_file_alone() {
    run(405, one_disk(512), |rig| async move {
        let files: Vec<_> = (1..5).map(|ino| rig.file(ino)).collect();
        for file in &files {
            rig.write(file, 0, &[1; 10_000]).await.unwrap();
        }
        // A batch's error is no file's; a single commit's is.
        rig.server.refusals.borrow_mut().push_back(Fault::Invalid.into());
        rig.env.sleep(Duration::from_secs(5)).await;
        assert!(files.iter().all(|file| file.error_seq() == 0 && file.is_clean()));
        rig.write(&files[0], 0, &[2; 10_000]).await.unwrap();
        rig.server.refusals.borrow_mut().push_back(Fault::Invalid.into());
        assert_eq!(files[0].fsync(false).await, Err(Fault::Invalid));
        assert_eq!(files[0].error_seq(), 1);
        assert!(files[1..].iter().all(|file| file.error_seq() == 0));
    });
}

#[test]
fn eviction_drops_uncommitted_data_and_reports_it() {
    run(406, one_disk(512), |rig| async move {
        let file = rig.file(1);
        let clean = rig.file(2);
        rig.write(&clean, 0, &[1; 4096]).await.unwrap();
        clean.fsync(false).await.unwrap();
        rig.write(&file, 0, &[1; 100_000]).await.unwrap();
        // The server frees the client's pool, as after a quarantine.
        rig.ctx.evicted(HOME, ClientId(6));
        rig.env.sleep(Duration::from_secs(1)).await;
        {
            let mut now = rig.server.now.borrow_mut();
            let pool = std::mem::take(&mut now.pool);
            now.free.extend(pool);
        }
        assert_eq!((file.error_seq(), clean.error_seq()), (1, 0));
        assert_eq!(rig.ctx.dirty_bytes(), 0);
        clean.drop_all(true);
        assert_eq!(clean.error_seq(), 0);
        rig.acquire(&file);
        rig.write(&file, 0, &[2; 5000]).await.unwrap();
        file.fsync(false).await.unwrap();
        let now = rig.server.now.borrow();
        assert!(Server::content(&now, &rig.server.disks, Ino(1)) == vec![2; 5000]);
    });
}

/// What a restarted server lost of a file of which nothing else is lost, and together with more.
#[test]
fn lost_commit_has_one_line_in_the_log() {
    run(423, one_disk(512), |rig| async move {
        for (ino, writes_on) in [(1, false), (2, true)] {
            let file = rig.file(ino);
            rig.write(&file, 0, &[1; 4096]).await.unwrap();
            file.fsync(false).await.unwrap();
            if writes_on {
                rig.write(&file, 4096, &[2; 4096]).await.unwrap();
            }
            file.drop_all(true);
            file.report_lost_commit();
            let of_it = format!("inode {ino}");
            let lines = rig.server.log.borrow().iter().filter(|l| l.contains(&of_it)).count();
            assert_eq!(lines, 1, "{writes_on}: {:?}", rig.server.log.borrow());
            assert!(file.has_unreported_loss());
        }
    });
}

#[test]
fn write_waits_for_writes_of_a_lost_session_to_its_blocks() {
    // So few blocks that the second write gets blocks of the first.
    run(421, one_disk(80), |rig| async move {
        let (file, other) = (rig.file(1), rig.file(2));
        rig.server.disks[0].stall(true);
        rig.write(&file, 0, &[1; 256 << 10]).await.unwrap();
        rig.env.sleep(Duration::from_millis(10)).await;
        assert!(rig.ctx.writes_in_flight() > 0);
        // The device stalls for longer than the quarantine lasts.
        rig.ctx.evicted(HOME, ClientId(6));
        rig.env.sleep(Duration::from_secs(20)).await;
        {
            let mut now = rig.server.now.borrow_mut();
            let pool = std::mem::take(&mut now.pool);
            now.free.extend(pool);
        }
        rig.acquire(&other);
        rig.write(&other, 0, &[2; 256 << 10]).await.unwrap();
        rig.env.sleep(Duration::from_secs(1)).await;
        rig.server.disks[0].stall(false);
        other.fsync(false).await.unwrap();
        let now = rig.server.now.borrow();
        assert!(Server::content(&now, &rig.server.disks, Ino(2)) == vec![2; 256 << 10]);
    });
}

#[test]
fn eviction_during_an_fsync_of_a_clean_file_loses_nothing() {
    run(420, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 4096]).await.unwrap();
        file.fsync(false).await.unwrap();
        file.claim_commit().await;
        assert!(!file.is_clean());
        file.drop_all(true);
        assert_eq!(file.error_seq(), 0);
    });
}

#[test]
fn writes_do_not_reach_a_device_after_the_lease_has_run_out() {
    run(407, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 4096]).await.unwrap();
        rig.server.lease.set(rig.env.now());
        let before = rig.server.disks[0].counts();
        rig.env.sleep(Duration::from_secs(10)).await;
        assert_eq!(rig.server.disks[0].counts().writes, before.writes);
        rig.server.lease.set(Instant::FAR);
        file.fsync(false).await.unwrap();
        rig.finish(512).await;
    });
}

#[test]
fn dropped_file_returns_its_blocks() {
    run(408, one_disk(512), |rig| async move {
        let file = rig.file(1);
        // One large write that is launched at once, and a small one that is not.
        rig.write(&file, 0, &[1; 256 << 10]).await.unwrap();
        rig.write(&file, 1 << 20, &[1; 5000]).await.unwrap();
        file.pause().await;
        file.drop_all(false);
        rig.finish(512).await;
        assert!(!rig.server.now.borrow().files.contains_key(&Ino(1)));
    });
}

#[test]
fn blocks_truncated_before_the_commit_of_a_removed_file_are_returned() {
    run(418, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 256 << 10]).await.unwrap();
        file.set_size(100 << 10).await.unwrap();
        rig.write(&file, 100 << 10, &[2; 128 << 10]).await.unwrap();
        file.pause().await;
        file.drop_all(false);
        rig.finish(512).await;
        assert!(!rig.server.now.borrow().files.contains_key(&Ino(1)));
    });
}

#[test]
fn blocks_of_a_removed_file_are_returned_after_its_writes_in_flight_end() {
    run(419, one_disk(512), |rig| async move {
        let (file, other) = (rig.file(1), rig.file(2));
        rig.server.disks[0].stall(true);
        rig.write(&file, 0, &[1; 512 << 10]).await.unwrap();
        rig.env.sleep(Duration::from_millis(1)).await;
        assert!(!file.state.borrow().writing.is_empty());
        file.drop_all(false);
        rig.server.disks[0].stall(false);
        // All blocks but the label are available at once.
        for block in 0..511 {
            rig.write(&other, block * BLOCK_U64, &[2; BLOCK]).await.unwrap();
        }
        rig.finish(512).await;
    });
}

#[test]
fn paused_file_continues_where_it_stopped() {
    run(409, one_disk(512), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 50_000]).await.unwrap();
        file.pause().await;
        let before = rig.server.disks[0].counts().writes;
        rig.env.sleep(Duration::from_secs(5)).await;
        assert_eq!(rig.server.disks[0].counts().writes, before);
        assert!(!file.is_clean());
        file.resume();
        file.fsync(false).await.unwrap();
        rig.finish(512).await;
    });
}

#[test]
fn write_to_the_block_of_an_earlier_failed_write_is_not_lost_with_it() {
    run(406, one_disk(2048), |rig| async move {
        let file = rig.file(1);
        let seam = (1 << 20) - 50;
        rig.server.disks[0].fail(DiskAction::Write, 1, DiskFault::Io);
        rig.write(&file, 0, &vec![1; seam]).await.unwrap();
        // The first write is in flight, and about to lose its place.
        rig.write(&file, seam as u64, &[2; 5000]).await.unwrap();
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        file.fsync(false).await.unwrap();
        assert_eq!(file.error_seq(), 1);
        rig.finish(2048).await;
        let now = rig.server.now.borrow();
        let seen = Server::content(&now, &rig.server.disks, Ino(1));
        assert!(seen[..255 * 4096].iter().all(|&byte| byte == 0));
        assert!(seen[seam..].len() == 5000 && seen[seam..].iter().all(|&byte| byte == 2));
    });
}

#[test]
fn fsync_does_not_wait_for_a_stalled_device_of_other_files() {
    for seed in 420..426 {
        run(seed, Setup { blocks: 64, grant_max: 16, ..Setup::default() }, |rig| async move {
            // The first file takes one device, so that the others are on the next.
            let on_zone = |ino: u64, zone: &str| {
                *rig.server.placement.borrow_mut() = format!("zones={zone}");
                rig.file(ino)
            };
            let files = [on_zone(1, "1"), on_zone(2, "2"), on_zone(3, "2")];
            rig.write(&files[0], 0, &[1; 63 * 4096]).await.unwrap();
            files[0].fsync(false).await.unwrap();
            for file in &files[1..] {
                rig.write(file, 0, &[1; 8192]).await.unwrap();
                file.fsync(false).await.unwrap();
            }
            rig.server.disks[0].stall(true);
            rig.write(&files[0], 0, &[2; 4096]).await.unwrap();
            let stuck = files[0].clone();
            let stuck = rig.env.spawn_join(async move { stuck.fsync(false).await });
            rig.env.sleep(Duration::from_millis(1)).await;
            for round in 0..5 {
                let mut synced = Vec::new();
                for file in &files[1..] {
                    rig.write(file, 4096 * (round % 2), &[3; 4096]).await.unwrap();
                    let file = file.clone();
                    synced.push(rig.env.spawn_join(async move { file.fsync(false).await }));
                }
                for sync in synced {
                    let sync = rig.env.timeout(Duration::from_secs(1), sync).await;
                    assert_eq!(sync, Some(Ok(true)), "round {round}");
                }
            }
            assert_eq!(rig.ctx.most_silent().map(|(path, _)| path).as_deref(), Some("data1"));
            rig.server.disks[0].stall(false);
            assert_eq!(stuck.await, Ok(true));
            assert_eq!(rig.ctx.most_silent(), None);
            rig.finish(64).await;
        });
    }
}

#[test]
fn background_commit_does_not_wait_for_a_stalled_device_of_other_files() {
    for seed in 440..444 {
        run(seed, Setup { blocks: 64, grant_max: 16, ..Setup::default() }, |rig| async move {
            let files: Vec<_> = (1..=12).map(|ino| rig.file(ino)).collect();
            for file in &files {
                rig.write(file, 0, &[1; 8 * 4096]).await.unwrap();
                file.fsync(false).await.unwrap();
            }
            let lies_on = |file: &Rc<File>, pag| {
                let segments = rig.server.now.borrow().files[&file.ino].layout.to_segments();
                segments.iter().all(|segment| segment.pag == PagId(pag))
            };
            let stuck: Vec<_> = files.iter().filter(|file| lies_on(file, 1)).collect();
            let free: Vec<_> = files.iter().filter(|file| lies_on(file, 2)).collect();
            assert!(stuck.len() > 4 && free.len() > 1, "{} {}", stuck.len(), free.len());
            rig.server.disks[0].stall(true);
            for file in &stuck {
                rig.write(file, 0, &[2; 4096]).await.unwrap();
                // Each is a batch of its own.
                rig.env.sleep(Duration::from_millis(1500)).await;
            }
            for file in &free {
                rig.write(file, 0, &[3; 4096]).await.unwrap();
            }
            rig.env.sleep(Duration::from_secs(3)).await;
            assert!(free.iter().all(|file| file.is_clean()));
            assert!(stuck.iter().all(|file| !file.is_clean()));
            rig.server.disks[0].stall(false);
            rig.env.sleep(Duration::from_secs(3)).await;
            assert!(stuck.iter().all(|file| file.is_clean()));
            rig.finish(64).await;
        });
    }
}

/// Gives the server a file with one block on each of `pags`.
fn place_file(rig: &Rig, ino: u64, pags: &[u16]) {
    let mut now = rig.server.now.borrow_mut();
    let mut file = ServerFile { size: pags.len() as u64 * BLOCK_U64, ..ServerFile::default() };
    for (at, &pag) in pags.iter().enumerate() {
        let addr = 63 - ino;
        assert!(now.free.remove(&(pag, addr)));
        rig.server.disks[usize::from(pag) - 1].poke(addr * BLOCK_U64, &[1; BLOCK]);
        let mapped = Mapped { len: 1, pag: PagId(pag), addr, written: true, frozen: false };
        file.layout.insert(at as u64, mapped);
    }
    now.files.insert(Ino(ino), file);
}

/// Makes a file of two blocks, one on each device, and a file on `data2` alone, and stalls both
/// devices. A second write of the first file cannot be launched before one of its second block
/// ends.
async fn stall_with_an_unlaunched_run(rig: &Rig) -> (Rc<File>, Rc<File>) {
    place_file(rig, 1, &[1, 2]);
    place_file(rig, 2, &[2]);
    let [both, free] = [1, 2].map(|ino| rig.file(ino));
    rig.server.disks.iter().for_each(|disk| disk.stall(true));
    rig.write(&both, 4096, &[2; 4096]).await.unwrap();
    both.launch_all();
    rig.env.sleep(Duration::from_millis(10)).await;
    rig.write(&both, 0, &[3; 8192]).await.unwrap();
    rig.write(&free, 0, &[3; 4096]).await.unwrap();
    (both, free)
}

#[test]
fn fsync_does_not_wait_for_devices_of_another_files_unlaunched_run() {
    for seed in 450..456 {
        run(seed, Setup { blocks: 64, grant_max: 64, ..Setup::default() }, |rig| async move {
            let (both, free) = stall_with_an_unlaunched_run(&rig).await;
            let [stuck, synced] = [&both, &free].map(|file| {
                let file = file.clone();
                rig.env.spawn_join(async move { file.fsync(false).await })
            });
            rig.env.sleep(Duration::from_millis(10)).await;
            rig.server.disks[1].stall(false);
            let synced = rig.env.timeout(Duration::from_secs(1), synced).await;
            assert_eq!(synced, Some(Ok(true)), "seed {seed}");
            assert!(!both.is_clean());
            rig.server.disks[0].stall(false);
            assert_eq!(stuck.await, Ok(true));
            rig.finish(64).await;
        });
    }
}

#[test]
fn background_commit_does_not_wait_for_another_files_unlaunched_run() {
    for seed in 460..466 {
        run(seed, Setup { blocks: 64, grant_max: 64, ..Setup::default() }, |rig| async move {
            let (both, free) = stall_with_an_unlaunched_run(&rig).await;
            [&both, &free].into_iter().for_each(|file| file.commit_soon());
            rig.env.sleep(Duration::from_millis(10)).await;
            rig.server.disks[1].stall(false);
            rig.env.sleep(Duration::from_secs(1)).await;
            assert!(free.is_clean() && !both.is_clean(), "seed {seed}");
            rig.server.disks[0].stall(false);
            rig.env.sleep(Duration::from_secs(3)).await;
            assert!(both.is_clean());
            rig.finish(64).await;
        });
    }
}

/// These bytes were committed with times only, and not flushed.
#[test]
fn fsync_after_an_eviction_flushes_or_reports_bytes_written_in_place() {
    for (seed, fails) in [(430, false), (431, false), (432, true)] {
        run(seed, one_disk(512), |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[1; 10_000]).await.unwrap();
            file.fsync(false).await.unwrap();
            rig.write(&file, 5000, &[2; 10]).await.unwrap();
            file.commit_soon();
            while !file.is_clean() {
                rig.env.sleep(Duration::from_millis(1)).await;
            }
            assert!(!file.is_settled(), "nothing has flushed it");
            rig.ctx.evicted(HOME, ClientId(6));
            rig.acquire(&file);
            if fails {
                rig.server.disks[0].fail(DiskAction::Flush, 1, DiskFault::Io);
                assert_eq!(file.fsync(false).await, Err(Fault::Io));
                return;
            }
            file.fsync(false).await.unwrap();
            let left = [rig.server.disks[0].stable_only()];
            let content = Server::content(&rig.server.now.borrow(), &left, Ino(1));
            assert!(content[5000..5010] == [2; 10], "the bytes are lost");
        });
    }
}

#[test]
fn stale_commit_is_a_loss_only_for_an_open_file() {
    for (seed, fault, open, lost) in [
        (416, Fault::Stale, false, 0),
        (417, Fault::Stale, true, 1),
        (418, Fault::NotHeld, false, 1),
        (419, Fault::NotHeld, true, 1),
    ] {
        run(seed, one_disk(512), |rig| async move {
            let file = rig.file(1);
            rig.server.open.set(open);
            rig.server.refusals.borrow_mut().push_back(fault.into());
            rig.write(&file, 0, &[1; 9000]).await.unwrap();
            rig.env.sleep(Duration::from_secs(3)).await;
            assert!(file.is_clean() && rig.server.refusals.borrow().is_empty());
            assert_eq!(file.error_seq(), lost, "{fault} {open}");
            let lines = rig.server.log.borrow().iter().filter(|l| l.contains("inode 1")).count();
            assert_eq!(lines as u64, lost);
        });
    }
}

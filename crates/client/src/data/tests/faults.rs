//! Devices that fail, servers that refuse, space that runs out, sessions that end.

use env::sim::{DiskAction, DiskFault};

use super::*;
use crate::boundary::Refusal;
use crate::data::segments::Mapped;

fn one_disk(blocks: u64) -> Setup {
    Setup { disks: 1, blocks, ..Setup::default() }
}

#[test]
fn a_failed_write_is_reported_and_shows_no_garbage() {
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
fn a_failed_write_beside_frozen_blocks_leaves_what_they_hold() {
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
            "one block range, then all"
        );
    });
}

#[test]
fn what_was_written_in_place_beside_a_write_that_failed_is_made_stable() {
    let survived = Rc::new(Cell::new(0));
    for nth in [1, 2] {
        let count = survived.clone();
        run(409, one_disk(512), |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 4096, &[1; 4096]).await.unwrap();
            file.fsync(false).await.unwrap();
            file.rights_lost(Rights::empty());
            // The places beside it are another file's.
            let other = rig.file(2);
            rig.write(&other, 0, &[9; 64 << 10]).await.unwrap();
            other.fsync(false).await.unwrap();
            rig.acquire(&file);
            // Two pieces of one write: a new block and one in place; the device refuses one of
            // them.
            rig.server.disks[0].fail(DiskAction::Write, nth, DiskFault::Io);
            rig.write(&file, 0, &[2; 8192]).await.unwrap();
            assert_eq!(file.fsync(false).await, Err(Fault::Io));
            let seen = file.read(4096, 4096).await.unwrap().to_vec();
            // Whoever reads it from here on may rely on it.
            file.flush().await.unwrap();
            assert!(file.is_settled());
            let layout = file.layout().await.unwrap();
            let at = layout.iter().find(|extent| extent.file == FileBlock(1)).unwrap().addr;
            let stable = rig.server.disks[0].stable_only().peek(at.0 * BLOCK_U64, 4096);
            assert!(seen == stable, "{nth}: {} was seen, {} is stable", seen[0], stable[0]);
            count.set(count.get() + u32::from(seen == [2; 4096]));
        });
    }
    assert!(survived.get() > 0, "no piece was written in place beside one that failed");
}

#[test]
fn bytes_behind_the_size_that_a_failed_write_should_have_zeroed_do_not_come_back() {
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
fn a_reader_sees_nothing_of_a_truncation_that_waits_for_a_write() {
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
fn a_failed_flush_keeps_what_it_should_have_covered_out_of_the_layout() {
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
fn a_failed_write_in_the_background_is_remembered() {
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

#[test]
fn a_full_device_refuses_at_write_and_loses_nothing_accepted() {
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
        // Space comes back by truncation, without a sync in between.
        file.set_size(4096).await.unwrap();
        let other = rig.file(2);
        rig.write(&other, 0, &vec![6; 200 * 4096]).await.expect("the space is free again");
        rig.finish(256).await;
    });
}

#[test]
fn commits_that_the_server_cannot_take_now_are_made_later() {
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
fn of_a_commit_that_the_server_took_in_part_only_the_rest_is_sent_again() {
    run(414, one_disk(512), |rig| async move {
        let file = rig.file(1);
        let refusal = Refusal { fault: Fault::NoSpace, done: 2 };
        rig.server.refusals.borrow_mut().extend([refusal, refusal]);
        // Holes between the blocks: each is an edit of its own.
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
fn an_fsync_that_failed_in_company_goes_again_alone() {
    run(417, one_disk(512), |rig| async move {
        let rig = Rc::new(rig);
        let files: Vec<_> = (1..6).map(|ino| rig.file(ino)).collect();
        for file in &files {
            rig.write(file, 0, &[1; 10_000]).await.unwrap();
        }
        let mut syncs = Vec::new();
        for file in &files {
            let file = file.clone();
            syncs.push(rig.env.spawn_join(async move { file.fsync(false).await }));
            // The first is under way when the others come and gather.
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
fn a_commit_refused_for_good_is_an_error_of_its_file_alone() {
    run(405, one_disk(512), |rig| async move {
        let files: Vec<_> = (1..5).map(|ino| rig.file(ino)).collect();
        for file in &files {
            rig.write(file, 0, &[1; 10_000]).await.unwrap();
        }
        // In company the fault is not blamed on anyone; alone it is.
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
fn an_eviction_drops_what_was_not_committed_and_reports_it() {
    run(406, one_disk(512), |rig| async move {
        let file = rig.file(1);
        let clean = rig.file(2);
        rig.write(&clean, 0, &[1; 4096]).await.unwrap();
        clean.fsync(false).await.unwrap();
        rig.write(&file, 0, &[1; 100_000]).await.unwrap();
        // The server forgets the client's pool, as after a quarantine.
        rig.ctx.evicted(ClientId(6));
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

#[test]
fn a_write_waits_for_what_a_lost_session_has_in_flight_in_its_blocks() {
    // So few blocks that the second write meets those of the first.
    run(421, one_disk(80), |rig| async move {
        let (file, other) = (rig.file(1), rig.file(2));
        rig.server.disks[0].stall(true);
        rig.write(&file, 0, &[1; 256 << 10]).await.unwrap();
        rig.env.sleep(Duration::from_millis(10)).await;
        assert!(rig.ctx.writes_in_flight() > 0);
        // The device stands still for longer than the quarantine lasts.
        rig.ctx.evicted(ClientId(6));
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
fn an_eviction_while_a_clean_file_is_synced_loses_nothing() {
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
fn nothing_reaches_a_device_after_the_lease_ran_out() {
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
fn a_dropped_file_gives_its_blocks_back() {
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
fn blocks_that_a_removed_file_had_cut_off_before_its_commit_are_not_lost() {
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
fn blocks_that_a_removed_file_was_being_written_to_come_back_when_that_has_ended() {
    run(419, one_disk(512), |rig| async move {
        let (file, other) = (rig.file(1), rig.file(2));
        rig.server.disks[0].stall(true);
        rig.write(&file, 0, &[1; 512 << 10]).await.unwrap();
        rig.env.sleep(Duration::from_millis(1)).await;
        assert!(!file.state.borrow().writing.is_empty());
        file.drop_all(false);
        rig.server.disks[0].stall(false);
        // All of the device but its label can be had at once.
        for block in 0..511 {
            rig.write(&other, block * BLOCK_U64, &[2; BLOCK]).await.unwrap();
        }
        rig.finish(512).await;
    });
}

#[test]
fn a_paused_file_goes_on_where_it_was() {
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
fn a_write_that_follows_in_the_block_of_a_failed_one_is_not_lost_with_it() {
    run(406, one_disk(2048), |rig| async move {
        let file = rig.file(1);
        let seam = (1 << 20) - 50;
        rig.server.disks[0].fail(DiskAction::Write, 1, DiskFault::Io);
        rig.write(&file, 0, &vec![1; seam]).await.unwrap();
        // The first is on its way, and has a place that it is about to lose.
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
fn a_device_that_answers_nothing_holds_up_no_fsync_of_files_on_others() {
    for seed in 420..426 {
        run(seed, Setup { blocks: 64, grant_max: 16, ..Setup::default() }, |rig| async move {
            // The first takes all of one device, so that the others lie on the next.
            let files: Vec<_> = (1..=3).map(|ino| rig.file(ino)).collect();
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
            assert_eq!(rig.ctx.most_silent().map(|(path, _)| path), Some("data1"));
            rig.server.disks[0].stall(false);
            assert_eq!(stuck.await, Ok(true));
            assert_eq!(rig.ctx.most_silent(), None);
            rig.finish(64).await;
        });
    }
}

#[test]
fn a_device_that_answers_nothing_holds_up_no_background_commit_of_files_on_others() {
    for seed in 440..444 {
        run(seed, Setup { blocks: 64, grant_max: 16, ..Setup::default() }, |rig| async move {
            let files: Vec<_> = (1..=12).map(|ino| rig.file(ino)).collect();
            for file in &files {
                rig.write(file, 0, &[1; 8 * 4096]).await.unwrap();
                file.fsync(false).await.unwrap();
            }
            let lies_on = |file: &Rc<File>, pag| {
                let extents = rig.server.now.borrow().files[&file.ino()].layout.to_extents();
                extents.iter().all(|extent| extent.pag == PagId(pag))
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

/// The server has a file with a block on each of `pags`.
fn lies_on(rig: &Rig, ino: u64, pags: &[u16]) {
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

/// A file of two blocks, the first on `data1`, and one that is on `data2` alone. `data1` answers
/// nothing; a second write of the first file waits for one of its second block, and will go to both
/// devices.
async fn one_of_them_waits_for_itself(rig: &Rig) -> (Rc<File>, Rc<File>) {
    lies_on(rig, 1, &[1, 2]);
    lies_on(rig, 2, &[2]);
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
fn an_fsync_waits_for_no_device_that_another_file_is_yet_to_be_launched_to() {
    for seed in 450..456 {
        run(seed, Setup { blocks: 64, grant_max: 64, ..Setup::default() }, |rig| async move {
            let (both, free) = one_of_them_waits_for_itself(&rig).await;
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
fn a_background_commit_waits_for_no_device_that_another_file_is_yet_to_be_launched_to() {
    for seed in 460..466 {
        run(seed, Setup { blocks: 64, grant_max: 64, ..Setup::default() }, |rig| async move {
            let (both, free) = one_of_them_waits_for_itself(&rig).await;
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

/// They were committed with a time and nothing else, and no flush had followed yet.
#[test]
fn bytes_written_in_place_before_an_eviction_are_flushed_or_reported_by_the_next_fsync() {
    for (seed, fails) in [(430, false), (431, false), (432, true)] {
        run(seed, one_disk(512), |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[1; 10_000]).await.unwrap();
            file.fsync(false).await.unwrap();
            rig.write(&file, 5000, &[2; 10]).await.unwrap();
            while !file.is_clean() {
                rig.env.sleep(Duration::from_millis(1)).await;
            }
            assert!(!file.is_settled(), "nothing has flushed it");
            rig.ctx.evicted(ClientId(6));
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
fn a_commit_of_a_file_that_is_gone_is_a_loss_only_for_who_has_it_open() {
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

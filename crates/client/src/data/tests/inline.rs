//! Small files that lie with their inodes.

use env::sim::{DiskAction, DiskFault};

use super::super::commit::Purpose;
use super::*;
use crate::api::Whence;

fn setup() -> Setup {
    Setup { disks: 1, inline_max: 3000, ..Setup::default() }
}

/// Reads, writes and flushes of the data device so far.
fn accesses(rig: &Rig) -> (u64, u64, u64) {
    let counts = rig.server.disks[0].counts();
    (counts.reads, counts.writes, counts.flushes)
}

/// The file as another client finds it that asks for it next.
async fn cold(rig: &Rig, ino: u64) -> Vec<u8> {
    let file = rig.file(ino);
    let bytes = file.read(0, 1 << 20).await.expect("reads").to_vec();
    file.rights_lost(Rights::empty());
    bytes
}

fn content(rig: &Rig, ino: u64) -> (Vec<u8>, u64) {
    let now = rig.server.now.borrow();
    let file = &now.files[&Ino(ino)];
    (file.content.clone(), file.layout.blocks())
}

#[test]
fn a_small_file_is_written_synced_and_read_without_its_device() {
    for seed in 0..4 {
        run(seed, setup(), |rig| async move {
            let before = accesses(&rig);
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 2000]).await.unwrap();
            rig.write(&file, 2000, &[8; 1000]).await.unwrap();
            file.fsync(false).await.unwrap();
            assert_eq!(file.data_attr().blocks, 1, "a file without blocks would pass for a hole");
            assert_eq!(file.read(1999, 2).await.unwrap().to_vec(), [7, 8]);
            let want = [vec![7; 2000], vec![8; 1000]].concat();
            assert_eq!(content(&rig, 1), (want.clone(), 0));
            assert!(cold(&rig, 1).await == want);
            assert_eq!(accesses(&rig), before);
            rig.finish(2048).await;
        });
    }
}

#[test]
fn a_file_that_grows_out_of_its_slot_gets_a_block_and_one_that_is_emptied_loses_it() {
    for seed in 0..4 {
        run(seed, setup(), |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 2999]).await.unwrap();
            file.fsync(false).await.unwrap();
            rig.write(&file, 2999, &[8; 2]).await.unwrap();
            assert_eq!(content(&rig, 1).0.len(), 2999, "it stays until the mapping is there");
            file.fsync(false).await.unwrap();
            assert_eq!(content(&rig, 1), (Vec::new(), 1));
            let want = [vec![7; 2999], vec![8; 2]].concat();
            assert!(cold(&rig, 1).await == want);
            file.set_size(0).await.unwrap();
            rig.write(&file, 10, &[9; 3]).await.unwrap();
            file.fsync(false).await.unwrap();
            assert_eq!(content(&rig, 1).1, 0);
            assert_eq!(cold(&rig, 1).await, [vec![0; 10], vec![9; 3]].concat());
            rig.finish(2048).await;
        });
    }
}

#[test]
fn what_a_shorter_file_lost_does_not_come_back_when_it_grows() {
    run(3, setup(), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[7; 100]).await.unwrap();
        file.fsync(false).await.unwrap();
        file.set_size(40).await.unwrap();
        file.set_size(100).await.unwrap();
        file.fsync(false).await.unwrap();
        assert_eq!(cold(&rig, 1).await, [vec![7; 40], vec![0; 60]].concat());
        // Written and emptied before the server hears of either.
        rig.write(&file, 0, &[9; 2000]).await.unwrap();
        file.set_size(0).await.unwrap();
        file.set_size(100).await.unwrap();
        file.fsync(false).await.unwrap();
        assert_eq!(cold(&rig, 1).await, vec![0; 100]);
        assert_eq!(content(&rig, 1), (Vec::new(), 0));
        rig.finish(2048).await;
    });
}

#[test]
fn content_comes_back_if_its_device_does_not_take_the_block_that_was_to_replace_it() {
    for flush in [false, true] {
        run(4, setup(), |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 100]).await.unwrap();
            file.fsync(false).await.unwrap();
            let what = if flush { DiskAction::Flush } else { DiskAction::Write };
            rig.server.disks[0].fail(what, 1, DiskFault::Io);
            rig.write(&file, 100, &[8; 5000]).await.unwrap();
            assert_eq!(file.fsync(false).await, Err(Fault::Io));
            let got = file.read(0, 100).await.unwrap().to_vec();
            assert_eq!(got, [7; 100]);
            assert_eq!(file.data_attr().blocks, 1);
            file.fsync(false).await.unwrap();
            assert_eq!(content(&rig, 1), (vec![7; 100], 0));
            // And it can still go.
            rig.write(&file, 0, &[5; 4000]).await.unwrap();
            file.fsync(false).await.unwrap();
            assert_eq!(content(&rig, 1), (Vec::new(), 1));
            assert_eq!(cold(&rig, 1).await[..4000], [5; 4000]);
            rig.finish(2048).await;
        });
    }
}

#[test]
fn allocated_space_is_on_a_device() {
    for dirty in [false, true] {
        run(5, setup(), |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 100]).await.unwrap();
            if !dirty {
                file.fsync(false).await.unwrap();
            }
            file.fallocate(0, 0, 8000).await.unwrap();
            file.fsync(false).await.unwrap();
            assert_eq!(content(&rig, 1), (Vec::new(), 2));
            assert_eq!(cold(&rig, 1).await, [vec![7; 100], vec![0; 7900]].concat());
            rig.finish(2048).await;
        });
    }
}

#[test]
fn data_and_holes_are_told_where_they_are() {
    run(6, setup(), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[7; 100]).await.unwrap();
        file.fsync(false).await.unwrap();
        file.set_size(9000).await.unwrap();
        assert_eq!(file.seek(0, Whence::Data).await, Ok(0));
        assert_eq!(file.seek(0, Whence::Hole).await, Ok(4096));
        file.fallocate(3, 0, 4096).await.unwrap();
        assert_eq!(file.seek(0, Whence::Data).await, Err(Fault::NoData));
        file.fsync(false).await.unwrap();
        assert_eq!(content(&rig, 1), (Vec::new(), 0));
        assert_eq!(cold(&rig, 1).await, vec![0; 9000]);
        rig.finish(2048).await;
    });
}

#[test]
fn many_small_files_go_through_a_small_budget() {
    run(7, Setup { dirty_max: 64 << 10, ..setup() }, |rig| async move {
        let files: Vec<_> = (1..=200).map(|ino| rig.file(ino)).collect();
        for (index, file) in files.iter().enumerate() {
            rig.write(file, 0, &vec![index as u8 + 1; 500]).await.unwrap();
            assert!(rig.ctx.dirty_bytes() <= (64 << 10) + BLOCK_U64);
        }
        rig.finish(2048).await;
        for ino in 1..=200 {
            assert_eq!(content(&rig, ino), (vec![ino as u8; 500], 0));
        }
    });
}

#[test]
fn a_file_that_is_written_and_emptied_again_and_again_leaves_a_short_commit() {
    run(8, setup(), |rig| async move {
        let file = rig.file(1);
        for round in 0..100 {
            file.set_size(0).await.unwrap();
            rig.write(&file, 0, &[round; 1000]).await.unwrap();
            file.launch_all();
        }
        let contents = |file: &File| {
            let state = file.state.borrow();
            state
                .edits
                .iter()
                .filter(|pending| matches!(pending.edit, Edit::Content { .. }))
                .count()
        };
        assert_eq!(contents(&file), 1);
        // Nor does it grow while the server cannot take it.
        for round in 0..10 {
            rig.server.refusals.borrow_mut().push_back(Fault::Busy.into());
            rig.write(&file, 0, &[100 + round; 1000]).await.unwrap();
            assert_eq!(file.fsync(false).await, Err(Fault::Busy));
            assert!(contents(&file) <= 1);
        }
        file.fsync(false).await.unwrap();
        assert_eq!(content(&rig, 1), (vec![109; 1000], 0));
        rig.finish(2048).await;
    });
}

#[test]
fn a_write_that_waited_for_the_old_block_sees_what_came_meanwhile() {
    for seed in (11..51).step_by(2) {
        run(seed, Setup { disks: 1, ..Setup::default() }, |rig| async move {
            let rig = Rc::new(rig);
            let file = rig.file(1);
            rig.write(&file, 0, &[1; 8192]).await.unwrap();
            file.fsync(false).await.unwrap();
            // A write of the block is on its way and does not end; the next two come meanwhile.
            rig.server.disks[0].stall(true);
            rig.write(&file, 0, &[2; 4096]).await.unwrap();
            file.launch_all();
            let (this, to, done) = (rig.clone(), file.clone(), Rc::new(Cell::new(false)));
            let finished = done.clone();
            let waits = rig.env.spawn_join(async move {
                this.write(&to, 10, &[3; 10]).await.unwrap();
                finished.set(true);
            });
            rig.env.sleep(Duration::from_millis(1)).await;
            rig.write(&file, 0, &[4; 4096]).await.unwrap();
            rig.server.disks[0].stall(false);
            // If the one that waited reads the block, the other is written at the same time, and
            // may be there first.
            while !done.get() && file.state.borrow().reading.is_empty() {
                rig.env.sleep(Duration::from_micros(5)).await;
            }
            file.launch_all();
            waits.await;
            let want = [vec![4; 10], vec![3; 10], vec![4; 4076]].concat();
            assert!(file.read(0, 4096).await.unwrap().to_vec() == want);
            rig.finish(2048).await;
        });
    }
}

async fn many_small_files(rig: Rig) {
    let files: Vec<_> = (1..=2100).map(|ino| rig.file(ino)).collect();
    for file in &files {
        rig.write(file, 0, &[1; 500]).await.unwrap();
    }
    rig.ctx.sync_all().await.unwrap();
}

#[test]
fn a_crowd_of_small_files_beyond_what_commits_take_at_once_is_written_mapped_or_not() {
    for inline_max in [0, 3000] {
        run(8, Setup { disks: 1, blocks: 4096, inline_max, ..Setup::default() }, many_small_files);
    }
}

#[test]
fn content_that_comes_back_because_its_new_place_failed_ends_at_the_size() {
    run(4, Setup { disks: 1, inline_max: 3000, ..Setup::default() }, |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[7; 300]).await.unwrap();
        file.fsync(false).await.unwrap();
        rig.write(&file, 300, &[8; 5000]).await.unwrap();
        file.launch_all();
        rig.env.sleep(Duration::from_millis(100)).await;
        file.set_size(100).await.unwrap();
        rig.server.disks[0].fail(DiskAction::Flush, 1, DiskFault::Io);
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        rig.write(&file, 5000, &[9; 10]).await.unwrap();
        let got = file.read(0, 5010).await.unwrap().to_vec();
        let server = rig.server.now.borrow().files[&Ino(1)].content.len();
        let bad = got[100..5000].iter().filter(|&&byte| byte != 0).count();
        assert_eq!((bad, server), (0, 100), "bytes that come back, content of the server");
    });
}

/// Leaves no block of the data zone. What is dirty is committed.
async fn fill(rig: Rig) -> Rig {
    let filler = rig.file(99);
    let mut at = 0;
    while filler.fallocate(0, at * BLOCK_U64, BLOCK_U64).await.is_ok() {
        at += 1;
    }
    rig.ctx.sync_all().await.unwrap();
    assert_eq!(rig.ctx.pool.available(), 0);
    rig
}

/// As [`fill`], without a commit of `file`.
async fn fill_but(rig: Rig, file: &Rc<File>) -> Rig {
    file.claim_commit().await;
    let filler = rig.file(99);
    let mut at = 0;
    while rig.ctx.pool.available() > 0 {
        filler.fallocate(0, at * BLOCK_U64, BLOCK_U64).await.unwrap();
        at += 1;
    }
    file.state.borrow_mut().committing = false;
    file.changed.notify_all();
    rig
}

#[test]
fn on_a_full_zone_small_files_are_overwritten_shortened_and_punched() {
    for seed in 0..4 {
        run(seed, Setup { blocks: 64, ..setup() }, |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 2000]).await.unwrap();
            if seed % 2 == 0 {
                file.fsync(false).await.unwrap();
            }
            let rig = fill(rig).await;
            assert_eq!(file.data_attr().blocks, 1);
            rig.write(&file, 10, &[9; 5]).await.unwrap();
            rig.write(&file, 1900, &[8; 100]).await.unwrap();
            file.fallocate(3, 100, 50).await.unwrap();
            file.set_size(1500).await.unwrap();
            file.fsync(false).await.unwrap();
            file.fallocate(3, 200, 50).await.unwrap();
            file.set_size(1400).await.unwrap();
            let mut want = vec![7; 1400];
            want[10..15].fill(9);
            want[100..150].fill(0);
            want[200..250].fill(0);
            assert!(file.read(0, 5000).await.unwrap().to_vec() == want);
            assert_eq!(file.data_attr().blocks, 1);
            file.set_size(1500).await.unwrap();
            want.resize(1500, 0);
            file.fsync(false).await.unwrap();
            assert!(cold(&rig, 1).await == want);
            rig.finish(64).await;
        });
    }
}

/// What fits beside the inode is there before the write is answered; what does not is refused, and
/// who syncs is told of nothing.
#[test]
fn on_a_full_zone_a_small_file_is_new_and_grows_as_far_as_it_fits_and_stays_as_it_was_beyond() {
    for seed in 0..4 {
        run(seed, Setup { blocks: 64, ..setup() }, |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 2000]).await.unwrap();
            let rig = fill(rig).await;
            for (at, len) in [(1990, 4000), (4096, 1), (90_000, 10)] {
                assert_eq!(rig.write(&file, at, &vec![8; len]).await, Err(Fault::NoSpace));
            }
            assert_eq!(file.fallocate(0, 0, 100).await, Err(Fault::NoSpace));
            assert_eq!(file.fallocate(0, 8192, 100).await, Err(Fault::NoSpace));
            file.fsync(false).await.unwrap();
            assert_eq!(content(&rig, 1), (vec![7; 2000], 0));
            // No commit comes between the write and its answer but its own.
            let small = rig.file(2);
            assert_eq!(rig.write(&small, 3, b"x").await, Ok(1));
            assert_eq!(content(&rig, 2), (b"\0\0\0x".to_vec(), 0));
            for at in 0..20 {
                rig.write(&file, 2000 + 50 * at, &[8; 50]).await.unwrap();
            }
            let grown = [vec![7; 2000], vec![8; 1000]].concat();
            assert_eq!(content(&rig, 1), (grown.clone(), 0));
            // The slot of the scripted server has no more, and it has no blobs.
            assert_eq!(rig.write(&file, 3000, &[8]).await, Err(Fault::NoSpace));
            assert!(file.read(0, 9000).await.unwrap().to_vec() == grown);
            // A hole needs none.
            rig.write(&file, 0, &[9; 1000]).await.unwrap();
            file.set_size(50_000).await.unwrap();
            file.fsync(false).await.unwrap();
            let want = [vec![9; 1000], vec![7; 1000], vec![8; 1000], vec![0; 47_000]].concat();
            assert!(cold(&rig, 1).await == want);
            assert_eq!(cold(&rig, 2).await, b"\0\0\0x");
            rig.finish(64).await;
        });
    }
}

/// The server has the old content still, and nobody else gets its room.
#[test]
fn on_a_full_zone_a_small_file_is_emptied_and_written_again_in_the_room_that_it_has() {
    for seed in 0..4 {
        run(seed, Setup { blocks: 64, ..setup() }, |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 1000]).await.unwrap();
            let rig = fill(rig).await;
            rig.server.inline_max.set(0);
            let commits = rig.server.commits.get();
            file.set_size(0).await.unwrap();
            for at in 0..10 {
                rig.write(&file, 100 * at, &[at as u8; 100]).await.unwrap();
            }
            assert_eq!(rig.server.commits.get(), commits, "nothing is waited for");
            assert_eq!(rig.write(&file, 1000, &[1]).await, Err(Fault::NoSpace));
            let want: Vec<u8> = (0..10).flat_map(|at| [at as u8; 100]).collect();
            file.fsync(false).await.unwrap();
            assert_eq!(content(&rig, 1), (want.clone(), 0));
            // And once more while a commit is under way, which may be refused.
            for refused in [false, true] {
                file.set_size(10).await.unwrap();
                let this = file.clone();
                if refused {
                    rig.server.refusals.borrow_mut().push_back(Fault::Busy.into());
                }
                let syncs = rig.env.spawn_join(async move { this.fsync(false).await });
                rig.env.sleep(Duration::from_micros(10)).await;
                file.set_size(0).await.unwrap();
                let wrote = rig.write(&file, 0, &[4; 10]).await;
                assert!(wrote == Ok(10) || wrote == Err(Fault::NoSpace), "{wrote:?}");
                let _ = syncs.await;
                file.fsync(false).await.unwrap();
                let left = if wrote.is_ok() { vec![4; 10] } else { Vec::new() };
                assert_eq!(cold(&rig, 1).await, left);
                rig.acquire(&file);
            }
            rig.finish(64).await;
        });
    }
}

/// The block that content holds until the server has it is the one that it goes to when it grows.
#[test]
fn the_last_block_of_a_zone_takes_content_that_grows_before_it_is_committed() {
    for grown in [2000, 4096] {
        run(2, Setup { blocks: 64, ..setup() }, |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 1000]).await.unwrap();
            let rig = fill_but(rig, &file).await;
            file.launch_all();
            assert_eq!((file.state.borrow().backing_blocks(), rig.ctx.pool.available()), (1, 0));
            let commits = rig.server.commits.get();
            rig.write(&file, 1000, &vec![8; grown - 1000]).await.unwrap();
            assert_eq!(rig.server.commits.get(), commits);
            assert_eq!(file.state.borrow().backing_blocks(), 0);
            file.fsync(false).await.unwrap();
            let want = [vec![7; 1000], vec![8; grown - 1000]].concat();
            assert_eq!(content(&rig, 1).1, u64::from(grown == 4096));
            assert!(cold(&rig, 1).await == want);
            rig.finish(64).await;
        });
    }
}

/// A commit leaves out content that a mapping in it replaces. If that is refused, and its data lost
/// since, the server has neither.
#[test]
fn content_that_was_never_sent_is_sent_when_what_replaced_it_is_lost() {
    run(4, setup(), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[6; 100]).await.unwrap();
        file.fsync(false).await.unwrap();
        rig.write(&file, 0, &[7; 500]).await.unwrap();
        file.launch_all();
        rig.write(&file, 500, &[8; 5000]).await.unwrap();
        rig.server.refusals.borrow_mut().push_back(Fault::Busy.into());
        assert_eq!(file.fsync(false).await, Err(Fault::Busy));
        assert_eq!(content(&rig, 1), (vec![6; 100], 0));
        // In place, and not there.
        rig.server.disks[0].fail(DiskAction::Write, 1, DiskFault::Io);
        rig.write(&file, 0, &[9; 4096]).await.unwrap();
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        assert_eq!(file.read(0, 500).await.unwrap().to_vec(), [7; 500]);
        file.fsync(false).await.unwrap();
        assert_eq!(content(&rig, 1).0, [7; 500]);
        rig.finish(2048).await;
    });
}

/// How a file that has 100 bytes of content is changed while its slot loses room, and what it holds
/// then.
async fn changed_without_room(rig: &Rig, file: &Rc<File>, how: u64) -> Vec<u8> {
    rig.write(file, 50, &[8; 1000]).await.unwrap();
    let mut want = [vec![7; 50], vec![8; 1000]].concat();
    match how {
        // Launched before, and overwritten at rest.
        1 => {
            file.launch_all();
            rig.write(file, 0, &[9; 20]).await.unwrap();
            want[..20].fill(9);
        }
        // Launched before, and dirty again.
        2 => {
            file.launch_all();
            rig.write(file, 1040, &[9; 20]).await.unwrap();
            want.truncate(1040);
            want.extend([9; 20]);
        }
        // Longer than any slot.
        3 => {
            file.launch_all();
            file.set_size(9000).await.unwrap();
            want.resize(9000, 0);
        }
        _ => {}
    }
    want
}

#[test]
fn content_whose_room_is_taken_goes_to_the_block_that_is_kept_for_it() {
    for seed in 0..8 {
        run(seed, Setup { blocks: 64, ..setup() }, |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 100]).await.unwrap();
            file.fsync(false).await.unwrap();
            let want = changed_without_room(&rig, &file, seed % 4).await;
            // A longer name or an attribute, and neither zone has a block left.
            let rig = if seed < 4 { fill_but(rig, &file).await } else { rig };
            rig.server.inline_max.set(200);
            file.fsync(false).await.unwrap();
            assert_eq!(file.error_seq(), 0);
            assert_eq!(content(&rig, 1), (Vec::new(), 1));
            assert_eq!(file.data_attr().blocks, 1);
            assert!(cold(&rig, 1).await == want);
            rig.finish(64).await;
        });
    }
}

#[test]
fn many_files_whose_room_is_taken_are_synced_together() {
    run(3, setup(), |rig| async move {
        let files: Vec<_> = (1..=40).map(|ino| rig.file(ino)).collect();
        for (index, file) in files.iter().enumerate() {
            rig.write(file, 0, &vec![index as u8 + 1; 500]).await.unwrap();
        }
        rig.server.inline_max.set(200);
        rig.ctx.sync_all().await.unwrap();
        for ino in 1..=40 {
            assert_eq!(content(&rig, ino), (Vec::new(), 1));
            assert_eq!(rig.file(ino).error_seq(), 0);
            assert!(cold(&rig, ino).await == [ino as u8; 500]);
        }
        rig.finish(2048).await;
    });
}

/// What the device does not take of it is lost, and told; it is not lost from the sight of who
/// wrote it before the server says what holds.
#[test]
fn content_without_room_whose_block_the_device_does_not_take_is_sent_again() {
    run(4, setup(), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[7; 500]).await.unwrap();
        file.launch_all();
        rig.server.inline_max.set(200);
        rig.server.disks[0].fail(DiskAction::Write, 1, DiskFault::Io);
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        assert_eq!(file.read(0, 500).await.unwrap().to_vec(), [7; 500]);
        rig.server.inline_max.set(600);
        file.fsync(false).await.unwrap();
        assert_eq!(content(&rig, 1), (vec![7; 500], 0));
        rig.finish(2048).await;
    });
}

/// What is dirty when something else of the file gets a place gets one, too.
#[test]
fn small_content_that_something_else_is_put_behind_stays_whole() {
    for how in 0..4 {
        run(how, setup(), |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 100]).await.unwrap();
            let mut want = vec![7; 100];
            match how {
                0 => {
                    rig.write(&file, 9000, &[8; 10]).await.unwrap();
                    want.resize(9000, 0);
                    want.extend([8; 10]);
                }
                1 => file.fallocate(1, 8192, 4096).await.unwrap(),
                2 => {
                    rig.write(&file, 50, &[8; 3000]).await.unwrap();
                    want.resize(50, 0);
                    want.extend([8; 3000]);
                }
                _ => {
                    file.set_size(3001).await.unwrap();
                    want.resize(3001, 0);
                }
            }
            assert!(file.read(0, 10_000).await.unwrap().to_vec() == want);
            rig.write(&file, 0, &[9; 1]).await.unwrap();
            want[0] = 9;
            file.fsync(false).await.unwrap();
            assert!(cold(&rig, 1).await == want);
            rig.finish(2048).await;
        });
    }
}

#[test]
fn what_is_launched_behind_content_that_finds_no_room_counts_for_the_size() {
    run(2, setup(), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[7; 1000]).await.unwrap();
        file.launch_all();
        rig.write(&file, 9000, &[8; 10]).await.unwrap();
        rig.server.inline_max.set(200);
        file.claim_commit().await;
        let outcomes = rig.ctx.commit_files(std::slice::from_ref(&file), Purpose::Flush).await;
        assert_eq!(outcomes, [Err(Fault::Interrupted)], "the content goes to a block");
        // The last block is dirty again: a commit of now says how far the launched one reaches.
        rig.write(&file, 9000, &[9; 20]).await.unwrap();
        assert_eq!(file.state.borrow().launched_size(), 9010);
        file.fsync(false).await.unwrap();
        let want = [vec![7; 1000], vec![0; 8000], vec![9; 20]].concat();
        assert!(cold(&rig, 1).await == want);
        rig.finish(2048).await;
    });
}

/// What is freed meanwhile may be a lease and a quarantine away.
#[test]
fn a_mapping_that_finds_no_room_for_long_is_not_given_up() {
    run(2, Setup { disks: 1, ..Setup::default() }, |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[7; 5000]).await.unwrap();
        let begun = rig.env.now();
        for _ in 0..1000 {
            rig.server.refusals.borrow_mut().push_back(Fault::NoSpace.into());
        }
        file.flush().await.unwrap();
        assert!(rig.env.now().since(begun) > Duration::from_secs(50));
        assert_eq!(file.error_seq(), 0);
        assert_eq!(cold(&rig, 1).await, [7; 5000]);
        rig.finish(2048).await;
    });
}

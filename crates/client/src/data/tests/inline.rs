//! Small files whose content is inline data.

use env::sim::{DiskAction, DiskFault};

use super::super::context::Purpose;
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

/// The content as the next client reads it.
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
fn small_file_is_written_synced_and_read_without_its_device() {
    for seed in 0..4 {
        run(seed, setup(), |rig| async move {
            let before = accesses(&rig);
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 2000]).await.unwrap();
            rig.write(&file, 2000, &[8; 1000]).await.unwrap();
            file.fsync(false).await.unwrap();
            assert_eq!(file.data_attr().blocks, 1, "a file without blocks would look like a hole");
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
fn inline_file_that_outgrows_its_slot_gets_a_block_until_it_is_emptied() {
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
fn truncated_inline_data_does_not_come_back_when_the_file_grows() {
    run(3, setup(), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[7; 100]).await.unwrap();
        file.fsync(false).await.unwrap();
        file.set_size(40).await.unwrap();
        file.set_size(100).await.unwrap();
        file.fsync(false).await.unwrap();
        assert_eq!(cold(&rig, 1).await, [vec![7; 40], vec![0; 60]].concat());
        // Written and truncated before the server learns of either.
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
fn inline_data_is_restored_if_writing_the_block_that_replaces_it_fails() {
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
            // And it can still be replaced.
            rig.write(&file, 0, &[5; 4000]).await.unwrap();
            file.fsync(false).await.unwrap();
            assert_eq!(content(&rig, 1), (Vec::new(), 1));
            assert_eq!(cold(&rig, 1).await[..4000], [5; 4000]);
            rig.finish(2048).await;
        });
    }
}

#[test]
fn preallocated_space_is_on_a_device() {
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
fn seek_finds_data_and_holes_of_inline_files() {
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
fn many_inline_files_fit_a_small_dirty_budget() {
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
fn repeatedly_rewritten_inline_file_has_one_pending_edit() {
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
        // Nor does the list grow while the server refuses commits.
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
fn write_that_waited_for_the_old_block_keeps_a_write_made_meanwhile() {
    for seed in (11..51).step_by(2) {
        run(seed, Setup { disks: 1, ..Setup::default() }, |rig| async move {
            let rig = Rc::new(rig);
            let file = rig.file(1);
            rig.write(&file, 0, &[1; 8192]).await.unwrap();
            file.fsync(false).await.unwrap();
            // A write of the block is in flight and does not end; the next two come meanwhile.
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
            // If the waiting write reads the block, the other one is written at the same time and
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
fn more_small_files_than_a_batch_takes_are_committed_inline_or_mapped() {
    for inline_max in [0, 3000] {
        run(8, Setup { disks: 1, blocks: 4096, inline_max, ..Setup::default() }, many_small_files);
    }
}

#[test]
fn restored_inline_data_is_cut_at_the_size() {
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
        assert_eq!(
            (bad, server),
            (0, 100),
            "bytes that came back, length of the server's inline data"
        );
    });
}

/// Uses up all blocks of the data zone, and commits all dirty files.
async fn fill(rig: Rig) -> Rig {
    let filler = rig.file(99);
    let mut at = 0;
    while filler.fallocate(0, at * BLOCK_U64, BLOCK_U64).await.is_ok() {
        at += 1;
    }
    rig.ctx.sync_all().await.unwrap();
    assert_eq!(rig.ctx.class(HOME, &[]).pool.available(), 0);
    rig
}

/// As [`fill`], without a commit of `file`.
async fn fill_but(rig: Rig, file: &Rc<File>) -> Rig {
    file.claim_commit().await;
    let filler = rig.file(99);
    let mut at = 0;
    while rig.ctx.class(HOME, &[]).pool.available() > 0 {
        filler.fallocate(0, at * BLOCK_U64, BLOCK_U64).await.unwrap();
        at += 1;
    }
    file.state.borrow_mut().committing = false;
    file.changed.notify_all();
    rig
}

#[test]
fn inline_files_are_overwritten_truncated_and_punched_on_a_full_zone() {
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

/// The server has what fits the slot before the write is answered. A write that does not fit is
/// refused, and fsync reports no error for it.
#[test]
fn inline_files_are_created_and_grow_within_their_slots_on_a_full_zone() {
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
            // The write's own commit comes before its answer, and no other.
            let small = rig.file(2);
            assert_eq!(rig.write(&small, 3, b"x").await, Ok(1));
            assert_eq!(content(&rig, 2), (b"\0\0\0x".to_vec(), 0));
            for at in 0..20 {
                rig.write(&file, 2000 + 50 * at, &[8; 50]).await.unwrap();
            }
            let grown = [vec![7; 2000], vec![8; 1000]].concat();
            assert_eq!(content(&rig, 1), (grown.clone(), 0));
            // The slot of the scripted server has no more room, and there are no blobs.
            assert_eq!(rig.write(&file, 3000, &[8]).await, Err(Fault::NoSpace));
            assert!(file.read(0, 9000).await.unwrap().to_vec() == grown);
            // A hole needs no block.
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

/// The server still has the old inline data, so nobody else gets its room.
#[test]
fn inline_file_is_truncated_and_rewritten_in_its_room_on_a_full_zone() {
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
            assert_eq!(rig.server.commits.get(), commits, "the writes wait for nothing");
            assert_eq!(rig.write(&file, 1000, &[1]).await, Err(Fault::NoSpace));
            let want: Vec<u8> = (0..10).flat_map(|at| [at as u8; 100]).collect();
            file.fsync(false).await.unwrap();
            assert_eq!(content(&rig, 1), (want.clone(), 0));
            // Once more during a commit, which may be refused.
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

/// The block reserved for inline data until its commit is the one that takes it when it grows.
#[test]
fn backing_block_takes_inline_data_that_grows_before_its_commit() {
    for grown in [2000, 4096] {
        run(2, Setup { blocks: 64, ..setup() }, |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 1000]).await.unwrap();
            let rig = fill_but(rig, &file).await;
            file.launch_all();
            assert_eq!(
                (file.state.borrow().backing_blocks(), rig.ctx.class(HOME, &[]).pool.available()),
                (1, 0)
            );
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

/// A commit leaves out inline data that one of its mappings replaces. If it is refused and the
/// mapped data is lost later, the server has neither.
#[test]
fn unsent_inline_data_is_sent_when_the_block_that_replaced_it_is_lost() {
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
        // A write in place that fails.
        rig.server.disks[0].fail(DiskAction::Write, 1, DiskFault::Io);
        rig.write(&file, 0, &[9; 4096]).await.unwrap();
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        assert_eq!(file.read(0, 500).await.unwrap().to_vec(), [7; 500]);
        file.fsync(false).await.unwrap();
        assert_eq!(content(&rig, 1).0, [7; 500]);
        rig.finish(2048).await;
    });
}

/// Changes a file of 100 inline bytes before its slot loses room; returns the expected content.
async fn changed_without_room(rig: &Rig, file: &Rc<File>, how: u64) -> Vec<u8> {
    rig.write(file, 50, &[8; 1000]).await.unwrap();
    let mut want = [vec![7; 50], vec![8; 1000]].concat();
    match how {
        // Launched, then overwritten while clean.
        1 => {
            file.launch_all();
            rig.write(file, 0, &[9; 20]).await.unwrap();
            want[..20].fill(9);
        }
        // Launched, then dirty again.
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
fn inline_data_that_loses_its_room_goes_to_its_backing_block() {
    for seed in 0..8 {
        run(seed, Setup { blocks: 64, ..setup() }, |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[7; 100]).await.unwrap();
            file.fsync(false).await.unwrap();
            let want = changed_without_room(&rig, &file, seed % 4).await;
            // A longer name or an attribute takes the room, and neither zone has a block left.
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
fn many_inline_files_that_lose_their_room_are_synced_together() {
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

/// If the device fails, the data counts as lost and is reported, but the writer still sees it until
/// the server has answered.
#[test]
fn inline_data_without_room_is_sent_again_if_its_block_fails() {
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

/// Block 0 is mapped too when another block of the file is.
#[test]
fn inline_data_stays_whole_when_the_file_grows_beyond_it() {
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
fn blocks_launched_behind_refused_inline_data_count_for_the_size() {
    run(2, setup(), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[7; 1000]).await.unwrap();
        file.launch_all();
        rig.write(&file, 9000, &[8; 10]).await.unwrap();
        rig.server.inline_max.set(200);
        file.claim_commit().await;
        let outcomes = rig.ctx.commit_files(std::slice::from_ref(&file), Purpose::Flush).await;
        assert_eq!(outcomes, [Err(Fault::Interrupted)], "the inline data goes to a block");
        // The last block is dirty again: a commit now must carry the size of the launched one.
        rig.write(&file, 9000, &[9; 20]).await.unwrap();
        assert_eq!(file.state.borrow().launched_size(), 9010);
        file.fsync(false).await.unwrap();
        let want = [vec![7; 1000], vec![0; 8000], vec![9; 20]].concat();
        assert!(cold(&rig, 1).await == want);
        rig.finish(2048).await;
    });
}

/// Space that is being freed may take a lease and a quarantine to come.
#[test]
fn mapping_that_finds_no_room_for_a_minute_is_not_discarded() {
    run(2, Setup { disks: 1, ..Setup::default() }, |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[7; 5000]).await.unwrap();
        let begun = rig.env.now();
        for _ in 0..1000 {
            rig.server.refusals.borrow_mut().push_back(Fault::NoSpace.into());
        }
        file.flush().await.unwrap();
        // The file's own commits in the background took some of the refusals.
        assert!(rig.env.now().since(begun) > Duration::from_secs(45));
        assert_eq!(file.error_seq(), 0);
        assert_eq!(cold(&rig, 1).await, [7; 5000]);
        rig.finish(2048).await;
    });
}

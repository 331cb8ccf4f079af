//! How commits are sent: by which tasks, and how many in a request.

use proto::commit::Choice;

use super::*;
use crate::boundary::DataHalf as _;

fn one_disk(blocks: u64) -> Setup {
    Setup { disks: 1, blocks, ..Setup::default() }
}

fn setup(tasks: usize, degree: usize) -> Setup {
    let (tasks, degree) = (Choice::Fixed(tasks), Choice::Fixed(degree));
    let commit = CommitPolicy { tasks, degree, ..CommitPolicy::default() };
    Setup { disks: 1, commit, ..Setup::default() }
}

/// Files of one block each, written at the same time.
async fn written(rig: &Rig, count: u64) -> Vec<Rc<File>> {
    let files: Vec<_> = (1..=count).map(|ino| rig.file(ino)).collect();
    for file in &files {
        rig.write(file, 0, &[1; BLOCK]).await.unwrap();
    }
    files
}

#[test]
fn commits_are_sent_by_so_many_tasks_and_in_requests_of_so_many() {
    for (tasks, degree) in [(1, 1), (2, 3), (9, 6)] {
        run(470, setup(tasks, degree), |rig| async move {
            let files = written(&rig, 30).await;
            rig.env.sleep(Duration::from_secs(5)).await;
            assert!(files.iter().all(|file| file.is_clean()));
            let compounds = rig.server.compounds.borrow().clone();
            let sum: usize = compounds.iter().map(|(commits, _)| commits).sum();
            let largest = compounds.iter().map(|(commits, _)| *commits).max();
            let at_once = compounds.iter().map(|(_, in_flight)| *in_flight).max();
            assert_eq!((sum, largest), (30, Some(degree)), "{compounds:?}");
            assert_eq!(at_once, Some(tasks.min(30 / degree)), "{compounds:?}");
            rig.finish(2048).await;
        });
    }
}

#[test]
fn many_files_need_few_requests() {
    run(471, Setup { disks: 1, blocks: 8192, ..Setup::default() }, |rig| async move {
        written(&rig, 1000).await;
        rig.env.sleep(Duration::from_secs(5)).await;
        let requests = rig.server.commits.get();
        assert!(requests <= 25, "{:?}", rig.server.compounds.borrow());
        rig.finish(8192).await;
    });
}

#[test]
fn files_that_will_soon_be_due_share_the_requests_of_the_first() {
    run(475, Setup { disks: 1, blocks: 8192, ..Setup::default() }, |rig| async move {
        for ino in 1..=300 {
            rig.write(&rig.file(ino), 0, &[1; BLOCK]).await.unwrap();
            rig.env.sleep(Duration::from_millis(4)).await;
        }
        rig.env.sleep(Duration::from_secs(2)).await;
        let compounds = rig.server.compounds.borrow().clone();
        assert_eq!(compounds.iter().map(|(commits, _)| commits).sum::<usize>(), 300);
        assert!(compounds.len() <= 15, "a group of each quarter second, in full requests");
        rig.finish(8192).await;
    });
}

#[test]
fn fsync_does_not_wait_until_a_task_is_free() {
    run(472, setup(1, 1), |rig| async move {
        let files = written(&rig, 9).await;
        rig.server.held.set(1);
        // Two seconds later all are stable, and the only task waits for the server.
        rig.env.sleep(Duration::from_secs(2)).await;
        assert_eq!(rig.server.commits.get(), 1);
        assert_eq!(rig.ctx.commit_counts().ready, 8);
        let synced = rig.env.timeout(Duration::from_secs(1), files[8].fsync(false)).await;
        assert_eq!(synced, Some(Ok(true)));
        assert_eq!(rig.ctx.commit_counts().ready, 7, "the others wait as before");
        rig.server.held.set(0);
        rig.env.sleep(Duration::from_secs(2)).await;
        assert!(files.iter().all(|file| file.is_clean()));
        rig.finish(2048).await;
    });
}

#[test]
fn caller_that_came_before_its_file_was_stable_does_not_wait_for_a_task_either() {
    run(474, setup(1, 1), |rig| async move {
        let first = rig.file(100);
        rig.server.held.set(1);
        rig.write(&first, 0, &[1; BLOCK]).await.unwrap();
        // The only task sends the first file. The others are on the device, and the flush of their
        // batch does not end.
        rig.env.sleep(Duration::from_millis(1200)).await;
        assert_eq!(rig.server.commits.get(), 1);
        let files = written(&rig, 8).await;
        files.iter().for_each(|file| _ = file.launch_all());
        rig.env.sleep(Duration::from_millis(100)).await;
        rig.server.disks[0].stall(true);
        rig.env.sleep(Duration::from_secs(2)).await;
        assert_eq!(rig.ctx.commit_counts().ready, 0);
        let last = files[7].clone();
        let over = rig.env.spawn_join(async move { last.commit_over().await });
        rig.env.sleep(Duration::from_millis(1)).await;
        rig.server.disks[0].stall(false);
        assert_eq!(rig.env.timeout(Duration::from_secs(1), over).await, Some(()));
        assert_eq!(rig.ctx.commit_counts().ready, 7, "the others wait for the task");
        rig.server.held.set(0);
        rig.env.sleep(Duration::from_secs(2)).await;
        assert!(first.is_clean() && files.iter().all(|file| file.is_clean()));
        rig.finish(2048).await;
    });
}

#[test]
fn due_file_that_a_caller_takes_out_of_its_lane_is_still_due() {
    let commit = CommitPolicy { max_age: Duration::from_millis(200), ..CommitPolicy::default() };
    run(478, Setup { commit, ..one_disk(2048) }, |rig| async move {
        rig.server.disks[0].stall(true);
        // All batches that the device may have wait for it.
        let mut files = Vec::new();
        for ino in 1..=5 {
            let file = rig.file(ino);
            rig.write(&file, 0, &[1; BLOCK]).await.unwrap();
            files.push(file);
            rig.env.sleep(Duration::from_millis(220)).await;
        }
        assert_eq!(rig.ctx.commit_counts().waiting, 1);
        let times_set = files[4].before_times_set();
        assert_eq!(rig.env.timeout(Duration::from_millis(1), times_set).await, Some(()));
        rig.env.sleep(Duration::from_millis(10)).await;
        let counts = rig.ctx.commit_counts();
        assert_eq!((counts.aging, counts.waiting), (0, 1), "{counts:?}");
        rig.server.disks[0].stall(false);
        rig.env.sleep(Duration::from_millis(100)).await;
        assert!(files.iter().all(|file| file.is_clean()));
        rig.finish(2048).await;
    });
}

#[test]
fn files_are_committed_when_they_are_as_old_as_the_policy_says() {
    let commit = CommitPolicy { max_age: Duration::from_millis(50), ..CommitPolicy::default() };
    run(473, Setup { disks: 1, commit, ..Setup::default() }, |rig| async move {
        let files = written(&rig, 3).await;
        rig.env.sleep(Duration::from_millis(40)).await;
        assert_eq!(rig.server.commits.get(), 0);
        rig.env.sleep(Duration::from_millis(100)).await;
        assert!(files.iter().all(|file| file.is_clean()));
        rig.finish(2048).await;
    });
}

#[test]
fn file_whose_commit_goes_on_is_looked_at_each_retry_while_writers_are_slowed() {
    let slowed = Setup { disks: 1, dirty_max: 1 << 20, ..Setup::default() };
    run(476, slowed, |rig| async move {
        let file = rig.file(1);
        rig.server.disks[0].stall(true);
        rig.write(&file, 0, &[1; BLOCK]).await.unwrap();
        rig.env.sleep(Duration::from_secs(1)).await;
        assert!(file.state.borrow().committing, "its batch waits for the device");
        // It ages again, and more than half of the bound is dirty.
        rig.write(&file, 0, &[2; 640 << 10]).await.unwrap();
        rig.env.sleep(Duration::from_secs(1)).await;
        let mut times = BTreeSet::new();
        for _ in 0..1000 {
            times.extend(rig.ctx.pipeline(HOME).borrow().next_due());
            rig.env.sleep(Duration::from_millis(1)).await;
        }
        assert!((10..=25).contains(&times.len()), "looked at {} times in a second", times.len());
        rig.server.disks[0].stall(false);
        rig.env.sleep(Duration::from_secs(2)).await;
        assert!(file.is_clean());
        rig.finish(2048).await;
    });
}

/// Files that are on the device, and whose batch waits for a flush that does not end.
async fn flushing(rig: &Rig, count: u64) -> Vec<Rc<File>> {
    let files = written(rig, count).await;
    files.iter().for_each(|file| _ = file.launch_all());
    rig.env.sleep(Duration::from_millis(100)).await;
    rig.server.disks[0].stall(true);
    rig.env.sleep(Duration::from_secs(1)).await;
    assert!(files.iter().all(|file| file.state.borrow().committing));
    files
}

/// Does nothing of the file hold up its removal?
async fn pauses_at_once(rig: &Rig, file: &Rc<File>) -> bool {
    rig.env.timeout(Duration::from_micros(1), file.pause()).await.is_some()
}

#[test]
fn removed_file_leaves_the_batch_that_is_being_made_stable() {
    for seed in 477..483 {
        run(seed, Setup { disks: 1, ..Setup::default() }, |rig| async move {
            let files = flushing(&rig, 3).await;
            assert!(pauses_at_once(&rig, &files[0]).await);
            files[0].drop_all(false);
            files[0].resume();
            assert_eq!(rig.server.commits.get(), 0);
            rig.server.disks[0].stall(false);
            rig.env.sleep(Duration::from_secs(2)).await;
            assert!(files.iter().all(|file| file.is_settled()));
            let known: Vec<Ino> = rig.server.now.borrow().files.keys().copied().collect();
            assert_eq!(known, [Ino(2), Ino(3)]);
            rig.finish(2048).await;
        });
    }
}

#[test]
fn removed_file_leaves_those_that_wait_for_a_task() {
    run(483, setup(1, 1), |rig| async move {
        let files = written(&rig, 4).await;
        rig.server.held.set(1);
        rig.env.sleep(Duration::from_secs(2)).await;
        assert_eq!(rig.ctx.commit_counts().ready, 3);
        assert!(!pauses_at_once(&rig, &files[0]).await, "its commit may take effect");
        assert!(pauses_at_once(&rig, &files[3]).await);
        files[3].drop_all(false);
        files[0].resume();
        assert_eq!((rig.ctx.commit_counts().ready, rig.server.commits.get()), (2, 1));
        rig.server.held.set(0);
        rig.env.sleep(Duration::from_secs(2)).await;
        assert_eq!(rig.server.now.borrow().files.len(), 3);
        rig.finish(2048).await;
    });
}

#[test]
fn file_whose_removal_failed_is_committed_and_leaves_no_second_batch() {
    for seed in 484..490 {
        run(seed, Setup { disks: 1, ..Setup::default() }, |rig| async move {
            let files = flushing(&rig, 2).await;
            assert!(pauses_at_once(&rig, &files[0]).await);
            files[0].resume();
            // Its next batch begins at once, while the first one still waits.
            rig.env.sleep(Duration::from_millis(100)).await;
            assert!(files[0].state.borrow().committing);
            let pausing = files[0].clone();
            let paused = rig.env.spawn_join(async move { pausing.pause().await });
            rig.env.sleep(Duration::from_secs(1)).await;
            assert!(files[0].state.borrow().committing, "it stays");
            rig.server.disks[0].stall(false);
            assert_eq!(rig.env.timeout(Duration::from_secs(1), paused).await, Some(()));
            assert!(files[0].is_clean() && rig.server.now.borrow().files.contains_key(&Ino(1)));
            files[0].resume();
            rig.finish(2048).await;
        });
    }
}

#[test]
fn removal_of_a_new_file_does_not_wait_for_its_writes_and_their_blocks_are_free_after_them() {
    for seed in 490..496 {
        run(seed, one_disk(512), |rig| async move {
            let (file, other, known) = (rig.file(1), rig.file(2), rig.file(3));
            rig.write(&known, 0, &[3; BLOCK]).await.unwrap();
            known.fsync(false).await.unwrap();
            // A write that does not end keeps others of the client in flight.
            rig.server.disks[0].stall(true);
            rig.write(&known, 0, &[4; BLOCK]).await.unwrap();
            rig.write(&file, 0, &[1; 512 << 10]).await.unwrap();
            file.launch_all();
            known.launch_all();
            rig.env.sleep(Duration::from_millis(1)).await;
            assert!(!pauses_at_once(&rig, &known).await, "the server may give its block to others");
            known.resume();
            assert!(pauses_at_once(&rig, &file).await);
            file.drop_all(false);
            file.resume();
            assert_eq!(rig.ctx.pool_blocks().1, 128, "no other file gets them yet");
            rig.server.disks[0].stall(false);
            rig.env.sleep(Duration::from_millis(100)).await;
            assert_eq!(rig.ctx.pool_blocks().1, 0);
            // All blocks but the label and that of the known file are there.
            for block in 0..510 {
                rig.write(&other, block * BLOCK_U64, &[2; BLOCK]).await.unwrap();
            }
            rig.finish(512).await;
        });
    }
}

#[test]
fn files_that_were_committed_before_they_are_due_do_not_wait() {
    let auto = CommitPolicy { max_age: Duration::from_secs(8), ..CommitPolicy::default() };
    run(497, Setup { disks: 1, commit: auto, ..Setup::default() }, |rig| async move {
        let files = written(&rig, 60).await;
        let counts = rig.ctx.commit_counts();
        assert_eq!((counts.queue, counts.aging), (60, 60));
        assert_eq!(counts.tasks, 6, "the queue is looked at while it grows");
        for file in &files[..50] {
            file.fsync(false).await.unwrap();
        }
        let counts = rig.ctx.commit_counts();
        assert_eq!((counts.queue, counts.aging), (10, 10), "the others are committed");
        rig.write(&files[0], 0, &[2; BLOCK]).await.unwrap();
        let counts = rig.ctx.commit_counts();
        assert_eq!((counts.queue, counts.aging), (11, 11));
        assert!(rig.ctx.unsettled().iter().any(|file| file.ino == Ino(1)));
        rig.finish(2048).await;
    });
}

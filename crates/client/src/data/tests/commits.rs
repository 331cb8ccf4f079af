//! How commits are sent: by which tasks, and how many in a request.

use proto::commit::Choice;

use super::*;
use crate::boundary::DataHalf as _;

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

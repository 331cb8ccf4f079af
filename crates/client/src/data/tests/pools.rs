//! How the pools are refilled: with commits, or by requests of their own.

use super::*;

fn setup(chunk: u64) -> Setup {
    let allocation = Allocation { chunk, ..Allocation::default() };
    Setup { disks: 1, blocks: 60_000, grant_max: 60_000, allocation, ..Setup::default() }
}

/// Grants of the server, and how many of these were asked for with commits.
fn grants(rig: &Rig) -> (u64, u64) {
    (rig.server.grants.get(), rig.ctx.transfers.rode.get())
}

#[test]
fn small_files_that_are_written_steadily_are_refilled_with_commits_only() {
    run(481, setup(1024), |rig| async move {
        for ino in 1..=400 {
            rig.write(&rig.file(ino), 0, &[1; 16 * BLOCK]).await.unwrap();
            rig.env.sleep(Duration::from_millis(25)).await;
        }
        let (all, rode) = grants(&rig);
        assert!(rode >= 4 && all == rode + 1, "{all} grants, {rode} with commits");
        rig.env.sleep(Duration::from_secs(3)).await;
        rig.finish(60_000).await;
    });
}

#[test]
fn writer_who_is_faster_than_commits_are_asks_before_the_pools_are_empty() {
    run(482, setup(1024), |rig| async move {
        for ino in 1..=200 {
            rig.write(&rig.file(ino), 0, &[1; 32 * BLOCK]).await.unwrap();
        }
        let (all, rode) = grants(&rig);
        assert!(all > rode + 2, "{all} grants, {rode} with commits");
        rig.env.sleep(Duration::from_secs(3)).await;
        rig.finish(60_000).await;
    });
}

#[test]
fn server_with_little_left_is_not_asked_with_commits() {
    let setup = Setup { blocks: 2_000, grant_max: 2_000, ..setup(512) };
    run(483, setup, |rig| async move {
        for ino in 1..=60 {
            rig.write(&rig.file(ino), 0, &[1; 16 * BLOCK]).await.unwrap();
            rig.env.sleep(Duration::from_millis(40)).await;
        }
        let (all, rode) = grants(&rig);
        assert!(all >= 2 && rode == 0, "{all} grants, {rode} with commits");
        rig.env.sleep(Duration::from_secs(3)).await;
        rig.finish(2_000).await;
    });
}

#[test]
fn commit_that_fails_takes_no_refill_with_it_and_a_later_one_does() {
    run(484, setup(1024), |rig| async move {
        for ino in 1..=80 {
            rig.write(&rig.file(ino), 0, &[1; 16 * BLOCK]).await.unwrap();
            rig.env.sleep(Duration::from_millis(20)).await;
        }
        let busy = Refusal { fault: Fault::Busy, done: 0 };
        rig.server.refusals.borrow_mut().extend([busy; 3]);
        for ino in 81..=200 {
            rig.write(&rig.file(ino), 0, &[1; 16 * BLOCK]).await.unwrap();
            rig.env.sleep(Duration::from_millis(20)).await;
        }
        let (all, rode) = grants(&rig);
        assert!(rode >= 2, "{all} grants, {rode} with commits");
        rig.env.sleep(Duration::from_secs(3)).await;
        rig.finish(60_000).await;
    });
}

#[test]
fn large_allocation_comes_from_the_server_and_leaves_the_pools_to_small_files() {
    run(485, setup(1024), |rig| async move {
        rig.write(&rig.file(1), 0, &[1; BLOCK]).await.unwrap();
        let class = rig.ctx.class(&[]);
        let before = class.pool.available();
        assert!(before >= 1000);
        let grants_before = grants(&rig).0;
        let large = rig.ctx.reserve(&class, 5000, None).await.unwrap();
        assert!(class.pool.available() >= before && grants(&rig).0 > grants_before);
        drop(large);
        rig.env.sleep(Duration::from_secs(3)).await;
        rig.finish(60_000).await;
    });
}

#[test]
fn large_allocation_uses_the_pools_where_the_server_has_too_little() {
    let setup = Setup { blocks: 3_000, grant_max: 3_000, ..setup(1024) };
    run(486, setup, |rig| async move {
        rig.write(&rig.file(1), 0, &[1; BLOCK]).await.unwrap();
        let class = rig.ctx.class(&[]);
        let large = rig.ctx.reserve(&class, 2900, None).await.unwrap();
        assert_eq!(large.blocks(), 2900);
        drop(large);
        rig.env.sleep(Duration::from_secs(3)).await;
        rig.finish(3_000).await;
    });
}

#[test]
fn writer_gets_the_last_blocks_that_come_with_commits_and_no_error() {
    let setup = Setup { blocks: 3_000, grant_max: 3_000, ..setup(512) };
    run(487, setup, |rig| async move {
        rig.write(&rig.file(1), 0, &[1; BLOCK]).await.unwrap();
        let class = rig.ctx.class(&[]);
        // The server has enough for a refill with the commit of this file.
        let mut kept = vec![rig.ctx.reserve(&class, 200, None).await.unwrap()];
        rig.server.held.set(rig.server.commits.get() + 1);
        rig.env.sleep(Duration::from_millis(1500)).await;
        assert!(class.grants.riding.get(), "the commit is held");
        let rest: Vec<_> =
            std::mem::take(&mut rig.server.now.borrow_mut().free).into_iter().collect();
        let (held, env) = (rig.server.clone(), rig.env.clone());
        rig.env.spawn(async move {
            env.sleep(Duration::from_secs(3)).await;
            held.now.borrow_mut().free.extend(rest);
            held.held.set(0);
        });
        kept.push(rig.ctx.reserve(&class, 500, None).await.unwrap());
        assert_eq!(rig.ctx.transfers.rode.get(), 1);
        drop(kept);
        rig.env.sleep(Duration::from_secs(3)).await;
        rig.finish(3_000).await;
    });
}

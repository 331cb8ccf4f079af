//! How the pools are refilled: with commits, or by requests of their own.

use super::*;
use crate::data::class::SMALL_ALLOCATION;

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
        let class = rig.ctx.class(HOME, &[]);
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
        let class = rig.ctx.class(HOME, &[]);
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
        let class = rig.ctx.class(HOME, &[]);
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

/// Small allocations, each a millisecond at least after the one before, of which the server has
/// `blocks`; how many grants came with commits, how many apart, and whether the server had all.
async fn allocate_at_random(rig: &Rig, seed: u64) -> (u64, u64, bool) {
    let (class, mut rng) = (rig.ctx.class(HOME, &[]), SimRng::new(seed));
    let mut kept = Vec::new();
    // This one waits: there is nothing yet.
    rig.write(&rig.file(1), 0, &[1; BLOCK]).await.unwrap();
    for ino in 2..250 {
        // The server takes up to 3 ms for a grant: two or three more allocations come meanwhile.
        let most = if rng.one_in(20) { 1_000_000 } else { 4_000 };
        rig.env.sleep(Duration::from_micros(1_000 + rng.below(most))).await;
        let (begun, left) = (rig.env.now(), rig.server.now.borrow().free.len() as u64);
        let blocks = 1 + rng.below(SMALL_ALLOCATION);
        let done = if rng.one_in(4) {
            let reserved = rig.ctx.reserve(&class, blocks, None).await;
            reserved.map(|reserved| kept.push(reserved))
        } else {
            let bytes = vec![1; blocks as usize * BLOCK];
            rig.write(&rig.file(ino), 0, &bytes).await.map(drop)
        };
        let (waited, has_blocks) = (rig.env.now() > begun, left >= 2 * class.grants.chunk);
        assert!(!waited || !has_blocks, "allocation {ino}: of {blocks} blocks, {left} left");
        if done.is_err() {
            assert_eq!((done, left < blocks), (Err(Fault::NoSpace), true));
            return (rig.ctx.transfers.rode.get(), rig.server.grants.get(), true);
        }
        if kept.len() > 4 {
            kept.swap_remove(rng.below(4) as usize);
        }
    }
    (rig.ctx.transfers.rode.get(), rig.server.grants.get(), false)
}

#[test]
fn small_allocation_waits_for_no_grant_as_long_as_the_server_has_blocks() {
    let (rode, apart, used_up) = (Cell::new(0), Cell::new(0), Cell::new(0));
    for (seed, blocks) in [(490, 60_000), (492, 60_000), (494, 60_000), (496, 20_000)] {
        let setup = Setup { blocks, grant_max: blocks, dirty_max: 1 << 30, ..setup(4096) };
        run(seed, setup, |rig| {
            let (rode, apart, used_up) = (&rode, &apart, &used_up);
            async move {
                let (with_commits, all, is_used_up) = allocate_at_random(&rig, seed).await;
                rode.set(rode.get() + with_commits);
                apart.set(apart.get() + all - with_commits);
                used_up.set(used_up.get() + u64::from(is_used_up));
                rig.env.sleep(Duration::from_secs(3)).await;
                rig.finish(blocks).await;
            }
        });
    }
    let found = (rode.get(), apart.get(), used_up.get());
    assert!(found.0 > 2 && found.1 > 6 && found.2 == 1, "{found:?}");
}

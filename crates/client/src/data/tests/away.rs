//! Targets that restart, are away, are lost, are full, or refuse what they are shown.

use super::devices::{logged, state};
use super::*;

fn setup() -> Setup {
    Setup { disks: 0, targets: 2, stripe: (2, 1), ..Setup::default() }
}

/// A file on each of the two targets: files begin at different ones.
fn both(rig: &Rig) -> [Rc<File>; 2] {
    [rig.file(2), rig.file(3)]
}

#[test]
fn restart_of_a_target_under_writes_loses_nothing() {
    for seed in 1000..1010 {
        let all = Setup { stripe: (2, 2), ..setup() };
        run(seed, all, |rig| async move {
            let file = rig.file(1);
            let writer = {
                let (rig_env, file) = (rig.env.clone(), file.clone());
                rig.env.spawn_join(async move {
                    for at in 0..60u64 {
                        let data = IoBuf::copy_of(&[at as u8 + 1; 2 * BLOCK]);
                        file.write(Some(at * 2 * BLOCK_U64), data, 2 * BLOCK, None).await.unwrap();
                        if at % 7 == 0 {
                            file.launch_all();
                        }
                        rig_env.sleep(Duration::from_millis(9)).await;
                    }
                })
            };
            let target = rig.server.targets[seed as usize % 2].clone();
            target.set_stalled(true);
            for _ in 0..3 {
                rig.env.sleep(Duration::from_millis(130)).await;
                target.restart();
            }
            writer.await;
            target.set_stalled(false);
            assert_eq!(file.fsync(false).await, Ok(true));
            rig.server.targets.iter().for_each(|target| target.kill());
            let bytes: Vec<u8> = (0..60u8).flat_map(|at| [at + 1; 2 * BLOCK]).collect();
            assert!(rig.server.seen(Ino(1)) == bytes, "what fsync promised is durable");
            assert!(target.counts.borrow().replays > 0, "the test replays nothing");
            rig.server.targets.iter().for_each(|target| target.start());
            assert!(file.read(0, bytes.len()).await.unwrap().to_vec() == bytes);
            rig.finish(2048).await;
        });
    }
}

#[test]
fn target_that_is_away_holds_up_its_files_only_and_says_so() {
    run(1010, setup(), |rig| async move {
        let [away, other] = both(&rig);
        for file in [&away, &other] {
            rig.write(file, 0, &[1; 3 * BLOCK]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
        }
        assert_eq!((state(&rig, 1), state(&rig, 2)), ("present", "present"));
        let target = rig.server.targets[0].clone();
        target.kill();
        rig.write(&away, 0, &[2; BLOCK]).await.unwrap();
        let (reads, syncs) = (away.clone(), away.clone());
        let read = rig.env.spawn_join(async move {
            let data = reads.read(BLOCK_U64, BLOCK).await;
            data.map(|data| data.to_vec())
        });
        let sync = rig.env.spawn_join(async move { syncs.fsync(false).await });
        rig.env.sleep(Duration::from_secs(20)).await;
        assert!(!read.is_ready() && !sync.is_ready(), "they wait");
        assert_eq!((state(&rig, 1), state(&rig, 2)), ("away", "present"));
        let status = rig.ctx.devices()[0].target.clone().unwrap();
        assert!(!status.connected && status.unanswered > 0, "{status:?}");
        assert!(status.oldest_unanswered > Duration::from_secs(15), "{status:?}");
        rig.write(&other, 0, &[3; BLOCK]).await.unwrap();
        assert_eq!(other.fsync(false).await, Ok(true), "others go on");
        assert!(other.read(0, BLOCK).await.unwrap().to_vec() == [3; BLOCK]);
        target.start();
        assert_eq!(read.await, Ok(vec![1; BLOCK]));
        assert_eq!(sync.await, Ok(true));
        assert_eq!(state(&rig, 1), "present");
        assert_eq!(rig.server.seen(Ino(2))[..2 * BLOCK], [[2; BLOCK], [1; BLOCK]].concat());
        rig.finish(2048).await;
    });
}

#[test]
fn target_that_was_never_there_fails_no_mount_and_is_used_when_it_comes() {
    let world = SimWorld::new(1011);
    let inner = world.clone();
    world.run(|env| async move {
        let setup = Setup { targets: 1, ..setup() };
        let rig = Rig::new(&inner, env.clone(), 1011, setup).await;
        let target = rig.server.targets[0].clone();
        target.kill();
        let file = rig.file(1);
        let writes = file.clone();
        let sync = env.spawn_join(async move {
            let data = IoBuf::copy_of(&[5; BLOCK]);
            writes.write(Some(0), data, BLOCK, None).await.unwrap();
            writes.fsync(false).await
        });
        env.sleep(Duration::from_secs(30)).await;
        assert!(!sync.is_ready());
        assert_eq!(state(&rig, 1), "away");
        assert!(rig.ctx.devices()[0].why.contains("cannot reach"), "{:?}", rig.ctx.devices());
        assert_eq!(logged(&rig, "waits until the target is back"), 1, "once");
        target.start();
        assert_eq!(sync.await, Ok(true));
        assert_eq!(state(&rig, 1), "present");
        rig.ctx.release_files();
    });
}

#[test]
fn lost_target_fails_at_once_also_what_waits_for_it() {
    run(1012, setup(), |rig| async move {
        let [gone, other] = both(&rig);
        for file in [&gone, &other] {
            rig.write(file, 0, &[1; 3 * BLOCK]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
        }
        rig.server.targets[0].kill();
        rig.write(&gone, 0, &[2; BLOCK]).await.unwrap();
        let (reads, syncs) = (gone.clone(), gone.clone());
        let read = rig.env.spawn_join(async move { reads.read(BLOCK_U64, BLOCK).await.err() });
        let sync = rig.env.spawn_join(async move { syncs.fsync(false).await });
        rig.env.sleep(Duration::from_secs(2)).await;
        let zones: Vec<_> = [1, 2].map(|id| rig.ctx.disks.get(HOME, PagId(id)).unwrap()).into();
        let zones = zones.iter().map(|zone| zone.info().clone()).collect();
        let lost = ZoneList { zones, lost: vec![PagId(1)], leaving: Vec::new() };
        rig.ctx.zones_reported(HOME, &lost);
        let begun = rig.env.now();
        assert_eq!(read.await, Some(Fault::Io));
        assert_eq!(sync.await, Err(Fault::Io));
        assert_eq!(gone.read(0, BLOCK).await.err(), Some(Fault::Io));
        assert_eq!(rig.write(&gone, 0, &[4; BLOCK]).await, Err(Fault::Io));
        assert!(rig.env.now().since(begun) < Duration::from_millis(500), "at once");
        assert_eq!(state(&rig, 1), "lost");
        assert!(other.read(0, BLOCK).await.unwrap().to_vec() == [1; BLOCK]);
        // It is found again: the write that waited does not come any more.
        rig.server.targets[0].start();
        rig.ctx.zones_reported(HOME, &ZoneList { lost: Vec::new(), ..lost });
        rig.write(&gone, 0, &[6; BLOCK]).await.unwrap();
        assert_eq!(gone.fsync(false).await, Ok(true));
        rig.env.sleep(Duration::from_secs(5)).await;
        assert_eq!(rig.server.seen(Ino(2))[..2 * BLOCK], [[6; BLOCK], [1; BLOCK]].concat());
        rig.finish(2048).await;
    });
}

/// How far a write was when its zone was called lost.
#[derive(Clone, Copy, PartialEq, Debug)]
enum GivenUp {
    Unsent,
    Sent,
    Answered,
}

/// Its bytes are reported as lost. Then another client writes the blocks, and makes that durable.
#[test]
fn write_given_up_with_a_lost_zone_never_falls_on_what_others_wrote_since() {
    for (seed, case) in (1021..).zip([GivenUp::Unsent, GivenUp::Sent, GivenUp::Answered]) {
        run(seed, setup(), move |rig| async move {
            let file = rig.file(2);
            rig.write(&file, 0, &[1; 3 * BLOCK]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
            let target = rig.server.targets[0].clone();
            match case {
                GivenUp::Unsent => target.kill(),
                GivenUp::Sent => target.hold_writes(true),
                GivenUp::Answered => target.set_stalled(true),
            }
            rig.env.sleep(Duration::from_millis(100)).await;
            let writes = target.counts.borrow().writes;
            rig.write(&file, 0, &[2; 2 * BLOCK]).await.unwrap();
            file.launch_all();
            rig.env.sleep(Duration::from_millis(100)).await;
            let answered = target.counts.borrow().writes > writes;
            assert_eq!(answered, case == GivenUp::Answered);
            target.kill();
            let info = rig.ctx.disks.get(HOME, PagId(1)).unwrap().info().clone();
            let (zones, leaving) = (vec![info], Vec::new());
            let lost = ZoneList { zones, lost: vec![PagId(1)], leaving };
            rig.ctx.zones_reported(HOME, &lost);
            // The commit by age may have found it before.
            let _ = file.fsync(false).await;
            assert!(file.error_seq() > 0, "{case:?}: handles report it");
            assert_eq!(file.given_up.is_any(), case == GivenUp::Sent, "{case:?}");
            rig.ctx.zones_reported(HOME, &ZoneList { lost: Vec::new(), ..lost });
            let waits = file.clone();
            let ended = rig.env.spawn_join(async move { waits.given_up.ended().await });
            rig.env.sleep(Duration::from_secs(20)).await;
            assert_eq!(ended.is_ready(), case != GivenUp::Sent, "no right goes before");
            let other = [9; BLOCK].to_vec();
            target.disk.borrow_mut().blocks.insert((types::ObjectId(2), 0), other);
            target.hold_writes(false);
            target.set_stalled(false);
            target.start();
            ended.await;
            rig.env.sleep(Duration::from_secs(5)).await;
            let seen = rig.server.seen(Ino(2))[..2 * BLOCK].to_vec();
            assert!(seen == [[9; BLOCK], [1; BLOCK]].concat(), "{case:?}");
            rig.write(&file, 0, &[3; BLOCK]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true), "the session goes on");
            assert_eq!(rig.server.seen(Ino(2))[..BLOCK], [3; BLOCK]);
            rig.finish(2048).await;
        });
    }
}

/// The session keeps what a restart loses, but the target may refuse to have it again.
#[test]
fn write_that_a_target_cannot_repeat_is_reported_as_lost() {
    for refuses in [false, true] {
        run(1013, setup(), |rig| async move {
            let [file, other] = both(&rig);
            let target = rig.server.targets[0].clone();
            target.set_stalled(true);
            rig.write(&file, 0, &[1; 3 * BLOCK]).await.unwrap();
            rig.write(&other, 0, &[1; 3 * BLOCK]).await.unwrap();
            file.launch_all();
            other.launch_all();
            rig.env.sleep(Duration::from_millis(100)).await;
            assert_eq!(target.blocks_of(2), [0, 1, 2]);
            target.refuses_replays.set(refuses);
            target.restart();
            target.set_stalled(false);
            rig.env.sleep(Duration::from_secs(1)).await;
            // The commit by age may have found it before.
            let _ = file.fsync(false).await;
            assert_eq!(file.error_seq() > 0, refuses, "handles report it");
            assert_eq!(logged(&rig, "inode 2: written data is lost"), usize::from(refuses));
            assert_eq!(other.fsync(false).await, Ok(true), "another target");
            assert_eq!(other.error_seq(), 0);
            assert_eq!(target.blocks_of(2).is_empty(), refuses);
            target.refuses_replays.set(false);
            rig.write(&file, 0, &[2; BLOCK]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true), "it is reported once");
        });
    }
}

#[test]
fn target_that_breaks_its_promise_fails_fsync_and_what_was_cut_off_does_not_come_back() {
    run(1014, setup(), |rig| async move {
        let file = rig.file(2);
        rig.write(&file, 0, &[1; 4 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        let target = rig.server.targets[0].clone();
        target.room.set(4);
        file.set_size(0).await.unwrap();
        rig.write(&file, 0, &[2; 6 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        assert_eq!(logged(&rig, "no space left"), 1);
        assert!(file.read(0, 6 * BLOCK).await.unwrap().to_vec() == [0; 6 * BLOCK]);
        target.room.set(100);
        rig.write(&file, 4 * BLOCK_U64, &[3; 10]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        let mut want = vec![0; 6 * BLOCK];
        want[4 * BLOCK..4 * BLOCK + 10].fill(3);
        assert!(rig.server.seen(Ino(2)) == want);
        rig.finish(2048).await;
    });
}

#[test]
fn old_capability_is_fetched_anew_once_and_a_fenced_client_gets_errors() {
    run(1015, setup(), |rig| async move {
        let file = rig.file(2);
        rig.write(&file, 0, &[1; 4 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        let target = rig.server.targets[0].clone();
        target.epoch_min.set(2);
        rig.server.epoch.set(2);
        let before = rig.server.layouts.get();
        assert!(file.read(0, BLOCK).await.unwrap().to_vec() == [1; BLOCK]);
        rig.write(&file, 0, &[2; BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        assert_eq!(rig.server.layouts.get(), before + 1, "one layout has the new one");
        target.fenced.borrow_mut().insert(ClientId(5));
        let denied = target.counts.borrow().denied;
        assert_eq!(file.read(0, BLOCK).await.err(), Some(Fault::Io));
        assert_eq!(target.counts.borrow().denied, denied + 2);
        rig.write(&file, 0, &[3; BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        assert!(logged(&rig, "do both have the same key?") > 0);
        assert!(rig.server.seen(Ino(2))[..BLOCK] == [2; BLOCK]);
    });
}

#[test]
fn wrong_bit_on_the_way_is_sent_again_and_one_that_stays_is_an_error_with_its_block() {
    run(1016, setup(), |rig| async move {
        let file = rig.file(2);
        let target = rig.server.targets[0].clone();
        target.flips.set(2);
        rig.write(&file, 0, &[1; 4 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        assert!(rig.server.seen(Ino(2)) == [1; 4 * BLOCK]);
        target.flips.set(2);
        assert!(file.read(0, 4 * BLOCK).await.unwrap().to_vec() == [1; 4 * BLOCK]);
        target.flips.set(99);
        assert_eq!(file.read(0, 4 * BLOCK).await.err(), Some(Fault::Io));
        assert_eq!(logged(&rig, "object 2, block 3"), 1, "{:?}", rig.server.log.borrow());
        rig.write(&file, 0, &[2; BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
    });
}

#[test]
fn block_that_is_damaged_at_the_target_is_named() {
    run(1018, setup(), |rig| async move {
        let file = rig.file(2);
        let target = rig.server.targets[0].clone();
        rig.write(&file, 0, &[1; 16 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        for damaged in [0, 11, 15] {
            target.damaged.set(Some(damaged));
            assert_eq!(file.read(0, 16 * BLOCK).await.err(), Some(Fault::Io));
            let named = format!("object 2, block {damaged} is damaged");
            assert_eq!(logged(&rig, &named), 1, "{:?}", rig.server.log.borrow());
        }
    });
}

#[test]
fn bytes_are_pinned_until_the_target_has_them_durably() {
    run(1017, setup(), |rig| async move {
        let file = rig.file(2);
        let target = rig.server.targets[0].clone();
        let status = || rig.ctx.devices()[0].target.clone().unwrap();
        target.set_stalled(true);
        rig.write(&file, 0, &[1; 8 * BLOCK]).await.unwrap();
        file.launch_all();
        rig.env.sleep(Duration::from_millis(50)).await;
        let pinned = status();
        assert!(pinned.pinned_bytes >= 8 * BLOCK_U64 && pinned.pinned_requests > 0, "{pinned:?}");
        assert!(pinned.transno > pinned.last_committed);
        assert_eq!(pinned.address, "ost1:1");
        target.set_stalled(false);
        rig.env.sleep(Duration::from_secs(3)).await;
        let free = status();
        assert_eq!((free.pinned_bytes, free.pinned_requests), (0, 0), "{free:?}");
        assert_eq!(free.transno, free.last_committed);
    });
}

/// As the clients of paper 001. No flush of a commit, nor a renewal, says it earlier.
#[test]
fn bytes_at_a_quiet_target_are_pinned_until_the_ping() {
    let commit = CommitPolicy { max_age: Duration::from_secs(60), ..CommitPolicy::default() };
    let target_ping = Some(Duration::from_millis(700));
    run(1017, Setup { target_ping, commit, ..setup() }, |rig| async move {
        let file = rig.file(2);
        let target = rig.server.targets[0].clone();
        target.quiet.set(true);
        let pinned = || rig.ctx.devices()[0].target.clone().unwrap().pinned_bytes;
        rig.write(&file, 0, &[1; 8 * BLOCK]).await.unwrap();
        file.launch_all();
        rig.env.sleep(Duration::from_millis(600)).await;
        target.make_durable();
        rig.env.sleep(Duration::from_millis(80)).await;
        assert!(pinned() >= 8 * BLOCK_U64);
        rig.env.sleep(Duration::from_millis(120)).await;
        assert_eq!((pinned(), target.counts.borrow().syncs), (0, 0));
    });
}

/// The client's session at the metadata server is lost while a write of it waits for a target.
#[test]
fn write_of_a_lost_session_never_follows_one_of_the_next() {
    run(1018, setup(), |rig| async move {
        let file = rig.file(2);
        rig.write(&file, 0, &[1; 2 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        let target = rig.server.targets[0].clone();
        target.kill();
        rig.write(&file, 0, &[2; 2 * BLOCK]).await.unwrap();
        file.launch_all();
        rig.env.sleep(Duration::from_secs(1)).await;
        rig.ctx.evicted(HOME, ClientId(5));
        rig.acquire(&file);
        rig.write(&file, 0, &[3; 2 * BLOCK]).await.unwrap();
        file.launch_all();
        target.start();
        assert_eq!(file.fsync(false).await, Ok(true));
        rig.write(&file, 0, &[4; BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        rig.env.sleep(Duration::from_secs(3)).await;
        assert_eq!(rig.server.seen(Ino(2)), [[4; BLOCK], [3; BLOCK]].concat());
    });
}

/// A target that has forgotten the client has also lost what was not durable, and nothing else.
#[test]
fn lost_session_with_a_target_loses_what_was_not_durable_and_no_more() {
    for durable in [false, true] {
        run(1019, setup(), |rig| async move {
            let file = rig.file(2);
            let target = rig.server.targets[0].clone();
            target.set_stalled(true);
            rig.write(&file, 0, &[1; 3 * BLOCK]).await.unwrap();
            let syncs = file.clone();
            let sync = rig.env.spawn_join(async move { syncs.fsync(false).await });
            rig.env.sleep(Duration::from_millis(500)).await;
            assert!(!sync.is_ready(), "the target does not answer the flush");
            assert_eq!(target.blocks_of(2), [0, 1, 2]);
            if durable {
                target.make_durable();
            }
            target.restart_as_stranger();
            target.set_stalled(false);
            assert_eq!(sync.await, if durable { Ok(true) } else { Err(Fault::Io) });
            assert_eq!(target.blocks_of(2).len(), if durable { 3 } else { 0 });
            assert_eq!(rig.ctx.devices()[0].target.as_ref().unwrap().evictions, 1);
            rig.write(&file, 0, &[2; BLOCK]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
            assert!(rig.server.seen(Ino(2))[..BLOCK] == [2; BLOCK]);
        });
    }
}

#[test]
fn killed_reader_of_an_absent_target_is_released() {
    run(1020, setup(), |rig| async move {
        let file = rig.file(2);
        rig.write(&file, 0, &[1; BLOCK]).await.unwrap();
        file.flush().await.unwrap();
        rig.server.targets[0].kill();
        rig.env.sleep(Duration::from_secs(1)).await;
        let shared = rig.ctx.waits.shared().clone();
        let (steps, reads) = (shared.clone(), file.clone());
        let read = rig.env.spawn_join(async move {
            let mut read = Box::pin(reads.read(0, BLOCK));
            let step = |cx: &mut std::task::Context<'_>| steps.step(7, || read.as_mut().poll(cx));
            std::future::poll_fn(step).await.err()
        });
        rig.env.sleep(Duration::from_secs(1)).await;
        assert!(!read.is_ready());
        shared.note_gone(7);
        rig.ctx.give_up(7);
        assert_eq!(read.await, Some(Fault::Interrupted));
        rig.server.targets[0].start();
        assert!(file.read(0, BLOCK).await.unwrap().to_vec() == [1; BLOCK]);
    });
}

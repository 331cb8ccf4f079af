//! Room that targets keep for what a client has accepted.

use super::*;

fn setup() -> Setup {
    Setup { disks: 0, targets: 2, stripe: (2, 2), ..Setup::default() }
}

/// What a target keeps for this client.
fn promised(rig: &Rig, nth: usize) -> u64 {
    rig.server.targets[nth].promises.borrow().values().map(|(_, blocks)| blocks).sum()
}

fn counts(rig: &Rig, nth: usize) -> (u64, u64) {
    let status = rig.ctx.devices()[nth].target.clone().unwrap();
    (status.granted_blocks, status.taken_blocks)
}

#[test]
fn full_target_refuses_the_write_and_takes_writes_over_what_it_has() {
    run(1100, setup(), |rig| async move {
        let file = rig.file(2);
        rig.server.targets.iter().for_each(|target| target.room.set(3));
        rig.write(&file, 0, &[1; 4 * BLOCK]).await.unwrap();
        let full = rig.write(&file, 4 * BLOCK_U64, &[2; 4 * BLOCK]).await;
        assert_eq!(full, Err(Fault::NoSpace), "two blocks for each target, and one has room");
        rig.write(&file, 4 * BLOCK_U64, &[3; BLOCK]).await.unwrap();
        rig.write(&file, 6 * BLOCK_U64, &[3; BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true), "what was accepted has room");
        assert_eq!(rig.write(&file, 5 * BLOCK_U64, &[4; 9]).await, Err(Fault::NoSpace));
        for round in 5..8 {
            if round == 7 {
                // Another client recalls the file: what the targets have is not known any more.
                file.flush().await.unwrap();
                file.rights_lost(Rights::empty());
                rig.acquire(&file);
            }
            rig.write(&file, 0, &[round; 4 * BLOCK]).await.unwrap();
            rig.write(&file, 4 * BLOCK_U64 + 7, &[round; 99]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
        }
        assert!(rig.server.seen(Ino(2))[..4 * BLOCK] == [7; 4 * BLOCK]);
        file.set_size(0).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        rig.env.sleep(Duration::from_secs(3)).await;
        rig.write(&file, 0, &[8; 4 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true), "what was cut off has given its room back");
        rig.finish(2048).await;
    });
}

#[test]
fn room_is_spent_by_writes_and_given_back_by_an_idle_client() {
    run(1101, setup(), |rig| async move {
        let file = rig.file(2);
        rig.write(&file, 0, &[1; 6 * BLOCK]).await.unwrap();
        let (granted, taken) = counts(&rig, 0);
        assert!(granted > 4 && taken > 0, "{granted} {taken}");
        assert_eq!(file.fsync(false).await, Ok(true));
        assert_eq!(counts(&rig, 0), (granted - 4, 0), "blocks 0, 1, 4 and 5 are there");
        assert!(promised(&rig, 0) >= granted - 4);
        rig.write(&file, 0, &[2; 6 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        assert_eq!(counts(&rig, 0), (granted - 4, 0), "written again, they take no room");
        assert_eq!(promised(&rig, 0), granted - 4, "both sides count the same");
        file.set_size(0).await.unwrap();
        rig.write(&file, 0, &[3; BLOCK]).await.unwrap();
        assert_eq!(counts(&rig, 0).1, 1, "a block that was cut off takes room again");
        file.set_size(0).await.unwrap();
        assert_eq!(counts(&rig, 0).1, 0, "what is cut off before it is written needs none");
        rig.env.sleep(Duration::from_secs(31)).await;
        assert_eq!((counts(&rig, 0), counts(&rig, 1)), ((0, 0), (0, 0)));
        assert_eq!((promised(&rig, 0), promised(&rig, 1)), (0, 0));
        rig.finish(2048).await;
    });
}

#[test]
fn room_is_stated_anew_to_a_target_that_was_restarted() {
    run(1102, setup(), |rig| async move {
        let file = rig.file(2);
        let target = rig.server.targets[0].clone();
        target.set_stalled(true);
        rig.write(&file, 0, &[1; 2 * BLOCK]).await.unwrap();
        file.launch_all();
        rig.env.sleep(Duration::from_millis(300)).await;
        let (granted, _) = counts(&rig, 0);
        target.restart();
        assert_eq!(promised(&rig, 0), 0);
        target.set_stalled(false);
        rig.write(&file, 4 * BLOCK_U64, &[2; BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        assert!(target.counts.borrow().replays > 0, "the first write was not durable");
        assert_eq!(counts(&rig, 0), (granted - 1, 0));
        assert!(promised(&rig, 0) >= granted - 1);
        rig.write(&file, 4 * BLOCK_U64, &[3; BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        assert_eq!(promised(&rig, 0), granted - 1, "the next write corrects what is kept");
        rig.finish(2048).await;
    });
}

#[test]
fn writers_that_wait_for_spent_room_do_not_ask_until_some_is_spent() {
    let setup = Setup { disks: 0, targets: 1, stripe: (2, 1), ..Setup::default() };
    run(1103, setup, |rig| async move {
        let target = rig.server.targets[0].clone();
        target.room.set(10);
        target.hold_writes(true);
        let first = rig.file(2);
        rig.write(&first, 0, &[1; 8 * BLOCK]).await.unwrap();
        first.launch_all();
        let writers: Vec<_> = (3..6)
            .map(|ino| {
                let (file, ctx) = (rig.file(ino), rig.ctx.clone());
                rig.env.spawn_join(async move {
                    let data = IoBuf::copy_of(&[2; 4 * BLOCK]);
                    let written = file.write(Some(0), data, 4 * BLOCK, None).await;
                    drop(ctx);
                    (file, written)
                })
            })
            .collect();
        rig.env.sleep(Duration::from_secs(2)).await;
        let refused = target.counts.borrow().reserves;
        assert!((4..=5).contains(&refused), "each is refused once: {refused} requests");
        target.room.set(100);
        target.hold_writes(false);
        for writer in writers {
            let (file, written) = writer.await;
            assert_eq!(written.map(|(_, len)| len), Ok(4 * BLOCK as u32));
            assert_eq!(file.fsync(false).await, Ok(true));
        }
        let all = target.counts.borrow().reserves;
        assert!(all <= refused + 8, "{all} requests");
        rig.finish(2048).await;
    });
}

#[test]
fn room_ahead_is_given_back_at_once_to_a_target_that_asks_for_it() {
    run(1104, setup(), |rig| async move {
        let file = rig.file(2);
        rig.server.targets[0].hold_writes(true);
        rig.write(&file, 0, &[1; 6 * BLOCK]).await.unwrap();
        let (granted, taken) = counts(&rig, 0);
        assert!(granted > 1000 && taken == 4, "{granted} {taken}");
        rig.server.targets[0].ask_for_room();
        rig.env.sleep(Duration::from_millis(50)).await;
        assert_eq!((counts(&rig, 0), promised(&rig, 0)), ((taken, taken), taken));
        rig.server.targets[0].hold_writes(false);
        assert!(counts(&rig, 1).0 > 1000, "the other target asked for nothing");
        assert_eq!(file.fsync(false).await, Ok(true), "what was accepted has room");
        assert_eq!(promised(&rig, 0), 0);
        rig.write(&file, 16 * BLOCK_U64, &[2; 4 * BLOCK]).await.unwrap();
        assert_eq!(file.fsync(false).await, Ok(true));
        rig.finish(2048).await;
    });
}

#[test]
fn file_system_without_a_zone_has_no_space() {
    let setup = Setup { disks: 0, ..Setup::default() };
    let undelegated = Setup { disks: 0, ..Setup::default().undelegated() };
    for setup in [setup, undelegated] {
        run(1106, setup, |rig| async move {
            let file = rig.file(2);
            for _ in 0..2 {
                let full = rig.write(&file, 0, &[1; 4 * BLOCK]).await;
                assert_eq!(full, Err(Fault::NoSpace));
            }
            let log = rig.server.log.borrow();
            let said = log.iter().filter(|line| line.contains("`redbud pag add"));
            assert_eq!(said.count(), 1, "{log:?}");
        });
    }
}

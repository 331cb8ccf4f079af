//! Free blocks that a target keeps for its clients.

use proto::capability::WRITE;
use proto::ost::{Op, OpReply, Statement};
use redbud_ost::server::MEMORY_MIN;
use types::{Duration, Fault};

use super::bed::{Bed, Client, LEASE, run};

/// Asks for room: so much is needed, so much is wanted.
async fn reserve(client: &Client, said: (u64, u64), sizes: (u64, u64)) -> Result<u64, Fault> {
    let room = Statement { number: said.0, blocks: said.1, asked: 0 };
    let may = client.may(1, WRITE);
    let op = Op::Reserve { may, room, needed: sizes.0, wanted: sizes.1 };
    match client.call(op, false).await? {
        OpReply::Room { blocks } => Ok(blocks),
        other => panic!("{other:?}"),
    }
}

/// A write to the client's own object that leaves so much of what is kept for the client.
async fn spend(client: &Client, at: u64, len: u64, left: (u64, u64)) -> Result<(), Fault> {
    let mut op = client.write_op(client.number.0, at, len, 1);
    if let Op::Write { room, .. } = &mut op {
        *room = Statement { number: left.0, blocks: left.1, asked: 0 };
    }
    client.call(op, false).await.map(drop)
}

async fn free(bed: &Bed) -> u64 {
    bed.status("free").await
}

#[test]
fn what_is_kept_for_a_client_no_other_one_takes() {
    run(40, |bed| async move {
        let (a, b) = (bed.client("a", 7).await, bed.client("b", 8).await);
        // So that the metadata could map all that is free.
        for at in 0..30 {
            b.write(3, at * 256, 256, 1, false).await.unwrap();
        }
        let all = free(&bed).await;
        assert_eq!(reserve(&a, (1, 0), (100, u64::MAX)).await, Ok(all / 4), "not all to the first");
        let given = reserve(&a, (2, all / 4), (all - all / 4 - 10, all)).await.unwrap();
        assert_eq!(given, all - all / 4 - 10);
        assert_eq!(reserve(&b, (1, 0), (11, 11)).await, Err(Fault::NoSpace));
        assert_eq!(b.write(2, 0, 11, 1, false).await, Err(Fault::NoSpace));
        b.write(2, 0, 10, 1, false).await.unwrap();
        b.write(2, 0, 10, 2, false).await.unwrap();
        spend(&a, 0, 200, (3, all - 210)).await.unwrap();
        assert_eq!(b.write(2, 20, 1, 1, false).await, Err(Fault::NoSpace));
        assert_eq!(reserve(&b, (2, 0), (1, 1)).await, Err(Fault::NoSpace));
        // An older statement that arrives late, and then a client that gives back.
        let hold = |number, blocks| Op::Hold { room: Statement { number, blocks, asked: 0 } };
        a.call(hold(2, 0), false).await.unwrap();
        assert_eq!(b.write(2, 20, 1, 1, false).await, Err(Fault::NoSpace));
        a.call(hold(4, all), false).await.unwrap();
        a.call(hold(5, 50), false).await.unwrap();
        assert_eq!(bed.status("promised_blocks").await, 50);
        b.write(2, 20, 100, 1, false).await.unwrap();
        a.session.close().await;
        assert_eq!(bed.status("promised_blocks").await, 0, "who leaves keeps nothing");
    });
}

/// Each write counts the others that are in flight as not made yet. What others have is not touched
/// by that, and nothing stays behind.
#[test]
fn writes_in_flight_together_leave_the_room_of_others_alone() {
    run(43, |bed| async move {
        let (a, b) = (bed.client("a", 7).await, bed.client("b", 8).await);
        let mut at = 0;
        while free(&bed).await > 1024 {
            let len = (free(&bed).await - 1024).min(256);
            b.write(3, at, len, 1, false).await.unwrap();
            at += len;
        }
        assert_eq!(reserve(&a, (1, 0), (512, 512)).await, Ok(512));
        assert_eq!(reserve(&b, (1, 0), (512, 512)).await, Ok(512));
        let both = [(0, (2, 256)), (256, (3, 256))].map(|(at, left)| {
            let a = a.clone();
            bed.env.spawn_join(async move { spend(&a, at, 256, left).await })
        });
        for write in both {
            write.await.unwrap();
        }
        assert_eq!(bed.status("promised_blocks").await, 512, "of the other client");
        spend(&b, 0, 256, (2, 256)).await.unwrap();
        spend(&b, 256, 256, (3, 0)).await.unwrap();
        assert_eq!(bed.status("promised_blocks").await, 0);
        assert_eq!(a.write(9, 0, 1, 1, false).await, Err(Fault::NoSpace), "it is full");
    });
}

#[test]
fn after_a_restart_nothing_is_promised_before_the_clients_are_back() {
    run(41, |bed| async move {
        let (a, b) = (bed.client("a", 7).await, bed.client("b", 8).await);
        reserve(&a, (1, 0), (1000, 1000)).await.unwrap();
        b.write(2, 0, 1, 1, true).await.unwrap();
        bed.world.block("ost", "a");
        bed.restart().await;
        let asks = b.clone();
        let asked = bed.env.spawn_join(async move { reserve(&asks, (1, 0), (1, 1)).await });
        bed.env.sleep(Duration::from_secs(1)).await;
        assert!(!asked.is_ready(), "the other client may have been promised everything");
        bed.world.heal();
        a.sync().await.unwrap();
        assert_eq!(asked.await, Ok(1));
        // One that never comes back is waited for one lease.
        bed.world.block("ost", "a");
        bed.restart().await;
        let begin = bed.env.now();
        assert_eq!(reserve(&b, (2, 1), (1, 1)).await, Ok(1));
        assert!(bed.env.now().since(begin) <= LEASE + Duration::from_secs(2));
        bed.world.heal();
    });
}

/// The hole that made the room was not durable, and its client repeats it last.
#[test]
fn after_a_restart_a_client_keeps_room_that_another_one_has_yet_to_free_again() {
    run(44, |bed| async move {
        bed.commit_interval.set(Duration::from_secs(60));
        bed.restart().await;
        let (a, b) = (bed.client("a", 7).await, bed.client("b", 8).await);
        let mut at = 0;
        while free(&bed).await > 0 {
            let len = free(&bed).await.min(256);
            b.write(3, at, len, 1, false).await.unwrap();
            at += len;
        }
        b.sync().await.unwrap();
        b.call(Op::Punch { may: b.may(3, WRITE), from: 0, to: 1024 }, false).await.unwrap();
        assert_eq!(reserve(&a, (1, 0), (1000, 1000)).await, Ok(1000));
        a.reports.hold.set(Some(Statement { number: 2, blocks: 1000, asked: 0 }));
        bed.kill();
        bed.world.partition("b", "ost");
        bed.start().await;
        a.empty_sync().await.unwrap();
        assert_eq!(free(&bed).await, 0, "the hole is lost so far");
        bed.world.heal();
        assert_eq!(reserve(&b, (1, 0), (25, 25)).await, Err(Fault::NoSpace));
        assert_eq!(reserve(&b, (2, 0), (24, 24)).await, Ok(24));
        for nth in 0..4 {
            spend(&a, nth * 250, 250, (3 + nth, 750 - nth * 250)).await.unwrap();
        }
        assert_eq!(bed.status("promised_blocks").await, 24);
    });
}

#[test]
fn requests_for_room_that_make_no_sense_are_refused() {
    run(42, |bed| async move {
        let a = bed.client("a", 7).await;
        assert_eq!(reserve(&a, (0, 0), (1, 1)).await, Err(Fault::Invalid), "no number");
        assert_eq!(reserve(&a, (1, 0), (2, 1)).await, Err(Fault::Invalid), "needs what it refuses");
        assert_eq!(reserve(&a, (1, 0), (u64::MAX, u64::MAX)).await, Err(Fault::NoSpace));
        let may = a.may(1, proto::capability::READ);
        let room = Statement { number: 2, blocks: 0, asked: 0 };
        let op = Op::Reserve { may, room, needed: 1, wanted: 1 };
        assert_eq!(a.call(op, false).await.err(), Some(Fault::AccessDenied));
        let op = Op::Hold { room: Statement { number: 3, blocks: u64::MAX, asked: 1 } };
        a.call(op, false).await.unwrap();
        spend(&a, 0, 1, (4, u64::MAX)).await.unwrap();
        spend(&a, 1, 1, (5, u64::MAX)).await.unwrap();
        assert_eq!(bed.status("promised_blocks").await, 0, "saying so gets nobody anything");
        let b = bed.client("b", 8).await;
        assert_eq!(reserve(&b, (1, 0), (1, 1)).await, Ok(1));
    });
}

/// What is kept for a client that is not back is known to nobody.
#[test]
fn after_a_restart_no_write_beyond_its_room_takes_that_of_a_client_that_is_not_back() {
    run(45, |bed| async move {
        let (a, b) = (bed.client("a", 7).await, bed.client("b", 8).await);
        let mut at = 0;
        while free(&bed).await > 500 {
            let len = (free(&bed).await - 500).min(256);
            b.write(3, at, len, 1, false).await.unwrap();
            at += len;
        }
        b.sync().await.unwrap();
        assert_eq!(reserve(&a, (1, 0), (500, 500)).await, Ok(500));
        a.reports.hold.set(Some(Statement { number: 2, blocks: 500, asked: 0 }));
        bed.world.block("ost", "a");
        bed.restart().await;
        let writes = b.clone();
        let beyond = bed.env.spawn_join(async move { writes.write(2, 0, 1, 1, false).await });
        bed.env.sleep(Duration::from_secs(1)).await;
        assert!(!beyond.is_ready(), "the other client has room there");
        b.write(3, 0, 256, 2, false).await.unwrap();
        assert!(!beyond.is_ready(), "what is there already needs no room");
        bed.world.heal();
        a.empty_sync().await.unwrap();
        assert_eq!(beyond.await, Err(Fault::NoSpace));
        spend(&a, 0, 250, (3, 250)).await.unwrap();
        spend(&a, 250, 250, (4, 0)).await.unwrap();
    });
}

/// Content that waits for a client to be back must not keep what that client repeats away.
#[test]
fn writes_that_wait_for_a_client_leave_memory_for_what_it_repeats() {
    run(46, |bed| async move {
        bed.memory.set(MEMORY_MIN);
        bed.commit_interval.set(Duration::from_secs(60));
        bed.restart().await;
        let (a, b) = (bed.client("a", 7).await, bed.client("b", 8).await);
        a.write(1, 0, 256, 1, false).await.unwrap();
        bed.kill();
        bed.world.partition("a", "ost");
        bed.start().await;
        let writes: Vec<_> = (0..5)
            .map(|nth| {
                let b = b.clone();
                bed.env.spawn_join(async move { b.write(2, nth * 256, 256, 1, false).await })
            })
            .collect();
        bed.env.sleep(Duration::from_secs(1)).await;
        let for_reads = MEMORY_MIN as u64 / 4;
        assert_eq!(bed.status("memory_free").await, for_reads, "the writes hold the rest");
        let begin = bed.env.now();
        bed.world.heal();
        a.sync().await.unwrap();
        assert!(bed.env.now().since(begin) < LEASE / 2, "it waited for the end of the recovery");
        for write in writes {
            write.await.unwrap();
        }
        assert!(a.has(1, 0, 256, 1).await);
    });
}

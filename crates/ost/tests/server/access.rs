//! Capabilities, epochs and fences.

use std::cell::Cell;
use std::rc::Rc;

use proto::capability::{Capability, READ, SERVE, TargetKey, WRITE};
use proto::ost::Op;
use redbud_ost::server::MEMORY_MIN;
use types::{ClientId, Duration, Epoch, Fault, ObjectId, Uuid};

use super::bed::{Bed, Client, FS, KEY, key, run};

async fn refused(client: &Client, may: Capability) {
    let ops = [
        Op::Read { may, block: 0, len: 1 },
        Op::Runs { may, from: 0, max: 1 },
        Op::Punch { may, from: 0, to: 1 },
        Op::Destroy { may, objects: vec![ObjectId(5)] },
        Op::Fence { may, client: ClientId(99) },
        match client.write_op(5, 0, 1, 9) {
            Op::Write { block, data, sums, room, .. } => Op::Write { may, block, data, sums, room },
            _ => unreachable!("it is a write"),
        },
    ];
    for op in ops {
        let allowed = match op {
            Op::Read { .. } | Op::Runs { .. } => READ,
            Op::Destroy { .. } | Op::Fence { .. } => SERVE,
            _ => WRITE,
        };
        if may.rights & allowed == 0 || !key().is_genuine(&may) {
            assert_eq!(client.call(op, false).await, Err(Fault::AccessDenied));
        }
    }
}

#[test]
fn forged_foreign_and_lesser_capabilities_are_refused() {
    run(1, |bed| async move {
        let client = bed.client("a", 7).await;
        client.write(5, 0, 1, 1, true).await.unwrap();
        let good = client.may(5, READ | WRITE);
        let foreign = [TargetKey::new(KEY, Uuid([1; 16])), TargetKey::new([4; 32], FS)];
        for may in foreign.map(|key| key.issue(ObjectId(5), client.number, READ | WRITE, Epoch(1)))
        {
            refused(&client, may).await;
        }
        refused(&client, Capability { mac: [0; 16], ..good }).await;
        refused(&client, Capability { object: ObjectId(6), ..good }).await;
        refused(&client, Capability { rights: READ | WRITE | SERVE, ..good }).await;
        refused(&client, Capability { epoch: Epoch(9), ..good }).await;
        for rights in [0, READ, WRITE, SERVE] {
            refused(&client, client.may(5, rights)).await;
        }
        assert!(client.has(5, 0, 1, 1).await, "nothing was changed");
        assert_eq!(bed.status("capabilities_refused").await, 6 * 6 + 6 + 4 + 4 + 4);
    });
}

#[test]
fn newer_metadata_server_makes_older_capabilities_void_for_ever() {
    run(2, |bed| async move {
        let client = bed.client("a", 7).await;
        let server = bed.client("mds", 0).await;
        client.write(5, 0, 1, 1, true).await.unwrap();
        server.epoch.set(Epoch(3));
        server.serve(|may| Op::Destroy { may, objects: vec![] }).await.unwrap();
        for round in 0..2 {
            client.epoch.set(Epoch(2));
            assert_eq!(client.write(5, 0, 1, 2, true).await, Err(Fault::AccessDenied), "{round}");
            assert_eq!(client.read(5, 0, 1).await, Err(Fault::AccessDenied));
            server.epoch.set(Epoch(2));
            let fenced = server.serve(|may| Op::Fence { may, client: ClientId(7) }).await;
            assert_eq!(fenced, Err(Fault::AccessDenied), "it was replaced");
            client.epoch.set(Epoch(3));
            assert!(client.has(5, 0, 1, 1).await);
            bed.restart().await;
        }
    });
}

/// The client has no newer one, and what was answered must not be lost.
#[test]
fn replay_needs_no_newer_capability() {
    run(3, |bed| async move {
        let client = bed.client("a", 7).await;
        let server = bed.client("mds", 0).await;
        client.write(5, 0, 8, 1, false).await.unwrap();
        bed.kill();
        bed.world.partition("a", "ost");
        bed.start().await;
        server.epoch.set(Epoch(3));
        server.serve(|may| Op::Destroy { may, objects: vec![] }).await.unwrap();
        bed.world.heal();
        client.sync().await.unwrap();
        client.epoch.set(Epoch(3));
        assert!(client.has(5, 0, 8, 1).await);
    });
}

async fn fence(bed: &Bed, server: &Client, number: u64) -> Rc<Cell<bool>> {
    let (server, fenced) = (server.clone(), Rc::new(Cell::new(false)));
    let done = fenced.clone();
    bed.env.spawn(async move {
        server.serve(|may| Op::Fence { may, client: ClientId(number) }).await.unwrap();
        done.set(true);
    });
    bed.wait(200).await;
    fenced
}

#[test]
fn fence_refuses_at_once_and_waits_for_what_is_in_flight() {
    run(4, |bed| async move {
        let (client, other) = (bed.client("a", 7).await, bed.client("b", 8).await);
        let server = bed.client("mds", 0).await;
        client.write(5, 0, 1, 1, true).await.unwrap();
        bed.disk.stall(true);
        let written = Rc::new(Cell::new(false));
        let (task, flag) = (client.clone(), written.clone());
        bed.env.spawn(async move {
            task.write(5, 0, 1, 2, false).await.unwrap();
            flag.set(true);
        });
        bed.wait(100).await;
        let fenced = fence(&bed, &server, 7).await;
        assert!(!fenced.get() && !written.get(), "the device answers nothing");
        assert_eq!(client.write(5, 0, 1, 3, false).await, Err(Fault::AccessDenied));
        assert_eq!(client.read(5, 0, 1).await, Err(Fault::AccessDenied));
        bed.disk.stall(false);
        bed.until("it is fenced", || fenced.get()).await;
        assert!(written.get(), "the write in flight has ended before");
        assert!(other.has(5, 0, 1, 2).await);
        // What others have seen stays, and so does the fence.
        bed.restart().await;
        assert!(other.has(5, 0, 1, 2).await);
        assert_eq!(client.write(5, 0, 1, 3, false).await, Err(Fault::AccessDenied));
        assert!(fence(&bed, &server, 7).await.get(), "once more is no failure");
        let nobody = server.serve(|may| Op::Fence { may, client: ClientId(0) }).await;
        assert_eq!(nobody, Err(Fault::Invalid), "the metadata server itself");
        server.serve(|may| Op::Destroy { may, objects: vec![ObjectId(9)] }).await.unwrap();
    });
}

/// A client that was evicted while the target was away comes first, and repeats nothing.
#[test]
fn restarted_target_changes_nothing_before_it_knows_who_was_evicted() {
    run(6, |bed| async move {
        let (evicted, other) = (bed.client("a", 7).await, bed.client("b", 8).await);
        let server = bed.client("mds", 0).await;
        server.admit().await.unwrap();
        other.write(5, 0, 1, 1, true).await.unwrap();
        evicted.write(5, 0, 1, 2, false).await.unwrap();
        other.write(6, 0, 1, 1, false).await.unwrap();
        bed.kill();
        bed.world.partition("mds", "ost");
        bed.start().await;
        let before = server.session.epoch();
        let tasks = [evicted.clone(), other.clone()];
        let [repeats, goes_on] =
            tasks.map(|client| bed.env.spawn_join(async move { client.sync().await }));
        bed.wait(2000).await;
        assert!(!repeats.is_ready() && !goes_on.is_ready(), "the metadata server may know better");
        let said = |line: &&String| line.contains("until metadata server 0 has named");
        assert_eq!(bed.log.borrow().iter().filter(said).count(), 1);
        assert!(bed.flag("waits_for_metadata_server").await);
        bed.world.heal();
        let late = server.serve(|may| Op::Admit { may, epoch: before }).await;
        assert_eq!(late, Err(Fault::Stale), "what was said to an earlier start");
        assert!(fence(&bed, &server, 7).await.get());
        server.admit().await.unwrap();
        repeats.await.unwrap();
        goes_on.await.unwrap();
        assert!(other.has(5, 0, 1, 1).await && other.has(6, 0, 1, 1).await);
        assert!(!bed.flag("waits_for_metadata_server").await);
    });
}

/// Reads need no word of the metadata server. A client that has to repeat something is not served
/// before that.
#[test]
fn restarted_target_serves_reads_before_it_knows_who_was_evicted() {
    run(7, |bed| async move {
        let (repeats, reads) = (bed.client("a", 7).await, bed.client("b", 8).await);
        let server = bed.client("mds", 0).await;
        server.admit().await.unwrap();
        reads.write(5, 0, 1, 1, true).await.unwrap();
        repeats.write(6, 0, 1, 2, false).await.unwrap();
        bed.kill();
        bed.world.partition("mds", "ost");
        bed.start().await;
        assert!(reads.has(5, 0, 1, 1).await);
        let client = repeats.clone();
        let waits = bed.env.spawn_join(async move { client.has(6, 0, 1, 2).await });
        bed.wait(2000).await;
        assert!(!waits.is_ready(), "its own write comes first");
        assert!(bed.flag("waits_for_metadata_server").await);
        bed.world.heal();
        assert!(fence(&bed, &server, 9).await.get(), "another one");
        server.admit().await.unwrap();
        assert!(waits.await);
    });
}

/// Writes that wait for the metadata server take the memory that there is for writes. Others read
/// all the same, and nobody takes the target for dead because it does not read what is behind them.
#[test]
fn writes_that_wait_for_the_metadata_server_keep_nobody_from_reading() {
    run(9, |bed| async move {
        bed.memory.set(MEMORY_MIN);
        bed.restart().await;
        let (writes, more) = (bed.client("a", 7).await, bed.client("b", 8).await);
        let (reads, server) = (bed.client("c", 9).await, bed.client("mds", 0).await);
        server.admit().await.unwrap();
        reads.write(9, 0, 256, 1, true).await.unwrap();
        bed.kill();
        bed.world.partition("mds", "ost");
        bed.start().await;
        let tasks: Vec<_> = (0..8)
            .map(|nth| {
                let client = if nth < 6 { writes.clone() } else { more.clone() };
                bed.env.spawn_join(async move { client.write(nth, 0, 256, 1, false).await })
            })
            .collect();
        for _ in 0..20 {
            bed.wait(1000).await;
            let read = bed.env.timeout(Duration::from_secs(1), reads.has(9, 0, 256, 1)).await;
            assert_eq!(read, Some(true));
        }
        assert!(tasks.iter().all(|task| !task.is_ready()));
        assert_eq!(bed.status("memory_free").await, MEMORY_MIN as u64 / 4, "there is no more");
        let lost = [&writes, &more, &reads].map(|client| client.session.timing().reconnections);
        assert_eq!(lost, [0; 3], "connections were taken for dead");
        bed.world.heal();
        assert_eq!(server.empty_sync().await, Err(Fault::Evicted), "it was away for a lease");
        server.admit().await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(bed.status("memory_free").await, MEMORY_MIN as u64);
    });
}

/// What a fenced client had written and not made durable before a kill, it cannot repeat.
#[test]
fn fenced_client_repeats_nothing() {
    run(5, |bed| async move {
        let (client, other) = (bed.client("a", 7).await, bed.client("b", 8).await);
        let server = bed.client("mds", 0).await;
        client.write(5, 0, 1, 1, true).await.unwrap();
        client.write(5, 0, 1, 2, false).await.unwrap();
        bed.kill();
        bed.world.partition("a", "ost");
        bed.start().await;
        assert!(other.has(5, 0, 1, 1).await);
        assert!(fence(&bed, &server, 7).await.get());
        bed.world.heal();
        bed.until("it comes back", || client.session.is_connected()).await;
        bed.wait(1000).await;
        assert!(other.has(5, 0, 1, 1).await);
    });
}

/// A client shows that the server was replaced before its successor has come.
#[test]
fn replaced_metadata_server_admits_nobody_after_a_client_has_shown_a_newer_epoch() {
    run(8, |bed| async move {
        let (client, other) = (bed.client("a", 7).await, bed.client("b", 8).await);
        let (old, new) = (bed.client("mds", 0).await, bed.client("mds2", 0).await);
        old.admit().await.unwrap();
        other.write(5, 0, 1, 1, true).await.unwrap();
        bed.kill();
        bed.world.partition("mds", "ost");
        bed.start().await;
        client.epoch.set(Epoch(2));
        client.read(5, 0, 1).await.unwrap();
        bed.world.heal();
        assert_eq!(old.admit().await, Err(Fault::AccessDenied), "it was replaced");
        assert!(bed.flag("waits_for_metadata_server").await);
        new.epoch.set(Epoch(2));
        new.admit().await.unwrap();
        assert!(!bed.flag("waits_for_metadata_server").await);
        // The target keeps what the server itself has shown.
        bed.restart().await;
        client.epoch.set(Epoch(1));
        assert_eq!(client.read(5, 0, 1).await, Err(Fault::AccessDenied));
        assert_eq!(old.admit().await, Err(Fault::AccessDenied));
    });
}

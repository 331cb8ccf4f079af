//! Kills of the target, failures of its device, and what clients repeat.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sim::{DiskAction, DiskFault};
use proto::capability::WRITE;
use proto::ost::Op;
use types::{Fault, ObjectId};

use super::bed::run;

#[test]
fn answered_writes_survive_a_kill_because_clients_repeat_them() {
    run(1, |bed| async move {
        let client = bed.client("a", 7).await;
        client.write(5, 0, 4, 1, true).await.unwrap();
        client.write(5, 2, 4, 2, false).await.unwrap();
        client.call(Op::Punch { may: client.may(5, WRITE), from: 5, to: 6 }, false).await.unwrap();
        bed.restart().await;
        let fresh = bed.client("b", 8).await;
        fresh.write(6, 0, 1, 1, true).await.unwrap();
        client.sync().await.unwrap();
        assert!(client.has(5, 0, 2, 1).await && client.has(5, 2, 3, 2).await);
        assert!(client.has(5, 5, 1, 0).await);
        assert!(client.reports.lost.borrow().is_empty());
    });
}

#[test]
fn stop_makes_everything_durable_and_is_followed_by_a_recovery() {
    run(2, |bed| async move {
        let client = bed.client("a", 7).await;
        client.write(5, 0, 4, 1, false).await.unwrap();
        bed.stop().await;
        bed.start().await;
        assert_eq!(bed.status("writes").await, 0);
        assert!(client.has(5, 0, 4, 1).await);
        assert_eq!(bed.status("writes").await, 0, "nothing had to be repeated");
    });
}

/// The answer is lost with the connection, the write is not.
#[test]
fn executed_request_is_recognised_by_its_kept_reply() {
    run(3, |bed| async move {
        let client = bed.client("a", 7).await;
        bed.world.block("ost", "a");
        let task = client.clone();
        let written = bed.env.spawn_join(async move { task.write(5, 0, 4, 1, true).await });
        bed.wait(2000).await;
        assert!(!written.is_ready());
        bed.kill();
        bed.world.heal();
        bed.start().await;
        written.await.unwrap();
        assert_eq!(bed.status("writes").await, 0, "it was executed once");
        assert!(client.has(5, 0, 4, 1).await);
    });
}

/// A write that is repeated later would make it anew.
#[test]
fn object_is_destroyed_only_when_nobody_may_repeat_writes_to_it() {
    run(4, |bed| async move {
        let (client, server) = (bed.client("a", 7).await, bed.client("mds", 0).await);
        let free = bed.status("free").await;
        client.write(5, 0, 4, 1, false).await.unwrap();
        bed.kill();
        bed.world.partition("a", "ost");
        bed.start().await;
        let destroy =
            async || server.serve(|may| Op::Destroy { may, objects: vec![ObjectId(5)] }).await;
        assert_eq!(destroy().await, Err(Fault::Busy));
        bed.world.heal();
        client.sync().await.unwrap();
        assert!(client.has(5, 0, 4, 1).await);
        destroy().await.unwrap();
        assert!(client.has(5, 0, 4, 0).await);
        assert_eq!(bed.status("free").await, free);
    });
}

#[test]
fn failed_device_stops_the_target_and_its_clients_go_on_after_a_restart() {
    for action in [DiskAction::Write, DiskAction::Flush] {
        run(5, |bed| async move {
            let client = bed.client("a", 7).await;
            client.write(5, 0, 4, 1, true).await.unwrap();
            client.write(5, 4, 4, 1, false).await.unwrap();
            bed.disk.fail(action, 1, DiskFault::Io);
            let task = client.clone();
            let written = bed.env.spawn_join(async move { task.write(5, 8, 4, 1, true).await });
            bed.until("the target stops", || bed.ended.borrow().is_some()).await;
            let why = bed.ended.take().unwrap().unwrap_err().to_string();
            assert!(why.contains("device"), "{why}");
            assert!(!written.is_ready(), "nothing is answered");
            bed.kill();
            bed.disk.clear_faults();
            bed.start().await;
            written.await.unwrap();
            assert!(client.has(5, 0, 12, 1).await);
        });
    }
}

/// Two clients with objects of their own write and punch while the target is killed, and the
/// connections are cut. Every acknowledged change is there in the end.
#[test]
fn no_acknowledged_change_is_lost_over_kills_and_cuts() {
    for seed in 0..12 {
        run(100 + seed, |bed| async move {
            let stop = Rc::new(Cell::new(false));
            let mut tasks = Vec::new();
            let mut clients = Vec::new();
            for (index, name) in ["a", "b"].into_iter().enumerate() {
                let client = bed.client(name, 7 + index as u64).await;
                clients.push(client.clone());
                for object in [1 + index as u64, 11 + index as u64] {
                    let (client, stop, env) = (client.clone(), stop.clone(), bed.env.clone());
                    let state: Rc<RefCell<BTreeMap<u64, u64>>> = Rc::default();
                    let model = state.clone();
                    let work = bed.env.spawn_join(async move {
                        let mut version = 0;
                        while !stop.get() {
                            version += 1;
                            let (block, len) = (env.random_u64() % 40, 1 + env.random_u64() % 20);
                            let sync = env.random_u64() % 8 == 0;
                            if env.random_u64() % 6 == 0 {
                                let may = client.may(object, WRITE);
                                let op = Op::Punch { may, from: block, to: block + len };
                                client.call(op, sync).await.unwrap();
                                model
                                    .borrow_mut()
                                    .retain(|at, _| !(block..block + len).contains(at));
                            } else {
                                client.write(object, block, len, version, sync).await.unwrap();
                                let mut model = model.borrow_mut();
                                model.extend((block..block + len).map(|at| (at, version)));
                            }
                            if env.random_u64() % 4 == 0 {
                                env.sleep(types::Duration::from_millis(env.random_u64() % 300))
                                    .await;
                            }
                        }
                    });
                    tasks.push((object, index, state, work));
                }
            }
            for _ in 0..5 {
                bed.wait(bed.env.random_u64() % 1500).await;
                match bed.env.random_u64() % 3 {
                    0 => bed.world.cut("a", "ost"),
                    _ => bed.restart().await,
                }
            }
            stop.set(true);
            for (object, index, state, work) in tasks {
                work.await;
                let client = &clients[index];
                client.sync().await.unwrap();
                for at in 0..60 {
                    let version = state.borrow().get(&at).copied().unwrap_or(0);
                    assert!(client.has(object, at, 1, version).await, "object {object}, {at}");
                }
            }
            for client in &clients {
                assert!(client.reports.lost.borrow().is_empty());
                assert_eq!(client.empty_sync().await, Ok::<(), Fault>(()));
            }
        });
    }
}

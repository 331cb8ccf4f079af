//! A client with two sessions, each with a server of its own.

use std::cell::Cell;
use std::rc::Rc;

use proto::slots::SlotClass;
use redbud_session::client::{Session, Sessions};
use types::{Fault, ServerId};

use super::peer::{Ledger, Op};
use super::server::Controls;
use super::{Bed, add, call, run};

struct Two {
    a: Rc<Controls>,
    b: Rc<Controls>,
    with_a: Rc<Session<Ledger>>,
    with_b: Rc<Session<Ledger>>,
    all: Rc<Sessions<Ledger>>,
}

async fn two(bed: &Bed) -> Two {
    let (a, b) = (Controls::new("a", 0), Controls::new("b", 1));
    a.start(&bed.world);
    b.start(&bed.world);
    let (with_a, with_b) = (bed.open(&a).await, bed.open(&b).await);
    let all = Rc::new(Sessions::new(with_a.clone(), bed.shared.clone()));
    all.add(with_b.clone()).unwrap();
    Two { a, b, with_a, with_b, all }
}

/// Has `task` ended after ten seconds?
async fn ends(bed: &Bed, task: impl Future<Output = ()> + 'static) -> Rc<Cell<bool>> {
    let ended = Rc::new(Cell::new(false));
    let noted = ended.clone();
    bed.env.spawn(async move {
        task.await;
        noted.set(true);
    });
    bed.wait(10_000).await;
    ended
}

#[test]
fn each_session_has_its_own_numbers_and_replays_its_own_requests() {
    for seed in 0..8 {
        run(seed, |bed| async move {
            let two = two(&bed).await;
            assert!(two.all.add(bed.open(&two.b).await) == Err(Fault::Exists));
            for (session, first) in [(&two.with_a, 1), (&two.with_b, 11)] {
                for number in first..first + 5 {
                    assert_eq!(add(session, number).await, Ok(number - first));
                }
            }
            assert_eq!((two.with_a.unconfirmed(), two.with_b.unconfirmed()), (5, 5));
            assert_eq!(two.all.unconfirmed(), 10);
            // The order of requests is one order over both.
            let orders = bed.reports.orders.borrow().clone();
            assert!(orders.is_sorted_by(|a, b| a < b), "{orders:?}");

            // Server b makes its own durable, then a dies: only a's are replayed, to a.
            two.with_b.sync().await.unwrap();
            assert_eq!((two.a.numbers().len(), two.b.numbers().len()), (0, 5));
            bed.world.kill("a");
            bed.wait(50).await;
            two.a.start(&bed.world);
            assert_eq!(add(&two.with_a, 6).await, Ok(5));
            assert_eq!(add(&two.with_b, 16).await, Ok(5));
            two.all.sync().await.unwrap();
            assert_eq!(two.a.numbers(), [1, 2, 3, 4, 5, 6]);
            assert_eq!(two.b.numbers(), [11, 12, 13, 14, 15, 16]);
            assert_eq!((two.a.replays.get(), two.b.replays.get()), (5, 0));
            assert_eq!(*two.a.reclaimed.borrow(), ["of server 0 in epoch 2"]);
            assert!(two.b.reclaimed.borrow().is_empty());
            assert_eq!(two.all.unconfirmed(), 0);
            assert_eq!(two.all.get(ServerId(1)).unwrap().server(), ServerId(1));
            two.all.close().await;
            assert!(two.with_a.is_closed() && two.with_b.is_closed());
        });
    }
}

#[test]
fn durability_of_all_waits_for_the_slower_server() {
    run(3, |bed| async move {
        let two = two(&bed).await;
        add(&two.with_a, 1).await.unwrap();
        add(&two.with_b, 2).await.unwrap();
        two.b.set_stalled(true);
        let all = two.all.clone();
        let ended = ends(&bed, async move { all.sync().await.unwrap() }).await;
        assert!(!ended.get(), "b has not flushed");
        assert_eq!(two.a.numbers(), [1], "both were asked at the same time");
        two.b.set_stalled(false);
        bed.wait(100).await;
        assert!(ended.get());
        assert_eq!(two.b.numbers(), [2]);
        // Nothing is left to ask for.
        two.a.set_stalled(true);
        two.all.sync().await.unwrap();
    });
}

#[test]
fn barrier_over_both_waits_for_both() {
    run(4, |bed| async move {
        let two = two(&bed).await;
        for (server, session) in [(&two.a, &two.with_a), (&two.b, &two.with_b)] {
            server.set_held(true);
            let session = session.clone();
            bed.env.spawn(async move {
                session.call(call(SlotClass::Ordinary, Op::Hold {})).await.unwrap();
            });
        }
        bed.wait(50).await;
        assert!(two.all.has_unanswered(|op| matches!(op, Op::Hold {})));
        let all = two.all.clone();
        let ended = ends(&bed, async move { all.barrier().await }).await;
        assert!(!ended.get());
        two.a.set_held(false);
        bed.wait(1000).await;
        assert!(two.with_a.is_idle() && !two.all.is_idle());
        assert!(!ended.get(), "b has not answered");
        two.b.set_held(false);
        bed.wait(1000).await;
        assert!(ended.get() && two.all.is_idle());
    });
}

#[test]
fn one_server_that_is_away_is_seen_by_the_whole_client() {
    run(5, |bed| async move {
        let two = two(&bed).await;
        assert!(two.all.is_connected());
        two.all.wait_for_lease().await.unwrap();
        bed.world.kill("b");
        bed.wait(20_000).await;
        assert!(two.with_a.is_connected() && !two.all.is_connected());
        assert!(two.with_a.lease_left() > two.all.lease_left());
        assert_eq!(two.all.lease_left().as_nanos(), 0, "b's lease has run out");
        assert!(two.all.unless_silent(std::future::pending::<()>()).await.is_none());
        add(&two.with_a, 1).await.unwrap();
        two.b.start(&bed.world);
        two.all.wait_for_lease().await.unwrap();
        assert!(two.all.is_connected());
    });
}

/// One server of several stands by, and takes over what another one had.
#[test]
fn server_of_several_is_found_at_whichever_address_it_has() {
    run(13, |bed| async move {
        let (other, wanted) = (Controls::new("a", 1), Controls::new("b", 3));
        other.start(&bed.world);
        wanted.start(&bed.world);
        let mut config = bed.config(&other);
        config.addresses.push(wanted.address());
        config.expected.server = ServerId(3);
        let session = bed.try_open(config).await.unwrap();
        assert_eq!(session.server(), ServerId(3));
        assert_eq!(add(&session, 1).await, Ok(0));

        bed.world.kill("a");
        bed.world.kill("b");
        let moved = Controls::new("a", 3);
        moved.start(&bed.world);
        Controls::new("b", 1).start(&bed.world);
        bed.wait(5000).await;
        assert_eq!(add(&session, 2).await, Ok(0));
        session.sync().await.unwrap();
        assert_eq!(moved.numbers(), [2]);
        assert!(!bed.has_logged(&["not 3"]), "{:?}", bed.log.borrow());

        // Nobody else is there: that is said.
        bed.world.kill("a");
        Controls::new("a", 2).start(&bed.world);
        bed.wait(5000).await;
        assert!(bed.has_logged(&["not 3"]), "{:?}", bed.log.borrow());
    });
}

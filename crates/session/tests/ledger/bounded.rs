//! The client's list of kept requests has a bound, whatever the server's log does.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::sync::first;
use proto::slots::SlotClass;
use redbud_session::client::{Config, KeptLimits, Session};
use types::{Duration, Fault};

use super::peer::{Ledger, Op};
use super::server::Controls;
use super::{Bed, add, call, run};

const LIMIT: usize = 40;

async fn bounded(bed: &Bed) -> (Rc<Controls>, Rc<Session<Ledger>>) {
    let controls = Controls::new("a", 0);
    controls.start(&bed.world);
    let kept = KeptLimits { requests: LIMIT, bytes: usize::MAX / 2 };
    let session = bed.try_open(Config { kept, ..bed.config(&controls) }).await.unwrap();
    (controls, session)
}

fn add_all(
    bed: &Bed,
    session: &Rc<Session<Ledger>>,
    numbers: std::ops::Range<u64>,
) -> Rc<Cell<u64>> {
    let done = Rc::new(Cell::new(0));
    for number in numbers {
        let (session, done) = (session.clone(), done.clone());
        bed.env.spawn(async move {
            add(&session, number).await.unwrap();
            done.set(done.get() + 1);
        });
    }
    done
}

async fn in_time(bed: &Bed, session: &Session<Ledger>, op: Op) {
    let answer = session.call(call(SlotClass::Reserved, op));
    let late = bed.env.sleep(Duration::from_millis(500));
    first(answer, late).await.expect("it waits for no room").unwrap();
}

#[test]
fn kept_requests_stay_below_their_limit_while_the_log_stalls() {
    for seed in 0..8 {
        run(seed, |bed| async move {
            let (controls, session) = bounded(&bed).await;
            controls.set_stalled(true);
            let done = add_all(&bed, &session, 0..200);
            for _ in 0..100 {
                bed.wait(300).await;
                // A request for a flush and a renewal change nothing, and may be in flight.
                assert!(session.unconfirmed() <= LIMIT + 2, "{}", session.unconfirmed());
                // What completes a recall, and renewals, pass. So the lease is good.
                in_time(&bed, &session, Op::GiveBack {}).await;
                assert!(session.lease_left() > Duration::from_millis(500));
            }
            assert_eq!(done.get(), LIMIT as u64 * 3 / 4, "ordinary requests leave a quarter");
            // The quarter is for reserved slots: commits. They have the same bound in the end.
            let commits = Rc::new(Cell::new(0));
            for number in 1000..1100 {
                let (session, commits) = (session.clone(), commits.clone());
                bed.env.spawn(async move {
                    let op = Op::Add { number };
                    session.call(call(SlotClass::Reserved, op)).await.unwrap();
                    commits.set(commits.get() + 1);
                });
            }
            bed.wait(5000).await;
            assert_eq!(commits.get(), LIMIT as u64 / 4);
            in_time(&bed, &session, Op::GiveBack {}).await;
            in_time(&bed, &session, Op::Renew {}).await;
            assert_eq!(controls.numbers(), []);

            controls.set_stalled(false);
            bed.wait(5000).await;
            assert_eq!((done.get(), commits.get()), (200, 100));
            session.sync().await.unwrap();
            let mut numbers = controls.numbers();
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq((0..200).chain(1000..1100)), "each once");
        });
    }
}

#[test]
fn bytes_are_bounded_and_one_large_request_still_passes() {
    run(9, |bed| async move {
        let controls = Controls::new("a", 0);
        controls.start(&bed.world);
        let kept = KeptLimits { requests: usize::MAX / 2, bytes: 1 };
        let session = bed.try_open(Config { kept, ..bed.config(&controls) }).await.unwrap();
        controls.set_stalled(true);
        let done = add_all(&bed, &session, 0..10);
        bed.wait(3000).await;
        assert_eq!(done.get(), 1, "the second waits for the first");
        controls.set_stalled(false);
        bed.wait(3000).await;
        assert_eq!(done.get(), 10);
    });
}

#[test]
fn wait_for_room_ends_with_its_caller_and_with_the_session() {
    run(10, |bed| async move {
        let (controls, session) = bounded(&bed).await;
        controls.set_stalled(true);
        add_all(&bed, &session, 0..LIMIT as u64 * 3 / 4);
        bed.wait(1000).await;
        let sessions = redbud_session::client::Sessions::new(session.clone(), bed.shared.clone());
        let ended: Rc<RefCell<Vec<Fault>>> = Rc::default();
        for operation in [7, 8] {
            let (session, ended, shared) = (session.clone(), ended.clone(), bed.shared.clone());
            bed.env.spawn(async move {
                let mut adding = Box::pin(add(&session, 99));
                let polled =
                    std::future::poll_fn(|cx| shared.step(operation, || adding.as_mut().poll(cx)));
                let fault = polled.await.err();
                ended.borrow_mut().extend(fault);
            });
        }
        bed.wait(1000).await;
        assert!(ended.borrow().is_empty());
        sessions.give_up(7);
        bed.wait(10).await;
        assert_eq!(*ended.borrow(), [Fault::Interrupted]);
        session.abandon();
        bed.wait(10).await;
        assert_eq!(*ended.borrow(), [Fault::Interrupted, Fault::Unreachable]);
    });
}

/// A flush would free nothing.
#[test]
fn no_flush_is_asked_for_while_all_that_takes_room_is_in_flight() {
    run(11, |bed| async move {
        let (controls, session) = bounded(&bed).await;
        controls.set_held(true);
        let done = add_all(&bed, &session, 0..100);
        bed.wait(10_000).await;
        assert_eq!((done.get(), controls.syncs.get()), (0, 0));
        assert!(session.lease_left() > Duration::ZERO);
        controls.set_held(false);
        bed.wait(10_000).await;
        assert_eq!(done.get(), 100);
    });
}

/// Kills of the server and cuts of the connection at random moments, with a list that is full most
/// of the time.
#[test]
fn every_number_is_kept_once_over_kills_and_cuts() {
    for seed in 0..24 {
        run(seed, |bed| async move {
            let (controls, session) = bounded(&bed).await;
            let done = add_all(&bed, &session, 0..120);
            for round in 0..6 {
                controls.set_stalled(bed.env.random_u64() % 2 == 0);
                bed.wait(bed.env.random_u64() % 60).await;
                if bed.env.random_u64() % 2 == 0 {
                    bed.world.kill("a");
                    bed.wait(bed.env.random_u64() % 400).await;
                    controls.start(&bed.world);
                } else {
                    bed.world.cut("client", "a");
                }
                assert!(session.unconfirmed() <= LIMIT + 2, "round {round}");
            }
            controls.set_stalled(false);
            bed.wait(30_000).await;
            assert_eq!(done.get(), 120);
            session.sync().await.unwrap();
            let mut numbers = controls.numbers();
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..120), "each once");
            assert!(bed.reports.lost.borrow().is_empty());
        });
    }
}

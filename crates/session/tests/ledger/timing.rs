//! How a client tells a server that is gone from one that is slow (PROTOCOLS 3a).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use proto::slots::SlotClass;
use redbud_session::client::Session;
use types::{Duration, Instant};

use super::peer::{Ledger, Op};
use super::server::Controls;
use super::{Bed, add, call, run};

/// Within this time a server that is gone is noticed while requests are made, if it is fast: two
/// probes of a second, and what a request has at least, with a margin for both.
const NOTICED: Duration = Duration::from_millis(2500);

/// Four workers make one request after the other for ever; the number of answers.
fn work(bed: &Bed, session: &Rc<Session<Ledger>>) -> Rc<Cell<u64>> {
    let answers = Rc::new(Cell::new(0));
    for worker in 0..4 {
        let (session, answers, env) = (session.clone(), answers.clone(), bed.env.clone());
        bed.env.spawn(async move {
            while add(&session, worker).await.is_ok() {
                answers.set(answers.get() + 1);
                env.sleep(Duration::from_millis(20)).await;
            }
        });
    }
    answers
}

/// Waits until the session has dropped a connection; how long that took.
async fn noticed(bed: &Bed, session: &Session<Ledger>) -> Duration {
    let begun: Instant = bed.env.now();
    let before = session.timing().reconnections;
    while session.timing().reconnections == before {
        assert!(bed.env.now().since(begun) < NOTICED * 4, "it is not noticed at all");
        bed.wait(10).await;
    }
    bed.env.now().since(begun)
}

#[test]
fn server_that_is_stopped_or_cut_off_is_noticed_under_load() {
    for seed in 0..8 {
        run(seed, |bed| async move {
            let server = Controls::new("a", 0);
            server.start(&bed.world);
            let session = bed.open(&server).await;
            let answers = work(&bed, &session);
            bed.wait(5000).await;
            let timing = session.timing();
            assert_eq!((timing.timeouts, timing.probes, timing.reconnections), (0, 0, 0));
            assert!(timing.estimate.unwrap() < Duration::from_millis(5), "{timing:?}");
            for stopped in [true, false] {
                match stopped {
                    true => bed.world.pause("a"),
                    false => bed.world.partition("client", "a"),
                }
                let took = noticed(&bed, &session).await;
                assert!(took <= NOTICED, "{took:?}");
                assert!(bed.has_logged(&["lost the connection", "no probe"]));
                match stopped {
                    true => bed.world.resume("a"),
                    false => bed.world.heal(),
                }
                // Nothing is lost, and the client goes on.
                let before = answers.get();
                bed.wait(5000).await;
                assert!(session.is_connected() && answers.get() > before + 100);
                assert_eq!(session.status().evictions, 0);
            }
            assert_eq!(session.timing().reconnections, 2);
            session.close().await;
        });
    }
}

#[test]
fn idle_client_notices_a_stopped_server_within_its_lease() {
    run(2, |bed| async move {
        let server = Controls::new("a", 0);
        server.start(&bed.world);
        let session = bed.open(&server).await;
        bed.wait(30_000).await;
        assert!(server.renewals.get() >= 14, "{}", server.renewals.get());
        assert_eq!(session.timing().probes, 0);
        bed.world.pause("a");
        bed.wait(server_lease_millis()).await;
        assert_eq!(session.timing().reconnections, 1);
        bed.world.resume("a");
        add(&session, 1).await.unwrap();
    });
}

fn server_lease_millis() -> u64 {
    super::server::LEASE.as_millis() as u64
}

/// Half of the requests wait for a client that is stopped, for up to most of a lease.
#[test]
fn nobody_that_is_only_slow_is_reconnected() {
    // Clocks of client and server, in millionths: they run apart by up to a tenth.
    for (seed, drifts) in [(0, [0, 0]), (1, [50_000, -50_000]), (2, [-50_000, 50_000])] {
        run(seed, |bed| async move {
            for (node, drift) in ["client", "a"].into_iter().zip(drifts) {
                bed.world.set_drift(node, drift);
            }
            let server = Controls::new("a", 0);
            server.start(&bed.world);
            let session = bed.open(&server).await;
            let asked = Rc::new(RefCell::new((0_u64, 0_u64)));
            for round in 0..60_u64 {
                // Each round eight requests wait, while others go on.
                server.set_held(true);
                for _ in 0..8 {
                    let (session, asked) = (session.clone(), asked.clone());
                    bed.env.spawn(async move {
                        session.call(call(SlotClass::Ordinary, Op::Hold {})).await.unwrap();
                        asked.borrow_mut().0 += 1;
                    });
                }
                let others = if round % 3 == 0 { 0 } else { 8 };
                for _ in 0..others {
                    session.call(call(SlotClass::Ordinary, Op::GiveBack {})).await.unwrap();
                    asked.borrow_mut().1 += 1;
                }
                bed.wait(100 + 80 * round).await;
                server.set_held(false);
                bed.wait(20).await;
            }
            assert_eq!(*asked.borrow(), (480, 320));
            let timing = session.timing();
            assert_eq!(timing.reconnections, 0, "{timing:?}");
            assert!(timing.probes > 60 && timing.timeouts > 240, "{timing:?}");
            assert_eq!(timing.timeouts, timing.false_timeouts);
            // What they waited for the stopped client is not the server's time.
            assert!(timing.estimate.unwrap() < Duration::from_millis(50), "{timing:?}");
            assert!(!bed.has_logged(&["lost the connection"]));
        });
    }
}

/// The log stalls: what waits for it takes long, and that is the server's own time.
#[test]
fn slow_server_is_given_more_time() {
    run(5, |bed| async move {
        let server = Controls::new("a", 0);
        server.start(&bed.world);
        let session = bed.open(&server).await;
        for _ in 0..12 {
            add(&session, 1).await.unwrap();
            server.set_stalled(true);
            let flushed = bed.env.spawn_join({
                let session = session.clone();
                async move { session.sync().await }
            });
            bed.wait(1000).await;
            server.set_stalled(false);
            flushed.await.unwrap();
        }
        let timing = session.timing();
        assert_eq!((timing.reconnections, timing.false_timeouts), (0, timing.timeouts));
        assert!(timing.time > Duration::from_millis(600), "{timing:?}");
        let early = timing.timeouts;
        assert!(early > 0, "the first ones were a surprise");
        for _ in 0..12 {
            // The estimate is of all requests, so these are below it.
            server.set_stalled(true);
            bed.wait(100).await;
            server.set_stalled(false);
            add(&session, 1).await.unwrap();
        }
        assert_eq!(session.timing().timeouts, early);
    });
}

#[test]
fn client_that_was_stopped_itself_blames_nobody() {
    run(6, |bed| async move {
        let server = Controls::new("a", 0);
        server.start(&bed.world);
        let session = bed.open(&server).await;
        let director = bed.world.node("director");
        let (world, begun) = (bed.world.clone(), bed.env.now());
        director.clone().spawn(async move {
            for stop in 0..12_u64 {
                director.sleep(Duration::from_millis(37 * stop + 400)).await;
                world.pause("client");
                director.sleep(Duration::from_millis(300 * stop)).await;
                world.resume("client");
            }
        });
        server.set_held(true);
        let waiting = session.clone();
        let held = bed.env.spawn_join(async move {
            waiting.call(call(SlotClass::Ordinary, Op::Hold {})).await.map(|_| ())
        });
        while bed.env.now().since(begun) < Duration::from_secs(28) {
            bed.wait(50).await;
        }
        server.set_held(false);
        held.await.unwrap();
        let timing = session.timing();
        assert_eq!(timing.reconnections, 0, "{timing:?}");
        assert!(timing.probes > 0, "{timing:?}");
    });
}

#[test]
fn server_that_stops_during_a_recovery_is_noticed() {
    for seed in 0..24 {
        run(seed, |bed| async move {
            let server = Controls::new("a", 0);
            server.start(&bed.world);
            let session = bed.open(&server).await;
            for number in 0..50 {
                add(&session, number).await.unwrap();
            }
            bed.world.kill("a");
            bed.wait(50).await;
            server.start(&bed.world);
            while server.replays.get() < 10 + seed {
                bed.env.sleep(Duration::from_micros(100)).await;
            }
            bed.world.pause("a");
            let took = noticed(&bed, &session).await;
            assert!(took <= NOTICED, "{took:?}");
            bed.world.resume("a");
            assert_eq!(add(&session, 50).await, Ok(50));
            assert_eq!(session.status().evictions, 0);
        });
    }
}

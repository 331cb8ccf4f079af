//! What clients keep until it is durable, for how long and how much, by default and with the
//! settings of paper 001: a journal that is committed every 5 s, clients that hear nothing by
//! themselves, and a ping 7 s after an answer that is not durable.

use std::cell::Cell;
use std::rc::Rc;

use session::client::KeptLimits;
use types::limits::BLOCK;
use types::{Duration, Instant};

use super::bed::{Bed, Client, run};

const PING: Duration = Duration::from_secs(7);
/// No renewal of it falls into a test: its answer would say what is durable.
const LEASE: Duration = Duration::from_secs(60);

/// Serves with the papers' settings.
async fn serve_as_the_papers(bed: &Bed) {
    bed.lease.set(LEASE);
    bed.commit_interval.set(Duration::from_secs(5));
    bed.notices.set(false);
    bed.restart().await;
}

async fn pinging(bed: &Bed) -> Client {
    bed.client_with("a", 7, |config| config.ping = Some(PING)).await
}

fn is_pinned(client: &Client) -> bool {
    client.session.kept().bytes > 0
}

async fn at(bed: &Bed, begin: Instant, millis: u64) {
    let time = begin + Duration::from_millis(millis);
    assert!(time > bed.env.now(), "it is later than {millis} ms");
    bed.env.sleep_until(time).await;
}

#[test]
fn idle_client_pings_after_its_time_and_hears_what_is_durable() {
    run(1, |bed| async move {
        serve_as_the_papers(&bed).await;
        let client = pinging(&bed).await;
        client.write(5, 0, 1, 1, false).await.unwrap();
        let begin = bed.env.now();
        at(&bed, begin, 6900).await;
        assert!(is_pinned(&client));
        let requests = bed.status("requests").await;
        at(&bed, begin, 7100).await;
        assert_eq!(client.session.kept().bytes, 0);
        // The question before was one, and the ping another.
        assert_eq!(bed.status("requests").await, requests + 2);
        // From now on there is nothing to ask for.
        at(&bed, begin, 19_000).await;
        assert_eq!(bed.status("requests").await, requests + 3);
    });
}

#[test]
fn any_request_puts_the_ping_off() {
    run(2, |bed| async move {
        serve_as_the_papers(&bed).await;
        let client = pinging(&bed).await;
        client.write(5, 0, 1, 1, false).await.unwrap();
        let begin = bed.env.now();
        // The journal is not committed before 5 s, so this answer does not say so.
        at(&bed, begin, 4000).await;
        assert!(client.has(5, 0, 1, 1).await);
        at(&bed, begin, 10_900).await;
        assert!(is_pinned(&client));
        at(&bed, begin, 11_100).await;
        assert_eq!(client.session.kept().bytes, 0);
    });
}

#[test]
fn client_that_does_not_ping_waits_for_the_renewal_of_its_lease() {
    run(3, |bed| async move {
        serve_as_the_papers(&bed).await;
        let client = bed.client("a", 7).await;
        client.write(5, 0, 1, 1, false).await.unwrap();
        let begin = bed.env.now();
        let renewal = (client.session.lease() / 3).as_millis() as u64;
        at(&bed, begin, renewal - 200).await;
        assert!(renewal > 15_000 && is_pinned(&client));
        at(&bed, begin, renewal + 200).await;
        assert_eq!(client.session.kept().bytes, 0);
    });
}

/// A ping whose answer does not come is a request as any other: it is sent again, and the session
/// goes on.
#[test]
fn ping_into_a_restart_is_answered_after_it() {
    run(4, |bed| async move {
        serve_as_the_papers(&bed).await;
        let client = pinging(&bed).await;
        client.write(5, 0, 1, 1, false).await.unwrap();
        let begin = bed.env.now();
        at(&bed, begin, 6500).await;
        bed.kill();
        at(&bed, begin, 9000).await;
        assert!(is_pinned(&client));
        bed.start().await;
        bed.until("it hears", || !is_pinned(&client)).await;
        assert!(bed.env.now().since(begin) < Duration::from_secs(18));
        assert!(client.has(5, 0, 1, 1).await && client.reports.lost.borrow().is_empty());
    });
}

/// Writes records at random until `until`, some durable at once.
async fn write_until(bed: Bed, client: Client, object: u64, until: Instant) {
    let random = |bound: u64| bed.env.random_u64() % bound;
    for version in 1.. {
        let (block, len, sync) = (random(400), 1 + random(16), random(40) == 0);
        client.write(object, block, len, version, sync).await.unwrap();
        if bed.env.now() > until {
            return;
        }
        let pause = random(3) * random(30);
        bed.wait(pause).await;
    }
}

/// Eight writers for some seconds, which then are idle. Their client never keeps more than its
/// budget, and nothing from `idle` after the last answer on.
async fn keep_the_budget(bed: &Bed, client: &Client, limits: KeptLimits, idle: Duration) {
    let (most, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (watched, seen, ended) = (client.clone(), most.clone(), over.clone());
    let env = bed.env.clone();
    let watch = bed.env.spawn_join(async move {
        while !ended.get() {
            let kept = watched.session.kept();
            assert!(kept.bytes <= limits.bytes && kept.requests <= limits.requests, "{kept:?}");
            seen.set(seen.get().max(kept.bytes));
            env.sleep(Duration::from_micros(200)).await;
        }
    });
    let until = bed.env.now() + Duration::from_secs(6);
    let writers: Vec<_> = (1..=8)
        .map(|object| bed.env.spawn_join(write_until(bed.clone(), client.clone(), object, until)))
        .collect();
    for writer in writers {
        writer.await;
    }
    client.write(9, 0, 1, 1, false).await.unwrap();
    assert!(is_pinned(client), "the last write is durable already");
    bed.env.sleep(idle).await;
    let kept = client.session.kept();
    assert_eq!((kept.requests, kept.bytes), (0, 0), "after {idle:?}");
    over.set(true);
    watch.await;
    assert!(most.get() > limits.bytes / 2, "only {} bytes were ever pinned", most.get());
}

#[test]
fn pinned_bytes_keep_their_budget_and_end_within_three_seconds_of_idling() {
    for seed in [5, 6] {
        run(seed, |bed| async move {
            bed.lease.set(LEASE);
            bed.restart().await;
            let limits = KeptLimits { requests: 64, bytes: 128 * BLOCK };
            let client = bed.client_with("a", 7, |config| config.kept = limits).await;
            keep_the_budget(&bed, &client, limits, Duration::from_secs(3)).await;
        });
    }
}

#[test]
fn pinned_bytes_of_the_papers_end_within_twelve_seconds_of_idling() {
    for seed in [7, 8] {
        run(seed, |bed| async move {
            serve_as_the_papers(&bed).await;
            let limits = KeptLimits { requests: 64, bytes: 128 * BLOCK };
            let set = |config: &mut session::client::Config| {
                (config.kept, config.ping) = (limits, Some(PING));
            };
            let client = bed.client_with("a", 7, set).await;
            keep_the_budget(&bed, &client, limits, Duration::from_secs(12)).await;
        });
    }
}

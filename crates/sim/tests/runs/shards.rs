//! Clusters of two and three shards, each with a metadata server.
//!
//! `REDBUD_SHARDS=10000 cargo test --release -p redbud-sim --test runs shards` runs more seeds,
//! `REDBUD_FIRST=5000` from that seed on.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use redbud_sim::{Fault, Plan, run};

use crate::seeds::{asked, check, for_each};

/// Seeds of the pool.
const SEEDS: u64 = 150;
/// Every so many seeds run twice.
const TWICE: u64 = 50;

#[test]
fn pool_of_several_shards_holds() {
    let (first, count) = (asked("REDBUD_FIRST").unwrap_or(0), asked("REDBUD_SHARDS"));
    let made = Mutex::new(BTreeMap::<Fault, u64>::new());
    let failed = Mutex::new(BTreeSet::new());
    for_each(count.unwrap_or(SEEDS), |nth| {
        let plan = Plan::of_shards(first + nth);
        let ran = std::panic::catch_unwind(|| {
            let report = check(&plan);
            if nth.is_multiple_of(TWICE) {
                assert_eq!(run(&plan), report, "{}", plan.command());
            }
            report.made
        });
        match ran {
            Ok(its) => {
                let mut made = made.lock().expect("nothing panics here");
                its.iter().for_each(|(kind, n)| *made.entry(*kind).or_default() += n);
            }
            Err(_) => drop(failed.lock().expect("nothing panics here").insert(plan.seed)),
        }
    });
    let failed = failed.into_inner().expect("nothing panics here");
    assert!(failed.is_empty(), "seeds of several shards that failed: {failed:?}");
    let made = made.into_inner().expect("all seeds held");
    println!("{made:?}");
    // Few processes wait for a lock when their signal comes.
    let mut usual = Fault::of_several_shards().into_iter().filter(|kind| *kind != Fault::Signal);
    let missing = usual.find(|kind| !made.contains_key(kind));
    assert!(missing.is_none() || count.is_some(), "no seed met {missing:?}");
}

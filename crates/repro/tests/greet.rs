//! Greetings of many clients, cut short.
#![allow(clippy::disallowed_methods)]

use repro::greet::{Plan, measure};

#[test]
fn clients_come_back_to_a_server_that_was_killed() {
    check(false);
}

#[test]
fn clients_come_back_with_their_keys() {
    check(true);
}

fn check(keys: bool) {
    // One directory each: they run at the same time.
    let dir = std::env::temp_dir().join(format!("redbud-greet-{}-{keys}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let plan =
        Plan { dir: dir.clone(), clients: 40, program: env!("CARGO_BIN_EXE_repro").into(), keys };
    let found = measure(&plan).unwrap();
    assert_eq!((found.clients, found.connected, found.greeted), (40, 40, 40));
    // The kernel counts processor time in ticks, of which forty greetings may need none.
    assert!(found.full_bytes > found.empty_bytes, "{found:?}");
    assert!(found.processor >= found.started, "{found:?}");
    assert!(found.text().starts_with("40 sessions at once"), "{}", found.text());
    // Its image is gone.
    std::fs::remove_dir(&dir).unwrap();
}

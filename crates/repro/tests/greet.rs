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
    let plan = Plan {
        dir: std::env::temp_dir(),
        clients: 40,
        program: env!("CARGO_BIN_EXE_repro").into(),
        keys,
    };
    let found = measure(&plan).unwrap();
    assert_eq!((found.clients, found.connected, found.greeted), (40, 40, 40));
    // The kernel counts processor time in ticks, of which forty greetings may need none.
    assert!(found.full_bytes > found.empty_bytes, "{found:?}");
    assert!(found.processor >= found.started, "{found:?}");
    assert!(found.text().starts_with("40 sessions at once"), "{}", found.text());
}

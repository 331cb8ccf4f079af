//! Greetings of many clients, cut short.
#![allow(clippy::disallowed_methods)]

use repro::greet::{Plan, measure};

#[test]
fn clients_come_back_to_a_server_that_was_killed() {
    check(false, 1, 0);
}

#[test]
fn clients_come_back_with_their_keys() {
    check(true, 1, 0);
}

#[test]
fn clients_come_back_with_many_open_files_behind_a_used_log() {
    check(false, 5, 4000);
}

fn check(keys: bool, files: u64, fill: u64) {
    // One directory each: they run at the same time.
    let dir =
        std::env::temp_dir().join(format!("redbud-greet-{}-{keys}-{files}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let usual = Plan::usual(&dir, env!("CARGO_BIN_EXE_repro").as_ref(), 40);
    let plan = Plan { keys, files, fill, ..usual };
    let found = measure(&plan).unwrap();
    assert_eq!((found.clients, found.connected, found.greeted), (40, 40, 40));
    // The kernel counts processor time in ticks, of which forty greetings may need none.
    assert!(found.full_bytes > found.empty_bytes, "{found:?}");
    assert!(found.processor >= found.started, "{found:?}");
    assert!(found.held == 40 * files && found.takeover >= found.seconds, "{found:?}");
    assert!(fill == 0 || found.log_used > 0, "{found:?}");
    assert!(found.text().starts_with("40 sessions at once"), "{}", found.text());
    // Its image is gone.
    std::fs::remove_dir(&dir).unwrap();
}

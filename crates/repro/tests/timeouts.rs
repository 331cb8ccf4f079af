//! Requests behind a stopped client, and stopped servers, cut short.
#![allow(clippy::disallowed_methods)]

use repro::timeouts::{Plan, measure};

#[test]
fn only_clients_of_a_stopped_server_connect_again() {
    let plan = Plan {
        dir: std::env::temp_dir(),
        requests: 2000,
        sessions: 8,
        rounds: 1,
        program: env!("CARGO_BIN_EXE_repro").into(),
    };
    let found = measure(&plan, &mut |_| ()).unwrap();
    assert!(found.requests >= 2000 && found.behind >= 1000, "{found:?}");
    assert_eq!(found.reconnections, 0, "{found:?}");
    // Those that waited were over their time, and their clients asked.
    assert!(found.timeouts > 0 && found.probes > 0, "{found:?}");
    // How soon is measured by the command; here other tests run beside.
    let all: Vec<f64> = [&found.stopped[..], &found.cut].concat();
    assert!(all.len() == 2 && all.iter().all(|seconds| *seconds < 20.0), "{found:?}");
    assert!(found.text().contains("(0: met)"), "{}", found.text());
}

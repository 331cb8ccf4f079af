//! The server's bench, cut short.
#![allow(clippy::disallowed_methods)]

use repro::server::{Plan, measure};

#[test]
fn server_creates_files_for_clients_in_its_process() {
    for durable in [false, true] {
        let plan = Plan {
            dir: std::env::temp_dir(),
            files: 2001,
            clients: 3,
            // As many as a session has.
            in_flight: u16::MAX,
            durable,
            log_bytes: 16 << 20,
            cache_bytes: 32 << 20,
            slots: mfs::SlotSize::default(),
        };
        let found = measure(&plan).unwrap();
        assert!(found.log_bytes_each > 100.0 && found.log_bytes_each <= 600.0, "{found:?}");
        assert_eq!(found.in_flight, types::limits::SLOTS);
        assert!(found.create.processor > 0.0, "{found:?}");
        assert!(found.text().starts_with("2001 files by 3 clients"), "{}", found.text());
    }
}

//! The store's bench, cut short: many files are made, redone and checked on a file of this machine.
#![allow(clippy::disallowed_methods)]

use repro::mfs::{Checked, Found, Plan, measure};
use types::Duration;

fn plan(files: u64, in_flight: u64) -> Plan {
    Plan {
        dir: std::env::temp_dir(),
        files,
        per_directory: 30_000,
        in_flight,
        commit: Duration::from_secs(1),
        log_bytes: 16 << 20,
        cache_bytes: 32 << 20,
        jobs: vec![1, 2, 4],
        slots: mfs::SlotSize::default(),
        journal: false,
    }
}

/// One test: the memory of the process is part of what is measured.
#[test]
fn create_replay_and_check_of_100000_files_use_bounded_memory() {
    let found = measure(&plan(100_000, 0), &mut |_| ()).unwrap();
    for check in checks(&found) {
        assert!(check.inodes >= 100_000 + 4 + 2, "{found:?}");
        // The cache, two bytes for each inode, the names of a directory, what is read ahead, and
        // the program.
        assert!(check.memory < 192 << 20, "{found:?}");
    }
    assert!(found.redo_bytes > 0, "{found:?}");
    assert!(found.log_bytes_each <= 600.0, "{found:?}");
    assert!(found.text().contains("100000 files"), "{}", found.text());
    let found = measure(&plan(2000, 64), &mut |_| ()).unwrap();
    assert!(checks(&found)[0].inodes >= 2000 + 1 + 2, "{found:?}");
}

/// The checks with one thread, two and four, which found nothing and counted the same.
fn checks(found: &Found) -> &[Checked] {
    assert_eq!(found.fsck.iter().map(|check| check.jobs).collect::<Vec<_>>(), [1, 2, 4]);
    for check in &found.fsck {
        assert_eq!((check.problems, check.inodes), (0, found.fsck[0].inodes), "{found:?}");
    }
    &found.fsck
}

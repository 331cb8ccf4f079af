//! Cross deadlock: two mounts create, unlink, rename, read through mappings and
//! truncate in the same two directories and files, for a minute, on both transports.
//! Nothing stalls.

use std::process::Command;
use std::time::Duration;

use crate::harness::{Cluster, Spec, describe};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/deadlock.py");
/// How long a single operation may take, in seconds: far above what a busy machine
/// needs, far below the lease at which an eviction would break a deadlock.
const STALL: &str = "20";
/// Whether the kernel offers FUSE over io_uring to new mounts.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

fn nothing_stalls(options: [&str; 2], workers: &str) {
    let seconds = std::env::var("REDBUD_E2E_CROSS_SECONDS").unwrap_or_else(|_| "60".into());
    let limit = seconds.parse::<u64>().expect("whole seconds") + 180;
    let spec = Spec { limit: Duration::from_secs(limit + 60), ..Spec::default() };
    let mut cluster = Cluster::start(&spec);
    for options in options {
        cluster.mount_with(&[options]);
    }
    let root = cluster.path(0);
    for dir in ["one", "two"] {
        std::fs::create_dir(root.join(dir)).unwrap();
    }
    for file in ["one/a", "two/b"] {
        std::fs::write(root.join(file), vec![b'.'; 1 << 20]).unwrap();
    }
    let output = Command::new("timeout")
        .args(["-k", "5", &limit.to_string(), "python3", "-I", SCRIPT])
        .args([seconds.as_str(), STALL, workers])
        .args([cluster.path(0), cluster.path(1)])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", describe(&output));
    println!("{}", describe(&output));
    cluster.finish();
}

#[test]
fn mounts_contending_for_directories_and_files_never_stall() {
    nothing_stalls(["executors=2", "executors=1"], "8");
}

#[test]
fn mounts_over_io_uring_never_stall_with_more_requests_than_entries() {
    let before = std::fs::read_to_string(ENABLE_URING)
        .unwrap_or_else(|error| panic!("{ENABLE_URING}: {error}: Linux 6.14 or newer is needed"));
    std::fs::write(ENABLE_URING, "Y").unwrap();
    let uring = "transport=uring,entries=1";
    nothing_stalls([uring, &format!("{uring},executors=2")], "16");
    std::fs::write(ENABLE_URING, before).unwrap();
}

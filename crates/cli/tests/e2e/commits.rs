//! How files are committed, on real mounts.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Cluster, Spec, client_status, describe, eventually, redbud, success};

const FILES: u64 = 300;

fn spec() -> Spec {
    Spec { lease: Duration::from_secs(2), ..Spec::default() }
}

fn number(client: &Value, group: &str, key: &str) -> u64 {
    client[group][key].as_u64().unwrap_or_else(|| panic!("{group}.{key}: {client}"))
}

/// Writes small files, too large to lie beside their inodes, at once.
fn write_files(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for nth in 0..FILES {
        fs::write(dir.join(nth.to_string()), vec![nth as u8; 8192]).unwrap();
    }
}

fn check_files(dir: &Path) {
    for nth in 0..FILES {
        let found = fs::read(dir.join(nth.to_string())).unwrap();
        assert!(found == vec![nth as u8; 8192], "{}/{nth}", dir.display());
    }
}

#[test]
fn small_files_are_committed_as_the_options_say() {
    let mut cluster = Cluster::start(&spec());
    let two = ["compound=2,commit_tasks=1,commit_max_age=300ms", "compound=auto"];
    let mut requests = Vec::new();
    for options in two {
        let mount = cluster.mount_with(&[options]);
        let root = cluster.path(mount).to_path_buf();
        let dir = root.join(options);
        write_files(&dir);
        eventually("all is committed", || number(&client_status(&root), "owes", "files") == 0);
        let found = client_status(&root);
        assert_eq!(found["commits"]["mode"], "delayed", "{found}");
        // A file that is not on its device when it is due is committed apart.
        let files = number(&found, "commits", "files");
        assert!(files >= FILES / 2, "{found}");
        requests.push((number(&found, "commits", "requests"), files));
        check_files(&dir);
    }
    // How many files are due at the same time is up to the machine, so `auto` is only shown.
    let [(by_two, files), auto] = requests[..] else { panic!("two mounts") };
    eprintln!("requests, files: {by_two}, {files} with two commits at most; by auto {auto:?}");
    assert!(2 * by_two >= files, "{files} files in {by_two} requests");
    let other = cluster.mount_with(&[]);
    let root = cluster.path(other).to_path_buf();
    two.iter().for_each(|options| check_files(&root.join(options)));
}

#[test]
fn synchronous_commit_leaves_nothing_behind_and_survives_its_client() {
    let mut cluster = Cluster::start(&spec());
    let mount = cluster.mount_with(&["commit=sync"]);
    let root = cluster.path(mount).to_path_buf();
    fs::create_dir(root.join("dir")).unwrap();
    for nth in 0..20 {
        fs::write(root.join("dir").join(nth.to_string()), vec![nth; 8192]).unwrap();
        let found = client_status(&root);
        let owes = |key| number(&found, "owes", key);
        assert_eq!((owes("dirty_bytes"), owes("files")), (0, 0), "{found}");
        assert_eq!(found["commits"]["mode"], "sync");
    }
    cluster.kill_client(mount);
    let other = cluster.mount_with(&[]);
    let dir = cluster.path(other).join("dir");
    for nth in 0..20 {
        assert!(fs::read(dir.join(nth.to_string())).unwrap() == vec![nth; 8192], "{nth}");
    }
}

#[test]
fn sync_makes_everything_durable_at_once() {
    let mut cluster = Cluster::start(&spec());
    let mount = cluster.mount_with(&["commit_max_age=1m"]);
    let root = cluster.path(mount).to_path_buf();
    let dir = root.join("files");
    write_files(&dir);
    assert_eq!(number(&client_status(&root), "owes", "files"), FILES);
    success(redbud().arg("sync").arg(&root));
    assert_eq!(number(&client_status(&root), "owes", "files"), 0);
    cluster.kill_client(mount);
    cluster.kill_server();
    cluster.start_server();
    let other = cluster.mount();
    check_files(&cluster.path(other).join("files"));
    let refused = redbud().arg("sync").arg(std::env::temp_dir()).output().unwrap();
    let said = describe(&refused);
    assert!(!refused.status.success() && said.contains("control socket"), "{said}");
}

/// The bound: `commit_max_age` is a second.
#[test]
fn client_that_is_killed_a_second_after_its_last_write_loses_nothing() {
    let mut cluster = Cluster::start(&spec());
    for round in 0..3 {
        let mount = cluster.mount();
        let dir = cluster.path(mount).join(format!("files-{round}"));
        write_files(&dir);
        std::thread::sleep(Duration::from_secs(1));
        cluster.kill_client(mount);
        let other = cluster.mount();
        check_files(&cluster.path(other).join(format!("files-{round}")));
        cluster.unmount(other);
    }
}

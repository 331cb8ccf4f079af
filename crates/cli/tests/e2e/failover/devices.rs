//! A server that stands by and does not reach the metadata, or reaches an older log only.

use std::fs;
use std::os::unix::fs::symlink;

use super::Servers;
use crate::harness::{Spec, eventually, success};

#[test]
fn server_that_cannot_read_the_metadata_waits_until_it_can() {
    let spec = Spec { journal: Some(16 << 20), ..Spec::default() };
    let mut servers = Servers::formatted_as(2, None, spec);
    let dir = servers.cluster.dir.clone();
    // The second server has names of its own for the metadata device and the log.
    let own = servers.own_directory(1);
    let text = fs::read_to_string(&servers.cluster.config).unwrap();
    assert!(text.contains("directory = \"who\""), "{text}");
    fs::write(own.join("cluster.toml"), text.replace("\"who\"", "\"../who\"")).unwrap();
    servers.configs[1] = own.join("cluster.toml");
    let (metadata, log) = (own.join("metadata.img"), own.join("journal.img"));
    servers.start_one(0);
    servers.cluster.mount();
    let root = servers.cluster.root();
    fs::write(root.join("early"), b"early").unwrap();
    servers.kill(0);
    fs::copy(dir.join("journal.img"), dir.join("older.img")).unwrap();
    servers.start_one(0);
    fs::write(root.join("late"), b"late").unwrap();
    fs::File::open(root.join("late")).unwrap().sync_all().unwrap();
    symlink(dir.join("older.img"), &log).unwrap();
    servers.start_one(1);
    let epoch = servers.epoch();
    servers.kill(0);
    eventually("the second server misses the metadata device", || {
        servers.logs().contains("mds1/metadata.img: ")
    });
    assert_eq!(servers.epoch(), epoch, "{}", servers.record());
    symlink(dir.join("metadata.img"), &metadata).unwrap();
    eventually("the second server refuses the older log", || {
        servers.logs().contains("mds1/journal.img")
    });
    fs::remove_file(&log).unwrap();
    symlink(dir.join("journal.img"), &log).unwrap();
    servers.wait_taken_over(0, epoch);
    assert_eq!(fs::read(root.join("late")).unwrap(), b"late");
    assert_eq!(fs::read(root.join("early")).unwrap(), b"early");
    fs::write(root.join("last"), b"last").unwrap();
    servers.start_one(0);
    success(crate::harness::redbud().arg("status").arg(&servers.cluster.config));
    servers.finish(1);
}

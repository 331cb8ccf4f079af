//! Small files that lie with their inodes, on real mounts.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::harness::{Cluster, Spec, redbud, success};

/// Bytes that the data zones take on the disk: they are sparse, so that every first write of a block shows.
fn taken(cluster: &Cluster) -> u64 {
    (0..2).map(|at| fs::metadata(cluster.dir.join(format!("data{at}.img"))).unwrap().blocks()).sum()
}

fn put(cluster: &Cluster, mount: usize, name: &str, bytes: &[u8]) {
    let mut file = fs::File::create(cluster.path(mount).join(name)).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_small_file_takes_no_data_block_until_it_grows_and_outlives_crashes() {
    let mut cluster = Cluster::start(&Spec { inline_data: true, ..Spec::default() });
    let (a, b) = (cluster.mount(), cluster.mount());
    let before = taken(&cluster);
    for index in 0..50u8 {
        put(&cluster, a, &format!("f{index}"), &[index + 1; 700]);
    }
    for index in 0..50u8 {
        let path = cluster.path(b).join(format!("f{index}"));
        assert_eq!(fs::read(&path).unwrap(), [index + 1; 700]);
        assert!(fs::metadata(&path).unwrap().blocks() > 0, "tar would take it for a hole");
    }
    assert_eq!(taken(&cluster), before, "no data device was written");
    let file = cluster.path(b).join("f7");
    assert!(success(redbud().arg("layout").arg(&file)).contains("inline 700 bytes, 0 segments"));

    // It grows out of its slot on one mount, and is seen on the other; then both processes die.
    let grown = fs::OpenOptions::new().write(true).open(&file).unwrap();
    grown.write_all_at(&[99; 5000], 700).unwrap();
    grown.sync_all().unwrap();
    assert!(taken(&cluster) > before);
    assert!(
        success(redbud().arg("layout").arg(cluster.path(a).join("f7")))
            .contains("700 bytes, 1 segments")
    );
    put(&cluster, b, "f8", b"short");
    cluster.kill_server();
    cluster.start_server();
    cluster.kill_client(b);
    cluster.remount(b, &[]);
    let want = [vec![8; 700], vec![99; 5000]].concat();
    for mount in [a, b] {
        assert!(fs::read(cluster.path(mount).join("f7")).unwrap() == want);
        assert_eq!(fs::read(cluster.path(mount).join("f8")).unwrap(), b"short");
    }
    // Emptied, it is small again.
    put(&cluster, a, "f7", b"new");
    assert!(success(redbud().arg("layout").arg(&file)).contains("inline 3 bytes, 0 segments"));
    assert_eq!(fs::read(&file).unwrap(), b"new");
    cluster.finish();
}

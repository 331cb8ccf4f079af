//! Where files come to lie: turns of the zones, layouts of directories, and the commands that set
//! and show them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::harness::{Cluster, Spec, describe, pattern, redbud, success, zone_order, zones};

const MIB: usize = 1 << 20;

fn four(bytes: u64) -> Spec {
    Spec { data: vec![bytes; 4], ..Spec::default() }
}

fn write_synced(path: &Path, seed: u64, len: usize) {
    let file = fs::File::create(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern(seed, len), 0).unwrap();
    file.sync_all().unwrap();
}

fn refused(arguments: &[&str], path: &Path) -> (Option<i32>, String) {
    let output = redbud().args(arguments).arg(path).output().unwrap();
    (output.status.code(), describe(&output))
}

#[test]
fn files_of_one_mount_take_turns_and_outlive_a_restart() {
    let mut cluster = Cluster::start(&four(1 << 30));
    cluster.mount();
    let root = cluster.root();
    let mut used = Vec::new();
    for n in 0..8 {
        let path = root.join(format!("f{n}"));
        write_synced(&path, n, 4 * MIB);
        let on = zones(&path);
        assert_eq!(on.len(), 1, "f{n} lies on {on:?}");
        used.extend(on);
    }
    for zone in 0..4 {
        assert_eq!(used.iter().filter(|&&on| on == zone).count(), 2, "zone {zone} in {used:?}");
    }
    let why = |path: &Path| success(redbud().arg("layout").arg(path));
    let said = why(&root.join("f3"));
    assert!(said.contains("fileround: the zone's turn; od at launch: free blocks"), "{said}");
    // A file that goes on stays where it is.
    let more = fs::OpenOptions::new().write(true).open(root.join("f3")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&more, &pattern(9, 8 * MIB), 4 << 20).unwrap();
    more.sync_all().unwrap();
    drop(more);
    assert_eq!(zones(&root.join("f3")), [used[3]]);
    cluster.mount();
    let said = why(&cluster.path(1).join("f3"));
    assert!(said.contains("-: another mount chose the place"), "{said}");
    cluster.kill_server();
    cluster.start_server();
    for n in 0..8 {
        let bytes = fs::read(root.join(format!("f{n}"))).unwrap();
        assert!(bytes[..4 * MIB] == pattern(n, 4 * MIB), "f{n}");
    }
    let said = success(redbud().arg("layout").arg(&root));
    assert!(said.contains("8 files") && said.contains("8 files lie on one zone"), "{said}");
    assert!(said.contains("zone 3: ") && said.contains("that of the file system"), "{said}");
    cluster.finish();
}

#[test]
fn directories_have_layouts_that_are_inherited() {
    let mut cluster = Cluster::start(&four(256 << 20));
    cluster.mount();
    let root = cluster.root();
    let (striped, pair) = (root.join("striped"), root.join("pair"));
    fs::create_dir(&striped).unwrap();
    fs::create_dir(&pair).unwrap();
    let set = |path: &Path, more: &[&str]| success(redbud().arg("set-layout").arg(path).args(more));
    set(&striped, &["--policy", "striping", "--part", "1M"]);
    set(&pair, &["--zones", "1,3"]);

    // Parts lie on all zones in turns, also in a directory that was created later.
    let below = striped.join("below");
    fs::create_dir(&below).unwrap();
    write_synced(&below.join("file"), 1, 8 * MIB);
    let order = zone_order(&below.join("file"));
    assert_eq!(order.len(), 8, "{order:?}");
    assert!(order[..4] == order[4..], "{order:?}");
    assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 4, "{order:?}");
    let said = success(redbud().arg("layout").arg(&below));
    assert!(said.contains("policy=striping part=1048576"), "{said}");
    let said = success(redbud().arg("layout").arg(below.join("file")));
    assert!(said.contains("striping: part 7; od at launch: "), "{said}");
    let picture = cluster.dir.join("file.svg");
    success(redbud().arg("layout").arg("--svg").arg(&picture).arg(below.join("file")));
    assert_eq!(fs::read_to_string(&picture).unwrap().matches("<text").count(), 1 + 4);

    // Files of the second one stay on two zones, which another mount knows as well.
    let second = cluster.mount();
    let mut used = BTreeSet::new();
    for n in 0..4 {
        let path = cluster.path(second).join(format!("pair/f{n}"));
        write_synced(&path, n, 2 * MIB);
        used.extend(zones(&path));
    }
    assert_eq!(used, BTreeSet::from([1, 3]));
    // They are full at last, and the others are not.
    let large = fs::File::create(pair.join("large")).unwrap();
    let mut at = 0;
    let error = loop {
        let piece = pattern(3, 4 * MIB);
        match std::os::unix::fs::FileExt::write_all_at(&large, &piece, at) {
            Ok(()) => at += piece.len() as u64,
            Err(error) => break error,
        }
        assert!(at < 1 << 30, "more than two zones hold");
    };
    assert_eq!(error.raw_os_error(), Some(28), "{error}");
    assert!(at > 300 << 20, "only {at} bytes had room in two zones of 256 MiB");
    write_synced(&root.join("elsewhere"), 5, 2 * MIB);
    assert!(zones(&root.join("elsewhere")).iter().all(|zone| [0, 2].contains(zone)));
    drop(large);
    fs::remove_file(pair.join("large")).unwrap();

    // Lists of attributes do not name the layout, so copies do not take it along.
    let mut names = [0u8; 256];
    let len = rustix::fs::listxattr(&striped, &mut names[..]).unwrap();
    assert!(!String::from_utf8_lossy(&names[..len]).contains("redbud"));
    set(&pair, &["--default"]);
    let said = success(redbud().arg("layout").arg(&pair));
    assert!(said.contains("policy=fileround (that of the file system)"), "{said}");
    cluster.finish();
}

#[test]
fn wrong_layouts_are_refused_with_the_reason() {
    let mut cluster = Cluster::start(&four(256 << 20));
    cluster.mount();
    let root = cluster.root();
    fs::write(root.join("file"), b"x").unwrap();
    for (arguments, on, code, reason) in [
        (&["set-layout", "--zones", "7"][..], "", 1, "`redbud df` shows the zones"),
        (&["set-layout", "--zones", "3-1"], "", 2, "`3-1`"),
        (&["set-layout", "--part", "1M"], "", 2, "policy=striping"),
        (&["set-layout", "--policy", "striping", "--part", "1000"], "", 2, "multiple of 4096"),
        (&["set-layout", "--policy", "striping", "--width", "40"], "", 2, "`40`"),
        (&["set-layout"], "file", 1, "only directories"),
        (&["set-layout"], "missing", 1, "No such file"),
        (&["layout"], "missing", 1, "No such file"),
    ] {
        let (status, said) = refused(arguments, &root.join(on));
        assert!(status == Some(code) && said.contains(reason), "{arguments:?}: {status:?} {said}");
    }
    let (status, said) = refused(&["set-layout"], &cluster.dir);
    assert!(status == Some(1) && said.contains("does not lie in a Redbud mount"), "{said}");
    // The same by hand.
    let set = |value: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&root, "user.redbud.dir.layout", value.as_bytes(), flags)
    };
    assert_eq!(set("policy=round"), Err(rustix::io::Errno::INVAL));
    assert_eq!(set("zones=0,9"), Err(rustix::io::Errno::INVAL));
    set("zones=0").unwrap();
    assert_eq!(
        success(redbud().arg("layout").arg(&root))
            .lines()
            .next()
            .map(|line| { line.ends_with(": policy=fileround zones=0") }),
        Some(true)
    );
    cluster.finish();
}

/// More segments than two replies of the server, or than an extended attribute, can have.
#[test]
fn file_of_many_segments_is_read_and_shown_whole() {
    const SEGMENTS: u64 = 9000;
    let mut cluster = Cluster::start(&Spec::default());
    cluster.mount();
    cluster.mount();
    let file = fs::File::create(cluster.path(0).join("sparse")).unwrap();
    for n in 0..SEGMENTS {
        std::os::unix::fs::FileExt::write_all_at(&file, &pattern(n, 4096), n * 8192).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    let path = cluster.path(1).join("sparse");
    let read = fs::read(&path).unwrap();
    let is_sound = |n: u64| {
        let at = (n * 8192) as usize;
        let hole = &read[at + 4096..read.len().min(at + 8192)];
        read[at..at + 4096] == pattern(n, 4096) && hole.iter().all(|&byte| byte == 0)
    };
    assert_eq!((0..SEGMENTS).find(|&n| !is_sound(n)), None);
    let said = success(redbud().args(["layout", "--json"]).arg(&path));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["files"][0]["segments"].as_array().unwrap().len() as u64, SEGMENTS);
    cluster.finish();
}

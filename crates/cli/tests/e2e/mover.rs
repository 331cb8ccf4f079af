//! `redbud pag drain` and `redbud rebalance`: files that move between data zones.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::{Cluster, Spec, describe, eventually, pattern, redbud, success};
use crate::pag::{Loop, ZONE, add, json, listed, named, pag, small, zones};

const MB: usize = 1 << 20;

/// Writes a file, and makes it durable.
fn write(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// Writes so many files of so many bytes, with their numbers as seeds.
fn write_files(root: &Path, count: u64, len: usize) -> Vec<(PathBuf, u64)> {
    let files = (0..count).map(|seed| (root.join(format!("f{seed}")), seed));
    files.inspect(|(path, seed)| write(path, &pattern(*seed, len))).collect()
}

fn assert_content(files: &[(PathBuf, u64)], len: usize) {
    for (path, seed) in files {
        assert!(fs::read(path).unwrap() == pattern(*seed, len), "{}", path.display());
    }
}

/// Drops what mounts have cached of all contents.
fn mount_anew(cluster: &mut Cluster, count: usize) {
    for index in 0..count {
        cluster.unmount(index);
        cluster.remount(index, &[]);
    }
}

/// The move has ended, with nothing left in the zone.
fn assert_empty(cluster: &Cluster, output: &Output, zone: u64) {
    let report = json(output);
    assert_eq!(report["empty"], true, "{report}");
    let now = listed(cluster, zone);
    assert_eq!(now["state"], "drained", "{now}");
    assert_eq!(now["bytes_free"], now["bytes"], "{now}");
    assert_eq!(named(cluster, &[&zone.to_string()]), Vec::<String>::new());
}

fn drain(cluster: &Cluster, zone: u64) -> Output {
    pag(cluster, &["drain", "--json", &zone.to_string()])
}

/// Begins a move, which nobody waits for.
fn begin(cluster: &Cluster, args: &[&str]) -> Child {
    let mut command = redbud();
    command.args(["pag", "drain"]).args(args).arg(&cluster.source);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn zone_drains_while_its_files_are_written_truncated_removed_and_read() {
    let mut cluster = Cluster::start(&Spec { data: vec![2 * ZONE; 3], ..small() });
    cluster.mount();
    cluster.mount();
    let (one, other) = (cluster.path(0), cluster.path(1));
    let still = write_files(&one, 12, 3 * MB);
    for name in ["overwritten", "appended", "truncated"] {
        write(&one.join(name), &pattern(50, 4 * MB));
    }
    let sparse = File::create(one.join("sparse")).unwrap();
    for n in 0..300 {
        sparse.write_all_at(&pattern(n, 5000), n * 16384).unwrap();
    }
    sparse.sync_all().unwrap();
    drop(sparse);
    let sparse = fs::read(one.join("sparse")).unwrap();
    for n in 0..12 {
        let file = File::create(one.join(format!("planned{n}"))).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, MB as u64).unwrap();
        file.write_all_at(&[7; 4096], 8192).unwrap();
        file.sync_all().unwrap();
    }
    let orphans: Vec<File> = (0..6)
        .map(|n| {
            let path = other.join("orphan");
            write(&path, &pattern(200 + n, MB));
            let file = File::open(&path).unwrap();
            fs::remove_file(path).unwrap();
            file
        })
        .collect();
    let on = |zone: u64| still.iter().filter(|(path, _)| zones(path).contains(&zone)).count();
    assert!(on(0) > 0 && on(1) > 0, "all zones are used");
    let times = |path: &Path| {
        let about = fs::metadata(path).unwrap();
        (about.modified().unwrap(), about.len())
    };
    let before: Vec<_> = still.iter().map(|(path, _)| times(path)).collect();

    let ended = AtomicBool::new(false);
    let goes_on = || !ended.load(Ordering::Relaxed);
    let (overwritten, appended, length, output) = thread::scope(|scope| {
        let overwriter = scope.spawn(|| {
            let file = File::options().read(true).write(true).open(one.join("overwritten"));
            let (file, mut want) = (file.unwrap(), pattern(50, 4 * MB));
            for round in 0.. {
                if !goes_on() {
                    break;
                }
                let (at, bytes) = ((round * 7919 * 512) as usize % (4 * MB), pattern(round, 9000));
                let bytes = &bytes[..bytes.len().min(4 * MB - at)];
                file.write_all_at(bytes, at as u64).unwrap();
                want[at..at + bytes.len()].copy_from_slice(bytes);
            }
            want
        });
        let appender = scope.spawn(|| {
            let path = other.join("appended");
            let mut file = File::options().append(true).open(path).unwrap();
            let mut want = pattern(50, 4 * MB);
            for round in 0..1000 {
                if !goes_on() {
                    break;
                }
                let bytes = pattern(round, 5000);
                file.write_all(&bytes).unwrap();
                want.extend(bytes);
            }
            want
        });
        let truncator = scope.spawn(|| {
            let file = File::options().write(true).open(other.join("truncated")).unwrap();
            let mut len = 4 * MB as u64;
            while goes_on() && len > 5000 {
                len -= 4999;
                file.set_len(len).unwrap();
                thread::sleep(Duration::from_millis(2));
            }
            len
        });
        let remover = scope.spawn(|| {
            for round in 0.. {
                if !goes_on() {
                    break;
                }
                let path = one.join(format!("short{}", round % 4));
                write(&path, &pattern(round, MB));
                assert!(fs::read(&path).unwrap() == pattern(round, MB));
                fs::remove_file(path).unwrap();
            }
        });
        let reader = scope.spawn(|| {
            while goes_on() {
                for (path, seed) in &still {
                    let path = other.join(path.file_name().unwrap());
                    assert!(fs::read(path).unwrap() == pattern(*seed, 3 * MB));
                }
            }
        });
        let output = drain(&cluster, 0);
        ended.store(true, Ordering::Relaxed);
        remover.join().unwrap();
        reader.join().unwrap();
        let (overwritten, appended) = (overwriter.join().unwrap(), appender.join().unwrap());
        (overwritten, appended, truncator.join().unwrap(), output)
    });
    assert_empty(&cluster, &output, 0);
    assert!(json(&output)["files"].as_u64().unwrap() >= on(0) as u64);
    let orphan = |file: &File, n: u64| {
        let mut content = vec![0; MB];
        file.read_exact_at(&mut content, 0).unwrap();
        assert!(content == pattern(200 + n, MB), "orphan {n}");
    };
    (0..).zip(&orphans).for_each(|(n, file)| orphan(file, n));
    drop(orphans);
    mount_anew(&mut cluster, 2);
    assert_content(&still, 3 * MB);
    let after: Vec<_> = still.iter().map(|(path, _)| times(path)).collect();
    assert_eq!(before, after, "times and sizes stay");
    assert!(fs::read(one.join("overwritten")).unwrap() == overwritten);
    assert!(fs::read(one.join("appended")).unwrap() == appended);
    assert!(fs::read(one.join("truncated")).unwrap() == pattern(50, 4 * MB)[..length as usize]);
    assert!(fs::read(one.join("sparse")).unwrap() == sparse);
    let mut planned = vec![0; MB];
    planned[8192..12288].fill(7);
    for n in 0..12 {
        assert!(fs::read(one.join(format!("planned{n}"))).unwrap() == planned, "planned{n}");
    }
    // Nothing comes back, also after a restart of the server.
    cluster.kill_server();
    cluster.start_server();
    write_files(&one, 12, 2 * MB);
    assert_eq!(listed(&cluster, 0)["state"], "drained");
    cluster.finish();
}

#[test]
fn move_that_is_killed_again_and_again_loses_nothing_and_goes_on() {
    let mut cluster =
        Cluster::start(&Spec { data: vec![2 * ZONE; 2], lease: Duration::from_secs(5), ..small() });
    cluster.mount();
    let files = write_files(&cluster.root(), 40, 2 * MB);
    let used = |cluster: &Cluster| {
        let zone = listed(cluster, 0);
        zone["bytes"].as_u64().unwrap() - zone["bytes_free"].as_u64().unwrap()
    };
    let first = used(&cluster);
    assert!(first >= 20 * MB as u64, "{first}");
    for delay in [40, 150, 90, 330, 210, 500] {
        let mut mover = begin(&cluster, &["--rate", "40M", "0"]);
        thread::sleep(Duration::from_millis(delay));
        mover.kill().unwrap();
        mover.wait().unwrap();
        // Some of it is not in the mount's cache.
        let (path, seed) = &files[delay as usize % files.len()];
        assert!(fs::read(path).unwrap() == pattern(*seed, 2 * MB), "{}", path.display());
    }
    // However slow the machine is, one is killed when it has moved something.
    let mut mover = begin(&cluster, &["--rate", "40M", "0"]);
    eventually("some of it moves", || used(&cluster) < first);
    mover.kill().unwrap();
    mover.wait().unwrap();
    mount_anew(&mut cluster, 1);
    assert_content(&files, 2 * MB);
    // The server dies while files move.
    let mover = begin(&cluster, &["--json", "--rate", "20M", "0"]);
    thread::sleep(Duration::from_millis(300));
    cluster.kill_server();
    cluster.start_server();
    let output = mover.wait_with_output().unwrap();
    assert_empty(&cluster, &output, 0);
    mount_anew(&mut cluster, 1);
    assert_content(&files, 2 * MB);
    cluster.finish();
}

#[test]
fn zone_whose_content_fits_nowhere_else_keeps_it() {
    let mut cluster = Cluster::start(&Spec { data: vec![ZONE; 2], ..small() });
    cluster.mount();
    let files = write_files(&cluster.root(), 24, 4 * MB);
    let output = drain(&cluster, 0);
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("RB-DRAIN-NO-ROOM") && said.contains("redbud pag add"), "{said}");
    mount_anew(&mut cluster, 1);
    assert_content(&files, 4 * MB);
    assert_eq!(listed(&cluster, 0)["state"], "draining");
    // With another device the same command ends the work.
    let device = Loop::new(&cluster, "more", 2 * ZONE);
    add(&cluster, &device.device);
    assert_empty(&cluster, &drain(&cluster, 0), 0);
    mount_anew(&mut cluster, 1);
    assert_content(&files, 4 * MB);
    assert_eq!(json(&pag(&cluster, &["drain", "--undo", "--json", "0"]))["state"], "in service");
    assert_eq!(listed(&cluster, 0)["state"], "in service");
    cluster.finish();
}

#[test]
fn file_whose_layout_allows_only_the_draining_zone_is_named_and_stays() {
    let mut cluster = Cluster::start(&Spec { data: vec![ZONE; 3], ..small() });
    cluster.mount();
    let root = cluster.root();
    let dir = |name: &str, layout: &[&str]| {
        let path = root.join(name);
        fs::create_dir(&path).unwrap();
        success(redbud().arg("set-layout").args(layout).arg(&path));
        path
    };
    let bound = dir("bound", &["--zones", "0"]).join("file");
    let striped = dir("striped", &["--policy", "striping", "--part", "1M"]).join("file");
    let both = dir("both", &["--zones", "0,2"]).join("file");
    for (seed, path) in (0..).zip([&bound, &striped, &both]) {
        write(path, &pattern(seed, 9 * MB));
    }
    assert!(zones(&bound) == [0] && zones(&striped) == [0, 1, 2]);
    let output = drain(&cluster, 0);
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("/bound/file: its layout allows data zones 0 only"), "{said}");
    assert!(said.contains("RB-DRAIN-LEFT"), "{said}");
    assert_eq!(named(&cluster, &["0"]), ["/bound/file"]);
    mount_anew(&mut cluster, 1);
    for (seed, path) in (0..).zip([&bound, &striped, &both]) {
        assert!(fs::read(path).unwrap() == pattern(seed, 9 * MB), "{}", path.display());
    }
    assert_eq!((zones(&striped), zones(&both)), (vec![1, 2], vec![2]));
    fs::copy(&bound, root.join("copy")).unwrap();
    fs::remove_file(&bound).unwrap();
    assert_empty(&cluster, &drain(&cluster, 0), 0);
    cluster.finish();
}

#[test]
fn move_keeps_to_its_rate_and_is_paused_by_another_command() {
    let mut cluster = Cluster::start(&Spec { data: vec![ZONE; 2], ..small() });
    cluster.mount();
    let files = write_files(&cluster.root(), 16, 2 * MB);
    let before = listed(&cluster, 0)["bytes_free"].as_u64().unwrap();
    let mover = begin(&cluster, &["--rate", "1M", "0"]);
    eventually("something moves", || listed(&cluster, 0)["bytes_free"].as_u64() > Some(before));
    assert_eq!(json(&pag(&cluster, &["drain", "--pause", "--json", "0"]))["state"], "drain paused");
    let output = mover.wait_with_output().unwrap();
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("data zone 0 is drain paused by now"), "{said}");
    assert!(!named(&cluster, &["0"]).is_empty(), "a second is not enough for it");
    assert_eq!(listed(&cluster, 0)["state"], "drain paused");
    assert_content(&files, 2 * MB);
    assert_empty(&cluster, &drain(&cluster, 0), 0);
    assert_content(&files, 2 * MB);
    cluster.finish();
}

#[test]
fn files_move_to_a_zone_that_was_added_until_both_are_even() {
    let mut cluster = Cluster::start(&small());
    cluster.mount();
    let files = write_files(&cluster.root(), 22, 2 * MB);
    let device = Loop::new(&cluster, "more", ZONE);
    assert_eq!(add(&cluster, &device.device), 1);
    let output = redbud().args(["rebalance", "--json"]).arg(&cluster.source).output().unwrap();
    let report = json(&output);
    let share = |zone: usize| {
        let zone = &report["pags"][zone];
        zone["bytes_in_files"].as_u64().unwrap() * 100 / zone["bytes"].as_u64().unwrap()
    };
    assert!(share(0).abs_diff(share(1)) <= 5, "{report}");
    assert!(report["bytes_moved"].as_u64() >= Some(16 * MB as u64), "{report}");
    mount_anew(&mut cluster, 1);
    assert_content(&files, 2 * MB);
    assert!(files.iter().all(|(path, _)| zones(path).len() == 1), "whole files move");
    // There is nothing more to do.
    let output = redbud().args(["rebalance", "--json"]).arg(&cluster.source).output().unwrap();
    assert_eq!(json(&output)["bytes_moved"], 0);
    cluster.finish();
}

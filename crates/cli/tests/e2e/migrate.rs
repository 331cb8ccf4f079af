//! `redbud migrate`: files that move between blocks and objects, while programs use them, and while
//! the mover and the metadata server are killed.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;

use crate::harness::{Cluster, Content, Mapping, Spec, describe, eventually, pattern, redbud};
use crate::pag::json;

const MB: usize = 1 << 20;
/// The data zones of the cluster that have blocks; its targets are those behind them.
const BLOCKS: u16 = 2;

/// A cluster with blocks and two targets, mounted.
fn mounted() -> Cluster {
    let (lease, content) = (Duration::from_secs(1), Content::Beside);
    let mut cluster = Cluster::start(&Spec { lease, content, ..Spec::default() });
    cluster.mount();
    cluster
}

fn command(files: &[&Path], options: &[&str]) -> std::process::Command {
    let mut command = redbud();
    command.arg("migrate").args(files).args(options);
    command
}

fn migrate(files: &[&Path], options: &[&str]) -> Output {
    command(files, &[options, &["--json"]].concat()).output().unwrap()
}

/// Moves one file, and returns what is said of it.
fn migrated(file: &Path, options: &[&str]) -> String {
    let report = json(&migrate(&[file], options));
    report["files"][0]["state"].as_str().unwrap().to_owned()
}

/// The zones that a file lies on: none if it lies with its inode.
fn zones(path: &Path) -> Vec<u16> {
    let mut text = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(path, "user.redbud.layout", &mut text[..]).unwrap();
    let layout: serde_json::Value = serde_json::from_slice(&text[..len]).unwrap();
    let segments = layout.as_array().unwrap().iter();
    segments.filter_map(|segment| segment["pag"].as_u64()).map(|zone| zone as u16).collect()
}

/// Does the file lie in objects only, or in blocks only?
fn is_object(path: &Path) -> bool {
    let zones = zones(path);
    let objects = zones.iter().filter(|zone| **zone >= BLOCKS).count();
    assert!(objects == 0 || objects == zones.len(), "{zones:?}");
    objects > 0
}

/// The pieces of a file that are no holes.
fn data(path: &Path) -> Vec<(u64, u64)> {
    let file = File::open(path).unwrap();
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(from) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, SeekFrom::Hole(from)).unwrap();
        found.push((from, at));
    }
    found
}

/// What of a file must stay.
fn kept(path: &Path) -> (u64, u64, u32, u32, i64, i64, i64, i64, Vec<u8>) {
    let about = fs::metadata(path).unwrap();
    let mut value = vec![0; 64];
    let len = rustix::fs::getxattr(path, "user.color", &mut value[..]).unwrap();
    value.truncate(len);
    (
        about.ino(),
        about.len(),
        about.mode(),
        about.uid(),
        about.mtime(),
        about.mtime_nsec(),
        about.ctime(),
        about.ctime_nsec(),
        value,
    )
}

fn sparse(path: &Path) -> Vec<u8> {
    let file = File::create(path).unwrap();
    let mut want = vec![0; 9 * MB + 77];
    for (seed, at) in [(1, 0), (2, 64 << 10), (3, 3 * MB), (4, 3 * MB + 8192), (5, 7 * MB)] {
        let bytes = pattern(seed, 8192);
        file.write_all_at(&bytes, at as u64).unwrap();
        want[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    file.set_len(want.len() as u64).unwrap();
    file.sync_all().unwrap();
    want
}

fn write(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn file_moves_to_objects_and_back_with_all_that_it_has() {
    let mut cluster = mounted();
    let empty = cluster.targets.free();
    cluster.mount();
    let (root, other) = (cluster.path(0), cluster.path(1));
    let files: [(&str, Vec<u8>); 5] = [
        ("large", pattern(9, 20 * MB + 5)),
        ("sparse", sparse(&root.join("sparse"))),
        ("small", pattern(8, 200)),
        ("block", pattern(7, 4096)),
        ("empty", Vec::new()),
    ];
    for (name, bytes) in &files {
        if *name != "sparse" {
            write(&root.join(name), bytes);
        }
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(root.join(name), "user.color", name.as_bytes(), flags).unwrap();
    }
    let before: Vec<_> =
        files.iter().map(|(name, _)| (kept(&root.join(name)), data(&root.join(name)))).collect();
    let open: Vec<File> =
        files.iter().map(|(name, _)| File::open(other.join(name)).unwrap()).collect();
    let moves: [(&[&str], &[u16]); 5] = [
        (&["--to", "objects"], &[2, 3]),
        (&["--to", "objects", "--width", "2", "--part", "256K"], &[2, 3]),
        (&["--to", "blocks", "--zones", "1"], &[1]),
        (&["--to", "objects", "--zones", "3"], &[3]),
        (&["--to", "blocks"], &[0, 1]),
    ];
    for (options, allowed) in moves {
        for (name, _) in &files {
            assert_eq!(migrated(&root.join(name), options), "moved", "{name} {options:?}");
            assert_eq!(migrated(&other.join(name), options), "there", "{name} {options:?}");
        }
        for (((name, bytes), (kept_before, holes)), file) in files.iter().zip(&before).zip(&open) {
            let what = format!("{name} {options:?}");
            for path in [root.join(name), other.join(name)] {
                assert!(fs::read(&path).unwrap() == *bytes, "{what}");
                assert_eq!(kept(&path), *kept_before, "{what}");
                assert_eq!(data(&path), *holes, "{what}");
                assert!(zones(&path).iter().all(|zone| allowed.contains(zone)), "{what}");
            }
            let mut content = vec![0; bytes.len()];
            file.read_exact_at(&mut content, 0).unwrap();
            assert!(content == *bytes, "{what}, through a descriptor from before");
        }
    }
    // What is written from now on lies where the file lies.
    migrated(&root.join("large"), &["--to", "objects"]);
    let mut file = File::options().append(true).open(other.join("large")).unwrap();
    file.write_all(&pattern(1, 3 * MB)).unwrap();
    file.sync_all().unwrap();
    assert!(is_object(&root.join("large")));
    migrated(&root.join("large"), &["--to", "blocks", "--zones", "1"]);
    file.write_all(&pattern(2, 3 * MB)).unwrap();
    file.sync_all().unwrap();
    assert!(zones(&root.join("large")).iter().all(|zone| *zone == 1));
    let want = [&files[0].1[..], &pattern(1, 3 * MB), &pattern(2, 3 * MB)].concat();
    assert!(fs::read(root.join("large")).unwrap() == want);
    drop((file, open));
    assert_eq!(leftovers(cluster, empty), 0);
}

/// Waits until the targets have destroyed what they can, ends everything, and counts the objects.
fn leftovers(cluster: Cluster, before: u64) -> u64 {
    eventually("the targets are as free as before", || cluster.targets.free() == before);
    cluster.finish()
}

#[test]
fn second_mount_writes_a_file_that_moves_there_and_back() {
    let mut cluster = mounted();
    let empty = cluster.targets.free();
    cluster.mount();
    let (root, other) = (cluster.path(0), cluster.path(1));
    let path = root.join("busy");
    let mut want = pattern(1, 6 * MB);
    write(&path, &want);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let file = File::options().read(true).write(true).open(other.join("busy")).unwrap();
            let mut appended = File::options().append(true).open(other.join("busy")).unwrap();
            let mut round: u64 = 0;
            while !ended.load(Ordering::Relaxed) {
                round += 1;
                let at = (round * 7919 * 512) as usize % (6 * MB - 9000);
                let bytes = pattern(round, 9000);
                file.write_all_at(&bytes, at as u64).unwrap();
                want[at..at + bytes.len()].copy_from_slice(&bytes);
                let mut back = vec![0; 9000];
                file.read_exact_at(&mut back, at as u64).unwrap();
                assert!(back == bytes, "round {round}");
                if round.is_multiple_of(64) {
                    appended.write_all(&bytes).unwrap();
                    want.extend(bytes);
                }
            }
            want
        });
        for _ in 0..3 {
            assert_eq!(migrated(&path, &["--to", "objects", "--width", "2"]), "moved");
            assert!(is_object(&path));
            assert_eq!(migrated(&path, &["--to", "blocks"]), "moved");
            assert!(!is_object(&path));
        }
        ended.store(true, Ordering::Relaxed);
        let want = writer.join().unwrap();
        assert!(fs::read(&path).unwrap() == want);
        cluster.unmount(1);
        cluster.unmount(0);
        cluster.remount(0, &[]);
        assert!(fs::read(&path).unwrap() == want);
    });
    assert_eq!(leftovers(cluster, empty), 0);
}

/// Begins to move files, and does not wait for that.
fn begin(files: &[&Path], options: &[&str]) -> Child {
    let mut command = command(files, options);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Writes to files what they have: that needs the right that a killed mover may still have, so the
/// server evicts it.
fn need(files: &[&Path]) {
    for path in files {
        let first = fs::read(path).unwrap()[..1].to_vec();
        File::options().write(true).open(path).unwrap().write_all_at(&first, 0).unwrap();
    }
}

#[test]
fn killed_mover_and_killed_server_lose_nothing_and_leave_nothing() {
    let mut cluster = mounted();
    let empty = cluster.targets.free();
    let root = cluster.root();
    let names = ["one", "two", "three"];
    let paths: Vec<PathBuf> = names.iter().map(|name| root.join(name)).collect();
    let all: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let content = |n: usize| pattern(n as u64, 5 * MB + n);
    (0..).zip(&all).for_each(|(n, path)| write(path, &content(n)));
    let assert_content = |when: &str| {
        for (n, path) in (0..).zip(&all) {
            assert!(fs::read(path).unwrap() == content(n), "{when}: {}", path.display());
        }
    };
    for (round, delay) in (0..).zip([60, 200, 350, 500, 800, 1200]) {
        let to = if round % 2 == 0 { "objects" } else { "blocks" };
        let mut mover = begin(&all, &["--to", to, "--rate", "8M"]);
        thread::sleep(Duration::from_millis(delay));
        mover.kill().unwrap();
        mover.wait().unwrap();
        assert_content("the mover was killed");
        if round == 3 {
            cluster.unmount(0);
            cluster.remount(0, &[]);
            assert_content("and the mount is another one");
        }
    }
    // One is killed for certain when it has written objects.
    let output = migrate(&all, &["--to", "blocks"]);
    assert!(output.status.success(), "{}", describe(&output));
    need(&all);
    eventually("the objects of killed movers are destroyed", || cluster.targets.free() == empty);
    let mut mover = begin(&all[..1], &["--to", "objects", "--zones", "2", "--rate", "2M"]);
    eventually("something is copied", || cluster.targets.free() < empty);
    mover.kill().unwrap();
    mover.wait().unwrap();
    assert!(!is_object(all[0]));
    need(&all);
    eventually("the object of the killed mover is destroyed", || cluster.targets.free() == empty);
    // The server dies while files move, and the command ends its work.
    for (to, wait) in [("objects", 300), ("blocks", 700)] {
        let mover = begin(&all, &["--to", to, "--json", "--rate", "8M"]);
        thread::sleep(Duration::from_millis(wait));
        cluster.kill_server();
        cluster.start_server();
        let output = mover.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", describe(&output));
        assert_content("the server was killed");
        assert!(all.iter().all(|path| is_object(path) == (to == "objects")));
    }
    // Both die.
    let mut mover = begin(&all, &["--to", "objects", "--rate", "8M"]);
    thread::sleep(Duration::from_millis(900));
    cluster.kill_server();
    mover.kill().unwrap();
    mover.wait().unwrap();
    cluster.start_server();
    assert_content("both were killed");
    let output = migrate(&all, &["--to", "blocks"]);
    assert!(output.status.success(), "{}", describe(&output));
    need(&all);
    assert_content("at the end");
    assert_eq!(leftovers(cluster, empty), 0);
}

#[test]
fn what_cannot_move_is_named_and_stays() {
    let cluster = mounted();
    let empty = cluster.targets.free();
    let root = cluster.root();
    let file = root.join("file");
    write(&file, &pattern(3, MB));
    fs::create_dir(root.join("dir")).unwrap();
    let said = |files: &[&Path], options: &[&str]| {
        let output = command(files, options).output().unwrap();
        (output.status.code().unwrap(), describe(&output))
    };
    let (code, text) = said(&[&file], &["--to", "tape"]);
    assert!(code == 2 && text.contains("blocks, objects"), "{text}");
    for (path, why) in [("dir", "is a directory"), ("none", "No such file")] {
        let (code, text) = said(&[&root.join(path)], &["--to", "objects"]);
        assert!(code == 1 && text.contains(why), "{text}");
    }
    let (code, text) = said(&[&file, &root.join("dir")], &["--to", "objects"]);
    assert!(code == 3 && text.contains("file: moved") && text.contains("is a directory"), "{text}");
    for (options, why) in [
        (&["--to", "blocks", "--zones", "9"][..], "no data zone 9"),
        (&["--to", "blocks", "--zones", "2"], "is an object target"),
        (&["--to", "objects", "--zones", "1"], "is no object target"),
    ] {
        let (code, text) = said(&[&file], options);
        assert!(code == 1 && text.contains(why), "{text}");
    }
    // The layout is an attribute, too, and all together have 64 KiB.
    let full = root.join("full");
    write(&full, &pattern(4, MB));
    let (name, flags) = ("user.large", rustix::fs::XattrFlags::empty());
    rustix::fs::setxattr(&full, name, &vec![7; (64 << 10) - name.len() - 20], flags).unwrap();
    let (code, text) = said(&[&full], &["--to", "objects"]);
    assert!(code == 1 && text.contains("extended attributes leave no room"), "{text}");
    assert!(!is_object(&full));
    // More than the target has room for: its device has 512 MiB.
    let large = root.join("large");
    let mut written = File::create(&large).unwrap();
    (0..600).for_each(|seed| written.write_all(&pattern(seed, MB)).unwrap());
    written.sync_all().unwrap();
    let (code, text) = said(&[&large], &["--to", "objects", "--zones", "2"]);
    assert!(code == 1 && text.contains("no room"), "{text}");
    assert!(!is_object(&large) && is_object(&file));
    let mut bytes = vec![0; MB];
    written = File::open(&large).unwrap();
    written.read_exact_at(&mut bytes, 599 << 20).unwrap();
    assert!(bytes == pattern(599, MB));
    assert_eq!(migrated(&file, &["--to", "blocks"]), "moved");
    drop(written);
    assert_eq!(leftovers(cluster, empty), 0);
}

/// `stat` counts the holes of an object file as blocks; a move copies none.
#[test]
fn object_with_holes_moves_to_a_target_that_is_smaller_than_its_size() {
    let cluster = mounted();
    let empty = cluster.targets.free();
    let path = cluster.root().join("sparse");
    let file = File::create(&path).unwrap();
    file.write_all_at(&pattern(1, MB), 5 << 20).unwrap();
    file.set_len(4 << 30).unwrap();
    file.sync_all().unwrap();
    drop(file);
    for zone in ["2", "3"] {
        assert_eq!(migrated(&path, &["--to", "objects", "--zones", zone]), "moved", "{zone}");
        assert_eq!(data(&path), [(5 << 20, 6 << 20)]);
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 30);
    assert_eq!(migrated(&path, &["--to", "blocks"]), "moved");
    assert_eq!(leftovers(cluster, empty), 0);
}

#[test]
fn file_that_two_movers_have_moves_once_and_ends_where_one_of_them_wants_it() {
    let cluster = mounted();
    let empty = cluster.targets.free();
    let path = cluster.root().join("file");
    let want = pattern(4, 6 * MB);
    write(&path, &want);
    let both = |options: [&str; 2]| {
        let begun = options.map(|to| begin(&[&path], &["--to", to, "--json", "--rate", "8M"]));
        let mut states = begun.map(|mover| {
            let report = json(&mover.wait_with_output().unwrap());
            report["files"][0]["state"].as_str().unwrap().to_owned()
        });
        states.sort();
        assert!(fs::read(&path).unwrap() == want);
        states
    };
    assert_eq!(both(["objects", "objects"]), ["moved", "there"]);
    assert!(is_object(&path));
    assert_eq!(both(["blocks", "blocks"]), ["moved", "there"]);
    assert!(!is_object(&path));
    for _ in 0..3 {
        let states = both(["objects", "blocks"]);
        assert!(states.contains(&"moved".to_owned()), "{states:?}");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(leftovers(cluster, empty), 0);
}

/// Another mount writes a mapping of it all the time, so the right goes to and fro.
#[test]
fn mapped_file_moves_there_and_back_when_its_names_are_gone() {
    let mut cluster = mounted();
    let empty = cluster.targets.free();
    cluster.mount();
    let (root, other) = (cluster.path(0), cluster.path(1));
    let (path, second) = (root.join("file"), root.join("second"));
    let mut want = pattern(4, 6 * MB);
    write(&path, &want);
    fs::hard_link(&path, &second).unwrap();
    let file = File::options().read(true).write(true).open(other.join("file")).unwrap();
    let mapping = Mapping::of(&file);
    let move_to = |to: &str, names: &[&Path]| {
        let mover = begin(&[&path], &["--to", to, "--json", "--rate", "4M"]);
        for round in 0..=255 {
            mapping.store(usize::from(round), round);
            thread::sleep(Duration::from_millis(10));
            if round == 100 {
                names.iter().for_each(|name| fs::remove_file(name).unwrap());
            }
        }
        let report = json(&mover.wait_with_output().unwrap());
        assert_eq!(report["files"][0]["state"], "moved", "{report}");
        (0..=255).for_each(|at| assert_eq!(mapping.load(usize::from(at)), at));
    };
    move_to("objects", &[]);
    move_to("blocks", &[&second]);
    move_to("objects", &[&path]);
    (0..=255).for_each(|at| want[usize::from(at)] = at);
    mapping.store(4000, 99);
    want[4000] = 99;
    file.sync_all().unwrap();
    let mut content = vec![0; want.len()];
    file.read_exact_at(&mut content, 0).unwrap();
    assert!(content == want);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop((mapping, file));
    assert_eq!(leftovers(cluster, empty), 0);
}

/// The third copy keeps the file from its users. They have it again before the target is back.
#[test]
fn target_that_goes_away_during_the_third_copy_keeps_nobody_from_the_file() {
    let mut cluster = mounted();
    let empty = cluster.targets.free();
    cluster.mount();
    let (path, other) = (cluster.root().join("file"), cluster.path(1).join("file"));
    write(&path, &pattern(1, 12 * MB));
    let (rounds, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let file = File::options().write(true).open(&other).unwrap();
            while !ended.load(Ordering::Relaxed) {
                let round = rounds.load(Ordering::Relaxed) + 1;
                file.write_all_at(&round.to_le_bytes(), 0).unwrap();
                rounds.store(round, Ordering::Relaxed);
            }
        });
        let mover = begin(&[&path], &["--to", "objects", "--zones", "2", "--rate", "2M", "--json"]);
        let (mut seen, mut since) = (0, Instant::now());
        eventually("the third copy keeps the writer out", || {
            let now = rounds.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            since.elapsed() > Duration::from_secs(1) && cluster.targets.free() < empty
        });
        cluster.targets.kill(0);
        eventually("the writer has the file", || rounds.load(Ordering::Relaxed) > seen + 1);
        let output = mover.wait_with_output().unwrap();
        let said = describe(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("127.0.0.1:") && said.contains("has not answered for 10 s"),
            "{said}"
        );
        ended.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        cluster.targets.serve(0);
    });
    assert!(!is_object(&path));
    let mut want = pattern(1, 12 * MB);
    want[..8].copy_from_slice(&rounds.load(Ordering::Relaxed).to_le_bytes());
    assert!(fs::read(&path).unwrap() == want);
    assert_eq!(migrated(&path, &["--to", "objects", "--zones", "2"]), "moved");
    assert!(fs::read(&path).unwrap() == want);
    assert_eq!(migrated(&path, &["--to", "blocks"]), "moved");
    assert_eq!(leftovers(cluster, empty), 0);
}

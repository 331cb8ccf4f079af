//! `redbud pag`: data zones that come while the file system is mounted.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::{Cluster, Spec, describe, eventually, pattern, redbud, success};

pub const ZONE: u64 = 64 << 20;

/// A loop device over a new file of this size.
pub struct Loop {
    pub device: String,
    file: PathBuf,
}

impl Loop {
    pub fn new(cluster: &Cluster, name: &str, bytes: u64) -> Loop {
        let file = cluster.dir.join(name);
        File::create(&file).unwrap().set_len(bytes).unwrap();
        let made = success(Command::new("losetup").args(["--find", "--show"]).arg(&file));
        Loop { device: made.trim().to_owned(), file }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("-d").arg(&self.device).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} was not detached", self.device);
        }
    }
}

pub fn small() -> Spec {
    Spec { data: vec![ZONE], inline_data: false, ..Spec::default() }
}

pub fn pag(cluster: &Cluster, args: &[&str]) -> Output {
    redbud().arg("pag").args(args).arg(&cluster.source).output().unwrap()
}

pub fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", describe(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Adds a device, and names it in the cluster's file as the command says.
pub fn add(cluster: &Cluster, device: &str) -> u64 {
    let added = json(&pag(cluster, &["add", "--json", device]));
    let mut file = File::options().append(true).open(&cluster.config).unwrap();
    write!(file, "\n{}", added["next"].as_str().unwrap()).unwrap();
    added["pag"].as_u64().unwrap()
}

fn refused(cluster: &Cluster, args: &[&str], why: &str) {
    let output = pag(cluster, args);
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(why), "{said}");
}

/// The zones that a file lies on.
pub fn zones(path: &Path) -> Vec<u64> {
    let mut text = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(path, "user.redbud.layout", &mut text[..]).unwrap();
    let layout: serde_json::Value = serde_json::from_slice(&text[..len]).unwrap();
    let segments = layout.as_array().unwrap().iter();
    let mut zones: Vec<u64> = segments.map(|part| part["pag"].as_u64().unwrap()).collect();
    zones.sort_unstable();
    zones.dedup();
    zones
}

/// Writes files until one lies on this zone; returns all of them, with their seeds.
fn fill_until(root: &Path, zone: u64) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    for seed in 0..200 {
        let path = root.join(format!("f{seed}"));
        let mut file = File::create(&path).unwrap();
        file.write_all(&pattern(seed, 1 << 20)).unwrap();
        file.sync_all().unwrap();
        let there = zones(&path).contains(&zone);
        files.push((path, seed));
        if there {
            return files;
        }
    }
    panic!("no file lies on data zone {zone}");
}

#[test]
fn zone_that_is_added_while_mounted_is_used_by_all_mounts_and_after_restarts() {
    let mut cluster = Cluster::start(&small());
    cluster.mount();
    cluster.mount();
    let device = Loop::new(&cluster, "more", 2 * ZONE);
    assert_eq!(add(&cluster, &device.device), 1);
    let (one, other) = (cluster.path(0), cluster.path(1));
    let files = fill_until(&one, 1);
    // The other mount has not written there; it reads at once.
    for (path, seed) in &files {
        let seen = fs::read(other.join(path.file_name().unwrap())).unwrap();
        assert!(seen == pattern(*seed, 1 << 20), "{}", path.display());
    }
    let free = success(redbud().args(["df", "--json"]).arg(&one));
    let free: serde_json::Value = serde_json::from_str(&free).unwrap();
    assert_eq!(free["filesystems"][0]["zones"].as_array().map(Vec::len), Some(2), "{free}");
    // A server that restarts, and clients that reconnect.
    cluster.kill_server();
    cluster.start_server();
    fs::write(one.join("after"), pattern(9, 4 << 20)).unwrap();
    assert!(fs::read(other.join("after")).unwrap() == pattern(9, 4 << 20));
    cluster.unmount(1);
    cluster.unmount(0);
    cluster.remount(0, &[]);
    for (path, seed) in &files {
        assert!(fs::read(path).unwrap() == pattern(*seed, 1 << 20), "{}", path.display());
    }
    cluster.finish();
}

#[test]
fn device_that_cannot_become_a_zone_is_refused_and_left_as_it_is() {
    let mut cluster = Cluster::start(&small());
    cluster.mount();
    let device = Loop::new(&cluster, "more", ZONE);
    let path = device.device.clone();
    assert_eq!(add(&cluster, &path), 1);
    refused(&cluster, &["add", &path], "it is data zone 1 of this file system already");
    refused(&cluster, &["add", "--force", &path], "already");
    refused(&cluster, &["add", "/dev/none"], "/dev/none");
    let own = cluster.dir.join("data0.img").display().to_string();
    refused(&cluster, &["add", "--force", &own], "data zone 0");
    let metadata = cluster.dir.join("metadata.img").display().to_string();
    refused(&cluster, &["add", "--force", &metadata], "metadata");

    let tiny = Loop::new(&cluster, "tiny", 1 << 20);
    refused(&cluster, &["add", &tiny.device], "too small");
    let used = Loop::new(&cluster, "used", ZONE);
    success(Command::new("mkfs.ext4").arg("-q").arg(&used.device));
    let before = fs::read(&used.file).unwrap();
    refused(&cluster, &["add", &used.device], "it is not empty; --force");
    let at = cluster.dir.join("ext4");
    fs::create_dir(&at).unwrap();
    success(Command::new("mount").arg(&used.device).arg(&at));
    let output = pag(&cluster, &["add", "--force", &used.device]);
    success(Command::new("umount").arg(&at));
    let said = describe(&output);
    assert!(!output.status.success() && said.contains("mounted or in use"), "{said}");
    assert_eq!(fs::read(&used.file).unwrap().len(), before.len());

    // A zone of another file system, or of an old one of this name.
    let other = Cluster::formatted(&small());
    let foreign = Loop::new(&cluster, "foreign", ZONE);
    fs::copy(other.dir.join("data0.img"), &foreign.file).unwrap();
    refused(&cluster, &["add", &foreign.device], "formatted already: it holds data");
    fs::write(cluster.root().join("file"), pattern(1, 1 << 20)).unwrap();
    assert_eq!(add(&cluster, &used_anew(&cluster, &used)), 2);
    cluster.finish();
}

/// The device, after a `pag add --force` that was cut off: it has the label of a
/// zone that the table does not have.
fn used_anew(cluster: &Cluster, used: &Loop) -> String {
    // What the label of zone 1 says, with another number, UUID and device.
    let label = fs::read(cluster.dir.join("more")).unwrap();
    let mut copy = label[..4096].to_vec();
    copy[32..48].fill(0x5a);
    copy[256 + 2] = 2;
    copy[256 + 24..256 + 40].fill(0x5b);
    copy[8..12].fill(0);
    let sum = types::crc32c(&copy);
    copy[8..12].copy_from_slice(&sum.to_le_bytes());
    // Only the copy in the last block was written.
    let mut device = vec![0; ZONE as usize];
    let end = device.len() - 4096;
    device[end..].copy_from_slice(&copy);
    fs::write(&used.file, device).unwrap();
    used.device.clone()
}

#[test]
fn server_whose_file_does_not_name_a_new_zone_serves_the_others() {
    let mut cluster = Cluster::start(&small());
    cluster.mount();
    let old = cluster.root().join("old");
    fs::write(&old, pattern(7, 1 << 20)).unwrap();
    let device = Loop::new(&cluster, "more", 2 * ZONE);
    let added = json(&pag(&cluster, &["add", "--json", &device.device]));
    assert_eq!(added["pag"], 1);
    let files = fill_until(&cluster.root(), 1);
    cluster.unmount(0);
    cluster.kill_server();
    cluster.start_server();
    assert!(cluster.server_log().contains("that the file does not name"));
    cluster.remount(0, &[]);
    let (last, seed) = files.last().unwrap();
    assert!(fs::read(last).is_err(), "its device has no path");
    assert!(fs::read(&old).unwrap() == pattern(7, 1 << 20));
    // The same command says where it is.
    assert_eq!(add(&cluster, &device.device), 1);
    eventually("the file on the new zone can be read", || {
        fs::read(last).is_ok_and(|found| found == pattern(*seed, 1 << 20))
    });
    cluster.finish();
}

/// What `pag list` says of a zone.
pub fn listed(cluster: &Cluster, zone: u64) -> serde_json::Value {
    let list = json(&pag(cluster, &["list", "--json"]));
    let zones = list["pags"].as_array().unwrap();
    zones.iter().find(|found| found["pag"] == zone).unwrap_or_else(|| panic!("{list}")).clone()
}

/// The files that `pag files` names, by path or number.
pub fn named(cluster: &Cluster, args: &[&str]) -> Vec<String> {
    let all = json(&pag(cluster, &[&["files", "--json"], args].concat()));
    let name = |file: &serde_json::Value| match file["path"].as_str() {
        Some(path) => path.to_owned(),
        None => format!("ino {}", file["ino"]),
    };
    let mut names: Vec<String> = all["files"].as_array().unwrap().iter().map(name).collect();
    names.sort();
    names
}

#[test]
fn lost_zone_fails_its_files_alone_until_that_is_undone() {
    let mut cluster = Cluster::start(&Spec { data: vec![ZONE; 2], ..small() });
    cluster.mount();
    cluster.mount();
    let (root, other) = (cluster.path(0), cluster.path(1));
    let mut files: Vec<(PathBuf, u64)> = Vec::new();
    for seed in 0..4 {
        files.push((root.join(format!("a{seed}")), seed));
        files.push((other.join(format!("b{seed}")), seed));
    }
    for (path, seed) in &files {
        let mut file = File::create(path).unwrap();
        file.write_all(&pattern(*seed, 9 << 20)).unwrap();
        file.sync_all().unwrap();
    }
    let is_on = |path: &Path| zones(path).contains(&1);
    let (there, elsewhere): (Vec<_>, Vec<_>) = files.iter().partition(|(path, _)| is_on(path));
    assert!(!there.is_empty() && !elsewhere.is_empty(), "both zones are used");
    let before = listed(&cluster, 1);
    assert_eq!(before["state"], "in service");
    assert_eq!(json(&pag(&cluster, &["lost", "--json", "1"]))["before"], "in service");
    assert_eq!(listed(&cluster, 1)["state"], "lost");
    let name = |path: &Path| path.file_name().unwrap().to_owned();
    let check = |cluster: &Cluster| {
        for mount in [cluster.path(0), cluster.path(1)] {
            for (path, _) in &there {
                let path = mount.join(name(path));
                let file = File::options().write(true).open(&path).unwrap();
                let wrote = std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 0);
                let synced = file.sync_all();
                assert!(wrote.is_err() || synced.is_err(), "{}", path.display());
            }
            fs::write(mount.join("new"), pattern(5, 3 << 20)).unwrap();
            assert!(!is_on(&mount.join("new")), "nothing is granted there");
            fs::remove_file(mount.join("new")).unwrap();
        }
    };
    // Nothing of the content is cached in a new mount.
    for index in [0, 1] {
        cluster.unmount(index);
        cluster.remount(index, &[]);
    }
    let reads = |cluster: &Cluster| {
        for mount in [cluster.path(0), cluster.path(1)] {
            for (path, _) in &there {
                let error = fs::read(mount.join(name(path))).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(5), "{}", path.display());
            }
            for (path, seed) in &elsewhere {
                assert!(fs::read(mount.join(name(path))).unwrap() == pattern(*seed, 9 << 20));
            }
        }
    };
    reads(&cluster);
    let said = describe(&redbud().arg("status").arg(&cluster.source).output().unwrap());
    assert!(said.contains("RB-ZONE-LOST"), "{said}");
    // It is durable.
    cluster.kill_server();
    cluster.start_server();
    assert_eq!(listed(&cluster, 1)["state"], "lost");
    reads(&cluster);
    check(&cluster);
    refused(&cluster, &["drain", "--undo", "1"], "is lost, not draining");
    refused(&cluster, &["lost", "9"], "no data zone 9");
    assert_eq!(json(&pag(&cluster, &["lost", "--undo", "--json", "1"]))["before"], "lost");
    eventually("the files can be read again", || {
        there.iter().all(|(path, _)| fs::read(path).is_ok_and(|found| found.len() == 9 << 20))
    });
    cluster.finish();
}

#[test]
fn files_of_a_zone_are_named_exactly_and_by_range() {
    let mut cluster = Cluster::start(&Spec { data: vec![ZONE; 2], ..small() });
    cluster.mount();
    let root = cluster.root();
    fs::create_dir_all(root.join("deep/er")).unwrap();
    fs::write(root.join("inline"), b"").unwrap();
    for n in 0..20 {
        let path = root.join(if n % 2 == 0 { format!("f{n}") } else { format!("deep/er/f{n}") });
        let mut file = File::create(path).unwrap();
        file.write_all(&pattern(n, 4 << 20)).unwrap();
        file.sync_all().unwrap();
    }
    // Many segments: beyond the slot, in the tree.
    let sparse = File::create(root.join("sparse")).unwrap();
    for n in 0..400 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[1; 4096], n * 16384).unwrap();
    }
    sparse.sync_all().unwrap();
    let orphan = File::options().read(true).write(true).create_new(true).open(root.join("orphan"));
    let orphan = orphan.unwrap();
    std::os::unix::fs::FileExt::write_all_at(&orphan, &[2; 8192], 0).unwrap();
    orphan.sync_all().unwrap();
    let (at, number) = (
        zones(&root.join("orphan")),
        std::os::unix::fs::MetadataExt::ino(&orphan.metadata().unwrap()),
    );
    fs::remove_file(root.join("orphan")).unwrap();
    // By the layouts that the client sees.
    for zone in [0, 1] {
        let mut wanted: Vec<String> = Vec::new();
        for dir in ["", "deep/er/"] {
            for entry in fs::read_dir(root.join(dir)).unwrap() {
                let entry = entry.unwrap();
                let is_file = entry.file_type().unwrap().is_file();
                if is_file && entry.file_name() != "sparse" && zones(&entry.path()).contains(&zone)
                {
                    wanted.push(format!("/{dir}{}", entry.file_name().display()));
                }
            }
        }
        let mut found = named(&cluster, &[&zone.to_string()]);
        found.retain(|name| name != "/sparse");
        if at.contains(&zone) {
            wanted.push(format!("ino {number}"));
        }
        wanted.sort();
        assert_eq!(found, wanted, "zone {zone}");
        assert_eq!(named(&cluster, &[&zone.to_string(), "--range", "0-0"]), Vec::<String>::new());
        // Each file, by its own first block.
        let last = (ZONE / 4096 - 1).to_string();
        let all = named(&cluster, &[&zone.to_string(), "--range", &format!("1-{last}")]);
        assert_eq!(all.iter().filter(|name| *name != "/sparse").count(), wanted.len());
    }
    let layout = success(redbud().args(["layout", "--json"]).arg(root.join("f0")));
    let layout: serde_json::Value = serde_json::from_str(&layout).unwrap();
    let first = &layout["files"][0]["segments"][0];
    let (zone, block) = (first["pag"].to_string(), first["address"].as_u64().unwrap() / 4096);
    let range = format!("{block}-{block}");
    assert_eq!(named(&cluster, &[&zone, "--range", &range]), ["/f0"], "{layout}");
    drop((orphan, sparse));
    refused(&cluster, &["files", "7"], "no data zone 7");
    cluster.finish();
}

#[test]
fn zone_whose_drain_is_paused_is_granted_from_no_more_and_its_files_stay() {
    let mut cluster = Cluster::start(&Spec { data: vec![ZONE; 2], ..small() });
    cluster.mount();
    let files = fill_until(&cluster.root(), 0);
    assert_eq!(json(&pag(&cluster, &["drain", "--pause", "--json", "0"]))["state"], "drain paused");
    cluster.unmount(0);
    cluster.remount(0, &[]);
    let new = cluster.root().join("new");
    fs::write(&new, pattern(3, 8 << 20)).unwrap();
    File::open(&new).unwrap().sync_all().unwrap();
    assert_eq!(zones(&new), [1]);
    for (path, seed) in &files {
        assert!(fs::read(path).unwrap() == pattern(*seed, 1 << 20), "{}", path.display());
    }
    eventually("no pool has blocks of it", || listed(&cluster, 0)["bytes_pooled"] == 0);
    assert_eq!(json(&pag(&cluster, &["drain", "--undo", "--json", "0"]))["state"], "in service");
    cluster.finish();
}

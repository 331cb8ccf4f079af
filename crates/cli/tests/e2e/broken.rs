//! Devices that fail: the application gets an error, the log names the file, and nothing is
//! acknowledged that is not there.
//!
//! A broken device is a loop device whose sparse backing file lies on a small file system
//! that fills up: writes to blocks without room fail with EIO, all else works. It heals
//! when there is room again.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Cluster, Spec, eventually, pattern, success};

const EIO: i32 = 5;

/// A loop device of `size` bytes with `room` bytes behind it.
pub struct Fragile {
    small: PathBuf,
    room: u64,
    pub device: PathBuf,
}

impl Fragile {
    pub fn new(dir: &Path, size: u64, room: u64) -> Fragile {
        let small = dir.join("small");
        fs::create_dir(&small).unwrap();
        let options = format!("size={room}");
        let mut mount = Command::new("mount");
        success(mount.args(["-t", "tmpfs", "-o", &options, "none"]).arg(&small));
        let image = small.join("image");
        File::create(&image).unwrap().set_len(size).unwrap();
        let device = success(Command::new("losetup").args(["--find", "--show"]).arg(&image));
        Fragile { small, room, device: device.trim().into() }
    }

    /// Uses up the room but for `left` bytes, until it is removed.
    fn fill(&self, left: u64) -> Filler {
        let path = self.small.join("filler");
        let stat = rustix::fs::statvfs(&self.small).unwrap();
        let bytes = (stat.f_bavail * stat.f_frsize).saturating_sub(left);
        success(Command::new("fallocate").arg("-l").arg(bytes.to_string()).arg(&path));
        Filler { path, bytes }
    }

    /// From now on every request fails with EIO, until [`Dead::revive`].
    pub fn kill(&self) -> Dead<'_> {
        let (image, backup) = (self.small.join("image"), self.small.with_extension("backup"));
        let size = fs::metadata(&image).unwrap().len();
        success(Command::new("cp").arg("--sparse=always").arg(&image).arg(&backup));
        let image = File::options().write(true).open(&image).unwrap();
        // Writers take room until there is none.
        loop {
            image.set_len(0).unwrap();
            if self.resize(4096) {
                break;
            }
        }
        image.set_len(0).unwrap();
        Dead { device: self, backup, size }
    }

    /// Changes the room behind the device; fails if more is in use.
    fn resize(&self, room: u64) -> bool {
        let mut mount = Command::new("mount");
        let options = format!("remount,size={room}");
        mount.args(["-o", &options]).arg(&self.small);
        mount.output().unwrap().status.success()
    }
}

/// A device of which every request fails: nothing is behind it, and no room.
pub struct Dead<'a> {
    device: &'a Fragile,
    backup: PathBuf,
    size: u64,
}

impl Dead<'_> {
    /// The device works again, with the content that it had when it died.
    pub fn revive(self) {
        assert!(self.device.resize(self.device.room), "there is room again");
        let image = self.device.small.join("image");
        success(Command::new("cp").arg("--sparse=always").arg(&self.backup).arg(&image));
        File::options().write(true).open(&image).unwrap().set_len(self.size).unwrap();
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        for command in [
            Command::new("losetup").arg("-d").arg(&self.device),
            Command::new("umount").arg("-l").arg(&self.small),
        ] {
            if !command.status().is_ok_and(|status| status.success()) {
                eprintln!("{command:?} failed");
            }
        }
    }
}

struct Filler {
    path: PathBuf,
    bytes: u64,
}

impl Filler {
    /// Gives the room back. It is free when nobody has the file any more. A process that drops the
    /// kernel's caches at that moment, as benches do, holds every file for a while.
    fn remove(self) {
        fs::remove_file(&self.path).unwrap();
        let small = self.path.parent().unwrap();
        eventually("the room is free again", || {
            let stat = rustix::fs::statvfs(small).unwrap();
            stat.f_bavail * stat.f_frsize >= self.bytes / 2
        });
    }
}

/// Writes and syncs a file; the first error.
fn write_synced(path: &Path, seed: u64, len: usize) -> io::Result<()> {
    let file = File::create(path)?;
    for (index, piece) in pattern(seed, len).chunks(1 << 20).enumerate() {
        file.write_all_at(piece, (index << 20) as u64)?;
    }
    file.sync_all()
}

#[test]
fn failing_data_device_gives_eio_and_is_named_in_the_log() {
    let dir = crate::harness::Scratch::new();
    let device = Fragile::new(dir.path(), 1 << 30, 48 << 20);
    let mut cluster = Cluster::start(&Spec {
        data: vec![1 << 30],
        data_path: Some(device.device.clone()),
        ..Spec::default()
    });
    cluster.mount();
    let root = cluster.root();
    write_synced(&root.join("before"), 1, 4 << 20).unwrap();
    let filler = device.fill(4 << 20);

    // At the latest fsync says it, once for each open file; later descriptors start afresh.
    let victim = File::create(root.join("victim")).unwrap();
    let content = pattern(2, 32 << 20);
    let pieces = content.chunks(1 << 20).enumerate();
    let failed = pieces
        .map(|(index, piece)| victim.write_all_at(piece, (index << 20) as u64))
        .find_map(Result::err)
        .map_or_else(|| victim.sync_all(), Err);
    let error = failed.expect_err("32 MiB do not fit into 4");
    assert_eq!(error.raw_os_error(), Some(EIO), "{error}");
    eventually("the log names the file", || cluster.client_log(0).contains("/victim"));
    // What was there before is unharmed, and names still work.
    assert!(fs::read(root.join("before")).unwrap() == pattern(1, 4 << 20));
    fs::rename(root.join("victim"), root.join("renamed")).unwrap();
    drop(victim);

    // The device has recovered: what is written from now on is kept.
    filler.remove();
    write_synced(&root.join("after"), 3, 8 << 20).unwrap();
    let again = fs::OpenOptions::new().write(true).open(root.join("renamed")).unwrap();
    again.write_all_at(&content[..1 << 20], 0).unwrap();
    again.sync_all().unwrap();
    drop(again);
    cluster.unmount(0);
    let second = cluster.mount();
    let root = cluster.path(second);
    assert!(fs::read(root.join("before")).unwrap() == pattern(1, 4 << 20));
    assert!(fs::read(root.join("after")).unwrap() == pattern(3, 8 << 20));
    let renamed = fs::read(root.join("renamed")).unwrap();
    assert!(renamed[..1 << 20] == content[..1 << 20]);
    // Lost bytes are as they were before, zeros, never something else. (A block may be the
    // work of two writes: the kernel splits what does not begin at a page of the caller.)
    for (at, (byte, expected)) in renamed.iter().zip(&content).enumerate() {
        assert!(*byte == 0 || byte == expected, "byte {at} is {byte}");
    }
    cluster.finish();
}

#[test]
fn failing_metadata_device_stops_the_server_without_false_replies() {
    let dir = crate::harness::Scratch::new();
    let device = Fragile::new(dir.path(), 512 << 20, 64 << 20);
    let mut cluster =
        Cluster::start(&Spec { metadata_path: Some(device.device.clone()), ..Spec::default() });
    cluster.mount();
    let root = cluster.root();
    fs::create_dir(root.join("d")).unwrap();
    write_synced(&root.join("d/first"), 1, 100_000).unwrap();
    let filler = device.fill(1 << 20);
    // Names until the log is full and has to be written home, where there is no room.
    let maker = std::thread::spawn({
        let root = root.clone();
        move || {
            let target = "t".repeat(3000);
            let mut synced = 0;
            for number in 0..40_000u32 {
                std::os::unix::fs::symlink(&target, root.join(format!("d/l{number}")))?;
                if number % 100 == 0 {
                    File::open(root.join("d"))?.sync_all()?;
                    synced = number;
                }
                if number > 20_000 {
                    break;
                }
            }
            Ok::<u32, io::Error>(synced)
        }
    });
    let status = cluster.wait_server();
    assert!(!status.success(), "{status}");
    let said = cluster.server_log();
    assert!(said.contains(device.device.to_str().unwrap()), "{said}");
    assert!(!said.contains("panicked"), "{said}");

    // Clients wait. With the device well again, another server goes on where it was.
    assert!(!maker.is_finished(), "no application sees an error");
    filler.remove();
    let more = Command::new("mount")
        .args(["-o", "remount,size=512m"])
        .arg(&device.small)
        .status()
        .unwrap();
    assert!(more.success());
    cluster.start_server();
    let synced = maker.join().unwrap().expect("no application sees an error");
    assert!(synced >= 20_000, "{synced}");
    cluster.kill_client(0);
    let second = cluster.mount();
    let root = cluster.path(second);
    assert!(fs::read(root.join("d/first")).unwrap() == pattern(1, 100_000));
    let names = fs::read_dir(root.join("d")).unwrap().count();
    assert!(names > synced as usize, "{names} of {synced}");
    cluster.finish();
}

#[test]
fn failing_log_device_stops_the_server_before_it_replies() {
    let dir = crate::harness::Scratch::new();
    let device = Fragile::new(dir.path(), 512 << 20, 128 << 20);
    let mut cluster =
        Cluster::start(&Spec { metadata_path: Some(device.device.clone()), ..Spec::default() });
    cluster.mount();
    let root = cluster.root();
    fs::create_dir(root.join("d")).unwrap();
    write_synced(&root.join("d/first"), 1, 100_000).unwrap();
    // The zeros of the unused log lose their room: the log's next blocks cannot be written.
    success(Command::new("fallocate").arg("--dig-holes").arg(device.small.join("image")));
    let filler = device.fill(0);
    let maker = std::thread::spawn({
        let root = root.clone();
        move || {
            for number in 0..300u32 {
                File::create(root.join(format!("d/f{number}")))?.sync_all()?;
            }
            Ok::<(), io::Error>(())
        }
    });
    let status = cluster.wait_server();
    assert!(!status.success(), "{status}");
    let said = cluster.server_log();
    assert!(said.contains(device.device.to_str().unwrap()), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    // Callers that wait for the log keep waiting, and get no success.
    assert!(
        !maker.is_finished(),
        "300 files with their own fsync do not fit into a page of the log"
    );
    filler.remove();
    cluster.start_server();
    maker.join().unwrap().expect("no application sees an error");
    cluster.kill_client(0);
    let second = cluster.mount();
    let root = cluster.path(second);
    assert!(fs::read(root.join("d/first")).unwrap() == pattern(1, 100_000));
    assert_eq!(fs::read_dir(root.join("d")).unwrap().count(), 301);
    cluster.finish();
}

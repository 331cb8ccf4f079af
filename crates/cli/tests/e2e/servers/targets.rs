//! Several metadata servers whose files lie at the same object targets.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::Signal;
use serde_json::Value;

use super::{Local, server_of};
use crate::harness::{eventually, pattern, redbud, shell, signal, success};

const DEVICES: [&str; 2] = ["ost0.img", "ost1.img"];

impl Local {
    fn config(&self) -> PathBuf {
        self.dir().join("cluster.toml")
    }

    /// The values of a key in the cluster's file.
    fn values(&self, key: &str) -> Vec<String> {
        let text = fs::read_to_string(self.config()).unwrap();
        let value = |line: &str| line.strip_prefix(key)?.strip_prefix(" = ").map(str::to_owned);
        text.lines().filter_map(value).map(|value| value.trim_matches('"').to_owned()).collect()
    }

    /// What the targets say.
    fn targets(&self) -> Vec<Value> {
        let of = |address: String| {
            let mut status = redbud();
            status.args(["ost", "status", &address, "--json", "--config"]).arg(self.config());
            let output = status.output().unwrap();
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            status["targets"][0].clone()
        };
        self.values("address").into_iter().map(of).collect()
    }

    /// Free blocks of each target.
    fn free(&self) -> Vec<u64> {
        let targets = self.targets();
        targets.iter().map(|target| target["free"].as_u64().unwrap_or_default()).collect()
    }

    /// A directory whose files lie on both targets.
    fn on_objects(&self, path: PathBuf) -> PathBuf {
        fs::create_dir(&path).unwrap();
        let mut layout = redbud();
        layout.args(["set-layout", "--policy", "objects", "--width", "2", "--part", "1M"]);
        success(layout.arg(&path));
        path
    }

    /// Directories at server 0 and at server 1, whose files lie on both targets.
    pub(super) fn both(&self) -> [PathBuf; 2] {
        let parent = self.parent("parent", "1");
        let both = [self.mount().join("near"), parent.join("far")];
        let both = both.map(|path| self.on_objects(path));
        assert_eq!([0, 1].map(|nth| server_of(&both[nth])), [0, 1]);
        both
    }

    /// Kills the process with the targets (SIGKILL).
    fn kill_targets(&self) {
        let mut pid = None;
        eventually("the targets run", || {
            pid = self.pid_with("ost\0serve\0");
            pid.is_some()
        });
        signal(pid.unwrap(), Signal::KILL);
    }

    /// Mounts it a second time.
    fn mount_again(&self) -> PathBuf {
        let second = self.scratch.path().join("second");
        fs::create_dir(&second).unwrap();
        let source = format!("{}:/local", self.values("listen").join(","));
        let options = format!("cluster={}", self.config().display());
        let mut mount = redbud();
        mount.args(["mount", "--allow-unzoned", "-o", &options, &source]);
        success(mount.arg(&second));
        second
    }
}

/// Writes files with fsync until it is asked to stop; counts them.
struct Load {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(dir: &Path) -> Load {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stops, counts, dir) = (stop.clone(), written.clone(), dir.to_owned());
        let thread = std::thread::spawn(move || {
            for number in 0.. {
                let path = dir.join(format!("load{}", number % 4));
                let content = pattern(number, 2_500_000);
                let mut file = File::create(&path).unwrap();
                file.write_all(&content).unwrap();
                file.sync_all().unwrap();
                assert!(fs::read(&path).unwrap() == content, "{}", path.display());
                counts.fetch_add(1, Ordering::Relaxed);
                if stops.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        Load { stop, written, thread: Some(thread) }
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Waits for so many more.
    fn work(&self, more: u64) {
        let wanted = self.written() + more;
        eventually("files are written", || {
            let ended = self.thread.as_ref().is_none_or(|thread| thread.is_finished());
            assert!(!ended, "the load has failed");
            self.written() >= wanted
        });
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("it runs").join().unwrap();
    }
}

/// A server that is away holds up the files of no other; a target that is killed loses nothing of
/// anybody; what is removed is destroyed.
#[test]
fn files_of_all_servers_lie_at_the_same_targets() {
    let options = ["--mds", "2", "--osts", "2", "--journal", "external"];
    let mut local = Local::start_with(&options);
    let before = local.free();
    assert!(before.iter().all(|free| *free > 0), "{before:?}");
    let both = local.both();
    for (nth, dir) in both.iter().enumerate() {
        fs::write(dir.join("kept"), pattern(nth as u64, 5 << 20)).unwrap();
        shell(dir, "sync kept");
    }
    eventually("both targets have parts of both", || {
        local.free().iter().zip(&before).all(|(now, before)| now + 1000 < *before)
    });
    let second = local.mount_again();
    let there = [second.join("near/kept"), second.join("parent/far/kept")];
    for (nth, path) in there.iter().enumerate() {
        assert!(fs::read(path).unwrap() == pattern(nth as u64, 5 << 20), "{}", path.display());
        shell(&second, &format!("printf end >> {}", path.display()));
        let text = fs::read(both[nth].join("kept")).unwrap();
        assert!(text.ends_with(b"end") && text.len() == (5 << 20) + 3);
    }
    success(redbud().arg("umount").arg(&second));
    for killed in [1, 0] {
        let (epochs, load) = (local.epochs(2), Load::start(&both[1 - usize::from(killed)]));
        load.work(2);
        local.kill(killed);
        load.work(3);
        eventually("it is back", || {
            local.epochs(2)[usize::from(killed)] > epochs[usize::from(killed)]
        });
        load.work(2);
        load.end();
    }
    let loads = both.each_ref().map(|dir| Load::start(dir));
    for _ in 0..2 {
        loads.iter().for_each(|load| load.work(2));
        local.kill_targets();
        loads.iter().for_each(|load| load.work(2));
    }
    loads.into_iter().for_each(Load::end);
    shell(&local.mount(), "echo 3 > /proc/sys/vm/drop_caches; rm -r near parent");
    eventually("the targets are as free as before", || local.free() == before);
    local.stop();
    local.assert_clean();
    for device in DEVICES {
        let journal = device.replace(".img", "-journal.img");
        let spec = format!("{device},journal={journal}");
        let mut check = redbud();
        success(check.args(["ost", "check", "--scrub", &spec]).current_dir(local.dir()));
    }
}

/// Moves a directory to a server, until all of its files have followed.
fn migrate_all(server: &str, dir: &Path) {
    eventually("all files follow", || {
        let (code, said) = super::run(redbud().args(["migrate", "--mds", server]).arg(dir));
        assert!(code == 0 || said.contains("it is open"), "{said}");
        code == 0
    });
    assert_eq!(super::moved::server_of(dir).to_string(), server);
}

/// Files in objects follow their directory, and keep their objects: both mounts go on with them,
/// kills lose nothing, and the server that has the files destroys their objects.
#[test]
fn files_follow_their_directory_with_their_objects() {
    let mut local = Local::start_with(&["--mds", "2", "--osts", "2"]);
    let before = local.free();
    let second = local.mount_again();
    let dir = local.on_objects(local.mount().join("dir"));
    let kept = [dir.join("kept"), second.join("dir/kept")];
    let mut content = pattern(1, 5 << 20);
    fs::write(&kept[0], &content).unwrap();
    fs::write(dir.join("gone"), pattern(2, 3 << 20)).unwrap();
    let load = Load::start(&dir);
    load.work(4);
    load.end();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let number = inode(&kept[0]);
    for (round, server) in ["1", "0", "1"].into_iter().enumerate() {
        let free = local.free();
        migrate_all(server, &dir);
        assert!(local.free() >= free, "nothing is copied");
        for (nth, path) in kept.iter().enumerate() {
            assert!(fs::read(path).unwrap() == content, "{} after {round}", path.display());
            assert_eq!(inode(path), number);
            // Over both parts, and at the end.
            let at = (round * 2 + nth) * 300_000 + 100_000;
            let new = pattern(at as u64, 1_500_000);
            content.resize(content.len().max(at + new.len()), 0);
            content[at..at + new.len()].copy_from_slice(&new);
            content.extend_from_slice(b"end");
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&new, at as u64).unwrap();
            file.write_all_at(b"end", content.len() as u64 - 3).unwrap();
            file.sync_all().unwrap();
        }
    }
    // It goes to blocks of its new server, and back to an object.
    for to in ["blocks", "objects"] {
        let said = success(redbud().args(["migrate", "--to", to]).arg(&kept[0]));
        assert!(said.contains("moved"), "{said}");
        assert!(fs::read(&kept[1]).unwrap() == content, "{to}");
    }
    // Its former server starts again, with another epoch, and so does the new one. Targets that are
    // killed repeat what they lost.
    let load = Load::start(&dir);
    for killed in [0, 1] {
        let epochs = local.epochs(2);
        load.work(2);
        local.kill_targets();
        local.kill(killed);
        load.work(2);
        eventually("it is back", || {
            local.epochs(2)[usize::from(killed)] > epochs[usize::from(killed)]
        });
        let (code, said) = super::run(redbud().args(["migrate", "--mds", "1"]).arg(&dir));
        assert!(code == 0 || said.contains("it is open"), "{said}");
    }
    load.end();
    assert!(kept.iter().all(|path| fs::read(path).unwrap() == content));
    local.kill_targets();
    local.kill(1);
    fs::remove_file(second.join("dir/gone")).unwrap();
    success(redbud().arg("umount").arg(&second));
    local.stop();
    local.assert_clean();
    local.begin(&[]);
    assert!(fs::read(&kept[0]).unwrap() == content);
    migrate_all("0", &dir);
    assert!(fs::read(&kept[0]).unwrap() == content);
    shell(&local.mount(), "rm -r dir");
    eventually("the targets are as free as before", || local.free() == before);
    local.stop();
    local.assert_clean();
    for device in DEVICES {
        success(redbud().args(["ost", "check", "--scrub", device]).current_dir(local.dir()));
    }
}

#[test]
fn commands_know_targets_of_several_servers() {
    let mut local = Local::start_with(&["--mds", "2", "--osts", "2"]);
    let json = success(redbud().args(["pag", "list", "--json"]).arg(local.dir()));
    let report: Value = serde_json::from_str(&json).unwrap();
    let zones =
        report["pags"].as_array().unwrap().iter().filter(|zone| {
            zone["device"].as_str().is_some_and(|device| device.contains("127.0.0.1"))
        });
    let number = |zone: &Value, key: &str| zone[key].as_u64().unwrap();
    let zones: Vec<_> = zones.map(|zone| (number(zone, "pag"), number(zone, "mds"))).collect();
    assert_eq!(zones, [(2, 0), (2, 1), (3, 0), (3, 1)]);
    // The mount counts a target once.
    let blocks: u64 = local.targets().iter().map(|target| number(target, "blocks")).sum();
    let total = shell(&local.mount(), "stat -f -c '%b %S' .");
    let (total, size) = total.trim().split_once(' ').unwrap();
    let total = total.parse::<u64>().unwrap() * size.parse::<u64>().unwrap();
    let disks = 2 * (1 << 30);
    assert!((blocks * 4096..blocks * 4096 + disks).contains(&total), "{total}");
    let both = local.both();
    for (nth, dir) in both.iter().enumerate() {
        fs::write(dir.join("file"), pattern(nth as u64, 3 << 20)).unwrap();
    }
    // An inode stays with its server, and so does its object.
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let numbers = both.each_ref().map(|dir| inode(&dir.join("file")));
    shell(&local.mount(), "mv near/file parent/far/other && mv parent/far/file near/file");
    let [near, far] = [both[0].join("file"), both[1].join("other")];
    assert_eq!([inode(&far), inode(&near)], numbers);
    let mut migrate = redbud();
    success(migrate.args(["migrate", "--to", "blocks"]).args([&near, &far]));
    success(redbud().args(["migrate", "--to", "objects", "--zones", "3"]).arg(&near));
    assert!(fs::read(&far).unwrap() == pattern(0, 3 << 20));
    assert!(fs::read(&near).unwrap() == pattern(1, 3 << 20));
    // Both servers hear what becomes of a target.
    let states = |wanted: &str| {
        let json = success(redbud().args(["pag", "list", "--json"]).arg(local.dir()));
        let report: Value = serde_json::from_str(&json).unwrap();
        let zones = report["pags"].as_array().unwrap().iter().filter(|zone| zone["pag"] == 3);
        zones.filter(|zone| zone["state"] == wanted).count()
    };
    let (code, said) = super::run(redbud().args(["pag", "drain", "3"]).arg(local.dir()));
    assert!(code != 0 && said.contains("no new files go to object target 3"), "{said}");
    assert_eq!(states("draining"), 2);
    success(redbud().args(["pag", "drain", "--undo", "3"]).arg(local.dir()));
    success(redbud().args(["pag", "lost", "3"]).arg(local.dir()));
    assert_eq!(states("lost"), 2);
    success(redbud().args(["pag", "lost", "--undo", "3"]).arg(local.dir()));
    assert_eq!(states("in service"), 2);
    assert!(fs::read(&near).unwrap() == pattern(1, 3 << 20));
    local.stop();
    local.assert_clean();
    // At other ports perhaps, the targets keep their numbers.
    local.begin(&[]);
    assert!(fs::read(&near).unwrap() == pattern(1, 3 << 20));
    local.stop();
    local.assert_clean();
}

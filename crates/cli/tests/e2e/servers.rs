//! Several metadata servers of one namespace: they run side by side, are shown, restarted and
//! checked one by one.

mod checks;
mod dumps;
mod keys;
mod kills;
mod loans;
mod moved;
mod neighbours;
mod spread;
pub mod standbys;
mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{
    Report, Scratch, describe, eventually, pattern, redbud, shell, signal, success, wait_child,
};

/// A `redbud local` with several metadata servers, in the background.
struct Local {
    running: Option<Child>,
    scratch: Scratch,
}

impl Local {
    /// Starts one with so many servers, and waits until it is mounted.
    fn start(servers: u16) -> Local {
        Local::start_with(&["--mds", &servers.to_string()])
    }

    /// Starts one with these options, and waits until it is mounted.
    fn start_with(options: &[&str]) -> Local {
        let mut local = Local { running: None, scratch: Scratch::new() };
        local.begin(options);
        local
    }

    /// Starts it with these options, and waits until it is mounted.
    fn begin(&mut self, options: &[&str]) {
        let mut command = match options.contains(&"--disk-size") {
            true => self.bare(),
            false => self.command(),
        };
        self.running = Some(command.args(options).stdout(Stdio::null()).spawn().unwrap());
        let mount = self.mount();
        eventually("the mount stands", || {
            let ended = self.running.as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "`redbud local` has ended: {ended:?}");
            let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let place = mount.to_str().unwrap();
            table.lines().any(|line| line.split(' ').nth(4) == Some(place))
        });
        // Until then a signal would end it at once.
        let pid = self.running.as_ref().expect("it runs").id();
        eventually("it waits for signals", || handles_sigterm(pid));
    }

    fn command(&self) -> Command {
        let mut command = self.bare();
        command.args(["--disk-size", "1G"]);
        command
    }

    /// Without the size of data disks.
    fn bare(&self) -> Command {
        let mut command = redbud();
        command.arg("local").arg(self.dir()).arg("--mount").arg(self.mount());
        command.args(["--metadata-size", "256M", "--lease", "5s"]);
        command
    }

    fn dir(&self) -> PathBuf {
        self.scratch.path().join("cluster")
    }

    fn mount(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    /// What each server says, by their numbers; null if it does not answer.
    fn servers(&self) -> Vec<Value> {
        self.report().servers()
    }

    /// What `redbud status` says.
    fn report(&self) -> Report {
        Report::of(&self.dir())
    }

    /// Epoch of each server, once all serve.
    fn epochs(&self, count: usize) -> Vec<u64> {
        let mut epochs = Vec::new();
        eventually("all servers serve", || {
            let servers = self.servers();
            epochs = servers.iter().filter_map(|server| server["epoch"].as_u64()).collect();
            servers.iter().filter(|server| server["state"] == "serving").count() == count
        });
        epochs
    }

    /// The process of a server; `None`: it is just being restarted.
    fn pid(&self, server: u16) -> Option<i32> {
        self.pid_with(&format!("--server\0{server}\0"))
    }

    /// The process with these options; each ends with a zero byte.
    fn pid_with(&self, options: &str) -> Option<i32> {
        let parent = self.running.as_ref().expect("it runs").id();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let mut children = children.unwrap().split(' ').map(str::to_owned).collect::<Vec<_>>();
        children.retain(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(options)
        });
        children.first().and_then(|pid| pid.parse().ok())
    }

    /// Kills a server (SIGKILL).
    fn kill(&self, server: u16) {
        let mut pid = None;
        eventually("the server runs", || {
            pid = self.pid(server);
            pid.is_some()
        });
        signal(pid.unwrap(), Signal::KILL);
    }

    /// Kills everything at once (SIGKILL), and takes the dead mount away.
    fn crash(&mut self) {
        let mut parent = self.running.take().expect("it runs");
        let pid = parent.id() as i32;
        // So that it starts nothing again.
        signal(pid, Signal::STOP);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            signal(child, Signal::KILL);
        }
        signal(pid, Signal::KILL);
        wait_child(&mut parent);
        shell(self.scratch.path(), "umount -l mnt");
    }

    /// Stops everything in order.
    fn stop(&mut self) {
        let mut child = self.running.take().expect("it runs");
        signal(child.id() as i32, Signal::TERM);
        let status = wait_child(&mut child);
        assert!(status.success(), "`redbud local` ended with {status}: {}", self.log("mds1.log"));
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.dir().join(name)).unwrap_or_default()
    }

    /// Checks the metadata of all servers, which are stopped; returns what is said.
    fn assert_clean(&self) -> String {
        success(redbud().arg("fsck").arg(self.dir()))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let Some(mut child) = self.running.take() else { return };
        if std::thread::panicking() {
            for name in ["mds.log", "mds1.log", "mds2.log", "client.log"] {
                eprintln!("{name}:\n{}", self.log(name));
            }
        }
        signal(child.id() as i32, Signal::TERM);
        // A test may have stopped it.
        signal(child.id() as i32, Signal::CONT);
        wait_child(&mut child);
    }
}

/// Does a process block or catch SIGTERM?
fn handles_sigterm(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let masks = status.lines().filter_map(|line| {
        let mask = line.strip_prefix("SigBlk:").or(line.strip_prefix("SigCgt:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    masks.fold(0, |all, mask| all | mask) >> (Signal::TERM.as_raw() - 1) & 1 == 1
}

/// Exit status of a command, and all that it says.
fn run(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    (output.status.code().unwrap_or(-1), describe(&output))
}

#[test]
fn servers_of_one_namespace_are_shown_together_and_restarted_alone() {
    let mut local = Local::start(2);
    let before = local.epochs(2);
    let numbers: Vec<Value> = local.servers().iter().map(|one| one["server"].clone()).collect();
    assert_eq!(numbers, [0, 1]);
    let table = success(redbud().arg("status").arg(local.mount()));
    assert!(table.contains(", server 0\n") && table.contains(", server 1\n"), "{table}");
    local.kill(1);
    eventually("server 1 is restarted", || local.epochs(2)[1] > before[1]);
    assert_eq!(local.epochs(2)[0], before[0]);
    fs::write(local.mount().join("file"), "kept").unwrap();
    local.kill(0);
    eventually("server 0 is restarted", || local.epochs(2)[0] > before[0]);
    assert_eq!(fs::read_to_string(local.mount().join("file")).unwrap(), "kept");
    local.stop();
    let said = local.assert_clean();
    assert!(said.contains("local, server 0: clean"), "{said}");
    assert!(said.contains("local, server 1: clean"), "{said}");
    let one = success(redbud().args(["fsck", "--server", "1"]).arg(local.dir()));
    assert!(one.contains("server 1: clean") && !one.contains("server 0"), "{one}");
    let json = success(redbud().args(["fsck", "--json"]).arg(local.dir()));
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["clean"], &report["servers"][1]["server"]), (&true.into(), &1.into()));
    // What it was made with stays.
    local.begin(&[]);
    local.epochs(2);
    local.stop();
}

#[test]
fn commands_reach_the_zones_and_the_metadata_of_each_server() {
    let local = Local::start(2);
    let json = success(redbud().args(["pag", "list", "--json"]).arg(local.dir()));
    let report: Value = serde_json::from_str(&json).unwrap();
    let zones = report["pags"].as_array().unwrap().iter();
    let zones: Vec<(u64, u64)> =
        zones.map(|zone| (zone["mds"].as_u64().unwrap(), zone["pag"].as_u64().unwrap())).collect();
    assert_eq!(zones, [(0, 0), (1, 1)]);
    let json = success(redbud().args(["df", "--json"]).arg(local.dir()));
    let report: Value = serde_json::from_str(&json).unwrap();
    let space = &report["filesystems"][0];
    let of_zone = |index: usize| space["zones"][index]["bytes"].as_u64().unwrap();
    assert_eq!(space["bytes"].as_u64().unwrap(), of_zone(0) + of_zone(1));
    let (code, said) = run(redbud().arg("scrub").arg(local.dir()));
    assert!(code == 2 && said.contains("--server 0 to --server 1"), "{said}");
    success(redbud().args(["scrub", "--server", "1"]).arg(local.dir()));
    success(redbud().args(["pag", "lost", "1"]).arg(local.dir()));
    success(redbud().args(["pag", "lost", "--undo", "1"]).arg(local.dir()));
    let (code, said) = run(redbud().args(["pag", "lost", "2"]).arg(local.dir()));
    assert!(code == 1 && said.contains("has no data zone 2"), "{said}");
    let (code, said) = run(redbud().args(["pag", "drain", "1"]).arg(local.dir()));
    assert!(code == 0 && said.contains("data zone 1: it is empty"), "{said}");
    success(redbud().args(["pag", "drain", "--undo", "1"]).arg(local.dir()));
    let said = success(redbud().arg("rebalance").arg(local.dir()));
    assert!(said.contains("data zone 0: ") && said.contains("data zone 1: "), "{said}");
    let file = local.mount().join("file");
    fs::write(&file, "content").unwrap();
    let layout = success(redbud().args(["layout", "--json"]).arg(&file));
    let report: Value = serde_json::from_str(&layout).unwrap();
    assert_eq!(report["files"][0]["mds"], 0);
}

#[test]
fn metadata_of_another_server_are_refused() {
    let local = Local { running: None, scratch: Scratch::new() };
    success(local.command().args(["--mds", "2", "--exec", "true"]));
    let file = local.dir().join("cluster.toml");
    let text = fs::read_to_string(&file).unwrap();
    let swapped = text.replace("metadata1.img", "x").replace("metadata.img", "metadata1.img");
    let wrong = local.dir().join("wrong.toml");
    fs::write(&wrong, swapped.replace("\"x\"", "\"metadata.img\"")).unwrap();
    let serve =
        |config: &PathBuf, server: &[&str]| run(redbud().arg("mds").arg(config).args(server));
    let (code, said) = serve(&wrong, &["--server", "0"]);
    let expected = "holds the metadata of server 1, but";
    assert!(code == 1 && said.contains(expected), "{said}");
    let (code, said) = serve(&file, &[]);
    assert!(code == 2 && said.contains("name one with --server 0 to --server 1"), "{said}");
    let (code, said) = serve(&file, &["--server", "2"]);
    assert!(code == 2 && said.contains("there is no server 2"), "{said}");
    let alone = "name = \"local\"\nmetadata = { path = \"metadata.img\" }\n\
                 data = [{ path = \"data0.img\" }]\n[server]\nsecurity = \"none\"\n";
    fs::write(&wrong, alone).unwrap();
    let (code, said) = serve(&wrong, &[]);
    assert!(code == 1 && said.contains("of server 0 of several"), "{said}");
    let (code, said) = run(local.command().args(["--exec", "true", "--mds", "3"]));
    assert!(code == 2 && said.contains("was made with 2"), "{said}");
    success(local.command().args(["--exec", "true"]));
    local.assert_clean();
}

/// The server that an inode lives on.
pub fn server_of(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino() >> 56
}

fn links(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().nlink()
}

/// A new directory in another one, in which directories lie where `home` says.
pub fn parent_at(place: &Path, name: &str, home: &str) -> PathBuf {
    let path = place.join(name);
    fs::create_dir(&path).unwrap();
    success(redbud().args(["set-layout", "--mds", home]).arg(&path));
    path
}

/// Hands a server of the cluster at this place over as planned; gives its new process.
pub fn hand_over(place: &Path, server: usize) -> i32 {
    let number = server.to_string();
    success(redbud().args(["mds", "failover", "--server", &number]).arg(place));
    Report::of(place).owner(server)
}

impl Local {
    /// A new directory at server 0, in which directories lie where `home` says.
    fn parent(&self, name: &str, home: &str) -> PathBuf {
        parent_at(&self.mount(), name, home)
    }

    /// A new directory at server 0, and one in it at server 1.
    fn nested(&self) -> (PathBuf, PathBuf) {
        let parent = self.parent("parent", "1");
        let child = parent.join("child");
        fs::create_dir(&child).unwrap();
        assert_eq!((server_of(&parent), server_of(&child)), (0, 1));
        (parent, child)
    }

    /// Stops everything, checks all metadata, and starts again.
    fn restart(&mut self) {
        self.stop();
        self.assert_clean();
        self.begin(&[]);
    }
}

#[test]
fn directory_at_another_server_has_files_and_is_removed_when_it_is_empty() {
    let mut local = Local::start(2);
    let (parent, child) = local.nested();
    assert_eq!((links(&parent), links(&child)), (3, 2));
    let (small, large) = (pattern(1, 700), pattern(2, 3 << 20));
    fs::write(child.join("small"), &small).unwrap();
    fs::write(child.join("large"), &large).unwrap();
    fs::create_dir(child.join("sub")).unwrap();
    assert_eq!((links(&child), server_of(&child.join("large"))), (3, 1));
    let listed = shell(&parent, "ls -l child | tail -n +2 | wc -l; stat -c %F child/sub");
    assert_eq!(listed, "3\ndirectory\n");
    let layout = success(redbud().args(["layout", "--json"]).arg(&child));
    let layout: Value = serde_json::from_str(&layout).unwrap();
    assert_eq!(layout["directories"][0]["mds"], 1);
    local.restart();
    assert_eq!((links(&parent), links(&child)), (3, 3));
    assert!(fs::read(child.join("small")).unwrap() == small);
    assert!(fs::read(child.join("large")).unwrap() == large);
    let error = fs::remove_dir(&child).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty, "{error}");
    shell(&parent, "rm child/small child/large && rmdir child/sub && rmdir child");
    assert_eq!((links(&parent), child.exists()), (2, false));
    // Its name is free again.
    fs::create_dir(&child).unwrap();
    assert_eq!(server_of(&child), 1);
    shell(&parent, "cd .. && rm -r parent");
    local.stop();
    local.assert_clean();
}

#[test]
fn files_are_moved_and_linked_between_servers() {
    let mut local = Local::start(2);
    let (_, child) = local.nested();
    let here = local.mount().join("here");
    let content = pattern(3, 1 << 20);
    fs::write(&here, &content).unwrap();
    shell(&local.mount(), "mv here parent/child/there");
    let there = child.join("there");
    assert!(!here.exists() && fs::read(&there).unwrap() == content);
    shell(&local.mount(), "mv parent/child/there here");
    assert!(!there.exists() && fs::read(&here).unwrap() == content);
    shell(&local.mount(), "mkdir -p tree/a && echo x > tree/a/f && mv tree parent/child/tree");
    assert_eq!(shell(&child, "cat tree/a/f && mv tree/a b && cat b/f"), "x\nx\n");
    fs::hard_link(&here, child.join("link")).unwrap();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!((links(&here), inode(&here)), (2, inode(&child.join("link"))));
    let far = child.join("far");
    fs::write(&far, "far").unwrap();
    fs::hard_link(&far, local.mount().join("near")).unwrap();
    assert_eq!(links(&far), 2);
    local.restart();
    assert_eq!((links(&here), links(&far)), (2, 2));
    fs::remove_file(&here).unwrap();
    assert!(links(&child.join("link")) == 1 && fs::read(child.join("link")).unwrap() == content);
    fs::remove_file(&far).unwrap();
    let near = local.mount().join("near");
    assert_eq!((links(&near), fs::read_to_string(&near).unwrap().as_str()), (1, "far"));
    fs::remove_file(child.join("link")).unwrap();
    fs::remove_file(&near).unwrap();
    local.stop();
    local.assert_clean();
}

#[test]
fn directories_are_moved_between_servers() {
    let mut local = Local::start(2);
    let (parent, child) = local.nested();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let tree = local.mount().join("tree");
    shell(&local.mount(), "mkdir -p tree/a/b && echo x > tree/a/f && mkdir parent/child/empty");
    let moved = inode(&tree);
    // It keeps its number, so nothing is copied; and its parent is another one.
    shell(&local.mount(), "mv -T tree parent/child/empty");
    let there = child.join("empty");
    assert_eq!((inode(&there), server_of(&there), tree.exists()), (moved, 0, false));
    assert_eq!((links(&child), inode(&there.join(".."))), (3, inode(&child)));
    assert_eq!(shell(&there, "cat a/f && cd a/b && cd ../.. && ls"), "x\na\n");
    // Not into its own subtree, on whatever servers that is.
    let error = fs::rename(&child, there.join("a/b/c")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let error = fs::rename(&parent, there.join("a/b/c")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let error = fs::rename(&child, &there).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    // A directory of server 1 goes into it, over a full one and over an empty one.
    let inner = child.join("inner");
    fs::create_dir(&inner).unwrap();
    assert_eq!(server_of(&inner), 1);
    let error = fs::rename(&inner, there.join("a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty, "{error}");
    fs::rename(&inner, there.join("a/b")).unwrap();
    assert_eq!(server_of(&there.join("a/b")), 1);
    local.restart();
    assert_eq!((inode(&there), inode(&there.join(".."))), (moved, inode(&child)));
    // And home again.
    fs::rename(&there, &tree).unwrap();
    assert_eq!((inode(&tree), links(&child), links(&tree)), (moved, 2, 3));
    assert_eq!(shell(&tree, "cat a/f && rmdir a/b && rm -r a && cd .. && rmdir tree"), "x\n");
    local.stop();
    local.assert_clean();
}

#[test]
fn spread_directories_lie_at_all_servers() {
    let mut local = Local::start(2);
    let parent = local.parent("parent", "spread");
    let homes: BTreeSet<u64> = (0..8)
        .map(|number| {
            let path = parent.join(number.to_string());
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), number.to_string()).unwrap();
            server_of(&path)
        })
        .collect();
    assert_eq!(homes, BTreeSet::from([0, 1]));
    assert_eq!(links(&parent), 10);
    local.restart();
    assert_eq!(shell(&parent, "cat */file"), "01234567");
    local.stop();
    local.assert_clean();
}

//! Fences: an evicted client that is cut off from its devices, and lives.
//!
//! Each host reaches the data device through a path of its own: a `nbdfuse` on a `nbdkit` that
//! logs, delays and can refuse writes, on the one `nbdkit` with the device.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::signal;
use crate::harness::{Cluster, Spec, describe, eventually, pattern, redbud, shell, wait_child};

/// A quarantine without a fence lasts for a lease and a half.
const LEASE: Duration = Duration::from_secs(120);
/// Far below that, and far above what a busy machine needs for a fence and a flush.
const SOON: Duration = Duration::from_secs(60);

/// Follows the convention of fence agents: refuses the writes of the path of `nodename`, and waits
/// for those that are on their way.
const AGENT: &str = r#"#!/bin/bash
while IFS= read -r line; do
    case $line in action=*|nodename=*|dir=*) declare "${line%%=*}=${line#*=}";; esac
done
path=$dir/$nodename
begun() { grep -c ' Write id=' "$path.log"; }
ended() { grep -c '\.\.\.Write id=' "$path.log"; }
case $action in
    off)
        touch "$path.cut"
        until e=$(ended); b=$(begun); [ "$b" = "$e" ]; do sleep 0.01; done
        wc -l < "$path.log" > "$path.at" ;;
    on) rm -f "$path.cut" ;;
    status) [ -e "$path.cut" ] && exit 2 || exit 0 ;;
    *) exit 1 ;;
esac
"#;

/// Says that it has cut off, and has not.
const LIAR: &str = r#"#!/bin/bash
here=$(dirname "$0")
input=$(cat)
case $input in
    *action=off*) touch "$here/lie" ;;
    *action=on*) rm -f "$here/lie" ;;
    *action=status*) [ -e "$here/lie" ] && exit 2 || exit 0 ;;
esac
"#;

/// A process that ends with its owner.
struct Killed(Child);

impl Killed {
    /// Waits until it has come so far.
    fn wait_until(mut self, what: &str, ready: impl Fn() -> bool) -> Killed {
        eventually(what, || {
            let ended = self.0.try_wait().unwrap();
            assert!(ended.is_none(), "{what}: the process has ended: {ended:?}");
            ready()
        });
        self
    }

    fn start(command: &mut Command) -> Killed {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        let program = quiet.get_program().to_owned();
        Killed(quiet.spawn().unwrap_or_else(|error| {
            panic!("{program:?}: {error}: apt-get install nbdkit libnbd-bin")
        }))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nbdkit(socket: &Path, rest: &[String]) -> Killed {
    let mut command = Command::new("nbdkit");
    let kit = command.args(["-f", "--exit-with-parent", "-U"]).arg(socket).args(rest);
    Killed::start(kit).wait_until("nbdkit listens", || socket.exists())
}

/// The paths of the hosts to one device.
pub struct Paths {
    dir: PathBuf,
    store: PathBuf,
    running: Vec<Killed>,
}

impl Paths {
    /// The device is the file `image` of the cluster's directory.
    pub fn new(cluster: &Cluster, image: &str) -> Paths {
        let dir = cluster.dir.join("paths");
        fs::create_dir(&dir).unwrap();
        let store = dir.join("store.sock");
        let image = cluster.dir.join(image);
        let kit = nbdkit(&store, &["file".to_owned(), image.display().to_string()]);
        for (name, text) in [("agent", AGENT), ("liar", LIAR)] {
            let program = dir.join(name);
            fs::write(&program, text).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Paths { dir, store, running: vec![kit] }
    }

    /// A file about the path of a host: `cut` refuses its writes while it is there.
    pub fn file(&self, host: &str, what: &str) -> PathBuf {
        self.dir.join(format!("{host}.{what}"))
    }

    /// The path of a host, on which each write takes `delay`; the "device" at its end.
    pub fn add(&mut self, host: &str, delay: &str) -> PathBuf {
        let socket = self.file(host, "sock");
        let text = |path: PathBuf| path.display().to_string();
        let rest = [
            "--filter=log".to_owned(),
            "--filter=delay".to_owned(),
            "--filter=error".to_owned(),
            "nbd".to_owned(),
            format!("socket={}", text(self.store.clone())),
            format!("logfile={}", text(self.file(host, "log"))),
            format!("wdelay={delay}"),
            "error-pwrite=EIO".to_owned(),
            "error-pwrite-rate=100%".to_owned(),
            format!("error-pwrite-file={}", text(self.file(host, "cut"))),
        ];
        self.running.push(nbdkit(&socket, &rest));
        let device = self.file(host, "dev").join("nbd");
        fs::create_dir(device.parent().unwrap()).unwrap();
        let mut fuse = Command::new("nbdfuse");
        let fuse = Killed::start(fuse.arg(&device).arg("--unix").arg(&socket));
        let shown = || fs::metadata(&device).is_ok_and(|about| about.len() > 0);
        self.running.push(fuse.wait_until("nbdfuse shows the device", shown));
        device
    }

    fn log(&self, host: &str) -> String {
        fs::read_to_string(self.file(host, "log")).unwrap()
    }

    /// The results of a host's writes from line `from` of its log on.
    pub fn results(&self, host: &str, from: usize) -> Vec<String> {
        let log = self.log(host);
        let ends = log.lines().skip(from).filter(|line| line.contains("...Write id="));
        ends.filter_map(|line| line.split_once("return=")).map(|(_, r)| r.to_owned()).collect()
    }

    /// Bytes of the device that a host has asked to write from line `from` of its log on.
    fn ranges(&self, host: &str, from: usize) -> Vec<(u64, u64)> {
        let number = |line: &str, key: &str| {
            let word = line.split(' ').find_map(|word| word.strip_prefix(key))?;
            u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
        };
        let log = self.log(host);
        let asked = log.lines().skip(from).filter(|line| line.contains(" Write id="));
        asked.filter_map(|line| Some((number(line, "offset=")?, number(line, "count=")?))).collect()
    }

    /// Lines of a host's log at which its last fence had finished.
    pub fn fenced_at(&self, host: &str) -> usize {
        fs::read_to_string(self.file(host, "at")).unwrap().trim().parse().unwrap()
    }

    /// Takes all paths away.
    pub fn end(self) {
        shell(&self.dir, "umount -l *.dev");
    }

    /// The table of the cluster's file for an agent that covers the hosts of this pattern.
    pub fn table(&self, agent: &str, hosts: &str) -> String {
        let dir = self.dir.display();
        format!(
            "\n[[fence]]\nhost = \"{hosts}\"\nagent = \"{dir}/{agent}\"\ntimeout = \"30s\"\n\
             options = {{ dir = \"{dir}\" }}\n"
        )
    }
}

/// The server's status, from itself: `redbud status` looks at the mounts of this host, too.
fn server_status(cluster: &Cluster) -> Value {
    let output = redbud().args(["status", "--json"]).arg(&cluster.config).output().unwrap();
    assert!(output.status.success(), "{}", describe(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["filesystems"][0]["server"].clone()
}

/// The client at a host, as the server sees it.
fn client_at(cluster: &Cluster, host: &str) -> Option<Value> {
    let status = server_status(cluster);
    let clients = status["clients"].as_array().expect("a status lists clients").clone();
    let at = |client: &Value| client["description"].as_str().is_some_and(|d| d.starts_with(host));
    clients.into_iter().find(at)
}

/// Writes until that fails. The file is open in a process of its own: a process with an open file
/// on a mount that does not answer can start no other, which would close its copy of the file.
fn write_until_error(path: &Path) -> Child {
    let script = "exec 3>\"$1\"; head -c 40M /dev/urandom >&3; \
         while sync -d \"$1\" && head -c 1M /dev/urandom >&3; do :; done";
    let mut command = Command::new("bash");
    command.args(["-c", script, "writer"]).arg(path).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Cuts host B off and gives it back, by an agent that does it and by one that does not.
fn try_fences(cluster: &Cluster, paths: &Paths, device: &Path) {
    let test = |config: &Path| {
        let mut command = redbud();
        command.args(["fence", "test", "hostb", "--config"]).arg(config).arg("--device");
        command.arg(device).output().unwrap()
    };
    let output = test(&cluster.config);
    let text = describe(&output);
    assert!(output.status.success() && text.contains("nbd fails: "), "{text}");
    assert!(text.contains("hostb has its access back"), "{text}");
    let lying = cluster.dir.join("lying.toml");
    let own = fs::read_to_string(&cluster.config).unwrap();
    fs::write(&lying, own.replace("paths/agent", "paths/liar")).unwrap();
    let output = test(&lying);
    let text = describe(&output);
    assert!(output.status.code() == Some(1) && text.contains("SUCCEEDS"), "{text}");
    let host = redbud().args(["fence", "test", "other", "--config"]).arg(&lying).output().unwrap();
    assert_eq!(host.status.code(), Some(2), "{}", describe(&host));
    assert!(!paths.file("hostb", "cut").exists(), "host B is cut off still");
}

#[test]
fn evicted_client_is_cut_off_and_its_blocks_are_used_again_at_once() {
    let spec = Spec { data: vec![64 << 20], lease: LEASE, ..Spec::default() };
    let mut cluster = Cluster::formatted(&spec);
    let mut paths = Paths::new(&cluster, "data0.img");
    let (of_a, of_b) = (paths.add("hosta", "20ms"), paths.add("hostb", "0"));
    let config = fs::read_to_string(&cluster.config).unwrap() + &paths.table("agent", "host*");
    fs::write(&cluster.config, config).unwrap();
    cluster.start_server();
    let a = cluster.mount_at_host("hosta", &of_a);
    let b = cluster.mount_at_host("hostb", &of_b);
    try_fences(&cluster, &paths, &of_b);

    let mut writer = write_until_error(&cluster.path(a).join("big"));
    eventually("host A has written", || paths.results("hosta", 0).len() >= 12);
    signal(cluster.client_pid(a), Signal::STOP);
    let client = client_at(&cluster, "hosta").expect("client A is known");
    let evicted = Instant::now();
    let client = client["id"].to_string();
    let mut evict = redbud();
    evict.args(["client", "evict", "--yes", &client]).arg(&cluster.config);
    let output = evict.output().unwrap();
    assert!(output.status.success(), "{}", describe(&output));
    eventually("the quarantine ends", || client_at(&cluster, "hosta").is_none());
    fs::remove_file(cluster.path(b).join("big")).unwrap();
    let before_b = paths.log("hostb").lines().count();
    let mine = cluster.path(b).join("mine");
    let content = pattern(2, 56 << 20);
    let mut file = File::create(&mine).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    let took = evicted.elapsed();
    assert!(took < SOON, "blocks were used again only after {took:?}");
    let log = cluster.server_log();
    assert!(log.contains("at host hosta has been fenced by agent"), "{log}");

    // Client A wakes with its lease not over, and goes on with its writes.
    let at = paths.fenced_at("hosta");
    signal(cluster.client_pid(a), Signal::CONT);
    // It drops what it hears in time that it may no longer write. Its new session has no access.
    let mut late = Command::new("dd");
    late.args(["if=/dev/urandom", "bs=1M", "count=1", "conv=fsync"]);
    late.arg(format!("of={}", cluster.path(a).join("late").display()));
    let late = late.output().unwrap();
    assert!(!late.status.success(), "a host that is cut off writes: {}", describe(&late));
    eventually("host A writes again", || !paths.results("hosta", at).is_empty());
    wait_child(&mut writer);
    let results = paths.results("hosta", at);
    assert!(results.iter().all(|result| result.starts_with("-1")), "{results:?}");
    let late = paths.ranges("hosta", at);
    let used = paths.ranges("hostb", before_b);
    let meet = |one: &(u64, u64), two: &(u64, u64)| one.0 < two.0 + two.1 && two.0 < one.0 + one.1;
    let before = paths.ranges("hosta", 0);
    let reused = before.iter().filter(|one| used.iter().any(|two| meet(one, two))).count();
    assert!(reused > 0, "no block of client A's was used again: {before:?} {used:?}");
    println!("{} late writes failed, {reused} ranges were used again, after {took:?}", late.len());

    // Past the caches of client B, on another path.
    let c = cluster.mount();
    assert!(fs::read(cluster.path(c).join("mine")).unwrap() == content, "content was damaged");
    cluster.kill_client(a);
    drop(file);
    for mount in [b, c] {
        cluster.unmount(mount);
    }
    paths.end();
    cluster.finish();
}

//! Control sockets: what running processes say, who gets an answer, and what dead ones leave.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{
    Cluster, Scratch, Spec, as_user, describe, eventually, pattern, redbud, signal, success,
    wait_child,
};

/// Runs a command that prints JSON, and gives that whatever the exit status is.
fn json(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", describe(&output)))
}

fn status(cluster: &Cluster) -> Value {
    json(redbud().args(["status", "--json"]).arg(&cluster.config))
}

fn codes(status: &Value) -> Vec<String> {
    let problems = status["problems"].as_array().unwrap().iter();
    problems.map(|problem| problem["code"].as_str().unwrap().to_owned()).collect()
}

fn socket_of(pid: i32) -> PathBuf {
    PathBuf::from(format!("/run/redbud/client-{pid}.sock"))
}

#[test]
fn status_names_an_absent_device_first_with_its_cause_and_what_to_do() {
    let mut cluster = Cluster::formatted(&Spec::default());
    let (there, away) = (cluster.dir.join("data1.img"), cluster.dir.join("away.img"));
    fs::rename(&there, &away).unwrap();
    cluster.start_server();
    cluster.mount();
    let found = status(&cluster);
    for code in ["RB-ZONE-ABSENT", "RB-DEVICE-ABSENT"] {
        assert!(codes(&found).iter().any(|one| one == code), "{found}");
    }
    let text = success(redbud().arg("status").arg(cluster.root()));
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("! ") && first.contains("data1.img"), "{text}");
    assert!(text.lines().nth(1).unwrap().contains("bring the device back"), "{text}");
    let client = &found["mounts"][0]["client"];
    assert_eq!(client["sessions"][0]["phase"], "up", "{found}");
    assert!(client["holds"]["leases"].as_u64().unwrap() > 0, "{found}");
    fs::rename(&away, &there).unwrap();
    eventually("nothing is wrong any more", || codes(&status(&cluster)).is_empty());
    assert!(success(redbud().arg("status").arg(cluster.root())).starts_with("no problem"));
    cluster.finish();
}

#[test]
fn stopped_client_is_named_and_can_be_evicted_by_its_mount_point() {
    let mut cluster = Cluster::mounted();
    cluster.mount();
    let (pid, name) = (cluster.client_pid(1), cluster.path(1).display().to_string());
    // So it has a pool of blocks, which is kept apart after its eviction.
    fs::write(cluster.path(1).join("f"), vec![1; 1 << 20]).unwrap();
    let clients = |args: &[&str]| {
        let mut command = redbud();
        command.arg("client").args(args).arg(&cluster.config);
        command
    };
    let listed = json(&mut clients(&["list", "--json"]));
    assert_eq!(listed["clients"].as_array().unwrap().len(), 2, "{listed}");
    let shown = json(&mut clients(&["show", "--json", &name]));
    assert_eq!(shown["itself"]["pid"], pid, "{shown}");

    signal(pid, Signal::STOP);
    let found = status(&cluster);
    assert_eq!(codes(&found), ["RB-MOUNT-MUTE"], "{found}");
    assert!(found["problems"][0]["remedy"].as_str().unwrap().contains(&pid.to_string()));
    let output = clients(&["evict", &name]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", describe(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--yes"), "{}", describe(&output));
    success(&mut clients(&["evict", "--yes", &name]));
    assert!(cluster.server_log().contains("evicted"), "{}", cluster.server_log());
    let again = clients(&["evict", "--yes", &name]).output().unwrap();
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains("RB-CLIENT-EVICTED"), "{}", describe(&again));
    signal(pid, Signal::CONT);
    eventually("it has a new session", || {
        let mounts = status(&cluster)["mounts"].take();
        mounts[1]["client"]["sessions"][0]["evictions"] == 1
    });
    cluster.finish();
}

/// A process that locks bytes of a file, says so, and ends when its input does.
fn locker(root: &Path, start: u32, len: u32) -> Child {
    let script = format!(
        "import fcntl, sys; f = open('f', 'r+'); fcntl.lockf(f, fcntl.LOCK_EX, {len}, {start}); \
         print('held', flush=True); sys.stdin.read()"
    );
    let mut command = Command::new("python3");
    command.args(["-c", &script]).current_dir(root);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn wait_held(locker: &mut Child) {
    let mut line = String::new();
    BufReader::new(locker.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
}

#[test]
fn why_names_the_process_that_holds_a_lock_under_another_mount() {
    let mut cluster = Cluster::mounted();
    cluster.mount();
    fs::write(cluster.root().join("f"), b"x").unwrap();
    let mut holder = locker(&cluster.path(0), 0, 100);
    wait_held(&mut holder);
    let mut waiter = locker(&cluster.path(1), 50, 10);
    let pid = waiter.id().to_string();
    let why = |subject: &str| json(redbud().args(["why", "--json", subject]));
    let waits = |said: &Value| {
        let mounts = said["mounts"].as_array().unwrap().iter();
        let waiting = mounts.filter_map(|mount| mount["waiting"].get(0).cloned());
        waiting.collect::<Vec<_>>().pop()
    };
    let mut waiting = Value::Null;
    eventually("it waits, and the lock is named", || {
        waiting = waits(&why(&pid)).unwrap_or_default();
        waiting["reasons"][0]["for"] == "lock"
    });
    let lock = &waiting["reasons"][0]["holders"][0]["locks"][0];
    assert_eq!(lock["process"], holder.id(), "{waiting}");
    assert_eq!((&lock["start"], &lock["end"]), (&0.into(), &99.into()), "{waiting}");
    let name = lock["name"].as_str().unwrap();
    assert!(name.ends_with(cluster.path(0).to_str().unwrap()), "{waiting}");
    let text = success(redbud().args(["why", &pid]));
    assert!(text.contains("(python3) waits in") && text.contains("SETLKW"), "{text}");
    assert!(text.contains(&format!("process {} there", holder.id())), "{text}");
    // The same by the path, and, from the holder's mount, who holds it.
    let path = |index: usize| cluster.path(index).join("f").display().to_string();
    assert_eq!(waits(&why(&path(1))).unwrap()["thread"], waiter.id());
    let held = why(&path(0));
    assert_eq!(held["mounts"][0]["holders"]["locks"][0]["process"], holder.id(), "{held}");

    drop(holder.stdin.take());
    wait_held(&mut waiter);
    let none = redbud().args(["why", &pid]).output().unwrap();
    // 3: a mount of another test is stopped or ends just now.
    assert!(matches!(none.status.code(), Some(1 | 3)), "{}", describe(&none));
    drop(waiter.stdin.take());
    assert!(wait_child(&mut holder).success() && wait_child(&mut waiter).success());
    cluster.finish();
}

#[test]
fn why_names_a_server_that_does_not_answer() {
    let cluster = Cluster::mounted();
    fs::create_dir(cluster.root().join("d")).unwrap();
    signal(cluster.server_pid(), Signal::STOP);
    let mut stat = Command::new("mkdir").arg("d/new").current_dir(cluster.root()).spawn().unwrap();
    let why = || json(redbud().args(["why", "--json", &stat.id().to_string()]));
    let mut said = Value::Null;
    eventually("it waits for the server", || {
        said = why();
        said["mounts"][0]["waiting"][0]["reasons"][0]["for"] == "server"
    });
    let what = said["mounts"][0]["waiting"][0]["reasons"][0]["what"].as_str().unwrap();
    assert!(what.contains("to Create"), "{said}");
    signal(cluster.server_pid(), Signal::CONT);
    assert!(wait_child(&mut stat).success());
    cluster.finish();
}

#[test]
fn durable_is_false_before_and_true_after_fsync() {
    let cluster = Cluster::mounted();
    let path = cluster.root().join("f");
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).unwrap();
    let mut owed = Value::Null;
    eventually("it is asked before the data is committed", || {
        file.write_all_at(&pattern(1, 300_000), 0).unwrap();
        owed = json(redbud().args(["durable", "--json"]).arg(&path))["files"][0].take();
        owed["durable"] == false
    });
    assert!(owed["age_ms"].as_u64().unwrap() < 60_000, "{owed}");
    file.sync_all().unwrap();
    let text = success(redbud().arg("durable").arg(&path).arg(cluster.root()));
    assert!(text.lines().all(|line| line.ends_with(": durable")), "{text}");
    let mut value = [0; 1000];
    for name in ["redbud.durable", "user.redbud.durable"] {
        let len = rustix::fs::getxattr(&path, name, &mut value[..]).unwrap();
        assert!(value[..len].starts_with(b"{\"durable\":true,\"lost\":false"));
    }
    let len = rustix::fs::listxattr(&path, &mut value[..]).unwrap();
    assert!(!String::from_utf8_lossy(&value[..len]).contains("redbud"));
    let (code, said) = {
        let output = redbud().args(["durable", "/etc/passwd"]).output().unwrap();
        (output.status.code(), describe(&output))
    };
    assert!(code == Some(1) && said.contains("not lie in a Redbud mount"), "{said}");
    drop(file);
    cluster.finish();
}

#[test]
fn socket_of_a_killed_mount_is_ignored_and_removed_and_others_are_refused() {
    let mut cluster = Cluster::mounted();
    cluster.mount();
    let sockets = [0, 1].map(|index| socket_of(cluster.client_pid(index)));
    for socket in &sockets {
        assert_eq!(fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // A process that reaches the socket is still refused if it is of another user.
    fs::set_permissions(&sockets[1], fs::Permissions::from_mode(0o666)).unwrap();
    let stranger = as_user(4242, || UnixStream::connect(&sockets[1])).unwrap();
    let mut line = String::new();
    assert_eq!(BufReader::new(stranger).read_line(&mut line).unwrap_or(0), 0, "{line}");
    eventually("the log says so", || cluster.client_log(1).contains("user 4242 was refused"));

    signal(cluster.client_pid(0), Signal::KILL);
    eventually("the mount is dead", || fs::metadata(cluster.root()).is_err());
    let found = status(&cluster);
    assert_eq!(codes(&found), ["RB-MOUNT-DEAD"], "{found}");
    assert!(found["mounts"][1]["client"]["sessions"][0]["phase"] == "up", "{found}");
    assert!(!sockets[0].exists() && sockets[1].exists());
    cluster.kill_client(0);
    cluster.unmount(1);
    assert!(!sockets[1].exists(), "a client takes its socket away");
    cluster.finish();
}

#[test]
fn local_cluster_has_its_sockets_in_its_directory() {
    let scratch = Scratch::new();
    let (dir, mount) = (scratch.path().join("dir"), scratch.path().join("mnt"));
    let program = redbud().get_program().to_str().unwrap().to_owned();
    let script = format!("ls {0}/*.sock >&2; {program} status --json {0}", dir.display());
    let mut command = redbud();
    command.arg("local").arg(&dir).arg("--mount").arg(&mount).args(["--exec", &script]);
    let output = command.output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let listed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(listed.contains("client.sock") && listed.contains("mds.sock"), "{listed}");
    assert_eq!(found["mounts"][0]["client"]["sessions"][0]["phase"], "up", "{found}");
    assert!(codes(&found).is_empty(), "{found}");
    assert!(!dir.join("client.sock").exists() && !dir.join("mds.sock").exists());
}

//! While the server is away, a process that waits for it can be killed, and a mount can be ended.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Cluster, Spec, describe, eventually, pattern, redbud, signal};

/// A killed process is gone by then. It takes a tenth of a second, on an idle machine.
const PROMPT: Duration = Duration::from_secs(2);

/// How long an unmount waits for a server that is away, with a short lease.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the processes do, each in a system call of its own kind.
struct Waiters {
    reader: Child,
    maker: Child,
    writer: Child,
    lister: Child,
    remover: Child,
    locker: Child,
}

fn run(program: &str, arguments: &[&str], dir: &Path) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn has_open(child: &Child, path: &Path) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{}/fd", child.id())) else { return false };
    files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|target| target == path))
}

/// Is its thread in a request to the mount?
fn waits_for_mount(child: &Child) -> bool {
    let stack = fs::read_to_string(format!("/proc/{}/wchan", child.id())).unwrap_or_default();
    stack.contains("request_wait_answer")
}

impl Waiters {
    /// Starts those that open something while the server is there. `granted`: their mount has been
    /// given blocks, so that the writer waits for its fsync; else it waits for space.
    fn prepare(root: &Path, granted: bool) -> (Child, Child) {
        if granted {
            fs::write(root.join("large"), pattern(2, 5000)).unwrap();
        }
        let writer = run("dd", &["of=written", "conv=fsync,notrunc", "bs=64k"], root);
        eventually("the writer has its file open", || has_open(&writer, &root.join("written")));
        let script = "flock 9 && : > locked && exec cat 9>&9";
        let locker = run("bash", &["-c", &format!("exec 9>lock; {script}")], root);
        eventually("the lock is held", || root.join("locked").exists());
        (writer, locker)
    }

    fn start(root: &Path, (mut writer, locker): (Child, Child)) -> Waiters {
        // The kernel has these names: the calls come through to the requests themselves.
        let mut input = writer.stdin.take().unwrap();
        // The pipe takes in only a part of what a writer leaves there that waits for space. It
        // breaks when that ends.
        std::thread::spawn(move || input.write_all(&pattern(1, 300_000)));
        Waiters {
            reader: run("stat", &["unknown/file"], root),
            maker: run("mkdir", &["made/dir"], root),
            writer,
            lister: run("ls", &["listed"], root),
            remover: run("unlink", &["removed/file"], root),
            locker,
        }
    }

    fn kill(self) {
        let Waiters { reader, maker, writer, lister, remover, locker } = self;
        for child in [&reader, &maker, &lister, &remover, &writer] {
            eventually("the process waits", || waits_for_mount(child));
        }
        for mut child in [reader, maker, writer, lister, remover, locker] {
            child.kill().unwrap();
            let until = Instant::now() + PROMPT;
            while child.try_wait().unwrap().is_none() {
                assert!(Instant::now() < until, "{} cannot be killed", child.id());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Directories made by another client, which this one has not looked at, but for two.
fn prepared() -> Cluster {
    let mut cluster = Cluster::start(&Spec { lease: Duration::from_secs(5), ..Spec::default() });
    cluster.mount();
    cluster.mount();
    let other = cluster.path(1);
    for dir in ["unknown", "made", "listed", "removed"] {
        fs::create_dir(other.join(dir)).unwrap();
        fs::write(other.join(dir).join("file"), b"content").unwrap();
    }
    cluster
}

/// The client learns what the maker and the remover ask before they come to their requests.
fn know(root: &Path) {
    assert_eq!(fs::read_dir(root.join("made")).unwrap().count(), 1);
    fs::metadata(root.join("removed/file")).unwrap();
}

fn names(root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            }
            all.push(entry.path().strip_prefix(root).unwrap().to_owned());
        }
    }
    all.sort();
    all
}

fn finish(cluster: Cluster) {
    assert_eq!(names(&cluster.path(0)), names(&cluster.path(1)), "both see the same names");
    let written = fs::read(cluster.path(1).join("written")).unwrap();
    assert!(written.is_empty() || pattern(1, 300_000).starts_with(&written));
    // The lock ended with its holder.
    let lock = fs::File::open(cluster.path(1).join("lock")).unwrap();
    eventually("the lock is free", || lock.try_lock().is_ok());
    drop(lock);
    fs::write(cluster.path(0).join("made/works"), b"x").unwrap();
    assert_eq!(fs::read(cluster.path(1).join("made/works")).unwrap(), b"x");
    cluster.finish();
}

#[test]
fn caller_of_a_dead_server_can_be_killed_and_unsent_changes_are_not_made() {
    for granted in [true, false] {
        let mut cluster = prepared();
        let root = cluster.root();
        let early = Waiters::prepare(&root, granted);
        know(&root);
        cluster.kill_server();
        eventually("the client knows", || cluster.client_log(0).contains("lost the connection"));
        Waiters::start(&root, early).kill();
        cluster.start_server();
        assert!(root.join("removed/file").exists() && !root.join("made/dir").exists());
        finish(cluster);
    }
}

#[test]
fn caller_of_a_stopped_server_can_be_killed_and_sent_changes_are_made() {
    for granted in [true, false] {
        let cluster = prepared();
        let root = cluster.root();
        let early = Waiters::prepare(&root, granted);
        know(&root);
        signal(cluster.server_pid(), Signal::STOP);
        Waiters::start(&root, early).kill();
        signal(cluster.server_pid(), Signal::CONT);
        // The kernel saw both fail.
        eventually("the directory is made", || root.join("made/dir").exists());
        eventually("the file is removed", || !root.join("removed/file").exists());
        finish(cluster);
    }
}

#[test]
fn mount_of_a_dead_server_ends_in_bounded_time_and_reports_losses() {
    let mut cluster = Cluster::start(&Spec { lease: Duration::from_secs(2), ..Spec::default() });
    cluster.mount();
    let root = cluster.root();
    fs::write(root.join("precious"), pattern(1, 100_000)).unwrap();
    cluster.kill_server();
    let output = redbud().arg("umount").arg(&root).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("/precious"), "{said}");
    assert!(said.contains("RB-CLIENT-LOST"), "{said}");
    let status = cluster.wait_client(0);
    assert!(!status.success(), "{status}");
    assert!(cluster.client_log(0).contains("/precious"), "{}", cluster.client_log(0));

    // Ctrl-C, while someone is stuck in the mount; a further one does not wait.
    cluster.start_server();
    for signals in [1, 2] {
        cluster.remount(0, &[]);
        let mut stuck = Command::new("sleep").arg("600").current_dir(&root).spawn().unwrap();
        cluster.kill_server();
        let mut last = Instant::now();
        for number in 0..signals {
            if number > 0 {
                // Two that come together are one.
                std::thread::sleep(Duration::from_millis(1100));
            }
            let lines = cluster.client_log(0).lines().count();
            last = Instant::now();
            signal(cluster.client_pid(0), Signal::INT);
            eventually("the signal is seen", || {
                !is_mounted(&root) || cluster.client_log(0).lines().count() > lines
            });
        }
        let _ = cluster.wait_client(0);
        let waited = last.elapsed();
        assert_eq!(waited < PATIENCE / 2, signals == 2, "after {signals} signals: {waited:?}");
        assert!(waited < PATIENCE * 3, "after {signals} signals: {waited:?}");
        stuck.kill().unwrap();
        stuck.wait().unwrap();
        cluster.start_server();
    }
    cluster.finish();
}

/// Runs a program to its end.
fn ended(program: &str, arguments: &[&str], mount: &Path) -> (bool, Duration, String) {
    let begin = Instant::now();
    let mut command = Command::new("timeout");
    let output = command.args(["-s", "KILL", "30", program]).args(arguments).arg(mount).output();
    let output = output.unwrap();
    (output.status.success(), begin.elapsed(), describe(&output))
}

#[test]
fn idle_mount_of_a_dead_server_blocks_no_df_and_unmounts() {
    const LEASE: Duration = Duration::from_secs(2);
    let mut cluster = Cluster::start(&Spec { lease: LEASE, ..Spec::default() });
    for _ in 0..5 {
        cluster.mount();
    }
    let root = cluster.root();
    let mut file = fs::File::create(root.join("file")).unwrap();
    file.write_all(b"content").unwrap();
    file.sync_all().unwrap();
    drop(file);
    // Nobody has asked the others for anything.
    cluster.kill_server();
    // Until no lease is good.
    std::thread::sleep(LEASE * 2);
    for index in 0..2 {
        let path = cluster.path(index);
        for (program, arguments) in [
            ("df", &[][..]),
            ("df", &["-i"]),
            ("stat", &["-f"]),
            ("stat", &[]),
            ("mountpoint", &[]),
            ("ls", &["-ld"]),
        ] {
            let (done, took, said) = ended(program, arguments, &path);
            assert!(done && took < PROMPT * 2, "{program} {arguments:?}: {took:?}, {said}");
        }
    }
    let above = root.parent().unwrap();
    let (done, took, said) = ended("ls", &["-l"], above);
    assert!(done && took < PROMPT * 5, "ls -l of the directory above: {took:?}, {said}");
    let client = redbud().get_program().to_str().unwrap().to_owned();
    let (done, took, said) = ended(&client, &["umount"], &root);
    assert!(done && took < PATIENCE + PATIENCE / 2, "{took:?}, {said}");
    assert!(cluster.wait_client(0).success());
    let (done, took, said) = ended("umount", &[], &cluster.path(1));
    assert!(done && took < PATIENCE * 2, "{took:?}, {said}");
    assert!(cluster.wait_client(1).success());
    // A mount that is detached in use and then gets a signal to end, waits once.
    let stays = fs::File::open(cluster.path(2)).unwrap();
    let (done, took, said) = ended(&client, &["umount", "--lazy"], &cluster.path(2));
    assert!(done && took < PROMPT, "{took:?}, {said}");
    let begin = Instant::now();
    signal(cluster.client_pid(2), Signal::TERM);
    cluster.wait_client(2);
    let took = begin.elapsed();
    assert!(took < PATIENCE + PATIENCE / 2, "{took:?}");
    assert!(!cluster.client_log(2).contains("Invalid argument"), "{}", cluster.client_log(2));
    drop(stays);
    signal(cluster.client_pid(3), Signal::TERM);
    cluster.wait_client(3);
    for index in 0..4 {
        assert!(!is_mounted(&cluster.path(index)));
    }
    // The numbers are current again when the server is back.
    cluster.start_server();
    let path = cluster.path(4);
    fs::create_dir(path.join("made")).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().nlink(), 3);
    cluster.finish();
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == path))
}

//! Servers that agree through three members of an etcd cluster, with TLS, a user and a password.
//! Owner, leader, and the quorum go away.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use serde_json::Value;

use super::Servers;
use crate::harness::{Scratch, eventually, free_port, redbud, shell, success};
use crate::kill::{Load, Promised, forget, prepare, verify};

/// The members' files of TLS.
const CERTIFICATES: &str = "
new() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=$1 \\
    -keyout $1.key -out $1.$2 \"${@:3}\" 2> openssl.log || { cat openssl.log; false; }; }
new ca pem -x509 -days 9
new member csr
echo subjectAltName=IP:127.0.0.1 > names
openssl x509 -req -in member.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 9 \\
    -extfile names -out member.pem 2> openssl.log || { cat openssl.log; false; }
";

/// The user of the servers may use the keys of their file system only.
const USERS: &str = "
etcdctl role add redbud
etcdctl role grant-permission --prefix=true redbud readwrite /redbud/test/
etcdctl user add redbud:secret
etcdctl user grant-role redbud redbud
etcdctl user add root:rootsecret
etcdctl user grant-role root root
etcdctl auth enable
";

/// Cuts a host off, in the test's word only, if a file `works` is there; a file then names the
/// host.
const AGENT: &str = r#"#!/bin/bash
here=$(dirname "$0")
[ -e "$here/works" ] || { echo no power switch >&2; exit 1; }
asked=$(cat)
off=$here/off-${asked##*nodename=}
case $asked in
    *action=off*nodename=mds*) touch "$off" ;;
    *action=status*) [ -e "$off" ] && exit 2 || exit 0 ;;
    *) exit 1 ;;
esac
"#;

/// The usual lease of an owner.
const LEASE: Duration = Duration::from_secs(6);

/// An etcd cluster of three members.
pub struct Etcd {
    members: Vec<Option<Child>>,
    ports: Vec<(u16, u16)>,
    /// That of an owner.
    lease: Duration,
    dir: Scratch,
}

impl Etcd {
    pub fn start() -> Etcd {
        Etcd::with_lease(LEASE)
    }

    /// One in which an owner may be silent for so long.
    pub fn with_lease(lease: Duration) -> Etcd {
        let dir = Scratch::new();
        shell(dir.path(), CERTIFICATES);
        fs::write(dir.path().join("password"), "secret\n").unwrap();
        fs::write(dir.path().join("agent"), AGENT).unwrap();
        shell(dir.path(), "chmod +x agent; touch works");
        let ports = (0..3).map(|_| (free_port(), free_port())).collect();
        let mut etcd = Etcd { members: (0..3).map(|_| None).collect(), ports, lease, dir };
        (0..3).for_each(|index| etcd.start_one(index));
        eventually("etcd has a leader", || etcd.leader().is_some());
        let all = etcd.urls().join(",");
        let set = format!("export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={all} ETCDCTL_CACERT=ca.pem");
        shell(etcd.dir.path(), &format!("{set}\n{USERS}"));
        etcd
    }

    fn start_one(&mut self, index: usize) {
        let peer = |index: usize| format!("http://127.0.0.1:{}", self.ports[index].1);
        let cluster: Vec<String> =
            (0..3).map(|index| format!("m{index}={}", peer(index))).collect();
        let log = self.dir.path().join(format!("m{index}.log"));
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let url = &self.urls()[index];
        let member = Command::new("etcd")
            .current_dir(self.dir.path())
            .args(["--name", &format!("m{index}"), "--data-dir", &format!("m{index}")])
            .args(["--cert-file", "member.pem", "--key-file", "member.key"])
            .args(["--listen-client-urls", url, "--advertise-client-urls", url])
            .args(["--listen-peer-urls", &peer(index)])
            .args(["--initial-advertise-peer-urls", &peer(index)])
            .args(["--initial-cluster", &cluster.join(",")])
            .args(["--logger", "zap"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("etcd of the package etcd-server");
        self.members[index] = Some(member);
    }

    fn kill(&mut self, index: usize) {
        let mut member = self.members[index].take().expect("it runs");
        member.kill().unwrap();
        member.wait().unwrap();
    }

    /// Kills the member that leads.
    pub fn kill_leader(&mut self) {
        let leader = self.leader().expect("etcd has a leader");
        self.kill(leader);
    }

    fn urls(&self) -> Vec<String> {
        self.ports.iter().map(|(port, _)| format!("https://127.0.0.1:{port}")).collect()
    }

    fn etcdctl(&self, index: usize) -> Command {
        let mut command = Command::new("etcdctl");
        command.current_dir(self.dir.path()).env("ETCDCTL_API", "3").env_remove("ETCDCTL_USER");
        command.args(["--endpoints", &self.urls()[index], "--cacert", "ca.pem"]);
        command.args(["--command-timeout", "5s"]);
        command
    }

    /// The index of the member that leads; `None`: there is no leader.
    fn leader(&self) -> Option<usize> {
        (0..3).filter(|index| self.members[*index].is_some()).find(|index| {
            let asked = self.etcdctl(*index).args(["endpoint", "status", "-w", "json"]).output();
            let status: Value = serde_json::from_slice(&asked.unwrap().stdout).unwrap_or_default();
            let status = &status[0]["Status"];
            let own = &status["header"]["member_id"];
            own.is_u64() && *own == status["leader"]
        })
    }

    /// The keys of the table `[membership]`, and a fence that cuts off in its word only.
    pub fn keys(&self) -> String {
        let agent = self.dir.path().join("agent");
        format!("{}[[fence]]\nhost = \"mds*\"\nagent = {agent:?}\n", self.membership())
    }

    /// The keys of the table `[membership]`.
    pub fn membership(&self) -> String {
        let file = |name: &str| self.dir.path().join(name).display().to_string();
        format!(
            "etcd = {:?}\nca = {:?}\nuser = \"redbud\"\npassword_file = {:?}\nlease = \"{}s\"\n",
            self.urls(),
            file("ca.pem"),
            file("password"),
            self.lease.as_secs(),
        )
    }

    /// Makes the fence work, or fail.
    pub fn set_fence(&self, works: bool) {
        let file = self.dir.path().join("works");
        match works {
            true => fs::write(file, "").unwrap(),
            false => fs::remove_file(file).unwrap(),
        }
    }

    /// Has the fence cut this host off?
    pub fn is_cut_off(&self, host: &str) -> bool {
        self.dir.path().join(format!("off-{host}")).exists()
    }

    /// Gives a host that was cut off its power again.
    pub fn restore(&self, host: &str) {
        fs::remove_file(self.dir.path().join(format!("off-{host}"))).unwrap();
    }

    /// The text of a record, whose key ends like this; empty if there is none, or no quorum.
    pub fn record(&self, key: &str) -> String {
        let living = (0..3).find(|index| self.members[*index].is_some()).unwrap_or(0);
        let mut command = self.etcdctl(living);
        command.args(["--user", "root:rootsecret", "get", "--print-value-only"]);
        let output = command.arg(format!("/redbud/test/{key}")).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for mut member in self.members.drain(..).flatten() {
            drop((member.kill(), member.wait()));
        }
    }
}

/// Times are measured, with so many kills of the owner.
fn takeovers() -> Option<u64> {
    std::env::var("REDBUD_TAKEOVERS").ok().map(|text| text.parse().expect("a number"))
}

/// Kills the owner, with the member of etcd that leads if it is wanted: another server takes over.
/// Yields the time until the first new operation.
fn replace_owner(
    servers: &mut Servers,
    (round, with_leader): (u64, bool),
    promised: &Arc<Mutex<Promised>>,
) -> Duration {
    let root = servers.cluster.root();
    let load = Load::start(root.clone(), round, promised);
    load.work(round);
    let (owner, epoch) = (servers.owner(), servers.epoch());
    if with_leader {
        servers.etcd.as_mut().unwrap().kill_leader();
    }
    let killed = Instant::now();
    servers.kill(owner);
    File::create(root.join(format!("first{round}"))).unwrap();
    let pause = killed.elapsed();
    load.work(round);
    assert!(servers.epoch() > epoch && servers.owner() == 1 - owner);
    servers.start_one(owner);
    let errors = load.end();
    assert!(errors.is_empty(), "{errors:?}");
    let mut promised = promised.lock().unwrap();
    verify(&root, &promised);
    forget(&root, &mut promised);
    pause
}

/// Without a quorum the owner stops at the end of its lease, and goes on with the quorum.
fn lose_quorum(servers: &mut Servers, lock: &File) {
    let root = servers.cluster.root();
    fs::write(root.join("before"), b"x").unwrap();
    let (epoch, pids) = (servers.epoch(), [servers.pid(0), servers.pid(1)]);
    let etcd = servers.etcd.as_mut().unwrap();
    let away: Vec<usize> = (0..3).filter(|index| etcd.members[*index].is_none()).collect();
    let next = (0..3).find(|index| etcd.members[*index].is_some()).unwrap();
    etcd.kill(next);
    eventually("no server serves, and the status says why", || {
        let report = servers.status();
        let standbys = report["filesystems"][0]["standbys"].as_array().cloned();
        let standbys = standbys.unwrap_or_default();
        let waits = |one: &Value| {
            let why = one["waits"].as_str().unwrap_or("").to_owned();
            one["odd"] == true && why.contains("does not answer, or has no quorum")
        };
        standbys.len() == 2 && standbys.iter().all(waits)
    });
    let file = root.join("waits");
    let writer = std::thread::spawn(move || fs::write(file, b"written"));
    // No server: whatever time passes here, it cannot end.
    std::thread::yield_now();
    assert!(!writer.is_finished());
    let etcd = servers.etcd.as_mut().unwrap();
    etcd.start_one(next);
    away.into_iter().for_each(|index| etcd.start_one(index));
    writer.join().unwrap().unwrap();
    assert!(servers.epoch() > epoch);
    assert_eq!([servers.pid(0), servers.pid(1)], pids);
    assert_eq!(fs::read(root.join("waits")).unwrap(), b"written");
    assert_eq!(fs::read(root.join("before")).unwrap(), b"x");
    rustix::fs::flock(lock, FlockOperation::Unlock).unwrap();
}

#[test]
fn servers_that_agree_through_etcd_survive_owner_leader_and_quorum() {
    let mut servers = Servers::formatted_at(2, Some(Etcd::start()));
    (0..2).for_each(|index| servers.start_one(index));
    servers.cluster.mount();
    let root = servers.cluster.root();
    prepare(&root);
    let locked = File::create(root.join("locked")).unwrap();
    rustix::fs::flock(&locked, FlockOperation::LockExclusive).unwrap();
    let promised = Arc::new(Mutex::new(Promised::default()));
    let kills = takeovers().unwrap_or(1);
    let mut pauses: Vec<_> =
        (0..kills).map(|round| replace_owner(&mut servers, (round, false), &promised)).collect();
    pauses.sort();
    println!("{kills} kills, fenced: new operation after {pauses:?}");
    // Half a lease, a second that etcd cuts off, the takeover; twice that on a busy machine.
    let limit = if takeovers().is_some() { Duration::from_secs(5) } else { LEASE * 2 };
    assert!(pauses.iter().all(|pause| *pause <= limit), "{pauses:?}");
    // From here on only the lease proves a death.
    servers.etcd.as_ref().unwrap().set_fence(false);
    let pause = replace_owner(&mut servers, (kills, true), &promised);
    println!("owner and leader of etcd killed, no fence: new operation after {pause:?}");
    assert!(pause <= LEASE + Duration::from_secs(10), "{pause:?}");
    lose_quorum(&mut servers, &locked);
    // A planned failover waits for no lease.
    let owner = servers.owner();
    success(redbud().args(["mds", "failover"]).arg(&servers.cluster.config));
    assert_eq!(servers.owner(), 1 - owner);
    let reasons = servers.record()["history"].clone();
    let reasons = reasons.as_array().unwrap().iter().map(|one| one["reason"].to_string());
    let reasons: Vec<String> = reasons.collect();
    let [rest @ .., planned] = &reasons[1..] else { panic!("{reasons:?}") };
    let (fenced, leases) = rest.split_at(kills as usize);
    let by_fence = |one: &String| one.ends_with("has ended: it is cut off by agent\"");
    assert!(fenced.iter().all(by_fence), "{reasons:?}");
    let by_lease = |one: &String| one.ends_with("has ended: its lease is over\"");
    assert!(leases.len() >= 2 && leases.iter().all(by_lease), "{reasons:?}");
    assert!(planned.ends_with(": a planned failover\""), "{reasons:?}");
    drop(locked);
    servers.finish(1);
}

#[test]
fn wrong_password_and_wrong_ca_are_named() {
    let servers = Servers::formatted_at(1, Some(Etcd::start()));
    let dir = servers.etcd.as_ref().unwrap().dir.path().to_owned();
    let start = |what: &str, expected: &[&str]| {
        let output = redbud().arg("mds").arg(&servers.cluster.config).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{what}: {said}");
        assert!(expected.iter().all(|text| said.contains(text)), "{what}: {said}");
    };
    let change = |name: &str, text: &[u8]| fs::write(dir.join(name), text).unwrap();
    change("password", b"guessed\n");
    start("password", &["the user `redbud`", "authentication failed"]);
    change("password", b"");
    start("password", &["password: it must have one line"]);
    change("password", b"secret\n");
    let other: &Path = &dir.join("other");
    fs::create_dir(other).unwrap();
    shell(other, CERTIFICATES);
    fs::copy(other.join("ca.pem"), dir.join("ca.pem")).unwrap();
    start("another CA", &["invalid peer certificate"]);
    change("ca.pem", b"nothing");
    start("no certificate", &["ca.pem: it has no certificate"]);
    servers.finish(0);
}

//! Servers that stand by for each other: the one that serves is killed, stopped, or hands over, and
//! applications notice nothing.

mod devices;
mod etcd;
mod neighbours;
mod woken;

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{
    Cluster, Report, Running, Scratch, Spec, at_host, eventually, free_port, redbud, shell, signal,
    success,
};
use crate::kill::{Load, Promised, forget, prepare, verify};

/// Takeovers that a record remembers.
const HISTORY_MAX: usize = 64;

/// Servers of one file system on this host.
struct Servers {
    running: Vec<Option<Running>>,
    addresses: Vec<String>,
    /// The file of each server.
    configs: Vec<PathBuf>,
    /// Where they agree, if not in a directory.
    etcd: Option<etcd::Etcd>,
    /// The place there of each that shares the directories out; one has no place of its own.
    places: Vec<String>,
    cluster: Cluster,
}

impl Servers {
    /// Formats, and starts `count` servers.
    fn start(count: usize) -> Servers {
        let mut servers = Servers::formatted(count);
        for index in 0..count {
            servers.start_one(index);
        }
        servers
    }

    fn formatted(count: usize) -> Servers {
        Servers::formatted_at(count, None)
    }

    fn formatted_at(count: usize, etcd: Option<etcd::Etcd>) -> Servers {
        Servers::formatted_as(count, etcd, Spec::default())
    }

    fn formatted_as(count: usize, etcd: Option<etcd::Etcd>, spec: Spec) -> Servers {
        let lease = Duration::from_secs(2);
        let mut cluster = Cluster::formatted(&Spec { lease, ..spec });
        let text = fs::read_to_string(&cluster.config).unwrap();
        let (shared, _) = cluster.source.split_once(":/").unwrap();
        let mut addresses: Vec<String> = shared.split(',').map(str::to_owned).collect();
        let own = addresses.len();
        while addresses.len() < count {
            addresses.push(format!("127.0.0.1:{}", free_port()));
        }
        let standbys = format!("standbys = {:?}\nlease =", &addresses[own..]);
        let mut text = text.replacen("lease =", &standbys, 1);
        let places = match own {
            1 => vec![String::new()],
            _ => (0..own).map(|server| format!("server-{server}/")).collect(),
        };
        for address in addresses[..own].iter().filter(|_| own > 1) {
            let listen = format!("listen = \"{address}\"\n");
            let also = format!("{listen}take_over = [\"127.0.0.1:{}\"]\n", free_port());
            text = text.replacen(&listen, &also, 1);
        }
        let place = etcd.as_ref().map_or("directory = \"who\"\n".into(), etcd::Etcd::keys);
        fs::write(&cluster.config, format!("{text}[membership]\n{place}")).unwrap();
        cluster.source = format!("{}:/test", addresses.join(","));
        let configs = vec![cluster.config.clone(); count];
        let running = (0..count).map(|_| None).collect();
        Servers { running, addresses, configs, etcd, places, cluster }
    }

    fn start_one(&mut self, index: usize) {
        let started = self.begin(index)();
        self.running[index] = Some(started);
    }

    /// Starts a server when it is called, and waits until it serves or stands by.
    fn begin(&self, index: usize) -> impl FnOnce() -> Running + Send + use<> {
        let mut command = match &self.etcd {
            Some(_) => at_host(&format!("mds{index}")),
            None => redbud(),
        };
        command.arg("mds").arg(&self.configs[index]).arg("--standby");
        command.args(["--listen", &self.addresses[index]]);
        if self.places.len() > 1 {
            command.args(["--server", &index.to_string()]);
        }
        let log = self.cluster.dir.join(format!("mds{index}.log"));
        let pids = self.cluster.pids().clone();
        move || Running::ready(command, &log, &pids)
    }

    /// A directory for the file of a server with its own paths, beside the same key and data zones.
    fn own_directory(&self, index: usize) -> PathBuf {
        let own = self.cluster.dir.join(format!("mds{index}"));
        fs::create_dir(&own).unwrap();
        shell(&own, "ln -s ../cluster.key ../data*.img .");
        own
    }

    /// The file of the membership's record, where no etcd has it.
    fn record_file(&self, server: usize) -> PathBuf {
        self.cluster.dir.join(format!("who/{}owner", self.places[server]))
    }

    /// The membership's record of the only server, or the first.
    fn record(&self) -> Value {
        self.record_of(0)
    }

    /// The membership's record of one that shares the directories out.
    fn record_of(&self, server: usize) -> Value {
        let text = match &self.etcd {
            Some(etcd) => etcd.record(&format!("{}record", self.places[server])),
            None => fs::read_to_string(self.record_file(server)).unwrap_or_default(),
        };
        text.lines().nth(1).map_or(Value::Null, |line| serde_json::from_str(line).unwrap())
    }

    fn epoch(&self) -> u64 {
        self.epoch_of(0)
    }

    fn epoch_of(&self, server: usize) -> u64 {
        self.record_of(server)["owner"]["epoch"].as_u64().unwrap_or(0)
    }

    /// The index of the server that owns the metadata.
    fn owner(&self) -> usize {
        let pid = self.record()["owner"]["member"]["pid"].as_i64().unwrap_or(0);
        let is_owner =
            |one: &Option<Running>| one.as_ref().is_some_and(|one| i64::from(one.pid()) == pid);
        self.running.iter().position(is_owner).expect("a server owns the metadata")
    }

    fn pid(&self, index: usize) -> i32 {
        self.running[index].as_ref().expect("it runs").pid()
    }

    fn kill(&mut self, index: usize) {
        self.running[index].take().expect("it runs").kill();
    }

    /// Waits until a process with a higher epoch serves as this server.
    fn wait_taken_over(&self, server: usize, epoch: u64) {
        eventually("another process serves", || {
            let record = self.record_of(server);
            let last = record["history"].as_array().and_then(|all| all.last()).cloned();
            last.is_some_and(|last| {
                last["epoch"].as_u64() > Some(epoch) && last["took_ms"].as_u64() > Some(0)
            })
        });
    }

    /// What `redbud status` says.
    fn status(&self) -> Value {
        self.report().0
    }

    fn report(&self) -> Report {
        Report::of(&self.cluster.config)
    }

    /// What each server has logged.
    fn logs(&self) -> String {
        let log = |index| fs::read_to_string(self.cluster.dir.join(format!("mds{index}.log")));
        (0..self.addresses.len()).map(|index| log(index).unwrap_or_default()).collect()
    }

    /// Processes of the servers that stand by.
    fn standbys(&self) -> Vec<i32> {
        let report = self.status();
        let standbys = report["filesystems"][0]["standbys"].as_array().cloned();
        let pid = |one: &Value| one["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        standbys.unwrap_or_default().iter().filter_map(pid).collect()
    }

    /// Unmounts, stops all servers, checks.
    fn finish(mut self, mounts: usize) {
        self.stop(mounts);
        self.cluster.assert_clean();
    }

    /// Unmounts, and stops all servers.
    fn stop(&mut self, mounts: usize) {
        (0..mounts).for_each(|index| self.cluster.unmount(index));
        let running: Vec<_> = self.running.iter_mut().filter_map(Option::take).collect();
        for running in running {
            running.signal(Signal::TERM);
            let status = running.wait();
            assert!(status.success(), "a server: {status}\n{}", self.logs());
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (0..self.places.len()).for_each(|server| eprintln!("{}", self.record_of(server)));
            eprintln!("{}", self.logs());
        }
    }
}

#[test]
fn killed_server_is_taken_over_and_applications_notice_nothing() {
    let mut servers = Servers::start(2);
    servers.cluster.mount();
    servers.cluster.mount();
    let (root, other) = (servers.cluster.root(), servers.cluster.path(1));
    prepare(&root);
    let locked = File::create(root.join("locked")).unwrap();
    rustix::fs::flock(&locked, FlockOperation::LockExclusive).unwrap();
    let promised = Arc::new(Mutex::new(Promised::default()));
    let kills = std::env::var("REDBUD_TAKEOVERS").map_or(30, |text| text.parse().unwrap());
    let mut pauses = Vec::new();
    for round in 0..kills {
        let load = Load::start(root.clone(), round, &promised);
        load.work(round);
        let (owner, epoch) = (servers.owner(), servers.epoch());
        let killed = Instant::now();
        servers.kill(owner);
        File::create(root.join(format!("first{round}"))).unwrap();
        pauses.push(killed.elapsed());
        load.work(round);
        assert!(servers.epoch() > epoch, "round {round}");
        assert_ne!(servers.owner(), owner, "round {round}");
        // The lock is held, whichever server says so.
        let theirs = File::open(other.join("locked")).unwrap();
        let taken = rustix::fs::flock(&theirs, FlockOperation::NonBlockingLockExclusive);
        assert!(taken.is_err(), "round {round}");
        servers.start_one(owner);
        let errors = load.end();
        assert!(errors.is_empty(), "round {round}: {errors:?}");
        let mut promised = promised.lock().unwrap();
        verify(&root, &promised);
        forget(&root, &mut promised);
    }
    pauses.sort();
    let longest = *pauses.last().unwrap();
    println!(
        "{kills} kills; new operation after {:?}, {longest:?} at most",
        pauses[pauses.len() / 2]
    );
    assert!(longest < Duration::from_secs(5), "{pauses:?}");
    let report = servers.status();
    let membership = &report["filesystems"][0]["server"]["membership"];
    let history = membership["history"].as_array().unwrap().len();
    assert_eq!(history, HISTORY_MAX.min(1 + pauses.len()), "{membership}");
    assert_eq!(membership["standbys"].as_array().unwrap().len(), 1, "{membership}");
    drop(locked);
    servers.finish(2);
}

/// Makes a file again and again, until it ends: the longest time that one took.
struct Prober {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Prober {
    fn start(dir: PathBuf) -> Prober {
        fs::create_dir(&dir).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            for number in 0_u64.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let begun = Instant::now();
                fs::write(dir.join(number.to_string()), b"x").unwrap();
                longest = longest.max(begun.elapsed());
            }
            longest
        });
        Prober { stop, thread }
    }

    fn end(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[test]
fn planned_failovers_under_load_lose_nothing() {
    let mut servers = Servers::start(2);
    servers.cluster.mount();
    let root = servers.cluster.root();
    prepare(&root);
    let promised = Arc::new(Mutex::new(Promised::default()));
    let prober = Prober::start(root.join("probe"));
    for round in 0..4 {
        let load = Load::start(root.clone(), round, &promised);
        load.work(round);
        let (owner, epoch) = (servers.owner(), servers.epoch());
        let said = success(redbud().args(["mds", "failover"]).arg(&servers.cluster.config));
        assert!(said.contains(&servers.addresses[1 - owner]), "{said}");
        assert!(servers.epoch() > epoch && servers.owner() == 1 - owner, "round {round}");
        load.work(round);
        let errors = load.end();
        assert!(errors.is_empty(), "round {round}: {errors:?}");
        let mut promised = promised.lock().unwrap();
        verify(&root, &promised);
        forget(&root, &mut promised);
    }
    let longest = prober.end();
    println!("longest pause of 4 planned failovers: {longest:?}");
    // A second is the aim; a machine with other work may take longer.
    assert!(longest < Duration::from_secs(3), "{longest:?}");
    let reason = servers.record()["history"][1]["reason"].clone();
    assert!(reason.as_str().unwrap().ends_with(": a planned failover"), "{reason}");
    // Without another server it goes on.
    servers.kill(1 - servers.owner());
    let refused = redbud().args(["mds", "failover"]).arg(&servers.cluster.config).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("no server stands by"), "{text}");
    fs::write(root.join("still"), b"here").unwrap();
    servers.finish(1);
}

#[test]
fn server_killed_at_any_step_of_its_takeover_is_taken_over_in_turn() {
    let mut servers = Servers::start(3);
    servers.cluster.mount();
    let root = servers.cluster.root();
    prepare(&root);
    let promised = Arc::new(Mutex::new(Promised::default()));
    for round in 0..5u64 {
        let load = Load::start(root.clone(), round, &promised);
        load.work(round);
        let (first, epoch) = (servers.owner(), servers.epoch());
        servers.kill(first);
        eventually("another server claims", || servers.epoch() > epoch);
        // From the claim to the service it takes some hundredths of a second.
        std::thread::sleep(Duration::from_millis(round * 9));
        let (second, epoch) = (servers.owner(), servers.epoch());
        servers.kill(second);
        servers.wait_taken_over(0, epoch);
        load.work(round);
        let errors = load.end();
        assert!(errors.is_empty(), "round {round}: {errors:?}");
        servers.start_one(first);
        servers.start_one(second);
        let mut promised = promised.lock().unwrap();
        verify(&root, &promised);
        forget(&root, &mut promised);
    }
    servers.finish(1);
}

#[test]
fn of_servers_that_start_at_once_only_one_serves() {
    let mut servers = Servers::formatted(3);
    for round in 0..3 {
        let begun: Vec<_> = (0..3).map(|index| std::thread::spawn(servers.begin(index))).collect();
        let started = begun.into_iter().map(|one| Some(one.join().unwrap()));
        servers.running = started.collect();
        let report = servers.status();
        let system = &report["filesystems"][0];
        let owner = servers.owner();
        assert_eq!(system["server"]["address"], servers.addresses[owner].as_str(), "{report}");
        assert_eq!(system["standbys"].as_array().unwrap().len(), 2, "{report}");
        if round == 0 {
            servers.cluster.mount();
        }
        fs::write(servers.cluster.root().join("f"), [round; 9]).unwrap();
        // The owner last, so that nobody claims in between.
        for index in (0..3).filter(|index| *index != owner).chain([owner]) {
            servers.kill(index);
        }
    }
    (0..3).for_each(|index| servers.start_one(index));
    assert_eq!(fs::read(servers.cluster.root().join("f")).unwrap(), [2; 9]);
    servers.finish(1);
}

#[test]
fn stopped_owner_is_not_dead() {
    let mut servers = Servers::start(2);
    servers.cluster.mount();
    let root = servers.cluster.root();
    fs::write(root.join("before"), b"x").unwrap();
    let (owner, epoch) = (servers.owner(), servers.epoch());
    signal(servers.pid(owner), Signal::STOP);
    eventually("the status says why nobody takes over", || {
        let report = servers.status();
        let problems = report["problems"].as_array().unwrap();
        problems.iter().any(|one| {
            one["code"] == "RB-MDS-NO-PROOF"
                && one["what"].as_str().unwrap().contains("is stopped: slow is not dead")
        })
    });
    assert_eq!((servers.owner(), servers.epoch()), (owner, epoch));
    signal(servers.pid(owner), Signal::CONT);
    fs::write(root.join("after"), b"y").unwrap();
    assert_eq!((servers.owner(), servers.epoch()), (owner, epoch));
    // Stopped and killed: the lock is free now, and so the other one takes over.
    signal(servers.pid(owner), Signal::STOP);
    servers.kill(owner);
    fs::write(root.join("taken"), b"z").unwrap();
    assert_eq!(servers.owner(), 1 - owner);
    servers.start_one(owner);
    servers.finish(1);
}

#[test]
fn damaged_record_keeps_every_server_from_claiming() {
    let mut servers = Servers::start(2);
    let text = fs::read_to_string(servers.record_file(0)).unwrap();
    fs::write(servers.record_file(0), text.replacen("\"epoch\":", "\"epocH\":", 1)).unwrap();
    servers.kill(0);
    eventually("the status names the damage", || {
        let report = servers.status();
        let standbys = report["filesystems"][0]["standbys"].as_array().unwrap().clone();
        standbys.iter().any(|one| {
            one["waits"].as_str().unwrap().contains("its checksum is wrong") && one["odd"] == true
        })
    });
    fs::write(servers.record_file(0), &text).unwrap();
    servers.cluster.mount();
    fs::write(servers.cluster.root().join("f"), b"x").unwrap();
    servers.start_one(0);
    servers.finish(1);
}

#[test]
fn local_cluster_with_a_standby_goes_on_when_its_server_is_killed() {
    let scratch = Scratch::new();
    let (dir, mount) = (scratch.path().join("dir"), scratch.path().join("mnt"));
    let program = redbud().get_program().to_str().unwrap().to_owned();
    let script = format!(
        r#"set -eu
        owner() {{ tr ',{{' '\n\n' < {dir}/membership/owner | sed -n 's/"pid"://p' | head -1; }}
        for round in 1 2 3; do
            echo kept > f$round; sync f$round
            kill -KILL $(owner)
            echo more >> f$round
            until {program} status {dir} | grep -q 'no problem is known'; do sleep 0.02; done
        done
        cat f1 f2 f3 | sort | uniq -c | tr -s ' \n' ' '
        {program} status {dir}"#,
        dir = dir.display()
    );
    let mut command = redbud();
    command.arg("local").arg(&dir).arg("--mount").arg(&mount).args(["--standby", "1"]);
    let said = success(command.args(["--exec", &script]));
    assert!(said.starts_with(" 3 kept 3 more "), "{said}");
    assert!(said.contains("no problem is known") && said.contains("takeovers 4"), "{said}");
    assert_eq!(said.matches("has ended: its lock is free").count(), 3, "{said}");
    // Without the option it is kept; with 0 there is one server again.
    let again = |options: &[&str], script: &str| {
        let mut command = redbud();
        command.arg("local").arg(&dir).arg("--mount").arg(&mount).args(options);
        success(command.args(["--exec", script]))
    };
    let status = format!("{program} status {}", dir.display());
    assert!(again(&[], &status).contains("standby   127"));
    assert!(!again(&["--standby", "0"], &status).contains("standby   127"));
}

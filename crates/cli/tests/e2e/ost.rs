//! Object targets: a real `redbud ost` on files, and sessions of this test with it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use env::{DriverKind, Env};
use proto::capability::{Capability, READ, SERVE, TargetKey, WRITE};
use proto::frame::{Decoder, Received, encode};
use proto::message::{CLIENT, Hello, Principal, Refused};
use proto::ost::{Message, Op, OpReply, Ost, Statement};
use proto::slots::SlotClass;
use rustix::process::Signal;
use serde_json::Value;
use session::client::{Call, Config, Session, Shared, result};
use types::limits::BLOCK;
use types::{ClientId, Epoch, Fault, ObjectId, Uuid, crc32c};

use crate::broken::Fragile;
use crate::harness::{
    Running, Scratch, SharedPids, describe, eventually, free_port, pattern, redbud, success,
};

const UUID: Uuid = Uuid([0xab; 16]);

/// A target on a file.
struct Target {
    dir: Scratch,
    port: u16,
    pids: SharedPids,
    running: Option<Running>,
}

impl Target {
    fn formatted(size: &str, options: &[&str]) -> Target {
        let dir = Scratch::new();
        success(redbud().args(["ost", "key"]).arg(dir.path().join("targets.key")));
        let mut format = redbud();
        format.args(["ost", "format", "--fs", "test", "--uuid", &UUID.to_string()]);
        format.args(["--size", size]).args(options).arg(dir.path().join("ost.img"));
        format.current_dir(dir.path());
        success(&mut format);
        let (port, pids) = (free_port(), SharedPids::default());
        Target { dir, port, pids, running: None }
    }

    fn serving(size: &str) -> Target {
        let mut target = Target::formatted(size, &[]);
        target.serve("ost.img");
        target
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn serve(&mut self, device: &str) {
        self.serve_all(&[device]);
    }

    fn serve_all(&mut self, devices: &[&str]) {
        let mut command = redbud();
        command.current_dir(self.dir.path());
        command.args(["ost", "serve", "--key", "targets.key"]).args(devices);
        command.args(["--listen", &self.address()]);
        self.running = Some(Running::ready(command, &self.file("ost.log"), &self.pids));
    }

    fn kill(&mut self) {
        self.running.take().expect("it runs").kill();
    }

    fn stop(&mut self) {
        let running = self.running.take().expect("it runs");
        running.signal(Signal::TERM);
        assert!(running.wait().success(), "{}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.file("ost.log")).unwrap_or_default()
    }

    fn status(&self) -> Value {
        let mut status = redbud();
        status.args(["ost", "status", &self.address(), "--fs", "test", "--json"]);
        let report: Value = serde_json::from_str(&success(&mut status)).unwrap();
        report["targets"][0].clone()
    }

    /// The records are sound, and all content is.
    fn assert_clean(&self, device: &str) {
        let mut check = redbud();
        check.current_dir(self.dir.path()).args(["ost", "check", "--scrub", device]);
        let text = success(&mut check);
        assert!(text.contains("records are sound") && text.contains(" 0 damaged"), "{text}");
    }

    fn key(&self) -> [u8; 32] {
        let text = std::fs::read_to_string(self.file("targets.key")).unwrap();
        let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        std::array::from_fn(|index| byte(2 * index))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        if let Some(running) = self.running.take() {
            running.kill();
        }
    }
}

/// A session, and what may be asked in it.
#[derive(Clone)]
struct Client {
    session: Rc<Session<Ost>>,
    key: TargetKey,
    client: ClientId,
    epoch: Epoch,
}

impl Client {
    async fn open(env: &Env, address: String, key: [u8; 32]) -> Client {
        let config = Config {
            description: "a test".into(),
            connect_timeout: types::Duration::from_secs(60),
            ..Config::new::<Ost>(vec![address], "test")
        };
        let shared = Rc::new(Shared::default());
        let session = Session::<Ost>::open(env.clone(), config, shared).await.unwrap();
        let key = TargetKey::new(key, UUID);
        Client { session, key, client: ClientId(7), epoch: Epoch(1) }
    }

    async fn call(&self, op: Op, sync: bool) -> Result<OpReply, Fault> {
        let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
        let call = Call { ops: vec![op], principal, sync, class: SlotClass::Ordinary };
        let reply = self.session.call(call).await?;
        result(&reply, 0).cloned()
    }

    fn may(&self, object: u64, rights: u8) -> Capability {
        self.key.issue(ObjectId(object), self.client, rights, self.epoch)
    }

    fn write(may: Capability, block: u64, data: Vec<u8>) -> Op {
        let sums = data.chunks(BLOCK).map(crc32c).collect();
        Op::Write { may, block, data: data.into(), sums, room: Statement::default() }
    }

    async fn put(&self, object: u64, block: u64, data: Vec<u8>, sync: bool) -> Result<(), Fault> {
        self.call(Client::write(self.may(object, WRITE), block, data), sync).await.map(drop)
    }

    /// The bytes of blocks, holes as zeros.
    async fn get(&self, object: u64, block: u64, len: u32) -> Result<Vec<u8>, Fault> {
        let op = Op::Read { may: self.may(object, READ), block, len };
        let OpReply::Data { runs, data, sums } = self.call(op, false).await? else {
            panic!("another reply");
        };
        let mut bytes = vec![0; len as usize * BLOCK];
        let mut found = data.chunks_exact(BLOCK).zip(sums);
        for at in runs.iter().flat_map(|run| run.block..run.block + run.len) {
            let (block, sum) = found.next().unwrap();
            assert_eq!(crc32c(block), sum);
            bytes[at as usize * BLOCK..][..BLOCK].copy_from_slice(block);
        }
        Ok(bytes)
    }
}

fn with_env<T>(run: impl AsyncFnOnce(Env) -> T) -> T {
    env::run(DriverKind::Auto, |env| run(env)).unwrap()
}

/// Content of a record: no two are the same.
fn record(object: u64, at: u64, version: u64, blocks: u64) -> Vec<u8> {
    pattern(object << 40 | at << 20 | version, blocks as usize * BLOCK)
}

/// Records of objects: their place → version and blocks.
type Written = BTreeMap<(u64, u64), (u64, u64)>;

const PLACE: u64 = 64;

async fn load(client: Client, object: u64, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) -> Written {
    let (mut written, mut version) = (Written::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        version += 1;
        let place = version * 7 % 20;
        let blocks = [1, 4, 16, PLACE][version as usize % 4];
        // The end of an older record behind a shorter one is not looked at.
        let data = record(object, place, version, blocks);
        client.put(object, place * PLACE, data, version % 5 == 0).await.unwrap();
        written.insert((object, place), (version, blocks));
        done.fetch_add(1, Ordering::Relaxed);
    }
    written
}

/// SIGKILL, again and again, while four streams are written, synchronous and not.
#[test]
fn killed_target_loses_nothing_that_was_answered() {
    let mut target = Target::serving("1G");
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (address, key) = (target.address(), target.key());
    let (ending, counted) = (stop.clone(), done.clone());
    let work = std::thread::spawn(move || {
        with_env(async |env| {
            let client = Client::open(&env, address, key).await;
            let streams: Vec<_> = (1..=4)
                .map(|object| {
                    env.spawn_join(load(client.clone(), object, ending.clone(), counted.clone()))
                })
                .collect();
            let mut all = Written::new();
            for stream in streams {
                all.extend(stream.await);
            }
            client.session.sync().await.unwrap();
            for ((object, place), (version, blocks)) in &all {
                let found = client.get(*object, place * PLACE, *blocks as u32).await.unwrap();
                let wanted = record(*object, *place, *version, *blocks);
                assert!(found == wanted, "object {object}, {place}, version {version}");
            }
            assert_eq!(client.session.status().evictions, 0);
            client.session.abandon();
            all.len()
        })
    });
    for _ in 0..5 {
        let reached = done.load(Ordering::Relaxed) + 50;
        eventually("the streams go on", || {
            done.load(Ordering::Relaxed) >= reached || work.is_finished()
        });
        target.kill();
        target.serve("ost.img");
    }
    stop.store(true, Ordering::Relaxed);
    assert!(work.join().unwrap() > 20);
    target.kill();
    target.assert_clean("ost.img");
}

#[test]
fn wrong_capabilities_fences_and_a_full_target_are_refused() {
    let mut target = Target::serving("64M");
    let (address, key) = (target.address(), target.key());
    with_env(async |env| {
        let client = Client::open(&env, address.clone(), key).await;
        let data = || vec![1; BLOCK];
        client.put(5, 0, data(), true).await.unwrap();
        let foreign = TargetKey::new(key, Uuid([1; 16]));
        let forged = TargetKey::new([9; 32], UUID);
        let good = client.may(5, WRITE);
        for may in [
            foreign.issue(ObjectId(5), client.client, WRITE, Epoch(1)),
            forged.issue(ObjectId(5), client.client, WRITE, Epoch(1)),
            Capability { object: ObjectId(6), ..good },
            client.may(5, READ),
        ] {
            let refused = client.call(Client::write(may, 0, data()), false).await;
            assert_eq!(refused, Err(Fault::AccessDenied), "{may:?}");
        }
        let damaged = Op::Write {
            may: good,
            block: 0,
            data: data().into(),
            sums: vec![1],
            room: Statement::default(),
        };
        assert_eq!(client.call(damaged, false).await, Err(Fault::Corrupt));

        // Until there is no room, and then again when there is.
        let mut written = 0;
        let full = loop {
            match client.put(6, written * 256, vec![2; 256 * BLOCK], false).await {
                Ok(()) => written += 1,
                Err(fault) => break fault,
            }
        };
        assert_eq!(full, Fault::NoSpace);
        assert!(written > 8, "{written} MiB");
        let server = client.key.issue(ObjectId(0), ClientId(0), SERVE, Epoch(2));
        let destroy = Op::Destroy { may: server, objects: vec![ObjectId(6)] };
        client.call(destroy, true).await.unwrap();
        assert_eq!(client.put(6, 0, data(), true).await, Err(Fault::AccessDenied), "old epoch");
        let client = Client { epoch: Epoch(2), ..client };
        client.put(6, 0, data(), true).await.unwrap();

        let fence = Op::Fence { may: server, client: client.client };
        client.call(fence, true).await.unwrap();
        assert_eq!(client.put(5, 0, vec![3; BLOCK], false).await, Err(Fault::AccessDenied));
        client.session.close().await;
    });
    assert!(target.status()["capabilities_refused"].as_u64().unwrap() >= 6);
    target.kill();
    target.serve("ost.img");
    with_env(async |env| {
        let client = Client::open(&env, address, key).await;
        let client = Client { epoch: Epoch(2), ..client };
        assert_eq!(client.put(5, 0, vec![3; BLOCK], false).await, Err(Fault::AccessDenied));
        let other = Client { client: ClientId(8), ..client };
        assert_eq!(other.get(5, 0, 1).await, Ok(vec![1; BLOCK]));
        other.session.close().await;
    });
    target.stop();
    target.assert_clean("ost.img");
}

#[test]
fn garbage_at_the_port_harms_nobody() {
    let mut target = Target::serving("64M");
    let (address, key) = (target.address(), target.key());
    for round in 0..40u64 {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut bytes = pattern(round + 1, 1 + (round as usize * 997) % 9000);
        if round % 2 == 0 {
            // As a frame begins.
            let magic = proto::frame::MAGIC.to_le_bytes();
            let len = magic.len().min(bytes.len());
            bytes[..len].copy_from_slice(&magic[..len]);
        }
        // The target may have closed it already, which resets it.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 400, "an answer of {} bytes to nobody", answer.len());
    }
    with_env(async |env| {
        let client = Client::open(&env, address, key).await;
        client.put(5, 0, vec![1; BLOCK], true).await.unwrap();
        client.session.close().await;
    });
    assert_eq!(target.status()["clients"].as_array().unwrap().len(), 0);
    target.stop();
    target.assert_clean("ost.img");
}

/// What the targets of this host are and do.
fn all_here() -> Vec<Value> {
    let text = success(redbud().args(["ost", "status", "--json"]));
    let report: Value = serde_json::from_str(&text).unwrap();
    report["targets"].as_array().unwrap().clone()
}

/// Of two targets of one process one has a device that fails, and works again.
#[test]
fn failed_target_is_served_again_and_the_other_goes_on_meanwhile() {
    let mut target = Target::formatted("64M", &[]);
    let fragile = Fragile::new(target.dir.path(), 256 << 20, 64 << 20);
    let device = fragile.device.display().to_string();
    let format = ["ost", "format", "--fs", "test", "--uuid", &UUID.to_string(), &device];
    success(redbud().args(format));
    let (sound, failing) = (target.address(), format!("127.0.0.1:{}", free_port()));
    target.serve_all(&["ost.img", &format!("{device},listen={failing}")]);
    let key = target.key();
    with_env(async |env| {
        let sound = Client::open(&env, sound, key).await;
        let failing = Client::open(&env, failing, key).await;
        failing.put(1, 0, record(1, 0, 0, 4), true).await.unwrap();
        let dead = fragile.kill();
        let waiting = failing.clone();
        let late =
            env.spawn_join(async move { waiting.put(1, 64, record(1, 1, 0, 4), true).await });
        sound.put(1, 0, record(2, 0, 0, 4), true).await.unwrap();
        eventually("the status names the failed target", || {
            let stopped = |one: &Value| one["device"] == *device && one["state"] == "stopped";
            all_here().iter().any(stopped)
        });
        sound.put(1, 64, record(2, 1, 0, 4), true).await.unwrap();
        dead.revive();
        late.await.unwrap();
        for (client, object) in [(&failing, 1), (&sound, 2)] {
            for at in 0..2 {
                let found = client.get(1, at * 64, 4).await.unwrap();
                assert!(found == record(object, at, 0, 4), "target {object}, record {at}");
            }
            client.session.abandon();
        }
    });
    target.stop();
}

/// A device without a target does not keep the others of the process from being served.
#[test]
fn target_that_cannot_be_opened_is_served_once_it_can_be() {
    let mut target = Target::formatted("64M", &[]);
    let bad = target.file("bad.img");
    std::fs::File::create(&bad).unwrap().set_len(4096).unwrap();
    let (bad, late) = (bad.display().to_string(), format!("127.0.0.1:{}", free_port()));
    target.serve_all(&["ost.img", &format!("{bad},listen={late}")]);
    assert_eq!(target.status()["state"], "serving");
    let found = all_here().into_iter().find(|one| one["device"] == *bad).unwrap();
    let why = found["error"].as_str().unwrap();
    assert!(found["state"] == "stopped" && why.contains("bad.img"), "{found}");
    std::fs::remove_file(&bad).unwrap();
    let format = ["ost", "format", "--fs", "test", "--uuid", &UUID.to_string(), "--size", "64M"];
    success(redbud().args(format).arg(&bad));
    eventually("the new target is served", || {
        let is_serving = |one: &Value| one["address"] == *late && one["state"] == "serving";
        all_here().iter().any(is_serving)
    });
    target.stop();
}

/// A bit that flips on the device of a target in service is found by a scrub, which names the
/// block; others are left alone.
#[test]
fn scrub_of_a_target_in_service_names_the_damaged_block() {
    let mut target = Target::formatted("64M", &[]);
    target.serve_all(&["ost.img"]);
    let (address, key) = (target.address(), target.key());
    let scrub = |options: &[&str]| {
        let mut command = redbud();
        command.args(["ost", "scrub", &address]).args(options);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    with_env(async |env| {
        let client = Client::open(&env, address.clone(), key).await;
        client.put(1, 0, record(1, 0, 0, 4), true).await.unwrap();
        client.put(2, 9, record(2, 0, 0, 4), true).await.unwrap();
        client.session.abandon();
    });
    let (code, said) = scrub(&[]);
    assert!(code == Some(0) && said.contains("2 objects, 8 blocks read, 0 damaged"), "{said}");
    let device = std::fs::File::options().read(true).write(true).open(target.file("ost.img"));
    let (device, wanted) = (device.unwrap(), record(2, 0, 0, 4));
    let mut found = vec![0; BLOCK];
    let blocks = device.metadata().unwrap().len() / BLOCK as u64;
    let at = (0..blocks).map(|block| block * BLOCK as u64).find(|at| {
        device.read_exact_at(&mut found, *at).unwrap();
        found == wanted[2 * BLOCK..3 * BLOCK]
    });
    found[77] ^= 4;
    device.write_all_at(&found, at.expect("the block lies on the device")).unwrap();
    device.sync_all().unwrap();
    let (code, said) = scrub(&["--rate", "100M"]);
    assert!(code == Some(1) && said.contains("object 2: block 11 does not match"), "{said}");
    assert!(target.log().contains("scrub: object 2: block 11 does not match"), "{}", target.log());
    let status = success(redbud().args(["ost", "status"]));
    assert!(status.contains("8 blocks read, 1 damaged"), "{status}");
    let elsewhere = redbud().args(["ost", "scrub", "127.0.0.1:1"]).output().unwrap();
    let why = String::from_utf8(elsewhere.stderr).unwrap();
    assert!(why.contains("127.0.0.1:1: this host serves no target"), "{why}");
    target.stop();
}

/// Two targets in one process, by the cluster's file; one has its journal elsewhere. Keys are
/// proved at their ports.
#[test]
fn cluster_file_names_targets_and_keys() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    let (first, second) = (free_port(), free_port());
    let public = success(redbud().args(["key", "new"]).arg(dir.join("cluster.key")));
    let client = success(redbud().args(["key", "new"]).arg(dir.join("client.key")));
    let config = dir.join("cluster.toml");
    let text = format!(
        "name = \"test\"\n[server]\nlisten = \"127.0.0.1:{}\"\nsecurity = \"greeting\"\n\
         public_keys = [\"{}\"]\n[client]\nkey = \"client.key\"\n\
         [metadata]\npath = \"meta.img\"\nsize = \"64M\"\n[[data]]\npath = \"data.img\"\n\
         size = \"64M\"\n[targets]\nkey = \"targets.key\"\n\
         [[ost]]\ndevice = \"a.img\"\naddress = \"127.0.0.1:{first}\"\n\
         [[ost]]\ndevice = \"b.img\"\njournal = \"j.img\"\naddress = \"127.0.0.1:{second}\"\n",
        free_port(),
        public.trim()
    );
    std::fs::write(&config, text).unwrap();
    success(redbud().args(["ost", "key"]).arg(dir.join("targets.key")));
    let again = redbud().args(["ost", "key"]).arg(dir.join("targets.key")).output().unwrap();
    assert!(describe(&again).contains("it exists"), "{}", describe(&again));
    let unknown = serve_once(dir, &["a.img", "--config", "cluster.toml"]);
    assert!(unknown.contains("a.img"), "{unknown}");

    // The label of the metadata device says which file system it is.
    success(redbud().arg("mkfs").arg(&config));
    let format = |options: &[&str]| {
        let mut command = redbud();
        command.current_dir(dir).args(["ost", "format", "--config", "cluster.toml"]);
        command.args(options).output().unwrap()
    };
    for options in [
        &["a.img", "--size", "128M"][..],
        &["b.img", "--size", "64M", "--journal", "j.img", "--journal-size", "16M"],
    ] {
        let output = format(options);
        assert!(output.status.success(), "{}", describe(&output));
    }
    let twice = format(&["a.img"]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(describe(&twice).contains("--force"), "{}", describe(&twice));
    let wrong = serve_once(dir, &["b.img", "--key", "targets.key"]);
    assert!(wrong.contains("b.img"), "without its journal: {wrong}");

    success(
        redbud()
            .args(["key", "allow"])
            .arg(&config)
            .args([client.trim(), "here"])
            .args(["--role", "administrator"]),
    );
    let mut command = redbud();
    command.current_dir(dir).args(["ost", "serve", "--config", "cluster.toml"]);
    let running = Running::ready(command, &dir.join("ost.log"), &SharedPids::default());
    let addresses = [first, second].map(|port| format!("127.0.0.1:{port}"));
    for address in &addresses {
        let mut survey = redbud();
        survey.current_dir(dir).args(["ost", "survey", address, "--config", "cluster.toml"]);
        survey.args(["--threads", "4", "--size", "8M", "--record", "256K", "--json"]);
        let report: Value = serde_json::from_str(&success(&mut survey)).unwrap();
        let passes = report["passes"].as_array().unwrap();
        assert_eq!(passes.len(), 3, "{report}");
        assert!(passes.iter().all(|pass| pass["bytes"] == 8 << 20), "{report}");
        let refused = knock(address);
        assert!(refused.text.contains("key"), "{refused:?}");
    }
    let text = success(redbud().current_dir(dir).args([
        "ost",
        "status",
        &addresses[1],
        "--config",
        "cluster.toml",
    ]));
    assert!(text.contains("`test`") && text.contains("serving"), "{text}");
    let here = all_here();
    for address in &addresses {
        assert!(here.iter().any(|one| one["address"] == address.as_str()), "{here:?}");
    }
    running.signal(Signal::TERM);
    assert!(running.wait().success());
    for device in ["a.img", "b.img,journal=j.img"] {
        success(redbud().current_dir(dir).args(["ost", "check", "--scrub", device]));
    }
}

/// Greets by TCP without a key. Root of this host needs none, but by the target's local socket.
fn knock(address: &str) -> Refused {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (mut bytes, mut decoder) = (Vec::new(), Decoder::<Ost>::new());
    encode::<Ost>(&Message::Hello { hello: Hello::new::<Ost>(CLIENT, "test", "none") }, &mut bytes);
    stream.write_all(&bytes).unwrap();
    let mut answer = decoder.lend();
    stream.read_to_end(&mut answer).unwrap();
    decoder.restore(answer);
    match decoder.next() {
        Ok(Some(Received::Message(Message::Refused { refused }))) => refused,
        other => panic!("it was not refused: {other:?}"),
    }
}

/// Runs a server that cannot start; gives what it says.
fn serve_once(dir: &Path, arguments: &[&str]) -> String {
    let mut command: Command = redbud();
    let output = command.current_dir(dir).args(["ost", "serve"]).args(arguments).output().unwrap();
    assert!(!output.status.success(), "{}", describe(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

//! A cluster for a test: made, mounted, killed, checked, and taken away.

mod clean;
mod content;
mod layout;
mod mapping;
mod process;
mod report;
mod scratch;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Uid};
use rustix::thread;
use serde_json::Value;

pub(crate) use content::on_blocks_and_objects;
pub use content::{Content, Targets};
pub use layout::{zone_order, zones};
pub use mapping::Mapping;
pub use process::{Running, SharedPids, signal};
pub use report::Report;
pub use scratch::{Ext4, Scratch, free_port};

/// No wait of a test is longer; a working system needs a fraction of it.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// A test that is not done by now is stuck, unless it said that it takes longer: its processes are
/// killed, so that it fails.
const TEST_LIMIT: Duration = Duration::from_secs(600);

/// The binary under test.
pub fn redbud() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redbud"));
    command.stdin(Stdio::null());
    command
}

/// The same on a host of this name.
pub fn at_host(name: &str) -> Command {
    let mut command = Command::new("unshare");
    let become_host = "hostname \"$0\"; exec \"$@\"";
    command.args(["--uts", "sh", "-ec", become_host, name]).arg(redbud().get_program());
    command.stdin(Stdio::null());
    command
}

/// What a test's cluster is to be.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Data zones, by their sizes.
    pub data: Vec<u64>,
    /// Size of a metadata zone.
    pub metadata: u64,
    /// Metadata servers that share the directories out.
    pub servers: usize,
    /// Lease.
    pub lease: Duration,
    /// Address at which the server listens.
    pub host: String,
    /// What clients prove by TCP.
    pub security: &'static str,
    /// Data zones on each data device.
    pub slices: u16,
    /// Where the first data zone lies, if not in a file of the cluster's.
    pub data_path: Option<PathBuf>,
    /// Where metadata lies, if not in a file of the cluster's.
    pub metadata_path: Option<PathBuf>,
    /// Size of the file `journal.img` with the log; `None`: the log is internal.
    pub journal: Option<u64>,
    /// Small files lie with their inodes, as is usual.
    pub inline_data: bool,
    /// Size of slots, as mkfs takes it.
    pub slot: &'static str,
    /// Where files lie.
    pub content: Content,
    /// When the test is stuck.
    pub limit: Duration,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            data: vec![4 << 30, 4 << 30],
            metadata: 512 << 20,
            servers: 1,
            lease: Duration::from_secs(30),
            host: "127.0.0.1".to_owned(),
            security: "encrypted",
            slices: 1,
            data_path: None,
            metadata_path: None,
            journal: None,
            inline_data: true,
            slot: "512",
            content: Content::Blocks,
            limit: TEST_LIMIT,
        }
    }
}

/// A formatted file system with its server and its mounts.
pub struct Cluster {
    /// Everything of it lies here.
    pub dir: PathBuf,
    /// The cluster's file.
    pub config: PathBuf,
    /// The mount source.
    pub source: String,
    server: Option<Running>,
    mounts: Vec<Option<Mounted>>,
    /// The object targets, if files lie there.
    pub targets: Targets,
    content: Content,
    pids: SharedPids,
    _watchdog: process::Watchdog,
    // Last, so that the next test begins when everything is gone.
    _turn: process::Turn,
}

struct Mounted {
    process: Running,
    path: PathBuf,
}

impl Cluster {
    /// Formats and starts the server of a cluster with one mount.
    pub fn mounted() -> Cluster {
        Cluster::mounted_with(Content::Blocks)
    }

    /// The same with files that lie there.
    pub fn mounted_with(content: Content) -> Cluster {
        let mut cluster = Cluster::start(&Spec { content, ..Spec::default() });
        cluster.mount();
        cluster
    }

    /// Formats, and starts the server.
    pub fn start(spec: &Spec) -> Cluster {
        let mut cluster = Cluster::formatted(spec);
        cluster.start_server();
        cluster
    }

    /// Only formats.
    pub fn formatted(spec: &Spec) -> Cluster {
        let turn = process::Turn::wait();
        let dir = scratch::directory();
        let config = dir.join("cluster.toml");
        let listen: Vec<String> =
            (0..spec.servers).map(|_| format!("{}:{}", spec.host, scratch::free_port())).collect();
        std::fs::write(&config, config_text(spec, &listen, &dir)).unwrap();
        let pids = SharedPids::default();
        let targets = Targets::configured(spec.content.targets(), &config, &dir, &pids);
        let mut mkfs = redbud();
        mkfs.arg("mkfs").arg(&config).args(["--slot", spec.slot]);
        if !spec.inline_data {
            mkfs.args(["--inline-data", "off"]);
        }
        success(&mut mkfs);
        targets.format();
        Cluster {
            source: format!("{}:/test", listen.join(",")),
            server: None,
            mounts: Vec::new(),
            targets,
            content: spec.content,
            _watchdog: process::Watchdog::start(spec.limit, pids.clone()),
            pids,
            dir,
            config,
            _turn: turn,
        }
    }

    /// The processes that the watchdog ends.
    pub fn pids(&self) -> &SharedPids {
        &self.pids
    }

    /// Starts the server and waits until it serves.
    pub fn start_server(&mut self) {
        self.start_server_with(&[]);
    }

    /// The same with options of `redbud mds`.
    pub fn start_server_with(&mut self, options: &[&str]) {
        assert!(self.server.is_none(), "the server runs");
        self.targets.serve_all();
        let mut command = redbud();
        command.arg("mds").arg(&self.config).args(options);
        self.server = Some(Running::ready(command, &self.dir.join("mds.log"), &self.pids));
        self.targets.add();
    }

    /// Mounts once more; gives the mount's number.
    pub fn mount(&mut self) -> usize {
        self.mount_with(&[])
    }

    /// Mounts once more with options.
    pub fn mount_with(&mut self, options: &[&str]) -> usize {
        let index = self.mounts.len();
        self.mounts.push(None);
        self.remount(index, options);
        index
    }

    /// Mounts at the place of mount `index` again.
    pub fn remount(&mut self, index: usize, options: &[&str]) {
        self.mount_by(redbud(), index, options);
    }

    /// Makes a secret key in a file of the cluster's directory; gives the file and the public key.
    pub fn new_key(&self, name: &str) -> (PathBuf, String) {
        let file = self.dir.join(name);
        let key = success(redbud().args(["key", "new"]).arg(&file));
        (file, key.trim().to_owned())
    }

    /// Lets the server accept a key as that of `node`.
    pub fn allow(&self, key: &str, node: &str, options: &[&str]) {
        success(redbud().args(["key", "allow"]).arg(&self.config).args([key, node]).args(options));
    }

    /// The status of the server, as root of its host sees it.
    pub fn status(&self) -> serde_json::Value {
        let text = success(redbud().args(["status", "--json"]).arg(&self.config));
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        report["filesystems"][0]["server"].clone()
    }

    /// Mounts once more, by a client in the network namespace `name`, whose key is allowed first.
    pub fn mount_in_namespace(&mut self, name: &str) -> usize {
        let (file, key) = self.new_key(&format!("{name}.key"));
        self.allow(&key, name, &[]);
        self.mount_with_key(name, &file)
    }

    /// Mounts once more, by a client in the network namespace `name` with a key that is allowed.
    pub fn mount_with_key(&mut self, name: &str, secret: &Path) -> usize {
        let index = self.mounts.len();
        self.mounts.push(None);
        self.mount_by(in_namespace(name), index, &self.key_options(secret));
        index
    }

    /// The options of a mount by TCP with a secret key.
    pub fn key_options(&self, secret: &Path) -> [String; 2] {
        [format!("cluster={}", self.config.display()), format!("key={}", secret.display())]
    }

    /// Mounts once more, by a client on a host of this name that reaches data zone 0 at `device`.
    pub fn mount_at_host(&mut self, name: &str, device: &Path) -> usize {
        let index = self.mounts.len();
        self.mounts.push(None);
        self.mount_by(at_host(name), index, &[&format!("data0={}", device.display())]);
        index
    }

    fn mount_by<S: AsRef<str>>(&mut self, mut command: Command, index: usize, options: &[S]) {
        assert!(self.mounts[index].is_none(), "mount {index} stands");
        let path = self.dir.join(format!("mnt{index}"));
        std::fs::create_dir_all(&path).unwrap();
        command.args(["mount", "--foreground"]);
        for option in options {
            command.args(["-o", option.as_ref()]);
        }
        command.arg(&self.source).arg(&path);
        let log = self.dir.join(format!("client{index}.log"));
        let process = Running::ready(command, &log, &self.pids);
        if self.content == Content::Objects {
            self.targets.place_files_below(&path);
        }
        self.mounts[index] = Some(Mounted { process, path });
    }

    /// Where mount `index` is.
    pub fn path(&self, index: usize) -> PathBuf {
        self.dir.join(format!("mnt{index}"))
    }

    /// The first mount.
    pub fn root(&self) -> PathBuf {
        self.path(0)
    }

    /// What client `index` logged.
    pub fn client_log(&self, index: usize) -> String {
        std::fs::read_to_string(self.dir.join(format!("client{index}.log"))).unwrap_or_default()
    }

    /// Unmounts mount `index` and waits until its client has written everything.
    pub fn unmount(&mut self, index: usize) {
        let mounted = self.mounts[index].take().expect("the mount stands");
        // A process that another test starts has the files of this one open until it runs.
        eventually("nobody uses the mount", || {
            let output = redbud().arg("umount").arg(&mounted.path).output().unwrap();
            let busy = describe(&output).contains("RB-MOUNT-BUSY");
            assert!(busy || output.status.success(), "{}", describe(&output));
            !busy
        });
        let status = mounted.process.wait();
        assert!(status.success(), "client {index}: {status}\n{}", self.client_log(index));
    }

    /// Kills client `index` (SIGKILL) and takes its dead mount away.
    pub fn kill_client(&mut self, index: usize) {
        let mounted = self.mounts[index].take().expect("the mount stands");
        mounted.process.kill();
        clean::detach(&mounted.path);
    }

    /// Waits until client `index` ends by itself.
    pub fn wait_client(&mut self, index: usize) -> std::process::ExitStatus {
        self.mounts[index].take().expect("the mount stands").process.wait()
    }

    /// Process of client `index`.
    pub fn client_pid(&self, index: usize) -> i32 {
        self.mounts[index].as_ref().expect("the mount stands").process.pid()
    }

    /// Process of the server.
    pub fn server_pid(&self) -> i32 {
        self.server.as_ref().expect("the server runs").pid()
    }

    /// Waits until the server ends by itself.
    pub fn wait_server(&mut self) -> std::process::ExitStatus {
        self.server.take().expect("the server runs").wait()
    }

    /// Kills the server (SIGKILL).
    pub fn kill_server(&mut self) {
        self.server.take().expect("the server runs").kill();
    }

    /// Stops the server cleanly.
    pub fn stop_server(&mut self) {
        let server = self.server.take().expect("the server runs");
        server.signal(rustix::process::Signal::TERM);
        let status = server.wait();
        assert!(status.success(), "server: {status}\n{}", self.server_log());
    }

    /// What the server logged.
    pub fn server_log(&self) -> String {
        std::fs::read_to_string(self.dir.join("mds.log")).unwrap_or_default()
    }

    /// Checks the file system; the server must be stopped or killed.
    pub fn assert_clean(&self) {
        let output = redbud().arg("fsck").arg(&self.config).output().unwrap();
        assert!(output.status.success(), "fsck: {}", describe(&output));
    }

    /// Unmounts everything, stops the server, checks the file system. Returns how many objects are
    /// at its targets.
    pub fn finish(mut self) -> u64 {
        for index in 0..self.mounts.len() {
            if self.mounts[index].is_some() {
                self.unmount(index);
            }
        }
        let objects = self.targets.finish();
        if self.server.is_some() {
            self.stop_server();
        }
        self.assert_clean();
        objects
    }
}

/// The binary under test, in the network namespace `name`.
pub fn in_namespace(name: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{name}")).arg(redbud().get_program());
    command.stdin(Stdio::null());
    command
}

/// The cluster's file, for servers at these addresses; makes their key.
fn config_text(spec: &Spec, listen: &[String], dir: &Path) -> String {
    let zone = |device: Option<&PathBuf>, file: &str, size: u64| match device {
        Some(path) => format!("path = \"{}\"\n", path.display()),
        None => format!("path = \"{file}\"\nsize = \"{size}\"\n"),
    };
    let listens = |at: &String| format!("listen = \"{at}\"\n");
    let (server, table) = match listen {
        [one] => (listens(one), "[metadata]"),
        _ => (String::new(), "[[mds]]"),
    };
    let mut text = format!(
        "name = \"test\"\n[server]\n{server}lease = \"{}ms\"\ncache = \"64M\"\n{}",
        spec.lease.as_millis(),
        keys(spec.security, dir),
    );
    for (index, address) in listen.iter().enumerate() {
        let device = spec.metadata_path.as_ref().filter(|_| index == 0);
        let file = if index == 0 { "metadata.img".into() } else { format!("metadata{index}.img") };
        text += &format!("{table}\n{}log = \"16M\"\n", zone(device, &file, spec.metadata));
        if listen.len() > 1 {
            text += &listens(address);
        }
    }
    if let Some(size) = spec.journal {
        text += &format!("journal = \"journal.img\"\njournal_size = \"{size}\"\n");
    }
    for (index, size) in spec.data.iter().enumerate() {
        let device = spec.data_path.as_ref().filter(|_| index == 0);
        let zone = zone(device, &format!("data{index}.img"), *size);
        text += &format!("[[data]]\nslices = {}\n{zone}", spec.slices);
        if listen.len() > 1 {
            text += &format!("mds = {}\n", index % listen.len());
        }
    }
    text
}

/// The keys of the cluster's file; makes the server's.
fn keys(security: &str, dir: &Path) -> String {
    let security_line = format!("security = \"{security}\"\n");
    if security == "none" {
        return security_line;
    }
    let key = success(redbud().args(["key", "new"]).arg(dir.join("cluster.key")));
    format!("{security_line}public_keys = [\"{}\"]\n", key.trim())
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = ["mds.log", "client0.log", "client1.log", "client2.log"];
            for file in logs.into_iter().chain(content::LOGS) {
                let text = std::fs::read_to_string(self.dir.join(file)).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let panic = lines.iter().position(|line| line.contains("panicked"));
                let from = panic.unwrap_or(lines.len().saturating_sub(20));
                for line in lines.iter().skip(from).take(40) {
                    eprintln!("{file}: {line}");
                }
            }
        }
        for mounted in self.mounts.drain(..).flatten() {
            clean::detach(&mounted.path);
            mounted.process.kill();
        }
        if let Some(server) = self.server.take() {
            server.kill();
        }
        self.targets.kill_all();
        clean::remove(&self.dir);
    }
}

/// Runs `command`, which must succeed; gives its standard output.
pub fn success(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", describe(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a shell script in `dir`; it must succeed within [`PATIENCE`].
pub fn shell(dir: &Path, script: &str) -> String {
    success(&mut script_command(dir, script))
}

/// A shell script to be run in `dir`, bounded by [`PATIENCE`].
pub fn script_command(dir: &Path, script: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", &PATIENCE.as_secs().to_string(), "bash", "-euo", "pipefail", "-c"]);
    command.arg(script).current_dir(dir).stdin(Stdio::null());
    command
}

/// Status and both outputs, for messages.
pub fn describe(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{}\n{out}{err}", output.status)
}

/// What the client of a mount says in `redbud status`, which shows all mounts of its file system.
pub fn client_status(mount: &Path) -> Value {
    let text = success(redbud().args(["status", "--json"]).arg(mount));
    let status: Value = serde_json::from_str(&text).unwrap();
    let mounts = status["mounts"].as_array().expect("a list");
    let is_it = |one: &&Value| one["mount"].as_str().is_some_and(|path| Path::new(path) == mount);
    let found = mounts.iter().find(is_it);
    found.unwrap_or_else(|| panic!("{} is not in {status}", mount.display()))["client"].clone()
}

/// Polls until `condition` holds; fails with `what` if it never does.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for a child, which must end within [`PATIENCE`].
pub fn wait_child(child: &mut Child) -> std::process::ExitStatus {
    let mut status = None;
    eventually("the child ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

/// Runs `f` on this thread with the rights of a user who is in a group of the same number and in
/// 2000.
pub fn as_user<R>(uid: u32, f: impl FnOnce() -> R) -> R {
    let become_user = |uid: u32| {
        let gid = Some(Gid::from_raw(uid));
        if uid == 0 {
            thread::set_thread_res_uid(None, Some(Uid::ROOT), None).unwrap();
        }
        let groups = [Gid::from_raw(if uid == 0 { 0 } else { 2000 })];
        thread::set_thread_groups(&groups).unwrap();
        thread::set_thread_res_gid(None, gid, None).unwrap();
        thread::set_thread_res_uid(None, Some(Uid::from_raw(uid)), None).unwrap();
    };
    if uid == 0 {
        return f();
    }
    become_user(uid);
    let result = f();
    become_user(0);
    result
}

/// Threads that keep processors busy: twice as many as there are, so that others wait for their
/// turn.
pub struct Busy {
    ended: std::sync::Arc<std::sync::atomic::AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Busy {
    /// From now on, until it is dropped.
    pub fn processors() -> Busy {
        use std::sync::atomic::Ordering;
        let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let count = 2 * std::thread::available_parallelism().map_or(2, usize::from);
        let turns = |_| {
            let ended = ended.clone();
            std::thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..count).map(turns).collect();
        Busy { ended, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ended.store(true, std::sync::atomic::Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Bytes that differ from seed to seed, and look like nothing else.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

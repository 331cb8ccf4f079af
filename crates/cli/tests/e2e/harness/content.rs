//! Where the files of a test's cluster lie, and the object targets that serve some of them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::{Running, SharedPids, free_port, redbud, success};

/// Where the content of files lies that does not fit beside their inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// In blocks of the shared data devices.
    Blocks,
    /// In objects, striped over two targets.
    Objects,
    /// In blocks; two targets are there, too.
    Beside,
}

impl Content {
    /// Targets of a cluster with such files.
    pub fn targets(self) -> usize {
        match self {
            Content::Blocks => 0,
            Content::Objects | Content::Beside => LOGS.len(),
        }
    }
}

/// What the targets log, in the directory of their cluster.
pub const LOGS: [&str; 2] = ["ost0.log", "ost1.log"];

/// Makes each function that takes a [`Content`] two tests: `blocks::NAME` and `objects::NAME`.
macro_rules! on_blocks_and_objects {
    ($($test:ident),+ $(,)?) => {
        mod blocks {
            $(#[test]
            fn $test() {
                super::$test(crate::harness::Content::Blocks);
            })+
        }
        mod objects {
            $(#[test]
            fn $test() {
                super::$test(crate::harness::Content::Objects);
            })+
        }
    };
}
pub(crate) use on_blocks_and_objects;

/// The object targets of a cluster, on files in its directory, each in a process of its own.
pub struct Targets {
    config: PathBuf,
    dir: PathBuf,
    pids: SharedPids,
    ports: Vec<u16>,
    running: Vec<Option<Running>>,
    /// The metadata server knows them, and the root directory has their layout.
    added: bool,
    placed: bool,
    /// One was killed, with what it had counted.
    killed: bool,
}

impl Targets {
    /// Names `count` targets in the cluster's file, and makes their key.
    pub fn configured(count: usize, config: &Path, dir: &Path, pids: &SharedPids) -> Targets {
        let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        if count > 0 {
            let mut text = "[targets]\nkey = \"targets.key\"\n".to_owned();
            for (index, port) in ports.iter().enumerate() {
                let device = device(index);
                text +=
                    &format!("[[ost]]\ndevice = \"{device}\"\naddress = \"127.0.0.1:{port}\"\n");
            }
            let mut file = std::fs::OpenOptions::new().append(true).open(config).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            success(redbud().args(["ost", "key", "targets.key"]).current_dir(dir));
        }
        let running = (0..count).map(|_| None).collect();
        let (config, dir, pids) = (config.to_owned(), dir.to_owned(), pids.clone());
        Targets { config, dir, pids, ports, running, added: false, placed: false, killed: false }
    }

    /// Formats them; the metadata are formatted.
    pub fn format(&self) {
        for index in 0..self.count() {
            let mut format = self.command("format");
            success(format.args(["--size", "512M", &device(index)]));
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.ports.len()
    }

    /// Starts target `index`, and waits until it serves.
    pub fn serve(&mut self, index: usize) {
        assert!(self.running[index].is_none(), "target {index} runs");
        let mut command = self.command("serve");
        command.arg(device(index));
        let log = self.dir.join(LOGS[index]);
        self.running[index] = Some(Running::ready(command, &log, &self.pids));
    }

    /// Starts those that do not run.
    pub fn serve_all(&mut self) {
        for index in 0..self.count() {
            if self.running[index].is_none() {
                self.serve(index);
            }
        }
    }

    /// Makes them zones of the file system, whose server runs; once.
    pub fn add(&mut self) {
        if std::mem::replace(&mut self.added, true) {
            return;
        }
        for port in &self.ports {
            let target = format!("ost:127.0.0.1:{port}");
            success(redbud().args(["pag", "add", &target]).arg(&self.config));
        }
    }

    /// Files lie in objects from now on, below the root of the file system, which is mounted.
    pub fn place_files_below(&mut self, root: &Path) {
        if self.count() > 0 && !std::mem::replace(&mut self.placed, true) {
            let width = self.count().to_string();
            let layout = ["--policy", "objects", "--width", &width, "--part", "64K"];
            success(redbud().arg("set-layout").arg(root).args(layout));
        }
    }

    /// Kills target `index` (SIGKILL).
    pub fn kill(&mut self, index: usize) {
        self.killed = true;
        self.running[index].take().expect("the target runs").kill();
    }

    /// Kills all.
    pub fn kill_all(&mut self) {
        self.running.iter_mut().filter_map(Option::take).for_each(Running::kill);
    }

    /// Stops all cleanly, and checks their records and all content: there was some. Returns how
    /// many objects there are.
    pub fn finish(&mut self) -> u64 {
        let used = self.killed || self.count() == 0 || self.written_blocks() > 0;
        assert!(used, "no file lay in objects");
        let mut objects = 0;
        for index in 0..self.count() {
            let running = self.running[index].take().expect("the target runs");
            running.signal(Signal::TERM);
            assert!(running.wait().success(), "target {index}");
            let mut check = redbud();
            check.args(["ost", "check", "--scrub", "--json", &device(index)]);
            let text = success(check.current_dir(&self.dir));
            let report: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(report["findings"], serde_json::json!([]), "{text}");
            assert_eq!(report["scrub"]["damaged"], 0, "{text}");
            objects += report["scrub"]["objects"].as_u64().unwrap();
        }
        objects
    }

    /// Blocks that clients have written, since the targets were started.
    fn written_blocks(&self) -> u64 {
        self.each(|target| target["store"]["written_blocks"].as_u64())
    }

    /// Free blocks of all together, as they say themselves: what the metadata server says may be
    /// older.
    pub fn free(&self) -> u64 {
        self.each(|target| target["free"].as_u64())
    }

    /// The sum of a number in the status of each.
    fn each(&self, number: impl Fn(&serde_json::Value) -> Option<u64>) -> u64 {
        let of = |port| {
            let mut status = self.command("status");
            let report = success(status.args([&format!("127.0.0.1:{port}"), "--json"]));
            let report: serde_json::Value = serde_json::from_str(&report).unwrap();
            number(&report["targets"][0]).expect("a number")
        };
        self.ports.iter().map(of).sum()
    }

    /// A verb of `redbud ost` with the cluster's file, in its directory.
    fn command(&self, verb: &str) -> Command {
        let mut command = redbud();
        command.current_dir(&self.dir).args(["ost", verb, "--config"]).arg(&self.config);
        command
    }
}

/// The file of a target, in the directory of its cluster.
fn device(index: usize) -> String {
    format!("ost{index}.img")
}

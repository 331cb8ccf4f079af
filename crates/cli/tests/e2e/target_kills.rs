//! SIGKILL of object targets, alone, with the metadata server, and with the client, in the middle
//! of writes whose bytes travel with checksums: while the client lives, no byte whose write has
//! ended is lost; with the client, none that fsync has promised.
//!
//! `REDBUD_KILLS=N` kills N times instead of 50.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use crate::harness::{
    Cluster, Running, Spec, client_status, eventually, free_port, redbud, success,
};
use crate::kill_loads::{Files, Load, append, mail, objects};

/// Bytes of a stream's file: with parts of 256 KiB it lies on all targets.
const STREAM: usize = 3 << 20;
/// Bytes between two fsyncs of a stream.
const PIECE: usize = 1 << 20;

/// A cluster, and targets on files in its directory.
struct Targets {
    running: Vec<Option<Running>>,
    ports: Vec<u16>,
    cluster: Cluster,
}

impl Targets {
    /// Serves a file system with `count` targets, and mounts it.
    fn mounted(count: usize) -> Targets {
        let lease = Duration::from_secs(1);
        let cluster = Cluster::formatted(&Spec { lease, ..Spec::default() });
        let mut config = fs::OpenOptions::new().append(true).open(&cluster.config).unwrap();
        let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        writeln!(config, "[targets]\nkey = \"targets.key\"").unwrap();
        for (index, port) in ports.iter().enumerate() {
            let device = format!("device = \"ost{index}.img\"");
            writeln!(config, "[[ost]]\n{device}\naddress = \"127.0.0.1:{port}\"").unwrap();
        }
        success(redbud().args(["ost", "key", "targets.key"]).current_dir(&cluster.dir));
        let mut targets = Targets { running: Vec::new(), ports, cluster };
        for index in 0..count {
            let mut format = redbud();
            format.args(["ost", "format", "--size", "512M", &format!("ost{index}.img")]);
            format.arg("--config").arg(&targets.cluster.config);
            format.current_dir(&targets.cluster.dir);
            success(&mut format);
            targets.running.push(None);
            targets.serve(index);
        }
        targets.cluster.start_server();
        targets.cluster.mount();
        for port in &targets.ports {
            let mut add = redbud();
            add.args(["pag", "add", &format!("ost:127.0.0.1:{port}")]);
            success(add.arg(targets.cluster.root()));
        }
        targets
    }

    fn serve(&mut self, index: usize) {
        let mut command = redbud();
        command.current_dir(&self.cluster.dir);
        command.args(["ost", "serve", &format!("ost{index}.img"), "--config"]);
        command.arg(&self.cluster.config);
        let log = self.cluster.dir.join(format!("ost{index}.log"));
        self.running[index] = Some(Running::ready(command, &log, self.cluster.pids()));
    }

    fn kill(&mut self, index: usize) {
        self.running[index].take().expect("it runs").kill();
    }

    /// Is every target there, with nothing kept for it?
    fn are_settled(&self) -> bool {
        let status = client_status(&self.cluster.root());
        let devices = status["devices"].as_array().expect("a list").iter();
        let mut targets = devices.map(|device| &device["target"]).filter(|one| one.is_object());
        targets.all(|target| target["connected"] == true && target["pinned_bytes"] == 0)
    }

    fn finish(mut self) {
        self.cluster.unmount(0);
        for index in 0..self.running.len() {
            let running = self.running[index].take().expect("it runs");
            running.signal(rustix::process::Signal::TERM);
            assert!(running.wait().success());
            let mut check = redbud();
            check.args(["ost", "check", "--scrub", &format!("ost{index}.img")]);
            let text = success(check.current_dir(&self.cluster.dir));
            assert!(text.contains("records are sound") && text.contains(" 0 damaged"), "{text}");
        }
        self.cluster.finish();
    }
}

/// Streams: files that are written in some large pieces, every second one with fsync.
fn streams(dir: &Path, worker: u64, files: &Files, done: &dyn Fn() -> bool) -> io::Result<()> {
    for number in 0.. {
        let seed = worker * 1_000_000 + number;
        let path = dir.join(format!("{worker}-{}", number % 4));
        if number >= 4 {
            files.lock().unwrap().remove(&path);
            fs::remove_file(&path)?;
        }
        for end in (PIECE..=STREAM).step_by(PIECE) {
            append(&path, seed, end, number % 2 == 0, files)?;
        }
        if done() {
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn killed_targets_lose_nothing_that_was_acknowledged() {
    let kills = std::env::var("REDBUD_KILLS").map_or(50, |text| text.parse().expect("a number"));
    let mut targets = Targets::mounted(2);
    let root = targets.cluster.root();
    fs::create_dir(root.join("objects")).unwrap();
    let mut layout = redbud();
    layout.arg("set-layout").arg(root.join("objects"));
    success(layout.args(["--policy", "objects", "--width", "2", "--part", "256K"]));
    let mut shortened = 0;
    for round in 0..kills {
        let dir = root.join(format!("objects/round-{round}"));
        let (todo, before): (crate::kill_loads::Work, u64) = match round % 3 {
            0 => (streams, 4),
            1 => (mail, 20),
            _ => (objects, 60),
        };
        let mut load = Load::start(&dir, todo);
        load.work(before + round * 37 % 50 / (60 / before).max(1));
        let index = (round % 2) as usize;
        match round / 3 % 3 {
            0 => {
                targets.kill(index);
                targets.serve(index);
            }
            1 => {
                targets.kill(index);
                targets.cluster.kill_server();
                targets.serve(index);
                targets.cluster.start_server();
            }
            _ => {
                targets.kill(index);
                targets.cluster.kill_client(0);
                load.broken();
                targets.serve(index);
                targets.cluster.remount(0, &[]);
                shortened += load.verify(round, &|_, known| known.synced);
                fs::remove_dir_all(&dir).unwrap();
                continue;
            }
        }
        load.work(before / 2);
        load.end();
        assert_eq!(load.verify(round, &|_, known| known.written), 0);
        fs::remove_dir_all(&dir).unwrap();
    }
    eprintln!("{kills} kills: {shortened} files shortened or lost with the client");
    eventually("targets have made everything durable", || targets.are_settled());
    targets.finish();
}

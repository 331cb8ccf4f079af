//! SIGKILL of object targets, alone, with the metadata server, and with the client, in the middle
//! of writes whose bytes travel with checksums: while the client lives, no byte whose write has
//! ended is lost; with the client, none that fsync has promised.
//!
//! `REDBUD_KILLS=N` kills N times instead of 50.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::harness::{Cluster, Content, Spec, client_status, eventually, redbud, success};
use crate::kill_loads::{Files, Load, append, mail, objects};

/// Bytes of a stream's file: with parts of 256 KiB it lies on all targets.
const STREAM: usize = 3 << 20;
/// Bytes between two fsyncs of a stream.
const PIECE: usize = 1 << 20;

/// Is every target there, with nothing kept for it?
fn are_settled(cluster: &Cluster) -> bool {
    let status = client_status(&cluster.root());
    let devices = status["devices"].as_array().expect("a list").iter();
    let mut targets = devices.map(|device| &device["target"]).filter(|one| one.is_object());
    targets.all(|target| target["connected"] == true && target["pinned_bytes"] == 0)
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
    let lease = Duration::from_secs(1);
    let content = Content::Objects;
    let mut cluster = Cluster::start(&Spec { lease, content, ..Spec::default() });
    cluster.mount();
    let root = cluster.root();
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
                cluster.targets.kill(index);
                cluster.targets.serve(index);
            }
            1 => {
                cluster.targets.kill(index);
                cluster.kill_server();
                cluster.targets.serve(index);
                cluster.start_server();
            }
            _ => {
                cluster.targets.kill(index);
                cluster.kill_client(0);
                load.broken();
                cluster.targets.serve(index);
                cluster.remount(0, &[]);
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
    eventually("targets have made everything durable", || are_settled(&cluster));
    cluster.finish();
}

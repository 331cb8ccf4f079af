//! SIGKILL of client, server, or both under small mail and many objects, in the middle of their
//! work: what fsync acknowledged is there, and no file has other bytes than those that were
//! written. What a killed client loses was in the list of the mount's status a moment before, or
//! was written after that look.
//!
//! `REDBUD_KILLS=N` kills N times instead of 50.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::harness::{Cluster, Spec, client_status, eventually, pattern};

const WORKERS: u64 = 4;
/// Letters of a worker: the oldest goes when there are more.
const LETTERS: usize = 10;
/// Bytes of an object.
const OBJECT: usize = 32 << 10;

/// What a worker does in the directory until it is over.
pub type Work = fn(&Path, u64, &Files, &dyn Fn() -> bool) -> io::Result<()>;

/// A file as its writer knows it; its content is the begin of `pattern(seed, tried)`.
#[derive(Clone, Copy)]
pub struct Known {
    seed: u64,
    ino: u64,
    /// Bytes that were written, or were being written.
    tried: usize,
    /// Bytes whose writes have ended, and the close behind them.
    pub written: usize,
    /// Bytes from the begin that fsync has acknowledged.
    pub synced: usize,
}

pub type Files = Arc<Mutex<BTreeMap<PathBuf, Known>>>;

/// Writers in a directory of their own, until they are stopped.
pub struct Load {
    files: Files,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    workers: Vec<JoinHandle<io::Result<()>>>,
}

/// Writes bytes to the end of a file, and notes that.
pub fn append(path: &Path, seed: u64, to: usize, sync: bool, files: &Files) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let metadata = file.metadata()?;
    let new = Known { seed, ino: metadata.ino(), tried: 0, written: 0, synced: 0 };
    let note = |change: &dyn Fn(&mut Known)| {
        change(files.lock().unwrap().entry(path.to_owned()).or_insert(new));
    };
    note(&|known| known.tried = to);
    file.write_all(&pattern(seed, to)[metadata.len() as usize..])?;
    if sync {
        file.sync_all()?;
        note(&|known| known.synced = to);
    }
    // What the kernel has kept goes to the client at the close.
    drop(file);
    note(&|known| known.written = to);
    Ok(())
}

/// Letters: made with fsync, read, made longer with fsync, and removed (Filebench's varmail).
pub fn mail(dir: &Path, worker: u64, files: &Files, done: &dyn Fn() -> bool) -> io::Result<()> {
    let path = |number: u64| dir.join(format!("{worker}-{number}"));
    for number in 0.. {
        let seed = worker * 1_000_000 + number;
        let first = 1 + (seed.wrapping_mul(7919) % 16_384) as usize;
        append(&path(number), seed, first, true, files)?;
        assert!(fs::read(path(number))? == pattern(seed, first));
        append(&path(number), seed, first + 5000, true, files)?;
        if let Some(old) = number.checked_sub(LETTERS as u64) {
            files.lock().unwrap().remove(&path(old));
            fs::remove_file(path(old))?;
        }
        if done() {
            return Ok(());
        }
    }
    Ok(())
}

/// Objects: made all over a tree, without fsync (000 §V).
pub fn objects(dir: &Path, worker: u64, files: &Files, done: &dyn Fn() -> bool) -> io::Result<()> {
    for number in 0.. {
        let seed = worker * 1_000_000 + number;
        let place = dir.join(format!("{}", seed.wrapping_mul(0x9e37_79b9) >> 7 & 15));
        // Not the directories above it: without a mount these are not there.
        match fs::create_dir(&place) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        append(&place.join(seed.to_string()), seed, OBJECT, false, files)?;
        if done() {
            return Ok(());
        }
    }
    Ok(())
}

impl Load {
    pub fn start(dir: &Path, todo: Work) -> Load {
        fs::create_dir(dir).unwrap();
        File::open(dir).unwrap().sync_all().unwrap();
        let (files, stop, done) = (Files::default(), Arc::default(), Arc::default());
        let work = |worker| {
            let (dir, files) = (dir.to_owned(), files.clone());
            let (stop, done): (Arc<AtomicBool>, Arc<AtomicU64>) =
                (Arc::clone(&stop), Arc::clone(&done));
            thread::spawn(move || {
                let is_over = || {
                    done.fetch_add(1, Ordering::Relaxed);
                    stop.load(Ordering::Relaxed)
                };
                todo(&dir, worker, &files, &is_over)
            })
        };
        let workers = (0..WORKERS).map(work).collect();
        Load { files, stop, done, workers }
    }

    /// Lets it run until it has done so much more.
    pub fn work(&self, more: u64) {
        let until = self.done.load(Ordering::Relaxed) + more;
        eventually("the load makes progress", || {
            self.done.load(Ordering::Relaxed) >= until
                || self.workers.iter().any(JoinHandle::is_finished)
        });
    }

    /// Ends it without an error.
    pub fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            worker.join().unwrap().unwrap();
        }
    }

    /// Its client was killed: each of its workers gets an error.
    pub fn broken(&mut self) {
        for worker in self.workers.drain(..) {
            worker.join().unwrap().expect_err("it was at work");
        }
    }

    /// The files as they are known now.
    fn known(&self) -> BTreeMap<PathBuf, Known> {
        self.files.lock().unwrap().clone()
    }

    /// Each file has at least `due` bytes, and none that were not written there. Returns how many
    /// files have less than was written.
    pub fn verify(&self, round: u64, due: &dyn Fn(&Path, &Known) -> usize) -> u64 {
        let mut lost = 0;
        for (path, known) in self.known() {
            let due = due(&path, &known);
            let what = format!("round {round}: {} of inode {}", path.display(), known.ino);
            let found = match fs::read(&path) {
                Ok(found) => found,
                Err(error) if error.kind() == ErrorKind::NotFound && due == 0 => Vec::new(),
                Err(error) => panic!("{what}: {error}"),
            };
            let len = found.len();
            assert!(len >= due, "{what}: {len} bytes of {due} that may not be lost");
            assert!(pattern(known.seed, known.tried).starts_with(&found), "{what}: other bytes");
            lost += u64::from(len < known.written);
        }
        lost
    }
}

/// The inodes whose content is not committed, as the status of the mount says.
fn unsaved(mount: &Path) -> BTreeSet<u64> {
    let status = client_status(mount);
    assert_eq!(status["owes"]["unsaved_cut"], false, "{status}");
    let listed = status["owes"]["unsaved"].as_array().expect("a list");
    let listed: BTreeSet<u64> = listed.iter().filter_map(serde_json::Value::as_u64).collect();
    assert_eq!(listed.len() as u64, status["owes"]["files"].as_u64().unwrap(), "{status}");
    listed
}

#[test]
fn what_kills_lose_under_mail_and_objects_was_listed_as_unsaved_or_is_newer() {
    let kills = std::env::var("REDBUD_KILLS").map_or(50, |text| text.parse().expect("a number"));
    let mut cluster = Cluster::start(&Spec { lease: Duration::from_secs(1), ..Spec::default() });
    cluster.mount();
    let (mut listed_in_all, mut lost_in_all, mut lost_with_server) = (0, 0, 0);
    for round in 0..kills {
        let dir = cluster.root().join(format!("round-{round}"));
        let is_mail = round % 2 == 0;
        let mut load = Load::start(&dir, if is_mail { mail } else { objects });
        load.work(if is_mail { 20 } else { 60 } + round * 37 % 50);
        match round / 2 % 3 {
            0 => {
                let before = load.known();
                let listed = unsaved(&cluster.root());
                cluster.kill_client(0);
                load.broken();
                cluster.remount(0, &[]);
                let due = |path: &Path, known: &Known| match before.get(path) {
                    Some(before) if !listed.contains(&known.ino) => {
                        before.written.max(known.synced)
                    }
                    _ => known.synced,
                };
                lost_in_all += load.verify(round, &due);
                listed_in_all += listed.len();
            }
            1 => {
                cluster.kill_server();
                cluster.start_server();
                load.work(20);
                load.end();
                assert_eq!(load.verify(round, &|_, known| known.written), 0);
            }
            _ => {
                cluster.kill_server();
                cluster.kill_client(0);
                load.broken();
                cluster.start_server();
                cluster.remount(0, &[]);
                // Names that were made in the last second may be lost, too.
                lost_with_server += load.verify(round, &|_, known| known.synced);
            }
        }
        fs::remove_dir_all(&dir).unwrap();
    }
    eprintln!(
        "{kills} kills: {listed_in_all} files listed as unsaved, {lost_in_all} shortened or lost \
         with the client, {lost_with_server} with the server, too"
    );
    cluster.finish();
}

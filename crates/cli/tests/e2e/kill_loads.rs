//! SIGKILL of client, server, or both under small mail and many objects: what fsync acknowledged is
//! there, and what is lost was in the list of the mount's status a moment before.
//!
//! `REDBUD_KILLS=N` kills N times instead of 50.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
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

/// A file as its writer knows it; its content is `pattern(seed, written)`.
#[derive(Clone, Copy)]
struct Known {
    seed: u64,
    ino: u64,
    written: usize,
    /// Bytes from the begin that fsync has acknowledged.
    synced: usize,
}

type Files = Arc<Mutex<BTreeMap<PathBuf, Known>>>;

/// Writers in a directory of their own, until they are stopped.
struct Load {
    files: Files,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    workers: Vec<JoinHandle<io::Result<()>>>,
}

/// Writes bytes to the end of a file, and notes that.
fn append(path: &Path, seed: u64, to: usize, sync: bool, files: &Files) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let metadata = file.metadata()?;
    file.write_all(&pattern(seed, to)[metadata.len() as usize..])?;
    let mut known = Known { seed, ino: metadata.ino(), written: to, synced: 0 };
    files.lock().unwrap().entry(path.to_owned()).or_insert(known).written = to;
    if sync {
        file.sync_all()?;
        known.synced = to;
        files.lock().unwrap().insert(path.to_owned(), known);
    }
    Ok(())
}

/// Letters: made with fsync, read, made longer with fsync, and removed (Filebench's varmail).
fn mail(dir: &Path, worker: u64, files: &Files, done: &dyn Fn() -> bool) -> io::Result<()> {
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
fn objects(dir: &Path, worker: u64, files: &Files, done: &dyn Fn() -> bool) -> io::Result<()> {
    for number in 0.. {
        let seed = worker * 1_000_000 + number;
        let place = dir.join(format!("{}", seed.wrapping_mul(0x9e37_79b9) >> 7 & 15));
        fs::create_dir_all(&place)?;
        append(&place.join(seed.to_string()), seed, OBJECT, false, files)?;
        if done() {
            return Ok(());
        }
    }
    Ok(())
}

impl Load {
    fn start(dir: &Path, is_mail: bool) -> Load {
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
                let work = if is_mail { mail } else { objects };
                work(&dir, worker, &files, &is_over)
            })
        };
        let workers = (0..WORKERS).map(work).collect();
        Load { files, stop, done, workers }
    }

    /// Lets it run until it has done so much more.
    fn work(&self, more: u64) {
        let until = self.done.load(Ordering::Relaxed) + more;
        eventually("the load makes progress", || {
            self.done.load(Ordering::Relaxed) >= until
                || self.workers.iter().any(JoinHandle::is_finished)
        });
    }

    /// Ends it without an error.
    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            worker.join().unwrap().unwrap();
        }
    }

    /// Each file has what was written, or what fsync acknowledged and more if `may_lose` says so of
    /// its inode.
    fn verify(&self, round: u64, may_lose: &dyn Fn(u64) -> bool) -> u64 {
        let mut lost = 0;
        for (path, known) in self.files.lock().unwrap().iter() {
            let found = fs::read(path);
            let whole = pattern(known.seed, known.written);
            if found.as_ref().is_ok_and(|found| *found == whole) {
                continue;
            }
            let what = format!("round {round}: {} of inode {}", path.display(), known.ino);
            assert!(may_lose(known.ino), "{what} is lost, and the status did not list it");
            lost += 1;
            match found {
                Ok(found) => {
                    assert!(found.len() >= known.synced, "{what}: {} bytes", found.len());
                    assert!(found[..known.synced] == whole[..known.synced], "{what}: other bytes");
                }
                Err(error) => assert_eq!(known.synced, 0, "{what}: {error}"),
            }
        }
        lost
    }
}

/// The inodes whose content is not committed, as the status of the mount says.
fn unsaved(mount: &Path) -> BTreeSet<u64> {
    let status = client_status(mount);
    let listed = status["owes"]["unsaved"].as_array().expect("a list");
    let listed: BTreeSet<u64> = listed.iter().filter_map(serde_json::Value::as_u64).collect();
    assert_eq!(listed.len() as u64, status["owes"]["files"].as_u64().unwrap(), "{status}");
    listed
}

#[test]
fn what_kills_lose_under_mail_and_objects_was_listed_as_unsaved() {
    let kills = std::env::var("REDBUD_KILLS").map_or(50, |text| text.parse().expect("a number"));
    let mut cluster = Cluster::start(&Spec { lease: Duration::from_secs(1), ..Spec::default() });
    cluster.mount();
    let (mut listed_in_all, mut lost_in_all) = (0, 0);
    for round in 0..kills {
        let dir = cluster.root().join(format!("round-{round}"));
        let is_mail = round % 2 == 0;
        let mut load = Load::start(&dir, is_mail);
        load.work(if is_mail { 20 } else { 60 } + round * 37 % 50);
        match round / 2 % 3 {
            0 => {
                load.end();
                let listed = unsaved(&cluster.root());
                cluster.kill_client(0);
                cluster.remount(0, &[]);
                lost_in_all += load.verify(round, &|ino| listed.contains(&ino));
                listed_in_all += listed.len();
            }
            1 => {
                cluster.kill_server();
                cluster.start_server();
                load.work(20);
                load.end();
                assert_eq!(load.verify(round, &|_| false), 0);
            }
            _ => {
                load.end();
                cluster.kill_server();
                cluster.kill_client(0);
                cluster.start_server();
                cluster.remount(0, &[]);
                // Names that were made in the last second may be lost, too.
                lost_in_all += load.verify(round, &|_| true);
            }
        }
        fs::remove_dir_all(&dir).unwrap();
    }
    eprintln!("{kills} kills: {listed_in_all} files listed as unsaved, {lost_in_all} lost");
    cluster.finish();
}

//! SIGKILL of metadata servers, one or both at once, under processes that make, move, link and
//! remove what lies at both of them. No call fails, and what was acknowledged is there, with its
//! name, its content and its links.
//!
//! `REDBUD_KILLS=N` kills N times instead of 30.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Local;
use crate::harness::{eventually, redbud, success};

const WORKERS: u64 = 4;
/// Directories of a worker, and names in each.
const PLACES: u64 = 6;

/// A process's own tree, and what it has to be.
struct Worker {
    root: PathBuf,
    state: u64,
    /// Directories, and their names, each with the file that it leads to.
    tree: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// Files so far.
    files: u64,
}

impl Worker {
    fn new(root: PathBuf, seed: u64) -> Worker {
        Worker { root, state: seed | 1, tree: BTreeMap::new(), files: 0 }
    }

    /// A number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % bound
    }

    fn dir(&self, at: u64) -> PathBuf {
        self.root.join(format!("dir{at}"))
    }

    fn file(&self, (dir, name): (u64, u64)) -> PathBuf {
        self.dir(dir).join(format!("file{name}"))
    }

    /// A name that is there.
    fn some_name(&mut self) -> Option<(u64, u64)> {
        let all: Vec<_> = self
            .tree
            .iter()
            .flat_map(|(dir, names)| names.keys().map(|name| (*dir, *name)))
            .collect();
        let at = self.draw(all.len().max(1) as u64) as usize;
        all.get(at).copied()
    }

    /// Makes one change, here and in the file system.
    fn step(&mut self) -> io::Result<()> {
        let to = (self.draw(PLACES), self.draw(PLACES));
        if !self.tree.contains_key(&to.0) {
            fs::create_dir(self.dir(to.0))?;
            self.tree.insert(to.0, BTreeMap::new());
            return Ok(());
        }
        match (self.draw(8), self.some_name()) {
            (0..3, _) | (_, None) => {
                self.files += 1;
                let file = self.files;
                let made = self.dir(to.0).join("new");
                fs::write(&made, file.to_string())?;
                fs::rename(&made, self.file(to))?;
                self.tree.get_mut(&to.0).expect("it is there").insert(to.1, file);
            }
            (3 | 4, Some(from)) => {
                fs::rename(self.file(from), self.file(to))?;
                let file = self.tree[&from.0][&from.1];
                // Of two names of one file a rename leaves both.
                let same = from == to || self.tree[&to.0].get(&to.1) == Some(&file);
                if !same {
                    self.tree.get_mut(&from.0).expect("it is there").remove(&from.1);
                    self.tree.get_mut(&to.0).expect("it is there").insert(to.1, file);
                }
            }
            (5, Some(from)) if !self.tree[&to.0].contains_key(&to.1) => {
                fs::hard_link(self.file(from), self.file(to))?;
                let file = self.tree[&from.0][&from.1];
                self.tree.get_mut(&to.0).expect("it is there").insert(to.1, file);
            }
            (6, Some(gone)) => {
                fs::remove_file(self.file(gone))?;
                self.tree.get_mut(&gone.0).expect("it is there").remove(&gone.1);
            }
            (_, Some((dir, _))) => {
                for name in self.tree.remove(&dir).expect("it is there").into_keys() {
                    fs::remove_file(self.file((dir, name)))?;
                }
                fs::remove_dir(self.dir(dir))?;
            }
        }
        Ok(())
    }

    /// Is the tree as it has to be?
    fn verify(&self) {
        let found: BTreeSet<_> = listed(&self.root);
        assert_eq!(found, self.tree.keys().map(|dir| format!("dir{dir}")).collect());
        let mut names: BTreeMap<u64, u64> = BTreeMap::new();
        for file in self.tree.values().flat_map(BTreeMap::values) {
            *names.entry(*file).or_default() += 1;
        }
        for (dir, wanted) in &self.tree {
            let found = listed(&self.dir(*dir));
            assert_eq!(found, wanted.keys().map(|name| format!("file{name}")).collect());
            for (name, file) in wanted {
                let path = self.file((*dir, *name));
                assert_eq!(fs::read_to_string(&path).unwrap(), file.to_string(), "{path:?}");
                assert_eq!(fs::metadata(&path).unwrap().nlink(), names[file], "{path:?}");
            }
        }
        let links = fs::metadata(&self.root).unwrap().nlink();
        assert_eq!(links, 2 + self.tree.len() as u64, "{:?}", self.root);
    }
}

fn listed(path: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn killed_servers_lose_nothing_that_was_acknowledged() {
    let kills = std::env::var("REDBUD_KILLS").map_or(30, |text| text.parse().expect("a number"));
    let mut local = Local::start(2);
    let parent = local.parent("parent", "spread");
    let (ended, steps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let root = parent.join(format!("worker{worker}"));
            fs::create_dir(&root).unwrap();
            // Its directories take turns among the servers, and so do the files of one half of it.
            success(redbud().args(["set-layout", "--mds", "spread"]).arg(&root));
            if worker % 2 == 1 {
                let spread = ["set-layout", "--mds", "spread", "--spread", "on"];
                success(redbud().args(spread).arg(&root));
            }
            let (ended, steps) = (ended.clone(), steps.clone());
            std::thread::spawn(move || {
                let mut worker = Worker::new(root, worker + 1);
                while !ended.load(Ordering::Relaxed) {
                    worker.step().unwrap_or_else(|error| panic!("{:?}: {error}", worker.root));
                    steps.fetch_add(1, Ordering::Relaxed);
                }
                worker
            })
        })
        .collect();
    let mut killed = 0;
    let mut epochs = local.epochs(2);
    while killed < kills {
        let before = steps.load(Ordering::Relaxed);
        eventually("it works", || {
            let failed = workers.iter().any(std::thread::JoinHandle::is_finished);
            assert!(!failed, "a call failed");
            steps.load(Ordering::Relaxed) > before + 20
        });
        // In turn one of them, the other, and both.
        let chosen: &[u16] = [&[0][..], &[1], &[0, 1]][killed % 3];
        chosen.iter().for_each(|server| local.kill(*server));
        killed += 1;
        let index = usize::from(chosen[0]);
        eventually("the server is back", || local.epochs(2)[index] > epochs[index]);
        epochs = local.epochs(2);
    }
    ended.store(true, Ordering::Relaxed);
    let workers: Vec<Worker> = workers.into_iter().map(|one| one.join().unwrap()).collect();
    workers.iter().for_each(Worker::verify);
    local.restart();
    workers.iter().for_each(Worker::verify);
    local.stop();
    local.assert_clean();
}

//! SIGKILL of client, server, or both, at random moments under load: 75 rounds on blocks, 24 on
//! objects. What fsync acknowledged is there with its exact content; the check finds nothing.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::harness::{Cluster, Content, Mapping, Spec, eventually, on_blocks_and_objects, pattern};

/// What was acknowledged as durable.
#[derive(Default)]
pub struct Promised {
    /// Whole files, by name: seed and length.
    files: BTreeMap<String, (u64, usize)>,
    /// Newest acknowledged version of the file that is replaced again and again.
    version: u64,
    /// Acknowledged lines of the journal.
    lines: u64,
}

/// Bytes of a line of the journal.
const LINE: u64 = 8;

/// A load on a mount, until a stop request or an error.
pub struct Load {
    promised: Arc<Mutex<Promised>>,
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<io::Result<()>>>,
}

/// Length of version or file number `seed`.
fn length(seed: u64) -> usize {
    (seed.wrapping_mul(7919) % 120_000) as usize
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Files of their own, each synced: every second one's directory too.
fn write_files(
    root: &Path,
    round: u64,
    promised: &Mutex<Promised>,
    stop: &AtomicBool,
) -> io::Result<()> {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let seed = round * 10_000 + number;
        let name = format!("file-{seed}");
        let mut file = File::create(root.join("files").join(&name))?;
        file.write_all(&pattern(seed, length(seed)))?;
        file.sync_all()?;
        if number % 2 == 0 {
            sync_directory(&root.join("files"))?;
        }
        promised.lock().unwrap().files.insert(name, (seed, length(seed)));
    }
    Ok(())
}

/// One file, replaced by rename; the directory is synced.
fn replace_file(root: &Path, promised: &Mutex<Promised>, stop: &AtomicBool) -> io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let version = promised.lock().unwrap().version + 1;
        let new = root.join("versions/new");
        let mut file = File::create(&new)?;
        file.write_all(&version.to_le_bytes())?;
        file.write_all(&pattern(version, length(version)))?;
        file.sync_all()?;
        fs::rename(&new, root.join("versions/current"))?;
        sync_directory(&root.join("versions"))?;
        promised.lock().unwrap().version = version;
    }
    Ok(())
}

/// Lines appended with O_SYNC.
fn append_lines(root: &Path, promised: &Mutex<Promised>, stop: &AtomicBool) -> io::Result<()> {
    let flags = i32::try_from(OFlags::SYNC.bits()).unwrap();
    let mut options = OpenOptions::new();
    options.create(true).append(true).custom_flags(flags);
    let path = root.join("journal");
    let mut file = options.open(&path)?;
    // Lines that were never acknowledged may be there; a part of one is cut off.
    let mut number = file.metadata()?.len() / LINE;
    file.set_len(number * LINE)?;
    while !stop.load(Ordering::Relaxed) {
        file.write_all(format!("{number:07}\n").as_bytes())?;
        number += 1;
        promised.lock().unwrap().lines = number;
    }
    Ok(())
}

/// Names that come and go, never synced: they may be lost, but nothing may break.
fn churn(root: &Path, round: u64, stop: &AtomicBool) -> io::Result<()> {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let dir = root.join(format!("churn/{round}-{}", number % 7));
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let path = dir.join(format!("x{number}"));
        fs::write(&path, pattern(number, 5000))?;
        fs::rename(&path, dir.join("y"))?;
        if number % 3 == 0 {
            fs::remove_dir_all(&dir)?;
        }
    }
    Ok(())
}

impl Load {
    pub fn start(root: PathBuf, round: u64, promised: &Arc<Mutex<Promised>>) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        type Work = Box<dyn FnOnce(&Path, &Mutex<Promised>, &AtomicBool) -> io::Result<()> + Send>;
        let work: [Work; 4] = [
            Box::new(move |root, promised, stop| write_files(root, round, promised, stop)),
            Box::new(replace_file),
            Box::new(append_lines),
            Box::new(move |root, _, stop| churn(root, round, stop)),
        ];
        let workers = work.map(|work| {
            let (root, promised, stop) = (root.clone(), promised.clone(), stop.clone());
            thread::spawn(move || work(&root, &promised, &stop))
        });
        Load { promised: promised.clone(), stop, workers: workers.into() }
    }

    /// Lets it run until it has done something, and a little longer.
    pub fn work(&self, round: u64) {
        let files = self.promised.lock().unwrap().files.len();
        eventually("the load makes progress", || {
            self.promised.lock().unwrap().files.len() > files + 1
                || self.workers.iter().any(JoinHandle::is_finished)
        });
        thread::sleep(Duration::from_millis(round * 37 % 90));
    }

    /// Ends it; gives the errors that it met.
    pub fn end(self) -> Vec<io::Error> {
        self.stop.store(true, Ordering::Relaxed);
        self.workers.into_iter().filter_map(|worker| worker.join().unwrap().err()).collect()
    }
}

/// The directories and files that a load needs.
pub fn prepare(root: &Path) {
    for name in ["files", "versions", "churn"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    fs::write(root.join("journal"), b"").unwrap();
    rustix::fs::syncfs(File::open(root).unwrap()).unwrap();
}

/// Everything that was promised is there.
pub fn verify(root: &Path, promised: &Promised) {
    for (name, (seed, length)) in &promised.files {
        let content =
            fs::read(root.join("files").join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(content == pattern(*seed, *length), "{name} has other content");
    }
    if promised.version > 0 {
        let content = fs::read(root.join("versions/current")).unwrap();
        let version = u64::from_le_bytes(content[..8].try_into().unwrap());
        assert!(version >= promised.version, "version {version} < {}", promised.version);
        assert!(content[8..] == pattern(version, length(version)), "version {version} is torn");
    }
    let journal = fs::read_to_string(root.join("journal")).unwrap();
    let lines: Vec<&str> = journal.lines().collect();
    assert!(lines.len() as u64 >= promised.lines, "{} of {} lines", lines.len(), promised.lines);
    for (number, line) in lines.iter().enumerate().take(promised.lines as usize) {
        assert_eq!(*line, format!("{number:07}"));
    }
}

/// Keeps the check quick: old files are removed once they were verified.
pub fn forget(root: &Path, promised: &mut Promised) {
    for name in std::mem::take(&mut promised.files).keys() {
        fs::remove_file(root.join("files").join(name)).unwrap();
    }
}

fn spec(content: Content) -> Spec {
    Spec { lease: Duration::from_secs(1), content, ..Spec::default() }
}

/// How many rounds of `all`. On objects a third: targets are killed in `target_kills`.
fn rounds(content: Content, all: u64) -> u64 {
    match content {
        Content::Blocks | Content::Beside => all,
        Content::Objects => all / 3,
    }
}

on_blocks_and_objects!(
    killed_server_causes_no_application_error,
    killed_client_keeps_what_it_synced,
    killed_cluster_keeps_what_was_synced,
    replaced_file_is_old_or_new_after_its_client_is_killed,
    stores_into_a_mapping_are_committed_before_a_replacing_rename,
);

fn killed_server_causes_no_application_error(content: Content) {
    let mut cluster = Cluster::start(&spec(content));
    cluster.mount();
    let root = cluster.root();
    prepare(&root);
    let promised = Arc::new(Mutex::new(Promised::default()));
    for round in 0..rounds(content, 30) {
        let load = Load::start(root.clone(), round, &promised);
        load.work(round);
        cluster.kill_server();
        if round % 8 == 0 {
            cluster.assert_clean();
        }
        cluster.start_server();
        load.work(round / 3);
        let errors = load.end();
        assert!(errors.is_empty(), "round {round}: {errors:?}");
        let mut promised = promised.lock().unwrap();
        verify(&root, &promised);
        forget(&root, &mut promised);
    }
    cluster.finish();
}

fn killed_client_keeps_what_it_synced(content: Content) {
    let mut cluster = Cluster::start(&spec(content));
    cluster.mount();
    let witness = cluster.mount();
    prepare(&cluster.root());
    let promised = Arc::new(Mutex::new(Promised::default()));
    for round in 0..rounds(content, 20) {
        let load = Load::start(cluster.root(), round, &promised);
        load.work(round);
        cluster.kill_client(0);
        load.end();
        let mut promised = promised.lock().unwrap();
        // The other client goes on, and sees all that was promised.
        verify(&cluster.path(witness), &promised);
        cluster.remount(0, &[]);
        verify(&cluster.root(), &promised);
        forget(&cluster.root(), &mut promised);
    }
    cluster.finish();
}

fn killed_cluster_keeps_what_was_synced(content: Content) {
    let mut cluster = Cluster::start(&spec(content));
    cluster.mount();
    prepare(&cluster.root());
    let promised = Arc::new(Mutex::new(Promised::default()));
    for round in 0..rounds(content, 25) {
        let load = Load::start(cluster.root(), round, &promised);
        load.work(round);
        if round % 2 == 0 {
            cluster.kill_server();
            cluster.kill_client(0);
        } else {
            cluster.kill_client(0);
            cluster.kill_server();
        }
        load.end();
        if round % 8 == 0 {
            cluster.assert_clean();
        }
        cluster.start_server();
        cluster.remount(0, &[]);
        let mut promised = promised.lock().unwrap();
        verify(&cluster.root(), &promised);
        forget(&cluster.root(), &mut promised);
    }
    cluster.finish();
}

/// As many programs save a file: written beside it, and renamed over it without fsync.
fn replaced_file_is_old_or_new_after_its_client_is_killed(content: Content) {
    const NAMES: usize = 20;
    let mut cluster = Cluster::start(&spec(content));
    cluster.mount();
    let witness = cluster.mount();
    for round in 0..6usize {
        let name = |root: &Path, index: usize| root.join(format!("{round}.{index}"));
        // Beside the inode, a few blocks, many.
        let length = |index: usize| [900, 20_000, 400_000][index % 3];
        let old = |index: usize| pattern(index as u64, length(index));
        let new = |index: usize| pattern(1000 + index as u64, length(index) + index);
        let root = cluster.root();
        for index in 0..NAMES {
            let mut file = File::create(name(&root, index)).unwrap();
            file.write_all(&old(index)).unwrap();
            file.sync_all().unwrap();
        }
        for index in 0..NAMES {
            let beside = root.join("new");
            fs::write(&beside, new(index)).unwrap();
            if index % 4 == 3 {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let at = rustix::fs::CWD;
                rustix::fs::renameat_with(at, &beside, at, name(&root, index), flags).unwrap();
            } else {
                // The last ones by another client.
                let by = if index > 15 { cluster.path(witness) } else { root.clone() };
                fs::rename(by.join("new"), name(&by, index)).unwrap();
            }
        }
        cluster.kill_client(0);
        for index in 0..NAMES {
            // Nothing but that the client lost the name could bring the old one back: it was
            // answered.
            let found = fs::read(name(&cluster.path(witness), index)).unwrap();
            assert!(found == new(index), "round {round}, {index}: {} bytes", found.len());
        }
        cluster.remount(0, &[]);
    }
    cluster.finish();
}

fn stores_into_a_mapping_are_committed_before_a_replacing_rename(content: Content) {
    let mut cluster = Cluster::start(&spec(content));
    cluster.mount();
    let witness = cluster.mount();
    let (old, new) = (cluster.root().join("f"), cluster.root().join("new"));
    fs::write(&old, [1; 10]).unwrap();
    let file = File::options().read(true).write(true).create_new(true).open(&new).unwrap();
    (&file).write_all(&[2; Mapping::LEN]).unwrap();
    // From here on the client itself has nothing to commit.
    file.sync_all().unwrap();
    let mapping = Mapping::of(&file);
    mapping.store(500, 3);
    fs::rename(&new, &old).unwrap();
    cluster.kill_client(0);
    let found = fs::read(cluster.path(witness).join("f")).unwrap();
    assert_eq!((found.len(), found[499], found[500]), (Mapping::LEN, 2, 3));
    drop((mapping, file));
    cluster.remount(0, &[]);
    cluster.finish();
}

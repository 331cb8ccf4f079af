//! Zoning: a host that mounts must not reach the metadata of the file system (paper 002, 2.1).
//!
//! Invariants:
//! - only labels are read, and nothing is written or locked;
//! - a device that does not answer holds up nothing but the thread that reads it: the scan ends
//!   after [`PATIENCE`] with what it has seen;
//! - a device that is open exclusively on this host is the device of a server that runs here: that
//!   is no breach, but a line in the log.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use label::{Contents, Label};
use rustix::fs::OFlags;
use types::Uuid;
use types::limits::{BLOCK, BLOCK_U64};

/// The kernel's list of block devices.
const DEVICES: &str = "/sys/class/block";
/// How long a mount waits for the labels, from the start of the scan on.
const PATIENCE: Duration = Duration::from_secs(2);
/// Threads that read labels; a device that does not answer holds up one of them.
const READERS: usize = 32;
/// Bytes of the unit in which the kernel gives sizes.
const SECTOR: u64 = 512;

/// A scan that runs in threads of its own.
pub struct Scan {
    begin: Instant,
    found: Receiver<(PathBuf, Label)>,
}

impl Scan {
    /// Begins to read the labels of this host's block devices: disks, partitions, loop devices.
    pub fn begin() -> Scan {
        Scan::of(block_devices())
    }

    fn of(devices: Vec<(PathBuf, u64)>) -> Scan {
        let (sender, found) = channel();
        let readers = devices.len().min(READERS);
        let queue = Arc::new(Mutex::new(devices.into_iter()));
        for _ in 0..readers {
            let (queue, sender) = (queue.clone(), sender.clone());
            let reader = std::thread::Builder::new().stack_size(64 << 10);
            // Without a thread fewer devices are looked at within the time.
            drop(reader.spawn(move || {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some((path, blocks)) = next() {
                    report(&sender, path, blocks);
                }
            }));
        }
        Scan { begin: Instant::now(), found }
    }

    /// Waits for the labels. Refuses a host that reaches metadata or a metadata log of the file
    /// system `fs`, unless `allowed`; returns what the log should say instead.
    ///
    /// # Errors
    /// Which device it is, and what to do.
    pub fn check(&self, fs: Uuid, allowed: bool) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        loop {
            let left = PATIENCE.saturating_sub(self.begin.elapsed());
            let Ok((path, label)) = self.found.recv_timeout(left) else { return Ok(lines) };
            let contents = label.contents();
            if label.fs_uuid != fs || contents == Contents::Data {
                continue;
            }
            let what = format!(
                "{} holds {contents} of the file system `{}`, which a host that mounts should not reach",
                path.display(),
                label.fs_name
            );
            if is_in_use(&path) {
                lines.push(format!("{what}; it is in use here, so its server runs on this host"));
            } else if allowed {
                lines.push(format!("{what}; the option allow_unzoned permits it"));
            } else {
                return Err(format!(
                    "{what}: take the device away from this host (zoning or LUN masking of the storage), \
                     or mount with `--allow-unzoned`"
                ));
            }
        }
    }
}

/// Block devices with a size, and their whole blocks.
fn block_devices() -> Vec<(PathBuf, u64)> {
    let Ok(entries) = std::fs::read_dir(DEVICES) else { return Vec::new() };
    let device = |entry: std::fs::DirEntry| {
        let size = std::fs::read_to_string(entry.path().join("size")).ok()?;
        let blocks = size.trim().parse::<u64>().ok()? / (BLOCK_U64 / SECTOR);
        // The kernel writes '!' for '/' in names.
        let name = entry.file_name().to_string_lossy().replace('!', "/");
        (blocks >= 3).then(|| (Path::new("/dev").join(name), blocks))
    };
    entries.flatten().filter_map(device).collect()
}

fn report(sender: &Sender<(PathBuf, Label)>, path: PathBuf, blocks: u64) {
    if let Some(label) = label_of(&path, blocks) {
        // Fails if the mount did not wait for it.
        let _ = sender.send((path, label));
    }
}

/// The label in the first block, or else in the last one.
fn label_of(path: &Path, blocks: u64) -> Option<Label> {
    let file = open(path, OFlags::NONBLOCK).ok()?;
    let read = |block: u64| {
        let mut bytes = [0; BLOCK];
        file.read_exact_at(&mut bytes, block * BLOCK_U64).ok()?;
        Label::decode(&bytes).ok()
    };
    read(0).or_else(|| read(blocks - 1).filter(|label| label.blocks == blocks))
}

fn open(path: &Path, flags: OFlags) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

/// Has a process of this host the device open exclusively?
fn is_in_use(path: &Path) -> bool {
    let opened = open(path, OFlags::NONBLOCK | OFlags::EXCL);
    opened.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
}

#[cfg(test)]
mod tests {
    use label::SliceKind;
    use types::PagId;

    use super::*;

    const FS: Uuid = Uuid([7; 16]);

    /// A file with a label in these blocks of 16.
    fn device(name: &str, kind: SliceKind, at: &[u64]) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("redbud-zoning-{}-{name}", std::process::id()));
        let file = File::create(&path).unwrap();
        file.set_len(16 * BLOCK_U64).unwrap();
        let label = Label::single(FS, "home", Uuid([1; 16]), 16, kind);
        for block in at {
            file.write_all_at(&label.encode(), block * BLOCK_U64).unwrap();
        }
        path
    }

    fn check(path: &Path, fs: Uuid, allowed: bool) -> Result<usize, String> {
        let devices = vec![(path.to_owned(), 16), ("/nowhere".into(), 16)];
        Scan::of(devices).check(fs, allowed).map(|lines| lines.len())
    }

    #[test]
    fn host_that_reaches_metadata_is_refused_unless_that_is_allowed() {
        let metadata = SliceKind::Metadata { shard: 0, journal: None };
        let journal = SliceKind::Journal { shard: 0, metadata: Uuid([2; 16]) };
        for (name, kind, at) in
            [("front", metadata, &[0, 15][..]), ("end", metadata, &[15]), ("log", journal, &[0])]
        {
            let path = device(name, kind, at);
            let text = check(&path, FS, false).unwrap_err();
            assert!(text.contains(name) && text.contains("--allow-unzoned"), "{text}");
            assert_eq!(check(&path, FS, true), Ok(1), "{name}");
            assert_eq!(check(&path, Uuid([8; 16]), false), Ok(0), "{name}");
            std::fs::remove_file(path).unwrap();
        }
        let path = device("data", SliceKind::Data { pag: PagId(1) }, &[0, 15]);
        assert_eq!(check(&path, FS, false), Ok(0));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn device_that_does_not_answer_holds_up_a_mount_for_a_bounded_time() {
        let (sender, found) = channel();
        let scan = Scan { begin: Instant::now(), found };
        assert_eq!(scan.check(FS, false), Ok(vec![]));
        assert!(scan.begin.elapsed() >= PATIENCE && scan.begin.elapsed() < 10 * PATIENCE);
        drop(sender);
    }
}

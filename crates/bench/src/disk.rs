//! Files that stand for disks, and the disk below them.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::process::Deadline;
use crate::{BenchError, Res};

/// Makes a file of `bytes` that all have been written once, as on a disk: what is
/// measured is not how the file system below finds room for a sparse file.
pub fn make(path: &Path, bytes: u64, deadline: &Deadline) -> Res<()> {
    let at = |error: std::io::Error| {
        BenchError(format!("{}: {}: {error}", deadline.step(), path.display()))
    };
    let mut file = File::create(path).map_err(at)?;
    let piece = vec![0x11u8; 4 << 20];
    let mut left = bytes;
    while left > 0 {
        deadline.check()?;
        let now = left.min(piece.len() as u64);
        file.write_all(&piece[..now as usize]).map_err(at)?;
        left -= now;
    }
    file.sync_all().map_err(at)
}

/// Flushes that the disk below `dir` has done; none if nobody counts them.
#[derive(Clone, Debug)]
pub struct Flushes {
    device: Option<String>,
}

/// Place of the count of flushes in a line of /proc/diskstats.
const FLUSHES: usize = 18;

impl Flushes {
    /// Of the disk that `dir` lies on.
    pub fn below(dir: &Path) -> Flushes {
        let device = std::fs::metadata(dir).ok().and_then(|metadata| {
            let number = metadata.dev();
            let name = format!("{}:{}", libc::major(number), libc::minor(number));
            let sys = Path::new("/sys/dev/block").join(&name);
            if sys.join("partition").exists() {
                // Flushes are counted for whole disks only.
                let whole = std::fs::read_to_string(sys.join("../dev")).ok()?;
                return Some(whole.trim().to_owned());
            }
            sys.exists().then_some(name)
        });
        Flushes { device }
    }

    /// How many there were since the machine started.
    pub fn count(&self) -> Option<u64> {
        let (major, minor) = self.device.as_ref()?.split_once(':')?;
        let table = std::fs::read_to_string("/proc/diskstats").ok()?;
        table.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let found = fields.first() == Some(&major) && fields.get(1) == Some(&minor);
            found.then(|| fields.get(FLUSHES)?.parse().ok())?
        })
    }
}

//! A sparse file with a metadata store, for what is measured within this process.
//!
//! Invariants:
//! - the store is the one that the server uses, on its production disk;
//! - processor time is that of the whole process, kernel included, so that it says on a busy
//!   machine, too, what the work costs; clock times say that only on a quiet one;
//! - the file goes with its [`Image`], also after an error.

use std::path::{Path, PathBuf};

use env::{Disk, DiskOptions, DriverKind, Env};
use mfs::SlotFeatures;
use mfs::journal::Disks;
use mfs::{Cost, Features, FormatOptions, Mfs, SlotSize, Stop, StoreError};
use serde::Serialize;
use types::limits::BLOCK_U64;
use types::{Attr, Fault, FileKind, Ino, Instant, Uuid};

use crate::layouts::bed::broken;
use crate::layouts::caller::{name, new_inode};
use bench::{BenchError, Res, failed};

/// Name of the file systems.
pub const NAME: &str = "bench";
/// Slots for each file, and further bytes of the device.
const EACH_SLOTS: u64 = 2;
const REST: u64 = 1 << 30;

/// What one stage took.
#[derive(Clone, Copy, Default, Serialize, Debug)]
pub struct Took {
    /// Seconds by the clock.
    pub seconds: f64,
    /// Seconds of processor time.
    pub processor: f64,
}

/// A file that goes with this value.
pub struct Image {
    path: PathBuf,
    journal: Option<PathBuf>,
    log_bytes: u64,
    slots: SlotSize,
}

impl Image {
    /// Makes one in `dir` for so many files.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(dir: &Path, what: &str, log_bytes: u64, files: u64, slots: SlotSize) -> Res<Image> {
        let path = dir.join(format!("redbud-{what}-{}.img", std::process::id()));
        let bytes = log_bytes + REST + files * EACH_SLOTS * slots.share() as u64;
        let made = std::fs::File::create(&path);
        let image = Image { path, journal: None, log_bytes, slots };
        made.and_then(|file| file.set_len(bytes)).map_err(|error| image.wrong(&error))?;
        Ok(image)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the log into a file of its own beside it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn with_journal(mut self) -> Res<Image> {
        let path = self.path.with_extension("journal");
        let made = std::fs::File::create(&path);
        self.journal = Some(path);
        let bytes = self.log_bytes + 4 * BLOCK_U64;
        made.and_then(|file| file.set_len(bytes)).map_err(|error| self.wrong(&error))?;
        Ok(self)
    }

    fn wrong(&self, error: &std::io::Error) -> BenchError {
        BenchError(format!("{}: {error}", self.path.display()))
    }

    /// Runs a stage with the disks, in a world of its own.
    ///
    /// # Errors
    /// Those of the stage.
    pub fn staged<T: 'static, F: Future<Output = Res<T>>>(
        &self,
        stage: impl FnOnce(Env, Disks) -> F,
    ) -> Res<T> {
        let ran = env::run(DriverKind::Auto, |env| async move {
            let home = self.open(&env, &self.path).await?;
            let log = match &self.journal {
                Some(path) => Some(self.open(&env, path).await?),
                None => None,
            };
            stage(env, Disks { home, log }).await
        });
        ran.map_err(|error| BenchError(format!("running the store: {error}"))).flatten()
    }

    async fn open(&self, env: &Env, path: &Path) -> Res<Disk> {
        let options = DiskOptions { write: true, exclusive: false };
        let disk = env.open_disk(&path.display().to_string(), options).await;
        disk.map_err(|error| self.wrong(&error))
    }

    /// As a store is formatted that lies there.
    pub fn format(&self) -> FormatOptions {
        FormatOptions {
            name: NAME.to_owned(),
            uuid: Uuid([0x4d; 16]),
            log_bytes: self.log_bytes,
            pags: Vec::new(),
            features: Features::NONE.with_slots(self.slots),
            force: true,
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        for path in std::iter::once(&self.path).chain(&self.journal) {
            if let Err(error) = std::fs::remove_file(path) {
                bench::tell(&format!("repro: {} is left: {error}", path.display()));
            }
        }
    }
}

/// The clocks at the begin of a stage.
pub struct Clocks {
    env: Env,
    begin: Instant,
    processor: f64,
}

impl Clocks {
    /// Starts them.
    pub fn begin(env: &Env) -> Clocks {
        Clocks { env: env.clone(), begin: env.now(), processor: processor() }
    }

    /// What it took since.
    pub fn took(&self) -> Took {
        let seconds = self.env.now().since(self.begin).as_secs_f64();
        Took { seconds, processor: processor() - self.processor }
    }
}

/// Seconds of processor time of this process.
fn processor() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Makes so many directories under the root, and makes them durable.
///
/// # Errors
/// Those of the store.
pub async fn directories(env: &Env, mfs: &Mfs, count: u64) -> Res<Vec<Ino>> {
    let wrong = |error: StoreError| broken("making directories", &error);
    let mut dirs = Vec::new();
    for n in 0..count {
        let new = new_inode(FileKind::Directory, env.wall());
        let made = mfs.run(Cost::SMALL, |txn| {
            let root = txn.names().attr(Ino::ROOT)?.ok_or(Stop::Fault(Fault::Stale))?;
            txn.names().set_attr(&Attr { nlink: root.nlink + 1, ..root })?;
            txn.names().create(Ino::ROOT, &name(&format!("directory{n:05}"))?, &new, None)
        });
        dirs.push(made.await.map_err(wrong)?.0);
    }
    mfs.sync().await.map_err(wrong)?;
    Ok(dirs)
}

/// Is there such a directory?
///
/// # Errors
/// There is not.
pub fn check_dir(dir: &Path) -> Res<()> {
    if dir.is_dir() { Ok(()) } else { failed("looking for the directory", dir.display()) }
}

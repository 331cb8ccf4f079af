//! The contenders, each ready to be worked on.
//!
//! - Redbud: a metadata server and a client, processes of this program, on disks that
//!   are files of the directory, written over once before they are formatted;
//! - objects: Redbud once more, with object targets on such disks instead of data disks;
//! - the null mount: a process of this program that answers from memory (see [`crate::null`]);
//! - ext4, or what else the directory lies on: a directory beside them. If the disks are loop
//!   devices, it is ext4 on a loop device of its own;
//! - the raw device: a file like Redbud's data disks, read and written with O_DIRECT.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::barrier::once;
use crate::disk::{self, Flushes};
use crate::loops::{Loops, Throttle};
use crate::observe::Usage;
use crate::process::{self, Deadline, Process, Tools};
use crate::redbud::{Content, Redbud};
use crate::worker::Job;
use crate::{BenchError, Res, failed};

/// Prefix of the directory that a benchmark works in.
const PREFIX: &str = "redbud-bench-";
/// Mount points in it: that of ext4, the last one, may be a directory.
const MOUNTS: [&str; 4] = ["mnt-redbud", "mnt-objects", "mnt-null", "ext4"];
/// Directories that this process has made.
static ROOTS: AtomicUsize = AtomicUsize::new(0);

/// The contenders that are measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Redbud's mount, with content on data disks.
    Redbud,
    /// Redbud's mount of another file system, with content at object targets.
    Objects,
    /// A mount that keeps no data and asks nobody.
    Null,
    /// The local file system that the disks lie on.
    Ext4,
    /// A disk without a file system.
    Raw,
}

impl Kind {
    /// All, in the order of their columns.
    pub const ALL: [Kind; 5] = [Kind::Redbud, Kind::Objects, Kind::Null, Kind::Ext4, Kind::Raw];

    /// Is it a mount by this program?
    pub fn is_fuse(self) -> bool {
        matches!(self, Kind::Redbud | Kind::Objects | Kind::Null)
    }

    /// Its name.
    pub fn text(self) -> &'static str {
        match self {
            Kind::Redbud => "redbud",
            Kind::Objects => "objects",
            Kind::Null => "null",
            Kind::Ext4 => "ext4",
            Kind::Raw => "raw",
        }
    }
}

/// How the contenders are set up.
#[derive(Clone, Debug)]
pub struct SetUp {
    /// The `redbud` binary.
    pub program: PathBuf,
    /// Directory on the disk that is measured.
    pub dir: PathBuf,
    /// Data disks of Redbud, and object targets of the contender that has these instead.
    pub disks: usize,
    /// Bytes of each of them, and of the raw one.
    pub disk_bytes: u64,
    /// Loop devices stand for all disks, bounded so but for the metadata's, and ext4 has one;
    /// `None`: files are disks.
    pub loops: Option<Throttle>,
    /// Bytes of the metadata disk.
    pub metadata_bytes: u64,
    /// Longest time of one step.
    pub limit: Duration,
    /// Does the null mount write what it is given to a disk of its own, past the page cache?
    pub null_writes: bool,
    /// Do requests reach the mounts over io_uring?
    pub uring: bool,
    /// Does Redbud's client reach its server as from another host? Else by a Unix socket.
    pub tcp: Option<Tcp>,
    /// Which contenders are wanted.
    pub kinds: Vec<Kind>,
}

/// How a client reaches its server by TCP.
#[derive(Clone, Debug)]
pub struct Tcp {
    /// `encrypted`, `greeting` or `none`, as in the cluster's file.
    pub security: String,
    /// Makes the keys in a directory; returns the lines of the cluster's file that name them.
    pub keys: fn(&Path) -> Result<String, String>,
}

/// All contenders, in a directory of their own that goes with this value.
pub struct Field {
    /// How steps are run.
    pub tools: Tools,
    /// Counts what the disk below does.
    pub flushes: Flushes,
    redbud: Option<Redbud>,
    objects: Option<Redbud>,
    null: Option<Null>,
    // Last: processes go before their devices, and these before their files.
    raw: Vec<PathBuf>,
    loops: Option<Loops>,
    ext4: Option<Ext4>,
    _root: Root,
}

impl Field {
    /// Makes and starts them.
    ///
    /// # Errors
    /// The step that failed and why.
    pub fn set_up(what: &SetUp) -> Res<Field> {
        let root = Root::make(&what.dir)?;
        let tools =
            Tools { program: what.program.clone(), logs: root.0.clone(), limit: what.limit };
        let flushes = Flushes::below(&root.0);
        let loops = what.loops.map(Loops::new).transpose()?;
        let mut field = Field {
            tools,
            flushes,
            redbud: None,
            objects: None,
            null: None,
            raw: Vec::new(),
            loops,
            ext4: None,
            _root: root,
        };
        for kind in &what.kinds {
            field.start(what, *kind)?;
        }
        Ok(field)
    }

    /// Makes and starts one of them.
    fn start(&mut self, what: &SetUp, kind: Kind) -> Res<()> {
        match kind {
            Kind::Redbud => {
                let content = Content::Disks(self.disks("data", what.disks, what.disk_bytes)?);
                let metadata = self.disk("metadata.img", what.metadata_bytes, false)?;
                self.redbud = Some(Redbud::start(&self.tools, what, &metadata, &content)?);
            }
            Kind::Objects => {
                let content = Content::Targets(self.disks("ost", what.disks, what.disk_bytes)?);
                let metadata = self.disk("metadata-objects.img", what.metadata_bytes, false)?;
                self.objects = Some(Redbud::start(&self.tools, what, &metadata, &content)?);
            }
            Kind::Null => {
                let disk = match what.null_writes {
                    true => self.disks("null", 1, what.disk_bytes)?.pop(),
                    false => None,
                };
                self.null = Some(Null::start(&self.tools, what.uring, disk)?);
            }
            Kind::Ext4 => {
                let place = self.place(Kind::Ext4);
                once(&self.tools, "making a directory", Job::MakeDir(place.clone()))?;
                if self.loops.is_some() {
                    let disks = self.disks("ext4-", 1, what.disk_bytes)?;
                    self.ext4 = Some(Ext4::start(&self.tools, &disks, place)?);
                }
            }
            Kind::Raw => {
                let count = if self.loops.is_some() { what.disks } else { 1 };
                self.raw = self.disks("raw", count, what.disk_bytes)?;
            }
        }
        Ok(())
    }

    /// Where a contender is: a directory, or for the raw disk its file.
    pub fn place(&self, kind: Kind) -> PathBuf {
        match kind {
            Kind::Redbud => self.tools.logs.join("mnt-redbud"),
            Kind::Objects => self.tools.logs.join("mnt-objects"),
            Kind::Null => self.tools.logs.join("mnt-null"),
            Kind::Ext4 => self.tools.logs.join("ext4"),
            Kind::Raw => self.raw.first().cloned().unwrap_or_default(),
        }
    }

    /// The raw disks: as many as Redbud has, if they are loop devices.
    pub fn raw_disks(&self) -> &[PathBuf] {
        &self.raw
    }

    /// Makes disks, bounded if that is asked for.
    fn disks(&mut self, name: &str, count: usize, bytes: u64) -> Res<Vec<PathBuf>> {
        (0..count).map(|number| self.disk(&format!("{name}{number}.img"), bytes, true)).collect()
    }

    /// Makes a disk, the file of this name or a loop device that stands for it.
    fn disk(&mut self, name: &str, bytes: u64, bounded: bool) -> Res<PathBuf> {
        let file = self.tools.logs.join(name);
        let deadline = Deadline::new(format!("filling the disk {name}"), self.tools.limit);
        disk::make(&file, bytes, &deadline)?;
        match &mut self.loops {
            Some(loops) => loops.attach(&file, bounded),
            None => Ok(file),
        }
    }

    /// A contender's processes have used this much: those of the mount, of the metadata server, and
    /// of the object targets.
    pub fn usage(&self, kind: Kind) -> [Usage; 3] {
        self.pids(kind).map(|pid| pid.map(Usage::of).unwrap_or_default())
    }

    /// Processes of a contender: of its mount, of its metadata server, and of its object targets.
    pub fn pids(&self, kind: Kind) -> [Option<u32>; 3] {
        match kind {
            Kind::Redbud | Kind::Objects => {
                self.cluster(kind).map(Redbud::pids).unwrap_or_default()
            }
            Kind::Null => [self.null.as_ref().map(|null| null.server.pid()), None, None],
            Kind::Ext4 | Kind::Raw => [None; 3],
        }
    }

    /// The cluster that this contender is; `None`: it is none.
    fn cluster(&self, kind: Kind) -> Option<&Redbud> {
        match kind {
            Kind::Redbud => self.redbud.as_ref(),
            Kind::Objects => self.objects.as_ref(),
            Kind::Null | Kind::Ext4 | Kind::Raw => None,
        }
    }

    /// Has this contender the counters of requests?
    pub fn counts_requests(&self, kind: Kind) -> bool {
        kind.is_fuse()
    }

    /// Everything is written, so that a contender's work does not fall into another's turn.
    pub fn settle(&self, kind: Kind) -> Res<()> {
        if kind != Kind::Raw {
            self.sync(kind)?;
        }
        Ok(())
    }

    /// Makes all durable that was written. Returns how many nanoseconds that took.
    pub fn sync(&self, kind: Kind) -> Res<u64> {
        let (step, place) = (format!("settling {}", kind.text()), self.place(kind));
        if self.cluster(kind).is_none() {
            return Ok(once(&self.tools, &step, Job::Sync(place))?.nanos);
        }
        // syncfs(2) does not reach a FUSE file system.
        let begun = Instant::now();
        process::run(&self.tools, &step, &[OsStr::new("sync"), place.as_os_str()])?;
        Ok(begun.elapsed().as_nanos() as u64)
    }

    /// Nothing is cached any more: Redbud's client starts anew, and the kernel drops
    /// pages, names and inodes of all. (The null mount keeps its names in its memory;
    /// what the kernel knew of them is dropped as for the others.)
    pub fn refresh(&mut self, kind: Kind) -> Res<()> {
        self.refresh_with(kind, "")
    }

    /// As [`Field::refresh`]; Redbud's client has `more` options, each behind a comma.
    pub fn refresh_with(&mut self, kind: Kind, more: &str) -> Res<()> {
        let cluster = match kind {
            Kind::Redbud => self.redbud.as_mut(),
            Kind::Objects => self.objects.as_mut(),
            Kind::Null | Kind::Ext4 | Kind::Raw => None,
        };
        if let Some(cluster) = cluster {
            cluster.remount(&self.tools, more)?;
        }
        once(&self.tools, "dropping the kernel's caches", Job::DropCaches)?;
        Ok(())
    }

    /// Stops everything in order and removes it.
    ///
    /// # Errors
    /// The first part that did not stop well.
    pub fn tear_down(mut self) -> Res<()> {
        let null = self.null.take().map_or(Ok(()), |null| null.stop(&self.tools));
        let clusters = [self.redbud.take(), self.objects.take()].into_iter().flatten();
        let ends: Vec<Res<()>> = clusters.map(|cluster| cluster.stop(&self.tools)).collect();
        let ext4 = self.ext4.take().map_or(Ok(()), |ext4| ext4.stop(&self.tools));
        ends.into_iter().chain([null, ext4]).collect()
    }
}

/// The directory of a benchmark.
struct Root(PathBuf);

impl Root {
    /// A new one in `dir`; those of benchmarks that were killed are removed.
    fn make(dir: &Path) -> Res<Root> {
        let step = "making the benchmark's directory";
        let at = |error: std::io::Error| BenchError(format!("{step}: {}: {error}", dir.display()));
        std::fs::create_dir_all(dir).map_err(at)?;
        let dir = dir.canonicalize().map_err(at)?;
        for entry in std::fs::read_dir(&dir).map_err(at)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                drop(Root(entry.path()));
            }
        }
        let number = ROOTS.fetch_add(1, Ordering::Relaxed);
        let root = dir.join(format!("{PREFIX}{}-{number}", std::process::id()));
        std::fs::create_dir(&root).map_err(at)?;
        Ok(Root(root))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for mount in MOUNTS {
            let mount = self.0.join(mount);
            if fuse::mount::device_number(&mount).is_some() {
                // Its server is gone or going: taken away without asking it.
                drop(fuse::unmount(&mount, true));
            }
            // It holds nothing, or is still mounted, or is ext4's directory: never what is below.
            drop(std::fs::remove_dir(&mount));
        }
        let [fuse @ .., ext4] = MOUNTS.map(|mount| self.0.join(mount));
        let is_left = |mount: &PathBuf| mount.exists();
        if fuse.iter().any(is_left) || fuse::mount::device_number(&ext4).is_some() {
            crate::tell(&format!(
                "redbud bench: {} is left: a mount in it is in use",
                self.0.display()
            ));
        } else if let Err(error) = std::fs::remove_dir_all(&self.0) {
            crate::tell(&format!("redbud bench: {} is left: {error}", self.0.display()));
        }
    }
}

/// Arguments of a command.
pub(crate) fn words<'a>(list: &'a [&'a str]) -> Vec<&'a OsStr> {
    list.iter().map(OsStr::new).collect()
}

/// Makes a mount point.
pub(crate) fn make_dir(path: &Path) -> Res<()> {
    std::fs::create_dir(path)
        .or_else(|error| failed("making a mount point", format!("{}: {error}", path.display())))
}

struct Null {
    server: Process,
    mount: PathBuf,
}

impl Null {
    fn start(tools: &Tools, uring: bool, disk: Option<PathBuf>) -> Res<Null> {
        let mount = tools.logs.join("mnt-null");
        make_dir(&mount)?;
        let mut arguments = words(&["bench", "null"]);
        if uring {
            arguments.push(OsStr::new("--uring"));
        }
        if let Some(disk) = &disk {
            arguments.extend([OsStr::new("--disk"), disk.as_os_str()]);
        }
        arguments.extend([OsStr::new("--"), mount.as_os_str()]);
        Ok(Null { server: Process::serve(tools, "null", &arguments)?, mount })
    }

    fn stop(self, tools: &Tools) -> Res<()> {
        once(tools, "unmounting the null mount", Job::Unmount(self.mount))?;
        self.server.wait(&Deadline::new("waiting for the null mount to end", tools.limit))
    }
}

/// ext4 on a loop device, with its journal on the same.
struct Ext4 {
    mount: PathBuf,
}

impl Ext4 {
    /// Formats the device and mounts it there. Its tables are written before.
    fn start(tools: &Tools, disks: &[PathBuf], mount: PathBuf) -> Res<Ext4> {
        let tables = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let format = ["-q", "-F", "-b", "4096", "-E", tables];
        let format = words(&format);
        let disks: Vec<&OsStr> = disks.iter().map(|disk| disk.as_os_str()).collect();
        command(tools, "mkfs.ext4", &[&format[..], &disks].concat())?;
        let options = words(&["-t", "ext4", "-o", "noatime"]);
        let ext4 = Ext4 { mount: mount.clone() };
        command(tools, "mount", &[&options[..], &disks, &[mount.as_os_str()]].concat())?;
        Ok(ext4)
    }

    fn stop(self, tools: &Tools) -> Res<()> {
        once(tools, "unmounting ext4", Job::Unmount(self.mount)).map(drop)
    }
}

/// Runs another program to its end.
fn command(tools: &Tools, program: &str, arguments: &[&OsStr]) -> Res<()> {
    let tools = Tools { program: program.into(), ..tools.clone() };
    process::run(&tools, program, arguments)
}

//! On loop devices of this machine: the layouts' stores, and the kernel's ext4.
//!
//! Invariants:
//! - accesses are the kernel's own count of the requests that a loop device got, after merging
//!   (`/sys/block/loopN/stat`); ext4's journal lies on a second device, so that it is counted
//!   apart, and that of a store is part of its writes;
//! - ext4 has groups as ext3 has them (no `flex_bg`), inodes of 256 bytes, one for each 16 KiB, and
//!   tables that are not written beforehand; it is mounted anew before each stage, and unmounted at
//!   its end;
//! - whatever is mounted or attached is taken away when this ends, also after an error.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use env::{DriverKind, Env};

use super::bed::{Bed, dir_name};
use super::{Contender, Counts, Measured, Played, Settings};
use bench::barrier::{StartBarrier, once};
use bench::process::{self, Tools};
use bench::worker::Job;
use bench::{BenchError, Res, failed};

/// Bytes that the kernel counts as one sector.
const SECTOR: u64 = 512;

/// What loop devices need.
#[derive(Clone, Debug)]
pub struct Ground {
    /// Directory for their images.
    pub dir: PathBuf,
    /// This program, which plays the processes on ext4.
    pub program: PathBuf,
    /// Longest time of one step.
    pub limit: Duration,
}

/// The directory that images, logs and the mount point lie in.
pub struct Yard {
    tools: Tools,
}

impl Yard {
    /// Made in the ground's directory; goes with this value. From now on an interrupt ends waits.
    pub fn make(ground: &Ground) -> Res<Yard> {
        process::catch_interrupts();
        let root = ground.dir.join(format!("redbud-repro-{}", std::process::id()));
        std::fs::create_dir_all(root.join("mnt")).or_else(|error| {
            failed("making the directory", format!("{}: {error}", root.display()))
        })?;
        let program = ground.program.clone();
        Ok(Yard { tools: Tools { program, logs: root, limit: ground.limit } })
    }

    fn mount_point(&self) -> PathBuf {
        self.tools.logs.join("mnt")
    }

    fn drop_caches(&self) -> Res<()> {
        once(&self.tools, "dropping the kernel's caches", Job::DropCaches).map(drop)
    }

    /// Runs another program to its end.
    fn command(&self, program: &str, arguments: &[&OsStr]) -> Res<()> {
        let tools = Tools { program: program.into(), ..self.tools.clone() };
        process::run(&tools, program, arguments)
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        let mount = self.mount_point();
        drop(Command::new("umount").arg(&mount).stderr(Stdio::null()).status());
        if std::fs::remove_dir(&mount).is_err() {
            bench::tell(&format!(
                "repro: {} is left: its mount is in use",
                self.tools.logs.display()
            ));
        } else if let Err(error) = std::fs::remove_dir_all(&self.tools.logs) {
            bench::tell(&format!("repro: {} is left: {error}", self.tools.logs.display()));
        }
    }
}

/// A loop device on an image; both go with this value.
struct Loop {
    device: String,
    image: PathBuf,
}

impl Loop {
    /// Of a new sparse image.
    fn attach(yard: &Yard, name: &str, bytes: u64) -> Res<Loop> {
        let step = "attaching a loop device";
        let image = yard.tools.logs.join(name);
        let at =
            |error: std::io::Error| BenchError(format!("{step}: {}: {error}", image.display()));
        std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).map_err(at)?;
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let output = output.map_err(at)?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return failed(step, format!("losetup: {why}"));
        }
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Loop { device, image })
    }

    /// Reads, their bytes, writes, their bytes, flushes.
    fn stat(&self) -> Res<[u64; 5]> {
        let name = self.device.trim_start_matches("/dev/");
        let path = format!("/sys/block/{name}/stat");
        let text = std::fs::read_to_string(&path)
            .map_err(|error| BenchError(format!("{path}: {error}")))?;
        let fields: Vec<u64> =
            text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let of = |at: usize| fields.get(at).copied().unwrap_or(0);
        Ok([of(0), of(2) * SECTOR, of(4), of(6) * SECTOR, of(15)])
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.device]).status();
        if !detached.is_ok_and(|status| status.success()) {
            bench::tell(&format!("repro: {} is left attached", self.device));
        }
        if let Err(error) = std::fs::remove_file(&self.image) {
            bench::tell(&format!("repro: {} is left: {error}", self.image.display()));
        }
    }
}

/// A store of a layout on a loop device. Real time passes by itself, and computing costs what it
/// costs.
pub struct Store<'a> {
    yard: &'a Yard,
    device: Loop,
    bed: Bed,
}

/// Runs what a store does.
fn on_store<T, F: Future<Output = Res<T>>>(work: impl FnOnce(Env) -> F) -> Res<T> {
    let broken = |error: std::io::Error| BenchError(format!("running a store: {error}"));
    env::run(DriverKind::Auto, work).map_err(broken)?
}

impl<'a> Store<'a> {
    /// Formats it, with a directory for each of so many processes.
    pub fn new(yard: &'a Yard, contender: Contender, settings: Settings, dirs: u64) -> Res<Self> {
        let device = Loop::attach(yard, "store.img", settings.device_bytes)?;
        let settings = Settings { message: types::Duration::ZERO, price: None, ..settings };
        let bed = Bed { path: device.device.clone(), contender, settings };
        let prepared = bed.clone();
        on_store(|env| async move { prepared.prepare(&env, dirs).await })?;
        Ok(Store { yard, device, bed })
    }

    /// The store.
    pub fn bed(&self) -> &Bed {
        &self.bed
    }

    /// Does a stage, with nothing cached, and tells what it took.
    pub fn stage<W: Played>(&self, workload: &W, stage: W::Stage) -> Res<Measured> {
        let before = RefCell::new(Ok([0; 5]));
        let opened = || *before.borrow_mut() = self.device.stat();
        let bed = &self.bed;
        let done =
            self.alone(|env| async move { bed.stage(&env, workload, stage, opened).await })?;
        let (before, after) = (before.into_inner()?, self.device.stat()?);
        let counts = counts(&before, &after, &[0; 5], &[0; 5]);
        Ok(Measured {
            ops: done.ops,
            answered: done.answered.as_nanos() as u64,
            settled: done.settled.as_nanos() as u64,
            processor: None,
            counts: Counts { log_bytes: done.log_bytes, ..counts },
        })
    }

    /// Does something with the store, of which nothing is cached.
    pub fn alone<T, F: Future<Output = Res<T>>>(&self, work: impl FnOnce(Env) -> F) -> Res<T> {
        self.yard.drop_caches()?;
        on_store(work)
    }
}

fn counts(before: &[u64; 5], after: &[u64; 5], log: &[u64; 5], log_after: &[u64; 5]) -> Counts {
    Counts {
        reads: after[0] - before[0],
        read_bytes: after[1] - before[1],
        home: after[2] - before[2],
        home_bytes: after[3] - before[3],
        log: log_after[2] - log[2],
        log_bytes: log_after[3] - log[3],
        flushes: after[4] - before[4] + log_after[4] - log[4],
        ..Counts::default()
    }
}

/// ext4 on a loop device, its journal on another.
pub struct Ext4<'a> {
    yard: &'a Yard,
    device: Loop,
    journal: Loop,
    settings: Settings,
}

impl<'a> Ext4<'a> {
    /// Formats it, with a directory for each of so many processes.
    pub fn new(yard: &'a Yard, contender: Contender, settings: Settings, dirs: u64) -> Res<Self> {
        let device = Loop::attach(yard, "ext4.img", settings.device_bytes)?;
        let journal = Loop::attach(yard, "journal.img", settings.log_bytes)?;
        let ext4 = Ext4 { yard, device, journal, settings };
        ext4.format(contender)?;
        ext4.mount()?;
        for number in 0..dirs {
            let dir = ext4.dir(number);
            std::fs::create_dir(&dir).or_else(|error| {
                failed("making a directory", format!("{}: {error}", dir.display()))
            })?;
        }
        ext4.unmount()?;
        Ok(ext4)
    }

    fn dir(&self, number: u64) -> PathBuf {
        self.yard.mount_point().join(dir_name(number))
    }

    fn format(&self, contender: Contender) -> Res<()> {
        let journal = [OsStr::new(&self.journal.device)];
        let words = |text: &'static str| text.split(' ').map(OsStr::new).collect::<Vec<_>>();
        let make = words("-q -F -b 4096 -O journal_dev");
        self.yard.command("mke2fs", &[&make[..], &journal].concat())?;
        let features = match contender {
            Contender::Ext4Hashed => "^flex_bg,dir_index",
            _ => "^flex_bg,^dir_index",
        };
        let external = format!("device={}", self.journal.device);
        let mut arguments =
            words("-q -F -b 4096 -I 256 -i 16384 -E lazy_itable_init=1,nodiscard -O");
        arguments.extend([OsStr::new(features), OsStr::new("-J"), OsStr::new(&external)]);
        arguments.push(OsStr::new(&self.device.device));
        self.yard.command("mkfs.ext4", &arguments)
    }

    fn mount(&self) -> Res<()> {
        let options =
            format!("noatime,noinit_itable,commit={}", self.settings.commit.as_secs().max(1));
        let point = self.yard.mount_point();
        let arguments = [OsStr::new("-t"), OsStr::new("ext4"), OsStr::new("-o")];
        let what = [OsStr::new(&options), OsStr::new(&self.device.device), point.as_os_str()];
        self.yard.command("mount", &[&arguments[..], &what].concat())
    }

    fn unmount(&self) -> Res<()> {
        self.yard.command("umount", &[self.yard.mount_point().as_os_str()])
    }

    /// Does a stage, with nothing cached, and tells what it took.
    pub fn stage<W: Played>(&self, workload: &W, stage: W::Stage) -> Res<Measured> {
        self.yard.drop_caches()?;
        self.mount()?;
        let before = (self.device.stat()?, self.journal.stat()?);
        let job = |number| workload.job(stage, number, self.dir(number));
        let jobs = (0..workload.processes()).map(job).collect();
        let finished = StartBarrier::ready(&self.yard.tools, "a stage on ext4", jobs)?.start()?;
        let begin = std::time::Instant::now();
        self.unmount()?;
        let settled = finished.nanos + begin.elapsed().as_nanos() as u64;
        let after = (self.device.stat()?, self.journal.stat()?);
        let counts = counts(&before.0, &after.0, &before.1, &after.1);
        let (ops, answered) = (finished.ops, finished.nanos);
        Ok(Measured { ops, answered, settled, processor: None, counts })
    }
}

//! On loop devices of this machine: the same layouts, and the kernel's ext4.
//!
//! Invariants:
//! - accesses are the kernel's own count of the requests that a loop device got, after merging
//!   (`/sys/block/loopN/stat`); ext4's journal lies on a second device, so that it is counted apart, and
//!   that of a store is part of its writes;
//! - ext4 has groups as ext3 has them (no `flex_bg`), inodes of 256 bytes, one for each 16 KiB, and
//!   tables that are not written beforehand; it is mounted anew before each phase, and unmounted at its end;
//! - whatever is mounted or attached is taken away when this ends, also after an error.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use env::DriverKind;

use super::processes::{Processes, fill_log};
use super::{Phase, Place, Plan, Redo, Run, Shape, Work, told};
use crate::crowd::{Crowd, once};
use crate::layouts::bed::{Bed, dir_name};
use crate::layouts::{Contender, Counts, Measured, Settings};
use crate::process::{self, Tools};
use crate::worker::{Job, Names};
use crate::{BenchError, Res, failed};

/// Bytes that the kernel counts as one sector.
const SECTOR: u64 = 512;

/// All phases of all layouts and of ext4.
pub fn run(plan: &Plan, dir: &Path, shape: Shape, progress: &mut dyn FnMut(&str)) -> Res<Vec<Run>> {
    process::catch_interrupts();
    let yard = Yard::make(plan, dir)?;
    let mut runs = Vec::new();
    for contender in Contender::STORES {
        let device = Loop::attach(&yard, "store.img", shape.settings.device_bytes)?;
        runs.push(store(&yard, &device, contender, shape, progress)?);
    }
    for contender in [Contender::Ext4Linear, Contender::Ext4Hashed] {
        let device = Loop::attach(&yard, "ext4.img", shape.settings.device_bytes)?;
        let journal = Loop::attach(&yard, "journal.img", shape.settings.log_bytes)?;
        let ext4 = Ext4 { yard: &yard, device: &device, journal: &journal, shape };
        runs.push(ext4.run(contender, progress)?);
    }
    Ok(runs)
}

/// The directory that images, logs and the mount point lie in.
struct Yard {
    tools: Tools,
}

impl Yard {
    fn make(plan: &Plan, dir: &Path) -> Res<Yard> {
        let root = dir.join(format!("redbud-metarates-{}", std::process::id()));
        std::fs::create_dir_all(root.join("mnt")).or_else(|error| {
            failed("making the directory", format!("{}: {error}", root.display()))
        })?;
        let program = plan.program.clone();
        Ok(Yard { tools: Tools { program, logs: root, limit: plan.limit } })
    }

    fn mount_point(&self) -> PathBuf {
        self.tools.logs.join("mnt")
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
            eprintln!("redbud bench: {} is left: its mount is in use", self.tools.logs.display());
        } else if let Err(error) = std::fs::remove_dir_all(&self.tools.logs) {
            eprintln!("redbud bench: {} is left: {error}", self.tools.logs.display());
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
            eprintln!("redbud bench: {} is left attached", self.device);
        }
        if let Err(error) = std::fs::remove_file(&self.image) {
            eprintln!("redbud bench: {} is left: {error}", self.image.display());
        }
    }
}

const ON: &str = "loop devices";

/// All phases of a layout on a store.
fn store(
    yard: &Yard,
    device: &Loop,
    contender: Contender,
    shape: Shape,
    progress: &mut dyn FnMut(&str),
) -> Res<Run> {
    // Real time passes by itself, and computing costs what it costs.
    let settings = Settings { message: types::Duration::ZERO, price: None, ..shape.settings };
    let shape = Shape { settings, ..shape };
    let bed = Bed { path: device.device.clone(), contender, settings };
    let broken = |error: std::io::Error| BenchError(format!("running a store: {error}"));
    let (prepared, dirs) = (bed.clone(), shape.tasks());
    env::run(DriverKind::Auto, |env| async move { prepared.prepare(&env, dirs).await })
        .map_err(broken)??;
    let mut phases = Vec::new();
    for work in Work::ALL {
        once(&yard.tools, "dropping the kernel's caches", Job::DropCaches)?;
        let bed = bed.clone();
        let before = RefCell::new(Ok([0; 5]));
        let opened = || *before.borrow_mut() = device.stat();
        let done = env::run(DriverKind::Auto, |env| async move {
            bed.stage(&env, &Processes(shape), work, opened).await
        })
        .map_err(broken)??;
        let (before, after) = (before.into_inner()?, device.stat()?);
        let log_bytes = done.log_bytes;
        let counts = Counts { log_bytes, ..counts(&before, &after, &[0; 5], &[0; 5]) };
        let took = Measured {
            ops: done.ops,
            answered: done.answered.as_nanos() as u64,
            settled: done.settled.as_nanos() as u64,
            processor: None,
            counts,
        };
        let phase = Phase { work, took };
        progress(&told(ON, shape, contender, &phase));
        phases.push(phase);
    }
    let redo = Some(crash(yard, &bed)?);
    progress(&format!("loop devices, {}: {redo:?}", contender.text()));
    Ok(Run { contender, place: Place::Loop, shape, phases, redo })
}

/// Opens a store that was left with a full log.
fn crash(yard: &Yard, bed: &Bed) -> Res<Redo> {
    let broken = |error: std::io::Error| BenchError(format!("running a store: {error}"));
    let filling = bed.clone();
    let filled = env::run(DriverKind::Auto, |env| async move { fill_log(&filling, &env).await });
    let log_bytes = filled.map_err(broken)??;
    once(&yard.tools, "dropping the kernel's caches", Job::DropCaches)?;
    let opening = bed.clone();
    let opened = env::run(DriverKind::Auto, |env| async move { opening.reopen(&env).await });
    Ok(Redo { log_bytes, nanos: opened.map_err(broken)??.as_nanos() as u64 })
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
struct Ext4<'a> {
    yard: &'a Yard,
    device: &'a Loop,
    journal: &'a Loop,
    shape: Shape,
}

impl Ext4<'_> {
    fn run(&self, contender: Contender, progress: &mut dyn FnMut(&str)) -> Res<Run> {
        self.format(contender)?;
        self.mount()?;
        for number in 0..self.shape.tasks() {
            let dir = self.dir(number);
            std::fs::create_dir(&dir).or_else(|error| {
                failed("making a directory", format!("{}: {error}", dir.display()))
            })?;
        }
        self.unmount()?;
        let mut phases = Vec::new();
        for work in Work::ALL {
            let phase = self.phase(work)?;
            progress(&told(ON, self.shape, contender, &phase));
            phases.push(phase);
        }
        Ok(Run { contender, place: Place::Loop, shape: self.shape, phases, redo: None })
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
            format!("noatime,noinit_itable,commit={}", self.shape.settings.commit.as_secs().max(1));
        let point = self.yard.mount_point();
        let arguments = [OsStr::new("-t"), OsStr::new("ext4"), OsStr::new("-o")];
        let what = [OsStr::new(&options), OsStr::new(&self.device.device), point.as_os_str()];
        self.yard.command("mount", &[&arguments[..], &what].concat())
    }

    fn unmount(&self) -> Res<()> {
        self.yard.command("umount", &[self.yard.mount_point().as_os_str()])
    }

    fn job(&self, work: Work, number: u64) -> Job {
        let dir = self.dir(number);
        let names = Names { dir: dir.clone(), prefix: "file.".into(), count: self.shape.files };
        match work {
            Work::Create => Job::Create(names),
            Work::Utime => Job::Utime(names),
            Work::Readdir => Job::ListNames(dir),
            Work::ReaddirStat => Job::List(dir),
            Work::Delete => Job::Unlink(names),
        }
    }

    fn phase(&self, work: Work) -> Res<Phase> {
        once(&self.yard.tools, "dropping the kernel's caches", Job::DropCaches)?;
        self.mount()?;
        let before = (self.device.stat()?, self.journal.stat()?);
        let jobs = (0..self.shape.tasks()).map(|number| self.job(work, number)).collect();
        let finished = Crowd::ready(&self.yard.tools, work.text(), jobs)?.go()?;
        let begin = std::time::Instant::now();
        self.unmount()?;
        let settled = finished.nanos + begin.elapsed().as_nanos() as u64;
        let after = (self.device.stat()?, self.journal.stat()?);
        let counts = counts(&before.0, &after.0, &before.1, &after.1);
        let (ops, answered) = (finished.ops, finished.nanos);
        Ok(Phase { work, took: Measured { ops, answered, settled, processor: None, counts } })
    }
}

//! Metarates (002 §6.3, 004 §V.D): many processes, each in a directory of its own, create files, change
//! their times, list them, list them with attributes, and delete them.
//!
//! Invariants:
//! - what is compared is where names and inodes lie: the embedded and the traditional layout run on the
//!   same store code, on disks of the same kind ([`library`]); the kernel's ext4 on a loop device shows
//!   whether the traditional layout is a fair picture of the real thing ([`loops`]);
//! - an *access* is a request as the device gets it, after merging; those of the log are counted apart;
//! - every phase begins with nothing cached and ends with everything at home.

mod library;
mod loops;
mod report;
mod virtual_disk;

use std::path::PathBuf;

use serde::Serialize;
use types::Duration;

use crate::Res;

pub use report::{GOALS, Report};

/// A layout on a store, or the kernel's file system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Redbud's embedded directories.
    Embedded,
    /// The traditional layout with linear directories.
    Linear,
    /// The traditional layout with hashed directories.
    Hashed,
    /// The kernel's ext4, groups as in ext3, without `dir_index`.
    Ext4Linear,
    /// The kernel's ext4, groups as in ext3, with `dir_index`.
    Ext4Hashed,
}

impl Contender {
    /// Those that run on the store.
    pub const STORES: [Contender; 3] = [Contender::Embedded, Contender::Linear, Contender::Hashed];

    /// Its name.
    pub fn text(self) -> &'static str {
        match self {
            Contender::Embedded => "embedded",
            Contender::Linear => "traditional",
            Contender::Hashed => "traditional, hashed",
            Contender::Ext4Linear => "ext4",
            Contender::Ext4Hashed => "ext4, hashed",
        }
    }

    /// The file system of the kernel that it is a picture of.
    pub fn real(self) -> Option<Contender> {
        match self {
            Contender::Linear => Some(Contender::Ext4Linear),
            Contender::Hashed => Some(Contender::Ext4Hashed),
            _ => None,
        }
    }
}

/// What all processes do in a phase.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Makes empty files.
    Create,
    /// Sets the times of each, by name.
    Utime,
    /// Lists the names.
    Readdir,
    /// Lists the names with the attributes of each.
    ReaddirStat,
    /// Deletes each.
    Delete,
}

impl Work {
    /// In the order of a run.
    pub const ALL: [Work; 5] =
        [Work::Create, Work::Utime, Work::Readdir, Work::ReaddirStat, Work::Delete];

    /// Its name.
    pub fn text(self) -> &'static str {
        match self {
            Work::Create => "create",
            Work::Utime => "utime",
            Work::Readdir => "readdir",
            Work::ReaddirStat => "readdir-stat",
            Work::Delete => "delete",
        }
    }
}

/// How much is done, and how.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Shape {
    /// Clients.
    pub clients: u64,
    /// Processes of each.
    pub processes: u64,
    /// Files of each process.
    pub files: u64,
    /// Is each change on the disk before the process goes on?
    pub durable: bool,
    /// Age at which changes that nobody waits for are written.
    #[serde(skip)]
    pub commit: Duration,
    /// From an answer to the next request.
    #[serde(skip)]
    pub message: Duration,
    /// Blocks that the store's checkpoint brings home together.
    pub home_batch: usize,
    /// Bytes of the store's cache.
    pub cache_bytes: usize,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of the metadata device.
    pub device_bytes: u64,
}

impl Shape {
    /// Processes of all clients.
    pub fn tasks(&self) -> u64 {
        self.clients * self.processes
    }
}

/// What a device did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Counts {
    /// Reads, after merging.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes outside the log, after merging.
    pub home: u64,
    /// Their bytes.
    pub home_bytes: u64,
    /// Writes of the log, after merging.
    pub log: u64,
    /// Their bytes.
    pub log_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Counts {
    /// What was done since `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            home: self.home - before.home,
            home_bytes: self.home_bytes - before.home_bytes,
            log: self.log - before.log,
            log_bytes: self.log_bytes - before.log_bytes,
            flushes: self.flushes - before.flushes,
        }
    }

    /// Accesses, those of the log not among them.
    pub fn accesses(&self) -> u64 {
        self.reads + self.home
    }
}

/// One phase of one contender.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Phase {
    /// What was done.
    pub work: Work,
    /// Operations; of listings: entries.
    pub ops: u64,
    /// Nanoseconds until the last was answered.
    pub answered: u64,
    /// Nanoseconds until everything was at home.
    pub settled: u64,
    /// What the device did meanwhile.
    pub counts: Counts,
}

impl Phase {
    /// Operations a second, everything brought home.
    pub fn rate(&self) -> f64 {
        self.ops as f64 / (self.settled.max(1) as f64 / 1e9)
    }

    /// Accesses of an operation, those of the log not among them.
    pub fn accesses_each(&self) -> f64 {
        self.counts.accesses() as f64 / self.ops.max(1) as f64
    }
}

/// On what a contender ran.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The papers' disk, in virtual time.
    Virtual,
    /// A loop device of this machine.
    Loop,
}

/// All phases of one contender.
#[derive(Clone, Serialize, Debug)]
pub struct Run {
    /// Who.
    pub contender: Contender,
    /// On what.
    pub place: Place,
    /// How much.
    pub shape: Shape,
    /// In the order of [`Work::ALL`].
    pub phases: Vec<Phase>,
    /// Recovery of a full log, of a store on a loop device.
    pub redo: Option<Redo>,
}

/// An opening after a crash.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Redo {
    /// Bytes of the log that were read.
    pub log_bytes: u64,
    /// Nanoseconds until the store was open, everything at home.
    pub nanos: u64,
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shape, but for `files`.
    pub shape: Shape,
    /// Files of each process: a table for each.
    pub files: Vec<u64>,
    /// Directory for images of loop devices; without it only the virtual disk is used.
    pub dir: Option<PathBuf>,
    /// Longest time of one step on loop devices.
    pub limit: std::time::Duration,
    /// This program, which plays the processes on ext4.
    pub program: PathBuf,
}

/// Measures, telling `progress` each phase.
///
/// # Errors
/// The step that failed and why.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Res<Report> {
    let mut runs = Vec::new();
    for &files in &plan.files {
        let shape = Shape { files, ..plan.shape };
        for contender in Contender::STORES {
            runs.push(virtual_disk::run(contender, shape, progress)?);
        }
        if let Some(dir) = &plan.dir {
            runs.extend(loops::run(plan, dir, shape, progress)?);
        }
    }
    Ok(Report::new(runs))
}

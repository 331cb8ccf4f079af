//! Workloads of names and inodes on the metadata store as a library: the same calls on the embedded
//! and on the traditional layout, so that only where things lie differs between what is compared.
//!
//! Invariants:
//! - an *access* is a request as the device gets it, after merging; those of the log are counted
//!   apart;
//! - a stage begins with a store that was just opened and ends when everything is at home and the
//!   store closed. So no access of a stage falls into another's count, and none begins with a warm
//!   cache;
//! - all layouts get the same calls in the same order.

pub(crate) mod bed;
pub(crate) mod caller;
pub(crate) mod loops;
pub(crate) mod site;
pub(crate) mod virtual_disk;

use std::future::Future;
use std::path::PathBuf;

use env::sim::Price;
use mfs::{DirPlacement, SlotSize, StoreError};
use serde::Serialize;
use types::Duration;

use bench::worker::Job;

pub use caller::Caller;
pub use loops::Ground;

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

    /// The kernel's.
    pub const KERNELS: [Contender; 2] = [Contender::Ext4Linear, Contender::Ext4Hashed];

    /// Its name, as tables print it.
    pub fn text(self) -> &'static str {
        match self {
            Contender::Embedded => "embedded",
            Contender::Linear => "traditional",
            Contender::Hashed => "traditional, hashed",
            Contender::Ext4Linear => "ext4",
            Contender::Ext4Hashed => "ext4, hashed",
        }
    }

    /// The one with this name.
    ///
    /// # Errors
    /// The names that there are.
    pub fn named(text: &str) -> Result<Contender, String> {
        let all = || Contender::STORES.into_iter().chain(Contender::KERNELS);
        all().find(|contender| contender.text() == text).ok_or_else(|| {
            let names: Vec<String> = all().map(|it| format!("\"{}\"", it.text())).collect();
            format!("contenders are {}", names.join(", "))
        })
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

/// On what a contender ran.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The papers' disk, in virtual time.
    Virtual,
    /// A loop device of this machine.
    Loop,
}

impl Place {
    /// Its name.
    pub fn text(self) -> &'static str {
        match self {
            Place::Virtual => "the virtual disk",
            Place::Loop => "loop devices",
        }
    }
}

/// The store that a workload runs on, and how it is called.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Settings {
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
    /// Of traditional layouts: bytes of the device for each inode of its tables.
    #[serde(skip)]
    pub inode_ratio: u64,
    /// Size of directory slots, of the embedded layout.
    #[serde(skip)]
    pub slots: SlotSize,
    /// Where directories begin, of the embedded layout.
    #[serde(skip)]
    pub placement: DirPlacement,
    /// What the server's processor costs, in virtual time; `None`: nothing.
    #[serde(skip)]
    pub price: Option<Price>,
    /// Blocks of the data zone, of which nothing but the accounting is there; 0: none.
    #[serde(skip)]
    pub data_blocks: u64,
}

impl Settings {
    /// The papers' server: every change durable (004 §V.D), on a disk of which the metadata zone
    /// has 64 GiB; a log and a ratio of inodes as ext3 has them.
    pub const PAPERS: Settings = Settings {
        durable: true,
        commit: Duration::from_secs(5),
        message: Duration::from_micros(200),
        home_batch: 1024,
        cache_bytes: 1 << 30,
        log_bytes: 128 << 20,
        device_bytes: 64 << 30,
        inode_ratio: 16 << 10,
        slots: SlotSize::Bytes512,
        placement: DirPlacement::Together,
        price: None,
        data_blocks: 0,
    };
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
    /// Accesses that did not begin where the one before had ended, those of the log among them.
    #[serde(skip)]
    pub seeks: u64,
    /// Bytes between, summed up.
    #[serde(skip)]
    pub distance: u64,
    /// Requests that went to the disk together with a neighbour.
    #[serde(skip)]
    pub merged: u64,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counts { reads, home, log, flushes, .. } = self;
        write!(f, "{reads} reads, {home} writes home, {log} of the log, {flushes} flushes")
    }
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
            seeks: self.seeks - before.seeks,
            distance: self.distance - before.distance,
            merged: self.merged - before.merged,
        }
    }

    /// Takes `other` into the sum.
    pub fn add(&mut self, other: &Counts) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.home += other.home;
        self.home_bytes += other.home_bytes;
        self.log += other.log;
        self.log_bytes += other.log_bytes;
        self.flushes += other.flushes;
        self.seeks += other.seeks;
        self.distance += other.distance;
        self.merged += other.merged;
    }

    /// Accesses, those of the log not among them.
    pub fn accesses(&self) -> u64 {
        self.reads + self.home
    }
}

/// What a stage of a workload took.
#[derive(Clone, Copy, Default, Serialize, Debug)]
pub struct Measured {
    /// Operations; of listings: entries.
    pub ops: u64,
    /// Nanoseconds until the last was answered.
    pub answered: u64,
    /// Nanoseconds until everything was at home.
    pub settled: u64,
    /// Nanoseconds of the server's processor, by its price, until the last was answered; only where
    /// that is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<u64>,
    /// What the device did meanwhile.
    pub counts: Counts,
}

impl Measured {
    /// Takes what a further stage took into the sum.
    pub fn add(&mut self, other: &Measured) {
        self.ops += other.ops;
        self.answered += other.answered;
        self.settled += other.settled;
        self.processor = self.processor.into_iter().chain(other.processor).reduce(|a, b| a + b);
        self.counts.add(&other.counts);
    }

    /// Operations a second, everything brought home.
    pub fn rate(&self) -> f64 {
        self.ops as f64 / (self.settled.max(1) as f64 / 1e9)
    }

    /// Accesses of an operation, those of the log not among them.
    pub fn accesses_each(&self) -> f64 {
        self.counts.accesses() as f64 / self.ops.max(1) as f64
    }
}

/// What processes do, in stages.
pub trait Workload: Clone + 'static {
    /// One of them.
    type Stage: Copy + 'static;

    /// Processes that take part in each stage.
    fn processes(&self) -> u64;

    /// The part of one process; gives the number of its operations.
    ///
    /// # Errors
    /// What the store says.
    fn work(
        &self,
        stage: Self::Stage,
        caller: Caller,
    ) -> impl Future<Output = Result<u64, StoreError>> + 'static;
}

/// A workload that system calls can do, too.
pub trait Played: Workload {
    /// The part of process `number`, whose directory is `dir`. Of contents only the space is got:
    /// what is compared is metadata.
    fn job(&self, stage: Self::Stage, number: u64, dir: PathBuf) -> Job;
}

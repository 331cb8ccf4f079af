//! Checking a metadata device, offline and without writing a byte; and repairing it
//! ([`fn@repair`]).
//!
//! Every finding is of a kind in the catalogue ([`ProblemKind`]); the check adds to it a fix
//! ([`plan`]), which repair does ([`fix`]), stage by stage, round by round. docs/FSCK.md is for
//! users.
//!
//! Invariants checked (DESIGN: 1, 2, 5, and every checksum):
//! - every metadata block has one owner, and the bitmap says so;
//! - every inode is in one place, which its number or the `moved` tree names, and
//!   reached from the root by exactly as many names as it counts;
//! - every segment lies in the data zones, no data block has two owners, none has
//!   nobody, and the counts are right.
//!
//! The log is redone in memory first, so a device that was not closed is checked as recovery would
//! leave it. Every finding has a kind of its own, and every kind a test that plants it with slots
//! of every size (`tests`): found where it was planted, mended or left as the catalogue says, a
//! second check clean and a second repair idle, inodes that were not damaged as before. Damage at
//! rest in every kind of block of every format is in `format_tests`, with what no format can tell.
//! What a repair cannot keep is told ([`Lost`]); that it tells of all is tried block by block in
//! `sweep_tests`.

mod ahead;
mod blobs;
#[cfg(test)]
mod blobs_tests;
mod blocks;
mod chunks;
mod clients;
#[cfg(test)]
pub(crate) mod device_tests;
mod digest;
mod fix;
#[cfg(test)]
mod format_tests;
mod gaps;
#[cfg(test)]
mod jobs_tests;
mod labels;
mod layouts;
mod links;
mod lmap;
mod lost;
mod names;
mod namespace;
#[cfg(test)]
mod pairs_tests;
mod plan;
mod problem;
mod repair;
pub(crate) mod salvage;
mod space;
mod stranded;
#[cfg(test)]
mod stranded_tests;
#[cfg(test)]
mod sweep_tests;
#[cfg(test)]
pub(crate) mod tests;
mod zones;

use std::collections::{BTreeMap, BTreeSet};

use env::{Disk, Env};
use types::{ClientId, Ino, MetaBlock, PagId};

pub use lost::Lost;
pub use problem::{Problem, ProblemKind, Severity, Subject};
pub use repair::{Repaired, repair};

use crate::device::Device;
use crate::error::StoreError;
use crate::features::Features;
use crate::format::blob::BlobOwner;
use crate::mfs::Mfs;
use crate::open::{LabelCondition, OpenOptions, label};
use crate::zones::{ZoneDevice, ZoneLabels};

/// Findings that a report lists; more are only counted.
pub const PROBLEMS_MAX: usize = 10_000;

/// Threads that look through directory content at once, at most: more would wait for the one that
/// walks.
pub const JOBS_MAX: usize = 16;

/// How to check.
#[derive(Clone, Copy, Debug)]
pub struct FsckOptions<'a> {
    /// Bound of the buffer cache.
    pub cache_bytes: usize,
    /// Told now and then how many inodes were met, and how many there are.
    pub progress: Option<fn(u64, u64)>,
    /// Told of each thing that repair loses, by its number, as soon as it does: before that can be
    /// durable, so that of a repair that is broken off somebody knows.
    pub losing: Option<fn(&Lost)>,
    /// Threads that look through directory content; at most [`JOBS_MAX`] are taken. With one it is
    /// the caller's own.
    pub jobs: usize,
    /// Where the data zones lie: their labels are looked at, and if the table of data zones is
    /// lost, repair takes it from them.
    pub zones: &'a [ZoneDevice<'a>],
    /// Name of the file system: a device without a label is taken only for one of this name.
    /// `None`: of any.
    pub name: Option<&'a str>,
    /// Zones whose devices are meant, though their labels say nothing any more: repair writes those
    /// anew.
    pub relabel: &'a [PagId],
}

impl FsckOptions<'_> {
    /// If nobody says otherwise.
    pub const USUAL: FsckOptions<'static> = FsckOptions {
        cache_bytes: 256 << 20,
        progress: None,
        losing: None,
        jobs: 1,
        zones: &[],
        name: None,
        relabel: &[],
    };
}

impl Default for FsckOptions<'_> {
    fn default() -> Self {
        FsckOptions::USUAL
    }
}

/// How much of everything there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Inodes, directories included.
    pub inodes: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Names.
    pub names: u64,
    /// Inodes without links.
    pub orphans: u64,
    /// Segments of all layouts.
    pub segments: u64,
    /// Metadata blocks in use.
    pub meta_blocks: u64,
    /// Data blocks that files map.
    pub mapped: u64,
    /// Data blocks in pools of clients.
    pub pooled: u64,
    /// Data blocks that files gave up.
    pub freed: u64,
    /// Free data blocks.
    pub free: u64,
    /// Clients.
    pub clients: u64,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The findings, in the order of the check.
    pub problems: Vec<Problem>,
    /// Findings beyond [`PROBLEMS_MAX`].
    pub omitted: u64,
    /// How much of everything there is.
    pub counts: Counts,
    /// Features that the superblock names; `None` if no store could be opened.
    pub features: Option<Features>,
}

impl Report {
    /// Was nothing found?
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, kind: ProblemKind, subject: Subject, detail: impl Into<String>) {
        let problem = Problem { kind, subject, detail: detail.into() };
        // Everything that is reached through a damaged block meets it.
        if kind == ProblemKind::DamagedBlock && self.problems.contains(&problem) {
            return;
        }
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        } else {
            self.omitted += 1;
        }
    }
}

/// Checks the metadata device `disk`, which nothing else has open.
///
/// # Errors
/// `Refused` if it is no Redbud metadata device, `Io`; damage is a finding, not an error.
pub async fn fsck(env: &Env, disk: &Disk, options: FsckOptions<'_>) -> Result<Report, StoreError> {
    let opening = OpenOptions {
        cache_bytes: options.cache_bytes,
        read_only: true,
        repair: true,
        ..OpenOptions::default()
    };
    let mfs = match open(env, disk, opening, options).await {
        Ok(mfs) => mfs,
        Err(error) => return unopened(error),
    };
    let report = whole_check(&mfs, options).await.map(|check| check.report);
    let (label, marred) = (mfs.is_label_damaged(), labels::marred(env, &mfs, options).await);
    mfs.close().await?;
    report.map(|mut report| {
        if label {
            report.add(ProblemKind::DamagedLabel, Subject::Block(types::MetaBlock(0)), "");
        }
        for (_, marred) in marred {
            report.add(ProblemKind::DamagedDataLabel, labels::subject(&marred), marred.what);
        }
        report
    })
}

/// Opens the store, also on a device of which nothing but the label is gone.
async fn open(
    env: &Env,
    disk: &Disk,
    opening: OpenOptions,
    options: FsckOptions<'_>,
) -> Result<Mfs, StoreError> {
    let device = Device { env: env.clone(), disk: disk.clone() };
    let Some(superblock) = label::unlabelled(&device).await? else {
        return Mfs::open(env, disk, opening).await;
    };
    labels::is_ours(env, &device, &superblock, options).await?;
    Mfs::open_unlabelled(device, opening, LabelCondition::Damaged).await
}

/// The finding that kept a store from being opened.
fn unopened(error: StoreError) -> Result<Report, StoreError> {
    let mut report = Report::default();
    match error {
        StoreError::Corrupt { block, what } => {
            report.add(ProblemKind::DamagedBlock, Subject::Block(block), what);
        }
        StoreError::DamagedLog { lsn, what } => {
            report.add(ProblemKind::DamagedLog, Subject::Log(types::Lsn(lsn)), what);
        }
        error => return Err(error),
    }
    Ok(report)
}

/// Checks an open store. Nothing may change it meanwhile.
///
/// # Errors
/// `Io`, `Poisoned`.
pub async fn check(mfs: &Mfs) -> Result<Report, StoreError> {
    Ok(whole_check(mfs, FsckOptions::default()).await?.report)
}

async fn whole_check(mfs: &Mfs, options: FsckOptions<'_>) -> Result<Check, StoreError> {
    let mut check = Check::new(mfs, options);
    if let Some(device) = mfs.device() {
        check.labels = ZoneLabels::read(&device.env, mfs.identity().uuid, options.zones).await;
    }
    for damaged in mfs.damaged() {
        check.found(ProblemKind::DamagedBlock, Subject::Block(damaged.block), damaged.what);
    }
    check.clients().await?;
    check.names().await?;
    check.space().await?;
    check.shares().await?;
    check.find_blobs().await?;
    check.bitmap().await?;
    check.fragmentation();
    check.plan_stranded();
    Ok(check)
}

/// A running check.
struct Check {
    mfs: Mfs,
    report: Report,
    blocks: blocks::Claims,
    /// Features of the superblock, and those that were found missing there.
    features: Features,
    clients: BTreeSet<ClientId>,
    /// Clients that repair will enter.
    entered: BTreeSet<ClientId>,
    tree: names::Tree,
    ahead: ahead::Ahead,
    pieces: Vec<space::Piece>,
    /// What the labels of the data zones say that were named.
    labels: ZoneLabels,
    /// Blobs that could not be read.
    lacking: BTreeMap<BlobOwner, blobs::Lack>,
    /// Metadata blocks that were claimed twice.
    shared: BTreeSet<MetaBlock>,
    /// Content blocks that no chunk has, with inodes that are missing.
    stranded: Vec<(MetaBlock, stranded::Said)>,
    /// Files that map more blocks than their slots count, and how many more.
    greedy: BTreeMap<Ino, u64>,
    /// Inodes that count more names than were met.
    nameless: BTreeSet<Ino>,
    /// Directories that lack content blocks at the end.
    short: Vec<stranded::Short>,
    /// Large directories without a name map.
    mapless: Vec<Ino>,
    /// Where segments are that cannot be read.
    gaps: gaps::Gaps,
    plan: plan::Plan,
    progress: Option<fn(u64, u64)>,
    /// Inodes that there should be.
    total: u64,
}

impl Check {
    fn new(mfs: &Mfs, options: FsckOptions<'_>) -> Check {
        Check {
            mfs: mfs.clone(),
            report: Report { features: Some(mfs.superblock().features), ..Report::default() },
            blocks: blocks::Claims::new(&mfs.superblock()),
            features: mfs.superblock().features,
            clients: BTreeSet::new(),
            entered: BTreeSet::new(),
            tree: names::Tree::default(),
            ahead: ahead::Ahead::new(mfs, options.jobs),
            pieces: Vec::new(),
            labels: ZoneLabels::default(),
            lacking: BTreeMap::new(),
            shared: BTreeSet::new(),
            stranded: Vec::new(),
            greedy: BTreeMap::new(),
            nameless: BTreeSet::new(),
            short: Vec::new(),
            mapless: Vec::new(),
            gaps: gaps::Gaps::default(),
            plan: plan::Plan::default(),
            progress: options.progress,
            total: 0,
        }
    }

    fn found(&mut self, kind: ProblemKind, subject: Subject, detail: impl Into<String>) {
        self.report.add(kind, subject, detail);
    }
}

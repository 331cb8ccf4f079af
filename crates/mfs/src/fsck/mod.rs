//! Offline check of a metadata device, which writes nothing; and its repair ([`fn@repair`]).
//!
//! Every finding has a kind from the catalogue ([`ProblemKind`]). The check plans a fix for it
//! ([`plan`]); repair applies the fixes ([`fix`]) stage by stage, round by round. docs/FSCK.md is
//! for users.
//!
//! Invariants checked (DESIGN: 1, 2, 5, and every checksum):
//! - every metadata block has one owner, and the bitmap says so;
//! - every inode is in one place, which its number or the `moved` tree names, and its link count is
//!   the number of names that reach it from the root;
//! - every segment lies in the data zones, every data block has exactly one owner, and the counts
//!   are right.
//!
//! The check first replays the log in memory, so it sees an unclosed device as recovery would leave
//! it. For every kind, a test plants the damage with slots of every size (`tests`). The check must
//! find it where it was planted, and repair must fix or leave it as the catalogue says. A second
//! check must be clean, a second repair idle, and undamaged inodes unchanged. `format_tests` tests
//! media corruption in every kind of block of every format, and what no format can detect. Repair
//! reports what it cannot keep ([`Lost`]); `sweep_tests` checks block by block that it reports
//! every loss.

pub mod across;
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
mod finding;
mod fix;
#[cfg(test)]
mod foreign_tests;
#[cfg(test)]
mod format_tests;
mod gaps;
mod homes;
#[cfg(test)]
mod homes_tests;
mod intents;
#[cfg(test)]
mod jobs_tests;
#[cfg(test)]
mod journal_tests;
#[cfg(test)]
mod label_tests;
mod labels;
mod layouts;
mod lent;
#[cfg(test)]
mod lent_tests;
mod links;
mod lmap;
mod lost;
mod names;
mod namespace;
mod objects;
#[cfg(test)]
mod objects_tests;
mod outside;
#[cfg(test)]
mod outside_tests;
#[cfg(test)]
mod pairs_tests;
mod plan;
mod problem;
mod repair;
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

use env::{Env, LocalFuture};
use types::{ClientId, Ino, MetaBlock, PagId, ShardId};

pub use across::{Disagreement, ForeignName, Guest, LentBlocks, Loans, ShardNames, across};
pub use lost::Lost;
pub use problem::{Problem, ProblemKind, Severity, Subject};
pub use repair::{Repaired, repair};

use crate::handle::Mfs;
use crate::open::OpenOptions;
use crate::zones::{ZoneDevice, ZoneLabels};
use engine::check::{Claims, Finding, journal_damage, label_damage};
use engine::device::label::{self, LabelCondition};
use engine::device::log::{Devices, Disks};
use engine::error::StoreError;
use engine::format::blob::BlobOwner;
use engine::format::features::Features;

/// Findings that a report lists; it only counts further ones.
pub const PROBLEMS_MAX: usize = 10_000;

/// Threads that digest directory content at once, at most: more would wait for the walking thread.
pub const JOBS_MAX: usize = 16;

/// How to check.
#[derive(Clone, Copy, Debug)]
pub struct FsckOptions<'a> {
    /// Bound of the buffer cache.
    pub cache_bytes: usize,
    /// Called now and then with how many inodes the check has met, and how many there are.
    pub progress: Option<fn(u64, u64)>,
    /// Called with each loss, named by number, before the loss can be durable. So the caller knows
    /// the losses of an interrupted repair as well.
    pub on_loss: Option<fn(&Lost)>,
    /// Threads that digest directory content; more than [`JOBS_MAX`] have no effect. With one, the
    /// caller's own thread does the work.
    pub jobs: usize,
    /// Where the data zones lie: the check reads their labels, and repair rebuilds a lost table of
    /// data zones from them.
    pub zones: &'a [ZoneDevice<'a>],
    /// Name of the file system: a device without a label is accepted only if its superblocks have
    /// this name. `None`: any name.
    pub name: Option<&'a str>,
    /// Zones whose labels repair may rewrite although nothing in them identifies the zone any more.
    pub relabel: &'a [PagId],
}

impl FsckOptions<'_> {
    /// The defaults.
    pub const USUAL: FsckOptions<'static> = FsckOptions {
        cache_bytes: 256 << 20,
        progress: None,
        on_loss: None,
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
    /// Orphans: inodes without links.
    pub orphans: u64,
    /// Segments of all layouts.
    pub segments: u64,
    /// Metadata blocks in use.
    pub meta_blocks: u64,
    /// Data blocks that files map.
    pub mapped: u64,
    /// Data blocks in pools of clients.
    pub pooled: u64,
    /// Data blocks that files freed and that are not reusable yet.
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
    /// Features that the superblock names; `None` if the store could not be opened.
    pub features: Option<Features>,
    /// What this shard says of others, for [`fn@across`].
    pub shard: ShardNames,
}

impl Report {
    /// Is the report without findings?
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, kind: ProblemKind, subject: Subject, detail: impl Into<String>) {
        let problem = Problem { kind, subject, detail: detail.into() };
        // Everything that is reached through a damaged block finds it again.
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

/// Checks the metadata on `disks`, which nothing else has open.
///
/// # Errors
/// `Refused` if it is no Redbud metadata device or the log not its own, `Io`; damage is a finding,
/// not an error.
pub async fn fsck(
    env: &Env,
    disks: impl Into<Disks>,
    options: FsckOptions<'_>,
) -> Result<Report, StoreError> {
    fsck_disks(env, disks.into(), options).await
}

fn fsck_disks<'a>(
    env: &'a Env,
    disks: Disks,
    options: FsckOptions<'a>,
) -> LocalFuture<'a, Result<Report, StoreError>> {
    Box::pin(async move {
        let opening = OpenOptions {
            cache_bytes: options.cache_bytes,
            read_only: true,
            repair: true,
            ..OpenOptions::default()
        };
        let mfs = match open(env, &disks, opening, options).await {
            Ok(mfs) => mfs,
            Err(error) => return unopened(error),
        };
        let report = whole_check(&mfs, options).await.map(|check| check.report);
        let damaged = labels::damaged_labels(env, &mfs, options).await;
        let (label, journal) = (label_damage(&mfs).await, journal_damage(&mfs).await);
        mfs.close().await?;
        report.map(|mut report| {
            let journal = journal.map(Finding::DamagedJournal);
            for finding in journal.into_iter().chain(label.map(Finding::DamagedLabel)) {
                if let Some(Problem { kind, subject, detail }) = Problem::of(&finding) {
                    report.add(kind, subject, detail);
                }
            }
            for finding in damaged {
                let Problem { kind, subject, detail } = finding.problem("");
                report.add(kind, subject, detail);
            }
            report
        })
    })
}

/// Opens the store, also on a device that lost only its label.
async fn open(
    env: &Env,
    disks: &Disks,
    opening: OpenOptions,
    options: FsckOptions<'_>,
) -> Result<Mfs, StoreError> {
    let devices = Devices::whole(env, disks);
    let Some(superblock) = label::unlabelled(&devices.home).await? else {
        return Mfs::open(env, disks, opening).await;
    };
    labels::is_ours(env, &devices.home, &superblock, options).await?;
    let condition = LabelCondition::Damaged("its label and the copy of it are zeros".into());
    Mfs::open_unlabelled(devices, opening, condition).await
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

fn whole_check<'a>(
    mfs: &'a Mfs,
    options: FsckOptions<'a>,
) -> LocalFuture<'a, Result<Check, StoreError>> {
    Box::pin(async move {
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
    })
}

/// A running check.
struct Check {
    mfs: Mfs,
    report: Report,
    blocks: Claims,
    /// The shard of the superblock.
    shard: ShardId,
    /// Features of the superblock, and those in use that it does not name.
    features: Features,
    clients: BTreeSet<ClientId>,
    /// Unknown clients that repair will add.
    entered: BTreeSet<ClientId>,
    tree: names::NamespaceScan,
    ahead: ahead::Ahead,
    pieces: Vec<space::Piece>,
    objects: objects::Objects,
    /// Labels of the data zones that the caller named.
    labels: ZoneLabels,
    /// Blobs that could not be read, by their owner.
    missing_blobs: BTreeMap<BlobOwner, blobs::MissingBlob>,
    /// Metadata blocks with two claims.
    shared: BTreeSet<MetaBlock>,
    /// Content blocks of no chunk, which hold missing inodes.
    stranded: Vec<(MetaBlock, stranded::BlockEvidence)>,
    /// Files that map more blocks than their slots count, and the difference.
    overmapped: BTreeMap<Ino, u64>,
    /// Other shards may have data blocks of this one's zones.
    may_have_lent: bool,
    /// Inodes with more links than names that the check met.
    underlinked: BTreeSet<Ino>,
    /// Directories whose last content blocks are missing.
    short_directories: Vec<stranded::ShortDirectory>,
    /// Large directories without a name map.
    without_map: Vec<Ino>,
    /// Where unreadable nodes and layout blocks hold segments.
    gaps: gaps::Gaps,
    plan: plan::Plan,
    progress: Option<fn(u64, u64)>,
    /// The number of inodes that the store counts.
    total: u64,
}

impl Check {
    fn new(mfs: &Mfs, options: FsckOptions<'_>) -> Check {
        Check {
            mfs: mfs.clone(),
            report: Report { features: Some(mfs.superblock().features), ..Report::default() },
            blocks: Claims::new(&mfs.superblock()),
            shard: mfs.superblock().shard,
            features: mfs.superblock().features,
            clients: BTreeSet::new(),
            entered: BTreeSet::new(),
            tree: names::NamespaceScan::default(),
            ahead: ahead::Ahead::new(mfs, options.jobs),
            pieces: Vec::new(),
            objects: objects::Objects::default(),
            labels: ZoneLabels::default(),
            missing_blobs: BTreeMap::new(),
            shared: BTreeSet::new(),
            stranded: Vec::new(),
            overmapped: BTreeMap::new(),
            may_have_lent: false,
            underlinked: BTreeSet::new(),
            short_directories: Vec::new(),
            without_map: Vec::new(),
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

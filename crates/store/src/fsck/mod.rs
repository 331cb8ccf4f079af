//! Checking a metadata device, offline and without writing a byte.
//!
//! Invariants checked (DESIGN: 1, 2, 5, and every checksum):
//! - every metadata block has one owner, and the bitmap says so;
//! - every inode is in one place, which its number or the `moved` tree names, and
//!   reached from the root by exactly as many names as it counts;
//! - every segment lies in the data zones, no data block has two owners, none has
//!   nobody, and the counts are right.
//!
//! The log is redone in memory first, so a device that was not closed is checked
//! as recovery would leave it. Every finding has a kind of its own, and every kind
//! a test that plants it.

mod blocks;
mod clients;
mod names;
mod problem;
mod space;
#[cfg(test)]
mod tests;

use env::{Disk, Env};
use types::ClientId;

pub use problem::{Problem, ProblemKind, Severity, Subject};

use crate::error::StoreError;
use crate::mfs::Mfs;
use crate::open::OpenOptions;

/// Findings that a report lists; more are only counted.
pub const PROBLEMS_MAX: usize = 10_000;

/// How to check.
#[derive(Clone, Copy, Debug)]
pub struct FsckOptions {
    /// Bound of the buffer cache.
    pub cache_bytes: usize,
}

impl Default for FsckOptions {
    fn default() -> FsckOptions {
        FsckOptions { cache_bytes: 256 << 20 }
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
pub async fn fsck(env: &Env, disk: &Disk, options: FsckOptions) -> Result<Report, StoreError> {
    let opening =
        OpenOptions { cache_bytes: options.cache_bytes, read_only: true, ..OpenOptions::default() };
    let mfs = match Mfs::open(env, disk, opening).await {
        Ok(mfs) => mfs,
        Err(StoreError::Corrupt { block, what }) => {
            let mut report = Report::default();
            report.add(ProblemKind::DamagedBlock, Subject::Block(block), what);
            return Ok(report);
        }
        Err(StoreError::DamagedLog { lsn, what }) => {
            let mut report = Report::default();
            report.add(ProblemKind::DamagedLog, Subject::Log(types::Lsn(lsn)), what);
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    let report = check(&mfs).await;
    let label = mfs.is_label_damaged();
    mfs.close().await?;
    report.map(|mut report| {
        if label {
            report.add(ProblemKind::DamagedLabel, Subject::Block(types::MetaBlock(0)), "");
        }
        report
    })
}

/// Checks an open store. Nothing may change it meanwhile.
///
/// # Errors
/// `Io`, `Poisoned`.
pub async fn check(mfs: &Mfs) -> Result<Report, StoreError> {
    let mut check = Check::new(mfs);
    check.clients().await?;
    check.names().await?;
    check.space().await?;
    check.bitmap().await?;
    Ok(check.report)
}

/// A running check.
struct Check {
    mfs: Mfs,
    report: Report,
    blocks: blocks::Claims,
    clients: std::collections::BTreeSet<ClientId>,
    tree: names::Tree,
    pieces: Vec<space::Piece>,
}

impl Check {
    fn new(mfs: &Mfs) -> Check {
        Check {
            mfs: mfs.clone(),
            report: Report::default(),
            blocks: blocks::Claims::new(&mfs.superblock()),
            clients: Default::default(),
            tree: Default::default(),
            pieces: Vec::new(),
        }
    }

    fn found(&mut self, kind: ProblemKind, subject: Subject, detail: impl Into<String>) {
        self.report.add(kind, subject, detail);
    }
}

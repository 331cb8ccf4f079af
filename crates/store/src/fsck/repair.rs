//! Repair: rounds of checking and mending, until nothing is found.
//!
//! Invariants:
//! - a round does the fixes of one [`Stage`], the earliest that changes anything; where trees or
//!   chunks cannot be mended, nothing is done that rests on them;
//! - everything it changes goes through transactions of the store, so a crash leaves what some
//!   whole fixes made; repairing again goes on from there. A fix is decided from what the check
//!   found, and that from what is on the device: so the outcome is the same;
//! - metadata space is given back only when nothing else is left to do;
//! - what it takes away for good is told: each fix gives it back, [`Losses`] gathers it, and
//!   `losing` is told at once;
//! - it ends: a round that changes nothing is the last, and so is round [`ROUNDS_MAX`].

use env::{Disk, Env};
use types::{Bug, Ino, MetaBlock, planted};

use super::fix::maps::make_map;
use super::fix::{Fixer, Kept};
use super::lost::{Losses, Lost};
use super::plan::{Fix, Plan, Stage, Stages};
use super::{Check, FsckOptions, Problem, ProblemKind, Report, Subject, labels, whole_check};
use crate::error::StoreError;
use crate::mfs::Mfs;
use crate::mkfs::write_label;
use crate::open::{OpenOptions, write_copies};
use crate::recovery::{DamagedBlock, Remedy};

/// Rounds at most: each stage may uncover more for those before it, but not for ever.
pub const ROUNDS_MAX: u32 = 4096;
/// Lines that a report of repair lists; more are only counted.
pub const LINES_MAX: usize = 10_000;

/// What repair found and did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Repaired {
    /// Every finding, of all rounds, in order; at most [`super::PROBLEMS_MAX`].
    pub found: Vec<Problem>,
    /// What was done, a line each.
    pub done: Vec<String>,
    /// What was lost for good.
    pub lost: Vec<Lost>,
    /// Labels of data zones without which the table of them cannot be built anew: which, and why
    /// they are not to be had.
    pub wanted: Vec<String>,
    /// Lines and findings beyond the limits.
    pub omitted: u64,
    /// What the last check found: nothing, or what cannot be repaired.
    pub left: Report,
    /// Checks that were made.
    pub rounds: u32,
}

/// What one round leaves to those after it.
#[derive(Default)]
struct Memory {
    /// Directories whose name maps are missing or were removed, and how many of them were looked at
    /// again.
    mapless: Vec<Ino>,
    tried: usize,
    losses: Losses,
    /// Told of each at once.
    told: Option<fn(&Lost)>,
}

impl Memory {
    /// Notes directories that lack a name map.
    fn miss(&mut self, dirs: &[Ino]) {
        for dir in dirs {
            if !self.mapless.contains(dir) {
                self.mapless.push(*dir);
            }
        }
    }
}

impl Repaired {
    pub(super) fn note(&mut self, line: String) {
        push(&mut self.done, line, &mut self.omitted);
    }

    fn take(&mut self, check: &mut Check) {
        for problem in &check.report.problems {
            if self.found.contains(problem) {
                continue;
            }
            match self.found.len() < super::PROBLEMS_MAX {
                true => self.found.push(problem.clone()),
                false => self.omitted += 1,
            }
        }
    }
}

impl Repaired {
    /// Does the fixes of one stage; says whether any changed something.
    async fn stage(
        &mut self,
        fixer: &mut Fixer,
        fixes: &[Fix],
        memory: &mut Memory,
    ) -> Result<bool, StoreError> {
        let mut progress = false;
        for fix in fixes {
            match fixer.apply(fix).await {
                Ok(None) => {}
                Ok(Some(change)) => {
                    progress = true;
                    if let Fix::DropMap(dir) = fix {
                        memory.miss(&[*dir]);
                    }
                    // Nothing is awaited since the transaction that lost it.
                    for lost in change.lost.into_iter().filter_map(|loss| memory.losses.add(loss)) {
                        if let Some(told) = memory.told {
                            told(&lost);
                        }
                    }
                    self.note(change.line);
                }
                // It is found again, and told as left.
                Err(StoreError::Fault(_) | StoreError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(progress)
    }

    /// Makes the name maps that are missing; says whether there was one to try. What finds no room
    /// is left: the directory is searched without a map.
    async fn make_maps(&mut self, mfs: &Mfs, memory: &mut Memory) -> Result<bool, StoreError> {
        let new = memory.mapless.split_off(memory.tried);
        memory.tried += new.len();
        memory.mapless.extend(&new);
        for &dir in &new {
            match make_map(mfs, dir).await {
                Ok(done) => done.into_iter().for_each(|change| self.note(change.line)),
                Err(StoreError::Fault(_) | StoreError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(!new.is_empty())
    }

    /// Notes what the opening has mended; says whether that was anything. What it left is found by
    /// every check.
    fn note_opening(&mut self, mfs: &Mfs) -> bool {
        let mut mended = false;
        for DamagedBlock { block, what, remedy } in mfs.damaged() {
            let done = match remedy {
                Remedy::Copy => "its other copy was taken",
                Remedy::Log => "it was put back from the log",
                Remedy::None => continue,
            };
            mended = true;
            self.note(format!("metadata block {block} ({what}): {done}"));
        }
        mfs.forget_repaired();
        mended
    }
}

fn push(lines: &mut Vec<String>, line: String, omitted: &mut u64) {
    if lines.len() < LINES_MAX {
        lines.push(line);
    } else {
        *omitted += 1;
    }
}

impl Kept {
    /// What is to be done, stage by stage, after the log was asked: before anything is written, as
    /// whatever is goes through the same log.
    async fn plan(&mut self, mfs: &Mfs, mut plan: Plan) -> Result<Stages, StoreError> {
        let doubtful = plan.take_doubtful();
        let mut stages = plan.into_stages();
        let fixes = stages.get(&Stage::Blocks).into_iter().flatten();
        let damaged = fixes.filter_map(|fix| match fix {
            Fix::FromLog(block) => Some(*block),
            _ => None,
        });
        self.salvaged.seek(mfs, damaged.chain(doubtful.iter().copied())).await?;
        let there: Vec<_> =
            doubtful.into_iter().filter(|&block| self.salvaged.has(block)).collect();
        if !there.is_empty() {
            let fixes = stages.entry(Stage::Blocks).or_default();
            fixes.extend(there.into_iter().map(Fix::FromLog));
        }
        let first = stages.get(&Stage::Space).into_iter().flatten();
        if first.into_iter().any(|fix| matches!(fix, Fix::LostBitmap(_))) {
            self.salvaged.list(mfs).await?;
        }
        Ok(stages)
    }
}

/// Checks and repairs the metadata device `disk`, which nothing else has open.
///
/// # Errors
/// `Refused` if it is no Redbud metadata device, `Io`; what cannot be repaired is in `left`.
pub async fn repair(
    env: &Env,
    disk: &Disk,
    options: FsckOptions<'_>,
) -> Result<Repaired, StoreError> {
    let opening =
        OpenOptions { cache_bytes: options.cache_bytes, repair: true, ..OpenOptions::default() };
    let mfs = match super::open(env, disk, opening, options).await {
        Ok(mfs) => mfs,
        Err(error) => {
            let left = super::unopened(error)?;
            return Ok(Repaired { found: left.problems.clone(), left, ..Repaired::default() });
        }
    };
    let label = mfs.is_label_damaged();
    let features = mfs.superblock().features;
    let mut out = mend(&mfs, options).await?;
    labels::repair(env, &mfs, options, &mut out).await;
    let device = mfs.device();
    mfs.close().await?;
    let mut superblock = mfs.superblock();
    if let Some(device) = device.as_ref().filter(|_| superblock.features != features) {
        write_copies(device, &mut superblock).await?;
    }
    if let Some(device) = device.filter(|_| label) {
        write_label(&device, &superblock).await?;
        let subject = Subject::Block(MetaBlock(0));
        let kind = ProblemKind::DamagedLabel;
        out.found.push(Problem { kind, subject, detail: String::new() });
        out.note("the label was written anew from the superblock".into());
    }
    Ok(out)
}

/// Repairs an open store. Nothing else may use it meanwhile.
///
/// # Errors
/// `Io`, `Poisoned`, `ReadOnly`.
pub(super) async fn mend(mfs: &Mfs, options: FsckOptions<'_>) -> Result<Repaired, StoreError> {
    let mut out = Repaired::default();
    let mut memory = Memory { told: options.losing, ..Memory::default() };
    rounds(mfs, options, &mut out, &mut memory).await?;
    out.omitted += memory.losses.omitted;
    out.lost = memory.losses.told(mfs).await?;
    Ok(out)
}

async fn rounds(
    mfs: &Mfs,
    options: FsckOptions<'_>,
    out: &mut Repaired,
    memory: &mut Memory,
) -> Result<(), StoreError> {
    let mut kept = Kept::new(mfs).await?;
    loop {
        let mut check = whole_check(mfs, options).await?;
        out.rounds += 1;
        out.take(&mut check);
        memory.miss(&check.mapless);
        let opened = out.note_opening(mfs);
        let stages = kept.plan(mfs, std::mem::take(&mut check.plan)).await?;
        let report = std::mem::take(&mut check.report);
        if stages.is_empty() && (opened || out.make_maps(mfs, memory).await?) {
            continue;
        }
        if stages.is_empty() || out.rounds == ROUNDS_MAX {
            if report.is_clean() {
                Kept::finish(mfs).await?;
            }
            out.left = report;
            return Ok(());
        }
        let mut fixer = Fixer::new(mfs, check, kept);
        let only = stages.len() == 1;
        let (mut mended, mut trees) = (false, false);
        for (stage, fixes) in &stages {
            if *stage == Stage::Counts && !only {
                break;
            }
            mfs.forget_indexes();
            mended = out.stage(&mut fixer, fixes, memory).await?;
            mfs.forget_indexes();
            trees = mended && *stage == Stage::Trees;
            // What rests on a tree or a chunk that cannot be mended is left alone.
            let needed = matches!(stage, Stage::Trees | Stage::System | Stage::Chunks);
            if mended || needed {
                break;
            }
        }
        out.wanted = std::mem::take(&mut fixer.wanted);
        kept = fixer.into_kept(trees);
        if planted(Bug::RepairOnce) {
            return Ok(());
        }
        // What the opening mended is in this report, too: it is told as left by none.
        if !mended && !opened {
            out.left = report;
            return Ok(());
        }
    }
}

//! Repair: rounds of check and fixes, until the check finds nothing.
//!
//! Invariants:
//! - a round applies the fixes of one [`Stage`], the earliest that changes anything; where trees or
//!   chunks cannot be repaired, repair leaves what depends on them;
//! - every change is a transaction of the store, so a crash leaves the result of some whole fixes,
//!   and the next repair continues from there. Findings follow from the device alone, and fixes
//!   from the findings: so the outcome is the same;
//! - metadata blocks are freed only when nothing else is left to do;
//! - every permanent loss is reported: each fix returns its losses, [`Losses`] gathers them, and
//!   `on_loss` gets them at once;
//! - repair ends: a round that changes nothing is the last, and so is round [`ROUNDS_MAX`].

use env::{Env, LocalFuture};
use types::{Bug, Ino, planted};

use super::fix::maps::make_map;
use super::fix::{Fixer, RepairState};
use super::lost::{Losses, Lost};
use super::plan::{Fix, Plan, Stage, Stages};
use super::{Check, FsckOptions, Problem, Report, labels, whole_check};
use crate::handle::Mfs;
use crate::open::OpenOptions;
use engine::check::{Finding, journal_damage, label_damage};
use engine::device::copies::write_copies;
use engine::device::log::Disks;
use engine::error::StoreError;
use engine::log::recovery::{DamagedBlock, Remedy};
use engine::store::mkfs::repair_label;

/// Rounds at most: each stage may uncover more for those before it, but not for ever.
pub const ROUNDS_MAX: u32 = 4096;
/// Lines that a report of repair lists; more are only counted.
pub const LINES_MAX: usize = 10_000;

/// The findings and the changes of a repair.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Repaired {
    /// Every finding, of all rounds, in order; at most [`super::PROBLEMS_MAX`].
    pub found: Vec<Problem>,
    /// What was done, a line each.
    pub done: Vec<String>,
    /// What was lost for good.
    pub lost: Vec<Lost>,
    /// Labels of data zones that are needed to rebuild the table: which, and why they cannot be
    /// read.
    pub wanted: Vec<String>,
    /// Lines and findings beyond the limits.
    pub omitted: u64,
    /// Findings of the last check: none, or what cannot be repaired.
    pub left: Report,
    /// Checks that were made.
    pub rounds: u32,
}

/// State that one round leaves to the later ones.
#[derive(Default)]
struct RoundMemory {
    /// Directories whose name maps are missing or were removed, and for how many of them a map was
    /// tried.
    without_map: Vec<Ino>,
    tried: usize,
    losses: Losses,
    /// Called with each loss at once.
    on_loss: Option<fn(&Lost)>,
}

impl RoundMemory {
    /// Notes directories that lack a name map.
    fn note_missing_maps(&mut self, dirs: &[Ino]) {
        for dir in dirs {
            if !self.without_map.contains(dir) {
                self.without_map.push(*dir);
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
    /// Applies the fixes of one stage; returns whether any changed something.
    async fn stage(
        &mut self,
        fixer: &mut Fixer,
        fixes: &[Fix],
        memory: &mut RoundMemory,
    ) -> Result<bool, StoreError> {
        let mut progress = false;
        for fix in fixes {
            match fixer.apply(fix).await {
                Ok(None) => {}
                Ok(Some(change)) => {
                    progress = true;
                    if let Fix::DropMap(dir) = fix {
                        memory.note_missing_maps(&[*dir]);
                    }
                    // There is no await since the losing transaction, so it is not durable yet.
                    for lost in change.lost.into_iter().filter_map(|loss| memory.losses.add(loss)) {
                        if let Some(on_loss) = memory.on_loss {
                            on_loss(&lost);
                        }
                    }
                    self.note(change.line);
                }
                // The next check finds it again and reports it as left.
                Err(StoreError::Fault(_) | StoreError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(progress)
    }

    /// Makes missing name maps; returns whether there was one to try. A directory for whose map
    /// there is no room stays without one.
    async fn make_maps(&mut self, mfs: &Mfs, memory: &mut RoundMemory) -> Result<bool, StoreError> {
        let new = memory.without_map.split_off(memory.tried);
        memory.tried += new.len();
        memory.without_map.extend(&new);
        for &dir in &new {
            match make_map(mfs, dir).await {
                Ok(done) => done.into_iter().for_each(|change| self.note(change.line)),
                Err(StoreError::Fault(_) | StoreError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(!new.is_empty())
    }

    /// Notes what opening the store has repaired; returns whether it repaired anything. Every check
    /// finds what it left.
    fn note_opening(&mut self, mfs: &Mfs) -> bool {
        let mut repaired = false;
        for DamagedBlock { block, what, remedy } in mfs.damaged() {
            let done = match remedy {
                Remedy::Copy => "its other copy was taken",
                Remedy::Log => "it was put back from the log",
                Remedy::None => continue,
            };
            repaired = true;
            self.note(format!("metadata block {block} ({what}): {done}"));
        }
        mfs.forget_repaired();
        repaired
    }
}

fn push(lines: &mut Vec<String>, line: String, omitted: &mut u64) {
    if lines.len() < LINES_MAX {
        lines.push(line);
    } else {
        *omitted += 1;
    }
}

impl RepairState {
    /// The fixes, stage by stage. It searches the log before anything is written, as every write
    /// may overwrite what the log still holds.
    async fn plan(&mut self, mfs: &Mfs, mut plan: Plan) -> Result<Stages, StoreError> {
        let doubtful = plan.take_doubtful();
        let mut stages = plan.into_stages();
        let fixes = stages.get(&Stage::Blocks).into_iter().flatten();
        let damaged = fixes.filter_map(|fix| match fix {
            Fix::FromLog(block) => Some(*block),
            _ => None,
        });
        self.engine.salvaged.seek(mfs, damaged.chain(doubtful.iter().copied())).await?;
        let there: Vec<_> =
            doubtful.into_iter().filter(|&block| self.engine.salvaged.has(block)).collect();
        if !there.is_empty() {
            let fixes = stages.entry(Stage::Blocks).or_default();
            fixes.extend(there.into_iter().map(Fix::FromLog));
        }
        let first = stages.get(&Stage::Space).into_iter().flatten();
        if first.into_iter().any(|fix| matches!(fix, Fix::LostBitmap(_))) {
            self.engine.salvaged.list(mfs).await?;
        }
        Ok(stages)
    }
}

/// Checks and repairs the metadata on `disks`, which nothing else has open.
///
/// # Errors `Refused` if it is no Redbud metadata device or the log not its own, `Io`; what cannot
/// be repaired is in `left`.
pub async fn repair(
    env: &Env,
    disks: impl Into<Disks>,
    options: FsckOptions<'_>,
) -> Result<Repaired, StoreError> {
    repair_disks(env, disks.into(), options).await
}

fn repair_disks<'a>(
    env: &'a Env,
    disks: Disks,
    options: FsckOptions<'a>,
) -> LocalFuture<'a, Result<Repaired, StoreError>> {
    Box::pin(async move {
        let opening = OpenOptions {
            cache_bytes: options.cache_bytes,
            repair: true,
            ..OpenOptions::default()
        };
        let mfs = match super::open(env, &disks, opening, options).await {
            Ok(mfs) => mfs,
            Err(error) => {
                let left = super::unopened(error)?;
                return Ok(Repaired { found: left.problems.clone(), left, ..Repaired::default() });
            }
        };
        let label = label_damage(&mfs).await;
        let features = mfs.superblock().features;
        let mut out = repair_open(&mfs, options).await?;
        labels::repair(env, &mfs, options, &mut out).await;
        if let (Some(log), Some(detail)) = (mfs.log_device(), journal_damage(&mfs).await) {
            // The opening has written both copies of the header anew.
            log.repair_label(&mfs.superblock()).await?;
            out.found.extend(Problem::of(&Finding::DamagedJournal(detail)));
            out.note("header and label of the journal were written anew".into());
        }
        let device = mfs.device();
        mfs.close().await?;
        let mut superblock = mfs.superblock();
        if let Some(device) = device.as_ref().filter(|_| superblock.features != features) {
            write_copies(device, &mut superblock).await?;
        }
        if let (Some(device), Some(detail)) = (device, label) {
            repair_label(&device, &superblock).await?;
            out.found.extend(Problem::of(&Finding::DamagedLabel(detail)));
            out.note("the label was written anew".into());
        }
        Ok(out)
    })
}

/// Repairs an open store. Nothing else may use it meanwhile.
///
/// # Errors
/// `Io`, `Poisoned`, `ReadOnly`.
pub(super) async fn repair_open(
    mfs: &Mfs,
    options: FsckOptions<'_>,
) -> Result<Repaired, StoreError> {
    let mut out = Repaired::default();
    let mut memory = RoundMemory { on_loss: options.on_loss, ..RoundMemory::default() };
    rounds(mfs, options, &mut out, &mut memory).await?;
    out.omitted += memory.losses.omitted;
    out.lost = memory.losses.with_paths(mfs).await?;
    Ok(out)
}

async fn rounds(
    mfs: &Mfs,
    options: FsckOptions<'_>,
    out: &mut Repaired,
    memory: &mut RoundMemory,
) -> Result<(), StoreError> {
    let mut state = RepairState::new(mfs).await?;
    loop {
        let mut check = whole_check(mfs, options).await?;
        out.rounds += 1;
        out.take(&mut check);
        memory.note_missing_maps(&check.without_map);
        let opened = out.note_opening(mfs);
        let stages = state.plan(mfs, std::mem::take(&mut check.plan)).await?;
        let report = std::mem::take(&mut check.report);
        if stages.is_empty() && (opened || out.make_maps(mfs, memory).await?) {
            continue;
        }
        if stages.is_empty() || out.rounds == ROUNDS_MAX {
            if report.is_clean() {
                engine::repair::RepairState::finish(mfs).await?;
            }
            out.left = report;
            return Ok(());
        }
        let mut fixer = Fixer::new(mfs, check, state);
        let only = stages.len() == 1;
        let (mut repaired, mut trees) = (false, false);
        for (stage, fixes) in &stages {
            if *stage == Stage::Counts && !only {
                break;
            }
            mfs.forget_indexes();
            repaired = out.stage(&mut fixer, fixes, memory).await?;
            mfs.forget_indexes();
            trees = repaired && *stage == Stage::Trees;
            // Repair leaves what depends on a tree or a chunk that it cannot repair.
            let needed = matches!(stage, Stage::Trees | Stage::System | Stage::Chunks);
            if repaired || needed {
                break;
            }
        }
        out.wanted = std::mem::take(&mut fixer.wanted);
        state = fixer.into_state(trees);
        if planted(Bug::RepairOnce) {
            return Ok(());
        }
        // The report still has what opening repaired, so it is not what is left: check once more.
        if !repaired && !opened {
            out.left = report;
            return Ok(());
        }
    }
}

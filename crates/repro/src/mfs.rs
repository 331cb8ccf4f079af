//! The metadata store by itself, on a sparse file: how fast files are made, the log is redone, and
//! a file system of millions of files is checked.
//!
//! Invariants:
//! - there is no network and no server; what the store and its file are, [`alone`](crate::alone)
//!   says;
//! - each stage opens the store anew, on what the one before left.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use env::Env;
use mfs::fsck::{FsckOptions, Report, fsck};
use mfs::journal::Disks;
use mfs::{Cost, FormatOptions, Mfs, OpenOptions, SlotSize, StoreError, Txn};
use serde::Serialize;
use types::{Duration, FileKind, Ino, Instant, Transno};

use crate::alone::{Clocks, Image, Took, directories};
use crate::layouts::bed::broken;
use crate::layouts::caller::{name, new_inode};
use bench::Res;
use bench::report::Columns;

/// Creates between two looks at the clock, and a turn for the store's own tasks.
const BURST: u64 = 64;
/// Files that fill the log further, made durable together.
const FILL: u64 = 4096;

/// A measurement of the store alone.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the file is made.
    pub dir: PathBuf,
    /// Files that are made.
    pub files: u64,
    /// Files of each directory.
    pub per_directory: u64,
    /// Creates that are under way at once, each durable before it is answered; 0: one after the
    /// other, durable later.
    pub in_flight: u64,
    /// Age at which changes are made durable that nobody waits for.
    pub commit: Duration,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Does the log lie in a file of its own?
    pub journal: bool,
    /// Bytes of the store's cache, and of the check's.
    pub cache_bytes: usize,
    /// Threads of the check; one check with each.
    pub jobs: Vec<usize>,
    /// Size of directory slots.
    pub slots: SlotSize,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct Found {
    /// Files that were made.
    pub files: u64,
    /// Creates under way at once; 0: durable later.
    pub in_flight: u64,
    /// Making them, until all are durable.
    pub create: Took,
    /// Bytes of the log for each.
    pub log_bytes_each: f64,
    /// Longest time from a create to its being durable, looked at every 64 creates.
    pub durable_seconds_max: f64,
    /// Bytes that the log held when the store was lost.
    pub redo_bytes: u64,
    /// Redoing them, in memory.
    pub redo: Took,
    /// Opening it for writing after that: redo, and everything brought home.
    pub recover: Took,
    /// The checks.
    pub fsck: Vec<Checked>,
}

/// The costs and findings of a check.
#[derive(Clone, Serialize, Debug)]
pub struct Checked {
    /// Threads that looked through directory content.
    pub jobs: usize,
    /// Its time.
    pub took: Took,
    /// Most memory that the process had meanwhile, in bytes.
    pub memory: u64,
    /// Inodes that it counted.
    pub inodes: u64,
    /// Its findings, which should be none.
    pub problems: u64,
}

/// Does all stages.
///
/// # Errors
/// The store or the file.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Res<Found> {
    let mut image = Image::make(&plan.dir, "mfs", plan.log_bytes, plan.files, plan.slots)?;
    if plan.journal {
        image = image.with_journal()?;
    }
    let mut found = image.staged(|env, disks| made(env, disks, image.format(), plan.clone()))?;
    progress(&format!(
        "{} files in {:.1} s ({:.1} s of processor), log of {} MiB",
        plan.files,
        found.create.seconds,
        found.create.processor,
        found.redo_bytes >> 20
    ));
    let cache_bytes = plan.cache_bytes;
    found.redo = image.staged(|env, disks| opened(env, disks, cache_bytes, true))?;
    found.recover = image.staged(|env, disks| opened(env, disks, cache_bytes, false))?;
    progress(&format!("redone in {:.2} s", found.redo.seconds));
    for &jobs in &plan.jobs {
        forget_peak();
        let options = FsckOptions { cache_bytes, jobs, ..FsckOptions::default() };
        let (took, report) = image.staged(|env, disks| checked(env, disks, options))?;
        let problems = report.problems.len() as u64 + report.omitted;
        let inodes = report.counts.inodes;
        found.fsck.push(Checked { jobs, took, memory: peak(), inodes, problems });
    }
    drop(image);
    Ok(found)
}

/// Gives memory back, and begins to note the most that there is anew.
fn forget_peak() {
    // SAFETY: it only gives free memory back.
    unsafe { libc::malloc_trim(0) };
    // Without it the peak is that of all stages: too much, never too little.
    drop(std::fs::write("/proc/self/clear_refs", "5"));
}

/// The most memory that there was, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// One directory after the other, each with its files.
struct Maker {
    env: Env,
    mfs: Mfs,
    plan: Plan,
    dirs: Vec<Ino>,
    next: std::cell::Cell<u64>,
}

impl Maker {
    async fn create(&self, n: u64) -> Result<Transno, StoreError> {
        let dir = self.dirs[(n / self.plan.per_directory) as usize % self.dirs.len()];
        let new = new_inode(FileKind::Regular, self.env.wall());
        let text = format!("file.{n:08}");
        let body = |txn: &mut Txn<'_>| txn.names().create(dir, &name(&text)?, &new, None);
        Ok(self.mfs.run(Cost::SMALL, body).await?.1)
    }

    /// Makes the files up to `end`, one after the other; the longest time until one was durable.
    async fn lazily(&self, end: u64) -> Result<Duration, StoreError> {
        let (mut waiting, mut longest) = (VecDeque::new(), Duration::ZERO);
        while self.next.get() < end {
            let mut number = Transno::ZERO;
            for n in self.next.get()..end.min(self.next.get() + BURST) {
                number = self.create(n).await?;
                self.next.set(n + 1);
            }
            let now = self.env.now();
            waiting.push_back((now, number));
            self.durable(&mut waiting, now, &mut longest);
            self.env.yield_now().await;
        }
        self.mfs.sync().await?;
        self.durable(&mut waiting, self.env.now(), &mut longest);
        Ok(longest)
    }

    fn durable(
        &self,
        waiting: &mut VecDeque<(Instant, Transno)>,
        now: Instant,
        longest: &mut Duration,
    ) {
        let last = self.mfs.last_committed();
        while let Some((since, _)) = waiting.pop_front_if(|(_, number)| *number <= last) {
            *longest = (*longest).max(now.since(since));
        }
    }

    /// Makes files until `end`, each durable before the next of this caller.
    async fn durably(self: Rc<Self>, end: u64) -> Result<Duration, StoreError> {
        let mut longest = Duration::ZERO;
        while self.next.get() < end {
            let n = self.next.replace(self.next.get() + 1);
            let begin = self.env.now();
            let number = self.create(n).await?;
            self.mfs.wait_durable(number).await?;
            longest = longest.max(self.env.now().since(begin));
        }
        Ok(longest)
    }
}

/// Formats the disk and makes the files; the store is lost with a log that is as full as it was.
async fn made(env: Env, disks: Disks, format: FormatOptions, plan: Plan) -> Res<Found> {
    let wrong = |error: StoreError| broken("making files", &error);
    Mfs::format(&env, &disks, &format).await.map_err(wrong)?;
    let (cache_bytes, commit_interval) = (plan.cache_bytes, plan.commit);
    let options = OpenOptions { cache_bytes, commit_interval, ..OpenOptions::default() };
    let mfs = Mfs::open(&env, &disks, options).await.map_err(wrong)?;
    let count = plan.files.div_ceil(plan.per_directory.max(1));
    let dirs = directories(&env, &mfs, count).await?;
    let (files, in_flight) = (plan.files, plan.in_flight);
    let next = std::cell::Cell::new(0);
    let maker = Rc::new(Maker { env: env.clone(), mfs: mfs.clone(), plan, dirs, next });
    let before = mfs.last_committed().lsn.0;
    let clocks = Clocks::begin(&env);
    let mut longest = Duration::ZERO;
    if in_flight == 0 {
        longest = maker.lazily(files).await.map_err(wrong)?;
    } else {
        let tasks: Vec<_> =
            (0..in_flight).map(|_| env.spawn_join(maker.clone().durably(files))).collect();
        for task in tasks {
            longest = longest.max(task.await.map_err(wrong)?);
        }
    }
    let create = clocks.took();
    let log = mfs.last_committed().lsn.0 - before;
    // As full a log as there is: nothing changes while it is fuller than three quarters.
    let mut end = files;
    while mfs.usage().log_used < mfs.usage().log_bytes / 10 * 7 && end < 2 * files {
        end += FILL;
        maker.lazily(end).await.map_err(wrong)?;
    }
    Ok(Found {
        files,
        in_flight,
        create,
        log_bytes_each: log as f64 / files as f64,
        durable_seconds_max: longest.as_secs_f64(),
        redo_bytes: mfs.usage().log_used,
        redo: Took::default(),
        recover: Took::default(),
        fsck: Vec::new(),
    })
}

async fn opened(env: Env, disks: Disks, cache_bytes: usize, read_only: bool) -> Res<Took> {
    let wrong = |error: StoreError| broken("opening", &error);
    let clocks = Clocks::begin(&env);
    let options = OpenOptions { cache_bytes, read_only, ..OpenOptions::default() };
    let mfs = Mfs::open(&env, &disks, options).await.map_err(wrong)?;
    let took = clocks.took();
    mfs.close().await.map_err(wrong)?;
    Ok(took)
}

async fn checked(env: Env, disks: Disks, options: FsckOptions<'_>) -> Res<(Took, Report)> {
    let clocks = Clocks::begin(&env);
    let report = fsck(&env, &disks, options).await.map_err(|error| broken("checking", &error))?;
    Ok((clocks.took(), report))
}

impl Found {
    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let rate = |count: u64, seconds: f64| format!("{:.0}/s", count as f64 / seconds.max(1e-9));
        let mut table =
            Columns::new(&["stage", "seconds", "processor", "by the clock", "by processor", ""]);
        let how = match self.in_flight {
            0 => format!("durable within {:.2} s", self.durable_seconds_max),
            n => format!("{n} in flight, each durable"),
        };
        let mut row = |stage: &str, took: Took, count: u64, what: String| {
            table.row(vec![
                stage.into(),
                format!("{:.2}", took.seconds),
                format!("{:.2}", took.processor),
                rate(count, took.seconds),
                rate(count, took.processor),
                what,
            ]);
        };
        row("create", self.create, self.files, how);
        let redone = format!("{} MiB of log", self.redo_bytes >> 20);
        row("redo", self.redo, self.redo_bytes >> 20, redone);
        row("recover", self.recover, self.redo_bytes >> 20, "and brought home".into());
        for check in &self.fsck {
            let what = format!("{} MiB, {} findings", check.memory >> 20, check.problems);
            row(&format!("fsck, {} threads", check.jobs), check.took, check.inodes, what);
        }
        let each = self.create.processor * 1e6 / self.files as f64;
        format!(
            "{} files: {:.2} us of processor and {:.0} bytes of log for each\n\n{}",
            self.files,
            each,
            self.log_bytes_each,
            table.text()
        )
    }
}

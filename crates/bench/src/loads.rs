//! xcdn, Filebench's personalities, small files and streams on mounts: Redbud with one list of
//! mount options after the other, ext4, and a null mount, in turns.
//!
//! Invariants:
//! - all contenders have loop devices of the same kind, and get the same load from the same
//!   processes; only the options differ;
//! - Redbud is one file system, which is mounted anew, with the contender's options, for each turn;
//! - the clock starts with the files of the load alone, durable: by syncfs(2), or by `redbud sync`
//!   on Redbud, as syncfs(2) does not reach a FUSE file system; what xcdn reads is not cached,
//!   while Filebench begins with what it has just made in the kernel's pages, as the program does;
//! - the null mount writes each request to a device past the page cache, and does nothing else;
//! - two times are taken: until the processes have ended, and until all they did is durable.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::barrier::{StartBarrier, once};
use crate::contender::{Field, Kind, SetUp};
use crate::loops::Throttle;
use crate::report::{Columns, median};
use crate::scripts::filebench::Personality;
use crate::scripts::xcdn;
use crate::worker::{Job, Names};
use crate::works::{Sample, sample, share};
use crate::{Res, failed, process};

/// A load of the paper's evaluation, on mounts and on the virtual cluster (000 §V).
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Scripted {
    /// xcdn with objects of one size.
    Xcdn {
        /// Bytes of an object.
        bytes: u64,
        /// Operations of each process.
        ops: u64,
    },
    /// A personality of Filebench.
    Filebench {
        /// Which.
        personality: Personality,
        /// For how long.
        millis: u64,
    },
}

impl Scripted {
    /// Its name.
    pub fn text(self) -> String {
        match self {
            Scripted::Xcdn { bytes, .. } => format!("xcdn {} KiB", bytes >> 10),
            Scripted::Filebench { personality, .. } => personality.text().to_owned(),
        }
    }
}

/// A load on mounts.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Files that are made, written and closed.
    Small {
        /// How many.
        files: u64,
        /// Processes.
        workers: u64,
        /// Bytes of each.
        bytes: usize,
    },
    /// One file is written from its begin to its end, over and over.
    Stream {
        /// Its size.
        bytes: u64,
        /// For how long.
        millis: u64,
    },
    /// Small files are made with fsync by one process, first alone, then beside a stream.
    Fsync {
        /// Size of the stream's file.
        bytes: u64,
        /// For how long, each of the two.
        millis: u64,
    },
    /// One of the paper's.
    #[serde(untagged)]
    Scripted(Scripted),
}

/// Most files that [`Load::Fsync`] makes in a turn.
pub const FSYNCED_MAX: u64 = 100_000;
/// Bytes of each.
const FSYNCED: usize = 4096;

impl Load {
    /// Its name.
    pub fn text(self) -> String {
        match self {
            Load::Scripted(load) => load.text(),
            Load::Small { workers, bytes, .. } => {
                format!("files of {} KiB by {workers} processes", bytes >> 10)
            }
            Load::Stream { .. } => "one stream".to_owned(),
            Load::Fsync { .. } => "fsync of small files, alone and beside a stream".to_owned(),
        }
    }

    /// Bytes of a disk that has room for two turns.
    fn disk_bytes(self) -> u64 {
        let each = match self {
            Load::Scripted(Scripted::Xcdn { bytes, ops }) => {
                xcdn::PROCESSES * (xcdn::STOCK + ops) * bytes
            }
            Load::Scripted(Scripted::Filebench { personality, .. }) => {
                let parameters = personality.parameters();
                parameters.files as u64 * (parameters.file_size + parameters.append)
            }
            Load::Small { files, bytes, .. } => files * bytes as u64,
            Load::Stream { bytes, .. } => bytes,
            Load::Fsync { bytes, .. } => bytes + 2 * FSYNCED_MAX * FSYNCED as u64,
        };
        (512 << 20) + 2 * each
    }
}

/// The file systems that a load is measured on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contender {
    /// Redbud with these options of its mount, separated by commas.
    Redbud(String),
    /// A null mount on a device like that of Redbud's data.
    Null,
    /// ext4 on a device like that of Redbud's data.
    Ext4,
}

impl Contender {
    fn name(&self) -> String {
        match self {
            Contender::Redbud(options) if options.is_empty() => "redbud".to_owned(),
            Contender::Redbud(options) => format!("redbud {options}"),
            Contender::Null => "null, O_DIRECT".to_owned(),
            Contender::Ext4 => "ext4".to_owned(),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Contender::Redbud(_) => Kind::Redbud,
            Contender::Null => Kind::Null,
            Contender::Ext4 => Kind::Ext4,
        }
    }
}

/// A measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where and with what; disks and kinds are chosen here.
    pub set_up: SetUp,
    /// The load.
    pub load: Load,
    /// The file systems; the table compares the others with the first one.
    pub contenders: Vec<Contender>,
    /// The bound on the speed of the data devices.
    pub throttle: Throttle,
    /// Turns of each contender.
    pub runs: usize,
}

/// The result of a turn.
#[derive(Clone, Serialize, Debug)]
pub struct Turn {
    /// Operations and times of the processes, up to the end of the last one.
    #[serde(flatten)]
    pub sample: Sample,
    /// Nanoseconds until that was durable.
    pub durable_nanos: u64,
    /// Times of the operations, of loads that take them.
    pub times: Option<Times>,
    /// The same without a stream beside them.
    pub alone: Option<Times>,
    /// Requests with commits that Redbud's client sent until all was durable.
    pub commits: Option<u64>,
}

/// Times of operations, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Times {
    /// Half of them took so long at most.
    pub median: u32,
    /// So long 99 of 100.
    pub p99: u32,
    /// So long 999 of 1000.
    pub p999: u32,
    /// The longest one.
    pub longest: u32,
}

impl Times {
    /// Of the lists that workers printed.
    fn of(texts: &[String]) -> Option<Times> {
        let lists = texts.iter().filter_map(|text| serde_json::from_str::<Vec<u32>>(text).ok());
        let mut all: Vec<u32> = lists.flatten().collect();
        all.sort_unstable();
        let at = |of_1000: usize| all.get((all.len() * of_1000).div_ceil(1000).max(1) - 1).copied();
        Some(Times { median: at(500)?, p99: at(990)?, p999: at(999)?, longest: at(1000)? })
    }
}

impl Turn {
    /// Operations in a second, until all is durable.
    fn durable_rate(&self) -> f64 {
        self.sample.ops as f64 * 1e9 / self.durable_nanos.max(1) as f64
    }
}

/// A contender's turns.
#[derive(Clone, Serialize, Debug)]
pub struct Row {
    /// Its name.
    pub contender: String,
    /// Median of the operations in a second, until the processes had ended.
    pub rate: f64,
    /// The same until all was durable.
    pub durable_rate: f64,
    /// That by the first contender's, with the least and the largest of a single run.
    pub ratio: f64,
    /// See `ratio`.
    pub spread: (f64, f64),
    /// All turns.
    pub turns: Vec<Turn>,
}

/// All that was measured.
#[derive(Clone, Serialize, Debug)]
pub struct Found {
    version: u32,
    load: Load,
    rows: Vec<Row>,
}

/// Measures, telling `progress` each turn.
///
/// # Errors
/// The step that failed and why; everything is taken away again.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Res<Found> {
    process::catch_interrupts();
    let Plan { load, contenders, throttle, .. } = plan;
    if contenders.is_empty() {
        return failed(&load.text(), "there is no contender");
    }
    if *throttle != Throttle::default() && contenders.contains(&Contender::Ext4) {
        let why = "the kernel does not bound what ext4 writes back: leave it out (--without-ext4)";
        return failed("bounding devices", why);
    }
    let mut kinds: Vec<Kind> = contenders.iter().map(Contender::kind).collect();
    kinds.sort();
    kinds.dedup();
    progress("setting up");
    let mut field = Field::set_up(&SetUp {
        disks: 1,
        disk_bytes: load.disk_bytes(),
        loops: Some(*throttle),
        kinds,
        ..plan.set_up.clone()
    })?;
    let mut turns = vec![Vec::new(); contenders.len()];
    for run in 1..=plan.runs {
        for (contender, turns) in contenders.iter().zip(&mut turns) {
            let done = turn(&mut field, *load, contender)?;
            progress(&format!(
                "run {run}/{}, {}, {}: {:.0}/s, {:.0}/s until durable",
                plan.runs,
                load.text(),
                contender.name(),
                done.sample.rate(),
                done.durable_rate(),
            ));
            turns.push(done);
        }
    }
    field.tear_down()?;
    Ok(Found::new(*load, contenders, turns))
}

/// One turn.
fn turn(field: &mut Field, load: Load, contender: &Contender) -> Res<Turn> {
    let (kind, label) = (contender.kind(), format!("{} on {}", load.text(), contender.name()));
    let more = match contender {
        Contender::Redbud(options) if !options.is_empty() => format!(",{options}"),
        _ => String::new(),
    };
    field.refresh_with(kind, &more)?;
    let dir = field.place(kind).join("load");
    let step = |field: &Field, job| once(&field.tools, &label, job);
    step(field, Job::MakeDir(dir.clone()))?;
    if let Load::Scripted(Scripted::Xcdn { bytes, .. }) = load {
        step(field, Job::XcdnTree(dir.clone()))?;
        let stock = |number| Job::XcdnStock { dir: dir.clone(), number, bytes };
        let jobs = (0..xcdn::PROCESSES).map(stock).collect();
        StartBarrier::ready(&field.tools, &label, jobs)?.start()?;
        field.settle(kind)?;
        field.refresh_with(kind, &more)?;
    }
    let mut alone = None;
    if let Load::Fsync { millis, .. } = load {
        let done = step(field, fsynced(&dir, "alone-", millis))?;
        alone = Times::of(&[done.text]);
        field.settle(kind)?;
    }
    let before = commits(field, kind)?;
    let mut sample = sample(field, kind, &label, jobs(load, &dir))?;
    let texts = std::mem::take(&mut sample.texts);
    let times = match load {
        // The second worker is the stream.
        Load::Fsync { .. } => Times::of(&texts[..1]),
        Load::Small { .. } | Load::Stream { .. } => Times::of(&texts),
        Load::Scripted(_) => None,
    };
    let durable_nanos = sample.nanos + field.sync(kind)?;
    let after = commits(field, kind)?;
    step(field, Job::Remove(dir))?;
    field.settle(kind)?;
    let commits = after.zip(before).map(|(after, before)| after - before);
    Ok(Turn { sample, durable_nanos, times, alone, commits })
}

/// Requests with commits that Redbud's client has sent so far, as its status says.
fn commits(field: &Field, kind: Kind) -> Res<Option<u64>> {
    if kind != Kind::Redbud {
        return Ok(None);
    }
    let (step, place) = ("asking the client's status", field.place(kind));
    let arguments = [OsStr::new("status"), OsStr::new("--json"), place.as_os_str()];
    let text = process::output(&field.tools, step, &arguments)?;
    let status: serde_json::Value =
        serde_json::from_str(&text).or_else(|error| failed(step, error))?;
    let mounts = status["mounts"].as_array().into_iter().flatten();
    let here = |mount: &&serde_json::Value| {
        mount["mount"].as_str().is_some_and(|path| Path::new(path) == place)
    };
    let found = mounts.clone().find(here).map(|mount| &mount["client"]["commits"]["requests"]);
    match found.and_then(serde_json::Value::as_u64) {
        Some(requests) => Ok(Some(requests)),
        None => failed(step, format!("the status has no requests: {text}")),
    }
}

/// Files with fsync.
fn fsynced(dir: &Path, prefix: &str, millis: u64) -> Job {
    let names = Names { dir: dir.to_owned(), prefix: prefix.to_owned(), count: FSYNCED_MAX };
    Job::TimedSmall { names, bytes: FSYNCED, fsync: true, millis: Some(millis) }
}

/// The work of a load's processes.
fn jobs(load: Load, dir: &Path) -> Vec<Job> {
    let dir = || PathBuf::from(dir);
    match load {
        Load::Scripted(Scripted::Xcdn { bytes, ops }) => {
            let all = xcdn::PROCESSES;
            (0..all).map(|number| Job::Xcdn { dir: dir(), number, all, bytes, ops }).collect()
        }
        Load::Scripted(Scripted::Filebench { personality, millis }) => {
            vec![Job::Filebench { dir: dir(), personality, number: 0, millis }]
        }
        Load::Small { files, workers, bytes } => {
            let small = |names| Job::TimedSmall { names, bytes, fsync: false, millis: None };
            share(dir(), files, workers).map(small).collect()
        }
        Load::Stream { bytes, millis } => vec![Job::TimedStream { dir: dir(), bytes, millis }],
        Load::Fsync { bytes, millis } => {
            let stream = Job::TimedStream { dir: dir(), bytes, millis };
            vec![fsynced(&dir(), "beside-", millis), stream]
        }
    }
}

impl Row {
    /// The median of what turns have, with so many decimals; a dash if they do not have it.
    fn middle(&self, of: impl Fn(&Turn) -> Option<f64>, decimals: usize) -> String {
        let values: Vec<f64> = self.turns.iter().filter_map(of).collect();
        if values.is_empty() { "-".to_owned() } else { format!("{:.decimals$}", median(values)) }
    }
}

impl Found {
    fn new(load: Load, contenders: &[Contender], turns: Vec<Vec<Turn>>) -> Found {
        let first: Vec<f64> = turns.first().into_iter().flatten().map(Turn::durable_rate).collect();
        let row = |(contender, turns): (&Contender, Vec<Turn>)| {
            let rates: Vec<f64> = turns.iter().map(Turn::durable_rate).collect();
            let single = rates.iter().zip(&first).map(|(one, first)| one / first);
            let spread = single
                .fold((f64::INFINITY, 0f64), |(least, most), one| (least.min(one), most.max(one)));
            let durable_rate = median(rates);
            Row {
                contender: contender.name(),
                rate: median(turns.iter().map(|turn| turn.sample.rate())),
                durable_rate,
                ratio: durable_rate / median(first.clone()),
                spread,
                turns,
            }
        };
        Found { version: 1, load, rows: contenders.iter().zip(turns).map(row).collect() }
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let first = self.rows.first().map_or("", |row| &row.contender);
        let by = format!("x {first}");
        let mut table = Columns::new(&[
            "contender",
            "ops/s",
            "until durable",
            &by,
            "(runs)",
            "cpu us",
            "mds cpu us",
            "flushes",
            "commit requests",
            "us: half",
            "99 %",
            "99.9 %",
            "longest",
            "99 % x alone",
        ]);
        for row in &self.rows {
            let each = |of: &dyn Fn(&Sample) -> f64| {
                median(
                    row.turns.iter().map(|turn| of(&turn.sample) / turn.sample.ops.max(1) as f64),
                )
            };
            table.row(vec![
                row.contender.clone(),
                format!("{:.0}", row.rate),
                format!("{:.0}", row.durable_rate),
                format!("{:.2}", row.ratio),
                format!("({:.2}-{:.2})", row.spread.0, row.spread.1),
                format!("{:.1}", each(&|sample| sample.mount_cpu as f64 / 1e3)),
                format!("{:.1}", each(&|sample| sample.server_cpu as f64 / 1e3)),
                format!("{:.3}", each(&|sample| sample.flushes.unwrap_or_default() as f64)),
                row.middle(|turn| Some(turn.commits? as f64), 0),
                row.middle(|turn| Some(f64::from(turn.times?.median)), 0),
                row.middle(|turn| Some(f64::from(turn.times?.p99)), 0),
                row.middle(|turn| Some(f64::from(turn.times?.p999)), 0),
                row.middle(|turn| Some(f64::from(turn.times?.longest)), 0),
                row.middle(|turn| Some(f64::from(turn.times?.p99) / f64::from(turn.alone?.p99)), 2),
            ]);
        }
        format!("{}, one mount:\n\n{}", self.load.text(), table.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_are_compared_with_the_first_by_the_time_until_durable() {
        let turn = |ops, nanos, durable_nanos| Turn {
            sample: Sample { ops, nanos, ..Sample::default() },
            durable_nanos,
            times: Times::of(&["[1,2]".into(), "[9]".into()]),
            alone: None,
            commits: None,
        };
        let contenders = [Contender::Redbud("dirty=8M".into()), Contender::Ext4];
        let turns = vec![
            vec![turn(100, 1_000_000_000, 2_000_000_000), turn(100, 1, 4_000_000_000)],
            vec![turn(300, 1_000_000_000, 3_000_000_000), turn(100, 1, 1_000_000_000)],
        ];
        let load =
            Load::Scripted(Scripted::Filebench { personality: Personality::Varmail, millis: 1 });
        let found = Found::new(load, &contenders, turns);
        let ratios: Vec<f64> = found.rows.iter().map(|row| row.ratio).collect();
        assert!((ratios[0] - 1.0).abs() < 1e-9 && (ratios[1] - 100.0 / 37.5).abs() < 1e-9);
        let spread = found.rows[1].spread;
        assert!((spread.0 - 2.0).abs() < 1e-9 && (spread.1 - 4.0).abs() < 1e-9, "{spread:?}");
        let text = found.text();
        assert!(text.contains("x redbud dirty=8M") && text.contains("(2.00-4.00)"), "{text}");
        let times = Times { median: 2, p99: 9, p999: 9, longest: 9 };
        assert_eq!(found.rows[0].turns[0].times, Some(times));
        assert!(found.to_json().contains("\"durable_nanos\": 2000000000"));
    }
}

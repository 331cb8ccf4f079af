//! One client on several devices that are bounded as disks are: does it keep all of them at work,
//! and does a file that several processes write come out in few pieces?

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;

use serde::Serialize;

use crate::barrier::{Finished, StartBarrier, once};
use crate::contender::{Field, Kind, SetUp};
use crate::loops::Throttle;
use crate::report::{Columns, median};
use crate::worker::{Job, Part, Stream};
use crate::works::{Sizes, WORKS};
use crate::{Res, failed, process};

/// Numbers of devices that are measured.
const DEVICES: [usize; 2] = [2, 4];
/// Files that are written at the same time.
const FILES: u64 = 4;
/// Bytes of a part of the striped file.
const PART: &str = "1M";
/// Requests in flight to each raw device.
const DEPTH: usize = 4;
/// Processes that write one file.
const PROCESSES: u64 = 8;
/// Bytes of their requests.
const REQUEST: u64 = 64 << 10;
/// How the blocks of the shared file are allocated, and when.
const ALLOCATIONS: [&str; 3] = ["od", "reservation", "vanilla"];
const TIMES: [&str; 2] = ["launch", "write"];
/// Of what the devices do together.
const LEAST_OF_SUM: Bound = Bound::AtLeast(0.9);
/// Of what eight processes do with a file each.
const LEAST_OF_PRIVATE: Bound = Bound::AtLeast(0.8);
/// Of the segments that other ways to allocate make.
const MOST_SEGMENTS: Bound = Bound::AtMost(0.5);
/// Of small files on one device.
const LEAST_SMALL: Bound = Bound::AtLeast(0.95);

/// A measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where and with what; disks and contenders are chosen here.
    pub set_up: SetUp,
    /// Bytes for each device.
    pub bytes: u64,
    /// Bytes of the file that eight processes write.
    pub shared: u64,
    /// Small files that are written with fsync.
    pub small: u64,
    /// Bytes a second of each device.
    pub rate: u64,
    /// Runs of each work.
    pub runs: usize,
    /// What is measured.
    pub parts: Vec<MeasuredPart>,
}

/// A part of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeasuredPart {
    /// Files on two and four devices, beside the devices themselves.
    Sum,
    /// A file that eight processes write.
    Shared,
    /// Small files with fsync on one device and on four.
    Small,
}

/// What was measured, by name: one value of each run.
type Values = BTreeMap<String, Vec<f64>>;

/// A ratio that is asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// What is measured.
    pub what: String,
    /// Its median.
    pub value: f64,
    /// What it is divided by, and the median of that.
    pub by: String,
    /// See `by`.
    pub divisor: f64,
    /// The ratio of the medians.
    pub ratio: f64,
    /// Least and largest ratio of a single run.
    pub spread: (f64, f64),
    /// What is asked; `None`: nothing.
    pub asked: Option<Bound>,
    /// Is it reached?
    pub met: bool,
}

/// What a ratio must be.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Bound {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Bound::AtLeast(least) => format!("at least {least}"),
            Bound::AtMost(most) => format!("at most {most}"),
        }
    }
}

/// All that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    version: u32,
    /// Bytes a second of each device.
    rate: u64,
    ratios: Vec<Ratio>,
    /// Rates are in bytes or files a second, segments are numbers of segments.
    values: Values,
}

/// Measures, telling `progress` each step.
///
/// # Errors
/// The step that failed and why; everything is taken away again.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Res<Found> {
    process::catch_interrupts();
    let mut bench = Bench { plan, values: Values::new(), ratios: Vec::new(), progress };
    for part in &plan.parts {
        match part {
            MeasuredPart::Sum => DEVICES.into_iter().try_for_each(|n| bench.throughput(n))?,
            MeasuredPart::Shared => bench.shared_file()?,
            MeasuredPart::Small => bench.small_files()?,
        }
    }
    let Bench { values, ratios, .. } = bench;
    Ok(Found { version: 1, rate: plan.rate, ratios, values })
}

struct Bench<'a> {
    plan: &'a Plan,
    values: Values,
    ratios: Vec<Ratio>,
    progress: &'a mut dyn FnMut(&str),
}

impl Bench<'_> {
    fn field(&mut self, disks: usize, bytes: u64, rate: Option<u64>, raw: bool) -> Res<Field> {
        (self.progress)(&format!("setting up {disks} devices"));
        let kinds = if raw { vec![Kind::Redbud, Kind::Raw] } else { vec![Kind::Redbud] };
        let disk_bytes = bytes + bytes / 4 + (64 << 20);
        let loops = rate.map(|rate| Throttle { bytes: Some(rate), writes: None });
        Field::set_up(&SetUp { disks, disk_bytes, loops, kinds, ..self.plan.set_up.clone() })
    }

    fn note(&mut self, name: &str, value: f64) {
        (self.progress)(&format!("{name}: {value:.0}"));
        self.values.entry(name.to_owned()).or_default().push(value);
    }

    /// Runs jobs at the same time; their rate is noted.
    fn rate(&mut self, field: &Field, name: &str, jobs: Vec<Job>) -> Res<()> {
        let done = StartBarrier::ready(&field.tools, name, jobs)?.start()?;
        self.note(name, rate(&done));
        field.settle(Kind::Redbud)
    }

    /// Four files at once, and one striped file, beside the sum of the raw devices.
    fn throughput(&mut self, devices: usize) -> Res<()> {
        // The four files, and the striped one.
        let bytes = 2 * self.plan.bytes;
        let mut field = self.field(devices, bytes, Some(self.plan.rate), true)?;
        let all = self.plan.bytes * devices as u64;
        let root = field.place(Kind::Redbud);
        let striped = root.join("striped");
        once(&field.tools, "making a directory", Job::MakeDir(striped.clone()))?;
        let width = devices.to_string();
        let policy =
            ["set-layout", "--policy", "striping", "--part", PART, "--width", &width, "--"];
        let arguments: Vec<&OsStr> = policy.iter().map(OsStr::new).collect();
        let arguments = [&arguments[..], &[striped.as_os_str()]].concat();
        process::run(&field.tools, "set-layout", &arguments)?;
        let stream = |file, bytes| Stream { file, bytes, direct: false, depth: 1 };
        let four: Vec<Stream> =
            (0..FILES).map(|k| stream(root.join(format!("file-{k}")), all / FILES)).collect();
        let one = vec![stream(striped.join("file"), all)];
        let raw: Vec<Stream> = field
            .raw_disks()
            .iter()
            .map(|disk| Stream {
                direct: true,
                depth: DEPTH,
                ..stream(disk.clone(), self.plan.bytes)
            })
            .collect();
        let sets = [("raw", raw), ("4 files", four), ("1 file", one)];
        for _ in 0..self.plan.runs {
            for (set, streams) in &sets {
                let name = |way: &str| format!("{devices} devices, {set}, {way}");
                if *set != "raw" {
                    for stream in streams {
                        let file = stream.file.clone();
                        once(&field.tools, "removing a file", Job::RemoveFile(file))?;
                    }
                    field.settle(Kind::Redbud)?;
                }
                let writes = streams.iter().cloned().map(Job::WriteSeq).collect();
                self.rate(&field, &name("write"), writes)?;
                field.refresh(Kind::Redbud)?;
                let reads = streams.iter().cloned().map(Job::ReadSeq).collect();
                self.rate(&field, &name("read"), reads)?;
            }
        }
        for set in ["4 files", "1 file"] {
            for way in ["write", "read"] {
                let name = |set| format!("{devices} devices, {set}, {way}");
                self.ratio(&name(set), &name("raw"), Some(LEAST_OF_SUM));
            }
        }
        field.tear_down()
    }

    /// Eight processes write one file, beside eight that write a file each; one reads it back.
    fn shared_file(&mut self) -> Res<()> {
        let mut field = self.field(1, 2 * self.plan.shared, Some(self.plan.rate), false)?;
        for _ in 0..self.plan.runs {
            for time in TIMES {
                for allocation in ALLOCATIONS {
                    for pattern in [Pattern::Private, Pattern::Eighths, Pattern::Strides] {
                        self.shared_turn(&mut field, time, allocation, pattern)?;
                    }
                }
            }
        }
        for time in TIMES {
            for pattern in [Pattern::Eighths, Pattern::Strides] {
                let name = |allocation, what| shared_name(time, allocation, pattern, what);
                // Strides are no streams: they are shown beside.
                let asked = |bound| (pattern == Pattern::Eighths).then_some(bound);
                for other in ["vanilla", "reservation"] {
                    let (od, other) = (name("od", "segments"), name(other, "segments"));
                    self.ratio(&od, &other, asked(MOST_SEGMENTS));
                }
                for way in ["write", "read"] {
                    let private = shared_name(time, "od", Pattern::Private, way);
                    self.ratio(&name("od", way), &private, asked(LEAST_OF_PRIVATE));
                }
            }
        }
        field.tear_down()
    }

    fn shared_turn(
        &mut self,
        field: &mut Field,
        time: &str,
        allocation: &str,
        pattern: Pattern,
    ) -> Res<()> {
        field.refresh_with(Kind::Redbud, &format!(",place={time},prealloc={allocation}"))?;
        let (root, bytes) = (field.place(Kind::Redbud), self.plan.shared);
        let name = |what| shared_name(time, allocation, pattern, what);
        let file = |process: u64| match pattern {
            Pattern::Private => root.join(format!("private-{process}")),
            _ => root.join("shared"),
        };
        let files: Vec<PathBuf> = match pattern {
            Pattern::Private => (0..PROCESSES).map(file).collect(),
            _ => vec![file(0)],
        };
        let each = bytes / PROCESSES;
        let stream = |file, bytes| Stream { file, bytes, direct: false, depth: 1 };
        let writes = (0..PROCESSES)
            .map(|process| {
                let (first, step) = match pattern {
                    Pattern::Private => (0, REQUEST),
                    Pattern::Eighths => (process * each, REQUEST),
                    Pattern::Strides => (process * REQUEST, REQUEST * PROCESSES),
                };
                let part = Part { first, step, piece: REQUEST, count: each / REQUEST };
                Job::WritePart(stream(file(process), bytes), part)
            })
            .collect();
        self.rate(field, &name("write"), writes)?;
        let mut segments = 0;
        for file in &files {
            let step = "counting segments";
            segments += once(&field.tools, step, Job::Segments(file.clone()))?.ops;
        }
        self.note(&name("segments"), segments as f64);
        field.refresh(Kind::Redbud)?;
        // One reader, of one file after the other.
        let (mut read, mut nanos) = (0, 0);
        for file in &files {
            let job = Job::ReadSeq(stream(file.clone(), bytes / files.len() as u64));
            let done = once(&field.tools, &name("read"), job)?;
            (read, nanos) = (read + done.ops, nanos + done.nanos);
        }
        self.note(&name("read"), rate(&Finished { ops: read, nanos, ..Finished::default() }));
        for file in files {
            once(&field.tools, "removing a file", Job::RemoveFile(file))?;
        }
        field.settle(Kind::Redbud)
    }

    /// Small files with fsync on one device and on four, in turns; nothing is bounded.
    fn small_files(&mut self) -> Res<()> {
        let work = WORKS.iter().find(|work| work.name == "small-fsync-8");
        let Some(work) = work else { return failed("small-fsync-8", "there is no such work") };
        let bytes = self.plan.small * (64 << 10);
        let mut fields = [1, 4].map(|disks| (disks, self.field(disks, bytes, None, false)));
        let sizes = Sizes {
            // The work takes a tenth of them.
            files: self.plan.small * 10,
            entries: 0,
            stream: 0,
            depth: 1,
            random_millis: 0,
        };
        for _ in 0..self.plan.runs {
            for (disks, field) in &mut fields {
                let field = field.as_mut().map_err(|error| error.clone())?;
                let sample = work.turn(field, &sizes, Kind::Redbud)?;
                self.note(&small_name(*disks), sample.rate());
            }
        }
        self.ratio(&small_name(4), &small_name(1), Some(LEAST_SMALL));
        for (_, field) in fields {
            field?.tear_down()?;
        }
        Ok(())
    }

    fn ratio(&mut self, what: &str, by: &str, asked: Option<Bound>) {
        let values = |name: &str| self.values.get(name).cloned().unwrap_or_default();
        let (these, those) = (values(what), values(by));
        let (value, divisor) = (median(these.clone()), median(those.clone()));
        let single = these.into_iter().zip(those).map(|(one, other)| one / other);
        let spread = single
            .fold((f64::INFINITY, 0f64), |(least, most), one| (least.min(one), most.max(one)));
        let ratio = value / divisor;
        let met = asked.is_none_or(|bound| bound.is_met(ratio));
        let (what, by) = (what.to_owned(), by.to_owned());
        self.ratios.push(Ratio { what, value, by, divisor, ratio, spread, asked, met });
    }
}

/// Who writes what of the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pattern {
    /// Each process a file of its own.
    Private,
    /// Each process its own eighth of one file.
    Eighths,
    /// Each process every eighth request of one file.
    Strides,
}

impl Pattern {
    fn text(self) -> &'static str {
        match self {
            Pattern::Private => "8 files",
            Pattern::Eighths => "eighths of 1 file",
            Pattern::Strides => "strides of 1 file",
        }
    }
}

fn shared_name(time: &str, allocation: &str, pattern: Pattern, what: &str) -> String {
    format!("8 processes, {allocation} at {time}, {}, {what}", pattern.text())
}

fn small_name(disks: usize) -> String {
    format!("small-fsync-8 on {disks}")
}

/// Operations in a second.
fn rate(done: &Finished) -> f64 {
    done.ops as f64 * 1e9 / done.nanos.max(1) as f64
}

impl Found {
    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut table = Columns::new(&[
            "what",
            "value",
            "beside",
            "value",
            "ratio",
            "single runs",
            "asked",
            "",
        ]);
        for one in &self.ratios {
            table.row(vec![
                one.what.clone(),
                format!("{:.0}", one.value),
                one.by.clone(),
                format!("{:.0}", one.divisor),
                format!("{:.2}", one.ratio),
                format!("{:.2} to {:.2}", one.spread.0, one.spread.1),
                one.asked.map_or("-".to_owned(), Bound::text),
                match one.asked {
                    None => "",
                    Some(_) if one.met => "met",
                    Some(_) => "MISSED",
                }
                .to_owned(),
            ]);
        }
        format!("Devices bounded to {} bytes a second\n\n{}", self.rate, table.text())
    }
}

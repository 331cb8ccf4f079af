//! The works of the table: what is done, by which contenders, and what Redbud must reach.
//!
//! One contender at a time does a work, and leaves its place as it found it,
//! but for the stream and the directory of entries, which later works read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Res;
use crate::barrier::{Finished, StartBarrier, once};
use crate::contender::{Field, Kind};
use crate::observe::{Requests, Usage, requests_between};
use crate::worker::{Job, Names, Order, Stream};

/// Sizes of the works.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sizes {
    /// Empty files of create and unlink.
    pub files: u64,
    /// Entries of the directory whose names are looked up.
    pub entries: u64,
    /// Bytes of the stream.
    pub stream: u64,
    /// Requests that the raw disk has in flight for a stream.
    pub depth: usize,
    /// How long random reads go on.
    pub random_millis: u64,
}

/// Bytes of a small file.
const SMALL: usize = 32 << 10;
/// Random reads in flight.
const RANDOM_DEPTH: usize = 16;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Its name on the command line.
    pub name: &'static str,
    /// Description for people.
    pub title: &'static str,
    /// The contenders that do it.
    pub kinds: &'static [Kind],
    /// What Redbud must reach.
    pub target: Target,
    what: What,
}

/// A bound from below.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Target {
    /// Nothing is asked.
    None,
    /// This times what another does.
    Ratio(f64, Kind),
    /// So many operations a second.
    PerSecond(f64),
}

/// What a table compares.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Compared {
    /// Redbud with others: those of each work.
    #[default]
    Others,
    /// Redbud with object targets with Redbud on data disks, in every work.
    Objects,
}

impl Compared {
    /// The contenders that do `work`.
    pub fn kinds(self, work: &Work) -> &'static [Kind] {
        match self {
            Compared::Others => work.kinds,
            Compared::Objects => BLOCKS_AND_OBJECTS,
        }
    }

    /// The contender that has a target.
    pub fn judged(self) -> Kind {
        match self {
            Compared::Others => Kind::Redbud,
            Compared::Objects => Kind::Objects,
        }
    }

    /// What that one must reach in `work`.
    pub fn target(self, work: &Work) -> Target {
        match self {
            Compared::Others => work.target,
            Compared::Objects => Target::Ratio(OBJECTS_LEAST, Kind::Redbud),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    WriteSeq,
    ReadSeq,
    ReadRandom,
    Create { workers: u64 },
    Unlink,
    Stat(Order),
    List,
    Small { workers: u64, fsync: bool },
    PostMark { workers: u64 },
    Web { workers: u64, read: bool },
}

/// PostMark's transactions for each file of its pool (002 §6.3).
const TRANSACTIONS: u64 = 5;
/// Files of a directory of web content.
const WEB_FILES: u64 = 1;

const FILES: &[Kind] = &[Kind::Redbud, Kind::Null, Kind::Ext4];
/// The contenders that keep what is written.
const LOCAL: &[Kind] = &[Kind::Redbud, Kind::Ext4];
/// The contenders if object targets are compared with data disks.
const BLOCKS_AND_OBJECTS: &[Kind] = &[Kind::Redbud, Kind::Objects];
/// What a mount with object targets must reach in every work, of what it does with data disks.
const OBJECTS_LEAST: f64 = 0.6;
const DATA: &[Kind] = &[Kind::Redbud, Kind::Ext4, Kind::Raw];

/// All works, in the order in which they are done.
pub const WORKS: &[Work] = &[
    Work {
        name: "seq-write",
        title: "sequential write, 1 MiB, fsync",
        kinds: DATA,
        target: Target::Ratio(0.8, Kind::Raw),
        what: What::WriteSeq,
    },
    Work {
        name: "seq-read",
        title: "sequential read, 1 MiB, cold",
        kinds: DATA,
        target: Target::Ratio(0.8, Kind::Raw),
        what: What::ReadSeq,
    },
    Work {
        name: "rand-read",
        title: "random 4 KiB O_DIRECT read, 16 in flight",
        kinds: DATA,
        target: Target::Ratio(0.5, Kind::Raw),
        what: What::ReadRandom,
    },
    Work {
        name: "create-1",
        title: "create empty files, 1 process",
        kinds: FILES,
        target: Target::Ratio(0.35, Kind::Null),
        what: What::Create { workers: 1 },
    },
    Work {
        name: "create-8",
        title: "create empty files, 8 processes",
        kinds: FILES,
        target: Target::Ratio(0.45, Kind::Null),
        what: What::Create { workers: 8 },
    },
    Work {
        name: "unlink-1",
        title: "unlink, 1 process",
        kinds: FILES,
        target: Target::Ratio(0.35, Kind::Null),
        what: What::Unlink,
    },
    Work {
        name: "stat-sorted",
        title: "stat of each entry, fresh mount, sorted",
        kinds: FILES,
        target: Target::Ratio(0.3, Kind::Null),
        what: What::Stat(Order::Sorted),
    },
    Work {
        name: "stat-random",
        title: "stat of each entry, fresh mount, random order",
        kinds: FILES,
        target: Target::None,
        what: What::Stat(Order::Random),
    },
    Work {
        name: "stat-readdir",
        title: "readdir with stat of each entry, fresh mount",
        kinds: FILES,
        target: Target::PerSecond(200_000.0),
        what: What::List,
    },
    Work {
        name: "small",
        title: "create + write 32 KiB + close",
        kinds: FILES,
        target: Target::Ratio(0.2, Kind::Null),
        what: What::Small { workers: 1, fsync: false },
    },
    Work {
        name: "small-fsync-1",
        title: "create + write 32 KiB + fsync + close, 1 process",
        kinds: FILES,
        target: Target::Ratio(0.7, Kind::Ext4),
        what: What::Small { workers: 1, fsync: true },
    },
    Work {
        name: "small-fsync-8",
        title: "create + write 32 KiB + fsync + close, 8 processes",
        kinds: FILES,
        target: Target::Ratio(1.0, Kind::Ext4),
        what: What::Small { workers: 8, fsync: true },
    },
    Work {
        name: "postmark",
        title: "PostMark, 4 processes",
        kinds: LOCAL,
        target: Target::None,
        what: What::PostMark { workers: 4 },
    },
    Work {
        name: "web-make",
        title: "Polygraph 8*8*1, 4 processes: make",
        kinds: LOCAL,
        target: Target::None,
        what: What::Web { workers: 4, read: false },
    },
    Work {
        name: "web-read",
        title: "Polygraph 8*8*1, 4 processes: read, fresh mount",
        kinds: LOCAL,
        target: Target::None,
        what: What::Web { workers: 4, read: true },
    },
];

/// The result of one turn.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// Operations, or bytes of a stream.
    pub ops: u64,
    /// Time they took.
    pub nanos: u64,
    /// Processor time of the mount's process, in nanoseconds.
    pub mount_cpu: u64,
    /// Processor time of the metadata server.
    pub server_cpu: u64,
    /// Times that threads of the mount's process went to sleep.
    pub mount_switches: u64,
    /// The same of the server.
    pub server_switches: u64,
    /// Processor time of the process with the object targets.
    pub targets_cpu: u64,
    /// Times that its threads went to sleep.
    pub targets_switches: u64,
    /// Flushes of the disk below; none if they are not counted.
    pub flushes: Option<u64>,
    /// Requests that the kernel sent to the mount, by kind.
    pub requests: Requests,
    /// What the workers said.
    #[serde(skip)]
    pub texts: Vec<String>,
}

/// The samples of a work, by contender, one of each run.
pub struct Row {
    /// The work.
    pub work: &'static Work,
    /// What is compared.
    pub compared: Compared,
    /// The results of the turns.
    pub samples: BTreeMap<Kind, Vec<Sample>>,
}

impl Sample {
    /// Operations in a second.
    pub fn rate(&self) -> f64 {
        self.ops as f64 * 1e9 / self.nanos.max(1) as f64
    }
}

impl Work {
    /// Is it measured in bytes?
    pub fn is_stream(&self) -> bool {
        matches!(self.what, What::WriteSeq | What::ReadSeq)
    }

    /// Does it read the directory of entries?
    pub fn needs_entries(&self) -> bool {
        matches!(self.what, What::Stat(_) | What::List)
    }

    /// Is it done without being asked for by name?
    pub fn is_usual(&self) -> bool {
        !matches!(self.what, What::PostMark { .. } | What::Web { .. })
    }

    /// Does it write files with fsync?
    pub fn flushes(&self) -> bool {
        matches!(self.what, What::Small { fsync: true, .. })
    }

    /// One turn of `kind`.
    ///
    /// # Errors
    /// The step that failed and why.
    pub fn turn(&self, field: &mut Field, sizes: &Sizes, kind: Kind) -> Res<Sample> {
        let turn = Turn { name: self.name, kind, sizes: *sizes };
        let sample = match self.what {
            What::WriteSeq => {
                turn.remove_stream(field)?;
                turn.measure(field, vec![Job::WriteSeq(turn.stream(field))])?
            }
            What::ReadSeq => {
                turn.need_stream(field)?;
                field.refresh(kind)?;
                turn.measure(field, vec![Job::ReadSeq(turn.stream(field))])?
            }
            What::ReadRandom => {
                turn.need_stream(field)?;
                let mut stream = turn.stream(field);
                stream.depth = RANDOM_DEPTH;
                turn.measure(field, vec![Job::ReadRandom { stream, millis: sizes.random_millis }])?
            }
            What::Create { workers } => turn.in_directory(field, |dir| {
                let shares = share(dir, sizes.files, workers);
                (Vec::new(), shares.map(Job::Create).collect())
            })?,
            What::Unlink => turn.in_directory(field, |dir| {
                let names = || share(dir.clone(), sizes.files, 1);
                (names().map(Job::Create).collect(), names().map(Job::Unlink).collect())
            })?,
            What::Stat(order) => {
                field.refresh(kind)?;
                turn.measure(field, vec![Job::Stat(turn.entries(field), order)])?
            }
            What::List => {
                field.refresh(kind)?;
                turn.measure(field, vec![Job::List(turn.entries(field).dir)])?
            }
            What::Small { workers, fsync } => turn.in_directory(field, |dir| {
                let count = if fsync { sizes.files / 10 } else { sizes.files / 4 };
                let job = |names| Job::Small { names, bytes: SMALL, fsync };
                (Vec::new(), share(dir, count.max(workers), workers).map(job).collect())
            })?,
            What::PostMark { workers } => turn.in_directory(field, |dir| {
                let files = (sizes.files / workers).max(1);
                let dirs = each(&dir, workers);
                let before = dirs.clone().map(|(_, dir)| Job::MakeDir(dir)).collect();
                let transactions = TRANSACTIONS * files;
                let job = |(number, dir)| Job::PostMark {
                    dir,
                    number,
                    files,
                    transactions,
                    content: true,
                };
                (before, dirs.map(job).collect())
            })?,
            What::Web { workers, read } => {
                let dir = turn.new_directory(field)?;
                // 64 files of 505 kB on average are a web: a two hundredth of the small files'
                // number.
                let webs = (sizes.files / 200 / workers).max(1);
                let job = |read| {
                    each(&dir, workers)
                        .map(|(number, dir)| Job::Web {
                            dir,
                            number,
                            webs,
                            files: WEB_FILES,
                            read,
                            content: true,
                        })
                        .collect::<Vec<_>>()
                };
                for (_, dir) in each(&dir, workers) {
                    turn.step(field, Job::MakeDir(dir))?;
                }
                if read {
                    turn.together(field, job(false))?;
                    field.settle(kind)?;
                    field.refresh(kind)?;
                }
                let sample = turn.measure(field, job(read))?;
                turn.step(field, Job::Remove(dir))?;
                sample
            }
        };
        field.settle(kind)?;
        Ok(sample)
    }
}

/// Makes the directory of entries of `kind`.
///
/// # Errors
/// The step that failed and why.
pub fn make_entries(field: &Field, sizes: &Sizes, kind: Kind) -> Res<()> {
    let turn = Turn { name: "making entries", kind, sizes: *sizes };
    let names = turn.entries(field);
    turn.step(field, Job::MakeDir(names.dir.clone()))?;
    turn.step(field, Job::Create(names))?;
    field.settle(kind)
}

/// `count` names in `dir`, in equal parts for `workers`.
pub fn share(dir: PathBuf, count: u64, workers: u64) -> impl Iterator<Item = Names> {
    (0..workers).map(move |worker| Names {
        dir: dir.clone(),
        prefix: format!("file-{worker}-"),
        count: count / workers + u64::from(worker < count % workers),
    })
}

/// A directory in `dir` for each worker, with the worker's number.
fn each(dir: &Path, workers: u64) -> impl Iterator<Item = (u64, PathBuf)> + Clone {
    let dir = dir.to_owned();
    (0..workers).map(move |number| (number, dir.join(format!("worker-{number}"))))
}

struct Turn {
    name: &'static str,
    kind: Kind,
    sizes: Sizes,
}

impl Turn {
    fn label(&self) -> String {
        format!("{} on {}", self.name, self.kind.text())
    }

    fn step(&self, field: &Field, job: Job) -> Res<Finished> {
        once(&field.tools, &self.label(), job)
    }

    fn stream(&self, field: &Field) -> Stream {
        let place = field.place(self.kind);
        let raw = self.kind == Kind::Raw;
        Stream {
            file: if raw { place } else { place.join("stream") },
            bytes: self.sizes.stream,
            direct: raw,
            depth: if raw { self.sizes.depth } else { 1 },
        }
    }

    fn entries(&self, field: &Field) -> Names {
        let dir = field.place(self.kind).join("entries");
        Names { dir, prefix: "entry-".into(), count: self.sizes.entries }
    }

    fn remove_stream(&self, field: &Field) -> Res<()> {
        if self.kind != Kind::Raw {
            self.step(field, Job::RemoveFile(self.stream(field).file))?;
            field.settle(self.kind)?;
        }
        Ok(())
    }

    fn need_stream(&self, field: &Field) -> Res<()> {
        let stream = self.stream(field);
        let size = self.step(field, Job::SizeOf(stream.file.clone()))?.ops;
        if size < stream.bytes {
            self.step(field, Job::WriteSeq(stream))?;
        }
        Ok(())
    }

    fn new_directory(&self, field: &Field) -> Res<PathBuf> {
        let dir = field.place(self.kind).join(self.name);
        self.step(field, Job::MakeDir(dir.clone()))?;
        Ok(dir)
    }

    /// Does jobs at the same time, without measuring them.
    fn together(&self, field: &Field, jobs: Vec<Job>) -> Res<Finished> {
        StartBarrier::ready(&field.tools, &self.label(), jobs)?.start()
    }

    /// In a new directory, which is removed at the end: first some jobs, then those that are
    /// measured.
    fn in_directory(
        &self,
        field: &Field,
        jobs: impl FnOnce(PathBuf) -> (Vec<Job>, Vec<Job>),
    ) -> Res<Sample> {
        let dir = self.new_directory(field)?;
        let (before, jobs) = jobs(dir.clone());
        for job in before {
            self.step(field, job)?;
        }
        let sample = self.measure(field, jobs)?;
        self.step(field, Job::Remove(dir))?;
        Ok(sample)
    }

    fn measure(&self, field: &Field, jobs: Vec<Job>) -> Res<Sample> {
        sample(field, self.kind, &self.label(), jobs)
    }
}

/// Runs jobs of `kind` at the same time, and returns what they took. What they make while they
/// prepare is durable before.
pub fn sample(field: &Field, kind: Kind, label: &str, jobs: Vec<Job>) -> Res<Sample> {
    let make_files = jobs.iter().any(Job::makes_files);
    let barrier = StartBarrier::ready(&field.tools, label, jobs)?;
    if make_files {
        field.settle(kind)?;
    }
    let requests = || match field.counts_requests(kind) {
        true => Ok(once(&field.tools, label, Job::Requests(field.place(kind)))?.text),
        false => Ok("{}".into()),
    };
    let requests_before = requests()?;
    let flushes_before = field.flushes.count();
    let usage_before = field.usage(kind);
    let done = barrier.start()?;
    let usage = field.usage(kind);
    let flushes = field.flushes.count();
    let [mount, server, targets]: [Usage; 3] =
        std::array::from_fn(|index| usage[index].since(usage_before[index]));
    Ok(Sample {
        ops: done.ops,
        nanos: done.nanos,
        mount_cpu: mount.cpu,
        server_cpu: server.cpu,
        mount_switches: mount.switches,
        server_switches: server.switches,
        targets_cpu: targets.cpu,
        targets_switches: targets.switches,
        flushes: flushes.zip(flushes_before).map(|(after, before)| after - before),
        requests: requests_between(&requests_before, &requests()?),
        texts: std::iter::once(done.text).chain(done.others).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (count, workers) in [(10, 8), (1, 1), (8, 8), (17, 3)] {
            let sum: u64 = share(PathBuf::new(), count, workers).map(|names| names.count).sum();
            assert_eq!(sum, count);
        }
    }

    #[test]
    fn targets_compare_with_a_contender_that_runs() {
        for work in WORKS {
            if let Target::Ratio(_, other) = work.target {
                assert!(work.kinds.contains(&other), "{}", work.name);
            }
            assert!(work.kinds.contains(&Kind::Redbud), "{}", work.name);
        }
    }
}

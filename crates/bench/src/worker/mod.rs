//! Load generators: processes that make plain system calls and say how long they took.
//!
//! A worker prepares its job, prints `ready`, waits for a line, works, and prints its
//! [`Done`] as one line of JSON. Times are of the monotonic clock, which all processes of a
//! machine share. The time of workers that run together is from the first start to the last end.

mod loads;
mod names;
mod pool;
mod stream;
mod sys;
mod timed;

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use sys::Os;

use crate::scripts::filebench::Personality;
use crate::scripts::polygraph;
use crate::scripts::postmark::Script;
use crate::scripts::source::{Source, Step};
use crate::scripts::xcdn;

/// What one worker does.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub enum Job {
    /// Makes a directory.
    MakeDir(PathBuf),
    /// Removes a tree.
    Remove(PathBuf),
    /// Removes a file, if there is one.
    RemoveFile(PathBuf),
    /// The size of a file, as its operations; 0 if there is none.
    SizeOf(PathBuf),
    /// syncfs(2).
    Sync(PathBuf),
    /// Unmounts.
    Unmount(PathBuf),
    /// The kernel drops clean pages, and names and inodes that nobody uses.
    DropCaches,
    /// Reads the counters of requests of the mount at this root.
    Requests(PathBuf),
    /// The segments of a file in a mount of Redbud, as its operations.
    Segments(PathBuf),
    /// Makes empty files: open(O_CREAT | O_EXCL) and close.
    Create(Names),
    /// Unlinks files.
    Unlink(Names),
    /// stat(2) of every name.
    Stat(Names, Order),
    /// utimensat(2) of every name, now.
    Utime(Names),
    /// Reads a directory, with stat(2) of each entry as soon as it is read, as `ls -l` does.
    List(PathBuf),
    /// Reads the names of a directory.
    ListNames(PathBuf),
    /// Makes files with content: create, one write, perhaps fsync, close.
    Small {
        /// Which files.
        names: Names,
        /// Bytes of each.
        bytes: usize,
        /// fsync(2) before the close?
        fsync: bool,
    },
    /// As `Small`, each file timed, until all are made or for a time.
    TimedSmall {
        /// Which files.
        names: Names,
        /// Bytes of each.
        bytes: usize,
        /// fsync(2) before the close?
        fsync: bool,
        /// For how long; none: until all are made.
        millis: Option<u64>,
    },
    /// Writes a new file in a directory, each mebibyte timed.
    TimedStream {
        /// Where.
        dir: PathBuf,
        /// Bytes until it begins again.
        bytes: u64,
        /// For how long.
        millis: u64,
    },
    /// PostMark in a directory.
    PostMark {
        /// Where.
        dir: PathBuf,
        /// Whose random choices.
        number: u64,
        /// Files of the pool.
        files: u64,
        /// Transactions on it.
        transactions: u64,
        /// Are contents written and read? Else only the space for them is got.
        content: bool,
    },
    /// Web content as Polygraph makes it, below a directory.
    Web {
        /// Where.
        dir: PathBuf,
        /// Whose random choices.
        number: u64,
        /// Webs, of 64 directories each.
        webs: u64,
        /// Files of a directory.
        files: u64,
        /// Read it, instead of making it?
        read: bool,
        /// Are contents written and read? Else only the space for them is got.
        content: bool,
    },
    /// A step with a source tree below a directory. Of contents only the space is got.
    Source {
        /// Where.
        dir: PathBuf,
        /// Whose random choices.
        number: u64,
        /// About how many files the tree has.
        files: u64,
        /// Which step.
        step: Step,
    },
    /// Makes the tree of xcdn in a directory.
    XcdnTree(PathBuf),
    /// Makes the objects of a process of xcdn that are there before, in its tree.
    XcdnStock {
        /// Where.
        dir: PathBuf,
        /// Whose objects.
        number: u64,
        /// Bytes of each.
        bytes: u64,
    },
    /// A process of xcdn.
    Xcdn {
        /// Where its tree is.
        dir: PathBuf,
        /// Which process.
        number: u64,
        /// Processes that have made their objects.
        all: u64,
        /// Bytes of an object.
        bytes: u64,
        /// Operations.
        ops: u64,
    },
    /// An instance of a personality of Filebench in a directory: it prepares by making its files.
    Filebench {
        /// Where.
        dir: PathBuf,
        /// What it does.
        personality: Personality,
        /// Whose random choices.
        number: u64,
        /// For how long.
        millis: u64,
    },
    /// Writes a file from its begin to its end, then fsync(2).
    WriteSeq(Stream),
    /// Writes a part of a file, then fsync(2).
    WritePart(Stream, Part),
    /// Reads a file from its begin to its end.
    ReadSeq(Stream),
    /// Reads blocks of 4 KiB at random places, O_DIRECT, for a time.
    ReadRandom {
        /// Which file, how many in flight.
        stream: Stream,
        /// For how long.
        millis: u64,
    },
}

/// Files `PREFIX0000000` and so on in a directory.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Names {
    /// The directory.
    pub dir: PathBuf,
    /// Begin of each name.
    pub prefix: String,
    /// How many.
    pub count: u64,
}

/// In which order names are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Order {
    /// As they sort.
    Sorted,
    /// Shuffled, always in the same way.
    Random,
}

/// A file that is read or written in large pieces.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Stream {
    /// The file.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Past the page cache (O_DIRECT)?
    pub direct: bool,
    /// Requests in flight, each by a thread of its own.
    pub depth: usize,
}

/// Pieces of a file at equal distances.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub struct Part {
    /// Where the first one begins, in bytes.
    pub first: u64,
    /// From one's begin to the next one's.
    pub step: u64,
    /// Bytes of each.
    pub piece: u64,
    /// How many.
    pub count: u64,
}

impl Job {
    /// Does it make files while it prepares?
    pub fn makes_files(&self) -> bool {
        matches!(self, Job::Filebench { .. })
    }
}

/// What a worker did.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Done {
    /// Operations, or bytes for streams.
    pub ops: u64,
    /// When it began, in nanoseconds of the monotonic clock.
    pub begin: u64,
    /// When it ended.
    pub end: u64,
    /// What it found, if the job was to find something.
    pub text: String,
}

type Work = Box<dyn FnOnce() -> Os<(u64, String)>>;

/// Runs the job that `spec` describes as JSON; the error says what failed, for people.
///
/// # Errors
/// Which system call failed, on what and why.
pub fn run(spec: &str) -> Result<(), String> {
    // SAFETY: takes plain numbers, and a signal at the parent's end is wanted.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let job: Job = serde_json::from_str(spec).map_err(|error| format!("the job: {error}"))?;
    let work = prepare(job)?;
    say("ready")?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(|error| error.to_string())?;
    if line.is_empty() {
        // The process that started it is gone.
        return Ok(());
    }
    let begin = sys::monotonic();
    let (ops, text) = work()?;
    let end = sys::monotonic();
    let done = serde_json::to_string(&Done { ops, begin, end, text });
    say(&done.map_err(|error| error.to_string())?)
}

fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}

/// A segment, of what a mount of Redbud says of it.
#[derive(Deserialize)]
struct Segment {
    offset: u64,
    length: u64,
}

/// Counts the segments of a file.
fn segments(path: &Path) -> Os<u64> {
    let (mut count, mut from) = (0, 0);
    loop {
        let text = sys::attribute(path, format!("user.redbud.layout@{from}"))?;
        let part: Vec<Segment> = serde_json::from_str(&text)
            .map_err(|error| format!("layout of {}: {error}", path.display()))?;
        let Some(last) = part.last() else { return Ok(count) };
        from = last.offset + last.length;
        count += part.len() as u64;
    }
}

fn prepare(job: Job) -> Os<Work> {
    let none = |()| (1, String::new());
    let io = |what: &'static str, path: PathBuf| {
        move |error: std::io::Error| format!("{what} {}: {error}", path.display())
    };
    Ok(match job {
        Job::MakeDir(path) => {
            Box::new(move || std::fs::create_dir(&path).map(none).map_err(io("mkdir", path)))
        }
        Job::Remove(path) => {
            Box::new(move || std::fs::remove_dir_all(&path).map(none).map_err(io("remove", path)))
        }
        Job::RemoveFile(path) => Box::new(move || match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io("unlink", path)(error))
            }
            _ => Ok((1, String::new())),
        }),
        Job::SizeOf(path) => Box::new(move || match std::fs::metadata(&path) {
            Ok(metadata) => Ok((metadata.len(), String::new())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok((0, String::new())),
            Err(error) => Err(io("stat", path)(error)),
        }),
        Job::Sync(path) => Box::new(move || sys::syncfs(&path).map(none)),
        Job::Unmount(path) => {
            Box::new(move || fuse::unmount(&path, false).map(none).map_err(io("umount", path)))
        }
        Job::DropCaches => Box::new(move || {
            let path = PathBuf::from("/proc/sys/vm/drop_caches");
            std::fs::write(&path, "3").map(none).map_err(io("write to", path))
        }),
        Job::Segments(path) => Box::new(move || Ok((segments(&path)?, String::new()))),
        Job::Requests(path) => Box::new(move || Ok((1, sys::requests(&path)?))),
        Job::Create(names) => names::create(names)?,
        Job::Unlink(names) => names::unlink(names)?,
        Job::Stat(names, order) => names::stat(names, order)?,
        Job::Utime(names) => names::utime(names)?,
        Job::List(dir) => names::list(&dir, true)?,
        Job::ListNames(dir) => names::list(&dir, false)?,
        Job::Small { names, bytes, fsync } => names::small(names, bytes, fsync)?,
        Job::TimedSmall { names, bytes, fsync, millis } => {
            timed::small(&names, bytes, fsync, millis)?
        }
        Job::TimedStream { dir, bytes, millis } => timed::stream(&dir, bytes, millis)?,
        Job::PostMark { dir, number, files, transactions, content } => {
            pool::postmark(&dir, Script::new(number, files, transactions), content)?
        }
        Job::Web { dir, number, webs, files, read, content } => {
            pool::web(&dir, polygraph::script(number, webs, files), read, content)
        }
        Job::Source { dir, number, files, step } => {
            pool::source(&dir, Source::new(files).script(number, step))
        }
        Job::XcdnTree(dir) => loads::xcdn_tree(&dir),
        Job::XcdnStock { dir, number, bytes } => loads::xcdn_stock(&dir, number, bytes),
        Job::Xcdn { dir, number, all, bytes, ops } => {
            loads::xcdn(&dir, xcdn::Script::new(number, all, ops), bytes)
        }
        Job::Filebench { dir, personality, number, millis } => {
            loads::filebench(&dir, personality, number, millis)?
        }
        Job::WriteSeq(what) => stream::write(what)?,
        Job::WritePart(what, part) => stream::write_part(&what, part)?,
        Job::ReadSeq(what) => stream::read(what)?,
        Job::ReadRandom { stream, millis } => stream::random(stream, millis)?,
    })
}

//! The command line. What `--help` says is written here and nowhere else.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use repro::aging;
use repro::figures::CreatesSize;
use repro::layouts::{Contender, Settings};
use types::units::{parse_duration, parse_size};

/// Most threads of a check.
const JOBS_MAX: i64 = mfs::fsck::JOBS_MAX as i64;

/// The papers' figures, and what else shows where Redbud's time and accesses go.
#[derive(Parser, Debug)]
#[command(
    name = "repro",
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
F1, F2, F3, F7 and F10 to F13 run a metadata server, clients and data zones, each zone on a virtual
disk. F4, F5 and F9 compare the embedded directories with the traditional layout on a virtual disk:

  F1  throughput of 1 to 32 clients with as many PAGs, in requests of 32 KiB
  F2  throughput of 10 clients with 1 to 12 PAGs, FileRound beside Striping
  F3  files that stay whole when PAGs are overwritten (10 PAGs) or lost (of 12)
  F4  Metarates, as `repro metarates` measures it
  F5  small files: PostMark, a source tree (tar, make, clean), web content (Polygraph); metadata only
  F7  one file written by many processes: IOR2, BTIO and a micro-benchmark, by preallocation; the
      space of a tree of small files
  F8  timeouts that follow the load of a modelled server, in virtual time
  F9  creating and deleting on a store that has aged
  F10 delayed commit under xcdn, Filebench's personalities, BT-IO, and reads of what is not committed
  F11 joined I/O requests and seeks under xcdn, with objects of 32 KiB to 1 MiB
  F12 the commit queue and its tasks over time, under the loads of F10
  F13 commits in a request, by the number of requests that the server works on at once
  F14 writes of objects by threads, with journals inside and outside, and asynchronous commits
  F15 a program that computes and writes checkpoints to objects, by commits; sizes of requests
  F16 records and messages of an operation of two metadata servers, by protocol; modelled logs
  F17 such operations of one directory in a second, by protocol and by what a log is; real servers
  F17-creates  creates of many clients in one directory, by one server and by four

Writes DIR/FIGURE.svg and DIR/FIGURE.json. docs/BENCHMARKS.md says how to read them."
)]
pub struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Without a command: the figures.
    #[command(flatten)]
    pub figures: Option<FigureArgs>,
}

/// What is measured beside the figures, and the processes that this needs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Metadata operations of many processes, on every layout
    Metarates(MetaratesArgs),
    /// Where directories lie, and what a walk of them costs
    Placement(PlacementArgs),
    /// Small files in every size of slots, with inline data and without
    Inline(InlineArgs),
    /// Many files by the metadata store alone, and the redo and check of them
    Mfs(MfsArgs),
    /// Many files by the metadata server alone
    Mds(MdsArgs),
    /// Many clients at one metadata server: memory of each, and greetings after a restart
    Greet(GreetArgs),
    /// Requests behind a stopped client, and how soon a stopped server is noticed
    Timeouts(TimeoutsArgs),
    /// PostMark, on every layout
    Postmark(PostmarkArgs),
    /// Web content, on every layout
    Polygraph(PolygraphArgs),
    /// A source tree that is unpacked, compiled and cleaned, on every layout
    Source(SourceArgs),
    /// What messages and changes cost the metadata server's processor here
    Price(PriceArgs),
    /// The processes of a measurement
    #[command(hide = true)]
    Bench {
        /// Which
        #[command(subcommand)]
        part: Part,
    },
}

/// What a process does for another one that measures.
#[derive(Subcommand, Debug)]
pub enum Part {
    /// The metadata server of `repro greet` and `repro timeouts`
    Server {
        /// The file with the store
        image: PathBuf,
        /// Where it listens
        listen: String,
        /// Its lease in seconds
        lease: u64,
        /// It asks for keys
        #[arg(long)]
        keys: bool,
        /// Bytes of its cache
        #[arg(long)]
        cache: Option<usize>,
    },
    /// The client of `repro timeouts` that is stopped
    Holder {
        /// The server
        address: String,
    },
    /// One load generator
    Worker {
        /// What it does, as JSON
        job: String,
    },
}

/// Arguments of the figures.
#[derive(Args, Debug)]
pub struct FigureArgs {
    /// Which
    #[arg(required = true)]
    pub figures: Vec<Figure>,
    /// Where the pictures go; made if it does not exist
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Changes become durable within 5 s, as Redbud's server answers; without it each before its
    /// answer, as the papers' did
    #[arg(long)]
    pub lazy: bool,
    /// F4: one processor of the server takes its price in virtual time, too (`repro price`)
    #[arg(long)]
    pub price: bool,
    /// F1, F2: size of a file, 1M to 4G [default: F1 256M, F2 64M]
    #[arg(long, value_parser = parse_stream)]
    pub size: Option<u64>,
    /// F2: files of each client, which it writes one after another
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub streams: u64,
    /// F3: files of which PAGs are lost, and 50 times those that are overwritten; the paper's were
    /// 1,000,000
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    pub snapshot: u64,
    /// F4: files of each process; several numbers give several panels
    #[arg(long, value_delimiter = ',', default_values_t = [5_000, 10_000, 50_000], value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    pub files: Vec<u64>,
    /// F5: PostMark's files of each client, and a fifth of its transactions; the papers' were
    /// 100,000
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub pool: u64,
    /// F9: the metadata device that is filled, at least 64M
    #[arg(long, default_value = "512M", value_parser = parse_aged)]
    pub aged: u64,
    /// F17-creates: clients, each of which makes twelve files; the paper's were 18,688
    #[arg(long, default_value_t = CreatesSize::FULL.sessions as u64, value_parser = clap::value_parser!(u64).range(1..=18_688))]
    pub sessions: u64,
    /// F10: only these loads, by the names in its table
    #[arg(long, value_name = "LOAD,…", value_delimiter = ',')]
    pub loads: Vec<String>,
}

/// A figure of the papers.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// As clients and PAGs grow together (002 Fig. 4a)
    #[value(name = "F1")]
    F1,
    /// As PAGs are added (002 Fig. 4b)
    #[value(name = "F2")]
    F2,
    /// Files that stay whole (002 Fig. 5)
    #[value(name = "F3")]
    F3,
    /// Metarates (002 Fig. 6, 004 Fig. 8)
    #[value(name = "F4")]
    F4,
    /// Small files (002 Fig. 7, 004 Fig. 10)
    #[value(name = "F5")]
    F5,
    /// On-demand preallocation (002 Fig. 9, Table 2; 004 Fig. 6, 7)
    #[value(name = "F7")]
    F7,
    /// Adaptive timeouts (002 Fig. 10)
    #[value(name = "F8")]
    F8,
    /// An aged file system (004 Fig. 9)
    #[value(name = "F9")]
    F9,
    /// Delayed commit (000 Fig. 3)
    #[value(name = "F10")]
    F10,
    /// I/O merge ratio and disk seeks (000 Fig. 4 and 5)
    #[value(name = "F11")]
    F11,
    /// The commit queue over time (000 Fig. 6)
    #[value(name = "F12")]
    F12,
    /// Commits in a request (000 Fig. 7)
    #[value(name = "F13")]
    F13,
    /// Object bandwidth by journal (001 Fig. 6 to 8)
    #[value(name = "F14")]
    F14,
    /// Checkpoints by commits, and sizes of requests (001 Fig. 9 to 11)
    #[value(name = "F15")]
    F15,
    /// Costs of atomic commitment (003 Table I)
    #[value(name = "F16")]
    F16,
    /// Distributed operations in a second (003 Fig. 6)
    #[value(name = "F17")]
    F17,
    /// Creates of many clients in one directory, by one server and by four (004 §IV.C)
    #[value(name = "F17-creates")]
    F17Creates,
}

/// Arguments of `repro metarates`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each process creates files in a directory of its own, changes their times, lists them,
lists them with attributes, and deletes them. The layouts run on the metadata store as a
library, on a virtual hard disk in virtual time; with --dir also on loop devices of this
machine, beside the kernel's ext4 (needs root). docs/BENCHMARKS.md says how to read it.")]
pub struct MetaratesArgs {
    /// Clients
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub clients: u64,
    /// Processes of each client
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub processes: u64,
    /// Files of each process; several numbers give several tables
    #[arg(long, value_delimiter = ',', default_values_t = [5_000, 10_000, 50_000], value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    pub files: Vec<u64>,
    /// Changes become durable later (--commit) instead of each before its answer
    #[arg(long)]
    pub lazy: bool,
    /// Age at which changes are made durable that nobody waits for
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub commit: types::Duration,
    /// From an answer to a process's next request, in virtual time: microseconds, on average
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub message: u32,
    /// One processor of the server takes its price in virtual time, too (`repro price`)
    #[arg(long)]
    pub price: bool,
    /// Cache of the store
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub cache: u64,
    /// Blocks of which the store's checkpoint holds copies while they go home
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub batch: u32,
    /// Size of directory slots of the embedded layout: 512, 1K, 2K or 4K
    #[arg(long, value_name = "SIZE", default_value = "512")]
    pub slot: mfs::SlotSize,
    /// Log of the store, and journal of ext4
    #[arg(long, default_value = "128M", value_parser = parse_size)]
    pub log: u64,
    /// Metadata device
    #[arg(long, default_value = "64G", value_parser = parse_size)]
    pub device: u64,
    /// Directory for the images of loop devices; without it only the virtual disk is used
    #[arg(long, value_parser = parse_place)]
    pub dir: Option<PathBuf>,
    /// Leave a contender out, by its name in the tables: embedded, traditional, "traditional,
    /// hashed", ext4 or "ext4, hashed"; may be given several times
    #[arg(long, value_name = "CONTENDER", value_parser = Contender::named)]
    pub without: Vec<Contender>,
    /// Longest time of a single step on loop devices
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    pub limit: types::Duration,
    /// Write everything there as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `repro placement`.
#[derive(Args, Debug)]
#[command(after_help = "\
Users make trees at the same time, each in a directory of its own or all in one; then
every tree is walked with nothing cached. Directories lie together by parent and owner, in
the order in which they were made, or spread over the device. On a virtual hard disk in
virtual time. docs/BENCHMARKS.md says how to read it.")]
pub struct PlacementArgs {
    /// Users
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub users: u64,
    /// Directories of each, and directories in each of those
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub dirs: u64,
    /// Files of each directory
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub files: u64,
    /// Write what was measured as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `repro inline`.
#[derive(Args, Debug)]
#[command(after_help = "\
Metadata and data have a virtual hard disk each, in virtual time: the same figures on
every machine. docs/BENCHMARKS.md says how to read them.")]
pub struct InlineArgs {
    /// Directories
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub dirs: u64,
    /// Files of each
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub files: u64,
    /// Bytes of the smallest file
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub smallest: u64,
    /// Bytes of the largest file
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub largest: u64,
    /// Write what was measured as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `repro mfs`.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes one sparse file in DIR, of about a KiB for each file, and removes it at the end.
Neither server nor network are there, and root is not needed. docs/BENCHMARKS.md says how
to read it.")]
pub struct MfsArgs {
    /// Directory for the file
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Files that are made
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub files: u64,
    /// Files of each directory
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub per_directory: u64,
    /// Creates under way at once, each durable before its answer; 0: one after the other, durable
    /// later (--commit)
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub in_flight: u64,
    /// Age at which changes are made durable that nobody waits for
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    pub commit: types::Duration,
    /// Log of the store
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    pub log: u64,
    /// Put the log into a file of its own
    #[arg(long)]
    pub journal: bool,
    /// Cache of the store, and of the check
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub cache: u64,
    /// Threads of the check; several numbers: one check with each, in this order
    #[arg(
        long,
        value_name = "N,...",
        default_value = "1,2",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=JOBS_MAX)
    )]
    pub jobs: Vec<u16>,
    /// Size of directory slots
    #[arg(long, default_value = "512")]
    pub slot: mfs::SlotSize,
    /// Write everything there as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `repro mds`.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes one sparse file in DIR, of about a KiB for each file, and removes it at the end. The
server and its clients are in one process; what the clients take is counted, too. Root is
not needed. docs/BENCHMARKS.md says how to read it.")]
pub struct MdsArgs {
    /// Directory for the file
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Files that are made
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub files: u64,
    /// Clients that share them, each in a directory of its own
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub clients: u64,
    /// Requests that each client keeps under way
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub in_flight: u16,
    /// Each create is durable before its answer
    #[arg(long)]
    pub durable: bool,
    /// Log of the store
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    pub log: u64,
    /// Cache of the store
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub cache: u64,
    /// Size of directory slots
    #[arg(long, default_value = "512")]
    pub slot: mfs::SlotSize,
    /// Write everything there as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `repro greet`.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes one sparse file in DIR and removes it at the end. The server is a process of its own; it
is killed when all clients have a session, and they all come back to its successor. A process
that may have fewer open files than clients keeps as many connected, and the others part.
--files, --fill, --log and --cache make a takeover of many open files behind a full log.
Root is not needed. docs/BENCHMARKS.md says how to read it.")]
pub struct GreetArgs {
    /// Directory for the file
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Clients
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=types::limits::SESSIONS_MAX as u64))]
    pub clients: u64,
    /// Connect by TCP with a key, and encrypt
    #[arg(long)]
    pub keys: bool,
    /// Files that each client holds open
    #[arg(long, default_value_t = 1)]
    pub files: u64,
    /// Files that all make before, and hold no more
    #[arg(long, default_value_t = 0)]
    pub fill: u64,
    /// Size of the log
    #[arg(long, default_value = "64M", value_parser = parse_size)]
    pub log: u64,
    /// Cache of the server
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    pub cache: u64,
    /// Write everything there as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `repro timeouts`.
#[derive(Args, Debug)]
#[command(after_help = "\
Half of the requests wait behind a client that is stopped again and again; none of their
clients may connect again for that. Then the server is stopped, and its network cut: the
clients have to notice within max(3 x the p99 of a request's time, 2.5 s).")]
pub struct TimeoutsArgs {
    /// Directory for the file
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Requests
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000_000))]
    pub requests: u64,
    /// Sessions that make them
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(2..=1000))]
    pub sessions: u64,
    /// How often the server is stopped, and its network cut
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Write everything there as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments that `repro postmark`, `repro polygraph` and `repro source` share.
#[derive(Args, Debug)]
pub struct SmallArgs {
    /// Clients
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub clients: u64,
    /// Changes become durable within 5 s instead of each before its answer
    #[arg(long)]
    pub lazy: bool,
    /// Directory on a disk to measure, too: the layouts and ext4 on loop devices, metadata only
    #[arg(long, value_parser = parse_place)]
    pub dir: Option<PathBuf>,
    /// The metadata device; on loop devices ext4 has its space for data there, too
    #[arg(long, default_value = "64G", value_parser = parse_size)]
    pub device: u64,
    /// With --dir: longest time of a single step
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    pub limit: types::Duration,
    /// Write what was measured as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `repro postmark`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each client makes a pool of files of 500 to 10,000 bytes, does transactions on it (one
file is read or appended to, one made or deleted), and deletes it. The layouts run on the
metadata store as a library, on a virtual hard disk in virtual time; with --dir also on
loop devices beside ext4 (needs root). `redbud bench table --only postmark` does it on a
mount. docs/BENCHMARKS.md says how to read it.")]
pub struct PostmarkArgs {
    /// Files of each client's pool; the papers' were 100,000
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub pool: u64,
    /// Transactions of each client; the papers' were 500,000
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub transactions: u64,
    /// The rest
    #[command(flatten)]
    pub small: SmallArgs,
}

/// Arguments of `repro polygraph`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each client makes webs: directories eight deep, eight in each, of which one goes on, with
one or sixteen files of 10 kB to 1 MB in each, and reads them with nothing cached. The
layouts run on the metadata store as a library, on a virtual hard disk in virtual time;
with --dir also on loop devices beside ext4, where all webs must find room on --device
(needs root). `redbud bench table --only web-make,web-read` does it on a mount.
docs/BENCHMARKS.md says how to read it.")]
pub struct PolygraphArgs {
    /// Webs of each client
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub webs: u64,
    /// The rest
    #[command(flatten)]
    pub small: SmallArgs,
}

/// Arguments of `repro source`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each client unpacks a tree with the shape of a kernel's sources, compiles every second
file (which takes its processor 100 ms), and removes what was compiled. The layouts run on
the metadata store as a library, on a virtual hard disk in virtual time; with --dir also
on loop devices beside ext4, by the clock (needs root). docs/BENCHMARKS.md says how to
read it.")]
pub struct SourceArgs {
    /// Files of the tree; the papers' had 28,000
    #[arg(long, default_value_t = 28_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub sources: u64,
    /// The rest
    #[command(flatten)]
    pub small: SmallArgs,
}

/// Arguments of `repro price`.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes and removes files on a mount of its own and counts the processor time of its server,
and that of messages. The price that is printed beside it is that of the repository, which
`repro metarates --price` and `repro F4 --price` take. docs/BENCHMARKS.md says how it was
measured. Needs root, and the program `redbud`.")]
pub struct PriceArgs {
    /// Directory to work in
    #[arg(long, value_parser = parse_place)]
    pub dir: PathBuf,
    /// The program `redbud` [default: beside this program]
    #[arg(long, value_name = "PATH", value_parser = parse_place)]
    pub redbud: Option<PathBuf>,
    /// Files
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub files: u64,
    /// How often each is done; the least is printed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Longest time of a single step, after which everything is stopped
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    pub limit: types::Duration,
    /// Write the result there as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A file that F1 and F2 write.
fn parse_stream(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if (1 << 20..=4 << 30).contains(&bytes) => Ok(bytes),
        _ => Err("a file has at least 1 MiB and at most 4 GiB".to_owned()),
    }
}

/// A metadata device on which F9 can be made.
fn parse_aged(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    aging::Plan::on(bytes, Settings::PAPERS).map(|_| bytes).map_err(|error| error.0)
}

/// A directory or file that processes with another directory as theirs find, too.
fn parse_place(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{Cli, Figure};
    use clap::{CommandFactory, Parser};

    #[test]
    fn figures_need_no_command_and_take_their_options() {
        let figures = |line: &str| {
            let words = line.split(' ');
            Cli::try_parse_from(words).map(|cli| cli.figures)
        };
        let both = figures("repro F5 F9 --aged 64M --lazy").unwrap().unwrap();
        assert_eq!((both.figures, both.aged), (vec![Figure::F5, Figure::F9], 64 << 20));
        assert!(figures("repro inline --dirs 2").unwrap().is_none());
        for bad in [
            "repro",
            "repro F6",
            "repro F1 --size 9K",
            "repro F9 --aged 63M",
            "repro --lazy inline",
        ] {
            assert_eq!(figures(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn every_command_and_argument_has_help() {
        Cli::command().debug_assert();
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                let (name, id) = (command.get_name(), argument.get_id());
                assert!(argument.get_help().is_some(), "{name} {id}");
            }
        }
    }
}

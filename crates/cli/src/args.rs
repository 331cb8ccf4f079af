//! The command line. What `--help` says is written here and nowhere else.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use types::units::parse_size;

use crate::config::check_cache;
use crate::exit;

/// A parallel file system: many clients, one tree, shared disks.
#[derive(Parser, Debug)]
#[command(
    name = "redbud",
    version,
    max_term_width = 100,
    after_help = "\
Start here, as root:

  redbud local /tmp/redbud --mount /tmp/mnt

Exit status: 0 done, 1 failed, 2 usage, 3 partly done, 4 cluster unreachable, 5 not permitted,
6 timeout. `mount` and `fsck` follow mount(8) and fsck(8)."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Reads the command line. What cannot be read is told, and so is what `--help` asks for.
///
/// # Errors
/// The status with which the process ends.
pub fn parse(arguments: &[OsString]) -> Result<Cli, u8> {
    Cli::try_parse_from(arguments).map_err(|error| {
        // Nobody may be left to read it.
        drop(error.print());
        match (error.use_stderr(), arguments.get(1).and_then(|verb| verb.to_str())) {
            (false, _) => 0,
            (true, Some("fsck")) => exit::fsck::USAGE,
            (true, Some("mount")) => exit::mount::USAGE,
            (true, _) => exit::Status::Usage as u8,
        }
    })
}

/// How results are printed.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Output {
    /// Print JSON instead of a table; it carries a `version`, sizes are bytes
    #[arg(long)]
    pub json: bool,
    /// Print a table, or JSON on one line, or on many
    #[arg(short = 'o', long = "output", value_name = "FORMAT", conflicts_with = "json")]
    pub format: Option<Format>,
}

/// Ways to print a result.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "their names are shown as they are")]
pub enum Format {
    Table,
    Json,
    JsonPretty,
}

impl Output {
    /// The way that was asked for.
    pub fn format(self) -> Format {
        self.format.unwrap_or(if self.json { Format::Json } else { Format::Table })
    }

    /// Does a program read it?
    pub fn is_json(self) -> bool {
        !matches!(self.format(), Format::Table)
    }
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a whole cluster on this machine, on sparse files, and mount it
    Local(LocalArgs),
    /// Format the zones of a new file system
    Mkfs(MkfsArgs),
    /// Run the metadata server
    Mds(MdsArgs),
    /// Mount a file system
    Mount(MountArgs),
    /// Unmount a file system, and wait until its client has written everything
    Umount(UmountArgs),
    /// What the server and the mounts of this host are doing
    Status(StatusArgs),
    /// Space, by data zone
    Df(DfArgs),
    /// Where a file lies: its segments with file offset, length, PAG, offset and state
    #[command(alias = "getstripe")]
    Layout(LayoutArgs),
    /// Have the running server read and check its whole metadata device
    Scrub(ScrubArgs),
    /// Check a file system whose server is stopped, and repair it if told to
    Fsck(FsckArgs),
    /// Write names, attributes and layouts as a stream to standard output; the server is stopped
    Dump(DumpArgs),
    /// Build names, attributes and layouts from a dump on standard input, on a new file system
    Load(LoadArgs),
    /// The paths of inode numbers; the server is stopped
    Path(PathArgs),
    /// Measure it beside other file systems on the same disk
    Bench(BenchArgs),
    /// Run the whole cluster on virtual time with faults, and judge what clients saw
    Sim(SimArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write manual pages
    Man(ManArgs),
}

/// Arguments of `local`.
#[derive(Args, Debug)]
#[command(after_help = "\
The first start makes and formats the files in DIR; later ones reopen them. One process
runs the metadata server, one the client; their logs are DIR/mds.log and DIR/client.log. A
server that dies is started again. Ctrl-C unmounts and stops both.

Further mounts of the same file system: redbud mount ADDRESS:/local OTHER, with the
address that `local` prints.")]
pub struct LocalArgs {
    /// Where the cluster's files are
    pub dir: PathBuf,
    /// Where to mount it; made if it does not exist
    #[arg(long, value_name = "MNT")]
    pub mount: PathBuf,
    /// Data disks to make at the first start [default: 2]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub disks: Option<u16>,
    /// Size of each data disk at the first start [default: 16G]
    #[arg(long, value_parser = parse_size)]
    pub disk_size: Option<u64>,
    /// Size of the metadata disk at the first start [default: 8G]
    #[arg(long, value_parser = parse_size)]
    pub metadata_size: Option<u64>,
    /// Size of directory slots at the first start: 512, 1K, 2K or 4K [default: 512]
    #[arg(long, value_name = "SIZE", value_parser = parse_slots)]
    pub slot: Option<store::SlotSize>,
    /// Whether small files lie with their inodes, at the first start [default: on]
    #[arg(long, value_name = "on|off", value_parser = parse_switch, action = clap::ArgAction::Set)]
    pub inline_data: Option<bool>,
    /// Whether files have layout blocks, at the first start [default: off]
    #[arg(long, value_name = "on|off", value_parser = parse_switch, action = clap::ArgAction::Set)]
    pub layout_blocks: Option<bool>,
    /// Lease of clients: how long a client that fell silent can hold others up; kept in DIR
    #[arg(long, value_parser = types::units::parse_duration)]
    pub lease: Option<types::Duration>,
    /// Memory of the metadata server's cache, 8M or more; kept in DIR [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_cache)]
    pub cache: Option<u64>,
    /// Run a shell command in the mount, then stop everything and return its exit status
    #[arg(long, value_name = "CMD")]
    pub exec: Option<String>,
    /// Options of the mount, as `redbud mount` takes them
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
}

/// Arguments of `mkfs`.
#[derive(Args, Debug)]
#[command(after_help = "\
The file, with all keys:

  name = \"home\"                  # the file system, as in 10.0.0.1:/home

  [server]
  listen = \"10.0.0.1:10821\"      # default 127.0.0.1:10821
  lease  = \"30s\"                 # 1s to 1h; default 30s
  cache  = \"256M\"                # the server's buffer cache, 8M or more; default 256M
  layout_ahead = \"15\"            # with layout blocks: new files get one at once where
                                 # the files of their directory have more segments than
                                 # this in the mean, each counted in sixteens; or never;
                                 # default: what a slot holds, 15 to 163

  [metadata]
  path = \"/dev/disk/by-id/…\"     # a block device or a file
  size = \"8G\"                    # only for a file: it is made this large if it is missing
  log  = \"128M\"                  # default: a share of the zone

  [[data]]                       # once for each data zone
  path = \"/dev/disk/by-id/…\"
  size = \"16G\"                   # as above
  id   = 0                       # default: counted from 0

Relative paths start at the file's directory. A device that is in use, too small, or
carries a Redbud label is refused; --force formats over a label, never over a device in
use.")]
pub struct MkfsArgs {
    /// The cluster's file
    pub config: PathBuf,
    /// Format devices that carry a Redbud label: what is on them is lost
    #[arg(long)]
    pub force: bool,
    /// Size of directory slots: 512, 1K, 2K or 4K. Larger ones hold more segments and attributes
    /// beside the inode
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = parse_slots)]
    pub slot: store::SlotSize,
    /// Whether a file that fits in its slot lies there, beside its inode, and takes no data block
    #[arg(
        long,
        value_name = "on|off",
        default_value = "on",
        value_parser = parse_switch,
        action = clap::ArgAction::Set
    )]
    pub inline_data: bool,
    /// Whether segments that outgrow a file's slot go to blocks beside its inode first, which is
    /// for directories of fragmented files, or to a tree at once
    #[arg(
        long,
        value_name = "on|off",
        default_value = "off",
        value_parser = parse_switch,
        action = clap::ArgAction::Set
    )]
    pub layout_blocks: bool,
    /// How to print the result
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `mds`.
#[derive(Args, Debug)]
#[command(after_help = "\
Runs in the foreground until SIGTERM or SIGINT, which write everything home and end it.
Says READY=1 to $NOTIFY_SOCKET (systemd Type=notify) when clients can connect. Killing it
in any other way loses nothing that was acknowledged as durable: start it again.")]
pub struct MdsArgs {
    /// The cluster's file
    pub config: PathBuf,
    /// Listen here instead of what the file says
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Memory of the cache, 8M or more, instead of what the file says
    #[arg(long, value_name = "SIZE", value_parser = parse_cache)]
    pub cache: Option<u64>,
    /// Stop when standard input ends (for processes that run a server as their own)
    #[arg(long, hide = true)]
    pub until_eof: bool,
}

/// Arguments of `mount`.
#[derive(Args, Debug)]
#[command(after_help = "\
SOURCE is host[:port][,host[:port]]:/fsname[/subdir]; the port is 10821 if left out; IPv6
in brackets. As root no helper is needed; as a user fusermount3 (package fuse3) is, and a
/dev/fuse of mode 0666.

Options (-o, separated by commas):
  ro, nosuid, nodev, noexec, noatime, sync, dirsync    as in mount(8)
  [no]allow_other    may other users than the one who mounts enter (default: if root mounts)
  strict             the kernel also drops cached pages when a file's size or times changed
  timeo=N,retrans=N  mounting gives up after N tenths of a second, N times (50, 3)
  lease=TIME         lease asked of the server, 1s to 1h
  dirty=SIZE         dirty data held before writers wait (256M; 1M or more)
  dataN=PATH         where data zone N lies on this host, if not where the cluster's file says
  log=FILE           where the background process logs
  transport=dev      requests come through /dev/fuse; transport=uring: over io_uring, if
                     /sys/module/fuse/parameters/enable_uring says Y
  entries=N          with transport=uring: requests taken per queue at first, up to 64 (8)
  executors=N        threads that serve the mount, up to 64 (one for each processor, at
                     most 8; one over io_uring)
  _netdev, nofail, auto, user, x-…, hard, default_permissions: accepted, as fstab has them

Exit status as mount(8): 0 done, 1 usage or permission, 2 system error, 32 mount failure.")]
pub struct MountArgs {
    /// What to mount
    pub source: String,
    /// Where
    pub mount: PathBuf,
    /// Options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Unmount and end when this process, the parent, is gone
    #[arg(long, hide = true, value_name = "PID")]
    pub parent: Option<i32>,
    /// Leave the session of the terminal
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// Arguments of `umount`.
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// The mount point
    pub mount: PathBuf,
    /// Detach at once, even if it is busy; the client goes on until the last file is closed
    #[arg(short, long)]
    pub lazy: bool,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
#[command(after_help = "\
TARGET is a path in a mount, a mount source (host:port:/fsname), a cluster's file, or the
DIR of `redbud local`. Without one, every mount of this host is asked.")]
pub struct StatusArgs {
    /// Whom to ask
    pub target: Option<String>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `scrub`.
#[derive(Args, Debug)]
#[command(after_help = "\
Everything goes on meanwhile. Every metadata block in use is read where it lies and
verified, with what leads to it and what it leads to; a damaged one is written anew if the
server's cache or log has its newest version. Link counts, blocks with two owners and
counts are checked by `redbud fsck` only, with the server stopped. The server does this by
itself, too: `scrub_interval` and `scrub_rate` in the cluster's file.

TARGET as for `redbud status`. If one runs already, it is waited for. Exit status: 0
nothing is left damaged, 1 something is, or it did not come to its end.")]
pub struct ScrubArgs {
    /// Whose server
    pub target: String,
    /// Bytes to be read in a second at most; 0: as many as the device gives
    #[arg(long, default_value = "0", value_parser = parse_rate)]
    pub rate: u64,
    /// Do not wait for its end
    #[arg(long)]
    pub background: bool,
    /// Break off the one that runs
    #[arg(long, conflicts_with_all = ["rate", "background"])]
    pub stop: bool,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// A size that a cache can have.
fn parse_cache(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(check_cache)
}

/// A size, or 0.
fn parse_rate(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_size(text) }
}

/// Arguments of `df`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct DfArgs {
    /// A path in a mount, a mount source, a cluster's file, or the DIR of `redbud local`
    pub target: Option<String>,
    /// Sizes with K, M, G, T, P
    #[arg(short = 'h', long)]
    pub human: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `layout`.
#[derive(Args, Debug)]
pub struct LayoutArgs {
    /// Regular files in a mount
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// How to print them
    #[command(flatten)]
    pub output: Output,
}

/// Most threads of a check.
const JOBS_MAX: i64 = store::fsck::JOBS_MAX as i64;

/// Arguments of `fsck`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads the metadata zone, and of data zones their labels, of which repair writes those anew
that are damaged. Without --repair nothing is changed: the log is replayed in memory. The
server must be stopped; for --repair all clients should have unmounted. Repair may be
broken off and started again. What it cannot mend it leaves as it is, and says so.
`redbud fsck --list` explains every finding and what repair does about it (docs/FSCK.md).

Exit status as fsck(8): 0 clean, 1 repaired, 4 problems left, 8 operational error, 16
usage; 64 more if the repair could not keep all that users had, which it lists as LOST.")]
pub struct FsckArgs {
    /// The cluster's file, or the DIR of `redbud local`
    #[arg(required_unless_present = "list")]
    pub target: Option<PathBuf>,
    /// Repair what is found
    #[arg(short = 'y', long)]
    pub repair: bool,
    /// The device of this data zone has lost its label and is the right one: write the label anew
    #[arg(long, value_name = "ID", requires = "repair")]
    pub relabel: Vec<u16>,
    /// List the findings that there are, and what repair does about each
    #[arg(long, conflicts_with_all = ["target", "repair"])]
    pub list: bool,
    /// Threads that look through directory content (the report does not depend on it); default: the
    /// processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=JOBS_MAX))]
    pub jobs: Option<u16>,
    /// Accepted as fsck(8) has them; nothing is ever asked, nor repaired without -y
    #[arg(short = 'a', short_aliases = ['p', 'n', 'f'], action = clap::ArgAction::Count, hide = true)]
    pub ignored: u8,
    /// How to print the report
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `dump`.
#[derive(Args, Debug)]
#[command(after_help = "\
The stream (FORMAT.md) holds every inode that a name leads to, with names, attributes,
extended attributes, targets and segments; not the data, which stays where it is, and
nothing of clients. It depends on no release's format, carries checksums, and compresses
well:

  redbud dump home.toml | zstd > home.dump.zst")]
pub struct DumpArgs {
    /// The cluster's file, or the DIR of `redbud local`
    pub target: PathBuf,
}

/// Arguments of `load`.
#[derive(Args, Debug)]
#[command(after_help = "\
The metadata zone must be fresh from `redbud mkfs`, with data zones of the same numbers
that are not smaller; segments keep their places on them. (mkfs writes the label of a data
zone, block 0, and no data.) Inodes get new numbers. A load that failed has left a part:
format again.

  redbud mkfs --force home.toml && zstd -d < home.dump.zst | redbud load home.toml")]
pub struct LoadArgs {
    /// The cluster's file, or the DIR of `redbud local`
    pub target: PathBuf,
}

/// Arguments of `path`.
#[derive(Args, Debug)]
#[command(after_help = "\
The walk goes from the inode to the directory that holds it, and up. A file whose first
name was removed while it had others is found with --all only. Exit status: 0 all found,
1 none, 3 some.")]
pub struct PathArgs {
    /// The cluster's file, or the DIR of `redbud local`
    pub target: PathBuf,
    /// Inode numbers, as `stat` and logs have them
    #[arg(required = true, value_name = "INO")]
    pub inodes: Vec<u64>,
    /// All paths of files with several names: reads directory after directory until they are found
    #[arg(long)]
    pub all: bool,
    /// How to print them
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `sim`.
#[derive(Args, Debug)]
#[command(after_help = "\
Real clients and a real metadata server run in this process, on a simulated network and
simulated disks. Everything random follows from the seed: the same seed, options and
version of Redbud give the same run and the same trace, on every machine. What every
application saw is compared with a model of a POSIX file system; afterwards everything
must finish and the metadata must be whole. A violation is told with the fewest operations
and faults that show it, and with the command that repeats exactly those.

  redbud sim --seed 1                          one history, and what happened in it
  redbud sim --count 1000 --jobs 2             a thousand
  redbud sim --seed 1 --faults none            without faults
  redbud sim --campaign c.json --core-hours 8  as many as eight hours allow; may be broken off

SIGINT and SIGTERM end several seeds and campaigns with their summary. Kinds of faults
(SIMULATION.md says what each is): cut, partition, one-way, mute, uneven; server-kill,
server-power, server-pause; client-kill, process-kill, signal, silence, power,
cluster-power; stall, long-stall, data-eio, meta-eio, space, damage; clock-jump, drift;
together, pairs.

A campaign is gone on with by the build of Redbud and with the options that began it, or
with --changed.

Exit status: 0 everything held, 1 a violation was found, or something failed, 2 wrong
arguments, 3 no violation was found, but a history was not judged to its end.")]
pub struct SimArgs {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seeds to run; else 1
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub count: Option<u64>,
    /// Threads that run seeds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: u16,
    /// Clients; else 1 to 3, by the seed
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub clients: Option<u16>,
    /// Processes of each client; else 1 or 2, by the seed
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub processes: Option<u16>,
    /// Executors of each client, among which its processes are shared out
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub executors: u16,
    /// Operations of all processes together, about
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub operations: u64,
    /// Kinds of faults, separated by commas, or "none"; else all
    #[arg(long, value_delimiter = ',')]
    pub faults: Option<Vec<String>>,
    /// What operations do: mixed, names, content, fields
    #[arg(long, default_value = "mixed")]
    pub workload: String,
    /// Spread the operations over about so much virtual time, 12 at most; else they come as fast as
    /// they go
    #[arg(long)]
    pub hours: Option<f64>,
    /// Leave out all other operations and faults, but for what lasts for the whole run:
    /// c0p1:2,4-6/f:0 keeps four operations of process 1 of client 0, and the first fault
    #[arg(long, value_name = "STEPS")]
    pub keep: Option<String>,
    /// Another course of network and disks with the same operations and faults
    #[arg(long, default_value_t = 0)]
    pub timing: u64,
    /// Format the file system with the smallest slots, without inline data and layout blocks,
    /// instead of as the seed has it
    #[arg(long)]
    pub usual_format: bool,
    /// Leave out the operations beside the usual ones, so that a seed does what it did before there
    /// were any
    #[arg(long)]
    pub usual_operations: bool,
    /// Judge by all orders of the steps at once; else the one in which server and clients say that
    /// changes took effect comes first, and others only where that does not explain all
    #[arg(long)]
    pub all_orders: bool,
    /// Metadata servers; only one is simulated
    #[arg(long, default_value_t = 1)]
    pub mds: u16,
    /// Run every seed twice: both runs must be the same
    #[arg(long)]
    pub twice: bool,
    /// Go on with the campaign of this file, or begin one: seed after seed, with sums in the file
    #[arg(long, value_name = "FILE")]
    pub campaign: Option<PathBuf>,
    /// Go on with the campaign though this build of Redbud or the options are others than before;
    /// the file tells both
    #[arg(long, requires = "campaign")]
    pub changed: bool,
    /// End the campaign after so much processor time, that of earlier calls included
    #[arg(long, value_name = "HOURS", requires = "campaign")]
    pub core_hours: Option<f64>,
    /// Seconds to look for the smallest history that shows a violation
    #[arg(long, default_value_t = 30)]
    pub shrink: u64,
    /// How to print
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub what: Bench,
}

/// What `bench` measures, and the processes that it needs.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Times: Redbud, a null FUSE mount, the local file system and the raw disk, in turns
    Table(BenchTableArgs),
    /// Memory of the client and the metadata server at many files
    Memory(BenchMemoryArgs),
    /// Serve a file system that keeps no data, until it is unmounted
    #[command(hide = true)]
    Null {
        /// Where
        mount: PathBuf,
        /// Requests travel over io_uring
        #[arg(long)]
        uring: bool,
    },
    /// One load generator
    #[command(hide = true)]
    Worker {
        /// What it does, as JSON
        job: String,
    },
}

/// Arguments of `bench table`.
#[derive(Args, Debug)]
#[command(after_help = "\
Everything is made in a directory of its own in DIR, which should lie on an ext4 of a disk
that nothing else uses, and is removed at the end. Works (--only):

  seq-write, seq-read, rand-read, create-1, create-8, unlink-1, stat-sorted, stat-random,
  stat-readdir, small, small-fsync-1, small-fsync-8; and, only if named: postmark, web-make, web-read

Progress goes to standard error, the table to standard output. docs/BENCHMARKS.md says how
to read it. Needs root.")]
pub struct BenchTableArgs {
    /// Directory on the disk to measure
    #[arg(long, value_parser = parse_place)]
    pub dir: PathBuf,
    /// How often each work is done; medians are printed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Empty files to create and unlink; small files are a quarter of that, with fsync a tenth
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub files: u64,
    /// Entries of the directory that is looked up
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub entries: u64,
    /// Size of the file that is written and read
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub size: u64,
    /// Requests in flight on the raw disk while it is written or read in sequence
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: u16,
    /// How long random reads go on
    #[arg(long, default_value = "3s", value_parser = types::units::parse_duration)]
    pub random: types::Duration,
    /// Requests reach Redbud's and the null mount over io_uring (-o transport=uring) instead of
    /// /dev/fuse
    #[arg(long)]
    pub uring: bool,
    /// Only these works
    #[arg(long, value_name = "WORK,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Longest time of a single step, after which everything is stopped
    #[arg(long, default_value = "10m", value_parser = types::units::parse_duration)]
    pub limit: types::Duration,
    /// Write all samples there as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `bench memory`.
#[derive(Args, Debug)]
pub struct BenchMemoryArgs {
    /// Directory to work in
    #[arg(long, value_parser = parse_place)]
    pub dir: PathBuf,
    /// Files to make
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub inodes: u64,
    /// Longest time of a single step, after which everything is stopped
    #[arg(long, default_value = "10m", value_parser = types::units::parse_duration)]
    pub limit: types::Duration,
    /// Write the result there as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A size of directory slots.
fn parse_slots(text: &str) -> Result<store::SlotSize, String> {
    let bytes = parse_size(text)?;
    let found = store::SlotSize::ALL.into_iter().find(|size| size.share() as u64 == bytes);
    found.ok_or_else(|| "slots have 512, 1K, 2K or 4K bytes".to_owned())
}

/// A directory that processes with another one as theirs find, too.
fn parse_place(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|error| error.to_string())
}

/// `on` or `off`.
fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is on or off".to_owned()),
    }
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// bash, zsh, fish, elvish or powershell
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory for redbud.1, redbud-mount.1 and so on; made if it does not exist
    pub dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn bad_command_line_ends_with_the_documented_exit_status() {
        let code = |line: &str| {
            let words: Vec<_> = line.split(' ').map(std::ffi::OsString::from).collect();
            super::parse(&words).map(drop)
        };
        assert_eq!(code("redbud fsck"), Err(16));
        assert_eq!(code("redbud fsck --jobs 0 home.toml"), Err(16));
        assert_eq!(code("redbud mount"), Err(1));
        assert_eq!(code("redbud status --jobs 0"), Err(2));
        assert_eq!(code("redbud"), Err(2));
        assert_eq!(code("redbud fsck --help"), Err(0));
        assert_eq!(code("redbud fsck home.toml"), Ok(()));
    }

    #[test]
    fn invalid_cache_size_is_refused() {
        for bad in ["1M", "8388609", "much"] {
            assert!(super::parse_cache(bad).is_err(), "{bad}");
        }
        assert_eq!(super::parse_cache("8M"), Ok(8 << 20));
    }

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_argument_has_help() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                let (name, id) = (command.get_name(), argument.get_id());
                assert!(argument.get_help().is_some(), "{name} {id}");
            }
        }
    }
}

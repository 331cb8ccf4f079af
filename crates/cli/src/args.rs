//! The command line. All texts of `--help` are here.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use commitment::Protocol;

use types::units::parse_size;

mod bench;
mod fence;
mod journal;
mod key;
mod layout;
mod migrate;
mod ost;
mod pag;
mod running;
mod sim;
pub use bench::{
    Bench, BenchArgs, BenchDevicesArgs, BenchLoadArgs, BenchMemoryArgs, BenchPersonalityArgs,
    BenchTableArgs, BenchXcdnArgs, DevicesPart,
};
pub use fence::{FenceArgs, FenceCommand, FenceTestArgs};
pub use journal::{JournalArgs, JournalCommand, JournalMoveArgs, JournalStatusArgs};
pub use key::{
    KeyAllowArgs, KeyArgs, KeyCommand, KeyListArgs, KeyNewArgs, KeyRevokeArgs, KeyShowArgs,
};
pub use layout::{LayoutArgs, PolicyName, SetLayoutArgs, SpreadName};
pub use migrate::{MigrateArgs, PoolName};
pub use ost::{
    OstAdoptArgs, OstArgs, OstCheckArgs, OstCommand, OstFormatArgs, OstJournalsArgs, OstKeyArgs,
    OstScrubArgs, OstServeArgs, OstStatusArgs, OstSurveyArgs, SurveyMode, SurveyPass, Whose,
};
pub use pag::{
    PagAddArgs, PagArgs, PagCommand, PagDrainArgs, PagFilesArgs, PagListArgs, PagLostArgs,
    RebalanceArgs,
};
pub use running::{
    ClientArgs, ClientCommand, ClientEvictArgs, ClientListArgs, ClientShowArgs, DurableArgs,
    SyncArgs, WhyArgs,
};
pub use sim::SimArgs;

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
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Parses the command line. Prints usage errors, and the text that `--help` asks for.
///
/// # Errors
/// The exit status of the process.
pub fn parse(arguments: &[OsString]) -> Result<Cli, u8> {
    Cli::try_parse_from(arguments).map_err(|error| {
        // The reader of the output may be gone.
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

/// Formats of a result.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "their names are shown as they are")]
pub enum Format {
    Table,
    Json,
    JsonPretty,
}

impl Output {
    /// The requested format.
    pub fn format(self) -> Format {
        self.format.unwrap_or(if self.json { Format::Json } else { Format::Table })
    }

    /// Is the output for a program?
    pub fn is_json(self) -> bool {
        !matches!(self.format(), Format::Table)
    }
}

/// The metadata server of several that a command is about.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ServerChoice {
    /// Number of the metadata server; needed if the file system has several
    #[arg(long = "server", value_name = "N")]
    pub number: Option<u16>,
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
    /// Make, serve, check and measure object targets
    Ost(OstArgs),
    /// Mount a file system
    Mount(MountArgs),
    /// Unmount a file system, and wait until its client has written all dirty data
    Umount(UmountArgs),
    /// Show what is wrong, the metadata server, and what this host's mounts hold and owe
    Status(StatusArgs),
    /// List, show or evict clients
    Client(ClientArgs),
    /// List data zones, add them, name the files in one, say that one is lost or drains
    Pag(PagArgs),
    /// Move files from data zones that are fuller than others
    Rebalance(RebalanceArgs),
    /// Make everything durable that mounts of this host have changed, and wait for it
    Sync(SyncArgs),
    /// Show what of files and directories is not durable yet
    Durable(DurableArgs),
    /// Show what a process or a path waits for, and who holds it
    Why(WhyArgs),
    /// Show used and free space by data zone
    Df(DfArgs),
    /// Show the layout of files: segments with file offset, length, PAG, address and state; and
    /// what holds for directories, with the state of the files below them
    #[command(alias = "getstripe")]
    Layout(LayoutArgs),
    /// Say where the blocks of the files go that are created in a directory from now on
    #[command(alias = "setstripe")]
    SetLayout(SetLayoutArgs),
    /// Move files between blocks of data zones and objects at targets
    Migrate(MigrateArgs),
    /// Make the running server read and verify all its metadata blocks
    Scrub(ScrubArgs),
    /// Try out the fences of the cluster's file
    Fence(FenceArgs),
    /// Check a file system whose server is stopped, and repair it with --repair
    Fsck(FsckArgs),
    /// Show where the log is, or move it to another device
    Journal(JournalArgs),
    /// Make keys, and say whose the metadata server accepts
    Key(KeyArgs),
    /// Write names, attributes and layouts to standard output; the server must be stopped
    Dump(DumpArgs),
    /// Rebuild names, attributes and layouts from a dump on standard input
    Load(LoadArgs),
    /// Find the paths of inode numbers; the server must be stopped
    Path(PathArgs),
    /// Measure Redbud beside other file systems on the same disk
    Bench(BenchArgs),
    /// Simulate a whole cluster with faults in virtual time, and check what clients saw
    Sim(SimArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write manual pages
    Man(ManArgs),
}

/// Arguments of `local`.
#[derive(Args, Debug)]
#[command(after_help = "\
The first start creates and formats the files in DIR; later starts reuse them. One process
runs the metadata server, one the client; their logs are DIR/mds.log and DIR/client.log. If
the server dies, it is restarted. Ctrl-C unmounts and stops both. With --standby 1 a second
server takes over when the first one dies; its log is DIR/mds1.log. With --mds 2 the directories
are shared out to two servers, of which each has its own log, DIR/mds.log and DIR/mds1.log. With
both, one more server stands by for the two; its log is DIR/mds2.log. With --take-over on a
server that dies, and does not start again within two seconds, is taken over by the other one.

To mount the same file system again: redbud mount ADDRESS:/local OTHER, with the address
that `local` prints.")]
pub struct LocalArgs {
    /// Directory of the cluster's files
    pub dir: PathBuf,
    /// Mount point; created if it does not exist
    #[arg(long, value_name = "MNT")]
    pub mount: PathBuf,
    /// Number of data disks that the first start creates [default: 2]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub disks: Option<u16>,
    /// Size of each data disk at the first start [default: 16G]
    #[arg(long, value_parser = parse_size)]
    pub disk_size: Option<u64>,
    /// Size of the metadata disk at the first start [default: 8G]
    #[arg(long, value_parser = parse_size)]
    pub metadata_size: Option<u64>,
    /// Size of directory slots at the first start: 512, 1K, 2K or 4K [default: 512]
    #[arg(long, value_name = "SIZE")]
    pub slot: Option<mfs::SlotSize>,
    /// Store small files in their slots as inline data; set at the first start [default: on]
    #[arg(long, value_name = "on|off", value_parser = parse_switch, action = clap::ArgAction::Set)]
    pub inline_data: Option<bool>,
    /// Let files have layout blocks; set at the first start [default: off]
    #[arg(long, value_name = "on|off", value_parser = parse_switch, action = clap::ArgAction::Set)]
    pub layout_blocks: Option<bool>,
    /// Lease of clients: how long a silent client can block others; kept in DIR
    #[arg(long, value_parser = types::units::parse_duration)]
    pub lease: Option<types::Duration>,
    /// Size of the metadata server's cache, 8M or more; kept in DIR [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_cache)]
    pub cache: Option<u64>,
    /// Number of metadata servers that the first start creates: each has a part of the directories,
    /// a metadata disk and a data disk of its own [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub mds: Option<u16>,
    /// How several metadata servers agree on what concerns two of them: 1PC, EP, PrC or PrN; kept
    /// in DIR [default: 1PC]
    #[arg(long, value_name = "NAME", value_parser = parse_protocol)]
    pub commit_protocol: Option<Protocol>,
    /// Run so many further metadata servers, which stand by and take over if the active one dies;
    /// kept in DIR [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=8))]
    pub standby: Option<u16>,
    /// Let the metadata servers of several take over from each other: one that serves takes over
    /// one that has died, behind those that stand by; kept in DIR [default: off]
    #[arg(long, value_name = "on|off", value_parser = parse_switch, action = clap::ArgAction::Set)]
    pub take_over: Option<bool>,
    /// Number of object targets that the first start creates, each of the size of a data disk:
    /// files of directories with the layout policy=objects lie there [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=64))]
    pub osts: Option<u16>,
    /// Where the targets have their journals; set at the first start [default: internal]
    #[arg(long, value_name = "PLACE", requires = "osts")]
    pub journal: Option<TargetJournal>,
    /// Run a shell command in the mount, then stop everything and return its exit status
    #[arg(long, value_name = "CMD")]
    pub exec: Option<String>,
    /// Mount options, as of `redbud mount`
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
}

/// Where a target has its journal.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TargetJournal {
    /// On the device of its objects.
    #[default]
    Internal,
    /// On a device of its own.
    External,
    /// All on one device, each in a slice of it.
    Shared,
}

/// Arguments of `mkfs`.
#[derive(Args, Debug)]
#[command(after_help = "\
The file, with all keys:

  name = \"home\"                  # the file system, as in 10.0.0.1:/home

  [server]
  listen = \"10.0.0.1:10821\"      # default 127.0.0.1:10821
  standbys = [\"10.0.0.2:10821\"]  # the addresses of servers that stand by
  security = \"encrypted\"         # default; \"greeting\": keys are proved, frames are clear;
                                 # \"none\": who reaches the server has everything
  key    = \"home.key\"            # the server's secret key; default: FILE with .key
  allowed = \"home.allowed\"       # the keys that it allows; default: FILE with .allowed
  public_keys = [\"redbud-key-…\"] # the server's public keys, which clients read here
  lease  = \"30s\"                 # 1s to 1h; default 30s
  commit_protocol = \"1PC\"        # how several servers agree: 1PC, EP, PrC or PrN; default 1PC
  commit_batch = 64              # operations of a directory on which they agree together, 1 to
                                 # 64; default 64
  spread_at = 50000              # names at which a directory is spread over several servers
  cache  = \"256M\"                # the server's buffer cache, 8M or more; default 256M
  serve  = 16                    # requests that it works on at once; default: all
  scrub_interval = \"168h\"        # pause between two scrubs, 1s or more; or \"never\"
  scrub_rate = \"16M\"             # bytes a second that it reads at most; \"0\": no limit
  layout_ahead = \"15\"            # with layout blocks: a new file gets one at creation if
                                 # the files of its directory have more segments than
                                 # this on average (counted in sixteenths); or \"never\";
                                 # default: as many as a slot holds, 15 to 163

  [metadata]
  path = \"/dev/disk/by-id/…\"     # a block device or a file
  size = \"8G\"                    # only for a file: created with this size if missing
  log  = \"128M\"                  # internal log; default: a share of the zone
  journal = \"/dev/disk/by-id/…\"  # the log on a device or file of its own, which it fills;
                                 # the internal log stays set aside
  journal_size = \"256M\"          # only for a file, as above

  [[data]]                       # one table for each data zone
  path = \"/dev/disk/by-id/…\"
  size = \"16G\"                   # as above
  id   = 0                       # default: counted from 0
  mds  = 0                       # with [[mds]]: the server that it belongs to; default 0

  [[mds]]                        # instead of [metadata]: one table for each of several servers,
                                 # which are counted from 0; server 0 has the root directory
  path = \"/dev/disk/by-id/…\"     # size, log, journal and journal_size as in [metadata]
  listen = \"10.0.0.1:10821\"      # instead of that of [server]; each has its own
  take_over = [\"10.0.0.1:10823\"] # where it takes over others that have died; default: none

  [membership]                   # only for servers that stand by for each other
  directory = \"membership\"       # their lock and record, for servers of one host; or:
  etcd = [\"https://host:2379\"]   # the members of an etcd cluster, usually 3
  ca   = \"etcd-ca.pem\"           # the certificates of their CA
  user = \"redbud\"                # at etcd; default: none
  password_file = \"etcd-password\"
  lease = \"6s\"                   # the owner's, 3s to 60s; default 6s

  [client]
  key = \"client.key\"            # a client's secret key; default /etc/redbud/client.key

Relative paths start at the file's directory. mkfs refuses a device that is in use, too
small, or has a Redbud label. --force overwrites a label, never a device in use.")]
pub struct MkfsArgs {
    /// The cluster's file
    pub config: PathBuf,
    /// Format devices that have a Redbud label or other content: their content is lost
    #[arg(long)]
    pub force: bool,
    /// Size of directory slots: 512, 1K, 2K or 4K. A larger slot holds more segments and
    /// extended attributes beside the inode
    #[arg(long, value_name = "SIZE", default_value = "512")]
    pub slot: mfs::SlotSize,
    /// Store a file that fits in its slot as inline data there, without a data block
    #[arg(
        long,
        value_name = "on|off",
        default_value = "on",
        value_parser = parse_switch,
        action = clap::ArgAction::Set
    )]
    pub inline_data: bool,
    /// Store segments that outgrow a file's slot in layout blocks beside the inode first, which
    /// suits directories of fragmented files, instead of in a tree at once
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
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Runs in the foreground. On SIGTERM or SIGINT it writes a checkpoint and ends. It sends
READY=1 to $NOTIFY_SOCKET (systemd Type=notify) when clients can connect. If it is killed in
another way, nothing is lost that was acknowledged as durable: start it again. Exit status 7:
another server has taken over, or the metadata are an older copy; do not start it by itself.

With a table [membership] in the file several servers may be started, each with --standby and
its own --listen: one serves, the others take over when its death is proved.

With several tables [[mds]] in the file each is a server of its own, which has a part of the
directories: start all of them, each with its --server. With --standby and no --server a process
stands by for all of them, and becomes the first of which the owner has died. With --standby
and --server N it looks for server N first, and stands by for all of them if another process is
server N by now. With addresses in `mds.take_over` a process that serves takes over the servers
that have died, one at each address, if neither they nor standbys come within some seconds.")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct MdsArgs {
    /// The cluster's file
    #[arg(required = true)]
    pub config: Option<PathBuf>,
    /// Be this server of the file's several, which are counted from 0; with --standby: if no other
    /// process is
    #[arg(long, value_name = "N")]
    pub server: Option<u16>,
    /// Wait while another server serves, and take over when that one has certainly ended
    #[arg(long)]
    pub standby: bool,
    /// Also stand by for the file's other servers at this address, one of a key `mds.take_over`, as
    /// long as this process serves; `none`: do not. May be repeated [default: the addresses of the
    /// server that --server names]
    #[arg(long, value_name = "ADDRESS|none")]
    pub take_over: Vec<String>,
    /// Let another server that stands by claim first, for some seconds
    #[arg(long, hide = true)]
    pub hold_back: bool,
    /// Or a command about a running server
    #[command(subcommand)]
    pub command: Option<MdsCommand>,
    /// Listen on this address instead of the file's
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Size of the cache, 8M or more, instead of the file's
    #[arg(long, value_name = "SIZE", value_parser = parse_cache)]
    pub cache: Option<u64>,
    /// Path of the control socket [default: /run/redbud/mds-PID.sock; for other users than root
    /// below $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Serve metadata that are older than what a server has put into the labels of the data
    /// devices, after they were restored from a backup. Only when no other server can be alive
    #[arg(long)]
    pub older_copy: bool,
    /// Stop when standard input ends (for a parent process that runs the server)
    #[arg(long, hide = true)]
    pub until_eof: bool,
}

/// Commands of `mds`.
#[derive(Subcommand, Debug, Clone)]
pub enum MdsCommand {
    /// Hand the metadata over to a server that stands by, as planned
    Failover(FailoverArgs),
}

/// Arguments of `mds failover`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Run it on the host of the server that serves, as root or as the server's user. The server writes
its checkpoint and gives the metadata up; another one claims them at once, and clients go on
there. It stands by itself then. Without a server that stands by nothing happens.")]
pub struct FailoverArgs {
    /// A path in the mount, a mount source, the cluster's file, or the directory of `local`
    pub target: String,
    /// Whose metadata
    #[command(flatten)]
    pub server: ServerChoice,
    /// How to print the result
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `mount`.
#[derive(Args, Debug)]
#[command(after_help = "\
SOURCE is host[:port][,host[:port]]:/fsname[/subdir]; the default port is 10821; put IPv6
addresses in brackets. Root needs no helper; other users need fusermount3 (package fuse3)
and a /dev/fuse of mode 0666.

Options (-o, separated by commas):
  ro, nosuid, nodev, noexec, noatime, sync, dirsync    as in mount(8)
  [no]allow_other    let users other than the mounting one enter (default: if root mounts)
  strict             the kernel also drops cached pages when a file's size or times change
  timeo=N,retrans=N  mounting gives up after retrans tries of timeo tenths of a second (3, 50)
  lease=TIME         lease that the client asks the server for, 1s to 1h
  target_ping=TIME   ask an object target what is durable so long after the last request to it
                     (off: the target says so)
  dirty=SIZE         dirty data at which writers wait (256M; 1M or more)
  commit=delayed     a write is answered at once; commit=sync: when its data is stable and the
                     server has its commit
  compound=N         commits in one request, 1 to 64, or auto; commit_tasks=N: such requests at
                     once, 1 to 9, or auto; commit_max_age=TIME: until a commit begins (1s)
  prealloc=od        growing files get windows of free blocks by process; prealloc=reservation:
                     one for each file; prealloc=vanilla: none
  place=launch       a place is chosen when bytes go to the device; place=write: at once
  chunk=SIZE         free space that the client asks the server for at a time, at first (16M)
  od_*=...           parameters of prealloc=od, see docs/mount-options.md
  dataN=PATH         path of data zone N on this host, if not that of the cluster's file
  cluster=FILE       the cluster's file, of which a client needs security and public_keys of
                     [server] and key of [client]; default: /etc/redbud/FSNAME.toml
  key=FILE           this host's secret key, instead of the one that the cluster's file names
  security=none      use no keys
  log=FILE           log file of the background process
  control=PATH       control socket (/run/redbud/client-PID.sock; for other users than root
                     below $XDG_RUNTIME_DIR)
  transport=dev      requests come through /dev/fuse; transport=uring: over io_uring, if
                     /sys/module/fuse/parameters/enable_uring is Y
  entries=N          with transport=uring: initial entries of each queue, up to 64 (8)
  executors=N        threads that serve the mount, up to 64 (one for each processor, at
                     most 8; one over io_uring)
  allow_unzoned      as --allow-unzoned
  _netdev, nofail, auto, user, x-…, hard, default_permissions: accepted for fstab, no effect

Exit status as mount(8): 0 done, 1 usage or permission, 2 system error, 32 mount failure.")]
pub struct MountArgs {
    /// File system: HOST:/FSNAME, also HOST:PORT:/FSNAME, and with a subdirectory behind FSNAME
    pub source: String,
    /// Mount point
    pub mount: PathBuf,
    /// Options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Mount even if this host reaches a device with the metadata; the log names it
    #[arg(long)]
    pub allow_unzoned: bool,
    /// Unmount and end when the parent process PID ends
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
    /// Detach at once, even if busy; the client runs until the last file is closed
    #[arg(short, long)]
    pub lazy: bool,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
#[command(after_help = "\
TARGET is a path in a mount, a mount source (host:port:/fsname), a cluster's file, or the
DIR of `redbud local`. Without one, the servers of all mounts of this host are asked.")]
pub struct StatusArgs {
    /// File system to ask for; default: all mounts of this host
    pub target: Option<String>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `scrub`.
#[derive(Args, Debug)]
#[command(after_help = "\
The file system stays in use. The server reads every metadata block in use from its home
address and verifies it and the references from and to it. It rewrites a damaged block if
its cache or log has the newest version. Only `redbud fsck`, with the server stopped, checks
link counts, blocks with two owners and other counts. The server also scrubs by itself: see
`scrub_interval` and `scrub_rate` in the cluster's file.

TARGET as for `redbud status`. If a scrub runs already, the command waits for it. Exit
status: 0 no damage is left, 1 damage is left or the scrub did not end.")]
pub struct ScrubArgs {
    /// File system to scrub
    pub target: String,
    /// Whose metadata
    #[command(flatten)]
    pub server: ServerChoice,
    /// How to scrub
    #[command(flatten)]
    pub how: ScrubHow,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// What a command does about a scrub.
#[derive(Args, Debug)]
pub struct ScrubHow {
    /// Read at most this many bytes a second; 0: no limit. A scrub that runs already keeps its rate
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_rate)]
    pub rate: u64,
    /// Do not wait for the end of the scrub
    #[arg(long)]
    pub background: bool,
    /// Stop the running scrub
    #[arg(long, conflicts_with_all = ["rate", "background"])]
    pub stop: bool,
}

/// Parses the size of a cache.
fn parse_cache(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(check_cache)
}

/// Parses the pause between two scrubs; `never` is zero.
pub fn parse_scrub_interval(text: &str) -> Result<types::Duration, String> {
    if text == "never" {
        return Ok(types::Duration::ZERO);
    }
    let interval = types::units::parse_duration(text)?;
    let is_long_enough = interval >= types::Duration::from_secs(1);
    is_long_enough.then_some(interval).ok_or_else(|| "write a time of 1s or more, or never".into())
}

/// Parses a size, or 0.
fn parse_rate(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_size(text) }
}

/// Arguments of `df`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct DfArgs {
    /// A path in a mount, a mount source, a cluster's file, or the DIR of `redbud local`
    pub target: Option<String>,
    /// Print sizes with K, M, G, T, P
    #[arg(short = 'h', long)]
    pub human: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Maximum of threads of a check.
const JOBS_MAX: i64 = mfs::fsck::JOBS_MAX as i64;

/// Arguments of `fsck`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads the metadata zone and the labels of the data zones. Of several metadata servers fsck
checks each, and then what they say of each other. Without --repair fsck changes
nothing: it replays the log in memory. The server must be stopped; before --repair all
clients should have unmounted. Repair also rewrites damaged labels of data zones. Repair can
be interrupted and run again. It reports what it cannot repair and leaves it unchanged.
`redbud fsck --list` explains every finding and its repair (docs/FSCK.md).

Exit status as fsck(8): 0 clean, 1 repaired, 4 problems left, 8 operational error, 16
usage; plus 64 if the repair lost user data, which it lists as LOST.")]
pub struct FsckArgs {
    /// The cluster's file, or the DIR of `redbud local`
    #[arg(required_unless_present = "list")]
    pub target: Option<PathBuf>,
    /// Repair all findings that can be repaired
    #[arg(short = 'y', long)]
    pub repair: bool,
    /// Check only this metadata server of several; default: all, one after the other
    #[arg(long, value_name = "N")]
    pub server: Option<u16>,
    /// Rewrite the label of this data zone: confirms that its device, which lost the label, is
    /// the right one
    #[arg(long, value_name = "ID", requires = "repair")]
    pub relabel: Vec<u16>,
    /// List all kinds of findings and what repair does about each
    #[arg(long, conflicts_with_all = ["target", "repair"])]
    pub list: bool,
    /// Threads that check directory content; the report does not depend on it [default: number
    /// of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=JOBS_MAX))]
    pub jobs: Option<u16>,
    /// Accepted for fsck(8); fsck never asks questions, and repairs only with -y
    #[arg(short = 'a', short_aliases = ['p', 'n', 'f'], action = clap::ArgAction::Count, hide = true)]
    pub ignored: u8,
    /// How to print the report
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `dump`.
#[derive(Args, Debug)]
#[command(after_help = "\
The stream (FORMAT.md) holds every inode that has a name, with names, attributes, extended
attributes, symlink targets and segments. It does not hold file data, which stays on the
data zones, nor the state of clients. Of several metadata servers it says what lies with
which. It is independent of the release's format, has checksums, and compresses well:

  redbud dump home.toml | zstd > home.dump.zst")]
pub struct DumpArgs {
    /// The cluster's file, or the DIR of `redbud local`
    pub target: PathBuf,
    /// Dump only this metadata server of several, with what lies there whole; default: all
    #[arg(long, value_name = "N")]
    pub server: Option<u16>,
}

/// Arguments of `load`.
#[derive(Args, Debug)]
#[command(after_help = "\
The metadata zones must be fresh from `redbud mkfs`, of at least as many servers, with the
same data zone numbers, and each data zone at least as large. Segments keep their addresses on the data zones. (mkfs
writes only the label of a data zone, block 0.) Inodes get new numbers. If a load fails,
format again before the next load.

  redbud mkfs --force home.toml && zstd -d < home.dump.zst | redbud load home.toml")]
pub struct LoadArgs {
    /// The cluster's file, or the DIR of `redbud local`
    pub target: PathBuf,
    /// Load only into this metadata server of several, which is 0; default: into all
    #[arg(long, value_name = "N")]
    pub server: Option<u16>,
}

/// Arguments of `path`.
#[derive(Args, Debug)]
#[command(after_help = "\
The search goes from the inode to the directory of its slot, and up. Only --all finds a
file whose first name was removed while it had others. Of several metadata servers all are
searched; with --server N only that one is. Exit status: 0 all found, 1 none, 3 some.")]
pub struct PathArgs {
    /// The cluster's file, or the DIR of `redbud local`
    pub target: PathBuf,
    /// Inode numbers, as `stat` and logs print them
    #[arg(required = true, value_name = "INO")]
    pub inodes: Vec<u64>,
    /// Whose metadata
    #[command(flatten)]
    pub server: ServerChoice,
    /// Find all paths of files with several names; reads directories until all are found
    #[arg(long)]
    pub all: bool,
    /// How to print them
    #[command(flatten)]
    pub output: Output,
}

/// Parses the name of a commit protocol.
fn parse_protocol(text: &str) -> Result<Protocol, String> {
    let named = Protocol::ALL.into_iter().find(|one| one.name() == text);
    named.ok_or_else(|| "write 1PC, EP, PrC or PrN".to_owned())
}

/// Parses `on` or `off`.
fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell: bash, zsh, fish, elvish or powershell
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory for redbud.1, redbud-mount.1 and so on; created if it does not exist
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

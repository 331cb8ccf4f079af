//! Arguments of `ost`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use types::Uuid;
use types::units::{parse_duration, parse_size};

use super::{
    Output, PagLostArgs, ScrubHow, parse_cache, parse_rate, parse_scrub_interval, parse_switch,
};

/// Arguments of `ost`.
#[derive(Args, Debug)]
#[command(after_help = "\
An object target is a server with devices of its own, which no other host has to reach.
Once, on any host:

  redbud ost key /etc/redbud/targets.key        and copy it to the metadata server's host and
                                                to each host with targets, mode 0600

In the cluster's file, on all of these hosts:

  [targets]
  key = \"targets.key\"

  [[ost]]                                       one table for each target
  device  = \"/dev/disk/by-id/…\"
  journal = \"/dev/disk/by-id/…\"                 default: on the same device
  address = \"10.0.0.3:10822\"

On the target's host:

  redbud ost format /dev/disk/by-id/… --config /etc/redbud/home.toml
  redbud ost serve --config /etc/redbud/home.toml /dev/disk/by-id/…")]
pub struct OstArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: OstCommand,
}

/// What `ost` does.
#[derive(Subcommand, Debug)]
pub enum OstCommand {
    /// Make a target on a device
    Format(OstFormatArgs),
    /// Serve targets, several in one process
    Serve(OstServeArgs),
    /// Show a running target, or all of this host
    Status(OstStatusArgs),
    /// Make the running targets of this host read all their content, and verify it
    Scrub(OstScrubArgs),
    /// Say that a target is gone for good, as `redbud pag lost`: clients fail what lies there at
    /// once
    Lost(PagLostArgs),
    /// Check a target whose server is stopped
    Check(OstCheckArgs),
    /// Make a target one of the file system into which a dump of its own was loaded
    Adopt(OstAdoptArgs),
    /// Show the journals on a device that targets share, or give one back
    Journals(OstJournalsArgs),
    /// Make the key that the metadata server and the targets share
    Key(OstKeyArgs),
    /// Measure a running target, several, or what lies below one
    Survey(OstSurveyArgs),
}

/// The file system that a target is for.
#[derive(Args, Clone, Default, Debug)]
pub struct Whose {
    /// The cluster's file: its metadata server, or its metadata device on this host, says which
    /// file system it is
    #[arg(long, value_name = "FILE", required_unless_present_all = ["fs", "uuid"])]
    pub config: Option<PathBuf>,
    /// Name of the file system, instead of the cluster's file
    #[arg(long, value_name = "NAME", requires = "uuid", conflicts_with = "config")]
    pub fs: Option<String>,
    /// UUID of the file system, as `redbud mkfs` and `redbud status` print it
    #[arg(long, requires = "fs")]
    pub uuid: Option<Uuid>,
}

/// Arguments of `ost format`.
#[derive(Args, Debug)]
pub struct OstFormatArgs {
    /// The device, or a file
    pub device: PathBuf,
    /// The file system
    #[command(flatten)]
    pub whose: Whose,
    /// Put the journal on this device or file: it has it to itself, or with --journal-size a slice
    /// beside the journals of other targets of the file system
    #[arg(long, value_name = "DEVICE")]
    pub journal: Option<PathBuf>,
    /// Size of the internal journal [default: a 64th of the device, 16M to 128M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "journal")]
    pub log: Option<u64>,
    /// Keep and check a checksum of each block of content
    #[arg(
        long,
        value_name = "on|off",
        default_value = "on",
        value_parser = parse_switch,
        action = clap::ArgAction::Set
    )]
    pub checksums: bool,
    /// If DEVICE is a file: create it with this size if it is missing
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Size of the journal's slice. A missing file is created with this size, and has this journal
    /// alone: make a larger one before for several [default: the whole device]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "journal")]
    pub journal_size: Option<u64>,
    /// Format devices that have a Redbud label or other content: their content is lost
    #[arg(long)]
    pub force: bool,
    /// How to print the result
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `ost serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Runs in the foreground. On SIGTERM or SIGINT it makes everything durable and ends. It sends
READY=1 to $NOTIFY_SOCKET (systemd Type=notify) when clients can connect. If it is killed in
another way, clients that have not left repeat what was not durable: start it again.

If a device fails, or cannot be opened, the others go on. Its target is opened again every
30 s. The exit status is 1 if it is not served in the end, or if no target can be opened.

Without --config a target asks connections for no keys: capabilities, which the metadata
server makes, protect the objects, and what travels is not encrypted.")]
pub struct OstServeArgs {
    /// Devices, each as `DEVICE[,journal=DEVICE][,listen=ADDRESS]`; with --config their names alone
    /// choose among its targets, and none means all whose devices are on this host
    #[arg(value_name = "DEVICE", required_unless_present = "config")]
    pub devices: Vec<String>,
    /// The cluster's file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen on this address; with several devices their ports follow each other
    #[arg(long, value_name = "ADDRESS", conflicts_with = "config")]
    pub listen: Option<String>,
    /// The file with the key that the metadata server and the targets share; default: that of the
    /// cluster's file
    #[arg(long, value_name = "FILE", required_unless_present = "config")]
    pub key: Option<PathBuf>,
    /// How long a client may be silent before the target forgets it [default: that of the
    /// cluster's file, or 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub lease: Option<types::Duration>,
    /// Size of the cache of metadata blocks of each target, 8M or more
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_cache)]
    pub cache: u64,
    /// Bytes of requests that each target works on at once, 4M or more; others wait. A quarter is
    /// for reads
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub memory: u64,
    /// Age at which what nobody waits for is committed
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub commit_interval: types::Duration,
    /// Pause between two scrubs, which read all content and verify it; 1s or more, or never
    #[arg(
        long,
        value_name = "TIME|never",
        default_value = "168h",
        value_parser = parse_scrub_interval
    )]
    pub scrub_interval: types::Duration,
    /// Bytes a second that such a scrub reads at most of each target; 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = parse_rate)]
    pub scrub_rate: u64,
    /// Tell quiet clients what has become durable; off: they ask, as with the mount option
    /// target_ping=TIME
    #[arg(
        long,
        value_name = "on|off",
        default_value = "on",
        value_parser = parse_switch,
        action = clap::ArgAction::Set
    )]
    pub notices: bool,
    /// Stop when standard input ends (for a parent process that runs the targets)
    #[arg(long, hide = true)]
    pub until_eof: bool,
    /// Path of the control socket [default: /run/redbud/ost-PID.sock; for other users than root
    /// below $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// Arguments of `ost status`.
#[derive(Args, Debug)]
pub struct OstStatusArgs {
    /// Address of the target; default: all targets that this host serves
    #[arg(requires = "whose")]
    pub address: Option<String>,
    /// Name of its file system
    #[arg(long, value_name = "NAME", group = "whose")]
    pub fs: Option<String>,
    /// The cluster's file, for the name and the keys
    #[arg(long, value_name = "FILE", group = "whose")]
    pub config: Option<PathBuf>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `ost scrub`.
#[derive(Args, Debug)]
#[command(after_help = "\
The targets stay in use. Each reads all content of its objects, and compares it with its
checksums, if it has them. Targets also scrub by themselves: see `redbud ost serve`.

If a scrub runs already, the command waits for it. Exit status: 0 no damage, 1 there is damage,
or a scrub did not end.")]
pub struct OstScrubArgs {
    /// Address of one of them; default: all
    pub address: Option<String>,
    /// How to scrub
    #[command(flatten)]
    pub how: ScrubHow,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `ost check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads the metadata of the target: no block of content may belong to two objects, or to none
and not be free. With --scrub it also reads all content, and compares it with its checksums.
It changes nothing but what an opening does: the journal is replayed.

Exit status: 0 clean, 4 problems found, 8 operational error.")]
pub struct OstCheckArgs {
    /// The device, as DEVICE[,journal=DEVICE]
    pub device: String,
    /// Also read all content
    #[arg(long)]
    pub scrub: bool,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `ost adopt`.
#[derive(Args, Debug)]
#[command(after_help = "\
`redbud mkfs` makes a file system with a UUID of its own, also if a dump is loaded into it then.
The targets that the dump names belong to the former one, and refuse the new one. This command
makes a target one of the new file system. Its objects stay as they are; what it knows of clients
and metadata servers is forgotten. The former file system cannot use it any more.

The server of the target is stopped meanwhile. Repeat the command if it is interrupted.")]
pub struct OstAdoptArgs {
    /// The device, as DEVICE[,journal=DEVICE]
    pub device: String,
    /// The file system
    #[command(flatten)]
    pub whose: Whose,
    /// UUID of the file system that the target belongs to, of which a dump was loaded; without it
    /// the command says it, and changes nothing
    #[arg(long, value_name = "UUID")]
    pub from: Option<Uuid>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `ost journals`.
#[derive(Args, Debug)]
#[command(after_help = "\
A target that is formatted anew with --force gives its former slice back by itself, if the new
journal is on the same device. Release that of a target that has moved its journal elsewhere, or
whose device is lost.")]
pub struct OstJournalsArgs {
    /// The device, or a file
    pub device: PathBuf,
    /// Give back the slice with the journal of this target: what only the journal has is lost,
    /// and the target cannot be opened any more
    #[arg(long, value_name = "UUID")]
    pub release: Option<Uuid>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `ost key`.
#[derive(Args, Debug)]
pub struct OstKeyArgs {
    /// The file to make, mode 0600
    pub file: PathBuf,
}

/// What a survey does, in this order.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "their names are shown as they are")]
pub enum SurveyPass {
    Write,
    Rewrite,
    Read,
}

/// What a survey measures.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SurveyMode {
    /// A device alone: what it has is lost
    Raw,
    /// The object store in this process, without messages; its server is stopped
    Store,
    /// A running target through its messages
    Messages,
    /// Several running targets, over which each object is striped
    Striped,
}

/// Arguments of `ost survey`.
#[derive(Args, Debug)]
#[command(after_help = "\
As obdfilter-survey: threads write, write again, and read records of objects one after the
other. The objects are the survey's own, and are destroyed at the end. It takes the targets'
key, and issues its own capabilities. Rates are until everything is durable.

What lies below and above can be measured likewise, to see what each layer costs:

  redbud ost survey --mode raw /dev/disk/by-id/…             the device alone; it is overwritten
  redbud ost survey --mode store /dev/disk/by-id/…           a stopped target, without messages
  redbud ost survey 10.0.0.3 --config FILE                   a running target
  redbud ost survey --mode striped 10.0.0.3 10.0.0.4 --config FILE    several, striped")]
pub struct OstSurveyArgs {
    /// Address of the target; with `striped` of several; with `store` its device, as
    /// DEVICE[,journal=DEVICE]; with `raw` any device or file
    #[arg(value_name = "TARGET", required = true)]
    pub targets: Vec<String>,
    /// What to measure
    #[arg(long, value_enum, default_value = "messages")]
    pub mode: SurveyMode,
    /// Name of its file system; default: that of the cluster's file
    #[arg(long, value_name = "NAME")]
    pub fs: Option<String>,
    /// The cluster's file, for the name and the keys
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The file with the key that the metadata server and the targets share; default: that of the
    /// cluster's file
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Requests in flight
    #[arg(long, default_value = "16", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub threads: u16,
    /// Objects; default: one for each thread
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub objects: Option<u16>,
    /// Bytes of a request, 4K to 1M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    pub record: u64,
    /// Bytes of all objects together
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    pub size: u64,
    /// With `striped`: bytes of a stripe unit, a multiple of 4K
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    pub part: u64,
    /// Wait until each write is durable, one by one
    #[arg(long)]
    pub sync: bool,
    /// What to do, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "write,rewrite,read")]
    pub passes: Vec<SurveyPass>,
    /// With `raw`: overwrite a device that has content
    #[arg(long)]
    pub force: bool,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

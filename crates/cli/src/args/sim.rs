//! Arguments of `sim`.

use std::path::PathBuf;

use clap::Args;

use super::Output;

/// Arguments of `sim`.
#[derive(Args, Debug)]
#[command(after_help = "\
Real clients and real metadata servers run in this process, on a simulated network and
simulated disks. All random decisions follow from the seed: the same seed, options and
version of Redbud give the same run and the same trace, on every machine. The simulator
compares what every application saw with a model of a POSIX file system. At the end every
operation must have finished and the metadata must be consistent. A report of a violation
has the fewest operations and faults that show it, and the command that repeats them.

  redbud sim --seed 1                          one history and its summary
  redbud sim --count 1000 --jobs 2             a thousand histories
  redbud sim --seed 1 --faults none            without faults
  redbud sim --campaign c.json --core-hours 8  eight processor hours; can be interrupted

On SIGINT and SIGTERM a run of several seeds or a campaign prints its summary and ends.
Kinds of faults (see SIMULATION.md): cut, partition, one-way, mute, uneven; server-kill,
server-power, server-pause; client-kill, process-kill, signal, silence, power,
cluster-power; stall, long-stall, data-eio, meta-eio, death, space, damage; clock-jump,
drift; together, pairs; takeover (with --standbys); drain (with --zones); target-kill,
target-power, target-cut, migrate (with --osts); peer-cut, move-directory (with --mds). With --osts
data-eio, stalls and space are those of targets.

A campaign continues only with the build and the options that began it, or with --changed.

Exit status: 0 no violation, 1 a violation or a failure, 2 wrong arguments, 3 no violation, but
a history was not fully judged.")]
pub struct SimArgs {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of seeds to run [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub count: Option<u64>,
    /// Threads that run seeds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: u16,
    /// Number of clients [default: 1 to 3, by the seed]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub clients: Option<u16>,
    /// Processes of each client [default: 1 or 2, by the seed]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub processes: Option<u16>,
    /// Executors of each client; its processes are distributed among them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub executors: u16,
    /// Approximate number of operations of all processes together
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub operations: u64,
    /// Kinds of faults, separated by commas, or "none" [default: all but drain]
    #[arg(long, value_delimiter = ',')]
    pub faults: Option<Vec<String>>,
    /// Kind of operations: mixed, names, content, fields
    #[arg(long, default_value = "mixed")]
    pub workload: String,
    /// Spread the operations over about this many virtual hours, 12 at most [default: no pauses
    /// between operations]
    #[arg(long)]
    pub hours: Option<f64>,
    /// Run only these operations and faults, and those that last for the whole run:
    /// c0p1:2,4-6/f:0 keeps four operations of process 1 of client 0, and the first fault
    #[arg(long, value_name = "STEPS")]
    pub keep: Option<String>,
    /// Vary the timing of network and disks, with the same operations and faults
    #[arg(long, default_value_t = 0)]
    pub timing: u64,
    /// Format with the smallest slots, without inline data and layout blocks, instead of as the
    /// seed decides
    #[arg(long)]
    pub usual_format: bool,
    /// Run only the usual operations, so that a seed runs as in releases without the others
    #[arg(long)]
    pub usual_operations: bool,
    /// Check against all orders of the steps at once. By default the observed order is tried
    /// first, and other orders only if it does not explain the history
    #[arg(long)]
    pub all_orders: bool,
    /// Number of data zones of each metadata server, of different sizes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    pub zones: u16,
    /// Let each device take the time of a hard disk, of flash, or the usual time, by the seed
    #[arg(long)]
    pub timed_disks: bool,
    /// Draw format and devices from this number instead of the seed
    #[arg(long, value_name = "N")]
    pub devices: Option<u64>,
    /// The server's lease [default: 5s]
    #[arg(long, value_parser = types::units::parse_duration)]
    pub lease: Option<types::Duration>,
    /// Sessions with keys: encrypted or greeting [default: none]
    #[arg(long, value_parser = parse_security, default_value = "none", hide_default_value = true)]
    pub security: Security,
    /// Metadata servers that stand by beside the first one, up to 3; they share an etcd cluster
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=3))]
    pub standbys: u16,
    /// Draw from this number how clients choose places for data and commit, how many requests the
    /// server works on at once, and the root directory's layout [default: the usual ways]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub placing: u64,
    /// Number of object storage targets, up to 4, on which files then lie
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=4))]
    pub osts: u16,
    /// Draw everything from the seed, as the tests do: faults, operations, clients, zones, devices
    #[arg(long, conflicts_with_all = [
        "clients", "processes", "executors", "operations", "faults", "workload", "hours", "keep",
        "zones", "timed_disks", "devices", "lease", "usual_format", "usual_operations", "security",
        "standbys", "placing", "osts", "mds",
    ])]
    pub pool: bool,
    /// Number of metadata servers, up to 4, each with its shard and its data zones
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4))]
    pub mds: u16,
    /// Run every seed twice; both runs must be equal
    #[arg(long)]
    pub twice: bool,
    /// Continue the campaign of this file, or begin one: runs seed after seed and keeps totals
    /// in the file
    #[arg(long, value_name = "FILE")]
    pub campaign: Option<PathBuf>,
    /// Continue the campaign although the build or the options differ; the file records both
    #[arg(long, requires = "campaign")]
    pub changed: bool,
    /// End the campaign after this much processor time, including earlier calls
    #[arg(long, value_name = "HOURS", requires = "campaign")]
    pub core_hours: Option<f64>,
    /// Seconds to search for the smallest history that shows a violation
    #[arg(long, default_value_t = 30)]
    pub shrink: u64,
    /// How to print
    #[command(flatten)]
    pub output: Output,
}

/// The security of sessions. A type of its own, because clap takes an `Option` for an argument that
/// may be missing.
#[derive(Clone, Copy, Debug)]
pub struct Security(pub Option<channel::Mode>);

fn parse_security(text: &str) -> Result<Security, String> {
    crate::keys::parse_security(text).map(Security)
}

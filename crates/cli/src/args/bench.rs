//! `redbud bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use types::units::parse_size;

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
    /// Measure times of Redbud, a null FUSE mount, the local file system and the raw disk
    Table(BenchTableArgs),
    /// Measure the memory of the client and the metadata server with many files
    Memory(BenchMemoryArgs),
    /// Measure one client on several bounded devices: all at work, and files in few pieces
    Devices(BenchDevicesArgs),
    /// Serve a file system that stores no data, until it is unmounted
    #[command(hide = true)]
    Null {
        /// Mount point
        mount: PathBuf,
        /// Use io_uring for requests
        #[arg(long)]
        uring: bool,
    },
    /// Run one load generator
    #[command(hide = true)]
    Worker {
        /// Its job as JSON
        job: String,
    },
}

/// Arguments of `bench table`.
#[derive(Args, Debug)]
#[command(after_help = "\
The benchmark creates a directory in DIR and removes it at the end. DIR should be on an ext4
of a disk that nothing else uses. Works (--only):

  seq-write, seq-read, rand-read, create-1, create-8, unlink-1, stat-sorted, stat-random,
  stat-readdir, small, small-fsync-1, small-fsync-8; and, only if named: postmark, web-make, web-read

Progress goes to standard error, the table to standard output. docs/BENCHMARKS.md explains
it. Needs root.")]
pub struct BenchTableArgs {
    /// Directory on the disk to measure
    #[arg(long, value_parser = parse_absolute)]
    pub dir: PathBuf,
    /// Runs of each work; the table has medians
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Empty files to create and unlink; a quarter as many small files, a tenth with fsync
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub files: u64,
    /// Entries of the directory of the stat works
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub entries: u64,
    /// Size of the file to write and read
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub size: u64,
    /// Requests in flight in sequential works on the raw disk
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: u16,
    /// Duration of random reads
    #[arg(long, default_value = "3s", value_parser = types::units::parse_duration)]
    pub random: types::Duration,
    /// Mount Redbud and the null file system with io_uring (-o transport=uring) instead of
    /// /dev/fuse
    #[arg(long)]
    pub uring: bool,
    /// Let Redbud's client reach its server by TCP through a relay, as from another host, with
    /// this security
    #[arg(long, value_name = "SECURITY", value_parser = ["encrypted", "greeting", "none"])]
    pub tcp: Option<String>,
    /// Run only these works
    #[arg(long, value_name = "WORK,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Time limit of a single step; then the benchmark fails
    #[arg(long, default_value = "10m", value_parser = types::units::parse_duration)]
    pub limit: types::Duration,
    /// Also write all samples to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `bench memory`.
#[derive(Args, Debug)]
pub struct BenchMemoryArgs {
    /// Directory to work in
    #[arg(long, value_parser = parse_absolute)]
    pub dir: PathBuf,
    /// Number of files to create
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub inodes: u64,
    /// Time limit of a single step; then the benchmark fails
    #[arg(long, default_value = "10m", value_parser = types::units::parse_duration)]
    pub limit: types::Duration,
    /// Also write the result to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `bench devices`.
#[derive(Args, Debug)]
pub struct BenchDevicesArgs {
    /// Directory to work in
    #[arg(long, value_parser = parse_absolute)]
    pub dir: PathBuf,
    /// Bytes a second that each device moves to and fro
    #[arg(long, default_value = "40M", value_parser = types::units::parse_size)]
    pub rate: u64,
    /// Bytes that are written for each device
    #[arg(long, default_value = "256M", value_parser = types::units::parse_size)]
    pub size: u64,
    /// Size of the file that eight processes write
    #[arg(long, default_value = "512M", value_parser = types::units::parse_size)]
    pub shared: u64,
    /// Number of small files that eight processes write with fsync
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(8..=1_000_000))]
    pub files: u64,
    /// Runs of each work
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    pub runs: u8,
    /// Measure only this: the sum of the devices, a shared file, small files
    #[arg(long, value_enum)]
    pub only: Vec<DevicesPart>,
    /// Time limit of a single step; then the benchmark fails
    #[arg(long, default_value = "10m", value_parser = types::units::parse_duration)]
    pub limit: types::Duration,
    /// Also write the result to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What `bench devices` measures.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum DevicesPart {
    /// Files on two and four devices, beside the devices themselves
    Sum,
    /// A file that eight processes write
    Shared,
    /// Small files with fsync, on one device and on four
    Small,
}

/// Makes a path absolute, so that processes with another working directory find it.
fn parse_absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|error| error.to_string())
}

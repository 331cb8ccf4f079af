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
    /// Measure objects of a content delivery network on Redbud and ext4
    Xcdn(BenchXcdnArgs),
    /// Measure Filebench's personality of a file server on Redbud and ext4
    Fileserver(BenchPersonalityArgs),
    /// Measure Filebench's personality of a mail server on Redbud and ext4
    Varmail(BenchPersonalityArgs),
    /// Measure Filebench's personality of a web proxy on Redbud and ext4
    Webproxy(BenchPersonalityArgs),
    /// Measure files that are made, written and closed, each of them timed
    Small(BenchSmallArgs),
    /// Measure the writes of one stream, each mebibyte timed
    Stream(BenchStreamArgs),
    /// Measure fsyncs of small files, alone and beside a stream of another process
    Fsync(BenchStreamArgs),
    /// Serve a file system that stores no data, until it is unmounted
    #[command(hide = true)]
    Null {
        /// Mount point
        mount: PathBuf,
        /// Write what is given to this disk, past the page cache
        #[arg(long)]
        disk: Option<PathBuf>,
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
    /// Compare Redbud on so many object targets with Redbud on as many data disks, and with nothing
    /// else
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub osts: Option<u16>,
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

/// Arguments of the benchmarks that compare mount options under a load.
#[derive(Args, Debug)]
pub struct BenchLoadArgs {
    /// Directory on the disk to measure
    #[arg(long, value_parser = parse_absolute)]
    pub dir: PathBuf,
    /// Mount options of one more contender, separated by commas; `--options ''` has none. Without
    /// this, Redbud without options is the only one besides ext4. The first is compared with
    #[arg(long, value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Leave ext4 out
    #[arg(long)]
    pub without_ext4: bool,
    /// Add a null mount, which writes the bytes to a device past the page cache and does nothing
    /// else
    #[arg(long)]
    pub null: bool,
    /// Bytes a second that the data disk moves to and fro; needs --without-ext4
    #[arg(long, value_parser = parse_size)]
    pub rate: Option<u64>,
    /// Writes a second that the data disk takes; needs --without-ext4
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub writes: Option<u64>,
    /// Runs; the table has medians
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Time limit of a single step; then the benchmark fails
    #[arg(long, default_value = "10m", value_parser = types::units::parse_duration)]
    pub limit: types::Duration,
    /// Also write all samples to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `bench xcdn`.
#[derive(Args, Debug)]
#[command(after_help = "\
Eight processes write and read objects of one size all over a tree of 256 directories; one operation
of four reads. docs/BENCHMARKS.md explains it. Needs root.")]
pub struct BenchXcdnArgs {
    /// What is compared
    #[command(flatten)]
    pub load: BenchLoadArgs,
    /// Size of an object: 32K, 64K, 128K, 256K, 512K or 1M
    #[arg(long, default_value = "32K", value_parser = parse_object)]
    pub size: u64,
    /// Operations of each process
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub ops: u64,
}

/// Arguments of `bench fileserver`, `varmail` and `webproxy`.
#[derive(Args, Debug)]
#[command(after_help = "\
Files, threads, sizes and the flow of operations are those that Filebench comes with.
docs/BENCHMARKS.md explains them. Needs root.")]
pub struct BenchPersonalityArgs {
    /// What is compared
    #[command(flatten)]
    pub load: BenchLoadArgs,
    /// How long the threads work in a turn
    #[arg(long, default_value = "60s", value_parser = types::units::parse_duration)]
    pub time: types::Duration,
}

/// Arguments of `bench small`.
#[derive(Args, Debug)]
#[command(after_help = "\
Processes make files in a directory of each: open, one write, close. docs/BENCHMARKS.md explains it.
Needs root.")]
pub struct BenchSmallArgs {
    /// What is compared
    #[command(flatten)]
    pub load: BenchLoadArgs,
    /// Number of files
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub files: u64,
    /// Number of processes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Bytes of a file, 1M at most
    #[arg(long, default_value = "32K", value_parser = parse_small)]
    pub size: u64,
}

/// Arguments of `bench stream` and `bench fsync`.
#[derive(Args, Debug)]
#[command(after_help = "\
A process writes a file from its begin to its end, and over again. docs/BENCHMARKS.md explains it.
Needs root.")]
pub struct BenchStreamArgs {
    /// What is compared
    #[command(flatten)]
    pub load: BenchLoadArgs,
    /// How long it writes
    #[arg(long, default_value = "10s", value_parser = types::units::parse_duration)]
    pub time: types::Duration,
    /// Bytes of its file, 1M at least
    #[arg(long, default_value = "1G", value_parser = parse_stream)]
    pub size: u64,
}

/// The size of a small file.
fn parse_small(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|bytes| match bytes {
        1..=0x10_0000 => Ok(bytes),
        _ => Err("a small file has 1 byte to 1M".to_owned()),
    })
}

/// The size of a stream's file.
fn parse_stream(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|bytes| match bytes {
        0x10_0000.. => Ok(bytes),
        _ => Err("a stream's file has 1M or more".to_owned()),
    })
}

/// The size of an object of xcdn.
fn parse_object(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bench::scripts::xcdn::SIZES_KIB.contains(&(bytes >> 10)) && bytes.is_multiple_of(1024) {
        return Ok(bytes);
    }
    Err("objects have 32K, 64K, 128K, 256K, 512K or 1M".to_owned())
}

/// Makes a path absolute, so that processes with another working directory find it.
fn parse_absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|error| error.to_string())
}

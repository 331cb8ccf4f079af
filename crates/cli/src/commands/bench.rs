//! `redbud bench`: runs the benchmarks and their helper processes.

use std::path::Path;
use std::time::Duration;

use bench::contender::{SetUp, Tcp};
use bench::devices::MeasuredPart::{Shared, Small, Sum};
use bench::loads::{Contender, Load, Scripted};
use bench::loops::Throttle;
use bench::report::Report;
use bench::scripts::filebench::Personality;
use bench::scripts::xcdn;
use bench::table::{Plan, measure};
use bench::works::{Compared, Sizes};
use bench::{BenchError, devices, loads, memory, null, worker};
use channel::{Allowed, Entry, Role, Squash};
use env::DriverKind;
use fuse::init::{InitOptions, UringEntries};

use crate::args::{
    Bench, BenchArgs, BenchDevicesArgs, BenchLoadArgs, BenchMemoryArgs, BenchPersonalityArgs,
    BenchTableArgs, BenchXcdnArgs, DevicesPart,
};
use crate::commands::local::{files, this_program};
use crate::exit::{Ended, Failure, Status};
use crate::{keys, notify, output};

/// Data disks of the table.
const DISKS: usize = 2;
/// Minimum size of a disk.
const DISK_MIN: u64 = 128 << 20;
/// Maximum of metadata of a file: determines the size of the metadata disk.
const METADATA_EACH: u64 = 2 << 10;
/// Data of web content, for each requested file: 64 files of half a megabyte for 200.
const WEB_EACH: u64 = 192 << 10;
/// Data of the small files of a run, for each empty one: a quarter has 32 KiB, the
/// remainder covers blocks that are being freed.
const SMALL_EACH: u64 = 32 << 10;

/// Runs a benchmark, or one of its helper processes.
pub fn run(args: &BenchArgs) -> Ended {
    match &args.what {
        Bench::Table(args) => table(args),
        Bench::Memory(args) => memory_of(args),
        Bench::Devices(args) => devices_of(args),
        Bench::Xcdn(args) => xcdn_of(args),
        Bench::Fileserver(args) => personality(args, Personality::Fileserver),
        Bench::Varmail(args) => personality(args, Personality::Varmail),
        Bench::Webproxy(args) => personality(args, Personality::Webproxy),
        Bench::Small(args) => {
            let (files, bytes) = (args.files, args.size as usize);
            load_of(&args.load, Load::Small { files, workers: args.workers.into(), bytes }, files)
        }
        Bench::Stream(args) => {
            let millis = args.time.as_millis() as u64;
            load_of(&args.load, Load::Stream { bytes: args.size, millis }, 0)
        }
        Bench::Fsync(args) => {
            let millis = args.time.as_millis() as u64;
            load_of(&args.load, Load::Fsync { bytes: args.size, millis }, loads::FSYNCED_MAX)
        }
        Bench::Null { mount, disk, uring } => {
            follow_parent();
            let ready = || notify::send("READY=1\nSTATUS=mounted\n");
            let uring = uring.then(UringEntries::default);
            let init = InitOptions { uring, ..InitOptions::default() };
            null::null_mount(DriverKind::Auto, mount, disk.as_deref(), init, ready)
                .map_err(|error| failed(error.to_string()))?;
            Ok(0)
        }
        Bench::Worker { job } => worker::run(job).map(|()| 0).map_err(failed),
    }
}

fn failed(text: String) -> Failure {
    Failure::failed("RB-BENCH", text)
}

fn ended(error: BenchError) -> Failure {
    failed(error.0)
}

/// Unmounts when the process that started this one is gone.
fn follow_parent() {
    let term = Some(rustix::process::Signal::TERM);
    // If it fails, the mount only outlives a killed parent.
    let _ = rustix::process::set_parent_process_death_signal(term);
}

fn need_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let text = "redbud bench drops the kernel's caches and mounts file systems: run it as root";
    Err(Failure::new(Status::NotPermitted, "RB-BENCH", text))
}

fn progress(line: &str) {
    output::eprint_line(line);
}

fn write(file: Option<&Path>, json: &str) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(file, json).map_err(|error| failed(format!("{}: {error}", file.display())))
}

fn limit(time: types::Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

fn table(args: &BenchTableArgs) -> Ended {
    need_root()?;
    let sizes = Sizes {
        files: args.files,
        entries: args.entries,
        stream: args.size,
        depth: args.depth.into(),
        random_millis: args.random.as_millis() as u64,
    };
    let web = args.only.iter().any(|work| work.starts_with("web-"));
    let content = args.size.max(if web { args.files * WEB_EACH } else { 0 });
    let plan = Plan {
        set_up: SetUp {
            program: this_program(),
            dir: args.dir.clone(),
            disks: args.osts.map_or(DISKS, usize::from),
            loops: None,
            disk_bytes: DISK_MIN + content * 2 + args.files * SMALL_EACH / 2,
            metadata_bytes: DISK_MIN + (args.files + args.entries) * METADATA_EACH,
            limit: limit(args.limit),
            null_writes: false,
            uring: args.uring,
            tcp: tcp(args),
            kinds: Vec::new(),
        },
        sizes,
        runs: args.runs.into(),
        compared: if args.osts.is_some() { Compared::Objects } else { Compared::Others },
        only: args.only.clone(),
    };
    let report = Report::new(&measure(&plan, &mut progress).map_err(ended)?);
    write(args.json.as_deref(), &report.to_json())?;
    output::print(&report.text())?;
    Ok(0)
}

/// How the mount reaches its server, if not by the Unix socket of this host.
fn tcp(args: &BenchTableArgs) -> Option<Tcp> {
    let keys = |dir: &Path| keys_in(dir).map_err(|failure| failure.to_string());
    args.tcp.clone().map(|security| Tcp { security, keys })
}

/// Makes the keys in `dir`: of the client, and of the metadata server, which targets let in, too.
/// Returns the lines of the cluster's file that name them.
fn keys_in(dir: &Path) -> Result<String, Failure> {
    let server = files::keys(dir)?;
    let (list, node) = (dir.join(files::KEYS[2]), "metadata-server".to_owned());
    let (role, squash) = (Role::Server, Squash::Off);
    let entry = Entry { key: server, name: node, role, squash, revoked: false };
    let old = std::fs::read_to_string(&list).map_err(|error| files::io(&list, &error))?;
    let new = Allowed::with(&old, &entry)
        .map_err(|error| failed(format!("{}: {error}", list.display())))?;
    keys::replace(&list, &new, 0o644).map_err(failed)?;
    Ok(files::key_lines(server))
}

/// Small disks, with room for the metadata of `files`; what else is measured says so itself.
fn set_up(dir: &Path, files: u64, time: types::Duration) -> SetUp {
    SetUp {
        program: this_program(),
        dir: dir.to_owned(),
        disks: DISKS,
        disk_bytes: DISK_MIN,
        loops: None,
        metadata_bytes: DISK_MIN + files * METADATA_EACH,
        limit: limit(time),
        null_writes: false,
        uring: false,
        tcp: None,
        kinds: Vec::new(),
    }
}

fn memory_of(args: &BenchMemoryArgs) -> Ended {
    need_root()?;
    let set_up = set_up(&args.dir, args.inodes, args.limit);
    let found = memory::measure(&set_up, args.inodes, &mut progress).map_err(ended)?;
    write(args.json.as_deref(), &found.to_json())?;
    output::print(&found.text())?;
    Ok(0)
}

fn devices_of(args: &BenchDevicesArgs) -> Ended {
    need_root()?;
    let set_up = set_up(&args.dir, args.files, args.limit);
    let part = |one: &DevicesPart| match one {
        DevicesPart::Sum => Sum,
        DevicesPart::Shared => Shared,
        DevicesPart::Small => Small,
    };
    let only: Vec<devices::MeasuredPart> = args.only.iter().map(part).collect();
    let plan = devices::Plan {
        set_up,
        bytes: args.size,
        shared: args.shared,
        small: args.files,
        rate: args.rate,
        runs: args.runs.into(),
        parts: if only.is_empty() { vec![Sum, Shared, Small] } else { only },
    };
    let found = devices::measure(&plan, &mut progress).map_err(ended)?;
    write(args.json.as_deref(), &found.to_json())?;
    output::print(&found.text())?;
    Ok(0)
}

fn xcdn_of(args: &BenchXcdnArgs) -> Ended {
    let files = xcdn::PROCESSES * (xcdn::STOCK + args.ops);
    load_of(&args.load, Load::Scripted(Scripted::Xcdn { bytes: args.size, ops: args.ops }), files)
}

fn personality(args: &BenchPersonalityArgs, personality: Personality) -> Ended {
    let millis = args.time.as_millis() as u64;
    let files = personality.parameters().files as u64;
    load_of(&args.load, Load::Scripted(Scripted::Filebench { personality, millis }), files)
}

fn load_of(args: &BenchLoadArgs, load: Load, files: u64) -> Ended {
    need_root()?;
    let mut contenders: Vec<Contender> =
        args.options.iter().cloned().map(Contender::Redbud).collect();
    if contenders.is_empty() {
        contenders.push(Contender::Redbud(String::new()));
    }
    if args.null {
        contenders.push(Contender::Null);
    }
    if !args.without_ext4 {
        contenders.push(Contender::Ext4);
    }
    let plan = loads::Plan {
        set_up: SetUp { null_writes: true, ..set_up(&args.dir, files, args.limit) },
        load,
        contenders,
        throttle: Throttle { bytes: args.rate, writes: args.writes },
        runs: args.runs.into(),
    };
    let found = loads::measure(&plan, &mut progress).map_err(ended)?;
    write(args.json.as_deref(), &found.to_json())?;
    output::print(&found.text())?;
    Ok(0)
}

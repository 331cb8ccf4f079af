//! `redbud bench`: the contenders, the load generators, and what they found.

use std::path::Path;
use std::time::Duration;

use bench::alone::check_dir;
use bench::contender::SetUp;
use bench::layouts::{Ground, Settings};
use bench::report::Report;
use bench::reproduce::F5;
use bench::table::{Plan, measure};
use bench::works::Sizes;
use bench::{
    BenchError, inline, memory, metarates, mfs, null, placement, price, server, small, worker,
};
use env::DriverKind;
use env::sim::Price;
use fuse::init::{InitOptions, UringEntries};

use crate::args::{
    Bench, BenchArgs, BenchInlineArgs, BenchMdsArgs, BenchMemoryArgs, BenchMetaratesArgs,
    BenchMfsArgs, BenchPlacementArgs, BenchPolygraphArgs, BenchPostmarkArgs, BenchPriceArgs,
    BenchSmallArgs, BenchSourceArgs, BenchTableArgs,
};
use crate::commands::local::this_program;
use crate::exit::{Ended, Failure, Status};
use crate::{notify, output};

/// The least that a disk holds.
const DISK_MIN: u64 = 128 << 20;
/// Metadata of a file, at most: what the metadata disk is sized by.
const METADATA_EACH: u64 = 2 << 10;
/// Data of web content, for each file that is asked for.
const WEB_EACH: u64 = 192 << 10;
/// Data of the small files of a run, for each empty one: a quarter has 32 KiB, the
/// rest is what is being freed.
const SMALL_EACH: u64 = 32 << 10;

/// Measures, or plays a part in it.
pub fn run(args: &BenchArgs) -> Ended {
    match &args.what {
        Bench::Table(args) => table(args),
        Bench::Memory(args) => memory_of(args),
        Bench::Metarates(args) => metarates_of(args),
        Bench::Price(args) => price_of(args),
        Bench::Placement(args) => placement_of(args),
        Bench::Mfs(args) => mfs_of(args),
        Bench::Mds(args) => mds_of(args),
        Bench::Inline(args) => inline_of(args),
        Bench::Postmark(args) => postmark(args),
        Bench::Polygraph(args) => polygraph(args),
        Bench::Source(args) => source(args),
        Bench::Null { mount, uring } => {
            follow_parent();
            let ready = || notify::tell("READY=1\nSTATUS=mounted\n");
            let uring = uring.then(UringEntries::default);
            let init = InitOptions { uring, ..InitOptions::default() };
            null::null_mount(DriverKind::Auto, mount, init, ready)
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
    // Without it the mount outlives a parent that was killed: it works all the same.
    let _ = rustix::process::set_parent_process_death_signal(term);
}

fn need_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let text = "redbud bench drops the kernel's caches and mounts: run it as root";
    Err(Failure::new(Status::NotPermitted, "RB-BENCH", text))
}

fn progress(line: &str) {
    output::tell(line);
}

fn write(file: Option<&Path>, json: &str) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(file, json).map_err(|error| failed(format!("{}: {error}", file.display())))
}

fn limit(time: types::Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

/// For loop devices in this directory, if there is one.
fn ground(dir: Option<&Path>, longest: types::Duration) -> Option<Ground> {
    let dir = dir?.to_owned();
    Some(Ground { dir, program: this_program(), limit: limit(longest) })
}

/// Works on the virtual disk, and on loop devices and a mount if that is asked for.
fn small_files(
    args: &BenchSmallArgs,
    shape: small::Shape,
    works: &[small::Work],
    on_mount: &[&str],
) -> Ended {
    if args.dir.is_some() {
        need_root()?;
    }
    let settings = Settings { durable: !args.lazy, device_bytes: args.device, ..shape.settings };
    let shape = small::Shape { clients: args.clients, settings, ..shape };
    let ground = ground(args.dir.as_deref(), args.limit);
    let runs = small::measure(&shape, works, ground.as_ref(), &mut progress).map_err(ended)?;
    let figure = F5::new(shape, runs);
    write(args.json.as_deref(), &figure.to_json())?;
    output::print(&figure.text())?;
    let Some(dir) = args.dir.as_ref().filter(|_| !on_mount.is_empty()) else { return Ok(0) };
    table(&BenchTableArgs {
        dir: dir.clone(),
        runs: args.runs,
        files: args.files,
        entries: 1,
        // A web has 64 files of half a megabyte for 200 of these.
        size: args.files * WEB_EACH,
        depth: 1,
        random: types::Duration::ZERO,
        uring: false,
        only: on_mount.iter().map(|&name| name.to_owned()).collect(),
        limit: args.limit,
        json: None,
    })
}

fn postmark(args: &BenchPostmarkArgs) -> Ended {
    let (files, transactions) = (args.pool, args.transactions);
    let shape = small::Shape { files, transactions, ..small::Shape::PAPERS };
    small_files(&args.small, shape, &[small::Work::PostMark], &["postmark"])
}

fn polygraph(args: &BenchPolygraphArgs) -> Ended {
    let shape = small::Shape { webs: args.webs, ..small::Shape::PAPERS };
    let works = [small::Work::Web1, small::Work::Web16];
    small_files(&args.small, shape, &works, &["web-make", "web-read"])
}

fn source(args: &BenchSourceArgs) -> Ended {
    let shape = small::Shape { source_files: args.sources, ..small::Shape::PAPERS };
    let works = [small::Work::Tar, small::Work::Make, small::Work::Clean];
    small_files(&args.small, shape, &works, &[])
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
    let plan = Plan {
        set_up: SetUp {
            program: this_program(),
            dir: args.dir.clone(),
            disk_bytes: DISK_MIN + args.size * 2 + args.files * SMALL_EACH / 2,
            metadata_bytes: DISK_MIN + (args.files + args.entries) * METADATA_EACH,
            limit: limit(args.limit),
            uring: args.uring,
            kinds: Vec::new(),
        },
        sizes,
        runs: args.runs.into(),
        only: args.only.clone(),
    };
    let report = Report::new(&measure(&plan, &mut progress).map_err(ended)?);
    write(args.json.as_deref(), &report.to_json())?;
    output::print(&report.text())?;
    Ok(0)
}

fn memory_of(args: &BenchMemoryArgs) -> Ended {
    need_root()?;
    let set_up = SetUp {
        program: this_program(),
        dir: args.dir.clone(),
        disk_bytes: DISK_MIN,
        metadata_bytes: DISK_MIN + args.inodes * METADATA_EACH,
        limit: limit(args.limit),
        uring: false,
        kinds: Vec::new(),
    };
    let found = memory::measure(&set_up, args.inodes, &mut progress).map_err(ended)?;
    write(args.json.as_deref(), &found.to_json())?;
    output::print(&found.text())?;
    Ok(0)
}

fn price_of(args: &BenchPriceArgs) -> Ended {
    need_root()?;
    let plan = price::Plan {
        set_up: SetUp {
            program: this_program(),
            dir: args.dir.clone(),
            disk_bytes: DISK_MIN,
            metadata_bytes: DISK_MIN + 2 * args.files * METADATA_EACH,
            limit: limit(args.limit),
            uring: false,
            kinds: Vec::new(),
        },
        files: args.files,
        runs: args.runs.into(),
    };
    let found = price::measure(&plan, &mut progress).map_err(ended)?;
    write(args.json.as_deref(), &found.to_json())?;
    output::print(&found.text())?;
    Ok(0)
}

fn mfs_of(args: &BenchMfsArgs) -> Ended {
    check_dir(&args.dir).map_err(ended)?;
    let plan = mfs::Plan {
        dir: args.dir.clone(),
        files: args.files,
        per_directory: args.per_directory,
        in_flight: args.in_flight,
        commit: args.commit,
        log_bytes: args.log,
        cache_bytes: args.cache as usize,
        jobs: args.jobs.iter().map(|&jobs| usize::from(jobs)).collect(),
        slots: args.slot,
    };
    let found = mfs::measure(&plan, &mut progress).map_err(ended)?;
    write(args.json.as_deref(), &found.to_json())?;
    output::print(&found.text())?;
    Ok(0)
}

fn mds_of(args: &BenchMdsArgs) -> Ended {
    check_dir(&args.dir).map_err(ended)?;
    let plan = server::Plan {
        dir: args.dir.clone(),
        files: args.files,
        clients: args.clients,
        in_flight: args.in_flight,
        durable: args.durable,
        log_bytes: args.log,
        cache_bytes: args.cache as usize,
        slots: args.slot,
    };
    let found = server::measure(&plan).map_err(ended)?;
    write(args.json.as_deref(), &found.to_json())?;
    output::print(&found.text())?;
    Ok(0)
}

fn inline_of(args: &BenchInlineArgs) -> Ended {
    let sizes = (args.smallest, args.largest.max(args.smallest));
    let shape = inline::Shape { dirs: args.dirs, files: args.files, sizes };
    let found = inline::measure(shape, &mut progress).map_err(ended)?;
    write(args.json.as_deref(), &found.to_json())?;
    output::print(&found.text())?;
    Ok(0)
}

fn placement_of(args: &BenchPlacementArgs) -> Ended {
    let shape = placement::Shape { users: args.users, dirs: args.dirs, files: args.files };
    // What is compared is where things lie, not how long a change waits for the log.
    let settings = Settings { durable: false, ..Settings::PAPERS };
    let found = placement::measure(shape, settings, &mut progress).map_err(ended)?;
    write(args.json.as_deref(), &found.to_json())?;
    output::print(&found.text())?;
    Ok(0)
}

fn metarates_of(args: &BenchMetaratesArgs) -> Ended {
    if args.dir.is_some() {
        need_root()?;
    }
    let shape = metarates::Shape {
        clients: args.clients,
        processes: args.processes,
        files: 0,
        settings: Settings {
            durable: !args.lazy,
            commit: args.commit,
            message: types::Duration::from_micros(args.message.into()),
            price: args.price.then_some(Price::MEASURED),
            home_batch: args.batch as usize,
            cache_bytes: args.cache as usize,
            log_bytes: args.log,
            device_bytes: args.device,
            slots: args.slot,
            ..Settings::PAPERS
        },
    };
    let plan = metarates::Plan {
        shape,
        files: args.files.clone(),
        ground: ground(args.dir.as_deref(), args.limit),
        without: args.without.clone(),
    };
    let report = metarates::measure(&plan, &mut progress).map_err(ended)?;
    write(args.json.as_deref(), &report.to_json())?;
    output::print(&report.text())?;
    Ok(0)
}

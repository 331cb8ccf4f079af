//! What each command measures, and where its results go: JSON to a file, text to the output.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bench::contender::SetUp;
use bench::scripts::xcdn::SIZES_KIB;
use bench::{BenchError, Res, failed, tell, worker};
use env::sim::Price;
use repro::alone::check_dir;
use repro::figures::{
    Creates, CreatesSize, F1, F1_CLIENTS, F2, F2_PAGS, F3, F3Size, F4, F5, F7, F7Delegation,
    F7Size, F8, F9, F10, F10Size, F11, F11Size, F12, F12Size, F13, F13Size, F14, F14Size, F15,
    F15Size, F16, F17, F17Size,
};
use repro::layouts::{Ground, Settings};
use repro::streams::Files;
use repro::{aging, greet, inline, metarates, mfs, placement, price, server, small, timeouts};

use crate::args::{
    Cli, Command, Figure, FigureArgs, GreetArgs, InlineArgs, MdsArgs, MetaratesArgs, MfsArgs, Part,
    PlacementArgs, PolygraphArgs, PostmarkArgs, PriceArgs, SmallArgs, SourceArgs, TimeoutsArgs,
};

/// The least that a disk holds.
const DISK_MIN: u64 = 128 << 20;
/// Size of a file of F1 and of F2.
const F1_BYTES: u64 = 256 << 20;
const F2_BYTES: u64 = 64 << 20;
/// Metadata of a file, at most: what the metadata disk is sized by.
const METADATA_EACH: u64 = 2 << 10;
/// Operations of F16.
const OPERATIONS: u64 = 10_000;

/// Measures, or plays a part in it.
pub fn run(cli: &Cli) -> Res<()> {
    let Some(command) = &cli.command else {
        return cli.figures.as_ref().map_or(Ok(()), figures);
    };
    match command {
        Command::Metarates(args) => metarates_of(args),
        Command::Placement(args) => placement_of(args),
        Command::Inline(args) => inline_of(args),
        Command::Mfs(args) => mfs_of(args),
        Command::Mds(args) => mds_of(args),
        Command::Greet(args) => greet_of(args),
        Command::Postmark(args) => postmark(args),
        Command::Polygraph(args) => polygraph(args),
        Command::Source(args) => source(args),
        Command::Price(args) => price_of(args),
        Command::Timeouts(args) => timeouts_of(args),
        Command::Bench { part: Part::Server { image, listen, lease, keys, cache } } => {
            let lease = types::Duration::from_secs(*lease);
            greet::serve(image, listen, (lease, *keys, *cache))
        }
        Command::Bench { part: Part::Holder { address } } => timeouts::hold(address),
        Command::Bench { part: Part::Worker { job } } => worker::run(job).map_err(BenchError),
    }
}

fn need_root() -> Res<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let why = "it mounts, and drops the kernel's caches: run it as root, or without --dir";
    failed("measuring on a disk", why)
}

/// This program, which plays the parts of a measurement. A build may have replaced its file.
fn this_program() -> PathBuf {
    let link = PathBuf::from("/proc/self/exe");
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or(link)
}

fn progress(line: &str) {
    tell(line);
}

/// Prints `text`. A reader that left early (`| head`) wants no more.
fn print(text: &str) -> Res<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            failed("writing the output", error)
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, content: &str) -> Res<()> {
    std::fs::write(path, content)
        .map_err(|error| BenchError(format!("{}: {error}", path.display())))
}

/// Writes what was found to the file, if one was named, and prints it.
fn keep(file: Option<&Path>, json: &str, text: &str) -> Res<()> {
    if let Some(file) = file {
        write(file, json)?;
    }
    print(text)
}

fn limit(time: types::Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

/// For loop devices in this directory, if there is one.
fn ground(dir: Option<&Path>, longest: types::Duration) -> Res<Option<Ground>> {
    let Some(dir) = dir else { return Ok(None) };
    need_root()?;
    Ok(Some(Ground { dir: dir.to_owned(), program: this_program(), limit: limit(longest) }))
}

/// Makes each figure that was asked for.
fn figures(args: &FigureArgs) -> Res<()> {
    let at = |error: std::io::Error| BenchError(format!("{}: {error}", args.out.display()));
    std::fs::create_dir_all(&args.out).map_err(at)?;
    for figure in &args.figures {
        match figure {
            Figure::F1 => f1(args)?,
            Figure::F2 => f2(args)?,
            Figure::F3 => f3(args)?,
            Figure::F4 => f4(args)?,
            Figure::F5 => f5(args)?,
            Figure::F7 => f7(args)?,
            Figure::F8 => f8(args)?,
            Figure::F9 => f9(args)?,
            Figure::F10 => f10(args)?,
            Figure::F11 => f11(args)?,
            Figure::F12 => f12(args)?,
            Figure::F13 => f13(args)?,
            Figure::F14 => f14(args)?,
            Figure::F15 => f15(args)?,
            Figure::F16 => f16(args)?,
            Figure::F17 => f17(args)?,
            Figure::F17Creates => f17_creates(args)?,
        }
    }
    Ok(())
}

fn settings(args: &FigureArgs) -> Settings {
    Settings { durable: !args.lazy, ..Settings::PAPERS }
}

/// Writes the figure's files.
fn draw(args: &FigureArgs, figure: &str, svg: &str, json: &str) -> Res<()> {
    write(&args.out.join(format!("{figure}.svg")), svg)?;
    write(&args.out.join(format!("{figure}.json")), json)
}

fn f1(args: &FigureArgs) -> Res<()> {
    let figure = F1::measure(args.size.unwrap_or(F1_BYTES), &F1_CLIENTS, &mut progress)?;
    draw(args, "F1", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f2(args: &FigureArgs) -> Res<()> {
    let files = Files { files: args.streams, bytes: args.size.unwrap_or(F2_BYTES) };
    let figure = F2::measure(files, F2_PAGS, &mut progress)?;
    draw(args, "F2", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f3(args: &FigureArgs) -> Res<()> {
    let figure = F3::measure(F3Size::papers(args.snapshot), &mut progress)?;
    draw(args, "F3", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f4(args: &FigureArgs) -> Res<()> {
    let plan = metarates::Plan {
        shape: metarates::Shape {
            clients: 10,
            processes: 4,
            files: 0,
            settings: Settings { price: args.price.then_some(Price::MEASURED), ..settings(args) },
        },
        files: args.files.clone(),
        ground: None,
        without: Vec::new(),
    };
    let report = metarates::measure(&plan, &mut progress)?;
    let figure = F4(&report);
    draw(args, "F4", &figure.svg()?, &report.to_json())?;
    print(&figure.text())?;
    print(&report.text())
}

fn f5(args: &FigureArgs) -> Res<()> {
    let shape = small::Shape {
        files: args.pool,
        transactions: 5 * args.pool,
        settings: Settings { durable: !args.lazy, ..small::Shape::PAPERS.settings },
        ..small::Shape::PAPERS
    };
    let runs = small::measure(&shape, &small::Work::ALL, None, &mut progress)?;
    let figure = F5::new(shape, runs);
    draw(args, "F5", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f7(args: &FigureArgs) -> Res<()> {
    for delegation in F7Delegation::ALL {
        let figure = F7::measure(F7Size::PAPERS, delegation, &mut progress)?;
        draw(args, delegation.file(), &figure.svg()?, &figure.to_json())?;
        print(&figure.text())?;
    }
    Ok(())
}

fn f8(args: &FigureArgs) -> Res<()> {
    let figure = F8::measure(&mut progress);
    draw(args, "F8", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f16(args: &FigureArgs) -> Res<()> {
    let figure = F16::measure(OPERATIONS);
    draw(args, "F16", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f17(args: &FigureArgs) -> Res<()> {
    let figure = F17::measure(F17Size::FULL, &mut progress)?;
    draw(args, "F17", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f17_creates(args: &FigureArgs) -> Res<()> {
    let size = CreatesSize { sessions: args.sessions as usize, ..CreatesSize::FULL };
    let figure = Creates::measure(size, &mut progress)?;
    draw(args, "F17-creates", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f9(args: &FigureArgs) -> Res<()> {
    let plan = aging::Plan::on(args.aged, settings(args))?;
    let figure = F9::new(aging::measure(&plan, &mut progress)?);
    draw(args, "F9", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f10(args: &FigureArgs) -> Res<()> {
    let figure = F10::measure(F10Size::PAPERS, &args.loads, &mut progress)?;
    draw(args, "F10", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f11(args: &FigureArgs) -> Res<()> {
    let figure = F11::measure(F11Size::PAPERS, &SIZES_KIB, &mut progress)?;
    draw(args, "F11", &figure.svg()?, &figure.to_json())?;
    write(&args.out.join("F11-seeks.svg"), &figure.seeks_svg()?)?;
    print(&figure.text())
}

fn f12(args: &FigureArgs) -> Res<()> {
    let figure = F12::measure(F12Size::PAPERS, &mut progress)?;
    draw(args, "F12", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f13(args: &FigureArgs) -> Res<()> {
    let figure = F13::measure(F13Size::PAPERS, &mut progress)?;
    draw(args, "F13", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f14(args: &FigureArgs) -> Res<()> {
    let figure = F14::measure(F14Size::PAPERS, &mut progress)?;
    draw(args, "F14", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

fn f15(args: &FigureArgs) -> Res<()> {
    let figure = F15::measure(F15Size::PAPERS, &mut progress)?;
    draw(args, "F15", &figure.svg()?, &figure.to_json())?;
    print(&figure.text())
}

/// Works on the virtual disk, and on loop devices if that is asked for.
fn small_files(args: &SmallArgs, shape: small::Shape, works: &[small::Work]) -> Res<()> {
    let settings = Settings { durable: !args.lazy, device_bytes: args.device, ..shape.settings };
    let shape = small::Shape { clients: args.clients, settings, ..shape };
    let ground = ground(args.dir.as_deref(), args.limit)?;
    let runs = small::measure(&shape, works, ground.as_ref(), &mut progress)?;
    let figure = F5::new(shape, runs);
    keep(args.json.as_deref(), &figure.to_json(), &figure.text())
}

fn postmark(args: &PostmarkArgs) -> Res<()> {
    let (files, transactions) = (args.pool, args.transactions);
    let shape = small::Shape { files, transactions, ..small::Shape::PAPERS };
    small_files(&args.small, shape, &[small::Work::PostMark])
}

fn polygraph(args: &PolygraphArgs) -> Res<()> {
    let shape = small::Shape { webs: args.webs, ..small::Shape::PAPERS };
    small_files(&args.small, shape, &[small::Work::Web1, small::Work::Web16])
}

fn source(args: &SourceArgs) -> Res<()> {
    let shape = small::Shape { source_files: args.sources, ..small::Shape::PAPERS };
    let works = [small::Work::Tar, small::Work::Make, small::Work::Clean];
    small_files(&args.small, shape, &works)
}

/// The program `redbud`, whose server and client are measured.
fn redbud(named: Option<&Path>) -> Res<PathBuf> {
    let path = named.map_or_else(|| this_program().with_file_name("redbud"), Path::to_owned);
    if path.is_file() {
        return Ok(path);
    }
    let why = "is no file: build it with `cargo build --release`, or name it with --redbud PATH";
    failed("looking for redbud", format!("{} {why}", path.display()))
}

fn price_of(args: &PriceArgs) -> Res<()> {
    need_root()?;
    let plan = price::Plan {
        set_up: SetUp {
            program: redbud(args.redbud.as_deref())?,
            dir: args.dir.clone(),
            disks: 2,
            disk_bytes: DISK_MIN,
            loops: None,
            metadata_bytes: DISK_MIN + 2 * args.files * METADATA_EACH,
            limit: limit(args.limit),
            null_writes: false,
            uring: false,
            tcp: None,
            kinds: Vec::new(),
        },
        files: args.files,
        runs: args.runs.into(),
    };
    let found = price::measure(&plan, &mut progress)?;
    keep(args.json.as_deref(), &found.to_json(), &found.text())
}

fn mfs_of(args: &MfsArgs) -> Res<()> {
    check_dir(&args.dir)?;
    let plan = mfs::Plan {
        dir: args.dir.clone(),
        files: args.files,
        per_directory: args.per_directory,
        in_flight: args.in_flight,
        commit: args.commit,
        log_bytes: args.log,
        journal: args.journal,
        cache_bytes: args.cache as usize,
        jobs: args.jobs.iter().map(|&jobs| usize::from(jobs)).collect(),
        slots: args.slot,
    };
    let found = mfs::measure(&plan, &mut progress)?;
    keep(args.json.as_deref(), &found.to_json(), &found.text())
}

fn mds_of(args: &MdsArgs) -> Res<()> {
    check_dir(&args.dir)?;
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
    let found = server::measure(&plan)?;
    keep(args.json.as_deref(), &found.to_json(), &found.text())
}

fn greet_of(args: &GreetArgs) -> Res<()> {
    check_dir(&args.dir)?;
    let found = greet::measure(&greet::Plan {
        dir: args.dir.clone(),
        clients: args.clients,
        program: this_program(),
        keys: args.keys,
        files: args.files,
        fill: args.fill,
        log_bytes: args.log,
        cache_bytes: args.cache,
    })?;
    keep(args.json.as_deref(), &found.to_json(), &found.text())
}

fn timeouts_of(args: &TimeoutsArgs) -> Res<()> {
    check_dir(&args.dir)?;
    let found = timeouts::measure(
        &timeouts::Plan {
            dir: args.dir.clone(),
            requests: args.requests,
            sessions: args.sessions,
            rounds: args.rounds,
            program: this_program(),
        },
        &mut progress,
    )?;
    keep(args.json.as_deref(), &found.to_json(), &found.text())
}

fn inline_of(args: &InlineArgs) -> Res<()> {
    let sizes = (args.smallest, args.largest.max(args.smallest));
    let shape = inline::Shape { dirs: args.dirs, files: args.files, sizes };
    let found = inline::measure(shape, &mut progress)?;
    keep(args.json.as_deref(), &found.to_json(), &found.text())
}

fn placement_of(args: &PlacementArgs) -> Res<()> {
    let shape = placement::Shape { users: args.users, dirs: args.dirs, files: args.files };
    // What is compared is where things lie, not how long a change waits for the log.
    let settings = Settings { durable: false, ..Settings::PAPERS };
    let found = placement::measure(shape, settings, &mut progress)?;
    keep(args.json.as_deref(), &found.to_json(), &found.text())
}

fn metarates_of(args: &MetaratesArgs) -> Res<()> {
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
        ground: ground(args.dir.as_deref(), args.limit)?,
        without: args.without.clone(),
    };
    let report = metarates::measure(&plan, &mut progress)?;
    keep(args.json.as_deref(), &report.to_json(), &report.text())
}

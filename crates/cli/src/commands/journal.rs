//! `redbud journal`: shows where the log is, and moves it.

use std::path::Path;

use env::{Disk, DiskOptions, DriverKind, Env};
use mfs::journal::{self, LogState, Moved};
use mfs::superblock::LOG_BYTES_MIN;
use serde::Serialize;
use types::units::human_size;

use crate::args::{JournalArgs, JournalCommand, JournalMoveArgs, JournalStatusArgs};
use crate::commands::mkfs;
use crate::config::{Cluster, ClusterFile, JOURNAL_MIN, Zone};
use crate::devices::{MetadataDisks, open_error, open_exclusive, open_metadata};
use crate::exit::{Ended, Failure};
use crate::output;

const WHILE_SERVED: &str = "stop its server first";

#[derive(Serialize)]
struct Status {
    version: u32,
    /// UUID of the metadata.
    metadata: String,
    /// UUID of the journal; none if the log is internal.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<String>,
    log_bytes: u64,
    /// The device of the journal, as the cluster's file names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    generation: u64,
    /// Why the cluster's file does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Serialize)]
struct MovedReport {
    version: u32,
    metadata: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    log_bytes: u64,
    already: bool,
    /// What to write into the cluster's file.
    next: String,
}

/// Shows where the log is, or moves it.
pub fn run(args: &JournalArgs) -> Ended {
    match &args.verb {
        JournalCommand::Status(args) => status(args),
        JournalCommand::Move(args) => relocate(args),
    }
}

fn failed(text: String) -> Failure {
    Failure::failed("RB-JOURNAL", text)
}

fn on_driver<T, F>(main: impl FnOnce(Env) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    env::run(DriverKind::Auto, main)
        .map_err(|error| failed(format!("cannot start the I/O driver: {error}")))
        .flatten()
}

/// The cluster as the server sees it, and the devices that are another use's or server's.
fn read(path: &Path, server: Option<u16>) -> Result<(Cluster, Vec<Zone>), Failure> {
    let file = ClusterFile::read(path).map_err(|error| Failure::usage(error.to_string()))?;
    let used = file.clone();
    let cluster = file.server(server).map_err(Failure::usage)?;
    let mut taken = Vec::new();
    for one in used.servers {
        let journal = one.journal.filter(|_| one.shard != cluster.shard);
        taken.extend(std::iter::once(one.metadata).chain(journal));
        taken.extend(one.data.into_iter().map(|(_, zone)| zone));
    }
    Ok((cluster, taken))
}

fn status(args: &JournalStatusArgs) -> Ended {
    let (cluster, _) = read(&args.config, args.server.number)?;
    let it = &cluster;
    let state = on_driver(|env| async move { look(&env, it).await })?;
    let device = cluster.journal.as_ref().map(|zone| zone.path.display().to_string());
    let LogState { superblock, mismatch, .. } = state;
    let report = Status {
        version: 1,
        metadata: superblock.metadata.to_string(),
        journal: superblock.journal.map(|journal| journal.uuid.to_string()),
        log_bytes: superblock.log_bytes(),
        device,
        generation: superblock.log_generation,
        problem: mismatch,
    };
    let sound = report.problem.is_none();
    output::print_report(args.output, &report, describe)?;
    Ok(u8::from(!sound))
}

fn describe(report: &Status) -> String {
    let size = human_size(report.log_bytes);
    let mut text = match &report.journal {
        Some(journal) => format!(
            "the log of metadata {} is in journal {journal}: {size}, generation {}\n",
            report.metadata, report.generation
        ),
        None => format!("the log of metadata {} is internal: {size}\n", report.metadata),
    };
    if let Some(device) = &report.device {
        text += &format!("the cluster's file names {device} for it\n");
    }
    if let Some(problem) = &report.problem {
        text += &format!("{problem}\n");
    }
    text
}

/// Reads where the log is. A server may have the devices open.
async fn look(env: &Env, cluster: &Cluster) -> Result<LogState, Failure> {
    let home = shared(env, &cluster.metadata).await?;
    let log = match &cluster.journal {
        Some(zone) => Some(shared(env, zone).await?),
        None => None,
    };
    journal::look(env, MetadataDisks { home, log }).await.map_err(|error| failed(error.to_string()))
}

async fn shared(env: &Env, zone: &Zone) -> Result<Disk, Failure> {
    let path = zone.path.display().to_string();
    let options = DiskOptions { write: false, exclusive: false };
    env.open_disk(&path, options).await.map_err(|error| failed(error.to_string()))
}

fn relocate(args: &JournalMoveArgs) -> Ended {
    let (cluster, taken) = read(&args.config, args.server.number)?;
    let it = (&cluster, &taken[..]);
    let moved = on_driver(|env| async move { move_log(&env, it, args).await })?;
    let device = args.to.as_ref().map(|path| path.display().to_string());
    let file = cluster.file.display();
    let table = match cluster.is_of_several() {
        false => "[metadata]".to_owned(),
        true => format!("the table [[mds]] of server {}", cluster.shard.0),
    };
    let next = match &device {
        Some(device) => format!("set `journal = \"{device}\"` in {table} of {file}"),
        None => format!("remove `journal` from {table} of {file}"),
    };
    let report = MovedReport {
        version: 1,
        metadata: moved.metadata.to_string(),
        journal: moved.journal.map(|journal| journal.to_string()),
        device,
        log_bytes: moved.bytes,
        already: moved.already,
        next,
    };
    output::print_report(args.output, &report, describe_move)?;
    Ok(0)
}

fn describe_move(report: &MovedReport) -> String {
    let already = if report.already { "already " } else { "" };
    let place = match (&report.journal, &report.device) {
        (Some(journal), Some(device)) => format!("in journal {journal} on {device}"),
        _ => "internal".into(),
    };
    format!(
        "the log of metadata {} is {already}{place}: {}\nnow {}\n",
        report.metadata,
        human_size(report.log_bytes),
        report.next
    )
}

async fn move_log(
    env: &Env,
    (cluster, taken): (&Cluster, &[Zone]),
    args: &JournalMoveArgs,
) -> Result<Moved, Failure> {
    let busy = |error: &std::io::Error| failed(open_error(error, WHILE_SERVED));
    let to = args.to.as_ref().map(|path| Zone { path: path.clone(), size: args.size });
    // After an interrupted move the cluster's file may name the target already.
    let same = |zone: &Zone| to.as_ref().is_some_and(|to| mkfs::is_same(&zone.path, &to.path));
    let mut from = cluster.clone();
    from.journal = from.journal.filter(|zone| !same(zone));
    let disks = open_metadata(env, &from, true).await.map_err(|error| busy(&error))?;
    let to = match &to {
        Some(zone) => Some(open_target(env, taken, zone, &disks, args.force).await?),
        None => None,
    };
    let moved = journal::move_log(env, disks, to.as_ref(), args.force).await;
    moved.map_err(|error| failed(error.to_string()))
}

/// Opens the target; without force, refuses content that no journal of this file system left.
async fn open_target(
    env: &Env,
    taken: &[Zone],
    zone: &Zone,
    disks: &MetadataDisks,
    force: bool,
) -> Result<Disk, Failure> {
    for other in taken {
        if mkfs::is_same(&other.path, &zone.path) {
            let text = format!(
                "{}: the cluster's file names it for another zone; name another device",
                zone.path.display()
            );
            return Err(failed(text));
        }
    }
    mkfs::create(zone)?;
    let path = zone.path.display().to_string();
    let opened = open_exclusive(env, &path, true).await;
    let disk = opened.map_err(|error| failed(open_error(&error, WHILE_SERVED)))?;
    if disk.size() < JOURNAL_MIN {
        let sizes = (human_size(disk.size()), human_size(JOURNAL_MIN));
        let text = format!("{path}: {} is too small: make it at least {}", sizes.0, sizes.1);
        return Err(failed(text));
    }
    if !force && !journal::is_of(env, &disks.home, &disk).await {
        mkfs::refuse_used(&path, &disk).await?;
    }
    Ok(disk)
}

const _: () = assert!(JOURNAL_MIN > LOG_BYTES_MIN);

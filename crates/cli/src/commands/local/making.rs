//! The first start: creates the cluster's files in DIR/making, and moves them to DIR when complete.
//!
//! Invariants:
//! - nothing in DIR itself is formatted or removed: `local` refuses images in DIR without a
//!   DIR/cluster.toml, so a lost cluster.toml loses no data;
//! - DIR/making holds only files of an unfinished first start, which no server ever used: a
//!   restart removes and recreates it;
//! - if DIR/making/cluster.toml exists, the images are complete: they are moved, never recreated.
//!   cluster.toml moves last, so if DIR/cluster.toml exists, all images are in DIR.

use std::ffi::OsString;
use std::path::Path;

use channel::PublicKey;
use commitment::Protocol;
use types::limits::BLOCK_U64;

use super::files::{self, Contents, Disk, KEYS, Settings, TARGETS_KEY, Target, io};
use crate::args::{LocalArgs, TargetJournal};
use crate::commands::{mkfs, ost};
use crate::config::{ClusterFile, DEFAULT_CACHE, DEFAULT_LEASE, Zone};
use crate::exit::Failure;
use crate::target::LOCAL_CONFIG;

/// The directory in which the files are created.
const MAKING: &str = "making";
/// Data disks by default.
const DISKS: u16 = 2;
/// Bytes of a data disk by default.
const DISK_SIZE: u64 = 16 << 30;
/// Bytes of the metadata disk by default.
const METADATA_SIZE: u64 = 8 << 30;
/// Bytes of a target's external journal.
const JOURNAL_SIZE: u64 = 256 << 20;
/// Names that DIR may have before the first start.
const HARMLESS: [&str; 11] = [
    MAKING,
    "lock",
    "mds.log",
    "client.log",
    "ost.log",
    "lost+found",
    KEYS[0],
    KEYS[1],
    KEYS[2],
    "allowed.lock",
    TARGETS_KEY,
];

/// Refuses a directory that lost its cluster.toml, or that holds something else.
pub fn check(dir: &Path) -> Result<(), Failure> {
    let file = dir.join(LOCAL_CONFIG);
    let exists = || file.is_file() || is_complete(dir);
    if exists() {
        return Ok(());
    }
    let entries = std::fs::read_dir(dir).map_err(|error| io(dir, &error))?;
    let names: Result<Vec<OsString>, _> =
        entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let names = names.map_err(|error| io(dir, &error))?;
    // Another process may have moved its cluster to DIR meanwhile.
    if exists() {
        return Ok(());
    }
    let refuse = |name: &'static str, text: String| {
        Err(Failure::failed(name, format!("{}: {text}", dir.display())))
    };
    if let Some(image) = names.iter().find(|name| is_image(&name.to_string_lossy())) {
        let image = image.to_string_lossy();
        let text = format!(
            "it holds {image}, but its {LOCAL_CONFIG} is missing: restore that file (`redbud mkfs \
             --help` shows its form), or choose another directory for a new cluster"
        );
        return refuse("RB-LOCAL-NO-CONFIG", text);
    }
    match names.iter().find(|name| !HARMLESS.iter().any(|own| name.as_os_str() == *own)) {
        None => Ok(()),
        Some(name) => {
            let name = name.to_string_lossy();
            let text = format!("it holds {name}, which no cluster has: choose an empty directory");
            refuse("RB-LOCAL-NOT-EMPTY", text)
        }
    }
}

/// Does `dir` have complete images of an unfinished first start?
fn is_complete(dir: &Path) -> bool {
    dir.join(MAKING).join(LOCAL_CONFIG).is_file()
}

/// Refuses invalid options before anything is created.
pub fn check_options(dir: &Path, args: &LocalArgs) -> Result<(), Failure> {
    if dir.join(LOCAL_CONFIG).is_file() || is_complete(dir) {
        return Ok(());
    }
    let any_port = crate::address::DEFAULT_PORT;
    let ports: Vec<u16> = (0..ports(args) as u16).map(|index| any_port + index).collect();
    described(&dir.join(LOCAL_CONFIG), (&ports, PublicKey([0; 32])), args).map(drop)
}

/// The ports that a first start needs: those of the metadata servers and of the targets.
fn ports(args: &LocalArgs) -> usize {
    let (servers, standbys) = (args.mds.unwrap_or(1), args.standby.unwrap_or(0));
    let taking_over = if args.take_over == Some(true) { servers } else { 0 };
    usize::from(servers + standbys + taking_over + args.osts.unwrap_or(0))
}

/// The cluster that a first start creates, and the text of its file. `at`: the ports of the
/// metadata servers and then of the targets.
fn described(
    file: &Path,
    (ports, key): (&[u16], PublicKey),
    args: &LocalArgs,
) -> Result<(ClusterFile, String), Failure> {
    let journal = args.journal.unwrap_or_default();
    let (servers, bytes) = (args.mds.unwrap_or(1), args.disk_size.unwrap_or(DISK_SIZE));
    let disks = args.disks.unwrap_or(DISKS.max(servers));
    // Without any, all files lie at targets.
    let only_targets = disks == 0 && args.osts.is_some_and(|osts| osts > 0);
    if disks < servers && servers > 1 && !only_targets {
        let text = format!(
            "--disks {disks}: each of {servers} metadata servers needs a data disk, or none has one \
             and --osts gives targets"
        );
        return Err(Failure::usage(text));
    }
    if args.take_over == Some(true) && servers < 2 {
        let text = "--take-over on: there is no other metadata server: name two or more by --mds";
        return Err(Failure::usage(text));
    }
    let disk = |index: u16| Disk { bytes, server: usize::from(index % servers) };
    let contents = Contents {
        servers: usize::from(servers),
        metadata: args.metadata_size.unwrap_or(METADATA_SIZE),
        data: (0..disks).map(disk).collect(),
        targets: targets(args.osts, journal),
    };
    let (ports, osts) = ports.split_at(ports.len() - contents.targets.len());
    let settings = Settings {
        lease: args.lease.unwrap_or(DEFAULT_LEASE),
        cache: args.cache.unwrap_or(DEFAULT_CACHE),
        protocol: args.commit_protocol.unwrap_or(Protocol::OnePhase),
        take_over: args.take_over.unwrap_or(false),
    };
    let text = files::text((ports, osts, key), settings, &contents);
    let cluster = ClusterFile::parse(file, &text).map_err(|error| Failure::usage(error.text))?;
    Ok((cluster, text))
}

fn targets(count: Option<u16>, journal: TargetJournal) -> Vec<Target> {
    (0..usize::from(count.unwrap_or(0))).map(|index| Target::new(index, journal)).collect()
}

fn is_image(name: &str) -> bool {
    let is_of = |prefix: &str| name.starts_with(prefix) && name.ends_with(".img");
    is_of("metadata") || is_of("data") || is_of("ost")
}

/// Creates the cluster in `dir`, or completes an earlier start.
pub fn make(dir: &Path, args: &LocalArgs) -> Result<(), Failure> {
    check(dir)?;
    let making = dir.join(MAKING);
    if !is_complete(dir) {
        remove(&making)?;
        if let Err(failure) = format(dir, &making, args) {
            // The failure has the reason; the next start removes what this leaves.
            let _ = remove(&making);
            return Err(failure);
        }
    }
    publish(dir, &making)
}

fn remove(making: &Path) -> Result<(), Failure> {
    match std::fs::remove_dir_all(making) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(making, &error)),
        _ => Ok(()),
    }
}

fn format(dir: &Path, making: &Path, args: &LocalArgs) -> Result<(), Failure> {
    std::fs::create_dir(making).map_err(|error| io(making, &error))?;
    let file = making.join(LOCAL_CONFIG);
    let ports = files::free_ports(&[], ports(args))?;
    let (cluster, text) = described(&file, (&ports, files::keys(dir)?), args)?;
    let features = mkfs::features(
        args.slot.unwrap_or_default(),
        args.inline_data.unwrap_or(true),
        args.layout_blocks.unwrap_or_default(),
    );
    mkfs::format(&cluster, false, features)?;
    let bytes = args.disk_size.unwrap_or(DISK_SIZE);
    let place = args.journal.unwrap_or_default();
    let targets = targets(args.osts, place);
    if let (TargetJournal::Shared, Some(journal)) =
        (place, targets.first().and_then(|target| target.journal.as_ref()))
    {
        // The last block is that of the label's copy.
        let size = Some(targets.len() as u64 * JOURNAL_SIZE + BLOCK_U64);
        mkfs::create(&Zone { path: making.join(journal), size })?;
    }
    for (index, target) in targets.iter().enumerate() {
        let device = making.join(Target::device(index));
        let journal = target.journal.as_ref().map(|journal| making.join(journal));
        let journal = journal.as_ref().map(|journal| (journal.as_path(), JOURNAL_SIZE));
        ost::make_files(cluster.any(), (&device, bytes), journal)?;
    }
    files::replace(&file, &text)
}

fn publish(dir: &Path, making: &Path) -> Result<(), Failure> {
    let (cluster, targets) = files::read(&making.join(LOCAL_CONFIG))?;
    let zones = cluster.servers.iter().flat_map(|one| {
        std::iter::once(&one.metadata.path).chain(one.data.iter().map(|(_, zone)| &zone.path))
    });
    let osts = targets.osts.iter().flat_map(|ost| std::iter::once(&ost.device).chain(&ost.journal));
    for path in zones.chain(osts) {
        let Some(name) = path.file_name().filter(|_| path.exists()) else { continue };
        move_to(path, &dir.join(name))?;
    }
    files::sync(dir)?;
    move_to(&cluster.any().file, &dir.join(LOCAL_CONFIG))?;
    files::sync(dir)?;
    remove(making)
}

/// Moves a file, unless the target exists.
fn move_to(from: &Path, to: &Path) -> Result<(), Failure> {
    if to.symlink_metadata().is_ok() {
        let text = format!("{} is in the way of {}: move it away", to.display(), from.display());
        return Err(Failure::failed("RB-LOCAL-NOT-EMPTY", text));
    }
    std::fs::rename(from, to).map_err(|error| io(to, &error))
}

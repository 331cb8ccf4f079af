//! `redbud mkfs`: formats the zones of a new file system.
//!
//! mkfs writes the labels of the data zones first and the metadata zones last, with the root
//! directory at the very end. An interrupted mkfs leaves no file system, or the old one with data
//! zones of another file system, which a server refuses.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use env::{Disk, DriverKind, Env};
use mfs::SlotFeatures;
use mfs::new_device::{self, Owner};
use mfs::{
    Cost, Feature, Features, FormatOptions, Mfs, OpenOptions, PagFormat, SlotSize, Stop, StoreError,
};
use serde::Serialize;
use types::limits::BLOCK_U64;
use types::units::human_size;
use types::{Attr, Epoch, Fault, Ino, PagId, ShardId, Uuid};

use crate::args::MkfsArgs;
use crate::config::{Cluster, ClusterFile, DATA_MIN, JOURNAL_MIN, METADATA_MIN, Zone};
use crate::devices::{MetadataDisks, open_exclusive};
use crate::exit::{Ended, Failure};
use crate::output;

/// The log is this share of the metadata zone, within [`LOG_RANGE`].
const LOG_SHARE: u64 = 64;
/// Minimum and maximum of the default log size.
const LOG_RANGE: (u64, u64) = (16 << 20, 128 << 20);

/// The new file system.
#[derive(Serialize)]
pub struct Formatted {
    version: u32,
    name: String,
    uuid: String,
    slot_bytes: u64,
    inline_data: bool,
    layout_blocks: bool,
    /// What the only server has.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    only: Option<FormattedServer>,
    /// What each of several servers has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    servers: Vec<FormattedServer>,
}

/// What a metadata server has.
#[derive(Serialize)]
struct FormattedServer {
    /// Its number among several.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u8>,
    metadata: FormattedZone,
    /// The device of the log, if it is not internal.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<FormattedZone>,
    log_bytes: u64,
    data: Vec<FormattedZone>,
}

#[derive(Serialize)]
struct FormattedZone {
    #[serde(skip_serializing_if = "Option::is_none")]
    pag: Option<u16>,
    path: String,
    bytes: u64,
}

/// Formats the zones that a cluster's file names.
pub fn run(args: &MkfsArgs) -> Ended {
    let file = ClusterFile::read(&args.config);
    let file = file.map_err(|error| Failure::usage(error.to_string()))?;
    let features = features(args.slot, args.inline_data, args.layout_blocks);
    let made = format(&file, args.force, features)?;
    output::print_report(args.output, &made, describe)?;
    Ok(0)
}

fn describe(made: &Formatted) -> String {
    let mut text = format!("file system `{}`, uuid {}\n", made.name, made.uuid);
    let slots = describe_slots(made);
    for server in made.only.iter().chain(&made.servers) {
        if let Some(number) = server.server {
            text += &format!(" server {number}\n");
        }
        if let Some(journal) = &server.journal {
            text += &format!("  journal: {}, {}\n", journal.path, human_size(journal.bytes));
        }
        for zone in std::iter::once(&server.metadata).chain(&server.data) {
            let what = zone.pag.map_or("metadata".to_owned(), |pag| format!("data {pag}"));
            text += &format!("  {what}: {}, {}\n", zone.path, human_size(zone.bytes));
        }
        text += &format!("  log: {}, {slots}\n", human_size(server.log_bytes));
    }
    text
}

fn describe_slots(made: &Formatted) -> String {
    let inline = if made.inline_data { ", with inline data" } else { "" };
    let layout = if made.layout_blocks { ", with layout blocks" } else { "" };
    format!("slots of {} bytes{inline}{layout}", made.slot_bytes)
}

/// The features of a new file system with these slots, with or without inline data and layout
/// blocks.
pub fn features(slots: SlotSize, inline_data: bool, layout_blocks: bool) -> Features {
    let switches = [(Feature::INLINE_DATA, inline_data), (Feature::LAYOUT_BLOCKS, layout_blocks)];
    let chosen = switches.into_iter().filter(|(_, on)| *on);
    chosen.fold(Features::NONE.with_slots(slots), |all, (feature, _)| all.with(feature))
}

/// Formats the zones of all servers of `file`; overwrites content only with `force`.
pub fn format(file: &ClusterFile, force: bool, features: Features) -> Result<Formatted, Failure> {
    env::run(DriverKind::Auto, |env| async move { make(&env, file, force, features).await })
        .map_err(|error| failed(format!("cannot start the I/O driver: {error}")))
        .flatten()
}

struct Opened {
    disk: Disk,
    path: String,
    /// The data zones on it.
    pags: Vec<PagId>,
}

/// The devices of a server.
struct Devices<'a> {
    cluster: &'a Cluster,
    metadata: Opened,
    journal: Option<Opened>,
    data: Vec<Opened>,
}

async fn make(
    env: &Env,
    file: &ClusterFile,
    force: bool,
    features: Features,
) -> Result<Formatted, Failure> {
    refuse_twice(file)?;
    // Opens and checks all zones before it writes the first.
    let mut all = Vec::new();
    for cluster in &file.servers {
        all.push(open_all(env, cluster, force).await?);
    }
    let uuid = env.random_uuid();
    let mut pags = Vec::new();
    for devices in &all {
        let mut own = Vec::new();
        for device in &devices.data {
            own.extend(label(env, devices.cluster, device, uuid).await?);
        }
        pags.push(own);
    }
    let mut servers = Vec::new();
    for (devices, pags) in all.iter().zip(pags).rev() {
        servers.push(format_server(env, devices, (uuid, features), pags).await?);
    }
    servers.reverse();
    let only = if servers.len() == 1 { servers.pop() } else { None };
    Ok(Formatted {
        version: 1,
        name: file.any().name.clone(),
        uuid: uuid.to_string(),
        slot_bytes: features.slots().share() as u64,
        inline_data: features.has(Feature::INLINE_DATA),
        layout_blocks: features.has(Feature::LAYOUT_BLOCKS),
        only,
        servers,
    })
}

async fn open_all<'a>(
    env: &Env,
    cluster: &'a Cluster,
    force: bool,
) -> Result<Devices<'a>, Failure> {
    let metadata = open(env, &cluster.metadata, Vec::new(), METADATA_MIN, force).await?;
    let journal = match &cluster.journal {
        Some(zone) => Some(open(env, zone, Vec::new(), JOURNAL_MIN, force).await?),
        None => None,
    };
    let mut data = Vec::new();
    for (zone, pags) in cluster.data_devices() {
        let least = DATA_MIN * pags.len() as u64;
        data.push(open(env, zone, pags, least, force).await?);
    }
    Ok(Devices { cluster, metadata, journal, data })
}

/// Formats the metadata zone of a server, whose data zones have their labels already.
async fn format_server(
    env: &Env,
    devices: &Devices<'_>,
    (uuid, features): (Uuid, Features),
    pags: Vec<PagFormat>,
) -> Result<FormattedServer, Failure> {
    let Devices { cluster, metadata, journal, data } = devices;
    let log_bytes = cluster.log.unwrap_or_else(|| {
        (metadata.disk.size() / LOG_SHARE / BLOCK_U64 * BLOCK_U64).clamp(LOG_RANGE.0, LOG_RANGE.1)
    });
    // The content was checked above; the store need not refuse it again.
    let name = cluster.name.clone();
    let options = FormatOptions { name, uuid, log_bytes, pags, features, force: true };
    let log = journal.as_ref().map(|opened| opened.disk.clone());
    let disks = MetadataDisks { home: metadata.disk.clone(), log };
    let refused = |error: StoreError| failed(error.to_string());
    Mfs::format_shard(env, &disks, cluster.shard, &options).await.map_err(refused)?;
    let log_bytes = begin(env, &disks, cluster).await.map_err(refused)?;
    Ok(FormattedServer {
        server: cluster.is_of_several().then_some(cluster.shard.0),
        metadata: zone(metadata, None, 1),
        journal: journal.as_ref().map(|opened| zone(opened, None, 1)),
        log_bytes,
        data: data.iter().flat_map(data_zones).collect(),
    })
}

/// Makes new metadata those of one of several servers, if it is; gives the root directory of the
/// file system to the caller. Returns the capacity of the log in bytes.
async fn begin(env: &Env, disks: &MetadataDisks, cluster: &Cluster) -> Result<u64, StoreError> {
    let mfs = Mfs::open(env, disks, OpenOptions::default()).await?;
    if cluster.is_of_several() {
        mfs.add_shards().await?;
    }
    if cluster.shard == ShardId(0) {
        own_root(env, &mfs).await?;
    }
    mfs.close().await?;
    Ok(mfs.superblock().log_bytes())
}

/// Gives the root directory to the caller's user and group, with the current time.
async fn own_root(env: &Env, mfs: &Mfs) -> Result<(), StoreError> {
    let now = env.wall();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    mfs.run(Cost::SMALL, |txn| {
        let root = txn.names().attr(Ino::ROOT)?.ok_or(Stop::Fault(Fault::NotFound))?;
        let (atime, mtime, ctime, btime) = (now, now, now, now);
        txn.names().set_attr(&Attr { uid, gid, atime, mtime, ctime, btime, ..root })
    })
    .await?;
    Ok(())
}

fn data_zones(opened: &Opened) -> impl Iterator<Item = FormattedZone> + '_ {
    opened.pags.iter().map(|pag| zone(opened, Some(pag.0), opened.pags.len()))
}

/// A zone that has the device to itself, or one of several equal parts of it.
fn zone(opened: &Opened, pag: Option<u16>, parts: usize) -> FormattedZone {
    let bytes = opened.disk.size() / parts as u64 / BLOCK_U64 * BLOCK_U64;
    FormattedZone { pag, path: opened.path.clone(), bytes }
}

async fn open(
    env: &Env,
    zone: &Zone,
    pags: Vec<PagId>,
    least: u64,
    force: bool,
) -> Result<Opened, Failure> {
    create(zone)?;
    let path = zone.path.display().to_string();
    let disk = open_exclusive(env, &path, true).await.map_err(|error| failed(error.to_string()))?;
    if disk.size() < least {
        let sizes = (human_size(disk.size()), human_size(least));
        return Err(failed(format!(
            "{path}: {} is too small: make it at least {}",
            sizes.0, sizes.1
        )));
    }
    if !force {
        refuse_used(&path, &disk).await?;
    }
    Ok(Opened { disk, path, pags })
}

/// What a device has on it, if anything is known.
pub async fn what_is_on(disk: &Disk) -> Result<Option<String>, Failure> {
    new_device::content_of(disk).await.map_err(|error| failed(error.to_string()))
}

/// Refuses a device that has content.
pub async fn refuse_used(path: &str, disk: &Disk) -> Result<(), Failure> {
    match what_is_on(disk).await? {
        None => Ok(()),
        Some(what) => {
            let text = format!("{path}: {what}; --force formats it, and its content is lost");
            Err(Failure::failed("RB-MKFS-NOT-EMPTY", text))
        }
    }
}

/// What tells a file or device apart from others, if it is there.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    let device = found.file_type().is_block_device().then(|| found.rdev());
    Some(device.map_or((found.dev(), found.ino()), |device| (device, 0)))
}

/// Are these two names of one file or device that is there?
pub fn is_same(a: &Path, b: &Path) -> bool {
    identity(a).is_some_and(|found| Some(found) == identity(b))
}

/// Refuses devices that are one file under two names.
fn refuse_twice(file: &ClusterFile) -> Result<(), Failure> {
    let mut seen: std::collections::BTreeMap<_, (&Path, bool)> = std::collections::BTreeMap::new();
    for cluster in &file.servers {
        let others = cluster.data_devices().into_iter().map(|(zone, _)| zone);
        let others = cluster.journal.iter().chain(others).map(|zone| (zone, false));
        for (zone, is_metadata) in std::iter::once((&cluster.metadata, true)).chain(others) {
            let Some(identity) = identity(&zone.path) else { continue };
            if let Some((other, was)) = seen.insert(identity, (&zone.path, is_metadata)) {
                let remedy = match (was, is_metadata) {
                    (true, true) => "each server has metadata of its own",
                    (false, false) => "name it once, with `slices` for several zones on it",
                    _ => "clients open data devices, so give the metadata a device of their own",
                };
                let (other, path) = (other.display(), zone.path.display());
                return Err(failed(format!("{other} and {path} are one file: {remedy}")));
            }
        }
    }
    Ok(())
}

/// Creates the file of a zone if it is missing, or extends an empty one of an interrupted mkfs.
pub fn create(zone: &Zone) -> Result<(), Failure> {
    let Some(size) = zone.size else { return Ok(()) };
    let missing = match std::fs::metadata(&zone.path) {
        Ok(found) if found.is_file() && found.len() == 0 => false,
        Ok(_) => return Ok(()),
        Err(_) => true,
    };
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(missing).open(&zone.path);
    let file = file.map_err(|error| at(&zone.path, &error))?;
    file.set_len(size).map_err(|error| {
        if missing {
            // Best effort: an empty file is harmless, and the next mkfs extends it.
            let _ = std::fs::remove_file(&zone.path);
        }
        failed(format!(
            "{}: cannot extend it to {}: {error}",
            zone.path.display(),
            human_size(size)
        ))
    })
}

/// Labels a data device; returns its zones.
async fn label(
    env: &Env,
    cluster: &Cluster,
    opened: &Opened,
    uuid: Uuid,
) -> Result<Vec<PagFormat>, Failure> {
    let owner = Owner { uuid, name: &cluster.name, fencing_epoch: Epoch(0) };
    let labelled = new_device::label_device(env, &opened.disk, owner, &opened.pags).await;
    labelled.map_err(|error| failed(error.to_string()))
}

fn at(path: &Path, error: &std::io::Error) -> Failure {
    failed(format!("{}: {error}", path.display()))
}

fn failed(text: String) -> Failure {
    Failure::failed("RB-MKFS", text)
}

//! `redbud mkfs`: formats the zones of a new file system.
//!
//! mkfs writes the labels of the data zones first and the metadata zone last. An interrupted mkfs
//! leaves no file system, or the old one with data zones of another file system, which a server
//! refuses.

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
use types::{Attr, Epoch, Fault, Ino, PagId, Uuid};

use crate::args::MkfsArgs;
use crate::config::{Cluster, DATA_MIN, JOURNAL_MIN, METADATA_MIN, Zone};
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
    metadata: FormattedZone,
    /// The device of the log, if it is not internal.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<FormattedZone>,
    log_bytes: u64,
    slot_bytes: u64,
    inline_data: bool,
    layout_blocks: bool,
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
    let cluster = Cluster::read(&args.config).map_err(|error| Failure::usage(error.to_string()))?;
    let features = features(args.slot, args.inline_data, args.layout_blocks);
    let made = format(&cluster, args.force, features)?;
    output::print_report(args.output, &made, describe)?;
    Ok(0)
}

fn describe(made: &Formatted) -> String {
    let mut text = format!("file system `{}`, uuid {}\n", made.name, made.uuid);
    let zones = std::iter::once(&made.metadata).chain(&made.data);
    if let Some(journal) = &made.journal {
        text += &format!("  journal: {}, {}\n", journal.path, human_size(journal.bytes));
    }
    for zone in zones {
        let what = zone.pag.map_or("metadata".to_owned(), |pag| format!("data {pag}"));
        text += &format!("  {what}: {}, {}\n", zone.path, human_size(zone.bytes));
    }
    let sizes = (human_size(made.log_bytes), made.slot_bytes);
    let inline = if made.inline_data { ", with inline data" } else { "" };
    let layout = if made.layout_blocks { ", with layout blocks" } else { "" };
    text + &format!("  log: {}, slots of {} bytes{inline}{layout}\n", sizes.0, sizes.1)
}

/// The features of a new file system with these slots, with or without inline data and layout
/// blocks.
pub fn features(slots: SlotSize, inline_data: bool, layout_blocks: bool) -> Features {
    let switches = [(Feature::INLINE_DATA, inline_data), (Feature::LAYOUT_BLOCKS, layout_blocks)];
    let chosen = switches.into_iter().filter(|(_, on)| *on);
    chosen.fold(Features::NONE.with_slots(slots), |all, (feature, _)| all.with(feature))
}

/// Formats the zones of `cluster`; overwrites content only with `force`.
pub fn format(cluster: &Cluster, force: bool, features: Features) -> Result<Formatted, Failure> {
    env::run(DriverKind::Auto, |env| async move { make(&env, cluster, force, features).await })
        .map_err(|error| failed(format!("cannot start the I/O driver: {error}")))
        .flatten()
}

struct Opened {
    disk: Disk,
    path: String,
    /// The data zones on it.
    pags: Vec<PagId>,
}

async fn make(
    env: &Env,
    cluster: &Cluster,
    force: bool,
    features: Features,
) -> Result<Formatted, Failure> {
    refuse_twice(cluster)?;
    // Opens and checks all zones before it writes the first.
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
    let uuid = env.random_uuid();
    let mut pags = Vec::new();
    for device in &data {
        pags.extend(label(env, cluster, device, uuid).await?);
    }
    let internal = cluster.log.unwrap_or_else(|| {
        (metadata.disk.size() / LOG_SHARE / BLOCK_U64 * BLOCK_U64).clamp(LOG_RANGE.0, LOG_RANGE.1)
    });
    // The content was checked above; the store need not refuse it again.
    let options = FormatOptions {
        name: cluster.name.clone(),
        uuid,
        log_bytes: internal,
        pags,
        features,
        force: true,
    };
    let log = journal.as_ref().map(|opened| opened.disk.clone());
    let disks = MetadataDisks { home: metadata.disk.clone(), log };
    Mfs::format(env, &disks, &options).await.map_err(|error| failed(error.to_string()))?;
    let log_bytes = own_root(env, &disks).await.map_err(|error| failed(error.to_string()))?;
    Ok(Formatted {
        version: 1,
        name: cluster.name.clone(),
        uuid: uuid.to_string(),
        metadata: zone(&metadata, None, 1),
        journal: journal.as_ref().map(|opened| zone(opened, None, 1)),
        log_bytes,
        slot_bytes: features.slots().share() as u64,
        inline_data: features.has(Feature::INLINE_DATA),
        layout_blocks: features.has(Feature::LAYOUT_BLOCKS),
        data: data.iter().flat_map(data_zones).collect(),
    })
}

/// Gives the root directory to the caller's user and group, with the current time. Returns the
/// capacity of the log in bytes.
async fn own_root(env: &Env, disks: &MetadataDisks) -> Result<u64, StoreError> {
    let mfs = Mfs::open(env, disks, OpenOptions::default()).await?;
    let now = env.wall();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    mfs.run(Cost::SMALL, |txn| {
        let root = txn.names().attr(Ino::ROOT)?.ok_or(Stop::Fault(Fault::NotFound))?;
        let (atime, mtime, ctime, btime) = (now, now, now, now);
        txn.names().set_attr(&Attr { uid, gid, atime, mtime, ctime, btime, ..root })
    })
    .await?;
    mfs.close().await?;
    Ok(mfs.superblock().log_bytes())
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
fn refuse_twice(cluster: &Cluster) -> Result<(), Failure> {
    let mut seen = std::collections::BTreeMap::new();
    let zones = cluster.data_devices().into_iter().map(|(zone, _)| zone);
    for zone in std::iter::once(&cluster.metadata).chain(&cluster.journal).chain(zones) {
        let Some(identity) = identity(&zone.path) else { continue };
        if let Some(other) = seen.insert(identity, &zone.path) {
            let remedy = match *other == cluster.metadata.path {
                true => "clients open data devices, so give the metadata a device of their own",
                false => "name it once, with `slices` for several zones on it",
            };
            let (other, path) = (other.display(), zone.path.display());
            return Err(failed(format!("{other} and {path} are one file: {remedy}")));
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

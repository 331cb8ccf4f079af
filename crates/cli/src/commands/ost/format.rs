//! `redbud ost format`: makes a target.

use std::path::Path;

use env::{Disk, DriverKind, Env};
use label::Contents;
use serde::Serialize;
use types::limits::BLOCK_U64;
use types::units::human_size;
use types::{Uuid, check_fs_name};

use super::failed;
use crate::args::{OstFormatArgs, Output, Whose};
use crate::config::{Cluster, ClusterFile, Zone};
use crate::devices::{is_shared, open_exclusive, open_shared};
use crate::exit::{Ended, Failure};
use crate::{admin, output, target};

use crate::commands::mkfs;
use ost::store::{FormatOptions, NewJournal, ObjectStore, refuses_whole};

/// The internal journal is this share of the device, within [`LOG_RANGE`].
const LOG_SHARE: u64 = 64;
/// Minimum and maximum of its default size.
const LOG_RANGE: (u64, u64) = (16 << 20, 128 << 20);

/// A new target.
#[derive(Serialize)]
struct Formatted {
    version: u32,
    fs_name: String,
    fs_uuid: String,
    target: String,
    device: String,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<String>,
    checksums: bool,
}

/// Makes a target.
pub fn run(args: &OstFormatArgs) -> Ended {
    let (name, fs) = file_system(&args.whose)?;
    if let Some(journal) = &args.journal
        && (mkfs::is_same(&args.device, journal) || args.device == *journal)
    {
        let text = "the journal and the objects are on one device: leave --journal out for an \
                    internal journal";
        return Err(Failure::usage(text));
    }
    let made = format(args, name, fs)?;
    output::print_report(args.output, &made, describe)?;
    Ok(0)
}

fn format(args: &OstFormatArgs, name: String, fs: Uuid) -> Result<Formatted, Failure> {
    let zone = |path: &Path, size| Zone { path: path.to_owned(), size };
    mkfs::create(&zone(&args.device, args.size))?;
    if let Some(journal) = &args.journal {
        mkfs::create(&zone(journal, args.journal_size))?;
    }
    let made = env::run(DriverKind::Auto, |env| async move { make(&env, args, name, fs).await });
    made.map_err(|error| failed(format!("cannot start the I/O driver: {error}"))).flatten()
}

/// Makes a target in files, the first start of a local cluster's: `device` with so many bytes, and
/// `journal`, of the file system whose metadata device `cluster` names.
pub fn make_files(
    cluster: &Cluster,
    (device, bytes): (&Path, u64),
    journal: Option<(&Path, u64)>,
) -> Result<(), Failure> {
    let (name, fs) = on_this_host(cluster).ok_or_else(|| {
        failed(format!("{}: its label names no file system", cluster.metadata.path.display()))
    })?;
    let args = OstFormatArgs {
        device: device.to_owned(),
        whose: Whose::default(),
        journal: journal.map(|(path, _)| path.to_owned()),
        log: None,
        checksums: true,
        size: Some(bytes),
        journal_size: journal.map(|(_, bytes)| bytes),
        force: false,
        output: Output::default(),
    };
    format(&args, name, fs).map(drop)
}

fn describe(made: &Formatted) -> String {
    let journal = made.journal.as_ref().map_or("internal".to_owned(), Clone::clone);
    let checksums = if made.checksums { "on" } else { "off" };
    format!(
        "target {} of the file system `{}`, uuid {}\n  {}, {}\n  journal: {journal}, checksums: \
         {checksums}\n",
        made.target,
        made.fs_name,
        made.fs_uuid,
        made.device,
        human_size(made.bytes)
    )
}

async fn make(
    env: &Env,
    args: &OstFormatArgs,
    fs_name: String,
    fs: Uuid,
) -> Result<Formatted, Failure> {
    let disk = open(env, &args.device, args.force).await?;
    let journal = match &args.journal {
        Some(path) => Some(open_new_journal(env, path, args).await?),
        None => None,
    };
    let place = journal.as_ref().map(|disk| NewJournal { disk, bytes: args.journal_size });
    let usual = (disk.size() / LOG_SHARE / BLOCK_U64 * BLOCK_U64).clamp(LOG_RANGE.0, LOG_RANGE.1);
    let target = env.random_uuid();
    let options = FormatOptions {
        fs_name: &fs_name,
        fs,
        target,
        log_bytes: args.log.unwrap_or(usual),
        checksums: args.checksums,
        force: args.force,
    };
    let made = ObjectStore::format(env, &disk, place, &options).await;
    made.map_err(|error| failed(error.to_string()))?;
    Ok(Formatted {
        version: 1,
        fs_uuid: fs.to_string(),
        target: target.to_string(),
        device: args.device.display().to_string(),
        bytes: disk.size(),
        journal: args.journal.as_ref().map(|path| path.display().to_string()),
        checksums: args.checksums,
        fs_name,
    })
}

async fn open(env: &Env, path: &Path, force: bool) -> Result<Disk, Failure> {
    let path = path.display().to_string();
    let disk = open_exclusive(env, &path, true).await.map_err(|error| failed(error.to_string()))?;
    if !force {
        mkfs::refuse_used(&path, &disk).await?;
    }
    Ok(disk)
}

/// Opens the device of the new journal. Servers may use the slices of others on it.
async fn open_new_journal(env: &Env, path: &Path, args: &OstFormatArgs) -> Result<Disk, Failure> {
    let name = path.display().to_string();
    if args.journal_size.is_none() {
        if let Ok(disk) = env.open_disk(&name, env::DiskOptions::default()).await
            && let Some(text) = refuses_whole(&disk).await
        {
            return Err(failed(text));
        }
        return open(env, path, args.force).await;
    }
    let disk = match is_shared(env, &name).await {
        true => open_shared(env, &name).await,
        false => open_exclusive(env, &name, true).await,
    };
    let disk = disk.map_err(|error| failed(error.to_string()))?;
    // Whether there is room beside journals, the store says.
    let found = label::read(&disk).await;
    let has_journals = found.is_ok_and(|found| found.label.contents() == Contents::Journal);
    if !args.force && !has_journals {
        mkfs::refuse_used(&name, &disk).await?;
    }
    Ok(disk)
}

/// Name and UUID of the file system.
pub fn file_system(args: &Whose) -> Result<(String, Uuid), Failure> {
    if let (Some(name), Some(uuid)) = (&args.fs, args.uuid) {
        return match check_fs_name(name) {
            true => Ok((name.clone(), uuid)),
            false => Err(Failure::usage(format!("`{name}` is not a name of a file system"))),
        };
    }
    let file = args.config.as_deref().unwrap_or(Path::new(""));
    let read = ClusterFile::read(file).map_err(|error| Failure::usage(error.to_string()))?;
    let cluster = read.any();
    if let Some(found) = on_this_host(cluster) {
        return Ok(found);
    }
    let source = target::source(&file.display().to_string())?;
    let status = admin::status(&source).map_err(|failure| {
        let text = format!(
            "which UUID has the file system `{}`? Its metadata server does not say ({failure}): \
             give --fs and --uuid, as `redbud mkfs` printed them",
            cluster.name
        );
        Failure { text, ..failure }
    })?;
    let uuid = status["fs_uuid"].as_str().and_then(|text| text.parse().ok());
    let uuid = uuid.ok_or_else(|| failed(format!("{source}: its status has no `fs_uuid`")))?;
    Ok((cluster.name.clone(), uuid))
}

/// What the label of the metadata device says, if that is on this host.
fn on_this_host(cluster: &Cluster) -> Option<(String, Uuid)> {
    let path = cluster.metadata.path.display().to_string();
    let read = env::run(DriverKind::Fallback, |env| async move {
        let options = env::DiskOptions { write: false, exclusive: false };
        let disk = env.open_disk(&path, options).await.ok()?;
        label::read(&disk).await.ok().map(|found| found.label)
    });
    let label = read.ok().flatten()?;
    (label.fs_name == cluster.name).then_some((label.fs_name, label.fs_uuid))
}

//! The first start: the cluster's files are made in DIR/making and brought out when they are whole.
//!
//! Invariants:
//! - nothing in DIR itself is formatted or removed: images that lie there without a
//!   DIR/cluster.toml are refused, so a lost cluster.toml costs no data;
//! - DIR/making holds only what an unfinished first start made, and nothing that was ever
//!   served: it is removed and made anew, whatever interrupted it;
//! - DIR/making/cluster.toml stands for images that are whole: they are brought out, never made
//!   anew; cluster.toml comes out last, so DIR/cluster.toml stands for all of them.

use std::ffi::OsString;
use std::path::Path;

use super::files::{self, Sizes, io};
use crate::args::LocalArgs;
use crate::commands::mkfs;
use crate::config::{Cluster, DEFAULT_CACHE, DEFAULT_LEASE};
use crate::exit::Failure;
use crate::target::LOCAL_CONFIG;

/// Where the files are made.
const MAKING: &str = "making";
/// Data disks, unless told otherwise.
const DISKS: u16 = 2;
/// Bytes of a data disk, unless told otherwise.
const DISK_SIZE: u64 = 16 << 30;
/// Bytes of the metadata disk, unless told otherwise.
const METADATA_SIZE: u64 = 8 << 30;
/// What may lie in DIR before the cluster does.
const HARMLESS: [&str; 5] = [MAKING, "lock", "mds.log", "client.log", "lost+found"];

/// Refuses a directory that lost its cluster.toml, or that holds something else.
pub fn check(dir: &Path) -> Result<(), Failure> {
    let file = dir.join(LOCAL_CONFIG);
    let begun = || file.is_file() || is_made(dir);
    if begun() {
        return Ok(());
    }
    let entries = std::fs::read_dir(dir).map_err(|error| io(dir, &error))?;
    let names: Result<Vec<OsString>, _> =
        entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let names = names.map_err(|error| io(dir, &error))?;
    // Another process may have brought its cluster out meanwhile.
    if begun() {
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
            let text =
                format!("it holds {name}, which is of no cluster: choose an empty directory");
            refuse("RB-LOCAL-NOT-EMPTY", text)
        }
    }
}

/// Do whole images of an unfinished first start lie in `dir`?
fn is_made(dir: &Path) -> bool {
    dir.join(MAKING).join(LOCAL_CONFIG).is_file()
}

/// Refuses what no cluster can have, before there is anything of it.
pub fn check_options(dir: &Path, args: &LocalArgs) -> Result<(), Failure> {
    if dir.join(LOCAL_CONFIG).is_file() || is_made(dir) {
        return Ok(());
    }
    let any_port = crate::address::DEFAULT_PORT;
    described(&dir.join(LOCAL_CONFIG), any_port, args).map(drop)
}

/// The cluster that a first start makes, and the text of its file.
fn described(file: &Path, port: u16, args: &LocalArgs) -> Result<(Cluster, String), Failure> {
    let sizes = Sizes {
        metadata: args.metadata_size.unwrap_or(METADATA_SIZE),
        data: vec![args.disk_size.unwrap_or(DISK_SIZE); usize::from(args.disks.unwrap_or(DISKS))],
    };
    let lease = args.lease.unwrap_or(DEFAULT_LEASE);
    let text = files::text(port, lease, args.cache.unwrap_or(DEFAULT_CACHE), &sizes);
    let cluster = Cluster::parse(file, &text).map_err(|error| Failure::usage(error.text))?;
    Ok((cluster, text))
}

fn is_image(name: &str) -> bool {
    name == "metadata.img" || (name.starts_with("data") && name.ends_with(".img"))
}

/// Makes the cluster in `dir`, or ends what an earlier start began.
pub fn make(dir: &Path, args: &LocalArgs) -> Result<(), Failure> {
    check(dir)?;
    let making = dir.join(MAKING);
    if !is_made(dir) {
        remove(&making)?;
        if let Err(failure) = format(&making, args) {
            // What it was is said by the failure; what stays is removed by the next start.
            let _ = remove(&making);
            return Err(failure);
        }
    }
    bring_out(dir, &making)
}

fn remove(making: &Path) -> Result<(), Failure> {
    match std::fs::remove_dir_all(making) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(making, &error)),
        _ => Ok(()),
    }
}

fn format(making: &Path, args: &LocalArgs) -> Result<(), Failure> {
    std::fs::create_dir(making).map_err(|error| io(making, &error))?;
    let file = making.join(LOCAL_CONFIG);
    let (cluster, text) = described(&file, files::free_port()?, args)?;
    let features = mkfs::features(
        args.slot.unwrap_or_default(),
        args.inline_data.unwrap_or(true),
        args.layout_blocks.unwrap_or_default(),
    );
    mkfs::format(&cluster, false, features)?;
    files::replace(&file, &text)
}

fn bring_out(dir: &Path, making: &Path) -> Result<(), Failure> {
    let cluster = files::read(&making.join(LOCAL_CONFIG))?;
    let zones = cluster.data.iter().map(|(_, zone)| zone);
    for zone in std::iter::once(&cluster.metadata).chain(zones) {
        let Some(name) = zone.path.file_name().filter(|_| zone.path.exists()) else { continue };
        move_to(&zone.path, &dir.join(name))?;
    }
    files::sync(dir)?;
    move_to(&cluster.file, &dir.join(LOCAL_CONFIG))?;
    files::sync(dir)?;
    remove(making)
}

/// Gives a file its place, unless something lies there.
fn move_to(from: &Path, to: &Path) -> Result<(), Failure> {
    if to.symlink_metadata().is_ok() {
        let text = format!("{} is in the way of {}: move it away", to.display(), from.display());
        return Err(Failure::failed("RB-LOCAL-NOT-EMPTY", text));
    }
    std::fs::rename(from, to).map_err(|error| io(to, &error))
}

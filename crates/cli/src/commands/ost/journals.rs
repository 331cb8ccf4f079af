//! `redbud ost journals`: shows the journals on a device that targets share, and gives the slice of
//! a target that is gone back.

use env::{DiskOptions, DriverKind, Env};
use label::{Label, SliceKind};
use ost::store::{release_journal, shared};
use serde::Serialize;
use types::limits::BLOCK_U64;
use types::units::human_size;

use super::failed;
use crate::args::OstJournalsArgs;
use crate::devices::{open_error, open_shared};
use crate::exit::{Ended, Failure};
use crate::output;

#[derive(Serialize)]
struct Report {
    version: u32,
    device: String,
    fs_name: String,
    fs_uuid: String,
    /// The longest journal that still fits.
    free_bytes: u64,
    journals: Vec<Journal>,
}

#[derive(Serialize)]
struct Journal {
    journal: String,
    /// The target, or the metadata.
    owner: String,
    first_block: u64,
    blocks: u64,
    in_use: bool,
}

/// Shows the slices, after it has given one back.
pub fn run(args: &OstJournalsArgs) -> Ended {
    let report = env::run(DriverKind::Auto, |env| async move { journals(&env, args).await });
    let report = report
        .map_err(|error| failed(format!("cannot start the I/O driver: {error}")))
        .flatten()?;
    output::print_report(args.output, &report, describe)?;
    Ok(0)
}

async fn journals(env: &Env, args: &OstJournalsArgs) -> Result<Report, Failure> {
    let path = args.device.display().to_string();
    if let Some(owner) = args.release {
        let disk = open_shared(env, &path).await;
        let disk = disk.map_err(|error| failed(open_error(&error, "stop what uses it first")))?;
        let released = release_journal(env, &disk, owner).await;
        if !released.map_err(|error| failed(error.to_string()))? {
            return Err(failed(format!("{path}: it has no journal of {owner}")));
        }
    }
    let disk = env.open_disk(&path, DiskOptions { write: false, exclusive: false }).await;
    let disk = disk.map_err(|error| failed(error.to_string()))?;
    let found = label::read(&disk).await;
    let label = match found {
        Ok(found) => found.label,
        // It was the last one.
        Err(_) if args.release.is_some() => return Ok(empty(path, disk.size())),
        Err(none) => return Err(failed(format!("{path}: {none}"))),
    };
    let mut journals = Vec::new();
    for slice in &label.slices {
        let SliceKind::Journal { metadata, .. } = slice.kind else { continue };
        let is_free = disk.byte_is_free(shared::lock_of(slice)).await;
        journals.push(Journal {
            journal: slice.uuid.to_string(),
            owner: metadata.to_string(),
            first_block: slice.start,
            blocks: slice.blocks,
            in_use: !is_free.map_err(|error| failed(error.to_string()))?,
        });
    }
    if journals.is_empty() {
        return Err(failed(format!("{path}: it has no journals, but {}", label.contents())));
    }
    let free_bytes = free(&label) * BLOCK_U64;
    let Label { fs_name, fs_uuid, .. } = label;
    let (version, device, fs_uuid) = (1, path, fs_uuid.to_string());
    Ok(Report { version, device, fs_name, fs_uuid, free_bytes, journals })
}

/// Blocks of the longest gap; none if the device has more than journals.
fn free(label: &Label) -> u64 {
    match label.contents() {
        label::Contents::Journal => shared::largest_gap(label),
        _ => 0,
    }
}

fn empty(device: String, bytes: u64) -> Report {
    let (fs_name, fs_uuid) = (String::new(), String::new());
    let free_bytes = bytes.saturating_sub(BLOCK_U64);
    Report { version: 1, device, fs_name, fs_uuid, free_bytes, journals: Vec::new() }
}

fn describe(report: &Report) -> String {
    let mut text = match report.journals.len() {
        0 => format!("{}: no journals\n", report.device),
        1 => format!("{}: a journal of `{}`\n", report.device, report.fs_name),
        count => format!("{}: {count} journals of `{}`\n", report.device, report.fs_name),
    };
    for one in &report.journals {
        let end = one.first_block + one.blocks;
        let size = human_size(one.blocks * BLOCK_U64);
        let used = if one.in_use { ", in use" } else { "" };
        text += &format!(
            "  {}: of {}, blocks {}..{end}, {size}{used}\n",
            one.journal, one.owner, one.first_block
        );
    }
    text + &format!("  room for another one: {}\n", human_size(report.free_bytes))
}

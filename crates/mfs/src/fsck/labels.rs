//! Damaged labels of devices.
//!
//! Invariants:
//! - a metadata device without a label is this file system's if its superblocks have the file
//!   system's name, and a label of the named data zones has their UUID, and none another one;
//! - the table of data zones says what a label should be: where the table is unreadable, labels are
//!   not checked here;
//! - repair overwrites only what is no label, on a device that is large enough. The device must
//!   have the zone's UUID there, or the caller must name the zone;
//! - the caller must name a zone whose data repair left because its size is unknown.

use env::Env;
use types::PagBlock;

use super::{FsckOptions, Problem, ProblemKind, Repaired, Subject};
use crate::handle::Mfs;
use crate::mkfs::PagFormat;
use crate::zones::{self, DamagedDataLabel, ZoneDevice};
use engine::cost::Cost;
use engine::device::Device;
use engine::error::StoreError;
use engine::format::superblock::Superblock;

/// Refuses a metadata device without a label that cannot be identified.
///
/// # Errors
/// `Refused`.
pub(super) async fn is_ours(
    env: &Env,
    device: &Device,
    superblock: &Superblock,
    options: FsckOptions<'_>,
) -> Result<(), StoreError> {
    let (name, uuid) = (&superblock.name, superblock.uuid);
    let refused = |why: String| {
        let path = device.disk.path();
        let text = format!(
            "{path}: its label (block 0) is nothing but zeros, and by its superblocks it is of file system `{name}` ({uuid}): \
             {why}"
        );
        Err(StoreError::Refused(text.into()))
    };
    if options.name.is_some_and(|wanted| wanted != name) {
        return refused("it is another one's; name the right device".into());
    }
    let mut said = Vec::new();
    for place in options.zones {
        match zones::file_system(env, place).await {
            Some(other) if other != uuid => {
                return refused(format!("{} is a data zone of {other}", place.path));
            }
            found => said.extend(found),
        }
    }
    if said.is_empty() && !options.zones.is_empty() {
        let why = "no data zone can be read whose label says so, too";
        return refused(format!("{why}; see that the cluster's file names one that is here"));
    }
    Ok(())
}

/// The named zones whose devices have no label.
pub(super) async fn damaged_labels<'a>(
    env: &Env,
    mfs: &Mfs,
    options: FsckOptions<'a>,
) -> Vec<((&'a ZoneDevice<'a>, PagFormat), DamagedDataLabel)> {
    let mut found = Vec::new();
    // The check reports what is wrong with the table.
    let Ok((table, _)) = mfs.run(Cost::READ, |txn| txn.space().pags()).await else { return found };
    for place in options.zones {
        let Some(line) = table.iter().find(|line| line.id == place.id) else { continue };
        let zone = PagFormat { id: line.id, uuid: line.uuid, blocks: line.total + 1 };
        if let Some(damaged) = zones::damaged_label(env, place, &zone).await {
            found.push(((place, zone), damaged));
        }
    }
    found
}

pub(super) fn subject(damaged: &DamagedDataLabel) -> Subject {
    Subject::Data(damaged.id, PagBlock(0))
}

/// Rewrites damaged labels, and reports those that it leaves.
pub(super) async fn repair(env: &Env, mfs: &Mfs, options: FsckOptions<'_>, out: &mut Repaired) {
    let all = damaged_labels(env, mfs, options).await;
    for id in options.relabel {
        if !all.iter().any(|(_, damaged)| damaged.id == *id) {
            out.note(format!(
                "data zone {id}: its label, or that of its file system, is left as it is"
            ));
        }
    }
    for ((place, zone), damaged) in all {
        let (kind, subject) = (ProblemKind::DamagedDataLabel, subject(&damaged));
        let named = options.relabel.contains(&damaged.id);
        let of_zone = |it: &Problem| matches!(it.subject, Subject::Data(id, _) if id == zone.id);
        let why = if !named && out.left.problems.iter().any(of_zone) {
            format!("; if the zone has {} blocks, `--relabel {}` says so", zone.blocks, zone.id)
        } else if !named && !damaged.has_zone_uuid {
            format!("; if it is that of zone {}, `--relabel {}` says so", zone.id, zone.id)
        } else if !damaged.has_zone_size {
            "; the device is smaller than the zone".to_owned()
        } else {
            match zones::relabel(env, place, &mfs.identity(), &zone).await {
                Ok(()) => String::new(),
                Err(error) => format!("; {error}"),
            }
        };
        let problem = Problem { kind, subject, detail: damaged.what + &why };
        if why.is_empty() {
            out.note(format!(
                "data zone {}: the label of {} was written anew",
                zone.id, place.path
            ));
        } else {
            out.left.problems.push(problem.clone());
        }
        out.found.push(problem);
    }
}

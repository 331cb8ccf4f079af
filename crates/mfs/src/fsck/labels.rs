//! Damaged labels of devices.
//!
//! Invariants:
//! - a metadata device without a label is this file system's under two conditions. Its superblocks
//!   have the file system's name; and a label of the named data zones has their UUID, none another;
//! - the table of data zones says what a label should be: where the table is unreadable, labels are
//!   not checked here;
//! - repair overwrites only what is no label, on a device that is large enough. A copy must be
//!   whole, or the remains must have the device's UUID, or the caller must name a zone on it;
//! - the caller must name a zone whose data repair left because its size is unknown.

use std::collections::BTreeSet;

use env::Env;
use types::{PagBlock, PagId};

use super::{FsckOptions, Problem, ProblemKind, Repaired, Subject};
use crate::handle::Mfs;
use crate::mkfs::PagFormat;
use crate::space::PagState;
use crate::zones::{self, DamagedDataLabel};
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
            "{path}: its label and the copy of it are nothing but zeros, and by its superblocks it is of file system `{name}` ({uuid}): \
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

/// A device with a damaged label.
pub(super) struct Finding<'a> {
    path: &'a str,
    /// The zones that the table has on the device, by their start.
    zones: Vec<PagFormat>,
    damaged: DamagedDataLabel,
}

impl Finding<'_> {
    pub(super) fn problem(&self, why: &str) -> Problem {
        let kind = match self.damaged.has_copy {
            true => ProblemKind::DamagedDataLabelCopy,
            false => ProblemKind::DamagedDataLabel,
        };
        let subject = Subject::Data(self.damaged.id, PagBlock(0));
        Problem { kind, subject, detail: format!("{}{why}", self.damaged.what) }
    }

    fn has(&self, ids: &[PagId]) -> bool {
        self.zones.iter().any(|zone| ids.contains(&zone.id))
    }

    /// Why repair leaves the label as it is, if it does.
    fn obstacle(&self, options: FsckOptions<'_>, left: &[Problem]) -> Option<String> {
        let named = self.has(options.relabel);
        let (id, last) = (self.damaged.id, self.zones.last()?);
        let of_device =
            |it: &Problem| matches!(it.subject, Subject::Data(id, _) if self.has(&[id]));
        if self.damaged.has_copy {
            None
        } else if !named && left.iter().any(of_device) {
            let end = last.blocks;
            Some(format!("; if zone {} has {end} blocks, `--relabel {id}` says so", last.id))
        } else if !named && !self.damaged.has_device_uuid {
            Some(format!("; if it is that of zone {id}, `--relabel {id}` says so"))
        } else if !self.damaged.has_device_size {
            Some("; the device is smaller than the zone".to_owned())
        } else {
            None
        }
    }
}

/// The devices of the named zones that have damaged labels.
pub(super) async fn damaged_labels<'a>(
    env: &Env,
    mfs: &Mfs,
    options: FsckOptions<'a>,
) -> Vec<Finding<'a>> {
    let mut found = Vec::new();
    // The check reports what is wrong with the table.
    let Ok((table, _)) = mfs.run(Cost::READ, |txn| txn.space().pags()).await else { return found };
    let mut seen = BTreeSet::new();
    for place in options.zones {
        let Some(line) = table.iter().find(|line| line.id == place.id) else { continue };
        if !seen.insert((line.device, place.path)) {
            continue;
        }
        let on_device = table.iter().filter(|other| other.device == line.device);
        let mut zones: Vec<PagFormat> = on_device.map(PagState::zone).collect();
        zones.sort_by_key(|zone| zone.start);
        if let Some(damaged) = zones::damaged_label(env, place.path, &zones).await {
            found.push(Finding { path: place.path, zones, damaged });
        }
    }
    found
}

/// Rewrites damaged labels, and reports those that it leaves.
pub(super) async fn repair(env: &Env, mfs: &Mfs, options: FsckOptions<'_>, out: &mut Repaired) {
    let all = damaged_labels(env, mfs, options).await;
    for id in options.relabel {
        if !all.iter().any(|finding| finding.has(&[*id])) {
            out.note(format!(
                "data zone {id}: its label, or that of its file system, is left as it is"
            ));
        }
    }
    for finding in all {
        let why = match finding.obstacle(options, &out.left.problems) {
            Some(why) => Some(why),
            None => {
                let written =
                    zones::relabel(env, finding.path, &mfs.identity(), &finding.zones).await;
                written.err().map(|error| format!("; {error}"))
            }
        };
        let problem = finding.problem(why.as_deref().unwrap_or(""));
        if why.is_none() {
            out.note(format!(
                "data zone {}: the label of {} was written anew",
                finding.damaged.id, finding.path
            ));
        } else {
            out.left.problems.push(problem.clone());
        }
        out.found.push(problem);
    }
}

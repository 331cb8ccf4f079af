//! Labels of data devices that are none any more.
//!
//! Invariants:
//! - what a label is to say is in the table of data zones: where that cannot be read, no label is looked at here;
//! - a label is written only over what is none, on a device that is large enough and that either still has the zone's
//!   UUID there or is named by whoever runs this.

use env::Env;
use types::PagBlock;

use super::{FsckOptions, Problem, ProblemKind, Repaired, Subject};
use crate::mfs::{Cost, Mfs};
use crate::mkfs::PagFormat;
use crate::zones::{self, Marred, ZonePlace};

/// The named zones whose devices have no label.
pub(super) async fn marred<'a>(
    env: &Env,
    mfs: &Mfs,
    options: FsckOptions<'a>,
) -> Vec<((&'a ZonePlace<'a>, PagFormat), Marred)> {
    let mut found = Vec::new();
    // What is wrong with the table is told by the check.
    let Ok((table, _)) = mfs.run(Cost::READ, |txn| txn.pags()).await else { return found };
    for place in options.zones {
        let Some(line) = table.iter().find(|line| line.id == place.id) else { continue };
        let zone = PagFormat { id: line.id, uuid: line.uuid, blocks: line.total + 1 };
        if let Some(marred) = zones::marred(env, place, &zone).await {
            found.push(((place, zone), marred));
        }
    }
    found
}

pub(super) fn subject(marred: &Marred) -> Subject {
    Subject::Data(marred.id, PagBlock(0))
}

/// Writes labels anew, and tells of those that are left.
pub(super) async fn repair(env: &Env, mfs: &Mfs, options: FsckOptions<'_>, out: &mut Repaired) {
    let all = marred(env, mfs, options).await;
    for id in options.relabel {
        if !all.iter().any(|(_, marred)| marred.id == *id) {
            out.note(format!(
                "data zone {id}: its label, or that of its file system, is left as it is"
            ));
        }
    }
    for ((place, zone), marred) in all {
        let (kind, subject) = (ProblemKind::DamagedDataLabel, subject(&marred));
        let meant = marred.ours || options.relabel.contains(&marred.id);
        let why = if !meant {
            format!("; if it is that of zone {}, `--relabel {}` says so", zone.id, zone.id)
        } else if !marred.fits {
            "; the device is smaller than the zone".to_owned()
        } else {
            match zones::relabel(env, place, &mfs.identity(), &zone).await {
                Ok(()) => String::new(),
                Err(error) => format!("; {error}"),
            }
        };
        let problem = Problem { kind, subject, detail: marred.what + &why };
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

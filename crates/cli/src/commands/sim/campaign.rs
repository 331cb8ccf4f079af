//! A campaign: as many seeds as time allows, over several calls.
//!
//! Invariants:
//! - its file holds what all seeds before `next_seed` came to, and is replaced as a whole: a
//!   campaign that is broken off goes on where the file was written last;
//! - all seeds of a campaign are run by the same build and with the same options, unless the caller
//!   wants it otherwise: then the file tells from which seed on which were used.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sim::Report;

use super::batch::Totals;
use crate::exit::Failure;

/// Violations that are kept; all are counted.
const FOUND_MAX: usize = 1000;
/// Of the file.
const VERSION: u32 = 2;

/// What every version of the file has.
#[derive(Deserialize)]
struct Header {
    version: u32,
}

/// What the file holds.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Campaign {
    version: u32,
    /// Who ran the seeds, and how; the last one goes on.
    pub stages: Vec<Stage>,
    /// The seed to go on with.
    pub next_seed: u64,
    /// Sums over all seeds.
    pub totals: Totals,
    /// Violations, the first ones.
    pub found: Vec<Found>,
}

/// What runs the seeds of a campaign from one on.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// The build of Redbud.
    pub build: String,
    /// Options, as a command without a seed of its own.
    pub command: String,
    /// The first seed.
    pub from_seed: u64,
}

impl Stage {
    /// A build and its options, from a seed on.
    pub fn new(build: String, command: String, from_seed: u64) -> Stage {
        Stage { build, command, from_seed }
    }
}

/// A violation.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// What is broken.
    pub invariant: String,
    /// How to repeat it.
    pub command: String,
}

impl Campaign {
    /// The campaign in `path`, or a new one that begins with `stage`. With `changed` one goes on
    /// that another build or other options began.
    ///
    /// # Errors The file cannot be read, is none, or belongs to a campaign of another build or with
    /// other options.
    pub fn open(path: &Path, stage: Stage, changed: bool) -> Result<Campaign, Failure> {
        let failed =
            |text: String| Failure::failed("RB-CAMPAIGN", format!("{}: {text}", path.display()));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Campaign {
                    version: VERSION,
                    next_seed: stage.from_seed,
                    stages: vec![stage],
                    totals: Totals::default(),
                    found: Vec::new(),
                });
            }
            Err(error) => return Err(failed(format!("cannot read it: {error}"))),
        };
        let no_campaign = |error| failed(format!("is no campaign's file: {error}"));
        let header: Header = serde_json::from_str(&text).map_err(no_campaign)?;
        if header.version != VERSION {
            return Err(failed(format!(
                "has version {}, only {VERSION} is known: begin another file",
                header.version
            )));
        }
        let mut known: Campaign = serde_json::from_str(&text).map_err(no_campaign)?;
        let Some(last) = known.stages.last() else { return Err(failed("has no stage".into())) };
        let what = if last.command != stage.command {
            Some(format!("is of a campaign with other options, `{}`", last.command))
        } else if last.build != stage.build {
            let (was, is) = (&last.build, &stage.build);
            Some(format!("is of a campaign of another build, {was}; this is {is}"))
        } else {
            None
        };
        match what {
            None => {}
            Some(_) if changed => {
                let from_seed = known.next_seed;
                known.stages.push(Stage { from_seed, ..stage });
            }
            Some(what) => {
                return Err(failed(format!(
                    "{what}: go on as it began, with --changed, or with another file"
                )));
            }
        }
        Ok(known)
    }

    /// Counts the run of the next seed.
    pub fn add(&mut self, report: &Report) {
        self.totals.add(report);
        self.next_seed = report.plan.seed.wrapping_add(1);
        if let Some(violation) = &report.violation
            && self.found.len() < FOUND_MAX
        {
            let (invariant, command) = (violation.invariant.to_owned(), report.plan.command());
            self.found.push(Found { invariant, command });
        }
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: std::io::Error| {
            Failure::failed("RB-CAMPAIGN", format!("cannot write {}: {error}", path.display()))
        };
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other);
        let fresh = path.with_extension("new");
        fs::write(&fresh, text.map_err(failed)? + "\n").map_err(failed)?;
        fs::rename(&fresh, path).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use sim::Plan;

    use super::*;

    #[test]
    fn campaign_resumes_and_refuses_other_options_and_builds() {
        let dir = std::env::temp_dir().join(format!("redbud-campaign-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("campaign.json");
        let plan = Plan { operations: 20, ..Plan::new(5) };
        let stage = |build: &str, command: &str| Stage::new(build.into(), command.into(), 5);
        let mut campaign = Campaign::open(&path, stage("one", "these"), false).unwrap();
        campaign.add(&sim::run(&plan));
        campaign.save(&path).unwrap();
        let again = Campaign::open(&path, stage("one", "these"), false).unwrap();
        assert_eq!(again, campaign);
        assert_eq!((again.next_seed, again.totals.seeds), (6, 1));
        for (build, command, says) in
            [("one", "others", "other options, `these`"), ("two", "these", "another build, one")]
        {
            let other = Campaign::open(&path, stage(build, command), false).unwrap_err();
            assert!(other.text.contains(says) && other.text.contains("--changed"), "{other}");
            let changed = Campaign::open(&path, stage(build, command), true).unwrap();
            assert_eq!(changed.stages.len(), 2);
            assert_eq!(changed.stages[1], Stage { from_seed: 6, ..stage(build, command) });
        }
        for (text, says) in [("{", "no campaign"), ("{\"version\": 1}", "version 1")] {
            fs::write(&path, text).unwrap();
            let refused = Campaign::open(&path, stage("one", "these"), true).unwrap_err();
            assert!(refused.text.contains(says), "{refused}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}

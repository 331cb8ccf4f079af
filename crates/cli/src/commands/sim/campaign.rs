//! A campaign: as many seeds as time allows, over several calls.
//!
//! Invariants:
//! - its file holds the results of all seeds before `next_seed`, and is replaced atomically: an
//!   interrupted campaign continues from the last write of the file;
//! - all seeds of a campaign have the same build and options, unless the caller allows a change:
//!   then the file records the seed from which each build and options were used.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sim::Report;

use super::batch::Totals;
use crate::exit::Failure;

/// Violations that are kept; all are counted.
const FOUND_MAX: usize = 1000;
/// Version of the file.
const VERSION: u32 = 2;

/// The part that every version of the file has.
#[derive(Deserialize)]
struct Header {
    version: u32,
}

/// The content of the file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Campaign {
    version: u32,
    /// The builds and options that ran the seeds; the last one is current.
    pub stages: Vec<Stage>,
    /// The next seed to run.
    pub next_seed: u64,
    /// Sums over all seeds.
    pub totals: Totals,
    /// Violations, the first ones.
    pub found: Vec<FoundViolation>,
}

/// The build and options that run the seeds of a campaign from one seed on.
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

/// A violation that the campaign found.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FoundViolation {
    /// The violated invariant.
    pub invariant: String,
    /// The command that repeats it.
    pub command: String,
}

impl Campaign {
    /// The campaign in `path`, or a new one that begins with `stage`. With `changed` it continues
    /// a campaign of another build or other options.
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
        let no_campaign = |error| failed(format!("is not a campaign's file: {error}"));
        let header: Header = serde_json::from_str(&text).map_err(no_campaign)?;
        if header.version != VERSION {
            return Err(failed(format!(
                "has version {}, this program reads only {VERSION}: use another file",
                header.version
            )));
        }
        let mut known: Campaign = serde_json::from_str(&text).map_err(no_campaign)?;
        let Some(last) = known.stages.last() else { return Err(failed("has no stage".into())) };
        let what = if last.command != stage.command {
            Some(format!("belongs to a campaign with other options, `{}`", last.command))
        } else if last.build != stage.build {
            let (was, is) = (&last.build, &stage.build);
            Some(format!("belongs to a campaign of another build, {was}; this is {is}"))
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
                    "{what}: continue with the same, use --changed, or use another file"
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
            let (invariant, command) = (violation.invariant.to_string(), report.plan.command());
            self.found.push(FoundViolation { invariant, command });
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
        for (text, says) in [("{", "not a campaign"), ("{\"version\": 1}", "version 1")] {
            fs::write(&path, text).unwrap();
            let refused = Campaign::open(&path, stage("one", "these"), true).unwrap_err();
            assert!(refused.text.contains(says), "{refused}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}

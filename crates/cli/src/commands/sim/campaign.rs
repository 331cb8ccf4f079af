//! A campaign: as many seeds as time allows, over several calls.
//!
//! Invariants:
//! - its file holds what all seeds before `next_seed` came to, and is replaced as a whole: a
//!   campaign that is broken off goes on where the file was written last;
//! - all seeds of a campaign are run with the same options.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sim::{Plan, Report};

use super::batch::Totals;
use crate::exit::Failure;

/// Violations that are kept; all are counted.
const FOUND_MAX: usize = 1000;

/// What the file holds.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Campaign {
    version: u32,
    /// The release that runs it.
    pub release: String,
    /// Options of all seeds, as a command.
    pub command: String,
    /// The seed to go on with.
    pub next_seed: u64,
    /// Sums over all seeds.
    pub totals: Totals,
    /// Violations, the first ones.
    pub found: Vec<Found>,
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
    /// The campaign in `path`, or a new one that begins with `plan`.
    ///
    /// # Errors
    /// The file cannot be read, is none, or belongs to a campaign with other options.
    pub fn open(path: &Path, plan: &Plan, command: String) -> Result<Campaign, Failure> {
        let failed =
            |text: String| Failure::failed("RB-CAMPAIGN", format!("{}: {text}", path.display()));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Campaign {
                    version: 1,
                    release: env!("CARGO_PKG_VERSION").to_owned(),
                    command,
                    next_seed: plan.seed,
                    totals: Totals::default(),
                    found: Vec::new(),
                });
            }
            Err(error) => return Err(failed(format!("cannot read it: {error}"))),
        };
        let known: Campaign = serde_json::from_str(&text)
            .map_err(|error| failed(format!("is no campaign's file: {error}")))?;
        if known.version != 1 {
            return Err(failed(format!("has version {}, only 1 is known", known.version)));
        }
        if known.command != command {
            let text = format!(
                "is of a campaign with other options, `{}`: use those, or another file",
                known.command
            );
            return Err(failed(text));
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
    use super::*;

    #[test]
    fn a_campaign_goes_on_where_it_was_saved_and_refuses_other_options() {
        let dir = std::env::temp_dir().join(format!("redbud-campaign-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("campaign.json");
        let plan = Plan { operations: 20, ..Plan::new(5) };
        let mut campaign = Campaign::open(&path, &plan, "these".into()).unwrap();
        campaign.add(&sim::run(&plan));
        campaign.save(&path).unwrap();
        let again = Campaign::open(&path, &plan, "these".into()).unwrap();
        assert_eq!(again, campaign);
        assert_eq!((again.next_seed, again.totals.seeds), (6, 1));
        let other = Campaign::open(&path, &plan, "others".into()).unwrap_err();
        assert!(other.text.contains("other options"), "{other}");
        fs::write(&path, "{").unwrap();
        assert!(Campaign::open(&path, &plan, "these".into()).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}

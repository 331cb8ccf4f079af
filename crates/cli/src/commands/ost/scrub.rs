//! `redbud ost scrub`: makes the targets of this host read and verify all their content.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::failed;
use crate::address::{OST_PORT, check_address_or};
use crate::args::OstScrubArgs;
use crate::control::{self, Ask};
use crate::exit::{Ended, Failure};
use crate::{admin, output};

/// Pause between two requests for the progress.
const ASK: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct Report {
    version: u32,
    targets: Vec<Value>,
}

/// Starts scrubs and waits for their end; or stops the running ones.
pub fn run(args: &OstScrubArgs) -> Ended {
    let rate = (!args.how.stop).then_some(args.how.rate);
    let only = match &args.address {
        Some(address) => Some(check_address_or(address, OST_PORT).map_err(Failure::usage)?),
        None => None,
    };
    let ask = |socket: PathBuf| control::ask(&socket, Ask::Scrub { rate, only: only.clone() });
    let asked: Vec<_> = admin::target_sockets().into_iter().map(ask).collect();
    // One may just end: what it serves is named below.
    if asked.iter().all(Result::is_err) {
        asked.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    let mut targets = targets(only.as_deref())?;
    while !args.how.background && targets.iter().any(|one| one["scrub"]["state"] == "running") {
        std::thread::sleep(ASK);
        targets = self::targets(only.as_deref())?;
    }
    let sound = |one: &Value| one["scrub"]["state"] == "whole" && one["scrub"]["damaged"] == 0;
    let all_sound = args.how.background || args.how.stop || targets.iter().all(sound);
    output::print_report(args.output, &Report { version: 1, targets }, describe)?;
    Ok(u8::from(!all_sound))
}

/// The targets of this host, or the one at `only`: what each is, and its scrub.
fn targets(only: Option<&str>) -> Result<Vec<Value>, Failure> {
    let mut all = admin::targets_here()?;
    all.retain(|one| only.is_none_or(|only| one["address"] == *only));
    if all.is_empty() {
        let text = "this host serves no target at this address: `redbud ost status` lists them";
        return Err(failed(format!("{}: {text}", only.unwrap_or_default())));
    }
    for one in &mut all {
        if one["state"] == "stopped" {
            let (device, error) = (&one["device"], &one["error"]);
            let text = format!("{device} is not served: {error}").replace('"', "");
            return Err(failed(text));
        }
        let kept = ["target", "address", "fs_name", "scrub"];
        one.as_object_mut().into_iter().for_each(|fields| {
            fields.retain(|key, _| kept.contains(&key.as_str()));
        });
    }
    Ok(all)
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    for target in &report.targets {
        let word = |key: &str| target[key].as_str().unwrap_or_default();
        text += &format!("target {} at {}: ", word("target"), word("address"));
        text += &of_scrub(&target["scrub"]);
    }
    text
}

/// A scrub for people, in lines.
pub fn of_scrub(scrub: &Value) -> String {
    let how = match scrub["state"].as_str() {
        Some("running") => "a scrub runs".to_owned(),
        Some("whole") => format!("scrub complete after {} ms", scrub["took_ms"]),
        Some("broken off") => "the scrub was stopped before its end".to_owned(),
        _ => return "no scrub has run since its start\n".to_owned(),
    };
    let mut text = format!(
        "{how}: {} objects, {} blocks read, {} damaged\n",
        scrub["objects"], scrub["blocks"], scrub["damaged"]
    );
    for finding in scrub["findings"].as_array().into_iter().flatten() {
        text += &format!("  {}\n", finding.as_str().unwrap_or_default());
    }
    if scrub["damaged"] != 0 {
        text += "  restore the files from a backup, or write the blocks again: new bytes go to \
                 other blocks\n";
    }
    text
}

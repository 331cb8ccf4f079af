//! `redbud scrub`: makes the running server read and verify all its metadata blocks.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use proto::mds::Op;
use serde::Serialize;
use serde_json::Value;

use crate::args::ScrubArgs;
use crate::exit::{Ended, Failure};
use crate::source::Source;
use crate::{admin, output, target};

/// Pause between two requests for the progress.
const ASK: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct Report {
    version: u32,
    source: String,
    scrub: Value,
}

/// Starts a scrub and waits for its end; or stops a running one.
pub fn run(args: &ScrubArgs) -> Ended {
    let source = admin::server(&target::source(&args.target)?, args.server.number)?;
    let rate = (!args.how.stop).then_some(args.how.rate);
    admin::ask(&source, Op::Scrub { rate })?;
    let mut state = state(&source)?;
    let terminal = std::io::stderr().is_terminal();
    while !args.how.background && state["state"] == "running" {
        std::thread::sleep(ASK);
        state = self::state(&source)?;
        if terminal {
            let line = format!("\r{} blocks, {} inodes", state["blocks"], state["inodes"]);
            drop(std::io::stderr().write_all(line.as_bytes()));
        }
    }
    if terminal && !args.how.background {
        drop(std::io::stderr().write_all(b"\r\x1b[K"));
    }
    let ended = args.how.background || args.how.stop || state["state"] == "whole";
    let sound = ended && state["findings"] == 0;
    let report = Report { version: 1, source: source.to_string(), scrub: state };
    output::print_report(args.output, &report, describe)?;
    Ok(u8::from(!sound))
}

fn state(source: &Source) -> Result<Value, Failure> {
    let mut server = admin::status(source)?;
    Ok(server["scrub"].take())
}

fn describe(report: &Report) -> String {
    let scrub = &report.scrub;
    let mut text = match scrub["state"].as_str() {
        Some("running") => "a scrub runs: `redbud status` shows its progress\n".to_owned(),
        Some("whole") => format!("complete after {} ms\n", scrub["took_ms"]),
        Some("never") => return "no scrub has run since the server started\n".to_owned(),
        _ => "stopped before its end\n".to_owned(),
    };
    // What a scrub has read right after its start is no result.
    if scrub["state"] == "running" && scrub["findings"] == 0 {
        return text;
    }
    text += &format!(
        "{} blocks and {} inodes are sound, {} damaged blocks rewritten, {} findings\n",
        scrub["blocks"], scrub["inodes"], scrub["written_anew"], scrub["findings"]
    );
    for problem in scrub["problems"].as_array().into_iter().flatten() {
        text += &format!("  {}\n", problem.as_str().unwrap_or_default());
    }
    if scrub["findings"] != 0 {
        text += "stop the server and run `redbud fsck --repair`\n";
    }
    text
}

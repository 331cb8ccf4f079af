//! The scrub of the metadata device ([`engine::scrubber`]). The log has the findings of each scrub,
//! and `redbud status` shows them until the next has ended.

use std::cell::RefCell;

use engine::scrubber::{How, Scrubbing};
use env::Env;
use mfs::scrub::{ScrubOptions, Scrubbed};
use types::Duration;

use crate::runtime::Runtime;

/// Findings and repaired blocks that one scrub logs at most.
const LOGGED_MAX: usize = 100;

impl Scrubbing for Runtime {
    type Found = Scrubbed;

    fn env(&self) -> &Env {
        &self.env
    }

    fn is_stopping(&self) -> bool {
        Runtime::is_stopping(self)
    }

    fn periodic(&self) -> (Duration, u64) {
        (self.config.scrub_interval, self.config.scrub_rate)
    }

    async fn scrub(&self, how: How, found: &RefCell<Scrubbed>) -> bool {
        let options = ScrubOptions { rate: how.rate, unreadable: how.requested };
        let result = self.mfs.scrub(options, found).await;
        self.checked(result, "scrubbing the metadata device").is_some()
    }

    fn ended(&self, found: &Scrubbed, whole: bool) {
        log_findings(self, found, whole);
        self.event_ended();
    }
}

fn log_findings(runtime: &Runtime, found: &Scrubbed, whole: bool) {
    for block in found.rewritten.iter().take(LOGGED_MAX) {
        runtime.log(&format!("scrub: metadata block {block} was damaged and has been rewritten"));
    }
    for problem in found.problems.iter().take(LOGGED_MAX) {
        runtime.log(&format!("scrub: {problem}"));
    }
    let problems = found.problems.len() as u64 + found.omitted;
    if problems > 0 {
        runtime.log(&format!(
            "scrub: {problems} findings; stop the server and run redbud fsck --repair"
        ));
    }
    let end = if whole { "read to the end" } else { "stopped" };
    runtime.log(&format!(
        "scrub: {end}, {} blocks, {} inodes, {} blocks rewritten, {problems} findings",
        found.blocks,
        found.inodes,
        found.rewritten.len()
    ));
}

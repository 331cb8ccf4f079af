//! The scrub of a target's content ([`engine::scrubber`]). The log has the damaged blocks that each
//! scrub finds, and the status shows them until the next has ended.

use std::cell::RefCell;

use engine::scrubber::{How, Running, Scrubber, Scrubbing};
use env::Env;
use types::json::Json;
use types::{Duration, Fault, Instant};

use super::runtime::Runtime;
use crate::store::scrub::{Damaged, Scrubbed};

/// Damaged blocks that one scrub logs at most.
const LOGGED_MAX: usize = 100;
/// Damaged blocks that the status shows; the log has more.
const SHOWN: usize = 20;

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
        match self.store.scrub_into(how.rate, found).await {
            Ok(()) => true,
            Err(fault) => {
                self.log(&format!("scrub: stopped: {fault}: `redbud ost check` says more"));
                false
            }
        }
    }

    fn ended(&self, found: &Scrubbed, whole: bool) {
        for one in found.findings.iter().take(LOGGED_MAX) {
            self.log(&format!("scrub: {}", describe(one)));
        }
        let end = if whole { "read to the end" } else { "stopped" };
        let Scrubbed { objects, blocks, damaged, .. } = found;
        let text = format!("scrub: {end}, {objects} objects, {blocks} blocks, {damaged} damaged");
        self.log(&text);
    }
}

/// A damaged block for people.
pub fn describe(damaged: &Damaged) -> String {
    let Damaged { object, block, fault, .. } = damaged;
    match fault {
        Fault::Corrupt => format!("object {object}: block {block} does not match its checksum"),
        fault => format!("object {object}: block {block} cannot be read: {fault}"),
    }
}

/// The running scrub, else the last one, as JSON.
pub(super) fn add_status(scrubber: &Scrubber<Runtime>, now: Instant, out: &mut Json) {
    out.open('{');
    let millis = |time: Duration| time.as_millis() as u64;
    let found = match (scrubber.running(), scrubber.last()) {
        (Some(Running { how, since, found }), _) => {
            out.text("state", "running");
            out.number("took_ms", since.map_or(0, |since| millis(now.since(since))));
            out.number("rate", how.rate);
            found
        }
        (None, Some(last)) => {
            out.text("state", if last.whole { "whole" } else { "broken off" });
            out.number("took_ms", millis(last.took));
            out.number("ended_ms", millis(now.since(last.at)));
            last.found
        }
        (None, None) => {
            out.text("state", "never");
            Scrubbed::default()
        }
    };
    out.number("objects", found.objects);
    out.number("blocks", found.blocks);
    out.number("damaged", found.damaged);
    out.list("findings", found.findings.iter().take(SHOWN), |out, one| out.string(&describe(one)));
    out.close('}');
}

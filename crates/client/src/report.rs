//! What a client holds and owes, as JSON for people who ask it: `redbud status`, `durable`, `why`.
//!
//! Invariants:
//! - a report changes nothing, and costs only when somebody asks;
//! - times are ages in milliseconds, sizes are bytes.

use proto::mds::Mds;
use session::client::{SessionReport, Unconfirmed};
use types::json::Json;
use types::limits::BLOCK_U64;
use types::{Duration, Ino, Instant};

use crate::api::{DeviceStatus, TargetStatus};
use crate::boundary::{DataHalf, FileContent, Unsaved};
use crate::client::Client;
use crate::core::Core;

/// Most inodes of a report whose content the server does not have: a list of 1.3 MB at most.
const UNSAVED_MAX: usize = 65_536;

/// What of one inode is not durable, as far as this client has changed it.
struct NotDurable {
    content: Unsaved,
    /// Requests that changed it: without an answer, or answered and perhaps not in the server's
    /// flushed log.
    changes: u64,
    since: Option<Instant>,
}

impl Client {
    /// What the client holds and owes.
    pub fn report_json(&self) -> String {
        let core = &self.core;
        let mut out = Json::default();
        out.open('{');
        out.number("client", self.number().0);
        out.text("description", &core.config.description);
        out.flag("read_only", core.config.read_only);
        core.add_owed(&mut out);
        core.add_held(&mut out);
        core.add_commits(&mut out);
        out.list("sessions", core.rpc.all(), |out, session| add_session(out, &session.report()));
        out.list("devices", self.devices(), add_device_and_load);
        out.close('}');
        out.into_text()
    }

    /// What of an inode is not durable; also the attribute `redbud.durable`.
    pub fn durable_json(&self, ino: Ino) -> String {
        let core = &self.core;
        let owed = core.not_durable(ino);
        let content = owed.content;
        let owes = owed.since.is_some() || owed.changes > 0 || content.committing;
        let durable = !owes && !content.lost;
        let mut out = Json::default();
        out.open('{');
        out.flag("durable", durable);
        out.flag("lost", content.lost);
        out.number("dirty_bytes", content.dirty_bytes);
        out.number("in_flight_bytes", content.in_flight_bytes);
        out.number("edits", content.edits as u64);
        out.flag("attributes", content.attributes);
        out.flag("committing", content.committing);
        out.flag("unflushed", content.unflushed);
        out.number("changes", owed.changes);
        out.number("age_ms", age(core.env.now(), owed.since));
        out.close('}');
        out.into_text()
    }
}

impl Core {
    fn add_owed(&self, out: &mut Json) {
        let (data, now) = (self.data(), self.env.now());
        let (waiting, first) = self.waits.count();
        out.key("owes");
        out.open('{');
        out.number("dirty_bytes", data.dirty_bytes());
        out.number("dirty_bytes_max", self.config.dirty_max as u64);
        out.number("writes_in_flight", data.writes_in_flight() as u64);
        add_unsaved(out, data.unsaved(), UNSAVED_MAX);
        out.number("oldest_content_ms", age(now, data.unsaved_since()));
        let (mut changes, mut since) = (0, None::<Instant>);
        for session in self.rpc.all() {
            session.each_unconfirmed(|unconfirmed| {
                changes += 1;
                since = older(since, Some(unconfirmed.sent));
            });
        }
        out.number("changes", changes);
        out.number("oldest_change_ms", age(now, since));
        out.flag("lost_content_unreported", data.has_unreported_loss());
        out.number("waiting", waiting as u64);
        out.number("longest_wait_ms", age(now, first));
        out.close('}');
    }

    fn add_held(&self, out: &mut Json) {
        let data = self.data();
        let (mut leases, mut ranges) = (0, 0);
        self.inodes.each(|inode| {
            leases += u64::from(!inode.lease(|lease| lease.rights()).is_empty());
            let held = inode.data_lease().filter(|data| data.holds_ranges());
            ranges += held.map_or(0, |data| data.ranges().len() as u64);
        });
        let (pool, tainted) = data.pool_blocks();
        out.key("holds");
        out.open('{');
        out.number("leases", leases);
        out.number("ranges", ranges);
        out.number("locks", self.locks.held().len() as u64);
        out.number("pool_bytes", pool * BLOCK_U64);
        out.number("pool_standby_bytes", data.blocks_in_standby() * BLOCK_U64);
        let (grants, with_commits) = data.grants();
        out.number("grants", grants);
        out.number("grants_with_commits", with_commits);
        out.number("window_bytes", data.blocks_in_windows() * BLOCK_U64);
        out.number("pool_returning_bytes", tainted * BLOCK_U64);
        out.number("inodes", self.inodes.len() as u64);
        out.number("names", self.inodes.names() as u64);
        out.number("handles", self.handles.len() as u64);
        out.number("recalls", self.recalls.get());
        out.close('}');
    }

    fn add_commits(&self, out: &mut Json) {
        let counts = self.data().commit_counts();
        out.key("commits");
        out.open('{');
        out.text("mode", if self.config.commit.sync { "sync" } else { "delayed" });
        out.number("requests", counts.requests);
        out.number("files", counts.files);
        out.number("aging", counts.aging as u64);
        out.number("waiting", counts.waiting as u64);
        out.number("ready", counts.ready as u64);
        out.number("sending", counts.sending as u64);
        out.number("tasks", counts.tasks as u64);
        out.number("degree", counts.degree as u64);
        out.close('}');
    }

    fn not_durable(&self, ino: Ino) -> NotDurable {
        let inode = self.inodes.get(ino);
        let data_lease = inode.as_ref().and_then(|inode| inode.data_lease());
        let mut content = data_lease.map(|data| data.file.unsaved()).unwrap_or_default();
        content.lost |= inode.is_some_and(|inode| inode.is_lost());
        let (mut changes, mut since) = (0, content.since);
        for session in self.rpc.all() {
            session.each_unconfirmed(|unconfirmed| {
                if concerns(&unconfirmed, ino) {
                    changes += 1;
                    since = older(since, Some(unconfirmed.sent));
                }
            });
        }
        NotDurable { content, changes, since }
    }
}

/// Does the request change this inode, or a name in this directory?
fn concerns(unconfirmed: &Unconfirmed<'_, Mds>, ino: Ino) -> bool {
    let asked = unconfirmed.ops.iter().map(|op| op.spec());
    let mut asked = asked.filter(|spec| spec.is_change());
    let results = unconfirmed.reply.iter().flat_map(|reply| &reply.results);
    let mut changed = results.flatten().map(|result| result.changed());
    asked.any(|spec| spec.inodes.contains(&Some(ino)))
        || changed.any(|changed| changed.inodes.contains(&Some(ino)))
}

/// Adds how many inodes have content that the server does not have, and their list, of `most`.
fn add_unsaved(out: &mut Json, unsaved: Vec<Ino>, most: usize) {
    out.number("files", unsaved.len() as u64);
    out.flag("unsaved_cut", unsaved.len() > most);
    out.list("unsaved", unsaved.into_iter().take(most), |out, ino| {
        out.raw(&ino.0.to_string());
    });
}

fn older(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

fn age(now: Instant, since: Option<Instant>) -> u64 {
    since.map_or(0, |since| millis(now.since(since)))
}

/// In whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// In whole microseconds; 0 if nothing is known.
fn micros(time: Option<Duration>) -> u64 {
    u64::try_from(time.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

fn add_session(out: &mut Json, report: &SessionReport) {
    out.open('{');
    out.number("server", u64::from(report.server.0));
    out.list("addresses", &report.addresses, |out, address| out.string(address));
    out.text("address", &report.address);
    out.text("phase", report.phase);
    out.flag("refused", report.refused);
    out.number("client", report.client.0);
    out.number("epoch", u64::from(report.epoch.0));
    out.number("down_ms", millis(report.down));
    out.number("silent_ms", millis(report.silent));
    out.number("last_heard_ms", millis(report.last_heard));
    let timing = &report.timing;
    out.number("estimate_us", micros(timing.estimate));
    out.number("time_us", micros(Some(timing.time)));
    out.number("best_round_trip_us", micros(timing.best_round_trip));
    out.number("timeouts", timing.timeouts);
    out.number("false_timeouts", timing.false_timeouts);
    out.number("probes", timing.probes);
    out.number("reconnections", timing.reconnections);
    out.number("lease_ms", millis(report.lease));
    out.number("lease_left_ms", millis(report.lease_left));
    out.number("unanswered", report.unanswered as u64);
    out.number("oldest_unanswered_ms", millis(report.oldest_unanswered));
    out.number("kept", report.kept as u64);
    out.number("oldest_kept_ms", millis(report.oldest_kept));
    out.number("evictions", report.evictions);
    out.close('}');
}

/// Adds a data device as an object.
pub(crate) fn add_device(out: &mut Json, device: &DeviceStatus) {
    out.open('{');
    add_device_state(out, device);
    out.close('}');
}

/// As [`add_device`], with what it was asked to write.
fn add_device_and_load(out: &mut Json, device: DeviceStatus) {
    let load = &device.load;
    out.open('{');
    add_device_state(out, &device);
    out.key("load");
    out.open('{');
    out.number("writes", load.writes);
    out.number("requests", load.requests);
    out.number("bytes", load.bytes);
    out.number("in_flight", load.in_flight);
    out.number("in_flight_max", load.in_flight_max);
    out.number("waiting", load.waiting);
    out.number("waiting_max", load.waiting_max);
    out.list("sizes", &load.sizes, |out, (bytes_max, requests)| {
        out.open('{');
        out.key("bytes_max");
        out.raw(&bytes_max.map_or("null".to_owned(), |bytes| bytes.to_string()));
        out.number("requests", *requests);
        out.close('}');
    });
    out.close('}');
    out.close('}');
}

fn add_device_state(out: &mut Json, device: &DeviceStatus) {
    let DeviceStatus { zone, path, state, since, why, load: _, target } = device;
    out.number("zone", u64::from(zone.0));
    out.text("path", path);
    out.text("state", state);
    out.number("since_ms", millis(*since));
    out.text("why", why);
    if let Some(target) = target {
        add_target(out, target);
    }
}

fn add_target(out: &mut Json, target: &TargetStatus) {
    out.key("target");
    out.open('{');
    out.text("address", &target.address);
    out.flag("connected", target.connected);
    out.flag("refused", target.refused);
    out.number("client", target.client.0);
    out.text("transno", &target.transno.to_string());
    out.text("last_committed", &target.last_committed.to_string());
    out.number("pinned_requests", target.pinned_requests as u64);
    out.number("pinned_bytes", target.pinned_bytes);
    out.number("granted_blocks", target.granted_blocks);
    out.number("taken_blocks", target.taken_blocks);
    out.number("unanswered", target.unanswered as u64);
    out.number("oldest_unanswered_ms", millis(target.oldest_unanswered));
    out.number("down_ms", millis(target.down));
    out.number("evictions", target.evictions);
    out.close('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_unsaved_inodes_says_whether_it_is_whole() {
        let text = |inodes: std::ops::Range<u64>, most| {
            let mut out = Json::default();
            out.open('{');
            add_unsaved(&mut out, inodes.map(Ino).collect(), most);
            out.close('}');
            out.into_text()
        };
        assert_eq!(text(7..10, 3), r#"{"files":3,"unsaved_cut":false,"unsaved":[7,8,9]}"#);
        assert_eq!(text(7..10, 2), r#"{"files":3,"unsaved_cut":true,"unsaved":[7,8]}"#);
        assert_eq!(text(0..0, 2), r#"{"files":0,"unsaved_cut":false,"unsaved":[]}"#);
    }
}

//! What is wrong, why, and what to do: read from the answers of servers and clients.

use serde::Serialize;
use serde_json::Value;
use types::limits::BLOCK_U64;
use types::units::human_size;

use super::text::ago;
use super::{FileSystem, Mount, Report, takeovers};

/// An operation that waits for longer is worth a look.
const LONG_WAIT_MS: u64 = 10_000;
/// A server that owes an answer for longer counts as silent.
const SILENT_MS: u64 = 1_000;
/// Less than one part of so many is free: it gets full.
const SHORT: u64 = 20;

/// Something that is wrong.
#[derive(Serialize)]
pub struct Problem {
    /// Stable.
    pub code: &'static str,
    /// The file system or mount.
    pub place: String,
    /// What is wrong, and why.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// All problems, those of servers first.
pub(super) fn find(report: &Report) -> Vec<Problem> {
    let mut found = Vec::new();
    report.filesystems.iter().for_each(|file_system| of_file_system(&mut found, file_system));
    report.mounts.iter().for_each(|mount| of_mount(&mut found, mount));
    report.targets.iter().for_each(|target| of_target(&mut found, target));
    found
}

fn of_target(found: &mut Vec<Problem>, target: &Value) {
    let damaged = number(&target["scrub"]["damaged"]);
    if damaged > 0 {
        let place = format!("target {} at {}", text(&target["target"]), text(&target["address"]));
        let what = format!("its scrub has found {damaged} damaged blocks of content");
        let remedy = "`redbud ost status` names them; restore the files from a backup, or write the \
                      blocks again";
        Finder { found, place: &place }.add("RB-TARGET-DAMAGED", what, remedy);
    }
}

/// Collects the problems of one place.
pub(super) struct Finder<'a> {
    pub(super) found: &'a mut Vec<Problem>,
    pub(super) place: &'a str,
}

impl Finder<'_> {
    pub(super) fn add(&mut self, code: &'static str, what: String, remedy: impl Into<String>) {
        let place = self.place.to_owned();
        self.found.push(Problem { code, place, what, remedy: remedy.into() });
    }
}

fn of_file_system(found: &mut Vec<Problem>, file_system: &FileSystem) {
    let mut finder = Finder { found, place: &file_system.source };
    takeovers::find(&mut finder, file_system);
    if let Some(error) = &file_system.error {
        if takeovers::nobody_serves(file_system) {
            return;
        }
        let (code, remedy) = of_silence(file_system.code);
        return finder.add(code, error.clone(), remedy);
    }
    let server = &file_system.server;
    if server["state"] == "grace" {
        let what = format!(
            "the server waits for its clients since it started {} ago, and serves nobody else",
            ago(number(&server["uptime_ms"]))
        );
        let lease = ago(number(&server["lease_ms"]));
        finder.add("RB-MDS-GRACE", what, format!("wait: it ends after {lease} at most"));
    }
    of_store(&mut finder, server);
    list(&server["clients"]).for_each(|client| of_client(&mut finder, server, client));
    list(&server["pags"]).for_each(|zone| of_zone(&mut finder, zone));
}

/// Why a server gave no status, and what to do.
fn of_silence(code: Option<&'static str>) -> (&'static str, &'static str) {
    let remedy = match code {
        Some("RB-KEY-REFUSED") => {
            "the server runs and does not accept this host's key: see `redbud key` and the list of \
             keys on the server's host; programs on a mount with this key get errors"
        }
        Some("RB-MDS-REFUSED") => {
            "the server runs and refuses to answer: ask as root, on its host, or with the keys of \
             an administrator"
        }
        Some("RB-CONTROL-REFUSED") => "the server runs on this host: ask as root or as its user",
        Some("RB-CONTROL") => {
            "the server's process on this host does not answer: see whether it is stopped, and its \
             log; programs wait until it goes on"
        }
        _ => {
            "start the server, or look at its host and the network to it; programs wait until it \
             is back, and lose nothing"
        }
    };
    let known = ["RB-KEY-REFUSED", "RB-MDS-REFUSED"].into_iter().find(|known| code == Some(*known));
    let code = match code {
        Some("RB-CONTROL-REFUSED") => "RB-MDS-REFUSED",
        Some("RB-CONTROL") => "RB-MDS-MUTE",
        _ => known.unwrap_or("RB-MDS-UNREACHABLE"),
    };
    (code, remedy)
}

fn of_store(finder: &mut Finder<'_>, server: &Value) {
    let (free, blocks) = (number(&server["metadata_free"]), number(&server["metadata_blocks"]));
    if free < blocks / SHORT {
        let free = human_size(free * BLOCK_U64);
        let what =
            format!("the metadata zone has {free} left of {}", human_size(blocks * BLOCK_U64));
        let remedy = "remove files, or move to a larger device with dump and load";
        finder.add("RB-METADATA-FULL", what, remedy);
    }
    let (used, log) = (number(&server["log_used"]), number(&server["log_bytes"]));
    if used > log - log / SHORT {
        let what = format!("the log is full: {} of {}", human_size(used), human_size(log));
        let remedy = "the metadata device is the bottleneck: give the log a device of its own \
                      (`redbud journal move`), or the metadata a faster one";
        finder.add("RB-LOG-FULL", what, remedy);
    }
    let findings = number(&server["scrub"]["findings"]);
    if findings > 0 {
        let what = format!("the scrub has found damaged metadata ({findings} findings)");
        finder.add("RB-SCRUB-FINDINGS", what, "stop the server and run `redbud fsck --repair`");
    }
}

fn of_client(finder: &mut Finder<'_>, server: &Value, client: &Value) {
    let name = format!("client {} ({})", client["id"], text(&client["description"]));
    let (silent, lease) = (number(&client["silent_ms"]), number(&server["lease_ms"]));
    if client["state"] != "quarantined" && silent > lease * 2 / 3 {
        let what = format!(
            "{name} has not been heard for {}: its process is stopped, or its host or network is \
             in trouble; others wait up to {} for what it holds",
            ago(silent),
            ago(lease)
        );
        let remedy = format!(
            "look at its host; if it is gone for good: redbud client evict {} --yes",
            client["id"]
        );
        finder.add("RB-CLIENT-SILENT", what, remedy);
    }
    if let Some(why) = text(&client["fence"]).strip_prefix("failed: ") {
        let what = format!("{name} was evicted, and no fence has cut its host off: {why}");
        let remedy = "its blocks stay in quarantine until its time is over; try the agent with \
                      `redbud fence test`";
        finder.add("RB-FENCE-FAILED", what, remedy);
    }
    let zones: Vec<String> = list(&client["unreachable"]).map(Value::to_string).collect();
    if !zones.is_empty() {
        let what = format!("{name} cannot use the zones {}", zones.join(", "));
        let remedy = "bring the devices back at their paths on its host; `redbud status` there \
                      names them";
        finder.add("RB-CLIENT-ZONES", what, remedy);
    }
}

fn of_zone(finder: &mut Finder<'_>, zone: &Value) {
    let name = format!("zone {} ({})", zone["id"], text(&zone["path"]));
    if text(&zone["state"]) == "lost" {
        let what = format!("{name} is lost, as the administrator says");
        let remedy = "restore the files that `redbud pag files` names; if the device is there after \
                      all, `redbud pag lost --undo`";
        return finder.add("RB-ZONE-LOST", what, remedy);
    }
    match text(&zone["device"]) {
        "absent" => {
            let since = ago(number(&zone["absent_ms"]));
            let what = format!(
                "the server's host cannot use {name} since {since}: {}",
                text(&zone["why"])
            );
            let remedy = "bring the device back at this path; nothing is to be restarted";
            finder.add("RB-ZONE-ABSENT", what, remedy);
        }
        "suspect" => {
            let what =
                format!("{name} has not answered a flush: no quarantine ends before it does");
            let remedy = "look at the device and the way to it on the server's host";
            finder.add("RB-ZONE-SUSPECT", what, remedy);
        }
        _ => {}
    }
    let (free, blocks) = (number(&zone["free"]), number(&zone["blocks"]));
    if free < blocks / SHORT {
        let free = human_size(free * BLOCK_U64);
        let what = format!("{name} has {free} left of {}", human_size(blocks * BLOCK_U64));
        finder.add("RB-ZONE-FULL", what, "remove files, or add a data zone");
    }
}

fn of_mount(found: &mut Vec<Problem>, mount: &Mount) {
    let mut finder = Finder { found, place: &mount.mount };
    if mount.foreign {
        // Nothing is known of it; `partial` says so.
        return;
    }
    let Some(pid) = mount.pid else {
        let what = "no client process of this user stands behind the mount".to_owned();
        let remedy = format!("redbud umount {}, and mount again", mount.mount);
        return finder.add("RB-MOUNT-DEAD", what, remedy);
    };
    if let Some(error) = &mount.error {
        let what = format!("the client, process {pid}, does not answer: {error}");
        let remedy = format!("see whether it is stopped (kill -CONT {pid}), and its log");
        return finder.add("RB-MOUNT-MUTE", what, remedy);
    }
    list(&mount.client["sessions"]).for_each(|session| of_session(&mut finder, session));
    list(&mount.client["devices"]).for_each(|device| of_device(&mut finder, device));
    let owes = &mount.client["owes"];
    let (waiting, longest) = (number(&owes["waiting"]), number(&owes["longest_wait_ms"]));
    if longest > LONG_WAIT_MS {
        let what = format!("{waiting} operations wait, one since {}", ago(longest));
        let remedy = format!("redbud why {} names what each waits for", mount.mount);
        finder.add("RB-WAIT-LONG", what, remedy);
    }
    if owes["lost_content_unreported"] == true {
        let what = "written content is lost, and no program has heard of it".to_owned();
        let log = mount.log.clone().unwrap_or_else(|| "the client's log".into());
        finder.add("RB-CONTENT-LOST", what, format!("{log} names the files: write them again"));
    }
}

fn of_session(finder: &mut Finder<'_>, session: &Value) {
    let server = text(&session["address"]);
    let server = if server.is_empty() { text(&session["addresses"][0]) } else { server };
    if session["refused"] == true {
        let what =
            format!("the metadata server {server} refuses this client's key: programs get EPERM");
        let remedy = "see the list of keys on the server's host: `redbud key allow`; nothing is to \
                      be mounted again";
        return finder.add("RB-KEY-REFUSED", what, remedy);
    }
    match text(&session["phase"]) {
        "down" => {
            let what = format!(
                "no connection with the metadata server {server} since {}",
                ago(number(&session["down_ms"]))
            );
            let remedy = "start the server, or look at its host and the network to it; programs \
                          wait until it is back, and lose nothing";
            finder.add("RB-SESSION-DOWN", what, remedy);
        }
        "recovering" => {
            let what = format!("the metadata server {server} has restarted, and recovers");
            finder.add("RB-SESSION-RECOVERING", what, "wait: it takes a lease at most");
        }
        "up" if number(&session["silent_ms"]) > SILENT_MS => {
            let since = ago(number(&session["silent_ms"]));
            let what = format!("the metadata server {server} has not answered for {since}");
            let remedy = "see whether its process is stopped, and the network to it";
            finder.add("RB-SESSION-SILENT", what, remedy);
        }
        _ => {}
    }
}

fn of_device(finder: &mut Finder<'_>, device: &Value) {
    let name = format!("zone {} ({})", device["zone"], text(&device["path"]));
    let since = ago(number(&device["since_ms"]));
    if device["target"]["refused"] == true {
        let what = format!("the target {name} refuses this client's key: what lies there fails");
        let remedy = "see the list of keys on the target's host: `redbud key allow`; nothing is to \
                      be mounted again";
        return finder.add("RB-KEY-REFUSED", what, remedy);
    }
    match text(&device["state"]) {
        "away" => {
            let why = match text(&device["why"]) {
                "" => format!("no connection since {since}"),
                why => why.to_owned(),
            };
            let what = format!("the target {name} is away: {why}; what lies there waits");
            let remedy = "start the target, or look at its host and the network to it; programs \
                          wait until it is back, and lose nothing";
            finder.add("RB-TARGET-AWAY", what, remedy);
        }
        "absent" => {
            let what = format!(
                "this host cannot use {name} since {since}: {}; what lies on it fails with EIO",
                text(&device["why"])
            );
            let remedy = "bring the device back at this path; nothing is to be restarted";
            finder.add("RB-DEVICE-ABSENT", what, remedy);
        }
        "silent" if !device["target"].is_null() => {
            let what =
                format!("the target {name} owes answers since {since}; what lies there waits");
            let remedy = "after a restart it waits for its clients, for a lease at most: `redbud ost \
                          status` on its host says so; else look at its device and the network";
            finder.add("RB-TARGET-SILENT", what, remedy);
        }
        "silent" => {
            let what = format!("{name} owes answers since {since}; what lies on it waits");
            finder.add("RB-DEVICE-SILENT", what, "look at the device and the way to it");
        }
        "failing" => {
            let what = format!("{name} has failed to write or to flush; new files go to others");
            finder.add("RB-DEVICE-FAILING", what, "look at the kernel's log, and the client's");
        }
        _ => {}
    }
}

/// The items of a list; none if it is none.
pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A number; 0 if it is none.
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// A text; empty if it is none.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mount(client: Value) -> Mount {
        Mount {
            mount: "/mnt".into(),
            source: "127.0.0.1:1:/a".into(),
            pid: Some(1),
            log: None,
            client,
            error: None,
            foreign: false,
        }
    }

    fn codes(mount: &Mount) -> Vec<&'static str> {
        let mut found = Vec::new();
        of_mount(&mut found, mount);
        found.iter().map(|problem| problem.code).collect()
    }

    #[test]
    fn damage_that_a_scrub_of_a_target_has_found_is_a_problem() {
        let target = |damaged: u64| json!({"target": "t", "address": "h:1", "scrub": {"state": "whole", "damaged": damaged}});
        let mut found = Vec::new();
        of_target(&mut found, &target(0));
        assert!(found.is_empty());
        of_target(&mut found, &target(2));
        assert_eq!(
            (found[0].code, found[0].place.as_str()),
            ("RB-TARGET-DAMAGED", "target t at h:1")
        );
    }

    #[test]
    fn refusals_have_codes_of_their_own() {
        let down = |refused| json!({"sessions": [{"phase": "down", "refused": refused}]});
        assert_eq!(codes(&mount(down(false))), ["RB-SESSION-DOWN"]);
        assert_eq!(codes(&mount(down(true))), ["RB-KEY-REFUSED"]);
        let gone = |foreign| Mount { pid: None, foreign, ..mount(Value::Null) };
        assert_eq!(codes(&gone(false)), ["RB-MOUNT-DEAD"]);
        assert!(codes(&gone(true)).is_empty(), "nobody knows");
        for (code, shown) in [
            ("RB-KEY-REFUSED", "RB-KEY-REFUSED"),
            ("RB-MDS-REFUSED", "RB-MDS-REFUSED"),
            ("RB-CONTROL-REFUSED", "RB-MDS-REFUSED"),
            ("RB-CONTROL", "RB-MDS-MUTE"),
            ("RB-MDS-UNREACHABLE", "RB-MDS-UNREACHABLE"),
        ] {
            let (found, remedy) = of_silence(Some(code));
            assert_eq!(found, shown);
            assert_eq!(remedy.contains("lose nothing"), shown == "RB-MDS-UNREACHABLE", "{code}");
        }
    }
}

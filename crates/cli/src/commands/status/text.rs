//! The status for people, on one screen.

use bench::report::Columns;
use serde_json::Value;
use types::limits::BLOCK_U64;
use types::units::human_size;

use super::problems::{list, number, text};
use super::{FileSystem, Mount, Report, takeovers};
use crate::commands::client;

/// Rows of a table; `--json` has all.
const ROWS_MAX: usize = 20;

/// All of it.
pub(super) fn describe(report: &Report) -> String {
    if report.filesystems.is_empty() && report.mounts.is_empty() {
        return "no Redbud file system is mounted or served on this host\n".into();
    }
    let mut out = String::new();
    for problem in &report.problems {
        out += &format!("! {}: {} [{}]\n", problem.place, problem.what, problem.code);
        out += &format!("  -> {}\n", problem.remedy);
    }
    if report.problems.is_empty() {
        out += "no problem is known\n";
    }
    if report.partial {
        out += "partial: not everything that may be wrong is visible to this user or node\n";
    }
    report.filesystems.iter().for_each(|file_system| add_file_system(&mut out, file_system));
    report.mounts.iter().for_each(|mount| add_mount(&mut out, mount));
    out
}

fn add_file_system(out: &mut String, file_system: &FileSystem) {
    let server = &file_system.server;
    let which = file_system.number.map_or_else(String::new, |number| format!(", server {number}"));
    *out += &format!("\nfile system {}{which}\n", file_system.source);
    if let Some(error) = &file_system.error {
        let code = file_system.code.unwrap_or_default();
        *out += &format!("  server    {error} [{code}]\n");
        return takeovers::add(out, file_system);
    }
    *out += &format!(
        "  server    {} at {} for {}, epoch {}, lease {}\n",
        text(&server["state"]),
        text(&server["address"]),
        ago(number(&server["uptime_ms"])),
        server["epoch"],
        ago(number(&server["lease_ms"])),
    );
    *out += &format!(
        "  state     {} leases, {} locks, {} gates, {} requests answered; {} orphans, {} being \
         freed\n",
        server["leases"],
        server["locks"],
        server["gates"],
        server["requests"],
        server["orphans"],
        server["freeing"],
    );
    let blocks = |key: &str| human_size(number(&server[key]) * BLOCK_U64);
    *out += &format!(
        "  metadata  {} free of {}, {} dirty; features: {}\n",
        blocks("metadata_free"),
        blocks("metadata_blocks"),
        blocks("dirty_blocks"),
        text(&server["features"]),
    );
    *out += &format!(
        "  log       {} of {} in use, durable up to {}\n",
        human_size(number(&server["log_used"])),
        human_size(number(&server["log_bytes"])),
        text(&server["last_committed"]),
    );
    *out += &format!("  scrub     {}\n", scrub(&server["scrub"]));
    takeovers::add(out, file_system);
    add_security(out, server);
    add_clients(out, server);
    add_zones(out, server);
}

/// Adds what sessions have to prove, what that does not stop, and who was refused.
fn add_security(out: &mut String, server: &Value) {
    let security = text(&server["security"]);
    let warning = match security {
        "none" => ": nothing is protected; who reaches the port can do everything",
        "greeting" => {
            ": keys are proved, frames are clear: an active attacker can read and change them"
        }
        _ => "",
    };
    *out += &format!("  security  {security}{warning}\n");
    let door = server["door"].as_object().into_iter().flatten();
    let refused = door.filter(|(name, count)| {
        !["by_key", "local", "half_open"].contains(&name.as_str()) && number(count) > 0
    });
    let refused: Vec<String> =
        refused.map(|(name, count)| format!("{count} {}", name.replace('_', " "))).collect();
    let refused = if refused.is_empty() { "none".to_owned() } else { refused.join(", ") };
    let door = &server["door"];
    *out += &format!(
        "  door      {} let in by key, {} local; refused: {refused}\n",
        number(&door["by_key"]),
        number(&door["local"]),
    );
}

fn scrub(scrub: &Value) -> String {
    match text(&scrub["state"]) {
        "never" => "none since the server's start".into(),
        "running" => format!("runs for {}", ago(number(&scrub["took_ms"]))),
        state => format!(
            "{state}, {} ago, {} findings",
            ago(number(&scrub["ended_ms"])),
            scrub["findings"]
        ),
    }
}

/// Adds a table, indented, with no more than [`ROWS_MAX`] rows.
fn add_table(out: &mut String, title: &str, table: &Columns, rows: usize) {
    *out += &format!("  {title}\n");
    for line in table.text().lines().take(ROWS_MAX + 1) {
        *out += &format!("    {line}\n");
    }
    if rows > ROWS_MAX {
        *out += &format!("    … and {} more: --json has all\n", rows - ROWS_MAX);
    }
}

fn add_clients(out: &mut String, server: &Value) {
    let mut clients: Vec<&Value> = list(&server["clients"]).collect();
    clients.sort_by_key(|client| std::cmp::Reverse(number(&client["silent_ms"])));
    let table = client::table(clients.iter().copied());
    let partial = match server["partial"] == true {
        true => " of this node; those of others are shown to administrators only",
        false => "",
    };
    add_table(out, &format!("clients   {}{partial}", clients.len()), &table, clients.len());
}

fn add_zones(out: &mut String, server: &Value) {
    let zones: Vec<&Value> = list(&server["pags"]).collect();
    let mut table = Columns::new(&["zone", "state", "size", "free", "slice", "device"]);
    for zone in &zones {
        let of_device: Vec<&&Value> =
            zones.iter().filter(|other| other["path"] == zone["path"]).collect();
        let nth = of_device.iter().position(|other| other["id"] == zone["id"]).unwrap_or(0);
        table.row(vec![
            zone["id"].to_string(),
            match text(&zone["state"]) {
                state @ ("draining" | "lost") => state.to_owned(),
                _ => text(&zone["device"]).to_owned(),
            },
            human_size(number(&zone["blocks"]) * BLOCK_U64),
            human_size(number(&zone["free"]) * BLOCK_U64),
            format!("{} of {}", nth + 1, of_device.len()),
            text(&zone["path"]).to_owned(),
        ]);
    }
    add_table(out, &format!("zones     {}", zones.len()), &table, zones.len());
}

fn add_mount(out: &mut String, mount: &Mount) {
    let process = match mount.pid {
        Some(pid) => format!("process {pid}"),
        None if mount.foreign => "whose client is another user's and was not asked".to_owned(),
        None => "no process".to_owned(),
    };
    *out += &format!("\nmount {} of {}, {process}\n", mount.mount, mount.source);
    if !mount.client.is_null() {
        add_client(out, &mount.client);
    }
}

/// Adds what a client says that it holds and owes.
pub fn add_client(out: &mut String, client: &Value) {
    let (owes, holds) = (&client["owes"], &client["holds"]);
    *out += &format!(
        "  owes      {} dirty of {} in {} files, the oldest {}; {} changes, the oldest {}\n",
        human_size(number(&owes["dirty_bytes"])),
        human_size(number(&owes["dirty_bytes_max"])),
        owes["files"],
        ago(number(&owes["oldest_content_ms"])),
        owes["changes"],
        ago(number(&owes["oldest_change_ms"])),
    );
    *out += &format!(
        "  holds     {} leases, {} ranges, {} locks, {} open; pool {} ({} standby, {} of {} grants \
         with commits), {} to return; {} inodes, {} names\n",
        holds["leases"],
        holds["ranges"],
        holds["locks"],
        holds["handles"],
        human_size(number(&holds["pool_bytes"])),
        human_size(number(&holds["pool_standby_bytes"])),
        holds["grants_with_commits"],
        holds["grants"],
        human_size(number(&holds["pool_returning_bytes"])),
        holds["inodes"],
        holds["names"],
    );
    let commits = &client["commits"];
    *out += &format!(
        "  commits   {} files in {} requests; {} too young, {} waiting for a batch, {} stable; {} of {} \
         tasks, degree {}\n",
        commits["files"],
        commits["requests"],
        commits["aging"],
        commits["waiting"],
        commits["ready"],
        commits["sending"],
        commits["tasks"],
        commits["degree"],
    );
    if number(&owes["waiting"]) > 0 {
        let longest = ago(number(&owes["longest_wait_ms"]));
        *out += &format!("  waits     {} operations, one for {longest}\n", owes["waiting"]);
    }
    list(&client["sessions"]).for_each(|session| add_session(out, session));
    let devices: Vec<&Value> = list(&client["devices"]).collect();
    let states: Vec<String> = devices
        .iter()
        .take(ROWS_MAX)
        .map(|device| format!("zone {} {}", device["zone"], text(&device["state"])))
        .collect();
    *out += &format!("  devices   {}\n", states.join(", "));
    for device in devices.into_iter().take(ROWS_MAX) {
        add_load(out, device);
        add_target(out, device);
    }
}

/// Adds what the client owes to a target, and the target to the client.
fn add_target(out: &mut String, device: &Value) {
    let target = &device["target"];
    if target.is_null() {
        return;
    }
    *out += &format!(
        "  target    zone {} ({}) as client {}: transno {}, durable up to {}; {} pinned by {} \
         requests; {} unanswered, the oldest {}\n",
        device["zone"],
        text(&target["address"]),
        target["client"],
        text(&target["transno"]),
        text(&target["last_committed"]),
        human_size(number(&target["pinned_bytes"])),
        target["pinned_requests"],
        target["unanswered"],
        ago(number(&target["oldest_unanswered_ms"])),
    );
}

/// Adds what a device was asked to write, if that is anything.
fn add_load(out: &mut String, device: &Value) {
    let load = &device["load"];
    let of = |key: &str| number(&load[key]);
    let (writes, requests) = (of("writes"), of("requests"));
    if requests == 0 && of("waiting") == 0 {
        return;
    }
    let sent = requests.max(1);
    *out += &format!(
        "  writes    zone {}: {writes} in {requests} requests, {}.{} each, of {} on average; \
         {} in flight, {} at most; {} wait, {} at most\n",
        device["zone"],
        writes / sent,
        writes * 10 / sent % 10,
        human_size(of("bytes") / sent),
        of("in_flight"),
        of("in_flight_max"),
        of("waiting"),
        of("waiting_max"),
    );
}

fn add_session(out: &mut String, session: &Value) {
    let address = match text(&session["address"]) {
        "" => text(&session["addresses"][0]),
        address => address,
    };
    *out += &format!(
        "  session   {} with server {} ({address}) as client {}; heard {} ago, lease {} of {} left; \
         {} unanswered, the oldest {}; {} kept for replay\n",
        text(&session["phase"]),
        session["server"],
        session["client"],
        ago(number(&session["last_heard_ms"])),
        ago(number(&session["lease_left_ms"])),
        ago(number(&session["lease_ms"])),
        session["unanswered"],
        ago(number(&session["oldest_unanswered_ms"])),
        session["kept"],
    );
    *out += &format!(
        "            best round trip {} us, estimated service time {} us; doubted after {} ms: {} times, \
         {} of them in vain; {} reconnections\n",
        session["best_round_trip_us"],
        session["estimate_us"],
        number(&session["time_us"]) / 1000,
        session["timeouts"],
        session["false_timeouts"],
        session["reconnections"],
    );
}

/// A time in milliseconds for people: "0.4 s", "12 s", "3 min", "5 h", "2 d".
pub fn ago(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..10 => format!("{seconds}.{} s", millis % 1000 / 100),
        10..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{add_load, add_security, ago};

    #[test]
    fn times_have_units() {
        for (millis, text) in [
            (0, "0.0 s"),
            (1_499, "1.4 s"),
            (10_000, "10 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (7_200_000, "2 h"),
            (200_000_000, "2 d"),
        ] {
            assert_eq!(ago(millis), text);
        }
    }

    #[test]
    fn load_of_a_device_is_shown_once_it_has_any() {
        let said = |writes: u64, requests: u64, waiting: u64| {
            let load = json!({
                "writes": writes, "requests": requests, "bytes": 64 * 4096, "in_flight": 3,
                "in_flight_max": 32, "waiting": waiting, "waiting_max": 80,
            });
            let mut out = String::new();
            add_load(&mut out, &json!({"zone": 2, "load": load}));
            out
        };
        assert_eq!(said(0, 0, 0), "");
        let text = said(19, 8, 5);
        let expected = "zone 2: 19 in 8 requests, 2.3 each, of 32K on average; 3 in flight, 32 at \
                        most; 5 wait, 80 at most\n";
        assert!(text.ends_with(expected), "{text}");
        assert!(said(0, 0, 1).contains("0 in 0 requests, 0.0 each"));
    }

    #[test]
    fn weak_security_and_refusals_are_named() {
        let said = |security: &str, unknown: u64| {
            let door = json!({"by_key": 3, "local": 1, "unknown_key": unknown});
            let mut out = String::new();
            add_security(&mut out, &json!({"security": security, "door": door}));
            out
        };
        assert!(said("none", 0).contains("nothing is protected"));
        assert!(said("greeting", 0).contains("active attacker"));
        let text = said("encrypted", 2);
        assert!(text.contains("security  encrypted\n"), "{text}");
        assert!(text.contains("3 let in by key, 1 local; refused: 2 unknown key\n"), "{text}");
        assert!(said("encrypted", 0).contains("refused: none"));
    }
}

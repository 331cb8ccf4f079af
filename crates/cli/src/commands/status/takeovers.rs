//! Servers that stand by, and the history of takeovers.

use serde_json::Value;

use super::FileSystem;
use super::problems::{Finder, list, number, text};
use crate::log::rfc3339;

/// Takeovers that are shown; `--json` has all that are recorded.
const SHOWN: usize = 8;

/// The membership, as the server says, or else one that stands by.
fn membership(file_system: &FileSystem) -> &Value {
    match &file_system.server["membership"] {
        Value::Null => file_system.standbys.first().map_or(&Value::Null, |one| &one["membership"]),
        own => own,
    }
}

fn place(member: &Value) -> String {
    format!(
        "{} (host {}, process {})",
        text(&member["address"]),
        text(&member["host"]),
        member["pid"]
    )
}

/// A process: its host, its number there.
type Process = (String, u64);

/// The process that owns the metadata.
fn process(file_system: &FileSystem) -> Option<Process> {
    let owner = &membership(file_system)["owner"];
    let member = &owner["member"];
    let pid = member["pid"].as_u64().filter(|_| owner["released"].is_null())?;
    Some((text(&member["host"]).to_owned(), pid))
}

/// Notes which servers are one process.
pub(super) fn note_neighbours(file_systems: &mut [FileSystem]) {
    let owners: Vec<(Option<u16>, Option<Process>)> =
        file_systems.iter().map(|one| (one.number, process(one))).collect();
    for (file_system, (number, own)) in file_systems.iter_mut().zip(&owners) {
        let same = owners.iter().filter(|(other, owner)| other != number && owner == own);
        file_system.also = same.filter_map(|(other, _)| own.as_ref().and(*other)).collect();
    }
}

/// Adds who owns the metadata, who stands by, and the newest takeovers.
pub fn add(out: &mut String, file_system: &FileSystem) {
    let membership = membership(file_system);
    if membership.is_null() {
        return;
    }
    let owner = &membership["owner"];
    let owner_text = match (owner.is_null(), owner["released"].as_str()) {
        (true, _) => "nobody".to_owned(),
        (false, Some(why)) => format!("nobody; {} did last: {why}", place(&owner["member"])),
        (false, None) => place(&owner["member"]),
    };
    *out += &format!(
        "  owner     {owner_text}, epoch {}; {}\n",
        owner["epoch"],
        text(&membership["name"])
    );
    if !file_system.also.is_empty() {
        let others: Vec<String> = file_system.also.iter().map(u16::to_string).collect();
        *out += &format!("            this process is server {}, too\n", others.join(", "));
    }
    let standbys: Vec<String> = list(&membership["standbys"]).map(place).collect();
    let standbys = if standbys.is_empty() { "none".to_owned() } else { standbys.join(", ") };
    *out += &format!("  standby   {standbys}\n");
    for standby in &file_system.standbys {
        *out +=
            &format!("            {}: {}\n", text(&standby["address"]), text(&standby["waits"]));
    }
    let history: Vec<&Value> = list(&membership["history"]).collect();
    *out += &format!("  takeovers {}\n", history.len());
    for one in history.iter().rev().take(SHOWN) {
        let at = number(&one["at_ms"]);
        let took = match number(&one["took_ms"]) {
            0 => "not served so far".to_owned(),
            millis => format!("served after {millis} ms"),
        };
        *out += &format!(
            "            {}  epoch {}  {}  {took}: {}\n",
            rfc3339(at / 1000, (at % 1000) as u32),
            one["epoch"],
            text(&one["member"]["address"]),
            text(&one["reason"]),
        );
    }
}

/// Does no server serve, as all say that stand by here?
pub(super) fn nobody_serves(file_system: &FileSystem) -> bool {
    let mut standbys = file_system.standbys.iter().peekable();
    file_system.error.is_some()
        && standbys.peek().is_some()
        && standbys.all(|standby| standby["odd"] == true)
}

/// Adds the problems of the owner and of the standbys.
pub(super) fn find(finder: &mut Finder<'_>, file_system: &FileSystem) {
    for standby in file_system.standbys.iter().filter(|standby| standby["odd"] == true) {
        let (address, waits) = (text(&standby["address"]), text(&standby["waits"]));
        let what = format!("the server that stands by at {address} does not take over: {waits}");
        let membership = &standby["membership"];
        let owner = &membership["owner"]["member"];
        match (&membership["trouble"], &owner["pid"]) {
            (Value::Null, Value::Number(pid)) => {
                let remedy = format!(
                    "if the owner is stopped, continue it on its host {} (kill -CONT {pid}), or \
                     end it (kill -KILL {pid}), or its host, and the other one takes over",
                    text(&owner["host"])
                );
                finder.add("RB-MDS-NO-PROOF", what, remedy);
            }
            _ => {
                let remedy = "if its text names damage, do what it says; else start the servers \
                              that keep the membership, or look at the network to them; programs \
                              wait, and lose nothing";
                finder.add("RB-MEMBERSHIP", what, remedy);
            }
        }
    }
    if nobody_serves(file_system) {
        let what = format!("no server serves; {} stand by here", file_system.standbys.len());
        let remedy = "a server takes over when it has what it waits for; programs wait, and lose \
                      nothing";
        finder.add("RB-MDS-NONE", what, remedy);
    }
    let membership = membership(file_system);
    let alone = !membership.is_null() && list(&membership["standbys"]).next().is_none();
    if alone && file_system.error.is_none() {
        finder.add(
            "RB-MDS-NO-STANDBY",
            "no server stands by: if the one that serves dies, nobody takes over".into(),
            "start one with `redbud mds --standby`, or wait if one starts just now",
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file_system(waits: &str, odd: bool) -> FileSystem {
        let member = json!({"host": "h", "pid": 7, "nonce": 1, "address": "a:1"});
        let history = json!([{"epoch": 4, "member": member, "at_ms": 1000, "reason": "the first",
            "opened": 4, "took_ms": 250}]);
        let owner = json!({"epoch": 4, "member": member, "since_ms": 1, "released": null});
        let other = json!({"host": "h", "pid": 8, "nonce": 2, "address": "b:1"});
        let membership = json!({"name": "the lock x", "owner": owner, "standbys": [other],
            "history": history});
        let standby = json!({"address": "b:1", "waits": waits, "odd": odd,
            "membership": membership});
        FileSystem {
            source: "a:1,b:1:/t".into(),
            number: None,
            server: json!({"membership": membership}),
            error: None,
            code: None,
            standbys: vec![standby],
            also: Vec::new(),
        }
    }

    #[test]
    fn servers_of_one_process_are_named() {
        let server = |number| FileSystem { number: Some(number), ..file_system("", false) };
        let mut systems = [server(0), server(1), server(2)];
        systems[2].server["membership"]["owner"]["member"]["pid"] = json!(8);
        note_neighbours(&mut systems);
        assert_eq!(systems.each_ref().map(|one| one.also.clone()), [vec![1], vec![0], vec![]]);
        let mut out = String::new();
        add(&mut out, &systems[0]);
        assert!(out.contains("            this process is server 1, too\n"), "{out}");
    }

    #[test]
    fn history_and_missing_proof_are_shown() {
        let (quiet, odd) = (file_system("the owner lives", false), file_system("stopped", true));
        let mut out = String::new();
        add(&mut out, &quiet);
        assert!(out.contains("owner     a:1 (host h, process 7), epoch 4; the lock x\n"), "{out}");
        assert!(out.contains("standby   b:1 (host h, process 8)\n"), "{out}");
        assert!(out.contains("epoch 4  a:1  served after 250 ms: the first\n"), "{out}");
        let problems = |one: &FileSystem| {
            let mut found = Vec::new();
            find(&mut Finder { found: &mut found, place: "x" }, one);
            found.into_iter().map(|problem| problem.code).collect::<Vec<_>>()
        };
        assert!(problems(&quiet).is_empty());
        assert_eq!(problems(&odd), ["RB-MDS-NO-PROOF"]);
        let mut away = file_system("etcd does not answer", true);
        away.standbys[0]["membership"] = json!({"owner": null, "trouble": "no answer"});
        (away.server, away.error) = (Value::Null, Some("refused".into()));
        assert_eq!(problems(&away), ["RB-MEMBERSHIP", "RB-MDS-NONE"]);
        let mut alone = file_system("", false);
        alone.server["membership"]["standbys"] = json!([]);
        assert_eq!(problems(&alone), ["RB-MDS-NO-STANDBY"]);
    }
}

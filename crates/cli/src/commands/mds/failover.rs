//! `redbud mds failover`: hands the metadata over to a server that stands by.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use crate::args::FailoverArgs;
use crate::control::{self, Ask};
use crate::exit::{Ended, Failure, Status};
use crate::registry::Registration;
use crate::{admin, output, target};

/// How long the next server may take to serve.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Serialize)]
struct Report {
    version: u32,
    from: String,
    to: String,
    epoch: u64,
    took_ms: u64,
}

/// Asks the server that serves, and waits until another one does.
pub fn run(args: &FailoverArgs) -> Ended {
    let source = target::source(&args.target)?;
    let number = args.server.number;
    let servers = admin::servers_here(&source);
    let serving: Vec<(&Registration, Value)> =
        servers.iter().filter_map(|one| Some((one, status_of(one)?))).collect();
    let several = serving.iter().find_map(|(_, status)| last_server(status));
    if let Some(last) = several.filter(|last| number.is_none_or(|number| number > *last)) {
        let text = format!("{source} has several metadata servers");
        return Err(Failure::usage(format!("{text}: name one with --server 0 to --server {last}")));
    }
    // The only server has no number.
    let number = several.and(number);
    let is_asked = |(_, status): &(&Registration, Value)| admin::is_of(status, number);
    let Some((server, status)) = serving.into_iter().find(is_asked) else {
        let text = format!(
            "{source}: no server on this host serves it and can be asked: ask on the host of the \
             server, as root or as its user"
        );
        return Err(Failure::new(Status::Unreachable, "RB-MDS-UNREACHABLE", text));
    };
    let (from, epoch) = (text(&status["address"]), status["epoch"].as_u64().unwrap_or(0));
    let begun = Instant::now();
    if let Some(socket) = &server.socket {
        control::ask_server(socket, Ask::Failover)?;
    }
    while begun.elapsed() < PATIENCE {
        let after =
            admin::servers_here(&source).iter().find_map(|one| served_after(one, (number, epoch)));
        if let Some((to, epoch)) = after {
            if to == from {
                let text = format!("no other server has claimed the metadata: {from} serves again");
                return Err(Failure::failed("RB-MDS-FAILOVER", text));
            }
            let report =
                Report { version: 1, from, to, epoch, took_ms: begun.elapsed().as_millis() as u64 };
            output::print_report(args.output, &report, |report| {
                format!(
                    "{} serves with epoch {}, after {} ms; {} stands by\n",
                    report.to, report.epoch, report.took_ms, report.from
                )
            })?;
            return Ok(0);
        }
        std::thread::sleep(PAUSE);
    }
    let text = format!(
        "{from} gives the metadata up, and no other server serves them yet: see `redbud status` on \
         the hosts of the servers"
    );
    Err(Failure::new(Status::Timeout, "RB-MDS-FAILOVER", text))
}

/// The server that has begun to serve with an epoch above `epoch`, and its epoch, as a server of
/// this host says: itself, or one that stands by and sees another host's in the membership.
fn served_after(
    server: &Registration,
    (number, epoch): (Option<u16>, u64),
) -> Option<(String, u64)> {
    let mut status = admin::status_of(server).ok()?;
    let (address, served) = if admin::stands_by(&status) {
        status = admin::standing_for(&status, number)?;
        let newest = status["membership"]["history"].as_array()?.last()?;
        // It is set when the server that has claimed serves.
        newest["opened"].as_u64().filter(|opened| *opened > 0)?;
        (&newest["member"]["address"], &newest["epoch"])
    } else if admin::is_of(&status, number) {
        (&status["address"], &status["epoch"])
    } else {
        return None;
    };
    served.as_u64().filter(|served| *served > epoch).map(|served| (text(address), served))
}

/// The number of the last server, if the one with this status is one of several.
fn last_server(status: &Value) -> Option<u16> {
    let servers = status["servers"].as_array().filter(|all| !all.is_empty())?;
    u16::try_from(servers.len() - 1).ok()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The status of a server that serves.
fn status_of(server: &Registration) -> Option<Value> {
    admin::status_of(server).ok().filter(|status| !admin::stands_by(status))
}

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
    let servers = admin::servers_here(&source);
    let serving = servers.iter().find_map(|one| Some((one, status_of(one)?)));
    let Some((server, status)) = serving else {
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
        let after = admin::servers_here(&source).iter().find_map(status_of);
        if let Some(next) = after.filter(|next| next["epoch"].as_u64() > Some(epoch)) {
            if next["address"] == from.as_str() {
                let text = format!("no other server has claimed the metadata: {from} serves again");
                return Err(Failure::failed("RB-MDS-FAILOVER", text));
            }
            let report = Report {
                version: 1,
                from,
                to: text(&next["address"]),
                epoch: next["epoch"].as_u64().unwrap_or(0),
                took_ms: begun.elapsed().as_millis() as u64,
            };
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
        "{from} has given the metadata up, and no server on this host serves them yet: see `redbud \
         status` on the hosts of the others"
    );
    Err(Failure::new(Status::Timeout, "RB-MDS-FAILOVER", text))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The status of a server that serves.
fn status_of(server: &Registration) -> Option<Value> {
    admin::status_of(server).ok().filter(|status| !admin::stands_by(status))
}

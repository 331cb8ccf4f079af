//! `redbud ost status`: what targets are and do.

use env::DriverKind;
use proto::message::Principal;
use proto::ost::{Op, OpReply, Ost};
use serde::Serialize;
use serde_json::Value;
use session::client::{ReadClientKeys, ToolError, ask};
use types::Duration;
use types::limits::BLOCK_U64;
use types::units::human_size;

use super::{failed, scrub, view};
use crate::address::{OST_PORT, check_address_or};
use crate::args::OstStatusArgs;
use crate::config::TargetsView;

use crate::exit::{Ended, Failure, Status};
use crate::keys::{self, KeyOptions};
use crate::{admin, output};

/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct Report {
    version: u32,
    targets: Vec<Value>,
}

/// Prints the status.
pub fn run(args: &OstStatusArgs) -> Ended {
    let targets = match &args.address {
        Some(address) => vec![of(args, address)?],
        None => admin::targets_here()?,
    };
    output::print_report(args.output, &Report { version: 1, targets }, table)?;
    Ok(0)
}

fn of(args: &OstStatusArgs, address: &str) -> Result<Value, Failure> {
    let view = view(args.config.as_ref())?;
    let address = check_address_or(address, OST_PORT).map_err(Failure::usage)?;
    let name = args.fs.clone().or(view.as_ref().map(|view| view.name.clone()));
    let keys = keys_of(view.as_ref());
    status_of(&address, &name.unwrap_or_default(), keys.as_ref())
}

/// The keys of this host by the cluster's file; without that there are none.
pub fn keys_of(view: Option<&TargetsView>) -> Option<ReadClientKeys> {
    let view = view?;
    let options = KeyOptions { cluster: Some(view.file.clone()), ..KeyOptions::default() };
    keys::of_client(&options, &view.name)
}

/// The status of the target at `address`.
pub fn status_of(
    address: &str,
    fs_name: &str,
    keys: Option<&ReadClientKeys>,
) -> Result<Value, Failure> {
    let description = format!("redbud, pid {}", std::process::id());
    let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
    let asked = env::run(DriverKind::Fallback, |env| async move {
        let names = (fs_name, description.as_str());
        ask::<Ost>(&env, (address, keys), names, (principal, Op::Status {}), PATIENCE).await
    });
    let answer = asked.map_err(|error| failed(format!("cannot start the I/O driver: {error}")))?;
    match answer.map_err(|error| refused(address, error))? {
        OpReply::Text { text } => serde_json::from_str(&text)
            .map_err(|error| failed(format!("{address}: an invalid status: {error}"))),
        _ => Err(failed(format!("{address}: an unexpected reply"))),
    }
}

fn refused(address: &str, error: ToolError) -> Failure {
    let at = |text: &str| format!("target {address}: {text}");
    match error {
        ToolError::Unreachable(text) => {
            Failure::new(Status::Unreachable, "RB-OST-UNREACHABLE", text)
        }
        ToolError::Late(text) => Failure::new(Status::Timeout, "RB-OST-UNREACHABLE", at(&text)),
        ToolError::KeyRefused(text) => {
            Failure::new(Status::NotPermitted, "RB-KEY-REFUSED", at(&text))
        }
        ToolError::Refused(text) => failed(at(&format!("refused: {text}"))),
        ToolError::Fault(fault) => failed(at(fault.text())),
    }
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    for target in &report.targets {
        let word = |key: &str| target[key].as_str().unwrap_or_default().to_owned();
        let number = |key: &str| target[key].as_u64().unwrap_or_default();
        let size = |key: &str| human_size(number(key) * BLOCK_U64);
        if target["state"] == "stopped" {
            text += &format!("target {} at {}: ", word("device"), word("address"));
            text += &format!("stopped: {}\n", word("error"));
            continue;
        }
        let checksums = if target["checksums"] == true { "on" } else { "off" };
        text += &format!(
            "target {} of `{}` at {}: {}, epoch {}, up for {} s\n",
            word("target"),
            word("fs_name"),
            word("address"),
            word("state"),
            number("epoch"),
            number("uptime_ms") / 1000
        );
        text += &format!(
            "  {} of {} free, checksums {checksums}; {} requests, {} in flight; durable up to {}\n",
            size("free"),
            size("blocks"),
            number("requests"),
            number("in_flight"),
            word("last_committed")
        );
        let refused = number("capabilities_refused");
        if refused > 0 {
            text += &format!("  {refused} requests with a wrong capability were refused\n");
        }
        if target["scrub"]["state"] != "never" {
            text += &format!("  {}", scrub::of_scrub(&target["scrub"]));
        }
        let corrupt = number("corrupt_writes");
        if corrupt > 0 {
            text += &format!("  {corrupt} writes came damaged, and were refused\n");
        }
        let clients = target["clients"].as_array().map_or(&[][..], Vec::as_slice);
        for client in clients {
            let word = |key: &str| client[key].as_str().unwrap_or_default().to_owned();
            let number = |key: &str| client[key].as_u64().unwrap_or_default();
            text += &format!(
                "  client {} ({}): {}, silent for {} ms, {} requests, transno {}\n",
                number("id"),
                word("description"),
                word("state"),
                number("silent_ms"),
                number("requests"),
                word("transno")
            );
        }
        let absent = number("clients_absent");
        if absent > 0 {
            text += &format!("  {absent} clients may come back after the restart\n");
        }
    }
    text
}

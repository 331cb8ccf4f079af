//! `redbud pag`: the data zones of a file system that is served.

use proto::mds::{Op, OpReply};
use serde::Serialize;
use serde_json::Value;

use crate::args::{PagAddArgs, PagArgs, PagCommand};
use crate::commands::status::problems::text;
use crate::exit::{Ended, Failure};
use crate::source::Source;
use crate::{admin, output, target};

#[derive(Serialize)]
struct Added {
    version: u32,
    source: String,
    pag: u64,
    device: String,
    /// What to write into the cluster's file.
    next: String,
}

/// Runs one of them.
pub fn run(args: &PagArgs) -> Ended {
    match &args.command {
        PagCommand::Add(args) => add(args),
    }
}

fn refused(text: impl Into<String>) -> Failure {
    Failure::failed("RB-PAG-REFUSED", text)
}

/// The server's answer to `op`, which is JSON.
fn ask(source: &Source, op: Op) -> Result<Value, Failure> {
    let OpReply::Text { text: answer } = admin::ask(source, op)? else {
        return Err(refused(format!("{source}: the server sent an unexpected reply")));
    };
    let answer: Value = serde_json::from_str(&answer)
        .map_err(|error| refused(format!("{source}: the server sent no JSON: {error}")))?;
    match &answer["refused"] {
        Value::Null => Ok(answer),
        why => Err(refused(text(why))),
    }
}

fn add(args: &PagAddArgs) -> Ended {
    let source = target::source_or_only(args.target.as_ref())?;
    let path = std::path::absolute(&args.device);
    let path =
        path.map_err(|error| Failure::usage(format!("{}: {error}", args.device.display())))?;
    let Some(device) = path.to_str() else {
        let text = format!("{}: the path of a data device is UTF-8", path.display());
        return Err(Failure::usage(text));
    };
    let op = Op::AddZone { path: device.to_owned(), overwrite: args.force };
    let answer = ask(&source, op)?;
    let Some(pag) = answer["added"].as_u64() else {
        return Err(refused(format!("{source}: the server does not say which zone it is")));
    };
    let named = Value::from(device);
    let next = format!("[[data]]\npath = {named}\nid = {pag}\n");
    let (device, source) = (device.to_owned(), source.to_string());
    let report = Added { version: 1, source, pag, device, next };
    output::print_report(args.output, &report, |report| {
        format!(
            "{} is data zone {} of {}\nnow add to the cluster's file of every server:\n\n{}",
            report.device, report.pag, report.source, report.next
        )
    })?;
    Ok(0)
}

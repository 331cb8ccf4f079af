//! A single request of an administrator's command to a metadata server, on its own connection.
//!
//! The commands of root on the server's host need no key: the server trusts its local socket.

use env::DriverKind;
use proto::mds::{Mds, Op, OpReply, Principal};
use serde_json::Value;
use session::client::{ReadClientKeys, ToolError, ask as ask_one};
use types::{Duration, Fault};

use crate::control::{self, of_mds};
use crate::exit::{Failure, Status};
use crate::keys::{self, KeyOptions};
use crate::registry::{self, Kind, Registration};
use crate::source::Source;

/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends `op` to the first server of `source` that answers. A server on this host is asked by its
/// control socket, if that takes such a request: root and the user of the server need nothing else.
pub fn ask(source: &Source, op: Op) -> Result<OpReply, Failure> {
    if let Some(answer) = ask_here(source, &op) {
        return answer;
    }
    let keys = keys_for(source);
    let description = format!("redbud, pid {}", std::process::id());
    let asked = env::run(DriverKind::Fallback, |env| async move {
        let mut reasons = Vec::new();
        for server in &source.servers {
            let way = (server.as_str(), keys.as_ref());
            let names = (source.fs_name.as_str(), description.as_str());
            let request = (principal(), op.clone());
            match ask_one::<Mds>(&env, way, names, request, PATIENCE).await {
                Err(ToolError::Unreachable(text)) => reasons.push(text),
                answer => return answer.map_err(|error| failure(server, error)),
            }
        }
        let text =
            format!("no metadata server of `{}` answers: {}", source.fs_name, reasons.join("; "));
        Err(Failure::new(Status::Unreachable, "RB-MDS-UNREACHABLE", text))
    });
    asked.unwrap_or_else(|error| {
        let text = format!("cannot start the I/O driver: {error}");
        Err(Failure::failed("RB-IO-DRIVER", text))
    })
}

/// The keys for `source`: those of its cluster's file, or of this host's mount of it, or the usual
/// ones.
fn keys_for(source: &Source) -> Option<ReadClientKeys> {
    let options = match &source.cluster {
        Some(file) => KeyOptions { cluster: Some(file.clone()), ..KeyOptions::default() },
        None => {
            let is_of = |text: &str| Source::parse(text).is_ok_and(|own| own.is_same_as(source));
            let running = registry::running().into_iter().map(|(_, one)| one);
            let mut mounts = running.filter(|one| one.kind == Kind::Mount);
            mounts.find(|mount| is_of(&mount.source)).map(|mount| mount.keys).unwrap_or_default()
        }
    };
    keys::of_client(&options, &source.fs_name)
}

fn principal() -> Principal {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    Principal { uid: user, gid: group, groups: Vec::new() }
}

fn failure(server: &str, error: ToolError) -> Failure {
    let at = |text: &str| format!("metadata server {server}: {text}");
    match error {
        ToolError::Unreachable(text) => {
            Failure::new(Status::Unreachable, "RB-MDS-UNREACHABLE", at(&text))
        }
        ToolError::Late(text) => Failure::new(Status::Timeout, "RB-MDS-UNREACHABLE", at(&text)),
        ToolError::KeyRefused(text) => {
            let text = at(&format!("refused: {text}"));
            Failure::new(Status::NotPermitted, "RB-KEY-REFUSED", text)
        }
        ToolError::Refused(text) => {
            Failure::failed("RB-MDS-REFUSED", at(&format!("refused: {text}")))
        }
        ToolError::Fault(fault @ Fault::NotPermitted) => {
            Failure::new(Status::NotPermitted, "RB-MDS-REFUSED", at(fault.text()))
        }
        ToolError::Fault(fault) => Failure::failed("RB-MDS-REFUSED", at(fault.text())),
    }
}

/// Asks a server of `source` on this host; `None`: there is none that can be asked for this.
fn ask_here(source: &Source, op: &Op) -> Option<Result<OpReply, Failure>> {
    let question = of_mds::request(op)?;
    let is_asked = |one: &Registration| {
        let serves = Source::parse(&one.source).is_ok_and(|served| served.is_same_as(source));
        one.kind == Kind::Mds && serves
    };
    let here = registry::running().into_iter().map(|(_, one)| one).find(is_asked)?;
    let answer = control::ask_server(&here.socket?, question);
    match answer {
        // It starts or ends just now.
        Err(failure) if failure.code == Status::Unreachable as u8 => None,
        Err(failure) => Some(Err(failure)),
        Ok(Value::Null) => Some(Ok(OpReply::Done {})),
        Ok(value) => Some(Ok(OpReply::Text { text: value.to_string() })),
    }
}

/// The status of the server of `source`.
pub fn status(source: &Source) -> Result<Value, Failure> {
    match ask(source, Op::Status {})? {
        OpReply::Text { text } => serde_json::from_str(&text).map_err(|error| {
            Failure::failed(
                "RB-MDS-REFUSED",
                format!("{source}: the server sent an invalid status: {error}"),
            )
        }),
        _ => Err(Failure::failed(
            "RB-MDS-REFUSED",
            format!("{source}: the server sent an unexpected reply"),
        )),
    }
}

//! What commands of an administrator ask: a single request to a metadata server, on its own
//! connection; and the targets of this host.
//!
//! The commands of root on the server's host need no key: the server trusts its local socket.

use std::path::PathBuf;

use env::{DriverKind, Env};
use proto::mds::{Mds, Op, OpReply, Principal};
use serde_json::{Value, json};
use session::client::{ReadClientKeys, ToolError, ask_server};
use types::{Duration, Fault, ServerId, ShardId};

use crate::control::{self, Ask, of_mds};
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
    let asked = env::run(DriverKind::Fallback, |env| async move {
        ask_over(&env, source, keys.as_ref(), op).await
    });
    asked.unwrap_or_else(|error| {
        let text = format!("cannot start the I/O driver: {error}");
        Err(Failure::failed("RB-IO-DRIVER", text))
    })
}

/// As [`ask`], over the network only, and within an executor that does more than that.
pub async fn ask_over(
    env: &Env,
    source: &Source,
    keys: Option<&ReadClientKeys>,
    op: Op,
) -> Result<OpReply, Failure> {
    let description = format!("redbud, pid {}", std::process::id());
    let mut reasons = Vec::new();
    let wanted = source.server.map_or(ServerId::ANY, ServerId);
    for server in &source.servers {
        let names = ((source.fs_name.as_str(), description.as_str()), wanted);
        let request = (principal(), op.clone());
        match ask_server::<Mds>(env, (server.as_str(), keys), names, request, PATIENCE).await {
            Err(ToolError::Unreachable(text)) => reasons.push(text),
            answer => return answer.map_err(|error| failure(server, error)),
        }
    }
    let who = match source.server {
        None => "no metadata server".to_owned(),
        Some(number) => format!("no metadata server {number}"),
    };
    let text = format!("{who} of `{}` answers: {}", source.fs_name, reasons.join("; "));
    Err(Failure::new(Status::Unreachable, "RB-MDS-UNREACHABLE", text))
}

/// The keys for `source`: those of its cluster's file, or of this host's mount of it, or the usual
/// ones.
pub fn keys_for(source: &Source) -> Option<ReadClientKeys> {
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

/// The servers of `source` on this host, those that stand by too. One that stands by for several
/// may be any of them.
pub fn servers_here(source: &Source) -> Vec<Registration> {
    let is_asked = |one: &Registration| {
        let serves = Source::parse(&one.source).is_ok_and(|mut served| {
            if one.server.is_some() {
                served.servers.truncate(1);
            }
            served.is_same_as(source)
        });
        let may_be = one.server.is_none()
            || source.server.is_none_or(|number| one.server.map(u16::from) == Some(number));
        one.kind == Kind::Mds && serves && may_be
    };
    registry::running().into_iter().map(|(_, one)| one).filter(is_asked).collect()
}

/// Does this status say that its server only stands by?
pub fn stands_by(status: &Value) -> bool {
    status["state"] == "standby"
}

/// What a server that stands by says of its standing by for the server `number`; of the only one,
/// or the first, without a number. `None`: it does not stand by for that one.
pub fn standing_for(standby: &Value, number: Option<u16>) -> Option<Value> {
    let mut all = standby["stands_by_for"].as_array().into_iter().flatten();
    let mut said = all.find(|one| is_of(one, number)).cloned()?;
    for key in ["state", "fs_name", "address", "pid"] {
        said[key] = standby[key].clone();
    }
    Some(said)
}

/// Asks the server of `source` that serves on this host; `None`: there is none that can be asked
/// for this.
fn ask_here(source: &Source, op: &Op) -> Option<Result<OpReply, Failure>> {
    let question = of_mds::request(op)?;
    let answer = match servers_here(source).as_slice() {
        [] => return None,
        [one] if source.server.is_none() || one.server.is_some() => {
            control::ask_server(one.socket.as_deref()?, question)
        }
        several => ask_the_serving(several, source.server, question)?,
    };
    match answer {
        // It starts or ends just now.
        Err(failure) if failure.code == Status::Unreachable as u8 => None,
        Err(failure) => Some(Err(failure)),
        // Another host's server may serve.
        Ok(value) if stands_by(&value) => None,
        Ok(Value::Null) => Some(Ok(OpReply::Done {})),
        Ok(value) => Some(Ok(OpReply::Text { text: value.to_string() })),
    }
}

/// Is it the status of the server `wanted`; `None`: of any?
pub fn is_of(status: &Value, wanted: Option<u16>) -> bool {
    wanted.is_none_or(|number| status["server"].as_u64() == Some(u64::from(number)))
}

/// Asks the one of several processes that serves as `wanted`; `None`: there is none. One that does
/// not answer may be the one.
fn ask_the_serving(
    servers: &[Registration],
    wanted: Option<u16>,
    question: Ask,
) -> Option<Result<Value, Failure>> {
    let mut mute = None;
    for server in servers {
        match status_of(server) {
            Ok(status) if stands_by(&status) || !is_of(&status, wanted) => {}
            Ok(status) if question == Ask::Status => return Some(Ok(status)),
            Ok(_) => return Some(control::ask_server(server.socket.as_deref()?, question)),
            Err(failure) => mute = Some(Err(failure)),
        }
    }
    mute
}

/// The status of a server on this host, within a short time limit.
///
/// # Errors
/// As [`control::ask`].
pub fn status_of(server: &Registration) -> Result<Value, Failure> {
    match &server.socket {
        Some(socket) => control::ask(socket, Ask::Status),
        None => Err(Failure::failed("RB-CONTROL", "it has no control socket")),
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

/// A metadata server of a file system.
pub struct Server {
    /// Its number among several; `None`: there is one.
    pub number: Option<u16>,
    /// The file system at this server alone, or at all addresses of the only one.
    pub source: Source,
}

impl Server {
    /// The shard that it serves, if there are several.
    pub fn shard(&self) -> Option<ShardId> {
        self.number.and_then(|number| u8::try_from(number).ok()).map(ShardId)
    }
}

/// The metadata servers of `source`, as the first one says that answers.
///
/// # Errors
/// As [`status`].
pub fn servers(source: &Source) -> Result<Vec<Server>, Failure> {
    Ok(servers_in(source, &status(source)?))
}

/// The metadata servers of `source`, as `status`, that of one of them, names them.
pub fn servers_in(source: &Source, status: &Value) -> Vec<Server> {
    let server = |said: &Value| {
        let addresses = said["addresses"].as_array().into_iter().flatten();
        let addresses = addresses.filter_map(|address| address.as_str().map(str::to_owned));
        let number = u16::try_from(said["server"].as_u64()?).ok()?;
        let source =
            Source { servers: addresses.collect(), server: Some(number), ..source.clone() };
        Some(Server { number: Some(number), source })
    };
    let named: Vec<Server> =
        status["servers"].as_array().into_iter().flatten().filter_map(server).collect();
    match named.is_empty() {
        true => vec![Server { number: None, source: source.clone() }],
        false => named,
    }
}

/// The one server of `source`, or the `asked` one of several.
///
/// # Errors
/// As [`status`]; what to write instead.
pub fn server(source: &Source, asked: Option<u16>) -> Result<Source, Failure> {
    let servers = servers(source)?;
    let last = servers.len() - 1;
    let is_only = |one: &Server| one.number.is_none() && asked.is_none_or(|number| number == 0);
    let is_it = |one: &Server| is_only(one) || one.number.is_some() && one.number == asked;
    let found = servers.into_iter().find(is_it).map(|one| one.source);
    found.ok_or_else(|| {
        Failure::usage(match asked {
            None => format!(
                "{source} has {} metadata servers: name one with --server 0 to --server {last}",
                last + 1
            ),
            Some(number) if last == 0 => {
                format!("{source}: there is no server {number}: it has only server 0")
            }
            Some(number) => {
                format!("{source}: there is no server {number}: it has servers 0 to {last}")
            }
        })
    })
}

/// The control sockets of the processes on this host that serve targets.
pub fn target_sockets() -> Vec<PathBuf> {
    let running = registry::running().into_iter().map(|(_, one)| one);
    running.filter(|one| one.kind == Kind::Ost).filter_map(|one| one.socket).collect()
}

/// The status of each target that this host serves, as JSON.
///
/// # Errors
/// There is none that this user can ask, or one gave another answer.
pub fn targets_here() -> Result<Vec<Value>, Failure> {
    let running = registry::running().into_iter().map(|(_, one)| one);
    let mut all = Vec::new();
    for one in running.filter(|one| one.kind == Kind::Ost) {
        let Some(socket) = &one.socket else { continue };
        match control::ask(socket, Ask::Status) {
            Ok(Value::Array(targets)) => all.extend(targets),
            Ok(_) => {
                return Err(Failure::failed(
                    "RB-OST",
                    format!("{}: an unexpected answer", socket.display()),
                ));
            }
            // It may just end. The others are shown.
            Err(failure) => all.push(json!({
                "version": 1,
                "device": format!("process {}", one.pid),
                "address": one.source,
                "state": "stopped",
                "error": failure.text,
            })),
        }
    }
    match all.is_empty() {
        true => Err(Failure::new(
            Status::Unreachable,
            "RB-OST-UNREACHABLE",
            "no target of this user runs on this host: give its address, with --config or --fs",
        )),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_are_those_that_one_of_them_names() {
        let source = Source::parse("a:1,b:2:/home").unwrap();
        let [only] = &servers_in(&source, &json!({"servers": []}))[..] else { panic!() };
        assert_eq!((only.number, &only.source), (None, &source));
        let named = [("a:1", 0), ("b:2", 1)].map(|(at, n)| json!({"server": n, "addresses": [at]}));
        let several = servers_in(&source, &json!({"servers": named}));
        let shown = |one: &Server| (one.number, one.source.to_string());
        let shown: Vec<_> = several.iter().map(shown).collect();
        assert_eq!(shown, [(Some(0), "a:1:/home".into()), (Some(1), "b:2:/home".into())]);
    }
}

//! `redbud status`: the status of the servers, and the mounts of this host.

use serde::Serialize;
use serde_json::Value;

use crate::args::StatusArgs;
use crate::exit::{Ended, Failure};
use crate::mountinfo::{self, Mounted};
use crate::output;
use crate::registry::{self, Registration};
use crate::source::Source;
use crate::{admin, target};

#[derive(Serialize)]
struct Report {
    version: u32,
    filesystems: Vec<FileSystem>,
    mounts: Vec<Mount>,
}

#[derive(Serialize)]
struct FileSystem {
    source: String,
    /// The server's status; null if it did not answer.
    server: Value,
    /// Why it did not answer.
    error: Option<String>,
}

#[derive(Serialize)]
struct Mount {
    mount: String,
    source: String,
    /// The client's process; null if it is gone or runs elsewhere.
    pid: Option<u32>,
    log: Option<String>,
}

/// Prints the status; fails if a server did not answer.
pub fn run(args: &StatusArgs) -> Ended {
    let sources = match &args.target {
        Some(text) => vec![target::source(text)?],
        None => target::all_mounted()?,
    };
    let mounts = mountinfo::redbud_mounts().map_err(|error| {
        Failure::failed("RB-MOUNTINFO", format!("/proc/self/mountinfo: {error}"))
    })?;
    let running: Vec<Registration> = registry::running().into_iter().map(|(_, one)| one).collect();
    let is_asked = |mount: &&Mounted| {
        let source = Source::parse(&mount.source).ok();
        args.target.is_none()
            || source.is_some_and(|source| sources.iter().any(|asked| asked.is_same_as(&source)))
    };
    let mounts: Vec<Mount> =
        mounts.iter().filter(is_asked).map(|mount| describe_mount(mount, &running)).collect();
    let asked: Vec<(Source, Result<Value, Failure>)> =
        sources.into_iter().map(|source| (source.clone(), admin::status(&source))).collect();
    let worst = asked.iter().filter_map(|(_, answer)| answer.as_ref().err()).map(|f| f.code).max();
    let report =
        Report { version: 1, filesystems: asked.into_iter().map(file_system).collect(), mounts };
    output::print_report(args.output, &report, describe)?;
    Ok(worst.unwrap_or(0))
}

fn file_system((source, answer): (Source, Result<Value, Failure>)) -> FileSystem {
    let (server, error) = match answer {
        Ok(server) => (server, None),
        Err(failure) => (Value::Null, Some(failure.to_string())),
    };
    FileSystem { source: source.to_string(), server, error }
}

fn describe_mount(mount: &Mounted, running: &[Registration]) -> Mount {
    let client = running.iter().rfind(|client| client.mount == mount.path);
    Mount {
        mount: mount.path.display().to_string(),
        source: mount.source.clone(),
        pid: client.map(|client| client.pid),
        log: client.and_then(|client| client.log.as_ref()).map(|log| log.display().to_string()),
    }
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    for file_system in &report.filesystems {
        text += &format!("file system {}\n", file_system.source);
        match &file_system.error {
            Some(error) => text += &format!("  server: {error}\n"),
            None => lines(&mut text, "  ", &file_system.server),
        }
    }
    for mount in &report.mounts {
        let client = match mount.pid {
            Some(pid) => format!("client pid {pid}"),
            None => "no client process (if it died: redbud umount)".to_owned(),
        };
        text += &format!("mount {} of {}, {client}\n", mount.mount, mount.source);
    }
    if text.is_empty() {
        text = "no Redbud file system is mounted on this host\n".into();
    }
    text
}

/// Adds `value` as indented lines "key: value"; lists of objects as one line for each.
fn lines(text: &mut String, indent: &str, value: &Value) {
    let Value::Object(fields) = value else {
        *text += &format!("{indent}{}\n", plain(value));
        return;
    };
    for (key, value) in fields.iter().filter(|(key, _)| *key != "version") {
        match value {
            Value::Array(items) if items.iter().any(Value::is_object) => {
                *text += &format!("{indent}{key}:\n");
                for item in items {
                    *text += &format!("{indent}  {}\n", plain(item));
                }
            }
            Value::Object(_) => {
                *text += &format!("{indent}{key}:\n");
                lines(text, &format!("{indent}  "), value);
            }
            _ => *text += &format!("{indent}{key}: {}\n", plain(value)),
        }
    }
}

/// `value` on one line, strings without quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".into(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| format!("{key} {}", plain(value));
            fields.iter().map(field).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_status_prints_as_indented_lines() {
        let answer: Value = serde_json::from_str(
            r#"{"version":1,"epoch":3,"clients":[{"id":1,"host":"a"},{"id":2,"host":"b"}],"log":{"used":5}}"#,
        )
        .unwrap();
        let mut text = String::new();
        lines(&mut text, "  ", &answer);
        let expected = [
            "  clients:",
            "    host a, id 1",
            "    host b, id 2",
            "  epoch: 3",
            "  log:",
            "    used: 5",
            "",
        ];
        assert_eq!(text, expected.join("\n"));
    }
}

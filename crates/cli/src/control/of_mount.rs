//! What the control socket of a mount answers.

use std::rc::Rc;

use client::DirectoryMove;
use fuse::Introspection;
use types::json::Json;
use types::{Duration, Ino, ShardId};

use super::{Answer, Ask, Handler};
use crate::registry::Registration;

/// Waiting requests of one answer.
const WAITING_MAX: usize = 50;

/// Part of the time that an answer may take.
const SYNC_WITHIN: Duration = Duration::from_secs(20);
/// The same.
const MOVE_WITHIN: Duration = Duration::from_secs(20);

/// Answers for the client of the mount that is registered as `about`.
pub fn handler(about: Registration, mounted: Introspection) -> Handler {
    let all = Rc::new((about, mounted));
    Rc::new(move |ask| {
        let all = all.clone();
        Box::pin(async move { answer(&all.0, &all.1, ask).await })
    })
}

async fn answer(about: &Registration, mounted: &Introspection, ask: Ask) -> Answer {
    match ask {
        Ask::Status => Ok(status(about, mounted)),
        Ask::Why { threads, ino } => Ok(why(mounted, &threads, ino.map(Ino)).await),
        Ask::Sync => match mounted.client.sync_within(SYNC_WITHIN).await {
            None => Ok(r#"{"durable":false}"#.into()),
            Some(Ok(())) => Ok(r#"{"durable":true}"#.into()),
            Some(Err(fault)) => Err(format!("not all is durable: {}", fault.text())),
        },
        Ask::MoveDirectory { ino, mds } => Ok(move_directory(mounted, Ino(ino), mds).await),
        Ask::MoveFiles { ino, mds, after } => Ok(move_files(mounted, Ino(ino), mds, after).await),
        Ask::SetZoneState { .. }
        | Ask::ZoneFiles { .. }
        | Ask::Evict { .. }
        | Ask::Scrub { .. }
        | Ask::Failover
        | Ask::AddZone { .. } => Err("this is a mount: a metadata server is asked for that".into()),
    }
}

/// Moves a directory to another metadata server.
async fn move_directory(mounted: &Introspection, dir: Ino, mds: u8) -> String {
    let moved = mounted.client.move_directory_within(MOVE_WITHIN, dir, ShardId(mds)).await;
    let state = match moved {
        None => "waits",
        Some(Ok(DirectoryMove::Moved)) => "moved",
        Some(Ok(DirectoryMove::There)) => "there",
        Some(Ok(DirectoryMove::Root)) => "root",
        Some(Ok(DirectoryMove::NoServer)) => "no-server",
        Some(Err(_)) => "stayed",
    };
    let mut out = Json::default();
    out.open('{');
    out.text("state", state);
    if let Some(Err(fault)) = moved {
        out.number("fault", u64::from(fault as u16));
    }
    out.close('}');
    out.into_text()
}

/// Has files of a directory follow it.
async fn move_files(mounted: &Introspection, dir: Ino, mds: u8, after: u64) -> String {
    let follow = mounted.client.files_follow_within(MOVE_WITHIN, dir, ShardId(mds), after);
    let followed = follow.await;
    let mut out = Json::default();
    out.open('{');
    match &followed {
        None => out.text("state", "waits"),
        Some(Err(fault)) => {
            out.text("state", "stayed");
            out.number("fault", u64::from(*fault as u16));
        }
        Some(Ok(it)) => {
            out.text("state", "followed");
            out.number("moved", it.moved.into());
            out.number("there", it.there.into());
            out.key("stayed");
            out.open('[');
            for (name, fault) in &it.stayed {
                out.item();
                out.open('{');
                out.text("name", &String::from_utf8_lossy(name.as_bytes()));
                out.number("fault", u64::from(*fault as u16));
                out.close('}');
            }
            out.close(']');
            if let Some(next) = it.next {
                out.number("next", next);
            }
        }
    }
    out.close('}');
    out.into_text()
}

/// What these threads wait for, or the requests on an inode; without either, all that wait.
async fn why(mounted: &Introspection, threads: &[u32], ino: Option<Ino>) -> String {
    let (client, mut waiting) = (&mounted.client, mounted.requests.waiting());
    let everything = threads.is_empty() && ino.is_none();
    waiting.retain(|one| everything || threads.contains(&one.pid) || ino == Some(one.ino));
    let omitted = waiting.len().saturating_sub(WAITING_MAX);
    waiting.truncate(WAITING_MAX);
    let mut out = Json::default();
    out.open('{');
    out.key("waiting");
    out.open('[');
    for one in waiting {
        let reasons = client.why_json(one.unique).await;
        out.item();
        out.open('{');
        out.text("request", &one.request);
        out.number("thread", u64::from(one.pid));
        out.number("ino", one.ino.0);
        out.text("inode", &client.describe(one.ino));
        out.number("since_ms", client.age_ms(one.since));
        out.key("reasons");
        out.raw(&reasons);
        out.close('}');
    }
    out.close(']');
    out.number("omitted", omitted as u64);
    if let Some(ino) = ino {
        match client.holders_json(ino).await {
            Ok(json) => {
                out.key("holders");
                out.raw(&json);
            }
            Err(text) => out.text("error", &text),
        }
    }
    out.close('}');
    out.into_text()
}

fn status(about: &Registration, mounted: &Introspection) -> String {
    let mut out = Json::default();
    out.open('{');
    out.number("pid", u64::from(about.pid));
    out.text("mount", &about.mount.display().to_string());
    out.text("source", &about.source);
    if let Some(log) = &about.log {
        out.text("log", &log.display().to_string());
    }
    out.key("client");
    out.raw(&mounted.client.report_json());
    out.close('}');
    out.into_text()
}

//! Who holds what a client waits for at an inode: the server's half of `redbud why`.
//!
//! Invariants:
//! - it reads what there is, waits for nobody, and changes nothing;
//! - a client learns of others only by what name and process they keep it from going on.

use proto::lock_server::Owner;
use proto::mds::Lock;
use types::json::Json;
use types::{ClientId, Duration, Ino, Rights};

use crate::leases::NO_CLIENT;
use crate::server::Server;

/// Holders of one kind in an answer.
const HOLDERS_MAX: usize = 20;

/// As JSON: who keeps `client` from going on at `ino`, or from taking `lock` there.
pub fn report(server: &Server, client: ClientId, ino: Ino, lock: Option<&Lock>) -> String {
    let runtime = &server.runtime;
    let mut out = Json::default();
    out.open('{');
    out.number("lease_ms", millis(runtime.config.lease));
    out.flag("grace", !server.recovery.is_over());
    let gate = server.leases.gate_holder(ino);
    out.list("gates", gate, |out, (holder, since)| {
        add_holder(server, out, holder, |out| {
            out.flag("own", holder == client);
            out.number("since_ms", millis(runtime.env.now().since(since)));
        });
    });
    let mut recalled = server.leases.table().recalled(ino);
    recalled.retain(|(holder, _)| *holder != client);
    recalled.truncate(HOLDERS_MAX);
    out.list("recalls", recalled, |out, (holder, rights)| {
        add_holder(server, out, holder, |out| out.text("rights", &names_of(rights)));
    });
    let mut locks = match lock {
        Some(lock) => server.locks.conflicts(ino, Owner { client, owner: lock.owner }, lock),
        None => server.locks.held(ino),
    };
    locks.truncate(HOLDERS_MAX);
    out.list("locks", locks, |out, (owner, lock)| {
        add_holder(server, out, owner.client, |out| {
            out.number("process", u64::from(lock.pid));
            out.flag("flock", lock.flock);
            out.flag("exclusive", lock.exclusive);
            out.number("start", lock.start);
            out.number("end", lock.end);
        });
    });
    out.close('}');
    out.into_text()
}

/// Adds who the client is, and until when it can keep others waiting at most if it stays silent.
fn add_holder(server: &Server, out: &mut Json, holder: ClientId, more: impl FnOnce(&mut Json)) {
    out.open('{');
    out.number("client", holder.0);
    let session = server.sessions.get(holder);
    let name = match &session {
        Some(session) => session.description.clone(),
        None if holder == NO_CLIENT => "the server".to_owned(),
        None => "a client without a session".to_owned(),
    };
    out.text("name", &name);
    if let Some(session) = session {
        let silent = server.sessions.silence(&session);
        out.number("silent_ms", millis(silent));
        out.number("evicted_in_ms", millis(server.runtime.config.lease.saturating_sub(silent)));
    }
    more(out);
    out.close('}');
}

fn names_of(rights: Rights) -> String {
    rights.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

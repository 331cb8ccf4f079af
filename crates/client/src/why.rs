//! What an operation waits for, and who holds it: this client's half of `redbud why`.
//!
//! Invariants:
//! - the server is asked in a reserved slot, and only if it answers: one question at a time, so
//!   questions never take slots from requests that complete a recall;
//! - an answer comes within [`ASK`], whatever the server does.

use proto::mds::{Op, OpReply};
use session::client::{Awaited, Congestion};
use types::json::Json;
use types::{Duration, Ino, Instant, PagId};

use crate::api::{DeviceStatus, LockRequest};
use crate::boundary::DataHalf;
use crate::client::Client;
use crate::core::Core;
use crate::ops::lock::wire;
use crate::report::{add_device, millis};
use crate::rpc::{Call, result};
use crate::waits::Wait;

/// How long the server may take to say who holds what.
const ASK: Duration = Duration::from_secs(2);
/// A server that owes an answer for longer is not asked.
const SILENT: Duration = Duration::from_millis(500);

/// One reason of a wait.
struct Reason {
    /// The kind, for programs.
    kind: &'static str,
    what: String,
    since: Option<Instant>,
    /// Until when at most.
    until: &'static str,
    /// Ask the server who holds it: these inodes, and the lock that is wanted.
    held: Vec<Ino>,
    lock: Option<LockRequest>,
    /// The device that it waits for.
    device: Option<PagId>,
}

impl Reason {
    fn new(kind: &'static str, what: impl Into<String>, until: &'static str) -> Reason {
        let (since, held, lock, device) = (None, Vec::new(), None, None);
        Reason { kind, what: what.into(), since, until, held, lock, device }
    }

    fn held_at(self, held: Vec<Ino>) -> Reason {
        Reason { held, ..self }
    }
}

/// The wait ends when the server answers.
const SERVER: &str = "the server answers; while it is away there is no bound, and the caller can \
                      be killed";
/// The wait ends when other clients give way.
const GIVES_WAY: &str = "the holders give it up; one that falls silent is evicted after a lease";
/// The wait ends when a device answers.
const DEVICE: &str = "the device answers, or is found to be absent: then it fails with EIO";

/// The wait ends when a target answers.
const TARGET: &str = "the target answers; while it is away there is no bound, and the caller can be \
                      killed; `redbud ost lost` makes it fail with EIO";

impl Client {
    /// What `operation` waits for, as a list: kind, text, since when, until when at most, and who
    /// holds it, as far as the server says.
    pub async fn why_json(&self, operation: u64) -> String {
        let core = &self.core;
        let mut out = Json::default();
        out.open('[');
        for reason in core.reasons(operation) {
            out.item();
            core.add_reason(&mut out, reason).await;
        }
        out.close(']');
        out.into_text()
    }

    /// Who holds what others may wait for at an inode: the server's answer as JSON, or why there is
    /// none.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn holders_json(&self, ino: Ino) -> Result<String, String> {
        self.core.holders(ino, None).await
    }

    /// The inode for people: its number, and its path as far as that is known.
    pub fn describe(&self, ino: Ino) -> String {
        self.core.path_hints.describe(ino)
    }

    /// How long ago that was, in milliseconds.
    pub fn age_ms(&self, since: Instant) -> u64 {
        millis(self.core.env.now().since(since))
    }
}

impl Core {
    fn reasons(&self, operation: u64) -> Vec<Reason> {
        let named = self.waits.of(operation).into_iter();
        let mut reasons: Vec<Reason> = named
            .map(|(wait, since)| Reason { since: Some(since), ..self.reason_of(wait) })
            .collect();
        for session in self.rpc.all() {
            let awaited = session.awaited_by(operation);
            reasons.extend(awaited.into_iter().map(reason_of_request));
        }
        if reasons.is_empty() {
            let congestion = self.rpc.all().iter().find_map(|session| session.congestion());
            reasons.push(reason_of_congestion(congestion));
        }
        reasons
    }

    fn reason_of(&self, wait: Wait) -> Reason {
        match wait {
            Wait::Lock(ino, lock) => {
                let kind = if lock.flock { "flock" } else { "byte lock" };
                let mode = if lock.exclusive == Some(true) { "exclusive" } else { "shared" };
                let range = match (lock.flock, lock.end) {
                    (true, _) => String::new(),
                    (false, end) if end >= i64::MAX as u64 => format!(" from byte {}", lock.start),
                    (false, end) => format!(" on bytes {} to {end}", lock.start),
                };
                let what = format!("a {mode} {kind}{range} of {}", self.path_hints.describe(ino));
                let until = "its holder frees it; a holder whose client falls silent loses it \
                             after a lease";
                Reason { lock: Some(lock), ..Reason::new("lock", what, until).held_at(vec![ino]) }
            }
            Wait::Content(ino) => {
                let draining = self.inodes.get(ino).and_then(|inode| inode.data_lease());
                let draining = draining.is_some_and(|data| data.is_draining());
                let how = if draining { ", which another client is getting now" } else { "" };
                let name = self.path_hints.describe(ino);
                let what = format!("the right to the content of {name}{how}");
                Reason::new("lease", what, GIVES_WAY).held_at(vec![ino])
            }
            Wait::Layout(ino) => {
                let what = format!("the layout of {}", self.path_hints.describe(ino));
                Reason::new("server", what, SERVER)
            }
            Wait::Lease => {
                let what = "the lease: the server has not been heard for too long to use caches";
                Reason::new("server", what, SERVER)
            }
            Wait::DirtyRoom => {
                let what = "room for dirty data: earlier writes have to reach the devices";
                Reason::new("dirty-room", what, "devices take the writes, or fail")
            }
            Wait::Stuck(ino) => {
                let name = self.path_hints.describe(ino);
                let what = format!("a device that owes the end of writes of {name}");
                Reason::new("device", what, DEVICE)
            }
            Wait::Space => {
                let what = "blocks of the data space: the server asks other clients for theirs";
                Reason::new("space", what, "there are blocks, or it fails with ENOSPC after tries")
            }
            Wait::Read(zone) => {
                let what = format!("a read of zone {zone}");
                let devices = self.data().devices();
                let is_target = |one: &DeviceStatus| one.zone == zone && one.target.is_some();
                let until = if devices.iter().any(is_target) { TARGET } else { DEVICE };
                Reason { device: Some(zone), ..Reason::new("device", what, until) }
            }
            Wait::Sync(ino) => {
                let name = self.path_hints.describe(ino);
                let what = format!(
                    "{name} becomes durable: its writes end, devices are flushed, \
                                    and the server logs its changes"
                );
                Reason::new("sync", what, "devices and the server answer, or a device fails")
            }
            Wait::Removal(ino) => {
                let name = self.path_hints.describe(ino);
                let what = format!("the removal of {name}, which is under way");
                Reason::new("server", what, SERVER)
            }
        }
    }

    async fn add_reason(&self, out: &mut Json, reason: Reason) {
        out.open('{');
        out.text("for", reason.kind);
        out.text("what", &reason.what);
        if let Some(since) = reason.since {
            out.number("since_ms", millis(self.env.now().since(since)));
        }
        out.text("until", reason.until);
        let devices = self.data().devices();
        let shown = devices.iter().filter(|device| match reason.device {
            Some(zone) => device.zone == zone,
            None => {
                let waits = matches!(reason.kind, "sync" | "dirty-room" | "device");
                waits && device.state != "present"
            }
        });
        out.list("devices", shown, add_device);
        let mut answers = Vec::new();
        for ino in &reason.held {
            answers.push(self.holders(*ino, reason.lock).await);
        }
        out.list("holders", &answers, |out, answer| match answer {
            Ok(json) => out.raw(json),
            Err(text) => {
                out.open('{');
                out.text("error", text);
                out.close('}');
            }
        });
        out.close('}');
    }

    /// Asks the server who holds what others may wait for at the inode.
    async fn holders(&self, ino: Ino, lock: Option<LockRequest>) -> Result<String, String> {
        let session = self.rpc.of(ino);
        let report = session.report();
        if report.phase != "up" || report.silent > SILENT {
            return Err("the metadata server does not answer".into());
        }
        if session.has_unanswered(|op| matches!(op, Op::Why { .. })) {
            return Err("the metadata server has not answered an earlier question".into());
        }
        let (rpc, lock) = (self.rpc.clone(), lock.map(wire));
        let mut asked = self.env.spawn_join(async move {
            let call = Call::reserved(vec![Op::Why { ino, lock }]);
            match rpc.call(call).await.as_deref().map(|reply| result(reply, 0).cloned()) {
                Ok(Ok(OpReply::Text { text })) => Ok(text),
                Ok(Err(fault)) | Err(&fault) => Err(fault.text().to_owned()),
                Ok(Ok(_)) => Err("the metadata server answered with something else".into()),
            }
        });
        let late = || Err("the metadata server does not answer".into());
        self.env.timeout(ASK, &mut asked).await.unwrap_or_else(late)
    }
}

fn reason_of_request(awaited: Awaited<Op>) -> Reason {
    let names: Vec<String> = awaited.ops.iter().map(name_of).collect();
    let what = format!("the answer of metadata server {} to {}", awaited.server, names.join(", "));
    let inodes = awaited.ops.iter().flat_map(|op| op.spec().inodes).flatten().collect();
    let until = "the server answers; others that it waits for are evicted when they have been \
                 silent for a lease";
    let reason = Reason::new("server", what, until).held_at(inodes);
    Reason { since: Some(awaited.sent), ..reason }
}

fn name_of(op: &Op) -> String {
    let text = format!("{op:?}");
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    text[..end].to_owned()
}

fn reason_of_congestion(congestion: Option<Congestion>) -> Reason {
    match congestion {
        Some(Congestion::Slots) => {
            Reason::new("slots", "a slot: so many requests are unanswered already", SERVER)
        }
        Some(Congestion::Kept) => {
            let what = "room to keep a change until it is durable: the server's log is behind";
            Reason::new("log", what, "the server has flushed its log")
        }
        None => Reason::new("client", "the kernel, or another operation of this mount", "it ends"),
    }
}

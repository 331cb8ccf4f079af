//! The door of a server: who is at the other end of a new connection.
//!
//! | connection | who it is |
//! |---|---|
//! | by a Unix socket of this host, from root or the server's own user | [`Who::Local`] |
//! | by a Unix socket, from another user | nobody: that user takes TCP, and a key |
//! | by TCP, with a handshake that proves an allowed key | [`Who::Node`] |
//! | by TCP, anything else | nobody |
//! | any, if the server has no door | [`Who::Anybody`] |
//!
//! Invariants:
//! - behind the door nothing depends on what a peer says of itself;
//! - strangers cost little: a connection holds a socket and less than two handshake messages, for
//!   [`HANDSHAKE_TIMEOUT`] at most. Of more than [`HALF_OPEN_MAX`] the oldest is closed;
//! - every refusal is counted, and named in the log at a bounded rate;
//! - the list is read again when it has changed. One that is wrong changes nothing, and neither the
//!   list nor the server's own keys depend on whether the others can be read;
//! - a connection that is there ends by what the list says of its key, never because the key is no
//!   longer in it: a list may be lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use channel::{Allowed, Entry, MESSAGE_MAX, Mode, Problem, Responder, Role, SecretKeys, Squash};
use env::{Env, Stream};
use proto::frame::{MAGIC, encode};
use proto::message::{Message, Peer};
use types::limits::{HALF_OPEN_MAX, HANDSHAKE_TIMEOUT};
use types::{Duration, Fault, Instant};

use super::refusal;
use crate::Link;

/// Lines about refusals in [`WINDOW`].
const LINES_MAX: u64 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// How long a peer that is refused may take to send its hello and to read why.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);

/// Who is at the other end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// The server asks nobody for keys.
    Anybody,
    /// A process of this host: of root, or of the server's own user, with this number.
    Local(u32),
    /// A node that has proved its key, as the list has it.
    Node(Rc<Entry>),
}

impl Who {
    /// May it mount?
    pub fn may_mount(&self) -> bool {
        match self {
            Who::Anybody | Who::Local(_) => true,
            Who::Node(entry) => entry.role.may_mount(),
        }
    }

    /// May it evict, scrub, and read the state of others?
    pub fn administers(&self) -> bool {
        match self {
            Who::Anybody | Who::Local(_) => true,
            Who::Node(entry) => entry.role == Role::Administrator,
        }
    }

    /// May it speak as a metadata server of the cluster?
    pub fn serves(&self) -> bool {
        match self {
            Who::Anybody | Who::Local(_) => true,
            Who::Node(entry) => entry.role == Role::Server,
        }
    }

    /// Whose requests count as nobody's?
    pub fn squash(&self) -> Squash {
        match self {
            Who::Anybody | Who::Local(_) => Squash::Off,
            Who::Node(entry) => entry.squash,
        }
    }

    /// The node's name; empty if it has none.
    pub fn node(&self) -> &str {
        match self {
            Who::Anybody | Who::Local(_) => "",
            Who::Node(entry) => &entry.name,
        }
    }

    /// May it go on with what the node `name` began? A process of this host has no name, and is
    /// trusted.
    pub fn may_go_on_as(&self, name: &str) -> bool {
        name.is_empty() || self.node().is_empty() || self.node() == name
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Anybody => f.write_str("anybody"),
            Who::Local(user) => write!(f, "user {user} of this host"),
            Who::Node(entry) => write!(f, "node {} ({})", entry.name, entry.role),
        }
    }
}

/// What a server's files of keys hold, each if it can be read.
pub struct KeyFiles {
    /// Its own keys.
    pub secrets: Result<SecretKeys, String>,
    /// Those of others.
    pub allowed: Result<Allowed, String>,
}

impl From<KeyRing> for KeyFiles {
    fn from(ring: KeyRing) -> KeyFiles {
        KeyFiles { secrets: Ok(ring.secrets), allowed: Ok(ring.allowed) }
    }
}

/// The server's keys, and the keys that it allows.
#[derive(Clone, Debug)]
pub struct KeyRing {
    /// Its own.
    pub secrets: SecretKeys,
    /// Those of others.
    pub allowed: Allowed,
}

/// How a server asks for keys.
#[derive(Clone)]
pub struct ServerKeys {
    /// The least that a client has to ask for.
    pub least: Mode,
    /// How many connections may be in a handshake or a refusal; at most [`HALF_OPEN_MAX`].
    pub half_open_max: usize,
    /// Reads the keys; `None`: they have not changed since the last call. Called often.
    pub read: Rc<dyn Fn() -> Option<KeyFiles>>,
}

/// What has happened at the door since the server's start, and what happens now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DoorCounts {
    /// Connections that were let in by a key.
    pub by_key: u64,
    /// Connections that were let in by the local socket.
    pub local: u64,
    /// Handshakes in progress, and refusals.
    pub half_open: u64,
    /// Refused: the key is in no line of the list.
    pub unknown_key: u64,
    /// Refused: the key is revoked.
    pub revoked_key: u64,
    /// Refused: clear frames without a handshake.
    pub no_key: u64,
    /// Refused: the client expects a server with another key.
    pub wrong_server: u64,
    /// Refused: the client wants clear frames.
    pub wrong_mode: u64,
    /// Refused: the last message proves no key, as a recorded one does not.
    pub wrong_proof: u64,
    /// Refused: no handshake, or a damaged one.
    pub malformed: u64,
    /// Refused: another user of this host, by the local socket.
    pub local_user: u64,
    /// Closed: the handshake took too long, or the peer closed the connection before its end.
    pub unfinished: u64,
    /// Closed: too many were in progress, and this one was the oldest.
    pub crowded_out: u64,
}

impl DoorCounts {
    /// Each with its name, for reports.
    pub fn named(&self) -> [(&'static str, u64); 13] {
        [
            ("by_key", self.by_key),
            ("local", self.local),
            ("half_open", self.half_open),
            ("unknown_key", self.unknown_key),
            ("revoked_key", self.revoked_key),
            ("no_key", self.no_key),
            ("wrong_server", self.wrong_server),
            ("wrong_mode", self.wrong_mode),
            ("wrong_proof", self.wrong_proof),
            ("malformed", self.malformed),
            ("local_user", self.local_user),
            ("unfinished", self.unfinished),
            ("crowded_out", self.crowded_out),
        ]
    }
}

/// See the module.
pub struct Door {
    env: Env,
    log: Rc<dyn Fn(&str)>,
    keys: Option<ServerKeys>,
    ring: RefCell<Option<Rc<KeyRing>>>,
    /// How often the keys have changed.
    changes: Cell<u64>,
    /// Why files of keys are not in force as they are.
    problem: RefCell<Option<String>>,
    /// Connections whose handshake or refusal is in progress, by their number: the oldest first.
    half_open: RefCell<BTreeMap<u64, Stream>>,
    last_number: Cell<u64>,
    counts: Cell<DoorCounts>,
    lines: Cell<Lines>,
}

/// Lines about refusals since `since`, and how many were left out.
#[derive(Clone, Copy)]
struct Lines {
    since: Instant,
    written: u64,
    omitted: u64,
}

/// Why a connection is not let in.
enum Refusal {
    /// By the handshake.
    Problem(Problem),
    /// The first bytes are a frame.
    Clear,
    /// The connection has ended.
    Ended,
}

/// Removes a connection from those whose handshake or refusal is in progress.
struct HalfOpen<'a> {
    door: &'a Door,
    number: u64,
}

impl HalfOpen<'_> {
    /// Was the connection closed because too many are in progress?
    fn is_lost(&self) -> bool {
        !self.door.half_open.borrow().contains_key(&self.number)
    }
}

impl Drop for HalfOpen<'_> {
    fn drop(&mut self) {
        self.door.half_open.borrow_mut().remove(&self.number);
    }
}

impl Door {
    /// The door of a server that asks for `keys`; `None`: for none.
    pub fn new(env: Env, keys: Option<ServerKeys>, log: Rc<dyn Fn(&str)>) -> Door {
        let lines = Lines { since: env.now(), written: 0, omitted: 0 };
        Door {
            env,
            log,
            keys,
            ring: RefCell::default(),
            changes: Cell::new(0),
            problem: RefCell::default(),
            half_open: RefCell::default(),
            last_number: Cell::new(0),
            counts: Cell::default(),
            lines: Cell::new(lines),
        }
    }

    /// What a client has to ask for; `None`: the server asks nobody for keys.
    pub fn least(&self) -> Option<Mode> {
        self.keys.as_ref().map(|keys| keys.least)
    }

    /// See [`DoorCounts`].
    pub fn counts(&self) -> DoorCounts {
        let half_open = self.half_open.borrow().len() as u64;
        DoorCounts { half_open, ..self.counts.get() }
    }

    /// Reads the keys again if they have changed. Yields how often they have.
    ///
    /// A file that cannot be read changes nothing, and is named in the log.
    ///
    /// # Errors
    /// They cannot be read, and were not before.
    pub fn refresh(&self) -> Result<u64, String> {
        self.end_window();
        let Some(files) = self.keys.as_ref().and_then(|keys| (keys.read)()) else {
            return Ok(self.changes.get());
        };
        let (old, mut problems) = (self.ring.borrow().clone(), Vec::new());
        let secrets = files.secrets.map_err(|text| problems.push(text)).ok();
        let allowed = files.allowed.map_err(|text| problems.push(text)).ok();
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        let secrets = secrets.or_else(|| old.as_ref().map(|old| old.secrets.clone()));
        let allowed = allowed.or_else(|| old.as_ref().map(|old| old.allowed.clone()));
        let (Some(secrets), Some(allowed)) = (secrets, allowed) else {
            return Err(problem.unwrap_or_default());
        };
        if let Some(text) = &problem {
            (self.log)(&format!("{text}; what was read of it before stays in force"));
        }
        *self.problem.borrow_mut() = problem;
        *self.ring.borrow_mut() = Some(Rc::new(KeyRing { secrets, allowed }));
        self.changes.set(self.changes.get() + 1);
        Ok(self.changes.get())
    }

    /// Why files of keys are not in force as they are; `None`: they are.
    pub fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Does the list say nothing else of `who` than when it came?
    pub fn admits(&self, who: &Who) -> bool {
        let Who::Node(entry) = who else { return true };
        let ring = self.ring.borrow();
        let now = ring.as_ref().and_then(|ring| ring.allowed.find(&entry.key));
        now.is_none_or(|now| now == entry)
    }

    /// May `who` mount by any of its keys, or is its key not in the list?
    pub fn admits_node(&self, who: &Who) -> bool {
        let Who::Node(entry) = who else { return true };
        let may = |ring: &Rc<KeyRing>| ring.allowed.may_mount(&entry.name);
        !self.lists(who) || self.ring.borrow().as_ref().is_some_and(may)
    }

    /// Is the key of `who` in the list, revoked or not? Who has none is as if it were.
    pub fn lists(&self, who: &Who) -> bool {
        let Who::Node(entry) = who else { return true };
        let ring = self.ring.borrow();
        ring.as_ref().is_some_and(|ring| ring.allowed.find(&entry.key).is_some())
    }

    /// Closes the connections whose handshake is in progress.
    pub fn close(&self) {
        for stream in self.half_open.borrow().values() {
            stream.shutdown();
        }
    }

    /// Asks who is at the other end; `None`: nobody who may come in, and the connection is closed.
    pub async fn admit<P: Peer>(&self, stream: Stream) -> Option<(Link, Who)> {
        if self.keys.is_none() {
            return Some((stream.into(), Who::Anybody));
        }
        if let Some(user) = stream.peer_user() {
            if user == 0 || user == self.env.own_user() {
                self.count(|counts| &mut counts.local);
                return Some((stream.into(), Who::Local(user)));
            }
            let place = self.enter(&stream);
            self.count(|counts| &mut counts.local_user);
            let text = format!(
                "user {user} of this host may not use the server's local socket: mount by TCP, \
                 with a key"
            );
            self.refuse::<P>(&stream.into(), &text).await;
            drop(place);
            return None;
        }
        // Until it is let in, or closed: what is being refused is an open connection, too.
        let place = self.enter(&stream);
        let shaken = self.env.timeout(HANDSHAKE_TIMEOUT, self.shake_hands(&stream)).await;
        let come_in = match shaken.unwrap_or(Err(Refusal::Ended)) {
            Ok((link, key)) => self.let_in::<P>(link, key).await,
            Err(Refusal::Ended) if place.is_lost() => None,
            Err(refusal) => {
                self.turn_away::<P>(stream, refusal).await;
                None
            }
        };
        drop(place);
        come_in
    }

    /// Counts a connection among those whose handshake is in progress; closes the oldest if there
    /// are too many.
    fn enter(&self, stream: &Stream) -> HalfOpen<'_> {
        let mut half_open = self.half_open.borrow_mut();
        let most = self.keys.as_ref().map_or(HALF_OPEN_MAX, |keys| keys.half_open_max);
        if half_open.len() >= most.min(HALF_OPEN_MAX)
            && let Some((_, oldest)) = half_open.pop_first()
        {
            oldest.shutdown();
            self.count(|counts| &mut counts.crowded_out);
        }
        let number = self.last_number.get() + 1;
        self.last_number.set(number);
        half_open.insert(number, stream.clone());
        HalfOpen { door: self, number }
    }

    async fn shake_hands(&self, stream: &Stream) -> Result<(Link, channel::PublicKey), Refusal> {
        let least = self.least().ok_or(Refusal::Ended)?;
        let mut responder = Responder::new(least);
        let (mut input, mut out, mut fresh) = (Vec::new(), Vec::new(), false);
        loop {
            let result;
            (result, input) = stream.read(input, MESSAGE_MAX).await;
            if !matches!(result, Ok(1..)) {
                return Err(Refusal::Ended);
            }
            if input.starts_with(&MAGIC.to_le_bytes()) {
                return Err(Refusal::Clear);
            }
            if !std::mem::replace(&mut fresh, true)
                && let Err(text) = self.refresh()
            {
                (self.log)(&text);
            }
            let ring = self.ring.borrow().clone().ok_or(Refusal::Ended)?;
            let secrets = ring.secrets.all();
            let random = || self.env.random_bytes();
            let made = responder.receive(secrets, random, &mut input, &mut out);
            if let Some(made) = made.map_err(Refusal::Problem)? {
                let parts = (input, out);
                let link = Link::after_handshake(stream.clone(), made.transport, parts);
                return Ok((link, made.key));
            }
            let written;
            (written, out) = stream.write_all(out).await;
            written.map_err(|_| Refusal::Ended)?;
        }
    }

    /// The peer has proved `key`: is that allowed?
    async fn let_in<P: Peer>(&self, link: Link, key: channel::PublicKey) -> Option<(Link, Who)> {
        let ring = self.ring.borrow().clone()?;
        let text = match ring.allowed.find(&key) {
            Some(entry) if !entry.revoked => {
                self.count(|counts| &mut counts.by_key);
                return Some((link, Who::Node(entry.clone())));
            }
            Some(entry) => {
                self.count(|counts| &mut counts.revoked_key);
                format!("the key of node {} is revoked", entry.name)
            }
            // The servers of a cluster have one key.
            None if ring.secrets.all().iter().any(|own| own.public() == key) => {
                self.count(|counts| &mut counts.by_key);
                return Some((link, Who::Node(Rc::new(Entry::of_server(key)))));
            }
            None => {
                self.count(|counts| &mut counts.unknown_key);
                format!("the key {key} is not in the server's list of allowed keys")
            }
        };
        self.refuse::<P>(&link, &text).await;
        None
    }

    async fn turn_away<P: Peer>(&self, stream: Stream, refusal: Refusal) {
        let peer = stream.peer();
        match refusal {
            Refusal::Ended => self.count(|counts| &mut counts.unfinished),
            Refusal::Clear => {
                self.count(|counts| &mut counts.no_key);
                let text = "this server wants a handshake with keys, and this client has none: \
                            make a key by `redbud key new`, or, if the network is your own, write \
                            security = \"none\" for both";
                return self.refuse::<P>(&stream.into(), text).await;
            }
            Refusal::Problem(problem) => {
                self.count(|counts| match problem {
                    Problem::Malformed | Problem::Unknown => &mut counts.malformed,
                    Problem::WrongServer => &mut counts.wrong_server,
                    Problem::WrongMode => &mut counts.wrong_mode,
                    Problem::WrongProof => &mut counts.wrong_proof,
                });
                self.report(&peer, &problem.to_string());
                let mut text = Vec::new();
                channel::refuse(problem, &mut text);
                let _ = self.env.timeout(REFUSAL_PATIENCE, stream.write_all(text)).await;
            }
        }
        stream.shutdown();
    }

    /// Tells the peer why it is not let in, once its hello is there, and closes the connection.
    async fn refuse<P: Peer>(&self, link: &Link, text: &str) {
        self.report(&link.peer(), text);
        let refused = refusal(Fault::AccessDenied, text);
        let mut bytes = Vec::new();
        encode::<P>(&Message::Refused { refused }, &mut bytes);
        let farewell = async {
            // A socket that is closed with bytes that nobody read resets the connection, and the
            // peer may lose the refusal.
            let _ = link.read(Vec::new(), MESSAGE_MAX).await;
            let _ = link.write_all(bytes).await;
        };
        let _ = self.env.timeout(REFUSAL_PATIENCE, farewell).await;
        link.shutdown();
    }

    fn count(&self, which: impl FnOnce(&mut DoorCounts) -> &mut u64) {
        let mut counts = self.counts.get();
        *which(&mut counts) += 1;
        self.counts.set(counts);
    }

    /// Names a refusal in the log, unless there were too many of late.
    fn report(&self, peer: &str, text: &str) {
        self.end_window();
        let mut lines = self.lines.get();
        if lines.written < LINES_MAX {
            lines.written += 1;
            (self.log)(&format!("{peer} is refused: {text}"));
        } else {
            lines.omitted += 1;
        }
        self.lines.set(lines);
    }

    /// Says how many refusals the log left out, when a window is over.
    fn end_window(&self) {
        let (lines, now) = (self.lines.get(), self.env.now());
        if now.since(lines.since) < WINDOW || lines.written == 0 {
            return;
        }
        self.lines.set(Lines { since: now, written: 0, omitted: 0 });
        if lines.omitted > 0 {
            let seconds = now.since(lines.since).as_secs();
            let count = lines.omitted;
            (self.log)(&format!("{count} more connections were refused in the last {seconds} s"));
        }
    }
}

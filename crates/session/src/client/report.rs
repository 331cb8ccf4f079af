//! What a session is, holds and waits for: for its user, and as a report for people.
//!
//! Invariants:
//! - a report changes nothing and costs only when somebody asks.

use proto::liveness::Timing;
use proto::message::{Peer, Reply};
use proto::slots::SlotClass;
use types::{ClientId, Duration, Epoch, Instant, ServerId, Transno, Uuid};

use super::{Phase, Session};

/// What a session is doing, and since when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionReport {
    /// The server's number.
    pub server: ServerId,
    /// Addresses of the server, tried in turn.
    pub addresses: Vec<String>,
    /// Address of the connection; empty: there is none.
    pub address: String,
    /// "up", "recovering", "down" or "closed".
    pub phase: &'static str,
    /// Does the server refuse the client's key? Requests fail until it does so no longer.
    pub refused: bool,
    /// For how long there has been no connection; zero if there is one.
    pub down: Duration,
    /// For how long the server has owed an answer that it gives at once; zero if it owes none.
    pub silent: Duration,
    /// For how long nothing has come from the server.
    pub last_heard: Duration,
    /// How fast the server is, and how often it was doubted.
    pub timing: Timing,
    /// The client's number; 0 while it has no session.
    pub client: ClientId,
    /// The server's epoch.
    pub epoch: Epoch,
    /// The lease, and what is left of it.
    pub lease: Duration,
    /// See [`SessionReport::lease`].
    pub lease_left: Duration,
    /// Requests without an answer, and the age of the oldest.
    pub unanswered: usize,
    /// See [`SessionReport::unanswered`].
    pub oldest_unanswered: Duration,
    /// Answered changes that are not known to be durable, and the age of the oldest.
    pub kept: usize,
    /// See [`SessionReport::kept`].
    pub oldest_kept: Duration,
    /// How often the session was lost.
    pub evictions: u64,
}

/// What a session keeps for replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// The last transaction that the server has answered.
    pub seen: Transno,
    /// The server has everything up to this one durably.
    pub last_committed: Transno,
    /// Answered requests that it may not have.
    pub requests: usize,
    /// Their bytes in memory, estimated.
    pub bytes: usize,
}

/// A request that may not be durable.
pub struct Unconfirmed<'a, P: Peer> {
    /// Its operations.
    pub ops: &'a [P::Op],
    /// The server's answer, if it is here.
    pub reply: Option<&'a Reply<P>>,
    /// When it was first sent, or made if it is not sent.
    pub sent: Instant,
}

/// A request without an answer that an operation waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Awaited<Op> {
    /// The server's number.
    pub server: ServerId,
    /// Its operations.
    pub ops: Vec<Op>,
    /// When it was first sent, or made if it is not sent.
    pub sent: Instant,
}

/// Why a request of a session is not even made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Congestion {
    /// All its slots are in use.
    Slots,
    /// What it keeps for replay fills the bound, until the server's log is durable.
    Kept,
}

impl<P: Peer> Session<P> {
    /// The client's number.
    pub fn client(&self) -> ClientId {
        self.state.borrow().client
    }

    /// The server's number.
    pub fn server(&self) -> ServerId {
        self.state.borrow().server
    }

    /// The file system, and what the server offers beside the session.
    pub fn offer(&self) -> (Uuid, Option<P::Offer>) {
        let state = self.state.borrow();
        (state.fs, state.offer.clone())
    }

    /// The epoch of the server's start, by its last greeting.
    pub fn epoch(&self) -> Epoch {
        self.state.borrow().epoch
    }

    /// The version and the abilities that were agreed with the server.
    pub fn agreed(&self) -> (u32, u64) {
        let state = self.state.borrow();
        (state.version, state.features)
    }

    /// The version of the cluster map that the server has; 0: none.
    pub fn map_version(&self) -> u64 {
        self.state.borrow().map
    }

    /// Rises whenever a session is lost with changes that were answered but not known to be
    /// durable.
    pub fn losses(&self) -> u64 {
        self.state.borrow().losses
    }

    /// What it is doing now.
    pub fn report(&self) -> SessionReport {
        let now = self.env.now();
        let timing = self.timing();
        let state = self.state.borrow();
        let age = |at: Option<Instant>| at.map_or(Duration::ZERO, |at| now.since(at));
        SessionReport {
            server: state.server,
            addresses: self.config.addresses.clone(),
            address: state.stream.as_ref().map(|stream| stream.peer()).unwrap_or_default(),
            phase: match state.phase {
                Phase::Down => "down",
                Phase::Recovering => "recovering",
                Phase::Up => "up",
                Phase::Closed => "closed",
            },
            refused: state.refused,
            down: age(state.disconnected_at),
            silent: age(state.liveness.silent_since()),
            last_heard: now.since(state.liveness.last_heard()),
            timing,
            client: state.client,
            epoch: state.epoch,
            lease: state.lease,
            lease_left: state.lease_ends.since(now),
            unanswered: state.pending.len(),
            oldest_unanswered: age(state.pending.values().map(|pending| pending.sent).min()),
            kept: state.replay.len(),
            oldest_kept: age(state.replay.oldest()),
            evictions: state.evictions,
        }
    }

    /// What it keeps for replay.
    pub fn kept(&self) -> Kept {
        let state = self.state.borrow();
        let (requests, bytes) = (state.replay.len(), state.replay.bytes());
        Kept { seen: state.seen, last_committed: state.last_committed, requests, bytes }
    }

    /// The caller of `operation` is gone: what it has not sent yet fails with `Interrupted`.
    /// [`super::Shared`] must know of it already.
    pub fn give_up(&self, operation: u64) {
        self.withdraw_unsent(operation);
    }

    /// Calls `each` for every request that may change something and is not known to be durable.
    pub fn each_unconfirmed(&self, mut each: impl FnMut(Unconfirmed<'_, P>)) {
        let state = self.state.borrow();
        for entry in state.replay.entries() {
            let (ops, reply) = (&entry.request.ops[..], Some(&*entry.reply));
            each(Unconfirmed { ops, reply, sent: entry.sent });
        }
        for pending in state.pending.values().filter(|pending| pending.weight.is_some()) {
            each(Unconfirmed { ops: &pending.request.ops, reply: None, sent: pending.sent });
        }
    }

    /// The requests without an answer that `operation` has made.
    pub fn awaited_by(&self, operation: u64) -> Vec<Awaited<P::Op>> {
        let state = self.state.borrow();
        let asked = state.pending.values().filter(|pending| pending.operation == operation);
        let awaited = asked.map(|pending| Awaited {
            server: state.server,
            ops: pending.request.ops.clone(),
            sent: pending.sent,
        });
        awaited.collect()
    }

    /// Why an operation's next request would wait before it is made, if it would.
    pub fn congestion(&self) -> Option<Congestion> {
        let full = !self.state.borrow().replay.has_room(SlotClass::Ordinary, 0);
        match self.ordinary.available() {
            _ if full => Some(Congestion::Kept),
            0 => Some(Congestion::Slots),
            _ => None,
        }
    }
}

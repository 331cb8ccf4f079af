//! The client's side of a session: slots, replies, replay, reconnection.
//!
//! Invariants:
//! - a request stays in its slot until it is answered or the session is lost; a new connection
//!   resends it with the same sequence;
//! - [`Events`] gets replies and pushes in the order of their arrival, before any waiter;
//! - an answered request that changed state is kept with its reply until the server says that it is
//!   durable; after a restart it is replayed with that result (`replay_list`);
//! - a request that may change state is sent only if there is room to keep it (`room`);
//! - the lease counts from the sending of the last request that was answered;
//! - requests that complete a recall never wait for an ordinary slot;
//! - unanswered requests are resent in the order in which they were made.

mod callers;
mod config;
mod connection;
mod handshake;

mod pushes;
mod recovery;
mod replay_list;
mod report;
mod room;
mod sessions;
mod silence;
mod tool;
mod watch;
mod writers;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use env::Env;
use env::sync::{Notify, OneReceiver, OneSender, Permit, Semaphore, oneshot};
use proto::liveness::{Liveness, Timer};
use proto::message::{Message, Peer, Principal, Reply, Request};
use proto::slots::{SlotClass, SlotTable, TABLE_RESERVED, Ticket};
use types::{
    Bug, ClientId, Duration, Epoch, Fault, Instant, ServerId, Timestamp, Transno, Uuid, planted,
};

use crate::{Link, Outgoing};
pub use callers::Shared;
pub use config::{Config, ConnectError};
pub use handshake::{ClientKeys, ReadClientKeys, secure};
pub use proto::liveness::Timing;
pub use replay_list::{KeptLimits, ReplayEntry};
use replay_list::{ReplayList, weight};
pub use report::{Awaited, Congestion, Kept, SessionReport, Unconfirmed};
pub use sessions::Sessions;
pub use tool::{ToolError, ask, ask_server};

/// What a session reports to its user. All methods are called on the connection's task and do not
/// wait.
pub trait Events<P: Peer> {
    /// `server` has replied to `request`, which is number `order` of the client. The request has
    /// at least as many operations as were executed.
    fn absorb(&self, server: ServerId, request: &Request<P>, reply: &Reply<P>, order: u64);
    /// `server` sent a push (other than those that the session itself understands). Returns what
    /// the client answers at once, if anything.
    fn push(&self, server: ServerId, push: P::Push) -> Option<P::PushReply>;
    /// The server has answered a later greeting.
    fn connected(&self, _server: ServerId) {}
    /// The server restarted with `epoch`: returns the operations that reclaim what is held there,
    /// each for a request of its own.
    fn reclaim(&self, server: ServerId, epoch: Epoch) -> Vec<P::Op>;
    /// Does the operation name something whose creation was lost?
    fn names_lost(&self, op: &P::Op) -> bool;
    /// The server restarted, and did not repeat a request that its predecessor had answered: what
    /// the request did is lost.
    fn not_repeated(&self, _request: &Request<P>) {}
    /// The session was lost and there is a new one under a new number. `lost`: changes that were
    /// answered, and were lost with the session and the server that had answered them.
    fn evicted(&self, server: ServerId, client: ClientId, lost: &[ReplayEntry<P>]);
}

/// A request to send.
#[derive(Clone)]
pub struct Call<P: Peer> {
    /// The operations.
    pub ops: Vec<P::Op>,
    /// The user on whose behalf they run.
    pub principal: Principal,
    /// The server replies only when it is durable.
    pub sync: bool,
    /// The slots that it may take.
    pub class: SlotClass,
}

impl<P: Peer> Call<P> {
    /// One operation in an ordinary slot.
    pub fn one(caller: impl Into<Principal>, op: P::Op) -> Call<P> {
        Call::ops(caller, vec![op])
    }

    /// Several, each its own transaction.
    pub fn ops(caller: impl Into<Principal>, ops: Vec<P::Op>) -> Call<P> {
        Call { ops, principal: caller.into(), sync: false, class: SlotClass::Ordinary }
    }

    /// Operations of the client itself in a reserved slot.
    pub fn reserved(ops: Vec<P::Op>) -> Call<P> {
        let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
        Call { ops, principal, sync: false, class: SlotClass::Reserved }
    }
}

type Answer<P> = Result<Rc<Reply<P>>, Fault>;

struct PendingRequest<P: Peer> {
    request: Rc<Request<P>>,
    /// What it takes in the replay list, if it may change something.
    weight: Option<usize>,
    /// Number of the request, in the order in which requests are made.
    order: u64,
    /// When it was first sent: the reply may be to that, however often it was resent since. The
    /// reply may even have come over this connection before the client, which was suspended, sent
    /// the request there.
    sent: Instant,
    /// The server may have it.
    submitted: bool,
    /// It was sent more than once: nobody knows to which of these an answer belongs.
    resent: bool,
    /// How long it may still take.
    timer: Timer,
    /// The operation that it belongs to; 0 if it cannot be given up.
    operation: u64,
    /// It is not sent again.
    retracted: bool,
    answer: OneSender<Answer<P>>,
    _permit: Permit,
}

/// The state of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No connection, or no Welcome yet.
    Down,
    /// Reclaim and replay are in progress; other requests wait.
    Recovering,
    /// Requests are sent.
    Up,
    /// Closed by `close`.
    Closed,
}

struct SessionState<P: Peer> {
    phase: Phase,
    slots: SlotTable,
    pending: BTreeMap<u16, PendingRequest<P>>,
    /// Requests to be written, and whether an executor is writing some.
    out: Outgoing,
    writing: bool,
    stream: Option<Link>,
    /// Rises with every connection.
    connection: u64,
    /// The reply that recovery waits for.
    recovery: Option<(Ticket, OneSender<Reply<P>>)>,
    /// Sequence of the recovery slot, and its request if that is unanswered.
    recovery_seq: u32,
    recovery_unanswered: Option<Request<P>>,
    /// The last request of a recovery, and when it was first sent.
    recovery_sent: Option<(Ticket, Instant)>,
    /// How long that may still take.
    recovery_timer: Option<Timer>,
    replay: ReplayList<P>,
    /// The request that makes the server flush its log because the list is long.
    forced: Option<Ticket>,
    /// How often answered changes were lost with a session.
    losses: u64,
    client: ClientId,
    epoch: Epoch,
    /// Servers of earlier epochs have been replaced: a session with one permits nothing.
    epoch_min: Epoch,
    /// The server that the client met first, and goes on with.
    server: ServerId,
    fs: Uuid,
    /// Version and abilities agreed, and the cluster map that the server has.
    version: u32,
    features: u64,
    map: u64,
    offer: Option<P::Offer>,
    nonce: u64,
    seen: Transno,
    last_committed: Transno,
    lease: Duration,
    lease_ends: Instant,
    /// Whether the server is alive, and how fast it is.
    liveness: Liveness,
    /// The renewal of the lease that is unanswered.
    renewal: Option<Ticket>,
    /// When the watch looks at the times of requests.
    next_look: Instant,
    /// When the last request was made, or the last answer came that is kept.
    last_use: Instant,
    /// When the connection was lost, if there is no other since.
    disconnected_at: Option<Instant>,
    /// Server's clock minus ours, in nanoseconds.
    clock_offset: i128,
    /// Requests that the server had to work on, as its last answer said.
    load: u16,
    last_time: Timestamp,
    /// The server refuses this client's key: requests fail until it does so no longer.
    refused: bool,
    /// The connection was dropped because the server answered nothing on it.
    timed_out: bool,
    evictions: u64,
}

/// What a session is doing, for status reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionStatus {
    /// The client's number; 0 while it has no session.
    pub client: ClientId,
    /// The server's epoch.
    pub epoch: Epoch,
    /// Requests are sent.
    pub connected: bool,
    /// Requests without an answer.
    pub in_flight: usize,
    /// Answered requests that may not be durable.
    pub replay: usize,
    /// How often the session was lost.
    pub evictions: u64,
}

/// A client's session with one server, through all connections.
pub struct Session<P: Peer> {
    /// Clock, network and tasks.
    pub env: Env,
    config: Config,
    state: RefCell<SessionState<P>>,
    ordinary: Semaphore,
    reserved: Semaphore,
    /// The reserved slot for renewing the lease. When all others wait for a slow server, renewals
    /// show each side that the other is alive.
    renewal: Semaphore,
    writers: writers::Writers,
    changed: Notify,
    /// Wakes the watch.
    watched: Notify,
    /// Notified when there is more room in the replay list.
    room: Notify,
    /// Notified when an operation was given up.
    given_up: Notify,
    events: OnceCell<Weak<dyn Events<P>>>,
    /// Pushes that came before `events` was there.
    early_pushes: RefCell<Vec<P::Push>>,
    /// A goodbye was sent: the end of the connection ends the session.
    leaving: Cell<bool>,
    /// Which of the addresses has answered last.
    served_at: Cell<usize>,
    /// When the first wait for an absent server began (see `away`).
    away_since: Cell<Option<Instant>>,
    shared: Rc<Shared>,
}

impl<P: Peer> SessionState<P> {
    /// Has the server ended the session, and is there no new one?
    fn has_no_session(&self) -> bool {
        self.client == ClientId(0)
    }

    /// The server has answered a request from `sent`. After the server has ended the session no
    /// lease is left.
    fn extend_lease(&mut self, sent: Instant) {
        if !self.has_no_session() && self.epoch >= self.epoch_min {
            self.lease_ends = self.lease_ends.max(sent + self.lease);
        }
    }
}

impl<P: Peer> Session<P> {
    fn events(&self) -> Option<Rc<dyn Events<P>>> {
        self.events.get()?.upgrade()
    }

    /// Writes one line to the log.
    pub fn log(&self, text: &str) {
        (self.config.log)(text);
    }

    /// Makes a request and waits for its reply, through reconnections and restarts.
    ///
    /// # Errors
    /// `Evicted`: the session was lost before the reply came, and the request may or may not have
    /// been executed; idempotent requests are repeated instead. `NotPermitted`: the server refuses
    /// this client's key. `Unreachable`: the session is closed. `Interrupted`: the operation was
    /// given up before the request was sent. `Stale`: the request names an inode whose creation was
    /// lost.
    pub async fn call(&self, call: Call<P>) -> Answer<P> {
        // A request without operations asks that what was done in this session becomes durable.
        if call.ops.is_empty() || !call.ops.iter().all(P::outlives_session) {
            return self.call_once(call).await;
        }
        loop {
            match self.call_once(call.clone()).await {
                Err(Fault::Evicted) => {}
                answer => return answer,
            }
        }
    }

    async fn call_once(&self, call: Call<P>) -> Answer<P> {
        let permits = match call.class {
            SlotClass::Ordinary => &self.ordinary,
            SlotClass::Reserved => &self.reserved,
        };
        let operation = self.shared.current_for(call.class);
        let weight = weight::<P>(&call.ops);
        loop {
            self.wait_for_room(call.class, weight, operation).await?;
            let permit = self.permit(permits, operation).await?;
            let asked = call.class == SlotClass::Ordinary;
            if asked
                && self
                    .events()
                    .is_some_and(|events| call.ops.iter().any(|op| events.names_lost(op)))
            {
                return Err(Fault::Stale);
            }
            if self.shared.is_gone(operation) {
                return Err(Fault::Interrupted);
            }
            if !self.has_room(call.class, weight) {
                continue;
            }
            let (_, receiver) = self.submit(call, weight, permit, operation)?;
            return receiver.await.unwrap_or(Err(Fault::Evicted));
        }
    }

    /// Sends a request of the session itself, which changes nothing.
    fn submit_own(
        &self,
        op: P::Op,
        permit: Permit,
    ) -> Result<(Ticket, OneReceiver<Answer<P>>), Fault> {
        self.submit(Call::reserved(vec![op]), None, permit, callers::NO_OPERATION)
    }

    fn submit(
        &self,
        call: Call<P>,
        weight: Option<usize>,
        permit: Permit,
        operation: u64,
    ) -> Result<(Ticket, OneReceiver<Answer<P>>), Fault> {
        let mut state = self.state.borrow_mut();
        if state.phase == Phase::Closed {
            return Err(Fault::Unreachable);
        }
        if state.refused {
            return Err(Fault::NotPermitted);
        }
        let ticket = state.slots.take(call.class).ok_or(Fault::Overloaded)?;
        let request = Request {
            slot: ticket.slot,
            seq: ticket.seq,
            principal: call.principal,
            sync: call.sync,
            replay: None,
            ops: call.ops,
        };
        let order = self.shared.next_order();
        let now = self.env.now();
        state.last_use = now;
        let timer = state.liveness.timer(now);
        state.replay.expect(weight);
        let submitted = state.phase == Phase::Up;
        let request = if submitted { self.enqueue(&mut state, request) } else { request };
        self.look_at(&mut state, timer.ends());
        let (answer, receiver) = oneshot();
        let pending = PendingRequest {
            request: Rc::new(request),
            weight,
            order,
            sent: now,
            submitted,
            resent: false,
            timer,
            operation,
            retracted: false,
            answer,
            _permit: permit,
        };
        state.pending.insert(ticket.slot, pending);
        Ok((ticket, receiver))
    }

    /// Appends a request to what the writer sends next.
    fn enqueue(&self, state: &mut SessionState<P>, request: Request<P>) -> Request<P> {
        let message = Message::Request { request };
        self.enqueue_message(state, &message);
        let Message::Request { request } = message else { unreachable!("just created") };
        request
    }

    fn enqueue_message(&self, state: &mut SessionState<P>, message: &Message<P>) {
        state.out.push(message);
        self.writers.wake(&self.env);
    }

    /// A reply came.
    fn reply_received(&self, reply: Reply<P>) {
        let mut state = self.state.borrow_mut();
        let ticket = Ticket { slot: reply.slot, seq: reply.seq };
        let is_renewal = state.renewal == Some(ticket);
        if state.phase == Phase::Recovering && !is_renewal {
            if let Some((_, sender)) = state.recovery.take_if(|(awaited, _)| *awaited == ticket) {
                drop(state);
                sender.send(reply);
            }
            return;
        }
        if !state.slots.answered(ticket) {
            return;
        }
        let Some(pending) = state.pending.remove(&reply.slot) else { return };
        state.note_timing(&pending, &reply, is_renewal);
        state.extend_lease(pending.sent);
        if state.phase == Phase::Recovering {
            // What the server says is durable begins with what is replayed.
            drop(state);
            pending.answer.send(Ok(Rc::new(reply)));
            return;
        }
        state.seen = state.seen.max(reply.transno);
        state.forced.take_if(|forced| *forced == ticket);
        state.replay.expected_no_longer(pending.weight);
        self.note_committed(&mut state, reply.last_committed);
        let reply = Rc::new(reply);
        if reply.transno > state.last_committed {
            state.replay.keep(pending.request.clone(), reply.clone(), pending.sent);
            self.schedule_ping(&mut state);
        }
        let long = state.replay.is_long();
        drop(state);
        if let Some(events) = self.events() {
            events.absorb(self.server(), &pending.request, &reply, pending.order);
        }
        pending.answer.send(Ok(reply));
        if long {
            self.force_sync();
        }
        self.announce_room();
    }

    fn note_committed(&self, state: &mut SessionState<P>, upto: Transno) {
        if upto > state.last_committed {
            state.last_committed = upto;
            state.replay.forget(upto);
        }
    }

    /// The server no longer knows this client: its next hello asks for a new session.
    fn lose_session(&self) {
        let mut state = self.state.borrow_mut();
        state.client = ClientId(0);
        state.lease_ends = Instant(0);
        if let Some(stream) = &state.stream {
            stream.shutdown();
        }
    }

    /// The server refuses this client's key. Requests fail now, and those that are made until the
    /// server lets the client in again.
    fn refused(&self) {
        self.lose_session();
        let mut state = self.state.borrow_mut();
        state.refused = true;
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        for pending in pending.into_values() {
            pending.answer.send(Err(Fault::NotPermitted));
        }
        self.changed.notify_all();
        self.announce_room();
    }

    /// Makes everything of this session so far durable; sends no request if it is already.
    ///
    /// # Errors
    /// `Evicted`: the session was lost in between, and perhaps what was done in it.
    pub async fn sync(&self) -> Result<(), Fault> {
        {
            let state = self.state.borrow();
            if state.seen <= state.last_committed {
                return Ok(());
            }
        }
        let reply = self.call(Call::reserved(vec![P::sync()])).await?;
        done(&reply)
    }

    /// Is there an unanswered operation for which `holds` is true?
    pub fn has_unanswered(&self, holds: impl Fn(&P::Op) -> bool) -> bool {
        let state = self.state.borrow();
        state.pending.values().flat_map(|pending| &pending.request.ops).any(holds)
    }

    /// Is no request unanswered?
    pub fn is_idle(&self) -> bool {
        self.state.borrow().pending.is_empty()
    }

    /// Waits until every request that is unanswered now has its reply.
    pub async fn barrier(&self) {
        let mut waiting: Vec<(u16, u32)> = {
            let state = self.state.borrow();
            state.pending.iter().map(|(slot, pending)| (*slot, pending.request.seq)).collect()
        };
        loop {
            {
                let state = self.state.borrow();
                waiting.retain(|(slot, seq)| {
                    state.pending.get(slot).is_some_and(|pending| pending.request.seq == *seq)
                });
            }
            if waiting.is_empty() {
                return;
            }
            self.env.sleep(Duration::from_millis(2)).await;
        }
    }

    /// Ends the client without a goodbye.
    pub fn abandon(&self) {
        let mut state = self.state.borrow_mut();
        state.phase = Phase::Closed;
        if let Some(stream) = state.stream.take() {
            stream.shutdown();
        }
        drop(state);
        self.writers.wake_all();
        self.changed.notify_all();
        self.watched.notify_all();
        self.room.notify_all();
    }

    /// A server of this epoch has taken over. A session with an earlier one permits nothing more,
    /// and the client looks for the new server.
    pub fn require_epoch(&self, epoch: Epoch) {
        let mut state = self.state.borrow_mut();
        if state.epoch_min >= epoch {
            return;
        }
        state.epoch_min = epoch;
        if state.epoch >= epoch || state.phase == Phase::Closed {
            return;
        }
        state.lease_ends = Instant(0);
        if let Some(stream) = &state.stream {
            stream.shutdown();
        }
        let old = state.epoch;
        drop(state);
        self.log(&format!(
            "a {} of epoch {epoch} has taken over from that of epoch {old}: nothing is written \
             until it answers",
            P::NAME
        ));
    }

    /// Until when caches may be used.
    pub fn lease_ends(&self) -> Instant {
        let ends = self.state.borrow().lease_ends;
        let ignored = planted(Bug::LeaseIgnored) && ends > Instant(0);
        if ignored { self.env.now() + self.lease() } else { ends }
    }

    /// What is left of the lease.
    pub fn lease_left(&self) -> Duration {
        self.lease_ends().since(self.env.now())
    }

    /// Waits until the lease is good; usually it is.
    ///
    /// # Errors
    /// `Unreachable` if the session is closed, `Interrupted` if the current operation was given up.
    pub async fn wait_for_lease(&self) -> Result<(), Fault> {
        loop {
            let changed = self.changed.notified();
            let (phase, refused, good) = {
                let state = self.state.borrow();
                (state.phase, state.refused, self.lease_ends() > self.env.now())
            };
            if phase == Phase::Closed {
                return Err(Fault::Unreachable);
            }
            if refused {
                return Err(Fault::NotPermitted);
            }
            if self.shared.caller_is_gone() {
                return Err(Fault::Interrupted);
            }
            if good {
                return Ok(());
            }
            if phase == Phase::Up {
                // The lease has run out: the answer to a renewal says whether the session still
                // exists.
                drop(changed);
                let permit = self.renewal.acquire(1).await;
                match self.renew(permit)?.await.unwrap_or(Err(Fault::Evicted)) {
                    Ok(_) | Err(Fault::Evicted) => continue,
                    Err(fault) => return Err(fault),
                }
            }
            changed.await;
        }
    }

    /// Requests that the server had to work on when it last answered, without those that waited for
    /// other clients.
    pub fn load(&self) -> u16 {
        self.state.borrow().load
    }

    /// The server's clock, estimated; never goes back.
    pub fn time(&self) -> Timestamp {
        const SECOND: i128 = 1_000_000_000;
        let wall = self.env.wall();
        let mut state = self.state.borrow_mut();
        let nanos = i128::from(wall.seconds) * SECOND + i128::from(wall.nanos) + state.clock_offset;
        let time = Timestamp {
            seconds: i64::try_from(nanos.div_euclid(SECOND)).unwrap_or(i64::MAX),
            nanos: nanos.rem_euclid(SECOND) as u32,
        };
        state.last_time = state.last_time.max(time);
        state.last_time
    }

    /// Ends the session: the server frees what this client held.
    pub async fn close(&self) {
        self.leaving.set(true);
        if self.is_connected() {
            let bound = self.lease().min(Duration::from_secs(10));
            let goodbye = self.call(Call::reserved(vec![P::goodbye()]));
            let _ = self.env.timeout(bound, goodbye).await;
        }
        self.end();
    }

    /// Closes the session; unanswered requests fail.
    fn end(&self) {
        let mut state = self.state.borrow_mut();
        state.phase = Phase::Closed;
        if let Some(stream) = state.stream.take() {
            stream.shutdown();
        }
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        for pending in pending.into_values() {
            pending.answer.send(Err(Fault::Unreachable));
        }
        self.writers.wake_all();
        self.changed.notify_all();
        self.watched.notify_all();
        self.room.notify_all();
    }

    /// Is there a connection on which the server sent a Welcome?
    pub fn is_connected(&self) -> bool {
        matches!(self.state.borrow().phase, Phase::Up | Phase::Recovering)
    }

    /// The number of requests that may not survive a crash of the server.
    pub fn unconfirmed(&self) -> usize {
        let state = self.state.borrow();
        let asked = state.pending.values().map(|pending| &pending.request.ops);
        let asked = asked.filter(|ops| !ops.iter().all(P::outlives_session));
        state.replay.len() + asked.count()
    }

    /// Has `close` been called?
    pub fn is_closed(&self) -> bool {
        self.state.borrow().phase == Phase::Closed
    }

    /// The length of the lease.
    pub fn lease(&self) -> Duration {
        self.state.borrow().lease
    }

    /// What the session is doing.
    pub fn status(&self) -> SessionStatus {
        let state = self.state.borrow();
        SessionStatus {
            client: state.client,
            epoch: state.epoch,
            connected: state.phase == Phase::Up,
            in_flight: state.slots.busy(),
            replay: state.replay.len(),
            evictions: state.evictions,
        }
    }

    fn new(env: Env, config: Config, shared: Rc<Shared>, slots: u16, nonce: u64) -> Session<P> {
        let slots = SlotTable::new(slots);
        Session {
            ordinary: Semaphore::new(usize::from(slots.ordinary())),
            reserved: Semaphore::new(usize::from(TABLE_RESERVED - 1)),
            renewal: Semaphore::new(1),
            state: RefCell::new(SessionState {
                phase: Phase::Down,
                slots,
                pending: BTreeMap::new(),
                out: Outgoing::default(),
                writing: false,
                stream: None,
                connection: 0,
                recovery: None,
                recovery_seq: 0,
                recovery_unanswered: None,
                recovery_sent: None,
                recovery_timer: None,
                replay: ReplayList::new(config.kept),
                forced: None,
                losses: 0,
                client: ClientId(0),
                epoch: Epoch(0),
                epoch_min: Epoch(0),
                server: config.expected.server,
                fs: config.expected.fs_uuid,
                version: 0,
                features: 0,
                map: config.expected.map,
                offer: None,
                nonce,
                seen: Transno::ZERO,
                last_committed: Transno::ZERO,
                lease: Duration::from_secs(30),
                lease_ends: Instant(0),
                liveness: Liveness::new(Duration::from_secs(30), env.now()),
                renewal: None,
                next_look: Instant::FAR,
                last_use: env.now(),
                disconnected_at: None,
                clock_offset: 0,
                load: 0,
                last_time: Timestamp::default(),
                refused: false,
                timed_out: false,
                evictions: 0,
            }),
            config,
            writers: writers::Writers::new(&env),
            changed: Notify::new(),
            watched: Notify::new(),
            room: Notify::new(),
            given_up: Notify::new(),
            events: OnceCell::new(),
            early_pushes: RefCell::default(),
            leaving: Cell::new(false),
            served_at: Cell::new(0),
            away_since: Cell::new(None),
            shared,
            env,
        }
    }
}

/// The fault of the operation that failed, if one did.
pub fn done<P: Peer>(reply: &Reply<P>) -> Result<(), Fault> {
    match reply.results.last() {
        Some(Err(fault)) => Err(*fault),
        Some(Ok(_)) => Ok(()),
        None => Err(Fault::Protocol),
    }
}

/// The result of operation `index`.
pub fn result<P: Peer>(reply: &Reply<P>, index: usize) -> Result<&P::OpReply, Fault> {
    match reply.results.get(index) {
        Some(Ok(result)) => Ok(result),
        Some(Err(fault)) => Err(*fault),
        None => done(reply).and(Err(Fault::Protocol)),
    }
}

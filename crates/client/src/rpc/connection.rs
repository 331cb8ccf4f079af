//! Connections to the server, one after the other: hello, reading, writing, reconnecting.

use std::rc::Rc;

use env::sync::Notified;
use env::{Env, Stream};
use proto::frame::{Decoder, Received};
use proto::mds::{self, Hello, Message, Op, Refused, Welcome};
use proto::slots::SlotTable;
use proto::wire::Bytes;
use types::{Bug, ClientId, Duration, Fault, Instant, Transno, planted};

use super::{Call, LostChanges, Phase, Session};
use crate::api::{ClientConfig, ConnectError};

/// Bytes requested from the socket at once.
const READ: usize = 128 << 10;
/// First pause between attempts, doubled up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long one attempt may take: a server that restarted makes new clients wait.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a TCP connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection on which the server said Welcome.
pub(super) struct Connection {
    stream: Stream,
    decoder: Decoder,
    welcome: Welcome,
    hello_sent: Instant,
}

enum Failure {
    /// Not reached, or the connection was lost.
    Unreachable(String),
    /// The server refused.
    Refused(Refused),
}

impl Failure {
    fn text(&self) -> String {
        match self {
            Failure::Unreachable(text) => text.clone(),
            Failure::Refused(refused) => refused.text.clone(),
        }
    }

    /// Would the same hello be refused again?
    fn is_final(&self) -> bool {
        matches!(self, Failure::Refused(refused)
            if !matches!(refused.fault, Fault::Overloaded | Fault::Evicted | Fault::Busy | Fault::WouldBlock))
    }
}

async fn receive(stream: &Stream, decoder: &mut Decoder) -> Result<Received, String> {
    loop {
        match decoder.next() {
            Ok(Some(received)) => return Ok(received),
            Ok(None) => {}
            Err(malformed) => return Err(malformed.to_string()),
        }
        let (result, bytes) = stream.read(decoder.lend(), READ).await;
        decoder.restore(bytes);
        match result {
            Ok(0) => return Err("the server closed the connection".into()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

async fn greet(
    env: &Env,
    address: &str,
    hello: Hello,
    patience: Duration,
) -> Result<Connection, Failure> {
    let unreachable = |text: String| {
        Failure::Unreachable(format!("cannot reach the metadata server at {address}: {text}"))
    };
    let attempt = async {
        let reached = env.timeout(CONNECT_TIMEOUT, env.connect(address)).await;
        let stream = reached
            .ok_or_else(|| {
                unreachable(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()))
            })?
            .map_err(|error| unreachable(error.to_string()))?;
        let hello_sent = env.now();
        let mut bytes = Vec::new();
        proto::frame::encode(&Message::Hello { hello }, &mut bytes);
        let (written, _) = stream.write_all(bytes).await;
        written.map_err(|error| unreachable(error.to_string()))?;
        let mut decoder = Decoder::new();
        match receive(&stream, &mut decoder).await.map_err(unreachable)? {
            Received::Message(Message::Welcome { welcome }) => {
                Ok(Connection { stream, decoder, welcome, hello_sent })
            }
            Received::Message(Message::Refused { refused }) => Err(Failure::Refused(refused)),
            _ => Err(unreachable("it did not answer with a welcome".into())),
        }
    };
    match env.timeout(patience, attempt).await {
        Some(result) => result,
        None => Err(unreachable(format!("no answer within {} ms", patience.as_millis()))),
    }
}

fn hello(config: &ClientConfig, client: ClientId, nonce: u64, seen: Transno) -> Hello {
    Hello {
        version_min: mds::VERSION,
        version_max: mds::VERSION,
        features: 0,
        fs_name: config.fs_name.clone(),
        role: 0,
        client,
        nonce,
        seen,
        description: config.description.clone(),
        auth: Bytes::default(),
        lease_ms: config
            .lease
            .map_or(0, |lease| lease.as_millis().min(u128::from(u32::MAX)) as u32),
    }
}

impl Session {
    /// Opens the first session; gives up after `connect_timeout` with the last reason.
    pub async fn open(env: Env, config: ClientConfig) -> Result<Rc<Session>, ConnectError> {
        if config.server.is_empty() {
            return Err(ConnectError { text: "no address of a metadata server is given".into() });
        }
        let nonce = env.random_u64();
        let until = env.now() + config.connect_timeout;
        let mut pause = PAUSE;
        loop {
            let mut text = String::new();
            for address in &config.server {
                let hello = hello(&config, ClientId(0), nonce, Transno::ZERO);
                let patience = until.since(env.now()).max(PAUSE_MAX).min(ATTEMPT_TIMEOUT);
                match greet(&env, address, hello, patience).await {
                    Ok(connection) => {
                        let slots = connection.welcome.slots;
                        let session = Rc::new(Session::new(env.clone(), config, slots));
                        session.state.borrow_mut().nonce = nonce;
                        session.adopt(&connection);
                        env.spawn(session.clone().run(connection));
                        env.spawn(session.clone().keep_alive());
                        return Ok(session);
                    }
                    Err(failure) if failure.is_final() => {
                        return Err(ConnectError { text: failure.text() });
                    }
                    Err(failure) => text = failure.text(),
                }
            }
            if env.now() + pause >= until {
                return Err(ConnectError { text });
            }
            env.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Applies a Welcome.
    fn adopt(&self, connection: &Connection) {
        let welcome = &connection.welcome;
        let wall = self.env.wall();
        let nanos = |time: types::Timestamp| {
            i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
        };
        let mut state = self.state.borrow_mut();
        if welcome.state != mds::RECOVERED || welcome.epoch != state.epoch {
            // An unanswered request of a recovery with the previous server must not go to this one,
            // where the recovery starts over. If it says "done", it would end the recovery at once.
            (state.recovery_unanswered, state.recovery_sent) = (None, None);
        }
        if welcome.state == mds::RESUMED {
            // The recovery is done, but its last reply was lost.
            state.renumber();
        }
        state.client = welcome.client;
        state.epoch = welcome.epoch;
        state.fs = welcome.fs_uuid;
        state.pags.clone_from(&welcome.pags);
        // A tenth is left for clock drift.
        state.lease = Duration::from_millis(u64::from(welcome.lease_ms) * 9 / 10);
        state.heard_at = self.env.now();
        state.clock_offset = nanos(welcome.time) - nanos(wall);
        state.out.clear();
        state.writing = false;
        state.stream = Some(connection.stream.clone());
        state.connection += 1;
        state.recovery = None;
        if welcome.state == mds::NEW {
            // Nothing of an older session means anything to the server.
            state.slots = SlotTable::new(welcome.slots);
            state.replay.clear();
            state.seen = Transno::ZERO;
            state.last_committed = Transno::ZERO;
        }
        state.phase = if welcome.state == mds::RECOVERED { Phase::Recovering } else { Phase::Up };
        state.disconnected_at = None;
        state.extend_lease(connection.hello_sent);
    }

    /// Serves connections until the session is closed.
    async fn run(self: Rc<Self>, first: Connection) {
        let mut next = Some(first);
        loop {
            let connection = match next.take() {
                Some(connection) => connection,
                None => match self.reconnect().await {
                    Some(connection) => connection,
                    None => return,
                },
            };
            let mut text = self.clone().serve(connection).await;
            let mut state = self.state.borrow_mut();
            if std::mem::take(&mut state.timed_out) {
                text = "it sent nothing for too long".into();
            }
            if state.phase == Phase::Closed {
                return;
            }
            if self.leaving.get() {
                drop(state);
                self.end();
                return;
            }
            state.disconnected(self.env.now());
            state.recovery = None;
            if let Some(stream) = state.stream.take() {
                stream.shutdown();
            }
            drop(state);
            self.writers.wake_all();
            self.log(&format!("lost the connection to the metadata server ({text}); reconnecting"));
        }
    }

    async fn serve(self: Rc<Self>, mut connection: Connection) -> String {
        let stream = connection.stream.clone();
        let number = self.state.borrow().connection;
        self.start_writers(&stream, number);
        if connection.welcome.state == mds::RECOVERED {
            let survived = connection.welcome.survived;
            self.env.spawn(self.clone().recover(number, survived));
        } else {
            self.resend();
        }
        loop {
            match receive(&stream, &mut connection.decoder).await {
                Ok(Received::Message(message)) => {
                    self.state.borrow_mut().note_received(self.env.now());
                    match message {
                        Message::Reply { reply } => self.reply_received(reply),
                        Message::Push { push } => self.push_received(push),
                        Message::Refused { refused } => {
                            if refused.fault == Fault::Evicted {
                                self.lose_session();
                            }
                            return refused.text;
                        }
                        _ => return "the server sent a message that only clients may send".into(),
                    }
                }
                Ok(Received::Unknown { .. }) => return "the server sent a request".into(),
                Err(text) => return text,
            }
        }
    }

    /// Sends all unanswered requests, again if they were sent before.
    pub(super) fn resend(&self) {
        let now = self.env.now();
        let mut state = self.state.borrow_mut();
        state.phase = Phase::Up;
        state.silent_since = None;
        let mut requests: Vec<_> = state
            .pending
            .values_mut()
            .map(|pending| {
                if !std::mem::replace(&mut pending.submitted, true) {
                    pending.sent = now;
                }
                (pending.order, pending.request.clone())
            })
            .collect();
        requests.sort_unstable_by_key(|(order, _)| *order);
        for (_, request) in requests {
            self.enqueue(&mut state, (*request).clone());
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Tries forever; `None` when the session was closed.
    async fn reconnect(&self) -> Option<Connection> {
        let mut pause = PAUSE;
        let mut logged = false;
        loop {
            for address in &self.config.server {
                if self.is_closed() {
                    return None;
                }
                let (client, nonce, seen) = {
                    let state = self.state.borrow();
                    (state.client, state.nonce, state.seen)
                };
                let hello = hello(&self.config, client, nonce, seen);
                match greet(&self.env, address, hello, ATTEMPT_TIMEOUT).await {
                    Ok(connection) => {
                        if self.is_closed() {
                            connection.stream.shutdown();
                            return None;
                        }
                        self.welcomed(&connection);
                        return Some(connection);
                    }
                    Err(Failure::Refused(refused)) if refused.fault == Fault::Evicted => {
                        self.log(&format!("this client was evicted: {}", refused.text));
                        self.lose_session();
                    }
                    Err(failure) if failure.is_final() && !logged => {
                        logged = true;
                        self.log(&failure.text());
                    }
                    Err(_) => {}
                }
            }
            // Clients that lost the server at one moment must not all reconnect at one moment.
            let half = pause / 2;
            let more = self.env.random_u64() % (half.as_nanos() as u64).max(1);
            self.env.sleep(half + Duration::from_nanos(more)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Handles a Welcome on a later connection: the session continues, or it is a new one.
    fn welcomed(&self, connection: &Connection) {
        let lost = connection.welcome.state == mds::NEW;
        let mut lost_changes = LostChanges::default();
        let pending = if lost {
            let mut state = self.state.borrow_mut();
            state.evictions += u64::from(!planted(Bug::EvictionUntold));
            // If it is the same server, what it answered is durable together with the new client's
            // number. For a previous server, `survived` says how much of its answers survived.
            let (epoch, survived) = (connection.welcome.epoch, connection.welcome.survived);
            let undone: Vec<_> = state.replay.lost(survived, epoch).collect();
            undone.iter().for_each(|entry| lost_changes.add(entry));
            if !undone.is_empty() {
                state.losses += 1;
            }
            std::mem::take(&mut state.pending)
        } else {
            Default::default()
        };
        self.adopt(connection);
        if lost {
            let client = connection.welcome.client;
            self.log(&format!(
                "the session is new, as client {client}; uncommitted changes are lost"
            ));
            if let Some(events) = self.events() {
                events.evicted(client, &lost_changes);
            }
            for pending in pending.into_values() {
                pending.answer.send(Err(Fault::Evicted));
            }
        } else {
            self.log("connected to the metadata server again");
        }
    }

    /// Renews the lease when nothing else does, and drops a connection on which nothing is
    /// received.
    async fn keep_alive(self: Rc<Self>) {
        loop {
            let third = (self.lease() / 3).max(Duration::from_millis(1));
            let closed: Notified = self.changed.notified();
            if self.is_closed() {
                return;
            }
            let _ = self.env.timeout(third, closed).await;
            let now = self.env.now();
            let (due, timed_out, up) = {
                let state = self.state.borrow();
                let left = state.lease_ends.since(now);
                (
                    left < state.lease - third / 2,
                    now.since(state.heard_at) > state.lease * 2 / 3,
                    state.phase == Phase::Up,
                )
            };
            if up && timed_out {
                let mut state = self.state.borrow_mut();
                state.timed_out = true;
                if let Some(stream) = &state.stream {
                    stream.shutdown();
                }
            } else if up
                && due
                && let Some(permit) = self.renewal.try_acquire(1)
            {
                drop(self.submit(Call::reserved(vec![Op::Renew {}]), permit, 0));
            }
        }
    }
}

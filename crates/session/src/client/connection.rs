//! Connections to the server, one after the other: hello, reading, writing, reconnecting.

use std::rc::Rc;

use env::Env;
use proto::content::Content;
use proto::frame::{Decoder, Received};
use proto::message::{
    Expected, Hello, Message, NEW, Peer, RECOVERED, RESUMED, Refused, Versions, Welcome,
};
use proto::slots::SlotTable;
use proto::wire::Appended;
use types::{Bug, Duration, Fault, Instant, ServerId, Timestamp, Transno, Uuid, planted};

use super::handshake::reach;
use super::{Config, ConnectError, Phase, ReadClientKeys, Session, Shared};
use crate::Link;
use crate::arriving::{SHORT_READ, receive_content};

/// Bytes requested from the socket at once.
const READ: usize = 128 << 10;
/// Bytes of content that are received at once, so that their progress shows.
const PIECE: usize = 256 << 10;
/// First pause between attempts, doubled up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The same while a server that stands by answers: it may serve in a moment.
const PAUSE_MAX_NEAR: Duration = Duration::from_millis(100);
/// How long that may last.
const NEAR_LASTS: Duration = Duration::from_secs(20);
/// How long one attempt may take meanwhile: the address may be that of a host that has died.
const NEAR_PATIENCE: Duration = Duration::from_secs(1);
/// How long one attempt may take: a server that restarted makes new clients wait.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);

/// A connection on which the server said Welcome.
pub(super) struct Connection<P: Peer> {
    pub(super) stream: Link,
    pub(super) decoder: Decoder<P>,
    welcome: Welcome<P>,
    hello_sent: Instant,
}

pub(super) enum Failure {
    /// Not reached, or the connection was lost.
    Unreachable(String),
    /// The server refused.
    Refused(Refused),
    /// It is another server than the client expects, or speaks what the client does not.
    Wrong(String),
}

impl Failure {
    /// The server at `address` is not reached, or was lost.
    pub(super) fn unreachable<P: Peer>(address: &str, text: &str) -> Failure {
        Failure::Unreachable(format!("cannot reach the {} at {address}: {text}", P::NAME))
    }

    pub(super) fn text(&self) -> String {
        match self {
            Failure::Unreachable(text) | Failure::Wrong(text) => text.clone(),
            Failure::Refused(refused) => refused.text.clone(),
        }
    }

    /// Does the server refuse the client's key? Only its door refuses with this fault.
    fn is_of_key(&self) -> bool {
        matches!(self, Failure::Refused(refused) if refused.fault == Fault::AccessDenied)
    }

    /// Does the server stand by, or end just now?
    fn is_of_standby(&self) -> bool {
        matches!(self, Failure::Refused(refused) if refused.fault == Fault::Busy)
    }

    /// Is it another server than this one? Of several addresses another one may lead there.
    pub(super) fn is_of_other_than(&self, expected: ServerId) -> bool {
        let is_other = |refused: &Refused| refused.fault == Fault::NotFound;
        expected != ServerId::ANY && matches!(self, Failure::Refused(refused) if is_other(refused))
    }

    /// Has the server's store failed?
    fn is_of_store(&self) -> bool {
        matches!(self, Failure::Refused(refused) if refused.fault == Fault::Io)
    }

    /// Would the same hello be refused again?
    fn is_final(&self) -> bool {
        match self {
            Failure::Unreachable(_) => false,
            Failure::Refused(refused) => !matches!(
                refused.fault,
                Fault::Overloaded | Fault::Evicted | Fault::Busy | Fault::WouldBlock
            ),
            Failure::Wrong(_) => true,
        }
    }
}

/// The next message. `heard` is called whenever bytes came.
pub(super) async fn receive<P: Peer>(
    stream: &Link,
    decoder: &mut Decoder<P>,
    heard: impl Fn(),
) -> Result<Received<P>, String> {
    loop {
        match decoder.next() {
            Ok(Some(received)) => return Ok(received),
            Ok(None) => {}
            Err(malformed) => return Err(malformed.to_string()),
        }
        if let Some(len) = decoder.awaited() {
            let content = receive_content(stream, decoder, (len, PIECE), &heard).await;
            return match content.map_err(|error| error.to_string())? {
                Some(content) => decoder.complete(Content::whole(content)),
                None => return Err("the server closed the connection".into()),
            }
            .map_err(|malformed| malformed.to_string());
        }
        let size = if decoder.was_apart() { SHORT_READ } else { READ };
        let (result, bytes) = stream.read(decoder.lend(), size).await;
        decoder.restore(bytes);
        match result {
            Ok(0) => return Err("the server closed the connection".into()),
            Ok(_) => heard(),
            Err(error) => return Err(error.to_string()),
        }
    }
}

pub(super) async fn greet<P: Peer>(
    env: &Env,
    (address, keys): (&str, Option<&ReadClientKeys>),
    hello: Hello,
    patience: Duration,
) -> Result<Connection<P>, Failure> {
    let unreachable = |text: String| Failure::unreachable::<P>(address, &text);
    let asked = hello.clone();
    let attempt = async {
        let stream = reach::<P>(env, address, keys).await?;
        let hello_sent = env.now();
        let mut bytes = Vec::new();
        proto::frame::encode::<P>(&Message::Hello { hello }, &mut bytes);
        let (written, _) = stream.write_all(bytes).await;
        written.map_err(|error| unreachable(error.to_string()))?;
        let mut decoder = Decoder::new();
        match receive(&stream, &mut decoder, || ()).await.map_err(unreachable)? {
            Received::Message(Message::Welcome { welcome }) => {
                if let Err(text) = check(&asked, &welcome) {
                    stream.shutdown();
                    let text = format!("the {} at {address} is the wrong one: {text}", P::NAME);
                    return Err(Failure::Wrong(text));
                }
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

/// Is it the server that the client expects, and did it agree to what the client asked for?
fn check<P: Peer>(hello: &Hello, welcome: &Welcome<P>) -> Result<(), String> {
    let versions = Versions { min: hello.version_min, max: hello.version_max };
    if !versions.contains(welcome.version) {
        let version = welcome.version;
        return Err(format!("it chose protocol version {version}, this client speaks {versions}"));
    }
    if welcome.features & !hello.features != 0 {
        let unknown = welcome.features & !hello.features;
        return Err(format!("it uses abilities that this client lacks ({unknown:#x})"));
    }
    let Some(expected) = &hello.expected.0 else { return Ok(()) };
    if welcome.role != expected.role {
        let (role, wanted) = (welcome.role, expected.role);
        return Err(format!("its role is {role}, this client needs a {} ({wanted})", P::NAME));
    }
    if expected.server != ServerId::ANY && welcome.server != expected.server {
        let (server, wanted) = (welcome.server, expected.server);
        return Err(format!("it is server {server}, this client's session is with {wanted}"));
    }
    if expected.fs_uuid != Uuid::default() && welcome.fs_uuid != expected.fs_uuid {
        let (uuid, wanted) = (welcome.fs_uuid, expected.fs_uuid);
        return Err(format!(
            "it serves the file system {uuid}, this client has {wanted} mounted; \
             unmount, and mount again"
        ));
    }
    Ok(())
}

impl<P: Peer> Session<P> {
    /// Opens the session; gives up after `connect_timeout` with the last reason.
    ///
    /// # Errors
    /// Nobody answers, or the server refuses, or it is not the one that is expected.
    pub async fn open(
        env: Env,
        config: Config,
        shared: Rc<Shared>,
    ) -> Result<Rc<Session<P>>, ConnectError> {
        if config.addresses.is_empty() {
            return Err(ConnectError { text: format!("no address of a {} is given", P::NAME) });
        }
        let nonce = env.random_u64();
        let until = env.now() + config.connect_timeout;
        let mut pause = PAUSE;
        loop {
            let mut text = String::new();
            for (index, address) in config.addresses.iter().enumerate() {
                let patience = until.since(env.now()).max(PAUSE_MAX).min(ATTEMPT_TIMEOUT);
                let way = (address.as_str(), config.keys.as_ref());
                match greet::<P>(&env, way, config.hello::<P>(nonce), patience).await {
                    Ok(connection) => {
                        let slots = connection.welcome.slots;
                        let session =
                            Rc::new(Session::new(env.clone(), config, shared, slots, nonce));
                        session.served_at.set(index);
                        session.adopt(&connection);
                        env.spawn(session.clone().run(connection));
                        env.spawn(session.clone().watch());
                        return Ok(session);
                    }
                    // One of several servers may be cut off from its store, or own the metadata of
                    // another server, and another one serve.
                    Err(failure)
                        if failure.is_final()
                            && (config.addresses.len() == 1
                                || !failure.is_of_store()
                                    && !failure.is_of_other_than(config.expected.server)) =>
                    {
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

    /// The greeting on a later connection.
    fn hello(&self) -> Hello {
        let state = self.state.borrow();
        let expected = Expected {
            server: state.server,
            fs_uuid: state.fs,
            map: state.map,
            ..self.config.expected.clone()
        };
        Hello {
            client: state.client,
            seen: state.seen,
            expected: Appended(Some(expected)),
            ..self.config.hello::<P>(state.nonce)
        }
    }

    /// Applies a Welcome.
    fn adopt(&self, connection: &Connection<P>) {
        let welcome = &connection.welcome;
        let wall = self.env.wall();
        let nanos =
            |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
        let mut state = self.state.borrow_mut();
        if welcome.state != RECOVERED || welcome.epoch != state.epoch {
            // An unanswered request of a recovery with the previous server must not go to this one,
            // where the recovery starts over. If it says "done", it would end the recovery at once.
            (state.recovery_unanswered, state.recovery_sent) = (None, None);
        }
        if welcome.state == RESUMED {
            // The recovery is done, but its last reply was lost.
            state.renumber();
        }
        state.client = welcome.client;
        state.epoch = welcome.epoch;
        state.server = welcome.server;
        state.fs = welcome.fs_uuid;
        (state.version, state.features) = (welcome.version, welcome.features);
        state.map = welcome.map;
        state.offer = Some(welcome.offer.clone());
        // A tenth is left for clock drift.
        state.lease = Duration::from_millis(u64::from(welcome.lease_ms) * 9 / 10);
        let now = self.env.now();
        let lease = state.lease;
        state.liveness.connected(lease, now.since(connection.hello_sent), now);
        state.clock_offset = nanos(welcome.time) - nanos(wall);
        state.out.clear();
        state.writing = false;
        state.stream = Some(connection.stream.clone());
        state.connection += 1;
        state.recovery = None;
        if welcome.state == NEW {
            // Nothing of an older session means anything to the server.
            state.slots = SlotTable::new(welcome.slots);
            state.replay.clear();
            state.forced = None;
            state.seen = Transno::ZERO;
            state.last_committed = Transno::ZERO;
            state.renewal = None;
        }
        state.refused = false;
        state.phase = if welcome.state == RECOVERED { Phase::Recovering } else { Phase::Up };
        state.disconnected_at = None;
        state.extend_lease(connection.hello_sent);
        self.look_at(&mut state, now);
    }

    /// Serves connections until the session is closed.
    async fn run(self: Rc<Self>, first: Connection<P>) {
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
                text = "it answered no probe".into();
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
            self.log(&format!("lost the connection to the {} ({text}); reconnecting", P::NAME));
        }
    }

    async fn serve(self: Rc<Self>, mut connection: Connection<P>) -> String {
        let stream = connection.stream.clone();
        let number = self.state.borrow().connection;
        self.start_writers(&stream, number);
        if connection.welcome.state == RECOVERED {
            let survived = connection.welcome.survived;
            self.env.spawn(self.clone().recover(number, survived));
        } else {
            self.resend();
        }
        loop {
            let heard = || self.state.borrow_mut().note_received(self.env.now());
            match receive(&stream, &mut connection.decoder, heard).await {
                Ok(Received::Message(message)) => match message {
                    Message::Reply { reply } => self.reply_received(reply),
                    Message::Push { push } => self.push_received(push),
                    Message::Refused { refused } => {
                        if refused.fault == Fault::Evicted {
                            self.lose_session();
                        }
                        return refused.text;
                    }
                    _ => return "the server sent a message that only clients may send".into(),
                },
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
        state.liveness.serving();
        let timer = state.liveness.timer(now);
        let mut requests: Vec<_> = state
            .pending
            .values_mut()
            .map(|pending| {
                match std::mem::replace(&mut pending.submitted, true) {
                    true => pending.resent = true,
                    false => pending.sent = now,
                }
                pending.timer = timer;
                (pending.order, pending.to_send_again())
            })
            .collect();
        requests.sort_unstable_by_key(|(order, _)| *order);
        for (_, request) in requests {
            self.enqueue(&mut state, request);
        }
        self.look_at(&mut state, timer.ends());
        drop(state);
        self.changed.notify_all();
        self.announce_room();
    }

    /// Tries forever; `None` when the session was closed. Where there are several addresses, the
    /// one that was lost comes last.
    async fn reconnect(&self) -> Option<Connection<P>> {
        let mut pause = PAUSE;
        let mut logged = false;
        let since = self.env.now();
        let (addresses, last) = (&self.config.addresses, self.served_at.get());
        let order = |step: usize| (last + step) % addresses.len();
        loop {
            let (mut key_refused, mut near, mut others) = (false, false, 0);
            for index in (1..=addresses.len()).map(order) {
                if self.is_closed() {
                    return None;
                }
                let way = (addresses[index].as_str(), self.config.keys.as_ref());
                let patience = if near { NEAR_PATIENCE } else { ATTEMPT_TIMEOUT };
                match greet(&self.env, way, self.hello(), patience).await {
                    Ok(connection) => {
                        if self.is_closed() {
                            connection.stream.shutdown();
                            return None;
                        }
                        if self.is_replaced(&connection.welcome) {
                            connection.stream.shutdown();
                            continue;
                        }
                        self.served_at.set(index);
                        self.welcomed(&connection);
                        return Some(connection);
                    }
                    Err(Failure::Refused(refused)) if refused.fault == Fault::Evicted => {
                        self.log(&format!("this client was evicted: {}", refused.text));
                        self.lose_session();
                    }
                    Err(failure) if failure.is_final() => {
                        others += usize::from(failure.is_of_other_than(self.server()));
                        // A server of several that is asked for another one is worth no line,
                        // unless nobody else is there.
                        let is_usual =
                            failure.is_of_other_than(self.server()) && others < addresses.len();
                        if !is_usual && !std::mem::replace(&mut logged, true) {
                            self.log(&failure.text());
                        }
                        key_refused |= failure.is_of_key();
                    }
                    Err(failure) => near |= failure.is_of_standby(),
                }
            }
            // One address may lead to a server whose list is old: another one let nobody in either.
            if key_refused {
                self.refused();
            }
            // Clients that lost the server at one moment must not all reconnect at one moment.
            let half = pause / 2;
            let more = self.env.random_u64() % (half.as_nanos() as u64).max(1);
            self.env.sleep(half + Duration::from_nanos(more)).await;
            near &= self.env.now().since(since) < NEAR_LASTS;
            pause = (pause * 2).min(if near { PAUSE_MAX_NEAR } else { PAUSE_MAX });
        }
    }

    /// Has the server that said this been replaced by one that this client knows of? Nobody goes on
    /// with a session there. A new session may have a lower epoch, of metadata that were restored.
    fn is_replaced(&self, welcome: &Welcome<P>) -> bool {
        let state = self.state.borrow();
        let goes_on = welcome.state != NEW;
        welcome.epoch < state.epoch_min || (goes_on && welcome.epoch < state.epoch)
    }

    /// Handles a Welcome on a later connection: the session continues, or it is a new one.
    fn welcomed(&self, connection: &Connection<P>) {
        let lost = connection.welcome.state == NEW;
        let mut lost_changes = Vec::new();
        let pending = if lost {
            let mut state = self.state.borrow_mut();
            state.evictions += u64::from(!planted(Bug::EvictionUntold));
            // If it is the same server, what it answered is durable together with the new client's
            // number. For a previous server, `survived` says how much of its answers survived.
            let (epoch, survived) = (connection.welcome.epoch, connection.welcome.survived);
            lost_changes.extend(state.replay.lost(survived, epoch).cloned());
            if !lost_changes.is_empty() {
                state.losses += 1;
            }
            std::mem::take(&mut state.pending)
        } else {
            Default::default()
        };
        self.adopt(connection);
        if let Some(events) = self.events() {
            events.connected(connection.welcome.server);
        }
        if lost {
            let client = connection.welcome.client;
            self.log(&format!(
                "the session is new, as client {client}; uncommitted changes are lost"
            ));
            if let Some(events) = self.events() {
                events.evicted(connection.welcome.server, client, &lost_changes);
            }
            for pending in pending.into_values() {
                pending.answer.send(Err(Fault::Evicted));
            }
            self.announce_room();
        } else {
            self.log(&format!("connected to the {} again", P::NAME));
        }
    }
}

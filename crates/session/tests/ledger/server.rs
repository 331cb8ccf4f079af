//! A server of the small protocol, with a log that can stall.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use env::Env;
use env::sim::SimWorld;
use env::sync::Notify;
use proto::frame::{Decoder, Received};
use proto::message::{
    Hello, Message, NEW, RECOVERED, RESUMED, Refused, Reply, Request, Versions, Welcome,
};
use proto::wire::Appended;
use redbud_session::server::{
    Agreed, Connection, Door, Identity, ServerKeys, Service, Session, SessionIdentity,
    SessionState, Table, Who, check, receive, serve,
};
use types::{ClientId, Duration, Epoch, Fault, Lsn, ServerId, Timestamp, Transno, Uuid};

use super::peer::{COMMITTED_PUSHES, Ledger, Op, OpReply, Push, PushReply, ROLE};

pub const LEASE: Duration = Duration::from_secs(6);

/// A number in the log, and the request that brought it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub number: u64,
    request: (ClientId, u16, u32, usize),
}

/// What survives a server.
#[derive(Default)]
pub struct Disk {
    epoch: u32,
    clients: BTreeMap<ClientId, u64>,
    entries: Vec<Entry>,
    /// Length of the log when each epoch ended.
    ends: BTreeMap<u32, u64>,
}

/// What the test sets and sees; it outlives the server.
pub struct Controls {
    pub name: &'static str,
    pub identity: RefCell<Identity>,
    pub disk: RefCell<Disk>,
    /// Does the log flush nothing?
    pub stalled: Cell<bool>,
    /// Do additions and held requests wait?
    pub held: Cell<bool>,
    pub changed: Notify,
    pub replays: Cell<u64>,
    pub renewals: Cell<u64>,
    pub syncs: Cell<u64>,
    pub pushes: Cell<u64>,
    pub reclaimed: RefCell<Vec<String>>,
    pub answered_pushes: Cell<u64>,
    /// Does the server welcome clients that expect another?
    pub ignores_expected: Cell<bool>,
    /// The keys that it asks for from its next start on.
    pub keys: RefCell<Option<ServerKeys>>,
    pub log: RefCell<Vec<String>>,
}

impl Controls {
    pub fn new(name: &'static str, server: u16) -> Rc<Controls> {
        let identity = Identity {
            versions: Versions::only(5),
            features: COMMITTED_PUSHES,
            server: ServerId(server),
            role: ROLE,
            map: 0,
            fs_name: "books".into(),
            fs_uuid: Uuid([7; 16]),
        };
        Rc::new(Controls {
            name,
            identity: RefCell::new(identity),
            disk: RefCell::default(),
            stalled: Cell::new(false),
            held: Cell::new(false),
            changed: Notify::new(),
            replays: Cell::new(0),
            renewals: Cell::new(0),
            syncs: Cell::new(0),
            pushes: Cell::new(0),
            reclaimed: RefCell::default(),
            answered_pushes: Cell::new(0),
            ignores_expected: Cell::new(false),
            keys: RefCell::default(),
            log: RefCell::default(),
        })
    }

    pub fn address(&self) -> String {
        format!("{}:1", self.name)
    }

    /// Durable numbers, in their order.
    pub fn numbers(&self) -> Vec<u64> {
        self.disk.borrow().entries.iter().map(|entry| entry.number).collect()
    }

    pub fn set_stalled(&self, stalled: bool) {
        self.stalled.set(stalled);
        self.changed.notify_all();
    }

    pub fn set_held(&self, held: bool) {
        self.held.set(held);
        self.changed.notify_all();
    }

    /// Starts the server on its node.
    pub fn start(self: &Rc<Self>, world: &SimWorld) -> Rc<Server> {
        let env = world.node(self.name);
        {
            let mut disk = self.disk.borrow_mut();
            let (epoch, len) = (disk.epoch, disk.entries.len() as u64);
            disk.ends.insert(epoch, len);
            disk.epoch += 1;
        }
        let controls = self.clone();
        let log = Rc::new(move |line: &str| controls.log.borrow_mut().push(line.to_owned()));
        let server = Rc::new(Server {
            door: Door::new(env.clone(), self.keys.borrow().clone(), log),
            sessions: Table::new(env.clone(), LEASE),
            unflushed: RefCell::default(),
            controls: self.clone(),
            env: env.clone(),
        });
        let (listening, address) = (server.clone(), self.address());
        env.spawn(async move {
            let listener = listening.env.listen(&address).await.unwrap();
            while let Ok(stream) = listener.accept().await {
                listening.env.spawn(serve(listening.clone(), stream));
            }
        });
        server
    }
}

pub struct ServerSession(Session<Ledger>);

impl Deref for ServerSession {
    type Target = Session<Ledger>;

    fn deref(&self) -> &Session<Ledger> {
        &self.0
    }
}

pub struct Server {
    env: Env,
    controls: Rc<Controls>,
    pub sessions: Table<Ledger, ServerSession>,
    unflushed: RefCell<Vec<Entry>>,
    pub door: Door,
}

impl Server {
    fn epoch(&self) -> Epoch {
        Epoch(self.controls.disk.borrow().epoch)
    }

    /// Flushes the log; waits while it is stalled.
    pub async fn flush(&self) {
        loop {
            let changed = self.controls.changed.notified();
            if !self.controls.stalled.get() {
                break;
            }
            changed.await;
        }
        let entries = std::mem::take(&mut *self.unflushed.borrow_mut());
        self.controls.disk.borrow_mut().entries.extend(entries);
        let durable = self.last_committed();
        self.sessions.each(|session| {
            let wants = session.agreed().features & COMMITTED_PUSHES != 0;
            if wants && session.learns_durable(durable) {
                self.controls.pushes.set(self.controls.pushes.get() + 1);
                session.push(Message::Push { push: Push::Committed { transno: durable } });
            }
        });
    }

    fn admit(&self, hello: &Hello) -> Result<(Rc<ServerSession>, u8, Transno), Refused> {
        let mut greeting = hello.clone();
        if self.controls.ignores_expected.get() {
            greeting.expected = Appended(None);
        }
        let agreed = check(&greeting, &self.controls.identity.borrow())?;
        let mut disk = self.controls.disk.borrow_mut();
        let survived = match hello.seen {
            Transno::ZERO => Transno::ZERO,
            seen => {
                let end = disk.ends.get(&seen.epoch.0).copied().unwrap_or(u64::MAX);
                Transno { epoch: seen.epoch, lsn: Lsn(end) }
            }
        };
        if hello.client == ClientId(0) {
            let client = ClientId(disk.clients.len() as u64 + 1);
            disk.clients.insert(client, hello.nonce);
            let session = self.begin(hello, client, SessionState::Live, (false, agreed));
            return Ok((session, NEW, survived));
        }
        if let Some(session) = self.sessions.get(hello.client) {
            session.set_agreed(agreed);
            let recovering = session.state() == SessionState::Recovering;
            return Ok((session, if recovering { RECOVERED } else { RESUMED }, survived));
        }
        if disk.clients.get(&hello.client) != Some(&hello.nonce) {
            let (fault, text) = (Fault::Evicted, "nobody knows this number".to_owned());
            return Err(Refused { fault, text });
        }
        let session = self.begin(hello, hello.client, SessionState::Recovering, (true, agreed));
        Ok((session, RECOVERED, survived))
    }

    fn begin(
        &self,
        hello: &Hello,
        client: ClientId,
        state: SessionState,
        (known, agreed): (bool, Agreed),
    ) -> Rc<ServerSession> {
        let (nonce, description) = (hello.nonce, hello.description.clone());
        let who = Who::Anybody;
        let identity = SessionIdentity { client, nonce, description, lease: LEASE, agreed, who };
        let session = Session::new(identity, state, known, self.env.now());
        let session = Rc::new(ServerSession(session));
        self.sessions.begin(session.clone());
        session
    }

    /// Adds a number, unless this request has added it before.
    fn add(&self, entry: Entry) -> (u64, Transno) {
        let disk = self.controls.disk.borrow();
        let mut unflushed = self.unflushed.borrow_mut();
        let before = disk.entries.iter().chain(&*unflushed).position(|known| *known == entry);
        let position = before.unwrap_or_else(|| {
            unflushed.push(entry);
            disk.entries.len() + unflushed.len() - 1
        }) as u64;
        (position, Transno { epoch: Epoch(disk.epoch), lsn: Lsn(position + 1) })
    }

    async fn while_held(&self) {
        loop {
            let changed = self.controls.changed.notified();
            if !self.controls.held.get() {
                return;
            }
            changed.await;
        }
    }

    async fn run(self: Rc<Self>, session: Rc<ServerSession>, request: Request<Ledger>) {
        let replayed = request.replay.is_some();
        if replayed {
            self.controls.replays.set(self.controls.replays.get() + 1);
        }
        let (mut results, mut transno) = (Vec::new(), Transno::ZERO);
        let (mut leaves, mut waited) = (false, Duration::ZERO);
        for (index, op) in request.ops.iter().enumerate() {
            let mut reply = OpReply::Done {};
            match op {
                Op::Add { number } => {
                    self.while_held().await;
                    let request = (session.client, request.slot, request.seq, index);
                    let (position, at) = self.add(Entry { number: *number, request });
                    (reply, transno) = (OpReply::Position { position }, at);
                    session.note_change(at);
                }
                Op::Hold {} => {
                    let begun = self.env.now();
                    self.while_held().await;
                    waited += self.env.now().since(begun);
                }
                Op::Sync {} => {
                    self.controls.syncs.set(self.controls.syncs.get() + 1);
                    self.flush().await;
                }
                Op::Renew {} => self.controls.renewals.set(self.controls.renewals.get() + 1),
                Op::Goodbye {} => leaves = true,
                Op::Recovered {} => self.sessions.finish_recovery(&session),
                Op::Reclaim { text } => self.controls.reclaimed.borrow_mut().push(text.clone()),
                Op::GiveBack {} => {}
            }
            results.push(Ok(reply));
        }
        let (slot, seq, last_committed) = (request.slot, request.seq, self.last_committed());
        let waited = waited.as_micros() as u32;
        let reply = Reply { slot, seq, transno, last_committed, waited, load: 0, results };
        session.answered(&reply, true);
        session.note_durable(last_committed);
        session.push(Message::Reply { reply });
        if leaves {
            session.set_state(SessionState::Over);
            self.sessions.end(session.client);
            session.unbind();
        }
        session.validate(self.last_committed());
        self.sessions.validate();
    }
}

impl Service for Server {
    type Peer = Ledger;
    type Session = ServerSession;

    fn env(&self) -> &Env {
        &self.env
    }

    fn log(&self, text: &str) {
        self.controls.log.borrow_mut().push(text.to_owned());
    }

    fn door(&self) -> &Door {
        &self.door
    }

    fn connected(&self, connection: &Rc<Connection>) {
        self.sessions.add_connection(connection);
    }

    fn load(&self) -> u16 {
        0
    }

    fn last_committed(&self) -> Transno {
        Transno { epoch: self.epoch(), lsn: Lsn(self.controls.disk.borrow().entries.len() as u64) }
    }

    async fn greet(
        &self,
        connection: &Rc<Connection>,
        decoder: &mut Decoder<Ledger>,
    ) -> Option<Rc<ServerSession>> {
        let received = match receive(connection, decoder).await {
            Ok(received) => received?,
            Err(text) => {
                let refused = Refused { fault: Fault::Protocol, text };
                connection.send::<Ledger>(&Message::Refused { refused });
                return None;
            }
        };
        let Received::Message(Message::Hello { hello }) = received else { return None };
        match self.admit(&hello) {
            Ok((session, state, survived)) => {
                let identity = self.controls.identity.borrow().clone();
                let agreed = session.agreed();
                let welcome = Welcome {
                    version: agreed.version,
                    features: agreed.features,
                    server: identity.server,
                    role: identity.role,
                    map: identity.map,
                    fs_uuid: identity.fs_uuid,
                    client: session.client,
                    epoch: self.epoch(),
                    state,
                    survived,
                    lease_ms: LEASE.as_millis() as u32,
                    slots: 16,
                    offer: "a ledger".into(),
                    time: Timestamp::default(),
                };
                connection.send::<Ledger>(&Message::Welcome { welcome });
                session.bind(connection.clone());
                Some(session)
            }
            Err(refused) => {
                connection.send::<Ledger>(&Message::Refused { refused });
                None
            }
        }
    }

    fn execute(
        self: &Rc<Self>,
        session: &Rc<ServerSession>,
        request: Request<Ledger>,
        _fresh: bool,
    ) -> impl Future<Output = ()> + 'static {
        self.clone().run(session.clone(), request)
    }

    fn refresh(&self, _: &ServerSession, _: &mut Reply<Ledger>) {}

    fn push_answered(&self, _: &ServerSession, _: PushReply) {
        self.controls.answered_pushes.set(self.controls.answered_pushes.get() + 1);
    }
}

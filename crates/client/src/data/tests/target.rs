//! A small target: objects in memory, of which a restart loses what is not durable.

use std::ops::Deref;
use std::rc::Weak;

use env::sync::Notify;
use proto::capability::{READ, TargetKey, WRITE};
use proto::frame::{Decoder, Received};
use proto::message::{
    Hello, Message, NEW, OBJECT_TARGET, Peer, RECOVERED, RESUMED, Refused, Reply, Request, Welcome,
};
use proto::ost::{IO_BLOCKS_MAX, ObjectRun, Op, OpReply, Ost, Push, PushReply, TargetInfo};
use session::server::{
    Agreed, Connection, Door, Identity, Service, Session, SessionIdentity, SessionState, Table,
    Who, check, receive, serve,
};
use types::{Lsn, ObjectId, ServerId, Transno, crc32c};

use super::*;

const LEASE: Duration = Duration::from_secs(6);
/// Until what was done becomes durable without being asked.
const AGE: Duration = Duration::from_millis(700);

type Blocks = BTreeMap<(ObjectId, u64), Vec<u8>>;

/// What survives a target.
#[derive(Clone, Default)]
pub struct Disk {
    pub blocks: Blocks,
    lsn: u64,
    epoch: u32,
    clients: BTreeMap<ClientId, u64>,
    ends: BTreeMap<u32, u64>,
}

/// What the test sets and sees; it outlives the target.
pub struct Target {
    pub name: String,
    number: u16,
    world: SimWorld,
    pub key: TargetKey,
    pub disk: RefCell<Disk>,
    /// What it has, durable or not.
    pub now: RefCell<(Blocks, u64)>,
    /// Operations that change something are refused with these, the next one with the first.
    pub faults: RefCell<VecDeque<Fault>>,
    /// Replays are refused.
    pub refuses_replays: Cell<bool>,
    /// Blocks that it has room for.
    pub room: Cell<usize>,
    /// Free blocks that it keeps for clients, and the numbers of their statements.
    pub promises: RefCell<BTreeMap<ClientId, (u64, u64)>>,
    pub fenced: RefCell<BTreeSet<ClientId>>,
    /// Capabilities of earlier epochs are refused.
    pub epoch_min: Cell<u32>,
    /// So many of the next answers to reads have a wrong bit, and the next writes on their arrival.
    pub flips: Cell<u32>,
    /// A block that is damaged where it is stored.
    pub damaged: Cell<Option<u64>>,
    /// Nothing becomes durable.
    pub stalled: Cell<bool>,
    /// It tells nobody by itself what is durable.
    pub quiet: Cell<bool>,
    /// Writes wait before anything is done.
    pub holds_writes: Cell<bool>,
    running: RefCell<Weak<Running>>,
    changed: Notify,
    pub counts: RefCell<Counts>,
    rng: RefCell<SimRng>,
}

/// What it was asked for.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    pub writes: u64,
    pub reads: u64,
    pub punches: u64,
    pub syncs: u64,
    pub reserves: u64,
    pub replays: u64,
    pub denied: u64,
}

impl Target {
    pub fn new(world: &SimWorld, number: u16, seed: u64) -> Rc<Target> {
        Rc::new(Target {
            name: format!("ost{number}"),
            number,
            world: world.clone(),
            key: TargetKey::new([9; 32], FS),
            disk: RefCell::default(),
            now: RefCell::default(),
            faults: RefCell::default(),
            refuses_replays: Cell::new(false),
            room: Cell::new(usize::MAX),
            promises: RefCell::default(),
            fenced: RefCell::default(),
            epoch_min: Cell::new(0),
            flips: Cell::new(0),
            damaged: Cell::default(),
            stalled: Cell::new(false),
            quiet: Cell::new(false),
            holds_writes: Cell::new(false),
            running: RefCell::default(),
            changed: Notify::new(),
            counts: RefCell::default(),
            rng: RefCell::new(SimRng::new(seed)),
        })
    }

    pub fn uuid(number: u16) -> Uuid {
        Uuid([number as u8 | 0x40; 16])
    }

    pub fn address(&self) -> String {
        format!("{}:1", self.name)
    }

    pub fn start(self: &Rc<Self>) {
        let env = self.world.node(&self.name);
        {
            let mut disk = self.disk.borrow_mut();
            let (epoch, lsn) = (disk.epoch, disk.lsn);
            disk.ends.insert(epoch, lsn);
            disk.epoch += 1;
            *self.now.borrow_mut() = (disk.blocks.clone(), lsn);
            self.promises.borrow_mut().clear();
        }
        let server = Rc::new(Running {
            door: Door::new(env.clone(), None, Rc::new(|_| ())),
            sessions: Table::new(env.clone(), LEASE),
            target: self.clone(),
            env: env.clone(),
        });
        *self.running.borrow_mut() = Rc::downgrade(&server);
        let (listening, address) = (server.clone(), self.address());
        env.spawn(async move {
            let listener = listening.env.listen(&address).await.unwrap();
            while let Ok(stream) = listener.accept().await {
                listening.env.spawn(serve(listening.clone(), stream));
            }
        });
        let aging = env.clone();
        env.spawn(async move {
            loop {
                aging.sleep(AGE).await;
                server.commit().await;
            }
        });
    }

    /// Ends it; what is not durable is gone.
    pub fn kill(&self) {
        self.world.kill(&self.name);
        let disk = self.disk.borrow();
        *self.now.borrow_mut() = (disk.blocks.clone(), disk.lsn);
    }

    pub fn restart(self: &Rc<Self>) {
        self.kill();
        self.start();
    }

    /// Ends it, and starts it without the clients that it knew.
    pub fn restart_as_stranger(self: &Rc<Self>) {
        self.kill();
        self.disk.borrow_mut().clients.clear();
        self.start();
    }

    /// All that it has is durable.
    pub fn make_durable(&self) {
        let now = self.now.borrow();
        let mut disk = self.disk.borrow_mut();
        (disk.blocks, disk.lsn) = (now.0.clone(), now.1);
    }

    pub fn hold_writes(&self, holds: bool) {
        self.holds_writes.set(holds);
        self.changed.notify_all();
    }

    /// Asks all clients for the room that they do not need.
    pub fn ask_for_room(&self) {
        let running = self.running.borrow().upgrade().expect("it runs");
        running.sessions.each(|session| session.push(Message::Push { push: Push::Short {} }));
    }

    pub fn set_stalled(&self, stalled: bool) {
        self.stalled.set(stalled);
        self.changed.notify_all();
    }

    /// The blocks of an object that hold something.
    pub fn blocks_of(&self, object: u64) -> Vec<u64> {
        let now = self.now.borrow();
        let own = now.0.keys().filter(|(of, _)| of.0 == object);
        own.map(|(_, block)| *block).collect()
    }
}

pub struct TargetSession(Session<Ost>);

impl Deref for TargetSession {
    type Target = Session<Ost>;

    fn deref(&self) -> &Session<Ost> {
        &self.0
    }
}

/// A target that runs.
pub struct Running {
    env: Env,
    target: Rc<Target>,
    sessions: Table<Ost, TargetSession>,
    door: Door,
}

impl Running {
    fn epoch(&self) -> Epoch {
        Epoch(self.target.disk.borrow().epoch)
    }

    async fn commit(&self) {
        loop {
            let changed = self.target.changed.notified();
            if !self.target.stalled.get() {
                break;
            }
            changed.await;
        }
        self.target.make_durable();
        let transno = self.last_committed();
        self.sessions.each(|session| {
            if !self.target.quiet.get() && session.learns_durable(transno) {
                session.push(Message::Push { push: Push::Committed { transno } });
            }
        });
    }

    fn admit(&self, hello: &Hello) -> Result<(Rc<TargetSession>, u8, Transno), Refused> {
        let agreed = check(hello, &self.identity())?;
        let mut disk = self.target.disk.borrow_mut();
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
            return Ok((self.begin(hello, client, SessionState::Live, agreed), NEW, survived));
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
        let session = self.begin(hello, hello.client, SessionState::Recovering, agreed);
        Ok((session, RECOVERED, survived))
    }

    fn identity(&self) -> Identity {
        Identity {
            versions: Ost::VERSIONS,
            features: Ost::FEATURES,
            server: ServerId(self.target.number),
            role: OBJECT_TARGET,
            map: 0,
            fs_name: "test".into(),
            fs_uuid: FS,
        }
    }

    fn begin(
        &self,
        hello: &Hello,
        client: ClientId,
        state: SessionState,
        agreed: Agreed,
    ) -> Rc<TargetSession> {
        let (nonce, description) = (hello.nonce, hello.description.clone());
        let (lease, who, known) = (LEASE, Who::Anybody, state == SessionState::Recovering);
        let identity = SessionIdentity { client, nonce, description, lease, agreed, who };
        let session = Session::new(identity, state, known, self.env.now());
        let session = Rc::new(TargetSession(session));
        self.sessions.begin(session.clone());
        session
    }

    fn check_may(&self, op: &Op) -> Result<(), Fault> {
        let Some(may) = op.capability() else { return Ok(()) };
        let right = if matches!(op, Op::Read { .. } | Op::Runs { .. }) { READ } else { WRITE };
        let target = &self.target;
        let allowed = target.key.is_genuine(may)
            && may.rights & right != 0
            && may.epoch.0 >= target.epoch_min.get()
            && !target.fenced.borrow().contains(&may.client);
        if !allowed {
            target.counts.borrow_mut().denied += 1;
        }
        if allowed { Ok(()) } else { Err(Fault::AccessDenied) }
    }

    /// Returns whether this answer, or this data on its arrival, gets a wrong bit.
    fn flips(&self) -> bool {
        let left = self.target.flips.get();
        self.target.flips.set(left.saturating_sub(1));
        left > 0
    }

    /// What a request says and asks of the room for its client.
    fn promise(&self, client: ClientId, op: &Op) -> Result<OpReply, Fault> {
        let promises = &mut *self.target.promises.borrow_mut();
        let total: u64 = promises.values().map(|(_, blocks)| blocks).sum();
        let used = self.target.now.borrow().0.len() as u64;
        let left = (self.target.room.get() as u64).saturating_sub(used + total);
        let promise = promises.entry(client).or_default();
        let (said, needed, wanted) = match op {
            Op::Write { room, .. } | Op::Hold { room } => (*room, 0, 0),
            Op::Reserve { room, needed, wanted, .. } => (*room, *needed, *wanted),
            _ => return Ok(OpReply::Done {}),
        };
        if said.number > promise.0 {
            let restated = promise.0 == 0 && matches!(op, Op::Hold { .. });
            let most = if restated { left } else { promise.1 };
            *promise = (said.number, (said.blocks + said.asked).min(most));
        }
        if needed > left {
            return Err(Fault::NoSpace);
        }
        let blocks = wanted.min(left);
        promise.1 += blocks;
        Ok(OpReply::Room { blocks })
    }

    /// Takes room for a write of so many new blocks: what is kept for the client, then what is kept
    /// for nobody.
    fn take_room(&self, client: ClientId, new: u64, replayed: bool) -> Result<(), Fault> {
        let promises = &mut *self.target.promises.borrow_mut();
        let used = self.target.now.borrow().0.len() as u64;
        let own = promises.get(&client).map_or(0, |promise| promise.1);
        let total: u64 = promises.values().map(|(_, blocks)| blocks).sum();
        let kept = if new > own && !replayed { total - own } else { 0 };
        if used + new + kept > self.target.room.get() as u64 {
            return Err(Fault::NoSpace);
        }
        if let Some(promise) = promises.get_mut(&client).filter(|_| !replayed) {
            promise.1 = own.saturating_sub(new);
        }
        Ok(())
    }

    fn execute_op(&self, client: ClientId, op: &Op, replayed: bool) -> Result<OpReply, Fault> {
        self.check_may(op)?;
        let target = &self.target;
        if matches!(op, Op::Reserve { .. }) {
            target.counts.borrow_mut().reserves += 1;
            return self.promise(client, op);
        }
        let changes = <Ost as Peer>::may_change(op);
        if changes && let Some(fault) = target.faults.borrow_mut().pop_front() {
            return Err(fault);
        }
        if replayed && target.refuses_replays.get() {
            return Err(Fault::NoSpace);
        }
        let mut now = target.now.borrow_mut();
        match op {
            Op::Write { may, block, data, sums, .. } => {
                target.counts.borrow_mut().writes += 1;
                assert!((1..=IO_BLOCKS_MAX as usize).contains(&sums.len()));
                let mut bytes = data.to_vec();
                if self.flips() {
                    bytes[17] ^= 1;
                }
                if !bytes.chunks(BLOCK).map(crc32c).eq(sums.iter().copied()) {
                    return Err(Fault::Corrupt);
                }
                let blocks = (*block..).zip(bytes.chunks(BLOCK));
                let new = blocks.clone().filter(|(at, _)| !now.0.contains_key(&(may.object, *at)));
                let new = new.count() as u64;
                drop(now);
                self.take_room(client, new, replayed)?;
                now = target.now.borrow_mut();
                for (at, bytes) in blocks {
                    now.0.insert((may.object, at), bytes.to_vec());
                }
                drop(now);
                self.promise(client, op)?;
                now = target.now.borrow_mut();
            }
            Op::Read { may, block, len } => {
                target.counts.borrow_mut().reads += 1;
                let read = *block..*block + u64::from(*len);
                if target.damaged.get().is_some_and(|damaged| read.contains(&damaged)) {
                    return Err(Fault::Corrupt);
                }
                let (mut runs, mut data, mut sums) = (Vec::<ObjectRun>::new(), Vec::new(), vec![]);
                for at in 0..u64::from(*len) {
                    let Some(bytes) = now.0.get(&(may.object, block + at)) else { continue };
                    match runs.last_mut() {
                        Some(run) if run.block + run.len == at => run.len += 1,
                        _ => runs.push(ObjectRun { block: at, len: 1 }),
                    }
                    data.extend_from_slice(bytes);
                    sums.push(crc32c(bytes));
                }
                if !data.is_empty() && self.flips() {
                    let at = data.len() - 99;
                    data[at] ^= 0x10;
                }
                return Ok(OpReply::Data { runs, data: data.into(), sums });
            }
            Op::Punch { may, from, to } => {
                target.counts.borrow_mut().punches += 1;
                now.0.retain(|(of, at), _| *of != may.object || !(*from..*to).contains(at));
            }
            Op::Runs { may, from, max } => {
                let mut runs = Vec::<ObjectRun>::new();
                for (_, at) in
                    now.0.range((may.object, *from)..=(may.object, u64::MAX)).map(|b| b.0)
                {
                    let full = runs.len() as u32 == (*max).min(2);
                    match runs.last_mut() {
                        Some(run) if run.block + run.len == *at => run.len += 1,
                        // Few at once, so that a search has to ask again.
                        _ if full => {
                            return Ok(OpReply::Runs { runs, end: false });
                        }
                        _ => runs.push(ObjectRun { block: *at, len: 1 }),
                    }
                }
                return Ok(OpReply::Runs { runs, end: true });
            }
            Op::Hold { .. } => {
                drop(now);
                return self.promise(client, op).map(|_| OpReply::Done {});
            }
            _ => return Ok(OpReply::Done {}),
        }
        now.1 += 1;
        Ok(OpReply::Done {})
    }

    async fn run(self: Rc<Self>, session: Rc<TargetSession>, request: Request<Ost>) {
        let micros = self.target.rng.borrow_mut().below(4000);
        self.env.sleep(Duration::from_micros(micros)).await;
        let replayed = request.replay.is_some();
        let (mut results, mut transno, mut leaves) = (Vec::new(), Transno::ZERO, false);
        for op in &request.ops {
            while matches!(op, Op::Write { .. }) && self.target.holds_writes.get() {
                self.target.changed.notified().await;
            }
            let before = self.target.now.borrow().1;
            let result = self.execute_op(session.client, op, replayed);
            let lsn = self.target.now.borrow().1;
            if lsn > before {
                transno = Transno { epoch: self.epoch(), lsn: Lsn(lsn) };
                session.note_change(transno);
            }
            match op {
                Op::Sync {} => {
                    self.target.counts.borrow_mut().syncs += 1;
                    self.commit().await;
                }
                Op::Recovered {} => self.sessions.finish_recovery(&session),
                Op::Goodbye {} => leaves = true,
                _ => {}
            }
            results.push(result);
        }
        self.target.counts.borrow_mut().replays += u64::from(replayed);
        let (slot, seq, last_committed) = (request.slot, request.seq, self.last_committed());
        let reply = Reply { slot, seq, transno, last_committed, waited: 0, load: 0, results };
        session.answered(&reply, true);
        session.note_durable(last_committed);
        session.push(Message::Reply { reply });
        if leaves {
            session.set_state(SessionState::Over);
            self.sessions.end(session.client);
            session.unbind();
        }
    }
}

impl Service for Running {
    type Peer = Ost;
    type Session = TargetSession;

    fn env(&self) -> &Env {
        &self.env
    }

    fn log(&self, _: &str) {}

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
        Transno { epoch: self.epoch(), lsn: Lsn(self.target.disk.borrow().lsn) }
    }

    async fn greet(
        &self,
        connection: &Rc<Connection>,
        decoder: &mut Decoder<Ost>,
    ) -> Option<Rc<TargetSession>> {
        let received = receive(connection, decoder).await.ok()??;
        let Received::Message(Message::Hello { hello }) = received else { return None };
        match self.admit(&hello) {
            Ok((session, state, survived)) => {
                let (identity, agreed) = (self.identity(), session.agreed());
                let uuid = Target::uuid(self.target.number);
                let offer = TargetInfo { uuid, blocks: 1 << 30, free: 1 << 30, checksums: true };
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
                    offer,
                    time: Timestamp::default(),
                };
                connection.send::<Ost>(&Message::Welcome { welcome });
                session.bind(connection.clone());
                Some(session)
            }
            Err(refused) => {
                connection.send::<Ost>(&Message::Refused { refused });
                None
            }
        }
    }

    fn execute(
        self: &Rc<Self>,
        session: &Rc<TargetSession>,
        request: Request<Ost>,
        _fresh: bool,
    ) -> impl Future<Output = ()> + 'static {
        self.clone().run(session.clone(), request)
    }

    fn refresh(&self, _: &TargetSession, _: &mut Reply<Ost>) {}

    fn push_answered(&self, _: &TargetSession, _: PushReply) {}
}

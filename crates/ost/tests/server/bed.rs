//! A simulated world with a target, and sessions with it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use env::sim::{SimDisk, SimWorld};
use env::sync::oneshot;
use env::{DiskOptions, Env};
use proto::capability::{Capability, READ, TargetKey, WRITE};
use proto::message::{CLIENT, METADATA_SERVER, Principal, Reply, Request};
use proto::ost::{Op, OpReply, Ost, Push, PushReply, Statement};
use proto::slots::SlotClass;
use redbud_ost::server::{Config, Ost as Server, ServeError};
use redbud_ost::store::{FormatOptions, ObjectStore, Options};
use session::client::{
    Call, Config as SessionConfig, Events, ReplayEntry, Session, Shared, ToolError, ask, done,
    result,
};
use types::limits::{BLOCK, BLOCK_U64};
use types::{ClientId, Duration, Epoch, Fault, ObjectId, ServerId, ShardId, Uuid, crc32c};

pub const ADDRESS: &str = "ost:1";
pub const LEASE: Duration = Duration::from_secs(4);
pub const FS: Uuid = Uuid([9; 16]);
pub const KEY: [u8; 32] = [3; 32];
/// Device of the target.
const DEVICE: u64 = 96 << 20;
const OPEN: DiskOptions = DiskOptions { write: true, exclusive: false };

#[derive(Clone)]
pub struct Bed {
    pub world: SimWorld,
    pub env: Env,
    pub disk: SimDisk,
    pub log: Rc<RefCell<Vec<String>>>,
    pub memory: Rc<Cell<usize>>,
    pub lease: Rc<Cell<Duration>>,
    /// Age at which a group is committed that nobody waits for.
    pub commit_interval: Rc<Cell<Duration>>,
    /// Quiet clients hear what is durable.
    pub notices: Rc<Cell<bool>>,
    /// How the last server ended by itself.
    pub ended: Rc<RefCell<Option<Result<(), ServeError>>>>,
    stop: env::sync::Notify,
}

/// What sessions have lost.
#[derive(Default)]
pub struct Reports {
    pub lost: RefCell<Vec<usize>>,
    /// What the client says in its recovery that is kept for it.
    pub hold: Cell<Option<Statement>>,
}

impl Events<Ost> for Reports {
    fn absorb(&self, _: ServerId, _: &Request<Ost>, _: &Reply<Ost>, _: u64) {}

    fn push(&self, _: ServerId, _: Push) -> Option<PushReply> {
        None
    }

    fn reclaim(&self, _: ServerId, _: Epoch) -> Vec<Op> {
        self.hold.take().map(|room| Op::Hold { room }).into_iter().collect()
    }

    fn names_lost(&self, _: &Op) -> bool {
        false
    }

    fn evicted(&self, _: ServerId, _: ClientId, lost: &[ReplayEntry<Ost>]) {
        self.lost.borrow_mut().push(lost.len());
    }
}

/// A client of the target.
#[derive(Clone)]
pub struct Client {
    pub session: Rc<Session<Ost>>,
    pub reports: Rc<Reports>,
    /// Its number at the metadata server.
    pub number: ClientId,
    pub epoch: Rc<Cell<Epoch>>,
}

/// Formats a target and serves it, runs `test`, and checks the target.
pub fn run<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Bed) -> F) {
    let world = SimWorld::new(seed);
    let disk = world.disk("device", DEVICE);
    let inner = world.clone();
    world.run(|env| async move {
        let device = env.open_disk("device", OPEN).await.unwrap();
        let options = FormatOptions {
            fs_name: "home",
            fs: FS,
            target: Uuid([5; 16]),
            log_bytes: 8 << 20,
            checksums: true,
            force: false,
        };
        ObjectStore::format(&env, &device, None, &options).await.unwrap();
        drop(device);
        let (world, stop) = (inner, env::sync::Notify::new());
        let memory = Rc::new(Cell::new(redbud_ost::server::MEMORY));
        let (log, ended) = (Rc::default(), Rc::default());
        let lease = Rc::new(Cell::new(LEASE));
        let commit_interval = Rc::new(Cell::new(Duration::from_secs(1)));
        let notices = Rc::new(Cell::new(true));
        let bed =
            Bed { world, env, disk, log, memory, lease, commit_interval, notices, ended, stop };
        bed.start().await;
        test(bed.clone()).await;
        bed.check().await;
    });
}

impl Bed {
    /// Starts the server on its node.
    pub async fn start(&self) {
        let env = self.world.node("ost");
        let (log, memory, stop) = (self.log.clone(), self.memory.get(), self.stop.clone());
        let (ended, lease, notices) = (self.ended.clone(), self.lease.get(), self.notices.get());
        let commit_interval = self.commit_interval.get();
        let (send, started) = oneshot();
        env.clone().spawn(async move {
            let device = env.open_disk("device", OPEN).await.unwrap();
            let options = Options { cache_bytes: 8 << 20, commit_interval };
            let store = ObjectStore::open(&env, &device, None, options).await.unwrap();
            let config = Config {
                lease,
                memory,
                notices,
                validate: true,
                log: Rc::new(move |line| log.borrow_mut().push(line.to_owned())),
                ..Config::new(ADDRESS, KEY)
            };
            let server = Server::start(env.clone(), store, config).await.unwrap();
            send.send(());
            let how = server.run(stop.notified()).await;
            *ended.borrow_mut() = Some(how);
        });
        started.await.unwrap();
    }

    /// Kills the server as SIGKILL does.
    pub fn kill(&self) {
        self.world.kill("ost");
    }

    /// Kills the server, and starts it again.
    pub async fn restart(&self) {
        self.kill();
        self.start().await;
    }

    /// Stops the server as SIGTERM does, and waits for its end.
    pub async fn stop(&self) {
        self.stop.notify_all();
        self.until("it ends", || self.ended.borrow().is_some()).await;
        self.ended.take().unwrap().unwrap();
    }

    pub async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..100_000 {
            if holds() {
                return;
            }
            self.wait(10).await;
        }
        panic!("never: {what}");
    }

    pub async fn wait(&self, millis: u64) {
        self.env.sleep(Duration::from_millis(millis)).await;
    }

    /// Ends the server and checks the target.
    pub async fn check(&self) {
        self.kill();
        self.wait(1000).await;
        let device = self.env.open_disk("device", OPEN).await.unwrap();
        let options = Options { cache_bytes: 8 << 20, commit_interval: Duration::from_secs(1) };
        let store = ObjectStore::open(&self.env, &device, None, options).await.unwrap();
        let findings = store.check().await.unwrap();
        assert!(findings.is_empty(), "{findings:?}");
        let scrubbed = store.scrub(0).await.unwrap();
        assert_eq!(scrubbed.damaged, 0, "{:?}", scrubbed.findings);
        store.close().await.unwrap();
    }

    /// Clients in the engine's table, read when the server is not running.
    pub async fn known_clients(&self) -> usize {
        let device = self.env.open_disk("device", OPEN).await.unwrap();
        let options = Options { cache_bytes: 8 << 20, commit_interval: Duration::from_secs(1) };
        let store = ObjectStore::open(&self.env, &device, None, options).await.unwrap();
        let read = store.engine().run(engine::cost::Cost::READ, |txn| txn.clients()).await;
        let count = read.unwrap().0.len();
        store.close().await.unwrap();
        count
    }

    /// A client on the node `name` with this number at the metadata server.
    pub async fn client(&self, name: &str, number: u64) -> Client {
        self.client_with(name, number, |_| ()).await
    }

    /// The same with other settings of its session.
    pub async fn client_with(
        &self,
        name: &str,
        number: u64,
        set: impl FnOnce(&mut SessionConfig),
    ) -> Client {
        let mut config = SessionConfig {
            description: format!("{name}, pid 1"),
            role: if number == 0 { METADATA_SERVER } else { CLIENT },
            ..SessionConfig::new::<Ost>(vec![ADDRESS.into()], "home")
        };
        set(&mut config);
        let shared = Rc::new(Shared::default());
        let session = Session::open(self.world.node(name), config, shared).await.unwrap();
        let reports = Rc::new(Reports::default());
        let events: Rc<dyn Events<Ost>> = reports.clone();
        session.set_events(Rc::downgrade(&events));
        let (number, epoch) = (ClientId(number), Rc::new(Cell::new(Epoch(1))));
        Client { session, reports, number, epoch }
    }

    /// What an administrator's tool is answered.
    pub async fn ask(&self, op: Op) -> Result<OpReply, ToolError> {
        let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
        let env = self.world.node("tool");
        let patience = Duration::from_secs(5);
        ask::<Ost>(&env, (ADDRESS, None), ("home", "a tool"), (principal, op), patience).await
    }

    /// The number of a field of the status.
    pub async fn status(&self, field: &str) -> u64 {
        self.field(field).await
    }

    pub async fn flag(&self, field: &str) -> bool {
        self.field(field).await
    }

    async fn field<T: std::str::FromStr>(&self, field: &str) -> T {
        let Ok(OpReply::Text { text }) = self.ask(Op::Status {}).await else {
            panic!("no status");
        };
        let from = text.find(&format!("\"{field}\":")).unwrap_or_else(|| panic!("{field}: {text}"));
        let rest = &text[from + field.len() + 3..];
        rest[..rest.find([',', '}']).unwrap()].parse().unwrap_or_else(|_| panic!("{rest}"))
    }

    pub fn has_logged(&self, words: &[&str]) -> bool {
        self.log.borrow().iter().any(|line| words.iter().all(|word| line.contains(word)))
    }
}

pub fn key() -> TargetKey {
    TargetKey::new(KEY, FS)
}

/// The bytes of a block of an object in its `version`-th state, 0 for none.
pub fn content(object: u64, block: u64, version: u64) -> Vec<u8> {
    let mut state = (object << 48) ^ (block << 24) ^ version;
    let mut bytes = Vec::with_capacity(BLOCK);
    for _ in 0..BLOCK / 8 {
        if version > 0 {
            state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(version);
        } else {
            state = 0;
        }
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

impl Client {
    pub fn may(&self, object: u64, rights: u8) -> Capability {
        key().issue(ObjectId(object), self.number, rights, self.epoch.get())
    }

    pub async fn call(&self, op: Op, sync: bool) -> Result<OpReply, Fault> {
        self.call_all(vec![op], sync).await
    }

    /// Several operations in one request; the answer of the first.
    pub async fn call_all(&self, ops: Vec<Op>, sync: bool) -> Result<OpReply, Fault> {
        let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
        let call = Call { ops, principal, sync, class: SlotClass::Ordinary };
        let reply = self.session.call(call).await?;
        result(&reply, 0).cloned()
    }

    /// A write of `len` blocks in their `version`-th state.
    pub fn write_op(&self, object: u64, block: u64, len: u64, version: u64) -> Op {
        let data: Vec<u8> =
            (block..block + len).flat_map(|at| content(object, at, version)).collect();
        let sums = data.chunks(BLOCK).map(crc32c).collect();
        Op::Write {
            may: self.may(object, WRITE),
            block,
            data: data.into(),
            sums,
            room: Statement::default(),
        }
    }

    pub async fn write(
        &self,
        object: u64,
        block: u64,
        len: u64,
        version: u64,
        sync: bool,
    ) -> Result<(), Fault> {
        self.call(self.write_op(object, block, len, version), sync).await.map(drop)
    }

    /// Which bytes blocks have.
    pub async fn read(&self, object: u64, block: u64, len: u32) -> Result<Vec<u8>, Fault> {
        let op = Op::Read { may: self.may(object, READ), block, len };
        let OpReply::Data { runs, data, sums } = self.call(op, false).await? else {
            panic!("another reply");
        };
        let mut bytes = vec![0; len as usize * BLOCK];
        let mut found = data.chunks_exact(BLOCK).zip(sums);
        for at in runs.iter().flat_map(|run| run.block..run.block + run.len) {
            let (block, sum) = found.next().unwrap();
            assert_eq!(crc32c(block), sum);
            bytes[(at * BLOCK_U64) as usize..][..BLOCK].copy_from_slice(block);
        }
        assert!(found.next().is_none(), "bytes without a place");
        Ok(bytes)
    }

    /// Have blocks their `version`-th state?
    pub async fn has(&self, object: u64, block: u64, len: u64, version: u64) -> bool {
        let bytes = self.read(object, block, len as u32).await.unwrap();
        (block..block + len)
            .zip(bytes.chunks(BLOCK))
            .all(|(at, bytes)| bytes == content(object, at, version))
    }

    pub async fn serve(&self, op: impl FnOnce(Capability) -> Op) -> Result<(), Fault> {
        self.serve_shard(0, op).await
    }

    /// What the metadata server of a shard asks for.
    pub async fn serve_shard(
        &self,
        shard: u8,
        op: impl FnOnce(Capability) -> Op,
    ) -> Result<(), Fault> {
        let may = key().issue_to_server(ShardId(shard), self.epoch.get());
        self.call(op(may), true).await.map(drop)
    }

    /// All are fenced that the metadata server has evicted.
    pub async fn admit(&self) -> Result<(), Fault> {
        let epoch = self.session.epoch();
        self.serve(|may| Op::Admit { may, epoch }).await
    }

    pub async fn sync(&self) -> Result<(), Fault> {
        self.session.sync().await
    }

    pub async fn empty_sync(&self) -> Result<(), Fault> {
        let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
        let class = SlotClass::Reserved;
        let call = Call { ops: vec![Op::Sync {}], principal, sync: false, class };
        done(&*self.session.call(call).await?)
    }
}

//! A simulated world with a server, and scripted clients.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::rc::Rc;

use channel::{Initiator, Mode, PublicKey, SecretKey};
use env::sim::SimWorld;
use env::sync::{Notify, OneSender, oneshot};
use env::{DiskOptions, Env, Stream};
use mfs::mkfs::{FormatOptions, PagFormat};
use mfs::open::OpenOptions;
use proto::frame::{Decoder, Received, encode};
use proto::mds::*;
use redbud_mds::fence::Fence;
use redbud_mds::{Config, Mds, ServeError};
use session::server::ServerKeys;
use types::*;

pub const ADDRESS: &str = "mds:1";
pub const LEASE: Duration = Duration::from_secs(4);
const META: u64 = 96 << 20;

#[derive(Clone)]
pub struct Bed {
    pub world: SimWorld,
    pub env: Env,
    pub log: Rc<RefCell<Vec<String>>>,
    meta: env::sim::SimDisk,
    error: Rc<Cell<bool>>,
    lease: Rc<Cell<Duration>>,
    leases_max: Rc<Cell<usize>>,
    serve: Rc<Cell<Option<usize>>>,
    scrub_interval: Rc<Cell<Duration>>,
    fences: Rc<RefCell<Vec<Rc<dyn Fence>>>>,
    keys: Rc<RefCell<Option<ServerKeys>>>,
    target_key: Rc<Cell<Option<[u8; 32]>>>,
    zones: u16,
}

/// Formats a file system with `blocks` data blocks, starts a server, runs `test`, and checks the
/// file system.
pub fn with_blocks<F: Future<Output = ()>>(blocks: u64, test: impl FnOnce(Bed) -> F) {
    with_seed(7, blocks, test);
}

/// As [`with_blocks`], in the world of `seed`.
pub fn with_seed<F: Future<Output = ()>>(seed: u64, blocks: u64, test: impl FnOnce(Bed) -> F) {
    with_sizes(seed, (META, blocks), test);
}

/// As [`with_seed`]; `sizes`: bytes of the metadata device, and data blocks.
pub fn with_sizes<F: Future<Output = ()>>(
    seed: u64,
    sizes: (u64, u64),
    test: impl FnOnce(Bed) -> F,
) {
    with_features(seed, sizes, mfs::Features::NONE, test);
}

/// As [`run`], with so many data zones, each on a device of its own.
pub fn with_zones<F: Future<Output = ()>>(zones: u16, test: impl FnOnce(Bed) -> F) {
    with_all(7, zones, (META, 1 << 20), mfs::Features::NONE, test);
}

/// As [`run`], on a file system with inline data.
pub fn with_inline_data<F: Future<Output = ()>>(test: impl FnOnce(Bed) -> F) {
    let features = mfs::Features::NONE.with(mfs::Feature::INLINE_DATA);
    with_features(7, (META, 1 << 20), features, test);
}

/// As [`with_sizes`], with these features.
pub fn with_features<F: Future<Output = ()>>(
    seed: u64,
    sizes: (u64, u64),
    features: mfs::Features,
    test: impl FnOnce(Bed) -> F,
) {
    with_all(seed, 1, sizes, features, test);
}

fn with_all<F: Future<Output = ()>>(
    seed: u64,
    zones: u16,
    (bytes, blocks): (u64, u64),
    features: mfs::Features,
    test: impl FnOnce(Bed) -> F,
) {
    let world = SimWorld::new(seed);
    let meta = world.disk("meta", bytes);
    (0..zones).for_each(|zone| _ = device_of(&world, zone));
    let inner = world.clone();
    world.run(|env| async move {
        let disk = open_meta(&env).await;
        let options = FormatOptions {
            name: "home".into(),
            uuid: Uuid([9; 16]),
            log_bytes: 8 << 20,
            pags: (0..zones)
                .map(|zone| PagFormat::whole(PagId(zone), zone_uuid(zone), blocks))
                .collect(),
            features,
            force: false,
        };
        mfs::Mfs::format(&env, &disk, &options).await.unwrap();
        drop(disk);
        let leases_max = Rc::new(Cell::new(limits::LEASES_MAX));
        let (log, error, scrub_interval) = (Rc::default(), Rc::default(), Rc::default());
        let (fences, keys, world) = (Rc::default(), Rc::default(), inner);
        let lease = Rc::new(Cell::new(LEASE));
        let bed = Bed {
            world,
            env,
            log,
            meta,
            error,
            lease,
            leases_max,
            serve: Rc::default(),
            scrub_interval,
            fences,
            keys,
            target_key: Rc::default(),
            zones,
        };
        bed.start().await;
        test(bed.clone()).await;
        bed.check().await;
    });
}

pub fn run<F: Future<Output = ()>>(test: impl FnOnce(Bed) -> F) {
    with_blocks(1 << 20, test);
}

async fn open_meta(env: &Env) -> env::Disk {
    env.open_disk("meta", DiskOptions { write: true, exclusive: false }).await.unwrap()
}

impl Bed {
    /// The metadata device.
    pub async fn open_meta(&self) -> env::Disk {
        open_meta(&self.env).await
    }

    /// Starts the server on its node.
    pub async fn start(&self) {
        self.try_start().await.unwrap();
    }

    /// As [`Bed::start`]; `Err`: it refuses to start.
    pub async fn try_start(&self) -> Result<(), String> {
        self.try_start_from(false).await
    }

    /// As [`Bed::try_start`]; `older_copy`: also if a label has a higher epoch than the metadata.
    pub async fn try_start_from(&self, older_copy: bool) -> Result<(), String> {
        let env = self.world.node("mds");
        let (fences, keys) = (self.fences.borrow().clone(), self.keys.borrow().clone());
        let (log, error) = (self.log.clone(), self.error.clone());
        let (lease, zones) = (self.lease.get(), self.zones);
        let (leases_max, scrub_interval) = (self.leases_max.get(), self.scrub_interval.get());
        let (serve, target_key) = (self.serve.get(), self.target_key.get());
        let (send, started) = oneshot();
        env.clone().spawn(async move {
            let disk = open_meta(&env).await;
            let checked = redbud_mds::check_epoch(&env, &disk, &["data".into()]).await;
            let epoch_above = match checked {
                Err(ServeError::Superseded { fencing, .. }) if older_copy => fencing,
                Err(error) => return send.send(Err(error.to_string())),
                Ok(_) => Epoch(0),
            };
            let options = OpenOptions { epoch_above, ..OpenOptions::default() };
            let options = OpenOptions { cache_bytes: 16 << 20, read_only: false, ..options };
            let mfs = mfs::Mfs::open(&env, &disk, options).await.unwrap();
            let mut config = Config::new("home", ADDRESS);
            config.lease = lease;
            config.leases_max = leases_max;
            config.serve = serve;
            config.scrub_interval = scrub_interval;
            let place = |zone| {
                let (id, uuid, path) = (PagId(zone), zone_uuid(zone), zone_path(zone));
                redbud_mds::PagPlace { id, uuid, path }
            };
            config.pags = (0..zones).map(place).collect();
            config.log = Rc::new(move |line| log.borrow_mut().push(line.to_owned()));
            config.fences = fences;
            config.keys = keys;
            config.target_key = target_key;
            let mds = match Mds::start(env.clone(), mfs, config).await {
                Ok(mds) => mds,
                Err(error) => return send.send(Err(error.to_string())),
            };
            send.send(Ok(()));
            error.set(mds.run(std::future::pending()).await.is_err());
        });
        started.await.unwrap_or_else(|| Err("the server was killed".into()))
    }

    /// Restarts the server with these fences.
    pub async fn fence_by(&self, fences: Vec<Rc<dyn Fence>>) {
        *self.fences.borrow_mut() = fences;
        self.restart().await;
    }

    /// Restarts the server with these keys.
    pub async fn ask_for(&self, keys: ServerKeys) {
        *self.keys.borrow_mut() = Some(keys);
        self.restart().await;
    }

    /// Restarts the server, which then shares this key with object targets.
    pub async fn key_of_targets(&self, key: [u8; 32]) {
        self.target_key.set(Some(key));
        self.restart().await;
    }

    /// Sets the server's lease from its next start on.
    pub fn lease_for(&self, lease: Duration) {
        self.lease.set(lease);
    }

    /// Restarts the server, which then works on so many requests at once.
    pub async fn serve_by(&self, workers: Option<usize>) {
        self.serve.set(workers);
        self.restart().await;
    }

    /// Sets the server's maximum number of leases from its next start on.
    pub fn keep_leases(&self, max: usize) {
        self.leases_max.set(max);
    }

    /// Sets the server's scrub interval from its next start on.
    pub fn scrub_every(&self, interval: Duration) {
        self.scrub_interval.set(interval);
    }

    /// Kills the server as SIGKILL does, and starts it again.
    pub async fn restart(&self) {
        self.world.kill("mds");
        self.start().await;
    }

    pub async fn client(&self, name: &str) -> Client {
        let client = Client::new(self.world.node(name));
        let welcome = client.connect(ClientId(0)).await.unwrap();
        assert_eq!(welcome.state, NEW);
        client
    }

    pub async fn sleep(&self, time: Duration) {
        self.env.sleep(time).await;
    }

    pub fn meta(&self) -> env::sim::SimDisk {
        self.meta.clone()
    }

    /// Did the server end with an error?
    pub fn ended_with_error(&self) -> bool {
        self.error.get()
    }

    /// Ends the server and checks the file system.
    pub async fn check(&self) {
        self.world.kill("mds");
        self.sleep(Duration::from_secs(1)).await;
        let disk = open_meta(&self.env).await;
        let report = mfs::fsck::fsck(&self.env, &disk, Default::default()).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
    }

    pub fn logged(&self, text: &str) -> bool {
        self.log.borrow().iter().any(|line| line.contains(text))
    }
}

pub type Answer = Result<OpReply, Fault>;

#[derive(Default)]
struct ClientState {
    stream: RefCell<Option<Stream>>,
    waiting: RefCell<BTreeMap<(u16, u32), OneSender<Reply>>>,
    seqs: RefCell<BTreeMap<u16, u32>>,
    pushes: RefCell<VecDeque<Push>>,
    pushed: Notify,
    id: Cell<ClientId>,
    /// The client answers recalls at once, by giving up everything.
    pub answers_recalls: Cell<bool>,
    /// The client's answer to glimpses.
    data: RefCell<Option<DataAttr>>,
    /// The client does not answer glimpses by itself.
    holds_glimpses: Cell<bool>,
    keep_open: Cell<bool>,
    /// The client reads nothing from its connection any more.
    reads_nothing: Cell<bool>,
    connections: Cell<u64>,
    /// Its key, and the server's.
    keys: RefCell<Option<(SecretKey, PublicKey)>>,
}

#[derive(Clone)]
pub struct Client {
    pub env: Env,
    pub nonce: u64,
    state: Rc<ClientState>,
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// A change of attributes that changes none.
pub fn no_change() -> SetAttr {
    SetAttr {
        mode: None,
        uid: None,
        gid: None,
        atime: None,
        mtime: None,
        kill_setid: false,
        judged_by: 0,
    }
}

pub fn node(kind: FileKind, mode: u16) -> NewNode {
    NewNode::plain(kind, mode, 0o022)
}

impl Client {
    pub fn new(env: Env) -> Client {
        let nonce = env.random_u64();
        let state = Rc::new(ClientState::default());
        state.answers_recalls.set(true);
        Client { env, nonce, state }
    }

    pub fn id(&self) -> ClientId {
        self.state.id.get()
    }

    /// The client proves its key, the first of these, to a server with the other one.
    pub fn prove(&self, own: SecretKey, server: PublicKey) {
        *self.state.keys.borrow_mut() = Some((own, server));
    }

    async fn shake_hands(&self, stream: &Stream) -> Option<()> {
        let Some((own, server)) = self.state.keys.borrow().clone() else { return Some(()) };
        let (mut out, mut last, mut answer) = (Vec::new(), Vec::new(), Vec::new());
        let random = self.env.random_bytes();
        let mut begun = Initiator::begin(Mode::Greeting, (&own, &server), random, &mut out).ok()?;
        stream.write_all(out).await.0.ok()?;
        loop {
            let (read, more) = stream.read(answer, 100).await;
            answer = more;
            read.ok().filter(|read| *read > 0)?;
            if begun.receive(&mut answer, &mut last).ok()?.is_some() {
                return stream.write_all(last).await.0.ok();
            }
        }
    }

    /// The client does not answer recalls by itself any more.
    pub fn ignore_recalls(&self) {
        self.state.answers_recalls.set(false);
    }

    /// The client answers recalls of `OPEN` with "still open".
    pub fn keep_open(&self) {
        self.state.keep_open.set(true);
    }

    /// The client reads nothing from its connection any more.
    pub fn stop_reading(&self) {
        self.state.reads_nothing.set(true);
    }

    /// The client does not answer glimpses by itself any more.
    pub fn hold_glimpses(&self) {
        self.state.holds_glimpses.set(true);
    }

    /// Waits for the next glimpse of this client; returns its number.
    pub async fn glimpse(&self) -> u64 {
        match self.push(|push| matches!(push, Push::Glimpse { .. })).await {
            Push::Glimpse { id, .. } => id,
            _ => unreachable!(),
        }
    }

    pub fn answer_glimpse(&self, id: u64, data: Option<DataAttr>) {
        self.send(&Message::PushReply { reply: PushReply { id, data } });
    }

    pub fn answer_glimpses(&self, data: DataAttr) {
        *self.state.data.borrow_mut() = Some(data);
    }

    pub async fn connect(&self, client: ClientId) -> Result<Welcome, Refused> {
        self.connect_as(client, self.nonce, 0).await
    }

    pub async fn connect_as(
        &self,
        client: ClientId,
        nonce: u64,
        role: u8,
    ) -> Result<Welcome, Refused> {
        self.try_connect(client, nonce, role, Transno::ZERO).await.expect("the server is there")
    }

    /// `None`: the server cannot be reached.
    pub async fn try_connect(
        &self,
        client: ClientId,
        nonce: u64,
        role: u8,
        seen: Transno,
    ) -> Option<Result<Welcome, Refused>> {
        let usual = Hello::new::<proto::mds::Mds>(role, "home", "a scripted client");
        self.greet(Hello { client, nonce, seen, ..usual }).await
    }

    /// As [`Client::try_connect`], with this hello.
    pub async fn greet(&self, hello: Hello) -> Option<Result<Welcome, Refused>> {
        let stream = self.env.connect(ADDRESS).await.ok()?;
        self.shake_hands(&stream).await?;
        let mut bytes = Vec::new();
        encode(&Message::Hello { hello }, &mut bytes);
        stream.write_all(bytes).await.0.ok()?;
        let mut decoder = Decoder::new();
        let welcome = match receive(&stream, &mut decoder).await {
            Some(Message::Welcome { welcome }) => welcome,
            Some(Message::Refused { refused }) => return Some(Err(refused)),
            None => return None,
            other => panic!("{other:?}"),
        };
        self.state.id.set(welcome.client);
        if let Some(old) = self.state.stream.borrow_mut().replace(stream.clone()) {
            old.shutdown();
        }
        let connection = self.state.connections.get() + 1;
        self.state.connections.set(connection);
        self.env.spawn(self.clone().read(stream, decoder, connection));
        Some(Ok(welcome))
    }

    /// Closes the connection.
    pub fn disconnect(&self) {
        if let Some(stream) = self.state.stream.borrow_mut().take() {
            stream.shutdown();
        }
        self.state.waiting.borrow_mut().clear();
    }

    async fn read(self, stream: Stream, mut decoder: Decoder, connection: u64) {
        while let Some(message) = receive(&stream, &mut decoder).await {
            if self.state.reads_nothing.get() {
                std::future::pending::<()>().await;
            }
            match message {
                Message::Reply { reply } => {
                    let waiting = self.state.waiting.borrow_mut().remove(&(reply.slot, reply.seq));
                    if let Some(waiting) = waiting {
                        waiting.send(reply);
                    }
                }
                Message::Push { push } => self.clone().pushed(push),
                other => panic!("{other:?}"),
            }
        }
        if self.state.connections.get() == connection {
            self.state.waiting.borrow_mut().clear();
            self.state.stream.borrow_mut().take();
        }
    }

    fn pushed(self, push: Push) {
        match &push {
            Push::Recall { ino, seq, take, range: part } if self.state.answers_recalls.get() => {
                let still_open = self.state.keep_open.get() && take.contains(Rights::OPEN);
                let give =
                    Op::Return { ino: *ino, seq: *seq, give: *take, still_open, range: *part };
                let client = self.clone();
                self.env.spawn(async move {
                    client.reserved(give).await;
                });
            }
            Push::Glimpse { id, .. } if !self.state.holds_glimpses.get() => {
                self.answer_glimpse(*id, self.state.data.borrow().clone());
            }
            _ => {}
        }
        self.state.pushes.borrow_mut().push_back(push);
        self.state.pushed.notify_all();
    }

    pub fn send(&self, message: &Message) {
        let Some(stream) = self.state.stream.borrow().clone() else { return };
        let mut bytes = Vec::new();
        encode(message, &mut bytes);
        self.env.spawn(async move {
            let _ = stream.write_all(bytes).await;
        });
    }

    /// The next push that `wanted` accepts; others before it are dropped.
    pub async fn push(&self, wanted: impl Fn(&Push) -> bool) -> Push {
        loop {
            let pushed = self.state.pushed.notified();
            loop {
                let next = self.state.pushes.borrow_mut().pop_front();
                match next {
                    Some(push) if wanted(&push) => return push,
                    Some(_) => {}
                    None => break,
                }
            }
            pushed.await;
        }
    }

    /// The pushes that no test has read.
    pub fn pushes(&self) -> Vec<Push> {
        self.state.pushes.borrow().iter().cloned().collect()
    }

    /// Drops the pushes that no test has read.
    pub fn forget_pushes(&self) {
        self.state.pushes.borrow_mut().clear();
    }

    pub async fn recall(&self) -> (Ino, u64, Rights) {
        match self.push(|push| matches!(push, Push::Recall { .. })).await {
            Push::Recall { ino, seq, take, .. } => (ino, seq, take),
            _ => unreachable!(),
        }
    }

    fn next_seq(&self, slot: u16) -> u32 {
        let mut seqs = self.state.seqs.borrow_mut();
        let seq = seqs.entry(slot).or_insert(0);
        *seq += 1;
        *seq
    }

    pub fn request(&self, slot: u16, ops: Vec<Op>) -> Request {
        let principal = Principal { uid: 1000, gid: 1000, groups: vec![] };
        let seq = self.next_seq(slot);
        Request { slot, seq, principal, sync: false, replay: None, ops }
    }

    /// Sends a request as it is and waits for the answer.
    pub async fn exchange(&self, request: Request) -> Option<Reply> {
        let (send, receive) = oneshot();
        if self.state.stream.borrow().is_none() {
            return None;
        }
        self.state.waiting.borrow_mut().insert((request.slot, request.seq), send);
        self.send(&Message::Request { request });
        receive.await
    }

    pub async fn compound(&self, ops: Vec<Op>) -> Vec<Answer> {
        self.exchange(self.request(0, ops)).await.unwrap().results
    }

    pub async fn call(&self, op: Op) -> Answer {
        self.compound(vec![op]).await.remove(0)
    }

    pub async fn reserved(&self, op: Op) {
        // Each in a slot of its own, so that many may be in flight.
        let slot = (64..128).find(|slot| {
            let busy = self.state.waiting.borrow();
            !busy.keys().any(|(other, _)| other == slot)
        });
        let request = self.request(slot.unwrap(), vec![op]);
        self.exchange(request).await;
    }

    pub async fn sync(&self) {
        assert_eq!(self.call(Op::Sync {}).await, Ok(OpReply::Done {}));
    }

    pub async fn create(
        &self,
        dir: Ino,
        text: &str,
        kind: FileKind,
        want: Rights,
    ) -> Result<Leased, Fault> {
        let op = Op::Create { dir, name: name(text), node: node(kind, 0o666), want };
        match self.call(op).await? {
            OpReply::Created { leased, .. } => Ok(leased),
            other => panic!("{other:?}"),
        }
    }

    pub async fn file(&self, dir: Ino, text: &str) -> Ino {
        self.create(dir, text, FileKind::Regular, Rights::empty()).await.unwrap().attr.ino
    }

    pub async fn dir(&self, dir: Ino, text: &str) -> Ino {
        self.create(dir, text, FileKind::Directory, Rights::empty()).await.unwrap().attr.ino
    }

    pub async fn lookup(&self, dir: Ino, text: &str) -> Option<Attr> {
        self.find(dir, text, Rights::empty(), Rights::empty()).await.0.map(|leased| leased.attr)
    }

    pub async fn find(
        &self,
        dir: Ino,
        text: &str,
        want: Rights,
        want_dir: Rights,
    ) -> (Option<Leased>, Leased) {
        let op = Op::Lookup { dir, name: name(text), want, want_dir };
        match self.call(op).await.unwrap() {
            OpReply::Entry { entry, dir } => (entry, dir),
            other => panic!("{other:?}"),
        }
    }

    pub async fn attr(&self, ino: Ino) -> Result<Leased, Fault> {
        self.attr_wanting(ino, Rights::empty()).await
    }

    pub async fn attr_wanting(&self, ino: Ino, want: Rights) -> Result<Leased, Fault> {
        match self.call(Op::GetAttr { ino, want }).await? {
            OpReply::Attr { leased } => Ok(leased),
            other => panic!("{other:?}"),
        }
    }

    pub async fn acquire(
        &self,
        ino: Ino,
        rights: Rights,
    ) -> Result<(Leased, Option<LayoutSlice>), Fault> {
        match self
            .call(Op::Acquire {
                ino,
                rights,
                from: FileBlock(0),
                range: None,
                ahead: types::Ahead::default(),
            })
            .await?
        {
            OpReply::Acquired { leased, layout, .. } => Ok((leased, layout)),
            other => panic!("{other:?}"),
        }
    }

    pub async fn unlink(&self, dir: Ino, text: &str) -> Result<Attr, Fault> {
        match self.call(Op::Unlink { dir, name: name(text), unused: None }).await? {
            OpReply::Removed { attr, .. } => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub async fn rename(&self, from: (Ino, &str), to: (Ino, &str), flags: u32) -> Answer {
        let (from, name_from) = (from.0, name(from.1));
        let (to, new_name) = (to.0, name(to.1));
        self.call(Op::Rename { from, name: name_from, to, new_name, flags, unused: None }).await
    }

    pub async fn names(&self, dir: Ino) -> Vec<String> {
        let mut out = Vec::new();
        let mut cookie = 0;
        loop {
            let (want, want_dir) = (Rights::empty(), Rights::empty());
            let op = Op::ReadDir { dir, cookie, max: 3, plus: false, want, want_dir };
            let Ok(OpReply::Entries { entries, end, .. }) = self.call(op).await else { panic!() };
            cookie = entries.last().map_or(cookie, |entry| entry.cookie);
            out.extend(entries.iter().map(|entry| entry.name.to_string()));
            if end {
                out.sort();
                return out;
            }
        }
    }

    pub async fn space(&self, blocks: u64) -> Result<Vec<PagRun>, Fault> {
        match self.call(Op::Space { hint: None, blocks, unreachable: Vec::new() }).await? {
            OpReply::Space { runs, .. } => Ok(runs),
            other => panic!("{other:?}"),
        }
    }

    pub async fn commit(
        &self,
        ino: Ino,
        edits: Vec<Edit>,
        size: Option<u64>,
    ) -> Result<Attr, Fault> {
        let op = Op::Commit {
            ino,
            edits,
            size,
            mtime: None,
            ctime: None,
            merge: false,
            tail_zero: false,
        };
        match self.call(op).await? {
            OpReply::Attr { leased } => Ok(leased.attr),
            other => panic!("{other:?}"),
        }
    }
}

async fn receive(stream: &Stream, decoder: &mut Decoder) -> Option<Message> {
    loop {
        match decoder.next().unwrap() {
            Some(Received::Message(message)) => return Some(message),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        let (result, bytes) = stream.read(decoder.lend(), 1 << 16).await;
        decoder.restore(bytes);
        if !matches!(result, Ok(1..)) {
            return None;
        }
    }
}

fn zone_uuid(zone: u16) -> Uuid {
    Uuid([1 + 0x10 * zone as u8; 16])
}

/// Where the device of a zone is.
fn zone_path(zone: u16) -> String {
    if zone == 0 { "data".into() } else { format!("data{zone}") }
}

/// The first data device with a label, for the world of `bed`.
pub fn data_device(world: &SimWorld) -> env::sim::SimDisk {
    device_of(world, 0)
}

/// As [`data_device`], the device of this zone.
pub fn device_of(world: &SimWorld, zone: u16) -> env::sim::SimDisk {
    let disk = world.disk(&zone_path(zone), 16 << 20);
    let kind = label::SliceKind::Data { pag: PagId(zone) };
    let label = label::Label::single(Uuid([9; 16]), "home", zone_uuid(zone), 4096, kind);
    label::put(&disk, &label);
    disk
}

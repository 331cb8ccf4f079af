//! A simulated world with several servers, and clients that have a session with each.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::{Rc, Weak};

use commitment::Protocol;
use env::sim::SimWorld;
use env::sync::oneshot;
use env::{DiskOptions, Env};
use mfs::mkfs::{FormatOptions, PagFormat};
use mfs::open::OpenOptions;
use mfs::{Features, Mfs};
use proto::mds::*;
use proto::message::{ADMINISTRATOR, METADATA_SERVER};
use proto::placement::ATTRIBUTE;
use proto::slots::SlotClass;
use proto::wire::Appended;
use proto::wire::Bytes;
use redbud_mds::{BATCH_MAX, Config, Introspection, JointStatus, Mds as Server, PagPlace};
use session::client::{Call, Config as SessionConfig, Events, ReplayEntry, Session, Shared};
use types::*;

use crate::target::Target;

pub const ROOT: Ino = Ino::ROOT;
/// Names at which a directory is spread by itself.
pub const SPREAD_AT: u64 = 24;
const BLOCKS: u64 = 4096;
/// The number of the first target: no zone has its UUID.
pub const TARGETS: u8 = 50;
const LEASE: Duration = Duration::from_secs(4);

#[derive(Clone)]
pub struct Bed {
    pub world: SimWorld,
    pub env: Env,
    pub log: Rc<RefCell<Vec<String>>>,
    pub protocol: Protocol,
    shards: u8,
    batch: usize,
    inside: Rc<RefCell<BTreeMap<u8, Introspection>>>,
}

/// Formats `shards` shards, starts their servers, runs `test`, and checks all of them.
pub fn run<F: Future<Output = ()>>(
    seed: u64,
    shards: u8,
    protocol: Protocol,
    test: impl FnOnce(Bed) -> F,
) {
    run_in_batches(seed, shards, (protocol, BATCH_MAX), test);
}

/// The same with at most so many operations in a batch.
pub fn run_in_batches<F: Future<Output = ()>>(
    seed: u64,
    shards: u8,
    (protocol, batch): (Protocol, usize),
    test: impl FnOnce(Bed) -> F,
) {
    let world = SimWorld::new(seed);
    for shard in 0..shards {
        world.disk(&format!("meta{shard}"), 64 << 20);
        let disk = world.disk(&format!("data{shard}"), 16 << 20);
        let kind = label::SliceKind::Data { pag: PagId(u16::from(shard)) };
        let zone = Uuid([100 + shard; 16]);
        label::put(&disk, &label::Label::single(Uuid([9; 16]), "home", zone, 4096, kind));
    }
    let inner = world.clone();
    world.run(|env| async move {
        for shard in 0..shards {
            let disk = open_meta(&env, shard).await;
            let options = FormatOptions {
                name: "home".into(),
                uuid: Uuid([9; 16]),
                log_bytes: 8 << 20,
                pags: vec![PagFormat::whole(
                    PagId(u16::from(shard)),
                    Uuid([100 + shard; 16]),
                    BLOCKS,
                )],
                features: Features::NONE,
                force: false,
            };
            Mfs::format_shard(&env, &disk, ShardId(shard), &options).await.unwrap();
            let mfs = Mfs::open(&env, &disk, OpenOptions::default()).await.unwrap();
            mfs.add_shards().await.unwrap();
            mfs.close().await.unwrap();
        }
        let (log, inside) = (Rc::default(), Rc::default());
        let bed = Bed { world: inner, env, log, protocol, shards, batch, inside };
        for shard in 0..shards {
            bed.start(shard).await;
        }
        test(bed.clone()).await;
        bed.check().await;
    });
}

async fn open_meta(env: &Env, shard: u8) -> env::Disk {
    let options = DiskOptions { write: true, exclusive: false };
    env.open_disk(&format!("meta{shard}"), options).await.unwrap()
}

fn node(shard: u8) -> String {
    format!("mds{shard}")
}

impl Bed {
    pub async fn start(&self, shard: u8) {
        let (env, log) = (self.world.node(&node(shard)), self.log.clone());
        let (shards, protocol, batch) = (self.shards, self.protocol, self.batch);
        let inside = self.inside.clone();
        let (send, started) = oneshot();
        env.clone().spawn(async move {
            let disk = open_meta(&env, shard).await;
            let options = OpenOptions { cache_bytes: 16 << 20, ..OpenOptions::default() };
            let mfs = Mfs::open(&env, &disk, options).await.unwrap();
            let mut config = Config::new("home", &format!("mds{shard}:1"));
            config.lease = LEASE;
            (config.protocol, config.batch) = (protocol, batch);
            config.spread_at = SPREAD_AT;
            config.target_key = Some(crate::target::KEY);
            config.pags = vec![PagPlace {
                id: PagId(u16::from(shard)),
                uuid: Uuid([100 + shard; 16]),
                path: format!("data{shard}"),
            }];
            config.servers = (0..shards)
                .map(|shard| ServerInfo {
                    server: ServerId(u16::from(shard)),
                    shards: vec![shard],
                    addresses: vec![format!("mds{shard}:1")],
                })
                .collect();
            let clock = env.clone();
            config.log = Rc::new(move |line| {
                let line = format!("{:?} {shard}: {line}", clock.now());
                // Shown if the test fails.
                println!("{line}");
                log.borrow_mut().push(line);
            });
            let server = Server::start(env.clone(), mfs, config).await.unwrap();
            inside.borrow_mut().insert(shard, server.introspection());
            send.send(());
            let _ = server.run(std::future::pending()).await;
        });
        started.await.expect("the server starts");
    }

    /// What the running server of a shard says of joint operations.
    pub fn joint(&self, shard: u8) -> JointStatus {
        self.inside.borrow()[&shard].joint()
    }

    pub fn kill(&self, shard: u8) {
        self.world.kill(&node(shard));
    }

    /// Kills the servers of these shards after a while, and starts them again a moment later.
    pub async fn restart_after(&self, after: Duration, victims: &[u8]) {
        self.env.sleep(after).await;
        victims.iter().for_each(|&shard| self.kill(shard));
        self.env.sleep(Duration::from_millis(50)).await;
        for &shard in victims {
            self.start(shard).await;
        }
    }

    /// Sessions with all servers, in the order of their shards.
    pub async fn client(&self, name: &str) -> Client {
        let env = self.world.node(name);
        let (mut sessions, mut ears) = (Vec::new(), Vec::new());
        for shard in 0..self.shards {
            let mut config = SessionConfig::new::<Mds>(vec![format!("mds{shard}:1")], "home");
            config.description = format!("{name}, 1, /mnt");
            let shared = Rc::<Shared>::default();
            let session = Session::open(env.clone(), config, shared).await.unwrap();
            let (env, weak) = (env.clone(), Rc::downgrade(&session));
            let (recalls, keeps_open) = (Cell::new(0), Cell::new(false));
            let ear = Rc::new(Ear { env, session: weak, recalls, keeps_open });
            let events: Weak<dyn Events<Mds>> = Rc::downgrade(&ear) as _;
            session.set_events(events);
            sessions.push(session);
            ears.push(ear);
        }
        Client { sessions, ears, homes: Rc::default() }
    }

    /// Starts so many targets, and enters them at all servers: their zones are 10, 11 and so on.
    pub async fn targets(&self, count: u8) -> Vec<Rc<Target>> {
        let targets: Vec<Rc<Target>> =
            (1..=count).map(|n| Target::new(TARGETS + n, BLOCKS)).collect();
        targets.iter().for_each(|target| target.start(&self.world));
        for shard in 0..self.shards {
            for (id, target) in (10..).zip(&targets) {
                self.add_target(shard, target, PagId(id)).await;
            }
        }
        targets
    }

    /// Enters a target at the server of a shard.
    pub async fn add_target(&self, shard: u8, target: &Target, id: PagId) {
        let mut config = SessionConfig::new::<Mds>(vec![format!("mds{shard}:1")], "home");
        config.role = ADMINISTRATOR;
        let shared = Rc::<Shared>::default();
        let admin = Session::<Mds>::open(self.world.node("admin"), config, shared).await.unwrap();
        let number = Appended(Some(id));
        let add = Op::AddZone { path: target.path(), overwrite: false, number };
        let text = match admin.call(Call::reserved(vec![add])).await.unwrap().results[0].clone() {
            Ok(OpReply::Text { text }) => text,
            reply => panic!("{reply:?}"),
        };
        assert_eq!(text, format!("{{\"added\":{}}}", id.0));
        admin.close().await;
    }

    /// A session such as another metadata server has.
    pub async fn server_session(&self, shard: u8) -> Rc<Session<Mds>> {
        self.session_as(METADATA_SERVER, shard).await
    }

    async fn session_as(&self, role: u8, shard: u8) -> Rc<Session<Mds>> {
        let env = self.world.node("server");
        let mut config = SessionConfig::new::<Mds>(vec![format!("mds{shard}:1")], "home");
        config.role = role;
        Session::open(env, config, Rc::<Shared>::default()).await.unwrap()
    }

    /// Asks the server of a shard as an administrator.
    pub async fn administer(&self, shard: u8, op: Op) -> Result<OpReply, Fault> {
        let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
        let call = Call { ops: vec![op], principal, sync: false, class: SlotClass::Ordinary };
        let session = self.session_as(ADMINISTRATOR, shard).await;
        session.call(call).await?.results[0].clone()
    }

    /// Ends all servers and checks every shard, and whether they agree.
    async fn check(&self) {
        // What workers write last waits for other writes.
        self.env.sleep(Duration::from_secs(2)).await;
        (0..self.shards).for_each(|shard| self.kill(shard));
        self.env.sleep(Duration::from_secs(1)).await;
        let mut said = Vec::new();
        for shard in 0..self.shards {
            let disk = open_meta(&self.env, shard).await;
            let report = mfs::fsck::fsck(&self.env, &disk, Default::default()).await.unwrap();
            assert!(report.is_clean(), "shard {shard}: {:#?}", report.problems);
            said.push(report.shard);
        }
        let disagreements = mfs::fsck::across(&said, &Default::default());
        assert!(disagreements.is_empty(), "{disagreements:#?}");
    }

    pub fn logged(&self, text: &str) -> bool {
        self.log.borrow().iter().any(|line| line.contains(text))
    }
}

/// It gives up whatever is recalled, but for what it has open.
struct Ear {
    env: Env,
    session: Weak<Session<Mds>>,
    /// How often something was recalled.
    recalls: Cell<u64>,
    /// It has all files open that it may have open.
    keeps_open: Cell<bool>,
}

impl Events<Mds> for Ear {
    fn absorb(&self, _: ServerId, _: &Request, _: &Reply, _: u64) {}
    fn push(&self, _: ServerId, push: Push) -> Option<PushReply> {
        if let (Push::Recall { ino, seq, take, .. }, Some(session)) = (push, self.session.upgrade())
        {
            self.recalls.set(self.recalls.get() + 1);
            let still_open = self.keeps_open.get() && take.contains(Rights::OPEN);
            let give = if still_open { take - Rights::OPEN } else { take };
            let back = Op::Return { ino, seq, give, still_open, range: None };
            self.env.spawn(async move { drop(session.call(Call::reserved(vec![back])).await) });
        }
        None
    }
    fn connected(&self, _: ServerId) {}
    fn reclaim(&self, _: ServerId, _: Epoch) -> Vec<Op> {
        Vec::new()
    }
    fn names_lost(&self, _: &Op) -> bool {
        false
    }
    fn evicted(&self, _: ServerId, _: ClientId, _: &[ReplayEntry<Mds>]) {}
}

#[derive(Clone)]
pub struct Client {
    pub sessions: Vec<Rc<Session<Mds>>>,
    ears: Vec<Rc<Ear>>,
    /// Directories that are not at the server of their number, as the client has learned.
    homes: Rc<RefCell<BTreeMap<Ino, u8>>>,
}

/// Sends letters as a metadata server does.
pub async fn tell(session: &Rc<Session<Mds>>, letters: Vec<Letter>) -> Result<OpReply, Fault> {
    let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
    let ops = vec![Op::Tell { letters }];
    let call = Call { ops, principal, sync: false, class: SlotClass::Ordinary };
    session.call(call).await?.results[0].clone()
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

impl Client {
    /// How often a server has recalled something.
    pub fn recalls(&self) -> u64 {
        self.ears.iter().map(|ear| ear.recalls.get()).sum()
    }

    /// From now on it has all files open that it may have open, or none.
    pub fn keep_open(&self, keeps: bool) {
        self.ears.iter().for_each(|ear| ear.keeps_open.set(keeps));
    }

    /// Inodes of a shard.
    pub async fn inodes(&self, shard: u8) -> u64 {
        match self.call_at(shard, Op::Statfs {}).await {
            Ok(OpReply::Statfs { statfs }) => statfs.inodes,
            reply => panic!("{reply:?}"),
        }
    }

    /// Free blocks of a shard.
    pub async fn free(&self, shard: u8) -> u64 {
        match self.call_at(shard, Op::Statfs {}).await {
            Ok(OpReply::Statfs { statfs }) => statfs.blocks_free,
            reply => panic!("{reply:?}"),
        }
    }

    /// Asks the server that has the inode.
    pub async fn call(&self, at: Ino, op: Op) -> Result<OpReply, Fault> {
        for _ in 0..self.sessions.len() + 2 {
            let shard = self.home(at);
            match self.call_at(shard, op.clone()).await {
                Err(Fault::Moved) => match self.call_at(shard, Op::Where { ino: at }).await? {
                    OpReply::Where { shard } => drop(self.homes.borrow_mut().insert(at, shard)),
                    reply => panic!("{reply:?}"),
                },
                other => return other,
            }
        }
        panic!("nobody has {at}: {:?}", self.homes.borrow());
    }

    /// The server that is asked first about an inode.
    pub fn home(&self, ino: Ino) -> u8 {
        self.homes.borrow().get(&ino).copied().unwrap_or(ino.shard().0)
    }

    /// Moves a directory to the server of a shard.
    pub async fn move_to(&self, shard: u8, dir: Ino) -> Result<(), Fault> {
        self.call(dir, Op::MoveDirectory { dir, shard }).await.map(drop)
    }

    /// Asks the server of a shard.
    pub async fn call_at(&self, shard: u8, op: Op) -> Result<OpReply, Fault> {
        let session = &self.sessions[usize::from(shard)];
        let principal = Principal { uid: 1000, gid: 1000, groups: Vec::new() };
        let call = Call { ops: vec![op], principal, sync: false, class: SlotClass::Ordinary };
        session.call(call).await?.results[0].clone()
    }

    pub async fn make(&self, dir: Ino, text: &str, kind: FileKind) -> Result<Ino, Fault> {
        let node = NewNode::plain(kind, 0o755, 0);
        let op = Op::Create { dir, name: name(text), node, want: Rights::empty() };
        match self.call(dir, op).await? {
            OpReply::Created { leased, .. } => Ok(leased.attr.ino),
            reply => panic!("{reply:?}"),
        }
    }

    pub async fn mkdir(&self, dir: Ino, text: &str) -> Result<Ino, Fault> {
        self.make(dir, text, FileKind::Directory).await
    }

    /// As [`Client::mkdir`], by this user.
    pub async fn mkdir_as(&self, uid: u32, dir: Ino, text: &str) -> Result<Ino, Fault> {
        let session = &self.sessions[usize::from(dir.shard().0)];
        let principal = Principal { uid, gid: uid, groups: Vec::new() };
        let node = NewNode::plain(FileKind::Directory, 0o755, 0);
        let ops = vec![Op::Create { dir, name: name(text), node, want: Rights::empty() }];
        let call = Call { ops, principal, sync: false, class: SlotClass::Ordinary };
        match session.call(call).await?.results[0].clone()? {
            OpReply::Created { leased, .. } => Ok(leased.attr.ino),
            reply => panic!("{reply:?}"),
        }
    }

    pub async fn file(&self, dir: Ino, text: &str) -> Result<Ino, Fault> {
        self.make(dir, text, FileKind::Regular).await
    }

    pub async fn rmdir(&self, dir: Ino, text: &str) -> Result<(), Fault> {
        self.call(dir, Op::Rmdir { dir, name: name(text) }).await.map(drop)
    }

    pub async fn unlink(&self, dir: Ino, text: &str) -> Result<Attr, Fault> {
        match self.call(dir, Op::Unlink { dir, name: name(text), unused: None }).await? {
            OpReply::Removed { attr, .. } => Ok(attr),
            reply => panic!("{reply:?}"),
        }
    }

    pub async fn link(&self, ino: Ino, dir: Ino, text: &str) -> Result<Attr, Fault> {
        match self.call(dir, Op::Link { ino, dir, name: name(text), tmpfile: false }).await? {
            OpReply::Linked { leased, .. } => Ok(leased.attr),
            reply => panic!("{reply:?}"),
        }
    }

    pub async fn rename(&self, from: (Ino, &str), to: (Ino, &str)) -> Result<OpReply, Fault> {
        self.rename_as(from, to, 0).await
    }

    pub async fn rename_as(
        &self,
        from: (Ino, &str),
        to: (Ino, &str),
        flags: u32,
    ) -> Result<OpReply, Fault> {
        let op = Op::Rename {
            from: from.0,
            name: name(from.1),
            to: to.0,
            new_name: name(to.1),
            flags,
            unused: None,
        };
        self.call(from.0, op).await
    }

    /// A new directory of `dir` on a shard, which the layout of `dir` says from now on.
    pub async fn mkdir_on(&self, shard: u8, dir: Ino, text: &str) -> Ino {
        self.set_layout(dir, &format!("mds={shard}")).await.unwrap();
        let made = self.mkdir(dir, text).await.unwrap();
        assert_eq!(made.shard(), ShardId(shard));
        made
    }

    /// Names of a directory, with the links of what they lead to.
    pub async fn list(&self, dir: Ino) -> Vec<(Ino, u32)> {
        let (want, want_dir) = (Rights::empty(), Rights::empty());
        let op = Op::ReadDir { dir, cookie: 0, max: 100, plus: true, want, want_dir };
        match self.call(dir, op).await {
            Ok(OpReply::Entries { entries, .. }) => entries
                .into_iter()
                .map(|entry| (entry.ino, entry.leased.map_or(0, |leased| leased.attr.nlink)))
                .collect(),
            reply => panic!("{reply:?}"),
        }
    }

    pub async fn links(&self, ino: Ino) -> u32 {
        self.attr(ino).await.unwrap().nlink
    }

    pub async fn lookup(&self, dir: Ino, text: &str) -> Result<Option<Ino>, Fault> {
        let (want, want_dir) = (Rights::empty(), Rights::empty());
        match self.call(dir, Op::Lookup { dir, name: name(text), want, want_dir }).await? {
            OpReply::Entry { entry, .. } => Ok(entry.map(|leased| leased.attr.ino)),
            reply => panic!("{reply:?}"),
        }
    }

    pub async fn attr(&self, ino: Ino) -> Result<Attr, Fault> {
        match self.call(ino, Op::GetAttr { ino, want: Rights::empty() }).await? {
            OpReply::Attr { leased } => Ok(leased.attr),
            reply => panic!("{reply:?}"),
        }
    }

    pub async fn layout(&self, ino: Ino) -> Result<String, Fault> {
        let name = Bytes(ATTRIBUTE.to_vec());
        match self.call(ino, Op::GetXattr { ino, name, want: Rights::empty() }).await? {
            OpReply::Bytes { bytes, .. } => Ok(String::from_utf8(bytes.0).unwrap()),
            reply => panic!("{reply:?}"),
        }
    }

    pub async fn set_layout(&self, dir: Ino, text: &str) -> Result<(), Fault> {
        let (name, value) = (Bytes(ATTRIBUTE.to_vec()), Bytes(text.as_bytes().to_vec()));
        let op = Op::SetXattr { ino: dir, name, value, flags: 0, kill_setgid: false };
        self.call(dir, op).await.map(drop)
    }
}

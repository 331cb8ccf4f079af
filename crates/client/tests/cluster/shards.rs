//! A client of two metadata servers, each with a shard, a data zone and a device of its own.
//!
//! A link between the client and the first server stands for what that server says of inodes of the
//! other one. The test chooses stand-ins on the first server, and the link puts inodes of the
//! second in their place.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use client::{ClientConfig, Place};
use env::sim::{SimDisk, SimOptions, SimWorld};
use env::{DiskOptions, Env, Stream};
use mfs::{FormatOptions, Mfs, OpenOptions, PagFormat};
use proto::frame::{self, Decoder, Received};
use proto::mds::{self as wire, Leased, Op, OpReply, ServerInfo};
use proto::message::Message;
use types::limits::{BLOCK, BLOCK_U64};
use types::{
    Attr, ClientId, Duration, Fault, FileKind, Ino, PagId, Rights, ServerId, ShardId, Timestamp,
    Uuid,
};

use crate::harness::{
    FS, LEASE, Mount, RDONLY, RDWR, ROOT, TestKernel, WRONLY, fs_uuid, log, logged, name,
};

const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 64 * MIB;
/// The root directory of the second shard, where its server makes files.
const OTHER_ROOT: Ino = Ino(1 << 56 | 1);
/// Where the link to the first server listens.
const LINK: &str = "link:7000";

/// Two servers, and the link to the first one.
#[derive(Clone)]
struct Two {
    world: SimWorld,
    env: Env,
    data: [SimDisk; 2],
    link: Rc<Link>,
}

/// What the link changes.
#[derive(Default)]
struct Link {
    /// Inodes of the first server, and those of the second that take their place.
    swaps: RefCell<Vec<(Ino, Ino)>>,
    /// The inode that the next one which the first server creates stands for.
    next_created: Cell<Option<Ino>>,
    /// The next Rename or Link fails with this fault.
    refuses: Cell<Option<Fault>>,
    /// A directory of the first server, which takes it for one of the second's, and how many
    /// removals of names there it refuses for that.
    moved: Cell<Option<(Ino, u32)>>,
    /// Requests of the client to the first server: GETATTR and LOOKUP.
    asked: Cell<[usize; 2]>,
}

fn data_uuid(shard: u8) -> Uuid {
    Uuid([20 + shard; 16])
}

fn address(shard: u8) -> String {
    format!("mds{shard}:7000")
}

fn check<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Two) -> F) {
    let options = SimOptions { shuffle_tasks: seed % 2 == 1, ..SimOptions::default() };
    let world = SimWorld::with_options(seed, options);
    let data = [0, 1].map(|shard| {
        world.disk(&format!("meta{shard}"), 128 * MIB);
        let data = world.disk(&format!("data{shard}"), DATA_BYTES);
        let kind = label::SliceKind::Data { pag: PagId(u16::from(shard)) };
        let blocks = DATA_BYTES / BLOCK_U64;
        let label = label::Label::single(fs_uuid(), FS, data_uuid(shard), blocks, kind);
        label::put(&data, &label);
        data
    });
    let inner = world.clone();
    world.run(|env| async move {
        let two = Two { world: inner, env, data, link: Rc::default() };
        two.format(0).await;
        two.format(1).await;
        test(two).await;
    });
}

impl Two {
    async fn format(&self, shard: u8) {
        let options = DiskOptions { write: true, exclusive: true };
        let disk = self.env.open_disk(&format!("meta{shard}"), options).await.unwrap();
        let pag = PagId(u16::from(shard));
        let format = FormatOptions {
            name: FS.into(),
            uuid: fs_uuid(),
            log_bytes: 16 * MIB,
            pags: vec![PagFormat::whole(pag, data_uuid(shard), DATA_BYTES / BLOCK_U64 - 1)],
            features: mfs::Features::NONE,
            force: false,
        };
        Mfs::format_shard(&self.env, &disk, ShardId(shard), &format).await.unwrap();
    }

    /// Starts the server of a shard. `through_link`: clients reach the first one over the link.
    async fn start(&self, shard: u8, through_link: bool) {
        let env = self.world.node(&format!("mds{shard}"));
        let pag = PagId(u16::from(shard));
        let path = format!("data{shard}");
        let info = |shard: u8| ServerInfo {
            server: ServerId(u16::from(shard)),
            shards: vec![shard],
            addresses: match through_link && shard == 0 {
                true => vec![LINK.into()],
                false => vec![address(shard)],
            },
        };
        let config = mds::Config {
            lease: LEASE,
            pags: vec![mds::PagPlace { id: pag, uuid: data_uuid(shard), path }],
            servers: vec![info(0), info(1)],
            log: Rc::new(move |line| log(&format!("mds{shard}: {line}"))),
            ..mds::Config::new(FS, &address(shard))
        };
        let listens = Rc::new(Cell::new(false));
        let ready = listens.clone();
        env.clone().spawn(async move {
            let options = DiskOptions { write: true, exclusive: true };
            let disk = env.open_disk(&format!("meta{shard}"), options).await.unwrap();
            let opening = OpenOptions { cache_bytes: 32 << 20, ..OpenOptions::default() };
            let mfs = Mfs::open(&env, &disk, opening).await.unwrap();
            let server = mds::Mds::start(env, mfs, config).await.unwrap();
            ready.set(true);
            if let Err(error) = server.run(std::future::pending()).await {
                log(&format!("mds{shard} ended: {error}"));
            }
        });
        while !listens.get() {
            self.env.sleep(Duration::from_millis(5)).await;
        }
    }

    async fn start_both(&self) {
        self.start(0, false).await;
        self.start(1, false).await;
    }

    /// Starts both servers, and the link to the first one.
    async fn start_linked(&self) {
        let (env, link) = (self.world.node("link"), self.link.clone());
        let listener = env.listen(LINK).await.unwrap();
        env.clone().spawn(async move {
            while let Ok(client) = listener.accept().await {
                let server = env.connect(&address(0)).await.unwrap();
                let (there, back) = (link.clone(), link.clone());
                let (to, from) = (server.clone(), client.clone());
                env.spawn(pump(from, to, move |message| there.ask(message)));
                env.spawn(pump(server, client, move |message| back.answer(message)));
            }
        });
        self.start(0, true).await;
        self.start(1, true).await;
    }

    /// Mounts on the node `node`; `addresses`: where it looks for the first server.
    async fn try_mount(
        &self,
        node: &str,
        addresses: &[&str],
        patience: Duration,
    ) -> Result<Mount, String> {
        let env = self.world.node(node);
        let kernel = Rc::new(TestKernel::new(env.clone()));
        let config = ClientConfig {
            server: addresses.iter().map(|address| (*address).into()).collect(),
            fs_name: FS.into(),
            description: node.into(),
            connect_timeout: patience,
            log: Rc::new(log),
            ..ClientConfig::default()
        };
        let client = client::Client::connect(env.clone(), config, kernel.clone()).await;
        let client = client.map_err(|error| error.to_string())?;
        Ok(Mount { client, kernel, env })
    }

    async fn mount(&self, node: &str) -> Mount {
        self.mount_at(node, &address(0)).await
    }

    async fn mount_at(&self, node: &str, address: &str) -> Mount {
        self.try_mount(node, &[address], Duration::from_secs(60)).await.unwrap()
    }

    /// Blocks of the data device of a shard that begin with this byte, as they are now.
    fn blocks_with(&self, shard: usize, byte: u8) -> usize {
        let all = self.data[shard].peek(0, DATA_BYTES as usize);
        all.chunks(BLOCK).filter(|block| block.iter().all(|found| *found == byte)).count()
    }
}

/// Passes messages on, changed.
async fn pump(from: Stream, to: Stream, change: impl Fn(&mut Message<wire::Mds>)) {
    let mut decoder = Decoder::<wire::Mds>::new();
    loop {
        while let Some(received) = decoder.next().expect("both sides speak the protocol") {
            let Received::Message(mut message) = received else { panic!("an unknown message") };
            change(&mut message);
            let mut bytes = Vec::new();
            frame::encode(&message, &mut bytes);
            if to.write_all(bytes).await.0.is_err() {
                return from.shutdown();
            }
        }
        let (read, bytes) = from.read(decoder.lend(), 64 << 10).await;
        decoder.restore(bytes);
        if !matches!(read, Ok(1..)) {
            return to.shutdown();
        }
    }
}

/// What a server says of an inode of another.
fn elsewhere(ino: Ino, kind: FileKind) -> Attr {
    let zero = Timestamp::default();
    let (atime, mtime, ctime, btime) = (zero, zero, zero, zero);
    let (mode, nlink, uid, gid, rdev, size, blocks, version) = (0, 0, 0, 0, 0, 0, 0, 0);
    Attr {
        ino,
        kind,
        mode,
        nlink,
        uid,
        gid,
        rdev,
        size,
        blocks,
        atime,
        mtime,
        ctime,
        btime,
        spread: false,
        version,
    }
}

impl Link {
    fn stands_for(&self, ino: Ino) -> Option<Ino> {
        self.swaps.borrow().iter().find(|(own, _)| *own == ino).map(|(_, other)| *other)
    }

    fn swap(&self, leased: &mut Leased) {
        if let Some(other) = self.stands_for(leased.attr.ino) {
            let attr = elsewhere(other, leased.attr.kind);
            *leased = Leased { attr, rights: Rights::empty(), seq: 0 };
        }
    }

    fn swap_attr(&self, attr: &mut Attr) {
        if let Some(other) = self.stands_for(attr.ino) {
            *attr = elsewhere(other, attr.kind);
        }
    }

    /// A message of the client.
    fn ask(&self, message: &mut Message<wire::Mds>) {
        let Message::Request { request } = message else { return };
        for op in &mut request.ops {
            let [getattrs, lookups] = self.asked.get();
            match op {
                Op::GetAttr { .. } => self.asked.set([getattrs + 1, lookups]),
                Op::Lookup { .. } => self.asked.set([getattrs, lookups + 1]),
                Op::Link { ino, .. } => {
                    let swaps = self.swaps.borrow();
                    if let Some((own, _)) = swaps.iter().find(|(_, other)| other == ino) {
                        *ino = *own;
                    }
                }
                Op::Unlink { dir, .. } => match self.moved.get() {
                    Some((moved, left @ 1..)) if moved == *dir => {
                        self.moved.set(Some((moved, left - 1)));
                        *dir = OTHER_ROOT;
                    }
                    _ => {}
                },
                Op::Where { ino } if self.moved.get().is_some_and(|(moved, _)| moved == *ino) => {
                    *ino = OTHER_ROOT;
                }
                _ => {}
            }
        }
    }

    /// A message of the first server.
    fn answer(&self, message: &mut Message<wire::Mds>) {
        let Message::Reply { reply } = message else { return };
        for result in &mut reply.results {
            let refused = matches!(result, Ok(OpReply::Renamed { .. } | OpReply::Linked { .. }));
            if refused && let Some(fault) = self.refuses.take() {
                *result = Err(fault);
            }
            match result {
                Ok(OpReply::Entry { entry: Some(entry), .. }) => self.swap(entry),
                Ok(OpReply::Created { leased, .. }) => {
                    if let Some(other) = self.next_created.take() {
                        self.swaps.borrow_mut().push((leased.attr.ino, other));
                    }
                    self.swap(leased);
                }
                Ok(OpReply::Linked { leased, .. }) => self.swap(leased),
                Ok(OpReply::Removed { attr, ino, .. }) => {
                    self.swap_attr(attr);
                    *ino = attr.ino;
                }
                Ok(OpReply::Renamed { moved, replaced, .. }) => {
                    self.swap(moved);
                    replaced.iter_mut().for_each(|attr| self.swap_attr(attr));
                }
                Ok(OpReply::Entries { entries, .. }) => {
                    for entry in entries {
                        if let Some(other) = self.stands_for(entry.ino) {
                            (entry.ino, entry.leased) = (other, None);
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

/// Makes a file with this content under a root directory.
async fn put(mount: &Mount, dir: Ino, text: &str, bytes: &[u8]) -> Ino {
    let (entry, opened) = mount.create(dir, text, WRONLY).await;
    mount.write(opened.handle, 0, bytes).await;
    mount.client.fsync(opened.handle, false).await.unwrap();
    mount.close(opened.handle).await;
    entry.attr.ino
}

#[test]
fn client_has_a_session_with_every_server_whichever_it_meets_first() {
    for first in [0, 1] {
        check(1 + u64::from(first), |two| async move {
            two.start_both().await;
            let a = two.mount_at("a", &address(first)).await;
            let number: ClientId = a.client.number();
            assert_eq!(number.shard(), ShardId(0), "home is the server of the root");
            let report = a.client.report_json();
            assert!(report.contains("\"server\":0") && report.contains("\"server\":1"), "{report}");
            for (dir, shard) in [(Ino::ROOT, 0), (OTHER_ROOT, 1)] {
                let made = a.mkdir(dir, "d").await.unwrap();
                assert_eq!(made.attr.ino.shard(), ShardId(shard));
                assert_eq!(a.find(dir, "d").await.unwrap().attr.ino, made.attr.ino);
                assert_eq!(a.list(dir, true).await, ["d"]);
            }
            assert!(a.client.unmount().await.is_none());
        });
    }
}

#[test]
fn mount_waits_for_every_server_and_names_the_one_that_is_missing() {
    check(3, |two| async move {
        two.start(0, false).await;
        let refused = two.try_mount("a", &[&address(0)], Duration::from_secs(2)).await;
        let text = refused.err().expect("a server is missing");
        assert!(text.starts_with("server 1 of the 2 metadata servers: cannot reach"), "{text}");
        let later = two.clone();
        two.env.spawn(async move {
            later.env.sleep(Duration::from_secs(2)).await;
            later.start(1, false).await;
        });
        two.mount("b").await;
    });
}

#[test]
fn client_finds_a_server_again_that_restarts_while_its_mount_names_others_first() {
    check(12, |two| async move {
        two.start_both().await;
        let (first, second) = (address(1), address(0));
        let named = [&first[..], &second[..]];
        let a = two.try_mount("a", &named, Duration::from_secs(60)).await.unwrap();
        let report = a.client.report_json();
        assert!(report.contains("\"addresses\":[\"mds1:7000\"]"), "{report}");
        two.world.kill("mds1");
        two.env.sleep(Duration::from_millis(20)).await;
        two.start(1, false).await;
        put(&a, OTHER_ROOT, "f", b"there").await;
        assert!(!logged().iter().any(|line| line.contains("wrong one")), "{:?}", logged());
    });
}

#[test]
fn blocks_of_a_file_come_from_its_own_server_and_go_back_there() {
    check(4, |two| async move {
        two.start_both().await;
        let a = two.mount("a").await;
        let before = a.client.statfs().await.unwrap();
        let each = DATA_BYTES / BLOCK_U64;
        assert!(before.blocks > each && before.blocks <= 2 * each, "the sum of both: {before:?}");
        for (dir, byte) in [(Ino::ROOT, 0x5a), (OTHER_ROOT, 0xa5)] {
            put(&a, dir, "f", &[byte; 64 << 10]).await;
        }
        assert_eq!((two.blocks_with(0, 0x5a), two.blocks_with(1, 0x5a)), (16, 0));
        assert_eq!((two.blocks_with(0, 0xa5), two.blocks_with(1, 0xa5)), (0, 16));
        let now = a.client.statfs().await.unwrap();
        assert_eq!((now.blocks, now.blocks_free), (before.blocks, before.blocks_free - 32));
        assert!(a.client.unmount().await.is_none());

        let b = two.mount("b").await;
        for (dir, byte) in [(Ino::ROOT, 0x5a), (OTHER_ROOT, 0xa5)] {
            let ino = b.find(dir, "f").await.unwrap().attr.ino;
            let handle = b.open(ino, RDONLY).await;
            assert_eq!(b.read(handle, 0, 64 << 10).await, [byte; 64 << 10]);
            b.close(handle).await;
            b.unlink(dir, "f").await.unwrap();
        }
        b.client.syncfs().await.unwrap();
        two.env.sleep(LEASE).await;
        let after = b.client.statfs().await.unwrap();
        assert_eq!(after.blocks_free, before.blocks_free);
        assert!(!logged().iter().any(|line| line.contains("cannot return")), "{:?}", logged());
    });
}

#[test]
fn full_server_uses_blocks_of_the_other_which_keeps_an_eighth() {
    check(5, |two| async move {
        two.start_both().await;
        let a = two.mount("a").await;
        let (_, opened) = a.create(OTHER_ROOT, "full", WRONLY).await;
        let mut filled = 0;
        let fault = loop {
            match a.client.fallocate(&ROOT, opened.handle, 0, filled * MIB, MIB).await {
                Ok(()) => filled += 1,
                Err(fault) => break fault,
            }
        };
        assert_eq!(fault, Fault::NoSpace);
        let most = (2 * DATA_BYTES - DATA_BYTES / 8) / MIB;
        assert!((most - 4..=most).contains(&filled), "{filled} MiB");
        put(&a, Ino::ROOT, "f", &[7; 8192]).await;
        assert_eq!(two.blocks_with(0, 7), 2);
    });
}

#[test]
fn request_that_servers_refuse_goes_on_to_the_one_that_has_the_inode_and_takes_effect_once() {
    check(13, |two| async move {
        two.start_linked().await;
        let a = two.mount_at("a", LINK).await;
        let d = a.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
        for text in ["f", "g"] {
            put(&a, d, text, b"content").await;
        }
        // Twice each of the servers says that the other one has the directory.
        two.link.moved.set(Some((d, 2)));
        let begun = two.env.now();
        a.unlink(d, "f").await.unwrap();
        assert_eq!(two.link.moved.get(), Some((d, 0)));
        let waited = two.env.now().since(begun);
        assert!(waited > Duration::from_millis(250), "it asks again without a pause: {waited:?}");
        assert_eq!(a.list(d, true).await, ["g"]);
        assert!(a.find(d, "f").await.is_none());

        // What the first server had granted was given back: it lets others change the directory.
        let b = two.mount("b").await;
        let made = two.env.timeout(LEASE / 2, b.mkdir(d, "of b")).await;
        assert!(made.expect("nobody holds anything of the directory").is_ok());
        assert_eq!(a.list(d, true).await, ["g", "of b"]);

        // If no server has it, the request ends.
        two.link.moved.set(Some((d, 9)));
        assert_eq!(a.unlink(d, "g").await, Err(Fault::Stale));
        assert_eq!(two.link.moved.get(), Some((d, 6)));
    });
}

#[test]
fn eviction_by_one_server_loses_what_concerns_its_inodes_only() {
    check(6, |two| async move {
        two.start_both().await;
        let (a, b) = (two.mount("a").await, two.mount("b").await);
        let (kept, with_kept) = a.create(Ino::ROOT, "kept", RDWR).await;
        let (lost, with_lost) = a.create(OTHER_ROOT, "lost", RDWR).await;
        // This also brings blocks of both servers.
        a.write(with_lost.handle, 0, &[9; 8192]).await;
        a.client.syncfs().await.unwrap();
        two.world.partition("a", "mds1");
        a.write(with_kept.handle, 0, &[1; 8192]).await;
        a.write(with_lost.handle, 8192, &[2; 4096]).await;
        // Another client wants both files: the first server gets an answer, the second does not.
        let mut of_b = Vec::new();
        for ino in [kept.attr.ino, lost.attr.ino] {
            let handle = b.open(ino, RDONLY).await;
            of_b.push(b.read(handle, 0, 16384).await);
        }
        assert_eq!(of_b, [vec![1; 8192], vec![9; 8192]]);
        two.env.sleep(LEASE).await;
        two.world.heal();
        two.env.sleep(LEASE).await;
        assert_eq!(a.client.status().evictions, 1);
        assert_eq!(a.client.fsync(with_lost.handle, false).await, Err(Fault::Io));
        assert_eq!(a.client.fsync(with_kept.handle, false).await, Ok(()));
        a.write(with_kept.handle, 8192, &[3; 4096]).await;
        a.client.fsync(with_kept.handle, false).await.unwrap();
        assert_eq!(two.blocks_with(0, 3), 1);
        a.write(with_lost.handle, 0, &[4; 4096]).await;
        a.client.fsync(with_lost.handle, false).await.unwrap();
        assert_eq!(two.blocks_with(1, 4), 1);
    });
}

#[test]
fn files_of_one_server_are_served_while_the_other_is_away() {
    check(7, |two| async move {
        two.start_both().await;
        let a = two.mount("a").await;
        let (_, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        let (_, away) = a.create(OTHER_ROOT, "away", RDWR).await;
        a.client.syncfs().await.unwrap();
        two.world.kill("mds1");
        two.env.sleep(LEASE * 3).await;
        let works = async {
            a.write(opened.handle, 0, &[1; 8192]).await;
            a.client.fsync(opened.handle, false).await.unwrap();
            assert_eq!(a.read(opened.handle, 0, 8192).await, [1; 8192]);
            a.mkdir(Ino::ROOT, "d").await.unwrap();
            a.client.getattr(Ino::ROOT).await.unwrap();
        };
        assert!(two.env.timeout(LEASE, works).await.is_some(), "it waits for the other server");
        let waits = a.try_write(away.handle, 0, &[1; 8192]);
        assert!(two.env.timeout(LEASE, waits).await.is_none(), "its lease has run out");
        two.start(1, false).await;
        assert_eq!(a.try_write(away.handle, 0, &[2; 8192]).await, Ok(8192));
        a.client.syncfs().await.unwrap();
    });
}

#[test]
fn name_that_leads_to_another_server_has_the_attributes_from_there() {
    check(8, |two| async move {
        two.start_linked().await;
        let a = two.mount_at("a", LINK).await;
        let other = put(&a, OTHER_ROOT, "f", b"there").await;
        let own = put(&a, Ino::ROOT, "name", b"a stand-in").await;
        two.link.swaps.borrow_mut().push((own, other));
        let b = two.mount_at("b", LINK).await;
        let found = b.find(Ino::ROOT, "name").await.unwrap();
        assert_eq!((found.attr.ino, found.attr.size, found.attr.nlink), (other, 5, 1));
        let handle = b.open(other, RDONLY).await;
        assert_eq!(b.read(handle, 0, 10).await, b"there");
        b.close(handle).await;

        // Name and attributes are cached, each under the right of its own server.
        let asked = (two.link.asked.get(), b.requests());
        let found = b.find(Ino::ROOT, "name").await.unwrap();
        assert_eq!((two.link.asked.get(), b.requests()), asked);
        assert!(found.attr_ttl > Duration::ZERO && found.entry_ttl > Duration::ZERO);
        let handle = a.open(other, WRONLY).await;
        a.write(handle, 5, b" it is").await;
        a.client.fsync(handle, false).await.unwrap();
        a.close(handle).await;
        let found = b.find(Ino::ROOT, "name").await.unwrap();
        assert_eq!(found.attr.size, 11, "the other server has recalled the attributes");
        assert_eq!(two.link.asked.get(), asked.0, "the name was still cached");
        assert_eq!(b.list(Ino::ROOT, true).await, ["name"]);
    });
}

#[test]
fn name_of_an_inode_that_is_going_is_looked_up_again() {
    check(9, |two| async move {
        two.start_linked().await;
        let a = two.mount_at("a", LINK).await;
        let other = put(&a, OTHER_ROOT, "f", b"there").await;
        let own = put(&a, Ino::ROOT, "name", b"a stand-in").await;
        two.link.swaps.borrow_mut().push((own, other));
        a.unlink(OTHER_ROOT, "f").await.unwrap();
        let b = two.mount_at("b", LINK).await;
        let before = two.link.asked.get()[1];
        let gone = b.client.lookup(&ROOT, Ino::ROOT, &name("name")).await;
        assert_eq!(gone.err(), Some(Fault::Stale));
        assert_eq!(two.link.asked.get()[1], before + 5);
        // The name goes as well while it is looked up.
        a.unlink(Ino::ROOT, "name").await.unwrap();
        assert!(b.find(Ino::ROOT, "name").await.is_none());
    });
}

#[test]
fn directory_that_another_server_has_is_made_filled_and_removed_under_its_name() {
    check(10, |two| async move {
        two.start_linked().await;
        let (a, b) = (two.mount_at("a", LINK).await, two.mount_at("b", LINK).await);
        let other = a.mkdir(OTHER_ROOT, "its place there").await.unwrap().attr.ino;
        two.link.next_created.set(Some(other));
        let made = b.mkdir(Ino::ROOT, "d").await.unwrap();
        assert_eq!((made.attr.ino, made.attr.kind), (other, FileKind::Directory));
        assert_eq!(made.attr.nlink, 2, "the attributes of its own server");
        put(&b, other, "inside", b"x").await;
        assert_eq!(a.find(Ino::ROOT, "d").await.unwrap().attr.ino, other);
        assert_eq!(a.list(other, true).await, ["inside"]);
        let parent = a.client.lookup_parent(other).await.unwrap();
        assert_eq!(parent.attr.ino, Ino::ROOT);

        b.unlink(other, "inside").await.unwrap();
        let d = name("its place there");
        let removed = a.client.rmdir(&ROOT, Place { dir: OTHER_ROOT, name: &d }).await;
        assert_eq!(removed, Ok(()));
        let d = name("d");
        assert_eq!(b.client.rmdir(&ROOT, Place { dir: Ino::ROOT, name: &d }).await, Ok(()));
        assert!(b.find(Ino::ROOT, "d").await.is_none());
        assert!(b.find(other, "inside").await.is_none(), "a removed directory is empty");
        let mut listing = b.list(Ino::ROOT, false).await;
        assert!(listing.is_empty(), "{listing:?}");
        listing = a.list(Ino::ROOT, true).await;
        assert!(listing.is_empty(), "{listing:?}");
    });
}

#[test]
fn attributes_of_another_server_are_asked_for_again_after_link_rename_and_unlink() {
    check(11, |two| async move {
        two.start_linked().await;
        let a = two.mount_at("a", LINK).await;
        let other = put(&a, OTHER_ROOT, "f", b"there").await;
        let own = put(&a, Ino::ROOT, "one", b"a stand-in").await;
        two.link.swaps.borrow_mut().push((own, other));
        let b = two.mount_at("b", LINK).await;
        let (one, two_name) = (name("one"), name("two"));
        let at = |name| Place { dir: Ino::ROOT, name };
        assert_eq!(b.find(Ino::ROOT, "one").await.unwrap().attr.ino, other);

        let linked = b.client.link(&ROOT, other, at(&two_name)).await.unwrap();
        assert_eq!((linked.attr.ino, linked.attr.size), (other, 5));
        assert_eq!(b.list(Ino::ROOT, false).await, ["one", "two"]);

        b.kernel.notices.borrow_mut().clear();
        b.unlink(Ino::ROOT, "two").await.unwrap();
        let heard = b.kernel.notices.borrow().contains(&crate::harness::Notice::Attr(other));
        assert!(heard, "the kernel asks for the link count again");
        assert_eq!(b.client.getattr(other).await.unwrap().0.nlink, 1);

        b.client.rename(&ROOT, at(&one), at(&two_name), 0).await.unwrap();
        assert!(b.find(Ino::ROOT, "one").await.is_none());
        assert_eq!(b.find(Ino::ROOT, "two").await.unwrap().attr.ino, other);

        for op in [0, 1] {
            two.link.refuses.set(Some(Fault::CrossDevice));
            let refused = match op {
                0 => b.client.link(&ROOT, other, at(&one)).await.map(drop),
                _ => b.client.rename(&ROOT, at(&two_name), at(&one), 0).await,
            };
            assert_eq!(refused, Err(Fault::CrossDevice));
        }
    });
}

#[test]
fn file_gets_blocks_of_another_server_when_its_own_has_none() {
    check(31, |two| async move {
        two.start_both().await;
        let mount = two.mount("client").await;
        let later = two.mount("later").await;
        let (entry, opened) = mount.create(OTHER_ROOT, "large", WRONLY).await;
        let parts = 3 * DATA_BYTES / 2 / MIB;
        for part in 0..parts {
            mount.write(opened.handle, part * MIB, &vec![0xa5; MIB as usize]).await;
        }
        mount.client.fsync(opened.handle, false).await.unwrap();
        mount.close(opened.handle).await;
        let blocks = [0, 1].map(|shard| two.blocks_with(shard, 0xa5) as u64);
        assert!(blocks[0] > 0 && blocks[0] + blocks[1] == parts * MIB / BLOCK_U64, "{blocks:?}");
        // Files of the server whose zone it is lie beside it.
        put(&mount, Ino::ROOT, "own", &[0x5a; 4 * BLOCK]).await;
        assert_eq!(two.blocks_with(0, 0x5a), 4);
        // A client that was there before, and one that comes now.
        for mount in [later, two.mount("new").await] {
            let handle = mount.open(entry.attr.ino, RDONLY).await;
            for part in 0..parts {
                let read = mount.read(handle, part * MIB, MIB as u32).await;
                assert!(read.len() == MIB as usize && read.iter().all(|&byte| byte == 0xa5));
            }
            mount.close(handle).await;
        }
    });
}

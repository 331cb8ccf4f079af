//! A metadata server, its disks and clients in a simulated world.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use client::{
    Caller, Client, ClientConfig, ConnectError, Entry, Handle, Kernel, LocalFuture, OpenFlags,
    Opened, Place, WriteFlags,
};
use env::sim::{SimDisk, SimOptions, SimWorld};
use env::sync::AsyncMutex;
use env::{DiskOptions, Env};
use mfs::{FormatOptions, Mfs, OpenOptions, PagFormat};
use types::limits::BLOCK_U64;
use types::{Duration, Fault, Ino, Name, PagId, Uuid};

const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 512 * MIB;
const META_BYTES: u64 = 128 * MIB;
const ADDRESS: &str = "mds:7000";
pub const FS: &str = "sim";
pub const LEASE: Duration = Duration::from_secs(5);
pub const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 1 };

thread_local! {
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

pub fn log(line: &str) {
    LOG.with(|log| log.borrow_mut().push(line.to_owned()));
}

/// Lines that clients and servers have logged in this test.
pub fn logged() -> Vec<String> {
    LOG.with(|log| log.borrow().clone())
}

/// A cluster under test.
#[derive(Clone)]
pub struct Cluster {
    pub world: SimWorld,
    pub env: Env,
    /// The metadata zone.
    pub meta: SimDisk,
    /// The data zone.
    pub data: SimDisk,
    /// Lease limit of the next server; `None`: the default.
    pub leases_max: Rc<Cell<Option<usize>>>,
}

pub fn fs_uuid() -> Uuid {
    Uuid([7; 16])
}

fn pag_uuid() -> Uuid {
    Uuid([8; 16])
}

/// Runs `test` on a newly formatted cluster with a running server.
pub fn check<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Cluster) -> F) {
    check_with(seed, mfs::Features::NONE, test);
}

/// Added to every seed, to run the tests with other orders of events: `REDBUD_COURSE` of the
/// environment, or 0. With an even number, each test still decides whether tasks are shuffled.
fn other_courses() -> u64 {
    let course = std::env::var("REDBUD_COURSE").ok();
    course.map_or(0, |text| text.parse().expect("REDBUD_COURSE is a number"))
}

/// As [`check`], on a file system with these features.
pub fn check_with<F: Future<Output = ()>>(
    seed: u64,
    features: mfs::Features,
    test: impl FnOnce(Cluster) -> F,
) {
    LOG.with(|log| log.borrow_mut().clear());
    let seed = seed + other_courses();
    let options = SimOptions { shuffle_tasks: seed % 2 == 1, ..SimOptions::default() };
    let world = SimWorld::with_options(seed, options);
    let meta = world.disk("meta", META_BYTES);
    let data = world.disk("data0", DATA_BYTES);
    let kind = label::SliceKind::Data { pag: PagId(0) };
    let label = label::Label::single(fs_uuid(), FS, pag_uuid(), DATA_BYTES / BLOCK_U64, kind);
    label::put(&data, &label);
    let inner = world.clone();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run(|env| async move {
            let cluster = Cluster { world: inner, env, meta, data, leases_max: Rc::default() };
            cluster.format(features).await;
            cluster.start_server().await;
            test(cluster).await;
        });
    }));
    if let Err(panic) = result {
        let lines = logged();
        eprintln!("seed {seed}");
        for line in &lines[lines.len().saturating_sub(40)..] {
            eprintln!("log: {line}");
        }
        std::panic::resume_unwind(panic);
    }
}

impl Cluster {
    async fn format(&self, features: mfs::Features) {
        let options = DiskOptions { write: true, exclusive: true };
        let disk = self.env.open_disk("meta", options).await.expect("the disk is there");
        let pag = PagFormat::whole(PagId(0), pag_uuid(), DATA_BYTES / BLOCK_U64 - 1);
        let format = FormatOptions {
            name: FS.into(),
            uuid: fs_uuid(),
            log_bytes: 16 * MIB,
            pags: vec![pag],
            features,
            force: false,
        };
        Mfs::format(&self.env, &disk, &format).await.expect("an empty disk can be formatted");
    }

    /// Starts the server on its node.
    pub async fn start_server(&self) {
        let env = self.world.node("mds");
        let usual = mds::Config::new(FS, ADDRESS);
        let config = mds::Config {
            lease: LEASE,
            leases_max: self.leases_max.get().unwrap_or(usual.leases_max),
            pags: vec![mds::PagPlace { id: PagId(0), uuid: pag_uuid(), path: "data0".into() }],
            log: Rc::new(|line| log(&format!("mds: {line}"))),
            ..usual
        };
        let listens = Rc::new(Cell::new(false));
        let ready = listens.clone();
        env.clone().spawn(async move {
            let options = DiskOptions { write: true, exclusive: true };
            let disk = env.open_disk("meta", options).await.expect("the metadata disk is free");
            let opening = OpenOptions { cache_bytes: 32 << 20, ..OpenOptions::default() };
            let mfs = Mfs::open(&env, &disk, opening).await.expect("the store opens");
            let server = mds::Mds::start(env, mfs, config).await.expect("the server starts");
            ready.set(true);
            if let Err(error) = server.run(std::future::pending()).await {
                log(&format!("mds ended: {error}"));
            }
        });
        while !listens.get() {
            self.env.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Kills the server and starts it again.
    pub async fn restart_server(&self) {
        self.world.kill("mds");
        self.env.sleep(Duration::from_millis(20)).await;
        self.start_server().await;
    }

    /// Mounts on the node `name`.
    pub async fn mount(&self, name: &str) -> Mount {
        let mounted = self.try_mount(name, ClientConfig::default()).await;
        mounted.unwrap_or_else(|error| panic!("{name} cannot mount: {error}"))
    }

    /// Mounts on the node `name`, which may fail.
    pub async fn try_mount(&self, name: &str, config: ClientConfig) -> Result<Mount, ConnectError> {
        let kernel = Rc::new(TestKernel::new(self.world.node(name)));
        let env = self.world.node(name);
        let config = ClientConfig {
            server: vec![ADDRESS.into()],
            fs_name: FS.into(),
            description: name.into(),
            connect_timeout: Duration::from_secs(60),
            log: Rc::new(log),
            ..config
        };
        let client = Client::connect(env.clone(), config, kernel.clone()).await?;
        Ok(Mount { client, kernel, env })
    }
}

/// A notification from the client to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    Epoch,
    Attr(Ino),
    Pages(Ino, u64, u64),
    /// Bytes stored in the page cache, up to this offset.
    Stored(Ino, u64),
}

/// A kernel that records notifications and can delay invalidations of pages.
pub struct TestKernel {
    env: Env,
    pub notices: Rc<RefCell<Vec<Notice>>>,
    /// It drops unused names on request; the test sends the FORGETs.
    pub prunes: Cell<bool>,
    /// The inodes of these requests.
    pub pruned: RefCell<Vec<Ino>>,
    /// Invalidations of pages wait while this is set.
    pub stuck: Rc<Cell<bool>>,
    /// Bytes whose folios are locked until a READ is answered: their invalidation waits.
    pub locked: Rc<RefCell<Vec<(Ino, u64, u64)>>>,
    /// Invalidations of one kind run one at a time: for recalls, not for recalls, and for pages
    /// that lack a WRITE.
    queues: Rc<[AsyncMutex; 3]>,
}

impl TestKernel {
    pub fn new(env: Env) -> TestKernel {
        let (notices, stuck, locked) = (Rc::default(), Rc::default(), Rc::default());
        let (prunes, pruned) = (Cell::default(), RefCell::default());
        TestKernel { env, notices, prunes, pruned, stuck, locked, queues: Rc::default() }
    }

    fn notify(&self, notice: Notice) -> LocalFuture<'static, ()> {
        self.notify_on(0, notice)
    }

    fn notify_on(&self, queue: usize, notice: Notice) -> LocalFuture<'static, ()> {
        self.notices.borrow_mut().push(notice);
        let queues = self.queues.clone();
        let (env, stuck, locked) = (self.env.clone(), self.stuck.clone(), self.locked.clone());
        Box::pin(async move {
            env.sleep(Duration::from_micros(30)).await;
            let Notice::Pages(ino, start, len) = notice else { return };
            let _queue = queues[queue].lock().await;
            let end = if len == 0 { u64::MAX } else { start + len };
            let hangs =
                |&(file, from, to): &(Ino, u64, u64)| file == ino && from < end && start < to;
            while stuck.get() || locked.borrow().iter().any(hangs) {
                env.sleep(Duration::from_millis(1)).await;
            }
        })
    }
}

impl Kernel for TestKernel {
    fn inc_epoch(&self) -> LocalFuture<'static, ()> {
        self.notify(Notice::Epoch)
    }
    fn inval_attr(&self, ino: Ino) -> LocalFuture<'static, ()> {
        self.notify(Notice::Attr(ino))
    }
    fn inval_pages(&self, ino: Ino, offset: u64, len: u64) -> LocalFuture<'static, ()> {
        self.notify(Notice::Pages(ino, offset, len))
    }
    fn inval_pages_outside_recall(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
    ) -> LocalFuture<'static, ()> {
        self.notify_on(1, Notice::Pages(ino, offset, len))
    }
    fn drop_stale_pages(&self, ino: Ino, offset: u64, len: u64) -> LocalFuture<'static, ()> {
        self.notify_on(2, Notice::Pages(ino, offset, len))
    }
    fn store(&self, ino: Ino, offset: u64, bytes: &[u8]) -> LocalFuture<'static, ()> {
        self.notify(Notice::Stored(ino, offset + bytes.len() as u64))
    }
    fn prunes(&self) -> bool {
        self.prunes.get()
    }
    fn prune(&self, ino: Ino) -> LocalFuture<'static, ()> {
        self.pruned.borrow_mut().push(ino);
        Box::pin(std::future::ready(()))
    }
}

/// A mounted client with conveniences for tests.
#[derive(Clone)]
pub struct Mount {
    pub client: Client,
    pub kernel: Rc<TestKernel>,
    pub env: Env,
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

pub const RDONLY: OpenFlags = OpenFlags(0);
pub const WRONLY: OpenFlags = OpenFlags(1);
pub const RDWR: OpenFlags = OpenFlags(2);

impl Mount {
    pub async fn find(&self, dir: Ino, text: &str) -> Option<Entry> {
        self.client.lookup(&ROOT, dir, &name(text)).await.expect("a lookup works").ok()
    }

    pub async fn ino(&self, text: &str) -> Ino {
        self.find(Ino::ROOT, text).await.unwrap_or_else(|| panic!("{text} is missing")).attr.ino
    }

    pub async fn mkdir(&self, dir: Ino, text: &str) -> Result<Entry, Fault> {
        let node =
            client::NodeSpec { kind: types::FileKind::Directory, mode: 0o755, umask: 0, rdev: 0 };
        self.client.mknod(&ROOT, Place { dir, name: &name(text) }, node).await
    }

    pub async fn create(&self, dir: Ino, text: &str, flags: OpenFlags) -> (Entry, Opened) {
        let name = name(text);
        let place = Place { dir, name: &name };
        self.client.create(&ROOT, place, 0o644, 0, flags).await.expect("a file can be made")
    }

    pub async fn unlink(&self, dir: Ino, text: &str) -> Result<(), Fault> {
        self.client.unlink(&ROOT, Place { dir, name: &name(text) }).await
    }

    pub async fn open(&self, ino: Ino, flags: OpenFlags) -> Handle {
        self.client.open(&ROOT, ino, flags).await.expect("the file opens").handle
    }

    pub async fn try_write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<u32, Fault> {
        self.write_as(handle, offset, bytes, WriteFlags::default()).await
    }

    /// The kernel writes back pages that a mapping has dirtied.
    pub async fn write_back(
        &self,
        handle: Handle,
        offset: u64,
        bytes: &[u8],
    ) -> Result<u32, Fault> {
        let flags = WriteFlags { write_back_cache: true, ..WriteFlags::default() };
        self.write_as(handle, offset, bytes, flags).await
    }

    async fn write_as(
        &self,
        handle: Handle,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
    ) -> Result<u32, Fault> {
        let mut data = self.env.buffer(bytes.len());
        data.copy_from_slice(bytes);
        self.client.write(&ROOT, handle, offset, data, bytes.len(), flags).await
    }

    pub async fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) {
        assert_eq!(self.try_write(handle, offset, bytes).await, Ok(bytes.len() as u32));
    }

    pub async fn read(&self, handle: Handle, offset: u64, len: u32) -> Vec<u8> {
        let read = self.client.read(handle, offset, len, false).await;
        read.expect("the file can be read").to_vec()
    }

    /// A READ that fills pages; their folios are locked until it is answered.
    pub async fn read_page(&self, ino: Ino, handle: Handle, offset: u64) -> Vec<u8> {
        let folio = (ino, offset, offset + 4096);
        self.kernel.locked.borrow_mut().push(folio);
        let read = self.client.read(handle, offset, 4096, true).await;
        let mut locked = self.kernel.locked.borrow_mut();
        let at = locked.iter().position(|other| *other == folio).expect("it was locked");
        locked.remove(at);
        read.expect("the file can be read").to_vec()
    }

    pub async fn close(&self, handle: Handle) {
        self.client.release(handle, None).await;
    }

    /// Makes a file with this content.
    pub async fn put(&self, text: &str, bytes: &[u8]) -> Ino {
        let (entry, opened) = self.create(Ino::ROOT, text, WRONLY).await;
        if !bytes.is_empty() {
            self.write(opened.handle, 0, bytes).await;
        }
        self.close(opened.handle).await;
        entry.attr.ino
    }

    /// The content of a file in the root directory.
    pub async fn get(&self, text: &str) -> Vec<u8> {
        let ino = self.ino(text).await;
        let handle = self.open(ino, RDONLY).await;
        let bytes = self.read(handle, 0, 1 << 20).await;
        self.close(handle).await;
        bytes
    }

    /// The sorted names of a directory, without the dots.
    pub async fn list(&self, dir: Ino, plus: bool) -> Vec<String> {
        let handle = self.client.opendir(dir).await.expect("the directory opens");
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let part = self.client.readdir(handle, cookie, 4096, plus).await;
            let part = part.expect("the directory can be listed");
            let Some(last) = part.last() else { break };
            cookie = last.cookie;
            for entry in part {
                names.push(String::from_utf8(entry.name).expect("the tests use text"));
            }
        }
        self.client.releasedir(handle);
        assert!(names.iter().any(|name| name == ".") && names.iter().any(|name| name == ".."));
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }

    /// Number of requests sent so far.
    pub fn requests(&self) -> u64 {
        self.client.status().requests
    }
}

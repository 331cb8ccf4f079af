//! A whole file system on virtual disks: the metadata server, its clients, and n data zones, each
//! on a disk of its own, in virtual time.
//!
//! Invariants:
//! - server and clients are those that users run; only the kernel is not there, so a request of a
//!   process reaches the client as it is, and no page is cached;
//! - every disk is the papers' (002, section 6.1), metadata included, and so is the network between
//!   clients and server (1 Gb/s); data travel between clients and disks, not through the server;
//! - each node is a host with one processor, which handles messages at the price that `repro price`
//!   measures; the rest of a client's computing takes no time;
//! - the same run gives the same figures on every machine.

use std::future::Future;
use std::rc::Rc;

use client::{Client, ClientConfig, Entry, Handle, NodeSpec, OpenFlags, Opened, Place};
use env::sim::{DiskModel, HardDisk, Price, SimDisk, SimOptions, SimWorld};
use env::sync::oneshot;
use env::{DiskOptions, Env};
use mfs::{Feature, Features, FormatOptions, Mfs, OpenOptions, PagFormat, StoreError};
use proto::placement::Layout;
use types::limits::BLOCK_U64;
use types::{Duration, Fault, FileKind, Ino, PagId, Uuid};

use crate::layouts::bed::broken;
use crate::layouts::caller::name;
use crate::pages::Pages;
use crate::switches::Switches;
use bench::{BenchError, Res, failed};

const FS: &str = "repro";
const META: &str = "metadata";
const SERVER: &str = "server";
const ADDRESS: &str = "server:7000";
const FS_UUID: Uuid = Uuid([0x4d; 16]);
/// Bytes of the metadata zone and of its log.
const META_BYTES: u64 = 32 << 30;
const LOG_BYTES: u64 = 256 << 20;
/// Bytes of the server's cache.
const CACHE_BYTES: usize = 256 << 20;
/// Bytes a second between a client and the server, in each direction: 1 Gb/s.
pub const NET_BANDWIDTH: u64 = 125_000_000;
/// From one node to another.
pub const NET_LATENCY: Duration = Duration::from_micros(50);
/// The caller of every operation.
const ROOT: client::Caller = client::Caller { uid: 0, gid: 0, pid: 1 };

/// How large a file system is, and how many use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Data zones.
    pub zones: u16,
    /// Bytes of each.
    pub zone_bytes: u64,
    /// Clients.
    pub clients: usize,
    /// Dirty bytes of a client before its writers wait.
    pub dirty_bytes: usize,
    /// What is switched.
    pub switches: Switches,
}

/// A formatted file system that nobody uses.
pub struct Cluster {
    shape: Shape,
    world: SimWorld,
    meta: SimDisk,
    data: Vec<SimDisk>,
}

/// A file system in use.
pub struct Served {
    /// The node of the one who measures.
    pub env: Env,
    /// The server's store.
    pub mfs: Mfs,
    /// The clients, in the order in which they came.
    pub mounts: Vec<Mount>,
    /// The disks of the data zones, by number.
    pub data: Vec<SimDisk>,
    world: SimWorld,
}

/// A client with what the figures do.
#[derive(Clone)]
pub struct Mount {
    /// The node that it runs on.
    pub env: Env,
    /// The client.
    pub client: Client,
    /// The kernel's pages; most figures do without them.
    pub pages: Rc<Pages>,
}

/// The error of a step that a client failed at.
pub fn refused(step: &str, fault: Fault) -> BenchError {
    BenchError(format!("{step}: {fault}"))
}

fn zone_device(zone: PagId) -> String {
    format!("data{zone}")
}

fn zone_uuid(zone: PagId) -> Uuid {
    let mut bytes = [0x50; 16];
    bytes[..2].copy_from_slice(&zone.0.to_le_bytes());
    Uuid(bytes)
}

impl Shape {
    /// The data zones.
    pub fn zones(&self) -> impl Iterator<Item = PagId> + use<> {
        (0..self.zones).map(PagId)
    }
}

impl Cluster {
    /// Formats one, as `redbud mkfs` does by default.
    ///
    /// # Errors
    /// The sizes are not possible.
    pub fn new(shape: Shape) -> Res<Cluster> {
        let options = SimOptions {
            net_latency: NET_LATENCY..=NET_LATENCY,
            net_bandwidth: Some(NET_BANDWIDTH),
            price: Some(Price::MEASURED),
            ..SimOptions::default()
        };
        let world = SimWorld::with_options(1, options);
        let meta = hard_disk(&world, META, META_BYTES);
        let blocks = shape.zone_bytes / BLOCK_U64;
        let mut data = Vec::new();
        for zone in shape.zones() {
            let disk = hard_disk(&world, &zone_device(zone), shape.zone_bytes);
            let kind = label::SliceKind::Data { pag: zone };
            let label = label::Label::single(FS_UUID, FS, zone_uuid(zone), blocks, kind);
            label::put(&disk, &label);
            data.push(disk);
        }
        // The label has a copy at the end.
        let pag = |zone| PagFormat::whole(zone, zone_uuid(zone), blocks - 1);
        let format = FormatOptions {
            name: FS.to_owned(),
            uuid: FS_UUID,
            log_bytes: LOG_BYTES,
            pags: shape.zones().map(pag).collect(),
            features: Features::NONE.with(Feature::INLINE_DATA),
            force: false,
        };
        world.run(|env| async move {
            let disk = open_meta(&env).await?;
            let formatted = Mfs::format(&env, &disk, &format).await;
            formatted.map(drop).map_err(|error| broken("formatting", &error))
        })?;
        Ok(Cluster { shape, world, meta, data })
    }

    /// Starts the server, lets every client come, works, and ends all of them.
    ///
    /// # Errors
    /// Those of the work; a server or client that cannot start or end.
    pub fn run<T, F: Future<Output = Res<T>>>(&self, work: impl FnOnce(Served) -> F) -> Res<T> {
        let (world, data, shape) = (self.world.clone(), self.data.clone(), self.shape);
        self.world.run(|env| async move {
            world.set_host(SERVER, SERVER);
            let server = world.node(SERVER);
            let mfs = open_store(&server).await?;
            let stopped = |error| BenchError(format!("the metadata server: {error}"));
            let serving = mds::Mds::start(server.clone(), mfs.clone(), config(shape)).await;
            let serving = serving.map_err(stopped)?;
            let (stop, stop_requested) = oneshot();
            let ended = server.spawn_join(serving.run(async move {
                let _: Option<()> = stop_requested.await;
            }));
            let mut mounts = Vec::new();
            for number in 0..shape.clients {
                mounts.push(Mount::new(&world, number, shape).await?);
            }
            let clients: Vec<Mount> = mounts.clone();
            let found = work(Served { env, mfs, mounts, data, world }).await?;
            for mount in clients {
                if let Some(lost) = mount.client.unmount().await {
                    return failed("unmounting", lost);
                }
            }
            stop.send(());
            ended.await.map_err(stopped)?;
            Ok(found)
        })
    }

    /// Requests that the metadata disk has dispatched so far.
    pub fn metadata_requests(&self) -> u64 {
        self.meta.report().map_or(0, |report| report.dispatched())
    }
}

/// A disk of the papers' kind.
pub fn hard_disk(world: &SimWorld, name: &str, bytes: u64) -> SimDisk {
    let disk = world.disk(name, bytes);
    disk.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
    disk
}

async fn open_meta(env: &Env) -> Res<env::Disk> {
    let options = DiskOptions { write: true, exclusive: true };
    let opened = env.open_disk(META, options).await;
    opened.map_err(|error| BenchError(format!("opening the metadata zone: {error}")))
}

async fn open_store(env: &Env) -> Res<Mfs> {
    let disk = open_meta(env).await?;
    let options = OpenOptions { cache_bytes: CACHE_BYTES, ..OpenOptions::default() };
    let wrong = |error: StoreError| broken("opening the store", &error);
    Mfs::open(env, &disk, options).await.map_err(wrong)
}

fn config(shape: Shape) -> mds::Config {
    let place = |id| mds::PagPlace { id, uuid: zone_uuid(id), path: zone_device(id) };
    let pags = shape.zones().map(place).collect();
    // The simulator checks the server's invariants; here that would take half of a figure's time.
    let config = mds::Config { pags, validate: false, ..mds::Config::new(FS, ADDRESS) };
    shape.switches.of_server(config)
}

impl Served {
    /// How long the server's processor was busy with messages since the world began.
    pub fn server_busy(&self) -> Duration {
        self.world.busy(SERVER)
    }

    /// Requests that all clients have sent.
    pub fn requests(&self) -> u64 {
        self.mounts.iter().map(|mount| mount.client.status().requests).sum()
    }

    /// Lets every client work at once, each with its number; what they found, in their order, and
    /// the time until the last had ended.
    ///
    /// # Errors
    /// The first client's that failed.
    pub async fn each<T, F>(&self, work: impl Fn(usize, Mount) -> F) -> Res<(Vec<T>, Duration)>
    where
        T: 'static,
        F: Future<Output = Res<T>> + 'static,
    {
        let begin = self.env.now();
        let started = self.mounts.iter().enumerate();
        let tasks: Vec<_> =
            started.map(|(n, mount)| mount.env.spawn_join(work(n, mount.clone()))).collect();
        let mut found = Vec::new();
        for task in tasks {
            found.push(task.await?);
        }
        Ok((found, self.env.now() - begin))
    }
}

impl Mount {
    async fn new(world: &SimWorld, number: usize, shape: Shape) -> Res<Mount> {
        let node = format!("client{number}");
        world.set_host(&node, &node);
        let env = world.node(&node);
        let config = ClientConfig {
            server: vec![ADDRESS.to_owned()],
            fs_name: FS.to_owned(),
            description: node,
            dirty_max: shape.dirty_bytes,
            inodes_max: INODES_MAX,
            ..ClientConfig::default()
        };
        let (config, pages) = (shape.switches.of_client(config), Rc::new(Pages::default()));
        match Client::connect(env.clone(), config, pages.clone()).await {
            Ok(client) => Ok(Mount { env, client, pages }),
            Err(error) => failed("mounting", error.text),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// The client's.
    pub async fn mkdir(&self, dir: Ino, text: &str) -> Res<Ino> {
        let node = NodeSpec { kind: FileKind::Directory, mode: 0o755, umask: 0o022, rdev: 0 };
        let name = name_of(text)?;
        let made = self.client.mknod(&ROOT, Place { dir, name: &name }, node).await;
        made.map(|entry| entry.attr.ino).map_err(|fault| refused("making a directory", fault))
    }

    /// Sets the layout of a directory.
    ///
    /// # Errors
    /// The client's.
    pub async fn set_layout(&self, dir: Ino, layout: &Layout) -> Res<()> {
        let value = layout.to_string();
        let name = proto::placement::ATTRIBUTE;
        let set = self.client.setxattr(&ROOT, dir, name, value.as_bytes(), 0, false).await;
        set.map_err(|fault| refused("setting a layout", fault))
    }

    /// Makes a file and opens it for writing.
    ///
    /// # Errors
    /// The client's.
    pub async fn create(&self, dir: Ino, text: &str) -> Res<(Entry, Handle)> {
        self.create_with(dir, text, OpenFlags::WRITE_ONLY).await
    }

    /// The same, opened with these flags.
    ///
    /// # Errors
    /// The client's.
    pub async fn create_with(&self, dir: Ino, text: &str, flags: u32) -> Res<(Entry, Handle)> {
        let name = name_of(text)?;
        let flags = OpenFlags(flags | OpenFlags::EXCLUSIVE);
        let made = self.client.create(&ROOT, Place { dir, name: &name }, 0o644, 0o022, flags).await;
        made.map(|(entry, opened)| (entry, opened.handle))
            .map_err(|fault| refused("making a file", fault))
    }

    /// Finds a name.
    ///
    /// # Errors
    /// The client's; there is no such name.
    pub async fn lookup(&self, dir: Ino, text: &str) -> Res<Ino> {
        let found = self.client.lookup(&ROOT, dir, &name_of(text)?).await;
        match found.map_err(|fault| refused("looking up a name", fault))? {
            Ok(entry) => Ok(entry.attr.ino),
            Err(_) => failed("looking up a name", format!("there is no {text}")),
        }
    }

    /// Removes a file, which the kernel then forgets: it had looked it up so often.
    ///
    /// # Errors
    /// The client's.
    pub async fn unlink(&self, dir: Ino, text: &str, (ino, looked): (Ino, u64)) -> Res<()> {
        let name = name_of(text)?;
        let removed = self.client.unlink(&ROOT, Place { dir, name: &name }).await;
        self.client.forget(ino, looked);
        removed.map_err(|fault| refused("removing a file", fault))
    }

    /// Opens a file.
    ///
    /// # Errors
    /// The client's.
    pub async fn open(&self, ino: Ino, flags: u32) -> Res<Handle> {
        Ok(self.open_file(ino, flags).await?.handle)
    }

    /// The same, with what the kernel learns of it.
    ///
    /// # Errors
    /// The client's.
    pub async fn open_file(&self, ino: Ino, flags: u32) -> Res<Opened> {
        let opened = self.client.open(&ROOT, ino, OpenFlags(flags)).await;
        opened.map_err(|fault| refused("opening a file", fault))
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// The client's.
    pub async fn write(&self, handle: Handle, offset: u64, data: env::IoBuf) -> Res<()> {
        let (len, flags) = (data.len(), client::WriteFlags::default());
        let done = self.client.write(&ROOT, handle, offset, data, len, flags).await;
        match done.map_err(|fault| refused("writing", fault))? as usize {
            whole if whole == len => Ok(()),
            part => failed("writing", format!("{part} of {len} bytes were taken")),
        }
    }

    /// Gives a file its size, and blocks for all of it, which hold nothing yet.
    ///
    /// # Errors
    /// The client's.
    pub async fn allocate(&self, ino: Ino, handle: Handle, size: u64) -> Res<()> {
        let attributes = client::SetAttrRequest {
            size: Some(size),
            handle: Some(handle),
            ..client::SetAttrRequest::default()
        };
        let sized = self.client.setattr(&ROOT, ino, attributes).await;
        sized.map_err(|fault| refused("setting a size", fault))?;
        let allocated = self.client.fallocate(&ROOT, handle, 0, 0, size).await;
        allocated.map_err(|fault| refused("allocating", fault))
    }

    /// Closes a file.
    ///
    /// # Errors
    /// A write of it failed.
    pub async fn close(&self, handle: Handle) -> Res<()> {
        let flushed = self.client.flush(handle, client::LockOwner(0)).await;
        self.client.release(handle, None).await;
        flushed.map_err(|fault| refused("closing a file", fault))
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// The client's.
    pub async fn sync(&self) -> Res<()> {
        self.client.syncfs().await.map_err(|fault| refused("making writes durable", fault))
    }
}

fn name_of(text: &str) -> Res<types::Name> {
    name(text).map_err(|error| BenchError(format!("the name {text}: {error:?}")))
}

/// Cached inodes of a client: its memory stays small however many files there are.
const INODES_MAX: usize = 20_000;

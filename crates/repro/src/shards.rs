//! Several metadata servers, as users run them, with clients in virtual time (003, F17).
//!
//! Invariants:
//! - each server has its metadata zone on a disk of the papers (002 §6.1), and its log on another
//!   one, or all servers have their logs on one such disk;
//! - each node is a host with one processor, which handles messages at the price that `repro price`
//!   measures, and works on nothing else; the network is that of [`cluster`](crate::cluster);
//! - the same run gives the same figures on every machine.

use std::future::Future;
use std::rc::Rc;

use client::{Client, ClientConfig};
use commitment::Protocol;
use env::sim::{DiskModel, Flash, HardDisk, Price, SimDisk, SimOptions, SimWorld};
use env::sync::oneshot;
use env::{DiskOptions, Env};
use mfs::journal::Disks;
use mfs::{Features, FormatOptions, Mfs, OpenOptions, PagFormat, StoreError};
use proto::mds::ServerInfo;
use proto::placement::{Home, Layout, Spread};
use serde::Serialize;
use types::limits::BLOCK_U64;
use types::{Duration, Ino, PagId, ServerId, ShardId, Uuid};

use crate::cluster::{Mount, NET_BANDWIDTH, NET_LATENCY, hard_disk};
use crate::layouts::bed::broken;
use crate::pages::Pages;
use bench::{BenchError, Res, failed};

/// Name of the file system.
pub const FS: &str = "repro";
const FS_UUID: Uuid = Uuid([0x53; 16]);
const META_BYTES: u64 = 4 << 30;
const LOG_BYTES: u64 = 64 << 20;
const ZONE_BLOCKS: u64 = 16 << 10;
const CACHE_BYTES: usize = 512 << 20;
/// Where the second log on a shared disk begins, and each further one.
const LOG_DISTANCE: u64 = 1 << 30;

/// Whose the disks of the logs are.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub enum Logs {
    /// Each server's own.
    Own,
    /// One disk has all logs.
    Shared,
}

/// What the metadata and the logs lie on.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub enum Kind {
    /// Disks of the papers.
    Hard,
    /// Ordinary flash.
    Flash,
}

/// How many servers and clients there are, and how servers agree.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Metadata servers, each with a shard.
    pub servers: u8,
    /// Clients, each on a node of its own.
    pub clients: usize,
    /// How servers agree.
    pub protocol: Protocol,
    /// Most operations of a directory that they agree on together.
    pub batch: usize,
    /// The disks of the logs.
    pub logs: Logs,
    /// What they are.
    pub disks: Kind,
}

/// A namespace in use.
pub struct Served {
    /// The node of the one who measures.
    pub env: Env,
    /// The clients.
    pub mounts: Vec<Mount>,
    world: SimWorld,
    inside: Vec<mds::Introspection>,
}

fn shard_name(what: &str, shard: u8) -> String {
    format!("{what}{shard}")
}

/// Where the server of a shard is found.
pub fn address(shard: u8) -> String {
    format!("mds{shard}:7000")
}

fn zone_uuid(shard: u8) -> Uuid {
    Uuid([0x60 + shard; 16])
}

fn zone_of(shard: u8) -> PagId {
    PagId(u16::from(shard))
}

/// Starts servers and clients, and lets `work` use them.
///
/// # Errors
/// Those of the work; a server or a client that cannot start.
pub fn run<T, F: Future<Output = Res<T>>>(shape: Shape, work: impl FnOnce(Served) -> F) -> Res<T> {
    let options = SimOptions {
        net_latency: NET_LATENCY..=NET_LATENCY,
        net_bandwidth: Some(NET_BANDWIDTH),
        price: Some(Price::MEASURED),
        ..SimOptions::default()
    };
    let world = SimWorld::with_options(1, options);
    let shared = SimDisk::new(BLOCK_U64);
    shared.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
    for shard in 0..shape.servers {
        let metadata = hard_disk(&world, &shard_name("metadata", shard), META_BYTES);
        let log = hard_disk(&world, &shard_name("log", shard), LOG_BYTES + (1 << 20));
        if shape.disks == Kind::Flash {
            metadata.set_model(DiskModel::Flash(Flash::nvme()));
            log.set_model(DiskModel::Flash(Flash::nvme()));
        }
        if shape.logs == Logs::Shared {
            log.share_model(&shared, LOG_DISTANCE * u64::from(shard));
        }
        let zone = hard_disk(&world, &shard_name("data", shard), ZONE_BLOCKS * BLOCK_U64);
        let kind = label::SliceKind::Data { pag: zone_of(shard) };
        label::put(&zone, &label::Label::single(FS_UUID, FS, zone_uuid(shard), ZONE_BLOCKS, kind));
    }
    let inside = world.clone();
    world.run(|env| async move {
        for shard in 0..shape.servers {
            format(&env, shard).await?;
        }
        let mut servers = Vec::new();
        for shard in 0..shape.servers {
            servers.push(start(&inside, shape, shard).await?);
        }
        let mut mounts = Vec::new();
        for number in 0..shape.clients {
            mounts.push(mount(&inside, number).await?);
        }
        work(Served { env, mounts, world: inside, inside: servers }).await
    })
}

async fn disks(env: &Env, shard: u8) -> Res<Disks> {
    let options = DiskOptions { write: true, exclusive: true };
    let mut opened = Vec::new();
    for what in ["metadata", "log"] {
        let disk = env.open_disk(&shard_name(what, shard), options).await;
        opened.push(disk.map_err(|error| BenchError(format!("opening {what} {shard}: {error}")))?);
    }
    let log = opened.pop();
    let Some(home) = opened.pop() else { return failed("opening disks", "there are none") };
    Ok(Disks { home, log })
}

/// As `redbud mkfs` formats the shards of several servers.
async fn format(env: &Env, shard: u8) -> Res<()> {
    let wrong = |error: StoreError| broken("formatting", &error);
    let format = FormatOptions {
        name: FS.to_owned(),
        uuid: FS_UUID,
        log_bytes: LOG_BYTES,
        // The label has a copy at the end.
        pags: vec![PagFormat::whole(zone_of(shard), zone_uuid(shard), ZONE_BLOCKS - 1)],
        features: Features::NONE,
        force: false,
    };
    let disks = disks(env, shard).await?;
    Mfs::format_shard(env, disks.clone(), ShardId(shard), &format).await.map_err(wrong)?;
    let mfs = Mfs::open(env, disks, OpenOptions::default()).await.map_err(wrong)?;
    mfs.add_shards().await.map_err(wrong)?;
    mfs.close().await.map_err(wrong)
}

/// Starts the server of a shard, which runs until the world ends or somebody kills its node.
async fn start(world: &SimWorld, shape: Shape, shard: u8) -> Res<mds::Introspection> {
    let node = shard_name("mds", shard);
    world.set_host(&node, &node);
    let env = world.node(&node);
    let (send, started) = oneshot();
    env.clone().spawn(async move {
        let server = serve(&env, shape, shard).await;
        let (server, said) = match server {
            Ok(server) => {
                let inside = server.introspection();
                (Some(server), Ok(inside))
            }
            Err(error) => (None, Err(error)),
        };
        send.send(said);
        if let Some(server) = server {
            drop(server.run(std::future::pending()).await);
        }
    });
    let said: Option<Res<mds::Introspection>> = started.await;
    said.unwrap_or_else(|| failed("starting a server", "it ended"))
}

async fn serve(env: &Env, shape: Shape, shard: u8) -> Res<mds::Mds> {
    let options = OpenOptions { cache_bytes: CACHE_BYTES, ..OpenOptions::default() };
    let opened = Mfs::open(env, disks(env, shard).await?, options).await;
    let mfs = opened.map_err(|error| broken("opening a shard", &error))?;
    let place = mds::PagPlace {
        id: zone_of(shard),
        uuid: zone_uuid(shard),
        path: shard_name("data", shard),
    };
    let server = |shard: u8| ServerInfo {
        server: ServerId(u16::from(shard)),
        shards: vec![shard],
        addresses: vec![address(shard)],
    };
    let several = shape.servers > 1;
    let servers = if several { (0..shape.servers).map(server).collect() } else { Vec::new() };
    let config = mds::Config {
        pags: vec![place],
        validate: false,
        protocol: shape.protocol,
        batch: shape.batch,
        servers,
        ..mds::Config::new(FS, &address(shard))
    };
    let started = mds::Mds::start(env.clone(), mfs, config).await;
    started.map_err(|error| BenchError(format!("metadata server {shard}: {error}")))
}

async fn mount(world: &SimWorld, number: usize) -> Res<Mount> {
    let node = format!("client{number}");
    world.set_host(&node, &node);
    let env = world.node(&node);
    let config = ClientConfig {
        server: vec![address(0)],
        fs_name: FS.to_owned(),
        description: node,
        ..ClientConfig::default()
    };
    let pages = Rc::new(Pages::default());
    match Client::connect(env.clone(), config, pages.clone()).await {
        Ok(client) => Ok(Mount { env, client, pages }),
        Err(error) => failed("mounting", error.text),
    }
}

impl Served {
    /// A node of this name, a host by itself.
    pub fn node(&self, name: &str) -> Env {
        self.world.set_host(name, name);
        self.world.node(name)
    }

    /// Operations in a batch of all servers, on the average; 0 without any.
    pub fn operations_in_a_batch(&self) -> f64 {
        let (mut operations, mut batches) = (0, 0);
        for joint in self.inside.iter().map(mds::Introspection::joint) {
            operations += joint.operations;
            batches += joint.counts.iter().map(|(_, counts)| counts.committed).sum::<u64>();
        }
        operations as f64 / batches.max(1) as f64
    }

    /// Files of the directory are shared out to all servers from now on.
    ///
    /// # Errors
    /// The client's.
    pub async fn spread(&self, dir: Ino) -> Res<()> {
        let layout = Layout { spread: Spread::On, ..Layout::default() };
        self.mounts[0].set_layout(dir, &layout).await
    }

    /// Measures from now on what the servers' code takes, by a clock in nanoseconds.
    pub fn meter(&self, clock: fn() -> u64) {
        self.world.meter(clock);
    }

    /// How much real time the code of the server of a shard has taken since.
    pub fn metered(&self, shard: u8) -> Duration {
        self.world.metered(&shard_name("mds", shard))
    }

    /// How long the processor of this server was busy.
    pub fn busy(&self, shard: u8) -> Duration {
        self.world.busy(&shard_name("mds", shard))
    }

    /// Kills the server of this shard after a while.
    pub fn kill_after(&self, shard: u8, pause: Duration) {
        let (env, world) = (self.env.clone(), self.world.clone());
        self.env.spawn(async move {
            env.sleep(pause).await;
            world.kill(&shard_name("mds", shard));
        });
    }

    /// Makes a directory below the root whose directories lie on `shard`.
    ///
    /// # Errors
    /// The client's.
    pub async fn pinned(&self, text: &str, shard: u8) -> Res<Ino> {
        let mount = &self.mounts[0];
        let dir = mount.mkdir(Ino::ROOT, text).await?;
        let layout = Layout { home: Home::Shard(ShardId(shard)), ..Layout::default() };
        mount.set_layout(dir, &layout).await?;
        Ok(dir)
    }

    /// Lets so many processes of every client work at once, each with its number among all; what
    /// they found, and the time until the last had ended.
    ///
    /// # Errors
    /// The first that failed.
    pub async fn each<T, F>(
        &self,
        processes: usize,
        work: impl Fn(usize, Mount) -> F,
    ) -> Res<(Vec<T>, Duration)>
    where
        T: 'static,
        F: Future<Output = Res<T>> + 'static,
    {
        let begin = self.env.now();
        let all = self.mounts.iter().flat_map(|mount| std::iter::repeat_n(mount, processes));
        let tasks: Vec<_> = all
            .enumerate()
            .map(|(n, mount)| mount.env.spawn_join(work(n, mount.clone())))
            .collect();
        let mut found = Vec::new();
        for task in tasks {
            found.push(task.await?);
        }
        Ok((found, self.env.now() - begin))
    }
}

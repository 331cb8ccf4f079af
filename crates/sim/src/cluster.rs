//! Metadata servers, their disks and the nodes of clients in a simulated world. What each server
//! has of its own is in `shards.rs`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use client::{Caller, Client, ClientConfig, Kernel, NoKernel};
use commitment::{Guards, Protocol};
use env::sim::{DiskAction, SimDisk, SimOptions, SimRng, SimWorld};
use env::{Disk, DiskOptions, Env};
use mds::fence::Fence;
use mfs::SlotFeatures;
use mfs::fsck::FsckOptions;
use mfs::{
    Cost, Feature, Features, FormatOptions, Mfs, OpenOptions, PagFormat, SlotSize, StoreError,
};
use proto::commit::CommitPolicy;
use proto::prealloc::Allocation;
use types::limits::BLOCK_U64;
use types::{Duration, Ino, Instant, PagId, ShardId, Uuid};

use crate::drain_state::Drains;
use crate::events::{Event, Events};
use crate::fences::{self, SimFence, SwitchOff};
use crate::keys::Keys;
pub use crate::servers::SERVER;
use crate::servers::Standing;
use crate::shard_state::Shard;
use crate::target_state::Targets;
use crate::zones::{self, Disks, Drawn, Sizes};

/// Bytes of the metadata log.
pub(crate) const LOG_BYTES: u64 = 4 << 20;
/// Bytes left of the log's first lap when a run begins.
const LOG_LEFT: u64 = 256 << 10;
/// A setting without a meaning.
const UNUSED_SETTING: u32 = u32::MAX;
pub(crate) const CACHE_BYTES: usize = 8 << 20;
pub(crate) const FS: &str = "sim";
/// Most extra latency of a connection and its bytes a second, if connections are uneven.
const DETOUR: Duration = Duration::from_millis(20);
const BANDWIDTH: u64 = 4 << 20;
/// Most drift of a clock in millionths: two clocks drift apart by up to a tenth.
const DRIFT: u64 = 50_000;
/// The usual lease.
pub const LEASE: Duration = Duration::from_secs(5);

/// The name of the metadata device of the first shard.
pub(crate) const META: &str = "meta";

/// The name of a shard's metadata device.
pub(crate) fn meta_name(shard: ShardId) -> String {
    if shard.0 == 0 { META.to_owned() } else { format!("{META}{shard}") }
}

/// Is it the node of a server?
pub(crate) fn is_server(node: &str) -> bool {
    node.starts_with(SERVER)
}

/// Where the server on a node listens.
pub(crate) fn address(node: &str) -> String {
    format!("{node}:7000")
}

pub(crate) fn fs_uuid() -> Uuid {
    Uuid([7; 16])
}

/// Free blocks that the server could grant.
#[derive(Clone, Debug)]
pub struct Free {
    /// Of each data zone, at once or once the log is durable; client pools are not counted.
    pub data: Vec<(PagId, u64)>,
    /// Of the metadata zone.
    pub meta: u64,
    /// The part of `meta` that is kept for removals and for reservations of clients.
    pub meta_kept: u64,
}

/// Requests that the data devices failed, by node.
type FailedRequests = BTreeMap<String, BTreeSet<(PagId, DiskAction)>>;

/// A running cluster.
#[derive(Clone)]
pub struct Cluster {
    /// The world.
    pub world: SimWorld,
    /// The node of the test.
    pub env: Env,
    /// The server's lease.
    pub lease: Duration,
    /// The keys that sessions prove; `None`: they prove none.
    pub keys: Option<Keys>,
    /// How clients come by blocks.
    pub allocation: Allocation,
    /// How clients commit.
    pub commit: CommitPolicy,
    /// Requests that the server works on at once; `None`: all.
    pub workers: Option<usize>,
    pub(crate) disks: Rc<RefCell<Disks>>,
    /// Starts of all servers so far.
    pub starts: Rc<Cell<u64>>,
    /// What each shard's server has.
    pub(crate) shards: Rc<Vec<Shard>>,
    /// How the servers of several shards agree.
    pub protocol: Protocol,
    /// What protects what they agree on.
    pub guards: Guards,
    /// How many devices fail now: the server may end by itself, and is restarted. `failed`: when
    /// one last did.
    failing: Rc<Cell<usize>>,
    /// Since when no faults are injected; `None` while they are.
    calm: Rc<Cell<Option<Instant>>>,
    /// When a sample last showed no room for another client.
    pub out_of_room_at: Rc<Cell<Option<Instant>>>,
    failed: Rc<Cell<Option<Instant>>>,
    /// Requests that the data devices failed, by node, since its present run began.
    pub(crate) failed_requests: Rc<RefCell<FailedRequests>>,
    /// A fence may switch clients' hosts off, by this.
    pub(crate) switch_off: Rc<RefCell<Option<SwitchOff>>>,
    /// Servers that stand by for each other; `None`: there are none.
    pub(crate) standing: Option<Rc<Standing>>,
    /// Drains of data zones.
    pub(crate) drains: Drains,
    /// Object storage targets.
    pub(crate) targets: Rc<Targets>,
    /// The stream of the run, which gets what happens here.
    pub events: Events,
}

/// Format options of the file system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Format {
    /// Slot size.
    pub slots: SlotSize,
    /// Small files are inline.
    pub inline_data: bool,
    /// Segments that outgrow a slot go to layout blocks.
    pub layout_blocks: bool,
}

impl Format {
    /// The format of a seed: inline data, layout blocks and the default slot size, each for half.
    pub fn of(seed: u64) -> Format {
        let mut rng = SimRng::new(seed ^ 0x0f0a_4a75);
        let inline_data = rng.one_in(2);
        let slots =
            if rng.one_in(2) { SlotSize::default() } else { SlotSize::ALL[rng.below(4) as usize] };
        Format { slots, inline_data, layout_blocks: rng.one_in(2) }
    }

    fn features(self) -> Features {
        let switches = [
            (Feature::INLINE_DATA, self.inline_data),
            (Feature::LAYOUT_BLOCKS, self.layout_blocks),
        ];
        let chosen = switches.into_iter().filter(|(_, on)| *on);
        chosen.fold(Features::NONE.with_slots(self.slots), |all, (feature, _)| all.with(feature))
    }
}

/// A freshly formatted metadata zone, of a shard if there are several.
fn formatted(sizes: &Sizes, made: Format, of: Option<ShardId>) -> SimDisk {
    let world = SimWorld::new(1);
    let disk = world.disk(META, sizes.meta * BLOCK_U64);
    let shard = of.unwrap_or_default();
    let pags = zones::of_shard(shard, sizes.data.len()).zip(&sizes.data);
    let pags = pags.map(|(id, &blocks)| PagFormat::whole(id, zones::uuid(id), blocks)).collect();
    let format = FormatOptions {
        name: FS.into(),
        uuid: fs_uuid(),
        log_bytes: LOG_BYTES,
        pags,
        features: made.features(),
        force: false,
    };
    world.run(|env| async move {
        let options = DiskOptions { write: true, exclusive: true };
        let disk = env.open_disk(META, options).await.expect("the disk is there");
        let formatted = Mfs::format_shard(&env, &disk, shard, &format).await;
        formatted.expect("an empty disk can be formatted");
        use_the_log(&env, &disk, of.is_some()).await.expect("a formatted disk can be used");
    });
    disk
}

/// Writes the log nearly to its end, so that its next lap begins within a run. `several`: the file
/// system has other shards.
async fn use_the_log(env: &Env, disk: &Disk, several: bool) -> Result<(), StoreError> {
    let opening = OpenOptions { cache_bytes: CACHE_BYTES, ..OpenOptions::default() };
    let mfs = Mfs::open(env, disk, opening).await?;
    if several {
        mfs.add_shards().await?;
    }
    while mfs.last_committed().lsn.0 < LOG_BYTES - LOG_LEFT {
        let written = mfs.last_committed().lsn.0.to_le_bytes();
        mfs.run(Cost::SMALL, |txn| txn.set_setting(UNUSED_SETTING, &written)).await?;
        mfs.sync().await?;
    }
    mfs.close().await
}

/// Most virtual time of a run beyond the time of its plan: more is a hang.
const RUN_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// What a world is made of.
#[derive(Clone, Debug, Default)]
pub struct Making {
    /// Connections differ in length, and are slow.
    pub uneven: bool,
    /// The operations are spread over this time.
    pub time: Duration,
    /// Sizes of the devices of each shard.
    pub sizes: Sizes,
    /// Shards, each with a server; 0 and 1: there is one server.
    pub shards: usize,
    /// Format of the file system.
    pub format: Format,
    /// Devices take the time that their models say.
    pub timed: Option<Drawn>,
}

/// A world with fresh disks.
pub fn world(seed: u64) -> (SimWorld, Disks) {
    world_of(seed, &Making::default())
}

/// A world with fresh disks, made so.
pub fn world_of(seed: u64, making: &Making) -> (SimWorld, Disks) {
    let options = SimOptions {
        net_detour: if making.uneven { DETOUR } else { Duration::ZERO },
        net_bandwidth: making.uneven.then_some(BANDWIDTH),
        shuffle_tasks: seed % 2 == 1,
        // A process takes up to twice its share of the time for each operation, and faults delay
        // it.
        time_limit: RUN_LIMIT + 3 * making.time,
        ..SimOptions::default()
    };
    let world = SimWorld::with_options(seed, options);
    let (sizes, format) = (&making.sizes, making.format);
    let disks = Disks::new(sizes, format, making.shards, |shard| formatted(sizes, format, shard));
    if let Some(drawn) = making.timed {
        disks.take_time(drawn);
    }
    for (shard, meta) in zones::shards(disks.metas.len()).zip(&disks.metas) {
        world.attach(&meta_name(shard), meta);
    }
    attach_data(&world, &disks.data);
    (world, disks)
}

/// Attaches data zones by the names that the cluster knows them by.
fn attach_data(world: &SimWorld, data: &[SimDisk]) {
    for (zone, disk) in zones::zones(data.len()).zip(data) {
        world.attach(&zones::name(zone), disk);
    }
}

impl Cluster {
    /// The cluster of a world whose run has begun; `starts` counts the starts of its server, and
    /// `events` gets what happens.
    pub fn new(
        world: SimWorld,
        env: Env,
        disks: Disks,
        starts: Rc<Cell<u64>>,
        events: Events,
    ) -> Cluster {
        let shards = Rc::new(disks.metas.iter().map(|_| Shard::default()).collect());
        let disks = Rc::new(RefCell::new(disks));
        let (failing, failed, failed_requests, switch_off) = Default::default();
        let calm = Rc::new(Cell::new(Some(env.now())));
        Cluster {
            world,
            env,
            lease: LEASE,
            keys: None,
            allocation: Allocation::default(),
            commit: CommitPolicy::default(),
            workers: None,
            disks,
            starts,
            shards,
            protocol: Protocol::OnePhase,
            guards: Guards::ALL,
            failing,
            calm,
            out_of_room_at: Rc::default(),
            failed,
            failed_requests,
            switch_off,
            standing: None,
            drains: Drains::default(),
            targets: Rc::default(),
            events,
        }
    }

    /// The attached metadata zone of the first shard.
    pub fn meta(&self) -> SimDisk {
        self.meta_of(ShardId(0))
    }

    /// The attached metadata zone of a shard.
    pub(crate) fn meta_of(&self, shard: ShardId) -> SimDisk {
        self.disks.borrow().metas[usize::from(shard.0)].clone()
    }

    /// The attached data zones.
    pub fn data(&self) -> Vec<SimDisk> {
        self.disks.borrow().data.clone()
    }

    /// The data zones.
    pub fn zones(&self) -> impl Iterator<Item = PagId> + use<> {
        zones::zones(self.disks.borrow().data.len())
    }

    /// The device of a zone.
    pub fn device(&self, zone: PagId) -> SimDisk {
        self.disks.borrow().data[usize::from(zone.0)].clone()
    }

    /// How many of the attached data zones anybody wrote.
    pub(crate) fn zones_written(&self) -> u64 {
        self.data().iter().filter(|disk| disk.counts().writes > 0).count() as u64
    }

    /// Attaches other disks, of the first shard and of its data zones; of these all or none.
    pub fn replace(&self, meta: Option<SimDisk>, data: Option<Vec<SimDisk>>) {
        if let Some(meta) = meta {
            self.replace_meta(ShardId(0), meta);
        }
        if let Some(data) = data {
            self.replace_data(data);
        }
    }

    /// Attaches another metadata device of a shard.
    pub(crate) fn replace_meta(&self, shard: ShardId, meta: SimDisk) {
        self.world.attach(&meta_name(shard), &meta);
        self.events.emit(Event::MetaReplaced(shard));
        self.disks.borrow_mut().metas[usize::from(shard.0)] = meta;
    }

    /// Attaches other data devices.
    pub(crate) fn replace_data(&self, data: Vec<SimDisk>) {
        attach_data(&self.world, &data);
        self.events.emit(Event::DataReplaced);
        self.disks.borrow_mut().data = data;
    }

    /// All hosts and data zones lose power: what was not flushed may be gone.
    pub fn data_lose_power(&self, rng: &mut SimRng) -> Vec<SimDisk> {
        self.data().iter().map(|disk| disk.after_power_cut(rng)).collect()
    }

    /// Is there a write that a failed flush should have made stable, and that is still unstable?
    pub fn has_stuck(&self) -> bool {
        self.data().iter().any(SimDisk::has_stuck)
    }

    /// From here on one more device fails requests, or no longer does.
    pub fn devices_fail(&self, failing: bool) {
        let now = self.failing.get();
        self.failing.set(if failing { now + 1 } else { now - 1 });
        self.failed.set(Some(self.env.now()));
    }

    /// Has a device failed anything since?
    pub fn failed_since(&self, since: Instant) -> bool {
        self.failing.get() > 0 || self.failed.get().is_some_and(|at| at >= since)
    }

    /// From here on faults are injected, or no longer.
    pub fn faults_come(&self, come: bool) {
        self.calm.set((!come).then(|| self.env.now()));
    }

    /// May a fault have been injected since?
    pub fn disturbed_since(&self, since: Instant) -> bool {
        self.calm.get().is_none_or(|calm| calm > since)
    }

    /// Were no faults injected for this long?
    pub fn is_calm_for(&self, time: Duration) -> bool {
        self.calm.get().is_some_and(|calm| self.env.now().since(calm) >= time)
    }

    /// From the next start on the server fences evicted clients, by switching hosts off.
    pub(crate) fn fence_by(&self, switch_off: SwitchOff) {
        *self.switch_off.borrow_mut() = Some(switch_off);
        fences::give_mover_a_host(&self.world);
    }

    pub(crate) fn fences(&self, env: &Env, shard: ShardId) -> Vec<Rc<dyn Fence>> {
        if self.switch_off.borrow().is_none() {
            return Vec::new();
        }
        let (world, env) = (self.world.clone(), env.clone());
        let (zones, switch_off) = (self.zones_of(shard).collect(), self.switch_off.clone());
        vec![Rc::new(SimFence { world, env, zones, switch_off })]
    }

    /// Where the server of a shard finds its zones.
    pub(crate) fn places(&self, shard: ShardId) -> Vec<mds::PagPlace> {
        let place = |id| mds::PagPlace { id, uuid: zones::uuid(id), path: zones::name(id) };
        self.zones_of(shard).map(place).collect()
    }

    /// A node begins a new run.
    pub(crate) fn node_begins(&self, node: &str) {
        self.failed_requests.borrow_mut().remove(node);
    }

    /// Did a data device fail such a request in the node's present run?
    pub(crate) fn was_failed(&self, node: &str, action: DiskAction) -> bool {
        self.zones().any(|zone| self.was_failed_by(zone, node, action))
    }

    /// Did the device of this zone?
    pub(crate) fn was_failed_by(&self, zone: PagId, node: &str, action: DiskAction) -> bool {
        let failed = self.failed_requests.borrow();
        failed.get(node).is_some_and(|failed| failed.contains(&(zone, action)))
    }

    /// Gives each host a clock with a drift of its own.
    pub fn drift(&self, clients: usize, rng: &mut SimRng) {
        let clients = (0..clients).map(|slot| format!("c{slot}"));
        for host in clients.chain(self.servers()) {
            let drift = rng.between(0, 2 * DRIFT) as i64 - DRIFT as i64;
            self.world.set_drift(&host, drift);
        }
    }

    /// Gives the root directory a layout, which all files inherit.
    pub async fn set_layout(&self, layout: &str) -> Result<(), String> {
        let client = self.connect("layout").await?;
        let root = Caller { uid: 0, gid: 0, pid: 1 };
        let value = layout.as_bytes();
        let set =
            client.setxattr(&root, Ino::ROOT, b"user.redbud.dir.layout", value, 0, false).await;
        client.unmount().await;
        set.map_err(|fault| format!("the root directory gets no layout `{layout}`: {fault}"))
    }

    /// The servers that a client of a node looks for. Any of several shards may be the first.
    fn addresses(&self, node: &str) -> Vec<String> {
        let mut all: Vec<String> = self.servers().iter().map(|node| address(node)).collect();
        if self.has_several() {
            let first = node.bytes().map(usize::from).sum::<usize>() % all.len();
            all.rotate_left(first);
        }
        all
    }

    /// Connects a client on the node `name`.
    pub async fn connect(&self, name: &str) -> Result<Client, String> {
        self.connect_kernel(name, Rc::new(NoKernel)).await
    }

    /// Connects a client on the node `name`, which passes its recalls to `kernel`.
    pub async fn connect_kernel(
        &self,
        name: &str,
        kernel: Rc<dyn Kernel>,
    ) -> Result<Client, String> {
        let env = self.world.node(name);
        let (lines, edits) = (self.events.clone(), self.events.clone());
        let config = ClientConfig {
            server: self.addresses(name),
            fs_name: FS.into(),
            description: name.into(),
            connect_timeout: Duration::from_secs(120),
            keys: self.keys.as_ref().map(|keys| keys.of_client(name)),
            log: Rc::new(move |text| lines.client_line(text)),
            on_edit: Some(Rc::new(move |ino, edited| edits.emit(Event::Edited(ino, edited)))),
            allocation: self.allocation,
            commit: self.commit,
            ..ClientConfig::default()
        };
        let client = Client::connect(env, config, kernel).await;
        client.map_err(|error| format!("{name} cannot mount: {error}"))
    }
}

/// Recovers an image of the metadata zone in a world of its own, and checks it.
pub fn fsck(image: SimDisk, seed: u64) -> Result<(), String> {
    let report = checked(image, seed)?;
    if report.is_clean() { Ok(()) } else { Err(findings(&report)) }
}

/// Recovers an image of a metadata zone in a world of its own; what its check finds.
pub(crate) fn checked(image: SimDisk, seed: u64) -> Result<mfs::fsck::Report, String> {
    let world = SimWorld::new(seed);
    world.attach(META, &image);
    world.run(|env| async move {
        let disk = env
            .open_disk(META, DiskOptions { write: false, exclusive: false })
            .await
            .map_err(|error| error.to_string())?;
        let options = FsckOptions { cache_bytes: CACHE_BYTES, jobs: 2, ..FsckOptions::default() };
        mfs::fsck::fsck(&env, &disk, options).await.map_err(|error| error.to_string())
    })
}

/// The first findings, a line each.
pub(crate) fn findings(report: &mfs::fsck::Report) -> String {
    let lines: Vec<String> =
        report.problems.iter().take(8).map(|problem| format!("{problem:?}")).collect();
    lines.join("\n  ")
}

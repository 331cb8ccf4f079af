//! A metadata server, its disks and the nodes of clients in a simulated world.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use client::{Caller, Client, ClientConfig, Kernel, NoKernel};
use env::sim::{
    DiskAction, DiskEvent, DiskObservation, SimDisk, SimOptions, SimRng, SimWorld, watch_disks,
};
use env::{Disk, DiskOptions, Env};
use mds::fence::Fence;
use mds::{CommittedBlocks, Executed, Introspection, Observer};
use mfs::SlotFeatures;
use mfs::fsck::FsckOptions;
use mfs::{
    Cost, Feature, Features, FormatOptions, LayoutLimits, MapLimits, Mfs, OpenOptions, PagFormat,
    SlotSize, Stop, StoreError, Txn,
};
use proto::commit::CommitPolicy;
use proto::mds::Reply;
use proto::prealloc::Allocation;
use types::limits::{BLOCK, BLOCK_U64};
use types::{ClientId, Duration, Epoch, Ino, Instant, PagId, Rights, Transno, Uuid};

use crate::drain_state::Drains;
use crate::events::{Event, Events};
use crate::fences::{self, SimFence, SwitchOff};
use crate::invariant::Invariant;
use crate::keys::Keys;
use crate::log_lines::{parse_eviction, parse_unflushed};
pub use crate::servers::SERVER;
use crate::servers::Standing;
use crate::target_state::Targets;
use crate::zones::{self, Disks, Drawn, Sizes};

/// Bytes of the metadata log.
pub(crate) const LOG_BYTES: u64 = 4 << 20;
/// Bytes left of the log's first lap when a run begins.
const LOG_LEFT: u64 = 256 << 10;
/// A setting without a meaning.
const UNUSED_SETTING: u32 = u32::MAX;
const CACHE_BYTES: usize = 8 << 20;
pub(crate) const FS: &str = "sim";
/// Most extra latency of a connection and its bytes a second, if connections are uneven.
const DETOUR: Duration = Duration::from_millis(20);
const BANDWIDTH: u64 = 4 << 20;
/// Most drift of a clock in millionths: two clocks drift apart by up to a tenth.
const DRIFT: u64 = 50_000;
/// After this time a server that ended by itself is restarted.
const RESTART_DELAY: Duration = Duration::from_millis(100);
/// The same while a data device is dead for it, since it may end again.
const DEAD_RESTART_DELAY: Duration = Duration::from_secs(2);
/// Most orphans that a look reads.
const ORPHANS: usize = 1000;
/// The usual lease.
pub const LEASE: Duration = Duration::from_secs(5);

/// The name of the metadata device.
pub(crate) const META: &str = "meta";

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
    disks: Rc<RefCell<Disks>>,
    /// Starts of the server so far.
    pub starts: Rc<Cell<u64>>,
    /// When the server was last killed or restarted.
    pub restarted: Rc<Cell<Option<Instant>>>,
    /// Kills of the server so far.
    kills: Rc<Cell<u64>>,
    /// The epoch of the running server; 0 without one.
    pub epoch: Rc<Cell<u32>>,
    /// How many devices fail now: the server may end by itself, and is restarted. `failed`: when
    /// one last did.
    failing: Rc<Cell<usize>>,
    /// Since when no faults are injected; `None` while they are.
    calm: Rc<Cell<Option<Instant>>>,
    /// When a sample last showed no room for another client.
    pub out_of_room_at: Rc<Cell<Option<Instant>>>,
    failed: Rc<Cell<Option<Instant>>>,
    /// Requests that the data devices failed, by node, since its present run began.
    failed_requests: Rc<RefCell<FailedRequests>>,
    /// The store of the running server.
    store: Rc<RefCell<Option<Mfs>>>,
    /// A fence may switch clients' hosts off, by this.
    switch_off: Rc<RefCell<Option<SwitchOff>>>,
    /// The introspection of the running server.
    ledger: Rc<RefCell<Option<Introspection>>>,
    /// Servers that stand by for each other; `None`: there is one server.
    pub(crate) standing: Option<Rc<Standing>>,
    /// Drains of data zones.
    pub(crate) drains: Drains,
    /// Object storage targets.
    pub(crate) targets: Rc<Targets>,
    /// The stream of the run, which gets what happens here.
    pub events: Events,
}

/// Passes on what the server reports, as long as it is not replaced: what a replaced one does after
/// that is lost with it.
struct ServerObserver {
    events: Events,
    /// The servers of which it is one, and the run of its node.
    among: Option<(Rc<Standing>, u32)>,
}

impl ServerObserver {
    fn emit(&self, event: Event<'_>) {
        if self.among.as_ref().is_none_or(|(standing, run)| standing.is_owner(*run)) {
            self.events.emit(event);
        }
    }
}

impl Observer for ServerObserver {
    fn took_effect(&self, client: ClientId, asked: &proto::mds::Op, transno: Option<Transno>) {
        self.emit(Event::TookEffect { client, asked, transno });
    }

    fn executed(&self, executed: Executed) {
        self.emit(Event::Executed(executed));
    }

    fn commits(&self, pointed: &CommittedBlocks<'_>) {
        self.emit(Event::Commits(*pointed));
    }

    fn answers(&self, _: ClientId, reply: &Reply, durable: bool) {
        self.emit(Event::Answers { reply, durable });
    }
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

/// A freshly formatted metadata zone.
fn formatted(sizes: &Sizes, made: Format) -> SimDisk {
    let world = SimWorld::new(1);
    let disk = world.disk(META, sizes.meta * BLOCK_U64);
    let pags = zones::zones(sizes.data.len()).zip(&sizes.data);
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
        Mfs::format(&env, &disk, &format).await.expect("an empty disk can be formatted");
        use_the_log(&env, &disk).await.expect("a formatted disk can be used");
    });
    disk
}

/// Writes the log nearly to its end, so that its next lap begins within a run.
async fn use_the_log(env: &Env, disk: &Disk) -> Result<(), StoreError> {
    let opening = OpenOptions { cache_bytes: CACHE_BYTES, ..OpenOptions::default() };
    let mfs = Mfs::open(env, disk, opening).await?;
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
    /// Sizes of the devices.
    pub sizes: Sizes,
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
    let disks = Disks::new(sizes, format, || formatted(sizes, format));
    if let Some(drawn) = making.timed {
        disks.take_time(drawn);
    }
    attach(&world, Some(&disks.meta), &disks.data);
    (world, disks)
}

/// Attaches disks by the names that the cluster knows them by.
fn attach(world: &SimWorld, meta: Option<&SimDisk>, data: &[SimDisk]) {
    meta.into_iter().for_each(|meta| world.attach(META, meta));
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
        let disks = Rc::new(RefCell::new(disks));
        let restarted = Rc::new(Cell::new(None));
        let (kills, epoch, failing, failed, failed_requests) = Default::default();
        let (store, ledger, switch_off) = Default::default();
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
            restarted,
            kills,
            epoch,
            failing,
            calm,
            out_of_room_at: Rc::default(),
            failed,
            failed_requests,
            store,
            switch_off,
            ledger,
            standing: None,
            drains: Drains::default(),
            targets: Rc::default(),
            events,
        }
    }

    /// The attached metadata zone.
    pub fn meta(&self) -> SimDisk {
        self.disks.borrow().meta.clone()
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

    /// Attaches other disks; of the data zones all or none.
    pub fn replace(&self, meta: Option<SimDisk>, data: Option<Vec<SimDisk>>) {
        let mut disks = self.disks.borrow_mut();
        attach(&self.world, meta.as_ref(), data.as_deref().unwrap_or_default());
        if let Some(meta) = meta {
            self.events.emit(Event::MetaReplaced);
            disks.meta = meta;
        }
        if let Some(data) = data {
            self.events.emit(Event::DataReplaced);
            disks.data = data;
        }
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

    /// Starts the server on its node. It is up some time later, or has ended again. Of several, all
    /// that do not run.
    pub fn start_server(&self) {
        if let Some(standing) = &self.standing {
            return self.start_standing(standing);
        }
        let env = self.world.node(SERVER);
        self.server_begins(SERVER);
        let config = self.server_config(&env, SERVER);
        self.node_begins(SERVER);
        let (cluster, begun) = (self.clone(), self.env.now());
        env.clone().spawn(async move {
            let (any, never) = (Epoch(0), std::future::pending());
            let ended = cluster.serve((env, config), any, |_| (), never).await;
            cluster.store.take();
            cluster.ledger.take();
            if let Err(error) = ended {
                cluster.events.line(&format!("mds ended: {error}"));
                if !cluster.failed_since(begun) {
                    cluster.events.broken(Invariant::Server, &error);
                }
                cluster.restart_after_exit();
            }
        });
    }

    /// The server on a node is about to open the metadata.
    pub(crate) fn server_begins(&self, node: &str) {
        self.starts.set(self.starts.get() + 1);
        if self.starts.get() > 1 {
            self.restarted.set(Some(self.env.now()));
        }
        if let Some(run) = self.world.run_of(node) {
            self.events.emit(Event::Owns(run));
        }
    }

    /// The configuration of the server on a node.
    pub(crate) fn server_config(&self, env: &Env, node: &str) -> mds::Config {
        let among = self.standing.clone().zip(self.world.run_of(node));
        let observer = Rc::new(ServerObserver { events: self.events.clone(), among });
        let (reports, name) = (observer.clone(), node.to_owned());
        mds::Config {
            lease: self.lease,
            serve: self.workers,
            pags: self.places(),
            log: Rc::new(move |text| {
                if let Some((client, stage)) = parse_eviction(text) {
                    reports.emit(Event::Evicts(client, stage));
                }
                if let Some((client, zone)) = parse_unflushed(text) {
                    reports.emit(Event::Unflushed(client, zone));
                }
                reports.events.line(&format!("{name}: {text}"));
            }),
            fences: self.fences(env),
            observer: Some(observer),
            keys: self.keys.as_ref().map(Keys::of_server),
            target_key: self.target_key(),
            target_keys: self.keys_for_targets(node),
            validate: true,
            ..mds::Config::new(FS, &address(node))
        }
    }

    /// Opens the metadata with an epoch above `above`, and serves until `stop` ends; `opened` gets
    /// the epoch when the server is up.
    pub(crate) async fn serve(
        &self,
        (env, config): (Env, mds::Config),
        above: Epoch,
        opened: impl FnOnce(Epoch),
        stop: impl Future<Output = ()>,
    ) -> Result<(), String> {
        let disk = self.open_meta(&env).await.map_err(|error| error.to_string())?;
        // Every second server gives each directory a name map and, where the format has layout
        // blocks, keeps these tiny and gives them to every file with more than a few segments.
        let (maps, layouts) = match self.starts.get() % 2 {
            0 => (MapLimits::ALWAYS, LayoutLimits::TINY),
            _ => (MapLimits::USUAL, LayoutLimits::USUAL),
        };
        let usual = OpenOptions { cache_bytes: CACHE_BYTES, ..OpenOptions::default() };
        let opening = OpenOptions { maps, layouts, epoch_above: above, ..usual };
        let mfs = Mfs::open(&env, &disk, opening).await.map_err(|error| error.to_string())?;
        *self.store.borrow_mut() = Some(mfs.clone());
        self.epoch.set(mfs.identity().epoch.0);
        self.events.emit(Event::Opened(mfs.last_committed()));
        let server = mds::Mds::start(env, mfs, config).await.map_err(|error| error.to_string())?;
        *self.ledger.borrow_mut() = Some(server.introspection());
        // From here on reads do not fail: the judge does not know such errors.
        self.meta().clear_read_faults();
        opened(server.epoch());
        server.run(stop).await.map_err(|error| error.to_string())
    }

    /// From the next start on the server fences evicted clients, by switching hosts off.
    pub(crate) fn fence_by(&self, switch_off: SwitchOff) {
        *self.switch_off.borrow_mut() = Some(switch_off);
        fences::give_mover_a_host(&self.world);
    }

    fn fences(&self, env: &Env) -> Vec<Rc<dyn Fence>> {
        if self.switch_off.borrow().is_none() {
            return Vec::new();
        }
        let (world, env) = (self.world.clone(), env.clone());
        let (zones, switch_off) = (self.zones().collect(), self.switch_off.clone());
        vec![Rc::new(SimFence { world, env, zones, switch_off })]
    }

    /// Where the server finds the zones.
    fn places(&self) -> Vec<mds::PagPlace> {
        let place = |id| mds::PagPlace { id, uuid: zones::uuid(id), path: zones::name(id) };
        self.zones().map(place).collect()
    }

    /// While the guard lives, the stream gets every event of the attached devices, and
    /// [`Cluster::was_failed`] answers.
    pub(crate) fn watch_devices(&self) -> DiskObservation {
        let this = self.clone();
        watch_disks(move |disk, event| {
            let at = this.disks.borrow().data.iter().position(|data| data.is(disk));
            if disk.is(&this.meta()) {
                if let Some(standing) = &this.standing {
                    standing.happened(event);
                }
                this.events.emit(Event::Meta(event));
            } else if let Some(at) = at {
                let zone = PagId(at as u16);
                if let DiskEvent::Failed { node: (name, _), action, .. } = event {
                    let mut failed = this.failed_requests.borrow_mut();
                    failed.entry(name.to_owned()).or_default().insert((zone, action));
                }
                this.events.emit(Event::Data(zone, event));
            } else if let DiskEvent::Failed { action, .. } = event {
                this.targets.note_failed(disk, action);
            }
        })
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

    /// A supervisor sees that the server has ended, and starts it, unless somebody killed it
    /// meanwhile.
    fn restart_after_exit(&self) {
        let (this, starts, kills) = (self.clone(), self.starts.get(), self.kills.get());
        self.env.spawn(async move {
            let dead = this.data().iter().any(|disk| disk.is_dead_for(SERVER));
            this.env.sleep(if dead { DEAD_RESTART_DELAY } else { RESTART_DELAY }).await;
            if (this.starts.get(), this.kills.get()) == (starts, kills) {
                this.kill_server();
                this.start_server();
            }
        });
    }

    /// Opens the metadata zone once no earlier server has it open or has requests under way. What a
    /// flush of such a server failed to make stable stays unstable.
    async fn open_meta(&self, env: &Env) -> std::io::Result<Disk> {
        let options = DiskOptions { write: true, exclusive: true };
        loop {
            match env.open_disk(META, options).await {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    env.sleep(Duration::from_millis(1)).await;
                }
                opened => return opened,
            }
        }
    }

    /// Gives each host a clock with a drift of its own.
    pub fn drift(&self, clients: usize, rng: &mut SimRng) {
        let clients = (0..clients).map(|slot| format!("c{slot}"));
        for host in clients.chain(self.servers()) {
            let drift = rng.between(0, 2 * DRIFT) as i64 - DRIFT as i64;
            self.world.set_drift(&host, drift);
        }
    }

    /// Kills the server's process; of several, that of the owner.
    pub fn kill_server(&self) {
        self.server_ends();
        self.world.kill(&self.server());
    }

    /// Kills the processes of all servers.
    pub fn kill_servers(&self) {
        self.kill_server();
        self.servers().iter().for_each(|node| self.world.kill(node));
    }

    /// The server that serves has ended, or is replaced.
    pub(crate) fn server_ends(&self) {
        self.events.emit(Event::ServerKilled);
        self.restarted.set(Some(self.env.now()));
        self.kills.set(self.kills.get() + 1);
        self.epoch.set(0);
        // They hold the device.
        self.store.take();
        self.ledger.take();
        if let Some(standing) = &self.standing {
            standing.owner_ends();
        }
    }

    /// The introspection of the running server.
    pub(crate) fn ledger(&self) -> Option<Introspection> {
        self.ledger.borrow().clone()
    }

    /// Reads the store of the running server as it is at this moment.
    pub(crate) fn inspect<T>(
        &self,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Option<T> {
        let store = self.store.borrow();
        let meta = self.meta();
        let seen = store.as_ref()?.inspect(|block| meta.peek(block.0 * BLOCK_U64, BLOCK), body);
        self.events.count_look(seen.is_some());
        seen
    }

    /// The free blocks, if a server runs and has the counts in its cache.
    pub fn free(&self) -> Option<Free> {
        let store = self.store.borrow();
        let store = store.as_ref()?;
        let mut counted = pin!(store.run(Cost::READ, |txn| {
            let zones = txn.space().pags()?;
            // Freed blocks of files that an evicted client could write stay unusable until its
            // quarantine ends.
            let held = !txn.space().quarantines()?.is_empty();
            let freed = |zone: &mfs::PagState| if held { 0 } else { zone.freed };
            Ok(zones.iter().map(|zone| (zone.id, zone.free + freed(zone))).collect())
        }));
        match counted.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok((data, _))) => {
                let usage = store.usage();
                Some(Free { data, meta: usage.blocks_free, meta_kept: usage.blocks_set_aside })
            }
            _ => None,
        }
    }

    /// Orphans that no client except `clients` may have open; `None` without a server that can
    /// answer.
    pub(crate) fn unused_orphans(&self, clients: &[ClientId]) -> Option<Vec<Ino>> {
        let found = self.inspect(|txn| txn.names().orphans(Ino::NONE, ORPHANS))?;
        let leases = self.ledger()?.leases();
        let is_used = |ino: &Ino| {
            let others = leases.iter().filter(|lease| !clients.contains(&lease.client));
            others
                .filter(|lease| lease.rights.contains(Rights::OPEN))
                .any(|lease| lease.ino == *ino)
        };
        Some(found.into_iter().filter(|ino| !is_used(ino)).collect())
    }

    /// Describes who holds blocks of the data zone, as the server knows it.
    pub fn describe_space(&self) -> String {
        let store = self.store.borrow();
        let Some(store) = store.as_ref() else { return "\n  no server runs".to_owned() };
        let leases = self.ledger().map(|ledger| ledger.leases()).unwrap_or_default();
        let mut looked = pin!(store.run(Cost::READ, |txn| {
            let mut text = String::new();
            for zone in txn.space().pags()? {
                text += &format!(
                    "\n  of zone {} {} blocks are free, {} are being freed",
                    zone.id, zone.free, zone.freed
                );
            }
            for (client, _) in txn.clients()? {
                let blocks: u64 = txn.space().pool(client)?.iter().map(|(.., len)| len).sum();
                text += &format!("\n  the pool of client {client} has {blocks}");
            }
            text += &format!("\n  quarantines {:?}", txn.space().quarantines()?);
            for ino in txn.names().orphans(Ino(0), 100)? {
                let users = leases.iter().filter(|lease| lease.ino == ino);
                let users: Vec<_> = users.map(|lease| (lease.client, lease.rights)).collect();
                text += &format!("\n  inode {ino} has no name, and is used by {users:?}");
            }
            Ok(text)
        }));
        match looked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok((text, _))) => text,
            _ => "\n  the server cannot report".to_owned(),
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
            server: self.servers().iter().map(|node| address(node)).collect(),
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
    let world = SimWorld::new(seed);
    world.attach(META, &image);
    world.run(|env| async move {
        let disk = env
            .open_disk(META, DiskOptions { write: false, exclusive: false })
            .await
            .map_err(|error| error.to_string())?;
        let options = FsckOptions { cache_bytes: CACHE_BYTES, jobs: 2, ..FsckOptions::default() };
        let report =
            mfs::fsck::fsck(&env, &disk, options).await.map_err(|error| error.to_string())?;
        if report.is_clean() { Ok(()) } else { Err(findings(&report)) }
    })
}

/// The first findings, a line each.
pub(crate) fn findings(report: &mfs::fsck::Report) -> String {
    let lines: Vec<String> =
        report.problems.iter().take(8).map(|problem| format!("{problem:?}")).collect();
    lines.join("\n  ")
}

//! What each metadata server of a cluster has of its own: a shard, with its log, its data zones and
//! the process that serves it. A cluster has one shard, or (`--mds N`) several, whose servers agree
//! on what concerns two of them.
//!
//! Invariants:
//! - the server with number N has shard N, on a node of its own;
//! - with one shard nothing is drawn, named or configured otherwise than without this file.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use commitment::TxnId;
use env::sim::{DiskEvent, DiskObservation, SimDisk, watch_disks};
use env::{Disk, DiskOptions, Env};
use mds::{CommittedBlocks, Executed, Introspection, Observer};
use mfs::fsck::{Disagreement, ShardNames, across};
use mfs::{Cost, LayoutLimits, MapLimits, Mfs, OpenOptions, Stop, Txn};
use proto::mds::{Reply, ServerInfo};
use types::limits::{BLOCK, BLOCK_U64};
use types::{ClientId, Duration, Epoch, Ino, PagId, Rights, ServerId, ShardId, Transno};

use crate::cluster::{self, CACHE_BYTES, Cluster, FS, Free, address, meta_name};
use crate::events::{Event, Events};
use crate::invariant::Invariant;
use crate::keys::Keys;
use crate::log_lines::{parse_eviction, parse_unflushed};
use crate::servers::{Standing, node_name};
use crate::shard_state::Shard;
use crate::zones;

/// After this time a server that ended by itself is restarted.
const RESTART_DELAY: Duration = Duration::from_millis(100);
/// The same while a data device is dead for it, since it may end again.
const DEAD_RESTART_DELAY: Duration = Duration::from_secs(2);
/// Names at which a directory is spread over several shards.
const SPREAD_AT: u64 = 16;
/// Most orphans that a look reads.
const ORPHANS: usize = 1000;

/// Passes on what the server reports, as long as it is not replaced: what a replaced one does after
/// that is lost with it.
struct ServerObserver {
    events: Events,
    shard: ShardId,
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
        self.emit(Event::Answers { shard: self.shard, reply, durable });
    }
}

impl Cluster {
    /// The state of a shard.
    pub(crate) fn shard(&self, shard: ShardId) -> &Shard {
        &self.shards[usize::from(shard.0)]
    }

    /// All shards.
    pub(crate) fn all_shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        zones::shards(self.shards.len())
    }

    /// Are there several?
    pub(crate) fn has_several(&self) -> bool {
        self.shards.len() > 1
    }

    /// The data zones of a shard.
    pub(crate) fn zones_of(&self, shard: ShardId) -> impl Iterator<Item = PagId> + use<> {
        zones::of_shard(shard, self.zones().count() / self.shards.len())
    }

    /// The shard of a data zone. Object targets are those of the first one.
    pub(crate) fn shard_of(&self, zone: PagId) -> ShardId {
        let its = |shard: &ShardId| self.zones_of(*shard).any(|other| other == zone);
        self.all_shards().find(its).unwrap_or_default()
    }

    /// The node of the server that has a shard, or that had it last.
    pub(crate) fn server_of(&self, shard: ShardId) -> String {
        match &self.standing {
            Some(standing) => standing.node(),
            None => node_name(usize::from(shard.0)),
        }
    }

    /// The shard of the server on a node.
    pub(crate) fn shard_at(&self, node: &str) -> ShardId {
        let its = |shard: &ShardId| self.has_several() && self.server_of(*shard) == node;
        self.all_shards().find(its).unwrap_or_default()
    }

    /// Starts the servers of all shards.
    pub(crate) fn start_servers(&self) {
        self.all_shards().for_each(|shard| self.start_shard(shard));
    }

    /// Starts the server of the first shard. Of several that stand by for each other, starts all
    /// that do not run.
    pub fn start_server(&self) {
        self.start_shard(ShardId(0));
    }

    /// Starts the server of a shard on its node. It is up some time later, or has ended again.
    pub(crate) fn start_shard(&self, shard: ShardId) {
        if let Some(standing) = &self.standing {
            return self.start_standing(standing);
        }
        let node = self.server_of(shard);
        let env = self.world.node(&node);
        self.server_begins(&node);
        let config = self.server_config(&env, &node);
        self.node_begins(&node);
        let (cluster, begun) = (self.clone(), self.env.now());
        env.clone().spawn(async move {
            let (any, never) = (Epoch(0), std::future::pending());
            let ended = cluster.serve(shard, (env, config), any, |_| (), never).await;
            cluster.shard(shard).store.take();
            cluster.shard(shard).ledger.take();
            if let Err(error) = ended {
                cluster.events.line(&format!("{node} ended: {error}"));
                if !cluster.failed_since(begun) {
                    cluster.events.broken(Invariant::Server, &error);
                }
                cluster.restart_after_exit(shard);
            }
        });
    }

    /// The server on a node is about to open the metadata.
    pub(crate) fn server_begins(&self, node: &str) {
        let (number, shard) = (self.shard_at(node), self.shard(self.shard_at(node)));
        self.starts.set(self.starts.get() + 1);
        shard.starts.set(shard.starts.get() + 1);
        if shard.starts.get() > 1 {
            shard.restarted.set(Some(self.env.now()));
        }
        if let Some(run) = self.world.run_of(node) {
            self.events.emit(Event::Owns(number, run));
        }
    }

    /// The configuration of the server on a node.
    pub(crate) fn server_config(&self, env: &Env, node: &str) -> mds::Config {
        let among = self.standing.clone().zip(self.world.run_of(node));
        let (events, shard) = (self.events.clone(), self.shard_at(node));
        let observer = Rc::new(ServerObserver { events, shard, among });
        let (reports, name) = (observer.clone(), node.to_owned());
        mds::Config {
            lease: self.lease,
            serve: self.workers,
            pags: self.places(shard),
            elsewhere: self.zones().map(|id| (id, zones::name(id))).collect(),
            servers: self.server_list(),
            protocol: self.protocol,
            spread_at: SPREAD_AT,
            guards: self.guards,
            log: Rc::new(move |text| {
                if let Some((client, stage)) = parse_eviction(text) {
                    reports.emit(Event::Evicts(client, stage));
                }
                if let Some((client, zone)) = parse_unflushed(text) {
                    reports.emit(Event::Unflushed(client, zone));
                }
                reports.events.line(&format!("{name}: {text}"));
            }),
            fences: self.fences(env, shard),
            observer: Some(observer),
            keys: self.keys.as_ref().map(Keys::of_server),
            target_key: self.target_key(),
            target_keys: self.keys_for_targets(node),
            validate: true,
            ..mds::Config::new(FS, &address(node))
        }
    }

    /// The list of servers, if there are several.
    fn server_list(&self) -> Vec<ServerInfo> {
        let info = |shard: ShardId| ServerInfo {
            server: ServerId(u16::from(shard.0)),
            shards: vec![shard.0],
            addresses: vec![address(&self.server_of(shard))],
        };
        self.all_shards().filter(|_| self.has_several()).map(info).collect()
    }

    /// Opens the metadata of a shard with an epoch above `above`, and serves until `stop` ends;
    /// `opened` gets the epoch when the server is up.
    pub(crate) async fn serve(
        &self,
        shard: ShardId,
        (env, config): (Env, mds::Config),
        above: Epoch,
        opened: impl FnOnce(Epoch),
        stop: impl Future<Output = ()>,
    ) -> Result<(), String> {
        let disk = self.open_meta(&env, shard).await.map_err(|error| error.to_string())?;
        // Every second server gives each directory a name map and, where the format has layout
        // blocks, keeps these tiny and gives them to every file with more than a few segments.
        let (maps, layouts) = match self.shard(shard).starts.get() % 2 {
            0 => (MapLimits::ALWAYS, LayoutLimits::TINY),
            _ => (MapLimits::USUAL, LayoutLimits::USUAL),
        };
        let usual = OpenOptions { cache_bytes: CACHE_BYTES, ..OpenOptions::default() };
        let opening = OpenOptions { maps, layouts, epoch_above: above, ..usual };
        let mfs = Mfs::open(&env, &disk, opening).await.map_err(|error| error.to_string())?;
        let its = self.shard(shard);
        *its.store.borrow_mut() = Some(mfs.clone());
        its.epoch.set(mfs.identity().epoch.0);
        self.events.emit(Event::Opened(shard, mfs.last_committed()));
        let server = mds::Mds::start(env, mfs, config).await.map_err(|error| error.to_string())?;
        *its.ledger.borrow_mut() = Some(server.introspection());
        // From here on reads do not fail: the judge does not know such errors.
        self.meta_of(shard).clear_read_faults();
        opened(server.epoch());
        server.run(stop).await.map_err(|error| error.to_string())
    }

    /// While the guard lives, the stream gets every event of the attached devices, and
    /// [`Cluster::was_failed`] answers.
    pub(crate) fn watch_devices(&self) -> DiskObservation {
        let this = self.clone();
        watch_disks(move |disk, event| {
            let disks = this.disks.borrow();
            let at = disks.data.iter().position(|data| data.is(disk));
            let shard = disks.metas.iter().position(|meta| meta.is(disk));
            drop(disks);
            if let Some(shard) = shard {
                if let Some(standing) = &this.standing {
                    standing.happened(event);
                }
                this.events.emit(Event::Meta(ShardId(shard as u8), event));
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

    /// A supervisor sees that the server has ended, and starts it, unless somebody killed it
    /// meanwhile.
    fn restart_after_exit(&self, shard: ShardId) {
        let of =
            move |this: &Cluster| (this.shard(shard).starts.get(), this.shard(shard).kills.get());
        let (this, before) = (self.clone(), of(self));
        self.env.spawn(async move {
            let node = this.server_of(shard);
            let dead = this.data().iter().any(|disk| disk.is_dead_for(&node));
            this.env.sleep(if dead { DEAD_RESTART_DELAY } else { RESTART_DELAY }).await;
            if of(&this) == before {
                this.kill_shard(shard);
                this.start_shard(shard);
            }
        });
    }

    /// Opens the metadata zone once no earlier server has it open or has requests under way. What a
    /// flush of such a server failed to make stable stays unstable.
    async fn open_meta(&self, env: &Env, shard: ShardId) -> std::io::Result<Disk> {
        let options = DiskOptions { write: true, exclusive: true };
        loop {
            match env.open_disk(&meta_name(shard), options).await {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    env.sleep(Duration::from_millis(1)).await;
                }
                opened => return opened,
            }
        }
    }

    /// Kills the process of the first shard's server; of several that stand by, that of the owner.
    pub fn kill_server(&self) {
        self.kill_shard(ShardId(0));
    }

    /// Kills the process of a shard's server.
    pub(crate) fn kill_shard(&self, shard: ShardId) {
        self.server_ends(shard);
        self.world.kill(&self.server_of(shard));
    }

    /// Kills the processes of all servers.
    pub fn kill_servers(&self) {
        self.all_shards().for_each(|shard| self.kill_shard(shard));
        self.servers().iter().for_each(|node| self.world.kill(node));
    }

    /// The server that serves a shard has ended, or is replaced.
    pub(crate) fn server_ends(&self, number: ShardId) {
        self.events.emit(Event::ServerKilled(number));
        let shard = self.shard(number);
        shard.restarted.set(Some(self.env.now()));
        shard.kills.set(shard.kills.get() + 1);
        shard.epoch.set(0);
        // They hold the device.
        shard.store.take();
        shard.ledger.take();
        if let Some(standing) = &self.standing {
            standing.owner_ends();
        }
    }

    /// The introspection of a shard's running server.
    pub(crate) fn ledger_of(&self, shard: ShardId) -> Option<Introspection> {
        self.shard(shard).ledger.borrow().clone()
    }

    /// As [`Cluster::inspect_at`], of the first shard.
    pub(crate) fn inspect<T>(
        &self,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Option<T> {
        self.inspect_at(ShardId(0), body)
    }

    /// Reads the store of a shard's running server as it is at this moment.
    pub(crate) fn inspect_at<T>(
        &self,
        shard: ShardId,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Option<T> {
        let (store, meta) = (self.shard(shard).store.borrow(), self.meta_of(shard));
        let seen = store.as_ref()?.inspect(|block| meta.peek(block.0 * BLOCK_U64, BLOCK), body);
        self.events.count_look(seen.is_some());
        seen
    }

    /// The shard that has the inode, as far as the servers that run know.
    pub(crate) fn home_of(&self, ino: Ino) -> ShardId {
        let mut home = ino.shard();
        for _ in self.all_shards() {
            match self.inspect_at(home, |txn| txn.names().home(ino)) {
                Some(next) if next != home => home = next,
                _ => break,
            }
        }
        home
    }

    /// The free blocks of the first shard, if its server runs and has the counts in its cache.
    pub fn free(&self) -> Option<Free> {
        self.free_of(ShardId(0))
    }

    /// The same of a shard.
    pub(crate) fn free_of(&self, shard: ShardId) -> Option<Free> {
        let store = self.shard(shard).store.borrow();
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
        let mut unused = Vec::new();
        for shard in self.all_shards() {
            let found = self.inspect_at(shard, |txn| txn.names().orphans(Ino::NONE, ORPHANS))?;
            let leases = self.ledger_of(shard)?.leases();
            let is_used = |ino: &Ino| {
                let others = leases.iter().filter(|lease| !clients.contains(&lease.client));
                others
                    .filter(|lease| lease.rights.contains(Rights::OPEN))
                    .any(|lease| lease.ino == *ino)
            };
            unused.extend(found.into_iter().filter(|ino| !is_used(ino)));
        }
        Some(unused)
    }

    /// Is no operation of several shards open, as far as running servers say?
    pub(crate) fn is_settled(&self) -> bool {
        self.all_shards().all(|shard| {
            let open = self.inspect_at(shard, |txn| Ok(txn.intents().all()?.len()));
            open == Some(0)
        })
    }

    /// Describes who holds blocks of the data zone, as the server knows it.
    pub fn describe_space(&self) -> String {
        self.all_shards().map(|shard| self.describe_shard(shard)).collect()
    }

    fn describe_shard(&self, shard: ShardId) -> String {
        let store = self.shard(shard).store.borrow();
        let Some(store) = store.as_ref() else { return "\n  no server runs".to_owned() };
        let leases = self.ledger_of(shard).map(|ledger| ledger.leases()).unwrap_or_default();
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
}

/// Checks the metadata zones of all shards, each alone and what they say of each other. No
/// operation of several shards may be open.
///
/// # Errors
/// The first findings.
pub(crate) fn fsck_all(images: Vec<SimDisk>, seed: u64) -> Result<(), String> {
    if images.len() == 1 {
        return images.into_iter().try_for_each(|image| cluster::fsck(image, seed));
    }
    let mut shards: Vec<ShardNames> = Vec::new();
    for image in images {
        let report = cluster::checked(image, seed)?;
        if !report.is_clean() {
            return Err(cluster::findings(&report));
        }
        shards.push(report.shard);
    }
    let open: BTreeSet<String> =
        shards.iter().flat_map(|it| it.operations.keys()).map(TxnId::to_string).collect();
    if !open.is_empty() {
        return Err(format!("operations of several shards are open: {open:?}"));
    }
    let found: Vec<String> =
        across(&shards, &BTreeMap::new()).iter().take(8).map(Disagreement::to_string).collect();
    if found.is_empty() { Ok(()) } else { Err(found.join("\n  ")) }
}

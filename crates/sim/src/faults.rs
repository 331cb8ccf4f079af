//! The kinds of faults, and their injection.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use env::sim::{SimDisk, SimRng};
use types::{Duration, Instant, ShardId};

use crate::call::Op;
use crate::cluster::Cluster;
use crate::devices::DeadFor;
use crate::drain_state::MOVER;
use crate::drains::{self, Drain};
use crate::fleet::Fleet;
use crate::history::{History, NOBODY};
use crate::invariant::Invariant;
use crate::media_corruption::DamageCounts;
use crate::script::{Script, ScriptStep};

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// The connection of a client breaks.
    Cut,
    /// A client and the server are partitioned for less than a lease.
    Partition,
    /// The server's process is killed and started again, at once or later, also during recovery.
    ServerKill,
    /// The server's host loses power: a part of what its metadata disk had not flushed survives.
    ServerPower,
    /// A disk stalls for a while.
    Stall,
    /// The process of a client is killed; a new client mounts later.
    ClientKill,
    /// A process that waits for an answer is killed, so the kernel interrupts its request.
    ProcessKill,
    /// In each client one process that waits for a lock gets a signal that it handles.
    Signal,
    /// A client's process is paused, or cut off, for up to three leases.
    Silence,
    /// Some hosts lose power at once; if all do, so do the data disks.
    Power,
    /// The data device, or that of a target, fails reads, writes or flushes: one, several, or for a
    /// while.
    DataEio,
    /// The metadata device fails writes or flushes, or reads of a recovering server.
    MetaEio,
    /// One direction between a client and the server is blocked for less than a lease.
    OneWay,
    /// The server accepts new connections, and never answers.
    Mute,
    /// The server's process is paused for up to three leases.
    ServerPause,
    /// A disk stalls for up to a minute.
    LongStall,
    /// The wall clock of a host jumps.
    ClockJump,
    /// Clocks of the hosts drift apart, by up to a tenth.
    Drift,
    /// Connections differ in latency and have a limited bandwidth.
    Uneven,
    /// The data zone or the metadata zone is small enough to fill up.
    Space,
    /// At the end, after a sync, all hosts and disks lose power at once.
    ClusterPower,
    /// Media corruption of a killed server's metadata device: flipped bits, misdirected writes.
    Damage,
    /// A second fault begins while another one lasts.
    Together,
    /// While a disk stalls or a client is blocked, so is the other disk or another client.
    Pairs,
    /// A data device dies, for a host or for all, and comes back soon or much later.
    Death,
    /// Of servers that stand by for each other one is killed or stopped, or asked to hand over; or
    /// their etcd cluster is slow, without a leader, or cut off from the owner in one direction.
    Takeover,
    /// A data zone is drained. What moves its files may be killed, stopped or cut off.
    Drain,
    /// The process of an object storage target is killed and started again, at once or later, alone
    /// or together with the server, a client or another target.
    TargetKill,
    /// The same, and the target's host loses power: a part of what its disk had not flushed
    /// survives.
    TargetPower,
    /// A connection with a target breaks, or is blocked in one or both directions.
    TargetCut,
    /// A file moves between blocks of data zones and objects at targets, or the layout of the root
    /// directory changes from one to the other. What moves files may be killed.
    Migrate,
    /// A connection between two metadata servers breaks, or is blocked in one or both directions.
    PeerCut,
    /// A directory moves to another metadata server. What asks for that may be killed.
    MoveDirectory,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Fault; 33] = [
        Fault::Cut,
        Fault::Partition,
        Fault::ServerKill,
        Fault::ServerPower,
        Fault::Stall,
        Fault::ClientKill,
        Fault::Silence,
        Fault::Power,
        Fault::DataEio,
        Fault::MetaEio,
        Fault::Damage,
        Fault::OneWay,
        Fault::Mute,
        Fault::ServerPause,
        Fault::LongStall,
        Fault::ClockJump,
        Fault::Drift,
        Fault::Uneven,
        Fault::Space,
        Fault::ClusterPower,
        Fault::ProcessKill,
        Fault::Signal,
        Fault::Together,
        Fault::Pairs,
        Fault::Death,
        Fault::Takeover,
        Fault::Drain,
        Fault::TargetKill,
        Fault::TargetPower,
        Fault::TargetCut,
        Fault::Migrate,
        Fault::PeerCut,
        Fault::MoveDirectory,
    ];

    /// The kinds of targets.
    pub const OF_TARGETS: [Fault; 3] = [Fault::TargetKill, Fault::TargetPower, Fault::TargetCut];

    /// The kinds that happen only between shards.
    pub const BETWEEN_SHARDS: [Fault; 2] = [Fault::PeerCut, Fault::MoveDirectory];

    /// The kinds that a run with one server has, unless others are named.
    pub fn of_one_server() -> Vec<Fault> {
        let apart = |kind: &Fault| {
            matches!(kind, Fault::Takeover | Fault::Drain | Fault::Migrate)
                || Fault::BETWEEN_SHARDS.contains(kind)
                || Fault::OF_TARGETS.contains(kind)
        };
        Fault::ALL.into_iter().filter(|kind| !apart(kind)).collect()
    }

    /// These kinds in a run with targets: without those that only data devices have.
    pub fn with_targets(kinds: &[Fault]) -> Vec<Fault> {
        let of_data = |kind: &Fault| matches!(kind, Fault::Death | Fault::Drain);
        let others = kinds.iter().copied().filter(|kind| !of_data(kind));
        others.chain(Fault::OF_TARGETS).collect()
    }

    /// The kinds that a run with several servers has: none that ends the metadata device, or that
    /// delays requests to it for longer than a lease leaves them.
    pub fn of_several_servers() -> Vec<Fault> {
        vec![
            Fault::Takeover,
            Fault::Cut,
            Fault::Partition,
            Fault::OneWay,
            Fault::ClientKill,
            Fault::Silence,
            Fault::Drift,
            Fault::ClusterPower,
            Fault::Together,
        ]
    }

    /// The kinds that a run with several shards has, unless others are named.
    pub fn of_several_shards() -> Vec<Fault> {
        let left_out = |kind: &Fault| matches!(kind, Fault::Damage | Fault::Space | Fault::Death);
        let kinds = Fault::of_one_server().into_iter().filter(|kind| !left_out(kind));
        kinds.chain([Fault::PeerCut]).collect()
    }

    /// May it make clients lose changes?
    pub fn may_lose_changes(self) -> bool {
        matches!(
            self,
            Fault::ClientKill
                // If a process dies during a write, the kernel drops the pages, with stores of
                // mappings in them.
                | Fault::ProcessKill
                | Fault::Silence
                | Fault::Power
                | Fault::DataEio
                | Fault::Death
                | Fault::Mute
                | Fault::LongStall
                | Fault::Takeover
                | Fault::TargetKill
                | Fault::TargetPower
        )
    }

    /// Is it injected repeatedly? The others belong to the whole run, or to its end.
    pub fn is_injected(self) -> bool {
        !matches!(
            self,
            Fault::Drift
                | Fault::Uneven
                | Fault::Space
                | Fault::ClusterPower
                | Fault::Together
                | Fault::Pairs
        )
    }

    /// May a second one of `pairs` begin while it lasts?
    pub fn has_pairs(self) -> bool {
        matches!(self, Fault::Stall | Fault::LongStall | Fault::Partition | Fault::OneWay)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Cut => "cut",
            Fault::Partition => "partition",
            Fault::ServerKill => "server-kill",
            Fault::ServerPower => "server-power",
            Fault::Stall => "stall",
            Fault::ClientKill => "client-kill",
            Fault::ProcessKill => "process-kill",
            Fault::Signal => "signal",
            Fault::Silence => "silence",
            Fault::Power => "power",
            Fault::DataEio => "data-eio",
            Fault::MetaEio => "meta-eio",
            Fault::Damage => "damage",
            Fault::OneWay => "one-way",
            Fault::Mute => "mute",
            Fault::ServerPause => "server-pause",
            Fault::LongStall => "long-stall",
            Fault::ClockJump => "clock-jump",
            Fault::Drift => "drift",
            Fault::Uneven => "uneven",
            Fault::Space => "space",
            Fault::ClusterPower => "cluster-power",
            Fault::Together => "together",
            Fault::Pairs => "pairs",
            Fault::Death => "death",
            Fault::Takeover => "takeover",
            Fault::Drain => "drain",
            Fault::TargetKill => "target-kill",
            Fault::TargetPower => "target-power",
            Fault::TargetCut => "target-cut",
            Fault::Migrate => "migrate",
            Fault::PeerCut => "peer-cut",
            Fault::MoveDirectory => "move-directory",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        Fault::ALL.into_iter().find(|fault| fault.name() == text).ok_or_else(|| {
            let names = Fault::ALL.map(Fault::name).join(", ");
            format!("no such fault: {text}; there are {names}")
        })
    }
}

/// How often a waiting process is looked for.
const KILL_TRIES: u32 = 20;
/// Most processes killed in a row.
const KILLED_MAX: u64 = 4;
/// Within this time a client notices that nobody answers, and connects again.
const MUTE: Duration = Duration::from_secs(40);
/// Separates random numbers about shards from others.
const SHARDS: u64 = 0x7368_6172_6473_0000;
/// Operations of a process per fault, in runs that are spread over time.
const FAULT: u64 = 8;

/// Faults that may begin while another one lasts.
const OVERLAPPING: [Fault; 5] =
    [Fault::Cut, Fault::ServerKill, Fault::ClientKill, Fault::ProcessKill, Fault::Silence];

/// Injected faults by kind.
pub type FaultCounts = BTreeMap<Fault, u64>;

/// Injects faults until `ended` is set.
pub struct Injector {
    /// The cluster.
    pub cluster: Cluster,
    /// The clients.
    pub fleet: Fleet,
    /// Kinds to choose from.
    pub kinds: Vec<Fault>,
    /// Random numbers for a second fault while one lasts.
    pub overlap: Option<SimRng>,
    /// Random numbers for a second stalled disk or blocked client.
    pub pairs: Option<SimRng>,
    /// The kind of the current fault.
    pub current: Option<Fault>,
    /// Selects the faults to inject.
    pub script: Rc<Script>,
    /// Random numbers of the current fault.
    pub rng: SimRng,
    /// Set when the safety phase is over.
    pub ended: Rc<Cell<bool>>,
    /// Injected faults.
    pub made: Rc<RefCell<FaultCounts>>,
    /// How many fault steps were reached. `made` counts their effects, in another unit.
    pub reached_steps: Rc<Cell<u32>>,
    /// Corrupted devices.
    pub damaged: Rc<Cell<DamageCounts>>,
    /// The history of the run.
    pub history: History,
    /// Seed of the fsck runs on images.
    pub seed: u64,
    /// For each slot when its network path was last blocked: from and to.
    pub blocked: BTreeMap<usize, (Instant, Instant)>,
    /// The metadata device at its last corruption, or at the start.
    pub older: Option<SimDisk>,
    /// Dead devices.
    pub dead: Rc<RefCell<Vec<DeadFor>>>,
}

impl Injector {
    /// Runs until `ended` is set; heals everything.
    pub async fn run(mut self) {
        if self.kinds.is_empty() {
            return;
        }
        for index in 0.. {
            if !self.script.has_faults_from(index) {
                break;
            }
            let step = ScriptStep::Fault(index);
            self.rng = self.script.rng(step);
            let pause = match self.rng.below(4) {
                0 => self.rng.below(3_000),
                1..3 => self.rng.below(50_000),
                _ => self.rng.below(1_000_000),
            };
            let pause = Duration::from_micros(pause) + self.script.pause(FAULT, &mut self.rng);
            self.cluster.env.sleep(pause).await;
            if self.ended.get() {
                break;
            }
            if !self.script.takes(step) {
                continue;
            }
            self.reached_steps.set(index + 1);
            let kind = self.kinds[self.rng.below(self.kinds.len() as u64) as usize];
            *self.made.borrow_mut().entry(kind).or_default() += 1;
            self.cluster.events.line(&format!("fault: {kind} at {:?}", self.cluster.world.now()));
            self.overlap = self.overlap.is_some().then(|| self.script.overlap(step));
            self.pairs = self.pairs.is_some().then(|| self.script.pairs(step));
            self.current = Some(kind);
            self.strike(kind).await;
        }
        self.devices_come_back().await;
        self.cluster.world.heal();
    }

    /// The shard that a fault hits. With one shard nothing is drawn, and it draws nothing that
    /// others would draw.
    pub(crate) fn a_shard(&self) -> ShardId {
        let count = self.cluster.shards.len() as u64;
        ShardId(self.of_shards().below(count) as u8)
    }

    /// The node of its server.
    pub(crate) fn a_server(&self) -> String {
        self.cluster.server_of(self.a_shard())
    }

    /// One shard, or all of them.
    fn some_shards(&self) -> Vec<ShardId> {
        match self.of_shards().next_u64() % 3 {
            0 => self.cluster.all_shards().collect(),
            _ => vec![self.a_shard()],
        }
    }

    fn of_shards(&self) -> SimRng {
        SimRng::new(self.rng.clone().next_u64() ^ SHARDS)
    }

    /// Breaks a connection between two servers, or blocks it in one or both directions.
    async fn cut_peers(&mut self) {
        let one = self.a_shard();
        let others: Vec<ShardId> = self.cluster.all_shards().filter(|it| *it != one).collect();
        let other = others[self.rng.below(others.len() as u64) as usize];
        let (one, other) = (self.cluster.server_of(one), self.cluster.server_of(other));
        let world = self.cluster.world.clone();
        match self.rng.below(4) {
            0 => return world.cut(&one, &other),
            1 => world.block(&one, &other),
            2 => world.block(&other, &one),
            _ => world.partition(&one, &other),
        }
        let most = [50, 2_000, 12_000][self.rng.below(3) as usize];
        self.pause(most).await;
        world.heal_between(&one, &other);
    }

    pub(crate) fn slot(&mut self) -> usize {
        self.rng.below(self.fleet.slots() as u64) as usize
    }

    fn client(&mut self) -> String {
        let slot = self.slot();
        self.fleet.name(slot)
    }

    /// How long a dead client's host stays away before it mounts again.
    fn downtime(&mut self) -> Duration {
        let most = [50, 2_000, 12_000][self.rng.below(3) as usize];
        Duration::from_millis(self.rng.below(most))
    }

    pub(crate) async fn pause(&mut self, most_ms: u64) {
        let pause = Duration::from_micros(self.rng.below(most_ms * 1000));
        self.wait(pause).await;
    }

    /// Lets the current fault last for `time`.
    pub(crate) async fn wait(&mut self, time: Duration) {
        let mut before = time;
        let other = self.other_fault();
        if let (Some(overlap), Some(_)) = (&mut self.overlap, other) {
            before = Duration::from_micros(overlap.below(time.as_micros() as u64 + 1));
        }
        self.cluster.env.sleep(before).await;
        if let Some(kind) = other {
            self.strike_overlapping(kind);
            self.cluster.env.sleep(time - before).await;
        }
    }

    /// The fault that begins while the current one lasts, if any.
    fn other_fault(&mut self) -> Option<Fault> {
        let current = self.current?;
        let overlap = self.overlap.as_mut()?;
        if !overlap.one_in(2) {
            return None;
        }
        let kind = OVERLAPPING[overlap.below(OVERLAPPING.len() as u64) as usize];
        let outlives = matches!(current, Fault::Stall | Fault::LongStall | Fault::DataEio)
            || matches!(current, Fault::Partition | Fault::OneWay | Fault::Death);
        let fits = kind != Fault::ServerKill || outlives;
        (self.kinds.contains(&kind) && fits).then_some(kind)
    }

    /// Injects a fault that needs no waiting.
    fn strike_overlapping(&mut self, kind: Fault) {
        let Some(overlap) = &mut self.overlap else { return };
        let slot = overlap.below(self.fleet.slots() as u64) as usize;
        let name = self.fleet.name(slot);
        self.cluster
            .events
            .line(&format!("fault beside: {kind} at {:?}", self.cluster.world.now()));
        let made = match kind {
            Fault::ServerKill => {
                let shard = self.a_shard();
                self.cluster.kill_shard(shard);
                self.cluster.start_shard(shard);
                1
            }
            Fault::ClientKill => {
                let downtime = Duration::from_millis(overlap.below(2_000));
                self.fleet.kill(slot, downtime);
                1
            }
            Fault::ProcessKill => u64::from(self.fleet.kill_process(slot, overlap.next_u64())),
            Fault::Silence => {
                let time = Duration::from_millis(overlap.between(1_000, 15_000));
                self.fleet.silence(slot, time, overlap.one_in(2));
                1
            }
            _ => {
                self.cluster.world.cut(&name, &self.a_server());
                1
            }
        };
        let mut all = self.made.borrow_mut();
        *all.entry(kind).or_default() += made;
        *all.entry(Fault::Together).or_default() += made;
    }

    async fn strike(&mut self, kind: Fault) {
        match kind {
            Fault::Cut => {
                let (server, client) = (self.a_server(), self.client());
                self.cluster.world.cut(&client, &server);
            }
            Fault::ServerKill | Fault::ServerPower => {
                let shards = self.some_shards();
                self.restart(kind, &shards).await;
            }
            Fault::PeerCut => self.cut_peers().await,
            Fault::ClientKill => {
                let (slot, downtime) = (self.slot(), self.downtime());
                self.fleet.kill(slot, downtime);
            }
            Fault::ProcessKill => self.kill_processes().await,
            Fault::Signal => {
                // A signal counts when a process gets it.
                self.made.borrow_mut().entry(kind).and_modify(|made| *made -= 1);
                for slot in 0..self.fleet.slots() {
                    let most = [2_000, 20_000, 500_000][self.rng.below(3) as usize];
                    self.fleet.signal_lock_wait(slot, Duration::from_micros(self.rng.below(most)));
                }
            }
            Fault::Silence => {
                let (slot, stopped) = (self.slot(), self.rng.one_in(2));
                let time = Duration::from_millis(self.rng.between(1_000, 15_000));
                self.fleet.silence(slot, time, stopped);
            }
            Fault::Power => self.power().await,
            Fault::DataEio => self.fail_data().await,
            Fault::Death => self.device_dies().await,
            Fault::Takeover => self.take_over().await,
            Fault::Drain => self.drain_a_zone(),
            Fault::TargetKill | Fault::TargetPower => self.restart_target(kind).await,
            Fault::TargetCut => self.cut_target().await,
            Fault::Migrate => self.migrate(),
            Fault::MoveDirectory => self.move_directory(),
            Fault::MetaEio => self.fail_meta().await,
            Fault::Damage => self.damage_meta().await,
            Fault::OneWay if self.kinds.contains(&Fault::ServerKill) && self.rng.one_in(3) => {
                self.lose_answers().await;
            }
            Fault::OneWay | Fault::Partition | Fault::Stall | Fault::LongStall => {
                self.stall(kind).await;
            }
            Fault::Mute => self.mute_server().await,
            Fault::ServerPause => {
                let server = self.a_server();
                self.cluster.world.pause(&server);
                self.pause(15_000).await;
                self.cluster.world.resume(&server);
            }
            Fault::ClockJump => {
                let server = self.a_server();
                let host = if self.rng.one_in(3) { server } else { self.client() };
                let seconds = self.rng.below(200_000) as i64 - 100_000;
                self.cluster.world.jump_wall(&host, seconds);
            }
            // Faults of the whole run, see `run`.
            Fault::Drift | Fault::Uneven | Fault::Space => {}
            Fault::ClusterPower | Fault::Together | Fault::Pairs => {}
        }
    }

    async fn mute_server(&mut self) {
        let (server, slot) = (self.a_server(), self.slot());
        // Other clients that reconnect meanwhile get no answer either.
        self.fleet.all_may_lose(MUTE);
        self.cluster.world.mute(&server, true);
        self.cluster.world.cut(&self.fleet.name(slot), &server);
        self.pause(1500).await;
        self.cluster.world.mute(&server, false);
    }

    /// A zone begins to drain, unless one does.
    fn drain_a_zone(&mut self) {
        let zone = drains::drawn_zone(&self.cluster, &mut self.rng);
        if self.cluster.zones().count() < 2
            || !Drain::drawn(zone, &mut self.rng).begin(&self.cluster)
        {
            // The caller counted it.
            self.made.borrow_mut().entry(Fault::Drain).and_modify(|made| *made -= 1);
        }
    }

    /// Kills one or several waiting processes of a client.
    async fn kill_processes(&mut self) {
        let (slot, most) = (self.slot(), 1 + self.rng.below(KILLED_MAX));
        let (mut killed, mut tries) = (0, 0);
        while killed < most && tries < KILL_TRIES {
            match self.fleet.kill_process(slot, self.rng.next_u64()) {
                true => killed += 1,
                false => tries += 1,
            }
            self.pause(1).await;
        }
        // The caller counted one.
        let made = &mut *self.made.borrow_mut();
        made.entry(Fault::ProcessKill).and_modify(|made| *made = *made + killed - 1);
    }

    /// The server's answers to a client are lost before the server is killed; so, perhaps, are
    /// answers of the next server.
    async fn lose_answers(&mut self) {
        let (shard, slot) = (self.a_shard(), self.slot());
        let (client, server) = (self.fleet.name(slot), self.cluster.server_of(shard));
        self.block_begins(slot);
        self.cluster.world.block(&server, &client);
        self.pause(40).await;
        self.cluster.kill_shard(shard);
        self.cluster.start_shard(shard);
        self.cluster.world.heal_between(&server, &client);
        self.block_ends(slot);
        for _ in 0..self.rng.below(12) {
            let most = [1, 1, 20][self.rng.below(3) as usize];
            self.pause(most).await;
            self.cluster.world.cut(&client, &self.cluster.server_of(shard));
        }
    }

    /// Cuts the power of some or all hosts.
    async fn power(&mut self) {
        let all = self.rng.one_in(3);
        let server = all || self.rng.one_in(2);
        for slot in 0..self.fleet.slots() {
            let downtime = self.downtime();
            if all || self.rng.one_in(2) {
                self.fleet.kill(slot, downtime);
            }
        }
        if all {
            self.cluster.kill_servers();
            let stuck = self.cluster.has_stuck();
            self.history.happened(NOBODY, Op::LostPower { stuck });
            // The administrator starts another one.
            self.cluster.world.kill(MOVER);
            let data = self.cluster.data_lose_power(&mut self.rng);
            self.cluster.replace_data(data);
            self.cluster.targets_lose_power(&mut self.rng);
            self.cluster.start_targets();
        }
        if server {
            let every = || self.cluster.all_shards().collect();
            let shards = if all { every() } else { self.some_shards() };
            self.restart(Fault::ServerPower, &shards).await;
        }
    }

    /// Restarts the servers of these shards once, or again during recovery.
    async fn restart(&mut self, kind: Fault, shards: &[ShardId]) {
        loop {
            shards.iter().for_each(|shard| self.cluster.kill_shard(*shard));
            let mut checks = Vec::new();
            for &shard in shards {
                let meta = self.cluster.meta_of(shard);
                if kind == Fault::ServerPower || self.rng.one_in(4) {
                    checks.push((shard, meta.after_power_cut(&mut self.rng)));
                }
            }
            if self.rng.one_in(3) {
                self.pause(500).await;
            }
            for (shard, image) in checks {
                if let Err(text) = crate::cluster::fsck(image.fork(), self.seed) {
                    self.cluster.events.broken(Invariant::PowerCut, &text);
                }
                if kind == Fault::ServerPower {
                    self.cluster.replace_meta(shard, image);
                }
            }
            shards.iter().for_each(|shard| self.cluster.start_shard(*shard));
            if !self.rng.one_in(3) {
                return;
            }
            let again_soon = self.cluster.starts.get().is_multiple_of(2);
            self.pause(if again_soon { 20 } else { 300 }).await;
        }
    }
}

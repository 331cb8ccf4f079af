//! What a run is made of: its plan, from which everything random follows.
//!
//! Invariants:
//! - equal plans give equal runs; [`Plan::command`] is a command line that repeats the run;
//! - what a plan does not use draws nothing: other plans keep their meaning.

use std::rc::Rc;

use channel::Mode;
use commitment::{Guards, Protocol};
use env::sim::SimRng;
use types::Duration;

use crate::cluster::{self, Cluster, Format, Making};
use crate::faults::Fault;
use crate::fleet::Fleet;
use crate::history::History;
use crate::keys::Keys;
use crate::script::{Keep, Script, Workload};
use crate::zones::{Drawn, Sizes};
use crate::{committing, fields, placing};

/// Separates the random numbers of fences from others.
const FENCES: u64 = 0x6665_6e63_6500_0000;
/// Separates the random numbers of commitment protocols from others.
const PROTOCOLS: u64 = 0x7072_6f74_6f00_0000;

/// What to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Everything random follows from it.
    pub seed: u64,
    /// Number of clients.
    pub clients: usize,
    /// Processes of each client.
    pub processes: usize,
    /// Executors of each client; its processes are spread over them.
    pub executors: usize,
    /// Operations of all processes together, approximately.
    pub operations: u64,
    /// Kinds of faults to inject.
    pub faults: Vec<Fault>,
    /// The steps to run; `None`: all of them.
    pub keep: Option<Keep>,
    /// What operations do.
    pub workload: Workload,
    /// Virtual time over which the operations are spread; `None`: without pauses.
    pub time: Option<Duration>,
    /// Selects other timing of the network and the disks; 0: that of the seed.
    pub timing: u64,
    /// The file system has the default format, not that of the seed.
    pub usual_format: bool,
    /// Only operations of the workload's table, without the extra ones.
    pub usual_operations: bool,
    /// The judge searches all orders of the steps and ignores the observed order.
    pub all_orders: bool,
    /// Data zones.
    pub zones: usize,
    /// Each device takes the time of a hard disk, of flash, or that of the world, by the seed.
    pub timed: bool,
    /// Format and devices follow from this instead of the seed.
    pub devices: Option<u64>,
    /// The server's lease.
    pub lease: Duration,
    /// What sessions prove; `None`: nothing.
    pub keys: Option<Mode>,
    /// Servers that stand by beside the first one.
    pub standbys: usize,
    /// Draw from this how clients choose places, and the root directory's layout; 0: the usual.
    pub placing: u64,
    /// Object storage targets, on which all files lie; 0: all lie on data zones.
    pub osts: usize,
    /// Shards, each with a metadata server and as many data zones as `zones` says.
    pub shards: usize,
    /// What protects operations of several shards. A test leaves something out, and expects a
    /// violation.
    pub guards: Guards,
}

impl Plan {
    /// The usual run of a seed, with all faults.
    pub fn new(seed: u64) -> Plan {
        let mut rng = SimRng::new(seed ^ 0x5eed);
        Plan {
            seed,
            clients: rng.between(1, 3) as usize,
            processes: rng.between(1, 2) as usize,
            executors: 1,
            operations: 300,
            faults: Fault::of_one_server(),
            keep: None,
            workload: Workload::Mixed,
            time: None,
            timing: 0,
            usual_format: false,
            usual_operations: false,
            all_orders: false,
            zones: 1,
            timed: false,
            devices: None,
            lease: cluster::LEASE,
            keys: None,
            standbys: 0,
            placing: 0,
            osts: 0,
            shards: 1,
            guards: Guards::ALL,
        }
    }

    /// Does this run have a whole-run fault that one seed in `n` has?
    pub(crate) fn has(&self, fault: Fault, n: u64) -> bool {
        self.faults.contains(&fault) && SimRng::new(self.seed ^ fault as u64).one_in(n)
    }

    pub(crate) fn fleet(&self, cluster: &Cluster, history: &History, script: &Rc<Script>) -> Fleet {
        let (clients, processes) = (self.clients, self.processes);
        let each = self.operations_each();
        let fleet = Fleet::new(cluster, history, script, clients, processes, each);
        if self.has_fences() {
            fleet.allow_fences();
        }
        fleet
    }

    /// May the server fence evicted clients? One run in four of those in which clients are killed.
    pub(crate) fn has_fences(&self) -> bool {
        self.faults.contains(&Fault::ClientKill) && SimRng::new(self.seed ^ FENCES).one_in(4)
    }

    /// Is a device small enough to fill up? Half of the runs with `space` have such a one.
    pub(crate) fn is_short(&self) -> bool {
        self.has(Fault::Space, 2)
    }

    pub(crate) fn configure(&self, cluster: &mut Cluster) {
        (cluster.lease, cluster.keys) = (self.lease, self.its_keys());
        cluster.allocation = placing::allocation(self.placing);
        if self.workload != Workload::Fields {
            // The bound on calls on a shared page knows the usual ways only.
            cluster.commit = committing::commit(self.placing);
            cluster.workers = committing::workers(self.placing);
        }
        cluster.guards = self.guards;
        if self.shards > 1 {
            let mut rng = SimRng::new(self.seed ^ PROTOCOLS);
            cluster.protocol = Protocol::ALL[rng.below(Protocol::ALL.len() as u64) as usize];
        }
        cluster.stand_by(self.standbys, self.world_seed());
        let small = self.is_short() && !self.is_short_of_metadata();
        cluster.begin_targets(self.osts, small.then_some(self.seed));
    }

    pub(crate) fn its_keys(&self) -> Option<Keys> {
        self.keys.map(|mode| Keys::new(mode, self.seed))
    }

    pub(crate) fn its_devices(&self) -> Drawn {
        let seed = self.devices.unwrap_or(self.seed);
        Drawn { seed, zones: self.zones, short: self.is_short(), clients: self.clients }
    }

    /// Sizes of the devices.
    pub(crate) fn sizes(&self) -> Sizes {
        self.its_devices().sizes()
    }

    /// Is the metadata zone small enough to fill up?
    pub fn is_short_of_metadata(&self) -> bool {
        self.sizes().is_short_of_metadata()
    }

    /// The format of the file system. A small metadata zone has the default slots.
    pub(crate) fn format(&self) -> Format {
        let seed = self.devices.unwrap_or(self.seed);
        let format = if self.usual_format { Format::default() } else { Format::of(seed) };
        let short = self.is_short_of_metadata();
        Format { slots: if short { Default::default() } else { format.slots }, ..format }
    }

    /// Do no faults come but those of data devices?
    pub(crate) fn only_devices_fail(&self) -> bool {
        let devices = [Fault::DataEio, Fault::Death, Fault::Stall, Fault::LongStall];
        let one = self.osts == 0 && self.shards == 1;
        self.zones > 1 && one && self.faults.iter().all(|fault| devices.contains(fault))
    }

    pub(crate) fn making(&self) -> Making {
        Making {
            uneven: self.has(Fault::Uneven, 3),
            time: self.time.unwrap_or_default(),
            sizes: self.sizes(),
            shards: self.shards,
            format: self.format(),
            timed: self.timed.then(|| self.its_devices()),
        }
    }

    /// Operations of each process.
    pub fn operations_each(&self) -> u64 {
        self.operations.div_ceil((self.clients * self.processes) as u64)
    }

    /// A step of `keep` that does not exist, as text.
    pub fn kept_beyond(&self) -> Option<String> {
        self.keep.as_ref()?.beyond(self.clients, self.processes, self.operations_each())
    }

    pub(crate) fn script(&self) -> Script {
        let each = u32::try_from(self.operations_each()).unwrap_or(u32::MAX);
        let spacing = self.time.map_or(Duration::ZERO, |time| time / each.max(1));
        // A store into a hole cannot return ENOSPC.
        let maps = !self.is_short();
        let kills = self.faults.contains(&Fault::ProcessKill);
        let (keep, workload) = (self.keep.clone(), self.workload);
        let extra_operations = !self.usual_operations;
        let has_faults = !self.faults.is_empty();
        let hand_over = if self.timed { self.its_devices().hand_over() } else { Duration::ZERO };
        let page_within = fields::WITHIN + hand_over * self.clients as u32;
        Script {
            seed: self.seed,
            keep,
            workload,
            extra_operations,
            spacing,
            maps,
            kills,
            has_faults,
            page_within,
            shards: self.shards,
        }
    }

    /// The layout of the root directory; `None`: the usual one.
    pub(crate) fn layout(&self) -> Option<String> {
        let placing = placing::layout(self.placing, self.zones);
        if self.shards == 1 {
            return placing;
        }
        Some(format!("{} mds=spread", placing.unwrap_or_default()).trim_start().to_owned())
    }

    /// The seed of the world; its last bit selects the scheduling of tasks.
    pub(crate) fn world_seed(&self) -> u64 {
        if self.timing == 0 {
            return self.seed;
        }
        SimRng::new(self.seed ^ self.timing.rotate_right(8)).next_u64()
    }

    /// The command line that repeats the run.
    pub fn command(&self) -> String {
        let faults: Vec<&str> = self.faults.iter().map(|fault| fault.name()).collect();
        let faults = if faults.is_empty() { "none".to_owned() } else { faults.join(",") };
        let mut text = format!(
            "redbud sim --seed {} --clients {} --processes {} --operations {} --faults {faults}",
            self.seed, self.clients, self.processes, self.operations
        );
        if let Some(keep) = &self.keep {
            text += &format!(" --keep {keep}");
        }
        if self.workload != Workload::Mixed {
            text += &format!(" --workload {}", self.workload.name());
        }
        if let Some(time) = self.time {
            text += &format!(" --hours {}", time.as_secs_f64() / 3600.0);
        }
        if self.executors != 1 {
            text += &format!(" --executors {}", self.executors);
        }
        if self.timing != 0 {
            text += &format!(" --timing {}", self.timing);
        }
        if self.usual_format {
            text += " --usual-format";
        }
        if self.usual_operations {
            text += " --usual-operations";
        }
        if self.all_orders {
            text += " --all-orders";
        }
        if self.zones != 1 {
            text += &format!(" --zones {}", self.zones);
        }
        if self.timed {
            text += " --timed-disks";
        }
        if let Some(devices) = self.devices {
            text += &format!(" --devices {devices}");
        }
        if self.lease != cluster::LEASE {
            text += &format!(" --lease {}s", self.lease.as_secs());
        }
        if let Some(mode) = self.keys {
            text += &format!(" --security {mode}");
        }
        if self.standbys != 0 {
            text += &format!(" --standbys {}", self.standbys);
        }
        if self.placing != 0 {
            text += &format!(" --placing {}", self.placing);
        }
        if self.osts != 0 {
            text += &format!(" --osts {}", self.osts);
        }
        if self.shards != 1 {
            text += &format!(" --mds {}", self.shards);
        }
        text
    }
}

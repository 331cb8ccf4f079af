//! What goes wrong, and when.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use env::sim::SimRng;
use types::Duration;

use crate::cluster::{Cluster, SERVER};
use crate::log;
use crate::script::{Script, Step};

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// The connection of a client breaks.
    Cut,
    /// Nothing passes between a client and the server for less than a lease.
    Partition,
    /// The server's process is killed and started again, at once or later, also during recovery.
    ServerKill,
    /// The server's host loses power: what its metadata disk had not flushed survives in part.
    ServerPower,
    /// A disk answers nothing for a while.
    Stall,
    /// Once everything is synced all hosts and disks lose power at once.
    ClusterPower,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Fault; 6] = [
        Fault::Cut,
        Fault::Partition,
        Fault::ServerKill,
        Fault::ServerPower,
        Fault::Stall,
        Fault::ClusterPower,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Cut => "cut",
            Fault::Partition => "partition",
            Fault::ServerKill => "server-kill",
            Fault::ServerPower => "server-power",
            Fault::Stall => "stall",
            Fault::ClusterPower => "cluster-power",
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

/// One fault comes in the time of so many operations of a process, where these are spread.
const FAULT: u64 = 8;

/// Makes faults until it is told to end.
pub struct Injector {
    /// The cluster.
    pub cluster: Cluster,
    /// Names of the clients' nodes.
    pub clients: Vec<String>,
    /// Kinds to choose from.
    pub kinds: Vec<Fault>,
    /// Which faults are made.
    pub script: Rc<Script>,
    /// The chances of the fault at hand.
    pub rng: SimRng,
    /// Set when the safety phase is over.
    pub ended: Rc<Cell<bool>>,
    /// Faults made.
    pub made: Rc<Cell<u64>>,
    /// Seed of the checks of images.
    pub seed: u64,
}

impl Injector {
    /// Runs until `ended` is set; leaves everything healed.
    pub async fn run(mut self) {
        if self.kinds.is_empty() {
            return;
        }
        for index in 0.. {
            if !self.script.has_faults_from(index) {
                break;
            }
            let step = Step::Fault(index);
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
            self.made.set(self.made.get() + 1);
            let kind = self.kinds[self.rng.below(self.kinds.len() as u64) as usize];
            log::line(&format!("fault: {kind} at {:?}", self.cluster.world.now()));
            self.strike(kind).await;
        }
        self.cluster.world.heal();
    }

    fn client(&mut self) -> String {
        self.clients[self.rng.below(self.clients.len() as u64) as usize].clone()
    }

    async fn pause(&mut self, most_ms: u64) {
        let pause = self.rng.below(most_ms * 1000);
        self.cluster.env.sleep(Duration::from_micros(pause)).await;
    }

    async fn strike(&mut self, kind: Fault) {
        match kind {
            Fault::Cut => {
                let client = self.client();
                self.cluster.world.cut(&client, SERVER);
            }
            Fault::Partition => {
                let client = self.client();
                self.cluster.world.partition(&client, SERVER);
                self.pause(2000).await;
                self.cluster.world.heal();
            }
            Fault::ServerKill | Fault::ServerPower => self.restart(kind).await,
            Fault::Stall => {
                let disk =
                    if self.rng.one_in(2) { self.cluster.meta() } else { self.cluster.data() };
                disk.stall(true);
                self.pause(1500).await;
                disk.stall(false);
            }
            // Comes at the end, see `run`.
            Fault::ClusterPower => {}
        }
    }

    /// Once, or again during recovery.
    async fn restart(&mut self, kind: Fault) {
        loop {
            self.cluster.world.kill(SERVER);
            let meta = self.cluster.meta();
            let check = if kind == Fault::ServerPower || self.rng.one_in(4) {
                Some(meta.after_power_cut(&mut self.rng))
            } else {
                None
            };
            if self.rng.one_in(3) {
                self.pause(500).await;
            }
            if let Some(image) = check {
                if let Err(text) = crate::cluster::fsck(image.fork(), self.seed) {
                    log::violation(&format!("fsck after a power cut: {text}"));
                }
                if kind == Fault::ServerPower {
                    self.cluster.replace(Some(image), None);
                }
            }
            self.cluster.start_server();
            if !self.rng.one_in(3) {
                return;
            }
            let again_soon = self.cluster.starts.get().is_multiple_of(2);
            self.pause(if again_soon { 20 } else { 300 }).await;
        }
    }
}

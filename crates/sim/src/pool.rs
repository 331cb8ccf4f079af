//! The one pool of seeds: everything about a run is drawn from its seed. The gate runs the first
//! 2,500 seeds of it, campaigns go on from there.
//!
//! Invariants:
//! - the plan of a seed follows from the seed alone;
//! - [`GROUP`] seeds in a row share format and devices, because formatting costs as much as a run.

use env::sim::SimRng;
use types::Duration;

use crate::faults::Fault;
use crate::keys;
use crate::placing;
use crate::plan::Plan;
use crate::script::Workload;

/// Seeds in a row with the same format and devices.
const GROUP: u64 = 40;
/// Separates the random numbers of the pool from others.
const POOL: u64 = 0x706f_6f6c_0000_0000;
/// Data zones of a group: three in eight have one.
const ZONES: [usize; 8] = [1, 1, 1, 2, 3, 4, 6, 8];
/// Leases in seconds. Shorter ones would end in faults that no client may feel.
const LEASES: [u64; 4] = [5, 5, 8, 15];

/// Separates the random numbers of standbys from others.
const STANDBYS: u64 = 0x7374_616e_6400_0000;
/// One of so many seeds that would have all faults is about standbys instead.
const STANDBYS_EACH: u64 = 10;

/// Separates the random numbers of drains from others.
const DRAINS: u64 = 0x6472_6169_6e00_0000;
/// One of so many seeds with several zones drains some of them.
const DRAINS_EACH: u64 = 3;

/// Separates the random numbers of targets from others.
const TARGETS: u64 = 0x6f73_7473_0000_0000;
/// One of so many seeds whose subject allows it puts all files on object storage targets.
const TARGETS_EACH: u64 = 4;
/// Of those with several kinds of faults, one of so many moves files between blocks and objects.
const MIGRATES_EACH: u64 = 3;

/// Of so many seeds of several shards one moves directories.
const MOVES_EACH: u64 = 3;
/// Separates the random numbers of the pool of several shards from others.
const SHARDS: u64 = 0x7368_6172_6473_0001;

/// What a run of the pool is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// All faults together.
    Everything,
    /// Data devices that fail, alone or with few other faults.
    DataErrors,
    /// Full devices, and no other fault.
    Space,
    /// Damage of the metadata device.
    Damage,
    /// Content, and clients that fall silent.
    Silence,
    /// Processes that are killed, or get signals.
    Processes,
    /// No faults.
    Calm,
    /// Processes of several clients in one page.
    Fields,
    /// Data devices that die, fail or stall, and no other fault.
    Zones,
    /// Operations spread over an hour.
    Hour,
    /// A dozen clients.
    Dozen,
    /// A dozen clients in a full metadata zone.
    Reservations,
    /// Servers that stand by for each other.
    Standbys,
}

impl Subject {
    /// Of a hundred seeds so many, on average, have the subject. The last ones share a percent.
    const WEIGHTS: [(Subject, u64); 9] = [
        (Subject::Everything, 48),
        (Subject::DataErrors, 8),
        (Subject::Space, 5),
        (Subject::Damage, 1),
        (Subject::Silence, 10),
        (Subject::Processes, 7),
        (Subject::Calm, 3),
        (Subject::Fields, 5),
        (Subject::Zones, 12),
    ];

    /// May zones be drained beside what it is about?
    fn has_drains(self) -> bool {
        match self {
            Subject::Everything | Subject::DataErrors | Subject::Space => true,
            Subject::Silence | Subject::Processes | Subject::Hour | Subject::Dozen => true,
            // Times of calls are judged there, and a mover keeps a file for up to 100 ms.
            Subject::Zones | Subject::Calm | Subject::Fields => false,
            Subject::Damage | Subject::Reservations | Subject::Standbys => false,
        }
    }

    /// May all files lie on targets?
    fn has_targets(self) -> bool {
        match self {
            Subject::Everything | Subject::Silence | Subject::Processes => true,
            Subject::Calm | Subject::Hour | Subject::Dozen | Subject::Standbys => true,
            Subject::DataErrors | Subject::Space => true,
            // They are about blocks of data zones, or judge the times of calls on these.
            Subject::Zones | Subject::Fields => false,
            Subject::Damage | Subject::Reservations => false,
        }
    }

    fn of(rng: &mut SimRng) -> Subject {
        let mut roll = rng.below(100);
        for (subject, weight) in Subject::WEIGHTS {
            if roll < weight {
                return subject;
            }
            roll -= weight;
        }
        [Subject::Hour, Subject::Dozen, Subject::Reservations][rng.below(3) as usize]
    }
}

impl Plan {
    /// The plan of a seed of the pool, and what it is about.
    pub fn drawn(seed: u64) -> (Plan, Subject) {
        let mut rng = SimRng::new(seed ^ POOL);
        let group = seed / GROUP;
        let zones = ZONES[SimRng::new(group ^ POOL).below(ZONES.len() as u64) as usize];
        let subject = match Subject::of(&mut rng) {
            Subject::Everything if SimRng::new(seed ^ STANDBYS).one_in(STANDBYS_EACH) => {
                Subject::Standbys
            }
            subject => subject,
        };
        let long = seed.is_multiple_of(8);
        let plan = Plan {
            // Short histories find as much in less time; some are long.
            operations: if long { 300 } else { 120 },
            executors: 1 + rng.below(3) as usize,
            timed: rng.one_in(3),
            lease: Duration::from_secs(LEASES[rng.below(4) as usize]),
            zones,
            devices: Some(group),
            keys: keys::drawn(seed),
            placing: placing::drawn(seed),
            ..Plan::new(seed)
        };
        let mut plan = plan.about(subject, &mut rng);
        if subject != Subject::Zones {
            // The model does not know yet what a dead device may lose in a later power cut.
            plan.faults.retain(|fault| *fault != Fault::Death);
        }
        // Random numbers of its own: the other seeds draw what they drew without targets.
        let mut targets = SimRng::new(seed ^ TARGETS);
        if subject.has_targets() && targets.one_in(TARGETS_EACH) {
            let mut plan = plan.on_targets(1 + targets.below(3) as usize);
            let has_others = plan.faults.len() > 2 && subject != Subject::Standbys;
            if has_others && targets.one_in(MIGRATES_EACH) {
                plan.faults.push(Fault::Migrate);
            }
            return (plan, subject);
        }
        let drains = plan.zones > 1 && subject.has_drains();
        if drains && SimRng::new(seed ^ DRAINS).one_in(DRAINS_EACH) {
            plan.faults.push(Fault::Drain);
        }
        (plan, subject)
    }

    /// The plan of a seed of the pool of two and three shards: without faults, with those of
    /// servers, with those of sessions, or with all.
    pub fn of_shards(seed: u64) -> Plan {
        let mut rng = SimRng::new(seed ^ SHARDS);
        let faults = match rng.below(8) {
            0 => Vec::new(),
            1..3 => vec![Fault::ServerKill, Fault::ServerPower, Fault::PeerCut],
            3..5 => vec![Fault::ServerKill, Fault::ClientKill, Fault::Silence, Fault::PeerCut],
            _ => Fault::of_several_shards(),
        };
        let workload = if rng.one_in(2) { Workload::Names } else { Workload::Mixed };
        let mut faults = faults;
        if seed.is_multiple_of(MOVES_EACH) {
            faults.push(Fault::MoveDirectory);
        }
        let shards = 2 + rng.below(2) as usize;
        let devices = Some(seed / GROUP);
        Plan { shards, faults, workload, devices, operations: 120, ..Plan::new(seed) }
    }

    /// The same run with all files on so many targets. Where there are faults but those of clients
    /// and processes, there are those of targets.
    pub fn on_targets(self, osts: usize) -> Plan {
        let few = self.faults.len() < 3;
        let faults = if few { self.faults } else { Fault::with_targets(&self.faults) };
        Plan { osts, faults, ..self }
    }

    /// Changes what the subject asks for.
    fn about(self, subject: Subject, rng: &mut SimRng) -> Plan {
        let alone = rng.one_in(2);
        let none = Vec::new();
        match subject {
            Subject::Everything => self,
            Subject::DataErrors if alone => Plan { faults: vec![Fault::DataEio], ..self },
            Subject::DataErrors => {
                let faults = vec![Fault::DataEio, Fault::Stall, Fault::ServerKill, Fault::Cut];
                Plan { faults, ..self }
            }
            Subject::Space => Plan { faults: vec![Fault::Space], ..self },
            Subject::Damage => Plan { faults: vec![Fault::Damage, Fault::ServerPower], ..self },
            Subject::Silence => {
                let (faults, workload) = (vec![Fault::Silence], Workload::Content);
                Plan { faults, workload, clients: 2, operations: 300, ..self }
            }
            Subject::Processes => {
                let faults = vec![Fault::ProcessKill, Fault::Signal];
                let workload = if alone { Workload::Content } else { Workload::Mixed };
                Plan { faults, workload, operations: 200, ..self }
            }
            Subject::Calm if alone => Plan { faults: none, clients: 1, processes: 1, ..self },
            Subject::Calm => Plan { faults: none, ..self },
            Subject::Fields => {
                let faults = if alone { none } else { self.faults.clone() };
                Plan { faults, workload: Workload::Fields, operations: 150, ..self }
            }
            Subject::Zones => self.about_zones(rng),
            Subject::Hour => {
                let workload = Workload::ALL[rng.below(4) as usize];
                let time = (!alone).then_some(Duration::from_secs(3600));
                Plan { workload, time, operations: 60, ..self }
            }
            Subject::Dozen => {
                let faults = if alone { none } else { self.faults.clone() };
                Plan { faults, clients: 12, operations: 600, executors: 1, ..self }
            }
            Subject::Reservations => self.about_reservations(alone, rng),
            Subject::Standbys => self.about_standbys(alone),
        }
    }

    /// Servers that stand by for each other: takeovers alone, or with others.
    fn about_standbys(self, alone: bool) -> Plan {
        let faults = if alone { vec![Fault::Takeover] } else { Fault::of_several_servers() };
        let standbys = 1 + (self.seed % 2) as usize;
        Plan { faults, standbys, timed: false, ..self }
    }

    /// Several zones, of which some fail, die or stall. Each client begins in another zone.
    fn about_zones(self, rng: &mut SimRng) -> Plan {
        let kinds = [Fault::Death, Fault::DataEio, Fault::Stall, Fault::LongStall];
        let first = kinds[rng.below(4) as usize];
        let mut faults = vec![first];
        if rng.one_in(2) {
            faults.extend(kinds.into_iter().filter(|kind| *kind != first));
        }
        let workload = if rng.one_in(2) { Workload::Content } else { Workload::Mixed };
        let zones = if self.zones > 1 { self.zones } else { 4 };
        Plan { faults, workload, zones, clients: 3, operations: 150, ..self }
    }

    /// A metadata zone that fills up, with as many kept replies as clients may have.
    fn about_reservations(self, alone: bool, rng: &mut SimRng) -> Plan {
        let more = if alone { vec![] } else { vec![Fault::ClientKill, Fault::ServerKill] };
        let plan = Plan {
            clients: 8 + rng.below(5) as usize,
            processes: 4,
            operations: 800,
            workload: Workload::Names,
            faults: [vec![Fault::Space], more].concat(),
            ..self
        };
        let with = |devices| Plan { devices: Some(devices), ..plan.clone() };
        let first = plan.devices.unwrap_or_default();
        let mut all = (first..first + GROUP).map(with);
        all.find(Plan::is_short_of_metadata).unwrap_or(plan)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn seeds_in_a_row_share_devices_and_have_every_subject() {
        let plans: Vec<(Plan, Subject)> = (0..2000).map(Plan::drawn).collect();
        let subjects: BTreeSet<Subject> = plans.iter().map(|(_, subject)| *subject).collect();
        assert_eq!(subjects.len(), Subject::WEIGHTS.len() + 4, "{subjects:?}");
        let zones: BTreeSet<usize> = plans.iter().map(|(plan, _)| plan.zones).collect();
        assert_eq!(zones, ZONES.into_iter().collect());
        assert_eq!(plans[40].0.devices, plans[79].0.devices);
        assert_eq!(plans[7], Plan::drawn(7));
        let drains = plans.iter().filter(|(plan, _)| plan.faults.contains(&Fault::Drain));
        let drained: BTreeSet<(Subject, usize)> =
            drains.map(|(plan, subject)| (*subject, plan.zones)).collect();
        let fits = |(subject, zones): &(Subject, usize)| *zones > 1 && subject.has_drains();
        assert!(drained.len() > 9 && drained.iter().all(fits), "{drained:?}");
        let on_targets = plans.iter().filter(|(plan, _)| plan.osts > 0);
        let on_targets: Vec<_> = on_targets.collect();
        assert!((200..500).contains(&on_targets.len()), "{} of 2000", on_targets.len());
        let counts: BTreeSet<usize> = on_targets.iter().map(|(plan, _)| plan.osts).collect();
        assert_eq!(counts, (1..=3).collect());
        let with = |kind: Fault| on_targets.iter().filter(move |of| of.0.faults.contains(&kind));
        for kind in [Fault::DataEio, Fault::Space, Fault::TargetPower] {
            assert!(with(kind).count() > 100, "{kind}");
        }
        let migrating = with(Fault::Migrate).count();
        assert!((40..150).contains(&migrating), "{migrating} of {}", on_targets.len());
        let sound = |(plan, subject): &(Plan, Subject)| {
            subject.has_targets() && !plan.faults.contains(&Fault::Drain)
        };
        assert!(on_targets.into_iter().all(sound));
    }
}

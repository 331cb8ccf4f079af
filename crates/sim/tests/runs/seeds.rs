//! Seeds of the gate: the first 1,500 of the pool (`redbud sim --pool`), and seeds that failed
//! before there was a pool.
//!
//! `REDBUD_SEEDS=100000 cargo test --release -p redbud-sim --test runs seeds` runs more of them,
//! `REDBUD_FAULTS=cut,data-eio` only with these faults, and `REDBUD_FIRST=5000` from that seed on.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use env::sim::SimDisk;
use redbud_sim::{DamageCounts, Fault, Plan, Report, Subject, Verdicts, run, run_mutated};

pub fn asked(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The number of seeds, unless the environment asks for another.
fn seeds(usual: u64) -> u64 {
    asked("REDBUD_SEEDS").unwrap_or(usual)
}

/// Runs `work` for every number below `count`, on all processors.
pub fn for_each(count: u64, work: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    work(index);
                }
            });
        }
    });
}

pub fn check(plan: &Plan) -> Report {
    let report = run(plan);
    if let Some(violation) = &report.violation {
        for line in &violation.log {
            eprintln!("log: {line}");
        }
        if std::env::var("REDBUD_HISTORY").is_ok() {
            violation.history.iter().for_each(|line| eprintln!("history: {line}"));
        }
        panic!("{}: {}\n{}", violation.invariant, violation.text, plan.command());
    }
    assert!(report.operations > 0, "nothing was done: {}", plan.command());
    report
}

/// Seeds of the pool.
const SEEDS: u64 = 1500;
/// Every so many seeds both judges judge the history and mutants of it.
const MUTATED: u64 = 40;
/// Every so many seeds run twice.
const TWICE: u64 = 100;

/// The plan of a seed of the pool, and what it is about; `REDBUD_FAULTS` replaces its faults.
fn plan(seed: u64) -> (Plan, Subject) {
    let (mut plan, subject) = Plan::drawn(seed);
    if let Ok(text) = std::env::var("REDBUD_FAULTS") {
        plan.faults = text.split(',').map(|name| name.parse().expect("a fault's name")).collect();
    }
    (plan, subject)
}

/// Sums over seeds.
#[derive(Clone, Default, Debug)]
struct Sums {
    seeds: u64,
    faults: u64,
    restarts: u64,
    takeovers: u64,
    /// Writes of replaced servers that were refused.
    late_writes: u64,
    /// Zones that were emptied, and blocks that were moved out of them.
    emptied: u64,
    moved: u64,
    unjudged: u64,
    stores: u64,
    lost: u64,
    abandoned: u64,
    misled: u64,
    operations: u64,
    racy: u64,
    looks: u64,
    unseen: u64,
    /// Zones that clients wrote.
    zones: u64,
    /// Objects on targets at the end.
    objects: u64,
    damaged: [u64; 5],
    made: BTreeMap<Fault, u64>,
    /// Histories that the search explained, mutants that both judges refused, and histories that
    /// only the search explained.
    verdicts: [u64; 3],
}

impl Sums {
    fn of(report: &Report) -> Sums {
        let (stores, lost) = report.stores;
        let DamageCounts { sound, reported, refused, repaired, unrepairable } = report.damaged;
        Sums {
            seeds: 1,
            faults: report.faults,
            restarts: report.restarts,
            takeovers: report.takeovers.0,
            late_writes: report.takeovers.1,
            emptied: report.drains.emptied,
            moved: report.drains.blocks,
            unjudged: report.unjudged,
            stores,
            lost,
            abandoned: u64::from(report.abandoned.is_some()),
            misled: u64::from(report.misled.is_some()),
            operations: report.operations,
            racy: report.racy,
            looks: report.looks.seen + report.looks.unseen,
            unseen: report.looks.unseen,
            zones: report.zones,
            objects: report.objects,
            damaged: [sound, reported, refused, repaired, unrepairable],
            made: report.made.clone(),
            verdicts: [0; 3],
        }
    }

    fn made(&self, kind: Fault) -> u64 {
        self.made.get(&kind).copied().unwrap_or(0)
    }
}

impl AddAssign<&Sums> for Sums {
    fn add_assign(&mut self, other: &Sums) {
        self.seeds += other.seeds;
        self.faults += other.faults;
        self.restarts += other.restarts;
        self.takeovers += other.takeovers;
        self.late_writes += other.late_writes;
        self.emptied += other.emptied;
        self.moved += other.moved;
        self.unjudged += other.unjudged;
        self.stores += other.stores;
        self.lost += other.lost;
        self.abandoned += other.abandoned;
        self.misled += other.misled;
        self.operations += other.operations;
        self.racy += other.racy;
        self.looks += other.looks;
        self.unseen += other.unseen;
        self.zones += other.zones;
        self.objects += other.objects;
        self.damaged.iter_mut().zip(other.damaged).for_each(|(sum, new)| *sum += new);
        self.verdicts.iter_mut().zip(other.verdicts).for_each(|(sum, new)| *sum += new);
        other.made.iter().for_each(|(kind, count)| *self.made.entry(*kind).or_default() += count);
    }
}

/// Runs a seed of the pool, perhaps twice, perhaps with both judges.
fn run_of_the_pool(seed: u64) -> (Subject, Sums) {
    let (plan, subject) = plan(seed);
    let report = check(&plan);
    let mut sums = Sums::of(&report);
    if seed.is_multiple_of(TWICE) {
        assert_eq!(run(&plan), report, "{}", plan.command());
    }
    if let Some(time) = plan.time {
        assert!(report.time > time / 4, "{:?}: {}", report.time, plan.command());
    }
    if let Some(abandoned) = &report.abandoned {
        println!("not judged from {} on: {}", abandoned.from, plan.command());
    }
    if seed % MUTATED == 1 {
        sums.verdicts = both_judges(&Plan { operations: plan.operations.min(120), ..plan });
    }
    (subject, sums)
}

/// The full search explains everything that the observed order explains, also in mutants, most of
/// which nothing explains.
fn both_judges(plan: &Plan) -> [u64; 3] {
    if plan.clients > 3 {
        return [0; 3];
    }
    let (report, verdicts) = run_mutated(plan, 20);
    assert_eq!(report.violation, None, "{}", plan.command());
    let Verdicts { explained, refused, only_observed, only_searched } = verdicts;
    assert_eq!(only_observed, 0, "{}", plan.command());
    check(&Plan { all_orders: true, ..plan.clone() });
    [explained, refused, only_searched]
}

#[test]
fn pool_of_seeds_holds() {
    let (first, count) = (asked("REDBUD_FIRST").unwrap_or(0), seeds(SEEDS));
    let all = Mutex::new(BTreeMap::<Subject, Sums>::new());
    let failed = Mutex::new(BTreeSet::new());
    for_each(count, |nth| {
        let seed = first + nth;
        match std::panic::catch_unwind(|| run_of_the_pool(seed)) {
            Ok((subject, sums)) => {
                *all.lock().expect("nothing panics here").entry(subject).or_default() += &sums;
            }
            Err(_) => drop(failed.lock().expect("nothing panics here").insert(seed)),
        }
    });
    let failed = failed.into_inner().expect("nothing panics here");
    assert!(failed.is_empty(), "seeds of the pool that failed: {failed:?}");
    let by_subject = all.into_inner().expect("all seeds held");
    let mut sums = Sums::default();
    for (subject, its) in &by_subject {
        println!("{subject:?}: {its:?}");
        sums += its;
    }
    println!("all: {sums:?}");
    // A run without faults, or without explained answers, shows nothing.
    if count < 1000 || std::env::var("REDBUD_FAULTS").is_ok() {
        return;
    }
    judges_can_judge(&sums);
    // The pool of several shards has the others.
    let mut kinds = Fault::ALL.iter().filter(|kind| !Fault::BETWEEN_SHARDS.contains(kind));
    let missing = kinds.find(|kind| !sums.made.contains_key(kind));
    assert!(missing.is_none(), "no seed met {missing:?}");
    assert!(sums.emptied > count / 40 && sums.moved > sums.emptied, "drains empty few zones");
    assert!(sums.objects > count / 20, "few files lie on targets");
    by_subject.iter().for_each(|(subject, sums)| meets_its_faults(*subject, sums));
}

/// The judges judged nearly everything.
fn judges_can_judge(sums: &Sums) {
    let count = sums.seeds;
    assert!(sums.misled < count / 20 + 1, "the observed order explains too few histories");
    assert!(sums.unjudged < count / 20 + 1, "too many searches were given up");
    assert!(sums.racy < sums.operations / 500 + 1, "too many answers were not judged");
    assert!(sums.abandoned < count / 1000 + 2, "too many were not judged to their end");
    assert!(sums.unseen < sums.looks / 100 + 1, "too many looks saw nothing");
    let [explained, refused, only_searched] = sums.verdicts;
    assert!(refused > 200 && explained > 20, "{:?}", sums.verdicts);
    assert!(only_searched < explained, "the observed order explains little: {:?}", sums.verdicts);
}

/// The seeds of a subject meet the faults that it is about.
fn meets_its_faults(subject: Subject, sums: &Sums) {
    let (count, made) = (sums.seeds, |kind| sums.made(kind));
    let holds = match subject {
        // Runs with little space do not store into mappings.
        Subject::Everything => {
            sums.faults > count / 2 && sums.restarts > count / 8 && sums.stores > count / 4
        }
        Subject::DataErrors => made(Fault::DataEio) > count / 4,
        Subject::Space | Subject::Reservations => made(Fault::Space) > count / 2,
        Subject::Damage => can_be_repaired(sums),
        Subject::Silence => sums.stores > 10 * count && sums.lost > 0,
        Subject::Processes => made(Fault::ProcessKill) > count / 2 && made(Fault::Signal) > 0,
        Subject::Calm | Subject::Fields | Subject::Hour => sums.operations > 50 * count,
        Subject::Dozen => sums.operations > count * 600 && sums.misled < count / 4 + 1,
        Subject::Standbys => sums.takeovers > count / 2 && sums.late_writes > 0,
        Subject::Zones => {
            made(Fault::Death) + made(Fault::DataEio) > count / 2 && sums.zones > 2 * count
        }
    };
    assert!(holds, "{subject:?}: {sums:?}");
}

/// Refusing every corrupted device serves nothing false, and is of no use.
fn can_be_repaired(sums: &Sums) -> bool {
    let made = sums.made(Fault::Damage);
    let [sound, reported, refused, repaired, unrepairable] = sums.damaged;
    assert_eq!((sound + reported + refused, repaired + unrepairable), (made, made));
    made > 2 * sums.seeds && refused < made / 2 && sound > 0 && unrepairable < made / 5
}

#[test]
fn run_frees_its_world() {
    // The first run of each device size formats the disk that all runs of that size begin with.
    for seed in 0..40 {
        run(&Plan { operations: 1, ..Plan::new(seed) });
    }
    let before = SimDisk::live_count();
    for seed in 0..40 {
        let plan = Plan { operations: 60, ..Plan::new(seed) };
        run(&plan);
        assert_eq!(SimDisk::live_count(), before, "disks are left: {}", plan.command());
    }
}

/// A client that looked a file up during its removal kept its space, among a dozen clients.
#[test]
fn removed_file_that_a_client_looked_up_gives_back_its_space() {
    let plan = Plan { clients: 12, operations: 600, usual_operations: true, ..Plan::new(40_073) };
    let faults = Fault::of_one_server();
    let faults = faults.into_iter().filter(|fault| *fault != Fault::Death).collect();
    check(&Plan { faults, ..plan });
}

/// Seeds of earlier campaigns that failed: all faults, 150 operations, two executors. `REDBUD_SEED`
/// runs another one.
const FAILED: [u64; 28] = [
    552, 37375, 50551, 100253, 100358, 122535, 122706, 127450, 11463, 6023156, 6032845, 8002995,
    8008875, 8012033, 8021169, 8059185, 8065237, 8075323, 8097923, 8103160, 11016234, 11018645,
    11060379, 12000689, 13002337, 14012695, 14015345, 26000581,
];

/// The same, of campaigns with all operations.
const FAILED_OF_ALL: [u64; 11] = [
    30001991, 30003139, 31001817, 31004502, 32005583, 33001855, 33003289, 34026763, 35005800,
    35005893, 35006143,
];

/// The same, of campaigns with overlapping faults.
const FAILED_TOGETHER: [u64; 17] = [
    38002576, 39009596, 44016967, 44060740, 44078512, 44080495, 44085860, 44095372, 44137103,
    48018026, 48026776, 48046130, 48048092, 48048262, 48060277, 48086241, 48122503,
];

/// The same, of campaigns with pairs of faults.
const FAILED_IN_PAIRS: [u64; 7] =
    [49101770, 51025321, 51039288, 55001786, 55043517, 56007764, 56014789];

/// The same, of campaigns with dead devices: all faults, three zones, disks that take their time.
const FAILED_ON_ZONES: [u64; 12] = [
    93000661, 93000789, 93002682, 93002764, 95000532, 95001440, 95001466, 95001727, 95002544,
    95003241, 95003484, 95003689,
];

#[test]
fn seeds_that_failed_in_campaigns_hold() {
    let without = |left_out: &[Fault]| -> Vec<Fault> {
        Fault::of_one_server().into_iter().filter(|fault| !left_out.contains(fault)).collect()
    };
    // The pool has the kinds that came later.
    let all = without(&[Fault::Death]);
    let alone = without(&[Fault::Death, Fault::Together, Fault::Pairs]);
    let single = without(&[Fault::Death, Fault::Pairs]);
    let failed = (FAILED.iter().map(|&seed| (seed, true, &alone)))
        .chain(FAILED_OF_ALL.iter().map(|&seed| (seed, false, &alone)))
        .chain(FAILED_TOGETHER.iter().map(|&seed| (seed, false, &single)))
        .chain(FAILED_IN_PAIRS.iter().map(|&seed| (seed, false, &all)));
    let mut failed: Vec<(u64, bool, &Vec<Fault>)> = failed.collect();
    if let Some(asked) = asked("REDBUD_SEED") {
        failed.retain(|(seed, ..)| *seed == asked);
        if failed.is_empty() {
            failed.push((asked, false, &all));
        }
    }
    for (seed, usual_operations, faults) in failed {
        let faults = faults.clone();
        holds(&Plan { usual_operations, faults, ..Plan::new(seed) });
    }
}

#[test]
fn seeds_that_failed_with_dead_devices_hold() {
    let mut failed = FAILED_ON_ZONES.to_vec();
    if let Some(asked) = asked("REDBUD_SEED") {
        failed = vec![asked];
    }
    for seed in failed {
        holds(&Plan { zones: 3, timed: true, ..Plan::new(seed) });
    }
}

/// A seed of a campaign with 150 operations and two executors.
fn holds(plan: &Plan) {
    let report = check(&Plan { operations: 150, executors: 2, ..plan.clone() });
    let judged = report.faults > 0 && report.abandoned.is_none();
    assert!(judged, "{} is not judged to its end", plan.seed);
}

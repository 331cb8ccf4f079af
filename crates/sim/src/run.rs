//! One run: a world, its clients, its faults, and the verdict.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use env::sim::{SimDisk, SimRng};
use types::{Duration, Ino, Instant};

use crate::call::{At, Call, MAPPED, NAMES, Op, Outcome};
use crate::cluster::{self, Cluster};
use crate::drain_state::DrainCounts;
use crate::events::{Broken, Events, Looks};
use crate::faults::{Fault, FaultCounts, Injector};
use crate::fleet::{Fleet, node_name};
use crate::history::{History, NOBODY};
use crate::invariant::Invariant;
use crate::invariants::views::{self, Unjudged};
use crate::judge::Abandoned;
use crate::media_corruption::DamageCounts;
use crate::mount::{Mount, OpenFile};
use crate::mutate_history::{self, Verdicts};
use crate::plan::Plan;
use crate::script::{Script, ScriptStep};
use crate::target_state::TargetCounts;
use crate::{drains, invariants, panics, shards, space, target_checks, target_space};

/// After the last fault everything finishes within this virtual time.
const PATIENCE: Duration = Duration::from_secs(300);

/// The step of the final power cut; the power cut draws its random numbers from it.
const POWER_CUT_STEP: ScriptStep = ScriptStep::Fault(u32::MAX);

/// Within this time what servers have written reaches their devices.
const SETTLING: Duration = Duration::from_secs(2);

/// Number of the client that reads everything at the end.
const AUDITOR: usize = 99;

/// A broken invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// What broke it.
    pub text: String,
    /// The newest lines of the log.
    pub log: Vec<String>,
    /// Every step that ended, in the order of the ends.
    pub history: Vec<String>,
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The plan of the run.
    pub plan: Plan,
    /// Equal for equal plans and code.
    pub trace: u64,
    /// Operations that ended.
    pub operations: u64,
    /// Answers from kernel caches that were not judged, because they raced with a change.
    pub racy: u64,
    /// How often checkers read the store.
    pub looks: Looks,
    /// Data zones that somebody wrote, of those attached at the end.
    pub zones: u64,
    /// Objects on targets at the end, counted on each target.
    pub objects: u64,
    /// What targets did.
    pub targets: TargetCounts,
    /// Faults that were injected.
    pub faults: u64,
    /// How many of each kind.
    pub made: FaultCounts,
    /// Corrupted metadata devices, and their fates.
    pub damaged: DamageCounts,
    /// How many fault steps of the script were reached.
    pub fault_steps: u32,
    /// Steps of the history: one or several for each operation, and those without an application.
    pub steps: u64,
    /// Sessions that ended with their clients, and sessions of live clients.
    pub lost: (u64, u64),
    /// Restarts of the server.
    pub restarts: u64,
    /// Takeovers by servers that stood by, and writes of replaced owners that were refused.
    pub takeovers: (u64, u64),
    /// What drains of data zones came to.
    pub drains: DrainCounts,
    /// Stores into shared mappings, and how often a kernel could not write them back.
    pub stores: (u64, u64),
    /// Virtual time.
    pub time: Duration,
    /// Searches that the judge gave up.
    pub unjudged: u64,
    /// What the observed order did not explain, so that the judge searched all orders.
    pub misled: Option<String>,
    /// Where the judge stopped before the end, if it did: the rest is not judged.
    pub abandoned: Option<Abandoned>,
    /// The first violation, if any.
    pub violation: Option<Violation>,
}

/// What the run's task leaves behind.
struct Ended {
    history: History,
    starts: Rc<Cell<u64>>,
    made: Rc<RefCell<FaultCounts>>,
    reached_steps: Rc<Cell<u32>>,
    damaged: Rc<Cell<DamageCounts>>,
    counted: Rc<Cell<Counted>>,
}

/// What the cluster has counted at the end.
#[derive(Clone, Copy, Default)]
struct Counted {
    zones: u64,
    objects: u64,
    targets: TargetCounts,
    standing: (u64, u64),
    drains: DrainCounts,
}

impl Counted {
    fn of(cluster: &Cluster) -> Counted {
        Counted {
            zones: cluster.zones_written(),
            objects: cluster.targets.objects.get(),
            targets: cluster.targets.counts(),
            standing: cluster.standing.as_ref().map(|all| all.counts()).unwrap_or_default(),
            drains: cluster.drains.counts(),
        }
    }
}

impl Ended {
    fn new(events: &Events) -> Ended {
        let history = History::new(events);
        let (starts, made, reached_steps, damaged, counted) = Default::default();
        Ended { history, starts, made, reached_steps, damaged, counted }
    }
}

/// Runs a plan to its end.
pub fn run(plan: &Plan) -> Report {
    run_and(plan, |_, _| ())
}

/// Runs a plan, and gives both judges `count` mutants of its history.
pub fn run_mutated(plan: &Plan, count: u64) -> (Report, Verdicts) {
    let mut verdicts = Verdicts::default();
    let report = run_and(plan, |calls, may_crash| {
        verdicts = mutate_history::judge_mutants(calls, may_crash, (plan.seed, count));
    });
    (report, verdicts)
}

fn run_and(plan: &Plan, on_history: impl FnOnce(&[Call], bool)) -> Report {
    // What an earlier run of this thread left behind.
    drop(panics::take());
    let events = Events::default();
    let (world, disks) = cluster::world_of(plan.world_seed(), &plan.making());
    let begun = world.now();
    let ended = Ended::new(&events);
    let running = (ended.history.clone(), ended.starts.clone(), ended.counted.clone());
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let (inner, events, (history, starts, counted)) = (world.clone(), events.clone(), running);
        let faults = (ended.made.clone(), ended.reached_steps.clone(), ended.damaged.clone());
        world.run(|env| async move {
            let mut cluster = Cluster::new(inner, env, disks, starts, events);
            plan.configure(&mut cluster);
            let work = safety_and_healing(plan, cluster.clone(), history, faults);
            let verdict = Box::pin(work).await;
            counted.set(Counted::of(&cluster));
            verdict
        })
    }));
    events.end();
    let calls = ended.history.take();
    let may_crash = can_crash(plan);
    on_history(&calls, may_crash);
    let mut unjudged = Unjudged::default();
    let violation = match outcome {
        Err(panic) => {
            Some((Invariant::NoPanic, panics::take().unwrap_or_else(|| panic_text(&*panic))))
        }
        Ok(Err(broken)) => Some(broken),
        Ok(Ok(())) => views::judge(&calls, (may_crash, plan.all_orders), &mut unjudged)
            .err()
            .map(|text| (Invariant::Linearizable, text)),
    };
    // Violations seen during the run came first: the others may follow from them.
    let violation = events.first_violation().or(violation);
    let made = faults_made(&ended, &calls);
    let Counted { zones, objects, targets, standing, drains } = ended.counted.get();
    Report {
        plan: plan.clone(),
        trace: world.trace() ^ ended.history.hash(),
        operations: ended.history.count(),
        racy: ended.history.times_racy(),
        looks: events.looks(),
        zones,
        objects,
        targets,
        // An overlapping fault is counted under its own kind.
        faults: made.iter().filter(|(kind, _)| **kind != Fault::Together).map(|(_, n)| n).sum(),
        made,
        damaged: ended.damaged.get(),
        fault_steps: ended.reached_steps.get(),
        steps: calls.len() as u64,
        lost: lost(&calls),
        restarts: ended.starts.get().saturating_sub(plan.shards as u64),
        takeovers: standing,
        drains,
        stores: stores(&calls),
        time: world.now().since(begun),
        unjudged: unjudged.searches,
        misled: unjudged.misled,
        abandoned: unjudged.abandoned,
        violation: violation.map(|(invariant, text)| Violation {
            invariant,
            text,
            log: events.lines(),
            history: calls.iter().map(Call::line).collect(),
        }),
    }
}

/// How often each fault was made, those included that only the calls show.
fn faults_made(ended: &Ended, calls: &[Call]) -> FaultCounts {
    let mut made = ended.made.take();
    let refused = calls.iter().filter(|call| call.outcome == Some(Outcome::NoRoom)).count();
    made.insert(Fault::Space, refused as u64);
    made.insert(Fault::Signal, ended.history.times_interrupted());
    made.retain(|_, count| *count > 0);
    made
}

fn stores(calls: &[Call]) -> (u64, u64) {
    let stores = calls.iter().filter(|call| call.op.file() == Some(MAPPED)).count();
    let lost = calls.iter().filter(|call| matches!(call.op, Op::Unwritten(_))).count();
    (stores as u64, lost as u64)
}

fn lost(calls: &[Call]) -> (u64, u64) {
    let lost = |with: bool| {
        let ends =
            calls.iter().filter(|call| matches!(call.op, Op::Lost { dead, .. } if dead == with));
        ends.count() as u64
    };
    (lost(true), lost(false))
}

/// May the faults make clients lose changes?
fn can_crash(plan: &Plan) -> bool {
    plan.faults.iter().any(|fault| fault.may_lose_changes())
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Injected faults, reached fault steps, and corrupted devices.
type Counts = (Rc<RefCell<FaultCounts>>, Rc<Cell<u32>>, Rc<Cell<DamageCounts>>);

async fn safety_and_healing(
    plan: &Plan,
    cluster: Cluster,
    history: History,
    (made, reached_steps, damaged): Counts,
) -> Result<(), Broken> {
    if plan.has(Fault::Uneven, 3) {
        made.borrow_mut().insert(Fault::Uneven, 1);
    }
    if plan.has(Fault::Drift, 2) {
        made.borrow_mut().insert(Fault::Drift, 1);
        cluster.drift(plan.clients, &mut SimRng::new(plan.seed ^ 0xd21f7));
    }
    space::watch(&cluster, &history, (&plan.sizes(), plan.is_short()));
    drains::watch(&cluster);
    if cluster.has_several() {
        history.has_several_shards();
    }
    let script = Rc::new(plan.script());
    let fleet = plan.fleet(&cluster, &history, &script);
    let _watching = cluster.watch_devices();
    invariants::watch(&cluster, &fleet, plan.only_devices_fail());
    cluster.start_servers();
    if plan.osts > 0 {
        cluster.enter_targets(plan.seed).await.map_err(|text| (Invariant::Mount, text))?;
    } else if let Some(layout) = plan.layout() {
        cluster.set_layout(&layout).await.map_err(|text| (Invariant::Mount, text))?;
    }
    for client in 0..plan.clients {
        cluster.world.set_executors(&node_name(client), plan.executors);
    }
    fleet.start().await.map_err(|text| (Invariant::Mount, text))?;
    let ended = Rc::new(Cell::new(false));
    let counts = (made.clone(), reached_steps, damaged);
    let parts = (&cluster, &fleet, &history);
    let injector = injector(plan, parts, &script, counts, &ended);
    cluster.faults_come(true);
    let injector = cluster.env.spawn_join(injector.run());
    // Faults go on for as long as most of the work does; then everything must finish.
    most_work_ends(&cluster, &history, &fleet, script.spacing).await;
    ended.set(true);
    injector.await;
    cluster.faults_come(false);
    let patience = cluster.env.now() + PATIENCE;
    while !fleet.is_done() {
        if cluster.env.now() > patience {
            return Err((Invariant::Ends, stuck(&history, &fleet.mounts())));
        }
        cluster.env.sleep(Duration::from_millis(100)).await;
    }
    if let Some(text) = fleet.failure() {
        return Err((Invariant::Mount, text));
    }
    drains::all_end(&cluster).await;
    fences_settle(plan, &cluster, &fleet).await?;
    all_notice(&cluster, &fleet, patience).await?;
    space::orphans_freed(&cluster, &fleet).await.map_err(|text| (Invariant::Ends, text))?;
    room_comes_back(plan, &cluster, &fleet).await.map_err(|text| (Invariant::Room, text))?;
    let power = plan.faults.contains(&Fault::ClusterPower) && !plan.seed.is_multiple_of(4);
    if power {
        *made.borrow_mut().entry(Fault::ClusterPower).or_default() += 1;
    }
    let rng = script.rng(POWER_CUT_STEP);
    audit(&cluster, &history, &fleet, power.then_some(rng)).await
}

/// Where space may run out: all clients are idle, and any can get what no file holds.
async fn room_comes_back(plan: &Plan, cluster: &Cluster, fleet: &Fleet) -> Result<(), String> {
    match (plan.is_short(), cluster.targets.are_small.get()) {
        (false, _) => Ok(()),
        (true, true) => target_space::check(cluster, fleet).await,
        (true, false) => space::check(cluster, fleet, &plan.sizes()).await,
    }
}

/// Waits until all work has ended, or none has for a while.
async fn most_work_ends(cluster: &Cluster, history: &History, fleet: &Fleet, spacing: Duration) {
    let mut quiet = 0;
    loop {
        let before = history.count();
        cluster.env.sleep(Duration::from_secs(1)).await;
        quiet = if history.count() == before { quiet + 1 } else { 0 };
        if fleet.is_done() || quiet > 60 + 4 * spacing.as_secs() {
            return;
        }
    }
}

/// What injects the faults of a plan, until `ended`.
fn injector(
    plan: &Plan,
    (cluster, fleet, history): (&Cluster, &Fleet, &History),
    script: &Rc<Script>,
    (made, reached_steps, damaged): Counts,
    ended: &Rc<Cell<bool>>,
) -> Injector {
    Injector {
        cluster: cluster.clone(),
        fleet: fleet.clone(),
        kinds: plan.faults.iter().copied().filter(|fault| fault.is_injected()).collect(),
        overlap: plan.has(Fault::Together, 2).then(|| SimRng::new(0)),
        pairs: plan.has(Fault::Pairs, 2).then(|| SimRng::new(0)),
        current: None,
        rng: SimRng::new(0),
        script: script.clone(),
        ended: ended.clone(),
        made,
        reached_steps,
        damaged,
        history: history.clone(),
        seed: plan.seed,
        blocked: Default::default(),
        dead: Rc::default(),
        older: plan.faults.contains(&Fault::Damage).then(|| cluster.meta().fork()),
    }
}

/// No fence switches a host off any more: each client has been connected for so long that the
/// server takes none for silent.
async fn fences_settle(plan: &Plan, cluster: &Cluster, fleet: &Fleet) -> Result<(), Broken> {
    if !plan.has_fences() {
        return Ok(());
    }
    let patience = cluster.env.now() + PATIENCE;
    let mut since = cluster.env.now();
    while cluster.env.now() < since + cluster.lease * 3 {
        cluster.env.sleep(Duration::from_millis(100)).await;
        if let Some(text) = fleet.failure() {
            return Err((Invariant::Mount, text));
        }
        let connected = fleet.mounts().iter().all(|mount| mount.client.status().connected);
        if !fleet.is_done() || !connected {
            since = cluster.env.now();
        }
        if since > patience {
            return Err((Invariant::Ends, "a client does not come back".to_owned()));
        }
    }
    Ok(())
}

/// Every live client notices its eviction; an idle one does when it renews its lease.
async fn all_notice(cluster: &Cluster, fleet: &Fleet, patience: Instant) -> Result<(), Broken> {
    while !fleet.unaware().is_empty() {
        if cluster.env.now() > patience {
            let text = format!("clients {:?} have not noticed it", fleet.unaware());
            return Err((Invariant::Noticed, text));
        }
        cluster.env.sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Describes which calls are pending.
fn stuck(history: &History, mounts: &[Mount]) -> String {
    let mut text = "still pending after the last fault:".to_owned();
    for waiting in history.waiting() {
        text += &format!("\n  c{} {:?} [{}]", waiting.client, waiting.op, waiting.begun);
    }
    for mount in mounts {
        text += &format!("\n  c{}: {:?};{}", mount.index, mount.client.status(), mount.held());
    }
    text
}

/// All clients, and a fresh one after them, read the whole tree; then fsck checks the metadata.
async fn audit(
    cluster: &Cluster,
    history: &History,
    fleet: &Fleet,
    power: Option<SimRng>,
) -> Result<(), Broken> {
    for mount in fleet.mounts() {
        walk(&mount).await;
    }
    if let Some(mut rng) = power {
        lose_power(cluster, history, fleet, &mut rng).await?;
    } else {
        unmount(cluster, &fleet.mounts()).await?;
    }
    let auditor = fleet.auditor(AUDITOR).await.map_err(|text| (Invariant::Mount, text))?;
    walk(&auditor).await;
    auditor.client.unmount().await;
    fleet.record_dead_sessions(true);
    if cluster.has_several() {
        history.all_is_decided();
        shards_agree(cluster).await?;
    }
    let images = cluster.all_shards().map(|shard| cluster.meta_of(shard).fork());
    shards::fsck_all(images.collect(), 1).map_err(|text| (Invariant::Whole, text))?;
    target_checks::check_all(cluster).await
}

/// No operation of several shards is left open once all servers run and all clients have left.
async fn shards_agree(cluster: &Cluster) -> Result<(), Broken> {
    let patience = cluster.env.now() + PATIENCE;
    while !cluster.is_settled() {
        if cluster.env.now() > patience {
            let text = "an operation of several shards stays open".to_owned();
            return Err((Invariant::Ends, text));
        }
        cluster.env.sleep(Duration::from_millis(100)).await;
    }
    // What the servers have written of it reaches their devices.
    cluster.env.sleep(SETTLING).await;
    Ok(())
}

async fn unmount(cluster: &Cluster, mounts: &[Mount]) -> Result<(), Broken> {
    for mount in mounts {
        let (env, mount) = (mount.env.clone(), mount.clone());
        let unmount = env.spawn_join(async move { mount.client.unmount().await });
        let unmounted = cluster.env.timeout(PATIENCE, unmount).await;
        unmounted.ok_or((Invariant::Ends, "an unmount".to_owned()))?;
    }
    Ok(())
}

/// Syncs everything, then all hosts and disks lose power at once and the server restarts. Nothing
/// may be missing.
async fn lose_power(
    cluster: &Cluster,
    history: &History,
    fleet: &Fleet,
    rng: &mut SimRng,
) -> Result<(), Broken> {
    for mount in fleet.mounts() {
        let env = mount.env.clone();
        let sync = env.spawn_join(async move { mount.sync_all().await });
        let synced = cluster.env.timeout(PATIENCE, sync).await;
        // A failure is in the history, which the judge checks.
        let _ = synced.ok_or((Invariant::Ends, "a sync".to_owned()))?;
    }
    cluster.events.line("fault: cluster-power");
    fleet.end();
    history.happened(NOBODY, Op::LostPower { stuck: cluster.has_stuck() });
    let metas = cluster.all_shards().map(|shard| cluster.meta_of(shard).after_power_cut(rng));
    let metas: Vec<SimDisk> = metas.collect();
    let data = cluster.data_lose_power(rng);
    for (shard, meta) in cluster.all_shards().zip(metas) {
        cluster::fsck(meta.fork(), 2).map_err(|text| (Invariant::PowerCut, text))?;
        cluster.replace_meta(shard, meta);
    }
    cluster.replace_data(data);
    cluster.targets_lose_power(rng);
    cluster.start_targets();
    cluster.start_servers();
    Ok(())
}

/// Reads the whole tree as an application on the client's host, so that the client's log lines
/// during that are attributed to this client.
async fn walk(mount: &Mount) {
    let (env, mount) = (mount.env.clone(), mount.clone());
    env.spawn_join(async move { read_tree(&mount).await }).await;
}

async fn read_tree(mount: &Mount) {
    let mut dirs = vec![Ino::ROOT];
    let mut seen = Vec::new();
    while let Some(dir) = dirs.pop() {
        let _ = mount.list(dir, true, 4096).await;
        let _ = mount.getattr(dir).await;
        let _ = mount.get_xattr(dir).await;
        for name in NAMES {
            let Ok(Some(target)) = mount.lookup(At { dir, name }).await else { continue };
            match target.kind {
                types::FileKind::Directory => dirs.push(target.ino),
                types::FileKind::Regular if !seen.contains(&target.ino) => {
                    seen.push(target.ino);
                    let _ = mount.getattr(target.ino).await;
                    let _ = mount.get_xattr(target.ino).await;
                    if let Ok(file) = mount.open(target.ino, 0).await {
                        read_all(mount, file).await;
                    }
                }
                types::FileKind::Symlink => {
                    let _ = mount.readlink(target.ino).await;
                }
                _ => {}
            }
        }
    }
}

async fn read_all(mount: &Mount, file: OpenFile) {
    let _ = mount.read(file, 0, 1 << 20).await;
    mount.close(file, 0).await;
}

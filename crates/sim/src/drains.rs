//! Drains of data zones. An administrator drains one of several zones while applications go on, and
//! a mover ([`crate::mover`]) on a node of its own moves the files elsewhere.
//!
//! The mover may be killed, stopped or cut off at any moment, and is started again after its death.
//! The administrator may stop the drain before its end, and perhaps goes on later.
//!
//! Invariants:
//! - one zone drains at a time, and in the end every zone is in service;
//! - a zone stays in the state that the last answer to the administrator said, until they ask for
//!   another one: no restart of a server changes it, and no mover. This is checked while all
//!   requests of the administrator in this drain were answered; one that was not may be done at any
//!   later time;
//! - a zone that a server calls empty is empty until it is in service again
//!   (`invariants/drained.rs`);
//! - a drain ends within [`PATIENCE`] after the last fault. It may only fail to because the other
//!   zones are too full.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::sim::SimRng;
use mfs::{PagState, PagUse};
use types::{Duration, Instant, PagId};

use crate::cluster::Cluster;
use crate::drain_state::{ADMINISTRATOR, Drains, MOVER};
use crate::events::{DrainStage, Event};
use crate::invariant::Invariant;
use crate::mover::{Asker, Mover, MoverEnd, Pace};
use crate::space;

/// A drain ends so soon once faults have stopped.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// Interval of looks at the mover.
const LOOK: Duration = Duration::from_millis(1);
/// Pause before the state of a zone is checked that the administrator has set: by then requests of
/// theirs that were not answered have arrived.
const SETTLING: Duration = Duration::from_secs(1);
/// After this time with one mover, and then each time, the administrator looks for dead clients.
const EVICTS: Duration = Duration::from_secs(10);
/// What clients may keep beside what a file needs that is to move.
const KEPT: u64 = 256;

/// What happens to a mover.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    /// It is killed; a new one starts after this time.
    Killed(Duration),
    /// It stands still for so long.
    Stopped(Duration),
    /// Its connection breaks.
    Cut,
}

/// Everything drawn about a drain.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    zone: PagId,
    pace: Pace,
    /// What happens so long after the mover was started; the last one first.
    mishaps: Vec<(Duration, Mishap)>,
    /// The administrator stops it so long after its beginning.
    stop: Option<(Duration, PagUse)>,
    /// They do so when a mover is about to ask for pools: it has looked at the zone's state.
    stops_at_request: bool,
    /// So long the empty zone is not in service.
    rest: Duration,
}

/// A time below ten seconds, of any magnitude.
fn some_time(rng: &mut SimRng) -> Duration {
    let magnitude = 10u64.pow(2 + rng.below(5) as u32);
    Duration::from_micros(magnitude + rng.below(9 * magnitude))
}

/// Mostly a zone in which files have blocks.
pub(crate) fn drawn_zone(cluster: &Cluster, rng: &mut SimRng) -> PagId {
    let full = cluster.inspect(|txn| {
        let mut pools = Vec::new();
        for (client, _) in txn.clients()? {
            pools.extend(txn.space().pool(client)?);
        }
        let in_pools = |zone| pools.iter().filter(|of| of.0 == zone).map(|of| of.2).sum::<u64>();
        let zones = txn.space().pags()?;
        let has_files = |of: &&PagState| of.free + of.freed + in_pools(of.id) < of.total;
        Ok(zones.iter().filter(has_files).map(|of| of.id).collect::<Vec<_>>())
    });
    let full = full.filter(|full| !full.is_empty() && !rng.one_in(8));
    let all = full.unwrap_or_else(|| cluster.zones().collect());
    all[rng.below(all.len() as u64) as usize]
}

impl Drain {
    /// A drain of this zone.
    pub(crate) fn drawn(zone: PagId, rng: &mut SimRng) -> Drain {
        let most = [1, 3, 64, u64::MAX][rng.below(4) as usize];
        let pause =
            if rng.one_in(2) { Duration::ZERO } else { Duration::from_millis(rng.below(50)) };
        let mut mishaps = Vec::new();
        while mishaps.len() < 3 && rng.one_in(2) {
            let mishap = match rng.below(6) {
                0..3 => Mishap::Killed(Duration::from_millis(rng.below(2_000))),
                3 => Mishap::Stopped(Duration::from_millis(rng.below(15_000))),
                _ => Mishap::Cut,
            };
            mishaps.push((some_time(rng), mishap));
        }
        let stop = rng.one_in(6).then(|| {
            let state = if rng.one_in(2) { PagUse::Paused } else { PagUse::InService };
            (some_time(rng), state)
        });
        let stops_at_request = stop.is_some() && rng.one_in(2);
        let rest = if rng.one_in(2) { Duration::ZERO } else { some_time(rng) };
        Drain { zone, pace: Pace { most, pause }, mishaps, stop, stops_at_request, rest }
    }

    /// Begins the drain, unless another one lasts. `false`: one does.
    pub(crate) fn begin(self, cluster: &Cluster) -> bool {
        if !cluster.drains.begin() {
            return false;
        }
        cluster.events.line(&format!("the administrator drains {self:?}"));
        cluster.events.emit(Event::Drains(self.zone, DrainStage::Begins));
        let administrator = Administrator::of(cluster);
        cluster.env.spawn(async move { administrator.drain(self).await });
        true
    }
}

/// From here on drains know of the devices that do not work.
pub(crate) fn watch(cluster: &Cluster) {
    let (drains, env) = (cluster.drains.clone(), cluster.env.clone());
    cluster.events.subscribe(Box::new(move |event| {
        if let Event::Troubled(zone, begins) = event {
            drains.troubled(zone, begins, env.now());
        }
    }));
}

/// Waits until no zone drains any more.
pub(crate) async fn all_end(cluster: &Cluster) {
    // Each drain gives up by itself.
    while cluster.drains.is_running() {
        cluster.env.sleep(Duration::from_millis(10)).await;
    }
}

/// What makes a drain end before the zone is empty.
enum Ended {
    /// So many servers had started then.
    Empty(u64),
    Stopped,
    Crowded,
    /// A violation has been reported.
    Never,
}

struct Administrator {
    cluster: Cluster,
    asker: Asker,
    /// The state of the zone that the last answer said, until another one is asked for.
    answered: Cell<Option<PagUse>>,
}

impl Administrator {
    fn of(cluster: &Cluster) -> Administrator {
        let env = cluster.world.node(ADMINISTRATOR);
        let asker = Asker::new(cluster, env, ADMINISTRATOR);
        Administrator { cluster: cluster.clone(), asker, answered: Cell::new(None) }
    }

    /// Sets the state of the zone, if it is `only_from` until then. `false`: no answer in time.
    async fn say(&self, zone: PagId, state: PagUse, only_from: Option<PagUse>) -> bool {
        self.check_answer(zone);
        self.answered.set(None);
        let set = self.asker.set_state(zone, state, only_from);
        match self.cluster.env.timeout(PATIENCE, set).await {
            None => {
                self.asker.unanswered.set(true);
                return false;
            }
            // If the first request was not answered, the next one finds its work done.
            Some(true) => self.answered.set(Some(state)),
            Some(false) if self.asker.unanswered.get() => {}
            Some(false) => {
                let text = format!(
                    "data zone {zone} was not set to {}, and nobody else has changed it",
                    state.name()
                );
                self.cluster.events.broken(Invariant::Drained, &text);
            }
        }
        self.check_answer(zone);
        true
    }

    /// The zone has the state that the last answer said.
    fn check_answer(&self, zone: PagId) {
        let sure = !self.asker.unanswered.get();
        let Some(said) = self.answered.get().filter(|_| sure) else { return };
        let now = self.cluster.inspect(|txn| txn.space().pag_use(zone));
        if let Some(now) = now.filter(|now| *now != said) {
            let (now, said) = (now.name(), said.name());
            let text = format!(
                "data zone {zone} is {now}; the last answer to the administrator said {said}"
            );
            self.cluster.events.broken(Invariant::Drained, &text);
        }
    }

    fn drains(&self) -> &Drains {
        &self.cluster.drains
    }

    async fn drain(&self, mut drain: Drain) {
        let zone = drain.zone;
        let ended = self.moves(&mut drain).await;
        let env = &self.cluster.env;
        match ended {
            Ended::Empty(starts) => {
                self.cluster.events.line(&format!("data zone {zone} is empty"));
                self.drains().count(|counts| counts.emptied += 1);
                self.cluster.events.emit(Event::Drains(zone, DrainStage::CalledEmpty(starts)));
                env.sleep(drain.rest).await;
                self.cluster.events.emit(Event::Drains(zone, DrainStage::Resumes));
            }
            Ended::Stopped => self.drains().count(|counts| counts.stopped += 1),
            Ended::Crowded => self.drains().count(|counts| counts.crowded += 1),
            Ended::Never => {}
        }
        loop {
            if !self.say(zone, PagUse::InService, None).await {
                self.never_ends(zone, "the administrator gets no answer");
                break;
            }
            env.sleep(SETTLING).await;
            self.check_answer(zone);
            let seen = env.timeout(PATIENCE, self.asker.look(zone)).await;
            if seen.is_none_or(|seen| seen.state == PagUse::InService.name()) {
                break;
            }
        }
        self.cluster.events.emit(Event::Drains(zone, DrainStage::Ended));
        self.drains().end();
    }

    /// Movers work until the zone is empty, or the drain ends for another reason.
    async fn moves(&self, drain: &mut Drain) -> Ended {
        let env = &self.cluster.env;
        let (zone, begun) = (drain.zone, env.now());
        if !self.say(zone, PagUse::Draining, Some(PagUse::InService)).await {
            self.never_ends(zone, "the administrator gets no answer");
            return Ended::Never;
        }
        let mut stopped = None;
        loop {
            let (end, downtime) = self.one_mover(drain, begun, &mut stopped).await;
            match (end, stopped) {
                // It was empty when it was put in service; what it is now nobody says.
                (Some(MoverEnd::Empty(_)), Some(PagUse::InService)) => return Ended::Stopped,
                (Some(MoverEnd::Empty(starts)), _) => return Ended::Empty(starts),
                (Some(MoverEnd::NotDraining), Some(PagUse::Paused)) => {
                    env.sleep(drain.rest).await;
                    if drain.rest > Duration::from_secs(1) {
                        return Ended::Stopped;
                    }
                    if !self.say(zone, PagUse::Draining, Some(PagUse::Paused)).await {
                        self.never_ends(zone, "the administrator gets no answer");
                        return Ended::Never;
                    }
                    stopped = None;
                }
                (Some(MoverEnd::NotDraining), Some(_)) => return Ended::Stopped,
                (Some(MoverEnd::NotDraining), None) => {
                    let text = format!("data zone {zone} does not drain, and nobody said so");
                    self.cluster.events.broken(Invariant::Drained, &text);
                    return Ended::Never;
                }
                (Some(MoverEnd::NoRoom), _) => {
                    self.check_room(zone);
                    return Ended::Crowded;
                }
                (Some(MoverEnd::Gone(_)) | None, _) => {
                    self.drains().count(|counts| counts.deaths += 1);
                    env.sleep(downtime).await;
                }
            }
            if self.cluster.is_calm_for(PATIENCE) {
                if self.is_short(zone) {
                    return Ended::Crowded;
                }
                self.never_ends(zone, &self.drains().refusal());
                return Ended::Never;
            }
        }
    }

    /// Runs one mover; returns how it ended (`None`: it died), and how long the next one waits.
    async fn one_mover(
        &self,
        drain: &mut Drain,
        begun: Instant,
        stopped: &mut Option<PagUse>,
    ) -> (Option<MoverEnd>, Duration) {
        let (world, env) = (&self.cluster.world, &self.cluster.env);
        let started = env.now();
        let node = world.node(MOVER);
        let run = world.run_of(MOVER);
        self.drains().mover_starts(run);
        self.cluster.node_begins(MOVER);
        let cluster = self.cluster.clone();
        let unanswered = Cell::new(false);
        let asker = Asker { cluster, env: node.clone(), name: MOVER, unanswered };
        let mover = Mover { asker, zone: drain.zone, pace: drain.pace };
        let end = Rc::new(RefCell::new(None));
        let its = end.clone();
        node.spawn(async move {
            let ended = mover.run().await;
            *its.borrow_mut() = Some(ended);
        });
        let (mut downtime, mut stops_until) = (Duration::from_millis(100), None);
        let quiet = space::quiet(&self.cluster);
        let mut evicts = started + EVICTS;
        loop {
            env.sleep(LOOK).await;
            let now = env.now();
            if end.borrow().is_some() || world.run_of(MOVER) != run {
                break;
            }
            if stops_until.is_some_and(|until| now >= until) {
                world.resume(MOVER);
                stops_until = None;
            }
            if let Some((_, mishap)) = drain.mishaps.pop_if(|(after, _)| now >= started + *after) {
                self.cluster.events.line(&format!("{MOVER}: {mishap:?}"));
                match mishap {
                    Mishap::Killed(pause) => {
                        downtime = pause;
                        break;
                    }
                    Mishap::Stopped(time) => {
                        world.pause(MOVER);
                        stops_until = Some(now + time);
                    }
                    Mishap::Cut => world.cut(MOVER, &self.cluster.server()),
                }
            }
            self.stop_if_time(drain, begun, stopped).await;
            self.check_answer(drain.zone);
            // Dead clients keep their pools while nobody waits for what they hold. By now every
            // living client has been heard.
            if now >= evicts && self.cluster.is_calm_for(quiet) {
                let evicted = self.asker.evict_silent(drain.zone, quiet);
                _ = env.timeout(EVICTS, evicted).await;
                evicts = env.now() + EVICTS;
            }
            if self.cluster.is_calm_for(PATIENCE) {
                break;
            }
        }
        world.kill(MOVER);
        self.drains().mover_is(None);
        let end = end.borrow_mut().take();
        (end, downtime)
    }

    /// Stops the drain if it is time to.
    async fn stop_if_time(&self, drain: &mut Drain, begun: Instant, stopped: &mut Option<PagUse>) {
        let since = self.cluster.env.now().since(begun);
        let is_moment = !drain.stops_at_request || self.drains().asks_for_pools();
        if let Some((_, state)) = drain.stop.take_if(|(after, _)| is_moment && since >= *after) {
            self.cluster.events.line(&format!("the administrator stops the drain: {state:?}"));
            *stopped = Some(state);
            // Before the zone gets another state, this request has an answer.
            self.say(drain.zone, state, Some(PagUse::Draining)).await;
        }
    }

    fn never_ends(&self, zone: PagId, why: &str) {
        let space = self.cluster.describe_space();
        let text = format!("the drain of data zone {zone} does not end; {why}{space}");
        self.cluster.events.broken(Invariant::Ends, &text);
    }

    /// Free blocks of the zones that could take what lies in `zone`, and used ones of `zone`;
    /// `None` if no server can say so.
    fn room(&self, zone: PagId) -> Option<(u64, u64)> {
        let free = self.cluster.free()?;
        let doubtful = self.drains().doubtful(self.cluster.env.now());
        let others = free.data.iter().filter(|(id, _)| *id != zone && !doubtful.contains(id));
        let room = others.map(|(_, free)| free).sum();
        let all = self.cluster.inspect(|txn| txn.space().pags())?;
        let of_it = all.iter().find(|pag| pag.id == zone)?;
        Some((room, of_it.total - of_it.free))
    }

    fn is_short(&self, zone: PagId) -> bool {
        self.room(zone).is_none_or(|(room, used)| room < 2 * used + KEPT)
    }

    /// A mover has found no room for what lies in the zone.
    fn check_room(&self, zone: PagId) {
        if !self.is_short(zone) {
            let (room, used) = self.room(zone).unwrap_or_default();
            let text = format!(
                "a mover finds no room for {used} blocks of data zone {zone}; other zones have \
                 {room} free ones"
            );
            self.cluster.events.broken(Invariant::Room, &text);
        }
    }
}

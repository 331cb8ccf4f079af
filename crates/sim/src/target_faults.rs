//! Faults of object storage targets.
//!
//! Invariants:
//! - every target runs again in the end, its device works, and everybody reaches it;
//! - applications hear of a failed read of a target's device, and of nothing else: a target whose
//!   device fails a write or a flush ends without an answer, and its clients repeat what was lost;
//! - what a killed target had flushed stays; after a power cut its device has any part of the rest;
//! - of what is left the target recovers, and its check and scrub find nothing.

use env::sim::{DiskAction, SimRng};
use types::Duration;

use crate::devices::{SETTLING, fail};
use crate::events::Event;
use crate::faults::{Fault, Injector};
use crate::invariant::Invariant;
use crate::target_checks::check_image;
use crate::target_state::node_name;

/// Most time without a target while everybody keeps their sessions with the metadata server.
const SHORT: Duration = Duration::from_millis(1_500);
/// Most time without a target.
const LONG_MS: u64 = 10_000;
/// A path to a target is blocked at most this long.
const BLOCKED_MS: u64 = 2_000;

/// Who dies together with a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beside {
    Nobody,
    Server,
    Client,
    Target,
}

impl Beside {
    fn drawn(rng: &mut SimRng) -> Beside {
        let all = [Beside::Nobody, Beside::Nobody, Beside::Server, Beside::Client, Beside::Target];
        all[rng.below(all.len() as u64) as usize]
    }
}

impl Injector {
    fn target(&mut self) -> Option<usize> {
        let count = self.cluster.targets.count() as u64;
        (count > 0).then(|| self.rng.below(count) as usize)
    }

    /// Kills a target, perhaps together with the server, a client or another target, and starts it
    /// again, at once or later; perhaps once more during its recovery.
    pub(crate) async fn restart_target(&mut self, kind: Fault) {
        let Some(first) = self.target() else { return };
        let beside = Beside::drawn(&mut self.rng);
        let mut dead = vec![first];
        if let (Beside::Target, Some(other)) = (beside, self.target())
            && other != first
        {
            dead.push(other);
        }
        match beside {
            Beside::Server if self.kinds.contains(&Fault::ServerKill) => {
                let shard = self.a_shard();
                self.cluster.kill_shard(shard);
                self.cluster.start_shard(shard);
            }
            Beside::Client if self.kinds.contains(&Fault::ClientKill) => {
                let (slot, downtime) = (self.slot(), self.rng.below(3_000));
                self.fleet.kill(slot, Duration::from_millis(downtime));
            }
            _ => {}
        }
        loop {
            for &nth in &dead {
                self.target_ends(nth, kind);
            }
            // Requests wait until a target that has started again has heard of all its clients, or
            // has waited for a lease.
            let down = self.target_is_down();
            self.fleet.all_may_lose(down + self.cluster.lease * 6);
            self.wait(down).await;
            for &nth in &dead {
                self.cluster.start_target(nth);
            }
            if !self.rng.one_in(3) {
                return;
            }
            self.pause(300).await;
        }
    }

    fn target_is_down(&mut self) -> Duration {
        match self.rng.below(4) {
            0 => Duration::ZERO,
            1 | 2 => Duration::from_micros(self.rng.below(SHORT.as_micros() as u64)),
            _ => Duration::from_millis(self.rng.below(LONG_MS)),
        }
    }

    /// Kills a target; its host may lose power.
    fn target_ends(&mut self, nth: usize, kind: Fault) {
        self.cluster.events.line(&format!("{} is killed", node_name(nth)));
        self.cluster.kill_target(nth);
        if kind == Fault::TargetPower {
            self.cluster.target_loses_power(nth, &mut self.rng);
        } else if !self.rng.one_in(4) {
            return;
        }
        let image = self.cluster.targets.disk(nth).fork();
        if let Err(text) = check_image(image, self.seed) {
            let text = format!("{}: {text}", node_name(nth));
            self.cluster.events.broken(Invariant::Target, &text);
        }
    }

    /// The target whose device a fault hits instead of that of a data zone; `None`: one of a zone.
    pub(crate) fn target_in_place_of_a_zone(&self, chances: &mut SimRng) -> Option<usize> {
        let count = self.cluster.targets.count() as u64;
        if count == 0 || self.kinds.contains(&Fault::Migrate) && chances.one_in(2) {
            return None;
        }
        Some(chances.below(count) as usize)
    }

    /// The device of a target fails requests for a while.
    pub(crate) async fn fail_target_disk(&mut self, nth: usize) {
        let actions = [DiskAction::Write, DiskAction::Flush, DiskAction::Read];
        let first = self.rng.below(3) as usize;
        let second = self.rng.one_in(3).then(|| actions[(first + 1) % 3]);
        let kinds: Vec<DiskAction> = [actions[first]].into_iter().chain(second).collect();
        let most = [50, 1_000, 5_000][self.rng.below(3) as usize];
        let (name, cluster) = (node_name(nth), self.cluster.clone());
        cluster.events.line(&format!("the device of {name} fails {kinds:?}"));
        // Requests wait as at a restart.
        self.fleet.all_may_lose(Duration::from_millis(most) + cluster.lease * 6);
        let zone = cluster.target_zones().nth(nth);
        let reads_fail = kinds.contains(&DiskAction::Read);
        if reads_fail {
            self.history.devices_fail(true);
            cluster.events.emit(Event::Troubled(zone, true));
        }
        for action in kinds {
            fail(&cluster.targets.disk(nth), action, &mut self.rng);
        }
        self.pause(most).await;
        cluster.targets.disk(nth).clear_faults();
        if reads_fail {
            cluster.env.sleep(SETTLING).await;
            cluster.events.emit(Event::Troubled(zone, false));
            self.history.devices_fail(false);
        }
    }

    /// A connection between a client or the server and a target breaks, or nothing gets through for
    /// a while, in one or both directions.
    pub(crate) async fn cut_target(&mut self) {
        let Some(nth) = self.target() else { return };
        let target = node_name(nth);
        let slot = self.slot();
        let of_server = self.rng.one_in(4);
        let name = match of_server {
            true => self.a_server(),
            false => self.fleet.name(slot),
        };
        let world = self.cluster.world.clone();
        let direction = self.rng.below(6);
        if direction > 2 {
            return world.cut(&name, &target);
        }
        self.block_begins(slot);
        match direction {
            0 => world.block(&name, &target),
            1 => world.block(&target, &name),
            _ => world.partition(&name, &target),
        }
        self.pause(BLOCKED_MS).await;
        world.heal_between(&name, &target);
        self.block_ends(slot);
    }
}

//! Faults of servers that stand by for each other, and of their etcd cluster: `Fault::Takeover`.
//!
//! Invariants:
//! - each fault ends, and etcd works when it has;
//! - after each the injector waits until a server owns, so that clients get on between faults.

use types::Duration;

use crate::faults::Injector;
use crate::servers::Standing;

/// Within this time a client notices that a server does not answer, and connects to another.
const UNNOTICED: Duration = Duration::from_secs(40);
/// Pause between two looks for an owner.
const LOOK: Duration = Duration::from_millis(50);
/// Most time without a leader: an election.
const ELECTION_MS: u64 = 3_000;

impl Injector {
    /// Something happens to the owner, to a server that stands by, or to etcd.
    pub(crate) async fn take_over(&mut self) {
        let Some(standing) = self.cluster.standing.clone() else { return };
        let lease = standing.etcd.lease().as_millis() as u64;
        let owner = self.cluster.server();
        match self.rng.below(10) {
            0..3 => self.kill(&owner, lease),
            3 => {
                // Perhaps at a step of its takeover.
                self.kill(&owner, 2 * lease);
                self.wait_up_to(lease + 1_000).await;
                if let Some(other) = standing.other() {
                    self.kill(&other, lease);
                }
            }
            4 | 5 => self.stop(&owner, lease).await,
            6 => {
                let quorum = self.rng.one_in(2);
                let most = if quorum { 2 * lease } else { ELECTION_MS };
                let time = Duration::from_millis(self.rng.below(most));
                self.line(&format!("etcd has no leader for {time:?}"));
                standing.etcd.lose_leader(time);
                if self.rng.one_in(2) {
                    self.kill(&owner, lease);
                }
                self.cluster.env.sleep(time).await;
            }
            7 => self.part_from_etcd(&standing, &owner, lease).await,
            8 => {
                let time = Duration::from_millis(self.rng.below(2 * lease));
                self.line(&format!("etcd is slow for {time:?}"));
                standing.etcd.be_slow(time);
                if self.rng.one_in(2) {
                    self.kill(&owner, lease);
                }
                self.cluster.env.sleep(time).await;
            }
            _ => {
                self.line("the owner is asked to hand over");
                standing.hand_over();
                self.wait_up_to(1_000).await;
            }
        }
        standing.etcd.heal();
        let patience = self.cluster.env.now() + UNNOTICED;
        while !standing.has_owner() && self.cluster.env.now() < patience {
            self.cluster.env.sleep(LOOK).await;
        }
    }

    fn line(&self, text: &str) {
        self.cluster.events.line(text);
    }

    async fn wait_up_to(&mut self, most_ms: u64) {
        let time = Duration::from_millis(self.rng.below(most_ms));
        self.cluster.env.sleep(time).await;
    }

    /// Kills the process of a server, which comes back at once or later.
    fn kill(&mut self, node: &str, most_ms: u64) {
        let most = [100, most_ms][self.rng.below(2) as usize];
        let downtime = Duration::from_millis(self.rng.below(most));
        self.line(&format!("{node} is killed"));
        self.cluster.kill_process(node, downtime);
    }

    /// Stops the owner, and wakes it: sooner or later than its lease ends.
    async fn stop(&mut self, node: &str, lease_ms: u64) {
        let time = Duration::from_millis(self.rng.below(3 * lease_ms));
        self.line(&format!("{node} is stopped for {time:?}"));
        self.fleet.all_may_lose(time + UNNOTICED);
        self.cluster.world.pause(node);
        self.cluster.env.sleep(time).await;
        self.cluster.world.resume(node);
        self.line(&format!("{node} goes on"));
    }

    /// Requests of the owner to etcd do not arrive, or it gets no answers.
    async fn part_from_etcd(&mut self, standing: &Standing, node: &str, lease_ms: u64) {
        let requests = self.rng.one_in(2);
        let time = Duration::from_millis(self.rng.below(3 * lease_ms));
        let what = if requests { "does not reach" } else { "gets no answers from" };
        self.line(&format!("{node} {what} etcd for {time:?}"));
        standing.etcd.block(node, requests, true);
        self.cluster.env.sleep(time).await;
        standing.etcd.block(node, requests, false);
    }
}

//! A fence that switches hosts off, fails, or is slow.
//!
//! Invariants:
//! - it says that a client is cut off only when the process is dead and none of its requests is in
//!   flight;
//! - its answers follow from the seed.

use std::cell::RefCell;
use std::rc::Rc;

use env::sim::SimWorld;
use env::{DiskOptions, Env};
use mds::fence::{Acting, Answer, Fence, FenceAction, FenceTarget};
use types::Duration;

use crate::drain_state::MOVER;
use crate::zones;

/// Switches the host with this name off; it comes back by itself.
pub type SwitchOff = Box<dyn Fn(&str)>;

/// How long an action may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The node on a host that sees the locks of its client.
pub fn beside(host: &str) -> String {
    format!("{host}-fence")
}

/// The mover of a drain runs on a host of its own, as clients do.
pub(crate) fn give_mover_a_host(world: &SimWorld) {
    world.set_host(MOVER, MOVER);
    world.set_host(&beside(MOVER), MOVER);
}

/// Pause between two looks whether a dead process has requests in flight.
const LOOK: Duration = Duration::from_millis(20);

/// See the module.
pub struct SimFence {
    /// The world.
    pub world: SimWorld,
    /// That of the server.
    pub env: Env,
    /// Its zones.
    pub zones: Vec<types::PagId>,
    /// Switches hosts off, once there are any.
    pub switch_off: Rc<RefCell<Option<SwitchOff>>>,
}

impl SimFence {
    async fn cut(&self, target: &FenceTarget) -> Answer {
        let roll = self.env.random_u64() % 8;
        self.env.sleep(Duration::from_millis(self.env.random_u64() % 500)).await;
        if roll == 0 {
            return Answer::No("drawn".into());
        }
        if target.host == MOVER {
            // Its administrator starts another one.
            self.world.kill(MOVER);
        } else if let Some(switch_off) = &*self.switch_off.borrow() {
            switch_off(&target.host);
        }
        if roll == 1 {
            self.env.sleep(PATIENCE * 2).await;
        }
        while !self.is_quiet(target).await {
            self.env.sleep(LOOK).await;
        }
        Answer::Yes
    }

    /// Is the client's lock free on all devices, as its host sees them?
    async fn is_quiet(&self, target: &FenceTarget) -> bool {
        let there = self.world.node(&beside(&target.host));
        for &zone in &self.zones {
            let opened = there.open_disk(&zones::name(zone), DiskOptions::default()).await;
            let Ok(disk) = opened else { return false };
            if !disk.byte_is_free(target.client.0).await.unwrap_or(false) {
                return false;
            }
        }
        true
    }

    async fn check(&self, target: &FenceTarget) -> Answer {
        let roll = self.env.random_u64() % 8;
        if roll == 0 || !self.is_quiet(target).await {
            return Answer::No("drawn, or it is on".into());
        }
        if roll == 1 {
            self.env.sleep(PATIENCE * 2).await;
        }
        Answer::Yes
    }
}

impl Fence for SimFence {
    fn name(&self) -> String {
        "drawn".into()
    }

    fn covers(&self, _: &FenceTarget) -> bool {
        true
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn act<'a>(&'a self, action: FenceAction, target: &'a FenceTarget) -> Acting<'a> {
        match action {
            FenceAction::Cut => Box::pin(self.cut(target)),
            FenceAction::Check => Box::pin(self.check(target)),
            FenceAction::Restore => Box::pin(std::future::ready(Answer::Yes)),
        }
    }
}

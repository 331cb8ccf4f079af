//! Launches to idle devices: dirty runs that do not grow any more need not wait for their file's
//! age when their device has nothing to do.
//!
//! Invariants:
//! - a run is launched here only when its file was closed, or has accepted no write for [`STILL`]:
//!   a file that grows is launched by size, in large pieces;
//! - nothing is launched to a device that has a request to answer: what comes meanwhile goes
//!   together, and the device's queue joins it. Nothing is launched to one that is doubtful, absent
//!   or failing either: what has no place yet can go elsewhere;
//! - a file that its inode may hold is left alone: it needs no device;
//! - the task sleeps while no file has such runs.

use std::rc::{Rc, Weak};

use env::Env;
use types::limits::BLOCK_U64;
use types::{PagId, ServerId};

use super::context::DataContext;
use super::file::{File, FileState};
use super::stillness::STILL;

/// Launches as long as the context lives.
pub(super) async fn launch_to_idle_devices(env: Env, weak: Weak<DataContext>) {
    loop {
        let Some(ctx) = weak.upgrade() else { return };
        let wake = ctx.unlaunched_wake.notified();
        let none = ctx.unlaunched.borrow().is_empty();
        drop(ctx);
        if none {
            wake.await;
        }
        env.sleep(STILL).await;
        let Some(ctx) = weak.upgrade() else { return };
        ctx.launch_still_files();
    }
}

impl DataContext {
    /// Launches what is still and has an idle device; keeps what has to wait.
    fn launch_still_files(&self) {
        let now = self.env.now();
        // As they are now: of two files that may go to an idle device, both do.
        let idle = self.disks.idle_zones();
        let files = self.unlaunched.take();
        let mut kept = Vec::new();
        for weak in files {
            let Some(file) = weak.upgrade() else { continue };
            let mut state = file.state.borrow_mut();
            if !idle.is_empty() && state.stillness.is_still(now) {
                file.want_on(&mut state, &idle);
                file.launch_wanted(&mut state, 0, u64::MAX);
            }
            if state.has_unwanted() {
                kept.push(weak);
            } else {
                file.is_unlaunched.set(false);
            }
        }
        self.unlaunched.borrow_mut().append(&mut kept);
    }
}

impl File {
    /// A write was accepted: the file is to be committed. What the write has not launched goes to
    /// an idle device in a while.
    pub(super) fn enqueue_written(self: &Rc<Self>) {
        self.enqueue();
        self.validate();
        let mut state = self.state.borrow_mut();
        state.stillness.written(self.ctx.env.now());
        if state.has_unwanted() && !self.is_unlaunched.replace(true) {
            self.ctx.unlaunched.borrow_mut().push(Rc::downgrade(self));
            self.ctx.unlaunched_wake.notify_all();
        }
    }

    /// Requests the launch of the runs that go to one of these zones. A run whose zone is not
    /// chosen yet goes if the file may lie on any of them.
    fn want_on(&self, state: &mut FileState, idle: &[(PagId, ServerId)]) {
        let starts: Vec<u64> = state.dirty.keys().copied().collect();
        for start in starts {
            let placed = state.layout.at(start).filter(|mapped| mapped.in_place());
            let zone = placed.map(|mapped| mapped.pag).or_else(|| self.zone_of(state, start));
            let class = self.class();
            let is_one = |zone: PagId| idle.contains(&(zone, self.server()));
            let is_idle = match zone {
                Some(zone) => is_one(zone),
                None => self.ctx.zones_of(&class).into_iter().any(is_one),
            };
            if is_idle {
                state.dirty.get_mut(&start).expect("listed").wanted = true;
            }
        }
    }

    /// The zone that `block` will probably go to; `None`: that is not clear yet.
    fn zone_of(&self, state: &FileState, block: u64) -> Option<PagId> {
        let zones = self.ctx.zones_of(&self.class());
        if let [only] = zones[..] {
            return Some(only);
        }
        let part = state.policy.stripe(self.ino, block, zones.len());
        part.and_then(|(nth, _)| zones.get(nth).copied()).or(state.home)
    }
}

impl FileState {
    /// Has it runs whose launch nobody has requested, and that have to go to a device?
    fn has_unwanted(&self) -> bool {
        self.size > BLOCK_U64 && self.dirty.values().any(|run| !run.wanted)
    }
}

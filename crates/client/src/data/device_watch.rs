//! Watches the data devices: looks at those that are doubtful or absent, opens them anew, and says
//! which zones new blocks go to.
//!
//! Invariants:
//! - the watch sleeps while every device is present and none owes an answer;
//! - a device that comes back is used only when its label is right and this client's byte is locked
//!   on the open file that is used. If no open file of it was locked for a moment, the server has
//!   answered in this session since: so it has not taken this client for dead;
//! - it is flushed before it is used. It may still have writes whose loss was reported; what is
//!   read of them must not go in a power cut;
//! - no placement waits for a zone that is absent or silent while another zone has room.

use std::rc::{Rc, Weak};

use env::{Disk, Env};
use types::Duration;

use super::context::DataContext;
use super::device::{DataDevice, Watch, ZonePlace};
use super::device_open::{LOOK_MAX, Opening, Problem, no_answer};
use super::device_state::{Change, Condition, SILENT};
use super::disks::{DataDisk, absent_text};
use super::idle::launch_to_idle_devices;
use crate::api::DeviceStatus;

/// Pause between two rounds while a device owes an answer.
const TICK: Duration = Duration::from_millis(100);
/// Pause between two rounds while a device is absent.
const SLOW_TICK: Duration = Duration::from_secs(1);
/// How often a look reads the label of an open device before that counts as absent, and the pause
/// in between: one request that fails is no dead device.
const TRIES: u32 = 3;
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// Watches as long as the context lives.
async fn watch_devices(env: Env, weak: Weak<DataContext>, watch: Rc<Watch>) {
    loop {
        let wake = watch.wake.notified();
        watch.awake.set(false);
        let Some(ctx) = weak.upgrade() else { return };
        let pause = ctx.watch_round();
        drop(ctx);
        match pause {
            Some(pause) if pause <= TICK => {
                watch.awake.set(true);
                env.sleep(pause).await;
            }
            Some(pause) => drop(env.timeout(pause, wake).await),
            None => wake.await,
        }
    }
}

impl DataContext {
    /// Begins to watch the devices, and to launch to those that are idle.
    pub(super) fn watch_devices(self: &Rc<Self>) {
        let (env, watch) = (self.env.clone(), self.disks.watch.clone());
        self.env.spawn(watch_devices(env.clone(), Rc::downgrade(self), watch));
        self.env.spawn(launch_to_idle_devices(env, Rc::downgrade(self)));
        self.choose_zones();
    }

    /// One round of the watch. Returns the pause until the next one; `None`: until it is roused.
    fn watch_round(self: &Rc<Self>) -> Option<Duration> {
        let now = self.env.now();
        for (server, opening) in self.disks.openings() {
            self.rpc.require_epoch(server, opening.fencing_epoch());
        }
        let mut pause = None;
        for device in self.disks.devices() {
            device.silent.set(device.silence() >= SILENT);
            let (look, settled) = {
                let state = device.state.borrow();
                (state.look_due(now), state.is_settled(now))
            };
            if look {
                self.begin_look(device.clone());
            }
            if device.has_pending() {
                pause = Some(TICK);
            } else if !settled {
                pause = pause.or(Some(SLOW_TICK));
            }
        }
        self.choose_zones();
        pause
    }

    /// Says which zones new blocks may go to: not to absent ones. Not to those that are silent or
    /// failing either, unless no other zone has room.
    pub(super) fn choose_zones(self: &Rc<Self>) {
        let now = self.env.now();
        let poor =
            |device: &Rc<DataDevice>| device.silent.get() || device.state.borrow().is_failing(now);
        let is_sound = |device: &Rc<DataDevice>| !device.is_absent() && !poor(device);
        let mut changed = Vec::new();
        // Nothing is placed at targets: the server says where files lie there.
        for class in self.each_class() {
            let is_its = |zone: &Rc<DataDisk>| {
                zone.has_blocks_of(class.server) && class.allows(zone.info().id)
            };
            let zones = || self.disks.zones().into_iter().filter(is_its);
            let choosy = class.grants.is_choosy(now) && zones().any(|zone| is_sound(&zone.device));
            let mut any = false;
            for zone in zones() {
                let device = &zone.device;
                let avoid = zone.is_lost() || device.is_absent() || choosy && poor(device);
                any |= class.pool.set_avoided(zone.info().id, avoid);
            }
            if any {
                changed.push(class);
            }
        }
        let absent = self.disks.devices().filter(|device| device.is_absent()).count();
        self.disks.watch.absent.set(absent);
        let stuck =
            self.disks.devices().filter(|device| device.silent.get()).map(|device| device.held());
        self.budget.excuse(stuck.sum());
        changed.iter().for_each(|class| self.zones_changed(class));
    }

    fn begin_look(self: &Rc<Self>, device: Rc<DataDevice>) {
        device.state.borrow_mut().look_begun();
        let (weak, env) = (Rc::downgrade(self), self.env.clone());
        let (opening, rpc) = (self.disks.opening(device.server).clone(), self.rpc.clone());
        self.env.spawn(async move {
            let mut found = look(&device, &opening).await;
            rpc.require_epoch(device.server, opening.fencing_epoch());
            if found.is_ok() && device.lock_gap.get() {
                // The server is asked whether the session goes on, now that the byte is locked.
                match rpc.sync(device.server).await {
                    Err(fault) => found = Err(format!("the server: {fault}")),
                    Ok(()) => device.lock_gap.set(false),
                }
            }
            if found.is_ok()
                && device.is_absent()
                && let Err(error) = device.flush_open_file().await
            {
                rpc.log(&format!(
                    "{} at {}: cannot be flushed: {error}; a power cut may take what was lost \
                     there, also what has been read since",
                    device.zone_names(),
                    device.path()
                ));
            }
            let change = device.state.borrow_mut().looked(env.now(), found);
            if let Some(ctx) = weak.upgrade() {
                ctx.device_changed(&device, change);
            }
        });
    }

    fn device_changed(self: &Rc<Self>, device: &Rc<DataDevice>, change: Change) {
        let (zones, path) = (device.zone_names(), device.path());
        match (change, device.state.borrow().condition()) {
            (Change::Lost | Change::Reason, Condition::Absent { why, .. }) => {
                self.rpc.log(&absent_text(&zones, &path, why));
            }
            (Change::Back, _) => self.rpc.log(&format!("{zones} at {path} is back")),
            _ => {}
        }
        if change == Change::Lost {
            device.give_up_unflushed();
        }
        if matches!(change, Change::Lost | Change::Back) {
            self.choose_zones();
        }
        self.disks.watch.rouse();
    }

    /// See [`crate::boundary::DataHalf::devices`].
    pub(super) fn devices(&self) -> Vec<DeviceStatus> {
        let now = self.env.now();
        let lost = self.disks.arrivals.lost();
        let statuses = |device: &Rc<DataDevice>| {
            let state = device.state.borrow();
            let (name, since, why) = match state.condition() {
                Condition::Absent { since, why } => ("absent", now.since(*since), why.clone()),
                _ if device.silence() >= SILENT => ("silent", device.silence(), String::new()),
                _ if state.is_failing(now) => ("failing", Duration::ZERO, String::new()),
                _ => ("present", Duration::ZERO, String::new()),
            };
            let target = device.target_status();
            let (name, since, why) = match &target {
                Some(target) if !target.connected => ("away", target.down, target.why.clone()),
                _ => (name, since, why),
            };
            let of_zone = |zone: &ZonePlace| {
                let (zone, path, why) = (zone.info.id, device.path(), why.clone());
                let is_lost = lost.contains(&zone);
                let name = if is_lost { "lost" } else { name };
                let (target, load) = (target.clone(), device.load());
                DeviceStatus { zone, path, state: name, since, why, target, load }
            };
            device.places().iter().map(|place| of_zone(place)).collect::<Vec<_>>()
        };
        self.disks.devices().flat_map(|device| statuses(&device)).collect()
    }
}

/// Looks at the device: through the open file, if it is open; if it is absent and that fails, by
/// opening it anew.
///
/// # Errors
/// Why it is not there, or is not the zone.
async fn look(device: &Rc<DataDevice>, opening: &Opening) -> Result<(), String> {
    if let Some(open) = device.open_file() {
        match look_through(opening, device, open).await {
            Ok(_) => return Ok(()),
            Err(problem) if !device.is_absent() => return Err(problem.to_string()),
            Err(_) => {}
        }
    }
    match opening.open(&device.infos(), &device.path()).await {
        Ok(fresh) => {
            device.set_open(fresh);
            Ok(())
        }
        Err(problem) => {
            if matches!(problem, Problem::Lock { busy: true, .. }) && device.give_up_file() {
                device.lock_gap.set(true);
            }
            Err(problem.to_string())
        }
    }
}

/// Looks through the open file that there is, unless an earlier such look still waits.
async fn look_through(
    opening: &Opening,
    device: &Rc<DataDevice>,
    disk: Disk,
) -> Result<(), Problem> {
    if device.looks_through.replace(true) {
        return no_answer();
    }
    let (this, device, absent) = (opening.clone(), device.clone(), device.is_absent());
    let look = opening.env.spawn_join(async move {
        let zones = device.infos();
        let mut found = this.check(&disk, &zones).await;
        for _ in 1..TRIES {
            if found.is_err() {
                this.env.sleep(TRY_PAUSE).await;
                found = this.check(&disk, &zones).await;
            }
        }
        device.looks_through.set(false);
        found.map(drop)
    });
    if absent {
        opening.env.timeout_awake(LOOK_MAX, look).await.unwrap_or_else(no_answer)
    } else {
        look.await
    }
}

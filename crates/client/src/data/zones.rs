//! Data zones that are added, drained, lost or found again while the file system is mounted.
//!
//! Invariants:
//! - a zone stays known for as long as the client runs; what changes is whether it is lost, and the
//!   path of a device that is absent;
//! - a segment or a grant may name a zone before the server's push about it is here: the client
//!   then asks for the list. Only a zone that the server does not know either is damaged metadata;
//! - a new zone is opened as at the mount, but never refuses anything: one that cannot be used is
//!   absent.

use std::collections::BTreeSet;
use std::rc::Rc;

use proto::mds::{PagInfo, TARGET_ZONE, ZoneList};
use types::{Fault, PagId, ServerId};

use super::context::DataContext;
use super::device::DataDevice;
use super::device_open::{LOOK_MAX, Opening, zone_names};
use super::disks::{DataDisk, by_device};

impl DataContext {
    /// The zone with this number, for files of the server, once the client has it.
    ///
    /// # Errors
    /// `Corrupt`: the server knows no such zone. `Io`: it cannot be used before the next mount.
    /// Else those of the request to the server.
    pub(super) async fn zone(
        self: &Rc<Self>,
        server: ServerId,
        pag: PagId,
    ) -> Result<Rc<DataDisk>, Fault> {
        let arrivals = &self.disks.arrivals;
        loop {
            let opened = arrivals.opened.notified();
            match self.disks.get(server, pag) {
                Err(Fault::Corrupt) => {}
                found => return found,
            }
            if arrivals.opening.borrow().contains(&(pag, server)) {
                opened.await;
                continue;
            }
            if arrivals.refused.borrow().contains(&(pag, server)) {
                return Err(Fault::Io);
            }
            self.ask_for_zone(server, pag).await?;
        }
    }

    /// Asks the servers for their zones, the one whose file it is first, until that one has this
    /// zone, or another one has it as a target.
    ///
    /// # Errors
    /// `Corrupt`: none has. Else those of the requests.
    async fn ask_for_zone(self: &Rc<Self>, of: ServerId, pag: PagId) -> Result<(), Fault> {
        let others = self.sessions.servers().into_iter().filter(|&server| server != of);
        for server in [of].into_iter().chain(others) {
            let list = match self.rpc.zones(server).await {
                // A server that cannot be asked never adds zones.
                Err(Fault::Unsupported) => continue,
                list => list?,
            };
            let is_it = |zone: &PagInfo| server == of || zone.kind == TARGET_ZONE;
            if list.zones.iter().any(|zone| zone.id == pag && is_it(zone)) {
                self.zones_reported(server, &list);
                return Ok(());
            }
        }
        Err(Fault::Corrupt)
    }

    /// See [`crate::boundary::DataHalf::zones_reported`].
    pub(super) fn zones_reported(self: &Rc<Self>, server: ServerId, list: &ZoneList) {
        self.zones_offered(server, &list.zones);
        self.disks.arrivals.lost_ids.set(server, &list.lost);
        self.mark_lost();
        self.mark_leaving(server, &list.leaving);
    }

    /// Nothing new goes to the zones that drain, as far as others have room; what the pools have of
    /// them goes back.
    fn mark_leaving(self: &Rc<Self>, server: ServerId, leaving: &[PagId]) {
        let arrivals = &self.disks.arrivals;
        let before = arrivals.leaving.all();
        arrivals.leaving.set(server, leaving);
        let leaving = arrivals.leaving.all();
        for zone in leaving.difference(&before) {
            self.rpc.log(&format!("data zone {zone} drains, as the administrator says"));
        }
        for zone in before.difference(&leaving) {
            self.rpc.log(&format!("data zone {zone} does not drain any more"));
        }
        if before != leaving {
            let this = self.clone();
            self.env.spawn(async move { this.leave_zones().await });
        }
    }

    /// See [`crate::boundary::DataHalf::shun_zones`].
    pub(super) fn shun_zones(&self, zones: BTreeSet<PagId>) {
        *self.disks.arrivals.shunned.borrow_mut() = zones;
    }

    /// See [`crate::boundary::DataHalf::zones_offered`].
    pub(super) fn zones_offered(self: &Rc<Self>, server: ServerId, zones: &[PagInfo]) {
        let arrivals = &self.disks.arrivals;
        let is_coming = |zone: &PagInfo| {
            arrivals.opening.borrow().contains(&(zone.id, server))
                || arrivals.refused.borrow().contains(&(zone.id, server))
        };
        let mut new = Vec::new();
        for zone in zones {
            match self.disks.get(server, zone.id) {
                Ok(known) => self.note_path(&known, zone),
                Err(Fault::Corrupt) if !is_coming(zone) => new.push(zone.clone()),
                Err(_) => {}
            }
        }
        for zones in by_device(&new) {
            if zones[0].kind == TARGET_ZONE {
                self.meet_target(server, &zones[0]);
            } else {
                self.open_zones(server, zones);
            }
        }
    }

    /// The server has another path for a zone: it is used if the device is not at the old one.
    fn note_path(&self, known: &DataDisk, zone: &PagInfo) {
        let device = &known.device;
        let (path, is_given) = self.disks.path_of(&device.infos()).unwrap_or_default();
        let moves = !is_given && path != zone.path && device.path() != zone.path;
        if moves && device.is_absent() && !zone.path.is_empty() {
            self.rpc.log(&format!("{} is looked for at {}", device.zone_names(), zone.path));
            device.set_path(&zone.path);
            self.disks.watch.rouse();
        }
    }

    /// Meets a target that the client does not know.
    fn meet_target(self: &Rc<Self>, server: ServerId, zone: &PagInfo) {
        let (path, _) = self.disks.path_of(std::slice::from_ref(zone)).unwrap_or_default();
        let names = zone_names(std::slice::from_ref(zone));
        self.rpc.log(&format!("{names}, a target, has been added, at {path}"));
        self.disks.insert_target(&self.env, (server, zone), &path);
        self.mark_lost();
        self.disks.arrivals.opened.notify_all();
    }

    /// Opens the device of zones that the client does not know, unless it is open already.
    fn open_zones(self: &Rc<Self>, server: ServerId, zones: Vec<PagInfo>) {
        let arrivals = &self.disks.arrivals;
        let is_on = |device: &Rc<DataDevice>| {
            device.infos().iter().any(|zone| zone.device == zones[0].device)
        };
        let mut of_server = self.disks.devices().filter(|device| device.server == server);
        let ids: Vec<_> = zones.iter().map(|zone| (zone.id, server)).collect();
        let known = of_server.find(|device| !device.is_target() && is_on(device));
        let Ok((path, _)) = self.disks.path_of(&zones) else { return self.refuse(server, &zones) };
        arrivals.opening.borrow_mut().extend(ids.iter().copied());
        let (weak, opening) = (Rc::downgrade(self), self.disks.opening(server).clone());
        self.env.spawn(async move {
            let (starts, found) = match &known {
                Some(device) => (starts_on(&opening, device, &zones).await, None),
                None => (None, Some(opening.open_in_time(&zones, &path).await)),
            };
            let Some(ctx) = weak.upgrade() else { return };
            match (known.zip(starts), found) {
                (_, Some(found)) => {
                    ctx.rpc.log(&format!("{} has been added, at {path}", zone_names(&zones)));
                    let log = |text: &str| ctx.rpc.log(text);
                    ctx.disks.insert(&ctx.env, (server, &zones), &path, found, log);
                }
                (Some((device, starts)), None) => {
                    ctx.rpc.log(&format!("{} has been added, at {path}", zone_names(&zones)));
                    ctx.disks.insert_on(&device, &zones, &starts);
                }
                (None, None) => ctx.refuse(server, &zones),
            }
            let arrivals = &ctx.disks.arrivals;
            arrivals.opening.borrow_mut().retain(|id| !ids.contains(id));
            ctx.mark_lost();
            ctx.choose_zones();
            ctx.each_class().iter().for_each(|class| ctx.zones_changed(class));
            ctx.disks.watch.rouse();
            ctx.disks.arrivals.opened.notify_all();
        });
    }

    /// These zones of the server cannot be used before the next mount.
    fn refuse(&self, server: ServerId, zones: &[PagInfo]) {
        self.rpc.log(&format!(
            "{} lies on a device that is in use: it can be used after the next mount",
            zone_names(zones)
        ));
        let mut refused = self.disks.arrivals.refused.borrow_mut();
        refused.extend(zones.iter().map(|zone| (zone.id, server)));
    }

    /// Marks the zones that the server called lost, and no others.
    fn mark_lost(self: &Rc<Self>) {
        let arrivals = &self.disks.arrivals;
        let (zones, lost_ids) = (self.disks.zones(), arrivals.lost_ids.all());
        let mut changed = false;
        for zone in &zones {
            let id = zone.info().id;
            let lost = lost_ids.contains(&id);
            if !zone.set_lost(lost) {
                continue;
            }
            changed = true;
            let what = match lost {
                true => "is lost, as the administrator says: what lies on it fails with EIO",
                false => "is not lost, as the administrator says: it is used again",
            };
            self.rpc.log(&format!("data zone {id} {what}"));
        }
        arrivals.lost.set(zones.iter().filter(|zone| zone.is_lost()).count());
        for device in self.disks.devices() {
            let mut on_it = zones.iter().filter(|zone| Rc::ptr_eq(&zone.device, &device));
            if changed && !device.is_absent() && on_it.all(|zone| zone.is_lost()) {
                // Nothing waits for it any more.
                device.give_up_unflushed();
            }
        }
        if changed {
            self.choose_zones();
        }
    }

    /// See [`crate::boundary::DataHalf::any_out_of_service`].
    pub(super) fn any_out_of_service(&self) -> bool {
        let arrivals = &self.disks.arrivals;
        !arrivals.lost_ids.is_empty() || !arrivals.leaving.is_empty()
    }
}

/// First blocks of zones on a device that has others of the same server; `None`: it is absent, or
/// does not have them.
async fn starts_on(
    opening: &Opening,
    device: &Rc<DataDevice>,
    zones: &[PagInfo],
) -> Option<Vec<u64>> {
    let disk = device.open_file()?;
    let (this, zones) = (opening.clone(), zones.to_vec());
    let check = opening.env.spawn_join(async move { this.check(&disk, &zones).await });
    let checked = opening.env.timeout_awake(LOOK_MAX, check).await?;
    checked.ok().map(|(starts, _)| starts)
}

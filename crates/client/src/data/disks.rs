//! The data zones of a client, and their devices.
//!
//! Invariants:
//! - a device is opened once, however many data zones of one metadata server lie on it, and used
//!   only after its label has confirmed that it has the expected ones;
//! - a target may be of several metadata servers, and a data zone, too, if one has lent the others
//!   blocks of it. Such a zone is there once for each of them, with a device of its own;
//! - a data zone is addressed from the start of its slice. That start comes from the label, and
//!   only [`DataDisk::offset`] adds it;
//! - nothing goes to an absent device, and nothing waits for one;
//! - a zone of a target has no blocks to place: its changes are those of objects.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use env::sync::{Notify, first};
use env::{Env, IoBuf};
use proto::commit::CommitPolicy;
use proto::mds::{BORROWED_ZONE, PagInfo, TARGET_ZONE};
use proto::prealloc::Allocation;
use types::limits::{BLOCK, BLOCK_U64};
use types::{Bug, Fault, PagId, ServerId, Uuid, planted};

use super::arrivals::Arrivals;
use super::device::{DataDevice, Watch, ZonePlace};
use super::device_open::{Opened, Opening, Problem, zone_names};
use super::device_writes::Written;
use super::given_up::GivenUp;
use super::target::{Meeting, TargetSettings};
use crate::api::OnEdit;
use crate::boundary::Offer;
use crate::waits::Waits;

/// Settings for the data devices.
#[derive(Clone)]
pub struct DataConfig {
    /// Paths of devices that differ on this host from those that the server reports.
    pub devices: Vec<(PagId, String)>,
    /// Dirty bytes beyond which writers wait.
    pub dirty_max: usize,
    /// Devices are opened for reading only.
    pub read_only: bool,
    /// How blocks for growing files are chosen.
    pub allocation: Allocation,
    /// How files are committed.
    pub commit: CommitPolicy,
    /// Called whenever content changes.
    pub on_edit: Option<OnEdit>,
    /// Where operations name their waits.
    pub waits: Rc<Waits>,
    /// How targets are met.
    pub targets: TargetSettings,
}

/// One data zone: a slice of a device.
pub(super) struct DataDisk {
    pub device: Rc<DataDevice>,
    /// Its place on the device.
    place: Rc<ZonePlace>,
    /// By their object, which is 0 on a device, and their first block.
    in_flight: RefCell<BTreeMap<(u64, u64), Flight>>,
    write_done: Notify,
    /// The administrator says that its device is gone.
    lost: Cell<bool>,
}

/// A write that waits in the queue of its device, or is in flight.
#[derive(Clone, Copy)]
struct Flight {
    /// One past its last block.
    end: u64,
    /// The client's session in which it was launched; [`GIVEN_UP`]: nobody waits for it.
    session: u64,
}

/// See [`Flight::session`].
const GIVEN_UP: u64 = u64::MAX;

/// A change of an object that is in flight until this is dropped.
struct ChangeInFlight {
    disk: Rc<DataDisk>,
    key: (u64, u64),
    operation: u64,
    given_up: Rc<GivenUp>,
}

impl Drop for ChangeInFlight {
    fn drop(&mut self) {
        let flight = self.disk.end_write(self.key);
        self.disk.device.change_ended(self.operation);
        if flight.is_some_and(|flight| flight.session == GIVEN_UP) {
            self.given_up.end();
        }
    }
}

impl DataDisk {
    fn new(device: &Rc<DataDevice>, place: &Rc<ZonePlace>) -> DataDisk {
        let (in_flight, write_done) = (RefCell::default(), Notify::new());
        let (device, place, lost) = (device.clone(), place.clone(), Cell::new(false));
        DataDisk { device, place, in_flight, write_done, lost }
    }

    /// Are blocks of files of the server placed here?
    pub fn has_blocks_of(&self, server: ServerId) -> bool {
        !self.device.is_target() && self.device.server == server
    }

    /// Is the zone lost? Nothing goes there, then.
    pub fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// See [`DataDisk::is_lost`]. Returns whether that is new.
    pub fn set_lost(&self, lost: bool) -> bool {
        self.lost.replace(lost) != lost
    }

    /// What the server says of the zone.
    pub fn info(&self) -> &PagInfo {
        &self.place.info
    }

    /// Byte on the device of block `addr` of the zone.
    fn offset(&self, addr: u64) -> u64 {
        (self.place.start.get() + addr) * BLOCK_U64
    }

    /// Reads whole blocks from block `addr` on.
    pub async fn read(&self, addr: u64, buf: IoBuf) -> (Result<(), Fault>, IoBuf) {
        if !self.contains(addr, buf.len()) {
            return (Err(Fault::Corrupt), buf);
        }
        if self.is_lost() {
            return (Err(Fault::Io), buf);
        }
        self.device.read(self.offset(addr), buf).await
    }

    /// Writes whole blocks from block `addr` on, if `permits` says yes to the session when the
    /// write goes to the device. No write of an earlier session may wait or be in flight there.
    pub async fn write(
        &self,
        session: u64,
        addr: u64,
        buf: IoBuf,
        permits: impl Fn(u64) -> bool,
    ) -> Result<Written, Fault> {
        if !self.contains(addr, buf.len()) {
            return Err(Fault::Corrupt);
        }
        if self.is_lost() || self.device.refuses() {
            return Err(Fault::Io);
        }
        let end = addr + (buf.len() / BLOCK) as u64;
        self.begin_write(session, (0, addr), end);
        // Only writes of this zone are joined with it: block 0 of a zone is never written.
        let permits = |session| !self.is_lost() && permits(session);
        let written = self.device.write(session, self.offset(addr), buf, permits).await;
        self.end_write((0, addr));
        written
    }

    /// Runs a change of blocks `[addr, end)` of an object at the target. No earlier one of these
    /// blocks may be in flight. If the zone becomes lost meanwhile, the change is given up: what
    /// the target may have of it goes on, and is counted in `given_up` until it has ended.
    ///
    /// # Errors
    /// Those of `change`; `Io`: the zone is lost.
    pub async fn change_object(
        self: &Rc<Self>,
        session: u64,
        (object, addr, end): (u64, u64, u64),
        change: impl Future<Output = Result<u64, Fault>> + 'static,
        given_up: &Rc<GivenUp>,
    ) -> Result<u64, Fault> {
        if self.is_lost() {
            return Err(Fault::Io);
        }
        let lost = self.device.lost();
        let key = (object, addr);
        self.begin_write(session, key, end);
        let (operation, change) = self.device.begin_change(change);
        let given_up = given_up.clone();
        let in_flight =
            ChangeInFlight { disk: self.clone(), key, operation, given_up: given_up.clone() };
        let change = self.device.env.spawn_join(async move {
            let changed = change.await;
            drop(in_flight);
            changed
        });
        let changed = first(change, lost).await;
        changed.unwrap_or_else(|| {
            if let Some(flight) = self.in_flight.borrow_mut().get_mut(&key) {
                flight.session = GIVEN_UP;
                given_up.begin();
            }
            self.device.retract_change(operation);
            Err(Fault::Io)
        })
    }

    fn end_write(&self, key: (u64, u64)) -> Option<Flight> {
        let flight = self.in_flight.borrow_mut().remove(&key);
        self.write_done.notify_all();
        flight
    }

    /// Waits until no write of an earlier session is in flight in `[addr, end)`, of an object or,
    /// with 0, of the device. A stalled device may hold one for longer than the session and its
    /// blocks' quarantine.
    pub async fn earlier_writes_done(&self, session: u64, (object, addr): (u64, u64), end: u64) {
        loop {
            let done = self.write_done.notified();
            let lost = self.device.lost();
            let gone = self.is_lost() || self.device.is_absent();
            if gone || !self.is_written_earlier(session, (object, addr), end) {
                return;
            }
            let _ = first(done, lost).await;
        }
    }

    /// Is a write of an earlier session in flight in `[addr, end)`?
    pub fn is_written_earlier(&self, session: u64, (object, addr): (u64, u64), end: u64) -> bool {
        let writes = self.in_flight.borrow();
        let before = writes.range((object, 0)..(object, end)).rev();
        let mut met = before.take_while(|(_, flight)| flight.end > addr);
        met.any(|(_, flight)| flight.session != session)
    }

    /// Of two concurrent writes to one block, either could be the one that stays.
    fn begin_write(&self, session: u64, (object, addr): (u64, u64), end: u64) {
        let mut writes = self.in_flight.borrow_mut();
        let before = writes.range((object, 0)..(object, end)).next_back();
        assert!(
            before.is_none_or(|(_, other)| other.end <= addr),
            "two writes of block {addr} in flight at once"
        );
        writes.insert((object, addr), Flight { end, session });
    }

    /// Is the range inside the zone, and not its block 0?
    fn contains(&self, addr: u64, bytes: usize) -> bool {
        let len = (bytes / BLOCK) as u64;
        addr > 0 && addr.checked_add(len).is_some_and(|end| end <= self.info().blocks)
    }
}

/// The data zones by number, and their devices. Zones come (`zones.rs`) and never go.
pub(super) struct Disks {
    /// By number and metadata server; a target has the one that has offered it first.
    by_pag: RefCell<BTreeMap<(PagId, ServerId), Rc<DataDisk>>>,
    devices: RefCell<Vec<Rc<DataDevice>>>,
    /// Paths that were given for this host.
    given: Vec<(PagId, String)>,
    /// How targets are met.
    meeting: Meeting,
    /// How those of each server are opened.
    openings: BTreeMap<ServerId, Opening>,
    pub(super) watch: Rc<Watch>,
    pub(super) arrivals: Arrivals,
}

impl Drop for Disks {
    fn drop(&mut self) {
        self.watch.rouse();
    }
}

impl Disks {
    /// Opens every zone and checks its label. A device that is not there or cannot be read is
    /// absent: only the files that lie on it fail.
    ///
    /// # Errors
    /// A device is given for a zone that does not exist, or it is another one than the zone that
    /// it is given for, or it holds metadata.
    pub async fn open(
        env: &Env,
        config: &DataConfig,
        fs: Uuid,
        offers: &[Offer],
        log: Rc<dyn Fn(&str)>,
    ) -> Result<Disks, String> {
        check_offers(offers)?;
        let all = || offers.iter().flat_map(|offer| &offer.zones);
        let unknown = |(id, _): &&(PagId, String)| all().all(|zone| zone.id != *id);
        if let Some((id, path)) = config.devices.iter().find(unknown) {
            return Err(format!(
                "{path} is given for data zone {id}, which this file system does not have"
            ));
        }
        let (settings, shared) = (config.targets.clone(), config.waits.shared().clone());
        let targets = Rc::default();
        let meeting = Meeting { settings, fs, shared, log: log.clone(), targets };
        let disks = Disks {
            meeting,
            by_pag: RefCell::default(),
            devices: RefCell::default(),
            given: config.devices.clone(),
            openings: offers
                .iter()
                .map(|of| (of.server, Opening::new(env, fs, of.client, config.read_only)))
                .collect(),
            watch: Rc::default(),
            arrivals: Arrivals::default(),
        };
        let mut looks = Vec::new();
        let by_server = offers.iter().map(|offer| (offer.server, by_device(&offer.zones)));
        let devices = by_server
            .flat_map(|(server, devices)| devices.into_iter().map(move |zones| (server, zones)));
        for (server, zones) in devices {
            let (path, is_given) = disks.path_of(&zones)?;
            if zones[0].kind == TARGET_ZONE {
                if disks.get(server, zones[0].id).is_ok() {
                    continue;
                }
                disks.insert_target(env, (server, &zones[0]), &path);
                continue;
            }
            let (opening, asked, at) = (disks.opening(server).clone(), zones.clone(), path.clone());
            let look = env.spawn_join(async move { opening.open_in_time(&asked, &at).await });
            looks.push((server, zones, path, is_given, look));
        }
        for (server, zones, path, is_given, look) in looks {
            let found = match look.await {
                Err(problem) if problem.refuses_mount(is_given) => {
                    return Err(format!("{} at {path}: {problem}", zone_names(&zones)));
                }
                found => found,
            };
            disks.insert(env, (server, &zones), &path, found, &*log);
        }
        Ok(disks)
    }

    /// How devices of the server are opened.
    pub fn opening(&self, server: ServerId) -> &Opening {
        self.openings.get(&server).expect("every server is known from the beginning")
    }

    /// How devices are opened, for each server.
    pub fn openings(&self) -> impl Iterator<Item = (ServerId, &Opening)> {
        self.openings.iter().map(|(server, opening)| (*server, opening))
    }

    /// Number of zones of the server that blocks of files are placed in: those that are no targets.
    pub fn count(&self, server: ServerId) -> usize {
        let zones = self.by_pag.borrow();
        zones.values().filter(|zone| zone.has_blocks_of(server)).count()
    }

    /// The numbers of these zones, sorted.
    pub fn numbers(&self, server: ServerId) -> Vec<PagId> {
        let zones = self.by_pag.borrow();
        let of_server = zones.iter().filter(|(_, zone)| zone.has_blocks_of(server));
        of_server.map(|(&(number, _), _)| number).collect()
    }

    /// Enters a zone that is a target, which `server` has offered.
    pub fn insert_target(&self, env: &Env, (server, zone): (ServerId, &PagInfo), path: &str) {
        let device = DataDevice::new_target(env, (server, zone), path, &self.watch, &self.meeting);
        self.enter(&device, &device.places());
        self.devices.borrow_mut().push(device);
    }

    /// Enters the device of these zones of the server, as the first look found it.
    pub fn insert(
        &self,
        env: &Env,
        (server, zones): (ServerId, &[PagInfo]),
        path: &str,
        found: Result<Opened, Problem>,
        log: impl Fn(&str),
    ) {
        let found = found.map_err(|problem| problem.to_string());
        match &found {
            Ok(Opened { damage: Some(damage), .. }) => {
                log(&format!("{path}: {damage}; `redbud fsck --repair` writes it anew"));
            }
            Ok(_) => {}
            Err(why) => log(&absent_text(&zone_names(zones), path, why)),
        }
        let device = Rc::new(DataDevice::new(env, (server, zones), path, &self.watch, found));
        self.enter(&device, &device.places());
        self.devices.borrow_mut().push(device);
    }

    /// Enters further zones of the server on a device that is open, with their first blocks there.
    pub fn insert_on(&self, device: &Rc<DataDevice>, zones: &[PagInfo], starts: &[u64]) {
        let places: Vec<_> = zones
            .iter()
            .zip(starts)
            .map(|(zone, &start)| {
                Rc::new(ZonePlace { info: zone.clone(), start: Cell::new(start) })
            })
            .collect();
        device.add_places(&places);
        self.enter(device, &places);
    }

    fn enter(&self, device: &Rc<DataDevice>, places: &[Rc<ZonePlace>]) {
        let mut by_pag = self.by_pag.borrow_mut();
        for place in places {
            let disk = Rc::new(DataDisk::new(device, place));
            by_pag.insert((place.info.id, device.server), disk);
        }
    }

    /// The zone of this number that has blocks of files of the server, or is a target.
    fn find(&self, server: ServerId, pag: PagId) -> Option<Rc<DataDisk>> {
        let zones = self.by_pag.borrow();
        let mut met = zones.range((pag, ServerId(0))..=(pag, ServerId(u16::MAX)));
        let is_its = |disk: &DataDisk| disk.device.is_target() || disk.has_blocks_of(server);
        met.find(|(_, disk)| is_its(disk)).map(|(_, disk)| disk.clone())
    }

    /// The path of the device with these zones, and whether it was given for one of them.
    ///
    /// # Errors
    /// Several paths were given.
    pub fn path_of(&self, zones: &[PagInfo]) -> Result<(String, bool), String> {
        let of_zones = |(id, _): &&(PagId, String)| zones.iter().any(|zone| zone.id == *id);
        let mut given = self.given.iter().filter(of_zones).map(|(_, path)| path);
        let Some(path) = given.next() else { return Ok((zones[0].path.clone(), false)) };
        match given.find(|other| *other != path) {
            Some(other) => Err(format!(
                "{} lie on one device, but {path} and {other} are given: give one path",
                zone_names(zones)
            )),
            None => Ok((path.clone(), true)),
        }
    }

    /// Is the device of this zone absent, or the zone lost?
    pub fn is_absent(&self, server: ServerId, pag: PagId) -> bool {
        let zone = self.find(server, pag);
        zone.is_some_and(|disk| disk.is_lost() || disk.device.is_absent())
    }

    /// Is any device absent, or any zone lost?
    pub fn any_absent(&self) -> bool {
        self.watch.absent.get() > 0 || self.arrivals.any_lost()
    }

    /// Is any device silent?
    pub fn any_silent(&self) -> bool {
        self.devices.borrow().iter().any(|device| device.silent.get())
    }

    /// As [`Disks::is_absent`], for a request that is refused if so.
    pub fn refuses(&self, server: ServerId, pag: PagId) -> bool {
        let zone = self.find(server, pag);
        zone.is_some_and(|disk| disk.is_lost() || disk.device.refuses())
    }

    /// The zones whose devices are sound and have nothing to do, each with its server.
    pub fn idle_zones(&self) -> Vec<(PagId, ServerId)> {
        let zones = self.by_pag.borrow();
        let idle = zones.iter().filter(|(_, disk)| !disk.is_lost() && disk.device.is_idle());
        idle.map(|(&zone, _)| zone).collect()
    }

    /// Somebody wants the devices that are absent.
    pub fn ask_for_absent(&self) {
        self.devices.borrow().iter().for_each(|device| _ = device.refuses());
    }

    /// Does a launched write go to a device that answers, so that its bytes will be released?
    pub fn is_room_coming(&self) -> bool {
        let comes = |device: &Rc<DataDevice>| device.held() > 0 && !device.silent.get();
        self.devices.borrow().iter().any(comes)
    }

    /// The zone with this number, for files of the server, if the client knows it; see
    /// `DataContext::zone` for one that may be new. A segment that names a zone that does not exist
    /// is damaged metadata.
    pub fn get(&self, server: ServerId, pag: PagId) -> Result<Rc<DataDisk>, Fault> {
        if planted(Bug::ErrorSpreads)
            && self.devices.borrow().iter().any(|device| device.has_losses())
        {
            return Err(Fault::Io);
        }
        self.find(server, pag).ok_or(Fault::Corrupt)
    }

    /// All zones.
    pub fn zones(&self) -> Vec<Rc<DataDisk>> {
        self.by_pag.borrow().values().cloned().collect()
    }

    /// All devices, as they are now.
    pub fn devices(&self) -> std::vec::IntoIter<Rc<DataDevice>> {
        self.devices.borrow().clone().into_iter()
    }
}

/// Are the zones of all servers different ones, but for targets and zones that one has lent others
/// blocks of?
fn check_offers(offers: &[Offer]) -> Result<(), String> {
    let mut known: BTreeMap<PagId, (ServerId, &PagInfo)> = BTreeMap::new();
    for offer in offers {
        for zone in &offer.zones {
            let Some((other, before)) = known.insert(zone.id, (offer.server, zone)) else {
                continue;
            };
            let may_share = match (zone.kind, before.kind) {
                (TARGET_ZONE, TARGET_ZONE) => true,
                (TARGET_ZONE, _) | (_, TARGET_ZONE) => false,
                (one, two) => one == BORROWED_ZONE || two == BORROWED_ZONE,
            };
            let is_same = (zone.uuid, zone.device) == (before.uuid, before.device);
            let is_shared = may_share && is_same;
            if other != offer.server && !is_shared {
                return Err(format!(
                    "data zone {} is of metadata server {other}, and another one of server {}: \
                     give the zones of all servers different numbers",
                    zone.id, offer.server
                ));
            }
        }
    }
    Ok(())
}

/// The zones that lie on the same device, for each device. A target has one zone.
pub(super) fn by_device(pags: &[PagInfo]) -> Vec<Vec<PagInfo>> {
    let mut devices: Vec<Vec<PagInfo>> = Vec::new();
    for pag in pags {
        match devices.iter_mut().find(|zones| {
            let of_devices = pag.kind != TARGET_ZONE && zones[0].kind != TARGET_ZONE;
            of_devices && zones[0].device == pag.device
        }) {
            Some(zones) => zones.push(pag.clone()),
            None => devices.push(vec![pag.clone()]),
        }
    }
    devices
}

/// Says that a device is absent, and what to do.
pub(super) fn absent_text(zones: &str, path: &str, why: &str) -> String {
    format!(
        "{zones} at {path} is absent: {why}; what lies on it fails with EIO until the device is \
         back at that path, which needs no new mount"
    )
}

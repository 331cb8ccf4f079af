//! Data space: the data zones and their devices on this host, and room for grants.
//!
//! Invariants:
//! - blocks that are being freed become grantable only when their freeing is durable;
//! - it asks clients for space, and ends no session.

mod devices;
mod loans;
mod new_target;
mod new_zone;
mod placer;
mod placing;
mod pool_reclaim;
mod takeover;
mod zone_state;
mod zones;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::LockScope;
use env::sync::Notify;
use mfs::{Cost, PagUse};
use proto::mds::{
    BORROWED_ZONE, LENDING, Message, PagInfo, Push, TARGET_ZONE, ZONE_PUSHES, ZoneList,
};
use session::server::Agreed;
use types::{ClientId, Epoch, PagId, Transno};

use self::devices::DataDevices;
pub use self::devices::{DeviceStatus, SETTLING};
pub use self::placer::Asked;
use self::placing::Placing;
pub use self::takeover::check_epoch;
pub use self::zone_state::StateChange;
use crate::orphans::Orphans;
use crate::runtime::Runtime;
use crate::sessions::{ClientInfo, Session, Sessions};
use crate::targets::{TargetStatus, Targets};

/// Metadata space is short when less than one part in this many of its device is free.
const SHORT_FRACTION: u64 = 16;
/// Freed runs that one transaction looks at.
const RELEASE_RUNS: usize = 64;
/// How many such transactions one round runs at most.
const RELEASE_ROUNDS: usize = 64;

/// See the module.
pub struct Space {
    runtime: Rc<Runtime>,
    sessions: Rc<Sessions>,
    orphans: Rc<Orphans>,
    pub(super) targets: Rc<Targets>,
    /// Data zones as reported to clients. New ones come last.
    zones: RefCell<Vec<PagInfo>>,
    /// What the table says of each zone's use, and the transaction that says so, if it is one of
    /// this server.
    states: RefCell<BTreeMap<PagId, (PagUse, Transno)>>,
    /// A device is being added.
    adding: Cell<bool>,
    /// How many zones may be in the table, and not yet in `zones`.
    entering: Cell<usize>,
    entered: Notify,
    devices: DataDevices,
    /// The server's own choice of places, for clients that keep no blocks.
    pub placing: Placing,
    /// Notified when blocks may have become free.
    returned: Notify,
}

/// Does a client of such a session know what the zone is?
fn takes(agreed: Agreed, zone: &PagInfo) -> bool {
    zone.kind != BORROWED_ZONE || agreed.version >= LENDING
}

impl Space {
    /// No zones are known yet.
    pub fn new(
        runtime: Rc<Runtime>,
        sessions: Rc<Sessions>,
        (orphans, targets): (Rc<Orphans>, Rc<Targets>),
    ) -> Space {
        Space {
            devices: DataDevices::new(runtime.clone()),
            runtime,
            sessions,
            orphans,
            targets,
            zones: RefCell::default(),
            states: RefCell::default(),
            adding: Cell::new(false),
            entering: Cell::new(0),
            entered: Notify::new(),
            placing: Placing::default(),
            returned: Notify::new(),
        }
    }

    /// Data zones as reported to clients.
    pub fn zones(&self) -> Vec<PagInfo> {
        self.zones.borrow().clone()
    }

    /// The data zones as they are, once none is being entered.
    pub async fn zone_list(&self) -> ZoneList {
        loop {
            let entered = self.entered.notified();
            if self.entering.get() == 0 {
                return self.zones_now();
            }
            entered.await;
        }
    }

    fn zones_now(&self) -> ZoneList {
        ZoneList { zones: self.zones(), lost: self.lost(), leaving: self.leaving() }
    }

    /// Tells all clients that know of such pushes which zones there are.
    fn announce_zones(&self) {
        for session in self.sessions.all() {
            if session.agreed().features & ZONE_PUSHES != 0 {
                let list = ZoneList { zones: self.zones_for(session.agreed()), ..self.zones_now() };
                session.push(Message::Push { push: Push::Zones { list } });
            }
        }
    }

    /// Tells a client that has just been welcomed which zones are lost or draining, if any is.
    pub fn tell_states(&self, session: &Session) {
        let all_serve = self.lost().is_empty() && self.leaving().is_empty();
        if session.agreed().features & ZONE_PUSHES != 0 && !all_serve {
            let list = ZoneList { zones: self.zones_for(session.agreed()), ..self.zones_now() };
            session.push(Message::Push { push: Push::Zones { list } });
        }
    }

    /// Blocks in a client's pool, by zone; none if it cannot be read.
    pub async fn pool_by_zone(&self, client: ClientId) -> BTreeMap<PagId, u64> {
        let pool = self.runtime.mfs.run(Cost::READ, |txn| txn.space().pool(client)).await;
        let pool = self.runtime.checked(pool, "reading a pool");
        let mut sums = BTreeMap::new();
        for (pag, _, len) in pool.map(|(pool, _)| pool).unwrap_or_default() {
            *sums.entry(pag).or_default() += len;
        }
        sums
    }

    /// The zones of which the client does not know, and will not: it gets no blocks there.
    pub fn unknown_to(&self, session: &Session) -> Vec<PagId> {
        let (zones, agreed) = (self.zones.borrow(), session.agreed());
        let hears = agreed.features & ZONE_PUSHES != 0;
        let named = if hears { zones.len() } else { session.zones_named() };
        let is_unknown = |(nth, zone): &(usize, &PagInfo)| *nth >= named || !takes(agreed, zone);
        zones.iter().enumerate().filter(is_unknown).map(|(_, zone)| zone.id).collect()
    }

    /// The data zones that a client of such a session may know.
    pub fn zones_for(&self, agreed: Agreed) -> Vec<PagInfo> {
        self.zones().into_iter().filter(|zone| takes(agreed, zone)).collect()
    }

    /// The path of a zone's device; empty if the configuration does not name it.
    pub fn path(&self, id: PagId) -> String {
        let zones = self.zones.borrow();
        zones.iter().find(|zone| zone.id == id).map_or_else(String::new, |zone| zone.path.clone())
    }

    /// The state of a zone's device on this host; that of a target itself.
    pub fn device_state(&self, id: PagId) -> DeviceStatus {
        match self.targets.state(id) {
            Some(TargetStatus { state, absent, why, .. }) => DeviceStatus { state, absent, why },
            None => self.devices.state(id),
        }
    }

    /// Begins the looks at devices that are due.
    pub fn look_at_devices(&self) {
        self.devices.look();
    }

    /// Why this server must not serve: a server of a later epoch has taken over.
    pub fn superseded(&self) -> Option<String> {
        self.devices.superseded()
    }

    /// The highest fencing epoch in the labels of the data devices, as last read.
    pub fn fencing_epoch(&self) -> Epoch {
        self.devices.fencing_epoch()
    }

    /// May a device complete, at any moment, what evicted clients had submitted?
    pub fn may_write_late(&self) -> bool {
        self.devices.may_write_late()
    }

    /// Is the device of every zone open on this host? Targets have none here.
    pub fn are_all_open(&self) -> bool {
        let zones = self.zones.borrow();
        let mut devices = zones.iter().filter(|zone| zone.kind != TARGET_ZONE);
        devices.all(|zone| self.devices.is_open(zone.id))
    }

    /// Flushes all devices, so that a power cut does not lose what `clients` wrote in place.
    pub async fn flush_for(&self, clients: &[ClientId]) {
        self.devices.flush_for(clients).await;
    }

    /// What these clients, which are durably evicted, have written on devices becomes stable, and
    /// what they still send to targets is refused. Nobody waits for what does not answer.
    pub async fn stop_writes_of(&self, clients: &[ClientId]) {
        let (targets, refused) = (self.targets.clone(), clients.to_vec());
        let fenced = self.runtime.env.spawn_join(async move { targets.fence(&refused).await });
        self.devices.flush_for(clients).await;
        fenced.await;
    }

    /// Is the lock that `client` takes on the data devices free on this host?
    pub async fn is_lock_free(&self, client: ClientId) -> bool {
        self.devices.is_lock_free(client).await
    }

    /// Where `client` holds its lock on a data device of this host; `None`: it does not.
    pub async fn lock_held_at(&self, client: ClientId) -> Option<LockScope> {
        self.devices.lock_held_at(client).await
    }

    /// Would this server see the lock of this client, if its process lived? A server that was moved
    /// to another host, or a host that was started anew, does not.
    pub fn watches(&self, client: &ClientInfo) -> bool {
        client.seen_at.is_some_and(|scope| self.devices.sees(scope))
    }

    /// Blocks may have become free.
    pub fn announce_return(&self) {
        self.returned.notify_all();
    }

    /// Is so little of the metadata device free that a change may have failed for it?
    pub fn metadata_is_short(&self) -> bool {
        let usage = self.runtime.mfs.usage();
        usage.blocks_free < usage.blocks_set_aside + usage.blocks / SHORT_FRACTION
    }

    /// Makes freed blocks reusable, as far as their freeing is durable. Returns their number.
    pub async fn release_freed(&self) -> u64 {
        let mut blocks = 0;
        for _ in 0..RELEASE_ROUNDS {
            let step =
                self.runtime.mfs.run(Cost::STEP, |txn| txn.space().release_freed(RELEASE_RUNS));
            match self.runtime.checked(step.await, "releasing freed blocks") {
                Some((released, _)) if released > 0 => blocks += released,
                _ => break,
            }
        }
        blocks
    }

    /// Number of blocks in a client's pool; 0 if it cannot be read.
    pub async fn pool_blocks(&self, client: ClientId) -> u64 {
        let pool = self.runtime.mfs.run(Cost::READ, |txn| txn.space().pool(client)).await;
        let pool = self.runtime.checked(pool, "reading a pool");
        pool.map(|(pool, _)| pool).unwrap_or_default().iter().map(|(_, _, len)| len).sum()
    }

    /// Does the client keep space that others need: blocks in its pool, or an orphan open?
    pub async fn hoards(&self, client: ClientId) -> bool {
        let pool = self.runtime.mfs.run(Cost::READ, |txn| txn.space().pool(client)).await;
        let pool = self.runtime.checked(pool, "reading a pool").map(|(pool, _)| pool);
        pool.is_some_and(|pool| !pool.is_empty()) || self.orphans.any_open_by(client)
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let zones = self.zones.borrow();
        for (index, zone) in zones.iter().enumerate() {
            let twice = zones[index + 1..].iter().any(|other| other.id == zone.id);
            assert!(!twice, "data zone {} is there twice", zone.id);
        }
        self.devices.validate();
    }
}

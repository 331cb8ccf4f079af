//! Placement classes: sets of zones that directories allow, each with a pool of its own.
//!
//! A directory that names zones has its files in a class of these zones; all others are in the
//! class
//! of every zone. The zones of a class are of one metadata server, which grants the blocks of its
//! files: each server has classes of its own. So blocks that a class has reserved are always of a
//! zone that its files
//! may use. Within a class, the zones take turns ([`proto::placement`]).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use env::sync::{AsyncMutex, Notify};
use proto::placement::{Candidate, Turns, ZONES_AT_ONCE};
use proto::prealloc::Allocation;
use types::limits::{BLOCK_U64, GRANT_BLOCKS};
use types::{Duration, Ino, Instant, PagId, ServerId};

use super::context::DataContext;
use super::double_pool::Wanted;
use super::file::File;
use super::pool::{Pool, PoolRun};

/// For so long, a zone that had no room is not asked for again.
const FULL: Duration = Duration::from_secs(10);
/// Least number of blocks that a zone is asked for: 4 MiB.
const SHARE_MIN: u64 = GRANT_BLOCKS / 4;
/// Largest number of blocks asked for in advance: 256 MiB.
pub(super) const GRANT_MAX: u64 = 16 * GRANT_BLOCKS;

/// What one small allocation may need: a request of the kernel of 1 MiB.
pub(super) const SMALL_ALLOCATION: u64 = (1 << 20) / BLOCK_U64;

/// See the module.
pub(super) struct Class {
    /// The server that has its files.
    pub server: ServerId,
    /// The zones that it is limited to; empty: all.
    pub zones: Vec<PagId>,
    pub pool: Rc<Pool>,
    pub grants: Grants,
    turns: RefCell<Turns>,
}

/// The state of a class's grants, and of its zones as far as the client knows it.
pub(super) struct Grants {
    pub fifo: AsyncMutex,
    pub waiting: Cell<usize>,
    pub refilling: Cell<bool>,
    /// A request with commits asks for blocks, too.
    pub riding: Cell<bool>,
    pub granted: Notify,
    /// Blocks to ask for at a time, at first.
    pub chunk: u64,
    /// Blocks to ask for at a time now; doubles when a writer had to wait.
    pub size: Cell<u64>,
    /// A writer got `NoSpace` recently.
    pub scarce_until: Cell<Instant>,
    /// Until then, the client asks for no grant in advance.
    pub quiet_until: Cell<Instant>,
    /// Were blocks reserved since the last check?
    pub used: Cell<bool>,
    /// The zones that blocks were allocated in since the last check.
    pub used_zones: RefCell<BTreeSet<PagId>>,
    /// Files with runs that wait for blocks of another zone, or of a certain one.
    pub starved: RefCell<BTreeMap<Ino, Rc<File>>>,
    /// Blocks that these runs need in certain zones.
    pub wanted: RefCell<BTreeMap<PagId, u64>>,
    pub relieving: Cell<bool>,
    /// Until then, silent and failing zones are used, too.
    pub modest_until: Cell<Instant>,
    /// Zones that had no room when they were asked, and until when that counts.
    full: RefCell<BTreeMap<PagId, Instant>>,
    /// The log says that there is no zone of the class.
    pub lacks_zones: Cell<bool>,
    /// Free blocks of the zones at the server, as last heard.
    left: RefCell<BTreeMap<PagId, u64>>,
}

impl Grants {
    fn new(chunk: u64) -> Grants {
        Grants {
            chunk,
            fifo: AsyncMutex::new(),
            waiting: Cell::new(0),
            refilling: Cell::new(false),
            riding: Cell::new(false),
            granted: Notify::new(),
            size: Cell::new(chunk),
            scarce_until: Cell::new(Instant::default()),
            quiet_until: Cell::new(Instant::default()),
            used: Cell::new(false),
            used_zones: RefCell::default(),
            starved: RefCell::default(),
            wanted: RefCell::default(),
            relieving: Cell::new(false),
            modest_until: Cell::new(Instant::default()),
            full: RefCell::default(),
            lacks_zones: Cell::default(),
            left: RefCell::default(),
        }
    }

    /// Is a grant on its way?
    pub fn is_expected(&self) -> bool {
        self.refilling.get() || self.riding.get()
    }

    /// Are silent and failing zones avoided?
    pub fn is_choosy(&self, now: Instant) -> bool {
        now >= self.modest_until.get()
    }

    /// Runs want so many blocks in this zone.
    pub fn want(&self, zone: PagId, blocks: u64) {
        let mut wanted = self.wanted.borrow_mut();
        let most = wanted.entry(zone).or_default();
        *most = blocks.max(*most);
    }

    /// The zone has no room, for a while.
    pub fn note_full(&self, zone: PagId, now: Instant) {
        self.full.borrow_mut().insert(zone, now + FULL);
    }

    /// So many blocks are free in the zone.
    pub fn note_left(&self, zone: PagId, blocks: u64) {
        self.left.borrow_mut().insert(zone, blocks);
    }

    /// Did the server last have so many free blocks in the zone?
    pub fn has_left(&self, zone: PagId, blocks: u64) -> bool {
        self.left.borrow().get(&zone).is_some_and(|&left| left >= blocks)
    }

    /// Blocks go back to the server.
    pub fn note_returned(&self, runs: &[PoolRun]) {
        let mut left = self.left.borrow_mut();
        for run in runs {
            left.entry(run.pag).and_modify(|blocks| *blocks += run.len);
        }
    }

    /// The session is lost, and all granted blocks with it.
    pub fn forget(&self) {
        self.size.set(self.chunk);
        self.scarce_until.set(Instant::default());
        self.quiet_until.set(Instant::default());
        self.wanted.take();
        self.full.take();
        self.left.take();
        self.granted.notify_all();
    }
}

impl Class {
    /// A class of these zones of the server; empty: of all that it has. `allocation` says how their
    /// files get blocks.
    pub fn new(server: ServerId, zones: Vec<PagId>, allocation: Allocation) -> Class {
        let (pool, grants) = (Pool::new(allocation.own_policy()), Grants::new(allocation.chunk));
        Class { server, zones, pool, grants, turns: RefCell::default() }
    }

    /// May its files lie there, in a zone of its server?
    pub fn allows(&self, zone: PagId) -> bool {
        self.zones.is_empty() || self.zones.contains(&zone)
    }

    /// What the two pools should have together before more is asked for: what is in windows, and
    /// twice as much, or a grant. Windows are half of the pool at most: this leaves room for larger
    /// ones as long as streams go on.
    pub fn wanted(&self) -> Wanted {
        let small = SMALL_ALLOCATION.min(self.grants.chunk);
        let (windows, size) = (self.pool.in_windows(), self.grants.size.get());
        if size < self.grants.chunk {
            // The server has little to give.
            return Wanted { full: size, small, streams: 0 };
        }
        let streams = windows + (2 * windows).min(GRANT_MAX);
        Wanted { full: streams.max(windows + size), small, streams }
    }

    /// Is this more than the pools are there for? The server is asked for all of it then.
    pub fn is_large(&self, blocks: u64) -> bool {
        blocks > self.grants.chunk
    }

    /// The zone of the current chunk of small files.
    pub fn current(&self) -> Option<PagId> {
        self.turns.borrow().current()
    }
}

impl DataContext {
    /// The class of the server with these zones; empty: all.
    pub(super) fn class(self: &Rc<Self>, server: ServerId, zones: &[PagId]) -> Rc<Class> {
        let is_it = |class: &&Rc<Class>| class.server == server && class.zones == zones;
        let found = self.classes.borrow().iter().find(is_it).cloned();
        found.unwrap_or_else(|| {
            let class = Rc::new(Class::new(server, zones.to_vec(), self.allocation));
            self.classes.borrow_mut().push(class.clone());
            self.choose_zones();
            class
        })
    }

    /// All classes.
    pub(super) fn each_class(&self) -> Vec<Rc<Class>> {
        self.classes.borrow().clone()
    }

    /// The classes of the server.
    pub(super) fn classes_of(&self, server: ServerId) -> Vec<Rc<Class>> {
        let classes = self.classes.borrow();
        classes.iter().filter(|class| class.server == server).cloned().collect()
    }

    /// The zones of the class, in order.
    pub(super) fn zones_of(&self, class: &Class) -> Vec<PagId> {
        let mut zones = self.disks.numbers(class.server);
        zones.retain(|&zone| class.allows(zone));
        zones
    }

    /// The zones that this client keeps blocks of, for files of the class: neither avoided nor
    /// draining nor full ones, at most [`ZONES_AT_ONCE`]. Clients begin at different zones, so that
    /// few of them write to one device.
    fn active_zones(&self, class: &Class) -> Vec<PagId> {
        let zones = self.zones_of(class);
        let client = self.disks.opening(class.server).client();
        let first = (client.0 % zones.len().max(1) as u64) as usize;
        let (now, full) = (self.env.now(), class.grants.full.borrow());
        let has_room = |zone: &PagId| full.get(zone).is_none_or(|&until| now >= until);
        let from_first = zones[first..].iter().chain(&zones[..first]).copied();
        let is_left = |zone: PagId| class.pool.avoids(zone) || self.disks.arrivals.is_leaving(zone);
        let usable = from_first.filter(|zone| has_room(zone) && !is_left(*zone));
        usable.take(ZONES_AT_ONCE).collect()
    }

    /// Has the class one zone only, or none?
    pub(super) fn is_only_zone(&self, class: &Class) -> bool {
        if class.zones.is_empty() {
            self.disks.count(class.server) < 2
        } else {
            class.zones.len() == 1
        }
    }

    /// Can new blocks go to this zone?
    pub(super) fn is_usable(&self, class: &Class, zone: PagId) -> bool {
        let (now, full) = (self.env.now(), class.grants.full.borrow());
        class.allows(zone)
            && full.get(&zone).is_none_or(|&until| now >= until)
            && !class.pool.avoids(zone)
            && !self.disks.arrivals.is_leaving(zone)
    }

    fn candidates(&self, class: &Class) -> Vec<Candidate> {
        let left = class.grants.left.borrow();
        let of = |id: PagId| {
            let busy = self.disks.get(class.server, id).map_or(0, |disk| disk.device.held());
            let free = left.get(&id).map(|left| left + class.pool.stock(id));
            Candidate { id, free, busy }
        };
        self.active_zones(class).into_iter().map(of).collect()
    }

    /// The zone to ask first for blocks before any file has a place.
    pub(super) fn first_zone(&self, class: &Class) -> Option<PagId> {
        self.active_zones(class).first().copied()
    }

    /// The zone whose turn it is to take a file. `None`: no zone is to be preferred.
    pub(super) fn next_zone(&self, class: &Class) -> Option<PagId> {
        class.turns.borrow_mut().next(&self.candidates(class))
    }

    /// The zone for `need` blocks of a small file.
    pub(super) fn next_small_zone(&self, class: &Class, need: u64) -> Option<PagId> {
        class.turns.borrow_mut().next_small(&self.candidates(class), need, self.allocation.chunk)
    }

    /// Blocks to ask one zone for: the zones of a class share the size of its grants.
    pub(super) fn share_of_zone(&self, class: &Class) -> u64 {
        let all = match &class.zones[..] {
            [] => self.disks.count(class.server),
            zones => zones.len(),
        };
        let zones = all.clamp(1, ZONES_AT_ONCE) as u64;
        let size = class.grants.size.get();
        (size / zones).max(SHARE_MIN.min(size))
    }
}

//! Object storage targets (paper 001, section 3.1) as the metadata server uses them: which of them
//! a new file lies on, what clients may do there, and what each target has still to do for it.
//!
//! A target is a data zone of that kind. The server opens none of its devices. With each target it
//! has one session, over which it has objects of freed files destroyed and evicted clients refused
//! ([`task`]). A target may be of several metadata servers: each speaks for the clients and files
//! of its own shard, and knows nothing of the others. A file that came from another server has its
//! object from there.
//!
//! Invariants:
//! - a number of an object is used when the range that it is from is durable: a start of the server
//!   takes a range of its own, so no file gets the object of one that a crash lost;
//! - an object is destroyed when the transaction that frees its file is durable, and a client is
//!   refused when its eviction is;
//! - a target is known by its UUID: what answers at its address and is another one gets no request;
//! - nobody waits for a target that is away. What it owes is durable here, and is the first that it
//!   hears when it is back. Until then it is down, so no client writes there.

mod task;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use env::sync::Notify;
use mfs::{OBJECT_TARGETS_MAX, ObjectRecord};
use proto::capability::{Capability, READ, TargetKey, WRITE};
use proto::mds::ObjectLayout;
use proto::ost::{Ost, TargetInfo};
use proto::placement::{Candidate, Turns};
use session::client::{ConnectError, Session};
use types::limits::EVICTION_FLUSH;
use types::{ClientId, Duration, Epoch, Instant, ObjectId, PagId, Rights, Uuid};

use crate::runtime::Runtime;

/// How often one who waits for targets looks whether they are still there.
const LOOK: Duration = Duration::from_millis(50);
/// So long after the last question the free space of targets is still polled.
const POLLED: Duration = Duration::from_secs(10);

/// A target that the server knows.
pub struct Target {
    id: PagId,
    uuid: Uuid,
    address: RefCell<String>,
    /// `None` until the first greeting.
    session: RefCell<Option<Rc<Session<Ost>>>>,
    /// The first greeting was tried, or nothing was to be greeted.
    tried: Cell<bool>,
    /// Since when it is away; `None`: it is there, or was not tried.
    away: Cell<Option<Instant>>,
    why: RefCell<String>,
    /// It is connected and does not do what it is asked for: it has another key, for example.
    refuses: Cell<bool>,
    /// Its free blocks, as it has last said.
    free: Cell<Option<u64>>,
    asked: Cell<Option<Instant>>,
    /// Clients whose evictions wait for its answer.
    waited: RefCell<BTreeSet<ClientId>>,
    wake: Notify,
    /// Notified when the session is not to be used any more.
    gone: Notify,
    /// Another task serves the zone now, at another address.
    replaced: Cell<bool>,
}

/// A target, for the status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetStatus {
    /// "sound", "absent", or "not open": it has not been greeted yet.
    pub state: &'static str,
    /// For how long it has been away.
    pub absent: Duration,
    /// Why.
    pub why: String,
    /// Its free blocks, as it has last said.
    pub free: Option<u64>,
}

/// See the module.
pub struct Targets {
    runtime: Rc<Runtime>,
    key: Option<TargetKey>,
    all: RefCell<BTreeMap<PagId, Rc<Target>>>,
    /// Numbers for new objects: they are durably taken.
    numbers: RefCell<Range<u64>>,
    turns: RefCell<Turns>,
    /// The log has a line that no file could be made, and none was since.
    complained: Cell<bool>,
    /// A fence was answered, or a target has gone.
    changed: Notify,
}

impl Target {
    fn is_connected(&self) -> bool {
        self.session.borrow().as_ref().is_some_and(|session| session.is_connected())
    }

    /// It does what it is asked for.
    fn is_there(&self) -> bool {
        self.is_connected() && !self.refuses.get()
    }

    /// It is not known to be away: clients may write there, though it refuse the server.
    fn may_serve(&self) -> bool {
        !self.tried.get() || self.is_connected()
    }

    fn set_away(&self, now: Instant, why: &str) {
        self.tried.set(true);
        if self.away.get().is_none() {
            self.away.set(Some(now));
        }
        why.clone_into(&mut self.why.borrow_mut());
    }

    fn set_there(&self) {
        self.tried.set(true);
        if !self.refuses.get() {
            self.away.set(None);
        }
    }
}

impl Targets {
    /// None is known yet.
    pub fn new(runtime: Rc<Runtime>) -> Targets {
        let key = runtime.config.target_key.map(|key| TargetKey::new(key, runtime.identity.uuid));
        Targets {
            runtime,
            key,
            all: RefCell::default(),
            numbers: RefCell::new(0..0),
            turns: RefCell::default(),
            complained: Cell::new(false),
            changed: Notify::new(),
        }
    }

    /// Is the key configured that this server shares with targets?
    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// What the server shows to targets.
    fn own_capability(&self) -> Option<Capability> {
        let key = self.key.as_ref()?;
        Some(key.issue_to_server(self.runtime.shard, self.runtime.identity.epoch))
    }

    /// Numbers for new objects, which are durably taken.
    pub fn set_numbers(&self, numbers: Range<u64>) {
        *self.numbers.borrow_mut() = numbers;
    }

    /// Has it numbers for new objects?
    pub fn has_numbers(&self) -> bool {
        !self.numbers.borrow().is_empty()
    }

    /// The zones that are targets.
    pub fn ids(&self) -> Vec<PagId> {
        self.all.borrow().keys().copied().collect()
    }

    /// Is the zone a target?
    pub fn contains(&self, id: PagId) -> bool {
        self.all.borrow().contains_key(&id)
    }

    /// Goes on with a target of the table at this address, from now on or from its next one. Its
    /// task ends with the server.
    pub fn begin(self: &Rc<Self>, (id, uuid): (PagId, Uuid), address: &str, free: Option<u64>) {
        let target = Rc::new(Target {
            id,
            uuid,
            address: RefCell::new(address.to_owned()),
            session: RefCell::default(),
            tried: Cell::new(false),
            away: Cell::new(None),
            why: RefCell::default(),
            refuses: Cell::new(false),
            free: Cell::new(free),
            asked: Cell::new(None),
            waited: RefCell::default(),
            wake: Notify::new(),
            gone: Notify::new(),
            replaced: Cell::new(false),
        });
        if let Some(old) = self.all.borrow_mut().insert(id, target.clone()) {
            old.replaced.set(true);
            old.wake.notify_all();
            old.gone.notify_all();
        }
        self.runtime.env.spawn(task::run(self.clone(), target));
    }

    /// Greets what is at `address`, and makes sure that it takes this server's key.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn look_at(&self, address: &str) -> Result<TargetInfo, String> {
        let opened = task::open(&self.runtime, address, task::PATIENCE).await;
        let session = opened.map_err(|ConnectError { text }| format!("ost:{address}: {text}"))?;
        let answer = self.try_key(&session, address).await;
        session.close().await;
        answer
    }

    async fn try_key(&self, session: &Session<Ost>, address: &str) -> Result<TargetInfo, String> {
        let may = self.own_capability().ok_or(NO_KEY)?;
        let probe = task::ask_about(session, may);
        match self.runtime.env.timeout(task::PATIENCE, probe).await {
            Some(Ok(info)) => Ok(info),
            Some(Err(types::Fault::AccessDenied)) => Err(format!(
                "ost:{address}: it does not accept the key of this server: give both the same \
                 file as `[targets] key`"
            )),
            Some(Err(fault)) => Err(format!("ost:{address}: {}", fault.text())),
            None => Err(format!("ost:{address}: it has not answered; add it again when it does")),
        }
    }

    /// Can files come from another server that lie at these targets? Each is known under the same
    /// number there.
    pub fn has_all(&self, targets: &[(PagId, Uuid)]) -> bool {
        let all = self.all.borrow();
        let is_known = |(id, uuid): &(PagId, Uuid)| all.get(id).is_some_and(|it| it.uuid == *uuid);
        self.has_key() && targets.iter().all(is_known)
    }

    /// The targets of a record, with their UUIDs; `None`: one of them is unknown.
    pub fn named(&self, ids: &[PagId]) -> Option<Vec<(PagId, Uuid)>> {
        let all = self.all.borrow();
        ids.iter().map(|id| all.get(id).map(|target| (*id, target.uuid))).collect()
    }

    /// The address of a target.
    pub fn address(&self, id: PagId) -> Option<String> {
        self.all.borrow().get(&id).map(|target| target.address.borrow().clone())
    }

    /// The state of a target; `None`: the zone is none.
    pub fn state(&self, id: PagId) -> Option<TargetStatus> {
        let target = self.all.borrow().get(&id).cloned()?;
        let now = self.runtime.env.now();
        target.asked.set(Some(now));
        let state = match (target.is_there(), target.tried.get()) {
            (true, _) => "sound",
            (false, true) => "absent",
            (false, false) => "not open",
        };
        let absent = target.away.get().map_or(Duration::ZERO, |since| now.since(since));
        let why = if state == "sound" { String::new() } else { target.why.borrow().clone() };
        Some(TargetStatus { state, absent, why, free: target.free.get() })
    }

    /// The free blocks of the targets, as they have last said; from now on they are asked for a
    /// while.
    pub fn free_blocks(&self) -> BTreeMap<PagId, u64> {
        let now = self.runtime.env.now();
        let all = self.all.borrow();
        let each = all.values().filter_map(|target| {
            target.asked.set(Some(now));
            Some((target.id, target.free.get()?))
        });
        each.collect()
    }

    /// Chooses targets of a new file among those that `may` names: the first by turns, weighted by
    /// free space, the others behind it in the order of the zones. Targets that are away are left
    /// out if enough others are there.
    ///
    /// `None`: there is none, or no number is left.
    pub fn choose(
        &self,
        may: impl Fn(PagId) -> bool,
        part: u64,
        width: u16,
    ) -> Option<ObjectRecord> {
        self.key.as_ref()?;
        let width = usize::from(width.max(1)).min(OBJECT_TARGETS_MAX);
        let mut among: Vec<Rc<Target>> = {
            let all = self.all.borrow();
            all.values().filter(|target| may(target.id)).cloned().collect()
        };
        let there = among.iter().filter(|target| target.is_there()).count();
        if there >= width {
            among.retain(|target| target.is_there());
        }
        let candidate =
            |target: &Rc<Target>| Candidate { id: target.id, free: target.free.get(), busy: 0 };
        let candidates: Vec<Candidate> = among.iter().map(candidate).collect();
        let first = self.turns.borrow_mut().next(&candidates)?;
        let at = among.iter().position(|target| target.id == first)?;
        among.rotate_left(at);
        let object = ObjectId(self.numbers.borrow_mut().next()?);
        let targets = among.iter().take(width).map(|target| target.id).collect();
        self.complained.set(false);
        Some(ObjectRecord { object, part, targets })
    }

    /// A file could not be made for want of a target.
    pub fn complain(&self, layout: &str) {
        if self.complained.replace(true) {
            return;
        }
        let what = match (self.key.is_some(), self.all.borrow().is_empty()) {
            (false, _) => NO_KEY,
            (true, true) => "the file system has no object target: `redbud pag add ost:HOST:PORT`",
            (true, false) => "none of its object targets is in service: `redbud pag list`",
        };
        self.runtime.log(&format!("no file can be made under the layout `{layout}`: {what}"));
    }

    /// What a client with these rights on a file of this object may do there, in its layout.
    pub fn layout_for(
        &self,
        record: ObjectRecord,
        client: ClientId,
        rights: Rights,
    ) -> ObjectLayout {
        let ObjectRecord { object, part, targets } = record;
        let may = self.capability(object, client, rights);
        ObjectLayout { object, part, targets, may }
    }

    /// A capability by the rights that the client holds on the file.
    pub fn capability(&self, object: ObjectId, client: ClientId, rights: Rights) -> Capability {
        let rights = if rights.contains(Rights::DATA_X) {
            READ | WRITE
        } else if rights.contains(Rights::DATA_S) {
            READ
        } else {
            0
        };
        let epoch: Epoch = self.runtime.identity.epoch;
        match &self.key {
            Some(key) => key.issue(object, client, rights, epoch),
            // The administrator has taken the key away: no target will accept this.
            None => Capability { object, client, rights: 0, epoch, mac: [0; 16] },
        }
    }

    /// These clients are durably evicted: waits until no target lets them write, or is away. For
    /// longer than [`EVICTION_FLUSH`] nobody waits.
    pub async fn fence(&self, clients: &[ClientId]) {
        let all: Vec<Rc<Target>> = self.all.borrow().values().cloned().collect();
        for target in &all {
            target.waited.borrow_mut().extend(clients);
            target.wake.notify_all();
        }
        let is_done = |target: &Rc<Target>| {
            let waited = target.waited.borrow();
            clients.iter().all(|client| !waited.contains(client))
        };
        let until = self.runtime.env.now() + EVICTION_FLUSH;
        loop {
            let changed = self.changed.notified();
            let left = until.since(self.runtime.env.now());
            let waits = |target: &&Rc<Target>| target.may_serve() && !is_done(target);
            if left == Duration::ZERO || !all.iter().any(|target| waits(&target)) {
                break;
            }
            let _ = self.runtime.env.timeout(left.min(LOOK), changed).await;
        }
        for target in all.iter().filter(|target| !is_done(target)) {
            self.runtime.log(&format!(
                "object target {} is away or slow: it refuses evicted clients before anything \
                 else when it answers",
                target.id
            ));
            target.waited.borrow_mut().retain(|client| !clients.contains(client));
        }
    }

    /// There may be something to do for targets.
    pub fn wake(&self) {
        self.all.borrow().values().for_each(|target| target.wake.notify_all());
    }

    /// The server ends.
    pub fn stop(&self) {
        for target in self.all.borrow().values() {
            target.wake.notify_all();
            target.gone.notify_all();
        }
    }
}

/// What to do where the key is missing.
pub const NO_KEY: &str = "the server has no key for object targets: write `[targets] key = \"PATH\"` \
     into the cluster's file, and start it anew";

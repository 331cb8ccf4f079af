//! The clients of a run: they mount, work, die, fall silent, and come back.
//!
//! Invariants:
//! - for the judge a client that comes back after its death is a new one; it continues the script
//!   of the one before it;
//! - whenever a session may have been lost, the history records between which positions.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use client::{Edited, ServerSession};
use env::sim::DiskAction;
use types::{ClientId, Duration, Ino, Instant, ShardId, Transno};

use crate::cluster::Cluster;
use crate::events::{Event, Events, Eviction};
use crate::fences;
use crate::history::History;
use crate::invariant::Invariant;
use crate::kernel::Caches;
use crate::log_lines::damaged;
use crate::mount::Mount;
use crate::script::{Script, Workload};
use crate::sessions::{DeadClient, MemberSession};
use crate::space;
use crate::undurable::UNDURABLE_MAX;
use crate::workload::Process;

/// Interval of looking for lost sessions.
const LOOK: Duration = Duration::from_millis(100);
/// The end of the log line of a client that has replayed what a dead server had not made durable.
const REPLAYED: &str = " restarted; everything it had lost was replayed";
/// What the log line of a client says of a data device that it cannot use.
const ABSENT: &str = " is absent: ";
/// The refusal of a server without room for another client's reservation.
const NO_ROOM: &str = "no room for another client";
/// For how long a host is off that a fence has switched off.
const FENCED: Duration = Duration::from_secs(1);

/// The place of a client.
struct Member {
    name: String,
    mount: Option<Mount>,
    /// A client is connecting, or was killed and will connect.
    mounting: bool,
    /// It is connecting.
    connecting: bool,
    attempts: u64,
    /// Since which position, and until when, its session may be lost.
    eviction_window: Option<(u64, Instant)>,
    /// Its sessions, by shard.
    sessions: Vec<MemberSession>,
    /// The running client has said that a data device is absent for it.
    has_missed_device: bool,
    /// Next operation of each process.
    next: Vec<Rc<Cell<u32>>>,
}

impl Member {
    /// The client that a server knows by this number.
    fn session_of(&mut self, client: u64) -> Option<&mut MemberSession> {
        let of = |session: &&mut MemberSession| session.client == client;
        self.sessions.iter_mut().find(of).filter(|_| self.mount.is_some())
    }

    /// A new client mounts here. While mounting it may have lost sessions in which nobody had done
    /// anything. `evicted`: since when servers evict sessions of whose clients nothing was known,
    /// the present ones perhaps among them; then the client will notice later.
    fn put(
        &mut self,
        (mount, begun): (Mount, Instant),
        evicted: &BTreeMap<u64, u64>,
        events: &Events,
    ) {
        let may_be_evicted = self.eviction_window.is_some_and(|(_, until)| until >= begun);
        if mount.client.status().evictions > 0 && !may_be_evicted {
            let text =
                format!("c{} was evicted while mounting, though nothing held it up", mount.index);
            events.broken(Invariant::Eviction, &text);
        }
        let of = |session: &ServerSession| {
            let since = evicted.get(&session.client.0).copied();
            let expected = may_be_evicted && since.is_some();
            MemberSession { since, expected, ..MemberSession::begins(session, begun) }
        };
        self.sessions = mount.client.sessions().iter().map(of).collect();
        self.mount = Some(mount);
    }
}

/// See the module. Clones share the clients.
#[derive(Clone)]
pub struct Fleet(Rc<Inner>);

struct Inner {
    cluster: Cluster,
    history: History,
    script: Rc<Script>,
    tags: Rc<Cell<u32>>,
    operations: u64,
    members: RefCell<Vec<Member>>,
    dead: RefCell<Vec<DeadClient>>,
    /// Since when the server evicts clients that have not mounted yet, or are gone.
    unmatched_evictions: RefCell<BTreeMap<u64, u64>>,
    /// Live clients with new numbers, by the numbers of their lost sessions.
    renumbered: RefCell<BTreeMap<u64, usize>>,
    clients: Cell<usize>,
    /// Processes that have not ended.
    working: Cell<usize>,
    failure: RefCell<Option<String>>,
}

/// The same clients, without keeping them alive.
pub(crate) struct WeakFleet(Weak<Inner>);

impl WeakFleet {
    /// Mounted clients, unless the list is being changed.
    pub(crate) fn mounts(&self) -> Option<Vec<Mount>> {
        let inner = self.0.upgrade()?;
        let members = inner.members.try_borrow().ok()?;
        Some(members.iter().filter_map(|member| member.mount.clone()).collect())
    }

    /// Is one of these runs still connecting, or does it have a mount like that?
    pub(crate) fn any_connecting_or(
        &self,
        runs: &[(usize, u64)],
        is_so: impl Fn(&Mount) -> bool,
    ) -> bool {
        let of_fleet = self.0.upgrade().map(|inner| Fleet(inner).connecting_or(is_so));
        of_fleet.is_some_and(|left| left.iter().any(|run| runs.contains(run)))
    }
}

/// The name of a slot's node.
pub fn node_name(slot: usize) -> String {
    format!("c{slot}")
}

impl Fleet {
    /// Clients with this many processes each, and operations of each process.
    pub fn new(
        cluster: &Cluster,
        history: &History,
        script: &Rc<Script>,
        slots: usize,
        processes: usize,
        operations: u64,
    ) -> Fleet {
        let member = |slot: usize| Member {
            name: node_name(slot),
            mount: None,
            mounting: false,
            connecting: false,
            attempts: 0,
            eviction_window: None,
            sessions: Vec::new(),
            has_missed_device: false,
            next: (0..processes).map(|_| Rc::default()).collect(),
        };
        Fleet(Rc::new(Inner {
            cluster: cluster.clone(),
            history: history.clone(),
            script: script.clone(),
            tags: Rc::default(),
            operations,
            members: RefCell::new((0..slots).map(member).collect()),
            dead: RefCell::default(),
            unmatched_evictions: RefCell::default(),
            renumbered: RefCell::default(),
            clients: Cell::new(0),
            working: Cell::new(0),
            failure: RefCell::default(),
        }))
    }

    /// All clients mount, one after the other; then their processes begin.
    ///
    /// # Errors
    /// Why a client cannot mount.
    pub async fn start(&self) -> Result<(), String> {
        let slots = 0..self.0.members.borrow().len();
        let used: Vec<usize> = slots.filter(|slot| self.0.script.uses(*slot as u32)).collect();
        for &slot in &used {
            let mount = self.mount(slot).await?;
            self.put(slot, mount);
        }
        for slot in used {
            self.work(slot);
        }
        // The fleet holds the stream, so the stream must not hold the fleet.
        let this = Rc::downgrade(&self.0);
        self.0.cluster.events.subscribe(Box::new(move |event| {
            if let Some(inner) = this.upgrade() {
                Fleet(inner).happened(event);
            }
        }));
        let this = self.clone();
        self.0.cluster.env.spawn(async move { this.watch().await });
        Ok(())
    }

    /// An event of the run.
    fn happened(&self, event: Event<'_>) {
        match event {
            Event::ClientLine(text) => self.on_client_line(text),
            Event::Edited(ino, edited) => self.on_edit(ino, edited),
            Event::Evicts(client, stage) => self.on_eviction(client.0, stage),
            Event::TookEffect { client, asked, transno } => self.on_applied(client, asked, transno),
            Event::ServerKilled(shard) => self.before_server_kill(shard),
            Event::Forgets(_, client) => self.on_forgotten(client),
            Event::Moved
            | Event::Ended(_)
            | Event::Meta(..)
            | Event::Data(..)
            | Event::MetaReplaced(_)
            | Event::DataReplaced
            | Event::Troubled(..)
            | Event::LostWrites { .. }
            | Event::Owns(..)
            | Event::Opened(..)
            | Event::Executed(_)
            | Event::Commits(_)
            | Event::Answers { .. }
            | Event::Applied { .. }
            | Event::Unflushed(..)
            | Event::Drains(..)
            | Event::Mounted { .. }
            | Event::SessionLost(..) => {}
        }
    }

    /// A new client on the node of this slot, and when it began to connect.
    async fn mount(&self, slot: usize) -> Result<(Mount, Instant), String> {
        let name = node_name(slot);
        let index = self.0.clients.get();
        self.0.clients.set(index + 1);
        let inner = &self.0;
        let env = inner.cluster.world.node(&name);
        let caches = Caches::new(&env, inner.script.kernel(index as u64));
        let mut refused = None;
        let (client, begun) = loop {
            let begun = inner.cluster.env.now();
            inner.cluster.node_begins(&name);
            self.set_missed_device(&name, false);
            match inner.cluster.connect_kernel(&name, caches.notifier()).await {
                Err(_) if inner.cluster.failed_since(begun) => inner.cluster.env.sleep(LOOK).await,
                // Stalled devices, dead servers and cut connections may use up the connect timeout.
                Err(text)
                    if text.contains("cannot reach the metadata server")
                        && inner.cluster.disturbed_since(begun) =>
                {
                    inner.cluster.env.sleep(LOOK).await;
                }
                Err(text) if text.contains(NO_ROOM) => {
                    if !space::refused_clients_since(&inner.cluster, begun) {
                        inner.cluster.events.broken(Invariant::Room, &text);
                    }
                    // Others may remove files or be forgotten, until everything is quiet.
                    let since = *refused.get_or_insert(begun);
                    let quiet = space::quiet(&inner.cluster);
                    let waited = begun.since(since) >= quiet;
                    if waited && inner.cluster.is_calm_for(quiet) {
                        return Err(text);
                    }
                    inner.cluster.env.sleep(LOOK).await;
                }
                connected => break (connected?, begun),
            }
        };
        inner.cluster.events.emit(Event::Mounted { client: index, node: &name });
        let (history, tags) = (inner.history.clone(), inner.tags.clone());
        let mount = Mount::new((index, slot), (client, caches), env, history, tags);
        if inner.script.kills || inner.script.workload == Workload::Fields {
            mount.may_kill();
        }
        Ok((mount, begun))
    }

    /// A client without processes, for checks.
    ///
    /// # Errors
    /// Why it cannot mount.
    pub async fn auditor(&self, slot: usize) -> Result<Mount, String> {
        self.mount(slot).await.map(|(mount, _)| mount)
    }

    /// The processes of a mounted client continue where those before them ended.
    fn work(&self, slot: usize) {
        let (mount, next) = {
            let members = self.0.members.borrow();
            let member = &members[slot];
            let Some(mount) = member.mount.clone() else { return };
            (mount, member.next.clone())
        };
        for (number, next) in next.into_iter().enumerate() {
            let script = self.0.script.clone();
            let number = number as u64;
            let mut process = Process::new(mount.of_process(number), number, script);
            let (this, operations) = (self.clone(), self.0.operations);
            self.0.working.set(self.0.working.get() + 1);
            let working = Working(this);
            let executor = number as usize % mount.env.executors();
            mount.env.spawn_on(executor, async move {
                process.run(operations, &next).await;
                drop(working);
            });
        }
    }

    /// Mounted clients.
    pub fn mounts(&self) -> Vec<Mount> {
        self.0.members.borrow().iter().filter_map(|member| member.mount.clone()).collect()
    }

    /// Slots whose client is connecting, or has a mount like that, and the number of its run.
    pub(crate) fn connecting_or(&self, is_so: impl Fn(&Mount) -> bool) -> Vec<(usize, u64)> {
        let members = self.0.members.borrow();
        let of = |member: &Member| member.connecting || member.mount.as_ref().is_some_and(&is_so);
        let slots = members.iter().enumerate().filter(|(_, member)| of(member));
        slots.map(|(slot, member)| (slot, member.attempts)).collect()
    }

    /// A reference that does not keep the clients alive.
    pub(crate) fn weak(&self) -> WeakFleet {
        WeakFleet(Rc::downgrade(&self.0))
    }

    /// Places of clients.
    pub fn slots(&self) -> usize {
        self.0.members.borrow().len()
    }

    /// No process works or will work.
    pub fn is_done(&self) -> bool {
        let mounting = self.0.members.borrow().iter().any(|member| member.mounting);
        self.0.working.get() == 0 && !mounting
    }

    /// A failed mount, if there was one.
    pub fn failure(&self) -> Option<String> {
        self.0.failure.borrow().clone()
    }

    /// The name of the node of a slot.
    pub fn name(&self, slot: usize) -> String {
        self.0.members.borrow()[slot].name.clone()
    }

    /// Kills one of a client's waiting processes, selected by `chance`. `false`: none waits.
    pub fn kill_process(&self, slot: usize, chance: u64) -> bool {
        self.0.members.borrow()[slot].mount.as_ref().is_some_and(|mount| mount.kill_one(chance))
    }

    /// A process of a client gets a signal once its next wait for a lock has lasted this long.
    pub fn signal_lock_wait(&self, slot: usize, after: Duration) {
        if let Some(mount) = &self.0.members.borrow()[slot].mount {
            mount.signal_next_lock_wait(after);
        }
    }

    /// Each client has a host of its own, which the server may switch off when it has evicted the
    /// client. The host comes back soon.
    pub fn allow_fences(&self) {
        for host in (0..self.slots()).map(|slot| self.name(slot)) {
            self.0.cluster.world.set_host(&host, &host);
            self.0.cluster.world.set_host(&fences::beside(&host), &host);
        }
        let this = Rc::downgrade(&self.0);
        self.0.cluster.fence_by(Box::new(move |host| {
            let Some(fleet) = this.upgrade().map(Fleet) else { return };
            let slot = (0..fleet.slots()).find(|slot| fleet.name(*slot) == host);
            if let Some(slot) = slot {
                fleet.kill(slot, FENCED);
            }
        }));
    }

    /// Kills the client's process; a new one mounts after `pause`.
    ///
    /// `false`: there was none to kill.
    pub fn kill(&self, slot: usize, pause: Duration) -> bool {
        let mount = self.0.members.borrow_mut()[slot].mount.take();
        let lived = mount.is_some() || self.0.members.borrow()[slot].mounting;
        if let Some(mount) = mount {
            self.note_evictions(slot, &mount);
            let since = self.0.history.cut_short(mount.index);
            let sessions = std::mem::take(&mut self.0.members.borrow_mut()[slot].sessions);
            let of = sessions.into_iter().zip(mount.client.sessions());
            self.0.dead.borrow_mut().extend(of.map(|(session, status)| DeadClient {
                index: mount.index,
                session,
                since,
                undurable: (status.replay as u32).min(UNDURABLE_MAX),
            }));
        }
        // A client that is about to mount starts again, too.
        self.0.cluster.world.kill(&self.name(slot));
        let attempt = self.attempt(slot);
        let this = self.clone();
        self.0.cluster.env.spawn(async move {
            this.0.cluster.env.sleep(pause).await;
            this.come_back(slot, attempt);
        });
        lived
    }

    fn attempt(&self, slot: usize) -> u64 {
        let mut members = self.0.members.borrow_mut();
        members[slot].mounting = true;
        members[slot].connecting = false;
        members[slot].attempts += 1;
        members[slot].attempts
    }

    fn put(&self, slot: usize, mount: (Mount, Instant)) {
        let evicted = self.0.unmatched_evictions.borrow();
        self.0.members.borrow_mut()[slot].put(mount, &evicted, &self.0.cluster.events);
    }

    /// A new client mounts, as a process of its node.
    fn come_back(&self, slot: usize, attempt: u64) {
        if self.0.members.borrow()[slot].attempts != attempt {
            return;
        }
        let (this, node) = (self.clone(), self.0.cluster.world.node(&self.name(slot)));
        self.0.members.borrow_mut()[slot].connecting = true;
        node.spawn(async move {
            match this.mount(slot).await {
                Ok(mount) => {
                    this.put(slot, mount);
                    this.work(slot);
                }
                // It stays away.
                Err(text) if text.contains(NO_ROOM) => {}
                Err(text) => *this.0.failure.borrow_mut() = Some(text),
            }
            let member = &mut this.0.members.borrow_mut()[slot];
            (member.mounting, member.connecting) = (false, false);
        });
    }

    /// For this long all clients may lose their sessions.
    pub fn all_may_lose(&self, time: Duration) {
        (0..self.slots()).for_each(|slot| self.may_lose(slot, time));
    }

    /// For this long the client may lose its session.
    pub fn may_lose(&self, slot: usize, time: Duration) {
        let since = self.0.history.position();
        let mut members = self.0.members.borrow_mut();
        let member = &mut members[slot];
        let until = self.0.cluster.env.now() + time;
        let (since, until) =
            member.eviction_window.map_or((since, until), |(first, last)| (first, last.max(until)));
        member.eviction_window = Some((since, until));
    }

    /// Pauses the client's process, or partitions it from the server.
    pub fn silence(&self, slot: usize, time: Duration, stopped: bool) {
        let (world, env) = (self.0.cluster.world.clone(), self.0.cluster.env.clone());
        let name = self.name(slot);
        let servers = self.0.cluster.out_of_reach(time);
        self.may_lose(slot, time + self.0.cluster.lease * 4);
        if stopped {
            world.pause(&name);
        } else {
            servers.iter().for_each(|server| world.partition(&name, server));
        }
        env.clone().spawn(async move {
            env.sleep(time).await;
            if stopped {
                world.resume(&name);
            } else {
                servers.iter().for_each(|server| world.heal_between(&name, server));
            }
        });
    }

    /// Looks for lost sessions for ever.
    async fn watch(&self) {
        loop {
            self.0.cluster.env.sleep(LOOK).await;
            for slot in 0..self.slots() {
                let mount = self.0.members.borrow()[slot].mount.clone();
                if let Some(mount) = mount {
                    self.note_evictions(slot, &mount);
                }
            }
        }
    }

    /// The client of a node says that a data device is absent for it, or it begins a new run.
    fn set_missed_device(&self, node: &str, missed: bool) {
        let mut members = self.0.members.borrow_mut();
        let of_node = members.iter_mut().filter(|member| member.name == node);
        of_node.for_each(|member| member.has_missed_device = missed);
    }

    /// The running client logs a line.
    fn on_client_line(&self, text: &str) {
        if text.contains(ABSENT)
            && let Some(name) = self.0.cluster.world.running()
        {
            return self.set_missed_device(&name, true);
        }
        let damaged = damaged(text);
        let replayed = self.replayed_by(text);
        if damaged.is_none() && replayed.is_none() {
            return;
        }
        let Some(name) = self.0.cluster.world.running() else { return };
        let mut members = self.0.members.borrow_mut();
        let Some(member) = members.iter_mut().find(|member| member.name == name) else { return };
        let Some(mount) = &member.mount else { return };
        let now = self.0.cluster.env.now();
        match damaged {
            Some((ino, flush)) => {
                // A write of a partial block reads the block first.
                let actions: &[DiskAction] = match flush {
                    true => &[DiskAction::Flush],
                    false => &[DiskAction::Write, DiskAction::Read],
                };
                let (cluster, client) = (&self.0.cluster, mount.index);
                cluster.events.emit(Event::LostWrites { client, ino });
                // What was not flushed goes with a device that becomes absent, and nothing is
                // written to one that is (SEMANTICS 3.12).
                let targets = &cluster.targets;
                // A target refuses what a client repeats that was evicted: the target may have
                // heard of that before the client, or may have been away until later.
                let evicted = targets.count() > 0
                    && (member.sessions.iter().any(|session| session.since.is_some())
                        || mount.client.sessions().iter().any(|status| status.evictions > 0));
                // So it does when it cannot read what it knows of the request.
                let failed = actions.iter().any(|action| cluster.was_failed(&name, *action))
                    || targets.have_failed_reads()
                    || cluster.was_forgotten(&name)
                    || evicted;
                if !failed && !member.has_missed_device {
                    cluster.events.broken(Invariant::Loss, text);
                }
                mount.on_device_loss(ino);
                self.0.history.damaged(client, ino, flush);
            }
            None => {
                let all = mount.client.sessions().into_iter().zip(&mut member.sessions);
                for (status, its) in all.filter(|(_, its)| replayed == Some(its.shard)) {
                    // A late line may be about an earlier server.
                    if status.epoch.0 != self.0.cluster.shard(its.shard).epoch.get() {
                        continue;
                    }
                    match status.evictions > its.evictions {
                        // It replayed nothing of the lost session.
                        true => its.next_replayed = Some(now),
                        false => its.replayed = now,
                    }
                }
            }
        }
    }

    /// The shard to whose server the client has replayed everything, if a line says so.
    fn replayed_by(&self, text: &str) -> Option<ShardId> {
        let peer = text.strip_suffix(REPLAYED)?;
        match self.0.cluster.has_several() {
            true => peer.strip_prefix("metadata server ")?.parse().ok().map(ShardId),
            false => (peer == "the metadata server").then_some(ShardId(0)),
        }
    }

    /// A client edits content at this instant.
    fn on_edit(&self, ino: Ino, edited: Edited) {
        let Some(name) = self.0.cluster.world.running() else { return };
        let members = self.0.members.borrow();
        let member = members.iter().find(|member| member.name == name);
        if let Some(mount) = member.and_then(|member| member.mount.as_ref()) {
            self.0.history.edited(mount.index, ino, edited);
        }
    }

    /// A target has forgotten a run of a node: it was silent, or did not come back.
    fn on_forgotten(&self, (node, run): (&str, u32)) {
        let cluster = &self.0.cluster;
        let members = self.0.members.borrow();
        let member = members.iter().find(|member| member.name == node && member.mount.is_some());
        let Some(member) = member.filter(|_| cluster.world.run_of(node) == Some(run)) else {
            return;
        };
        let now = cluster.env.now();
        if member.eviction_window.is_none_or(|(_, until)| now > until) {
            let text = format!("a target has forgotten {node}, though nothing held it up");
            cluster.events.broken(Invariant::Eviction, &text);
        }
    }

    /// Did the session's server die since its client's last replay, with changes that were not
    /// durable?
    fn was_restarted(&self, session: &MemberSession) -> bool {
        let restarted = self.0.cluster.shard(session.shard).restarted.get();
        restarted.is_some_and(|at| at >= session.replayed)
    }

    /// Writes of an evicted client that the server could not flush may be carried out late.
    fn on_unflushed(&self, client: u64) {
        let mut dead = self.0.dead.borrow_mut();
        if let Some(dead) = dead.iter_mut().find(|dead| dead.session.client == client) {
            dead.session.late = true;
            return;
        }
        let mut members = self.0.members.borrow_mut();
        let of = members.iter_mut().flat_map(|member| &mut member.sessions);
        let mut of = of.filter(|session| session.client == client && !session.loss_recorded);
        if let Some(session) = of.next() {
            session.late = true;
        } else if let Some(&index) = self.0.renumbered.borrow().get(&client) {
            self.0.history.writes_may_be_late((index, ClientId(client).shard()));
        }
    }

    /// The server reports that it applied this for a client.
    fn on_applied(&self, client: ClientId, asked: &proto::mds::Op, transno: Option<Transno>) {
        let ClientId(client) = client;
        let members = self.0.members.borrow();
        let is_its = |session: &MemberSession| session.client == client;
        let living = members.iter().filter(|member| member.sessions.iter().any(is_its));
        let living = living.filter_map(|member| Some(member.mount.as_ref()?.index)).next();
        let dead = self.0.dead.borrow();
        let dead = dead.iter().find(|dead| dead.session.client == client).map(|dead| dead.index);
        // Several shards may agree on what a client asked for in a session that it has lost.
        let several = self.0.cluster.has_several();
        let lost = || self.0.renumbered.borrow().get(&client).copied().filter(|_| several);
        if let Some(index) = living.or(dead).or_else(lost) {
            let shard = ClientId(client).shard();
            let applied = &self.0.history.applied((index, shard), asked, transno);
            self.0.cluster.events.emit(Event::Applied { client: index, asked, applied });
        }
    }

    /// The server reports the begin or the end of an eviction.
    fn on_eviction(&self, client: u64, eviction: Eviction) {
        if eviction == Eviction::Unflushed {
            return self.on_unflushed(client);
        }
        let out = eviction == Eviction::Completed;
        let position = self.0.history.position();
        if let Some(dead) =
            self.0.dead.borrow_mut().iter_mut().find(|dead| dead.session.client == client)
        {
            dead.session.since.get_or_insert(position);
            dead.session.loss_recorded |= out;
        }
        let mut members = self.0.members.borrow_mut();
        let Some(slot) = members.iter_mut().position(|member| {
            member.session_of(client).is_some_and(|session| !session.loss_recorded)
        }) else {
            drop(members);
            self.0.unmatched_evictions.borrow_mut().entry(client).or_insert(position);
            return self.record_dead_sessions(false);
        };
        // It may notice much later, if the server is paused.
        let now = self.0.cluster.env.now();
        let may_be_evicted = members[slot].eviction_window.is_some_and(|(_, until)| now <= until);
        let mount = members[slot].mount.clone();
        let Some(session) = members[slot].session_of(client) else { return };
        session.expected |= may_be_evicted;
        // The end of an eviction is durable after all earlier changes, even if the server dies
        // meanwhile.
        if !out || session.since.is_none() {
            session.restarted = self.was_restarted(session);
        }
        let since = *session.since.get_or_insert(position);
        if out && let Some(mount) = mount {
            session.loss_recorded = true;
            self.lost(&mount, since, session);
        }
    }

    /// Called before the server of a shard is killed.
    fn before_server_kill(&self, shard: ShardId) {
        for member in self.0.members.borrow_mut().iter_mut() {
            let Some(mount) = &member.mount else { continue };
            let all = mount.client.sessions().into_iter().zip(&mut member.sessions);
            all.filter(|(_, its)| its.shard == shard)
                .for_each(|(status, its)| its.undurable.note(&status));
        }
    }

    /// Live clients that have not noticed that a server evicted them.
    pub fn unaware(&self) -> Vec<usize> {
        let members = self.0.members.borrow();
        let mounts = members.iter().filter_map(|member| {
            let mount = member.mount.as_ref()?;
            let all = mount.client.sessions().into_iter().zip(&member.sessions);
            let mut evicted = all.filter(|(_, its)| its.loss_recorded);
            let unaware = evicted.any(|(status, its)| status.evictions <= its.evictions);
            unaware.then_some(mount.index)
        });
        mounts.collect()
    }

    /// The session of a live client is lost, perhaps with changes that a dead server had not made
    /// durable.
    fn lost(&self, mount: &Mount, since: u64, session: &MemberSession) {
        self.0.renumbered.borrow_mut().insert(session.client, mount.index);
        let (of, undurable) = ((mount.index, session.shard), session.undurable_at_loss());
        self.0.history.lost(of, since, (false, session.late), undurable);
    }

    /// Compares what a client reports about its sessions with what the server reported.
    fn note_evictions(&self, slot: usize, mount: &Mount) {
        let now = self.0.cluster.env.now();
        let mut members = self.0.members.borrow_mut();
        let member = &mut members[slot];
        let window = member.eviction_window;
        let mut any = false;
        for (status, its) in mount.client.sessions().iter().zip(&mut member.sessions) {
            if status.evictions > its.evictions {
                self.note_eviction(mount, (status, its), window);
                any = true;
            }
        }
        if !any && window.is_some_and(|(_, until)| now > until) {
            member.eviction_window = None;
        }
    }

    /// A client reports that it has lost a session; `window`: when that may happen.
    fn note_eviction(
        &self,
        mount: &Mount,
        (status, its): (&ServerSession, &mut MemberSession),
        window: Option<(u64, Instant)>,
    ) {
        let now = self.0.cluster.env.now();
        let may_be_evicted = window.is_some_and(|(_, until)| now <= until);
        // A client out of reach may lose its new session as well.
        let expected = may_be_evicted || its.expected;
        if !expected {
            self.0.cluster.events.broken(
                Invariant::Eviction,
                &format!("c{} was evicted, though nothing held it up", mount.index),
            );
        }
        if status.evictions > its.evictions + 1 && !expected {
            self.0.cluster.events.broken(
                Invariant::Eviction,
                &format!("c{} was evicted twice in a row", mount.index),
            );
        }
        let position = self.0.history.position();
        let since = window.map_or(position, |(since, _)| since);
        if !its.loss_recorded {
            its.restarted = self.was_restarted(its);
            let since = its.since.unwrap_or(since);
            self.lost(mount, since, its);
        }
        self.0.history.learned((mount.index, its.shard));
        self.0.cluster.events.emit(Event::SessionLost(mount.index, its.shard));
        let replayed = its.next_replayed.unwrap_or(its.replayed);
        let undurable = std::mem::take(&mut its.undurable);
        *its = MemberSession { undurable, ..MemberSession::begins(status, replayed) };
    }

    /// Records the loss of dead clients' sessions that the server has ended; with `all`, of all.
    pub fn record_dead_sessions(&self, all: bool) {
        let mut dead = self.0.dead.borrow_mut();
        let buried: Vec<DeadClient> =
            dead.extract_if(.., |dead| all || dead.session.loss_recorded).collect();
        for dead in buried {
            let undurable = if self.was_restarted(&dead.session) { dead.undurable } else { 0 };
            let since = dead.session.since.unwrap_or(dead.since);
            let of = (dead.index, dead.session.shard);
            self.0.history.lost(of, since, (true, dead.session.late), undurable);
        }
    }

    /// All clients and the server end at once; no client comes back.
    pub fn end(&self) {
        for slot in 0..self.slots() {
            let mount = self.0.members.borrow_mut()[slot].mount.take();
            if mount.is_some() {
                self.0.cluster.world.kill(&self.name(slot));
            }
        }
        self.0.cluster.kill_servers();
    }
}

/// A running process; dropped at its end or death.
struct Working(Fleet);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.0.working.set(self.0.0.working.get() - 1);
    }
}

#[cfg(test)]
mod tests;

//! Shards with logs, locks and a network, around the shipped machine: what its driver does, and
//! everything that can go wrong.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

use commitment::{
    Action, Counts, Entry, Envelope, Guards, Kept, Outcome, Part, Protocol, Record, Site, TxnId,
    Wait,
};
use types::{Epoch, ShardId};

/// One record as the log has it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Written {
    pub id: TxnId,
    pub record: Record,
    pub keeps: Option<Entry>,
    forced: bool,
}

/// A shard and the server that has it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Host {
    pub epoch: Epoch,
    /// `None`: the server is dead.
    pub site: Option<Site>,
    /// It can write no more, and may not know.
    pub fenced: bool,
    /// What is durable.
    pub log: Vec<Written>,
    /// What is in the caches and on its way to the log.
    pub tail: Vec<Written>,
    /// Workers' parts that wait for locks.
    pub plans: BTreeSet<TxnId>,
    /// Who has the lock of the one object that all transactions change.
    pub held: BTreeSet<TxnId>,
}

/// What can happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Act {
    /// A client asks this shard for an operation.
    Begin(usize),
    /// A worker's part is planned, or is refused.
    Plan(usize, TxnId, bool),
    /// The oldest record on its way becomes durable.
    Durable(usize),
    Deliver(Envelope),
    Lose(Envelope),
    /// It comes, and comes again later.
    Double(Envelope),
    Crash(usize),
    Restart(usize),
    /// The first hears of the second's present server.
    Meet(usize, usize),
    Overdue(usize, TxnId),
    /// The first cuts the second off and reads its log.
    Fence(usize, usize),
}

impl Act {
    /// Does it count as trouble?
    pub fn is_trouble(&self) -> bool {
        matches!(
            self,
            Act::Lose(_) | Act::Double(_) | Act::Crash(_) | Act::Overdue(..) | Act::Fence(..)
        ) || matches!(self, Act::Plan(_, _, false))
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub hosts: Vec<Host>,
    /// Messages under way; the same one twice is one.
    pub network: BTreeSet<Envelope>,
    /// What clients heard.
    pub answers: BTreeMap<TxnId, Outcome>,
    /// Who takes part, in the order in which they began.
    pub begun: Vec<(TxnId, Vec<usize>)>,
    pub troubles: u8,
    pub protocol: Protocol,
    pub guards: Guards,
    /// A log is read only after its writer is cut off.
    pub fences: bool,
}

fn shard(host: usize) -> ShardId {
    ShardId(host as u8)
}

fn host(shard: ShardId) -> usize {
    usize::from(shard.0)
}

/// The entries that a log leaves.
pub fn entries<'a>(log: impl IntoIterator<Item = &'a Written>) -> BTreeMap<TxnId, Entry> {
    let mut kept = BTreeMap::new();
    for written in log {
        match &written.keeps {
            Some(entry) => kept.insert(written.id, entry.clone()),
            None => kept.remove(&written.id),
        };
    }
    kept
}

impl World {
    pub fn new(hosts: usize, protocol: Protocol, guards: Guards) -> World {
        let fresh = |index| Host {
            epoch: Epoch(1),
            site: Some(Site::new(shard(index), Epoch(1), guards)),
            fenced: false,
            log: Vec::new(),
            tail: Vec::new(),
            plans: BTreeSet::new(),
            held: BTreeSet::new(),
        };
        let mut world = World {
            hosts: (0..hosts).map(fresh).collect(),
            network: BTreeSet::new(),
            answers: BTreeMap::new(),
            begun: Vec::new(),
            troubles: 0,
            protocol,
            guards,
            fences: true,
        };
        world.meet_all();
        world
    }

    /// What can happen next; a further transaction begins only while there are fewer than `most`.
    pub fn possible(&self, most: usize) -> Vec<Act> {
        let mut acts = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let Some(site) = &host.site else {
                acts.push(Act::Restart(index));
                continue;
            };
            if self.begun.len() < most && site.is_ready() && host.held.is_empty() && !host.fenced {
                acts.push(Act::Begin(index));
            }
            for &id in &host.plans {
                if host.held.is_empty() && site.is_ready() {
                    acts.push(Act::Plan(index, id, true));
                }
                acts.push(Act::Plan(index, id, false));
            }
            if !host.tail.is_empty() && !host.fenced {
                acts.push(Act::Durable(index));
            }
            acts.push(Act::Crash(index));
            acts.extend(site.open().map(|id| Act::Overdue(index, id)));
            for other in (0..self.hosts.len()).filter(|&other| other != index) {
                acts.push(Act::Meet(index, other));
                if self.suspects(index, other) {
                    acts.push(Act::Fence(index, other));
                }
            }
        }
        for &envelope in &self.network {
            acts.push(Act::Deliver(envelope));
            acts.push(Act::Lose(envelope));
            acts.push(Act::Double(envelope));
        }
        acts
    }

    /// Does a transaction of 1PC wait for that worker?
    fn suspects(&self, index: usize, worker: usize) -> bool {
        let Some(site) = &self.hosts[index].site else { return false };
        let mut probe = site.clone();
        let mut actions = Vec::new();
        for id in site.open() {
            probe.overdue(id, &mut actions);
        }
        actions.iter().any(|action| matches!(action, Action::Suspect(_, of) if host(*of) == worker))
    }

    pub fn act(&mut self, act: &Act) {
        self.troubles += u8::from(act.is_trouble());
        match act {
            Act::Begin(index) => self.begin(*index),
            Act::Plan(index, id, possible) => {
                let host = &mut self.hosts[*index];
                host.plans.remove(id);
                if *possible {
                    host.held.insert(*id);
                }
                self.step(*index, |site, actions| site.planned(*id, *possible, actions));
            }
            Act::Durable(index) => {
                let host = &mut self.hosts[*index];
                let written = host.tail.remove(0);
                host.log.push(written.clone());
                if written.forced {
                    self.step(*index, |site, actions| {
                        site.logged(written.id, written.record, actions);
                    });
                }
            }
            Act::Deliver(envelope) => {
                self.network.remove(envelope);
                self.deliver(*envelope);
            }
            Act::Double(envelope) => self.deliver(*envelope),
            Act::Lose(envelope) => {
                self.network.remove(envelope);
            }
            Act::Crash(index) => self.crash(*index),
            Act::Restart(index) => self.restart(*index),
            Act::Meet(index, other) => self.meet(*index, *other),
            Act::Overdue(index, id) => {
                self.step(*index, |site, actions| site.overdue(*id, actions));
            }
            Act::Fence(index, other) => self.fence(*index, *other),
        }
    }

    fn begin(&mut self, index: usize) {
        let workers: Vec<usize> = (0..self.hosts.len()).filter(|&other| other != index).collect();
        let shards = workers.iter().map(|&worker| shard(worker)).collect();
        let protocol = self.protocol;
        let Some(site) = &mut self.hosts[index].site else { return };
        let mut actions = Vec::new();
        let id = site.begin(protocol, shards, &mut actions);
        if let Some(id) = id {
            self.hosts[index].held.insert(id);
            let mut parts = vec![index];
            parts.extend(workers);
            self.begun.push((id, parts));
        }
        self.carry_out(index, actions);
    }

    fn step(&mut self, index: usize, event: impl FnOnce(&mut Site, &mut Vec<Action>)) {
        let Some(site) = &mut self.hosts[index].site else { return };
        let mut actions = Vec::new();
        event(site, &mut actions);
        self.carry_out(index, actions);
    }

    /// What the driver does.
    fn carry_out(&mut self, index: usize, actions: Vec<Action>) {
        for action in actions {
            let host = &mut self.hosts[index];
            match action {
                Action::Send(envelope) => {
                    self.network.insert(envelope);
                }
                Action::Write { id, record, keeps, wait } => {
                    let forced = wait != Wait::Lazy;
                    host.tail.push(Written { id, record, keeps, forced });
                }
                Action::Plan(id) => {
                    host.plans.insert(id);
                }
                Action::Unlock(id) => {
                    host.plans.remove(&id);
                    host.held.remove(&id);
                }
                Action::Reply(id, outcome) => {
                    self.answers.entry(id).or_insert(outcome);
                }
                Action::Suspect(..) => {}
            }
        }
    }

    fn deliver(&mut self, envelope: Envelope) {
        self.step(host(envelope.to), |site, actions| site.receive(envelope, actions));
    }

    fn crash(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        host.site = None;
        host.tail.clear();
        host.plans.clear();
        host.held.clear();
    }

    fn restart(&mut self, index: usize) {
        let guards = self.guards;
        let host = &mut self.hosts[index];
        host.epoch = Epoch(host.epoch.0 + 1);
        host.fenced = false;
        let kept = entries(&host.log);
        let in_doubt = kept.iter().filter(|(_, entry)| match (&entry.part, entry.kept) {
            (_, Kept::Prepared) => true,
            (Part::Coordinator(_), Kept::Started) => entry.protocol == Protocol::OnePhase,
            _ => false,
        });
        host.held = in_doubt.map(|(&id, _)| id).collect();
        let (site, actions) = Site::recover(shard(index), host.epoch, guards, kept);
        host.site = Some(site);
        self.carry_out(index, actions);
    }

    fn meet(&mut self, index: usize, other: usize) {
        let host = &self.hosts[other];
        if host.site.is_some() && !host.fenced {
            let epoch = host.epoch;
            let known = self.hosts[index].site.as_ref().and_then(|site| site.reaches(shard(other)));
            if known == Some(epoch) {
                return;
            }
            self.step(index, |site, actions| site.peer(shard(other), epoch, actions));
        }
    }

    fn meet_all(&mut self) {
        for index in 0..self.hosts.len() {
            for other in (0..self.hosts.len()).filter(|&other| other != index) {
                self.meet(index, other);
            }
        }
    }

    fn fence(&mut self, index: usize, worker: usize) {
        if self.fences {
            self.hosts[worker].fenced = true;
        }
        let epoch = self.hosts[worker].epoch;
        let committed: Vec<TxnId> = entries(&self.hosts[worker].log)
            .into_iter()
            .filter(|(id, entry)| {
                id.coordinator == shard(index)
                    && entry.part == Part::Worker
                    && entry.kept == Kept::Committed
            })
            .map(|(id, _)| id)
            .collect();
        self.step(index, |site, actions| {
            site.fenced(shard(worker), epoch, &committed, actions);
        });
    }

    /// Nothing more goes wrong: everything is over after a while. Then all shards have applied a
    /// transaction or none has, as its client heard.
    ///
    /// # Errors
    /// What is wrong.
    pub fn calms_down(&self) -> Result<(), String> {
        let mut world = self.clone();
        for _ in 0..200 {
            if world.calm_round() {
                return world.verdict();
            }
        }
        Err(format!("it never ends: {world:#?}"))
    }

    /// One round without trouble; is everything over?
    fn calm_round(&mut self) -> bool {
        for index in 0..self.hosts.len() {
            if self.hosts[index].fenced {
                self.crash(index);
            }
            if self.hosts[index].site.is_none() {
                self.restart(index);
            }
        }
        self.meet_all();
        let mut quiet = true;
        while let Some(envelope) = self.network.pop_first() {
            quiet = false;
            self.deliver(envelope);
        }
        for index in 0..self.hosts.len() {
            while !self.hosts[index].tail.is_empty() {
                quiet = false;
                self.act(&Act::Durable(index));
            }
            let host = &self.hosts[index];
            let free = host.held.is_empty() && host.site.as_ref().is_some_and(Site::is_ready);
            if let Some(&id) = host.plans.first().filter(|_| free) {
                quiet = false;
                self.act(&Act::Plan(index, id, true));
            }
        }
        self.troubles = 0;
        if !quiet {
            return false;
        }
        let mut open = false;
        for index in 0..self.hosts.len() {
            if let Some(&id) = self.hosts[index].plans.first() {
                // The bound of the wait for locks.
                self.act(&Act::Plan(index, id, false));
                return false;
            }
            let ids: Vec<TxnId> = self.hosts[index].site.iter().flat_map(Site::open).collect();
            for id in ids {
                open = true;
                self.act(&Act::Overdue(index, id));
            }
        }
        !open
    }

    fn applied(&self, index: usize, id: TxnId) -> bool {
        let log = self.hosts[index].log.iter();
        log.filter(|written| written.id == id).any(|written| written.record == Record::Committed)
    }

    /// Are all shards of one mind? For a world that has calmed down.
    fn verdict(&self) -> Result<(), String> {
        for (id, parts) in &self.begun {
            let applied = parts.iter().filter(|&&part| self.applied(part, *id)).count();
            if applied != 0 && applied != parts.len() {
                return Err(format!("{applied} of {} applied {id}: {self:#?}", parts.len()));
            }
            for &part in parts {
                let log = self.hosts[part].log.iter();
                let times = log.filter(|w| w.id == *id && w.record == Record::Committed).count();
                if times > 1 {
                    return Err(format!("shard {part} applied {id} {times} times"));
                }
            }
            let heard = self.answers.get(id);
            if heard == Some(&Outcome::Committed) && applied == 0 {
                return Err(format!("{id} was answered committed, and nothing is there"));
            }
            if heard == Some(&Outcome::Aborted) && applied != 0 {
                return Err(format!("{id} was answered aborted, and is there"));
            }
            let locked = self.hosts.iter().any(|host| host.held.contains(id));
            if locked {
                return Err(format!("{id} is over and holds locks: {self:#?}"));
            }
        }
        self.order()
    }

    /// Two transactions that two shards applied were applied in the same order.
    fn order(&self) -> Result<(), String> {
        let orders: Vec<Vec<TxnId>> = self.hosts.iter().map(applied_order).collect();
        for (at, one) in orders.iter().enumerate() {
            for other in &orders[at + 1..] {
                let of = |mine: &[TxnId], all: &[TxnId]| -> Vec<TxnId> {
                    mine.iter().filter(|id| all.contains(id)).copied().collect()
                };
                if of(one, other) != of(other, one) {
                    return Err(format!("two orders: {one:?} and {other:?}"));
                }
            }
        }
        Ok(())
    }

    /// Messages in an envelope to shard `index`, for tests.
    pub fn under_way(&self, index: usize) -> Vec<Envelope> {
        self.network.iter().filter(|envelope| host(envelope.to) == index).copied().collect()
    }

    /// What all shards counted.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for site in self.hosts.iter().filter_map(|host| host.site.as_ref()) {
            sum.add(&site.counts(self.protocol));
        }
        sum
    }

    /// Runs on without trouble until nothing is open, with as many new transactions of shard 0.
    pub fn run(&mut self, transactions: usize) {
        for _ in 0..transactions {
            self.act(&Act::Begin(0));
            while !self.calm_round() {}
        }
    }
}

fn applied_order(host: &Host) -> Vec<TxnId> {
    let log = host.log.iter().chain(&host.tail);
    log.filter(|written| written.record == Record::Committed).map(|written| written.id).collect()
}

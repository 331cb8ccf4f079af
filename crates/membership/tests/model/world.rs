//! The world of the model: an etcd cluster, a device with log and home blocks, hosts with a server
//! each, and fences. What servers decide is the shipped `decide` and `Record`; the rest follows
//! `mds::standby`, the seats of the memberships and the engine's redo.
//!
//! Time is an order: a term ends before its lease does, and a request to a device has ended before
//! the lease under which it was submitted. A host stops between any two steps.

use redbud_membership::{
    Claim, Life, Member, Proof, Ready, Record, Seen, Step, Waiting, decide, may_claim,
};
use types::{Epoch, Timestamp};

/// What protects the metadata; each can be removed.
#[derive(Clone, Copy)]
pub struct Guards {
    /// A server that stands by claims only with a proof of the owner's death.
    pub proof: bool,
    /// A claim replaces only the owner that was seen.
    pub compare: bool,
    /// A fence is asked whether it has cut off.
    pub check: bool,
    /// A host that is cut off does not reach the devices.
    pub cut: bool,
    /// The term ends, for the owner, before its lease ends.
    pub term: bool,
    /// An owner whose term is over submits nothing.
    pub gate: bool,
    /// What an owner has submitted has landed or failed before its death is proved.
    pub settled: bool,
    /// A claim whose answer is lost counts only if the record shows it.
    pub reread: bool,
    /// The store is opened only behind a claim.
    pub claim: bool,
    /// The metadata are given up only when the store is closed.
    pub closed: bool,
    /// A server that cannot open the store gives the metadata up.
    pub gives_up: bool,
    /// Redo skips groups of servers that had been replaced.
    pub stale: bool,
}

impl Guards {
    /// As shipped.
    pub const ALL: Guards = Guards {
        proof: true,
        compare: true,
        check: true,
        cut: true,
        term: true,
        gate: true,
        settled: true,
        reread: true,
        claim: true,
        closed: true,
        gives_up: true,
        stale: true,
    };
}

/// A group of the log: its epoch, and its value.
type Group = (u32, u8);

/// A request to the device.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Write {
    Group {
        slot: usize,
        group: Group,
    },
    /// A checkpoint: all values before `tail`, home.
    Home {
        values: Vec<u8>,
        tail: usize,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    Down,
    Watching,
    /// It asks the fence to cut a server's host off.
    Fencing {
        target: usize,
        seen: Epoch,
    },
    /// The fence says that it has.
    Fenced {
        target: usize,
        seen: Epoch,
    },
    Proved {
        seen: Epoch,
        proof: Proof,
    },
    /// The answer to its claim was lost.
    Asking(Epoch),
    Claimed(Epoch),
    /// Its opening has failed, and it does not give up.
    Stuck(Epoch),
    /// The epoch that it writes to the superblock, where that begins, and those before.
    Redone {
        epoch: u32,
        end: usize,
        begun: Vec<(u32, usize)>,
    },
    /// Its epoch, and where its next group goes.
    Serving {
        epoch: u32,
        end: usize,
    },
}

impl Phase {
    pub fn name(&self) -> &'static str {
        match self {
            Phase::Down => "down",
            Phase::Watching => "watching",
            Phase::Fencing { .. } | Phase::Fenced { .. } => "fencing",
            Phase::Proved { .. } => "proved",
            Phase::Asking(_) => "asking",
            Phase::Claimed(_) => "claimed",
            Phase::Stuck(_) => "stuck",
            Phase::Redone { .. } => "redone",
            Phase::Serving { .. } => "serving",
        }
    }

    fn owns(&self) -> bool {
        matches!(
            self,
            Phase::Claimed(_) | Phase::Stuck(_) | Phase::Redone { .. } | Phase::Serving { .. }
        )
    }
}

/// A host with a server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Server {
    pub phase: Phase,
    /// The life of its process.
    life: u64,
    stopped: bool,
    /// Its term as an owner is over by its clock.
    term_over: bool,
    /// Its request to the device that has not ended; it may outlive the process.
    flying: Option<Write>,
    /// A claim that etcd may still carry out, and the epoch that it replaces.
    pending: Option<(Epoch, Record)>,
    /// The host does not reach the device.
    is_cut: bool,
    /// The owner for which its fence has failed.
    failed_for: Option<Epoch>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub record: Record,
    /// The epoch of the key that goes with the owner's lease.
    lease: Option<Epoch>,
    log: Vec<Option<Group>>,
    home: Vec<u8>,
    tail: usize,
    /// Where the store's epochs began, oldest first.
    begun: Vec<(u32, usize)>,
    /// The highest epoch that the superblock ever had.
    highest: u32,
    pub servers: Vec<Server>,
    acknowledged: Vec<u8>,
    pub written: u8,
    pub troubles: u8,
    /// Writes of replaced owners that were refused, one at most.
    pub late_writes: u8,
    /// An opening was refused, because the log is damaged.
    pub refused: bool,
}

/// What happens, and at which server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Act {
    Kill(usize),
    Stop(usize),
    Wake(usize),
    Restart(usize),
    /// It looks; the owner may show no life.
    Look {
        server: usize,
        silent: bool,
        trouble: bool,
    },
    FenceCuts(usize),
    /// The fence says yes, and has cut off nothing.
    FenceLies(usize),
    FenceFails(usize),
    Check(usize),
    Claim(usize),
    /// A claim without an answer: done, or to be done at any later time.
    ClaimUnknown {
        server: usize,
        done: bool,
    },
    Reread(usize),
    Apply(usize),
    Redo(usize),
    OpeningFails {
        server: usize,
        trouble: bool,
    },
    Superblock(usize),
    Submit(usize),
    Checkpoint(usize),
    Land(usize),
    /// Its term is over: it could not renew, or was stopped.
    TermEnds {
        server: usize,
        trouble: bool,
    },
    Suspend(usize),
    LeaseEnds,
    Release(usize),
    Restore(usize),
}

impl Act {
    pub fn is_trouble(&self) -> bool {
        match self {
            Act::Kill(_) | Act::Stop(_) | Act::FenceLies(_) | Act::FenceFails(_) => true,
            Act::ClaimUnknown { .. } | Act::Release(_) => true,
            Act::Look { trouble, .. }
            | Act::OpeningFails { trouble, .. }
            | Act::TermEnds { trouble, .. } => *trouble,
            _ => false,
        }
    }

    /// The order in which things happen when nothing disturbs them; `None`: not at all then.
    fn calm_rank(&self) -> Option<u8> {
        Some(match self {
            Act::Wake(_) | Act::Land(_) => 0,
            Act::Reread(_) | Act::Apply(_) | Act::Suspend(_) | Act::LeaseEnds => 1,
            Act::Restart(_) | Act::Restore(_) | Act::OpeningFails { trouble: false, .. } => 2,
            // One that serves, and whose device is gone, notices it at its next write.
            Act::Submit(_) => 2,
            Act::Redo(_) | Act::Superblock(_) | Act::Claim(_) | Act::Check(_) => 3,
            Act::FenceCuts(_) => 4,
            Act::Look { trouble: false, .. } => 5,
            _ => return None,
        })
    }
}

impl World {
    pub fn new(servers: usize) -> World {
        let server = Server {
            phase: Phase::Watching,
            life: 0,
            stopped: false,
            term_over: false,
            flying: None,
            pending: None,
            is_cut: false,
            failed_for: None,
        };
        World {
            record: Record::default(),
            lease: None,
            log: Vec::new(),
            home: Vec::new(),
            tail: 0,
            begun: vec![(0, 0)],
            highest: 0,
            servers: vec![server; servers],
            acknowledged: Vec::new(),
            written: 0,
            troubles: 0,
            late_writes: 0,
            refused: false,
        }
    }

    fn member(&self, index: usize) -> Member {
        let (pid, nonce) = (index as u32, self.servers[index].life);
        Member { host: index.to_string(), pid, nonce, address: index.to_string() }
    }

    fn epoch(&self) -> u32 {
        self.begun.last().map_or(0, |last| last.0)
    }

    fn begun_at(&self, slot: usize) -> u32 {
        self.begun.iter().rfind(|one| one.1 <= slot).map_or(0, |one| one.0)
    }

    /// The host of the owner that holds the lease.
    fn holder(&self) -> Option<usize> {
        self.lease?;
        Some(self.record.owner.as_ref()?.member.pid as usize)
    }

    /// Does the server own by the record, and live on as that owner?
    fn holds(&self, index: usize) -> bool {
        self.servers[index].phase.owns() && self.holder() == Some(index)
    }

    /// The groups that redo applies; `false`: it refuses.
    fn redone(&self, guards: &Guards) -> (Vec<Group>, bool) {
        let counts = |slot: usize| {
            let group = self.log.get(slot).copied().flatten();
            group.filter(|group| !guards.stale || group.0 >= self.begun_at(slot))
        };
        let groups: Vec<Group> = (self.tail..).map_while(counts).collect();
        let end = self.tail + groups.len();
        let beyond = (end + 1..self.log.len()).any(|slot| counts(slot).is_some());
        (groups, !beyond)
    }

    /// What can happen.
    pub fn possible(&self, guards: &Guards) -> Vec<Act> {
        let mut acts = Vec::new();
        for index in 0..self.servers.len() {
            self.possible_around(index, guards, &mut acts);
            if !self.servers[index].stopped {
                self.possible_of(index, guards, &mut acts);
            }
        }
        if let Some(holder) = self.holder() {
            let server = &self.servers[holder];
            let lives = guards.term && self.holds(holder) && !server.term_over;
            let flies = guards.settled && server.flying.is_some();
            if !lives && !flies {
                acts.push(Act::LeaseEnds);
            }
        }
        acts
    }

    /// What happens to a server, whether it runs or not.
    fn possible_around(&self, index: usize, guards: &Guards, acts: &mut Vec<Act>) {
        let server = &self.servers[index];
        if server.flying.is_some() {
            acts.push(Act::Land(index));
        }
        if server.pending.is_some() {
            acts.push(Act::Apply(index));
        }
        if server.phase != Phase::Down {
            acts.push(Act::Kill(index));
            acts.push(if server.stopped { Act::Wake(index) } else { Act::Stop(index) });
        }
        if server.phase.owns() && !server.term_over {
            acts.push(Act::TermEnds { server: index, trouble: !server.stopped });
        }
        let idle = matches!(server.phase, Phase::Down | Phase::Watching) && !server.stopped;
        if server.is_cut && idle && (server.flying.is_none() || !guards.settled) {
            acts.push(Act::Restore(index));
        }
    }

    /// What a server that runs does next.
    fn possible_of(&self, index: usize, guards: &Guards, acts: &mut Vec<Act>) {
        let server = &self.servers[index];
        if server.phase.owns() && server.term_over {
            acts.push(Act::Suspend(index));
            if guards.gate {
                return;
            }
        }
        match &server.phase {
            Phase::Down => acts.push(Act::Restart(index)),
            Phase::Watching => {
                let owned = self.holder();
                let well = owned.is_some_and(|owner| {
                    self.holds(owner)
                        && !self.servers[owner].term_over
                        && !self.servers[owner].stopped
                });
                acts.push(Act::Look { server: index, silent: false, trouble: false });
                if owned.is_some() {
                    acts.push(Act::Look { server: index, silent: true, trouble: well });
                }
            }
            Phase::Fencing { target, .. } => {
                acts.extend([Act::FenceLies(index), Act::FenceFails(index)]);
                if self.servers[*target].flying.is_none() || !guards.settled {
                    acts.push(Act::FenceCuts(index));
                }
            }
            Phase::Fenced { .. } => acts.push(Act::Check(index)),
            Phase::Proved { .. } => {
                acts.push(Act::Claim(index));
                acts.extend([true, false].map(|done| Act::ClaimUnknown { server: index, done }));
            }
            Phase::Asking(_) => acts.push(Act::Reread(index)),
            Phase::Claimed(_) => {
                acts.push(Act::OpeningFails { server: index, trouble: !server.is_cut });
                if !server.is_cut {
                    acts.push(Act::Redo(index));
                }
            }
            Phase::Stuck(_) => {}
            Phase::Redone { .. } => acts.push(Act::Superblock(index)),
            Phase::Serving { end, .. } if server.flying.is_none() => {
                acts.push(Act::Submit(index));
                acts.push(Act::Release(index));
                if *end > self.tail {
                    acts.push(Act::Checkpoint(index));
                }
            }
            Phase::Serving { .. } => {}
        }
    }

    /// Lets it happen.
    pub fn act(&mut self, act: &Act, guards: &Guards) {
        self.troubles += u8::from(act.is_trouble());
        match *act {
            Act::Kill(index) => {
                let server = &mut self.servers[index];
                (server.phase, server.stopped, server.term_over) = (Phase::Down, false, false);
            }
            Act::Stop(index) => self.servers[index].stopped = true,
            Act::Wake(index) => self.servers[index].stopped = false,
            Act::Restart(index) | Act::Suspend(index) => self.begin_anew(index),
            Act::Look { server, silent, .. } => self.decide(server, self.seen(silent), guards),
            Act::FenceCuts(index) | Act::FenceLies(index) => {
                let Phase::Fencing { target, seen } = self.servers[index].phase else { return };
                self.servers[target].is_cut |= matches!(act, Act::FenceCuts(_));
                self.servers[index].phase = Phase::Fenced { target, seen };
            }
            Act::FenceFails(index) => self.fence_failed(index),
            Act::Check(index) => {
                let Phase::Fenced { target, seen } = self.servers[index].phase else { return };
                if !self.servers[target].is_cut && guards.check {
                    return self.fence_failed(index);
                }
                let proof = Proof::Fence("a fence".into());
                self.servers[index].phase = Phase::Proved { seen, proof };
            }
            Act::Claim(index) => {
                self.servers[index].phase = match self.claim(index, guards) {
                    Some(epoch) => Phase::Claimed(epoch),
                    None => Phase::Watching,
                };
            }
            Act::ClaimUnknown { server, done } => self.claim_unanswered(server, done, guards),
            Act::Reread(index) => self.reread(index, guards),
            Act::Apply(index) => {
                let Some((replaced, next)) = self.servers[index].pending.take() else { return };
                if self.record.epoch() == replaced {
                    self.lease = Some(next.epoch());
                    self.record = next;
                }
            }
            Act::TermEnds { server, .. } => self.servers[server].term_over = true,
            Act::LeaseEnds => self.lease = None,
            Act::Restore(index) => self.servers[index].is_cut = false,
            Act::Release(index) => {
                let Phase::Serving { .. } = self.servers[index].phase else { return };
                self.give_up(index, "a planned failover");
                if guards.closed {
                    self.begin_anew(index);
                }
            }
            _ => self.act_on_device(act, guards),
        }
    }

    fn act_on_device(&mut self, act: &Act, guards: &Guards) {
        match *act {
            Act::Redo(index) => self.redo(index, guards),
            Act::OpeningFails { server, .. } => {
                let Phase::Claimed(epoch) = self.servers[server].phase else { return };
                if guards.gives_up {
                    self.give_up(server, "it could not serve");
                    self.begin_anew(server);
                } else {
                    self.servers[server].phase = Phase::Stuck(epoch);
                }
            }
            Act::Superblock(index) => {
                let phase = &self.servers[index].phase;
                let Phase::Redone { epoch, end, begun } = phase.clone() else { return };
                if !self.may_reach(index, guards) {
                    return;
                }
                let redone = self.redone(guards).0.into_iter().map(|group| group.1);
                let fresh = redone.filter(|value| !self.home.contains(value));
                self.home = self.home.iter().copied().chain(fresh).collect();
                (self.tail, self.begun) = (end, begun);
                self.begun.push((epoch, end));
                self.highest = self.highest.max(epoch);
                self.servers[index].phase = Phase::Serving { epoch, end };
            }
            Act::Submit(index) => {
                let Phase::Serving { epoch, end } = self.servers[index].phase else { return };
                self.written += 1;
                let group = (epoch, self.written);
                self.servers[index].flying = Some(Write::Group { slot: end, group });
            }
            Act::Checkpoint(index) => {
                let Phase::Serving { end, .. } = self.servers[index].phase else { return };
                let log = self.log[self.tail.min(end)..end].iter().flatten().map(|group| group.1);
                let values = self.home.iter().copied().chain(log).collect();
                self.servers[index].flying = Some(Write::Home { values, tail: end });
            }
            Act::Land(index) => self.land(index, guards),
            _ => unreachable!("{act:?} is handled"),
        }
    }

    /// A process of the same host that stands by.
    fn begin_anew(&mut self, index: usize) {
        let server = &mut self.servers[index];
        server.life += 1;
        (server.phase, server.term_over) = (Phase::Watching, false);
        server.failed_for = None;
    }

    fn give_up(&mut self, index: usize, why: &str) {
        if self.holder() != Some(index) {
            return;
        }
        if let Some(record) = self.record.released(self.record.epoch(), why) {
            (self.record, self.lease) = (record, None);
        }
    }

    fn fence_failed(&mut self, index: usize) {
        if let Phase::Fencing { seen, .. } | Phase::Fenced { seen, .. } = self.servers[index].phase
        {
            self.servers[index].failed_for = Some(seen);
        }
        self.servers[index].phase = Phase::Watching;
    }

    /// As a membership with leases sees it.
    fn seen(&self, silent: bool) -> Seen {
        let life = match (self.lease, self.record.holder()) {
            (Some(_), _) if silent => Life::Unproved { missing: "its lease lasts".into() },
            (Some(_), _) => Life::Alive { note: None },
            (None, Some(_)) => Life::Dead(Proof::Lease),
            (None, None) => Life::Free,
        };
        Seen { record: self.record.clone(), life }
    }

    /// What the server does with what it has seen; that may be old when it does it.
    fn decide(&mut self, index: usize, seen: Seen, guards: &Guards) {
        let epoch = seen.record.epoch();
        let owner = seen.record.holder().map(|owner| owner.member.pid as usize);
        let fence = owner.is_some_and(|owner| owner != index)
            && self.servers[index].failed_for != Some(epoch);
        self.servers[index].phase = match decide(&Ok(seen), Ready { fence, ..Ready::default() }) {
            Step::Claim(proof) => Phase::Proved { seen: epoch, proof },
            Step::Fence(member) => Phase::Fencing { target: member.pid as usize, seen: epoch },
            Step::Wait(Waiting::Alive(_)) if !guards.proof => {
                let proof = Proof::Fence("nothing".into());
                Phase::Proved { seen: epoch, proof }
            }
            Step::Wait(_) => Phase::Watching,
        };
    }

    /// The record that a claim of the server would make.
    fn claimed(&self, index: usize, guards: &Guards) -> Option<Record> {
        let Phase::Proved { seen, proof } = self.servers[index].phase.clone() else { return None };
        may_claim(&proof, self.lease.is_some()).ok()?;
        let seen = if guards.compare { seen } else { self.record.epoch() };
        let (above, member) = (Epoch(self.epoch()), self.member(index));
        self.record.after(&Claim { seen, above, member, proof, at: Timestamp::default() })
    }

    fn claim(&mut self, index: usize, guards: &Guards) -> Option<Epoch> {
        if !guards.claim {
            return Some(Epoch(self.epoch() + 1));
        }
        self.record = self.claimed(index, guards)?;
        self.lease = Some(self.record.epoch());
        self.lease
    }

    fn claim_unanswered(&mut self, index: usize, done: bool, guards: &Guards) {
        self.servers[index].phase = match self.claimed(index, guards) {
            None => Phase::Watching,
            Some(next) => {
                let epoch = next.epoch();
                if done {
                    (self.record, self.lease) = (next, Some(epoch));
                } else {
                    self.servers[index].pending = Some((self.record.epoch(), next));
                }
                Phase::Asking(epoch)
            }
        };
    }

    fn reread(&mut self, index: usize, guards: &Guards) {
        let Phase::Asking(epoch) = self.servers[index].phase else { return };
        let member = self.member(index);
        let shown = self.lease == Some(epoch)
            && self.record.holder().is_some_and(|owner| owner.member == member);
        // Its lease is revoked: the claim cannot be carried out any more.
        self.servers[index].pending = None;
        let counts = shown || !guards.reread;
        self.servers[index].phase = if counts { Phase::Claimed(epoch) } else { Phase::Watching };
        if !counts && self.lease == Some(epoch) && self.holder() == Some(index) {
            self.lease = None;
        }
    }

    fn redo(&mut self, index: usize, guards: &Guards) {
        let Phase::Claimed(claimed) = self.servers[index].phase else { return };
        let (groups, opens) = self.redone(guards);
        if !opens {
            self.refused = true;
            self.give_up(index, "it could not serve");
            return self.begin_anew(index);
        }
        // As the store does with `epoch_above`.
        let epoch = self.epoch().max(claimed.0 - 1) + 1;
        let (end, begun) = (self.tail + groups.len(), self.begun.clone());
        self.servers[index].phase = Phase::Redone { epoch, end, begun };
    }

    /// Does the device take a request of the server? If not, its store fails, and it stands by.
    fn may_reach(&mut self, index: usize, guards: &Guards) -> bool {
        if !self.servers[index].is_cut || !guards.cut {
            return true;
        }
        self.late_writes = 1;
        if self.servers[index].phase.owns() {
            self.give_up(index, "its device has failed");
            self.begin_anew(index);
        }
        false
    }

    fn land(&mut self, index: usize, guards: &Guards) {
        let Some(write) = self.servers[index].flying.take() else { return };
        if !self.may_reach(index, guards) {
            return;
        }
        match write {
            Write::Group { slot, group } => {
                self.log.resize(self.log.len().max(slot + 1), None);
                self.log[slot] = Some(group);
                if let Phase::Serving { end, .. } = &mut self.servers[index].phase {
                    *end = slot + 1;
                    self.acknowledged.push(group.1);
                }
            }
            Write::Home { values, tail } => {
                self.home = values;
                if matches!(self.servers[index].phase, Phase::Serving { .. }) {
                    self.tail = tail;
                }
            }
        }
    }

    /// Does no older epoch take effect behind or above a newer one?
    pub fn is_in_order(&self, guards: &Guards) -> bool {
        let (groups, _) = self.redone(guards);
        let rises = groups.windows(2).all(|pair| pair[0].0 <= pair[1].0);
        let newer = (self.tail..).zip(&groups).all(|(slot, group)| group.0 >= self.begun_at(slot));
        rises && newer && self.epoch() == self.highest
    }

    /// Would a server that opened the store now have everything that was acknowledged?
    pub fn keeps_all(&self, guards: &Guards) -> bool {
        let (groups, _) = self.redone(guards);
        let kept =
            |value: &u8| self.home.contains(value) || groups.iter().any(|group| group.1 == *value);
        self.acknowledged.iter().all(kept)
    }

    /// A server that was replaced though its term lasts, and it reaches the device.
    pub fn replaced_alive(&self) -> Option<usize> {
        self.servers.iter().position(|server| match server.phase {
            Phase::Serving { epoch, .. } => {
                epoch < self.highest && !server.term_over && !server.is_cut
            }
            _ => false,
        })
    }

    /// When nothing disturbs any more: does a server serve, after few steps?
    pub fn calms_down(&self, guards: &Guards) -> bool {
        let serves = |world: &World| {
            world.servers.iter().any(|server| {
                let newest = matches!(server.phase, Phase::Serving { epoch, .. }
                    if epoch == world.highest);
                newest && !server.term_over && !server.is_cut && !server.stopped
            })
        };
        if self.refused || serves(self) {
            return true;
        }
        let mut world = self.clone();
        for _ in 0..60 {
            let acts = world.possible(guards).into_iter();
            let ranked = acts.filter_map(|act| Some((act.calm_rank()?, act)));
            let Some((_, act)) = ranked.min_by_key(|(rank, _)| *rank) else { return false };
            world.act(&act, guards);
            if serves(&world) {
                return true;
            }
        }
        false
    }
}

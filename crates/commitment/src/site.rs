//! What one shard knows of all its transactions, and the events that change it.

use std::collections::{BTreeMap, VecDeque};

use types::{Epoch, ShardId};

use crate::cost::Ledger;
use crate::message::{Entry, Envelope, Kept, Message, Part, TxnId};
use crate::{Action, Aside, Counts, Outcome, Path, Protocol, Record, Wait, one_phase, two_phase};

/// What protects a transaction. All are there, but in a model that shows that each is needed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guards {
    /// Messages to an older epoch of this shard are dropped.
    pub own_epoch: bool,
    /// Messages of an older epoch of their sender are dropped.
    pub peer_epoch: bool,
    /// Finished transactions are remembered while messages of them may still come.
    pub finished: bool,
    /// The machine waits for these records before it goes on.
    pub started: bool,
    /// See [`Guards::started`].
    pub prepared: bool,
    /// See [`Guards::started`].
    pub committed: bool,
    /// See [`Guards::started`].
    pub aborted: bool,
}

impl Guards {
    /// As shipped.
    pub const ALL: Guards = Guards {
        own_epoch: true,
        peer_epoch: true,
        finished: true,
        started: true,
        prepared: true,
        committed: true,
        aborted: true,
    };

    fn waits_for(&self, record: Record) -> bool {
        match record {
            Record::Started => self.started,
            Record::Prepared => self.prepared,
            Record::Committed => self.committed,
            Record::Aborted => self.aborted,
            Record::Ended => false,
        }
    }
}

/// See the crate.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    shard: ShardId,
    epoch: Epoch,
    guards: Guards,
    /// Transactions begun in this epoch.
    begun: u64,
    peers: BTreeMap<ShardId, Peer>,
    open: BTreeMap<TxnId, Open>,
    finished: BTreeMap<ShardId, Finished>,
    /// Transactions of 1PC that a restart has found, which are done again in this order.
    redo: VecDeque<TxnId>,
    ledger: Aside<Ledger>,
}

/// Another shard, as this one knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Peer {
    /// The latest epoch of its server that is known.
    epoch: Epoch,
    /// That server is cut off: only a later one says anything.
    fenced: bool,
}

/// A transaction that is not over for this shard.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Open {
    protocol: Protocol,
    role: Role,
    path: Aside<Path>,
    /// Records on their way to the log, and what had to happen before each.
    writing: Vec<(Record, Aside<Path>)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Role {
    TwoPhaseCoordinator(two_phase::Coordinator),
    TwoPhaseWorker(two_phase::Worker),
    OnePhaseCoordinator(one_phase::Coordinator),
    OnePhaseWorker(one_phase::Worker),
}

/// What happens to a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// This record is durable.
    Logged(Record),
    /// There is no room for this record.
    NoRoom(Record),
    /// A shard says this.
    Heard(ShardId, Message),
    /// The locks are taken and the updates are planned (`true`), or cannot be made.
    Planned(bool),
    /// It has waited for longer than it should.
    Overdue,
    /// This shard has a new epoch: what has no answer from it is said again.
    Repeat(ShardId),
    /// The worker is fenced, and its log says that it has committed (`true`), or says nothing.
    Fenced(bool),
    /// A restart has found it: its turn has come.
    Redo,
}

/// Is it over?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// It goes on.
    On,
    /// The shard needs nothing of it any more.
    Over,
    /// The same, and this worker has refused it.
    Refused,
}

/// Transactions of one coordinator that are over for a worker, while messages may still come.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Finished {
    /// All before this one are over, everywhere.
    before: Option<TxnId>,
    /// Of those from there on: these are, and whether this shard refused them.
    since: BTreeMap<TxnId, bool>,
}

impl Finished {
    fn advance(&mut self, oldest: TxnId) {
        if self.before.is_none_or(|before| before < oldest) {
            self.since = self.since.split_off(&oldest);
            self.before = Some(oldest);
        }
    }
}

/// One step of one transaction: what it does goes here.
pub(crate) struct Turn<'a> {
    shard: ShardId,
    epoch: Epoch,
    guards: Guards,
    oldest: TxnId,
    peers: &'a BTreeMap<ShardId, Peer>,
    counts: &'a mut Counts,
    actions: &'a mut Vec<Action>,
    pub(crate) id: TxnId,
    pub(crate) protocol: Protocol,
    path: &'a mut Path,
    writing: &'a mut Vec<(Record, Aside<Path>)>,
    /// Records that a model does not wait for.
    at_once: Vec<Record>,
}

impl Turn<'_> {
    /// Says this to `to`. If that shard cannot be reached yet, it is said when it can.
    pub(crate) fn send(&mut self, to: ShardId, message: Message) {
        let Some(&Peer { epoch: to_epoch, fenced: false }) = self.peers.get(&to) else { return };
        let extra = message.is_extra();
        self.counts.messages += u64::from(extra);
        self.actions.push(Action::Send(Envelope {
            from: self.shard,
            from_epoch: self.epoch,
            to,
            to_epoch,
            id: self.id,
            protocol: self.protocol,
            path: Aside(if extra { self.path.and_message() } else { *self.path }),
            message,
        }));
    }

    /// Asks a worker for its updates.
    pub(crate) fn send_request(&mut self, to: ShardId) {
        self.send(to, Message::UpdateReq { oldest: self.oldest });
    }

    /// Writes a record that the machine waits for.
    pub(crate) fn force(&mut self, record: Record, keeps: Option<(Part, Kept)>) {
        self.force_as(record, keeps, Wait::Now);
    }

    /// The same, and neither a client nor a lock waits.
    pub(crate) fn force_patiently(&mut self, record: Record) {
        self.force_as(record, None, Wait::Patient);
    }

    fn force_as(&mut self, record: Record, keeps: Option<(Part, Kept)>, wait: Wait) {
        self.counts.forced += 1;
        let waits = self.guards.waits_for(record);
        match waits {
            true => self.writing.push((record, Aside(*self.path))),
            false => self.at_once.push(record),
        }
        self.write(record, keeps, if waits { wait } else { Wait::Lazy });
    }

    /// Writes a record that nobody waits for.
    pub(crate) fn write_lazily(&mut self, record: Record) {
        self.counts.lazy += 1;
        *self.path = self.path.and_lazy();
        self.write(record, None, Wait::Lazy);
    }

    fn write(&mut self, record: Record, keeps: Option<(Part, Kept)>, wait: Wait) {
        let protocol = self.protocol;
        let keeps = keeps.map(|(part, kept)| Entry { protocol, part, kept });
        self.actions.push(Action::Write { id: self.id, record, keeps, wait });
    }

    pub(crate) fn plan(&mut self) {
        self.actions.push(Action::Plan(self.id));
    }

    pub(crate) fn unlock(&mut self) {
        self.actions.push(Action::Unlock(self.id));
    }

    pub(crate) fn reply(&mut self, outcome: Outcome) {
        self.counts.ended(outcome, *self.path);
        self.actions.push(Action::Reply(self.id, outcome));
    }

    pub(crate) fn suspect(&mut self, worker: ShardId) {
        self.actions.push(Action::Suspect(self.id, worker));
    }
}

impl Role {
    fn step(&mut self, turn: &mut Turn<'_>, event: Event) -> Step {
        match self {
            Role::TwoPhaseCoordinator(it) => it.step(turn, event),
            Role::TwoPhaseWorker(it) => it.step(turn, event),
            Role::OnePhaseCoordinator(it) => it.step(turn, event),
            Role::OnePhaseWorker(it) => it.step(turn, event),
        }
    }

    fn worker(protocol: Protocol) -> Role {
        match protocol {
            Protocol::OnePhase => Role::OnePhaseWorker(one_phase::Worker::new()),
            _ => Role::TwoPhaseWorker(two_phase::Worker::new()),
        }
    }

    fn coordinator(protocol: Protocol, workers: Vec<ShardId>) -> Role {
        match (protocol, workers.as_slice()) {
            (Protocol::OnePhase, &[worker]) => {
                Role::OnePhaseCoordinator(one_phase::Coordinator::new(worker))
            }
            _ => Role::TwoPhaseCoordinator(two_phase::Coordinator::new(workers)),
        }
    }
}

impl Site {
    /// A shard without transactions, whose server has just got this epoch.
    pub fn new(shard: ShardId, epoch: Epoch, guards: Guards) -> Site {
        Site {
            shard,
            epoch,
            guards,
            begun: 0,
            peers: BTreeMap::new(),
            open: BTreeMap::new(),
            finished: BTreeMap::new(),
            redo: VecDeque::new(),
            ledger: Aside::default(),
        }
    }

    /// A shard after a restart or a takeover, with what its tree keeps. Before anybody is served,
    /// the driver takes the locks of those that are PREPARED, and of STARTED ones of 1PC. No other
    /// shard is reached before [`Site::peer`] names its epoch.
    pub fn recover(
        shard: ShardId,
        epoch: Epoch,
        guards: Guards,
        entries: impl IntoIterator<Item = (TxnId, Entry)>,
    ) -> (Site, Vec<Action>) {
        let mut site = Site::new(shard, epoch, guards);
        let mut actions = Vec::new();
        for (id, Entry { protocol, part, kept }) in entries {
            let role = match (protocol, part) {
                (Protocol::OnePhase, Part::Coordinator(workers)) => {
                    let Some(&worker) = workers.first() else { continue };
                    site.redo.push_back(id);
                    Role::OnePhaseCoordinator(one_phase::Coordinator::waiting(worker))
                }
                (Protocol::OnePhase, Part::Worker) => {
                    Role::OnePhaseWorker(one_phase::Worker::committed())
                }
                (_, Part::Coordinator(workers)) => {
                    let it = two_phase::Coordinator::recovered(workers, kept);
                    Role::TwoPhaseCoordinator(it)
                }
                (_, Part::Worker) => Role::TwoPhaseWorker(two_phase::Worker::prepared()),
            };
            site.open.insert(id, Open::new(protocol, role, Path::default()));
        }
        site.redo_next(&mut actions);
        (site, actions)
    }

    /// May new transactions begin? After a restart those of 1PC that were not over come first,
    /// because their locks may have been freed before (003 §III.D).
    pub fn is_ready(&self) -> bool {
        self.redo.is_empty()
    }

    /// Begins a transaction whose locks are held and whose updates are planned. 1PC needs exactly
    /// one worker: with more, the transaction is one of EP. `None`: there is no worker, and nothing
    /// to agree on.
    pub fn begin(
        &mut self,
        protocol: Protocol,
        workers: Vec<ShardId>,
        actions: &mut Vec<Action>,
    ) -> Option<TxnId> {
        if workers.is_empty() {
            return None;
        }
        let protocol = match protocol {
            Protocol::OnePhase if workers.len() != 1 => Protocol::EarlyPrepare,
            asked => asked,
        };
        let id = TxnId { coordinator: self.shard, epoch: self.epoch, number: self.begun };
        self.begun += 1;
        let part = Part::Coordinator(workers.clone());
        let role = Role::coordinator(protocol, workers);
        self.open.insert(id, Open::new(protocol, role, Path::default()));
        self.turn(id, actions, |_, turn| {
            turn.force(Record::Started, Some((part, Kept::Started)));
            Step::On
        });
        Some(id)
    }

    /// A forced record is durable.
    pub fn logged(&mut self, id: TxnId, record: Record, actions: &mut Vec<Action>) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let Some(at) = open.writing.iter().position(|&(other, _)| other == record) else { return };
        let (_, Aside(path)) = open.writing.remove(at);
        open.path.0 = open.path.0.join(path.and_forced());
        self.step(id, Event::Logged(record), actions);
    }

    /// STARTED or PREPARED could not be written, because the shard has no room. It has promised
    /// nothing yet: a coordinator aborts, and a worker refuses. The driver says why.
    pub fn no_room(&mut self, id: TxnId, record: Record, actions: &mut Vec<Action>) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let Some(at) = open.writing.iter().position(|&(other, _)| other == record) else { return };
        open.writing.remove(at);
        self.step(id, Event::NoRoom(record), actions);
    }

    /// A worker's plan is made, with its locks held, or is refused.
    pub fn planned(&mut self, id: TxnId, possible: bool, actions: &mut Vec<Action>) {
        self.step(id, Event::Planned(possible), actions);
    }

    /// The transaction has waited for longer than answers take.
    pub fn overdue(&mut self, id: TxnId, actions: &mut Vec<Action>) {
        self.step(id, Event::Overdue, actions);
    }

    /// Another shard can be reached and has this epoch: what has no answer from it is said again.
    pub fn peer(&mut self, shard: ShardId, epoch: Epoch, actions: &mut Vec<Action>) {
        if !self.peers.get(&shard).is_none_or(|known| known.admits(epoch)) {
            return;
        }
        self.peers.insert(shard, Peer { epoch, fenced: false });
        let all: Vec<TxnId> = self.open.keys().copied().collect();
        for id in all {
            self.step(id, Event::Repeat(shard), actions);
        }
    }

    /// `worker` is fenced: its server of the epochs up to and with `epoch` writes no more. Its log
    /// was read after that, and holds COMMITTED of just these transactions of this shard.
    pub fn fenced(
        &mut self,
        worker: ShardId,
        epoch: Epoch,
        committed: &[TxnId],
        actions: &mut Vec<Action>,
    ) {
        if self.peers.get(&worker).is_some_and(|known| known.epoch > epoch) {
            // A later server of that shard may have been asked: it answers for itself.
            return;
        }
        self.peers.insert(worker, Peer { epoch, fenced: true });
        let all: Vec<TxnId> = self.open.keys().copied().collect();
        for id in all {
            let with = |open: &Open| match &open.role {
                Role::OnePhaseCoordinator(it) => it.worker() == worker,
                _ => false,
            };
            if self.open.get(&id).is_some_and(with) {
                self.step(id, Event::Fenced(committed.contains(&id)), actions);
            }
        }
    }

    /// A message has come.
    pub fn receive(&mut self, envelope: Envelope, actions: &mut Vec<Action>) {
        let Envelope { from, from_epoch, to_epoch, id, .. } = envelope;
        if self.guards.own_epoch && to_epoch != self.epoch {
            return;
        }
        match self.peers.get(&from) {
            Some(known) if !known.admits(from_epoch) => {
                if self.guards.peer_epoch {
                    return;
                }
            }
            Some(known) if known.epoch == from_epoch => {}
            _ => self.peer(from, from_epoch, actions),
        }
        match self.open.get_mut(&id) {
            Some(open) => {
                open.path.0 = open.path.0.join(envelope.path.0);
                self.step(id, Event::Heard(from, envelope.message), actions);
            }
            None if id.coordinator == self.shard => self.asked(envelope, actions),
            None if id.coordinator == from => self.unknown(envelope, actions),
            None => {}
        }
    }

    /// This shard coordinated it and keeps nothing of it.
    fn asked(&mut self, envelope: Envelope, actions: &mut Vec<Action>) {
        if envelope.message != Message::Ask {
            return;
        }
        let answer = match envelope.protocol {
            Protocol::PresumeNothing => Message::Abort,
            Protocol::PresumeCommit | Protocol::EarlyPrepare => Message::Commit,
            Protocol::OnePhase => Message::Ack,
        };
        self.answer(envelope, answer, actions);
    }

    /// The coordinator speaks of a transaction of which this shard keeps nothing.
    fn unknown(&mut self, envelope: Envelope, actions: &mut Vec<Action>) {
        let Envelope { id, protocol, path, message, .. } = envelope;
        match message {
            Message::UpdateReq { oldest } => {
                let finished = self.finished.entry(id.coordinator).or_default();
                finished.advance(oldest);
                let over = finished.before.is_some_and(|before| id < before);
                match finished.since.get(&id) {
                    Some(&refused) if self.guards.finished => {
                        if refused {
                            self.answer(envelope, Message::Refused, actions);
                        }
                    }
                    _ if over && self.guards.finished => {}
                    _ => {
                        self.open.insert(id, Open::new(protocol, Role::worker(protocol), path.0));
                        self.turn(id, actions, |_, turn| {
                            turn.plan();
                            Step::On
                        });
                    }
                }
            }
            Message::Prepare => self.answer(envelope, Message::NotPrepared, actions),
            Message::Commit if protocol == Protocol::PresumeNothing => {
                self.answer(envelope, Message::Ack, actions);
            }
            Message::Abort => {
                self.finish(id, false);
                self.answer(envelope, Message::Ack, actions);
            }
            _ => {}
        }
    }

    /// Transactions that are not over for this shard, with the epochs' order kept.
    pub fn open(&self) -> impl Iterator<Item = TxnId> {
        self.open.keys().copied()
    }

    /// Is it not over for this shard?
    pub fn is_open(&self, id: TxnId) -> bool {
        self.open.contains_key(&id)
    }

    /// Does this shard wait for others or for its log?
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// What was counted since the server started.
    pub fn counts(&self, protocol: Protocol) -> Counts {
        self.ledger.0.get(protocol)
    }

    /// The epoch by which this shard can reach another one.
    pub fn reaches(&self, shard: ShardId) -> Option<Epoch> {
        self.peers.get(&shard).filter(|peer| !peer.fenced).map(|peer| peer.epoch)
    }

    /// Whose transactions these are.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// The epoch of its server.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn answer(&mut self, to: Envelope, message: Message, actions: &mut Vec<Action>) {
        let mut open = Open::new(to.protocol, Role::worker(to.protocol), to.path.0);
        self.turn_of(to.id, &mut open, actions, |_, turn| {
            turn.send(to.from, message);
            Step::On
        });
    }

    fn finish(&mut self, id: TxnId, refused: bool) {
        let finished = self.finished.entry(id.coordinator).or_default();
        if finished.before.is_none_or(|before| id >= before) {
            finished.since.insert(id, refused);
        }
    }

    fn step(&mut self, id: TxnId, event: Event, actions: &mut Vec<Action>) {
        self.turn(id, actions, |role, turn| role.step(turn, event));
        self.redo_next(actions);
    }

    /// Begins the next transaction that a restart has found, if the last one is decided.
    fn redo_next(&mut self, actions: &mut Vec<Action>) {
        while let Some(&id) = self.redo.front() {
            let phase = self.open.get(&id).map(|open| match &open.role {
                Role::OnePhaseCoordinator(it) => it.progress(),
                _ => one_phase::Progress::Decided,
            });
            match phase {
                Some(one_phase::Progress::Waiting) => {
                    self.turn(id, actions, |role, turn| role.step(turn, Event::Redo));
                }
                Some(one_phase::Progress::Asked) => return,
                Some(one_phase::Progress::Decided) | None => {
                    self.redo.pop_front();
                }
            }
        }
    }

    fn turn(
        &mut self,
        id: TxnId,
        actions: &mut Vec<Action>,
        step: impl FnOnce(&mut Role, &mut Turn<'_>) -> Step,
    ) {
        let Some(mut open) = self.open.remove(&id) else { return };
        match self.turn_of(id, &mut open, actions, step) {
            Step::On => {
                self.open.insert(id, open);
            }
            over if id.coordinator != self.shard => self.finish(id, over == Step::Refused),
            _ => {}
        }
    }

    fn turn_of(
        &mut self,
        id: TxnId,
        open: &mut Open,
        actions: &mut Vec<Action>,
        step: impl FnOnce(&mut Role, &mut Turn<'_>) -> Step,
    ) -> Step {
        let mine = TxnId { coordinator: self.shard, epoch: Epoch(0), number: 0 };
        let oldest = self.open.range(mine..).next().map_or(id, |(&oldest, _)| oldest.min(id));
        let Open { protocol, role, path, writing } = open;
        let mut turn = Turn {
            shard: self.shard,
            epoch: self.epoch,
            guards: self.guards,
            oldest,
            peers: &self.peers,
            counts: self.ledger.0.of(*protocol),
            actions,
            id,
            protocol: *protocol,
            path: &mut path.0,
            writing,
            at_once: Vec::new(),
        };
        let mut after = step(role, &mut turn);
        while after == Step::On && !turn.at_once.is_empty() {
            let record = turn.at_once.remove(0);
            after = role.step(&mut turn, Event::Logged(record));
        }
        after
    }
}

impl Open {
    fn new(protocol: Protocol, role: Role, path: Path) -> Open {
        Open { protocol, role, path: Aside(path), writing: Vec::new() }
    }
}

impl Peer {
    /// Can a server of this epoch still speak for the shard?
    fn admits(self, epoch: Epoch) -> bool {
        if self.fenced { epoch > self.epoch } else { epoch >= self.epoch }
    }
}

//! The history: every step with its beginning and its end, in one order of events.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use client::Edited;
use env::sim::SimRng;
use types::{Fault, FileKind, Ino, ShardId, Transno};

use crate::call::{Call, Op, Outcome, Until};
use crate::events::{Applied, Event, Events};
use crate::low_space::LowSpace;
use crate::observed_order;
use crate::undo::Loser;

/// The client number of events that no client caused.
pub const NOBODY: usize = 98;

/// An operation that has not been answered.
#[derive(Clone, Debug)]
pub struct PendingCall {
    /// Client.
    pub client: usize,
    /// Position of the beginning.
    pub begun: u64,
    /// The operation.
    pub op: Op,
    /// The resources that ran low during the call.
    pub low_space: LowSpace,
    /// Its process was killed: other clients may see the effect before it ends.
    pub killed: bool,
    /// Position at which the server (for content: the client) reported that it took effect.
    pub applied: Option<u64>,
}

impl Inner {
    /// Moves the position on.
    fn next(&mut self) {
        self.events += 1;
        self.stream.at(self.events);
    }

    /// Marks device errors that were reported while a failing operation ran as reported by it.
    /// Returns whether there were any.
    fn reports_device_loss(&mut self, client: usize, begun: u64, op: &Op) -> bool {
        let (Some(by), Some((of, surely))) = (op.file(), op.reports()) else { return false };
        let mut any = false;
        for call in self.calls.iter_mut().rev().take_while(|call| call.ended > begun) {
            if let Op::Damaged { ino, told, .. } = &mut call.op
                && (call.client, *ino) == (client, of)
            {
                told.push((by, surely));
                any = true;
            }
        }
        any
    }

    /// Records for every pending call that space is low now.
    fn note_space(&mut self) {
        let Some(space) = &self.space else { return };
        let low_space = space();
        self.waiting
            .values_mut()
            .for_each(|waiting| waiting.low_space = waiting.low_space.or(low_space));
    }

    /// Appends steps that end now. `applied` belongs to the first.
    fn record(
        &mut self,
        client: usize,
        (begun, mut applied): (u64, Option<u64>),
        steps: Vec<(Op, Option<Outcome>)>,
    ) {
        self.next();
        let ended = self.events;
        for (op, outcome) in steps {
            let applied = applied.take();
            let call = Call { client, op, outcome, guessed: false, applied, begun, ended };
            for byte in hashed(&call).bytes() {
                self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            self.stream.emit(Event::Ended(&call));
            self.calls.push(call);
        }
    }
}

/// The text of a step that is hashed: without the shard if that is the first, so that runs with one
/// have the traces that they had before there were several.
fn hashed(call: &Call) -> String {
    let text = format!("{call:?}");
    match call.op {
        Op::SyncNames(ShardId(0)) => text.replace("SyncNames(ShardId(0))", "SyncNames"),
        Op::Lost { shard: ShardId(0), .. } => text.replace(", shard: ShardId(0)", ""),
        _ => text,
    }
}

#[derive(Default)]
struct Inner {
    /// Gets every position and every step that ends.
    stream: Events,
    events: u64,
    calls: Vec<Call>,
    waiting: BTreeMap<u64, PendingCall>,
    /// Pending calls of clients that ended.
    cut_short: Vec<PendingCall>,
    /// There are several shards.
    several: bool,
    /// Calls that may concern several shards and whose client has lost its session, or ended: the
    /// shards may agree on them at any later time.
    undecided: Vec<PendingCall>,
    hash: u64,
    count: u64,
    /// Where clients first began something in their newest sessions.
    renewed: BTreeMap<(usize, ShardId), u64>,
    /// How many signals interrupted waits for locks.
    interrupted: u64,
    /// Answers from kernel caches that raced with a change.
    racy: u64,
    /// How many data devices fail now; some did up to `failed_until`.
    failing: usize,
    failed_until: u64,
    /// Reports which space is low.
    space: Option<SpaceProbe>,
}

/// Reports which space is low now.
pub type SpaceProbe = Box<dyn Fn() -> LowSpace>;

/// See the module. Clones share one history.
#[derive(Clone)]
pub struct History(Rc<RefCell<Inner>>);

impl History {
    /// An empty history, which reports to this stream.
    pub fn new(stream: &Events) -> History {
        History(Rc::new(RefCell::new(Inner { stream: stream.clone(), ..Inner::default() })))
    }

    /// The stream that it reports to.
    pub(crate) fn stream(&self) -> Events {
        self.0.borrow().stream.clone()
    }

    /// An application calls; the result identifies the call for [`History::end`].
    pub fn begin(&self, client: usize, op: Op) -> u64 {
        let mut inner = self.0.borrow_mut();
        inner.next();
        let begun = inner.events;
        let low_space = LowSpace::default();
        let waiting = PendingCall { client, begun, op, low_space, killed: false, applied: None };
        inner.waiting.insert(begun, waiting);
        inner.note_space();
        begun
    }

    /// A kernel answered from its cache while one of its requests was changing the same object.
    /// Such an answer is not judged.
    pub fn end_racy(&self, begun: u64) {
        self.end(begun, Vec::new());
        let mut inner = self.0.borrow_mut();
        inner.count -= 1;
        inner.racy += 1;
    }

    /// The number of these answers.
    pub fn times_racy(&self) -> u64 {
        self.0.borrow().racy
    }

    /// The answer arrived. It stands for several steps, each somewhere between begin and end.
    pub fn end(&self, begun: u64, steps: Vec<(Op, Outcome)>) {
        let mut inner = self.0.borrow_mut();
        inner.note_space();
        let Some(waiting) = inner.waiting.remove(&begun) else { return };
        inner.count += 1;
        let failed = inner.failing > 0 || inner.failed_until > begun;
        let mut seen = Vec::new();
        for (op, outcome) in steps {
            // Names need no data device: EIO from `SyncNames` means a lost session.
            let of_names = matches!(op, Op::SyncNames(_));
            let io = outcome == Outcome::Failed(Fault::Io) && !of_names;
            let reported = io && inner.reports_device_loss(waiting.client, begun, &op);
            let no_room =
                outcome == Outcome::Failed(Fault::NoSpace) && waiting.low_space.refuses(&op);
            let outcome = match outcome {
                _ if io && (failed || reported) => Outcome::DeviceFailed,
                _ if no_room => Outcome::NoRoom,
                outcome => outcome,
            };
            seen.push((op, Some(outcome)));
        }
        let steps = seen;
        inner.record(waiting.client, (begun, waiting.applied), steps);
    }

    /// The answer does not say whether the operation took effect.
    pub fn end_unknown(&self, begun: u64) {
        let mut inner = self.0.borrow_mut();
        let Some(waiting) = inner.waiting.remove(&begun) else { return };
        inner.count += 1;
        if inner.several && waiting.op.may_be_joint() {
            inner.undecided.push(waiting);
            return inner.next();
        }
        let steps = if waiting.op.changes() { vec![(waiting.op, None)] } else { Vec::new() };
        inner.record(waiting.client, (begun, waiting.applied), steps);
    }

    /// The process of a pending call was killed.
    pub fn killed(&self, begun: u64) {
        if let Some(waiting) = self.0.borrow_mut().waiting.get_mut(&begun) {
            waiting.killed = true;
        }
    }

    /// A signal interrupted a process that waited for a lock.
    pub fn lock_wait_interrupted(&self) {
        self.0.borrow_mut().interrupted += 1;
    }

    /// How many waits for locks were interrupted.
    pub fn times_interrupted(&self) -> u64 {
        self.0.borrow().interrupted
    }

    /// An abandoned lock request ended, and the lock that it may have taken is given back.
    pub fn end_abandoned_lock(&self, begun: u64) {
        let mut inner = self.0.borrow_mut();
        let Some(waiting) = inner.waiting.remove(&begun) else { return };
        let Op::Lock { ino, owner, exclusive: Some(exclusive), range } = waiting.op else { return };
        inner.count += 1;
        let tried = Op::Tried { ino, owner, exclusive, range, number: begun };
        let steps = vec![(tried, None), (Op::GivenBack(ino, begun), Some(Outcome::Done))];
        inner.record(waiting.client, (begun, waiting.applied), steps);
    }

    /// The operation of a killed process ended. A file that it opened was closed again.
    pub fn end_killed(&self, begun: u64) {
        let mut inner = self.0.borrow_mut();
        let Some(waiting) = inner.waiting.get_mut(&begun) else { return };
        match waiting.op {
            Op::Create { at, .. } => waiting.op = Op::Make(at, FileKind::Regular),
            Op::TmpFile(..) => {
                inner.waiting.remove(&begun);
                inner.count += 1;
            }
            _ => {}
        }
        drop(inner);
        self.end_unknown(begun);
    }

    /// A write fails that may have taken effect before: a synchronous one whose session was lost,
    /// or one whose bytes write-back of a mapping's stores may have carried. It counts as an
    /// asynchronous write without an answer, and a sync that fails.
    pub fn end_failed_write(&self, begun: u64, op: Op) {
        let mut inner = self.0.borrow_mut();
        let Some(waiting) = inner.waiting.remove(&begun) else { return };
        let Op::Write { ino, offset, len, tag, file, .. } = op else { return };
        inner.count += 1;
        let write = Op::write((ino, file), offset, (len, tag), Until::Accepted);
        let device = inner.failing > 0 || inner.failed_until > begun;
        let failed = if device { Outcome::DeviceFailed } else { Outcome::Failed(Fault::Io) };
        let steps = vec![(write, None), (Op::Fsync(ino, file), Some(failed))];
        inner.record(waiting.client, (begun, waiting.applied), steps);
    }

    /// A client ended: its pending calls get no answer. From here on its session may be lost;
    /// returns the position for [`History::lost`].
    pub fn cut_short(&self, client: usize) -> u64 {
        let mut inner = self.0.borrow_mut();
        let cut = inner.waiting.extract_if(.., |_, waiting| waiting.client == client);
        let cut: Vec<PendingCall> = cut.map(|(_, waiting)| waiting).collect();
        inner.cut_short.extend(cut.into_iter().filter(|waiting| waiting.op.changes()));
        inner.next();
        inner.events
    }

    /// The current position.
    pub fn position(&self) -> u64 {
        let mut inner = self.0.borrow_mut();
        inner.next();
        inner.events
    }

    /// From here on there are several shards.
    pub(crate) fn has_several_shards(&self) {
        self.0.borrow_mut().several = true;
    }

    /// No shard agrees on anything any more that was asked for before.
    pub(crate) fn all_is_decided(&self) {
        let mut inner = self.0.borrow_mut();
        for waiting in std::mem::take(&mut inner.undecided) {
            let (place, steps) = ((waiting.begun, waiting.applied), vec![(waiting.op, None)]);
            inner.record(waiting.client, place, steps);
        }
    }

    /// The session of a client with the server of a shard was lost between `begun` and now, with up
    /// to `kept` of its answered changes there. With `late`, stalled devices may carry out its
    /// writes after others have read.
    pub(crate) fn lost(
        &self,
        (client, shard): Loser,
        begun: u64,
        (dead, late): (bool, bool),
        kept: u32,
    ) {
        let mut inner = self.0.borrow_mut();
        let mut of = Vec::new();
        if dead {
            let is_its = |waiting: &mut PendingCall| {
                let at = waiting.op.executed_at().unwrap_or_default();
                waiting.client == client && at == shard
            };
            of = inner.cut_short.extract_if(.., is_its).collect();
        }
        let (edits, of): (Vec<PendingCall>, Vec<PendingCall>) =
            of.into_iter().partition(|waiting| waiting.op.edits_unseen() && !waiting.killed);
        let kept = kept.saturating_add(of.len() as u32);
        for waiting in of {
            if inner.several && waiting.op.may_be_joint() {
                inner.undecided.push(waiting);
                continue;
            }
            inner.record(client, (waiting.begun, waiting.applied), vec![(waiting.op, None)]);
        }
        let edits = Rc::new(edits.into_iter().map(|waiting| waiting.op).collect());
        let next = inner.renewed.remove(&(client, shard)).filter(|next| *next > begun);
        let lost = Op::Lost { dead, kept, learned: u64::MAX, edits, late, next, shard };
        inner.record(client, (begun, None), vec![(lost, Some(Outcome::Done))]);
    }

    /// Devices may carry out writes of the client's last lost session with a server late.
    pub(crate) fn writes_may_be_late(&self, (client, shard): Loser) {
        let mut inner = self.0.borrow_mut();
        for call in inner.calls.iter_mut().rev().filter(|call| call.client == client) {
            if let Op::Lost { late, shard: its, .. } = &mut call.op
                && *its == shard
            {
                *late = true;
                return;
            }
        }
    }

    /// A client began something at this position, for the first time in a new session.
    pub(crate) fn renewed(&self, of: Loser, begun: u64) {
        self.0.borrow_mut().renewed.insert(of, begun);
    }

    /// A client certainly knows of the last loss of its session with the server of a shard.
    pub(crate) fn learned(&self, (client, shard): Loser) {
        let mut inner = self.0.borrow_mut();
        inner.next();
        let now = inner.events;
        for call in inner.calls.iter_mut().rev().filter(|call| call.client == client) {
            if let Op::Lost { learned, shard: its, .. } = &mut call.op
                && *its == shard
            {
                *learned = now;
                return;
            }
        }
    }

    /// From here on one more data device may fail requests, or no longer does.
    pub fn devices_fail(&self, failing: bool) {
        let mut inner = self.0.borrow_mut();
        inner.next();
        inner.failing = if failing { inner.failing + 1 } else { inner.failing - 1 };
        inner.failed_until = inner.events;
    }

    /// A stalled data device has carried out everything that it had.
    pub fn devices_settled(&self) {
        self.happened(NOBODY, Op::Settled);
    }

    /// An event happens now that no application caused.
    pub fn happened(&self, client: usize, op: Op) {
        let mut inner = self.0.borrow_mut();
        inner.next();
        let now = inner.events;
        inner.record(client, (now, None), vec![(op, Some(Outcome::Done))]);
    }

    /// A client reports that a device failed what it had written to a file. It reports each of
    /// several ranges.
    pub fn damaged(&self, client: usize, ino: Ino, flush: bool) {
        let op = Op::Damaged { ino, flush, told: Vec::new() };
        let inner = self.0.borrow();
        let last = inner.calls.last().filter(|last| last.ended == inner.events);
        if last.is_some_and(|last| last.client == client && last.op == op) {
            return;
        }
        drop(inner);
        self.happened(client, op);
    }

    /// Records from here on when space is low.
    pub fn probe_space_with(&self, space: SpaceProbe) {
        self.0.borrow_mut().space = Some(space);
    }

    /// Records which space is low now.
    pub fn note_space(&self) {
        self.0.borrow_mut().note_space();
    }

    /// The server reports that it applied this for a client. Of several matching steps it belongs
    /// to one without a report, and among these to the one that began first.
    pub fn applied(
        &self,
        (client, shard): Loser,
        asked: &proto::mds::Op,
        transno: Option<Transno>,
    ) -> Applied {
        let mut guard = self.0.borrow_mut();
        let inner = &mut *guard;
        inner.next();
        let now = inner.events;
        let waiting = inner.waiting.values_mut().chain(&mut inner.cut_short);
        let waiting = waiting.chain(&mut inner.undecided);
        let fitting =
            waiting.filter(|it| it.client == client && observed_order::asked_for(&it.op, asked));
        let step = fitting.min_by_key(|it| (it.applied.is_some(), it.begun)).map(|waiting| {
            waiting.applied = Some(now);
            waiting.op.clone()
        });
        Applied { at: now, step, transno, shard }
    }

    /// A client reports an edit of a file's content. An edit in several pieces counts at the last.
    pub fn edited(&self, client: usize, ino: Ino, edited: Edited) {
        let mut guard = self.0.borrow_mut();
        let inner = &mut *guard;
        // No checker runs at this moment: the client is in the middle of the edit.
        inner.events += 1;
        let now = inner.events;
        let waiting = inner.waiting.values_mut();
        let fitting =
            waiting.filter(|it| it.client == client && observed_order::edits(&it.op, ino, edited));
        if let Some(waiting) = fitting.min_by_key(|it| (it.applied.is_some(), it.begun)) {
            waiting.applied = Some(now);
        }
    }

    /// The pending calls.
    pub fn waiting(&self) -> Vec<PendingCall> {
        self.0.borrow().waiting.values().cloned().collect()
    }

    /// Takes all ended steps, in the order of their ends.
    pub fn take(&self) -> Vec<Call> {
        let mut inner = self.0.borrow_mut();
        // The closure holds the cluster.
        inner.space = None;
        std::mem::take(&mut inner.calls)
    }

    /// The number of operations that have ended.
    pub fn count(&self) -> u64 {
        self.0.borrow().count
    }

    /// A hash of the whole history.
    pub fn hash(&self) -> u64 {
        SimRng::new(self.0.borrow().hash).next_u64()
    }
}

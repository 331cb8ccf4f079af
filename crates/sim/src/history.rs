//! What happened: every step with its beginning and its end, in one order of events.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use client::Edited;
use env::sim::SimRng;
use types::{Fault, FileKind, Ino, Transno};

use crate::call::{Call, Op, Outcome};
use crate::log;
use crate::observed_order;
use crate::space::LowSpace;

/// The client of what no client did.
pub const NOBODY: usize = 98;

/// What an application waits for.
#[derive(Clone, Debug)]
pub struct PendingCall {
    /// Client.
    pub client: usize,
    /// Position of the beginning.
    pub begun: u64,
    /// What it asked for.
    pub op: Op,
    /// Of what there was low_space meanwhile.
    pub low_space: LowSpace,
    /// Its process was killed: others may see it done before it ends.
    pub killed: bool,
    /// Position at which the server, or of content its client, says that it took effect.
    pub applied: Option<u64>,
}

impl Inner {
    /// Something happens: the position moves on.
    fn next(&mut self) {
        self.events += 1;
        log::at(self.events);
    }

    /// A failing operation tells of what devices failed while it ran; was there something?
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

    /// Whoever waits now meets devices as full as they are.
    fn note_space(&mut self) {
        let Some(space) = &self.space else { return };
        let low_space = space();
        self.waiting
            .values_mut()
            .for_each(|waiting| waiting.low_space = waiting.low_space.or(low_space));
    }

    /// `applied` belongs to the first of the steps.
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
            for byte in format!("{call:?}").bytes() {
                self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            if let Some(on_end) = &self.on_end {
                on_end(&call);
            }
            self.calls.push(call);
        }
    }
}

#[derive(Default)]
struct Inner {
    events: u64,
    calls: Vec<Call>,
    waiting: BTreeMap<u64, PendingCall>,
    /// What clients that ended waited for.
    cut_short: Vec<PendingCall>,
    hash: u64,
    count: u64,
    /// Where clients first began something in their newest sessions.
    renewed: BTreeMap<usize, u64>,
    /// Signals that processes got that waited for locks.
    interrupted: u64,
    /// Answers from a kernel's caches that nothing can be said of.
    racy: u64,
    /// Data devices fail now, or did up to this position.
    failing: bool,
    failed_until: u64,
    /// Tells of what there is low_space.
    space: Option<SpaceProbe>,
    /// Is told of every step that ends.
    on_end: Option<OnEnd>,
}

/// Takes a step that has ended.
pub type OnEnd = Box<dyn Fn(&Call)>;

/// What the server applied for a client.
pub struct Applied {
    /// Position.
    pub at: u64,
    /// The step that asked for it, if one is known.
    pub step: Option<Op>,
    /// The transaction that did it, if it changed what is kept.
    pub transno: Option<Transno>,
}

/// Tells of what there is low_space now.
pub type SpaceProbe = Box<dyn Fn() -> LowSpace>;

/// See the module. Clones are the same history.
#[derive(Clone, Default)]
pub struct History(Rc<RefCell<Inner>>);

impl History {
    /// An application asks; gives the number by which [`History::end`] knows it.
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

    /// A kernel answered from what it kept while something that it asked for is changing just that:
    /// such an answer is not judged.
    pub fn end_racy(&self, begun: u64) {
        self.end(begun, Vec::new());
        let mut inner = self.0.borrow_mut();
        inner.count -= 1;
        inner.racy += 1;
    }

    /// How often that was so.
    pub fn times_racy(&self) -> u64 {
        self.0.borrow().racy
    }

    /// The answer is there; it tells of several steps, each somewhere between then and now.
    pub fn end(&self, begun: u64, steps: Vec<(Op, Outcome)>) {
        let mut inner = self.0.borrow_mut();
        inner.note_space();
        let Some(waiting) = inner.waiting.remove(&begun) else { return };
        inner.count += 1;
        let failed = inner.failing || inner.failed_until > begun;
        let mut seen = Vec::new();
        for (op, outcome) in steps {
            // No data device is asked for names: what they fail with is the loss of a session.
            let io = outcome == Outcome::Failed(Fault::Io) && op != Op::SyncNames;
            let told = io && inner.reports_device_loss(waiting.client, begun, &op);
            let no_room =
                outcome == Outcome::Failed(Fault::NoSpace) && waiting.low_space.refuses(&op);
            let outcome = match outcome {
                _ if io && (failed || told) => Outcome::DeviceFailed,
                _ if no_room => Outcome::NoRoom,
                outcome => outcome,
            };
            seen.push((op, Some(outcome)));
        }
        let steps = seen;
        inner.record(waiting.client, (begun, waiting.applied), steps);
    }

    /// There is an answer that does not say whether it was done.
    pub fn end_unknown(&self, begun: u64) {
        let mut inner = self.0.borrow_mut();
        let Some(waiting) = inner.waiting.remove(&begun) else { return };
        inner.count += 1;
        let steps = if waiting.op.changes() { vec![(waiting.op, None)] } else { Vec::new() };
        inner.record(waiting.client, (begun, waiting.applied), steps);
    }

    /// The process that waits for this was killed.
    pub fn killed(&self, begun: u64) {
        if let Some(waiting) = self.0.borrow_mut().waiting.get_mut(&begun) {
            waiting.killed = true;
        }
    }

    /// A process got a signal while it waited for a lock.
    pub fn lock_wait_interrupted(&self) {
        self.0.borrow_mut().interrupted += 1;
    }

    /// How often that was so.
    pub fn times_interrupted(&self) -> u64 {
        self.0.borrow().interrupted
    }

    /// A wait for a lock was given up, and what it may have got is given back.
    pub fn end_abandoned_lock(&self, begun: u64) {
        let mut inner = self.0.borrow_mut();
        let Some(waiting) = inner.waiting.remove(&begun) else { return };
        let Op::Lock { ino, owner, exclusive: Some(exclusive), range } = waiting.op else { return };
        inner.count += 1;
        let tried = Op::Tried { ino, owner, exclusive, range, number: begun };
        let steps = vec![(tried, None), (Op::GivenBack(ino, begun), Some(Outcome::Done))];
        inner.record(waiting.client, (begun, waiting.applied), steps);
    }

    /// What a killed process had asked for has ended. What it opened by that was closed again.
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

    /// A write that should have ended when it was stable fails, because its session was lost under
    /// way: it may have been there before, like a write that waits for nothing, and what fails is
    /// the sync.
    pub fn end_lost_write(&self, begun: u64) {
        let mut inner = self.0.borrow_mut();
        let Some(waiting) = inner.waiting.remove(&begun) else { return };
        let Op::Write { ino, offset, len, tag, file, .. } = waiting.op else { return };
        inner.count += 1;
        let write = Op::Write { ino, offset, len, tag, file, sync: false };
        let device = inner.failing || inner.failed_until > begun;
        let failed = if device { Outcome::DeviceFailed } else { Outcome::Failed(Fault::Io) };
        let steps = vec![(write, None), (Op::Fsync(ino, file), Some(failed))];
        inner.record(waiting.client, (begun, waiting.applied), steps);
    }

    /// A client has ended: what it waits for is not answered. From here on its session may be
    /// lost; gives the position for [`History::lost`].
    pub fn cut_short(&self, client: usize) -> u64 {
        let mut inner = self.0.borrow_mut();
        let cut = inner.waiting.extract_if(.., |_, waiting| waiting.client == client);
        let cut: Vec<PendingCall> = cut.map(|(_, waiting)| waiting).collect();
        inner.cut_short.extend(cut.into_iter().filter(|waiting| waiting.op.changes()));
        inner.next();
        inner.events
    }

    /// The position of now.
    pub fn position(&self) -> u64 {
        let mut inner = self.0.borrow_mut();
        inner.next();
        inner.events
    }

    /// The session of a client was lost between `begun` and now, with up to `kept` of the changes
    /// that it had the answers to.
    /// What devices had of it that stand still they may carry out `late`, after others have read.
    pub fn lost(&self, client: usize, begun: u64, (dead, late): (bool, bool), kept: u32) {
        let mut inner = self.0.borrow_mut();
        let mut of = Vec::new();
        if dead {
            of = inner.cut_short.extract_if(.., |waiting| waiting.client == client).collect();
        }
        let (edits, of): (Vec<PendingCall>, Vec<PendingCall>) =
            of.into_iter().partition(|waiting| waiting.op.edits_unseen() && !waiting.killed);
        let kept = kept.saturating_add(of.len() as u32);
        for waiting in of {
            inner.record(client, (waiting.begun, waiting.applied), vec![(waiting.op, None)]);
        }
        let edits = Rc::new(edits.into_iter().map(|waiting| waiting.op).collect());
        let next = inner.renewed.remove(&client).filter(|next| *next > begun);
        let lost = Op::Lost { dead, kept, learned: u64::MAX, edits, late, next };
        inner.record(client, (begun, None), vec![(lost, Some(Outcome::Done))]);
    }

    /// Devices may carry out late what a client had written when its session was lost last.
    pub fn writes_may_be_late(&self, client: usize) {
        let mut inner = self.0.borrow_mut();
        for call in inner.calls.iter_mut().rev().filter(|call| call.client == client) {
            if let Op::Lost { late, .. } = &mut call.op {
                *late = true;
                return;
            }
        }
    }

    /// A client began something at this position, for the first time in a new session.
    pub fn renewed(&self, client: usize, begun: u64) {
        self.0.borrow_mut().renewed.insert(client, begun);
    }

    /// A client surely knows of the last loss of its session.
    pub fn learned(&self, client: usize) {
        let mut inner = self.0.borrow_mut();
        inner.next();
        let now = inner.events;
        for call in inner.calls.iter_mut().rev().filter(|call| call.client == client) {
            if let Op::Lost { learned, .. } = &mut call.op {
                *learned = now;
                return;
            }
        }
    }

    /// From here on data devices may fail what they are asked, or no longer do.
    pub fn devices_fail(&self, failing: bool) {
        let mut inner = self.0.borrow_mut();
        inner.next();
        inner.failing = failing;
        inner.failed_until = inner.events;
    }

    /// A data device that stood still has carried out what it had.
    pub fn devices_settled(&self) {
        self.happened(NOBODY, Op::Settled);
    }

    /// Something happened at this moment that no application did.
    pub fn happened(&self, client: usize, op: Op) {
        let mut inner = self.0.borrow_mut();
        inner.next();
        let now = inner.events;
        inner.record(client, (now, None), vec![(op, Some(Outcome::Done))]);
    }

    /// A client says that a device failed what it had written to a file; of several ranges at once
    /// it says so for each.
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

    /// From here on it is told of every step that ends.
    pub fn on_end(&self, on_end: OnEnd) {
        self.0.borrow_mut().on_end = Some(on_end);
    }

    /// From here on it is known when there is low_space space.
    pub fn probe_space_with(&self, space: SpaceProbe) {
        self.0.borrow_mut().space = Some(space);
    }

    /// Notes how low_space space there is at this moment.
    pub fn note_space(&self) {
        self.0.borrow_mut().note_space();
    }

    /// The server says that it applied this for a client. Of several steps that may have asked for
    /// it, it is that of the one of which nothing was said yet, and of these of the one that began
    /// first.
    pub fn applied(
        &self,
        client: usize,
        asked: &proto::mds::Op,
        transno: Option<Transno>,
    ) -> Applied {
        let mut guard = self.0.borrow_mut();
        let inner = &mut *guard;
        inner.next();
        let now = inner.events;
        let waiting = inner.waiting.values_mut().chain(&mut inner.cut_short);
        let fitting =
            waiting.filter(|it| it.client == client && observed_order::asked_for(&it.op, asked));
        let step = fitting.min_by_key(|it| (it.applied.is_some(), it.begun)).map(|waiting| {
            waiting.applied = Some(now);
            waiting.op.clone()
        });
        Applied { at: now, step, transno }
    }

    /// A client says that it changes the content of a file. What is written in several pieces is
    /// written with the last.
    pub fn edited(&self, client: usize, ino: Ino, edited: Edited) {
        let mut guard = self.0.borrow_mut();
        let inner = &mut *guard;
        // Nobody looks at this moment: the client is in the middle of it.
        inner.events += 1;
        let now = inner.events;
        let waiting = inner.waiting.values_mut();
        let fitting =
            waiting.filter(|it| it.client == client && observed_order::edits(&it.op, ino, edited));
        if let Some(waiting) = fitting.min_by_key(|it| (it.applied.is_some(), it.begun)) {
            waiting.applied = Some(now);
        }
    }

    /// What waits for an answer.
    pub fn waiting(&self) -> Vec<PendingCall> {
        self.0.borrow().waiting.values().cloned().collect()
    }

    /// Takes all that has ended, in the order of the ends, and what this client's end cut short.
    pub fn take(&self) -> Vec<Call> {
        let mut inner = self.0.borrow_mut();
        // They hold the cluster.
        inner.space = None;
        inner.on_end = None;
        std::mem::take(&mut inner.calls)
    }

    /// Operations that have ended.
    pub fn count(&self) -> u64 {
        self.0.borrow().count
    }

    /// A hash of all that was seen.
    pub fn hash(&self) -> u64 {
        SimRng::new(self.0.borrow().hash).next_u64()
    }
}

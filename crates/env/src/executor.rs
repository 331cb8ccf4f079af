//! The executor: `!Send` tasks of one thread, over one driver.
//!
//! Invariants:
//! - a task is polled by the thread that spawned it, never from within another
//!   task's poll, and only after it was woken;
//! - a turn polls at most [`POLLS_PER_TURN`] tasks, then asks the driver once,
//!   so the executor serves I/O even while tasks keep each other busy;
//! - an operation's slot lives until its completion, whatever happens to the
//!   future that waits for it;
//! - when the main future has ended, the executor drops every task, then closes the
//!   driver: no buffer is in use after `run`.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use types::plant::planted;
use types::{Bug, Instant};

use crate::driver::{Completion, Driver, NodeId, Op, Payload, Token};
use crate::executor_group::{ExecutorGroup, abort_in_panic, yield_token};
use crate::mailbox::{Entered, Mailbox, SlotWaker, with_local};
use crate::meter::Meter;
use crate::timer::{TimerKey, Timers};

/// Why an operation fails that a node submits when its term is over.
pub const TERM_OVER: &str = "the term in which this process may act is over";
/// Tasks polled between two calls of the driver.
const POLLS_PER_TURN: usize = 256;

/// The slot of the main future, which is on the stack of `run`.
const MAIN: u32 = u32::MAX;

type Task = Pin<Box<dyn Future<Output = ()>>>;

enum TaskState {
    Free,
    Waiting(Task),
    /// Being polled; `killed` tasks are dropped when that poll returns.
    Running {
        killed: bool,
    },
}

struct TaskSlot {
    state: TaskState,
    node: NodeId,
    /// The executor of a simulated node that it belongs to.
    seat: usize,
    wakes: Arc<SlotWaker>,
    waker: Waker,
}

#[derive(Default)]
struct Tasks {
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
    dead: BTreeSet<NodeId>,
    /// Nodes whose tasks are not polled, and the woken ones among them.
    paused: BTreeSet<NodeId>,
    parked: Vec<u32>,
    closed: bool,
}

enum OpState {
    Free,
    Waiting(Option<Waker>),
    Done(Completion),
    /// Nobody waits any more; the completion frees the slot.
    Abandoned,
}

#[derive(Default)]
struct Ops {
    slots: Vec<OpState>,
    free: Vec<Token>,
}

impl Ops {
    fn add(&mut self, state: OpState) -> Token {
        if let Some(token) = self.free.pop() {
            self.slots[token as usize] = state;
            return token;
        }
        self.slots.push(state);
        Token::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations in flight")
    }

    fn release(&mut self, token: Token) -> OpState {
        self.free.push(token);
        std::mem::replace(&mut self.slots[token as usize], OpState::Free)
    }
}

/// The state that the tasks of one thread share.
pub(crate) struct Core {
    driver: RefCell<Box<dyn Driver>>,
    mailbox: Arc<Mailbox>,
    tasks: RefCell<Tasks>,
    ops: RefCell<Ops>,
    timers: RefCell<Timers>,
    closed: Cell<bool>,
    /// Nodes whose operations end at a time of theirs; see [`crate::Env::end_io_at`].
    terms: RefCell<Vec<(NodeId, Instant)>>,
    /// The [`TaskSlot::seat`] of the task that is being polled.
    seat: Cell<usize>,
    /// The executor group that this one belongs to.
    group: OnceCell<Rc<ExecutorGroup>>,
    /// Signals that arrived before this executor began, or that it has seen.
    pub(crate) signals_seen: Cell<u64>,
    /// What polls of simulated nodes take.
    pub(crate) meter: Meter,
}

impl Core {
    pub(crate) fn new(driver: Box<dyn Driver>, mailbox: Arc<Mailbox>) -> Rc<Core> {
        Rc::new(Core {
            driver: RefCell::new(driver),
            mailbox,
            tasks: RefCell::default(),
            ops: RefCell::default(),
            timers: RefCell::default(),
            closed: Cell::new(false),
            terms: RefCell::default(),
            seat: Cell::new(0),
            group: OnceCell::new(),
            signals_seen: Cell::new(crate::os::signal::count()),
            meter: Meter::default(),
        })
    }

    /// Puts the executor into a group, once.
    pub(crate) fn join_group(&self, group: &Rc<ExecutorGroup>) {
        assert!(self.group.set(group.clone()).is_ok(), "an executor belongs to one group");
    }

    /// The group of this executor, if it belongs to one.
    pub(crate) fn group(&self) -> Option<&Rc<ExecutorGroup>> {
        self.group.get()
    }

    /// In a group, the executor of the current thread; else this one.
    pub(crate) fn here(self: &Rc<Core>) -> Rc<Core> {
        self.group.get().map_or_else(|| self.clone(), |group| group.here())
    }

    /// Does this executor belong to another thread?
    fn is_elsewhere(self: &Rc<Core>) -> bool {
        self.group.get().is_some_and(|group| !Rc::ptr_eq(self, &group.here()))
    }

    /// Runs `main` to its end on this thread.
    pub(crate) fn block_on<F: Future>(self: &Rc<Core>, main: F) -> io::Result<F::Output> {
        let mut value = None;
        self.run_main(pin!(async { value = Some(main.await) }))?;
        Ok(value.expect("the future ended"))
    }

    /// As [`Core::block_on`]. It is compiled once, not once for each future.
    fn run_main(self: &Rc<Core>, mut main: Pin<&mut dyn Future<Output = ()>>) -> io::Result<()> {
        let _entered = Entered::new(&self.mailbox);
        let _closing = Closing(self);
        let wakes = SlotWaker::new(MAIN, self.mailbox.clone());
        let waker = Waker::from(wakes.clone());
        waker.wake_by_ref();
        let mut done = Vec::new();
        loop {
            for _ in 0..POLLS_PER_TURN {
                let Some(slot) = self.next_ready() else { break };
                if slot != MAIN {
                    self.poll_task(slot);
                    continue;
                }
                wakes.begin_poll();
                if main.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                    return Ok(());
                }
            }
            self.turn(&mut done)?;
        }
    }

    fn next_ready(&self) -> Option<u32> {
        with_local(|local| match local.ready.len() {
            0 => None,
            1 => local.ready.pop_front(),
            ready => match self.driver.borrow_mut().choose(ready) {
                0 => local.ready.pop_front(),
                chosen => local.ready.remove(chosen),
            },
        })
    }

    /// Polls the driver, the mailbox and the timers once.
    fn turn(&self, done: &mut Vec<Completion>) -> io::Result<()> {
        let idle = with_local(|local| local.ready.is_empty()) && self.mailbox.may_sleep();
        let until = if idle { self.timers.borrow().next() } else { Some(Instant(0)) };
        self.driver.borrow_mut().wait(until, done)?;
        for token in with_local(|local| self.mailbox.collect(&mut local.ready, done)) {
            self.cancel_abandoned(token);
        }
        for completion in done.drain(..) {
            self.finish(completion);
        }
        self.fire_timers();
        yield_token();
        Ok(())
    }

    /// Cancels an operation that another thread has dropped, if it has not ended since.
    fn cancel_abandoned(&self, token: Token) {
        if matches!(self.ops.borrow().slots[token as usize], OpState::Abandoned) {
            self.driver.borrow_mut().cancel(token);
        }
    }

    fn finish(&self, completion: Completion) {
        let mut ops = self.ops.borrow_mut();
        let token = completion.token;
        let state = &mut ops.slots[token as usize];
        match std::mem::replace(state, OpState::Free) {
            OpState::Waiting(waker) => {
                *state = OpState::Done(completion);
                drop(ops);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            OpState::Abandoned => {
                ops.free.push(token);
                drop(ops);
                drop(completion);
            }
            OpState::Free | OpState::Done(_) => unreachable!("operation {token} completed twice"),
        }
    }

    fn fire_timers(&self) {
        if self.timers.borrow().next().is_none() {
            return;
        }
        let now = self.now();
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            match due {
                Some(waker) => waker.wake(),
                None => return,
            }
        }
    }

    fn poll_task(&self, index: u32) {
        let (mut task, waker, node) = {
            let mut tasks = self.tasks.borrow_mut();
            if !tasks.paused.is_empty() {
                let node = tasks.slots[index as usize].node;
                if tasks.paused.contains(&node) {
                    tasks.parked.push(index);
                    return;
                }
            }
            let slot = &mut tasks.slots[index as usize];
            slot.wakes.begin_poll();
            match std::mem::replace(&mut slot.state, TaskState::Running { killed: false }) {
                TaskState::Waiting(task) => {
                    self.seat.set(slot.seat);
                    (task, slot.waker.clone(), slot.node)
                }
                other => {
                    slot.state = other;
                    return;
                }
            }
        };
        let running = Running { core: self, index };
        let mut cx = Context::from_waker(&waker);
        let ended = self.meter.measure(node, || task.as_mut().poll(&mut cx).is_ready());
        std::mem::forget(running);
        self.seat.set(0);
        let mut tasks = self.tasks.borrow_mut();
        let slot = &mut tasks.slots[index as usize];
        if ended || matches!(slot.state, TaskState::Running { killed: true }) {
            // The slot becomes free only after the drop, which may spawn and wake.
            drop(tasks);
            drop(task);
            self.free_slot(index);
        } else {
            slot.state = TaskState::Waiting(task);
        }
    }

    fn free_slot(&self, index: u32) {
        let mut tasks = self.tasks.borrow_mut();
        tasks.slots[index as usize].state = TaskState::Free;
        tasks.free.push(index);
    }

    /// Starts a task on the executor of the task that is being polled.
    pub(crate) fn spawn(&self, node: NodeId, task: impl Future<Output = ()> + 'static) {
        self.spawn_at(node, self.seat.get(), task);
    }

    /// The executor of a simulated node that runs now.
    pub(crate) fn seat(&self) -> usize {
        self.seat.get()
    }

    /// Starts a task on one of the executors of a simulated node.
    pub(crate) fn spawn_at(
        &self,
        node: NodeId,
        seat: usize,
        task: impl Future<Output = ()> + 'static,
    ) {
        let mut tasks = self.tasks.borrow_mut();
        if tasks.closed || tasks.dead.contains(&node) {
            drop(tasks);
            drop(task);
            return;
        }
        let state = TaskState::Waiting(Box::pin(task));
        let wakes = if let Some(index) = tasks.free.pop() {
            let slot = &mut tasks.slots[index as usize];
            slot.state = state;
            slot.node = node;
            slot.seat = seat;
            slot.wakes.clone()
        } else {
            let index = u32::try_from(tasks.slots.len()).expect("fewer than 2^32 tasks");
            let wakes = SlotWaker::new(index, self.mailbox.clone());
            let waker = Waker::from(wakes.clone());
            tasks.slots.push(TaskSlot { state, node, seat, wakes: wakes.clone(), waker });
            wakes
        };
        drop(tasks);
        std::task::Wake::wake(wakes);
    }

    /// Stops polling tasks of `node` until [`Core::resume`].
    pub(crate) fn pause(&self, node: NodeId) {
        self.tasks.borrow_mut().paused.insert(node);
    }

    /// Tasks of `node` run again.
    pub(crate) fn resume(&self, node: NodeId) {
        let mut tasks = self.tasks.borrow_mut();
        if tasks.paused.remove(&node) {
            // Tasks of nodes that are still paused are parked again.
            let parked = std::mem::take(&mut tasks.parked);
            with_local(|local| local.ready.extend(parked));
        }
    }

    /// Drops the tasks of `node` (all tasks if `None`), and those they spawn while dropped.
    pub(crate) fn kill(&self, node: Option<NodeId>) {
        if let Some(node) = node {
            self.resume(node);
        }
        let mut doomed: Vec<(u32, Task)> = Vec::new();
        {
            let mut tasks = self.tasks.borrow_mut();
            match node {
                Some(node) => _ = tasks.dead.insert(node),
                None => tasks.closed = true,
            }
            for (index, slot) in tasks.slots.iter_mut().enumerate() {
                if node.is_some_and(|node| node != slot.node) {
                    continue;
                }
                match &mut slot.state {
                    TaskState::Free => {}
                    TaskState::Running { killed } => *killed = true,
                    waiting @ TaskState::Waiting(_) => {
                        let state = std::mem::replace(waiting, TaskState::Running { killed: true });
                        if let TaskState::Waiting(task) = state {
                            doomed.push((index as u32, task));
                        }
                    }
                }
            }
        }
        for (index, task) in doomed {
            drop(task);
            self.free_slot(index);
        }
    }

    /// The node whose task is being polled; `None`: no task, or one that belongs to no node.
    pub(crate) fn running(&self) -> Option<NodeId> {
        let tasks = self.tasks.borrow();
        let polled = |slot: &&TaskSlot| matches!(slot.state, TaskState::Running { killed: false });
        tasks.slots.iter().find(polled).map(|slot| slot.node)
    }

    /// The number of tasks that have not ended.
    pub(crate) fn live_tasks(&self) -> usize {
        let tasks = self.tasks.borrow();
        tasks.slots.len() - tasks.free.len()
    }

    pub(crate) fn now(&self) -> Instant {
        self.driver.borrow().now()
    }

    /// Immediate access to the driver.
    pub(crate) fn with_driver<R>(&self, f: impl FnOnce(&mut dyn Driver) -> R) -> R {
        f(self.driver.borrow_mut().as_mut())
    }

    /// Operations that a node submits from `at` on fail; `None`: no longer.
    pub(crate) fn end_io_at(&self, node: NodeId, at: Option<Instant>) {
        let mut terms = self.terms.borrow_mut();
        terms.retain(|(other, _)| *other != node);
        terms.extend(at.map(|at| (node, at)));
    }

    /// Is the time over in which a node may submit operations?
    pub(crate) fn is_over(&self, node: NodeId) -> bool {
        let terms = self.terms.borrow();
        let Some((_, at)) = terms.iter().find(|(other, _)| *other == node) else { return false };
        let now = self.with_driver(|driver| driver.node_time(node, driver.now()));
        now >= *at && !planted(Bug::TermIgnored)
    }

    /// Submits `op` to the driver now; the future yields its completion.
    pub(crate) fn submit(self: &Rc<Core>, node: NodeId, op: Op) -> OpFuture {
        let token = self.ops.borrow_mut().add(OpState::Waiting(None));
        let refusal = match self.closed.get() {
            true => Some((io::ErrorKind::NotConnected, "the executor has ended")),
            false => self.is_over(node).then_some((io::ErrorKind::TimedOut, TERM_OVER)),
        };
        if let Some((kind, text)) = refusal {
            let payload = match op {
                Op::Read { buf, .. } | Op::Write { buf, .. } | Op::RecvInto { buf, .. } => {
                    Payload::Buf(buf)
                }
                Op::WriteParts { bufs, .. } => Payload::Bufs(bufs),
                Op::Recv { bytes, .. } | Op::Send { bytes, .. } => Payload::Bytes(bytes),
                Op::Fuse { entry, .. } => Payload::Fuse(entry),
                _ => Payload::None,
            };
            self.finish(Completion::new(token, Err(io::Error::new(kind, text)), payload));
        } else {
            self.driver.borrow_mut().submit(node, token, op);
        }
        OpFuture { core: self.clone(), token, finished: false }
    }

    pub(crate) fn sleep_until(self: &Rc<Core>, at: Instant) -> Sleep {
        Sleep { core: self.clone(), at, key: None, fired: false }
    }
}

/// Frees the slot of a task whose poll panicked.
struct Running<'a> {
    core: &'a Core,
    index: u32,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.core.free_slot(self.index);
    }
}

/// Shuts an executor down, however `block_on` is left.
struct Closing<'a>(&'a Rc<Core>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let core = self.0;
        if core.group.get().is_some() {
            abort_in_panic();
        }
        core.kill(None);
        core.closed.set(true);
        core.driver.borrow_mut().close();
        let mut done = Vec::new();
        with_local(|local| core.mailbox.collect(&mut local.ready, &mut done));
        for completion in done {
            core.finish(completion);
        }
        core.timers.replace(Timers::default());
    }
}

/// The completion of an operation. Dropped early, it cancels the operation.
pub(crate) struct OpFuture {
    core: Rc<Core>,
    token: Token,
    finished: bool,
}

impl Future for OpFuture {
    type Output = (io::Result<usize>, Payload);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.finished, "an operation's future was polled after its end");
        let core = self.core.clone();
        let mut ops = core.ops.borrow_mut();
        match &mut ops.slots[self.token as usize] {
            OpState::Waiting(waker) => {
                match waker {
                    Some(old) => old.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            OpState::Done(_) => {
                self.finished = true;
                let OpState::Done(completion) = ops.release(self.token) else { unreachable!() };
                Poll::Ready((completion.result, completion.payload))
            }
            OpState::Free | OpState::Abandoned => unreachable!("the slot belongs to this future"),
        }
    }
}

impl Drop for OpFuture {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut ops = self.core.ops.borrow_mut();
        let state = &mut ops.slots[self.token as usize];
        if matches!(state, OpState::Done(_)) {
            let state = ops.release(self.token);
            drop(ops);
            drop(state);
        } else {
            *state = OpState::Abandoned;
            drop(ops);
            if self.core.closed.get() {
                return;
            }
            if self.core.is_elsewhere() {
                self.core.mailbox.cancel(self.token);
            } else {
                self.core.driver.borrow_mut().cancel(self.token);
            }
        }
    }
}

/// Ends at its time.
pub(crate) struct Sleep {
    core: Rc<Core>,
    at: Instant,
    key: Option<TimerKey>,
    fired: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let core = self.core.clone();
        if self.fired {
            return Poll::Ready(());
        }
        if let Some(key) = self.key {
            if core.timers.borrow_mut().renew(key, cx.waker()) {
                return Poll::Pending;
            }
            self.fired = true;
            return Poll::Ready(());
        }
        if self.at <= core.here().now() {
            self.fired = true;
            return Poll::Ready(());
        }
        self.key = Some(core.timers.borrow_mut().add(self.at, cx.waker().clone()));
        if core.is_elsewhere() {
            // The owner may be asleep until later than that.
            core.mailbox.ring();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.filter(|_| !self.fired) {
            let waker = self.core.timers.borrow_mut().remove(key);
            drop(waker);
        }
    }
}

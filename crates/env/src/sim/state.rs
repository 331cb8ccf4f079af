//! The simulated world's state, and the driver that executors use.
//!
//! Invariants:
//! - `due` holds all future events, ordered by time, then by creation;
//! - an open file holds its locks until it is closed and nothing on it is in flight;
//! - handles are dropped only while the state is not locked, because dropping
//!   the last one locks it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use types::{Duration, Instant, Timestamp};

use super::disk::{DiskAction, SimDisk};
use super::disk_op::DiskOp;
use super::held_up::HeldUp;
use super::mechanics::DiskRequest;
use super::net::{Arriving, Net, NetEvent};
use super::price::{Price, Processors};
use super::rng::SimRng;
use super::watch::{self, DiskEvent};
use crate::buffer::IoBuf;
use crate::driver::{
    ByteLock, Completion, DiskOptions, Driver, Handle, LockScope, NodeId, Op, OpenedDisk, Payload,
    Token,
};

/// How a world behaves.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// How long a read, write or discard takes.
    pub disk_latency: RangeInclusive<Duration>,
    /// How long a flush takes.
    pub flush_latency: RangeInclusive<Duration>,
    /// How long bytes take between two nodes.
    pub net_latency: RangeInclusive<Duration>,
    /// Upper bound of the extra latency of a connection: so connections overtake each other.
    pub net_detour: Duration,
    /// Bytes a second in each direction of a connection; `None`: unlimited.
    pub net_bandwidth: Option<u64>,
    /// The cost of messages for the processors of the hosts at both ends; `None`: nothing.
    pub price: Option<Price>,
    /// The time after which a connect to an unreachable node fails.
    pub connect_timeout: Duration,
    /// Run ready tasks in a random order instead of the order in which they were woken.
    pub shuffle_tasks: bool,
    /// Virtual time after which a run is considered hung.
    pub time_limit: Duration,
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        SimOptions {
            disk_latency: Duration::from_micros(20)..=Duration::from_micros(200),
            flush_latency: Duration::from_micros(100)..=Duration::from_micros(500),
            net_latency: Duration::from_micros(50)..=Duration::from_micros(500),
            net_detour: Duration::ZERO,
            net_bandwidth: None,
            price: None,
            connect_timeout: Duration::from_secs(30),
            shuffle_tasks: false,
            time_limit: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// How often the world retries events that a stalled disk delays.
const STALLED: Duration = Duration::from_millis(5);
/// Time that passes while tasks are busy for a whole turn of the executor.
const BUSY_TURN: Duration = Duration::from_micros(10);

/// The state of a world, shared by its handles and its driver.
pub(crate) type SharedState = Arc<Mutex<State>>;

pub(crate) fn lock(state: &SharedState) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A simulated open file, listener or socket; dropping the last clone closes it.
#[derive(Clone)]
pub(crate) struct SimHandle(Arc<OpenObject>);

struct OpenObject {
    id: u64,
    state: SharedState,
}

impl SimHandle {
    pub(crate) fn new(id: u64, state: &SharedState) -> SimHandle {
        SimHandle(Arc::new(OpenObject { id, state: state.clone() }))
    }
}

impl Drop for OpenObject {
    fn drop(&mut self) {
        lock(&self.state).close(self.id);
    }
}

fn id_of(handle: &Handle) -> u64 {
    match handle {
        Handle::Sim(handle) => handle.0.id,
        Handle::Fd(_) => unreachable!("a descriptor of the operating system in a simulated world"),
    }
}

/// A future event.
pub(crate) enum Event {
    Read {
        token: Token,
        file: u64,
        offset: u64,
        buf: IoBuf,
        start: usize,
    },
    Write {
        token: Token,
        file: u64,
        id: u64,
        buf: IoBuf,
        start: usize,
    },
    Discard {
        token: Token,
        file: u64,
        id: u64,
    },
    Flush {
        token: Token,
        file: u64,
        covers: Vec<u64>,
    },
    /// The disk's queue may have advanced.
    Queue(SimDisk),
    Complete(Completion),
    Net(NetEvent),
}

struct OpenFile {
    disk: SimDisk,
    node: NodeId,
    write: bool,
    in_flight: usize,
    closed: bool,
}

/// The clock of a node: it may run faster or slower than the world's time, and its wall clock may
/// jump.
#[derive(Clone, Copy, Default)]
pub(crate) struct NodeClock {
    /// How much faster it runs, in millionths.
    pub(crate) drift: i64,
    /// How far the wall clock is ahead.
    pub(crate) wall_seconds: i64,
}

const MILLION: i128 = 1_000_000;

impl NodeClock {
    fn node_time(self, real: Instant) -> Instant {
        Instant((i128::from(real.0) * (MILLION + i128::from(self.drift)) / MILLION) as u64)
    }

    fn world_time(self, shown: Instant) -> Instant {
        let rate = MILLION + i128::from(self.drift);
        Instant(((i128::from(shown.0) * MILLION + rate - 1) / rate) as u64)
    }
}

/// A completion; its sockets become handles once nothing is locked.
pub(crate) struct Ended {
    pub(crate) token: Token,
    pub(crate) result: io::Result<usize>,
    pub(crate) payload: EndedPayload,
}

/// See [`Ended`].
pub(crate) enum EndedPayload {
    Plain(Payload),
    Socket(u64, String),
}

/// See the module.
pub(crate) struct State {
    pub(crate) now: Instant,
    pub(crate) options: SimOptions,
    pub(crate) rng: SimRng,
    due: BTreeMap<(Instant, u64), Event>,
    created: u64,
    objects: u64,
    /// Events that wait in the queues of disks with a model.
    queued: BTreeMap<u64, Event>,
    pub(crate) disks: BTreeMap<String, SimDisk>,
    files: BTreeMap<u64, OpenFile>,
    pub(crate) net: Net,
    pub(crate) held_up: HeldUp,
    /// Names of the nodes, by `NodeId`.
    pub(crate) nodes: Vec<String>,
    /// Hosts of nodes, by name; the others share one.
    pub(crate) hosts: BTreeMap<String, String>,
    /// Processors of hosts, by name, once they had work or were configured.
    pub(crate) processors: BTreeMap<String, Processors>,
    /// Nodes with more than one executor.
    pub(crate) executors: BTreeMap<String, usize>,
    /// Clocks of nodes, by name; the others show the world's time.
    pub(crate) clocks: BTreeMap<String, NodeClock>,
    pub(crate) ended: VecDeque<Ended>,
    stops: Vec<(NodeId, Token)>,
    stopped: BTreeMap<String, VecDeque<i32>>,
    pub(crate) trace: u64,
}

impl State {
    pub(crate) fn new(seed: u64, options: SimOptions) -> State {
        State {
            now: Instant(1_000_000_000),
            options,
            rng: SimRng::new(seed),
            due: BTreeMap::new(),
            created: 0,
            objects: 0,
            queued: BTreeMap::new(),
            disks: BTreeMap::new(),
            files: BTreeMap::new(),
            net: Net::default(),
            held_up: HeldUp::default(),
            nodes: vec!["main".to_owned()],
            hosts: BTreeMap::new(),
            processors: BTreeMap::new(),
            executors: BTreeMap::new(),
            clocks: BTreeMap::new(),
            ended: VecDeque::new(),
            stops: Vec::new(),
            stopped: BTreeMap::new(),
            trace: seed,
        }
    }

    fn clock(&self, node: NodeId) -> NodeClock {
        self.clocks.get(&self.nodes[node as usize]).copied().unwrap_or_default()
    }

    fn host_of(&self, node: NodeId) -> String {
        self.hosts.get(&self.nodes[node as usize]).cloned().unwrap_or_default()
    }

    /// When the processors of the host of `node` have handled a message of `bytes` bytes; at once
    /// if it costs nothing.
    pub(crate) fn pay(&mut self, node: NodeId, bytes: usize) -> Instant {
        let Some(price) = self.options.price.filter(|_| bytes > 0) else { return self.now };
        let host = self.host_of(node);
        self.processors.entry(host).or_default().take(self.now, price.of(bytes))
    }

    pub(crate) fn new_object(&mut self) -> u64 {
        self.objects += 1;
        self.objects
    }

    pub(crate) fn latency(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let (low, high) = (range.start().as_nanos() as u64, range.end().as_nanos() as u64);
        Duration::from_nanos(self.rng.between(low, high))
    }

    pub(crate) fn schedule(&mut self, at: Instant, event: Event) {
        self.created += 1;
        self.due.insert((at, self.created), event);
    }

    pub(crate) fn end(&mut self, token: Token, result: io::Result<usize>, payload: EndedPayload) {
        self.ended.push_back(Ended { token, result, payload });
    }

    pub(crate) fn end_plain(&mut self, token: Token, result: io::Result<usize>, payload: Payload) {
        self.end(token, result, EndedPayload::Plain(payload));
    }

    fn note(&mut self, word: u64) {
        let mut mixed = SimRng::new(self.trace ^ word.rotate_left(17) ^ self.now.0);
        self.trace = mixed.next_u64();
    }

    fn close(&mut self, object: u64) {
        if let Some(file) = self.files.get_mut(&object) {
            file.closed = true;
            self.close_idle(object);
        } else {
            self.close_net(object);
        }
    }

    /// Forgets a closed file once nothing on it is in flight.
    fn close_idle(&mut self, object: u64) {
        if self.files.get(&object).is_some_and(|file| file.closed && file.in_flight == 0)
            && let Some(file) = self.files.remove(&object)
        {
            file.disk.release_locks(object);
        }
    }

    fn io_ended(&mut self, object: u64) {
        if let Some(file) = self.files.get_mut(&object) {
            file.in_flight -= 1;
        }
        self.close_idle(object);
    }

    fn open_disk(
        &mut self,
        node: NodeId,
        path: &str,
        options: DiskOptions,
    ) -> io::Result<(u64, SimDisk)> {
        let Some(disk) = self.disks.get(path).cloned() else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{path}: open: no such simulated disk"),
            ));
        };
        let object = self.new_object();
        if options.exclusive && !disk.take_whole(self.host_of(node), object) {
            let text = format!("{path}: lock: in use by another simulated process");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        let (disk_of, write) = (disk.clone(), options.write);
        let file = OpenFile { disk: disk_of, node, write, in_flight: 0, closed: false };
        self.files.insert(object, file);
        Ok((object, disk))
    }

    /// The disk of an open file, for an operation that starts now.
    fn begin_io(&mut self, object: u64, writes: bool) -> io::Result<SimDisk> {
        let file =
            self.files.get_mut(&object).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        if writes && !file.write {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        file.in_flight += 1;
        Ok(file.disk.clone())
    }

    fn submit_io(&mut self, token: Token, op: DiskOp) {
        let latency = match op {
            DiskOp::Flush { .. } => self.options.flush_latency.clone(),
            _ => self.options.disk_latency.clone(),
        };
        let request = op.request();
        let (file, writes) = op.target();
        let begun = self.begin_io(file, writes);
        let disk = begun.as_ref().ok().cloned();
        let failed = |error: io::Error, payload| {
            Event::Complete(Completion::new(token, Err(error), payload))
        };
        let event = match (op, begun) {
            (DiskOp::Read { buf, .. } | DiskOp::Write { buf, .. }, Err(error)) => {
                failed(error, Payload::Buf(buf))
            }
            (_, Err(error)) => failed(error, Payload::None),
            (DiskOp::Read { offset, buf, start, .. }, Ok(_)) => {
                Event::Read { token, file, offset, buf, start }
            }
            (DiskOp::Write { offset, buf, start, .. }, Ok(disk)) => {
                let rest = &buf[start..];
                let (place, len) = (offset + start as u64, rest.len() as u64);
                match disk.begin_write((file, self.node_of(file)), place, len, Some(rest)) {
                    Ok(id) => {
                        self.report_write(&disk, file, (id, place, rest));
                        Event::Write { token, file, id, buf, start }
                    }
                    Err(error) => {
                        self.report_failure(file, DiskAction::Write, place..place + len);
                        self.io_ended(file);
                        failed(error, Payload::Buf(buf))
                    }
                }
            }
            (DiskOp::Discard { offset, len, .. }, Ok(disk)) => {
                match disk.begin_write((file, self.node_of(file)), offset, len, None) {
                    Ok(id) => Event::Discard { token, file, id },
                    Err(error) => {
                        self.report_failure(file, DiskAction::Discard, offset..offset + len);
                        self.io_ended(file);
                        failed(error, Payload::None)
                    }
                }
            }
            (DiskOp::Flush { .. }, Ok(disk)) => {
                Event::Flush { token, file, covers: disk.begin_flush() }
            }
        };
        let id = self.created;
        match disk {
            Some(disk)
                if !matches!(event, Event::Complete(_))
                    && disk.enqueue(self.now, DiskRequest { id, ..request }) =>
            {
                self.created += 1;
                self.queued.insert(id, event);
                self.await_queue(disk);
            }
            _ => {
                let at = self.now + self.latency(&latency);
                self.schedule(at, event);
            }
        }
    }

    /// Reports a write in flight to the observer: its number, its offset, its bytes.
    fn report_write(&self, disk: &SimDisk, file: u64, (id, offset, bytes): (u64, u64, &[u8])) {
        if let Some(open) = self.files.get(&file) {
            let node = (&*self.nodes[open.node as usize], open.node);
            watch::notify(disk, DiskEvent::Submitted { id, node, offset, bytes });
        }
    }

    /// The name of the node that has this file open.
    fn node_of(&self, file: u64) -> &str {
        self.files.get(&file).map_or("", |open| &self.nodes[open.node as usize])
    }

    /// Reports to the observer that a disk failed an operation on an open file.
    fn report_failure(&self, file: u64, action: DiskAction, bytes: Range<u64>) {
        if let Some(open) = self.files.get(&file) {
            let node = (&*self.nodes[open.node as usize], open.node);
            watch::notify(&open.disk, DiskEvent::Failed { node, action, bytes: &bytes });
        }
    }

    /// Schedules a look at a disk's queue for its next completion.
    fn await_queue(&mut self, disk: SimDisk) {
        if let Some(at) = disk.next_done() {
            self.schedule(at, Event::Queue(disk));
        }
    }

    /// Does a stalled disk delay this event?
    fn is_stalled(&self, event: &Event) -> bool {
        let file = match event {
            Event::Read { file, .. }
            | Event::Write { file, .. }
            | Event::Discard { file, .. }
            | Event::Flush { file, .. } => file,
            Event::Queue(disk) => return disk.is_stalled(),
            Event::Complete(_) | Event::Net(_) => return false,
        };
        let stalls = |open: &OpenFile| open.disk.is_stalled_for(self.node_of(*file));
        self.files.get(file).is_some_and(stalls)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Read { token, file, offset, mut buf, start } => {
                let place = offset + start as u64;
                let result = match self.files.get(&file) {
                    Some(open) => open.disk.read(self.node_of(file), place, &mut buf[start..]),
                    None => Err(io::Error::from_raw_os_error(libc::EBADF)),
                };
                if result.is_err() {
                    let end = offset + buf.len() as u64;
                    self.report_failure(file, DiskAction::Read, place..end);
                }
                self.io_ended(file);
                let read = buf.len() - start;
                self.end_plain(token, result.map(|()| read), Payload::Buf(buf));
            }
            Event::Write { token, file, id, buf, start } => {
                self.complete_write(file, id);
                let written = buf.len() - start;
                self.end_plain(token, Ok(written), Payload::Buf(buf));
            }
            Event::Discard { token, file, id } => {
                self.complete_write(file, id);
                self.end_plain(token, Ok(0), Payload::None);
            }
            Event::Flush { token, file, covers } => {
                let result = match self.files.get(&file) {
                    Some(open) => {
                        open.disk.complete_flush((file, self.node_of(file)), covers).map(|()| 0)
                    }
                    None => Err(io::Error::from_raw_os_error(libc::EBADF)),
                };
                if result.is_err() {
                    self.report_failure(file, DiskAction::Flush, 0..0);
                }
                self.io_ended(file);
                self.end_plain(token, result, Payload::None);
            }
            Event::Queue(disk) => {
                let done = disk.done(self.now);
                for id in &done {
                    let event = self.queued.remove(id).expect("a queued request has an event");
                    match self.is_stalled(&event) {
                        true => self.schedule(self.now + STALLED, event),
                        false => self.happen(event),
                    }
                }
                if !done.is_empty() {
                    self.await_queue(disk);
                }
            }
            Event::Complete(Completion { token, result, payload }) => {
                self.end_plain(token, result, payload)
            }
            Event::Net(event) => self.happen_on_net(event),
        }
    }

    fn complete_write(&mut self, file: u64, id: u64) {
        if let Some(open) = self.files.get(&file) {
            open.disk.complete_write(id);
        }
        self.io_ended(file);
    }

    /// Runs the events that are due by now.
    fn run_due(&mut self) {
        while let Some(first) = self.due.first_entry() {
            if first.key().0 > self.now {
                return;
            }
            let event = first.remove();
            if self.is_stalled(&event) {
                self.schedule(self.now + STALLED, event);
            } else {
                self.happen(event);
            }
        }
    }

    /// Advances time until something completes or `until` is reached.
    fn advance(&mut self, until: Option<Instant>) {
        if until == Some(Instant(0)) {
            // Tasks that keep each other busy must not stop the clock.
            self.now += BUSY_TURN;
        }
        self.run_due();
        while self.ended.is_empty() && until.is_none_or(|until| until > self.now) {
            let next = self.due.first_key_value().map(|(key, _)| key.0);
            let next = match (next, until) {
                (Some(next), Some(until)) => next.min(until),
                (Some(next), None) => next,
                (None, Some(until)) => until,
                (None, None) => panic!(
                    "the simulated world stands still at {:?}: every task waits and nothing is due",
                    self.now
                ),
            };
            self.now = self.now.max(next);
            assert!(
                self.now.since(Instant(0)) < self.options.time_limit,
                "the simulated world reached its time limit: some task waits for nothing"
            );
            self.run_due();
        }
    }

    pub(crate) fn signal(&mut self, node: &str, signal: i32) {
        let waiting = self.stops.iter().position(|(id, _)| self.nodes[*id as usize] == node);
        match waiting {
            Some(at) => {
                let (_, token) = self.stops.remove(at);
                self.end_plain(token, Ok(signal as usize), Payload::None);
            }
            None => self.stopped.entry(node.to_owned()).or_default().push_back(signal),
        }
    }

    fn await_stop(&mut self, node: NodeId, token: Token) {
        let name = self.nodes[node as usize].clone();
        match self.stopped.get_mut(&name).and_then(VecDeque::pop_front) {
            Some(signal) => self.end_plain(token, Ok(signal as usize), Payload::None),
            None => self.stops.push((node, token)),
        }
    }

    fn cancel(&mut self, token: Token) {
        if let Some(at) = self.stops.iter().position(|(_, waiting)| *waiting == token) {
            self.stops.remove(at);
            self.end_plain(
                token,
                Err(io::Error::from_raw_os_error(libc::ECANCELED)),
                Payload::None,
            );
        } else {
            self.cancel_net(token);
        }
    }

    /// The executor has ended: writes in flight reach their disks, everything else is dropped.
    fn finish_run(&mut self) -> (VecDeque<Ended>, Vec<Event>) {
        let due = std::mem::take(&mut self.due);
        let queued = std::mem::take(&mut self.queued);
        let mut dropped = Vec::new();
        for event in due.into_values().chain(queued.into_values()) {
            match event {
                Event::Write { .. } | Event::Discard { .. } => self.happen(event),
                Event::Queue(disk) => disk.forget_queue(),
                event => dropped.push(event),
            }
        }
        for (object, file) in std::mem::take(&mut self.files) {
            file.disk.release_locks(object);
        }
        self.net.forget_connections();
        self.stops.clear();
        (std::mem::take(&mut self.ended), dropped)
    }
}

/// The driver of a simulated world.
pub(crate) struct SimDriver(pub(crate) SharedState);

impl Driver for SimDriver {
    fn now(&self) -> Instant {
        lock(&self.0).now
    }

    fn wall(&self, node: NodeId) -> Timestamp {
        let state = lock(&self.0);
        let clock = state.clock(node);
        let now = clock.node_time(state.now).0;
        Timestamp {
            seconds: 1_700_000_000 + (now / 1_000_000_000) as i64 + clock.wall_seconds,
            nanos: (now % 1_000_000_000) as u32,
        }
    }

    fn node_time(&self, node: NodeId, real: Instant) -> Instant {
        lock(&self.0).clock(node).node_time(real)
    }

    fn world_time(&self, node: NodeId, shown: Instant) -> Instant {
        lock(&self.0).clock(node).world_time(shown)
    }

    fn entropy(&mut self) -> u64 {
        lock(&self.0).rng.next_u64()
    }

    fn choose(&mut self, ready: usize) -> usize {
        let mut state = lock(&self.0);
        if state.options.shuffle_tasks { state.rng.below(ready as u64) as usize } else { 0 }
    }

    fn simulated(&self) -> bool {
        true
    }

    fn open_disk(
        &mut self,
        node: NodeId,
        path: &str,
        options: DiskOptions,
    ) -> io::Result<OpenedDisk> {
        let (object, disk) = lock(&self.0).open_disk(node, path, options)?;
        let lock_scope = Some(LockScope::of_names(&lock(&self.0).host_of(node), path));
        Ok(OpenedDisk {
            handle: Handle::Sim(SimHandle::new(object, &self.0)),
            size: disk.size(),
            write_through: disk.is_write_through(),
            rotational: disk.is_rotational(),
            lock_scope,
        })
    }

    fn executors(&self, node: NodeId) -> usize {
        let state = lock(&self.0);
        state.executors.get(&state.nodes[node as usize]).copied().unwrap_or(1)
    }

    fn lock(&mut self, node: NodeId, disk: &Handle, byte: ByteLock) -> io::Result<bool> {
        let object = id_of(disk);
        let state = lock(&self.0);
        let host = state.host_of(node);
        let file =
            state.files.get(&object).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        match byte {
            ByteLock::Take(_) if !file.write => Err(io::Error::from_raw_os_error(libc::EBADF)),
            ByteLock::Take(index) => Ok(file.disk.take_lock((host, index), object)),
            ByteLock::Test(index) => Ok(file.disk.is_free((host, index), object)),
            ByteLock::Release(index) => Ok(file.disk.release_lock((host, index), object)),
            ByteLock::Share => Ok(file.disk.share_whole(host, object)),
        }
    }

    fn listen(&mut self, node: NodeId, address: &str) -> io::Result<(Handle, String)> {
        let (object, local) = lock(&self.0).listen(node, address)?;
        Ok((Handle::Sim(SimHandle::new(object, &self.0)), local))
    }

    fn shutdown(&mut self, socket: &Handle) {
        lock(&self.0).shutdown(id_of(socket));
    }

    fn submit(&mut self, node: NodeId, token: Token, op: Op) {
        // Handles must be dropped while the state is not locked.
        let held = match op {
            Op::Read { disk, offset, buf, start } => {
                lock(&self.0)
                    .submit_io(token, DiskOp::Read { file: id_of(&disk), offset, buf, start });
                Some(disk)
            }
            Op::Write { disk, offset, buf, start } => {
                lock(&self.0)
                    .submit_io(token, DiskOp::Write { file: id_of(&disk), offset, buf, start });
                Some(disk)
            }
            Op::WriteParts { disk, offset, bufs, start } => {
                let (file, buf) = (id_of(&disk), IoBuf::joined(&bufs));
                lock(&self.0).submit_io(token, DiskOp::Write { file, offset, buf, start });
                Some(disk)
            }
            Op::Flush { disk } => {
                lock(&self.0).submit_io(token, DiskOp::Flush { file: id_of(&disk) });
                Some(disk)
            }
            Op::Discard { disk, offset, len } => {
                lock(&self.0).submit_io(token, DiskOp::Discard { file: id_of(&disk), offset, len });
                Some(disk)
            }
            Op::Recv { socket, bytes, max } => {
                lock(&self.0).recv(token, id_of(&socket), Arriving::Bytes(bytes), max);
                Some(socket)
            }
            Op::RecvInto { socket, buf, start, end } => {
                lock(&self.0).recv(token, id_of(&socket), Arriving::Buf(buf, start), end - start);
                Some(socket)
            }
            Op::SendParts { socket, parts, start } => {
                lock(&self.0).send_parts(token, id_of(&socket), &parts, start);
                Some(socket)
            }
            Op::Send { socket, bytes, start } => {
                lock(&self.0).send(token, id_of(&socket), bytes, start);
                Some(socket)
            }
            Op::Accept { listener } => {
                lock(&self.0).accept(token, id_of(&listener));
                Some(listener)
            }
            Op::Connect { target } => {
                lock(&self.0).connect(node, token, target.into_name());
                None
            }
            Op::Readable { file } => {
                lock(&self.0).refuse(token, Payload::None);
                Some(file)
            }
            Op::Fuse { file, entry } => {
                lock(&self.0).refuse(token, Payload::Fuse(entry));
                Some(file)
            }
            Op::Stop => {
                lock(&self.0).await_stop(node, token);
                None
            }
            Op::Job(job) => {
                job();
                lock(&self.0).end_plain(token, Ok(0), Payload::None);
                None
            }
        };
        drop(held);
    }

    fn cancel(&mut self, token: Token) {
        lock(&self.0).cancel(token);
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> io::Result<()> {
        let ended = {
            let mut state = lock(&self.0);
            state.advance(until);
            let ended = std::mem::take(&mut state.ended);
            for end in &ended {
                let moved = *end.result.as_ref().unwrap_or(&0xffff) as u64;
                state.note(u64::from(end.token) << 32 | moved);
            }
            ended
        };
        for Ended { token, result, payload } in ended {
            let payload = match payload {
                EndedPayload::Plain(payload) => payload,
                EndedPayload::Socket(object, peer) => {
                    Payload::Socket(Handle::Sim(SimHandle::new(object, &self.0)), peer)
                }
            };
            done.push(Completion::new(token, result, payload));
        }
        Ok(())
    }

    fn close(&mut self) {
        let dropped = lock(&self.0).finish_run();
        drop(dropped);
    }
}

//! Distributed operations of one directory over modelled logs and a modelled network, by the
//! shipped machine of `commitment` (003 §IV, F16 and F17).
//!
//! All operations are there at once. Each needs the lock of the directory, at the server that
//! coordinates, and one other server. An operation can be a batch of several creates.
//!
//! The paper gives the log's bandwidth and not the size of a record, and its simulator is not
//! described enough to tell whether writes wait for each other. So both are open here: the size of
//! a record is the one factor that is fitted, and [`Log`] is what a log may be.
//!
//! Invariant: time is virtual, and a run gives the same figures on every machine.

use std::collections::BTreeMap;

use commitment::{Action, Counts, Envelope, Guards, Outcome, Protocol, Record, Site, TxnId, Wait};
use serde::Serialize;
use types::{Epoch, ShardId};

/// Seconds of a method of an object (003 §IV).
const METHOD: f64 = 1e-6;
/// Seconds of a message (003 §IV).
const NETWORK: f64 = 100e-6;
/// Bytes of a log in a second (003 §IV).
const BANDWIDTH: f64 = 400_000.0;
/// Bytes that one create adds to a record.
pub const CREATE: f64 = 256.0;
/// A record that nobody waits for is written after so many seconds at the latest, as in the
/// product.
const PATIENCE: f64 = 1.0;

/// What a log may be.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub enum Log {
    /// Each record takes its own time, whatever else is written.
    Delay,
    /// A device for each server, which writes all records that wait as one.
    Own,
    /// One device for both; each write has the records of one server.
    Shared,
}

impl Log {
    /// All.
    pub const ALL: [Log; 3] = [Log::Delay, Log::Own, Log::Shared];

    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Log::Delay => "a delay",
            Log::Own => "a device each",
            Log::Shared => "one device",
        }
    }
}

/// What runs.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// By which protocol.
    pub protocol: Protocol,
    /// Transactions.
    pub transactions: u64,
    /// Creates in each.
    pub batch: u64,
    /// Bytes that a write takes at least.
    pub record: f64,
    /// What the log is.
    pub log: Log,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// Seconds until the last client was answered.
    pub seconds: f64,
    /// Creates in a second.
    pub rate: f64,
    /// What both servers counted.
    pub counts: Counts,
    /// Writes of devices.
    pub writes: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Deliver(Envelope),
    Planned(usize, TxnId),
    Written(usize, Vec<(TxnId, Record, Wait)>),
    /// A record has waited for long enough.
    Flush(usize),
}

struct Model {
    load: Load,
    now: f64,
    /// By time in nanoseconds, and then in the order in which they were made.
    events: BTreeMap<(u64, u64), Event>,
    made: u64,
    sites: [Site; 2],
    waiting: [Vec<(TxnId, Record, Wait)>; 2],
    /// Devices that write: one, or one of each server.
    busy: [bool; 2],
    /// Transactions that wait for the lock of the directory.
    clients: u64,
    locked: bool,
    answered: f64,
    writes: u64,
}

/// Runs `load` to its end.
pub fn run(load: Load) -> Ran {
    let site = |shard| Site::new(ShardId(shard), Epoch(1), Guards::ALL);
    let mut model = Model {
        load,
        now: 0.0,
        events: BTreeMap::new(),
        made: 0,
        sites: [site(0), site(1)],
        waiting: [Vec::new(), Vec::new()],
        busy: [false; 2],
        clients: load.transactions,
        locked: false,
        answered: 0.0,
        writes: 0,
    };
    for (here, there) in [(0, 1), (1, 0)] {
        model.sites[here].peer(ShardId(there), Epoch(1), &mut Vec::new());
    }
    model.begin();
    while let Some(((at, _), event)) = model.events.pop_first() {
        model.now = at as f64 / 1e9;
        model.happens(event);
    }
    let mut counts = Counts::default();
    for site in &model.sites {
        counts.add(&site.counts(load.protocol));
    }
    let creates = (load.transactions * load.batch) as f64;
    Ran { seconds: model.answered, rate: creates / model.answered, counts, writes: model.writes }
}

impl Model {
    fn after(&mut self, seconds: f64, event: Event) {
        let at = ((self.now + seconds) * 1e9).round() as u64;
        self.events.insert((at, self.made), event);
        self.made += 1;
    }

    /// The next transaction takes the lock, and plans its updates under it.
    fn begin(&mut self) {
        if self.locked || self.clients == 0 {
            return;
        }
        (self.locked, self.clients) = (true, self.clients - 1);
        self.now += METHOD * self.load.batch as f64;
        let mut actions = Vec::new();
        self.sites[0].begin(self.load.protocol, vec![ShardId(1)], &mut actions);
        self.carry_out(0, actions);
    }

    fn happens(&mut self, event: Event) {
        let mut actions = Vec::new();
        let at = match event {
            Event::Deliver(envelope) => {
                let at = usize::from(envelope.to.0);
                self.sites[at].receive(envelope, &mut actions);
                at
            }
            Event::Planned(at, id) => {
                self.sites[at].planned(id, true, &mut actions);
                at
            }
            Event::Written(at, records) => {
                let device = self.device(at);
                self.busy[device] = false;
                for (id, record, wait) in records {
                    if wait != Wait::Lazy {
                        self.sites[at].logged(id, record, &mut actions);
                    }
                }
                at
            }
            Event::Flush(at) => {
                for waiting in &mut self.waiting[at] {
                    waiting.2 = waiting.2.max(Wait::Patient);
                }
                self.write(at, true);
                at
            }
        };
        self.carry_out(at, actions);
        self.begin();
        for at in [0, 1] {
            self.write(at, false);
        }
    }

    fn carry_out(&mut self, at: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(envelope) => self.after(NETWORK, Event::Deliver(envelope)),
                Action::Plan(id) => {
                    self.after(METHOD * self.load.batch as f64, Event::Planned(at, id));
                }
                Action::Write { id, record, wait, .. } => self.record(at, id, record, wait),
                Action::Unlock(_) if at == 0 => self.locked = false,
                Action::Reply(_, outcome) => {
                    debug_assert_eq!(outcome, Outcome::Committed);
                    self.answered = self.now;
                }
                Action::Unlock(_) | Action::Suspect(..) => {}
            }
        }
    }

    fn record(&mut self, at: usize, id: TxnId, record: Record, wait: Wait) {
        if self.load.log == Log::Delay {
            let seconds = self.seconds(&[(id, record, wait)]);
            self.writes += 1;
            return self.after(seconds, Event::Written(at, vec![(id, record, wait)]));
        }
        self.waiting[at].push((id, record, wait));
        match wait {
            Wait::Now => self.write(at, false),
            Wait::Patient | Wait::Lazy => self.after(PATIENCE, Event::Flush(at)),
        }
    }

    fn device(&self, at: usize) -> usize {
        if self.load.log == Log::Shared { 0 } else { at }
    }

    /// Writes what waits at this server, if somebody waits for it and the device is free.
    fn write(&mut self, at: usize, even_patient: bool) {
        let least = if even_patient { Wait::Lazy } else { Wait::Now };
        let device = self.device(at);
        if self.busy[device] || !self.waiting[at].iter().any(|&(_, _, wait)| wait >= least) {
            return;
        }
        self.busy[device] = true;
        self.writes += 1;
        let records = std::mem::take(&mut self.waiting[at]);
        let seconds = self.seconds(&records);
        self.after(seconds, Event::Written(at, records));
    }

    /// How long one write of these records takes.
    fn seconds(&self, records: &[(TxnId, Record, Wait)]) -> f64 {
        let with = |record: &Record| matches!(record, Record::Prepared | Record::Committed);
        let redo = |record: &Record| {
            *record == Record::Started && self.load.protocol == Protocol::OnePhase
        };
        let holding = records.iter().filter(|(_, record, _)| with(record) || redo(record)).count();
        let bytes = holding as f64 * self.load.batch as f64 * CREATE;
        (bytes / self.load.record).ceil().max(1.0) * self.load.record / BANDWIDTH
    }
}

/// The size of a record, in bytes, with which PrN makes `rate` operations in a second.
pub fn fit(log: Log, rate: f64) -> f64 {
    let load = |record| Load {
        protocol: Protocol::PresumeNothing,
        transactions: 100,
        batch: 1,
        record,
        log,
    };
    let (mut low, mut high) = (CREATE, 1e6);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if run(load(middle)).rate > rate { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

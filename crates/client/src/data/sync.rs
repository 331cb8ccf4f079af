//! fsync: all who wait share the way.
//!
//! An fsync gives what is dirty to the devices at once. Then its file joins a batch of files
//! whose writes are on the same devices: they wait for their writes together, for one flush of
//! each device, and for one request to the server. One batch is made stable while the server
//! takes others into its log; those who come meanwhile gather for the next, so that the slower
//! a device flushes, the more files has each flush.
//!
//! Invariants:
//! - a file that waits here is marked as committing: nobody else commits it;
//! - nobody waits for a device that has nothing of its file: not in a batch, nor for one;
//! - a batch begins as soon as it may, and takes all who wait for its devices: nobody waits for
//!   more than the batches of these that were under way when it came, and its own;
//! - a file with much to write goes alone: no other waits for its writes; so does one of which
//!   something cannot be launched yet: on which device that will be is not known;
//! - a file whose commit fails in company goes once more alone, and its fault is its own.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use env::sync::{OneSender, oneshot};
use types::{Fault, PagId};

use super::commit::{COMMITS_MAX, DataContext, Purpose};
use super::file::{File, State};
use super::launch::RUN_BLOCKS;

/// Batches of the same devices at a time.
const BATCHES: usize = 2;
/// Writes that are launched in the expectation of an fsync before the next fsync comes.
const CREDIT: u32 = 16;
/// What one fsync of the expected kind adds.
const CREDIT_STEP: u32 = 4;

type Outcome = Result<(), Fault>;

/// The devices that the writes of a file are on, in their order.
pub(super) type Devices = Vec<PagId>;

/// The fsyncs that concern the same devices.
#[derive(Default)]
struct Group {
    waiting: VecDeque<(Rc<File>, OneSender<Outcome>)>,
    /// Batches under way.
    running: usize,
    /// One of them waits for its devices.
    preparing: bool,
}

/// The fsyncs of one client.
#[derive(Default)]
pub(super) struct Syncs {
    /// Those in which someone waits or a batch is under way.
    groups: RefCell<BTreeMap<Devices, Group>>,
    /// Lately each fsync followed a single write: so many writes are launched at once.
    credit: Cell<u32>,
}

impl File {
    /// Everything accepted before the call is durable when it ends. `true`: a synchronous
    /// compound was answered during the call.
    pub async fn fsync(self: &Rc<Self>, _datasync: bool) -> Result<bool, Fault> {
        self.learn();
        loop {
            self.claim_commit().await;
            self.launch_all();
            let alone = self.state.borrow().goes_alone() || !self.is_launched();
            let outcome = if alone {
                let outcomes = self.ctx.commit_files(std::slice::from_ref(self), Purpose::Sync);
                outcomes.await.into_iter().next().unwrap_or(Ok(()))
            } else {
                self.ctx.share(self).await
            };
            match outcome {
                // Paused meanwhile: once more.
                Err(Fault::Interrupted) => {}
                Err(_) if !alone && self.state.borrow().alone => {}
                outcome => return outcome.map(|()| true),
            }
        }
    }

    /// Is nothing dirty that is not launched? After `launch_all` that is what waits for writes or
    /// reads of the same blocks to end.
    pub(super) fn is_launched(&self) -> bool {
        self.state.borrow().dirty.is_empty()
    }

    /// Launches what is dirty; is all that is not stable on just these devices?
    pub(super) fn is_on(self: &Rc<Self>, devices: &Devices) -> bool {
        self.launch_all();
        self.is_launched() && self.state.borrow().devices() == *devices
    }

    /// Was it worth while, or would it have been, to launch the write before this fsync at once?
    fn learn(&self) {
        let credit = &self.ctx.syncs.credit;
        match std::mem::take(&mut self.state.borrow_mut().writes) {
            0 => {}
            1 => credit.set((credit.get() + CREDIT_STEP).min(CREDIT)),
            _ => credit.set(0),
        }
    }

    /// Shall a write that was just accepted go to the device at once, because an fsync seems to
    /// follow? Only if none is under way: more of them come in one.
    pub(super) fn fsync_expected(&self, state: &State) -> bool {
        let credit = &self.ctx.syncs.credit;
        let expected = credit.get() > 0 && state.writes == 1 && state.writing.is_empty();
        if expected {
            credit.set(credit.get() - 1);
        }
        expected
    }
}

impl State {
    /// Those that it waits for to become stable.
    pub(super) fn devices(&self) -> Devices {
        let flying = self.flights.values().flatten();
        let mut devices: Devices = self.stamps.keys().chain(flying).copied().collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Would others wait long for its writes, or for its commit in vain?
    fn goes_alone(&self) -> bool {
        let dirty = self.dirty.values().map(|run| run.blocks());
        let flying = self.writing.iter().map(|(start, end)| end - start);
        let much = dirty.chain(flying).scan(0, |sum, blocks| {
            *sum += blocks;
            Some(*sum)
        });
        self.alone || much.into_iter().any(|blocks| blocks > RUN_BLOCKS)
    }
}

impl DataContext {
    /// Commits a file that is marked as committing along with others that come at the same time.
    async fn share(self: &Rc<Self>, file: &Rc<File>) -> Outcome {
        let (sender, outcome) = oneshot();
        self.gather(file.clone(), sender);
        outcome.await.unwrap_or(Err(Fault::Unreachable))
    }

    fn gather(self: &Rc<Self>, file: Rc<File>, sender: OneSender<Outcome>) {
        let devices = file.state.borrow().devices();
        let mut groups = self.syncs.groups.borrow_mut();
        groups.entry(devices.clone()).or_default().waiting.push_back((file, sender));
        drop(groups);
        self.begin_batch(devices);
    }

    /// Begins a batch if someone waits for these devices and one may begin.
    fn begin_batch(self: &Rc<Self>, devices: Devices) {
        let mut groups = self.syncs.groups.borrow_mut();
        let Some(group) = groups.get_mut(&devices) else { return };
        if group.waiting.is_empty() {
            if group.running == 0 {
                groups.remove(&devices);
            }
        } else if !group.preparing && group.running < BATCHES {
            group.preparing = true;
            group.running += 1;
            let this = self.clone();
            self.env.spawn(async move { this.run_batch(devices).await });
        }
    }

    /// A batch got further; the next may begin.
    fn batch_did(self: &Rc<Self>, devices: &Devices, step: impl FnOnce(&mut Group)) {
        if let Some(group) = self.syncs.groups.borrow_mut().get_mut(devices) {
            step(group);
        }
        self.begin_batch(devices.clone());
    }

    async fn run_batch(self: Rc<Self>, devices: Devices) {
        let (files, senders) = self.take_batch(&devices);
        if files.is_empty() {
            return self.batch_did(&devices, |group| {
                group.preparing = false;
                group.running -= 1;
            });
        }
        let sealed = self.prepare(&files, Purpose::Sync).await;
        self.batch_did(&devices, |group| group.preparing = false);
        let outcomes = self.tell(&files, &sealed, Purpose::Sync).await;
        for (sender, outcome) in senders.into_iter().zip(outcomes) {
            sender.send(outcome);
        }
        self.batch_did(&devices, |group| group.running -= 1);
    }

    /// Who waits for these devices and has come to no other one since.
    fn take_batch(self: &Rc<Self>, devices: &Devices) -> (Vec<Rc<File>>, Vec<OneSender<Outcome>>) {
        let mut groups = self.syncs.groups.borrow_mut();
        let waiting = &mut groups.get_mut(devices).expect("a batch is under way").waiting;
        let count = waiting.len().min(COMMITS_MAX);
        let waiting: Vec<_> = waiting.drain(..count).collect();
        drop(groups);
        let (stays, leaves): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(file, _)| file.is_on(devices));
        for (file, sender) in leaves {
            if file.is_launched() {
                self.gather(file, sender);
            } else {
                self.sync_alone(file, sender);
            }
        }
        stays.into_iter().unzip()
    }

    fn sync_alone(self: &Rc<Self>, file: Rc<File>, sender: OneSender<Outcome>) {
        let this = self.clone();
        self.env.spawn(async move {
            let outcome = this.commit_files(&[file], Purpose::Sync).await.pop();
            sender.send(outcome.unwrap_or(Ok(())));
        });
    }
}

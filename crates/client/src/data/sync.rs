//! fsync: all who wait share the way.
//!
//! An fsync gives what is dirty to the devices at once. Then its file joins a batch: the files
//! of a batch wait for their writes together, for one flush of each device, and for one request
//! to the server. One batch is made stable while the server takes others into its log; those
//! who come meanwhile gather for the next, so that the slower a device flushes, the more files
//! has each flush.
//!
//! Invariants:
//! - a file that waits here is marked as committing: nobody else commits it;
//! - a batch begins as soon as it may, and takes all who wait: nobody waits for more than the
//!   batches that were under way when it came, and its own;
//! - a file with much to write goes alone: no other waits for its writes;
//! - a file whose commit fails in company goes once more alone, and its fault is its own.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use env::sync::{OneSender, oneshot};
use types::Fault;

use super::commit::{COMMITS_MAX, DataContext, Purpose};
use super::file::{File, State};
use super::launch::RUN_BLOCKS;

/// Batches at a time.
const BATCHES: usize = 2;
/// Writes that are launched in the expectation of an fsync before the next fsync comes.
const CREDIT: u32 = 16;
/// What one fsync of the expected kind adds.
const CREDIT_STEP: u32 = 4;

type Outcome = Result<(), Fault>;

/// The fsyncs of one client.
#[derive(Default)]
pub(super) struct Syncs {
    waiting: RefCell<VecDeque<(Rc<File>, OneSender<Outcome>)>>,
    /// Batches under way.
    running: Cell<usize>,
    /// One of them waits for its devices.
    preparing: Cell<bool>,
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
            let alone = self.state.borrow().goes_alone();
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
        self.syncs.waiting.borrow_mut().push_back((file.clone(), sender));
        self.begin_batch();
        outcome.await.unwrap_or(Err(Fault::Unreachable))
    }

    /// Begins a batch if someone waits and one may begin.
    fn begin_batch(self: &Rc<Self>) {
        let syncs = &self.syncs;
        let idle = !syncs.preparing.get() && syncs.running.get() < BATCHES;
        if idle && !syncs.waiting.borrow().is_empty() {
            syncs.preparing.set(true);
            syncs.running.set(syncs.running.get() + 1);
            let this = self.clone();
            self.env.spawn(async move { this.run_batch().await });
        }
    }

    async fn run_batch(self: Rc<Self>) {
        let syncs = &self.syncs;
        let (files, senders): (Vec<_>, Vec<_>) = {
            let mut waiting = syncs.waiting.borrow_mut();
            let count = waiting.len().min(COMMITS_MAX);
            waiting.drain(..count).unzip()
        };
        let sealed = self.prepare(&files, Purpose::Sync).await;
        syncs.preparing.set(false);
        self.begin_batch();
        let outcomes = self.tell(&files, &sealed, Purpose::Sync).await;
        for (sender, outcome) in senders.into_iter().zip(outcomes) {
            sender.send(outcome);
        }
        syncs.running.set(syncs.running.get() - 1);
        self.begin_batch();
    }
}

//! fsync: group commit of all waiting callers.
//!
//! An fsync submits dirty data to the devices at once. Then its file joins a batch of files whose
//! writes are on the same devices. These wait together for their writes, for one flush of each
//! device, and for one request to the server. One batch becomes stable while the server logs
//! others; callers that come meanwhile form the next batch. So the slower a device flushes, the
//! more files share a flush.
//!
//! Invariants:
//! - a file that waits here is marked as committing: nobody else commits it;
//! - no caller waits for a device that has nothing of its file, neither in a batch nor for one;
//! - a batch begins as soon as it may, and takes all callers that wait for its devices: a caller
//!   waits for the batches of these devices that were in progress when it came, and for its own;
//! - a file with much to write is committed alone, so that no other waits for its writes; so is a
//!   file with runs that cannot be launched yet, because their devices are not known;
//! - a file whose commit fails in a batch is committed once more alone, so that the error is its
//!   own.

use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::{OneSender, oneshot};
use types::Fault;

use super::commit::BATCH;
use super::context::{COMMITS_MAX, DataContext, FLUSH_TRIES, Purpose, RETRY, is_transient};
use super::file::{File, FileState};
use super::launch::RUN_BLOCKS;
use super::sync_groups::{Devices, Outcome, SyncGroup};

/// Concurrent batches of the same devices.
const BATCHES: usize = 2;
/// Writes that may be launched early, in expectation of an fsync, before the next fsync comes.
const CREDIT: u32 = 16;
/// Credit for one fsync of the expected kind.
const CREDIT_STEP: u32 = 4;

impl File {
    /// See [`crate::boundary::FileContent::commit_accepted`].
    pub(super) async fn commit_accepted(self: &Rc<Self>) -> Result<(), Fault> {
        if self.acknowledge_loss() {
            return Err(Fault::Io);
        }
        for tries in 0.. {
            if self.is_settled() {
                break;
            }
            match self.commit_alone().await {
                Err(fault) if is_transient(fault) && tries < FLUSH_TRIES => {
                    self.ctx.env.sleep(RETRY).await;
                }
                outcome => return outcome,
            }
        }
        Ok(())
    }

    /// See [`crate::boundary::FileContent::fsync`].
    pub(super) async fn fsync(self: &Rc<Self>, _datasync: bool) -> Result<bool, Fault> {
        self.update_prediction();
        loop {
            self.claim_commit().await;
            self.launch_all();
            let alone = self.state.borrow().must_sync_alone() || !self.is_launched();
            let outcome = if alone {
                let outcomes = self.ctx.commit_files(std::slice::from_ref(self), Purpose::Sync);
                outcomes.await.into_iter().next().unwrap_or(Ok(()))
            } else {
                self.ctx.fsync_in_batch(self).await
            };
            match outcome {
                // The file was paused: once more.
                Err(Fault::Interrupted) => {}
                Err(_) if !alone && self.state.borrow().alone => {}
                outcome => return outcome.map(|()| true),
            }
        }
    }

    /// Is every dirty run launched? Runs that are left after `launch_all` wait for reads or writes
    /// of the same blocks to end.
    pub(super) fn is_launched(&self) -> bool {
        self.state.borrow().dirty.is_empty()
    }

    /// Launches dirty runs; is everything that is not stable on exactly these devices?
    pub(super) fn is_only_on(self: &Rc<Self>, devices: &Devices) -> bool {
        self.launch_all();
        self.is_launched() && self.state.borrow().devices() == *devices
    }

    /// Learns from this fsync whether launching the write before it at once pays off.
    fn update_prediction(&self) {
        let credit = &self.ctx.syncs.credit;
        match std::mem::take(&mut self.state.borrow_mut().writes) {
            0 => {}
            1 => credit.set((credit.get() + CREDIT_STEP).min(CREDIT)),
            _ => credit.set(0),
        }
    }

    /// Should a write that was just accepted be launched at once, because an fsync will probably
    /// follow? Not if one is in flight: several writes are better launched together.
    pub(super) fn fsync_expected(&self, state: &FileState) -> bool {
        let credit = &self.ctx.syncs.credit;
        let expected = credit.get() > 0 && state.writes == 1 && state.writing.is_empty();
        if expected {
            credit.set(credit.get() - 1);
        }
        expected
    }
}

impl FileState {
    /// The devices with writes of this file that are not stable.
    pub(super) fn devices(&self) -> Devices {
        let in_flight = self.flights.values().flatten();
        let mut devices: Devices = self.stamps.keys().chain(in_flight).copied().collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Would others in a batch wait long for this file's writes, or for a commit that fails?
    fn must_sync_alone(&self) -> bool {
        let dirty = self.dirty.values().map(|run| run.blocks());
        let in_flight = self.writing.iter().map(|(start, end)| end - start);
        let much = dirty.chain(in_flight).scan(0, |sum, blocks| {
            *sum += blocks;
            Some(*sum)
        });
        self.alone || much.into_iter().any(|blocks| blocks > RUN_BLOCKS)
    }
}

impl DataContext {
    /// See [`crate::boundary::DataHalf::sync_all`].
    pub(super) async fn sync_all(self: &Rc<Self>) -> Result<(), Fault> {
        let mut groups: BTreeMap<Devices, Vec<Rc<File>>> = BTreeMap::new();
        let mut parts: Vec<Vec<Rc<File>>> = Vec::new();
        for file in self.unsettled() {
            file.launch_all();
            if file.is_launched() {
                let devices = file.state.borrow().devices();
                groups.entry(devices).or_default().push(file);
            } else {
                parts.push(vec![file]);
            }
        }
        parts.extend(groups.into_values());
        // Files on a device that does not answer hold up no others.
        let mut syncs = Vec::with_capacity(parts.len());
        for files in parts {
            let this = self.clone();
            syncs.push(self.env.spawn_join(async move { this.sync_files(&files).await }));
        }
        let mut result = Ok(());
        for sync in syncs {
            result = result.and(sync.await);
        }
        result
    }

    async fn sync_files(self: &Rc<Self>, files: &[Rc<File>]) -> Result<(), Fault> {
        let mut result = Ok(());
        for batch in files.chunks(BATCH) {
            let mut claimed = Vec::with_capacity(batch.len());
            // In the order of inode numbers, so that two calls cannot deadlock.
            for file in batch {
                if !file.is_settled() {
                    file.claim_commit().await;
                    claimed.push(file.clone());
                }
            }
            let outcomes = self.commit_files(&claimed, Purpose::Flush).await;
            for (file, outcome) in claimed.iter().zip(outcomes) {
                let again = outcome == Err(Fault::Interrupted) || file.state.borrow().alone;
                let outcome = if again { file.commit_alone().await } else { outcome };
                result = result.and(outcome);
            }
        }
        result
    }

    /// Commits a file that is marked as committing together with others.
    async fn fsync_in_batch(self: &Rc<Self>, file: &Rc<File>) -> Outcome {
        let (sender, outcome) = oneshot();
        self.join_group(file.clone(), sender);
        outcome.await.unwrap_or(Err(Fault::Unreachable))
    }

    fn join_group(self: &Rc<Self>, file: Rc<File>, sender: OneSender<Outcome>) {
        let devices = file.state.borrow().devices();
        let mut groups = self.syncs.groups.borrow_mut();
        groups.entry(devices.clone()).or_default().waiting.push_back((file, sender));
        drop(groups);
        self.begin_batch(devices);
    }

    /// Begins a batch if callers wait for these devices and another batch may run.
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

    /// A batch has made progress; the next one may begin.
    fn batch_progress(self: &Rc<Self>, devices: &Devices, step: impl FnOnce(&mut SyncGroup)) {
        if let Some(group) = self.syncs.groups.borrow_mut().get_mut(devices) {
            step(group);
        }
        self.begin_batch(devices.clone());
    }

    async fn run_batch(self: Rc<Self>, devices: Devices) {
        let (files, senders) = self.take_batch(&devices);
        if files.is_empty() {
            return self.batch_progress(&devices, |group| {
                group.preparing = false;
                group.running -= 1;
            });
        }
        let sealed = self.prepare_commit(&files, Purpose::Sync).await;
        self.batch_progress(&devices, |group| group.preparing = false);
        let outcomes = self.finish_commit(&files, &sealed, Purpose::Sync).await;
        for (sender, outcome) in senders.into_iter().zip(outcomes) {
            sender.send(outcome);
        }
        self.batch_progress(&devices, |group| group.running -= 1);
    }

    /// The waiting callers whose files still have writes on exactly these devices.
    fn take_batch(self: &Rc<Self>, devices: &Devices) -> (Vec<Rc<File>>, Vec<OneSender<Outcome>>) {
        let mut groups = self.syncs.groups.borrow_mut();
        let waiting = &mut groups.get_mut(devices).expect("a batch is in progress").waiting;
        let count = waiting.len().min(COMMITS_MAX);
        let waiting: Vec<_> = waiting.drain(..count).collect();
        drop(groups);
        let (stays, leaves): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(file, _)| file.is_only_on(devices));
        for (file, sender) in leaves {
            if file.is_launched() {
                self.join_group(file, sender);
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

//! fsync: group commit of all waiting callers.
//!
//! An fsync submits dirty data to the devices at once. Then its file joins a batch of files whose
//! writes are on the same devices ([`super::pipeline`]). These wait together for their writes, for
//! one flush of each device, and for one request to the server. One batch becomes stable while the
//! server logs others; callers that come meanwhile form the next batch. So the slower a device
//! flushes, the more files share a flush.
//!
//! Invariants:
//! - no caller waits for a device that has nothing of its file, neither in a batch nor for one;
//! - a caller waits for the batches of these devices that were in progress when it came, and for
//!   its own;
//! - a file with much to write is committed apart, so that no other waits for its writes.

use std::collections::BTreeMap;
use std::rc::Rc;

use types::{Fault, ServerId};

use super::context::{DataContext, FLUSH_TRIES, Purpose, RETRY, is_transient};
use super::file::{File, FileState};
use super::launch::RUN_BLOCKS;
use super::pipeline::BATCH;
use super::stamps::Devices;

/// Writes that may be launched early, in expectation of an fsync, before the next fsync comes.
const CREDIT: u32 = 16;
/// Credit for one fsync of the expected kind.
const CREDIT_STEP: u32 = 4;

impl File {
    /// See [`crate::boundary::FileContent::commit_accepted`].
    pub(super) async fn commit_accepted(self: &Rc<Self>) -> Result<(), Fault> {
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
                // The file was paused, or failed beside others: once more.
                Err(Fault::Interrupted) => {}
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

    /// Would others in a batch wait long for this file's writes?
    pub(super) fn has_much_to_write(&self) -> bool {
        self.state.borrow().has_much_to_write()
    }

    /// Learns from this fsync whether launching the write before it at once pays off.
    fn update_prediction(&self) {
        let credit = &self.ctx.fsync_credit;
        match std::mem::take(&mut self.state.borrow_mut().writes) {
            0 => {}
            1 => credit.set((credit.get() + CREDIT_STEP).min(CREDIT)),
            _ => credit.set(0),
        }
    }

    /// Should a write that was just accepted be launched at once, because an fsync will probably
    /// follow? Not if one is in flight: several writes are better launched together.
    pub(super) fn fsync_expected(&self, state: &FileState) -> bool {
        let credit = &self.ctx.fsync_credit;
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
        self.alone || self.has_much_to_write()
    }

    /// Would others in a batch wait long for this file's writes?
    fn has_much_to_write(&self) -> bool {
        let dirty = self.dirty.values().map(|run| run.blocks());
        let in_flight = self.writing.iter().map(|(start, end)| end - start);
        let much = dirty.chain(in_flight).scan(0, |sum, blocks| {
            *sum += blocks;
            Some(*sum)
        });
        much.into_iter().any(|blocks| blocks > RUN_BLOCKS)
    }
}

impl DataContext {
    /// See [`crate::boundary::DataHalf::sync_all`].
    pub(super) async fn sync_all(self: &Rc<Self>) -> Result<(), Fault> {
        let mut groups: BTreeMap<(ServerId, Devices), Vec<Rc<File>>> = BTreeMap::new();
        let mut parts: Vec<Vec<Rc<File>>> = Vec::new();
        for file in self.unsettled() {
            file.launch_all();
            if file.is_launched() {
                let devices = file.state.borrow().devices();
                groups.entry((file.server(), devices)).or_default().push(file);
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
                let again = outcome == Err(Fault::Interrupted);
                let outcome = if again { file.commit_alone().await } else { outcome };
                result = result.and(outcome);
            }
        }
        result
    }
}

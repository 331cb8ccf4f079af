//! The commit of files: their data is written, made stable, and committed at the server.
//!
//! A commit of one file seals what was accepted so far and waits until the sealed writes have
//! completed. It makes them stable with one flush that all files of a batch share. Then it sends
//! the sealed edits with the size and times of that moment. Later changes belong to the next
//! commit. [`super::pipeline`] decides when that is.
//!
//! Invariants:
//! - a file is in at most one commit at a time (`committing`), and ages at most once (`queued`);
//!   every file that is not clean is in `active`;
//! - an edit leaves `edits` only to be sent, and returns to the front if the server can take it
//!   later; an edit that took effect is not sent again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use env::Env;
use env::sync::Notify;
use proto::mds::{Edit, Leased};
use types::limits::{BLOCK_U64, COMMIT_EDITS_MAX};
use types::{Bug, ClientId, Duration, Fault, Instant, SegmentState, ServerId, Uuid, planted};

use super::budget::Budget;
use super::class::Class;
use super::context::{DataContext, FLUSH_TRIES, Purpose, RETRY, is_transient, refusal_text};
use super::device::Stability;
use super::disks::{DataConfig, Disks};
use super::file::{File, PendingEdit};
use super::inline_state::{drop_superseded, drop_superseded_sealed};
use super::pipeline::{COMMITS_MAX, Pipeline};
use super::schedule::commit_aged;
use super::sealed::Sealed;
use super::session_numbers::SessionNumbers;
use super::stamps::Stamps;
use super::transfers::Transfers;

use crate::boundary::{Commit, Offer, Refusal, Rpc};

/// Tries if the server has no room for edits that refer to data blocks, which may use the reserve
/// for removals: 2 min. Room comes when removed files are freed, which may wait for a client's
/// lease to end, and for its quarantine.
const ROOM_TRIES: u32 = 24 * FLUSH_TRIES;

impl DataContext {
    /// See [`crate::boundary::DataHalf::open`].
    pub(super) async fn open(
        env: Env,
        config: DataConfig,
        fs: Uuid,
        offers: Vec<Offer>,
        rpc: Rc<dyn Rpc>,
    ) -> Result<Rc<DataContext>, String> {
        let logged = rpc.clone();
        let log = Rc::new(move |text: &str| logged.log(text));
        let disks = Disks::open(&env, &config, fs, &offers, log).await?;
        let servers = offers.iter().map(|offer| offer.server);
        let pipeline = || RefCell::new(Pipeline::new(&config.commit));
        let of_all = |server| Rc::new(Class::new(server, Vec::new(), config.allocation));
        let ctx = Rc::new(DataContext {
            env: env.clone(),
            rpc,
            waits: config.waits,
            disks,
            classes: RefCell::new(servers.clone().map(of_all).collect()),
            allocation: config.allocation,
            budget: Budget::new(config.dirty_max as u64),
            transfers: Transfers::default(),
            unlaunched: RefCell::default(),
            unlaunched_wake: Notify::new(),
            fsync_credit: Cell::new(0),
            unreported_losses: Cell::new(0),
            flights: Cell::new(0),
            sessions: SessionNumbers::new(servers.clone()),
            dirty_max: config.dirty_max as u64,
            on_edit: config.on_edit,
            pipelines: servers.map(|server| (server, pipeline())).collect(),
            commit: config.commit,
            active: RefCell::default(),
            unmapping: Cell::new(false),
            wake: Notify::new(),
        });
        env.spawn(commit_aged(env.clone(), Rc::downgrade(&ctx)));
        ctx.watch_devices();
        Ok(ctx)
    }

    /// See [`crate::boundary::DataHalf::release_files`].
    pub(super) fn release_files(&self) {
        self.disks.devices().for_each(|device| device.abandon_target());
        let files = self.active.take();
        drop(files);
        self.pipelines.values().for_each(|pipeline| pipeline.borrow_mut().clear());
    }

    /// See [`crate::boundary::DataHalf::evicted`].
    pub(super) fn evicted(self: &Rc<Self>, server: ServerId, new_client: ClientId) {
        self.sessions.lost(server);
        self.forget_space(server);
        let files: Vec<Rc<File>> = self.active.borrow().values().cloned().collect();
        for file in files.into_iter().filter(|file| file.server() == server) {
            file.drop_all(true);
        }
        self.disks.opening(server).set_client(new_client);
        let this = self.clone();
        self.env.spawn(async move {
            for device in this.disks.devices().filter(|device| device.server == server) {
                if let Err(text) = device.lock_client(new_client).await {
                    this.rpc.log(&text);
                }
            }
        });
    }

    /// The files that are not settled.
    pub(super) fn unsettled(&self) -> Vec<Rc<File>> {
        let active = self.active.borrow();
        active.values().filter(|file| !file.is_settled()).cloned().collect()
    }

    /// See [`crate::boundary::DataHalf::commit_unmapped`].
    pub(super) async fn commit_unmapped(self: &Rc<Self>, patience: Duration) {
        let unmaps = |file: &&Rc<File>| file.state.borrow().unmaps();
        let files: Vec<Rc<File>> = self.active.borrow().values().filter(unmaps).cloned().collect();
        if files.is_empty() || self.unmapping.replace(true) {
            return;
        }
        let this = self.clone();
        let commits = self.env.spawn_join(async move {
            for file in files {
                let _ = file.commit_alone().await;
            }
            this.unmapping.set(false);
        });
        self.env.timeout(patience, commits).await;
    }

    /// A writer waits for budget: launches everything dirty, unless writes in flight will release
    /// some.
    pub(super) fn launch_for_room(&self) {
        // Inline data releases its share when it is committed.
        self.wake.notify_all();
        if self.disks.is_room_coming() {
            return;
        }
        let files: Vec<Rc<File>> = self.active.borrow().values().cloned().collect();
        for file in files {
            file.launch_all();
        }
    }

    /// The file has nothing to commit any more.
    pub(super) fn deactivate(&self, file: &Rc<File>) {
        let mut active = self.active.borrow_mut();
        if active.get(&file.ino).is_some_and(|known| Rc::ptr_eq(known, file)) {
            active.remove(&file.ino);
        }
    }

    /// The file will never be committed again.
    pub(super) fn forget_file(&self, file: &Rc<File>) {
        self.deactivate(file);
        self.pipeline(file.server()).borrow_mut().forget(file);
    }

    /// Commits files that the caller has marked as `committing`, and clears the mark.
    pub(super) async fn commit_files(
        self: &Rc<Self>,
        files: &[Rc<File>],
        purpose: Purpose,
    ) -> Vec<Result<(), Fault>> {
        let sealed = self.prepare_commit(files, purpose).await;
        self.finish_commit(files, &sealed, purpose).await
    }

    /// First half of a commit: makes the devices have what was accepted so far, and makes it stable
    /// if edits refer to it.
    pub(super) async fn prepare_commit(
        self: &Rc<Self>,
        files: &[Rc<File>],
        purpose: Purpose,
    ) -> Vec<Option<Sealed>> {
        let begun = self.env.now();
        let errors: Vec<u64> = files.iter().map(|file| file.errors.get()).collect();
        let marks: Vec<u64> = files.iter().map(|file| file.launch_all()).collect();
        let batches: Vec<_> = files.iter().map(|file| file.state.borrow().batch).collect();
        let mut sealed = Vec::with_capacity(files.len());
        for (((file, mark), errors), batch) in files.iter().zip(marks).zip(errors).zip(batches) {
            sealed.push(file.seal(mark, errors, begun, batch).await);
        }
        for (file, sealed) in files.iter().zip(&sealed) {
            if let Some(sealed) = sealed {
                file.sealed_writes_ended(sealed).await;
            }
        }
        self.make_stable(files, &sealed, purpose).await;
        sealed
    }

    /// Second half of a commit: sends it to the server.
    pub(super) async fn finish_commit(
        self: &Rc<Self>,
        files: &[Rc<File>],
        sealed: &[Option<Sealed>],
        purpose: Purpose,
    ) -> Vec<Result<(), Fault>> {
        let results = self.send(files, sealed, purpose).await;
        for ((file, sealed), result) in files.iter().zip(sealed).zip(&results) {
            let state = &mut *file.state.borrow_mut();
            state.committing = false;
            state.has_left &= result.is_err();
            state.inline_answered();
            state.note_saved(sealed.as_ref().filter(|_| result.is_ok()).map(|s| s.begun));
            let settled = state.is_settled();
            if settled {
                self.deactivate(file);
            }
            if settled && !state.queued {
                state.writes = 0;
                state.unsettled.clear();
                if purpose == Purpose::Background {
                    state.tail = None;
                }
            }
        }
        for file in files {
            file.launch_punches(&mut file.state.borrow_mut());
            file.changed.notify_all();
            if !file.is_settled() {
                file.enqueue();
            }
        }
        results
    }

    /// Flushes all these devices at the same time. The files are of one server.
    pub(super) async fn flush_past(&self, files: &[Rc<File>], all: &Stamps) {
        let Some(server) = files.first().map(|file| file.server()) else { return };
        let mut flushes = Vec::new();
        for (&pag, &(_, high)) in all {
            if let Ok(disk) = self.disks.get(server, pag) {
                let disk = disk.clone();
                flushes.push(
                    self.env.spawn_join(async move { disk.device.flush_past((high, high)).await }),
                );
            }
        }
        for flush in flushes {
            flush.await;
        }
    }

    /// Flushes the devices of the sealed writes. Fails the files whose writes are lost.
    async fn make_stable(
        self: &Rc<Self>,
        files: &[Rc<File>],
        sealed: &[Option<Sealed>],
        purpose: Purpose,
    ) {
        let mut needed: Vec<(usize, Option<u64>, Stamps)> = Vec::new();
        let mut all: Stamps = BTreeMap::new();
        let now = self.env.now();
        for (index, (file, sealed)) in files.iter().zip(sealed).enumerate() {
            let Some(sealed) = sealed else { continue };
            let mut state = file.state.borrow_mut();
            if state.batch != sealed.batch {
                continue;
            }
            let refers_to_data = state
                .edits
                .iter()
                .take_while(|pending| pending.seq < sealed.edits_below)
                .any(|pending| refers_to_data(&pending.edit));
            // A block may hold bytes behind the old end that were never in the file; only zeros
            // written in place hide them, and these must be stable first.
            let grows = sealed.size.is_some_and(|size| size > state.server_size);
            // Writes in place are flushed by age, or when there is nothing else to commit.
            let since = state.unsaved_since.map_or(now, |since| since.min(state.stamped_since));
            let young = now.since(since) + self.commit.early() < self.commit.due();
            let waits = purpose == Purpose::Background && !refers_to_data && !grows;
            if waits && young && state.has_uncommitted() {
                continue;
            }
            if planted(Bug::InPlaceNotFlushed) && !refers_to_data {
                state.stamps.clear();
            }
            for (&pag, &(low, high)) in &state.stamps {
                let entry = all.entry(pag).or_insert((low, high));
                *entry = (entry.0.min(low), entry.1.max(high));
            }
            needed.push((index, sealed.batch, state.stamps.clone()));
        }
        self.flush_past(files, &all).await;
        for (index, batch, stamps) in needed {
            let file = &files[index];
            let mut state = file.state.borrow_mut();
            if state.batch != batch {
                // Its stamps are for its next commit, if there is one.
                continue;
            }
            let mut lost = false;
            for (pag, stamps) in stamps {
                let stable = self
                    .disks
                    .get(file.server(), pag)
                    .map_or(Stability::Lost, |disk| disk.device.stability(stamps, file.server()));
                lost |= stable != Stability::Yes;
                let known = state.stamps.get(&pag).copied();
                match known {
                    Some((_, high)) if high > stamps.1 => {
                        state.stamps.insert(pag, (stamps.1, high));
                        state.stamped_since = now;
                    }
                    _ => {
                        state.stamps.remove(&pag);
                    }
                }
            }
            if lost {
                file.fail_range(&mut state, 0, u64::MAX, "the device could not make it stable");
            }
        }
    }

    /// One request. How long the server takes for one that need not be durable tells the degree. If
    /// nobody waits for the files, or a log write anyway, it refills a pool.
    async fn ask(
        self: &Rc<Self>,
        commits: Vec<Commit>,
        (purpose, sync): (Purpose, bool),
    ) -> Vec<Result<Leased, Refusal>> {
        let rider =
            (sync || purpose == Purpose::Background).then(|| self.rider(&commits)).flatten();
        if let Some(rider) = rider {
            return self.commit_with(rider, (commits, sync)).await;
        }
        let asked = self.env.now();
        let server = commits.first().map(|commit| self.rpc.server_of(commit.ino));
        let answers = self.rpc.commit(commits, sync).await;
        if let Some(server) = server.filter(|_| !sync && answers.iter().any(Result::is_ok)) {
            let now = self.env.now();
            self.pipeline(server).borrow_mut().answered(now, now.since(asked), self.rpc.load());
        }
        answers
    }

    /// Makes durable what the servers of these files have answered.
    async fn sync_servers(&self, files: &[Rc<File>], results: &mut [Result<(), Fault>]) {
        let servers: BTreeSet<ServerId> = files.iter().map(|file| file.server()).collect();
        for server in servers {
            let Err(fault) = self.rpc.sync(server).await else { continue };
            for (file, result) in files.iter().zip(results.iter_mut()) {
                if file.server() == server && result.is_ok() {
                    *result = Err(fault);
                }
            }
        }
    }

    /// Sends sealed commits, those of several files in one compound.
    async fn send(
        self: &Rc<Self>,
        files: &[Rc<File>],
        sealed: &[Option<Sealed>],
        purpose: Purpose,
    ) -> Vec<Result<(), Fault>> {
        let mut results: Vec<Result<(), Fault>> = vec![Ok(()); files.len()];
        let commits = take_all_sealed(files, sealed, &mut results);
        let sync = purpose == Purpose::Sync;
        if commits.is_empty() {
            if sync {
                self.sync_servers(files, &mut results).await;
                fail_evicted(files, sealed, &mut results);
            }
            return results;
        }
        // Later edits of a file whose edit failed would be out of order: they are retained as well.
        let mut retained: BTreeMap<usize, (Fault, Vec<Edit>)> = BTreeMap::new();
        let mut answered: Vec<usize> = Vec::new();
        // The last request to a server makes durable what it has answered before.
        let several = files.iter().any(|file| file.server() != files[0].server());
        let mut remaining = commits.into_iter().peekable();
        while remaining.peek().is_some() {
            let group: Vec<(usize, Commit)> = remaining.by_ref().take(COMMITS_MAX).collect();
            let last = remaining.peek().is_none();
            let (held, group): (Vec<_>, Vec<_>) =
                group.into_iter().partition(|(index, _)| retained.contains_key(index));
            for (index, commit) in held {
                retained.get_mut(&index).expect("partitioned").1.extend(commit.edits);
            }
            let bodies = group.iter().map(|(_, commit)| commit.clone()).collect();
            let mut answers =
                self.ask(bodies, (purpose, sync && (last || several))).await.into_iter();
            for (index, commit) in group {
                let answer = answers.next().unwrap_or(Err(Fault::Protocol.into()));
                let sealed = sealed[index].as_ref().expect("it was sent");
                match (answer, retained.get_mut(&index)) {
                    (_, Some((_, edits))) => edits.extend(commit.edits),
                    (Ok(_), None) => {
                        files[index].record_applied(sealed, &commit, None);
                        answered.push(index);
                    }
                    (Err(Refusal { fault, done }), None) => {
                        files[index].record_applied(sealed, &commit, Some(done));
                        retained.insert(index, (fault, files[index].unapplied_edits(commit, done)));
                    }
                }
            }
        }
        answered.dedup();
        let batched = files.len() > 1;
        for index in answered {
            if !retained.contains_key(&index) {
                files[index].committed(sealed[index].as_ref().expect("it was sent"));
            }
        }
        for (index, (fault, edits)) in retained {
            let sealed = sealed[index].as_ref().expect("it was sent");
            results[index] = files[index].refused(sealed, fault, edits, batched);
        }
        if sync {
            fail_evicted(files, sealed, &mut results);
        }
        results
    }
}

/// Takes the sealed edits out of all files. Fills in `results` of those that have nothing to send
/// because they failed.
fn take_all_sealed(
    files: &[Rc<File>],
    sealed: &[Option<Sealed>],
    results: &mut [Result<(), Fault>],
) -> Vec<(usize, Commit)> {
    let mut commits: Vec<(usize, Commit)> = Vec::new();
    for (index, (file, sealed)) in files.iter().zip(sealed).enumerate() {
        match sealed {
            Some(sealed) => {
                let parts = file.take_sealed(sealed);
                commits.extend(parts.into_iter().map(|part| (index, part)));
                if file.errors.get() != sealed.errors {
                    results[index] = Err(Fault::Io);
                }
            }
            None => results[index] = Err(Fault::Interrupted),
        }
    }
    commits
}

/// A commit of a lost session is not durable, even if it was answered.
fn fail_evicted(files: &[Rc<File>], sealed: &[Option<Sealed>], results: &mut [Result<(), Fault>]) {
    for ((file, sealed), result) in files.iter().zip(sealed).zip(results) {
        let generation = file.state.borrow().generation;
        if result.is_ok() && sealed.as_ref().is_some_and(|s| s.generation != generation) {
            *result = Err(Fault::Evicted);
        }
    }
}

fn refers_to_data(edit: &Edit) -> bool {
    match edit {
        Edit::Map { segment } => segment.state == SegmentState::Written,
        Edit::Written { .. } => true,
        Edit::Unmap { .. } | Edit::Content { .. } => false,
    }
}

impl File {
    /// See [`crate::boundary::FileContent::flush`].
    pub(super) async fn flush(self: &Rc<Self>) -> Result<(), Fault> {
        let mut result = Ok(());
        for tries in 0.. {
            if self.is_settled() {
                break;
            }
            match self.commit_alone().await {
                Err(fault) if is_transient(fault) && tries < self.flush_tries(fault) => {
                    self.ctx.env.sleep(RETRY).await;
                }
                Err(fault) if is_transient(fault) => {
                    self.discard_unsent(fault);
                    return result.and(Err(fault));
                }
                outcome => result = result.and(outcome),
            }
        }
        result
    }

    /// How often a recall retries a commit that fails with `fault`.
    pub(super) fn flush_tries(&self, fault: Fault) -> u32 {
        let no_room = fault == Fault::NoSpace && !self.state.borrow().has_pending_inline();
        if no_room { ROOM_TRIES } else { FLUSH_TRIES }
    }

    /// The server has refused a commit for as long as other clients can be kept waiting.
    pub(super) fn discard_unsent(self: &Rc<Self>, fault: Fault) {
        self.discard_uncommitted(refusal_text(fault));
    }

    /// Waits until every dirty run with a sequence number below `mark` is launched, and every hole
    /// below the size, and seals the commit. `None`: the file is paused, or has left the batch.
    async fn seal(
        self: &Rc<Self>,
        mark: u64,
        errors: u64,
        begun: Instant,
        batch: Option<u64>,
    ) -> Option<Sealed> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.borrow_mut();
                if state.paused || state.batch != batch {
                    return None;
                }
                self.launch_punches(&mut state);
                let dirty = state.dirty.values().any(|run| run.seq < mark);
                if !dirty && !state.has_punches_to_launch() {
                    state.sealed_below = state.next_edit;
                    state.sealed_flights = state.next_flight;
                    state.disk_size = state.launched_size();
                    // Inline data raises the size at the server unless the commit states one.
                    let changed =
                        state.disk_size != state.server_size || state.has_pending_inline();
                    return Some(Sealed {
                        edits_below: state.next_edit,
                        size: changed.then_some(state.disk_size),
                        shrinks: state.disk_size < state.server_size,
                        tail_zero: state.tail_zero && state.disk_size == state.size
                            || state.disk_size.is_multiple_of(BLOCK_U64),
                        mtime: state.mtime,
                        ctime: state.ctime,
                        generation: state.generation,
                        batch,
                        errors,
                        begun,
                    });
                }
            }
            changed.await;
        }
    }

    /// Waits until the writes launched before the seal have ended, or the file has left the batch.
    async fn sealed_writes_ended(&self, sealed: &Sealed) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.borrow();
                let first = state.flights.first_key_value();
                let ended = first.is_none_or(|(&first, _)| first >= state.sealed_flights);
                if ended || state.batch != sealed.batch {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Takes the sealed edits out of `edits`, as commits of bounded size.
    fn take_sealed(&self, sealed: &Sealed) -> Vec<Commit> {
        let mut state = self.state.borrow_mut();
        if state.generation != sealed.generation {
            return Vec::new();
        }
        let mut taken = VecDeque::new();
        while state.edits.front().is_some_and(|pending| pending.seq < sealed.edits_below) {
            taken.extend(state.edits.pop_front());
        }
        drop_superseded_sealed(&mut taken);
        let edits: Vec<Edit> = taken.into_iter().map(|pending| pending.edit).collect();
        let times = sealed.mtime.is_some() || sealed.ctime.is_some();
        if edits.is_empty() && sealed.size.is_none() && !times {
            return Vec::new();
        }
        let mut parts: Vec<Commit> = Vec::new();
        let mut edits = edits.into_iter();
        loop {
            let part: Vec<Edit> = edits.by_ref().take(COMMIT_EDITS_MAX).collect();
            if part.is_empty() && !parts.is_empty() {
                break;
            }
            let (size, mtime, ctime) = (None, None, None);
            let (ino, edits, merge) = (self.ino, part, state.holds_ranges());
            parts.push(Commit { ino, edits, size, mtime, ctime, merge, tail_zero: false });
        }
        // The first part carries a smaller size, so that no block in between is missing; the last
        // part carries a larger one, when all its blocks are there.
        let at = if sealed.shrinks { 0 } else { parts.len() - 1 };
        parts[at].size = sealed.size;
        let content = |edit: &Edit| matches!(edit, Edit::Content { .. });
        let has_content = parts.iter().any(|part| part.edits.iter().any(content));
        let last = parts.last_mut().expect("at least one");
        // Inline data may have raised the size: the last part sets it.
        if has_content {
            last.size = sealed.size;
        }
        // Times that were set explicitly since the seal take precedence.
        last.mtime = sealed.mtime.filter(|_| state.mtime.is_some());
        last.ctime = sealed.ctime;
        last.tail_zero = sealed.tail_zero && self.errors.get() == sealed.errors;
        state.inline_sent(&parts);
        parts
    }

    /// The server has applied all that was sealed.
    fn committed(&self, sealed: &Sealed) {
        let mut state = self.state.borrow_mut();
        if state.generation != sealed.generation {
            return;
        }
        state.alone = false;
        if state.edits.is_empty() {
            // The server knows all mappings.
            state.replaced.clear();
            state.inline.settle();
        }
        state.inline_committed();
        if let Some(size) = sealed.size {
            let least = if state.holds_ranges() { state.server_size } else { 0 };
            state.server_size = size.max(least);
        }
        if state.mtime == sealed.mtime {
            state.mtime = None;
        }
        if state.ctime == sealed.ctime {
            state.ctime = None;
        }
    }

    /// The server applied all of a commit, or the first `done` edits.
    fn record_applied(&self, sealed: &Sealed, commit: &Commit, done: Option<usize>) {
        let mut state = self.state.borrow_mut();
        if state.generation == sealed.generation {
            state.inline_applied(commit, done);
        }
    }

    /// The edits of a commit that the server did not apply; it applied the first `done`.
    fn unapplied_edits(&self, commit: Commit, done: usize) -> Vec<Edit> {
        let Commit { mut edits, size, .. } = commit;
        edits.drain(..done.min(edits.len()));
        if done > 0 {
            let mut state = self.state.borrow_mut();
            state.server_size = state.server_size.max(size.unwrap_or(0));
        }
        edits
    }

    /// The server did not apply what was sealed, or only a part.
    ///
    /// # Errors
    /// The reason; `Interrupted`: once more, for inline data without room is dirty again and goes
    /// to a block, or the commit may have failed because of another file's in the same request.
    fn refused(
        self: &Rc<Self>,
        sealed: &Sealed,
        fault: Fault,
        edits: Vec<Edit>,
        batched: bool,
    ) -> Result<(), Fault> {
        let mut state = self.state.borrow_mut();
        if state.generation != sealed.generation || fault == Fault::Evicted {
            return Err(fault);
        }
        if is_transient(fault) || batched {
            state.alone = batched;
            let seq = sealed.edits_below.saturating_sub(1);
            let content = edits.iter().any(|edit| matches!(edit, Edit::Content { .. }));
            for edit in edits.into_iter().rev() {
                state.edits.push_front(PendingEdit { seq, edit });
            }
            // No edit is in progress now.
            drop_superseded(&mut state.edits, 0);
            let again =
                batched || fault == Fault::NoSpace && self.move_refused_inline(&mut state, content);
            return Err(if again { Fault::Interrupted } else { fault });
        }
        if fault == Fault::Stale && !self.ctx.rpc.is_open(self.ino) {
            // The file is deleted, and no handle is left anywhere: the data is not needed.
            let unsent = std::mem::take(&mut state.edits).into_iter().map(|pending| pending.edit);
            self.reclaim_unsent(&mut state, edits.into_iter().chain(unsent));
            state.abandon();
            drop(state);
            self.notify();
            return Ok(());
        }
        drop(state);
        self.discard_uncommitted(fault.text());
        Err(fault)
    }

    /// Drops uncommitted changes that the server will not take, and reports their loss.
    pub(super) fn discard_uncommitted(self: &Rc<Self>, why: &str) {
        self.state.borrow_mut().abandon();
        self.report_loss(0, u64::MAX, why);
        self.notify();
    }
}

//! The commit queue: what is dirty is written, made stable and told to the server.
//!
//! A commit of one file seals what was accepted so far, waits until the sealed
//! writes have completed, makes them stable with one flush that all files of a
//! batch share, and then sends the sealed edits with the size and times of that
//! moment. Changes that come meanwhile belong to the next commit.
//!
//! Invariants:
//! - what is committed in the background waits for no device that has nothing of it;
//! - a file is in at most one commit at a time (`committing`), and at most once in
//!   the queue (`queued`); every file that is not clean is in `active`;
//! - an edit leaves the log only to be sent, and returns to its front if the server
//!   can take it later; one that took effect is not sent again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use env::Env;
use env::sync::Notify;
use proto::mds::{Edit, PagInfo};
use types::limits::{BLOCK_U64, COMMIT_EDITS_MAX, COMPOUND_OPS_MAX};
use types::{
    Bug, ClientId, Duration, ExtentState, Fault, Ino, Instant, PagId, Timestamp, Uuid, planted,
};

use super::budget::Budget;
use super::disks::{DataConfig, Disks, Stable};
use super::file::{File, Logged};
use super::inline::{thin_contents, thin_sealed};
use super::pool::Pool;
use super::space::Space;
use super::sync::{Devices, Syncs};
use crate::api::{Edited, OnEdit};
use crate::boundary::{Commit, Refusal, Rpc};

/// From acceptance to the start of the commit, and from the end of a write in place to its flush.
const AGE: Duration = Duration::from_secs(1);
/// Until a file that could not be committed is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(50);
/// How often a recall tries a commit that the server cannot take at the moment: 5 s.
const FLUSH_TRIES: u32 = 100;
/// How often if there is no room for what speaks of data on devices, which may use what is kept for
/// removals: 2 min. There is room when what is being removed is freed, which may wait for a
/// client's lease to end, and for its quarantine.
const ROOM_TRIES: u32 = 24 * FLUSH_TRIES;
/// Between two looks at a pool that nobody uses.
const IDLE: Duration = Duration::from_secs(10);
/// Files of one batch.
const BATCH: usize = 256;
/// Batches of files whose writes are on the same devices, at a time.
const BATCHES: usize = 4;
/// Operations of one compound of commits; the rest is for what the sender adds.
pub(super) const COMMITS_MAX: usize = COMPOUND_OPS_MAX - 4;

/// What a commit is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Age: only edits that speak of data, and a larger size, need a flush at once; writes in place
    /// get theirs by age.
    Background,
    /// A right goes back: the data is stable, the server knows all.
    Flush,
    /// fsync: and the server has it on stable storage.
    Sync,
}

/// Lowest and highest stamp of completed writes, by device.
type Stamps = BTreeMap<PagId, (u64, u64)>;

struct Queued {
    file: Rc<File>,
    due: Instant,
}

/// What all files of a client share.
pub struct DataContext {
    pub(super) env: Env,
    pub(super) rpc: Rc<dyn Rpc>,
    pub(super) disks: Disks,
    pub(super) pool: Rc<Pool>,
    pub(super) budget: Rc<Budget>,
    pub(super) space: Space,
    pub(super) syncs: Syncs,
    /// Device writes in flight.
    pub(super) flights: Cell<usize>,
    /// Files of which content was lost and no process has heard of it.
    pub(super) unreported_losses: Cell<usize>,
    /// Sessions lost so far: what was launched in an earlier one is not submitted.
    pub(super) session: Cell<u64>,
    dirty_max: u64,
    on_edit: Option<OnEdit>,
    queue: RefCell<VecDeque<Queued>>,
    active: RefCell<BTreeMap<Ino, Rc<File>>>,
    /// Files of which blocks were given up are being committed for who asks for space.
    unmapping: Cell<bool>,
    wake: Notify,
    /// Batches in the background, by the devices that they wait for.
    batches: RefCell<BTreeMap<Devices, usize>>,
}

impl std::fmt::Debug for DataContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataContext").finish_non_exhaustive()
    }
}

/// A file's state at the moment of sealing.
pub(super) struct Sealed {
    edits_below: u64,
    size: Option<u64>,
    shrinks: bool,
    tail_zero: bool,
    mtime: Option<Timestamp>,
    ctime: Option<Timestamp>,
    generation: u64,
    errors: u64,
}

impl DataContext {
    /// Opens the data devices and checks their labels; the text says what is wrong with which.
    pub async fn open(
        env: Env,
        config: DataConfig,
        client: ClientId,
        fs: Uuid,
        pags: &[PagInfo],
        rpc: Rc<dyn Rpc>,
    ) -> Result<Rc<DataContext>, String> {
        let disks = Disks::open(&env, &config, client, fs, pags).await?;
        let ctx = Rc::new(DataContext {
            env: env.clone(),
            rpc,
            disks,
            pool: Rc::default(),
            budget: Budget::new(config.dirty_max as u64),
            space: Space::default(),
            syncs: Syncs::default(),
            unreported_losses: Cell::new(0),
            flights: Cell::new(0),
            session: Cell::new(0),
            dirty_max: config.dirty_max as u64,
            on_edit: config.on_edit,
            queue: RefCell::default(),
            active: RefCell::default(),
            unmapping: Cell::new(false),
            wake: Notify::new(),
            batches: RefCell::default(),
        });
        env.spawn(drain_queue(env.clone(), Rc::downgrade(&ctx)));
        Ok(ctx)
    }

    /// Tells who looks on that the content of a file is changed.
    pub(super) fn edited(&self, ino: Ino, edited: Edited) {
        if let Some(on_edit) = self.on_edit {
            on_edit(ino, edited);
        }
    }

    /// The client is gone: files that were to be committed, which hold this, are not any more.
    pub fn let_go(&self) {
        let files = (self.queue.take(), self.active.take());
        drop(files);
    }

    /// The session is lost: pool, windows and buffers are gone. The client has a new number.
    pub fn evicted(self: &Rc<Self>, new_client: ClientId) {
        self.session.set(self.session.get() + 1);
        self.forget_space();
        let files: Vec<Rc<File>> = self.active.borrow().values().cloned().collect();
        for file in files {
            file.drop_all(true);
        }
        let this = self.clone();
        self.env.spawn(async move {
            for disk in this.disks.iter() {
                if let Err(text) = disk.lock_client(new_client).await {
                    this.rpc.log(&text);
                }
            }
        });
    }

    /// Every dirty file's data is stable and its commits are answered. The first error, if any.
    pub async fn sync_all(self: &Rc<Self>) -> Result<(), Fault> {
        let files: Vec<Rc<File>> = self.active.borrow().values().cloned().collect();
        let mut result = Ok(());
        for batch in files.chunks(BATCH) {
            let mut claimed = Vec::with_capacity(batch.len());
            // In the order of their numbers, so that two calls cannot wait for each other.
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

    /// Commits the files of which blocks were given up that the server does not know of; waits no
    /// longer than `patience` for that. A file that fails is left to its own commit.
    pub async fn commit_unmapped(self: &Rc<Self>, patience: Duration) {
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

    /// Bytes accepted and not yet written.
    pub fn dirty_bytes(&self) -> u64 {
        self.budget.used()
    }

    /// Blocks of the pool, and of those tainted ones that are to go back.
    pub fn kept_blocks(&self) -> (u64, u64) {
        (self.pool.blocks(), self.pool.tainted())
    }

    /// Is nothing dirty, in flight, uncommitted or not yet stable?
    pub fn is_settled(&self) -> bool {
        self.active.borrow().values().all(|file| file.is_settled())
    }

    /// Is content of a file lost of which no process has heard?
    pub fn has_unreported_loss(&self) -> bool {
        self.unreported_losses.get() > 0
    }

    /// Files of which something is dirty, in flight or uncommitted.
    pub fn unsaved(&self) -> Vec<Ino> {
        let active = self.active.borrow();
        active.values().filter(|file| !file.is_clean()).map(|file| file.ino).collect()
    }

    /// A writer waits for room: what is dirty is launched, unless writes are under way that will
    /// make room.
    pub(super) fn press(&self) {
        // What lies with inodes leaves room when it is committed.
        self.wake.notify_all();
        if self.flights.get() > 0 {
            return;
        }
        let files: Vec<Rc<File>> = self.active.borrow().values().cloned().collect();
        for file in files {
            file.launch_all();
        }
    }

    /// Nothing of the file is to be committed any more.
    fn inactive(&self, file: &Rc<File>) {
        let mut active = self.active.borrow_mut();
        if active.get(&file.ino).is_some_and(|known| Rc::ptr_eq(known, file)) {
            active.remove(&file.ino);
        }
    }

    /// Nothing of the file is to be committed ever.
    pub(super) fn forget_file(&self, file: &Rc<File>) {
        self.inactive(file);
        self.queue.borrow_mut().retain(|queued| !Rc::ptr_eq(&queued.file, file));
    }

    fn push(&self, file: Rc<File>, due: Instant) {
        let mut queue = self.queue.borrow_mut();
        self.active.borrow_mut().entry(file.ino).or_insert_with(|| file.clone());
        queue.push_back(Queued { file, due });
        if queue.len() == 1 {
            self.wake.notify_all();
        }
    }

    /// Takes files out of the queue that are due, each marked as committing.
    fn take_due(&self, now: Instant) -> Vec<Rc<File>> {
        let crowded = self.budget.used() > self.dirty_max / 2;
        let mut batch = Vec::new();
        let mut later = Vec::new();
        while batch.len() < BATCH && later.len() < BATCH {
            let mut queue = self.queue.borrow_mut();
            let due = queue.front().is_some_and(|front| crowded || front.due <= now);
            if !due {
                break;
            }
            let file = queue.pop_front().expect("it has a front").file;
            drop(queue);
            let mut state = file.state.borrow_mut();
            if state.committing || state.paused {
                drop(state);
                later.push(file);
            } else if state.is_settled() {
                state.queued = false;
                state.tail = None;
                state.touched.clear();
                drop(state);
                self.inactive(&file);
            } else if state.alone && !batch.is_empty() {
                drop(state);
                later.push(file);
            } else {
                state.queued = false;
                state.committing = true;
                let alone = state.alone;
                drop(state);
                batch.push(file);
                if alone {
                    break;
                }
            }
        }
        self.put_off(later, now);
        batch
    }

    /// Puts files back into the queue, without waking anyone: whoever took them looks at its front
    /// next.
    fn put_off(&self, files: Vec<Rc<File>>, now: Instant) {
        let files = files.into_iter().map(|file| Queued { file, due: now + RETRY });
        self.queue.borrow_mut().extend(files);
    }

    /// Begins to commit files that were taken out of the queue, in batches that wait for the same
    /// devices. Too many of them under way: these files wait in the queue, and no others. What
    /// cannot be launched yet may go to any device: its file waits in no company, one commit for
    /// each file whose data waits for room on its device. Says whether none was put off.
    fn begin_batches(self: &Rc<Self>, files: Vec<Rc<File>>, now: Instant) -> bool {
        let mut all = true;
        let mut groups: BTreeMap<Devices, Vec<Rc<File>>> = BTreeMap::new();
        for file in files {
            file.launch_all();
            if file.is_launched() {
                let devices = file.state.borrow().devices();
                groups.entry(devices).or_default().push(file);
            } else {
                self.begin_alone(file);
            }
        }
        for (devices, files) in groups {
            let running = self.batches.borrow().get(&devices).copied().unwrap_or(0);
            if running >= BATCHES {
                files.iter().for_each(|file| file.unclaim_commit());
                self.put_off(files, now);
                all = false;
                continue;
            }
            self.batches.borrow_mut().insert(devices.clone(), running + 1);
            let this = self.clone();
            self.env.spawn(async move {
                // Writes may have come since.
                let (files, others): (Vec<_>, Vec<_>) =
                    files.into_iter().partition(|file| file.is_on(&devices));
                others.into_iter().for_each(|file| this.begin_alone(file));
                this.commit_files(&files, Purpose::Background).await;
                this.batch_ended(&devices);
            });
        }
        all
    }

    fn begin_alone(self: &Rc<Self>, file: Rc<File>) {
        let this = self.clone();
        self.env.spawn(async move {
            this.commit_files(&[file], Purpose::Background).await;
        });
    }

    fn batch_ended(&self, devices: &Devices) {
        let mut batches = self.batches.borrow_mut();
        if let Some(running) = batches.get_mut(devices) {
            *running -= 1;
            if *running == 0 {
                batches.remove(devices);
            }
        }
    }

    /// Commits files whose `committing` the caller has set; the mark is taken away.
    pub(super) async fn commit_files(
        self: &Rc<Self>,
        files: &[Rc<File>],
        purpose: Purpose,
    ) -> Vec<Result<(), Fault>> {
        let sealed = self.prepare(files, purpose).await;
        self.tell(files, &sealed, purpose).await
    }

    /// The first half of a commit: what was accepted so far is on the devices, stable if its
    /// edits speak of data.
    pub(super) async fn prepare(
        self: &Rc<Self>,
        files: &[Rc<File>],
        purpose: Purpose,
    ) -> Vec<Option<Sealed>> {
        let errors: Vec<u64> = files.iter().map(|file| file.errors.get()).collect();
        let marks: Vec<u64> = files.iter().map(|file| file.launch_all()).collect();
        let mut sealed = Vec::with_capacity(files.len());
        for ((file, mark), errors) in files.iter().zip(marks).zip(errors) {
            sealed.push(file.seal(mark, errors).await);
        }
        for file in files {
            file.landed_below_seal().await;
        }
        self.stabilise(files, &sealed, purpose).await;
        sealed
    }

    /// The second half: the server has it.
    pub(super) async fn tell(
        self: &Rc<Self>,
        files: &[Rc<File>],
        sealed: &[Option<Sealed>],
        purpose: Purpose,
    ) -> Vec<Result<(), Fault>> {
        let results = self.send(files, sealed, purpose).await;
        for file in files {
            let state = &mut *file.state.borrow_mut();
            state.committing = false;
            state.content_answered();
            let settled = state.is_settled() && !state.queued;
            if settled {
                state.writes = 0;
                state.touched.clear();
                if purpose == Purpose::Background {
                    state.tail = None;
                }
                self.inactive(file);
            }
        }
        for file in files {
            file.changed.notify_all();
            if !file.is_settled() {
                file.enqueue();
            }
        }
        results
    }

    /// Flushes the devices that the sealed writes went to. Files whose writes are lost fail.
    async fn stabilise(
        self: &Rc<Self>,
        files: &[Rc<File>],
        sealed: &[Option<Sealed>],
        purpose: Purpose,
    ) {
        let mut needed: Vec<(usize, Stamps)> = Vec::new();
        let mut all: Stamps = BTreeMap::new();
        let now = self.env.now();
        for (index, (file, sealed)) in files.iter().zip(sealed).enumerate() {
            let Some(sealed) = sealed else { continue };
            let mut state = file.state.borrow_mut();
            let speaks_of_data = state
                .log
                .iter()
                .take_while(|logged| logged.seq < sealed.edits_below)
                .any(|logged| speaks_of_data(&logged.edit));
            // Behind the old end a block may hold what was never in the file, and zeros written in
            // place hide that.
            let grows = sealed.size.is_some_and(|size| size > state.server_size);
            // What was written in place is made stable when there is nothing else to tell, or by
            // age.
            let young = now.since(state.stamped) < AGE;
            let waits = purpose == Purpose::Background && !speaks_of_data && !grows;
            if waits && young && state.has_uncommitted() {
                continue;
            }
            if planted(Bug::InPlaceNotFlushed) && !speaks_of_data {
                state.stamps.clear();
            }
            for (&pag, &(low, high)) in &state.stamps {
                let entry = all.entry(pag).or_insert((low, high));
                *entry = (entry.0.min(low), entry.1.max(high));
            }
            needed.push((index, state.stamps.clone()));
        }
        let mut flushes = Vec::new();
        for (&pag, &(_, high)) in &all {
            if let Ok(disk) = self.disks.get(pag) {
                let disk = disk.clone();
                flushes
                    .push(self.env.spawn_join(async move { disk.flush_past((high, high)).await }));
            }
        }
        for flush in flushes {
            flush.await;
        }
        for (index, stamps) in needed {
            let file = &files[index];
            let mut state = file.state.borrow_mut();
            let mut lost = false;
            for (pag, stamps) in stamps {
                let stable = self.disks.get(pag).map_or(Stable::Lost, |disk| disk.stable(stamps));
                lost |= stable != Stable::Yes;
                let known = state.stamps.get(&pag).copied();
                match known {
                    Some((_, high)) if high > stamps.1 => {
                        state.stamps.insert(pag, (stamps.1, high));
                        state.stamped = now;
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

    /// Sends what is sealed, several files to a compound.
    async fn send(
        self: &Rc<Self>,
        files: &[Rc<File>],
        sealed: &[Option<Sealed>],
        purpose: Purpose,
    ) -> Vec<Result<(), Fault>> {
        let mut results: Vec<Result<(), Fault>> = vec![Ok(()); files.len()];
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
        let sync = purpose == Purpose::Sync;
        if commits.is_empty() {
            if sync
                && let Some(Err(Refusal { fault, .. })) =
                    self.rpc.commit(Vec::new(), true).await.pop()
            {
                results.iter_mut().filter(|result| result.is_ok()).for_each(|r| *r = Err(fault));
            }
            if sync {
                unless_lost(files, sealed, &mut results);
            }
            return results;
        }
        // Edits of a file after one that failed would be out of order: they are kept, too.
        let mut kept: BTreeMap<usize, (Fault, Vec<Edit>)> = BTreeMap::new();
        let mut answered: Vec<usize> = Vec::new();
        let mut rest = commits.into_iter().peekable();
        while rest.peek().is_some() {
            let group: Vec<(usize, Commit)> = rest.by_ref().take(COMMITS_MAX).collect();
            let last = rest.peek().is_none();
            let (held, group): (Vec<_>, Vec<_>) =
                group.into_iter().partition(|(index, _)| kept.contains_key(index));
            for (index, commit) in held {
                kept.get_mut(&index).expect("partitioned").1.extend(commit.edits);
            }
            let bodies = group.iter().map(|(_, commit)| commit.clone()).collect();
            let mut answers = self.rpc.commit(bodies, sync && last).await.into_iter();
            for (index, commit) in group {
                let answer = answers.next().unwrap_or(Err(Fault::Protocol.into()));
                let sealed = sealed[index].as_ref().expect("it was sent");
                match (answer, kept.get_mut(&index)) {
                    (_, Some((_, edits))) => edits.extend(commit.edits),
                    (Ok(_), None) => {
                        files[index].did(sealed, &commit, None);
                        answered.push(index);
                    }
                    (Err(Refusal { fault, done }), None) => {
                        files[index].did(sealed, &commit, Some(done));
                        kept.insert(index, (fault, files[index].rest(commit, done)));
                    }
                }
            }
        }
        answered.dedup();
        let company = files.len() > 1;
        for index in answered {
            if !kept.contains_key(&index) {
                files[index].committed(sealed[index].as_ref().expect("it was sent"));
            }
        }
        for (index, (fault, edits)) in kept {
            let sealed = sealed[index].as_ref().expect("it was sent");
            results[index] = files[index].refused(sealed, fault, edits, company);
        }
        if sync {
            unless_lost(files, sealed, &mut results);
        }
        results
    }
}

/// What was sealed in a session that is lost since is not durable, whatever was answered.
fn unless_lost(files: &[Rc<File>], sealed: &[Option<Sealed>], results: &mut [Result<(), Fault>]) {
    for ((file, sealed), result) in files.iter().zip(sealed).zip(results) {
        let generation = file.state.borrow().generation;
        if result.is_ok() && sealed.as_ref().is_some_and(|s| s.generation != generation) {
            *result = Err(Fault::Evicted);
        }
    }
}

fn speaks_of_data(edit: &Edit) -> bool {
    match edit {
        Edit::Map { extent } => extent.state == ExtentState::Written,
        Edit::Written { .. } => true,
        Edit::Unmap { .. } | Edit::Content { .. } => false,
    }
}

/// Can the server take the same commit later?
pub(super) fn passing(fault: Fault) -> bool {
    matches!(fault, Fault::NoSpace | Fault::Overloaded | Fault::Unreachable | Fault::Busy)
}

/// Commits what is old enough, as long as the context lives.
async fn drain_queue(env: Env, weak: Weak<DataContext>) {
    let mut looked = env.now();
    loop {
        let Some(ctx) = weak.upgrade() else { return };
        let wake = ctx.wake.notified();
        let now = env.now();
        if now.since(looked) >= IDLE {
            looked = now;
            ctx.trim_pool().await;
            continue;
        }
        let batch = ctx.take_due(now);
        if batch.is_empty() {
            let due = ctx.queue.borrow().front().map_or(looked + IDLE, |front| front.due);
            drop(ctx);
            let wait = due.min(looked + IDLE).since(now).max(Duration::from_millis(1));
            env.timeout(wait, wake).await;
            continue;
        }
        if !ctx.begin_batches(batch, now) {
            // Those that were put off would be taken at once again, and nothing else have its turn.
            drop(ctx);
            env.timeout(RETRY, wake).await;
        }
    }
}

impl File {
    /// Puts the file into the commit queue.
    pub(super) fn enqueue(self: &Rc<Self>) {
        if self.given_up.get() {
            return self.state.borrow_mut().abandon();
        }
        if !std::mem::replace(&mut self.state.borrow_mut().queued, true) {
            self.ctx.push(self.clone(), self.ctx.env.now() + AGE);
        }
    }

    /// Its commit is not put off any longer.
    pub(super) fn hurry(self: &Rc<Self>) {
        self.enqueue();
        let mut queue = self.ctx.queue.borrow_mut();
        if let Some(at) = queue.iter().position(|queued| Rc::ptr_eq(&queued.file, self)) {
            let queued = queue.remove(at).expect("found");
            queue.push_front(Queued { due: self.ctx.env.now(), ..queued });
            self.ctx.wake.notify_all();
        }
    }

    /// Waits for a commit under way and marks the next one as ours.
    pub(super) async fn claim_commit(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.borrow_mut();
                if !state.committing && !state.paused {
                    state.committing = true;
                    return;
                }
            }
            changed.await;
        }
    }

    /// A commit that was marked is not made now; the file is put into the queue again.
    fn unclaim_commit(&self) {
        {
            let mut state = self.state.borrow_mut();
            state.committing = false;
            state.queued = true;
        }
        self.changed.notify_all();
    }

    /// Commits what was accepted so far in no company.
    pub(super) async fn commit_alone(self: &Rc<Self>) -> Result<(), Fault> {
        loop {
            self.claim_commit().await;
            let outcomes = self.ctx.commit_files(std::slice::from_ref(self), Purpose::Flush).await;
            match outcomes.into_iter().next().unwrap_or(Ok(())) {
                // Paused meanwhile, or what the server has no room for goes elsewhere: once more.
                Err(Fault::Interrupted) => {}
                outcome => return outcome,
            }
        }
    }

    /// The data is stable and the server knows everything that was accepted.
    ///
    /// # Errors
    /// Some of it is lost.
    pub async fn flush(self: &Rc<Self>) -> Result<(), Fault> {
        let mut result = Ok(());
        for tries in 0.. {
            if self.is_settled() {
                break;
            }
            match self.commit_alone().await {
                Err(fault) if passing(fault) && tries < self.tries_of_flush(fault) => {
                    self.ctx.env.sleep(RETRY).await;
                }
                Err(fault) if passing(fault) => {
                    self.give_up_unsent();
                    return result.and(Err(fault));
                }
                outcome => result = result.and(outcome),
            }
        }
        result
    }

    /// What was accepted before the call is stable, and the server has size and layout. Unlike
    /// [`File::flush`] this gives nothing up: what the server does not take now stays dirty.
    ///
    /// # Errors
    /// Some of it is lost, now or before and no process has heard of it; or the server has had no
    /// room for it for a while.
    pub async fn commit_accepted(self: &Rc<Self>) -> Result<(), Fault> {
        if self.report_loss() {
            return Err(Fault::Io);
        }
        for tries in 0.. {
            if self.is_settled() {
                break;
            }
            match self.commit_alone().await {
                Err(fault) if passing(fault) && tries < FLUSH_TRIES => {
                    self.ctx.env.sleep(RETRY).await;
                }
                outcome => return outcome,
            }
        }
        Ok(())
    }

    /// How often a recall tries a commit that fails so.
    pub(super) fn tries_of_flush(&self, fault: Fault) -> u32 {
        let lacks_room = fault == Fault::NoSpace && !self.state.borrow().has_logged_content();
        if lacks_room { ROOM_TRIES } else { FLUSH_TRIES }
    }

    /// The server has not taken a commit for as long as others can be kept waiting.
    pub(super) fn give_up_unsent(self: &Rc<Self>) {
        self.give_up("the server had no room for its layout");
    }

    /// Waits until everything dirty with a sequence below `mark` is launched, and fixes what
    /// the commit consists of. `None`: the file was paused.
    async fn seal(&self, mark: u64, errors: u64) -> Option<Sealed> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.borrow_mut();
                if state.paused {
                    return None;
                }
                if !state.dirty.values().any(|run| run.seq < mark) {
                    state.sealed = state.next_edit;
                    state.sealed_flights = state.next_flight;
                    state.disk_size = state.launched_size();
                    // Content raises the size where it is not said.
                    let changed =
                        state.disk_size != state.server_size || state.has_logged_content();
                    return Some(Sealed {
                        edits_below: state.next_edit,
                        size: changed.then_some(state.disk_size),
                        shrinks: state.disk_size < state.server_size,
                        tail_zero: state.tail_zero && state.disk_size == state.size
                            || state.disk_size.is_multiple_of(BLOCK_U64),
                        mtime: state.mtime,
                        ctime: state.ctime,
                        generation: state.generation,
                        errors,
                    });
                }
            }
            changed.await;
        }
    }

    /// Waits until the writes launched before the seal have completed.
    async fn landed_below_seal(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.borrow();
                let first = state.flights.first_key_value();
                if first.is_none_or(|(&first, _)| first >= state.sealed_flights) {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Takes the sealed edits out of the log, as commits of bounded size.
    fn take_sealed(&self, sealed: &Sealed) -> Vec<Commit> {
        let mut state = self.state.borrow_mut();
        if state.generation != sealed.generation {
            return Vec::new();
        }
        let mut taken = VecDeque::new();
        while state.log.front().is_some_and(|logged| logged.seq < sealed.edits_below) {
            taken.extend(state.log.pop_front());
        }
        thin_sealed(&mut taken);
        let edits: Vec<Edit> = taken.into_iter().map(|logged| logged.edit).collect();
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
            let (ino, edits, merge) = (self.ino, part, state.in_parts());
            parts.push(Commit { ino, edits, size, mtime, ctime, merge, tail_zero: false });
        }
        // A shorter size comes with the first edits, so that no block in between is missing;
        // a longer one with the last, when all its blocks are there.
        let at = if sealed.shrinks { 0 } else { parts.len() - 1 };
        parts[at].size = sealed.size;
        let content = |edit: &Edit| matches!(edit, Edit::Content { .. });
        let has_content = parts.iter().any(|part| part.edits.iter().any(content));
        let last = parts.last_mut().expect("at least one");
        // The size ends what content has raised it to, too.
        if has_content {
            last.size = sealed.size;
        }
        // Times that were set explicitly since count.
        last.mtime = sealed.mtime.filter(|_| state.mtime.is_some());
        last.ctime = sealed.ctime;
        last.tail_zero = sealed.tail_zero && self.errors.get() == sealed.errors;
        state.content_sent(&parts);
        parts
    }

    /// The server has what was sealed.
    fn committed(&self, sealed: &Sealed) {
        let mut state = self.state.borrow_mut();
        if state.generation != sealed.generation {
            return;
        }
        state.alone = false;
        if state.log.is_empty() {
            // The server knows every place.
            state.replaced.clear();
            state.inline.settle();
        }
        state.content_committed();
        if let Some(size) = sealed.size {
            let least = if state.in_parts() { state.server_size } else { 0 };
            state.server_size = size.max(least);
        }
        if state.mtime == sealed.mtime {
            state.mtime = None;
        }
        if state.ctime == sealed.ctime {
            state.ctime = None;
        }
    }

    /// The server did all of a commit, or the first `done` edits.
    fn did(&self, sealed: &Sealed, commit: &Commit, done: Option<usize>) {
        let mut state = self.state.borrow_mut();
        if state.generation == sealed.generation {
            state.content_told(commit, done);
        }
    }

    /// What of a commit the server did not take, `done` edits of it.
    fn rest(&self, commit: Commit, done: usize) -> Vec<Edit> {
        let Commit { mut edits, size, .. } = commit;
        edits.drain(..done.min(edits.len()));
        if done > 0 {
            let mut state = self.state.borrow_mut();
            state.server_size = state.server_size.max(size.unwrap_or(0));
        }
        edits
    }

    /// The server did not take what was sealed, or not all.
    ///
    /// # Errors Why not; `Interrupted`: what it had no room for is dirty again, and the next commit
    /// needs that room no more.
    fn refused(
        self: &Rc<Self>,
        sealed: &Sealed,
        fault: Fault,
        edits: Vec<Edit>,
        company: bool,
    ) -> Result<(), Fault> {
        let mut state = self.state.borrow_mut();
        if state.generation != sealed.generation || fault == Fault::Evicted {
            return Err(fault);
        }
        if passing(fault) || company {
            state.alone = company;
            let seq = sealed.edits_below.saturating_sub(1);
            let content = edits.iter().any(|edit| matches!(edit, Edit::Content { .. }));
            for edit in edits.into_iter().rev() {
                state.log.push_front(Logged { seq, edit });
            }
            // Nothing of it is under way now.
            thin_contents(&mut state.log, 0);
            let lacks_room = fault == Fault::NoSpace && !company;
            let again = lacks_room && self.give_place(&mut state, content);
            return Err(if again { Fault::Interrupted } else { fault });
        }
        if fault == Fault::Stale && !self.ctx.rpc.is_open(self.ino) {
            // Without a name and a handle, here as elsewhere: nobody misses the data.
            let log = std::mem::take(&mut state.log).into_iter().map(|logged| logged.edit);
            self.reuse(&state, edits.into_iter().chain(log));
            state.abandon();
            drop(state);
            self.changed.notify_all();
            return Ok(());
        }
        drop(state);
        self.give_up(fault.text());
        Err(fault)
    }

    /// What the server will not take is lost.
    pub(super) fn give_up(self: &Rc<Self>, why: &str) {
        self.state.borrow_mut().abandon();
        self.tell_loss(0, u64::MAX, why);
        self.changed.notify_all();
    }
}

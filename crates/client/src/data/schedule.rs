//! What the commit pipeline decides is done here: files that are old enough join lanes, lanes make
//! batches stable, and tasks send what is stable.
//!
//! Invariants:
//! - a file in a lane, or stable and ready to be sent, is marked as committing: nobody else commits
//!   it. Who needs its commit takes it out or hurries it on, as soon as its batch is stable;
//! - the files of a batch, and of a request, are of one metadata server;
//! - a batch waits for no device that has nothing of its files. A file with runs that cannot be
//!   launched yet may need any device, so it is committed apart;
//! - a file that has aged waits for the writes of no file with much to write, but that it has so
//!   itself;
//! - a file whose commit fails in a batch is committed once more apart, so that the error is its
//!   own.

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use env::Env;
use env::sync::oneshot;
use types::{Duration, Fault, Ino, Instant, ServerId};

use super::context::{DataContext, Purpose, RETRY};
use super::file::File;
use super::pipeline::{BATCH, LaneKey, Member, Outcome, Priority, Request, Waiting};
use super::sealed::Sealed;

/// Between two checks of an unused pool.
const POOL_CHECK: Duration = Duration::from_secs(10);

impl Member for Rc<File> {
    fn number(&self) -> Ino {
        self.ino
    }

    fn is(&self, other: &Rc<File>) -> bool {
        Rc::ptr_eq(self, other)
    }

    fn waits(&self) -> bool {
        let state = self.state.borrow();
        state.has_changes() || !state.stamps.is_empty()
    }

    fn is_alone(&self) -> bool {
        self.state.borrow().alone
    }
}

impl Priority {
    fn purpose(self) -> Purpose {
        match self {
            Priority::Sync => Purpose::Sync,
            Priority::Age | Priority::Bulk => Purpose::Background,
        }
    }

    /// For this file.
    fn of(self, file: &File) -> Priority {
        match self {
            Priority::Sync => Priority::Sync,
            Priority::Age | Priority::Bulk if file.has_much_to_write() => Priority::Bulk,
            Priority::Age | Priority::Bulk => Priority::Age,
        }
    }
}

impl DataContext {
    fn push(&self, file: Rc<File>, due: Instant) {
        if self.pipeline(file.server()).borrow_mut().push(file, due) {
            self.wake.notify_all();
        }
    }

    /// The file waits for its commit.
    fn activate(&self, file: &Rc<File>) {
        let mut active = self.active.borrow_mut();
        active.entry(file.ino).or_insert_with(|| file.clone());
        self.pipeline(file.server()).borrow_mut().queue_is(active.len());
    }

    /// So much earlier than usual files are due: writers that are slowed need what is not new.
    fn ahead(&self) -> Duration {
        let slowed = self.budget.used() > self.dirty_max / 2;
        if slowed { self.commit.due() - self.commit.early() } else { Duration::ZERO }
    }

    /// Takes the files of the server out that are due, each marked as committing; at most
    /// [`BATCH`]. Those that
    /// will soon be due go with the first one, so that they share its flushes and requests.
    fn take_due(&self, server: ServerId, now: Instant) -> Vec<Rc<File>> {
        let (pressure, slowed) = (self.budget.has_waiters(), self.ahead());
        let mut batch = Vec::new();
        let mut later = Vec::new();
        while batch.len() < BATCH && later.len() < BATCH {
            let ahead = if batch.is_empty() { slowed } else { slowed.max(self.commit.early()) };
            let due = self.pipeline(server).borrow_mut().pop_due(now + ahead, pressure);
            let Some(file) = due else { break };
            let mut state = file.state.borrow_mut();
            if state.committing || state.paused {
                drop(state);
                later.push(file);
            } else if state.is_settled() {
                state.queued = false;
                state.tail = None;
                state.unsettled.clear();
                drop(state);
                self.deactivate(&file);
            } else {
                state.queued = false;
                state.committing = true;
                drop(state);
                batch.push(file);
            }
        }
        // While writers are slowed, what is due so much ahead of its time is due now.
        let mut pipeline = self.pipeline(server).borrow_mut();
        later.into_iter().for_each(|file| _ = pipeline.push(file, now + slowed + RETRY));
        batch
    }

    /// Begins the commit of files that are marked as committing: in batches, or apart.
    fn begin_commits(
        self: &Rc<Self>,
        priority: Priority,
        all: impl IntoIterator<Item = Waiting<Rc<File>>>,
    ) {
        let mut lanes = BTreeSet::new();
        for waiting in all {
            waiting.file.launch_all();
            if !waiting.file.is_launched() {
                self.commit_apart(priority, waiting);
                continue;
            }
            let devices = waiting.file.state.borrow().devices();
            let (server, key) = (waiting.file.server(), (priority.of(&waiting.file), devices));
            self.pipeline(server).borrow_mut().join(&key, waiting);
            lanes.insert((server, key));
        }
        lanes.iter().for_each(|(server, key)| self.begin_batches(*server, key));
    }

    fn commit_apart(self: &Rc<Self>, priority: Priority, waiting: Waiting<Rc<File>>) {
        let this = self.clone();
        self.env.spawn(async move {
            let Waiting { file, done } = waiting;
            let outcome = this.commit_files(&[file], priority.purpose()).await.pop();
            if let Some(done) = done {
                done.send(outcome.unwrap_or(Ok(())));
            }
        });
    }

    /// Begins the batches of a lane of the server that may run.
    fn begin_batches(self: &Rc<Self>, server: ServerId, key: &LaneKey) {
        loop {
            let batch = self.pipeline(server).borrow_mut().begin(key);
            let Some(batch) = batch else { return };
            let (this, key) = (self.clone(), key.clone());
            self.env.spawn(async move { this.run_batch(server, &key, batch).await });
        }
    }

    async fn run_batch(
        self: Rc<Self>,
        server: ServerId,
        key: &LaneKey,
        batch: Vec<Waiting<Rc<File>>>,
    ) {
        let (priority, devices) = key;
        let pipeline = || self.pipeline(server).borrow_mut();
        // Writes may have been accepted since the files joined the lane.
        let stays = |file: &Rc<File>| {
            let is_same = *priority == Priority::Bulk || priority.of(file) == *priority;
            file.is_only_on(devices) && is_same
        };
        let (stays, leaves): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|waiting| stays(&waiting.file));
        self.begin_commits(*priority, leaves);
        let (files, done): (Vec<_>, Vec<_>) =
            stays.into_iter().map(|waiting| (waiting.file, waiting.done)).unzip();
        let number = (*priority != Priority::Sync).then(|| pipeline().number_batch());
        files.iter().for_each(|file| file.state.borrow_mut().batch = number);
        let sealed = self.prepare_commit(&files, priority.purpose()).await;
        pipeline().prepared(key);
        self.begin_batches(server, key);
        match priority {
            _ if files.is_empty() => {}
            Priority::Sync => {
                let outcomes = self.finish_commit(&files, &sealed, Purpose::Sync).await;
                for (done, outcome) in done.into_iter().zip(outcomes) {
                    if let Some(done) = done {
                        done.send(outcome);
                    }
                }
            }
            Priority::Age | Priority::Bulk => {
                // Files that have left may be in another commit by now.
                let stable: Vec<_> = files
                    .into_iter()
                    .zip(sealed)
                    .filter(|(file, _)| {
                        file.state.borrow_mut().batch.take_if(|b| Some(*b) == number).is_some()
                    })
                    .collect();
                let files: Vec<_> = stable.iter().map(|(file, _)| file.clone()).collect();
                pipeline().are_ready(stable);
                self.send_ready(server);
                // Who waits for one of them can have it sent at once now.
                files.iter().for_each(|file| file.changed.notify_all());
            }
        }
        pipeline().ended(key);
        self.begin_batches(server, key);
    }

    /// Sends as many stable files of the server as tasks may.
    fn send_ready(self: &Rc<Self>, server: ServerId) {
        loop {
            let queue = self.active.borrow().len();
            let request = self.pipeline(server).borrow_mut().next_request(queue);
            let Some(request) = request else { return };
            self.send_request(server, request);
        }
    }

    fn send_request(self: &Rc<Self>, server: ServerId, request: Request<Rc<File>, Option<Sealed>>) {
        let (this, Request { files, hurried }) = (self.clone(), request);
        self.env.spawn(async move {
            let (files, sealed): (Vec<_>, Vec<_>) = files.into_iter().unzip();
            this.finish_commit(&files, &sealed, Purpose::Background).await;
            this.pipeline(server).borrow_mut().sent(hurried);
            this.send_ready(server);
        });
    }

    /// Commits a file that is marked as committing together with others whose fsync waits.
    pub(super) async fn fsync_in_batch(self: &Rc<Self>, file: &Rc<File>) -> Outcome {
        let (sender, outcome) = oneshot();
        self.begin_commits(Priority::Sync, [Waiting { file: file.clone(), done: Some(sender) }]);
        outcome.await.unwrap_or(Err(Fault::Unreachable))
    }
}

/// Commits files that are old enough, as long as the context lives.
pub(super) async fn commit_aged(env: Env, weak: Weak<DataContext>) {
    let mut checked = env.now();
    loop {
        let Some(ctx) = weak.upgrade() else { return };
        let wake = ctx.wake.notified();
        let now = env.now();
        if now.since(checked) >= POOL_CHECK {
            checked = now;
            ctx.trim_pool().await;
            continue;
        }
        let servers = ctx.sessions.servers().into_iter();
        let batch: Vec<_> = servers.flat_map(|server| ctx.take_due(server, now)).collect();
        if batch.is_empty() {
            let due = ctx.pipelines.values().filter_map(|pipeline| pipeline.borrow().next_due());
            let due = due.min().unwrap_or(checked + POOL_CHECK);
            let until = due.since(now).saturating_sub(ctx.ahead());
            drop(ctx);
            let wait = until.min((checked + POOL_CHECK).since(now)).max(Duration::from_millis(1));
            env.timeout(wait, wake).await;
            continue;
        }
        let batch = batch.into_iter().map(|file| Waiting { file, done: None });
        ctx.begin_commits(Priority::Age, batch);
    }
}

impl File {
    /// The file begins to age, unless it does already.
    pub(super) fn enqueue(self: &Rc<Self>) {
        let state = &mut *self.state.borrow_mut();
        if self.detached.get() {
            return state.abandon();
        }
        if state.queued && state.unsaved_since.is_some() {
            return;
        }
        let (now, commit) = (self.ctx.env.now(), &self.ctx.commit);
        let since = *state.unsaved_since.get_or_insert(now);
        self.ctx.activate(self);
        if !std::mem::replace(&mut state.queued, true) {
            let due = since + commit.due();
            // What a commit in progress does not take is new. What is as good as overdue failed, or
            // the server is slow: both ask for patience.
            let anew = state.committing || due < now + commit.early();
            self.ctx.push(self.clone(), if anew { now + commit.due() } else { due });
        }
    }

    /// Commits the file before all others that age.
    pub(super) fn commit_soon(self: &Rc<Self>) {
        self.enqueue();
        let now = self.ctx.env.now();
        if self.ctx.pipeline(self.server()).borrow_mut().make_due(self, now) {
            self.ctx.wake.notify_all();
        }
    }

    /// Waits for the current commit to end, and marks the file for the caller's commit.
    pub(super) async fn claim_commit(self: &Rc<Self>) {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.borrow_mut();
                if !state.committing && !state.paused {
                    state.committing = true;
                    return;
                }
            }
            if !self.hurry_commit() {
                changed.await;
            }
        }
    }

    /// Waits until the file is in no commit. One that has not begun begins after that: the file was
    /// due, and still is.
    pub(super) async fn commit_over(self: &Rc<Self>) {
        loop {
            let changed = self.changed.notified();
            if !self.state.borrow().committing {
                return;
            }
            match self.hurry_commit() {
                true => self.commit_soon(),
                false => changed.await,
            }
        }
    }

    /// Somebody waits for the file's commit to end: one that has not begun is given up, and one
    /// whose data is stable is sent. Returns whether it was given up.
    pub(super) fn hurry_commit(self: &Rc<Self>) -> bool {
        let withdrawn = self.ctx.pipeline(self.server()).borrow_mut().withdraw(self);
        if withdrawn.is_some() {
            self.state.borrow_mut().committing = false;
            self.notify();
            return true;
        }
        let request = self.ctx.pipeline(self.server()).borrow_mut().hurry(self);
        if let Some(request) = request {
            self.ctx.send_request(self.server(), request);
        }
        false
    }

    /// Commits what was accepted so far, in a batch of its own.
    pub(super) async fn commit_alone(self: &Rc<Self>) -> Result<(), Fault> {
        loop {
            self.claim_commit().await;
            let outcomes = self.ctx.commit_files(std::slice::from_ref(self), Purpose::Flush).await;
            match outcomes.into_iter().next().unwrap_or(Ok(())) {
                // Paused, or inline data moved to a block for want of room: once more.
                Err(Fault::Interrupted) => {}
                outcome => return outcome,
            }
        }
    }
}

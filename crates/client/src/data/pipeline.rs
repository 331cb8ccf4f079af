//! The commit pipeline of a client: which files are committed when, and together with which.
//!
//! A changed file *ages*. When it is old enough, or dirty bytes press, it joins the lane of the
//! devices that have its writes; one with much to write joins another one. A lane makes its files
//! stable in batches, with one flush of each device for a batch. Then the files are *ready*, and
//! tasks send them to the server, several in a request (paper 000 §III.A and §IV.B). An fsync takes
//! a lane of its own, whose batch is sent at once. A recall, an unmount and a caller that needs one
//! file's commit take that file out, or hurry it on (`Priority`).
//!
//! This module decides and does nothing: it is memory only, and knows no clock.
//!
//! Invariants (`validate`):
//! - the files that age are in the order in which they are due;
//! - a file ages at most once, and is in at most one other place: it waits in a lane, or is ready.
//!   It ages while it is committed if it changed again;
//! - a lane that has nobody waiting and no batch is gone; no more batches run than it may have;
//! - no more requests of tasks are in flight than there can be tasks, and at most [`HURRIED_MAX`]
//!   that were hurried on. These two do not wait for each other.

use std::collections::{BTreeMap, VecDeque};

use env::sync::OneSender;
use proto::commit::{CommitPolicy, Degree, TASKS_MAX, Tasks};
use types::limits::COMPOUND_OPS_MAX;
use types::{Duration, Fault, Ino, Instant};

use super::stamps::Devices;
use crate::boundary::CommitCounts;

/// Commits of one compound; the sender adds the other operations.
pub(super) const COMMITS_MAX: usize = COMPOUND_OPS_MAX - 4;
/// Files of one batch that became old enough: some full requests.
pub(super) const BATCH: usize = 4 * COMMITS_MAX;

/// Requests in flight with a file that somebody waits for. Another one waits until a task sends it.
pub(super) const HURRIED_MAX: usize = 32;

/// Stable files that are sent, with what is known of them.
pub(super) struct Request<F, S> {
    pub(super) files: Vec<(F, S)>,
    /// Somebody waits for it: it takes no task.
    pub(super) hurried: bool,
}

/// Why files are committed, the most urgent first. Each has lanes of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Priority {
    /// Callers of fsync wait.
    Sync,
    /// The files are old enough, or dirty bytes press.
    Age,
    /// The same, and they have much to write: no small file waits for that.
    Bulk,
}

impl Priority {
    /// Concurrent batches of files whose writes are on the same devices.
    fn batches(self) -> usize {
        match self {
            Priority::Sync => 2,
            Priority::Age | Priority::Bulk => 4,
        }
    }

    /// Files of a batch.
    fn files(self) -> usize {
        match self {
            Priority::Sync => COMMITS_MAX,
            Priority::Age | Priority::Bulk => BATCH,
        }
    }

    /// Does a batch wait until the one before it is stable? Callers that come meanwhile share the
    /// next flush.
    fn takes_turns(self) -> bool {
        self == Priority::Sync
    }
}

/// How a commit of one file ends.
pub(super) type Outcome = Result<(), Fault>;

/// The files that wait for the same devices, for the same reason.
pub(super) type LaneKey = (Priority, Devices);

/// A file.
pub(super) trait Member {
    /// Its number. After an eviction a file may be followed by another one of the same number.
    fn number(&self) -> Ino;
    /// Are they the same?
    fn is(&self, other: &Self) -> bool;
    /// Is there anything to commit? A file may have been committed while it aged.
    fn waits(&self) -> bool;
    /// Its last commit failed beside those of others: it is in a batch and a request of its own.
    fn is_alone(&self) -> bool;
}

/// A file that ages.
struct Aging<F> {
    file: F,
    due: Instant,
}

/// A file in a lane, and who wants to know how its commit ends.
pub(super) struct Waiting<F> {
    pub(super) file: F,
    pub(super) done: Option<OneSender<Outcome>>,
}

struct Lane<F> {
    waiting: VecDeque<Waiting<F>>,
    /// Batches in progress.
    running: usize,
    /// Those of them that are not stable yet.
    preparing: usize,
}

impl<F> Default for Lane<F> {
    fn default() -> Lane<F> {
        Lane { waiting: VecDeque::new(), running: 0, preparing: 0 }
    }
}

/// See the module. `F` is a file, `S` what is known of it once it is stable.
pub(super) struct Pipeline<F, S> {
    aging: VecDeque<Aging<F>>,
    lanes: BTreeMap<LaneKey, Lane<F>>,
    ready: VecDeque<(F, S)>,
    /// Requests of tasks in flight.
    sending: usize,
    /// Requests in flight that were hurried on.
    hurried: usize,
    tasks: Tasks,
    degree: Degree,
    /// Number of the last batch that files may leave.
    batch: u64,
    requests: u64,
    commits: u64,
}

impl<F: Member, S> Pipeline<F, S> {
    /// An empty pipeline.
    pub(super) fn new(policy: &CommitPolicy) -> Pipeline<F, S> {
        Pipeline {
            aging: VecDeque::new(),
            lanes: BTreeMap::new(),
            ready: VecDeque::new(),
            sending: 0,
            hurried: 0,
            tasks: Tasks::new(policy.tasks),
            degree: Degree::new(policy.degree, COMMITS_MAX),
            batch: 0,
            requests: 0,
            commits: 0,
        }
    }

    /// A file begins to age. Returns whether it is the first one that is due.
    pub(super) fn push(&mut self, file: F, due: Instant) -> bool {
        let at = self.aging.partition_point(|aging| aging.due <= due);
        self.aging.insert(at, Aging { file, due });
        self.validate();
        at == 0
    }

    /// If the file ages, it is due now, before all others.
    pub(super) fn make_due(&mut self, file: &F, now: Instant) -> bool {
        let Some(at) = self.aging.iter().position(|aging| aging.file.is(file)) else {
            return false;
        };
        let aging = self.aging.remove(at).expect("found");
        let due = self.aging.front().map_or(now, |front| front.due.min(now));
        self.aging.push_front(Aging { due, ..aging });
        true
    }

    /// The file ages no more.
    pub(super) fn forget(&mut self, file: &F) {
        self.aging.retain(|aging| !aging.file.is(file));
    }

    /// Takes out the first file that is due, if it is until `until`. With `pressure` every file is.
    pub(super) fn pop_due(&mut self, until: Instant, pressure: bool) -> Option<F> {
        self.aging.pop_front_if(|front| pressure || front.due <= until).map(|aging| aging.file)
    }

    /// When the oldest file is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.aging.front().map(|front| front.due)
    }

    /// A file joins a lane.
    pub(super) fn join(&mut self, key: &LaneKey, waiting: Waiting<F>) {
        self.lanes.entry(key.clone()).or_default().waiting.push_back(waiting);
        self.validate();
    }

    /// The next batch of the lane, if it may begin.
    pub(super) fn begin(&mut self, key: &LaneKey) -> Option<Vec<Waiting<F>>> {
        let lane = self.lanes.get_mut(key)?;
        let has_turn = !key.0.takes_turns() || lane.preparing == 0;
        if lane.waiting.is_empty() || lane.running >= key.0.batches() || !has_turn {
            return None;
        }
        lane.running += 1;
        lane.preparing += 1;
        let files = lane.waiting.iter().map(|waiting| &waiting.file);
        let count = together(files, key.0.files());
        let batch = lane.waiting.drain(..count).collect();
        self.validate();
        Some(batch)
    }

    /// A number that no other batch has.
    pub(super) fn number_batch(&mut self) -> u64 {
        self.batch += 1;
        self.batch
    }

    /// A batch of the lane is stable.
    pub(super) fn prepared(&mut self, key: &LaneKey) {
        self.lanes.get_mut(key).expect("it has a batch").preparing -= 1;
    }

    /// A batch of the lane, which is stable, has ended.
    pub(super) fn ended(&mut self, key: &LaneKey) {
        let lane = self.lanes.get_mut(key).expect("it has a batch");
        lane.running -= 1;
        if lane.running == 0 && lane.waiting.is_empty() {
            self.lanes.remove(key);
        }
        self.validate();
    }

    /// Somebody needs the file's commit: takes it out if it waits in a lane of aged files.
    pub(super) fn withdraw(&mut self, file: &F) -> Option<F> {
        let aged = self.lanes.iter_mut().filter(|(key, _)| key.0 != Priority::Sync);
        for (key, lane) in aged {
            let at = lane.waiting.iter().position(|waiting| waiting.file.is(file));
            let Some(at) = at else { continue };
            let waiting = lane.waiting.remove(at).expect("found");
            if lane.waiting.is_empty() && lane.running == 0 {
                let key = key.clone();
                self.lanes.remove(&key);
            }
            return Some(waiting.file);
        }
        None
    }

    /// Stable files wait for a task.
    pub(super) fn are_ready(&mut self, files: impl IntoIterator<Item = (F, S)>) {
        self.ready.extend(files);
        self.validate();
    }

    /// So many files are not committed.
    pub(super) fn queue_is(&mut self, queue: usize) {
        self.tasks.queue_is(queue);
    }

    /// The files of the next request, if a task may send one. `queue`: all files that are not
    /// committed.
    pub(super) fn next_request(&mut self, queue: usize) -> Option<Request<F, S>> {
        let tasks = self.tasks.queue_is(queue);
        if self.ready.is_empty() || self.sending >= tasks {
            return None;
        }
        let degree = self.degree.of(self.ready.len(), tasks);
        let count = together(self.ready.iter().map(|(file, _)| file), degree);
        let files = self.ready.drain(..count).collect();
        Some(self.begin_request(files, false))
    }

    /// Somebody needs the file's commit: if it is ready, the request that sends it at once, unless
    /// too many do so.
    pub(super) fn hurry(&mut self, file: &F) -> Option<Request<F, S>> {
        if self.hurried >= HURRIED_MAX {
            return None;
        }
        let at = self.ready.iter().position(|(ready, _)| ready.is(file))?;
        let ready = self.ready.remove(at).expect("found");
        Some(self.begin_request(vec![ready], true))
    }

    /// The file needs no commit now: takes it out if it waits for a task. Returns whether it did.
    pub(super) fn withdraw_ready(&mut self, file: &F) -> bool {
        let at = self.ready.iter().position(|(ready, _)| ready.is(file));
        at.and_then(|at| self.ready.remove(at)).is_some()
    }

    fn begin_request(&mut self, files: Vec<(F, S)>, hurried: bool) -> Request<F, S> {
        *self.in_flight(hurried) += 1;
        self.requests += 1;
        self.commits += files.len() as u64;
        self.validate();
        Request { files, hurried }
    }

    /// The requests in flight of this kind.
    fn in_flight(&mut self, hurried: bool) -> &mut usize {
        if hurried { &mut self.hurried } else { &mut self.sending }
    }

    /// A request was answered.
    pub(super) fn sent(&mut self, hurried: bool) {
        *self.in_flight(hurried) -= 1;
    }

    /// How long the server took to answer commits, and how many requests it had to work on.
    pub(super) fn answered(&mut self, now: Instant, took: Duration, load: u16) {
        self.degree.answered(now, took, load);
    }

    /// What it has done and holds. `queue`: all files that are not committed.
    pub(super) fn counts(&self, queue: usize) -> CommitCounts {
        CommitCounts {
            queue,
            requests: self.requests,
            files: self.commits,
            aging: self.aging.iter().filter(|aging| aging.file.waits()).count(),
            waiting: self.lanes.values().map(|lane| lane.waiting.len()).sum(),
            ready: self.ready.len(),
            sending: self.sending + self.hurried,
            tasks: self.tasks.now(),
            degree: self.degree.now(),
        }
    }

    /// Drops every file.
    pub(super) fn clear(&mut self) {
        self.aging.clear();
        self.ready.clear();
        self.lanes.values_mut().for_each(|lane| lane.waiting.clear());
        self.lanes.retain(|_, lane| lane.running > 0);
    }

    /// In builds with assertions: panics if an invariant of the module does not hold.
    fn validate(&self) {
        /// Larger pipelines are looked at in part, so that tests with many files end.
        const LOOKED_AT: usize = 64;
        if !cfg!(debug_assertions) {
            return;
        }
        for ((priority, devices), lane) in &self.lanes {
            let Lane { waiting, running, preparing } = lane;
            assert!(!waiting.is_empty() || *running > 0, "an idle lane of {devices:?}");
            assert!(*running <= priority.batches(), "{running} batches of {devices:?}");
            assert!(preparing <= running, "{preparing} of {running} batches are not stable");
        }
        let (sending, hurried) = (self.sending, self.hurried);
        assert!(sending <= TASKS_MAX, "{sending} requests of {TASKS_MAX} tasks at most");
        assert!(hurried <= HURRIED_MAX, "{hurried} requests were hurried on");
        assert!(self.aging.iter().take(LOOKED_AT).is_sorted_by_key(|aging| aging.due), "order");
        let aging = self.aging.iter().map(|aging| &aging.file).take(LOOKED_AT);
        let lanes = self.lanes.values().flat_map(|lane| lane.waiting.iter().take(LOOKED_AT));
        let waiting = lanes.map(|waiting| &waiting.file);
        let ready = self.ready.iter().map(|(file, _)| file).take(LOOKED_AT);
        assert_once(aging.collect(), "ages");
        assert_once(waiting.chain(ready).collect(), "is to be committed");
    }
}

/// How many of the first files go together, `most` at most: one, or those before one that goes
/// alone.
fn together<'a, F: Member + 'a>(files: impl Iterator<Item = &'a F>, most: usize) -> usize {
    let mut count = 0;
    for file in files.take(most) {
        if file.is_alone() {
            return count.max(1);
        }
        count += 1;
    }
    count
}

/// Panics if a file is there twice.
fn assert_once<F: Member>(mut files: Vec<&F>, what: &str) {
    files.sort_by_key(|file| file.number());
    for pair in files.windows(2) {
        assert!(!pair[0].is(pair[1]), "inode {} {what} twice", pair[0].number());
    }
}

#[cfg(test)]
mod tests {
    use proto::commit::Choice;
    use types::PagId;

    use super::*;

    impl Member for Ino {
        fn number(&self) -> Ino {
            *self
        }

        fn is(&self, other: &Ino) -> bool {
            self == other
        }

        fn waits(&self) -> bool {
            true
        }

        fn is_alone(&self) -> bool {
            self.0 >= ALONE
        }
    }

    /// Files from this number on are alone.
    const ALONE: u64 = 10_000;

    type TestPipeline = Pipeline<Ino, ()>;

    fn pipeline(tasks: usize, degree: usize) -> TestPipeline {
        let (tasks, degree) = (Choice::Fixed(tasks), Choice::Fixed(degree));
        Pipeline::new(&CommitPolicy { tasks, degree, ..CommitPolicy::default() })
    }

    fn key(priority: Priority) -> LaneKey {
        (priority, vec![PagId(1)])
    }

    fn join(pipeline: &mut TestPipeline, priority: Priority, files: std::ops::Range<u64>) {
        for file in files {
            pipeline.join(&key(priority), Waiting { file: Ino(file), done: None });
        }
    }

    fn begun(pipeline: &mut TestPipeline, priority: Priority) -> Option<usize> {
        pipeline.begin(&key(priority)).map(|batch| batch.len())
    }

    /// The files of a request.
    fn files(request: Option<Request<Ino, ()>>) -> Option<Vec<u64>> {
        Some(request?.files.into_iter().map(|(file, ())| file.0).collect())
    }

    #[test]
    fn files_age_in_order_and_pressure_makes_all_due() {
        let mut pipeline = pipeline(1, 1);
        assert!(pipeline.push(Ino(1), Instant(10)));
        assert!(!pipeline.push(Ino(2), Instant(20)));
        assert_eq!(pipeline.pop_due(Instant(9), false), None);
        assert!(pipeline.make_due(&Ino(2), Instant(9)) && !pipeline.make_due(&Ino(3), Instant(9)));
        assert_eq!(pipeline.pop_due(Instant(9), false), Some(Ino(2)));
        assert_eq!(
            (pipeline.pop_due(Instant(9), false), pipeline.next_due()),
            (None, Some(Instant(10)))
        );
        assert_eq!(pipeline.pop_due(Instant(9), true), Some(Ino(1)));
        pipeline.push(Ino(4), Instant(0));
        pipeline.forget(&Ino(4));
        assert_eq!(pipeline.next_due(), None);
    }

    #[test]
    fn fsyncs_that_come_while_a_batch_becomes_stable_share_the_next_one() {
        let mut pipeline = pipeline(1, 1);
        join(&mut pipeline, Priority::Sync, 1..2);
        assert_eq!(begun(&mut pipeline, Priority::Sync), Some(1));
        join(&mut pipeline, Priority::Sync, 2..5);
        assert_eq!(begun(&mut pipeline, Priority::Sync), None);
        pipeline.prepared(&key(Priority::Sync));
        assert_eq!(begun(&mut pipeline, Priority::Sync), Some(3), "the server logs the first");
        pipeline.prepared(&key(Priority::Sync));
        join(&mut pipeline, Priority::Sync, 5..6);
        assert_eq!(begun(&mut pipeline, Priority::Sync), None, "two are in progress");
        pipeline.ended(&key(Priority::Sync));
        assert_eq!(begun(&mut pipeline, Priority::Sync), Some(1));
    }

    #[test]
    fn fsync_waits_for_no_aged_file_and_takes_its_file_out_of_their_lane() {
        let mut pipeline = pipeline(1, 1);
        join(&mut pipeline, Priority::Age, 1..961);
        let batches: Vec<_> = (0..5).map(|_| begun(&mut pipeline, Priority::Age)).collect();
        assert_eq!(batches, [Some(BATCH), Some(BATCH), Some(BATCH), Some(BATCH), None]);
        join(&mut pipeline, Priority::Age, 1000..1003);
        join(&mut pipeline, Priority::Sync, 2000..2001);
        assert_eq!(begun(&mut pipeline, Priority::Age), None);
        assert_eq!(begun(&mut pipeline, Priority::Sync), Some(1));
        assert_eq!(pipeline.withdraw(&Ino(1001)), Some(Ino(1001)));
        assert_eq!(pipeline.withdraw(&Ino(1001)), None);
        assert_eq!(pipeline.withdraw(&Ino(2000)), None, "its batch has begun");
        assert_eq!(pipeline.counts(0).waiting, 2);
        (0..4).for_each(|_| pipeline.prepared(&key(Priority::Age)));
        (0..4).for_each(|_| pipeline.ended(&key(Priority::Age)));
        assert_eq!(begun(&mut pipeline, Priority::Age), Some(2));
    }

    #[test]
    fn tasks_send_what_is_ready_and_a_hurried_file_waits_for_none() {
        let mut pipeline = pipeline(2, 3);
        pipeline.are_ready((1..11).map(|file| (Ino(file), ())));
        assert_eq!(files(pipeline.next_request(10)), Some(vec![1, 2, 3]));
        assert_eq!(files(pipeline.next_request(10)), Some(vec![4, 5, 6]));
        assert_eq!(files(pipeline.next_request(10)), None);
        assert_eq!(files(pipeline.hurry(&Ino(9))), Some(vec![9]));
        assert_eq!(files(pipeline.hurry(&Ino(4))), None, "it is on its way");
        pipeline.sent(true);
        assert_eq!(files(pipeline.next_request(10)), None, "those of the tasks are in flight");
        pipeline.sent(false);
        assert_eq!(files(pipeline.next_request(10)), Some(vec![7, 8, 10]));
        let CommitCounts { requests, files, ready, sending, .. } = pipeline.counts(0);
        assert_eq!((requests, files, ready, sending), (4, 10, 0, 2));
    }

    #[test]
    fn steady_hurry_keeps_no_task_from_sending_and_is_bounded() {
        let mut pipeline = pipeline(2, 3);
        let last = HURRIED_MAX as u64 + 10;
        pipeline.are_ready((1..=last).map(|file| (Ino(file), ())));
        for file in 11..=last {
            assert_eq!(files(pipeline.hurry(&Ino(file))), Some(vec![file]));
        }
        assert_eq!(files(pipeline.hurry(&Ino(5))), None, "it waits for a task");
        assert_eq!(files(pipeline.next_request(90)), Some(vec![1, 2, 3]));
        assert_eq!(files(pipeline.next_request(90)), Some(vec![4, 5, 6]));
        assert_eq!(files(pipeline.next_request(90)), None);
        pipeline.sent(true);
        assert_eq!(files(pipeline.hurry(&Ino(9))), Some(vec![9]));
        pipeline.sent(false);
        assert_eq!(files(pipeline.next_request(90)), Some(vec![7, 8, 10]));
        assert_eq!(pipeline.counts(0).sending, HURRIED_MAX + 2);
    }

    #[test]
    fn file_that_failed_beside_others_is_in_a_batch_and_a_request_of_its_own() {
        let mut pipeline = pipeline(9, 6);
        join(&mut pipeline, Priority::Age, 1..3);
        join(&mut pipeline, Priority::Age, ALONE..ALONE + 2);
        join(&mut pipeline, Priority::Age, 3..6);
        let batches: Vec<_> = (0..5).map(|_| begun(&mut pipeline, Priority::Age)).collect();
        assert_eq!(batches, [Some(2), Some(1), Some(1), Some(3), None], "four at most at once");
        pipeline.are_ready([1, 2, ALONE, 3].map(|file| (Ino(file), ())));
        let requests: Vec<_> =
            (0..4).map(|_| files(pipeline.next_request(4)).map(|files| files.len())).collect();
        assert_eq!(requests, [Some(2), Some(1), Some(1), None]);
    }

    #[test]
    #[should_panic(expected = "inode 7 is to be committed twice")]
    fn file_in_two_places_is_noticed() {
        let mut pipeline = pipeline(1, 1);
        pipeline.push(Ino(7), Instant(0));
        pipeline.are_ready([(Ino(7), ())]);
        join(&mut pipeline, Priority::Sync, 7..8);
    }
}

//! One phase (003 §III): the worker commits when it is asked, and the coordinator's redo makes sure
//! that it follows.
//!
//! Coordinator:
//!
//! | phase | event | next |
//! |---|---|---|
//! | starting | STARTED, with the redo, is durable | asked; UPDATE REQ |
//! | starting | there is no room for STARTED | frees the locks, answers; over |
//! | waiting (a restart found STARTED) | its turn has come | asked; UPDATE REQ |
//! | asked | UPDATED, or the worker asks for ACK, or its log holds COMMITTED after the fence | applies its updates, frees the locks, answers; forces COMMITTED |
//! | committing | COMMITTED is durable | ACK; over |
//! | asked | REFUSED, or the fenced worker's log holds nothing | forces ABORTED |
//! | aborting | ABORTED is durable | frees the locks, answers; over |
//! | asked | time is over | UPDATE REQ again; suspects the worker |
//!
//! Worker:
//!
//! | phase | event | next |
//! |---|---|---|
//! | planning | planned | applies, forces COMMITTED |
//! | planning | refused | REFUSED; over |
//! | committing | COMMITTED is durable | frees the locks; UPDATED |
//! | committed | ACK | ENDED; over |
//! | committed | UPDATE REQ again | UPDATED again |
//! | committed | time is over, or the coordinator is back | asks for ACK |

use types::ShardId;

use crate::message::{Kept, Message, Part};
use crate::site::{Event, Step, Turn};
use crate::{Outcome, Record};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Coordinator {
    worker: ShardId,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Starting,
    Waiting,
    Asked,
    Committing,
    Aborting,
}

/// How far a transaction is that is done again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Waiting,
    Asked,
    /// Its updates are applied, or never will be.
    Decided,
}

impl Coordinator {
    pub(crate) fn new(worker: ShardId) -> Coordinator {
        Coordinator { worker, phase: Phase::Starting }
    }

    pub(crate) fn waiting(worker: ShardId) -> Coordinator {
        Coordinator { worker, phase: Phase::Waiting }
    }

    pub(crate) fn worker(&self) -> ShardId {
        self.worker
    }

    pub(crate) fn progress(&self) -> Progress {
        match self.phase {
            Phase::Starting | Phase::Waiting => Progress::Waiting,
            Phase::Asked => Progress::Asked,
            Phase::Committing | Phase::Aborting => Progress::Decided,
        }
    }

    pub(crate) fn step(&mut self, turn: &mut Turn<'_>, event: Event) -> Step {
        match (self.phase, event) {
            (Phase::Starting, Event::Logged(Record::Started)) | (Phase::Waiting, Event::Redo) => {
                self.phase = Phase::Asked;
                turn.send_request(self.worker);
            }
            (Phase::Asked, Event::Heard(from, Message::Updated | Message::Ask))
                if from == self.worker =>
            {
                self.commit(turn);
            }
            (Phase::Starting, Event::NoRoom(Record::Started)) => {
                turn.unlock();
                turn.reply(Outcome::Aborted);
                return Step::Over;
            }
            // A transaction that still waits for its turn asks when that comes.
            (Phase::Asked, Event::Fenced(true)) => self.commit(turn),
            (Phase::Asked, Event::Heard(from, Message::Refused)) if from == self.worker => {
                self.abort(turn);
            }
            (Phase::Asked, Event::Fenced(false)) => self.abort(turn),
            (Phase::Asked, Event::Overdue) => {
                turn.send_request(self.worker);
                turn.suspect(self.worker);
            }
            (Phase::Asked, Event::Repeat(shard)) if shard == self.worker => {
                turn.send_request(self.worker);
            }
            (Phase::Committing, Event::Logged(Record::Committed)) => {
                turn.send(self.worker, Message::Ack);
                return Step::Over;
            }
            (Phase::Aborting, Event::Logged(Record::Aborted)) => {
                turn.unlock();
                turn.reply(Outcome::Aborted);
                return Step::Over;
            }
            _ => {}
        }
        Step::On
    }

    fn commit(&mut self, turn: &mut Turn<'_>) {
        self.phase = Phase::Committing;
        turn.force_patiently(Record::Committed);
        turn.unlock();
        turn.reply(Outcome::Committed);
    }

    fn abort(&mut self, turn: &mut Turn<'_>) {
        self.phase = Phase::Aborting;
        turn.force(Record::Aborted, None);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Worker {
    Planning,
    Committing,
    Committed,
}

impl Worker {
    pub(crate) fn new() -> Worker {
        Worker::Planning
    }

    pub(crate) fn committed() -> Worker {
        Worker::Committed
    }

    pub(crate) fn step(&mut self, turn: &mut Turn<'_>, event: Event) -> Step {
        let coordinator = turn.id.coordinator;
        match (*self, event) {
            (Worker::Planning, Event::Planned(true)) => {
                *self = Worker::Committing;
                turn.force(Record::Committed, Some((Part::Worker, Kept::Committed)));
            }
            (Worker::Planning, Event::Planned(false)) => {
                turn.unlock();
                turn.send(coordinator, Message::Refused);
                return Step::Refused;
            }
            (Worker::Committing, Event::Logged(Record::Committed)) => {
                *self = Worker::Committed;
                turn.unlock();
                turn.send(coordinator, Message::Updated);
            }
            (Worker::Committed, Event::Heard(from, message)) if from == coordinator => {
                match message {
                    Message::UpdateReq { .. } => turn.send(coordinator, Message::Updated),
                    Message::Ack => {
                        turn.write_lazily(Record::Ended);
                        return Step::Over;
                    }
                    _ => {}
                }
            }
            (Worker::Committed, Event::Overdue) => turn.send(coordinator, Message::Ask),
            (Worker::Committed, Event::Repeat(shard)) if shard == coordinator => {
                turn.send(coordinator, Message::Ask);
            }
            _ => {}
        }
        Step::On
    }
}

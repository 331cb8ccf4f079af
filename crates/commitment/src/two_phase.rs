//! Two phases: PrN, PrC and EP (003 §II).
//!
//! Coordinator:
//!
//! | phase | event | next |
//! |---|---|---|
//! | starting | STARTED is durable | updating; UPDATE REQ. EP: voting, and forces PREPARED |
//! | starting | there is no room for STARTED | frees the locks, answers; over |
//! | updating | all UPDATED | voting; PREPARE, and forces PREPARED |
//! | voting | all PREPARED (EP: UPDATED), its own record too | forces COMMITTED |
//! | committing | COMMITTED is durable | frees the locks, COMMIT; PrC, EP: answers, over; PrN: closing |
//! | updating, voting | REFUSED, NOT-PREPARED, no room for PREPARED, or time is over | forces ABORTED |
//! | aborting | ABORTED is durable | frees the locks, answers, ABORT; closing |
//! | closing | all ACK | ENDED; PrN after a commit: answers |
//!
//! Worker:
//!
//! | phase | event | next |
//! |---|---|---|
//! | planning | planned | UPDATED; EP: forces PREPARED first |
//! | planning | refused | REFUSED, over |
//! | updated | PREPARE | forces PREPARED, then PREPARED |
//! | updated, planning | there is no room for PREPARED | frees the locks, REFUSED; over |
//! | updated | time is over | forgets it: PREPARE will find nothing |
//! | prepared | COMMIT | COMMITTED, with PrN forced, then ACK; frees the locks; over |
//! | any | ABORT | ABORTED, forced if PREPARED was written; frees the locks, ACK; over |
//! | prepared | time is over, or the coordinator is back | asks |

use types::ShardId;

use crate::message::{Kept, Message, Part};
use crate::site::{Event, Step, Turn};
use crate::{Outcome, Protocol, Record};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Coordinator {
    phase: Phase,
    seats: Vec<Seat>,
    /// Its own PREPARED is durable.
    prepared: bool,
    /// A restart has found it.
    recovered: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Starting,
    Updating,
    Voting,
    Committing,
    Aborting,
    Closing(Outcome),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Seat {
    worker: ShardId,
    /// It has said what this phase waits for.
    answered: bool,
}

impl Coordinator {
    pub(crate) fn new(workers: Vec<ShardId>) -> Coordinator {
        let seat = |worker| Seat { worker, answered: false };
        Coordinator {
            phase: Phase::Starting,
            seats: workers.into_iter().map(seat).collect(),
            prepared: false,
            recovered: false,
        }
    }

    pub(crate) fn recovered(workers: Vec<ShardId>, kept: Kept) -> Coordinator {
        let phase = match kept {
            Kept::Started | Kept::Aborted => Phase::Closing(Outcome::Aborted),
            Kept::Prepared => Phase::Voting,
            Kept::Committed => Phase::Closing(Outcome::Committed),
        };
        Coordinator { phase, prepared: true, recovered: true, ..Coordinator::new(workers) }
    }

    pub(crate) fn step(&mut self, turn: &mut Turn<'_>, event: Event) -> Step {
        match event {
            Event::Logged(record) => return self.logged(turn, record),
            Event::Heard(from, message) => {
                if let Some(at) = self.seats.iter().position(|seat| seat.worker == from) {
                    return self.heard(turn, at, message);
                }
            }
            Event::Overdue => match self.phase {
                Phase::Updating | Phase::Voting => self.abort(turn),
                Phase::Closing(_) => self.ask(turn, |_| true),
                Phase::Starting | Phase::Committing | Phase::Aborting => {}
            },
            Event::Repeat(shard) => self.ask(turn, |worker| worker == shard),
            Event::NoRoom(Record::Started) if self.phase == Phase::Starting => {
                turn.unlock();
                turn.reply(Outcome::Aborted);
                return Step::Over;
            }
            Event::NoRoom(_) if self.phase == Phase::Voting => self.abort(turn),
            Event::NoRoom(_) | Event::Planned(_) | Event::Fenced(_) | Event::Redo => {}
        }
        Step::On
    }

    fn logged(&mut self, turn: &mut Turn<'_>, record: Record) -> Step {
        match (record, self.phase) {
            (Record::Started, Phase::Starting) => {
                self.phase = Phase::Updating;
                if turn.protocol == Protocol::EarlyPrepare {
                    self.vote(turn);
                } else {
                    self.ask(turn, |_| true);
                }
            }
            (Record::Prepared, Phase::Voting) => {
                self.prepared = true;
                self.count_votes(turn);
            }
            (Record::Committed, Phase::Committing) => {
                turn.unlock();
                self.close(turn, Outcome::Committed);
                if turn.protocol != Protocol::PresumeNothing {
                    turn.reply(Outcome::Committed);
                    return Step::Over;
                }
            }
            (Record::Aborted, Phase::Aborting) => {
                turn.unlock();
                turn.reply(Outcome::Aborted);
                self.close(turn, Outcome::Aborted);
            }
            _ => {}
        }
        Step::On
    }

    fn heard(&mut self, turn: &mut Turn<'_>, at: usize, message: Message) -> Step {
        let early = turn.protocol == Protocol::EarlyPrepare;
        match (self.phase, message) {
            (Phase::Updating, Message::Updated) => {
                self.seats[at].answered = true;
                if self.seats.iter().all(|seat| seat.answered) {
                    self.vote(turn);
                }
            }
            // Who asks for the outcome has prepared.
            (Phase::Voting, Message::Prepared | Message::Ask) => self.voted(turn, at),
            (Phase::Voting, Message::Updated) if early => self.voted(turn, at),
            (Phase::Updating | Phase::Voting, Message::Refused | Message::NotPrepared) => {
                self.abort(turn);
            }
            (Phase::Closing(_), Message::Ask) => {
                let worker = self.seats[at].worker;
                self.ask(turn, |other| other == worker);
            }
            (Phase::Closing(outcome), Message::Ack) => {
                self.seats[at].answered = true;
                if self.seats.iter().all(|seat| seat.answered) {
                    turn.write_lazily(Record::Ended);
                    if outcome == Outcome::Committed {
                        turn.reply(outcome);
                    }
                    return Step::Over;
                }
            }
            _ => {}
        }
        Step::On
    }

    /// All updates can be made: who can commit?
    fn vote(&mut self, turn: &mut Turn<'_>) {
        self.enter(Phase::Voting);
        self.ask(turn, |_| true);
        turn.force(Record::Prepared, self.keeps(Kept::Prepared));
    }

    fn voted(&mut self, turn: &mut Turn<'_>, at: usize) {
        self.seats[at].answered = true;
        self.count_votes(turn);
    }

    fn count_votes(&mut self, turn: &mut Turn<'_>) {
        if self.prepared && self.seats.iter().all(|seat| seat.answered) {
            self.enter(Phase::Committing);
            // With PrC and EP a coordinator that knows nothing has committed.
            let keeps = match turn.protocol {
                Protocol::PresumeNothing => self.keeps(Kept::Committed),
                _ => None,
            };
            turn.force(Record::Committed, keeps);
        }
    }

    fn abort(&mut self, turn: &mut Turn<'_>) {
        self.enter(Phase::Aborting);
        turn.force(Record::Aborted, self.keeps(Kept::Aborted));
    }

    fn close(&mut self, turn: &mut Turn<'_>, outcome: Outcome) {
        self.enter(Phase::Closing(outcome));
        self.ask(turn, |_| true);
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        for seat in &mut self.seats {
            seat.answered = false;
        }
    }

    fn keeps(&self, kept: Kept) -> Option<(Part, Kept)> {
        let workers = self.seats.iter().map(|seat| seat.worker).collect();
        Some((Part::Coordinator(workers), kept))
    }

    /// Says to those of the workers that have not answered what this phase waits for.
    fn ask(&self, turn: &mut Turn<'_>, of: impl Fn(ShardId) -> bool) {
        let waits = self.seats.iter().filter(|seat| !seat.answered && of(seat.worker));
        for seat in waits {
            match self.phase {
                Phase::Updating => turn.send_request(seat.worker),
                Phase::Voting if turn.protocol == Protocol::EarlyPrepare && !self.recovered => {
                    turn.send_request(seat.worker);
                }
                Phase::Voting => turn.send(seat.worker, Message::Prepare),
                Phase::Closing(Outcome::Committed) => turn.send(seat.worker, Message::Commit),
                Phase::Closing(Outcome::Aborted) => turn.send(seat.worker, Message::Abort),
                Phase::Starting | Phase::Committing | Phase::Aborting => {}
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Worker {
    Planning,
    Updated,
    Preparing,
    Prepared,
    Committing,
    Aborting,
}

impl Worker {
    pub(crate) fn new() -> Worker {
        Worker::Planning
    }

    pub(crate) fn prepared() -> Worker {
        Worker::Prepared
    }

    pub(crate) fn step(&mut self, turn: &mut Turn<'_>, event: Event) -> Step {
        let coordinator = turn.id.coordinator;
        match (*self, event) {
            (Worker::Planning, Event::Planned(true)) => {
                if turn.protocol == Protocol::EarlyPrepare {
                    self.prepare(turn);
                } else {
                    *self = Worker::Updated;
                    turn.send(coordinator, Message::Updated);
                }
            }
            (Worker::Planning, Event::Planned(false))
            | (Worker::Preparing, Event::NoRoom(Record::Prepared)) => {
                turn.unlock();
                turn.send(coordinator, Message::Refused);
                return Step::Refused;
            }
            (Worker::Updated, Event::Overdue) => {
                turn.unlock();
                return Step::Over;
            }
            (Worker::Preparing, Event::Logged(Record::Prepared)) => {
                *self = Worker::Prepared;
                self.say_prepared(turn);
            }
            (Worker::Committing, Event::Logged(Record::Committed))
            | (Worker::Aborting, Event::Logged(Record::Aborted)) => {
                turn.unlock();
                turn.send(coordinator, Message::Ack);
                return Step::Over;
            }
            (Worker::Prepared, Event::Overdue) => turn.send(coordinator, Message::Ask),
            (Worker::Prepared, Event::Repeat(shard)) if shard == coordinator => {
                turn.send(coordinator, Message::Ask);
            }
            (_, Event::Heard(from, message)) if from == coordinator => {
                return self.heard(turn, message);
            }
            _ => {}
        }
        Step::On
    }

    fn heard(&mut self, turn: &mut Turn<'_>, message: Message) -> Step {
        match (*self, message) {
            (Worker::Updated, Message::UpdateReq { .. }) => {
                turn.send(turn.id.coordinator, Message::Updated);
            }
            (Worker::Updated, Message::Prepare) => self.prepare(turn),
            (Worker::Prepared, Message::Prepare | Message::UpdateReq { .. }) => {
                self.say_prepared(turn);
            }
            (Worker::Prepared, Message::Commit) => {
                if turn.protocol == Protocol::PresumeNothing {
                    *self = Worker::Committing;
                    turn.force(Record::Committed, None);
                } else {
                    turn.write_lazily(Record::Committed);
                    turn.unlock();
                    return Step::Over;
                }
            }
            (Worker::Planning | Worker::Updated, Message::Abort) => {
                turn.unlock();
                turn.send(turn.id.coordinator, Message::Ack);
                return Step::Over;
            }
            (Worker::Preparing | Worker::Prepared, Message::Abort) => {
                *self = Worker::Aborting;
                turn.force(Record::Aborted, None);
            }
            _ => {}
        }
        Step::On
    }

    fn prepare(&mut self, turn: &mut Turn<'_>) {
        *self = Worker::Preparing;
        turn.force(Record::Prepared, Some((Part::Worker, Kept::Prepared)));
    }

    /// With EP the vote is the answer to the update, which exists anyway.
    fn say_prepared(&self, turn: &mut Turn<'_>) {
        let message = match turn.protocol {
            Protocol::EarlyPrepare => Message::Updated,
            _ => Message::Prepared,
        };
        turn.send(turn.id.coordinator, message);
    }
}

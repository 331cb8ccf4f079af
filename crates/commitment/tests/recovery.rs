//! The table of recovery of the crate's documentation: a test per cell (003 §II.C, §III.C).
#![allow(missing_docs, reason = "a test program has no users")]

use commitment::{
    Action, Aside, Entry, Envelope, Guards, Kept, Message, Outcome, Part, Path, Protocol, Record,
    Site, TxnId,
};
use types::{Epoch, ShardId};

const COORDINATOR: ShardId = ShardId(0);
const WORKER: ShardId = ShardId(1);
/// The epoch before and after the restart.
const OLD: Epoch = Epoch(4);
const NEW: Epoch = Epoch(5);

fn id() -> TxnId {
    TxnId { coordinator: COORDINATOR, epoch: OLD, number: 7 }
}

/// A shard after its restart, which can reach the other one.
struct Restarted {
    site: Site,
    actions: Vec<Action>,
}

impl Restarted {
    fn with(shard: ShardId, entry: Option<Entry>) -> Restarted {
        let entries = entry.map(|entry| (id(), entry));
        let (mut site, mut actions) = Site::recover(shard, NEW, Guards::ALL, entries);
        let other = if shard == COORDINATOR { WORKER } else { COORDINATOR };
        site.peer(other, OLD, &mut actions);
        Restarted { site, actions }
    }

    /// What it says now, and has not said before.
    fn says(&mut self) -> Vec<Message> {
        let said = self.actions.iter().filter_map(|action| match action {
            Action::Send(envelope) => Some(envelope.message),
            _ => None,
        });
        let said = said.collect();
        self.actions.retain(|action| !matches!(action, Action::Send(_)));
        said
    }

    /// What it writes now.
    fn writes(&mut self) -> Vec<Record> {
        let written = self.actions.iter().filter_map(|action| match action {
            Action::Write { record, .. } => Some(*record),
            _ => None,
        });
        let written = written.collect();
        self.actions.retain(|action| !matches!(action, Action::Write { .. }));
        written
    }

    fn hears(&mut self, protocol: Protocol, message: Message) {
        self.hears_from_epoch(protocol, message, OLD, NEW);
    }

    fn hears_from_epoch(&mut self, protocol: Protocol, message: Message, from: Epoch, to: Epoch) {
        let me = self.site.shard();
        let envelope = Envelope {
            from: if me == COORDINATOR { WORKER } else { COORDINATOR },
            from_epoch: from,
            to: me,
            to_epoch: to,
            id: id(),
            protocol,
            path: Aside(Path::default()),
            message,
        };
        self.site.receive(envelope, &mut self.actions);
    }

    fn logged(&mut self, record: Record) {
        self.site.logged(id(), record, &mut self.actions);
    }

    fn replies(&self) -> Vec<Outcome> {
        let replies = self.actions.iter().filter_map(|action| match action {
            Action::Reply(_, outcome) => Some(*outcome),
            _ => None,
        });
        replies.collect()
    }
}

fn coordinator(protocol: Protocol, kept: Kept) -> Restarted {
    let part = Part::Coordinator(vec![WORKER]);
    Restarted::with(COORDINATOR, Some(Entry { protocol, part, kept }))
}

fn worker(protocol: Protocol, kept: Kept) -> Restarted {
    Restarted::with(WORKER, Some(Entry { protocol, part: Part::Worker, kept }))
}

fn nothing(shard: ShardId) -> Restarted {
    Restarted::with(shard, None)
}

fn request() -> Message {
    Message::UpdateReq { oldest: id() }
}

const TWO_PHASES: [Protocol; 3] =
    [Protocol::PresumeNothing, Protocol::PresumeCommit, Protocol::EarlyPrepare];
const PRESUMING: [Protocol; 2] = [Protocol::PresumeCommit, Protocol::EarlyPrepare];

#[test]
fn coordinator_with_started_aborts() {
    for protocol in TWO_PHASES {
        let mut it = coordinator(protocol, Kept::Started);
        assert_eq!(it.says(), [Message::Abort]);
        it.hears(protocol, Message::Ack);
        assert_eq!(it.writes(), [Record::Ended]);
        assert!(it.site.is_idle());
    }
}

#[test]
fn coordinator_with_prepared_asks_for_votes_again() {
    for protocol in TWO_PHASES {
        let mut it = coordinator(protocol, Kept::Prepared);
        assert_eq!(it.says(), [Message::Prepare]);
        it.hears(protocol, Message::Prepared);
        assert_eq!(it.writes(), [Record::Committed]);
        it.logged(Record::Committed);
        assert_eq!(it.says(), [Message::Commit]);
    }
}

#[test]
fn coordinator_with_prepared_aborts_if_the_worker_knows_nothing() {
    for protocol in TWO_PHASES {
        let mut it = coordinator(protocol, Kept::Prepared);
        it.says();
        it.hears(protocol, Message::NotPrepared);
        assert_eq!(it.writes(), [Record::Aborted]);
        assert_eq!(it.says(), [], "before the abort is durable");
        it.logged(Record::Aborted);
        assert_eq!(it.says(), [Message::Abort]);
    }
}

#[test]
fn coordinator_of_prn_with_committed_says_so_again() {
    let mut it = coordinator(Protocol::PresumeNothing, Kept::Committed);
    assert_eq!(it.says(), [Message::Commit]);
    it.hears(Protocol::PresumeNothing, Message::Ack);
    assert_eq!(it.writes(), [Record::Ended]);
    assert!(it.site.is_idle());
}

#[test]
fn coordinator_with_aborted_says_so_again() {
    for protocol in TWO_PHASES {
        let mut it = coordinator(protocol, Kept::Aborted);
        assert_eq!(it.says(), [Message::Abort]);
        it.hears(protocol, Message::Ack);
        assert_eq!(it.writes(), [Record::Ended]);
    }
}

#[test]
fn coordinator_with_nothing_does_nothing() {
    let mut it = nothing(COORDINATOR);
    assert_eq!((it.says(), it.writes()), (vec![], vec![]));
    assert!(it.site.is_idle() && it.site.is_ready());
}

#[test]
fn coordinator_of_prn_with_nothing_answers_abort() {
    let mut it = nothing(COORDINATOR);
    it.hears(Protocol::PresumeNothing, Message::Ask);
    assert_eq!(it.says(), [Message::Abort]);
}

#[test]
fn coordinator_that_presumes_answers_commit_with_nothing() {
    for protocol in PRESUMING {
        let mut it = nothing(COORDINATOR);
        it.hears(protocol, Message::Ask);
        assert_eq!(it.says(), [Message::Commit]);
    }
}

#[test]
fn worker_with_prepared_asks() {
    for protocol in TWO_PHASES {
        let mut it = worker(protocol, Kept::Prepared);
        assert_eq!(it.says(), [Message::Ask]);
        it.hears(protocol, Message::Commit);
        assert_eq!(it.writes(), [Record::Committed]);
    }
}

#[test]
fn worker_with_prepared_obeys_an_abort() {
    for protocol in TWO_PHASES {
        let mut it = worker(protocol, Kept::Prepared);
        it.says();
        it.hears(protocol, Message::Abort);
        assert_eq!((it.writes(), it.says()), (vec![Record::Aborted], vec![]));
        it.logged(Record::Aborted);
        assert_eq!(it.says(), [Message::Ack]);
    }
}

#[test]
fn worker_with_nothing_is_not_prepared() {
    for protocol in TWO_PHASES {
        let mut it = nothing(WORKER);
        it.hears(protocol, Message::Prepare);
        assert_eq!((it.says(), it.writes()), (vec![Message::NotPrepared], vec![]));
    }
}

#[test]
fn worker_of_prn_with_nothing_acknowledges_a_commit() {
    let mut it = nothing(WORKER);
    it.hears(Protocol::PresumeNothing, Message::Commit);
    assert_eq!((it.says(), it.writes()), (vec![Message::Ack], vec![]));
}

#[test]
fn worker_with_nothing_ignores_a_presumed_commit() {
    for protocol in PRESUMING {
        let mut it = nothing(WORKER);
        it.hears(protocol, Message::Commit);
        assert_eq!((it.says(), it.writes()), (vec![], vec![]));
    }
}

#[test]
fn worker_with_nothing_acknowledges_an_abort_and_refuses_what_comes_late() {
    for protocol in TWO_PHASES {
        let mut it = nothing(WORKER);
        it.hears(protocol, Message::Abort);
        assert_eq!(it.says(), [Message::Ack]);
        it.hears(protocol, request());
        assert_eq!(it.actions, [], "a request that comes late is not planned");
    }
}

#[test]
fn one_phase_coordinator_with_started_does_it_again() {
    let mut it = coordinator(Protocol::OnePhase, Kept::Started);
    assert_eq!(it.says(), [request()]);
    assert!(!it.site.is_ready(), "new requests wait");
    it.hears(Protocol::OnePhase, Message::Updated);
    assert_eq!(it.writes(), [Record::Committed]);
    assert!(it.site.is_ready());
    it.logged(Record::Committed);
    assert_eq!(it.says(), [Message::Ack]);
}

#[test]
fn one_phase_coordinator_does_started_ones_again_in_their_order() {
    let entry = || Entry {
        protocol: Protocol::OnePhase,
        part: Part::Coordinator(vec![WORKER]),
        kept: Kept::Started,
    };
    let second = TxnId { number: 8, ..id() };
    let entries = [(id(), entry()), (second, entry())];
    let (site, actions) = Site::recover(COORDINATOR, NEW, Guards::ALL, entries);
    let mut it = Restarted { site, actions };
    it.site.peer(WORKER, OLD, &mut it.actions);
    assert_eq!(it.says(), [request()], "the second waits");
    it.hears(Protocol::OnePhase, Message::Updated);
    let oldest = Message::UpdateReq { oldest: id() };
    assert_eq!(it.says(), [oldest], "the second, while the first waits for its log");
}

#[test]
fn one_phase_coordinator_with_nothing_answers_ack() {
    let mut it = nothing(COORDINATOR);
    it.hears(Protocol::OnePhase, Message::Ask);
    assert_eq!(it.says(), [Message::Ack]);
}

#[test]
fn one_phase_worker_with_committed_asks_for_the_acknowledgement() {
    let mut it = worker(Protocol::OnePhase, Kept::Committed);
    assert_eq!(it.says(), [Message::Ask]);
    it.hears(Protocol::OnePhase, Message::Ack);
    assert_eq!(it.writes(), [Record::Ended]);
    assert!(it.site.is_idle());
}

#[test]
fn one_phase_worker_with_committed_repeats_updated() {
    let mut it = worker(Protocol::OnePhase, Kept::Committed);
    it.says();
    it.hears(Protocol::OnePhase, request());
    assert_eq!((it.says(), it.writes()), (vec![Message::Updated], vec![]));
}

#[test]
fn one_phase_worker_with_nothing_does_nothing() {
    let mut it = nothing(WORKER);
    it.hears(Protocol::OnePhase, Message::Ack);
    assert_eq!(it.actions, []);
}

/// A coordinator of 1PC whose worker is silent.
fn in_doubt() -> Restarted {
    let mut it = coordinator(Protocol::OnePhase, Kept::Started);
    it.says();
    it.site.overdue(id(), &mut it.actions);
    assert!(it.actions.contains(&Action::Suspect(id(), WORKER)));
    assert_eq!(it.says(), [request()]);
    it
}

#[test]
fn fenced_worker_with_committed_means_commit() {
    let mut it = in_doubt();
    it.site.fenced(WORKER, OLD, &[id()], &mut it.actions);
    assert_eq!(it.writes(), [Record::Committed]);
    assert_eq!(it.replies(), [Outcome::Committed]);
}

#[test]
fn fenced_worker_with_nothing_means_abort() {
    let mut it = in_doubt();
    it.site.fenced(WORKER, OLD, &[], &mut it.actions);
    assert_eq!(it.writes(), [Record::Aborted]);
    assert_eq!(it.replies(), [], "before the redo is dead for certain");
    it.logged(Record::Aborted);
    assert_eq!(it.replies(), [Outcome::Aborted]);
}

#[test]
fn answer_of_a_fenced_worker_is_dropped() {
    let mut it = in_doubt();
    it.site.fenced(WORKER, OLD, &[], &mut it.actions);
    it.writes();
    it.hears(Protocol::OnePhase, Message::Updated);
    assert_eq!(it.writes(), []);
}

#[test]
fn fence_of_an_older_epoch_decides_nothing() {
    let mut it = in_doubt();
    it.site.peer(WORKER, NEW, &mut it.actions);
    it.says();
    it.site.fenced(WORKER, OLD, &[], &mut it.actions);
    assert_eq!(it.writes(), [], "the later server may have committed");
    it.hears_from_epoch(Protocol::OnePhase, Message::Updated, NEW, NEW);
    assert_eq!(it.writes(), [Record::Committed]);
}

#[test]
fn request_to_an_older_epoch_is_dropped() {
    let mut it = nothing(WORKER);
    it.hears_from_epoch(Protocol::OnePhase, request(), OLD, OLD);
    assert_eq!(it.actions, []);
}

#[test]
fn message_of_a_replaced_coordinator_is_dropped() {
    let mut it = nothing(WORKER);
    it.site.peer(COORDINATOR, NEW, &mut it.actions);
    it.hears(Protocol::OnePhase, request());
    assert_eq!(it.actions, []);
}

#[test]
fn message_of_a_stranger_changes_nothing() {
    let mut it = coordinator(Protocol::PresumeNothing, Kept::Prepared);
    it.says();
    let envelope = Envelope {
        from: ShardId(9),
        from_epoch: OLD,
        to: COORDINATOR,
        to_epoch: NEW,
        id: id(),
        protocol: Protocol::PresumeNothing,
        path: Aside(Path::default()),
        message: Message::Prepared,
    };
    it.site.receive(envelope, &mut it.actions);
    assert_eq!((it.says(), it.writes()), (vec![], vec![]));
}

#[test]
fn refusal_is_remembered_for_a_request_that_comes_again() {
    let mut it = nothing(WORKER);
    it.hears(Protocol::OnePhase, request());
    assert_eq!(it.actions, [Action::Plan(id())]);
    it.site.planned(id(), false, &mut it.actions);
    assert_eq!(it.says(), [Message::Refused]);
    it.hears(Protocol::OnePhase, request());
    assert_eq!(it.says(), [Message::Refused]);
    assert_eq!(it.writes(), []);
}

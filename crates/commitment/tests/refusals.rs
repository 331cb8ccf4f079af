//! Transactions that cannot begin, and those for which a shard has no room.
#![allow(missing_docs, reason = "a test program has no users")]

use commitment::{
    Action, Aside, Envelope, Guards, Message, Outcome, Path, Protocol, Record, Site, TxnId,
};
use types::{Epoch, ShardId};

const COORDINATOR: ShardId = ShardId(0);
const WORKER: ShardId = ShardId(1);
const EPOCH: Epoch = Epoch(4);

fn site(shard: ShardId, other: ShardId) -> Site {
    let mut site = Site::new(shard, EPOCH, Guards::ALL);
    site.peer(other, EPOCH, &mut Vec::new());
    site
}

/// Records, messages, answers and freed locks among the actions, which are taken.
fn take(actions: &mut Vec<Action>) -> Vec<String> {
    let text = |action| match action {
        Action::Write { record, .. } => format!("{record:?}"),
        Action::Send(envelope) => format!("{:?} to {}", envelope.message, envelope.to),
        Action::Reply(_, outcome) => format!("{outcome:?}"),
        Action::Unlock(_) => "unlock".into(),
        Action::Plan(_) => "plan".into(),
        Action::Suspect(..) => "suspect".into(),
    };
    actions.drain(..).map(text).collect()
}

fn request(id: TxnId, protocol: Protocol, message: Message) -> Envelope {
    Envelope {
        from: COORDINATOR,
        from_epoch: EPOCH,
        to: WORKER,
        to_epoch: EPOCH,
        id,
        protocol,
        path: Aside(Path::default()),
        message,
    }
}

#[test]
fn transaction_without_workers_does_not_begin() {
    for protocol in Protocol::ALL {
        let (mut site, mut actions) = (site(COORDINATOR, WORKER), Vec::new());
        assert_eq!(site.begin(protocol, Vec::new(), &mut actions), None);
        assert!(actions.is_empty() && site.is_idle());
    }
}

#[test]
fn coordinator_without_room_for_started_answers_at_once() {
    for protocol in Protocol::ALL {
        let (mut site, mut actions) = (site(COORDINATOR, WORKER), Vec::new());
        let id = site.begin(protocol, vec![WORKER], &mut actions).unwrap();
        assert_eq!(take(&mut actions), ["Started"]);
        site.no_room(id, Record::Started, &mut actions);
        assert_eq!(take(&mut actions), ["unlock", &format!("{:?}", Outcome::Aborted)]);
        assert!(site.is_idle());
        // A second report of it means nothing.
        site.no_room(id, Record::Started, &mut actions);
        assert!(actions.is_empty());
    }
}

#[test]
fn coordinator_without_room_for_prepared_aborts_everywhere() {
    let (mut site, mut actions) = (site(COORDINATOR, WORKER), Vec::new());
    let id = site.begin(Protocol::EarlyPrepare, vec![WORKER], &mut actions).unwrap();
    site.logged(id, Record::Started, &mut actions);
    take(&mut actions);
    site.no_room(id, Record::Prepared, &mut actions);
    assert_eq!(take(&mut actions), ["Aborted"]);
    site.logged(id, Record::Aborted, &mut actions);
    assert_eq!(take(&mut actions), ["unlock", "Aborted", "Abort to 1"]);
}

#[test]
fn worker_without_room_for_prepared_refuses() {
    let protocols = [Protocol::PresumeNothing, Protocol::PresumeCommit, Protocol::EarlyPrepare];
    for protocol in protocols {
        let (mut site, mut actions) = (site(WORKER, COORDINATOR), Vec::new());
        let id = TxnId { coordinator: COORDINATOR, epoch: EPOCH, number: 0 };
        let asked = Message::UpdateReq { oldest: id };
        site.receive(request(id, protocol, asked), &mut actions);
        site.planned(id, true, &mut actions);
        site.receive(request(id, protocol, Message::Prepare), &mut actions);
        assert_eq!(take(&mut actions).last().unwrap(), "Prepared");
        site.no_room(id, Record::Prepared, &mut actions);
        assert_eq!(take(&mut actions), ["unlock", "Refused to 0"]);
        assert!(site.is_idle());
        // Asked again, it refuses again.
        site.receive(request(id, protocol, asked), &mut actions);
        assert_eq!(take(&mut actions), ["Refused to 0"]);
    }
}

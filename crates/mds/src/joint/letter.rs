//! What shards say to each other, on the wire and as the machine has it.

use commitment::{Envelope, Message, Path, Protocol, TxnId};
use proto::mds::{JointId, Letter};
use proto::wire::Bytes;
use types::{Epoch, ShardId};

/// The letter that carries `envelope`, and `body` for the server that gets it.
pub fn letter(envelope: &Envelope, body: Vec<u8>) -> Letter {
    let Envelope { from, from_epoch, to, to_epoch, id, protocol, path, message } = *envelope;
    let Path { forced, lazy, messages } = path.0;
    let (message, oldest) = match message {
        Message::UpdateReq { oldest } => (1, Some(joint_id(oldest))),
        Message::Updated => (2, None),
        Message::Refused => (3, None),
        Message::Prepare => (4, None),
        Message::Prepared => (5, None),
        Message::NotPrepared => (6, None),
        Message::Commit => (7, None),
        Message::Abort => (8, None),
        Message::Ack => (9, None),
        Message::Ask => (10, None),
    };
    Letter {
        from: from.0,
        from_epoch,
        to: to.0,
        to_epoch,
        id: joint_id(id),
        protocol: match protocol {
            Protocol::PresumeNothing => 1,
            Protocol::PresumeCommit => 2,
            Protocol::EarlyPrepare => 3,
            Protocol::OnePhase => 4,
        },
        forced,
        lazy,
        messages,
        message,
        oldest,
        body: Bytes(body),
    }
}

/// What a letter says; `None`: nothing that this code knows.
pub fn envelope(letter: &Letter) -> Option<Envelope> {
    let protocol = match letter.protocol {
        1 => Protocol::PresumeNothing,
        2 => Protocol::PresumeCommit,
        3 => Protocol::EarlyPrepare,
        4 => Protocol::OnePhase,
        _ => return None,
    };
    let message = match (letter.message, letter.oldest) {
        (1, Some(oldest)) => Message::UpdateReq { oldest: txn_id(oldest) },
        (2, None) => Message::Updated,
        (3, None) => Message::Refused,
        (4, None) => Message::Prepare,
        (5, None) => Message::Prepared,
        (6, None) => Message::NotPrepared,
        (7, None) => Message::Commit,
        (8, None) => Message::Abort,
        (9, None) => Message::Ack,
        (10, None) => Message::Ask,
        _ => return None,
    };
    let Letter { forced, lazy, messages, .. } = *letter;
    Some(Envelope {
        from: ShardId(letter.from),
        from_epoch: letter.from_epoch,
        to: ShardId(letter.to),
        to_epoch: letter.to_epoch,
        id: txn_id(letter.id),
        protocol,
        path: commitment::Aside(Path { forced, lazy, messages }),
        message,
    })
}

/// Does a worker refuse by it?
pub fn is_refusal(letter: &Letter) -> bool {
    envelope(letter).is_some_and(|it| it.message == Message::Refused)
}

/// A letter that is of no operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aside {
    /// A question that a plan has.
    Question,
    /// The answer, under the question's number.
    Answer,
}

/// The letter that asks or answers. `id`: whose question it is, and which.
pub fn beside(
    (from, from_epoch): (ShardId, Epoch),
    to: ShardId,
    id: JointId,
    what: Aside,
    body: Vec<u8>,
) -> Letter {
    Letter {
        from: from.0,
        from_epoch,
        to: to.0,
        to_epoch: Epoch(0),
        id,
        protocol: 0,
        forced: 0,
        lazy: 0,
        messages: 0,
        message: match what {
            Aside::Question => 11,
            Aside::Answer => 12,
        },
        oldest: None,
        body: Bytes(body),
    }
}

/// Does a letter ask or answer, and speak of no operation?
pub fn aside(letter: &Letter) -> Option<Aside> {
    match (letter.protocol, letter.message, letter.oldest) {
        (0, 11, None) => Some(Aside::Question),
        (0, 12, None) => Some(Aside::Answer),
        _ => None,
    }
}

/// A transaction's name on the wire.
pub fn joint_id(id: TxnId) -> JointId {
    JointId { coordinator: id.coordinator.0, epoch: id.epoch, number: id.number }
}

/// The transaction of that name.
pub fn txn_id(id: JointId) -> TxnId {
    TxnId { coordinator: ShardId(id.coordinator), epoch: id.epoch, number: id.number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_its_letter() {
        let id = TxnId { coordinator: ShardId(2), epoch: Epoch(7), number: 99 };
        let oldest = TxnId { number: 90, ..id };
        let messages = [
            Message::UpdateReq { oldest },
            Message::Updated,
            Message::Refused,
            Message::Prepare,
            Message::Prepared,
            Message::NotPrepared,
            Message::Commit,
            Message::Abort,
            Message::Ack,
            Message::Ask,
        ];
        for (protocol, message) in Protocol::ALL.into_iter().zip(messages.into_iter().cycle()) {
            let path = commitment::Aside(Path { forced: 1, lazy: 2, messages: 3 });
            let (from, to) = (ShardId(2), ShardId(0));
            let (from_epoch, to_epoch) = (Epoch(7), Epoch(8));
            let sent = Envelope { from, from_epoch, to, to_epoch, id, protocol, path, message };
            let got = envelope(&letter(&sent, vec![1])).unwrap();
            assert_eq!((got, got.path.0), (sent, path.0));
        }
        for message in messages {
            let path = commitment::Aside(Path::default());
            let (from, to, protocol) = (ShardId(2), ShardId(0), Protocol::OnePhase);
            let (from_epoch, to_epoch) = (Epoch(7), Epoch(8));
            let sent = Envelope { from, from_epoch, to, to_epoch, id, protocol, path, message };
            assert_eq!(envelope(&letter(&sent, Vec::new())), Some(sent));
        }
    }

    #[test]
    fn unknown_letters_are_none() {
        let id = TxnId { coordinator: ShardId(2), epoch: Epoch(7), number: 99 };
        let sent = Envelope {
            from: ShardId(2),
            from_epoch: Epoch(7),
            to: ShardId(0),
            to_epoch: Epoch(1),
            id,
            protocol: Protocol::OnePhase,
            path: commitment::Aside(Path::default()),
            message: Message::Ack,
        };
        let good = letter(&sent, Vec::new());
        for bad in [
            Letter { protocol: 0, ..good.clone() },
            Letter { protocol: 5, ..good.clone() },
            Letter { message: 0, ..good.clone() },
            Letter { message: 11, ..good.clone() },
            Letter { message: 13, ..good.clone() },
            Letter { message: 1, ..good.clone() },
            Letter { oldest: Some(good.id), ..good.clone() },
        ] {
            assert_eq!((envelope(&bad), aside(&bad)), (None, None), "{bad:?}");
        }
    }

    #[test]
    fn questions_and_answers_are_of_no_operation() {
        let id = JointId { coordinator: 2, epoch: Epoch(7), number: 99 };
        for what in [Aside::Question, Aside::Answer] {
            let sent = beside((ShardId(2), Epoch(7)), ShardId(0), id, what, vec![1]);
            assert_eq!((aside(&sent), envelope(&sent)), (Some(what), None));
        }
    }
}

//! Operations that several shards agree on: what this shard keeps of each (003 §II, §III).
//!
//! Invariants:
//! - a transaction has one *head*, item 0, and items 1 and up with the bytes of its operation. All
//!   but the last of these are full;
//! - a coordinator has one to three workers, each once, and is not among them. A worker names none;
//! - of an operation whose entry is *started* or *prepared* nothing is in any other tree, but for
//!   directories that a prepared worker is to make. These are orphans until it commits.
//!
//! Key: coordinator's shard 1, its epoch when it began 4, number 8, item 2, big-endian. Value of
//! item 0, little-endian:
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 1 | protocol | 1 PrN, 2 PrC, 3 EP, 4 1PC |
//! | 1 | 1 | part | 1 coordinator, 2 worker |
//! | 2 | 1 | kept | 1 started, 2 prepared, 3 committed, 4 aborted |
//! | 3 | 1 | workers | how many there are, 0 to 3 |
//! | 4 | 3 | shards | theirs; the rest is zero |
//! | 7 | 1 | reserved | zero |
//! | 8 | 4 | length | bytes of the operation |
//! | 12 | 100 | reserved | zero |
//!
//! Value of another item: 112 bytes of the operation; those after its end are zero. What they mean
//! is the server's business. An entry whose key is all zeros means nothing.

use commitment::{Entry, Kept, Part, Protocol, TxnId};
use types::{Epoch, ShardId};

/// Bytes of a key.
pub const INTENT_KEY: usize = 15;
/// Bytes of a value.
pub const INTENT_VALUE: usize = 112;
/// Bytes of an operation at most.
pub const OPERATION_MAX: usize = 64 << 10;
/// Most workers of a transaction.
pub const WORKERS_MAX: usize = 3;

const HEAD: usize = 12;

/// The key of an item of a transaction.
pub fn intent_key(id: TxnId, item: u16) -> [u8; INTENT_KEY] {
    let mut key = [0; INTENT_KEY];
    key[0] = id.coordinator.0;
    key[1..5].copy_from_slice(&id.epoch.0.to_be_bytes());
    key[5..13].copy_from_slice(&id.number.to_be_bytes());
    key[13..].copy_from_slice(&item.to_be_bytes());
    key
}

/// The transaction and the item of a key.
pub fn decode_intent_key(key: &[u8; INTENT_KEY]) -> (TxnId, u16) {
    let big = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
    let id = TxnId {
        coordinator: ShardId(key[0]),
        epoch: Epoch(big(&key[1..5]) as u32),
        number: big(&key[5..13]),
    };
    (id, big(&key[13..]) as u16)
}

/// How many items have the bytes of an operation of this length.
pub fn items_of(length: usize) -> usize {
    length.div_ceil(INTENT_VALUE)
}

/// The head of a transaction with an operation of `length` bytes.
pub fn encode_head(entry: &Entry, length: usize) -> [u8; INTENT_VALUE] {
    let mut value = [0; INTENT_VALUE];
    value[0] = match entry.protocol {
        Protocol::PresumeNothing => 1,
        Protocol::PresumeCommit => 2,
        Protocol::EarlyPrepare => 3,
        Protocol::OnePhase => 4,
    };
    value[2] = match entry.kept {
        Kept::Started => 1,
        Kept::Prepared => 2,
        Kept::Committed => 3,
        Kept::Aborted => 4,
    };
    match &entry.part {
        Part::Worker => value[1] = 2,
        Part::Coordinator(workers) => {
            value[1] = 1;
            value[3] = workers.len() as u8;
            for (byte, worker) in value[4..4 + WORKERS_MAX].iter_mut().zip(workers) {
                *byte = worker.0;
            }
        }
    }
    value[8..HEAD].copy_from_slice(&(length as u32).to_le_bytes());
    value
}

/// What a head says of the transaction `id`: the entry, and the bytes of its operation. `None`: no
/// such head can be.
pub fn decode_head(id: TxnId, value: &[u8; INTENT_VALUE]) -> Option<(Entry, usize)> {
    let protocol = match value[0] {
        1 => Protocol::PresumeNothing,
        2 => Protocol::PresumeCommit,
        3 => Protocol::EarlyPrepare,
        4 => Protocol::OnePhase,
        _ => return None,
    };
    let kept = match value[2] {
        1 => Kept::Started,
        2 => Kept::Prepared,
        3 => Kept::Committed,
        4 => Kept::Aborted,
        _ => return None,
    };
    let (count, shards) = (usize::from(value[3]), &value[4..4 + WORKERS_MAX]);
    let workers: Vec<ShardId> = shards.iter().take(count).map(|&shard| ShardId(shard)).collect();
    let rest = shards.iter().skip(count).chain(&value[7..8]).chain(&value[HEAD..]);
    let length = u32::from_le_bytes([value[8], value[9], value[10], value[11]]) as usize;
    if count > WORKERS_MAX || rest.into_iter().any(|&byte| byte != 0) || length > OPERATION_MAX {
        return None;
    }
    let part = match (value[1], count) {
        (1, 1..) => Part::Coordinator(workers.clone()),
        (2, 0) => Part::Worker,
        _ => return None,
    };
    let mut named = workers;
    named.push(id.coordinator);
    named.sort_unstable();
    let twice = part != Part::Worker && named.windows(2).any(|pair| pair[0] == pair[1]);
    (!twice).then_some((Entry { protocol, part, kept }, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> TxnId {
        TxnId { coordinator: ShardId(2), epoch: Epoch(0x0102_0304), number: 0x1112_1314_1516_1718 }
    }

    #[test]
    fn keys_sort_by_transaction_and_item() {
        let key = intent_key(id(), 0x2122);
        let bytes = "02 01020304 1112131415161718 2122".replace(' ', "");
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, bytes);
        assert_eq!(decode_intent_key(&key), (id(), 0x2122));
        assert!(intent_key(TxnId { number: 3, ..id() }, 9) < intent_key(id(), 0));
    }

    #[test]
    fn every_head_is_read_as_it_was_written() {
        for protocol in Protocol::ALL {
            for kept in [Kept::Started, Kept::Prepared, Kept::Committed, Kept::Aborted] {
                for workers in [&[][..], &[1], &[1, 3], &[0, 1, 3]] {
                    let shards: Vec<ShardId> = workers.iter().map(|&it| ShardId(it)).collect();
                    let part = match shards.is_empty() {
                        true => Part::Worker,
                        false => Part::Coordinator(shards),
                    };
                    let entry = Entry { protocol, part, kept };
                    let value = encode_head(&entry, 777);
                    assert_eq!(decode_head(id(), &value), Some((entry, 777)));
                }
            }
        }
    }

    #[test]
    fn senseless_heads_are_none() {
        let part = Part::Coordinator(vec![ShardId(1)]);
        let entry = Entry { protocol: Protocol::OnePhase, part, kept: Kept::Started };
        let sound = encode_head(&entry, 5);
        // Protocol, part, kept, number of workers, the coordinator among them, twice the same,
        // reserved bytes, the length.
        let wrong = [(0, 0), (0, 5), (1, 3), (1, 2), (2, 9), (3, 0), (3, 4), (4, 2), (7, 1)];
        for (at, byte) in wrong.into_iter().chain([(5, 1), (11, 1), (12, 1), (111, 1)]) {
            let mut value = sound;
            value[at] = byte;
            assert_eq!(decode_head(id(), &value), None, "byte {at} = {byte}");
        }
        let mut twice = sound;
        (twice[3], twice[5]) = (2, 1);
        assert_eq!(decode_head(id(), &twice), None);
    }
}

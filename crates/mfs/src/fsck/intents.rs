//! Operations that several shards agree on.
//!
//! Invariant: an operation that is whole is never touched: another shard may have applied it.

use commitment::TxnId;

use super::plan::Fix;
use super::{Check, ProblemKind, Subject};
use crate::format::intent::{
    INTENT_KEY, INTENT_VALUE, decode_head, decode_intent_key, intent_key, items_of,
};
use crate::trees::INTENTS;
use engine::error::StoreError;

/// The items of one operation, as the walk meets them.
#[derive(Default)]
struct Operation {
    id: Option<TxnId>,
    keys: Vec<[u8; INTENT_KEY]>,
    /// What the items behind the head hold.
    bytes: Vec<u8>,
    /// Bytes of the operation, as the head counts them; `None`: there is no valid head.
    length: Option<usize>,
}

impl Operation {
    fn add(&mut self, id: TxnId, key: &[u8; INTENT_KEY], value: &[u8; INTENT_VALUE]) {
        if self.keys.is_empty() && *key == intent_key(id, 0) {
            self.length = decode_head(id, value).map(|(_, length)| length);
        } else {
            self.bytes.extend(value);
        }
        self.id = Some(id);
        self.keys.push(*key);
    }

    /// What is wrong with it.
    fn fault(&self) -> Option<&'static str> {
        match self.length.map(items_of) {
            None => Some("it has no valid head"),
            // Keys are in order and each once, so these are the items 1 to the last.
            Some(wanted) if self.keys.len() != wanted + 1 => Some("items are missing, or too many"),
            Some(_) => None,
        }
    }
}

impl Check {
    /// Checks that each operation has a valid head, and the bytes that the head counts.
    pub(super) async fn intents(&mut self) -> Result<(), StoreError> {
        let mut now = Operation::default();
        self.walk((INTENTS, "intents"), |check, key, value| {
            let (id, _) = decode_intent_key(key);
            if *key == [0; INTENT_KEY] {
                return;
            }
            if now.id != Some(id) {
                check.operation(std::mem::take(&mut now));
            }
            now.add(id, key, value);
        })
        .await?;
        self.operation(now);
        Ok(())
    }

    fn operation(&mut self, mut operation: Operation) {
        let Some(id) = operation.id else { return };
        self.require_shards();
        operation.bytes.truncate(operation.length.unwrap_or(0));
        let bytes = std::mem::take(&mut operation.bytes);
        self.report.shard.operations.insert(id, bytes);
        if let Some(fault) = operation.fault() {
            self.found(ProblemKind::BadIntent, Subject::Whole, format!("operation {id}: {fault}"));
            for key in &operation.keys {
                self.plan.add(Fix::DropIntent(*key));
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use commitment::{Entry, Kept, Part, Protocol};
    use types::{Epoch, ShardId};

    use super::super::tests::{planted, report, world};
    use super::*;
    use crate::testing::{now, run};
    use crate::txn::Txn;
    use engine::error::Stop;
    use engine::format::block::BlockType;

    fn id(number: u64) -> TxnId {
        TxnId { coordinator: ShardId(3), epoch: Epoch(2), number }
    }

    fn entry() -> Entry {
        Entry { protocol: Protocol::OnePhase, part: Part::Worker, kept: Kept::Committed }
    }

    /// Two operations: the second is a plant's.
    fn operations(txn: &mut Txn<'_>) -> Result<Subject, Stop> {
        for number in [1, 2] {
            let head = crate::format::intent::encode_head(&entry(), 300);
            INTENTS.insert(txn, &intent_key(id(number), 0), &head)?;
            for item in 1..=3 {
                INTENTS.insert(txn, &intent_key(id(number), item), &[item as u8; INTENT_VALUE])?;
            }
        }
        Ok(Subject::Whole)
    }

    pub(in crate::fsck) fn senseless_intents_are_found() {
        let kind = ProblemKind::BadIntent;
        // The second finding is that of the feature.
        planted(kind, 2, |_, txn| {
            operations(txn)?;
            INTENTS.remove(txn, &intent_key(id(2), 2)).map(|_| Subject::Whole)
        });
        planted(kind, 2, |_, txn| {
            operations(txn)?;
            INTENTS.remove(txn, &intent_key(id(2), 0)).map(|_| Subject::Whole)
        });
        planted(kind, 2, |_, txn| {
            operations(txn)?;
            INTENTS.insert(txn, &intent_key(id(2), 4), &[0; INTENT_VALUE]).map(|_| Subject::Whole)
        });
        planted(kind, 2, |_, txn| {
            operations(txn)?;
            INTENTS.insert(txn, &intent_key(id(2), 0), &[9; INTENT_VALUE]).map(|_| Subject::Whole)
        });
        planted(ProblemKind::DamagedBlock, 3, |_, txn| {
            operations(txn)?;
            let node = INTENTS.root_node(txn)?.unwrap();
            txn.init(node.block, BlockType::Blob)?;
            Ok(Subject::Block(node.block))
        });
    }

    #[test]
    fn damaged_intents_are_found_and_removed() {
        senseless_intents_are_found();
    }

    #[test]
    fn whole_operation_stays_beside_a_damaged_one() {
        let world = world();
        now(world.mfs.add_shards()).unwrap();
        run(&world.mfs, |txn| {
            operations(txn)?;
            INTENTS.remove(txn, &intent_key(id(2), 3))
        });
        let found: Vec<_> = report(&world).problems.iter().map(|it| it.kind).collect();
        assert_eq!(found, [ProblemKind::BadIntent]);
        let repair = super::super::repair::repair_open;
        let repaired = now(repair(&world.mfs, super::super::FsckOptions::default())).unwrap();
        assert_eq!(repaired.left.problems, []);
        let (all, whole) = run(&world.mfs, |txn| {
            Ok((txn.intents().all()?, txn.intents().get(id(1))?.map(|(_, bytes)| bytes.len())))
        });
        assert_eq!((all.len(), whole), (1, Some(300)));
    }
}

//! How much a batch may be.
//!
//! Invariants:
//! - the transaction that applies a batch is admitted as a whole: log and cache have room for its
//!   worst case, as for any other one;
//! - before STARTED, and before a worker agrees, the metadata zone has room for that, besides the
//!   reserve. After that it may take the reserve, as each operation by itself may;
//! - a batch takes no more than a quarter of what one transaction may have of log and cache.

use mfs::format::intent::OPERATION_MAX;
use mfs::{Cost, Reserve};
use proto::wire::Wire;
use types::Fault;

use super::job::Answered;
use crate::server::Server;

/// Operations in a batch at most.
pub const BATCH_MAX: usize = 64;
/// Bytes that a worker's entry may have for each operation beyond the coordinator's: its answer.
const ANSWER_BYTES: usize = 256;
/// Bytes of a worker's entry beside its parts and answers, at most.
const HEAD_BYTES: usize = 1024;
/// Bytes of a batch's entry at most. That of the worker fits, too.
const BATCH_BYTES_MAX: usize = OPERATION_MAX - BATCH_MAX * ANSWER_BYTES;
/// Bytes that the record of a batch's transaction may have.
const RECORD_MAX: u64 = 4 << 20;

/// What a further operation adds to the worst case. All change one directory, so most blocks are
/// those of the first one.
const FURTHER: Cost = Cost { log_bytes: 48 << 10, dirty: 16, reserve: Reserve::Replay };
/// Bytes of an entry whose items lie in one block of its tree, at least.
const ENTRY_BYTES_IN_BLOCK: u32 = 1024;

/// The worst case of the transaction that applies so many operations, with an entry of so many
/// bytes.
pub fn cost(operations: usize, bytes: usize) -> Cost {
    let further = operations.saturating_sub(1).min(BATCH_MAX) as u32;
    let entry = (bytes.min(OPERATION_MAX) as u32).div_ceil(ENTRY_BYTES_IN_BLOCK);
    let block = types::limits::BLOCK as u32;
    Cost {
        log_bytes: Cost::SMALL.log_bytes + further * FURTHER.log_bytes + entry * block,
        dirty: Cost::SMALL.dirty + further * FURTHER.dirty + entry,
        reserve: Reserve::Replay,
    }
}

/// Leaves as many answers of a worker as its entry has room for, beside `asked` bytes of what it is
/// asked for. Operations behind those are busy: each is tried again by itself.
pub fn cut(asked: usize, answers: &mut [Answered]) {
    let mut bytes = asked + HEAD_BYTES;
    for answer in answers {
        bytes += answer.to_bytes().len();
        if bytes > OPERATION_MAX {
            *answer = Err(Fault::Busy);
        }
    }
}

/// May a batch have so many operations, with an entry of so many bytes? One operation may always
/// be tried.
pub fn fits(server: &Server, operations: usize, bytes: usize) -> bool {
    let (cost, usage) = (cost(operations, bytes), server.runtime.mfs.usage());
    let record = u64::from(cost.log_bytes);
    operations <= 1
        || operations <= BATCH_MAX
            && bytes <= BATCH_BYTES_MAX
            && record <= (usage.log_bytes / 8).min(RECORD_MAX)
            && cost.dirty as usize <= usage.cache_max / 4
            && usage.blocks_free >= usage.blocks_set_aside + u64::from(cost.dirty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_batch_is_one_transaction_of_an_ordinary_log() {
        let most = cost(BATCH_MAX, BATCH_BYTES_MAX);
        assert!(u64::from(most.log_bytes) <= RECORD_MAX, "{most:?}");
        assert!(most.dirty < 1400, "{most:?}");
        // One operation is no dearer than without batches, but for its entry.
        assert_eq!(cost(1, 0), Cost { reserve: Reserve::Replay, ..Cost::SMALL });
    }
}

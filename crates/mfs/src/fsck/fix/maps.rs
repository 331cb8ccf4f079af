//! Rebuilding the name map of a directory that was removed because it was wrong.
//!
//! Invariant: the map grows beside the directory, and the last transaction enters it in the
//! directory's slot. The map of an interrupted repair belongs to no directory, and the next repair
//! removes it.

use types::{DirNo, Ino, MetaBlock};

use super::Done;
use crate::format::lmap::{NameMapEntry, bucket_of, hash_of};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotState};
use crate::handle::Mfs;
use crate::names::{Chunk, Position};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};

/// Buckets of one transaction.
const BUCKETS: usize = 16;
/// Content blocks read together.
const BATCH: u32 = 64;
/// Chunks of a directory at most.
const CHUNKS_MAX: usize = 1 << 16;

/// Makes the map of `dir`, if it is large enough to have one.
///
/// # Errors
/// As `Mfs::run`; also where there is no room for it.
pub(in crate::fsck) async fn make_map(mfs: &Mfs, dir: Ino) -> Done {
    mfs.forget_indexes();
    if !mfs.run(Cost::READ, |txn| txn.names().wants_map(dir)).await?.0 {
        return Ok(None);
    }
    let entries = names(mfs, dir).await?;
    let load = mfs.volatile_state().limits.load.max(1) as usize;
    let count = entries.len().div_ceil(load).max(1) as u32;
    let mut buckets = vec![Vec::new(); count as usize];
    entries.iter().for_each(|entry| buckets[bucket_of(entry.hash, count) as usize].push(*entry));
    let mut chunks = None;
    for part in buckets.chunks(BUCKETS) {
        chunks =
            Some(mfs.run(Cost::STEP, |txn| txn.names().add_buckets(dir, chunks, part)).await?.0);
    }
    let Some((first, _)) = chunks else { return Ok(None) };
    let names = entries.len() as u32;
    mfs.run(Cost::STEP, |txn| txn.names().finish_map(dir, first, names)).await?;
    mfs.forget_indexes();
    Ok(Some(format!("directory {dir} has a name map again, of {names} names").into()))
}

/// The names of a directory, with where they are.
async fn names(mfs: &Mfs, dir: Ino) -> Result<Vec<NameMapEntry>, StoreError> {
    let first =
        mfs.run(Cost::READ, |txn| Ok(DirNo(txn.names().locate_live(dir)?.1.body()))).await?.0;
    let (mut out, mut number) = (Vec::new(), first);
    for _ in 0..CHUNKS_MAX {
        if number.0 == 0 {
            break;
        }
        let read = mfs.run(Cost::READ, |txn| {
            txn.names().ensure_chunk(number)?;
            Ok(txn.names().chunk(number)?.clone())
        });
        let chunk: Chunk = read.await?.0;
        let Chunk { descriptor, runs } = &chunk;
        let used = runs.iter().filter_map(|run| run.part(0, descriptor.used));
        for run in used.filter(|run| run.is_present()) {
            for at in (run.first..run.end()).step_by(BATCH as usize) {
                let len = BATCH.min(run.end() - at);
                let read =
                    |txn: &mut Txn<'_>| names_in(txn, run.home(at), (at, len), descriptor.index);
                out.extend(mfs.run(Cost::READ, read).await?.0);
            }
        }
        number = descriptor.next;
    }
    Ok(out)
}

fn names_in(
    txn: &mut Txn<'_>,
    home: MetaBlock,
    (first, len): (u32, u32),
    chunk: u32,
) -> Result<Vec<NameMapEntry>, Stop> {
    txn.require_cached(home, len)?;
    let mut out = Vec::new();
    for block in 0..len {
        let data = txn.read_slots(MetaBlock(home.0 + u64::from(block)))?;
        for n in 0..SLOTS_PER_BLOCK {
            let slot = Slot::load(data, n);
            if slot.state() != SlotState::Empty {
                let at = Position::new(chunk, (first + block) * SLOTS_PER_BLOCK + n);
                out.push(NameMapEntry { hash: hash_of(slot.name()), at: at.0 });
            }
        }
    }
    Ok(out)
}

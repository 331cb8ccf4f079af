//! A lost block of the bitmap.
//!
//! Invariants:
//! - repair takes the log's newest version of it, if there is one: nothing else is as exact;
//! - else every block counts as allocated until the end, except blocks that *hold nothing*. The
//!   check found no owner of these, and the log has no change of them. What lies there is not of
//!   this file system, or is content without any inode or name, or a tree node without entries:
//!   freed blocks look so. Thus repair searches all others for what nothing leads to and never
//!   overwrites them, and has room for what it makes;
//! - an owner of such a block that is found only later has lost nothing: the block was allocated,
//!   and empty.

use types::limits::BLOCK;
use types::{MetaBlock, Uuid};

use super::{RepairState, change};
use crate::alloc::metaspace::{BITS, change_bits};
use crate::btree::entries_of;
use crate::check::Checker;
use crate::device::RUN_MAX;
use crate::error::StoreError;
use crate::format::block::{self, Block, BlockType, get_u32, get_u64, tag_of, type_of};
use crate::format::roots::{BITMAP_LOST, UNFINISHED};
use crate::store::transact::Transact;

/// Is a block of the layer's own type as good as free?
type IsEmpty = fn(&Block) -> bool;

impl RepairState {
    /// Makes the bitmap block of this index usable; returns what was done. `is_empty` looks at
    /// blocks of types that the layer above has.
    ///
    /// # Errors
    /// As [`Store::run`](crate::store::Store::run).
    pub async fn lost_bitmap<L: Transact>(
        &mut self,
        check: &mut impl Checker,
        layer: &L,
        index: u64,
        is_empty: IsEmpty,
    ) -> Result<Option<String>, StoreError> {
        let block = MetaBlock(layer.store().superblock().bitmap_first.0 + index);
        let mut line = self.restore_from_log(layer, block).await?;
        if line.is_none() {
            self.bitmap_lost = true;
            let free = self.empty_blocks(check, index * BITS, is_empty).await?;
            change(layer, |txn| {
                let txn = txn.as_mut();
                let data = txn.init(block, BlockType::Bitmap)?;
                change_bits(data, 0, BITS, true);
                for at in &free {
                    change_bits(data, at.0 % BITS, 1, false);
                }
                let word = txn.root(UNFINISHED)?;
                txn.set_root(UNFINISHED, word | BITMAP_LOST)
            })
            .await?;
            let few = free.len();
            line =
                Some(format!("bitmap block {block} is made anew, with {few} free blocks at first"));
        }
        layer.store().learn_bitmap(index as usize).await?;
        Ok(line)
    }

    /// The blocks that hold nothing, of the bitmap block that begins with block `from`.
    async fn empty_blocks(
        &self,
        check: &mut impl Checker,
        from: u64,
        is_empty: IsEmpty,
    ) -> Result<Vec<MetaBlock>, StoreError> {
        let to = check.claims().blocks.min(from + BITS);
        let mut out = Vec::new();
        for first in (from..to).step_by(RUN_MAX) {
            let range = (first, to.min(first + RUN_MAX as u64));
            self.find_empty_blocks(check, range, is_empty, &mut out).await?;
        }
        Ok(out)
    }

    async fn find_empty_blocks(
        &self,
        check: &mut impl Checker,
        (from, to): (u64, u64),
        is_empty: IsEmpty,
        out: &mut Vec<MetaBlock>,
    ) -> Result<(), StoreError> {
        let changed = self.salvaged.changed.as_ref();
        let claims = check.claims();
        let unknown = |at: &u64| {
            let logged = changed.is_none_or(|changed| changed.contains(&MetaBlock(*at)));
            !logged && !claims.get(*at)
        };
        let sought: Vec<u64> = (from..to).filter(unknown).collect();
        let (Some(&first), Some(&last)) = (sought.first(), sought.last()) else { return Ok(()) };
        let count = (last + 1 - first) as usize;
        let store = check.store();
        // Where one of them cannot be read, all of this run count as allocated.
        let read = match store.device() {
            Some(device) => match device.read(MetaBlock(first), count).await {
                Ok(read) => Some(read),
                Err(_) => return Ok(()),
            },
            None => None,
        };
        let uuid = store.superblock().uuid;
        for at in sought {
            let at_home =
                read.as_ref().and_then(|read| read.chunks_exact(BLOCK).nth((at - first) as usize));
            let nothing = store.with_cached(MetaBlock(at), |cached| match (cached, at_home) {
                (Some(data), _) => holds_nothing(data, MetaBlock(at), None, is_empty),
                (None, Some(data)) => data
                    .try_into()
                    .is_ok_and(|data| holds_nothing(data, MetaBlock(at), Some(uuid), is_empty)),
                // A store in memory has what was written in its cache.
                (None, None) => true,
            });
            if nothing {
                out.push(MetaBlock(at));
            }
        }
        Ok(())
    }
}

/// May a block that nothing leads to be allocated again? A block at home counts only if it
/// verifies.
fn holds_nothing(data: &Block, at: MetaBlock, at_home: Option<Uuid>, is_empty: IsEmpty) -> bool {
    if let Some(uuid) = at_home {
        let tag = tag_of(uuid);
        if get_u64(data, 8) != at.0 && get_u32(data, 28) != tag {
            return true;
        }
        if block::verify(data, at, tag).is_err() {
            return false;
        }
    }
    match type_of(data) {
        Some(BlockType::Tree) => entries_of(data) == 0,
        Some(_) => is_empty(data),
        None => false,
    }
}

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

use super::{Done, Fixer};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotState};
use crate::trees::{BITMAP_LOST, UNFINISHED};
use engine::alloc::metaspace::{BITS, change_bits};
use engine::btree::entries_of;
use engine::device::RUN_MAX;
use engine::error::StoreError;
use engine::format::block::{self, Block, BlockType, get_u32, get_u64, tag_of, type_of};

impl Fixer {
    pub(super) async fn lost_bitmap(&mut self, index: u64) -> Done {
        let block = MetaBlock(self.mfs.superblock().bitmap_first.0 + index);
        let mut line = self.restore_from_log(block).await?;
        if line.is_none() {
            self.state.bitmap_lost = true;
            let free = self.empty_blocks(index * BITS).await?;
            self.change(|txn| {
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
            let anew =
                format!("bitmap block {block} is made anew, with {few} free blocks at first");
            line = Some(anew.into());
        }
        self.mfs.learn_bitmap(index as usize).await?;
        Ok(line)
    }

    /// The blocks that hold nothing, of the bitmap block that begins with block `from`.
    async fn empty_blocks(&self, from: u64) -> Result<Vec<MetaBlock>, StoreError> {
        let to = self.mfs.superblock().blocks.min(from + BITS);
        let mut out = Vec::new();
        for first in (from..to).step_by(RUN_MAX) {
            self.find_empty_blocks(first, to.min(first + RUN_MAX as u64), &mut out).await?;
        }
        Ok(out)
    }

    async fn find_empty_blocks(
        &self,
        from: u64,
        to: u64,
        out: &mut Vec<MetaBlock>,
    ) -> Result<(), StoreError> {
        let changed = self.state.salvaged.changed.as_ref();
        let unknown = |at: &u64| {
            let logged = changed.is_none_or(|changed| changed.contains(&MetaBlock(*at)));
            !logged && !self.check.is_claimed(*at)
        };
        let sought: Vec<u64> = (from..to).filter(unknown).collect();
        let (Some(&first), Some(&last)) = (sought.first(), sought.last()) else { return Ok(()) };
        let count = (last + 1 - first) as usize;
        // Where one of them cannot be read, all of this run count as allocated.
        let read = match self.mfs.device() {
            Some(device) => match device.read(MetaBlock(first), count).await {
                Ok(read) => Some(read),
                Err(_) => return Ok(()),
            },
            None => None,
        };
        let uuid = self.mfs.superblock().uuid;
        for at in sought {
            let at_home =
                read.as_ref().and_then(|read| read.chunks_exact(BLOCK).nth((at - first) as usize));
            let nothing = self.mfs.with_cached(MetaBlock(at), |cached| match (cached, at_home) {
                (Some(data), _) => is_empty_block(data, MetaBlock(at), None),
                (None, Some(data)) => data
                    .try_into()
                    .is_ok_and(|data| is_empty_block(data, MetaBlock(at), Some(uuid))),
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
fn is_empty_block(data: &Block, at: MetaBlock, at_home: Option<Uuid>) -> bool {
    if let Some(uuid) = at_home {
        let tag = tag_of(uuid);
        if get_u64(data, 8) != at.0 && get_u32(data, 28) != tag {
            return true;
        }
        if block::verify(data, at, tag).is_err() {
            return false;
        }
    }
    let empty = |slot: Slot| slot.check().is_ok() && slot.state() == SlotState::Empty;
    match type_of(data) {
        Some(BlockType::Tree) => entries_of(data) == 0,
        Some(kind) if kind.is_content() => (0..SLOTS_PER_BLOCK).all(|n| empty(Slot::load(data, n))),
        _ => false,
    }
}

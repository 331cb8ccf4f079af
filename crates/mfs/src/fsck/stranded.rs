//! Stranded content blocks: no chunk of the directory table has them. Their inodes say where they
//! belong.
//!
//! Invariants:
//! - a block belongs where more than half of its inodes say. An inode that came from another
//!   directory is not where its number says, which only the tree of moved inodes shows. Where that
//!   tree is lost, too, a few may agree by chance;
//! - blocks are stranded only while the check met fewer inodes than the store counts: removed files
//!   that a freed block still shows are not missing. A block with further names only does not say
//!   where it belongs. It is stranded while an inode that it names counts more names than the check
//!   met;
//! - repair never frees a stranded block, and does not set the number of inodes while there is one:
//!   so the next check finds it again.

use std::collections::BTreeMap;

use types::{DirNo, Ino, Lsn, MetaBlock};

use super::plan::Fix;
use super::{Check, ProblemKind, Subject};
use crate::format::number::{SlotPlace, home_of};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotState};
use crate::trees::MOVED;
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::block::lsn_of;

/// What the inodes in a content block say about its place.
pub(super) struct BlockEvidence {
    /// When the block was changed last.
    pub(super) lsn: Lsn,
    /// Chunks and indexes where the block should be, and how many of the inodes say so.
    places: BTreeMap<(DirNo, u32), usize>,
    inodes: Vec<Ino>,
    /// Inodes of which it has further names.
    links: Vec<Ino>,
}

impl BlockEvidence {
    /// Does the block hold further names only?
    pub(super) fn is_links(&self) -> bool {
        self.inodes.is_empty() && !self.links.is_empty()
    }

    /// Where the block belongs, as more than half of its inodes say.
    pub(super) fn place(&self) -> Option<(DirNo, u32)> {
        let mut sure = self.places.iter().filter(|(_, says)| **says > self.inodes.len() / 2);
        sure.next().map(|(place, _)| *place)
    }

    /// The chunks that any inode names.
    pub(super) fn chunks(&self) -> impl Iterator<Item = DirNo> {
        self.places.keys().map(|(chunk, _)| *chunk)
    }
}

/// A directory that counts more content blocks than its chunks have.
#[derive(Clone, Copy)]
pub(super) struct ShortDirectory {
    pub(super) dir: Ino,
    /// Its last chunk.
    pub(super) last: DirNo,
    /// Position of the next one.
    pub(super) index: u32,
    /// Blocks that are missing.
    pub(super) missing: u64,
}

/// Reads what the sound inodes in a content block say.
///
/// # Errors
/// `Corrupt` if it is none.
pub(super) fn block_evidence(txn: &mut Txn<'_>, block: MetaBlock) -> Result<BlockEvidence, Stop> {
    let data = txn.read_slots(block)?;
    let lsn = lsn_of(data);
    let slots: Vec<Slot> = (0..SLOTS_PER_BLOCK).map(|at| Slot::load(data, at)).collect();
    let (places, inodes, links) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut said = BlockEvidence { lsn, places, inodes, links };
    for (at, slot) in (0..).zip(&slots) {
        let ino = slot.ino();
        match slot.state() {
            _ if slot.check().is_err() => continue,
            SlotState::Empty => continue,
            SlotState::Link => {
                said.links.push(ino);
                continue;
            }
            SlotState::Inode => {}
        }
        said.inodes.push(ino);
        let moved = MOVED.get(txn, &ino.0.to_be_bytes())?;
        let moved = moved.map(|value| SlotPlace::unpack(u64::from_le_bytes(value)));
        let place = moved.unwrap_or(home_of(ino));
        if place.index() == at {
            *said.places.entry((place.chunk, place.block())).or_default() += 1;
        }
    }
    Ok(said)
}

impl Check {
    /// Is this block, allocated and without an owner, missing content?
    pub(super) async fn strands(&mut self, block: MetaBlock) -> Result<bool, StoreError> {
        let missing = self.total > self.report.counts.inodes;
        if (missing || self.plan.rebuilds_any()) && self.is_damaged(block).await? {
            self.plan.add_doubtful(block);
            return Ok(false);
        }
        if !missing && self.underlinked.is_empty() {
            return Ok(false);
        }
        let said = match self.mfs.run(Cost::READ, |txn| block_evidence(txn, block)).await {
            Ok((said, _)) => said,
            Err(StoreError::Corrupt { .. } | StoreError::Fault(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        let inodes = said.inodes.iter().filter(|&&ino| missing && self.kind_of(ino).is_none());
        let links =
            said.links.iter().filter(|&ino| said.is_links() && self.underlinked.contains(ino));
        let (inodes, links) = (inodes.count(), links.count());
        if inodes + links > 0 {
            let what = if inodes > 0 { "inodes" } else { "names" };
            let count = inodes + links;
            let detail = format!("content of no chunk, with {count} {what} that are missing");
            self.found(ProblemKind::BadChunk, Subject::Block(block), detail);
            self.stranded.push((block, said));
        }
        Ok(inodes + links > 0)
    }

    async fn is_damaged(&mut self, block: MetaBlock) -> Result<bool, StoreError> {
        match self.mfs.run(Cost::READ, |txn| txn.read(block).map(drop)).await {
            Ok(_) => Ok(false),
            Err(StoreError::Corrupt { .. }) => Ok(true),
            Err(StoreError::Fault(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Plans to find the chunks of stranded blocks, once everything that may lead to them is
    /// repaired.
    pub(super) fn plan_stranded(&mut self) {
        if self.stranded.is_empty() {
            return;
        }
        self.plan.leave_count();
        if self.plan.are_chunks_found() {
            self.plan.add(Fix::FindOthers);
        }
    }
}

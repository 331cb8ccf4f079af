//! Layout blocks of files, and the fragmentation counts of directories.
//!
//! Invariants:
//! - a layout block in use counts only if it names its file; its segments are then the file's, even
//!   if something else claims the block;
//! - fragmentation counts are compared only when everything that they follow from is sound.

use types::{FileKind, Ino, MetaBlock, Segment};

use super::names::SeenInode;
use super::plan::{Fix, SlotAt, Stage};
use super::space::{Owner, Piece};
use super::{Check, ProblemKind, Subject};
use crate::format::number::is_orphan_dir;
use crate::format::segment::behind_block_0;
use crate::format::slot::Slot;
use engine::error::StoreError;
use engine::format::features::Feature;

/// Fragments of one directory.
#[derive(Default)]
pub(super) struct Fragments {
    counted: u32,
    found: u64,
}

impl Check {
    /// Checks the layout blocks of a file, and notes their segments and its object record. Inline
    /// data (`content`) outweighs a segment of block 0.
    pub(super) async fn layout_blocks(
        &mut self,
        at: SlotAt,
        slot: &Slot,
        content: bool,
        seen: &mut SeenInode,
    ) -> Result<(), StoreError> {
        self.object_record(slot);
        let blocks = slot.layout_blocks();
        if !blocks.is_empty() && !self.features.has(Feature::LAYOUT_BLOCKS) {
            self.features = self.features.with(Feature::LAYOUT_BLOCKS);
            self.found(ProblemKind::MissingFeature, Subject::Whole, "layout-blocks");
            self.plan.add(Fix::AddFeature(Feature::LAYOUT_BLOCKS));
        }
        for block in blocks {
            if slot.body() == 0 {
                if !self.claim(block, 1, "unused layout block") {
                    self.plan.add(Fix::DropLayout(at, block));
                }
            } else {
                self.layout_block((at, block), slot.ino(), content, seen).await?;
            }
        }
        Ok(())
    }

    /// Checks a layout block in use.
    async fn layout_block(
        &mut self,
        (at, block): (SlotAt, MetaBlock),
        ino: Ino,
        content: bool,
        seen: &mut SeenInode,
    ) -> Result<(), StoreError> {
        if block.0 >= self.blocks.blocks {
            self.found(ProblemKind::OutsideMetaBlock, Subject::Block(block), "layout block");
            self.lose_layout((at, block), ino, seen.end);
            return Ok(());
        }
        let read = self.read(|txn| txn.layouts().layout_block_of(at.home, block, ino)).await?;
        let fits = |list: &Vec<types::Segment>| list[0].file.0 >= seen.end;
        let Some(list) = read.filter(fits) else {
            let detail = format!("block {block}");
            self.found(ProblemKind::BadLayoutBlock, Subject::Inode(ino), detail);
            self.lose_layout((at, block), ino, seen.end);
            return Ok(());
        };
        if !self.claim(block, 1, "layout block") {
            self.plan.add(Fix::CopyLayout(at, block));
        }
        if content && list[0].file.0 == 0 {
            let detail = "its block is mapped, too";
            self.found(ProblemKind::BadContent, Subject::Inode(ino), detail);
            self.plan.add(Fix::Recount(ino));
        }
        for segment in list {
            seen.found += 1;
            self.segment(ino, &segment, content, seen);
        }
        Ok(())
    }

    /// Counts a segment of a file, and notes which data blocks it owns; with `content`, not that of
    /// block 0.
    pub(super) fn segment(
        &mut self,
        ino: Ino,
        segment: &Segment,
        content: bool,
        seen: &mut SeenInode,
    ) {
        seen.mapped = seen.mapped.saturating_add(segment.len);
        seen.end = segment.end();
        self.report.counts.segments += 1;
        let owned = if content { behind_block_0(segment) } else { Some(*segment) };
        if let Some(segment) = owned {
            self.piece(Piece::of(&segment, Owner::File(ino)));
        }
    }

    /// A layout block behind block `end` of its file is lost.
    fn lose_layout(&mut self, (at, block): (SlotAt, MetaBlock), ino: Ino, end: u64) {
        self.gaps.layout(ino, end);
        self.plan.add(Fix::DropLayout(at, block));
    }

    /// Adds a file to the fragmentation count of its directory.
    pub(super) fn file_fragments(&mut self, dir: Ino, slot: &Slot) {
        self.add_fragments(dir, u64::from(slot.own_fragments()));
    }

    /// Adds files to the fragmentation count of their directory.
    pub(super) fn add_fragments(&mut self, dir: Ino, own: u64) {
        if own > 0 && !is_orphan_dir(dir) && dir != Ino::NONE {
            self.tree.fragments.entry(dir).or_default().found += own;
        }
    }

    /// Notes the fragmentation count that a directory has.
    pub(super) fn directory_fragments(&mut self, slot: &Slot) {
        if slot.fragments() > 0 {
            self.tree.fragments.entry(slot.ino()).or_default().counted = slot.fragments();
        }
    }

    /// Compares the fragmentation counts of directories with their files.
    pub(super) fn fragmentation(&mut self) {
        let all = std::mem::take(&mut self.tree.fragments);
        if !self.plan.is_sound_before(Stage::Counts) {
            return;
        }
        let known = self.features.has(Feature::LAYOUT_BLOCKS);
        for (dir, Fragments { counted, found }) in all {
            let found = if known { u32::try_from(found).unwrap_or(u32::MAX) } else { 0 };
            if counted != found && self.kind_of(dir) == Some(FileKind::Directory) {
                let detail = format!("{counted} fragments, {found} found");
                self.found(ProblemKind::WrongFragmentation, Subject::Inode(dir), detail);
                self.plan.add(Fix::Fragments(dir, found));
            }
        }
    }
}

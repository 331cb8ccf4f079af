//! Which files have blocks in a range of a data zone.
//!
//! A walk of the directory table, whose content has the inodes with the beginnings of their
//! layouts, and then of the tree of segments. It runs while others use the store.
//!
//! Invariants:
//! - a step is one transaction of bounded length that changes nothing;
//! - a file that is there from the beginning of the walk to its end, in the same place and with the
//!   same blocks, is found. One that is renamed into another directory meanwhile may be missed.

use std::ops::Range;

use types::{DirNo, FileKind, Ino, PagId, Segment};

use crate::format::chunk::{chunk_key, decode_key};
use crate::format::segment::{decode_item, segment_key};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotState};
use crate::handle::Mfs;
use crate::trees::{CHUNKS, SEGMENTS};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};

/// Blocks of directory content that one step reads.
const BLOCKS: u32 = 8;
/// One past the largest number of a chunk in a key.
const NUMBERS_END: u64 = 1 << 48;
/// Segments of the tree that one step reads.
const SEGMENTS_MAX: usize = 1024;

/// A place in the walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZoneWalk {
    /// At this block of the content of this chunk, or the next one.
    Content(DirNo, u32),
    /// At this file block of this inode in the tree of segments.
    Segments(Ino, u64),
}

impl ZoneWalk {
    /// Where a walk begins.
    pub const BEGIN: ZoneWalk = ZoneWalk::Content(DirNo(0), 0);
}

impl Mfs {
    /// One step of the walk from `at` on: files with some of the blocks `range` of zone `pag`, and
    /// where the next step begins. `None`: the walk has ended.
    ///
    /// # Errors
    /// `Corrupt` names a damaged block; the store's.
    pub async fn zone_files(
        &self,
        pag: PagId,
        range: &Range<u64>,
        at: ZoneWalk,
    ) -> Result<(Vec<Ino>, Option<ZoneWalk>), StoreError> {
        let wanted = |segment: &Segment| {
            let (from, end) = (segment.addr.0, segment.addr.0.saturating_add(segment.len));
            segment.pag == pag && from < range.end && range.start < end
        };
        let step = self.run(Cost::READ, |txn| match at {
            ZoneWalk::Content(chunk, block) => content(txn, chunk, block, &wanted),
            ZoneWalk::Segments(ino, file) => segments(txn, ino, file, &wanted),
        });
        Ok(step.await?.0)
    }
}

type Step = (Vec<Ino>, Option<ZoneWalk>);

/// The inodes in some blocks of directory content.
fn content(
    txn: &mut Txn<'_>,
    from: DirNo,
    block: u32,
    wanted: &impl Fn(&Segment) -> bool,
) -> Result<Step, Stop> {
    let rest = Some(ZoneWalk::Segments(Ino(0), 0));
    if from.0 >= NUMBERS_END {
        return Ok((Vec::new(), rest));
    }
    let Some((key, _)) = CHUNKS.next(txn, &chunk_key(from, 0))? else {
        return Ok((Vec::new(), rest));
    };
    let number = decode_key(&key).map_or(from, |(number, _)| number);
    // Behind the last number that a key can have comes the tree of segments.
    let is_last = number.0 + 1 >= NUMBERS_END;
    let next = if is_last { rest } else { Some(ZoneWalk::Content(DirNo(number.0 + 1), 0)) };
    let Some(chunk) = txn.names().read_chunk(number)? else { return Ok((Vec::new(), next)) };
    if chunk.descriptor.is_map() {
        return Ok((Vec::new(), next));
    }
    let begin = if number == from { block } else { 0 };
    let end = chunk.descriptor.used.min(begin.saturating_add(BLOCKS));
    let mut found = Vec::new();
    for at in begin..end {
        let Some(run) = chunk.run_of(at).filter(|run| run.is_present()) else { continue };
        let home = run.home(at);
        for index in 0..SLOTS_PER_BLOCK {
            let slot = Slot::load(txn.read_slots(home)?, index);
            let is_file = slot.check().is_ok()
                && slot.state() == SlotState::Inode
                && slot.kind() == FileKind::Regular;
            if !is_file {
                continue;
            }
            let mut has = slot.segments().iter().any(wanted);
            let near = if slot.body() == 0 { Vec::new() } else { slot.layout_blocks() };
            for block in near {
                if has {
                    break;
                }
                has = txn.layouts().layout_block_of(home, block, slot.ino())?.iter().any(wanted);
            }
            if has {
                found.push(slot.ino());
            }
        }
    }
    let more = end > begin && end < chunk.descriptor.used;
    Ok((found, if more { Some(ZoneWalk::Content(number, end)) } else { next }))
}

/// The inodes of some segments of the tree.
fn segments(
    txn: &mut Txn<'_>,
    ino: Ino,
    file: u64,
    wanted: &impl Fn(&Segment) -> bool,
) -> Result<Step, Stop> {
    let (mut found, mut last, mut seen) = (Vec::<Ino>::new(), None, 0);
    SEGMENTS.for_each(txn, &segment_key(ino, file), |key, value| {
        if let Some((ino, segment)) = decode_item(key, value) {
            last = Some(ZoneWalk::Segments(ino, segment.file.0 + 1));
            if wanted(&segment) && found.last() != Some(&ino) {
                found.push(ino);
            }
        }
        seen += 1;
        seen < SEGMENTS_MAX
    })?;
    Ok((found, last.filter(|_| seen == SEGMENTS_MAX)))
}

//! Commits of files: what a holder of `DATA_X` changed in a file's layout, size and times, or a
//! holder of `DATA_P` in its ranges.
//!
//! Of an object file only size and times are committed: an edit is `Invalid`.
//!
//! Invariants:
//! - edits take effect in order. A commit too large for one transaction is several, and a crash may
//!   show the file after each of them. So a growing size is set first (holes read as zeros), a
//!   shrinking size and the times last;
//! - inline data raises the size to its end in the same transaction; a mapping of block 0 removes
//!   inline data in the same transaction;
//! - each transaction keeps how far the commit came, so a commit that is sent again after a restart
//!   goes on there. The client learns how far it came if it can go no further.

use std::ops::Range;

use mfs::{Stop, Txn};
use proto::mds::{Edit, OpReply};
use types::limits::{COMMIT_EDITS_MAX, CONTENTS_MAX, FILE_SIZE_MAX};
use types::{
    BlockRange, Fault, FileBlock, FileKind, HeldRange, Ino, Rights, Segment, SegmentState,
    Timestamp,
};

use crate::context::OpContext;
use crate::observer::CommittedBlocks;
use crate::recovery::kept_results::Outcome;
use crate::uncommitted::MetaItem;

/// Edits of one transaction.
const EDITS: usize = 24;
/// Segments of a range marked written that are reported to the observer.
const EDIT_MAX: usize = 128;

/// A commit's operands.
#[derive(Clone, Copy)]
pub struct Commit<'a> {
    pub ino: Ino,
    pub edits: &'a [Edit],
    pub size: Option<u64>,
    pub mtime: Option<Timestamp>,
    pub ctime: Option<Timestamp>,
    pub merge: bool,
    pub tail_zero: bool,
}

impl Commit<'_> {
    /// Is it within the bounds on edits and on inline data?
    ///
    /// # Errors
    /// `TooBig`.
    pub fn check_size(&self) -> Result<(), Fault> {
        let contents = self.edits.iter().filter(|edit| matches!(edit, Edit::Content { .. }));
        if self.edits.len() > COMMIT_EDITS_MAX || contents.count() > CONTENTS_MAX {
            return Err(Fault::TooBig);
        }
        Ok(())
    }

    /// Can a file of this kind have such a commit?
    ///
    /// # Errors
    /// `Invalid`.
    fn check_kind(&self, txn: &mut Txn<'_>, kind: FileKind) -> Result<(), Stop> {
        if kind != FileKind::Regular || self.size.is_some_and(|size| size > FILE_SIZE_MAX) {
            return Err(Fault::Invalid.into());
        }
        // What lies where in an object only its targets know.
        let plain = !self.merge && self.edits.is_empty();
        if !plain && txn.layouts().object(self.ino)?.is_some() {
            return Err(Fault::Invalid.into());
        }
        Ok(())
    }

    /// May the client make these edits, by the rights that it holds?
    fn is_covered(&self, cx: &OpContext<'_>, edits: &[Edit]) -> bool {
        let leases = cx.server.leases.table();
        let rights = leases.rights(cx.client, self.ino);
        let holds =
            |range| leases.holds_range(cx.client, self.ino, HeldRange { range, exclusive: true });
        rights.contains(Rights::DATA_X)
            || self.merge
                && rights.contains(Rights::DATA_P)
                && edits.iter().all(|edit| holds(blocks(edit)))
    }

    /// The size after the whole commit, if the server has the size `old`.
    fn size(&self, old: u64) -> u64 {
        match self.size {
            Some(size) if self.merge => size.max(old),
            size => size.unwrap_or(old),
        }
    }
}

/// The blocks that an edit is about.
fn blocks(edit: &Edit) -> BlockRange {
    match edit {
        Edit::Map { segment } => BlockRange::new(segment.file.0, segment.end()),
        Edit::Unmap { from, to } => BlockRange::new(from.0, *to),
        Edit::Written { from, len } => BlockRange::new(from.0, from.0.saturating_add(*len)),
        Edit::Content { .. } => BlockRange::new(0, 1),
    }
}

/// Applies edits of a range. Returns the index of the next edit, and with the commit's last edit
/// the reply.
pub fn step(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    commit: Commit<'_>,
    range: Range<usize>,
) -> Result<(Option<OpReply>, usize), Stop> {
    let ino = commit.ino;
    let mut attr = cx.attr(txn, ino)?;
    commit.check_kind(txn, attr.kind)?;
    if !cx.replay && !commit.is_covered(cx, &commit.edits[range.clone()]) {
        return Err(Fault::NotHeld.into());
    }
    let (edits, mut at, mut work) = (commit.edits, range.start, EDITS);
    let mut content_end = 0;
    while at < range.end && work > 0 {
        work -= 1;
        match &edits[at] {
            Edit::Map { segment } => match txn.layouts().map(ino, cx.client, *segment) {
                Err(Stop::Fault(Fault::Overloaded)) => {
                    txn.layouts().unmap(ino, segment.file, FileBlock(segment.end()))?;
                    work = 0;
                    continue;
                }
                other => {
                    other?;
                    report(cx, ino, &[*segment]);
                }
            },
            Edit::Unmap { from, to } => {
                if to <= &from.0 {
                    return Err(Fault::Invalid.into());
                }
                if !txn.layouts().unmap(ino, *from, FileBlock(*to))? {
                    work = 0;
                    continue;
                }
                work = work.saturating_sub(EDITS / 4);
            }
            Edit::Written { from, len } => {
                if cx.server.runtime.config.observer.is_some() {
                    let to = from.0.saturating_add(*len);
                    let all = txn.layouts().layout(ino, *from, EDIT_MAX)?;
                    let part = all.iter().filter_map(|segment| segment.slice(from.0, to));
                    let state = SegmentState::Written;
                    let part: Vec<Segment> = part.map(|part| Segment { state, ..part }).collect();
                    report(cx, ino, &part);
                }
                mark_written(txn, ino, *from, *len)?;
            }
            Edit::Content { bytes } => {
                if commit.merge {
                    return Err(Fault::Invalid.into());
                }
                txn.layouts().set_content(ino, &bytes.0)?;
                content_end = content_end.max(bytes.0.len() as u64);
                work = work.saturating_sub(EDITS / 4);
            }
        }
        at += 1;
    }
    let last = at == edits.len();
    // Inline data does not lie beyond the size, unless the commit sets a size inside it.
    let size = commit.size(attr.size.max(content_end));
    attr.size = if last { size } else { attr.size.max(size).max(content_end) };
    if last {
        // A time in the future was set by a caller, not by a write.
        let merge = commit.merge && attr.mtime <= cx.now;
        let (mtime, ctime) =
            (commit.mtime.unwrap_or(attr.mtime), commit.ctime.unwrap_or(attr.ctime));
        attr.mtime = if merge { mtime.max(attr.mtime) } else { mtime };
        // Names and attributes may have changed since the content did.
        attr.ctime = ctime.max(attr.ctime);
        // What a merged commit says of the tail is true for the size that it reports.
        if !commit.merge || commit.size == Some(attr.size) {
            cx.effects.tail = Some((ino, attr.size, commit.tail_zero));
        }
    }
    attr.version += 1;
    txn.names().set_attr(&attr)?;
    cx.effects.changes.extend([MetaItem::Attr(ino), MetaItem::Data(ino)]);
    if !last {
        cx.effects.outcome = Some(Outcome::Edits(at as u32));
        return Ok((None, at));
    }
    cx.effects.outcome = Some(Outcome::Done);
    cx.effects.reads.extend([MetaItem::Attr(ino), MetaItem::Data(ino)]);
    let attr = cx.attr(txn, ino)?;
    Ok((Some(OpReply::Attr { leased: cx.leased(attr) }), at))
}

/// Reports to the observer which blocks the metadata are to point at.
fn report(cx: &OpContext<'_>, ino: Ino, segments: &[Segment]) {
    if let Some(observer) = &cx.server.runtime.config.observer {
        observer.commits(&CommittedBlocks { client: cx.client, ino, segments, replay: cx.replay });
    }
}

/// Marks a range written, in halves if it has too many segments for one edit.
fn mark_written(txn: &mut Txn<'_>, ino: Ino, from: FileBlock, len: u64) -> Result<(), Stop> {
    match txn.layouts().mark_written(ino, from, len) {
        Err(Stop::Fault(Fault::Overloaded)) if len > 1 => {
            let half = len / 2;
            mark_written(txn, ino, from, half)?;
            mark_written(txn, ino, FileBlock(from.0 + half), len - half)
        }
        other => other,
    }
}

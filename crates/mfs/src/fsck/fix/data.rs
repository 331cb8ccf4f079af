//! Layouts and data space.
//!
//! Invariants:
//! - the counts in the table of data zones are not trusted, and set at the very end;
//! - a segment by which its file maps more blocks than the slot counts is cut to that count before
//!   it takes blocks from another owner. This applies if other owners have some of its blocks, or
//!   they do not exist;
//! - every change of a file's segments recounts them ([`rewrite`]), and reports which of its blocks
//!   are no longer mapped: those of removed segments, and those that the slot counts and no segment
//!   has.

use types::{Fault, FileBlock, FileKind, Ino, PagBlock, PagId, Segment};

use super::{Change, Done, Fixer};
use crate::format::segment::{behind_block_0, decode_item, ino_of_key};
use crate::format::slot::Slot;
use crate::format::space::{
    FreedRun, LentRun, PagRecord, decode_run_key, pag_key, pool_key, run_key,
};
use crate::fsck::gaps::{Gaps, unmapped};
use crate::fsck::lost::Loss;
use crate::fsck::plan::Fix;
use crate::fsck::space::{Owner, Piece};
use crate::trees::{FREE, FREED, LENT, PAGS, POOLS, SEGMENTS};
use crate::txn::Txn;
use engine::error::{Stop, StoreError};

/// No zone has data blocks from here on.
const BEYOND: u64 = 1 << 48;

impl Fixer {
    pub(super) async fn fix_data(&mut self, fix: &Fix) -> Done {
        let gaps = &self.state.gaps;
        match *fix {
            Fix::DropSegment(ref key) => {
                let done = self.change(|txn| SEGMENTS.remove(txn, key).map(drop)).await?;
                // For an existing file the count in its slot shows what it lost.
                let ino = ino_of_key(key);
                let gone = self.check.kind_of(ino) != Some(FileKind::Regular);
                let lost = gone.then_some(Loss::Stray(ino));
                let line = "a segment was removed from the tree of segments";
                Ok(done.then(|| Change::with_losses(line, lost)))
            }
            Fix::Recount(ino) => {
                self.change_with_report(|txn| {
                    let lost = rewrite(txn, ino, gaps, |_| {})?;
                    let line = format!("the segments of inode {ino} are counted");
                    Ok(Change::with_losses(line, lost))
                })
                .await
            }
            Fix::Overlap(a, b) => {
                // One after the other, so that the loss of each is reported.
                for piece in [&a, &b] {
                    if let Some(done) = self.trim(piece).await? {
                        return Ok(done);
                    }
                }
                let gaps = &self.state.gaps;
                self.change_with_report(|txn| overlap(txn, gaps, &a, &b)).await
            }
            Fix::Outside(piece, from, to) => {
                if let Some(done) = self.trim(&piece).await? {
                    return Ok(done);
                }
                let gaps = &self.state.gaps;
                self.change_with_report(|txn| {
                    let lost = cut(txn, gaps, &piece, from, to)?;
                    let owner = piece.owner();
                    let line = format!("{owner:?} lost blocks {from} to {to}, which are none");
                    Ok(Change::with_losses(line, lost))
                })
                .await
            }
            Fix::Beyond(owner) => self.change_with_report(|txn| beyond(txn, gaps, owner)).await,
            Fix::AddFree(pag, start, len) => {
                self.change_with_report(|txn| {
                    add_free(txn, pag, start, len)?;
                    let line =
                        format!("{len} blocks from {start} of data zone {pag} on became free");
                    Ok(Change::with_losses(line, [Loss::Data { pag, blocks: len }]))
                })
                .await
            }
            Fix::JoinFree(key) => {
                let done = self.change(|txn| join(txn, &key)).await?;
                Ok(done.then(|| "neighbouring runs of free space were joined".into()))
            }
            Fix::PagCount(pag, free, freed) => {
                self.change_with_report(|txn| {
                    let record = txn.space().pag(pag)?.ok_or(Stop::Fault(Fault::Stale))?;
                    let record = PagRecord { free, freed, ..record };
                    PAGS.insert(txn, &pag_key(pag), &record.encode())?;
                    Ok(format!("data zone {pag} has {free} free blocks, {freed} given up"))
                })
                .await
            }
            _ => Ok(None),
        }
    }
}

impl Fixer {
    /// Cuts a piece by which alone its file maps more than it counts. `None`: the piece is not one.
    async fn trim(&mut self, piece: &Piece) -> Result<Option<Option<Change>>, StoreError> {
        let Owner::File(ino) = piece.owner() else { return Ok(None) };
        let more = self.check.overmapped.get(&ino).copied();
        let Some(more) = more.filter(|&more| more < piece.len()) else { return Ok(None) };
        // The next check finds other overlaps again, if there still are any.
        if !self.trimmed.insert(ino) {
            return Ok(Some(None));
        }
        let (from, to) = (piece.end() - more, piece.end());
        let gaps = &self.state.gaps;
        let done = self
            .change_with_report(|txn| {
                let lost = cut(txn, gaps, piece, from, to)?;
                let line = format!("a segment of inode {ino} was cut to the blocks that it counts");
                Ok(Change::with_losses(line, lost))
            })
            .await?;
        Ok(Some(done))
    }
}

/// Two pieces have blocks in common: the owner of lower rank loses them.
fn overlap(txn: &mut Txn<'_>, gaps: &Gaps, a: &Piece, b: &Piece) -> Result<Change, Stop> {
    let (from, to) = (a.start().max(b.start()), a.end().min(b.end()));
    if from >= to {
        return Ok(Change::from(""));
    }
    let loser = match (a.owner(), b.owner()) {
        (Owner::File(first), Owner::File(second)) => {
            if wins(txn, first, second)? {
                b
            } else {
                a
            }
        }
        (first, second) if rank(first) >= rank(second) => b,
        _ => a,
    };
    let lost = cut(txn, gaps, loser, from, to)?;
    let (winner, pag) = (if loser == a { b } else { a }, a.pag());
    let (winner, loser) = (winner.owner(), loser.owner());
    let line =
        format!("blocks {from} to {to} of data zone {pag} are {winner:?}'s, no more {loser:?}'s");
    Ok(Change::with_losses(line, lost))
}

fn rank(owner: Owner) -> u32 {
    match owner {
        Owner::Lent(_) => 4,
        Owner::File(_) => 3,
        Owner::Freed(_) => 2,
        Owner::Pool(_) => 1,
        Owner::Free => 0,
    }
}

/// Does the first of two files keep a block? The one that was changed last; else the lower number.
fn wins(txn: &mut Txn<'_>, first: Ino, second: Ino) -> Result<bool, Stop> {
    let changed = |txn: &mut Txn<'_>, ino: Ino| {
        let time = txn.names().attr(ino)?.map(|attr| attr.ctime);
        Ok::<_, Stop>(time.map(|time| (time.seconds, time.nanos)))
    };
    let (a, b) = (changed(txn, first)?, changed(txn, second)?);
    Ok(a > b || a == b && first <= second)
}

/// Takes blocks `[from, to)` from a piece; returns what a file loses.
fn cut(
    txn: &mut Txn<'_>,
    gaps: &Gaps,
    piece: &Piece,
    from: u64,
    to: u64,
) -> Result<Vec<Loss>, Stop> {
    let (pag, start, len) = (piece.pag(), piece.start(), piece.len());
    let keep = [(start, from), (to, start + len)];
    let mut keep = keep.into_iter().filter(|(from, to)| from < to);
    match piece.owner() {
        Owner::File(ino) => {
            return rewrite(txn, ino, gaps, |list| {
                let same = |e: &Segment| (e.pag, e.addr.0, e.len) == (pag, start, len);
                let Some(at) = list.iter().rposition(same) else { return };
                let segment = list.remove(at);
                for (from, to) in keep {
                    let file = FileBlock(segment.file.0 + (from - start));
                    list.push(Segment { file, addr: PagBlock(from), len: to - from, ..segment });
                }
            });
        }
        Owner::Free => {
            FREE.remove(txn, &run_key(pag, start))?;
            keep.try_for_each(|(from, to)| {
                FREE.insert(txn, &run_key(pag, from), &(to - from).to_le_bytes()).map(drop)
            })?;
        }
        Owner::Pool(client) => {
            POOLS.remove(txn, &pool_key(client, pag, start))?;
            keep.try_for_each(|(from, to)| {
                let value = (to - from).to_le_bytes();
                POOLS.insert(txn, &pool_key(client, pag, from), &value).map(drop)
            })?;
        }
        Owner::Freed(_) => {
            let Some(value) = FREED.remove(txn, &run_key(pag, start))? else {
                return Ok(Vec::new());
            };
            let freed = FreedRun::decode(&value);
            keep.try_for_each(|(from, to)| {
                let part = FreedRun { len: to - from, ..freed };
                FREED.insert(txn, &run_key(pag, from), &part.encode()).map(drop)
            })?;
        }
        Owner::Lent(_) => {
            let Some(value) = LENT.remove(txn, &run_key(pag, start))? else {
                return Ok(Vec::new());
            };
            let lent = LentRun::decode(&value);
            keep.try_for_each(|(from, to)| {
                let part = LentRun { len: to - from, ..lent };
                LENT.insert(txn, &run_key(pag, from), &part.encode()).map(drop)
            })?;
        }
    }
    Ok(Vec::new())
}

/// Changes the segments of a file, and recounts them. Removes those that overlap an earlier one,
/// and that of block 0 if the file has inline data. Returns what is no longer mapped, and what the
/// file counted and does not have.
fn rewrite(
    txn: &mut Txn<'_>,
    ino: Ino,
    gaps: &Gaps,
    change: impl FnOnce(&mut Vec<Segment>),
) -> Result<Vec<Loss>, Stop> {
    let (spot, mut slot) = txn.names().locate_live(ino)?;
    let mut tree = Vec::new();
    SEGMENTS.for_each(txn, &crate::format::segment::segment_key(ino, 0), |key, value| {
        if key[..8] != ino.0.to_be_bytes() {
            return false;
        }
        tree.extend(decode_item(key, value).map(|(_, segment)| segment));
        true
    })?;
    let near = txn.layouts().near(spot.block, &slot)?;
    let mut list = near.all();
    list.extend_from_slice(&tree);
    let size = slot.attr().size;
    let mut lost = uncounted(&slot, near.in_blocks() + tree.len() as u64, &list, gaps);
    if slot.has_content() {
        list = list.iter().filter_map(behind_block_0).collect();
    }
    let before = list.clone();
    change(&mut list);
    if slot.has_object() {
        list.clear();
    }
    list.sort_by_key(|segment| segment.file);
    let mut end = 0;
    list.retain(|segment| {
        let keep = segment.file.0 >= end;
        end = if keep { segment.end() } else { end };
        keep
    });
    lost.extend(unmapped(ino, size, &before, &list));
    txn.layouts().replace_segments(&spot, &mut slot, (&near, &tree), &list)?;
    Ok(lost)
}

/// The losses of a file that has `found` segments outside of its slot, and `list` in all.
fn uncounted(slot: &Slot, found: u64, list: &[Segment], gaps: &Gaps) -> Vec<Loss> {
    let mapped = list.iter().fold(0u64, |sum, segment| sum.saturating_add(segment.len));
    let missing = slot.blocks().saturating_sub(mapped);
    if slot.body() <= found || missing == 0 {
        return Vec::new();
    }
    let mut there = list.to_vec();
    there.sort_by_key(|segment| segment.file);
    gaps.losses(slot.ino(), slot.attr().size, &there, missing)
}

fn beyond(txn: &mut Txn<'_>, gaps: &Gaps, owner: Owner) -> Result<Change, Stop> {
    let far = |start: u64, len: u64| start >= BEYOND || len >= BEYOND;
    if let Owner::File(ino) = owner {
        let near = |segment: &Segment| !far(segment.addr.0, segment.len);
        let lost = rewrite(txn, ino, gaps, |list| list.retain(near))?;
        let line = format!("inode {ino} lost segments that lie in no data zone");
        return Ok(Change::with_losses(line, lost));
    }
    let mut free = Vec::new();
    FREE.for_each(txn, &[0; 10], |key, value| {
        if far(decode_run_key(key).1.0, u64::from_le_bytes(*value)) {
            free.push(*key);
        }
        true
    })?;
    let mut freed = Vec::new();
    FREED.for_each(txn, &[0; 10], |key, value| {
        if far(decode_run_key(key).1.0, FreedRun::decode(value).len) {
            freed.push(*key);
        }
        true
    })?;
    let mut pools = Vec::new();
    POOLS.for_each(txn, &[0; 18], |key, value| {
        let (_, _, start) = crate::format::space::decode_pool_key(key);
        if far(start.0, u64::from_le_bytes(*value)) {
            pools.push(*key);
        }
        true
    })?;
    free.iter().try_for_each(|key| FREE.remove(txn, key).map(drop))?;
    freed.iter().try_for_each(|key| FREED.remove(txn, key).map(drop))?;
    pools.iter().try_for_each(|key| POOLS.remove(txn, key).map(drop))?;
    Ok("runs that lie in no data zone were removed".into())
}

/// Frees blocks without an owner, joined with free neighbours.
fn add_free(txn: &mut Txn<'_>, pag: PagId, start: u64, len: u64) -> Result<(), Stop> {
    let (mut from, mut end) = (start, start + len);
    if let Some((before, n)) = txn.space().free_run_to(pag, start)? {
        if before + n > start {
            return Ok(());
        }
        if before + n == start {
            from = before;
        }
    }
    if let Some((next, n)) = txn.space().free_run_from(pag, start)? {
        if next < end {
            return Ok(());
        }
        if next == end {
            FREE.remove(txn, &run_key(pag, next))?;
            end = next + n;
        }
    }
    FREE.insert(txn, &run_key(pag, from), &(end - from).to_le_bytes())?;
    Ok(())
}

fn join(txn: &mut Txn<'_>, key: &[u8; 10]) -> Result<(), Stop> {
    let (pag, start) = decode_run_key(key);
    let Some(value) = FREE.get(txn, key)? else { return Ok(()) };
    let len = u64::from_le_bytes(value);
    let next = run_key(pag, start.0 + len);
    if let Some(more) = FREE.remove(txn, &next)? {
        FREE.insert(txn, key, &(len + u64::from_le_bytes(more)).to_le_bytes())?;
    }
    Ok(())
}

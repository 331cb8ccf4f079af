//! Maps blocks of an object to content blocks, in a transaction.

use engine::error::Stop;
use engine::txn::Txn;
use types::ObjectId;

use super::format::{
    BLOCKS_MAX, Extent, GROUP, GROUP_BYTES, OBJECTS, Run, SEGMENT_MAX, SEGMENTS, SUMS, Segment,
    object_key, place_key, place_of, segment_of, sums_of, sums_value,
};

/// What a step of a punch may do at most.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    /// Segments that it unmaps.
    pub(super) segments: usize,
    /// Groups of checksums.
    pub(super) groups: u64,
}

impl Budget {
    /// That of a step.
    pub(super) const STEP: Budget = Budget { segments: 64, groups: 512 };

    /// That of a punch of few segments.
    pub(super) const FEW: Budget = Budget { segments: 2, groups: 64 };

    /// Is nothing left?
    pub(super) fn is_spent(&self) -> bool {
        self.segments == 0 || self.groups == 0
    }
}

/// The segment of an entry, if it makes sense.
fn checked(txn: &Txn<'_>, key: &[u8; 16], value: &[u8; 12]) -> Result<Segment, Stop> {
    let segment = segment_of(key, value);
    let sound = segment.len > 0
        && segment.at > 0
        && segment.block.checked_add(segment.len).is_some_and(|end| end <= BLOCKS_MAX)
        && segment.at.checked_add(segment.len).is_some();
    if sound { Ok(segment) } else { Err(SEGMENTS.corrupt(txn, "a segment is impossible")) }
}

/// The last segment of an object that begins at `block` or before.
fn last_to(txn: &Txn<'_>, object: ObjectId, block: u64) -> Result<Option<Segment>, Stop> {
    match SEGMENTS.prev(txn, &place_key(object, block))? {
        Some((key, value)) if place_of(&key).0 == object => checked(txn, &key, &value).map(Some),
        _ => Ok(None),
    }
}

/// At most `max` segments of an object that overlap `from..to`, whole.
pub(super) fn overlapping(
    txn: &Txn<'_>,
    object: ObjectId,
    from: u64,
    to: u64,
    max: usize,
) -> Result<Vec<Segment>, Stop> {
    let mut out = Vec::new();
    out.extend(last_to(txn, object, from)?.filter(|segment| segment.end() > from && from < to));
    let mut unsound = None;
    if let Some(next) = from.checked_add(1).filter(|_| max > 0) {
        SEGMENTS.for_each(txn, &place_key(object, next), |key, value| {
            let (owner, block) = place_of(key);
            if owner != object || block >= to || out.len() >= max {
                return false;
            }
            match checked(txn, key, value) {
                Ok(segment) => out.push(segment),
                Err(stop) => unsound = Some(stop),
            }
            unsound.is_none()
        })?;
    }
    out.truncate(max);
    unsound.map_or(Ok(out), Err)
}

/// Where the block of an object before `block` lies: one past it.
pub(super) fn goal(txn: &Txn<'_>, object: ObjectId, block: u64) -> Result<Option<u64>, Stop> {
    let Some(before) = block.checked_sub(1) else { return Ok(None) };
    let segment = last_to(txn, object, before)?;
    Ok(segment.map(|segment| segment.part(0, block).run().end()))
}

/// Unmaps `from..to`; `segments` are all that overlap it. Returns where these blocks lie.
pub(super) fn unmap(
    txn: &mut Txn<'_>,
    object: ObjectId,
    from: u64,
    to: u64,
    segments: &[Segment],
) -> Result<Vec<Run>, Stop> {
    let mut freed = Vec::with_capacity(segments.len());
    for segment in segments {
        freed.push(segment.part(from, to).run());
        if segment.block < from {
            put(txn, object, segment.part(0, from))?;
        } else {
            SEGMENTS.remove(txn, &place_key(object, segment.block))?;
        }
        if segment.end() > to {
            put(txn, object, segment.part(to, u64::MAX))?;
        }
    }
    Ok(freed)
}

fn put(txn: &mut Txn<'_>, object: ObjectId, segment: Segment) -> Result<(), Stop> {
    SEGMENTS.insert(txn, &place_key(object, segment.block), &segment.value())?;
    Ok(())
}

/// Maps blocks that are not mapped, and joins them with their neighbours where they lie together.
pub(super) fn map(txn: &mut Txn<'_>, object: ObjectId, mut new: Segment) -> Result<(), Stop> {
    let together = |a: &Segment, b: &Segment| {
        a.end() == b.block && a.run().end() == b.at && a.len + b.len <= SEGMENT_MAX
    };
    let before = match new.block.checked_sub(1) {
        Some(before) => last_to(txn, object, before)?,
        None => None,
    };
    if let Some(before) = before.filter(|before| together(before, &new)) {
        new = Segment { len: before.len + new.len, ..before };
    }
    let behind = last_to(txn, object, new.end())?.filter(|behind| together(&new, behind));
    if let Some(behind) = behind {
        SEGMENTS.remove(txn, &place_key(object, behind.block))?;
        new.len += behind.len;
    }
    put(txn, object, new)
}

/// What the object has; nothing if it does not exist.
pub(super) fn extent(txn: &Txn<'_>, object: ObjectId) -> Result<Option<Extent>, Stop> {
    Ok(OBJECTS.get(txn, &object_key(object))?.map(|value| Extent::decode(&value)))
}

/// Changes what the object has.
pub(super) fn set_extent(txn: &mut Txn<'_>, object: ObjectId, extent: Extent) -> Result<(), Stop> {
    OBJECTS.insert(txn, &object_key(object), &extent.encode())?;
    Ok(())
}

/// Sets the checksums of the blocks from `block` on.
pub(super) fn set_sums(
    txn: &mut Txn<'_>,
    object: ObjectId,
    block: u64,
    sums: &[u32],
) -> Result<(), Stop> {
    let (mut at, mut rest) = (block, sums);
    while !rest.is_empty() {
        let (key, from) = (place_key(object, at / GROUP), (at % GROUP) as usize);
        let (now, later) = rest.split_at((GROUP as usize - from).min(rest.len()));
        let whole = now.len() == GROUP as usize;
        let old = if whole { None } else { SUMS.get(txn, &key)? };
        let mut group = old.map_or([0; GROUP as usize], |value| sums_of(&value));
        group[from..from + now.len()].copy_from_slice(now);
        SUMS.insert(txn, &key, &sums_value(&group))?;
        at += now.len() as u64;
        rest = later;
    }
    Ok(())
}

/// Removes the checksums of the blocks `from..to`.
pub(super) fn clear_sums(
    txn: &mut Txn<'_>,
    object: ObjectId,
    from: u64,
    to: u64,
) -> Result<(), Stop> {
    let last = (to - 1) / GROUP;
    let mut there = Vec::new();
    SUMS.for_each(txn, &place_key(object, from / GROUP), |key, value| {
        let (owner, group) = place_of(key);
        let inside = owner == object && group <= last;
        if inside {
            there.push((group, *value));
        }
        inside
    })?;
    for (group, value) in there {
        let key = place_key(object, group);
        let begin = group * GROUP;
        let (first, end) = (from.max(begin) - begin, to.min(begin + GROUP) - begin);
        let mut sums = sums_of(&value);
        sums[first as usize..end as usize].fill(0);
        match sums.iter().all(|sum| *sum == 0) {
            true => drop(SUMS.remove(txn, &key)?),
            false => drop(SUMS.insert(txn, &key, &sums_value(&sums))?),
        }
    }
    Ok(())
}

/// The checksums of `len` blocks from `block` on.
pub(super) fn sums(
    txn: &Txn<'_>,
    object: ObjectId,
    block: u64,
    len: u64,
) -> Result<Vec<u32>, Stop> {
    let mut out = vec![0; len as usize];
    let end = block + len;
    if len == 0 {
        return Ok(out);
    }
    SUMS.for_each(txn, &place_key(object, block / GROUP), |key, value: &[u8; GROUP_BYTES]| {
        let (owner, group) = place_of(key);
        let begin = group.saturating_mul(GROUP);
        if owner != object || begin >= end {
            return false;
        }
        for (at, sum) in (begin..).zip(sums_of(value)) {
            if (block..end).contains(&at) {
                out[(at - block) as usize] = sum;
            }
        }
        true
    })?;
    Ok(out)
}

/// Unmaps blocks of an object in `from..to`, from the first on that holds something, as far as the
/// budget allows. Returns where to go on; `None`: nothing in `from..to` holds something any more.
pub(super) fn unmap_step(
    txn: &mut Txn<'_>,
    object: ObjectId,
    from: u64,
    to: u64,
    budget: &mut Budget,
    freed: &mut Vec<Run>,
) -> Result<Option<u64>, Stop> {
    let mut segments = overlapping(txn, object, from, to, budget.segments + 1)?;
    let Some(first) = segments.first() else { return Ok(None) };
    let begin = first.block.max(from);
    let mut end = to.min((begin / GROUP).saturating_add(budget.groups).saturating_mul(GROUP));
    if let Some(next) = segments.get(budget.segments) {
        end = end.min(next.block);
    }
    segments.retain(|segment| segment.block < end);
    let gone = unmap(txn, object, begin, end, &segments)?;
    let blocks: u64 = gone.iter().map(|run| run.len).sum();
    freed.extend(gone);
    clear_sums(txn, object, begin, end)?;
    budget.segments -= segments.len();
    let last = segments.last().map_or(begin, |last| last.end().min(end) - 1);
    budget.groups = budget.groups.saturating_sub(last / GROUP - begin / GROUP + 1);
    let Some(mut extent) = extent(txn, object)? else {
        return Err(SEGMENTS.corrupt(txn, "blocks belong to no object"));
    };
    if extent.blocks < blocks {
        return Err(OBJECTS.corrupt(txn, "an object has too few blocks"));
    }
    extent.blocks -= blocks;
    if end >= extent.end {
        extent.end = last_to(txn, object, u64::MAX)?.map_or(0, |last| last.end());
    }
    set_extent(txn, object, extent)?;
    let more = !overlapping(txn, object, end, to, 1)?.is_empty();
    Ok(more.then_some(end))
}

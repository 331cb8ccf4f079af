//! Rights on content, and layouts.

use mfs::{Stop, Txn};
use proto::mds::{LayoutSlice, ObjectLayout, OpReply};
use proto::placement::ATTRIBUTE;
use proto::wire::Bytes;
use types::limits::{BLOCK_U64, FILE_SIZE_MAX, RANGES_AHEAD_MAX, REPLY_SEGMENTS_MAX};
use types::{Ahead, Attr, BlockRange, Fault, FileBlock, FileKind, HeldRange, Ino, Rights};

use crate::context::{OpContext, applicable};
use crate::leases::GrantMode;
use crate::uncommitted::MetaItem;

/// Blocks that a file can have.
const FILE_BLOCKS_MAX: u64 = FILE_SIZE_MAX / BLOCK_U64 + 1;

/// Grants rights on an inode, as a whole or in ranges, and returns the layout.
pub fn acquire(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    (rights, from): (Rights, FileBlock),
    part: Option<(BlockRange, Ahead)>,
) -> Result<OpReply, Stop> {
    let attr = cx.attr(txn, ino)?;
    let rights = rights.closed() - Rights::DATA_P;
    if rights.intersects(Rights::WHOLE) && attr.kind != FileKind::Regular {
        let directory = attr.kind == FileKind::Directory;
        return Err(if directory { Fault::IsDirectory } else { Fault::Invalid }.into());
    }
    if rights.contains(Rights::NAMES) && attr.kind != FileKind::Directory {
        return Err(Fault::NotDirectory.into());
    }
    // Of an object file only the whole right is granted, or `OPEN` alone: a target knows no ranges.
    let is_object = attr.kind == FileKind::Regular && txn.layouts().object(ino)?.is_some();
    let part = part.filter(|(range, _)| range.is_empty() || !is_object);
    let Some((range, ahead)) = part.filter(|_| rights.intersects(Rights::WHOLE)) else {
        return whole(cx, txn, attr, (rights, from), false);
    };
    if range.is_empty() {
        return opened(cx, txn, attr, (rights, from));
    }
    match cx.grant_mode(ino, rights, range) {
        GrantMode::Whole => whole(cx, txn, attr, (rights, from), false),
        GrantMode::Calm => calm(cx, attr),
        GrantMode::Range(window) => {
            if cx.server.leases.is_tail_zero(ino, attr.size) {
                return some_ranges(cx, txn, attr, (rights, range, ahead), window);
            }
            let parts = cx.server.leases.table().rights(cx.client, ino).contains(Rights::DATA_P);
            if parts { calm(cx, attr) } else { whole(cx, txn, attr, (rights, from), true) }
        }
    }
}

/// Grants rights on the whole file.
fn whole(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    attr: Attr,
    (rights, from): (Rights, FileBlock),
    tail_unknown: bool,
) -> Result<OpReply, Stop> {
    let ino = attr.ino;
    cx.need(ino, rights.conflicts());
    // Without a right on attributes, writers elsewhere keep their rights and are only asked.
    let current = if rights.conflicts().contains(Rights::WRITES) { attr } else { cx.seen(attr) };
    cx.ready()?;
    cx.effects.grants.push((ino, rights & applicable(attr.kind)));
    cx.effects.reads.push(MetaItem::Attr(ino));
    let content = rights.intersects(Rights::WHOLE);
    let layout = if content { Some(layout_part(cx, txn, ino, from, None)?) } else { None };
    let leased = cx.leased(current);
    Ok(OpReply::Acquired { leased, layout, ranges: Vec::new(), uncontended: false, tail_unknown })
}

/// Grants a range, widened within windows of `window` blocks, and ranges that the client will need
/// next.
fn some_ranges(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    attr: Attr,
    (rights, asked, ahead): (Rights, BlockRange, Ahead),
    window: u64,
) -> Result<OpReply, Stop> {
    let ino = attr.ino;
    let exclusive = rights.contains(Rights::DATA_X);
    cx.need_range(ino, HeldRange { range: asked, exclusive });
    cx.ready()?;
    let mut ranges = vec![widened(cx, ino, asked, window)];
    ranges.extend(free_ahead(cx, ino, asked, ahead));
    let mut layout = LayoutSlice { from: ranges[0].from, ..LayoutSlice::default() };
    for &range in &ranges {
        let here = layout_part(cx, txn, ino, range.from, Some(range))?;
        layout.to = here.to;
        layout.frozen = here.frozen;
        layout.inline_max = here.inline_max;
        layout.placement = here.placement;
        if !here.content.0.is_empty() {
            layout.content = here.content;
        }
        layout.segments.extend(here.segments);
    }
    let parts: Vec<HeldRange> =
        ranges.into_iter().map(|range| HeldRange { range, exclusive }).collect();
    cx.effects.grants.push((ino, Rights::OPEN));
    cx.effects.ranges = parts.iter().map(|&part| (ino, part)).collect();
    cx.effects.reads.push(MetaItem::Attr(ino));
    let (leased, layout) = (cx.leased(attr), Some(layout));
    Ok(OpReply::Acquired { leased, layout, ranges: parts, uncontended: false, tail_unknown: false })
}

fn widened(cx: &OpContext<'_>, ino: Ino, asked: BlockRange, window: u64) -> BlockRange {
    asked.from.0.checked_div(window).map_or(asked, |at| {
        let to = asked.to.0.checked_next_multiple_of(window).unwrap_or(asked.to.0);
        let limit = BlockRange::new(at * window, to);
        cx.server.leases.table().room_around(cx.client, ino, asked, limit)
    })
}

/// The ranges `ahead` of `asked`, up to the first one of which another client holds something.
fn free_ahead(cx: &OpContext<'_>, ino: Ino, asked: BlockRange, ahead: Ahead) -> Vec<BlockRange> {
    let leases = cx.server.leases.table();
    // They do not overlap, and stay far from the largest number.
    let fits = (asked.len()..FILE_BLOCKS_MAX / 256).contains(&ahead.stride);
    let count = if fits { usize::from(ahead.count).min(RANGES_AHEAD_MAX - 1) } else { 0 };
    (1..=count as u64)
        .map(|at| {
            let by = at * ahead.stride;
            BlockRange::new(asked.from.0.saturating_add(by), asked.to.0.saturating_add(by))
        })
        .take_while(|&range| {
            let whole = HeldRange { range, exclusive: true };
            range.to.0 <= FILE_BLOCKS_MAX
                && leases.range_conflicts(cx.client, ino, whole).is_empty()
        })
        .collect()
}

/// Grants nothing: the client is to exchange its ranges for the whole right.
fn calm(cx: &mut OpContext<'_>, attr: Attr) -> Result<OpReply, Stop> {
    let current = cx.seen(attr);
    cx.ready()?;
    cx.effects.reads.push(MetaItem::Attr(attr.ino));
    let leased = cx.leased(current);
    Ok(OpReply::Acquired {
        leased,
        layout: None,
        ranges: Vec::new(),
        uncontended: true,
        tail_unknown: false,
    })
}

/// Opens a file: grants the whole right if nothing conflicts with it, else `OPEN` alone.
fn opened(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    attr: Attr,
    wanted: (Rights, FileBlock),
) -> Result<OpReply, Stop> {
    let ino = attr.ino;
    let conflicting = (wanted.0.conflicts() & Rights::DATA) - Rights::ATTR;
    let (others, own) = {
        let leases = cx.server.leases.table();
        (leases.others(cx.client, ino), leases.rights(cx.client, ino))
    };
    // A client returns its ranges before it gets the whole right.
    if !others.intersects(conflicting) && !own.contains(Rights::DATA_P) {
        return whole(cx, txn, attr, wanted, false);
    }
    let calm = !cx.server.leases.is_contended(ino, cx.server.runtime.env.now());
    cx.need(ino, Rights::empty());
    let current = cx.seen(attr);
    cx.ready()?;
    cx.effects.grants.push((ino, Rights::OPEN));
    cx.effects.reads.push(MetaItem::Attr(ino));
    let leased = cx.leased(current);
    Ok(OpReply::Acquired {
        leased,
        layout: None,
        ranges: Vec::new(),
        uncontended: calm,
        tail_unknown: false,
    })
}

/// Reads the layout of a file from `from` on.
pub fn layout(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    from: FileBlock,
) -> Result<OpReply, Stop> {
    let attr = cx.attr(txn, ino)?;
    if attr.kind != FileKind::Regular {
        return Err(Fault::Invalid.into());
    }
    if !cx.server.leases.table().rights(cx.client, ino).intersects(Rights::DATA) {
        return Err(Fault::NotHeld.into());
    }
    Ok(OpReply::Layout { slice: layout_part(cx, txn, ino, from, None)? })
}

/// The layout from `from` on, or of `within` only.
fn layout_part(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    from: FileBlock,
    within: Option<BlockRange>,
) -> Result<LayoutSlice, Stop> {
    cx.effects.reads.push(MetaItem::Data(ino));
    let max = within.map_or(REPLY_SEGMENTS_MAX, |range| range.len() as usize + 1);
    let mut segments = txn.layouts().layout(ino, from, max.min(REPLY_SEGMENTS_MAX))?;
    let to = match (within, segments.last()) {
        (Some(range), _) => range.to.0,
        (None, Some(last)) if segments.len() >= REPLY_SEGMENTS_MAX => last.end(),
        (None, _) => u64::MAX,
    };
    if within.is_some() {
        segments = segments.iter().filter_map(|segment| segment.slice(from.0, to)).collect();
    }
    let object = object(cx, txn, ino)?;
    // A target refuses evicted clients, and overwrites nothing in place.
    let frozen =
        object.is_none() && (cx.server.evictions.is_all_frozen() || txn.space().is_frozen(ino)?);
    let inline_max = txn.layouts().content_room(ino)? as u32;
    let content = if from.0 == 0 && to > 0 { txn.layouts().content(ino)? } else { Vec::new() };
    let (content, placement) = (Bytes(content), placement(txn, ino)?);
    Ok(LayoutSlice { from, to, segments, frozen, content, inline_max, placement, object })
}

/// Where the content of an object file lies. What the client may do there is said when the answer
/// leaves.
pub fn object(
    cx: &OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
) -> Result<Option<ObjectLayout>, Stop> {
    // An inode that is gone has a reply, too, if it was created before a restart.
    if txn.names().attr(ino)?.is_none() {
        return Ok(None);
    }
    let record = txn.layouts().object(ino)?;
    Ok(record.map(|record| cx.server.targets.layout_for(record, cx.client, Rights::empty())))
}

/// The layout that a file got when it was created; empty: none.
pub fn placement(txn: &mut Txn<'_>, ino: Ino) -> Result<Bytes, Stop> {
    Ok(Bytes(txn.names().xattr(ino, ATTRIBUTE)?.unwrap_or_default()))
}

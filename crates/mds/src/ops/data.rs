//! Rights on content, and layouts.

use proto::mds::{InoRef, LayoutSlice, OpReply};
use proto::wire::Bytes;
use store::{Stop, Txn};
use types::limits::{BLOCK_U64, FILE_SIZE_MAX, RANGES_AHEAD_MAX, REPLY_EXTENTS_MAX};
use types::{Ahead, Attr, BlockRange, Fault, FileBlock, FileKind, HeldRange, Ino, Rights};

use crate::contention::Manner;
use crate::cx::{Cx, possible};
use crate::recent::Unit;

/// Blocks that a file can have.
const FILE_BLOCKS_MAX: u64 = FILE_SIZE_MAX / BLOCK_U64 + 1;

pub fn acquire(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    ino: &InoRef,
    (rights, from): (Rights, FileBlock),
    part: Option<(BlockRange, Ahead)>,
) -> Result<OpReply, Stop> {
    let ino = cx.resolve(ino)?;
    let attr = cx.attr(txn, ino)?;
    let rights = rights.closed() - Rights::DATA_P;
    if rights.intersects(Rights::WHOLE) && attr.kind != FileKind::Regular {
        let directory = attr.kind == FileKind::Directory;
        return Err(if directory { Fault::IsDirectory } else { Fault::Invalid }.into());
    }
    if rights.contains(Rights::NAMES) && attr.kind != FileKind::Directory {
        return Err(Fault::NotDirectory.into());
    }
    let Some((range, ahead)) = part.filter(|_| rights.intersects(Rights::WHOLE)) else {
        return whole(cx, txn, attr, (rights, from), false);
    };
    if range.is_empty() {
        return opened(cx, txn, attr, (rights, from));
    }
    match cx.manner(ino, rights, range) {
        Manner::Whole => whole(cx, txn, attr, (rights, from), false),
        Manner::Calm => calm(cx, attr),
        Manner::Part(window) => {
            if cx.server.contention.borrow().is_tail_zero(ino, attr.size) {
                return some_parts(cx, txn, attr, (rights, range, ahead), window);
            }
            let parts = cx.server.leases.borrow().rights(cx.client, ino).contains(Rights::DATA_P);
            if parts { calm(cx, attr) } else { whole(cx, txn, attr, (rights, from), true) }
        }
    }
}

/// Gives rights on everything.
fn whole(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    attr: Attr,
    (rights, from): (Rights, FileBlock),
    tail_unknown: bool,
) -> Result<OpReply, Stop> {
    let ino = attr.ino;
    cx.need(ino, rights.conflicts());
    // Without a claim on attributes, those who write elsewhere stay and are only asked.
    let told = if rights.conflicts().contains(Rights::WRITES) { attr } else { cx.seen(attr) };
    cx.ready()?;
    cx.effects.grants.push((ino, rights & possible(attr.kind)));
    cx.effects.reads.push(Unit::Attr(ino));
    let content = rights.intersects(Rights::WHOLE);
    let layout = if content { Some(part(cx, txn, ino, from, None)?) } else { None };
    let leased = cx.leased(told);
    Ok(OpReply::Acquired { leased, layout, ranges: Vec::new(), uncontended: false, tail_unknown })
}

/// Gives a part, widened within `window` blocks, and what the client will ask for next.
fn some_parts(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    attr: Attr,
    (rights, asked, ahead): (Rights, BlockRange, Ahead),
    window: u64,
) -> Result<OpReply, Stop> {
    let ino = attr.ino;
    let exclusive = rights.contains(Rights::DATA_X);
    cx.need_part(ino, HeldRange { range: asked, exclusive });
    cx.ready()?;
    let mut ranges = vec![widened(cx, ino, asked, window)];
    ranges.extend(free_ahead(cx, ino, asked, ahead));
    let mut layout = LayoutSlice { from: ranges[0].from, ..LayoutSlice::default() };
    for &range in &ranges {
        let here = part(cx, txn, ino, range.from, Some(range))?;
        layout.to = here.to;
        layout.frozen = here.frozen;
        layout.inline_max = here.inline_max;
        if !here.content.0.is_empty() {
            layout.content = here.content;
        }
        layout.extents.extend(here.extents);
    }
    let parts: Vec<HeldRange> =
        ranges.into_iter().map(|range| HeldRange { range, exclusive }).collect();
    cx.effects.grants.push((ino, Rights::OPEN));
    cx.effects.parts = parts.iter().map(|&part| (ino, part)).collect();
    cx.effects.reads.push(Unit::Attr(ino));
    let (leased, layout) = (cx.leased(attr), Some(layout));
    Ok(OpReply::Acquired { leased, layout, ranges: parts, uncontended: false, tail_unknown: false })
}

fn widened(cx: &Cx<'_>, ino: Ino, asked: BlockRange, window: u64) -> BlockRange {
    asked.from.0.checked_div(window).map_or(asked, |at| {
        let to = asked.to.0.checked_next_multiple_of(window).unwrap_or(asked.to.0);
        let limit = BlockRange::new(at * window, to);
        cx.server.leases.borrow().room_around(cx.client, ino, asked, limit)
    })
}

/// The ranges `ahead` of `asked`, up to the first of which another client has something.
fn free_ahead(cx: &Cx<'_>, ino: Ino, asked: BlockRange, ahead: Ahead) -> Vec<BlockRange> {
    let leases = cx.server.leases.borrow();
    // One after the other, and far from the end of all numbers.
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

/// Gives nothing: the client's parts are to become the whole.
fn calm(cx: &mut Cx<'_>, attr: Attr) -> Result<OpReply, Stop> {
    let told = cx.seen(attr);
    cx.ready()?;
    cx.effects.reads.push(Unit::Attr(attr.ino));
    let leased = cx.leased(told);
    Ok(OpReply::Acquired {
        leased,
        layout: None,
        ranges: Vec::new(),
        uncontended: true,
        tail_unknown: false,
    })
}

/// A file is opened: the whole right if nobody stands in its way, else `OPEN` alone.
fn opened(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    attr: Attr,
    wanted: (Rights, FileBlock),
) -> Result<OpReply, Stop> {
    let ino = attr.ino;
    let stands = (wanted.0.conflicts() & Rights::DATA) - Rights::ATTR;
    let (others, own) = {
        let leases = cx.server.leases.borrow();
        (leases.others(cx.client, ino), leases.rights(cx.client, ino))
    };
    // Whoever has parts leaves them before the whole takes their place.
    if !others.intersects(stands) && !own.contains(Rights::DATA_P) {
        return whole(cx, txn, attr, wanted, false);
    }
    let calm = !cx.server.contention.borrow().is_contended(ino, cx.server.env.now());
    cx.need(ino, Rights::empty());
    let told = cx.seen(attr);
    cx.ready()?;
    cx.effects.grants.push((ino, Rights::OPEN));
    cx.effects.reads.push(Unit::Attr(ino));
    let leased = cx.leased(told);
    Ok(OpReply::Acquired {
        leased,
        layout: None,
        ranges: Vec::new(),
        uncontended: calm,
        tail_unknown: false,
    })
}

pub fn layout(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    ino: &InoRef,
    from: FileBlock,
) -> Result<OpReply, Stop> {
    let ino = cx.resolve(ino)?;
    let attr = cx.attr(txn, ino)?;
    if attr.kind != FileKind::Regular {
        return Err(Fault::Invalid.into());
    }
    if !cx.server.leases.borrow().rights(cx.client, ino).intersects(Rights::DATA) {
        return Err(Fault::NotHeld.into());
    }
    Ok(OpReply::Layout { slice: part(cx, txn, ino, from, None)? })
}

/// The layout from `from`, or of `within` only.
fn part(
    cx: &mut Cx<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    from: FileBlock,
    within: Option<BlockRange>,
) -> Result<LayoutSlice, Stop> {
    cx.effects.reads.push(Unit::Data(ino));
    let max = within.map_or(REPLY_EXTENTS_MAX, |range| range.len() as usize + 1);
    let mut extents = txn.layout(ino, from, max.min(REPLY_EXTENTS_MAX))?;
    let to = match (within, extents.last()) {
        (Some(range), _) => range.to.0,
        (None, Some(last)) if extents.len() >= REPLY_EXTENTS_MAX => last.end(),
        (None, _) => u64::MAX,
    };
    if within.is_some() {
        extents = extents.iter().filter_map(|extent| extent.slice(from.0, to)).collect();
    }
    let frozen = cx.server.quarantine.is_all_frozen() || txn.is_frozen(ino)?;
    let inline_max = txn.content_room(ino)? as u32;
    let content = if from.0 == 0 && to > 0 { txn.content(ino)? } else { Vec::new() };
    Ok(LayoutSlice { from, to, extents, frozen, content: Bytes(content), inline_max })
}

//! Checks of slots, and of references to and from their inodes.

use types::limits::CONTENT_MAX;
use types::{DirNo, FileKind, Ino, MetaBlock, Name, Segment};

use super::{BlockType, ProblemKind, Scrub, Stop, StoreError, Subject, Txn};
use crate::format::layout;
use crate::format::number::{SlotPlace, home_of, is_orphan_dir, reuse_of};
use crate::format::segment::{decode_item, segment_key};
use crate::format::slot::{Slot, SlotState};
use crate::format::xattr::{BLOB_MAX, decode_xattrs};
use crate::trees::{MOVED, ORPHANS, SEGMENTS};
use engine::format::blob::{BlobKind, BlobOwner};
use engine::format::features::Feature;

/// Segments of one file in the tree of segments that are counted at most; longer lists are skipped.
const COUNTED_MAX: u64 = 4096;

/// What is wrong with a slot.
type Wrong = (ProblemKind, String);

/// The content of a slot as of one moment, and its faults.
struct Look {
    slot: Slot,
    wrong: Vec<Wrong>,
    /// First blocks of its blobs, and their owners.
    blobs: Vec<(MetaBlock, BlobOwner)>,
    /// Its layout blocks that are in use.
    layout: Vec<MetaBlock>,
}

impl Scrub<'_> {
    /// Is a slot sound by itself, so that no transaction is needed? Most slots are.
    pub(super) fn is_plain(&self, place: SlotPlace, slot: &Slot) -> bool {
        if slot.check().is_err() {
            return false;
        }
        match slot.state() {
            SlotState::Empty => true,
            SlotState::Link => false,
            SlotState::Inode => {
                let kind = slot.kind();
                let plain = home_of(slot.ino()) == place
                    && u16::from(reuse_of(slot.ino())) < slot.next_reuse()
                    && Name::new(slot.name()).is_ok()
                    && slot.nlink() == 1
                    && kind != FileKind::Directory
                    && slot.blobs().is_empty()
                    && slot.layout_blocks().is_empty()
                    && (slot.xattrs().is_empty() || decode_xattrs(slot.xattrs()).is_some())
                    && own_faults(slot).is_empty()
                    && (kind != FileKind::Regular || slot.body() == 0);
                if plain {
                    self.report.borrow_mut().inodes += 1;
                    slot.segments().iter().for_each(|segment| self.segment(slot.ino(), segment));
                }
                plain
            }
        }
    }

    /// Checks the slot at `place`, with everything that it depends on, at one moment.
    pub(super) async fn inode(&self, place: SlotPlace) -> Result<(), StoreError> {
        let look = self.query(|txn| look(txn, place)).await?;
        let Some(Some(look)) = look else { return Ok(()) };
        let Look { slot, wrong, blobs, layout } = look;
        let subject = match slot.state() {
            SlotState::Empty => Subject::Chunk(place.chunk),
            _ => Subject::Inode(slot.ino()),
        };
        for (kind, detail) in wrong {
            self.found(kind, subject, detail);
        }
        if slot.state() != SlotState::Inode {
            return Ok(());
        }
        self.report.borrow_mut().inodes += 1;
        slot.segments().iter().for_each(|segment| self.segment(slot.ino(), segment));
        for blob in blobs {
            let named = |txn: &mut Txn<'_>| {
                let Some(spot) = txn.names().spot(place)? else { return Ok(false) };
                let now = txn.names().load(&spot)?;
                Ok(now.state() == SlotState::Inode && now.blobs().contains(&blob))
            };
            self.blob(blob, &named).await?;
        }
        let used = |txn: &mut Txn<'_>, block: MetaBlock| {
            let Some(spot) = txn.names().spot(place)? else { return Ok(false) };
            let now = txn.names().load(&spot)?;
            Ok(now.state() == SlotState::Inode && layout_of(&now).contains(&block))
        };
        for block in layout {
            self.read(block, 1, BlockType::Layout, &used).await?;
        }
        Ok(())
    }
}

/// Layout blocks of an inode that are in use; the others were never written.
fn layout_of(slot: &Slot) -> Vec<MetaBlock> {
    if slot.body() == 0 { Vec::new() } else { slot.layout_blocks() }
}

/// Faults that an inode's slot alone shows.
fn own_faults(slot: &Slot) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let attr = slot.attr();
    match attr.kind {
        FileKind::Regular if slot.body() == 0 => {
            let mapped: u64 = slot.segments().iter().map(|segment| segment.len).sum();
            if mapped != attr.blocks {
                let detail = format!("{} blocks counted, {mapped} mapped", attr.blocks);
                wrong.push((ProblemKind::WrongBlockCount, detail));
            }
        }
        FileKind::Symlink if slot.target_blob().is_none() => {
            let len = slot.payload().len() as u64;
            if len == 0 || len != attr.size {
                let detail = format!("{len} bytes, size {}", attr.size);
                wrong.push((ProblemKind::BadTarget, detail));
            }
        }
        _ => {}
    }
    if let Some(content) = slot.content()
        && (content.len() as u64 > attr.size || content.len() > CONTENT_MAX)
    {
        let detail = format!("{} bytes, size {}", content.len(), attr.size);
        wrong.push((ProblemKind::BadContent, detail));
    }
    wrong
}

/// The slot at `place` and its faults; `None`: the slot was removed.
fn look(txn: &mut Txn<'_>, place: SlotPlace) -> Result<Option<Look>, Stop> {
    let Some(chunk) = txn.names().read_chunk(place.chunk)? else { return Ok(None) };
    let dir = chunk.descriptor.owner;
    let run = chunk.run_of(place.block()).filter(|run| run.is_present());
    let Some(run) = run.filter(|_| place.block() < chunk.descriptor.used) else { return Ok(None) };
    let home = run.home(place.block());
    let block = txn.read_slots(home)?;
    let slot = Slot::load(block, place.index());
    let mut wrong = Vec::new();
    if let Err(what) = slot.check() {
        wrong.push((ProblemKind::BadSlot, format!("slot {}: {what}", place.slot)));
        let slot = Slot::default();
        return Ok(Some(Look { slot, wrong, blobs: Vec::new(), layout: Vec::new() }));
    }
    if slot.state() != SlotState::Empty {
        let hidden = is_orphan_dir(dir) || dir == Ino::NONE;
        let legal = if hidden { slot.name().is_empty() } else { Name::new(slot.name()).is_ok() };
        if !legal {
            wrong.push((ProblemKind::BadName, format!("{:?}", slot.name())));
        }
    }
    match slot.state() {
        SlotState::Empty => {}
        // Only the other shard knows whether the inode is there.
        SlotState::Link
            if txn.has_feature(Feature::SHARDS) && !txn.names().is_here(slot.ino())? => {}
        SlotState::Link => match txn.names().locate(slot.ino())? {
            None => wrong.push((ProblemKind::DanglingName, format!("in directory {dir}"))),
            Some(spot) => {
                let kind = txn.names().load(&spot)?.kind();
                if kind != slot.kind() {
                    wrong.push((ProblemKind::WrongKind, format!("in directory {dir}: {kind:?}")));
                }
            }
        },
        SlotState::Inode => {
            wrong.extend(own_faults(&slot));
            look_at_inode(txn, (place, home), &slot, &mut wrong)?;
        }
    }
    let blobs = if slot.state() == SlotState::Inode { slot.blobs() } else { Vec::new() };
    let layout = layout_of(&slot);
    Ok(Some(Look { slot, wrong, blobs, layout }))
}

fn look_at_inode(
    txn: &mut Txn<'_>,
    (place, home): (SlotPlace, MetaBlock),
    slot: &Slot,
    wrong: &mut Vec<Wrong>,
) -> Result<(), Stop> {
    let ino = slot.ino();
    let key = ino.0.to_be_bytes();
    let moved = MOVED.get(txn, &key)?.map(|value| SlotPlace::unpack(u64::from_le_bytes(value)));
    if home_of(ino) == place {
        if u16::from(reuse_of(ino)) >= slot.next_reuse() {
            wrong.push((ProblemKind::BadSlot, "its number was not issued".into()));
        }
        if moved.is_some() {
            wrong.push((ProblemKind::StaleMove, "it is at home".into()));
        }
    } else if moved != Some(place) {
        let detail = format!("chunk {}, slot {}", place.chunk, place.slot);
        wrong.push((ProblemKind::MisplacedInode, detail));
    } else if txn.names().locate(ino)?.is_some_and(|spot| spot.place != place) {
        wrong.push((ProblemKind::DuplicateInode, "it is at home, too".into()));
    }
    let is_orphan = ORPHANS.get(txn, &key)?.is_some();
    if is_orphan != (slot.nlink() == 0) && !is_orphan_dir(ino) {
        wrong.push((ProblemKind::WrongOrphan, format!("{} links", slot.nlink())));
    }
    let xattrs = match slot.xattr_blob() {
        Some(first) => {
            match txn.read_blob(MetaBlock(first), BLOB_MAX, slot.blob_owner(BlobKind::Xattrs)) {
                // The check of blobs reports that.
                Err(Stop::OwnerMismatch(..)) => Vec::new(),
                read => read?,
            }
        }
        None => slot.xattrs().to_vec(),
    };
    if !xattrs.is_empty() && decode_xattrs(&xattrs).is_none() {
        wrong.push((ProblemKind::BadXattrs, String::new()));
    }
    match slot.kind() {
        FileKind::Regular => {
            let near = look_at_layout_blocks(txn, home, slot, wrong)?;
            look_at_segments(txn, slot, near, wrong)
        }
        FileKind::Directory => look_at_content(txn, slot, wrong),
        _ => Ok(()),
    }
}

/// Checks that the layout blocks of a file are its own, and allocated. Returns how many segments
/// they have, the blocks that these map, and where they end.
fn look_at_layout_blocks(
    txn: &mut Txn<'_>,
    home: MetaBlock,
    slot: &Slot,
    wrong: &mut Vec<Wrong>,
) -> Result<(u64, u64, u64), Stop> {
    let (mut found, mut mapped) = (0, 0);
    let mut end = slot.segments().last().map_or(0, Segment::end);
    for block in slot.layout_blocks() {
        if !txn.meta_allocated(block)? {
            wrong.push((ProblemKind::FreeMetaBlock, format!("metadata block {block}")));
        }
        if slot.body() == 0 {
            continue;
        }
        if layout::owner(txn.read_as(block, BlockType::Layout)?) != slot.ino() {
            wrong.push((ProblemKind::BadLayoutBlock, format!("metadata block {block}")));
            continue;
        }
        let list = txn.layouts().layout_block_of(home, block, slot.ino())?;
        if list[0].file.0 < end {
            wrong.push((ProblemKind::BadLayout, "segments overlap".into()));
        }
        end = list[list.len() - 1].end();
        found += list.len() as u64;
        mapped += list.iter().map(|segment| segment.len).sum::<u64>();
    }
    Ok((found, mapped, end))
}

/// Checks that the tree of segments has as many segments as the slot counts; `near` are those in
/// layout blocks.
fn look_at_segments(
    txn: &Txn<'_>,
    slot: &Slot,
    near: (u64, u64, u64),
    wrong: &mut Vec<Wrong>,
) -> Result<(), Stop> {
    let ino = slot.ino();
    let counted = slot.body();
    if !(1..=COUNTED_MAX).contains(&counted) {
        return Ok(());
    }
    let in_slot: u64 = slot.segments().iter().map(|segment| segment.len).sum();
    let (mut found, mut mapped, mut end) = (near.0, in_slot + near.1, near.2);
    let mut overlap = false;
    SEGMENTS.for_each(txn, &segment_key(ino, 0), |key, value| {
        match decode_item(key, value) {
            Some((of, segment)) if of == ino => {
                found += 1;
                mapped += segment.len;
                overlap |= segment.file.0 < end;
                end = segment.file.0 + segment.len;
                found <= counted
            }
            // The check of the tree reports a senseless one.
            _ => false,
        }
    })?;
    if overlap || found != counted {
        let detail = format!("{counted} segments counted, {found} found");
        wrong.push((ProblemKind::BadLayout, detail));
    } else if mapped != slot.blocks() {
        let detail = format!("{} blocks counted, {mapped} mapped", slot.blocks());
        wrong.push((ProblemKind::WrongBlockCount, detail));
    }
    Ok(())
}

/// Checks that the first chunks of a directory's content and of its name map are its own.
fn look_at_content(txn: &mut Txn<'_>, slot: &Slot, wrong: &mut Vec<Wrong>) -> Result<(), Stop> {
    for (first, map) in [(slot.body(), false), (slot.map(), true)] {
        if first == 0 {
            continue;
        }
        let chunk = txn.names().read_chunk(DirNo(first))?.map(|chunk| chunk.descriptor);
        let fits = chunk.is_some_and(|chunk| {
            // A directory that is being freed has lost its first chunks.
            let begins = map || chunk.index == 0 || slot.nlink() == 0;
            chunk.owner == slot.ino() && chunk.is_map() == map && begins
        });
        if !fits {
            let kind = if map { ProblemKind::BadNameMap } else { ProblemKind::BadChunk };
            wrong.push((kind, format!("its first chunk is {first}")));
        }
    }
    Ok(())
}

//! Slots, names, places of inodes, attributes.

use types::{Attr, ClientId, Fault, FileKind, Ino, MetaBlock, Name, Timestamp};

use super::{Change, Done, Fixer};
use crate::format::layout;
use crate::format::number::{SlotPlace, home_of, is_orphan_dir, reuse_of};
use crate::format::slot::{RETIRED, Slot, SlotState};
use crate::format::xattr::{BLOB_MAX, Xattr, XattrPrefix, decode_xattr_prefix};
use crate::fsck::lost::{KnownName, Loss};
use crate::fsck::plan::{Fix, SlotAt, slot_at};
use crate::names::NewInode;
use crate::trees::{MOVED, ORPHANS};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::blob::BlobKind;
use engine::format::block::BlockType;
use engine::format::features::Feature;
use engine::repair::beginning_of_blob;
use types::limits::{BLOCK_U64, CONTENT_MAX};

/// Names of the directory for unreachable inodes; the second is used if the first is no directory.
const LOST_AND_FOUND: [&[u8]; 2] = [b"lost+found", b"lost+found.redbud"];

pub(super) fn put_slot(txn: &mut Txn<'_>, at: SlotAt, slot: &Slot) -> Result<(), Stop> {
    slot.store(txn.write_slots(at.home)?, at.place.index());
    Ok(())
}

/// The directory in whose content a slot lies; `Ino::NONE` if that is unknown or the system's
/// chunk.
pub(super) fn directory_at(txn: &mut Txn<'_>, at: SlotAt) -> Result<Ino, Stop> {
    if !txn.names().ensure_chunk(at.place.chunk)? {
        return Ok(Ino::NONE);
    }
    Ok(txn.names().chunk(at.place.chunk)?.descriptor.owner)
}

/// The loss of the name in a slot: its inode is lost, or has another name. Names in the orphan
/// directory are no loss: users do not know them.
fn losing_name(
    txn: &mut Txn<'_>,
    at: SlotAt,
    slot: &Slot,
    gone: bool,
) -> Result<Option<Loss>, Stop> {
    let dir = directory_at(txn, at)?;
    let (name, ino) = (slot.name().to_vec(), slot.ino());
    let told = !is_orphan_dir(dir) && dir != Ino::NONE && !name.is_empty();
    Ok(told.then_some(Loss::Name { dir, name, ino, gone }))
}

/// Changes a slot, which must be sound afterwards.
fn change_slot(txn: &mut Txn<'_>, at: SlotAt, change: impl FnOnce(&mut Slot)) -> Result<(), Stop> {
    let mut slot = slot_at(txn, at)?;
    slot.check().map_err(|what| Stop::Corrupt(at.home, what))?;
    change(&mut slot);
    put_slot(txn, at, &slot)
}

/// The directory for unreachable inodes; made if it does not exist.
pub(super) fn lost_and_found(txn: &mut Txn<'_>) -> Result<Ino, Stop> {
    let root = txn.root_dir();
    for name in LOST_AND_FOUND {
        let name = Name::new(name).map_err(|_| Stop::Fault(Fault::Invalid))?;
        let Some(ino) = txn.names().lookup(root, &name)? else {
            let ino = txn.names().create(root, &name, &private_directory(), None)?;
            add_links(txn, root, 1)?;
            return Ok(ino);
        };
        if txn.names().attr(ino)?.is_some_and(|attr| attr.kind == FileKind::Directory) {
            return Ok(ino);
        }
    }
    Err(Stop::Fault(Fault::Exists))
}

fn add_links(txn: &mut Txn<'_>, ino: Ino, change: u32) -> Result<(), Stop> {
    let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    txn.names().set_attr(&Attr { nlink: attr.nlink + change, ..attr })
}

/// Gives an inode without a reachable name one in lost+found.
pub(super) fn rescue(txn: &mut Txn<'_>, ino: Ino) -> Result<(), Stop> {
    let found = lost_and_found(txn)?;
    let name = free_name(txn, found, ino)?;
    let (spot, slot) = txn.names().locate_live(ino)?;
    txn.names().move_inode(&spot, found, name.as_bytes())?;
    if slot.kind() == FileKind::Directory {
        add_links(txn, found, 1)?;
        return Ok(());
    }
    let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    txn.names().set_attr(&Attr { nlink: 1, ..attr })
}

pub(super) fn free_name(txn: &mut Txn<'_>, dir: Ino, ino: Ino) -> Result<Name, Stop> {
    for n in 0..1000 {
        let text = if n == 0 { format!("#{ino}") } else { format!("#{ino}-{n}") };
        let name = Name::new(text.as_bytes()).map_err(|_| Stop::Fault(Fault::Invalid))?;
        if txn.names().lookup(dir, &name)?.is_none() {
            return Ok(name);
        }
    }
    Err(Stop::Fault(Fault::Exists))
}

/// A directory that only its owner may read.
pub(super) fn private_directory() -> NewInode<'static> {
    let time = Timestamp::default();
    NewInode {
        kind: FileKind::Directory,
        mode: 0o700,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        client: ClientId::NONE,
        symlink: None,
    }
}

impl Fixer {
    pub(super) async fn fix_slot(&mut self, fix: &Fix) -> Done {
        match fix {
            Fix::ClearSlot(at) => self.clear(*at).await,
            Fix::Duplicate(at) => self.change_with_report(|txn| duplicate(txn, *at)).await,
            Fix::Rename(at, name) => self.change_with_report(|txn| rename(txn, *at, name)).await,
            Fix::Flags(at) => self.change_with_report(|txn| flags(txn, *at)).await,
            Fix::CopyLayout(at, block) => {
                self.change_with_report(|txn| copy_layout(txn, *at, *block)).await
            }
            Fix::DropLayout(at, block) => {
                self.change_with_report(|txn| drop_layout(txn, *at, *block)).await
            }
            Fix::Content(at, cut) => self.change_with_report(|txn| content(txn, *at, *cut)).await,
            Fix::Target(at, len) => self.change_with_report(|txn| target(txn, *at, *len)).await,
            Fix::IssueNumber(at) => {
                self.change_with_report(|txn| {
                    let next = u16::from(reuse_of(slot_at(txn, *at)?.ino())) + 1;
                    change_slot(txn, *at, |slot| slot.set_next_reuse(next))?;
                    Ok(format!("slot {} of block {} issues higher numbers", at.place.slot, at.home))
                })
                .await
            }
            Fix::DropLink(at) => {
                self.change_with_report(|txn| {
                    let slot = slot_at(txn, *at)?;
                    if slot.state() == SlotState::Link {
                        change_slot(txn, *at, Slot::clear)?;
                    }
                    let lost = losing_name(txn, *at, &slot, slot.kind() != FileKind::Directory)?;
                    let name = String::from_utf8_lossy(slot.name()).into_owned();
                    let line = format!("the name {name:?} of inode {} was removed", slot.ino());
                    Ok(Change::with_losses(line, lost))
                })
                .await
            }
            Fix::LinkKind(at, kind) => {
                self.change_with_report(|txn| {
                    let slot = slot_at(txn, *at)?;
                    let (name, ino) = (slot.name().to_vec(), slot.ino());
                    change_slot(txn, *at, |slot| slot.set_link(&name, ino, *kind))?;
                    Ok(format!("a name of inode {ino} says its type"))
                })
                .await
            }
            Fix::Moved(ino, place) => self.change_with_report(|txn| moved(txn, *ino, *place)).await,
            Fix::DropXattrs(at) => self.drop_xattrs(*at).await,
            _ => self.fix_inode(fix).await,
        }
    }

    async fn fix_inode(&mut self, fix: &Fix) -> Done {
        match *fix {
            Fix::Links(ino, nlink) => {
                self.change_with_report(|txn| {
                    let (spot, mut slot) = txn.names().locate_live(ino)?;
                    let attr = slot.attr();
                    if is_orphan_dir(ino) {
                        // No other caller sees the orphan directory: its slot is changed directly.
                        slot.set_attr(&Attr { nlink, ..attr });
                        txn.names().store(&spot, &slot)?;
                    } else {
                        txn.names().set_attr(&Attr { nlink, ..attr })?;
                    }
                    // The names of subdirectories, which it counts, have reports of their own.
                    let fewer = nlink < attr.nlink && attr.kind != FileKind::Directory;
                    let (counted, left) = (attr.nlink, nlink);
                    let lost = fewer.then_some(Loss::Links { ino, counted, left });
                    Ok(Change::with_losses(format!("inode {ino} counts {nlink} links"), lost))
                })
                .await
            }
            Fix::Unreachable(ino) => {
                self.change_with_report(|txn| {
                    let (_, slot) = txn.names().locate_live(ino)?;
                    let directory = slot.kind() == FileKind::Directory;
                    let counted = if directory { 1 } else { slot.nlink() };
                    rescue(txn, ino)?;
                    let line = format!("inode {ino} is in lost+found");
                    Ok(Change::with_losses(line, [Loss::AllNames { ino, counted }]))
                })
                .await
            }
            Fix::Orphan(ino, listed) => {
                self.change_with_report(|txn| {
                    let key = ino.0.to_be_bytes();
                    if listed {
                        ORPHANS.insert(txn, &key, &[0; 8])?;
                    } else {
                        ORPHANS.remove(txn, &key)?;
                    }
                    Ok(format!("the list of orphans is right about inode {ino}"))
                })
                .await
            }
            Fix::Fragments(ino, fragments) => {
                self.change_with_report(|txn| {
                    let (spot, mut slot) = txn.names().locate_live(ino)?;
                    slot.set_fragments(fragments);
                    txn.names().store(&spot, &slot)?;
                    Ok(format!("directory {ino} counts {fragments} fragments"))
                })
                .await
            }
            Fix::DirectorySize(ino, blocks) => {
                self.change_with_report(|txn| {
                    let (spot, mut slot) = txn.names().locate_live(ino)?;
                    let missing = slot.blocks().saturating_sub(blocks);
                    slot.set_blocks(blocks);
                    slot.set_size(blocks * BLOCK_U64);
                    txn.names().store(&spot, &slot)?;
                    let names = missing * u64::from(txn.slots().per_block());
                    let content = Loss::Content { dir: ino, blocks: missing, names };
                    let lost = (missing > 0 && !is_orphan_dir(ino)).then_some(content);
                    Ok(Change::with_losses(format!("directory {ino} has {blocks} blocks"), lost))
                })
                .await
            }
            _ => Ok(None),
        }
    }

    async fn clear(&mut self, at: SlotAt) -> Done {
        self.change_with_report(|txn| {
            let mut slot = slot_at(txn, at)?;
            let (ino, name) = (slot.ino(), slot.name().to_vec());
            slot.clear();
            slot.set_next_reuse(RETIRED);
            put_slot(txn, at, &slot)?;
            let (dir, SlotPlace { chunk, slot }) = (directory_at(txn, at)?, at.place);
            let line = format!("slot {slot} of chunk {chunk} was emptied: it held {ino}");
            Ok(Change::with_losses(line, [Loss::Slot { dir, chunk, slot, ino, name }]))
        })
        .await
    }

    /// Removes the attributes except those that lie completely in blocks before the first damaged
    /// one of their blob.
    async fn drop_xattrs(&mut self, at: SlotAt) -> Done {
        let slot = self.mfs.run(Cost::READ, |txn| slot_at(txn, at)).await?.0;
        let bytes = match slot.xattr_blob() {
            Some(first) => {
                let whose = slot.blob_owner(BlobKind::Xattrs);
                beginning_of_blob(&self.mfs, MetaBlock(first), whose, BLOB_MAX).await?
            }
            None => Vec::new(),
        };
        let XattrPrefix { whole, cut } = decode_xattr_prefix(&bytes).unwrap_or_default();
        let last = whole.last().map(|(name, _)| (name.clone(), KnownName::Before));
        let cut = cut.filter(|name| !name.is_empty());
        let from = cut.map(|name| (name, KnownName::First)).or(last);
        match self.keep_xattrs(at, &whole, from).await {
            // Without room the attributes are lost.
            Err(StoreError::Fault(_)) if !whole.is_empty() => self.keep_xattrs(at, &[], None).await,
            done => done,
        }
    }

    /// Sets the attributes to `whole`; those from one on, in the order of names, are lost.
    async fn keep_xattrs(
        &self,
        at: SlotAt,
        whole: &[Xattr],
        from: Option<(Vec<u8>, KnownName)>,
    ) -> Done {
        self.change_with_report(|txn| {
            let mut slot = slot_at(txn, at)?;
            slot.check().map_err(|what| Stop::Corrupt(at.home, what))?;
            // The blob's blocks have no owner then; the last stage frees them.
            slot.set_xattr_blob(None);
            slot.set_xattrs(b"");
            txn.names().put_xattrs(&mut slot, None, whole, at.home)?;
            put_slot(txn, at, &slot)?;
            let (ino, kept) = (slot.ino(), whole.len());
            let line = format!("extended attributes of inode {ino} were removed, {kept} stay");
            Ok(Change::with_losses(line, [Loss::Xattrs { ino, from: from.clone() }]))
        })
        .await
    }
}

/// One slot keeps the inode's number: the other becomes a name of it, or is emptied.
fn duplicate(txn: &mut Txn<'_>, at: SlotAt) -> Result<Change, Stop> {
    let ino = slot_at(txn, at)?.ino();
    let line = format!("inode {ino} is in one place");
    let key = ino.0.to_be_bytes();
    let other = if home_of(ino) == at.place {
        // This one stays; the other is where the `moved` tree leads, and the next check finds it
        // again.
        let Some(value) = MOVED.remove(txn, &key)? else { return Ok(line.into()) };
        let place = SlotPlace::unpack(u64::from_le_bytes(value));
        match txn.names().spot(place)? {
            Some(spot) => SlotAt { home: spot.block, place },
            None => return Ok(line.into()),
        }
    } else {
        at
    };
    let slot = slot_at(txn, other)?;
    if !slot.holds(ino) {
        return Ok(line.into());
    }
    let (name, kind) = (slot.name().to_vec(), slot.kind());
    let lost = match kind {
        FileKind::Directory => losing_name(txn, other, &slot, false)?,
        _ => None,
    };
    change_slot(txn, other, |slot| match kind {
        FileKind::Directory => slot.clear(),
        _ if name.is_empty() => slot.clear(),
        kind => slot.set_link(&name, ino, kind),
    })?;
    Ok(Change::with_losses(line, lost))
}

fn rename(txn: &mut Txn<'_>, at: SlotAt, name: &[u8]) -> Result<String, Stop> {
    let mut slot = slot_at(txn, at)?;
    slot.check().map_err(|what| Stop::Corrupt(at.home, what))?;
    let (ino, old) = (slot.ino(), String::from_utf8_lossy(slot.name()).into_owned());
    if slot.state() == SlotState::Link {
        let kind = slot.kind();
        slot.set_link(name, ino, kind);
    } else {
        txn.names().fit_name(&mut slot, name.len(), at.home)?;
        slot.set_name(name);
    }
    put_slot(txn, at, &slot)?;
    Ok(match name.is_empty() {
        true => {
            format!("inode {ino} of the orphan directory has no name any more, which was {old:?}")
        }
        false => {
            format!("the name {old:?} of inode {ino} is now {:?}", String::from_utf8_lossy(name))
        }
    })
}

fn copy_layout(txn: &mut Txn<'_>, at: SlotAt, block: MetaBlock) -> Result<String, Stop> {
    let mut slot = slot_at(txn, at)?;
    let mut blocks = slot.layout_blocks();
    let ino = slot.ino();
    if let Some(mine) = blocks.iter_mut().find(|mine| **mine == block) {
        let list = txn.layouts().layout_block_of(at.home, block, ino)?;
        *mine = txn.layouts().alloc_layout_block(at.home)?;
        layout::put(txn.init(*mine, BlockType::Layout)?, ino, &[], &list);
        slot.set_layout_blocks(&blocks);
        put_slot(txn, at, &slot)?;
    }
    Ok(format!("file {ino} has a layout block of its own"))
}

/// The file loses the block's segments. The block has no owner then; the last stage frees it.
fn drop_layout(txn: &mut Txn<'_>, at: SlotAt, block: MetaBlock) -> Result<String, Stop> {
    let mut slot = slot_at(txn, at)?;
    let mut blocks = slot.layout_blocks();
    blocks.retain(|mine| *mine != block);
    slot.set_layout_blocks(&blocks);
    put_slot(txn, at, &slot)?;
    Ok(format!("file {} lost its layout block {block}", slot.ino()))
}

fn flags(txn: &mut Txn<'_>, at: SlotAt) -> Result<Change, Stop> {
    let known = txn.has_feature(Feature::INLINE_DATA);
    let mut slot = slot_at(txn, at)?;
    let before = slot.clone();
    let unknown = slot.clear_unknown_flags();
    let layout = slot.repair_layout_blocks();
    let object = slot.repair_object();
    let content = slot.repair_content(known);
    if unknown || layout || object.is_some() || content.is_some() {
        put_slot(txn, at, &slot)?;
    }
    let what = object.or(content).unwrap_or(if layout {
        "impossible layout blocks"
    } else {
        "flags that mean nothing"
    });
    let tail = before.content().is_some_and(|bytes| !bytes.is_empty()) && slot.payload().is_empty();
    let blob = before.content_blob().is_some_and(|block| block != 0);
    let file = before.state() == SlotState::Inode && before.kind() == FileKind::Regular;
    let lost = file && (tail || blob) && !slot.has_content();
    let lost = lost.then(|| content_from(&before, 0)).flatten();
    let none = object.is_some() && file && !slot.has_object() && slot.payload().is_empty();
    let lost = lost.or(none.then_some(Loss::Object(slot.ino())));
    Ok(Change::with_losses(format!("inode {} had {what}: cleared", slot.ino()), lost))
}

/// The loss of a slot's inline data from byte `from` on.
fn content_from(slot: &Slot, from: u64) -> Option<Loss> {
    let (ino, end) = (slot.ino(), if from == 0 { CONTENT_MAX as u64 } else { BLOCK_U64 });
    let to = slot.attr().size.min(end);
    (from < to).then_some(Loss::Inline { ino, from, to })
}

/// Blocks of a removed blob have no owner then; the last stage frees them.
fn content(txn: &mut Txn<'_>, at: SlotAt, cut: bool) -> Result<Change, Stop> {
    let mut slot = slot_at(txn, at)?;
    let (ino, size) = (slot.ino(), slot.attr().size);
    if cut {
        txn.layouts().cut_content(&mut slot)?;
        put_slot(txn, at, &slot)?;
        let most = size.min(CONTENT_MAX as u64);
        let line = format!("the content of file {ino} has {most} bytes at most");
        return Ok(Change::with_losses(line, content_from(&slot, CONTENT_MAX as u64)));
    }
    change_slot(txn, at, Slot::clear_content)?;
    let line = format!("the content beside the inode of file {ino} was removed");
    Ok(Change::with_losses(line, content_from(&slot, 0)))
}

fn target(txn: &mut Txn<'_>, at: SlotAt, len: Option<u64>) -> Result<Change, Stop> {
    let slot = slot_at(txn, at)?;
    let ino = slot.ino();
    match len {
        Some(len) => {
            change_slot(txn, at, |slot| slot.set_size(len))?;
            Ok(format!("symlink {ino} has {len} bytes").into())
        }
        None => {
            change_slot(txn, at, Slot::clear)?;
            let (dir, name, len) = (directory_at(txn, at)?, slot.name().to_vec(), slot.attr().size);
            let line = format!("symlink {ino}, whose target is lost, was removed");
            Ok(Change::with_losses(line, [Loss::Target { dir, name, ino, len }]))
        }
    }
}

fn moved(txn: &mut Txn<'_>, ino: Ino, place: Option<SlotPlace>) -> Result<String, Stop> {
    let key = ino.0.to_be_bytes();
    match place {
        Some(place) => drop(MOVED.insert(txn, &key, &place.pack().to_le_bytes())?),
        None => drop(MOVED.remove(txn, &key)?),
    }
    Ok(format!("the tree of moved inodes is right about inode {ino}"))
}

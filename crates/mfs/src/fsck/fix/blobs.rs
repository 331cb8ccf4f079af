//! Blobs: copies, and missing ones that were found.

use types::MetaBlock;

use super::slots::put_slot;
use super::{Done, Fixer};
use crate::format::slot::{Slot, SlotState};
use crate::format::xattr::BLOB_MAX;
use crate::fsck::plan::{Fix, SlotAt, slot_at};
use crate::trees::CLIENTS;
use crate::txn::Txn;
use engine::error::Stop;
use engine::format::blob::{BlobKind, BlobOwner};

impl Fixer {
    pub(super) async fn fix_blob(&mut self, fix: &Fix) -> Done {
        match fix {
            Fix::CopyBlob(at, what) => self.change_with_report(|txn| copy(txn, *at, *what)).await,
            Fix::TakeBlob(at, whose, first) => {
                self.change_with_report(|txn| take(txn, *at, *whose, *first)).await
            }
            _ => Ok(None),
        }
    }
}

/// First block of an inode's blob of this kind.
fn first_of(slot: &Slot, what: BlobKind) -> Option<MetaBlock> {
    let whose = slot.blob_owner(what);
    slot.blobs().into_iter().find(|(_, of)| *of == whose).map(|(first, _)| first)
}

fn set_first(slot: &mut Slot, what: BlobKind, first: MetaBlock) {
    match what {
        BlobKind::Xattrs => slot.set_xattr_blob(Some(first.0)),
        BlobKind::Target => slot.set_target_blob(Some(first.0)),
        BlobKind::Content => slot.set_content_blob(first.0),
        BlobKind::Client => {}
    }
}

fn copy(txn: &mut Txn<'_>, at: SlotAt, what: BlobKind) -> Result<String, Stop> {
    let mut slot = slot_at(txn, at)?;
    let whose = slot.blob_owner(what);
    if let Some(first) = first_of(&slot, what) {
        let bytes = txn.read_blob(first, BLOB_MAX, whose)?;
        let copy = txn.write_blob(None, &bytes, whose, at.home)?;
        set_first(&mut slot, what, copy);
        put_slot(txn, at, &slot)?;
    }
    Ok(format!("the {whose} lies in blocks of its own"))
}

/// Attaches an unreferenced blob to the owner that it records.
fn take(
    txn: &mut Txn<'_>,
    at: Option<SlotAt>,
    whose: BlobOwner,
    first: MetaBlock,
) -> Result<String, Stop> {
    txn.read_blob(first, BLOB_MAX, whose)?;
    let line = format!("the {whose} was found in metadata block {first}");
    let Some(at) = at else {
        let key = whose.number().to_be_bytes();
        if CLIENTS.get(txn, &key)?.is_some() {
            CLIENTS.insert(txn, &key, &first.0.to_le_bytes())?;
        }
        return Ok(line);
    };
    let mut slot = slot_at(txn, at)?;
    slot.check().map_err(|what| Stop::Corrupt(at.home, what))?;
    if slot.state() == SlotState::Inode && first_of(&slot, whose.kind()).is_some() {
        set_first(&mut slot, whose.kind(), first);
        put_slot(txn, at, &slot)?;
    }
    Ok(line)
}

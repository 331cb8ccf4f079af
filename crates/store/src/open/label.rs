//! What the label of a metadata device says about opening it.
//!
//! Invariants:
//! - a device that the label says is something else is refused;
//! - a damaged label alone costs nothing: all that it says the superblock says too;
//! - a label that is nothing but zeros is none, unless both superblocks are whole and whoever
//!   repairs knows whose they are;
//! - no message about a device that carries a whole superblock, or a label of its own, suggests to
//!   format it.

use types::label::{LABEL_MAGIC, Label, LabelError, LabelKind};
use types::{MetaBlock, Uuid};

use super::{read_copies, refused};
use crate::device::Device;
use crate::error::StoreError;
use crate::recovery::{self, Choice};
use crate::superblock::Superblock;

/// How whole the label is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    /// It says what it should.
    Whole,
    /// It is damaged, but was this device's: the superblock decides.
    Damaged,
}

/// Refuses a device whose label says that it is something else, or that has none.
pub(crate) async fn check(device: &Device) -> Result<Condition, StoreError> {
    if device.blocks() < 4 {
        return Err(refused(device, "too small to be a Redbud metadata device"));
    }
    let bytes = device.read(MetaBlock(0), 1).await?;
    match Label::decode(&bytes) {
        Ok(label) if label.kind == LabelKind::Data => {
            let text = format!(
                "is a data device of file system `{}` (PAG {}), not its metadata device; \
                 name the metadata device instead",
                label.fs_name, label.pag
            );
            Err(refused(device, &text))
        }
        Ok(_) => Ok(Condition::Whole),
        Err(LabelError::Checksum | LabelError::Field(_)) => Ok(Condition::Damaged),
        Err(LabelError::Version(version)) => {
            let text = format!(
                "its label has version {version}, which this release does not know; \
                 use a newer release of redbud"
            );
            Err(refused(device, &text))
        }
        Err(LabelError::Foreign | LabelError::Short) => without_magic(device, &bytes).await,
    }
}

/// The superblock of a device whose label is nothing but zeros, where both copies are whole and of
/// one file system.
pub(crate) async fn unlabelled(device: &Device) -> Result<Option<Superblock>, StoreError> {
    if device.blocks() < 4 {
        return Ok(None);
    }
    let bytes = device.read(MetaBlock(0), 1).await?;
    if bytes.iter().any(|&byte| byte != 0) {
        return Ok(None);
    }
    let mut copies = read_copies(device).await;
    match (recovery::choose(&copies[0], &copies[1]), &copies[..]) {
        (Choice::Use(index), [Ok(_), Ok(_)]) => Ok(copies.swap_remove(index).ok()),
        _ => Ok(None),
    }
}

/// Tells a label that lost its magic from a device that never had one, or has another's now.
async fn without_magic(device: &Device, bytes: &[u8]) -> Result<Condition, StoreError> {
    let mut copies = read_copies(device).await;
    let found = match recovery::choose(&copies[0], &copies[1]) {
        Choice::Use(index) => copies.swap_remove(index).ok(),
        _ => None,
    };
    let Some(superblock) = found else {
        let text = "not a Redbud metadata device, or its making was interrupted; \
                    make one with `redbud mkfs`";
        return Err(refused(device, text));
    };
    if is_label_but_for_magic(bytes, superblock.uuid) {
        return Ok(Condition::Damaged);
    }
    let text = format!(
        "its label (block 0) is missing or overwritten, but it carries a superblock of file system \
         `{}` ({}): do not format it if it was ever in use; restore block 0 from a backup, or if it is nothing but \
         zeros, let `redbud fsck --repair` write it anew. (If its making was interrupted, `redbud mkfs --force` makes it \
         again.)",
        superblock.name, superblock.uuid
    );
    Err(refused(device, &text))
}

fn is_label_but_for_magic(bytes: &[u8], uuid: Uuid) -> bool {
    let mut mended = bytes.to_vec();
    mended[..LABEL_MAGIC.len()].copy_from_slice(&LABEL_MAGIC);
    Label::decode(&mended)
        .is_ok_and(|label| label.kind == LabelKind::Metadata && label.fs_uuid == uuid)
}

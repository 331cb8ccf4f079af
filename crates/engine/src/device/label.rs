//! Checks the label of a metadata device when the store is opened.
//!
//! Invariants:
//! - an opening refuses a device whose label says that it is something else;
//! - a damaged label alone loses nothing: the superblock repeats all its content;
//! - a label of zeros counts as missing, unless both superblocks are whole and the administrator
//!   who runs a repair knows their file system;
//! - no message about a device with a whole superblock, or with a label of Redbud, suggests
//!   formatting it.

use types::label::{LABEL_MAGIC, Label, LabelError, LabelKind};
use types::{MetaBlock, Uuid};

use crate::device::Device;
use crate::device::copies::{CopyChoice, choose, read_copies, refused};
use crate::error::StoreError;
use crate::format::superblock::Superblock;

/// The condition of a label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LabelCondition {
    /// It is whole and of a metadata device.
    Whole,
    /// It is damaged, but belongs to this device: the superblock decides.
    Damaged,
}

/// Refuses a device whose label says that it is something else, or that has none.
///
/// # Errors
/// `Refused`, `Io`.
pub async fn check(device: &Device) -> Result<LabelCondition, StoreError> {
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
        Ok(_) => Ok(LabelCondition::Whole),
        Err(LabelError::Checksum | LabelError::Field(_)) => Ok(LabelCondition::Damaged),
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

/// The superblock of a device whose label is all zeros, if both copies are whole and of the same
/// file system.
pub async fn unlabelled(device: &Device) -> Result<Option<Superblock>, StoreError> {
    if device.blocks() < 4 {
        return Ok(None);
    }
    let bytes = device.read(MetaBlock(0), 1).await?;
    if bytes.iter().any(|&byte| byte != 0) {
        return Ok(None);
    }
    let mut copies = read_copies(device).await;
    match (choose(&copies[0], &copies[1]), &copies[..]) {
        (CopyChoice::Use(index), [Ok(_), Ok(_)]) => Ok(copies.swap_remove(index).ok()),
        _ => Ok(None),
    }
}

/// Distinguishes a label with a damaged magic from a device that has no label of Redbud.
async fn without_magic(device: &Device, bytes: &[u8]) -> Result<LabelCondition, StoreError> {
    let mut copies = read_copies(device).await;
    let found = match choose(&copies[0], &copies[1]) {
        CopyChoice::Use(index) => copies.swap_remove(index).ok(),
        _ => None,
    };
    let Some(superblock) = found else {
        let text = "not a Redbud metadata device, or its mkfs was interrupted; \
                    make one with `redbud mkfs`";
        return Err(refused(device, text));
    };
    if is_label_but_for_magic(bytes, superblock.uuid) {
        return Ok(LabelCondition::Damaged);
    }
    let text = format!(
        "its label (block 0) is missing or overwritten, but it carries a superblock of file system \
         `{}` ({}): do not format it if it was ever in use; restore block 0 from a backup, or if it is all \
         zeros, let `redbud fsck --repair` rewrite it. (If its mkfs was interrupted, repeat it with `redbud mkfs \
         --force`.)",
        superblock.name, superblock.uuid
    );
    Err(refused(device, &text))
}

fn is_label_but_for_magic(bytes: &[u8], uuid: Uuid) -> bool {
    let mut repaired = bytes.to_vec();
    repaired[..LABEL_MAGIC.len()].copy_from_slice(&LABEL_MAGIC);
    Label::decode(&repaired)
        .is_ok_and(|label| label.kind == LabelKind::Metadata && label.fs_uuid == uuid)
}

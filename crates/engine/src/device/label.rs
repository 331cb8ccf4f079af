//! Checks the label of a metadata device when the store is opened.
//!
//! Invariants:
//! - an opening refuses a device whose label says that it is something else;
//! - a damaged label alone loses nothing: the superblock repeats all its content;
//! - a label of zeros in both places counts as missing, unless both superblocks are whole and the
//!   administrator who runs a repair knows their file system;
//! - no message about a device with a whole superblock, or with a label of Redbud, suggests
//!   formatting it.

use env::{Disk, Env};
use label::{Contents, Damage, Label, SliceKind, Why};
use types::limits::BLOCK_U64;

use crate::device::Device;
use crate::device::copies::{CopyChoice, choose, read_copies, refused, resized};
use crate::error::StoreError;
use crate::format::superblock::Superblock;

/// The condition of a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LabelCondition {
    /// Both copies are whole and of a metadata device.
    Whole,
    /// One copy is whole and of a metadata device.
    OneCopy(Damage),
    /// Both copies are damaged, but belong to this device: the superblock decides.
    Damaged(String),
}

impl LabelCondition {
    /// What is wrong with it, if anything.
    pub fn damage(&self) -> Option<String> {
        match self {
            LabelCondition::Whole => None,
            LabelCondition::OneCopy(damage) => Some(damage.to_string()),
            LabelCondition::Damaged(text) => Some(text.clone()),
        }
    }
}

/// Finds the metadata on a device, and refuses a device whose label says that it is something
/// else, or that has none.
///
/// # Errors
/// `Refused`, `Io`.
pub async fn check(env: &Env, disk: &Disk) -> Result<(Device, LabelCondition), StoreError> {
    let whole = Device::whole(env, disk);
    if whole.blocks() < 4 {
        return Err(refused(&whole, "too small to be a Redbud metadata device"));
    }
    match label::read(disk).await {
        Ok(found) => {
            let device = metadata_in(&whole, &found.label)?;
            let condition = found.damage.map_or(LabelCondition::Whole, LabelCondition::OneCopy);
            Ok((device, condition))
        }
        Err(none) => match &none.why {
            Why::Damaged(_) => Ok((whole, LabelCondition::Damaged(none.to_string()))),
            Why::Foreign => Err(without_label(&whole).await),
            Why::Unreleased | Why::Version(_) | Why::Contradiction => {
                Err(refused(&whole, &none.to_string()))
            }
        },
    }
}

/// The slice of a device that holds the metadata.
fn metadata_in(whole: &Device, label: &Label) -> Result<Device, StoreError> {
    let contents = label.contents();
    if contents == Contents::Data {
        let text = format!(
            "is a data device of file system `{}` (PAG {}), not its metadata device; \
             name the metadata device instead",
            label.fs_name,
            label.pags()
        );
        return Err(refused(whole, &text));
    }
    let slice = label.slices.iter().find(|it| matches!(it.kind, SliceKind::Metadata { .. }));
    let Some(slice) = slice.filter(|_| contents != Contents::Mixture) else {
        let text = format!(
            "its label says that it holds {contents} of file system `{}`: the metadata need a device \
             without data; name the metadata device instead",
            label.fs_name
        );
        return Err(refused(whole, &text));
    };
    if label.blocks != whole.disk.size() / BLOCK_U64 {
        return Err(resized(whole, label.blocks));
    }
    Ok(Device::of(whole, slice.start, slice.blocks))
}

/// The superblock of a device whose label is all zeros in both places, if both copies of the
/// superblock are whole and of the same file system.
pub async fn unlabelled(device: &Device) -> Result<Option<Superblock>, StoreError> {
    if device.blocks() < 4 {
        return Ok(None);
    }
    match label::read(&device.disk).await {
        Err(none) if none.why == Why::Foreign && none.zeros => {}
        _ => return Ok(None),
    }
    let mut copies = read_copies(device).await;
    match (choose(&copies[0], &copies[1]), &copies[..]) {
        (CopyChoice::Use(index), [Ok(_), Ok(_)]) => Ok(copies.swap_remove(index).ok()),
        _ => Ok(None),
    }
}

/// Distinguishes a device that has lost its label from one that has none.
async fn without_label(device: &Device) -> StoreError {
    let mut copies = read_copies(device).await;
    let found = match choose(&copies[0], &copies[1]) {
        CopyChoice::Use(index) => copies.swap_remove(index).ok(),
        _ => None,
    };
    let Some(superblock) = found else {
        let text = "not a Redbud metadata device, or its mkfs was interrupted; \
                    make one with `redbud mkfs`";
        return refused(device, text);
    };
    let text = format!(
        "its label (block 0) and the copy in its last block are missing or overwritten, but it carries a \
         superblock of file system `{}` ({}): do not format it if it was ever in use; restore these blocks \
         from a backup, or if they are all zeros, let `redbud fsck --repair` rewrite them. (If its mkfs was \
         interrupted, repeat it with `redbud mkfs --force`.)",
        superblock.name, superblock.uuid
    );
    refused(device, &text)
}

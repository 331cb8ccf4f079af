//! Checks the label of a metadata device when the store is opened.
//!
//! Invariants:
//! - an opening refuses a device whose label says that it is something else;
//! - a damaged label alone loses nothing: the superblock repeats all its content;
//! - a label of zeros in both places counts as missing, unless both superblocks are whole and the
//!   administrator who runs a repair knows their file system;
//! - no message about a device with a whole superblock, or with a label of Redbud, suggests
//!   formatting it.

use env::Env;
use label::{Contents, Damage, Label, SliceKind, Why};
use types::Uuid;
use types::limits::BLOCK_U64;

use crate::device::Device;
use crate::device::copies::{CopyChoice, choose, read_copies, refused, resized};
use crate::device::log::{Devices, Disks};
use crate::device::pairing::{Mismatch, PLACE, Reason};
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
pub async fn check(
    env: &Env,
    disks: impl Into<Disks>,
) -> Result<(Devices, LabelCondition), StoreError> {
    let Devices { home, log } = Devices::whole(env, disks);
    let (home, condition) = check_home(home).await?;
    Ok((Devices { home, log }, condition))
}

async fn check_home(whole: Device) -> Result<(Device, LabelCondition), StoreError> {
    if whole.blocks() < 4 {
        return Err(refused(&whole, "too small to be a Redbud metadata device"));
    }
    match label::read(&whole.disk).await {
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

/// The slice of the device `whole` that has the journal of these metadata, by its label. Without a
/// usable label it is the whole device: the journal's header decides.
///
/// # Errors
/// `Refused`.
pub(crate) async fn journal_in(
    whole: &Device,
    superblock: &Superblock,
) -> Result<Device, StoreError> {
    let label = match label::read(&whole.disk).await {
        Ok(found) => found.label,
        Err(none) => match &none.why {
            Why::Damaged(_) | Why::Foreign => return Ok(whole.clone()),
            _ => return Err(refused(whole, &none.to_string())),
        },
    };
    let journals = label.slices.iter().filter_map(|slice| match slice.kind {
        SliceKind::Journal { metadata, .. } => Some((metadata, slice)),
        _ => None,
    });
    let journals: Vec<_> = journals.collect();
    let own: Vec<_> = journals.iter().filter(|(of, _)| *of == superblock.metadata).collect();
    let named = superblock.journal.map(|journal| journal.uuid);
    if let Some((_, slice)) = own.iter().find(|(_, slice)| Some(slice.uuid) == named) {
        return Ok(Device::of(whole, slice.start, slice.blocks));
    }
    match (&own[..], &journals[..]) {
        ([(_, one)], _) | ([], [(_, one), ..]) => Ok(Device::of(whole, one.start, one.blocks)),
        ([(_, first), (_, second), ..], _) => {
            let reason = Reason::Contradiction(first.uuid, second.uuid);
            let doubled = Mismatch { metadata: superblock.metadata, journal: named, reason };
            Err(refused(whole, &doubled.to_string()))
        }
        ([], []) => {
            let text = format!(
                "its label says that it holds {} of file system `{}`, and no journal: set `journal` \
                 in {PLACE}, to the device with the journal of metadata {}",
                label.contents(),
                label.fs_name,
                superblock.metadata
            );
            Err(refused(whole, &text))
        }
    }
}

/// How a whole label of the metadata differs from their superblock: in the shard, or in the journal
/// after a move of the log that was interrupted before its end.
pub async fn difference(device: &Device, superblock: &Superblock) -> Option<String> {
    let found = label::read(&device.disk).await.ok()?;
    let slice = found.label.slices.iter().find(|slice| slice.uuid == superblock.metadata)?;
    let SliceKind::Metadata { shard, journal } = slice.kind else { return None };
    if shard != superblock.shard.0 {
        return Some(format!("it names shard {shard}, the superblock {}", superblock.shard.0));
    }
    let named = superblock.journal.map(|journal| journal.uuid);
    let text =
        |uuid: Option<Uuid>| uuid.map_or("no journal".into(), |uuid| format!("journal {uuid}"));
    (journal != named)
        .then(|| format!("it names {}, the superblock names {}", text(journal), text(named)))
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

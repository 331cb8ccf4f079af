//! Journals of several owners on one device, each in a slice of its own.
//!
//! Invariants:
//! - a slice comes and goes by one update of the label, under the lock of the label. So a cut
//!   leaves the slices as before or as after, and two updates at once lose none;
//! - the label names a slice only when its header is stable and its log has zeros. A cut before
//!   that leaves room that nobody has;
//! - a journal that was made without a size has its device to itself: nothing fits behind it;
//! - the slices of others are never written. Who makes a slice or gives one back touches that
//!   slice and the two copies of the label alone.

use ::label::{Contents, Found, Label, Slice, SliceKind};
use env::{Disk, Env};
use types::limits::BLOCK_U64;
use types::{Duration, Uuid};

use crate::device::Device;
use crate::device::copies::refused;
use crate::device::log::{read_headers, write_headers};
use crate::device::pairing::newest;
use crate::error::StoreError;
use crate::format::journal::{JournalHeader, LOG_FIRST};
use crate::format::superblock::LOG_BYTES_MIN;

/// The byte that is locked while the slices in a label change.
const LABEL_LOCK: u64 = 0;
/// How long to wait for it: others hold it while they fill a new log with zeros.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// The byte that the user of a slice locks on the shared device.
pub fn lock_of(slice: &Slice) -> u64 {
    slice.start + 1
}

/// The slice of `label` with the journal of `owner`, the metadata or the target.
pub fn slice_of(label: &Label, owner: Uuid) -> Option<&Slice> {
    label.slices.iter().find(|slice| is_of(slice, owner))
}

fn is_of(slice: &Slice, owner: Uuid) -> bool {
    matches!(slice.kind, SliceKind::Journal { metadata, .. } if metadata == owner)
}

/// The label of a device that holds journals and nothing else.
pub(crate) async fn journals_on(disk: &Disk) -> Option<Found> {
    let found = ::label::read(disk).await.ok()?;
    (found.label.contents() == Contents::Journal).then_some(found)
}

/// Locks the label of a shared device.
///
/// # Errors
/// `Refused` if another process keeps it locked for a minute; `Io`.
pub async fn lock_label(env: &Env, disk: &Disk) -> Result<(), StoreError> {
    let until = env.now() + PATIENCE;
    loop {
        match disk.lock_byte(LABEL_LOCK).await {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                if env.now() >= until {
                    let text = "another process is making a journal on it; try again when it ends";
                    return Err(refused(&Device::whole(env, disk), text));
                }
                env.sleep(PAUSE).await;
            }
            Err(error) => return Err(StoreError::io("locking the label of", disk.path(), &error)),
        }
    }
}

/// Gives the lock of [`lock_label`] back.
///
/// # Errors
/// `Io`.
pub async fn unlock_label(disk: &Disk) -> Result<(), StoreError> {
    let unlocked = disk.unlock_byte(LABEL_LOCK).await;
    unlocked.map_err(|error| StoreError::io("unlocking the label of", disk.path(), &error))
}

/// What is wrong with the label of a device of journals, if anything. Waits until an update of a
/// shared label ends, which would look like damage.
pub(crate) async fn label_damage(env: &Env, disk: &Disk) -> Option<String> {
    let first = ::label::read(disk).await;
    let is_shared = first.as_ref().is_ok_and(|found| found.label.is_shared());
    let found = match first {
        // Who has the disk open for reading only cannot lock: it reports what it sees.
        Ok(Found { damage: Some(_), .. }) if is_shared && lock_label(env, disk).await.is_ok() => {
            let again = ::label::read(disk).await;
            // The lock ends with the opening at the latest.
            drop(unlock_label(disk).await);
            again
        }
        first => first,
    };
    match found {
        Ok(found) => found.damage.map(|damage| damage.to_string()),
        Err(none) => Some(none.to_string()),
    }
}

/// Writes a copy of a shared label anew that is damaged, or that an interrupted update left behind.
/// Leaves it alone while another process changes the label.
///
/// # Errors
/// `Io`.
pub async fn mend_label(disk: &Disk) -> Result<(), StoreError> {
    let is_sound = |found: &Found| found.damage.is_none() || !found.label.is_shared();
    if ::label::read(disk).await.is_ok_and(|found| is_sound(&found)) {
        return Ok(());
    }
    match disk.lock_byte(LABEL_LOCK).await {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => return Ok(()),
        Err(error) => return Err(StoreError::io("locking the label of", disk.path(), &error)),
    }
    let written = match ::label::read(disk).await {
        Ok(found) if !is_sound(&found) => ::label::update(disk, &found, |_| {}).await.map(drop),
        _ => Ok(()),
    };
    let failed = |error| StoreError::io("writing the label of", disk.path(), &error);
    unlock_label(disk).await.and(written.map_err(failed))
}

/// A place for a journal of `bytes` bytes of the file system `fs` on a device: behind or between
/// the slices that its label names, or at the front if it has no label. A slice of `replaced`
/// counts as free. The caller has locked the label.
///
/// # Errors
/// `Refused` if the device holds anything but journals of this file system, or lacks room. With
/// `force` a device with anything but journals counts as empty.
pub async fn place(
    whole: &Device,
    fs: Uuid,
    bytes: u64,
    replaced: Option<Uuid>,
    force: bool,
) -> Result<Device, StoreError> {
    let blocks = bytes / BLOCK_U64;
    let least = LOG_BYTES_MIN + LOG_FIRST.0 * BLOCK_U64;
    if blocks * BLOCK_U64 < least {
        let text = format!("{bytes} bytes are too few for a journal; it needs at least {least}");
        return Err(refused(whole, &text));
    }
    let label = match ::label::read(&whole.disk).await {
        Ok(found) => found.label,
        // What else is there is the caller's to refuse.
        Err(_) => return in_empty(whole, blocks),
    };
    if label.contents() != Contents::Journal {
        if force {
            return in_empty(whole, blocks);
        }
        let text = format!(
            "its label says that it holds {} of file system `{}`, and journals share a device with \
             journals alone: name another device",
            label.contents(),
            label.fs_name
        );
        return Err(refused(whole, &text));
    }
    if label.slices.iter().all(|slice| replaced.is_some_and(|owner| is_of(slice, owner))) {
        return in_empty(whole, blocks);
    }
    let start = room_in(&label, fs, blocks, replaced).map_err(|text| refused(whole, &text))?;
    Ok(Device::of(whole, start, blocks))
}

/// The front of a device without slices. A journal as large as the device is alone on it.
fn in_empty(whole: &Device, blocks: u64) -> Result<Device, StoreError> {
    if blocks > whole.blocks() + 1 {
        let text = format!(
            "it has {} bytes, too few for a journal of {}; make the journal smaller",
            whole.disk.size(),
            blocks * BLOCK_U64
        );
        return Err(refused(whole, &text));
    }
    // The last block is the label's.
    Ok(Device::of(whole, 0, blocks.min(whole.blocks())))
}

/// The first gap of at least `blocks` blocks among the journals of a label.
fn room_in(label: &Label, fs: Uuid, blocks: u64, replaced: Option<Uuid>) -> Result<u64, String> {
    if label.fs_uuid != fs {
        return Err(format!(
            "it has journals of the file system `{}` ({}), not of {fs}: name a device of this file \
             system, or an empty one",
            label.fs_name, label.fs_uuid
        ));
    }
    let is_kept = |slice: &&Slice| !replaced.is_some_and(|owner| is_of(slice, owner));
    let kept: Vec<&Slice> = label.slices.iter().filter(is_kept).collect();
    if kept.len() >= ::label::SLICES_MAX {
        let most = ::label::SLICES_MAX;
        return Err(format!("it has {most} journals, as many as a device can have: name another"));
    }
    let fits = gaps(label.blocks, &kept).into_iter().find(|&(_, gap)| gap >= blocks);
    if let Some((start, _)) = fits {
        return Ok(start);
    }
    let largest = gaps(label.blocks, &kept).into_iter().map(|(_, gap)| gap).max().unwrap_or(0);
    Err(format!(
        "it has {} journals, and at most {} bytes free together: that is too few for one of {}; make \
         the journal smaller, or name another device",
        kept.len(),
        largest * BLOCK_U64,
        blocks * BLOCK_U64
    ))
}

/// The gaps between the slices `kept` of a device of `blocks` blocks: the first block of each, and
/// how many it has. The label's second copy ends the last one.
fn gaps(blocks: u64, kept: &[&Slice]) -> Vec<(u64, u64)> {
    let ends = kept.iter().map(|slice| (slice.start, slice.end()));
    let mut from = 0;
    ends.chain([(blocks.saturating_sub(1), blocks)])
        .map(|(start, end)| {
            let gap = (from, start.saturating_sub(from));
            from = end;
            gap
        })
        .collect()
}

/// Blocks of the largest gap between the slices of a label.
pub fn largest_gap(label: &Label) -> u64 {
    let all: Vec<&Slice> = label.slices.iter().collect();
    gaps(label.blocks, &all).into_iter().map(|(_, gap)| gap).max().unwrap_or(0)
}

/// Why nobody takes the whole device, even with force: it has a slice with the journal of another
/// than `own`, or room for one. `remedy` says what else to do. `None`: it may be taken.
pub async fn refuses_whole(disk: &Disk, own: Option<Uuid>, remedy: &str) -> Option<String> {
    let label = ::label::read(disk).await.ok()?.label;
    let is_own = |slice: &Slice| own.is_some_and(|own| is_of(slice, own));
    (label.is_shared() && !label.slices.iter().all(is_own)).then(|| {
        format!(
            "{}: journals of the file system `{}` share it, {} in slices of their own: {remedy}; to \
             use it for something else, overwrite its first and its last block with zeros",
            disk.path(),
            label.fs_name,
            label.slices.len()
        )
    })
}

/// Adds a slice to the label `found`. The caller has locked the label.
///
/// # Errors
/// `Io`; `Refused` if the slice does not fit among the others.
pub(crate) async fn add(device: &Device, found: &Found, slice: Slice) -> Result<(), StoreError> {
    let add = |label: &mut Label| {
        let at = label.slices.partition_point(|other| other.start < slice.start);
        label.slices.insert(at, slice);
    };
    let written = ::label::update(&device.disk, found, add).await;
    written.map(drop).map_err(|error| device.error("writing the label of", &error))
}

/// Takes the slices that `which` chooses out of the label; a label without slices is erased. The
/// room is free then. Returns how many there were. The caller has locked the label.
///
/// # Errors
/// `Io`.
pub(crate) async fn remove(
    disk: &Disk,
    which: impl Fn(&Slice) -> bool,
) -> Result<usize, StoreError> {
    let Some(found) = journals_on(disk).await else { return Ok(0) };
    let all = found.label.slices.len();
    let left = found.label.slices.iter().filter(|slice| !which(slice)).count();
    let failed = |error| StoreError::io("writing the label of", disk.path(), &error);
    match left {
        0 => ::label::erase(disk).await.map_err(failed)?,
        _ if left == all => {}
        _ => {
            let remove = |label: &mut Label| label.slices.retain(|slice| !which(slice));
            ::label::update(disk, &found, remove).await.map_err(failed)?;
        }
    }
    Ok(all - left)
}

/// Gives back the slice with the journal of `owner`, whose content is lost: its header says that
/// it is retired. Returns whether there was one. The caller has locked the label.
///
/// # Errors
/// `Refused` if a server uses it; `Io`.
pub async fn release(whole: &Device, owner: Uuid) -> Result<bool, StoreError> {
    let disk = &whole.disk;
    let Some(found) = journals_on(disk).await else { return Ok(false) };
    let Some(slice) = slice_of(&found.label, owner) else { return Ok(false) };
    let is_free = disk.byte_is_free(lock_of(slice)).await;
    if !is_free.map_err(|error| whole.error("testing the lock of", &error))? {
        let text = format!("a server uses the journal of {owner}: stop it first");
        return Err(refused(whole, &text));
    }
    // A label without slices is erased, and then the header alone says whose log this is.
    let journal = Device::of(whole, slice.start, slice.blocks);
    if let Ok(header) = newest(&read_headers(&journal).await)
        && header.metadata == owner
    {
        write_headers(&journal, &JournalHeader { retired: true, ..header }).await?;
    }
    Ok(remove(disk, |slice| is_of(slice, owner)).await? > 0)
}

#[cfg(test)]
mod tests;

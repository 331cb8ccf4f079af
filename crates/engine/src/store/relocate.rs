//! Moves the log of a store that nothing else has open: into a journal on another device, into
//! another journal, or back to its place on the metadata device.
//!
//! Only the superblock says where the log is. So the move is one switch of the superblock, between
//! two places that are both whole and both empty:
//!
//! | step | what is written | newest superblock names | a crash in it leaves |
//! |---|---|---|---|
//! | 1 | the store is opened, recovered and closed: both tails are at the end of the log | the old place | the old log, as after any crash of a server |
//! | 2 | target: label and old header are erased, the log filled with zeros, then come the new header with a UUID of its own and the next generation, and the label; a flush after each | the old place | the old log, empty and whole; a part of a journal that no superblock names |
//! | 3 | the first copy of the superblock names the target; flush | old, then target | the copy is torn: the other one names the old log. It is whole: the target, which is empty and whole |
//! | 4 | the second copy names the target; flush | the target | the same: the first copy is newer |
//! | 5 | the label of the metadata names the target, one copy after the other | the target | the target: a label that names another journal than the superblock does not count |
//! | 6 | the old journal's header says *retired*, its device loses the label; a flush after each | the target | the target; the old journal is refused by its UUID |
//!
//! Invariants:
//! - until step 3 is stable nothing in the old log changes, and until step 4 is stable nothing in
//!   either log: whichever copy of the superblock an opening finds, its log is empty and ends at
//!   the tail of that copy. An opening for writing brings the other copy to the same place before
//!   its first record;
//! - no log has a group from another history: a new place is filled with zeros;
//! - the same move may be repeated after a crash. It finds the log in the target already and ends
//!   the steps that were left.

use env::{Disk, Env};
use types::Uuid;

use crate::device::Device;
use crate::device::copies::{find_superblock, refused, write_copies};
use crate::device::label;
use crate::device::log::{Disks, LogDevice, make_journal, read_headers, retire};
use crate::device::pairing::newest;
use crate::device::shared;
use crate::error::StoreError;
use crate::format::journal::JournalHeader;
use crate::format::superblock::Superblock;
use crate::store::Store;
use crate::store::mkfs::{check_journal_unused, plan_journal, repair_label};
use crate::store::open::{CACHE_BYTES_MIN, OpenOptions};

/// A log that has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// UUID of the metadata slice.
    pub metadata: Uuid,
    /// The journal that has the log now; `None`: the log is internal.
    pub journal: Option<Uuid>,
    /// Capacity of the log in bytes.
    pub bytes: u64,
    /// It was there already: an earlier move was interrupted or is repeated.
    pub already: bool,
}

/// Moves the log of the store on `disks` to `to`; `None`: to its place on the metadata device. With
/// `force` it overwrites a target that carries something of Redbud.
///
/// # Errors
/// `Refused` if the store cannot be opened with this log, or the target cannot be used; `Io`,
/// `Corrupt`, `DamagedLog`, `Poisoned`. The log is then where it was, or in the target.
pub async fn move_log(
    env: &Env,
    disks: impl Into<Disks>,
    to: Option<&Disk>,
    force: bool,
) -> Result<Moved, StoreError> {
    let Disks { home, log } = disks.into();
    let (target, _) = label::check(env, Disks { home: home.clone(), log: to.cloned() }).await?;
    let source = log.as_ref().map(|disk| Device::whole(env, disk));
    let (superblock, _) = find_superblock(&target.home).await?;
    let already = is_there(&superblock, target.log.as_ref()).await;
    let mut superblock = match already {
        true => settle(env, Disks { home, log: to.cloned() }).await?,
        false => {
            check_target(&target.home, &superblock, target.log.as_ref(), force).await?;
            settle(env, Disks { home, log }).await?
        }
    };
    if !already {
        match &target.log {
            Some(device) => {
                let header = plan_journal(device, &mut superblock)?;
                make_journal(device, header, &superblock).await?;
            }
            None => {
                LogDevice::internal(&target.home, &superblock).clear().await?;
                superblock.set_journal(None);
                superblock.log_generation += 1;
            }
        }
        write_copies(&target.home, &mut superblock).await?;
    }
    repair_label(&target.home, &superblock).await?;
    if let Some(device) = &source {
        retire_old(device, &superblock).await?;
    }
    Ok(Moved {
        metadata: superblock.metadata,
        journal: superblock.journal.map(|journal| journal.uuid),
        bytes: superblock.log_bytes(),
        already,
    })
}

/// Is the log of this superblock in the target?
async fn is_there(superblock: &Superblock, target: Option<&Device>) -> bool {
    match (superblock.journal, target) {
        (None, None) => true,
        (Some(journal), Some(device)) => header_on(device, superblock)
            .await
            .is_some_and(|(_, found)| found.journal == journal.uuid),
        _ => false,
    }
}

async fn check_target(
    home: &Device,
    superblock: &Superblock,
    target: Option<&Device>,
    force: bool,
) -> Result<(), StoreError> {
    let Some(device) = target else { return Ok(()) };
    if device.disk.path() == home.disk.path() {
        return Err(refused(device, "is the metadata device; name another device for the journal"));
    }
    let remedy = "name another device";
    let own = Some(superblock.metadata);
    if let Some(text) = shared::refuses_whole(&device.disk, own, remedy).await {
        return Err(StoreError::Refused(text.into()));
    }
    plan_journal(device, &mut superblock.clone())?;
    if force { Ok(()) } else { check_journal_unused(device, Some(superblock.metadata)).await }
}

/// Opens the store, recovers it, and closes it: its log is empty from the view of both copies of
/// the superblock.
async fn settle(env: &Env, disks: Disks) -> Result<Superblock, StoreError> {
    let options = OpenOptions { cache_bytes: CACHE_BYTES_MIN, ..OpenOptions::default() };
    let store = Store::open(env, &disks, options).await?;
    store.close().await?;
    Ok(store.superblock())
}

/// Marks the journal on `device`, which had the log before, as retired. Leaves alone what is not a
/// journal of these metadata, or has their log.
async fn retire_old(whole: &Device, superblock: &Superblock) -> Result<(), StoreError> {
    let Some((device, header)) = header_on(whole, superblock).await else { return Ok(()) };
    let named = superblock.journal.is_some_and(|journal| journal.uuid == header.journal);
    if header.metadata != superblock.metadata || named {
        return Ok(());
    }
    // A retired one may still have its slice: a crash came between the two.
    retire(&device, &header).await
}

/// The journal on a device, if there is one: that of this superblock if the label names several.
async fn header_on(whole: &Device, superblock: &Superblock) -> Option<(Device, JournalHeader)> {
    let slice = label::journal_in(whole, superblock).await.unwrap_or_else(|_| whole.clone());
    let header = newest(&read_headers(&slice).await).ok()?;
    Some((slice, header))
}

/// What [`look`] found: the superblock, and the header on the device of the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogState {
    /// The newest superblock.
    pub superblock: Superblock,
    /// The newest header on the device that was given, if it has one.
    pub header: Option<JournalHeader>,
    /// Why the two do not belong together; `None`: they do.
    pub mismatch: Option<String>,
}

/// Reads where the log is, without changing anything.
///
/// # Errors
/// `Refused` without a usable superblock; `Io`.
pub async fn look(env: &Env, disks: impl Into<Disks>) -> Result<LogState, StoreError> {
    let (devices, _) = label::check(env, disks).await?;
    let (superblock, _) = find_superblock(&devices.home).await?;
    let header = match &devices.log {
        Some(device) => header_on(device, &superblock).await.map(|(_, header)| header),
        None => None,
    };
    let mismatch = match LogDevice::find(&devices.home, devices.log.as_ref(), &superblock).await {
        Ok(_) => None,
        Err(StoreError::Refused(text)) => Some(text.to_string()),
        Err(error) => return Err(error),
    };
    Ok(LogState { superblock, header, mismatch })
}

/// Is there a journal of these metadata on the disk `log`, retired or not? A move overwrites it.
pub async fn is_of(env: &Env, home: &Disk, log: &Disk) -> bool {
    let Ok((devices, _)) = label::check(env, home).await else { return false };
    let Ok((superblock, _)) = find_superblock(&devices.home).await else { return false };
    let found = header_on(&Device::whole(env, log), &superblock).await;
    found.is_some_and(|(_, header)| header.metadata == superblock.metadata)
}

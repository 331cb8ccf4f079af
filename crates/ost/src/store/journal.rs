//! Where a target has its journal: inside, on a device of its own, or in a slice of a device that
//! it shares with the journals of other targets.
//!
//! Invariants:
//! - no format writes to the slice of another target, even with force;
//! - a target that is formatted anew over an old one, with a journal on the same device, gives the
//!   old one's slice back. On another device it stays until it is released.

use engine::device::Device;
use engine::device::shared;
use engine::error::StoreError;
use env::{Disk, Env};
use label::SliceKind;
use types::Uuid;

use super::{FormatOptions, ObjectStore};

/// The external journal of a new target.
#[derive(Clone, Copy)]
pub struct NewJournal<'a> {
    /// Its device.
    pub disk: &'a Disk,
    /// Bytes of its slice, the headers included; `None`: it has the device to itself. So it has
    /// if the slice would be as large as the device.
    pub bytes: Option<u64>,
}

impl<'a> From<&'a Disk> for NewJournal<'a> {
    fn from(disk: &'a Disk) -> NewJournal<'a> {
        NewJournal { disk, bytes: None }
    }
}

/// Where the external journal of a target lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalPlace {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its device.
    pub device: String,
    /// First block of its slice.
    pub start: u64,
    /// Blocks of its slice.
    pub blocks: u64,
    /// Journals of others on the device.
    pub others: usize,
}

impl NewJournal<'_> {
    /// Chooses the part of the device that the journal gets. If that is a slice, the label of the
    /// device is locked, until [`NewJournal::end`].
    pub(super) async fn begin(
        &self,
        env: &Env,
        home: &Disk,
        options: &FormatOptions<'_>,
    ) -> Result<Device, StoreError> {
        let whole = Device::whole(env, self.disk);
        match self.bytes {
            None => match refuses_whole(self.disk).await {
                Some(text) => Err(StoreError::Refused(text.into())),
                None => Ok(whole),
            },
            Some(bytes) => {
                shared::lock_label(env, self.disk).await?;
                let chosen = choose(&whole, home, options, bytes).await;
                if chosen.is_err() {
                    self.end().await?;
                }
                chosen
            }
        }
    }

    /// Unlocks the label.
    pub(super) async fn end(&self) -> Result<(), StoreError> {
        match self.bytes {
            None => Ok(()),
            Some(_) => shared::unlock_label(self.disk).await,
        }
    }
}

/// Chooses a slice, and gives back that of the target that `home` was.
async fn choose(
    whole: &Device,
    home: &Disk,
    options: &FormatOptions<'_>,
    bytes: u64,
) -> Result<Device, StoreError> {
    let old = match options.force {
        true => target_on(home).await,
        false => None,
    };
    let chosen = shared::place(whole, options.fs, bytes, old, options.force).await?;
    if let Some(old) = old
        && let Ok(found) = label::read(&whole.disk).await
        && shared::slice_of(&found.label, old).is_some()
    {
        // Without its journal the old target must not be opened any more.
        let erased = label::erase(home).await;
        erased.map_err(|error| StoreError::io("erasing the label of", home.path(), &error))?;
        shared::release(whole, old).await?;
    }
    Ok(chosen)
}

/// Why a target must not have the whole device for its journal, even with force. `None`: it may.
pub async fn refuses_whole(disk: &Disk) -> Option<String> {
    let remedy = "give a size, --journal-size, to take a slice beside them";
    shared::refuses_whole(disk, None, remedy).await
}

/// Gives back the slice with the journal of `target` on a shared device. What only the journal has
/// is lost, and the target cannot be opened any more. Returns whether there was one.
///
/// # Errors
/// `Refused` if a server uses it; `Io`.
pub async fn release_journal(env: &Env, disk: &Disk, target: Uuid) -> Result<bool, StoreError> {
    shared::lock_label(env, disk).await?;
    let released = shared::release(&Device::whole(env, disk), target).await;
    shared::unlock_label(disk).await?;
    released
}

/// The UUID of the target on a device, if there is one.
pub async fn target_on(disk: &Disk) -> Option<Uuid> {
    let found = label::read(disk).await.ok()?;
    let is_target = |slice: &&label::Slice| matches!(slice.kind, SliceKind::Target { .. });
    found.label.slices.iter().find(is_target).map(|slice| slice.uuid)
}

impl ObjectStore {
    /// Where its journal is; `None`: inside.
    pub async fn journal(&self) -> Option<JournalPlace> {
        let log = self.engine().log_device()?;
        let uuid = log.header()?.journal;
        let device = log.device();
        let found = label::read(&device.disk).await.ok();
        let others = found.map_or(0, |found| {
            found.label.slices.iter().filter(|slice| slice.uuid != uuid).count()
        });
        let (start, blocks) = (device.start(), device.blocks());
        Some(JournalPlace { uuid, device: device.disk.path().to_owned(), start, blocks, others })
    }
}

//! Opens the metadata file system.

use env::{Env, LocalFuture};
use types::{Duration, Epoch, Uuid};

use crate::handle::Mfs;
use crate::volatile::layouts::{LayoutAhead, LayoutLimits};
use crate::volatile::maps::MapLimits;
use crate::volatile::placement::DirPlacement;
use engine::device::label::LabelCondition;
use engine::device::log::{Devices, Disks};
use engine::error::StoreError;
use engine::format::features::Feature;
use engine::store::Store;

/// How to open a metadata file system.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Size of the buffer cache; the store uses at least
    /// [`engine::store::open::CACHE_BYTES_MIN`].
    pub cache_bytes: usize,
    /// Write nothing, not even the redone log.
    pub read_only: bool,
    /// Age at which the store writes a group that no caller waits for.
    pub commit_interval: Duration,
    /// Blocks that the checkpoint copies and writes home in one batch.
    pub home_batch: usize,
    /// Open in spite of damage that `fsck` repairs. The store allocates nothing where the bitmap is
    /// damaged.
    pub repair: bool,
    /// Open a file system with an unfinished load; only that load itself sets this.
    pub loading: bool,
    /// Sizes from which on directories have name maps; tests use small ones.
    pub maps: MapLimits,
    /// Placement of new directories; benchmarks compare policies.
    pub placement: DirPlacement,
    /// Does the checkpoint also write clean blocks where that saves a request of a rotating disk? A
    /// benchmark of the layouts of other file systems switches this off, as they do not have it.
    pub bridge: bool,
    /// The epoch of this opening is above this one, and above that on the device.
    pub epoch_above: Epoch,
    /// Limits for layout blocks; tests use small ones.
    pub layouts: LayoutLimits,
}

/// Why a file system with an unfinished load is not opened.
const UNFINISHED: &[(Feature, &str)] = &[(
    Feature::UNFINISHED_LOAD,
    "a `redbud load` into it did not finish, so its tree is incomplete; format it again with \
     `redbud mkfs --force` and load again",
)];

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let engine = engine::store::open::OpenOptions::default();
        OpenOptions {
            cache_bytes: engine.cache_bytes,
            read_only: engine.read_only,
            commit_interval: engine.commit_interval,
            home_batch: engine.home_batch,
            repair: engine.repair,
            loading: false,
            maps: MapLimits::USUAL,
            placement: DirPlacement::Together,
            bridge: engine.bridge,
            epoch_above: engine.epoch_above,
            layouts: LayoutLimits::USUAL,
        }
    }
}

impl OpenOptions {
    fn engine(&self) -> engine::store::open::OpenOptions {
        engine::store::open::OpenOptions {
            cache_bytes: self.cache_bytes,
            read_only: self.read_only,
            commit_interval: self.commit_interval,
            home_batch: self.home_batch,
            repair: self.repair,
            refused: if self.loading { &[] } else { UNFINISHED },
            bridge: self.bridge,
            epoch_above: self.epoch_above,
        }
    }
}

impl Mfs {
    /// Opens the file system on `disks`, recovering it if it was not closed.
    ///
    /// # Errors
    /// `Refused` if the device is not a whole Redbud metadata device, or the log not its own;
    /// `Io`; `Corrupt`; `DamagedLog`.
    pub async fn open(
        env: &Env,
        disks: impl Into<Disks>,
        options: OpenOptions,
    ) -> Result<Mfs, StoreError> {
        Mfs::open_disks(env, disks.into(), options).await
    }

    fn open_disks(
        env: &Env,
        disks: Disks,
        options: OpenOptions,
    ) -> LocalFuture<'_, Result<Mfs, StoreError>> {
        Box::pin(async move {
            let store = Store::open(env, disks, options.engine()).await?;
            Ok(Mfs::with_options(store, options))
        })
    }

    /// The UUID of the file system on `disks`, and the epoch of its last opening for writing.
    /// Writes nothing.
    ///
    /// # Errors
    /// As [`Mfs::open`].
    pub async fn stored_epoch(
        env: &Env,
        disks: impl Into<Disks>,
    ) -> Result<(Uuid, Epoch), StoreError> {
        Store::stored_epoch(env, disks).await
    }

    /// Opens the file system on a device whose label the caller has checked.
    pub(crate) async fn open_unlabelled(
        devices: Devices,
        options: OpenOptions,
        label: LabelCondition,
    ) -> Result<Mfs, StoreError> {
        let store = Store::open_unlabelled(devices, options.engine(), label).await?;
        Ok(Mfs::with_options(store, options))
    }

    fn with_options(store: Store, options: OpenOptions) -> Mfs {
        let mfs = Mfs::over(store);
        let mut volatile = mfs.volatile_state_mut();
        volatile.limits = options.maps;
        volatile.layouts = options.layouts;
        if options.loading {
            // A load fills the directories that it creates at once.
            volatile.layouts.ahead = LayoutAhead::Never;
        }
        volatile.placement.policy = options.placement;
        drop(volatile);
        mfs
    }
}

//! Opens and closes a store.
//!
//! Invariants:
//! - an opening writes nothing before it has redone the log in memory. It serves nothing before
//!   all redone blocks are home, the tail is at the log's end and the epoch is
//!   raised in both copies of the superblock;
//! - a store opened read-only writes nothing at all: redone blocks stay in the cache.

mod roots;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use env::sync::Notify;
use env::{Disk, Env, LocalFuture};
use types::limits::BLOCK;
use types::{Bug, Duration, Epoch, Lsn, MetaBlock, Uuid, planted};

pub use roots::{LOST_WRITE, TOO_NEW};

use crate::cache::Cache;
use crate::cache::sweep::Sweep;
use crate::cost::Cost;
use crate::device::Device;
use crate::device::copies::{find_superblock, read_copies, refused, write_copies};
use crate::device::label::{self, LabelCondition};
use crate::device::log::{Devices, Disks, LogDevice};
use crate::error::StoreError;
use crate::format::block::Block;
use crate::format::features::Feature;
use crate::format::superblock::Superblock;
use crate::log::Log;
use crate::log::reader::LogEnd;
use crate::log::recovery::{self, DamagedBlock, Remedy};
use crate::log::salvage::{changed, salvage};
use crate::state::BATCH;
use crate::state::State;
use crate::store::{Background, Inner, Store};
use crate::store::{checkpoint, commit};

/// Smallest cache, in bytes: it has room for four of the largest transactions.
pub const CACHE_BYTES_MIN: usize = 4 * Cost::STEP.dirty as usize * BLOCK;
/// Blocks that recovery writes home in one batch.
const HOME_BATCH: usize = 4096;

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Size of the buffer cache; the store uses at least [`CACHE_BYTES_MIN`].
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
    /// Features that forbid the opening, and why.
    pub refused: &'static [(Feature, &'static str)],
    /// Does the checkpoint also write clean blocks where that saves a request of a rotating disk? A
    /// benchmark of the layouts of other file systems switches this off, as they do not have it.
    pub bridge: bool,
    /// The epoch of this opening is above this one, and above that on the device.
    pub epoch_above: Epoch,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let commit_interval = Duration::from_secs(1);
        let home_batch = BATCH;
        OpenOptions {
            cache_bytes: 256 << 20,
            read_only: false,
            commit_interval,
            home_batch,
            repair: false,
            refused: &[],
            bridge: true,
            epoch_above: Epoch(0),
        }
    }
}

impl Store {
    /// Opens the store on `disks`, recovering it if it was not closed.
    ///
    /// # Errors
    /// `Refused` if the device is not a whole Redbud metadata device, or the log is not its own;
    /// `Io`; `Corrupt`; `DamagedLog`.
    pub async fn open(
        env: &Env,
        disks: impl Into<Disks>,
        options: OpenOptions,
    ) -> Result<Store, StoreError> {
        let (devices, condition) = label::check(env, disks).await?;
        Store::open_unlabelled(devices, options, condition).await
    }

    /// The UUID and the epoch of the last opening for writing, as they are on `disks`. Writes
    /// nothing.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub async fn stored_epoch(
        env: &Env,
        disks: impl Into<Disks>,
    ) -> Result<(Uuid, Epoch), StoreError> {
        let (devices, _) = label::check(env, disks).await?;
        let (superblock, _) = find_superblock(&devices.home).await?;
        Ok((superblock.uuid, superblock.epoch))
    }

    /// Opens the store on a device whose label the caller has checked, or has not yet written.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_unlabelled(
        devices: Devices,
        options: OpenOptions,
        label: LabelCondition,
    ) -> LocalFuture<'static, Result<Store, StoreError>> {
        Box::pin(async move {
            let Devices { home: device, log } = devices;
            let env = device.env.clone();
            let (mut superblock, newest) = find_superblock(&device).await?;
            check_features(&device, &superblock, &options)?;
            let window = LogDevice::find(&device, log.as_ref(), &superblock).await?;
            let mut cache = Cache::new(options.cache_bytes.max(CACHE_BYTES_MIN) / BLOCK);
            let redone = recovery::redo(&device, &window, &superblock, &mut cache, options.repair);
            let mut redone = redone.await?;
            let roots = roots::read_roots(&device, &mut superblock, &mut cache, &redone).await;
            redone.damage.extend(roots);
            let end = redone.end;
            let log = if options.read_only {
                Log::new(superblock.epoch, end.lsn, end.previous, superblock.log_bytes())
            } else {
                recovery::rewrite_newest(&device, &window, &superblock, newest, &redone).await?;
                superblock.epoch = superblock.epoch.max(options.epoch_above);
                checkpoint_redone(&device, &window, &mut superblock, newest, &mut cache, end)
                    .await?
            };
            let mut state = State::new(superblock, log, cache);
            state.read_only = options.read_only;
            state.damage = redone.damage;
            state.home_batch = options.home_batch.max(1);
            state.bridge = options.bridge && device.disk.is_rotational();
            let background = Background {
                device,
                log: window,
                label,
                flusher: Notify::new(),
                checkpointer: Notify::new(),
                progress: Notify::new(),
            };
            let store = Store { inner: Rc::new(Inner::new(state, Some(background))) };
            store.count_space(options.repair).await?;
            if !options.read_only {
                env.spawn(commit::run(Rc::downgrade(&store.inner), options.commit_interval));
                env.spawn(checkpoint::run(env.clone(), Rc::downgrade(&store.inner)));
            }
            if !options.read_only && !options.repair {
                store.load_client_reservation().await?;
            }
            Ok(store)
        })
    }

    /// What was wrong with the label when the store was opened, if anything. Its other copy or the
    /// superblock has its content.
    pub fn label_damage(&self) -> Option<String> {
        self.inner.background.as_ref().and_then(|opened| opened.label.damage())
    }

    /// Counts the free blocks in the bitmap. With `repair` a damaged bitmap block counts as full.
    async fn count_space(&self, repair: bool) -> Result<(), StoreError> {
        let (first, count) = {
            let space = &self.inner.state.borrow().space;
            (space.first.0, space.bitmap_blocks())
        };
        for index in 0..count {
            let ahead = (count - index).min(64) as u32;
            // Fetch several together and ignore errors: `learn_bitmap` checks each.
            let all = self.run(Cost::READ, |txn| match txn.read(MetaBlock(first + index)) {
                Ok(_) => Ok(()),
                Err(_) => txn.require_cached(MetaBlock(first + index), ahead),
            });
            drop(all.await);
            match self.learn_bitmap(index as usize).await {
                Err(StoreError::Corrupt { .. }) if repair => {
                    let full = Box::new([0xff; BLOCK]);
                    self.inner.state.borrow_mut().space.learn(index as usize, &full);
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Counts the free blocks of one bitmap block.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Poisoned`.
    pub async fn learn_bitmap(&self, index: usize) -> Result<(), StoreError> {
        let first = self.inner.state.borrow().space.first.0;
        let mut bitmap = Box::new([0; BLOCK]);
        self.run(Cost::READ, |txn| {
            let block = MetaBlock(first + index as u64);
            bitmap.copy_from_slice(txn.read_as(block, crate::format::block::BlockType::Bitmap)?);
            Ok(())
        })
        .await?;
        self.inner.state.borrow_mut().space.learn(index, &bitmap);
        Ok(())
    }

    /// Blocks that the opening found damaged at home, and replaced by another copy.
    pub fn damage(&self) -> Vec<(MetaBlock, &'static str)> {
        let damage = self.damaged();
        let repaired = damage.iter().filter(|damaged| damaged.remedy != Remedy::None);
        repaired.map(|damaged| (damaged.block, damaged.what)).collect()
    }

    /// All blocks that the opening found damaged at home.
    pub fn damaged(&self) -> Vec<DamagedBlock> {
        self.inner.state.borrow().damage.clone()
    }

    /// Removes the repaired blocks from the list, as the caller has reported them.
    pub fn forget_repaired(&self) {
        self.inner.state.borrow_mut().damage.retain(|damaged| damaged.remedy == Remedy::None);
    }

    /// The device; `None` for a store in memory.
    pub fn device(&self) -> Option<Device> {
        self.inner.background.as_ref().map(|background| background.device.clone())
    }

    /// The window that the log is in; `None` for a store in memory.
    pub fn log_device(&self) -> Option<LogDevice> {
        self.inner.background.as_ref().map(|background| background.log.clone())
    }

    /// The newest versions of these blocks that the log still has.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub async fn salvage(
        &self,
        wanted: &BTreeSet<MetaBlock>,
    ) -> Result<BTreeMap<MetaBlock, Box<Block>>, StoreError> {
        let Some(log) = self.log_device() else { return Ok(BTreeMap::new()) };
        self.sync().await?;
        let end = self.inner.state.borrow().log.durable;
        salvage(&log, &self.superblock(), end, wanted).await
    }

    /// The blocks of which the log still has a change.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub async fn changed(&self) -> Result<BTreeSet<MetaBlock>, StoreError> {
        let Some(log) = self.log_device() else { return Ok(BTreeSet::new()) };
        self.sync().await?;
        let end = self.inner.state.borrow().log.durable;
        changed(&log, &self.superblock(), end).await
    }

    /// Writes home what is dirty now, while the store goes on. A close soon after has little left
    /// to write.
    ///
    /// # Errors
    /// `Poisoned` if a write failed.
    pub fn settle(&self) -> LocalFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let Some(background) = self.inner.background.as_ref() else { return Ok(()) };
            self.sync().await?;
            let end = {
                let mut state = self.inner.state.borrow_mut();
                state.checkpoint_to = state.checkpoint_to.max(state.log.durable);
                state.log.durable
            };
            loop {
                let progress = {
                    let state = self.inner.state.borrow();
                    state.usable()?;
                    if state.read_only || state.log.tails.iter().all(|&tail| tail >= end) {
                        return Ok(());
                    }
                    background.checkpointer.notify_all();
                    background.progress.notified()
                };
                progress.await;
            }
        })
    }

    /// Makes everything durable, writes it home, and closes the store: later calls
    /// fail with `Poisoned`. The next opening needs no recovery.
    ///
    /// # Errors
    /// `Poisoned` if a write failed.
    pub fn close(&self) -> LocalFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let read_only = self.inner.state.borrow().read_only;
            if let Some(background) = self.inner.background.as_ref().filter(|_| !read_only) {
                self.inner.state.borrow_mut().draining = true;
                loop {
                    self.sync().await?;
                    let progress = {
                        self.inner.state.borrow().usable()?;
                        if self.inner.is_drained() {
                            break;
                        }
                        background.checkpointer.notify_all();
                        background.progress.notified()
                    };
                    progress.await;
                }
            }
            self.inner.poison("it was closed");
            Ok(())
        })
    }
}

/// Writes redone blocks home and raises the epoch; returns the new, empty log.
async fn checkpoint_redone(
    device: &Device,
    window: &LogDevice,
    superblock: &mut Superblock,
    newest: usize,
    cache: &mut Cache,
    end: LogEnd,
) -> Result<Log, StoreError> {
    // The log may be in the device's volatile cache: make it stable before writing blocks home.
    window.flush().await?;
    if window.header().is_some() {
        device.flush().await?;
    }
    while let Some(mut sweep) = Sweep::begin(cache, end.lsn) {
        let mut last = false;
        while !last {
            last = write_batch_home(device, cache, &mut sweep).await?;
        }
    }
    device.flush().await?;
    if window.header().is_some() {
        raise_generation(device, window, superblock, newest, end.lsn).await?;
    }
    let epoch = Epoch(superblock.epoch.0 + 1);
    superblock.begin_epoch(epoch, end.lsn);
    superblock.tail = end.lsn;
    // Write the newest copy last: it stays whole until the other copy is stable.
    for index in [1 - newest, newest] {
        superblock.generation += 1;
        device.write_super(superblock, index).await?;
        device.flush().await?;
    }
    let epoch = if planted(Bug::EpochKept) { Epoch(1) } else { epoch };
    Ok(Log::new(epoch, end.lsn, end.previous, superblock.log_bytes()))
}

/// Writes the header of the journal with the next generation, which the superblock takes over. The
/// other copy of the superblock must know this journal and the generation before: otherwise it
/// would no longer suffice for an opening.
async fn raise_generation(
    device: &Device,
    window: &LogDevice,
    superblock: &mut Superblock,
    newest: usize,
    end: Lsn,
) -> Result<(), StoreError> {
    let other = read_copies(device).await.swap_remove(1 - newest).ok();
    let known = (superblock.journal, superblock.log_generation);
    if other.is_none_or(|other| (other.journal, other.log_generation) != known) {
        superblock.generation += 1;
        device.write_super(superblock, 1 - newest).await?;
        device.flush().await?;
    }
    superblock.log_generation += 1;
    window.write_header(superblock.log_generation, end).await
}

/// Writes one batch of redone blocks home; returns whether the sweep has ended.
async fn write_batch_home(
    device: &Device,
    cache: &mut Cache,
    sweep: &mut Sweep,
) -> Result<bool, StoreError> {
    let (batch, last) = sweep.next(cache, HOME_BATCH);
    let copies =
        batch.iter().map(|&block| (block, Box::new(*cache.begin_home_write(block)))).collect();
    device.write_home(copies).await?;
    for block in batch {
        cache.end_home_write(block);
    }
    Ok(last)
}

/// Adds a feature to the closed store on `disk`, or removes it.
///
/// # Errors
/// `Refused` if it is no store of this release; `Io`.
pub async fn set_feature(
    env: &Env,
    disk: &Disk,
    feature: Feature,
    on: bool,
) -> Result<(), StoreError> {
    let (Devices { home: device, .. }, _) = label::check(env, disk).await?;
    let (mut superblock, _) = find_superblock(&device).await?;
    superblock.features = match on {
        true => superblock.features.with(feature),
        false => superblock.features.without(feature),
    };
    write_copies(&device, &mut superblock).await
}

/// Refuses an opening that the features of the file system forbid.
fn check_features(
    device: &Device,
    superblock: &Superblock,
    options: &OpenOptions,
) -> Result<(), StoreError> {
    let refusal = options.refused.iter().find(|(feature, _)| superblock.features.has(*feature));
    if let Some((_, text)) = refusal {
        return Err(refused(device, text));
    }
    let unknown = &superblock.unknown_to_write;
    if !options.read_only && !unknown.is_empty() {
        return Err(refused(
            device,
            &format!(
                "uses features that this release can read but not write ({unknown}); use a newer release of \
                 redbud (`redbud dump` and `redbud fsck` without --repair only read)"
            ),
        ));
    }
    Ok(())
}

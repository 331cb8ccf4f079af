//! Makes the metadata device of a new file system: superblocks, an empty log, the bitmap and the
//! roots. The label comes last, so an interrupted format leaves a device that no opening accepts.

use env::{Disk, Env};
use label::{Label, SliceKind};
use types::limits::{BLOCK, BLOCK_U64};
use types::{MetaBlock, ShardId, Uuid, check_fs_name};

use crate::alloc::metaspace::{self, MetaSpace};
use crate::alloc::reservation::ClientReservation;
use crate::device::Device;
use crate::device::copies::refused;
use crate::device::label::LabelCondition;
use crate::error::StoreError;
use crate::format::block::{self, BlockType, tag_of};
use crate::format::features::Features;
use crate::format::roots::ROOTS_BLOCK;
use crate::format::superblock::{LOG_BYTES_MAX, LOG_BYTES_MIN, SuperError, Superblock};
use crate::store::Store;
use crate::store::open::{CACHE_BYTES_MIN, OpenOptions};

/// Properties of a new store.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions<'a> {
    /// Its name, which must satisfy [`check_fs_name`].
    pub name: &'a str,
    /// Its UUID.
    pub uuid: Uuid,
    /// The shard that issues numbers in it.
    pub shard: ShardId,
    /// Capacity of the log in bytes, rounded down to blocks.
    pub log_bytes: u64,
    /// Features of its format.
    pub features: Features,
    /// Overwrite a device that carries a Redbud label.
    pub force: bool,
}

/// Least number of blocks left for content.
const ROOM: u64 = 32;
/// Bytes of zeros in one write.
const ZEROS: usize = 1 << 20;

impl Store {
    /// Makes a new, empty store on `disk`, and opens it. It has no label before
    /// [`Store::end_format`].
    ///
    /// # Errors
    /// `Refused` if the device carries a Redbud label (without force) or is too small, or if an
    /// option is invalid; `Io`.
    pub async fn begin_format(
        env: &Env,
        disk: &Disk,
        options: &FormatOptions<'_>,
    ) -> Result<Store, StoreError> {
        let device = Device::whole(env, disk);
        let superblock = plan(&device, options)?;
        if !options.force {
            check_unused(&device).await?;
        }
        write_empty(&device, &superblock).await?;
        let opening = OpenOptions { cache_bytes: CACHE_BYTES_MIN, ..OpenOptions::default() };
        Store::open_unlabelled(device, opening, LabelCondition::Whole).await
    }

    /// Closes a store of [`Store::begin_format`], and writes its label.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub async fn end_format(&self) -> Result<(), StoreError> {
        self.close().await?;
        match self.device() {
            Some(device) => write_label(&device, &self.superblock()).await,
            None => Ok(()),
        }
    }
}

fn plan(device: &Device, options: &FormatOptions<'_>) -> Result<Superblock, StoreError> {
    if !check_fs_name(options.name) {
        let text = format!(
            "`{}` is no name for a file system; use 1 to 63 letters, digits, '-', '_' or '.'",
            options.name
        );
        return Err(refused(device, &text));
    }
    if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&options.log_bytes) {
        let text = format!(
            "a log of {} bytes is not possible; it has {LOG_BYTES_MIN} to {LOG_BYTES_MAX} bytes",
            options.log_bytes
        );
        return Err(refused(device, &text));
    }
    let blocks = device.blocks();
    let plan = Superblock::plan(options.uuid, options.name, blocks, options.log_bytes);
    let plan = plan.map(|plan| {
        let (shard, features) = (options.shard, options.features);
        Superblock { shard, features, ..plan }
    });
    plan.filter(has_room).ok_or_else(|| {
        let text = format!(
            "{} bytes are too few for a metadata device with a log of {} bytes",
            device.disk.size(),
            options.log_bytes
        );
        refused(device, &text)
    })
}

/// Does the device have room for content besides the blocks that are set aside?
fn has_room(plan: &Superblock) -> bool {
    let mut space = MetaSpace::new(plan.bitmap_first, plan.blocks);
    space.client_reservation = ClientReservation::new(plan.blocks, 0);
    plan.reserved() + 1 + space.set_aside() + ROOM <= plan.blocks
}

/// Refuses a device that carries a label or superblock of Redbud.
async fn check_unused(device: &Device) -> Result<(), StoreError> {
    if label::is_ours(&device.disk).await {
        let whose = match label::read(&device.disk).await {
            Ok(label::Found { label, .. }) => {
                format!("a device of file system `{}` with {}", label.fs_name, label.contents())
            }
            Err(error) => format!("a Redbud device ({error})"),
        };
        return Err(refused(device, &format!("is {whose}; use --force to overwrite it")));
    }
    for index in 0..2 {
        let place = Superblock::place(index, device.blocks());
        let bytes = device.read(place, 1).await?;
        if Superblock::decode(&bytes, index, device.blocks()) != Err(SuperError::Foreign) {
            let text = "carries a superblock of Redbud; use --force to overwrite it";
            return Err(refused(device, text));
        }
    }
    Ok(())
}

async fn write_empty(device: &Device, superblock: &Superblock) -> Result<(), StoreError> {
    let blocks = superblock.blocks;
    let erased = label::erase(&device.disk).await;
    erased.map_err(|error| device.error("erasing the label of", &error))?;
    for place in [Superblock::place(0, blocks), Superblock::place(1, blocks)] {
        device.write_bytes(place.0 * BLOCK_U64, device.env.buffer(BLOCK)).await?;
    }
    device.flush().await?;
    let mut at = superblock.log_first.0 * BLOCK_U64;
    let end = superblock.bitmap_first.0 * BLOCK_U64;
    while at < end {
        let len = (end - at).min(ZEROS as u64);
        device.write_bytes(at, device.env.buffer(len as usize)).await?;
        at += len;
    }
    let tag = tag_of(superblock.uuid);
    let mut roots = Box::new([0; BLOCK]);
    block::initialise(&mut roots, ROOTS_BLOCK, BlockType::Roots, tag);
    let mut home = vec![(ROOTS_BLOCK, roots)];
    let space = MetaSpace::new(superblock.bitmap_first, blocks);
    for index in 0..space.bitmap_blocks() {
        let data = metaspace::first_bitmap(&space, index, superblock.reserved(), tag);
        home.push((MetaBlock(space.first.0 + index), data));
    }
    device.write_home(home).await?;
    device.flush().await?;
    device.write_super(superblock, 1).await?;
    device.write_super(superblock, 0).await?;
    device.flush().await
}

/// The label of a device that holds nothing but the metadata of a superblock.
pub fn label_of(superblock: &Superblock) -> Label {
    let kind = SliceKind::Metadata { shard: superblock.shard.0, journal: None };
    let (uuid, blocks) = (superblock.uuid, superblock.blocks + 1);
    Label::single(uuid, &superblock.name, uuid, blocks, kind)
}

/// Writes the label that belongs to a superblock, on a device without a whole one, and flushes it.
///
/// # Errors
/// `Io`.
pub async fn write_label(device: &Device, superblock: &Superblock) -> Result<(), StoreError> {
    let written = label::write_new(&device.disk, &label_of(superblock)).await;
    written.map_err(|error| device.error("writing the label of", &error))
}

/// Writes a damaged label anew: from its whole copy if it has one, else from the superblock.
///
/// # Errors
/// `Io`.
pub async fn repair_label(device: &Device, superblock: &Superblock) -> Result<(), StoreError> {
    match label::read(&device.disk).await {
        Ok(found) => {
            let written = label::update(&device.disk, &found, |_| {}).await;
            written.map(drop).map_err(|error| device.error("writing the label of", &error))
        }
        Err(_) => write_label(device, superblock).await,
    }
}

//! Makes the metadata device of a new file system: superblocks, an empty log, the bitmap and the
//! roots. The label comes last, so an interrupted format leaves a device that no opening accepts.

use env::{Env, LocalFuture};
use label::{Label, Slice, SliceKind};
use types::limits::{BLOCK, BLOCK_U64};
use types::{MetaBlock, ShardId, Uuid, check_fs_name};

use crate::alloc::metaspace::{self, MetaSpace};
use crate::alloc::reservation::ClientReservation;
use crate::device::Device;
use crate::device::copies::refused;
use crate::device::label::LabelCondition;
use crate::device::log::{Devices, Disks, LogDevice, journal_of, make_journal, read_headers, room};
use crate::device::pairing::{Reason, newest};
use crate::device::shared::{journals_on, refuses_whole};
use crate::error::StoreError;
use crate::format::block::{self, BlockType, tag_of};
use crate::format::features::{Feature, Features};
use crate::format::journal::{JournalHeader, LOG_FIRST};
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

impl Store {
    /// Makes a new, empty store on `disks`, and opens it. It has no label before
    /// [`Store::end_format`].
    ///
    /// # Errors
    /// `Refused` if the device carries a Redbud label (without force), if journals share it, or if
    /// it is too small; if an option is invalid; `Io`.
    pub async fn begin_format(
        env: &Env,
        disks: impl Into<Disks>,
        options: &FormatOptions<'_>,
    ) -> Result<Store, StoreError> {
        Store::begin_format_in(Devices::whole(env, disks), options.uuid, options).await
    }

    /// As [`Store::begin_format`], in the slice `slice` of a device whose other slices the caller
    /// makes, and whose label it writes: it closes the store instead of [`Store::end_format`].
    ///
    /// # Errors
    /// As [`Store::begin_format`].
    pub fn begin_format_in<'a>(
        devices: Devices,
        slice: Uuid,
        options: &'a FormatOptions<'a>,
    ) -> LocalFuture<'a, Result<Store, StoreError>> {
        Box::pin(async move {
            let mut superblock = Superblock { metadata: slice, ..plan(&devices.home, options)? };
            let journal = match &devices.log {
                Some(device) => Some((device, plan_journal(device, &mut superblock)?)),
                None => None,
            };
            check_not_shared(&devices, options.force).await?;
            if !options.force {
                check_unused(&devices.home).await?;
                if let Some((device, _)) = journal
                    && (device.is_whole() || journals_on(&device.disk).await.is_none())
                {
                    check_journal_unused(device, None).await?;
                }
            }
            erase(&devices.home, &superblock).await?;
            if let Some((device, header)) = journal {
                make_journal(device, header, &superblock).await?;
            }
            write_empty(&devices.home, &superblock).await?;
            let opening = OpenOptions { cache_bytes: CACHE_BYTES_MIN, ..OpenOptions::default() };
            Store::open_unlabelled(devices, opening, LabelCondition::Whole).await
        })
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
    let (shard, features) = (options.shard, options.features.without(Feature::EXTERNAL_LOG));
    let plan = plan.map(|plan| Superblock { shard, features, ..plan });
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

/// Refuses a device on which journals have slices of their own, also with force: it would take
/// others their logs. A slice that was chosen among them is no such device. Without force
/// [`check_unused`] refuses such a home.
async fn check_not_shared(devices: &Devices, force: bool) -> Result<(), StoreError> {
    let home = force.then_some(&devices.home);
    let log = devices.log.as_ref().filter(|device| device.is_whole());
    for device in home.into_iter().chain(log) {
        if let Some(text) = refuses_whole(&device.disk, None, "name another device").await {
            return Err(StoreError::Refused(text.into()));
        }
    }
    Ok(())
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

/// Puts the log of a new journal on `device`, which it fills, into the superblock; returns the
/// header of that journal.
pub(crate) fn plan_journal(
    device: &Device,
    superblock: &mut Superblock,
) -> Result<JournalHeader, StoreError> {
    let blocks = room(device).min(LOG_BYTES_MAX / BLOCK_U64);
    if blocks * BLOCK_U64 < LOG_BYTES_MIN {
        // Beside the log the headers and block 0; on a device of its own also the label's copy.
        let beside = LOG_FIRST.0 + u64::from(device.is_whole());
        let least = LOG_BYTES_MIN + beside * BLOCK_U64;
        let bytes = (blocks + beside) * BLOCK_U64;
        let text = format!("{bytes} bytes are too few for a journal; it needs at least {least}");
        return Err(refused(device, &text));
    }
    superblock.log_generation += 1;
    let header = JournalHeader {
        uuid: superblock.uuid,
        journal: device.env.random_uuid(),
        metadata: superblock.metadata,
        generation: superblock.log_generation,
        blocks,
        durable: superblock.tail,
        retired: false,
    };
    superblock.set_journal(Some(journal_of(&header)));
    Ok(header)
}

/// Refuses the device of a new journal if it carries something of Redbud. A journal of the metadata
/// `owner` is no obstacle: their superblock does not name it, so it was used before.
pub(crate) async fn check_journal_unused(
    device: &Device,
    owner: Option<Uuid>,
) -> Result<(), StoreError> {
    let ours = match newest(&read_headers(device).await) {
        Ok(header) if header.retired || Some(header.metadata) == owner => return Ok(()),
        Ok(header) => format!("has journal {} of metadata {}", header.journal, header.metadata),
        Err(Reason::NoJournal) => return check_unused(device).await,
        Err(_) => "has a damaged journal of Redbud".into(),
    };
    Err(refused(device, &format!("{ours}; use --force to overwrite it")))
}

/// Erases the label and both superblocks of a device.
async fn erase(device: &Device, superblock: &Superblock) -> Result<(), StoreError> {
    let blocks = superblock.blocks;
    let erased = label::erase(&device.disk).await;
    erased.map_err(|error| device.error("erasing the label of", &error))?;
    for place in [Superblock::place(0, blocks), Superblock::place(1, blocks)] {
        device.write_bytes(place.0 * BLOCK_U64, device.env.buffer(BLOCK)).await?;
    }
    device.flush().await
}

async fn write_empty(device: &Device, superblock: &Superblock) -> Result<(), StoreError> {
    LogDevice::internal(device, superblock).clear().await?;
    let tag = tag_of(superblock.uuid);
    let mut roots = Box::new([0; BLOCK]);
    block::initialise(&mut roots, ROOTS_BLOCK, BlockType::Roots, tag);
    let mut home = vec![(ROOTS_BLOCK, roots)];
    let space = MetaSpace::new(superblock.bitmap_first, superblock.blocks);
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
    let journal = superblock.journal.map(|journal| journal.uuid);
    let kind = SliceKind::Metadata { shard: superblock.shard.0, journal };
    let (uuid, blocks) = (superblock.metadata, superblock.blocks + 1);
    Label::single(superblock.uuid, &superblock.name, uuid, blocks, kind)
}

/// Writes the label that belongs to a superblock, on a device without a whole one, and flushes it.
///
/// # Errors
/// `Io`.
pub async fn write_label(device: &Device, superblock: &Superblock) -> Result<(), StoreError> {
    let written = label::write_new(&device.disk, &label_of(superblock)).await;
    written.map_err(|error| device.error("writing the label of", &error))
}

/// Writes both copies of the label anew: from a whole copy if there is one, else from the
/// superblock. Its slice of metadata names the shard and the journal of the superblock.
///
/// # Errors
/// `Io`.
pub async fn repair_label(device: &Device, superblock: &Superblock) -> Result<(), StoreError> {
    match label::read(&device.disk).await {
        Ok(found) => {
            let named = superblock.journal.map(|journal| journal.uuid);
            let written = label::update(&device.disk, &found, |label| {
                let own = |slice: &&mut Slice| slice.uuid == superblock.metadata;
                if let Some(slice) = label.slices.iter_mut().find(own)
                    && let SliceKind::Metadata { shard, journal } = &mut slice.kind
                {
                    (*shard, *journal) = (superblock.shard.0, named);
                }
            })
            .await;
            written.map(drop).map_err(|error| device.error("writing the label of", &error))
        }
        Err(_) => write_label(device, superblock).await,
    }
}

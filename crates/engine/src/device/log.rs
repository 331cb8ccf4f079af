//! The window of a disk that the log is in: a part of the metadata device, or a journal on another.
//!
//! Invariants:
//! - the store writes a change home only when a flush of this window has made its record stable. It
//!   moves the tail only when a flush of the metadata device has made the changes before it stable.
//!   So two disks that lose and reorder writes independently lose nothing;
//! - a journal is used only with the superblock that it belongs to ([`super::pairing`]).

use ::label::{Label, Slice, SliceKind};
use env::{Disk, IoBuf};
use types::Lsn;
use types::limits::{BLOCK, BLOCK_U64};

use crate::device::copies::refused;
use crate::device::pairing::{self, HeaderCopy, Place};
use crate::device::{Device, RUN_MAX, WriteQueue, label as slices, shared};
use crate::error::StoreError;
use crate::format::journal::{COPIES, JournalError, JournalHeader, LOG_FIRST};
use crate::format::superblock::{Journal, LOG_BYTES_MAX, Superblock};

/// The disks of a store.
#[derive(Clone)]
pub struct Disks {
    /// The metadata device.
    pub home: Disk,
    /// The device of its journal; `None`: the log is internal.
    pub log: Option<Disk>,
}

impl From<&Disk> for Disks {
    fn from(home: &Disk) -> Disks {
        Disks { home: home.clone(), log: None }
    }
}

impl From<&Disks> for Disks {
    fn from(disks: &Disks) -> Disks {
        disks.clone()
    }
}

/// The window of a disk that the log is in.
#[derive(Clone)]
pub struct LogDevice {
    device: Device,
    /// Byte offset of the log on its disk.
    start: u64,
    /// Capacity of the log.
    bytes: u64,
    /// The header as it was when the log was opened; `None`: the log is internal.
    header: Option<JournalHeader>,
    /// Was one of its copies damaged?
    damaged: bool,
}

impl LogDevice {
    /// The log of a superblock.
    ///
    /// # Errors
    /// `Refused` if `log` is missing, or not the journal of this superblock; `Io`.
    pub async fn find(
        home: &Device,
        log: Option<&Device>,
        superblock: &Superblock,
    ) -> Result<LogDevice, StoreError> {
        let slice = match log.filter(|_| superblock.journal.is_some()) {
            Some(whole) => Some(slices::journal_in(whole, superblock).await?),
            None => log.cloned(),
        };
        let log = slice.as_ref();
        let copies = match log {
            Some(device) => Some(read_headers(device).await),
            None => None,
        };
        let header = copies.as_ref().map(pairing::newest);
        let room = log.map_or(0, room);
        let place = pairing::pair(superblock, header, room)
            .map_err(|mismatch| refused(log.unwrap_or(home), &mismatch.to_string()))?;
        match (place, log) {
            (Place::External(header), Some(device)) => {
                let damaged = copies.iter().flatten().any(Result::is_err);
                Ok(LogDevice { damaged, ..LogDevice::external(device, header) })
            }
            _ => Ok(LogDevice::internal(home, superblock)),
        }
    }

    /// The window of the metadata device that is set aside for the log.
    pub(crate) fn internal(home: &Device, superblock: &Superblock) -> LogDevice {
        LogDevice {
            device: home.clone(),
            start: superblock.log_first.0 * BLOCK_U64,
            bytes: superblock.log_blocks * BLOCK_U64,
            header: None,
            damaged: false,
        }
    }

    /// The journal with this header.
    pub(crate) fn external(device: &Device, header: JournalHeader) -> LogDevice {
        LogDevice {
            device: device.clone(),
            start: LOG_FIRST.0 * BLOCK_U64,
            bytes: header.blocks * BLOCK_U64,
            header: Some(header),
            damaged: false,
        }
    }

    /// Its header; `None`: the log is internal.
    pub fn header(&self) -> Option<&JournalHeader> {
        self.header.as_ref()
    }

    /// Was one copy of its header damaged when the log was opened? An opening for writing writes
    /// both anew.
    pub fn is_header_damaged(&self) -> bool {
        self.damaged
    }

    /// What is wrong with the label of the journal's device, if anything.
    pub async fn label_damage(&self) -> Option<String> {
        self.header?;
        shared::label_damage(&self.device.env, &self.device.disk).await
    }

    /// Writes the label of the journal's device anew: from a whole copy if there is one, else from
    /// the header.
    ///
    /// # Errors
    /// `Refused` without a whole copy if the journal does not fill the device: the label named
    /// others, whose room must not look free; `Io`.
    pub async fn repair_label(&self, superblock: &Superblock) -> Result<(), StoreError> {
        let Some(header) = &self.header else { return Ok(()) };
        let device = &self.device;
        let written = match ::label::read(&device.disk).await {
            Ok(found) => ::label::update(&device.disk, &found, |_| {}).await.map(drop),
            Err(_) if header.blocks < room(device).min(LOG_BYTES_MAX / BLOCK_U64) => {
                let text = "its label and the copy of it are lost, and it may have journals of \
                            others: restore its first or its last block from a backup";
                return Err(refused(device, text));
            }
            Err(_) => ::label::write_new(&device.disk, &label_of(device, header, superblock)).await,
        };
        written.map_err(|error| device.error("writing the label of", &error))
    }

    /// What is wrong now with a copy of the header, if anything. The store may be writing it.
    pub async fn header_damage(&self) -> Option<&'static str> {
        self.header?;
        let copies = read_headers(&self.device).await;
        copies.into_iter().find_map(|copy| match copy {
            Ok(_) => None,
            Err(JournalError::Damaged(what)) => Some(what),
            Err(JournalError::Foreign | JournalError::Version(_)) => Some("not a journal's header"),
        })
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Capacity of the log in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads `len` bytes at `offset` of the window, both multiples of 4096.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<IoBuf, StoreError> {
        self.device.read_bytes(self.start + offset, len).await
    }

    /// Writes `bytes` at position `lsn`, padded to whole blocks.
    pub(crate) async fn write(&self, lsn: Lsn, bytes: &[u8]) -> Result<(), StoreError> {
        let mut requests = WriteQueue::new(&self.device);
        let (mut at, mut rest) = (lsn, bytes);
        while !rest.is_empty() {
            let offset = at.0 % self.bytes;
            let room = (self.bytes - offset).min((RUN_MAX * BLOCK) as u64) as usize;
            let (piece, after) = rest.split_at(room.min(rest.len()));
            let mut buf = self.device.env.buffer(piece.len().next_multiple_of(BLOCK));
            buf[..piece.len()].copy_from_slice(piece);
            requests.write(self.start + offset, buf).await?;
            at.0 += piece.len() as u64;
            rest = after;
        }
        requests.finish().await
    }

    /// Makes everything written so far stable.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        self.device.flush().await
    }

    /// Fills the window with zeros, and flushes it.
    pub(crate) async fn clear(&self) -> Result<(), StoreError> {
        self.device.write_zeros(self.start, self.bytes).await?;
        self.flush().await
    }

    /// Writes both copies of the header with this generation, one after the other, if the log is
    /// external; the log is durable up to `durable`. Afterwards the superblocks may take over the
    /// generation.
    pub(crate) async fn write_header(
        &self,
        generation: u64,
        durable: Lsn,
    ) -> Result<(), StoreError> {
        let Some(header) = self.header else { return Ok(()) };
        write_headers(&self.device, &JournalHeader { generation, durable, ..header }).await
    }
}

/// Both copies of the header on the device of a journal. A copy that cannot be read counts as
/// damaged: the other one suffices.
pub(crate) async fn read_headers(device: &Device) -> [HeaderCopy; 2] {
    let mut copies = [Err(JournalError::Foreign); 2];
    for (place, copy) in COPIES.into_iter().zip(&mut copies) {
        if place.0 >= device.blocks() {
            continue;
        }
        *copy = match device.read(place, 1).await {
            Ok(bytes) => JournalHeader::decode(&bytes),
            Err(_) => Err(JournalError::Damaged("cannot be read")),
        };
    }
    copies
}

/// Writes both copies of a header, one after the other.
pub(crate) async fn write_headers(
    device: &Device,
    header: &JournalHeader,
) -> Result<(), StoreError> {
    for place in COPIES {
        let mut buf = device.env.buffer(BLOCK);
        header.encode(&mut buf);
        device.write_bytes(place.0 * BLOCK_U64, buf).await?;
        device.flush().await?;
    }
    Ok(())
}

/// Blocks that the slice of a journal has for the log, behind block 0 and the headers.
pub(crate) fn room(device: &Device) -> u64 {
    device.blocks().saturating_sub(LOG_FIRST.0)
}

/// Erases label and headers of the device, writes zeros into the log, and then new headers and a
/// new label: a journal that is empty. No superblock names it yet. If `device` is a slice beside
/// those of other journals, these stay, and the label names one slice more; the caller has locked
/// the label.
///
/// # Errors
/// `Io`.
pub(crate) async fn make_journal(
    device: &Device,
    header: JournalHeader,
    superblock: &Superblock,
) -> Result<(), StoreError> {
    let failed = |error: std::io::Error| device.error("writing the label of", &error);
    let others = match device.is_whole() {
        true => None,
        false => shared::journals_on(&device.disk).await,
    };
    if others.is_none() {
        ::label::erase(&device.disk).await.map_err(failed)?;
    }
    // Block 0 of the slice may be the label of the others.
    device.write_zeros(BLOCK_U64, (LOG_FIRST.0 - 1) * BLOCK_U64).await?;
    device.flush().await?;
    let log = LogDevice::external(device, header);
    log.clear().await?;
    write_headers(device, &header).await?;
    match others {
        Some(found) => shared::add(device, &found, slice_of(device, &header, superblock)).await,
        None => {
            let label = label_of(device, &header, superblock);
            ::label::write_new(&device.disk, &label).await.map_err(failed)
        }
    }
}

/// The label of a device that holds nothing but this journal.
fn label_of(device: &Device, header: &JournalHeader, superblock: &Superblock) -> Label {
    let slice = slice_of(device, header, superblock);
    let blocks = device.disk.size() / BLOCK_U64;
    Label::new(header.uuid, &superblock.name, header.journal, blocks, vec![slice])
}

/// The slice of a journal, which fills `device`.
fn slice_of(device: &Device, header: &JournalHeader, superblock: &Superblock) -> Slice {
    let kind = SliceKind::Journal { shard: superblock.shard.0, metadata: header.metadata };
    Slice { kind, start: device.start(), blocks: device.blocks(), uuid: header.journal }
}

/// Marks a journal that has no log any more: its header says so, and the label of its device loses
/// its slice. A label that names nothing else is erased.
///
/// # Errors
/// `Io`.
pub(crate) async fn retire(device: &Device, header: &JournalHeader) -> Result<(), StoreError> {
    write_headers(device, &JournalHeader { retired: true, ..*header }).await?;
    shared::lock_label(&device.env, &device.disk).await?;
    let removed = shared::remove(&device.disk, |slice| slice.uuid == header.journal).await;
    shared::unlock_label(&device.disk).await?;
    removed.map(drop)
}

/// The journal that a header describes, as the superblock names it.
pub(crate) fn journal_of(header: &JournalHeader) -> Journal {
    Journal { uuid: header.journal, blocks: header.blocks }
}

/// The devices of a store.
#[derive(Clone)]
pub struct Devices {
    /// The metadata device.
    pub home: Device,
    /// The device of its journal; `None`: the log is internal.
    pub log: Option<Device>,
}

impl Devices {
    /// These disks as devices of one slice each.
    pub fn whole(env: &env::Env, disks: impl Into<Disks>) -> Devices {
        let Disks { home, log } = disks.into();
        let log = log.map(|disk| Device::whole(env, &disk));
        Devices { home: Device::whole(env, &home), log }
    }
}

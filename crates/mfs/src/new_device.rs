//! Labels devices as data zones: at `redbud mkfs`, and while the file system is served.
//!
//! Invariants:
//! - a device with content is refused, unless the caller knows that it may be overwritten;
//! - a device gets its label only as a whole: until both copies are written it belongs to nobody,
//!   or it still has the label that it had.

use std::io;

use env::{Disk, Env, IoBuf};
use label::Label;
use types::limits::{BLOCK, BLOCK_U64};
use types::{Epoch, PagId, Uuid};

use crate::mkfs::PagFormat;
use crate::zones::data_label;
use engine::format::superblock::Superblock;

/// Bytes of the smallest data zone.
pub const ZONE_MIN: u64 = 16 << 20;
/// Bytes to read to find out whether a device is empty.
const PROBE: usize = 64 << 10;

/// What a device holds, as words that follow its path; `None`: nothing.
///
/// # Errors
/// Those of the device.
pub async fn content_of(disk: &Disk) -> io::Result<Option<String>> {
    let (read, head) = disk.read(0, IoBuf::zeroed(PROBE)).await;
    read?;
    let blocks = disk.size() / BLOCK_U64 - 1;
    if label::is_ours(disk).await {
        let whose = match label::read(disk).await {
            Ok(found) => whose(&found.label),
            Err(error) => error.to_string(),
        };
        return Ok(Some(format!("formatted already: {whose}")));
    }
    if let Ok(found) = Superblock::decode(&head[BLOCK..2 * BLOCK], 0, blocks) {
        return Ok(Some(format!(
            "it carries a superblock of the file system `{}` ({}), but its label is damaged or \
             missing: if it was ever in use, run `redbud mds` or `redbud fsck`, which say what to do",
            found.name, found.uuid
        )));
    }
    Ok(head.iter().any(|&byte| byte != 0).then(|| "it is not empty".to_owned()))
}

/// What a device with this label holds.
pub fn whose(label: &Label) -> String {
    let Label { fs_name, fs_uuid, .. } = label;
    format!("it holds {} of the file system `{fs_name}` ({fs_uuid})", label.contents())
}

/// The file system that a device becomes part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner<'a> {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its name.
    pub name: &'a str,
    /// Its fencing epoch.
    pub fencing_epoch: Epoch,
}

/// Writes the label of a data device, which cuts it into equal slices; returns the zones. What the
/// device held belongs to nobody from then on.
///
/// # Errors
/// Those of the device; `InvalidInput`: it is too small for so many zones, or `pags` is empty.
pub async fn label_device(
    env: &Env,
    disk: &Disk,
    owner: Owner<'_>,
    pags: &[PagId],
) -> io::Result<Vec<PagFormat>> {
    let (blocks, device) = (disk.size() / BLOCK_U64, env.random_uuid());
    // The last block is the label's second copy.
    let each = blocks.saturating_sub(1) / (pags.len() as u64).max(1);
    let zone = |(index, &id): (u64, &PagId)| {
        let (uuid, start) = (env.random_uuid(), index * each);
        PagFormat { id, uuid, device, start, blocks: each }
    };
    let zones: Vec<PagFormat> = (0..).zip(pags).map(zone).collect();
    let made = data_label(owner.uuid, owner.name, blocks, &zones);
    let made = made.filter(|_| zones.iter().all(PagFormat::is_possible)).ok_or_else(|| {
        let text = format!("{}: no room for {} data zones", disk.path(), pags.len());
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })?;
    let label = Label { fencing_epoch: owner.fencing_epoch, ..made };
    label::erase(disk).await?;
    label::write_new(disk, &label).await?;
    Ok(zones)
}

//! The labels of the data zones. They have everything that the table of data zones (FORMAT 10) has
//! except counts, which the caller can count.
//!
//! Invariants:
//! - this module reads only the label of a data device. It writes only the label, and only if the
//!   label is damaged and either its UUID still names the zone or the administrator does;
//! - a label is valid if it is whole, of this file system, and of the zone that the caller named
//!   for its device;
//! - a caller that needs a label that is not available learns which zone, which device, and why.

use std::collections::{BTreeMap, BTreeSet};

use env::{DiskOptions, Env};
use types::label::{Label, LabelError, LabelKind};
use types::limits::{BLOCK, BLOCK_U64};
use types::{Epoch, PagId, Uuid};

use crate::mkfs::PagFormat;
use engine::store::Identity;

/// The device of a data zone, as the administrator names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneDevice<'a> {
    /// Its number.
    pub id: PagId,
    /// Path of its device.
    pub path: &'a str,
}

/// A data device whose first block is not a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DamagedDataLabel {
    /// The zone that was named for the device.
    pub id: PagId,
    /// The device, and what is wrong with its label.
    pub what: String,
    /// Does the block still have the zone's UUID?
    pub has_zone_uuid: bool,
    /// Is the device at least as large as the zone?
    pub has_zone_size: bool,
}

/// The label of a data zone.
pub fn data_label(fs_uuid: Uuid, fs_name: &str, zone: &PagFormat) -> Label {
    Label {
        kind: LabelKind::Data,
        fs_uuid,
        fs_name: fs_name.to_owned(),
        pag: zone.id,
        pag_uuid: zone.uuid,
        blocks: zone.blocks,
        fencing_epoch: Epoch(0),
    }
}

/// The label of a device, if it has a whole one. A client may have the device open.
pub async fn label_on(env: &Env, path: &str) -> Option<Label> {
    let options = DiskOptions { write: false, exclusive: false };
    let disk = env.open_disk(path, options).await.ok()?;
    let (read, block) = disk.read(0, env.buffer(BLOCK)).await;
    read.ok()?;
    Label::decode(&block).ok()
}

/// The file system in the label of this device; `None` if it is no label of a data zone, or cannot
/// be read.
pub(crate) async fn file_system(env: &Env, device: &ZoneDevice<'_>) -> Option<Uuid> {
    let label = label_on(env, device.path).await?;
    (label.kind == LabelKind::Data).then_some(label.fs_uuid)
}

/// Reports that the device of this zone has no label. `None` also if the device is missing or has
/// another label: a mount reports that.
pub(crate) async fn damaged_label(
    env: &Env,
    device: &ZoneDevice<'_>,
    zone: &PagFormat,
) -> Option<DamagedDataLabel> {
    let options = DiskOptions { write: false, exclusive: false };
    let disk = env.open_disk(device.path, options).await.ok()?;
    let (read, block) = disk.read(0, env.buffer(BLOCK)).await;
    let (why, has_zone_uuid) = match read.map(|()| Label::decode(&block)) {
        Ok(Ok(_) | Err(LabelError::Version(_))) => return None,
        Ok(Err(error)) => (error.to_string(), Label::pag_uuid_in(&block) == Some(zone.uuid)),
        Err(error) => (format!("its label cannot be read: {error}"), false),
    };
    let has_zone_size = disk.size() / BLOCK_U64 >= zone.blocks;
    let what = format!("{}: {why}", device.path);
    Some(DamagedDataLabel { id: zone.id, what, has_zone_uuid, has_zone_size })
}

/// Writes a new label to the device of a zone.
///
/// # Errors
/// The error names the device.
pub(crate) async fn relabel(
    env: &Env,
    device: &ZoneDevice<'_>,
    identity: &Identity,
    zone: &PagFormat,
) -> std::io::Result<()> {
    let options = DiskOptions { write: true, exclusive: false };
    let disk = env.open_disk(device.path, options).await?;
    let mut block = env.buffer(BLOCK);
    block.copy_from_slice(&data_label(identity.uuid, &identity.name, zone).encode());
    disk.write(0, block).await.0?;
    disk.flush().await
}

/// The labels of data zones, or why they are not available.
#[derive(Clone, Default, Debug)]
pub(crate) struct ZoneLabels(BTreeMap<PagId, Result<PagFormat, String>>);

impl ZoneLabels {
    /// Reads the labels of these zones of the file system `uuid`.
    pub(crate) async fn read(env: &Env, uuid: Uuid, devices: &[ZoneDevice<'_>]) -> ZoneLabels {
        let mut all = BTreeMap::new();
        for device in devices {
            let label = read(env, uuid, device).await;
            all.insert(device.id, label.map_err(|text| format!("data zone {}: {text}", device.id)));
        }
        ZoneLabels(all)
    }

    /// Did the caller name a device for this zone?
    pub(crate) fn has_device(&self, id: PagId) -> bool {
        self.0.contains_key(&id)
    }

    /// The zone, from its label.
    ///
    /// # Errors
    /// Why the label is not available.
    pub(crate) fn get(&self, id: PagId) -> Result<PagFormat, String> {
        let not_named = || Err(format!("data zone {id}: its device is not named"));
        self.0.get(&id).cloned().unwrap_or_else(not_named)
    }

    /// All named zones, from their labels; they must include the `needed` ones.
    ///
    /// # Errors
    /// Which labels are not available, and why.
    pub(crate) fn all(&self, needed: &BTreeSet<PagId>) -> Result<Vec<PagFormat>, Vec<String>> {
        let ids: BTreeSet<PagId> = self.0.keys().chain(needed).copied().collect();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for id in ids {
            match self.get(id) {
                Ok(zone) => found.push(zone),
                Err(text) => missing.push(text),
            }
        }
        match missing.is_empty() && !found.is_empty() {
            true => Ok(found),
            false if missing.is_empty() => Err(vec!["no data zone was named".into()]),
            false => Err(missing),
        }
    }

    /// The zones whose labels are valid.
    pub(crate) fn found(&self) -> impl Iterator<Item = PagFormat> {
        self.0.values().filter_map(|label| label.as_ref().ok().copied())
    }

    /// Why the other labels are not available.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &String> {
        self.0.values().filter_map(|label| label.as_ref().err())
    }
}

/// Reports devices that are not the named data zones: they have whole labels of something else. A
/// client cannot mount with them. `uuid` is that of the file system.
pub async fn foreign_devices(env: &Env, uuid: Uuid, devices: &[ZoneDevice<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for device in devices {
        let Some(label) = label_on(env, device.path).await else { continue };
        if let Err(text) = check_label(&label, uuid, device.id) {
            let (id, path) = (device.id, device.path);
            found.push(format!("{path} is not data zone {id} of this file system: {text}"));
        }
    }
    found
}

/// The zone, from the label of this device if that is valid.
async fn read(env: &Env, uuid: Uuid, device: &ZoneDevice<'_>) -> Result<PagFormat, String> {
    // A client may have it open.
    let options = DiskOptions { write: false, exclusive: false };
    // The error names the path.
    let disk = env.open_disk(device.path, options).await.map_err(|error| error.to_string())?;
    let (read, block) = disk.read(0, env.buffer(BLOCK)).await;
    let label = match read {
        Ok(()) => Label::decode(&block).map_err(|error| error.to_string()),
        Err(error) => Err(format!("its label cannot be read: {error}")),
    };
    let zone = label.and_then(|label| check_label(&label, uuid, device.id));
    zone.map_err(|text| format!("{}: {text}", device.path))
}

fn check_label(label: &Label, uuid: Uuid, id: PagId) -> Result<PagFormat, String> {
    if label.kind != LabelKind::Data {
        return Err(format!("its label says that it holds {}", label.kind));
    }
    if label.fs_uuid != uuid {
        let (name, other) = (&label.fs_name, label.fs_uuid);
        return Err(format!("it belongs to the file system `{name}` ({other}), not to {uuid}"));
    }
    if label.pag != id {
        return Err(format!("its label says that it is data zone {}", label.pag));
    }
    let zone = PagFormat { id, uuid: label.pag_uuid, blocks: label.blocks };
    if !zone.is_possible() {
        return Err(format!("its label says that it has {} blocks", label.blocks));
    }
    Ok(zone)
}

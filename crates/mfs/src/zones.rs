//! The labels of the devices with data zones. They have everything that the table of data zones
//! (FORMAT 10) has except counts, which the caller can count.
//!
//! Invariants:
//! - this module reads only the label of a data device. It writes only the label, and only if a
//!   copy of it is damaged. If both are, their UUID still names the device or the administrator
//!   does;
//! - a label is valid for a zone if it is whole, of this file system, of a device with data alone,
//!   and has a slice for the zone that the caller named for its device;
//! - a caller that needs a label that is not available learns which zone, which device, and why.

use std::collections::{BTreeMap, BTreeSet};

use env::{Disk, DiskOptions, Env};
use label::{Contents, Found, Label, Slice, Why};
use types::limits::BLOCK_U64;
use types::{PagId, Uuid};

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

/// A data device with a damaged label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DamagedDataLabel {
    /// The first of the zones that the table has on the device.
    pub id: PagId,
    /// The device, and what is wrong with its label.
    pub what: String,
    /// Is one copy whole, and of this device?
    pub has_copy: bool,
    /// Do the remains of a copy still have the device's UUID?
    pub has_device_uuid: bool,
    /// Has the device room for the zones and both copies?
    pub has_device_size: bool,
}

/// The label of a device of `blocks` blocks with these data zones, which are sorted by their start.
/// `None` if there is no zone.
pub fn data_label(fs_uuid: Uuid, fs_name: &str, blocks: u64, zones: &[PagFormat]) -> Option<Label> {
    let slices: Vec<Slice> = zones.iter().map(PagFormat::slice).collect();
    let device = zones.first()?.device;
    Some(Label::new(fs_uuid, fs_name, device, blocks, slices))
}

/// Opens a device that a client may have open.
async fn open(env: &Env, path: &str, write: bool) -> std::io::Result<Disk> {
    env.open_disk(path, DiskOptions { write, exclusive: false }).await
}

/// The label of a device, if it has a whole one. A client may have the device open.
pub async fn label_on(env: &Env, path: &str) -> Option<Label> {
    let disk = open(env, path, false).await.ok()?;
    label::read(&disk).await.ok().map(|found| found.label)
}

/// The file system in the label of this device; `None` if it is no label of a device with data, or
/// cannot be read.
pub(crate) async fn file_system(env: &Env, device: &ZoneDevice<'_>) -> Option<Uuid> {
    let label = label_on(env, device.path).await?;
    (label.contents() == Contents::Data).then_some(label.fs_uuid)
}

/// Reports that the device at `path` has a damaged label. `zones` are those that the table has on
/// it. `None` also if the device is missing or has another label: a mount reports that.
pub(crate) async fn damaged_label(
    env: &Env,
    path: &str,
    zones: &[PagFormat],
) -> Option<DamagedDataLabel> {
    let first = zones.first()?;
    let disk = open(env, path, false).await.ok()?;
    let (what, has_copy, uuids) = match label::read(&disk).await {
        Ok(Found { label, damage: Some(damage), .. }) if label.device_uuid == first.device => {
            (damage.to_string(), true, [Some(label.device_uuid); 2])
        }
        Ok(_) => return None,
        Err(none) => match none.why {
            Why::Version(_) | Why::Unreleased => return None,
            Why::Foreign | Why::Damaged(_) | Why::Contradiction => {
                (none.to_string(), false, none.uuids)
            }
        },
    };
    let end = zones.iter().map(|zone| zone.start.saturating_add(zone.blocks)).max();
    Some(DamagedDataLabel {
        id: first.id,
        what: format!("{path}: {what}"),
        has_copy,
        has_device_uuid: uuids.contains(&Some(first.device)),
        has_device_size: end.is_some_and(|end| end < disk.size() / BLOCK_U64),
    })
}

/// Writes the damaged label of a device anew: from its whole copy if it has one, else from the
/// zones that the table has on it.
///
/// # Errors
/// The error names the device.
pub(crate) async fn relabel(
    env: &Env,
    path: &str,
    identity: &Identity,
    zones: &[PagFormat],
) -> std::io::Result<()> {
    let disk = open(env, path, true).await?;
    if let Ok(found) = label::read(&disk).await {
        return label::update(&disk, &found, |_| {}).await.map(drop);
    }
    let blocks = disk.size() / BLOCK_U64;
    match data_label(identity.uuid, &identity.name, blocks, zones) {
        Some(label) => label::write_new(&disk, &label).await,
        None => Ok(()),
    }
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
    // The error names the path.
    let disk = open(env, device.path, false).await.map_err(|error| error.to_string())?;
    let label = label::read(&disk).await.map_err(|error| error.to_string());
    let zone = label.and_then(|found| check_label(&found.label, uuid, device.id));
    zone.map_err(|text| format!("{}: {text}", device.path))
}

fn check_label(label: &Label, uuid: Uuid, id: PagId) -> Result<PagFormat, String> {
    let Slice { start, blocks, uuid, .. } = *label.expect_data(uuid, id, None)?;
    let zone = PagFormat { id, uuid, device: label.device_uuid, start, blocks };
    if !zone.is_possible() {
        return Err(format!("its label says that the zone has {blocks} blocks"));
    }
    Ok(zone)
}

//! What the labels of the data zones say: all that the table of data zones does (FORMAT 10), but
//! for counts, which are counted.
//!
//! Invariants:
//! - of a data device nothing but the label is read, and nothing is written but a label that is
//!   none: where its UUID still says which zone it is, or whoever runs this does;
//! - a label counts if it is whole, of this file system, and of the zone as which its device was
//!   named;
//! - whoever needs a label that is not to be had is told of which zone, which device, and why.

use std::collections::{BTreeMap, BTreeSet};

use env::{DiskOptions, Env};
use types::label::{Label, LabelError, LabelKind};
use types::limits::{BLOCK, BLOCK_U64};
use types::{Epoch, PagId, Uuid};

use crate::mfs::Identity;
use crate::mkfs::PagFormat;

/// Where a data zone lies, as whoever runs this says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZonePlace<'a> {
    /// Its number.
    pub id: PagId,
    /// Path of its device.
    pub path: &'a str,
}

/// A data device whose first block is no label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Marred {
    /// The zone as which it was named.
    pub id: PagId,
    /// Device, and what is wrong.
    pub what: String,
    /// The block still has the zone's UUID.
    pub ours: bool,
    /// The device is as large as the zone.
    pub fits: bool,
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

/// The label on a device, if there is a whole one. A client may have the device open.
pub async fn label_on(env: &Env, path: &str) -> Option<Label> {
    let options = DiskOptions { write: false, exclusive: false };
    let disk = env.open_disk(path, options).await.ok()?;
    let (read, block) = disk.read(0, env.buffer(BLOCK)).await;
    read.ok()?;
    Label::decode(&block).ok()
}

/// The file system of which the label on this device is; `None` if it is none of a data zone, or
/// cannot be read.
pub(crate) async fn file_system(env: &Env, place: &ZonePlace<'_>) -> Option<Uuid> {
    let label = label_on(env, place.path).await?;
    (label.kind == LabelKind::Data).then_some(label.fs_uuid)
}

/// Is there no label on the device of this zone? `None` also if the device is not there, or has
/// another's label: whoever mounts is told.
pub(crate) async fn marred(env: &Env, place: &ZonePlace<'_>, zone: &PagFormat) -> Option<Marred> {
    let options = DiskOptions { write: false, exclusive: false };
    let disk = env.open_disk(place.path, options).await.ok()?;
    let (read, block) = disk.read(0, env.buffer(BLOCK)).await;
    let (why, ours) = match read.map(|()| Label::decode(&block)) {
        Ok(Ok(_) | Err(LabelError::Version(_))) => return None,
        Ok(Err(error)) => (error.to_string(), Label::pag_uuid_in(&block) == Some(zone.uuid)),
        Err(error) => (format!("its label cannot be read: {error}"), false),
    };
    let fits = disk.size() / BLOCK_U64 >= zone.blocks;
    Some(Marred { id: zone.id, what: format!("{}: {why}", place.path), ours, fits })
}

/// Writes the label of a zone anew.
///
/// # Errors
/// They name the device.
pub(crate) async fn relabel(
    env: &Env,
    place: &ZonePlace<'_>,
    identity: &Identity,
    zone: &PagFormat,
) -> std::io::Result<()> {
    let options = DiskOptions { write: true, exclusive: false };
    let disk = env.open_disk(place.path, options).await?;
    let mut block = env.buffer(BLOCK);
    block.copy_from_slice(&data_label(identity.uuid, &identity.name, zone).encode());
    disk.write(0, block).await.0?;
    disk.flush().await
}

/// The labels of data zones, each as it was found, or why it was not.
#[derive(Clone, Default, Debug)]
pub(crate) struct Labels(BTreeMap<PagId, Result<PagFormat, String>>);

impl Labels {
    /// Reads the labels of these zones of the file system `uuid`.
    pub(crate) async fn read(env: &Env, uuid: Uuid, places: &[ZonePlace<'_>]) -> Labels {
        let mut all = BTreeMap::new();
        for place in places {
            let label = read(env, uuid, place).await;
            all.insert(place.id, label.map_err(|text| format!("data zone {}: {text}", place.id)));
        }
        Labels(all)
    }

    /// Was this zone named?
    pub(crate) fn names(&self, id: PagId) -> bool {
        self.0.contains_key(&id)
    }

    /// What the label of this zone says.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn get(&self, id: PagId) -> Result<PagFormat, String> {
        let unnamed = || Err(format!("data zone {id}: its device is not named"));
        self.0.get(&id).cloned().unwrap_or_else(unnamed)
    }

    /// What the labels of all zones say that were named, which are at least the `needed` ones.
    ///
    /// # Errors
    /// Which labels are not to be had, and why.
    pub(crate) fn all(&self, needed: &BTreeSet<PagId>) -> Result<Vec<PagFormat>, Vec<String>> {
        let ids: BTreeSet<PagId> = self.0.keys().chain(needed).copied().collect();
        let (mut found, mut lacking) = (Vec::new(), Vec::new());
        for id in ids {
            match self.get(id) {
                Ok(zone) => found.push(zone),
                Err(text) => lacking.push(text),
            }
        }
        match lacking.is_empty() && !found.is_empty() {
            true => Ok(found),
            false if lacking.is_empty() => Err(vec!["no data zone was named".into()]),
            false => Err(lacking),
        }
    }

    /// What the labels say that were found.
    pub(crate) fn found(&self) -> impl Iterator<Item = PagFormat> {
        self.0.values().filter_map(|label| label.as_ref().ok().copied())
    }

    /// Why the others were not.
    pub(crate) fn lacking(&self) -> impl Iterator<Item = &String> {
        self.0.values().filter_map(|label| label.as_ref().err())
    }
}

/// Why devices are not the data zones that they are named as: they carry whole labels of something
/// else. Nobody can mount with them. `uuid`: of the file system.
pub async fn strangers(env: &Env, uuid: Uuid, places: &[ZonePlace<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for place in places {
        let Some(label) = label_on(env, place.path).await else { continue };
        if let Err(text) = fitting(&label, uuid, place.id) {
            let (id, path) = (place.id, place.path);
            found.push(format!("{path} is not data zone {id} of this file system: {text}"));
        }
    }
    found
}

/// What the label on this device says, if it is that of the zone.
async fn read(env: &Env, uuid: Uuid, place: &ZonePlace<'_>) -> Result<PagFormat, String> {
    // A client may have it open.
    let options = DiskOptions { write: false, exclusive: false };
    // The error names the path.
    let disk = env.open_disk(place.path, options).await.map_err(|error| error.to_string())?;
    let (read, block) = disk.read(0, env.buffer(BLOCK)).await;
    let label = match read {
        Ok(()) => Label::decode(&block).map_err(|error| error.to_string()),
        Err(error) => Err(format!("its label cannot be read: {error}")),
    };
    let zone = label.and_then(|label| fitting(&label, uuid, place.id));
    zone.map_err(|text| format!("{}: {text}", place.path))
}

fn fitting(label: &Label, uuid: Uuid, id: PagId) -> Result<PagFormat, String> {
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

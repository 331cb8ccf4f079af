//! Finds the data zones at the start: the store's table, the configured paths, the labels.

use std::collections::BTreeSet;

use env::DiskOptions;
use mfs::Cost;
use proto::mds::PagInfo;
use types::Uuid;

use super::Space;
use crate::config::PagPlace;
use crate::error::ServeError;

impl Space {
    /// Joins the store's table of data zones with the configured paths, and opens the devices for
    /// their locks.
    ///
    /// # Errors
    /// A device is not the zone that the configuration says; the store's.
    pub async fn learn_zones(&self) -> Result<(), ServeError> {
        let runtime = &self.runtime;
        let (states, _) = runtime.mfs.run(Cost::READ, |txn| txn.space().pags()).await?;
        let (mut pags, mut opened) = (Vec::new(), BTreeSet::new());
        for state in states {
            let place = runtime.config.pags.iter().find(|place| place.id == state.id);
            if let Some(place) = place {
                if place.uuid != state.uuid {
                    let text = format!(
                        "{}: the configuration gives data zone {} the UUID {}, the metadata {}",
                        place.path, place.id, place.uuid, state.uuid
                    );
                    return Err(ServeError::Device(text));
                }
                self.open_device(place, &mut opened).await?;
            }
            let path = place.map_or_else(String::new, |place| place.path.clone());
            let (id, uuid, device, blocks) = (state.id, state.uuid, state.device, state.total + 1);
            pags.push(PagInfo { id, uuid, device, blocks, path });
        }
        *self.zones.borrow_mut() = pags;
        Ok(())
    }

    /// Opens a zone's device, if no other zone on it has `opened` it, and checks its label. A device
    /// that this host does not have is no error: clients may have it.
    async fn open_device(
        &self,
        place: &PagPlace,
        opened: &mut BTreeSet<Uuid>,
    ) -> Result<(), ServeError> {
        if place.path.is_empty() {
            return Ok(());
        }
        let runtime = &self.runtime;
        let disk = match runtime.env.open_disk(&place.path, DiskOptions::default()).await {
            Ok(disk) => disk,
            Err(error) => {
                runtime.log(&format!("data zone {} is not opened here: {error}", place.id));
                return Ok(());
            }
        };
        let label = label::read(&disk).await.map_err(|error| error.to_string());
        let checked = label.and_then(|found| {
            found.label.expect_data(runtime.identity.uuid, place.id, Some(place.uuid))?;
            Ok(found)
        });
        let found = checked.map_err(|text| {
            let (path, id) = (&place.path, place.id);
            ServeError::Device(format!("{path}: not data zone {id} of this file system: {text}"))
        })?;
        if opened.insert(found.label.device_uuid) {
            if let Some(damage) = found.damage {
                runtime.log(&format!(
                    "{}: {damage}; `redbud fsck --repair` writes it anew",
                    place.path
                ));
            }
            self.devices.add(disk);
        }
        Ok(())
    }
}

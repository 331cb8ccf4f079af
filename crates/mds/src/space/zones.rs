//! Finds the data zones at the start: the store's table, the configured paths, the labels.

use env::DiskOptions;
use mfs::Cost;
use proto::mds::PagInfo;
use types::label::{Label, LabelKind};
use types::limits::BLOCK;

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
        let mut pags = Vec::new();
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
                self.open_device(place).await?;
            }
            let path = place.map_or_else(String::new, |place| place.path.clone());
            pags.push(PagInfo { id: state.id, uuid: state.uuid, blocks: state.total + 1, path });
        }
        *self.zones.borrow_mut() = pags;
        Ok(())
    }

    /// Opens a zone's device and checks its label. A device that this host does not have is no
    /// error: clients may have it.
    async fn open_device(&self, place: &PagPlace) -> Result<(), ServeError> {
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
        let (read, block) = disk.read(0, runtime.env.buffer(BLOCK)).await;
        let label = read
            .map_err(|error| error.to_string())
            .and_then(|()| Label::decode(&block).map_err(|error| error.to_string()));
        let wrong = match label {
            Err(text) => Some(text),
            Ok(label) if label.kind != LabelKind::Data => Some(format!("it holds {}", label.kind)),
            Ok(label) if label.fs_uuid != runtime.identity.uuid => {
                Some(format!("it belongs to the file system {} ({})", label.fs_name, label.fs_uuid))
            }
            Ok(label) if label.pag != place.id || label.pag_uuid != place.uuid => {
                Some(format!("it is data zone {} ({})", label.pag, label.pag_uuid))
            }
            Ok(_) => None,
        };
        if let Some(text) = wrong {
            let text =
                format!("{}: not data zone {} of this file system: {text}", place.path, place.id);
            return Err(ServeError::Device(text));
        }
        self.devices.add(disk);
        Ok(())
    }
}

//! Finds the data zones at the start: the store's table, the configured paths, the labels.

use std::fmt;

use env::{Disk, DiskOptions};
use label::{CopyError, Found, Why};
use mfs::{Cost, PagState, ZoneKind};
use proto::mds::{BLOCK_ZONE, BORROWED_ZONE, PagInfo};
use types::{Duration, PagId, Transno, Uuid};

use super::Space;
use super::new_zone::Seen;
use crate::config::PagPlace;
use crate::error::ServeError;
use crate::runtime::Runtime;

/// A device that does not answer for so long counts as absent at the start.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(5);

/// Why the device of a zone without a path is not used.
const NOT_NAMED: &str =
    "the cluster's file does not name its device: name it there, and run `redbud pag add` with it";

/// Why a device is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Problem {
    /// It is not there, cannot be read, or does not answer.
    Missing(String),
    /// Another device.
    Other(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing(text) | Problem::Other(text) => f.write_str(text),
        }
    }
}

impl Space {
    /// Joins the store's table of data zones with the configured paths, and opens the devices for
    /// their locks, each once. A device that is absent is no error: it may come, or clients may
    /// have it.
    ///
    /// # Errors
    /// A device is not the zone that the configuration says; the store's.
    pub async fn learn_zones(&self) -> Result<(), ServeError> {
        let runtime = &self.runtime;
        let (states, _) = runtime.mfs.run(Cost::READ, |txn| txn.space().pags()).await?;
        let (mut pags, mut devices) = (Vec::new(), Vec::<(Uuid, Vec<PagPlace>)>::new());
        for state in states {
            if state.kind == ZoneKind::Target {
                pags.push(self.learn_target(&state).await?);
                continue;
            }
            let kind = match state.kind {
                ZoneKind::Borrowed => BORROWED_ZONE,
                _ => BLOCK_ZONE,
            };
            let place = self.place_of(&state);
            if let Some(place) = &place {
                if place.uuid != state.uuid {
                    let text = format!(
                        "{}: the configuration gives data zone {} the UUID {}, the metadata {}",
                        place.path, place.id, place.uuid, state.uuid
                    );
                    return Err(ServeError::Device(text));
                }
                match devices.iter_mut().find(|(device, _)| *device == state.device) {
                    Some((_, places)) => places.push(place.clone()),
                    None => devices.push((state.device, vec![place.clone()])),
                }
            }
            self.states.borrow_mut().insert(state.id, (state.state, Transno::ZERO));
            let path = place.map_or_else(String::new, |place| place.path);
            let (id, uuid, device, blocks) = (state.id, state.uuid, state.device, state.total + 1);
            pags.push(PagInfo { id, uuid, device, blocks, kind, path });
        }
        for (_, places) in devices {
            let of_others = pags.iter().filter(|pag| pag.kind == BORROWED_ZONE);
            let others: Vec<PagId> = of_others.map(|pag| pag.id).collect();
            let is_borrowed = places.iter().all(|place| others.contains(&place.id));
            self.add_device(places, is_borrowed).await?;
        }
        *self.zones.borrow_mut() = pags;
        self.begin_targets().await?;
        Ok(())
    }

    /// Where the configuration says that a zone is.
    fn place_of(&self, state: &PagState) -> Option<PagPlace> {
        let config = &self.runtime.config;
        let named = config.pags.iter().find(|place| place.id == state.id).cloned();
        let elsewhere = config.elsewhere.iter().filter(|_| state.kind == ZoneKind::Borrowed);
        let place = |(id, path): &(PagId, String)| PagPlace {
            id: *id,
            uuid: state.uuid,
            path: path.clone(),
        };
        let found = named.or_else(|| elsewhere.map(place).find(|place| place.id == state.id));
        if found.is_none() && state.kind == ZoneKind::Borrowed {
            // Its device is absent, and so proves nothing about clients.
            let id = state.id;
            self.runtime.log(&format!(
                "the cluster's file names no device of data zone {id}, of which another server has \
                 lent blocks: name it in that server's part; until then what lies there fails"
            ));
            return Some(place(&(id, String::new())));
        }
        found
    }

    async fn add_device(&self, places: Vec<PagPlace>, is_borrowed: bool) -> Result<(), ServeError> {
        let (runtime, asked) = (self.runtime.clone(), places.clone());
        let opened = self.runtime.env.spawn_join(async move { open(&runtime, &asked).await });
        let path = &places[0].path;
        let found = match self.runtime.env.timeout_awake(LOOK_MAX, opened).await {
            Some(Ok((disk, found))) => {
                if let Some(damage) = &found.damage {
                    let text = format!("{path}: {damage}; `redbud fsck --repair` writes it anew");
                    self.runtime.log(&text);
                }
                Some(Ok((disk, found.label.fencing_epoch)))
            }
            Some(Err(Problem::Missing(why))) => Some(Err(why)),
            None => None,
            // The other server's configuration says where its zones are.
            Some(Err(Problem::Other(text))) if is_borrowed => Some(Err(text)),
            Some(Err(Problem::Other(text))) => {
                return Err(ServeError::Device(format!("{path}: {text}")));
            }
        };
        match is_borrowed {
            true => self.devices.add_borrowed(places, found),
            false => self.devices.add(places, found),
        }
        Ok(())
    }
}

/// Opens the device of these zones and checks its label.
pub(super) async fn open(runtime: &Runtime, places: &[PagPlace]) -> Result<(Disk, Found), Problem> {
    if places[0].path.is_empty() {
        return Err(Problem::Missing(NOT_NAMED.into()));
    }
    let opened = runtime.env.open_disk(&places[0].path, DiskOptions::default()).await;
    let disk = opened.map_err(|error| Problem::Missing(error.to_string()))?;
    let found = check_label(runtime, &disk, places).await?;
    Ok((disk, found))
}

/// The label of the device at `path`, whatever that is.
///
/// # Errors
/// It is not there, cannot be read, or does not answer.
pub(super) async fn label_at(runtime: &Runtime, path: &str) -> Result<Seen, String> {
    let (env, at) = (runtime.env.clone(), path.to_owned());
    let look = runtime.env.spawn_join(async move {
        let disk = env.open_disk(&at, DiskOptions::default()).await;
        Ok(label::read(&disk.map_err(|error| error.to_string())?).await)
    });
    let late = || Err(format!("it has not answered for {} s", LOOK_MAX.as_secs()));
    runtime.env.timeout_awake(LOOK_MAX, look).await.unwrap_or_else(late)
}

/// Does the device have the expected zones? Its label.
pub(super) async fn check_label(
    runtime: &Runtime,
    disk: &Disk,
    places: &[PagPlace],
) -> Result<Found, Problem> {
    let found = label::read(disk).await.map_err(|none| match &none.why {
        Why::Damaged(CopyError::Unreadable(_)) => Problem::Missing(none.to_string()),
        _ => Problem::Other(format!("not data zone {} of this file system: {none}", places[0].id)),
    })?;
    for PagPlace { id, uuid, .. } in places {
        let slice = found.label.expect_data(runtime.identity.uuid, *id, Some(*uuid));
        slice.map_err(|text| {
            Problem::Other(format!("not data zone {id} of this file system: {text}"))
        })?;
    }
    Ok(found)
}

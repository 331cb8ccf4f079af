//! Adds a data zone while the file system is served.
//!
//! The server labels the device, enters the zone in the table, and tells the clients. A label says
//! which zone the device is, so each step can be done again:
//!
//! | the label of the device | the table | what `add` does |
//! |---|---|---|
//! | none; the device is empty | – | labels the device with the next number, enters the zone |
//! | none, or of another file system | – | refuses, unless the caller says that it may be overwritten |
//! | of this file system, a zone | has neither its number nor its UUID | enters the zone: an earlier `add` was cut off |
//! | of this file system, a zone | has this zone, and the server has its device | refuses: it is a zone already |
//! | of this file system, a zone | has this zone, and the server knows no path of it, or misses it there | takes this path |
//! | of this file system, a zone | has another zone of its number | refuses, unless it may be overwritten |
//! | of this file system, metadata or journal | – | refuses |
//!
//! Invariants:
//! - one device is added at a time;
//! - clients learn of a zone when its record is durable, so no number that a client knows is ever
//!   given to another device;
//! - a device that somebody else uses is not written.

use std::cell::Cell;
use std::io::ErrorKind;

use env::{Disk, DiskOptions, Env};
use label::{Contents, Found, Label, NoLabel};
use mfs::new_device::{Owner, ZONE_MIN, content_of, label_device, whose};
use mfs::{Cost, PagFormat, PagState, StoreError};
use proto::mds::{BLOCK_ZONE, PagInfo};
use types::limits::PAGS_MAX;
use types::units::human_size;
use types::{Duration, Fault, PagId, Uuid};

use super::new_target::TARGET_PREFIX;
use super::{Space, zones};
use crate::config::PagPlace;

/// How long a device may take to be labelled.
const LABEL_MAX: Duration = Duration::from_secs(8);

/// A zone of the table, by number and UUIDs.
type Known = PagState;

/// What a label says about a device that shall become a zone.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Standing {
    /// It is this zone, and perhaps others.
    Zone(PagId),
    /// An earlier `add` was cut off before the table had it.
    Unfinished(PagFormat),
    /// It is something else. Why, and whether it may be overwritten.
    Other(String, bool),
}

/// See the table of the module.
fn standing(label: &Label, fs: Uuid, table: &[Known]) -> Standing {
    if label.fs_uuid != fs {
        return Standing::Other(format!("formatted already: {}", whose(label)), true);
    }
    if label.contents() != Contents::Data {
        return Standing::Other(whose(label), false);
    }
    let known = |uuid: Uuid| table.iter().find(|zone| zone.uuid == uuid);
    if let Some(zone) = label.slices.iter().find_map(|slice| known(slice.uuid)) {
        return Standing::Zone(zone.id);
    }
    let taken = |id: PagId| table.iter().any(|zone| zone.id == id);
    match (
        &label.slices[..],
        label.slices.iter().filter_map(|slice| slice.pag()).find(|&id| taken(id)),
    ) {
        ([slice], None) => match slice.pag() {
            Some(id) => Standing::Unfinished(PagFormat {
                id,
                uuid: slice.uuid,
                device: label.device_uuid,
                start: slice.start,
                blocks: slice.blocks,
            }),
            None => Standing::Other(whose(label), false),
        },
        (_, Some(id)) => Standing::Other(
            format!("its label says data zone {id} of this file system, which is another device"),
            true,
        ),
        (_, None) => Standing::Other(
            "its label has several data zones of this file system that the metadata do not have: \
             run `redbud fsck`"
                .into(),
            false,
        ),
    }
}

/// The number of a new zone: the one that the caller asks for, or the next one.
///
/// # Errors
/// Another zone has the number, or there are as many zones as there may be.
pub(super) fn new_number(table: &[Known], asked: Option<PagId>) -> Result<PagId, String> {
    let full =
        || format!("the file system has {PAGS_MAX} data zones: there is no room for another one");
    let Some(id) = asked else { return next_number(table).ok_or_else(full) };
    if usize::from(id.0) >= PAGS_MAX {
        return Err(format!("{id} is no number of a data zone: they end at {}", PAGS_MAX - 1));
    }
    match table.iter().any(|zone| zone.id == id) {
        true => Err(format!("data zone {id} is another device or target")),
        false => Ok(id),
    }
}

/// The number of the next zone; `None`: there are as many as there may be.
fn next_number(table: &[Known]) -> Option<PagId> {
    let end = PAGS_MAX as u16;
    let next = table.iter().map(|zone| zone.id.0 + 1).max().unwrap_or(0);
    let is_free = |id: &u16| table.iter().all(|zone| zone.id.0 != *id);
    if next < end { Some(PagId(next)) } else { (0..end).find(is_free).map(PagId) }
}

/// Resets the flag at the end, also if the caller is gone.
pub(super) struct Adding<'a>(pub(super) &'a Cell<bool>);

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// A zone is being entered: until then the list of zones is not complete.
pub(super) struct Entering<'a>(&'a Space);

impl Entering<'_> {
    /// From now on; several may be entered at a time.
    pub(super) fn begin(space: &Space) -> Entering<'_> {
        space.entering.set(space.entering.get() + 1);
        Entering(space)
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.0.entering.set(self.0.entering.get() - 1);
        self.0.entered.notify_all();
    }
}

/// What `add` needs to know of the file system.
#[derive(Clone)]
struct Wish {
    path: String,
    overwrite: bool,
    next: PagId,
    fs: Uuid,
    fs_name: String,
    fencing_epoch: types::Epoch,
}

impl Space {
    /// Makes the device at `path` a data zone, or takes the object target at `ost:HOST:PORT`.
    /// `overwrite`: also if the device has content. `number`: that of the zone, if it is new.
    ///
    /// # Errors
    /// What is in the way, with the path, and what to do.
    pub async fn add_zone(
        &self,
        path: &str,
        overwrite: bool,
        number: Option<PagId>,
    ) -> Result<PagId, String> {
        if let Some(address) = path.strip_prefix(TARGET_PREFIX) {
            return self.add_target(address, number).await;
        }
        if self.adding.replace(true) {
            return Err("another device is being added: try again when that is done".into());
        }
        let _adding = Adding(&self.adding);
        let (table, _) = self.pags().await?;
        let next = new_number(&table, number)?;
        let runtime = &self.runtime;
        let seen = zones::label_at(runtime, path).await.map_err(|why| format!("{path}: {why}"))?;
        let standing = match &seen {
            Ok(found) => Some(standing(&found.label, runtime.identity.uuid, &table)),
            Err(_) => None,
        };
        let wish = Wish {
            path: path.to_owned(),
            overwrite,
            next,
            fs: runtime.identity.uuid,
            fs_name: runtime.identity.name.clone(),
            fencing_epoch: self.devices.label_epoch(),
        };
        let zone = match standing {
            Some(Standing::Zone(id)) => return self.take_path(id, path).await,
            Some(Standing::Other(what, may)) if !may || !overwrite => {
                let remedy = match may {
                    true => "; --force makes it a data zone, and its content is lost",
                    false => "",
                };
                return Err(format!("{path}: {what}{remedy}"));
            }
            // The caller has given it another number, as it knows the zones of all servers.
            Some(Standing::Unfinished(zone)) if number.is_some_and(|number| number != zone.id) => {
                return Err(format!(
                    "{path}: its label says data zone {} of this file system, which is another \
                     metadata server's, or was never added: if no server has it (`redbud pag list`), \
                     clear its beginning and its end",
                    zone.id
                ));
            }
            Some(Standing::Unfinished(zone)) => {
                self.in_time(finish(self.env(), wish, zone)).await?
            }
            Some(Standing::Other(..)) | None => self.in_time(prepare(self.env(), wish)).await?,
        };
        self.enter(zone, path).await
    }

    fn env(&self) -> Env {
        self.runtime.env.clone()
    }

    /// Runs `work`, which touches the device, for a bounded time.
    async fn in_time(
        &self,
        work: impl Future<Output = Result<PagFormat, String>> + 'static,
    ) -> Result<PagFormat, String> {
        let work = self.runtime.env.spawn_join(work);
        let late = || {
            let seconds = LABEL_MAX.as_secs();
            Err(format!("the device has not answered for {seconds} s; add it again when it does"))
        };
        self.runtime.env.timeout_awake(LABEL_MAX, work).await.unwrap_or_else(late)
    }

    /// The table of data zones.
    pub(super) async fn pags(&self) -> Result<(Vec<PagState>, types::Transno), String> {
        let table = self.runtime.mfs.run(Cost::READ, |txn| txn.space().pags()).await;
        table.map_err(|error| {
            self.runtime.note_failure(&error, "reading the table of data zones");
            error.to_string()
        })
    }

    /// Enters a zone whose device is labelled, and tells the clients.
    async fn enter(&self, zone: PagFormat, path: &str) -> Result<PagId, String> {
        let runtime = &self.runtime;
        let place = PagPlace { id: zone.id, uuid: zone.uuid, path: path.to_owned() };
        let opened = zones::open(runtime, std::slice::from_ref(&place)).await;
        let (disk, found) = opened.map_err(|problem| format!("{path}: {problem}"))?;
        let entering = Entering::begin(self);
        let entered = runtime.mfs.run(Cost::SMALL, |txn| txn.space().add_pag(&zone)).await;
        let (_, transno) = entered.map_err(|error| self.not_entered(zone.id, path, &error))?;
        let durable = runtime.wait_durable(transno).await;
        durable.map_err(|error| format!("{error}; add {path} again when the server is back"))?;
        let PagFormat { id, uuid, device, blocks, .. } = zone;
        let info = PagInfo { id, uuid, device, blocks, kind: BLOCK_ZONE, path: path.to_owned() };
        self.zones.borrow_mut().push(info);
        self.devices.add(vec![place], Some(Ok((disk, found.label.fencing_epoch))));
        drop(entering);
        runtime.log(&format!("{path} is data zone {id} now, with {blocks} blocks"));
        self.announce_zones();
        self.announce_return();
        Ok(id)
    }

    fn not_entered(&self, id: PagId, path: &str, error: &StoreError) -> String {
        self.runtime.note_failure(error, "entering a data zone");
        match error {
            StoreError::Fault(Fault::Exists) => format!(
                "{path}: its label says data zone {id}, of which the metadata have space but no \
                 record: run `redbud fsck --repair`"
            ),
            StoreError::Fault(Fault::NoSpace) => {
                format!("{path}: the metadata zone is full; remove files, and add the device again")
            }
            error => format!("{path}: {error}"),
        }
    }

    /// A device that is a zone already: if the server misses that zone, it takes this path for it.
    async fn take_path(&self, id: PagId, path: &str) -> Result<PagId, String> {
        if self.devices.is_open(id) {
            let at = self.path(id);
            let same =
                if at == path { String::new() } else { format!(", which is in use as {at}") };
            return Err(format!("{path}: it is data zone {id} of this file system already{same}"));
        }
        let zones = self.zones();
        let Some(device) = zones.iter().find(|zone| zone.id == id).map(|zone| zone.device) else {
            return Err(format!("{path}: the server does not know data zone {id}: start it anew"));
        };
        let place = |zone: &PagInfo| PagPlace { id: zone.id, uuid: zone.uuid, path: path.into() };
        let on_it = zones.iter().filter(|zone| zone.device == device);
        let places: Vec<PagPlace> = on_it.map(place).collect();
        let opened = zones::open(&self.runtime, &places).await;
        let (disk, found) = opened.map_err(|problem| format!("{path}: {problem}"))?;
        self.devices.replace(places, (disk, found.label.fencing_epoch));
        for zone in self.zones.borrow_mut().iter_mut().filter(|zone| zone.device == device) {
            path.clone_into(&mut zone.path);
        }
        self.runtime.log(&format!("data zone {id} is at {path} from now on"));
        self.announce_zones();
        Ok(id)
    }
}

/// Opens the device so that nobody else has it.
async fn open_alone(env: &Env, path: &str) -> Result<Disk, String> {
    let opened = env.open_disk(path, DiskOptions { write: true, exclusive: true }).await;
    let disk = opened.map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy => {
            format!("{error}; it is mounted or in use: end that, or name another device")
        }
        _ => error.to_string(),
    })?;
    if disk.size() < ZONE_MIN {
        let (size, least) = (human_size(disk.size()), human_size(ZONE_MIN));
        return Err(format!("{path}: {size} is too small: make it at least {least}"));
    }
    Ok(disk)
}

/// Labels a device.
async fn prepare(env: Env, wish: Wish) -> Result<PagFormat, String> {
    let Wish { path, overwrite, next, fs, fs_name, fencing_epoch } = wish;
    let disk = open_alone(&env, &path).await?;
    if !overwrite && let Some(what) = content_of(&disk).await.map_err(|error| error.to_string())? {
        return Err(format!(
            "{path}: {what}; --force makes it a data zone, and its content is lost"
        ));
    }
    let owner = Owner { uuid: fs, name: &fs_name, fencing_epoch };
    let zones =
        label_device(&env, &disk, owner, &[next]).await.map_err(|error| error.to_string())?;
    zones.first().copied().ok_or_else(|| format!("{path}: it has no data zone"))
}

/// Completes the label of a device whose `add` was cut off.
async fn finish(env: Env, wish: Wish, zone: PagFormat) -> Result<PagFormat, String> {
    let disk = open_alone(&env, &wish.path).await?;
    let found = label::read(&disk).await.map_err(|none| format!("{}: {none}", wish.path))?;
    if standing(&found.label, wish.fs, &[]) != Standing::Unfinished(zone) {
        return Err(format!("{}: its label has changed meanwhile: try again", wish.path));
    }
    if found.damage.is_some() || found.label.fencing_epoch < wish.fencing_epoch {
        let epoch = found.label.fencing_epoch.max(wish.fencing_epoch);
        let written = label::update(&disk, &found, |label| label.fencing_epoch = epoch).await;
        written.map_err(|error| error.to_string())?;
    }
    Ok(zone)
}

/// What is at the beginning and end of a device, if it answers.
pub(super) type Seen = Result<Found, NoLabel>;

#[cfg(test)]
mod tests {
    use label::{Slice, SliceKind};
    use mfs::PagUse;

    use super::*;

    const FS: Uuid = Uuid([1; 16]);

    fn known(id: u16) -> Known {
        let (uuid, device) = (Uuid([id as u8 + 10; 16]), Uuid([99; 16]));
        let (start, total, free, freed) = (0, 9, 9, 0);
        PagState {
            id: PagId(id),
            uuid,
            device,
            start,
            total,
            state: PagUse::InService,
            kind: mfs::ZoneKind::Blocks,
            free,
            freed,
        }
    }

    fn label(fs: Uuid, ids: &[(u16, u8)]) -> Label {
        let slice = |(n, &(id, uuid)): (usize, &(u16, u8))| Slice {
            kind: SliceKind::Data { pag: PagId(id) },
            start: n as u64 * 5000,
            blocks: 5000,
            uuid: Uuid([uuid; 16]),
        };
        Label::new(fs, "fs", Uuid([5; 16]), 20_000, ids.iter().enumerate().map(slice).collect())
    }

    #[test]
    fn label_and_table_decide_what_becomes_of_a_device() {
        let table = [known(0), known(1)];
        let of = |label: &Label| standing(label, FS, &table);
        assert!(matches!(of(&label(Uuid([2; 16]), &[(0, 10)])), Standing::Other(_, true)));
        assert_eq!(of(&label(FS, &[(1, 11)])), Standing::Zone(PagId(1)));
        assert_eq!(of(&label(FS, &[(7, 12), (1, 11)])), Standing::Zone(PagId(1)));
        // A cut-off `add`: neither its number nor its UUID is in the table.
        let Standing::Unfinished(zone) = of(&label(FS, &[(2, 12)])) else { panic!("unfinished") };
        assert_eq!((zone.id, zone.uuid, zone.blocks), (PagId(2), Uuid([12; 16]), 5000));
        assert_eq!(zone.device, Uuid([5; 16]));
        // Another device was added with its number.
        assert!(matches!(of(&label(FS, &[(1, 77)])), Standing::Other(_, true)));
        assert!(matches!(of(&label(FS, &[(5, 70), (6, 71)])), Standing::Other(_, false)));
        let kind = SliceKind::Metadata { shard: 0, journal: None };
        let metadata = Label::single(FS, "fs", Uuid([5; 16]), 20_000, kind);
        assert!(matches!(of(&metadata), Standing::Other(_, false)));
    }

    #[test]
    fn number_of_a_zone_is_above_all_others_and_never_taken() {
        let asked = |id| new_number(&[known(3), known(1)], id);
        assert_eq!((asked(None), asked(Some(PagId(2)))), (Ok(PagId(4)), Ok(PagId(2))));
        for id in [1, PAGS_MAX as u16] {
            assert!(asked(Some(PagId(id))).is_err(), "{id}");
        }
        assert_eq!(next_number(&[]), Some(PagId(0)));
        assert_eq!(next_number(&[known(3), known(1)]), Some(PagId(4)));
        let last = Known { id: PagId(PAGS_MAX as u16 - 1), ..known(0) };
        assert_eq!(next_number(&[last, known(0)]), Some(PagId(1)));
        let all = |id: usize| Known { id: PagId(id as u16), ..known(0) };
        assert_eq!(next_number(&(0..PAGS_MAX).map(all).collect::<Vec<_>>()), None);
    }
}

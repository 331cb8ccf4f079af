//! The data devices of this host: the server uses them for byte locks, and flushes what evicted
//! clients wrote.
//!
//! A device is *absent* while it is not there, cannot be read, or is not the zone. The server looks
//! at an absent device each [`LOOK_ABSENT`], and at the others each [`LOOK_PRESENT`]. A look ends
//! after [`LOOK_MAX`]; after each in a row that had no answer the pause doubles, up to
//! [`LOOK_SILENT`].
//!
//! Invariants:
//! - nobody waits for a flush for longer than [`EVICTION_FLUSH`], and not at all for a device that
//!   still owes one (a *suspect*);
//! - once a suspect answers, it is flushed once more, for evictions that did not wait for it; so is
//!   a device that was absent;
//! - a device that does not answer may still complete older writes. If it is open, that shows when
//!   it owes a flush. If it was absent, or silent when the server started, its looks show it;
//! - for another [`SETTLING`] it may still complete older writes: a flush covers what a device has
//!   completed, and says nothing of writes in flight;
//! - a look that is answered late has the device looked at again at once;
//! - a free lock proves that a client is dead only if no device is absent: what its process had in
//!   flight to that one is unknown. It must be free on the device that is at the path now, too: a
//!   client that lives locks a device anew when that has come back as another one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::{Disk, DiskOptions, LockScope};
use label::Found;
use mfs::StoreError;
use types::limits::EVICTION_FLUSH;
use types::{ClientId, Duration, Epoch, Instant, PagId};

use super::zones::{LOOK_MAX, Problem};
use super::{takeover, zones};
use crate::config::PagPlace;
use crate::runtime::Runtime;

/// A device that answers, and does not complete its older writes within this time, counts as
/// stalled.
pub const SETTLING: Duration = EVICTION_FLUSH;
/// Pause between two looks at an absent device.
const LOOK_ABSENT: Duration = Duration::from_secs(1);
/// Pause between two looks at a device that is there.
const LOOK_PRESENT: Duration = Duration::from_secs(10);
/// Longest pause between two looks at a device that does not answer: what a look has asked may be
/// pending for ever.
const LOOK_SILENT: Duration = Duration::from_secs(160);
/// How often a look reads the label of an open device before that counts as absent, and the pause
/// in between.
const TRIES: u32 = 3;
const TRY_PAUSE: Duration = Duration::from_millis(20);
/// How long the server waits for a device that shall prove that a client is dead.
const PROOF: Duration = Duration::from_secs(1);

/// Why a device is not used.
#[derive(Clone)]
struct Absence {
    since: Instant,
    why: String,
}

/// An open device, with the fencing epoch in its label, or why there is none.
pub(super) type Look = Result<(Disk, Epoch), String>;

/// A data device of this host.
struct DataDevice {
    /// Its path on this host.
    path: String,
    /// The zones that lie on it.
    places: Vec<PagPlace>,
    /// It has zones of other servers only: the fencing epoch in its label is theirs.
    is_borrowed: bool,
    /// `None` while it is absent.
    disk: RefCell<Option<Disk>>,
    absence: RefCell<Option<Absence>>,
    looking: Cell<bool>,
    looked: Cell<Instant>,
    /// Looks in a row that had no answer, that of the start included.
    unanswered: Cell<u32>,
    /// A flush failed, or a look was answered late: it is looked at soon.
    doubtful: Cell<bool>,
    /// The fencing epoch in its label, as last read.
    fencing_epoch: Cell<Epoch>,
    /// A write of its label is under way.
    raising: Cell<bool>,
    /// An eviction went on without waiting for its flush.
    suspect: Cell<bool>,
    /// When it answered after that, or after looks that had no answer.
    answered: Cell<Option<Instant>>,
}

/// A data device, for the status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceStatus {
    /// "sound", "suspect", "absent" or "not open".
    pub state: &'static str,
    /// For how long it has been absent.
    pub absent: Duration,
    /// Why it is absent.
    pub why: String,
}

/// See the module.
pub struct DataDevices {
    runtime: Rc<Runtime>,
    all: RefCell<Vec<Rc<DataDevice>>>,
    /// What the labels must have.
    fencing_epoch: Cell<Epoch>,
}

impl DataDevices {
    /// No devices.
    pub fn new(runtime: Rc<Runtime>) -> DataDevices {
        DataDevices { runtime, all: RefCell::default(), fencing_epoch: Cell::default() }
    }

    /// A further device, as the first look found it; `None`: that had no answer.
    pub fn add(&self, places: Vec<PagPlace>, found: Option<Look>) {
        self.add_device((places, false), found);
    }

    /// The same, of a device that has zones of other servers only.
    pub fn add_borrowed(&self, places: Vec<PagPlace>, found: Option<Look>) {
        self.add_device((places, true), found);
    }

    fn add_device(&self, (places, is_borrowed): (Vec<PagPlace>, bool), found: Option<Look>) {
        let now = self.runtime.env.now();
        let device = DataDevice {
            path: places[0].path.clone(),
            places,
            is_borrowed,
            disk: RefCell::default(),
            absence: RefCell::default(),
            looking: Cell::new(false),
            looked: Cell::new(now),
            unanswered: Cell::new(u32::from(found.is_none())),
            doubtful: Cell::new(false),
            fencing_epoch: Cell::default(),
            raising: Cell::new(false),
            suspect: Cell::new(false),
            answered: Cell::new(None),
        };
        match found.unwrap_or_else(|| Err(format!("it {}", no_answer(LOOK_MAX)))) {
            Ok((disk, epoch)) => {
                device.fencing_epoch.set(epoch);
                *device.disk.borrow_mut() = Some(disk);
            }
            Err(why) => device.set_absent(&self.runtime, why),
        }
        self.all.borrow_mut().push(Rc::new(device));
    }

    /// The device of these zones is this one from now on, not the one that was missed.
    pub fn replace(&self, places: Vec<PagPlace>, found: (Disk, Epoch)) {
        let is_of = |device: &Rc<DataDevice>| {
            device.places.iter().any(|place| places.iter().any(|new| new.id == place.id))
        };
        let is_borrowed = self.all.borrow().iter().any(|it| is_of(it) && it.is_borrowed);
        self.all.borrow_mut().retain(|device| !is_of(device));
        self.add_device((places, is_borrowed), Some(Ok(found)));
    }

    /// The fencing epoch that a new label gets.
    pub fn label_epoch(&self) -> Epoch {
        self.fencing_epoch.get()
    }

    /// Why this server must not serve: a server of a later epoch has taken over.
    pub fn superseded(&self) -> Option<String> {
        self.all.borrow().iter().find_map(|device| device.superseded(&self.runtime))
    }

    /// The highest fencing epoch in their labels, as last read.
    pub fn fencing_epoch(&self) -> Epoch {
        let all = self.all.borrow();
        let own = all.iter().filter(|device| !device.is_borrowed);
        own.map(|device| device.fencing_epoch.get()).max().unwrap_or_default()
    }

    /// The labels shall have this fencing epoch. Raises those that are behind.
    pub async fn set_fencing_epoch(&self, epoch: Epoch) {
        self.fencing_epoch.set(epoch);
        let open = |device: &&Rc<DataDevice>| device.disk.borrow().is_some();
        let all: Vec<_> = self.all.borrow().iter().filter(open).cloned().collect();
        let begun = all.into_iter().map(|device| {
            let runtime = self.runtime.clone();
            self.runtime.env.spawn_join(async move { device.raise(&runtime, epoch).await })
        });
        for raised in begun.collect::<Vec<_>>() {
            raised.await;
        }
    }

    /// The state of the device of a zone.
    pub fn state(&self, id: PagId) -> DeviceStatus {
        let all = self.all.borrow();
        let Some(device) =
            all.iter().find(|device| device.places.iter().any(|place| place.id == id))
        else {
            return DeviceStatus { state: "not open", absent: Duration::ZERO, why: String::new() };
        };
        if let Some(Absence { since, why }) = device.absence.borrow().clone() {
            let absent = self.runtime.env.now().since(since);
            return DeviceStatus { state: "absent", absent, why };
        }
        let state = if device.suspect.get() { "suspect" } else { "sound" };
        DeviceStatus { state, absent: Duration::ZERO, why: String::new() }
    }

    /// Is the device of this zone open?
    pub fn is_open(&self, id: PagId) -> bool {
        let all = self.all.borrow();
        let of = |device: &&Rc<DataDevice>| device.places.iter().any(|place| place.id == id);
        all.iter().find(of).is_some_and(|device| device.disk.borrow().is_some())
    }

    /// Begins the looks that are due.
    pub fn look(&self) {
        let now = self.runtime.env.now();
        for device in &*self.all.borrow() {
            let due = device.doubtful.get() || now.since(device.looked.get()) >= device.pause();
            if due && !device.looking.replace(true) {
                device.doubtful.set(false);
                let (runtime, device) = (self.runtime.clone(), device.clone());
                let epoch = self.fencing_epoch.get();
                self.runtime.env.spawn(async move {
                    look(&runtime, &device).await;
                    if device.disk.borrow().is_some() && device.unanswered.get() == 0 {
                        device.raise(&runtime, epoch).await;
                    }
                    if let Some(text) = device.superseded(&runtime) {
                        let error = StoreError::Poisoned(text.into());
                        runtime.note_failure(&error, "looking at data devices");
                    }
                    device.looked.set(runtime.env.now());
                    device.looking.set(false);
                });
            }
        }
    }

    /// Does a device stand still, as far as is known, or did it a moment ago? At any moment it may
    /// complete what evicted clients had submitted.
    pub fn may_write_late(&self) -> bool {
        let now = self.runtime.env.now();
        let settles = |answered: Instant| now.since(answered) < SETTLING;
        let late = |device: &Rc<DataDevice>| {
            device.suspect.get()
                || device.is_absent_and_silent()
                || device.answered.get().is_some_and(settles)
        };
        self.all.borrow().iter().any(late)
    }

    /// Is the lock that `client` takes on the data devices certainly free on this host?
    pub async fn is_lock_free(&self, client: ClientId) -> bool {
        let devices = self.all.borrow().clone();
        let mut asked = Vec::new();
        for device in devices {
            let disk = device.disk.borrow().clone();
            // Nothing is known of what the process has in flight to an absent device.
            let Some(disk) = disk else { return false };
            if !disk.byte_is_free(client.0).await.unwrap_or(false) {
                return false;
            }
            asked.push(device);
        }
        for device in &asked {
            if !self.is_free_at_path(device.path.clone(), client).await {
                return false;
            }
        }
        !asked.is_empty()
    }

    /// Is the lock free on the device that is at this path now?
    async fn is_free_at_path(&self, path: String, client: ClientId) -> bool {
        let env = self.runtime.env.clone();
        let asked = self.runtime.env.spawn_join(async move {
            let disk = env.open_disk(&path, DiskOptions::default()).await.ok()?;
            disk.byte_is_free(client.0).await.ok()
        });
        self.runtime.env.timeout(PROOF, asked).await.flatten() == Some(true)
    }

    /// Where `client` holds its lock on a device of this host; `None`: it does not.
    pub async fn lock_held_at(&self, client: ClientId) -> Option<LockScope> {
        let devices = self.all.borrow().clone();
        for device in devices {
            let disk = device.disk.borrow().clone();
            if let Some(disk) = disk
                && !disk.byte_is_free(client.0).await.unwrap_or(true)
            {
                return disk.lock_scope();
            }
        }
        None
    }

    /// Does this server see the locks of `scope`?
    pub fn sees(&self, scope: LockScope) -> bool {
        let is_there = |disk: &Option<Disk>| {
            disk.as_ref().is_some_and(|disk| disk.lock_scope() == Some(scope))
        };
        self.all.borrow().iter().any(|device| is_there(&device.disk.borrow()))
    }

    /// Flushes all devices at the same time: other clients can read what `clients` wrote in place,
    /// so a power cut must not lose it. The log names devices for which the server cannot guarantee
    /// that.
    pub async fn flush_for(&self, clients: &[ClientId]) {
        let (runtime, devices) = (&self.runtime, self.all.borrow().clone());
        let mut flushes = Vec::new();
        for device in devices {
            if device.suspect.get() {
                warn(runtime, clients, &device, "still owes an earlier flush");
                continue;
            }
            let disk = device.disk.borrow().clone();
            let Some(disk) = disk else {
                warn(runtime, clients, &device, "is absent");
                continue;
            };
            let (this, asked) = (runtime.clone(), device.clone());
            let flush = runtime.env.spawn_join(async move { flush(&this, &asked, &disk).await });
            flushes.push((device, flush));
        }
        let env = &runtime.env;
        let until = env.now() + EVICTION_FLUSH;
        for (device, mut flush) in flushes {
            match env.timeout(until.since(env.now()), &mut flush).await {
                Some(Ok(())) => {}
                Some(Err(text)) => {
                    device.doubtful.set(true);
                    warn(runtime, clients, &device, &text);
                }
                None => {
                    device.suspect.set(true);
                    let text = format!("has not flushed within {} s", EVICTION_FLUSH.as_secs());
                    warn(runtime, clients, &device, &text);
                }
            }
        }
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let now = self.runtime.env.now();
        for device in &*self.all.borrow() {
            let answered = device.answered.get();
            assert!(answered.is_none_or(|at| at <= now), "a device has answered in the future");
            let (open, absent) =
                (device.disk.borrow().is_some(), device.absence.borrow().is_some());
            assert_ne!(open, absent, "{} is open and absent", device.path);
        }
    }
}

impl DataDevice {
    /// Its zones, for messages.
    fn zone_names(&self) -> String {
        let numbers: Vec<String> = self.places.iter().map(|place| place.id.to_string()).collect();
        let word = if numbers.len() == 1 { "data zone" } else { "data zones" };
        format!("{word} {}", numbers.join(", "))
    }

    /// Is it absent because it does not answer, as far as the last look said?
    fn is_absent_and_silent(&self) -> bool {
        self.disk.borrow().is_none() && self.unanswered.get() > 0
    }

    /// Time from one look to the next.
    fn pause(&self) -> Duration {
        let absent = self.absence.borrow().is_some();
        let pause = if absent { LOOK_ABSENT } else { LOOK_PRESENT };
        let doubled = 2u32.saturating_pow(self.unanswered.get());
        pause.checked_mul(doubled).map_or(LOOK_SILENT, |pause| pause.min(LOOK_SILENT))
    }

    /// Why its label says that this server must not serve.
    fn superseded(&self, runtime: &Runtime) -> Option<String> {
        if self.is_borrowed {
            return None;
        }
        let (found, own) = (self.fencing_epoch.get(), runtime.identity.epoch);
        (found > own).then(|| {
            format!(
                "{}: its label has fencing epoch {found}, this server has epoch {own}: another \
                 server has taken over, or these metadata are an old copy",
                self.path
            )
        })
    }

    /// Raises the fencing epoch in its label, if that is behind. The log says if that fails.
    async fn raise(self: &Rc<DataDevice>, runtime: &Rc<Runtime>, epoch: Epoch) {
        let is_done = self.is_borrowed || self.fencing_epoch.get() >= epoch;
        if is_done || self.raising.replace(true) {
            return;
        }
        let (this, device) = (runtime.clone(), self.clone());
        let raised = runtime.env.spawn_join(async move {
            let raised = takeover::raise(&this, &device.path, epoch).await;
            device.raising.set(false);
            raised
        });
        let late = || Err(format!("it {}", no_answer(LOOK_MAX)));
        match runtime.env.timeout(LOOK_MAX, raised).await.unwrap_or_else(late) {
            Ok(()) => self.fencing_epoch.set(epoch),
            Err(why) => runtime.log(&format!(
                "{}: its label cannot get fencing epoch {epoch}: {why}; clients of an earlier \
                 server are not stopped there",
                self.path
            )),
        }
    }

    /// It cannot be used any more. The log says so, once for each reason.
    fn set_absent(&self, runtime: &Runtime, why: String) {
        let (zones, path) = (self.zone_names(), &self.path);
        let before = self.absence.borrow().clone();
        if before.as_ref().is_none_or(|before| before.why != why) {
            runtime.log(&format!(
                "{zones} at {path} is absent on this host: {why}; it is used again when it \
                 is back at that path"
            ));
        }
        let since = before.map_or(runtime.env.now(), |before| before.since);
        *self.disk.borrow_mut() = None;
        *self.absence.borrow_mut() = Some(Absence { since, why });
    }
}

/// Looks whether the device is there and is the zone.
async fn look(runtime: &Rc<Runtime>, device: &Rc<DataDevice>) {
    let open = device.disk.borrow().clone();
    let seen = answer_in_time(runtime, device, open.clone()).await;
    let before = device.unanswered.get();
    let unanswered = if seen.is_some() { 0 } else { before.saturating_add(1) };
    device.unanswered.set(unanswered);
    if before > 0 && unanswered == 0 {
        device.answered.set(Some(runtime.env.now()));
    }
    match (seen, open) {
        (Some(Ok((_, label))), Some(_)) => device.fencing_epoch.set(label.label.fencing_epoch),
        (Some(Ok((disk, label))), None) => {
            device.fencing_epoch.set(label.label.fencing_epoch);
            found(runtime, device, disk).await;
        }
        (Some(Err(problem)), _) => device.set_absent(runtime, problem.to_string()),
        (None, Some(_)) if unanswered == 1 => {
            runtime.log(&format!("data device {}: its label {}", device.path, no_answer(LOOK_MAX)))
        }
        (None, Some(_)) => {}
        (None, None) => device.set_absent(runtime, format!("it {}", no_answer(LOOK_MAX))),
    }
}

/// What a look finds; `None`: nothing within [`LOOK_MAX`].
async fn answer_in_time(
    runtime: &Rc<Runtime>,
    device: &Rc<DataDevice>,
    open: Option<Disk>,
) -> Option<Result<(Disk, Found), Problem>> {
    let late = Rc::new(Cell::new(false));
    let (this, asked, is_late) = (runtime.clone(), device.clone(), late.clone());
    let seen = runtime.env.spawn_join(async move {
        let seen = see(&this, &asked, open.as_ref()).await;
        if is_late.get() {
            asked.doubtful.set(true);
        }
        seen
    });
    let seen = runtime.env.timeout_awake(LOOK_MAX, seen).await;
    late.set(seen.is_none());
    seen
}

/// The label of an open device, or of the one that is at the path.
async fn see(
    runtime: &Runtime,
    device: &DataDevice,
    open: Option<&Disk>,
) -> Result<(Disk, Found), Problem> {
    let Some(disk) = open else { return zones::open(runtime, &device.places).await };
    let mut found = zones::check_label(runtime, disk, &device.places).await;
    for _ in 1..TRIES {
        if found.is_err() {
            runtime.env.sleep(TRY_PAUSE).await;
            found = zones::check_label(runtime, disk, &device.places).await;
        }
    }
    Ok((disk.clone(), found?))
}

fn no_answer(time: Duration) -> String {
    format!("has not answered for {} s", time.as_secs())
}

/// An absent device is back. It is flushed for evictions that went on without it.
async fn found(runtime: &Rc<Runtime>, device: &Rc<DataDevice>, disk: Disk) {
    let (zones, path) = (device.zone_names(), &device.path);
    runtime.log(&format!("{zones} at {path} is back"));
    *device.disk.borrow_mut() = Some(disk.clone());
    *device.absence.borrow_mut() = None;
    let (this, asked) = (runtime.clone(), device.clone());
    let flush = runtime.env.spawn_join(async move {
        // A suspect owes the flush of how it was open before; this one says nothing of that.
        match asked.suspect.get() {
            true => disk.flush().await.map_err(|error| format!("cannot be flushed: {error}")),
            false => flush(&this, &asked, &disk).await,
        }
    });
    match runtime.env.timeout(EVICTION_FLUSH, flush).await {
        Some(Ok(())) => {}
        Some(Err(text)) => {
            device.doubtful.set(true);
            runtime.log(&format!("data device {path} {text}"));
        }
        None => {
            device.suspect.set(true);
            runtime.log(&format!("data device {path} {}", no_answer(EVICTION_FLUSH)));
        }
    }
}

/// Flushes a device, and once more for evictions that did not wait.
async fn flush(runtime: &Runtime, device: &DataDevice, disk: &Disk) -> Result<(), String> {
    loop {
        let flushed = disk.flush().await;
        let flushed = flushed.map_err(|error| format!("cannot be flushed: {error}"));
        if !device.suspect.replace(false) {
            return flushed;
        }
        device.answered.set(Some(runtime.env.now()));
        let what = flushed.err().unwrap_or_else(|| "answers again".into());
        runtime.log(&format!("data device {} {what}; it is flushed once more", device.path));
    }
}

fn warn(runtime: &Runtime, clients: &[ClientId], device: &DataDevice, what: &str) {
    for client in clients {
        runtime.log(&format!(
            "data device {} {what}: the last writes in place of the evicted client {client} may be lost in a \
             power cut",
            device.path
        ));
    }
}

//! One data device of a client, whether it is there or not ([`super::device_state`]): its requests,
//! and the flushes that make writes to it stable.
//!
//! Invariants:
//! - flushes of a device run one at a time and are numbered; a write that completed when `n`
//!   flushes had begun is stable when a flush numbered above `n` has succeeded;
//! - a failed flush loses, for good, every write that no earlier flush covers;
//! - every request to a device counts as pending until the device answers it;
//! - nothing goes to an absent device, and nothing waits for one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use env::sync::Notify;
use env::{Disk, Env, IoBuf};
use proto::mds::PagInfo;
use types::{Bug, ClientId, Duration, Fault, Instant, ServerId, planted};

use super::device_open::{Opened, lock_client, zone_names};
use super::device_queue::DeviceQueue;
use super::device_state::DeviceState;
use super::device_writes::QueuedWrite;
use super::target::TargetLink;

/// Ranges of lost flushes that are kept apart; older ones are joined.
const LOST_MAX: usize = 64;

/// The flushes of one device.
#[derive(Default)]
struct Flushes {
    /// Number of flushes begun.
    started: u64,
    /// Number of the last flush that succeeded.
    good: u64,
    /// Number of the flush that runs.
    running: Option<u64>,
    /// Stamps `[from, to)` whose writes are lost.
    lost: Lost,
    /// The same of files of one metadata server.
    lost_of: BTreeMap<ServerId, Lost>,
}

/// Stamps `[from, to)` whose writes are lost, in order.
#[derive(Default)]
struct Lost(Vec<(u64, u64)>);

impl Lost {
    fn contains(&self, (low, high): (u64, u64)) -> bool {
        self.0.iter().any(|&(from, to)| from <= high && low < to)
    }

    /// Those below `to` are lost, but for those below `good`.
    fn lose(&mut self, good: u64, to: u64) {
        let from = self.0.last().map_or(good, |&(_, to)| to.max(good));
        self.0.push((from, to));
        if self.0.len() > LOST_MAX {
            let (_, to) = self.0.remove(1);
            self.0[0].1 = to;
        }
    }
}

/// What is known of writes with certain stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stability {
    /// They are stable.
    Yes,
    /// No flush has covered them yet.
    NotYet,
    /// A flush failed.
    Lost,
}

impl Flushes {
    /// What is known of writes of files of `server`; `None`: of whichever server.
    fn stability(&self, stamps: (u64, u64), server: Option<ServerId>) -> Stability {
        let lost_of = server.and_then(|server| self.lost_of.get(&server));
        if self.lost.contains(stamps) || lost_of.is_some_and(|lost| lost.contains(stamps)) {
            Stability::Lost
        } else if self.good > stamps.1 {
            Stability::Yes
        } else {
            Stability::NotYet
        }
    }

    fn begin(&mut self) -> u64 {
        self.started += 1;
        self.running = Some(self.started);
        self.started
    }

    fn end(&mut self, number: u64, good: bool) {
        if self.running != Some(number) {
            // It was given up.
            return;
        }
        self.running = None;
        if good {
            self.good = number;
        } else {
            self.lose_below(number);
        }
    }

    /// Gives up the running flush, and loses all that no flush has made stable so far.
    fn lose_all(&mut self) {
        self.running = None;
        self.started += 1;
        self.lose_below(self.started);
    }

    /// Loses what no flush has made stable so far of the files of a server. Those of the others
    /// stay, and a running flush goes on.
    fn lose_all_of(&mut self, server: ServerId) {
        self.started += 1;
        self.lost_of.entry(server).or_default().lose(self.good, self.started);
    }

    fn lose_below(&mut self, number: u64) {
        // Stamps below `good` are stable; this flush was to make those below `number` stable.
        self.lost.lose(self.good, number);
    }
}

/// Wakes the watch.
#[derive(Default)]
pub(super) struct Watch {
    /// Number of absent devices.
    pub absent: Cell<usize>,
    pub awake: Cell<bool>,
    pub wake: Notify,
}

impl Watch {
    /// Something needs watching from now on.
    pub fn rouse(&self) {
        if !self.awake.replace(true) {
            self.wake.notify_all();
        }
    }
}

/// Requests that a device has not answered.
#[derive(Clone, Copy, Default)]
struct PendingRequests {
    requests: usize,
    /// Time of its last answer, or of the first request after that.
    since: Instant,
}

/// A request that a device has not answered.
pub(super) struct PendingRequest<'a>(&'a DataDevice);

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let PendingRequests { requests, .. } = self.0.pending.get();
        self.0.pending.set(PendingRequests { requests: requests - 1, since: self.0.env.now() });
    }
}

/// A data zone on a device.
pub(super) struct ZonePlace {
    /// What the server says of the zone.
    pub info: PagInfo,
    /// First block of its slice on the device, by the label.
    pub start: Cell<u64>,
}

/// See the module.
pub(super) struct DataDevice {
    pub(super) env: Env,
    /// The metadata server whose zones lie on it; of a target, the first that has offered it.
    pub server: ServerId,
    /// The zones that lie on it.
    places: RefCell<Vec<Rc<ZonePlace>>>,
    /// Its path on this host.
    path: RefCell<String>,
    /// It is no device of this host, but a target.
    pub(super) target: Option<TargetLink>,
    /// The open device; an absent one may still be open.
    disk: RefCell<Option<Disk>>,
    pub state: RefCell<DeviceState>,
    /// A look through the open file has not ended.
    pub looks_through: Cell<bool>,
    /// Its last open file was given up before another one had this client's lock.
    pub lock_gap: Cell<bool>,
    /// Pending requests have had no answer for a while.
    pub silent: Cell<bool>,
    /// Bytes of launched writes that have not ended.
    held: Cell<u64>,
    watch: Rc<Watch>,
    pending: Cell<PendingRequests>,
    /// Writes that wait or are in flight; [`super::device_writes`] has the code.
    pub(super) queue: RefCell<DeviceQueue<QueuedWrite>>,
    /// Requests are being taken from the queue.
    pub(super) sending: Cell<bool>,
    flushes: RefCell<Flushes>,
    flushed: Notify,
    /// The device has become absent; how often so far.
    lost: Notify,
    losses: Cell<u64>,
}

/// Bytes of a launched write that has not ended.
pub(super) struct Held<'a>(&'a Cell<u64>, u64);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

impl DataDevice {
    /// The device at `path` with these zones of the server; `found` is the result of the first
    /// look.
    pub fn new(
        env: &Env,
        (server, zones): (ServerId, &[PagInfo]),
        path: &str,
        watch: &Rc<Watch>,
        found: Result<Opened, String>,
    ) -> DataDevice {
        let device = DataDevice::without_file(env, (server, zones), path, watch);
        match found {
            Ok(opened) => device.set_open(opened),
            Err(why) => _ = device.state.replace(DeviceState::new(env.now(), Err(why))),
        }
        device
    }

    /// The device at `path` with these zones of the server, present, but without an open file.
    pub(super) fn without_file(
        env: &Env,
        (server, zones): (ServerId, &[PagInfo]),
        path: &str,
        watch: &Rc<Watch>,
    ) -> DataDevice {
        let place = |info: &PagInfo| Rc::new(ZonePlace { info: info.clone(), start: Cell::new(0) });
        DataDevice {
            env: env.clone(),
            server,
            places: RefCell::new(zones.iter().map(place).collect()),
            path: RefCell::new(path.to_owned()),
            target: None,
            disk: RefCell::default(),
            state: RefCell::new(DeviceState::new(env.now(), Ok(()))),
            looks_through: Cell::new(false),
            lock_gap: Cell::new(false),
            silent: Cell::new(false),
            held: Cell::new(0),
            watch: watch.clone(),
            pending: Cell::default(),
            queue: RefCell::default(),
            sending: Cell::new(false),
            flushes: RefCell::default(),
            flushed: Notify::new(),
            lost: Notify::new(),
            losses: Cell::new(0),
        }
    }

    /// The open file, if there is one.
    pub fn open_file(&self) -> Option<Disk> {
        self.disk.borrow().clone()
    }

    /// Requests go to this open file from now on.
    pub fn set_open(&self, Opened { disk, starts, .. }: Opened) {
        for (zone, start) in self.places().iter().zip(starts) {
            zone.start.set(start);
        }
        self.disk.replace(Some(disk));
    }

    /// Gives up the open file. Returns whether there was one.
    pub fn give_up_file(&self) -> bool {
        self.disk.take().is_some()
    }

    /// Counts a request until the result is dropped.
    pub(super) fn begin_request(&self) -> PendingRequest<'_> {
        let PendingRequests { requests, since } = self.pending.get();
        let since = if requests == 0 { self.env.now() } else { since };
        if requests == 0 {
            self.watch.rouse();
        }
        self.pending.set(PendingRequests { requests: requests + 1, since });
        PendingRequest(self)
    }

    /// For how long the device has not answered, although requests are pending.
    pub fn silence(&self) -> Duration {
        let PendingRequests { requests, since } = self.pending.get();
        if requests == 0 { Duration::ZERO } else { self.env.now().since(since) }
    }

    /// Is a request pending?
    pub fn has_pending(&self) -> bool {
        self.pending.get().requests > 0
    }

    /// Is it sound, and has it answered all requests?
    pub fn is_idle(&self) -> bool {
        !self.has_pending() && self.state.borrow().is_settled(self.env.now())
    }

    /// Its zones, for messages.
    pub fn zone_names(&self) -> String {
        zone_names(&self.infos())
    }

    /// The zones that lie on it. They only get more.
    pub fn places(&self) -> Vec<Rc<ZonePlace>> {
        self.places.borrow().clone()
    }

    /// These zones lie on it, too.
    pub fn add_places(&self, places: &[Rc<ZonePlace>]) {
        self.places.borrow_mut().extend_from_slice(places);
    }

    /// What the server says of its zones.
    pub fn infos(&self) -> Vec<PagInfo> {
        self.places().iter().map(|zone| zone.info.clone()).collect()
    }

    /// Its path.
    pub fn path(&self) -> String {
        self.path.borrow().clone()
    }

    /// It is looked for at this path from now on.
    pub fn set_path(&self, path: &str) {
        path.clone_into(&mut self.path.borrow_mut());
    }

    /// Is the device absent?
    pub fn is_absent(&self) -> bool {
        self.state.borrow().is_absent()
    }

    /// Is the device absent? A request is refused if so.
    pub fn refuses(&self) -> bool {
        let refused = !self.state.borrow_mut().admits();
        if refused {
            self.watch.rouse();
        }
        refused
    }

    /// Counts the bytes of a launched write until the result is dropped.
    pub fn hold(&self, bytes: usize) -> Held<'_> {
        self.held.set(self.held.get() + bytes as u64);
        Held(&self.held, bytes as u64)
    }

    /// Bytes of launched writes that have not ended.
    pub fn held(&self) -> u64 {
        self.held.get()
    }

    /// The device, for a request; EIO at once if it is absent.
    fn usable(&self) -> Result<Disk, Fault> {
        if self.refuses() {
            return Err(Fault::Io);
        }
        self.disk.borrow().clone().ok_or(Fault::Io)
    }

    /// A request failed: soon somebody looks whether all do.
    fn note_failure(&self, placement: bool) {
        self.state.borrow_mut().failed(self.env.now(), placement);
        self.watch.rouse();
    }

    /// The device has become absent. What no flush covers is lost: nobody knows whether the device
    /// still has it. Nothing more waits for requests that it may never answer.
    pub fn give_up_unflushed(&self) {
        self.losses.set(self.losses.get() + 1);
        self.lose_unflushed();
        self.forget_kept();
        self.lost.notify_all();
        self.refuse_waiting();
    }

    /// What no flush covers is lost.
    pub(super) fn lose_unflushed(&self) {
        self.flushes.borrow_mut().lose_all();
        self.flushed.notify_all();
    }

    /// The same of the files of one server.
    pub(super) fn lose_unflushed_of(&self, server: ServerId) {
        self.flushes.borrow_mut().lose_all_of(server);
        self.flushed.notify_all();
    }

    /// Fills `buf` from `offset` on.
    pub async fn read(&self, offset: u64, buf: IoBuf) -> (Result<(), Fault>, IoBuf) {
        let disk = match self.usable() {
            Ok(disk) => disk,
            Err(fault) => return (Err(fault), buf),
        };
        let _request = self.begin_request();
        let (result, buf) = disk.read(offset, buf).await;
        if result.is_err() {
            self.note_failure(false);
        }
        (result.map_err(|_| Fault::Io), buf)
    }

    /// Writes all of `bufs`, one behind the other, at `offset`; returns the stamp of completion.
    pub(super) async fn submit_write(&self, offset: u64, bufs: Vec<IoBuf>) -> Result<u64, Fault> {
        let disk = self.usable()?;
        let losses = self.losses.get();
        let _request = self.begin_request();
        let result = match <[IoBuf; 1]>::try_from(bufs) {
            Ok([buf]) => disk.write(offset, buf).await.0,
            Err(bufs) => disk.write_parts(offset, bufs).await,
        };
        if result.is_err() {
            self.note_failure(true);
        }
        // If the device was lost meanwhile, no flush of the open file that follows covers it.
        if result.is_err() || losses != self.losses.get() {
            return Err(Fault::Io);
        }
        Ok(self.flushes_begun())
    }

    /// Number of flushes begun so far.
    pub fn flushes_begun(&self) -> u64 {
        self.flushes.borrow().started
    }

    /// Ready when the device has become absent.
    pub fn lost(&self) -> env::sync::Notified {
        self.lost.notified()
    }

    /// Has a flush failed, ever?
    pub fn has_losses(&self) -> bool {
        let flushes = self.flushes.borrow();
        !flushes.lost.0.is_empty() || !flushes.lost_of.is_empty()
    }

    /// Are writes of files of this server stable that completed with these lowest and highest
    /// stamps?
    pub fn stability(&self, stamps: (u64, u64), server: ServerId) -> Stability {
        self.flushes.borrow().stability(stamps, Some(server))
    }

    /// Makes writes with these stamps stable. Concurrent calls share flushes.
    pub async fn flush_past(self: &Rc<Self>, stamps: (u64, u64)) -> Stability {
        loop {
            let flushed = self.flushed.notified();
            let state = self.flushes.borrow().stability(stamps, None);
            if state != Stability::NotYet {
                return state;
            }
            if self.flushes.borrow().running.is_none() {
                let number = self.flushes.borrow_mut().begin();
                let disk = match self.target {
                    Some(_) => Ok(None),
                    None => self.usable().map(Some),
                };
                let Ok(disk) = disk else {
                    self.flushes.borrow_mut().end(number, false);
                    continue;
                };
                let this = self.clone();
                // In a task of its own, so that it ends even if the caller is cancelled.
                self.env.spawn(async move { this.flush(disk.as_ref(), number).await });
            }
            flushed.await;
        }
    }

    /// Runs the flush with this number; without a disk, of a target.
    async fn flush(&self, disk: Option<&Disk>, number: u64) {
        let skipped = planted(Bug::CommitBeforeStable);
        let request = self.begin_request();
        let begun = self.env.now();
        let mut good = skipped
            || match disk {
                Some(disk) => disk.flush().await.is_ok(),
                None => self.sync_target().await,
            };
        if planted(Bug::SlowFlushFailed) {
            good &= self.env.now().since(begun) < Duration::from_millis(100);
        }
        drop(request);
        if !good && disk.is_some() {
            self.note_failure(true);
        }
        self.flushes.borrow_mut().end(number, good);
        self.flushed.notify_all();
    }

    /// Makes stable what the device has of earlier writes, whatever is known of them.
    ///
    /// # Errors
    /// The device's.
    pub async fn flush_open_file(&self) -> io::Result<()> {
        match self.open_file() {
            Some(disk) => disk.flush().await,
            None => Ok(()),
        }
    }

    /// Shows other processes of this host that `client` is alive and may write. An absent device
    /// is locked when it comes back.
    pub async fn lock_client(&self, client: ClientId) -> Result<(), String> {
        let disk = self.disk.borrow().clone();
        match disk {
            Some(disk) => lock_client(&disk, client).await.map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_is_stable_only_by_a_flush_that_began_after_it() {
        let mut flushes = Flushes::default();
        let first = flushes.begin();
        // The write completed while the first flush ran.
        let stamp = flushes.started;
        flushes.end(first, true);
        assert_eq!(flushes.stability((0, 0), None), Stability::Yes);
        assert_eq!(flushes.stability((stamp, stamp), None), Stability::NotYet);
        let second = flushes.begin();
        flushes.end(second, true);
        assert_eq!(flushes.stability((stamp, stamp), None), Stability::Yes);
    }

    #[test]
    fn failed_flush_loses_writes_that_were_not_stable_and_no_others() {
        let mut flushes = Flushes::default();
        let number = flushes.begin();
        flushes.end(number, true);
        let number = flushes.begin();
        flushes.end(number, false);
        let number = flushes.begin();
        flushes.end(number, true);
        assert_eq!(flushes.stability((0, 0), None), Stability::Yes);
        assert_eq!(flushes.stability((1, 1), None), Stability::Lost);
        assert_eq!(flushes.stability((2, 2), None), Stability::Yes);
    }

    #[test]
    fn loss_of_one_servers_files_leaves_those_of_the_others() {
        let (here, there) = (ServerId(0), ServerId(1));
        let mut flushes = Flushes::default();
        let number = flushes.begin();
        flushes.end(number, true);
        let running = flushes.begin();
        let before = flushes.started;
        flushes.lose_all_of(there);
        let after = flushes.started;
        flushes.end(running, true);
        let number = flushes.begin();
        flushes.end(number, true);
        for (stamp, server, expected) in [
            (0, there, Stability::Yes),
            (before, there, Stability::Lost),
            (before, here, Stability::Yes),
            (after, there, Stability::Yes),
        ] {
            let is = flushes.stability((stamp, stamp), Some(server));
            assert_eq!(is, expected, "{stamp} of {server}");
        }
    }
}
